// Tests of the masks that make an answer JSON of a schema: texts that fit and texts that do not, and random walks through the
// mask, whose end must always be JSON that a second checker finds to be of the schema.

#include "../engine.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../text/basics.c"
#include "../text/utf8.c"
#include "../text/json.c"

// A model that is a vocabulary.
typedef struct tokenizer tokenizer;
struct mote_model { tokenizer *text; struct vocabulary *words; };
static int32_t tokenizer_vocab(const tokenizer *t);
static const char *tokenizer_token(const tokenizer *t, int32_t id, size_t *size);
static int tokenizer_is_added(const tokenizer *t, int32_t id) { return t != NULL && id < 0; }
static int is_eos(const mote_model *m, int32_t id);

#include "../generate/vocabulary.c"
#include "../generate/schema.c"
#include "../generate/follow.c"

// ---- A vocabulary: single bytes, and words with quotes, brackets and halves of characters -------------------------------

static const char *const pieces[] = {
    "{\"", "\":", "\": ", ", \"", "\"}", "}}", "[]", "[[", "]]", "],", "{}", "true", "false", "null", "nul", "tr", "12", "0.", "00", "-1", "1e", "e+",
    "\n  ", "\n", "  ", " \"", "name", "\"name\"", "\"na", "me\": \"", "a\"b", "\\\"", "\\u", "\\u00", "d8", "\xc3", "\xc3\xa4", "\xa4\xc3", "\xe2\x82\xac",
    "\xf0\x9f\x98\x80", "\xed\xa0", "hello world", "x\",\"", "\"list\":[", "1,2", "]}", "\"}}", "ab", "abc", "\"ab\"", "\"abc\""};
enum { PIECES = sizeof pieces / sizeof pieces[0], END = 256 + PIECES, VOCAB = END + 1 };
static char bytes_of[256];
static mote_model model;

static int is_eos(const mote_model *m, int32_t id) { return m != NULL && id == END; }
static int32_t tokenizer_vocab(const tokenizer *t) { (void)t; return VOCAB; }

static const char *tokenizer_token(const tokenizer *t, int32_t id, size_t *size) {
    (void)t;
    *size = id < 256 ? 1 : id < END ? strlen(pieces[id - 256]) : 0;
    return id < 256 ? &bytes_of[id] : id < END ? pieces[id - 256] : NULL;
}

static shape *open_shape(const char *schema, mote_error *error) {
    shape *s = NULL;
    error->code = 0;
    error->message[0] = 0;
    if (shape_open(&s, *schema ? schema : "{\"type\": \"object\"}", VOCAB, error)) {
        shape_free(s);
        s = NULL;
    }
    return s;
}

// What may come next: 1, also the end.
static const unsigned char *mask_of(shape *s) {
    shape_mask(s, model_vocabulary(&model), VOCAB);
    s->allowed[END] = (unsigned char)shape_is_complete(s);
    return s->allowed;
}

// ---- Does a value fit? Straight from the schema, by other means than schema.c --------------------------------------------

static int same_text(const json *a, uint32_t x, const json *b, uint32_t y) {
    buf one = {NULL, 0, 0, 0}, two = {NULL, 0, 0, 0};
    put_value_text(&one, a, x);
    put_value_text(&two, b, y);
    int same = one.size == two.size && !memcmp(one.data, two.data, one.size);
    buf_free(&one);
    buf_free(&two);
    return same;
}

static int is_type(const json *v, uint32_t x, const json *s, uint32_t name) {
    static const char *const names[] = {"null", "boolean", "boolean", "number", "string", "array", "object"};
    uint32_t type = v->nodes[x].type;
    if (json_equals(s, name, "integer"))
        return type == JSON_NUMBER && !memchr(v->text + v->nodes[x].start, '.', v->nodes[x].size) &&
               !memchr(v->text + v->nodes[x].start, 'e', v->nodes[x].size);
    return json_equals(s, name, names[type]);
}

static int fits(const json *v, uint32_t x, const json *s, uint32_t schema, uint32_t root);

static int object_fits(const json *v, uint32_t x, const json *s, uint32_t schema, uint32_t root) {
    uint32_t properties = json_get(s, schema, "properties"), required = json_get(s, schema, "required");
    uint32_t more = json_get(s, schema, "additionalProperties");
    for (uint32_t k = required + 1; required && k < s->nodes[required].next; k = s->nodes[k].next) {
        char *name = string_text(s, k);
        int there = json_get(v, x, name) != 0;
        free(name);
        if (!there) return 0;
    }
    for (uint32_t k = x + 1; k < v->nodes[x].next; k = v->nodes[k + 1].next) {
        char *name = string_text(v, k);
        uint32_t own = properties ? json_get(s, properties, name) : 0;
        free(name);
        if (own && !fits(v, k + 1, s, own, root)) return 0;
        if (!own && more && (s->nodes[more].type == JSON_FALSE || !fits(v, k + 1, s, more, root))) return 0;
        for (uint32_t l = x + 1; l < k; l = v->nodes[l + 1].next)
            if (own && same_text(v, k, v, l)) return 0;                // a key twice
    }
    return 1;
}

