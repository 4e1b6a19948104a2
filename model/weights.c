/* model/weights.c: the weights of a whole model: bound by its family, checked for the device, loaded, and what is done because of
   their values. Knows the parts of a model, and calls the device through m->memory; must not know what tensors are called. */

/* Drafts need no more of lm_head than the tokens that occur: its first rows, because a BPE vocabulary is in the order of its
   merges, the most frequent pairs first. What lies after them, rare words and special tokens, is never drafted and costs a
   pass when it comes. On a GPU they are a copy in FP8, half the bytes of BF16, unless lm_head's weights are as small. A
   target's logits always come from all of lm_head as it is. */
static void bind_draft_head(binder *b) {
    mote_model *m = b->m;
    matrix *w = &m->draft_head;
    if (b->code) return;
    *w = m->lm_head;
    w->rows = max_int(0, min_int(w->rows, m->draft_rows - part_vocab(&m->part, m->c.vocab).first));
    m->draft_at = b->arena;
    if (!m->memory->packs || formats[w->format]->components[CODES].bits <= 8) return;
    w->format = FORMAT_FP8_BLOCK;
    w->block_rows = w->block_cols = TILE;
    for (int i = 0; i < fp8_block_format.component_count; i++) b->arena += matrix_component_capacity(w, i);
    m->report.modules[MODULE_MTP].bytes += matrix_bytes(w);
}

/* Bytes of a layer's table of experts, moe_weights.expert_at: whole 64 bytes. */
static size_t expert_table_bytes(const layer *l) {
    return l->ffn.kind == LAYER_MOE ? ((size_t)l->ffn.w.moe.shape.experts * sizeof(int64_t) + 63) / 64 * 64 : 0;
}

/* A GPU's memory has these tables, too. */
static void bind_expert_tables(binder *b) {
    mote_model *m = b->m;
    m->expert_tables_at = b->arena;
    for (int i = 0; i < m->c.layers + m->has_mtp && m->memory->packs; i++)
        if (model_has_layer(m, i)) b->arena += expert_table_bytes(model_layer(m, i));
}

/* "layer 3: ", of a message. Layer -1: what is of no layer. */
static const char *layer_text(const mote_model *m, int layer, char *to, size_t size) {
    if (layer < 0) *to = 0;
    else if (layer == m->c.layers) snprintf(to, size, "MTP layer: ");
    else snprintf(to, size, "layer %d: ", layer);
    return to;
}

/* Refuses what an executor does not do; on: what each executor does. The device of another that does is told. */
static int refuse_features(const mote_model *m, const char *dir, int layer, feature_set asked, enum executor_kind executor,
                           const feature_set *on, mote_error *err) {
    static const char *const devices[EXECUTOR_KINDS] = {"the CPU", "a GPU", "a GPU"};
    const enum executor_kind other = executor == EXECUTOR_CPU ? EXECUTOR_STEP : EXECUTOR_CPU;
    char where[32];
    for (int f = FEATURE_NONE + 1; f < FEATURE_COUNT; f++) {
        const feature_set bit = feature_bit((enum feature)f);
        if (!(asked & bit & ~on[executor])) continue;
        layer_text(m, layer, where, sizeof where);
        if (on[other] & bit)
            return fail(err, MOTE_EUNSUPPORTED, "%s: %s%s are not supported on %s, use %s", dir, where, feature_names[f], devices[executor],
                        devices[other]);
        return fail(err, MOTE_EUNSUPPORTED, "%s: %s%s are not supported", dir, where, feature_names[f]);
    }
    return MOTE_OK;
}

