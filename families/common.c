/* families/common.c: tensors that several families have, by their names. Knows the weights of layers, and nothing of any one family. */

/* Whether a name has this part, "mtp.", at its beginning or after a dot. Checkpoints differ in what they put before it. */
static int has_part(const char *name, const char *part) {
    const char *at = strstr(name, part);
    return at && (at == name || at[-1] == '.');
}

/* Whether it is a tensor of what reads images and sound. */
static int of_a_tower(const char *name) {
    static const char *const parts[] = {"visual.", "vision_tower.", "embed_vision.", "audio_tower.", "embed_audio."};
    int is = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) is |= has_part(name, parts[i]);
    return is;
}

/* Whether it is a tensor of a layer, or of the vision tower: what stands around the layers may be called as in these. */
static int of_a_layer(const char *name) {
    return has_part(name, "layers.") || has_part(name, "mtp.") || of_a_tower(name);
}

/* The prefix of `part` in the name of the first tensor of the text model that has it; otherwise `none`. */
static void common_name_prefix(const binder *b, const char *part, const char *none, char *prefix, size_t size) {
    const tensor_table *table = &b->files->table;
    snprintf(prefix, size, "%s", none);
    for (size_t i = 0; i < table_count(table); i++) {
        const char *name = table_name(table, table_at(table, i));
        const size_t n = has_part(name, part) ? (size_t)(strstr(name, part) - name) : size;
        if (n >= size || of_a_layer(name)) continue;
        snprintf(prefix, size, "%.*s", (int)n, name);
        return;
    }
}

/* How a family keeps its norms' weights: bind_vector or bind_zero_centered. */
typedef void norm_binder(binder *b, const char *where, const char *what, const float **v, int n);

/* What is around a layer's sublayers: their norms, by their names. The MTP layer is bound as MODULE_MTP by the caller. */
static void common_bind_norms(binder *b, const char *where, layer *l, norm_binder *bind_norm) {
    if (b->kind != MODULE_MTP) bind_as(b, MODULE_NORMS, 1, 1);
    bind_norm(b, where, "input_layernorm.weight", &l->mixer.norm, b->m->c.hidden);
    bind_norm(b, where, "post_attention_layernorm.weight", &l->ffn.norm, b->m->c.hidden);
}

/* The gates of heads, a small matrix: quantising leaves it as it is. */
static void common_bind_gates(binder *b, const char *where, attention_weights *w) {
    tensor_slice all = slice_all(w->shape.heads * w->shape.gate_size, w->shape.hidden);
    slice_divide(b, &all, DIVIDED_ROWS);
    bind_slice(b, where, "self_attn.g_proj.weight", &all, 1, &w->g_proj);
}

/* The MTP layer is bound as MODULE_MTP by the caller, the others as MODULE_ATTENTION. */
static void common_bind_attention(binder *b, const char *where, attention_weights *w, norm_binder *bind_norm) {
    static const char *const k_scales[] = {"self_attn.k_proj.k_scale", "self_attn.k_scale", "self_attn.k_proj.output_scale"};
    static const char *const v_scales[] = {"self_attn.v_proj.v_scale", "self_attn.v_scale", "self_attn.v_proj.output_scale"};
    const attention_shape *s = &w->shape;
    const int queries = s->heads * attention_q_size(s), kv = s->kv_heads * s->head_dim;
    bind_matrix(b, where, "self_attn.q_proj.weight", &w->q_proj, queries, s->hidden, DIVIDED_ROWS);
    bind_matrix(b, where, "self_attn.k_proj.weight", &w->k_proj, kv, s->hidden, DIVIDED_ROWS);
    if (!s->v_of_k) bind_matrix(b, where, "self_attn.v_proj.weight", &w->v_proj, kv, s->hidden, DIVIDED_ROWS);
    if (s->gate_size) common_bind_gates(b, where, w);
    if (s->normed) bind_norm(b, where, "self_attn.q_norm.weight", &w->q_norm, s->head_dim);
    if (s->normed) bind_norm(b, where, "self_attn.k_norm.weight", &w->k_norm, s->head_dim);
    bind_kv_scale(b, where, k_scales, 3, &w->k_scale);
    bind_kv_scale(b, where, v_scales, 3, &w->v_scale);
    bind_unneeded(b, where, "self_attn.q_scale");              /* queries are not quantised */
    bind_unneeded(b, where, "self_attn.prob_scale");
    if (b->kind == MODULE_MTP) bind_as(b, MODULE_MTP, 0, 1);       /* from here on only read when the MTP layer drafts */
    bind_matrix(b, where, "self_attn.o_proj.weight", &w->o_proj, s->hidden, s->heads * s->head_dim, DIVIDED_COLS);
    if (!s->biased) return;
    bind_divided_bias(b, where, "self_attn.q_proj.bias", &w->q_proj, queries, DIVIDED_ROWS);
    bind_divided_bias(b, where, "self_attn.k_proj.bias", &w->k_proj, kv, DIVIDED_ROWS);
    if (!s->v_of_k) bind_divided_bias(b, where, "self_attn.v_proj.bias", &w->v_proj, kv, DIVIDED_ROWS);
    bind_divided_bias(b, where, "self_attn.o_proj.bias", &w->o_proj, s->hidden, DIVIDED_COLS);
}

