/* diagnose/selftest_formats.cu: compares kernels with the CPU code for every weight format: random matrices of all widths, and
   each code under each scale. With the helpers of selftest.cu. */

enum { TRY_MATRIX_ROWS = 77 };

static matrix try_shape(enum format format, int rows, int cols) {
    matrix w;
    memset(&w, 0, sizeof w);
    w.format = format;
    w.rows = rows;
    w.cols = cols;
    w.block_rows = format_has_groups(format) ? 1 : TILE;
    w.block_cols = format_has_groups(format) ? format_k_block_cols(format) : (int)TILE;
    return w;
}

/* A matrix for both, whose components lie at `data` and `there`, random; `raw`: memory on the GPU for it as it is before it is
   packed. */
static void try_matrix(selftest *t, matrix *here, matrix *there, char *data, char *at, char *raw) {
    *there = *here;
    for (int i = 0; i < formats[here->format]->component_count; i++) {
        const component *p = &formats[here->format]->components[i];
        const int rows = component_rows(p, here), cols = component_cols(p, here);
        here->component[i] = data;
        there->component[i] = at;
        try_random(t);
        format_random(here->format, i, (uint32_t)(t->random >> 32), data, 0, (uint32_t)component_words(p, rows, cols), 1);
        try_put(t, p->packed ? raw : at, data, (size_t)rows * component_bytes(p, cols));
        data += matrix_component_capacity(here, i);
        at += matrix_component_capacity(here, i);
        raw += p->packed ? matrix_component_capacity(here, i) : 0;
    }
}

static void try_pack(selftest *t, const matrix *there, const char *raw) {
    gpu_queue *q = &t->g->q;
    if (!t->code && gpu_check(q, gpu_pack(there, raw, (char *)there->component[CODES], q->sms), "packing a matrix"))
        gpu_check(q, cudaDeviceSynchronize(), "packing a matrix");
}

/* y += W x of T rows, as a sublayer's last product. */
static void try_add(gpu_queue *q, const matrix *w, const float *x, float *y, int T) {
    const gpu_rows rows = {.q = q, .T = T, .x = y, .to = y};
    gpu_output_linear(&rows, KERNEL_O_PROJ, w, x);
}

/* Whether the columns of a matrix are whole groups. */
static int try_divides(enum format format, int cols) {
    int divides = !format_has_groups(format) || cols % format_k_block_cols(format) == 0;
    for (int i = 0; i < formats[format]->component_count; i++) {
        const int group = formats[format]->components[i].cols;
        divides &= !group || group == INT_MAX || cols % group == 0;
    }
    return divides;
}

/* A projection by a matrix of any format and width, with and without a norm before it, every other time with a bias. Borrows the session's
   memory: its KV caches hold the matrix, unpacked (v) and packed (k), and the input of the MTP layer the bias. */
static void try_format(selftest *t, enum format format, int cols) {
    if (!try_divides(format, cols)) return;
    scratch *w = &t->cpu->slot.runner->s;
    attention_state *kv = &t->gpu->slot.state[TRY_ATTENTION].attention;
    char *raw = (char *)kv->v;
    float *y_cpu = w->jobs.attention.o, *before = w->jobs.attention.qg, *y_gpu = t->g->layers.attention.o;
    gpu_queue *q = &t->g->q;
    matrix here = try_shape(format, TRY_MATRIX_ROWS, cols), there;
    float eps = t->cpu->m->c.eps, bias[TRY_MATRIX_ROWS];
    try_matrix(t, &here, &there, (char *)t->cpu->slot.state[TRY_ATTENTION].attention.k, (char *)kv->k, raw);
    try_pack(t, &there, raw);
    try_fill(t, w->mtp_in, (size_t)cols);
    try_both(t, w->x, t->g->x, STEP_ROWS * (size_t)t->cpu->m->c.hidden);
    try_put(t, t->gpu->slot.hidden, w->mtp_in, (size_t)cols * sizeof(float));
    try_both(t, bias, t->g->mtp_in, TRY_MATRIX_ROWS);
    for (int T = 1; T <= STEP_ROWS; T++) {
        size_t y = (size_t)(T * here.rows);
        here.bias = T % 2 ? NULL : bias;
        there.bias = T % 2 ? NULL : t->g->mtp_in;
        try_fill(t, y_cpu, y);
        memcpy(before, y_cpu, y * sizeof(float));
        try_put(t, y_gpu, y_cpu, y * sizeof(float));
        linear(t->cpu->slot.runner->threads, &here, w->x, y_cpu, T, 1, w->limbs);
        try_add(q, &there, t->g->x, y_gpu, T);
        try_end(t);
        try_compare(t, y_gpu, y_cpu, before, y);
        rms_norm(w->u, w->x, w->mtp_in, T, cols, eps);
        linear(t->cpu->slot.runner->threads, &here, w->u, y_cpu, T, 0, w->limbs);
        gpu_head(q, &there, there.rows, t->gpu->slot.hidden, t->g->x, T, eps, 0, t->g->logits);
        try_end(t);
        try_compare(t, t->g->logits, y_cpu, NULL, y);
    }
    try_row(t, 2e-5, "matrix %s %dx%d", formats[format]->name, here.rows, cols);
}

