/* families/gpt_oss.c: gpt-oss (20B, 120B): what config.json says, what its tensors are called.

   A layer, of the residual x; rms(x) = sqrt(mean(x^2) + eps), names are tensors', and every product has its bias added:
     u = x / rms(x) input_layernorm
     q, k, v = rotate(q_proj u), rotate(k_proj u), v_proj u;  s = q . k / sqrt(head_dim)                           of each head
     x += o_proj (sum of exp(s) v / (exp(sinks) + sum of exp(s)))      over all tokens, or, of every second layer, the last sliding_window
     u = x / rms(x) post_attention_layernorm
     x += sum of w[e] expert[e](u) over the num_experts_per_tok best of r = router u, w = softmax of these
          expert(u) = down_proj ((up + 1) gate sigmoid(swiglu_alpha gate)),  gate and up of gate_up_proj u,
          gate at most swiglu_limit, up between minus that and that

   The first layer has a window. Rows of an expert's gate and up alternate in one tensor, which is a stack of all experts': in MXFP4 as
   [experts][rows][columns], in BF16 as [experts][columns][rows]. Others who save the model take the stack apart. */

static const char *const gpt_oss_types[] = {"gpt_oss", NULL};

static void gpt_oss_experts(config_reader *r, const config *c, moe_shape *e) {
    int again = 0;
    common_moe(r, c, e, "num_local_experts", "intermediate_size");
    common_moe_check(r, e);
    config_int_or(r, "experts_per_token", 1, 1 << 14, e->top_k, &again);
    if (!r->code && again != e->top_k)
        config_fail(r, MOTE_EFORMAT, "num_experts_per_tok is %d, but experts_per_token is %d", e->top_k, again);
    config_float(r, r->text, "swiglu_limit", 1e-3, 1e6, 7, &e->limit);
    config_float(r, r->text, "swiglu_alpha", 1e-3, 1e3, 1.702f, &e->alpha);
    e->biased = 1;
}

/* Of two keys neither is there, or says anything: then the rope is the published models', as in transformers, to which an empty rope_scaling,
   as the older key, says nothing either. */
static void gpt_oss_rope(config_reader *r, config *c, config_layer *l) {
    static const char *const keys[] = {"rope_parameters", "rope_scaling"};
    int said = 0;
    common_rope(r, c, l, 1, 150000);
    for (int i = 0; i < 2; i++) {
        const uint32_t node = config_get(r, r->text, keys[i]);
        said |= node && r->j->nodes[node].type != JSON_NULL && (!i || r->j->nodes[node].size);
    }
    if (said || r->code) return;
    l->rope.kind = ROPE_YARN;
    l->rope.factor = 32;
    l->rope.original = 4096;
    l->rope.slow = 1;
    l->rope.fast = 32;
    l->mixer.of.attention.rope_scale = 0.1f * logf(32) + 1;
    if (c->context_max < 32 * 4096) c->context_max = 32 * 4096;
}

static void gpt_oss_read(config_reader *r, config *c) {
    static const char *const words[] = {"full_attention", "sliding_attention"};
    config_layer l = config_layer_of(LAYER_ATTENTION, LAYER_MOE);
    attention_shape *a = &l.mixer.of.attention;
    int window = 0;
    common_limits(r, c, 131072, 1e-5f);
    gpt_oss_experts(r, c, &l.ffn.of.moe);
    common_attention(r, c, a, 0);
    a->biased = config_flag(r, config_get(r, r->text, "attention_bias"), "attention_bias", 1);
    a->sinks = 1;
    config_only(r, r->text, "partial_rotary_factor", "1");
    gpt_oss_rope(r, c, &l);
    config_get(r, r->text, "initial_context_length");  /* the rope's original_max_position_embeddings once more */
    config_int_or(r, "sliding_window", 1, INT_MAX, 128, &window);
    for (int i = 0; i < c->layers; i++) {
        c->layer[i] = l;
        c->layer[i].mixer.of.attention.window = common_layer_word(r, c, "layer_types", i, words, 2, i % 2 == 0) ? window : 0;
    }
}

/* Is a tensor there as others than OpenAI store it? Published as OpenAI does. */
static int gpt_oss_has(binder *b, const char *where, const char *what) {
    return !b->publishes && bind_has(b, where, what);
}

