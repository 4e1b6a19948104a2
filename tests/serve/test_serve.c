// Tests of mote serve, by a client that writes to a socket what others' clients write, and worse. MOTE_PROGRAM (from the
// Makefile) is how to start the program, from the top of the repository.

#include "engine.h"

#include "client.h"

// ---- HTTP --------------------------------------------------------------------------------------------------------------

static void check_raw(server s, const char *request, int status, const char *holds) {
    int fd = dial(s);
    tell(fd, request, strlen(request));
    heard h = hear(fd);
    CHECK(h.status == status && strstr(h.data, holds), "%.60s...: %d, expected %d with '%s': %.300s", request, h.status, status, holds, h.data);
    forget(&h);
    close(fd);
}

static void test_requests(server s) {
    check_raw(s, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, "ok");
    check_raw(s, "GET /v1/models HTTP/1.0\r\n\r\n", 200, "\"id\": \"demo\"");
    check_raw(s, "GET /nowhere HTTP/1.1\r\nHost: localhost\r\n\r\n", 404, "\"error\": {\"message\"");
    check_raw(s, "GET /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, "does not take GET");
    check_raw(s, "GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, "Host");
    check_raw(s, "GET /health HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n", 200, "ok");
    check_raw(s, "GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n", 403, "origin");
    check_raw(s, "GET /health HTTP/1.1\r\nHost: localhost:1\r\nOrigin: http://localhost:1\r\n\r\n", 200, "ok");
    check_raw(s, "GET / HTTP/9.1\r\n\r\n", 505, "Connection: close");
    check_raw(s, "nonsense\r\n\r\n", 400, "\"type\": \"invalid_request_error\"");
    check_raw(s, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n", 413, "longer");
    check_raw(s, "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n[]", 400, "{\"type\": \"error\", \"error\"");
    check_raw(s, "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{\"prompt\r\n7\r\n\":\"Hi\"}\r\n0\r\n\r\n", 200,
              "\"count\": ");
    int fd = dial(s);
    char asks[] = "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 15\r\n\r\n", go[64] = "";
    tell(fd, asks, sizeof asks - 1);
    CHECK(recv(fd, go, sizeof go - 1, 0) > 0 && !strcmp(go, "HTTP/1.1 100 Continue\r\n\r\n"), "expecting 100: %s", go);
    tell(fd, "{\"prompt\":\"Hi\"}", 15);
    heard h = hear(fd);
    CHECK(h.status == 200, "after 100: %d", h.status);
    forget(&h);
    close(fd);
}

// Requests one after the other on one connection are answered in order; HEAD has no body.
static void test_pipelining(server s) {
    static const char text[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nHEAD /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
                               "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n{\"prompt\":\"Hi\"}"
                               "GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    char all[8192];
    size_t n = 0;
    ssize_t got;
    int fd = dial(s);
    tell(fd, text, sizeof text - 1);
    while (n < sizeof all - 1 && (got = recv(fd, all + n, sizeof all - 1 - n, 0)) > 0) n += (size_t)got;
    all[n] = 0;
    const char *models = strstr(all + 1, "HTTP/1.1 200"), *tokens = models ? strstr(models + 1, "HTTP/1.1 200") : NULL;
    CHECK(count_of_text(all, "HTTP/1.1 200") == 3 && strstr(tokens ? tokens : "", "HTTP/1.1 404"), "pipelined: %s", all);
    CHECK(tokens && !memcmp(tokens - 4, "\r\n\r\n", 4), "HEAD has a body: %s", models);
    close(fd);
}

// One that sends a part of a request and then nothing gets 408, meanwhile others are answered.
static int slow_begin(server s) {
    int fd = dial(s);
    tell(fd, "POST /v1/completions HTTP/1.1\r\nHo", 33);
    return fd;
}

static void slow_end(int fd) {
    heard h = hear_for(fd, 15);
    CHECK(h.status == 408 && strstr(h.body, "in time"), "a slow client: %d %s", h.status, h.data);
    forget(&h);
    close(fd);
}

static void test_access(void) {
    server s = serve("--api-key secret --cors");
    check_raw(s, "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 401, "WWW-Authenticate: Bearer");
    check_raw(s, "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\r\n", 200, "demo");
    check_raw(s, "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: secret\r\n\r\n", 200, "Access-Control-Allow-Origin: *");
    check_raw(s, "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: secre\r\n\r\n", 401, "key");
    check_raw(s, "GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: secretsecret\r\n\r\n", 401, "key");
    check_raw(s, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, "ok");
    check_raw(s, "GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://a.b\r\n\r\n", 200, "ok");
    check_raw(s, "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: http://a.b\r\n\r\n", 204, "Allow-Methods: GET, POST");
    stop(s);
}

// ---- Answers -------------------------------------------------------------------------------------------------------

#define FP8 "{\"role\": \"user\", \"content\": \"What is FP8?\"}"

// What mote run prints for the same question.
static void run(const char *arguments, char *out, size_t capacity) {
    char command[1024];
    size_t n = 0;
    snprintf(command, sizeof command, "%s run %s 2>/dev/null", MOTE_PROGRAM, arguments);
    FILE *in = popen(command, "r");
    if (in) n = fread(out, 1, capacity - 1, in);
    while (n && out[n - 1] == '\n') n--;
    out[n] = 0;
    if (in) pclose(in);
}

// The same text as mote run gives for the same seed; and a stream's pieces are that text, an event for each token.
static void test_same_text(server s) {
    for (int seed = 1; seed <= (test_brief ? 2 : 6); seed++) {
        char arguments[256], body[512], want[8192], got[8192] = "", pieces[8192] = "";
        snprintf(arguments, sizeof arguments, "\"Tell me a story about a dog\" --think off -n 60 --temp 1.2 --seed %d", seed);
        run(arguments, want, sizeof want);
        for (int stream = 0; stream < 2; stream++) {
            snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story about a dog\"}], \"max_tokens\": 60, "
                     "\"temperature\": 1.2, \"seed\": %d, \"chat_template_kwargs\": {\"enable_thinking\": false}, \"stream\": %s, "
                     "\"stream_options\": {\"include_usage\": true}}", seed, stream ? "true" : "false");
            heard h = post(s, "/v1/chat/completions", body);
            join(h.body, "content", stream ? pieces : got, sizeof got);
            if (stream) {
                long tokens = number(&h, "completion_tokens"), ended = strstr(h.body, "\"finish_reason\": \"stop\"") != NULL;
                CHECK(count_of_text(h.body, "\"content\": ") == 1 + tokens - ended, "%ld tokens, %d events", tokens,
                      count_of_text(h.body, "\"content\": "));
                CHECK(strstr(h.body, "data: [DONE]\n\n") && !strstr(h.body, "\"usage\": null"), "the stream's end: %s", h.body);
            }
            forget(&h);
        }
        CHECK(!strcmp(got, pieces), "'%s' at once, '%s' in pieces", got, pieces);
        for (char *c = want; *c; c++) if (*c == '\n') *c = '|';
        for (char *at; (at = strstr(got, "\\n"));) at[0] = '|', memmove(at + 1, at + 2, strlen(at + 2) + 1);
        for (char *at; (at = strstr(got, "\\\""));) memmove(at, at + 1, strlen(at));
        CHECK(!strcmp(want, got), "mote run: '%s', the server: '%s'", want, got);
    }
}

static void check_refused(server s, const char *path, const char *body, const char *holds) {
    heard h = post(s, path, body);
    CHECK(h.status == 400 && strstr(h.body, holds), "%s %s: %d %s", path, body, h.status, h.body);
    forget(&h);
}

static void check_answered(server s, const char *path, const char *body, const char *holds) {
    heard h = post(s, path, body);
    CHECK(h.status == 200 && strstr(h.body, holds), "%s %s: %d %s, not with '%s'", path, body, h.status, h.body, holds);
    forget(&h);
}

static void test_chat(server s) {
    static const char path[] = "/v1/chat/completions";
    check_answered(s, path, "{\"messages\": [" FP8 "], \"temperature\": 0}", "\"reasoning_content\": \"");
    check_answered(s, path, "{\"messages\": [" FP8 "], \"max_completion_tokens\": 3}", "\"finish_reason\": \"length\"");
    check_answered(s, path, "{\"messages\": [" FP8 "], \"chat_template_kwargs\": {\"enable_thinking\": false}, \"stop\": [\" in 8\"], \"temperature\": 0}",
                   "\"content\": \"FP8 is a floating point number\"");
    check_answered(s, path, "{\"messages\": [" FP8 "], \"max_tokens\": 40, \"ignore_eos\": true, \"stop\": null}", "\"completion_tokens\": 40");
    check_answered(s, path, "{\"messages\": [" FP8 "], \"max_tokens\": 200, \"min_tokens\": 90}", "\"completion_tokens\": ");
    check_answered(s, path, "{\"messages\": [" FP8 "], \"max_tokens\": 2, \"logprobs\": true, \"top_logprobs\": 2, \"enable_thinking\": false, "
                            "\"temperature\": 0}", "{\"token\": \"FP\", \"logprob\": ");
    check_answered(s, path, "{\"messages\": [{\"role\": \"system\", \"content\": \"a\"}, {\"role\": \"developer\", \"content\": [{\"type\": "
                            "\"text\", \"text\": \"b\"}]}, " FP8 "], \"max_tokens\": 2}", "\"choices\"");
    check_refused(s, path, "{\"messages\": [" FP8 "], \"n\": 2}", "n must be 1");
    check_refused(s, path, "{\"messages\": [" FP8 "], \"temperature\": \"hot\"}", "\"param\": \"temperature\"");
    check_refused(s, path, "{\"messages\": [" FP8 "], \"functions\": [{}]}", "functions is not supported");
    check_refused(s, path, "{\"messages\": [{\"role\": \"x\", \"content\": \"\"}]}", "role");
    check_refused(s, path, "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}", "image_url");
    check_answered(s, path, "{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}], \"max_tokens\": 2}", "choices");
    check_refused(s, path, "{\"messages\": []}", "messages");
    check_refused(s, path, "{\"messages\"", "not valid JSON");
    check_refused(s, path, "[]", "no JSON object");
    check_refused(s, path, "", "empty");
    check_refused(s, path, "{\"messages\": [" FP8 "], \"logit_bias\": {\"999999\": 1}}", "logit_bias");
    check_refused(s, path, "{\"messages\": [" FP8 "], \"tool_choice\": \"required\"}", "without tools");
}

// What goes in as history comes out as the template has it: the tokens are those of mote_render_tokens.
static void test_history(server s) {
    static const char messages[] =
        "[{\"role\": \"system\", \"content\": \"Be \\\"kind\\\"\\n\"}, {\"role\": \"user\", \"content\": \"Hi <think>\"}, {\"role\": \"assistant\", "
        "\"content\": \"ok\", \"reasoning_content\": \"hm\", \"tool_calls\": [{\"id\": \"1\", \"type\": \"function\", \"function\": {\"name\": "
        "\"f\", \"arguments\": %s}}]}, {\"role\": \"tool\", \"content\": \"42\"}]";
    char request[2048], body[2048], in[512];
    int32_t ids[2048];
    size_t count = 0, n = 0;
    mote_model *m = NULL;
    mote_options o = {.parts = MOTE_TEXT_ONLY};
    mote_error error;
    if (!CHECK(!mote_open("models/demo", &o, &m, &error), "%s", error.message)) return;
    snprintf(in, sizeof in, messages, "{\"x\": [1, \"\\u00e4\"]}");
    snprintf(request, sizeof request, "{\"messages\": %s}", in);
    CHECK(!mote_render_tokens(m, request, strlen(request), ids, 2048, &count, &error), "%s", error.message);
    snprintf(in, sizeof in, messages, "\"{\\\"x\\\": [1, \\\"\\u00e4\\\"]}\"");
    snprintf(body, sizeof body, "{\"messages\": %s}", in);
    heard h = post(s, "/tokenize", body);
    const char *at = strchr(h.body, '[');
    for (; at && *at != ']' && n < 2048; n++) {
        int32_t id = (int32_t)strtol(at + 1, (char **)&at, 10);
        CHECK(n < count && id == ids[n], "token %zu is %d, expected %d", n, id, n < count ? ids[n] : -1);
    }
    CHECK(n == count && count > 20, "%zu tokens, expected %zu", n, count);
    forget(&h);
    mote_close(m);
}

static void test_completions(server s) {
    static const char path[] = "/v1/completions";
    check_answered(s, path, "{\"prompt\": \"Once upon\", \"max_tokens\": 3, \"temperature\": 0}", "\"text\": \" a time,\"");
    check_answered(s, path, "{\"prompt\": [[1, 2, 3], [4, 5]], \"max_tokens\": 1, \"temperature\": 0}", "\"index\": 1");
    check_answered(s, path, "{\"prompt\": [\"Once upon\", \"Once\"], \"max_tokens\": 0, \"echo\": true, \"logprobs\": 1}",
                   "\"token_logprobs\": [null, -0.0");
    check_answered(s, path, "{\"prompt\": \"Once upon\", \"max_tokens\": 1, \"echo\": true}", "\"text\": \"Once upon a\"");
    check_refused(s, path, "{\"prompt\": [1, 99999999]}", "prompt");
    check_refused(s, path, "{\"prompt\": []}", "empty");
    check_refused(s, path, "{\"prompt\": {\"a\": 1}}", "prompt");
    check_refused(s, path, "{\"prompt\": \"a\", \"best_of\": 3}", "best_of");
    check_refused(s, path, "{\"prompt\": \"a\", \"suffix\": \"b\"}", "suffix is not supported");
    check_refused(s, path, "{}", "prompt is missing");
    check_answered(s, "/detokenize", "{\"tokens\": [34, 2000]}", "\"prompt\": ");
    check_refused(s, "/detokenize", "{\"tokens\": [-1]}", "token ids");
}

static void test_other_apis(server s) {
    check_answered(s, "/v1/messages", "{\"max_tokens\": 50, \"messages\": [" FP8 "], \"temperature\": 0}", "\"stop_reason\": \"end_turn\"");
    check_answered(s, "/v1/messages", "{\"max_tokens\": 2, \"messages\": [" FP8 "]}", "\"stop_reason\": \"max_tokens\"");
    check_answered(s, "/v1/messages", "{\"max_tokens\": 50, \"messages\": [" FP8 "], \"temperature\": 0, \"thinking\": {\"type\": \"enabled\", "
                                      "\"budget_tokens\": 20}, \"stream\": true}", "\"thinking_delta\"");
    check_refused(s, "/v1/messages", "{\"messages\": [" FP8 "]}", "max_tokens is missing");
    check_refused(s, "/v1/messages", "{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}", "reads no images");
    check_answered(s, "/v1/messages/count_tokens", "{\"messages\": [" FP8 "]}", "{\"input_tokens\": 22}");
    check_answered(s, "/v1/messages/count_tokens", "{\"messages\": [" FP8 "], \"system\": [{\"type\": \"text\", \"text\": "
                   "\"x-anthropic-billing-header: cch=1\"}]}", "{\"input_tokens\": 22}");
    check_answered(s, "/v1/responses", "{\"input\": \"What is FP8?\", \"temperature\": 0}", "\"type\": \"output_text\"");
    check_answered(s, "/v1/responses", "{\"input\": [" FP8 "], \"max_output_tokens\": 3, \"stream\": true}", "response.incomplete");
    check_answered(s, "/v1/responses", "{\"input\": [" FP8 "], \"stream\": true, \"tools\": [{\"type\": \"web_search\"}]}", "response.completed");
    check_refused(s, "/v1/responses", "{\"input\": \"x\", \"previous_response_id\": \"resp_1\"}", "previous_response_id is not supported");
    check_refused(s, "/v1/responses", "{\"input\": [{\"type\": \"item_reference\", \"id\": \"x\"}]}", "item_reference");
}

#define SCHEMA(x) "{\"messages\": [" FP8 "], \"max_tokens\": 200, \"temperature\": 1, \"seed\": 1, \"enable_thinking\": false, \"response_format\": " \
                  "{\"type\": \"json_schema\", \"json_schema\": {\"name\": \"a\", \"schema\": " x "}}}"

static void test_schema(server s) {
    static const char path[] = "/v1/chat/completions";
    check_answered(s, path, SCHEMA("{\"const\": 7}"), "\"content\": \"7\"");
    check_answered(s, path, SCHEMA("{\"type\": \"boolean\"}"), "e\"}, ");
    check_answered(s, path, SCHEMA("{\"type\": \"object\", \"properties\": {\"only\": {\"const\": 7}}, \"required\": [\"only\"]}"), "\\\"only\\\":");
    check_answered(s, path, "{\"messages\": [" FP8 "], \"max_tokens\": 3, \"response_format\": {\"type\": \"json_object\"}, "
                            "\"enable_thinking\": false}", "{");
    check_answered(s, path, SCHEMA("{\"type\": \"string\", \"pattern\": \"^ab+$\", \"maxLength\": 3}"), "\"content\": \"\\\"ab");
    check_answered(s, path, SCHEMA("{\"anyOf\": [{\"enum\": [\"b\"]}, {\"enum\": [\"ba\"]}]}"), "\"content\": \"\\\"b");
    check_refused(s, path, SCHEMA("{\"type\": \"object\", \"patternProperties\": {\"x\": {}}}"), "patternProperties");
    check_refused(s, path, SCHEMA("{\"$ref\": \"#/$defs/x\"}"), "$ref");
    check_refused(s, path, SCHEMA("{\"type\": \"text\"}"), "a type that JSON does not have");
    check_refused(s, path, "{\"messages\": [" FP8 "], \"response_format\": {\"type\": \"xml\"}}", "json_schema");
}

// ---- What has been read already --------------------------------------------------------------------------------------

typedef struct talk { char text[1 << 16]; size_t size; } talk;         // messages, with commas between them

static void talk_add(talk *t, const char *role, const char *text, const char *more) {
    t->size += (size_t)snprintf(t->text + t->size, sizeof t->text - t->size, "%s{\"role\": \"%s\", \"content\": \"%s\"%s}", t->size ? ", " : "",
                                role, text, more);
}

// Asks, and gives the answer's content. *fresh: tokens that had to be read.
static void talk_ask(server s, const talk *t, int tokens, char *answer, size_t capacity, long *fresh) {
    static char body[1 << 17];
    snprintf(body, sizeof body, "{\"messages\": [%s], \"max_tokens\": %d, \"temperature\": 0}", t->text, tokens);
    heard h = post(s, "/v1/chat/completions", body);
    CHECK(h.status == 200, "%d %s", h.status, h.body);
    answer[0] = 0;
    join(h.body, "content", answer, capacity);
    *fresh = number(&h, "prompt_tokens") - number(&h, "cached_tokens");
    forget(&h);
}

// An agent: a question, then turns of thinking, a call and its result. In each turn only that is read. The same text as a
// server that keeps nothing.
static void test_agent(server s, server forgetful) {
    static talk t;
    char answer[8192], again[8192];
    long fresh, all;
    memset(&t, 0, sizeof t);
    talk_add(&t, "system", "You may look at files. You answer in short sentences, and you never guess: what you do not know you look up.", "");
    talk_add(&t, "user", "What is in the file?", "");
    for (int turn = 0; turn < (test_brief ? 4 : 20); turn++) {
        char call[256];
        talk_ask(s, &t, 12, answer, sizeof answer, &fresh);
        talk_ask(forgetful, &t, 12, again, sizeof again, &all);
        CHECK(!strcmp(answer, again), "turn %d: '%s' with what was read before, '%s' without", turn, answer, again);
        CHECK(turn == 0 || fresh < 90, "turn %d reads %ld tokens of %ld", turn, fresh, all);
        CHECK(turn == 0 || all > fresh, "turn %d reads all %ld tokens", turn, all);
        snprintf(call, sizeof call, ", \"reasoning_content\": \"I look at line %d.\", \"tool_calls\": [{\"id\": \"c%d\", \"type\": \"function\", "
                 "\"function\": {\"name\": \"read\", \"arguments\": \"{\\\"line\\\": %d}\"}}]", turn, turn, turn);
        talk_add(&t, "assistant", "", call);
        talk_add(&t, "tool", "one line of text", "");
    }
    talk_add(&t, "assistant", "It is a text.", "");
    talk_add(&t, "user", "And is it long?", "");
    size_t before = t.size;
    talk_ask(s, &t, 12, answer, sizeof answer, &fresh);                // thinking is left out now: all of the turn is read again
    talk_ask(s, &t, 12, answer, sizeof answer, &fresh);
    CHECK(fresh < 12, "asking again reads %ld tokens", fresh);
    t.size = before - strlen("{\"role\": \"user\", \"content\": \"And is it long?\"}, ");
    talk_add(&t, "user", "And is it short?", "");
    talk_ask(s, &t, 12, answer, sizeof answer, &fresh);
    talk_ask(forgetful, &t, 12, again, sizeof again, &all);
    CHECK(fresh < 24 && all > 200, "an edited turn reads %ld tokens of %ld", fresh, all);
    CHECK(!strcmp(answer, again), "an edited turn: '%s', '%s'", answer, again);
}

// Two conversations in turns on one session keep what they have read.
static void test_two(void) {
    static talk t[2];
    static const char *const subjects[] = {"What is an expert in a model of many?", "Tell me a story about a fox and a bird in a wood"};
    server s = serve("--parallel 1"), alone = serve("--parallel 1 --cache-memory 0");
    char answer[8192], again[8192];
    long fresh, all;
    for (int turn = 0; turn < 6; turn++)
        for (int k = 0; k < 2; k++) {
            talk_add(&t[k], "user", turn ? "Go on, please, and do not stop" : subjects[k], "");
            talk_ask(s, &t[k], 60, answer, sizeof answer, &fresh);
            talk_ask(alone, &t[k], 60, again, sizeof again, &all);
            CHECK(!strcmp(answer, again), "conversation %d, turn %d: '%s', '%s'", k, turn, answer, again);
            CHECK(turn == 0 || fresh < 100, "conversation %d, turn %d reads %ld tokens of %ld", k, turn, fresh, all);
            CHECK(turn < 4 || all > 200, "conversation %d, turn %d has %ld tokens: no test", k, turn, all);
            talk_add(&t[k], "assistant", answer, "");
        }
    CHECK(metric(alone, "cached_tokens_total") == 0, "without memory %ld tokens are kept", metric(alone, "cached_tokens_total"));
    CHECK(metric(s, "shelved_timelines") >= 1 && metric(s, "cache_bytes") > 0, "nothing is on the shelf");
    stop(s);
    stop(alone);
}

// A small budget is kept, and answers stay what they are.
static void test_budget(void) {
    server s = serve("--parallel 2 --cache-memory 0.002");
    char body[512];
    long most = 0;
    for (int i = 0; i < (test_brief ? 12 : 30); i++) {
        snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": \"Question %d is long enough to be worth keeping, is it not, "
                 "as there are so many of them and they all differ: what is FP8?\"}], \"max_tokens\": 8}", i % 7);
        check_answered(s, "/v1/chat/completions", body, "choices");
        long used = metric(s, "cache_bytes");
        most = used > most ? used : most;
    }
    CHECK(most > 500000 && most <= 2000000, "%ld bytes are used of 2,000,000", most);
    stop(s);
}

// What was read is kept in a folder for the next run; damaged files are passed over, and the folder has a limit.
static int kept_files(const char *folder, char *path, size_t capacity) {
    DIR *d = opendir(folder);
    int count = 0;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (strstr(e->d_name, ".session")) count++, snprintf(path, capacity, "%s/%s", folder, e->d_name);
    if (d) closedir(d);
    return count;
}

static void test_disk(void) {
    static talk t, other;
    char answer[8192], again[8192], path[512], arguments[256];
    char folder[64];
    long fresh, all;
    server alone = serve("--parallel 1 --cache-memory 0");
    temp_open();
    snprintf(folder, sizeof folder, "%s/kept", temp_dir);
    snprintf(arguments, sizeof arguments, "--parallel 1 --cache-dir %s", folder);
    talk_add(&t, "user", "What is a mixture of experts? Tell me all that you know of it, and of its experts, and of the router, "
             "and of all else that I should know of such models before I use one of them on my own machine", "");
    for (int run = 0; run < 3; run++) {
        server s = serve(arguments);
        talk_ask(s, &t, 40, answer, sizeof answer, &fresh);
        talk_ask(alone, &t, 40, again, sizeof again, &all);
        CHECK(!strcmp(answer, again), "run %d: '%s', '%s'", run, answer, again);
        CHECK(run == 0 ? fresh == all : fresh < all && fresh < 110, "run %d reads %ld tokens of %ld", run, fresh, all);
        talk_add(&t, "assistant", answer, "");
        talk_add(&t, "user", "Go on, please, and do not stop", "");
        stop(s);
        CHECK(kept_files(folder, path, sizeof path) == 1, "run %d leaves %d files", run, kept_files(folder, path, sizeof path));
    }
    FILE *file = fopen(path, "r+b");
    if (file && !fseek(file, 5000, SEEK_SET)) fputs("damage", file);
    if (file) fclose(file);
    server s = serve(arguments);
    talk_ask(s, &t, 40, answer, sizeof answer, &fresh);
    talk_ask(alone, &t, 40, again, sizeof again, &all);
    CHECK(fresh == all && !strcmp(answer, again), "a damaged file: %ld tokens of %ld, '%s', '%s'", fresh, all, answer, again);
    talk_add(&other, "user", "Tell me a story about a fox and a bird in a wood, and let it be a long one", "");
    talk_ask(s, &other, 40, answer, sizeof answer, &fresh);
    stop(s);
    int files = kept_files(folder, path, sizeof path);
    CHECK(files >= 2, "%d files of two conversations", files);
    snprintf(arguments, sizeof arguments, "--parallel 1 --cache-dir %s --cache-disk 0", folder);
    s = serve(arguments);
    stop(s);
    CHECK(kept_files(folder, path, sizeof path) < files, "%d files with space for none", kept_files(folder, path, sizeof path));
    stop(alone);
    temp_close();
}

// ---- Under load ------------------------------------------------------------------------------------------------------

static const char endless[] = "{\"messages\": [" FP8 "], \"max_tokens\": 3500, \"ignore_eos\": true, \"stream\": true}";

static void wait_for(server s, const char *name, long value) {
    double until = now() + 20;
    while (metric(s, name) != value && now() < until) usleep(20000);
    CHECK(metric(s, name) == value, "%s is %ld, expected %ld", name, metric(s, name), value);
}

// One answer at a time, one may wait: the third is told to come back; who goes away frees the place.
static void test_queue(void) {
    server s = serve("--parallel 1 --queue 1");
    int one = dial(s), two = dial(s);
    post_on(one, "/v1/chat/completions", endless);
    wait_for(s, "sessions_busy", 1);
    post_on(two, "/v1/chat/completions", "{\"messages\": [" FP8 "], \"max_tokens\": 5}");
    wait_for(s, "requests_waiting", 1);
    heard h = post(s, "/v1/chat/completions", endless);
    CHECK(h.status == 503 && strstr(h.data, "Retry-After: "), "the queue is full: %d %s", h.status, h.data);
    forget(&h);
    double left = now();
    close(one);
    h = hear(two);
    CHECK(h.status == 200 && now() - left < 5, "the next one after %.1f s: %d %s", now() - left, h.status, h.body);
    CHECK(metric(s, "requests_cancelled_total") == 1, "%ld cancelled", metric(s, "requests_cancelled_total"));
    forget(&h);
    close(two);
    stop(s);
}

// Answers at the same time are computed together; who leaves takes no part in the passes that follow, and /health tells of them.
static void test_together(void) {
    enum { ANSWERS = 4 };
    server s = serve("--parallel 4");
    int fd[ANSWERS];
    char block[65536];
    for (int i = 0; i < ANSWERS; i++) post_on(fd[i] = dial(s), "/v1/chat/completions", endless);
    for (int i = 0; i < ANSWERS; i++) CHECK(recv(fd[i], block, sizeof block, 0) > 0, "no stream");
    wait_for(s, "sessions_busy", ANSWERS);
    const double passes = (double)metric(s, "batches_total"), answers = (double)metric(s, "batch_answers_total");
    double until = now() + 60, more = 0;
    while (more < 20 && now() < until) more = (double)metric(s, "batches_total") - passes;
    const double together = (double)metric(s, "batch_answers_total") - answers;
    CHECK(more > 0 && together > 1.2 * more, "%g passes of %g answers", more, together);
    heard h = get(s, "/health");
    CHECK(h.status == 200 && strstr(h.body, "\"status\": \"ok\", \"step_age_seconds\": "), "health: %d %s", h.status, h.body);
    forget(&h);
    for (int i = 0; i < ANSWERS; i++) close(fd[i]);
    const double left = now();
    wait_for(s, "sessions_busy", 0);
    CHECK(now() - left < 10, "left, and over after %.1f s", now() - left);
    const long ended = metric(s, "batches_total");
    usleep(100000);
    CHECK(metric(s, "batches_total") == ended && metric(s, "requests_cancelled_total") == ANSWERS, "passes go on without answers");
    stop(s);
}

// Tokens of prompts that have been read, and passes, at one moment.
static void progress_of(server s, long *read, long *passes) {
    heard h = get(s, "/metrics");
    const char *r = strstr(h.body, "\nmote_read_tokens_total "), *p = strstr(h.body, "\nmote_batches_total ");
    if (r && p) {
        *read = strtol(strchr(r + 1, ' '), NULL, 10);
        *passes = strtol(strchr(p + 1, ' '), NULL, 10);
    }
    forget(&h);
}

// Several answers at once all go on, and a long prompt among them does not stop them: nowhere is half of it read without a pass of theirs. How long
// that takes is not asked.
static void test_fairness(void) {
    static char body[1 << 15];
    server s = serve("--parallel 3");
    int one = dial(s), two = dial(s);
    long from = 0, passes = 0, first = 0, most = 0, read = 0, seen = 0, events = 0;
    size_t n = (size_t)snprintf(body, sizeof body, "{\"max_tokens\": 2, \"prompt\": \"");
    for (int i = 0; i < (test_brief ? 600 : 1200); i++) n += (size_t)snprintf(body + n, sizeof body - n, "word %d", i % 7);
    snprintf(body + n, sizeof body - n, "\"}");
    post_on(one, "/v1/chat/completions", endless);
    char block[65536];
    CHECK(recv(one, block, sizeof block, 0) > 0, "no stream");
    progress_of(s, &from, &passes);
    first = from;
    post_on(two, "/v1/completions", body);
    for (int done = 0; !done;) {
        struct pollfd p[2] = {{one, POLLIN, 0}, {two, POLLIN, 0}};
        poll(p, 2, 1);
        if (p[1].revents) done = 1;
        if (p[0].revents && recv(one, block, sizeof block, 0) <= 0) done = 1;
        else if (p[0].revents) events++;
        progress_of(s, &read, &seen);
        if (seen != passes) from = read;
        passes = seen;
        if (read - from > most) most = read - from;
    }
    heard h = hear(two);
    CHECK(h.status == 200, "the long prompt: %d %.200s", h.status, h.body);
    CHECK(events >= 2 && read > first && most <= (read - first) / 2, "%ld events of an answer, and %ld of %ld tokens of a long prompt without a pass", events, most,
          read - first);
    forget(&h);
    close(one);
    close(two);
    wait_for(s, "sessions_busy", 0);
    stop(s);
}

// Ctrl-C lets an answer finish, a second one does not.
static void test_interrupt(void) {
    server s = serve("");
    int fd = dial(s), idle = dial(s);
    post_on(fd, "/v1/chat/completions", "{\"messages\": [" FP8 "], \"max_tokens\": 400, \"ignore_eos\": true, \"stream\": true}");
    wait_for(s, "sessions_busy", 1);
    kill(s.pid, SIGINT);
    heard h = hear(fd);
    CHECK(strstr(h.body, "data: [DONE]") && count_of_text(h.body, "chat.completion.chunk") > 400, "the answer was cut: %zu bytes", h.size);
    forget(&h);
    int code = end_of(s);
    CHECK(code == 130, "exit code %d after Ctrl-C", code);
    close(fd);
    close(idle);
    static const int second[] = {SIGINT, SIGTERM};
    for (int i = 0; i < 2; i++) {
        s = serve("");
        fd = dial(s);
        post_on(fd, "/v1/chat/completions", endless);
        wait_for(s, "sessions_busy", 1);
        kill(s.pid, SIGINT);
        usleep(100000);
        kill(s.pid, second[i]);
        code = end_of(s);
        CHECK(code == 1000 + second[i] || (second[i] == SIGINT && code == 130), "exit code %d after Ctrl-C and signal %d", code, second[i]);
        close(fd);
    }
}

// ---- Anything else ---------------------------------------------------------------------------------------------------

// Damaged requests of each kind: always an answer, and a server that lives.
static void test_damaged(server s) {
    static const struct { const char *path, *body; } good[] = {
        {"/v1/chat/completions", "{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": "
         "\"{}\"}}]}, " FP8 "], \"max_tokens\": 2, \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], \"stop\": [\"a\"], "
         "\"logit_bias\": {\"5\": 1}, \"logprobs\": true, \"top_logprobs\": 1}"},
        {"/v1/chat/completions", SCHEMA("{\"type\": \"object\", \"properties\": {\"a\": {\"anyOf\": [{\"type\": \"null\"}, {\"$ref\": \"#\"}]}, \"b\": "
         "{\"type\": \"array\", \"items\": {\"enum\": [1, 12]}, \"maxItems\": 2}}, \"required\": [\"b\"]}")},
        {"/v1/completions", "{\"prompt\": [[1, 2], [3]], \"max_tokens\": 2, \"echo\": true, \"logprobs\": 1}"},
        {"/v1/messages", "{\"max_tokens\": 2, \"system\": [{\"text\": \"s\"}], \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"tool_result\", "
         "\"content\": \"x\"}, {\"type\": \"text\", \"text\": \"y\"}]}], \"thinking\": {\"type\": \"enabled\"}, \"tools\": [{\"name\": \"f\"}]}"},
        {"/v1/responses", "{\"input\": [{\"type\": \"reasoning\", \"content\": [{\"text\": \"a\"}]}, {\"type\": \"function_call\", \"name\": \"f\", "
         "\"arguments\": \"{}\"}, {\"type\": \"function_call_output\", \"output\": \"x\"}, " FP8 "], \"max_output_tokens\": 2, \"stream\": true}"},
        {"/tokenize", "{\"messages\": [" FP8 "]}"},
        {"/detokenize", "{\"tokens\": [1, 2, 3]}"}};
    int answered = 0, refused = 0;
    for (int i = 0; i < (test_brief ? 80 : 600); i++) {
        int k = random_int(0, (int)(sizeof good / sizeof good[0]) - 1);
        char body[1024];
        size_t n = strlen(good[k].body);
        memcpy(body, good[k].body, n + 1);
        for (int times = random_int(0, 3); times-- > 0;) {
            size_t at = (size_t)random_int(0, (int)n - 1), size = (size_t)random_int(1, 6);
            if (random_int(0, 1)) body[at] = "{}[]\",:0-1ntf\\ \x80"[random_int(0, 15)];
            else if (at + size < n) memmove(body + at, body + at + size, n - at - size + 1), n -= size;
        }
        heard h = post(s, good[k].path, body);
        CHECK(h.status == 200 || h.status == 400, "%s %s: %d %s", good[k].path, body, h.status, h.data);
        if (h.status == 200) answered++;
        else refused++;
        forget(&h);
    }
    CHECK(answered > (test_brief ? 5 : 20) && refused > 20, "%d answered, %d refused: no test", answered, refused);
}

// With timings_per_token every event has the drafts so far, which grow up to the last event's.
static void test_drafts_so_far(server s) {
    heard h = post(s, "/v1/chat/completions", "{\"messages\": [" FP8 "], \"temperature\": 0, \"stream\": true, \"timings_per_token\": true}");
    long before = 0, n = 0, values = 0;
    for (const char *at = h.body; (at = strstr(at, "\"draft_n\": ")) != NULL; values += n > before, before = n) {
        n = atol(at += strlen("\"draft_n\": "));
        const char *accepted = strstr(at, "\"draft_n_accepted\": ");
        CHECK(n >= before && accepted && atol(accepted + strlen("\"draft_n_accepted\": ")) <= n, "drafts of an event: %.60s, %ld before", at, before);
    }
    CHECK(values > 2, "draft_n has %ld values in the events: %s", values, h.body);
    forget(&h);
}

// What drafts came to is in the timings of their answer, and in the sum of all; without drafts nothing is told of them.
static void test_drafts(server plain) {
    static const char *const asked[][2] = {
        {"/v1/chat/completions", "{\"messages\": [" FP8 "], \"temperature\": 0}"},
        {"/v1/chat/completions", "{\"messages\": [" FP8 "], \"temperature\": 0, \"stream\": true}"},
        {"/v1/completions", "{\"prompt\": [\"A mixture of experts\", \"A mixture of experts is\"], \"temperature\": 0}"}};
    server s = serve("--parallel 1 --mtp 2");
    long drafted = 0, accepted = 0;
    for (size_t i = 0; i < sizeof asked / sizeof asked[0]; i++) {
        heard h = post(s, asked[i][0], asked[i][1]);
        long of = metric(s, "drafted_tokens_total") - drafted, good = metric(s, "accepted_tokens_total") - accepted;
        CHECK(of > 0 && good > 0 && good <= of, "%ld of %ld drafts accepted: no test", good, of);
        if (i < 2) CHECK(number(&h, "draft_n") >= of && number(&h, "draft_n") <= 2 * number(&h, "predicted_n") && number(&h, "draft_n_accepted") == good,
                         "%ld of %ld drafts: %s", good, of, h.body);
        drafted += of;
        accepted += good;
        forget(&h);
    }
    test_drafts_so_far(s);
    heard h = post(plain, asked[0][0], asked[0][1]);
    CHECK(h.status == 200 && !strstr(h.body, "draft_n"), "drafts without any: %s", h.body);
    forget(&h);
    stop(s);
}

int main(int argc, char **argv) {
    test_main_begin("serve", argc, argv);
    server s = serve("--parallel 2"), plain = serve("--parallel 1 --mtp 0 --cache-memory 0");
    int slow = slow_begin(s);
    test_requests(s);
    test_pipelining(s);
    test_same_text(s);
    if (!test_brief) test_same_text(plain);
    test_chat(s);
    test_history(s);
    test_completions(s);
    test_other_apis(s);
    test_schema(s);
    test_agent(s, plain);
    test_drafts(plain);
    slow_end(slow);
    test_damaged(s);
    stop(s);
    stop(plain);
    test_access();
    if (!test_brief) test_two();
    test_budget();
    test_disk();
    test_queue();
    test_together();
    test_fairness();
    test_interrupt();
    return test_main_end();
}
