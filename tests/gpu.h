// gpu.h: what tests that look inside kernels share: a GPU's memory, and calls of CUDA that must not fail. After kernels.cu.

#ifndef MOTE_TEST_GPU_H
#define MOTE_TEST_GPU_H

#include "test.h"

static inline void ok(cudaError_t status, const char *what) {
    if (status == cudaSuccess) return;
    printf("%s: %s\n", what, cudaGetErrorString(status));
    exit(1);
}

// Zeros.
static inline void *device(size_t bytes) {
    void *at = NULL;
    ok(cudaMalloc(&at, bytes), "allocating");
    ok(cudaMemset(at, 0, bytes), "clearing");
    return at;
}

static inline void copy(void *to, const void *from, size_t bytes) {
    ok(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "copying");
}

// From -size to size, others with each call; free() them.
static inline float *random_floats(size_t n, float size) {
    static uint64_t state = 1;
    float *to = (float *)allocate((n + 1) * sizeof *to);
    for (size_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        to[i] = (float)(int32_t)(state >> 32) * 0x1p-31f * size;
    }
    return to;
}

// A random matrix in BF16, its values from -size to size: on the CPU, and packed on the GPU.
static inline void device_matrix(int rows, int cols, float size, int sms, matrix *here, matrix *there) {
    const matrix w = {.format = FORMAT_BF16, .rows = rows, .cols = cols, .block_rows = 1, .block_cols = 1};
    const size_t n = (size_t)rows * (size_t)cols;
    float *random = random_floats(n, size);
    uint16_t *codes = (uint16_t *)allocate(n * sizeof *codes);
    for (size_t i = 0; i < n; i++) codes[i] = bf16_of_float(random[i]);
    *here = *there = w;
    here->component[CODES] = (char *)codes;
    char *raw = (char *)device(matrix_component_capacity(there, CODES));
    there->component[CODES] = (char *)device(matrix_component_capacity(there, CODES));
    copy(raw, codes, n * sizeof *codes);
    ok(gpu_pack(there, raw, (char *)there->component[CODES], sms), "packing");
    ok(cudaDeviceSynchronize(), "packing");
    ok(cudaFree(raw), "freeing");
    free(random);
}

#endif
