/* diagnose/fill.cu: random weights in a GPU's memory. Knows items. */

static __global__ void gpu_fill(const __grid_constant__ load_item item, const synthetic_floats values, char *to, uint32_t words) {
    item_randomize(&item, values, to, blockIdx.x * blockDim.x + threadIdx.x, words, gridDim.x * blockDim.x);
}

static int cuda_fill(binder *b, const mote_callbacks *callbacks, mote_error *err) {
    const load_item *items = (const load_item *)(void *)b->items.data;
    cudaError_t status = cudaSuccess;
    for (size_t i = 0; i < b->items.size / sizeof *items && status == cudaSuccess; i++) {
        const uint32_t n = (uint32_t)item_words(&items[i]), blocks = (n - 1) / GPU_THREADS + 1, most = (uint32_t)b->m->device.sms * 16;
        const int code = filling(b, i, callbacks, err);
        if (code) return code;
        gpu_fill<<<blocks < most ? blocks : most, GPU_THREADS>>>(items[i], vector_values(b, &items[i]), item_memory(b->m, &items[i]), n);
        status = cudaGetLastError();
    }
    if (status == cudaSuccess) status = cudaDeviceSynchronize();
    return status == cudaSuccess ? MOTE_OK : gpu_fail(err, status, "making weights");
}
