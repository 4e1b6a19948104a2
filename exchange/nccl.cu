/* exchange/nccl.cu: NCCL, NVIDIA's library by which GPUs of several hosts reach each other, opened where it is installed: nothing is linked to it.
   Its functions, constants and structs are declared here as far as they are used. Calls do not wait (nccl_config): one that is not done returns
   NCCL_IN_PROGRESS, and nccl.error tells later what has become of it. Must not know who sends what. */

#include <dlfcn.h>

enum { NCCL_SUCCESS = 0, NCCL_INTERNAL_ERROR = 3, NCCL_IN_PROGRESS = 7 };    /* ncclResult_t */
enum { NCCL_FLOAT32 = 7 };                                  /* ncclDataType_t */
enum { NCCL_LEAST = 21400 };                                /* the first version whose calls need not wait, and the struct below is its */

typedef struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, reserved;
} nccl_config;

typedef struct nccl_library {
    int version;                 /* 2.28.9 is 22809; 0: it is not there, or too old */
    int (*get_version)(int *version);
    int (*get_id)(group_id *id);
    int (*join)(void **comm, int ranks, group_id id, int rank, nccl_config *config);
    int (*send)(const void *from, size_t count, int type, int to, void *comm, cudaStream_t stream);
    int (*receive)(void *to, size_t count, int type, int from, void *comm, cudaStream_t stream);
    int (*error)(void *comm, int *result);
    int (*abort)(void *comm);
    const char *(*says)(int result);
} nccl_library;

static nccl_library nccl;        /* written by nccl_load alone */

static void nccl_load(void) {
    static const struct { const char *name; size_t at; } functions[] = {
        {"ncclGetVersion", offsetof(nccl_library, get_version)}, {"ncclGetUniqueId", offsetof(nccl_library, get_id)},
        {"ncclCommInitRankConfig", offsetof(nccl_library, join)}, {"ncclSend", offsetof(nccl_library, send)},
        {"ncclRecv", offsetof(nccl_library, receive)}, {"ncclCommGetAsyncError", offsetof(nccl_library, error)},
        {"ncclCommAbort", offsetof(nccl_library, abort)}, {"ncclGetErrorString", offsetof(nccl_library, says)}};
    void *file = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    int version = 0;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = file ? dlsym(file, functions[i].name) : NULL;
        if (!function) return;
        memcpy((char *)&nccl + functions[i].at, &function, sizeof function);
    }
    if (nccl.get_version(&version) == NCCL_SUCCESS && version >= NCCL_LEAST) nccl.version = version;
}

/* 0: it cannot be used. */
static int nccl_version(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, nccl_load);
    return nccl.version;
}

/* Begins to be number `rank` of those that join with this id. The GPU is chosen. */
static int nccl_join(void **comm, int ranks, const group_id *id, int rank) {
    nccl_config c = {.size = sizeof c, .magic = 0xcafebeef, .version = NCCL_LEAST, .blocking = 0, .reserved = 0};
    return nccl.join(comm, ranks, *id, rank, &c);
}
