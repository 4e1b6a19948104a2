// Fuzzer of JSON schemas, lists of tools, and of texts that are followed through them: a schema or tools, a zero, and bytes that choose
// what comes next. A text never comes to where nothing may follow. make fuzz; needs clang.

#include "../../engine.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../text/basics.c"
#include "../../text/utf8.c"
#include "../../text/json.c"
#include "schema_parts.h"

// A vocabulary of single bytes.
static char bytes_of[256];
static vocabulary *words;

static int32_t tokenizer_vocab(const tokenizer *t) { (void)t; return 256; }

static const char *tokenizer_token(const tokenizer *t, int32_t id, size_t *size) {
    (void)t;
    *size = 1;
    return &bytes_of[id];
}

// Chooses what comes next by the bytes: a word, or a tag around a call.
static void follow(follower *w, const uint8_t *choices, size_t n) {
    unsigned char allowed[258];
    for (size_t i = 0; i < n && i < 200; i++) {
        int count = 0, at = 0;
        memset(allowed, 0, sizeof allowed);
        if (!words) words = vocabulary_new(NULL, NULL, 0);
        if (!words) abort();
        mask_words(w, words, allowed);
        for (int opens = 0; w->calls && opens < 2; opens++) allowed[256 + opens] = (unsigned char)place_tag(w, &w->now, &w->next, opens);
        for (int b = 0; b < 258; b++) count += allowed[b];
        if (!count && !follower_is_complete(w)) abort();
        if (!count) return;
        for (int k = choices[i] % count; !allowed[at] || k--; at++) {}
        if (!(at < 256 ? follower_take(w, &bytes_of[at], 1) : follower_tag(w, at == 257))) abort();
    }
}

static void try_schema(const char *text, const uint8_t *choices, size_t n) {
    follower w;
    schema *s;
    int32_t root;
    mote_error error = {0, ""};
    int code = schema_open(&s, text, &root, &error);
    if (code && (error.code != code || !error.message[0])) abort();
    if (!code) {
        if (!follower_open(&w, s)) abort();
        follower_begin(&w, root, 0);
        follow(&w, choices, n);
        follower_close(&w);
    }
    schema_free(s);
}

static void try_tools(const char *text, const uint8_t *choices, size_t n) {
    follower w;
    schema *s = schema_new();
    call_grammar calls;
    json tools;
    mote_error error = {0, ""};
    int32_t no_tags[CALL_TAGS];
    for (int i = 0; i < CALL_TAGS; i++) no_tags[i] = -1;
    if (!s || json_parse(&tools, text, strlen(text), "tools", NULL)) {
        schema_free(s);
        return;
    }
    int code = tools.nodes[0].type == JSON_ARRAY ? call_grammar_open(&calls, s, &tools, NULL, (enum call_form)(n % 5), no_tags, &error) : MOTE_EINVAL;
    if (tools.nodes[0].type != JSON_ARRAY) memset(&calls, 0, sizeof calls);
    else if (code && (error.code != code || !error.message[0])) abort();
    if (!code) {
        if (!follower_open(&w, s)) abort();
        follower_begin_calls(&w, &calls, 2);
        follow(&w, choices, n);
        follower_close(&w);
    }
    call_grammar_close(&calls);
    schema_free(s);
    json_free(&tools);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char text[1 << 16];
    for (int i = 0; i < 256; i++) bytes_of[i] = (char)i;
    if (size >= sizeof text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    size_t n = strlen(text), left = n < size ? size - n - 1 : 0;
    if (*text == '[') try_tools(text, data + size - left, left);
    else try_schema(text, data + size - left, left);
    return 0;
}
