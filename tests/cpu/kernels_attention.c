// A part of test_kernels: attention.

typedef struct attention_case {
    attention_shape shape;
    attention_weights w;
    int length;
    float *qg, *k, *v;           /* [length][...] as projected */
} attention_case;

static void naive_norm_rotate(const float *x, const float *w, const attention_shape *s, int position, float theta,
                              double *out) {
    double sum = 0;
    int d = s->head_dim, half = s->rotary_dim / 2;
    for (int i = 0; i < d; i++) sum += (double)x[i] * x[i];
    for (int i = 0; i < d; i++) out[i] = s->normed ? x[i] / sqrt(sum / d + s->eps) * (double)w[i] : x[i];
    for (int i = 0; i < half; i++) {
        double angle = position * pow(theta, -2.0 * i / s->rotary_dim), a = out[i], b = out[half + i], scale = s->rope_scale;
        out[i] = scale * (a * cos(angle) - b * sin(angle));
        out[half + i] = scale * (b * cos(angle) + a * sin(angle));
    }
}

// Encoding: every code gives itself back; halfway between two neighbours the even one, and beside that the nearer one.
static void test_kv_codes(void) {
    int bad_bf16 = 0, bad_fp8 = 0;
    for (uint32_t c = 0; c < 65536; c++) {
        float f = float_of_bf16((uint16_t)c);
        bad_bf16 += bf16_of_float(f) != (isnan(f) ? 0x7fff : c);
        if (c % 0x8000 >= 0x7f80) continue;
        uint32_t bits = c << 16, up = c + 1, even = c & 1 ? up : c;        /* up may be infinity: as rounding has it */
        bad_bf16 += bf16_of_float(float_of_bits(bits | 0x8000)) != even;
        bad_bf16 += bf16_of_float(float_of_bits(bits | 0x7fff)) != c || bf16_of_float(float_of_bits(bits | 0x8001)) != up;
    }
    CHECK(!bad_bf16, "BF16: %d roundings are wrong", bad_bf16);
    for (uint32_t c = 0; c < 256; c++) {
        float f = float_of_fp8((uint8_t)c), sign = c & 0x80 ? -1.0f : 1.0f;
        bad_fp8 += fp8_of_float(f) != (c % 0x80 == 0x7f ? 0x7f : c);
        if (c % 0x80 >= 0x7e) continue;
        float half = (f + fp8_value(c + 1)) / 2;
        bad_fp8 += fp8_of_float(half) != (c & 1 ? c + 1 : c);
        bad_fp8 += fp8_of_float(nextafterf(half, 0)) != c || fp8_of_float(nextafterf(half, sign * 1000)) != c + 1;
    }
    CHECK(!bad_fp8, "FP8: %d roundings are wrong", bad_fp8);
    static const float large[] = {448.0001f, 463.9f, 464, 465, 480, 1e4f, 3e38f, INFINITY};
    for (int i = 0; i < 8; i++)
        CHECK(fp8_of_float(large[i]) == 0x7e && fp8_of_float(-large[i]) == 0xfe, "FP8 of %g", (double)large[i]);
    static const uint32_t nans[] = {0x7f800001, 0x7fc00000, 0x7fffffff, 0xff800001, 0xffffffff};
    for (int i = 0; i < 5; i++)
        CHECK(fp8_of_float(float_of_bits(nans[i])) == 0x7f && bf16_of_float(float_of_bits(nans[i])) == 0x7fff &&
              isnan(float_of_fp8(0x7f)) && isnan(float_of_fp8(0xff)), "NaN %x", nans[i]);
}

// e^x of a sample of all floats from -0 to -87.
static void test_exp_below(void) {
    double worst = 0;
    for (uint32_t bits = 0x80000000; float_of_bits(bits) >= -87; bits += 10007) {
        const double want = exp(float_of_bits(bits));
        int exponent;
        frexp(want, &exponent);
        worst = fmax(worst, fabs(exp_below(float_of_bits(bits)) - want) / ldexp(1, exponent - 24));
    }
    CHECK(worst < 2, "exp_below is off by %g units of the last bit", worst);
    CHECK(exp_below(0) == 1 && !exp_below(-88) && !exp_below(-INFINITY) && isnan(exp_below(NAN)), "exp_below at the ends");
}

