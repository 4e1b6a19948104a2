// For gpu_attention.c: layers with an index (layers/attention/index.cu), as a step records them and as a prompt runs them: what they append, which
// groups they choose and what they make of these, against the CPU's code; bits, which depend neither on the rows beside a row nor on whether keys
// are appended before it; and index_choose against index_select.

enum { INDEX_SLOT_ROWS = 12 };                               // new rows of a launch

// A layer, its scratch, and SLOTS slots, here and on the GPU.
typedef struct indexed {
    trial t;
    attention_state state;                                   // of slot 0, on the GPU
    size_t slot_bytes;
    float *index_qk;                                         // [ROWS]
} indexed;

// What a launch leaves.
typedef struct indexed_result {
    float *o;                                                // [rows][heads][head_dim]
    int32_t *chosen;                                         // [rows][kept]
    char *slots;
} indexed_result;

static capacity indexed_capacity(dtype kv) {
    const capacity r = {.context = CONTEXT, .rows = PASS_ROWS_MAX, .threads = 1, .kv = kv, .layers = 1};
    return r;
}

static attention_state indexed_state(const indexed *x, char *slots, int slot) {
    const capacity r = indexed_capacity(x->t.kv);
    layout l = layout_from((float *)(void *)(slots + x->slot_bytes * (size_t)slot));
    attention_state s;
    attention_layout_state(&l, &x->t.shape, &r, &s);
    return s;
}

static size_t index_numbers(const attention_shape *s) {
    return (size_t)((s->index_heads + 1) * s->index_dim);
}

static indexed indexed_trial(const attention_shape *s, dtype kv) {
    const capacity r = indexed_capacity(kv);
    indexed x = {.t = {.shape = *s, .kv = kv, .held = CONTEXT}};
    trial *t = &x.t;
    layout l = layout_from(NULL);
    attention_layout_gpu(&l, s, &r, &q, &t->scratch);
    t->memory = (char *)device(l.used * sizeof(float));
    l = layout_from((float *)(void *)t->memory);
    attention_layout_gpu(&l, s, &r, &q, &t->scratch);
    t->scratch.layer_splits = (int *)allocate(sizeof *t->scratch.layer_splits);
    t->scratch.splits = *t->scratch.layer_splits = gpu_attention_splits(&q, s, &t->scratch);
    t->scratch.prefill_warps = 4;
    make_weights(t);
    float *norms = random_floats(2 * (size_t)s->index_dim, 1);
    for (int i = 0; i < 2 * s->index_dim; i++) norms[i] += 1.5f;
    t->w.index_q_norm = norms;
    t->w.index_k_norm = norms + s->index_dim;
    t->there.index_q_norm = on_device(norms, 2 * (size_t)s->index_dim);
    t->there.index_k_norm = t->there.index_q_norm + s->index_dim;
    t->there.index_qk = matrix_of(t, (s->index_heads + 1) * s->index_dim, s->hidden);
    l = layout_from(NULL);
    attention_layout_state(&l, s, &r, &x.state);
    x.slot_bytes = (l.used * sizeof(float) + 255) / 256 * 256;
    const size_t n = SLOTS * x.slot_bytes / kv_size(kv);
    float *random = random_floats(n, 2);
    t->rows = (char *)allocate(SLOTS * x.slot_bytes);
    t->slots = (char *)device(SLOTS * x.slot_bytes);
    kv_store(kv, t->rows, 0, random, n);
    free(random);
    x.state = indexed_state(&x, t->slots, 0);
    copy(t->scratch.frequencies, t->w.frequencies, (size_t)s->rotary_dim / 2 * sizeof(float));
    t->qg = random_floats(ROWS * q_numbers(t), 2);
    t->k_new = random_floats(ROWS * row_numbers(t), 2);
    t->v_new = random_floats(ROWS * row_numbers(t), 2);
    t->g_new = random_floats(ROWS * (size_t)(s->heads * s->gate_size), 4);
    x.index_qk = random_floats(ROWS * index_numbers(s), 2);
    t->steps = (step_parameters *)device(SLOTS * sizeof *t->steps);
    return x;
}

static indexed_result indexed_new(const indexed *x) {
    const indexed_result r = {.o = floats(ROWS * o_numbers(&x->t)), .chosen = (int32_t *)allocate(ROWS * (size_t)index_kept(&x->t.shape) * sizeof(int32_t)),
                              .slots = (char *)allocate(SLOTS * x->slot_bytes)};
    return r;
}

