/* Tests of mote_trace and mote_trace_passes: that what is told is what the definition computes, value by value, for every kind of layer;
   that drafts are those of an answer; what is refused, and what a cancelled trace leaves.

   Usage: test_trace [DATA] */

#include "inside.h"

#include "api.h"
#include "families.h"
#include "files.h"
#include "no_memory.h"

enum { TRACED = 9 };

/* What is told of a model, and what of it is looked at again. */
typedef struct traced {
    const mote_model *m;
    const char *folder;
    double *row, *logits, *mtp_logits;       /* row [hidden]: x, then with what is added to it */
    int have_row, token, layer, halves, cancel_after, told;
    double share[16];
    uint64_t hash;
    double progress;
} traced;

static const layer *layer_told(const traced *t, const mote_traced *v) {
    return v->layer == t->m->c.layers ? &t->m->mtp.layer : &t->m->layers[v->layer];
}

static double sum_of(const double *values, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += values[i];
    return sum;
}

static int within(const double *values, int n, double low, double high) {
    for (int i = 0; i < n; i++)
        if (!(values[i] >= low && values[i] <= high)) return 0;
    return 1;
}

/* x is what it was, with what was added, and scaled, if it is, or to each of several streams its share; the MTP layer begins with another. */
static void check_residual(traced *t, const mote_traced *v) {
    const size_t n = (size_t)model_width(t->m), added = (size_t)v->count;
    const int begins = v->layer == t->m->c.layers && strcmp(v->kind, "head") && t->layer != v->layer;
    if (!strcmp(v->name, "x")) {
        t->halves += strcmp(v->kind, "head") != 0;
        if (t->have_row && !begins && v->token == t->token)
            CHECK(!memcmp(t->row, v->values, n * sizeof *v->values), "%s: token %d, layer %d, %s: x is not what it was", t->folder, v->token,
                  v->layer, v->kind);
        memcpy(t->row, v->values, n * sizeof *v->values);
        t->have_row = 1;
    } else if (!strcmp(v->name, "share")) {
        CHECK(v->count == t->m->c.streams && within(v->values, v->count, 0, 2), "%s: %d shares", t->folder, v->count);
        memcpy(t->share, v->values, (size_t)v->count * sizeof *t->share);
    } else if (!strcmp(v->name, "added")) {
        const layer *l = layer_told(t, v);
        const sublayer *s = l->ffn.kind != LAYER_NONE && layer_kind_names[l->ffn.kind] == v->kind ? &l->ffn : &l->mixer;
        const double scale = s->residual.scaled ? (double)*s->scale : 1;
        const int shares = added < n;
        for (size_t i = 0; i < n; i++) t->row[i] = (t->row[i] + v->values[i % added] * (shares ? t->share[i / added] : 1)) * scale;
    }
}

static void check_latent(traced *t, const mote_traced *v) {
    const mla_shape *s = &layer_told(t, v)->mixer.w.mla.shape;
    const int tokens = v->token + 1;
    if (!strcmp(v->name, "latent")) CHECK(v->count == s->kv_rank, "%s: a latent of %d", t->folder, v->count);
    if (strcmp(v->name, "attention")) return;
    CHECK(v->count == s->heads * tokens && within(v->values, v->count, 0, 1), "%s: %d weights of latents", t->folder, v->count);
    for (int h = 0; h < s->heads; h++)
        CHECK(fabs(sum_of(v->values + h * tokens, tokens) - 1) < 1e-12, "%s: head %d looks at more or less than all", t->folder, h);
}

static void check_mixer(traced *t, const mote_traced *v) {
    const attention_shape *a = &layer_told(t, v)->mixer.w.attention.shape;
    const deltanet_shape *d = &layer_told(t, v)->mixer.w.deltanet.shape;
    const int tokens = v->token + 1;
    if (!strcmp(v->name, "attention")) {
        CHECK(v->count == a->heads * tokens && within(v->values, v->count, 0, 1), "%s: %d weights of attention", t->folder, v->count);
        for (int h = 0; h < a->heads; h++) {
            const double sum = sum_of(v->values + h * tokens, tokens);             /* a sink has the rest */
            CHECK(a->sinks ? sum > 0 && sum < 1 : fabs(sum - 1) < 1e-12, "%s: head %d looks at more or less than all", t->folder, h);
            if (a->window && tokens > a->window)
                CHECK(sum_of(v->values + h * tokens, tokens - a->window) == 0, "%s: head %d sees beyond its window", t->folder, h);
        }
    } else if (!strcmp(v->name, "gate")) {
        CHECK((a->gated || a->gate_size) && v->count == a->heads * a->head_dim && within(v->values, v->count, 0, a->gated ? 1 : INFINITY), "%s: %d gates",
              t->folder, v->count);
    } else if (!strcmp(v->name, "g_proj")) {
        CHECK(v->count == a->heads * a->gate_size, "%s: %d of g_proj", t->folder, v->count);
    } else if (!strcmp(v->name, "decay") || !strcmp(v->name, "beta")) {
        CHECK(v->count == d->value_heads && within(v->values, v->count, 0, 1), "%s: %d of %s", t->folder, v->count, v->name);
    } else if (!strcmp(v->name, "S")) {
        CHECK(v->count == d->value_heads * d->value_dim * d->key_dim && sum_of(v->values, v->count) != 0, "%s: S of %d", t->folder, v->count);
    }
}

