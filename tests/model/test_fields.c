/* Every field of every shape counts: with another value of it in one layer, the definition's logits are others, and the CPU's fast code has
   the same others. So a field that nobody reads, that only one of them reads, or that is read of another layer, is found.

   Fields are those of layers/shape.c's tables: of the kinds of layers, of what the walk does around one, of their rope, of a model. A new one needs its row in `fields` here:
   another value that needs no other tensors, or the reason why there is none; else the test fails. Every value has to be tried with some
   checkpoint of tests/fixtures. */

#include "inside.h"

#include "api.h"
#include "families.h"
#include "field_tables.h"
#include "files.h"

#define MOVED 1e-3                  /* of the logits' standard deviation, at least */
#define SAME 5e-6                   /* the fast code and the definition, at most */

/* Another value; the same one where there is none. */
static double field_half(double v) { return floor(v / 4) * 2; }          /* an even one */
static double field_less(double v) { return v > 1 ? v - 1 : v; }
static double field_off(double v) { return v != 0 ? 0 : v; }             /* on would need tensors */
static double field_on(double v) { return v != 0 ? v : 1; }            /* off would need tensors */
static double field_window(double v) { return v > 0 ? v - 1 : 20; }
static double field_other(double v) { return 1 - v; }
static double field_halved(double v) { return v > 1 ? v / 2 : v; }
static double field_seventh(double v) { return v > 7 ? 7 : v; }         /* a token that occurs */
static double field_larger(double v) { return v + 1; }
static double field_scaled(double v) { return v * 1.5; }
static double field_trebled(double v) { return v * 3; }
static double field_eightfold(double v) { return v * 8; }
static double field_eighth(double v) { return v / 8; }
static double field_smaller(double v) { return v / 100; }
static double field_gates_off(double v) { return v != 0 ? 0 : 1; }      /* on with field_gates' */
static double field_fewer(double v) { return v > 1 ? v - 1 : 1; }
static double field_factor(double v) { return v != 0 ? v * 1.5 : 0.375; }
static double field_cap(double v) { return v != 0 ? v / 4 : 5; }

/* chunk: rows at a time in the fast code; 0: 7. Results of a product are as far apart as its matrix has rows, whatever a shape says of
   them: with a shape that says less, rows would overlap. */
