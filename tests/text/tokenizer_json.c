// A part of test_tokenizer: JSON.

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
        char *exact = (char *)malloc(len ? len : 1); // no byte after it: reading on is caught by the sanitizer
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
