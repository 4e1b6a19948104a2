/* diagnose/synthetic.c: models of random weights with the shapes of known ones, for measuring and testing. */

/* Words begin, begin + step, ... before end, of an item that lies at `to`. No item has 2^31 of them. The seed is of the
   item's place in the arena. */
BOTH void made_range(const load_item *item, char *to, uint32_t begin, uint32_t end, uint32_t step) {
    uint32_t seed = made_bits(0x6d6f7465, (uint32_t)(item->at / 64));
    made_floats f = item->made;
    if (item->plane == VECTOR)
        for (uint32_t i = begin; i < end; i += step) ((float *)(void *)to)[i] = made_float(seed, i, f);
    else format_random(item->format, item->plane, seed, to, begin, end, step);
}

enum { MADE_PIECE = 1 << 16 };                                 /* words */

typedef struct made_job { const load_item *item; char *to; uint32_t words; } made_job;

SIMD static void made_piece(const load_item *item, char *to, uint32_t begin, uint32_t end) {
    made_range(item, to, begin, end, 1);
}

static void made_body(void *context, int begin, int end, int thread) {
    const made_job *job = (const made_job *)context;
    uint32_t from = (uint32_t)begin * MADE_PIECE, upto = (uint32_t)end * MADE_PIECE;
    (void)thread;
    made_piece(job->item, job->to, from, upto < job->words ? upto : job->words);
}

#ifdef __CUDACC__
static __global__ void gpu_make(const __grid_constant__ load_item item, char *to, uint32_t words) {
    made_range(&item, to, blockIdx.x * blockDim.x + threadIdx.x, words, gridDim.x * blockDim.x);
}

static int make_gpu_item(const mote_model *m, const load_item *item, mote_error *err) {
    uint32_t n = (uint32_t)item_words(item), blocks = (n - 1) / GPU_THREADS + 1, most = (uint32_t)m->gpu_sms * 16;
    gpu_make<<<blocks < most ? blocks : most, GPU_THREADS>>>(*item, m->arena + item->at, n);
    cudaError_t status = cudaGetLastError();
    return status == cudaSuccess ? MOTE_OK : gpu_fail(err, status, "making weights");
}
#endif

static int make_item(const mote_model *m, pool *threads, const load_item *item, mote_error *err) {
    made_job job;
#ifdef __CUDACC__
    if (m->gpu >= 0) return make_gpu_item(m, item, err);
#endif
    (void)err;
    size_t held = item_held(item);
    job.item = item;
    job.to = m->arena + item->at;
    job.words = (uint32_t)item_words(item);
    memset(job.to + held, 0, item_room(item) - held);
    parallel(threads, (int)((job.words + MADE_PIECE - 1) / MADE_PIECE), made_body, &job);
    return MOTE_OK;
}

static int processors(void);

/* Fills the arena of a made-up checkpoint. */
static int make_weights(binder *b, const mote_callbacks *callbacks, mote_error *err) {
    const load_item *items = (const load_item *)(void *)b->items.data;
    size_t n = b->items.size / sizeof *items;
    int code = arena_open(b, err);
    pool *threads = code ? NULL : pool_open(b->m->gpu < 0 ? processors() : 1);
    if (!code && !threads) code = fail(err, MOTE_ENOMEM, "the system gives no threads to make weights");
    for (size_t i = 0; i < n && !code; i++) {
        if (cancelled(callbacks)) code = fail(err, MOTE_ECANCELLED, "%s: loading was cancelled", b->files->dir);
        else code = make_item(b->m, threads, &items[i], err);
        if (!code && i % 64 == 0) report(callbacks, "making weights", (double)items[i].at / (double)b->arena);
    }
    pool_close(threads);
#ifdef __CUDACC__
    if (!code && b->m->gpu >= 0) {
        cudaError_t status = cudaDeviceSynchronize();
        if (status != cudaSuccess) code = gpu_fail(err, status, "making weights");
    }
    if (!code && b->m->gpu >= 0) code = pack_weights(b, err);
#endif
    if (!code) report(callbacks, "making weights", 1);
    return code;
}

/* Shapes to make models of, all of the first family: full attention in every fourth layer, a quarter of a head rotated. */
typedef struct preset {
    const char *name;
    int layers, hidden, vocab, context;
    int heads, kv_heads, head_dim, key_heads, value_heads, delta_dim;
    int experts, top_k, expert_size;           /* the shared expert is as large */
} preset;

static const preset presets[] = {
    {"qwen3.5-35b-a3b", 40, 2048, 248320, 262144, 16, 2, 256, 16, 32, 128, 256, 8, 512},
    {"qwen3.5-122b-a10b", 48, 3072, 248320, 262144, 32, 2, 256, 16, 64, 128, 256, 8, 1024},
    {"qwen3.5-397b-a17b", 60, 4096, 248320, 262144, 32, 2, 256, 16, 64, 128, 512, 10, 1024},
    {"small", 4, 2048, 2048, 262144, 16, 2, 256, 16, 32, 128, 256, 8, 512},
    {"tiny", 4, 256, 1024, 32768, 4, 2, 64, 2, 4, 32, 8, 2, 128}};

