/* exchange/peers.cu: the transport of members that are GPUs of one process, by their kernels: each stores what another needs into that one's
   box, a piece of its memory that both reach over the link between them, and looks for what it needs itself in its own box. Knows floats,
   launches and memory; must not know layers or models. Who records these kernels, and in which order, is said by run/ and layers/: the same
   order in every member.

   An element is 8 bytes {float, tag}, stored and loaded as one. The tag is the element's number, which grows by one from use to use: a reader
   polls until it is the next one. So nothing depends on the order in which stores arrive, and there are no fences.
   Lanes. Elements belong to lanes: one block of threads sends those of a lane, one block reads them, and both count how often: that is the
   number. Two places take turns. So number n + 2 comes where n was, and may be stored when n has been read:
     - of ranks, who all send to each other: n + 1 of the other side has come, and that was sent after n had been read;
     - of rows that go from range to range: the reader says how many it has read, by a receipt in the sender's box.
   All members run the same kernels in the same order, each a grid of as many blocks: a lane's counts agree.

   Waiting is bounded: after PEER_PATIENCE a kernel notes whom it waited for (gpu_peer.lost, in pinned memory), goes on with zeros, and so
   does everything after it; whoever calls next is told. A poll does not deadlock: what it waits for is stored by a kernel that waits for
   earlier ones alone, and blocks of lower lanes come first to an SM.

   Where one of two GPUs cannot reach the other's memory, boxes are in pinned memory of the host: the same kernels, at the bus's speed. */

#define PEER_PATIENCE 10000000000ull           /* nanoseconds */

enum {
    PEER_RANKS = 8,              /* most ranks of a range */
    PEER_LANES = 256,            /* of sums: rows of a prompt on their way at once */
    PEER_LOGIT_LANES = 128,      /* parts of a row of logits */
    PEER_PART = 4 * GPU_THREADS, /* columns of a row of sums that a lane has, unless it has the whole row */
    PEER_POLLS = 256             /* polls between two looks at the time */
};
static_assert((int)PASS_ROWS_MAX <= (int)PEER_LANES, "the rows of a pass have a lane each");

typedef uint64_t peer_element;   /* the float's bits, and above them the tag */

/* Who waits for whom. */
typedef struct peer_watch {
    uint32_t *lost;              /* in pinned memory: 1 + the number of the member that did not come; 0: all have */
    uint32_t *over;              /* on this GPU: not 0 when that is known here */
    uint32_t whom;               /* number of the member that is waited for */
} peer_watch;

/* Rows of x from a range to the next one, as one of the two sees them. Lane i has elements i GPU_THREADS .. (i + 1) GPU_THREADS - 1 of a turn's, and
   a thread has one of them. */
typedef struct peer_rows {
    peer_element *box;           /* [2][size] in the reader's memory */
    size_t size;                 /* elements: of the rows of a pass */
    int lanes_of_row;
    uint32_t *count;             /* [lanes] sent, or read */
    uint32_t *receipt;           /* [lanes] read, in the sender's box */
    peer_watch watch;
} peer_rows;

/* What all ranks of a range give each other: partial sums, each lane's apart, or rows of logits, of which a lane has some columns. */
typedef struct peer_ranks {
    peer_element *to[PEER_RANKS];                           /* [2][size] this rank's place in the box of each other; NULL: its own */
    const peer_element *from;    /* [ranks][2][size] its own box */
    size_t size, lane;           /* elements; of these, of a lane: 0: it has some of all */
    uint32_t *count;             /* [lanes] sent, and read */
    uint32_t *lost, *over;       /* as peer_watch has them */
    int rank, ranks;
    uint32_t first;              /* number of the range's rank 0 among the members */
} peer_ranks;

/* Blocks of a prompt's x from range to range. */
typedef struct peer_blocks {
    float *box;                  /* [rows][hidden] in the reader's box */
    uint32_t *sent, *read;       /* how many: in the reader's box, in the sender's */
    uint32_t *count;             /* sent, or read, by this member */
    peer_watch watch;
} peer_blocks;

