// Tests of what an answer must be, on the bundled model: JSON of a schema, a required call in both syntaxes, a budget of thinking; with
// tokens drawn nearly at random, so that only the mask makes the answer what it is.
//
// Contents   1. Helpers   2. Schemas   3. Calls   4. Budgets   5. What is refused, and memory that is
//
// Usage: test_constraint [--brief]

#include "inside.h"
#include "no_memory.h"
#include "folders.h"
#include "gemma.h"
#include "test.h"

// ---- 1. Helpers -----------------------------------------------------------------------------------------------------

enum { TOKENS = 4096 };

static mote_model *model;
static mote_session *session;
static mote_error error;

typedef struct told { buf text[3]; buf calls; int32_t ids[TOKENS]; int count; } told;      // by channel

static int hear_text(void *user, int channel, const char *text, size_t size) {
    buf_add(&((told *)user)->text[channel], text, size);
    return 0;
}

static int hear_token(void *user, int32_t id) {
    told *t = (told *)user;
    if (t->count < TOKENS) t->ids[t->count++] = id;
    return 0;
}

static int hear_call(void *user, const char *call, size_t size) {
    told *t = (told *)user;
    if (t->calls.size) buf_text(&t->calls, ",");
    buf_add(&t->calls, call, size);
    return 0;
}

static void forget(told *t) {
    for (int i = 0; i < 3; i++) buf_free(&t->text[i]);
    buf_free(&t->calls);
    memset(t, 0, sizeof *t);
}

// Answers a question, drawn at a temperature at which hardly anything depends on the model.
static int answer(mote_generation *g, uint64_t seed, int think, told *t, mote_result *r) {
    mote_sampling p;
    memset(&p, 0, sizeof p);
    memset(t, 0, sizeof *t);
    p.temperature = 4;
    p.top_p = 0.999f;
    p.seed = seed;
    g->sampling = &p;
    g->max_tokens = g->max_tokens ? g->max_tokens : 300;
    g->think = think;
    g->on_text = hear_text;
    g->on_token = hear_token;
    g->on_call = g->tools ? hear_call : NULL;
    g->user = t;
    mote_reset(session, NULL);
    int code = mote_ask(session, "Hello", g, r, &error);
    CHECK(!code, "%s", error.message);
    for (int i = 0; i < 3; i++) buf_add(&t->text[i], "", 1);
    buf_add(&t->calls, "", 1);
    return code;
}

// Is the value of the schema? By the validator of enums, not by the machine that made it.
static int is_of(const char *schema_text, const char *value, size_t size) {
    buf both = {NULL, 0, 0, 0};
    json j;
    schema *s = schema_new();
    int ok = 0;
    buf_text(&both, "{\"schema\": ");
    buf_text(&both, schema_text);
    buf_text(&both, ", \"value\": ");
    buf_add(&both, value, size);
    buf_text(&both, "}");
    if (!json_parse(&j, both.data, both.size, "value", NULL)) {
        uint32_t schema = json_get(&j, 0, "schema");
        s->j = &j;
        s->root = schema;
        ok = value_fits(s, json_get(&j, 0, "value"), schema, 0);
        json_free(&j);
    }
    schema_free(s);
    buf_free(&both);
    return ok;
}

// ---- 2. Schemas ---------------------------------------------------------------------------------------------------------

static const char PERSON[] =
    "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 12}, \"age\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 120}, "
    "\"mood\": {\"enum\": [\"gl\\u00fccklich\", \"s\\/ad\", null]}, \"mail\": {\"type\": \"string\", \"pattern\": \"^[a-z]{1,8}@[a-z]{1,8}\\\\.de$\"}}, "
    "\"required\": [\"name\", \"age\", \"mood\", \"mail\"], \"additionalProperties\": false}";

typedef struct seen_logits { int rows, masked; } seen_logits;

static int see_logits(void *user, float *logits, int n) {
    seen_logits *s = (seen_logits *)user;
    int masked = 0;
    for (int i = 0; i < n; i++) masked += logits[i] == -INFINITY;
    s->rows++;
    s->masked += masked > n / 2;
    return 0;
}

