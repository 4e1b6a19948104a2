// Tests of the simulated GPU: what kernels compute on it, and that it finds what is wrong in others.
// Usage: simulator, built by `make BUILD=build/simulated build/simulated/simulator`
//
// Contents   1. What is right   2. Several devices   3. What is wrong   4. Main

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <pthread.h>
#include <sys/wait.h>

#include "test.h"

enum { THREADS = 256, N = 64 };

// A kernel's parameter.
typedef struct numbers { const float *from; float *to; long long n, by; } numbers;

static numbers given;                        // [2 THREADS] 0, 1, 2 .. and as many results
static cudaStream_t stream;

static void begin(size_t shared, void (*kernel)(numbers), dim3 grid = 1) {
    void *arguments[1] = {&given};
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = dim3(THREADS);
    c.dynamicSmemBytes = shared;
    c.stream = stream;
    cudaLaunchKernelExC(&c, (const void *)kernel, arguments);
}

// ---- 1. What is right -----------------------------------------------------------------------------------------------

// The sum of all, by all threads.
static __global__ void add(const __grid_constant__ numbers p) {
    __shared__ float warps[THREADS / 32];
    float v = p.from[threadIdx.x];
    for (int i = 16; i; i /= 2) v += __shfl_xor_sync(~0u, v, i);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int w = 0; w < THREADS / 32; w++) v += warps[w];
    p.to[blockIdx.x * THREADS + threadIdx.x] = v;
}

// Each block of a cluster adds what all have.
static __global__ void __cluster_dims__(4, 1, 1) add_cluster(const __grid_constant__ numbers p) {
    __shared__ float own;
    if (threadIdx.x == 0) own = p.from[blockIdx.x];
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += *(const float *)__cluster_map_shared_rank(&own, i);
    if (threadIdx.x == 0) p.to[blockIdx.x] = sum;
}

// Copied in the background: what is there before the wait, and after it.
static __global__ void copy(const __grid_constant__ numbers p) {
    extern __shared__ __align__(16) float to[];
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(to + 4 * threadIdx.x);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(p.from + threadIdx.x / 4 * 4), "r"(16) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    p.to[threadIdx.x] = to[4 * threadIdx.x];
    asm volatile("cp.async.wait_group %0;" ::"n"(0) : "memory");
    p.to[THREADS + threadIdx.x] = to[4 * threadIdx.x];
}

// c[16][8] = a[16][16] b[16][8] of small whole numbers, from rows in shared memory by ldmatrix: b as its columns lie, and turned over.
static __global__ void multiply(const __grid_constant__ numbers p) {
    __shared__ __align__(16) __half a[16][16], b[16][8];
    const int lane = threadIdx.x % 32;
    uint32_t fa[4], fb[2];
    float c[4] = {0, 0, 0, 0};
    for (int i = threadIdx.x; i < 256; i += THREADS) a[i / 16][i % 16] = __float2half_rn((float)(i * 7 % 13 - 6));
    for (int i = threadIdx.x; i < 128; i += THREADS) b[i / 8][i % 8] = __float2half_rn((float)(i * 5 % 11 - 5));
    __syncthreads();
    const uint32_t at_a = (uint32_t)__cvta_generic_to_shared(&a[lane % 16][lane / 16 * 8]), at_b = (uint32_t)__cvta_generic_to_shared(&b[lane % 16][0]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3]) : "r"(at_a));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(fb[0]), "=r"(fb[1]) : "r"(at_b));
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
    if (threadIdx.x < 32)
        for (int i = 0; i < 4; i++) p.to[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = c[i];
}

static float product(int row, int column) {
    float sum = 0;
    for (int k = 0; k < 16; k++) sum += (float)((row * 16 + k) * 7 % 13 - 6) * (float)((k * 8 + column) * 5 % 11 - 5);
    return sum;
}

static __global__ void count(float *at) {
    if (threadIdx.x == 0) *at += 1;
}

static void test_right(void) {
    const float all = THREADS * (THREADS - 1) / 2;
    begin(0, add, 2);
    for (int i = 0; i < 2 * THREADS; i++) CHECK(given.to[i] == all, "thread %d: %g", i, given.to[i]);
    begin(0, add_cluster, 8);
    for (int i = 0; i < 8; i++) CHECK(given.to[i] == (i < 4 ? 6 : 22), "block %d of a cluster: %g", i, given.to[i]);
    begin(16 * THREADS, copy);
    for (int i = 0; i < THREADS; i++) {
        CHECK(given.to[i] != given.to[i], "before it was waited for: %g", given.to[i]);
        CHECK(given.to[THREADS + i] == (float)(i / 4 * 4), "copied: %g", given.to[THREADS + i]);
    }
    begin(0, multiply);
    for (int i = 0; i < 128; i++) CHECK(given.to[i] == product(i / 8, i % 8), "product %d, %d: %g", i / 8, i % 8, given.to[i]);
}

