// A part of test_tokenizer: tokenizer.json as it is opened, and refused; control tokens in text from outside.

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

// The longest added token of a set at text + at, none of whose bytes is marked: by comparing with all of them.
static const added_token *find_added(const added_set *set, const buf *text, const char *marks, size_t at) {
    const added_token *found = NULL;
    for (uint32_t i = 0; i < set->count; i++) {
        const added_token *a = set->list + i;
        if (a->size > text->size - at || memcmp(text->data + at, a->text, a->size)) continue;
        if (!memchr(marks + at, 1, a->size) && (!found || a->size > found->size)) found = a;
    }
    return found;
}

typedef void between_marks(const tokenizer *t, const buf *text, const char *marks, buf *ids);

static void split_by_marks(const tokenizer *t, const added_set *set, const buf *text, const char *marks, buf *ids, between_marks *between) {
    size_t done = 0;
    for (size_t at = 0; at <= text->size;) {
        const added_token *found = at < text->size ? find_added(set, text, marks, at) : NULL;
        if (!found && at++ < text->size) continue;
        buf piece = {text->data + done, (found ? at : text->size) - done, 0, 0};
        if (piece.size) between(t, &piece, marks + done, ids);
        if (!found) break;
        buf_add(ids, &found->id, sizeof found->id);
        done = at += found->size;
    }
}

static void piece_by_marks(const tokenizer *t, const buf *text, const char *marks, buf *ids) {
    encode(t, text->data, text->size, t->characters ? 0 : !memchr(marks, 1, text->size), ids);
}

static void words_by_marks(const tokenizer *t, const buf *text, const char *marks, buf *ids) {
    encoder e = {.t = t, .ids = ids};
    text_piece all = {text->data, text->data + text->size, text->data, NULL, 0};
    (void)marks;
    encode_words(&e, &all);
    buf_free(&e.nodes);
    buf_free(&e.heap);
}

// A piece between two tokens of the raw set: SentencePiece's spaces, then the normalised set, or the reverse.
static void normal_by_marks(const tokenizer *t, const buf *text, const char *marks, buf *ids) {
    buf normal = EMPTY, normal_marks = EMPTY;
    if (!t->characters) piece_by_marks(t, text, marks, ids);
    else if (t->late_spaces) split_by_marks(t, &t->normalized, text, marks, ids, piece_by_marks);
    if (!t->characters || t->late_spaces) return;
    if (t->space == SPACE_ALWAYS) buf_add(&normal, " ", 1), buf_add(&normal_marks, "", 1);
    for (const char *p = text->data, *end = p + text->size, *from; p < end;) {
        from = p;
        uint32_t c = utf8_next(&p, end);
        utf8_put(&normal, c == 0x2581 ? ' ' : c);
        while (normal_marks.size < normal.size) buf_add(&normal_marks, memchr(marks + (from - text->data), 1, (size_t)(p - from)) ? "\1" : "", 1);
    }
    split_by_marks(t, &t->normalized, &normal, normal_marks.data, ids, words_by_marks);
    buf_free(&normal);
    buf_free(&normal_marks);
}

// What tokenizer_encode must give, said another way: marks has a 1 for each byte from outside.
static void encode_by_marks(const tokenizer *t, const buf *text, const char *marks, buf *ids) {
    split_by_marks(t, &t->raw, text, marks, ids, normal_by_marks);
}

