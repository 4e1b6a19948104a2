// A part of test_checkpoint: large checkpoints.

// A model with as many tensors as Qwen3.5-35B-A3B-FP8 but hardly any weights: 40 layers and MTP of 256 experts, each
// with three matrices and three scales. And a tokenizer.json of 20 MB. They should open in well under a second each.

static void add_info(buf *header, const char *name, const char *type, const char *shape, size_t *at, size_t size) {
    char text[256];
    int n = snprintf(text, sizeof text, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                     header->size ? ',' : '{', name, type, shape, *at, *at + size);
    buf_add(header, text, (size_t)n);
    *at += size;
}

static void write_large_shard(const char *file, const char *prefix, int layer, int attention, buf *index) {
    static const struct { const char *name, *shape; int size; } small[] = {
        {"input_layernorm.weight", "2", 2}, {"post_attention_layernorm.weight", "2", 2},
        {"mlp.gate.weight", "256,2", 512},
        {"mlp.shared_expert_gate.weight", "1,2", 2}, {"mlp.shared_expert.gate_proj.weight", "1,2", 2},
        {"mlp.shared_expert.up_proj.weight", "1,2", 2}, {"mlp.shared_expert.down_proj.weight", "2,1", 2},
        {"self_attn.q_proj.weight", "4,2", 8}, {"self_attn.k_proj.weight", "2,2", 4},
        {"self_attn.v_proj.weight", "2,2", 4},
        {"self_attn.q_norm.weight", "2", 2}, {"self_attn.k_norm.weight", "2", 2},
        {"self_attn.o_proj.weight", "2,2", 4},
        {"linear_attn.in_proj_qkv.weight", "3,2", 6}, {"linear_attn.in_proj_z.weight", "1,2", 2},
        {"linear_attn.in_proj_b.weight", "1,2", 2}, {"linear_attn.in_proj_a.weight", "1,2", 2},
        {"linear_attn.out_proj.weight", "2,1", 2}, {"linear_attn.conv1d.weight", "3,1,4", 12},
        {"linear_attn.A_log", "1", 1},
        {"linear_attn.dt_bias", "1", 1}, {"linear_attn.norm.weight", "1", 1}};
    static const char *const matrices[] = {"gate_proj", "up_proj", "down_proj"};
    static const struct { const char *name, *shape; int size; } outside[] = {
        {"model.embed_tokens.weight", "8,2", 16}, {"model.norm.weight", "2", 2}, {"mtp.fc.weight", "2,4", 8},
        {"mtp.norm.weight", "2", 2}, {"mtp.pre_fc_norm_embedding.weight", "2", 2},
        {"mtp.pre_fc_norm_hidden.weight", "2", 2}};
    buf header = {0};
    size_t at = 0;
    char name[128];
    for (size_t i = 0; i < COUNT(small); i++) {
        if (strncmp(small[i].name, attention ? "linear" : "self", 4) == 0) continue;
        snprintf(name, sizeof name, "%slayers.%d.%s", prefix, layer, small[i].name);
        add_info(&header, name, "BF16", small[i].shape, &at, 2 * (size_t)small[i].size);
    }
    for (size_t i = 0; i < COUNT(outside) && prefix[1] == 't'; i++)
        add_info(&header, outside[i].name, "BF16", outside[i].shape, &at, 2 * (size_t)outside[i].size);
    for (int e = 0; e < 256; e++) {
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "%slayers.%d.mlp.experts.%d.%s.weight", prefix, layer, e, matrices[i]);
            add_info(&header, name, "F8_E4M3", i == 2 ? "2,1" : "1,2", &at, 2);
            strcat(name, "_scale_inv");
            add_info(&header, name, "BF16", "1,1", &at, 2);
        }
    }
    json j;
    buf_text(&header, "}");
    CHECK(!json_parse(&j, header.data, header.size, file, NULL), "%s", file);
    for (uint32_t key = 1; key < j.count; key = j.nodes[key + 1].next) {
        buf_text(index, index->size ? ",\n    \"" : "{\n  \"metadata\": {},\n  \"weight_map\": {\n    \"");
        buf_add(index, j.text + j.nodes[key].start, j.nodes[key].size);
        buf_text(index, "\": \"");
        buf_text(index, file);
        buf_text(index, "\"");
    }
    json_free(&j);
    buf out = {0};
    for (int i = 0; i < 8; i++) name[i] = (char)(header.size >> 8 * i & 0xFF);
    buf_add(&out, name, 8);
    buf_add(&out, header.data, header.size);
    memset(buf_add(&out, NULL, at), 0, at);
    temp_write(file, out.data, out.size);
    buf_free(&out);
    buf_free(&header);
}

