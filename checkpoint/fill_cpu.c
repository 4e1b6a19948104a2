/* checkpoint/fill_cpu.c: random weights in the system's memory, for models without files, and the table of all that the CPU does with weights. */

enum { FILL_PIECE = 1 << 16 };                                 /* words */

typedef struct fill_job { const load_item *item; char *to; uint32_t words; } fill_job;

SIMD static void fill_piece(const load_item *item, char *to, uint32_t begin, uint32_t end) {
    item_randomize(item, to, begin, end, 1);
}

static void fill_body(void *context, int begin, int end, int thread) {
    const fill_job *job = (const fill_job *)context;
    uint32_t from = (uint32_t)begin * FILL_PIECE, upto = (uint32_t)end * FILL_PIECE;
    (void)thread;
    fill_piece(job->item, job->to, from, upto < job->words ? upto : job->words);
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
        job.to = b->m->arena + items[i].at;
        job.words = (uint32_t)item_words(&items[i]);
        memset(job.to + held, 0, item_capacity(&items[i]) - held);
        parallel(threads, (int)((job.words + FILL_PIECE - 1) / FILL_PIECE), fill_body, &job);
    }
    pool_close(threads);
    return code;
}

static const weight_memory cpu_memory = {
    .choose = cpu_choose, .available = cpu_available, .allocate = cpu_allocate, .release = cpu_release,
    .load = cpu_load, .fill = cpu_fill, .scan = cpu_scan, .complete = cpu_complete,
    .describe = cpu_describe, .kv = DTYPE_F32, .packs = 0};
