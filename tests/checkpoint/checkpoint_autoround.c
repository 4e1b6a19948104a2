// checkpoint_autoround.c: dense models in INT4 as AutoRound writes them, in each of its packings, beside the numbers that they stand for.
// Part of test_checkpoint.

enum { AR_HIDDEN = 64, AR_SIZE = 128, AR_LAYERS = 2, AR_HEADS = 2, AR_KV = 1, AR_HEAD = 32, AR_VOCAB = 48, AR_GROUP = 32 };

enum autoround_packing { AR_GPTQ, AR_ZEROS, AR_AWQ };      // zero points less one; as they are; rows in eights, in AWQ's order

typedef struct autoround {
    const char *title, *config;  // of quantization_config, beside bits and group_size
    enum autoround_packing packing;
    int symmetric, negative;     // zero points of 8 alone; some scales below 0
} autoround;

// A number below n that belongs to a place in a matrix.
static uint32_t ar_pick(int seed, int row, int column, uint32_t n) {
    const int place[3] = {seed, row, column};
    return (uint32_t)(fnv1a(FNV_START, place, sizeof place) >> 20) % n;
}

static uint32_t ar_code(int seed, int row, int column) {
    return ar_pick(seed, row, column, 16);
}

static uint32_t ar_zero(const autoround *a, int seed, int row, int group) {
    return a->symmetric ? 8 : 1 + ar_pick(seed + 1, row, group, 15);
}

static float ar_scale(const autoround *a, int seed, int row, int group) {
    const float scale = 0x1p-8f * (float)(4 + ar_pick(seed + 2, row, group, 4));
    return a->negative && ar_pick(seed + 3, row, group, 4) == 0 ? -scale : scale;
}

static float ar_weight(const autoround *a, int seed, int row, int column) {
    const int group = column / AR_GROUP;
    return ((float)ar_code(seed, row, column) - (float)ar_zero(a, seed, row, group)) * ar_scale(a, seed, row, group);
}

static part *ar_part(parts *all, const char *where, const char *what, const char *type, int rows, int columns) {
    part *t = &all->list[all->n++];
    char shape[40];
    snprintf(t->name, sizeof t->name, "%s%s", where, what);
    snprintf(shape, sizeof shape, columns ? "%d,%d" : "%d", rows, columns);
    part_set(t, type, shape);
    return t;
}

// A matrix as it is, its numbers in BF16: whole numbers times a power of two.
static void ar_plain(parts *all, const char *where, int seed, int rows, int columns) {
    part *t = ar_part(all, where, ".weight", "BF16", rows, columns);
    for (int i = 0; i < rows * (columns ? columns : 1); i++) {
        const float value = columns ? 0x1p-6f * ((float)ar_pick(seed, i / columns, i % columns, 31) - 15) : 1 + 0x1p-5f * (float)ar_pick(seed, i, 0, 16);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        ((uint16_t *)(void *)t->data)[i] = (uint16_t)(bits >> 16);
    }
}

// Element i of the eight in a word, which was 0.
static void ar_put(part *t, size_t word, int i, uint32_t value) {
    ((uint32_t *)(void *)t->data)[word] |= value << 4 * i;
}

