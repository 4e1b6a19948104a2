/* families/qwen4_exp.c: Qwen3.8-Flash-Next (125.7B-A6.7B, and a table of 51.2B): what config.json says, which layers there are, what their
   tensors are called.

   The residual is hc_count streams R[c], all of which begin as the embedding. With norms of each stream, names are tensors':
     read:      n = R / rms(R) (1 + hc_norm);  u = mean over c of sigmoid(input_mix_weight_up SiLU(input_mix_weight_down n / hc_count))[c] n[c]
     write:     R[c] += 2 sigmoid(block_inject_weight n / hc_count)[c] y,  y what the sublayer makes of u
   A layer reads with attn_hyper_connection, writes what its mixer gives, reads with mlp_hyper_connection, writes what its experts give:
     DeltaNet, experts: as in families/qwen3_5_moe.c, but the output gate of DeltaNet is sigmoid(in_proj_z u)
     attention: as there; q_proj, k_proj, v_proj; each row attends to the indexer_budget tokens that the indexer chooses, in groups of
                indexer_compress_ratio, and to those after them (layers/attention/index.c)
   Before layers that ple_layer_ids lists, counted from 1: R += ple (rows of a table by n-grams of the tokens, R)  (layers/ngrams/)
   There is no norm at the end: the head reads with hyper_connection_mixer. The MTP layer is one more with attention; it reads
   R[c] = fc_hidden (norm of the token's R, all of it as one)[c] + fc_embedding (norm of the next token's embedding), and hands on its R.

   In the program an n-gram embedding is a layer of its own, without an FFN, before that which lists it: layers after it have numbers that are higher
   by 1 than in the files. */

static const char *const qwen4_exp_types[] = {"qwen4_exp", "qwen4_exp_text", NULL};

/* The streams of a sublayer. */
static void qwen4_streams(const config *c, sublayer_shape *s) {
    s->residual.streams = c->streams;
    s->residual.mix_rank = c->mix_rank;
}

/* The first token that ends a text. */
static void qwen4_eos(config_reader *r, const config *c, int *eos) {
    uint32_t node = config_get(r, r->text, "eos_token_id");
    uint64_t id = 0;
    if (node && r->j->nodes[node].type == JSON_ARRAY) node = r->j->nodes[node].size ? node + 1 : 0;
    if (!r->code && (!node || !json_u64(r->j, node, &id) || id >= (uint64_t)c->vocab))
        config_fail(r, MOTE_EFORMAT, "eos_token_id must begin with a token of the vocabulary, which n-grams do not go back beyond");
    *eos = (int)id;
}

/* Rows of the table: of all heads, up to a multiple that divides into its parts. */
static void qwen4_table(config_reader *r, ngrams_shape *s) {
    ngrams_hash hash;
    int multiple;
    int64_t rows;
    config_int(r, "make_ngram_vocab_size_divisible_by", 1, 1 << 20, &multiple);
    config_int(r, "split_ngram_parts", 1, 1 << 12, &s->table_parts);
    if (r->code) return;
    ngrams_hash_of(s, &hash);
    rows = hash.first[ngrams_rows(s) - 1] + hash.size[ngrams_rows(s) - 1];
    rows = (rows + multiple - 1) / multiple * multiple;
    if (rows > INT_MAX || rows % s->table_parts)
        config_fail(r, MOTE_EUNSUPPORTED, "a table of %lld n-grams, expected fewer than 2^31, in split_ngram_parts = %d equal parts", (long long)rows,
                    s->table_parts);
    s->table_rows = (int)rows;
}

