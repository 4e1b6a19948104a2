// Tests of the definitions (layers/*/definition.c, model/definition.c): whole models against the logits of the reference, and the CPU's fast
// code against the definitions, whatever the weights' format.
//
// Usage: test_definition [DATA [CHECKPOINT...]]      CHECKPOINT: folders with reference results, beside tests/fixtures and DATA/family-data

#include "inside.h"
#include "../../layers/definition.c"
#include "../../layers/deltanet/definition.c"
#include "../../layers/attention/definition.c"
#include "../../layers/moe/definition.c"
#include "../../model/definition.c"

#include "api.h"
#include "files.h"

// Of the logits' standard deviation. The reference computes in float32; a wrong formula is off by 0.02 or more.
#define REFERENCE_RULE 2e-5
#define CPU_RULE 5e-6
enum { PROMPT = 24 };            // of each checkpoint's prompt: a definition is slow

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

static void test_checkpoint(const char *folder) {
    size_t ids_size, logits_size, mtp_size;
    mote_model *m = model_on("cpu", folder, MOTE_WEIGHTS_ONLY);
    int32_t *ids = (int32_t *)read_rows(folder, "tokens.i32", &ids_size);
    float *reference = (float *)read_rows(folder, "logits.f32", &logits_size);
    float *reference_mtp = (float *)read_rows(folder, "mtp_logits.f32", &mtp_size);
    size_t vocab = (size_t)m->c.vocab, T = ids_size / sizeof *ids < PROMPT ? ids_size / sizeof *ids : PROMPT;
    if (!CHECK(ids && reference && m->has_mtp == (reference_mtp != NULL), "%s: no reference results", folder)) return;
    double *logits = (double *)allocate(T * vocab * sizeof *logits), *mtp = (double *)allocate(T * vocab * sizeof *mtp);
    float *fast = (float *)allocate(T * vocab * sizeof *fast), *fast_mtp = (float *)allocate(T * vocab * sizeof *fast_mtp);

    definition_model(m, ids, (int)T, logits, m->has_mtp ? mtp : NULL);
    compare(folder, "reference", logits, reference, T * vocab, REFERENCE_RULE);
    if (m->has_mtp) compare(folder, "reference, MTP", mtp, reference_mtp, (T - 1) * vocab, REFERENCE_RULE);

    mote_session *s = session_of(m, .context = PROMPT, .chunk = 7, .threads = 2, .mtp = m->has_mtp ? 1 : 0);
    EXPECT(MOTE_OK, mote_feed_logits(s, ids, T, fast, m->has_mtp ? fast_mtp : NULL, &failure));
    compare(folder, "the CPU", logits, fast, T * vocab, CPU_RULE);
    if (m->has_mtp) compare(folder, "the CPU, MTP", mtp, fast_mtp, (T - 1) * vocab, CPU_RULE);

    mote_session_close(s);
    mote_close(m);
    free(ids), free(reference), free(reference_mtp), free(logits), free(mtp), free(fast), free(fast_mtp);
}

int main(int argc, char **argv) {
    static const char *const fixtures[] = {
        "bf16-as-3.5", "bf16-as-3.6", "f32-tied", "f16-all-delta", "mixed-all-attention", "fp8-ragged", "fp8-f32-scales",
        "nvfp4-fp8-tensor", "ct-nvfp4-fp8-int4", "gptq-awq-int4"};
    static const char *const families[] = {"dev-qwen3moe", "dev-qwen3moe-nonorm"};
    int more = test_main_begin("definition", argc, argv);
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        char folder[300];
        snprintf(folder, sizeof folder, "tests/fixtures/%s", fixtures[i]);
        test_checkpoint(folder);
    }
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        char folder[300];
        if (!test_data_dir()) {
            test_skip(families[i]);
            continue;
        }
        snprintf(folder, sizeof folder, "%s/family-data/%s", test_data_dir(), families[i]);
        test_checkpoint(folder);
    }
    for (; more < argc; more++) test_checkpoint(argv[more]);
    return test_main_end();
}