/* Refuses by name a model that asks for what an executor does not do. */
static int check_features(const mote_model *m, const char *dir, enum executor_kind executor, const feature_set *on, mote_error *err) {
    int code = refuse_features(m, dir, -1, shape_features(&m->c, config_fields, CONFIG_FIELD_COUNT), executor, on, err);
    for (int i = 0; i < m->c.layers + m->has_mtp && !code; i++) {
        const layer *l = model_layer(m, i);
        feature_set asked = sublayer_features(&l->mixer) | sublayer_features(&l->ffn);
        if (l->mixer.kind == LAYER_ATTENTION) asked |= shape_features(&m->c.layer[i].rope, rope_fields, ROPE_FIELD_COUNT);
        code = refuse_features(m, dir, i, asked, executor, on, err);
    }
    return code;
}

/* The sizes and formats that the kernels take. */
static int check_sizes(const binder *b) {
    const mote_model *m = b->m;
    const config *c = &m->c;
    const unsigned *in = b->formats;
    unsigned multiplied = in[MODULE_DELTANET] | in[MODULE_ATTENTION] | in[MODULE_MLA] | in[MODULE_MAMBA] | in[MODULE_EXPERTS] | in[MODULE_SHARED] | in[MODULE_MLP] |
                          in[MODULE_MTP];
    const char *wrong = NULL;
    char where[32] = "";
    for (int i = 0; i < c->layers + m->has_mtp && !wrong; i++) {
        const layer *l = model_layer(m, i);
        wrong = sublayer_unsupported_reason(&l->mixer);
        if (!wrong) wrong = sublayer_unsupported_reason(&l->ffn);
        if (wrong) layer_text(m, i, where, sizeof where);
    }
    if (!wrong && part_is_last(&m->part)) wrong = streams_unsupported_reason(&m->mixer, c->streams);
    if (!wrong && part_is_last(&m->part) && m->has_mtp) wrong = streams_unsupported_reason(&m->mtp.mixer, c->streams);
    for (int f = 0; f < FORMAT_COUNT && !wrong; f++)
        if (multiplied >> f & 1 && formats[f]->unsupported_reason) wrong = formats[f]->unsupported_reason(c->fp8_rows, c->fp8_cols);
    if (wrong && m->part.ranks > 1)
        return fail(b->err, MOTE_EUNSUPPORTED, "%s: %s%s are not supported on a GPU: divided by %d ranks", b->files->dir, where, wrong, m->part.ranks);
    return wrong ? fail(b->err, MOTE_EUNSUPPORTED, "%s: %s%s are not supported on a GPU, use the CPU", b->files->dir, where, wrong)
                 : MOTE_OK;
}

/* Refuses what the model's device cannot run. */
static int check_device(const binder *b) {
    const int packs = b->m->memory->packs;
    const int code = check_features(b->m, b->files->dir, packs ? EXECUTOR_STEP : EXECUTOR_CPU, executor_features, b->err);
    return code || !packs ? code : check_sizes(b);
}

/* Once experts have addresses: checks the address of each, and gives each layer the place of its table. */
static int place_experts(const binder *b) {
    mote_model *m = b->m;
    const char *table = m->arena + m->expert_tables_at;
    for (int i = 0; i < m->c.layers + m->has_mtp && m->memory->packs; i++) {
        layer *l = model_layer(m, i);
        moe_weights *w = &l->ffn.w.moe;
        if (l->ffn.kind != LAYER_MOE || !model_has_layer(m, i)) continue;
        const int64_t piece = (int64_t)(m->homes[i].bytes / (size_t)w->shape.experts);
        for (int e = 0; e < w->shape.experts; e++)
            if (moe_distance(w, e) != (int64_t)e * piece)
                return refuse_features(m, b->files->dir, i, feature_bit(FEATURE_UNLIKE_EXPERTS), EXECUTOR_STEP, executor_features, b->err);
        w->expert_at = (const int64_t *)(const void *)table;
        w->piece = (size_t)piece;
        w->host_at = m->homes[i].host;
        table += expert_table_bytes(l);
    }
    return MOTE_OK;
}

/* What bind_model and loading allocate. */
static void weights_free(mote_model *m) {
    free(m->layers);
    free(m->vision.blocks);
    free(m->experts);
    free(m->homes);
    free(m->layer_bytes);
    free(m->kv_scales);
    free(m->frequencies);
    for (int i = 0; i < TABLES_MAX; i++) rows_close(m->tables[i]);
}

