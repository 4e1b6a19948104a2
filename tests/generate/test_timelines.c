// Tests of conversations in templates whose answers begin with a token of their own (CHAT_ANSWER_TURNS), with mote_ask, on the bundled model under
// these templates' marks: timelines are what the template renders, old thinking is left out where the template leaves it out, results answer
// calls, required calls are calls, stored conversations go on.
//
// Usage: test_timelines [--brief]

#include "inside.h"
#include "api.h"
#include "folders.h"
#include "templates.h"

enum { TIMELINE_CONTEXT = 2048, TIMELINE_MOST = 256 };

static const char timeline_tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"add\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\"}}}}}]";

// The bundled model as one of the family.
static mote_model *timeline_model(const template_marks *f) {
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"};
    char ends[128] = "";
    temp_empty();
    for (size_t i = 0; i < COUNT(files); i++) temp_copy("models/demo", files[i]);
    template_rename(temp_dir, f);
    mote_model *m = model_of(temp_dir, MOTE_TEXT_ONLY);
    for (int i = 0; i < 3 && f->ends[i]; i++)
        snprintf(ends + strlen(ends), sizeof ends - strlen(ends), "%s%d", i ? ", " : "", (int)tokenizer_find(m->text, f->ends[i]));
    mote_close(m);
    char text[256];
    snprintf(text, sizeof text, "{\"eos_token_id\": [%s]}", ends);
    temp_text("generation_config.json", text);
    m = model_of(temp_dir, MOTE_EVERYTHING);
    CHECK(!strcmp(mote_model_info(m)->chat_template ? mote_model_info(m)->chat_template : "none", f->name), "%s", mote_model_info(m)->chat_template);
    return m;
}

typedef struct timeline_answer {
    int32_t force[TIMELINE_MOST];
    size_t count, asked;
    buf text[3], calls;
    mote_result r;
} timeline_answer;

static int timeline_logits(void *user, float *logits, int vocab) {
    timeline_answer *a = (timeline_answer *)user;
    for (int i = 0; i < vocab; i++)
        if (a->asked >= a->count || i != a->force[a->asked]) logits[i] = -INFINITY;
    return ++a->asked > a->count;
}

static int timeline_text(void *user, int channel, const char *text, size_t size) {
    buf_add(&((timeline_answer *)user)->text[channel], text, size);
    return 0;
}

static int timeline_call(void *user, const char *call, size_t size) {
    buf *calls = &((timeline_answer *)user)->calls;
    if (calls->size) buf_text(calls, "; ");
    buf_add(calls, call, size);
    return 0;
}

static void timeline_forget(timeline_answer *a) {
    for (int i = 0; i < 3; i++) buf_free(&a->text[i]);
    buf_free(&a->calls);
    memset(a, 0, sizeof *a);
}

// An answer that says just this: what it tells, and its calls.
static void timeline_say(const mote_model *m, mote_session *s, const char *role, const char *message, int think, const char *says,
                       const char *const *results, timeline_answer *a) {
    mote_sampling greedy;
    mote_generation g;
    memset(&greedy, 0, sizeof greedy);
    memset(&g, 0, sizeof g);
    timeline_forget(a);
    EXPECT(MOTE_OK, mote_tokenize(m, says, strlen(says), 1, a->force, TIMELINE_MOST, &a->count, &failure));
    g.sampling = &greedy;
    g.on_text = timeline_text;
    g.on_call = timeline_call;
    g.on_logits = timeline_logits;
    g.user = a;
    g.role = role;
    g.think = think;
    g.system = "Be brief.";
    g.tools = timeline_tools;
    g.results = results;
    g.result_count = results ? 1 : 0;
    EXPECT(MOTE_OK, mote_ask(s, message, &g, &a->r, &failure));
    CHECK((size_t)a->r.generated_tokens == a->count, "\"%s\": %d tokens of %zu", says, a->r.generated_tokens, a->count);
    for (int i = 0; i < 3; i++) buf_add(&a->text[i], "", 1);
    buf_add(&a->calls, "", 1);
}

static void timeline_told(const timeline_answer *a, const char *thinking, const char *text, const char *calls) {
    CHECK(!strcmp(a->text[MOTE_THINKING].data, thinking) && !strcmp(a->text[MOTE_ANSWER].data, text) && !strcmp(a->calls.data, calls),
          "told <%s> <%s> <%s>", a->text[MOTE_THINKING].data, a->text[MOTE_ANSWER].data, a->calls.data);
}

