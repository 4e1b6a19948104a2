// A part of test_tokenizer: SentencePiece's BPE: spaces as U+2581, characters, bytes for what is no token.

// ' stands for ", ~ for U+2581. Ids: <unk>, <s>, </s>, byte b is 3 + b, then these.
enum { S_SPACE = 259, S_A, S_B, S_SPACE_A, S_AB, S_SPACE_AB, S_E, S_TWO };

#define SPACES_ALWAYS "{'type':'Sequence','normalizers':[{'type':'Prepend','prepend':'~'}," SPACES_REPLACED "]}"
#define SPACES_REPLACED "{'type':'Replace','pattern':{'String':' '},'content':'~'}"
#define METASPACE(scheme) "{'type':'Metaspace','replacement':'~','prepend_scheme':'" scheme "','split':false}"
#define SPLIT_AT(pattern, invert) "{'type':'Split','pattern':{" pattern "},'behavior':'MergedWithPrevious','invert':" invert "}"
#define DECODERS "{'type':'Replace','pattern':{'String':'~'},'content':' '},{'type':'ByteFallback'},{'type':'Fuse'}"
#define SPACE_DECODER "{'type':'Sequence','decoders':[" DECODERS "]}"
#define STRIP(start) "{'type':'Sequence','decoders':[" DECODERS ",{'type':'Strip','content':' ','start':" start ",'stop':0}]}"

typedef struct space_file {
    const char *normalizer, *pre, *decoder;
    int without;           // this byte has no token
    const char *vocab;     // in place of its last entries
} space_file;

static void put_spaced(buf *b, const char *text) {
    for (; *text; text++) buf_text(b, *text == '\'' ? "\"" : *text == '~' ? SPACE_MARK : (char[]){*text, 0});
}

static int open_spaces(tokenizer **t, const space_file *f, mote_error *err) {
    buf b = EMPTY;
    const char *head[] = {"{'normalizer':", f->normalizer, ",'pre_tokenizer':", f->pre, ",'decoder':", f->decoder,
        ",'added_tokens':[{'id':1,'content':'<s>','normalized':true},{'id':2,'content':'</s>','special':true}],"
        "'model':{'type':'BPE','byte_fallback':true,'unk_token':'<unk>','fuse_unk':true,'vocab':{'<unk>':0,'<s>':1,'</s>':2"};
    for (size_t i = 0; i < COUNT(head); i++) put_spaced(&b, head[i]);
    for (int i = 0; i < 256; i++) {
        char entry[32];
        snprintf(entry, sizeof entry, ",\"<0x%02X>\":%d", (unsigned)i, 3 + i);
        if (i != f->without) buf_text(&b, entry);
    }
    put_spaced(&b, f->vocab ? f->vocab : ",'~':259,'a':260,'b':261,'~a':262,'ab':263,'~ab':264,'\xC3\xA9':265,'~~':266");
    put_spaced(&b, "},'merges':['~ a',['a','b'],'~a b','~ ~']}}");
    write_temp(b.data, b.size);
    buf_free(&b);
    return tokenizer_open(t, temp_dir, err);
}

