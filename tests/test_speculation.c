// Tests of speculation (session/speculation.c) on the CPU: those of speculation.h, and what needs a look inside: blocks of
// every accepted length, the comparison with a twin, the choice of the depth, and MTP layers that are of no use.
//
// Contents   1. Blocks                2. The comparison can fail      3. Depth
//            4. Broken MTP layers     5. Options
//
// Usage: test_speculation [DATA [PROMPTS]]. PROMPTS: how many questions are asked with all depths, and more of everything.

#include "../engine.cu"
#include "speculation.h"

#include <dirent.h>

static mote_model *model_of(const char *dir, int parts) {
    mote_options o = {.parts = parts, .device = "cpu"};
    mote_model *m = NULL;
    EXPECT(MOTE_OK, mote_open(dir, &o, &m, &failure));
    if (!m) exit(test_main_end() ? 1 : 2);
    return m;
}

// ---- 1. Blocks ------------------------------------------------------------------------------------------------------

enum { TRUTH = 32 };

// A session, its twin, and what plain decoding generates behind their prompt.
typedef struct pair {
    const char *what;
    mote_session *s, *twin;
    mote_checkpoint *start, *twin_start;
    int32_t truth[TRUTH];
    int prompt;
} pair;

// The prompt of n tokens: any ids.
static void pair_open(pair *x, const char *what, const mote_model *m, int n, int chunk) {
    int32_t ids[TRUTH];
    x->what = what;
    x->prompt = n;
    x->s = session_with(m, 3, CONTEXT, chunk);
    x->twin = session_with(m, 3, CONTEXT, chunk);
    for (int i = 0; i < n; i++) ids[i] = (7 * i + 3 * n) % 60;
    EXPECT(MOTE_OK, mote_feed(x->s, ids, (size_t)n, &failure));
    EXPECT(MOTE_OK, mote_feed(x->twin, ids, (size_t)n, &failure));
    x->start = checkpoint_of(x->s);
    x->twin_start = checkpoint_of(x->twin);
    int code = MOTE_OK;
    for (int i = 0; i < TRUTH; i++) code |= mote_step(x->twin, NULL, &x->truth[i], &failure);
    CHECK(!code, "%s: plain decoding: %s", what, failure.message);
}

static void pair_close(pair *x) {
    mote_checkpoint_free(x->start);
    mote_checkpoint_free(x->twin_start);
    mote_session_close(x->s);
    mote_session_close(x->twin);
}

static void pair_rewind(pair *x) {
    EXPECT(MOTE_OK, mote_rewind(x->s, x->start, &failure));
    EXPECT(MOTE_OK, mote_rewind(x->twin, x->twin_start, &failure));
}

// Verifies k drafts behind the first `at` true tokens, the first a of them true, the next wrong, and more true ones, which
// count no more.
static void draft(pair *x, int at, int k, int a) {
    mote_sampling greedy = samplings[GREEDY];
    int32_t ids[BLOCK];
    int n = 0, first = x->prompt + at;
    for (int i = 0; i <= k; i++) ids[i] = i == a + 1 ? (x->truth[at + i] + 1) % 60 : x->truth[at + i];
    EXPECT(MOTE_OK, verify_drafts(x->s, &greedy, ids, k, &n, &failure));
    CHECK(n == a + 1 && x->s->spec.next == x->truth[at + a + 1], "%s: %d of %d drafts: %d rows, surprise %d", x->what, a, k,
          n, x->s->spec.next);
    CHECK(x->s->count == first && !memcmp(x->s->tokens + first, ids, (size_t)n * sizeof *ids), "%s: tokens", x->what);
}

// Plain steps: the true tokens from number `at` on.
static void steps(pair *x, mote_session *s, int at, int n) {
    int wrong = 0;
    for (int i = 0; i < n; i++) {
        int32_t id = -1;
        wrong += mote_step(s, NULL, &id, &failure) || id != x->truth[at + i];
    }
    CHECK(!wrong, "%s: %d of %d tokens from number %d on are not the plain ones", x->what, wrong, n, at);
}