// All keys as scores are of them: [length][kv_heads][head_dim].
static double *naive_keys(const attention_case *c, float theta) {
    const attention_shape *s = &c->shape;
    const int n = c->length * s->kv_heads, d = s->head_dim;
    double *keys = (double *)allocate((size_t)(n * d) * sizeof *keys);
    for (int i = 0; i < n; i++) naive_norm_rotate(c->k + i * d, c->w.k_norm, s, i / s->kv_heads, theta, keys + i * d);
    return keys;
}

// The output of head h at position t.
static void naive_attention(const attention_case *c, const double *keys, int t, int h, float theta, double *out) {
    const attention_shape *s = &c->shape;
    int d = s->head_dim, kh = h * s->kv_heads / s->heads;
    const float *q = c->qg + (t * s->heads + h) * attention_q_size(s);
    const int first = s->window && t >= s->window ? t + 1 - s->window : 0;
    double query[512], weight[3 * SPAN], sum = s->sinks ? exp((double)c->w.sinks[h]) : 0;
    naive_norm_rotate(q, c->w.q_norm, s, t, theta, query);
    for (int p = first; p <= t; p++) {
        const double *key = keys + (p * s->kv_heads + kh) * d;
        double score = 0;
        for (int i = 0; i < d; i++) score += query[i] * key[i];
        sum += weight[p] = exp(score / sqrt(d));
    }
    for (int i = 0; i < d; i++) {
        out[i] = 0;
        for (int p = first; p <= t; p++) out[i] += weight[p] / sum * c->v[(p * s->kv_heads + kh) * d + i];
        if (s->gated) out[i] /= 1 + exp(-(double)q[d + i]);
    }
}

// In blocks of T rows: o [length][heads][head_dim]. Rows of a window lie in a ring.
static void attention_run(const attention_case *c, pool *p, int threads, int T, float theta, dtype kv_type, float *o) {
    const attention_shape *s = &c->shape;
    size_t kv = (size_t)(s->kv_heads * s->head_dim), wide = (size_t)(s->heads * s->head_dim), n = (size_t)c->length;
    size_t queries = (size_t)(s->heads * attention_q_size(s));
    capacity room_for = {.context = c->length, .rows = T, .threads = threads, .kv = kv_type, .layers = 1, .window = s->window};
    const int held = attention_held(s, &room_for);
    float *k = floats((size_t)held * kv), *v = floats((size_t)held * kv), *qg = floats(n * queries), *frequencies = floats((size_t)s->rotary_dim);
    float *parts = floats(attention_part_count(s, &room_for) * attention_part_size(s));
    float *angles = floats(n * (size_t)s->rotary_dim), *k_new = floats(n * kv);
    token_row *table = (token_row *)allocate((size_t)T * sizeof *table);
    for (int i = 0; i < s->rotary_dim / 2; i++) frequencies[i] = powf(theta, -2.0f * (float)i / (float)s->rotary_dim);
    memcpy(qg, c->qg, n * queries * sizeof(float));
    memcpy(k_new, c->k, n * kv * sizeof(float));
    for (int first = 0; first < c->length; first += T) {
        int rows = c->length - first < T ? c->length - first : T;
        attention_weights w = c->w;
        attention_job job;
        memset(&job, 0, sizeof job);
        w.shape = *s;
        w.frequencies = frequencies;
        job.shape = s;
        job.w = &w;
        job.T = rows;
        job.index = first;
        job.angles = angles;
        job.qg = qg + (size_t)first * queries;
        job.k_new = k_new + (size_t)first * kv;
        job.v_new = c->v + (size_t)first * kv;
        job.kv = kv_type;
        job.k = k;
        job.v = v;
        job.held = held;
        job.parts = parts;
        job.o = o + (size_t)first * wide;
        text_rows(table, NULL, rows, first, 0);
        attention_angles(&w, table, rows, angles);
        stage_rope_attend(p, &job);
    }
    float *all[] = {k, v, qg, parts, angles, k_new, frequencies};
    for (int i = 0; i < 7; i++) free(all[i]);
    free(table);
}

