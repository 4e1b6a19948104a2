// Tests of what mote serve knows of a history, with a plain template: an answer comes back as text, which seldom becomes the tokens that the model had said. A
// parrot's pieces are never what the tokenizer makes of their text. Prompts of many turns with models/demo: test_serve.c.

#include "client.h"
#include "parrot.h"

enum { FOX, CODE, MARKS, WORDS, SCRIPTS };
static const char *const scripts[SCRIPTS] = {"The fox jumps over the lazy dog, and then it sleeps for a while.",
                                             "Here:\n\n```c\nint main(void) {\n\treturn 0;\n}\n```\n\nCaf\xc3\xa9 \xe2\x98\x83 done.",
                                             "It begins <|im_start|>user and it ends.",
                                             "The weights of the experts are read from memory, and their bandwidth decides how many tokens a model generates"};
static const char chatml[] = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
                             "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
static int32_t starts[SCRIPTS];
static char arguments[600];

#define SAID(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
static const char *const chat_path = "/v1/chat/completions";

typedef struct turn { char text[2048]; long prompt, all; } turn;       // as JSON has it; tokens of the prompt, and with the answer

// The first answer to a question: `most` tokens that begin with `start`.
static turn first(server s, const char *question, int32_t start, int most) {
    static turn t;
    char body[1024];
    snprintf(body, sizeof body, "{\"messages\": [" SAID("user", "%s") "], \"logit_bias\": {\"%d\": 100}, \"temperature\": 0, \"max_tokens\": %d}", question,
             start, most);
    heard h = post(s, chat_path, body);
    CHECK(h.status == 200, "%d %s", h.status, h.body);
    t.text[0] = 0;
    join(h.body, "content", t.text, sizeof t.text);
    t.prompt = number(&h, "prompt_tokens");
    t.all = t.prompt + number(&h, "completion_tokens");
    forget(&h);
    return t;
}

// The history with an answer, to which the user says `next`.
static const char *history(const char *question, const char *answer, const char *next) {
    static char list[8192];
    snprintf(list, sizeof list, "[" SAID("user", "%s") ", " SAID("assistant", "%s") ", " SAID("user", "%s") "]", question, answer, next);
    return list;
}

static heard ask(server s, const char *path, const char *list, const char *more) {
    static char body[1 << 14];
    snprintf(body, sizeof body, "{\"%s\": %s%s}", !strcmp(path, "/v1/responses") ? "input" : "messages", list, more);
    return post(s, path, body);
}

// Tokens of a chat's prompt as the tokenizer makes them, and their list in `ids`.
static long tokenized(server s, const char *list, char *ids, size_t capacity) {
    heard h = ask(s, "/tokenize", list, "");
    const char *from = strchr(h.body, '['), *to = from ? strchr(from, ']') : NULL;
    if (CHECK(to && (size_t)(to - from) + 2 < capacity, "%s", h.body)) snprintf(ids, capacity, "%.*s", (int)(to + 1 - from), from);
    long n = number(&h, "count");
    forget(&h);
    return n;
}

// All APIs know the answer, whose tokens stay those that the model has said.
static void test_apis(server s) {
    static const struct { const char *path, *more, *cached; } apis[] = {
        {"/v1/chat/completions", ", \"max_tokens\": 1", "cached_tokens"}, {"/v1/messages", ", \"max_tokens\": 1", "cache_read_input_tokens"},
        {"/v1/responses", ", \"max_output_tokens\": 1", "cached_tokens"}};
    char question[64], ids[1 << 14];
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < SCRIPTS; k++) {
            snprintf(question, sizeof question, "Question %d of %d", k, i);
            turn t = first(s, question, starts[k], 400);
            const char *list = history(question, t.text, "Thanks");
            heard h = ask(s, apis[i].path, list, apis[i].more);
            long cached = number(&h, apis[i].cached), sent = tokenized(s, list, ids, sizeof ids);
            CHECK(h.status == 200 && cached >= t.all, "%s, script %d: of %ld tokens %ld were known: %s", apis[i].path, k, t.all, cached, h.body);
            CHECK(t.all > t.prompt + 5 && sent != t.all + 12, "no test: %ld tokens of %ld", t.all, sent);
            forget(&h);
        }
}

// What begins alike and is another text is no answer of the model's.
static void test_others(server s) {
    turn t = first(s, "What else?", starts[FOX], 400);
    char *at = strstr(t.text, "lazy"), ids[1 << 14];
    if (!CHECK(at != NULL, "%s", t.text)) return;
    memcpy(at, "lame", 4);
    const char *list = history("What else?", t.text, "Thanks");
    heard h = ask(s, chat_path, list, ", \"max_tokens\": 1");
    CHECK(h.status == 200 && number(&h, "cached_tokens") < t.prompt && number(&h, "prompt_tokens") == tokenized(s, list, ids, sizeof ids),
          "another text: %s", h.body);
    forget(&h);
    t = first(s, "What now?", starts[FOX], 400);
    h = ask(s, chat_path, history("What now?", t.text, "Thanks"), ", \"max_tokens\": 1, \"cache_prompt\": false");
    CHECK(number(&h, "cached_tokens") == 0, "nothing known is wanted: %s", h.body);
    forget(&h);
}

