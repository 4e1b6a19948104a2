// Tests of conversations in Gemma 4's template, whose results stand in the answer's own turn, on the bundled weights under its tokenizer:
// timelines are what the template renders, old channels are left out, results stand under the names of their calls, stored conversations
// go on, thinking has its budget.
//
// Usage: test_gemma [--brief]

#include "inside.h"
#include "api.h"
#include "gemma.h"

enum { GEMMA_CONTEXT = 2048, GEMMA_MOST = 256 };

static const char gemma_tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"add\", \"description\": \"d\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\"}}}}}, "
    "{\"type\": \"function\", \"function\": {\"name\": \"sub\", \"description\": \"\"}}]";

typedef struct gemma_answer_heard {
    int32_t force[GEMMA_MOST];
    size_t count, asked;
    buf text[3], calls;
    mote_result r;
} gemma_answer_heard;

static int gemma_logits(void *user, float *logits, int vocab) {
    gemma_answer_heard *a = (gemma_answer_heard *)user;
    for (int i = 0; i < vocab; i++)
        if (a->asked >= a->count || i != a->force[a->asked]) logits[i] = -INFINITY;
    return ++a->asked > a->count;
}

static int gemma_heard(void *user, int channel, const char *text, size_t size) {
    buf_add(&((gemma_answer_heard *)user)->text[channel], text, size);
    return 0;
}

static int gemma_called(void *user, const char *call, size_t size) {
    buf *calls = &((gemma_answer_heard *)user)->calls;
    if (calls->size) buf_text(calls, "; ");
    buf_add(calls, call, size);
    return 0;
}

static void gemma_forget(gemma_answer_heard *a) {
    for (int i = 0; i < 3; i++) buf_free(&a->text[i]);
    buf_free(&a->calls);
    memset(a, 0, sizeof *a);
}

typedef struct gemma_says { const char *role, *message, *answer; int think, one_call; const char *const *results; } gemma_says;

// An answer that says just this.
static void gemma_say(mote_session *s, gemma_says x, gemma_answer_heard *a) {
    mote_sampling greedy = {0};
    mote_generation g = {.sampling = &greedy, .on_text = gemma_heard, .on_call = gemma_called, .on_logits = gemma_logits, .user = a, .role = x.role,
                         .think = x.think, .system = "Be brief.", .tools = gemma_tools_text, .results = x.results, .result_count = x.results != NULL,
                         .one_call = x.one_call};
    gemma_forget(a);
    EXPECT(MOTE_OK, mote_tokenize(s->m, x.answer, strlen(x.answer), 1, a->force, GEMMA_MOST, &a->count, &failure));
    EXPECT(MOTE_OK, mote_ask(s, x.message, &g, &a->r, &failure));
    for (int i = 0; i < 3; i++) buf_add(&a->text[i], "", 1);
    buf_add(&a->calls, "", 1);
}

static void gemma_told(const gemma_answer_heard *a, const char *thinking, const char *text, const char *calls) {
    CHECK(!strcmp(a->text[MOTE_THINKING].data, thinking) && !strcmp(a->text[MOTE_ANSWER].data, text) && !strcmp(a->calls.data, calls),
          "told <%s> <%s> <%s>", a->text[MOTE_THINKING].data, a->text[MOTE_ANSWER].data, a->calls.data);
}

#define G_ON ", \"enable_thinking\": true"
#define G_OFF ", \"enable_thinking\": false"

// The timeline's tokens, less the last `after`, are those that the template renders of these messages.
static void gemma_timeline(const mote_session *s, const char *messages, const char *think, int after, const char *what) {
    static int32_t ids[GEMMA_CONTEXT];
    char request[4096], text[8192];
    size_t want = 0, count = 0, n = 0;
    snprintf(request, sizeof request, "{\"tools\": %s, \"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}%s]%s}", gemma_tools_text, messages, think);
    EXPECT(MOTE_OK, mote_render_tokens(s->m, request, strlen(request), ids, GEMMA_CONTEXT, &want, &failure));
    const int32_t *have = mote_tokens(s, &count);
    EXPECT(MOTE_OK, mote_detokenize(s->m, have, count, text, sizeof text, &n, &failure));
    CHECK(count == want + (size_t)after && !memcmp(have, ids, want * sizeof *ids), "%s: %zu tokens after %d, the template has %zu:\n%.*s", what, count,
          after, want, (int)n, text);
}