static void indexed_free(indexed_result *r) {
    free(r->o), free(r->chosen), free(r->slots);
}

static int lag_at(int index) {
    return index > 1000 ? 137 : 0;
}

static void put_indexed(const indexed *x, const launch *a) {
    const trial *t = &x->t;
    put_rows(t, a);
    copy(t->scratch.index.qk, x->index_qk + (size_t)a->row * index_numbers(&t->shape), (size_t)(a->count * a->T) * index_numbers(&t->shape) * sizeof(float));
}

// Runs it from slots as `from` has them; lag INT_MIN: lag_at.
static void run_indexed(const indexed *x, const launch *a, const char *from, int lag, indexed_result *to) {
    const trial *t = &x->t;
    const int captured = a->count == 1 && a->slot[0] == 0;
    step_parameters steps[SLOTS];
    gpu_rows rows = {.q = &q, .T = a->count * a->T, .layer = 0, .step = t->steps, .sequences = a->count > 1 || a->in_turn ? a->count : 0,
                     .one_each = a->T == 1, .in_turn = a->in_turn, .slot = {captured ? NULL : t->steps, CONTEXT}};
    rows.state_only = a->kv_only;
    for (int z = 0; rows.sequences && z < a->count; z++) rows.splits = max_int(rows.splits, splits_for(t, a->index[z] + a->T));
    rows.hidden = t->shape.hidden;
    rows.x = rows.to = t->scratch.o;
    copy(t->slots, from, SLOTS * x->slot_bytes);
    put_indexed(x, a);
    put_steps(t, a);
    copy(steps, t->steps, sizeof steps);
    for (int z = 0; z < a->count; z++) {
        steps[z].shift = (int64_t)x->slot_bytes * a->slot[z];
        steps[z].lag = lag == INT_MIN ? lag_at(a->index[a->in_turn ? 0 : z]) : lag;
    }
    copy(t->steps, steps, sizeof steps);
    q.stages = 1u << STAGE_ATTEND;
    attention_record(&rows, &t->there, &t->scratch, &x->state, &x->state);
    gpu_submit(&q);
    ok(q.status, q.failed ? q.failed : "a kernel");
    ok(cudaStreamSynchronize(q.stream), "a kernel");
    copy(to->o, t->scratch.o, (size_t)rows.T * o_numbers(t) * sizeof *to->o);
    copy(to->chosen, t->scratch.index.chosen, (size_t)rows.T * (size_t)index_kept(&t->shape) * sizeof *to->chosen);
    copy(to->slots, t->slots, SLOTS * x->slot_bytes);
}

// A job of the CPU for rows of slot 0, whose new rows are row number `row` of the trial's on. The caller frees with free_job.
typedef struct indexed_job { attention_job job; token_row table[ROWS]; float *memory[8]; char *spans[2]; } indexed_job;

static void begin_job(const indexed *x, int T, int row, int index, int lag, char *slots, indexed_job *j) {
    const trial *t = &x->t;
    const attention_shape *s = &t->shape;
    const capacity r = {.context = CONTEXT, .rows = T, .threads = 1, .kv = t->kv, .layers = 1};
    const attention_state state = indexed_state(x, slots, 0);
    const size_t n = (size_t)T, at = (size_t)row, span = SPAN * (size_t)s->head_dim * kv_size(t->kv);
    float **m = j->memory;
    m[0] = floats(n * q_numbers(t)), m[1] = floats(n * row_numbers(t)), m[2] = floats(n * row_numbers(t)), m[3] = floats(n * (size_t)s->rotary_dim);
    m[4] = floats(attention_part_count(s, &r) * attention_part_size(s)), m[5] = floats(n * index_numbers(s)), m[6] = floats(index_row_size(s));
    m[7] = floats(n * o_numbers(t));
    memcpy(m[0], t->qg + at * q_numbers(t), n * q_numbers(t) * sizeof(float));
    memcpy(m[1], t->k_new + at * row_numbers(t), n * row_numbers(t) * sizeof(float));
    memcpy(m[2], t->v_new + at * row_numbers(t), n * row_numbers(t) * sizeof(float));
    memcpy(m[5], x->index_qk + at * index_numbers(s), n * index_numbers(s) * sizeof(float));
    for (int k = 0; k < 2; k++) j->spans[k] = (char *)allocate(span);
    text_rows(j->table, NULL, T, index, lag);
    const attention_job job = {.shape = s, .w = &t->w, .T = T, .index = index, .angles = m[3], .qg = m[0], .k_new = m[1], .v_new = m[2],
                               .g_new = t->g_new + at * (size_t)(s->heads * s->gate_size), .kv = t->kv, .k = state.k, .v = state.v, .held = CONTEXT,
                               .parts = m[4], .o = m[7],
                               .index_of = {.w = &t->w, .rows = j->table, .T = T, .index = index, .qk = m[5], .angles = m[3], .kv = t->kv,
                                            .keys = state.index_keys, .groups = state.index_groups, .row = m[6]},
                               .span_k = j->spans[0], .span_v = j->spans[1]};
    j->job = job;
    attention_angles(&t->w, j->table, T, m[3]);
    parallel(threads, T, attention_prepare, &j->job);
    parallel(threads, T, index_prepare, &j->job.index_of);
    const int whole = (index + T) / s->index_group - index / s->index_group;
    if (whole) parallel(threads, whole, index_pool, &j->job.index_of);
}