/* ---- In kernels ---------------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ uint64_t peer_nanoseconds() {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}

__device__ __forceinline__ uint32_t peer_word(const uint32_t *at) {
    uint32_t x;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}

__device__ __forceinline__ void peer_set_word(uint32_t *at, uint32_t x) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}

__device__ __forceinline__ peer_element peer_load(const peer_element *at) {
    peer_element e;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(e) : "l"(at) : "memory");
    return e;
}

/* Four elements, of which the first is at a multiple of 4. */
__device__ __forceinline__ void peer_load4(const peer_element *at, peer_element *e) {
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(e[0]), "=l"(e[1]) : "l"(at) : "memory");
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(e[2]), "=l"(e[3]) : "l"(at + 2) : "memory");
}

__device__ __forceinline__ peer_element peer_element_of(float x, uint32_t tag) {
    return (peer_element)tag << 32 | __float_as_uint(x);
}

__device__ __forceinline__ void peer_put(peer_element *at, float x, uint32_t tag) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(at), "l"(peer_element_of(x, tag)) : "memory");
}

__device__ __forceinline__ void peer_put4(peer_element *at, float4 v, uint32_t tag) {
    const peer_element a = peer_element_of(v.x, tag), b = peer_element_of(v.y, tag), c = peer_element_of(v.z, tag), d = peer_element_of(v.w, tag);
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(a), "l"(b) : "memory");
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at + 2), "l"(c), "l"(d) : "memory");
}

/* When the first look was; 0: give up, as the time is over, or somebody has not come before. since: when it was; 0: this is it. The host's memory
   is looked at by one thread of a block: by all, these looks would be what the bus carries. */
__device__ __forceinline__ uint64_t peer_patience(const peer_watch &w, uint64_t since) {
    const uint64_t now = peer_nanoseconds() | 1;            /* never 0, as a simulated GPU's may be */
    const bool late = since && now - since >= PEER_PATIENCE;
    if (peer_word(w.over)) return 0;
    if (late) peer_set_word(w.lost, w.whom + 1);
    if (!late && (threadIdx.x || !peer_word(w.lost))) return since ? since : now;
    peer_set_word(w.over, 1);
    return 0;
}

/* Calls ready() until it says so; false: it never did. */
template <class READY> __device__ __forceinline__ bool peer_wait(const peer_watch &w, const READY &ready) {
    uint64_t since = 0;
#pragma unroll 1
    for (uint32_t i = 1; !ready(); i++)
        if (i % PEER_POLLS == 0 && !(since = peer_patience(w, since))) return false;
    return true;
}

/* The float of an element, as soon as it has this tag. */
__device__ __forceinline__ float peer_get(const peer_element *at, uint32_t tag, const peer_watch &w) {
    peer_element e;
    const bool there = peer_wait(w, [&]() { return (uint32_t)((e = peer_load(at)) >> 32) == tag; });
    return there ? __uint_as_float((uint32_t)e) : 0;
}

__device__ __forceinline__ float4 peer_get4(const peer_element *at, uint32_t tag, const peer_watch &w) {
    peer_element e[4];
    const bool there = peer_wait(w, [&]() {
        peer_load4(at, e);
        return (uint32_t)(e[0] >> 32) == tag && (uint32_t)(e[1] >> 32) == tag && (uint32_t)(e[2] >> 32) == tag && (uint32_t)(e[3] >> 32) == tag;
    });
    return there ? make_float4(__uint_as_float((uint32_t)e[0]), __uint_as_float((uint32_t)e[1]), __uint_as_float((uint32_t)e[2]),
                               __uint_as_float((uint32_t)e[3]))
                 : make_float4(0, 0, 0, 0);
}

/* A lane's number for this use of it. Of an earlier kernel: not before pdl_wait. */
__device__ __forceinline__ uint32_t peer_number(const uint32_t *count, int lane) {
    return __ldcg(count + lane);
}

/* A lane has been used up to this number: for all threads of a block, the last thing they do with the lane. */
__device__ __forceinline__ void peer_counted(uint32_t *count, int lane, uint32_t number) {
    __syncthreads();
    if (threadIdx.x == 0) count[lane] = number;
}