// The timeline's tokens, less the last `after`, are those that the template renders of these messages.
static void timeline_timeline(const mote_model *m, const mote_session *s, const char *messages, const char *think, size_t after, const char *what) {
    static int32_t ids[TIMELINE_CONTEXT];
    char request[4096], text[8192];
    size_t want = 0, count = 0, n = 0;
    snprintf(request, sizeof request, "{\"tools\": %s, \"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}%s]%s}", timeline_tools, messages, think);
    EXPECT(MOTE_OK, mote_render_tokens(m, request, strlen(request), ids, TIMELINE_CONTEXT, &want, &failure));
    const int32_t *have = mote_tokens(s, &count);
    EXPECT(MOTE_OK, mote_detokenize(m, have, count, text, sizeof text, &n, &failure));
    CHECK(count == want + after && !memcmp(have, ids, want * sizeof *ids), "%s: %zu tokens after %zu, the template has %zu:\n%.*s", what, count,
          after, want, (int)n, text);
}

#define TIMELINE_ON ", \"enable_thinking\": true"
#define TIMELINE_OFF ", \"enable_thinking\": false"
#define ADD "{\"type\": \"function\", \"function\": {\"name\": \"add\", \"arguments\": {\"a\": \"1\"}}}"
#define ONE ", {\"role\": \"user\", \"content\": \"One?\"}"
#define IT_IS ", {\"role\": \"assistant\", \"content\": \"It is 1.\", \"reasoning_content\": \"Hmm, one.\"}"
#define TWO ", {\"role\": \"user\", \"content\": \"Two?\"}"
#define ADDS ", {\"role\": \"assistant\", \"content\": \"I add.\", \"reasoning_content\": \"A call.\", \"tool_calls\": [" ADD ", " ADD "]}"
#define SUMS ", {\"role\": \"tool\", \"content\": \"2\"}, {\"role\": \"tool\", \"content\": \" 3\\n\"}"
#define SO_TWO ", {\"role\": \"assistant\", \"content\": \"Two.\", \"reasoning_content\": \"So 2.\"}"
#define ADD_TOLD "{\"name\": \"add\", \"arguments\": {\"a\": \"1\"}}"

// What the model says in three turns: a thought and an answer, calls, an answer after results.
static void timeline_answers(const template_marks *f, char says[3][512]) {
    const char *const line = f->lines ? "\n" : "";
    snprintf(says[0], 512, "%s%sHmm, one.%s</think>%sIt is 1.%s%s", f->before, line, line, f->after, line, f->end);
    snprintf(says[1], 512, "%s%sA call.%s</think>%sI add.%s%s%s%s%s", f->before, line, line, f->after, f->calls_begin, f->call, f->next_call, f->calls_end, f->end_of_calls);
    if (f->after_results) snprintf(says[2], 512, "%s%sSo 2.%s</think>%sTwo.%s%s", f->before, line, line, f->after, line, f->end);
    else snprintf(says[2], 512, "Two.%s", f->end);
}

// 1: the template tells every question alike not to think, so that one turn alone cannot.
static int tells_all(const template_marks *f) {
    return strstr(f->text, "/nothink") != NULL;
}

