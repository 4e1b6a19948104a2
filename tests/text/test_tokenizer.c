// Tests of tokenizer.c but its chat part: JSON, UTF-8, normalisation, pre-tokenizers, byte-level BPE.
// Usage: test_tokenizer [DATA]: the unpacked data folder; without it the tests that need it are skipped. Run it where
// models/demo is, to test that tokenizer as well.

#pragma GCC diagnostic ignored "-Wunused-function"

#include "../../tokenizer.c"
#include "test.h"

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

// ---- JSON -----------------------------------------------------------------------------------------------------------

static void test_json_verdicts(void) {
    static const char *const good[] = {
        "{}", "[]", " [ ] ", "0", "-0", "-0.0e-0", "1E+2", "123456789012345678901234567890", "1e999", "true", "false",
        "null", "\"\"", "\"\\u0000\"", "\"\\ud83d\\uDE00\"", "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
        "\"\x7f\xC3\xA9\xF4\x8F\xBF\xBF\"", "[[[]],{}]", "{\"a\":[1,{\"b\":null}],\"a\":2}", "\t\r\n [1 , 2]\n",
        "{\"\":0}", "[\"12345678\",\"1234567\\n\"]", "\"\\uFFFF\\ue000\"",
    };
    static const char *const bad[] = {
        "", " ", "[", "]", "{", "}", "[1", "[1,", "[1,]", "[,1]", "[1 2]", "{\"a\"}", "{\"a\":}", "{\"a\":1,}",
        "{a:1}", "{1:1}", "{\"a\":1 \"b\":2}", "{\"a\" 1}", "[1}", "{\"a\":1]", "01", "-01", "-", "+1", ".5", "1.",
        "1.e1", "1e", "1e+", "0x10", "NaN", "Infinity", "-Infinity", "nul", "True", "truex", "nullnull", "1 1",
        "[] []", "'a'", "\"", "\"a", "\"\\\"", "\"\\x41\"", "\"\\u12\"", "\"\\u12g4\"", "\"\\u+123\"", "\"\\ud800\"",
        "\"\\udc00\"", "\"\\ud800\\u0041\"", "\"\\ud800\\\"", "\"\\ud800\\ud800\"", "\"\\udc00\\ud800\"", "\"a\nb\"",
        "\"\t\"", "\"\x1f\"", "\"\x80\"", "\"\xC0\xAF\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"", "\"\xE2\x82\"",
        "\"12345678\xFF\"", "// c\n1", "[1]/**/", "\xEF\xBB\xBF{}", "[1]\x0B", "\xA0 1", "{\"a\":1,\"b\"}",
        "[\"a\",\"b\n\"]", "{,}", "[\"\\", "{\"a\":\"\\ud83d\"}",
    };
    for (size_t i = 0; i < COUNT(good) + COUNT(bad); i++) {
        int want = i < COUNT(good);
        const char *text = want ? good[i] : bad[i - COUNT(good)];
        size_t len = strlen(text);
        char *exact = (char *)malloc(len ? len : 1); // no byte behind it: reading on is caught by the sanitizer
        json j;
        mote_error err = {-1, ""};
        memcpy(exact, text, len);
        int code = json_parse(&j, exact, len, "file.json", &err);
        CHECK(code == (want ? MOTE_OK : MOTE_EFORMAT), "json %zu <%s>: %s", i, text, err.message);
        if (code) CHECK(!strncmp(err.message, "file.json: not valid JSON: line ", 32), "message <%s>", err.message);
        if (!code) json_free(&j);
        free(exact);
    }
    json j;
    mote_error err;
    CHECK(json_parse(&j, "[1\0]", 4, "f", &err) == MOTE_EFORMAT, "NUL byte");
    CHECK(json_parse(&j, "{\n \"a\": 1,\n \"b\" 2}", 18, "f", &err) == MOTE_EFORMAT, "place");
    CHECK(!strcmp(err.message, "f: not valid JSON: line 3, byte 6: expected ':' after a key"), "%s", err.message);
}

static void test_json_depth(void) {
    for (int kind = 0; kind < 2; kind++) {
        for (int depth = 1; depth <= 100000; depth = depth < 127 ? 127 : depth < 130 ? depth + 1 : depth * 10) {
            buf b = EMPTY;
            json j;
            for (int i = 0; i < depth; i++) buf_text(&b, kind ? "{\"a\":" : "[");
            if (kind) buf_text(&b, "1");
            for (int i = 0; i < depth; i++) buf_text(&b, kind ? "}" : "]");
            int code = json_parse(&j, b.data, b.size, "f", NULL);
            CHECK(code == (depth <= 128 ? MOTE_OK : MOTE_EFORMAT), "kind %d depth %d: %d", kind, depth, code);
            if (!code) {
                CHECK(j.nodes[0].next == j.count, "root ends at %u of %u", j.nodes[0].next, j.count);
                json_free(&j);
            }
            buf_free(&b);
        }
    }
}