/* Sends x, the element of this thread, of a row's columns that begin at part GPU_THREADS. there: it has one. All threads of a block call it. */
__device__ __forceinline__ void peer_send(const peer_rows &p, int row, int part, size_t cols, float x, bool there) {
    const int lane = row * p.lanes_of_row + part;
    const uint32_t n = peer_number(p.count, lane);
    peer_wait(p.watch, [&]() { return n - peer_word(p.receipt + lane) < 2; });
    if (there) peer_put(p.box + (n & 1) * p.size + (size_t)row * cols + (size_t)part * GPU_THREADS + threadIdx.x, x, n + 1);
    peer_counted(p.count, lane, n + 1);
}

/* The same element at the other end. */
__device__ __forceinline__ float peer_receive(const peer_rows &p, int row, int part, size_t cols, bool there) {
    const int lane = row * p.lanes_of_row + part;
    const uint32_t n = peer_number(p.count, lane);
    const peer_element *at = p.box + (n & 1) * p.size + (size_t)row * cols + (size_t)part * GPU_THREADS + threadIdx.x;
    const float x = there ? peer_get(at, n + 1, p.watch) : 0;
    peer_counted(p.count, lane, n + 1);
    if (threadIdx.x == 0) peer_set_word(p.receipt + lane, n + 1);
    return x;
}

/* Gives all other ranks four values of a lane, from element i on, a multiple of 4. number: the lane's. */
__device__ __forceinline__ void peer_share4(const peer_ranks &p, int lane, uint32_t number, int i, float4 v) {
#pragma unroll 1
    for (int r = 0; r < p.ranks; r++)
        if (p.to[r]) peer_put4(p.to[r] + (number & 1) * p.size + lane * p.lane + i, v, number + 1);
}

/* What all ranks' values, of which v are this one's, add up to, in the order of ranks. */
__device__ __forceinline__ float4 peer_sum4(const peer_ranks &p, int lane, uint32_t number, int i, float4 v) {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int r = 0; r < p.ranks; r++) {
        const peer_element *at = p.from + (2 * r + (number & 1)) * p.size + lane * p.lane + i;
        const float4 a = r == p.rank ? v : peer_get4(at, number + 1, {p.lost, p.over, p.first + (uint32_t)r});
        sum = r ? make_float4(sum.x + a.x, sum.y + a.y, sum.z + a.z, sum.w + a.w) : a;
    }
    return sum;
}

/* What a kernel that makes a rank's share of one row gives the others at once: a lane for each PEER_PART columns, element by element. */
typedef struct peer_gift {
    peer_element *to[PEER_RANKS];                           /* as peer_ranks has it */
    const uint32_t *count;
    uint32_t size, lane;         /* elements */
    int ranks;
} peer_gift;

/* The lane's number for this column: after an earlier kernel that counts it, as peer_number. */
__device__ __forceinline__ uint32_t peer_gift_number(const peer_gift &g, int col) {
    return peer_number(g.count, col / PEER_PART);
}

__device__ __forceinline__ void peer_give(const peer_gift &g, int col, float x, uint32_t number) {
    const uint32_t at = (number & 1) * g.size + col / PEER_PART * g.lane + col % PEER_PART;
#pragma unroll 1
    for (int r = 0; r < g.ranks; r++)
        if (g.to[r]) peer_put(g.to[r] + at, x, number + 1);
}

/* Of prompts' blocks: waits until the word is the count and `more`. One thread. */
static __global__ void gpu_peer_await(peer_watch w, const uint32_t *word, const uint32_t *count, uint32_t more) {
    const uint32_t n = *count + more;
    peer_wait(w, [&]() { return (int32_t)(peer_word(word) - n) >= 0; });
    __threadfence_system();
}

/* Says that the next one has been sent, or read: all kernels and copies before this one are complete. One thread. */
static __global__ void gpu_peer_post(uint32_t *word, uint32_t *count) {
    const uint32_t n = *count + 1;
    *count = n;
    __threadfence_system();
    peer_set_word(word, n);
}

/* Copies a block of n floats to or from a box; n is a multiple of 4. Not cudaMemcpyAsync: between two GPUs that call needs the other GPU's context,
   too, where another thread may be loading a kernel, which waits for what waits there for this block. */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_peer_copy(float4 *to, const float4 *from, size_t n) {
    for (size_t i = (size_t)blockIdx.x * GPU_THREADS + threadIdx.x; i < n / 4; i += (size_t)gridDim.x * GPU_THREADS) to[i] = __ldcg(from + i);
}