// verify_state without an answer around it.
static int verify_twin(mote_session *s, mote_session *twin) {
    verifier v = {twin, (char *)room(2 * VERIFY_BYTES)};
    int code = verify_state(&v, s, &failure);
    free(v.bytes);
    return code;
}

// After a block the session is what its twin is after as many steps. keep: of the a + 1 rows that count.
static void test_block(pair *x, int k, int a, int keep) {
    int more = keep <= a ? 3 : 0;
    pair_rewind(x);
    draft(x, 0, k, a);
    session_keep(x->s, keep);
    steps(x, x->s, keep, more);
    steps(x, x->twin, 0, keep + more);
    int code = verify_twin(x->s, x->twin);
    CHECK(!code, "%s: %d tokens, %d of %d drafts, %d rows kept: %s", x->what, x->prompt, a, k, keep, failure.message);
}

static void test_every_block(pair *x) {
    for (int k = 1; k < BLOCK; k++)
        for (int a = 0; a <= k; a++)
            for (int keep = a + 1; keep >= 1; keep--) test_block(x, k, a, keep);
}

// Blocks in a row, each with rows of the one before to repeat; compared at the end, all KV rows.
static void test_chain(pair *x) {
    int at = 0;
    pair_rewind(x);
    while (at < TRUTH - BLOCK) {
        int k = random_int(1, BLOCK - 1), a = random_int(0, k), keep = random_int(1, a + 1);
        draft(x, at, k, a);
        session_keep(x->s, keep);
        at += keep;
    }
    steps(x, x->twin, 0, at);
    x->s->block_at = 0;
    int code = verify_twin(x->s, x->twin);
    CHECK(!code, "%s: blocks of %d tokens in a row: %s", x->what, at, failure.message);
}

static void test_blocks(const char *dir, const mote_model *m) {
    static const int prompts[] = {1, 20, 2, 3, 7}, chunks[] = {2, 32};
    int large = m->text != NULL;
    for (int i = 0; i < (large ? 2 : 5); i++)
        for (int c = 0; c < 2; c++) {
            pair x;
            if (large && i != c) continue;
            pair_open(&x, dir, m, prompts[i], chunks[c]);
            test_every_block(&x);
            for (int j = 0; j < (large ? 2 : 10); j++) test_chain(&x);
            pair_close(&x);
        }
}

// ---- 2. The comparison can fail -------------------------------------------------------------------------------------

// The first layer of a kind.
static int layer_of(const mote_model *m, int is_attention) {
    int i = 0;
    while (m->c.is_attention[i] != is_attention) i++;
    return i;
}

// What of the session is changed: one float.
typedef struct damage { const char *what; int layer; float *at; } damage;

// Every kind of damage, number `i` of them; at is NULL behind the last.
static damage damage_of(const mote_session *s, int i) {
    const config *c = &s->m->c;
    int delta = layer_of(s->m, 0), attention = layer_of(s->m, 1);
    size_t row = (size_t)(c->kv_heads * c->head_dim), last = (size_t)(s->count - 1) * row;
    size_t mtp = (size_t)(s->block_at - 1) * row;
    const damage all[] = {{"logits", -1, s->logits + 5},
                          {"final row", -1, s->last_hidden + 1},
                          {"DeltaNet state", delta, s->deltanet[delta].S + 7},
                          {"DeltaNet state", delta, s->deltanet[delta].log_u},
                          {"conv1d window", delta, s->deltanet[delta].log_raw + 2},
                          {"keys", attention, (float *)s->kv[attention].k + last},
                          {"values", attention, (float *)s->kv[attention].v + last + row - 1},
                          {"keys", c->layers, (float *)s->kv[c->layers].k + mtp},
                          {"values", c->layers, (float *)s->kv[c->layers].v + mtp},
                          {NULL, 0, NULL}};
    return all[i];
}

