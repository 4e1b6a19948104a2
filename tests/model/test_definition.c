/* Tests of the definitions (layers/<kind>/definition.c, diagnose/definition.c): whole models against the logits of the reference, and the
   CPU's fast code against the definitions, whatever the weights' format, whole and sublayer by sublayer; and that the latter finds a
   damaged weight.

   Usage: test_definition [DATA [CHECKPOINT...]]
     CHECKPOINT: folders with reference results, beside tests/fixtures and DATA/family-data

   Prompts are read whole: of a window, of a rope scaled beyond a context, and of what the fast code does with more than 256 positions, the
   first few tokens would tell nothing. */

#include "inside.h"

#include "api.h"
#include "families.h"
#include "files.h"
#include "no_memory.h"
#include "walk.h"

/* Of the logits' standard deviation. The reference computes in float32; a wrong formula is off by 0.02 or more. */
#define REFERENCE_RULE 2e-5
#define CPU_RULE 5e-6
#define SUBLAYER_RULE 1e-4          /* of what a sublayer adds; DeltaNet divides o by its root mean square, which can be nearly nothing */

static void *read_rows(const char *folder, const char *name, size_t *size) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return file_bytes(path, size);
}

static void compare(const char *folder, const char *what, const double *defined, const float *other, size_t n, double allowed) {
    float *as_float = (float *)allocate(n * sizeof *as_float);
    for (size_t i = 0; i < n; i++) as_float[i] = (float)defined[i];
    double by = off(other, as_float, n);
    printf("%s: %s: off the definition by %.1e\n", folder, what, by);
    CHECK(by <= allowed, "%s: %s: off the definition by %g", folder, what, by);
    free(as_float);
}

/* ---- Sublayer by sublayer --------------------------------------------------------------------------------------------- */

/* The reports of a walk. damaged: the half of a layer (2 i: its mixer, 2 i + 1: its FFN) that must be off, and nothing else; -1: none. */
typedef struct walk_results { const char *folder, *value; int damaged, sublayers; } walk_results;

static void check_report(void *user, const sublayer_report *r) {
    walk_results *w = (walk_results *)user;
    const int sublayer = r->layer < 0 ? -1 : 2 * r->layer + (!strcmp(r->kind, "moe") || !strcmp(r->kind, "mlp")), damaged = r->layer >= 0 && sublayer == w->damaged;
    const double by = r->off[0].by;
    w->sublayers += r->layer >= 0;
    if (damaged) CHECK(by > 1e-3, "%s: layer %d, %s is damaged and off by %g", w->folder, r->layer, r->kind, by);
    else if (w->damaged < 0 || strcmp(r->kind, "logits"))
        CHECK(by <= SUBLAYER_RULE, "%s: layer %d, %s, is off by %g at %d of token %d", w->folder, r->layer, r->kind, by, r->off[0].at,
              r->off[0].row);
    for (int i = 0; i < r->count; i++) {
        const double off_by = r->value[i].off[0].by;
        const int is = damaged && w->value && !strcmp(r->value[i].name, w->value);
        if (is) CHECK(off_by > 1e-3, "%s: layer %d: %s is damaged and off by %g", w->folder, r->layer, w->value, off_by);
        else if (r->value[i].n > FEW_VALUES && (!damaged || strcmp(r->value[i].name, "o")))
            CHECK(off_by <= SUBLAYER_RULE, "%s: layer %d: %s is off by %g", w->folder, r->layer, r->value[i].name, off_by);
    }
}

/* m by definition, and `other` on the CPU, `rows` tokens at a time, of which `kept` are kept, with a look into the layer that
   is damaged, or all. */
