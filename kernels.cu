/* kernels.cu: the spine of the mathematics. The stages of the forward pass, and nothing of files, names or sessions; of
   engine.h it uses MOTE_ROWS_MAX and mote_error alone.

   A stage computes a block of T token rows, in C for the CPU and in CUDA. What all of them are tested against are the definitions,
   layers/<kind>/definition.c and diagnose/definition.c: the formulas once, whole and naive. Rules all stages keep:
   - The arithmetic of a row does not depend on T or on the other rows: same operations, same order, same bits.
   - Every output element is computed by one thread, so that two runs give the same bits.
   - Weights stay as stored and become float on use; activations, KV and state are float.
   Notation: row-major; W[out][in], x[T][in]; `rms(x) = x / sqrt(mean(x^2) + eps)`.

   Only spines include rooms, in reading order. Rooms ending in .c are C11 and C++17 alike; those ending in .cu are for nvcc
   alone, which this file sees to. */

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif
#ifdef __aarch64__
#include <arm_neon.h>
#endif

#include "engine.h"

/* A struct whose fields are named leaves the others 0. C does not ask about them. */
#ifdef __cplusplus
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#endif

enum {
    STEP_ROWS = 4,               /* token rows that the kernels of a step take at once; longer blocks are taken in turns of so many */
    PASS_ROWS_MAX = 64           /* token rows of a pass of several sessions */
};
static_assert(MOTE_ROWS_MAX % STEP_ROWS == 0, "a block that may be kept in part is whole turns");

/* ---- 1. Numbers, weight formats, and what the CPU computes with --------------------------------------------------- */

#include "cpu/simd.c"
#include "formats/numbers.c"
#include "cpu/layout.c"
#include "cpu/unpack.c"
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
#include "cpu/threads.c"

/* The products of weight rows and token rows, for each level of processor. */
enum {
    TOKEN_BATCH = 48,            /* token rows in one call; a multiple of all TOKENS */
    FEW_ROWS = 4,                /* token rows for which there are loops of their own */
    ROW_BLOCK = 16,              /* weight rows in one call */
    STREAM_COLS = 64,            /* columns that decoding takes at a time */
    TILE_COLS = 256              /* columns turned into floats at a time: ROW_BLOCK rows of them stay in L1 */
};
#include "cpu/limbs.c"
#include "cpu/codes.c"
#include "cpu/quarter_codes.c"
#include "cpu/scales.c"
#include "cpu/nibble_rows.c"
#ifdef LEVELS
#define LEVEL V4
#define LANES 16
#define TOKENS 6
#define SCALED_SUMS 0
#define FOR(name) name##_v4
#include "cpu/products.c"
#include "cpu/quarter_products.c"
#include "cpu/nibbles.c"
#define LEVEL V3
#define LANES 8
#define TOKENS 3
#define SCALED_SUMS 1
#define FOR(name) name##_v3
#include "cpu/products.c"
#include "cpu/quarter_products.c"
#include "cpu/nibbles.c"
#endif
#define LEVEL
#define LANES 4
#define TOKENS 4
#define SCALED_SUMS 0
#define FOR(name) name##_plain
#include "cpu/products.c"
#include "cpu/quarter_products.c"
#include "cpu/nibbles.c"
#include "cpu/matrix.c"
#include "cpu/math.c"
#include "exchange/exchange.c"
#include "exchange/threads.c"

/* ---- 2. The stages on the CPU --------------------------------------------------------------------------------------- */

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
#include "layers/schedule.c"
#include "layers/layer.c"
#include "layers/kv.c"
#include "layers/spans.c"
#include "layers/embed.c"
#include "layers/streams.c"
#include "layers/deltanet/cpu.c"
#include "layers/deltanet/schedule.c"
#include "layers/attention/index.c"
#include "layers/attention/cpu.c"
#include "layers/attention/schedule.c"
#include "layers/mla/cpu.c"
#include "layers/mamba/cpu.c"
#include "layers/mamba/schedule.c"
#include "layers/mla/schedule.c"
#include "layers/ngrams/cpu.c"
#include "layers/ngrams/schedule.c"
#include "layers/moe/cpu.c"
#include "layers/moe/schedule.c"
#include "layers/mlp/cpu.c"
#include "layers/mlp/schedule.c"
#include "layers/vision/cpu.c"
#include "layers/kinds.c"
#include "layers/head.c"

#ifdef __CUDACC__
/* ---- 3. What CUDA kernels share ------------------------------------------------------------------------------------ */

