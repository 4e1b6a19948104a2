// Tests of gpt-oss's chats through the API, on the bundled model under gpt-oss's marks: what answers tell, token by token as a callback
// forces them; timelines, which are the template's rendering of the conversation; what an answer must be.
//
// Contents   1. Helpers   2. Answers   3. Timelines   4. What an answer must be
//
// Usage: test_harmony [--brief]

#include "inside.h"
#include "api.h"
#include "harmony.h"
#include "no_memory.h"

// ---- 1. Helpers -----------------------------------------------------------------------------------------------------

#define DAY "2026-01-02"
#define ANALYSIS "<|channel|>analysis<|message|>"
#define FINAL "<|channel|>final<|message|>"
#define START "<|end|><|start|>assistant"
#define CLOCK " to=functions.clock<|channel|>commentary json<|message|>{}<|call|>"

static const char gpt_tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"clock\", \"description\": \"Tells the time.\"}}, {\"type\": \"function\", \"function\": {\"name\": "
    "\"get_weather\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\", \"maxLength\": 5}, \"days\": {\"type\": \"integer\"}}, "
    "\"required\": [\"city\"], \"additionalProperties\": false}}}]";

static mote_model *gptoss;

// What was told, with a mark where the channel changes, and the tokens that are to come. at: of the script
typedef struct gpt_told { buf text, script; size_t at; int channel, stops; } gpt_told;

static int gpt_text(void *user, int channel, const char *text, size_t size) {
    static const char *const marks[] = {"[A]", "[T]", "[C]"};
    gpt_told *t = (gpt_told *)user;
    if (channel != t->channel) buf_text(&t->text, marks[channel]);
    if (size) buf_add(&t->text, text, size);
    else buf_text(&t->text, "[.]");
    t->channel = size ? channel : -1;
    return 0;
}

static int gpt_call(void *user, const char *call, size_t size) {
    buf_add(&((gpt_told *)user)->text, call, size);
    return 0;
}

// Forces the script's next token; after the last one nothing is forced.
static int gpt_force(void *user, float *logits, int n) {
    gpt_told *t = (gpt_told *)user;
    if (t->at == t->script.size / sizeof(int32_t)) return 0;
    const int32_t id = ((const int32_t *)(const void *)t->script.data)[t->at++];
    for (int i = 0; i < n; i++)
        if (i != id) logits[i] = -INFINITY;
    return 0;
}

static void gpt_forget(gpt_told *t) {
    buf_free(&t->text);
    buf_free(&t->script);
}

// Prepares an answer: the marks of `script` are tokens.
static void gpt_script(gpt_told *t, mote_generation *g, const char *script) {
    memset(t, 0, sizeof *t);
    t->channel = -1;
    CHECK(!tokenizer_encode(gptoss->text, script, strlen(script), NULL, 0, &t->script, &failure), "%s", failure.message);
    g->on_text = gpt_text;
    g->on_call = gpt_call;
    g->on_logits = gpt_force;
    g->user = t;
    g->size = sizeof *g;
    g->date = DAY;
    if (!g->max_tokens) g->max_tokens = (int)(t->script.size / sizeof(int32_t));
}

// One turn, whose answer is the script.
static mote_result gpt_say(mote_session *s, const char *message, mote_generation g, const char *script, const char *want) {
    gpt_told t;
    mote_result r;
    gpt_script(&t, &g, script);
    EXPECT(MOTE_OK, mote_ask(s, message, &g, &r, &failure));
    buf_add(&t.text, "", 1);
    CHECK(!want || !strcmp(t.text.data, want), "%s: told %s, not %s", script, t.text.data, want ? want : "");
    gpt_forget(&t);
    return r;
}

// ---- 2. Answers -----------------------------------------------------------------------------------------------------