static void check_walk(const char *folder, const mote_model *m, const mote_model *other, int rows, int kept, int damaged,
                       const char *value) {
    static const int32_t ids[] = {1, 7, 3, 30, 22, 7, 9};
    walk_results results = {folder, value, damaged, 0};
    walk w = {.m = m, .ids = ids, .T = sizeof ids / sizeof *ids, .look = damaged < 0 ? LOOK_EVERYWHERE : damaged / 2,
              .tell = check_report, .user = &results, .err = &failure};
    walk_add(&w, session_of(other, .context = 8, .chunk = rows, .threads = 2, .mtp = m->has_mtp ? 1 : 0), rows);
    w.cases[0].kept = kept;
    walk_whole(&w);
    for (int i = 0; i < m->c.layers + m->has_mtp; i++)
        results.sublayers -= (model_layer(m, i)->mixer.kind != LAYER_NONE) + (model_layer(m, i)->ffn.kind != LAYER_NONE);
    CHECK(results.sublayers == 0, "%s: %d sublayers too many", folder, results.sublayers);
    mote_session_close(w.cases[0].s);
}

/* An exponent's highest bit of a BF16 matrix's first number is turned, in a model of its own, and turned back. */
static void damage_matrix(const char *folder, const mote_model *m, const mote_model *other, const matrix *w, int sublayer,
                          const char *value) {
    char *first = (char *)w->component[CODES];
    const int rows = 1 + sublayer % MOTE_ROWS_MAX;
    first[1] ^= 0x40;
    check_walk(folder, m, other, rows, rows, sublayer, value);
    first[1] ^= 0x40;
}

static void test_damaged_weights(const char *folder) {
    mote_model *m = model_on("cpu", folder, MOTE_WEIGHTS_ONLY), *other = model_on("cpu", folder, MOTE_WEIGHTS_ONLY);
    for (int i = 0; i < m->c.layers + m->has_mtp; i++) {
        const layer *l = model_layer(other, i);
        const layer_weights *w = &l->mixer.w;
        const int delta = l->mixer.kind == LAYER_DELTANET;
        damage_matrix(folder, m, other, delta ? &w->deltanet.in_proj_qkv : &w->attention.v_proj, 2 * i, delta ? "in_proj_qkv" : "v_proj");
        damage_matrix(folder, m, other, delta ? &w->deltanet.out_proj : &w->attention.o_proj, 2 * i, NULL);
        const moe_weights *e = &l->ffn.w.moe;
        const mlp_weights *f = &l->ffn.w.mlp;
        const int dense = l->ffn.kind == LAYER_MLP;
        damage_matrix(folder, m, other, dense ? &f->down_proj : &e->down_proj[e->shape.experts], 2 * i + 1, NULL);
        if (dense) damage_matrix(folder, m, other, &f->gate_proj, 2 * i + 1, "h");
        if (dense) damage_matrix(folder, m, other, &f->up_proj, 2 * i + 1, "h");
    }
    check_walk(folder, m, other, MOTE_ROWS_MAX, MOTE_ROWS_MAX, -1, NULL);
    mote_close(m);
    mote_close(other);
}

/* Whatever allocation fails, an error says so. */
static void test_defined_without_memory(const char *folder) {
    static const int32_t ids[] = {1, 7};
    mote_model *m = model_on("cpu", folder, MOTE_WEIGHTS_ONLY);
    walk_results results = {folder, NULL, -1, 0};
    walk w = {.m = m, .ids = ids, .T = 2, .look = LOOK_NOWHERE, .tell = check_report, .user = &results, .err = &failure};
    double *logits = (double *)allocate(2 * (size_t)m->c.vocab * sizeof *logits);
    for (int i = 0; i < 2; i++) {
        refuse_at = allocations + i;
        CHECK(!definition_model(m, ids, 2, logits, NULL), "%s: a definition without allocation %d", folder, i);
    }
    for (int i = 0; i < 6 + 2 * (m->c.layers + m->has_mtp); i++) {
        refuse_at = allocations + i;
        EXPECT(MOTE_ENOMEM, walk_model(&w));
        CHECK(i >= 7 || !results.sublayers, "%s: %d sublayers without allocation %d", folder, results.sublayers, i);
    }
    refuse_at = -1;
    EXPECT(MOTE_OK, walk_model(&w));
    CHECK(definition_model(m, ids, 2, logits, NULL), "%s: with memory", folder);
    free(logits);
    mote_close(m);
}

