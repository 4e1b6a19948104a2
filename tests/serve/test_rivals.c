// Tests of the paths that clients of llama.cpp's server and of Ollama ask: answers have the fields that these read, each line of a
// stream is JSON; and of paths that are not there.

#include "engine.h"
#include "client.h"
#include "parrot.h"
#include "json_end.h"

#define U "{\"role\": \"user\", \"content\": \"go\"}"
#define TOOLS "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}}}}}]"

enum { SAY_PLAIN, SAY_THINK, SAY_CALL, SAY_LONG, SAY_COUNT };
static const char *const scripts[SAY_COUNT] = {"</think>\n\nHello world, that is all.", "I think of it first.\n</think>\n\nDone.",
                                               "</think>\n\n<tool_call>\n<function=weather>\n<parameter=city>\nRom \"x\"\n</parameter>\n</function>\n</tool_call>",
                                               "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ=+-*/%&$!?,.;:_#<>()[]{}zyxwvutsrqponmlkjihgfedcba"};
static int32_t starts[SAY_COUNT];

static void check(server s, const char *path, const char *body, int status, const char *holds, const char *lacks) {
    heard h = body ? post(s, path, body) : get(s, path);
    CHECK(h.status == status && strstr(h.data, holds), "%s %s: %d, not %d with '%s': %s", path, body ? body : "", h.status, status, holds, h.data);
    CHECK(!lacks || !strstr(h.data, lacks), "%s %s: holds '%s': %s", path, body ? body : "", lacks ? lacks : "", h.data);
    forget(&h);
}

// ---- Paths --------------------------------------------------------------------------------------------------------------

static void test_paths(server s) {
    static const char *const there[] = {"/v1/chat/completions", "/v1/messages", "/props", "/api/chat", "/health"};
    for (int i = 0; i < 5; i++) check(s, "/api/nosuch", NULL, 404, there[i], NULL);
    check(s, "/v1/nosuch", "{}", 404, "there is no /v1/nosuch here: there are /, ", NULL);
    check(s, "/api/nosuch", NULL, 404, "{\"error\": \"there is no /api/nosuch here", NULL);
    check(s, "/v1/chat/completions", NULL, 405, "\r\nAllow: POST\r\n", NULL);
    check(s, "/api/tags", "{}", 405, "\r\nAllow: GET, HEAD\r\n", NULL);
    check(s, "/props", "{}", 405, "\r\nAllow: GET, HEAD\r\n", NULL);
    check(s, "/models", NULL, 200, "{\"object\": \"list\", \"data\": [{\"id\": \"", NULL);
    check(s, "/chat/completions", "{\"messages\": [" U "], \"max_tokens\": 1}", 200, "\"object\": \"chat.completion\"", NULL);
}

// ---- llama.cpp ----------------------------------------------------------------------------------------------------------

