/* Tests of the table of token rows: rows of images among text, whose positions differ by axis and which have an embedding of their own.
   On the CPU against the definition, and against transformers
   where DATA/vision-data is: models that read images, with what their vision towers made of some. */

#include "inside.h"

#include "api.h"
#include "files.h"

#define ROWS_OFF 5e-6               /* of the logits' standard deviation: the fast code from the definition, */
#define ROWS_REFERENCE 2e-5         /* the definition from transformers */
#define ROWS_MOVED 1e-3             /* what other positions do to logits, at least */

enum { ROWS_MOST = 640, ROWS_CONTEXT = 700 };

/* Tokens and their rows. next: the position of the text that follows. */
typedef struct row_prompt {
    const mote_model *m;
    int T, next;
    int32_t ids[ROWS_MOST];
    token_row rows[ROWS_MOST];
    float *embeddings;              /* [T][hidden] of those that have one */
} row_prompt;

static void rows_open(row_prompt *p, const mote_model *m) {
    memset(p, 0, sizeof *p);
    p->m = m;
    p->embeddings = (float *)allocate(ROWS_MOST * (size_t)m->c.hidden * sizeof(float));
}

static token_row *rows_add(row_prompt *p, int height, int width) {
    token_row *r = &p->rows[p->T];
    p->ids[p->T] = (int32_t)(random_bits() % (unsigned)p->m->c.vocab);
    text_rows(r, &p->ids[p->T], 1, p->T, p->T - p->next);
    r->position[1] += height;
    r->position[2] += width;
    p->T++;
    return r;
}

static void rows_text(row_prompt *p, int n) {
    for (int i = 0; i < n; i++, p->next++) rows_add(p, 0, 0);
}

/* A picture, whose embeddings are about as large as tokens'. */
static void rows_image(row_prompt *p, int height, int width) {
    const size_t hidden = (size_t)p->m->c.hidden;
    for (int i = 0; i < height * width; i++) {
        token_row *r = rows_add(p, i / width, i % width);
        float *to = p->embeddings + (size_t)r->index * hidden;
        matrix_floats(&p->m->embed_tokens, (int)(random_bits() % (unsigned)p->m->c.vocab), 0, (int)hidden, to);
        for (size_t k = 0; k < hidden; k++) to[k] *= 0.75f + 0.5f * (float)(k % 2);
        r->embedding = to;
    }
    p->next += max_int(height, width);
}

static mote_session *rows_session(const mote_model *m, int chunk) {
    return session_of(m, .context = ROWS_CONTEXT, .chunk = chunk, .threads = 2, .mtp = m->has_mtp ? 3 : MOTE_MTP_OFF);
}

/* A prompt's logits and MTP logits, [T][vocab] and [T - 1][vocab]. */
typedef struct row_logits { float *of, *mtp; size_t n, n_mtp; } row_logits;

static row_logits rows_logits(const row_prompt *p) {
    const size_t vocab = (size_t)p->m->c.vocab, T = (size_t)p->T;
    row_logits l = {.of = (float *)allocate(T * vocab * sizeof(float)), .n = T * vocab};
    if (p->m->has_mtp) l.mtp = (float *)allocate(T * vocab * sizeof(float)), l.n_mtp = (T - 1) * vocab;
    return l;
}

static void rows_free(row_logits *l) {
    free(l->of);
    free(l->mtp);
}

/* Reads n rows; with rows NULL as text. */
static void rows_feed(mote_session *s, const int32_t *ids, const token_row *rows, int n, float *logits, float *mtp) {
    const feed_results wanted = {logits, mtp, NULL, NULL};
    const fed_rows given = {rows, NULL, 0};
    EXPECT(MOTE_OK, feed_table(s, ids, rows ? &given : NULL, (size_t)n, &wanted, &failure));
}

/* By definition. */
static row_logits rows_defined(const row_prompt *p) {
    row_logits l = rows_logits(p);
    double *of = (double *)allocate((l.n + 1) * sizeof *of), *mtp = (double *)allocate((l.n + 1) * sizeof *mtp);
    CHECK(definition_rows(p->m, p->rows, NULL, p->T, of, l.mtp ? mtp : NULL), "out of memory");
    for (size_t i = 0; i < l.n; i++) l.of[i] = (float)of[i];
    for (size_t i = 0; i < l.n_mtp; i++) l.mtp[i] = (float)mtp[i];
    free(of);
    free(mtp);
    return l;
}

