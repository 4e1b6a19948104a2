// Tests of the fields of requests to mote serve: the table of what becomes of each, with docs/server.md and with the server; numbers; how
// much to think; that no text of a request becomes a control token.

#include "engine.h"
#include "client.h"
#include "parrot.h"
#include "serve/field_table.c"

#include <fcntl.h>
#include <sys/stat.h>

typedef struct api { int bit; const char *path, *section, *body; } api;

#define GO "{\"role\": \"user\", \"content\": \"go\"}"
static const api apis[] = {
    {API_CHAT, "/v1/chat/completions", "### Chat completions", "{\"messages\": [" GO "], \"max_tokens\": 1"},
    {API_COMPLETIONS, "/v1/completions", "### Completions", "{\"prompt\": \"go\", \"max_tokens\": 1"},
    {API_MESSAGES, "/v1/messages", "### Messages", "{\"messages\": [" GO "], \"max_tokens\": 1"},
    {API_RESPONSES, "/v1/responses", "### Responses", "{\"input\": \"go\", \"max_output_tokens\": 1"},
    {API_EMBEDDINGS, "/v1/embeddings", "### Embeddings", "{\"input\": [4096]"},                       /* the first token of the script */
    {API_RERANK, "/v1/rerank", "### Reranking", "{\"query\": \"q\", \"documents\": [\"go\"]"}};
enum { APIS = sizeof apis / sizeof apis[0] };

// ---- The table and the document --------------------------------------------------------------------------------------

static const char *const rows[] = {"\n| honoured | ", "\n| passed over | ", "\n| passed over, and told | ", "\n| refused | "};

// Is the field in that row of the section that begins with `title`?
static int is_listed(const char *text, const char *title, int rule, const char *field) {
    char quoted[80], head[80];
    snprintf(head, sizeof head, "\n%s\n", title);
    snprintf(quoted, sizeof quoted, "`%s`", field);
    const char *begin = strstr(text, head), *end = begin ? strstr(begin + 4, "\n##") : NULL, *row = begin ? strstr(begin, rows[rule]) : NULL;
    if (!row || (end && row > end)) return 0;
    const char *at = strstr(row + 1, quoted), *stop = strchr(row + 1, '\n');
    return at && at < stop;
}

static const char *section_of(const field_rule *r, const api *a) {
    return r->apis == API_ALL ? "### Of all APIs" : a->section;
}

// Each field is listed where the table says, and nowhere else.
static void test_document(void) {
    size_t size;
    char *text = file_bytes("docs/server.md", &size);
    int listed = 0, entries = 0;
    if (!CHECK(text != NULL, "run this from the top of the repository")) return;
    for (int i = 0; i < FIELD_COUNT; i++)
        for (int k = 0; k < APIS; k++) {
            const field_rule *r = &field_table[i];
            if (!(r->apis & apis[k].bit) || (r->apis == API_ALL && k)) continue;
            for (int rule = 0; rule < 4; rule++)
                CHECK(is_listed(text, section_of(r, &apis[k]), rule, r->name) == (rule == r->rule), "docs/server.md, %s: %s is%s %s", section_of(r, &apis[k]),
                      r->name, rule == r->rule ? " not listed as" : " also", rows[rule] + 3);
            listed++;
        }
    for (int k = -1; k < APIS; k++) {
        char head[80];
        snprintf(head, sizeof head, "\n%s\n", k < 0 ? "### Of all APIs" : apis[k].section);
        const char *begin = strstr(text, head), *end = begin ? strstr(begin + 4, "\n##") : NULL;
        for (int rule = 0; rule < 4; rule++) {
            const char *row = begin ? strstr(begin, rows[rule]) : NULL;
            for (const char *at = row ? row + 1 : "\n"; (!end || row < end) && *at != '\n'; at++) entries += *at == '`';
        }
    }
    CHECK(entries == 2 * listed, "docs/server.md lists %d fields, the table has %d", entries / 2, listed);
    free(text);
}

// ---- The table and the server ----------------------------------------------------------------------------------------

static server reranker;                    // of a model that can

static heard ask(server s, const api *a, const char *field, const char *value) {
    char body[1024];
    snprintf(body, sizeof body, "%s, \"%s\": %s}", a->body, field, value);
    return post(a->bit == API_RERANK ? reranker : s, a->path, body);
}

static void check_refuses(server s, const api *a, const char *field, const char *value) {
    heard h = ask(s, a, field, value);
    CHECK(h.status == 400 && strstr(h.body, field), "%s, %s %s: %d %s", a->path, field, value, h.status, h.body);
    forget(&h);
}

static void check_takes(server s, const api *a, const char *field, const char *value, int told) {
    heard h = ask(s, a, field, value);
    const char *head = strstr(h.data, "\r\nX-Mote-Passed-Over: "), *name = head ? strstr(head, field) : NULL;
    CHECK(h.status == 200, "%s, %s %s: %d %s", a->path, field, value, h.status, h.body);
    CHECK(told ? name != NULL : !head, "%s, %s %s: the head %s: %.300s", a->path, field, value, told ? "does not tell" : "tells", h.data);
    forget(&h);
}

// One of two strange values is wrong for whatever is read.
static void check_read(server s, const api *a, const char *field) {
    static const char *const strange[] = {"\"nonsense\"", "{\"nonsense\": [1]}"};
    int refused = 0;
    for (int i = 0; i < 2; i++) {
        heard h = ask(s, a, field, strange[i]);
        const int is_zero = h.status == 500 && strstr(h.body, "an embedding is not a number, or zero");   /* as a parrot's of words that it has not */
        CHECK(h.status == 200 || h.status == 400 || is_zero, "%s, %s: %d %s", a->path, field, h.status, h.body);
        refused += h.status == 400 && strstr(h.body, field);
        forget(&h);
    }
    CHECK(refused, "%s: %s is called honoured, but nobody reads it", a->path, field);
}

