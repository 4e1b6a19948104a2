/* tests/simulator/cuda_runtime.h: a GPU that is none: CUDA's runtime, kernels and all, on the CPU (x86-64 with AVX2). No toolkit is needed.

     make BUILD=build/simulated build/simulated/mote build/simulated/test_engine          # a minute; engine.o is compiled once
     build/simulated/test_engine --device cuda --brief "" tests/fixtures/fp8-ragged        # some seconds; without --brief, minutes
     build/simulated/mote run -m models/demo --device cuda -n 4 --greedy -p hi

   The sources are those of the GPU: rewrite.pl turns what C++ does not have (launches, shared memory, instructions of PTX) into calls of
   what stands here. An instruction that a kernel uses for the first time is a function to be added to ptx.h, as the compiler then says.

     types.h     CUDA's words and vectors          device.h        what kernels call: barriers, shuffles, atomics, numbers
     block.h     the threads of a block, polling   ptx.h           instructions: loads, cp.async, ldmatrix, mma
     memory.h    of devices                        here            the host's part: devices, launches, streams, graphs

   There are four devices, which can all use each other's memory, in one space of addresses; with SIMULATED_PEERS=0 in the environment none can.
   SIMULATED_PINNED there says how much of the host's memory can be registered (cudaHostRegister), SIMULATED_INTEGRATED that a device's is the host's.
   A launch returns when the kernel has ended, and runs in the thread that launched it, one at a time on a device: so kernels of several devices
   that wait for each other are launched by a thread each. Who loads with .sys or .volatile, or calls __nanosleep, lets other threads of its grid go
   on, further blocks begin, and other devices run. %globaltimer stands still while anything but polling goes on: it counts what is over half a
   second in which no block began or ended on any device, as what takes a GPU 1 ms may take seconds here.

   What it finds, with kernel, block and thread: a barrier at which not all arrive, lanes that are not there or do different things together;
   memory that is not there (each allocation, and dynamic shared memory, ends before a page that cannot be used), that is not aligned, or was
   never stored (it begins as NaNs); cp.async that is read before it was waited for; values polled for that never come; another device's memory
   without peer access, in loads and stores that name an instruction or a function (a plain *p is not looked at); much shared memory that this
   device was not allowed. An error, as of CUDA: another device's stream, event or graph. In a debugger, break at sim::fault.
   What it does not: races, as one thread of a device runs until it waits; what the memory order is; last bits of sums and of fast functions; speed. */
#ifndef SIM_RUNTIME
#define SIM_RUNTIME

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <elf.h>
#include <functional>
#include <immintrin.h>
#include <map>
#include <memory>
#include <mutex>
#include <sched.h>
#include <string>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <time.h>
#include <tuple>
#include <unistd.h>
#include <vector>

#include "types.h"
#include "block.h"
#include "memory.h"
#include "device.h"
#include "ptx.h"

#define CUDART_VERSION 12000

enum cudaError_t {
    cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorInsufficientDriver = 35, cudaErrorNoDevice = 100,
    cudaErrorInvalidDevice = 101, cudaErrorNoKernelImageForDevice = 209, cudaErrorPeerAccessUnsupported = 217, cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600, cudaErrorPeerAccessAlreadyEnabled = 704, cudaErrorPeerAccessNotEnabled = 705, cudaErrorNotSupported = 801, cudaErrorUnknown = 999
};
enum cudaMemcpyKind { cudaMemcpyHostToHost, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice, cudaMemcpyDefault };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributePreferredSharedMemoryCarveout };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount, cudaDevAttrMaxSharedMemoryPerMultiprocessor, cudaDevAttrL2CacheSize, cudaDevAttrComputeCapabilityMajor };
enum cudaStreamCaptureMode { cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal };
enum cudaGraphNodeType { cudaGraphNodeTypeKernel, cudaGraphNodeTypeMemcpy, cudaGraphNodeTypeMemset, cudaGraphNodeTypeEmpty };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2, cudaHostAllocWriteCombined = 4,
       cudaHostRegisterPortable = 1, cudaHostRegisterMapped = 2 };
enum cudaLaunchAttributeID {
    cudaLaunchAttributePreferredSharedMemoryCarveout, cudaLaunchAttributeProgrammaticStreamSerialization, cudaLaunchAttributeClusterDimension
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    union {
        unsigned sharedMemCarveout;
        int programmaticStreamSerializationAllowed;
        struct { unsigned x, y, z; } clusterDim;
    } val;
};
struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount, l2CacheSize, integrated, clockRate, memoryClockRate, memoryBusWidth;
    size_t sharedMemPerMultiprocessor, sharedMemPerBlockOptin, totalGlobalMem;
};
struct cudaFuncAttributes { size_t sharedSizeBytes, localSizeBytes; int numRegs, binaryVersion, maxThreadsPerBlock; };

