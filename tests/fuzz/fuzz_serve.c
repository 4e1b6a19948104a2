// Fuzzer of what mote serve reads from strangers: bytes through the HTTP reader, cut in two ways.
// make fuzz; needs clang.

#include "../../engine.h"

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

#include "../../text/basics.c"
#include "../../serve/http.c"

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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    char *text = (char *)malloc(size);
    if (!text) return 0;
    memcpy(text, data + 1, size - 1);
    if (read_pieces(text, size - 1, size) != read_pieces(text, size - 1, 1 + data[0] / 2)) abort();
    free(text);
    return 0;
}