// How a text begins, by where the space in front of it comes from.
static void test_first_space(void) {
    static const struct { space_file file; space_first space; int strips; } files[] = {
        {{SPACES_ALWAYS, "null", STRIP("1"), -1, NULL}, SPACE_ALWAYS, 1},
        {{"null", METASPACE("always"), STRIP("1"), -1, NULL}, SPACE_MISSING, 1},
        {{"null", METASPACE("first"), STRIP("1"), -1, NULL}, SPACE_AT_START, 1},
        {{"null", METASPACE("never"), SPACE_DECODER, -1, NULL}, SPACE_NONE, 0},
        {{SPACES_REPLACED, "null", SPACE_DECODER, -1, NULL}, SPACE_NONE, 0},
    };
    static const int32_t ids[4][5] = {           // of "ab</s>ab", by space_first
        {S_AB, 2, S_AB}, {S_SPACE_AB, 2, S_SPACE_AB}, {S_SPACE_AB, 2, S_SPACE_AB}, {S_SPACE_AB, 2, S_AB}};
    static const int32_t spaced[2][5] = {       // of " ab</s> a"
        {S_SPACE_AB, 2, S_SPACE_A}, {S_SPACE, S_SPACE_AB, 2, S_SPACE, S_SPACE_A}};
    for (size_t i = 0; i < COUNT(files); i++) {
        tokenizer *t;
        mote_error err;
        if (!CHECK(!open_spaces(&t, &files[i].file, &err), "file %zu: %s", i, err.message)) continue;
        int always = t->space == SPACE_ALWAYS;
        CHECK(t->space == files[i].space && t->strip_space == files[i].strips, "file %zu", i);
        CHECK(ids_are(t, "ab</s>ab", 1, ids[files[i].space], 3), "file %zu: ab", i);
        CHECK(ids_are(t, " ab</s> a", 1, spaced[always], always ? 5 : 3), "file %zu: space", i);
        CHECK(ids_are(t, "", 1, NULL, 0), "file %zu: nothing", i);
        tokenizer_free(t);
    }
}

static void test_small_spaces(void) {
    static const space_file file = {SPACES_ALWAYS, "null", STRIP("1"), -1, NULL};
    static const int32_t bytes[] = {S_SPACE, S_E, 3 + 0xE4, 3 + 0xB8, 3 + 0xAD, 3 + '\n', S_B};
    static const int32_t marks[] = {S_SPACE, S_SPACE_AB, S_SPACE_A, S_SPACE_A}, control[] = {S_SPACE, 3 + '<', 3 + 's', 3 + '>'};
    static const int32_t two = S_TWO, begin[] = {1, S_A}, wrong[] = {S_SPACE, 3 + 0xEF, 3 + 0xBF, 3 + 0xBD, S_A};
    tokenizer *t;
    mote_error err;
    size_t n;
    if (!CHECK(!open_spaces(&t, &file, &err), "%s", err.message)) return;
    CHECK(ids_are(t, "\xC3\xA9\u4E2D\nb", 1, bytes, 7), "characters and bytes");
    CHECK(ids_are(t, "\u2581" "ab\u2581" "a a", 1, marks, 4), "U+2581 is a space");
    CHECK(ids_are(t, " ", 1, &two, 1), "a space, and the one before it");
    CHECK(ids_are(t, "<s>", 0, control, 4) && ids_are(t, "<s>a", 1, begin, 2), "control tokens, normalised or not");
    CHECK(ids_are(t, "\xE2\x96" "a", 1, wrong, 5), "a part of U+2581");
    const char *text = tokenizer_token(t, S_SPACE_AB, &n);
    CHECK(text && n == 3 && !memcmp(text, " ab", 3), "a token's text");
    text = tokenizer_token(t, 3 + 0xE4, &n);
    CHECK(text && n == 1 && *text == '\xE4', "a byte's text");
    CHECK(tokenizer_find(t, " ab") == S_SPACE_AB && tokenizer_find(t, "<0x0A>") == -1, "find");
    test_added(t, "spaces");
    test_ranges(t, "spaces", test_brief ? 500 : 20000);
    tokenizer_free(t);
    static const space_file late = {"null", METASPACE("always"), STRIP("1"), -1, NULL};
    if (!CHECK(!open_spaces(&t, &late, &err), "%s", err.message)) return;
    test_added(t, "Metaspace");
    test_ranges(t, "Metaspace", test_brief ? 500 : 20000);
    tokenizer_free(t);
}

