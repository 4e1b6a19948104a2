// harmony.h: models/demo with gpt-oss's marks and template, in the temporary folder: its special tokens have other names. Its answers
// are nothing; tests force tokens, or the mask does. To be run from the top of the repository.

#ifndef MOTE_TEST_HARMONY_H
#define MOTE_TEST_HARMONY_H

#include "files.h"

// The least that the family is recognised by; the published text is none of this repository's.
#define HARMONY_TEMPLATE                                                                                        \
    "{% set messages = messages %}{{ '<|start|>system<|message|>' }}{{ build_system_message() }}{{ '<|end|>' }}"   \
    "{% for m in messages %}{{ 'to=functions.' + m.name }}"                                                        \
    "{{ '<|start|>assistant<|channel|>analysis<|message|><|channel|>final<|message|>' + m.content }}{% endfor %}"  \
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"

static const char *const harmony_names[][2] = {
    {"<|im_start|>", "<|start|>"}, {"<|im_end|>", "<|end|>"}, {"<|object_ref_start|>", "<|channel|>"},
    {"<|object_ref_end|>", "<|message|>"}, {"<|box_start|>", "<|constrain|>"}, {"<|box_end|>", "<|call|>"},
    {"<|quad_start|>", "<|return|>"}, {"<think>", "<other>"}, {"</think>", "</other>"}};

// In a tokenizer.json of the temporary folder.
static inline int harmony_rename(const char *file) {
    int ok = 1;
    for (size_t i = 0; i < sizeof harmony_names / sizeof *harmony_names; i++) {
        char from[64], to[64];
        size_t size;
        char *text = file_bytes(temp_path(file), &size), *out = text ? (char *)allocate(size + 64) : NULL;
        snprintf(from, sizeof from, "\"content\":\"%s\"", harmony_names[i][0]);
        snprintf(to, sizeof to, "\"content\":\"%s\"", harmony_names[i][1]);
        char *at = text ? strstr(text, from) : NULL;
        if (!CHECK(at != NULL, "%s: no %s", file, from)) ok = 0;
        if (at) {
            const size_t before = (size_t)(at - text), after = before + strlen(from);
            memcpy(out, text, before);
            memcpy(out + before, to, strlen(to));
            memcpy(out + before + strlen(to), text + after, size - after);
            ok &= temp_write(file, out, size - strlen(from) + strlen(to));
        }
        free(text);
        free(out);
    }
    return ok;
}

// The template, and generation_config.json without the ends that the template has.
static inline int harmony_chats(void) {
    static const char ends[] = "{\"eos_token_id\": 4063}";
    return temp_write("chat_template.jinja", HARMONY_TEMPLATE, sizeof HARMONY_TEMPLATE - 1) &&
           temp_write("generation_config.json", ends, sizeof ends - 1);
}

static inline int harmony_folder(void) {
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json"};
    int ok = harmony_chats();
    for (size_t i = 0; i < 3; i++) {
        char path[64];
        size_t size;
        snprintf(path, sizeof path, "models/demo/%s", files[i]);
        char *bytes = file_bytes(path, &size);
        ok = ok && CHECK(bytes != NULL, "run this from the top of the repository") && temp_write(files[i], bytes, size);
        free(bytes);
    }
    return ok && harmony_rename("tokenizer.json");
}

#endif