#include "cuda/schedule.c"
#include "cuda/launch.cu"
#include "cuda/handoff.cu"
#include "cuda/simulation.cu"
#include "exchange/peers.cu"
#include "exchange/nccl.cu"
#include "exchange/hosts.cu"
#include "cuda/numbers.cu"
#include "cuda/panels.cu"
#include "formats/fragments.cu"
#include "formats/f32.cu"
#include "formats/f16.cu"
#include "formats/bf16.cu"
#include "formats/fp8_block.cu"
#include "formats/nvfp4.cu"
#include "formats/fp8_row.cu"
#include "formats/mxfp4.cu"
#include "formats/int4.cu"
#include "formats/int4_fine.cu"
#include "formats/dispatch.cu"
#include "cuda/epilogue.cu"
#include "cuda/quantise.cu"
#include "cuda/fragments.cu"
#include "cuda/tiles.cu"
#include "cuda/batch_rows.cu"
#include "cuda/launch_table.cu"
#include "cuda/projection.cu"
#include "cuda/shared_memory.cu"
#include "cuda/batch_tile.cu"
#include "cuda/batch_wide.cu"
#include "cuda/batch_narrow.cu"
#include "cuda/batch_split.cu"
#include "cuda/gemm_operands.cu"
#include "cuda/gemm.cu"
#include "cuda/product_launch.cu"
#include "cuda/prefill.cu"

/* ---- 4. The stages as CUDA kernels: decode, one to four token rows; prefill, the rows of a prompt -------------------- */

#include "layers/embed.cu"
#include "layers/deltanet/decode.cu"
#include "layers/deltanet/in_turn.cu"
#include "layers/deltanet/decode_launch.cu"
#include "layers/deltanet/shorten_log.cu"
#include "layers/deltanet/prefill.cu"
#include "layers/deltanet/prefill_scan.cu"
#include "layers/deltanet/prefill_launch.cu"
#include "layers/mamba/decode.cu"
#include "layers/mamba/decode_launch.cu"
#include "layers/mamba/prefill.cu"
#include "layers/mamba/prefill_scan.cu"
#include "layers/mamba/prefill_launch.cu"
#include "layers/attention/chunks.c"
#include "layers/attention/decode.cu"
#include "layers/attention/decode_chunk.cu"
#include "layers/attention/decode_fast.cu"
#include "layers/attention/decode_any.cu"
#include "layers/attention/index.cu"
#include "layers/attention/index_scores.cu"
#include "layers/attention/index_choose.cu"
#include "layers/attention/index_attend.cu"
#include "layers/attention/prefill.cu"
#include "layers/attention/prefill_tile.cu"
#include "layers/attention/prefill_attend.cu"
#include "layers/attention/decode_launch.cu"
#include "layers/attention/index_launch.cu"
#include "layers/attention/index_prefill.cu"
#include "layers/attention/prefill_launch.cu"
#include "layers/attention/decode_record.cu"
#include "layers/mla/decode.cu"
#include "layers/mla/absorb.cu"
#include "layers/mla/attend_fast.cu"
#include "layers/mla/attend_any.cu"
#include "layers/mla/values.cu"
#include "layers/mla/prefill.cu"
#include "layers/mla/prefill_launch.cu"
#include "layers/mla/decode_launch.cu"
#include "layers/ngrams/decode.cu"
#include "layers/ngrams/prefill.cu"
#include "layers/moe/decode.cu"
#include "layers/moe/routing.cu"
#include "layers/moe/place.cu"
#include "layers/moe/bring.cu"
#include "layers/moe/up.cu"
#include "layers/moe/up_lone.cu"
#include "layers/moe/down.cu"
#include "layers/moe/down_fixed.cu"
#include "layers/moe/down_row.cu"
#include "layers/moe/down_dealt.cu"
#include "layers/moe/down_own.cu"
#include "layers/moe/batch_route.cu"
#include "layers/moe/batch_up.cu"
#include "layers/moe/batch_down.cu"
#include "layers/moe/decode_launch.cu"
#include "layers/moe/prefill.cu"
#include "layers/vision/prefill.cu"
#include "layers/vision/prefill_attend.cu"
#include "layers/vision/prefill_launch.cu"
#include "layers/mlp/decode.cu"
#include "layers/mlp/prefill.cu"
#include "layers/streams.cu"
#include "layers/streams_prefill.cu"
#include "layers/kinds.cu"
#include "layers/head.cu"
#include "layers/mtp.cu"
#include "cuda/sampling.cu"
#endif
