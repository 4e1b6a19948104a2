// Tests of tokenizer.c but its chat part: JSON, UTF-8, normalisation, pre-tokenizers, byte-level BPE.
// Usage: test_tokenizer [DATA]: the unpacked data folder; without it the tests that need it are skipped. Run it where
// models/demo is, to test that tokenizer as well.
//
// Parts
//   tokenizer_json.c      JSON
//   tokenizer_unicode.c   UTF-8 and normalisation
//   tokenizer_words.c     pre-tokenizers
//   tokenizer_open.c      tokenizer.json as it is opened, and refused; control tokens in text from outside
//   tokenizer_spaces.c    SentencePiece's BPE
//   here                  whole tokenizers

#pragma GCC diagnostic ignored "-Wunused-function"

#include "../../tokenizer.c"
#include "test.h"

#include <time.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const buf EMPTY = {NULL, 0, 0, 0};

static int buf_is(const buf *b, const void *bytes, size_t n) {
    return !b->failed && b->size == n && (!n || !memcmp(b->data, bytes, n));
}

static int load_data(const char *name, buf *out) {
    mote_error err;
    int code = read_file(test_data_dir(), name, out, &err);
    return CHECK(!code, "%s", code ? err.message : "");
}

#include "tokenizer_json.c"
#include "tokenizer_unicode.c"
#include "tokenizer_words.c"
#include "tokenizer_open.c"

static int round_trip(const tokenizer *t, const char *text, size_t size);
static int golden_is(const tokenizer *t, const json *j, char *text, size_t size);
static void test_long_words(const tokenizer *t, size_t bytes);
static void test_growth(const tokenizer *t, const char *name);

#include "tokenizer_spaces.c"

// ---- Whole tokenizers -----------------------------------------------------------------------------------------------

static void decode(const tokenizer *t, const buf *ids, buf *out) {
    for (size_t i = 0; i < ids->size / sizeof(int32_t); i++) {
        size_t n = 0;
        const char *bytes = tokenizer_token(t, ((const int32_t *)(const void *)ids->data)[i], &n);
        buf_add(out, bytes, n); // no bytes and 0: an id without a token will not compare
    }
}

// Decodes id by id: each piece must be well-formed text, and all of them the clean whole.
static int stream_is(const tokenizer *t, const buf *ids, const buf *whole) {
    utf8_stream s = {{0}, 0};
    buf out = EMPTY, want = EMPTY;
    int ok = 1;
    utf8_clean(whole->data, whole->size, &want);
    for (size_t i = 0; i < ids->size / sizeof(int32_t); i++) {
        size_t n = 0, from = out.size;
        const char *bytes = tokenizer_token(t, ((const int32_t *)(const void *)ids->data)[i], &n);
        utf8_stream_push(&s, bytes, n, &out);
        while (from < out.size) {
            uint32_t cp;
            int used = utf8_decode(out.data + from, out.size - from, &cp);
            ok &= used > 0;
            from += used > 0 ? (size_t)used : 1;
        }
    }
    utf8_stream_end(&s, &out);
    ok &= buf_is(&out, want.data, want.size);
    buf_free(&out);
    buf_free(&want);
    return ok;
}

// What a text becomes: NFC, or with U+2581 as a space and the one in front.
static void normalise(const tokenizer *t, const char *text, size_t size, buf *out) {
    if (t->use_nfc) nfc(text, size, out);
    else utf8_clean(text, size, out);
    if (!t->characters) return;
    buf spaced = EMPTY;
    if (size && (t->space == SPACE_ALWAYS || (t->space && *out->data != ' '))) buf_text(&spaced, " ");
    for (size_t i = 0; i < out->size; i++) {
        const int mark = out->size - i >= 3 && !memcmp(out->data + i, "\u2581", 3);
        buf_add(&spaced, mark ? " " : out->data + i, 1);
        i += mark ? 2 : 0;
    }
    buf_free(out);
    *out = spaced;
}

// decode(encode(text)) = what the text becomes, the stream is the same, encode(decode(ids)) = ids, without the space in front.
// Between control tokens in a text SentencePiece puts spaces: there only the stream is compared.
static int round_trip(const tokenizer *t, const char *text, size_t size) {
    buf ids = EMPTY, bytes = EMPTY, normal = EMPTY, again = EMPTY;
    int cut = 0;
    encode(t, text, size, 1, &ids);
    decode(t, &ids, &bytes);
    normalise(t, text, size, &normal);
    for (size_t i = 0; i < ids.size / sizeof(int32_t); i++) cut |= is_added(t, ((int32_t *)(void *)ids.data)[i]);
    const size_t first = t->strip_space && bytes.size;
    encode(t, first ? bytes.data + 1 : bytes.data, bytes.size - first, 1, &again);     // no bytes are at NULL
    if (t->characters && cut) {
        normal.size = again.size = 0;
        buf_add(&normal, bytes.data, bytes.size);
        buf_add(&again, ids.data, ids.size);
    }
    int ok = buf_is(&bytes, normal.data, normal.size) && buf_is(&again, ids.data, ids.size);
    ok = ok && stream_is(t, &ids, &bytes);
    buf_free(&ids);
    buf_free(&bytes);
    buf_free(&normal);
    buf_free(&again);
    return ok;
}

