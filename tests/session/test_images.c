/* Tests of images in a timeline: where their rows stand, that a timeline knows which they are, whatever is done to it, and that text after them
   goes on as it must, whoever computes. What a vision tower makes of a picture is given: of DATA/vision-data what transformers made of some, with
   their logits; else random numbers. Usage: test_images [--device NAME | --devices NAME,NAME...] [DATA [MODEL...]], models as synthetic ones are called */

#include "inside.h"

#include "api.h"
#include "files.h"

enum { IMAGES_MOST = 8, IMAGES_TOKENS = 640, IMAGES_CONTEXT = 700 };

/* A prompt with pictures: ids with the pads of each, and where they are. */
typedef struct image_prompt {
    const mote_model *m;
    int T, n;
    int32_t ids[IMAGES_TOKENS];
    fed_image images[IMAGES_MOST];
    float *features;             /* [T][hidden] of all images, one after the other */
    size_t rows;                 /* of them */
} image_prompt;

static void shown_open(image_prompt *p, const mote_model *m) {
    memset(p, 0, sizeof *p);
    p->m = m;
    p->features = (float *)allocate(IMAGES_TOKENS * (size_t)m->c.hidden * sizeof(float));
}

static void shown_text(image_prompt *p, int n) {
    for (int i = 0; i < n; i++) p->ids[p->T++] = (int32_t)(random_bits() % (unsigned)p->m->c.vocab);
}

static image_span shown_span(int start, int rows, int columns) {
    image_span span;
    memset(&span, 0, sizeof span);
    span.start = start;
    span.count = rows * columns;
    span.rows = rows;
    span.columns = columns;
    return span;
}

/* A picture; which: what it shows. */
static void shown_picture(image_prompt *p, int rows, int columns, int which) {
    const size_t hidden = (size_t)p->m->c.hidden;
    fed_image *image = &p->images[p->n++];
    image->span = shown_span(p->T, rows, columns);
    memset(image->span.hash, which, sizeof image->span.hash);
    image->features = p->features + p->rows * hidden;
    for (int i = 0; i < rows * columns; i++, p->rows++) {
        float *to = p->features + p->rows * hidden;
        for (size_t k = 0; k < hidden; k++) to[k] = 0.1f * (float)(uniform((uint64_t)(i * 7 + which * 31), k) - 0.5);
        p->ids[p->T++] = p->m->c.vocab - 1;
    }
}

/* Text and two pictures. */
static void shown_two(image_prompt *p, int which) {
    shown_text(p, 5);
    shown_picture(p, 4, 9, 1);
    shown_text(p, 3);
    shown_picture(p, 6, 2, which);
    shown_text(p, 9);
}

/* Tokens from `done` to `end`, of which images may be cut. */
static int shown_feed(mote_session *s, image_prompt *p, int done, int end, const feed_results *wanted) {
    fed_image of[IMAGES_MOST];
    int n = 0;
    for (int i = 0; i < p->n; i++)
        if (p->images[i].span.start < end && p->images[i].span.start + p->images[i].span.count > done) of[n++] = p->images[i];
    for (int i = 0; i < n && of[i].span.start < done; i++) of[i].span.position = s->images.of[s->images.count - 1].position;
    return feed_images(s, p->ids + done, of, n, (size_t)(end - done), wanted, &failure);
}

static void shown_read(mote_session *s, image_prompt *p) {
    EXPECT(MOTE_OK, shown_feed(s, p, 0, p->T, NULL));
}

static int (*shown_cancel)(void *user);                    /* of sessions that are opened */

static mote_session *shown_session(const mote_model *m, int chunk) {
    mote_session_options o;
    memset(&o, 0, sizeof o);
    o.context = IMAGES_CONTEXT;
    o.chunk = chunk;
    o.threads = 2;
    o.mtp = m->has_mtp ? 3 : MOTE_MTP_OFF;
    o.callbacks.cancel = shown_cancel;
    return session_with(m, &o);
}

/* ---- Where rows stand --------------------------------------------------------------------------------------------------- */