static double bound(const json *s, uint32_t schema, const char *key, double absent) {
    uint32_t node = json_get(s, schema, key);
    double value = absent;
    if (node) (void)json_double(s, node, &value);
    return value;
}

static int fits(const json *v, uint32_t x, const json *s, uint32_t schema, uint32_t root) {
    uint32_t any = json_get(s, schema, "anyOf"), list = json_get(s, schema, "enum"), only = json_get(s, schema, "const");
    uint32_t type = json_get(s, schema, "type"), items = json_get(s, schema, "items"), reference = json_get(s, schema, "$ref");
    int ok = !any && !list;
    if (s->nodes[schema].type == JSON_TRUE) return 1;
    if (reference) return fits(v, x, s, json_equals(s, reference, "#") ? root : json_get(s, json_get(s, root, "$defs"), "leaf"), root);
    for (uint32_t k = any + 1; any && k < s->nodes[any].next; k = s->nodes[k].next) ok |= fits(v, x, s, k, root);
    for (uint32_t k = list + 1; list && k < s->nodes[list].next; k = s->nodes[k].next) ok |= same_text(v, x, s, k);
    if (only) ok = same_text(v, x, s, only);
    if (!ok) return 0;
    if (type && s->nodes[type].type == JSON_STRING && !is_type(v, x, s, type)) return 0;
    if (type && s->nodes[type].type == JSON_ARRAY) {
        int one = 0;
        for (uint32_t k = type + 1; k < s->nodes[type].next; k = s->nodes[k].next) one |= is_type(v, x, s, k);
        if (!one) return 0;
    }
    double size = v->nodes[x].size;
    if (v->nodes[x].type == JSON_OBJECT && !object_fits(v, x, s, schema, root)) return 0;
    if (v->nodes[x].type == JSON_ARRAY) {
        if (size < bound(s, schema, "minItems", 0) || size > bound(s, schema, "maxItems", 1e9)) return 0;
        for (uint32_t k = x + 1; items && k < v->nodes[x].next; k = v->nodes[k].next)
            if (!fits(v, k, s, items, root)) return 0;
    }
    if (v->nodes[x].type == JSON_STRING) {
        char *text = string_text(v, x);
        int length = 0;
        for (const char *c = text; *c; c++) length += (*c & 0xc0) != 0x80;
        size_t bytes = json_string(v, x, NULL, 0);
        int zero = strlen(text) != bytes;                              // \u0000 ends what strlen counts
        free(text);
        if (!zero && (length < bound(s, schema, "minLength", 0) || length > bound(s, schema, "maxLength", 1e9))) return 0;
    }
    return 1;
}

// ---- Tests -----------------------------------------------------------------------------------------------------------

static const char *const schemas[] = {
    "",
    "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 6}, \"list\": {\"type\": \"array\", \"items\": {\"type\": "
    "\"integer\"}, \"minItems\": 1, \"maxItems\": 3}, \"sure\": {\"type\": \"boolean\"}}, \"required\": [\"name\", \"list\"], "
    "\"additionalProperties\": false}",
    "{\"type\": [\"string\", \"null\", \"number\"], \"maxLength\": 4, \"minLength\": 2}",
    "{\"enum\": [1, 12, 123, \"ab\", \"abc\", {\"a\": [null]}, true]}",
    "{\"anyOf\": [{\"type\": \"null\"}, {\"type\": \"object\", \"properties\": {\"next\": {\"$ref\": \"#\"}, \"leaf\": {\"$ref\": \"#/$defs/leaf\"}}, "
    "\"required\": [\"leaf\"]}], \"$defs\": {\"leaf\": {\"const\": \"x\\\"y\"}}}",
    "{\"type\": \"object\", \"additionalProperties\": {\"type\": \"array\", \"items\": {\"type\": \"number\"}, \"maxItems\": 2}}",
    "{\"type\": \"object\", \"properties\": {}, \"additionalProperties\": false}",
    "{\"type\": \"array\", \"items\": {\"type\": \"array\", \"items\": {\"type\": \"boolean\"}, \"maxItems\": 2}, \"maxItems\": 3}",
    "{\"type\": \"object\", \"properties\": {\"\\u00e4\\n\": {\"type\": \"integer\"}, \"ab\": {}, \"abc\": true}, \"required\": [\"\\u00e4\\n\"]}",
    "{\"type\": \"boolean\"}"};
