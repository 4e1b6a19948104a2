/* layers/moe/decode.cu: a mixture of experts on a GPU, for one to four token rows: the parameters of its kernels, and norm_router.

   Three kernels: norm_router (here), experts_up (routing.cu, up.cu) and experts_down (down.cu, down_fixed.cu, down_row.cu, down_dealt.cu,
   down_own.cu). More rows, and shapes without an experts_down for several, run through route and its own two (batch_route.cu, batch_up.cu,
   batch_down.cu).
   decode_launch.cu records them, and says which runs when. They know no session and no other kind of layer. The definition is layers/moe/cpu.c.

   An assignment is a pair of an expert and a token row that chose it. The active experts are the shared expert, number 0,
   and the distinct routed experts, number 1 + i for place i of the routing. Weights of an active expert are read once for
   all its rows. */

/* Limits: experts per token row, experts of a layer, groups of these, distinct routed experts of a step. */
enum { GPU_TOP = 32, GPU_EXPERTS = 1024, GPU_GROUPS = 32, GPU_CHOSEN = STEP_ROWS * GPU_TOP };

/* The distinct routed experts of a step, ascending. at: where their matrices are, as in moe_gpu.expert_at; rows: bit set of the token rows
   that chose them. */
typedef struct gpu_routing {
    int64_t at[GPU_CHOSEN];
    int32_t rows[GPU_CHOSEN], count;
} gpu_routing;

/* Up to four token rows of one expert, which share a load of its weights: an n-tile. */
typedef struct alignas(16) gpu_unit {
    int64_t at;                  /* where the expert's matrices are; 0 of the shared one, which are elsewhere */
    uint32_t rows;               /* byte s: the token row in column s, UNIT_NO_ROW: none */
} gpu_unit;

enum { UNIT_NO_ROW = 255 };

/* Scratch of a pass whose experts run by units (batch_route.cu). Units are numbered: those of the shared expert, n-tile by n-tile,
   then those of the routed ones, ascending by expert, and of an expert's rows ascending. */
typedef struct moe_batch {
    batch_rows x;                /* x norm, in the operand order of gate_proj */
    int prepared;                /* it is norm_router's */
    int space;                   /* k blocks of a unit's rows that gpu_batch_up_any has shared memory for at a time */
    float *shared_h;             /* [BATCH_ROWS_MAX][h_row] of the shared expert, not yet times its gate */
    int32_t *choice;             /* [BATCH_ROWS_MAX][top_k] experts of a row, best first; in a step too, for biases of down_proj */
    float *choice_weight;        /* the same shape */
    uint32_t *ready;             /* blocks of route that have chosen; 0 between two launches */
    int32_t *count;              /* units */
    gpu_unit *unit;
    float *weight;               /* [unit][4] routing weights */
    activation_fragments shared, routed;         /* [unit] h as fragments of four rows, each k_blocks of its down_proj; one after the other */
} moe_batch;

typedef struct moe_gpu {
    handoff link;
    moe_shape shape;
    int T;
    gpu_matrix gate, up, down;   /* of routed expert 0 */
    const float *correction, *expert_scale;                 /* [experts], as moe_weights has them */
    int ranks;                   /* experts are chosen by other numbers than their logits */
    const int64_t *expert_at;    /* [experts] where each routed expert's are: bytes from those, the same for all that belongs to it */
    int placed;                  /* it is a runner's own, which experts_place writes just before */
    int tile_panels;             /* of up_proj in a tile of experts_up: 1, beside the same one of gate_proj; 2 of experts without a gate */
    int tiles;                   /* of an expert */
    uint32_t per_tile;           /* reciprocal_of(tiles): tile * per_tile >> 32 is the tile's place in the routing */
    int64_t to_second;           /* bytes from a tile's first panel to its second */
    gpu_matrix shared_down;
    const float *norm;           /* [hidden] */
    float eps;
    float *router;               /* [T][experts] logits */
    float *shared_gate;          /* [T] logits; of no use if shared_ungated */
    gpu_routing *routing;        /* written by experts_up, read by experts_down */
    int32_t *chosen;             /* count of this layer's distinct routed experts, for byte counts in measurements */
    float *h;                    /* [1 + GPU_CHOSEN][STEP_ROWS][h_row] SwiGLU outputs, by active expert and token row */
    int h_row;
    uint32_t overlap;            /* of simulated_row; 0 but in measurements */
    uint32_t locality;           /* of simulated routing (place.cu); the same */
    const struct moe_slots *slots;                          /* on the host: [layers + 1] a runner's; NULL: it has none */
    const struct moe_brought *brought;                      /* on the host, of a prompt: copies of the layer's experts; NULL: they are read where they are */
    const float *x;              /* [T][hidden] residual */
    float *to;                   /* [T][hidden] where the output goes */
    gpu_branches branches;       /* with shared_to, the shared expert's goes there */
    epilogue end;                /* of the output; act: of gate and up */
    int in_units;                /* experts run by units: the kernels of batch_*.cu do */
    uint32_t ahead;              /* bytes of a routed expert's down_proj, if it is in the GPU's memory, for who prefetches it; or 0 */
    moe_batch batch;
} moe_gpu;

/* Elements of a row of h: whole k blocks in any format. Those past the expert's size stay zero. */
static size_t gpu_h_row(const moe_shape *s) {
    return (size_t)(moe_width(s) + 63) / 64 * 64;
}

static size_t gpu_h_size(const moe_shape *s) {
    return (size_t)(1 + GPU_CHOSEN) * STEP_ROWS * gpu_h_row(s);
}

/* Squared ReLU is ReLU(gate) up, as gate_proj is up_proj. */
static activation moe_activation(const moe_shape *s) {
    const activation a = {.limit = s->limit, .alpha = s->alpha,
                          .function = s->squared_relu ? ACTIVATION_RELU : s->gelu ? ACTIVATION_GELU : ACTIVATION_SILU};
    return a;
}

/* Whether the shared expert has a gate. */
static bool moe_is_gated(const moe_shape *s) {
    return s->shared_size && !s->shared_ungated;
}

/* norm_router: RMSNorm; logits of router and shared_expert_gate; h of the shared expert, which does not depend on the
   routing. One kernel, up to three segments; of branches router and shared expert have norms of their own. */
static void gpu_norm_router(gpu_queue *q, const moe_weights *w, const moe_gpu *to) {
    const moe_shape *s = &to->shape;
    const int branched = to->branches.shared_to != NULL;
    const float *norm = branched ? to->branches.norm_router : to->norm;
    gpu_projection<gpu_norm_rows> p = gpu_norm_projection(to->x, norm, s->hidden, to->T, to->eps);
    p.waits_last = 1;
    p.end.act = to->end.act;
    if (s->shared_size) {
        gpu_add_segment(&p, &w->gate_proj[s->experts], NULL);
        if (!s->squared_relu) p.segment[0].up = gpu_matrix_of(&w->up_proj[s->experts]);
        p.segment[0].h = to->in_units ? to->batch.shared_h : to->h;
        p.segment[0].norm = branched ? to->branches.norm_shared : norm;
        p.h_row = (size_t)to->h_row;
    }
    gpu_add_segment(&p, &w->router, to->router);
    if (moe_is_gated(s)) gpu_add_segment(&p, &w->shared_expert_gate, to->shared_gate);
    gpu_record_projection(q, KERNEL_ROUTER, &p);
}