static void test_graph(void) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    cudaMemsetAsync(given.to, 0, sizeof *given.to, stream);
    for (int i = 0; i < 3; i++) count<<<1, THREADS, 0, stream>>>(given.to);
    cudaStreamEndCapture(stream, &graph);
    given.to[0] = 100;
    cudaGraphInstantiate(&ready, graph, 0);
    cudaGraphDestroy(graph);
    for (int i = 0; i < 2; i++) {
        CHECK(given.to[0] == (i ? 3 : 100), "before launch %d: %g", i, given.to[0]);
        cudaGraphLaunch(ready, stream);
    }
    CHECK(given.to[0] == 3, "counted %g", given.to[0]);
    cudaGraphExecDestroy(ready);
}

// ---- 2. Several devices ------------------------------------------------------------------------------------------------

enum { PAIR = 2, PARTS = 3, ROUNDS = 20, PART = 4 * THREADS };

// What a device gets from the other one: values with their round, in elements of 8 bytes, {value, value, value, round}, and a flag.
typedef struct mailbox {
    alignas(16) struct { float value; uint32_t round; } pairs[PARTS][THREADS];
    alignas(16) struct { float value[3]; uint32_t round; } fours[PARTS][THREADS];
    unsigned long long numbers[PARTS][THREADS];
    uint32_t flag, read;
} mailbox;

typedef struct exchanged {
    mailbox *own, *other;
    float *to;                                              // [PARTS][PART] what came in the last round
    uint32_t *round;                                        // in device memory; the kernel adds one
    float by;                                               // device 0 sends its numbers times 1, device 1 times 2
    int blocks;
} exchanged;

// Each block sends its part, and waits for what the last block, the last but one .. of the other device sends.
static __global__ void exchange(const __grid_constant__ exchanged p) {
    const int part = blockIdx.x, wanted = p.blocks - 1 - part, i = threadIdx.x;
    const uint32_t round = *p.round + 1;
    const float v = p.by * (float)(part * THREADS + i) + (float)round;
    asm volatile("st.relaxed.sys.global.v2.b32 [%0], {%1, %2};" ::"l"(&p.other->pairs[part][i]), "r"(__float_as_uint(v)), "r"(round) : "memory");
    asm volatile("st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(&p.other->fours[part][i]), "f"(v), "f"(v + 1), "f"(v + 2), "f"(__uint_as_float(round)) : "memory");
    asm volatile("st.volatile.global.u64 [%0], %1;" ::"l"(&p.other->numbers[part][i]), "l"((unsigned long long)round << 32 | __float_as_uint(v)) : "memory");
    float *to = p.to + wanted * PART + 4 * i;
    uint32_t bits, tag;
    do asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];" : "=r"(bits), "=r"(tag) : "l"(&p.own->pairs[wanted][i]) : "memory");
    while (tag != round);
    to[0] = __uint_as_float(bits);
    float a, b, c, d;
    do asm volatile("ld.relaxed.sys.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "l"(&p.own->fours[wanted][i]) : "memory");
    while (__float_as_uint(d) != round);
    to[1] = b;
    to[2] = c;
    unsigned long long both;
    do asm volatile("ld.volatile.global.u64 %0, [%1];" : "=l"(both) : "l"(&p.own->numbers[wanted][i]) : "memory");
    while (both >> 32 != round);
    to[3] = __uint_as_float((uint32_t)both);
}

// The first thread says that all of its device have come, and waits for the other device; the others wait for the first.
static __global__ void next_round(const __grid_constant__ exchanged p) {
    __shared__ int seen;
    const uint32_t round = *p.round + 1;
    if (threadIdx.x == 0) {
        uint32_t flag;
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(&p.other->flag), "r"(round) : "memory");
        do asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(flag) : "l"(&p.own->flag) : "memory");
        while (flag != round);
        seen = 1;
        *p.round = round;
    }
    __syncthreads();
    if (!seen) p.to[0] = -1;
}