static void rows_near(const char *what, const row_logits *got, const row_logits *want, double allowed) {
    const double by = off(got->of, want->of, want->n), by_mtp = want->mtp ? off(got->mtp, want->mtp, want->n_mtp) : 0;
    printf("%s: off by %.1e, MTP %.1e\n", what, by, by_mtp);
    CHECK(by <= allowed && by_mtp <= allowed, "%s: off by %g, MTP %g", what, by, by_mtp);
}

/* ---- A row's embedding in place of its token's -------------------------------------------------------------------------- */

/* Text whose rows are given has the bits of text; so have rows of which every one, or some, have their token's embedding as floats, though
   their token is another. */
static void test_rows_embedded(const char *folder) {
    mote_model *m = model_on("cpu", folder, MOTE_WEIGHTS_ONLY);
    static row_prompt p;
    rows_open(&p, m);
    rows_text(&p, 70);
    row_logits want = rows_logits(&p), got = rows_logits(&p);
    mote_session *s = rows_session(m, 16);
    rows_feed(s, p.ids, NULL, p.T, want.of, want.mtp);
    size_t size;
    char *bytes = session_bytes(s, &size);
    mote_session_close(s);
    for (int way = 0; way < 3; way++) {
        int32_t ids[ROWS_MOST];
        memcpy(ids, p.ids, sizeof ids);
        for (int t = 0; t < p.T; t++) {
            float *to = p.embeddings + (size_t)t * (size_t)m->c.hidden;
            p.rows[t].embedding = way == 1 || (way == 2 && t % 3) ? to : NULL;
            matrix_floats(&m->embed_tokens, p.ids[t], 0, m->c.hidden, to);
            if (p.rows[t].embedding && way == 2) ids[t] = (p.ids[t] + 1) % m->c.vocab;
        }
        s = rows_session(m, way == 2 ? 7 : 16);
        memset(got.of, 0, want.n * sizeof(float));
        rows_feed(s, ids, p.rows, p.T, got.of, got.mtp);
        CHECK(!memcmp(got.of, want.of, want.n * sizeof(float)), "%s: rows given, way %d: other logits", folder, way);
        if (want.mtp) CHECK(!memcmp(got.mtp, want.mtp, want.n_mtp * sizeof(float)), "%s: rows given, way %d: other MTP logits", folder, way);
        if (way < 2) CHECK(session_is(s, bytes, size), "%s: rows given, way %d: another session", folder, way);
        else CHECK(!memcmp(s->tokens, ids, (size_t)p.T * sizeof *ids), "%s: a row's token is not told", folder);
        mote_session_close(s);
    }
    free(bytes);
    free(p.embeddings);
    rows_free(&want);
    rows_free(&got);
    mote_close(m);
}

/* ---- Positions in three dimensions -------------------------------------------------------------------------------------- */

/* Text and two pictures; text goes on after them. */
static void rows_pictures(row_prompt *p) {
    rows_text(p, 5);
    rows_image(p, 4, 9);
    rows_text(p, 3);
    rows_image(p, 6, 2);
    rows_text(p, 9);
}

/* Against the definition, in calls of any length, of which some end within a picture, whatever the chunk, and with steps of one row of a picture. */
static void test_rows_plane(const char *folder) {
    mote_model *m = model_on("cpu", folder, MOTE_WEIGHTS_ONLY);
    static const int chunks[] = {1, 7, 64, 64};
    static row_prompt p;
    executor steps = cpu_executor;
    steps.reads_text = 1;                                   /* as a GPU */
    rows_open(&p, m);
    rows_pictures(&p);
    row_logits want = rows_defined(&p), first = rows_logits(&p), got = rows_logits(&p);
    for (int i = 0; i < 4; i++) {
        const size_t vocab = (size_t)m->c.vocab;
        const int cut = i == 2 ? 5 + 20 : p.T;
        mote_session *s = rows_session(m, chunks[i]);
        if (i == 3) s->slot.runner->backend = &steps;
        rows_feed(s, p.ids, p.rows, cut, got.of, got.mtp);
        if (cut < p.T) rows_feed(s, p.ids + cut, p.rows + cut, p.T - cut, got.of + (size_t)cut * vocab, got.mtp ? got.mtp + (size_t)(cut - 1) * vocab : NULL);
        CHECK(s->lag == p.T - p.next && s->lag > 0 && s->count == p.T, "%s: positions lag by %d, not %d", folder, s->lag, p.T - p.next);
        if (!i) rows_near(folder, &got, &want, ROWS_OFF);
        if (!i) memcpy(first.of, got.of, want.n * sizeof(float));
        else CHECK(!memcmp(first.of, got.of, want.n * sizeof(float)), "%s: in chunks of %d other logits", folder, chunks[i]);
        if (i == 3 && want.mtp) rows_near(folder, &got, &want, ROWS_OFF);
        s->slot.runner->backend = &cpu_executor;
        mote_session_close(s);
    }
    for (int t = 0; t < p.T; t++) text_rows(&p.rows[t], &p.ids[t], 1, t, 0), p.rows[t].embedding = t >= 5 && t < 41 ? p.embeddings + (size_t)t * (size_t)m->c.hidden : NULL;
    row_logits text = rows_defined(&p);
    CHECK(off(text.of, want.of, want.n) > ROWS_MOVED, "%s: positions of pictures change nothing", folder);
    rows_free(&want), rows_free(&first), rows_free(&got), rows_free(&text);
    free(p.embeddings);
    mote_close(m);
}