enum { TABLE_ROWS = 96, TABLE_COLS = 64 };

/* Words of component i of a matrix of 64 columns, such that every code occurs, of four bits under every scale or zero point.
   Factors and other scales are powers of two: what comes out is exact. Exponents of two neighbouring groups differ by up to 32, where
   a weight is still exact (formats/mxfp4.cu). */
static void try_table_component(const matrix *here, int i) {
    const component *p = &formats[here->format]->components[i];
    const uint32_t n = (uint32_t)component_words(p, component_rows(p, here), component_cols(p, here));
    char *to = (char *)here->component[i];
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t four = (2 * k & 15) | (2 * k + 1 & 15) << 4, byte = (k & 0x7f) == 0x7f ? 0 : k & 0xff;
        const float scale = 0.25f;
        uint32_t word;
        memcpy(&word, &scale, 4);
        if (format_has_groups(here->format) && i == SCALES) word |= k % 17;
        if (here->format == FORMAT_MXFP4 && i == SCALES) to[k] = (char)(MXFP4_BIAS - 20 + (int)(k % 2 == k / (TABLE_ROWS) ? k / 2 % 33 : 0));
        else if (p->bits == 4) to[k] = (char)four;
        else if (p->bits == 8) to[k] = (char)(i == CODES ? byte : byte & 0x7f);
        else memcpy(to + 4 * (size_t)k, &word, 4);
    }
}

/* That matrix, for both. 0: the format has no table. */
static int try_table_matrix(selftest *t, enum format format, matrix *here, matrix *there) {
    attention_state *kv = &t->gpu->slot.state[TRY_ATTENTION].attention;
    char *raw = (char *)kv->v;
    *here = try_shape(format, TABLE_ROWS, TABLE_COLS);
    try_matrix(t, here, there, (char *)t->cpu->slot.state[TRY_ATTENTION].attention.k, (char *)kv->k, raw);
    if (t->code || formats[format]->components[CODES].bits > 8) return 0;
    for (int i = 0; i < formats[format]->component_count; i++) {
        const component *p = &formats[format]->components[i];
        try_table_component(here, i);
        try_put(t, p->packed ? raw : (char *)there->component[i], here->component[i],
                (size_t)component_rows(p, here) * component_bytes(p, component_cols(p, here)));
        raw += p->packed ? matrix_component_capacity(here, i) : 0;
    }
    try_pack(t, there, (char *)kv->v);
    return 1;
}

/* `rows` rows of zeros, but for a 1 in column `first` and those that follow it. */
static void try_unit_rows(float *x, int first, int rows) {
    memset(x, 0, (size_t)(rows * TABLE_COLS) * sizeof *x);
    for (int i = 0; i < rows; i++) x[i * TABLE_COLS + first + i] = 1;
}

/* The largest difference relative to the element: the kernels of decode put a tag into the two lowest bits. */
static void try_elements(selftest *t, const float *at, const float *want, int n) {
    float got[STEP_ROWS * TABLE_ROWS];
    if (!t->code) t->code = slot_copy(&t->gpu->slot, got, at, (size_t)n * sizeof *got, t->err);
    for (int i = 0; i < n && !t->code; i++) {
        const double off = fabs((double)got[i] - (double)want[i]);
        try_worse(t, want[i] != 0 ? off / fabs((double)want[i]) : off > 1e-30 ? INFINITY : 0);
    }
}

