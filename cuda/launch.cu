/* cuda/launch.cu: how kernels are recorded, linked (cuda/schedule.c) and launched. Uses the CUDA runtime alone; must not know
   weights, parameters of layers or sessions.

   Decoding is bound by memory bandwidth: a step reads every weight it needs once and uses it for one to four token rows.
   It is a chain of some 250 small kernels, each of which streams the weights of one stage, and it is fast if the stream
   never stops between two of them.

   Programmatic dependent launch (PDL, from compute capability 9.0 on) bridges the gaps. Every launch of the chain has
   the attribute programmaticStreamSerialization: a kernel starts once all blocks of its predecessor have called
   griddepcontrol.launch_dependents (pdl_launch_dependents) or ended, while the predecessor still runs. It loads its first
   weights, which never change, and only then calls griddepcontrol.wait (pdl_wait). What else it may do before that, and what
   follows for those after it, are the rules of cuda/schedule.c.

   Completion is transitive. That a kernel's predecessor is complete must imply that all kernels before it are, so every
   block calls pdl_wait before it ends, in one warp at least, even if it needs nothing from its predecessor. Only idle
   blocks of rope_attend (splits that hold no positions) return without it: they read step_parameters and constants and
   store nothing, and each kv head has a block that does wait, so the kernel as a whole still completes after its
   predecessor.

   The chain is captured once as a CUDA graph. What changes from step to step is in device memory (step_parameters). */

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <type_traits>

enum {
    GPU_THREADS = 256, GPU_WARPS = GPU_THREADS / 32,        /* of every block */
    GPU_SHARED = 101376,                                    /* most shared memory of a block: the limit of SM12x */
    GPU_SHARED_FREE = 48 * 1024,                            /* static and dynamic, without cudaFuncSetAttribute */
    GPU_PREFETCH_SHARE = 5                                  /* 1/5 of the L2 is for prefetched weights */
};

/* The parameters that change from step to step, in device memory: there the device finds what a token_row says. Rows of a step are those of
   text: row t has index + t, and on all axes the position index + t - lag. A step's last kernels write the next one's index and
   tokens, and leave the lag, which only rows of an image change: those are a prompt's, whose table is in device memory as the host
   has it (prefill_rows). Whose a row is says a table beside the steps (gpu_pass_table.sequence_of). */
typedef struct step_parameters {
    int32_t index;               /* of the first token row: rows of its session before it */
    int32_t lag;                 /* index less position; read with the index */
    int32_t accepted;            /* rows of the last block, those that were accepted: the last one's final row is the timeline's */
    int32_t replay;              /* of these, the first ones of the DeltaNet log, those that are not in S yet */
    int32_t ids[MOTE_ROWS_MAX];  /* tokens of the rows: after the first, drafts to verify */
    uint32_t sequence;           /* number of the last answer to the host */
    int32_t first, rows;         /* of a sequence in a pass of several: its first token row, and how many */
    int32_t context;             /* of the resident slot: most tokens */
    int32_t kv_granules;         /* KV_GRANULEs of these beyond those of the slot whose addresses were captured; */
    int32_t past_ring;           /* of them those that rings have no rows for */
    int64_t shift;               /* bytes from that slot's memory to its own */
} step_parameters;

/* The slot that a kernel works for. Kernels are captured with addresses of one slot. If others become resident, too, step tells how
   far from it they lie. This load costs a microsecond where S or keys are waited for, so a runner of one session does without. */
typedef struct slot_view {
    const step_parameters *step; /* NULL: the slot is the one that was captured */
    int context;                 /* its tokens */
} slot_view;

/* Which slots a kernel of a mixer works for: the captured one; the resident one; or each of a pass's sequences, one for each blockIdx.z,
   whose steps lie one after the other. Or what its parameters say, where that need not be a constant. */
enum slot_use { SLOT_CAPTURED, SLOT_RESIDENT, SLOT_EACH, SLOT_ANY };

/* The same of a kernel that is given the sequence of each token row; NULL: there is one. */
__device__ __forceinline__ const step_parameters *gpu_step_of_row(const step_parameters *step, const uint8_t *sequences, int row) {
    return sequences ? step + sequences[row] : step;
}