// One golden line: {"tag", "text", "ids"}.
static int golden_is(const tokenizer *t, const json *j, char *text, size_t size) {
    uint32_t want = json_get(j, 0, "ids");
    buf ids = EMPTY;
    int ok = want && !encode(t, text, size, 1, &ids);
    ok = ok && ids.size == j->nodes[want].size * sizeof(int32_t);
    for (uint32_t i = 0; ok && i < j->nodes[want].size; i++) {
        uint64_t id = 0;
        ok = json_u64(j, want + 1 + i, &id) && (int32_t)id == ((int32_t *)(void *)ids.data)[i];
    }
    buf_free(&ids);
    return ok;
}

static void test_goldens(const tokenizer *t, const char *name) {
    char path[128];
    buf file = EMPTY;
    int count = 0, bad = 0, unround = 0;
    snprintf(path, sizeof path, "tokenizer_goldens/%s.jsonl", name);
    if (!load_data(path, &file)) return;
    for (char *line = file.data; *line; count++) {
        char *end = strchr(line, '\n');
        size_t n = end ? (size_t)(end - line) : strlen(line);
        json j;
        mote_error err;
        if (!CHECK(!json_parse(&j, line, n, name, &err), "line %d: %s", count + 1, err.message)) break;
        uint32_t node = json_get(&j, 0, "text");
        char *text = (char *)malloc(j.nodes[node].size + 1u);
        size_t size = json_string(&j, node, text, j.nodes[node].size);
        bad += !golden_is(t, &j, text, size);
        unround += !round_trip(t, text, size);
        free(text);
        json_free(&j);
        line += n + (end != NULL);
    }
    CHECK(count > 800 && !bad, "%s: %d of %d goldens", name, bad, count);
    CHECK(!unround, "%s: %d of %d round trips", name, unround, count);
    printf("test_tokenizer: %s: %d goldens, %d differ\n", name, count, bad);
    buf_free(&file);
}

// Many bytes of one word or of what is easily quadratic: a megabyte would take minutes then.
static void test_long_words(const tokenizer *t, size_t bytes) {
    static const char *const units[] = {
        " ", "a", "Z", "7", "\n", " \n", "!", "\u00E9", "e\u0301", "\u0301", "\u4E2D", "<", "<|", "'s", "\U0001F600",
        "\t \t", "\xFF", "aB", "\u02B0A", "\u1100\u1161",
    };
    for (size_t i = 0; i < COUNT(units); i++) {
        buf text = EMPTY;
        while (text.size < bytes) buf_text(&text, units[i]);
        CHECK(round_trip(t, text.data, text.size), "unit %zu <%s>", i, units[i]);
        buf_free(&text);
    }
}

// One word of so many bytes, of a kind that is easily quadratic.
enum { ONE_LETTER, TWO_LETTERS, SPACES, DIGITS, LETTERS, MARKS, BYTES, WORD_KINDS };

static void put_word(buf *out, int kind, size_t bytes) {
    while (out->size < bytes) {
        const int i = (int)out->size;
        const char kinds[WORD_KINDS] = {'a', "ab"[i & 1], ' ', (char)('0' + i * 7 % 10), (char)('a' + random_int(0, 25)),
                                        "\xCC\x81"[i & 1], (char)random_int(0, 255)};
        buf_add(out, kinds + kind, 1);
    }
}

// Processor time of encoding such a word and of decoding it, the least of so many.
static double word_seconds(const tokenizer *t, int kind, size_t bytes, int times) {
    buf text = EMPTY, ids = EMPTY, back = EMPTY;
    double least = 1e9;
    put_word(&text, kind, bytes);
    for (int i = 0; i < times; i++) {
        ids.size = back.size = 0;
        const clock_t begin = clock();
        encode(t, text.data, text.size, 1, &ids);
        decode(t, &ids, &back);
        const double took = (double)(clock() - begin) / CLOCKS_PER_SEC;
        least = took < least ? took : least;
    }
    buf_free(&text);
    buf_free(&ids);
    buf_free(&back);
    return least;
}

