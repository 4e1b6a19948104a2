/* layers/mtp.cu: the input of the MTP layer on a GPU: what its fc is multiplied with. The layer itself is an attention
   layer and a mixture of experts like any other, and recorded by run/cuda/record.cu; so is fc.

   in[t] = [rms(embedding of the token) norm_embedding, rms(hidden row before it) norm_hidden]

   Where the residual is of streams a hidden row is all of them, as they are, and the two parts of in are apart: fc_embedding's and fc's. */

/* Input and output of gpu_mtp_rows and gpu_draft_row. Row t stands for the position before the one of the step's token row
   t: its token is ids[t], its hidden row that of the row before. */
typedef struct gpu_mtp_input {
    handoff link;
    gpu_matrix embed_tokens;
    const step_parameters *step;
    const uint8_t *sequences;    /* [T] of a pass of several: that of each row; NULL: one */
    int in_turn;                 /* the sequences are so many blocks of one slot; the final rows kept are those that are logged */
    slot_view slot;
    float *hidden;               /* [MOTE_ROWS_MAX][width] of the captured slot: rms(x) norm, the final rows, for the drafts and the next step */
    const float *last_hidden;    /* [width] of the same: the final row before this step's first */
    const float *x, *norm;       /* [T][width] residual after the last layer, final norm, NULL: final rows are x; drafts: see gpu_draft_row */
    const float *norm_embedding, *norm_hidden;              /* [cols], [width] */
    float *in, *in_hidden;       /* what is made of embeddings, [T][in_row], and of hidden rows, [T][in_hidden_row] */
    int in_row, in_hidden_row;
    int width;                   /* of a hidden row: cols, or those of all streams */
    const float *given;          /* as gpu_embedding has it */
    float factor, eps;           /* of embeddings; of norms */
    int draft;                   /* number of the draft, from 0 on; gpu_draft_row only */
} gpu_mtp_input;

/* to = rms(from) norm for one row of `cols` floats in shared or device memory. All threads of a block call it;
   `shared` holds one float per warp. The barrier at the end lets the caller read `to`. */
__device__ __forceinline__ void gpu_norm_row(float *to, const float *from, const float *norm, int cols, float eps,
                                             float *shared) {
    float sum = 0;
    for (int i = threadIdx.x; i < cols; i += GPU_THREADS) sum = fmaf(from[i], from[i], sum);
    const float factor = rms_factor_divided(block_sum(sum, shared), cols, eps);
    for (int i = threadIdx.x; i < cols; i += GPU_THREADS) to[i] = from[i] * factor * norm[i];
    __syncthreads();
}

/* The final row of x, if it is another one. All threads of a block call it, too. */
__device__ __forceinline__ const float *gpu_final_row(const gpu_mtp_input &p, float *to, const float *x, float *shared) {
    if (!p.norm) return x;
    gpu_norm_row(to, x, p.norm, p.width, p.eps, shared);
    return to;
}

/* Verification and plain steps; T blocks: block t computes hidden[t] and in[t]. It recomputes the hidden row before row t
   from x instead of reading it from the block before, so that blocks need not wait for each other; block 0 reads
   last_hidden. */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_mtp_rows(const __grid_constant__ gpu_mtp_input p) {
    extern __shared__ float row[];                          /* [cols] */
    __shared__ float shared[GPU_WARPS];
    int cols = p.embed_tokens.cols;
    const float *x = p.x + (size_t)blockIdx.x * p.width;
    pdl_launch_dependents();
    pdl_wait();
    const step_parameters *step = gpu_step_of_row(p.step, p.sequences, blockIdx.x);
    const slot_view slot = gpu_slot_of(&p.slot, step);
    const int t = (int)blockIdx.x - step->first, at = p.in_turn ? (int)blockIdx.x - gpu_before_log(gpu_rows_of_turns(p.step, p.in_turn)) : t;
    if (at >= 0) {
        float *to = (float *)gpu_in_slot(&slot, p.hidden) + (size_t)at * p.width;
        if (p.norm) gpu_norm_row(to, x, p.norm, cols, p.eps, shared);
        for (int i = threadIdx.x; !p.norm && i < p.width; i += GPU_THREADS) to[i] = x[i];
    }
    const int id = step->ids[t];
    for (int i = threadIdx.x; i < cols; i += GPU_THREADS) row[i] = id < 0 ? p.given[i] : gpu_weight(&p.embed_tokens, id, i) * p.factor;
    __syncthreads();
    gpu_norm_row(p.in + (size_t)blockIdx.x * p.in_row, row, p.norm_embedding, cols, p.eps, shared);
    const int follows = p.in_turn ? blockIdx.x > 0 : t > 0;
    const float *before = follows ? gpu_final_row(p, row, x - p.width, shared) : (const float *)gpu_in_slot(&slot, p.last_hidden);
    gpu_norm_row(p.in_hidden + (size_t)blockIdx.x * p.in_hidden_row, before, p.norm_hidden, p.width, p.eps, shared);
}

static void gpu_mtp_start(gpu_queue *q, const gpu_mtp_input *p, int T) {
    gpu_record(q, KERNEL_MTP_ROWS, formats[p->embed_tokens.format]->name, gpu_mtp_rows, T, 1,
               (size_t)p->embed_tokens.cols * sizeof(float), p);
}

/* Drafts: in[z] for draft number p.draft of sequence z; a block each.

   Draft 0 takes the token chosen last and the final hidden row before it: the last accepted row of the token block that was
   verified (p.hidden), or, if none was, p.last_hidden. Later drafts take the draft before them and what the MTP layer made
   of it: p.x [sequences][width] and p.norm are then those of the MTP layer. */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_draft_row(const __grid_constant__ gpu_mtp_input p) {
    extern __shared__ float row[];                          /* [cols] */
    __shared__ float shared[GPU_WARPS];
    int cols = p.embed_tokens.cols;
    const step_parameters *step = p.step + blockIdx.x;
    pdl_launch_dependents();
    pdl_wait();
    for (int i = threadIdx.x; i < cols; i += GPU_THREADS) row[i] = gpu_weight(&p.embed_tokens, step->ids[p.draft], i) * p.factor;
    __syncthreads();
    gpu_norm_row(p.in + (size_t)blockIdx.x * p.in_row, row, p.norm_embedding, cols, p.eps, shared);
    const int accepted = step->accepted;
    const slot_view slot = gpu_slot_of(&p.slot, step);
    const float *hidden = (const float *)gpu_in_slot(&slot, p.hidden);
    const float *final_row = accepted ? hidden + (size_t)(accepted - 1) * p.width : (const float *)gpu_in_slot(&slot, p.last_hidden);
    if (p.draft) final_row = gpu_final_row(p, row, p.x + (size_t)blockIdx.x * p.width, shared);
    gpu_norm_row(p.in_hidden + (size_t)blockIdx.x * p.in_hidden_row, final_row, p.norm_hidden, p.width, p.eps, shared);
}

static void gpu_draft_start(gpu_queue *q, const gpu_mtp_input *p, int sequences) {
    gpu_record(q, KERNEL_DRAFT_ROW, formats[p->embed_tokens.format]->name, gpu_draft_row, sequences, 1,
               (size_t)p->embed_tokens.cols * sizeof(float), p);
}
