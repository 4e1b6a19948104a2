// Tests of a mixture of experts for several token rows on a GPU, by units (layers/moe/batch_*.cu) and, up to four, by the kernels of a lone
// step: every row's x has the bits that the kernels of one row give it alone, whatever the other rows are and choose, and wherever experts
// lie; and small layers add what their definition does. For nvcc; without a GPU all is skipped.
//
// Usage: gpu_batch_moe [--brief] ["" WORD]        WORD: only layers whose names have it
//        gpu_batch_moe --time [NAME]              microseconds of the kernels, and what part of a read loop's bandwidth they have
//
// Contents   1. A layer   2. Passes   3. Equality   4. The definition   5. Times   6. Main

#include "inside.h"

#include "test.h"

#define CUDA(call) cuda_check(call, #call, __LINE__)

static void cuda_check(cudaError_t status, const char *what, int line) {
    if (status == cudaSuccess) return;
    printf("%s: %s, line %d\n", what, cudaGetErrorString(status), line);
    exit(1);
}

static int sms;

// ---- 1. A layer -----------------------------------------------------------------------------------------------------

typedef struct layer_case {
    const char *name;
    enum format format, shared_format, dense_format;         // of the routed experts, of the shared one, of the router
    int hidden, experts, top_k, expert_size, shared_size, block;       // block: columns of a group, or both sides of a scale's block
    int of_all, biased;
    float limit, alpha;
    int sigmoid, corrected, groups, groups_kept;
    float routed_scale;
    int expert_scaled, ungated, gelu, branched, squared_relu;
} layer_case;