static void free_job(indexed_job *j) {
    for (int i = 0; i < 8; i++) free(j->memory[i]);
    for (int k = 0; k < 2; k++) free(j->spans[k]);
}

// How far below the best that it leaves the worst is that a list names, relative to the largest score; INFINITY: it is no list.
static double list_off(const indexed_job *j, int t, const int32_t *chosen) {
    const attention_shape *s = j->job.shape;
    const int n = (j->job.index + t + 1) / s->index_group, kept = index_kept(s);
    float *score = floats((size_t)n + SPAN), most = 0, worst = INFINITY, best = 0;
    for (int first = 0; first < n; first += SPAN) index_score(&j->job.index_of, t, first, min_int(n - first, SPAN), score + first);
    for (int g = 0, at = 0; g < n; g++) {
        const int is = at < kept && chosen[at] == g;
        most = fmaxf(most, score[g]);
        if (is) worst = fminf(worst, score[g]);
        else best = fmaxf(best, score[g]);
        at += is;
        if (g == n - 1 && at != kept) worst = -INFINITY;
    }
    free(score);
    return most > 0 ? (double)(best - worst) / (double)most : 0;
}

static double pieces_difference(const indexed *x, char *got, char *want) {
    const capacity r = indexed_capacity(x->t.kv);
    const attention_state a = indexed_state(x, got, 0), b = indexed_state(x, want, 0);
    state_piece is[STATE_PIECES], should[STATE_PIECES];
    const int pieces = attention_pieces(&x->t.shape, &r, &a, is);
    double most = 0;
    attention_pieces(&x->t.shape, &r, &b, should);
    for (int p = 0; p < pieces; p++) {
        const int n = (int)(is[p].size / kv_size(x->t.kv));
        float *f = floats((size_t)n), *g = floats((size_t)n);
        for (int row = 0; row < is[p].rows; row++) {
            const float *u = kv_floats(is[p].at, (size_t)(row * n), n, f, x->t.kv), *v = kv_floats(should[p].at, (size_t)(row * n), n, g, x->t.kv);
            for (int i = 0; i < n; i++) most = fmax(most, fabs((double)u[i] - (double)v[i]) / (fabs((double)v[i]) + 0x1p-5));
        }
        free(f), free(g);
    }
    return most;
}