static void timeline_conversation(const template_marks *f, const mote_model *m) {
    const char *const more[] = {" 3\n"};
    const int drops = f->thinking != KEPT, think = f->always || tells_all(f) ? MOTE_THINK_ON : MOTE_THINK_OFF;
    mote_session *s = session_of(m, .context = TIMELINE_CONTEXT);
    timeline_answer *a = (timeline_answer *)allocate(sizeof *a);
    char says[3][512];
    size_t read = 99, total = 0;
    timeline_answers(f, says);
    memset(a, 0, sizeof *a);
    EXPECT(MOTE_EINVAL, mote_ask(s, "2", &(mote_generation){.role = "tool"}, NULL, &failure));
    timeline_say(m, s, NULL, "One?", MOTE_THINK_ON, says[0], NULL, a);
    timeline_told(a, "Hmm, one.", f->lines ? "It is 1.\n" : "It is 1.", "");
    timeline_timeline(m, s, ONE, TIMELINE_ON, a->count, "the first turn");
    EXPECT(MOTE_EINVAL, mote_ask(s, "2", &(mote_generation){.role = "tool"}, NULL, &failure));      // nothing was called

    EXPECT(MOTE_OK, mote_ask_count(s, "Two?", &(mote_generation){.think = MOTE_THINK_ON}, &read, &total, &failure));
    timeline_say(m, s, NULL, "Two?", MOTE_THINK_ON, says[1], NULL, a);
    CHECK((int)read == a->r.prompt_tokens && total + a->count == (size_t)count_of(s), "counted %zu, %zu", read, total);
    timeline_told(a, "A call.", "I add.", ADD_TOLD "; " ADD_TOLD);
    timeline_timeline(m, s, ONE IT_IS TWO, TIMELINE_ON, a->count, "the second turn");

    timeline_say(m, s, "tool", "2", MOTE_THINK_ON, says[2], more, a);
    timeline_told(a, f->after_results ? "So 2." : "", f->lines ? "Two.\n" : "Two.", "");
    if (f->thinking != NEVER_SAID) timeline_timeline(m, s, ONE IT_IS TWO ADDS SUMS, TIMELINE_ON, a->count, "results: thinking stays");
    EXPECT(MOTE_EINVAL, mote_ask(s, "2", &(mote_generation){.role = "tool"}, NULL, &failure));      // all is answered

    const int before = count_of(s);
    EXPECT(MOTE_OK, mote_drop_thinking(s, &read, &failure));
    CHECK(drops ? read > 0 && count_of(s) < before : !read && count_of(s) == before, "%zu read again, %d tokens of %d", read, count_of(s), before);
    EXPECT(MOTE_OK, mote_drop_thinking(s, &read, &failure));
    CHECK(!read, "dropped twice");
    if (drops) {
        char cut[2][64];
        snprintf(cut[0], sizeof cut[0], "%s%s%sCut sh", tells_all(f) ? f->before : "", f->always || tells_all(f) ? "</think>" : "", f->after);
        snprintf(cut[1], sizeof cut[1], "%sNo end to thin", f->before);
        timeline_say(m, s, NULL, "Three?", think, cut[0], NULL, a);                    // and no end: on_logits stops it
        timeline_timeline(m, s, ONE IT_IS TWO ADDS SUMS SO_TWO ", {\"role\": \"user\", \"content\": \"Three?\"}", tells_all(f) ? TIMELINE_ON : TIMELINE_OFF, a->count,
                          "the third turn");
        timeline_say(m, s, NULL, "Four?", MOTE_THINK_ON, cut[1], NULL, a);
        timeline_say(m, s, NULL, "Five?", MOTE_THINK_ON, says[0], NULL, a);
        timeline_timeline(m, s, ONE IT_IS TWO ADDS SUMS SO_TWO ", {\"role\": \"user\", \"content\": \"Three?\"}, {\"role\": \"assistant\", "
                        "\"content\": \"Cut sh\"}, {\"role\": \"user\", \"content\": \"Four?\"}, {\"role\": \"assistant\", \"content\": \"\"}, "
                        "{\"role\": \"user\", \"content\": \"Five?\"}", TIMELINE_ON, a->count, "cut short in an answer and in thinking");
    } else {
        timeline_say(m, s, NULL, "Three?", MOTE_THINK_ON, says[0], NULL, a);
        timeline_timeline(m, s, ONE IT_IS TWO ADDS SUMS SO_TWO ", {\"role\": \"user\", \"content\": \"Three?\"}", TIMELINE_ON, a->count, "the third turn");
    }
    timeline_forget(a);
    free(a);
    mote_session_close(s);
}

// A question that comes instead of results follows the calls, whatever token ended them, and whether or not there was thinking.
static void timeline_interrupted(const template_marks *f, const mote_model *m) {
    for (int thought = 0; thought < 2 && f->thinking == LEFT_OUT; thought++) {
        mote_session *s = session_of(m, .context = TIMELINE_CONTEXT);
        timeline_answer *a = (timeline_answer *)allocate(sizeof *a);
        char says[512];
        memset(a, 0, sizeof *a);
        const char *const thoughts[] = {tells_all(f) ? "</think>" : "", f->lines ? "\nA call.\n</think>" : "A call.</think>"};
        snprintf(says, sizeof says, "%s%s%sI add.%s%s%s%s", thought || tells_all(f) ? f->before : "", thoughts[thought], f->after, f->calls_begin, f->call,
                 f->calls_end, f->end_of_calls);
        timeline_say(m, s, NULL, "One?", thought || tells_all(f) ? MOTE_THINK_ON : MOTE_THINK_OFF, says, NULL, a);
        timeline_say(m, s, NULL, "Two?", MOTE_THINK_ON, "Cut sh", NULL, a);
        timeline_timeline(m, s, ONE ", {\"role\": \"assistant\", \"content\": \"I add.\", \"reasoning_content\": \"A call.\", \"tool_calls\": [" ADD "]}" TWO,
                          TIMELINE_ON, a->count, thought ? "a question, instead of results" : "a question, instead of results, without thinking");
        timeline_forget(a);
        free(a);
        mote_session_close(s);
    }
}

