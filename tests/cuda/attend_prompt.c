// For gpu_attention.c: attend_prefill (layers/attention/prefill_attend.cu) of random queries, keys and values, against the formula in double; and
// bits, which are the same whether keys and values come at once or in parts.

typedef struct prompt {
    int key_dim, value_dim, warps;                           // of a block, where that is not settled: dimensions of 256
    int q_per_kv, kv_heads, T, index, window, sinks;
    int gate;                                                // 0: none; 1: logits of each element; 2: one a head; 3: of each element
    int ring;                                                // rows; 0: as many as positions
    int part, first_head;                                    // positions of a part; 0: no parts
} prompt;

// What both have: here, rounded as the kernel is given it, in float.
typedef struct prompt_rows {
    int heads, end, gate_stride;
    float *q, *k, *v, *sinks, *gates;                        // [T][heads][key_dim], [end][kv_heads][..], [heads], [T][heads][gate_stride]
} prompt_rows;

static uint16_t half_of(float x) {
    uint32_t bits;
    const float small = x * 0x1p-112f;
    memcpy(&bits, &small, sizeof bits);
    return (uint16_t)((bits >> 16 & 0x8000) | ((bits & 0x7fffffff) + 0xfff + (bits >> 13 & 1)) >> 13);
}

// Rounds n numbers to `type` in units of `scale`; to[at(i)] = the code, from[i] what it is worth.
static void round_to(dtype type, float *from, size_t n, float scale, char *to, size_t wrap) {
    for (size_t i = 0; i < n; i++) {
        const size_t at = i % wrap;
        if (type == DTYPE_FP8) from[i] = float_of_fp8(((uint8_t *)to)[at] = fp8_of_float(from[i] / scale)) * scale;
        else if (type == DTYPE_BF16) from[i] = float_of_bf16(((uint16_t *)to)[at] = bf16_of_float(from[i]));
        else from[i] = float_of_f16(((uint16_t *)to)[at] = half_of(from[i]));
    }
}

// n random numbers, rounded, on the GPU.
static void *rounded(dtype type, float *from, size_t n, float scale, size_t wrap) {
    const size_t bytes = (wrap < n ? wrap : n) * (type == DTYPE_FP8 ? 1 : 2);
    char *here = (char *)allocate(bytes);
    void *there = device(bytes);
    round_to(type, from, n, scale, here, wrap);
    copy(there, here, bytes);
    free(here);
    return there;
}

static prefill_attend prompt_of(const prompt *c, dtype kv, prompt_rows *r) {
    const size_t heads = (size_t)(c->first_head + c->q_per_kv * c->kv_heads + c->first_head), end = (size_t)(c->index + c->T), T = (size_t)c->T;
    const size_t k = end * (size_t)(c->kv_heads * c->key_dim), v = end * (size_t)(c->kv_heads * c->value_dim);
    const int ring = c->ring ? c->ring : INT_MAX;
    prefill_attend p;
    memset(&p, 0, sizeof p);
    r->heads = (int)heads;
    r->end = (int)end;
    r->gate_stride = c->gate == 1 ? 2 * c->value_dim : c->gate == 2 ? 1 : c->value_dim;
    r->q = random_floats(T * heads * (size_t)c->key_dim, 4 / sqrtf((float)c->key_dim));
    r->k = random_floats(k, 2);
    r->v = random_floats(v, 2);
    r->sinks = random_floats(heads, 4);
    r->gates = random_floats(T * heads * (size_t)r->gate_stride, 3);
    p.T = c->T;
    p.index = c->index;
    p.heads = r->heads;
    p.kv_heads = c->kv_heads;
    p.q_per_kv = c->q_per_kv;
    p.first_head = c->first_head;
    p.key_dim = c->key_dim;
    p.value_dim = c->value_dim;
    p.window = attend_window(c->window);
    p.first = attend_ring_first(c->index, p.window, ring);
    p.end = r->end;
    p.warps = c->warps;
    p.kv = kv;
    p.k_scale = kv == DTYPE_FP8 ? 0.5f : 1;
    p.v_scale = kv == DTYPE_FP8 ? 2 : 1;
    p.q = rounded(kv == DTYPE_FP8 ? DTYPE_F16 : DTYPE_BF16, r->q, T * heads * (size_t)c->key_dim, 1, SIZE_MAX);
    p.k = rounded(kv, r->k, k, p.k_scale, c->ring ? (size_t)c->ring * (size_t)(c->kv_heads * c->key_dim) : SIZE_MAX);
    p.v = rounded(kv, r->v, v, p.v_scale, c->ring ? (size_t)c->ring * (size_t)(c->kv_heads * c->value_dim) : SIZE_MAX);
    p.ring = ring;
    p.sinks = c->sinks ? on_device(r->sinks, heads) : NULL;
    p.gates = c->gate ? on_device(r->gates, T * heads * (size_t)r->gate_stride) + (c->gate == 1 ? c->value_dim : 0) : NULL;
    p.gate_stride = r->gate_stride;
    p.gate_each = c->gate != 2;
    p.gate_logits = c->gate == 1;
    p.out = device(T * heads * (size_t)c->value_dim * 2);
    p.out_scale = (float *)device(T * heads * (size_t)(c->value_dim / 64) * sizeof(float));
    return p;
}