/* The positions of a prompt's rows, as they are read; `count` tokens may be there before. */
static token_row *shown_rows(image_prompt *p) {
    mote_session empty;
    token_row *rows = (token_row *)allocate(IMAGES_TOKENS * sizeof *rows);
    memset(&empty, 0, sizeof empty);
    empty.m = p->m;
    feed_rows_of(&empty, p->ids, (size_t)p->T, p->images, p->n, rows);
    return rows;
}

static int shown_number(const json *j, uint32_t node) {
    uint64_t n = 0;
    CHECK(json_u64(j, node, &n) && n < INT_MAX, "a number was expected");
    return (int)n;
}

/* What transformers' get_rope_index says of text and grids, of which each stands between the marks of an image. */
static void test_images_positions(const mote_model *m) {
    char path[700];
    size_t size;
    json j;
    static image_prompt p;
    snprintf(path, sizeof path, "%s/vision-data/small/positions.json", test_data_dir() ? test_data_dir() : "");
    char *text = test_data_dir() ? (char *)file_bytes(path, &size) : NULL;
    if (!text) {
        test_skip("no vision-data in the data folder: positions");
        return;
    }
    memset(&j, 0, sizeof j);
    EXPECT(MOTE_OK, json_parse(&j, text, size, "positions.json", &failure));
    int cases = 0;
    for (uint32_t k = 1; k < j.nodes[0].next; k = j.nodes[k].next, cases++) {
        const uint32_t segments = json_get(&j, k, "segments");
        shown_open(&p, m);
        for (uint32_t s = segments + 1; s < j.nodes[segments].next; s = j.nodes[s].next) {
            const int grid = j.nodes[s].type == JSON_ARRAY;
            const uint32_t height = grid ? j.nodes[s + 1].next : 0, width = grid ? j.nodes[height].next : 0;
            shown_text(&p, grid ? 1 : shown_number(&j, s));
            if (!grid) continue;
            shown_picture(&p, shown_number(&j, height) / 2, shown_number(&j, width) / 2, 1);
            shown_text(&p, 1);
        }
        token_row *rows = shown_rows(&p);
        CHECK(p.T == shown_number(&j, json_get(&j, k, "tokens")), "case %d: %d tokens", cases, p.T);
        static const char *const axes[] = {"t", "h", "w"};
        for (int a = 0; a < ROW_AXES; a++) {
            uint32_t at = json_get(&j, k, axes[a]) + 1;
            int wrong = 0;
            for (int t = 0; t < p.T; t++, at = j.nodes[at].next) wrong += rows[t].position[a] != shown_number(&j, at);
            CHECK(!wrong, "case %d: %d positions are others, axis %s", cases, wrong, axes[a]);
        }
        free(rows), free(p.features);
    }
    CHECK(cases > 10, "%d cases", cases);
    json_free(&j);
    free(text);
}

/* ---- What a timeline knows of its images -------------------------------------------------------------------------------- */

static int shown_same(const mote_session *a, const mote_session *b) {
    size_t n, m;
    const int32_t *x = timeline_keys((mote_session *)a), *y = timeline_keys((mote_session *)b);
    (void)mote_tokens(a, &n), (void)mote_tokens(b, &m);
    return n == m && !memcmp(x, y, n * sizeof *x) && a->lag == b->lag && spans_equal(&a->images, &b->images, a->count);
}

/* A prompt in chunks of any size, in two calls, of which the first one ends within a picture: one timeline, on the CPU of the same bits. */
static void test_images_chunks(const mote_model *m, const char *folder) {
    static const int chunks[] = {1, 7, 64};
    const size_t vocab = (size_t)m->c.vocab;
    static image_prompt p;
    shown_open(&p, m);
    shown_two(&p, 2);
    mote_session *first = shown_session(m, 64);
    shown_read(first, &p);
    for (int i = 0; i < 3; i++) {
        mote_session *s = shown_session(m, chunks[i]);
        const int cut = i == 1 ? 5 + 20 : p.T;
        EXPECT(MOTE_OK, shown_feed(s, &p, 0, cut, NULL));
        if (cut < p.T) CHECK(s->images.count == 1 && s->images.of[0].count == 20, "%s: %d tokens of the image", folder, s->images.of[0].count);
        if (cut < p.T) EXPECT(MOTE_OK, shown_feed(s, &p, cut, p.T, NULL));
        CHECK(shown_same(s, first) && s->images.count == 2, "%s: in chunks of %d another timeline", folder, chunks[i]);
        if (!s->slot.runner->prompt_from) CHECK(same_logits(s, mote_logits(first), m->c.vocab), "%s: in chunks of %d other logits", folder, chunks[i]);
        else CHECK(off(mote_logits(s), mote_logits(first), vocab) < 0.05 || cut < p.T, "%s: in chunks of %d logits are off by %g", folder, chunks[i],
                   off(mote_logits(s), mote_logits(first), vocab));
        mote_session_close(s);
    }
    free(p.features);
    mote_session_close(first);
}

