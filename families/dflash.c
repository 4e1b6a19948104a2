/* families/dflash.c: block drafters, as DFlash: what config.json says, what their tensors are called. Not in the table of families: a
   drafter is no model that answers, it stands beside one, its target, and drafts several tokens at once.

   It takes the target's embedding and head and, of every token of the timeline, the target's residual after some of its layers, the taps.
   rms(x) = sqrt(mean(x^2) + eps), names are tensors':
     c = fc [residual after tap 0, after tap 1, ..];  c = c / rms(c) hidden_norm        of a token of the timeline: of it each layer keeps
         k, v = k_proj c, v_proj c;  k = rotate(k / rms(k) k_norm)
     x = [embedding of the next token, of the mask, of the mask, ..]                    a block, at the positions after the timeline
         through the layers, which are Qwen3's (families/qwen3.c); a row attends to the timeline's k and v, and to those of the block's rows
     logits = lm_head (x / rms(x) norm)                                                 row i drafts the token i places after the next one

   A config.json is often a copy of the target's: what it says of gates, of a part of a head that is rotated, and of layers that a drafter
   has not, means nothing. So not all keys outside of dflash_config are asked about; those of features that a drafter may have are. */

/* A number of a drafter: inside dflash_config, or beside it. */
static void dflash_int(config_reader *r, uint32_t inside, const char *key, int low, int high, int32_t *to) {
    const uint32_t own = inside ? config_get(r, inside, key) : 0;
    int value = 0, beside = 0;
    r->within = own ? "dflash_config." : NULL;
    config_int_of(r, own ? inside : 0, key, low, high, &value);
    r->within = NULL;
    if (own && config_get(r, 0, key)) {
        config_int_of(r, 0, key, low, high, &beside);
        if (!r->code && beside != value) config_fail(r, MOTE_EFORMAT, "%s is %d, but dflash_config.%s is %d", key, beside, key, value);
    }
    *to = value;
}

/* The layers of a list of taps, counted from `from` on, if it is there. A second list must name the same ones. */
static void dflash_tap_list(config_reader *r, uint32_t list, const char *key, int from, drafter_shape *d) {
    drafter_shape of = {.taps = 0};
    uint64_t layer = 0;
    if (r->code || !list || r->j->nodes[list].type == JSON_NULL) return;
    if (r->j->nodes[list].type != JSON_ARRAY || !r->j->nodes[list].size || r->j->nodes[list].size > DRAFTER_TAPS)
        config_fail(r, MOTE_EFORMAT, "%s must list 1 to %d layers of the target", key, DRAFTER_TAPS);
    for (uint32_t node = list + 1; !r->code && node < r->j->nodes[list].next; node = r->j->nodes[node].next) {
        if (!json_u64(r->j, node, &layer) || layer < (uint64_t)from || layer >= (uint64_t)(d->target_layers + from))
            config_fail(r, MOTE_EFORMAT, "%s[%d] must be a layer of the target, %d to %d", key, of.taps, from, d->target_layers - 1 + from);
        else of.tap[of.taps++] = (int32_t)layer - from;
    }
    if (r->code) return;
    if (d->taps && (d->taps != of.taps || memcmp(d->tap, of.tap, sizeof of.tap)))
        config_fail(r, MOTE_EFORMAT, "%s names other layers than the list of taps before it", key);
    d->taps = of.taps;
    memcpy(d->tap, of.tap, sizeof of.tap);
}

/* After which layers of the target the taps are. Those of speculators' files count from 1, as they count the embedding. */
static void dflash_taps(config_reader *r, uint32_t inside, drafter_shape *d) {
    static const char key[] = "target_layer_ids", own[] = "dflash_config.target_layer_ids", other[] = "aux_hidden_state_layer_ids";
    if (inside) dflash_tap_list(r, config_get(r, inside, key), own, 0, d);
    dflash_tap_list(r, config_get(r, 0, key), key, 0, d);
    dflash_tap_list(r, config_get(r, 0, other), other, 1, d);
    if (!r->code && !d->taps) config_fail(r, MOTE_EFORMAT, "%s must list 1 to %d layers of the target", key, DRAFTER_TAPS);
}