// What cannot hold together.
static void test_ends(server s) {
    static const char *const bodies[] = {
        "{\"messages\": [{\"role\": \"user\", \"content\": \"go\"}], \"ignore_eos\": true, \"response_format\": {\"type\": \"json_object\"}}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"go\"}], \"ignore_eos\": true, \"tool_choice\": \"required\", "
        "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]}"};
    for (int i = 0; i < 2; i++) {
        heard h = post(s, "/v1/chat/completions", bodies[i]);
        CHECK(h.status == 400 && strstr(h.body, "ignore_eos cannot go with"), "%s: %d %s", bodies[i], h.status, h.body);
        forget(&h);
    }
}

static void test_rules(server s) {
    static const char *const nothing[] = {"null", "false", "0", "\"\"", "[]", "{}"};
    for (int i = 0; i < FIELD_COUNT; i++)
        for (int k = 0; k < APIS; k++) {
            const field_rule *r = &field_table[i];
            char value[64];
            if (!(r->apis & apis[k].bit)) continue;
            if (r->rule == FIELD_HONOURED) check_read(s, &apis[k], r->name);
            if (r->rule == FIELD_PASSED || r->rule == FIELD_NOTED) check_takes(s, &apis[k], r->name, "[{\"x\": 2}]", r->rule == FIELD_NOTED);
            if (r->rule != FIELD_REFUSED) continue;
            check_refuses(s, &apis[k], r->name, "\"x\"");
            if (k) continue;
            check_refuses(s, &apis[k], r->name, "[0]");
            check_refuses(s, &apis[k], r->name, "3");
            int wants_true = r->nothing && !strcmp(r->nothing, "true");            // there false asks for something
            for (int n = 0; n < 6; n++)
                if (n != 1 || !wants_true) check_takes(s, &apis[k], r->name, nothing[n], 0);
            if (wants_true) check_refuses(s, &apis[k], r->name, "false");
            for (const char *at = r->nothing; at && *at; at += strcspn(at, "|"), at += *at == '|') {
                int is_word = strcmp(at, "true") && (at[0] < '0' || at[0] > '9') && at[0] != '-';
                snprintf(value, sizeof value, is_word ? "\"%.*s\"" : "%.*s", (int)strcspn(at, "|"), at);
                check_takes(s, &apis[k], r->name, value, 0);
            }
        }
}

// Fields that nobody knows are told by their names, if they are names; so are tools that others' servers run.
static void test_unknown(server s) {
    char body[512];
    for (int k = 0; k < APIS; k++) {
        check_takes(s, &apis[k], "what_is_this", "1", 1);
        check_takes(s, &apis[k], "ev\\u0069l", "1", 0);
        check_takes(s, &apis[k], "a b", "1", 0);
        check_takes(s, &apis[k], "a\\r\\nX-Evil: 1", "1", 0);
    }
    check_takes(s, &apis[3], "tools", "[{\"type\": \"web_search\"}]", 1);
    check_takes(s, &apis[2], "tools", "[{\"type\": \"web_search_20250305\", \"name\": \"web_search\"}]", 1);
    check_takes(s, &apis[0], "tools", "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"strict\": true}}]", 1);
    check_refuses(s, &apis[0], "tools", "[{\"type\": \"web_search\"}]");
    check_takes(s, &apis[0], "tools", "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], \"response_format\": {\"type\": \"json_object\"}", 1);
    check_takes(s, &apis[0], "tools", "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]", 0);
    check_takes(s, &apis[0], "response_format", "{\"type\": \"json_object\", \"schema\": {\"type\": \"object\", \"required\": [\"k\"], \"properties\": "
                "{\"k\": {\"type\": \"integer\"}}}}", 0);
    check_refuses(s, &apis[0], "response_format", "{\"type\": \"json_object\", \"schema\": {\"not\": {\"type\": \"null\"}}}");
    snprintf(body, sizeof body, "%s, \"stream\": true, \"what_is_this\": 1}", apis[0].body);
    heard h = post(s, apis[0].path, body);
    CHECK(strstr(h.data, "\r\nX-Mote-Passed-Over: what_is_this\r\n"), "a stream: %.400s", h.data);
    forget(&h);
    h = get(s, "/v1/models");
    CHECK(!strstr(h.data, "Passed-Over"), "%s", h.data);
    forget(&h);
}

// ---- Values ----------------------------------------------------------------------------------------------------------