/* Saved and loaded, cloned, gone back and forward. Another picture of the same grid has the same ids, and is another timeline. */
static void test_images_timelines(const mote_model *m, const char *folder) {
    static image_prompt p, other;
    const int vocab = m->c.vocab;
    shown_open(&p, m);
    shown_two(&p, 2);
    other = p;
    other.features = (float *)allocate(IMAGES_TOKENS * (size_t)m->c.hidden * sizeof(float));
    memset(other.images[1].span.hash, 3, IMAGE_HASH);
    mote_session *s = shown_session(m, 64), *t = shown_session(m, 64), *clone = NULL;
    mote_checkpoint *start = checkpoint_of(s);
    EXPECT(MOTE_OK, shown_feed(s, &p, 0, 43, NULL));       /* up to before the second picture */
    mote_checkpoint *before = checkpoint_of(s);
    EXPECT(MOTE_OK, shown_feed(s, &p, 43, p.T, NULL));
    mote_checkpoint *after = checkpoint_of(s);
    CHECK(mote_checkpoint_bytes(s) > 2 * sizeof(image_span), "a checkpoint's bytes");
    size_t size;
    char *bytes = session_bytes(s, &size);
    EXPECT(MOTE_OK, mote_load(t, bytes, size, &failure));
    CHECK(shown_same(s, t) && t->images.count == 2, "%s: loaded, another timeline", folder);
    EXPECT(MOTE_OK, mote_clone(s, &clone, &failure));
    CHECK(shown_same(s, clone) && session_is(clone, bytes, size), "%s: cloned, another timeline", folder);
    for (int way = 0; way < 2; way++) {                     /* back and forward; back, and other tokens */
        EXPECT(MOTE_OK, mote_rewind(clone, before, &failure));
        CHECK(clone->count == 43 && clone->lag == s->images.of[0].count - 9 && spans_before(&clone->images, 43) == 1, "%s: gone back, a lag of %d", folder,
              clone->lag);
        if (way) EXPECT(MOTE_OK, shown_feed(clone, &other, 43, p.T, NULL));
        size_t n;
        CHECK(!memcmp(mote_tokens(clone, &n), p.ids, (size_t)43 * sizeof *p.ids), "ids");
        EXPECT(way ? MOTE_EINVAL : MOTE_OK, mote_rewind(clone, after, &failure));
        if (!way) CHECK(session_is(clone, bytes, size), "%s: gone forward, another timeline", folder);
    }
    CHECK(!memcmp(clone->tokens, s->tokens, (size_t)p.T * sizeof *p.ids) && !shown_same(clone, s), "%s: another picture is no other timeline", folder);
    EXPECT(MOTE_OK, mote_rewind(clone, before, &failure));
    EXPECT(MOTE_OK, mote_feed(clone, p.ids + 43, (size_t)(p.T - 43), &failure));  /* pads as text */
    CHECK(clone->images.count == 1, "%s: pads of text are an image", folder);
    EXPECT(MOTE_EINVAL, mote_rewind(clone, after, &failure));
    EXPECT(MOTE_OK, mote_rewind(clone, start, &failure));
    CHECK(!clone->lag && !spans_before(&clone->images, clone->count), "an empty timeline has images");
    for (int i = 0; i < 6; i++) {                           /* the text after it */
        int32_t a, b;
        EXPECT(MOTE_OK, mote_step(s, NULL, &a, &failure));
        EXPECT(MOTE_OK, mote_step(t, NULL, &b, &failure));
        CHECK(a == b && same_logits(s, mote_logits(t), vocab), "%s: loaded, step %d is another", folder, i);
    }
    mote_checkpoint_free(start), mote_checkpoint_free(before), mote_checkpoint_free(after);
    mote_session_close(s), mote_session_close(t), mote_session_close(clone);
    free(bytes), free(p.features), free(other.features);
}

