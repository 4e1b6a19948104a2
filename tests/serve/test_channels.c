// Tests of mote serve with answers whose messages name their channels (gpt-oss): what each API makes of thinking, text and calls, and
// what it asks of the template. Parrots say what a model would; each mark stands in a script once, as a parrot knows one successor.
//
// Usage: test_channels [--brief]

#include "engine.h"
#include "client.h"
#include "parrot.h"
#include "harmony.h"

static const char chat_path[] = "/v1/chat/completions", messages_path[] = "/v1/messages", responses_path[] = "/v1/responses";

static const char *const thinking_script[] = {"<|channel|>", "analysis", "<|message|>", "I think of it.", "<|end|>", "Hello there, that is all.", "<|return|>", NULL};
static const char *const calling_script[] = {"<|channel|>", "commentary to=functions.read ", "<|constrain|>", "json", "<|message|>", "{\"path\": \"a.txt\"}", "<|call|>", NULL};

static int32_t mark_id(const char *text) {
    static const char *const marks[] = {"<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|return|>"};
    for (int i = 0; i < 7; i++)
        if (!strcmp(marks[i], text)) return 4064 + i;
    return -1;
}

// A parrot of one script, which begins with <|channel|>.
static void channels_parrot(const char *const *script) {
    parrot_chain *p = (parrot_chain *)allocate(sizeof *p);
    size_t size;
    int last = -1;
    char *tokenizer = file_bytes("models/demo/tokenizer.json", &size);
    if (!CHECK(tokenizer != NULL, "run this from the top of the repository")) exit(test_main_end());
    p->words = (char *)allocate(1 << 14);
    for (; *script; script++) {
        const int32_t mark = mark_id(*script);
        const int begins = p->count;
        if (mark < 0) (void)parrot_script(p, tokenizer, *script, 5);
        else p->from[p->count++] = mark;
        if (last >= 0) p->to[last] = mark < 0 ? PARROT_WORDS + begins : mark;
        last = p->count - 1;
    }
    p->to[last] = PARROT_END;                               // nothing follows the last mark, which ends the answer
    const int vocab = PARROT_WORDS + p->count, hidden = (p->count + 4 + 63) / 64 * 64;
    temp_empty();
    parrot_tokenizer(temp_dir, p, tokenizer, size);
    parrot_weights(temp_dir, p, vocab, hidden);
    parrot_config(temp_dir, vocab, hidden);
    CHECK(harmony_chats() && harmony_rename("tokenizer.json"), "marks");
    free(tokenizer);
    free(p->words);
    free(p);
}

static heard ask_channels(server s, const char *path, const char *more) {
    char body[4096];
    const char *input = strcmp(path, responses_path) ? "messages" : "input", *most = strcmp(path, responses_path) ? "max_tokens" : "max_output_tokens";
    snprintf(body, sizeof body, "{\"%s\": [{\"role\": \"user\", \"content\": \"go\"}], \"logit_bias\": {\"4066\": 100}, \"%s\": 200%s%s}", input, most,
             *more ? ", " : "", more);
    return post(s, path, body);
}

static void check_channels_of(server s, const char *path, const char *more, const char *const *holds, const char *lacks) {
    heard h = ask_channels(s, path, more);
    CHECK(h.status == 200, "%s: %d %s", path, h.status, h.body);
    for (; *holds; holds++) CHECK(strstr(h.body, *holds), "%s, %s: %s lacks '%s'", path, more, h.body, *holds);
    CHECK(!strstr(h.body, lacks), "%s, %s: %s holds '%s'", path, more, h.body, lacks);
    forget(&h);
}

#define THINKS "\"thinking\": {\"type\": \"adaptive\"}"
static void test_thinking_channels(server s) {
    check_channels_of(s, chat_path, "", (const char *[]){"\"reasoning_content\": \"I think of it.", "\"content\": \"Hello there, that is all.", "\"stop\"", NULL}, "analysis");
    check_channels_of(s, chat_path, "\"stream\": true", (const char *[]){"reasoning_content", "\"content\"", "\"finish_reason\": \"stop\"", "[DONE]", NULL}, "analysis");
    check_channels_of(s, responses_path, "", (const char *[]){"\"reasoning_text\"", "I think of it.", "\"output_text\"", "Hello there, that is all.", NULL}, "analysis");
    check_channels_of(s, messages_path, THINKS, (const char *[]){"\"thinking\": \"I think of it.", "\"text\": \"Hello there, that is all.", "\"end_turn\"", NULL}, "analysis");
    check_channels_of(s, messages_path, THINKS ", \"stream\": true", (const char *[]){"thinking_delta", "text_delta", "\"end_turn\"", NULL}, "analysis");
    // a schema, a required call: the channel and the header are the mask's
    check_channels_of(s, chat_path, "\"thinking_budget\": 4, \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"enum\": [7]}}}",
                      (const char *[]){"\"content\": \"7\"", NULL}, "final");
    check_channels_of(s, chat_path, "\"thinking_budget\": 4, \"tool_choice\": \"required\", \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": "
                      "{\"type\": \"object\", \"properties\": {}, \"additionalProperties\": false}}}]",
                      (const char *[]){"\"name\": \"f\"", "\"tool_calls\"", NULL}, "commentary");
}