static const struct field_value {
    int table;
    const char *name, *fixed;       /* fixed: why it has no other value with these tensors */
    double (*other)(double v);
    int chunk;
    const char *with;               /* a field without which it does not count */
    const char *without;            /* a field with which it does not */
    int plain;                      /* it does not go with what models of several streams have */
    int factor;                     /* of all routed experts: it does not count where their sum is normed */
} fields[] = {
    {.table = LAYER_ATTENTION, .name = "hidden", .fixed = "columns of the projections"},
    {.table = LAYER_ATTENTION, .name = "heads", .fixed = "rows of q_proj, columns of o_proj"},
    {.table = LAYER_ATTENTION, .name = "kv_heads", .fixed = "rows of k_proj and v_proj"},
    {.table = LAYER_ATTENTION, .name = "head_dim", .fixed = "rows of q_proj, k_proj and v_proj"},
    {.table = LAYER_ATTENTION, .name = "rotary_dim", .other = field_half},
    {.table = LAYER_ATTENTION, .name = "eps", .other = field_larger, .with = "normed"},
    {.table = LAYER_ATTENTION, .name = "rope_scale", .other = field_scaled},
    {.table = LAYER_ATTENTION, .name = "gated", .other = field_off, .chunk = 1},
    {.table = LAYER_ATTENTION, .name = "gate_size", .other = field_gates_off},
    {.table = LAYER_ATTENTION, .name = "normed", .other = field_off},
    {.table = LAYER_ATTENTION, .name = "v_normed", .other = field_other},
    {.table = LAYER_ATTENTION, .name = "v_of_k", .other = field_on},
    {.table = LAYER_ATTENTION, .name = "biased", .fixed = "which tensors are there"},
    {.table = LAYER_ATTENTION, .name = "scale", .other = field_factor},
    {.table = LAYER_ATTENTION, .name = "window", .other = field_window, .plain = 1},
    {.table = LAYER_ATTENTION, .name = "sinks", .other = field_off},
    {.table = LAYER_ATTENTION, .name = "index_heads", .other = field_off},
    {.table = LAYER_ATTENTION, .name = "index_dim", .fixed = "rows of index_qk_proj"},
    {.table = LAYER_ATTENTION, .name = "index_group", .other = field_halved},
    {.table = LAYER_ATTENTION, .name = "index_budget", .other = field_halved},
    {.table = LAYER_MLA, .name = "hidden", .fixed = "columns of the first projections"},
    {.table = LAYER_MLA, .name = "heads", .fixed = "rows of q_b_proj and kv_b_proj, columns of o_proj"},
    {.table = LAYER_MLA, .name = "q_rank", .fixed = "rows of q_a_proj"},
    {.table = LAYER_MLA, .name = "kv_rank", .fixed = "rows of kv_a_proj, columns of kv_b_proj"},
    {.table = LAYER_MLA, .name = "nope_dim", .fixed = "rows of q_b_proj and kv_b_proj"},
    {.table = LAYER_MLA, .name = "rope_dim", .fixed = "rows of q_b_proj and kv_a_proj"},
    {.table = LAYER_MLA, .name = "value_dim", .fixed = "rows of kv_b_proj, columns of o_proj"},
    {.table = LAYER_MLA, .name = "eps", .other = field_larger},
    {.table = LAYER_MLA, .name = "rope_scale", .other = field_scaled},
    {.table = LAYER_MLA, .name = "scale", .other = field_scaled},
    {.table = LAYER_MLA, .name = "interleaved", .other = field_other},
    {.table = LAYER_DELTANET, .name = "hidden", .fixed = "columns of the projections"},
    {.table = LAYER_DELTANET, .name = "key_heads", .fixed = "rows of in_proj_qkv"},
    {.table = LAYER_DELTANET, .name = "value_heads", .fixed = "rows of in_proj_qkv and in_proj_z, columns of out_proj"},
    {.table = LAYER_DELTANET, .name = "key_dim", .fixed = "rows of in_proj_qkv"},
    {.table = LAYER_DELTANET, .name = "value_dim", .fixed = "rows of in_proj_qkv and in_proj_z, columns of out_proj"},
    {.table = LAYER_DELTANET, .name = "taps", .other = field_less},
    {.table = LAYER_DELTANET, .name = "eps", .other = field_larger},
    {.table = LAYER_DELTANET, .name = "sigmoid_gate", .other = field_other},
    {.table = LAYER_NGRAMS, .name = "hidden", .fixed = "rows of key_proj and value_proj"},
    {.table = LAYER_NGRAMS, .name = "streams", .fixed = "rows of key_proj"},
    {.table = LAYER_NGRAMS, .name = "grams", .fixed = "columns of key_proj and value_proj"},
    {.table = LAYER_NGRAMS, .name = "heads", .fixed = "columns of key_proj and value_proj"},
    {.table = LAYER_NGRAMS, .name = "row_size", .fixed = "columns of the table"},
    {.table = LAYER_NGRAMS, .name = "taps", .other = field_less},
    {.table = LAYER_NGRAMS, .name = "eps", .other = field_larger},
    {.table = LAYER_NGRAMS, .name = "base", .fixed = "rows of the table"},
    {.table = LAYER_NGRAMS, .name = "seed", .fixed = "the hash is made when tensors are bound: tests/checkpoint/test_rows.c"},
    {.table = LAYER_NGRAMS, .name = "vocab", .fixed = "the hash is made when tensors are bound: tests/checkpoint/test_rows.c"},
    {.table = LAYER_NGRAMS, .name = "number", .fixed = "which of the model's tables"},
    {.table = LAYER_NGRAMS, .name = "eos", .other = field_seventh},
    {.table = LAYER_NGRAMS, .name = "table_rows", .fixed = "rows of the table"},
    {.table = LAYER_NGRAMS, .name = "table_parts", .fixed = "tensors of the table"},
    {.table = LAYER_MAMBA, .name = "hidden", .fixed = "columns of in_proj"},
    {.table = LAYER_MAMBA, .name = "heads", .fixed = "rows of in_proj, columns of out_proj"},
    {.table = LAYER_MAMBA, .name = "head_dim", .fixed = "rows of in_proj, columns of out_proj"},
    {.table = LAYER_MAMBA, .name = "groups", .fixed = "rows of in_proj"},
    {.table = LAYER_MAMBA, .name = "state_dim", .fixed = "rows of in_proj"},
    {.table = LAYER_MAMBA, .name = "taps", .other = field_less},
    {.table = LAYER_MAMBA, .name = "eps", .other = field_larger},
    {.table = LAYER_MOE, .name = "hidden", .fixed = "columns of the router and of the experts"},
    {.table = LAYER_MOE, .name = "experts", .fixed = "rows of the router"},
    {.table = LAYER_MOE, .name = "top_k", .other = field_less},
    {.table = LAYER_MOE, .name = "expert_size", .fixed = "rows of gate_proj and up_proj, columns of down_proj"},
    {.table = LAYER_MOE, .name = "shared_size", .other = field_off},
    {.table = LAYER_MOE, .name = "shared_ungated", .other = field_on, .with = "shared_size"},
    {.table = LAYER_MOE, .name = "sigmoid", .other = field_off},
    {.table = LAYER_MOE, .name = "corrected", .other = field_off},
    {.table = LAYER_MOE, .name = "groups", .other = field_off},
    {.table = LAYER_MOE, .name = "groups_kept", .other = field_less, .with = "groups"},
    {.table = LAYER_MOE, .name = "of_all", .other = field_other, .factor = 1},
    {.table = LAYER_MOE, .name = "routed_scale", .other = field_scaled, .factor = 1},
    {.table = LAYER_MOE, .name = "expert_scaled", .other = field_other},
    {.table = LAYER_MOE, .name = "limit", .other = field_scaled},
    {.table = LAYER_MOE, .name = "alpha", .other = field_scaled},
    {.table = LAYER_MOE, .name = "gelu", .other = field_other, .without = "squared_relu"},
    {.table = LAYER_MOE, .name = "squared_relu", .other = field_off},
    {.table = LAYER_MOE, .name = "biased", .fixed = "which tensors are there"},
    {.table = LAYER_MLP, .name = "hidden", .fixed = "columns of gate_proj and up_proj"},
    {.table = LAYER_MLP, .name = "size", .fixed = "rows of gate_proj and up_proj, columns of down_proj"},
    {.table = LAYER_MLP, .name = "gelu", .other = field_other, .without = "squared_relu"},
    {.table = LAYER_MLP, .name = "squared_relu", .fixed = "which tensors are there"},
    {.table = OF_RESIDUAL, .name = "normed_after", .other = field_other},
    {.table = OF_RESIDUAL, .name = "scaled", .other = field_other},
    {.table = OF_RESIDUAL, .name = "branched", .other = field_other, .plain = 1},
    {.table = OF_RESIDUAL, .name = "streams", .fixed = "streams of the model, which each sublayer reads"},
    {.table = OF_RESIDUAL, .name = "mix_rank", .fixed = "rows of input_mix_weight_down"},
    {.table = OF_RESIDUAL, .name = "whole", .fixed = "what a layer of n-grams is"},
    {.table = OF_ROPE, .name = "kind", .other = field_off, .with = "original"},
    {.table = OF_ROPE, .name = "theta", .other = field_smaller},
    {.table = OF_ROPE, .name = "factor", .other = field_eighth},
    {.table = OF_ROPE, .name = "original", .other = field_eightfold},
    {.table = OF_ROPE, .name = "slow", .other = field_trebled},
    {.table = OF_ROPE, .name = "fast", .other = field_eightfold},
    {.table = OF_ROPE, .name = "truncate", .other = field_off},
    {.table = OF_ROPE, .name = "turning", .other = field_fewer},
    {.table = OF_ROPE, .name = "height", .other = field_off},
    {.table = OF_ROPE, .name = "width", .other = field_off},
    {.table = OF_CONFIG, .name = "layers", .fixed = "as many layers have tensors"},
    {.table = OF_CONFIG, .name = "hidden", .fixed = "columns of the embedding and of lm_head"},
    {.table = OF_CONFIG, .name = "vocab", .fixed = "rows of the embedding and of lm_head"},
    {.table = OF_CONFIG, .name = "context_max", .fixed = "no part of the logits: how long a session may be"},
    {.table = OF_CONFIG, .name = "mtp_layers", .fixed = "which tensors are there"},
    {.table = OF_CONFIG, .name = "tied", .fixed = "which tensors are there"},
    {.table = OF_CONFIG, .name = "fp8_rows", .fixed = "how scales are stored"},
    {.table = OF_CONFIG, .name = "fp8_cols", .fixed = "how scales are stored"},
    {.table = OF_CONFIG, .name = "zeros_stored", .fixed = "how zero points are stored"},
    {.table = OF_CONFIG, .name = "asymmetric", .fixed = "how zero points are stored"},
    {.table = OF_CONFIG, .name = "eps", .other = field_larger},
    {.table = OF_CONFIG, .name = "embed_factor", .other = field_factor},
    {.table = OF_CONFIG, .name = "logit_cap", .other = field_cap},
    {.table = OF_CONFIG, .name = "streams", .fixed = "columns of every input_mix_weight_down"},
    {.table = OF_CONFIG, .name = "mix_rank", .fixed = "rows of every input_mix_weight_down"},
    {.table = OF_CONFIG, .name = "eos", .fixed = "no part of the logits: what ends a text"},
};