// A device of the pair, in a thread of its own.
typedef struct member {
    int device, in_graph;
    exchanged p;
    cudaStream_t stream;
    pthread_t thread;
} member;

static void launch_round(const member *m) {
    exchange<<<PARTS, THREADS, 0, m->stream>>>(m->p);
    next_round<<<1, THREADS, 0, m->stream>>>(m->p);
}

static void *run_member(void *with) {
    const member *m = (const member *)with;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    cudaSetDevice(m->device);
    cudaStreamBeginCapture(m->stream, cudaStreamCaptureModeThreadLocal);
    launch_round(m);
    cudaStreamEndCapture(m->stream, &graph);
    cudaGraphInstantiate(&ready, graph, 0);
    cudaGraphDestroy(graph);
    for (int i = 0; i < ROUNDS; i++) {
        if (m->in_graph) cudaGraphLaunch(ready, m->stream);
        else launch_round(m);
    }
    cudaGraphExecDestroy(ready);
    return NULL;
}

// The mailboxes are in the devices' memory, or in the host's.
static void test_exchange(int in_host, int in_graph) {
    member m[PAIR] = {};
    mailbox *boxes[PAIR];
    for (int i = 0; i < PAIR; i++) {
        cudaSetDevice(i);
        if (in_host) cudaHostAlloc(&boxes[i], sizeof *boxes[i], cudaHostAllocPortable | cudaHostAllocMapped);
        else cudaMalloc(&boxes[i], sizeof *boxes[i]);
        cudaMemset(boxes[i], 0, sizeof *boxes[i]);
        cudaMalloc(&m[i].p.to, PARTS * PART * sizeof(float));
        cudaMalloc(&m[i].p.round, sizeof *m[i].p.round);
        cudaMemset(m[i].p.round, 0, sizeof *m[i].p.round);
        cudaStreamCreate(&m[i].stream);
    }
    for (int i = 0; i < PAIR; i++) {
        m[i].device = i;
        m[i].in_graph = in_graph;
        m[i].p.own = boxes[i];
        m[i].p.other = boxes[1 - i];
        m[i].p.by = (float)(1 + i);
        m[i].p.blocks = PARTS;
        pthread_create(&m[i].thread, NULL, run_member, &m[i]);
    }
    for (int i = 0; i < PAIR; i++) pthread_join(m[i].thread, NULL);
    for (int i = 0; i < PAIR; i++) {
        for (int n = 0; n < PARTS * THREADS; n++) {
            const float *got = m[i].p.to + 4 * n, sent = (float)((2 - i) * n + ROUNDS);
            CHECK(got[0] == sent && got[1] == sent + 1 && got[2] == sent + 2 && got[3] == sent, "device %d, host memory %d, graph %d, element %d: %g %g %g %g",
                  i, in_host, in_graph, n, got[0], got[1], got[2], got[3]);
        }
        CHECK(*m[i].p.round == ROUNDS, "device %d: round %u", i, *m[i].p.round);
        cudaSetDevice(i);
        cudaStreamDestroy(m[i].stream);
        cudaFree(m[i].p.to);
        cudaFree(m[i].p.round);
        if (in_host) cudaFreeHost(boxes[i]);
        else cudaFree(boxes[i]);
    }
    cudaSetDevice(0);
}

typedef struct timed { uint32_t *flag; unsigned long long *from, *to, most; } timed;

// Waits for the flag, at most `most` ns.
static __global__ void wait_bounded(const __grid_constant__ timed p) {
    uint32_t flag;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(*p.from));
    do {
        asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(flag) : "l"(p.flag) : "memory");
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(*p.to));
    } while (!flag && *p.to - *p.from < p.most);
}

// Computes for a second, and then sets the flag.
static __global__ void take_long(const __grid_constant__ timed p) {
    const double began = sim::clock();
    while (sim::clock() - began < 0.01) {}
    if (blockIdx.x == 99) asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p.flag), "r"(1) : "memory");
}

static void *run_long(void *p) {
    cudaSetDevice(1);
    take_long<<<100, 1>>>(*(const timed *)p);
    return NULL;
}