/* A dense FFN. The MTP layer is bound as MODULE_MTP by the caller, the others as MODULE_MLP. */
static void common_bind_mlp(binder *b, const char *where, mlp_weights *w) {
    const mlp_shape *s = &w->shape;
    if (b->kind != MODULE_MTP) bind_as(b, MODULE_MLP, 1, 1);
    bind_matrix(b, where, "mlp.gate_proj.weight", &w->gate_proj, s->size, s->hidden, DIVIDED_ROWS);
    bind_matrix(b, where, "mlp.up_proj.weight", &w->up_proj, s->size, s->hidden, DIVIDED_ROWS);
    bind_matrix(b, where, "mlp.down_proj.weight", &w->down_proj, s->hidden, s->size, DIVIDED_COLS);
}

/* Experts in one tensor each for all of a layer: gate_up_proj [E][2 size][hidden], gate rows first, and down_proj. */
static void common_bind_experts_stacked(binder *b, const char *all, moe_weights *w) {
    const moe_shape *s = &w->shape;
    tensor_slice up = slice_all(2 * s->expert_size, s->hidden), down = slice_all(s->hidden, s->expert_size);
    up.entries = down.entries = s->experts;
    slice_divide(b, &up, DIVIDED_ROWS);
    slice_divide(b, &down, DIVIDED_COLS);
    for (int e = 0; e < s->experts && !b->code; e++) {
        up.entry = down.entry = e;
        up.runs = rows_of(&up, 1, 0, s->expert_size);
        bind_slice(b, all, ".gate_up_proj", &up, 0, &w->gate_proj[e]);
        up.runs = rows_of(&up, 1, s->expert_size, s->expert_size);
        bind_slice(b, all, ".gate_up_proj", &up, 0, &w->up_proj[e]);
        bind_slice(b, all, ".down_proj", &down, 0, &w->down_proj[e]);
    }
}

/* Experts one by one: gate_proj, up_proj and down_proj of each. */
static void common_bind_experts_single(binder *b, const char *all, moe_weights *w) {
    const moe_shape *s = &w->shape;
    for (int e = 0; e < s->experts && !b->code; e++) {
        char expert[192];
        snprintf(expert, sizeof expert, "%s.%d.", all, e);
        bind_matrix(b, expert, "gate_proj.weight", &w->gate_proj[e], s->expert_size, s->hidden, DIVIDED_ROWS);
        bind_matrix(b, expert, "up_proj.weight", &w->up_proj[e], s->expert_size, s->hidden, DIVIDED_ROWS);
        bind_matrix(b, expert, "down_proj.weight", &w->down_proj[e], s->hidden, s->expert_size, DIVIDED_COLS);
    }
}

/* The experts called so, "model.layers.0.mlp.experts", stored in either way. */
static void common_bind_experts_of(binder *b, const char *all, moe_weights *w) {
    b->together = all;
    if (bind_has(b, all, ".gate_up_proj")) common_bind_experts_stacked(b, all, w);
    else common_bind_experts_single(b, all, w);
    b->together = NULL;
}

static void common_bind_experts(binder *b, const char *where, moe_weights *w) {
    char all[192];
    snprintf(all, sizeof all, "%smlp.experts", where);
    common_bind_experts_of(b, all, w);
}

/* The expert that runs for every token; where: what its names begin with, "model.layers.0.mlp.shared_expert.". */
static void common_bind_shared_expert(binder *b, const char *where, moe_weights *w) {
    const moe_shape *s = &w->shape;
    bind_matrix(b, where, "gate_proj.weight", &w->gate_proj[s->experts], s->shared_size, s->hidden, DIVIDED_ROWS);
    bind_matrix(b, where, "up_proj.weight", &w->up_proj[s->experts], s->shared_size, s->hidden, DIVIDED_ROWS);
    bind_matrix(b, where, "down_proj.weight", &w->down_proj[s->experts], s->hidden, s->shared_size, DIVIDED_COLS);
}

/* Experts with a router that may be corrected, and a shared expert without a gate, if there is one. correction, shared: their names
   after that of the layer, "mlp.gate.e_score_correction_bias" and "mlp.shared_experts.". The MTP layer is bound as MODULE_MTP by the caller. */
