// Tests of the masks that make an answer JSON of a schema: texts that fit and texts that do not, by schemas as people and libraries write
// them (fixtures/schemas.jsonl, whose verdicts are those of Python's jsonschema), and random walks through the mask, whose end must
// always be JSON that a second checker finds to be of the schema.

#include "../../engine.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <regex.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../../text/basics.c"
#include "../../text/utf8.c"
#include "../../text/json.c"
#include "schema_parts.h"

// ---- A vocabulary: single bytes, and words with quotes, brackets and halves of characters -------------------------------

static const char *const pieces[] = {
    "{\"", "\":", "\": ", ", \"", "\"}", "}}", "[]", "[[", "]]", "],", "{}", "true", "false", "null", "nul", "tr", "12", "0.", "00", "-1", "1e", "e+",
    "\n  ", "\n", "  ", " \"", "name", "\"name\"", "\"na", "me\": \"", "a\"b", "\\\"", "\\u", "\\u00", "d8", "\xc3", "\xc3\xa4", "\xa4\xc3", "\xe2\x82\xac",
    "\xf0\x9f\x98\x80", "\xed\xa0", "hello world", "x\",\"", "\"list\":[", "1,2", "]}", "\"}}", "ab", "abc", "\"ab\"", "\"abc\""};
enum { PIECES = sizeof pieces / sizeof pieces[0], END = 256 + PIECES, VOCAB = END + 1 };
static char bytes_of[256];
static vocabulary *words;

static const int32_t ends[] = {END};
static int32_t tokenizer_vocab(const tokenizer *t) { (void)t; return VOCAB; }

static const char *tokenizer_token(const tokenizer *t, int32_t id, size_t *size) {
    (void)t;
    *size = id < 256 ? 1 : id < END ? strlen(pieces[id - 256]) : 0;
    return id < 256 ? &bytes_of[id] : id < END ? pieces[id - 256] : NULL;
}

// A schema that is followed.
typedef struct followed { schema *s; follower w; } followed;

static int open_schema(followed *x, const char *text, mote_error *error) {
    int32_t root;
    memset(x, 0, sizeof *x);
    memset(error, 0, sizeof *error);
    int code = schema_open(&x->s, text, &root, error);
    if (!code && !follower_open(&x->w, x->s)) exit(2);
    if (!code) follower_begin(&x->w, root, 0);
    return code;
}

static void close_schema(followed *x) {
    follower_close(&x->w);
    schema_free(x->s);
}

// What may come next: 1, also the end.
static const unsigned char *mask_of(followed *x) {
    static unsigned char allowed[VOCAB];
    memset(allowed, 0, sizeof allowed);
    mask_words(&x->w, words, allowed);
    allowed[END] = (unsigned char)follower_is_complete(&x->w);
    return allowed;
}

// Does a text fit as a whole, byte by byte, and also a token of three bytes at a time?
static int takes(const char *schema, const char *text) {
    followed x;
    mote_error error;
    int whole[2];
    for (int step = 1; step <= 3; step += 2) {
        int code = open_schema(&x, schema, &error), ok = !code;
        CHECK(!code, "%.100s: %s", schema, error.message);
        for (size_t at = 0, n = strlen(text), k; at < n && ok; at += k) {
            k = n - at < (size_t)step ? n - at : (size_t)step;
            ok = follower_take(&x.w, text + at, k);
        }
        whole[step / 2] = ok && follower_is_complete(&x.w);
        close_schema(&x);
    }
    CHECK(whole[0] == whole[1], "'%s' by %.100s: it depends on how the text is cut", text, schema);
    return whole[0];
}

// ---- Does a value fit? Straight from the schema, by other means than the library's ------------------------------------------

typedef struct checked { const json *v, *s; } checked;

static int fits(checked c, uint32_t x, uint32_t schema);

static char *text_of(const json *j, uint32_t node) {
    size_t n = json_string(j, node, NULL, 0);
    char *text = (char *)malloc(n + 1);
    json_string(j, node, text, n);
    text[n] = 0;
    return text;
}