// A device that computes is waited for, however long that takes; one that does nothing is not.
static void test_time(void) {
    pthread_t thread;
    timed p = {NULL, NULL, NULL, 300000000};
    cudaMalloc(&p.flag, sizeof *p.flag);
    cudaMalloc(&p.from, sizeof *p.from);
    cudaMalloc(&p.to, sizeof *p.to);
    cudaMemset(p.flag, 0, sizeof *p.flag);
    pthread_create(&thread, NULL, run_long, &p);
    wait_bounded<<<1, 1>>>(p);
    CHECK(*p.flag == 1, "given up after %llu ns", *p.to - *p.from);
    pthread_join(thread, NULL);
    cudaMemset(p.flag, 0, sizeof *p.flag);
    const double began = sim::clock();
    wait_bounded<<<1, 1>>>(p);
    CHECK(*p.to - *p.from >= p.most && sim::clock() - began >= 0.3, "given up after %llu ns", *p.to - *p.from);
    cudaFree(p.flag);
    cudaFree(p.from);
    cudaFree(p.to);
}

static void test_each_device(void) {
    int devices = 0, reaches = 1;
    size_t left[2] = {0, 0}, all;
    float *there = NULL;
    cudaStream_t its = NULL;
    cudaEvent_t event = NULL;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t ready = NULL;
    cudaGetDeviceCount(&devices);
    CHECK(devices == 4 && cudaSetDevice(4) == cudaErrorInvalidDevice && cudaSetDevice(-1) == cudaErrorInvalidDevice, "%d devices", devices);
    CHECK(cudaGetLastError() == cudaErrorInvalidDevice && cudaGetLastError() == cudaSuccess, "last error");
    CHECK(cudaDeviceCanAccessPeer(&reaches, 0, 0) == cudaSuccess && !reaches, "a device is its own peer");
    CHECK(cudaDeviceCanAccessPeer(&reaches, 0, 1) == cudaSuccess && reaches, "no peers");
    for (int i = 0; i < PAIR; i++) {
        cudaSetDevice(i);
        CHECK(cudaDeviceEnablePeerAccess(1 - i, 0) == cudaSuccess, "device %d", i);
        CHECK(cudaDeviceEnablePeerAccess(1 - i, 0) == cudaErrorPeerAccessAlreadyEnabled, "device %d, again", i);
        CHECK(cudaDeviceEnablePeerAccess(i, 0) == cudaErrorInvalidDevice, "device %d, its own", i);
    }
    cudaMemGetInfo(&left[0], &all);
    cudaMalloc(&there, THREADS * sizeof *there);
    cudaMemGetInfo(&left[1], &all);
    CHECK(left[1] + THREADS * sizeof *there <= left[0], "%zu of %zu bytes left", left[1], left[0]);
    cudaStreamCreate(&its);
    cudaEventCreate(&event);
    cudaStreamBeginCapture(its, cudaStreamCaptureModeThreadLocal);
    count<<<1, THREADS, 0, its>>>(there);
    cudaStreamEndCapture(its, &graph);
    cudaGraphInstantiate(&ready, graph, 0);
    cudaGraphDestroy(graph);
    cudaMemset(there, 0, sizeof *there);
    cudaSetDevice(0);
    CHECK(cudaGraphLaunch(ready, stream) == cudaErrorInvalidResourceHandle, "another device's graph");
    CHECK(cudaEventRecord(event, stream) == cudaErrorInvalidResourceHandle, "another device's event");
    CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle, "last error");
    count<<<1, THREADS, 0, its>>>(there);
    CHECK(cudaGetLastError() == cudaErrorInvalidResourceHandle && there[0] == 0, "another device's stream");
    CHECK(cudaGraphLaunch(ready, its) == cudaSuccess && there[0] == 1, "its graph in its stream");
    CHECK(cudaMemcpyPeerAsync(given.to, 0, there, 1, sizeof *there, stream) == cudaSuccess && given.to[0] == 1, "copied %g", given.to[0]);
    cudaGraphExecDestroy(ready);
    cudaEventDestroy(event);
    cudaStreamDestroy(its);
    cudaFree(there);
}

// ---- 3. What is wrong: each ends the program with a message ------------------------------------------------------------

static __global__ void apart(const __grid_constant__ numbers p) {
    if (threadIdx.x == 3) __syncthreads();
    else __syncwarp();
    p.to[0] = 1;
}

static __global__ void different(const __grid_constant__ numbers p) {
    if (threadIdx.x % 2) p.to[threadIdx.x] = __shfl_sync(~0u, 1.0f, 0);
    else p.to[threadIdx.x] = (float)__ballot_sync(~0u, 1);
}

static __global__ void absent(const __grid_constant__ numbers p) {
    if (threadIdx.x < 16) p.to[threadIdx.x] = __shfl_sync(0xffff, 1.0f, 20);
}

