/* diagnose/synthetic.c: models of random weights with the shapes of known ones, for measuring and testing. May use model/ and
   checkpoint/, which do not use it; must not know how a device works or how a format stores numbers. */

static int cuda_fill(binder *b, const mote_callbacks *callbacks, mote_error *err);

/* Fills the arena. */
static int fill_weights(binder *b, const mote_callbacks *callbacks, mote_error *err) {
    int code = place_weights(b, err);
    if (!code) homes_notice(b, callbacks);
    if (!code) code = b->m->device.gpu >= 0 ? cuda_fill(b, callbacks, err) : cpu_fill(b, callbacks, err);
    if (!code && b->m->memory->complete) code = b->m->memory->complete(b, err);
    if (!code) report(callbacks, "making weights", 1);
    return code;
}

/* Shapes of synthetic models. With key heads it is a Qwen3.5: full attention in every fourth layer, DeltaNet in the others, an MTP
   layer. Without it is a Qwen3, or a Llama, which has no norms of queries and keys: attention alone. A gpt-oss has all that this has. */
typedef struct preset {
    const char *name, *family;
    int layers, hidden, vocab, context, tied;
    int heads, kv_heads, head_dim, key_heads, value_heads, delta_dim;
    int experts, top_k, size;                  /* of an expert, and of the shared one, or, without experts, of a dense FFN */
    int grown;                                 /* by YaRN its context is so many times the original one; 0: it is the original one */
    int window;                                /* of every second layer, the first among them; 0: there is none */
} preset;

/* name, family, layers, hidden, vocab, context, tied, heads, kv_heads, head_dim, key_heads, value_heads, delta_dim, experts, top_k, size, grown,
   window */
static const preset presets[] = {
    {"qwen3.5-35b-a3b", "qwen3_5_moe", 40, 2048, 248320, 262144, 0, 16, 2, 256, 16, 32, 128, 256, 8, 512, 0, 0},
    {"qwen3.5-122b-a10b", "qwen3_5_moe", 48, 3072, 248320, 262144, 0, 32, 2, 256, 16, 64, 128, 256, 8, 1024, 0, 0},
    {"qwen3.5-397b-a17b", "qwen3_5_moe", 60, 4096, 248320, 262144, 0, 32, 2, 256, 16, 64, 128, 512, 10, 1024, 0, 0},
    {"qwen3.5-27b", "qwen3_5", 64, 5120, 248320, 262144, 0, 24, 4, 256, 16, 48, 128, 0, 0, 17408, 0, 0},
    {"qwen3.5-9b", "qwen3_5", 32, 4096, 248320, 262144, 0, 16, 4, 256, 16, 32, 128, 0, 0, 12288, 0, 0},
    {"qwen3.5-4b", "qwen3_5", 32, 2560, 248320, 262144, 1, 16, 4, 256, 16, 32, 128, 0, 0, 9216, 0, 0},
    {"qwen3.5-2b", "qwen3_5", 24, 2048, 248320, 262144, 1, 8, 2, 256, 16, 16, 128, 0, 0, 6144, 0, 0},
    {"qwen3.5-0.8b", "qwen3_5", 24, 1024, 248320, 262144, 1, 8, 2, 256, 16, 16, 128, 0, 0, 3584, 0, 0},
    {"qwen3-30b-a3b", "qwen3_moe", 48, 2048, 151936, 262144, 0, 32, 4, 128, 0, 0, 0, 128, 8, 768, 0, 0},
    {"qwen3-8b", "qwen3", 36, 4096, 151936, 40960, 0, 32, 8, 128, 0, 0, 0, 0, 0, 12288, 0, 0},
    {"qwen3-0.6b", "qwen3", 28, 1024, 151936, 40960, 1, 16, 8, 128, 0, 0, 0, 0, 0, 3072, 0, 0},
    {"qwen3-coder-next", "qwen3_next", 48, 2048, 151936, 262144, 0, 16, 2, 256, 16, 32, 128, 512, 10, 512, 0, 0},
    {"mixtral-8x7b", "mixtral", 32, 4096, 32000, 32768, 0, 32, 8, 128, 0, 0, 0, 8, 2, 14336, 0, 0},
    {"llama-3.1-8b", "llama", 32, 4096, 128256, 131072, 0, 32, 8, 128, 0, 0, 0, 0, 0, 14336, 0, 0},
    {"gpt-oss-120b", "gpt_oss", 36, 2880, 201088, 131072, 0, 64, 8, 64, 0, 0, 0, 128, 4, 2880, 32, 128},
    {"gpt-oss-20b", "gpt_oss", 24, 2880, 201088, 131072, 0, 64, 8, 64, 0, 0, 0, 32, 4, 2880, 32, 128},
    {"smollm2-135m", "llama", 30, 576, 49152, 8192, 1, 9, 3, 64, 0, 0, 0, 0, 0, 1536, 0, 0},
    {"small", "qwen3_5_moe", 4, 2048, 2048, 262144, 0, 16, 2, 256, 16, 32, 128, 256, 8, 512, 0, 0},
    {"small-dense", "qwen3_5", 4, 2560, 2048, 262144, 0, 24, 4, 256, 16, 48, 128, 0, 0, 6400, 0, 0},
    {"small-plain", "llama", 4, 2048, 2048, 32768, 0, 16, 2, 128, 0, 0, 0, 0, 0, 5632, 4, 0},
    {"small-narrow", "llama", 4, 960, 2048, 32768, 0, 15, 5, 64, 0, 0, 0, 0, 0, 2560, 0, 0},
    {"small-oss", "gpt_oss", 4, 2880, 2048, 131072, 0, 64, 8, 64, 0, 0, 0, 32, 4, 2880, 32, 128},
    {"tiny", "qwen3_5_moe", 4, 256, 1024, 32768, 0, 4, 2, 64, 2, 4, 32, 8, 2, 128, 0, 0},
    {"tiny-dense", "qwen3_5", 4, 256, 1024, 32768, 1, 6, 1, 64, 2, 6, 32, 0, 0, 384, 0, 0},
    {"tiny-plain", "llama", 4, 256, 1024, 32768, 1, 6, 2, 64, 0, 0, 0, 0, 0, 384, 4, 0},
    {"tiny-oss", "gpt_oss", 4, 256, 1024, 131072, 0, 4, 2, 64, 0, 0, 0, 8, 2, 128, 32, 5},
    {"small-experts", "gpt_oss", 2, 256, 1024, 131072, 0, 4, 2, 64, 0, 0, 0, 64, 2, 128, 32, 0},
    {"tiny-sliding", "mistral", 4, 256, 1024, 32768, 1, 4, 2, 128, 0, 0, 0, 0, 0, 384, 0, 70}};

