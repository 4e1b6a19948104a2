/* checkpoint/device_cuda.cu: a GPU that holds a model: finding it, what is free on it, the arena. */

/* Names the operation that failed. A failure of one call must not show up in the next. */
static int gpu_fail(mote_error *err, cudaError_t status, const char *what) {
    (void)cudaGetLastError();
    if (status == cudaErrorMemoryAllocation) return fail(err, MOTE_ENOMEM, "%s: out of memory on the GPU", what);
    if (status == cudaErrorNoKernelImageForDevice)
        return fail(err, MOTE_EDEVICE, "%s: mote was built for other GPUs than this one: make GPUS=all", what);
    return fail(err, MOTE_EDEVICE, "%s: %s", what, cudaGetErrorString(status));
}

static int cuda_choose(mote_model *m, int ordinal, int *none, mote_error *err) {
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
    m->device.gpu = ordinal;
    m->device.sms = about.multiProcessorCount;
    m->device.cache = (uint32_t)about.l2CacheSize;
    m->device.cc = about.major * 10 + about.minor;
    m->device.shared = (int)about.sharedMemPerMultiprocessor;
    m->device.integrated = about.integrated;
    snprintf(m->device.name, sizeof m->device.name, "cuda:%d %s (sm_%d)", ordinal, about.name, m->device.cc);
    return MOTE_OK;
}
static uint64_t cuda_available(const mote_model *m) {
    size_t left = 0, all = 0;
    if (m->device.integrated) return memory_available();
    return cudaSetDevice(m->device.gpu) == cudaSuccess && cudaMemGetInfo(&left, &all) == cudaSuccess ? left : 0;
}

static int cuda_allocate(mote_model *m, const char *dir, mote_error *err) {
    int code = arena_fits(m, dir, " on ", m->device.name, err);
    if (code) return code;
    cudaError_t status = cudaSetDevice(m->device.gpu);
    if (status != cudaSuccess) return gpu_fail(err, status, m->device.name);
    status = cudaMalloc((void **)&m->arena, m->arena_size);
    if (status != cudaSuccess) m->arena = NULL;
    if (status == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return fail(err, MOTE_ENOMEM, "%s: the weights need %.1f GB, %s refused them", dir,
                    (double)m->arena_size * 1e-9, m->device.name);
    }
    if (status == cudaSuccess) status = cudaMemset(m->arena, 0, m->arena_size);
    if (status == cudaSuccess) status = cudaDeviceSynchronize();
    return status == cudaSuccess ? MOTE_OK : gpu_fail(err, status, "allocating the weights");
}