/* Keys: an image's are negative and its own, those of text are ids; all of a picture that is changed a little are others. */
static void test_images_keys(const mote_model *m) {
    static image_prompt p;
    unsigned char hash[IMAGE_HASH] = {0};
    shown_open(&p, m);
    shown_two(&p, 2);
    mote_session *s = shown_session(m, 64);
    shown_read(s, &p);
    const int32_t *keys = timeline_keys(s);
    for (int t = 0; t < p.T; t++) {
        const int image = (t >= 5 && t < 41) || (t >= 44 && t < 56);
        CHECK(image ? keys[t] < 0 : keys[t] == p.ids[t], "key %d is %d", t, keys[t]);
    }
    int same = 0;
    for (int bit = 0; bit < 8 * IMAGE_HASH; bit++) {
        int equal = 1;
        unsigned char near[IMAGE_HASH] = {0};
        near[bit / 8] ^= (unsigned char)(1u << bit % 8);
        for (int k = 0; k < 4; k++) equal &= span_key(hash, k) == span_key(near, k);
        same += equal;
    }
    CHECK(!same, "%d hashes that differ in a bit have the same keys", same);
    int32_t id;
    EXPECT(MOTE_OK, mote_step(s, NULL, &id, &failure));
    keys = timeline_keys(s);
    CHECK(keys[p.T] == id && keys[5] < 0, "keys after a step");
    mote_session_close(s);
    free(p.features);
}

/* Steps of sessions that share a runner, after different pictures, and drafts: as each alone. */
static void test_images_company(const mote_model *m, const char *folder) {
    enum { SESSIONS = 3, TURNS = 5, DRAFTED = 12 };
    mote_runner *r = NULL;
    mote_session_options o;
    memset(&o, 0, sizeof o);
    o.context = IMAGES_CONTEXT;
    o.chunk = 64;
    EXPECT(MOTE_OK, mote_runner_open(m, &o, &r, &failure));
    mote_session *shared[SESSIONS], *alone[SESSIONS];
    static image_prompt p;
    for (int i = 0; i < SESSIONS; i++) {
        shown_open(&p, m);
        shown_text(&p, 1 + i);
        if (i) shown_picture(&p, 2 * i, 5, i);
        shown_text(&p, 2);
        o.runner = NULL;
        alone[i] = session_with(m, &o);
        o.runner = r;
        shared[i] = session_with(m, &o);
        shown_read(shared[i], &p);
        shown_read(alone[i], &p);
        free(p.features);
    }
    for (int k = 0; k < TURNS; k++) {
        mote_turn turns[SESSIONS];
        memset(turns, 0, sizeof turns);
        for (int i = 0; i < SESSIONS; i++) turns[i].session = shared[i];
        EXPECT(MOTE_OK, mote_step_many(turns, SESSIONS, &failure));
        for (int i = 0; i < SESSIONS; i++) {
            int32_t id;
            EXPECT(MOTE_OK, mote_step(alone[i], NULL, &id, &failure));
            CHECK(turns[i].id == id && same_logits(shared[i], mote_logits(alone[i]), m->c.vocab), "%s: session %d, step %d: another token than alone",
                  folder, i, k);
        }
    }
    mote_sampling greedy;
    memset(&greedy, 0, sizeof greedy);
    for (int i = 0; i < SESSIONS; i++) {                    /* drafts, verified beside plain steps */
        mote_generation g;
        int32_t id;
        memset(&g, 0, sizeof g);
        g.sampling = &greedy;
        g.max_tokens = DRAFTED;
        g.raw = g.verify = 1;
        EXPECT(MOTE_OK, mote_generate(shared[i], &g, NULL, &failure));
        for (int k = 0; k < DRAFTED && alone[i]->count < shared[i]->count; k++) EXPECT(MOTE_OK, mote_step(alone[i], NULL, &id, &failure));
        CHECK(shown_same(shared[i], alone[i]) && same_logits(shared[i], mote_logits(alone[i]), m->c.vocab), "%s: session %d: drafts change it", folder, i);
        mote_session_close(shared[i]), mote_session_close(alone[i]);
    }
    mote_runner_close(r);
}