/* What all embeddings of n-grams have in common. */
static void qwen4_ngrams(config_reader *r, const config *c, ngrams_shape *s) {
    int width;
    s->hidden = c->hidden;
    s->streams = c->streams;
    s->eps = c->eps;
    s->vocab = c->vocab;
    config_int(r, "ple_embed_dim", 1, 1 << 16, &width);
    config_int(r, "ngram_size", 2, MAX_GRAMS, &s->grams);
    config_int(r, "heads_per_ngram", 1, MAX_NGRAM_ROWS, &s->heads);
    config_int(r, "ngram_vocab_size_base", 2, 1 << 28, &s->base);
    config_int(r, "seed", 0, INT_MAX, &s->seed);
    config_int(r, "ple_conv_kernel_size", 1, MAX_NGRAM_TAPS, &s->taps);
    qwen4_eos(r, c, &s->eos);
    if (r->code) return;
    if (ngrams_rows(s) > MAX_NGRAM_ROWS || width % ngrams_rows(s) || width / ngrams_rows(s) > MAX_TABLE_COLS)
        config_fail(r, MOTE_EUNSUPPORTED, "ple_embed_dim = %d in (ngram_size - 1) heads_per_ngram = %d parts, expected at most %d equal parts of at most %d",
                    width, ngrams_rows(s), MAX_NGRAM_ROWS, MAX_TABLE_COLS);
    else s->row_size = width / ngrams_rows(s);
}

/* How often ple_layer_ids lists layer i. */
static int qwen4_listed(const config_reader *r, uint32_t list, int i) {
    int times = 0;
    uint64_t id;
    if (!list || r->j->nodes[list].type != JSON_ARRAY) return 0;
    for (uint32_t node = list + 1; node < r->j->nodes[list].next; node = r->j->nodes[node].next)
        times += json_u64(r->j, node, &id) && id == (uint64_t)i + 1;
    return times;
}

/* Makes place for the embeddings of n-grams among the layers that are there. */
static void qwen4_insert(config_reader *r, config *c) {
    sublayer_shape ngrams = sublayer_shape_of(LAYER_NGRAMS);
    const uint32_t list = config_get(r, r->text, "ple_layer_ids");
    const config_layer mtp = r->code ? config_layer_of(LAYER_NONE, LAYER_NONE) : c->layer[c->layers];
    int count = 0, listed = 0;
    if (r->code || !list || r->j->nodes[list].type == JSON_NULL) return;
    listed = r->j->nodes[list].type == JSON_ARRAY ? (int)r->j->nodes[list].size : -1;
    for (int i = 0; i < c->layers; i++) count += qwen4_listed(r, list, i) == 1;
    if (count != listed || count > TABLES_MAX)
        config_fail(r, MOTE_EUNSUPPORTED, "ple_layer_ids must list at most %d different layers, from 1 to num_hidden_layers = %d", TABLES_MAX, c->layers);
    if (r->code || !count) return;
    config_layer *from = c->layer;
    qwen4_ngrams(r, c, &ngrams.of.ngrams);
    c->layer = (config_layer *)calloc((size_t)(c->layers + count) + 1, sizeof *c->layer);
    if (!c->layer) r->code = fail_memory(r->err);
    for (int i = 0, at = 0, number = 0; i < c->layers && !r->code; i++) {
        if (qwen4_listed(r, list, i)) {
            ngrams.of.ngrams.number = number++;
            ngrams.residual.whole = 1;
            qwen4_table(r, &ngrams.of.ngrams);
            c->layer[at] = config_layer_of(LAYER_NONE, LAYER_NONE);
            c->layer[at++].mixer = ngrams;
        }
        c->layer[at++] = from[i];
    }
    free(from);
    c->layers += count;
    if (c->layer) c->layer[c->layers] = mtp;
}

/* The indexer of a layer with attention. */
static void qwen4_index(config_reader *r, attention_shape *a) {
    config_only(r, r->text, "indexer_kv_heads", "1");
    config_int(r, "indexer_n_heads", 1, 1 << 8, &a->index_heads);
    config_int(r, "indexer_head_dim", 1, 1 << 14, &a->index_dim);
    config_int(r, "indexer_compress_ratio", 1, 1 << 10, &a->index_group);
    config_int(r, "indexer_budget", 1, 1 << 16, &a->index_budget);
    if (r->code) return;
    if (a->index_dim % a->index_group || a->rotary_dim > a->index_dim || a->index_budget % a->index_group)
        config_fail(r, MOTE_EUNSUPPORTED, "indexer_head_dim = %d and indexer_budget = %d must be multiples of indexer_compress_ratio = %d, and a head of the "
                    "indexer as large as what is rotated, %d", a->index_dim, a->index_budget, a->index_group, a->rotary_dim);
}