// A launch of T rows: what is appended, which groups are chosen, and what attention makes of these, against the CPU's.
static void indexed_values(const indexed *x, const char *what, int T, int index) {
    const trial *t = &x->t;
    const launch a = {.count = 1, .T = T, .row = 0, .in_turn = 0, .kv_only = 0, .index = {index}, .slot = {0}};
    indexed_result got = indexed_new(x);
    char *here = (char *)allocate(SLOTS * x->slot_bytes);
    indexed_job j;
    double list = 0;
    run_indexed(x, &a, t->rows, INT_MIN, &got);
    memcpy(here, t->rows, SLOTS * x->slot_bytes);
    begin_job(x, T, 0, index, lag_at(index), here, &j);
    const double rows_off = pieces_difference(x, got.slots, here), step = t->kv == DTYPE_FP8 ? 0x1p-3 : 0x1p-7;
    for (int i = 0; i < T; i++)
        if (index_leaves_out(&t->shape, index + i)) list = fmax(list, list_off(&j, i, got.chosen + i * index_kept(&t->shape)));
    j.job.index_of.chosen = got.chosen;
    if (list < 1e-2) attention_heads(threads, &j.job);
    const double off = list < 1e-2 ? difference(got.o, j.job.o, (size_t)T * o_numbers(t)) : INFINITY;
    CHECK(rows_off <= step, "%s, %d rows at %d: new rows off by %.2g", what, T, index, rows_off);
    CHECK(list < 1e-2, "%s, %d rows at %d: a list is off by %.2g", what, T, index, list);
    CHECK(off <= (t->kv == DTYPE_FP8 ? 2e-3 : 1e-3), "%s, %d rows at %d: off by %.2g", what, T, index, off);
    free_job(&j);
    indexed_free(&got), free(here);
}

// Rows of a launch have the bits of each alone.
static void indexed_bits(const indexed *x, const char *what, const launch *a) {
    const trial *t = &x->t;
    const size_t n = o_numbers(t), kept = (size_t)index_kept(&t->shape);
    indexed_result all = indexed_new(x), one = indexed_new(x);
    char *own = (char *)allocate(SLOTS * x->slot_bytes);
    size_t wrong = 0, lists = 0;
    run_indexed(x, a, t->rows, INT_MIN, &all);
    memcpy(own, t->rows, SLOTS * x->slot_bytes);
    for (int z = 0; z < a->count; z++)
        for (int i = 0; i < a->T; i++) {
            const int number = z * a->T + i, lag = lag_at(a->index[a->in_turn ? 0 : z]);
            const launch row = {.count = 1, .T = 1, .row = a->row + number, .in_turn = 0, .kv_only = a->kv_only, .index = {a->index[z] + i},
                                .slot = {a->slot[z]}};
            run_indexed(x, &row, own, lag, &one);
            memcpy(own, one.slots, SLOTS * x->slot_bytes);
            if (a->kv_only) continue;
            wrong += memcmp(one.o, all.o + (size_t)number * n, n * sizeof *one.o) != 0;
            lists += index_leaves_out(&t->shape, a->index[z] + i) && memcmp(one.chosen, all.chosen + (size_t)number * kept, kept * sizeof(int32_t));
        }
    CHECK(!wrong && !lists && !memcmp(own, all.slots, SLOTS * x->slot_bytes), "%s, %d of %d rows from %d on%s%s: %zu rows of o differ, %zu lists", what,
          a->count, a->T, a->index[0], a->in_turn ? " in turn" : "", a->kv_only ? " keys and values alone" : "", wrong, lists);
    indexed_free(&all), indexed_free(&one), free(own);
}

// A row that leaves tokens out has the bits of one that has nothing else in its cache.
static void indexed_same(const indexed *x, const char *what, int index) {
    const trial *t = &x->t;
    const attention_shape *s = &t->shape;
    const size_t row = row_numbers(t) * kv_size(t->kv);
    const int lag = lag_at(index), entries = index_entries(s, index);
    launch a = {.count = 1, .T = 1, .row = 0, .in_turn = 0, .kv_only = 0, .index = {index}, .slot = {0}};
    indexed_result some = indexed_new(x), all = indexed_new(x);
    char *fewer = (char *)allocate(SLOTS * x->slot_bytes);
    memcpy(fewer, t->rows, SLOTS * x->slot_bytes);
    run_indexed(x, &a, t->rows, lag, &some);
    const attention_state from = indexed_state(x, t->rows, 0), to = indexed_state(x, fewer, 0);
    for (int e = 0; e < entries; e++) {
        const size_t at = (size_t)index_of_entry(s, some.chosen, index, e);
        memcpy((char *)to.k + (size_t)e * row, (char *)from.k + at * row, row);
        memcpy((char *)to.v + (size_t)e * row, (char *)from.v + at * row, row);
    }
    a.index[0] = entries - 1;
    run_indexed(x, &a, fewer, lag - (index - (entries - 1)), &all);
    CHECK(!memcmp(some.o, all.o, o_numbers(t) * sizeof *some.o), "%s, a row at %d: %d entries have other bits than as many tokens", what, index, entries);
    indexed_free(&some), indexed_free(&all), free(fewer);
}