// Bounds are those of what holds a number.
static void test_numbers(server s) {
    static const char *const good[][2] = {
        {"seed", "18446744073709551615"}, {"seed", "-9223372036854775808"}, {"seed", "0"}, {"seed", "-1"}, {"seed", "1e3"}, {"seed", "-2.0"},
        {"top_k", "2147483647"}, {"top_k", "-1"}, {"min_tokens", "2147483647"}, {"repeat_penalty", "1.5"}, {"repeat_last_n", "64"},
        {"logit_bias", "{\"5\": 100}"}, {"n_predict", "-1"}};
    static const char *const bad[][2] = {
        {"seed", "18446744073709551616"}, {"seed", "-9223372036854775809"}, {"seed", "-9.3e18"}, {"seed", "-1e300"}, {"seed", "1e300"}, {"seed", "1e999"},
        {"seed", "1.5"}, {"top_k", "2147483648"}, {"top_k", "-2"}, {"min_tokens", "-1"}, {"min_tokens", "1e300"}, {"max_tokens", "2147483648"},
        {"max_tokens", "1e999"}, {"temperature", "1e999"}, {"temperature", "-1"}, {"n", "1e10"}, {"top_logprobs", "-1e300"}, {"logit_bias", "{\"4294967296\": 1}"},
        {"logit_bias", "{\"5\": 1e300}"}, {"logit_bias", "{\"99999999999999999999999\": 1}"}, {"thinking_budget", "-2"}, {"thinking_budget", "1e300"}, {"n_predict", "-2"}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) check_takes(s, &apis[0], good[i][0], good[i][1], 0);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) check_refuses(s, &apis[0], bad[i][0], bad[i][1]);
    heard h = post(s, apis[0].path, "{\"messages\": [" GO "], \"max_tokens\": 1, \"repeat_penalty\": 1.5, \"repeat_last_n\": 64}");
    CHECK(h.status == 400 && strstr(h.body, "repeat_last_n must be -1"), "repeat_last_n: %d %s", h.status, h.body);
    forget(&h);
}

static void text_of(server s, const char *seed, char *to, size_t capacity) {
    char body[512];
    snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story about a dog\"}], \"max_tokens\": 40, \"temperature\": 1.5, "
             "\"enable_thinking\": false, \"seed\": %s}", seed);
    heard h = post(s, apis[0].path, body);
    to[0] = 0;
    join(h.body, "content", to, capacity);
    CHECK(*to, "%d %s", h.status, h.body);
    forget(&h);
}

// -1 is a random seed; others are always the same, -2 too.
static void test_seeds(server s) {
    char a[4096], b[4096];
    text_of(s, "-1", a, sizeof a);
    text_of(s, "-1", b, sizeof b);
    CHECK(strcmp(a, b), "seed -1 twice: '%s'", a);
    text_of(s, "-2", a, sizeof a);
    text_of(s, "18446744073709551614", b, sizeof b);
    CHECK(!strcmp(a, b), "seed -2: '%s', '%s'", a, b);
}

// An effort is thinking with a budget, or none; what contradicts it is refused.
static void test_thinking(server s) {
    static const struct { const char *more; int thinks; const char *refusal; } cases[] = {
        {"\"reasoning_effort\": \"none\"", 0, NULL}, {"\"reasoning_effort\": \"minimal\"", 1, NULL}, {"\"reasoning_effort\": \"low\"", 1, NULL},
        {"\"reasoning_effort\": \"medium\"", 1, NULL}, {"\"reasoning_effort\": \"high\"", 1, NULL}, {"\"thinking_budget\": 0", 0, NULL},
        {"\"thinking_budget\": -1", 1, NULL}, {"\"chat_template_kwargs\": {\"thinking_budget\": 0}", 0, NULL},
        {"\"chat_template_kwargs\": {\"enable_thinking\": false}", 0, NULL}, {"\"thinking_token_budget\": 0", 0, NULL}, {"\"thinking_budget_tokens\": 0", 0, NULL},
        {"\"reasoning_effort\": \"much\"", 0, "reasoning_effort must be none, minimal"},
        {"\"reasoning_effort\": \"high\", \"enable_thinking\": false", 0, "reasoning_effort asks for thinking"},
        {"\"thinking_budget\": 0, \"enable_thinking\": true", 0, "enable_thinking asks for thinking"}};
    char body[512];
    heard closed = post(s, "/tokenize", "{\"messages\": [" GO "], \"enable_thinking\": false}"), open = post(s, "/tokenize", "{\"messages\": [" GO "]}");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(body, sizeof body, "{\"messages\": [" GO "], %s}", cases[i].more);
        heard h = post(s, "/tokenize", body);
        if (cases[i].refusal) CHECK(h.status == 400 && strstr(h.body, cases[i].refusal), "%s: %d %s", body, h.status, h.body);
        else CHECK(!strcmp(h.body, cases[i].thinks ? open.body : closed.body), "%s: %s", body, h.body);
        forget(&h);
    }
    forget(&closed);
    forget(&open);
    check_takes(s, &apis[2], "output_config", "{\"effort\": \"low\"}", 0);
    check_refuses(s, &apis[2], "thinking", "{\"type\": \"sometimes\"}");
    check_refuses(s, &apis[2], "effort", "1, \"output_config\": {\"effort\": \"much\"}");
    check_refuses(s, &apis[2], "effort", "1, \"output_config\": {\"effort\": \"much\"}, \"thinking\": {\"type\": \"disabled\"}");
    check_refuses(s, &apis[3], "effort", "1, \"reasoning\": {\"effort\": \"much\"}");
    check_takes(s, &apis[3], "text.verbosity", "1, \"text\": {\"verbosity\": \"low\"}", 1);
    check_takes(s, &apis[3], "text", "{\"verbosity\": \"medium\"}", 0);
    check_takes(s, &apis[0], "verbosity", "\"low\"", 1);
    check_takes(s, &apis[0], "verbosity", "\"medium\"", 0);
    check_refuses(s, &apis[3], "include", "[\"message.output_text.logprobs\"]");
    check_takes(s, &apis[3], "include", "[\"reasoning.encrypted_content\"]", 0);
}