/* Whether rows of a block see those after them. In layers of full attention they do, in others not, unless a key says it for all. */
static void dflash_causal(config_reader *r, uint32_t inside, drafter_shape *d) {
    const struct { uint32_t node; const char *key; } said[] = {{inside ? config_get(r, inside, "causal") : 0, "dflash_config.causal"},
        {config_get(r, 0, "causal"), "causal"}, {config_get(r, 0, "is_causal"), "is_causal"}};
    int causal = -1;
    for (size_t i = 0; i < sizeof said / sizeof *said; i++) {
        if (!said[i].node || r->j->nodes[said[i].node].type == JSON_NULL) continue;
        const int is = config_flag(r, said[i].node, said[i].key, 0);
        if (!r->code && causal >= 0 && is != causal) config_fail(r, MOTE_EFORMAT, "%s contradicts another key: is the drafter causal or not?", said[i].key);
        causal = is;
    }
    d->causal[0] = causal > 0;
    d->causal[1] = causal != 0;
}

/* All layers, which differ in their windows alone. */
static void dflash_layers(config_reader *r, config *c) {
    static const char *const words[] = {"full_attention", "sliding_attention"};
    config_layer l = config_layer_of(LAYER_ATTENTION, LAYER_MLP);
    attention_shape *a = &l.mixer.of.attention;
    const uint32_t slides = config_get(r, r->text, "use_sliding_window");
    common_mlp(r, c, &l.ffn.of.mlp);
    common_attention(r, c, a, 0);
    common_rope(r, c, &l, 1, 1e4f);
    a->normed = 1;
    a->rotary_dim = a->head_dim;
    if (!r->code && l.rope.kind != ROPE_PLAIN) config_fail(r, MOTE_EUNSUPPORTED, "a scaled rope is not supported in a drafter");
    if (!r->code && a->head_dim % 2) config_fail(r, MOTE_EFORMAT, "head_dim = %d must be even", a->head_dim);
    if (!config_get(r, r->text, "layer_types") && config_flag(r, slides, "use_sliding_window", 0) && !r->code)
        config_fail(r, MOTE_EUNSUPPORTED, "use_sliding_window is true, but there are no layer_types");
    for (int i = 0; i < c->layers && !r->code; i++) {
        c->layer[i] = l;
        if (!common_layer_word(r, c, "layer_types", i, words, 2, 0) || r->code) continue;
        if (!config_flag(r, slides, "use_sliding_window", 1))
            config_fail(r, MOTE_EUNSUPPORTED, "use_sliding_window is false, but layer_types[%d] is sliding_attention", i);
        else config_int(r, "sliding_window", 1, INT_MAX, &c->layer[i].mixer.of.attention.window);
    }
}

/* Drafters of other kinds, and what they have. */
static void dflash_refuse(config_reader *r, uint32_t inside, const config *c) {
    int drafted = c->vocab;
    config_int_or(r, "draft_vocab_size", 1, 1 << 24, c->vocab, &drafted);
    if (!r->code && drafted != c->vocab)
        config_fail(r, MOTE_EUNSUPPORTED, "draft_vocab_size is %d of vocab_size = %d: a drafter with a vocabulary of its own is not supported",
                    drafted, c->vocab);
    config_only(r, r->text, "hidden_act", "silu|swish");
    config_only(r, r->text, "attention_bias", "false");
    config_only(r, r->text, "mlp_bias", "false");
    config_only(r, r->text, "final_logit_softcapping", "null");
    config_only(r, 0, "projector_type", "dflash");
    config_only(r, 0, "output_multiplier", "1");
    config_only(r, 0, "sample_from_anchor", "false");
    if (inside) config_unread(r, inside, "dflash_config.");
}