static void test_json_values(void) {
    static const char text[] = "{\"x\":1,\"n\":[0,18446744073709551615,18446744073709551616,-1,1.0,1e2,-2.5e-3,1e999,"
                               "\"7\"],"
                               "\"s\":\"a\\u00e9\\ud83d\\ude00\\n\\u0000z\",\"k\\u0065y\":[[],{}],\"x\":2,\"e\":{}}";
    json j;
    mote_error err;
    char out[32];
    uint64_t u = 0;
    double d = 0;
    if (!CHECK(!json_parse(&j, text, sizeof text - 1, "f", &err), "%s", err.message)) return;
    CHECK(j.nodes[0].type == JSON_OBJECT && j.nodes[0].size == 6 && j.nodes[0].next == j.count, "root");
    CHECK(json_u64(&j, json_get(&j, 0, "x"), &u) && u == 2, "the last duplicate wins");
    CHECK(!json_get(&j, 0, "y") && !json_get(&j, 0, "") && !json_get(&j, 0, "xx"), "absent keys");
    CHECK(json_get(&j, 0, "key") != 0 && j.nodes[json_get(&j, 0, "key")].size == 2, "escaped key");
    CHECK(!json_get(&j, json_get(&j, 0, "n"), "x"), "no object");
    uint32_t n = json_get(&j, 0, "n"), s = json_get(&j, 0, "s");
    static const int is_u64[9] = {1, 1, 0, 0, 0, 0, 0, 0, 0}, is_double[9] = {1, 1, 1, 1, 1, 1, 1, 0, 0};
    static const double doubles[9] = {0, 18446744073709551615.0, 18446744073709551616.0, -1, 1, 100, -2.5e-3, 0, 0};
    for (uint32_t i = 0; i < 9; i++) {
        CHECK(json_u64(&j, n + 1 + i, &u) == is_u64[i], "u64 %u", i);
        d = -7;
        int code = json_double(&j, n + 1 + i, &d);
        CHECK(code == (is_double[i] ? MOTE_OK : MOTE_EFORMAT), "double %u: code %d", i, code);
        CHECK(d == (is_double[i] ? doubles[i] : -7), "double %u: %g", i, d);
    }
    static const char want[] = "a\xC3\xA9\xF0\x9F\x98\x80\n\0z";
    CHECK(json_string(&j, s, NULL, 0) == 10 && json_string(&j, s, out, sizeof out) == 10, "length");
    CHECK(!memcmp(out, want, 10), "string");
    memset(out, '#', sizeof out);
    CHECK(json_string(&j, s, out, 4) == 10 && !memcmp(out, "a\xC3\xA9\xF0#", 5), "string cut short");
    uint32_t key = json_get(&j, 0, "key") - 1;
    CHECK(!json_equals(&j, s, "a\xC3\xA9\xF0\x9F\x98\x80\n") && !json_equals(&j, s, "a"), "equals up to a NUL");
    CHECK(json_equals(&j, key, "key") && !json_equals(&j, key, "ke") && !json_equals(&j, key, "keyy"), "equals");
    CHECK(!json_equals(&j, 0, ""), "no string");
    json_free(&j);
}

// ---- UTF-8 ----------------------------------------------------------------------------------------------------------

// All the ways in and out must replace alike; `text` has exactly n bytes in memory.
static void check_replacement(const char *text, size_t n, const char *want, size_t want_size, int stable_want) {
    buf clean = EMPTY, next = EMPTY, whole = EMPTY, bytes = EMPTY, normal = EMPTY;
    utf8_stream s = {{0}, 0}, t = {{0}, 0};
    const char *p = text;
    utf8_clean(text, n, &clean);
    while (p < text + n) utf8_put(&next, utf8_next(&p, text + n));
    utf8_stream_push(&s, text, n, &whole);
    utf8_stream_end(&s, &whole);
    for (size_t i = 0; i < n; i++) utf8_stream_push(&t, text + i, 1, &bytes);
    utf8_stream_end(&t, &bytes);
    nfc(text, n, &normal);
    CHECK(buf_is(&clean, want, want_size), "clean of %zu bytes, first 0x%02X", n, (unsigned)(unsigned char)text[0]);
    CHECK(buf_is(&next, want, want_size), "next of %zu bytes, first 0x%02X", n, (unsigned)(unsigned char)text[0]);
    CHECK(buf_is(&whole, want, want_size) && buf_is(&bytes, want, want_size), "stream of %zu bytes", n);
    if (stable_want) CHECK(buf_is(&normal, want, want_size), "nfc of %zu bytes", n);
    buf_free(&clean);
    buf_free(&next);
    buf_free(&whole);
    buf_free(&bytes);
    buf_free(&normal);
}

static void test_utf8_literals(void) {
#define R "\xEF\xBF\xBD"
    static const char *const cases[][2] = {
        {"", ""}, {"a", "a"}, {"\xC3\xA9", "\xC3\xA9"}, {"\x80", R}, {"a\xBF" "b", "a" R "b"}, {"\xC0\x80", R R},
        {"\xE2\x82", R}, {"\xE2\x82z", R "z"}, {"\xE0\x80\x80", R R R}, {"\xED\xA0\x80", R R R}, {"\xF0\x9F\x98", R},
        {"\xF0\x9F\x98\xF0\x9F\x98\x80", R "\xF0\x9F\x98\x80"}, {"\xF4\x90\x80\x80", R R R R}, {"\xF5\xFF", R R},
        {"\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF"}, {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", R R R R "A"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        check_replacement(cases[i][0], strlen(cases[i][0]), cases[i][1], strlen(cases[i][1]), 1);
    }
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        buf b = EMPTY;
        uint32_t back = 0;
        if (cp >= 0xD800 && cp < 0xE000) continue;
        utf8_put(&b, cp);
        if (utf8_decode(b.data, b.size, &back) != (int)b.size || back != cp) CHECK(0, "U+%04X", cp);
        buf_free(&b);
    }
}

// Decodes the hexadecimal text of a JSON string into a block of exactly that size.
static char *unhex(const json *j, uint32_t node, size_t *size) {
    char *hex = (char *)malloc(j->nodes[node].size + 1), *out;
    *size = json_string(j, node, hex, j->nodes[node].size) / 2;
    hex[*size * 2] = 0;
    out = (char *)malloc(*size ? *size : 1);
    for (size_t i = 0; i < *size; i++) {
        unsigned byte = 0;
        sscanf(hex + 2 * i, "%2x", &byte);
        out[i] = (char)byte;
    }
    free(hex);
    return out;
}

static void test_utf8_cases(void) {
    buf text = EMPTY;
    json j;
    mote_error err;
    if (!test_data_dir()) {
        test_skip("no data: UTF-8 cases");
        return;
    }
    if (!load_data("corpora/utf8_malformed_cases.json", &text)) return;
    if (CHECK(!json_parse(&j, text.data, text.size, "cases", &err), "%s", err.message)) {
        for (uint32_t c = 1; c < j.nodes[0].next; c = j.nodes[c].next) {
            size_t n, want_size;
            char *bytes = unhex(&j, json_get(&j, c, "hex"), &n);
            char *want = unhex(&j, json_get(&j, c, "replaced_utf8_hex"), &want_size);
            check_replacement(bytes, n, want, want_size, 0);
            free(bytes);
            free(want);
        }
        json_free(&j);
    }
    buf_free(&text);
}