// name, format, shared_format, dense_format, hidden, experts, top_k, expert_size, shared_size, block, of_all, biased, limit, alpha
static const layer_case cases[] = {
    {"fp8", FORMAT_FP8_BLOCK, FORMAT_FP8_BLOCK, FORMAT_BF16, 2048, 256, 8, 512, 512, 128},
    {"nvfp4", FORMAT_NVFP4, FORMAT_NVFP4, FORMAT_BF16, 2048, 256, 8, 512, 512, 128},
    {"bf16", FORMAT_BF16, FORMAT_BF16, FORMAT_BF16, 2048, 256, 8, 512, 512, 128},
    {"int4", FORMAT_INT4, FORMAT_INT4, FORMAT_BF16, 2048, 256, 8, 512, 512, 128},
    {"fp8_row", FORMAT_FP8_ROW, FORMAT_FP8_ROW, FORMAT_BF16, 2048, 256, 8, 512, 512, 128},
    {"nvfp4 beside fp8", FORMAT_NVFP4, FORMAT_FP8_BLOCK, FORMAT_BF16, 2048, 256, 8, 512, 512, 128},
    {"fp8 of 122B", FORMAT_FP8_BLOCK, FORMAT_FP8_BLOCK, FORMAT_BF16, 3072, 256, 8, 1024, 1024, 128},
    {"nvfp4 of 122B", FORMAT_NVFP4, FORMAT_NVFP4, FORMAT_BF16, 3072, 256, 8, 1024, 1024, 128},
    {"int4 of 122B", FORMAT_INT4, FORMAT_INT4, FORMAT_BF16, 3072, 256, 8, 1024, 1024, 128},
    {"nvfp4 of Coder-Next", FORMAT_NVFP4, FORMAT_NVFP4, FORMAT_BF16, 2048, 512, 10, 512, 512, 128},
    {"fp8 of Coder-Next", FORMAT_FP8_BLOCK, FORMAT_FP8_BLOCK, FORMAT_BF16, 2048, 512, 10, 512, 512, 128},
    {"nvfp4 of Flash-Next", FORMAT_NVFP4, FORMAT_NVFP4, FORMAT_BF16, 2560, 512, 10, 640, 640, 128},
    {"nvfp4 of 30B", FORMAT_NVFP4, FORMAT_NVFP4, FORMAT_BF16, 2048, 128, 8, 768, 0, 128},
    {"fp8 of 30B", FORMAT_FP8_BLOCK, FORMAT_FP8_BLOCK, FORMAT_BF16, 2048, 128, 8, 768, 0, 128},
    {"small fp8", FORMAT_FP8_BLOCK, FORMAT_FP8_BLOCK, FORMAT_F32, 64, 8, 2, 96, 0, 128},
    {"small fp8, shares of all", FORMAT_FP8_BLOCK, FORMAT_FP8_BLOCK, FORMAT_F32, 64, 300, 10, 96, 0, 128, 1},
    {"small nvfp4", FORMAT_NVFP4, FORMAT_NVFP4, FORMAT_F32, 128, 8, 2, 32, 0, 128},
    {"small bf16", FORMAT_BF16, FORMAT_BF16, FORMAT_F32, 192, 40, 3, 68, 100, 128},
    {"small int4", FORMAT_INT4, FORMAT_INT4, FORMAT_F32, 320, 8, 2, 128, 64, 64},
    {"small fine int4", FORMAT_INT4_FINE, FORMAT_INT4_FINE, FORMAT_F32, 320, 8, 2, 96, 64, 32},
    {"mxfp4 of gpt-oss", FORMAT_MXFP4, FORMAT_MXFP4, FORMAT_BF16, 2880, 32, 4, 2880, 0, 128},
    {"small mxfp4", FORMAT_MXFP4, FORMAT_MXFP4, FORMAT_F32, 96, 8, 2, 32, 64, 128},
    {"nvfp4, biased", FORMAT_NVFP4, FORMAT_NVFP4, FORMAT_BF16, 2048, 256, 8, 512, 512, 128, 0, 1},
    {"small mxfp4, biased, clamped", FORMAT_MXFP4, FORMAT_MXFP4, FORMAT_BF16, 320, 32, 4, 320, 0, 128, 0, 1, 0.1f, 1.702f},
    {"small bf16, biased, clamped", FORMAT_BF16, FORMAT_BF16, FORMAT_F32, 192, 40, 3, 68, 100, 128, 0, 1, 0.1f, 1.702f},
    {"small nvfp4, dealt", FORMAT_NVFP4, FORMAT_NVFP4, FORMAT_F32, 320, 24, 10, 640, 640, 128},
    {"small nvfp4, dealt, panels by threes on four SMs", FORMAT_NVFP4, FORMAT_NVFP4, FORMAT_F32, 80, 24, 10, 640, 640, 128},
    {"small nvfp4, dealt, none shared", FORMAT_NVFP4, FORMAT_NVFP4, FORMAT_F32, 160, 24, 10, 600, 0, 128},
    {"small nvfp4, clamped", FORMAT_NVFP4, FORMAT_NVFP4, FORMAT_F32, 1024, 8, 2, 64, 64, 128, 0, 0, 0.1f},
    {"small f16", FORMAT_F16, FORMAT_F16, FORMAT_F32, 160, 300, 10, 64, 64, 128},
    {"small f32", FORMAT_F32, FORMAT_F32, FORMAT_F32, 100, 8, 2, 36, 64, 128},
    {"small bf16 beside f32", FORMAT_BF16, FORMAT_F32, FORMAT_F32, 256, 12, 2, 64, 128, 128},
    {"fp8, wide rows", FORMAT_FP8_BLOCK, FORMAT_FP8_BLOCK, FORMAT_BF16, 7168, 4, 2, 64, 64, 128},
    {"nvfp4, wide rows", FORMAT_NVFP4, FORMAT_BF16, FORMAT_BF16, 5632, 4, 2, 32, 64, 128},
    // sigmoid, corrected, groups, groups_kept, routed_scale, expert_scaled, ungated, gelu, branched, squared_relu
    {"nvfp4 of Laguna", FORMAT_NVFP4, FORMAT_NVFP4, FORMAT_BF16, 2048, 256, 8, 512, 512, 128, 0, 0, 0, 0, 1, 1, 0, 0, 2.5f, 0, 1, 0, 0},
    {"fp8 of GLM Flash", FORMAT_FP8_BLOCK, FORMAT_FP8_BLOCK, FORMAT_BF16, 2048, 64, 4, 1536, 1536, 128, 0, 0, 0, 0, 1, 1, 0, 0, 1.8f, 0, 1, 0, 0},
    {"nvfp4 of Gemma 4", FORMAT_NVFP4, FORMAT_BF16, FORMAT_BF16, 2816, 128, 8, 704, 2112, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1},
    {"fp8_row of Gemma 4", FORMAT_FP8_ROW, FORMAT_FP8_ROW, FORMAT_BF16, 2816, 128, 8, 704, 2112, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1},
    {"small fp8 of DeepSeek", FORMAT_FP8_BLOCK, FORMAT_FP8_BLOCK, FORMAT_F32, 1024, 256, 8, 128, 128, 128, 0, 0, 0, 0, 1, 1, 8, 4, 2.5f, 0, 1, 0, 0},
    {"small bf16, groups of 300", FORMAT_BF16, FORMAT_BF16, FORMAT_F32, 192, 300, 10, 68, 100, 128, 1, 0, 0, 0, 1, 1, 30, 3, 0, 1, 0, 0, 0},
    {"small int4, groups", FORMAT_INT4, FORMAT_INT4, FORMAT_F32, 320, 24, 2, 128, 64, 64, 0, 0, 0, 0, 0, 1, 4, 2, 0, 0, 1, 1, 0},
    {"small nvfp4, branches", FORMAT_NVFP4, FORMAT_BF16, FORMAT_F32, 320, 8, 2, 64, 192, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1},
    {"small nvfp4, branches of one format", FORMAT_NVFP4, FORMAT_NVFP4, FORMAT_F32, 320, 8, 4, 704, 2112, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1},
    {"small fp8_row, branches", FORMAT_FP8_ROW, FORMAT_FP8_ROW, FORMAT_F32, 320, 8, 4, 704, 2112, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1},
    {"small bf16, branches alike", FORMAT_BF16, FORMAT_BF16, FORMAT_F32, 192, 40, 3, 64, 64, 128, 0, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 1},
    {"small f16, sigmoids", FORMAT_F16, FORMAT_F16, FORMAT_F32, 160, 300, 10, 64, 0, 128, 1, 0, 0, 0, 1, 0, 0, 0, 0.5f, 0, 0, 1, 0},
    {"fp8 of Nemotron", FORMAT_FP8_BLOCK, FORMAT_FP8_BLOCK, FORMAT_BF16, 2688, 128, 6, 1856, 3712, 128, 0, 0, 0, 0, 1, 1, 0, 0, 2.5f, 0, 1, 0, 0, 1},
    {"nvfp4 of Nemotron", FORMAT_NVFP4, FORMAT_NVFP4, FORMAT_BF16, 2688, 128, 6, 1856, 3712, 128, 0, 0, 0, 0, 1, 1, 0, 0, 2.5f, 0, 1, 0, 0, 1},
    {"small fp8, squared", FORMAT_FP8_BLOCK, FORMAT_FP8_BLOCK, FORMAT_F32, 192, 10, 3, 116, 232, 128, 0, 0, 0, 0, 1, 1, 0, 0, 2.5f, 0, 1, 0, 0, 1},
    {"small nvfp4, squared", FORMAT_NVFP4, FORMAT_NVFP4, FORMAT_F32, 320, 10, 3, 80, 240, 128, 0, 0, 0, 0, 1, 1, 0, 0, 2.5f, 0, 1, 0, 0, 1},
    {"small nvfp4, squared, another shared size", FORMAT_NVFP4, FORMAT_NVFP4, FORMAT_F32, 384, 10, 3, 180, 2580, 128, 0, 0, 0, 0, 1, 1, 0, 0, 2.5f, 0, 1, 0, 0, 1},
    {"small nvfp4, another shared size", FORMAT_NVFP4, FORMAT_NVFP4, FORMAT_F32, 384, 24, 10, 144, 700, 128},
    {"small bf16, squared", FORMAT_BF16, FORMAT_BF16, FORMAT_F32, 192, 10, 3, 68, 100, 128, 0, 0, 0, 0, 1, 1, 0, 0, 2.5f, 0, 1, 0, 0, 1}};