enum { SCHEMAS = sizeof schemas / sizeof schemas[0] };

// A text through the mask, token by token at random, mostly those that end things after a while.
static int walk(shape *s, buf *text, int most) {
    int allowed[VOCAB];
    for (int n = 0; n < most; n++) {
        int count = 0;
        const unsigned char *may = mask_of(s);
        for (int id = 0; id < VOCAB; id++)
            if (may[id]) allowed[count++] = id;
        if (!CHECK(count > 0, "a dead end behind '%.*s'", (int)text->size, text->data)) return 0;
        int id = allowed[random_int(0, count - 1)];
        for (int k = 0; k < count && n > 20; k++) {
            size_t size;
            const char *b = tokenizer_token(NULL, allowed[k], &size);
            if (b && size == 1 && strchr("\"]}", *b) && random_int(0, 2)) id = allowed[k];
        }
        if (may[END] && n > 3) id = END;
        if (id == END) return 1;
        size_t size;
        const char *b = tokenizer_token(NULL, id, &size);
        // The mask and the single steps are of one mind: the mask tries tokens together that begin alike.
        shape_follow(s, b, size);
        buf_add(text, b, size);
    }
    return 0;
}

static void test_walks(void) {
    for (int i = 0; i < SCHEMAS; i++) {
        int ended = 0;
        for (int k = 0; k < (test_brief ? 30 : 600); k++) {
            mote_error f;
            json v, j;
            mote_error error;
            buf text = {NULL, 0, 0, 0};
            shape *s = open_shape(schemas[i], &f);
            if (!CHECK(s != NULL, "%s: %s", schemas[i], f.message)) return;
            if (walk(s, &text, 600)) {
                const char *schema = *schemas[i] ? schemas[i] : "{\"type\": \"object\"}";
                ended++;
                int code = json_parse(&v, text.data, text.size, "walk", &error);
                CHECK(!code, "%s: '%.*s' is no JSON: %s", schemas[i], (int)text.size, text.data, code ? error.message : "");
                if (!code && !json_parse(&j, schema, strlen(schema), "schema", &error)) {
                    CHECK(fits(&v, 0, &j, 0, 0), "'%.*s' is not of %s", (int)text.size, text.data, schema);
                    json_free(&j);
                }
                if (!code) json_free(&v);
            }
            buf_free(&text);
            shape_free(s);
        }
        CHECK(ended > (test_brief ? 3 : 60), "%s: %d walks ended", schemas[i], ended);
    }
}

// The mask allows exactly the tokens whose bytes fit one by one.
static void test_mask(void) {
    for (int i = 0; i < SCHEMAS; i++)
        for (int k = 0; k < (test_brief ? 5 : 60); k++) {
            mote_error f;
            buf text = {NULL, 0, 0, 0};
            shape *s = open_shape(schemas[i], &f);
            walk(s, &text, random_int(0, 30));
            const unsigned char *may = mask_of(s);
            for (int id = 0; id < END; id++) {
                size_t size;
                const char *b = tokenizer_token(NULL, id, &size);
                shape_place place = s->now;
                int ok = 1;
                for (size_t at = 0; at < size && ok; at++) ok = shape_step(s, &place, (unsigned char)b[at]) != 0;
                CHECK(ok == may[id], "%s behind '%.*s': token '%.*s' %s", schemas[i], (int)text.size, text.data, (int)size, b,
                      ok ? "is masked" : "is not masked");
            }
            buf_free(&text);
            shape_free(s);
        }
}