enum { PRESETS = sizeof presets / sizeof *presets };

static int preset_config(const preset *p, config *c, mote_error *err) {
    deltanet_shape *d = &c->shapes.deltanet;
    attention_shape *a = &c->shapes.attention;
    moe_shape *e = &c->shapes.moe;
    c->family = &model_families[0];
    c->layers = p->layers;
    c->hidden = p->hidden;
    c->vocab = p->vocab;
    c->context_max = p->context;
    c->mtp_layers = 1;
    a->heads = p->heads;
    a->kv_heads = p->kv_heads;
    a->head_dim = p->head_dim;
    a->rotary_dim = p->head_dim / 4;
    a->theta = 1e7f;
    d->key_heads = p->key_heads;
    d->value_heads = p->value_heads;
    d->key_dim = d->value_dim = p->delta_dim;
    d->taps = 4;
    e->experts = p->experts;
    e->top_k = p->top_k;
    e->expert_size = e->shared_size = p->expert_size;
    c->fp8_rows = c->fp8_cols = 128;
    d->hidden = a->hidden = e->hidden = c->hidden;
    d->eps = a->eps = e->eps = c->eps = 1e-6f;
    c->eos = -1;
    c->mixers = (unsigned char *)calloc((size_t)c->layers, 1);
    if (!c->mixers) return fail_memory(err);
    for (int i = 0; i < c->layers; i++) c->mixers[i] = (i + 1) % 4 ? LAYER_DELTANET : LAYER_ATTENTION;
    return MOTE_OK;
}

enum { MADE_DEFAULT = FORMAT_FP8_BLOCK };                      /* as most checkpoints are */

/* "qwen3.5-35b-a3b:bf16:4" -> the preset, with 4 layers, and in *made the format of its large matrices. 0: not known. */
static int preset_find(const char *name, preset *found, enum format *made) {
    size_t n = strcspn(name, ":");
    const char *rest = name + n;
    *made = (enum format)MADE_DEFAULT;
    memset(found, 0, sizeof *found);
    for (int i = 0; i < PRESETS; i++)
        if (strlen(presets[i].name) == n && !memcmp(presets[i].name, name, n)) *found = presets[i];
    if (!found->name) return 0;
    for (int f = 0; f < FORMAT_COUNT && *rest; f++) {
        n = strlen(formats[f]->made);
        if (strncmp(rest + 1, formats[f]->made, n) || (rest[1 + n] && rest[1 + n] != ':')) continue;
        *made = (enum format)f;
        rest += 1 + n;
        break;
    }
    if (!*rest) return 1;
    char *end;
    long layers = rest[0] == ':' && rest[1] >= '1' && rest[1] <= '9' ? strtol(rest + 1, &end, 10) : 0;
    if (layers < 1 || layers > found->layers || *end) return 0;
    found->layers = (int)layers;
    return 1;
}

static int preset_unknown(const char *name, mote_error *err) {
    const char *names[PRESETS], *endings[FORMAT_COUNT];
    char known[200], made[64];
    for (int i = 0; i < PRESETS; i++) names[i] = presets[i].name;
    for (int f = 0; f < FORMAT_COUNT; f++) endings[f] = formats[f]->made;
    return fail(err, MOTE_EINVAL,
                "no synthetic model \"%.60s\": there are %s, each with :%s (default :%s), and :N for its first N layers", name,
                names_text(known, sizeof known, names, PRESETS, ", ", ", "),
                names_text(made, sizeof made, endings, FORMAT_COUNT, ", :", " or :"), formats[MADE_DEFAULT]->made);
}

int mote_open_synthetic(const char *name, const mote_options *options, mote_model **model, mote_error *error) {
    mote_options o;
    checkpoint files;
    binder b;
    mote_error failure;
    preset p;
    enum format made;
    memset(&o, 0, sizeof o);
    memset(&files, 0, sizeof files);
    memset(&b, 0, sizeof b);
    if (options) o = *options;
    if (!name || !model || o.parts < MOTE_EVERYTHING || o.parts > MOTE_DESCRIPTION || o.parts == MOTE_TEXT_ONLY ||
        o.draft_rows < 0)
        return fail(error, MOTE_EINVAL,
                    "mote_open_synthetic: needs a name, a place for the model, no text, and draft_rows of 0 or more");
    if (!preset_find(name, &p, &made)) return preset_unknown(name, error);
    if (!error) error = &failure;
    mote_model *m = model_new(o.device, 0, &o.callbacks, error);
    if (!m) return error->code;
    if (o.draft_rows) m->draft_rows = o.draft_rows;
    files.dir = name;
    int code = preset_config(&p, &m->c, error);
    if (!code) code = model_bind_to(m, &files, formats[made], &b, &o.callbacks, error);
    if (!code) m->fingerprint = fnv1a(config_fingerprint(&m->c), &made, sizeof made);   /* the weights are made of these */
    if (!code && o.parts != MOTE_DESCRIPTION) code = make_weights(&b, &o.callbacks, error);
    buf_free(&b.items);
    if (code) mote_close(m);
    else *model = m;
    return code;
}