enum { PRESETS = sizeof presets / sizeof *presets };

/* Vision towers of those that are published with one, and of "tiny", for those who want them (mote_options.images). */
static const struct { const char *name; vision_shape of; } preset_towers[] = {             /* depth, hidden, heads, size, side, out: follows, theta */
    {"qwen3.5-35b-a3b", {27, 1152, 16, 4304, 48, 0, 10000}}, {"qwen3.5-122b-a10b", {27, 1152, 16, 4304, 48, 0, 10000}},
    {"qwen3.5-397b-a17b", {27, 1152, 16, 4304, 48, 0, 10000}}, {"qwen3.5-27b", {27, 1152, 16, 4304, 48, 0, 10000}},
    {"qwen3.5-4b", {24, 1024, 16, 4096, 48, 0, 10000}}, {"qwen3.5-0.8b", {12, 768, 12, 3072, 48, 0, 10000}}, {"tiny", {2, 64, 2, 128, 8, 0, 10000}}};

/* Gives the config its preset's tower, if there is one; the id of images is Qwen3.5's. */
static void preset_tower(const preset *p, config *c) {
    enum { IMAGE_FROM_END = 248320 - 248056 };
    c->image_token = c->video_token = c->vision_start = c->vision_end = -1;
    for (size_t i = 0; i < sizeof preset_towers / sizeof *preset_towers; i++) {
        if (strcmp(preset_towers[i].name, p->name)) continue;
        c->vision = preset_towers[i].of;
        c->vision.out = c->hidden;
        c->image_token = c->vocab - IMAGE_FROM_END;
    }
}