// 64 times the text takes some 64 times as long, or 100 as the heap deepens and caches end; 4,096 times if it is quadratic.
static void test_growth(const tokenizer *t, const char *name) {
    enum { SHORT = 16384, TIMES = 64 };
    for (int kind = 0; kind < WORD_KINDS; kind++) {
        const double brief = word_seconds(t, kind, SHORT, 5), whole = word_seconds(t, kind, (size_t)SHORT * TIMES, 1);
        CHECK(whole < 512 * (brief + 1e-5), "%s: word of kind %d: %.4f s, of 64 times its bytes %.4f s", name, kind, brief, whole);
    }
}

static void test_tokenizer(const char *name, const char *file, size_t long_bytes) {
    char path[4096], link[64];
    tokenizer *t;
    mote_error err;
    if (!test_data_dir()) {
        test_skip("no data: goldens");
        return;
    }
    join_path(link, sizeof link, temp_dir, "tokenizer.json");
    snprintf(path, sizeof path, "%s/tokenizers/%s/%s", test_data_dir(), name, file);
    char *full = realpath(path, NULL);
    unlink(link);
    CHECK(full && !symlink(full, link), "%s", path);
    if (CHECK(!tokenizer_open(&t, temp_dir, &err), "%s", err.message)) {
        test_goldens(t, name);
        CHECK(t->begin == (strcmp(name, "mistral_v1") ? -1 : 1), "%s begins with %d", name, t->begin);
        test_added(t, name);
        test_ranges(t, name, test_brief ? 200 : 2000);
        test_long_words(t, long_bytes);
        if (!test_brief) test_growth(t, name);
        tokenizer_free(t);
    }
    free(full);
    unlink(link);
}

static void test_demo(void) {
    static const char *const texts[] = {
        "", "What is a mixture of experts?", "<|im_start|>user\nHi<|im_end|>\n<think>\n\n</think>\n\n",
        "na\u00EFve \u4F60\u597D\U0001F600!\r\n\t x",
        "e\u0301\u0323", "123456789", "\xFF\xE2\x82 malformed \xED\xA0\x80", "I'LL we've   \n\n  you're 'tis",
    };
    tokenizer *t;
    mote_error err;
    buf probe = EMPTY;
    int missing = read_file("models/demo", "tokenizer.json", &probe, &err);
    buf_free(&probe);
    if (missing) {
        test_skip("no models/demo/tokenizer.json here");
        return;
    }
    if (!CHECK(!tokenizer_open(&t, "models/demo", &err), "%s", err.message)) return;
    for (size_t i = 0; i < COUNT(texts); i++) CHECK(round_trip(t, texts[i], strlen(texts[i])), "text %zu", i);
    int32_t id = tokenizer_find(t, "<|im_end|>");
    CHECK(id >= 0 && tokenizer_is_special(t, id), "<|im_end|> is %d", id);
    CHECK(tokenizer_find(t, "<think>") >= 0 && !tokenizer_is_special(t, tokenizer_find(t, "<think>")), "<think>");
    CHECK(ids_are(t, "<|im_end|>", 1, &id, 1), "control text");
    test_added(t, "demo");
    test_ranges(t, "demo", test_brief ? 200 : 2000);
    test_long_words(t, 100000);
    if (!test_brief) test_growth(t, "demo");
    tokenizer_free(t);
}

int main(int argc, char **argv) {
    test_main_begin("test_tokenizer", argc, argv);
    if (!CHECK(mkdtemp(temp_dir) != NULL, "no temporary folder")) return test_main_end();
    test_json_verdicts();
    test_json_depth();
    test_json_values();
    test_utf8_literals();
    test_utf8_cases();
    test_normalisation_literals();
    test_normalisation_file();
    test_words();
    test_small_tokenizer();
    test_added_words();
    test_template();
    test_line_pieces();
    test_refusals();
    test_rare_bytes();
    test_first_space();
    test_small_spaces();
    test_normalized_goldens();
    test_gemma();
    test_space_refusals();
    test_demo();
    test_tokenizer("qwen3", "tokenizer.json", test_brief ? 100000 : 1000000);
    test_tokenizer("qwen3_5", "tokenizer.reconstructed.json", 100000);
    test_tokenizer("gptoss", "tokenizer.json", 100000);
    test_tokenizer("deepseek_v3", "tokenizer.json", 100000);
    test_tokenizer("mistral_v1", "tokenizer.json", 100000);
    char path[64];
    join_path(path, sizeof path, temp_dir, "tokenizer.json");
    unlink(path);
    rmdir(temp_dir);
    return test_main_end();
}