static __global__ void beyond(const __grid_constant__ numbers p) {
    p.to[threadIdx.x + 2 * THREADS * (threadIdx.x == 9)] = 1;
}

static __global__ void beyond_shared(const __grid_constant__ numbers p) {
    extern __shared__ float memory[];
    memory[threadIdx.x + 1] = 1;
    p.to[0] = memory[0];
}

static __global__ void crooked(const __grid_constant__ numbers p) {
    p.to[threadIdx.x] = __ldg((const float4 *)(p.from + 1)).x;
}

static __global__ void polls(const __grid_constant__ numbers p) {
    float x;
    do asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x) : "l"(p.from) : "memory");
    while (x != 1);
    p.to[0] = x;
}

static __global__ void unreachable(const __grid_constant__ numbers p) {
    if (p.n) __builtin_unreachable();
}

static __global__ void polls_others(const __grid_constant__ numbers p) {
    uint32_t x;
    do asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(p.to) : "memory");
    while (x != 1);
}

static __global__ void stores_there(const __grid_constant__ numbers p) {
    asm volatile("st.relaxed.sys.global.f32 [%0], %1;" ::"l"(p.to), "f"(1.0f) : "memory");
}

static void ends(const char *said, size_t shared, void (*kernel)(numbers)) {
    int pipes[2];
    char message[2000] = "";
    if (pipe(pipes)) exit(2);
    fflush(NULL);
    const pid_t child = fork();
    if (!child) {
        dup2(pipes[1], 2);
        begin(shared, kernel);
        _exit(0);
    }
    int status = 0;
    close(pipes[1]);
    for (size_t n = 0; n < sizeof message - 1;) {
        const ssize_t more = read(pipes[0], message + n, sizeof message - 1 - n);
        if (more <= 0) break;
        n += (size_t)more;
    }
    close(pipes[0]);
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && strstr(message, said), "%s: status %d, %s", said, status, message);
}

static void test_wrong(void) {
    ends("deadlock", 0, apart);
    ends("different things", 0, different);
    ends("reads lane 20, which is not there", 0, absent);
    ends("thread (9, 0, 0): cannot use", 0, beyond);
    ends("cannot use", THREADS * sizeof(float), beyond_shared);
    ends("is not a multiple of 16", 0, crooked);
    ends("polls without end", 0, polls);
    ends("cannot be reached", 0, unreachable);
    ends("without cudaFuncSetAttribute", 50000, add);
    sim::patience = 0.2;
    ends("polls without end", 0, polls_others);
}

// Device 2 may not use memory of device 0, and what device 0 is allowed it is not.
static void test_wrong_device(void) {
    const cudaStream_t before = stream;
    cudaFuncSetAttribute(add, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000);
    begin(50000, add);
    CHECK(given.to[0] == THREADS * (THREADS - 1) / 2, "with much shared memory: %g", given.to[0]);
    cudaSetDevice(2);
    cudaStreamCreate(&stream);
    ends("simulated GPU 2: ", 0, stores_there);
    ends("to which device 2 has no peer access", 0, stores_there);
    ends("without cudaFuncSetAttribute for this device", 50000, add);
    cudaStreamDestroy(stream);
    cudaSetDevice(0);
    stream = before;
}

// As SIMULATED_PEERS=0 has it.
static void test_no_peers(void) {
    int reaches = 1;
    setenv("SIMULATED_PEERS", "0", 1);
    CHECK(cudaDeviceCanAccessPeer(&reaches, 0, 1) == cudaSuccess && !reaches, "peers");
    CHECK(cudaDeviceEnablePeerAccess(3, 0) == cudaErrorPeerAccessUnsupported, "enabled");
    test_exchange(1, 0);
}

// ---- 4. Main ------------------------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    float *from = NULL;
    test_main_begin("simulator", argc, argv);
    cudaMalloc(&from, 2 * THREADS * sizeof *from);
    cudaMalloc(&given.to, 2 * THREADS * sizeof *given.to);
    cudaStreamCreate(&stream);
    for (int i = 0; i < 2 * THREADS; i++) from[i] = (float)i;
    given.from = from;
    given.n = N;
    test_right();
    test_graph();
    test_each_device();
    for (int way = 0; way < 4; way++) test_exchange(way / 2, way % 2);
    test_time();
    test_wrong();
    test_wrong_device();
    test_no_peers();
    cudaStreamDestroy(stream);
    cudaFree(from);
    cudaFree(given.to);
    return test_main_end();
}