// gated: with an output gate and norms of queries and keys, as Qwen3.5 has them; else without both, as Llama, and YaRN's factor. window: with
// sinks, as gpt-oss; 0: without.
static void test_attention(int heads, int kv_heads, int head_dim, int rotary_dim, int gated, size_t length, int window, pool **pools) {
    attention_shape shape = {.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .rotary_dim = rotary_dim, .eps = 1e-6f,
                             .rope_scale = gated ? 1 : 1.25f, .gated = gated, .normed = gated, .window = window, .sinks = window > 0};
    attention_case c;
    size_t wide = (size_t)(heads * head_dim), kv = (size_t)(kv_heads * head_dim);
    memset(&c, 0, sizeof c);
    c.shape = shape;
    c.length = (int)length;
    c.qg = random_floats(length * wide * 2, 3);
    c.k = random_floats(length * kv, 3);
    c.v = random_floats(length * kv, 1);
    float *q_norm = random_floats((size_t)head_dim, 1), *k_norm = random_floats((size_t)head_dim, 1);
    c.w.q_norm = q_norm;
    c.w.k_norm = k_norm;
    float *sinks = random_floats((size_t)heads, 4);
    c.w.sinks = sinks;
    double *want = (double *)allocate(length * wide * sizeof(double));
    float *o = floats(length * wide), *other = floats(length * wide);
    double *keys = naive_keys(&c, 1e4f);
    for (int i = 0; i < c.length * heads; i++) naive_attention(&c, keys, i / heads, i % heads, 1e4f, want + i * head_dim);
    free(keys);
    for (dtype kv_type = DTYPE_F32; kv_type <= DTYPE_FP8; kv_type = (dtype)(kv_type + 1)) {
        /* A key or value is off by at most 1/2^9 (BF16) or 1/2^4 (FP8) of itself: scores of some units move that much. */
        double allowed = kv_type == DTYPE_F32 ? 2e-5 : kv_type == DTYPE_BF16 ? 0.02 : 0.35;
        if (kv_type == DTYPE_F16 || (test_brief && length > 40 && kv_type == DTYPE_BF16)) continue;      /* in brief BF16 in short ones */
        attention_run(&c, pools[0], 1, 1, 1e4f, kv_type, o);
        CHECK(distance(o, want, length * wide) < allowed, "attention %d:%d heads of %d, KV type %d: off by %g", heads,
              kv_heads, head_dim, kv_type, distance(o, want, length * wide));
        for (int T = test_brief && length > 40 ? 7 : 2; T <= (int)length; T += length > 40 ? (int)length / 2 : T < 5 ? 1 : 9) {
            attention_run(&c, pools[T % 3], T % 3 + 1, T, 1e4f, kv_type, other);
            CHECK(same_bits(o, other, length * wide), "attention in blocks of %d differs, KV type %d", T, kv_type);
        }
    }
    float *all[] = {c.qg, c.k, c.v, q_norm, k_norm, o, other, sinks};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    free(want);
}