static void test_schema(void) {
    for (int think = MOTE_THINK_ON; think <= MOTE_THINK_OFF; think++)
        for (uint64_t seed = 0; seed < (test_brief ? 1 : 4); seed++) {
            mote_generation g = {0};
            mote_result r;
            told t;
            g.schema = PERSON;
            g.max_tokens = 1500;
            if (think == MOTE_THINK_ON) g.thinking_budget = 9;
            if (answer(&g, seed, think, &t, &r)) return;
            CHECK(r.stop == MOTE_STOP_EOS, "it ends by itself: %d, %s", r.stop, t.text[MOTE_ANSWER].data);
            CHECK(is_of(PERSON, t.text[MOTE_ANSWER].data, t.text[MOTE_ANSWER].size - 1), "not of the schema: %s", t.text[MOTE_ANSWER].data);
            forget(&t);
        }
    // The application's word is the last one, on masked logits.
    mote_generation g = {0};
    seen_logits seen = {0, 0};
    g.schema = "{\"const\": 1234567}";
    g.on_logits = see_logits;
    g.user = &seen;
    g.think = MOTE_THINK_OFF;
    mote_reset(session, NULL);
    CHECK(!mote_ask(session, "Hello", &g, NULL, &error) && seen.rows > 2 && seen.masked == seen.rows, "%d of %d rows are masked", seen.masked, seen.rows);
    // Drafts change nothing.
    char first[2][600] = {"", ""};
    for (int k = 0; k < 2; k++) {
        mote_session_options o = {0};
        mote_session *kept = session;
        told t;
        mote_generation h = {0};
        o.context = 2048;
        o.mtp = k ? 3 : MOTE_MTP_OFF;
        h.schema = PERSON;
        h.thinking_budget = 6;
        CHECK(!mote_session_open(model, &o, &session, &error), "%s", error.message);
        answer(&h, 5, MOTE_THINK_ON, &t, NULL);
        snprintf(first[k], sizeof first[k], "%.300s|%.250s", t.text[1].data, t.text[0].data);
        forget(&t);
        mote_session_close(session);
        session = kept;
    }
    CHECK(!strcmp(first[0], first[1]), "'%s' without drafts, '%s' with", first[0], first[1]);
}

// ---- 3. Calls -----------------------------------------------------------------------------------------------------------

static const char PARAMETERS[] =
    "{\"type\": \"object\", \"properties\": {\"path\": {\"type\": \"string\", \"maxLength\": 30}, \"lines\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 99}, "
    "\"how\": {\"enum\": [\"rb\", \"r\\n\\\"\", \"\", 7]}, \"flags\": {\"type\": \"array\", \"items\": {\"type\": \"boolean\"}, \"maxItems\": 2}, "
    "\"code\": {\"type\": \"string\", \"pattern\": \"^[A-Z]{2}\\\\d$\"}, \"more\": {\"anyOf\": [{\"type\": \"null\"}, {\"type\": \"object\", \"properties\": "
    "{\"x\": {\"type\": \"number\"}}, \"required\": [\"x\"]}]}}, \"required\": [\"path\", \"lines\", \"how\", \"code\"]}";

static char *tools_of(const char *first, const char *second) {
    static char text[4096];
    const int flat = !(model->family & CHAT_MISTRAL);               // whose templates want "function"
    snprintf(text, sizeof text,
             "[{\"type\": \"function\", \"function\": {\"name\": \"%s\", \"parameters\": %s}}, %s{\"name\": \"%s\", \"parameters\": {\"type\": "
             "\"object\", \"properties\": {}}}%s]", first, PARAMETERS, flat ? "" : "{\"function\": ", second, flat ? "" : "}");
    return text;
}

static int others_called;        // of the second tool

static int is_control(int32_t id) {
    return tokenizer_is_added(model->text, id);
}

// All that was generated is calls: control tokens only around them, and the turn's end.
static void check_calls(const told *t, const mote_result *r, const char *name, enum call_form form) {
    json j;
    int controls = 0, n = 0;
    buf list = {NULL, 0, 0, 0};
    for (int i = 0; i < t->count; i++) controls += is_control(t->ids[i]) && t->ids[i] != tokenizer_find(model->text, gemma_quote);
    CHECK(r->calls > 0 && !r->broken_calls, "%d calls, %d broken: %s%s", r->calls, r->broken_calls, t->text[0].data, t->text[2].data);
    const int marks = form == FORM_BARE ? 0 : form == FORM_LIST ? 1 : 2 * r->calls;
    CHECK(controls == marks + (r->stop == MOTE_STOP_EOS || form == FORM_BARE || form == FORM_LIST), "%d control tokens, %d calls", controls, r->calls);
    CHECK(t->text[MOTE_ANSWER].size == 1, "text beside the call: '%s'", t->text[MOTE_ANSWER].data);
    buf_text(&list, "[");
    buf_text(&list, t->calls.data);
    buf_text(&list, "]");
    if (CHECK(!json_parse(&j, list.data, list.size, "calls", &error), "%s", error.message))
        for (uint32_t k = 1; k < j.nodes[0].next; k = j.nodes[k].next, n++) {
            uint32_t called = json_get(&j, k, "name"), arguments = json_get(&j, k, "arguments");
            buf text = {NULL, 0, 0, 0};
            put_json(&j, arguments, &text, &error);
            if (json_equals(&j, called, name)) CHECK(is_of(PARAMETERS, text.data, text.size), "arguments %.*s", (int)text.size, text.data);
            else CHECK(json_equals(&j, called, "nothing") && j.nodes[arguments].size == 0, "another call: %s", list.data);
            buf_free(&text);
        }
    json_free(&j);
    buf_free(&list);
}