static void check_ffn(traced *t, const mote_traced *v) {
    const moe_shape *s = &layer_told(t, v)->ffn.w.moe.shape;
    int chosen = 0;
    if (!strcmp(v->name, "experts")) {
        for (int e = 0; e < v->count; e++) chosen += v->values[e] > 0;
        CHECK(v->count == s->experts && chosen == s->top_k, "%s: %d of %d experts", t->folder, chosen, v->count);
        const double sum = s->routed_scale != 0 ? (double)s->routed_scale : 1;
        CHECK(s->of_all || s->expert_scaled || fabs(sum_of(v->values, v->count) - sum) < 1e-12, "%s: weights of experts sum to %g", t->folder, sum_of(v->values, v->count));
    } else if (!strcmp(v->name, "router")) {
        CHECK(v->count == s->experts, "%s: %d scores", t->folder, v->count);
    } else if (!strcmp(v->name, "shared_expert_gate")) {
        CHECK(v->count == 1 && s->shared_size && !s->shared_ungated, "%s: a shared expert", t->folder);
    }
}

static void look(void *user, const mote_traced *v) {
    traced *t = (traced *)user;
    t->told++;
    CHECK(v->token > t->token || (v->token == t->token && (v->layer < 0 || t->layer >= 0 || v->layer == t->m->c.layers)),
          "%s: token %d, layer %d, comes late", t->folder, v->token, v->layer);
    check_residual(t, v);
    t->token = v->token;
    t->layer = v->layer;
    if (!strcmp(v->name, "logits")) {
        const size_t n = (size_t)t->m->c.vocab;
        const double *want = (v->layer < 0 ? t->logits : t->mtp_logits) + (size_t)v->token * n;
        CHECK((size_t)v->count == n && !memcmp(want, v->values, n * sizeof *want), "%s: token %d: logits, layer %d", t->folder, v->token, v->layer);
    }
    if (!strcmp(v->kind, "attention") || !strcmp(v->kind, "deltanet")) check_mixer(t, v);
    if (!strcmp(v->kind, "mla")) check_latent(t, v);
    if (!strcmp(v->kind, "moe")) check_ffn(t, v);
}

static int stop_late(void *user) {
    traced *t = (traced *)user;
    return t->cancel_after && t->told >= t->cancel_after;
}

static void look_at_progress(void *user, const char *what, double fraction) {
    traced *t = (traced *)user;
    CHECK(fraction >= t->progress && fraction <= 1 && *what, "%s: %s: %g after %g", t->folder, what, fraction, t->progress);
    t->progress = fraction;
}

static mote_callbacks looking(traced *t) {
    mote_callbacks c;
    memset(&c, 0, sizeof c);
    c.progress = look_at_progress;
    c.cancel = stop_late;
    c.user = t;
    return c;
}

/* A trace of the folder's tokens against its definition. */
static void test_values(const char *folder) {
    char path[400];
    size_t size;
    snprintf(path, sizeof path, "%s/tokens.i32", folder);
    int32_t *ids = (int32_t *)(void *)file_bytes(path, &size);
    mote_model *m = model_on("cpu", folder, MOTE_WEIGHTS_ONLY);
    const size_t vocab = (size_t)m->c.vocab;
    traced t = {.m = m, .folder = folder, .token = -1};
    const mote_callbacks c = looking(&t);
    if (!CHECK(ids && size >= TRACED * sizeof *ids, "%s: no tokens", folder)) return;
    t.row = (double *)allocate((size_t)model_width(m) * sizeof *t.row);
    t.logits = (double *)allocate(TRACED * vocab * sizeof *t.logits);
    t.mtp_logits = (double *)allocate(TRACED * vocab * sizeof *t.mtp_logits);
    CHECK(definition_model(m, ids, TRACED, t.logits, t.mtp_logits), "%s: out of memory", folder);
    EXPECT(MOTE_OK, mote_trace(m, ids, TRACED, &c, look, &t, &failure));
    int halves = 0;
    for (int i = 0; i < m->c.layers; i++) halves += (m->layers[i].mixer.kind != LAYER_NONE) + (m->layers[i].ffn.kind != LAYER_NONE);
    CHECK(t.halves == TRACED * halves + 2 * (TRACED - 1) * m->has_mtp, "%s: %d halves of layers", folder, t.halves);
    CHECK(t.progress == 1, "%s: ends at %g", folder, t.progress);
    t.token = -1;
    t.progress = t.have_row = 0;
    EXPECT(MOTE_OK, mote_trace(m, ids, 1, NULL, look, &t, &failure));
    free(t.row), free(t.logits), free(t.mtp_logits), free(ids);
    mote_close(m);
}

