/* tests/simulator/block.h: the threads of a block, of which one runs at a time: each is a fiber, a stack of its own, that runs until it waits for
   others, at a barrier or for what its warp does together. The blocks of a grid run one after the other, those of a cluster at a time. */

static dim3 gridDim, blockDim;

namespace sim {

enum { WARP = 32, BARRIERS = 16, STACK = 64 << 10, SHARED = 128 << 10, SHARED_MOST = 101376, SHARED_FREE = 48 << 10, PARAMETERS = 1280, PAGE = 4096, CLUSTER = 8, BLOCK = 1024, LOADS_MOST = 1 << 20 };

struct block;
struct warp;

/* A cp.async that was issued and not waited for. */
struct copy { char *to; const char *from; int bytes, from_bytes, group; };

struct fiber {
    void *stack_pointer;
    uint3 thread;
    int lane;
    struct warp *warp;
    struct block *block;
    int group;                   /* of cp.async, that is filled */
    int arrived;                 /* phase of the cluster's barrier at which it arrived */
    int loads;                   /* relaxed ones, by which kernels poll */
    std::vector<copy> copies;
};

/* What the lanes of a warp do together, when the last of them has come: `of` has what each lane gives and gets. */
typedef void (*together)(void **of, uint32_t lanes);

struct warp {
    uint32_t alive, ready;       /* bit sets of lanes */
    uint32_t in_warp, in_block, in_cluster, at_barrier[BARRIERS];           /* those that wait, and for what */
    together what[WARP];
    void *of[WARP];
    uint32_t mask[WARP];
    fiber *lanes[WARP];
};

/* __shared__ variables. */
struct variable { const void *key; char *at; size_t size; };

struct block {
    uint3 index;
    int alive, arrived;          /* threads: that have not ended; at the barrier */
    int arrived_at[BARRIERS];    /* of some of the block's threads, by their number: threads */
    int any, result;             /* of __syncthreads_or */
    warp *warps;
    int warp_count;
    char *memory;                /* static shared memory from here on; dynamic memory ends where it ends */
    size_t used, dynamic;
    std::vector<variable> variables;
};

/* The blocks that run at a time. */
struct grid {
    const void *kernel;
    dim3 cluster;
    size_t dynamic;
    size_t parameter;            /* bytes of the kernel's parameter, as its first thread says */
    void (*call)(void *);        /* runs a thread */
    void *with;
    int alive;                   /* threads */
    int arrived, phase;          /* of the cluster's barrier */
    dim3 first;                  /* index of the first block */
    int blocks;
    block block_of[CLUSTER];
    warp warp_of[CLUSTER * BLOCK / WARP];
    fiber *fibers[CLUSTER * BLOCK];
    int warps;
    void *host;                  /* the stack pointer of who launched it */
    uint64_t launches;
};

static grid running;
static fiber *now;

static std::string readable(const void *function);         /* its name */

[[noreturn]] static void fault(const char *format, ...) {
    va_list arguments;
    fprintf(stderr, "\nsimulated GPU: ");
    if (now) fprintf(stderr, "%s, block (%u, %u, %u), thread (%u, %u, %u): ", readable(running.kernel).c_str(), now->block->index.x, now->block->index.y,
                     now->block->index.z, now->thread.x, now->thread.y, now->thread.z);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
    fflush(NULL);
    signal(SIGSEGV, SIG_DFL);
    abort();
}

/* Saves the callee's registers on this stack, and goes on where `to` saved its own. */
__attribute__((naked, noinline)) static void change_stack(void **from, void *to) {
    __asm__("pushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\tpushq %r14\n\tpushq %r15\n\t"
            "movq %rsp, (%rdi)\n\tmovq %rsi, %rsp\n\t"
            "popq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\tpopq %rbx\n\tpopq %rbp\n\tret");
}

/* Where threads wait that cannot go on. */
[[noreturn]] static void deadlock() {
    fprintf(stderr, "\nsimulated GPU: %s: deadlock\n", readable(running.kernel).c_str());
    for (int i = 0; i < running.warps; i++) {
        const warp *w = &running.warp_of[i];
        if (!w->alive) continue;
        const fiber *f = w->lanes[__builtin_ctz(w->alive)];
        fprintf(stderr, "    block (%u, %u, %u) threads %u..: alive %08x, at __syncthreads %08x, at the cluster's barrier %08x, for their warp %08x",
                f->block->index.x, f->block->index.y, f->block->index.z, f->thread.x / WARP * WARP, w->alive, w->in_block, w->in_cluster, w->in_warp);
        for (int number = 0; number < BARRIERS; number++)
            if (w->at_barrier[number]) fprintf(stderr, ", at barrier %d %08x", number, w->at_barrier[number]);
        for (int lane = 0; lane < WARP; lane++)
            if (w->in_warp >> lane & 1) fprintf(stderr, " %d:%s(%08x)", lane, readable((const void *)w->what[lane]).c_str(), w->mask[lane]);
        fprintf(stderr, "\n");
    }
    fflush(NULL);
    abort();
}

/* A thread that can go on: of this warp, or of the next. */
static fiber *next() {
    const int own = (int)(now->warp - running.warp_of);
    for (int i = 0; i < running.warps; i++) {
        warp *w = &running.warp_of[own + i < running.warps ? own + i : own + i - running.warps];
        if (w->ready) return w->lanes[__builtin_ctz(w->ready)];
    }
    deadlock();
}

/* Lets others run. */
static void wait() {
    fiber *before = now;
    now = next();
    if (now != before) change_stack(&before->stack_pointer, now->stack_pointer);
}

/* Does what the lanes of `mask` wait for, if all are there. */
static bool gather(warp *w, uint32_t mask, int lane) {
    const uint32_t lanes = mask & w->alive;
    if (lanes & ~w->in_warp) return false;
    for (uint32_t left = lanes; left; left &= left - 1) {
        const int other = __builtin_ctz(left);
        if (w->mask[other] != mask) return false;
        if (w->what[other] != w->what[lane]) fault("lanes %d and %d do different things together", lane, other);
    }
    w->what[lane](w->of, lanes);
    w->in_warp &= ~lanes;
    w->ready |= lanes;
    return true;
}

/* The lanes of `mask` do something together. */
static inline void in_warp(uint32_t mask, together what, void *of) {
    fiber *f = now;
    warp *w = f->warp;
    if (!(mask >> f->lane & 1)) fault("lane %d is not in its own mask, %08x", f->lane, mask);
    w->of[f->lane] = of;
    w->what[f->lane] = what;
    w->mask[f->lane] = mask;
    w->in_warp |= 1u << f->lane;
    w->ready &= ~(1u << f->lane);
    if (!gather(w, mask, f->lane)) wait();
}

static void open_block(block *b) {
    if (b->arrived < b->alive || !b->arrived) return;
    for (int i = 0; i < b->warp_count; i++) {
        b->warps[i].ready |= b->warps[i].in_block;
        b->warps[i].in_block = 0;
    }
    b->result = b->any;
    b->any = 0;
    b->arrived = 0;
}

static inline int barrier(int value) {
    fiber *f = now;
    block *b = f->block;
    f->warp->in_block |= 1u << f->lane;
    f->warp->ready &= ~(1u << f->lane);
    b->any |= value;
    b->arrived++;
    open_block(b);
    if (!(f->warp->ready >> f->lane & 1)) wait();
    return b->result;
}

/* Barrier `number` of `threads` of the block's threads, of which some do not wait. */
static void barrier_of(int number, int threads, bool waits) {
    fiber *f = now;
    block *b = f->block;
    if (number <= 0 || number >= BARRIERS || threads % WARP || threads <= 0) fault("barrier %d of %d threads", number, threads);
    if (waits) {
        f->warp->at_barrier[number] |= 1u << f->lane;
        f->warp->ready &= ~(1u << f->lane);
    }
    if (++b->arrived_at[number] == threads) {
        for (int i = 0; i < b->warp_count; i++) {
            b->warps[i].ready |= b->warps[i].at_barrier[number];
            b->warps[i].at_barrier[number] = 0;
        }
        b->arrived_at[number] = 0;
    }
    if (!(f->warp->ready >> f->lane & 1)) wait();
}

static void open_cluster() {
    if (running.arrived < running.alive || !running.arrived) return;
    for (int i = 0; i < running.warps; i++) {
        running.warp_of[i].ready |= running.warp_of[i].in_cluster;
        running.warp_of[i].in_cluster = 0;
    }
    running.phase++;
    running.arrived = 0;
}

static void cluster_arrive() {
    now->arrived = running.phase;
    running.arrived++;
    open_cluster();
}

static void cluster_wait() {
    if (now->arrived != running.phase) return;
    now->warp->in_cluster |= 1u << now->lane;
    now->warp->ready &= ~(1u << now->lane);
    wait();
}

/* A thread ends: those that wait do not wait for it. */
static void end() {
    fiber *f = now;
    warp *w = f->warp;
    const uint32_t own = 1u << f->lane;
    w->alive &= ~own;
    w->ready &= ~own;
    f->block->alive--;
    running.alive--;
    for (uint32_t left = w->in_warp; left; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        if (w->in_warp >> lane & 1 && w->mask[lane] & own) gather(w, w->mask[lane], lane);
    }
    open_block(f->block);
    open_cluster();
    if (!running.alive) {
        void *nowhere;
        now = NULL;
        change_stack(&nowhere, running.host);
    }
    now = next();
    change_stack(&f->stack_pointer, now->stack_pointer);
}

static void begin() {
    running.call(running.with);
    end();
}

static void *map_guarded(size_t bytes) {
    char *at = (char *)mmap(NULL, bytes + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED || mprotect(at + PAGE, bytes, PROT_READ | PROT_WRITE)) fault("no memory for %zu bytes", bytes);
    return at + PAGE;
}

static void open_thread(fiber **slot, block *b, warp *w, int i, int number) {
    static char *stacks[CLUSTER * BLOCK];
    if (!*slot) {
        *slot = new fiber();
        stacks[number] = (char *)map_guarded(STACK);
    }
    fiber *f = *slot;
    /* Stacks of one distance would lie on the same lines of the cache. */
    void **top = (void **)(stacks[number] + STACK - 64 - number * 320 % 8192 / 64 * 64);
    *--top = NULL;
    *--top = (void *)begin;
    f->stack_pointer = top - 6;
    f->thread = {(unsigned)i % blockDim.x, (unsigned)i / blockDim.x % blockDim.y, (unsigned)i / blockDim.x / blockDim.y};
    f->lane = i % WARP;
    f->warp = w;
    f->block = b;
    f->group = f->arrived = f->loads = 0;
    f->copies.clear();
    w->lanes[f->lane] = f;
    w->alive |= 1u << f->lane;
    w->ready |= 1u << f->lane;
}

/* Block number `rank` of the cluster. */
static void open_one(int rank) {
    const int threads = (int)(blockDim.x * blockDim.y * blockDim.z), warps = (threads + WARP - 1) / WARP;
    block *b = &running.block_of[rank];
    const unsigned x = (unsigned)rank % running.cluster.x, y = (unsigned)rank / running.cluster.x % running.cluster.y;
    b->index = {running.first.x + x, running.first.y + y, running.first.z + (unsigned)rank / running.cluster.x / running.cluster.y};
    b->alive = threads;
    b->arrived = b->any = b->result = 0;
    memset(b->arrived_at, 0, sizeof b->arrived_at);
    b->warps = &running.warp_of[rank * warps];
    b->warp_count = warps;
    if (!b->memory) b->memory = (char *)map_guarded(SHARED);
    memset(b->memory + SHARED - running.dynamic, 0xff, running.dynamic);    /* NaNs */
    b->used = 0;
    b->dynamic = running.dynamic;
    b->variables.clear();
    memset(b->warps, 0, (size_t)warps * sizeof *b->warps);
    for (int i = 0; i < threads; i++) open_thread(&running.fibers[rank * threads + i], b, &b->warps[i / WARP], i, rank * threads + i);
    running.blocks = rank + 1;
    running.warps = running.blocks * warps;
    running.alive += threads;
}

/* What kernels begin with. */
static inline void parameter(size_t bytes) {
    running.parameter = bytes;
    if (bytes > PARAMETERS) fault("a parameter of %zu bytes", bytes);
}

/* What kernels with __cluster_dims__ begin with: as the first thread comes, the other blocks of the cluster begin, too. */
static inline void cluster(unsigned x, unsigned y, unsigned z) {
    running.cluster = dim3(x, y, z);
    while (running.blocks < (int)(x * y * z)) open_one(running.blocks);
}

static void run_grid(const void *kernel, dim3 size, dim3 threads, size_t dynamic, void (*call)(void *), void *with) {
    running.kernel = kernel;
    gridDim = size;
    blockDim = threads;
    running.dynamic = dynamic;
    running.parameter = PARAMETERS;
    running.cluster = dim3(1, 1, 1);
    running.call = call;
    running.with = with;
    if (threads.x * threads.y * threads.z > BLOCK || !threads.x || !size.x || !size.y || !size.z || dynamic > SHARED_MOST)
        fault("%s: no such launch: %u x %u x %u blocks of %u threads, %zu bytes", readable(kernel).c_str(), size.x, size.y, size.z, threads.x, dynamic);
    for (unsigned z = 0; z < size.z; z += running.cluster.z)
        for (unsigned y = 0; y < size.y; y += running.cluster.y)
            for (unsigned x = 0; x < size.x; x += running.cluster.x) {
                running.first = dim3(x, y, z);
                running.alive = running.blocks = running.arrived = running.phase = 0;
                open_one(0);
                for (int rank = 1; rank < (int)(running.cluster.x * running.cluster.y * running.cluster.z); rank++) open_one(rank);
                now = running.warp_of[0].lanes[0];
                change_stack(&running.host, now->stack_pointer);
            }
    running.launches++;
}

/* A __shared__ variable of this block. */
template <class T> static inline T &shared(const void *key) {
    block *b = now->block;
    for (const variable &v : b->variables)
        if (v.key == key) return *(T *)v.at;
    b->used = (b->used + 15) / 16 * 16;
    char *at = b->memory + b->used;
    b->used += sizeof(T);
    if (b->used + b->dynamic > SHARED_MOST) fault("%zu bytes of shared memory", b->used + b->dynamic);
    memset(at, 0xff, sizeof(T));
    b->variables.push_back({key, at, sizeof(T)});
    return *(T *)at;
}

/* It ends where the block's memory ends: beyond is a page that cannot be read. */
static inline void *dynamic_shared() {
    return now->block->memory + SHARED - (now->block->dynamic + 15) / 16 * 16;
}

static inline uint32_t shared_offset(const void *at) {
    const size_t offset = (size_t)((const char *)at - now->block->memory);
    if (offset >= SHARED) fault("%p is not in shared memory", at);
    return (uint32_t)offset + 1024;
}

/* Where `bytes` bytes of shared memory at this address are. */
static inline char *shared_at(uint32_t address, uint32_t bytes) {
    if (address - 1024 > SHARED - bytes) fault("%u is no address in shared memory", address);
    if (address % bytes) fault("%u in shared memory is not a multiple of %u", address, bytes);
    return now->block->memory + address - 1024;
}

/* The same variable of block `rank` of the cluster. */
static inline void *of_rank(const void *at, unsigned rank) {
    if ((int)rank >= running.blocks) fault("block %u of a cluster of %d", rank, running.blocks);
    return running.block_of[rank].memory + shared_offset(at) - 1024;
}

/* A load or store of n bytes, which must be aligned to n. */
template <class T> static inline T *aligned(T *at) {
    if ((uintptr_t)at % alignof(T)) fault("%p is not a multiple of %zu", (const void *)at, alignof(T));
    return at;
}

}