/* What the output gate of DeltaNet is. */
static void qwen4_gate(config_reader *r, deltanet_shape *d) {
    const uint32_t node = config_get(r, r->text, "output_gate_type");
    if (!node && !r->code) config_fail(r, MOTE_EFORMAT, "output_gate_type is missing");
    if (r->code) return;
    d->sigmoid_gate = config_is(r->j, node, "sigmoid");
    if (!d->sigmoid_gate && !config_is(r->j, node, "swish") && !config_is(r->j, node, "silu"))
        config_refuse(r, node, "output_gate_type", "mote supports sigmoid, swish and silu only");
}

static void qwen4_experts(config_reader *r, const config *c, moe_shape *e) {
    common_moe(r, c, e, "num_experts", "moe_intermediate_size");
    config_int(r, "shared_expert_intermediate_size", 1, 1 << 20, &e->shared_size);
    common_moe_check(r, e);
    config_only(r, r->text, "norm_topk_prob", "true");
}

static void qwen4_exp_read(config_reader *r, config *c) {
    static const char *const words[] = {"linear_attention", "indexed_attention", "full_attention"};       /* the third means the second */
    config_layer l = config_layer_of(LAYER_ATTENTION, LAYER_MOE);
    sublayer_shape deltanet = sublayer_shape_of(LAYER_DELTANET);
    attention_shape *a = &l.mixer.of.attention;
    common_limits(r, c, 32768, 1e-6f);
    config_int(r, "hc_count", 1, 16, &c->streams);
    config_int(r, "hc_lowrank", 1, 1 << 16, &c->mix_rank);
    config_int_or(r, "mtp_num_hidden_layers", 0, 1, 1, &c->mtp_layers);
    qwen4_experts(r, c, &l.ffn.of.moe);
    common_attention(r, c, a, 0);
    a->gated = a->normed = 1;
    config_only(r, r->text, "attn_output_gate", "true");
    config_only(r, r->text, "mtp_use_dedicated_embeddings", "false");
    common_rope(r, c, &l, 0.25f, 1e4f);
    qwen4_index(r, a);
    qwen_deltanet(r, c, &deltanet.of.deltanet);
    qwen4_gate(r, &deltanet.of.deltanet);
    qwen4_streams(c, &l.mixer);
    qwen4_streams(c, &l.ffn);
    qwen4_streams(c, &deltanet);
    for (int i = 0; i <= c->layers && !r->code; i++) {
        const int attends = i == c->layers || common_layer_word(r, c, "layer_types", i, words, 3, (i + 1) % 4 == 0);
        c->layer[i] = l;
        if (!attends) c->layer[i].mixer = deltanet, memset(&c->layer[i].rope, 0, sizeof c->layer[i].rope);
    }
    qwen4_insert(r, c);
}

/* ---- Tensors ---- */

/* injects: it is a sublayer's, whose output goes to the streams. */
static void qwen4_bind_mixer(binder *b, const char *where, const char *name, int injects, stream_mixer *w) {
    const config *c = &b->m->c;
    const int width = model_width(b->m);
    char of[192];
    snprintf(of, sizeof of, "%s%s.", where, name);
    if (b->kind != MODULE_MTP) bind_as(b, MODULE_STREAMS, 1, 1);
    bind_zero_centered(b, of, "hc_norm.weight", &w->norm, width);
    bind_kept(b, of, "input_mix_weight_down.weight", &w->down, c->mix_rank, width);
    bind_kept(b, of, "input_mix_weight_up.weight", &w->up, width, c->mix_rank);
    if (injects) bind_kept(b, of, "block_inject_weight.weight", &w->inject, c->streams, width);
}

static void qwen4_bind_attention(binder *b, const char *where, attention_weights *w) {
    const attention_shape *s = &w->shape;
    bind_kept(b, where, "self_attn.indexer.index_qk_proj.weight", &w->index_qk, (s->index_heads + 1) * s->index_dim, s->hidden);
    bind_zero_centered(b, where, "self_attn.indexer.q_layernorm.weight", &w->index_q_norm, s->index_dim);
    bind_zero_centered(b, where, "self_attn.indexer.k_layernorm.weight", &w->index_k_norm, s->index_dim);
    common_bind_attention(b, where, w, bind_zero_centered);
}