/* Of one expert: gate, up and down, and their biases, by the names of two matrices. */
static void gpt_oss_bind_expert(binder *b, const char *where, const char *const names[4], tensor_slice up, const tensor_slice *down,
                                moe_weights *w, int e) {
    const int size = w->shape.expert_size;
    up.runs = rows_of(&up, size, 0, 1);
    bind_slice(b, where, names[0], &up, 0, &w->gate_proj[e]);
    bind_bias(b, where, names[1], &up, &w->gate_proj[e]);
    up.runs = rows_of(&up, size, 1, 1);
    bind_slice(b, where, names[0], &up, 0, &w->up_proj[e]);
    bind_bias(b, where, names[1], &up, &w->up_proj[e]);
    bind_slice(b, where, names[2], down, 0, &w->down_proj[e]);
    bind_bias(b, where, names[3], down, &w->down_proj[e]);
}

/* Of one expert whose gate and up are matrices of their own, as llm-compressor writes them. */
static void gpt_oss_bind_single(binder *b, const char *where, moe_weights *w, int e) {
    const moe_shape *s = &w->shape;
    char expert[224];
    snprintf(expert, sizeof expert, "%s%d.", where, e);
    bind_matrix(b, expert, "gate_proj.weight", &w->gate_proj[e], s->expert_size, s->hidden, DIVIDED_ROWS);
    bind_divided_bias(b, expert, "gate_proj.bias", &w->gate_proj[e], s->expert_size, DIVIDED_ROWS);
    bind_matrix(b, expert, "up_proj.weight", &w->up_proj[e], s->expert_size, s->hidden, DIVIDED_ROWS);
    bind_divided_bias(b, expert, "up_proj.bias", &w->up_proj[e], s->expert_size, DIVIDED_ROWS);
    bind_matrix(b, expert, "down_proj.weight", &w->down_proj[e], s->hidden, s->expert_size, DIVIDED_COLS);
    bind_divided_bias(b, expert, "down_proj.bias", &w->down_proj[e], s->hidden, DIVIDED_COLS);
}

/* Experts are a stack; or a list, as Unsloth saves them, of matrices as the stack has them; or one by one. Their biases tell, which are
   stored plainly in any format. */
static void gpt_oss_bind_experts(binder *b, const char *where, moe_weights *w) {
    static const char *const stack[4] = {"gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias"};
    const moe_shape *s = &w->shape;
    const int list = gpt_oss_has(b, where, "gate_up_projs.0.bias"), single = gpt_oss_has(b, where, "0.gate_proj.bias");
    tensor_slice up = slice_all(2 * s->expert_size, s->hidden), down = slice_all(s->hidden, s->expert_size);
    slice_divide(b, &up, DIVIDED_ROWS);
    slice_divide(b, &down, DIVIDED_COLS);
    for (int e = 0; e < s->experts && !b->code; e++) {
        char name[4][40];
        const char *const of_list[4] = {name[0], name[1], name[2], name[3]};
        snprintf(name[0], sizeof name[0], "gate_up_projs.%d.weight", e);
        snprintf(name[1], sizeof name[1], "gate_up_projs.%d.bias", e);
        snprintf(name[2], sizeof name[2], "down_projs.%d.weight", e);
        snprintf(name[3], sizeof name[3], "down_projs.%d.bias", e);
        up.entries = down.entries = list ? 0 : s->experts;
        up.transposed = down.transposed = !list;
        up.entry = down.entry = list ? 0 : e;
        if (single) gpt_oss_bind_single(b, where, w, e);
        else gpt_oss_bind_expert(b, where, list ? of_list : stack, up, &down, w, e);
    }
}

static void gpt_oss_bind_layer(binder *b, int index, layer *l) {
    attention_weights *a = &l->mixer.w.attention;
    moe_weights *e = &l->ffn.w.moe;
    char where[128], all[192];
    plain_bind_layer(b, index, l, where, sizeof where);
    bind_divided_vector(b, where, "self_attn.sinks", &a->sinks, a->shape.heads);
    bind_as(b, MODULE_ROUTER, 1, 1);
    const int linear = gpt_oss_has(b, where, "mlp.router.linear.weight");         /* as Unsloth saves it */
    bind_kept(b, where, linear ? "mlp.router.linear.weight" : "mlp.router.weight", &e->router, e->shape.experts, e->shape.hidden);
    bind_whole_bias(b, where, linear ? "mlp.router.linear.bias" : "mlp.router.bias", &e->router);
    bind_as(b, MODULE_EXPERTS, (uint64_t)e->shape.top_k, (uint64_t)e->shape.experts);
    snprintf(all, sizeof all, "%smlp.experts.", where);
    gpt_oss_bind_experts(b, all, e);
}

static void gpt_oss_bind(binder *b) {
    mote_model *m = b->m;
    common_bind_ends(b, bind_vector);
    for (int i = 0; i < m->c.layers && !b->code; i++) gpt_oss_bind_layer(b, i, &m->layers[i]);
}