/* ---- What goes wrong --------------------------------------------------------------------------------------------------- */

static void count_told(void *user, const mote_traced *v) {
    traced *t = (traced *)user;
    t->told++;
    t->hash = fnv1a(t->hash, v->values, (size_t)v->count * sizeof *v->values);
}

// A trace that is told of another one, which is whole before it goes on.
static void trace_within(void *user, const mote_traced *v) {
    traced *t = (traced *)user, inner = {.folder = "inner"};
    count_told(t, v);
    if (t->told % 50 == 1) EXPECT(MOTE_OK, mote_trace(t->m, &(int32_t){1}, 1, NULL, count_told, &inner, &failure));
}

static void test_refused_traces(void) {
    static int32_t ids[MOTE_TRACE_TOKENS + 1];
    mote_model *m = model_on("cpu", "tests/fixtures/bf16-as-3.5", MOTE_WEIGHTS_ONLY);
    mote_model *plan = model_on("cpu", "tests/fixtures/bf16-as-3.5", MOTE_DESCRIPTION);
    traced t = {.m = m, .folder = "refused"};
    const mote_callbacks c = looking(&t);
    const int32_t beyond[] = {1, m->c.vocab}, below[] = {-1};
    EXPECT(MOTE_EINVAL, mote_trace(NULL, ids, 1, NULL, count_told, &t, &failure));
    EXPECT(MOTE_EINVAL, mote_trace(m, NULL, 1, NULL, count_told, &t, &failure));
    EXPECT(MOTE_EINVAL, mote_trace(m, ids, 1, NULL, NULL, &t, &failure));
    EXPECT(MOTE_EINVAL, mote_trace(m, ids, 0, NULL, count_told, &t, &failure));
    EXPECT(MOTE_EINVAL, mote_trace(m, ids, MOTE_TRACE_TOKENS + 1, NULL, count_told, &t, &failure));
    CHECK(strstr(failure.message, "1025 tokens, expected 1 to 1024"), "%s", failure.message);
    EXPECT(MOTE_EINVAL, mote_trace(m, beyond, 2, NULL, count_told, &t, &failure));
    CHECK(strstr(failure.message, "token 1 is"), "%s", failure.message);
    EXPECT(MOTE_EINVAL, mote_trace(m, below, 1, NULL, count_told, &t, &failure));
    EXPECT(MOTE_EUNSUPPORTED, mote_trace(plan, ids, 1, NULL, count_told, &t, &failure));
    CHECK(!t.told, "%d values of what was refused", t.told);
    for (int i = 0; i < 2; i++) {
        refuse_at = allocations + i;
        EXPECT(MOTE_ENOMEM, mote_trace(m, ids, 3, NULL, count_told, &t, &failure));
    }
    refuse_at = -1;
    for (t.cancel_after = 1; t.cancel_after < 60; t.cancel_after += 7) {
        t.told = 0;
        t.progress = 0;
        EXPECT(MOTE_ECANCELLED, mote_trace(m, ids, 3, &c, count_told, &t, &failure));
        CHECK(t.told >= t.cancel_after && t.told < t.cancel_after + 40, "%d values, cancelled after %d", t.told, t.cancel_after);
    }
    traced alone = {.m = m}, around = {.m = m};
    EXPECT(MOTE_OK, mote_trace(m, ids, 3, NULL, count_told, &alone, &failure));
    EXPECT(MOTE_OK, mote_trace(m, ids, 3, NULL, trace_within, &around, &failure));
    CHECK(alone.told > 50 && around.told == alone.told && around.hash == alone.hash, "a trace in a trace: other values");
    mote_close(m);
    mote_close(plan);
}

/* ---- Passes ------------------------------------------------------------------------------------------------------------ */

typedef struct answer_told { int32_t ids[512]; int count, passes, drafts, taken; } answer_told;

