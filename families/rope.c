/* families/rope.c: how positions turn queries and keys: keys of config.json -> rotary frequencies.

   Frequency i of d rotated dimensions is f = theta^(-2 i / d). A model that was made for L positions and reads `factor` times as many
   lowers those that turn slowly. With n = L f / (2 pi), the turns within L:
     llama3   f where n > high_freq_factor, f / factor where n < low_freq_factor, between them a mean of both, f weighted by
              (n - low) / (high - low)
     YaRN     f where n > beta_fast, f / factor where n < beta_slow, between them a mean whose weights are linear in i. And cos
              and sin are multiplied by attention_factor, or 0.1 ln(factor) + 1
   A proportional rope has d = head_dim, of which only the first partial_rotary_factor d / 2 frequencies are f / factor, and the others 0. */

/* Keys of an object that says how positions turn: rope_parameters, or rope_scaling, as it was called before, or one in rope_parameters. With
   text alone mrope is no scaling. Of both names of a type rope_type counts. 0: there is none, or nothing in it. */
static uint32_t rope_object(config_reader *r, uint32_t parent, const char *key, const char *within, enum rope_kind *kind) {
    static const struct { const char *name; enum rope_kind kind; } kinds[] = {
        {"default", ROPE_PLAIN}, {"mrope", ROPE_PLAIN}, {"llama3", ROPE_LLAMA3}, {"yarn", ROPE_YARN}, {"proportional", ROPE_PROPORTIONAL}};
    static const char *const names[] = {"type", "rope_type"}, all[] = "default, llama3, yarn or proportional";
    uint32_t object = config_get(r, parent, key);
    int typed = 0;
    *kind = ROPE_PLAIN;
    if (!object || r->j->nodes[object].type != JSON_OBJECT) {
        config_only(r, parent, key, "null");
        return 0;
    }
    if (!r->j->nodes[object].size) return 0;
    config_few_keys(r, object);
    r->within = within;
    for (int i = 0; i < 2; i++) {
        uint32_t type = config_get(r, object, names[i]);
        int known = 0;
        for (size_t k = 0; type && k < sizeof kinds / sizeof *kinds; k++)
            if (config_is(r->j, type, kinds[k].name)) *kind = kinds[k].kind, known = typed = 1;
        if (!known) config_only(r, object, names[i], all);
    }
    const uint32_t factor = typed ? 0 : config_get(r, object, "factor");
    if (factor && !r->code && r->j->nodes[factor].type != JSON_NULL)
        config_fail(r, MOTE_EUNSUPPORTED, "%sfactor without rope_type: mote supports %s", within, all);
    r->within = NULL;
    return object;
}

/* A number of a scaled rope; where it is absent, or null, `fallback`, and if that is 0 it must be there. */
static void rope_float(config_reader *r, uint32_t object, const char *key, double low, double high, float fallback, float *out) {
    uint32_t node = config_get(r, object, key);
    *out = fallback;
    if (node && r->j->nodes[node].type != JSON_NULL) config_float(r, object, key, low, high, fallback, out);
    else if (!r->code && fallback == 0)
        config_fail(r, MOTE_EFORMAT, "%s%s is missing", r->within, key);
}

/* llama3's share of factor on cos and sin is 1. YaRN's, unless attention_factor says it: of two mscales, which DeepSeek has, the ratio. */
static float yarn_factor(config_reader *r, uint32_t object, float factor) {
    const float grown = factor > 1 ? 0.1f * logf(factor) : 0;
    float one = 1, all = 1, given;
    if (config_get(r, object, "mscale") && config_get(r, object, "mscale_all_dim")) {
        config_float(r, object, "mscale", 0, 1e3, 1, &one);
        config_float(r, object, "mscale_all_dim", 0, 1e3, 1, &all);
    } else {
        all = 0;
    }
    if (one == 0 || all == 0) one = 1, all = 0;
    rope_float(r, object, "attention_factor", 1e-3, 1e3, (one * grown + 1) / (all * grown + 1), &given);
    return given;
}

