/* layers/kinds.c: what executors ask of each kind of layers, as switches over layers/table.c. Knows no session and no files.

   How a sublayer reads the residual x, and how its output becomes part of it, is the walk's part (residual_read, residual_write). A kind
   `name` defines, for the CPU in layers/name/cpu.c:

     name_job                   the arguments and the scratch of a call, laid out once for all layers of the kind
     name_layout_scratch        lays the scratch out
   an FFN also
     name_forward               adds what it makes of rows->u to rows->out
   a mixer also
     name_project               the same up to where tokens meet, all rows at once: a row's results do not depend on the others
     name_mix                   a sequence's rows and its state, by the results of that
     name_output                what comes after, all rows at once: adds it to rows->out
     name_state                 what it remembers of a session's tokens in one layer
     name_layout_state          lays it out
     name_pieces                the state piece by piece, as it is saved, copied and compared
     name_log                   its log of a block, MOTE_ROWS_MAX rows of each piece
     name_rollback              how rows that are not accepted leave it
   and on a GPU, if it is one of GPU_LAYER_KINDS,
     name_gpu, name_layout_gpu  the arguments of its kernels, with their scratch in GPU memory; lays that out
     name_record                records the kernels of a step
     name_shorten_log           of a mixer: makes a log of more than STEP_ROWS accepted rows one that its kernels take
     name_can_prefill           whether the kernels of prefill take its shape and its matrices
     name_prefill_bytes          bytes of scratch for the rows of a prompt
     name_run_prefill           launches the kernels for the rows of a prompt */

/* An editor's search for attention_rollback finds no call: name##_rollback below is one. The cases of ATTENTION are, written out:
     attention_job attention; attention_layout_scratch, attention_layout_state, attention_pieces,
     attention_log, attention_rollback, attention_project, attention_mix, attention_output; of an FFN moe_forward in place of the last three. */

/* The kind of layer that a stage is of. */
static const enum layer_kind stage_kinds[STAGE_COUNT] = {
#define X(NAME, name, kind) LAYER_##kind,
    STAGES(X)
#undef X
};

static enum rollback layer_rollback(enum layer_kind mixer) {
    static const enum rollback of[LAYER_NONE + 1] = {               /* LAYER_NONE has nothing to roll back */
#define X(NAME, name) (enum rollback)name##_rollback,
        MIXERS(X)
#undef X
    };
    return of[mixer];
}

#define X(NAME, name) name##_job name;
typedef struct layer_jobs { LAYER_KINDS(X) } layer_jobs;
#undef X
#define X(NAME, name) name##_state name;
typedef union layer_state { MIXERS(X) } layer_state;
#undef X

