/* engine.cu: the spine of the library. Checkpoint folder -> weights; sessions; the walk through the layers; the API.

   Read from top to bottom: what is included stands where it is needed first. Only the spines (this file, kernels.cu and
   tokenizer.c) include rooms.

     tokenizer.c, text/    text <-> token ids, chats -> prompts
     kernels.cu            numbers (formats/), the CPU's tools (cpu/), the stages as C and as CUDA (layers/), what kernels
                           share (cuda/)
     checkpoint/           from untrusted files to named tensors in memory
     families/             what config.json says, which layers there are, what their tensors are called
     session/              memory of a timeline, snapshots, files
     generate/             sampling, speculation, generating text, turns of a conversation
     diagnose/             measuring and testing the user's machine, made-up models

   All is one translation unit: C11 and C++17 for the CPU, with nvcc for the CPU and GPUs. Compile it with optimisation (-O3):
   the loops of cpu/ count on it. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE                            /* pread, sched_getaffinity, CLOCK_MONOTONIC under -std=c11 */
#endif

#include "engine.h"
#include "tokenizer.c"
#include "kernels.cu"

#ifdef __CUDACC__
#include <cuda.h>
#include <cxxabi.h>
#endif
#include <dirent.h>
#include <float.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>

static int cancelled(const mote_callbacks *c) {
    return c->cancel && c->cancel(c->user);
}

static void report(const mote_callbacks *c, const char *what, double fraction) {
    if (c->progress) c->progress(c->user, what, fraction);
}

__attribute__((format(printf, 2, 3))) static void notice(const mote_callbacks *c, const char *format, ...) {
    char line[512];
    va_list args;
    if (!c->log) return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    c->log(c->user, line);
}

/* Where a struct that ends with this field ends. */
#define END_OF(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))

/* The structs of options of version 0.3. What grows them later keeps these, and leaves no padding at the end: a program could
   have anything in it, and a newer library would read that as its next field. */
enum {
    OPTIONS_0_3 = END_OF(mote_options, quantize),
    SESSION_OPTIONS_0_3 = END_OF(mote_session_options, runner),
    GENERATION_0_3 = END_OF(mote_generation, thinking_budget)
};
static_assert(sizeof(mote_options) == END_OF(mote_options, quantize), "mote_options has padding at its end");
static_assert(sizeof(mote_session_options) == END_OF(mote_session_options, runner), "mote_session_options has padding at its end");
static_assert(sizeof(mote_generation) == END_OF(mote_generation, thinking_budget), "mote_generation has padding at its end");

/* The door for structs of options: copies one into one of `known` bytes, as its `size` says. first: what a size of 0 means.
   given NULL: the defaults. */