/* Of T token rows of one slot those that come before the ones that it logs: before the last block that may be kept in part. */
static __host__ __device__ __forceinline__ int gpu_before_log(int T) {
    return (T - 1) / MOTE_ROWS_MAX * MOTE_ROWS_MAX;
}

/* The token rows of so many turns. */
__device__ __forceinline__ int gpu_rows_of_turns(const step_parameters *step, int turns) {
    return step[turns - 1].first + step[turns - 1].rows;
}

/* Bytes from the captured slot to the resident one. Neither this nor step->context changes while a graph runs. */
__device__ __forceinline__ int64_t gpu_slot_shift(const slot_view *slot) {
    return slot->step ? __ldg((const long long *)&slot->step->shift) : 0;
}

/* Where the resident slot has what the captured one has at this address. */
__device__ __forceinline__ char *gpu_in_slot(const slot_view *slot, const void *captured) {
    return (char *)captured + gpu_slot_shift(slot);
}

/* The view of the slot whose step this is. */
__device__ __forceinline__ slot_view gpu_slot_of(const slot_view *slot, const step_parameters *step) {
    return {slot->step ? step : NULL, slot->context};
}

__device__ __forceinline__ int gpu_slot_context(const slot_view *slot) {
    return slot->step ? __ldg(&slot->step->context) : slot->context;
}

/* A recorded launch. */
typedef struct gpu_launch_record {
    const void *kernel;
    const char *format;          /* of the weights; "" without */
    dim3 grid;
    size_t shared;
    alignas(16) char parameters[1296];                      /* by value; they begin with the node's handoff */
} gpu_launch_record;

/* Where kernels are recorded, and from where they are launched. The first failure is kept; after it nothing is done. */
typedef struct gpu_queue {
    cudaStream_t stream;
    cudaError_t status;
    const char *failed;          /* the operation, or the rule that the schedule breaks */
    int sms;                     /* SMs to fill */
    int rows;                    /* most token rows of a step */
    int shared;                  /* most bytes of shared memory that the blocks of an SM can have together */
    int dependent;               /* programmatic dependent launch: from compute capability 9.0 on */
    uint32_t prefetch;           /* most bytes to prefetch into the L2 for a later kernel */
    unsigned stages;             /* bit set of those to launch; ALL_STAGES but to time or to test some alone */
    const struct gpu_batch *batch;                          /* scratch of projections of many rows (cuda/batch_rows.cu); NULL: none */
    const struct gpu_peer *peer;                            /* what it has of the others of a group (exchange/peers.cu); NULL: it has none */
    int tagged[2];               /* generations of x and of the router's logits that the ranges before this one have stored */
    int layer, in_mtp;           /* of the kernels that are recorded next; in_mtp: they count as stage mtp */
    int stores_output;           /* of these: node's */
    int given;                   /* by these: a rank's share of an output, to the other ranks */
    const float *pending, *shares;                          /* of residual streams: an output that is not in them yet, NULL: all is; its shares, NULL: 1 */
    node *nodes, no_record;      /* [capacity]; what gpu_record returns after a failure */
    gpu_launch_record *launches; /* [capacity] */
    int count, capacity;
} gpu_queue;

/* Of an FFN whose branches have norms of their own (layers/table.c): what the router's rows and the shared expert's are normalised with, and
   where the latter's output is stored. shared_to NULL: it is another sublayer. */
typedef struct gpu_branches {
    const float *norm_router, *norm_shared;                 /* [hidden] */
    float *shared_to;            /* [T][hidden] */
} gpu_branches;