#define G_ONE ", {\"role\": \"user\", \"content\": \"One?\"}"
#define G_IT_IS ", {\"role\": \"assistant\", \"content\": \"It is 1.\", \"reasoning_content\": \"Hmm, one.\"}"
#define G_TWO ", {\"role\": \"user\", \"content\": \" Two?\\n\"}"
#define G_ADD "{\"type\": \"function\", \"function\": {\"name\": \"add\", \"arguments\": {\"a\": \"1\"}}}"
#define G_SUB "{\"type\": \"function\", \"function\": {\"name\": \"sub\", \"arguments\": {}}}"
#define G_ADDS ", {\"role\": \"assistant\", \"content\": \"I add.\", \"reasoning_content\": \"A call.\", \"tool_calls\": [" G_ADD ", " G_SUB "]}"
#define G_SUMS ", {\"role\": \"tool\", \"content\": \"2\"}, {\"role\": \"tool\", \"content\": \" 3\\n<|turn>\"}"
#define G_SO_TWO ", {\"role\": \"assistant\", \"content\": \"Two.\", \"reasoning_content\": \"So 2.\"}"
#define G_THREE ", {\"role\": \"user\", \"content\": \"Three?\"}"
#define G_SAYS_ONE "<|channel>thought\nHmm, one.\n<channel|>It is 1.<turn|>"
#define G_CALL_ADD "<|tool_call>call:add{a:<|\"|>1<|\"|>}<tool_call|>"
#define G_SAYS_ADD "<|channel>thought\nA call.\n<channel|>I add." G_CALL_ADD "<|tool_call>call:sub{}<tool_call|><|tool_response>"
#define G_ADD_TOLD "{\"name\": \"add\", \"arguments\": {\"a\": \"1\"}}"
#define G_SUB_TOLD "{\"name\": \"sub\", \"arguments\": {}}"

static const char *const gemma_more[] = {" 3\n<|turn>"};

static const char *says_two(int july) {
    return july ? "So 2.\n<channel|>Two.<turn|>" : "<|channel>thought\nSo 2.\n<channel|>Two.<turn|>";
}

static void gemma_conversation_led(const mote_model *m, int july) {
    mote_session *s = session_of(m, .context = GEMMA_CONTEXT);
    gemma_answer_heard *a = (gemma_answer_heard *)allocate(sizeof *a);
    size_t read = 99, total = 0;
    memset(a, 0, sizeof *a);
    EXPECT(MOTE_EINVAL, mote_ask(s, "2", &(mote_generation){.role = "tool"}, NULL, &failure));
    gemma_say(s, (gemma_says){NULL, "One?", G_SAYS_ONE, MOTE_THINK_ON, 0, NULL}, a);
    gemma_told(a, "Hmm, one.", "It is 1.", "");
    gemma_timeline(s, G_ONE, G_ON, (int)a->count, "the first turn");
    EXPECT(MOTE_EINVAL, mote_ask(s, "2", &(mote_generation){.role = "tool"}, NULL, &failure));      // nothing was called
    EXPECT(MOTE_OK, mote_ask_count(s, " Two?\n", &(mote_generation){.think = MOTE_THINK_ON}, &read, &total, &failure));
    gemma_say(s, (gemma_says){NULL, " Two?\n", G_SAYS_ADD, MOTE_THINK_ON, 0, NULL}, a);
    CHECK((int)read == a->r.prompt_tokens && total + a->count == (size_t)count_of(s) && a->r.stop == MOTE_STOP_EOS, "counted %zu, %zu; %d", read, total, a->r.stop);
    gemma_told(a, "A call.", "I add.", G_ADD_TOLD "; " G_SUB_TOLD);
    gemma_timeline(s, G_ONE G_IT_IS G_TWO, G_ON, (int)a->count, "the second turn");
    gemma_say(s, (gemma_says){"tool", "2", says_two(july), MOTE_THINK_ON, 0, gemma_more}, a);
    gemma_told(a, "So 2.", "Two.", "");
    gemma_timeline(s, G_ONE G_IT_IS G_TWO G_ADDS G_SUMS, G_ON, (int)a->count, "results: thinking stays");
    EXPECT(MOTE_EINVAL, mote_ask(s, "2", &(mote_generation){.role = "tool"}, NULL, &failure));      // all is answered
    EXPECT(MOTE_OK, mote_drop_thinking(s, &read, &failure));
    CHECK(read > 0, "%zu read again", read);
    EXPECT(MOTE_OK, mote_drop_thinking(s, &read, &failure));
    CHECK(!read, "dropped twice");
    gemma_say(s, (gemma_says){NULL, "Three?", "Cut sh", MOTE_THINK_ON, 0, NULL}, a);                // and no end: on_logits stops it
    gemma_timeline(s, G_ONE G_IT_IS G_TWO G_ADDS G_SUMS G_SO_TWO G_THREE, G_ON, (int)a->count, "the third turn");
    gemma_say(s, (gemma_says){NULL, "Four?", "<|channel>thought\nNo end to thin", MOTE_THINK_ON, 0, NULL}, a);
    gemma_say(s, (gemma_says){NULL, "Five?", G_SAYS_ONE, MOTE_THINK_ON, 0, NULL}, a);
    gemma_timeline(s, G_ONE G_IT_IS G_TWO G_ADDS G_SUMS G_SO_TWO G_THREE ", {\"role\": \"assistant\", \"content\": \"Cut sh\"}, {\"role\": \"user\", \"content\": \"Four?\"}, "
                      "{\"role\": \"assistant\", \"content\": \"\"}, {\"role\": \"user\", \"content\": \"Five?\"}", G_ON, (int)a->count, "cut short");
    gemma_forget(a);
    free(a);
    mote_session_close(s);
}