// Rows of a prompt choose what rows of steps choose, and append the same; attention of them is the CPU's. lone: of these rows the first ones meet
// tiles, the others are attended one by one.
static void indexed_prompt(indexed *x, const char *what, int T, int index, int lone) {
    trial *t = &x->t;
    const attention_shape *s = &t->shape;
    const size_t kept = (size_t)index_kept(s), heads = (size_t)s->heads, d = (size_t)s->head_dim, n = (size_t)T * heads * d;
    const int lag = lag_at(index), groups = index_stride_of(s, index + T);
    indexed_result steps = indexed_new(x);
    char *own = (char *)allocate(SLOTS * x->slot_bytes), *there = (char *)allocate(SLOTS * x->slot_bytes);
    int32_t *chosen = (int32_t *)allocate((size_t)T * kept * sizeof *chosen);
    token_row table[ROWS], *on = (token_row *)device(sizeof table);
    attention_prefill_job job = {.qg = on_device(t->qg, (size_t)T * q_numbers(t)), .k = on_device(t->k_new, (size_t)T * row_numbers(t)),
                                 .v = on_device(t->v_new, (size_t)T * row_numbers(t)), .g = on_device(t->g_new, 0),
                                 .index_qk = on_device(x->index_qk, (size_t)T * index_numbers(s)), .q = device(n * 2), .out = device(n * 2),
                                 .out_scale = (float *)device(n / 64 * sizeof(float))};
    memcpy(own, t->rows, SLOTS * x->slot_bytes);
    for (int i = 0; i < T; i++) {
        const launch a = {.count = 1, .T = 1, .row = i, .in_turn = 0, .kv_only = 0, .index = {index + i}, .slot = {0}};
        run_indexed(x, &a, own, lag, &steps);
        memcpy(own, steps.slots, SLOTS * x->slot_bytes);
        memcpy(chosen + (size_t)i * kept, steps.chosen, kept * sizeof *chosen);
    }
    copy(t->slots, t->rows, SLOTS * x->slot_bytes);
    text_rows(table, NULL, T, index, lag);
    copy(on, table, sizeof table);
    t->scratch.index.lone_from = index + lone;
    const prefill_rows r = {.stream = q.stream, .sms = q.sms, .table = on, .T = T, .index = index, .stages = 1u << STAGE_ATTEND};
    ok(attention_prefill_pieces(&r, &t->there, &t->scratch, &x->state, &job), "a prompt");
    ok(cudaStreamSynchronize(q.stream), "a prompt");
    copy(there, t->slots, SLOTS * x->slot_bytes);
    CHECK(!memcmp(own, there, SLOTS * x->slot_bytes), "%s, a prompt of %d from %d on: other rows of the cache", what, T, index);
    uint32_t *marks = (uint32_t *)allocate((size_t)T * (size_t)groups / 8);
    copy(marks, t->scratch.index.marks, (size_t)T * (size_t)groups / 8);
    int wrong = 0;
    for (int i = 0; i < T; i++) {
        const int whole = (index + i + 1) / s->index_group;
        size_t at = 0;
        for (int g = 0; index_leaves_out(s, index + i) && g <= whole; g++) {
            const int is = g == whole || (at < kept && chosen[(size_t)i * kept + at] == g);
            at += is;
            wrong += is != (int)(marks[i * groups / 32 + g / 32] >> g % 32 & 1);
        }
    }
    CHECK(!wrong, "%s, a prompt of %d from %d on: %d marks differ", what, T, index, wrong);
    const prompt c = {.key_dim = s->head_dim, .value_dim = s->head_dim, .T = T};
    const prefill_attend a = {.heads = s->heads, .out = job.out, .out_scale = job.out_scale};
    float *got = prompt_result(&c, &a);
    indexed_job j;
    memcpy(own, t->rows, SLOTS * x->slot_bytes);
    begin_job(x, T, 0, index, lag, own, &j);
    j.job.index_of.chosen = chosen;
    attention_heads(threads, &j.job);
    const double off = difference(got, j.job.o, n);
    CHECK(off < (t->kv == DTYPE_FP8 ? 4e-3 : 8e-3), "%s, a prompt of %d from %d on, %d of them by tiles: off by %.2g", what, T, index, lone, off);
    free_job(&j);
    indexed_free(&steps), free(own), free(there), free(chosen), free(marks), free(got);
    void *memory[] = {job.qg, job.k, job.v, job.g, job.index_qk, job.q, job.out, job.out_scale, on};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) ok(cudaFree(memory[i]), "freeing");
}