/* A kernel, or an operation on memory, that a stream is asked for. */
struct sim_operation {
    const void *kernel;          /* NULL: memory */
    dim3 grid, block;
    size_t shared;
    std::function<void()> run;
};
struct sim_graph { std::vector<sim_operation> operations; int device; };
struct sim_stream { sim_graph *capture; int device; };
struct sim_event { double at; int device; };
typedef sim_stream *cudaStream_t;
typedef sim_event *cudaEvent_t;
typedef sim_graph *cudaGraph_t;
typedef sim_graph *cudaGraphExec_t;
typedef const sim_operation *cudaGraphNode_t;
struct cudaLaunchConfig_t { dim3 gridDim, blockDim; size_t dynamicSmemBytes; cudaStream_t stream; cudaLaunchAttribute *attrs; unsigned numAttrs; };
struct cudaKernelNodeParams { void *func; dim3 gridDim, blockDim; unsigned sharedMemBytes; void **kernelParams, **extra; };

namespace sim {

enum { SMS = 4, SM_SHARED = 228 << 10, L2 = 50 << 20, MEMORY = 1 << 30 };

/* A kernel's parameter. */
template <int SIZE> struct parameters { alignas(16) char bytes[SIZE]; };

/* Calls kernel(*p), a struct of `bytes` bytes. */
static void call_kernel(const void *kernel, const void *p, size_t bytes) {
    if (bytes <= 256) ((void (*)(parameters<256>))(uintptr_t)kernel)(*(const parameters<256> *)p);
    else if (bytes <= 640) ((void (*)(parameters<640>))(uintptr_t)kernel)(*(const parameters<640> *)p);
    else ((void (*)(parameters<PARAMETERS>))(uintptr_t)kernel)(*(const parameters<PARAMETERS> *)p);
}

/* The names of functions by their addresses, from the program's own table of symbols. */
static std::map<uintptr_t, const char *> read_symbols() {
    std::map<uintptr_t, const char *> names;
    const int file = open("/proc/self/exe", O_RDONLY);
    struct stat about;
    if (file < 0 || fstat(file, &about)) return names;
    const char *elf = (const char *)mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (elf == MAP_FAILED) return names;
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)elf;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(elf + header->e_shoff);
    const uintptr_t loaded = header->e_type == ET_DYN ? getauxval(AT_ENTRY) - header->e_entry : 0;
    for (int i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB) continue;
        const Elf64_Sym *symbol = (const Elf64_Sym *)(elf + sections[i].sh_offset);
        const char *strings = elf + sections[sections[i].sh_link].sh_offset;
        for (size_t n = 0; n < sections[i].sh_size / sizeof *symbol; n++)
            if (ELF64_ST_TYPE(symbol[n].st_info) == STT_FUNC) names[symbol[n].st_value + loaded] = strings + symbol[n].st_name;
    }
    return names;
}

static const char *kernel_name(const void *kernel) {
    static const std::map<uintptr_t, const char *> names = read_symbols();
    const auto found = names.find((uintptr_t)kernel);
    return found == names.end() ? "a kernel" : found->second;
}

static std::string readable(const void *function) {
    int failed = -1;
    char *name = abi::__cxa_demangle(kernel_name(function), NULL, NULL, &failed);
    const std::string text = failed ? kernel_name(function) : name;
    free(name);
    return text.substr(0, text.find('('));
}

/* What a signal of the processor says: an address that is nobody's, or is not aligned. */
static void on_signal(int, siginfo_t *about, void *) { fault("cannot use %p", about->si_addr); }
static void catch_signals() {
    static thread_local bool done;
    if (done) return;
    done = true;
    stack_t stack = {};
    stack.ss_size = 64 << 10;
    stack.ss_sp = malloc(stack.ss_size);
    sigaltstack(&stack, NULL);
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
}

static thread_local cudaError_t last_error;

static cudaError_t fail(cudaError_t error) { return last_error = error; }

