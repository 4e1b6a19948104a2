/* layers/embed.cu: the first stage of a step on a GPU: gathers the rows of the embedding table, and saves the hidden row
   that the MTP layer needs from the step before. Reads step_parameters; knows nothing of the layers that follow. */

typedef struct gpu_embedding {
    handoff link;
    gpu_matrix embed_tokens;
    const step_parameters *step;
    const uint8_t *sequences;    /* [T] of a pass of several: that of each row; NULL: one */
    int T;
    float factor;                /* of embeddings */
    float *x;                    /* [T][cols] */
    slot_view slot;
    const float *hidden;         /* [MOTE_ROWS_MAX][cols] of the captured slot: final rows of the previous step */
    float *last_hidden;          /* [cols] of the same: the last accepted one of them; NULL: not wanted */
} gpu_embedding;

/* x[t] = embed_tokens[ids[t]] factor; last_hidden = hidden[accepted rows - 1]. Grid: (ceil(columns / 256), T + sequences): one row of
   blocks per token row, then one for each last_hidden. One element per thread.

   last_hidden is saved here because the end of the step overwrites hidden. */
static __global__ void gpu_embed_rows(const __grid_constant__ gpu_embedding p) {
    int col = blockIdx.x * GPU_THREADS + threadIdx.x, t = blockIdx.y, cols = p.embed_tokens.cols;
    pdl_launch_dependents();
    pdl_wait();
    if (col >= cols) return;
    const step_parameters *step = t < p.T ? gpu_step_of_row(p.step, p.sequences, t) : p.step + (t - p.T);
    if (t < p.T) {
        p.x[(size_t)t * cols + col] = gpu_weight(&p.embed_tokens, step->ids[t - step->first], col) * p.factor;
    } else if (p.last_hidden && step->accepted) {
        const slot_view slot = gpu_slot_of(&p.slot, step);
        const float *hidden = (const float *)gpu_in_slot(&slot, p.hidden);
        ((float *)gpu_in_slot(&slot, p.last_hidden))[col] = hidden[(size_t)(step->accepted - 1) * cols + col];
    }
}

static void gpu_embed(gpu_queue *q, const gpu_embedding *p, int sequences) {
    int blocks = (p->embed_tokens.cols + GPU_THREADS - 1) / GPU_THREADS;
    gpu_record(q, KERNEL_EMBED, formats[p->embed_tokens.format]->name, gpu_embed_rows, blocks, p->T + sequences, 0, p);
}
