// vision.h: models/demo with a small vision tower of random weights, and two pictures: what it says of a picture means nothing,
// but it depends on it.

#ifndef MOTE_TEST_VISION_H
#define MOTE_TEST_VISION_H

#include "files.h"

// Of 64 x 64 pixels, four tokens.
#define RED_PNG "iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAIAAAAlC+aJAAAAUElEQVR42u3PQQkAAAgEsAvh2/5RjGUE38JgBZbpei0CAgICAgIC" \
    "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICApcFiHug4iaENpYAAAAASUVORK5CYII="
#define BROKEN_PNG "iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAIAAAAlC+aJ"             // its header alone
#define BLUE_PNG "iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAIAAAAlC+aJAAAAUElEQVR42u3PQQkAAAgEsHubxP55DGME38JgBZbqeS0CAgICAgIC" \
    "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICApcF63rg8RwTh4wAAAAASUVORK5CYII="

enum { VISION_START = 4072, VISION_END, VISION_PAD = 4075, VISION_VIDEO };         // tokens of models/demo

typedef struct vision_file { char *head, *data; size_t head_size, size; } vision_file;

// Appends a tensor of small random numbers around `centre`.
static inline void vision_tensor(vision_file *f, const char *name, const char *shape, size_t count, float centre) {
    f->data = (char *)realloc(f->data, f->size + count * sizeof(float));
    f->head = (char *)realloc(f->head, f->head_size + 512);
    if (!f->data || !f->head) exit(2);
    for (size_t i = 0; i < count; i++) {
        const float value = centre + (float)random_int(-1000, 1000) / 8000;
        memcpy(f->data + f->size + i * sizeof value, &value, sizeof value);
    }
    f->head_size += (size_t)sprintf(f->head + f->head_size, "%s\"model.visual.%s\":{\"dtype\":\"F32\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                                    f->head_size ? "," : "{", name, shape, f->size, f->size + count * sizeof(float));
    f->size += count * sizeof(float);
}

// A matrix and its bias.
static inline void vision_linear(vision_file *f, const char *name, int out, int in) {
    char full[128], shape[64];
    snprintf(full, sizeof full, "%s.weight", name);
    snprintf(shape, sizeof shape, "[%d,%d]", out, in);
    vision_tensor(f, full, shape, (size_t)out * (size_t)in, 0);
    snprintf(full, sizeof full, "%s.bias", name);
    snprintf(shape, sizeof shape, "[%d]", out);
    vision_tensor(f, full, shape, (size_t)out, 0);
}

static inline void vision_norm(vision_file *f, const char *name, int size) {
    char full[128], shape[64];
    snprintf(shape, sizeof shape, "[%d]", size);
    snprintf(full, sizeof full, "%s.weight", name);
    vision_tensor(f, full, shape, (size_t)size, 1);
    snprintf(full, sizeof full, "%s.bias", name);
    vision_tensor(f, full, shape, (size_t)size, 0);
}

static inline void vision_weights(const char *path) {
    enum { D = 32, M = 48, OUT = 256, PLACES = 16 };
    vision_file f = {NULL, NULL, 0, 0};
    vision_tensor(&f, "patch_embed.proj.weight", "[32,3,2,16,16]", D * 3 * 2 * 16 * 16, 0);
    vision_tensor(&f, "patch_embed.proj.bias", "[32]", D, 0);
    vision_tensor(&f, "pos_embed.weight", "[16,32]", PLACES * D, 0);
    vision_norm(&f, "blocks.0.norm1", D);
    vision_norm(&f, "blocks.0.norm2", D);
    vision_linear(&f, "blocks.0.attn.qkv", 3 * D, D);
    vision_linear(&f, "blocks.0.attn.proj", D, D);
    vision_linear(&f, "blocks.0.mlp.linear_fc1", M, D);
    vision_linear(&f, "blocks.0.mlp.linear_fc2", D, M);
    vision_norm(&f, "merger.norm", D);
    vision_linear(&f, "merger.linear_fc1", 4 * D, 4 * D);
    vision_linear(&f, "merger.linear_fc2", OUT, 4 * D);
    f.head[f.head_size++] = '}';
    while (f.head_size % 8) f.head[f.head_size++] = ' ';
    const uint64_t head = f.head_size;
    char *all = (char *)allocate(8 + f.head_size + f.size);
    memcpy(all, &head, 8);
    memcpy(all + 8, f.head, f.head_size);
    memcpy(all + 8 + f.head_size, f.data, f.size);
    write_bytes(path, all, 8 + f.head_size + f.size);
    free(all);
    free(f.head);
    free(f.data);
}

// Inserts a text after the first place of another.
static inline void vision_insert(char **text, size_t *size, const char *after, const char *what) {
    char *at = strstr(*text, after);
    if (!CHECK(at != NULL, "models/demo: no %s", after)) exit(test_main_end());
    const size_t head = (size_t)(at - *text) + strlen(after), n = strlen(what);
    char *longer = (char *)allocate(*size + n);
    memcpy(longer, *text, head);
    memcpy(longer + head, what, n);
    memcpy(longer + head + n, *text + head, *size - head);
    free(*text);
    *text = longer;
    *size += n;
}

// Writes the checkpoint into a folder that is there. To be run from the top of the repository.
static inline void vision_make(const char *folder) {
    static const char *const copied[] = {"chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                                         "tokenizer_config.json"};
    static const char index[] = "{\"weight_map\": {\"model.visual.pos_embed.weight\": \"tower.safetensors\", \"model.language_model.norm.weight\": \"model.safetensors\"}}";
    static const char processor[] = "{\"size\": {\"shortest_edge\": 4096, \"longest_edge\": 4194304}}";
    char path[1024];
    for (size_t i = 0; i < sizeof copied / sizeof *copied; i++) {
        size_t size;
        snprintf(path, sizeof path, "models/demo/%s", copied[i]);
        char *bytes = file_bytes(path, &size);
        if (!CHECK(bytes != NULL, "%s: run this from the top of the repository", path)) exit(test_main_end());
        if (!strcmp(copied[i], "config.json")) {
            vision_insert(&bytes, &size, "\"rope_parameters\": {", "\"mrope_section\": [3, 3, 2], \"mrope_interleaved\": true, ");
            vision_insert(&bytes, &size, "{", "\"image_token_id\": 4075, \"video_token_id\": 4076, \"vision_start_token_id\": 4072, "
                          "\"vision_end_token_id\": 4073, \"vision_config\": {\"depth\": 1, \"hidden_size\": 32, \"num_heads\": 2, "
                          "\"intermediate_size\": 48, \"out_hidden_size\": 256, \"num_position_embeddings\": 16, \"patch_size\": 16, "
                          "\"temporal_patch_size\": 2, \"spatial_merge_size\": 2, \"in_channels\": 3, \"hidden_act\": \"gelu_pytorch_tanh\", "
                          "\"deepstack_visual_indexes\": [], \"model_type\": \"qwen3_5_moe\"}, ");
        }
        snprintf(path, sizeof path, "%s/%s", folder, copied[i]);
        write_bytes(path, bytes, size);
        free(bytes);
    }
    snprintf(path, sizeof path, "%s/tower.safetensors", folder);
    vision_weights(path);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    write_bytes(path, index, sizeof index - 1);
    snprintf(path, sizeof path, "%s/preprocessor_config.json", folder);
    write_bytes(path, processor, sizeof processor - 1);
}

#endif