static void common_bind_moe(binder *b, const char *where, const char *correction, const char *shared, moe_weights *w) {
    const moe_shape *s = &w->shape;
    const int mtp = b->kind == MODULE_MTP;
    char expert[192];
    if (!mtp) bind_as(b, MODULE_ROUTER, 1, 1);
    bind_kept(b, where, "mlp.gate.weight", &w->router, s->experts, s->hidden);
    if (s->corrected) bind_vector(b, where, correction, &w->correction, s->experts);
    if (!mtp) bind_as(b, MODULE_EXPERTS, (uint64_t)s->top_k, (uint64_t)s->experts);
    common_bind_experts(b, where, w);
    if (!s->shared_size) return;
    if (!mtp) bind_as(b, MODULE_SHARED, 1, 1);
    snprintf(expert, sizeof expert, "%s%s", where, shared);
    common_bind_shared_expert(b, expert, w);
}

/* Where config.json ties the head to the embedding and the folder has a head nevertheless, another one: it is what counts, as in
   transformers. The embedding once more is left out (common_leftovers). */
static void common_untie(binder *b, const mote_callbacks *callbacks) {
    const tensor_table *table = &b->files->table;
    const tensor *head = NULL, *embed = NULL, *other = NULL;
    int equal = 0;
    if (b->code || !b->m->c.tied) return;
    for (size_t i = 0; i < table_count(table); i++) {
        const tensor *t = table_at(table, i);
        const char *name = table_name(table, t);
        if (t->type < 0 || of_a_layer(name)) continue;
        if (has_part(name, "embed_tokens.weight")) embed = t;
        else if (has_part(name, "lm_head.weight") && !strcmp(strstr(name, "lm_head."), "lm_head.weight")) head = t;
        else if (has_part(name, "lm_head.")) other = t;
    }
    if (head && embed && !other) b->code = checkpoint_equal(b->files, head, embed, 1, &equal, b->err);
    if (b->code || equal || !(head || other)) return;
    b->m->c.tied = 0;
    notice(callbacks, "%s/config.json: tie_word_embeddings is true, but tensor %s is another than the embedding's: it is used",
           b->files->dir, table_name(table, head ? head : other));
}

/* Embedding, head and final norm, the first and the last by their names after b->prefix; bind_norm NULL: there is no norm. */
static void common_bind_ends_of(binder *b, const char *embedding, const char *norm, norm_binder *bind_norm) {
    mote_model *m = b->m;
    const config *c = &m->c;
    common_name_prefix(b, "lm_head.", "", b->head_prefix, sizeof b->head_prefix);
    bind_for_layer(b, EMBEDDING);
    bind_as(b, MODULE_EMBED, 1, embedding_is_head(m) ? 1 : (uint64_t)c->vocab);
    bind_vocab(b, b->prefix, embedding, 1, &m->embed_tokens, ranks_embed_alone(m));
    bind_for_layer(b, c->layers);
    bind_as(b, MODULE_HEAD, 1, 1);
    if (embedding_is_head(m)) m->lm_head = m->embed_tokens;
    else if (c->tied) bind_vocab(b, b->prefix, embedding, m->quantize != MOTE_QUANTIZE_HEAD_FP8, &m->lm_head, 0);
    else bind_vocab(b, b->head_prefix, "lm_head.weight", 0, &m->lm_head, 0);
    bind_as(b, MODULE_NORMS, 1, 1);
    if (bind_norm) bind_norm(b, b->prefix, norm, &m->norm, c->hidden);
}

static void common_bind_ends(binder *b, norm_binder *bind_norm) {
    common_name_prefix(b, "embed_tokens.", "model.", b->prefix, sizeof b->prefix);
    common_bind_ends_of(b, "embed_tokens.weight", "norm.weight", bind_norm);
}

/* A tensor that an MTP layer has once more, in place of which the model's own of this name is used: the layer is left out if they are
   seen to differ. */
static void common_bind_copy(binder *b, const char *where, const char *what, const char *own) {
    int equal = 1;
    snprintf(b->name, sizeof b->name, "%s%s", where, what);
    tensor *copy = b->code || b->publishes ? NULL : bind_tensor(b, b->name);
    const tensor *of = bind_tensor(b, own);
    if (!copy) return;
    copy->used = 1;
    if (of) b->code = checkpoint_equal(b->files, copy, of, 64, &equal, b->err);
    if (b->code || equal) return;
    b->code = fail(b->err, MOTE_EFORMAT, "%s: tensor %s differs from %s", b->files->dir, b->name, own);
    snprintf(b->missing, sizeof b->missing, "%s", b->name);
    b->differs = 1;
}