static int field_tries[COUNT(fields)];

static const struct field_value *field_find(int table, const char *name) {
    for (size_t i = 0; i < COUNT(fields); i++)
        if (fields[i].table == table && !strcmp(fields[i].name, name)) return &fields[i];
    return NULL;
}

/* Each field has its row here, and each row is of a field. */
static void test_field_rows(void) {
    size_t count = 0;
    for (int k = 0; k < FIELD_TABLES; k++)
        for (int i = 0; i < field_tables[k].count; i++, count++) {
            const char *name = field_tables[k].row[i].name;
            const struct field_value *f = field_find(k, name);
            CHECK(f && !f->fixed == (f->other != NULL), "%s: %s has no row in tests/model/test_fields.c", field_tables[k].name, name);
        }
    CHECK(count == COUNT(fields), "%zu fields, %zu rows: one is of no field, or there twice", count, COUNT(fields));
}

/* The rows of T tokens. Where a model tells the axes of positions apart, these differ, as in a picture. */
static token_row *field_rows(const mote_model *m, const int32_t *ids, int T) {
    token_row *rows = (token_row *)allocate((size_t)T * sizeof *rows);
    int axes = 0;
    text_rows(rows, ids, T, 0, 0);
    for (int i = 0; i <= m->c.layers; i++) axes |= m->c.layer[i].rope.height | m->c.layer[i].rope.width;
    for (int t = 0; t < T && axes; t++) rows[t].position[1] += t % 5 * 100, rows[t].position[2] += t % 7 * 400;
    return rows;
}