/* The context before it grew may stand beside the object, too. Two that differ are refused: transformers keeps the object's when it
   reads config.json, and takes the other when it makes the model. */
static void rope_original(config_reader *r, uint32_t object, float *original) {
    static const char key[] = "original_max_position_embeddings";
    const char *within = r->within;
    const uint32_t outer = config_get(r, r->text, key);
    float beside = 0;
    r->within = "";
    if (outer && r->j->nodes[outer].type != JSON_NULL) rope_float(r, r->text, key, 1, 1 << 24, 0, &beside);
    r->within = within;
    rope_float(r, object, key, 1, 1 << 24, beside, original);
    if (!r->code && beside != 0 && beside != *original)
        config_fail(r, MOTE_EFORMAT, "%s is %g, but %s%s is %g", key, (double)beside, within, key, (double)*original);
}

/* What scaling needs. YaRN's factor is also what the context grows by. */
static void rope_scaled(config_reader *r, uint32_t object, config *c, config_layer *l) {
    rope_shape *to = &l->rope;
    const uint32_t truncate = config_get(r, object, "truncate");
    const int yarn = to->kind == ROPE_YARN;
    rope_float(r, object, "factor", 1, 1e4, to->kind == ROPE_PROPORTIONAL ? 1 : 0, &to->factor);
    if (to->kind == ROPE_PROPORTIONAL) return;
    rope_original(r, object, &to->original);
    rope_float(r, object, yarn ? "beta_slow" : "low_freq_factor", 1e-3, 1e4, yarn ? 1 : 0, &to->slow);
    rope_float(r, object, yarn ? "beta_fast" : "high_freq_factor", 1e-3, 1e4, yarn ? 32 : 0, &to->fast);
    config_only(r, object, "llama_4_scaling_beta", "null");
    if (!r->code && to->slow >= to->fast)
        config_fail(r, MOTE_EFORMAT, "%s%s must be below %s", r->within, yarn ? "beta_slow" : "low_freq_factor",
                    yarn ? "beta_fast" : "high_freq_factor");
    if (r->code || !yarn) return;
    to->truncate = config_flag(r, truncate, "truncate", 1);
    l->mixer.of.attention.rope_scale = yarn_factor(r, object, to->factor);
    if (to->original * to->factor > (float)c->context_max) c->context_max = (int)fminf(to->original * to->factor, 1 << 24);
}

/* Of one object, or of none (0): the rope, and the share of head_dim that is rotated. What is absent there counts as it stands beside
   the object, as in transformers. */
static void rope_read(config_reader *r, config *c, config_layer *l, uint32_t object, const char *within, float *part, float theta) {
    l->mixer.of.attention.rope_scale = 1;
    r->within = within;
    if (l->rope.kind != ROPE_PLAIN) rope_scaled(r, object, c, l);
    r->within = NULL;
    config_float(r, r->text, "partial_rotary_factor", 0, 1, *part, part);
    config_float(r, r->text, "rope_theta", 1, 1e12, theta, &l->rope.theta);
    r->within = within;
    if (object) config_float(r, object, "partial_rotary_factor", 0, 1, *part, part);
    if (object) config_float(r, object, "rope_theta", 1, 1e12, l->rope.theta, &l->rope.theta);
    r->within = NULL;
}

/* How many dimensions are rotated, of this share of head_dim. A proportional rope rotates all, most of them by nothing. */
static void rope_rotated(config_reader *r, config_layer *l, float part) {
    attention_shape *a = &l->mixer.of.attention;
    if (r->code) return;
    a->rotary_dim = (int)((float)a->head_dim * part);
    if (l->rope.kind == ROPE_PROPORTIONAL) {
        l->rope.turning = a->rotary_dim / 2;
        a->rotary_dim = l->rope.turning ? a->head_dim : 0;
    }
    if (a->rotary_dim % 2)
        config_fail(r, MOTE_EUNSUPPORTED, "partial_rotary_factor rotates %d dimensions of %d, an odd number", a->rotary_dim, a->head_dim);
}

