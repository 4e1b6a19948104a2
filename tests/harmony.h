// harmony.h: models/demo with gpt-oss's marks and template, in the temporary folder: its special tokens have other names. Its answers
// are nothing; tests force tokens, or the mask does. To be run from the top of the repository.

#ifndef MOTE_TEST_HARMONY_H
#define MOTE_TEST_HARMONY_H

#include "folders.h"

// The least that the family is recognised by; the published text is none of this repository's.
#define HARMONY_TEMPLATE                                                                                                                 \
    "{% set messages = messages %}{{ '<|start|>system<|message|>' }}{{ build_system_message() }}{{ '<|end|>' }}{% for m in messages %}{{ 'to=functions.' + m.name }}"     \
    "{{ '<|start|>assistant<|channel|>analysis<|message|><|channel|>final<|message|>' + m.content }}{% endfor %}"                            \
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"

static const char *const harmony_names[][2] = {
    {"<|im_start|>", "<|start|>"}, {"<|im_end|>", "<|end|>"}, {"<|object_ref_start|>", "<|channel|>"}, {"<|object_ref_end|>", "<|message|>"},
    {"<|box_start|>", "<|constrain|>"}, {"<|box_end|>", "<|call|>"}, {"<|quad_start|>", "<|return|>"}, {"<think>", "<other>"}, {"</think>", "</other>"}};

static int harmony_rename(const char *file) {
    int ok = 1;
    for (size_t i = 0; i < COUNT(harmony_names); i++) {
        char from[64], to[64];
        snprintf(from, sizeof from, "\"content\":\"%s\"", harmony_names[i][0]);
        snprintf(to, sizeof to, "\"content\":\"%s\"", harmony_names[i][1]);
        ok &= CHECK(temp_replace(file, from, to), "%s: no %s", file, from);
    }
    return ok;
}

static int harmony_folder(void) {
    const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json"};
    int ok = temp_text("chat_template.jinja", HARMONY_TEMPLATE) && temp_text("generation_config.json", "{\"eos_token_id\": 4063}");
    for (size_t i = 0; i < COUNT(files); i++) ok = ok && temp_copy("models/demo", files[i]);
    return ok && harmony_rename("tokenizer.json");
}

#endif