static void try_indexed(const attention_shape *s, dtype kv) {
    static const int positions[] = {0, 61, 700, 1200};
    char what[160];
    indexed x = indexed_trial(s, kv);
    trial *t = &x.t;
    snprintf(what, sizeof what, "KV %s, %d heads over %d of %d, %d of %d of %d groups of %d", kv == DTYPE_FP8 ? "FP8" : "BF16", s->heads, s->kv_heads,
             s->head_dim, s->index_heads, s->index_dim, index_kept(s), s->index_group);
    for (int T = 1; T <= STEP_ROWS; T += test_brief ? 3 : 1)
        for (int i = 0; i < 4; i++) indexed_values(&x, what, T, positions[i]);
    const int edge = (index_kept(s) + 1) * s->index_group;
    const launch launches[] = {
        {.count = 1, .T = 4, .row = 0, .in_turn = 0, .kv_only = 0, .index = {1150}, .slot = {0}},
        {.count = 1, .T = 4, .row = 0, .in_turn = 0, .kv_only = 0, .index = {edge - 3}, .slot = {1}},
        {.count = 3, .T = 1, .row = 0, .in_turn = 0, .kv_only = 0, .index = {1300, 3, 640}, .slot = {2, 0, 1}},
        {.count = 3, .T = 4, .row = 0, .in_turn = 0, .kv_only = 0, .index = {62, 1021, 0}, .slot = {1, 2, 0}},
        {.count = 3, .T = 4, .row = 0, .in_turn = 1, .kv_only = 0, .index = {1085, 1089, 1093}, .slot = {0, 0, 0}},
        {.count = 1, .T = 4, .row = 0, .in_turn = 0, .kv_only = 1, .index = {126}, .slot = {0}}};
    for (size_t i = 0; i < sizeof launches / sizeof *launches; i++) indexed_bits(&x, what, &launches[i]);
    if (s->index_group > 1) indexed_same(&x, what, 1204);       // it is of a group that is not whole
    if (s->head_dim == ATTEND_DIM && s->index_group == 4) {
        indexed_prompt(&x, what, 11, 1121, 11);
        indexed_prompt(&x, what, 11, 1121, 0);
        indexed_prompt(&x, what, 9, edge - 5, 4);
    }
    free(t->scratch.layer_splits), free(t->rows), free(t->qg), free(t->k_new), free(t->v_new), free(t->g_new), free(x.index_qk);
    ok(cudaFree(t->slots), "freeing"), ok(cudaFree(t->memory), "freeing"), ok(cudaFree(t->steps), "freeing");
}

enum { RISING = -1, FEW = -2 };

// Score number i: one of `alike` + 1 values; or they rise, as where a text is about what it said last; or all are 0 but few.
static float choice_score(int i, int alike) {
    if (alike == RISING) return (float)(i / 3) + 0.5f * (float)random_int(0, 1);
    if (alike == FEW) return i % 90 ? 0 : 1 + (float)i;
    return alike > 1000 ? fabsf((float)random_int(-alike, alike)) * 0x1p-9f : (float)random_int(0, alike) * 0.25f;
}

// What index_scores stores beside the scores of p's rows: what is after the last one is in no octet.
static float *highest_of(const float *score, const attention_gpu *p) {
    const int octets = p->index.stride / INDEX_OCTET;
    float *highest = floats((size_t)(p->T * octets));
    for (int t = 0; t < p->T; t++)
        for (int g = 0; g < (p->offset + t + 1) / p->shape.index_group; g++) {
            float *of = highest + t * octets + g / INDEX_OCTET;
            *of = fmaxf(*of, score[t * p->index.stride + g]);
        }
    float *on = on_device(highest, (size_t)(p->T * octets));
    free(highest);
    return on;
}