/* ---- Boxes, and what a member knows of them ------------------------------------------------------------------------------ */

/* The sizes of a group, the same for all its members. */
typedef struct peer_sizes {
    int ranges, ranks;
    size_t hidden, sum_cols;     /* elements of a row of x; of one of partial sums: those of all outputs that a sublayer has */
    size_t vocab_share;          /* rows of the vocabulary that a rank has, at most */
    size_t block_rows;           /* most token rows of a prompt's block; 0: there are none */
} peer_sizes;

/* Where a member's box has what. Bytes from its beginning. */
typedef struct peer_places {
    size_t rows;                 /* peer_rows.box */
    size_t sums, logits;         /* peer_ranks.from */
    size_t block;                /* peer_blocks.box */
    size_t receipt, sent, read;  /* words: of the member's own peer_rows that it sends; of its peer_blocks */
    size_t bytes;
} peer_places;

/* A member's, peer.gpu. */
typedef struct gpu_peer {
    const peer *me;
    int device;                  /* its GPU's number */
    peer_sizes sizes;
    char *box;                   /* on this GPU, or, if not all others reach that, in pinned memory: */
    char *pinned;                /* NULL: none */
    uint32_t *counts;            /* on this GPU, in the order of peer_counts */
    float *logits;               /* [PASS_ROWS_MAX][vocab_share] on this GPU: this rank's own; NULL: it shares none */
    uint32_t *lost;              /* pinned, see peer_watch */
} gpu_peer;

/* Where gpu_peer.counts has which; words of them. */
typedef struct peer_counts { size_t sums, logits, sent, received, blocks_sent, blocks_read, over, words; } peer_counts;

static int peer_row_lanes(const peer_sizes *s) {
    return (int)((s->hidden - 1) / GPU_THREADS + 1);
}

static peer_counts peer_counts_of(const peer_sizes *s) {
    const size_t rows = (size_t)peer_row_lanes(s) * PASS_ROWS_MAX;
    peer_counts c;
    c.sums = 0;
    c.logits = c.sums + PEER_LANES;
    c.sent = c.logits + PEER_LOGIT_LANES;
    c.received = c.sent + rows;
    c.blocks_sent = c.received + rows;
    c.blocks_read = c.blocks_sent + 1;
    c.over = c.blocks_read + 1;                             /* no count: peer_watch.over */
    c.words = c.over + 1;
    return c;
}

/* Its number among the members. */
static int peer_number_of(const gpu_peer *p) {
    return p->me->at.range * p->me->at.ranks + p->me->at.rank;
}

static size_t peer_take(size_t *used, size_t bytes) {
    const size_t at = *used;
    *used += (bytes + 255) / 256 * 256;
    return at;
}

/* The box of a member of that range. */
static peer_places peer_places_of(const peer_sizes *s, int range) {
    const size_t element = sizeof(peer_element), ranks = s->ranks > 1 ? (size_t)s->ranks : 0, receives = range > 0, sends = range + 1 < s->ranges;
    peer_places p;
    memset(&p, 0, sizeof p);
    p.rows = peer_take(&p.bytes, receives * 2 * PASS_ROWS_MAX * s->hidden * element);
    p.sums = peer_take(&p.bytes, ranks * 2 * PEER_LANES * s->sum_cols * element);
    p.logits = peer_take(&p.bytes, (range + 1 == s->ranges) * ranks * 2 * s->vocab_share * element);
    p.block = peer_take(&p.bytes, receives * s->block_rows * s->hidden * sizeof(float));
    p.receipt = peer_take(&p.bytes, sends * PASS_ROWS_MAX * (size_t)peer_row_lanes(s) * sizeof(uint32_t));
    p.sent = peer_take(&p.bytes, receives * sizeof(uint32_t));
    p.read = peer_take(&p.bytes, sends * sizeof(uint32_t));
    return p;
}

/* Lays out a member's box and its counts, all of them 0 at first, in its GPU's memory. */
static void peers_layout(layout *l, gpu_peer *p, int range, const peer_sizes *sizes) {
    p->sizes = *sizes;
    p->box = (char *)layout_alloc(l, peer_places_of(sizes, range).bytes / sizeof(float));
    p->counts = (uint32_t *)(void *)layout_alloc(l, peer_counts_of(sizes).words);
    p->logits = layout_alloc(l, sizes->ranks > 1 && range + 1 == sizes->ranges ? PASS_ROWS_MAX * sizes->vocab_share : 0);
}