// ---- Normalisation --------------------------------------------------------------------------------------------------

static int nfc_is(const buf *in, const buf *want) {
    buf out = EMPTY;
    nfc(in->data, in->size, &out);
    int same = buf_is(&out, want->data, want->size);
    buf_free(&out);
    return same;
}

// NormalizationTest.txt: c2 = NFC(c1) = NFC(c2) = NFC(c3), c4 = NFC(c4) = NFC(c5); what part 1 does not list stays.
static void test_normalisation_file(void) {
    buf text = EMPTY, column[5];
    unsigned char *listed = (unsigned char *)calloc(0x110000, 1);
    int part1 = 0, bad = 0, lines = 0;
    memset(column, 0, sizeof column);
    if (!test_data_dir()) {
        test_skip("no data: NormalizationTest.txt");
        free(listed);
        return;
    }
    if (load_data("unicode/NormalizationTest.txt", &text)) {
        for (char *line = strtok(text.data, "\n"); line; line = strtok(NULL, "\n")) {
            if (*line == '@') part1 = !strncmp(line, "@Part1", 6);
            if (*line == '#' || *line == '@') continue;
            char *p = line;
            int count = 0;
            for (int i = 0; i < 5; i++) {
                column[i].size = 0;
                for (count = 0; *p != ';'; count++) {
                    uint32_t cp = (uint32_t)strtoul(p, &p, 16);
                    utf8_put(&column[i], cp);
                    if (!i && part1) listed[cp] = 1;
                }
                p++;
            }
            lines++;
            for (int i = 0; i < 5; i++) bad += !nfc_is(&column[i], &column[i < 3 ? 1 : 3]);
        }
        CHECK(lines > 18000 && !bad, "%d wrong in %d lines", bad, lines);
        for (uint32_t cp = bad = 0; cp < 0x110000; cp++) {
            if (listed[cp] || (cp >= 0xD800 && cp < 0xE000)) continue;
            column[0].size = 0;
            utf8_put(&column[0], cp);
            bad += !nfc_is(&column[0], &column[0]);
        }
        CHECK(!bad, "%d code points change", bad);
    }
    for (int i = 0; i < 5; i++) buf_free(&column[i]);
    buf_free(&text);
    free(listed);
}