// Keys and values far beyond 448, in an FP8 cache: with the layer's scales nothing is cut off, for any number of rows; other
// caches do not use the scales.
static void test_kv_scales(pool **pools) {
    enum { HEADS = 4, KV_HEADS = 2, DIM = 40, LENGTH = 40, WIDE = HEADS * DIM, KV = KV_HEADS * DIM };
    const float k_scale = 11, v_scale = 13;
    attention_shape shape = {.heads = HEADS, .kv_heads = KV_HEADS, .head_dim = DIM, .rotary_dim = 8, .eps = 1e-6f, .rope_scale = 1,
                             .gated = 1, .normed = 1};
    attention_case c, scaled;
    float q_norm[DIM], k_norm[DIM], *v = random_floats(LENGTH * KV, 3000);
    float *o = floats(LENGTH * WIDE), *other = floats(LENGTH * WIDE);
    double *want = (double *)allocate(LENGTH * WIDE * sizeof(double));
    memset(&c, 0, sizeof c);
    c.shape = shape;
    c.length = LENGTH;
    c.qg = random_floats(LENGTH * WIDE * 2, 3);
    c.k = random_floats(LENGTH * KV, 3);
    c.v = floats(LENGTH * KV);
    for (int i = 0; i < DIM; i++) k_norm[i] = 1000 * random_float(), q_norm[i] = 0.002f * random_float();
    c.w.q_norm = q_norm;
    c.w.k_norm = k_norm;
    scaled = c;
    scaled.w.k_scale = &k_scale;
    scaled.w.v_scale = &v_scale;
    memcpy(c.v, v, LENGTH * KV * sizeof(float));
    double *keys = naive_keys(&c, 1e4f);
    for (int i = 0; i < LENGTH * HEADS; i++) naive_attention(&c, keys, i / HEADS, i % HEADS, 1e4f, want + i * DIM);
    free(keys);
    attention_run(&c, pools[0], 1, 1, 1e4f, DTYPE_FP8, o);
    CHECK(distance(o, want, LENGTH * WIDE) > 0.5, "without scales: off by only %g", distance(o, want, LENGTH * WIDE));
    attention_run(&scaled, pools[0], 1, 1, 1e4f, DTYPE_FP8, o);
    CHECK(distance(o, want, LENGTH * WIDE) < 0.1, "with scales: off by %g", distance(o, want, LENGTH * WIDE));
    for (int T = 2; T <= LENGTH; T += T < 5 ? 1 : 9) {
        memcpy(c.v, v, LENGTH * KV * sizeof(float));
        attention_run(&scaled, pools[T % 3], T % 3 + 1, T, 1e4f, DTYPE_FP8, other);
        CHECK(same_bits(o, other, LENGTH * WIDE), "scales in blocks of %d", T);
    }
    memcpy(c.v, v, LENGTH * KV * sizeof(float));
    attention_run(&c, pools[0], 1, 7, 1e4f, DTYPE_BF16, o);
    attention_run(&scaled, pools[0], 1, 7, 1e4f, DTYPE_BF16, other);
    CHECK(same_bits(o, other, LENGTH * WIDE), "scales change a BF16 cache");
    void *all[] = {c.qg, c.k, c.v, v, o, other, want};
    for (int i = 0; i < 7; i++) free(all[i]);
}

// Scores far apart neither overflow nor give NaN: the best one wins.
static void test_attention_extremes(pool *p) {
    float q_norm[2] = {1e4f, 1e4f}, k_norm[2] = {1e4f, 1e4f};
    float qg[4] = {1, 1, 100, 100}, k[4] = {1, 1, -1, -1}, v[4] = {5, 6, 7, 8};
    float cache_k[4], cache_v[4] = {5, 6}, parts[2 * (2 + PART_EXTRA)], o[2], angles[1] = {0};
    attention_shape s = {.heads = 1, .kv_heads = 1, .head_dim = 2, .eps = 1e-6f, .rope_scale = 1, .gated = 1, .normed = 1};
    attention_weights w;
    attention_job job;
    memset(&w, 0, sizeof w);
    memset(&job, 0, sizeof job);
    w.q_norm = q_norm;
    w.k_norm = k_norm;
    cache_k[0] = cache_k[1] = 1e4f;
    job.shape = &s;
    job.w = &w;
    job.T = job.index = 1;
    job.angles = angles;
    job.qg = qg;
    job.k_new = k + 2;
    job.v_new = v + 2;
    job.k = cache_k;
    job.v = cache_v;
    job.held = 2;
    job.parts = parts;
    job.o = o;
    stage_rope_attend(p, &job);
    CHECK(o[0] == 5 && o[1] == 6, "extreme scores: %g %g", (double)o[0], (double)o[1]);
}

// ---- An index -----------------------------------------------------------------------------------------------------------

// The best of scores, of equal ones the first.
static void test_index_select(void) {
    enum { MOST = 500 };
    float score[MOST];
    int32_t got[MOST];
    for (int i = 0; i < 200; i++) {
        const int n = random_int(2, MOST), kept = random_int(1, n - 1), alike = random_int(1, 1000);
        int wrong = 0;
        for (int k = 0; k < n; k++) score[k] = (float)random_int(0, alike) * 0x1p-5f;
        index_select(score, n, kept, got);
        for (int k = 0, at = 0; k < n; k++) {
            int better = 0;
            for (int j = 0; j < n; j++) better += score[j] > score[k] || (score[j] == score[k] && j < k);
            wrong += (better < kept) != (at < kept && got[at] == k);
            at += at < kept && got[at] == k;
        }
        CHECK(!wrong, "%d of %d scores: %d are wrong", kept, n, wrong);
    }
}