// tests/fixtures/spaces.jsonl: tokenizers whose added tokens are normalised, each followed by texts and the ids that the tokenizers
// library makes of them.
static void test_normalized_goldens(void) {
    static char line[1 << 16];
    FILE *in = fopen("tests/fixtures/spaces.jsonl", "r");
    tokenizer *t = NULL;
    mote_error err;
    int files = 0, texts = 0, outside = 0;
    if (!CHECK(in != NULL, "tests/fixtures/spaces.jsonl")) return;
    while (fgets(line, sizeof line, in)) {
        json j;
        if (!strncmp(line, "{\"version\"", 10)) {
            tokenizer_free(t);
            t = NULL;
            write_temp(line, strlen(line));
            if (!CHECK(!tokenizer_open(&t, temp_dir, &err), "file %d: %s", files, err.message)) break;
            CHECK(tokenizer_is_added(t, 300) && tokenizer_find(t, "<t>") == 300, "file %d: find", files);
            files++;
            continue;
        }
        if (!CHECK(t && !json_parse(&j, line, strlen(line), "golden", &err), "no golden: %s", line)) break;
        buf text = EMPTY, want = EMPTY, ids = EMPTY;
        size_t size = json_string(&j, json_get(&j, 0, "text"), NULL, 0);
        json_string(&j, json_get(&j, 0, "text"), (char *)buf_add(&text, NULL, size), size);
        for (uint32_t k = json_get(&j, 0, "ids") + 1; k < j.nodes[json_get(&j, 0, "ids")].next; k = j.nodes[k].next) {
            double id = 0;
            json_double(&j, k, &id);
            int32_t one = (int32_t)id;
            buf_add(&want, &one, sizeof one);
        }
        int code = tokenizer_encode(t, text.data, text.size, NULL, 0, &ids, &err);
        CHECK(!code && same_ids(&ids, &want), "file %d: %.*s", files - 1, (int)text.size, text.data);
        if (t->blank.count && text.size && !memchr(text.data, '<', text.size) && !memmem(text.data, text.size, " x", 2) &&
            !memmem(text.data, text.size, "b ", 2) && !memmem(text.data, text.size, "b" SPACE_MARK, 4)) {
            ids.size = 0;                          // white space is a token in text from outside, too, and across its borders
            const text_range ends[] = {{0, (text.size + 2) / 3}, {text.size - text.size / 3, text.size}};
            code = tokenizer_encode(t, text.data, text.size, ends, text.size < 3 ? 1 : 2, &ids, &err);
            CHECK(!code && same_ids(&ids, &want), "file %d, from outside: %.*s", files - 1, (int)text.size, text.data);
            outside++;
        }
        texts++;
        buf_free(&text);
        buf_free(&want);
        buf_free(&ids);
        json_free(&j);
    }
    tokenizer_free(t);
    fclose(in);
    CHECK(files == 7 && texts > 250 && outside > 15, "%d files, %d texts, %d from outside", files, texts, outside);
}

// tests/fixtures/gemma4: a tokenizer of the form of Gemma 4's, and what the tokenizers library makes of texts.
static void test_gemma(void) {
    static char line[1 << 16];
    FILE *in = fopen("tests/fixtures/gemma4/texts.jsonl", "r");
    tokenizer *t = NULL;
    mote_error err;
    int texts = 0;
    if (!CHECK(in && !tokenizer_open(&t, "tests/fixtures/gemma4", &err), "tests/fixtures/gemma4: %s", in ? err.message : "no texts")) return;
    CHECK(t->begin == -1 && t->space == SPACE_NONE && !t->strip_space && !t->blank.count, "begin %d, space %d", t->begin, t->space);
    CHECK(tokenizer_find(t, "<|turn>") == 105 && tokenizer_is_special(t, 105) && tokenizer_find(t, "<|\"|>") == 52, "control tokens");
    for (; fgets(line, sizeof line, in); texts++) {
        json j;
        if (!CHECK(!json_parse(&j, line, strlen(line), "golden", &err), "no golden: %s", line)) break;
        const uint32_t node = json_get(&j, 0, "text");
        buf text = EMPTY;
        const size_t size = json_string(&j, node, NULL, 0);
        json_string(&j, node, (char *)buf_add(&text, NULL, size), size);
        CHECK(golden_is(t, &j, text.data, text.size), "%.*s", (int)text.size, text.data);
        CHECK(round_trip(t, text.data, text.size), "round trip of %.*s", (int)text.size, text.data);
        buf_free(&text);
        json_free(&j);
    }
    CHECK(texts > 250, "%d texts", texts);
    test_added(t, "gemma4");
    test_ranges(t, "gemma4", test_brief ? 200 : 2000);
    test_long_words(t, test_brief ? 100000 : 1000000);
    if (!test_brief) test_growth(t, "gemma4");
    tokenizer_free(t);
    fclose(in);
}

