/* cuda/prefill.cu: what the prefill of all kinds of layers shares: token rows on their way through the layers, projections of
   them, RMSNorm. Knows matrices and rows; must not know layers or sessions.

   Prefill reads a prompt, up to thousands of token rows at a time, through tensor cores; decode reads one to four, through
   the kernels of a step. Prefill is launched kernel by kernel on the session's stream: with so many rows a launch costs
   nothing, and there is no schedule to link. */

/* T token rows on their way through the layers: token_rows and gpu_rows there. */
typedef struct prefill_rows {
    cudaStream_t stream;
    int sms;
    const struct gpu_peer *peer; /* as gpu_queue has it */
    const token_row *table;      /* [T], in GPU memory */
    int T, index;                /* rows; index of the first */
    int layer;                   /* number of the layer, the MTP layer's after the others' */
    int state_only;              /* what the layer remembers of the rows is all that is wanted: x is left as it is */
    unsigned stages;             /* bit set of those to run; ALL_STAGES but to time some alone */
    float factor;                /* of BF16 weights: see bf16_factor */
    int hidden;
    float eps;                   /* of norms */
    float *x, *y;                /* [T][streams][hidden], [T][hidden] the walk's, as token_rows has them */
    float *share;                /* [T][streams] of outputs that residual streams get */
    float *out;                  /* [T][hidden] to which a sublayer adds its output */
    const float *norm;           /* [hidden] what a sublayer's rows are normalised with */
    gpu_branches branches;       /* as gpu_rows has them; shared_to is added to */
    uint16_t *u;                 /* F16 [T][hidden] the normalised rows, with an activation scale each; at the end of
                                    the scratch: see prefill_take_rest */
    float *u_scale;              /* [T] */
    char *scratch;               /* scratch of the kind of layer that runs: name_prefill_bytes bytes */
    const float *looked_up;      /* [T][ngrams_width] of a layer of n-grams: the rows of its table, in memory that the GPU reads */
} prefill_rows;

/* The scratch of prefill, in GPU memory. */
typedef struct prefill_scratch {
    int rows;                    /* of a prefill chunk; 0: its prompts are decoded */
    float *x, *y, *shared;       /* [rows][streams][hidden], [rows][hidden]; shared: of branches */
    float *share;                /* [rows][streams] */
    float *tapped;               /* [rows][hidden] what a block drafter makes of its taps */
    float *u_scale;              /* [rows] */
    token_row *table;            /* [rows] of the prefill chunk, and before them table[-1], as in a block */
    char *scratch;
    uint16_t *u;                 /* F16 [rows][hidden], the end of the scratch */
    size_t scratch_bytes;
    float *before;               /* the recurrent states before the prefill chunk */
    char *windows;               /* what rings had of the window before it; NULL: no chunk is so long that it takes their place */
} prefill_scratch;

/* Takes `bytes` of scratch, from a multiple of 256 bytes on; with scratch NULL it only counts. */
static void *prefill_take(char *scratch, size_t *used, size_t bytes) {
    void *at = scratch ? scratch + *used : NULL;
    *used += (bytes + 255) / 256 * 256;
    return at;
}

/* The bytes of scratch of which `used` are taken by what is written while u is still read, and `rest` by what is written
   later, in u's place. */
static size_t prefill_take_rest(size_t used, size_t rest, int T, int hidden) {
    return used + max_size(rest, ((size_t)T * (size_t)hidden * sizeof(uint16_t) + 255) / 256 * 256);
}

/* Whether gemm_launch can multiply with a matrix of this format and these columns. */
static int prefill_multiplies(const matrix *w) {
    int takes = 0;
    with_format(w->format, [&](auto format) {
        typedef decltype(format) F;
        takes = F::gemm &&
                (!gpu_scales_by_block<F>() || (w->block_rows >= gemm_form<128>::WARP_ROWS && w->block_cols >= GEMM_COLS));
    });
    return takes && w->cols % GEMM_COLS == 0 && w->cols <= GEMM_COLS_MAX;
}

static int prefill_takes(const matrix *w) {
    return prefill_multiplies(w) && (w->rows % 32 == 0 || w->rows <= PANEL_ROWS || w->rows == 2 * PANEL_ROWS);
}

/* The same where the product is stored and not added to what is there. */
static int prefill_stores(const matrix *w) {
    return prefill_takes(w) || (prefill_multiplies(w) && !format_has_blocks(w->format) && w->rows % PANEL_ROWS == 0);
}

static gemm_rows prefill_normed(const prefill_rows *r) {
    const gemm_rows rows = {r->u, r->u_scale, 1};
    return rows;
}

/* No product of T rows yet. */
static gpu_gemm prefill_gemm(const prefill_rows *r, gemm_rows in, int T) {
    gpu_gemm p;
    memset(&p, 0, sizeof p);
    p.in = in;
    p.T = T;
    p.factor = r->factor;
    return p;
}