/* Logits [T][vocab] of the definition and of the CPU's code, of the MTP layer [T - 1][vocab] if mtp. */
typedef struct field_logits { float *defined, *fast; size_t count; } field_logits;

static field_logits field_compute(const mote_model *m, const int32_t *ids, int T, int mtp, int chunk) {
    const size_t vocab = (size_t)m->c.vocab, n = (size_t)T * vocab;
    double *logits = (double *)allocate(n * sizeof *logits), *mtp_logits = (double *)allocate(n * sizeof *logits);
    float *defined = (float *)allocate(n * sizeof *defined), *fast = (float *)allocate(n * sizeof *fast), *other = (float *)allocate(n * sizeof *fast);
    token_row *rows = field_rows(m, ids, T);
    CHECK(definition_rows(m, rows, NULL, T, logits, m->has_mtp ? mtp_logits : NULL), "out of memory");
    for (size_t i = 0; i < n; i++) defined[i] = (float)(mtp ? mtp_logits : logits)[i];
    mote_session *s = session_of(m, .context = T, .chunk = chunk, .threads = 2, .mtp = m->has_mtp ? 1 : 0);
    const feed_results wanted = {mtp ? other : fast, mtp ? fast : m->has_mtp ? other : NULL, NULL, NULL};
    const fed_rows given = {rows, NULL, 0};
    EXPECT(MOTE_OK, feed_table(s, ids, &given, (size_t)T, &wanted, &failure));
    mote_session_close(s);
    free(logits), free(mtp_logits), free(other), free(rows);
    return (field_logits){defined, fast, n - (mtp ? vocab : 0)};
}

