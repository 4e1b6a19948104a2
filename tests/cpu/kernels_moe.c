// A part of test_kernels: mixture of experts.

// Is e among the top_k of the logits, the lower index first among equals?
static int is_chosen(const float *logits, int experts, int top_k, int e) {
    int before = 0;
    for (int i = 0; i < experts; i++) before += logits[i] > logits[e] || (logits[i] == logits[e] && i < e);
    return before < top_k;
}

static void check_choice(const float *logits, int experts, int top_k, const int32_t *choice, const float *weight) {
    double sum = 0, share = 0;
    int n = 0, wrong = 0;
    for (int e = 0; e < experts; e++)
        if (is_chosen(logits, experts, top_k, e)) sum += exp(logits[e]);
    for (int e = 0; e < experts; e++) {
        if (!is_chosen(logits, experts, top_k, e)) continue;
        wrong += choice[n] != e || !near(weight[n], exp(logits[e]) / sum, 1e-6);
        share += weight[n++];
    }
    CHECK(!wrong && n == top_k, "%d of %d experts: %d wrong", top_k, experts, wrong);
    CHECK(near(share, 1, 1e-6), "weights sum to %g", share);
}

static void test_moe_choose(void) {
    float logits[64], weight[64];
    int32_t choice[64];
    for (int round = 0; round < 3000; round++) {
        int experts = random_int(1, round % 3 ? 8 : 64), top_k = random_int(1, experts);
        for (int e = 0; e < experts; e++) logits[e] = round % 2 ? 5 * random_float() : (float)random_int(-2, 2);
        const moe_shape shape = {.hidden = 1, .experts = experts, .top_k = top_k, .expert_size = 1, .shared_size = 1};
        const moe_job job = {.shape = &shape};
        moe_choose(&job, logits, choice, weight);
        check_choice(logits, experts, top_k, choice, weight);
    }
}

// A router that scores by sigmoids, with a correction of each expert, or groups, or all of it; or by softmax with these.
typedef struct router_case {
    moe_shape shape;
    moe_weights w;
    moe_job job;
    float logits[64], correction[64], rank[64], group[64], weight[65], by[64], pair[64];      /* the last two and kept: router_define */
    int32_t choice[65], kept[64];
} router_case;

// logits and corrections are of these values, with many ties, or any.
static void router_draw(router_case *c, int any, const float *values, int count) {
    const int groups = random_int(0, 3) * 2, size = random_int(2, 8), experts = groups ? groups * size : random_int(1, 64);
    const int kept = groups ? random_int(1, groups) : 0, top_k = random_int(1, groups ? min_int(kept * size, 32) : experts);
    memset(c, 0, sizeof *c);
    c->shape = (moe_shape){.hidden = 1, .experts = experts, .top_k = top_k, .expert_size = 1, .sigmoid = random_int(0, 3) > 0,
                           .corrected = random_int(0, 1), .groups = groups, .groups_kept = kept, .of_all = random_int(0, 1),
                           .routed_scale = random_int(0, 1) ? 2.5f : 0};
    c->w.shape = c->shape;
    c->w.correction = c->correction;
    c->job = (moe_job){.shape = &c->shape, .w = &c->w, .rank = c->rank, .group = c->group};
    for (int e = 0; e < experts; e++) {
        c->logits[e] = any ? 5 * random_float() : values[random_int(0, count - 1)];
        c->correction[e] = any ? random_float() : values[random_int(0, count - 1)];
    }
    for (int i = 0; i < 65; i++) c->choice[i] = 1 << 30;
}

