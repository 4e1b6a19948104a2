/* layers/embed.cu: the first stage of a step on a GPU: gathers the rows of the embedding table or, in a range of layers that is not the first,
   receives them from the range before it; and saves the hidden row that the MTP layer needs from the step before. And the last stage of a
   range that is not the last: sends its rows. Reads step_parameters; knows nothing of the layers between. */

typedef struct gpu_embedding {
    handoff link;
    gpu_matrix embed_tokens;
    const step_parameters *step;
    const uint8_t *sequences;    /* [T] of a pass of several: that of each row; NULL: one */
    int T;                       /* 0: x is there already */
    const float *given;          /* [hidden] the row of a token without an id: an image's, which is alone in its step */
    float factor;                /* of embeddings */
    int cols;                    /* of a row of x: of all streams, which an embedding fills */
    float *x;                    /* [T][cols] */
    peer_rows from;              /* box NULL: the rows are embeddings */
    slot_view slot;
    const float *hidden;         /* [MOTE_ROWS_MAX][cols] of the captured slot: final rows of the previous step */
    float *last_hidden;          /* [cols] of the same: the last accepted one of them; NULL: not wanted */
} gpu_embedding;

/* x[t] = embed_tokens[ids[t]] factor, the given row, or what the range before has sent; last_hidden = hidden[accepted rows - 1]. Grid: (ceil(columns / 256),
   T + sequences): one row of blocks per token row, then one for each last_hidden. One element per thread.

   last_hidden is saved here because the end of the step overwrites hidden. */
static __global__ void gpu_embed_rows(const __grid_constant__ gpu_embedding p) {
    int col = blockIdx.x * GPU_THREADS + threadIdx.x, t = blockIdx.y, cols = p.cols;
    pdl_launch_dependents();
    pdl_wait();
    if (p.from.box && t < p.T) {
        const float x = peer_receive(p.from, t, blockIdx.x, (size_t)cols, col < cols);
        if (col < cols) p.x[(size_t)t * cols + col] = x;
        return;
    }
    if (col >= cols) return;
    const step_parameters *step = t < p.T ? gpu_step_of_row(p.step, p.sequences, t) : p.step + (t - p.T);
    if (t < p.T) {
        const int id = step->ids[t - step->first], n = p.embed_tokens.cols, from = col < n ? col : col % n;
        p.x[(size_t)t * cols + col] = id < 0 ? p.given[from] : gpu_weight(&p.embed_tokens, id, from) * p.factor;
    } else if (p.last_hidden && step->accepted) {
        const slot_view slot = gpu_slot_of(&p.slot, step);
        const float *hidden = (const float *)gpu_in_slot(&slot, p.hidden);
        ((float *)gpu_in_slot(&slot, p.last_hidden))[col] = hidden[(size_t)(step->accepted - 1) * cols + col];
    }
}

static void gpu_embed(gpu_queue *q, const gpu_embedding *p, int sequences) {
    const int blocks = (p->cols + GPU_THREADS - 1) / GPU_THREADS;
    gpu_record(q, KERNEL_EMBED, p->from.box || !p->T ? "" : formats[p->embed_tokens.format]->name, gpu_embed_rows, blocks, p->T + sequences, 0, p);
}

typedef struct gpu_sending {
    handoff link;
    const float *x;              /* [T][cols] */
    int cols;
    peer_rows to;
} gpu_sending;

/* Sends x to the next range, with its tags. Grid: (ceil(columns / 256), T), one element per thread. */
static __global__ void gpu_send_rows(const __grid_constant__ gpu_sending p) {
    const int col = blockIdx.x * GPU_THREADS + threadIdx.x, t = blockIdx.y;
    pdl_launch_dependents();
    pdl_wait();
    const float x = col < p.cols ? __ldcg(p.x + (size_t)t * p.cols + col) : 0;
    peer_send(p.to, t, blockIdx.x, (size_t)p.cols, x, col < p.cols);
}

static void gpu_send(gpu_queue *q, const float *x, int T, int cols) {
    const gpu_sending p = {.link = {}, .x = x, .cols = cols, .to = peers_rows(q->peer, 0)};
    gpu_record(q, KERNEL_SEND, "", gpu_send_rows, (cols + GPU_THREADS - 1) / GPU_THREADS, T, 0, &p);
}