static void field_free(field_logits *l) {
    free(l->defined), free(l->fast);
}

/* Numbers of a model: `of`, a struct of that table, of layer `at`, the last one the MTP layer, whose logits are then looked at. normed: of experts whose sum is. Of a rope: where the
   frequencies of so many rotated dimensions are, and the axes, if its layer has them, which come of it. */
typedef struct field_place { int table, at, normed; void *of; float *frequencies; int rotated; rope_axes *axes; } field_place;

static void field_set(const field_place *p, int i, double value) {
    const shape_field *row = &field_tables[p->table].row[i];
    const float real = (float)value;
    const int32_t whole = (int32_t)value;
    memcpy((char *)p->of + 4 * i, row->is_float ? (const void *)&real : &whole, 4);
    if (p->table != OF_ROPE) return;
    const rope_shape *rope = (const rope_shape *)p->of;
    rope_frequencies(rope, p->rotated, p->frequencies);
    if (p->axes) *p->axes = (rope_axes){rope->height, rope->width};
}

static int field_counts(const field_place *p, const struct field_value *f) {
    int counts = !f->with;
    for (int i = 0; i < field_tables[p->table].count && !counts; i++)
        counts = !strcmp(field_tables[p->table].row[i].name, f->with) && shape_value(p->of, field_tables[p->table].row, i) != 0;
    for (int i = 0; i < field_tables[p->table].count && f->without; i++)
        counts &= strcmp(field_tables[p->table].row[i].name, f->without) != 0 || shape_value(p->of, field_tables[p->table].row, i) == 0;
    return counts && !(f->factor && p->normed);
}

/* In brief each field once, where the first checkpoint has another value: the code is the same in all of them. */
static void test_fields_of(const char *folder, const mote_model *m, const field_place *p, const int32_t *ids, int T) {
    const int mtp = p->at == m->c.layers;
    field_logits before = {NULL, NULL, 0};
    for (int i = 0; i < field_tables[p->table].count; i++) {
        const shape_field *row = field_tables[p->table].row;
        const struct field_value *f = field_find(p->table, row[i].name);
        const double value = shape_value(p->of, row, i), other = f && f->other ? f->other(value) : value;
        if (other == value || !field_counts(p, f) || (f->plain && m->c.streams)) continue;
        if (test_brief && field_tries[f - fields]) continue;
        if (!before.defined) before = field_compute(m, ids, T, mtp, 7);
        field_set(p, i, other);
        field_logits after = field_compute(m, ids, T, mtp, f->chunk ? f->chunk : 7);
        field_set(p, i, value);
        const double moved = off(after.defined, before.defined, before.count), same = off(after.fast, after.defined, before.count);
        CHECK(moved > MOVED, "%s: layer %d, %s: with %s %g in place of %g logits move by %.1e", folder, p->at, field_tables[p->table].name,
              row[i].name, other, value, moved);
        CHECK(same <= SAME, "%s: layer %d, %s: with %s %g in place of %g the CPU's code is off the definition by %.1e", folder, p->at,
              field_tables[p->table].name, row[i].name, other, value, same);
        field_tries[f - fields]++;
        field_free(&after);
    }
    field_free(&before);
}