/* Who has this box, and what tells the host that somebody has not come. */
static void peers_open(gpu_queue *q, gpu_peer *p, peer *me, int device) {
    p->me = me;
    p->device = device;
    me->gpu = p;
    q->peer = p;
    gpu_check(q, cudaHostAlloc((void **)&p->lost, sizeof *p->lost, cudaHostAllocMapped | cudaHostAllocPortable), "pinning memory");
    if (q->status == cudaSuccess) *p->lost = 0;
}

/* Makes the others' memory reachable, and moves the box if they do not all reach this one's. All members are open; the GPU is chosen, and has
   cleared the box. What follows may be called when all have done so. */
static void peers_connect(gpu_queue *q, gpu_peer *p) {
    const group_place *at = &p->me->at;
    const size_t bytes = peer_places_of(&p->sizes, at->range).bytes;
    int reached = 1;
    for (int i = 0; i < at->ranges * at->ranks && q->status == cudaSuccess; i++) {
        const int other = p->me->all[i]->gpu->device;
        int to = 0, from = 0;
        if (other == p->device) continue;
        gpu_check(q, cudaDeviceCanAccessPeer(&to, p->device, other), "asking for the GPUs' links");
        gpu_check(q, cudaDeviceCanAccessPeer(&from, other, p->device), "asking for the GPUs' links");
        reached &= from;
        const cudaError_t status = to ? cudaDeviceEnablePeerAccess(other, 0) : cudaSuccess;
        if (status == cudaErrorPeerAccessAlreadyEnabled) (void)cudaGetLastError();
        else gpu_check(q, status, "reaching another GPU");
    }
    if (reached || q->status != cudaSuccess) return;
    gpu_check(q, cudaHostAlloc((void **)&p->pinned, bytes, cudaHostAllocMapped | cudaHostAllocPortable), "pinning memory");
    if (q->status != cudaSuccess) return;
    memset(p->pinned, 0, bytes);
    p->box = p->pinned;
}