// A control token that the model says is no text that names it.
static void test_control(server s) {
    heard h = post(s, "/tokenize", "{\"prompt\": \"<tool_response>\"}");
    const char *id = strchr(h.body, '[');
    turn t = first(s, "What do you see?", id ? atoi(id + 1) : 0, 3);
    CHECK(number(&h, "count") == 1 && strstr(t.text, "<tool_response>") && t.all == t.prompt + 3, "%s: %s", h.body, t.text);
    forget(&h);
    h = ask(s, chat_path, history("What do you see?", t.text, "Thanks"), ", \"max_tokens\": 1");
    CHECK(h.status == 200 && number(&h, "cached_tokens") < t.prompt, "control tokens: %s", h.body);
    forget(&h);
}

// Token ids that somebody has sent are what is read, and part of nobody's chat.
static void test_ids(server s) {
    static char body[1 << 15], ids[1 << 14];
    turn t = first(s, "What then?", starts[FOX], 400);
    long n = tokenized(s, history("What then?", t.text, "Thanks"), ids, sizeof ids);
    snprintf(body, sizeof body, "{\"prompt\": %s, \"max_tokens\": 1}", ids);
    heard h = post(s, "/v1/completions", body);
    CHECK(h.status == 200 && number(&h, "prompt_tokens") == n && number(&h, "cached_tokens") < t.prompt, "ids: %s", h.body);
    forget(&h);
    char begin[512], end[512];                             // "went" in two tokens, where the tokenizer makes others
    static const char *const parts[] = {"{\"prompt\": \"<|im_start|>user\\nThey we\"}", "{\"prompt\": \"nt<|im_end|>\\n\"}"};
    for (int i = 0; i < 2; i++) {
        h = post(s, "/tokenize", parts[i]);
        char *list = strchr(h.body, '['), *stop = list ? strchr(list, ']') : NULL;
        if (!CHECK(stop != NULL, "%s", h.body)) return;
        snprintf(i ? end : begin, 512, "%.*s", (int)(stop - list - 1), list + 1);
        forget(&h);
    }
    snprintf(body, sizeof body, "{\"prompt\": [%s, %s], \"max_tokens\": 0}", begin, end);
    h = post(s, "/v1/completions", body);
    CHECK(h.status == 200, "%s", h.body);
    forget(&h);
    n = tokenized(s, "[" SAID("user", "They went") "]", ids, sizeof ids);
    ids[strlen(ids) - 1] = 0;
    CHECK(!strstr(ids, begin) || !strstr(ids, end), "no test: the tokenizer cuts it so as well: %s", ids);
    h = ask(s, chat_path, "[" SAID("user", "They went") "]", ", \"max_tokens\": 1");
    CHECK(h.status == 200 && number(&h, "cached_tokens") == 0 && number(&h, "prompt_tokens") == n, "a chat reads another's ids: %s", h.body);
    forget(&h);
}

// A conversation that had to leave its session comes back with its own tokens.
static void test_swapped(server s) {
    turn t = first(s, "The first of two conversations, which is to be long enough to be worth some memory", starts[CODE], 400);
    long swapped_out = metric(s, "shelved_timelines");
    (void)first(s, "The second one", starts[FOX], 400);
    CHECK(metric(s, "shelved_timelines") > swapped_out, "no test: it stays");
    heard h = ask(s, chat_path, history("The first of two conversations, which is to be long enough to be worth some memory", t.text, "Thanks"),
                  ", \"max_tokens\": 1");
    CHECK(h.status == 200 && number(&h, "cached_tokens") == t.all, "of %ld tokens: %s", t.all, h.body);
    forget(&h);
}

// Where the model's own tokens are too many for the context, those of the text are read.
static void test_full(server s) {
    static const char next[] = "And now something that is long enough to need more tokens than are saved by cutting the answer well";
    char ids[1 << 14], options[700];
    turn t = first(s, "Tell me", starts[WORDS], 400);
    const char *list = history("Tell me", t.text, next);
    long n = tokenized(s, list, ids, sizeof ids);
    heard h = ask(s, chat_path, list, ", \"max_tokens\": 1");
    long own = number(&h, "prompt_tokens");
    forget(&h);
    CHECK(own > n && n > t.all, "no test: %ld tokens, %ld own", n, own);
    snprintf(options, sizeof options, "%s --context %ld", arguments, n + 1);
    server small = serve(options);
    t = first(small, "Tell me", starts[WORDS], 400);
    h = ask(small, chat_path, history("Tell me", t.text, next), ", \"max_tokens\": 1");
    CHECK(h.status == 200 && number(&h, "prompt_tokens") == n && number(&h, "cached_tokens") < t.prompt, "%ld tokens: %s", n, h.body);
    forget(&h);
    stop(small);
}

// What the template cannot do is no capability of the server's.
static void test_capabilities(server s) {
    heard h = get(s, "/v1/models");
    CHECK(strstr(h.body, "\"parallel\": 1, \"capabilities\": {\"chat\": true, \"enable_thinking\": false, \"reasoning_effort\": false, \"tools\": false, \"images\": false}}"),
          "%s", h.body);
    forget(&h);
}

int main(int argc, char **argv) {
    char path[600];
    test_main_begin("cache", argc, argv);
    if (!temp_open()) return test_main_end();
    parrot_make(temp_dir, scripts, SCRIPTS, 3, NULL, starts);
    snprintf(path, sizeof path, "%s/chat_template.jinja", temp_dir);
    write_bytes(path, chatml, sizeof chatml - 1);
    snprintf(arguments, sizeof arguments, "-m %s --device cpu --parallel 1", temp_dir);
    server s = serve(arguments);
    test_capabilities(s);
    test_apis(s);
    test_others(s);
    test_control(s);
    test_ids(s);
    test_swapped(s);
    test_full(s);
    stop(s);
    temp_close();
    return test_main_end();
}
