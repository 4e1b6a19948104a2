/* diagnose/selftest_mla.cu: compares latent attention on a GPU with the CPU code: steps and the rows of a prompt, after any number of random
   rows of the cache. With the helpers of selftest.cu and selftest_prefill.cu. What a step computes of few tokens selftest_definition.cu tries. */

enum { TRY_LATENTS = 1u << STAGE_LATENTS | 1u << STAGE_LATENT_ATTEND | 1u << STAGE_LATENT_OUT };

/* Random rows for all of the context of layer 0. */
static void try_fill_latents(selftest *t) {
    const mla_shape *s = &t->cpu->m->layers[0].mixer.w.mla.shape;
    const size_t n = (size_t)mla_row_size(s);
    const dtype type = kv_type_of(t->cpu->o.kv);
    float *row = t->cpu->slot.runner->s.jobs.mla.c_new;
    for (size_t i = 0; i < TRY_CONTEXT; i++) {
        try_fill(t, row, n);
        kv_store(type, t->cpu->slot.state[0].mla.latents, i * n, row, n);
    }
    try_put(t, t->gpu->slot.state[0].mla.latents, t->cpu->slot.state[0].mla.latents, TRY_CONTEXT * n * kv_size(type));
}

/* The new rows of the cache. What is normed may round to the other side, one step of its type away: so the CPU goes on with the GPU's. */
static void try_latent_rows(selftest *t, int T, int position, const char *of) {
    const mla_shape *s = &t->cpu->m->layers[0].mixer.w.mla.shape;
    const dtype type = kv_type_of(t->cpu->o.kv);
    const int n = T * mla_row_size(s);
    const size_t at = (size_t)(position * mla_row_size(s)) * kv_size(type);
    char *rows = (char *)t->cpu->slot.state[0].mla.latents + at;
    float *want = (float *)malloc(2 * (size_t)n * sizeof *want);
    if (!t->code && !want) t->code = fail_memory(t->err);
    if (t->code) return;
    for (int k = 0; k < 2; k++) {
        const float *floats = kv_floats(rows, 0, n, want + k * n, type);
        if (floats != want + k * n) memcpy(want + k * n, floats, (size_t)n * sizeof *want);
        if (k == 0) t->code = slot_copy(&t->gpu->slot, rows, (char *)t->gpu->slot.state[0].mla.latents + at, (size_t)n * kv_size(type), t->err);
    }
    try_worse(t, relative_difference(want + n, want, NULL, (size_t)n));
    try_row(t, type == DTYPE_FP8 ? 0x1p-3 : 0x1p-7, "%slatents %s T=%d position=%d", of, kv_names[type], T, position);
    free(want);
}

/* Layer 0's mixer on the CPU, over the rows in its x, whose results are added to that. table: the rows'. */
static void try_latents_here(selftest *t, int T, int position, const token_row *table, const char *of) {
    mote_session *c = t->cpu;
    scratch *w = &c->slot.runner->s;
    mla_job *job = &w->jobs.mla;
    pool *threads = c->slot.runner->threads;
    job->w = &c->m->layers[0].mixer.w.mla;
    job->shape = &job->w->shape;
    job->T = T;
    job->index = position;
    job->kv_only = 0;
    job->latents = c->slot.state[0].mla.latents;
    rms_norm(w->u, w->x, c->m->layers[0].mixer.norm, T, c->m->c.hidden, c->m->c.eps);
    stage_latents(threads, job, w->u);
    mla_angles(job->w, table, T, job->angles);
    parallel(threads, T, mla_prepare, job);                 /* stage_latent_attend, in two parts */
    try_latent_rows(t, T, position, of);
    parallel(threads, T, mla_rows, job);
    parallel(threads, T, mla_mixtures, job);
    stage_latent_out(threads, job, w->x);
}

static void try_latent_step(selftest *t, int T, int position) {
    scratch *w = &t->cpu->slot.runner->s;
    const size_t n = (size_t)T * (size_t)t->cpu->m->c.hidden;
    const int lag = position > 1000 ? 137 : 0;
    try_both(t, w->x, t->g->x, n);
    memcpy(w->hidden, w->x, n * sizeof(float));
    t->gpu->lag = lag;
    try_layer(t, TRY_LATENTS, 0, position, 0, T);
    text_rows(w->table, NULL, T, position, lag);
    try_latents_here(t, T, position, w->table, "");
    try_compare(t, t->g->x, w->x, w->hidden, n);
    try_row(t, 2e-4, "latent attention KV %s T=%d position=%d", kv_names[kv_type_of(t->cpu->o.kv)], T, position);
}

static void try_latent_prompt(selftest *t, int position) {
    try_prefill_rows(t);
    try_poison(t);
    try_prefill_layer(t, TRY_LATENTS, 0, position);
    try_latents_here(t, TRY_PROMPT, position, try_prefill_table_of(t, position), "prefill ");
    try_prefill_x(t);
    try_row(t, 2e-2, "prefill latent attention KV %s, position %d", kv_names[kv_type_of(t->cpu->o.kv)], position);
}

/* Both sessions are open, with scratch for TRY_PROMPT rows. At the last positions blocks have several chunks, and heads are taken in groups. */
static void try_latent(selftest *t) {
    static const int steps[] = {0, 31, 32, 700, 9001}, prompts[] = {0, 421, 5001};
    if (!t->code) try_fill_latents(t);
    for (int T = 1; T <= STEP_ROWS; T++)
        for (int i = 0; i < 5 && !t->code; i++) try_latent_step(t, T, steps[i]);
    for (int i = 0; i < 3 && !t->code && t->g->prefill.rows; i++) try_latent_prompt(t, prompts[i]);
}