/* A layer with attention, and with DeltaNet in its place. */
static config_layer preset_layer(const preset *p, sublayer_shape *deltanet) {
    config_layer l = config_layer_of(LAYER_ATTENTION, p->experts ? LAYER_MOE : LAYER_MLP);
    attention_shape *a = &l.mixer.of.attention;
    moe_shape *e = &l.ffn.of.moe;
    mlp_shape *f = &l.ffn.of.mlp;
    deltanet_shape *d = &deltanet->of.deltanet;
    const int hybrid = p->key_heads > 0;
    *deltanet = sublayer_shape_of(LAYER_DELTANET);
    a->heads = p->heads;
    a->kv_heads = p->kv_heads;
    a->head_dim = p->head_dim;
    a->rotary_dim = hybrid ? p->head_dim / 4 : p->head_dim;
    a->rope_scale = 1;
    a->gated = hybrid;
    a->normed = !strncmp(p->family, "qwen", 4);
    a->biased = a->sinks = !strcmp(p->family, "gpt_oss");
    d->key_heads = p->key_heads;
    d->value_heads = p->value_heads;
    d->key_dim = d->value_dim = p->delta_dim;
    d->taps = 4;
    d->hidden = a->hidden = p->hidden;
    d->eps = a->eps = 1e-6f;
    if (l.ffn.kind == LAYER_MOE) {
        e->experts = p->experts;
        e->top_k = p->top_k;
        e->expert_size = p->size;
        e->shared_size = hybrid ? p->size : 0;
        e->hidden = p->hidden;
    } else {
        f->size = p->size;
        f->hidden = p->hidden;
    }
    return l;
}

/* The first layers of what config.json says, and the MTP layer. */
static int preset_of_json(const preset *p, const char *text, config *c, mote_error *err) {
    json j;
    int code = json_parse(&j, text, strlen(text), p->name, err);
    if (code) return code;
    code = config_of(c, &j, p->name, err);
    json_free(&j);
    if (code) return code;
    c->layer[p->layers] = c->layer[c->layers];
    c->layers = p->layers;
    return MOTE_OK;
}

static int preset_config(const preset *p, config *c, mote_error *err) {
    const int hybrid = p->key_heads > 0;
    sublayer_shape deltanet;
    config_layer l = preset_layer(p, &deltanet);
    for (int i = 0; i < FAMILY_COUNT; i++)
        if (!strcmp(model_families[i].name, p->family)) c->family = &model_families[i];
    c->layers = p->layers;
    c->hidden = p->hidden;
    c->vocab = p->vocab;
    c->context_max = p->context;
    c->tied = p->tied;
    c->mtp_layers = hybrid;
    l.rope.theta = hybrid ? 1e7f : 1e6f;
    l.rope.height = hybrid ? 33 : 0;
    l.rope.width = hybrid ? 30 : 0;
    if (p->grown) {
        l.rope.kind = ROPE_YARN;
        l.rope.factor = (float)p->grown;
        l.rope.original = (float)(p->context / p->grown);
        l.rope.slow = 1;
        l.rope.fast = 32;
        l.mixer.of.attention.rope_scale = 0.1f * logf(l.rope.factor) + 1;
    }
    c->fp8_rows = c->fp8_cols = 128;
    c->eps = 1e-6f;
    c->eos = -1;
    c->layer = (config_layer *)calloc((size_t)c->layers + 1, sizeof *c->layer);
    if (!c->layer) return fail_memory(err);
    for (int i = 0; i <= c->layers; i++) {
        c->layer[i] = l;
        if (i % 2 == 0 && i < c->layers) c->layer[i].mixer.of.attention.window = p->window;
        if (hybrid && i < c->layers && (i + 1) % 4) c->layer[i].mixer = deltanet;
    }
    return MOTE_OK;
}

/* "qwen3.5-35b-a3b:bf16:4" -> the preset, with 4 layers, and in *recipe how its matrices are stored; in *text its config.json, which says all
   but the number of layers, or NULL: the preset does. 0: not known. */