/* ---- Whole models ------------------------------------------------------------------------------------------------------- */

static void test_checkpoint(const char *folder) {
    size_t ids_size, logits_size, mtp_size;
    mote_model *m = model_on("cpu", folder, MOTE_WEIGHTS_ONLY);
    int32_t *ids = (int32_t *)read_rows(folder, "tokens.i32", &ids_size);
    float *reference = (float *)read_rows(folder, "logits.f32", &logits_size);
    float *reference_mtp = (float *)read_rows(folder, "mtp_logits.f32", &mtp_size);
    const size_t vocab = (size_t)m->c.vocab, T = ids_size / sizeof *ids, row = vocab * sizeof(float);
    if (!CHECK(ids && T > 1 && logits_size == T * row && m->has_mtp == (reference_mtp != NULL) && mtp_size == (m->has_mtp ? (T - 1) * row : 0),
               "%s: no reference results", folder)) return;
    double *logits = (double *)allocate(T * vocab * sizeof *logits), *mtp = (double *)allocate(T * vocab * sizeof *mtp);
    float *fast = (float *)allocate(T * vocab * sizeof *fast), *fast_mtp = (float *)allocate(T * vocab * sizeof *fast_mtp);

    CHECK(definition_model(m, ids, (int)T, logits, m->has_mtp ? mtp : NULL), "%s: out of memory", folder);
    compare(folder, "reference", logits, reference, T * vocab, REFERENCE_RULE);
    if (m->has_mtp) compare(folder, "reference, MTP", mtp, reference_mtp, (T - 1) * vocab, REFERENCE_RULE);

    mote_session *s = session_of(m, .context = (int)T, .chunk = 7, .threads = 2, .mtp = m->has_mtp ? 1 : 0);
    EXPECT(MOTE_OK, mote_feed_logits(s, ids, T, fast, m->has_mtp ? fast_mtp : NULL, &failure));
    compare(folder, "the CPU", logits, fast, T * vocab, CPU_RULE);
    if (m->has_mtp) compare(folder, "the CPU, MTP", mtp, fast_mtp, (T - 1) * vocab, CPU_RULE);

    mote_session_close(s);
    check_walk(folder, m, m, 2, 2, -1, NULL);
    check_walk(folder, m, m, 4, 1, -1, NULL);
    check_walk(folder, m, m, 3, 2, -1, NULL);
    check_walk(folder, m, m, 7, 7, -1, NULL);
    mote_close(m);
    free(ids), free(reference), free(reference_mtp), free(logits), free(mtp), free(fast), free(fast_mtp);
}

int main(int argc, char **argv) {
    static const char *const fixtures[] = {
        "bf16-as-3.5", "bf16-as-3.6", "f32-tied", "f16-all-delta", "mixed-all-attention", "fp8-ragged", "fp8-f32-scales",
        "nvfp4-fp8-tensor", "ct-nvfp4-fp8-int4", "gptq-awq-int4"};
    int more = test_main_begin("definition", argc, argv);
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        char folder[300];
        snprintf(folder, sizeof folder, "tests/fixtures/%s", fixtures[i]);
        test_checkpoint(folder);
    }
    const family_folders *families = families_here();
    for (int i = 0; i < families->count; i++) test_checkpoint(families->dir[i]);
    test_damaged_weights("tests/fixtures/bf16-as-3.5");
    test_damaged_weights("tests/fixtures/families/qwen3.5-dense");
    test_defined_without_memory("tests/fixtures/bf16-as-3.5");
    for (; more < argc; more++) test_checkpoint(argv[more]);
    return test_main_end();
}