/* Refuses what the ranks of a part cannot divide. The MTP layer is of the last range. */
static int check_ranks(const mote_model *m, const char *dir, mote_error *err) {
    const int ranks = m->part.ranks;
    char where[32];
    int value = m->c.vocab;
    const vocab_share last = part_vocab(&m->part, value);
    const char *name = last.most * (ranks - 1) >= value ? "vocab" : NULL;
    layer_text(m, -1, where, sizeof where);
    for (int i = 0; i < m->c.layers + m->c.mtp_layers && !name; i++) {
        const layer *l = model_layer(m, i);
        name = sublayer_indivisible(&l->mixer, ranks, &value);
        if (!name) name = sublayer_indivisible(&l->ffn, ranks, &value);
        if (name) layer_text(m, i, where, sizeof where);
    }
    return name ? fail(err, MOTE_EUNSUPPORTED, "%s: %s%s = %d cannot be divided by %d ranks", dir, where, name, value, ranks) : MOTE_OK;
}

/* The layers as config.json has them, without tensors, each expert's matrices at their place. */
static void begin_layers(binder *b) {
    mote_model *m = b->m;
    size_t experts = 0;
    if (m->part.ranges == 1) m->part.end = m->c.layers;
    m->layers = (layer *)calloc((size_t)m->c.layers, sizeof *m->layers);
    for (int i = 0; i <= m->c.layers && m->layers; i++) {
        sublayer_begin(&model_layer(m, i)->mixer, &m->c.layer[i].mixer);
        sublayer_begin(&model_layer(m, i)->ffn, &m->c.layer[i].ffn);
        if (m->c.layer[i].ffn.kind == LAYER_MOE) experts += (size_t)m->c.layer[i].ffn.of.moe.experts + 1;
    }
    matrix *at = m->experts = m->layers ? (matrix *)calloc(3 * experts + 1, sizeof *m->experts) : NULL;
    m->homes = at ? (expert_home *)calloc((size_t)m->c.layers + 1, sizeof *m->homes) : NULL;
    if (!m->homes) b->code = fail_memory(b->err);
    for (int i = 0; i <= m->c.layers && at; i++) {
        moe_weights *w = &model_layer(m, i)->ffn.w.moe;
        if (m->c.layer[i].ffn.kind != LAYER_MOE) continue;
        w->gate_proj = at;
        w->up_proj = w->shape.squared_relu ? w->gate_proj : w->gate_proj + w->shape.experts + 1;
        w->down_proj = w->up_proj + w->shape.experts + 1;
        at = w->down_proj + w->shape.experts + 1;
    }
}

/* Notes what the layers take of the arena, and what is beside them. */
static void weigh_layers(binder *b) {
    mote_model *m = b->m;
    const load_item *items = (const load_item *)(void *)b->items.data;
    size_t sum = 0;
    m->layer_bytes = (uint64_t *)calloc((size_t)m->c.layers + 2, sizeof *m->layer_bytes);
    if (!m->layer_bytes) b->code = fail_memory(b->err);
    for (size_t i = 0; i < b->items.size / sizeof *items && !b->code; i++) {
        if (items[i].in_host) continue;
        m->layer_bytes[items[i].layer + 1] += item_capacity(&items[i]);
        sum += item_capacity(&items[i]);
    }
    m->arena_size = b->arena;
    if (!b->code) m->layer_bytes[m->c.layers + 1] += b->arena - sum;      /* the draft head and tables of experts */
}