/* Sections as published: t h w t h w ... of the first 33 and 30 frequencies, as a list. */
static void test_rows_axes(void) {
    const rope_axes axes = {33, 30};
    int count[ROW_AXES] = {0};
    for (int i = 0; i < 32; i++) count[rope_axis(axes, i)]++;
    CHECK(count[0] == 11 && count[1] == 11 && count[2] == 10, "%d %d %d of the axes", count[0], count[1], count[2]);
    CHECK(!rope_axis(axes, 0) && rope_axis(axes, 1) == 1 && rope_axis(axes, 29) == 2 && !rope_axis(axes, 30) && rope_axis(axes, 31) == 1,
          "axes do not alternate");
    for (int i = 0; i < 32; i++) CHECK(!rope_axis((rope_axes){0, 0}, i), "an axis without sections");
}

/* ---- What follows ------------------------------------------------------------------------------------------------------- */

/* Text after pictures: fed, stepped, drafted and verified, in a clone, after going back, beside others in a pass: as the definition has it. */
static void test_rows_after(const char *folder) {
    enum { STEPS = 12 };
    mote_model *m = model_on("cpu", folder, MOTE_WEIGHTS_ONLY);
    const size_t vocab = (size_t)m->c.vocab;
    static row_prompt p;
    rows_open(&p, m);
    rows_pictures(&p);
    const int fed = p.T;
    mote_session *s = rows_session(m, 16), *clone = NULL;
    rows_feed(s, p.ids, p.rows, fed, NULL, NULL);
    mote_checkpoint *before = checkpoint_of(s);
    EXPECT(MOTE_OK, mote_clone(s, &clone, &failure));
    for (int i = 0; i < STEPS; i++) {
        int32_t id;
        EXPECT(MOTE_OK, mote_step(s, NULL, &id, &failure));
        rows_text(&p, 1);
        p.ids[p.T - 1] = p.rows[p.T - 1].id = id;
    }
    row_logits want = rows_defined(&p);
    CHECK(off(s->slot.logits, want.of + (size_t)(p.T - 1) * vocab, vocab) <= ROWS_OFF, "%s: text after pictures is off by %g", folder,
          off(s->slot.logits, want.of + (size_t)(p.T - 1) * vocab, vocab));
    float *after = (float *)allocate(vocab * sizeof *after);
    memcpy(after, s->slot.logits, vocab * sizeof *after);
    for (int way = 0; way < 2; way++) {                     /* with drafts, in a clone; stepped again */
        mote_session *t = way ? s : clone;
        if (way) EXPECT(MOTE_OK, mote_rewind(s, before, &failure));
        CHECK(t->lag == fed + STEPS - p.next && t->count == fed, "%s: way %d: lag %d", folder, way, t->lag);
        const mote_sampling greedy = {0};
        const mote_generation g = {.size = sizeof g, .sampling = &greedy, .max_tokens = STEPS, .raw = 1};
        EXPECT(MOTE_OK, mote_generate(t, &g, NULL, &failure));
        CHECK(t->count == fed + STEPS && !memcmp(t->tokens, p.ids, (size_t)(fed + STEPS) * sizeof *p.ids), "%s: way %d: other tokens", folder, way);
        EXPECT(MOTE_OK, session_logits(t, &failure));
        CHECK(!memcmp(t->slot.logits, after, vocab * sizeof *after), "%s: way %d: other logits", folder, way);
    }
    EXPECT(MOTE_OK, mote_reset(s, &failure));
    CHECK(!s->lag, "an empty session has images");
    rows_feed(s, p.ids, NULL, 3, NULL, NULL);
    size_t size;
    char *bytes = session_bytes(clone, &size);
    EXPECT(MOTE_OK, mote_load(s, bytes, size, &failure));
    CHECK(s->lag == clone->lag && s->lag > 0 && session_is(s, bytes, size), "%s: a saved session's text goes on elsewhere", folder);
    free(bytes);
    mote_checkpoint_free(before);
    mote_session_close(clone);
    mote_session_close(s);
    free(after);
    rows_free(&want);
    free(p.embeddings);
    mote_close(m);
}