/* Adds y = W in, [T][rows of W], or another `out`, whose places the caller fills in. */
static gemm_product *prefill_product(gpu_gemm *p, const matrix *w, enum gemm_out out, float *y) {
    gemm_product *o = &p->product[p->count++];
    o->w = gpu_matrix_of(w);
    o->out = out;
    o->y = y;
    o->stride = w->rows;
    p->cols = w->cols;
    return o;
}

/* Launches the products, those of a kernel together, with tiles as wide as pays. */
static void prefill_launch(const prefill_rows *r, gpu_gemm *p) {
    while (p->count) {
        gpu_gemm of = gemm_take(p);
        const int width = gemm_width(&of, r->sms);
        gemm_launch(&of, width, (of.T + width - 1) / width, r->stream);
    }
}

/* y = W in for T rows. */
static void prefill_linear(const prefill_rows *r, const matrix *w, gemm_rows in, int T, float *y) {
    gpu_gemm p = prefill_gemm(r, in, T);
    prefill_product(&p, w, GEMM_STORE, y);
    prefill_launch(r, &p);
}

/* A sublayer's output, or a part of it: out += weight * (W in); weight: of each row, or NULL. */
static void prefill_output(const prefill_rows *r, const matrix *w, gemm_rows in, const float *weight) {
    gpu_gemm p = prefill_gemm(r, in, r->T);
    prefill_product(&p, w, GEMM_ADD, r->out)->weight = weight;
    prefill_launch(r, &p);
}

/* A block stores its row, `n` floats in shared memory, n a multiple of 2, as F16 with one activation scale. top: its largest
   magnitude. */
__device__ __forceinline__ void prefill_put_row(const float *row, int n, float top, uint16_t *to, float *act_scale) {
    float factor;
    const float scale = gemm_act_scale(top, &factor);
    for (int i = 2 * threadIdx.x; i < n; i += 2 * GPU_THREADS)
        *(uint32_t *)(to + i) = f16_pair(row[i] * factor, row[i + 1] * factor);
    if (threadIdx.x == 0) *act_scale = scale;
}

typedef struct prefill_norm {
    const float *x, *norm;       /* [T][cols], [cols] */
    uint16_t *u;                 /* F16 [T][cols] */
    float *act_scale;            /* [T] */
    int cols;
    float eps;
} prefill_norm;

/* u = rms(x) norm as F16; block t has row t. Shared memory: [cols] floats. */
static __global__ void __launch_bounds__(GPU_THREADS) prefill_norm_rows(const __grid_constant__ prefill_norm p) {
    extern __shared__ __align__(16) float row[];
    __shared__ float shared[GPU_WARPS];
    const float *x = p.x + (size_t)blockIdx.x * p.cols;
    float sum = 0, top = 0;
    for (int i = 4 * threadIdx.x; i < p.cols; i += 4 * GPU_THREADS) {
        const float4 v = *(const float4 *)(x + i);
        *(float4 *)(row + i) = v;
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    const float factor = rms_factor_divided(block_sum(sum, shared), p.cols, p.eps);
    for (int i = 4 * threadIdx.x; i < p.cols; i += 4 * GPU_THREADS)
#pragma unroll
        for (int k = 0; k < 4; k++) {
            row[i + k] *= factor * __ldg(p.norm + i + k);
            top = fmaxf(top, fabsf(row[i + k]));
        }
    top = block_max(top, shared);
    prefill_put_row(row, p.cols, top, p.u + (size_t)blockIdx.x * p.cols, p.act_scale + blockIdx.x);
}

/* u = rms(x) norm of T rows of `cols` columns. */
static void prefill_rms_norm(const prefill_rows *r, const float *x, const float *norm, int T, int cols, float eps) {
    prefill_norm p = {.x = x, .norm = norm, .u = r->u, .act_scale = r->u_scale, .cols = cols, .eps = eps};
    prefill_norm_rows<<<T, GPU_THREADS, (size_t)cols * sizeof(float), r->stream>>>(p);
}

/* x[t] = the embedding of row t's token, times the factor. Grid: (ceil(cols / 256), T). */
static __global__ void __launch_bounds__(GPU_THREADS) prefill_embed_rows(const __grid_constant__ gpu_matrix embed_tokens,
                                                                         const token_row *rows, float factor, float *x) {
    const int col = blockIdx.x * GPU_THREADS + threadIdx.x, cols = embed_tokens.cols;
    if (col < cols) x[(size_t)blockIdx.y * cols + col] = gpu_weight(&embed_tokens, rows[blockIdx.y].id, col) * factor;
}

static void prefill_embed(const prefill_rows *r, const matrix *embed_tokens, float factor) {
    const dim3 grid((unsigned)((embed_tokens->cols + GPU_THREADS - 1) / GPU_THREADS), (unsigned)r->T);
    prefill_embed_rows<<<grid, GPU_THREADS, 0, r->stream>>>(gpu_matrix_of(embed_tokens), r->table, factor, r->x);
}