static int same(const json *a, uint32_t x, const json *b, uint32_t y) {
    double one, two;
    if (a->nodes[x].type != b->nodes[y].type) return 0;
    if (a->nodes[x].type == JSON_NUMBER) return !json_double(a, x, &one) && !json_double(b, y, &two) && one == two;
    if (a->nodes[x].type == JSON_STRING) {
        char *one_text = text_of(a, x), *two_text = text_of(b, y);
        int equal = !strcmp(one_text, two_text);
        free(one_text);
        free(two_text);
        return equal;
    }
    int object = a->nodes[x].type == JSON_OBJECT;
    if (a->nodes[x].type >= JSON_ARRAY && a->nodes[x].size != b->nodes[y].size) return 0;
    for (uint32_t k = x + 1, l = y + 1; a->nodes[x].type >= JSON_ARRAY && k < a->nodes[x].next; k = a->nodes[k].next, l = b->nodes[l].next) {
        if (!object && !same(a, k, b, l)) return 0;
        if (!object) continue;
        char *key = text_of(a, k++);
        uint32_t other = json_get(b, y, key);
        free(key);
        l = b->nodes[l].next;
        if (!other || !same(a, k, b, other)) return 0;
    }
    return 1;
}

static int type_fits(checked c, uint32_t x, uint32_t name) {
    static const char *const names[] = {"null", "boolean", "boolean", "number", "string", "array", "object"};
    double value;
    if (json_equals(c.s, name, "integer")) return c.v->nodes[x].type == JSON_NUMBER && !json_double(c.v, x, &value) && value == floor(value);
    return json_equals(c.s, name, names[c.v->nodes[x].type]);
}

static double number_under(checked c, uint32_t schema, const char *key, double absent) {
    uint32_t node = json_get(c.s, schema, key);
    double value = absent;
    if (node) (void)json_double(c.s, node, &value);
    return value;
}

static int object_fits(checked c, uint32_t x, uint32_t schema) {
    uint32_t properties = json_get(c.s, schema, "properties"), required = json_get(c.s, schema, "required");
    uint32_t more = json_get(c.s, schema, "additionalProperties");
    for (uint32_t k = required + 1; required && k < c.s->nodes[required].next; k = c.s->nodes[k].next) {
        char *name = text_of(c.s, k);
        int there = json_get(c.v, x, name) != 0;
        free(name);
        if (!there) return 0;
    }
    for (uint32_t k = x + 1; k < c.v->nodes[x].next; k = c.v->nodes[k + 1].next) {
        char *name = text_of(c.v, k);
        uint32_t own = properties ? json_get(c.s, properties, name) : 0;
        free(name);
        if ((own || more) && !fits(c, k + 1, own ? own : more)) return 0;
    }
    return 1;
}

static int array_fits(checked c, uint32_t x, uint32_t schema) {
    uint32_t first = json_get(c.s, schema, "prefixItems"), items = json_get(c.s, schema, "items"), i = 0, at = first + 1;
    double size = c.v->nodes[x].size;
    if (size < number_under(c, schema, "minItems", 0) || size > number_under(c, schema, "maxItems", 1e9)) return 0;
    for (uint32_t k = x + 1; k < c.v->nodes[x].next; k = c.v->nodes[k].next, i++) {
        int is_first = first && i < c.s->nodes[first].size;
        if (is_first ? !fits(c, k, at) : items && !fits(c, k, items)) return 0;
        if (is_first) at = c.s->nodes[at].next;
    }
    return 1;
}

// Patterns that POSIX reads as JSON schemas mean them; others are only seen by the texts of the fixture.
static int pattern_fits(const char *pattern, const char *text) {
    regex_t r;
    for (const char *p = pattern; *p; p++)
        if ((p[0] == '(' && p[1] == '?') || (unsigned char)*p >= 0x80 || *p == '\\' || !strncmp(p, "[^", 2)) return 1;
    if (regcomp(&r, pattern, REG_EXTENDED | REG_NOSUB)) return 1;
    int found = !regexec(&r, text, 0, NULL, 0);
    regfree(&r);
    return found;
}

static int string_fits(checked c, uint32_t x, uint32_t schema) {
    char *text = text_of(c.v, x), *pattern = text_of(c.s, json_get(c.s, schema, "pattern"));
    int length = 0, has_zero = strlen(text) != json_string(c.v, x, NULL, 0);
    for (const char *p = text; *p; p++) length += (*p & 0xc0) != 0x80;
    int ok = has_zero || (length >= number_under(c, schema, "minLength", 0) && length <= number_under(c, schema, "maxLength", 1e9));
    if (json_get(c.s, schema, "pattern") && !has_zero) ok &= pattern_fits(pattern, text);
    free(text);
    free(pattern);
    return ok;
}

