// Tests of mote serve with templates whose answers begin with a token of their own, or think in a channel: what a parrot says is
// thinking, answer and calls in all APIs, results go on with what was read, and a question leaves out old thinking where the template
// does.

#include "client.h"
#include "templates.h"
#include "parrot.h"

enum { SAY_TEXT, SAY_CALL, SAY_CUT, SAY_COUNT };

static int32_t starts[SAY_COUNT];

#define GO "{\"role\": \"user\", \"content\": \"Go on, and say a little more than what was said before\"}"
#define TOOLS "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"add\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\"}}}}}]"
#define FLAT_TOOLS "\"tools\": [{\"type\": \"function\", \"name\": \"add\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\"}}}}]"
#define CLAUDE_TOOLS "\"tools\": [{\"name\": \"add\", \"input_schema\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\"}}}}]"
#define CALLED "{\"role\": \"assistant\", \"content\": \"I add.\", \"reasoning_content\": \"A call, then.\", \"tool_calls\": [{\"id\": \"c1\", \"type\": " \
               "\"function\", \"function\": {\"name\": \"add\", \"arguments\": \"{\\\"a\\\": \\\"1\\\"}\"}}]}"
#define RESULT "{\"role\": \"tool\", \"tool_call_id\": \"c1\", \"content\": \"2\"}"

static heard ask(server s, const char *path, const char *messages, int script, const char *more) {
    char body[4096];
    const int responses = !strcmp(path, "/v1/responses");
    snprintf(body, sizeof body, "{\"%s\": [%s], \"logit_bias\": {\"%d\": 100}, \"%s\": 400, \"temperature\": 0, %s}", responses ? "input" : "messages",
             messages, starts[script], responses ? "max_output_tokens" : "max_tokens", more);
    return post(s, path, body);
}

static void check(server s, const char *path, const char *messages, int script, const char *more, const char *const *holds, int count) {
    heard h = ask(s, path, messages, script, more);
    CHECK(h.status == 200, "%s: %d %s", path, h.status, h.body);
    for (int i = 0; i < count; i++) CHECK(strstr(h.body, holds[i]) != NULL, "%s, script %d: %s lacks '%s'", path, script, h.body, holds[i]);
    forget(&h);
}

static void test_apis(server s) {
    static const char *const text[] = {"\"reasoning_content\": \"Hmm, one.\"", "\"content\": \"It is 1.", "\"finish_reason\": \"stop\""};
    static const char *const call[] = {"\"reasoning_content\": \"A call, then.\"", "\"content\": \"I add.\"", "\"name\": \"add\"",
                                       "\"arguments\": \"{\\\"a\\\": \\\"1\\\"}\"", "\"finish_reason\": \"tool_calls\""};
    static const char *const item[] = {"\"text\": \"A call, then.\"", "\"text\": \"I add.\"", "\"type\": \"function_call\"", "\"name\": \"add\"",
                                       "\"arguments\": \"{\\\"a\\\": \\\"1\\\"}\""};
    static const char *const block[] = {"\"thinking\": \"A call, then.\"", "\"text\": \"I add.\"", "\"type\": \"tool_use\"", "\"input\": {\"a\": \"1\"}",
                                        "\"stop_reason\": \"tool_use\""};
    static const char *const on = "\"chat_template_kwargs\": {\"enable_thinking\": true}";
    char more[1024];
    check(s, "/v1/chat/completions", GO, SAY_TEXT, on, text, 3);
    snprintf(more, sizeof more, TOOLS ", %s", on);
    check(s, "/v1/chat/completions", GO, SAY_CALL, more, call, 5);
    snprintf(more, sizeof more, FLAT_TOOLS ", %s", on);
    check(s, "/v1/responses", GO, SAY_CALL, more, item, 5);
    check(s, "/v1/messages", GO, SAY_CALL, CLAUDE_TOOLS ", \"thinking\": {\"type\": \"adaptive\"}", block, 5);
}

// Thinking by DeepSeek's word, and old thinking kept by GLM's, which GLM-4.6 has not.
static void test_words(server s, const template_marks *f) {
    static const char *const thinks[] = {"\"reasoning_content\": \"Hmm, one.\""};
    check(s, "/v1/chat/completions", GO, SAY_TEXT, "\"chat_template_kwargs\": {\"thinking\": true}", thinks, 1);
    long counts[2];
    for (int i = 0; i < 2; i++) {
        char body[1024];
        snprintf(body, sizeof body, "{\"messages\": [" GO ", {\"role\": \"assistant\", \"content\": \"It is 1.\", \"reasoning_content\": \"Hmm, one.\"}, " GO
                 "], \"chat_template_kwargs\": {\"clear_thinking\": %s}}", i ? "false" : "true");
        heard h = post(s, "/tokenize", body);
        counts[i] = number(&h, "count");
        CHECK(h.status == 200 && counts[i] > 0, "%d %s", h.status, h.body);
        forget(&h);
    }
    CHECK((counts[1] > counts[0]) == (f->thinking == LEFT_OUT && !strstr(f->text, "/nothink")), "%ld tokens with old thinking kept, %ld without", counts[1], counts[0]);
}