// A call without a result; one that the application stops at; without thinking.
static void gemma_calls_led(const mote_model *m) {
#define G_ASKED G_ONE ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [" G_ADD "]}"
    static const struct { const char *answer; int one_call; } ends[] = {{G_CALL_ADD "<|tool_response>", 0}, {G_CALL_ADD, 1}, {G_CALL_ADD "<eos>", 0}};
    gemma_answer_heard *a = (gemma_answer_heard *)allocate(sizeof *a);
    memset(a, 0, sizeof *a);
    for (size_t i = 0; i < COUNT(ends); i++)
        for (int result = 0; result < 2; result++) {
            mote_session *s = session_of(m, .context = GEMMA_CONTEXT);
            gemma_say(s, (gemma_says){NULL, "One?", ends[i].answer, MOTE_THINK_OFF, ends[i].one_call, NULL}, a);
            gemma_told(a, "", "", G_ADD_TOLD);
            CHECK(a->r.stop == (ends[i].one_call ? MOTE_STOP_CALL : MOTE_STOP_EOS), "stopped by %d", a->r.stop);
            gemma_timeline(s, G_ONE, G_OFF, (int)a->count, "a call");
            gemma_say(s, (gemma_says){result ? "tool" : NULL, "2", "A.<turn|>", MOTE_THINK_OFF, 0, NULL}, a);
            gemma_told(a, "", "A.", "");
            const int exact = i < 2;                          // the other's <eos> stays where it is
            if (!result && exact) gemma_timeline(s, G_ASKED ", {\"role\": \"user\", \"content\": \"2\"}", G_OFF, (int)a->count, "a call without a result");
            if (result) gemma_say(s, (gemma_says){NULL, "Three?", "B.<turn|>", MOTE_THINK_OFF, 0, NULL}, a);
            if (result && exact) gemma_timeline(s, G_ASKED ", {\"role\": \"tool\", \"content\": \"2\"}, {\"role\": \"assistant\", \"content\": \"A.\"}" G_THREE, G_OFF, (int)a->count, "after a result");
            mote_session_close(s);
        }
    // A turn that was ended after the call: the result begins another.
    mote_session *s = session_of(m, .context = GEMMA_CONTEXT);
    gemma_say(s, (gemma_says){NULL, "One?", G_CALL_ADD "<turn|>", MOTE_THINK_OFF, 0, NULL}, a);
    gemma_say(s, (gemma_says){"tool", "2", "A.<turn|>", MOTE_THINK_OFF, 0, NULL}, a);
    gemma_told(a, "", "A.", "");
    mote_session_close(s);
    gemma_forget(a);
    free(a);
#undef G_ASKED
}