static void test_space_refusals(void) {
    static const struct { space_file file; const char *message; } refused[] = {
        {{"null", "null", STRIP("1"), -1, NULL}, "needs spaces replaced"},
        {{SPACES_ALWAYS, METASPACE("first"), STRIP("1"), -1, NULL}, "not by both"},
        {{"{'type':'NFKC'}", "null", STRIP("1"), -1, NULL}, "normalizer \"NFKC\""},
        {{"{'type':'Sequence','normalizers':[{'type':'Prepend','prepend':'x'}," SPACES_REPLACED "]}", "null", STRIP("1"), -1, NULL},
         "normalizer \"Prepend\""},
        {{"{'type':'Replace','pattern':{'String':' '},'content':'x'}", "null", STRIP("1"), -1, NULL}, "normalizer \"Replace\""},
        {{"null", "{'type':'Metaspace','replacement':'~','prepend_scheme':'first'}", STRIP("1"), -1, NULL}, "split false"},
        {{"null", METASPACE("last"), STRIP("1"), -1, NULL}, "prepend_scheme \"last\""},
        {{SPACES_ALWAYS, "null", "null", -1, NULL}, "without a decoder"},
        {{SPACES_ALWAYS, "null", "{'type':'ByteLevel'}", -1, NULL}, "decoder \"ByteLevel\""},
        {{SPACES_ALWAYS, "null", "{'type':'Sequence','decoders':[{'type':'ByteFallback'},{'type':'Fuse'},{'type':'Fuse'}]}", -1, NULL},
         "decoder \"ByteFallback\""},
        {{SPACES_ALWAYS, "null", STRIP("2"), -1, NULL}, "Strip"},
        {{SPACES_ALWAYS, "null", STRIP("1"), 0x41, NULL}, "no token for byte 0x41"},
        {{SPACES_ALWAYS, "null", STRIP("1"), -1, ",'~':259,'a':260,'b':261,'~a':262"}, "merge 1:"},
        {{SPACES_ALWAYS, "{'type':'Digits'}", STRIP("1"), -1, NULL}, "pre-tokenizer \"Digits\""},
        {{SPACES_REPLACED, SPLIT_AT("'String':'a'", "false"), SPACE_DECODER, -1, NULL}, "pre-tokenizer \"Split\""},
        {{SPACES_REPLACED, SPLIT_AT("'Regex':' '", "false"), SPACE_DECODER, -1, NULL}, "pre-tokenizer \"Split\""},
        {{SPACES_REPLACED, SPLIT_AT("'String':' '", "true"), SPACE_DECODER, -1, NULL}, "pre-tokenizer \"Split\""},
        {{"null", SPLIT_AT("'String':' '", "false"), SPACE_DECODER, -1, NULL}, "needs spaces replaced"},
    };
    for (size_t i = 0; i < COUNT(refused); i++) {
        tokenizer *t;
        mote_error err;
        int code = open_spaces(&t, &refused[i].file, &err);
        int one_line = code && strstr(err.message, "tokenizer.json") && !strchr(err.message, '\n');
        CHECK(one_line && !t && strstr(err.message, refused[i].message), "file %zu: <%s>", i, code ? err.message : "opened");
        if (!code) tokenizer_free(t);
    }
}