static void test_normalisation_literals(void) {
    static const char *const cases[][2] = {
        {"e\u0301", "\u00E9"}, {"\u0301", "\u0301"}, {"a\u0323\u0307", "\u1EA1\u0307"},
        {"a\u0307\u0323", "\u1EA1\u0307"},
        {"\u1112\u1161\u11AB", "\uD55C"}, {"\uD558\u11AB", "\uD55C"}, {"\u212B", "\u00C5"}, {"\u0344", "\u0308\u0301"},
        {"x\xFF\u0301", "x\uFFFD\u0301"}, {"e\xCC", "e\uFFFD"}, {"e\u0301\xE2\x82", "\u00E9\uFFFD"},
        {"\u0958", "\u0915\u093C"},
        {"\u1E9B\u0323", "\u1E9B\u0323"}, {"\uFB1D", "\u05D9\u05B4"}, {"plain", "plain"}, {"", ""},
        {"q\u0307\u0323 e\u0301e\u0301 \u212B", "q\u0323\u0307 \u00E9\u00E9 \u00C5"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        buf in = EMPTY, want = EMPTY;
        buf_text(&in, cases[i][0]);
        buf_text(&want, cases[i][1]);
        CHECK(nfc_is(&in, &want), "case %zu", i);
        buf_free(&in);
        buf_free(&want);
    }
    buf in = EMPTY, out = EMPTY; // one segment of 300,000 marks, out of order
    buf_text(&in, "a");
    for (int i = 0; i < 150000; i++) buf_text(&in, "\u0301\u0323");
    nfc(in.data, in.size, &out);
    CHECK(out.size == 3 + 2 * 299999 && !memcmp(out.data, "\u1EA1\u0323", 5), "%zu bytes", out.size);
    CHECK(!memcmp(out.data + out.size - 4, "\u0301\u0301", 4), "marks in order");
    buf_free(&in);
    buf_free(&out);
}

// ---- Pre-tokenizers -------------------------------------------------------------------------------------------------
// Words between bars, as the Hugging Face tokenizers library cuts these texts.

typedef struct words_case {
    splitter kind;
    const char *words;
} words_case;

static const words_case words_cases[] = {
    {SPLIT_GPT2, "I|'m| you|'|LL| it|'|S|'|S| x|'|ſ| y|'|RE|'d| '|tis"},
    {SPLIT_GPT2, "a| | b|   \n| c| \r\n\r\n | d|\t|\t|e|   "},
    {SPLIT_GPT2, "12345| x|1|y|²½٣"},
    {SPLIT_GPT2, "Hello|,| World|!!| foo|.|bar|(|baz|);|\n|//|x|/|\n"},
    {SPLIT_GPT2, "iPhone| HTTPServer| ABCdef| ǅx| ʰA| 中A中"},
    {SPLIT_GPT2, "म|\340\244\276|नक| ह|\340\244\277|न|\340\245\215|द|\340\245\200| e|"
     "\314\201\314\201!\314\201| \314\201|A"},
    {SPLIT_GPT2, "漢字カタカナ|・|ひらがな|゠|12|abc한국"},
    {SPLIT_GPT2, "a|\302\240|b|\343\200\200|\343\200\200|c|\342\200\250|d|\302\205|e|\034|f|"
     "\342\200\213|g|\357\273\277|h"},
    {SPLIT_GPT2, "$|x| +|y| ~|z| _|w| ^|v| `|u| #|1| -|a"},
    {SPLIT_GPT2, "😀👨\342\200\215👩🏽| x|\356\200\200|y|\001|z"},
    {SPLIT_GPT2, "   "},
    {SPLIT_GPT2, " \n \n| x"},
    {SPLIT_GPT2, "'"},
    {SPLIT_GPT2, "A|\314\201|B| \314\201|BC"},
    {SPLIT_QWEN2, "I|'m| you|'LL| it|'S|'S| x|'ſ| y|'RE|'d| '|tis"},
    {SPLIT_QWEN2, "a| | b|   \n| c| \r\n\r\n| | d|\t|\te|   "},
    {SPLIT_QWEN2, "1|2|3|4|5| x|1|y|²|½|٣"},
    {SPLIT_QWEN2, "Hello|,| World|!!| foo|.bar|(baz|);\n|//|x|/\n"},
    {SPLIT_QWEN2, "iPhone| HTTPServer| ABCdef| ǅx| ʰA| 中A中"},
    {SPLIT_QWEN2, "म|\340\244\276नक| ह|\340\244\277न|\340\245\215द|\340\245\200| e|\314\201\314\201!"
     "\314\201| \314\201|A"},
    {SPLIT_QWEN2, "漢字カタカナ|・ひらがな|゠|1|2|abc한국"},
    {SPLIT_QWEN2, "a|\302\240b|\343\200\200|\343\200\200c|\342\200\250d|\302\205e|\034f|"
     "\342\200\213g|\357\273\277h"},
    {SPLIT_QWEN2, "$x| +|y| ~|z| _|w| ^|v| `|u| #|1| -|a"},
    {SPLIT_QWEN2, "😀👨\342\200\215👩🏽| x|\356\200\200y|\001z"},
    {SPLIT_QWEN2, "   "},
    {SPLIT_QWEN2, " \n \n| x"},
    {SPLIT_QWEN2, "'"},
    {SPLIT_QWEN2, "A|\314\201B| \314\201|BC"},
    {SPLIT_QWEN35, "I|'m| you|'LL| it|'S|'S| x|'ſ| y|'RE|'d| '|tis"},
    {SPLIT_QWEN35, "a| | b|   \n| c| \r\n\r\n| | d|\t|\te|   "},
    {SPLIT_QWEN35, "1|2|3|4|5| x|1|y|²|½|٣"},
    {SPLIT_QWEN35, "Hello|,| World|!!| foo|.bar|(baz|);\n|//|x|/\n"},
    {SPLIT_QWEN35, "iPhone| HTTPServer| ABCdef| ǅx| ʰA| 中A中"},
    {SPLIT_QWEN35, "म\340\244\276नक| ह\340\244\277न\340\245\215द\340\245\200| e\314\201\314\201|!"
     "\314\201| \314\201A"},
    {SPLIT_QWEN35, "漢字カタカナ|・ひらがな|゠|1|2|abc한국"},
    {SPLIT_QWEN35, "a|\302\240b|\343\200\200|\343\200\200c|\342\200\250d|\302\205e|\034f|"
     "\342\200\213g|\357\273\277h"},
    {SPLIT_QWEN35, "$x| +|y| ~|z| _|w| ^|v| `|u| #|1| -|a"},
    {SPLIT_QWEN35, "😀👨\342\200\215👩🏽| x|\356\200\200y|\001z"},
    {SPLIT_QWEN35, "   "},
    {SPLIT_QWEN35, " \n \n| x"},
    {SPLIT_QWEN35, "'"},
    {SPLIT_QWEN35, "A\314\201B| \314\201BC"},
    {SPLIT_GPT4O, "I'm| you'LL| it'S|'S| x'ſ| y'RE|'d| '|tis"},
    {SPLIT_GPT4O, "a| | b|   \n| c| \r\n\r\n| | d|\t|\te|   "},
    {SPLIT_GPT4O, "123|45| x|1|y|²½٣"},
    {SPLIT_GPT4O, "Hello|,| World|!!| foo|.bar|(baz|);\n//|x|/\n"},
    {SPLIT_GPT4O, "i|Phone| HTTPServer| ABCdef| ǅx| ʰ|A| 中A中"},
    {SPLIT_GPT4O, "म\340\244\276नक| ह\340\244\277न\340\245\215द\340\245\200| e\314\201\314\201|!"
     "\314\201| \314\201|A"},
    {SPLIT_GPT4O, "漢字カタカナ|・ひらがな|゠|12|abc한국"},
    {SPLIT_GPT4O, "a|\302\240b|\343\200\200|\343\200\200c|\342\200\250d|\302\205e|\034f|"
     "\342\200\213g|\357\273\277h"},
    {SPLIT_GPT4O, "$x| +|y| ~|z| _|w| ^|v| `|u| #|1| -|a"},
    {SPLIT_GPT4O, "😀👨\342\200\215👩🏽| x|\356\200\200y|\001z"},
    {SPLIT_GPT4O, "   "},
    {SPLIT_GPT4O, " \n \n| x"},
    {SPLIT_GPT4O, "'"},
    {SPLIT_GPT4O, "A\314\201|B| \314\201|BC"},
    {SPLIT_DEEPSEEK, "I|'m| you|'LL| it|'S|'S| x|'|ſ| y|'RE|'d| '|tis"},
    {SPLIT_DEEPSEEK, "a| | b|   \n| c| \r\n\r\n| | d|\t|\te|   "},
    {SPLIT_DEEPSEEK, "123|45| x|1|y|²½٣"},
    {SPLIT_DEEPSEEK, "Hello|,| World|!!| foo|.bar|(baz|);\n|//|x|/\n"},
    {SPLIT_DEEPSEEK, "iPhone| HTTPServer| ABCdef| ǅx| ʰA| |中|A|中"},
    {SPLIT_DEEPSEEK, "म\340\244\276नक| ह\340\244\277न\340\245\215द\340\245\200| e\314\201\314\201|!|"
     "\314\201| \314\201A"},
    {SPLIT_DEEPSEEK, "漢字カタカナ|・|ひらがな|゠|12|abc한국"},
    {SPLIT_DEEPSEEK, "a|\302\240b|\343\200\200|\343\200\200c|\342\200\250d|\302\205e|\034f|"
     "\342\200\213g|\357\273\277h"},
    {SPLIT_DEEPSEEK, "$x| +|y| ~|z| _|w| ^|v| `|u| #|1| -|a"},
    {SPLIT_DEEPSEEK, "😀👨|\342\200\215|👩🏽| x|\356\200\200y|\001z"},
    {SPLIT_DEEPSEEK, "   "},
    {SPLIT_DEEPSEEK, " \n \n| x"},
    {SPLIT_DEEPSEEK, "'"},
    {SPLIT_DEEPSEEK, "A\314\201B| \314\201BC"},
};

static void test_words(void) {
    for (size_t i = 0; i < COUNT(words_cases); i++) {
        const char *want = words_cases[i].words, *word;
        buf text = EMPTY, got = EMPTY;
        word_iterator w;
        size_t size;
        for (const char *p = want; *p; p++) {
            if (*p != '|') buf_add(&text, p, 1);
        }
        w.kind = words_cases[i].kind;
        w.p = w.outer = w.inner = text.data;
        w.end = text.data + text.size;
        while ((word = next_word(&w, &size)) != NULL) {
            if (got.size) buf_add(&got, "|", 1);
            buf_add(&got, word, size);
        }
        CHECK(buf_is(&got, want, strlen(want)), "splitter %d: <%.*s>, not <%s>", (int)w.kind, (int)got.size,
              got.data, want);
        buf_free(&text);
        buf_free(&got);
    }
}

// ---- Opening --------------------------------------------------------------------------------------------------------
// A tokenizer.json is made of parts, any of which a case replaces.

enum { NORMALIZER, PRE, DECODER, OPTIONS, VOCAB, MERGES, ADDED, PARTS };

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true}"
#define FLAGS(special, normalized) "\"special\":" special ",\"normalized\":" normalized ",\"lstrip\":false"

