/* layers/moe.cu: a mixture of experts on a GPU: what its kernels are given, and norm_router. */

enum { GPU_TOP = 32, GPU_EXPERTS = 1024, GPU_CHOSEN = GPU_ROWS * GPU_TOP };  /* most: of a row, to choose from, of a block */

/* The distinct routed experts of a block of rows, ascending, and for each a bit set of the rows that use it. */
typedef struct gpu_routing {
    int32_t count, expert[GPU_CHOSEN], rows[GPU_CHOSEN];
} gpu_routing;

typedef struct gpu_moe {
    moe_shape shape;
    int T;
    gpu_matrix gate, up, down;   /* of expert 0 */
    int64_t stride;              /* bytes from an expert's matrices to the next one's */
    uint32_t per_tile;           /* 2^32 / gate.panels, rounded up: tile * per_tile >> 32 is the tile's expert */
    gpu_matrix shared_down;
    const float *norm;
    const float *router;         /* [T][experts] logits */
    const float *shared_gate;    /* [T] logits */
    gpu_routing *routing;        /* written by experts_up, read by experts_down */
    int32_t *chosen;             /* this layer's count, for those who ask what was read */
    float *h;                    /* [1 + GPU_CHOSEN][GPU_ROWS][h_row]: the shared expert's first */
    int h_row;
    prefetch_span prefetch;               /* of the kernel behind experts_down: which experts it needs is not known yet */
    int warmup;                /* so many blocks do, the first */
    gpu_tag logits, after;      /* to watch for: router's; to write: x's */
    uint32_t overlap;            /* simulated share of its experts that a row has in common with row 0, of 2^32; 0: none */
    float *x;                    /* [T][hidden] residual */
    gpu_delta log;               /* log_blocks > 0: more blocks of experts_down bring its window and log up to date */
    int log_blocks;
} gpu_moe;

/* Elements of a row of h: whole k_blocks in any format. What is behind an expert's size stays zero. */
static size_t gpu_h_row(const moe_shape *s) {
    return (size_t)(moe_width(s) + 63) / 64 * 64;
}

static size_t gpu_h_size(const moe_shape *s) {
    return (size_t)(1 + GPU_CHOSEN) * GPU_ROWS * gpu_h_row(s);
}

/* norm_router: the logits of router and shared_expert_gate, and the shared expert's h, which no choice precedes. */
static void gpu_norm_router(gpu_queue *q, const moe_shape *s, const moe_weights *w, const float *x, int T, float *router,
                            float *shared_gate, float *h) {
    gpu_projection<gpu_router_rows> p = gpu_norm_projection<gpu_router_rows>(q, x, w->norm, s->hidden, T, s->eps);
    gpu_add_segment(&p, &w->gate_proj[s->experts], NULL);
    p.segment[0].up = gpu_matrix_of(&w->up_proj[s->experts]);
    p.segment[0].h = h;
    p.h_row = gpu_h_row(s);
    p.tag = gpu_next_tag(q, GPU_ROUTER, GPU_TAGGED_ROUTER);
    gpu_add_segment(&p, &w->router, router);
    gpu_add_segment(&p, &w->shared_expert_gate, shared_gate);
    gpu_launch_projection(q, GPU_ROUTER, &p);
}
