// Tests of the HTTP reader: requests as clients send them, cut anywhere, broken ones, and random bytes.

#include "../../engine.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../text/basics.c"
#include "../../serve/http.c"

// The next result but HTTP_HEAD_DONE, with which the body must be empty yet.
static int next_result(http_reader *r) {
    int code = http_next(r);
    if (code != HTTP_HEAD_DONE) return code;
    CHECK(!r->request.body.size, "a head that is done comes with %zu bytes of the body", r->request.body.size);
    return http_next(r);
}

// What the reader makes of a text that comes in pieces of `piece` bytes. Ends at the first result that is not HTTP_MORE.
static int read_pieces(http_reader *r, const char *text, size_t size, size_t piece) {
    int code = next_result(r);
    for (size_t at = 0; at < size && code == HTTP_MORE; at += piece) {
        size_t n = size - at < piece ? size - at : piece;
        http_push(r, text + at, n);
        code = next_result(r);
    }
    return code;
}

static int result_of(const char *text, size_t size) {
    http_reader r;
    memset(&r, 0, sizeof r);
    int code = read_pieces(&r, text, size, size);
    http_close(&r);
    return code;
}

#define CHUNKED "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"

static const struct { const char *text; int code; } cases[] = {
    {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", HTTP_DONE},
    {"\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n", HTTP_DONE},
    {"GET / HTTP/1.0\r\n\r\n", HTTP_DONE},
    {"GET / HTTP/1.1\r\nHost: x\r\n", HTTP_MORE},
    {"GET /", HTTP_MORE},
    {"", HTTP_MORE},
    {"GET / HTTP/1.1\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400},
    {"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505},
    {"PRI * HTTP/2.0\r\n\r\n", 505},
    {"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET / HTTP/1.1 \r\nHost: x\r\n\r\n", 400},
    {"GET / HTTP/1.11\r\nHost: x\r\n\r\n", 400},
    {"GET / HXTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET x HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"G(T / HTTP/1.1\r\nHost: x\r\n\r\n", 400},
    {"ABCDEFGHIJKLMNOPQRS / HTTP/1.1\r\nHost: x\r\n\r\n", 501},
    {"GET / HTTP/1.1\nHost: x\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: x\rY: z\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: x\r\nno field\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: x\r\nA: \x7f\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", HTTP_DONE},
    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nabc", HTTP_MORE},
    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", HTTP_DONE},
    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3, 3\r\n\r\nabc", 400},
    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400},
    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999999\r\n\r\n", 413},
    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100663297\r\n\r\n", 413},
    {"POST / HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\n.", 415},
    {"POST / HTTP/1.1\r\nHost: x\r\nExpect: something\r\n\r\n", 417},
    {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", HTTP_DONE},
    {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n1;a=\"b\"\r\nx\r\nA\r\n0123456789\r\n0\r\nT: r\r\n\r\n", HTTP_DONE},
    {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n", HTTP_MORE},
    {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", 400},
    {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n\r\nabc\r\n", 400},
    {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n", 400},
    {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", 400},
    {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n", 413},
    {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
    {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 501},
    {"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", 400},
    {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: x\r\nOrigin: http://a\r\nOrigin: http://b\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: x\r\nOrigin:\r\nOrigin: http://b\r\n\r\n", 400},
    // Chunk extensions: names, tokens, texts in quotes, with blanks around ; and =
    {CHUNKED "1;a\r\nx\r\n0;b=c\r\n\r\n", HTTP_DONE},
    {CHUNKED "0001 ; a = \"b ;\\\" c\" \t;d\r\nx\r\n0\r\n\r\n", HTTP_DONE},
    {CHUNKED "1;a\nb\r\nx\r\n0\r\n\r\n", 400},
    {CHUNKED "1\nx\r\n0\r\n\r\n", 400},
    {CHUNKED "\n", 400},
    {CHUNKED "1;a=\"b\rc\"\r\nx\r\n0\r\n\r\n", 400},
    {CHUNKED "1\r\r\nx\r\n0\r\n\r\n", 400},
    {CHUNKED "1;a\x01\r\nx\r\n0\r\n\r\n", 400},
    {CHUNKED "1;a=\"\x7f\"\r\nx\r\n0\r\n\r\n", 400},
    {CHUNKED "1;a=\"\\\x01\"\r\nx\r\n0\r\n\r\n", 400},
    {CHUNKED "1;\r\nx\r\n0\r\n\r\n", 400},
    {CHUNKED "1;=b\r\nx\r\n0\r\n\r\n", 400},
    {CHUNKED "1;a=\r\nx\r\n0\r\n\r\n", 400},
    {CHUNKED "1;a=\"b\r\nx\r\n0\r\n\r\n", 400},
    {CHUNKED "1;a=\"b\\\r\nx\r\n0\r\n\r\n", 400},
    {CHUNKED "1;a b\r\nx\r\n0\r\n\r\n", 400},
    {CHUNKED "1;a=\"b\"c\r\nx\r\n0\r\n\r\n", 400},
    {CHUNKED "1 \r\nx\r\n0\r\n\r\n", 400},
    {CHUNKED " 1\r\nx\r\n0\r\n\r\n", 400},
    {CHUNKED "+1\r\nx\r\n0\r\n\r\n", 400},
    {CHUNKED "0x1\r\nx\r\n0\r\n\r\n", 400},
    {CHUNKED "1\r\nx\n0\r\n\r\n", 400},
    {CHUNKED "1\r\nx\r0\r\n\r\n", 400},
    // Trailers are fields.
    {CHUNKED "0\r\nA: b\r\nC:\r\n\r\n", HTTP_DONE},
    {CHUNKED "0\r\nno field\r\n\r\n", 400},
    {CHUNKED "0\r\n folded\r\n\r\n", 400},
    {CHUNKED "0\r\nA : b\r\n\r\n", 400},
    {CHUNKED "0\r\nA: b\nC: d\r\n\r\n", 400},
    {CHUNKED "0\r\nA: b\rC: d\r\n\r\n", 400},
    {CHUNKED "0\r\nA: \x01\r\n\r\n", 400},
    {CHUNKED "0\r\n\n", 400},
    {CHUNKED "0\n\n", 400},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static void test_cases(void) {
    for (int i = 0; i < CASES; i++) {
        size_t size = strlen(cases[i].text);
        for (size_t piece = 1; piece <= size; piece++) {
            http_reader r;
            memset(&r, 0, sizeof r);
            int code = read_pieces(&r, cases[i].text, size, piece);
            CHECK(code == cases[i].code, "case %d in pieces of %zu: %d, expected %d (%s)", i, piece, code, cases[i].code,
                  r.problem ? r.problem : "");
            CHECK(code <= HTTP_DONE || r.problem, "case %d: refused without a word", i);
            http_close(&r);
        }
    }
    CHECK(result_of("GET / HTTP/1.1\r\nA: \0\r\nHost: x\r\n\r\n", 33) == 400, "a zero byte in the header");
    static const char extension[] = CHUNKED "1;a\0\r\nx\r\n0\r\n\r\n", quoted[] = CHUNKED "1;a=\"\0\"\r\nx\r\n0\r\n\r\n",
                      trailer[] = CHUNKED "0\r\nA: \0\r\n\r\n", name[] = CHUNKED "0\r\nA\0: b\r\n\r\n";
    CHECK(result_of(extension, sizeof extension - 1) == 400, "a zero byte in a chunk extension");
    CHECK(result_of(quoted, sizeof quoted - 1) == 400, "a zero byte in the text of a chunk extension");
    CHECK(result_of(trailer, sizeof trailer - 1) == 400, "a zero byte in a trailer");
    CHECK(result_of(name, sizeof name - 1) == 400, "a zero byte in a trailer's name");
}

static void test_fields(void) {
    static const char text[] = "POST /v1/x?a=b#c HTTP/1.1\r\nhost: Localhost:8080 \r\nAuthorization: Bearer sk-1\r\n"
                               "Origin: http://a.b\r\nexpect: 100-continue\r\nConnection: foo, Close\r\nTransfer-Encoding: chunked\r\n"
                               "\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
    http_reader r;
    memset(&r, 0, sizeof r);
    CHECK(read_pieces(&r, text, sizeof text - 1, 7) == HTTP_DONE, "refused: %s", r.problem ? r.problem : "");
    const http_request *q = &r.request;
    CHECK(!strcmp(q->method, "POST") && !strcmp(q->path, "/v1/x"), "%s %s", q->method, q->path);
    CHECK(!strcmp(q->host, "Localhost:8080") && q->keys.size == 5 && !strcmp(q->keys.data, "sk-1") && !strcmp(q->origin, "http://a.b"),
          "host '%s', %zu bytes of keys", q->host, q->keys.size);
    CHECK(q->closes && q->expects && q->version == 1, "closes %d, expects %d", q->closes, q->expects);
    CHECK(q->body.size == 3 && !memcmp(q->body.data, "abc", 3), "a body of %zu bytes", q->body.size);
    http_close(&r);
}

// Keys are as long as a header may be, whatever they are called.
static void test_keys(void) {
    enum { LONG = 30000 };
    static char text[LONG + 256], key[LONG + 1];
    http_reader r;
    memset(&r, 0, sizeof r);
    memset(key, 'k', LONG);
    int n = snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: x\r\nX-Api-Key: %s\r\nAuthorization: bearer  two words \r\n"
                     "Authorization: Basic abc\r\nAuthorization: Bearer\r\n\r\n", key);
    CHECK(read_pieces(&r, text, (size_t)n, 1000) == HTTP_DONE, "refused: %s", r.problem ? r.problem : "");
    const buf *keys = &r.request.keys;
    CHECK(keys->size == LONG + 1 + 10 && !strcmp(keys->data, key) && !strcmp(keys->data + LONG + 1, "two words"), "%zu bytes of keys",
          keys->size);
    http_again(&r);
    CHECK(!r.request.keys.size, "keys outlive their request");
    http_close(&r);
}

// A body's memory is given back when it was large.
static void test_idle(void) {
    http_reader r;
    size_t size = 1 << 20;
    char *body = (char *)allocate(size);
    memset(&r, 0, sizeof r);
    static const char head[] = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1048576\r\n\r\n";
    http_push(&r, head, sizeof head - 1);
    CHECK(next_result(&r) == HTTP_MORE, "no body yet");
    CHECK(read_pieces(&r, body, size, 65536) == HTTP_DONE, "refused: %s", r.problem ? r.problem : "");
    CHECK(r.request.body.size == size, "%zu bytes", r.request.body.size);
    http_again(&r);
    CHECK(r.request.body.cap + r.in.cap <= 1 << 19, "%zu and %zu bytes are kept for nothing", r.request.body.cap, r.in.cap);
    http_close(&r);
    free(body);
}

// Several requests one after the other, in pieces of any size.
static void test_pipeline(void) {
    static const char text[] = "GET /1 HTTP/1.1\r\nHost: x\r\n\r\nPOST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab"
                               "POST /3 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nc\r\n0\r\n\r\nGET /4 HTTP/1.1\r\nHost: x\r\n\r\n";
    for (size_t piece = 1; piece < sizeof text; piece++) {
        http_reader r;
        int number = 0;
        memset(&r, 0, sizeof r);
        for (size_t at = 0; at < sizeof text - 1; at += piece) {
            size_t n = sizeof text - 1 - at < piece ? sizeof text - 1 - at : piece;
            http_push(&r, text + at, n);
            while (next_result(&r) == HTTP_DONE) {
                static const char *const bodies[] = {"", "ab", "c", ""};
                number++;
                CHECK(r.request.path[1] == '0' + number && r.request.body.size == strlen(bodies[number - 1]) &&
                          !memcmp(r.request.body.data ? r.request.body.data : "", bodies[number - 1], r.request.body.size),
                      "request %d in pieces of %zu is %s with %zu bytes", number, piece, r.request.path, r.request.body.size);
                http_again(&r);
            }
        }
        CHECK(number == 4, "%d of 4 requests in pieces of %zu", number, piece);
        http_close(&r);
    }
}

// What has no end is refused before it takes much memory.
static void test_limits(void) {
    static const char *const begins[] = {"GET / HTTP/1.1\r\nHost: x\r\nA: ", "GET /", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;",
                                         "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"};
    static const char *const more[] = {"aaaaaaaa", "bbbbbbbb", "cccccccc", "A: bcdefghijklmnop\r\n"};
    static const int codes[] = {431, 431, 413, 413};
    for (int i = 0; i < 4; i++) {
        http_reader r;
        size_t n = 0;
        memset(&r, 0, sizeof r);
        http_push(&r, begins[i], strlen(begins[i]));
        int code = next_result(&r);
        for (; code == HTTP_MORE && n < 4 << 20; n += strlen(more[i])) {
            http_push(&r, more[i], strlen(more[i]));
            code = next_result(&r);
        }
        CHECK(code == codes[i] && n <= HTTP_FRAMES_MOST + 64 && r.in.cap <= 1 << 20, "%d after %zu bytes, %zu taken", code, n, r.in.cap);
        http_close(&r);
    }
    char many[8192];
    size_t n = (size_t)snprintf(many, sizeof many, "GET / HTTP/1.1\r\nHost: x\r\n");
    for (int i = 0; i < 120; i++) n += (size_t)snprintf(many + n, sizeof many - n, "A%d: b\r\n", i);
    n += (size_t)snprintf(many + n, sizeof many - n, "\r\n");
    CHECK(result_of(many, n) == 431, "120 header fields are taken");
}

static size_t damage(char *text, size_t size) {
    for (int k = random_int(1, 4); k-- > 0 && size;) {
        size_t at = (size_t)random_int(0, (int)size - 1), n = (size_t)random_int(1, 8);
        switch (random_int(0, 3)) {
        case 0: text[at] = (char)random_bits(); break;
        case 1: text[at] = "\r\n :;0\0/"[random_int(0, 7)]; break;
        case 2:
            if (at + n > size) n = size - at;
            memmove(text + at, text + at + n, size - at - n);
            size -= n;
            break;
        default:
            if (size + n > 2048) break;
            memmove(text + at + n, text + at, size - at);
            memmove(text + at, text + random_int(0, (int)at), n);
            size += n;
        }
    }
    return size;
}

// Whatever arrives, and however it is cut: the same result, and no byte read that has not arrived.
static void test_random(void) {
    char text[4096];
    int seen[2] = {0, 0};
    for (int i = 0; i < (test_brief ? 2000 : 100000); i++) {
        size_t size = 0;
        for (int k = random_int(1, 3); k-- > 0;) {
            const char *one = cases[random_int(0, CASES - 1)].text;
            memcpy(text + size, one, strlen(one));
            size += strlen(one);
        }
        if (i % 8) size = damage(text, size);
        else for (size_t k = 0; k < size; k++) text[k] = (char)random_bits();
        char *whole = (char *)allocate(size);
        memcpy(whole, text, size);
        http_reader a, b;
        memset(&a, 0, sizeof a);
        memset(&b, 0, sizeof b);
        int one = read_pieces(&a, whole, size, size ? size : 1), two = read_pieces(&b, whole, size, (size_t)random_int(1, 16));
        CHECK(one == two, "%d at once, %d in pieces: %.*s", one, two, (int)size, whole);
        CHECK(one == HTTP_MORE || one == HTTP_DONE || (one >= 400 && one < 600), "a result of %d", one);
        seen[one == HTTP_DONE]++;
        http_close(&a);
        http_close(&b);
        free(whole);
    }
    CHECK(seen[0] > 100 && seen[1] > 100, "%d refused, %d taken: no test", seen[0], seen[1]);
}

int main(int argc, char **argv) {
    test_main_begin("http", argc, argv);
    test_cases();
    test_fields();
    test_keys();
    test_idle();
    test_pipeline();
    test_limits();
    test_random();
    return test_main_end();
}