// o of row t and head h. weight: [end].
static void prompt_defined(const prompt *c, const prompt_rows *r, int t, int h, double *weight, double *o) {
    const int last = c->index + t, first = c->window && last >= c->window ? last + 1 - c->window : 0, g = (h - c->first_head) / c->q_per_kv;
    const size_t row = (size_t)(t * r->heads + h), stride = (size_t)c->kv_heads;
    const double sink = (double)r->sinks[h] * 1.44269504;
    double top = c->sinks ? sink : -INFINITY, sum;
    for (int i = first; i <= last; i++) {
        const float *k = r->k + ((size_t)i * stride + (size_t)g) * (size_t)c->key_dim, *q = r->q + row * (size_t)c->key_dim;
        weight[i] = 0;
        for (int j = 0; j < c->key_dim; j++) weight[i] += (double)q[j] * (double)k[j];
        top = fmax(top, weight[i]);
    }
    sum = c->sinks ? exp2(sink - top) : 0;
    for (int i = first; i <= last; i++) sum += weight[i] = exp2(weight[i] - top);
    for (int j = 0; j < c->value_dim; j++) {
        const float *gate = r->gates + row * (size_t)r->gate_stride;
        const float *v = r->v + g * c->value_dim + j;
        o[j] = 0;
        for (int i = first; i <= last; i++) o[j] += weight[i] / sum * (double)v[(size_t)i * stride * (size_t)c->value_dim];
        if (c->gate == 1) o[j] /= 1 + exp(-(double)gate[c->value_dim + j]);
        if (c->gate > 1) o[j] *= (double)gate[c->gate == 2 ? 0 : j];
    }
}

// What a launch has left, as floats: [T][heads][value_dim].
static float *prompt_result(const prompt *c, const prefill_attend *p) {
    const size_t rows = (size_t)(c->T * p->heads), n = rows * (size_t)c->value_dim, scales = rows * (size_t)(c->value_dim / 64);
    uint16_t *half = (uint16_t *)allocate(n * sizeof *half);
    float *scale = floats(scales), *to = floats(n);
    ok(cudaStreamSynchronize(q.stream), "attend_prefill");
    copy(half, p->out, n * sizeof *half);
    copy(scale, p->out_scale, scales * sizeof *scale);
    for (size_t i = 0; i < n; i++) {
        const size_t row = i / (size_t)c->value_dim, group = row % (size_t)p->heads * (size_t)(c->value_dim / 64) + i % (size_t)c->value_dim / 64;
        to[i] = float_of_f16(half[i]) * scale[group * (size_t)c->T + row / (size_t)p->heads];
    }
    free(half), free(scale);
    return to;
}

// The same in parts, whose keys and values are all that is there.
static float *prompt_in_parts(const prompt *c, const prefill_attend *whole) {
    const size_t k = (size_t)(c->kv_heads * c->key_dim) * 2, v = (size_t)(c->kv_heads * c->value_dim) * 2;
    prefill_attend p = *whole;
    p.carry = (float4 *)device(prefill_carry_bytes(c->T, c->q_per_kv * c->kv_heads, c->value_dim));
    for (p.first = 0; p.first < whole->end; p.first = p.end) {
        p.end = min_int(whole->end, p.first + c->part);
        const size_t rows = (size_t)(p.end - p.first);
        void *some_k = device(rows * k), *some_v = device(rows * v);
        copy(some_k, (const char *)whole->k + (size_t)p.first * k, rows * k);
        copy(some_v, (const char *)whole->v + (size_t)p.first * v, rows * v);
        p.k = some_k;
        p.v = some_v;
        ok(prefill_attend_run(&p, q.stream), "attend_prefill");
        ok(cudaStreamSynchronize(q.stream), "attend_prefill");
        ok(cudaFree(some_k), "freeing"), ok(cudaFree(some_v), "freeing");
    }
    ok(cudaFree(p.carry), "freeing");
    return prompt_result(c, whole);
}