// A conversation that was stored goes on as if it had been led.
static void gemma_restored(const mote_model *m, int july) {
    static const char *const messages[] = {G_ONE G_IT_IS, G_ONE G_IT_IS G_TWO G_ADDS, G_ONE G_IT_IS G_TWO G_ADDS G_SUMS G_SO_TWO};
    gemma_answer_heard *a = (gemma_answer_heard *)allocate(sizeof *a);
    memset(a, 0, sizeof *a);
    for (int i = 0; i < 3; i++) {
        char request[4096], all[4096];
        mote_session *s = session_of(m, .context = GEMMA_CONTEXT);
        snprintf(request, sizeof request, "{\"tools\": %s, \"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}%s]" G_ON "}", gemma_tools_text, messages[i]);
        EXPECT(MOTE_OK, mote_chat_restore(s, request, strlen(request), NULL, &failure));
        if (i == 1) {
            gemma_say(s, (gemma_says){"tool", "2", says_two(july), MOTE_THINK_ON, 0, gemma_more}, a);
            gemma_timeline(s, G_ONE G_IT_IS G_TWO G_ADDS G_SUMS, G_ON, (int)a->count, "results after a stored conversation");
        } else {
            gemma_say(s, (gemma_says){NULL, "Three?", G_SAYS_ONE, MOTE_THINK_ON, 0, NULL}, a);
            snprintf(all, sizeof all, "%s" G_THREE, messages[i]);
            gemma_timeline(s, all, G_ON, (int)a->count, "after a stored conversation");
        }
        mote_session_close(s);
    }
    gemma_forget(a);
    free(a);
}

typedef struct gemma_opening { int32_t ids[32]; size_t count, asked; } gemma_opening;

static int gemma_opens(void *user, float *logits, int vocab) {
    gemma_opening *o = (gemma_opening *)user;
    for (int i = 0; i < vocab && o->asked < o->count; i++)
        if (i != o->ids[o->asked]) logits[i] = -INFINITY;
    return ++o->asked > 90;
}

// Thinking that the model opens itself is cut short.
static void gemma_budget(const mote_model *m) {
    static const char opens[] = "<|channel>thought\nHm";
    mote_session *s = session_of(m, .context = GEMMA_CONTEXT);
    gemma_opening o = {.asked = 0};
    mote_generation g = {.thinking_budget = 20, .think = MOTE_THINK_ON, .max_tokens = 90, .on_logits = gemma_opens, .user = &o};
    mote_result r;
    size_t count = 0, n = 0;
    char text[4096];
    EXPECT(MOTE_OK, mote_tokenize(m, opens, strlen(opens), 1, o.ids, COUNT(o.ids), &o.count, &failure));
    EXPECT(MOTE_OK, mote_ask(s, "One?", &g, &r, &failure));
    const int32_t *ids = mote_tokens(s, &count);
    EXPECT(MOTE_OK, mote_detokenize(m, ids, count, text, sizeof text - 1, &n, &failure));
    text[n] = 0;
    CHECK(strstr(text, "the thinking directly now.\n<channel|>") && r.thinking_tokens > 5, "%d tokens of thinking: %s", r.thinking_tokens, text);
    mote_session_close(s);
}

int main(int argc, char **argv) {
    test_main_begin("test_gemma", argc, argv);
    if (!temp_open()) return test_main_end();
    for (int july = 0; july < 2; july++) {
        gemma_folder(july);
        mote_model *m = model_of(temp_dir, MOTE_EVERYTHING);
        CHECK(!strcmp(mote_model_info(m)->chat_template ? mote_model_info(m)->chat_template : "none", "Gemma 4"), "the template");
        CHECK(mote_is_end(m, 50) && mote_is_end(m, 106) && mote_is_end(m, 1), "what ends an answer");
        gemma_conversation_led(m, july);
        gemma_calls_led(m);
        gemma_restored(m, july);
        gemma_budget(m);
        mote_close(m);
    }
    temp_close();
    return test_main_end();
}
