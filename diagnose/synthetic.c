/* diagnose/synthetic.c: models of random weights with the shapes of known ones, for measuring and testing. */

/* Fills the arena of a made-up checkpoint. */
static int make_weights(binder *b, const mote_callbacks *callbacks, mote_error *err) {
    int code = arena_open(b, err);
    if (!code) code = b->m->memory->fill(b, callbacks, err);
    if (!code) code = b->m->memory->complete(b, err);
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
    a->gated = 1;
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

/* How the matrices of a made-up checkpoint are stored. The first four are one format in all large matrices, the others what
   is published: nvidia's mixed NVFP4, and that of experts alone; INT4 of all linear layers, and of experts; FP8_DYNAMIC. */
typedef struct recipe {
    const char *name;
    enum spelled experts, shared, mixers, head, mtp;           /* the mixers' large projections, lm_head, the MTP layer */
} recipe;

static const recipe recipes[] = {
    {"f32", SPELLED_F32, SPELLED_F32, SPELLED_F32, SPELLED_BF16, SPELLED_F32},
    {"f16", SPELLED_F16, SPELLED_F16, SPELLED_F16, SPELLED_BF16, SPELLED_F16},
    {"bf16", SPELLED_BF16, SPELLED_BF16, SPELLED_BF16, SPELLED_BF16, SPELLED_BF16},
    {"fp8", SPELLED_FP8_BLOCK, SPELLED_FP8_BLOCK, SPELLED_FP8_BLOCK, SPELLED_BF16, SPELLED_FP8_BLOCK},
    {"nvfp4", SPELLED_NVFP4, SPELLED_NVFP4, SPELLED_FP8_TENSOR, SPELLED_NVFP4, SPELLED_BF16},
    {"nvfp4-experts", SPELLED_NVFP4, SPELLED_BF16, SPELLED_BF16, SPELLED_BF16, SPELLED_BF16},
    {"int4", SPELLED_INT4_CT, SPELLED_INT4_CT, SPELLED_INT4_CT, SPELLED_BF16, SPELLED_BF16},
    {"int4-experts", SPELLED_GPTQ, SPELLED_BF16, SPELLED_BF16, SPELLED_BF16, SPELLED_BF16},
    {"fp8-channel", SPELLED_FP8_CHANNEL, SPELLED_FP8_CHANNEL, SPELLED_FP8_CHANNEL, SPELLED_BF16, SPELLED_BF16}};

enum { RECIPES = sizeof recipes / sizeof *recipes, RECIPE_DEFAULT = 3 };       /* as most checkpoints are */

static const struct recipe *recipe_named(const char *name) {
    for (int i = 0; i < RECIPES; i++)
        if (!strcmp(recipes[i].name, name)) return &recipes[i];
    return &recipes[RECIPE_DEFAULT];
}

static enum spelled made_spelling(const struct recipe *r, const char *name) {
    if (!strcmp(name, "lm_head")) return r->head;
    if (keeps_its_type(name, strlen(name))) return SPELLED_BF16;
    if (has_prefix(name, "mtp.")) return r->mtp;
    return strstr(name, ".experts.") ? r->experts : strstr(name, ".shared_expert.") ? r->shared : r->mixers;
}

/* "qwen3.5-35b-a3b:bf16:4" -> the preset, with 4 layers, and in *made how its matrices are stored. 0: not known. */
static int preset_find(const char *name, preset *found, const recipe **made) {
    size_t n = strcspn(name, ":");
    const char *rest = name + n;
    *made = &recipes[RECIPE_DEFAULT];
    memset(found, 0, sizeof *found);
    for (int i = 0; i < PRESETS; i++)
        if (strlen(presets[i].name) == n && !memcmp(presets[i].name, name, n)) *found = presets[i];
    if (!found->name) return 0;
    for (int i = 0; i < RECIPES && *rest; i++) {
        n = strlen(recipes[i].name);
        if (strncmp(rest + 1, recipes[i].name, n) || (rest[1 + n] && rest[1 + n] != ':')) continue;
        *made = &recipes[i];
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
    const char *names[PRESETS], *endings[RECIPES];
    char known[200], made[128];
    for (int i = 0; i < PRESETS; i++) names[i] = presets[i].name;
    for (int i = 0; i < RECIPES; i++) endings[i] = recipes[i].name;
    return fail(err, MOTE_EINVAL,
                "no synthetic model \"%.60s\": there are %s, each with :%s (default :%s), and :N for its first N layers", name,
                names_text(known, sizeof known, names, PRESETS, ", ", ", "),
                names_text(made, sizeof made, endings, RECIPES, ", :", " or :"), recipes[RECIPE_DEFAULT].name);
}

int mote_open_synthetic(const char *name, const mote_options *options, mote_model **model, mote_error *error) {
    mote_options o;
    checkpoint files;
    binder b;
    mote_error failure;
    preset p;
    const recipe *made;
    memset(&files, 0, sizeof files);
    memset(&b, 0, sizeof b);
    int code = take_options(&o, sizeof o, OPTIONS_0_3, options, "mote_options", error);
    if (code) return code;
    if (!name || !model || o.parts < MOTE_EVERYTHING || o.parts > MOTE_DESCRIPTION || o.parts == MOTE_TEXT_ONLY ||
        o.draft_rows < 0 || o.quantize)
        return fail(error, MOTE_EINVAL, "mote_open_synthetic: needs a name, a place for the model, no text, draft_rows of 0 or "
                                        "more, and quantize of 0: the name says the format");
    if (!preset_find(name, &p, &made)) return preset_unknown(name, error);
    if (!error) error = &failure;
    mote_model *m = model_new(o.device, 0, &o.callbacks, error);
    if (!m) return error->code;
    if (o.draft_rows) m->draft_rows = o.draft_rows;
    files.dir = name;
    code = preset_config(&p, &m->c, error);
    if (!code) code = model_bind_to(m, &files, made, &b, &o.callbacks, error);
    if (!code) m->fingerprint = fnv1a(config_fingerprint(&m->c), made->name, strlen(made->name));  /* weights are made of it */
    if (!code && o.parts != MOTE_DESCRIPTION) code = make_weights(&b, &o.callbacks, error);
    buf_free(&b.items);
    if (code) mote_close(m);
    else *model = m;
    return code;
}