static void test_native(server s) {
    static const char *const paths[] = {"/completion", "/completions"};
    check(s, "/props", NULL, 200, "{\"default_generation_settings\": {\"id\": 0, \"n_ctx\": 2048, ", NULL);
    check(s, "/props", NULL, 200, "\"total_slots\": 2", NULL);
    check(s, "/slots", NULL, 200, "[{\"id\": 0, \"n_ctx\": 2048, \"device\": \"cpu\", \"is_processing\": false, ", NULL);
    check(s, "/slots", NULL, 200, "}, {\"id\": 1, ", "\"id\": 2");
    for (int i = 0; i < 2; i++) {
        check(s, paths[i], "{\"prompt\": [5, 6], \"n_predict\": 3, \"ignore_eos\": true}", 200,
              "\"stop\": true, \"tokens_predicted\": 3, \"tokens_evaluated\": 2, \"tokens_cached\": 0, \"tokens\": [], \"stop_type\": \"limit\", \"truncated\": false, "
              "\"stopping_word\": \"\"", NULL);
        check(s, paths[i], "{\"prompt\": [5, 6], \"n_predict\": 3}", 200, "\"choices\": [{\"index\": 0, \"text\": \"", NULL);
        heard h = post(s, paths[i], "{\"prompt\": \"Once\", \"n_predict\": 5, \"ignore_eos\": true, \"stream\": true, \"temperature\": 0}");
        char whole[512] = "", pieces[512] = "";
        join(h.body, "content", pieces, sizeof pieces);
        CHECK(count_of_text(h.body, "\"stop\": false") == 5 && count_of_text(h.body, "\"stop\": true") == 1 && !strstr(h.body, "[DONE]"), "%s", h.body);
        forget(&h);
        h = post(s, paths[i], "{\"prompt\": \"Once\", \"n_predict\": 5, \"ignore_eos\": true, \"temperature\": 0}");
        join(h.body, "content", whole, sizeof whole);
        CHECK(*whole && !strcmp(whole, pieces), "'%s' in pieces, '%s' as a whole", pieces, whole);
        forget(&h);
        check(s, paths[i], "{\"prompt\": \"Once\", \"n_predict\": 0}", 200, "\"content\": \"\"", NULL);
        check(s, paths[i], "{\"prompt\": [\"a\", \"b\"], \"n_predict\": 1}", 200, "{\"index\": 1, \"text\": ", "\"content\"");
    }
    check(s, "/v1/completions", "{\"prompt\": \"Once\", \"max_tokens\": 2}", 200, "\"choices\"", "\"content\"");
}

// Without n_predict an answer ends where it ends: OpenAI's 16 are not llama.cpp's.
static void test_native_ends(server s) {
    char body[256];
    snprintf(body, sizeof body, "{\"prompt\": \"go\", \"logit_bias\": {\"%d\": 100}}", starts[SAY_LONG]);
    check(s, "/completion", body, 200, "\"stop_type\": \"eos\"", NULL);
    check(s, "/completion", body, 200, "onmlkjihgfedcba", NULL);
    check(s, "/v1/completions", body, 200, "\"completion_tokens\": 16,", NULL);
    snprintf(body, sizeof body, "{\"prompt\": \"go\", \"logit_bias\": {\"%d\": 100}, \"stop\": [\"xyz\", \"XYZ\"]}", starts[SAY_LONG]);
    check(s, "/completion", body, 200, "\"stop_type\": \"word\", \"truncated\": false, \"stopping_word\": \"xyz\"", NULL);
}

// ---- Ollama -------------------------------------------------------------------------------------------------------------

// Of the parrot: `more` are further fields of the request.
static heard ask(server s, const char *path, int script, const char *more) {
    char body[4096];
    snprintf(body, sizeof body, "{\"model\": \"any\", %s, \"options\": {\"logit_bias\": {\"%d\": 100}, \"cache_prompt\": false}%s%s}",
             strcmp(path, "/api/chat") ? "\"prompt\": \"go\"" : "\"messages\": [" U "]", starts[script], *more ? ", " : "", more);
    return post(s, path, body);
}

// Each line is JSON, the last one alone is done, and the texts under `key` are `text`.
static void check_lines(server s, const char *path, int script, const char *key, const char *text) {
    heard h = ask(s, path, script, "");
    char joined[1024] = "";
    int lines = 0;
    CHECK(h.status == 200 && strstr(h.data, "\r\nContent-Type: application/x-ndjson\r\n"), "%s: %d %s", path, h.status, h.data);
    join(h.body, key, joined, sizeof joined);
    CHECK(!strcmp(joined, text), "%s: '%s', not '%s': %s", path, joined, text, h.body);
    for (char *line = h.body, *end; *line; line = end + 1, lines++) {
        end = strchr(line, '\n');
        if (!CHECK(end != NULL, "a line without an end: %s", line)) break;
        *end = 0;
        CHECK(json_end(line) == end, "no JSON: %s", line);
        CHECK(!strncmp(line, "{\"model\": \"", 11) && strstr(line, "\"created_at\": \"20"), "%s", line);
        CHECK((strstr(line, "\"done\": true") != NULL) == !end[1], "done: %s", line);
        if (!end[1]) CHECK(strstr(line, "\"done_reason\": \"stop\"") && strstr(line, "\"prompt_eval_count\": ") && strstr(line, "\"eval_duration\": "), "%s", line);
    }
    CHECK(lines > 3, "%s: %d lines", path, lines);
    forget(&h);
}