static void test_calls(int family, const char *name, const char *escaped) {
    chat_family before = model->family;
    int ended = 0;
    model->family = (chat_family)family;
    for (uint64_t seed = 0; seed < (test_brief ? 4 : 8); seed++) {
        mote_generation g = {0};
        mote_result r;
        told t;
        g.tools = tools_of(escaped, "nothing");
        g.tool_choice = MOTE_TOOLS_REQUIRED;
        g.one_call = seed % 2;
        g.tool = seed % 4 < 2 ? name : NULL;
        g.max_tokens = 400;
        g.thinking_budget = seed % 3 ? 4 : 0;
        // the sampler's seeds are some of which most answers end, by the weights of the bundled model
        if (answer(&g, seed + 4, seed % 3 ? MOTE_THINK_ON : MOTE_THINK_OFF, &t, &r)) break;
        if (r.stop == MOTE_STOP_EOS || r.stop == MOTE_STOP_CALL) ended++;
        if (r.stop == MOTE_STOP_EOS || r.stop == MOTE_STOP_CALL) {
            // thinking's own control tokens are no matter of the call
            int from = 0;
            for (int i = 0; i < t.count; i++)
                if (t.ids[i] == tokenizer_find(model->text, chat_marks_of_model(family)->think_end)) from = i + 1;
            memmove(t.ids, t.ids + from, (size_t)(t.count - from) * sizeof *t.ids);
            t.count -= from;
            check_calls(&t, &r, name, call_form_of(family));
            CHECK(!(g.one_call || call_form_of(family) == FORM_BARE) || r.calls == 1, "%d calls where one is wanted", r.calls);
            CHECK(!g.tool || !strstr(t.calls.data, "nothing"), "another tool is called: %s", t.calls.data);
            others_called += strstr(t.calls.data, "nothing") != NULL;
        }
        forget(&t);
    }
    const int least = test_brief ? 0 : call_form_of(family) == FORM_LIST ? 1 : 2;      // lists of random calls are long
    CHECK(ended > least, "%d answers ended", ended);
    model->family = before;
}

// A required call that the length cuts: that is what ended it, whatever stop texts stand in what is left of it, all of which is told.
static void test_cut_call(int family) {
    static const char *const stops[] = {"a", "e", "\n"};
    chat_family before = model->family;
    model->family = (chat_family)family;
    for (int raw = 0; raw < 2; raw++) {
        mote_generation g = {.tools = tools_of("read", "nothing"), .tool_choice = MOTE_TOOLS_REQUIRED, .raw = raw, .max_tokens = 12};
        buf plain = {NULL, 0, 0, 0};
        for (int k = 0; k < 2; k++) {
            mote_result r;
            told t;
            if (k) g.stop = stops, g.stop_count = COUNT(stops);
            if (answer(&g, 4, MOTE_THINK_OFF, &t, &r)) break;
            const char *text = t.text[MOTE_ANSWER].data;
            if (!k) buf_add(&plain, text, t.text[MOTE_ANSWER].size);
            CHECK(r.stop == (k && raw ? MOTE_STOP_TEXT : MOTE_STOP_LENGTH) && !r.calls, "raw %d: ended by %d, %d calls", raw, r.stop, r.calls);
            CHECK(strpbrk(plain.data, "ae\n") && (k && raw ? strlen(text) < strlen(plain.data) : !strcmp(text, plain.data)),
                  "raw %d: told '%s', not '%s'", raw, text, plain.data);
            forget(&t);
        }
        buf_free(&plain);
    }
    model->family = before;
}

static void is_refused(const mote_generation *g, const char *holds) {
    int code = mote_generation_check(model, g, &error), same;
    CHECK(code == MOTE_EINVAL && strstr(error.message, holds), "%s: %d %s", holds, code, code ? error.message : "taken");
    same = mote_ask(session, "x", g, NULL, &error) == code;
    CHECK(same && strstr(error.message, holds), "mote_ask: %s", error.message);
}

