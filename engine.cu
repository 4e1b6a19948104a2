/* engine.cu: the spine of the library. Checkpoint folder -> weights; sessions; the walk through the layers; the API.

   Read from top to bottom: what is included stands where it is needed first. Only the spines (this file, kernels.cu and
   tokenizer.c) include rooms.

     tokenizer.c, text/    text <-> token ids, chats -> prompts
     kernels.cu            numbers (formats/), the CPU's tools (cpu/), what parts of a model give each other (exchange/), the
                           stages as C and as CUDA (layers/), what kernels share (cuda/)
     images/               a PNG or JPEG file -> pixels, as a vision tower reads them
     checkpoint/           from untrusted files to named tensors in memory
     model/                a model: its struct, opening it, its weights, what mote_info says of it
     families/             what config.json says, which layers there are, what their tensors are called
     run/                  runners: devices at work, executors
     session/              a timeline, snapshots, files; opening sessions
     generate/             sampling, speculation, generating text, turns of a conversation
     diagnose/             measuring and testing the user's machine, synthetic models

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
#include <arpa/inet.h>
#include <dirent.h>
#include <float.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

/* The structs of options of version 0.3. What grows them later keeps these, and leaves no padding at the end: a program could
   have anything in it, and a newer library would read that as its next field. */
enum {
    OPTIONS_0_3 = END_OF(mote_options, quantize),
    SESSION_OPTIONS_0_3 = END_OF(mote_session_options, runner),
    GENERATION_0_3 = END_OF(mote_generation, thinking_budget),
    EMBEDDING_0_3 = END_OF(mote_embedding, dimensions)
};
static_assert(sizeof(mote_options) == END_OF(mote_options, drafter), "mote_options has padding at its end");
static_assert(sizeof(mote_session_options) == END_OF(mote_session_options, reserved), "mote_session_options has padding at its end");
static_assert(sizeof(mote_generation) == END_OF(mote_generation, reserved), "mote_generation has padding at its end");
static_assert(sizeof(mote_embedding) == END_OF(mote_embedding, dimensions), "mote_embedding has padding at its end");

/* The check of structs of options: copies one into one of `known` bytes, as its `size` says. first: what a size of 0 means.
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

/* ---- 1. Pictures; from a checkpoint folder to weights ------------------------------------------------------------ */

#include "exchange/sha256.c"
#include "images/picture.c"
#include "images/stb_image.h"
#include "images/stb.c"
#include "images/header.c"
#include "images/decode.c"
#include "images/resize.c"
#include "images/patches.c"
#include "checkpoint/callbacks.c"
#include "checkpoint/safetensors.c"
#include "checkpoint/folder.c"
#include "checkpoint/config.c"
#include "model/part.c"
#include "model/model.c"
#include "model/quantization_recipe.c"
#include "checkpoint/estimate.c"
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
#ifdef __CUDACC__
#include "checkpoint/device_cuda.cu"
#include "checkpoint/pinned_cuda.cu"
#include "checkpoint/load_cuda.cu"
#include "checkpoint/memory_cuda.cu"
#endif
#include "checkpoint/device.c"

/* ---- 2. Models --------------------------------------------------------------------------------------------------- */

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
#include "model/info.c"
#include "checkpoint/ends.c"
#include "checkpoint/generation.c"
#include "checkpoint/pooling.c"
#include "checkpoint/processor.c"
#include "model/devices.c"
#include "model/parts.c"
#include "exchange/wire.c"
#include "exchange/sockets.c"
#include "checkpoint/digest.c"
#include "workers/messages.c"
#include "workers/model.c"
#include "model/open.c"
#include "model/drafter.c"
#include "diagnose/diagnose.h"
#include "diagnose/parts.c"
#include "diagnose/random.c"
#include "diagnose/fill.c"
#include "diagnose/preset_configs.c"
#include "diagnose/synthetic.c"
#include "text/calls.c"

/* ---- 3. Runners: devices at work ----------------------------------------------------------------------------------- */

