/* checkpoint/device.c: the device that holds a model: which one, what is free on it, the arena. */

/* Bytes of memory the system could give now, 0 when it does not say. */
static uint64_t memory_available(void) {
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1) break;
    if (f) fclose(f);
    return (uint64_t)kib << 10;
}

#ifdef __CUDACC__
/* Names the operation that failed. A failure of one call must not show up in the next. */
static int gpu_fail(mote_error *err, cudaError_t status, const char *what) {
    (void)cudaGetLastError();
    if (status == cudaErrorMemoryAllocation) return fail(err, MOTE_ENOMEM, "%s: out of memory on the GPU", what);
    return fail(err, MOTE_EDEVICE, "%s: %s", what, cudaGetErrorString(status));
}

/* Makes GPU `ordinal` the model's, without using it yet. *none: there is no GPU at all. */
static int gpu_find(mote_model *m, int ordinal, int *none, mote_error *err) {
    int count = 0, driver = 0;
    cudaDeviceProp about;
    cudaError_t status = cudaGetDeviceCount(&count);
    (void)cudaDriverGetVersion(&driver);
    *none = !driver || status == cudaErrorNoDevice || (status == cudaSuccess && !count);
    if (*none) {
        (void)cudaGetLastError();
        return fail(err, MOTE_EDEVICE, "cuda:%d: no CUDA device", ordinal);
    }
    if (status == cudaErrorInsufficientDriver) {
        (void)cudaGetLastError();
        return fail(err, MOTE_EDEVICE, "cuda:%d: the driver supports CUDA %d.%d, needs %d.0", ordinal, driver / 1000,
                    driver % 1000 / 10, CUDART_VERSION / 1000);
    }
    if (status != cudaSuccess) return gpu_fail(err, status, "looking for CUDA devices");
    if (ordinal >= count)
        return fail(err, MOTE_EDEVICE, "cuda:%d: no such CUDA device, there %s %d", ordinal, count == 1 ? "is" : "are",
                    count);
    status = cudaGetDeviceProperties(&about, ordinal);
    if (status != cudaSuccess) return gpu_fail(err, status, "asking for the GPU's properties");
    if (about.major * 10 + about.minor < 89)
        return fail(err, MOTE_EDEVICE, "cuda:%d: %.100s has compute capability %d.%d, needs 8.9", ordinal, about.name,
                    about.major, about.minor);
    m->gpu = ordinal;
    m->gpu_sms = about.multiProcessorCount;
    m->gpu_cache = (uint32_t)about.l2CacheSize;
    m->gpu_cc = about.major * 10 + about.minor;
    m->gpu_shared = (int)about.sharedMemPerMultiprocessor;
    m->gpu_integrated = about.integrated;
    snprintf(m->device, sizeof m->device, "cuda:%d %s (sm_%d)", ordinal, about.name, m->gpu_cc);
    return MOTE_OK;
}
#else
static int gpu_find(mote_model *m, int ordinal, int *none, mote_error *err) {
    (void)m;
    *none = 1;
    return fail(err, MOTE_EDEVICE, "cuda:%d: this build has no CUDA", ordinal);
}
#endif

/* "cpu": -1; "cuda", "cuda:0", "cuda:1", ...: the number; NULL: 0. */
static int device_number(const char *name, int *number, mote_error *err) {
    char *end;
    *number = name && !strcmp(name, "cpu") ? -1 : 0;
    if (!name || *number < 0 || !strcmp(name, "cuda")) return MOTE_OK;
    if (!strncmp(name, "cuda:", 5) && name[5] >= '0' && name[5] <= '9') {
        long n = strtol(name + 5, &end, 10);
        *number = n < 1000 ? (int)n : 1000;
        if (!*end) return MOTE_OK;
    }
    return fail(err, MOTE_EINVAL, "device \"%.40s\", expected \"cpu\", \"cuda\", or \"cuda:\" and a number", name);
}

enum { DRAFT_ROWS = 65536 };                   /* of lm_head, for drafts, unless asked otherwise */

/* A model without anything, on the device that `name` says; NULL: on a GPU if there is one that can be used. `idle`:
   the model will compute nothing, GPUs are left alone. */
