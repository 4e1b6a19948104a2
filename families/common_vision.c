/* families/common_vision.c: the vision tower of Qwen3.5 and 3.6, which several families have: its keys of config.json, and what its tensors are called.

   A tower is more than the language model needs: a checkpoint may lack it though config.json says of it, and who opens a model may leave it out. Then
   the model reads text alone, and says so. But what is there must be as config.json has it. */

/* Features of layers in between, of Qwen3-VL. */
static void common_vision_deepstack(config_reader *r, uint32_t node) {
    static const char key[] = "deepstack_visual_indexes";
    const uint32_t list = config_get(r, node, key);
    const json_node *n = &r->j->nodes[list];
    if (!list || r->code || n->type == JSON_NULL || (n->type == JSON_ARRAY && !n->size)) return;
    config_refuse(r, list, key, "mote supports [] only");
}

/* What transformers may write of the rope, which released models leave out. */
static void common_vision_rope(config_reader *r, uint32_t node, vision_shape *s) {
    const uint32_t rope = config_get(r, node, "rope_parameters");
    s->theta = 10000;
    if (!rope || r->code || r->j->nodes[rope].type == JSON_NULL) return;
    if (r->j->nodes[rope].type != JSON_OBJECT) {
        config_fail(r, MOTE_EFORMAT, "vision_config.rope_parameters is not an object");
        return;
    }
    r->within = "vision_config.rope_parameters.";
    config_only(r, rope, "rope_type", "axial|default");
    config_float(r, rope, "rope_theta", 1, 1e9, s->theta, &s->theta);
}

static void common_vision_check(config_reader *r, config *c, int positions) {
    vision_shape *s = &c->vision;
    while (s->side * s->side < positions) s->side++;
    if (s->side * s->side != positions)
        config_fail(r, MOTE_EUNSUPPORTED, "vision_config.num_position_embeddings is %d, mote supports squares only", positions);
    else if (s->hidden % s->heads || vision_head_dim(s) % 4 || vision_head_dim(s) > VISION_HEAD_MAX)
        config_fail(r, MOTE_EUNSUPPORTED, "vision_config: hidden_size = %d and num_heads = %d, mote supports heads of a multiple of 4 up to %d", s->hidden,
                    s->heads, VISION_HEAD_MAX);
    else if (s->out != c->hidden)
        config_fail(r, MOTE_EFORMAT, "vision_config.out_hidden_size is %d, but hidden_size is %d", s->out, c->hidden);
}

/* vision_config, if there is one. It is compared in full: a key that says something else than what layers/vision/ computes is refused by name. */
static void common_vision(config_reader *r, config *c) {
    static const struct { const char *key, *value; } fixed[] = {
        {"hidden_act", "gelu_pytorch_tanh"}, {"in_channels", "3"}, {"patch_size", "16"}, {"temporal_patch_size", "2"}, {"spatial_merge_size", "2"}};
    const struct { const char *key; int *id; } ids[] = {{"image_token_id", &c->image_token}, {"video_token_id", &c->video_token},
                                                        {"vision_start_token_id", &c->vision_start}, {"vision_end_token_id", &c->vision_end}};
    vision_shape *s = &c->vision;
    const uint32_t node = config_get(r, 0, "vision_config");
    int positions = 1;
    if (r->code || !node || r->j->nodes[node].type == JSON_NULL) return;
    if (r->j->nodes[node].type != JSON_OBJECT) {
        config_fail(r, MOTE_EFORMAT, "vision_config is not an object");
        return;
    }
    if (!r->j->nodes[node].size) return;
    config_few_keys(r, node);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        if (config_get(r, 0, ids[i].key)) config_int_of(r, 0, ids[i].key, 0, c->vocab - 1, ids[i].id);
    r->within = "vision_config.";
    config_int_of(r, node, "depth", 1, 1 << 10, &s->depth);
    config_int_of(r, node, "hidden_size", 4, 1 << 14, &s->hidden);
    config_int_of(r, node, "num_heads", 1, 1 << 10, &s->heads);
    config_int_of(r, node, "intermediate_size", 1, 1 << 16, &s->size);
    config_int_of(r, node, "num_position_embeddings", 1, 1 << 20, &positions);
    config_int_of(r, node, "out_hidden_size", 1, 1 << 20, &s->out);
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) config_only(r, node, fixed[i].key, fixed[i].value);
    common_vision_deepstack(r, node);
    common_vision_rope(r, node, s);
    r->within = "vision_config.";
    if (!r->code) common_vision_check(r, c, positions);
    r->within = NULL;
}

/* ---- Tensors ---- */