enum { CASES = sizeof cases / sizeof *cases, ROWS = BATCH_ROWS_MAX };

typedef struct layer_memory {
    moe_weights w, host;         // host: matrices as they were before they were packed, in the host's memory
    size_t expert_bytes;         // of a routed expert, with all that belongs to it
    char *weights, *raw;         // of all matrices; of one, not yet packed
    char *moved;                 // experts that have been moved; NULL: none have
    int64_t *expert_at;          // where they are, moe_weights.expert_at
    size_t used, size;
    float *x, *norm;             // [ROWS][hidden], [hidden]
    gpu_branches branches;       // its norms; shared_to: [ROWS][hidden]; NULL: it has no branches
    moe_gpu p;
    gpu_batch batch;
    float *scratch, *batch_scratch;
    gpu_queue q;
} layer_memory;

static layer_memory L;

static matrix matrix_of(enum format format, int rows, int cols, int block) {
    matrix w;
    memset(&w, 0, sizeof w);
    w.format = format;
    w.rows = rows;
    w.cols = cols;
    w.block_rows = w.block_cols = block;
    return w;
}

static size_t capacity_of_matrix(const matrix *w) {
    size_t bytes = 0;
    for (int i = 0; i < formats[w->format]->component_count; i++) bytes += matrix_component_capacity(w, i);
    return bytes;
}

static __global__ void fill(enum format f, int component, uint32_t seed, char *to, uint32_t words) {
    format_random(f, component, seed, to, blockIdx.x * blockDim.x + threadIdx.x, words, gridDim.x * blockDim.x);
}

static void make_matrix(matrix *w, uint32_t seed) {
    char *at = L.weights + L.used, *raw = L.raw;
    L.used += capacity_of_matrix(w);
    for (int i = 0; i < formats[w->format]->component_count; i++) {
        const component *c = &formats[w->format]->components[i];
        const size_t bytes = matrix_component_capacity(w, i);
        const uint32_t words = (uint32_t)component_words(c, component_rows(c, w), component_cols(c, w));
        w->component[i] = at;
        CUDA(cudaMemsetAsync(c->packed ? raw : at, 0, bytes));
        fill<<<64, 256>>>(w->format, i, seed * 16 + (uint32_t)i, c->packed ? raw : at, words);
        raw += c->packed ? bytes : 0;
        at += bytes;
    }
    CUDA(gpu_pack(w, L.raw, (char *)w->component[CODES], sms));
}

// A bias of a matrix, after it.
static void make_bias(matrix *w) {
    const size_t bytes = ((size_t)w->rows * sizeof(float) + 63) / 64 * 64;
    float *host = (float *)calloc(bytes, 1);
    for (int i = 0; i < w->rows; i++) host[i] = 0.2f * ((int)(random_bits() >> 8) - (1 << 23)) * 0x1p-23f;
    CUDA(cudaMemcpy(L.weights + L.used, host, bytes, cudaMemcpyHostToDevice));
    free(host);
    w->bias = (const float *)(void *)(L.weights + L.used);
    L.used += bytes;
}

// A matrix as it is before it is packed, and its bias, in the host's memory.
static matrix matrix_to_host(const matrix *w, uint32_t seed) {
    matrix host = *w;
    for (int i = 0; i < formats[w->format]->component_count; i++) {
        const component *c = &formats[w->format]->components[i];
        char *to = (char *)calloc(matrix_component_capacity(w, i), 1);
        const uint32_t words = (uint32_t)component_words(c, component_rows(c, w), component_cols(c, w));
        for (uint32_t k = 0; k < 64 * 256; k++) format_random(w->format, i, seed * 16 + (uint32_t)i, to, k, words, 64 * 256);
        host.component[i] = to;
    }
    if (w->bias) {
        float *bias = (float *)malloc((size_t)w->rows * sizeof *bias);
        CUDA(cudaMemcpy(bias, w->bias, (size_t)w->rows * sizeof *bias, cudaMemcpyDeviceToHost));
        host.bias = bias;
    }
    return host;
}

static void matrix_free(matrix *host) {
    for (int i = 0; i < formats[host->format]->component_count; i++) free((void *)host->component[i]);
    free((void *)host->bias);
}

static float *random_floats(size_t n, float middle, float by) {
    float *host = (float *)malloc(n * sizeof *host), *to;
    for (size_t i = 0; i < n; i++) host[i] = middle + by * ((int)(random_bits() >> 8) - (1 << 23)) * 0x1p-23f;
    CUDA(cudaMalloc(&to, n * sizeof *host));
    CUDA(cudaMemcpy(to, host, n * sizeof *host, cudaMemcpyHostToDevice));
    free(host);
    return to;
}

// Scratch of its own for a layer; *memory: to be freed.
static moe_gpu make_scratch(const moe_shape *s, float **memory) {
    layout l = layout_from(NULL);
    moe_gpu p;
    capacity r;
    memset(&r, 0, sizeof r);
    moe_layout_gpu(&l, s, &r, &L.q, &p);
    layout_alloc(&l, 16);
    const size_t bytes = l.used * sizeof(float);
    CUDA(cudaMalloc(memory, bytes));
    CUDA(cudaMemset(*memory, 0, bytes));
    l = layout_from(*memory);
    moe_layout_gpu(&l, s, &r, &L.q, &p);
    p.chosen = (int32_t *)(void *)layout_alloc(&l, 16);
    return p;
}

