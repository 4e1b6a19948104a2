/* cuda/launch.cu: what all kernels share: the stages, the queue that launches go to, and how one is launched.

   Decoding moves bytes: a step reads every weight it needs once, and uses it for one to four token rows. So a step is a
   chain of some 250 small kernels that each stream the weights of one stage, and what decides is that the stream never
   stops between them. Programmatic dependent launch makes the next kernels resident while this one still runs; each asks
   for its first weights, which never change, before it waits for its predecessor (pdl_wait), and touches nothing else
   before that (but see pdl_launch_dependents and gpu_tag). Every kernel waits, also one that needs nothing, so that "all before me is
   complete" holds along the whole chain. The chain is captured once as a graph: what differs from step to step is in device
   memory (step_parameters). */

#include <cuda_fp16.h>
#include <cuda_runtime.h>

enum {
    GPU_THREADS = 256, GPU_WARPS = GPU_THREADS / 32,        /* of every block */
    GPU_ROWS = 4,                                           /* most token rows of a step */
    GPU_SHARED = 101376,                                    /* most shared memory a block may use: what SM12x grants */
    GPU_SHARED_FREE = 32 * 1024,                            /* beyond it (48 KB with a kernel's own) one has to ask */
    GPU_PREFETCH_SHARE = 5                                            /* of the L2 1/5 is for what comes next */
};

/* The stages, in the order of the names below; a step can be cut down to some of them, to time these alone. */
enum gpu_stage {
    GPU_EMBED, GPU_IN_PROJ, GPU_DELTA, GPU_OUT_PROJ, GPU_QKV, GPU_ATTEND, GPU_O_PROJ, GPU_ROUTER, GPU_UP, GPU_DOWN,
    GPU_HEAD, GPU_MTP, GPU_STAGES
};

static const char *const gpu_stage_names[GPU_STAGES] = {
    "embed", "norm_in_proj", "conv_delta", "gated_norm_out", "norm_qkv", "rope_attend", "out", "norm_router",
    "experts_up", "experts_down", "head", "mtp"};

/* What changes from step to step. */
typedef struct step_parameters {
    int32_t position;            /* of the block's first row: tokens before it */
    int32_t replay;              /* rows of the logged block that were kept */
    int32_t ids[GPU_ROWS];       /* the block's tokens: behind the first, drafts to verify */
    uint32_t sequence;           /* number of the last answer to the host */
} step_parameters;

/* What carries tags (see gpu_tag). */
enum gpu_tagged { GPU_TAGGED_X, GPU_TAGGED_ROUTER, GPU_TAGGED };

typedef struct gpu_note {        /* a launch, for those who ask what ran */
    const void *kernel;
    enum gpu_stage stage;
    int layer;
    const char *format;          /* of the weights; "" without */
    dim3 grid;
    size_t shared;
} gpu_note;

/* Where launches go. The first failure stays; launches after it do nothing. */
typedef struct gpu_queue {
    cudaStream_t stream;
    cudaError_t status;
    const char *failed;          /* the operation */
    int sms;                     /* SMs to fill */
    int dependent;               /* programmatic dependent launch: from compute capability 9.0 on */
    uint32_t prefetch;               /* most bytes to bring into the L2 ahead of time */
    unsigned stages;             /* bit set of those to run */
    enum gpu_stage as;           /* GPU_STAGES, or the stage that all launches count as (the MTP layer's) */
    int layer;
    int *writes;                 /* [GPU_TAGGED] how often each was written in this step; NULL: nothing is tagged */
    gpu_note *notes;             /* of the launches, up to note_capacity; NULL: none kept */
    int note_count, note_capacity;
} gpu_queue;

static int gpu_check(gpu_queue *q, cudaError_t status, const char *what) {
    if (status != cudaSuccess && q->status == cudaSuccess) {
        q->status = status;
        q->failed = what;
    }
    return q->status == cudaSuccess;
}

/* Lets a kernel have `shared` bytes of dynamic shared memory. Beyond the usual it asks for as much as a block may have:
   the limit is the kernel's, not the launch's, and other threads set it for their sessions at the same time. */
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

/* Blocks of a kernel that run at once on the SMs to fill, but at most `most`. */
template <class P> static int gpu_blocks(gpu_queue *q, void (*kernel)(P), size_t shared, int64_t most) {
    int per_sm = 0;
    gpu_allow_shared(q, (const void *)kernel, shared, "occupancy");
    gpu_check(q, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, GPU_THREADS, shared), "occupancy");
    int64_t blocks = (int64_t)(per_sm < 1 ? 1 : per_sm) * q->sms;
    return (int)(blocks < most ? blocks : most);
}