/* Sessions of one runner, each after other pictures, step together as each alone. */
static void test_rows_together(const char *folder) {
    enum { SESSIONS = 3, TURNS = 6 };
    mote_model *m = model_on("cpu", folder, MOTE_WEIGHTS_ONLY);
    mote_runner *r = NULL;
    EXPECT(MOTE_OK, mote_runner_open(m, &(mote_session_options){.context = ROWS_CONTEXT, .chunk = 16, .threads = 2}, &r, &failure));
    static row_prompt p;
    mote_session *shared[SESSIONS], *alone[SESSIONS];
    for (int i = 0; i < SESSIONS; i++) {
        rows_open(&p, m);
        rows_text(&p, 1 + i);
        if (i) rows_image(&p, 2 * i, 5);
        rows_text(&p, 2);
        shared[i] = session_of(m, .runner = r, .context = ROWS_CONTEXT);
        alone[i] = session_of(m, .context = ROWS_CONTEXT, .chunk = 16, .threads = 1);
        rows_feed(shared[i], p.ids, p.rows, p.T, NULL, NULL);
        rows_feed(alone[i], p.ids, p.rows, p.T, NULL, NULL);
        free(p.embeddings);
    }
    for (int k = 0; k < TURNS; k++) {
        mote_turn turns[SESSIONS] = {{0}};
        for (int i = 0; i < SESSIONS; i++) turns[i].session = shared[i];
        EXPECT(MOTE_OK, mote_step_many(turns, SESSIONS, &failure));
        for (int i = 0; i < SESSIONS; i++) {
            int32_t id;
            EXPECT(MOTE_OK, mote_step(alone[i], NULL, &id, &failure));
            CHECK(turns[i].id == id && !memcmp(shared[i]->slot.logits, alone[i]->slot.logits, (size_t)m->c.vocab * sizeof(float)),
                  "%s: session %d, step %d: another token than alone", folder, i, k);
        }
    }
    for (int i = 0; i < SESSIONS; i++) mote_session_close(shared[i]), mote_session_close(alone[i]);
    mote_runner_close(r);
    mote_close(m);
}

/* ---- What is refused ------------------------------------------------------------------------------------------------------ */

static void rows_refused(mote_session *s, const row_prompt *p, int code, const char *why) {
    const int count = s->count, lag = s->lag;
    const fed_rows given = {p->rows, NULL, 0};
    EXPECT(code, feed_table(s, p->ids, &given, (size_t)p->T, NULL, &failure));
    CHECK(strstr(failure.message, why) && s->count == count && s->lag == lag, "%s: %d tokens are read", failure.message, s->count);
}

/* with: has sections; without: has not. */
static void test_rows_refused(const char *with, const char *without) {
    mote_model *m[2] = {model_on("cpu", with, MOTE_WEIGHTS_ONLY), model_on("cpu", without, MOTE_WEIGHTS_ONLY)};
    static row_prompt p;
    for (int i = 0; i < 2; i++) {
        executor text = cpu_executor;
        mote_session *s = rows_session(m[i], 64);
        rows_open(&p, m[i]);
        rows_text(&p, 2);
        p.rows[1].position[2] = m[i]->c.context_max;
        rows_refused(s, &p, MOTE_EINVAL, "row 1: position");
        p.rows[1].position[2] = -1;
        rows_refused(s, &p, MOTE_EINVAL, "row 1: position -1");
        p.rows[1].position[2] = 7;
        if (i) rows_refused(s, &p, MOTE_EUNSUPPORTED, "mrope_section");
        p.rows[1].position[2] = p.rows[1].position[0];
        text.reads_text = 1;                                /* as a GPU where it decodes: blocks of several rows are text */
        s->slot.runner->backend = &text;
        p.rows[0].embedding = p.embeddings;
        block b = {.rows = p.rows, .T = 2};
        EXPECT(MOTE_EUNSUPPORTED, slot_forward(&s->slot, &b, &failure));
        CHECK(strstr(failure.message, "rows of images"), "%s", failure.message);
        p.rows[0].embedding = NULL;
        for (int a = 0; a < ROW_AXES; a++) p.rows[1].position[a] += 1;
        EXPECT(MOTE_EUNSUPPORTED, slot_forward(&s->slot, &b, &failure));
        for (int a = 0; a < ROW_AXES; a++) p.rows[1].position[a] -= 1;
        rows_feed(s, p.ids, p.rows, 2, NULL, NULL);
        s->slot.runner->backend = &cpu_executor;
        mote_session_close(s);
        free(p.embeddings);
    }
    for (int i = 0; i < 2; i++) mote_close(m[i]);
}

