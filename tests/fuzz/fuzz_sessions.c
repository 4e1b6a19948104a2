// Fuzz target of saved sessions whose checksum and fingerprint are right: what is left to check is checked, and what is then
// loaded can be used. Of files in the folder of mote serve no more is read than this. make fuzz; needs clang. Run it from the top
// of the repository.
//
// An input: a byte of choices, then edits to a session that was saved: two bytes for the place, one for what is put there.

#include "library.h"

enum { CONTEXT = 24, KINDS = 3 };

static mote_model *saved_model;
static mote_session *sessions[KINDS];      // by type of the KV cache
static buf saved[KINDS];

static void save(mote_session *s, buf *out) {
    size_t n = 0;
    out->size = 0;
    mote_save(s, NULL, 0, &n, NULL);
    must(!mote_save(s, buf_add(out, NULL, n), n, &n, NULL), "save");
}

static void start_sessions(void) {
    static const int32_t ids[] = {5, 1, 5, 1, 5, 1, 5};
    mote_error err;
    mote_options o = {.size = sizeof o};
    if (mote_open("tests/fixtures/bf16-as-3.5", &o, &saved_model, &err)) must(0, err.message);
    for (int k = 0; k < KINDS; k++) {
        mote_session_options how = {.size = sizeof how, .context = CONTEXT, .threads = 1, .kv = MOTE_KV_F32 + k, .mtp = 2};
        mote_generation g = {.size = sizeof g, .max_tokens = 3, .raw = 1};
        must(!mote_session_open(saved_model, &how, &sessions[k], &err), "a session");
        must(!mote_feed(sessions[k], ids, 7, &err), "feed");
        must(!mote_generate(sessions[k], &g, NULL, &err), "generate");      // with drafts: pending, accepted
        save(sessions[k], &saved[k]);
    }
}

// Floats that arithmetic dislikes, and small numbers for the header.
static void put(buf *b, size_t at, unsigned what) {
    static const uint32_t odd[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xffffffff, 0x7f7fffff, 0xff7fffff, 0x80000000, 0x00000001};
    uint32_t value = what < 248 ? what : odd[what - 248];
    at %= b->size;
    memcpy(b->data + at, &value, b->size - at < sizeof value ? b->size - at : sizeof value);
}

static void edit_saved(buf *b, const uint8_t *data, size_t size) {
    for (; size >= 3; data += 3, size -= 3) {
        size_t place = (size_t)data[0] << 8 | data[1];
        // Every other place is in the header or the tokens, the rest anywhere, whole floats.
        size_t at = place & 1 ? offsetof(saved_header, count) + (place >> 1) % 64 / 4 * 4 : (place * 2654435761u) % b->size / 4 * 4;
        put(b, at, data[2]);
    }
}

// A loaded session goes on: whatever its numbers are, no more than an error.
static void use(mote_session *s, unsigned choice) {
    mote_error err;
    mote_checkpoint *c = NULL;
    mote_session *clone = NULL;
    static const int32_t ids[] = {3, 4, 5};
    mote_sampling sampling = {.temperature = choice & 8 ? 1 : 0, .top_k = 3, .top_p = 0.9f, .repetition_penalty = 1.1f, .seed = 1};
    mote_generation g = {.size = sizeof g, .sampling = &sampling, .max_tokens = 4, .raw = 1};
    if (choice & 16) must(!mote_checkpoint_take(s, &c, &err), "a checkpoint");
    if (choice & 32) must(!mote_clone(s, &clone, &err), "a clone");
    if (choice & 64) mote_feed(s, ids, 3, &err);
    mote_generate(s, &g, NULL, &err);
    if (c) must(!mote_rewind(s, c, &err), "rewind");
    if (clone) mote_generate(clone, &g, NULL, &err);
    mote_checkpoint_free(c);
    mote_session_close(clone);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static buf bytes, after;
    saved_header h;
    mote_error err;
    if (!saved_model) start_sessions();
    if (!size) return 0;
    unsigned choice = data[0], from = choice % KINDS;
    mote_session *s = sessions[choice / 2 % KINDS];
    bytes.size = 0;
    buf_add(&bytes, saved[from].data, saved[from].size);
    edit_saved(&bytes, data + 1, size - 1);
    memcpy(&h, bytes.data, sizeof h);
    memcpy(h.magic, SAVED_MAGIC, sizeof h.magic);
    h.fingerprint = saved_model->fingerprint;
    if (choice & 128 && h.count >= 0 && h.count <= CONTEXT && h.kv >= MOTE_KV_F32 && h.kv <= MOTE_KV_FP8) {
        size_t n = saved_size(s, &h), had = bytes.size;    // of the size that its header asks for
        if (n > had) memset(buf_add(&bytes, NULL, n - had), 1, n - had);
        bytes.size = n;
    }
    memcpy(bytes.data, &h, sizeof h);
    h.checksum = saved_checksum(bytes.data, bytes.size);
    memcpy(bytes.data, &h, sizeof h);
    char *exact = (char *)malloc(bytes.size);
    must(exact != NULL, "memory");
    memcpy(exact, bytes.data, bytes.size);
    int code = mote_load(s, exact, bytes.size, &err);
    if (!code && h.kv == s->o.kv) {
        save(s, &after);
        must(after.size == bytes.size, "a session of another size than what was loaded");
    }
    free(exact);
    if (!code) use(s, choice);
    must(!mote_load(s, saved[choice / 2 % KINDS].data, saved[choice / 2 % KINDS].size, &err), "its own saved session");
    return 0;
}
