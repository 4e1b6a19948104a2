/* reference.c: the spine of the smallest engine that there is in here: a checkpoint folder and a text -> its continuation, by the
   definitions of layers alone. `make reference` builds it; `./reference DIR "text"` runs it.

   It is the place to begin reading. All that an engine cannot do without is included below, in reading order, and nothing else: text and
   tokens, weight formats, what a layer is, untrusted files, the families, the formulas. What is not here is what makes it fast, or more than
   one text at a time: the same rooms with it are engine.cu. So it computes in double precision on one thread, reading every weight for
   every token: the bundled model's tokens take milliseconds, those of one with three billion active parameters many seconds.

   It is a file beside the other spines because it is one: only spines include rooms. Not part of the library. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE                            /* as engine.cu */
#endif

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine.h"                            /* codes, mote_error, mote_callbacks, mote_info: none of its functions */

/* ---- 1. Text <-> token ids ---------------------------------------------------------------------------------------------- */

#include "text/basics.c"
#include "text/utf8.c"
#include "text/json.c"
#include "text/unicode_tables.c"
#include "text/unicode.c"
#include "text/words.c"
#include "text/bpe.c"
#include "text/tokenizer_steps.c"
#include "text/tokenizer_file.c"
#include "text/chat_family.c"

/* ---- 2. Weight formats: rows of matrices -> floats ------------------------------------------------------------------------- */

#include "formats/numbers.c"
#include "formats/formats.c"
#include "formats/unpack.c"
#include "formats/f32.c"
#include "formats/f16.c"
#include "formats/bf16.c"
#include "formats/fp8_block.c"
#include "formats/fp8_row.c"
#include "formats/nvfp4.c"
#include "formats/mxfp4.c"
#include "formats/mxfp8.c"
#include "formats/int4.c"
#include "formats/int4_fine.c"
#include "formats/dispatch.c"

/* ---- 3. What a layer is: kinds, numbers, tensors --------------------------------------------------------------------------- */

#include "layers/shape.c"
#include "layers/rows.c"
#include "layers/deltanet/weights.c"
#include "layers/attention/weights.c"
#include "layers/mla/weights.c"
#include "layers/ngrams/weights.c"
#include "layers/mamba/weights.c"
#include "layers/moe/weights.c"
#include "layers/mlp/weights.c"
#include "layers/vision/weights.c"
#include "layers/table.c"
#include "layers/stages.c"

/* ---- 4. From a checkpoint folder to weights -------------------------------------------------------------------------------- */

#define SIMD                                   /* cpu/simd.c's: without versions for levels of processors */

#include "images/picture.c"
#include "checkpoint/callbacks.c"
#include "checkpoint/safetensors.c"
#include "checkpoint/folder.c"
#include "checkpoint/config.c"
#include "model/part.c"
#include "model/model.c"
#include "model/quantization_recipe.c"
#include "checkpoint/quantization_check.c"
#include "checkpoint/items.c"
#include "checkpoint/find.c"
#include "checkpoint/publish.c"
#include "checkpoint/memory.c"
#include "checkpoint/stored.c"
#include "checkpoint/bind.c"
#include "checkpoint/load.c"
#include "checkpoint/rows.c"
#include "checkpoint/memory_cpu.c"

/* ---- 5. Models ------------------------------------------------------------------------------------------------------------- */

#include "families/rope.c"
#include "families/common_keys.c"
#include "families/common.c"
#include "families/common_vision.c"
#include "families/qwen3_5_moe.c"
#include "families/qwen3_5.c"
#include "families/qwen3_moe.c"
#include "families/qwen3.c"
#include "families/qwen3_next.c"
#include "families/llama.c"
#include "families/mixtral.c"
#include "families/gpt_oss.c"
#include "families/deepseek_v3.c"
#include "families/glm4_moe_lite.c"
#include "families/laguna.c"
#include "families/gemma4.c"
#include "families/qwen4_exp.c"
#include "families/nemotron_h.c"
#include "families/families.c"
#include "families/keys.c"
#include "families/dflash.c"
#include "families/config.c"
#include "model/home.c"
#include "model/weights.c"
#include "checkpoint/ends.c"

/* ---- 6. The formulas ------------------------------------------------------------------------------------------------------- */

#include "layers/definition.c"
#include "layers/deltanet/definition.c"
#include "layers/attention/definition.c"
#include "layers/mla/definition.c"
#include "layers/ngrams/definition.c"
#include "layers/mamba/definition.c"
#include "layers/moe/definition.c"
#include "layers/mlp/definition.c"
#include "diagnose/definition.c"

/* ---- 7. The program -------------------------------------------------------------------------------------------------------- */

enum { TOKENS = 64, TOKENS_MOST = 1 << 20 };   /* of a continuation, unless asked otherwise, and at most */

static void print_notice(void *user, const char *line) {
    (void)user;
    fprintf(stderr, "reference: %s\n", line);
}

static void close_model(mote_model *m) {
    tokenizer_free(m->text);
    config_free(&m->c);
    weights_free(m);
    buf_free(&m->eos);
    cpu_memory.release(m);
}

