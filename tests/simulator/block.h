/* tests/simulator/block.h: the threads of a block, of which one of a device runs at a time: each is a fiber, a stack of its own, that runs until it
   waits for others, at a barrier, for what its warp does together, or for what another device stores. The blocks of a grid run one after the other,
   those of a cluster at a time; further ones begin when all that have begun wait for another device. */

#define SIM_OWN static thread_local __attribute__((tls_model("initial-exec")))
SIM_OWN dim3 gridDim, blockDim;

namespace sim {

enum { WARP = 32, BARRIERS = 16, STACK = 64 << 10, SHARED = 128 << 10, SHARED_MOST = 101376, SHARED_FREE = 48 << 10, PARAMETERS = 1296, PAGE = 4096, CLUSTER = 8, BLOCK = 1024,
       THREADS = CLUSTER * BLOCK, LOADS_MOST = 1 << 20, BLOCKS = 32, DEVICES = 4 };

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
    int loads;                   /* relaxed ones, by which kernels poll their own device's memory */
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
    dim3 size, threads, cluster;
    size_t dynamic;
    size_t parameter;            /* bytes of the kernel's parameter, as its first thread says */
    void (*call)(void *);        /* runs a thread */
    void *with;
    int alive;                   /* threads */
    int arrived, phase;          /* of the cluster's barrier */
    size_t next;                 /* number of the first block that has not begun */
    dim3 first;                  /* index of the first block of these */
    int blocks;
    block block_of[BLOCKS];
    warp warp_of[THREADS / WARP];
    fiber *fibers[THREADS];
    char *stacks[THREADS];
    int warps;
    void *host;                  /* the stack pointer of who launched it */
};

/* A device. Its memory is a range of addresses (memory.h). */
struct device_state {
    std::recursive_mutex one;    /* who holds it runs a kernel */
    grid running;
    uint64_t seen;               /* progress that its threads saw last, as they all waited for other devices */
    double since, last;          /* when they first saw that, and last */
    double waited, waited_before;                           /* seconds in which no device did anything but wait; those before this kernel */
    std::atomic<bool> reaches[DEVICES];                     /* whose memory it may use */
    std::map<const void *, size_t> shared_allowed;          /* the most dynamic shared memory that a kernel may have, if more than SHARED_FREE */
};
static device_state devices[DEVICES];
static std::atomic<uint64_t> progress;                      /* blocks and operations that have begun or ended, on any device */
static const double GRACE = 0.5; /* seconds without progress from which on that counts: as long as a block may take */
static double patience = 30;     /* seconds of waiting after which a kernel polls without end */

SIM_OWN int current;             /* number of the thread's device */
SIM_OWN grid *running;           /* what it runs there */
SIM_OWN fiber *now;

static double clock() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static std::string readable(const void *function);         /* its name */
static inline void reach(const void *at);                   /* memory.h */