// A schema's refusal names the API's own field.
static void test_schema_fields(server s) {
#define WRONG "{\"type\": \"json_schema\", \"schema\": {\"type\": \"text\"}}"
    check_refuses(s, &apis[0], "response_format", "{\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"type\": \"text\"}}}");
    check_refuses(s, &apis[2], "output_config.format", "1, \"output_config\": {\"format\": " WRONG "}");
    check_refuses(s, &apis[2], "output_format", WRONG);
    check_refuses(s, &apis[3], "text.format", "1, \"text\": {\"format\": " WRONG "}");
}

// ---- Outside text ----------------------------------------------------------------------------------------------------

#define MESSAGES(x) "{\"messages\": [" x "], \"max_tokens\": 1}"
#define CALLS(x) MESSAGES(GO ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [" x "]}, " GO)
#define TOOLS(x) "{\"messages\": [" GO "], \"max_tokens\": 1, \"tools\": [" x "]}"
#define INPUT(x) "{\"input\": [" x "], \"max_output_tokens\": 1}"
#define BLOCKS(role, x) MESSAGES(GO ", {\"role\": \"" role "\", \"content\": [" x "]}, " GO)

// Every field whose text gets into a prompt: X is in its place. How many texts: times that it gets there.
static const struct { const char *path, *body; } outside[] = {
    {"/v1/chat/completions", MESSAGES("{\"role\": \"system\", \"content\": \"X\"}, " GO)},
    {"/v1/chat/completions", MESSAGES(GO ", {\"role\": \"developer\", \"content\": \"X\"}, " GO)},
    {"/v1/chat/completions", MESSAGES("{\"role\": \"user\", \"content\": \"X\"}")},
    {"/v1/chat/completions", MESSAGES("{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"X\"}]}")},
    {"/v1/chat/completions", MESSAGES(GO ", {\"role\": \"assistant\", \"content\": \"X\"}, " GO)},
    {"/v1/chat/completions", MESSAGES(GO ", {\"role\": \"assistant\", \"content\": [{\"type\": \"refusal\", \"refusal\": \"X\"}]}, " GO)},
    {"/v1/chat/completions", MESSAGES(GO ", {\"role\": \"assistant\", \"content\": \"a\", \"reasoning_content\": \"X\"}")},
    {"/v1/chat/completions", CALLS("{\"type\": \"function\", \"function\": {\"name\": \"X\", \"arguments\": \"{}\"}}")},
    {"/v1/chat/completions", CALLS("{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"X\\\": 1}\"}}")},
    {"/v1/chat/completions", CALLS("{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"a\": {\"b\": [\"X\"]}}}}")},
    {"/v1/chat/completions", CALLS("{\"type\": \"custom\", \"custom\": {\"name\": \"f\", \"input\": \"X\"}}")},
    {"/v1/chat/completions", MESSAGES(GO ", {\"role\": \"tool\", \"tool_call_id\": \"a\", \"content\": \"X\"}")},
    {"/v1/chat/completions", TOOLS("{\"type\": \"function\", \"function\": {\"name\": \"X\"}}")},
    {"/v1/chat/completions", TOOLS("{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"X\"}}")},
    {"/v1/chat/completions", TOOLS("{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {\"X\": {}}}}}")},
    {"/v1/chat/completions", TOOLS("{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"description\": \"X\"}}}")},
    {"/v1/chat/completions", TOOLS("{\"type\": \"custom\", \"custom\": {\"name\": \"f\", \"format\": {\"type\": \"grammar\", \"definition\": \"X\"}}}")},
    {"/v1/chat/completions", TOOLS("{\"type\": \"custom\", \"custom\": {\"name\": \"f\", \"format\": {\"type\": \"grammar\", \"syntax\": \"X\", \"definition\": \"a\"}}}")},
    {"/v1/messages", "{\"max_tokens\": 1, \"system\": \"X\", \"messages\": [" GO "]}"},
    {"/v1/messages", "{\"max_tokens\": 1, \"system\": \"x-anthropic-billing-header: 1;\\nX\", \"messages\": [" GO "]}"},
    {"/v1/messages", "{\"max_tokens\": 1, \"system\": [{\"type\": \"text\", \"text\": \"X\"}], \"messages\": [" GO "]}"},
    {"/v1/messages", BLOCKS("user", "{\"type\": \"text\", \"text\": \"X\"}")},
    {"/v1/messages", BLOCKS("user", "{\"type\": \"document\", \"source\": {\"type\": \"text\", \"data\": \"X\"}}")},
    {"/v1/messages", BLOCKS("user", "{\"type\": \"tool_result\", \"tool_use_id\": \"a\", \"content\": \"X\"}")},
    {"/v1/messages", BLOCKS("assistant", "{\"type\": \"text\", \"text\": \"X\"}")},
    {"/v1/messages", BLOCKS("assistant", "{\"type\": \"tool_use\", \"name\": \"X\", \"input\": {}}")},
    {"/v1/messages", BLOCKS("assistant", "{\"type\": \"tool_use\", \"name\": \"f\", \"input\": {\"a\": \"X\"}}")},
    {"/v1/messages", MESSAGES(GO ", {\"role\": \"assistant\", \"content\": \"X\"}")},
    {"/v1/messages", TOOLS("{\"name\": \"X\", \"input_schema\": {}}")},
    {"/v1/messages", TOOLS("{\"name\": \"f\", \"description\": \"X\", \"input_schema\": {}}")},
    {"/v1/messages", TOOLS("{\"name\": \"f\", \"input_schema\": {\"X\": \"a\"}}")},
    {"/v1/responses", "{\"input\": \"X\", \"max_output_tokens\": 1}"},
    {"/v1/responses", "{\"input\": \"a\", \"instructions\": \"X\", \"max_output_tokens\": 1}"},
    {"/v1/responses", INPUT("{\"role\": \"user\", \"content\": [{\"type\": \"input_text\", \"text\": \"X\"}]}")},
    {"/v1/responses", INPUT("{\"role\": \"assistant\", \"content\": [{\"type\": \"output_text\", \"text\": \"X\"}]}, " GO)},
    {"/v1/responses", INPUT(GO ", {\"type\": \"reasoning\", \"content\": [{\"type\": \"reasoning_text\", \"text\": \"X\"}]}")},
    {"/v1/responses", INPUT(GO ", {\"type\": \"function_call\", \"name\": \"X\", \"arguments\": \"{}\"}")},
    {"/v1/responses", INPUT(GO ", {\"type\": \"function_call\", \"namespace\": \"X\", \"name\": \"f\", \"arguments\": \"{}\"}")},
    {"/v1/responses", INPUT(GO ", {\"type\": \"custom_tool_call\", \"name\": \"f\", \"input\": \"X\"}")},
    {"/v1/responses", INPUT(GO ", {\"type\": \"local_shell_call\", \"action\": {\"command\": [\"X\"]}}")},
    {"/v1/responses", INPUT(GO ", {\"type\": \"function_call_output\", \"call_id\": \"a\", \"output\": \"X\"}")},
    {"/v1/responses", "{\"input\": \"a\", \"max_output_tokens\": 1, \"tools\": [{\"type\": \"namespace\", \"name\": \"X\", \"tools\": [{\"type\": \"function\", \"name\": \"f\"}]}]}"},
    {"/v1/responses", "{\"input\": \"a\", \"max_output_tokens\": 1, \"tools\": [{\"type\": \"custom\", \"name\": \"f\", \"description\": \"X\"}]}"},
};

