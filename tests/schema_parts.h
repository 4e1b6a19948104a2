// schema_parts.h: the parts of the library that follow a text through a JSON schema, with a tokenizer that is nothing but a vocabulary:
// whoever includes this says which (tokenizer_vocab, tokenizer_token). After text/json.c.

#ifndef MOTE_TEST_SCHEMA_PARTS_H
#define MOTE_TEST_SCHEMA_PARTS_H

typedef struct tokenizer tokenizer;
static int32_t tokenizer_vocab(const tokenizer *t);
static const char *tokenizer_token(const tokenizer *t, int32_t id, size_t *size);
static int tokenizer_is_added(const tokenizer *t, int32_t id) { return t != NULL && id < 0; }

#include "../text/chat_family.c"
#include "../text/chat_marks.c"
#include "../text/vocabulary.c"
#include "../generate/grammar/decimal.c"
#include "../generate/grammar/pattern.c"
#include "../generate/grammar/automaton.c"
#include "../generate/grammar/schema.c"
#include "../generate/grammar/schema_values.c"
#include "../generate/grammar/cases.c"
#include "../generate/grammar/compile.c"
#include "../generate/grammar/schema_kinds.c"
#include "../generate/grammar/follow.c"
#include "../generate/grammar/follow_values.c"
#include "../generate/grammar/pairs.c"
#include "../generate/grammar/call.c"
#include "../generate/grammar/call_follow.c"
#include "../generate/grammar/mask.c"

#endif