static void test_texts(void) {
    static const struct { int schema; const char *text; int ok; } cases[] = {
        {0, "{}", 1}, {0, "{\"a\": {\"b\": [1, -0.5e3, null, \"\\ud\"", 0}, {0, "[", 0}, {0, "{\"a\":1}", 1}, {0, "{\"a\"  :", 0}, {0, "{\n  \"a\": [\n    1\n  ]\n}", 1},
        {0, "{\"a\": 01", 0}, {0, "{\"a\": 1.}", 0}, {0, "{\"a\": -}", 0}, {0, "{\"a\": \"\xc3\xa4\xe2\x82\xac\"}", 1}, {0, "{\"a\": \"\xc0\x80", 0}, {0, "{\"a\": \"\xed\xa0\x80", 0},
        {0, "{\"a\": \"\\u12aF\\n\"}", 1}, {0, "{\"a\": \"\\uD8", 0}, {0, "{\"a\": \"\\x", 0}, {0, "{,", 0}, {0, "{\"a\": 1,}", 0}, {0, "{\"a\": \"\n", 0},
        {1, "{\"name\": \"ab\", \"list\": [1, 2]}", 1}, {1, "{\"list\": [1], \"name\": \"\"}", 1}, {1, "{\"name\": \"ab\"}", 0}, {1, "{\"name\": \"a\", \"name", 0}, {1, "{\"list\": []", 0},
        {1, "{\"list\": [1,2,3,4", 0}, {1, "{\"list\": [1.", 0}, {1, "{\"name\": \"1234567", 0}, {1, "{\"other", 0}, {1, "{\"sure\": tru ", 0},
        {2, "\"ab\"", 1}, {2, "\"a\"", 0}, {2, "null", 1}, {2, "true", 0}, {2, "-1.5", 1}, {3, "12", 1}, {3, "124", 0}, {3, "\"abc\"", 1}, {3, "\"a\"", 0}, {3, "{\"a\": [null]}", 1},
        {4, "{\"leaf\": \"x\\\"y\", \"next\": {\"leaf\": \"x\\\"y\", \"next\": null}}", 1}, {4, "{\"next\": null}", 0}, {6, "{}", 1}, {6, "{\"", 0}, {9, "false", 1}, {9, " ", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mote_error f;
        shape *s = open_shape(schemas[cases[i].schema], &f);
        if (!CHECK(s != NULL, "%s", f.message)) return;
        int ok = 1;
        for (const char *c = cases[i].text; *c && ok; c++) ok = shape_step(s, &s->now, (unsigned char)*c);
        ok = ok && shape_is_complete(s);
        CHECK(ok == cases[i].ok, "'%s' by %s: %d", cases[i].text, schemas[cases[i].schema], ok);
        shape_free(s);
    }
}

static void test_refused(void) {
    static const struct { const char *schema, *holds; } cases[] = {
        {"{\"type\": \"string\", \"pattern\": \"a\"}", "pattern"}, {"{\"minimum\": 1}", "minimum"}, {"{\"oneOf\": []}", "oneOf"}, {"{\"not\": {}}", "not"},
        {"{\"allOf\": [{}]}", "allOf"}, {"7", "no object"}, {"{\"type\": \"file\"}", "a type"}, {"{\"type\": []}", "types"}, {"{\"enum\": []}", "enum"},
        {"{\"anyOf\": []}", "anyOf"}, {"{\"anyOf\": [{\"type\": \"string\"}, {\"const\": \"a\"}]}", "begin alike"}, {"{\"anyOf\": [{\"$ref\": \"#\"}]}", "begin alike"},
        {"{\"$ref\": \"#/x\"}", "leads nowhere"}, {"{\"$ref\": \"http://x\"}", "leads nowhere"}, {"{\"$ref\": \"#\"}", "begin alike"},
        {"{\"required\": [\"a\"]}", "required"}, {"{\"minItems\": -1}", "minItems"}, {"{\"minLength\": 3, \"maxLength\": 2}", "largest"}, {"{\"properties\": []}", "properties"},
        {"{\"items\": [{}]}", "no object"}, {"{\"type\": \"array\", \"items\": {\"uniqueItems\": true}}", "uniqueItems"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mote_error f;
        shape *s = open_shape(cases[i].schema, &f);
        CHECK(!s && f.code == MOTE_EINVAL && strstr(f.message, cases[i].holds), "%s: %s", cases[i].schema, s ? "taken" : f.message);
        shape_free(s);
    }
}

// Damaged schemas: refused, or a shape that leads to an end or goes on.
static void test_random(void) {
    int taken = 0, refused = 0;
    for (int i = 0; i < (test_brief ? 300 : 6000); i++) {
        char text[1024] = "";
        mote_error f;
        strcat(text, schemas[random_int(1, SCHEMAS - 1)]);
        for (int k = random_int(1, 4); k-- > 0;) text[random_int(0, (int)strlen(text) - 1)] = "{}[]\",: 0-1tfn\\ax"[random_int(0, 16)];
        shape *s = open_shape(text, &f);
        buf out = {NULL, 0, 0, 0};
        if (s) taken++, walk(s, &out, 60);
        else refused++;
        CHECK(s || f.code == MOTE_EINVAL, "refused without a word: %s", text);
        buf_free(&out);
        shape_free(s);
    }
    CHECK(taken > 5 && refused > 5, "%d taken, %d refused: no test", taken, refused);
}

int main(int argc, char **argv) {
    test_main_begin("schema", argc, argv);
    for (int i = 0; i < 256; i++) bytes_of[i] = (char)i;
    CHECK(model_vocabulary(&model) && model.words->count == END, "the vocabulary");
    test_texts();
    test_refused();
    test_mask();
    test_walks();
    test_random();
    vocabulary_free(model.words);
    return test_main_end();
}