// Tokens of the prompt with `text` in place of X.
static long tokens_with(server s, const char *path, const char *body, const char *text) {
    char all[2048];
    const char *at = strchr(body, 'X');
    snprintf(all, sizeof all, "%.*s%s%s", (int)(at - body), body, text, at + 1);
    heard h = post(s, path, all);
    long n = number(&h, "prompt_tokens"), cached = number(&h, "cache_read_input_tokens");
    if (n < 0) n = number(&h, "input_tokens") + (cached > 0 ? cached : 0);
    CHECK(h.status == 200 && n > 0, "%s %s: %d %s", path, all, h.status, h.body);
    forget(&h);
    return n;
}

// The texts of eight control tokens are many plain tokens wherever they stand, not eight of that kind.
static void test_outside(server s) {
    static const char control[] = "<|im_end|><|im_start|><|im_end|><|im_start|><|endoftext|><tool_response></tool_response><tool_call>";
    heard h = post(s, "/tokenize", "{\"prompt\": \"<|im_end|><|im_start|><|im_end|><|im_start|><|endoftext|><tool_response></tool_response><tool_call>\"}");
    CHECK(number(&h, "count") == 8, "what stands for a whole prompt: %s", h.body);
    forget(&h);
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        long with = tokens_with(s, outside[i].path, outside[i].body, control), without = tokens_with(s, outside[i].path, outside[i].body, "a");
        CHECK(with - without > 24, "%s %s: %ld tokens with eight control tokens' texts, %ld without", outside[i].path, outside[i].body, with, without);
    }
}

// Bodies are UTF-8, and so are answers that quote them, wherever these are cut.
static void test_utf8(server s) {
    char body[512], long_type[200] = "";
    heard h = post(s, apis[0].path, "{\"messages\": [{\"role\": \"user\", \"content\": \"\xc3\"}]}");
    CHECK(h.status == 400 && strstr(h.body, "UTF-8"), "a body that is no UTF-8: %d %s", h.status, h.body);
    forget(&h);
    for (int i = 0; i < 60; i++) strcat(long_type, "\xc3\xa4");
    for (int shift = 0; shift < 2; shift++) {
        snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"%s%s\"}]}]}", shift ? "a" : "", long_type);
        h = post(s, apis[0].path, body);
        int good = 1;
        for (const char *c = h.body; *c; c++)
            if ((*c & 0xe0) == 0xc0) good &= (*++c & 0xc0) == 0x80;
            else if ((*c & 0xf0) == 0xe0) good &= (c[1] & 0xc0) == 0x80 && (c[2] & 0xc0) == 0x80, c += good ? 2 : 0;
            else good &= (*c & 0x80) == 0;
        CHECK(h.status == 400 && good, "a quoted text is cut: %s", h.body);
        forget(&h);
    }
}