static void add_pass(void *user, const mote_traced_pass *p) {
    answer_told *a = (answer_told *)user;
    CHECK(p->drafts >= 0 && p->drafts < MOTE_ROWS_MAX && p->taken >= 0 && p->taken <= p->drafts, "%d of %d drafts", p->taken, p->drafts);
    memcpy(a->ids + a->count, p->ids, (size_t)(1 + p->taken) * sizeof *p->ids);
    a->count += 1 + p->taken;
    a->passes++;
    a->drafts += p->drafts;
    a->taken += p->taken;
}

static int add_token(void *user, int32_t id) {
    answer_told *a = (answer_told *)user;
    a->ids[a->count++] = id;
    return 0;
}

/* The passes of an answer of at most `tokens` are its tokens, with drafts and without. */
static void check_passes(const mote_model *m, const int32_t *ids, size_t count, int context, int tokens, int mtp) {
    mote_session *s = session_of(m, .context = context, .threads = 1, .mtp = mtp);
    mote_sampling greedy;
    mote_generation g;
    answer_told told = {{0}, 0, 0, 0, 0}, want = told;
    size_t n;
    memset(&greedy, 0, sizeof greedy);
    memset(&g, 0, sizeof g);
    g.sampling = &greedy;
    g.max_tokens = tokens;
    g.on_token = add_token;
    g.user = &want;
    EXPECT(MOTE_OK, mote_feed(s, ids, count, &failure));
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    EXPECT(MOTE_OK, mote_reset(s, &failure));
    EXPECT(MOTE_OK, mote_feed(s, ids, count, &failure));
    EXPECT(MOTE_OK, mote_trace_passes(s, tokens, add_pass, &told, &failure));
    CHECK(told.count == want.count && !memcmp(told.ids, want.ids, sizeof want.ids), "%d tokens in passes, %d in an answer", told.count, want.count);
    const int32_t *timeline = mote_tokens(s, &n);
    CHECK(n == count + (size_t)told.count && !memcmp(timeline + count, told.ids, (size_t)told.count * sizeof *ids), "the timeline has other tokens");
    CHECK(mtp > 0 && tokens > 1 ? told.drafts > 0 : !told.drafts, "%d drafts", told.drafts);
    CHECK(tokens < 400 || mote_is_end(m, timeline[n - 1]), "%d tokens and no end", told.count);
    CHECK(told.passes + told.taken == told.count, "%d passes, %d drafts taken", told.passes, told.taken);
    mote_session_close(s);
}

static void test_passes_told(void) {
    static const char question[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"What is FP8?\"}]}";
    mote_model *m = model_on("cpu", "models/demo", MOTE_EVERYTHING);
    int32_t ids[64];
    size_t count;
    answer_told none = {{0}, 0, 0, 0, 0};
    EXPECT(MOTE_OK, mote_render_tokens(m, question, strlen(question), ids, 64, &count, &failure));
    check_passes(m, ids, count, 128, 20, 3);
    check_passes(m, ids, count, 128, 1, 3);
    check_passes(m, ids, count, 128, 20, MOTE_MTP_OFF);
    check_passes(m, ids, count, (int)count + 5, 20, 3);
    check_passes(m, ids, count, 512, 400, 3);                       /* to its end */
    mote_session *s = session_of(m, .context = 32, .threads = 1);
    EXPECT(MOTE_EINVAL, mote_trace_passes(s, 5, add_pass, &none, &failure));
    EXPECT(MOTE_OK, mote_feed(s, ids, 3, &failure));
    EXPECT(MOTE_EINVAL, mote_trace_passes(NULL, 5, add_pass, &none, &failure));
    EXPECT(MOTE_EINVAL, mote_trace_passes(s, 0, add_pass, &none, &failure));
    EXPECT(MOTE_EINVAL, mote_trace_passes(s, 5, NULL, &none, &failure));
    CHECK(count_of(s) == 3 && !none.passes, "%d passes of what was refused", none.passes);
    mote_session_close(s);
    mote_close(m);
}

int main(int argc, char **argv) {
    static const char *const folders[] = {"tests/fixtures/bf16-as-3.5", "tests/fixtures/f16-all-delta", "tests/fixtures/mixed-all-attention",
                                          "tests/fixtures/fp8-ragged"};
    test_main_begin("test_trace", argc, argv);
    for (size_t i = 0; i < COUNT(folders); i++) test_values(folders[i]);
    const family_folders *families = families_here();
    for (int i = 0; i < families->count; i++) test_values(families->dir[i]);
    test_refused_traces();
    test_passes_told();
    return test_main_end();
}