static void bind_vision_norm(binder *b, const char *where, const char *what, vision_norm *norm, int n) {
    char name[64];
    snprintf(name, sizeof name, "%s.weight", what);
    bind_vector(b, where, name, &norm->weight, n);
    snprintf(name, sizeof name, "%s.bias", what);
    bind_vector(b, where, name, &norm->bias, n);
}

static void bind_vision_block(binder *b, const vision_shape *s, int index, vision_block *w) {
    char where[160];
    snprintf(where, sizeof where, "%sblocks.%d.", b->vision_prefix, index);
    bind_vision_norm(b, where, "norm1", &w->norm1, s->hidden);
    bind_vision_norm(b, where, "norm2", &w->norm2, s->hidden);
    bind_kept_biased(b, where, "attn.qkv", &w->qkv, 3 * s->hidden, s->hidden);
    bind_kept_biased(b, where, "attn.proj", &w->proj, s->hidden, s->hidden);
    bind_kept_biased(b, where, "mlp.linear_fc1", &w->fc1, s->size, s->hidden);
    bind_kept_biased(b, where, "mlp.linear_fc2", &w->fc2, s->hidden, s->size);
}

/* The tower; its convolution, whose kernel is as large as its stride, is a matrix. */
static void bind_vision(binder *b) {
    static const uint64_t kernel[] = {VISION_CHANNELS, VISION_FRAMES, VISION_PATCH, VISION_PATCH};
    const vision_shape *s = &b->m->c.vision;
    vision_weights *w = &b->m->vision;
    const tensor_slice positions = slice_all(s->side * s->side, s->hidden);
    const int joined = VISION_JOINED * s->hidden;
    bind_flatten(b, b->vision_prefix, "patch_embed.proj.weight", s->hidden, kernel, sizeof kernel / sizeof *kernel);
    bind_kept_biased(b, b->vision_prefix, "patch_embed.proj", &w->patches, s->hidden, VISION_PIXELS);
    bind_slice_vector(b, b->vision_prefix, "pos_embed.weight", &positions, &table_part, &vector_source, &w->positions);
    for (int i = 0; i < s->depth && !b->code; i++) bind_vision_block(b, s, i, &w->blocks[i]);
    bind_vision_norm(b, b->vision_prefix, "merger.norm", &w->norm, s->hidden);
    bind_kept_biased(b, b->vision_prefix, "merger.linear_fc1", &w->fc1, joined, joined);
    bind_kept_biased(b, b->vision_prefix, "merger.linear_fc2", &w->fc2, s->out, joined);
    if (b->code || b->publishes || !b->m->memory->vision_refused) return;
    b->m->vision_refused = b->refused = b->m->memory->vision_refused(w);
    if (b->refused) b->code = MOTE_EUNSUPPORTED;
}

/* Binds the tower, if it is wanted: after all else, for the part that embeds. Which tensor a checkpoint without it lacks, b->no_vision says. */
static void common_bind_vision(binder *b) {
    mote_model *m = b->m;
    char missing[sizeof b->missing];
    if (b->code || !m->c.vision.depth || m->images < 0) return;
    snprintf(b->vision_prefix, sizeof b->vision_prefix, "model.visual.");
    if (!bind_has(b, b->vision_prefix, "patch_embed.proj.weight") && bind_has(b, "visual.", "patch_embed.proj.weight"))
        snprintf(b->vision_prefix, sizeof b->vision_prefix, "visual.");
    memcpy(missing, b->missing, sizeof missing);
    b->missing[0] = 0;
    m->vision.shape = m->c.vision;
    m->vision.blocks = (vision_block *)calloc((size_t)m->c.vision.depth, sizeof *m->vision.blocks);
    if (!m->vision.blocks) b->code = fail_memory(b->err);
    bind_for_layer(b, 0);
    b->elsewhere |= m->part.rank;
    b->again = 1;                              /* the fingerprint is the language model's: saved sessions of text do not depend on the tower */
    bind_as(b, MODULE_VISION, 0, 1);
    m->has_vision = common_bind_optional(b, bind_vision);
    memcpy(b->no_vision, b->missing, sizeof b->no_vision);
    memcpy(b->missing, missing, sizeof missing);
    m->has_vision &= !b->elsewhere;
}

/* A model that could read images and does not: why. */
static void common_vision_notice(const binder *b, const mote_callbacks *callbacks) {
    if (b->no_vision[0])
        notice(callbacks, "%s: no vision tower in this checkpoint, though config.json has a vision_config: tensor %s is missing", b->files->dir, b->no_vision);
    else if (b->refused)
        notice(callbacks, "%s: the vision tower is left out: %s are not supported on a GPU, use the CPU", b->files->dir, b->refused);
}