static void check_whole(server s, const char *path, int script, const char *more, const char *holds, const char *lacks) {
    char fields[2048];
    snprintf(fields, sizeof fields, "%s%s\"stream\": false", more, *more ? ", " : "");
    heard h = ask(s, path, script, fields);
    CHECK(h.status == 200 && strstr(h.body, holds), "%s '%s', %s: %d, not with '%s': %s", path, scripts[script], more, h.status, holds, h.body);
    CHECK(!lacks || !strstr(h.body, lacks), "%s: holds '%s': %s", path, lacks, h.body);
    CHECK(count_of_text(h.body, "\"done\": true") == 1 && strstr(h.data, "application/json"), "%s: %s", path, h.data);
    forget(&h);
}

static void test_ollama(server s) {
    check(s, "/api/version", NULL, 200, "{\"version\": \"", NULL);
    check(s, "/api/tags", NULL, 200, "{\"models\": [{\"name\": \"", NULL);
    check(s, "/api/tags", NULL, 200, "\"details\": {\"parent_model\": \"\", \"format\": \"safetensors\"", NULL);
    check_lines(s, "/api/chat", SAY_PLAIN, "content", "Hello world, that is all.");
    check_lines(s, "/api/generate", SAY_PLAIN, "response", "Hello world, that is all.");
    check_lines(s, "/api/chat", SAY_THINK, "thinking", "I think of it first.");
    check_lines(s, "/api/generate", SAY_THINK, "thinking", "I think of it first.");
    check_whole(s, "/api/chat", SAY_PLAIN, "", "\"message\": {\"role\": \"assistant\", \"content\": \"Hello world, that is all.\"}", "thinking");
    check_whole(s, "/api/chat", SAY_THINK, "", "\"content\": \"Done. \", \"thinking\": \"I think of it first.\"}", NULL);
    check_whole(s, "/api/generate", SAY_PLAIN, "", "\"response\": \"Hello world, that is all.\", \"done\": true, \"done_reason\": \"stop\"", "message");
    check_whole(s, "/api/chat", SAY_CALL, TOOLS, "\"function\": {\"name\": \"weather\", \"arguments\": {\"city\": \"Rom \\\"x\\\"\"}}}]}", NULL);
    check_whole(s, "/api/chat", SAY_CALL, "", "<function=weather>", "tool_calls");
    heard h = ask(s, "/api/chat", SAY_CALL, TOOLS);
    CHECK(count_of_text(h.body, "\"tool_calls\": [{") == 1, "calls in a stream: %s", h.body);
    forget(&h);
    static const struct { const char *path, *body, *holds; int status; } cases[] = {
        {"/api/chat", "{\"messages\": [" U "], \"stream\": false, \"options\": {\"num_predict\": 1}}", "\"done_reason\": \"length\"", 200},
        {"/api/chat", "{\"messages\": [" U "], \"stream\": false, \"options\": {\"num_predict\": 0}}", "\"eval_count\": 0", 200},
        {"/api/chat", "{\"messages\": [" U "], \"stream\": false, \"options\": {\"num_predict\": 1, \"num_ctx\": 9}}", "\r\nX-Mote-Passed-Over: num_ctx\r\n", 200},
        {"/api/chat", "{\"messages\": []}", "\"done_reason\": \"load\"", 200}, {"/api/generate", "{}", "\"done_reason\": \"load\"", 200},
        {"/api/chat", "{\"messages\": [" U ", {\"role\": \"assistant\", \"content\": \"\", \"thinking\": \"so\", \"tool_calls\": [{\"function\": {\"name\": \"weather\", "
         "\"arguments\": {\"city\": \"Rom\"}}}]}, {\"role\": \"tool\", \"tool_name\": \"weather\", \"content\": \"sun\"}], " TOOLS ", \"stream\": false, "
         "\"options\": {\"num_predict\": 1}}", "\"done\": true", 200},
        {"/api/chat", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"images\": [\"eA==\"]}]}", "{\"error\": \"messages[0].images: this model reads no images", 400},
        {"/api/chat", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"images\": []}], \"stream\": false, \"options\": {\"num_predict\": 1}}", "\"done\": true", 200},
        {"/api/chat", "{\"messages\": [{\"role\": \"system\", \"content\": \"a\", \"images\": [\"eA==\"]}]}", "{\"error\": \"messages[0] holds images: they may", 400},
        {"/api/generate", "{\"prompt\": \"a\", \"images\": [\"eA==\"]}", "{\"error\": \"images: this model reads no images", 400},
        {"/api/generate", "{\"images\": [\"eA==\"]}", "{\"error\": \"images: this model reads no images", 400},
        {"/api/generate", "{\"prompt\": \"a\", \"raw\": true, \"images\": [\"eA==\"]}", "{\"error\": \"images have no place in a raw prompt", 400},
        {"/api/chat", "{\"messages\": [" U "], \"format\": \"xml\"}", "{\"error\": \"format must be", 400},
        {"/api/chat", "{\"messages\": [" U "], \"think\": \"much\"}", "{\"error\": \"think must be", 400},
        {"/api/chat", "{\"messages\": [" U "], \"options\": {\"mirostat\": 1}}", "{\"error\": \"mirostat is not supported", 400},
        {"/api/chat", "{\"messages\": [" U "], \"options\": []}", "{\"error\": \"options must be an object", 400},
        {"/api/chat", "{\"messages\": 7}", "{\"error\": \"messages must be a list", 400}, {"/api/generate", "{\"prompt\": 7}", "{\"error\": \"prompt must be a string", 400},
        {"/api/generate", "{\"prompt\": \"a\", \"suffix\": \"b\"}", "{\"error\": \"suffix is not supported", 400},
        {"/api/generate", "{\"prompt\": \"Once\", \"raw\": true, \"stream\": false, \"options\": {\"num_predict\": 2}}", "\"prompt_eval_count\": 1,", 200},
        {"/api/generate", "{\"prompt\": \"a\", \"system\": \"b\", \"think\": false, \"stream\": false, \"options\": {\"num_predict\": 1}}", "\"response\": ", 200},
        {"/api/chat", "{", "{\"error\": \"", 400}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check(s, cases[i].path, cases[i].body, cases[i].status, cases[i].holds, NULL);
}

// The words of a schema bind here, too.
static void test_ollama_format(server s) {
    char text[512] = "";
    heard h = post(s, "/api/chat", "{\"messages\": [" U "], \"stream\": false, \"think\": false, \"format\": {\"type\": \"object\", \"properties\": {\"k\": {\"const\": \"q\"}}, "
                                   "\"required\": [\"k\"]}, \"options\": {\"num_predict\": 100, \"temperature\": 0}}");
    join(h.body, "content", text, sizeof text);
    CHECK(strstr(text, "\\\"k\\\"") && strstr(text, "\\\"q\\\""), "by a schema: %s", h.body);
    forget(&h);
}

int main(int argc, char **argv) {
    char arguments[600];
    test_main_begin("rivals", argc, argv);
    if (!temp_open()) return test_main_end();
    parrot_make(temp_dir, scripts, SAY_COUNT, 5, NULL, starts);
    snprintf(arguments, sizeof arguments, "-m %s --device cpu --context 2048 --parallel 2", temp_dir);
    server parrot = serve(arguments), demo = serve("--context 2048 --parallel 2");
    test_paths(demo);
    test_native(demo);
    test_native_ends(parrot);
    test_ollama(parrot);
    test_ollama_format(demo);
    stop(parrot);
    stop(demo);
    temp_close();
    return test_main_end();
}