static int number_fits(checked c, uint32_t x, uint32_t schema) {
    double value = 0, multiple = number_under(c, schema, "multipleOf", 0);
    (void)json_double(c.v, x, &value);
    return value >= number_under(c, schema, "minimum", -INFINITY) && value <= number_under(c, schema, "maximum", INFINITY) &&
           value > number_under(c, schema, "exclusiveMinimum", -INFINITY) && value < number_under(c, schema, "exclusiveMaximum", INFINITY) &&
           (!(multiple > 0) || fmod(value, multiple) == 0);
}

// Pointers of one or two names, as the fixture has them.
static uint32_t target_of(checked c, uint32_t reference) {
    char *path = text_of(c.s, reference);
    uint32_t node = 0;
    for (char *part = strtok(path, "/"); (part = strtok(NULL, "/")) != NULL;) {
        char name[100] = "";
        for (char *p = part; *p; p++) {
            int slash = !strncmp(p, "~1", 2), blank = !strncmp(p, "%20", 3);
            sprintf(name + strlen(name), "%c", slash ? '/' : blank ? ' ' : *p);
            p += slash + 2 * blank;
        }
        if (c.s->nodes[node].type == JSON_OBJECT) node = json_get(c.s, node, name);
        else for (int i = atoi(name), k = (node++, 0); k < i; k++) node = c.s->nodes[node].next;
    }
    free(path);
    return node;
}

static uint32_t list_fits(checked c, uint32_t x, uint32_t list) {
    uint32_t n = 0;
    for (uint32_t k = list + 1; k < c.s->nodes[list].next; k = c.s->nodes[k].next) n += (uint32_t)fits(c, x, k);
    return n;
}

static int fits(checked c, uint32_t x, uint32_t schema) {
    uint32_t any = json_get(c.s, schema, "anyOf"), one = json_get(c.s, schema, "oneOf"), all = json_get(c.s, schema, "allOf");
    uint32_t list = json_get(c.s, schema, "enum"), only = json_get(c.s, schema, "const"), type = json_get(c.s, schema, "type");
    uint32_t reference = json_get(c.s, schema, "$ref"), found = 0;
    if (c.s->nodes[schema].type != JSON_OBJECT) return c.s->nodes[schema].type == JSON_TRUE;
    if ((reference && !fits(c, x, target_of(c, reference))) || (any && !list_fits(c, x, any)) || (one && list_fits(c, x, one) != 1) ||
        (all && list_fits(c, x, all) != c.s->nodes[all].size) || (only && !same(c.v, x, c.s, only)))
        return 0;
    for (uint32_t k = list + 1; list && k < c.s->nodes[list].next; k = c.s->nodes[k].next) found |= (uint32_t)same(c.v, x, c.s, k);
    if (list && !found) return 0;
    found = type && c.s->nodes[type].type == JSON_STRING && type_fits(c, x, type);
    for (uint32_t k = type + 1; type && c.s->nodes[type].type == JSON_ARRAY && k < c.s->nodes[type].next; k = c.s->nodes[k].next)
        found |= (uint32_t)type_fits(c, x, k);
    if (type && !found) return 0;
    switch (c.v->nodes[x].type) {
    case JSON_OBJECT: return object_fits(c, x, schema);
    case JSON_ARRAY: return array_fits(c, x, schema);
    case JSON_STRING: return string_fits(c, x, schema);
    case JSON_NUMBER: return number_fits(c, x, schema);
    default: return 1;
    }
}

// ---- The fixture ----------------------------------------------------------------------------------------------------------------

typedef struct fixture { char *text; json j; uint32_t valid, invalid; char *schema; } fixture;
static fixture fixtures[200];
static int fixture_count;

static void read_fixtures(void) {
    static char line[1 << 16];
    FILE *f = fopen("tests/fixtures/schemas.jsonl", "r");
    mote_error error;
    if (!CHECK(f != NULL, "tests/fixtures/schemas.jsonl")) exit(test_main_end());
    while (fgets(line, sizeof line, f) && fixture_count < 200) {
        fixture *x = &fixtures[fixture_count];
        x->text = strdup(line);
        if (!CHECK(!json_parse(&x->j, x->text, strlen(x->text), "fixture", &error), "%s", error.message)) exit(test_main_end());
        x->valid = json_get(&x->j, 0, "valid");
        x->invalid = json_get(&x->j, 0, "invalid");
        // The schema's text: from after {"schema": to before , "valid"
        char *begin = x->text + strlen("{\"schema\": "), *end = x->text + x->j.nodes[x->valid - 1].start - strlen(", \"");
        x->schema = strndup(begin, (size_t)(end - begin));
        fixture_count++;
    }
    fclose(f);
    CHECK(fixture_count > 50, "%d schemas", fixture_count);
}