// Without the tokens that an index leaves out the cache is another one, of which a row without an index attends to all: with the same bits.
static void test_index_spans(dtype kv, pool *threads) {
    enum { HEADS = 6, KV_HEADS = 2, D = 32, GROUP = 4, KEPT = 150, LEFT_OUT = 77, TAIL = 2, ALL = (KEPT + 1) * GROUP + TAIL, FEWER = ALL - GROUP };
    const attention_shape dense = {.hidden = 64, .heads = HEADS, .kv_heads = KV_HEADS, .head_dim = D};
    attention_shape indexed = dense;
    indexed.index_heads = 1, indexed.index_dim = D, indexed.index_group = GROUP, indexed.index_budget = KEPT * GROUP;
    const attention_weights w = {.shape = dense};
    const size_t row = KV_HEADS * D * kv_size(kv);
    float *q = (float *)allocate(HEADS * D * sizeof *q), *o[2], *number = (float *)allocate(ALL * KV_HEADS * D * sizeof *number);
    char *k = (char *)allocate(ALL * row), *v = (char *)allocate(ALL * row), *fewer_k = (char *)allocate(ALL * row), *fewer_v = (char *)allocate(ALL * row);
    char *span_k = (char *)allocate(8 * SPAN * D * sizeof(float)), *span_v = (char *)allocate(8 * SPAN * D * sizeof(float));
    const capacity most = {.context = ALL, .rows = 1, .threads = 8, .kv = kv};
    float *parts = (float *)allocate(attention_part_count(&dense, &most) * attention_part_size(&dense) * sizeof *parts);
    int32_t chosen[KEPT];
    for (int i = 0; i < HEADS * D; i++) q[i] = (float)random_int(-100, 100) / 64;
    for (int i = 0; i < ALL * KV_HEADS * D; i++) number[i] = (float)random_int(-100, 100) / 64;
    kv_store(kv, k, 0, number, ALL * KV_HEADS * D);
    for (int i = 0; i < ALL * KV_HEADS * D; i++) number[i] = (float)random_int(-100, 100) / 64;
    kv_store(kv, v, 0, number, ALL * KV_HEADS * D);
    memcpy(fewer_k, k, LEFT_OUT * GROUP * row);
    memcpy(fewer_v, v, LEFT_OUT * GROUP * row);
    memcpy(fewer_k + LEFT_OUT * GROUP * row, k + (LEFT_OUT + 1) * GROUP * row, (ALL - (LEFT_OUT + 1) * GROUP) * row);
    memcpy(fewer_v + LEFT_OUT * GROUP * row, v + (LEFT_OUT + 1) * GROUP * row, (ALL - (LEFT_OUT + 1) * GROUP) * row);
    for (int i = 0; i < KEPT; i++) chosen[i] = i + (i >= LEFT_OUT);
    for (int some = 0; some < 2; some++) {
        o[some] = (float *)allocate(HEADS * D * sizeof(float));
        attention_job job = {.shape = some ? &indexed : &dense, .w = &w, .T = 1, .index = (some ? ALL : FEWER) - 1, .qg = q, .kv = kv,
                             .k = some ? k : fewer_k, .v = some ? v : fewer_v, .held = ALL, .parts = parts, .o = o[some],
                             .index_of = {.chosen = chosen}, .span_k = span_k, .span_v = span_v};
        CHECK(index_leaves_out(job.shape, job.index) == some && attention_entries(&job, 0).end == FEWER, "a row with%s an index", some ? "" : "out");
        attention_heads(threads, &job);
    }
    CHECK(!memcmp(o[0], o[1], HEADS * D * sizeof(float)), "KV type %d: what an index has left is another sum", (int)kv);
    void *memory[] = {q, number, k, v, fewer_k, fewer_v, span_k, span_v, parts, o[0], o[1]};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
}