// A call that is cut is text; streamed, all of it comes in pieces.
static void test_broken(server s, const char *call) {
    char all[1024] = "";
    heard h = ask(s, "/v1/chat/completions", GO, SAY_CUT, TOOLS ", \"stream\": true, \"chat_template_kwargs\": {\"enable_thinking\": true}");
    join(h.body, "content", all, sizeof all);
    CHECK(h.status == 200 && !strstr(h.body, "tool_calls\": [") && strlen(all) > 5, "%d, '%s' of %s: %s", h.status, all, call, h.body);
    forget(&h);
}

// Tokens that were read before.
static long cached(server s, const char *messages, const char *more) {
    heard h = ask(s, "/v1/chat/completions", messages, SAY_TEXT, more);
    long n = number(&h, "cached_tokens");
    CHECK(h.status == 200, "%d %s", h.status, h.body);
    forget(&h);
    return n;
}

// A result goes on with what was read before the answer that called, whose marks a parrot writes as text; the next question leaves old thinking
// out, and goes on with what was read before that answer, too.
static void test_reuse(server s) {
    static const char *const more = TOOLS ", \"chat_template_kwargs\": {\"enable_thinking\": true}";
    heard h = ask(s, "/v1/chat/completions", GO, SAY_CALL, more);
    const long prompt = number(&h, "prompt_tokens");
    forget(&h);
    const long result = cached(s, GO ", " CALLED ", " RESULT, more);
    CHECK(result >= prompt - 3, "%ld tokens of %ld known at a result", result, prompt);
    const long question = cached(s, GO ", " CALLED ", " RESULT ", {\"role\": \"assistant\", \"content\": \"It is 1.\", \"reasoning_content\": \"Hmm, one.\"}, " GO, more);
    CHECK(question >= prompt - 3, "%ld tokens of %ld known at a question", question, prompt);
}

static void test_capabilities(server s, const template_marks *f) {
    heard h = get(s, "/v1/models");
    char want[128];
    snprintf(want, sizeof want, "\"enable_thinking\": %s, \"reasoning_effort\": false, \"tools\": %s", f->always ? "false" : "true", f->thinking == NEVER_SAID ? "false" : "true");
    CHECK(strstr(h.body, want) != NULL, "%s", h.body);
    forget(&h);
}

static void test_template(const template_marks *f, const char *const *scripts) {
    char arguments[256];
    temp_empty();
    parrot_make(temp_dir, scripts, SAY_COUNT, 7, NULL, starts);        // seven bytes: no mark becomes a piece, no script needs filling
    template_rename(temp_dir, f);
    snprintf(arguments, sizeof arguments, "-m %s --device cpu --context 4096 --parallel 1", temp_dir);
    server s = serve(arguments);
    test_capabilities(s, f);
    test_apis(s);
    if (f->after) test_words(s, f);       // Gemma 4 has neither word
    test_broken(s, scripts[SAY_CUT]);
    test_reuse(s);
    stop(s);
}

// Gemma 4's: an answer opens its channel itself, calls and results stand in one turn.
static void test_gemma(void) {
#define ADDS "<|channel>thought\nA call, then.\n<channel|>I add.<|tool_call>call:add{a:<|\"|>1<|\"|>"
    static const char *const scripts[] = {"<|channel>thought\nHmm, one.\n<channel|>It is 1.", ADDS "}<tool_call|>", ADDS};
    static const template_marks gemma = {
        .name = "Gemma 4", .text = GEMMA_LEAST(""),
        .marks = {{"<|im_start|>", "<|turn>"}, {"<|im_end|>", "<turn|>"}, {"<think>", "<|channel>"}, {"</think>", "<channel|>"},
                  {"<tool_call>", "<|tool_call>"}, {"</tool_call>", "<tool_call|>"}, {"<tool_response>", "<|tool_response>"},
                  {"</tool_response>", "<tool_response|>"}, {"<|fim_prefix|>", "<|\\\"|>"}, {"<|box_start|>", "<|tool>"},
                  {"<|box_end|>", "<tool|>"}, {"<|quad_start|>", "<|think|>"}, {"<|quad_end|>", "<bos>"}},
        .thinking = LEFT_OUT};
    test_template(&gemma, scripts);
#undef ADDS
}

int main(int argc, char **argv) {
    test_main_begin("templates", argc, argv);
    if (!temp_open()) return test_main_end();
    for (int i = 0; i < TEMPLATES; i++) {
        const template_marks *f = &templates[i];
        char text[256], call[512], cut[512];
        snprintf(text, sizeof text, "%sHmm, one.</think>%sIt is 1.", f->before, f->after);
        snprintf(call, sizeof call, "%sA call, then.</think>%sI add.%s%s%s", f->before, f->after, f->calls_begin, f->call, f->calls_end);
        snprintf(cut, sizeof cut, "%sA call, then.</think>%sI add.%s%.*s", f->before, f->after, f->calls_begin, (int)(strchr(f->call, '1') - f->call), f->call);
        const char *const scripts[] = {text, call, cut};
        test_template(f, scripts);
    }
    test_gemma();
    temp_close();
    return test_main_end();
}