/* A layer but for n-grams; where: "model.layers.0.". */
static void qwen4_bind_layer(binder *b, const char *where, layer *l) {
    const int mtp = b->kind == MODULE_MTP;
    qwen4_bind_mixer(b, where, "attn_hyper_connection", 1, &l->mixer.mixer);
    if (!mtp) bind_as(b, MODULE_ATTENTION, 1, 1);
    if (l->mixer.kind == LAYER_ATTENTION) qwen4_bind_attention(b, where, &l->mixer.w.attention);
    else qwen_bind_deltanet(b, where, &l->mixer.w.deltanet, qwen_bind_in_proj);
    qwen4_bind_mixer(b, where, "mlp_hyper_connection", 1, &l->ffn.mixer);
    qwen_bind_moe(b, where, &l->ffn.w.moe);
}

/* where: "model.layers.1.ple.". What the files say of hashing must be what follows from config.json. */
static void qwen4_bind_ngrams(binder *b, const char *where, ngrams_weights *w) {
    const ngrams_shape *s = &w->shape;
    const int width = model_width(b->m), rows = ngrams_rows(s);
    const tensor_slice conv = slice_all(width, s->taps);
    char of[192];
    ngrams_hash_of(s, &w->hash);
    bind_as(b, MODULE_NGRAMS, 1, 1);
    bind_kept(b, where, "key_proj.weight", &w->key_proj, width, ngrams_width(s));
    bind_kept(b, where, "value_proj.weight", &w->value_proj, s->hidden, ngrams_width(s));
    bind_zero_centered(b, where, "norm_key.weight", &w->norm_key, width);
    bind_zero_centered(b, where, "norm_query.weight", &w->norm_query, width);
    bind_zero_centered(b, where, "norm_conv.weight", &w->norm_conv, width);
    bind_slice_vector(b, where, "conv1d.weight", &conv, &conv_part, &vector_source, &w->conv1d);
    snprintf(of, sizeof of, "%sple_embedding.", where);
    bind_known_numbers(b, of, "layer_multipliers", w->hash.factor, s->grams);
    bind_known_numbers(b, of, "ngram_heads_vocab_sizes", w->hash.size, rows);
    bind_known_numbers(b, of, "ngram_heads_offsets", w->hash.first, rows);
    rows_bind(b, of, "ngram_embedding.shard_%d.weight", s->table_parts, s->table_rows / s->table_parts, s->row_size, &b->m->tables[s->number]);
    if (!b->elsewhere) b->active[b->kind] += (uint64_t)ngrams_width(s);
}

static void qwen4_bind_mtp(binder *b) {
    mote_model *m = b->m;
    const int hidden = m->c.hidden;
    bind_as(b, MODULE_MTP, 1, 1);
    bind_kept(b, "mtp.", "fc_embedding.weight", &m->mtp.fc_embedding, hidden, hidden);
    bind_kept(b, "mtp.", "fc_hidden.weight", &m->mtp.fc, hidden, hidden);
    bind_zero_centered(b, "mtp.", "pre_fc_norm_embedding.weight", &m->mtp.norm_embedding, hidden);
    bind_zero_centered(b, "mtp.", "pre_fc_norm_hidden.weight", &m->mtp.norm_hidden, model_width(m));
    qwen4_bind_mixer(b, "mtp.", "hyper_connection_mixer", 0, &m->mtp.mixer);
    qwen4_bind_layer(b, "mtp.layers.0.", &m->mtp.layer);
}

static void qwen4_exp_bind(binder *b) {
    mote_model *m = b->m;
    m->has_mtp = bind_has(b, "mtp.", "fc_hidden.weight");
    common_bind_ends(b, NULL);
    qwen4_bind_mixer(b, b->prefix, "hyper_connection_mixer", 0, &m->mixer);
    for (int i = 0, number = 0; i < m->c.layers && !b->code; i++) {
        layer *l = &m->layers[i];
        char where[128];
        const int ngrams = l->mixer.kind == LAYER_NGRAMS;
        bind_for_layer(b, i);
        snprintf(where, sizeof where, ngrams ? "%slayers.%d.ple." : "%slayers.%d.", b->prefix, number);
        if (ngrams) qwen4_bind_ngrams(b, where, &l->mixer.w.ngrams);
        else qwen4_bind_layer(b, where, l);
        number += !ngrams;
    }
    if (m->has_mtp) common_bind_mtp(b, qwen4_bind_mtp);
}