/* The device does this now, or it is captured. */
static cudaError_t submit(int device, cudaStream_t stream, sim_operation operation) {
    if (stream && stream->capture) {
        stream->capture->operations.push_back(std::move(operation));
        return cudaSuccess;
    }
    const int before = current;
    std::unique_lock<std::recursive_mutex> one(devices[device].one, std::defer_lock);
    if (operation.kernel) one.lock();                       /* memory is copied beside kernels, as by other streams */
    current = device;
    progress++;
    operation.run();
    current = before;
    return cudaSuccess;
}
static int device_of(cudaStream_t stream) { return stream ? stream->device : current; }

static std::mutex allowed_lock;  /* of devices' shared_allowed */

/* The most dynamic shared memory that a kernel may have on this device, if more than SHARED_FREE. */
static size_t shared_allowed(const void *kernel) {
    std::lock_guard<std::mutex> one(allowed_lock);
    return devices[current].shared_allowed[kernel];
}

/* body() is what a thread does. */
template <class F> static cudaError_t submit_kernel(cudaStream_t stream, const void *kernel, dim3 grid, dim3 block, size_t shared, F body) {
    if (device_of(stream) != current) return fail(cudaErrorInvalidResourceHandle);
    if (shared > SHARED_FREE && shared_allowed(kernel) < shared)
        fault("%s: %zu bytes of shared memory, without cudaFuncSetAttribute for this device", readable(kernel).c_str(), shared);
    return submit(current, stream, {kernel, grid, block, shared, [=]() {
        catch_signals();
        auto own = body;
        run_grid(kernel, grid, block, shared, [](void *with) { (*(F *)with)(); }, &own);
    }});
}

struct config { dim3 grid, block; size_t shared; cudaStream_t stream; };
static inline config shape(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = NULL) { return {grid, block, shared, stream}; }

template <class... P, class... A> static cudaError_t launch(const config &c, void (*kernel)(P...), A... given) {
    const std::tuple<P...> arguments(given...);
    return submit_kernel(c.stream, (const void *)kernel, c.grid, c.block, c.shared, [=]() { std::apply(kernel, arguments); });
}

/* No peer access at all. */
static bool alone() {
    const char *peers = getenv("SIMULATED_PEERS");
    return peers && !strcmp(peers, "0");
}

}

/* ---- Launches. A kernel's one parameter is a struct of more than 16 bytes: passed by value as any other such, in memory ------ */

static inline cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    typedef sim::parameters<sim::PARAMETERS> most;
    const std::shared_ptr<most> own = std::make_shared<most>();
    memcpy(own->bytes, arguments[0], sizeof own->bytes);
    return sim::submit_kernel(stream, kernel, grid, block, shared, [=]() { sim::call_kernel(kernel, own->bytes, sim::running->parameter); });
}
static inline cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *kernel, void **arguments) {
    return cudaLaunchKernel(kernel, c->gridDim, c->blockDim, arguments, c->dynamicSmemBytes, c->stream);
}
template <class... P, class... A> static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *c, void (*kernel)(P...), A... given) {
    return sim::launch({c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream}, kernel, given...);
}
template <class T> static inline cudaError_t cudaFuncSetAttribute(T *kernel, cudaFuncAttribute which, int value) {
    std::lock_guard<std::mutex> one(sim::allowed_lock);
    if (which == cudaFuncAttributeMaxDynamicSharedMemorySize) sim::devices[sim::current].shared_allowed[(const void *)kernel] = (size_t)value;
    return cudaSuccess;
}
template <class T> static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *to, T *) {
    memset(to, 0, sizeof *to);
    to->binaryVersion = 90;
    to->maxThreadsPerBlock = sim::BLOCK;
    return cudaSuccess;
}
template <class T> static inline cudaError_t cudaFuncGetName(const char **to, T *kernel) {
    *to = sim::kernel_name((const void *)kernel);
    return cudaSuccess;
}
template <class T> static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *to, T *, int, size_t) {
    *to = 1;
    return cudaSuccess;
}
template <class T> static inline cudaError_t cudaOccupancyMaxActiveClusters(int *to, T *, const cudaLaunchConfig_t *) {
    *to = 8;
    return cudaSuccess;
}

/* ---- Devices ---------------------------------------------------------------------------------------------------------------------- */

