// schema_parts.h: the parts of the library that follow a text through a JSON schema, on a model that is nothing but a vocabulary: whoever
// includes this says which (tokenizer_vocab, tokenizer_token, is_eos). After text/json.c.

#ifndef MOTE_TEST_SCHEMA_PARTS_H
#define MOTE_TEST_SCHEMA_PARTS_H

typedef struct tokenizer tokenizer;
struct mote_model { tokenizer *text; struct vocabulary *words; };
static int32_t tokenizer_vocab(const tokenizer *t);
static const char *tokenizer_token(const tokenizer *t, int32_t id, size_t *size);
static int tokenizer_is_added(const tokenizer *t, int32_t id) { return t != NULL && id < 0; }
static int is_eos(const mote_model *m, int32_t id);

#include "../generate/vocabulary.c"
#include "../generate/decimal.c"
#include "../generate/pattern.c"
#include "../generate/automaton.c"
#include "../generate/schema.c"
#include "../generate/schema_values.c"
#include "../generate/compile.c"
#include "../generate/schema_kinds.c"
#include "../generate/follow.c"
#include "../generate/call.c"
#include "../generate/mask.c"

#endif