[[noreturn]] static void fault(const char *format, ...) {
    va_list arguments;
    fprintf(stderr, "\nsimulated GPU %d: ", current);
    if (now) fprintf(stderr, "%s, block (%u, %u, %u), thread (%u, %u, %u): ", readable(running->kernel).c_str(), now->block->index.x, now->block->index.y,
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
    fprintf(stderr, "\nsimulated GPU %d: %s: deadlock\n", current, readable(running->kernel).c_str());
    for (int i = 0; i < running->warps; i++) {
        const warp *w = &running->warp_of[i];
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
    const int own = (int)(now->warp - running->warp_of);
    for (int i = 0; i < running->warps; i++) {
        warp *w = &running->warp_of[own + i < running->warps ? own + i : own + i - running->warps];
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
    if (running->arrived < running->alive || !running->arrived) return;
    for (int i = 0; i < running->warps; i++) {
        running->warp_of[i].ready |= running->warp_of[i].in_cluster;
        running->warp_of[i].in_cluster = 0;
    }
    running->phase++;
    running->arrived = 0;
}

static void cluster_arrive() {
    now->arrived = running->phase;
    running->arrived++;
    open_cluster();
}

static void cluster_wait() {
    if (now->arrived != running->phase) return;
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
    running->alive--;
    for (uint32_t left = w->in_warp; left; left &= left - 1) {
        const int lane = __builtin_ctz(left);
        if (w->in_warp >> lane & 1 && w->mask[lane] & own) gather(w, w->mask[lane], lane);
    }
    open_block(f->block);
    open_cluster();
    if (!running->alive) {
        void *nowhere;
        now = NULL;
        change_stack(&nowhere, running->host);
    }
    now = next();
    change_stack(&f->stack_pointer, now->stack_pointer);
}

static void begin() {
    running->call(running->with);
    end();
}

static void *map_guarded(size_t bytes) {
    char *at = (char *)mmap(NULL, bytes + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED || mprotect(at + PAGE, bytes, PROT_READ | PROT_WRITE)) fault("no memory for %zu bytes", bytes);
    return at + PAGE;
}

static void open_thread(fiber **slot, block *b, warp *w, int i, int number) {
    if (!*slot) {
        *slot = new fiber();
        running->stacks[number] = (char *)map_guarded(STACK);
    }
    fiber *f = *slot;
    /* Stacks of one distance would lie on the same lines of the cache. */
    void **top = (void **)(running->stacks[number] + STACK - 64 - number * 320 % 8192 / 64 * 64);
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

/* A block begins, as number `rank` of those that run. */
static void open_one(int rank, dim3 index) {
    const int threads = (int)(blockDim.x * blockDim.y * blockDim.z), warps = (threads + WARP - 1) / WARP;
    block *b = &running->block_of[rank];
    b->index = {index.x, index.y, index.z};
    b->alive = threads;
    b->arrived = b->any = b->result = 0;
    memset(b->arrived_at, 0, sizeof b->arrived_at);
    b->warps = &running->warp_of[rank * warps];
    b->warp_count = warps;
    if (!b->memory) b->memory = (char *)map_guarded(SHARED);
    memset(b->memory + SHARED - running->dynamic, 0xff, running->dynamic);    /* NaNs */
    b->used = 0;
    b->dynamic = running->dynamic;
    b->variables.clear();
    memset(b->warps, 0, (size_t)warps * sizeof *b->warps);
    for (int i = 0; i < threads; i++) open_thread(&running->fibers[rank * threads + i], b, &b->warps[i / WARP], i, rank * threads + i);
    running->blocks = rank + 1;
    running->warps = running->blocks * warps;
    running->alive += threads;
}

/* The index of block `rank` of the cluster that began last. */
static dim3 index_in_cluster(int rank) {
    const dim3 c = running->cluster, first = running->first;
    const unsigned n = (unsigned)rank;
    return dim3(first.x + n % c.x, first.y + n / c.x % c.y, first.z + n / c.x / c.y);
}

/* What kernels begin with. */
static inline void parameter(size_t bytes) {
    running->parameter = bytes;
    if (bytes > PARAMETERS) fault("a parameter of %zu bytes", bytes);
}

/* What kernels with __cluster_dims__ begin with: as the first thread comes, the other blocks of the cluster begin, too. */
static inline void cluster(unsigned x, unsigned y, unsigned z) {
    running->cluster = dim3(x, y, z);
    while (running->blocks < (int)(x * y * z)) open_one(running->blocks, index_in_cluster(running->blocks));
}

/* Of clusters; a block alone is one. */
static size_t clusters() {
    const dim3 size = running->size, c = running->cluster;
    return (size_t)((size.x + c.x - 1) / c.x) * ((size.y + c.y - 1) / c.y) * ((size.z + c.z - 1) / c.z);
}
static int cluster_blocks() { return (int)(running->cluster.x * running->cluster.y * running->cluster.z); }

/* Chooses the first block of the next cluster. */
static void next_cluster() {
    const dim3 c = running->cluster;
    const size_t n = running->next++, x = (running->size.x + c.x - 1) / c.x, y = (running->size.y + c.y - 1) / c.y;
    running->first = dim3((unsigned)(n % x) * c.x, (unsigned)(n / x % y) * c.y, (unsigned)(n / x / y) * c.z);
}

/* Begins another block, beside those that run; false: there is none, or no place. */
static bool open_another() {
    const int threads = (int)(blockDim.x * blockDim.y * blockDim.z);
    if (cluster_blocks() > 1 || running->next == clusters() || running->blocks == BLOCKS || (running->blocks + 1) * threads > THREADS) return false;
    next_cluster();
    open_one(running->blocks, running->first);
    return true;
}

/* The thread that can go on after this one, in turns. */
static fiber *after(const fiber *f) {
    const int own = (int)(f->warp - running->warp_of);
    const uint32_t later = f->warp->ready & ~((2u << f->lane) - 1);
    if (later) return f->warp->lanes[__builtin_ctz(later)];
    for (int i = 1; i <= running->warps; i++) {
        warp *w = &running->warp_of[(own + i) % running->warps];
        if (w->ready) return w->lanes[__builtin_ctz(w->ready)];
    }
    deadlock();
}

/* All threads have looked in vain: lets other devices run. While these do anything, the time does not count, as here that takes long. */
static void wait_for_devices() {
    device_state *d = &devices[current];
    const double at = clock();
    const uint64_t done = progress;
    if (done != d->seen) d->since = at;
    else if (at - d->since > GRACE) d->waited += at - d->last;
    d->seen = done;
    d->last = at;
    if (d->waited - d->waited_before > patience) fault("polls without end: no device has done anything for %.0f s", patience);
    sched_yield();
}

/* In nanoseconds. */
static uint64_t waited() { return (uint64_t)(devices[current].waited * 1e9); }

/* A thread has looked for what another device, or the host, stores: others go on, and it looks again after them. */
static void poll() {
    fiber *f = now, *other = after(f);
    const bool all = other->warp < f->warp || (other->warp == f->warp && other->lane <= f->lane);
    if (all && open_another()) other = after(f);
    else if (all) wait_for_devices();
    now = other;
    if (other != f) change_stack(&f->stack_pointer, other->stack_pointer);
}

static void run_grid(const void *kernel, dim3 size, dim3 threads, size_t dynamic, void (*call)(void *), void *with) {
    running = &devices[current].running;
    devices[current].waited_before = devices[current].waited;
    running->kernel = kernel;
    running->size = gridDim = size;
    blockDim = threads;
    running->dynamic = dynamic;
    running->parameter = PARAMETERS;
    running->cluster = dim3(1, 1, 1);
    running->call = call;
    running->with = with;
    if (threads.x * threads.y * threads.z > BLOCK || !threads.x || !size.x || !size.y || !size.z || dynamic > SHARED_MOST)
        fault("%s: no such launch: %u x %u x %u blocks of %u threads, %zu bytes", readable(kernel).c_str(), size.x, size.y, size.z, threads.x, dynamic);
    for (running->next = 0; running->next < clusters();) {
        next_cluster();
        progress++;
        running->alive = running->blocks = running->arrived = running->phase = 0;
        for (int rank = 0; rank < cluster_blocks(); rank++) open_one(rank, index_in_cluster(rank));
        now = running->warp_of[0].lanes[0];
        change_stack(&running->host, now->stack_pointer);
    }
    progress++;
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
    if ((int)rank >= running->blocks) fault("block %u of a cluster of %d", rank, running->blocks);
    return running->block_of[rank].memory + shared_offset(at) - 1024;
}

/* A load or store of n bytes, which must be aligned to n. */
template <class T> static inline T *aligned(T *at) {
    reach(at);
    if ((uintptr_t)at % alignof(T)) fault("%p is not a multiple of %zu", (const void *)at, alignof(T));
    return at;
}

}