static void test_damage(const mote_model *m) {
    pair x;
    pair_open(&x, "damage", m, 7, 32);
    for (int i = 0;; i++) {
        char layer[32] = "";
        pair_rewind(&x);
        draft(&x, 0, 3, 1);
        session_keep(x.s, 2);
        steps(&x, x.twin, 0, 2);
        damage d = damage_of(x.s, i);
        if (!d.at) break;
        *d.at += 0.25f;
        EXPECT(MOTE_EMISMATCH, verify_twin(x.s, x.twin));
        if (d.layer >= 0) snprintf(layer, sizeof layer, "layer %d, ", d.layer);
        CHECK(strstr(failure.message, d.what) && strstr(failure.message, layer), "%s%s: %s", layer, d.what, failure.message);
    }
    pair_close(&x);
}

// Another token than the twin's.
static void test_wrong_token(const mote_model *m) {
    pair x;
    char want[64];
    pair_open(&x, "wrong token", m, 7, 32);
    for (int wrong = 0; wrong < 2; wrong++) {
        pair_rewind(&x);
        draft(&x, 0, 2, 2);
        session_keep(x.s, 1);
        x.s->tokens[x.prompt] = (x.truth[0] + wrong) % 60;
        EXPECT(wrong ? MOTE_EMISMATCH : MOTE_OK, verify_token(x.s, x.twin, &samplings[GREEDY], &failure));
    }
    snprintf(want, sizeof want, "token %d of the timeline is %d", x.prompt, (x.truth[0] + 1) % 60);
    CHECK(strstr(failure.message, want), "wrong token: %s", failure.message);
    pair_close(&x);
}

// ---- 3. Depth -------------------------------------------------------------------------------------------------------

// A session that believes these to be the costs of its passes.
static mote_session *session_costing(const mote_model *m, const double *cost) {
    mote_session *s = session_of(m, MOTE_MTP_AUTO, CONTEXT);
    memcpy(s->spec.seen.cost, cost, sizeof s->spec.seen.cost);
    s->spec.measured_at = 1;
    speculation_choose(s);
    return s;
}

// A pass in which each draft is accepted with this probability. Returns its cost.
static double pass(mote_session *s, double acceptance) {
    int drafts = s->spec.seen.depth, accepted = 0;
    double cost = s->spec.seen.cost[drafts];
    while (accepted < drafts && random_int(0, 999999) < acceptance * 1e6) accepted++;
    speculation_learn(s, drafts, accepted);
    return cost;
}

// How often the depth changes.
static int changes(mote_session *s, double acceptance, int passes) {
    int n = 0;
    for (int i = 0; i < passes; i++) {
        int depth = s->spec.seen.depth;
        pass(s, acceptance);
        n += s->spec.seen.depth != depth;
    }
    return n;
}

static void test_depth(const mote_model *m) {
    static const double cost[4] = {1, 1.2, 1.4, 1.6};
    mote_session *s = session_costing(m, cost);
    double sum = 0;
    int n = 0;
    changes(s, 1, 100);
    CHECK(s->spec.seen.depth == 3, "all accepted: depth %d", s->spec.seen.depth);
    for (n = 0; s->spec.seen.depth && n < 1000; n++) pass(s, 0);
    CHECK(n <= 80, "none accepted any more: drafts for %d passes", n);
    for (int i = 0; i < 20000; i++) sum += pass(s, 0);
    CHECK(sum < 1.004 * 20000, "none accepted: a pass costs %g of a plain one", sum / 20000);
    CHECK(s->spec.seen.passes[1] + s->spec.seen.passes[2] + s->spec.seen.passes[3] > 100 + (uint64_t)n,
          "none accepted: drafts are never tried again");
    for (n = 0; !s->spec.seen.depth && n < 10000; n++) pass(s, 0.9);
    CHECK(n <= 4000, "accepted again: no drafts for %d passes", n);
    changes(s, 0.9, 1000);
    CHECK(s->spec.seen.depth > 0, "accepted again: depth %d", s->spec.seen.depth);
    mote_session_close(s);
}