// Tells kernels where experts are.
static void put_table(void) {
    int64_t distance[GPU_EXPERTS];
    for (int e = 0; e < L.w.shape.experts; e++) distance[e] = moe_distance(&L.w, e);
    CUDA(cudaMemcpy(L.expert_at, distance, sizeof distance, cudaMemcpyHostToDevice));
}

// Moves the routed experts to other places, in another order and not equally far apart. Where they were, no number is left.
static void move_experts(void) {
    const int experts = L.w.shape.experts;
    const size_t bytes = L.expert_bytes;
    CUDA(cudaMalloc(&L.moved, (size_t)experts * (bytes + 2048)));
    for (int e = 0; e < experts; e++) {
        matrix *const own[3] = {&L.w.gate_proj[e], &L.w.up_proj[e], &L.w.down_proj[e]};
        const size_t place = (size_t)(7 * e + 3) % (size_t)experts;
        char *from = (char *)own[0]->component[CODES], *to = L.moved + place * (bytes + 2048) + place * place % 7 * 256;
        CUDA(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
        for (int i = 0; i < 3; i++)
            for (int k = 0; (i != 1 || own[1] != own[0]) && k < formats[own[i]->format]->component_count; k++)
                own[i]->component[k] = to + ((char *)own[i]->component[k] - from);
        for (int i = 0; i < 3 && own[i]->bias; i++) own[i]->bias = (const float *)(void *)(to + ((char *)own[i]->bias - from));
    }
    CUDA(cudaMemset(L.weights, 0xff, (size_t)experts * bytes));
    put_table();
}

static void open_layer(const layer_case *c) {
    const moe_shape shape = {.hidden = c->hidden, .experts = c->experts, .top_k = c->top_k, .expert_size = c->expert_size,
                             .shared_size = c->shared_size, .shared_ungated = c->ungated, .sigmoid = c->sigmoid, .corrected = c->corrected,
                             .groups = c->groups, .groups_kept = c->groups_kept, .of_all = c->of_all, .routed_scale = c->routed_scale,
                             .expert_scaled = c->expert_scaled, .limit = c->limit, .alpha = c->alpha, .gelu = c->gelu,
                             .squared_relu = c->squared_relu, .biased = c->biased};
    matrix gate = matrix_of(c->format, c->expert_size, c->hidden, c->block), down = matrix_of(c->format, c->hidden, c->expert_size, c->block);
    matrix shared_gate = matrix_of(c->shared_format, c->shared_size, c->hidden, c->block);
    matrix shared_down = matrix_of(c->shared_format, c->hidden, c->shared_size, c->block);
    const int all = c->experts + (c->shared_size > 0);
    L.w.shape = shape;
    L.w.router = matrix_of(c->dense_format, c->experts, c->hidden, 128);
    L.w.shared_expert_gate = matrix_of(c->dense_format, 1, c->hidden, 128);
    L.w.gate_proj = (matrix *)calloc((size_t)all * 3, sizeof(matrix));
    L.w.up_proj = c->squared_relu ? L.w.gate_proj : L.w.gate_proj + all;
    L.w.down_proj = L.w.gate_proj + 2 * all;
    L.size = (capacity_of_matrix(&gate) * 2 + capacity_of_matrix(&down)) * (size_t)c->experts + capacity_of_matrix(&L.w.router) * 2 + 4096;
    if (c->shared_size) L.size += capacity_of_matrix(&shared_gate) * 2 + capacity_of_matrix(&shared_down);
    L.size += (size_t)(c->experts + 2) * (size_t)(c->expert_size * 2 + c->shared_size * 2 + c->hidden + 48) * sizeof(float);      // biases
    L.used = 0;
    L.moved = NULL;
    CUDA(cudaMalloc(&L.weights, L.size));
    CUDA(cudaMalloc(&L.expert_at, GPU_EXPERTS * sizeof *L.expert_at));
    L.w.expert_at = L.expert_at;
    CUDA(cudaMalloc(&L.raw, 64 << 20));
    for (int e = 0; e < all; e++) {
        L.w.gate_proj[e] = L.w.up_proj[e] = e < c->experts ? gate : shared_gate;
        L.w.down_proj[e] = e < c->experts ? down : shared_down;
        for (int i = 0; i < 3; i += 1 + (i == 0 && c->squared_relu)) {
            matrix *w = &(i == 0 ? L.w.gate_proj : i == 1 ? L.w.up_proj : L.w.down_proj)[e];
            make_matrix(w, (uint32_t)(e * 3 + i));
            if (c->biased) make_bias(w);
        }
        if (!e) L.expert_bytes = L.used;
    }
    put_table();
    make_matrix(&L.w.router, 77777);
    if (c->biased) make_bias(&L.w.router);
    if (c->shared_size) make_matrix(&L.w.shared_expert_gate, 77778);
    L.norm = random_floats((size_t)c->hidden, 1, 0.2f);
    L.w.correction = c->corrected ? random_floats((size_t)c->experts, 0, 0.3f) : NULL;
    L.w.expert_scale = c->expert_scaled ? random_floats((size_t)c->experts, 1, 0.5f) : NULL;
    L.branches.norm_router = c->branched ? random_floats((size_t)c->hidden, 0.5f, 0.2f) : NULL;
    L.branches.norm_shared = c->branched ? random_floats((size_t)c->hidden, 1.5f, 0.2f) : NULL;
    L.branches.shared_to = c->branched ? random_floats(ROWS * (size_t)c->hidden, 0, 1) : NULL;
    L.x = random_floats(ROWS * (size_t)c->hidden, 0, 1);
    L.p = make_scratch(&shape, &L.scratch);
    layout l = layout_from(NULL);
    gpu_batch_layout(&l, c->hidden, ROWS, &L.batch);
    CUDA(cudaMalloc(&L.batch_scratch, l.used * sizeof(float)));
    l = layout_from(L.batch_scratch);
    gpu_batch_layout(&l, c->hidden, ROWS, &L.batch);
    L.q.batch = &L.batch;
    CUDA(cudaDeviceSynchronize());
}

static void close_layer(void) {
    cudaFree((void *)L.w.correction), cudaFree((void *)L.w.expert_scale), cudaFree((void *)L.branches.norm_router);
    cudaFree((void *)L.branches.norm_shared), cudaFree(L.branches.shared_to);
    cudaFree(L.weights), cudaFree(L.moved), cudaFree(L.expert_at), cudaFree(L.raw), cudaFree(L.norm), cudaFree(L.x), cudaFree(L.scratch), cudaFree(L.batch_scratch);
    free(L.w.gate_proj);
}

// ---- 2. Passes ------------------------------------------------------------------------------------------------------

static void submit(void) {
    gpu_submit(&L.q);
    CUDA(L.q.status);
    CUDA(cudaStreamSynchronize(L.q.stream));
}

// Which experts rows choose.
enum routing { INDEPENDENT, ALL_ON_ONE, DISTINCT, FIVE_ON_ONE, ALIKE, ROUTINGS };

static const char *const routing_names[] = {"independent", "all on one expert", "distinct", "five rows on one", "all alike"};

// Logits for it: of 64 rows.
static void make_logits(enum routing routing, uint32_t seed, float *logits) {
    const int n = L.w.shape.experts, k = L.w.shape.top_k;
    for (int t = 0; t < ROWS; t++)
        for (int e = 0; e < n; e++) {
            uint32_t h = (uint32_t)(routing == ALIKE ? e : t * n + e) * 2654435761u + seed * 40503u;
            h = (h ^ h >> 15) * 0x2c1b3c6du;
            h = (h ^ h >> 12) * 0x297a2d39u;
            float *to = &logits[t * n + e];
            *to = (float)(h >> 8) * 0x1p-22f;
            if (routing == ALL_ON_ONE && e == n / 2) *to += 10;
            if (routing == FIVE_ON_ONE && t % 7 < 5 && t < 7 && e == 1) *to += 10;
            if (routing == DISTINCT && (e / k) % (n / k) == t % (n / k)) *to += 10;
        }
}

// Rows `first` to `first` + T - 1. to: where the output is stored; NULL: it is added to the rows.
static gpu_rows rows_of(int first, int T, float *to) {
    gpu_rows rows = {.q = &L.q, .T = T, .x = L.x + (size_t)first * (size_t)L.w.shape.hidden, .norm = L.norm, .eps = 1e-6f};
    rows.to = to ? to : rows.x;
    rows.branches = L.branches;
    if (rows.branches.shared_to) rows.branches.shared_to += (size_t)first * (size_t)L.w.shape.hidden;
    return rows;
}

// Those rows through the layer, with these logits; NULL: the router's.
static void run_to(int first, int T, int in_units, const float *logits, float *to) {
    const gpu_rows rows = rows_of(first, T, to);
    moe_gpu p = moe_gpu_of(&L.p, &L.w, &rows);
    p.in_units = in_units || (T > 1 && !gpu_up_fits(&p));
    in_units = p.in_units;
    gpu_norm_router(&L.q, &L.w, &p);
    gpu_take_prepared_rows(&L.q, &L.w, &p);
    submit();
    if (logits) CUDA(cudaMemcpy(p.router, logits + first * p.shape.experts, (size_t)(T * p.shape.experts) * 4, cudaMemcpyHostToDevice));
    if (p.placed) gpu_record_place(&L.q, &p, L.p.slots);
    if (in_units) gpu_record_in_units(&L.q, &p);
    else gpu_record_experts(&L.q, &p);
    submit();
}

static void run(int first, int T, int in_units, const float *logits) {
    run_to(first, T, in_units, logits, NULL);
}

// ---- 3. Equality ----------------------------------------------------------------------------------------------------

// [ROWS][hidden] on the host, and of layers with branches the shared expert's as many: after a pass of one row, of many; before.
static float *want, *got, *start;

static void compare(const char *name, const char *what, int T, int from, int to) {
    const int hidden = L.w.shape.hidden;
    for (int t = from; t < to; t++) {
        int differ = 0, nan = 0;
        for (int i = 0; i < hidden; i++) {
            differ += memcmp(&want[t * hidden + i], &got[t * hidden + i], 4) != 0;
            nan += want[t * hidden + i] != want[t * hidden + i];
            const int apart = (ROWS + t) * hidden + i;
            differ += L.branches.shared_to && memcmp(&want[apart], &got[apart], 4) != 0;
            nan += L.branches.shared_to && want[apart] != want[apart];
        }
        const int same = !memcmp(&want[t * hidden], &start[t * hidden], (size_t)hidden * 4);
        CHECK(!differ && !nan && !same, "%s, %s, %d rows: row %d: %d numbers differ, %d are none", name, what, T, t, differ, nan);
    }
}

static void put_rows(const float *rows) {
    CUDA(cudaMemcpy(L.x, rows, (size_t)ROWS * (size_t)L.w.shape.hidden * 4, cudaMemcpyHostToDevice));
}

static void get_rows(float *rows) {
    const size_t n = (size_t)ROWS * (size_t)L.w.shape.hidden;
    CUDA(cudaMemcpy(rows, L.x, n * 4, cudaMemcpyDeviceToHost));
    if (!L.branches.shared_to) return;
    CUDA(cudaMemcpy(rows + n, L.branches.shared_to, n * 4, cudaMemcpyDeviceToHost));
    CUDA(cudaMemset(L.branches.shared_to, 0xff, n * 4));    // what a pass does not store is no number
}

// The other rows are NaN, infinite, or large.
static void spoil_others(float *rows, int t) {
    static const float with[] = {NAN, INFINITY, 1e38f, 1e-41f};
    const int hidden = L.w.shape.hidden;
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; r != t && i < hidden; i++) rows[r * hidden + i] = with[(r + i) % (r % 2 ? 1 : 4)];
}

