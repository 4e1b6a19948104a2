/* cuda/launch.cu: what all kernels share: the stages, the queue that launches go to, and the launch itself. Uses the
   CUDA runtime alone; must not know weights, parameters of layers or sessions.

   Decoding is bound by memory bandwidth: a step reads every weight it needs once and uses it for one to four token rows.
   It is a chain of some 250 small kernels, each of which streams the weights of one stage, and it is fast if the stream
   never stops between two of them.

   Programmatic dependent launch (PDL, from compute capability 9.0 on) bridges the gaps. Every launch of the chain has
   the attribute programmaticStreamSerialization: a kernel starts once all blocks of its predecessor have called
   griddepcontrol.launch_dependents (pdl_launch_dependents) or ended, while the predecessor still runs. It loads its first
   weights, which never change, and only then calls griddepcontrol.wait (pdl_wait). What else it may do before that stands
   in cuda/handoff.cu.

   Completion is transitive. That a kernel's predecessor is complete must imply that all kernels before it are, so every
   block calls pdl_wait before it ends, in one warp at least, even if it needs nothing from its predecessor. Only idle
   blocks of rope_attend (splits that hold no positions) return without it: they read step_parameters and constants and
   store nothing, and each kv head has a block that does wait, so the kernel as a whole still completes after its
   predecessor.

   The chain is captured once as a CUDA graph. What changes from step to step is in device memory (step_parameters). */

#include <cuda_fp16.h>
#include <cuda_runtime.h>

enum {
    GPU_THREADS = 256, GPU_WARPS = GPU_THREADS / 32,        /* of every block */
    GPU_ROWS = 4,                                           /* most token rows of a step */
    GPU_SHARED = 101376,                                    /* most shared memory of a block: the limit of SM12x */
    GPU_SHARED_FREE = 32 * 1024,                            /* dynamic, without cudaFuncSetAttribute: 48 KB with static */
    GPU_PREFETCH_SHARE = 5                                  /* 1/5 of the L2 is for prefetched weights */
};

/* The stages, in the order of the names below. A step can be cut down to some of them, to time these alone. */
enum gpu_stage {
    GPU_EMBED, GPU_IN_PROJ, GPU_DELTA, GPU_OUT_PROJ, GPU_QKV, GPU_ATTEND, GPU_O_PROJ, GPU_ROUTER, GPU_UP, GPU_DOWN,
    GPU_HEAD, GPU_MTP, GPU_STAGES
};

static const char *const gpu_stage_names[GPU_STAGES] = {
    "embed", "norm_in_proj", "conv_delta", "gated_norm_out", "norm_qkv", "rope_attend", "out", "norm_router",
    "experts_up", "experts_down", "head", "mtp"};

/* What changes from step to step, in device memory. */
typedef struct step_parameters {
    int32_t position;            /* of the first token row: tokens before it */
    int32_t replay;              /* rows in the DeltaNet log, those of the last step, that were accepted */
    int32_t ids[GPU_ROWS];       /* tokens of the rows: behind the first, drafts to verify */
    uint32_t sequence;           /* number of the last answer to the host */
} step_parameters;

/* Buffers that are handed on by tags (see gpu_tag): the residual x, and the router's logits. */
enum gpu_tagged { GPU_TAGGED_X, GPU_TAGGED_ROUTER, GPU_TAGGED };

typedef struct gpu_note {        /* a recorded launch, to report what ran */
    const void *kernel;
    enum gpu_stage stage;
    int layer;
    const char *format;          /* of the weights; "" without */
    dim3 grid;
    size_t shared;
} gpu_note;

/* Where launches go. The first failure is kept; launches after it do nothing. */
typedef struct gpu_queue {
    cudaStream_t stream;
    cudaError_t status;
    const char *failed;          /* the operation */
    int sms;                     /* SMs to fill */
    int dependent;               /* programmatic dependent launch: from compute capability 9.0 on */
    uint32_t prefetch;           /* most bytes to prefetch into the L2 for a later kernel */
    unsigned stages;             /* bit set of those to run */
    enum gpu_stage as;           /* GPU_STAGES, or the stage that all launches count as (GPU_MTP) */
    int layer;
    int *writes;                 /* [GPU_TAGGED] how often each buffer was stored in this step; NULL: no tags */
    gpu_note *notes;             /* one a launch, up to note_capacity; NULL: none kept */
    int note_count, note_capacity;
} gpu_queue;

static int gpu_check(gpu_queue *q, cudaError_t status, const char *what) {
    if (status != cudaSuccess && q->status == cudaSuccess) {
        q->status = status;
        q->failed = what;
    }
    return q->status == cudaSuccess;
}

/* Lets a kernel have `shared` bytes of dynamic shared memory. Above GPU_SHARED_FREE it raises the limit to the most a
   block may have, not to `shared`: the limit is an attribute of the kernel, not of the launch, and threads of other
   sessions set it at the same time. */
static void gpu_allow_shared(gpu_queue *q, const void *kernel, size_t shared, const char *what) {
    cudaFuncAttributes own;
    if (shared <= GPU_SHARED_FREE || !gpu_check(q, cudaFuncGetAttributes(&own, kernel), what)) return;
    gpu_check(q, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      GPU_SHARED - (int)own.sharedSizeBytes), what);
}

/* Launches kernel(*p) on x * y blocks of GPU_THREADS threads with `shared` bytes of dynamic shared memory. */
template <class P>
static void gpu_launch(gpu_queue *q, enum gpu_stage stage, const char *format, void (*kernel)(P), int x, int y,
                       size_t shared, const P *p) {
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute dependent = {};
    if (q->as != GPU_STAGES) stage = q->as;
    if (q->status != cudaSuccess || !(q->stages >> stage & 1)) return;
    if (q->notes && q->note_count < q->note_capacity) {
        gpu_note *n = &q->notes[q->note_count++];
        n->kernel = (const void *)kernel;
        n->stage = stage;
        n->layer = q->layer;
        n->format = format;
        n->grid = dim3((unsigned)x, (unsigned)y);
        n->shared = shared;
    }
    dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    dependent.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = dim3((unsigned)x, (unsigned)y);
    c.blockDim = dim3(GPU_THREADS);
    c.dynamicSmemBytes = shared;
    c.stream = q->stream;
    c.attrs = &dependent;
    c.numAttrs = q->dependent ? 1 : 0;
    gpu_allow_shared(q, (const void *)kernel, shared, gpu_stage_names[stage]);
    gpu_check(q, cudaLaunchKernelEx(&c, kernel, *p), gpu_stage_names[stage]);
}

/* Blocks of a kernel that are resident at once on the SMs to fill (its occupancy), but at most `most`. */
template <class P> static int gpu_blocks(gpu_queue *q, void (*kernel)(P), size_t shared, int64_t most) {
    int per_sm = 0;
    gpu_allow_shared(q, (const void *)kernel, shared, "occupancy");
    gpu_check(q, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, GPU_THREADS, shared), "occupancy");
    int64_t blocks = (int64_t)(per_sm < 1 ? 1 : per_sm) * q->sms;
    return (int)(blocks < most ? blocks : most);
}
