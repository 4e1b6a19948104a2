// gemma.h: a small model with Gemma 4's tokenizer and chat template in the temporary folder: the bundled model's weights, the tokenizer of
// tests/fixtures/gemma4, and the least template that is recognised.

#ifndef MOTE_TEST_GEMMA_H
#define MOTE_TEST_GEMMA_H

#include "folders.h"
#include "templates.h"

// july: the text of July 2026. One generation_config.json that lacks the token which opens results: the template's family knows it.
static void gemma_folder(int july) {
    temp_empty();
    temp_copy("models/demo", "config.json");
    temp_copy("models/demo", "model.safetensors");
    temp_copy("tests/fixtures/gemma4", "tokenizer.json");
    temp_text("chat_template.jinja", july ? GEMMA_LEAST("{{ filter_keys + preserve_thinking }}") : GEMMA_LEAST(""));
    temp_text("generation_config.json", "{\"eos_token_id\": [1, 106]}");
}

#endif