static const char *default_parts[PARTS] = {
    "{\"type\":\"NFC\"}",
    BYTE_LEVEL,
    "{\"type\":\"ByteLevel\"}",
    "\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"byte_fallback\":false",
    ",\"ab\":300,\"abc\":259,\"\u0120a\":301", // after the 256 bytes
    "\"a b\",[\"ab\",\"c\"],\"\u0120 a\"",
    "{\"id\":400,\"content\":\"<end>\"," FLAGS("true", "false") "},"
    "{\"id\":401,\"content\":\"<end>2\"," FLAGS("false", "false") "},"
    "{\"id\":402,\"content\":\"e\u0301\u0301\"," FLAGS("false", "true") "}",
};

static char temp_dir[] = "/tmp/test_tokenizer.XXXXXX";

static void write_temp(const char *data, size_t size) {
    char path[64];
    join_path(path, sizeof path, temp_dir, "tokenizer.json");
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(data, 1, size, f) == size, "cannot write %s", path);
    if (f) fclose(f);
}

// Byte b is token b, written in the alphabet; `without` is left out.
static void write_bytes(buf *b, int without) {
    int first = 1;
    for (uint32_t cp = 0; cp < 324; cp++) {
        char number[16];
        int byte = alphabet_byte(cp);
        if (byte < 0 || byte == without) continue;
        buf_text(b, first ? "\"" : ",\"");
        if (cp == '"' || cp == '\\') buf_text(b, "\\");
        utf8_put(b, cp);
        snprintf(number, sizeof number, "\":%d", byte);
        buf_text(b, number);
        first = 0;
    }
}

static int open_parts(tokenizer **t, int part, const char *text, int without, mote_error *err) {
    const char *p[PARTS];
    buf b = EMPTY;
    memcpy(p, default_parts, sizeof p);
    if (part >= 0) p[part] = text;
    const char *head[] = {"{\"normalizer\":", p[NORMALIZER], ",\"pre_tokenizer\":", p[PRE], ",\"decoder\":", p[DECODER],
                          ",\"added_tokens\":[", p[ADDED], "],\"model\":{", p[OPTIONS], ",\"vocab\":{"};
    for (size_t i = 0; i < COUNT(head); i++) buf_text(&b, head[i]);
    write_bytes(&b, without);
    const char *tail[] = {p[VOCAB], "},\"merges\":[", p[MERGES], "]}}"};
    for (size_t i = 0; i < COUNT(tail); i++) buf_text(&b, tail[i]);
    write_temp(b.data, b.size);
    buf_free(&b);
    return tokenizer_open(t, temp_dir, err);
}

// All of a text trusted (1), or none of it (0).
static int encode(const tokenizer *t, const char *text, size_t size, int trusted, buf *ids) {
    text_range all = {0, size};
    return tokenizer_encode(t, text, size, &all, trusted ? 0 : 1, ids, NULL);
}

// Encodes, and compares with `count` ids.
static int ids_are(const tokenizer *t, const char *text, int trusted, const int32_t *want, size_t count) {
    buf ids = EMPTY;
    int code = encode(t, text, strlen(text), trusted, &ids);
    int same = !code && buf_is(&ids, want, count * sizeof *want);
    buf_free(&ids);
    return same;
}

// ---- Text from outside ----------------------------------------------------------------------------------------------

static int is_added(const tokenizer *t, int32_t id) {
    return (t->tokens[id].flags & TOKEN_ADDED) != 0;
}

static int same_ids(const buf *a, const buf *b) {
    return a->size == b->size && (!a->size || !memcmp(a->data, b->data, a->size));
}

// The longest added token at text + at, none of whose bytes is marked: by comparing with all of them.
static const added_token *find_added(const tokenizer *t, const buf *text, const char *marks, size_t at) {
    const added_token *found = NULL;
    for (uint32_t i = 0; i < t->raw.count; i++) {
        const added_token *a = t->raw.list + i;
        if (a->size > text->size - at || memcmp(text->data + at, a->text, a->size)) continue;
        if (!memchr(marks + at, 1, a->size) && (!found || a->size > found->size)) found = a;
    }
    return found;
}

// What tokenizer_encode must give, said another way: marks has a 1 for each byte from outside.
static void encode_by_marks(const tokenizer *t, const buf *text, const char *marks, buf *ids) {
    size_t done = 0;
    for (size_t at = 0; at <= text->size;) {
        const added_token *found = at < text->size ? find_added(t, text, marks, at) : NULL;
        if (!found && at++ < text->size) continue;
        size_t end = found ? at : text->size;
        encode(t, text->data + done, end - done, !memchr(marks + done, 1, end - done), ids);
        if (!found) break;
        buf_add(ids, &found->id, sizeof found->id);
        done = at += found->size;
    }
}

