// Tests of layers with a dense FFN among those with experts (Qwen3 MoE: mlp_only_layers, decoder_sparse_step): which they are, and that such a
// model computes what it is defined to.
// Usage: test_dense_layers

#include "inside.h"
#include "api.h"
#include "files.h"
#include "folders.h"

enum { HIDDEN_SIZE = 24, FFN_SIZE = 20, LAYERS_ALL = 4, EXPERTS_ALL = 3, TOKENS_ALL = 40 };

static void dense_config(const char *keys) {
    char text[1024];
    snprintf(text, sizeof text, "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":%d,\"hidden_size\":%d,\"vocab_size\":%d,\"num_attention_heads\":2,"
             "\"num_key_value_heads\":1,\"head_dim\":12,\"intermediate_size\":%d,\"moe_intermediate_size\":%d,\"num_experts\":%d,"
             "\"num_experts_per_tok\":2,\"norm_topk_prob\":true%s}", LAYERS_ALL, HIDDEN_SIZE, TOKENS_ALL, FFN_SIZE, FFN_SIZE, EXPERTS_ALL, keys);
    temp_text(CONFIG, text);
}

// Which layers are dense, as a word.
static void test_which_dense(void) {
    static const struct { const char *keys, *dense, *refused; } cases[] = {
        {"", "eeee", NULL}, {"'mlp_only_layers':[]", "eeee", NULL}, {"'mlp_only_layers':null,'decoder_sparse_step':null", "eeee", NULL},
        {"'mlp_only_layers':[0]", "deee", NULL}, {"'mlp_only_layers':[3,1]", "eded", NULL}, {"'decoder_sparse_step':2", "dede", NULL},
        {"'decoder_sparse_step':1.0", "eeee", NULL}, {"'decoder_sparse_step':2,'mlp_only_layers':[1]", "ddde", NULL}, {"'decoder_sparse_step':3", "dded", NULL},
        {"'mlp_only_layers':[9]", "eeee", NULL}, {"'mlp_only_layers':[-1]", "", "mlp_only_layers must list layers by number"},
        {"'mlp_only_layers':['0']", "", "mlp_only_layers must list"}, {"'mlp_only_layers':2", "", "mlp_only_layers is 2, mote supports null only"},
        {"'decoder_sparse_step':0", "", "decoder_sparse_step must be a whole number from 1"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char keys[QUOTED], all[LAYERS_ALL + 1] = "";
        config c;
        mote_error err = {0};
        keys[0] = 0;
        if (*cases[i].keys) {
            keys[0] = ',';
            quoted(cases[i].keys, keys + 1);
        }
        temp_empty();
        dense_config(keys);
        const int code = config_read(&c, temp_dir, &err);
        CHECK(!code == !cases[i].refused && (!code || strstr(err.message, cases[i].refused)), "%s: code %d: %s", cases[i].keys, code, err.message);
        if (code) continue;
        for (int l = 0; l < LAYERS_ALL; l++) {
            const sublayer_shape *ffn = &c.layer[l].ffn;
            all[l] = ffn->kind == LAYER_MLP ? 'd' : 'e';
            CHECK(ffn->kind != LAYER_MLP || ffn->of.mlp.size == FFN_SIZE, "%s: layer %d", cases[i].keys, l);
        }
        CHECK(!strcmp(all, cases[i].dense), "%s: %s, expected %s", cases[i].keys, all, cases[i].dense);
        config_free(&c);
    }
}

// A tensor of random numbers that follow from `seed`; norms are near 1.
static void add_part(parts *p, const char *name, int rows, int cols, uint32_t seed) {
    part *t = &p->list[p->n++];
    char shape[32];
    snprintf(t->name, sizeof t->name, "%s", name);
    snprintf(shape, sizeof shape, cols ? "%d,%d" : "%d", rows, cols);
    part_set(t, "F32", shape);
    for (size_t i = 0; i < t->size / 4; i++) {
        seed = seed * 1664525u + 1013904223u;
        const float value = (float)(seed >> 8) / 16777216.0f - 0.5f + (cols ? 0 : 1);
        memcpy(t->data + 4 * i, &value, 4);
    }
}

static void add_ffn(parts *p, const char *where, uint32_t seed) {
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj"};
    for (int k = 0; k < 3; k++) {
        char name[128];
        snprintf(name, sizeof name, "%s%s.weight", where, names[k]);
        add_part(p, name, k < 2 ? FFN_SIZE : HIDDEN_SIZE, k < 2 ? HIDDEN_SIZE : FFN_SIZE, seed + (uint32_t)k);
    }
}

// A model whose layers 0 and 2 are dense, or have experts that are all alike and so are a dense FFN.
static mote_model *dense_model(int dense) {
    static const struct { const char *name; int rows, cols; } tensors[] = {
        {"input_layernorm", HIDDEN_SIZE, 0}, {"post_attention_layernorm", HIDDEN_SIZE, 0}, {"self_attn.q_proj", 24, HIDDEN_SIZE},
        {"self_attn.k_proj", 12, HIDDEN_SIZE}, {"self_attn.v_proj", 12, HIDDEN_SIZE}, {"self_attn.o_proj", HIDDEN_SIZE, 24},
        {"self_attn.q_norm", 12, 0}, {"self_attn.k_norm", 12, 0}};
    parts *p = (parts *)allocate(sizeof *p);
    mote_options o = {.device = "cpu", .parts = MOTE_WEIGHTS_ONLY};
    mote_model *m = NULL;
    memset(p, 0, sizeof *p);
    add_part(p, "model.embed_tokens.weight", TOKENS_ALL, HIDDEN_SIZE, 1);
    add_part(p, "lm_head.weight", TOKENS_ALL, HIDDEN_SIZE, 2);
    add_part(p, "model.norm.weight", HIDDEN_SIZE, 0, 3);
    for (int l = 0; l < LAYERS_ALL; l++) {
        const uint32_t seed = 1000u * (uint32_t)(l + 1);
        char name[128];
        for (size_t t = 0; t < COUNT(tensors); t++) {
            snprintf(name, sizeof name, "model.layers.%d.%s.weight", l, tensors[t].name);
            add_part(p, name, tensors[t].rows, tensors[t].cols, seed + (uint32_t)t);
        }
        snprintf(name, sizeof name, "model.layers.%d.mlp.", l);
        if (dense && l % 2 == 0) {
            add_ffn(p, name, seed + 100);
            continue;
        }
        for (int e = 0; e < EXPERTS_ALL; e++) {
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.", l, e);
            add_ffn(p, name, seed + 100 + (l % 2 ? 10 * (uint32_t)e : 0));
        }
        snprintf(name, sizeof name, "model.layers.%d.mlp.gate.weight", l);
        add_part(p, name, EXPERTS_ALL, HIDDEN_SIZE, seed + 200);
    }
    temp_empty();
    dense_config(dense ? ",\"decoder_sparse_step\":2" : "");
    parts_write(p, F);
    parts_free(p);
    EXPECT(MOTE_OK, mote_open(temp_dir, &o, &m, &failure));
    return m;
}

// All logits of two models by definition are the same: a weighted mean of equal experts is one of them. And the CPU's code computes them.
static void test_dense_among_experts(void) {
    enum { T = 24 };
    mote_model *with[2] = {dense_model(1), dense_model(0)};
    double *defined[2];
    float *as_float[2], *fast = (float *)allocate(T * TOKENS_ALL * sizeof *fast);
    int32_t ids[T];
    for (int t = 0; t < T; t++) ids[t] = (7 * t + 3) % TOKENS_ALL;
    for (int k = 0; k < 2; k++) {
        defined[k] = (double *)allocate(T * TOKENS_ALL * sizeof **defined);
        as_float[k] = (float *)allocate(T * TOKENS_ALL * sizeof **as_float);
        CHECK(with[k] && definition_model(with[k], ids, T, defined[k], NULL), "a model by definition");
        for (int i = 0; i < T * TOKENS_ALL; i++) as_float[k][i] = (float)defined[k][i];
    }
    CHECK(with[0] && with[0]->layers[0].ffn.kind == LAYER_MLP && with[0]->layers[1].ffn.kind == LAYER_MOE, "kinds of layers");
    CHECK(off(as_float[0], as_float[1], T * TOKENS_ALL) < 1e-6, "dense layers are off by %g", off(as_float[0], as_float[1], T * TOKENS_ALL));
    for (int chunk = 1; with[0] && chunk <= T; chunk += 5) {
        mote_session *s = session_of(with[0], .context = T, .chunk = chunk, .threads = 2);
        EXPECT(MOTE_OK, mote_feed_logits(s, ids, T, fast, NULL, &failure));
        CHECK(off(fast, as_float[0], T * TOKENS_ALL) < 5e-6, "chunks of %d: off the definition by %g", chunk, off(fast, as_float[0], T * TOKENS_ALL));
        mote_session_close(s);
    }
    for (int k = 0; k < 2; k++) {
        free(defined[k]);
        free(as_float[k]);
        mote_close(with[k]);
    }
    free(fast);
}

int main(int argc, char **argv) {
    test_main_begin("test_dense_layers", argc, argv);
    if (!temp_open()) return test_main_end();
    test_which_dense();
    test_dense_among_experts();
    temp_close();
    return test_main_end();
}