static void test_fixture_texts(void) {
    int texts = 0;
    for (const fixture *x = fixtures; x < fixtures + fixture_count; x++)
        for (int valid = 0; valid < 2; valid++) {
            uint32_t list = valid ? x->valid : x->invalid;
            for (uint32_t k = list + 1; k < x->j.nodes[list].next; k = x->j.nodes[k].next, texts++) {
                char *text = text_of(&x->j, k);
                CHECK(takes(x->schema, text) == valid, "'%s' by %.200s is%s valid", text, x->schema, valid ? "" : " not");
                free(text);
            }
        }
    CHECK(texts > 250, "%d texts", texts);
}

// ---- Walks ----------------------------------------------------------------------------------------------------------------------

// A text through the mask, token by token at random, mostly those that end things after a while.
static int walk(followed *x, buf *text, int most) {
    int allowed[VOCAB];
    for (int n = 0; n < most; n++) {
        int count = 0;
        const unsigned char *may = mask_of(x);
        for (int id = 0; id < VOCAB; id++)
            if (may[id]) allowed[count++] = id;
        if (!CHECK(count > 0, "a dead end after '%.*s'", (int)text->size, text->data)) return 0;
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
        CHECK(follower_take(&x->w, b, size), "what is allowed is not taken");
        buf_add(text, b, size);
    }
    return 0;
}

static void test_walks(void) {
    int all = 0;
    for (const fixture *x = fixtures; x < fixtures + fixture_count; x++) {
        json s;
        mote_error error;
        if (json_parse(&s, x->schema, strlen(x->schema), "schema", &error)) exit(2);
        for (int k = 0; k < (test_brief ? 4 : 60); k++) {
            followed f;
            json v;
            buf text = {NULL, 0, 0, 0};
            if (!CHECK(!open_schema(&f, x->schema, &error), "%s: %s", x->schema, error.message)) break;
            if (walk(&f, &text, 400)) {
                all++;
                int code = json_parse(&v, text.data, text.size, "walk", &error);
                CHECK(!code, "%.200s: '%.*s' is no JSON: %s", x->schema, (int)text.size, text.data, code ? error.message : "");
                if (!code) {
                    checked c = {&v, &s};
                    CHECK(fits(c, 0, 0), "'%.*s' is not of %.200s", (int)text.size, text.data, x->schema);
                    json_free(&v);
                }
            }
            buf_free(&text);
            close_schema(&f);
        }
        json_free(&s);
    }
    CHECK(all > fixture_count * (test_brief ? 1 : 20), "%d walks ended", all);
}

// The mask allows exactly the tokens whose bytes fit one by one.
static void test_mask(void) {
    for (const fixture *x = fixtures; x < fixtures + fixture_count; x++)
        for (int k = 0; k < (test_brief ? 1 : 8); k++) {
            followed f;
            mote_error error;
            buf text = {NULL, 0, 0, 0};
            if (open_schema(&f, x->schema, &error)) continue;
            walk(&f, &text, random_int(0, 30));
            unsigned char may[VOCAB];
            memcpy(may, mask_of(&f), VOCAB);
            for (int id = 0; id < END; id++) {
                size_t size;
                const char *b = tokenizer_token(NULL, id, &size);
                static place at[2];
                at[0] = f.w.now;
                int ok = 1;
                for (size_t i = 0; i < size && ok; i++) ok = place_step(&f.w, &at[i % 2], &at[(i + 1) % 2], (unsigned char)b[i]);
                CHECK(ok == may[id], "%.200s after '%.*s': token '%.*s' is%s masked", x->schema, (int)text.size, text.data, (int)size, b,
                      ok ? "" : " not");
            }
            buf_free(&text);
            close_schema(&f);
        }
}

// ---- What is refused --------------------------------------------------------------------------------------------------------------

// What says nothing of the value, whatever it is.
static void test_annotations(void) {
    static const char *const schemas[] = {"{\"type\": \"integer\", \"x-a\": 1}", "{\"type\": \"integer\", \"x-order\": [\"a\"]}",
                                          "{\"type\": \"integer\", \"x-long\": \"long enough\"}"};
    for (size_t i = 0; i < sizeof schemas / sizeof *schemas; i++) CHECK(takes(schemas[i], "1"), "%s", schemas[i]);
}

