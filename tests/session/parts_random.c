/* A part of test_parts: checkpoints of random weights, in the temporary folder, whose sizes 2 and 3 ranks divide with whole blocks and groups. */

/* Numbers of config.json that are others than in the fixture. */
typedef struct random_size { const char *key, *value; } random_size;

/* key_heads 6 by 16, value_heads 12 by 64: 768 columns, as of attention and experts. The vocabulary cannot be divided evenly. */
static const random_size random_qwen[] = {
    {"hidden_size", "128"}, {"vocab_size", "770"}, {"num_attention_heads", "24"}, {"num_key_value_heads", "6"}, {"head_dim", "32"},
    {"linear_num_key_heads", "6"}, {"linear_num_value_heads", "12"}, {"linear_key_head_dim", "16"}, {"linear_value_head_dim", "64"},
    {"moe_intermediate_size", "768"}, {"shared_expert_intermediate_size", "768"}, {NULL, NULL}};
/* In brief: for NVFP4 in groups of 16 columns and FP8 with one scale. */
static const random_size random_small[] = {
    {"hidden_size", "64"}, {"vocab_size", "98"}, {"num_attention_heads", "12"}, {"num_key_value_heads", "6"}, {"head_dim", "16"},
    {"linear_num_key_heads", "6"}, {"linear_num_value_heads", "6"}, {"linear_key_head_dim", "16"}, {"linear_value_head_dim", "16"},
    {"moe_intermediate_size", "96"}, {"shared_expert_intermediate_size", "96"}, {NULL, NULL}};
static const random_size random_gpt_oss[] = {
    {"hidden_size", "64"}, {"vocab_size", "133"}, {"num_attention_heads", "12"}, {"num_key_value_heads", "6"}, {"intermediate_size", "192"},
    {NULL, NULL}};

static void random_config(const char *fixture, const random_size *sizes) {
    char path[600];
    size_t size;
    snprintf(path, sizeof path, "%s/config.json", fixture);
    char *json = file_bytes(path, &size);
    if (!CHECK(json != NULL, "%s: run this from the top of the repository", path)) exit(test_main_end());
    for (; sizes->key; sizes++) set_number(&json, &size, sizes->key, sizes->value);
    temp_empty();
    temp_write("config.json", json, size);
    free(json);
}

/* From -1 to 1. */
static float random_float(void) {
    return (float)(int32_t)random_bits() * 0x1p-31f;
}

/* A tensor's number, by its name: weights of all formats deviate by about a tenth. */
static float random_number_of(const char *name) {
    if (strstr(name, "norm")) return 1 + 0.2f * random_float();
    if (strstr(name, "A_log") || strstr(name, "dt_bias")) return random_float();
    if (strstr(name, "conv1d")) return 0.5f * random_float();
    if (strstr(name, "scale_2")) return 0.03f;              /* NVFP4's, of codes up to 6 */
    if (strstr(name, "scale_inv")) return 0.1f + 0.01f * random_float();
    if (strstr(name, "scale")) return strstr(name, "experts") || strstr(name, "proj") ? 0.06f + 0.01f * random_float() : 0.1f;
    return 0.15f * random_float();
}

static void random_tensor(const tensor *t, const char *name, const tensor_table *all, char *to) {
    const size_t n = (size_t)t->size;
    char packed[256];
    if (t->type == TYPE_F32)
        for (size_t i = 0; i < n / 4; i++) ((float *)(void *)to)[i] = random_number_of(name);
    else if (t->type == TYPE_BF16)
        for (size_t i = 0; i < n / 2; i++) {
            const float f = random_number_of(name);
            memcpy(to + 2 * i, (const char *)&f + 2, 2);
        }
    else if (strstr(name, "weight_shape")) {
        snprintf(packed, sizeof packed, "%.*s_packed", (int)(strstr(name, "_shape") - name), name);
        const tensor *of = table_find(all, packed);
        const int64_t shape[2] = {(int64_t)of->shape[0], (int64_t)of->shape[1] * 8};
        memcpy(to, shape, sizeof shape);
    } else
        for (size_t i = 0; i < n; i++) {
            const uint32_t bits = random_bits();
            const int e4m3 = t->type == TYPE_FP8, scale = strstr(name, "scale") != NULL;
            to[i] = (char)(e4m3 ? 0x30 + bits % 16 + (scale ? 0 : bits >> 8 & 0x80) : scale ? 121 + bits % 2 : bits);
        }
}

/* A checkpoint of a fixture's family with these sizes, stored as published ones are in that format. */
static void random_checkpoint(const char *fixture, const random_size *sizes, const char *mix) {
    checkpoint files;
    buf header, data;
    char text[512];
    random_config(fixture, sizes);
    mote_model *m = model_new("cpu", 1, &(mote_callbacks){0}, &failure);
    memset(&files, 0, sizeof files);
    memset(&header, 0, sizeof header);
    memset(&data, 0, sizeof data);
    files.dir = temp_dir;
    EXPECT(MOTE_OK, config_read(&m->c, temp_dir, &failure));
    EXPECT(MOTE_OK, model_publish(m, &files, recipe_named(mix), &failure));
    for (size_t i = 0; i < table_count(&files.table); i++) {
        const tensor *t = table_at(&files.table, i);
        const char *name = table_name(&files.table, t);
        char *bytes = (char *)allocate((size_t)t->size);
        snprintf(text, sizeof text, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? ',' : '{', name, container_types[t->type].name);
        buf_text(&header, text);
        for (int d = 0; d < t->dims; d++) {
            snprintf(text, sizeof text, "%s%llu", d ? "," : "", (unsigned long long)t->shape[d]);
            buf_text(&header, text);
        }
        snprintf(text, sizeof text, "],\"data_offsets\":[%zu,%zu]}", data.size, data.size + (size_t)t->size);
        buf_text(&header, text);
        random_tensor(t, name, &files.table, bytes);
        buf_add(&data, bytes, (size_t)t->size);
        free(bytes);
    }
    buf_text(&header, "}");
    uint64_t size = header.size;
    FILE *file = fopen(temp_path("model.safetensors"), "wb");
    CHECK(file && fwrite(&size, 8, 1, file) == 1 && fwrite(header.data, header.size, 1, file) == 1 && fwrite(data.data, data.size, 1, file) == 1,
          "a random checkpoint");
    if (file) fclose(file);
    buf_free(&header);
    buf_free(&data);
    checkpoint_close(&files);
    mote_close(m);
}
