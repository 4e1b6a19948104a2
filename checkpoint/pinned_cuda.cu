/* checkpoint/pinned_cuda.cu: host memory that a GPU reads, for experts: in large pages, pinned. Knows bytes; must not know what they are of.

   The pages are asked of the system, filled with zeros by several threads, and then registered: that leaves the driver nothing but to pin them,
   while pages that it has to find itself (cudaHostAlloc) come by one thread. Where registering is not supported, or would give the GPU another
   address than the host's, they come from cudaHostAlloc all the same. */

static void pinned_clear(void *context, int begin, int end, int thread) {
    (void)thread;
    memset((char *)context + (size_t)begin * HOST_PAGE, 0, (size_t)(end - begin) * HOST_PAGE);
}

/* Whole pages of the system's memory, all zero; NULL: it has not as much. */
static char *pinned_pages(size_t size) {
    enum { CLEARING_THREADS = 8 };
    char *at = host_pages(size);
    pool *threads = at ? pool_open(min_int(processors(), CLEARING_THREADS)) : NULL;
    if (threads) parallel(threads, (int)(host_pages_size(size) / HOST_PAGE), pinned_clear, at);
    else if (at) memset(at, 0, host_pages_size(size));
    pool_close(threads);
    return at;
}

/* Registers them; then the GPU has them at the same address. */
static cudaError_t pinned_register(char *at, size_t size) {
    void *there = NULL;
    cudaError_t status = cudaHostRegister(at, size, cudaHostRegisterMapped | cudaHostRegisterPortable);
    if (status != cudaSuccess) return status;
    status = cudaHostGetDevicePointer(&there, at, 0);
    if (status == cudaSuccess && there == at) return status;
    (void)cudaHostUnregister(at);
    return cudaErrorNotSupported;
}

/* Why memory could not be pinned, and what may help. */
static int pinned_failure(mote_error *err, cudaError_t status) {
    struct rlimit locked;
    (void)cudaGetLastError();
    if (!getrlimit(RLIMIT_MEMLOCK, &locked) && locked.rlim_cur != RLIM_INFINITY)
        return fail(err, MOTE_ENOMEM, "the driver could pin no more (%s; the limit of locked memory is %.1f GB: ulimit -l unlimited)",
                    cudaGetErrorString(status), (double)locked.rlim_cur * 1e-9);
    return fail(err, MOTE_ENOMEM, "the driver could pin no more (%s)", cudaGetErrorString(status));
}

static int cuda_pin(mote_model *m, expert_home *home, mote_error *err) {
    const size_t size = host_pages_size(home->bytes);
    cudaError_t status = cudaSetDevice(m->device.gpu);
    if (status != cudaSuccess) return gpu_fail(err, status, m->device.name);
    char *at = pinned_pages(home->bytes);
    if (!at) return fail(err, MOTE_ENOMEM, "the system gives no more memory");
    status = pinned_register(at, size);
    home->registered = status == cudaSuccess;
    if (!home->registered) free(at);
    if (status == cudaErrorNotSupported) {
        (void)cudaGetLastError();
        status = cudaHostAlloc((void **)&at, size, cudaHostAllocMapped | cudaHostAllocPortable);
        if (status == cudaSuccess) memset(at, 0, size);
    }
    if (status != cudaSuccess) return pinned_failure(err, status);
    home->host = at;
    return MOTE_OK;
}

static void pinned_free(expert_home *home) {
    if (home->host && home->registered) {
        (void)cudaHostUnregister(home->host);
        free(home->host);
    } else if (home->host) (void)cudaFreeHost(home->host);
    home->host = NULL;
}

/* Frees arena and host memory; a model that is in parts, or a worker's, has neither. */
static void cuda_release(mote_model *m) {
    if (m->device.gpu < 0 || (!m->arena && !m->homes)) return;
    if (cudaSetDevice(m->device.gpu) != cudaSuccess) return;
    if (m->arena) (void)cudaFree(m->arena);
    for (int i = 0; i <= m->c.layers && m->homes; i++) pinned_free(&m->homes[i]);
}