// A conversation that was stored goes on as if it had been led.
static void timeline_restored(const template_marks *f, const mote_model *m) {
    static const char *const messages[] = {ONE IT_IS, ONE IT_IS TWO ADDS, ONE IT_IS TWO ADDS SUMS SO_TWO};
    const char *const more[] = {" 3\n"};
    mote_session *led = session_of(m, .context = TIMELINE_CONTEXT);
    timeline_answer *a = (timeline_answer *)allocate(sizeof *a);
    char says[3][512];
    timeline_answers(f, says);
    memset(a, 0, sizeof *a);
    for (int i = 0; i < 3; i++) {
        char request[4096];
        size_t read = 99, n = 0, count = 0;
        mote_session *s = session_of(m, .context = TIMELINE_CONTEXT);
        timeline_say(m, led, i == 2 ? "tool" : NULL, i == 2 ? "2" : i ? "Two?" : "One?", MOTE_THINK_ON, says[i], i == 2 ? more : NULL, a);
        snprintf(request, sizeof request, "{\"tools\": %s, \"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}%s]" TIMELINE_ON "}", timeline_tools,
                 messages[i]);
        EXPECT(MOTE_OK, mote_chat_restore(s, request, strlen(request), NULL, &failure));
        const int32_t *x = mote_tokens(led, &n), *y = mote_tokens(s, &count);
        const int same = count + !*chat_marks_of(m->family)->turn_end == n && !memcmp(x, y, count * sizeof *x);
        CHECK(same || f->thinking == NEVER_SAID, "restored: %zu tokens, led: %zu", count, n);
        if (f->thinking != NEVER_SAID) {
            EXPECT(MOTE_OK, mote_chat_restore(led, request, strlen(request), &read, &failure));
            CHECK(!read, "%zu tokens of what is there are read", read);
        }
        if (i != 1) {
            timeline_say(m, s, NULL, "Next?", MOTE_THINK_ON, says[0], NULL, a);
            char all[4096];
            snprintf(all, sizeof all, "%s, {\"role\": \"user\", \"content\": \"Next?\"}", messages[i]);
            timeline_timeline(m, s, all, TIMELINE_ON, a->count, "after a stored conversation");
        } else {
            timeline_say(m, s, "tool", "2", MOTE_THINK_ON, says[2], more, a);
            timeline_timeline(m, s, ONE IT_IS TWO ADDS SUMS, TIMELINE_ON, a->count, "results after a stored conversation");
        }
        mote_session_close(s);
    }
    timeline_forget(a);
    free(a);
    mote_session_close(led);
}

// Answers that must be calls, drawn nearly at random.
static void timeline_required(const template_marks *f, const mote_model *m) {
    int ended = 0;
    for (uint64_t seed = 1; seed < (test_brief ? 4 : 9); seed++) {
        mote_session *s = session_of(m, .context = TIMELINE_CONTEXT);
        timeline_answer a;
        mote_sampling p = {.temperature = 4, .top_p = 0.999f, .seed = seed};
        mote_generation g = {.tools = "[{\"type\": \"function\", \"function\": {\"name\": \"read\", \"parameters\": {\"type\": \"object\", \"properties\": {\"path\": {\"type\": "
                                      "\"string\", \"maxLength\": 30}, \"lines\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 99}, \"how\": {\"enum\": "
                                      "[\"rb\", 7]}}, \"required\": [\"path\", \"lines\"]}}}, {\"type\": \"function\", \"function\": {\"name\": \"read it\", \"parameters\": {\"type\": \"object\", \"properties\": {}}}}]",
                             .tool_choice = MOTE_TOOLS_REQUIRED, .max_tokens = 300, .sampling = &p, .on_text = timeline_text, .on_call = timeline_call, .user = &a};
        memset(&a, 0, sizeof a);
        g.one_call = seed % 2;
        g.think = seed % 3 ? MOTE_THINK_OFF : MOTE_THINK_ON;
        g.thinking_budget = seed % 3 && !f->always ? 0 : 4;
        EXPECT(MOTE_OK, mote_ask(s, "Read.", &g, &a.r, &failure));
        buf_add(&a.text[MOTE_ANSWER], "", 1);
        buf_add(&a.calls, "", 1);
        if (a.r.stop == MOTE_STOP_EOS || a.r.stop == MOTE_STOP_CALL) {
            ended++;
            CHECK(a.r.calls > 0 && !a.r.broken_calls && a.text[MOTE_ANSWER].size == 1, "seed %d: %d calls, %d broken, text '%s'", (int)seed,
                  a.r.calls, a.r.broken_calls, a.text[MOTE_ANSWER].data);
            CHECK(!g.one_call || a.r.calls == 1, "%d calls where one is wanted", a.r.calls);
            CHECK(strstr(a.calls.data, "\"name\": \"read") != NULL, "calls %s", a.calls.data);
        }
        timeline_forget(&a);
        mote_session_close(s);
    }
    CHECK(ended > (test_brief ? 0 : 3), "%d answers ended", ended);
}

int main(int argc, char **argv) {
    test_main_begin("test_timelines", argc, argv);
    if (!temp_open()) return test_main_end();
    for (size_t i = 0; i < TEMPLATES; i++) {
        mote_model *m = timeline_model(&templates[i]);
        timeline_conversation(&templates[i], m);
        timeline_interrupted(&templates[i], m);
        timeline_restored(&templates[i], m);
        timeline_required(&templates[i], m);
        mote_close(m);
    }
    temp_close();
    return test_main_end();
}