static int preset_find(const char *name, preset *found, const char **text, const quantization_recipe **recipe) {
    size_t n = strcspn(name, ":");
    const char *rest = name + n;
    *text = NULL;
    *recipe = &quantization_recipes[RECIPE_DEFAULT];
    memset(found, 0, sizeof *found);
    for (int i = 0; i < PRESETS; i++)
        if (strlen(presets[i].name) == n && !memcmp(presets[i].name, name, n)) *found = presets[i];
    for (int i = 0; i < PRESET_CONFIGS; i++) {
        if (strlen(preset_configs[i].name) != n || memcmp(preset_configs[i].name, name, n)) continue;
        found->name = preset_configs[i].name;
        found->layers = preset_configs[i].layers;
        *text = preset_configs[i].config;
    }
    if (!found->name) return 0;
    for (int i = 0; i < RECIPE_COUNT && *rest; i++) {
        n = strlen(quantization_recipes[i].name);
        if (strncmp(rest + 1, quantization_recipes[i].name, n) || (rest[1 + n] && rest[1 + n] != ':')) continue;
        *recipe = &quantization_recipes[i];
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

/* A preset that there is not, or, of one that is `known`, a wrong ending. A message has no space for all names: small- ones, of the tests of kernels, are
   left out. */
static int preset_unknown(const char *name, int known, mote_error *err) {
    const char *names[PRESETS + PRESET_CONFIGS], *endings[RECIPE_COUNT];
    char presets_there[480], recipes[128];
    int count = 0;
    for (int i = 0; i < PRESETS + PRESET_CONFIGS; i++) {
        names[count] = i < PRESETS ? presets[i].name : preset_configs[i - PRESETS].name;
        count += strncmp(names[count], "small-", 6) != 0;
    }
    for (int i = 0; i < RECIPE_COUNT; i++) endings[i] = quantization_recipes[i].name;
    if (!known)
        return fail(err, MOTE_EINVAL, "no synthetic model \"%.30s\": there are %s", name,
                    names_text(presets_there, sizeof presets_there, names, count, ", ", ", "));
    return fail(err, MOTE_EINVAL, "no synthetic model \"%.60s\": after its name may stand :%s (default :%s), and then :N for its first N layers",
                name, names_text(recipes, sizeof recipes, endings, RECIPE_COUNT, ", :", " or :"), quantization_recipes[RECIPE_DEFAULT].name);
}

enum { DRAFTER_LAYERS = 5, DRAFTER_ROWS = 16, DRAFTER_DIM = 128 };

/* What config.json of a DFlash for m would say, as published ones do of the Qwen3.5 family: those for 27B, whose shape this is, and for 35B-A3B. */
static int synthetic_drafter_config(const mote_model *m, config *c, mote_error *err) {
    const int last = m->c.layers - 1, wide = m->c.hidden >= 2048;
    config_layer l = config_layer_of(LAYER_ATTENTION, LAYER_MLP);
    attention_shape *a = &l.mixer.of.attention;
    c->family = &dflash_family;
    c->layers = DRAFTER_LAYERS;
    c->hidden = a->hidden = l.ffn.of.mlp.hidden = m->c.hidden;
    c->vocab = m->c.vocab;
    c->context_max = m->c.context_max;
    c->fp8_rows = c->fp8_cols = TILE;
    c->eps = a->eps = 1e-6f;
    c->eos = -1;
    a->heads = wide ? 32 : 4;
    a->kv_heads = wide ? 8 : 2;
    a->head_dim = a->rotary_dim = DRAFTER_DIM;
    a->rope_scale = a->normed = 1;
    l.rope.theta = 1e7f;
    l.ffn.of.mlp.size = m->largest.mlp.size ? m->largest.mlp.size : 3 * m->c.hidden;
    c->drafter.block = DRAFTER_ROWS;
    c->drafter.mask = c->vocab - 1;
    c->drafter.target_layers = m->c.layers;
    c->drafter.taps = DRAFTER_LAYERS;
    for (int k = 0; k < DRAFTER_LAYERS; k++) c->drafter.tap[k] = last < 8 ? k * last / 4 : 1 + k * (last - 3) / 4;
    c->drafter.causal[1] = 1;
    c->layer = (config_layer *)calloc(DRAFTER_LAYERS + 1, sizeof *c->layer);
    if (!c->layer) return fail_memory(err);
    for (int i = 0; i <= DRAFTER_LAYERS; i++) c->layer[i] = l;
    return MOTE_OK;
}

/* A block drafter of random weights in BF16 beside m, which has no MTP layer: nothing else drafts. */
static int synthetic_drafter(mote_model *m, const mote_options *o, mote_error *err) {
    checkpoint files;
    binder b;
    memset(&files, 0, sizeof files);
    memset(&b, 0, sizeof b);
    files.dir = "synthetic";
    int code = drafter_check_target(m, files.dir, err);
    mote_model *d = code ? NULL : drafter_new(m, o, err);
    if (!d) return err->code;
    code = synthetic_drafter_config(m, &d->c, err);
    if (!code) code = model_publish(d, &files, recipe_named("bf16"), err);
    if (!code) code = model_bind_to(d, &files, &b, &o->callbacks, err);
    if (!code && o->parts != MOTE_DESCRIPTION) code = fill_weights(&b, &o->callbacks, err);
    buf_free(&b.items);
    checkpoint_close(&files);
    if (code) mote_close(d);
    else drafter_join(m, d);
    return code;
}

/* "tiny-flash:bf16@/folder": what comes before the folder, in to[], and the folder; NULL: there is none. */
static const char *synthetic_folder(const char *name, char to[128]) {
    const char *at = strchr(name, '@');
    snprintf(to, 128, "%.*s", (int)(at ? at - name : (ptrdiff_t)strlen(name)), name);
    return at ? at + 1 : NULL;
}

/* A part of a synthetic model, a part_opener. */
static int synthetic_open(const char *name, const mote_options *o, const model_part *part, int load, mote_model **model, mote_error *err) {
    checkpoint files, tables;
    binder b;
    preset p;
    const char *text;
    const quantization_recipe *recipe;
    char preset_name[128];
    const char *folder = synthetic_folder(name, preset_name);
    memset(&files, 0, sizeof files);
    memset(&tables, 0, sizeof tables);
    memset(&b, 0, sizeof b);
    if (!preset_find(preset_name, &p, &text, &recipe)) return preset_unknown(preset_name, p.name != NULL, err);
    mote_model *m = model_new(o->device, 0, &o->callbacks, err);
    if (!m) return err->code;
    model_take(m, o);
    m->part = *part;
    files.dir = name;
    int code = folder ? checkpoint_open(&tables, folder, 0, err) : MOTE_OK;
    b.tables = folder ? &tables : NULL;
    if (!code) code = text ? preset_of_json(&p, text, &m->c, err) : preset_config(&p, &m->c, err);
    if (o->drafter) m->c.mtp_layers = 0;
    if (!code && o->images > 0) preset_tower(&p, &m->c);
    picture_limits_of(VISION_PATCH, VISION_MERGE, &m->pictures);
    if (!code) code = model_publish(m, &files, recipe, err);
    if (!code) code = model_bind_to(m, &files, &b, &o->callbacks, err);
    if (!code) m->fingerprint = fnv1a(config_fingerprint(&m->c), recipe->name, strlen(recipe->name)); /* weights follow from it */
    if (!code && load) code = fill_weights(&b, &o->callbacks, err);
    if (!code) model_info(m, &b);
    buf_free(&b.items);
    checkpoint_close(&files);
    checkpoint_close(&tables);
    if (code) mote_close(m);
    else *model = m;
    return code;
}

static int synthetic_digest(const char *name, unsigned char to[SHA256_SIZE], mote_error *err) {
    sha256 s;
    (void)err;
    sha256_open(&s);
    sha256_add(&s, name, strlen(name));
    sha256_close(&s, to);
    return MOTE_OK;
}

static const model_source synthetic_source = {.open = synthetic_open, .digest = synthetic_digest};

/* A part_opener: of those before the last one workers do. */
static int synthetic_open_remote(const char *name, const mote_options *o, const model_part *part, int load, mote_model **model, mote_error *err) {
    return workers_open_from(&synthetic_source, name, o, part, load, model, err);
}

int mote_open_synthetic(const char *name, const mote_options *options, mote_model **model, mote_error *error) {
    mote_options o;
    mote_error failure;
    device_list devices;
    if (!error) error = &failure;
    int code = take_options(&o, sizeof o, OPTIONS_0_3, options, "mote_options", error);
    if (code) return code;
    if (!name || !model || o.parts < MOTE_EVERYTHING || o.parts > MOTE_DESCRIPTION || o.parts == MOTE_TEXT_ONLY ||
        o.draft_rows < 0 || o.quantize || o.experts < MOTE_EXPERTS_AUTO || o.experts > MOTE_EXPERTS_HOST || o.images < -1 || o.images > 1)
        return fail(error, MOTE_EINVAL, "mote_open_synthetic: needs a name, a place for the model, no text, draft_rows of 0 or "
                                        "more, experts of MOTE_EXPERTS_..., images of -1 to 1, and quantize of 0: the name says the format");
    if (o.drafter && strcmp(o.drafter, "synthetic"))
        return fail(error, MOTE_EINVAL, "mote_open_synthetic: a synthetic model's drafter is \"synthetic\", not \"%.200s\"", o.drafter);
    code = model_devices(&devices, &o, error);
    if (!code && o.drafter) code = drafter_check_devices(&o, &devices, error);
    mote_model *opened = NULL;
    if (!code) code = parts_open(o.workers ? synthetic_open_remote : synthetic_open, name, &o, &devices, o.parts != MOTE_DESCRIPTION, &opened, error);
    if (!code && o.drafter) code = synthetic_drafter(opened, &o, error);
    if (code) mote_close(opened);
    else *model = opened;
    return code;
}