// Texts of calls, in which ( and ) stand for the marks before a call, and after it or its name; after a !, tags in a call are tokens. want: whether it may end; -1: it does not
// fit. Names of which one begins another.
#define D_CALL(name, arguments) DEEPSEEK("tool" UNDER "call" UNDER "begin") name DEEPSEEK_SEP arguments DEEPSEEK("tool" UNDER "call" UNDER "end")
#define D_LIST(calls) DEEPSEEK_CALLS calls DEEPSEEK_CALLS_END
#define NAMED(name, v) "<arg_key>" #name "</arg_key><arg_value>" #v "</arg_value>"
#define KEYED(v) NAMED(x, v)
#define GO "{\"name\": \"go\", \"arguments\": {}}"
#define GONE "{\"name\": \"gone\", \"arguments\": {\"x\": 1}}"
static void test_forms(void) {
    static const int32_t text[] = {-1, -1, -1, -1, -1}, tokens[] = {1, 2, 3, 4, 5}, *const ids[] = {text, tokens};
    static const struct { enum call_form form; int one_call, want; const char *text; } cases[] = {
        {FORM_JSON, 0, 1, "(\n" GO "\n)"}, {FORM_JSON, 0, 1, "(\n" GO "\n)\n(\n" GONE "\n)"}, {FORM_JSON, 1, -1, "(\n" GO "\n)\n("},
        {FORM_JSON, 0, -1, "(\n" GO "\n)("}, {FORM_JSON, 0, 0, "(\n" GO "\n"}, {FORM_JSON, 0, 0, "(\n" GO "\n)\n"},
        {FORM_TAGS, 0, 1, "(\n<function=go>\n</function>\n)"}, {FORM_TAGS, 0, -1, "(\n<function=g>"},
        {FORM_BARE, 0, 1, "{\"name\": \"go\", \"parameters\": {}}"}, {FORM_BARE, 0, 1, "{\"name\": \"gone\", \"parameters\": {\"x\": 1}}"},
        {FORM_BARE, 0, 0, "{\"name\": \"go\", \"parameters\": {}"}, {FORM_BARE, 0, -1, "{\"name\": \"gone\", \"parameters\": {}}"},
        {FORM_BARE, 0, -1, "{\"name\": \"go\", \"parameters\": {}}{"}, {FORM_BARE, 0, 0, ""},
        {FORM_BARE, 0, -1, "{\"name\": \"go\", \"parameters\": {}}\n"}, {FORM_BARE, 0, -1, "{\"name\": \"go\", \"arguments\": {}}"},
        {FORM_LIST, 0, 1, "([" GO "]"}, {FORM_LIST, 0, 1, "( [" GONE "]"}, {FORM_LIST, 0, -1, "(  ["}, {FORM_LIST, 0, -1, "[" GO "]"},
        {FORM_LIST, 0, 1, "([" GO ", " GONE ", " GO "]"}, {FORM_LIST, 1, -1, "([" GO ","}, {FORM_LIST, 0, -1, "([" GO "," GO "]"},
        {FORM_LIST, 0, 0, "([" GO}, {FORM_LIST, 0, 0, "(["}, {FORM_LIST, 0, -1, "([]"}, {FORM_LIST, 0, -1, "([" GO "]("},
        {FORM_LIST, 0, -1, "([" GO "],"}, {FORM_LIST, 0, -1, "([" GO ")"}, {FORM_LIST, 0, -1, "(("},
        {FORM_NAMED, 0, 1, "(go){}"}, {FORM_NAMED, 0, 1, "(gone){\"x\": 1}(go){}"}, {FORM_NAMED, 1, -1, "(go){}("}, {FORM_NAMED, 0, -1, "(gon)"},
        {FORM_NAMED, 0, -1, "(goner"}, {FORM_NAMED, 0, -1, "()"}, {FORM_NAMED, 0, 0, "(go"}, {FORM_NAMED, 0, 0, "(go)"},
        {FORM_NAMED, 0, -1, "(gone){}"}, {FORM_NAMED, 0, -1, "(go){}\n"}, {FORM_NAMED, 0, -1, "go"}, {FORM_NAMED, 0, -1, "(go)("},
        {FORM_KEYS, 0, 1, "(go)"}, {FORM_KEYS, 0, 1, "(gone" KEYED(1) ")"}, {FORM_KEYS, 0, -1, "(gone)"}, {FORM_KEYS, 0, -1, "(go" KEYED(1) ")"},
        {FORM_KEYS, 0, 1, "(go)\n(gone" KEYED(23) ")"}, {FORM_KEYS, 1, -1, "(go)\n"}, {FORM_KEYS, 0, -1, "(go\n)"}, {FORM_KEYS, 0, -1, "(gon)"},
        {FORM_KEYS, 0, -1, "(gone<arg_key>y"}, {FORM_KEYS, 0, -1, "(gone" KEYED(a)}, {FORM_KEYS, 0, -1, "(gone" KEYED(1) KEYED(1)},
        {FORM_KEYS, 0, 0, "(gone" KEYED(1)}, {FORM_KEYS, 0, -1, "(gone<arg_key>x</arg_key><arg_value>)"},
        {FORM_KEY_LINES, 0, 1, "(go\n)"}, {FORM_KEY_LINES, 0, 1, "(gone\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n)"},
        {FORM_KEY_LINES, 0, -1, "(go)"}, {FORM_KEY_LINES, 0, -1, "(gone\n" KEYED(1)},
        {FORM_MARKED, 0, 1, D_LIST(D_CALL("go", "{}"))}, {FORM_MARKED, 0, 1, D_LIST(D_CALL("gone", "{\"x\": 1}") D_CALL("go", "{}"))},
        {FORM_MARKED, 0, 0, DEEPSEEK_CALLS D_CALL("go", "{}")}, {FORM_MARKED, 1, -1, DEEPSEEK_CALLS D_CALL("go", "{}") DEEPSEEK("tool" UNDER "call" UNDER "b")},
        {FORM_MARKED, 0, -1, D_LIST("")}, {FORM_MARKED, 0, -1, D_CALL("go", "{}")}, {FORM_MARKED, 0, -1, DEEPSEEK_CALLS D_CALL("gone", "{}")},
        {FORM_MARKED, 0, -1, D_LIST(D_CALL("go", "{}")) "x"}, {FORM_MARKED, 0, 0, ""},
        {FORM_MARKED, 0, 1, "!\xf8\xf9go\xfa{}\xfb\xf9gone\xfa{\"x\": 1}\xfb\xfc"}, {FORM_MARKED, 1, -1, "!\xf8\xf9go\xfa{}\xfb\xf9"}, {FORM_MARKED, 0, -1, "!<"},
        {FORM_MARKED_BLOCK, 0, 1, "!\xf8\xf9" "function\xfago\n```json\n{}\n```\xfb\n\xf9" "function\xfago\n```json\n{}\n```\xfb\xfc"},
        {FORM_MARKED_BLOCK, 0, -1, "!\xf8\xf9" "function\xfago\n```json\n{}\n```\xfb\xf9"},
        {FORM_MARKED_BLOCK, 1, -1, "!\xf8\xf9" "function\xfago\n```json\n{}\n```\xfb\n"},
        {FORM_KEYS, 0, 1, "!(gone\xf8x\xf9\xfa" "1\xfb)"}, {FORM_KEYS, 0, -1, "!(gone<"}, {FORM_KEYS, 0, -1, "!(gone\xf8x<"},
        {FORM_KEY_LINES, 0, 1, "!(gone\n\xf8x\xf9\n\xfa" "1\xfb\n)"},
        // a text that is read as a string must be one of those that the schema has
        {FORM_KEYS, 0, 1, "(get" NAMED(u, 12) ")"}, {FORM_KEYS, 0, -1, "(get" NAMED(u, 123)}, {FORM_KEYS, 0, -1, "(get" NAMED(u, -12)},
        {FORM_KEYS, 0, 1, "(get" NAMED(u, null) ")"}, {FORM_KEYS, 0, 1, "(get" NAMED(v, 123) ")"}, {FORM_KEYS, 0, 1, "(get" NAMED(v, ab) ")"},
        {FORM_KEYS, 0, -1, "(get" NAMED(v, abc)}, {FORM_TAGS, 0, -1, "(\n<function=get>\n<parameter=u>\n123"},
        {FORM_TAGS, 0, 1, "(\n<function=get>\n<parameter=u>\n-1\n</parameter>\n</function>\n)"},
        {FORM_PAIRS, 0, 1, "(call:get{u:123,v:12})"}, {FORM_PAIRS, 0, 1, "(call:get{u:'12',v:'4'})"}, {FORM_PAIRS, 0, -1, "(call:get{u:'123'"},
        {FORM_PAIRS, 0, 1, "(call:go{})"}, {FORM_PAIRS, 0, 1, "(call:gone{x:1})(call:go{})"}, {FORM_PAIRS, 1, -1, "(call:go{})("},
        {FORM_PAIRS, 0, 0, "(call:go{}"}, {FORM_PAIRS, 0, -1, "(call:go{)"}, {FORM_PAIRS, 0, -1, "(call:gone{})"}, {FORM_PAIRS, 0, -1, "(go{})"},
        {FORM_PAIRS, 0, -1, "(call:gone{x:'"}, {FORM_PAIRS, 0, -1, "(call:gone{'"}, {FORM_PAIRS, 0, -1, "(call:go{})\n"}, {FORM_PAIRS, 0, -1, "call:go{}"},
        {FORM_PAIRS, 0, 1, "(call:get{a:'say \"x\", {b:\\1}\n<|\"',b_2:[null,{c:-1.5,d:''}],e:true})"}, {FORM_PAIRS, 0, -1, "(call:get{a:'<|\"|>"},
        {FORM_PAIRS, 0, 1, "(call:get{a:'<<|\"|<|'})"}, {FORM_PAIRS, 0, -1, "(call:get{a:'<|<|\"|>"}, {FORM_PAIRS, 0, 1, "(call:get{other-1:12,a:''})"},
        {FORM_PAIRS, 0, 1, "(call:get{b_2:[{d:'x\"y'},{d:7},{d:{k:[1,'']}}]})"}, {FORM_PAIRS, 0, -1, "(call:get{b_2:[{d:'x'"}, {FORM_PAIRS, 0, -1, "(call:get{o p"},
        {FORM_PAIRS, 0, -1, "(call:get{e: "}, {FORM_PAIRS, 0, -1, "(call:get{,"}, {FORM_PAIRS, 0, -1, "(call:get{e:true,}"}, {FORM_PAIRS, 0, -1, "(call:get{a b"},
        {FORM_PAIRS, 0, -1, "(call:get{a:\""}, {FORM_PAIRS, 0, -1, "(call:get{\""}, {FORM_PAIRS, 0, -1, "(call:gone{x:1,x:"}, {FORM_PAIRS, 0, -1, "(call:get{:"}};
    static const char tools_text[] = "[{\"name\": \"gone\", \"parameters\": {\"type\": \"object\", \"properties\": {\"x\": {\"type\": \"integer\"}}, "
                                     "\"required\": [\"x\"]}}, {\"name\": \"go\", \"parameters\": {\"type\": \"object\", \"properties\": {}}}, "
                                     "{\"name\": \"get\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\"}, \"b_2\": {\"items\": "
                                     "{\"anyOf\": [{\"type\": \"null\"}, {\"type\": \"object\", \"properties\": {\"c\": {\"type\": \"number\"}, \"d\": {\"enum\": [\"\", "
                                     "\"x\\\"y\", {\"k\": [1, \"\"]}, 7]}}}]}, \"type\": \"array\"}, \"e\": {\"type\": \"boolean\"}, "
                                     "\"u\": {\"anyOf\": [{\"type\": \"string\", \"maxLength\": 2}, {\"type\": \"integer\"}, {\"type\": \"null\"}]}, "
                                     "\"v\": {\"anyOf\": [{\"enum\": [\"ab\", \"4\"]}, {\"type\": \"integer\"}]}}, "
                                     "\"additionalProperties\": {\"type\": \"integer\"}}}]";
    for (size_t i = 0; i < COUNT(cases); i++) {
        json tools;
        follower w;
        call_grammar calls;
        schema *s = schema_new();
        int fits = !json_parse(&tools, tools_text, sizeof tools_text - 1, "tools", &error);
        fits = fits && !call_grammar_open(&calls, s, &tools, NULL, cases[i].form, ids[*cases[i].text == '!'], &error) && follower_open(&w, s);
        if (!CHECK(fits, "%s", error.message)) return;
        calls.one_call = cases[i].one_call;
        follower_begin_calls(&w, &calls, 0);
        for (const char *at = cases[i].text + (*cases[i].text == '!'); *at && fits; at++) {
            const char quote = (char)QUOTE_BYTE;
            fits = *at == '(' || *at == ')' ? follower_tag(&w, *at == '(') : follower_take(&w, w.pairs && *at == '\'' ? &quote : at, 1);
        }
        const int got = fits ? follower_is_complete(&w) : -1;
        CHECK(got == cases[i].want, "form %d, one call %d: %s: %d", (int)cases[i].form, cases[i].one_call, cases[i].text, got);
        follower_close(&w);
        call_grammar_close(&calls);
        schema_free(s);
        json_free(&tools);
    }
}