// What experts are chosen by before groups, the largest sum of two of a group, and whose group is kept, the lower one first among equals.
static void router_define(router_case *c) {
    const moe_shape *s = &c->shape;
    const int size = s->groups ? s->experts / s->groups : 0;
    for (int e = 0; e < s->experts; e++) {
        const float score = s->sigmoid ? sigmoid(c->logits[e]) : c->logits[e];
        c->by[e] = s->corrected ? score + c->correction[e] : score;
    }
    for (int g = 0; g < s->groups; g++) {
        c->pair[g] = -INFINITY;
        for (int i = g * size; i < (g + 1) * size; i++)
            for (int k = g * size; k < i; k++) c->pair[g] = fmaxf(c->pair[g], c->by[i] + c->by[k]);
    }
    for (int e = 0; e < s->experts; e++) {
        int before = 0;
        for (int g = 0; g < s->groups; g++) before += c->pair[g] > c->pair[e / size] || (c->pair[g] == c->pair[e / size] && g < e / size);
        c->kept[e] = !s->groups || before < s->groups_kept;
    }
}

static int router_chooses(const router_case *c, int e) {
    int before = 0;
    for (int i = 0; i < c->shape.experts; i++) before += c->kept[i] && (c->by[i] > c->by[e] || (c->by[i] == c->by[e] && i < e));
    return c->kept[e] && before < c->shape.top_k;
}

// The share of expert e in what the scores of those that count sum to.
static double router_weight(const router_case *c, int e) {
    const moe_shape *s = &c->shape;
    double sum = 0;
    for (int i = 0; i < s->experts; i++)
        if (s->of_all || router_chooses(c, i)) sum += s->sigmoid ? 1 / (1 + exp(-c->logits[i])) : exp(c->logits[i]);
    const double share = s->sigmoid ? 1 / (1 + exp(-c->logits[e])) / (s->of_all ? 1 : sum) : exp(c->logits[e]) / sum;
    return share * (s->routed_scale != 0 ? (double)s->routed_scale : 1);
}

// Are sums of groups, which are exact in the definition, so close that float's rounding orders them otherwise?
static int router_is_close(const router_case *c, const double *group) {
    int close = 0;
    for (int g = 0; g < c->shape.groups; g++)
        for (int h = 0; h < g; h++) {
            const double exact = group[g] - group[h], rounded = (double)c->pair[g] - (double)c->pair[h];
            close |= fabs(exact) < 1e-6 && ((exact > 0) != (rounded > 0) || (exact < 0) != (rounded < 0));
        }
    return close;
}

// The fast code and the definition choose what every expert's rank says, and weigh it so.
static void test_moe_routers(void) {
    static const float values[] = {-1, 0, 0.5f, 1};
    double score[64], rank[64], group[64], chosen[64], weight[64];
    for (int round = 0; round < 2000; round++) {
        router_case c;
        const defined_moe t = {.score = score, .rank = rank, .group = group};
        int n = 0, wrong = 0;
        router_draw(&c, round % 2, values, (int)(sizeof values / sizeof *values));
        router_define(&c);
        const moe_shape *s = &c.shape;
        moe_choose(&c.job, c.logits, c.choice, c.weight);
        for (int e = 0; e < s->experts; e++) score[e] = (double)c.logits[e];
        moe_define_ranks(&c.w, &t);
        if (router_is_close(&c, group)) continue;
        moe_define_choice(rank, s->experts, s->top_k, chosen);
        moe_define_weights(&c.w, score, chosen, weight);
        for (int e = 0; e < s->experts; e++) {
            const int is = router_chooses(&c, e);
            const double want = is ? router_weight(&c, e) : 0;
            wrong += is != (int)chosen[e] || !near(weight[e], want, 1e-12) || (is && c.choice[n] != e);
            if (is) wrong += !near((double)c.weight[n++], want, 1e-6);
        }
        CHECK(!wrong && n == s->top_k && c.choice[n] == 1 << 30, "sigmoid %d, corrected %d, %d of %d groups, %d of %d experts: %d wrong", s->sigmoid,
              s->corrected, s->groups_kept, s->groups, s->top_k, s->experts, wrong);
    }
}