// The best of scores that are alike, all or in part, and of more than there is space for.
static void try_choice(void) {
    enum { ROWS_OF = 3, MOST = 70000 };
    static const struct { int n, kept, alike; } of[] = {{700, 512, 1 << 20}, {4000, 512, 1 << 20}, {4099, 512, 1 << 20}, {9000, 512, 1 << 20}, {MOST, 512, 1 << 20},
                                                        {MOST, 512, 3000}, {9000, 512, 300}, {9000, 512, 0}, {9000, 5, 1 << 20}, {9000, 2000, 40},
                                                        {33, 32, 3}, {5000, 1500, 1 << 20}, {30000, 512, RISING}, {30000, 512, FEW}};
    const int stride = (MOST + INDEX_TILE) / INDEX_TILE * INDEX_TILE;
    float *score = floats((size_t)(ROWS_OF * stride));
    int32_t *want = (int32_t *)allocate(MOST * sizeof *want), *got = (int32_t *)allocate(MOST * sizeof *got);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        attention_gpu p;
        memset(&p, 0, sizeof p);
        p.shape.index_heads = p.shape.index_group = 1;
        p.shape.index_budget = of[i].kept;
        p.T = ROWS_OF;
        p.offset = of[i].n - ROWS_OF;
        p.index.stride = stride;
        for (int k = 0; k < ROWS_OF * stride; k++) score[k] = choice_score(k % stride, of[i].alike);
        p.index.scores = on_device(score, (size_t)(ROWS_OF * stride));
        p.index.highest = highest_of(score, &p);
        p.index.marks = (uint32_t *)device((size_t)(ROWS_OF * stride) / 8);
        p.index.chosen = (int32_t *)device((size_t)(ROWS_OF * of[i].kept) * sizeof(int32_t));
        index_choose<<<dim3(1, 1, ROWS_OF), GPU_THREADS, 0, q.stream>>>(p);
        ok(cudaStreamSynchronize(q.stream), "index_choose");
        for (int t = 0; t < ROWS_OF; t++) {
            const int n = of[i].n - ROWS_OF + t + 1;
            if (n <= of[i].kept) continue;
            index_select(score + (size_t)(t * stride), n, of[i].kept, want);
            copy(got, p.index.chosen + (size_t)t * (size_t)of[i].kept, (size_t)of[i].kept * sizeof *got);
            CHECK(!memcmp(want, got, (size_t)of[i].kept * sizeof *got), "%d of %d scores, %d alike: others are chosen", of[i].kept, n, of[i].alike);
        }
        ok(cudaFree(p.index.scores), "freeing"), ok(cudaFree(p.index.highest), "freeing"), ok(cudaFree(p.index.marks), "freeing"), ok(cudaFree(p.index.chosen), "freeing");
    }
    free(score), free(want), free(got);
}

enum { FILL = 1 << 23 };         // bytes

static void fill_with(char *to, size_t bytes, const char *from) {
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < (size_t)FILL ? bytes - at : (size_t)FILL;
        copy(to + at, from, n);
    }
}

