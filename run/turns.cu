/* run/short_prompt.cu: a block of 5 to PASS_ROWS_MAX rows of one slot on a GPU, as short prompts are: every weight is read once for all of
   its rows, which have the bits that blocks of STEP_ROWS rows, one after the other, give them. To the mixers it is just these blocks,
   in turn; all else takes the rows as those of a pass of several sequences (run/pass.cu).

   It leaves what the last of the blocks would: that is in the log, its final rows and residual rows are the slot's. */

/* Blocks of STEP_ROWS rows. */
static int gpu_blocks_of(int T) {
    return (T - 1) / STEP_ROWS + 1;
}

typedef struct gpu_turns {
    gpu_pass_table *to;
    step_parameters first;       /* of the first block */
    int32_t ids[PASS_ROWS_MAX];
    int T;
} gpu_turns;

/* Writes the steps of all blocks. One block of PASS_ROWS_MAX threads. */
static __global__ void gpu_put_turns(const __grid_constant__ gpu_turns p) {
    const int z = threadIdx.x, at = z * STEP_ROWS;
    p.to->sequence_of[z] = (uint8_t)(z / STEP_ROWS);
    if (at >= p.T) return;
    step_parameters *to = &p.to->steps[z];
    *to = p.first;
    to->position = p.first.position + at;
    to->replay = z ? (int)STEP_ROWS : p.first.replay;
    to->first = at;
    to->rows = min(p.T - at, (int)STEP_ROWS);
    for (int t = 0; t < to->rows; t++) to->ids[t] = p.ids[at + t];
}

/* Of the last block: its residual rows become the first ones of x, and what was before it is the slot's last_hidden. One block. */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_end_turns(float *x, const float *norm, int cols, float eps, int first, int rows,
                                                                    float *last_hidden) {
    __shared__ float shared[GPU_WARPS];
    if (last_hidden) gpu_norm_row(last_hidden, x + (size_t)(first - 1) * cols, norm, cols, eps, shared);
    for (int i = threadIdx.x; i < rows * cols; i += GPU_THREADS) x[i] = x[(size_t)first * cols + i];
}

/* The graph for T rows, captured for whole blocks if there is none. */
static cudaGraphExec_t gpu_turns_graph(const slot *s, int T, int splits, enum gpu_kind kind) {
    gpu_form f = gpu_form_of(s, gpu_blocks_of(T) * STEP_ROWS);
    f.sequences = gpu_blocks_of(T);
    f.in_turn = 1;
    f.splits = splits;
    return gpu_pass_graph_of(&f, kind, -1);
}

static int gpu_forward_in_turn(slot *s, const block *b, mote_error *err) {
    struct gpu_runner *g = s->runner->gpu;
    const mote_model *m = s->m;
    const size_t vocab = (size_t)m->c.vocab;
    const int last = (gpu_blocks_of(b->T) - 1) * STEP_ROWS;
    const enum gpu_kind kind = b->logits ? GPU_ALL_LOGITS : GPU_NO_LOGITS;
    gpu_turns turns;
    memset(&turns, 0, sizeof turns);
    turns.to = g->table;
    turns.first = gpu_step_of(s);
    turns.first.position = b->position;
    turns.first.replay = b->replay;
    turns.first.sequence = g->sequence;
    turns.T = b->T;
    memcpy(turns.ids, b->ids, (size_t)b->T * sizeof *b->ids);
    int code = gpu_enter(s, err);
    if (code) return code;
    cudaGraphExec_t graph = gpu_turns_graph(s, b->T, gpu_splits_for(g, b->position + b->T), kind);
    gpu_put_turns<<<1, PASS_ROWS_MAX, 0, g->stream>>>(turns);
    if (g->q.status == cudaSuccess) gpu_check(&g->q, cudaGraphLaunch(graph, g->stream), "launching a block");
    if (b->logits)
        gpu_check(&g->q, cudaMemcpyAsync(b->logits, g->logits, (size_t)b->T * vocab * sizeof(float), cudaMemcpyDeviceToHost, g->stream),
                  "reading the logits");
    gpu_end_turns<<<1, GPU_THREADS, 0, g->stream>>>(g->x, m->norm, m->c.hidden, m->c.eps, last, b->T - last,
                                                    s->has_mtp ? s->last_hidden : NULL);
    gpu_check(&g->q, cudaGetLastError(), "a block");
    if (kind != GPU_NO_LOGITS) g->logits_pass++;
    gpu_launched(s, b->T - last, GPU_NO_LOGITS);
    return b->logits ? gpu_finish(s, err) : gpu_failed(&g->q, err);
}