// With NaN or infinite logits the weights may be anything; the choice is still top_k different experts, ascending.
static void test_moe_choose_nan(void) {
    static const float odd[] = {NAN, -NAN, INFINITY, -INFINITY, 0, 1};
    for (int round = 0; round < 3000; round++) {
        router_case c;
        int bad = 0;
        router_draw(&c, 0, odd, (int)(sizeof odd / sizeof *odd));
        moe_choose(&c.job, c.logits, c.choice, c.weight);
        for (int i = 0; i < c.shape.top_k; i++)
            bad += c.choice[i] < 0 || c.choice[i] >= c.shape.experts || (i && c.choice[i] <= c.choice[i - 1]);
        for (int i = c.shape.top_k; i < 65; i++) bad += c.choice[i] != 1 << 30;
        CHECK(!bad, "%d of %d experts with NaN", c.shape.top_k, c.shape.experts);
    }
}

typedef struct moe_case {
    moe_shape shape;
    moe_weights w;
    random_matrix router, gate, *expert;
    float *norm, *x;             /* x: [length][hidden] */
    int length;
} moe_case;

static moe_case moe_case_new(int hidden, int experts, int top_k, int size, int shared, int length, int nvfp4) {
    moe_case c;
    moe_shape shape = {.hidden = hidden, .experts = experts, .top_k = top_k, .expert_size = size, .shared_size = shared};
    memset(&c, 0, sizeof c);
    c.shape = shape;
    c.length = length;
    c.norm = random_floats((size_t)hidden, 0.5f);
    c.x = random_floats((size_t)(length * hidden), 1);
    c.router = matrix_new(FORMAT_F32, experts, hidden, 1, 1);
    c.gate = matrix_new(FORMAT_BF16, 1, hidden, 1, 1);
    c.expert = (random_matrix *)allocate((size_t)(3 * experts + 3) * sizeof *c.expert);
    matrix *m = (matrix *)allocate((size_t)(3 * experts + 3) * sizeof *m);
    c.w.router = c.router.w;
    c.w.shared_expert_gate = c.gate.w;
    c.w.gate_proj = m;
    c.w.up_proj = m + experts + 1;
    c.w.down_proj = m + 2 * (experts + 1);
    for (int i = 0; i < 3 * (experts + 1); i++) {
        int e = i % (experts + 1), down = i / (experts + 1) == 2, inner = e == experts ? shared : size;
        c.expert[i] = matrix_new(nvfp4 ? FORMAT_NVFP4 : i % 2 ? FORMAT_F16 : FORMAT_F32, down ? hidden : inner,
                                 down ? inner : hidden, 1, 1);
        m[i] = c.expert[i].w;
    }
    return c;
}

static void moe_case_delete(moe_case *c) {
    for (int i = 0; i < 3 * (c->shape.experts + 1); i++) matrix_delete(&c->expert[i]);
    matrix_delete(&c->router);
    matrix_delete(&c->gate);
    free(c->expert);
    free(c->w.gate_proj);
    free(c->norm);
    free(c->x);
}

static moe_job moe_job_new(const moe_case *c, int T) {
    moe_job job;
    size_t rows = (size_t)T, uses = rows * (size_t)(c->shape.top_k + 1);
    memset(&job, 0, sizeof job);
    job.shape = &c->shape;
    job.w = &c->w;
    job.T = T;
    job.router = floats(rows * (size_t)c->shape.experts);
    job.shared_gate = floats(rows);
    job.choice = (int32_t *)allocate(uses * 4);
    job.weight = floats(uses);
    job.list = (int32_t *)allocate((size_t)(c->shape.experts + 1) * 4);
    job.first = (int32_t *)allocate((size_t)(c->shape.experts + 2) * 4);
    job.assignment_row = (int32_t *)allocate(uses * 4);
    job.assignment_weight = floats(uses);
    job.h = floats(uses * (size_t)moe_width(&c->shape));
    for (size_t i = 0; i < uses * (size_t)moe_width(&c->shape); i++) job.h[i] = NAN;       // what is not written is not read
    job.limbs = (token_limbs *)allocate(rows * moe_limb_floats(&c->shape) * sizeof(float));
    job.out = floats(rows * (size_t)c->shape.hidden);
    return job;
}