static int shown_polls;

static int shown_stop(void *user) {
    (void)user;
    return shown_polls > 0 && !--shown_polls;
}

/* A call that is cancelled within a picture leaves a beginning of it, which a later one goes on with: as if it had been one call. */
static void test_images_cancelled(const mote_model *m, const char *folder) {
    static image_prompt p;
    shown_open(&p, m);
    shown_two(&p, 2);
    mote_session *whole = shown_session(m, 4), *s = NULL;
    shown_read(whole, &p);
    shown_cancel = shown_stop;
    s = shown_session(m, 4);
    shown_cancel = NULL;
    shown_polls = 5;
    const int code = shown_feed(s, &p, 0, p.T, NULL), done = s->count;
    shown_polls = 0;
    if (s->slot.runner->prompt_from) {                      /* a GPU's chunk is longer than the prompt */
        CHECK(code == MOTE_ECANCELLED && !done, "%s: cancelled after %d tokens: %d", folder, done, code);
    } else {
        size_t size;
        CHECK(code == MOTE_ECANCELLED && done > 5 && done < 41, "%s: cancelled after %d tokens: %d", folder, done, code);
        char *bytes = session_bytes(s, &size);              /* a beginning of an image is saved, too */
        mote_session *loaded = shown_session(m, 4);
        EXPECT(MOTE_OK, mote_load(loaded, bytes, size, &failure));
        EXPECT(MOTE_OK, shown_feed(loaded, &p, done, p.T, NULL));
        CHECK(shown_same(loaded, whole), "%s: loaded within an image, another timeline", folder);
        mote_session_close(loaded);
        free(bytes);
    }
    EXPECT(MOTE_OK, shown_feed(s, &p, done, p.T, NULL));
    size_t size;
    char *bytes = session_bytes(whole, &size);
    CHECK(shown_same(s, whole) && session_is(s, bytes, size), "%s: cancelled within an image, and read: another session", folder);
    mote_session_close(s), mote_session_close(whole);
    free(bytes), free(p.features);
}

/* Saved spans that cannot be, and lags, are refused, and the session stays as it was. */
static void test_images_damaged(const mote_model *m) {
    static image_prompt p;
    shown_open(&p, m);
    shown_two(&p, 2);
    mote_session *s = shown_session(m, 64), *t = shown_session(m, 64);
    shown_read(s, &p);
    size_t size;
    char *bytes = session_bytes(s, &size);
    int32_t *span = (int32_t *)(void *)(bytes + sizeof(saved_header) + (size_t)p.T * sizeof(int32_t));
    saved_header *h = (saved_header *)(void *)bytes;
    static const int wrong[] = {-1, 0, 1000, INT32_MAX, INT32_MIN};
    int refused = 0;
    for (int field = 0; field < 10; field++)
        for (int i = 0; i < 5; i++) {
            int32_t *at = field < 5 ? &span[field] : &span[13 + field - 5];
            const int32_t old = *at;
            if (*at == wrong[i] || (field % 5 == 4 && !wrong[i])) continue;
            *at = wrong[i];
            h->checksum = saved_checksum(bytes, size);
            const int code = mote_load(t, bytes, size, &failure);
            refused += code == MOTE_EFORMAT;
            CHECK(code == MOTE_EFORMAT || (!code && t->lag >= 0), "span field %d is %d: %d", field, wrong[i], code);
            if (code) CHECK(!t->count || t->count == p.T, "a refused session changes another");
            *at = old;
        }
    CHECK(refused >= 35, "%d damaged spans are refused", refused);
    int32_t *const numbers[] = {&h->lag, &h->images};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 5; i++) {
            const int32_t old = *numbers[k];
            if (!k && wrong[i] >= 0 && wrong[i] <= h->count) continue;
            *numbers[k] = wrong[i];
            h->checksum = saved_checksum(bytes, size);
            CHECK(mote_load(t, bytes, size, &failure) == MOTE_EFORMAT, "header field %d is %d", k, wrong[i]);
            *numbers[k] = old;
        }
    mote_session_close(s), mote_session_close(t);
    free(bytes), free(p.features);
}

/* ---- transformers --------------------------------------------------------------------------------------------------------- */