/* The rope of an attention layer. part: the share of head_dim that is rotated, where config.json does not say; theta: the base,
   likewise. Two objects must say the same; a base, or that share, one of them alone may say. */
static void common_rope(config_reader *r, config *c, config_layer *l, float part, float theta) {
    static const char *const within[] = {"rope_parameters.", "rope_scaling."};
    enum rope_kind kind, older;
    attention_shape *a = &l->mixer.of.attention;
    const uint32_t parameters = rope_object(r, r->text, "rope_parameters", within[0], &kind);
    const uint32_t scaling = rope_object(r, r->text, "rope_scaling", within[1], &older);
    float other_part;
    if (!r->code && parameters && scaling && kind != older)
        config_fail(r, MOTE_EFORMAT, "rope_parameters and rope_scaling are of different types");
    l->rope.kind = parameters ? kind : older;
    config_only(r, r->text, "rope_type", "default");
    rope_read(r, c, l, parameters ? parameters : scaling, within[!parameters], &part, theta);
    const config_layer first = *l;
    other_part = part;
    if (parameters && scaling) rope_read(r, c, l, scaling, within[1], &other_part, l->rope.theta);
    const int same = !memcmp(&first.rope, &l->rope, sizeof l->rope) && first.mixer.of.attention.rope_scale == a->rope_scale;
    if (!r->code && (!same || part != other_part))
        config_fail(r, MOTE_EFORMAT, "rope_parameters and rope_scaling say different things");
    rope_rotated(r, l, part);
}

/* Refuses rope_parameters that are not an object for each type of layers, and nothing else. */
static void rope_check_types(config_reader *r, uint32_t all, const char *const *types, int count) {
    const json_node *nodes = r->j->nodes;
    char known[128];
    for (uint32_t k = all + 1; !r->code && k < nodes[all].next; k = nodes[k + 1].next) {
        int is = 0;
        for (int i = 0; i < count; i++) is |= json_equals(r->j, k, types[i]);
        if (!is || nodes[k + 1].type != JSON_OBJECT)
            config_fail(r, MOTE_EUNSUPPORTED, "rope_parameters.%.*s: mote expects an object for each of %s there, and nothing else",
                        nodes[k].size < 60 ? (int)nodes[k].size : 60, r->j->text + nodes[k].start,
                        names_text(known, sizeof known, types, count, ", ", " and "));
    }
}

/* The same of a layer whose type is number `type` of `count`, each of which has an object of its own in rope_parameters. part, theta: of that
   type, where config.json has no rope_parameters. */
static void common_rope_of_type(config_reader *r, config *c, config_layer *l, const char *const *types, int count, int type, float part,
                                float theta) {
    char within[64];
    enum rope_kind kind = ROPE_PLAIN;
    const uint32_t all = config_get(r, r->text, "rope_parameters");
    snprintf(within, sizeof within, "rope_parameters.%s.", types[type]);
    l->rope.theta = theta;
    l->mixer.of.attention.rope_scale = 1;
    if (all && !r->code && r->j->nodes[all].type == JSON_OBJECT) {
        rope_check_types(r, all, types, count);
        const uint32_t own = rope_object(r, all, types[type], within, &kind);
        if (!r->code && !own) config_fail(r, MOTE_EFORMAT, "rope_parameters.%s is missing, or empty", types[type]);
        if (r->code) return;
        l->rope.kind = kind;
        rope_read(r, c, l, own, within, &part, theta);
        config_only(r, own, "truncate", "true");       /* transformers looks for it elsewhere, and so truncates */
    } else config_only(r, r->text, "rope_parameters", "null");
    config_only(r, r->text, "rope_scaling", "null");
    rope_rotated(r, l, part);
}