static void test_refused(void) {
    static const struct { const char *schema, *holds; } cases[] = {
        {"{\"not\": {}}", "not"},
        {"{\"if\": {}}", "if"},
        {"{\"type\": \"array\", \"uniqueItems\": true}", "uniqueItems"},
        {"{\"patternProperties\": {\"a\": {}}}", "patternProperties"},
        {"{\"propertyNames\": {\"pattern\": \"a\"}}", "propertyNames"},
        {"{\"unevaluatedProperties\": false}", "unevaluatedProperties"},
        {"{\"minProperties\": 1}", "minProperties"},
        {"{\"contains\": {}}", "contains"},
        {"{\"type\": \"number\", \"multipleOf\": 0.01}", "multipleOf"},
        {"{\"minimum\": \"a\"}", "minimum"},
        {"{\"minLength\": 1.5}", "minLength"},
        {"{\"minItems\": -1, \"type\": \"array\"}", "minItems"},
        {"{\"oneOf\": [{\"type\": \"string\"}, {\"const\": \"a\"}]}", "oneOf"},
        {"{\"oneOf\": [{\"type\": \"number\"}, {\"type\": \"integer\"}]}", "oneOf"},
        {"{\"oneOf\": []}", "oneOf"},
        {"{\"anyOf\": []}", "anyOf"},
        {"{\"allOf\": []}", "allOf"},
        {"false", "no value fits"},
        {"7", "no object"},
        {"{\"type\": \"file\"}", "a type"},
        {"{\"type\": []}", "types"},
        {"{\"enum\": []}", "enum"},
        {"{\"enum\": [1], \"type\": \"string\"}", "no value fits"},
        {"{\"type\": \"integer\", \"minimum\": 5, \"maximum\": 3}", "no value fits"},
        {"{\"type\": \"integer\", \"minimum\": 1, \"maximum\": 6, \"multipleOf\": 7}", "no value fits"},
        {"{\"minLength\": 3, \"maxLength\": 2, \"type\": \"string\"}", "no value fits"},
        {"{\"type\": \"array\", \"prefixItems\": [{}], \"items\": false, \"minItems\": 2}", "no value fits"},
        {"{\"type\": \"object\", \"required\": [\"z\"], \"additionalProperties\": false}", "no value fits"},
        {"{\"type\": \"object\", \"properties\": {\"n\": {\"$ref\": \"#\"}}, \"required\": [\"n\"]}", "no value fits"},
        {"{\"$ref\": \"#/x\"}", "#/x"},
        {"{\"$ref\": \"http://x\"}", "leads nowhere"},
        {"{\"$ref\": \"#/$defs/a~1b\", \"$defs\": {\"a\": 1}}", "leads nowhere"},
        {"{\"$ref\": \"#\"}", "defined by itself"},
        {"{\"anyOf\": [{\"$ref\": \"#\"}, {\"type\": \"null\"}]}", "defined by itself"},
        {"{\"properties\": []}", "properties"},
        {"{\"type\": \"object\"} x", "not valid JSON"},
        {"", "not valid JSON"},
        {"{\"type\": \"string\", \"pattern\": \"(?<=a)b\"}", "lookbehind"},
        {"{\"type\": \"string\", \"pattern\": \"(a)\\\\1\"}", "backreference"},
        {"{\"type\": \"string\", \"pattern\": \"[[:alpha:]]\"}", "named classes"},
        {"{\"type\": \"string\", \"pattern\": \"\\\\bfoo\"}", "word boundary"},
        {"{\"type\": \"string\", \"pattern\": \"\\\\p{L}\"}", "Unicode"},
        {"{\"type\": \"string\", \"pattern\": \"(\"}", "open ("},
        {"{\"type\": \"string\", \"pattern\": \"a)\"}", ") too many"},
        {"{\"type\": \"string\", \"pattern\": \"a**\"}", "quantifier"},
        {"{\"type\": \"string\", \"pattern\": \"x{20000}\"}", "so often"},
        {"{\"type\": \"string\", \"pattern\": \"a(b$|c)\"}", "^ or $"},
        {"{\"type\": \"string\", \"pattern\": \"((a?=b)(?=c))\"}", "lookahead within a group"},
        {"{\"type\": \"string\", \"pattern\": \"^((a|b)*a(a|b){40})$\"}", "states"},
        {"{\"type\": \"string\", \"pattern\": \"^(((a{1,900}b?){1,900}){1,900})$\"}", "states"},
        {"{\"type\": \"string\", \"pattern\": \"[z-a]\"}", "range"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        followed x;
        mote_error error;
        int code = open_schema(&x, cases[i].schema, &error);
        CHECK(code == MOTE_EINVAL && error.code == code && strstr(error.message, cases[i].holds) && strstr(error.message, "schema: "), "%s: %s",
              cases[i].schema, code ? error.message : "taken");
        close_schema(&x);
    }
    // A message is whole characters, however long the name is.
    char schema[200] = "{\"x";
    for (int i = 0; i < 40; i++) strcat(schema, "\xc3\xa4");
    strcat(schema, "\": 1}");
    followed x;
    mote_error error;
    CHECK(open_schema(&x, schema, &error) == MOTE_EINVAL && strstr(error.message, "\xc3\xa4 is not supported"), "%s", error.message);
    close_schema(&x);
}

// A refusal says where in the schema it is of what, and quotes that, its beginning where it is long.
static void test_quoted(void) {
    static const struct { const char *schema, *ends; } cases[] = {
        {"{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\", \"minLength\": -1}}}", "minLength of no whole number is not supported: #/properties/a/minLength is -1"},
        {"{\"$defs\": {\"x\": {\"not\": {\"type\": \"null\"}}}, \"$ref\": \"#/$defs/x\"}", "not is not supported: #/$defs/x/not is {\"type\": \"null\"}"},
        {"{\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"file\"}]}", "a type that JSON does not have is not supported: #/anyOf/1/type is \"file\""},
        {"{\"type\": [\"string\", \"int\"]}", "#/type/1 is \"int\""},
        {"{\"maximum\": \"9\"}", "maximum of such a number is not supported: #/maximum is \"9\""},
        {"{\"multipleOf\": 0.01}", "#/multipleOf is 0.01"},
        {"{\"enum\": \"a\"}", "enum that is no list is not supported: #/enum is \"a\""},
        {"{\"enum\": []}", "an empty enum is not supported: #/enum is []"},
        {"{\"anyOf\": {}}", "anyOf that is no list is not supported: #/anyOf is {}"},
        {"{\"properties\": [1,2]}", "#/properties is [1, 2]"},
        {"{\"required\": [\"a\", 7]}", "required that names no text is not supported: #/required/1 is 7"},
        {"{\"items\": 3, \"type\": \"array\"}", "a schema that is no object is not supported: #/items is 3"},
        {"7", "a schema that is no object is not supported: # is 7"},
        {"{\"$ref\": \"#/$defs/b\"}", "a $ref that leads nowhere is not supported: #/$ref is \"#/$defs/b\""},
        {"{\"properties\": {\"p\": {\"pattern\": \"(?<=a)b\"}}}", "#/properties/p/pattern is \"(?<=a)b\""},
        {"{\"allOf\": [{\"pattern\": \"a**\"}, {\"pattern\": \"b\"}]}", "#/allOf/0/pattern is \"a**\""},
        {"{\"oneOf\": [{\"type\": \"null\"}, {\"type\": \"number\"}, {\"type\": \"integer\"}]}",
         "oneOf whose alternatives 1 and 2 do not exclude each other is not supported: #/oneOf is [{\"type\": \"null\"}, {\"type\": \"number\"}, {\"type\": \"integer\"}]"},
        {"{\"const\": 1, \"type\": \"string\"}", "a schema that no value fits is not supported: # is {\"const\": 1, \"type\": \"string\"}"},
        {"{\"if\": \"0123456789012345678901234567890123456789012345678901234567890123456789\"}",
         "#/if is \"01234567890123456789012345678901234567890123456789012345678..."},
        {"{\"if\": [\"\\n\", {\"\\u00e4\": null}, true]}", "#/if is [\"\\n\", {\"\\u00e4\": null}, true]"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        followed x;
        mote_error error;
        int code = open_schema(&x, cases[i].schema, &error);
        size_t n = strlen(error.message), m = strlen(cases[i].ends);
        CHECK(code == MOTE_EINVAL && n > m && !strcmp(error.message + n - m, cases[i].ends), "%s: %s", cases[i].schema, error.message);
        close_schema(&x);
    }
}

// What a discriminator asks for: only what alternatives know, and nothing that they require or tell apart otherwise.
static void test_discriminators(void) {
#define KIND(v, more) "{\"type\": \"object\", \"properties\": {\"k\": {\"const\": " v more "}, \"n\": {\"type\": \"integer\"}}}"
    static const char one[] = "{\"oneOf\": [" KIND("1", "") ", " KIND("2", "") "], \"discriminator\": {\"propertyName\": \"k\"}}";
    static const char any[] = "{\"anyOf\": [" KIND("1", "") ", " KIND("2", "") ", {\"type\": \"null\"}], \"discriminator\": {\"propertyName\": \"k\"}}";
    static const char free_any[] = "{\"anyOf\": [" KIND("1", "") ", " KIND("2", "") "]}";
    static const char other[] = "{\"anyOf\": [{\"type\": \"object\"}, {\"type\": \"null\"}], \"discriminator\": {\"propertyName\": \"k\"}}";
    static const char tuple[] = "{\"oneOf\": [{\"properties\": {\"v\": {\"const\": 1}, \"a\": {\"type\": \"string\"}}, \"required\": [\"a\"], \"type\": \"object\"}, "
                                "{\"properties\": {\"v\": {\"const\": 2}, \"a\": {\"type\": \"null\"}}, \"required\": [\"a\"], \"type\": \"object\"}]}";
    static const struct { const char *schema, *text; int ok; } cases[] = {
        {one, "{\"k\": 2, \"n\": 3}", 1}, {one, "{\"n\": 3}", 0}, {one, "{}", 0}, {one, "{\"k\": 3}", 0}, {any, "null", 1}, {any, "{\"k\": 1}", 1}, {any, "{}", 0},
        {free_any, "{}", 1}, {other, "{\"a\": 1}", 1}, {tuple, "{\"a\": null}", 1}, {tuple, "{\"a\": null, \"v\": 1}", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CHECK(takes(cases[i].schema, cases[i].text) == cases[i].ok, "'%s' by %s", cases[i].text, cases[i].schema);
    static const char *const refused[] = {"{\"oneOf\": [" KIND("1", "") ", " KIND("2", "") "]}",         // neither default nor discriminator
        "{\"oneOf\": [" KIND("1", ", \"default\": 1") ", " KIND("1", ", \"default\": 1") "]}",
        "{\"oneOf\": [" KIND("1", "") ", " KIND("1", "") "], \"discriminator\": {\"propertyName\": \"k\"}}",
        "{\"oneOf\": [" KIND("1", "") ", " KIND("2", "") "], \"discriminator\": {\"propertyName\": \"m\"}}",
        "{\"oneOf\": [" KIND("1", "") ", " KIND("2", "") "], \"discriminator\": 7, \"title\": \"x\"}"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        followed x;
        mote_error error;
        CHECK(open_schema(&x, refused[i], &error) == MOTE_EINVAL && strstr(error.message, "do not exclude"), "%s: %s", refused[i], error.message);
        close_schema(&x);
    }
#undef KIND
}

// Draft 4's exclusiveMinimum and OpenAPI's nullable, which jsonschema does not read.
static void test_older(void) {
    static const struct { const char *schema, *text; int ok; } cases[] = {
        {"{\"type\": \"integer\", \"minimum\": 3, \"exclusiveMinimum\": true}", "4", 1}, {"{\"type\": \"integer\", \"minimum\": 3, \"exclusiveMinimum\": true}", "3", 0},
        {"{\"type\": \"string\", \"nullable\": true}", "null", 1}, {"{\"type\": \"string\"}", "null", 0},
        {"{\"type\": \"array\", \"items\": [{\"type\": \"null\"}]}", "[1]", 0}, {"{\"type\": \"array\", \"items\": [{\"type\": \"null\"}]}", "[null, 1]", 1},
        {"{\"type\": \"object\", \"properties\": {\"a\": {}}}", "{\"b\": 1}", 0}, {"{\"type\": \"object\", \"properties\": {\"a\": {}}, \"required\": [\"b\"]}", "{\"b\": 1}", 1},
        {"{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}}, \"additionalProperties\": true}", "{\"\\u0061\": null}", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CHECK(takes(cases[i].schema, cases[i].text) == cases[i].ok, "'%s' by %s", cases[i].text, cases[i].schema);
}

// ---- What is hostile ----------------------------------------------------------------------------------------------------------------

static double clock_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

__attribute__((format(printf, 2, 3))) static void put(buf *out, const char *format, ...) {
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    buf_text(out, text);
}

// Large schemas are read or refused, in a time that does not explode, and a text through them goes on.
static void hostile(const char *name, buf *schema, const char *text) {
    followed x;
    mote_error error;
    double began = clock_seconds();
    buf_add(schema, "", 1);
    int code = open_schema(&x, schema->data, &error);
    CHECK(!code || code == MOTE_EINVAL, "%s: %s", name, error.message);
    if (!code && text) follower_take(&x.w, text, strlen(text));
    if (!code) mask_of(&x);
    CHECK(clock_seconds() - began < 20, "%s took %.1f s", name, clock_seconds() - began);
    if (text) CHECK(!code, "%s: %s", name, error.message);
    close_schema(&x);
    buf_free(schema);
}

static void test_hostile(void) {
    buf b = {NULL, 0, 0, 0};
    put(&b, "{\"$ref\": \"#/$defs/d0\", \"$defs\": {\"end\": {}");
    for (int i = 0; i < 10000; i++) put(&b, ", \"d%d\": {\"$ref\": \"#/$defs/d%d\"}", i, i + 1);
    put(&b, "}}");
    hostile("10,000 references in a row", &b, NULL);
    put(&b, "{\"type\": \"object\", \"properties\": {\"end\": {}");
    for (int i = 0; i < 10000; i++) put(&b, ", \"d%d\": {\"$ref\": \"#/properties/d%d\"}", i, i + 1);
    put(&b, "}}");
    hostile("10,000 properties", &b, NULL);
    put(&b, "{\"allOf\": [{}");
    for (int i = 0; i < 12; i++) put(&b, ", {\"anyOf\": [{\"required\": [\"a%d\"]}, {\"required\": [\"b%d\"]}, {\"required\": [\"c%d\"]}]}", i, i, i);
    put(&b, "]}");
    hostile("3 to the 12th alternatives", &b, NULL);
    put(&b, "{\"type\": \"object\", \"properties\": {\"l\": {\"$ref\": \"#\"}}, \"anyOf\": [{\"properties\": {\"x\": {}}}, {\"properties\": {\"y\": {}}}]}");
    hostile("alternatives within alternatives", &b, "{\"l\":{\"l\":{\"l\":{\"l\":{\"l\":{\"l\":{\"l\":{\"l\":{\"l\":{");
    put(&b, "{\"enum\": [0");
    for (int i = 1; i < 9000; i++) put(&b, ", \"value %d\"", i);
    put(&b, "]}");
    hostile("9,000 values", &b, "\"value 8999\"");
    put(&b, "{\"type\": \"object\", \"properties\": {\"a\": {}");
    for (int i = 0; i < 200; i++) put(&b, ", \"p%d\": {\"type\": \"string\", \"pattern\": \"^([a-f]{0,40}[b-g]){0,40}%d\"}", i, i);
    put(&b, "}}");
    hostile("200 patterns of many states", &b, NULL);
    put(&b, "{\"oneOf\": [{\"type\": \"null\"}");
    for (int i = 0; i < 60; i++) put(&b, ", {\"type\": \"object\", \"properties\": {\"k\": {\"const\": \"k%d\"}, \"v\": {}}, \"required\": [\"k\"]}", i);
    put(&b, "]}");
    hostile("a union of 60 objects", &b, "{\"v\": 1, \"k\": \"k59\"");
    put(&b, "{\"type\": \"string\", \"pattern\": \"^");
    for (int i = 0; i < 600; i++) put(&b, "(a*");
    put(&b, "\"}");
    hostile("600 brackets", &b, NULL);
}

// Damaged schemas: refused, or a shape that leads to an end or goes on.
static void test_random(void) {
    int taken = 0, refused = 0;
    for (int i = 0; i < (test_brief ? 800 : 4000); i++) {
        const fixture *from = &fixtures[random_int(0, fixture_count - 1)];
        char *text = strdup(from->schema);
        followed x;
        mote_error error;
        buf out = {NULL, 0, 0, 0};
        for (int k = random_int(1, 4); k-- > 0;) text[random_int(0, (int)strlen(text) - 1)] = "{}[]\",: 0-1tfn\\ax*(|?^$."[random_int(0, 23)];
        int code = open_schema(&x, text, &error);
        if (!code) taken++, walk(&x, &out, 40);
        else refused++;
        CHECK(!code || code == MOTE_EINVAL, "refused without a word: %s", text);
        buf_free(&out);
        close_schema(&x);
        free(text);
    }
    CHECK(taken > 5 && refused > 5, "%d taken, %d refused: no test", taken, refused);
}

int main(int argc, char **argv) {
    test_main_begin("schema", argc, argv);
    for (int i = 0; i < 256; i++) bytes_of[i] = (char)i;
    words = vocabulary_new(NULL, ends, 1);
    if (!CHECK(words && words->count == END - 8, "the vocabulary: all but the bytes that no text has")) return 1;
    read_fixtures();
    test_fixture_texts();
    test_annotations();
    test_refused();
    test_quoted();
    test_discriminators();
    test_older();
    test_mask();
    test_walks();
    test_hostile();
    test_random();
    vocabulary_free(words);
    return test_main_end();
}