// What the three kernels take for one row of Qwen3.8-Flash-Next's layers, each layer's keys elsewhere, us; without programmatic dependent launch.
static void time_index(int tokens) {
    enum { LAYERS_OF = 12, HEAD = 256, HEADS_OF = 24, KV_HEADS = 2, KEPT = 512 };
    const attention_shape s = {.hidden = 64, .heads = HEADS_OF, .kv_heads = KV_HEADS, .head_dim = HEAD, .rotary_dim = 64, .eps = 1e-6f, .rope_scale = 1,
                               .gated = 1, .normed = 1, .index_heads = 4, .index_dim = INDEX_DIM, .index_group = 4, .index_budget = 4 * KEPT};
    const capacity r = {.context = tokens, .rows = MOTE_ROWS_MAX, .threads = 1, .kv = DTYPE_BF16, .layers = 1};
    const size_t groups = (size_t)(tokens / 4) * INDEX_DIM * 2, row = KV_HEADS * HEAD * 2;
    float *norms = random_floats(HEAD, 1), frequencies[32], *keys = random_floats(FILL / 2, 1);
    token_row table[1], *on = (token_row *)device(sizeof table);
    attention_gpu p;
    layout l = layout_from(NULL);
    cudaEvent_t event[2];
    float us[3] = {0, 0, 0};
    size_t shared;
    attention_layout_gpu(&l, &s, &r, &q, &p);
    l = layout_from((float *)device(l.used * sizeof(float)));
    attention_layout_gpu(&l, &s, &r, &q, &p);
    for (int i = 0; i < 32; i++) frequencies[i] = powf(1e7f, -(float)i / 32);
    text_rows(table, NULL, 1, tokens - 1, 0);
    copy(on, table, sizeof table);
    copy(p.frequencies, frequencies, sizeof frequencies);
    copy(p.qg, keys, (size_t)HEADS_OF * 2 * HEAD * sizeof(float));
    copy(p.index.qk, keys, 5 * INDEX_DIM * sizeof(float));
    p.q_per_kv = HEADS_OF / KV_HEADS;
    p.q_norm = p.k_norm = p.index.q_norm = p.index.k_norm = on_device(norms, HEAD);
    p.window = p.ring = INT_MAX;
    p.slot = {NULL, INT_MAX};
    p.T = 1;
    p.offset = tokens - 1;
    p.k_scale = p.v_scale = p.query_scale = 1;
    p.splits = p.partials = attend_splits(index_window(&s), gpu_attention_most_splits(&q, &s));
    p.index.table = on;
    attend_kernel scores = index_scores_of(&p, &shared);
    char *half = (char *)allocate(FILL);
    kv_store(DTYPE_BF16, half, 0, keys, FILL / 2);
    char *all = (char *)device(LAYERS_OF * groups), *kv = (char *)device((size_t)tokens * row);
    fill_with(all, LAYERS_OF * groups, half);
    fill_with(kv, (size_t)tokens * row, half);
    p.k = p.v = kv;
    for (int k = 0; k < 2; k++) ok(cudaEventCreate(&event[k]), "an event");
    ok(cudaFuncSetAttribute((const void *)scores, cudaFuncAttributeMaxDynamicSharedMemorySize, GPU_SHARED), "shared memory");
    for (int again = 0; again < 3; again++)
        for (int kernel = 0; kernel < 3; kernel++) {
            ok(cudaEventRecord(event[0], q.stream), "an event");
            for (int i = 0; i < LAYERS_OF; i++) {
                p.index.groups = all + (size_t)i * groups;
                if (kernel == 0) scores<<<dim3((unsigned)index_blocks(q.sms, p.kv, p.index.stride, 1)), GPU_THREADS, shared, q.stream>>>(p);
                if (kernel == 1) index_choose<<<1, GPU_THREADS, 0, q.stream>>>(p);
                if (kernel == 2) ok(index_attend_rows<false>(&p, q.stream), "index_attend");
            }
            ok(cudaEventRecord(event[1], q.stream), "an event");
            ok(cudaEventSynchronize(event[1]), "the kernels");
            ok(cudaEventElapsedTime(&us[kernel], event[0], event[1]), "an event");
            us[kernel] *= 1000.0f / LAYERS_OF;
        }
    printf("%7d tokens: index_scores %.1f us (%.2f TB/s), index_choose %.1f us, index_attend %.1f us\n", tokens, (double)us[0],
           (double)groups / (double)us[0] * 1e-6, (double)us[1], (double)us[2]);
    ok(cudaFree(all), "freeing"), ok(cudaFree(kv), "freeing");
    free(norms), free(keys), free(half);
}

#define INDEXED(q, kv, dim, rotated) HEADS(q, kv, dim, rotated), .gated = 1, .normed = 1

static const attention_shape indexed_shapes[] = {
    {INDEXED(12, 1, 256, 64), .index_heads = 4, .index_dim = 128, .index_group = 4, .index_budget = 256},           // Qwen3.8-Flash-Next
    {INDEXED(6, 1, 64, 16), .index_heads = 4, .index_dim = 32, .index_group = 4, .index_budget = 32},
    {INDEXED(4, 2, 256, 64), .index_heads = 3, .index_dim = 128, .index_group = 2, .index_budget = 128},
    {HEADS(4, 2, 48, 24), .gate_size = 1, .index_heads = 1, .index_dim = 40, .index_group = 1, .index_budget = 70}};

#undef INDEXED

static void try_indexes(void) {
    try_choice();
    for (size_t i = 0; i < sizeof indexed_shapes / sizeof *indexed_shapes; i++)
        for (int fp8 = 0; fp8 < 2; fp8++) try_indexed(&indexed_shapes[i], fp8 ? DTYPE_FP8 : DTYPE_BF16);
}