static void ar_matrix(parts *all, const autoround *a, const char *where, int seed, int rows, int columns) {
    static const int places[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    const int awq = a->packing == AR_AWQ, groups = columns / AR_GROUP;
    part *codes = ar_part(all, where, ".qweight", "I32", awq ? columns : columns / 8, awq ? rows / 8 : rows);
    part *zeros = ar_part(all, where, ".qzeros", "I32", groups, rows / 8), *scales = ar_part(all, where, ".scales", "F16", groups, rows);
    for (int row = 0; row < rows; row++) {
        const int place = awq ? places[row % 8] : row % 8;
        for (int column = 0; column < columns; column++) {
            const int word = awq ? column * (rows / 8) + row / 8 : column / 8 * rows + row;
            ar_put(codes, (size_t)word, awq ? place : column % 8, ar_code(seed, row, column));
        }
        for (int g = 0; g < groups; g++) {
            const float scale = ar_scale(a, seed, row, g);                    // k * 2^-8, k from 4 to 7: of exponent -6
            ar_put(zeros, (size_t)(g * (rows / 8) + row / 8), place, ar_zero(a, seed, row, g) - (a->packing == AR_GPTQ));
            ((uint16_t *)(void *)scales->data)[g * rows + row] =
                (uint16_t)((scale < 0 ? 0x8000 : 0) | 9 << 10 | ((int)(fabsf(scale) * 0x1p8f) - 4) << 8);
        }
    }
}

static const struct { const char *name; int rows, columns, of_mlp; size_t at; } ar_matrices[] = {
    {"self_attn.q_proj", AR_HEADS * AR_HEAD, AR_HIDDEN, 0, offsetof(attention_weights, q_proj)},
    {"self_attn.k_proj", AR_KV * AR_HEAD, AR_HIDDEN, 0, offsetof(attention_weights, k_proj)},
    {"self_attn.v_proj", AR_KV * AR_HEAD, AR_HIDDEN, 0, offsetof(attention_weights, v_proj)},
    {"self_attn.o_proj", AR_HIDDEN, AR_HEADS * AR_HEAD, 0, offsetof(attention_weights, o_proj)},
    {"mlp.gate_proj", AR_SIZE, AR_HIDDEN, 1, offsetof(mlp_weights, gate_proj)},
    {"mlp.up_proj", AR_SIZE, AR_HIDDEN, 1, offsetof(mlp_weights, up_proj)},
    {"mlp.down_proj", AR_HIDDEN, AR_SIZE, 1, offsetof(mlp_weights, down_proj)}};

enum { AR_MATRICES = sizeof ar_matrices / sizeof *ar_matrices };

// Of the last layer down_proj stays as it is, which extra_config says.
static int ar_is_plain(int layer, int i) {
    return layer == AR_LAYERS - 1 && i == AR_MATRICES - 1;
}

static int ar_seed(int layer, int i) {
    return 100 * (layer * AR_MATRICES + i + 1);
}

// A checkpoint of the family in the temporary folder.
static void ar_folder(const char *family, const autoround *a) {
    const int normed = !strcmp(family, "qwen3");
    parts *all = (parts *)calloc(1, sizeof *all);
    char text[QUOTED], json[QUOTED], where[128];
    temp_empty();
    snprintf(text, sizeof text, "{'model_type':'%s','num_hidden_layers':%d,'hidden_size':%d,'vocab_size':%d,'num_attention_heads':%d,"
             "'num_key_value_heads':%d,'head_dim':%d,'intermediate_size':%d,'max_position_embeddings':64,'quantization_config':{"
             "'quant_method':'auto-round','bits':4,'group_size':%d,'data_type':'int',%s,'extra_config':{'model.layers.%d.mlp.down_proj':"
             "{'bits':16,'data_type':'fp'}}}}", family, AR_LAYERS, AR_HIDDEN, AR_VOCAB, AR_HEADS, AR_KV, AR_HEAD, AR_SIZE, AR_GROUP, a->config,
             AR_LAYERS - 1);
    temp_text(CONFIG, quoted(text, json));
    ar_plain(all, "model.embed_tokens", 1, AR_VOCAB, AR_HIDDEN);
    ar_plain(all, "lm_head", 2, AR_VOCAB, AR_HIDDEN);
    ar_plain(all, "model.norm", 3, AR_HIDDEN, 0);
    for (int l = 0; l < AR_LAYERS; l++) {
        static const char *const norms[] = {"input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"};
        for (int i = 0; i < (normed ? 4 : 2); i++) {
            snprintf(where, sizeof where, "model.layers.%d.%s", l, norms[i]);
            ar_plain(all, where, 4 + 4 * l + i, i < 2 ? AR_HIDDEN : AR_HEAD, 0);
        }
        for (int i = 0; i < AR_MATRICES; i++) {
            snprintf(where, sizeof where, "model.layers.%d.%s", l, ar_matrices[i].name);
            if (ar_is_plain(l, i)) ar_plain(all, where, ar_seed(l, i), ar_matrices[i].rows, ar_matrices[i].columns);
            else ar_matrix(all, a, where, ar_seed(l, i), ar_matrices[i].rows, ar_matrices[i].columns);
        }
    }
    parts_write(all, F);
    parts_free(all);
}

// Every matrix has the numbers that its codes stand for.
static void ar_check_matrices(const char *title, const autoround *a, const mote_model *m) {
    for (int l = 0; l < AR_LAYERS; l++)
        for (int i = 0; i < AR_MATRICES; i++) {
            const char *weights = ar_matrices[i].of_mlp ? (const char *)&m->layers[l].ffn.w.mlp : (const char *)&m->layers[l].mixer.w.attention;
            const matrix *w = (const matrix *)(const void *)(weights + ar_matrices[i].at);
            float row[AR_SIZE];
            int wrong = w->rows != ar_matrices[i].rows || w->cols != ar_matrices[i].columns;
            for (int r = 0; r < w->rows && !wrong; r++) {
                matrix_floats(w, r, 0, w->cols, row);
                for (int c = 0; c < w->cols && !ar_is_plain(l, i); c++) wrong += row[c] != ar_weight(a, ar_seed(l, i), r, c);
            }
            CHECK(!wrong && w->format == (ar_is_plain(l, i) ? FORMAT_BF16 : FORMAT_INT4), "%s: layer %d %s: %d wrong numbers", title, l, ar_matrices[i].name,
                  wrong);
        }
}

static void ar_check_logits(const char *title, const mote_model *m) {
    enum { T = 9 };
    static const int32_t ids[T] = {1, 7, 3, 40, 42, 7, 9, 11, 2};
    double want[T * AR_VOCAB], worst = 0, square = 0;
    float got[T * AR_VOCAB];
    mote_session *s = session_of(m, .context = 16, .threads = 1);
    CHECK(definition_model(m, ids, T, want, NULL), "%s: out of memory", title);
    EXPECT(MOTE_OK, mote_feed_logits(s, ids, T, got, NULL, &failure));
    for (int i = 0; i < T * AR_VOCAB; i++) {
        worst = fmax(worst, fabs((double)got[i] - want[i]));
        square += want[i] * want[i];
    }
    CHECK(worst <= 1e-5 * sqrt(square / (T * AR_VOCAB)) && square > 0, "%s: %g off the definition", title, worst);
    mote_session_close(s);
}

static void test_autoround(void) {
    static const autoround kinds[] = {                      // title, config, packing, symmetric, negative
        {"auto_gptq", "'packing_format':'auto_round:auto_gptq','sym':true,'autoround_version':'0.10.2'", AR_GPTQ, 1, 1},
        {"auto_gptq, zero points", "'packing_format':'auto_round:auto_gptq','sym':false", AR_GPTQ, 0, 0},
        {"auto_round", "'packing_format':'auto_round','sym':false", AR_ZEROS, 0, 0},
        {"gptqmodel", "'packing_format':'auto_round:gptqmodel','sym':false", AR_ZEROS, 0, 1},
        {"auto_awq", "'packing_format':'auto_round:auto_awq','sym':true", AR_AWQ, 1, 0},
        {"auto_awq, zero points", "'packing_format':'auto_round:auto_awq','sym':false", AR_AWQ, 0, 0}};
    static const char *const families[] = {"llama", "qwen3"}, *const none[3] = {NULL};
    for (size_t i = 0; i < COUNT(kinds) * COUNT(families); i++) {
        const autoround *a = &kinds[i / COUNT(families)];
        char title[80];
        snprintf(title, sizeof title, "%s, %s", families[i % COUNT(families)], a->title);
        ar_folder(families[i % COUNT(families)], a);
        check_plan(title, OK, none);
        mote_model *m = model_on("cpu", temp_dir, MOTE_WEIGHTS_ONLY);
        ar_check_matrices(title, a, m);
        ar_check_logits(title, m);
        mote_close(m);
    }
    // a module of eight bits, which extra_config allows, is refused by its name
    static const char o_proj[] = "model.layers.0.self_attn.o_proj.qweight", *const eight[3] = {F, o_proj, "shape"};
    const wrong_folder wide = {.title = "eight bits", .fixture = TIED, .edit = RETYPE, .file = F, .a = o_proj, .b = "I32", .c = "16,64", .code = BAD};
    ar_folder("llama", &kinds[0]);
    apply_edit(&wide);
    check_open(wide.title, MOTE_WEIGHTS_ONLY, BAD, eight);
    check_plan(wide.title, BAD, eight);
}
