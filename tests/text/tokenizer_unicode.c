// A part of test_tokenizer: UTF-8 and normalisation.

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