/* Binds what a model can do without, which is all of its module. With a tensor missing, or b->refused, what was bound of it is taken back, and
   b->missing says which. Returns whether it is there. */
static int common_bind_optional(binder *b, void (*bind)(binder *)) {
    mote_error *err = b->err, why;
    const enum module_kind kind = b->kind;
    const size_t items = b->items.size, arena = b->arena, whole = b->whole;
    if (b->code) return 0;
    b->err = &why;
    bind(b);
    b->err = err;
    if (!b->code) return 1;
    if (!b->missing[0] && !b->refused) {
        fail(err, b->code, "%s", why.message);
        return 0;
    }
    b->code = MOTE_OK;
    b->items.size = items;
    b->arena = arena;
    b->whole = whole;
    b->formats[kind] = b->encodings[kind] = 0;
    b->group[kind] = 0;
    memset(&b->m->report.modules[kind], 0, sizeof b->m->report.modules[kind]);
    return 0;
}

/* Binds an MTP layer. It only makes a model faster: with a tensor missing it is left out. */
static void common_bind_mtp(binder *b, void (*bind)(binder *)) {
    mote_model *m = b->m;
    if (b->code) return;
    bind_for_layer(b, m->c.layers);
    bind_as(b, MODULE_MTP, 1, 1);
    if (common_bind_optional(b, bind) || b->code) return;
    m->has_mtp = 0;
    memset(&m->mtp.layer, 0, sizeof m->mtp);
}

/* The number in a layer's name; -1: it is of none. */
static int layer_number(const char *name) {
    const char *at = has_part(name, "layers.") ? strstr(name, "layers.") + strlen("layers.") : "";
    return *at >= '0' && *at <= '9' && strcspn(at, ".") < 9 ? atoi(at) : -1;
}

/* Has the layer of this number a tensor that only MTP layers have? Else it is one more than config.json says. */
static int is_mtp_layer(const binder *b, int number) {
    static const char *const own[] = {"eh_proj.weight", "enorm.weight", "hnorm.weight", "shared_head.norm.weight"};
    char name[256];
    int found = 0;
    for (size_t i = 0; i < sizeof own / sizeof *own && !found; i++) {
        snprintf(name, sizeof name, "%slayers.%d.%s", b->prefix, number, own[i]);
        found = table_find(&b->files->table, name) != NULL;
    }
    return found;
}

/* Whether it is of an MTP layer, of which no more than one is run. *further: of another one. */
static int of_mtp(const binder *b, const char *name, int *further) {
    const int number = layer_number(name);
    *further = b->mtp_from && number > b->mtp_from;
    return has_part(name, "mtp.") || (b->mtp_from && number >= b->mtp_from && is_mtp_layer(b, number));
}

/* Tensors left over must be known to be of no use here: the vision tower, a tied lm_head, an MTP layer that is not run. Of
   these the index may also list what is not there. */
static void common_leftovers(binder *b, const mote_callbacks *callbacks) {
    const tensor_table *table = &b->files->table;
    const char *dir = b->files->dir;
    int vision = 0, mtp = 0, head = 0, others = 0, further;
    for (size_t i = 0; i < table_count(table) && !b->code; i++) {
        const tensor *t = table_at(table, i);
        const char *name = table_name(table, t);
        if (t->used) continue;
        if (b->m->c.tied && has_part(name, "lm_head.")) head += t->type >= 0;
        else if (of_a_tower(name) && !b->m->has_vision) vision++;
        else if (of_mtp(b, name, &further) && further) others++;
        else if (of_mtp(b, name, &further) && (!b->m->has_mtp || t->type < 0)) mtp++;
        else b->code = bind_unexpected(b, t);
    }
    if (b->code) return;
    if (head) notice(callbacks, "%s: lm_head.weight ignored: it is the embedding, to which config.json ties it", dir);
    if (vision && !b->m->c.vision.depth) notice(callbacks, "%s: %d vision tensors ignored: mote reads no images with this model", dir, vision);
    if (others) notice(callbacks, "%s: %d tensors of further MTP layers ignored: one is run", dir, others);
    if (b->missing[0])
        notice(callbacks, "%s: MTP layer left out, nothing will be drafted: tensor %s %s", dir, b->missing,
               b->differs ? "differs from the model's own" : "is missing");
    else if (mtp && !b->m->has_mtp && b->mtp_from) notice(callbacks, "%s: %d MTP tensors ignored", dir, mtp);
    else if (mtp && !b->m->has_mtp) notice(callbacks, "%s: %d MTP tensors ignored: there is no mtp.fc.weight", dir, mtp);
    else if (b->m->c.mtp_layers && !b->m->has_mtp) notice(callbacks, "%s: no MTP layer in this checkpoint", dir);
}