// Random texts of added tokens, their beginnings and ends, and words, of which random ranges are from outside.
static void test_ranges(const tokenizer *t, const char *name, int rounds) {
    static const char *const words[] = {"a",  "ab ", "It is 21.\n", "\n\n", "e\u0301", "\u0301", "e\u0301\u0301",
                                        "<", "|>",  "\xE2",        "2"};
    int cut = 0;
    for (int round = 0; round < rounds; round++) {
        buf text = EMPTY, ids = EMPTY, want = EMPTY, all = EMPTY, ranges = EMPTY;
        for (int i = random_int(1, 6); i > 0; i--) {
            const added_token *a = t->raw.list + random_int(0, (int)t->raw.count - 1);
            uint32_t from = random_int(0, 2) ? 0 : (uint32_t)random_int(0, (int)a->size - 1);
            uint32_t size = random_int(0, 2) ? a->size - from : (uint32_t)random_int(0, (int)(a->size - from));
            if (random_int(0, 1)) buf_add(&text, a->text + from, size);
            else buf_text(&text, words[random_int(0, (int)COUNT(words) - 1)]);
        }
        char *marks = (char *)room(text.size + 1);
        for (size_t at = 0; at < text.size;) {
            text_range r = {at + (size_t)random_int(0, 12), 0};
            r.end = r.begin + (size_t)random_int(1, 12); // may begin where the one before it ends
            if (r.end > text.size) break;
            buf_add(&ranges, &r, sizeof r);
            memset(marks + r.begin, 1, r.end - r.begin);
            at = r.end + !random_int(0, 3);
        }
        size_t count = ranges.size / sizeof(text_range);
        int code = tokenizer_encode(t, text.data, text.size, (text_range *)(void *)ranges.data, count, &ids, NULL);
        encode_by_marks(t, &text, marks, &want);
        encode(t, text.data, text.size, 1, &all);
        CHECK(!code && same_ids(&ids, &want), "%s: round %d: <%.*s>", name, round, (int)text.size, text.data);
        cut += !same_ids(&ids, &all);
        free(marks);
        buf_free(&text);
        buf_free(&ids);
        buf_free(&want);
        buf_free(&all);
        buf_free(&ranges);
    }
    CHECK(cut > rounds / 10 && cut < rounds, "%s: ranges made a difference in %d of %d rounds", name, cut, rounds);
}

// Does "x" token "y" with bytes from..to-1 from outside hold the added token?
static int holds_added(const tokenizer *t, const added_token *a, size_t from, size_t to) {
    buf text = EMPTY, ids = EMPTY;
    text_range r = {from, to};
    int found = 0;
    buf_text(&text, "x");
    buf_add(&text, a->text, a->size);
    buf_text(&text, "y");
    tokenizer_encode(t, text.data, text.size, &r, from < to, &ids, NULL);
    for (size_t i = 0; i < ids.size / sizeof(int32_t); i++) {
        int32_t id = ((int32_t *)(void *)ids.data)[i];
        found |= is_added(t, id) && (id == (int32_t)a->id || to - from == text.size);
    }
    buf_free(&text);
    buf_free(&ids);
    return found;
}

static void test_added(const tokenizer *t, const char *name) {
    const added_set *sets[] = {&t->raw, &t->normalized};
    for (int normalized = 0; normalized < 2; normalized++) {
        for (uint32_t i = 0; i < sets[normalized]->count; i++) {
            const added_token *a = sets[normalized]->list + i;
            int all = holds_added(t, a, 0, a->size + 2u) || holds_added(t, a, 1, a->size + 1u);
            int part = holds_added(t, a, 1, 2) || holds_added(t, a, a->size, a->size + 1u);
            int beside = holds_added(t, a, 0, 1) && holds_added(t, a, a->size + 1u, a->size + 2u);
            CHECK(!all && !part, "%s: <%s>: text from outside became %u", name, a->text, a->id);
            CHECK(beside == !normalized, "%s: <%s>: beside text from outside", name, a->text);
            CHECK(holds_added(t, a, 0, 0), "%s: <%s>: not found in trusted text", name, a->text);
        }
    }
}

// Tokens of the vocabulary that are listed as added too: merges and ignore_merges must not make them.
static void test_added_words(void) {
    static const char added[] = "{\"id\":300,\"content\":\"ab\"," FLAGS("false", "false") "},"
                                "{\"id\":259,\"content\":\"abc\"," FLAGS("true", "false") "}";
    static const int32_t plain[] = {'a', 'b', 'c', 301}, trusted[] = {259, 301}, cut[] = {300, 'c', 301};
    static const text_range c_only = {2, 3};
    const char *options = "\"type\":\"BPE\",\"ignore_merges\":true";
    for (int ignore = 0; ignore < 2; ignore++) {
        tokenizer *t;
        mote_error err;
        buf ids = EMPTY;
        const char *was = default_parts[OPTIONS];
        if (ignore) default_parts[OPTIONS] = options;
        int code = open_parts(&t, ADDED, added, -1, &err);
        default_parts[OPTIONS] = was;
        if (!CHECK(!code, "%s", err.message)) return;
        CHECK(ids_are(t, "abc a", 0, plain, 4) && ids_are(t, "abc a", 1, trusted, 2), "ignore_merges %d", ignore);
        CHECK(!tokenizer_encode(t, "abc a", 5, &c_only, 1, &ids, NULL) && buf_is(&ids, cut, sizeof cut),
              "ignore_merges %d: the shorter token where the longer one is cut", ignore);
        buf_free(&ids);
        tokenizer_free(t);
    }
}