/* What waits on this GPU gives up, and what is queued after it. */
static void peers_end(gpu_peer *p) {
    uint32_t none = 0;
    if (p->lost) (void)__atomic_compare_exchange_n(p->lost, &none, (uint32_t)peer_number_of(p) + 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

/* The number of the member that did not come, or this one's: the group has been ended. -1: all have come so far. */
static int peers_lost(const gpu_peer *p) {
    return (int)__atomic_load_n(p->lost, __ATOMIC_RELAXED) - 1;
}

static void peers_close(gpu_peer *p) {
    if (p->pinned) (void)cudaFreeHost(p->pinned);
    if (p->lost) (void)cudaFreeHost(p->lost);
}

/* Another member's number among all: the same rank of another range. */
static int peer_of_range(const gpu_peer *p, int range) {
    return range * p->sizes.ranks + p->me->at.rank;
}

static char *peers_box(const gpu_peer *p, int member) {
    return p->me->all[member]->gpu->box;
}

static peer_watch peers_watch(const gpu_peer *p, int whom) {
    const peer_watch w = {.lost = p->lost, .over = p->counts + peer_counts_of(&p->sizes).over, .whom = (uint32_t)whom};
    return w;
}

/* The rows of a pass to the next range, or, received, from the one before. */
static peer_rows peers_rows(const gpu_peer *p, int received) {
    const int reader = p->me->at.range + !received, sender = reader - 1;
    const peer_places at = peer_places_of(&p->sizes, reader), back = peer_places_of(&p->sizes, sender);
    const peer_counts counts = peer_counts_of(&p->sizes);
    const peer_rows r = {.box = (peer_element *)(void *)(peers_box(p, peer_of_range(p, reader)) + at.rows),
                         .size = PASS_ROWS_MAX * p->sizes.hidden,
                         .lanes_of_row = peer_row_lanes(&p->sizes),
                         .count = p->counts + (received ? counts.received : counts.sent),
                         .receipt = (uint32_t *)(void *)(peers_box(p, peer_of_range(p, sender)) + back.receipt),
                         .watch = peers_watch(p, peer_of_range(p, received ? sender : reader))};
    return r;
}

static peer_blocks peers_blocks(const gpu_peer *p, int received) {
    const int reader = p->me->at.range + !received, sender = reader - 1;
    const peer_places at = peer_places_of(&p->sizes, reader), back = peer_places_of(&p->sizes, sender);
    const peer_counts counts = peer_counts_of(&p->sizes);
    const peer_blocks b = {.box = (float *)(void *)(peers_box(p, peer_of_range(p, reader)) + at.block),
                           .sent = (uint32_t *)(void *)(peers_box(p, peer_of_range(p, reader)) + at.sent),
                           .read = (uint32_t *)(void *)(peers_box(p, peer_of_range(p, sender)) + back.read),
                           .count = p->counts + (received ? counts.blocks_read : counts.blocks_sent),
                           .watch = peers_watch(p, peer_of_range(p, received ? sender : reader))};
    return b;
}

static void peers_copy(gpu_queue *q, float *to, const float *from, size_t n) {
    enum { COPY_BLOCKS = 64 };                              /* enough for a link */
    gpu_peer_copy<<<COPY_BLOCKS, GPU_THREADS, 0, q->stream>>>((float4 *)(void *)to, (const float4 *)(const void *)from, n);
}

/* Queues sending a prompt's block of T rows to the next range, as soon as that has read the one before. */
static void peers_send_block(gpu_queue *q, const gpu_peer *p, const float *x, int T) {
    const peer_blocks b = peers_blocks(p, 0);
    gpu_peer_await<<<1, 1, 0, q->stream>>>(b.watch, b.read, b.count, 0);
    peers_copy(q, b.box, x, (size_t)T * p->sizes.hidden);
    gpu_peer_post<<<1, 1, 0, q->stream>>>(b.sent, b.count);
    gpu_check(q, cudaGetLastError(), "sending rows");
}

/* Queues receiving it: to x. */
static void peers_receive_block(gpu_queue *q, const gpu_peer *p, float *x, int T) {
    const peer_blocks b = peers_blocks(p, 1);
    gpu_peer_await<<<1, 1, 0, q->stream>>>(b.watch, b.sent, b.count, 1);
    peers_copy(q, x, b.box, (size_t)T * p->sizes.hidden);
    gpu_peer_post<<<1, 1, 0, q->stream>>>(b.read, b.count);
    gpu_check(q, cudaGetLastError(), "receiving rows");
}

/* Whether this is one of several ranks of a range. */
static int peers_divide(const gpu_peer *p) {
    return p && p->sizes.ranks > 1;
}

/* What the ranks of the range give each other. */
static peer_ranks peers_ranks(const gpu_peer *p, int logits) {
    const group_place *me = &p->me->at;
    const peer_places at = peer_places_of(&p->sizes, me->range);
    const peer_counts counts = peer_counts_of(&p->sizes);
    peer_ranks r;
    memset(&r, 0, sizeof r);
    r.size = logits ? p->sizes.vocab_share : PEER_LANES * p->sizes.sum_cols;
    r.lane = logits ? 0 : p->sizes.sum_cols;
    r.count = p->counts + (logits ? counts.logits : counts.sums);
    r.lost = p->lost;
    r.over = p->counts + counts.over;
    r.rank = me->rank;
    r.ranks = me->ranks;
    r.first = (uint32_t)(me->range * me->ranks);
    for (int i = 0; i < me->ranks; i++) {
        peer_element *there = (peer_element *)(void *)(peers_box(p, me->range * me->ranks + i) + (logits ? at.logits : at.sums));
        if (i == me->rank) r.from = there;
        else r.to[i] = there + (size_t)me->rank * 2 * r.size;
    }
    return r;
}

/* The same for a kernel that makes this rank's share of one row. */
static peer_gift peers_gift(const gpu_peer *p) {
    const peer_ranks all = peers_ranks(p, 0);
    peer_gift g;
    memcpy(g.to, all.to, sizeof g.to);
    g.count = all.count;
    g.size = (uint32_t)all.size;
    g.lane = (uint32_t)all.lane;
    g.ranks = all.ranks;
    return g;
}