static void test_harmony_answers(void) {
    static const struct { const char *script, *want; int no_tools, stop, calls, broken; } cases[] = {
        {ANALYSIS "Why?" START FINAL "Because.<|return|>", "[T]Why?[A]Because.", 0, MOTE_STOP_EOS, 0, 0},
        {FINAL "a<|endoftext|>", "[A]a", 0, MOTE_STOP_EOS, 0, 0},
        {FINAL "The mark <\x7C" "end| > is <|channel|", "[A]The mark <|end| > is <|channel|", 0, MOTE_STOP_LENGTH, 0, 0},
        {ANALYSIS "Now" START CLOCK, "[T]Now[C]clock {}[.]{\"name\": \"clock\", \"arguments\": {}}", 0, MOTE_STOP_EOS, 1, 0},
        {"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Z\xC3\xBCrich\", \"days\": 2}<|call|>",
         "[C]get_weather {\"city\": \"Z\xC3\xBCrich\", \"days\": 2}[.]{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Z\xC3\xBCrich\", \"days\": 2}}",
         0, MOTE_STOP_EOS, 1, 0},
        {"<|channel|>commentary to=functions.clock<|message|>{}" START "<|channel|>commentary to=functions.get_weather json<|message|>{\"city\": \"B\"}<|call|>",
         "[C]clock {}[.]{\"name\": \"clock\", \"arguments\": {}}[C]get_weather {\"city\": \"B\"}[.]{\"name\": \"get_weather\", \"arguments\": {\"city\": \"B\"}}",
         0, MOTE_STOP_EOS, 2, 0},
        {"<|channel|>commentary to=functions.clock<|message|>{\"x\": 1", "[A]<|channel|>commentary to=functions.clock<|message|>{\"x\": 1", 0, MOTE_STOP_LENGTH, 0, 1},
        {"<|channel|>commentary to=functions.rm json<|message|>{}<|call|>", "[A]<|channel|>commentary to=functions.rm json<|message|>{}", 0, MOTE_STOP_EOS, 0, 1},
        {"<|channel|>commentary to=functions.clock json<|message|>{}<|call|>", "[A]<|channel|>commentary to=functions.clock json<|message|>{}", 1, MOTE_STOP_EOS, 0, 0},
        {"<|channel|>commentary<|message|>First." START FINAL "Then.<|return|>", "[A]First.\n\nThen.", 0, MOTE_STOP_EOS, 0, 0},
        {"Without any header", "[A]Without any header", 0, MOTE_STOP_LENGTH, 0, 0},
        {ANALYSIS "cut", "[T]cut", 0, MOTE_STOP_LENGTH, 0, 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        mote_session *s = session_of(gptoss, .context = 1024, .threads = 1);
        mote_generation g = {.tools = cases[i].no_tools ? NULL : gpt_tools};
        const mote_result r = gpt_say(s, "Go.", g, cases[i].script, cases[i].want);
        CHECK(r.stop == cases[i].stop && r.calls == cases[i].calls && r.broken_calls == cases[i].broken, "%s: ended by %d, %d calls, %d broken",
              cases[i].script, r.stop, r.calls, r.broken_calls);
        mote_session_close(s);
    }
}

// Marks that plain tokens spell are text; a text cut by a mark in a character is whole; raw tells all; stop texts; tokens of thinking.
static void test_harmony_tokens(void) {
    mote_session *s = session_of(gptoss, .context = 1024, .threads = 1);
    static const char plain[] = "<|end|><|start|>assistant<|channel|>analysis<|message|>not";
    const char *stops[] = {"stop"};
    text_range all = {0, sizeof plain - 1};
    gpt_told t;
    mote_result r;
    mote_generation g = {.max_tokens = 0};
    gpt_script(&t, &g, FINAL);
    CHECK(!tokenizer_encode(gptoss->text, plain, sizeof plain - 1, &all, 1, &t.script, &failure), "plain");
    g.max_tokens = (int)(t.script.size / sizeof(int32_t));
    EXPECT(MOTE_OK, mote_ask(s, "Go.", &g, &r, &failure));
    buf_add(&t.text, "", 1);
    CHECK(!strncmp(t.text.data, "[A]", 3) && !strcmp(t.text.data + 3, plain), "told %s", t.text.data);
    gpt_forget(&t);
    mote_reset(s, NULL);
    (void)gpt_say(s, "Go.", (mote_generation){.raw = 1}, ANALYSIS "a" START FINAL "b<|return|>", "[A]analysisaassistantfinalb");
    mote_reset(s, NULL);
    r = gpt_say(s, "Go.", (mote_generation){.stop = stops, .stop_count = 1}, ANALYSIS "stop" START FINAL "a stop b", "[T]stop[A]a ");
    CHECK(r.stop == MOTE_STOP_TEXT, "ended by %d", r.stop);
    mote_reset(s, NULL);
    r = gpt_say(s, "Go.", (mote_generation){.tools = gpt_tools, .one_call = 1}, ANALYSIS "x" START CLOCK, NULL);
    CHECK(r.stop == MOTE_STOP_CALL && r.thinking_tokens == 2, "ended by %d, %d tokens of thinking", r.stop, r.thinking_tokens);
    mote_session_close(s);
}

// A prompt that ends anywhere in an answer's messages.
static void test_harmony_prompts(void) {
    static const struct { const char *request, *more, *script, *want; } cases[] = {
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"It is\"}], \"continue_final_message\": true}", "",
         " 4." START FINAL "b", "[A] 4.\n\nb"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", ANALYSIS "I", " think" START FINAL "b", "[T] think[A]b"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}", " to=functions.clock<|channel|>", "commentary<|message|>{}<|call|>",
         "[C]clock {}[.]{\"name\": \"clock\", \"arguments\": {}}"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"add_generation_prompt\": false}", "", "<|start|>assistant" FINAL "b", "[A]b"},
        {NULL, "Once", " upon" START FINAL "b", "[A] upon\n\nb"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        mote_session *s = session_of(gptoss, .context = 1024, .threads = 1);
        mote_generation g = {.tools = gpt_tools};
        gpt_told t;
        marked_text text;
        buf ids = {0};
        memset(&text, 0, sizeof text);
        if (cases[i].request) EXPECT(MOTE_OK, chat_render(gptoss->family, cases[i].request, strlen(cases[i].request), &text, &failure));
        put_words(&text, cases[i].more);
        EXPECT(MOTE_OK, encode_marked(gptoss->text, &text, &ids, &failure));
        EXPECT(MOTE_OK, mote_feed(s, (const int32_t *)(const void *)ids.data, ids.size / sizeof(int32_t), &failure));
        gpt_script(&t, &g, cases[i].script);
        EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
        buf_add(&t.text, "", 1);
        CHECK(!strcmp(t.text.data, cases[i].want), "after %s: told %s, not %s", cases[i].more, t.text.data, cases[i].want);
        gpt_forget(&t);
        buf_free(&ids);
        marked_free(&text);
        mote_session_close(s);
    }
}

// ---- 3. Timelines -----------------------------------------------------------------------------------------------------

// The timeline, which lacks nothing but the end of its last answer, is what the template makes of these messages. begins: with how an
// answer begins after them; then the timeline holds more.
static void check_harmony_timeline(const mote_session *s, const char *messages, int tools, const char *what) {
    char request[4096];
    size_t n = 0, count;
    const int32_t *have = mote_tokens(s, &count);
    snprintf(request, sizeof request, "{\"date_string\": \"" DAY "\", \"messages\": [%s]%s%s}", messages, tools ? ", \"tools\": " : "", tools ? gpt_tools : "");
    (void)mote_render_tokens(gptoss, request, strlen(request), NULL, 0, &n, &failure);
    int32_t *want = (int32_t *)allocate((n + 1) * sizeof *want);
    EXPECT(MOTE_OK, mote_render_tokens(gptoss, request, strlen(request), want, n, &n, &failure));
    const int same = n <= count && !memcmp(want, have, n * sizeof *want);
    buf text = {0};
    if (!same) (void)detokenize(gptoss, have, count, &text, NULL);
    buf_add(&text, "", 1);
    CHECK(same, "%s: the template has %zu tokens, the timeline %zu:\n%s", what, n, count, text.data);
    buf_free(&text);
    free(want);
}

#define M_USER(text) "{\"role\": \"user\", \"content\": \"" text "\"}"
#define M_ANSWER(text, more) ", {\"role\": \"assistant\", \"content\": \"" text "\"" more "}, "
#define M_CALL(name, text, thought) ", {\"role\": \"assistant\", \"content\": \"" text "\", \"thinking\": \"" thought "\", \"tool_calls\": [{\"id\": \"" name "\", " \
                                    "\"function\": {\"name\": \"" name "\", \"arguments\": {}}}]}"
#define M_RESULT(name, text) ", {\"role\": \"tool\", \"tool_call_id\": \"" name "\", \"content\": \"" text "\"}"
#define M_THOUGHT(text) ", \"thinking\": \"" text "\""

static void test_harmony_turns(void) {
    mote_session *s = session_of(gptoss, .context = 2048, .threads = 1);
    const mote_generation plain = {.size = 0}, tools = {.tools = gpt_tools, .effort = "medium"}, result = {.tools = gpt_tools, .role = "tool"};
    // thinking goes when the user speaks next; an answer that is cut off, or ends in its thinking, is one
    (void)gpt_say(s, "a", plain, ANALYSIS "b" START FINAL "c<|return|>", NULL);
    check_harmony_timeline(s, M_USER("a"), 0, "a question");
    (void)gpt_say(s, "d", plain, ANALYSIS "e" START "<|channel|>commentary<|message|>f" START FINAL "g", NULL);
    check_harmony_timeline(s, M_USER("a") M_ANSWER("c", "") M_USER("d"), 0, "two questions");
    (void)gpt_say(s, "h", plain, ANALYSIS "cut", NULL);
    check_harmony_timeline(s, M_USER("a") M_ANSWER("c", "") M_USER("d") M_ANSWER("f\\n\\ng", "") M_USER("h"), 0, "three questions");
    (void)gpt_say(s, "i", plain, FINAL "j<|return|>", NULL);
    check_harmony_timeline(s, M_USER("a") M_ANSWER("c", "") M_USER("d") M_ANSWER("f\\n\\ng", "") M_USER("h") M_ANSWER("", "") M_USER("i"), 0, "four questions");
    // messages without their ends, text between them: what was told
    (void)gpt_say(s, "k", plain, ANALYSIS "l" FINAL "m<|end|>n<|return|>", "[T]l[A]m\n\nn");
    (void)gpt_say(s, "o", plain, "p<|end|>" ANALYSIS "q<|end|>", "[A]p[T]q");
    (void)gpt_say(s, "r", plain, FINAL "t<|return|>", NULL);
    check_harmony_timeline(s, M_USER("a") M_ANSWER("c", "") M_USER("d") M_ANSWER("f\\n\\ng", "") M_USER("h") M_ANSWER("", "") M_USER("i") M_ANSWER("j", "") M_USER("k")
                           M_ANSWER("m\\n\\nn", "") M_USER("o") M_ANSWER("p", "") M_USER("r"), 0, "broken messages");
    // between calls it stays, and also when the user speaks before the final answer
    mote_reset(s, NULL);
    (void)gpt_say(s, "a", tools, ANALYSIS "b" START CLOCK, NULL);
    (void)gpt_say(s, "noon", result, ANALYSIS "c" START CLOCK, NULL);
    check_harmony_timeline(s, M_USER("a") M_CALL("clock", "", "b") M_RESULT("clock", "noon"), 1, "a result");
    (void)gpt_say(s, "d", tools, ANALYSIS "e" START CLOCK, NULL);
    check_harmony_timeline(s, M_USER("a") M_CALL("clock", "", "b") M_RESULT("clock", "noon") M_CALL("clock", "", "c") ", " M_USER("d"), 1, "a question between");
    (void)gpt_say(s, "one", result, FINAL "f<|return|>", NULL);
    check_harmony_timeline(s, M_USER("a") M_CALL("clock", "", "b") M_RESULT("clock", "noon") M_CALL("clock", "", "c") ", " M_USER("d") M_CALL("clock", "", "e")
                           M_RESULT("clock", "one"), 1, "two results");
    EXPECT(MOTE_EINVAL, mote_ask(s, "x", &result, NULL, &failure));
    (void)gpt_say(s, "g", tools, FINAL "h<|return|>", NULL);
    check_harmony_timeline(s, M_USER("a") M_CALL("clock", "", "b") M_RESULT("clock", "noon") M_CALL("clock", "", "c") ", " M_USER("d") M_CALL("clock", "", "e")
                           M_RESULT("clock", "one") M_ANSWER("f", "") M_USER("g"), 1, "after the final answer");
    // two calls of one answer, whose results come together
    mote_reset(s, NULL);
    (void)gpt_say(s, "a", tools, " to=functions.clock<|channel|>commentary json<|message|>{}" START " to=functions.get_weather<|channel|>commentary json<|message|>"
                      "{\"city\": \"B\"}<|call|>", NULL);
    const char *more[] = {"sun"};
    mote_generation both = result;
    both.results = more;
    both.result_count = 1;
    (void)gpt_say(s, "noon", both, FINAL "h<|return|>", NULL);
    size_t count;
    const int32_t *ids = mote_tokens(s, &count);
    buf text = {0};
    EXPECT(MOTE_OK, detokenize(gptoss, ids, count, &text, &failure));
    buf_add(&text, "", 1);
    CHECK(strstr(text.data, "<|call|><|start|>functions.clock to=assistant<|channel|>commentary<|message|>\"noon\"<|end|><|start|>functions.get_weather "
                            "to=assistant<|channel|>commentary<|message|>\"sun\"<|end|><|start|>assistant" FINAL "h<|return|>"), "%s", text.data);
    buf_free(&text);
    mote_session_close(s);
}

// A stored conversation is the timeline that mote_ask made, and goes on like it.
static void test_harmony_restore(void) {
    static const struct { const char *messages, *next; int whole; } cases[] = {
        {M_USER("a") M_ANSWER("c", "") M_USER("d") ", {\"role\": \"assistant\", \"content\": \"f\", \"thinking\": \"e\"}",
         M_USER("a") M_ANSWER("c", "") M_USER("d") M_ANSWER("f", "") M_USER("next"), 1},
        {M_USER("a") M_CALL("clock", "", "b") M_RESULT("clock", "noon") ", {\"role\": \"assistant\", \"content\": \"f\", \"thinking\": \"e\"}",
         M_USER("a") M_CALL("clock", "", "b") M_RESULT("clock", "noon") M_ANSWER("f", "") M_USER("next"), 1},
        {M_USER("a") M_CALL("clock", "", "b") M_RESULT("clock", "noon") M_CALL("clock", "", "c"),
         M_USER("a") M_CALL("clock", "", "b") M_RESULT("clock", "noon") M_CALL("clock", "", "c") ", " M_USER("next"), 0}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        mote_session *s = session_of(gptoss, .context = 2048, .threads = 1);
        char request[4096];
        snprintf(request, sizeof request, "{\"date_string\": \"" DAY "\", \"messages\": [%s], \"tools\": %s}", cases[i].messages, gpt_tools);
        EXPECT(MOTE_OK, mote_chat_restore(s, request, strlen(request), NULL, &failure));
        mote_session *other = session_of(gptoss, .context = 2048, .threads = 1);
        const mote_generation tools = {.tools = gpt_tools};
        const mote_generation result = {.tools = gpt_tools, .role = "tool"};
        if (i == 0) {
            (void)gpt_say(other, "a", tools, FINAL "c<|return|>", NULL);
            (void)gpt_say(other, "d", tools, ANALYSIS "e" START FINAL "f<|return|>", NULL);
        } else {
            (void)gpt_say(other, "a", tools, ANALYSIS "b" START CLOCK, NULL);
            (void)gpt_say(other, "noon", result, i == 1 ? ANALYSIS "e" START FINAL "f<|return|>" : ANALYSIS "c" START CLOCK, NULL);
        }
        size_t n = 0, m = 0;
        const int32_t *a = mote_tokens(s, &n), *b = mote_tokens(other, &m);
        CHECK(n == m && !memcmp(a, b, n * sizeof *a), "case %zu: %zu tokens restored, %zu of the timeline", i, n, m);
        (void)gpt_say(s, "next", tools, FINAL "x<|return|>", NULL);
        check_harmony_timeline(s, cases[i].next, 1, "restored");
        mote_session_close(s);
        mote_session_close(other);
    }
}

// ---- 4. What an answer must be ------------------------------------------------------------------------------------------

// Tokens drawn nearly at random: only the mask makes the answer what it is.
static void test_harmony_constraints(void) {
    static const char schema[] = "{\"type\": \"object\", \"properties\": {\"x\": {\"type\": \"integer\"}}, \"required\": [\"x\"], \"additionalProperties\": false}";
    int ended = 0, thought = 0;
    mote_session *s = session_of(gptoss, .context = 1024, .threads = 1);
    for (uint64_t seed = 0; seed < (test_brief ? 6 : 24); seed++) {
        const int calls = seed % 2;
        gpt_told t;
        mote_result r;
        mote_sampling p;
        mote_generation g = {.max_tokens = 300, .thinking_budget = seed % 3 ? 5 : 0};
        memset(&p, 0, sizeof p);
        p.temperature = 4;
        p.top_p = 0.999f;
        p.seed = seed;
        g.sampling = &p;
        if (calls) g.tools = gpt_tools, g.tool_choice = MOTE_TOOLS_REQUIRED, g.tool = seed % 4 == 1 ? "get_weather" : NULL;
        else g.schema = schema;
        gpt_script(&t, &g, seed % 3 ? "<|channel|>analysis<|message|>" : "<|channel|>");
        g.max_tokens = 300;
        mote_reset(s, NULL);
        EXPECT(MOTE_OK, mote_ask(s, "Go.", &g, &r, &failure));
        buf_add(&t.text, "", 1);
        if (r.stop == MOTE_STOP_EOS) {
            const char *told = strstr(t.text.data, calls ? "[C]" : "[A]");
            json j;
            ended++;
            CHECK(told && r.calls == calls && !r.broken_calls && (!g.tool || !strncmp(told, "[C]get_weather", 14)), "%s", t.text.data);
            const char *value = !told ? "" : calls ? strstr(told, "[.]") + 3 : told + 3;
            if (CHECK(!json_parse(&j, value, strlen(value), "value", &failure), "%s: %s", t.text.data, failure.message)) {
                const uint32_t object = calls ? json_get(&j, 0, "arguments") : 0;
                const int clock = calls && json_equals(&j, json_get(&j, 0, "name"), "clock");
                CHECK(clock || json_get(&j, object, calls ? "city" : "x") > 0, "%s", value);
                json_free(&j);
            }
        }
        if (seed % 3) {
            thought += r.thinking_tokens > 5;
            CHECK(strstr(t.text.data, "[T]") && r.thinking_tokens > 0 && r.thinking_tokens < 60, "%d tokens of thinking: %s", r.thinking_tokens, t.text.data);
        }
        gpt_forget(&t);
    }
    CHECK(ended > (test_brief ? 0 : 6) && thought, "%d answers ended, %d were cut in their thinking", ended, thought);
    mote_session_close(s);
}

// A budget alone: the answer goes on after the thinking, which does not begin again.
static void test_harmony_budget(void) {
    mote_session *s = session_of(gptoss, .context = 1024, .threads = 1);
    for (uint64_t seed = 0; seed < 4; seed++) {
        gpt_told t;
        mote_result r;
        mote_sampling p;
        mote_generation g = {.max_tokens = 90, .thinking_budget = 4};
        memset(&p, 0, sizeof p);
        p.temperature = 4;
        p.seed = seed;
        g.sampling = &p;
        gpt_script(&t, &g, ANALYSIS);
        g.max_tokens = 90;
        mote_reset(s, NULL);
        EXPECT(MOTE_OK, mote_ask(s, "Go.", &g, &r, &failure));
        buf_add(&t.text, "", 1);
        CHECK(strstr(t.text.data, "[T]") && r.thinking_tokens >= 1 && r.thinking_tokens < 60, "%d tokens of thinking: %s", r.thinking_tokens, t.text.data);
        gpt_forget(&t);
    }
    mote_session_close(s);
}

// Turns of random tokens, marks among them: whatever the timeline holds, it goes on.
static void test_harmony_random(void) {
    for (uint64_t seed = 0; seed < (test_brief ? 2 : 8); seed++) {
        mote_session *s = session_of(gptoss, .context = 2048, .threads = 1);
        for (int turn = 0; turn < 5; turn++) {
            gpt_told t;
            mote_sampling p;
            mote_bias bias[7];
            memset(&p, 0, sizeof p);
            p.temperature = 2;
            p.seed = seed * 8 + (uint64_t)turn;
            for (int i = 0; i < 7; i++) bias[i] = (mote_bias){tokenizer_find(gptoss->text, header_marks[i]), i < 5 ? 6 : 1};
            p.bias = bias;
            p.bias_count = 7;
            mote_generation g = {.tools = gpt_tools, .sampling = &p, .max_tokens = 60};
            gpt_script(&t, &g, "");
            g.max_tokens = 60;
            EXPECT(MOTE_OK, mote_ask(s, "Go on.", &g, NULL, &failure));
            gpt_forget(&t);
        }
        mote_session_close(s);
    }
}

// Wherever memory runs out, in what an answer must be and in a turn after an answer with its thinking: an error, and the timeline goes on.
static void test_harmony_no_memory(void) {
    static const char schema[] = "{\"type\": \"object\", \"properties\": {\"x\": {\"type\": \"integer\"}}}";
    mote_session *s = session_of(gptoss, .context = 1024, .threads = 1);
    for (int kind = 0; kind < 3; kind++) {
        int code = MOTE_ENOMEM, failed = 0;
        for (long at = 0; code == MOTE_ENOMEM && at < 4000; at++) {
            mote_generation g = {.size = sizeof g, .max_tokens = 1, .thinking_budget = 3};
            if (kind == 0) g.schema = schema;
            if (kind == 1) g.tools = gpt_tools, g.tool_choice = MOTE_TOOLS_REQUIRED;
            if (kind == 2) mote_reset(s, NULL), (void)gpt_say(s, "a", (mote_generation){.tools = gpt_tools}, ANALYSIS "b" START CLOCK, NULL);
            if (kind == 2) (void)gpt_say(s, "1", (mote_generation){.role = "tool"}, ANALYSIS "b" START FINAL "c<|return|>", NULL);
            allocations = 0;
            refuse_at = at;
            if (kind < 2) code = mote_generation_check(gptoss, &g, &failure);
            else code = mote_ask(s, "d", &g, NULL, &failure);
            refuse_at = -1;
            CHECK(!code || code == MOTE_ENOMEM, "kind %d, allocation %ld: %d, %s", kind, at, code, failure.message);
            failed += code != 0;
        }
        CHECK(!code && failed > 10, "kind %d: %d allocations failed: %d", kind, failed, code);
    }
    mote_session_close(s);
}

static void test_harmony_refused(void) {
    mote_generation g = {.tools = "[{\"name\": \"a b\"}]", .tool_choice = MOTE_TOOLS_REQUIRED};
    EXPECT(MOTE_EINVAL, mote_generation_check(gptoss, &g, &failure));
    CHECK(strstr(failure.message, "a tool of such a name"), "%s", failure.message);
    g.tools = gpt_tools;
    EXPECT(MOTE_OK, mote_generation_check(gptoss, &g, &failure));
    CHECK(mote_is_end(gptoss, tokenizer_find(gptoss->text, "<|return|>")) && mote_is_end(gptoss, tokenizer_find(gptoss->text, "<|call|>")) &&
          !mote_is_end(gptoss, tokenizer_find(gptoss->text, "<|end|>")), "ends of an answer");
    CHECK(!strcmp(mote_model_info(gptoss)->chat_template, "gpt-oss"), "chat template");
}

int main(int argc, char **argv) {
    test_main_begin("harmony", argc, argv);
    if (!temp_open() || !harmony_folder()) return test_main_end();
    gptoss = model_of(temp_dir, MOTE_EVERYTHING);
    test_harmony_refused();
    test_harmony_answers();
    test_harmony_tokens();
    test_harmony_prompts();
    test_harmony_turns();
    test_harmony_restore();
    test_harmony_constraints();
    test_harmony_budget();
    test_harmony_random();
    test_harmony_no_memory();
    mote_close(gptoss);
    temp_close();
    return test_main_end();
}
#undef DAY
#undef ANALYSIS
#undef FINAL
#undef START
#undef CLOCK