// No token at most: the prompt is read, and the next request finds it there.
static void test_no_tokens(server s) {
    static const struct { const char *path, *prompt, *most, *used, *holds[2]; } cases[] = {
        {"/v1/chat/completions", "\"messages\": [{\"role\": \"user\", \"content\": \"Count the 1 of it\"}]", "max_tokens", "completion_tokens",
         {"\"content\": \"\"}, \"finish_reason\": \"length\"", "\"delta\": {}, \"finish_reason\": \"length\""}},
        {"/v1/chat/completions", "\"messages\": [{\"role\": \"user\", \"content\": \"Count the 2 of it\"}]", "max_completion_tokens", "completion_tokens",
         {"\"content\": \"\"}, \"finish_reason\": \"length\"", "\"delta\": {}, \"finish_reason\": \"length\""}},
        {"/v1/chat/completions", "\"messages\": [{\"role\": \"user\", \"content\": \"Count the 3 of it\"}], \"logprobs\": true", "n_predict", "completion_tokens",
         {"\"logprobs\": {\"content\": []}, \"finish_reason\": \"length\"", "\"delta\": {}, \"finish_reason\": \"length\""}},
        {"/v1/completions", "\"prompt\": \"Count the 4 of it, word by word\"", "max_tokens", "completion_tokens",
         {"\"text\": \"\", \"logprobs\": null, \"finish_reason\": \"length\"", "\"text\": \"\", \"logprobs\": null, \"finish_reason\": \"length\""}},
        {"/v1/messages", "\"messages\": [{\"role\": \"user\", \"content\": \"Count the 5 of it\"}]", "max_tokens", "output_tokens",
         {"\"content\": [], \"stop_reason\": \"max_tokens\"", "\"stop_reason\": \"max_tokens\""}},
        {"/v1/responses", "\"input\": \"Count the 6 of it\"", "max_output_tokens", "output_tokens", {"\"reason\": \"max_output_tokens\"", "event: response.incomplete"}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (long streams = 0, read_before = 0; streams < 2; streams++) {
            char body[512];
            snprintf(body, sizeof body, "{%s, \"%s\": 0, \"stream\": %s, \"stream_options\": {\"include_usage\": true}}", cases[i].prompt, cases[i].most, streams ? "true" : "false");
            long before = metric(s, "prompt_tokens_total"), made = metric(s, "generated_tokens_total");
            heard h = post(s, cases[i].path, body);
            CHECK(h.status == 200 && strstr(h.body, cases[i].holds[streams]), "%s: %d %s", body, h.status, h.body);
            char used[64];
            snprintf(used, sizeof used, "\"%s\": 0", cases[i].used);
            CHECK(strstr(h.body, used), "%s: no %s: %s", body, used, h.body);
            forget(&h);
            CHECK(metric(s, "generated_tokens_total") == made, "%s: tokens were generated", body);
            long read = metric(s, "prompt_tokens_total") - before;
            const int is_raw = strstr(cases[i].path, "/v1/completions") != NULL;       /* the same text is read again */
            CHECK(streams && !is_raw ? read < read_before : read > 0, "%s: %ld tokens were read, %ld before", body, read, read_before);
            read_before = read;
        }
    heard h = post(s, "/v1/completions", "{\"prompt\": \"Once\", \"n_predict\": -1, \"ignore_eos\": true, \"stop\": \"e\"}");
    CHECK(h.status == 200, "no limit: %d %s", h.status, h.body);
    forget(&h);
}

// ---- Models; the prompt as a part of the answer ----------------------------------------------------------------------

static void test_models(server s) {
    static const struct { const char *path, *holds; int status; } cases[] = {
        {"/v1/models", "\"data\": [{\"id\": \"", 200},
        {"/v1/models", "\"max_model_len\": 4096, \"parallel\": 1, \"capabilities\": {\"chat\": true, \"enable_thinking\": true, "
                       "\"reasoning_effort\": false, \"tools\": true, \"images\": false}}]}", 200},
        {"/v1/models/org/mo.te", "{\"id\": \"org/mo.te\", \"object\": \"model\"", 200},
        {"/v1/models/org%2Fm%6f%2ete", "{\"id\": \"org/mo.te\"", 200}, {"/v1/models/mote", "model_not_found", 404}, {"/v1/models/", "model_not_found", 404},
        {"/v1/models/org%2", "model_not_found", 404}, {"/v1/models/org/mo.tes", "model_not_found", 404}, {"/v1/modelsx", "there is no", 404}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        heard h = get(s, cases[i].path);
        CHECK(h.status == cases[i].status && strstr(h.body, cases[i].holds), "%s: %d %s", cases[i].path, h.status, h.body);
        forget(&h);
    }
}

// Echo in a stream is the same as at once, piece by piece; characters stay whole.
static void test_echo(server s) {
    static char body[1 << 14], whole[1 << 16], pieces[1 << 16];
    size_t n = (size_t)sprintf(body, "{\"max_tokens\": 1, \"echo\": true, \"logprobs\": 1, \"temperature\": 0, \"prompt\": \"");
    for (int i = 0; i < 1300; i++) n += (size_t)sprintf(body + n, "%s", i % 3 ? "a " : "\xe2\x82\xac");
    sprintf(body + n, "\"}");
    heard h = post(s, apis[1].path, body);
    whole[0] = pieces[0] = 0;
    join(h.body, "text", whole, sizeof whole);
    int scored = count_of_text(h.body, "\xef\xbf\xbd") + 0, values = count_of_text(strstr(h.body, "\"token_logprobs\""), ", -");
    forget(&h);
    sprintf(body + n, "\", \"stream\": true}");
    h = post(s, apis[1].path, body);
    join(h.body, "text", pieces, sizeof pieces);
    CHECK(*whole && !strcmp(whole, pieces), "the echo at once: '%.200s', in pieces: '%.200s'", whole, pieces);
    CHECK(!strstr(whole, "\xef\xbf\xbd") && strstr(whole, "\xe2\x82\xac" "a a "), "an echo of cut characters: %.200s", whole);
    CHECK(count_of_text(h.body, "\"token_logprobs\": [") >= 3, "the stream has one piece: %.300s", h.body);
    CHECK(scored && values > 500, "no test: %d, %d", scored, values);
    forget(&h);
}

// ---- What the server says ---------------------------------------------------------------------------------------------

// The next line it says must begin and end with these; returns what stands between them. "mote: " before a method: a time and an id
// come between.
static const char *check_said(FILE *said, const char *begin, const char *end) {
    static char line[2048];
    size_t n = fgets(line, sizeof line, said) ? strlen(line) : 0, m = strlen(begin), k = strlen(end);
    int year, month, day, hour, minute, head = 0;
    double second;
    char id[64];
    if (!strncmp(begin, "mote: GET ", 10) || !strncmp(begin, "mote: POST ", 11)) {
        int found = sscanf(line, "mote: %4d-%2d-%2dT%2d:%2d:%6lfZ %60s%n", &year, &month, &day, &hour, &minute, &second, id, &head);
        if (!CHECK(found == 7 && year > 2023 && strchr(id, '-'), "no time and id: %s", line)) return "";
        memmove(line + 5, line + head, n - (size_t)head + 1);
        n -= (size_t)head - 5;
    }
    if (!CHECK(n >= m + k && !strncmp(line, begin, m) && !strcmp(line + n - k, end), "said '%.*s', not '%s...%s'", (int)n, line, begin, end)) return "";
    line[n - k] = 0;
    return line + m;
}

// A line for each request, and what the first Ctrl-C waits for. Tokens of several prompts are counted together.
static void test_log(void) {
    FILE *said;
    server s = serve_heard("-v --name 'a \"name\"' --context 4096 --parallel 2", &said);
    heard h = get(s, "/v1/models");
    CHECK(strstr(h.body, "\"id\": \"a \\\"name\\\"\""), "--name: %s", h.body);
    forget(&h);
    check_said(said, "mote: GET /v1/models 200, 0.", " s\n");
    h = post(s, "/v1/completions", "{\"prompt\": [[1, 2, 3], [5, 6]], \"max_tokens\": 2, \"ignore_eos\": true}");
    forget(&h);
    const char *rest = check_said(said, "mote: POST /v1/completions 200: read 5 tokens, cached 0, wrote 4, ", " s\n");
    CHECK(atof(rest) > 0 && strstr(rest, " tok/s, waited 0.00 s, reading 0.") && strstr(rest, " s, writing 0."), "speed and times: %s", rest);
    h = post(s, "/v1/completions", "{\"prompt\": [1, 2, 3, 4], \"max_tokens\": 2}");
    forget(&h);
    check_said(said, "mote: POST /v1/completions 200: read ", " s\n");
    h = post(s, "/v1/completions", "{");
    forget(&h);
    rest = check_said(said, "mote: POST /v1/completions 400: ", " s\n");
    CHECK(strstr(rest, "the body"), "why: %s", rest);
    h = post(s, "/v1/completions", "{\"prompt\": \"x\", \"temperature\": -3}");
    forget(&h);
    check_said(said, "mote: POST /v1/completions 400 (temperature): temperature must be a number from 0 to 100, 0.", " s\n");
    h = get(s, "/nosuch");
    forget(&h);
    check_said(said, "mote: GET /nosuch 404: there is no /nosuch here: there are /, /health, ", " s\n");
    int fd = dial(s);
    post_on(fd, "/v1/completions", "{\"prompt\": [1, 2, 3], \"max_tokens\": 400, \"ignore_eos\": true}");
    while (metric(s, "sessions_busy") < 1) {
        usleep(10000);
        check_said(said, "mote: GET /metrics 200, 0.", " s\n");
    }
    check_said(said, "mote: GET /metrics 200, 0.", " s\n");
    kill(s.pid, SIGINT);
    check_said(said, "mote: 1 answer is to finish; another Ctrl-C or SIGTERM ends at once\n", "");
    h = hear(fd);
    forget(&h);
    check_said(said, "mote: POST /v1/completions 200: read ", " s\n");
    int code = end_of(s);
    CHECK(code == 130, "ended with %d", code);
    fclose(said);
    close(fd);
}

// The number of a line's member; -1: there is none.
static double logged(const char *line, const char *key) {
    char name[64];
    snprintf(name, sizeof name, "\"%s\": ", key);
    const char *at = strstr(line, name);
    return at ? atof(at + strlen(name)) : -1;
}

// Nobody reads the log: requests are answered all the same, and it says later how many lines are lost.
static void test_log_unread(void) {
    static const char request[] = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    FILE *said;
    char line[2048] = "";
    int lines = 0, lost = 0;
    server s = serve_heard("-v --context 4096 --parallel 1", &said);
    CHECK(fcntl(fileno(said), F_SETPIPE_SZ, 4096) >= 4096, "a small pipe: %s", strerror(errno));
    for (int i = 0; i < 100; i++) {
        int one = dial(s);
        tell(one, request, sizeof request - 1);
        heard h = hear_for(one, 5);
        CHECK(h.status == 200, "request %d: %d", i, h.status);
        lines += h.status == 200;
        forget(&h);
        close(one);
        if (lines <= i) break;
    }
    usleep(1500000);                        // the first line that was lost has been waited for
    for (int i = 0; i < 2 && lines == 100; i++) {
        while (poll(&(struct pollfd){fileno(said), POLLIN, 0}, 1, 200) > 0 && read(fileno(said), line, sizeof line - 1) > 0)
            if (strstr(line, "that nobody read are lost: ")) lost = atoi(strstr(line, "are lost: ") + 10);
        heard h = get(s, "/health");
        forget(&h);
        memset(line, 0, sizeof line);
    }
    while (poll(&(struct pollfd){fileno(said), POLLIN, 0}, 1, 500) > 0 && read(fileno(said), line, sizeof line - 1) > 0)
        if (strstr(line, "that nobody read are lost: ")) lost = atoi(strstr(line, "are lost: ") + 10);
    CHECK(lost > 40 && lost < 100, "%d lines are lost of %d", lost, lines);
    fclose(said);
    stop(s);
}

// The same as JSON; the id is that of the answer, and of its head. A request that waits for another: that time is told apart.
static void test_log_json(void) {
    FILE *said;
    char line[2048] = "", id[128];
    server s = serve_heard("--log-json --context 4096 --parallel 1", &said);
    heard h = post(s, "/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": \"secret\"}], \"max_tokens\": 2}");
    char *at = strstr(h.body, "\"id\": \"chatcmpl-"), *head = strstr(h.data, "\r\nX-Request-Id: chatcmpl-");
    snprintf(id, sizeof id, "%.31s", at ? at : "no id");
    CHECK(fgets(line, sizeof line, said) && !memcmp(line, "{\"time\": \"20", 12) && strstr(line, id), "'%s' is not in: %s", id, line);
    CHECK(head && at && !strncmp(head + 16, at + 7, 25), "the id of the head: %s", h.data);
    CHECK(logged(line, "status") == 200 && logged(line, "written_tokens") == 2 && strstr(line, "\"reason\": null"), "%s", line);
    CHECK(!strstr(line, "secret"), "a text of a message: %s", line);
    forget(&h);
    h = post(s, "/v1/completions", "{\"prompt\": \"x\", \"top_p\": \"\\u001b[2J\", \"n\": 2}");
    forget(&h);
    CHECK(fgets(line, sizeof line, said) && logged(line, "status") == 400 && strstr(line, "\"field\": \"top_p\", \"reason\": \"top_p must be"), "%s", line);
    h = post(s, "/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"\\u001b\\u009b\\u202e\\u2028\\u007f\\n\\\"\"}]}]}");
    forget(&h);
    CHECK(fgets(line, sizeof line, said) && strstr(line, "of type \\\" \\u009b\\u202e\\u2028\\u007f \\\""), "controls: %s", line);
    for (const char *p = line; *p; p++) CHECK((unsigned char)*p >= 0x20 || (*p == '\n' && !p[1]), "a control character: %s", line);
    int one = dial(s);
    tell(one, "secret of a message\r\n\r\n", 23);        // what a body that is longer than it says would be
    h = hear(one);
    CHECK(h.status == 400 && fgets(line, sizeof line, said) && strstr(line, "\"method\": null") && !strstr(line, "secret"), "%d %s", h.status, line);
    forget(&h);
    close(one);
    h = post(s, "/v1/completions", "{\"prompt\": {\"text\": \"x\"}}");
    CHECK(h.status == 400 && strstr(h.body, "prompt must be a text or token ids"), "%d %s", h.status, h.body);
    forget(&h);
    CHECK(fgets(line, sizeof line, said) && strstr(line, "\"field\": \"prompt\""), "%s", line);
    one = dial(s);
    post_on(one, "/v1/completions", "{\"prompt\": \"Once\", \"max_tokens\": 300, \"ignore_eos\": true, \"stream\": true}");
    char head_of_it;
    CHECK(recv(one, &head_of_it, 1, MSG_PEEK) == 1, "no stream");      // it has its place in the queue
    h = post(s, "/v1/completions", "{\"prompt\": \"Once\", \"max_tokens\": 1}");
    forget(&h);
    char other[2048] = "";
    CHECK(fgets(other, sizeof other, said) && fgets(line, sizeof line, said), "two lines");
    if (logged(line, "written_tokens") == 300) {           // which of them is written first is chance
        char third[sizeof line];
        memcpy(third, line, sizeof line);
        memcpy(line, other, sizeof line);
        memcpy(other, third, sizeof line);
    }
    CHECK(logged(other, "written_tokens") == 300 && logged(other, "queue_seconds") < 0.05 && logged(line, "written_tokens") == 1, "%s%s", other, line);
    double took = logged(other, "write_seconds");
    double waited = logged(line, "queue_seconds"), all = logged(line, "seconds");
    CHECK(waited > took / 4 && all >= waited && logged(line, "write_seconds") < took, "waited %g of %g s, beside %g s: %s", waited, all, took, line);
    close(one);
    stop(s);
    fclose(said);
}

int main(int argc, char **argv) {
    static const char *const scripts[] = {"</think>\n\nHello."}, *const folders[] = {"hub", "models--org--mo.te", "snapshots", "1"};
    char folder[512], arguments[600];
    int32_t start;
    test_main_begin("requests", argc, argv);
    test_document();
    if (!temp_open()) return test_main_end();
    size_t n = (size_t)snprintf(folder, sizeof folder, "%s", temp_dir);
    for (int i = 0; i < 4; i++) {
        n += (size_t)snprintf(folder + n, sizeof folder - n, "/%s", folders[i]);
        mkdir(folder, 0700);
    }
    parrot_make(folder, scripts, 1, 5, NULL, &start);
    setenv("HF_HOME", temp_dir, 1);
    snprintf(arguments, sizeof arguments, "-m org/mo.te --device cpu --context 4096 --parallel 1");
    server parrot = serve(arguments), s = serve("--context 4096 --parallel 2");
    reranker = serve("-m tests/fixtures/embedding/qwen3-reranker --device cpu --context 512 --parallel 1");
    test_rules(parrot);
    test_ends(parrot);
    test_unknown(parrot);
    test_numbers(parrot);
    test_thinking(parrot);
    test_schema_fields(parrot);
    test_outside(parrot);
    test_utf8(parrot);
    test_models(parrot);
    test_seeds(s);
    test_echo(s);
    test_no_tokens(s);
    stop(parrot);
    stop(reranker);
    stop(s);
    test_log();
    test_log_json();
    test_log_unread();
    temp_close();
    return test_main_end();
}