/* ---- transformers --------------------------------------------------------------------------------------------------------- */

static void *vision_file(const char *folder, const char *name, size_t *size) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    void *bytes = file_bytes(path, size);
    if (!bytes) exit((CHECK(0, "no %s", path), test_main_end()));
    return bytes;
}

/* A prompt of text and pictures, and tokens after it: the definition and the fast code. */
static void test_rows_reference(const char *folder) {
    size_t size, T_size, greedy_size;
    mote_model *m = model_on("cpu", folder, MOTE_WEIGHTS_ONLY);
    char *json = (char *)vision_file(folder, "config.json", &size), *pad = strstr(json, "\"image_token_id\":");
    int32_t *ids = (int32_t *)vision_file(folder, "tokens.i32", &T_size), *at = (int32_t *)vision_file(folder, "positions.i32", &size);
    int32_t *greedy = (int32_t *)vision_file(folder, "greedy.i32", &greedy_size);
    size_t mtp_size;
    row_logits want = {.of = (float *)vision_file(folder, "logits.f32", &size), .mtp = (float *)vision_file(folder, "mtp_logits.f32", &mtp_size)};
    want.n = size / sizeof(float), want.n_mtp = mtp_size / sizeof(float);
    float *features = (float *)vision_file(folder, "features.f32", &size);
    static row_prompt p;
    const int T = (int)(T_size / sizeof *ids), image = pad ? atoi(pad + strlen("\"image_token_id\":")) : -1;
    int pictured = 0;
    rows_open(&p, m);
    p.T = T;
    memcpy(p.ids, ids, T_size);
    text_rows(p.rows, ids, T, 0, 0);
    for (int t = 0; t < T; t++) {
        for (int a = 0; a < ROW_AXES; a++) p.rows[t].position[a] = at[a * T + t];
        if (ids[t] == image) p.rows[t].embedding = features + (size_t)pictured++ * (size_t)m->c.hidden;
    }
    CHECK(pictured > 0 && (size_t)pictured * (size_t)m->c.hidden * sizeof(float) == size, "%s: %d rows of images", folder, pictured);
    row_logits defined = rows_defined(&p), got = rows_logits(&p);
    rows_near("definition and transformers", &defined, &want, ROWS_REFERENCE);
    mote_session *s = rows_session(m, 32);
    rows_feed(s, p.ids, p.rows, T, got.of, got.mtp);
    rows_near("the CPU and the definition", &got, &defined, ROWS_OFF);
    for (size_t i = 0; i < greedy_size / sizeof *greedy; i++) {
        int32_t id = -1;
        EXPECT(MOTE_OK, mote_step(s, NULL, &id, &failure));
        CHECK(id == greedy[i], "%s: token %zu is %d, expected %d", folder, i, id, greedy[i]);
    }
    mote_session_close(s);
    mote_close(m);
    rows_free(&want), rows_free(&defined), rows_free(&got);
    free(json), free(ids), free(at), free(greedy), free(features), free(p.embeddings);
}

static void test_rows_references(void) {
    static const char *const cases[] = {"dev-v-moe-one", "dev-v-moe-three", "dev-v-dense-two"};
    char folder[600];
    snprintf(folder, sizeof folder, "%s/vision-data", test_data_dir() ? test_data_dir() : "");
    if (!test_data_dir() || access(folder, F_OK)) {
        test_skip("no vision-data in the data folder: transformers' logits after images");
        return;
    }
    for (int i = 0; i < 3; i++) {
        snprintf(folder, sizeof folder, "%s/vision-data/%s", test_data_dir(), cases[i]);
        test_rows_reference(folder);
    }
}

int main(int argc, char **argv) {
    static const char *const folders[] = {"tests/fixtures/bf16-as-3.5", "tests/fixtures/families/qwen3.5-dense"};
    test_main_begin("rows", argc, argv);
    test_rows_axes();
    for (int i = 0; i < 2; i++) {
        test_rows_embedded(folders[i]);
        test_rows_plane(folders[i]);
        test_rows_after(folders[i]);
        test_rows_together(folders[i]);
    }
    test_rows_embedded("tests/fixtures/families/llama");
    test_rows_refused(folders[0], "tests/fixtures/families/llama");
    test_rows_references();
    return test_main_end();
}