static void moe_job_delete(moe_job *job) {
    void *all[] = {job->router, job->shared_gate, job->choice, job->weight, job->list, job->first, job->assignment_row,
                   job->assignment_weight, job->h, job->out, job->limbs};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

// The list is the choices sorted by expert and row, each exactly once; the shared expert comes last with all rows.
static void check_uses(const moe_job *job) {
    int experts = job->shape->experts, top_k = job->shape->top_k, at = 0, n = 0, bad = 0;
    for (int e = 0; e < experts; e++) {
        int from = at;
        for (int i = 0; i < job->T * top_k; i++) {
            if (job->choice[i] != e) continue;
            bad += job->assignment_row[at] != i / top_k || job->assignment_weight[at] != job->weight[i];
            at++;
        }
        if (at == from) continue;
        bad += job->list[n] != e || job->first[n] != from;
        n++;
    }
    bad += job->count != n + 1 || job->list[n] != experts || job->first[n] != at || job->first[n + 1] != at + job->T;
    for (int t = 0; t < job->T; t++, at++)
        bad += job->assignment_row[at] != t || job->assignment_weight[at] != sigmoid(job->shared_gate[t]);
    CHECK(!bad, "uses of %d rows, %d of %d experts: %d wrong", job->T, top_k, experts, bad);
}

static void test_moe_list_assignments(void) {
    for (int round = 0; round < 500; round++) {
        int experts = random_int(1, 20), top_k = random_int(1, experts), T = random_int(1, 12);
        moe_case c;
        memset(&c, 0, sizeof c);
        moe_shape shape = {.hidden = 1, .experts = experts, .top_k = top_k, .expert_size = 1, .shared_size = 1};
        c.shape = shape;
        moe_job job = moe_job_new(&c, T);
        for (int i = 0; i < T * experts; i++) job.router[i] = random_float();
        for (int t = 0; t < T; t++) {
            job.shared_gate[t] = random_float();
            moe_choose(&job, job.router + t * experts, job.choice + t * top_k, job.weight + t * top_k);
        }
        moe_list_assignments(&job);
        check_uses(&job);
        moe_job_delete(&job);
    }
}

static double naive_mlp(const moe_case *c, int e, const double *u, int r) {
    int n = c->shape.experts + 1, hidden = c->shape.hidden;
    int inner = e == n - 1 ? c->shape.shared_size : c->shape.expert_size;
    double y = 0;
    for (int i = 0; i < inner; i++) {
        double gate = 0, up = 0;
        for (int j = 0; j < hidden; j++) {
            gate += c->expert[e].value[i * hidden + j] * u[j];
            up += c->expert[n + e].value[i * hidden + j] * u[j];
        }
        y += c->expert[2 * n + e].value[r * inner + i] * gate / (1 + exp(-gate)) * up;
    }
    return y;
}

// One row in double: softmax over all experts, the best top_k renormalised, plus the gated shared expert.
static void naive_moe(const moe_case *c, const float *x, double *out) {
    int hidden = c->shape.hidden, experts = c->shape.experts;
    double u[64], score[64], sum = 0, square = 0, gate = 0;
    float logits[64];
    for (int i = 0; i < hidden; i++) square += (double)x[i] * x[i];
    for (int i = 0; i < hidden; i++) u[i] = x[i] / sqrt(square / hidden + 1e-6) * (double)c->norm[i];
    for (int i = 0; i < hidden; i++) gate += c->gate.value[i] * u[i];
    for (int e = 0; e < experts; e++) {
        score[e] = 0;
        for (int i = 0; i < hidden; i++) score[e] += c->router.value[e * hidden + i] * u[i];
        logits[e] = (float)score[e];
    }
    for (int e = 0; e < experts; e++)
        if (is_chosen(logits, experts, c->shape.top_k, e)) sum += exp(score[e]);
    for (int r = 0; r < hidden; r++) {
        out[r] = x[r] + naive_mlp(c, experts, u, r) / (1 + exp(-gate));
        for (int e = 0; e < experts; e++)
            if (is_chosen(logits, experts, c->shape.top_k, e)) out[r] += exp(score[e]) / sum * naive_mlp(c, e, u, r);
    }
}

static void moe_run(const moe_case *c, pool *p, int T, float *out) {
    size_t hidden = (size_t)c->shape.hidden;
    for (int first = 0; first < c->length; first += T) {
        int rows = c->length - first < T ? c->length - first : T;
        moe_job job = moe_job_new(c, rows);
        float *u = floats((size_t)rows * hidden);
        job.u = job.router_u = job.shared_u = u;
        job.shared_out = job.out;
        memcpy(job.out, c->x + (size_t)first * hidden, (size_t)rows * hidden * sizeof(float));
        rms_norm(u, job.out, c->norm, rows, c->shape.hidden, 1e-6f);
        stage_router(p, &job);
        stage_experts_up(p, &job);
        stage_experts_down(p, &job);
        memcpy(out + (size_t)first * hidden, job.out, (size_t)rows * hidden * sizeof(float));
        moe_job_delete(&job);
        free(u);
    }
}

static void test_moe(int hidden, int experts, int top_k, int size, int shared, int nvfp4, pool **pools) {
    moe_case c = moe_case_new(hidden, experts, top_k, size, shared, 70, nvfp4);
    size_t n = (size_t)(c.length * hidden);
    float *one = floats(n), *other = floats(n);
    double *want = (double *)allocate(n * sizeof(double));
    for (int t = 0; t < c.length; t++) naive_moe(&c, c.x + t * hidden, want + t * hidden);
    moe_run(&c, pools[0], 1, one);
    CHECK(distance(one, want, n) < 1e-5, "experts: off by %g", distance(one, want, n));
    for (int T = 2; T <= 70; T += T < 9 ? 1 : 61) {
        moe_run(&c, pools[T % 3], T, other);
        CHECK(same_bits(one, other, n), "experts in blocks of %d differ", T);
    }
    free(one);
    free(other);
    free(want);
    moe_case_delete(&c);
}

// What is made of gate and up: without limit, alpha and GELU SiLU(gate) up; what is no number stays so.
static void test_moe_limits(void) {
    for (int round = 0; round < 6000; round++) {
        const moe_shape s = {.limit = round & 1 ? 7 : 0, .alpha = round % 3 == 1 ? 1.702f : 0, .gelu = round % 3 == 2};
        const float gate = 12 * random_float(), up = 12 * random_float();
        double g = gate, u = up;
        if (s.limit != 0) g = fmin(g, 7), u = fmin(fmax(u, -7), 7);
        const double swish = g / (1 + exp(-(s.alpha != 0 ? (double)s.alpha : 1) * g)) * (s.alpha != 0 ? u + 1 : u);
        const double want = s.gelu ? 0.5 * g * (1 + tanh(sqrt(2 / acos(-1)) * (g + 0.044715 * g * g * g))) * u : swish;
        CHECK(fabs(moe_activate(&s, gate, up) - want) <= 2e-6 * (1 + fabs(want)), "limit %g, alpha %g: %g of %g and %g, expected %g", (double)s.limit,
              (double)s.alpha, (double)moe_activate(&s, gate, up), (double)gate, (double)up, want);
        CHECK(isnan(moe_activate(&s, NAN, up)) && isnan(moe_activate(&s, gate == 0 ? 1 : gate, NAN)), "limit %g: a NaN is gone", (double)s.limit);
    }
}