static mote_model *model_new(const char *name, int idle, const mote_callbacks *callbacks, mote_error *err) {
    int number, none;
    mote_error why;
    if (device_number(name, &number, err)) return NULL;
    mote_model *m = (mote_model *)calloc(1, sizeof *m);
    if (!m) {
        fail_memory(err);
        return NULL;
    }
    m->holders = 1;
    m->gpu = -1;
    m->draft_rows = DRAFT_ROWS;
    m->info.device = m->device;
    snprintf(m->device, sizeof m->device, "cpu");
    if (number < 0 || idle || !gpu_find(m, number, &none, name ? err : &why)) return m;
    if (!name) {
        if (!none) notice(callbacks, "%s: using the CPU", why.message);
        return m;
    }
    free(m);
    return NULL;
}

/* Bytes free on the model's device, 0 when it does not say. */
static uint64_t device_available(const mote_model *m) {
#ifdef __CUDACC__
    size_t left = 0, all = 0;
    if (m->gpu >= 0 && !m->gpu_integrated)
        return cudaSetDevice(m->gpu) == cudaSuccess && cudaMemGetInfo(&left, &all) == cudaSuccess ? left : 0;
#endif
    (void)m;
    return memory_available();
}

#ifdef __CUDACC__
static int gpu_arena_open(mote_model *m, const char *dir, mote_error *err) {
    cudaError_t status = cudaSetDevice(m->gpu);
    if (status != cudaSuccess) return gpu_fail(err, status, m->device);
    status = cudaMalloc((void **)&m->arena, m->arena_size);
    if (status != cudaSuccess) m->arena = NULL;
    if (status == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return fail(err, MOTE_ENOMEM, "%s: the weights need %.1f GB, %s refused them", dir,
                    (double)m->arena_size * 1e-9, m->device);
    }
    if (status == cudaSuccess) status = cudaMemset(m->arena, 0, m->arena_size);
    if (status == cudaSuccess) status = cudaDeviceSynchronize();
    return status == cudaSuccess ? MOTE_OK : gpu_fail(err, status, "allocating the weights");
}
#endif

/* In pages of 2 MB where the system has them: decoding reads all of it, and asks for lines pages ahead, which are found faster. */
static char *cpu_arena(size_t size) {
    enum { PAGE = 2 << 20 };
    char *arena = (char *)(size < PAGE ? aligned_alloc(64, size) : aligned_alloc(PAGE, (size + PAGE - 1) / PAGE * PAGE));
#ifdef MADV_HUGEPAGE
    if (arena && size >= PAGE) (void)madvise(arena, size, MADV_HUGEPAGE);
#endif
    return arena;
}

/* Allocates the arena, if it fits, and sets all pointers into it. */
static int arena_open(binder *b, mote_error *err) {
    mote_model *m = b->m;
    load_item *items = (load_item *)(void *)b->items.data;
    int code = MOTE_OK;
    m->arena_size = b->arena ? b->arena : 64;
    uint64_t available = device_available(m);
    if (available && m->arena_size > available)
        return fail(err, MOTE_ENOMEM, "%s: the weights need %.1f GB, only %.1f GB of memory are free%s%s",
                    b->files->dir, (double)m->arena_size * 1e-9, (double)available * 1e-9, m->gpu < 0 ? "" : " on ",
                    m->gpu < 0 ? "" : m->device);
    if (m->gpu < 0) m->arena = cpu_arena(m->arena_size);
#ifdef __CUDACC__
    else code = gpu_arena_open(m, b->files->dir, err);
#endif
    if (code) return code;
    if (!m->arena)
        return fail(err, MOTE_ENOMEM, "%s: the weights need %.1f GB, the system refused them", b->files->dir,
                    (double)m->arena_size * 1e-9);
    for (size_t i = 0; i < b->items.size / sizeof *items; i++) *items[i].target = m->arena + items[i].at;
    if (m->c.tied) m->lm_head = m->embed_tokens;
    memcpy(m->draft_head.plane, m->lm_head.plane, sizeof m->draft_head.plane);
    return check_experts(b);
}

static void arena_close(mote_model *m) {
    if (m->gpu < 0) free(m->arena);
#ifdef __CUDACC__
    else if (m->arena && cudaSetDevice(m->gpu) == cudaSuccess) (void)cudaFree(m->arena);
#endif
}