/* The weights of a folder. What has been opened when it fails is in *m. */
static int open_weights(mote_model *m, const char *dir, mote_error *err) {
    const mote_callbacks callbacks = {.log = print_notice};
    checkpoint files;
    binder b;
    memset(&files, 0, sizeof files);
    memset(&b, 0, sizeof b);
    b.files = &files;
    b.m = m;
    b.err = err;
    m->device.gpu = -1;
    m->part = part_of(0, 1, 0, 1);
    m->memory = &cpu_memory;
    m->images = -1;                                               /* it reads text alone */
    int code = config_read(&m->c, dir, err);                      /* what model it is */
    if (!code) code = checkpoint_open(&files, dir, 0, err);       /* which tensors there are */
    if (!code) bind_model(&b, &callbacks), code = b.code;         /* which tensor is what of it */
    if (!code) code = load_weights(&b, &callbacks, err);
    buf_free(&b.items);
    checkpoint_close(&files);
    return code;
}

/* A folder with its text. To be closed by the caller, whatever it returns. */
static int open_model(mote_model *m, const char *dir, mote_error *err) {
    memset(m, 0, sizeof *m);
    int code = tokenizer_open(&m->text, dir, err);
    if (!code) code = open_weights(m, dir, err);
    if (!code) code = model_ends(m, dir, NULL, err);
    if (!code && tokenizer_vocab(m->text) > m->c.vocab)
        code = fail(err, MOTE_EFORMAT, "%s/tokenizer.json: token ids up to %d, but config.json says vocab_size is %d", dir,
                    tokenizer_vocab(m->text) - 1, m->c.vocab);
    return code;
}

/* The token of the largest logit, the first one among equals, of those that the tokenizer knows; -1: a logit is not a number. */
static int32_t best_token(const mote_model *m, const double *logits) {
    const int known = m->text ? tokenizer_vocab(m->text) : m->c.vocab;
    int32_t best = 0;
    for (int32_t id = 0; id < known; id++) {
        if (isnan(logits[id])) return -1;
        if (logits[id] > logits[best]) best = id;
    }
    return best;
}

/* Reads ids[count] and then up to `most` tokens more, each the most probable one, until one that ends a text. told is called with each;
   what it returns ends the continuation unless it is 0. */
static int continue_ids(const mote_model *m, const int32_t *ids, int count, int most, int (*told)(void *user, int32_t id), void *user,
                        mote_error *err) {
    definition d;
    if (count < 1) return fail(err, MOTE_EINVAL, "a text without tokens, expected one or more");
    if (count >= m->c.context_max)
        return fail(err, MOTE_ECONTEXT, "the text has %d tokens, expected less than the context, %d", count, m->c.context_max);
    most = min_int(most, m->c.context_max - count);
    if (!definition_open(&d, m, count + most)) return fail_memory(err);
    for (int i = 0; i < count; i++) define_token(&d, ids[i], d.logits);
    int32_t id = 0;
    for (int i = 0; i < most && !d.unread.code; i++) {
        id = best_token(m, d.logits);
        if (id < 0 || is_eos(m, id) || told(user, id)) break;
        if (i + 1 < most) define_token(&d, id, d.logits);
    }
    definition_close(&d);
    if (d.unread.code) return fail(err, d.unread.code, "%.480s", d.unread.message);
    return id < 0 ? fail(err, MOTE_EFORMAT, "a logit is not a number: are the weights damaged?") : MOTE_OK;
}

static int print_token(void *user, int32_t id) {
    const mote_model *m = (const mote_model *)user;
    size_t n;
    const char *bytes = tokenizer_token(m->text, id, &n);
    return bytes && (fwrite(bytes, 1, n, stdout) < n || fflush(stdout));
}

/* Of the text's tokens, after the one that texts of this model begin with. */
static int continue_text(const mote_model *m, const char *text, int most, mote_error *err) {
    const text_range none_from_outside = {0, 0};
    buf ids;
    memset(&ids, 0, sizeof ids);
    const int begins = m->text->begin >= 0;
    if (begins) buf_add(&ids, &m->text->begin, sizeof m->text->begin);
    int code = tokenizer_encode(m->text, text, strlen(text), &none_from_outside, 0, &ids, err);
    const int32_t *id = (const int32_t *)(const void *)ids.data;
    size_t count = ids.size / sizeof *id;
    if (begins && count > 1 && id[1] == *id) id++, count--;       /* the text has it itself */
    if (!code) code = continue_ids(m, id, count < INT_MAX ? (int)count : INT_MAX, most, print_token, (void *)(uintptr_t)m, err);
    buf_free(&ids);
    return code;
}

static int complain(int code, const char *what) {
    fprintf(stderr, "reference: %s\n", what);
    return code;
}

/* ./reference DIR TEXT [TOKENS] */
int main(int argc, char **argv) {
    static const char usage[] = "continues a text, greedily, by the definitions of mote's layers alone: naive, and slow\n"
                                "usage: ./reference DIR TEXT [TOKENS]";
    const char *dir = argc > 1 ? argv[1] : "models/demo", *text = argc > 2 ? argv[2] : "Once upon a time";
    char *end = NULL;
    const long most = argc > 3 ? strtol(argv[3], &end, 10) : TOKENS;
    mote_model m;
    mote_error err = {0, ""};
    if (argc == 2 || argc > 4) return complain(2, usage);
    if (argc > 3 && (end == argv[3] || *end || most < 1 || most > TOKENS_MOST)) return complain(2, "TOKENS must be a number from 1 to 1048576");
    if (argc == 1) complain(0, usage);
    int code = open_model(&m, dir, &err);
    if (argc == 1 && !code) fputs(text, stdout);                  /* the bundled model's, to begin with */
    if (!code) code = continue_text(&m, text, (int)most, &err);
    close_model(&m);
    if (code) return complain(1, err.message);
    putchar('\n');
    return fflush(stdout) || ferror(stdout) ? complain(1, strerror(errno)) : 0;
}