static void test_small_tokenizer(void) {
    tokenizer *t;
    mote_error err;
    size_t n = 0;
    if (!CHECK(!open_parts(&t, -1, NULL, -1, &err), "%s", err.message)) return;
    CHECK(tokenizer_vocab(t) == 403, "vocab %d", tokenizer_vocab(t));
    const char *abc = tokenizer_token(t, 259, &n), *end;
    CHECK(abc && n == 3 && !memcmp(abc, "abc", 3), "token 259");
    CHECK(!tokenizer_token(t, 302, &n) && !tokenizer_token(t, -1, &n) && !tokenizer_token(t, 403, &n), "holes");
    end = tokenizer_token(t, 400, &n);
    CHECK(end && n == 5 && !memcmp(end, "<end>", 5), "token 400");
    CHECK(tokenizer_is_special(t, 400) && !tokenizer_is_special(t, 401) && !tokenizer_is_special(t, 9999), "special");
    CHECK(tokenizer_find(t, "<end>") == 400 && tokenizer_find(t, "<end>2") == 401, "find an added token");
    CHECK(tokenizer_find(t, "<end") == -1 && tokenizer_find(t, "<end>23") == -1, "find nothing");
    CHECK(tokenizer_find(t, "abc") == 259 && tokenizer_find(t, " a") == 301 && tokenizer_find(t, "") == -1, "find");
    static const int32_t a[] = {259, ' ', 300, 'b'}, b[] = {'x', 400, 401, 'y'}, d[] = {402, 'z', 0xC3, 0xA9};
    static const int32_t c[] = {'<', 'e', 'n', 'd', '>', '<', 'e', 'n', 'd', '>', '2', 0xC3, 0xA9, 0xCC, 0x81};
    static const int32_t f[] = {0xEF, 0xBF, 0xBD, 'a', 0xEF, 0xBF, 0xBD};
    CHECK(ids_are(t, "", 1, a, 0) && ids_are(t, "abc abb", 1, a, 4), "merges, or not: rank order");
    CHECK(ids_are(t, "x<end><end>2y", 1, b, 4), "the longest added token");
    CHECK(ids_are(t, "<end><end>2e\u0301\u0301", 0, c, 15), "added tokens in plain text: special, not, normalised");
    CHECK(ids_are(t, "\u00E9\u0301ze\u0301", 1, d, 4), "normalised added token");
    CHECK(ids_are(t, "\xE2\x82" "a\xFF", 1, f, 7), "malformed text");
    CHECK(ids_are(t, "\xE2\x82" "a\xFF", 0, f, 7) && ids_are(t, "", 0, a, 0), "malformed plain text, none");
    static const text_range x_only = {0, 1};
    static const int32_t g[] = {'x', 400, 402};
    buf ids = EMPTY;
    CHECK(!tokenizer_encode(t, "x<end>e\u0301\u0301", 11, &x_only, 1, &ids, NULL) && buf_is(&ids, g, sizeof g),
          "a normalised token in a trusted piece behind text from outside");
    buf_free(&ids);
    test_added(t, "small");
    test_ranges(t, "small", test_brief ? 500 : 20000);
    tokenizer_free(t);
}

typedef struct refusal {
    int part;
    const char *text;
    int code;
    const char *message; // a part of it
} refusal;

#define SPLIT(regex, behavior, invert) \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"" behavior "\",\"invert\":" invert "}"
#define SEQUENCE(steps) "{\"type\":\"Sequence\",\"pretokenizers\":[" steps "]}"
#define NO_REGEX "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"
#define UNSUPPORTED MOTE_EUNSUPPORTED
#define FORMAT MOTE_EFORMAT