// Mistral's marks are tokens: the bundled model with others under these names.
static void test_mistral(const mote_options *o, const mote_session_options *so) {
    static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
                                        "chat_template.jinja"};
    mote_generation g = {0};
    for (size_t i = 0; i < COUNT(files); i++) temp_copy("models/demo", files[i]);
    for (int i = 0; i < 2; i++) {          // once in tokenizer.json, once in tokenizer_config.json
        const char *file = i ? "tokenizer_config.json" : "tokenizer.json";
        CHECK(temp_replace(file, "\"</tool_call>\"", "\"[ARGS]\"") && temp_replace(file, "\"<tool_call>\"", "\"[TOOL_CALLS]\""), "%s", file);
    }
    if (!CHECK(!mote_open(temp_dir, o, &model, &error) && !mote_session_open(model, so, &session, &error), "%s", error.message)) return;
    test_calls(CHAT_MISTRAL | CHAT_NEMO, "<|im_end|>\"x", "<|im_end|>\\\"x");
    test_calls(CHAT_MISTRAL | CHAT_SMALL, "not", "not");
    model->family = (chat_family)(CHAT_MISTRAL | CHAT_SMALL);
    g.tool_choice = MOTE_TOOLS_REQUIRED;
    g.tools = "[{\"name\": \"a[ARGS]\"}]";
    is_refused(&g, "a tool of such a name");
    model->family = CHAT_QWEN3_5;
    g.tools = tools_of("read", "nothing");
    CHECK(mote_generation_check(model, &g, &error) == MOTE_EUNSUPPORTED && strstr(error.message, "the vocabulary has no <tool_call>"), "%s", error.message);
    mote_session_close(session);
    mote_close(model);
}