/* T token rows on their way through the layers, on a GPU: token_rows there. */
typedef struct gpu_rows {
    gpu_queue *q;
    int T, layer;                /* rows; number of the layer, the MTP layer's after the others' */
    const step_parameters *step; /* of the first sequence */
    int sequences, one_each;     /* 0: a single one, whose slot is that of `slot`; one_each: of one row */
    int in_turn;                 /* the sequences are blocks of one slot, each of which continues the one before it */
    int both_ways;               /* of these: so many rows, each of which attends to all of them; 0: to those up to itself */
    int splits;                  /* of a sequence's keys that there are blocks for; 0: all */
    slot_view slot;
    int64_t past[4];             /* bytes by which each piece of the layer's state lies less far on for each of step->past_ring: rows of
                                    rings before it */
    int offset;                  /* index of row 0 minus step->index */
    int state_only;              /* what the layer remembers of the rows is all that is wanted: x is left as it is */
    float *x;                    /* [T][hidden] the residual; of streams what the sublayer reads of them, or, if that is all, [T][streams][hidden] */
    const float *norm;           /* [hidden] what a sublayer normalises x with */
    float eps;                   /* of norms */
    int hidden;
    float *to;                   /* [T][hidden] where a sublayer's output goes: x, to which it is added, or elsewhere, where it is stored */
    int gives;                   /* it is a rank's share of one row, which may be given to the other ranks as it is stored */
    gpu_branches branches;       /* without shared_to, what is the same goes to `to` */
} gpu_rows;

static int gpu_check(gpu_queue *q, cudaError_t status, const char *what) {
    if (status != cudaSuccess && q->status == cudaSuccess) {
        q->status = status;
        q->failed = what;
    }
    return q->status == cudaSuccess;
}

/* Bytes of its SM's shared memory that a block takes besides the dynamic ones: the kernel's own, and 1 KB that is reserved. */
static int gpu_static_shared(gpu_queue *q, const void *kernel, const char *what) {
    cudaFuncAttributes own = {};
    gpu_check(q, cudaFuncGetAttributes(&own, kernel), what);
    return (int)own.sharedSizeBytes + 1024;
}

/* Lets a kernel have `shared` bytes of dynamic shared memory. Above GPU_SHARED_FREE it raises the limit to the most a
   block may have, not to `shared`: the limit is an attribute of the kernel, not of the launch, and threads of other
   sessions set it at the same time. */
static void gpu_allow_shared(gpu_queue *q, const void *kernel, size_t shared, const char *what) {
    const int own = gpu_static_shared(q, kernel, what) - 1024;
    if ((size_t)own + shared <= GPU_SHARED_FREE) return;
    gpu_check(q, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, GPU_SHARED - own), what);
}

/* Makes space for one more record. */
static int gpu_grow(gpu_queue *q) {
    if (q->count < q->capacity) return 1;
    int capacity = q->capacity ? 2 * q->capacity : 512;
    node *nodes = (node *)realloc(q->nodes, (size_t)capacity * sizeof *nodes);
    if (nodes) q->nodes = nodes;
    gpu_launch_record *launches = (gpu_launch_record *)realloc(q->launches, (size_t)capacity * sizeof *launches);
    if (launches) q->launches = launches;
    if (!nodes || !launches) return gpu_check(q, cudaErrorMemoryAllocation, "recording a step");
    q->capacity = capacity;
    return 1;
}

/* Records kernel(*p) on a grid of blocks of GPU_THREADS threads with `shared` bytes of dynamic shared memory. Returns its node,
   valid until the next record, for what else the schedule has to know of it. */
template <class P>
static node *gpu_record_grid(gpu_queue *q, enum kernel_kind kind, const char *format, void (*kernel)(P), dim3 grid, size_t shared,
                             const P *p) {
    static_assert(sizeof(P) <= sizeof q->launches->parameters && offsetof(P, link) == 0, "parameters begin with a handoff");
    memset(&q->no_record, 0, sizeof q->no_record);
    if (q->status != cudaSuccess || !gpu_grow(q)) return &q->no_record;
    node *n = &q->nodes[q->count];
    gpu_launch_record *l = &q->launches[q->count++];
    memset(n, 0, sizeof *n);
    n->kind = kind;
    n->layer = q->layer;
    n->in_mtp = q->in_mtp;
    n->stores_output = q->stores_output;
    n->pieces = 1;
    n->blocks = (int)(grid.x * grid.y * grid.z);
    n->shared = gpu_static_shared(q, (const void *)kernel, kernels[kind].name) + (int)shared;
    l->kernel = (const void *)kernel;
    l->format = format;
    l->grid = grid;
    l->shared = shared;
    memcpy(l->parameters, p, sizeof *p);
    return n;
}

