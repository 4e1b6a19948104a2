/* run/cpu/memory.c: runners and slots on the CPU: their memory, how it is laid out, opening and closing them. */

/* `floats` of memory, zero; NULL: there are not so many. */
static float *cpu_alloc(size_t floats) {
    const size_t bytes = floats * sizeof(float) + CACHE_LINE;
    const uint64_t available = memory_available();
    return !available || bytes <= available ? (float *)calloc(1, bytes) : NULL;
}

static int cpu_no_memory(const char *what, size_t floats, mote_error *err) {
    const double wanted = (double)floats * sizeof(float), there = (double)memory_available();
    return fail(err, MOTE_ENOMEM, "%s needs %.2f GB, %.2f GB of memory are free%s", what, wanted * 1e-9, there * 1e-9,
                wanted < there ? ", but this process gets no more: is there a limit (ulimit -v)?" : "");
}

/* Rows of a pass of several sessions; one that is alone on its runner has passes of its own rows. */
static int cpu_pass_rows(const mote_runner *r) {
    return r->one_slot ? MOTE_ROWS_MAX : min_int(PASS_ROWS_MAX, capacity_of(&r->o, r->o.context).rows);
}

/* What a rank chooses for a draft: the best of its rows of the draft head, and the sum of e^(logit - the best one's) over these. */
typedef struct draft_choice {
    double sum;
    float logit;
    int32_t id;
} draft_choice;

enum { SHARED_LOGITS = MOTE_ROWS_MAX };                     /* rows of logits that ranks exchange at once */

/* The most floats that a member of a group gives others at once: x of so many rows, or logits. */
static size_t cpu_share(const mote_model *m, int rows) {
    return max_size((size_t)rows * (size_t)model_width(m), SHARED_LOGITS * (size_t)part_vocab(&m->part, m->c.vocab).most);
}

/* Rows of tables of n-grams, of those that the part has. */
static void cpu_layout_tables(layout *l, const mote_model *m, int rows, scratch *s) {
    const int has = (m->largest.kinds >> LAYER_NGRAMS & 1) != 0;
    s->table_rows = (int64_t *)(void *)layout_alloc(l, has ? (size_t)rows * MAX_NGRAM_ROWS * sizeof *s->table_rows / sizeof(float) : 0);
    for (int i = m->part.first; i < m->part.end; i++) {
        const sublayer *of = &m->layers[i].mixer;
        if (of->kind != LAYER_NGRAMS) continue;
        s->looked_up[of->w.ngrams.shape.number] = layout_alloc(l, (size_t)rows * (size_t)ngrams_width(&of->w.ngrams.shape));
    }
}

/* Of a pass, and of blocks of drafts; *largest: of each kind, of the model's layers and its drafter's. */
static capacity cpu_capacity(const mote_runner *r, layer_shapes *largest) {
    const mote_model *d = r->m->drafter;
    capacity most = capacity_of(&r->o, r->o.context);
    *largest = r->m->largest;
    if (!d) return most;
    for (int i = 0; i < d->c.layers; i++) {
        sublayer_widen(largest, &d->layers[i].mixer);
        sublayer_widen(largest, &d->layers[i].ffn);
    }
    most.rows = max_int(most.rows, d->c.drafter.block);
    most.context += d->c.drafter.block;
    return most;
}