/* The largest difference, in standard deviations of what is wanted. */
static double shown_farthest(const float *got, const float *want, size_t n) {
    double most = 0, mean = 0, square = 0;
    for (size_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)got[i] - (double)want[i]));
        mean += (double)want[i] / (double)n;
        square += (double)want[i] * (double)want[i] / (double)n;
    }
    return most / sqrt(square - mean * mean);
}

static void *shown_file(const char *folder, const char *name, size_t *size) {
    char path[700];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    void *bytes = file_bytes(path, size);
    if (!bytes) exit((CHECK(0, "no %s", path), test_main_end()));
    return bytes;
}

/* A folder's prompt, with what its tower makes of the pictures. */
static void shown_of_folder(image_prompt *p, const mote_model *m, const char *folder) {
    size_t size, T, grids;
    shown_open(p, m);
    char *json = (char *)shown_file(folder, "config.json", &size), *pad = strstr(json, "\"image_token_id\":");
    int32_t *ids = (int32_t *)shown_file(folder, "tokens.i32", &T), *grid = (int32_t *)shown_file(folder, "grid.i32", &grids);
    float *features = (float *)shown_file(folder, "features.f32", &size);
    const int image = pad ? atoi(pad + strlen("\"image_token_id\":")) : -1;
    p->T = (int)(T / sizeof *ids);
    memcpy(p->ids, ids, T);
    memcpy(p->features, features, size);
    for (int t = 0; t < p->T; t++) {
        if (ids[t] != image) continue;
        const int rows = grid[3 * p->n + 1] / 2, columns = grid[3 * p->n + 2] / 2;
        fed_image *to = &p->images[p->n++];
        to->span = shown_span(t, rows, columns);
        memset(to->span.hash, p->n, IMAGE_HASH);
        to->features = p->features + p->rows * (size_t)m->c.hidden;
        p->rows += (size_t)(rows * columns);
        t += rows * columns - 1;
    }
    CHECK(p->n == (int)(grids / sizeof *grid) / 3 && p->rows * (size_t)m->c.hidden * sizeof(float) == size, "%s: %d images", folder, p->n);
    free(json), free(ids), free(grid), free(features);
}

/* Positions, logits, MTP logits and the tokens after them. On a GPU as close as prefill is to the CPU's code. */
static void test_images_reference(const char *folder, double error) {
    size_t size, n, n_mtp, greedy_size;
    mote_model *m = model_of(folder, MOTE_WEIGHTS_ONLY);
    static image_prompt p;
    shown_of_folder(&p, m, folder);
    int32_t *at = (int32_t *)shown_file(folder, "positions.i32", &size), *greedy = (int32_t *)shown_file(folder, "greedy.i32", &greedy_size);
    float *want = (float *)shown_file(folder, "logits.f32", &n), *want_mtp = (float *)shown_file(folder, "mtp_logits.f32", &n_mtp);
    n /= sizeof(float), n_mtp /= sizeof(float);
    token_row *rows = shown_rows(&p);
    int wrong = 0;
    for (int t = 0; t < p.T; t++)
        for (int a = 0; a < ROW_AXES; a++) wrong += rows[t].position[a] != at[a * p.T + t];
    CHECK(!wrong, "%s: %d positions are others", folder, wrong);
    float *got = (float *)allocate(n * sizeof(float)), *mtp = (float *)allocate(n_mtp * sizeof(float));
    const feed_results wanted = {got, mtp, NULL, NULL};
    mote_session *s = shown_session(m, 64);
    EXPECT(MOTE_OK, shown_feed(s, &p, 0, p.T, &wanted));
    const int gpu = s->slot.runner->backend->reads_text;
    const double by = shown_farthest(got, want, n), by_mtp = shown_farthest(mtp, want_mtp, n_mtp), rms = off(got, want, n), rms_mtp = off(mtp, want_mtp, n_mtp);
    printf("%s: logits are off by %.1e, rms %.1e, MTP logits by %.1e, rms %.1e\n", folder, by, rms, by_mtp, rms_mtp);
    if (!gpu) CHECK(by <= 1e-3 + 3 * error && by_mtp <= 1e-3 + 3 * error, "%s: logits are off by %g, MTP logits by %g", folder, by, by_mtp);
    else CHECK(rms <= 0.01 && rms_mtp <= 0.01, "%s: logits are off by %g, MTP logits by %g", folder, rms, rms_mtp);
    for (size_t i = 0; i < greedy_size / sizeof *greedy; i++) {
        int32_t id = -1;
        EXPECT(MOTE_OK, mote_step(s, NULL, &id, &failure));
        CHECK(id == greedy[i], "%s: token %zu is %d, expected %d", folder, i, id, greedy[i]);
        if (id != greedy[i]) break;
    }
    mote_session_close(s);
    mote_close(m);
    free(rows), free(at), free(greedy), free(want), free(want_mtp), free(got), free(mtp), free(p.features);
}