// A pass of T rows, as they are and beside others that are spoilt.
static void test_rows(const layer_case *c, const char *what, int T, int in_units, const float *logits) {
    const size_t n = (size_t)ROWS * (size_t)c->hidden;
    float *spoilt = (float *)malloc(n * 4);
    put_rows(start);
    run(0, T, in_units, logits);
    get_rows(got);
    compare(c->name, what, T, 0, T);
    for (int t = 0; t < T; t += 1 + T / 3) {
        memcpy(spoilt, start, n * 4);
        spoil_others(spoilt, t);
        put_rows(spoilt);
        run(0, T, in_units, logits);
        get_rows(got);
        compare(c->name, in_units ? "units, spoilt others" : "spoilt others", T, t, t + 1);
    }
    free(spoilt);
}

// What the kernels give each row alone, with these logits.
static void want_alone(const float *logits) {
    put_rows(start);
    for (int t = 0; t < ROWS; t++) run(t, 1, 0, logits);
    get_rows(want);
}

static void test_routing(const layer_case *c, enum routing routing) {
    static const int rows[] = {1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64};
    float *logits = (float *)malloc(ROWS * (size_t)c->experts * 4);
    make_logits(routing, 5, logits);
    want_alone(logits);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!test_brief || i % 3 == 0) test_rows(c, routing_names[routing], rows[i], 1, logits);
    for (int T = 2; T <= STEP_ROWS; T++) test_rows(c, routing_names[routing], T, 0, logits);
    free(logits);
}

