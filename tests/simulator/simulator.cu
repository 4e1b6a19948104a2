// Tests of the simulated GPU: what kernels compute on it, and that it finds what is wrong in others.
// Usage: simulator, built by `make BUILD=build/simulated build/simulated/simulator`
//
// Contents   1. What is right   2. What is wrong   3. Main

#include <cuda_fp16.h>
#include <cuda_runtime.h>
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

// ---- 2. What is wrong: each ends the program with a message ------------------------------------------------------------

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
}

// ---- 3. Main ------------------------------------------------------------------------------------------------------------

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
    test_wrong();
    cudaStreamDestroy(stream);
    cudaFree(from);
    cudaFree(given.to);
    return test_main_end();
}