/* Weights for what a layer has not: norms after it and of its branches, scales of it and of its experts. */
static void field_weights(const mote_model *m, sublayer *l, const float *norm) {
    static const float scale = 1.5f;
    const float **of[] = {&l->norm_after, &l->norm_router, &l->norm_shared, &l->norm_routed_after, &l->norm_shared_after};
    for (int i = 0; i < 5; i++)
        if (!*of[i]) *of[i] = norm + i;
    if (!l->scale) l->scale = &scale;
    if (l->kind == LAYER_MOE && !l->w.moe.expert_scale) l->w.moe.expert_scale = norm;
    CHECK(l->kind != LAYER_MOE || l->w.moe.shape.experts <= m->c.hidden, "more experts than weights");
}

static float *field_residuals(mote_model *m) {
    float *norm = (float *)allocate((size_t)(m->c.hidden + 5) * sizeof *norm);
    for (int i = 0; i < m->c.hidden + 5; i++) norm[i] = 0.5f + (float)(i % 7) / 8;
    for (int i = 0; i <= m->c.layers; i++) {
        layer *l = model_layer(m, i);
        field_weights(m, &l->mixer, norm);
        field_weights(m, &l->ffn, norm);
    }
    m->largest.residual.normed_after = m->largest.residual.branched = 1;
    return norm;
}

/* Makes a layer's router one of DeepSeek V3's sort, with a correction that moves the choice: so no checkpoint need have all of that. */
static float *field_router(mote_model *m, moe_weights *w) {
    float *correction = (float *)allocate((size_t)w->shape.experts * sizeof *correction);
    for (int e = 0; e < w->shape.experts; e++) correction[e] = (float)(e * 5 % 8) / 16;
    w->correction = correction;
    w->shape.sigmoid = w->shape.corrected = 1;
    w->shape.groups = 3;
    w->shape.groups_kept = 2;
    w->shape.routed_scale = 2.5f;
    m->largest.moe = w->shape;
    return correction;
}

/* The fields of the last MoE layer of a checkpoint, with such a router. */
static void test_router_fields(const char *folder) {
    size_t size;
    char path[600];
    snprintf(path, sizeof path, "%s/tokens.i32", folder);
    int32_t *ids = (int32_t *)file_bytes(path, &size);
    mote_model *m = model_on("cpu", folder, MOTE_WEIGHTS_ONLY);
    float *norm = field_residuals(m);
    int i = m->c.layers - 1;
    while (i && m->layers[i].ffn.kind != LAYER_MOE) i--;
    float *correction = field_router(m, &m->layers[i].ffn.w.moe);
    test_fields_of(folder, m, &(field_place){.table = LAYER_MOE, .at = i, .of = &m->layers[i].ffn.w}, ids, (int)(size / sizeof *ids));
    mote_close(m);
    free(norm);
    free(correction);
    free(ids);
}

/* Gates of heads for layers that have none. */
static float *field_gates(mote_model *m) {
    const attention_shape *s = &m->largest.attention;
    float *g = (float *)allocate((size_t)(s->heads * m->c.hidden) * sizeof *g);
    for (int i = 0; i < s->heads * m->c.hidden; i++) g[i] = (float)(i % 11) / 32 - (float)(i % 7) / 24;
    for (int i = 0; i <= m->c.layers; i++) {
        attention_weights *w = &model_layer(m, i)->mixer.w.attention;
        if (model_layer(m, i)->mixer.kind != LAYER_ATTENTION || w->shape.gate_size) continue;
        w->g_proj = (matrix){.format = FORMAT_F32, .rows = w->shape.heads, .cols = m->c.hidden};
        w->g_proj.component[CODES] = g;
    }
    m->largest.attention.gate_size = max_int(s->gate_size, 1);
    return g;
}