template <class P>
static node *gpu_record(gpu_queue *q, enum kernel_kind kind, const char *format, void (*kernel)(P), int x, int y, size_t shared,
                        const P *p) {
    return gpu_record_grid(q, kind, format, kernel, dim3((unsigned)x, (unsigned)y), shared, p);
}

/* Launches record i on the stream. sm_shared: bytes of shared memory that the SMs need. */
static void gpu_launch(gpu_queue *q, int i, int sm_shared) {
    const node *n = &q->nodes[i];
    gpu_launch_record *l = &q->launches[i];
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute attributes[2] = {};
    void *arguments[1] = {l->parameters};
    const char *what = kernels[n->kind].name;
    const int wanted = schedule_block_shared(q->nodes, q->count, i, q->sms, sm_shared, q->shared);
    const int block_shared = wanted <= GPU_SHARED ? wanted : n->shared;
    /* The size needed, rounded up: the driver takes the next size. Told that size, rounded down, a step is 1 to 2 % slower. */
    attributes[0].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attributes[0].val.sharedMemCarveout = (unsigned)((100LL * sm_shared + q->shared - 1) / q->shared);
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = l->grid;
    c.blockDim = dim3(GPU_THREADS);
    c.dynamicSmemBytes = l->shared + (size_t)(block_shared - n->shared);
    c.stream = q->stream;
    c.attrs = attributes;
    c.numAttrs = q->dependent ? 2 : 1;
    memcpy(l->parameters, &n->link, sizeof n->link);
    gpu_allow_shared(q, l->kernel, c.dynamicSmemBytes, what);
    gpu_check(q, cudaLaunchKernelExC(&c, l->kernel, arguments), what);
}

/* The stage of a kernel, after one of stage `before`. */
static enum stage gpu_stage_of(const node *n, enum stage before) {
    if (n->in_mtp) return STAGE_MTP;
    return kernels[n->kind].stage == STAGE_COUNT ? before : kernels[n->kind].stage;
}

/* Drops what belongs to stages that are left out. */
static void gpu_leave_out(gpu_queue *q) {
    enum stage stage = STAGE_EMBED;
    int kept = 0;
    for (int i = 0; i < q->count; i++) {
        stage = gpu_stage_of(&q->nodes[i], stage);
        if (!stage_in(q->stages, stage)) continue;
        q->nodes[kept] = q->nodes[i];
        q->launches[kept++] = q->launches[i];
    }
    q->count = kept;
}

/* Links what was recorded, launches it, and forgets it. Stages that are timed alone have the shared memory of the whole step. */
static void gpu_submit(gpu_queue *q) {
    schedule_conflict conflict;
    const int sm_shared = schedule_shared(q->nodes, q->count, q->sms, q->shared);
    gpu_leave_out(q);
    if (!schedule_link(q->nodes, q->count, q->dependent, q->prefetch, q->stages == ALL_STAGES, &conflict))
        gpu_check(q, cudaErrorUnknown, conflict.rule);
    schedule_continue(q->nodes, q->count, q->tagged[0], q->tagged[1]);
    for (int i = 0; i < q->count && q->status == cudaSuccess; i++) gpu_launch(q, i, sm_shared);
    q->count = 0;
}

/* Blocks of a kernel that are resident at once on the SMs to fill (its occupancy), but at most `most`. */
template <class P> static int gpu_blocks(gpu_queue *q, void (*kernel)(P), size_t shared, int64_t most) {
    int per_sm = 0;
    gpu_allow_shared(q, (const void *)kernel, shared, "occupancy");
    gpu_check(q, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, GPU_THREADS, shared), "occupancy");
    int64_t blocks = (int64_t)(per_sm < 1 ? 1 : per_sm) * q->sms;
    return (int)(blocks < most ? blocks : most);
}