// Gemma's marks are tokens as well, that of its texts too.
static void test_gemma_calls(const mote_options *o, const mote_session_options *so) {
    mote_generation g = {0};
    gemma_folder(0);
    if (!CHECK(!mote_open(temp_dir, o, &model, &error) && !mote_session_open(model, so, &session, &error), "%s", error.message)) return;
    test_calls(model->family, "not", "not");
    test_cut_call(model->family);
    g.tool_choice = MOTE_TOOLS_REQUIRED;
    static const struct { const char *tools, *message; } refused[] = {
        {"[{\"name\": \"a{b\"}]", "a tool of such a name"}, {"[{\"name\": \"\"}]", "a tool of such a name"},
        {"[{\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a:b\": {}}}}]", "a parameter of such a name"},
        {"[{\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"object\", \"properties\": {\"b\\n\": {}}}}}}]",
         "a parameter of such a name"},
        {"[{\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"const\": \"x<|\\\"|>\"}}}}]", "a text with its mark"},
        {"[{\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"const\": {\"b c,\": 1}}}}}]", "a parameter of such a name"}};
    for (size_t i = 0; i < COUNT(refused); i++) g.tools = refused[i].tools, is_refused(&g, refused[i].message);
    mote_session_close(session);
    mote_close(model);
}