// From the start, without anything accepted before.
static void test_depth_of_nothing(const mote_model *m) {
    static const double cost[4] = {1, 1.2, 1.4, 1.6}, dear[4] = {1, 2, 3, 4};
    mote_session *s = session_costing(m, cost);
    int n;
    CHECK(s->spec.seen.depth > 0, "drafts are not tried");
    for (n = 0; s->spec.seen.depth && n < 1000; n++) pass(s, 0);
    CHECK(n <= 40, "none accepted from the start: drafts for %d passes", n);
    mote_session_close(s);
    s = session_costing(m, dear);
    CHECK(changes(s, 1, 1000) == 0 && s->spec.seen.depth == 0, "drafts that cost as much as passes: depth %d",
          s->spec.seen.depth);
    mote_session_close(s);
}

// Two depths that are as good as each other, within 3 %: it stays with one for long.
static void test_hysteresis(const mote_model *m) {
    for (int sign = -1; sign <= 1; sign++) {
        double p = 0.8, good = 1 + p, better = 1 + p + p * p, cost[4] = {1.3, good, better * (1 + 0.03 * sign), 9};
        mote_session *s = session_costing(m, cost);
        changes(s, p, 100);
        int n = changes(s, p, 5000);
        printf("%s: two depths within 3 %%: %d changes in 5000 passes\n", test_name, n);
        CHECK(n <= 50, "two depths within 3 %%: %d changes in 5000 passes", n);
        mote_session_close(s);
    }
}

// ---- 4. Broken MTP layers -------------------------------------------------------------------------------------------

// A tensor of a fixture, and what its data becomes.
typedef struct breakage { const char *dir, *file, *tensor; int nan; } breakage;

// The bytes of a tensor in a safetensors file.
static char *tensor_data(const buf *file, const char *tensor, size_t *size) {
    uint64_t header, begin = 0, end = 0;
    json j;
    memcpy(&header, file->data, 8);
    if (!CHECK(!json_parse(&j, file->data + 8, (size_t)header, "header", NULL), "header")) return NULL;
    uint32_t offsets = json_get(&j, json_get(&j, 0, tensor), "data_offsets");
    int ok = json_u64(&j, offsets + 1, &begin) && json_u64(&j, j.nodes[offsets + 1].next, &end);
    *size = (size_t)(end - begin);
    json_free(&j);
    return ok ? file->data + 8 + header + begin : NULL;
}

static void break_tensor(buf *file, const breakage *b) {
    static const unsigned char nan[2] = {0xc0, 0x7f};
    size_t size = 0;
    char *data = tensor_data(file, b->tensor, &size);
    if (!CHECK(data != NULL, "%s: no tensor %s", b->dir, b->tensor)) return;
    if (b->nan) memcpy(data + size - 2, nan, 2);            // the upper half of a float, or a BF16
    else memset(data, 0, size);
}

static void copy_folder(const breakage *b, const char *to) {
    DIR *d = opendir(b->dir);
    struct dirent *e;
    char path[800];
    while (d && (e = readdir(d))) {
        buf bytes = {0};
        if (e->d_name[0] == '.' || read_file(b->dir, e->d_name, &bytes, NULL)) continue;
        if (!strcmp(e->d_name, b->file)) break_tensor(&bytes, b);
        snprintf(path, sizeof path, "%s/%s", to, e->d_name);
        FILE *f = fopen(path, "wb");
        CHECK(f && fwrite(bytes.data, 1, bytes.size, f) == bytes.size && !fclose(f), "%s cannot be written", path);
        buf_free(&bytes);
    }
    if (d) closedir(d);
}

static void clear_folder(const char *dir) {
    DIR *d = opendir(dir);
    struct dirent *e;
    char path[800];
    while (d && (e = readdir(d))) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (e->d_name[0] != '.') unlink(path);
    }
    if (d) closedir(d);
}

typedef struct log_lines { int count; char last[512]; } log_lines;

static void count_mtp_lines(void *user, const char *line) {
    log_lines *l = (log_lines *)user;
    if (!strstr(line, "MTP")) return;
    l->count++;
    snprintf(l->last, sizeof l->last, "%s", line);
}