static inline cudaError_t cudaGetLastError() {
    const cudaError_t error = sim::last_error;
    sim::last_error = cudaSuccess;
    return error;
}
static inline const char *cudaGetErrorString(cudaError_t e) {
    return e == cudaErrorMemoryAllocation ? "out of memory" : e == cudaErrorInvalidDevice ? "invalid device ordinal" :
           e == cudaErrorInvalidResourceHandle ? "invalid resource handle" : e == cudaErrorPeerAccessUnsupported ? "peer access is not supported" :
           e == cudaErrorPeerAccessAlreadyEnabled ? "peer access is already enabled" : "an error of the simulated GPU";
}
static inline cudaError_t cudaGetDeviceCount(int *to) { *to = sim::DEVICES; return cudaSuccess; }
static inline cudaError_t cudaDriverGetVersion(int *to) { *to = CUDART_VERSION; return cudaSuccess; }
static inline bool sim_is_device(int device) { return device >= 0 && device < sim::DEVICES; }
static inline cudaError_t cudaSetDevice(int device) {
    if (!sim_is_device(device)) return sim::fail(cudaErrorInvalidDevice);
    sim::current = device;
    return cudaSuccess;
}
static inline cudaError_t cudaGetDevice(int *to) { *to = sim::current; return cudaSuccess; }
static inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *to, int device) {
    if (!sim_is_device(device)) return sim::fail(cudaErrorInvalidDevice);
    memset(to, 0, sizeof *to);
    strcpy(to->name, "simulated GPU");
    to->major = 9;
    to->multiProcessorCount = sim::SMS;
    to->l2CacheSize = sim::L2;
    to->sharedMemPerMultiprocessor = sim::SM_SHARED;
    to->totalGlobalMem = (size_t)8 * sim::MEMORY;
    to->integrated = getenv("SIMULATED_INTEGRATED") != NULL;
    return cudaSuccess;
}
static inline cudaError_t cudaDeviceGetAttribute(int *to, cudaDeviceAttr which, int device) {
    if (!sim_is_device(device)) return sim::fail(cudaErrorInvalidDevice);
    *to = which == cudaDevAttrMultiProcessorCount ? (int)sim::SMS : which == cudaDevAttrMaxSharedMemoryPerMultiprocessor ? (int)sim::SM_SHARED :
          which == cudaDevAttrL2CacheSize ? (int)sim::L2 : 9;
    return cudaSuccess;
}
static inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
static inline cudaError_t cudaDeviceCanAccessPeer(int *to, int device, int peer) {
    if (!sim_is_device(device) || !sim_is_device(peer)) return sim::fail(cudaErrorInvalidDevice);
    *to = device != peer && !sim::alone();
    return cudaSuccess;
}
static inline cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
    if (!sim_is_device(peer) || peer == sim::current) return sim::fail(cudaErrorInvalidDevice);
    if (flags) return sim::fail(cudaErrorInvalidValue);
    if (sim::alone()) return sim::fail(cudaErrorPeerAccessUnsupported);
    if (sim::devices[sim::current].reaches[peer].exchange(true)) return sim::fail(cudaErrorPeerAccessAlreadyEnabled);
    return cudaSuccess;
}
static inline cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    if (!sim_is_device(peer)) return sim::fail(cudaErrorInvalidDevice);
    return sim::devices[sim::current].reaches[peer].exchange(false) ? cudaSuccess : sim::fail(cudaErrorPeerAccessNotEnabled);
}

/* ---- Memory -------------------------------------------------------------------------------------------------------------------------- */