/* Every weight of that matrix as the kernels of decode see it: products with rows that are 1 in one column. */
static void try_table(selftest *t, enum format format) {
    float *x = t->cpu->slot.runner->s.x, *want = t->cpu->slot.runner->s.jobs.attention.o, *y = t->g->layers.attention.o;
    matrix here, there;
    if (!try_table_matrix(t, format, &here, &there)) return;
    for (int first = 0; first < TABLE_COLS; first += STEP_ROWS) {
        try_unit_rows(x, first, STEP_ROWS);
        memset(want, 0, STEP_ROWS * TABLE_ROWS * sizeof *want);
        try_put(t, t->g->x, x, STEP_ROWS * TABLE_COLS * sizeof *x);
        try_put(t, y, want, STEP_ROWS * TABLE_ROWS * sizeof *want);
        linear(t->cpu->slot.runner->threads, &here, x, want, STEP_ROWS, 0, t->cpu->slot.runner->s.limbs);
        try_add(&t->g->q, &there, t->g->x, y, STEP_ROWS);
        try_end(t);
        try_elements(t, y, want, STEP_ROWS * TABLE_ROWS);
    }
    try_row(t, 4e-7, "every code of %s", formats[format]->name);
}

/* The same as prefill sees it. The session has its scratch. */
static void try_prefill_table(selftest *t, enum format format) {
    enum { ROWS = TABLE_COLS / 2 };
    static const uint16_t f16_one = 0x3c00;
    const prefill_scratch *g = &t->g->prefill;
    float *x = t->cpu->slot.runner->s.x, *want = t->cpu->slot.runner->s.jobs.attention.qg, ones[ROWS];
    uint16_t rows[ROWS * TABLE_COLS];
    matrix here, there;
    if (!try_table_matrix(t, format, &here, &there) || !prefill_takes(&here)) return;
    const prefill_rows r = prefill_rows_of(&t->gpu->slot, ROWS, t->gpu->count);
    const gemm_rows in = {g->u, g->u_scale, 1};
    for (int first = 0; first < TABLE_COLS; first += ROWS) {
        try_unit_rows(x, first, ROWS);
        for (int i = 0; i < ROWS * TABLE_COLS; i++) rows[i] = x[i] != 0 ? f16_one : 0;
        for (int i = 0; i < ROWS; i++) ones[i] = 1;
        try_put(t, g->u, rows, sizeof rows);
        try_put(t, g->u_scale, ones, sizeof ones);
        linear(t->cpu->slot.runner->threads, &here, x, want, ROWS, 0, t->cpu->slot.runner->s.limbs);
        prefill_linear(&r, &there, in, ROWS, (float *)(void *)g->scratch);
        if (!t->code) t->code = gpu_finish(&t->gpu->slot, t->err);
        try_compare(t, (float *)(void *)g->scratch, want, NULL, ROWS * TABLE_ROWS);
    }
    try_row(t, 0, "prefill: every code of %s", formats[format]->name);
}

/* Products of a few panels of rows, as of DeltaNet's gates where ranks share 48 heads: rows of zeros and ones, whose products are nearly exact. */
static void try_prefill_panels(selftest *t) {
    enum { ROWS = 40, COLS = 256 };
    static const int panels[] = {1, 2, 3, 5, 6};
    const prefill_scratch *g = &t->g->prefill;
    float *x = t->cpu->slot.runner->s.x, *want = t->cpu->slot.runner->s.jobs.attention.qg, ones[ROWS];
    attention_state *kv = &t->gpu->slot.state[TRY_ATTENTION].attention;
    uint16_t rows[ROWS * COLS];
    for (int i = 0; i < ROWS; i++) ones[i] = 1;
    try_fill(t, x, ROWS * COLS);
    for (int i = 0; i < ROWS * COLS; i++) {
        x[i] = x[i] > 0;
        rows[i] = x[i] > 0 ? 0x3c00 : 0;
    }
    for (size_t i = 0; i < sizeof panels / sizeof *panels; i++) {
        matrix here = try_shape(FORMAT_BF16, panels[i] * PANEL_ROWS, COLS), there;
        try_matrix(t, &here, &there, (char *)t->cpu->slot.state[TRY_ATTENTION].attention.k, (char *)kv->k, (char *)kv->v);
        try_pack(t, &there, (char *)kv->v);
        try_put(t, g->u, rows, sizeof rows);
        try_put(t, g->u_scale, ones, sizeof ones);
        linear(t->cpu->slot.runner->threads, &here, x, want, ROWS, 0, t->cpu->slot.runner->s.limbs);
        const prefill_rows r = prefill_rows_of(&t->gpu->slot, ROWS, t->gpu->count);
        const gemm_rows in = {g->u, g->u_scale, 1};
        if (!prefill_stores(&here)) t->worst = INFINITY;
        else prefill_linear(&r, &there, in, ROWS, (float *)(void *)g->scratch);
        if (!t->code) t->code = gpu_finish(&t->gpu->slot, t->err);
        try_compare(t, (float *)(void *)g->scratch, want, NULL, (size_t)(ROWS * here.rows));
    }
    try_row(t, 1e-4, "prefill: 8 to 48 rows of a matrix");
}
