// How near a GPU comes to exact arithmetic: long prompts read by prefill, and decode steps after them, against a float64 oracle.
// The bound is what transformers in BF16 is off by on the same checkpoint and tokens.
//
// Usage: gpu_accuracy DIR...      checkpoint folders with DIR/oracle/, by tools/make_oracle.py

#include "api.h"
#include "files.h"

#include <stddef.h>

typedef struct oracle {
    int prompt, after, vocab, delta_layers, value_heads, value_dim, key_heads, key_dim, taps;
    double bf16_logits, bf16_mtp, bf16_state, bf16_after;      // by how much transformers in BF16 is off
} oracle;

static const char *folder;       // DIR
static oracle o;

static char *oracle_bytes(const char *kind, size_t *size) {
    char path[600];
    snprintf(path, sizeof path, "%s/oracle/%d.%s", folder, o.prompt, kind);
    return file_bytes(path, size);
}

static void read_oracle(int prompt) {
    static const struct { const char *name; size_t whole, real; } known[] = {
        {"after", offsetof(oracle, after), 0}, {"vocab", offsetof(oracle, vocab), 0},
        {"delta_layers", offsetof(oracle, delta_layers), 0}, {"value_heads", offsetof(oracle, value_heads), 0},
        {"value_dim", offsetof(oracle, value_dim), 0}, {"key_heads", offsetof(oracle, key_heads), 0},
        {"key_dim", offsetof(oracle, key_dim), 0}, {"taps", offsetof(oracle, taps), 0},
        {"bf16_logits", 0, offsetof(oracle, bf16_logits)}, {"bf16_mtp", 0, offsetof(oracle, bf16_mtp)},
        {"bf16_state", 0, offsetof(oracle, bf16_state)}, {"bf16_after", 0, offsetof(oracle, bf16_after)}};
    size_t size;
    memset(&o, 0, sizeof o);
    o.prompt = prompt;
    char *text = oracle_bytes("txt", &size);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
            size_t n = strlen(known[i].name);
            if (strncmp(line, known[i].name, n) || line[n] != ' ') continue;
            if (known[i].whole) *(int *)((char *)&o + known[i].whole) = atoi(line + n);
            else *(double *)((char *)&o + known[i].real) = atof(line + n);
        }
    free(text);
}

static void compare(const char *what, const float *got, const char *kind, size_t from, size_t n, double allowed) {
    size_t size;
    char *want = oracle_bytes(kind, &size);
    int fits = CHECK((from + n) * 4 <= size, "%s: %d tokens: %s: %zu bytes", folder, o.prompt, what, size);
    double by = fits ? off(got, (const float *)(void *)want + from, n) : INFINITY;
    printf("%s: %d tokens: %s off %.5f, transformers in BF16 %.5f\n", folder, o.prompt, what, by, allowed);
    CHECK(by <= allowed, "%s: %d tokens: %s off %.5f", folder, o.prompt, what, by);
    free(want);
}

// The DeltaNet states of a session with nothing pending: each layer's is first in its part of the saved session, after the
// header of 48 bytes and the tokens; then come its window and the log of a block (layers/deltanet/cpu.c). Were a size
// wrong here, nothing would be near.
static void compare_states(const mote_session *s) {
    size_t size, S = (size_t)o.value_heads * (size_t)o.value_dim * (size_t)o.key_dim, heads = (size_t)o.value_heads;
    size_t keys = (size_t)o.key_heads * (size_t)o.key_dim, values = heads * (size_t)o.value_dim;
    size_t part = S + ((size_t)o.taps - 1 + MOTE_ROWS_MAX) * (2 * keys + values) + MOTE_ROWS_MAX * (keys + values + heads);
    char *saved = session_bytes(s, &size), *at = saved + 48 + (size_t)o.prompt * 4;
    float *states = (float *)allocate((size_t)o.delta_layers * S * 4);
    int fits = CHECK(48 + ((size_t)o.prompt + (size_t)o.delta_layers * part) * 4 < size, "%s: %zu bytes", folder, size);
    for (int i = 0; i < o.delta_layers && fits; i++) memcpy(states + (size_t)i * S, at + (size_t)i * part * 4, S * 4);
    if (fits) compare("states", states, "state", 0, (size_t)o.delta_layers * S, o.bf16_state);
    free(states);
    free(saved);
}

static void run_prompt(const mote_model *m, int prompt) {
    size_t size;
    read_oracle(prompt);
    const int all = o.prompt + o.after;
    const size_t row = (size_t)o.vocab;
    int32_t *ids = (int32_t *)(void *)oracle_bytes("i32", &size);
    float *logits = (float *)allocate((size_t)all * row * 4);
    float *mtp = o.bf16_mtp > 0 ? (float *)allocate((size_t)all * row * 4) : NULL;
    if (CHECK(size == (size_t)all * 4 && o.vocab == mote_model_info(m)->vocab_size, "%s: %zu bytes", folder, size)) {
        mote_session *s = session_of(m, .context = all);
        CHECK(mote_model_info(m)->prefill_from && o.prompt >= mote_model_info(m)->prefill_from, "%s: not by prefill", folder);
        EXPECT(MOTE_OK, mote_feed_logits(s, ids, (size_t)o.prompt, logits, mtp, &failure));
        if (o.delta_layers) compare_states(s);
        for (int i = o.prompt; i < all; i++)
            EXPECT(MOTE_OK, mote_feed_logits(s, ids + i, 1, logits + (size_t)i * row, mtp ? mtp + (size_t)(i - 1) * row : NULL,
                                             &failure));
        compare("logits", logits, "logits", 0, (size_t)all * row, o.bf16_logits);
        compare("logits after the prompt", logits + (size_t)o.prompt * row, "logits", (size_t)o.prompt * row,
                (size_t)o.after * row, o.bf16_after);
        if (mtp) compare("MTP logits", mtp, "mtp", 0, (size_t)(all - 1) * row, o.bf16_mtp);
        mote_session_close(s);
    }
    free(logits);
    free(mtp);
    free(ids);
}

// Every oracle of a checkpoint.
static void run_folder(void) {
    char path[600];
    int found = 0;
    snprintf(path, sizeof path, "%s/oracle", folder);
    DIR *dir = opendir(path);
    mote_model *m = dir ? model_on("cuda", folder, MOTE_WEIGHTS_ONLY) : NULL;
    for (struct dirent *e; m && (e = readdir(dir));)
        if (strstr(e->d_name, ".txt")) run_prompt(m, atoi(e->d_name)), found++;
    CHECK(found, "%s: no oracle", folder);
    mote_close(m);
    if (dir) closedir(dir);
}

int main(int argc, char **argv) {
    test_main_begin("gpu_accuracy", 0, NULL);
    for (int i = 1; i < argc; i++) folder = argv[i], run_folder();
    return test_main_end();
}