static void test_images_references(void) {
    static const struct { const char *name; double error; } cases[] = {
        {"dev-v-moe-one", 2.2e-5}, {"dev-v-moe-three", 2.0e-5}, {"dev-v-dense-two", 1.7e-5}};
    char folder[600];
    snprintf(folder, sizeof folder, "%s/vision-data", test_data_dir() ? test_data_dir() : "");
    if (!test_data_dir() || access(folder, F_OK)) {
        test_skip("no vision-data in the data folder: transformers' logits after images");
        return;
    }
    for (int i = 0; i < 3; i++) {
        snprintf(folder, sizeof folder, "%s/vision-data/%s", test_data_dir(), cases[i].name);
        test_images_reference(folder, cases[i].error);
    }
}

/* Models that are named: logits and MTP logits of a GPU near those of the CPU's code. */
static void test_images_device(const char *name) {
    static image_prompt p;
    mote_model *m[2] = {NULL, NULL};
    const feed_results nothing = {NULL, NULL, NULL, NULL};
    feed_results wanted[2] = {nothing, nothing};
    size_t n = 0;
    for (int i = 0; i < 2; i++) {
        mote_options o;
        memset(&o, 0, sizeof o);
        o.parts = MOTE_WEIGHTS_ONLY;
        o.device = i ? test_device : "cpu";
        EXPECT(MOTE_OK, strchr(name, '/') ? mote_open(name, &o, &m[i], &failure) : mote_open_synthetic(name, &o, &m[i], &failure));
        if (!m[i]) return;
        if (!i) shown_open(&p, m[i]), shown_two(&p, 2), shown_text(&p, 20);
        n = (size_t)p.T * (size_t)m[i]->c.vocab;
        wanted[i].logits = (float *)allocate(2 * n * sizeof(float));
        if (m[i]->has_mtp) wanted[i].mtp_logits = wanted[i].logits + n;
        mote_session *s = shown_session(m[i], 64);
        EXPECT(MOTE_OK, shown_feed(s, &p, 0, p.T, &wanted[i]));
        mote_session_close(s);
    }
    const double by = off(wanted[1].logits, wanted[0].logits, n);
    const double by_mtp = m[0]->has_mtp ? off(wanted[1].mtp_logits, wanted[0].mtp_logits, n - (size_t)m[0]->c.vocab) : 0;
    printf("%s: the device's logits are off by %.1e, MTP logits by %.1e\n", name, by, by_mtp);
    CHECK(by <= 0.05 && by_mtp <= 0.05, "%s: the device's logits are off by %g, MTP logits by %g", name, by, by_mtp);
    test_images_company(m[1], name);
    for (int i = 0; i < 2; i++) free(wanted[i].logits), mote_close(m[i]);
    free(p.features);
}

int main(int argc, char **argv) {
    static const char *const folders[] = {"tests/fixtures/bf16-as-3.5", "tests/fixtures/families/qwen3.5-dense"};
    int more = test_main_begin("images", argc, argv);
    for (int i = 0; i < 2; i++) {
        mote_model *m = model_of(folders[i], MOTE_WEIGHTS_ONLY);
        test_images_keys(m);
        test_images_chunks(m, folders[i]);
        test_images_timelines(m, folders[i]);
        test_images_company(m, folders[i]);
        test_images_cancelled(m, folders[i]);
        if (!i) test_images_damaged(m);
        if (!i) test_images_positions(m);
        mote_close(m);
    }
    for (; more < argc; more++) test_images_device(argv[more]);
    test_images_references();
    return test_main_end();
}