static void cpu_layout_scratch(layout *l, mote_runner *r) {
    const mote_model *m = r->m;
    const capacity most = cpu_capacity(r, &r->s.largest);
    const size_t rows = (size_t)most.rows * (size_t)m->c.hidden;
    const size_t drafts = max_size(r->one_slot ? 1 : (size_t)cpu_pass_rows(r), m->drafter ? MOTE_ROWS_MAX : 0);
    const size_t wide = (size_t)most.rows * (size_t)model_width(m);
    const int streams = max_int(m->c.streams, 1);
    scratch *s = &r->s;
    s->rows = most.rows;
    s->table = (token_row *)(void *)layout_alloc(l, (size_t)most.rows * sizeof(token_row) / sizeof(float));
    s->x = layout_alloc(l, wide);
    s->u = layout_alloc(l, rows);
    s->y = layout_alloc(l, residual_apart(&m->largest.residual) || m->part.ranks > 1 ? rows : 0);
    s->branches = layout_alloc(l, m->largest.residual.branched ? 3 * rows : 0);
    s->hidden = layout_alloc(l, wide);
    s->h = m->c.streams ? layout_alloc(l, rows) : s->hidden;
    streams_layout(l, m->c.streams, m->c.mix_rank, m->c.hidden, most.rows, &s->mix);
    s->chosen = (int32_t *)(void *)layout_alloc(l, (size_t)m->c.layers + 1);
    cpu_layout_tables(l, m, most.rows, s);
    s->mtp_in = s->head_in = layout_alloc(l, rows + wide);
    s->head_out = (float **)(void *)layout_alloc(l, (size_t)most.rows * sizeof(float *) / sizeof(float));
    s->draft_logits = layout_alloc(l, drafts * (size_t)m->draft_head.rows);
    s->choice = (draft_choice *)(void *)layout_alloc(l, drafts * (size_t)m->part.ranks * sizeof *s->choice / sizeof(float));
    s->drafted = (int32_t *)(void *)layout_alloc(l, drafts);
    s->confidence = layout_alloc(l, drafts);
    s->tapped = layout_alloc(l, m->drafter ? rows : 0);
    s->limbs = limbs_alloc(l, (size_t)(most.rows * streams), (m->c.streams ? 1 : 2) * m->c.hidden);
    if (m->part.ranks > 1) {
        s->share = layout_alloc(l, cpu_share(m, most.rows));
        s->shares = layout_alloc(l, (size_t)m->part.ranks * cpu_share(m, most.rows));
    }
    layer_layout_scratch(l, &s->largest, &most, &s->jobs);
    if (m->has_vision && r->o.patches) vision_layout(l, &m->vision.shape, r->o.patches, &s->vision);
}

/* Of passes beside a block of many rows first, where others can compute beside it: in a runner of several sessions that is no part of a group. */
static void cpu_layout_runner(layout *l, mote_runner *r) {
    const model_part *part = &r->m->part;
    const run_options o = r->o;
    r->beside.rows = 0;
    if (!r->one_slot && part->ranks == 1 && part_is_first(part) && part_is_last(part)) {
        r->o.chunk = cpu_pass_rows(r);
        r->o.patches = 0;
        cpu_layout_scratch(l, r);
        r->beside = r->s;
        r->o = o;
    }
    cpu_layout_scratch(l, r);
    r->beside.chosen = r->s.chosen;                         /* of the last pass, wherever it was computed */
    r->beside.vision = r->s.vision;                         /* a tower takes its memory with it */
}

static int cpu_open(mote_runner *r, mote_error *err) {
    const size_t floats = layout_runner(r, NULL);
    r->memory = cpu_alloc(floats);
    if (!r->memory) return cpu_no_memory("a runner", floats, err);
    layout_runner(r, layout_base(r->memory));
    r->rows = r->mtp_rows = r->o.chunk;
    r->pass_rows = cpu_pass_rows(r);
    r->company_rows = MOTE_ROWS_MAX;
    r->threads = pool_open(r->o.threads);
    return r->threads ? MOTE_OK : fail(err, MOTE_ENOMEM, "the system gives no %d threads", r->o.threads);
}

static void cpu_close(mote_runner *r) {
    if (r->owner == getpid()) pool_close(r->threads);
    else pool_abandon(r->threads);
    free(r->memory);
}

static int cpu_slot_open(slot *s, mote_error *err) {
    char what[48];
    snprintf(what, sizeof what, "a session of %d tokens", s->context);
    s->memory = cpu_alloc(s->floats);
    if (!s->memory) return cpu_no_memory(what, s->floats, err);
    layout_slot(layout_base(s->memory), NULL, s);
    s->logits_here = 1;
    return MOTE_OK;
}

static void cpu_slot_close(slot *s) {
    free(s->memory);
    free(s->undo);
}