#include "run/costs.c"
#include "run/runner.c"
#include "run/stats.c"
#include "run/meeting.c"
#include "run/slot.c"
#include "run/tables.c"
#include "run/cpu/memory.c"
#include "run/cpu/vision.c"
#include "run/cpu/forward.c"
#include "run/cpu/drafter.c"
#include "workers/runner.c"
#include "run/members.c"
#include "run/group.c"
#ifdef __CUDACC__
#include "run/cuda/resident.cu"
#include "run/cuda/experts.cu"
#include "run/cuda/tables.cu"
#include "run/cuda/record.cu"
#include "run/cuda/step.cu"
#include "run/cuda/prefill.cu"
#include "run/cuda/pass.cu"
#include "run/cuda/turns.cu"
#include "run/cuda/drafter.cu"
#include "run/cuda/member.cu"
#include "run/cuda/vision.cu"
#include "run/cuda/runner.cu"
#endif
#include "run/executors.c"
#include "run/vision.c"
#include "run/features.c"
#include "workers/served.c"
#include "workers/refusals.c"
#include "workers/worker.c"
#include "workers/connections.c"

/* ---- 4. Sessions --------------------------------------------------------------------------------------------------- */

#include "session/spans.c"
#include "session/session.c"
#include "session/pieces.c"
#include "session/timeline.c"
#include "session/snapshot.c"
#include "session/files.c"
#include "session/pooling.c"
#include "session/feed.c"
#include "session/images.c"

/* ---- 5. Sampling, speculation, text ---------------------------------------------------------------------------------- */

#include "generate/grammar/decimal.c"
#include "generate/grammar/pattern.c"
#include "generate/grammar/automaton.c"
#include "generate/grammar/schema.c"
#include "generate/grammar/schema_values.c"
#include "generate/grammar/cases.c"
#include "generate/grammar/compile.c"
#include "generate/grammar/schema_kinds.c"
#include "generate/grammar/follow.c"
#include "generate/grammar/follow_values.c"
#include "generate/grammar/pairs.c"
#include "generate/grammar/call.c"
#include "generate/grammar/call_follow.c"
#include "generate/grammar/mask.c"
#include "generate/grammar/headers.c"
#include "generate/grammar/constraint.c"
#include "generate/copies.c"
#include "generate/decoder.c"
#include "generate/logprobs.c"
#include "generate/sampling.c"
#include "generate/step_many.c"
#include "generate/acceptance.c"
#include "generate/speculation.c"
#include "generate/verify.c"
#include "generate/thinking.c"
#include "generate/stops.c"
#include "generate/writer.c"
#include "generate/generate.c"
#include "generate/model_turn.c"
#include "generate/ask.c"
#include "generate/restore.c"
#include "session/open.c"
#include "session/plan.c"

/* ---- 6. Measuring and testing the machine -------------------------------------------------------------------------- */

#include "layers/definition.c"
#include "layers/deltanet/definition.c"
#include "layers/attention/definition.c"
#include "layers/mla/definition.c"
#include "layers/ngrams/definition.c"
#include "layers/mamba/definition.c"
#include "layers/moe/definition.c"
#include "layers/mlp/definition.c"
#include "layers/vision/definition.c"
#include "diagnose/definition.c"
#include "diagnose/trace.c"
#ifdef MOTE_DEFINITIONS                                        /* of tests */
#include "diagnose/definition_block.c"
#endif
#if defined __CUDACC__ || defined MOTE_DEFINITIONS             /* of mote selftest, and of tests */
#include "diagnose/sublayers.c"
#endif

#ifdef __CUDACC__
#include "diagnose/fill.cu"
#include "diagnose/work.c"
#include "diagnose/measure.cu"
#include "diagnose/measure_prefill.cu"
#include "diagnose/selftest.cu"
#include "diagnose/selftest_definition.cu"
#include "diagnose/selftest_formats.cu"
#include "diagnose/selftest_passes.cu"
#include "diagnose/selftest_prefill.cu"
#include "diagnose/selftest_mla.cu"
#include "diagnose/gpu.cu"
#else
#include "diagnose/no_gpu.c"
#endif

#include "diagnose/measure.c"
#include "diagnose/measure_images.c"
#include "diagnose/diagnose.c"
