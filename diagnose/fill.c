/* diagnose/fill.c: random weights in the memory of the device that computes, for models without files: in the system's here, in a GPU's by
   diagnose/fill.cu. Knows items, and which vectors want numbers of their own. */

/* Numbers of a vector: decays from long to short, small biases, weights of norms near 1, but of queries near 1 / 16 where the model scales scores in
   no other way. */
static synthetic_floats vector_values(const binder *b, const load_item *item) {
    const mote_model *m = b->m;
    static const synthetic_floats bias = {-127, 255, 0x1p-11f}, A_log = {0, 255, 0x1.6p-7f}, dt_bias = {-255, 255, 0x1p-6f}, conv1d = {-128, 255, 0x1p-8f},
                             norm = {896, 255, 0x1p-10f}, q_norm = {896, 255, 0x1p-14f};
    for (int i = 0; i < m->c.layers; i++) {
        const attention_weights *a = &m->layers[i].mixer.w.attention;
        if (m->layers[i].mixer.kind == LAYER_ATTENTION && a->shape.scale != 0 && item->target == (const void **)&a->q_norm) return q_norm;
        if (m->layers[i].mixer.kind == LAYER_NGRAMS && item->target == (const void **)&m->layers[i].mixer.w.ngrams.conv1d) return conv1d;
        const mamba_weights *s = &m->layers[i].mixer.w.mamba;
        if (m->layers[i].mixer.kind == LAYER_MAMBA) {
            if (item->target == (const void **)&s->A_log) return A_log;
            if (item->target == (const void **)&s->dt_bias) return dt_bias;
            if (item->target == (const void **)&s->conv1d) return conv1d;
        }
        const deltanet_weights *w = &m->layers[i].mixer.w.deltanet;
        if (m->layers[i].mixer.kind != LAYER_DELTANET) continue;
        if (item->target == (const void **)&w->A_log) return A_log;
        if (item->target == (const void **)&w->dt_bias) return dt_bias;
        if (item->target == (const void **)&w->conv1d) return conv1d;
    }
    return strstr(table_name(&b->files->table, item->from), "bias") ? bias : norm;
}

/* Before item i is filled with random numbers: reports, unless that was cancelled. */
static int filling(const binder *b, size_t i, const mote_callbacks *callbacks, mote_error *err) {
    const load_item *items = (const load_item *)(const void *)b->items.data;
    if (cancelled(callbacks)) return fail(err, MOTE_ECANCELLED, "%s: loading was cancelled", b->files->dir);
    if (i % 64 == 0) report(callbacks, "making weights", (double)items[i].at / (double)b->arena);
    return MOTE_OK;
}

/* Words begin, begin + step, ... before end, of an item that lies at `to`, become random. No item has 2^31 of them. f: of a
   vector. The seed is of the item's place in the
   arena of the whole model, so that parts have its weights. */
BOTH void item_randomize(const load_item *item, synthetic_floats f, char *to, uint32_t begin, uint32_t end, uint32_t step) {
    const uint32_t seed = synthetic_bits(0x6d6f7465, (uint32_t)(item->place / 64));
    const int is_vocab = (item->module == MODULE_EMBED || item->module == MODULE_HEAD) && item->of.format == FORMAT_BF16;
    const uint32_t first = is_vocab ? (uint32_t)(item->offset / 2) : 0;         /* of a rank's rows, which are those of the whole */
    if (item->component == VECTOR)
        for (uint32_t i = begin; i < end; i += step) ((float *)(void *)to)[i] = synthetic_float(seed, i, f);
    else format_random(item->of.format, item->component, seed, to - 2 * (size_t)first, begin + first, end + first, step);
}

enum { FILL_PIECE = 1 << 16 };                                 /* words */

typedef struct fill_job { const load_item *item; synthetic_floats values; char *to; uint32_t words; } fill_job;

SIMD static void fill_piece(const fill_job *job, uint32_t begin, uint32_t end) {
    item_randomize(job->item, job->values, job->to, begin, end, 1);
}

static void fill_body(void *context, int begin, int end, int thread) {
    const fill_job *job = (const fill_job *)context;
    uint32_t from = (uint32_t)begin * FILL_PIECE, upto = (uint32_t)end * FILL_PIECE;
    (void)thread;
    fill_piece(job, from, upto < job->words ? upto : job->words);
}

static int cpu_fill(binder *b, const mote_callbacks *callbacks, mote_error *err) {
    const load_item *items = (const load_item *)(void *)b->items.data;
    pool *threads = pool_open(processors());
    int code = threads ? MOTE_OK : fail(err, MOTE_ENOMEM, "the system gives no threads to make weights");
    for (size_t i = 0; i < b->items.size / sizeof *items && !code; i++) {
        fill_job job;
        const size_t held = item_held(&items[i]);
        code = filling(b, i, callbacks, err);
        if (code) break;
        job.item = &items[i];
        job.values = vector_values(b, &items[i]);
        job.to = b->m->arena + items[i].at;
        job.words = (uint32_t)item_words(&items[i]);
        memset(job.to + held, 0, item_capacity(&items[i]) - held);
        parallel(threads, (int)((job.words + FILL_PIECE - 1) / FILL_PIECE), fill_body, &job);
    }
    pool_close(threads);
    return code;
}