/* Scratch for the largest layer of each kind. Only one layer runs at a time, so kinds share it; a kind that is absent has none. */
static void layer_layout_scratch(layout *l, const layer_shapes *largest, const capacity *r, layer_jobs *to) {
    size_t from = l->used, most = from;
#define X(NAME, name)                                                                                                 \
    l->used = from;                                                                                                   \
    if (largest->kinds >> LAYER_##NAME & 1) name##_layout_scratch(l, &largest->name, r, &to->name);                   \
    most = max_size(most, l->used);
    LAYER_KINDS(X)
#undef X
    l->used = most;
}

static void layer_layout_state(const layer *of, layout *l, const capacity *r, layer_state *to) {
    switch (of->mixer.kind) {
#define X(NAME, name) case LAYER_##NAME: name##_layout_state(l, &of->mixer.w.name.shape, r, &to->name); break;
        MIXERS(X)
#undef X
        default: break;
    }
}

/* Returns how many pieces there are, at most STATE_PIECES. */
static int layer_pieces(const layer *of, const capacity *r, const layer_state *state, state_piece *to) {
    switch (of->mixer.kind) {
#define X(NAME, name) case LAYER_##NAME: return name##_pieces(&of->mixer.w.name.shape, r, &state->name, to);
        MIXERS(X)
#undef X
        default: return 0;
    }
}

/* The pieces of a layer's log, at most LOG_PIECES; size: of a row. */
static int layer_log(const layer *of, const layer_state *state, state_piece *to) {
    switch (of->mixer.kind) {
#define X(NAME, name) case LAYER_##NAME: return name##_log(&of->mixer.w.name.shape, &state->name, to);
        MIXERS(X)
#undef X
        default: return 0;
    }
}

/* The walk's part, on the CPU. Another way to read the residual and to write to it has its place in residual_read and residual_write. */

/* Rows of the branches of an FFN. */
static void branches_read(token_rows *rows, const sublayer *l) {
    const size_t n = (size_t)rows->T * (size_t)rows->hidden;
    rows->router_u = rows->branches;
    rows->shared_u = rows->branches + n;
    rows->shared_out = rows->branches + 2 * n;
    rms_norm(rows->router_u, rows->x, l->norm_router, rows->T, rows->hidden, rows->eps);
    rms_norm(rows->shared_u, rows->x, l->norm_shared, rows->T, rows->hidden, rows->eps);
    memset(rows->shared_out, 0, n * sizeof *rows->shared_out);
}

/* y becomes the sum of both branches. */
static void branches_write(const token_rows *rows, const sublayer *l) {
    const size_t n = (size_t)rows->T * (size_t)rows->hidden;
    if (rows->ranks) exchange_sum(rows->ranks, rows->shared_out, n, rows->shares);
    rms_norm(rows->y, rows->y, l->norm_routed_after, rows->T, rows->hidden, rows->eps);
    rms_norm(rows->shared_out, rows->shared_out, l->norm_shared_after, rows->T, rows->hidden, rows->eps);
    for (size_t i = 0; i < n; i++) rows->y[i] += rows->shared_out[i];
}

/* What of the streams a sublayer reads becomes rows->u. */
static void mixer_read(const token_rows *rows, const sublayer *l) {
    const stream_job job = {.w = &l->mixer, .s = rows->mix, .T = rows->T, .streams = l->residual.streams, .hidden = rows->hidden,
                            .eps = rows->eps, .x = rows->x, .u = rows->u};
    streams_read(rows->threads, &job);
}

/* A sublayer's rows: its input u, and out, to which it adds its output. That is x itself where nothing comes between: a mixture of experts
   adds one after the other to what is there, and begun from 0 that would be another sum. Else it is rows of zeros. Who reads all streams
   has them in x. */
static token_rows residual_read(const token_rows *all, const sublayer *l) {
    token_rows rows = *all;
    if (l->residual.whole || rows.given) return rows;
    if (l->residual.streams) mixer_read(&rows, l);
    else rms_norm(rows.u, rows.x, l->norm, rows.T, rows.hidden, rows.eps);
    rows.out = residual_apart(&l->residual) || rows.ranks ? rows.y : rows.x;
    if (rows.out == rows.y) memset(rows.y, 0, (size_t)rows.T * (size_t)rows.hidden * sizeof *rows.y);
    rows.router_u = rows.shared_u = rows.u;
    rows.shared_out = rows.out;
    if (l->residual.branched) branches_read(&rows, l);
    return rows;
}

/* What it gave becomes part of the residual: the only place where ranks meet in a layer. */
static void residual_write(const token_rows *rows, const sublayer *l) {
    const size_t n = (size_t)rows->T * (size_t)rows->hidden;
    if (l->residual.whole) return;
    if (rows->ranks) exchange_sum(rows->ranks, rows->y, n, rows->shares);
    if (l->residual.branched) branches_write(rows, l);
    if (l->residual.normed_after) rms_norm(rows->y, rows->y, l->norm_after, rows->T, rows->hidden, rows->eps);
    if (l->residual.streams) streams_write(rows->mix, rows->x, rows->y, rows->T, l->residual.streams, rows->hidden);
    else
        for (size_t i = 0; rows->out == rows->y && i < n; i++) rows->x[i] += rows->y[i];
    for (size_t i = 0; l->residual.scaled && i < n * (size_t)max_int(l->residual.streams, 1); i++) rows->x[i] *= *l->scale;
}

/* Token rows through the mixer of layer i; with rows->state_only only as far as its state needs. */
static void mixer_forward(const token_rows *all, const sublayer *l, int i, layer_jobs *jobs) {
    const token_rows rows = residual_read(all, l);
    switch (l->kind) {
#define X(NAME, name)                                                                                                 \
    case LAYER_##NAME:                                                                                                \
        name##_project(&rows, &l->w.name, &jobs->name);                                                               \
        for (int k = 0; k < rows.count; k++) name##_mix(&rows, &rows.of[k], &jobs->name, &rows.of[k].states[i].name); \
        if (!rows.state_only) name##_output(&rows, &jobs->name);                                                      \
        break;
        MIXERS(X)
#undef X
        default: break;
    }
    if (!rows.state_only) residual_write(&rows, l);
}

static void ffn_forward(const token_rows *all, const sublayer *l, layer_jobs *jobs) {
    const token_rows rows = residual_read(all, l);
    switch (l->kind) {
#define X(NAME, name) case LAYER_##NAME: name##_forward(&rows, &l->w.name, &jobs->name); break;
        FFNS(X)
#undef X
        default: break;
    }
    residual_write(&rows, l);
}

/* Token rows through layer i, which is l; with rows->state_only only as far as its mixer's state needs. */
static void layer_forward(const token_rows *rows, const layer *l, int i, layer_jobs *jobs) {
    if (l->mixer.kind != LAYER_NONE) mixer_forward(rows, &l->mixer, i, jobs);
    if (l->ffn.kind != LAYER_NONE && !rows->state_only) ffn_forward(rows, &l->ffn, jobs);
}