/* M-RoPE: how many frequencies take the time, the height and the width of a position; they alternate, whatever mrope_interleaved says. */
static void rope_sections(config_reader *r, rope_shape *to) {
    static const char *const objects[] = {"rope_scaling", "rope_parameters"};
    uint64_t of[ROW_AXES] = {11, 11, 10};
    for (int i = 0; i < 2 && !r->code; i++) {
        const uint32_t object = config_get(r, r->text, objects[i]);
        const uint32_t list = object && r->j->nodes[object].type == JSON_OBJECT ? config_get(r, object, "mrope_section") : 0;
        if (!list || r->j->nodes[list].type == JSON_NULL) continue;
        int three = r->j->nodes[list].type == JSON_ARRAY && r->j->nodes[list].size == ROW_AXES;
        for (int k = 0; k < ROW_AXES && three; k++) three = json_u64(r->j, list + 1 + (uint32_t)k, &of[k]) && of[k] <= 1 << 16;
        if (!three) config_fail(r, MOTE_EFORMAT, "%s.mrope_section must be three whole numbers", objects[i]);
    }
    to->height = ROW_AXES * (int)of[1];
    to->width = ROW_AXES * (int)of[2];
}

/* How many dimensions of a head are rotated; 0: none, or it is no attention. */
static int rope_dim(const config_layer *l) {
    if (l->mixer.kind == LAYER_MLA) return l->mixer.of.mla.rope_dim;
    return l->mixer.kind == LAYER_ATTENTION ? l->mixer.of.attention.rotary_dim : 0;
}

/* The i of d rotated dimensions that turns so many times within the original context. */
static double yarn_place(const rope_shape *p, int d, double turns) {
    return d * log((double)p->original / (turns * 2 * M_PI)) / (2 * log((double)p->theta));
}

/* How much of frequency i stays as it is: 1 all, 0 nothing. */
static double rope_kept(const rope_shape *p, int d, int i, double frequency) {
    double first, last, kept;
    if (p->kind == ROPE_PROPORTIONAL) return 0;
    if (p->kind == ROPE_LLAMA3) {
        kept = ((double)p->original * frequency / (2 * M_PI) - (double)p->slow) / ((double)p->fast - (double)p->slow);
    } else {
        first = yarn_place(p, d, (double)p->fast);
        last = yarn_place(p, d, (double)p->slow);
        if (p->truncate) first = floor(first), last = ceil(last);
        first = fmax(first, 0);
        last = fmin(last, d - 1);
        kept = 1 - (i - first) / (last == first ? 0.001 : last - first);
    }
    return kept > 1 ? 1 : kept > 0 ? kept : 0;
}

/* The frequencies of d rotated dimensions. They are single precision, as models were trained with. */
static void rope_frequencies(const rope_shape *p, int d, float *to) {
    for (int i = 0; i < d / 2; i++) {
        to[i] = p->turning && i >= p->turning ? 0 : 1.0f / powf(p->theta, (float)(2 * i) / (float)d);
        if (p->kind == ROPE_PLAIN || to[i] == 0) continue;
        const double frequency = pow((double)p->theta, -2.0 * i / d), kept = rope_kept(p, d, i, frequency);
        to[i] = (float)(frequency * kept + frequency / (double)p->factor * (1 - kept));
    }
}

/* Makes the frequencies of each attention layer. */
static void bind_frequencies(binder *b) {
    mote_model *m = b->m;
    size_t all = 0;
    for (int i = 0; i <= m->c.layers; i++) all += (size_t)rope_dim(&m->c.layer[i]) / 2;
    float *to = m->frequencies = (float *)malloc((all + 1) * sizeof *to);
    if (!to) b->code = fail_memory(b->err);
    for (int i = 0; i <= m->c.layers && to; i++) {
        const config_layer *l = &m->c.layer[i];
        if (!rope_dim(l)) continue;
        layer_weights *w = &model_layer(m, i)->mixer.w;
        if (l->mixer.kind == LAYER_MLA) {
            w->mla.frequencies = to;
        } else {
            w->attention.frequencies = to;
            w->attention.axes.height = l->rope.height;
            w->attention.axes.width = l->rope.width;
        }
        rope_frequencies(&l->rope, rope_dim(l), to);
        to += rope_dim(l) / 2;
    }
}