static void try_prompt(const prompt *c, dtype kv) {
    const int heads = c->q_per_kv * c->kv_heads, step = test_brief || c->T > 60 ? 7 : 1;
    const size_t n = (size_t)c->value_dim;
    prompt_rows r;
    prefill_attend p = prompt_of(c, kv, &r);
    double *weight = (double *)allocate((size_t)r.end * sizeof *weight), *o = (double *)allocate(n * sizeof *o), off = 0, top = 0;
    if (!CHECK(prefill_attend_fits(c->key_dim, c->value_dim, kv), "heads of %d and %d", c->key_dim, c->value_dim)) return;
    ok(prefill_attend_run(&p, q.stream), "attend_prefill");
    float *got = prompt_result(c, &p);
    for (int t = 0; t < c->T; t += step)
        for (int h = c->first_head; h < c->first_head + heads; h++) {
            prompt_defined(c, &r, t, h, weight, o);
            for (size_t i = 0; i < n; i++) {
                const double d = fabs((double)got[(size_t)(t * r.heads + h) * n + i] - o[i]);
                off = isfinite(d) ? fmax(off, d) : INFINITY;
                top = fmax(top, fabs(o[i]));
            }
        }
    CHECK(off < (kv == DTYPE_FP8 ? 1e-3 : 4e-3) * top,
          "prompt: heads of %d and %d, KV %s, %d warps, %d of %d, %d rows from %d on, window %d, ring %d, gate %d: off %.2g", c->key_dim, c->value_dim,
          kv == DTYPE_FP8 ? "FP8" : "BF16", c->warps, c->q_per_kv, c->kv_heads, c->T, c->index, c->window, c->ring, c->gate, off / top);
    if (c->part && kv == DTYPE_BF16) {
        float *parts = prompt_in_parts(c, &p);
        CHECK(!memcmp(got, parts, (size_t)(c->T * r.heads) * n * sizeof *got), "prompt: heads of %d and %d, parts of %d: other bits", c->key_dim,
              c->value_dim, c->part);
        free(parts);
    }
    free(weight), free(o), free(got), free(r.q), free(r.k), free(r.v), free(r.sinks), free(r.gates);
    ok(cudaFree((void *)p.q), "freeing"), ok(cudaFree((void *)p.k), "freeing"), ok(cudaFree((void *)p.v), "freeing");
    ok(cudaFree(p.out), "freeing"), ok(cudaFree(p.out_scale), "freeing"), ok(cudaFree((void *)p.sinks), "freeing");
    ok(cudaFree((void *)(p.gates ? p.gates - (c->gate == 1 ? c->value_dim : 0) : NULL)), "freeing");
}

#define DIMS(key, value, of_warps) .key_dim = key, .value_dim = value, .warps = of_warps

static const prompt prompts[] = {
    {DIMS(64, 64, 4), .q_per_kv = 8, .kv_heads = 2, .T = 50, .sinks = 1},
    {DIMS(64, 64, 4), .q_per_kv = 8, .kv_heads = 1, .T = 97, .index = 15, .gate = 3},
    {DIMS(64, 64, 4), .q_per_kv = 3, .kv_heads = 1, .T = 40, .index = 133, .window = 128, .sinks = 1, .gate = 2},
    {DIMS(64, 64, 4), .q_per_kv = 2, .kv_heads = 2, .T = 170, .index = 33, .window = 40, .sinks = 1, .gate = 1},
    {DIMS(64, 64, 4), .q_per_kv = 4, .kv_heads = 1, .T = 40, .index = 733, .window = 128, .sinks = 1, .ring = 192},
    {DIMS(128, 128, 4), .q_per_kv = 6, .kv_heads = 1, .T = 50, .index = 37, .gate = 2},
    {DIMS(128, 128, 4), .q_per_kv = 8, .kv_heads = 1, .T = 50, .index = 637, .window = 100, .sinks = 1, .gate = 3, .ring = 256},
    {DIMS(256, 256, 4), .q_per_kv = 8, .kv_heads = 1, .T = 50, .index = 37, .gate = 1},
    {DIMS(256, 256, 4), .q_per_kv = 2, .kv_heads = 1, .T = 50, .index = 837, .window = 100, .gate = 3, .ring = 192},
    {DIMS(256, 256, 4), .q_per_kv = 1, .kv_heads = 2, .T = 170, .index = 41, .part = 64, .first_head = 1},
    {DIMS(256, 256, 8), .q_per_kv = 8, .kv_heads = 1, .T = 50, .index = 137, .window = 40},
    {DIMS(256, 256, 8), .q_per_kv = 1, .kv_heads = 2, .T = 70, .index = 201, .part = 128},
    {DIMS(512, 512, 8), .q_per_kv = 8, .kv_heads = 1, .T = 50, .index = 37},
    {DIMS(512, 512, 8), .q_per_kv = 2, .kv_heads = 2, .T = 150, .index = 3, .gate = 2},
    {DIMS(512, 512, 8), .q_per_kv = 1, .kv_heads = 1, .T = 40, .index = 303, .window = 33, .gate = 3, .ring = 192},
    {DIMS(192, 128, 4), .q_per_kv = 1, .kv_heads = 3, .T = 50, .part = 64},
    {DIMS(192, 128, 4), .q_per_kv = 1, .kv_heads = 2, .T = 70, .index = 201, .part = 128, .first_head = 2}};

#undef DIMS

static void try_prompts(void) {
    for (size_t i = 0; i < sizeof prompts / sizeof *prompts; i++)
        for (int fp8 = 0; fp8 < 2; fp8++)
            if (!fp8 || prompts[i].key_dim == prompts[i].value_dim) try_prompt(&prompts[i], fp8 ? DTYPE_FP8 : DTYPE_BF16);
}