// Nothing is drafted, whatever is asked for, and the text is the plain one of `whole`.
static void check_no_drafts(const mote_model *m, const mote_model *whole) {
    mote_session *off = session_of(whole, MOTE_MTP_OFF, CONTEXT);
    reply *want = (reply *)room(sizeof *want), *got = (reply *)room(sizeof *got);
    EXPECT(MOTE_OK, mote_feed(off, some_ids, 5, &failure));
    generate(off, &samplings[GREEDY], 20, 0, want);
    CHECK(mote_model_info(m)->mtp_layers == 0, "%d MTP layers", mote_model_info(m)->mtp_layers);
    for (int mtp = MOTE_MTP_OFF; mtp < BLOCK; mtp++) {
        mote_session *s = session_of(m, mtp, CONTEXT);
        mote_generation g = generation_of(got, &samplings[GREEDY], 20, 0);
        mote_speculation x = {0};
        g.verify = 1;
        EXPECT(MOTE_OK, mote_feed(s, some_ids, 5, &failure));
        EXPECT(MOTE_OK, mote_generate(s, &g, &got->r, &failure));
        EXPECT(MOTE_OK, mote_speculation_of(s, &x, &failure));
        CHECK(same_reply(got, want) && want->count > 5, "mtp %d without an MTP layer: %d tokens", mtp, got->count);
        CHECK(x.drafted[0] == 0 && x.tokens == x.passes[0] && x.tokens == (uint64_t)got->count, "mtp %d: %d drafts", mtp,
              (int)x.drafted[0]);
        mote_session_close(s);
    }
    mote_session_close(off);
    free(want);
    free(got);
}

static void test_broken(const breakage *b, const char *tmp) {
    mote_model *whole = model_of(b->dir, MOTE_WEIGHTS_ONLY), *m = NULL;
    log_lines lines = {0};
    mote_options o = {.parts = MOTE_WEIGHTS_ONLY, .device = "cpu"};
    o.callbacks.log = count_mtp_lines;
    o.callbacks.user = &lines;
    copy_folder(b, tmp);
    EXPECT(MOTE_OK, mote_open(tmp, &o, &m, &failure));
    CHECK(lines.count == 1 && strstr(lines.last, b->tensor), "%s, %s: %d lines: %s", b->dir, b->tensor, lines.count,
          lines.last);
    CHECK(mote_model_info(whole)->mtp_layers == 1, "%s has an MTP layer", b->dir);
    if (m) check_no_drafts(m, whole);
    mote_close(m);
    mote_close(whole);
    clear_folder(tmp);
}

static void test_broken_layers(const char *tmp) {
    static const breakage all[] = {
        {"tests/fixtures/bf16-as-3.6", "model.safetensors", "mtp.fc.weight", 0},
        {"tests/fixtures/bf16-as-3.6", "model.safetensors", "mtp.fc.weight", 1},
        {"tests/fixtures/bf16-as-3.6", "model.safetensors", "mtp.norm.weight", 1},
        {"tests/fixtures/bf16-as-3.6", "model.safetensors", "mtp.layers.0.mlp.gate.weight", 1},
        {"tests/fixtures/f32-tied", "model.safetensors", "mtp.fc.weight", 0},
        {"tests/fixtures/f32-tied", "model.safetensors", "mtp.layers.0.self_attn.v_proj.weight", 1},
        {"tests/fixtures/fp8-ragged", "mtp.safetensors", "mtp.layers.0.self_attn.o_proj.weight", 0},
        {"tests/fixtures/fp8-ragged", "mtp.safetensors", "mtp.layers.0.self_attn.q_proj.weight", 0}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) test_broken(&all[i], tmp);
    mote_model *none = model_of("tests/fixtures/f16-all-delta", MOTE_WEIGHTS_ONLY);
    check_no_drafts(none, none);
    mote_close(none);
}

// ---- 5. Options -----------------------------------------------------------------------------------------------------

