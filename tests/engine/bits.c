// Prints hashes of what models compute, so that two builds can be compared bit for bit: logits and MTP logits of steps of one to four
// rows and of a prompt, the tokens of an answer with drafts, and the whole session after each. No test: it has no opinion.
//
// Usage: bits [--device NAME] MODEL...     checkpoint folders, or names of mote_open_synthetic
//        A line for each: MODEL DEVICE WHAT HASH. Compare the output of two builds with diff.

#include "api.h"

enum { STEPS = 12, PROMPT = 150, ANSWER = 16 };

static uint64_t hash_of(const void *bytes, size_t size) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    return hash;
}

static void tell(const char *model, const char *what, int number, const void *bytes, size_t size) {
    printf("%s %s %s %d %016llx\n", model, test_device, what, number, (unsigned long long)hash_of(bytes, size));
}

// A saved session without the model's fingerprint, bytes 8 to 15, which may be another when the session is not.
static void tell_session(const char *model, const char *what, int number, const mote_session *s) {
    size_t size;
    char *bytes = session_bytes(s, &size);
    memset(bytes + 8, 0, 8);
    tell(model, what, number, bytes, size);
    free(bytes);
}

// `count` tokens in calls of `rows` each.
static void run_rows(const char *name, const char *what, const mote_model *m, int rows, int count) {
    const mote_info *info = mote_model_info(m);
    size_t vocab = (size_t)info->vocab_size;
    mote_session *s = session_of(m, .context = 2 * PROMPT, .mtp = 1);
    float *logits = (float *)allocate((size_t)count * vocab * sizeof *logits), *mtp = NULL;
    int32_t ids[PROMPT];
    int drafts = 0;
    if (info->mtp_layers) mtp = (float *)allocate((size_t)count * vocab * sizeof *mtp);
    for (int i = 0; i < count; i++) ids[i] = (int32_t)((size_t)i * 977 % vocab);
    for (int at = 0; at < count; at += rows) {
        size_t n = (size_t)(count - at < rows ? count - at : rows);
        EXPECT(MOTE_OK, mote_feed_logits(s, ids + at, n, logits + (size_t)at * vocab, mtp ? mtp + (size_t)drafts * vocab : NULL, &failure));
        drafts += (int)n - !at;
    }
    tell(name, what, rows, logits, (size_t)count * vocab * sizeof *logits);
    if (mtp) tell(name, "mtp", rows, mtp, (size_t)drafts * vocab * sizeof *mtp);
    tell_session(name, "session", rows, s);
    mote_session_close(s);
    free(logits);
    free(mtp);
}

// An answer, with `drafts` drafts for each pass.
static void run_answer(const char *name, const mote_model *m, int drafts) {
    static const int32_t ids[] = {3, 14, 15};
    mote_sampling greedy;
    mote_generation g;
    memset(&greedy, 0, sizeof greedy);
    memset(&g, 0, sizeof g);
    g.size = sizeof g;
    g.sampling = &greedy;
    g.max_tokens = ANSWER;
    g.raw = 1;
    mote_session *s = session_of(m, .context = 2 * PROMPT, .mtp = drafts ? drafts : MOTE_MTP_OFF);
    EXPECT(MOTE_OK, mote_feed(s, ids, 3, &failure));
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    size_t count;
    const int32_t *tokens = mote_tokens(s, &count);
    tell(name, "answer", drafts, tokens, count * sizeof *tokens);
    tell_session(name, "answered", drafts, s);
    mote_session_close(s);
}

int main(int argc, char **argv) {
    int i = test_main_begin("bits", argc, argv) - 1;
    for (; i < argc; i++) {
        mote_options o;
        mote_model *m = NULL;
        memset(&o, 0, sizeof o);
        o.size = sizeof o;
        o.parts = MOTE_WEIGHTS_ONLY;
        o.device = test_device;
        if (strchr(argv[i], '/')) EXPECT(MOTE_OK, mote_open(argv[i], &o, &m, &failure));
        else EXPECT(MOTE_OK, mote_open_synthetic(argv[i], &o, &m, &failure));
        if (!m) continue;
        for (int rows = 1; rows <= 4; rows++) run_rows(argv[i], "logits", m, rows, STEPS);
        run_rows(argv[i], "prompt", m, PROMPT, PROMPT);
        for (int drafts = 0; drafts <= (mote_model_info(m)->mtp_layers ? 3 : 0); drafts++) run_answer(argv[i], m, drafts);
        mote_close(m);
    }
    return test_main_end();
}