/* Everything the model's family has. On success all tensors have a place in the arena. */
static void bind_model(binder *b, const mote_callbacks *callbacks) {
    mote_model *m = b->m;
    begin_layers(b);
    if (!b->code) b->code = check_ranks(m, b->files->dir, b->err);
    if (!b->code) family_bind(b, callbacks);
    m->has_mtp &= part_is_last(&m->part);
    for (int i = 0; i < m->c.layers + m->has_mtp && !b->code; i++) {
        layer *l = model_layer(m, i);
        if (!model_has_layer(m, i)) continue;
        sublayer_divide(&l->mixer, m->part.ranks);
        sublayer_divide(&l->ffn, m->part.ranks);
        sublayer_widen(&m->largest, &l->mixer);
        sublayer_widen(&m->largest, &l->ffn);
    }
    if (!b->code) bind_expert_tables(b);
    if (m->has_mtp) bind_draft_head(b);
    if (!b->code) b->code = check_device(b);
    if (!b->code) homes_choose(b);
    if (!b->code) weigh_layers(b);
}

/* Gives all weights their addresses, in the arena or in host memory. */
static int place_weights(binder *b, mote_error *err) {
    mote_model *m = b->m;
    int code = homes_pin(b, err);
    if (!code) code = arena_open(b, err);
    if (code) return code;
    if (embedding_is_head(m)) m->lm_head = m->embed_tokens;
    memcpy(m->draft_head.component, m->lm_head.component, sizeof m->draft_head.component);
    return place_experts(b);
}

enum { MTP_NEEDS = 5 };

/* The matrices without which an MTP layer drafts nothing. */
static void mtp_needed(const mote_model *m, const matrix *needed[MTP_NEEDS]) {
    const attention_weights *a = &m->mtp.layer.mixer.w.attention;
    const mla_weights *l = &m->mtp.layer.mixer.w.mla;
    const int latent = m->mtp.layer.mixer.kind == LAYER_MLA;
    needed[0] = &m->mtp.fc;
    needed[1] = latent ? &l->q_b_proj : &a->q_proj;
    needed[2] = latent ? &l->kv_a_proj : &a->k_proj;
    needed[3] = latent ? &l->v_b_proj : &a->v_proj;
    needed[4] = latent ? &l->o_proj : &a->o_proj;
}

/* An MTP layer with a weight that is no finite number, or with a projection of nothing but zeros, is left out: it would draft,
   but nothing that is ever accepted. */
static int check_mtp(binder *b, const mote_callbacks *callbacks, mote_error *err) {
    mote_model *m = b->m;
    const matrix *needed[MTP_NEEDS];
    const load_item *items = (const load_item *)(void *)b->items.data;
    mtp_needed(m, needed);
    for (size_t i = 0; i < b->items.size / sizeof *items && m->has_mtp; i++) {
        const load_item *item = &items[i];
        int code, needs = 0;
        unsigned seen = 0;
        if (item->module != MODULE_MTP) continue;
        for (int k = 0; k < MTP_NEEDS; k++) needs |= item_memory(m, item) == needed[k]->component[CODES];
        code = m->memory->scan(m, item, &seen, err);
        if (code) return code;
        const char *wrong = needs && !seen ? "is all zero" : NULL;
        if (seen & WEIGHTS_NOT_FINITE) wrong = "holds what is no finite number";
        if (!wrong) continue;
        notice(callbacks, "%s: MTP layer left out, nothing will be drafted: tensor %s %s", b->files->dir,
               table_name(&b->files->table, item->from), wrong);
        m->has_mtp = 0;
    }
    return MOTE_OK;
}

static int load_weights(binder *b, const mote_callbacks *callbacks, mote_error *err) {
    const weight_memory *memory = b->m->memory;
    int code = place_weights(b, err);
    if (code) return code;
    homes_notice(b, callbacks);
    qsort(b->items.data, b->items.size / sizeof(load_item), sizeof(load_item), by_place);
    code = memory->load(b, callbacks, err);
    if (!code) code = check_mtp(b, callbacks, err);
    for (int i = 0; i < TABLES_MAX && !code; i++) code = rows_sample(b->m->tables[i], &b->m->fingerprint, err);
    if (!code && memory->complete) code = memory->complete(b, err);
    if (!code) report(callbacks, "loading weights", 1);
    return code;
}