#define PATH "\"properties\": {\"path\": {\"type\": \"string\"}}"
static void test_calling_channels(server s) {
    static const char tools[] = "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"read\", \"parameters\": {\"type\": \"object\", " PATH "}}}]";
    static const char flat[] = "\"tools\": [{\"type\": \"function\", \"name\": \"read\", \"parameters\": {\"type\": \"object\", " PATH "}}]";
    static const char anthropic[] = "\"tools\": [{\"name\": \"read\", \"input_schema\": {\"type\": \"object\", " PATH "}}]";
    char more[512];
    check_channels_of(s, chat_path, tools, (const char *[]){"\"name\": \"read\"", "\\\"path\\\": \\\"a.txt\\\"", "\"finish_reason\": \"tool_calls\"", NULL}, "commentary");
    snprintf(more, sizeof more, "%s, \"stream\": true", tools);
    check_channels_of(s, chat_path, more, (const char *[]){"\"name\": \"read\"", "a.txt", "\"finish_reason\": \"tool_calls\"", NULL}, "commentary");
    check_channels_of(s, responses_path, flat, (const char *[]){"\"function_call\"", "\"name\": \"read\"", "a.txt", NULL}, "commentary");
    check_channels_of(s, messages_path, anthropic, (const char *[]){"\"tool_use\"", "\"name\": \"read\"", "\"path\": \"a.txt\"", NULL}, "commentary");
    check_channels_of(s, chat_path, "", (const char *[]){"<|channel|>commentary to=functions.read", "\"stop\"", NULL}, "\"tool_calls\"");      // no tools: text
}

// What a request asks of the template, as its prompt shows: efforts, thinking of earlier answers, results by their calls.
static void test_channel_prompts(server s) {
    static const struct { const char *body, *holds, *lacks; } asked[] = {
        {"\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]", "Reasoning: medium", "# Tools"},
        {"\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"reasoning_effort\": \"high\"", "Reasoning: high", "medium"},
        {"\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"reasoning_effort\": \"none\"", "Reasoning: low", "medium"},
        {"\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"chat_template_kwargs\": {\"reasoning_effort\": \"low\"}", "Reasoning: low", "medium"},
        {"\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\", \"reasoning_content\": \"c\"}, {\"role\": \"user\", "
         "\"content\": \"d\"}]", "<|channel|>final<|message|>b<|end|>", "analysis<|message|>"},
        {"\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": null, \"reasoning_content\": \"c\", \"tool_calls\": [{\"id\": \"x\", "
         "\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{}\"}}]}, {\"role\": \"tool\", \"tool_call_id\": \"x\", \"content\": \"noon\"}]",
         "<|channel|>analysis<|message|>c<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|><|start|>functions.f to=assistant"
         "<|channel|>commentary<|message|>\\\"noon\\\"<|end|><|start|>assistant", "final<|message|>"},
    };
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        char body[2048], ids[1 << 16], *text = ids;
        snprintf(body, sizeof body, "{%s}", asked[i].body);
        heard h = post(s, "/tokenize", body);
        const char *from = strchr(h.body, '['), *end = from ? strchr(from, ']') : NULL;
        if (!CHECK(h.status == 200 && end, "/tokenize %s: %d %s", body, h.status, h.body)) continue;
        snprintf(ids, sizeof ids, "{\"tokens\": %.*s}", (int)(end + 1 - from), from);
        heard said = post(s, "/detokenize", ids);
        snprintf(text, sizeof ids, "%s", said.body);
        CHECK(strstr(text, asked[i].holds) && !strstr(text, asked[i].lacks), "%s: %s", asked[i].body, text);
        forget(&said);
        forget(&h);
    }
    heard h = get(s, "/v1/models");
    CHECK(strstr(h.body, "\"capabilities\": {\"chat\": true, \"enable_thinking\": false, \"reasoning_effort\": true, \"tools\": true, \"images\": false}"), "%s", h.body);
    forget(&h);
}

int main(int argc, char **argv) {
    char arguments[256];
    test_main_begin("channels", argc, argv);
    if (!temp_open()) return test_main_end();
    snprintf(arguments, sizeof arguments, "-m %s --device cpu --context 4096", temp_dir);
    channels_parrot(thinking_script);
    server s = serve(arguments);
    test_thinking_channels(s);
    test_channel_prompts(s);
    stop(s);
    channels_parrot(calling_script);
    s = serve(arguments);
    test_calling_channels(s);
    stop(s);
    temp_close();
    return test_main_end();
}
