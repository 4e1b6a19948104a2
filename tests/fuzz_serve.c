// Fuzzer of what mote serve reads from strangers: bytes through the HTTP reader, cut in two ways, and JSON schemas.
// make fuzz; needs clang.

#include "../engine.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../text/basics.c"
#include "../text/utf8.c"
#include "../text/json.c"
#include "../serve/http.c"
#include "../serve/write.c"
#include "../serve/fields.c"
#include "../serve/lexicon.c"
#include "../serve/shape.c"
#include "../serve/follow.c"

// A vocabulary of single bytes and an end.
static char bytes_of[256];
static const mote_info info = {.vocab_size = 257};

int mote_is_end(const mote_model *m, int32_t id) { (void)m; return id == 256; }
const mote_info *mote_model_info(const mote_model *m) { (void)m; return &info; }

const char *mote_token_bytes(const mote_model *m, int32_t id, size_t *size) {
    (void)m;
    *size = id < 256;
    return id < 256 ? &bytes_of[id] : NULL;
}

int mote_tokenize(const mote_model *m, const char *text, size_t size, int special, int32_t *ids, size_t capacity, size_t *count,
                  mote_error *error) {
    (void)m, (void)text, (void)size, (void)special, (void)ids, (void)capacity, (void)error;
    *count = 0;
    return MOTE_EINVAL;
}

static int read_pieces(const char *data, size_t size, size_t piece) {
    http_reader r;
    memset(&r, 0, sizeof r);
    int code = HTTP_MORE;
    for (size_t at = 0; at < size && code == HTTP_MORE; at += piece) {
        http_push(&r, data + at, size - at < piece ? size - at : piece);
        code = http_next(&r);
        if (code == HTTP_HEAD_DONE) code = http_next(&r);
    }
    http_close(&r);
    return code;
}

static void try_schema(const lexicon *x, const char *data, size_t size) {
    static float logits[257];
    json j;
    failure f;
    memset(&f, 0, sizeof f);
    if (json_parse(&j, data, size, "fuzz", NULL)) return;
    uint32_t schema = json_get(&j, 0, "schema");
    shape *s = schema ? shape_open(&j, schema, 257, &f) : NULL;
    json_free(&j);
    if (schema && !s && !f.status) abort();
    for (int n = 0; s && n < 40; n++) {
        int last = -1;
        memset(logits, 0, sizeof logits);
        shape_mask(s, x, logits, 257);
        for (int id = 0; id < 257; id++)
            if (logits[id] == 0 && (last < 0 || (n + id) % 3)) last = id;
        if (last < 0 || last == 256) break;
        char c = (char)last;
        shape_follow(s, &c, 1);
    }
    shape_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static lexicon words;
    if (!words.vocab) {
        for (int i = 0; i < 256; i++) bytes_of[i] = (char)i;
        if (!lexicon_open(&words, NULL)) abort();
    }
    if (!size) return 0;
    char *text = (char *)malloc(size);
    if (!text) return 0;
    memcpy(text, data + 1, size - 1);
    if (data[0] & 1) try_schema(&words, text, size - 1);
    else if (read_pieces(text, size - 1, size) != read_pieces(text, size - 1, 1 + data[0] / 2)) abort();
    free(text);
    return 0;
}