template <class T> static inline cudaError_t cudaMalloc(T **to, size_t bytes) {
    *to = NULL;
    if (!bytes) return cudaSuccess;
    if (bytes <= (size_t)64 * sim::MEMORY) *to = (T *)sim::allocate(sim::current, bytes);
    return *to ? cudaSuccess : sim::fail(cudaErrorMemoryAllocation);
}
static inline cudaError_t cudaFree(void *at) {
    if (at) sim::release(at);
    return cudaSuccess;
}
/* As with unified addresses: all devices can use it, at the same address. */
template <class T> static inline cudaError_t cudaHostAlloc(T **to, size_t bytes, unsigned) {
    *to = (T *)aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return *to ? cudaSuccess : sim::fail(cudaErrorMemoryAllocation);
}
/* As much as SIMULATED_PINNED in the environment says, in bytes; "none": it is not supported; absent: all. */
static inline cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned) {
    const char *most = getenv("SIMULATED_PINNED");
    std::lock_guard<std::mutex> one(sim::memory_lock);
    if (most && !strcmp(most, "none")) return sim::fail(cudaErrorNotSupported);
    size_t all = bytes;
    for (const auto &i : sim::registered) all += i.second;
    if (most && all > strtoull(most, NULL, 10)) return sim::fail(cudaErrorMemoryAllocation);
    sim::registered[at] = bytes;
    return cudaSuccess;
}
static inline cudaError_t cudaHostUnregister(void *at) {
    std::lock_guard<std::mutex> one(sim::memory_lock);
    return sim::registered.erase(at) ? cudaSuccess : sim::fail(cudaErrorInvalidValue);
}
template <class T> static inline cudaError_t cudaHostGetDevicePointer(T **to, void *at, unsigned) { *to = (T *)at; return cudaSuccess; }
static inline cudaError_t cudaFreeHost(void *at) { free(at); return cudaSuccess; }
static inline cudaError_t cudaMemGetInfo(size_t *left, size_t *all) {
    std::lock_guard<std::mutex> one(sim::memory_lock);
    const size_t used = sim::memories[sim::current].used;
    *all = (size_t)8 * sim::MEMORY;
    *left = used < *all ? *all - used : 0;
    return cudaSuccess;
}
static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t stream = NULL) {
    return sim::submit(sim::device_of(stream), stream, {NULL, {}, {}, 0, [=]() { memmove(to, from, bytes); }});
}
static inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) { return cudaMemcpyAsync(to, from, bytes, kind); }
/* Without peer access it goes through the host's memory. */
static inline cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t stream = NULL) {
    if (sim::owner(to) != to_device || sim::owner(from) != from_device)
        sim::fault("cudaMemcpyPeerAsync to device %d from device %d: memory of %d and %d", to_device, from_device, sim::owner(to), sim::owner(from));
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}
static inline cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes) {
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes);
}
static inline cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream = NULL) {
    return sim::submit(sim::device_of(stream), stream, {NULL, {}, {}, 0, [=]() { memset(to, value, bytes); }});
}
static inline cudaError_t cudaMemset(void *to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes); }

/* ---- Streams, which do at once what they are asked for; events ------------------------------------------------------------------------- */

static inline cudaError_t cudaStreamCreate(cudaStream_t *to) { *to = new sim_stream{NULL, sim::current}; return cudaSuccess; }
static inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *to, unsigned) { return cudaStreamCreate(to); }
static inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t *to, unsigned, int) { return cudaStreamCreate(to); }
static inline cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -1, cudaSuccess; }
static inline cudaError_t cudaStreamDestroy(cudaStream_t s) { delete s; return cudaSuccess; }
static inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
static inline cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
static inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0) { return cudaSuccess; }
static inline cudaError_t cudaEventCreate(cudaEvent_t *to) { *to = new sim_event{0, sim::current}; return cudaSuccess; }
static inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *to, unsigned) { return cudaEventCreate(to); }
static inline cudaError_t cudaEventDestroy(cudaEvent_t e) { delete e; return cudaSuccess; }
static inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s = NULL) {
    if (e->device != sim::device_of(s)) return sim::fail(cudaErrorInvalidResourceHandle);
    e->at = sim::clock();
    return cudaSuccess;
}
static inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
static inline cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
static inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) { *ms = (float)((to->at - from->at) * 1e3); return cudaSuccess; }

/* ---- Graphs -------------------------------------------------------------------------------------------------------------------------------- */

static inline cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) { s->capture = new sim_graph{{}, s->device}; return cudaSuccess; }
static inline cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *to) { *to = s->capture; s->capture = NULL; return cudaSuccess; }
static inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t *to, cudaGraph_t from, unsigned long long = 0) { *to = new sim_graph(*from); return cudaSuccess; }
static inline cudaError_t cudaGraphDestroy(cudaGraph_t g) { delete g; return cudaSuccess; }
static inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g) { delete g; return cudaSuccess; }
static inline cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t s) {
    if (g->device != sim::device_of(s)) return sim::fail(cudaErrorInvalidResourceHandle);
    for (const sim_operation &operation : g->operations) sim::submit(g->device, s, operation);
    return cudaSuccess;
}
static inline cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *to, size_t *count) {
    for (size_t i = 0; to && i < *count && i < g->operations.size(); i++) to[i] = &g->operations[i];
    *count = to && *count < g->operations.size() ? *count : g->operations.size();
    return cudaSuccess;
}
static inline cudaError_t cudaGraphNodeGetType(cudaGraphNode_t n, cudaGraphNodeType *to) { *to = n->kernel ? cudaGraphNodeTypeKernel : cudaGraphNodeTypeMemset; return cudaSuccess; }
static inline cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t n, cudaKernelNodeParams *to) {
    memset((void *)to, 0, sizeof *to);
    to->func = (void *)(uintptr_t)n->kernel;
    to->gridDim = n->grid;
    to->blockDim = n->block;
    to->sharedMemBytes = (unsigned)n->shared;
    return cudaSuccess;
}

#endif