static void test_large_index(void) {
    buf index = {0};
    char file[64], json[QUOTED];
    mote_options o = {0};
    mote_model *m;
    mote_memory plan;
    mote_error err = {0};
    o.parts = MOTE_WEIGHTS_ONLY;
    temp_empty();
    for (int i = 0; i < 40; i++) {
        snprintf(file, sizeof file, "layers-%d.safetensors", i);
        write_large_shard(file, "model.", i, i % 4 == 3, &index);
    }
    write_large_shard("mtp.safetensors", "mtp.", 0, 1, &index);
    buf_text(&index, "\n  }\n}\n");
    temp_write(INDEX, index.data, index.size);
    temp_text(CONFIG, quoted("{'model_type':'qwen3_5_moe_text','num_hidden_layers':40,'hidden_size':2,'vocab_size':8,"
              "'num_attention_heads':1,'num_key_value_heads':1,'head_dim':2,'linear_num_key_heads':1,"
              "'linear_num_value_heads':1,'linear_key_head_dim':1,'linear_value_head_dim':1,'num_experts':256,"
              "'num_experts_per_tok':8,'moe_intermediate_size':1,'shared_expert_intermediate_size':1,"
              "'rope_parameters':{'partial_rotary_factor':1.0},'mtp_num_hidden_layers':1,"
              "'tie_word_embeddings':true}", json));
    int tensors = 0;
    for (size_t i = 0; i < index.size; i++) tensors += index.data[i] == '\n';
    double start = seconds();
    CHECK(!mote_plan(temp_dir, NULL, NULL, &plan, &err), "%s", err.message);
    double planned = seconds() - start;
    start = seconds();
    if (CHECK(!mote_open(temp_dir, &o, &m, &err), "%s", err.message)) mote_close(m);
    double opened = seconds() - start;
    printf("test_checkpoint: %d tensors in 41 files, index of %.1f MB: plan %.3f s, open %.3f s\n", tensors - 5,
           (double)index.size * 1e-6, planned, opened);
    buf_free(&index);
}

// The printable character that stands for a byte in byte-level BPE, as JSON text.
static void byte_character(unsigned byte, buf *out) {
    unsigned shift = 0;
    for (unsigned b = 0; b < byte; b++) shift += b < 33 || (b > 126 && b < 161) || b == 173;
    int moved = byte < 33 || (byte > 126 && byte < 161) || byte == 173;
    if (byte == '"' || byte == '\\') buf_text(out, "\\");
    utf8_put(out, moved ? 256 + shift : byte);
}

// Tokens of n letters: those of half the length, joined two by two, in the layout that published files have.
static void add_words(int n, int count, buf *vocab, buf *merges, int *id) {
    char text[256], word[8];
    for (int i = 0; i < count; i++) {
        for (int k = 0, x = i; k < n; k++, x /= 26) word[k] = (char)('a' + x % 26);
        int size = snprintf(text, sizeof text, ",\n      \"%.*s\": %d", n, word, (*id)++);
        buf_add(vocab, text, (size_t)size);
        size = snprintf(text, sizeof text, "%s      [\n        \"%.*s\",\n        \"%.*s\"\n      ]",
                        merges->size ? ",\n" : "", n / 2, word, n / 2, word + n / 2);
        buf_add(merges, text, (size_t)size);
    }
}

static void test_large_tokenizer(void) {
    buf text = {0}, merges = {0};
    char one[32], json[QUOTED];
    int id = 0;
    mote_options o = {0};
    mote_model *m;
    mote_error err = {0};
    o.parts = MOTE_TEXT_ONLY;
    buf_text(&text, quoted("{\n  'version': '1.0',\n  'normalizer': null,\n  'pre_tokenizer': {'type': 'ByteLevel', "
             "'add_prefix_space': false, 'trim_offsets': true, 'use_regex': true},\n  'model': {\n    'type': 'BPE',\n"
             "    'vocab': {", json));
    for (; id < 256; id++) {
        buf_text(&text, id ? ",\n      \"" : "\n      \"");
        byte_character((unsigned)id, &text);
        snprintf(one, sizeof one, "\": %d", id);
        buf_text(&text, one);
    }
    add_words(2, 26 * 26, &text, &merges, &id);
    add_words(4, 310000, &text, &merges, &id);
    buf_text(&text, "\n    },\n    \"merges\": [\n");
    buf_add(&text, merges.data, merges.size);
    buf_text(&text, "\n    ]\n  }\n}\n");
    temp_empty();
    temp_write(TOKENIZER, text.data, text.size);
    double start = seconds();
    if (CHECK(!mote_open(temp_dir, &o, &m, &err), "%s", err.message)) {
        double opened = seconds() - start;
        int32_t ids[8];
        size_t n = 0;
        int code = mote_tokenize(m, "aaaabbbb ", 9, 0, ids, 8, &n, &err);
        CHECK(!code && n == 3 && ids[0] == 256 + 26 * 26 && ids[1] > ids[0], "%zu ids: %s", n, err.message);
        printf("test_checkpoint: tokenizer.json of %.1f MB with %d tokens: open %.3f s\n", (double)text.size * 1e-6, id,
               opened);
        CHECK(text.size > 20e6, "%.1f MB", (double)text.size * 1e-6);
        mote_close(m);
    }
    buf_free(&text);
    buf_free(&merges);
}