// Random texts of added tokens, their beginnings and ends, and words, of which random ranges are from outside.
static void test_ranges(const tokenizer *t, const char *name, int rounds) {
    static const char *const words[] = {"a",  "ab ", "It is 21.\n", "\n\n", "e\u0301", "\u0301", "e\u0301\u0301",
                                        "<", "|>",  "\xE2",        "2", "\u2581"};
    int cut = 0;
    for (int round = 0; round < rounds; round++) {
        buf text = EMPTY, ids = EMPTY, want = EMPTY, all = EMPTY, ranges = EMPTY;
        for (int i = random_int(1, 6); i > 0; i--) {
            const added_set *set = t->normalized.count && random_int(0, 1) ? &t->normalized : &t->raw;
            const added_token *a = set->list + random_int(0, (int)set->count - 1);
            uint32_t from = random_int(0, 2) ? 0 : (uint32_t)random_int(0, (int)a->size - 1);
            uint32_t size = random_int(0, 2) ? a->size - from : (uint32_t)random_int(0, (int)(a->size - from));
            if (random_int(0, 1)) buf_add(&text, a->text + from, size);
            else buf_text(&text, words[random_int(0, (int)COUNT(words) - 1)]);
        }
        char *marks = (char *)allocate(text.size + 1);
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
            CHECK(beside == (!normalized || t->characters), "%s: <%s>: beside text from outside", name, a->text);
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
          "a normalised token in a trusted piece after text from outside");
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

#define AFTER(processor) "null,\"post_processor\":" processor
#define TEMPLATE(single, tokens) AFTER("{\"type\":\"TemplateProcessing\",\"single\":" single ",\"special_tokens\":" tokens "}")
#define FIRST "{\"SpecialToken\":{\"id\":\"<s>\"}}"
#define LINES "(?:\\\\r?\\\\n)+(?!\\\\r?\\\\n)"
#define WORDS \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*" \
    "|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
static const refusal refusals[] = {
    {DECODER, AFTER("\"x\""), FORMAT, "post_processor without a type"},
    {DECODER, AFTER("{\"type\":\"Sequence\",\"processors\":7}"), UNSUPPORTED, "post_processor \"Sequence\""},
    {DECODER, AFTER("{\"type\":\"BertProcessing\"}"), UNSUPPORTED, "post_processor \"BertProcessing\""},
    {DECODER, TEMPLATE("3", "{}"), FORMAT, "expected \"single\" to be an array"},
    {DECODER, TEMPLATE("[" FIRST "]", "[\"zz\"]"), FORMAT, "to be in special_tokens"},
    {DECODER, TEMPLATE("[" FIRST "]", "[\"<s>\"]"), FORMAT, "to be in special_tokens"},
    {DECODER, TEMPLATE("[" FIRST "]", "{\"<x>\":{\"ids\":[1]}}"), FORMAT, "to be in special_tokens"},
    {DECODER, TEMPLATE("[" FIRST "]", "{\"<s>\":{\"ids\":[]}}"), FORMAT, "to be in special_tokens"},
    {DECODER, TEMPLATE("[" FIRST "]", "{\"<s>\":{\"ids\":[-1]}}"), FORMAT, "to be in special_tokens"},
    {DECODER, TEMPLATE("[" FIRST "," FIRST "]", "{\"<s>\":{\"ids\":[1]}}"), UNSUPPORTED, "more than one token before"},
    {DECODER, TEMPLATE("[{\"Sequence\":{\"id\":\"A\"}}," FIRST "]", "{}"), FORMAT, "to be in special_tokens"},
    {DECODER, TEMPLATE("[{\"Sequence\":{\"id\":\"A\"}}," FIRST "]", "{\"<s>\":{\"ids\":[1,2]}}"), FORMAT, "to be in special_tokens"},
    {DECODER, TEMPLATE("[{\"Sequence\":{\"id\":\"A\"}}," FIRST "]", "{\"<s>\":{\"ids\":[99999]}}"), FORMAT, "no token has id 99999"},
    {DECODER, TEMPLATE("[{\"Sequence\":{\"id\":\"A\"}}," FIRST "," FIRST "]", "{\"<s>\":{\"ids\":[1]}}"), UNSUPPORTED, "more than one token after"},
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
    {PRE, SEQUENCE(SPLIT("x", "MergedWithNext", "false") "," NO_REGEX), UNSUPPORTED, "not an isolated Regex"},
    {PRE, SEQUENCE(SPLIT(LINES, "Isolated", "false") "," NO_REGEX), UNSUPPORTED, "not an isolated Regex"},
    {PRE, SEQUENCE(SPLIT(LINES, "MergedWithNext", "false") "," NO_REGEX), UNSUPPORTED, "pattern not supported: (?:"},
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

// Control characters and bytes that begin no assigned character may have no token: they are left out.
static void test_rare_bytes(void) {
    static const int rare[] = {0x04, 0x1D, 0x7F, 0xC0, 0xF1, 0xFF}, needed[] = {'\t', '\n', '\r', ' ', '~', 0x80, 0xC2, 0xF0, 0xF3, 0xF4};
    static const int32_t ids[] = {'a', 'b', ' '};
    tokenizer *t;
    mote_error err;
    for (size_t i = 0; i < COUNT(rare); i++) {
        if (!CHECK(!open_parts(&t, -1, NULL, rare[i], &err), "%s", err.message)) continue;
        if (rare[i] == 0x04) CHECK(ids_are(t, "a\x04" "b\x04\x04 \x04", 1, ids, 3) && ids_are(t, "\x04", 0, ids, 0), "a byte that is left out");
        tokenizer_free(t);
    }
    for (size_t i = 0; i < COUNT(needed); i++) CHECK(open_parts(&t, -1, NULL, needed[i], &err) == MOTE_EFORMAT, "byte %d", needed[i]);
}

static void check_refusal(int code, int want, const tokenizer *t, const mote_error *err, const char *part) {
    int one_line = !strchr(err->message, '\n') && strstr(err->message, "tokenizer.json");
    CHECK(code == want && err->code == code && !t && one_line && strstr(err->message, part),
          "code %d, not %d: <%s>, not <%s>", code, want, code ? err->message : "opened", part);
}

// The tokens around a text, which are the caller's to put there.
static void test_template(void) {
    static const struct { const char *single; int32_t begin, end; } around[] = {
        {"[{\"Sequence\":{\"id\":\"A\"}}]", -1, -1},
        {"[" FIRST ",{\"Sequence\":{\"id\":\"A\"}}]", 7, -1},
        {"[{\"Sequence\":{\"id\":\"A\"}}," FIRST "]", -1, 7},
        {"[" FIRST ",{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"<e>\",\"type_id\":0}}]", 7, 8}};
    for (size_t i = 0; i < COUNT(around); i++) {
        char text[512];
        tokenizer *t;
        mote_error err;
        snprintf(text, sizeof text, TEMPLATE("%s", "{\"<s>\":{\"ids\":[7]},\"<e>\":{\"ids\":[8]}}"), around[i].single);
        if (!CHECK(!open_parts(&t, DECODER, text, -1, &err), "%s", err.message)) continue;
        CHECK(t->begin == around[i].begin && t->end == around[i].end, "template %zu: %d and %d around a text", i, t->begin, t->end);
        const int32_t ids[] = {'b', 'a'};
        CHECK(ids_are(t, "ba", 1, ids, 2), "template %zu: a text's own tokens", i);
        tokenizer_free(t);
    }
}

// Laguna's two Split steps, the first of which alone merges with what is next.
static void test_line_pieces(void) {
    tokenizer *t;
    mote_error err;
    const char *steps = SEQUENCE(SPLIT(LINES, "MergedWithNext", "false") "," SPLIT(WORDS, "Isolated", "false") "," NO_REGEX);
    if (!CHECK(!open_parts(&t, PRE, steps, -1, &err), "%s", err.message)) return;
    CHECK(t->kind == SPLIT_LAGUNA, "Laguna's steps are splitter %d", (int)t->kind);
    tokenizer_free(t);
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
#define BPE "\"model\":{\"type\":\"BPE\""
    static const struct { const char *text, *message; } files[] = {
        {"", "not valid JSON"}, {"[]", "no \"model\""}, {"{}", "no \"model\""}, {"{\"model\":7}", "model without a type"},
        {"{\"model\":{},\"normalizer\":{\"type\":\"Prepend\"}}", "model without a type"},
        {"{\"model\":{\"type\":7}}", "model without a type"}, {"{" BPE "}}", "no pre_tokenizer"}, {"\xFF", "not valid JSON"},
        {"{" BPE ",\"byte_fallback\":true},\"pre_tokenizer\":7,\"normalizer\":{\"type\":\"Prepend\"}}", "pre-tokenizer without a type"},
        {"{" BPE ",\"vocab\":[],\"merges\":[]},\"pre_tokenizer\":" BYTE_LEVEL "}", "model: vocab must be an object"},
        {"{" BPE ",\"vocab\":{}},\"pre_tokenizer\":" BYTE_LEVEL "}", "model: merges must be a list"},
        {"{" BPE ",\"vocab\":{},\"merges\":[]},\"pre_tokenizer\":" BYTE_LEVEL ",\"added_tokens\":{}}", "added_tokens must be a list"}};
#undef BPE
    for (size_t i = 0; i < COUNT(files); i++) {
        write_temp(files[i].text, strlen(files[i].text));
        memset(&err, 0, sizeof err);
        code = tokenizer_open(&t, temp_dir, &err);
        CHECK(code && !t && strstr(err.message, "tokenizer.json: ") && strstr(err.message, files[i].message), "%s: %s, not %s", files[i].text,
              err.message, files[i].message);
    }
    code = tokenizer_open(&t, "/nonexistent", &err);
    check_refusal(code, MOTE_EIO, t, &err, "/nonexistent/tokenizer.json: No such file");
    buf b = EMPTY;
    CHECK(read_file("/", "tmp", &b, &err) == MOTE_EIO && strstr(err.message, "not a regular file"), "%s", err.message);
    buf_free(&b);
}