static const refusal refusals[] = {
    {NORMALIZER, "{\"type\":\"NFKC\"}", UNSUPPORTED, "normalizer \"NFKC\""},
    {NORMALIZER, "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"Lowercase\"}]}", UNSUPPORTED,
     "\"Lowercase\""},
    {NORMALIZER, "7", FORMAT, "normalizer without a type"},
    {PRE, "null", UNSUPPORTED, "no pre_tokenizer"},
    {PRE, "{\"type\":\"Metaspace\"}", UNSUPPORTED, "pre-tokenizer \"Metaspace\""},
    {PRE, "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true}", UNSUPPORTED, "add_prefix_space"},
    {PRE, NO_REGEX, UNSUPPORTED, "without use_regex"},
    {PRE, SEQUENCE(SPLIT("\\\\d+", "Isolated", "false") "," NO_REGEX), UNSUPPORTED, "pattern not supported: \\\\d+"},
    {PRE, SEQUENCE(SPLIT("\\\\p{N}{1,3}", "Isolated", "false") "," NO_REGEX), UNSUPPORTED,
     "pattern not supported: \\\\p{N}{1,3}"},
    {PRE, SEQUENCE(SPLIT("x", "Removed", "false") "," NO_REGEX), UNSUPPORTED, "not an isolated Regex"},
    {PRE, SEQUENCE(SPLIT("x", "Isolated", "true") "," NO_REGEX), UNSUPPORTED, "not an isolated Regex"},
    {PRE, SEQUENCE(SPLIT("x", "Isolated", "false") "," BYTE_LEVEL), UNSUPPORTED, "with use_regex"},
    {PRE, SEQUENCE("{\"type\":\"Digits\"}," BYTE_LEVEL), UNSUPPORTED, "pre-tokenizer \"Digits\""},
    {PRE, SEQUENCE(BYTE_LEVEL "," BYTE_LEVEL), UNSUPPORTED, "pre-tokenizer \"ByteLevel\""},
    {PRE, SEQUENCE(""), UNSUPPORTED, "pre-tokenizer \"Sequence\""},
    {DECODER, "{\"type\":\"WordPiece\"}", UNSUPPORTED, "decoder \"WordPiece\""},
    {OPTIONS, "\"type\":\"Unigram\"", UNSUPPORTED, "model \"Unigram\""},
    {OPTIONS, "\"x\":0", FORMAT, "model without a type"},
    {OPTIONS, "\"type\":\"BPE\",\"dropout\":0.1", UNSUPPORTED, "\"dropout\""},
    {OPTIONS, "\"type\":\"BPE\",\"unk_token\":\"<unk>\"", UNSUPPORTED, "\"unk_token\""},
    {OPTIONS, "\"type\":\"BPE\",\"continuing_subword_prefix\":\"##\"", UNSUPPORTED, "\"continuing_subword_prefix\""},
    {OPTIONS, "\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\"", UNSUPPORTED, "\"end_of_word_suffix\""},
    {OPTIONS, "\"type\":\"BPE\",\"byte_fallback\":true", UNSUPPORTED, "\"byte_fallback\""},
    {OPTIONS, "\"type\":\"BPE\",\"fuse_unk\":true", UNSUPPORTED, "\"fuse_unk\""},
    {OPTIONS, "\"type\":\"BPE\",\"novelty\":{}", UNSUPPORTED, "\"novelty\""},
    {VOCAB, ",\"ab\":300,\"abc\":301,\"\u0120a\":300", FORMAT, "has id 300, which is taken"},
    {VOCAB, ",\"ab\":300,\"abc\":301,\"\u0120a\":302,\"ab\":303", FORMAT, "\"ab\" is listed twice"},
    {VOCAB, ",\"ab\":-1", FORMAT, "token \"ab\" has no id from 0"},
    {VOCAB, ",\"ab\":16777217", FORMAT, "token \"ab\" has no id from 0"},
    {VOCAB, ",\"ab\":\"1\"", FORMAT, "token \"ab\" has no id from 0"},
    {VOCAB, "", FORMAT, "merge 0:"},
    {VOCAB, "}", FORMAT, "not valid JSON"},
    {MERGES, "\"a b\",\"ab d\"", FORMAT, "merge 1:"},
    {MERGES, "\"ab\"", FORMAT, "merge 0:"},
    {MERGES, "\"a b c\"", FORMAT, "merge 0:"},
    {MERGES, "\" a b\"", FORMAT, "merge 0:"},
    {MERGES, "[\"a\"]", FORMAT, "merge 0:"},
    {MERGES, "[\"a\",[\"b\"]]", FORMAT, "merge 0:"},
    {MERGES, "7", FORMAT, "merge 0:"},
    {ADDED, "{\"id\":400}", FORMAT, "no content"},
    {ADDED, "7", FORMAT, "no content"},
    {ADDED, "{\"content\":\"x\"}", FORMAT, "no id"},
    {ADDED, "{\"id\":300,\"content\":\"<x>\"}", FORMAT, "\"<x>\" has id 300, but"},
    {ADDED, "{\"id\":400,\"content\":\"ab\"}", FORMAT, "\"ab\" has id 400, but"},
    {ADDED, "{\"id\":400,\"content\":\"<x>\"},{\"id\":400,\"content\":\"<y>\"}", FORMAT, "\"<y>\" has id 400, but"},
    {ADDED, "{\"id\":400,\"content\":\"<x>\"},{\"id\":401,\"content\":\"<x>\"}", FORMAT, "\"<x>\" is listed twice"},
    {ADDED, "{\"id\":400,\"content\":\"<x>\",\"lstrip\":true}", UNSUPPORTED, "\"<x>\": lstrip"},
    {ADDED, "{\"id\":400,\"content\":\"<x>\",\"rstrip\":true}", UNSUPPORTED, "\"<x>\": rstrip"},
    {ADDED, "{\"id\":400,\"content\":\"<x>\",\"single_word\":true}", UNSUPPORTED, "\"<x>\": single_word"},
};

static void check_refusal(int code, int want, const tokenizer *t, const mote_error *err, const char *part) {
    int one_line = !strchr(err->message, '\n') && strstr(err->message, "tokenizer.json");
    CHECK(code == want && err->code == code && !t && one_line && strstr(err->message, part),
          "code %d, not %d: <%s>, not <%s>", code, want, code ? err->message : "opened", part);
}

static void test_refusals(void) {
    tokenizer *t;
    mote_error err;
    for (size_t i = 0; i < COUNT(refusals); i++) {
        const refusal *r = refusals + i;
        memset(&err, 0, sizeof err);
        int code = open_parts(&t, r->part, r->text, -1, &err);
        check_refusal(code, r->code, t, &err, r->message);
        tokenizer_free(t);
    }
    int code = open_parts(&t, -1, NULL, 0xAD, &err);
    check_refusal(code, FORMAT, t, &err, "no token for byte 0xAD");
    code = open_parts(&t, -1, NULL, 0xAD, NULL);
    CHECK(code == FORMAT && !t, "no place for an error");
    static const char *const files[] = {"", "[]", "{}", "{\"model\":7}", "{\"model\":{\"type\":\"BPE\"}}", "\xFF"};
    for (size_t i = 0; i < COUNT(files); i++) {
        write_temp(files[i], strlen(files[i]));
        memset(&err, 0, sizeof err);
        code = tokenizer_open(&t, temp_dir, &err);
        CHECK(code && !t && strstr(err.message, "tokenizer.json: "), "file %zu: %s", i, err.message);
    }
    code = tokenizer_open(&t, "/nonexistent", &err);
    check_refusal(code, MOTE_EIO, t, &err, "/nonexistent/tokenizer.json: No such file");
    buf b = EMPTY;
    CHECK(read_file("/", "tmp", &b, &err) == MOTE_EIO && strstr(err.message, "not a regular file"), "%s", err.message);
    buf_free(&b);
}

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

// decode(encode(text)) = NFC(text), the stream is the same, encode(decode(ids)) = ids.
static int round_trip(const tokenizer *t, const char *text, size_t size) {
    buf ids = EMPTY, bytes = EMPTY, normal = EMPTY, again = EMPTY;
    encode(t, text, size, 1, &ids);
    decode(t, &ids, &bytes);
    if (t->use_nfc) {
        nfc(text, size, &normal);
    } else {
        utf8_clean(text, size, &normal);
    }
    encode(t, bytes.data, bytes.size, 1, &again);
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
        test_added(t, name);
        test_ranges(t, name, test_brief ? 200 : 2000);
        test_long_words(t, long_bytes);
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
    test_refusals();
    test_demo();
    test_tokenizer("qwen3", "tokenizer.json", 1000000);
    test_tokenizer("qwen3_5", "tokenizer.reconstructed.json", 100000);
    test_tokenizer("gptoss", "tokenizer.json", 100000);
    test_tokenizer("deepseek_v3", "tokenizer.json", 100000);
    char path[64];
    join_path(path, sizeof path, temp_dir, "tokenizer.json");
    unlink(path);
    rmdir(temp_dir);
    return test_main_end();
}
