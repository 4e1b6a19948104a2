/* run/cuda/turns.cu: a block of 5 to PASS_ROWS_MAX rows of one slot on a GPU, a short prompt or many drafts: every weight is read once for all of
   its rows, which have the bits that blocks of STEP_ROWS rows, one after the other, give them. To the mixers it is just these blocks,
   in turn; all else takes the rows as those of a pass of several sequences (run/cuda/pass.cu).

   Of the rows, the last block that may be kept in part is in the log, of up to MOTE_ROWS_MAX rows (gpu_before_log); its final rows and
   residual rows are the slot's. */

typedef struct gpu_turns {
    gpu_pass_table *to;
    step_parameters first;       /* of the first turn */
    int32_t ids[PASS_ROWS_MAX];
    int T, given;                /* given: the first step is there, with the tokens of all T <= MOTE_ROWS_MAX rows, and keeps them */
} gpu_turns;

/* Makes the step of a block of T rows that of its turn number z, but for the tokens. */
__device__ __forceinline__ void gpu_make_turn(step_parameters *step, int z, int T) {
    step->index += z * STEP_ROWS;
    step->first = z * STEP_ROWS;
    step->rows = min(T - step->first, (int)STEP_ROWS);
}

/* Writes the steps of all turns. One block of PASS_ROWS_MAX threads. */
static __global__ void gpu_put_turns(const __grid_constant__ gpu_turns p) {
    const int z = threadIdx.x, at = z * STEP_ROWS;
    p.to->sequence_of[z] = (uint8_t)(z / STEP_ROWS);
    if (at >= p.T) return;
    step_parameters *step = &p.to->steps[z];
    const step_parameters *first = p.given ? p.to->steps : &p.first;
    const int32_t *ids = p.given ? first->ids : p.ids;
    if (step != first) *step = *first;                      /* of one given, turn 0 changes what the others have of their own */
    gpu_make_turn(step, z, p.T);
    for (int t = 0; step != first && t < step->rows; t++) step->ids[t] = ids[at + t];
}

/* Records it in front of a step, whose parameters are the first turn's. */
static void gpu_split_step(const gpu_form *f, gpu_queue *q) {
    gpu_turns turns;
    memset(&turns, 0, sizeof turns);
    turns.to = f->r->gpu->table;
    turns.T = f->dealt;
    turns.given = 1;
    gpu_put_turns<<<1, PASS_ROWS_MAX, 0, q->stream>>>(turns);
    gpu_check(q, cudaGetLastError(), "dealing out a step's rows");
}

/* The graph for T rows from that index on, captured if there is none. drafts < 0: for whole turns, whose steps are written before. */
static cudaGraphExec_t gpu_turns_graph(const slot *s, int T, int index, enum gpu_kind kind, int drafts) {
    gpu_form f = gpu_form_of(s, T);
    if (drafts < 0) f.dealt = 0;
    f.rows.splits = gpu_splits_for(s->runner->gpu, index + T);
    return gpu_pass_graph_of(&f, kind, drafts);
}

static int gpu_forward_in_turn(slot *s, const block *b, mote_error *err) {
    struct gpu_runner *g = s->runner->gpu;
    const mote_model *m = s->m;
    const size_t vocab = (size_t)m->c.vocab;
    const int before = gpu_before_log(b->T);
    const int answers = runner_answers(s->runner), last = part_is_last(&m->part);
    const enum gpu_kind kind = gpu_kind_of(s->runner, b->logits ? GPU_ALL_LOGITS : GPU_NO_LOGITS);
    gpu_turns turns;
    memset(&turns, 0, sizeof turns);
    turns.to = g->table;
    turns.first = gpu_step_of(s);
    turns.first.index = b->rows->index;
    turns.first.lag = row_lag(b->rows);
    turns.first.accepted = turns.first.replay = b->replay;
    turns.first.sequence = g->sequence;
    turns.T = b->T;
    for (int t = 0; t < b->T; t++) turns.ids[t] = b->rows[t].id;
    int code = gpu_enter(s, err);
    if (!code) code = gpu_look_up_block(s, b, NULL, err);
    if (code) return code;
    cudaGraphExec_t graph = gpu_turns_graph(s, b->T, b->rows->index, kind, -1);
    gpu_put_turns<<<1, PASS_ROWS_MAX, 0, g->stream>>>(turns);
    gpu_launch_rows(s->runner, graph, gpu_rows_of_block(b->T), "launching a block");
    if (b->logits && answers) gpu_move(&g->q, b->logits, g->logits, (size_t)b->T * vocab * sizeof(float), "reading the logits");
    gpu_read_residual(s, b, g->x);
    if (before && last)
        gpu_keep_rows<<<1, GPU_THREADS, 0, g->stream>>>(g->x, g->x + (size_t)before * (size_t)model_width(m), m->norm, model_width(m), m->c.eps,
                                                        b->T - before, -1, s->has_mtp ? s->last_hidden : NULL);
    gpu_check(&g->q, cudaGetLastError(), "a block");
    if (kind != GPU_NO_LOGITS) g->logits_pass++;
    gpu_launched(s, b->T - before, GPU_NO_LOGITS);
    s->logits_in_block = b->logits && b->logits == s->block_logits;
    return answers && (b->logits || b->residual_rows) ? gpu_finish(s, err) : gpu_failed(&g->q, err);
}