/* Whether config.json is of a block drafter at all: a model's folder must not be taken for a damaged one. */
static void dflash_recognise(config_reader *r) {
    static const char *const keys[] = {"dflash_config", "block_size", "aux_hidden_state_layer_ids"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (config_get(r, 0, keys[i])) return;
    if (!r->code)
        config_fail(r, MOTE_EUNSUPPORTED, "there is neither dflash_config nor block_size: a model of its own, or another drafter, and no block drafter (DFlash)");
}

static void dflash_read(config_reader *r, config *c) {
    uint32_t inside = config_get(r, 0, "dflash_config");
    drafter_shape *d = &c->drafter;
    if (inside && r->j->nodes[inside].type != JSON_OBJECT) config_fail(r, MOTE_EFORMAT, "dflash_config is not an object");
    if (r->code) return;
    if (inside) config_few_keys(r, inside);
    common_limits(r, c, 32768, 1e-6f);
    dflash_int(r, inside, "block_size", 2, DRAFTER_BLOCK, &d->block);
    dflash_int(r, inside, "mask_token_id", 0, c->vocab - 1, &d->mask);
    dflash_int(r, inside, "num_target_layers", 1, 1 << 12, &d->target_layers);
    dflash_taps(r, inside, d);
    dflash_causal(r, inside, d);
    dflash_layers(r, c);
    dflash_refuse(r, inside, c);
}

/* Tensors by which a drafter is seen to be of another kind: no words of config.json tell it reliably. */
static void dflash_check(binder *b) {
    static const struct { const char *part, *is; } others[] = {
        {"markov", "a drafter whose drafts depend on each other (DSpark)"},
        {"confidence", "a drafter with a confidence head (DSpark)"},
        {"base_kernel", "a drafter with convolutions (DFlash2)"},
        {"kernel_projection", "a drafter with convolutions (DFlash2)"},
        {"selector", "a drafter that selects among candidates (DFlash2)"},
        {"codebook", "a drafter that selects among candidates (DFlash2)"},
        {"embed_tokens", "a drafter with an embedding of its own"},
        {"lm_head", "a drafter with a head of its own"},
        {"d2t", "a drafter with a vocabulary of its own"}};
    const tensor_table *table = &b->files->table;
    for (size_t i = 0; i < table_count(table) && !b->code; i++) {
        const char *name = table_name(table, table_at(table, i));
        for (size_t k = 0; k < sizeof others / sizeof *others && !b->code; k++)
            if (strstr(name, others[k].part))
                b->code = fail(b->err, MOTE_EUNSUPPORTED, "%s: tensor %s: %s is not supported", b->files->dir, name, others[k].is);
    }
}

/* Queries with gates, which are twice as many rows: then other things that config.json says would count, too. */
static void dflash_check_gates(binder *b) {
    const attention_shape *s = &b->m->layers[0].mixer.w.attention.shape;
    char name[160];
    snprintf(name, sizeof name, "%slayers.0.self_attn.q_proj.weight", b->prefix);
    const tensor *t = b->code ? NULL : bind_tensor(b, name);
    if (t && t->dims == 2 && t->shape[0] == 2 * (uint64_t)s->heads * (uint64_t)s->head_dim)
        b->code = fail(b->err, MOTE_EUNSUPPORTED, "%s: tensor %s: a drafter with gated queries is not supported", b->files->dir, name);
}

/* fc by its taps, as the target comes to them one after the other. */
static void dflash_bind_taps(binder *b) {
    mote_model *m = b->m;
    tensor_slice of = slice_all(m->c.hidden, m->c.drafter.taps * m->c.hidden);
    of.width = m->c.hidden;
    for (int k = 0; k < m->c.drafter.taps; k++, of.col += of.width) bind_slice(b, b->prefix, "fc.weight", &of, 0, &m->tap_fc[k]);
}

static void dflash_bind(binder *b) {
    mote_model *m = b->m;
    const int hidden = m->c.hidden;
    dflash_check(b);
    common_name_prefix(b, "fc.", "", b->prefix, sizeof b->prefix);
    dflash_check_gates(b);
    for (int i = 0; i < m->c.layers && !b->code; i++) plain_bind_dense_layer(b, i, &m->layers[i]);
    bind_for_layer(b, m->c.layers);
    bind_as(b, MODULE_MLP, 1, 1);
    dflash_bind_taps(b);
    bind_as(b, MODULE_NORMS, 1, 1);
    bind_vector(b, b->prefix, "hidden_norm.weight", &m->tap_norm, hidden);
    bind_vector(b, b->prefix, "norm.weight", &m->norm, hidden);
}

static const model_family dflash_family = {.name = "dflash", .types = NULL, .read = dflash_read, .bind = dflash_bind};