// Experts that are elsewhere give the same.
static void test_moved(const layer_case *c) {
    float *logits = (float *)malloc(ROWS * (size_t)c->experts * 4);
    make_logits(INDEPENDENT, 6, logits);
    want_alone(logits);
    move_experts();
    for (int T = 1; T <= STEP_ROWS; T++) test_rows(c, "moved experts", T, 0, logits);
    test_rows(c, "moved experts, units", 3, 1, logits);
    test_rows(c, "moved experts, units", 33, 1, logits);
    free(logits);
}

// ---- 4. The definition ----------------------------------------------------------------------------------------------

static float *floats_to_host(const float *from, int n) {
    float *to = from ? (float *)malloc((size_t)n * sizeof *to) : NULL;
    if (from) CUDA(cudaMemcpy(to, from, (size_t)n * sizeof *to, cudaMemcpyDeviceToHost));
    return to;
}

// The layer's matrices in the host's memory, as open_layer has made them.
static void open_host(const layer_case *c) {
    const int all = c->experts + (c->shared_size > 0);
    L.host = L.w;
    L.host.gate_proj = (matrix *)calloc((size_t)all * 3, sizeof(matrix));
    L.host.up_proj = c->squared_relu ? L.host.gate_proj : L.host.gate_proj + all;
    L.host.down_proj = L.host.gate_proj + 2 * all;
    for (int e = 0; e < all; e++) {
        L.host.gate_proj[e] = matrix_to_host(&L.w.gate_proj[e], (uint32_t)e * 3);
        if (!c->squared_relu) L.host.up_proj[e] = matrix_to_host(&L.w.up_proj[e], (uint32_t)e * 3 + 1);
        L.host.down_proj[e] = matrix_to_host(&L.w.down_proj[e], (uint32_t)e * 3 + 2);
    }
    L.host.router = matrix_to_host(&L.w.router, 77777);
    L.host.correction = floats_to_host(L.w.correction, c->experts);
    L.host.expert_scale = floats_to_host(L.w.expert_scale, c->experts);
    if (c->shared_size) L.host.shared_expert_gate = matrix_to_host(&L.w.shared_expert_gate, 77778);
}

static void close_host(const layer_case *c) {
    for (int i = 0; i < 3 * (c->experts + (c->shared_size > 0)); i++) matrix_free(&L.host.gate_proj[i]);
    matrix_free(&L.host.router);
    if (c->shared_size) matrix_free(&L.host.shared_expert_gate);
    free(L.host.gate_proj);
    free((void *)L.host.correction);
    free((void *)L.host.expert_scale);
}

// to[T][hidden] = rms(the first T rows of `start`) norm
static void define_norm(const layer_case *c, int T, const float *norm, double *to) {
    float *weights = floats_to_host(norm, c->hidden);
    for (int i = 0; norm && i < T * c->hidden; i++) to[i] = (double)start[i];
    for (int t = 0; norm && t < T; t++) defined_norm(to + t * c->hidden, to + t * c->hidden, weights, c->hidden, 1e-6);
    free(weights);
}

// to[T][hidden] = what the definition adds to the first T rows of `start`; shared: that of a shared expert that is apart.
static void define_rows(const layer_case *c, int T, double *to, double *shared) {
    defining nobody = {};
    defined_memory memory = {};
    defined_moe t;
    double *u, *router, *shared_u;
    for (int pass = 0; pass < 2; pass++) {
        memory.block = pass ? (double *)calloc(memory.used, sizeof(double)) : NULL;
        memory.used = 0;
        moe_define_memory(&L.host.shape, &memory, &t);
        u = defined_array(&memory, T, c->hidden);
        router = defined_array(&memory, T, c->hidden);
        shared_u = defined_array(&memory, T, c->hidden);
    }
    define_norm(c, T, L.norm, u);
    define_norm(c, T, L.branches.norm_router, router);
    define_norm(c, T, L.branches.norm_shared, shared_u);
    memset(shared, 0, (size_t)(T * c->hidden) * sizeof *shared);
    for (int row = 0; row < T; row++) {
        const int at = row * c->hidden;
        const defined_branches b = {router + at, shared_u + at, shared + at};
        moe_define(&nobody, &L.host, &t, u + at, c->branched ? &b : NULL, to + at);
    }
    free(memory.block);
}