static void test_options(const mote_model *m) {
    static const int bad[] = {-2, BLOCK, 100};
    for (int i = 0; i < 3; i++) {
        mote_session_options o = {.context = 16, .mtp = bad[i]};
        mote_session *s = NULL;
        EXPECT(MOTE_EINVAL, mote_session_open(m, &o, &s, &failure));
        CHECK(!s && strstr(failure.message, "expected") && strstr(failure.message, "1 to 3"), "%s", failure.message);
    }
    mote_options o = {.device = "cpu", .draft_rows = -1};
    mote_model *refused = NULL;
    EXPECT(MOTE_EINVAL, mote_open("models/demo", &o, &refused, &failure));
    CHECK(!refused && strstr(failure.message, "draft_rows"), "%s", failure.message);
}

// Drafts from few rows of the vocabulary: fewer are accepted, the text is the same.
static void test_draft_rows(const mote_model *demo) {
    static const int rows[] = {0, 100, 1};
    uint64_t accepted[3];
    reply *want = (reply *)room(sizeof *want), *got = (reply *)room(sizeof *got);
    mote_session *off = session_of(demo, MOTE_MTP_OFF, CONTEXT);
    ask(off, "What is a mixture of experts?", &samplings[GREEDY], ANSWER, want);
    for (int i = 0; i < 3; i++) {
        mote_options o = {.device = "cpu", .draft_rows = rows[i]};
        mote_model *m = NULL;
        mote_speculation x = {0};
        int32_t drafts[BLOCK - 1];
        EXPECT(MOTE_OK, mote_open("models/demo", &o, &m, &failure));
        if (!m) break;
        mote_session *s = session_of(m, 3, CONTEXT);
        ask(s, "What is a mixture of experts?", &samplings[GREEDY], ANSWER, got);
        CHECK(same_reply(got, want), "draft_rows %d: another text", rows[i]);
        EXPECT(MOTE_OK, mote_speculation_of(s, &x, &failure));
        accepted[i] = x.accepted[0];
        EXPECT(MOTE_OK, make_drafts(s, s->tokens[s->count - 1], BLOCK - 1, drafts, &failure));
        for (int k = 0; k < BLOCK - 1; k++)
            CHECK(drafts[k] >= 0 && (!rows[i] || drafts[k] < rows[i]), "draft_rows %d: draft %d", rows[i], drafts[k]);
        mote_session_close(s);
        mote_close(m);
        CHECK(i == 0 || accepted[i] < accepted[0], "draft_rows %d: %d accepted", rows[i], (int)accepted[i]);
    }
    mote_session_close(off);
    free(want);
    free(got);
}

int main(int argc, char **argv) {
    static const char *const fixtures[] = {"tests/fixtures/bf16-as-3.6", "tests/fixtures/f32-tied",
                                           "tests/fixtures/fp8-ragged"};
    char tmp[] = "/tmp/mote-test-XXXXXX";
    test_main_begin("test_speculation", argc, argv);
    int prompts = argc > 2 ? atoi(argv[2]) : 0;
    if (!CHECK(mkdtemp(tmp) != NULL, "a folder for files")) return test_main_end();
    for (int i = 0; i < 3; i++) {
        mote_model *m = model_of(fixtures[i], MOTE_WEIGHTS_ONLY);
        if (!test_brief || i == 0) test_blocks(fixtures[i], m);
        if (!test_brief || i == 0) test_fixture(m, i, prompts > 0);
        if (i == 0) test_damage(m);
        if (i == 0) test_wrong_token(m);
        if (i == 0) test_depth(m);
        if (i == 0) test_depth_of_nothing(m);
        if (i == 0) test_hysteresis(m);
        if (i == 0 && !test_brief) test_distribution(m, some_ids, 5);
        mote_close(m);
    }
    mote_model *demo = model_of("models/demo", MOTE_EVERYTHING);
    if (!test_brief) test_blocks("models/demo", demo);
    test_options(demo);
    test_draft_rows(demo);
    test_demo(demo, prompts ? prompts : test_brief ? 1 : 6, prompts > 0);
    if (prompts) test_demo_distribution(demo);
    mote_close(demo);
    test_broken_layers(tmp);
    CHECK(rmdir(tmp) == 0, "%s is empty again", tmp);
    return test_main_end();
}