// ---- 4. Budgets -----------------------------------------------------------------------------------------------------------

static void test_budget(void) {
    for (int budget = 1; budget < 20; budget += 9) {
        mote_generation g = {0};
        mote_result r;
        told t;
        int32_t end = tokenizer_find(model->text, chat_marks_of_model(model->family)->think_end);
        int at = 0;
        g.thinking_budget = budget;
        g.max_tokens = 120;
        if (answer(&g, 7, MOTE_THINK_ON, &t, &r)) return;
        while (at < t.count && t.ids[at] != end) at++;
        if (at > budget) {
            CHECK(strstr(t.text[MOTE_THINKING].data, "Considering the limited time") != NULL, "no sentence: %s", t.text[MOTE_THINKING].data);
            CHECK(!strstr(t.text[MOTE_ANSWER].data, "Considering"), "it is in the answer: %s", t.text[MOTE_ANSWER].data);
            CHECK(at < budget + 60, "thinking of %d tokens, budget %d", at, budget);
        }
        CHECK(budget > 1 || at > budget, "nothing was closed");
        CHECK(t.text[MOTE_ANSWER].size > 1, "no answer");
        forget(&t);
        // Where nothing thinks, it changes nothing.
        char plain[200] = "";
        for (int k = 0; k < 2; k++) {
            g.thinking_budget = k ? budget : 0;
            if (answer(&g, 3, MOTE_THINK_OFF, &t, &r)) return;
            if (!k) snprintf(plain, sizeof plain, "%.190s", t.text[MOTE_ANSWER].data);
            else CHECK(!strncmp(plain, t.text[MOTE_ANSWER].data, strlen(plain)), "another answer: %s", t.text[MOTE_ANSWER].data);
            forget(&t);
        }
    }
}