// The largest difference of a row's output, relative to its largest number, is within what diagnose/sublayers.c allows.
static void compare_defined(const layer_case *c, const char *what, int T, const double *defined) {
    for (int t = 0; t < T; t++) {
        double top = 0, off = 0;
        for (int i = t * c->hidden; i < (t + 1) * c->hidden; i++) {
            top = fmax(top, fabs(defined[i]));
            off = fmax(off, fabs((double)got[i] - defined[i]));
        }
        CHECK(top > 0 && off <= 1e-4 * top, "%s, %s, %d rows: row %d is off its definition by %g", c->name, what, T, t, off / top);
    }
}

static void test_definition(const layer_case *c) {
    static const int rows[] = {1, 2, 4, 9};
    double *defined = (double *)malloc(18 * (size_t)c->hidden * sizeof *defined), *shared = defined + 9 * c->hidden;
    float *to;
    CUDA(cudaMalloc(&to, 9 * (size_t)c->hidden * 4));
    open_host(c);
    define_rows(c, 9, defined, shared);
    put_rows(start);
    for (int i = 0; i < 4; i++)
        for (int in_units = rows[i] > STEP_ROWS; in_units < 2; in_units++) {
            run_to(0, rows[i], in_units, NULL, to);
            CUDA(cudaMemcpy(got, to, (size_t)rows[i] * (size_t)c->hidden * 4, cudaMemcpyDeviceToHost));
            compare_defined(c, in_units ? "units" : "a step", rows[i], defined);
            if (!c->branched) continue;
            CUDA(cudaMemcpy(got, L.branches.shared_to, (size_t)rows[i] * (size_t)c->hidden * 4, cudaMemcpyDeviceToHost));
            compare_defined(c, in_units ? "shared, units" : "shared, a step", rows[i], shared);
        }
    free(defined);
    cudaFree(to);
    close_host(c);
}

// Stored elsewhere, the output is what would be added, and x stays.
static void test_stored(const layer_case *c) {
    const size_t bytes = STEP_ROWS * (size_t)c->hidden * 4;
    float *to, *stored = (float *)malloc(bytes);
    CUDA(cudaMalloc(&to, bytes));
    for (int T = 1; T <= STEP_ROWS; T++)
        for (int in_units = 0; in_units < 2; in_units++) {
            int wrong = 0;
            put_rows(start);
            run(0, T, in_units, NULL);
            get_rows(want);
            put_rows(start);
            run_to(0, T, in_units, NULL, to);
            get_rows(got);
            CUDA(cudaMemcpy(stored, to, bytes, cudaMemcpyDeviceToHost));
            for (int i = 0; i < T * c->hidden; i++)
                wrong += !(fabsf(start[i] + stored[i] - want[i]) <= 2e-6f * fmaxf(fabsf(want[i]), 1)) || got[i] != start[i];
            CHECK(!wrong, "%s, stored, %d rows: %d numbers differ", c->name, T, wrong);
        }
    free(stored);
    cudaFree(to);
}

#include "moe_slots.c"

static void test_case(const layer_case *c) {
    const int before = test_failed;
    open_layer(c);
    want = (float *)calloc(6 * ROWS * (size_t)c->hidden, 4);
    got = want + 2 * ROWS * c->hidden;
    start = got + 2 * ROWS * c->hidden;
    get_rows(start);
    for (int r = 0; r < ROUTINGS; r++) test_routing(c, (enum routing)r);
    if (c->hidden < 2048) test_definition(c);
    test_stored(c);
    test_moved(c);
    test_home(c);
    free(want);
    close_layer();
    printf("%s: %d failed\n", c->name, test_failed - before);
    fflush(stdout);
}

// ---- 5. Times -------------------------------------------------------------------------------------------------------

enum { SETS = 4, TIMES = 9, LAUNCHES = 24 };

static double bandwidth;         // of the read loop, bytes a second

// Microseconds of one of LAUNCHES times body(i), as a graph: the median.
template <class BODY> static double microseconds(const BODY &body) {
    float ms[TIMES];
    cudaGraph_t graph;
    cudaGraphExec_t run;
    cudaEvent_t from, to;
    CUDA(cudaEventCreate(&from));
    CUDA(cudaEventCreate(&to));
    CUDA(cudaStreamBeginCapture(L.q.stream, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < LAUNCHES; i++) body(i);
    CUDA(L.q.status);
    CUDA(cudaStreamEndCapture(L.q.stream, &graph));
    CUDA(cudaGraphInstantiate(&run, graph, 0));
    for (int i = -2; i < TIMES; i++) {
        float *at = &ms[i < 0 ? 0 : i];
        CUDA(cudaEventRecord(from, L.q.stream));
        CUDA(cudaGraphLaunch(run, L.q.stream));
        CUDA(cudaEventRecord(to, L.q.stream));
        CUDA(cudaEventSynchronize(to));
        CUDA(cudaEventElapsedTime(at, from, to));
    }
    for (int i = 1; i < TIMES; i++)
        for (int j = i; j > 0 && ms[j] < ms[j - 1]; j--) { float other = ms[j]; ms[j] = ms[j - 1]; ms[j - 1] = other; }
    CUDA(cudaGraphExecDestroy(run));
    CUDA(cudaGraphDestroy(graph));
    return ms[TIMES / 2] * 1000 / LAUNCHES;
}

static __global__ void read_all(const uint4 *from, size_t n, uint32_t *out) {
    uint32_t all = 0;
    const size_t step = (size_t)gridDim.x * blockDim.x;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i + 3 * step < n; i += 4 * step)
        for (int j = 0; j < 4; j++) {
            const uint4 v = __ldcs(from + i + j * step);
            all ^= v.x ^ v.y ^ v.z ^ v.w;
        }
    if (all == 12345) *out = all;
}

