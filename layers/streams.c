/* layers/streams.c: several residual streams in place of one (hyper-connections, Zhu et al. 2024), on the CPU: how a sublayer reads them,
   and how its output becomes part of them. Knows matrices and threads, no layer.

   The residual of a row is R[streams][hidden]. Of n = R / rms(R) norm, by streams, and all of n side by side:

       mix = sigmoid(up SiLU(down n / streams))           [streams][hidden]
       u = sum over streams of mix n / streams            what the sublayer reads
       share = 2 sigmoid(inject n / streams)              [streams]
       R[c] += share[c] y                                 y: what it gives; R as it was before the norm

   The model's end reads them so, too: h = u, without a norm. */

/* Memory for T rows. share stays until the sublayer's output is there. */
typedef struct stream_scratch {
    float *normed, *mix;         /* [T][streams][hidden] */
    float *low;                  /* [T][mix_rank] */
    float *share;                /* [T][streams] */
    token_limbs *limbs;          /* of normed, and then of low */
} stream_scratch;

/* The arguments of a call. */
typedef struct stream_job {
    const stream_mixer *w;
    const stream_scratch *s;
    int T, streams, hidden;
    float eps;
    float *x, *u;                /* [T][streams][hidden]; [T][hidden] */
} stream_job;

/* For so many rows of a model whose residual is of `streams` streams; 0: nothing. */
static void streams_layout(layout *l, int streams, int mix_rank, int hidden, int rows, stream_scratch *to) {
    const size_t T = streams ? (size_t)rows : 0, width = (size_t)streams * (size_t)hidden;
    to->normed = layout_alloc(l, T * width);
    to->mix = layout_alloc(l, T * width);
    to->low = layout_alloc(l, T * (size_t)mix_rank);
    to->share = layout_alloc(l, T * (size_t)streams);
    to->limbs = limbs_alloc(l, T, max_int(max_int((int)width, mix_rank), 1));
}

/* For items (row, stream). */
static void streams_norm(void *context, int begin, int end, int thread) {
    const stream_job *job = (const stream_job *)context;
    const size_t hidden = (size_t)job->hidden;
    (void)thread;
    for (int item = begin; item < end; item++)
        rms_norm(job->s->normed + (size_t)item * hidden, job->x + (size_t)item * hidden, job->w->norm + (size_t)(item % job->streams) * hidden, 1,
                 job->hidden, job->eps);
}

/* u of rows begin..end-1, whose mix is still to become sigmoids. */
static void streams_mix(void *context, int begin, int end, int thread) {
    const stream_job *job = (const stream_job *)context;
    const size_t hidden = (size_t)job->hidden;
    (void)thread;
    for (size_t t = (size_t)begin; t < (size_t)end; t++) {
        float *u = job->u + t * hidden;
        memset(u, 0, hidden * sizeof *u);
        for (size_t c = t * (size_t)job->streams; c < (t + 1) * (size_t)job->streams; c++) {
            const float *mix = job->s->mix + c * hidden, *normed = job->s->normed + c * hidden;
            for (size_t i = 0; i < hidden; i++) u[i] += sigmoid(mix[i]) * normed[i];
        }
        for (size_t i = 0; i < hidden; i++) u[i] /= (float)job->streams;
    }
}

/* u[T][hidden] of the streams of T rows, and, where the mixer has them, the rows' shares. */
static void streams_read(pool *p, const stream_job *job) {
    const stream_mixer *w = job->w;
    const stream_scratch *s = job->s;
    const size_t low = (size_t)job->T * (size_t)w->down.rows, shares = (size_t)job->T * (size_t)w->inject.rows;
    const float scale = 1 / (float)job->streams;
    projection all = projection_of(s->normed, job->T, s->limbs);
    parallel(p, job->T * job->streams, streams_norm, (void *)(uintptr_t)job);
    projection_add(&all, &w->down, s->low);
    if (shares) projection_add(&all, &w->inject, s->share);
    project(p, &all);
    for (size_t i = 0; i < low; i++) s->low[i] = silu(s->low[i] * scale);
    for (size_t i = 0; i < shares; i++) s->share[i] = 2 * sigmoid(s->share[i] * scale);
    linear(p, &w->up, s->low, s->mix, job->T, 0, s->limbs);
    parallel(p, job->T, streams_mix, (void *)(uintptr_t)job);
}

/* Adds y[T][hidden] to the streams x, by the shares that reading them has left. */
static void streams_write(const stream_scratch *s, float *x, const float *y, int T, int streams, int hidden) {
    const size_t n = (size_t)hidden;
    for (size_t c = 0; c < (size_t)T * (size_t)streams; c++) {
        const float *from = y + c / (size_t)streams * n;
        for (size_t i = 0; i < n; i++) x[c * n + i] += from[i] * s->share[c];
    }
}