static int take_options(void *to, size_t known, size_t first, const void *given, const char *name, mote_error *err) {
    enum { SIZE_MOST = 1 << 16 };              /* more is no struct of any version */
    size_t size = first;
    memset(to, 0, known);
    if (given) memcpy(&size, given, sizeof size);
    if (!size) size = first;
    if (size < sizeof size || size > SIZE_MOST || size % sizeof(void *))       /* structs with pointers end at whole ones */
        return fail(err, MOTE_EINVAL, "%s.size is %zu, expected sizeof(%s) or 0", name, size, name);
    for (size_t i = known; given && i < size; i++)
        if (((const char *)given)[i])
            return fail(err, MOTE_EINVAL, "%s: byte %zu is not 0: version " MOTE_VERSION " does not have what it asks for", name, i);
    if (given) memcpy(to, given, size < known ? size : known);
    memcpy(to, &known, sizeof known);
    return MOTE_OK;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- 1. From a checkpoint folder to weights ---------------------------------------------------------------------- */

#include "checkpoint/safetensors.c"
#include "checkpoint/folder.c"
#include "checkpoint/config.c"
#include "checkpoint/estimate.c"

/* A tensor's type in a container is its type in the mathematics, of those that it can compute with. */
static_assert((int)TYPE_F32 == (int)DTYPE_F32 && (int)TYPE_F16 == (int)DTYPE_F16 && (int)TYPE_BF16 == (int)DTYPE_BF16 &&
              (int)TYPE_FP8 == (int)DTYPE_FP8, "container_types begins with the types of dtype");

/* The model: what all rooms that follow work on. */

enum module_kind {
    IN_EMBED, IN_HEAD, IN_DELTANET, IN_ATTENTION, IN_ROUTER, IN_EXPERTS, IN_SHARED, IN_NORMS, IN_MTP, MODULE_KINDS
};

static const char *const module_names[MODULE_KINDS] = {
    "embed_tokens", "lm_head", "deltanet", "attention", "router", "experts", "shared_expert", "norms", "mtp"};

struct mote_model {
    int holders;                               /* who has not closed it: the application, and each session (atomic) */
    config c;
    int gpu;                                   /* number of the GPU that holds the weights; -1: the CPU */
    int gpu_sms, gpu_cc;                       /* its SMs, and 90 for compute capability 9.0 */
    int gpu_shared;                            /* bytes of shared memory of an SM */
    uint32_t gpu_cache;                        /* bytes of its L2 */
    float bf16_factor;                         /* on a GPU: a power of two that brings all BF16 weights into F16's range */
    int gpu_integrated;                        /* its memory is the system's */
    char device[320];                          /* info.device */
    tokenizer *text;
    size_t longest_token;                      /* bytes */
    struct vocabulary *words;                  /* for masks: NULL until it is needed, see model_vocabulary */
    chat_family family;
    int has_template;                          /* a chat template is there, known or not */
    buf eos;                                   /* int32_t: the tokens that end a text, in order */
    mote_sampling sampling;                    /* of generation_config.json */
    mote_info info;
    mote_module modules[MODULE_KINDS];
    char module_dtypes[MODULE_KINDS][128];

    mote_layers kinds[LAYER_KIND_COUNT];       /* of info */
    mote_size sizes[LAYER_KIND_COUNT][LAYER_SIZES];
    const char *stages[STAGE_COUNT];

    char *arena;                               /* all weights, in the device's memory */
    size_t arena_size;
    matrix embed_tokens, lm_head;
    const float *norm;
    layer *layers;
    layer_shapes largest;                      /* of each kind, the largest sizes that a layer has */
    matrix *experts;                           /* the gate, up and down matrices of all layers */
    float *kv_scales;                          /* on a GPU: the host's copies of all k_scale and v_scale */
    int has_mtp;
    layer mtp;
    matrix mtp_fc;
    const float *mtp_norm_embedding, *mtp_norm_hidden, *mtp_norm;
    int draft_rows;                            /* as asked for */
    int quantize;                              /* as asked for: MOTE_QUANTIZE_... */
    matrix draft_head;                         /* the first rows of lm_head: see bind_draft_head */
    size_t draft_at;                           /* where in the arena its copy is */
    uint64_t fingerprint;                      /* of config.json's numbers and of samples of all weights: sample_bytes */
};

#include "checkpoint/claims.c"
#include "checkpoint/items.c"
#include "checkpoint/find.c"
#include "checkpoint/bind.c"
#include "families/common.c"
#include "families/qwen3_5_moe.c"
#include "families/qwen3_moe.c"
#include "families/families.c"
#include "checkpoint/device.c"
#include "checkpoint/load.c"
#ifdef __CUDACC__
#include "checkpoint/load_cuda.cu"
#endif
#include "checkpoint/info.c"
#include "checkpoint/complete.c"

/* ---- 2. Models --------------------------------------------------------------------------------------------------- */

const char *mote_version(void) {
    return MOTE_VERSION;
}

/* Binds all tensors of the model that m->c describes: to files, or, with a recipe `made`, to none. */
static int model_bind_to(mote_model *m, checkpoint *files, const struct recipe *made, binder *b,
                         const mote_callbacks *callbacks, mote_error *err) {
    b->files = files;
    b->m = m;
    b->made = made;
    b->err = err;
    bind_model(b, callbacks);
    if (b->code) return b->code;
    model_module_dtypes(m, b);
    model_info(m);
    return MOTE_OK;
}

/* Reads config.json and all headers and binds all tensors. describes: weights are not wanted, so they need not be there; if
   none is, tensors are those that a published checkpoint has. The binder and files are the caller's to free in any case. */
static int model_bind(mote_model *m, checkpoint *files, binder *b, const char *dir, int describes,
                      const mote_callbacks *callbacks, mote_error *err) {
    const struct recipe *made = NULL;
    memset(b, 0, sizeof *b);
    memset(files, 0, sizeof *files);
    claims said;
    int code = config_read(&m->c, dir, err), there = !describes || folder_has_weights(dir);
    files->dir = dir;
    if (!code) code = there ? checkpoint_open(files, dir, describes, err) : estimate_recipe(dir, m->quantize, &made, err);
    if (!code && !there) code = model_bind_to(m, files, made, b, callbacks, err);
    else if (!code) {
        claims_read(&said, dir);
        b->said = &said;
        code = model_bind_to(m, files, NULL, b, callbacks, err);
        if (!code) claims_notice(&said, dir, callbacks);
        claims_free(&said);
    }
    if (!code) m->fingerprint = config_fingerprint(&m->c);
    if (!code && m->quantize) m->fingerprint = fnv1a(m->fingerprint, &m->quantize, sizeof m->quantize);
    m->info.estimated = !there || files->table.without_data;
    return code;
}

static int model_open_weights(mote_model *m, const char *dir, int load, const mote_callbacks *callbacks,
                              mote_error *err) {
    checkpoint files;
    binder b;
    int code = model_bind(m, &files, &b, dir, !load, callbacks, err);
    if (!code && load) code = load_weights(&b, callbacks, err);
    buf_free(&b.items);
    checkpoint_close(&files);
    return code;
}

#include "checkpoint/generation.c"

/* Tokenizer and chat template, each where the folder has it; need_one: neither is an error. */
static int model_open_text(mote_model *m, const char *dir, int need_one, const mote_callbacks *callbacks, mote_error *err) {
    buf template_text;
    memset(&template_text, 0, sizeof template_text);
    int code = template_read(dir, &template_text, err);
    if (!code && (file_exists(dir, "tokenizer.json") || (need_one && !template_text.size)))
        code = tokenizer_open(&m->text, dir, err);
    for (int32_t id = 0; m->text && id < tokenizer_vocab(m->text); id++) {
        size_t n;
        if (tokenizer_token(m->text, id, &n)) m->longest_token = larger(m->longest_token, n);
    }
    if (!code && template_text.size) {
        int modified;
        m->has_template = 1;
        m->family = chat_detect(template_text.data, template_text.size, &modified);
        const chat_marks *marks = chat_marks_of(m->family);
        m->info.chat_template = marks ? marks->name : NULL;
        if (marks && modified)
            notice(callbacks, "%s: the chat template is a modified %s template: used as %s's%s", dir, marks->name, marks->name,
                   m->family & CHAT_QUIET ? ", which thinks only when asked to" : "");
    }
    buf_free(&template_text);
    return code;
}

int mote_open(const char *dir, const mote_options *options, mote_model **model, mote_error *error) {
    mote_options o;
    mote_error failure;
    int code = take_options(&o, sizeof o, OPTIONS_0_3, options, "mote_options", error);
    if (code) return code;
    if (!dir || !model || o.parts < MOTE_EVERYTHING || o.parts > MOTE_DESCRIPTION || o.draft_rows < 0 ||
        o.quantize < MOTE_QUANTIZE_OFF || o.quantize > MOTE_QUANTIZE_FP8)
        return fail(error, MOTE_EINVAL, "mote_open: needs a folder, a place for the model, parts of MOTE_EVERYTHING..., "
                                        "draft_rows of 0 or more, quantize of MOTE_QUANTIZE_...");
    if (!error) error = &failure;
    mote_model *m = model_new(o.device, o.parts == MOTE_TEXT_ONLY, &o.callbacks, error);
    if (!m) return error->code;
    if (o.draft_rows) m->draft_rows = o.draft_rows;
    m->quantize = o.quantize;
    code = generation_read(m, dir, &o.callbacks, error);
    if (!code && o.parts == MOTE_TEXT_ONLY) code = model_open_text(m, dir, 1, &o.callbacks, error);
    if (!code && o.parts != MOTE_TEXT_ONLY) {
        code = o.parts != MOTE_WEIGHTS_ONLY ? model_open_text(m, dir, 0, &o.callbacks, error) : MOTE_OK;
        if (!code) code = model_open_weights(m, dir, o.parts != MOTE_DESCRIPTION, &o.callbacks, error);
    }
    if (!code && m->text && m->c.layers && tokenizer_vocab(m->text) > m->c.vocab)
        code = fail(error, MOTE_EFORMAT, "%s/tokenizer.json: token ids up to %d, but config.json says vocab_size is %d",
                    dir, tokenizer_vocab(m->text) - 1, m->c.vocab);
    if (!code) code = model_ends(m, dir, error);
    if (code) {
        mote_close(m);
        return code;
    }
    *model = m;
    return MOTE_OK;
}

#include "diagnose/synthetic.c"

static void vocabulary_free(struct vocabulary *v);

static const mote_model *model_hold(const mote_model *model) {
    __atomic_add_fetch(&((mote_model *)model)->holders, 1, __ATOMIC_RELAXED);
    return model;
}

void mote_close(mote_model *model) {
    if (!model || __atomic_sub_fetch(&model->holders, 1, __ATOMIC_ACQ_REL)) return;
    tokenizer_free(model->text);
    vocabulary_free(model->words);
    free(model->c.mixers);
    free(model->layers);
    free(model->experts);
    free(model->kv_scales);
    buf_free(&model->eos);
    arena_close(model);
    free(model);
}

const mote_info *mote_model_info(const mote_model *model) {
    return model ? &model->info : NULL;
}

#include "text/calls.c"

/* ---- 3. Runners: devices at work ----------------------------------------------------------------------------------- */

#include "run/runner.c"
#include "run/cpu.c"
#ifdef __CUDACC__
#include "run/cuda.cu"
#include "run/step.cu"
#include "run/prefill.cu"
#include "run/cuda_runner.cu"
#endif
#include "run/executors.c"

/* ---- 4. Sessions --------------------------------------------------------------------------------------------------- */

#include "session/session.c"
#include "session/plan.c"
#include "session/timeline.c"
#include "generate/logprobs.c"
#include "session/feed.c"

/* ---- 5. Sampling, speculation, text, snapshots --------------------------------------------------------------------- */

#include "generate/vocabulary.c"
#include "generate/decimal.c"
#include "generate/pattern.c"
#include "generate/automaton.c"
#include "generate/schema.c"
#include "generate/schema_values.c"
#include "generate/compile.c"
#include "generate/schema_kinds.c"
#include "generate/follow.c"
#include "generate/follow_values.c"
#include "generate/call.c"
#include "generate/mask.c"
#include "generate/constraint.c"
#include "generate/sampling.c"
#include "generate/speculation.c"
#include "generate/verify.c"
#include "session/snapshot.c"
#include "session/files.c"
#include "generate/thinking.c"
#include "generate/stops.c"
#include "generate/writer.c"
#include "generate/generate.c"
#include "generate/ask.c"
#include "generate/restore.c"

/* ---- 6. Measuring and testing the machine -------------------------------------------------------------------------- */

#ifdef __CUDACC__
#include "diagnose/measure.cu"
#include "diagnose/measure_prefill.cu"
#include "diagnose/selftest.cu"
#include "diagnose/selftest_formats.cu"
#include "diagnose/selftest_prefill.cu"
#include "diagnose/gpu.cu"
#else
#include "diagnose/no_gpu.c"
#endif

#include "diagnose/measure.c"
#include "diagnose/diagnose.c"