/* Of each kind the last layer that there is, as the first is what a mistake would read for all, and the MTP layer. */
static void test_fields_in(const char *folder) {
    size_t size;
    char path[600];
    snprintf(path, sizeof path, "%s/tokens.i32", folder);
    int32_t *ids = (int32_t *)file_bytes(path, &size);
    mote_model *m = model_on("cpu", folder, MOTE_WEIGHTS_ONLY);
    const int T = (int)(size / sizeof *ids);
    int last[LAYER_NONE + 1];
    float *norm = field_residuals(m), *gates = field_gates(m);
    for (int i = 0; i < m->c.layers; i++) last[m->layers[i].mixer.kind] = last[m->layers[i].ffn.kind] = i;
    for (int i = 0; i < m->c.layers + m->has_mtp; i++) {
        layer *l = model_layer(m, i);
        const int latent = l->mixer.kind == LAYER_MLA;
        const field_place of[] = {
            {.table = l->mixer.kind, .at = i, .of = &l->mixer.w}, {.table = l->ffn.kind, .at = i, .normed = l->ffn.residual.branched, .of = &l->ffn.w},
            {.table = OF_ROPE, .at = i, .of = &m->c.layer[i].rope, .frequencies = (float *)(latent ? l->mixer.w.mla.frequencies : l->mixer.w.attention.frequencies),
             .rotated = rope_dim(&m->c.layer[i]), .axes = latent ? NULL : &l->mixer.w.attention.axes},
            {.table = OF_RESIDUAL, .at = i, .of = &l->mixer.residual}, {.table = OF_RESIDUAL, .at = i, .of = &l->ffn.residual}};
        const int mixes = l->mixer.kind != LAYER_NONE, feeds = l->ffn.kind != LAYER_NONE;
        if (mixes && (i == m->c.layers || last[l->mixer.kind] == i)) test_fields_of(folder, m, &of[0], ids, T);
        if (feeds && (i == m->c.layers || last[l->ffn.kind] == i)) test_fields_of(folder, m, &of[1], ids, T);
        if (of[2].rotated && (i == m->c.layers || last[l->mixer.kind] == i)) test_fields_of(folder, m, &of[2], ids, T);
        if (mixes && i >= m->c.layers - 1) test_fields_of(folder, m, &of[3], ids, T);
        if (feeds && i == m->c.layers - 2) test_fields_of(folder, m, &of[4], ids, T);       /* the last one's factor would not move a norm */
    }
    test_fields_of(folder, m, &(field_place){.table = OF_CONFIG, .of = &m->c}, ids, T);
    mote_close(m);
    free(norm);
    free(gates);
    free(ids);
}

/* Of each mixer of a synthetic model the last layer: of a family of which there is no checkpoint that is small enough. Its experts add too little
   to be seen here; they are those of other families. */
static void test_mixer_fields_of_synthetic(const char *name) {
    mote_model *m = NULL;
    int32_t ids[48];
    int last[LAYER_NONE + 1];
    for (int t = 0; t < 48; t++) ids[t] = t % 9 == 8 ? 7 : random_int(0, 253);
    EXPECT(MOTE_OK, mote_open_synthetic(name, &(mote_options){.device = "cpu"}, &m, &failure));
    if (!m) return;
    float *norm = field_residuals(m), *gates = field_gates(m);
    for (int i = 0; i < m->c.layers; i++) last[m->layers[i].mixer.kind] = i;
    for (int i = 0; i < m->c.layers + m->has_mtp; i++) {
        sublayer *l = &model_layer(m, i)->mixer;
        if (i == m->c.layers || last[l->kind] == i) test_fields_of(name, m, &(field_place){.table = l->kind, .at = i, .of = &l->w}, ids, 48);
    }
    mote_close(m);
    free(norm);
    free(gates);
}

int main(int argc, char **argv) {
    test_main_begin("test_fields", argc, argv);
    test_field_rows();
    test_fields_in("tests/fixtures/bf16-as-3.5");
    static family_folders families;
    add_family_folders(&families, "tests/fixtures/families", 0, 0);
    for (int i = 0; i < families.count; i++) test_fields_in(families.dir[i]);
    test_mixer_fields_of_synthetic("tiny-flash:f32");
    test_router_fields("tests/fixtures/families/gpt-oss-bf16");
    for (size_t i = 0; i < COUNT(fields); i++)
        CHECK(fields[i].fixed || field_tries[i], "%s: no checkpoint of tests/fixtures has another value for %s", field_tables[fields[i].table].name,
              fields[i].name);
    return test_main_end();
}