// ---- 5. What is refused, and memory that is ------------------------------------------------------------------------------------------------------

static void test_refused(void) {
    mote_generation g = {0}, none = {0};
    g.schema = "{\"not\": {}}";
    is_refused(&g, "schema: not is not supported");
    g.schema = "{}";
    g.verify = 1;
    is_refused(&g, "verify");
    g = none;
    g.tool_choice = MOTE_TOOLS_REQUIRED;
    is_refused(&g, "no tools");
    g.tools = "[]";
    is_refused(&g, "no tools");
    g.tools = tools_of("read", "nothing");
    g.tool = "write";
    is_refused(&g, "there is no tool \"write\"");
    g.tool = NULL;
    g.schema = "{}";
    is_refused(&g, "of a schema, too");
    g.schema = NULL;
    g.tools = "[{\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"uniqueItems\": true}}}}]";
    is_refused(&g, "tools: f: uniqueItems is not supported");
    g.tools = "[{\"name\": \"f\", \"parameters\": {\"type\": \"string\"}}]";
    is_refused(&g, "parameters that are no object");
    g.tools = "[{\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"const\": \"x\\n</parameter>\"}}}}]";
    is_refused(&g, "</parameter>");
    g.tools = "[{\"name\": \"a>\\n</tool_call>\"}]";
    is_refused(&g, "a tool of such a name");
    g.tools = "[{\"type\": \"function\"}]";
    is_refused(&g, "without a name");
    g = none;
    g.tool_choice = 7;
    is_refused(&g, "tool_choice");
    g = none;
    g.thinking_budget = -1;
    is_refused(&g, "thinking_budget");
}

// Threads that need the vocabulary at once.
static void *check_in_thread(void *user) {
    mote_generation g = {0};
    (void)user;
    g.schema = PERSON;
    return mote_generation_check(model, &g, NULL) ? (void *)model : NULL;
}

static void test_threads(void) {
    pthread_t threads[4];
    void *failed, *any = NULL;
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, check_in_thread, NULL);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], &failed), any = failed ? failed : any;
    CHECK(!any && model->vocabulary, "a vocabulary for all");
}

// Each allocation fails once: that is MOTE_ENOMEM, and nothing is left behind.
static void test_no_memory(void) {
    for (int kind = 0; kind < 3; kind++) {
        mote_generation g = {0};
        if (kind == 0) g.schema = PERSON;
        if (kind > 0) g.tools = tools_of("read", "nothing"), g.tool_choice = MOTE_TOOLS_REQUIRED;
        if (kind == 2) g.thinking_budget = 3;
        vocabulary_free(model->vocabulary);
        model->vocabulary = NULL;
        int code = MOTE_ENOMEM, failed = 0;
        for (long at = 0; code && at < 3000; at++) {
            allocations = 0;
            refuse_at = at;
            code = mote_generation_check(model, &g, &error);
            refuse_at = -1;
            CHECK(!code || code == MOTE_ENOMEM, "allocation %ld: %d, %s", at, code, error.message);
            failed += code != 0;
        }
        CHECK(!code && failed > 20, "%d allocations failed: %d", failed, code);
    }
}

int main(int argc, char **argv) {
    mote_options o = {0};
    mote_session_options so = {0};
    test_main_begin("constraint", argc, argv);
    o.device = "cpu";
    so.context = 2048;
    if (!temp_open()) return test_main_end();
    if (!CHECK(!mote_open("models/demo", &o, &model, &error) && !mote_session_open(model, &so, &session, &error), "%s", error.message))
        return test_main_end();
    test_forms();
    test_threads();
    test_refused();
    test_no_memory();
    test_schema();
    test_budget();
    test_calls(CHAT_QWEN3_5, "read", "read");
    test_calls(CHAT_QWEN3, "read", "read");
    test_calls(CHAT_QWEN3, "<|im_end|>\"x", "<|im_end|>\\\"x");
    test_calls(CHAT_QWEN3_5, "|im_end|", "|im_end|");
    test_calls(CHAT_LLAMA3 | CHAT_DATED, "<|im_end|>\"x", "<|im_end|>\\\"x");
    test_cut_call(CHAT_QWEN3_5);
    test_cut_call(CHAT_QWEN3);
    test_cut_call(CHAT_LLAMA3 | CHAT_DATED);
    CHECK(test_brief || others_called > 0, "the second tool was never called");
    mote_session_close(session);
    mote_close(model);
    test_mistral(&o, &so);
    test_gemma_calls(&o, &so);
    temp_close();
    return test_main_end();
}