static void time_read_loop(void) {
    const size_t n = L.used / 16;
    const double us = microseconds([&](int) {
        read_all<<<sms * 8, 512, 0, L.q.stream>>>((const uint4 *)(void *)L.weights, n, (uint32_t *)(void *)L.p.chosen);
    });
    bandwidth = (double)n * 16 / us * 1e6;
    printf("read loop: %.0f GB/s\n", bandwidth * 1e-9);
}

// As gpu_record_experts, the kernels for any shape.
static void record_any(const moe_gpu *p) {
    const gpu_down_kernel down = gpu_down_of_any(p);
    gpu_record_up(&L.q, p);
    gpu_record(&L.q, KERNEL_DOWN, "", down.kernel, (gpu_row_panels(p->shape.hidden) - 1) / down.panels + 1, 1, down.shared, p);
}

static void time_rows(const layer_case *c, int T, const moe_gpu *scratch, const float *logits) {
    const moe_shape *s = &L.w.shape;
    int32_t chosen[SETS];
    double active = 0, us[10];
    moe_gpu p[SETS], any[SETS];          // any: no element is clamped, but experts_up that asks runs through the kernels for any shape
    const unsigned stages[] = {ALL_STAGES, 1u << STAGE_ROUTER, 1u << STAGE_UP, 1u << STAGE_DOWN};
    for (int i = 0; i < SETS; i++) {
        const gpu_rows all = rows_of(0, T, NULL);
        p[i] = any[i] = moe_gpu_of(&scratch[i], &L.w, &all);
        any[i].end.act.limit = 1e30f;
        CUDA(cudaMemcpy(p[i].router, logits + (size_t)i * ROWS * (size_t)s->experts, (size_t)(T * s->experts) * 4, cudaMemcpyHostToDevice));
        gpu_record_in_units(&L.q, &p[i]);
        submit();
        CUDA(cudaMemcpy(&chosen[i], p[i].chosen, 4, cudaMemcpyDeviceToHost));
        active += (double)chosen[i] / SETS;
    }
    for (int k = 0; k < 4; k++) {
        us[k] = microseconds([&](int i) {
            L.q.stages = stages[k];
            gpu_record_in_units(&L.q, &p[i % SETS]);
            gpu_submit(&L.q);
        });
        L.q.stages = ALL_STAGES;
    }
    for (int k = 0; k < 6 && T <= STEP_ROWS; k++) {      // as decode has it, and for any shape: all, experts_up, experts_down
        us[4 + k] = microseconds([&](int i) {
            L.q.stages = stages[k % 3 ? k % 3 + 1 : 0];
            if (k < 3) gpu_record_experts(&L.q, &p[i % SETS]);
            else record_any(&any[i % SETS]);
            gpu_submit(&L.q);
        });
        L.q.stages = ALL_STAGES;
    }
    const double up_of_any = microseconds([&](int i) {
        L.q.stages = stages[2];
        gpu_record_in_units(&L.q, &any[i % SETS]);
        gpu_submit(&L.q);
    });
    L.q.stages = ALL_STAGES;
    const double up = active * (s->squared_relu ? 1 : 2) * (double)matrix_bytes(&L.w.gate_proj[0]);
    const double down = active * (double)matrix_bytes(&L.w.down_proj[0]) + (s->shared_size ? (double)matrix_bytes(&L.w.down_proj[s->experts]) : 0);
    printf("%-16s %2d rows %6.1f experts: route %5.1f us, up %6.1f us %3.0f %%, down %6.1f us %3.0f %%, all %6.1f us", c->name, T, active,
           us[1], us[2], 100 * up / us[2] * 1e6 / bandwidth, us[3], 100 * down / us[3] * 1e6 / bandwidth, us[0]);
    printf(", up of any %6.1f us", up_of_any);
    if (T <= STEP_ROWS)
        printf("; as decode has it up %5.1f, down %5.1f, all %6.1f us; for any shape up %5.1f, down %5.1f, all %6.1f us", us[5], us[6], us[4],
               us[8], us[9], us[7]);
    printf("\n");
    fflush(stdout);
}

static void time_case(const layer_case *c) {
    static const int rows[] = {1, 2, 3, 4, 8, 16, 32, 64};
    moe_gpu scratch[SETS];
    float *memory[SETS], *logits = (float *)malloc(SETS * ROWS * (size_t)c->experts * 4);
    open_layer(c);
    time_read_loop();
    for (int i = 0; i < SETS; i++) {
        scratch[i] = make_scratch(&L.w.shape, &memory[i]);
        make_logits(INDEPENDENT, (uint32_t)i + 11, logits + (size_t)i * ROWS * (size_t)c->experts);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) time_rows(c, rows[i], scratch, logits);
    for (int i = 0; i < SETS; i++) cudaFree(memory[i]);
    free(logits);
    close_layer();
}

// ---- 6. Main --------------------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    int count = 0, major = 0, timed = argc > 1 && !strcmp(argv[1], "--time");
    const int more = test_main_begin("gpu_batch_moe", timed ? 1 : argc, argv);
    if (cudaGetDeviceCount(&count) != cudaSuccess || !count) {
        test_skip("no GPU");
        return test_main_end();
    }
    CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
    CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    CUDA(cudaDeviceGetAttribute(&L.q.shared, cudaDevAttrMaxSharedMemoryPerMultiprocessor, 0));
    CUDA(cudaStreamCreate(&L.q.stream));
    L.q.sms = sms;
    L.q.dependent = major >= 9;
    L.q.stages = ALL_STAGES;
    for (int i = 0; i < CASES; i++) {
        if (timed && cases[i].hidden < 2048) continue;
        if (argc > 2 && timed && strcmp(argv[2], cases[i].name)) continue;
        if (!timed && more < argc && !strstr(cases[i].name, argv[more])) continue;
        if (timed) time_case(&cases[i]);
        else test_case(&cases[i]);
    }
    return test_main_end();
}
