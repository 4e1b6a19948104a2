// parrot.h: a checkpoint that says what a script tells it, so that any answer of a model can be replayed through the library or
// the server. Its one layer adds nothing. The vocabulary is that of models/demo and, after it, the scripts cut into pieces of a few
// bytes; each piece has the next one as its only likely successor, and the last one the turn's end. Which script is said is
// chosen by the first token: a bias of 100 on starts[i] (logit_bias of a request).
//
//     static const char *const scripts[] = {"</think>\n\nHello.", ...};
//     int32_t starts[2];
//     parrot_make(folder, scripts, 2, 5, NULL, starts);
//
// A prompt that ends inside <think>, as Qwen3.5's does, is thinking at first: so most scripts begin with "</think>\n\n".

#ifndef MOTE_TEST_PARROT_H
#define MOTE_TEST_PARROT_H

#include "files.h"

enum { PARROT_WORDS = 4096, PARROT_END = 4065 };       // the size of models/demo's vocabulary, and <|im_end|> in it

static const char parrot_generation[] = "{\"bos_token_id\": 4063, \"do_sample\": false, \"eos_token_id\": [4065, 4063]}";

// A byte as byte-level BPE writes it, and as JSON quotes that.
static inline size_t parrot_byte(unsigned char b, char *to) {
    int c = b, next = 256;
    if (!((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174)) {
        for (c = 0; c < b; c++) next += !((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || c >= 174);
        c = next;
    }
    if (c == '"' || c == '\\') return (size_t)sprintf(to, "\\%c", c);
    if (c < 128) return (size_t)sprintf(to, "%c", c);
    return (size_t)sprintf(to, "%c%c", 0xc0 | c >> 6, 0x80 | (c & 63));
}

typedef struct parrot_chain { char *words; size_t size; int32_t from[PARROT_WORDS], to[PARROT_WORDS]; int count; } parrot_chain;

// Adds a piece to the vocabulary: 0 when it is there already, or an added token. vocab: the tokenizer's text.
static inline int parrot_word(parrot_chain *p, const char *vocab, const char *bytes, size_t n) {
    char word[512] = "\"";
    size_t at = 1;
    for (size_t i = 0; i < n; i++) at += parrot_byte((unsigned char)bytes[i], word + at);
    strcpy(word + at, "\"");
    if (strstr(vocab, word) || strstr(p->words, word)) return 0;
    strcat(word, ":");
    p->size += (size_t)sprintf(p->words + p->size, "%s%d,", word, PARROT_WORDS + p->count);
    return 1;
}

// Cuts a script into pieces of `piece` bytes; returns the first one's id. A piece that the vocabulary has grows by the next one, at
// the script's end by spaces.
static inline int32_t parrot_script(parrot_chain *p, const char *vocab, const char *script, int piece) {
    int32_t start = (int32_t)(PARROT_WORDS + p->count);
    size_t left = strlen(script), n = (size_t)piece;
    char last[128];
    for (const char *at = script; left; at += n, left -= n, p->count++) {
        for (n = left < (size_t)piece ? left : (size_t)piece; n < left && !parrot_word(p, vocab, at, n); n++) {}
        if (n == left) {
            size_t size = (size_t)snprintf(last, sizeof last, "%.*s", (int)n, at);
            while (!parrot_word(p, vocab, last, size)) last[size++] = ' ';
        }
        p->from[p->count] = (int32_t)(PARROT_WORDS + p->count);
        p->to[p->count] = n == left ? (int32_t)PARROT_END : (int32_t)(PARROT_WORDS + p->count + 1);
        if (p->count + 1 == PARROT_WORDS) exit(2);
    }
    return start;
}

typedef struct parrot_file { FILE *data; char head[1 << 14]; size_t size, bytes; } parrot_file;

// Appends a tensor of zeros, but for `count` ones: row[i] of column i holds `value`.
static inline void parrot_tensor(parrot_file *f, const char *name, const char *shape, size_t rows, size_t columns, const int32_t *row,
                                 int count, float value) {
    float *line = (float *)allocate(columns * sizeof *line);
    size_t begin = f->bytes;
    for (size_t r = 0; r < rows; r++) {
        memset(line, 0, columns * sizeof *line);
        for (int i = 0; i < count; i++)
            if (row[i] == (int32_t)r) line[i] = value;
        fwrite(line, sizeof *line, columns, f->data);
    }
    free(line);
    f->bytes += rows * columns * sizeof(float);
    f->size += (size_t)sprintf(f->head + f->size, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                               f->size ? "," : "{", name, shape, begin, f->bytes);
}

static inline void parrot_weights(const char *folder, const parrot_chain *p, int vocab, int hidden) {
    static const struct { const char *name; int rows, columns, experts; } small[] = {      // 0: hidden
        {"model.norm.weight", 1, 0, 0}, {"model.layers.0.input_layernorm.weight", 1, 0, 0},
        {"model.layers.0.post_attention_layernorm.weight", 1, 0, 0}, {"model.layers.0.self_attn.q_proj.weight", 32, 0, 0},
        {"model.layers.0.self_attn.k_proj.weight", 16, 0, 0}, {"model.layers.0.self_attn.v_proj.weight", 16, 0, 0},
        {"model.layers.0.self_attn.o_proj.weight", 0, 16, 0}, {"model.layers.0.self_attn.q_norm.weight", 1, 16, 0},
        {"model.layers.0.self_attn.k_norm.weight", 1, 16, 0}, {"model.layers.0.mlp.gate.weight", 2, 0, 0},
        {"model.layers.0.mlp.experts.gate_up_proj", 32, 0, 2}, {"model.layers.0.mlp.experts.down_proj", 0, 16, 2},
        {"model.layers.0.mlp.shared_expert.gate_proj.weight", 16, 0, 0}, {"model.layers.0.mlp.shared_expert.up_proj.weight", 16, 0, 0},
        {"model.layers.0.mlp.shared_expert.down_proj.weight", 0, 16, 0}, {"model.layers.0.mlp.shared_expert_gate.weight", 1, 0, -1}};
    parrot_file f;
    char path[1024], shape[64];
    memset(&f, 0, sizeof f);
    f.data = tmpfile();
    if (!f.data) exit(2);
    snprintf(shape, sizeof shape, "[%d,%d]", vocab, hidden);
    parrot_tensor(&f, "model.embed_tokens.weight", shape, (size_t)vocab, (size_t)hidden, p->from, p->count, 1);
    parrot_tensor(&f, "lm_head.weight", shape, (size_t)vocab, (size_t)hidden, p->to, p->count, 40);
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        int rows = small[i].rows ? small[i].rows : hidden, columns = small[i].columns ? small[i].columns : hidden;
        if (small[i].experts > 0) snprintf(shape, sizeof shape, "[%d,%d,%d]", small[i].experts, rows, columns);
        else if (rows == 1 && !small[i].experts) snprintf(shape, sizeof shape, "[%d]", columns);
        else snprintf(shape, sizeof shape, "[%d,%d]", rows, columns);
        if (small[i].experts > 0) rows *= small[i].experts;
        parrot_tensor(&f, small[i].name, shape, (size_t)rows, (size_t)columns, NULL, 0, 0);
    }
    f.size += (size_t)sprintf(f.head + f.size, "}");
    while (f.size % 8) f.head[f.size++] = ' ';
    uint64_t size = f.size;
    char *all = (char *)allocate(8 + f.size + f.bytes);
    memcpy(all, &size, 8);
    memcpy(all + 8, f.head, f.size);
    rewind(f.data);
    CHECK(fread(all + 8 + f.size, 1, f.bytes, f.data) == f.bytes, "parrot: weights");
    fclose(f.data);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    write_bytes(path, all, 8 + f.size + f.bytes);
    free(all);
}

static inline void parrot_config(const char *folder, int vocab, int hidden) {
    char path[1024], text[2048];
    int n = snprintf(text, sizeof text,
        "{\"architectures\": [\"Qwen3_5MoeForCausalLM\"], \"model_type\": \"qwen3_5_moe_text\", \"vocab_size\": %d, "
        "\"hidden_size\": %d, \"num_hidden_layers\": 1, \"num_attention_heads\": 1, \"num_key_value_heads\": 1, \"head_dim\": 16, "
        "\"linear_conv_kernel_dim\": 2, \"linear_key_head_dim\": 16, \"linear_value_head_dim\": 16, \"linear_num_key_heads\": 1, "
        "\"linear_num_value_heads\": 1, \"moe_intermediate_size\": 16, \"shared_expert_intermediate_size\": 16, "
        "\"num_experts\": 2, \"num_experts_per_tok\": 1, \"rms_norm_eps\": 1e-6, \"eos_token_id\": 4065, \"hidden_act\": \"silu\", "
        "\"max_position_embeddings\": 32768, \"mtp_num_hidden_layers\": 0, \"tie_word_embeddings\": false, "
        "\"layer_types\": [\"full_attention\"], "
        "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0, \"partial_rotary_factor\": 0.5}}", vocab, hidden);
    snprintf(path, sizeof path, "%s/config.json", folder);
    write_bytes(path, text, (size_t)n);
}

// models/demo's tokenizer with the pieces in its vocabulary.
static inline void parrot_tokenizer(const char *folder, const parrot_chain *p, const char *tokenizer, size_t size) {
    char path[1024];
    const char *vocab = strstr(tokenizer, "\"vocab\":{");
    if (!CHECK(vocab != NULL, "parrot: models/demo/tokenizer.json has no vocabulary")) exit(test_main_end());
    char *text = (char *)allocate(size + p->size);
    size_t head = (size_t)(vocab + strlen("\"vocab\":{") - tokenizer);
    memcpy(text, tokenizer, head);
    memcpy(text + head, p->words, p->size);
    memcpy(text + head + p->size, tokenizer + head, size - head);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    write_bytes(path, text, size + p->size);
    free(text);
}

// Writes the checkpoint into a folder that is there. piece: bytes of a token; 2 to 64. generation: generation_config.json; NULL: the usual one,
// "": none. starts[count]: the first token of each script. To be run from the top of the repository.
static inline void parrot_make(const char *folder, const char *const *scripts, int count, int piece, const char *generation,
                               int32_t *starts) {
    static const char *const copied[] = {"chat_template.jinja", "tokenizer_config.json"};
    parrot_chain *p = (parrot_chain *)allocate(sizeof *p);
    char path[1024];
    size_t size, total = 64;
    char *tokenizer = file_bytes("models/demo/tokenizer.json", &size);
    if (!CHECK(tokenizer != NULL, "run this from the top of the repository")) exit(test_main_end());
    for (int i = 0; i < count; i++) total += 64 * (strlen(scripts[i]) + 64);
    p->words = (char *)allocate(total);
    for (int i = 0; i < count; i++) starts[i] = parrot_script(p, tokenizer, scripts[i], piece);
    int vocab = PARROT_WORDS + p->count, hidden = (p->count + 4 + 63) / 64 * 64;
    parrot_tokenizer(folder, p, tokenizer, size);
    parrot_weights(folder, p, vocab, hidden);
    parrot_config(folder, vocab, hidden);
    if (!generation) generation = parrot_generation;
    snprintf(path, sizeof path, "%s/generation_config.json", folder);
    if (*generation) write_bytes(path, generation, strlen(generation));
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "models/demo/%s", copied[i]);
        char *bytes = file_bytes(path, &size);
        snprintf(path, sizeof path, "%s/%s", folder, copied[i]);
        if (CHECK(bytes != NULL, "models/demo lacks %s", copied[i])) write_bytes(path, bytes, size);
        free(bytes);
    }
    free(tokenizer);
    free(p->words);
    free(p);
}

#endif
