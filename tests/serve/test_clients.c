// Tests of mote serve with what clients of other servers send, and what they make of the answers: histories, calls, ends, streams.
// A parrot says what a model would have to say.

#include "engine.h"
#include "client.h"
#include "parrot.h"

static const char chat_path[] = "/v1/chat/completions", messages_path[] = "/v1/messages", responses_path[] = "/v1/responses";

#define GO "{\"role\": \"user\", \"content\": \"go\"}"
#define CALL(f, more) "<tool_call>\n<function=" f ">\n" more "</function>\n</tool_call>"
#define PARAMETER(name, value) "<parameter=" name ">\n" value "\n</parameter>\n"
#define STRING "{\"type\": \"string\"}"
#define READ "{\"type\": \"function\", \"function\": {\"name\": \"read\", \"parameters\": {\"type\": \"object\", \"properties\": {\"filePath\": " STRING "}}}}"
#define WRITE "{\"type\": \"function\", \"function\": {\"name\": \"write_file\", \"parameters\": {\"type\": \"object\", \"properties\": {\"path\": " \
              STRING ", \"content\": " STRING "}}}}"

enum { SAY_PLAIN, SAY_TWO, SAY_STOP, SAY_SPACE, SAY_CUSTOM, SAY_THINK, SAY_COUNT };
static const char *const scripts[] = {
    "</think>\n\nHello world, that is all.",
    "</think>\n\n" CALL("read", PARAMETER("filePath", "a.txt")) "\n" CALL("write_file", PARAMETER("path", "b.txt") PARAMETER("content", "qwerty asdf "
    "zxcv and a long tail of words after it")),
    "</think>\n\nIt is 4. \xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc"
    "\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc\xc3\xa4\xc3\xb6\xc3\xbc "
    "and more.",
    "</think>\n\n" CALL("mcp__fs__read", PARAMETER("p", "a.txt")),
    "</think>\n\n" CALL("apply_patch", PARAMETER("input", "*** Begin Patch\n\"x\"")),
    "I think of it and then of it again.\n</think>\n\nDone.",
};
static int32_t starts[SAY_COUNT];

// ---- Asking ----------------------------------------------------------------------------------------------------------

// The answer must have the status and hold the text; `lacks`: must not hold this one. NULL: any.
static void check(server s, const char *path, const char *body, int status, const char *holds, const char *lacks) {
    heard h = post(s, path, body);
    CHECK(h.status == status && (!holds || strstr(h.body, holds)), "%s %.600s: %d %s, expected %d with '%s'", path, body, h.status, h.body, status,
          holds ? holds : "");
    CHECK(!lacks || !strstr(h.body, lacks), "%s %.600s: %s holds '%s'", path, body, h.body, lacks ? lacks : "");
    forget(&h);
}

// Of the parrot: `more` are further fields of the request.
static heard say(server s, const char *path, int script, const char *more) {
    char body[4096];
    const char *input = strcmp(path, responses_path) ? "messages" : "input", *most = strcmp(path, responses_path) ? "max_tokens" : "max_output_tokens";
    const char *thinks = strcmp(path, messages_path) ? "" : "\"thinking\": {\"type\": \"adaptive\"}, ";
    snprintf(body, sizeof body, "{\"%s\": [" GO "], \"logit_bias\": {\"%d\": 100}, \"%s\": 400, %s\"cache_prompt\": false%s%s}", input, starts[script],
             most, thinks, *more ? ", " : "", more);
    return post(s, path, body);
}

static void check_says(server s, const char *path, int script, const char *more, const char *holds, const char *lacks) {
    heard h = say(s, path, script, more);
    CHECK(h.status == 200 && strstr(h.body, holds), "%s '%s', %s: %d %s, expected '%s'", path, scripts[script], more, h.status, h.body, holds);
    CHECK(!lacks || !strstr(h.body, lacks), "%s '%s', %s: %s holds '%s'", path, scripts[script], more, h.body, lacks);
    forget(&h);
}

// The prompt that a chat becomes, escaped as in JSON.
static void prompt_of(server s, const char *body, char *to, size_t capacity) {
    heard h = post(s, "/tokenize", body);
    const char *from = strchr(h.body, '['), *end = from ? strchr(from, ']') : NULL;
    to[0] = 0;
    if (CHECK(h.status == 200 && end, "/tokenize %.500s: %d %s", body, h.status, h.body)) {
        char *ids = (char *)allocate((size_t)(end - from) + 64);
        sprintf(ids, "{\"tokens\": %.*s}", (int)(end + 1 - from), from);
        heard text = post(s, "/detokenize", ids);
        join(text.body, "content", to, capacity);
        forget(&text);
        free(ids);
    }
    forget(&h);
}

static long tokens_of(server s, const char *path, const char *body) {
    heard h = post(s, path, body);
    long n = number(&h, strcmp(path, "/tokenize") ? "input_tokens" : "count");
    CHECK(h.status == 200 && n > 0, "%s %.600s: %d %s", path, body, h.status, h.body);
    forget(&h);
    return n;
}

// ---- Histories -------------------------------------------------------------------------------------------------------

#define TWO_CALLS "{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"a\", \"type\": \"function\", \"function\": {\"name\": \"weather\", " \
                  "\"arguments\": \"{}\"}}, {\"id\": \"b\", \"type\": \"function\", \"function\": {\"name\": \"time\", \"arguments\": \"{}\"}}]}"

// Results go to the calls by their ids, in all APIs.
static void test_order(server s) {
    char text[8192];
    prompt_of(s, "{\"messages\": [" GO ", " TWO_CALLS ", {\"role\": \"tool\", \"tool_call_id\": \"b\", \"content\": \"RTIME\"}, "
                 "{\"role\": \"tool\", \"tool_call_id\": \"a\", \"content\": \"RWEATHER\"}]}", text, sizeof text);
    const char *weather = strstr(text, "RWEATHER"), *time = strstr(text, "RTIME");
    CHECK(weather && time && weather < time, "results in the order of their coming: %s", text);
    heard h = post(s, chat_path, "{\"max_tokens\": 1, \"enable_thinking\": false, \"messages\": [" GO ", " TWO_CALLS
                   ", {\"role\": \"tool\", \"tool_call_id\": \"a\", \"content\": \"RWEATHER\"}, {\"role\": \"tool\", \"tool_call_id\": \"b\", "
                   "\"content\": \"RTIME\"}]}");
    long all = number(&h, "prompt_tokens");
    forget(&h);
    // The same prompt, so that all but the answer's header is there.
    h = post(s, messages_path, "{\"max_tokens\": 1, \"messages\": [" GO ", {\"role\": \"assistant\", \"content\": [{\"type\": \"tool_use\", \"id\": \"a\", "
             "\"name\": \"weather\", \"input\": {}}, {\"type\": \"tool_use\", \"id\": \"b\", \"name\": \"time\", \"input\": {}}]}, {\"role\": \"user\", "
             "\"content\": [{\"type\": \"tool_result\", \"tool_use_id\": \"b\", \"content\": \"RTIME\"}, {\"type\": \"tool_result\", \"tool_use_id\": "
             "\"a\", \"content\": \"RWEATHER\"}]}]}");
    CHECK(number(&h, "cache_read_input_tokens") > all - 12, "messages: of %ld tokens %ld were there: %s", all, number(&h, "cache_read_input_tokens"), h.body);
    forget(&h);
    h = post(s, responses_path, "{\"max_output_tokens\": 1, \"enable_thinking\": false, \"input\": [" GO ", {\"type\": \"function_call\", \"call_id\": \"a\", "
             "\"name\": \"weather\", \"arguments\": \"{}\"}, {\"type\": \"function_call\", \"call_id\": \"b\", \"name\": \"time\", \"arguments\": "
             "\"{}\"}, {\"type\": \"function_call_output\", \"call_id\": \"b\", \"output\": \"RTIME\"}, {\"type\": \"function_call_output\", "
             "\"call_id\": \"a\", \"output\": \"RWEATHER\"}]}");
    CHECK(number(&h, "cached_tokens") > all - 12, "responses: of %ld tokens %ld were there: %s", all, number(&h, "cached_tokens"), h.body);
    forget(&h);
}

// System messages in the middle stay there; those at the beginning are one. What is left of a history without its user is read.
static void test_system(server s) {
    static const char mid[] = "{\"max_tokens\": 1, \"messages\": [{\"role\": \"system\", \"content\": \"S1\"}, {\"role\": \"developer\", \"content\": \"S2\"}, " GO
                              ", {\"role\": \"assistant\", \"content\": \"OK\"}, {\"role\": \"%s\", \"content\": \"NOTE\"}, " GO "]}";
    static const char *const roles[] = {"system", "developer"};
    char body[1024], text[8192];
    for (int i = 0; i < 2; i++) {
        snprintf(body, sizeof body, mid, roles[i]);
        check(s, chat_path, body, 200, "choices", NULL);
        prompt_of(s, body, text, sizeof text);
        const char *first = strstr(text, "S1\\n\\nS2"), *ok = strstr(text, "OK"), *note = strstr(text, "NOTE");
        CHECK(first && ok && note && first < ok && ok < note, "a system message in the middle: %s", text);
    }
    check(s, messages_path, "{\"max_tokens\": 1, \"messages\": [" GO ", {\"role\": \"assistant\", \"content\": \"ok\"}, {\"role\": \"system\", \"content\": "
          "\"n\"}, " GO "]}", 200, "content", NULL);
    check(s, responses_path, "{\"max_output_tokens\": 1, \"input\": [" GO ", {\"role\": \"developer\", \"content\": \"n\"}]}", 200, "output", NULL);
    check(s, chat_path, "{\"max_tokens\": 1, \"messages\": [{\"role\": \"system\", \"content\": \"s\"}, " TWO_CALLS ", {\"role\": \"tool\", "
          "\"tool_call_id\": \"a\", \"content\": \"wet\"}]}", 200, "choices", NULL);
}

// An answer that has begun is continued where that is asked for, and only what is new comes back.
static void test_prefill(server s) {
    static const char begun[] = "{\"role\": \"assistant\", \"content\": \"FP8 is a floating point\"}";
    char body[1024], text[8192];
#define FP8 "{\"role\": \"user\", \"content\": \"What is FP8?\"}"
    snprintf(body, sizeof body, "{\"messages\": [" FP8 ", %s], \"continue_final_message\": true, \"add_generation_prompt\": false, \"temperature\": 0}", begun);
    prompt_of(s, body, text, sizeof text);
    size_t n = strlen(text), m = strlen("assistant\\n<think>\\n\\n</think>\\n\\nFP8 is a floating point");
    CHECK(n > m && !strcmp(text + n - m, "assistant\\n<think>\\n\\n</think>\\n\\nFP8 is a floating point"), "a continued answer: %s", text);
    check(s, chat_path, body, 200, "\"content\": \" number in", "floating");
    snprintf(body, sizeof body, "{\"max_tokens\": 20, \"temperature\": 0, \"messages\": [" FP8 ", %s]}", begun);
    check(s, messages_path, body, 200, "\"text\": \" number in", "floating");
    CHECK(tokens_of(s, "/v1/messages/count_tokens", body) == tokens_of(s, "/tokenize", "{\"messages\": [" FP8 ", {\"role\": \"assistant\", \"content\": "
          "\"FP8 is a floating point\"}], \"continue_final_message\": true}"), "messages and chat continue differently");
    prompt_of(s, "{\"messages\": [" FP8 "], \"add_generation_prompt\": false}", text, sizeof text);
    CHECK(strstr(text, "FP8?<|im_end|>\\n") && !strstr(text, "assistant"), "without a generation prompt: %s", text);
    static const char *const refused[][2] = {
        {"\"continue_final_message\": true, \"add_generation_prompt\": true", "cannot both be true"},
        {"\"continue_final_message\": true, \"response_format\": {\"type\": \"json_object\"}", "has begun"},
        {"\"continue_final_message\": 1", "continue_final_message must be true or false"}};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        snprintf(body, sizeof body, "{\"messages\": [" FP8 ", %s], %s}", begun, refused[i][0]);
        check(s, chat_path, body, 400, refused[i][1], NULL);
    }
    check(s, chat_path, "{\"messages\": [" FP8 "], \"continue_final_message\": true}", 400, "is not the assistant's", NULL);
    check(s, chat_path, "{\"messages\": [" FP8 ", " TWO_CALLS "], \"continue_final_message\": true}", 400, "calls a tool", NULL);
    check(s, messages_path, "{\"max_tokens\": 1, \"messages\": [" FP8 ", {\"role\": \"assistant\", \"content\": [{\"type\": \"tool_use\", \"name\": \"f\"}]}]}",
          400, "calls a tool", NULL);
}

// Only the line that bills is dropped, wherever the text begins with it.
static void test_billing(server s) {
    static const char *const systems[] = {
        "\"You are X.\"", "\"x-anthropic-billing-header: cc_version=2; cch=1a;\\nYou are X.\"", "\"x-anthropic-billing-header: cch=2b;\\nYou are X.\"",
        "[{\"type\": \"text\", \"text\": \"x-anthropic-billing-header: cch=1\"}, {\"type\": \"text\", \"text\": \"You are X.\"}]",
        "[{\"type\": \"text\", \"text\": \"x-anthropic-billing-header: cch=1\\nYou are X.\", \"cache_control\": {\"type\": \"ephemeral\"}}]"};
    char body[512];
    long first = 0;
    for (size_t i = 0; i < sizeof systems / sizeof systems[0]; i++) {
        snprintf(body, sizeof body, "{\"system\": %s, \"messages\": [" GO "]}", systems[i]);
        long n = tokens_of(s, "/v1/messages/count_tokens", body);
        if (!i) first = n;
        CHECK(n == first, "%s: %ld tokens, not %ld", systems[i], n, first);
    }
    CHECK(tokens_of(s, "/v1/messages/count_tokens", "{\"system\": \"Of x-anthropic-billing-header: y\\nYou are X.\", \"messages\": [" GO "]}") > first + 8,
          "a text that names the header elsewhere loses a line");
}

// An image in a tool's result is told as such; in what a user says it is refused by its type.
static void test_images(server s) {
    char text[8192];
    prompt_of(s, "{\"messages\": [" GO ", " TWO_CALLS ", {\"role\": \"tool\", \"tool_call_id\": \"a\", \"content\": [{\"type\": \"text\", \"text\": \"see\"}, "
                 "{\"type\": \"image_url\", \"image_url\": {\"url\": \"data:\"}}]}]}", text, sizeof text);
    CHECK(strstr(text, "see[image: this model reads no images]"), "an image in a tool's result: %s", text);
#define RESULT(part) "{\"max_tokens\": 1, \"messages\": [" GO ", {\"role\": \"assistant\", \"content\": [{\"type\": \"tool_use\", \"id\": \"a\", \"name\": " \
                     "\"read\", \"input\": {}}]}, {\"role\": \"user\", \"content\": [{\"type\": \"tool_result\", \"tool_use_id\": \"a\", \"content\": [" \
                     "{\"type\": \"text\", \"text\": \"see\"}, " part "]}]}]}"
    static const char image[] = RESULT("{\"type\": \"image\", \"source\": {\"type\": \"base64\", \"data\": \"\"}}");
    static const char same[] = RESULT("{\"type\": \"text\", \"text\": \"[image: this model reads no images]\"}");
    check(s, messages_path, image, 200, "content", NULL);
    CHECK(tokens_of(s, "/v1/messages/count_tokens", image) == tokens_of(s, "/v1/messages/count_tokens", same), "an image in a tool_result is not told");
    check(s, messages_path, RESULT("{\"type\": \"document\", \"source\": {\"type\": \"url\", \"url\": \"x\"}}"), 200, "content", NULL);
    check(s, responses_path, "{\"max_output_tokens\": 1, \"input\": [" GO ", {\"type\": \"function_call\", \"call_id\": \"a\", \"name\": \"f\", \"arguments\": "
          "\"\"}, {\"type\": \"function_call_output\", \"call_id\": \"a\", \"output\": [{\"type\": \"input_image\", \"image_url\": \"data:\"}]}]}", 200, "output", NULL);
    check(s, chat_path, "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}", 400, "image_url", NULL);
    check(s, messages_path, "{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}", 400, "type \\\"image\\\"", NULL);
    check(s, responses_path, "{\"input\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_image\"}]}]}", 400, "input_image", NULL);
}

// What tools found is text with its title and source, wherever it stands; of a tool that was found there is the name, of what nobody knows
// the JSON.
static void test_found(server s) {
#define FOUND "{\"type\": \"search_result\", \"source\": \"notes\", \"title\": \"n\", \"content\": [{\"type\": \"text\", \"text\": \"one\"}]}"
#define ASKED(blocks) "{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", \"content\": [" blocks "]}]}"
#define TEXT(t) "{\"type\": \"text\", \"text\": \"" t "\"}"
    static const char *const same[][2] = {
        {RESULT(FOUND), RESULT(TEXT("\\n\\nn\\nnotes\\none"))},
        {RESULT("{\"type\": \"tool_reference\", \"tool_name\": \"get_weather\"}"), RESULT(TEXT("[tool_reference: get_weather]"))},
        {RESULT("{\"stdout\": \"one\", \"stderr\": \"\"}"), RESULT(TEXT("{\\\"stdout\\\": \\\"one\\\", \\\"stderr\\\": \\\"\\\"}"))},
        {ASKED(FOUND ", " TEXT("why?")), ASKED(TEXT("n\\nnotes\\none\\nwhy?"))},
        {ASKED("{\"type\": \"document\", \"source\": {\"type\": \"content\", \"content\": [" TEXT("one") ", " TEXT("two") "]}}"), ASKED(TEXT("onetwo"))}};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        long found = tokens_of(s, "/v1/messages/count_tokens", same[i][0]), text = tokens_of(s, "/v1/messages/count_tokens", same[i][1]);
        CHECK(found == text, "%s: %ld tokens, not %ld", same[i][0], found, text);
    }
    char text[4096];
    prompt_of(s, "{\"messages\": [" GO ", " TWO_CALLS ", {\"role\": \"tool\", \"tool_call_id\": \"a\", \"content\": {\"temp\": 21.50}}]}", text, sizeof text);
    CHECK(strstr(text, "{\"temp\": 21.50}") || strstr(text, "{\\\"temp\\\": 21.50}"), "a result that is an object: %s", text);
    check(s, messages_path, ASKED("{\"type\": \"document\", \"source\": {\"type\": \"url\"}}"), 400, "a document that is no text", NULL);
}

// Arguments of a past call that are no object, as they were cut off, are written as they are, in all APIs.
static void test_cut_arguments(server s) {
    static const char *const cut[] = {"\"{\\\"city\\\": \\\"Ro\"", "\"[1]\"", "[1]", "7", "\"null\"", "null", "\" \""};
    char body[1024], text[8192];
    for (size_t i = 0; i < sizeof cut / sizeof cut[0]; i++) {
        snprintf(body, sizeof body, "{\"max_tokens\": 1, \"messages\": [" GO ", {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"a\", "
                 "\"type\": \"function\", \"function\": {\"name\": \"weather\", \"arguments\": %s}}]}, {\"role\": \"tool\", \"tool_call_id\": \"a\", "
                 "\"content\": \"bad\"}, " GO "]}", cut[i]);
        check(s, chat_path, body, 200, "content", NULL);
        prompt_of(s, body, text, sizeof text);
        CHECK(strstr(text, "weather") && (i || strstr(text, "Ro")) && (i != 1 || strstr(text, "[1")), "%s: %s", body, text);
        snprintf(body, sizeof body, "{\"max_output_tokens\": 1, \"input\": [" GO ", {\"type\": \"function_call\", \"call_id\": \"a\", \"name\": \"weather\", "
                 "\"arguments\": %s}, {\"type\": \"function_call_output\", \"call_id\": \"a\", \"output\": \"bad\"}, " GO "]}", cut[i]);
        check(s, responses_path, body, 200, "output", NULL);
        snprintf(body, sizeof body, "{\"max_tokens\": 1, \"messages\": [" GO ", {\"role\": \"assistant\", \"content\": [{\"type\": \"tool_use\", \"id\": \"a\", "
                 "\"name\": \"weather\", \"input\": %s}]}, {\"role\": \"user\", \"content\": [{\"type\": \"tool_result\", \"tool_use_id\": \"a\", "
                 "\"content\": \"bad\"}]}]}", cut[i]);
        check(s, messages_path, body, 200, "content", NULL);
    }
}

// Items that a server elsewhere has made, and calls of all kinds: they are history.
static void test_items(server s) {
    static const char *const calls[][2] = {
        {"{\"type\": \"custom_tool_call\", \"call_id\": \"a\", \"name\": \"f\", \"input\": \"x\"}", "{\"type\": \"custom_tool_call_output\", \"call_id\": \"a\", \"output\": \"y\"}"},
        {"{\"type\": \"local_shell_call\", \"call_id\": \"a\", \"action\": {\"type\": \"exec\", \"command\": [\"ls\"]}}",
         "{\"type\": \"local_shell_call_output\", \"call_id\": \"a\", \"output\": \"y\"}"},
        {"{\"type\": \"mcp_call\", \"id\": \"a\", \"name\": \"f\", \"arguments\": \"{}\", \"output\": \"y\"}", ""},
        {"{\"type\": \"web_search_call\", \"action\": {\"type\": \"search\", \"query\": \"z\"}}", ""},
        {"{\"type\": \"ghost_snapshot\", \"ghost_commit\": {}}", ""}};
    char body[1024];
    long nothing = 0;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        snprintf(body, sizeof body, "{\"max_output_tokens\": 1, \"input\": [" GO ", %s%s%s, " GO "]}", calls[i][0], *calls[i][1] ? ", " : "", calls[i][1]);
        long n = tokens_of(s, responses_path, body);
        if (!nothing) nothing = tokens_of(s, responses_path, "{\"max_output_tokens\": 1, \"input\": [" GO ", " GO "]}");
        CHECK(i < 3 ? n > nothing + 10 : n == nothing, "%s: %ld tokens, %ld without", calls[i][0], n, nothing);
    }
    check(s, responses_path, "{\"input\": [{\"type\": \"item_reference\", \"id\": \"x\"}]}", 400, "item_reference", NULL);
    check(s, responses_path, "{\"input\": [{\"type\": \"compaction\", \"encrypted_content\": \"x\"}]}", 400, "compaction", NULL);
    check(s, messages_path, "{\"max_tokens\": 1, \"messages\": [" GO ", {\"role\": \"assistant\", \"content\": [{\"type\": \"server_tool_use\", \"name\": "
          "\"web_search\"}, {\"type\": \"web_search_tool_result\"}, {\"type\": \"text\", \"text\": \"x\"}]}, " GO "]}", 200, "content", NULL);
}

// ---- Tools -----------------------------------------------------------------------------------------------------------

#define NAMED_READ "{\"name\": \"read\", \"input_schema\": {\"type\": \"object\", \"properties\": {\"filePath\": " STRING "}}}"
#define NAMED_WRITE "{\"name\": \"write_file\", \"input_schema\": {\"type\": \"object\", \"properties\": {\"path\": " STRING ", \"content\": " STRING "}}}"
#define FLAT(name) "{\"type\": \"function\", \"name\": \"" name "\", \"parameters\": {\"type\": \"object\", \"properties\": {\"path\": " STRING ", \"content\": " \
                   STRING ", \"filePath\": " STRING "}}}"

#define SPACE "{\"type\": \"namespace\", \"name\": \"mcp__fs__\", \"description\": \"files\", \"tools\": [{\"type\": \"function\", \"name\": \"read\", " \
              "\"parameters\": {\"type\": \"object\", \"properties\": {\"p\": " STRING "}}}]}"

// An answer that is cut is told as cut, though it has a whole call: a client must not take that for all of them.
static void test_length(server s) {
    static const char chat[] = "\"tools\": [" READ ", " WRITE "], \"max_tokens\": 28";
    check_says(s, chat_path, SAY_TWO, chat, "\"finish_reason\": \"length\"", "\"finish_reason\": \"tool_calls\"");
    check_says(s, chat_path, SAY_TWO, "\"stream\": true, \"tools\": [" READ ", " WRITE "], \"max_tokens\": 28", "\"finish_reason\": \"length\"",
               "\"finish_reason\": \"tool_calls\"");
    check_says(s, messages_path, SAY_TWO, "\"tools\": [" NAMED_READ ", " NAMED_WRITE "], \"max_tokens\": 28", "\"stop_reason\": \"max_tokens\"", NULL);
    check_says(s, responses_path, SAY_TWO, "\"tools\": [" FLAT("read") ", " FLAT("write_file") "], \"max_output_tokens\": 28",
               "\"status\": \"incomplete\"", NULL);
    check_says(s, chat_path, SAY_TWO, "\"tools\": [" READ ", " WRITE "]", "\"finish_reason\": \"tool_calls\"", NULL);
}

// One call where only one is wanted, and what was asked is told.
static void test_one_call(server s) {
    heard h = say(s, chat_path, SAY_TWO, "\"tools\": [" READ ", " WRITE "], \"parallel_tool_calls\": false");
    CHECK(count_of_text(h.body, "\"type\": \"function\"") == 1 && strstr(h.body, "\"finish_reason\": \"tool_calls\"") && !strstr(h.body, "write_file"),
          "parallel_tool_calls false: %s", h.body);
    forget(&h);
    h = say(s, chat_path, SAY_TWO, "\"tools\": [" READ ", " WRITE "], \"parallel_tool_calls\": true");
    CHECK(count_of_text(h.body, "\"type\": \"function\"") == 2, "parallel_tool_calls true: %s", h.body);
    forget(&h);
    check_says(s, messages_path, SAY_TWO, "\"tools\": [" NAMED_READ ", " NAMED_WRITE "], \"tool_choice\": {\"type\": \"auto\", \"disable_parallel_tool_use\": true}",
               "\"stop_reason\": \"tool_use\"", "write_file");
    check_says(s, responses_path, SAY_TWO, "\"tools\": [" FLAT("read") "], \"parallel_tool_calls\": false", "\"parallel_tool_calls\": false", "b.txt");
    check_says(s, responses_path, SAY_PLAIN, "\"tools\": [" FLAT("read") "], \"instructions\": \"Be X.\", \"metadata\": {\"k\": \"v\"}, \"tool_choice\": \"none\"",
               "\"tool_choice\": \"none\", \"tools\": [{\"type\": \"function\", \"name\": \"read\"", "\"instructions\": null");
}

// A choice must be among the tools; of those that are allowed alone the model is told.
static void test_choice(server s) {
#define NAMED(body) "{\"messages\": [" GO "], \"max_tokens\": 1, " body "}"
    check(s, chat_path, NAMED("\"tools\": [" READ "], \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"zz\"}}"), 400, "not among tools", NULL);
    check(s, messages_path, NAMED("\"tools\": [" NAMED_READ "], \"tool_choice\": {\"type\": \"tool\", \"name\": \"zz\"}"), 400, "not among tools", NULL);
    check(s, responses_path, "{\"input\": \"go\", \"tools\": [" FLAT("read") "], \"tool_choice\": {\"type\": \"function\", \"name\": \"zz\"}}", 400, "not among tools", NULL);
    check(s, responses_path, "{\"input\": \"go\", \"tools\": [" FLAT("read") "], \"tool_choice\": {\"type\": \"web_search\"}}", 400, "tool_choice must be", NULL);
    check(s, messages_path, NAMED("\"tool_choice\": {\"type\": \"any\"}"), 400, "without tools", NULL);
    check(s, chat_path, NAMED("\"tools\": [" READ "], \"tool_choice\": {\"type\": \"allowed_tools\", \"allowed_tools\": {\"mode\": \"auto\", \"tools\": [{\"type\": "
          "\"function\", \"function\": {\"name\": \"zz\"}}]}}"), 400, "not among tools", NULL);
    check(s, chat_path, NAMED("\"tools\": [" READ "], \"tool_choice\": {\"type\": \"allowed_tools\"}"), 400, "allowed_tools must have", NULL);
    char all[8192], some[8192];
    prompt_of(s, NAMED("\"tools\": [" READ ", " WRITE "]"), all, sizeof all);
    prompt_of(s, NAMED("\"tools\": [" READ ", " WRITE "], \"tool_choice\": {\"type\": \"allowed_tools\", \"allowed_tools\": {\"mode\": \"auto\", \"tools\": [{\"type\": "
              "\"function\", \"function\": {\"name\": \"read\"}}]}}"), some, sizeof some);
    CHECK(strstr(all, "write_file") && strstr(all, "filePath") && strstr(some, "filePath") && !strstr(some, "write_file"), "allowed_tools: %s", some);
}

// A call that is required is one, by its tool's schema, whatever the model would have said; its tool's name is plain text.
static void test_required(server s) {
#define BRIEFLY "{\"type\": \"object\", \"properties\": {\"z\": {\"enum\": [\"one\", \"two\"]}}, \"required\": [\"z\"]}"
#define F(name) "{\"type\": \"function\", \"function\": {\"name\": \"" name "\", \"parameters\": " BRIEFLY "}}"
#define G(name) "{\"name\": \"" name "\", \"input_schema\": " BRIEFLY "}"
#define H(name) "{\"type\": \"function\", \"name\": \"" name "\", \"parameters\": " BRIEFLY "}"
    static const struct { const char *path, *more, *holds; } cases[] = {
        {"/v1/chat/completions", "\"tools\": [" F("read") ", " F("write_file") "], \"tool_choice\": \"required\"", "\"finish_reason\": \"tool_calls\""},
        {"/v1/chat/completions", "\"tools\": [" F("read") ", " F("write_file") "], \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"write_file\"}}",
         "\"function\": {\"name\": \"write_file\", \"arguments\": \"{"},
        {"/v1/chat/completions", "\"tools\": [" F("read") ", " F("write_file") "], \"tool_choice\": {\"type\": \"allowed_tools\", \"allowed_tools\": {\"mode\": \"required\", "
         "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"read\"}}]}}", "\"function\": {\"name\": \"read\", \"arguments\": \"{"},
        {"/v1/messages", "\"tools\": [" G("read") ", " G("write_file") "], \"tool_choice\": {\"type\": \"any\"}", "\"stop_reason\": \"tool_use\""},
        {"/v1/messages", "\"tools\": [" G("read") ", " G("write_file") "], \"tool_choice\": {\"type\": \"tool\", \"name\": \"write_file\"}",
         "\"name\": \"write_file\", \"input\": {"},
        {"/v1/responses", "\"tools\": [" H("read") "], \"tool_choice\": {\"type\": \"function\", \"name\": \"read\"}", "\"name\": \"read\", \"arguments\": \"{"},
        {"/v1/responses", "\"tools\": [{\"type\": \"namespace\", \"name\": \"mcp__fs__\", \"tools\": [" H("read") "]}], \"tool_choice\": {\"type\": \"function\", \"namespace\": \"mcp__fs__\", \"name\": \"read\"}",
         "\"name\": \"read\", \"namespace\": \"mcp__fs__\""}};
    char body[2048];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int thinks = 0; thinks < 2; thinks++) {
            int is_input = !strcmp(cases[i].path, responses_path);
            snprintf(body, sizeof body, "{\"%s\": [" GO "], \"%s\": 200, \"temperature\": 0.5, \"seed\": 3, \"parallel_tool_calls\": false, \"enable_thinking\": %s, "
                     "%s}", is_input ? "input" : "messages", is_input ? "max_output_tokens" : "max_tokens", thinks ? "true" : "false",
                     cases[i].more);
            check(s, cases[i].path, body, 200, cases[i].holds, NULL);
        }
    // What cuts it off is the length, though a stop text stands in what there is of it.
    check(s, chat_path, "{\"messages\": [" GO "], \"max_tokens\": 9, \"enable_thinking\": false, \"stop\": [\"func\"], \"tools\": [" F("read") "], "
          "\"tool_choice\": \"required\"}", 200, "<function=rea\"}, \"finish_reason\": \"length\", \"stop_reason\": null", NULL);
    check(s, messages_path, "{\"messages\": [" GO "], \"max_tokens\": 9, \"enable_thinking\": false, \"stop_sequences\": [\"func\"], \"tools\": [" G("read") "], "
          "\"tool_choice\": {\"type\": \"any\"}}", 200, "\"stop_reason\": \"max_tokens\"", "\"stop_sequence\": \"func\"");
    check(s, responses_path, "{\"input\": [" GO "], \"max_output_tokens\": 9, \"enable_thinking\": false, \"stop\": [\"func\"], \"tools\": [" H("read") "], "
          "\"tool_choice\": \"required\"}", 200, "\"status\": \"incomplete\"", NULL);
    check(s, chat_path, NAMED("\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"<|im_end|>f\"}}], \"tool_choice\": \"required\""), 400,
          "such a name is not supported", NULL);
    check(s, chat_path, NAMED("\"tools\": [" READ "], \"tool_choice\": \"required\", \"response_format\": {\"type\": \"json_object\"}"), 400,
          "follows the tool's schema", NULL);
    check(s, chat_path, NAMED("\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", "
          "\"patternProperties\": {\"x\": {}}}}}], \"tool_choice\": \"required\""), 400, "\"param\": \"tool_choice\"", NULL);
}

// Thinking that has had its budget is closed, and the answer begins; the effort is a budget, too.
static void test_budget(server s) {
    static const struct { const char *path, *more, *holds; } cases[] = {
        {"/v1/chat/completions", "\"thinking_budget\": 2", "\"I think of\\n\\nConsidering the limited time"}, {"/v1/chat/completions", "\"chat_template_kwargs\": {\"thinking_budget\": 2}", "limited time"},
        {"/v1/responses", "\"thinking_token_budget\": 2", "limited time"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check_says(s, cases[i].path, SAY_THINK, cases[i].more, cases[i].holds, "of it again.\\n\\nCons");
    check_says(s, chat_path, SAY_THINK, "\"thinking_budget\": 300", "again", "limited time");
    check_says(s, chat_path, SAY_THINK, "\"reasoning_effort\": \"minimal\"", "again", "limited time");
    heard h = post(s, messages_path, "{\"messages\": [" GO "], \"max_tokens\": 400, \"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 3}}");
    CHECK(strstr(h.body, "limited time"), "budget_tokens: %s", h.body);
    forget(&h);
}

// MCP servers' tools, as Codex sends them: told under both names, and answered under them.
static void test_namespaces(server s) {
    check_says(s, responses_path, SAY_SPACE, "\"tools\": [" SPACE "]", "\"name\": \"read\", \"namespace\": \"mcp__fs__\", \"arguments\": \"{\\\"p\\\": \\\"a.txt\\\"}\"", NULL);
    check_says(s, responses_path, SAY_SPACE, "\"tools\": [" SPACE "], \"stream\": true", "\"name\": \"read\", \"namespace\": \"mcp__fs__\"", NULL);
    CHECK(tokens_of(s, responses_path, "{\"max_output_tokens\": 1, \"input\": [" GO ", {\"type\": \"function_call\", \"call_id\": \"a\", \"namespace\": \"mcp__fs__\", "
                    "\"name\": \"read\", \"arguments\": \"{}\"}, {\"type\": \"function_call_output\", \"call_id\": \"a\", \"output\": \"x\"}]}") ==
          tokens_of(s, responses_path, "{\"max_output_tokens\": 1, \"input\": [" GO ", {\"type\": \"function_call\", \"call_id\": \"a\", "
                    "\"name\": \"mcp__fs__read\", \"arguments\": \"{}\"}, {\"type\": \"function_call_output\", \"call_id\": \"a\", \"output\": \"x\"}]}"),
          "a call of the past loses its namespace");
    check(s, responses_path, "{\"input\": \"go\", \"tools\": [" SPACE ", " FLAT("mcp__fs__read") "]}", 400, "two tools are called mcp__fs__read", NULL);
    check(s, responses_path, "{\"input\": \"go\", \"tools\": [{\"type\": \"namespace\", \"name\": \"a\"}]}", 400, "a namespace must have", NULL);
}

// A custom tool takes a text.
static void test_custom(server s) {
#define PATCH "\"name\": \"apply_patch\", \"description\": \"Patches.\", \"format\": {\"type\": \"grammar\", \"syntax\": \"lark\", \"definition\": \"start: GRAMMAR\"}"
    check_says(s, responses_path, SAY_CUSTOM, "\"tools\": [{\"type\": \"custom\", " PATCH "}]", "\"type\": \"custom_tool_call\", \"id\": \"ctc_", "\"arguments\"");
    check_says(s, responses_path, SAY_CUSTOM, "\"tools\": [{\"type\": \"custom\", " PATCH "}], \"stream\": true",
               "\"input\": \"*** Begin Patch\\n\\\"x\\\"\"", "function_call_arguments");
    check_says(s, chat_path, SAY_CUSTOM, "\"tools\": [{\"type\": \"custom\", \"custom\": {" PATCH "}}]",
               "\"type\": \"custom\", \"custom\": {\"name\": \"apply_patch\", \"input\": \"*** Begin Patch\\n\\\"x\\\"\"}", NULL);
    char text[8192];
    prompt_of(s, "{\"messages\": [" GO "], \"tools\": [{\"type\": \"custom\", \"custom\": {" PATCH "}}]}", text, sizeof text);
    CHECK(strstr(text, "start: GRAMMAR") && strstr(text, "lark") && strstr(text, "Patches."), "a custom tool: %s", text);
}

// ---- Ends ------------------------------------------------------------------------------------------------------------

// The stop text that matched is told, all of it, in each API's words.
static void test_stops(server s) {
    char more[512], stop[256] = "", told[512];
    for (int i = 0; i < 33; i++) strcat(stop, i % 3 ? i % 3 == 1 ? "\xc3\xb6" : "\xc3\xbc" : "\xc3\xa4");
    snprintf(more, sizeof more, "\"stop\": [\"zzz\", \"%s\"]", stop);
    snprintf(told, sizeof told, "\"finish_reason\": \"stop\", \"stop_reason\": \"%s\"", stop);
    check_says(s, chat_path, SAY_STOP, more, told, "and more");
    check_says(s, chat_path, SAY_STOP, "", "\"finish_reason\": \"stop\", \"stop_reason\": null", NULL);
    strcat(more, ", \"stream\": true");
    check_says(s, chat_path, SAY_STOP, more, told, NULL);
    snprintf(more, sizeof more, "\"stop_sequences\": [\"zzz\", \"%s\"]", stop);
    snprintf(told, sizeof told, "\"stop_reason\": \"stop_sequence\", \"stop_sequence\": \"%s\"", stop);
    check_says(s, messages_path, SAY_STOP, more, told, NULL);
    snprintf(more, sizeof more, "{\"prompt\": \"a\", \"logit_bias\": {\"%d\": 100}, \"max_tokens\": 100, \"stop\": [\"%s\"]}", starts[SAY_STOP], stop);
    snprintf(told, sizeof told, "\"stop_reason\": \"%s\"", stop);
    check(s, "/v1/completions", more, 200, told, NULL);
}

// What is counted: tokens of thinking, and times as llama.cpp's clients read them, in the last event, too.
static void test_counts(server s) {
    for (int stream = 0; stream < 2; stream++) {
        heard h = say(s, chat_path, SAY_THINK, stream ? "\"stream\": true, \"stream_options\": {\"include_usage\": true}" : "");
        long thought = number(&h, "reasoning_tokens"), all = number(&h, "completion_tokens");
        CHECK(thought > 4 && thought < all, "%ld tokens of thinking of %ld: %s", thought, all, h.body);
        CHECK(number(&h, "predicted_n") == all && number(&h, "prompt_n") == number(&h, "prompt_tokens") && number(&h, "cache_n") == 0 &&
              strstr(h.body, "\"prompt_per_token_ms\": ") && strstr(h.body, "\"predicted_per_second\": "), "timings: %s", h.body);
        if (stream) CHECK(strstr(strstr(h.body, "\"usage\""), "\"timings\""), "the last event has no timings: %s", h.body);
        forget(&h);
    }
    check_says(s, chat_path, SAY_PLAIN, "\"stream\": true", "\"stop_reason\": null}], \"timings\": {", NULL);
    check_says(s, responses_path, SAY_THINK, "", "\"reasoning_tokens\": ", "\"reasoning_tokens\": 0");
}

// A prompt that is too long is refused in the words by which clients know it.
static void test_too_long(server s) {
    char *body = (char *)allocate(1 << 16);
    static const struct { const char *path, *begins, *ends, *says; int status; } cases[] = {
        {"/v1/messages", "{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", \"content\": \"", "\"}]}", "\"invalid_request_error\", \"message\": \"prompt is too long: ", 400},
        {"/v1/chat/completions", "{\"messages\": [{\"role\": \"user\", \"content\": \"", "\"}]}", "This model's maximum context length is 4096 tokens", 400},
        {"/v1/completions", "{\"prompt\": \"", "\"}", "\"code\": \"context_length_exceeded\"", 400},
        {"/v1/responses", "{\"input\": \"", "\"}", "\"code\": \"context_length_exceeded\"", 400},
        {"/v1/responses", "{\"stream\": true, \"input\": \"", "\"}", "\"status\": \"failed\", \"background\": false, \"error\": {\"code\": \"context_length_exceeded\"", 200}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t n = (size_t)sprintf(body, "%s", cases[i].begins);
        for (int k = 0; k < 6000; k++) n += (size_t)sprintf(body + n, "word ");
        sprintf(body + n, "%s", cases[i].ends);
        heard h = post(s, cases[i].path, body);
        CHECK(h.status == cases[i].status && strstr(h.body, cases[i].says), "%s: %d %s, expected %s", cases[i].path, h.status, h.body, cases[i].says);
        if (!i) CHECK(strstr(h.body, " tokens > 4096 maximum"), "%s", h.body);
        forget(&h);
    }
    size_t n = (size_t)sprintf(body, "{\"prompt\": [5");     // as many as the context: there is no place for an answer, and one number says so
    for (int k = 1; k < 4096; k++) n += (size_t)sprintf(body + n, ", 5");
    sprintf(body + n, "]}");
    heard h = post(s, "/v1/completions", body);
    CHECK(h.status == 400 && strstr(h.body, "length is 4096 tokens. However, your request has 4096 tokens, and its answer at least 1."), "%d %s", h.status,
          h.body);
    forget(&h);
    free(body);
}

// ---- While nothing is said -------------------------------------------------------------------------------------------

// What has come after so many seconds.
static heard heard_after(int fd, double seconds) {
    double until = now() + seconds;
    heard h;
    memset(&h, 0, sizeof h);
    h.data = (char *)allocate(1);
    for (double left; (left = until - now()) > 0;) {
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, (int)(left * 1000) + 1) <= 0) break;
        h.data = (char *)realloc(h.data, h.size + 65537);
        ssize_t n = recv(fd, h.data + h.size, 65536, 0);
        if (n <= 0) break;
        h.size += (size_t)n;
        h.data[h.size] = 0;
    }
    return h;
}

// A stream's head comes at once, and then a sign of life every other second, also from the queue.
static void test_waiting(void) {
    static const struct { const char *path, *body, *at_once, *later; } cases[] = {
        {"/v1/chat/completions", "{\"messages\": [" GO "], \"stream\": true}", "text/event-stream", ": waiting\n"},
        {"/v1/completions", "{\"prompt\": \"go\", \"stream\": true}", "text/event-stream", ": waiting\n"},
        {"/v1/messages", "{\"max_tokens\": 5, \"messages\": [" GO "], \"stream\": true}", "text/event-stream", "event: ping\n"},
        {"/v1/responses", "{\"input\": \"go\", \"stream\": true}", "event: response.created\n", ": waiting\nevent: response.in_progress\n"}};
    enum { CASES = sizeof cases / sizeof cases[0] };
    enum { AHEAD = 4 };                                     // long answers, so that the others wait until they have been looked at
    server s = serve("--parallel 1");
    int one = dial(s), ahead[AHEAD], waiting[CASES];
    heard h[2 * CASES];
    post_on(one, "/v1/chat/completions", "{\"messages\": [" GO "], \"max_tokens\": 4000, \"ignore_eos\": true, \"stream\": true}");
    heard first = heard_after(one, 0.3);
    CHECK(strstr(first.data, "chat.completion.chunk"), "no answer to wait for: %s", first.data);
    for (int i = 0; i < AHEAD; i++) post_on(ahead[i] = dial(s), "/v1/chat/completions", "{\"messages\": [" GO "], \"max_tokens\": 4000, \"ignore_eos\": true}");
    usleep(200000);
    for (int i = 0; i < CASES; i++) post_on(waiting[i] = dial(s), cases[i].path, cases[i].body);
    for (int i = 0; i < CASES; i++) {
        h[i] = heard_after(waiting[i], 0.1);
        CHECK(strstr(h[i].data, " 200 OK") && strstr(h[i].data, cases[i].at_once), "%s: at once '%s'", cases[i].path, h[i].data);
    }
    usleep(2300000);
    for (int i = 0; i < CASES; i++) {
        h[CASES + i] = heard_after(waiting[i], 0.1);
        CHECK(strstr(h[CASES + i].data, cases[i].later), "%s: later '%s'", cases[i].path, h[CASES + i].data);
        forget(&h[i]);
        forget(&h[CASES + i]);
    }
    // One that is told to stop after its head is out says so by an event.
    kill(s.pid, SIGTERM);
    heard end = heard_after(waiting[0], 3);
    CHECK(strstr(end.data, "data: {\"error\": {\"message\": \"the server is being stopped\""), "the end: '%s'", end.data);
    for (int i = 0; i < CASES; i++) close(waiting[i]);
    for (int i = 0; i < AHEAD; i++) close(ahead[i]);
    close(one);
    forget(&first);
    forget(&end);
    int code = end_of(s);
    CHECK(code == 0, "the server ended with %d", code);
}

// A long prompt: the head comes before it is read, and how far it is.
static void test_reading(server s) {
    char *body = (char *)allocate(1 << 16);
    size_t n = (size_t)sprintf(body, "{\"max_tokens\": 1, \"stream\": true, \"return_progress\": true, \"cache_prompt\": false, \"messages\": [{\"role\": \"user\", \"content\": \"");
    for (int i = 0; i < 1500; i++) n += (size_t)sprintf(body + n, "word%d ", i % 10);
    sprintf(body + n, "\"}]}");
    int fd = dial(s);
    double began = now();
    post_on(fd, chat_path, body);
    heard h = heard_after(fd, 0.25);
    CHECK(strstr(h.data, " 200 OK") && strstr(h.data, "\"prompt_progress\": {\"total\": "), "after %.2f s: '%s'", now() - began, h.data);
    const char *at = strstr(h.data, "\"processed\": ");
    CHECK(at && atol(at + 13) < 1500, "all was read before it was told: %s", h.data);
    forget(&h);
    close(fd);
    free(body);
}

// HTTP/1.0 knows no chunks: a stream goes on to the end of the connection.
static void test_old_http(server s) {
    static const char body[] = "{\"messages\": [" GO "], \"max_tokens\": 3, \"stream\": true}";
    char head[256];
    int fd = dial(s), n = snprintf(head, sizeof head, "POST %s HTTP/1.0\r\nContent-Length: %zu\r\n\r\n", chat_path, strlen(body));
    tell(fd, head, (size_t)n);
    tell(fd, body, strlen(body));
    heard h = hear(fd);
    CHECK(h.over && strstr(h.data, "Connection: close\r\n") && !strstr(h.data, "chunked") && strstr(h.data, "\r\n\r\ndata: {") &&
          !strcmp(h.data + h.size - 14, "data: [DONE]\n\n"), "HTTP/1.0: %s", h.data);
    forget(&h);
    close(fd);
}

#define ASK(more) "{\"messages\": [{\"role\": \"system\", \"content\": \"" LONG "\"}, " GO "], \"max_tokens\": 1, \"temperature\": 0, " more "}"
#define LONG "Answer in one word, and take your time for it: a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z."

// Efforts of Qwen3.8's template, by all names that clients have for them. The sentence comes first: another effort is another beginning,
// and what was read with one is there when it is asked for again.
static void test_effort(const char *arguments) {
    static const struct { const char *more, *holds, *lacks; } efforts[] = {
        {"\"n\": 1", "Reasoning effort is set to xhigh.", "effort is set to low"},
        {"\"reasoning_effort\": \"minimal\"", "Reasoning effort is set to low. Keep", "xhigh"},
        {"\"reasoning_effort\": \"low\"", "Reasoning effort is set to low. Keep", "xhigh"},
        {"\"reasoning_effort\": \"medium\"", "Answer in one word", "Reasoning effort"},
        {"\"reasoning_effort\": \"high\"", "Reasoning effort is set to xhigh.", "effort is set to low"},
        {"\"reasoning_effort\": \"max\"", "Reasoning effort is set to xhigh.", "effort is set to low"},
        {"\"reasoning_effort\": \"none\"", "<think>\\n\\n</think>", "Reasoning effort"},
        {"\"enable_thinking\": false", "<think>\\n\\n</think>", "Reasoning effort"},
        {"\"chat_template_kwargs\": {\"reasoning_effort\": \"low\"}", "Reasoning effort is set to low. Keep", "xhigh"},
    };
    static const struct { const char *effort; int known; } asked[] = {{"low", 0}, {"low", 1}, {"high", 0}, {"low", 1}, {"xhigh", 1}, {"medium", 0}};
    // The least that says all that the template is recognised by.
    static const char recognised[] =
        "{% for m in messages %}<|im_end|><tool_response></tool_response><tool_call><function=></function><parameter=></parameter></tool_call>"
        "{{ preserve_thinking + reasoning_effort }}Reasoning effort is set to xhigh.{% if add_generation_prompt %}<|im_start|>assistant\\n"
        "{% if enable_thinking is false %}<think>\\n\\n</think>\\n\\n{% else %}<think>\\n{% endif %}";
    char text[8192], path[512], body[2048];
    snprintf(path, sizeof path, "%s/chat_template.jinja", temp_dir);
    write_bytes(path, recognised, sizeof recognised - 1);
    server s = serve(arguments);
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++) {
        snprintf(body, sizeof body, ASK("%s"), efforts[i].more);
        prompt_of(s, body, text, sizeof text);
        CHECK(strstr(text, efforts[i].holds) && !strstr(text, efforts[i].lacks), "%s: %s", efforts[i].more, text);
    }
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        snprintf(body, sizeof body, ASK("\"reasoning_effort\": \"%s\""), asked[i].effort);
        heard h = post(s, chat_path, body);
        long all = number(&h, "prompt_tokens"), there = number(&h, "cached_tokens");
        CHECK(h.status == 200 && (asked[i].known ? there > all - 12 : there < 12), "request %zu, %s: of %ld tokens %ld were there: %s", i,
              asked[i].effort, all, there, h.body);
        forget(&h);
    }
    check(s, chat_path, ASK("\"reasoning_effort\": \"most\""), 400, "reasoning_effort must be", NULL);
    stop(s);
}

// A text that is a prompt of its own begins with the token that tokenizer.json puts there, once.
static void check_told(server s, const char *path, const char *body, const char *told) {
    static const char name[] = "\r\nX-Mote-Passed-Over: ";
    heard h = post(s, path, body);
    const char *head = strstr(h.data, name);
    const size_t n = strlen(told);
    CHECK(h.status == 200 && (*told ? head && !strncmp(head + sizeof name - 1, told, n) && head[sizeof name - 1 + n] == '\r' : !head),
          "%s %s: %d %.300s, expected %s", path, body, h.status, h.data, told);
    forget(&h);
}

static void write_template(const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/chat_template.jinja", temp_dir);
    write_bytes(path, text, strlen(text));
}

// Histories and tools that a template has no place for.
static void test_templates(const char *arguments) {
#define CALLED "{\"role\": \"assistant\", \"content\": \"I look.\", \"tool_calls\": [{\"id\": \"a\", \"function\": {\"name\": \"f\", \"arguments\": \"{}\"}}]}"
#define AGAIN "{\"role\": \"user\", \"content\": \"again\"}"
    static const char turns[] = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                                "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    static const char config[] = "{\"bos_token\": {\"content\": \"<|endoftext|>\"}}";
    char text[4096], template_text[512];
    write_template("{{ bos_token }}[INST][/INST]{{ eos_token }}[AVAILABLE_TOOLS][TOOL_RESULTS][/TOOL_RESULTS]{{ '[TOOL_CALLS][' }}");
    server s = serve(arguments);
    check_told(s, chat_path, "{\"messages\": [" GO "], \"max_tokens\": 1}", "");
    check_told(s, chat_path, "{\"messages\": [" GO ", " AGAIN "], \"max_tokens\": 1}", "messages.joined");
    check_told(s, messages_path, "{\"messages\": [" GO ", " AGAIN "], \"max_tokens\": 1}", "messages.joined");
    check_told(s, responses_path, "{\"input\": [" GO ", " AGAIN "], \"max_output_tokens\": 1}", "input.joined");
    check_told(s, chat_path, "{\"messages\": [" GO ", " CALLED ", " AGAIN "], \"max_tokens\": 1}", "messages.calls, messages.turns");
    check_told(s, chat_path, "{\"messages\": [{\"role\": \"assistant\", \"content\": \"Hello\"}, " GO "], \"max_tokens\": 1}", "messages.turns");
    prompt_of(s, "{\"messages\": [" GO ", " AGAIN "]}", text, sizeof text);
    CHECK(!strcmp(text, "<s>[INST]go\n\nagain[/INST]") || !strcmp(text, "<s>[INST]go\\n\\nagain[/INST]"), "%s", text);
    stop(s);
    write_template(turns);
    s = serve(arguments);
    check_told(s, chat_path, "{\"messages\": [" GO "], \"max_tokens\": 1, \"tools\": [" READ "]}", "tools");
    check_told(s, messages_path, "{\"messages\": [" GO "], \"max_tokens\": 1, \"tools\": [" NAMED_READ "]}", "tools");
    check_told(s, responses_path, "{\"input\": [" GO "], \"max_output_tokens\": 1, \"tools\": [" FLAT("read") "]}", "tools");
    check_told(s, chat_path, "{\"messages\": [" GO "], \"max_tokens\": 1, \"tools\": [" READ "], \"tool_choice\": \"none\"}", "");
    check(s, chat_path, "{\"messages\": [" GO "], \"tools\": [" READ "], \"tool_choice\": \"required\"}", 400, "this model's template cannot call tools", NULL);
    check(s, messages_path, "{\"messages\": [" GO "], \"max_tokens\": 1, \"tools\": [" NAMED_READ "], \"tool_choice\": {\"type\": \"tool\", \"name\": \"read\"}}",
          400, "this model's template cannot call tools", NULL);
    check(s, responses_path, "{\"input\": \"go\", \"tools\": [" FLAT("read") "], \"tool_choice\": \"required\"}", 400, "this model's template cannot call tools",
          NULL);
    prompt_of(s, "{\"messages\": [" GO "]}", text, sizeof text);
    CHECK(!strncmp(text, "<|im_start|>user", 16), "%s", text);
    stop(s);
    snprintf(template_text, sizeof template_text, "{{ bos_token }}%s", turns);
    write_template(template_text);
    snprintf(text, sizeof text, "%s/tokenizer_config.json", temp_dir);
    write_bytes(text, config, sizeof config - 1);
    s = serve(arguments);
    prompt_of(s, "{\"messages\": [" GO "]}", text, sizeof text);
    CHECK(!strncmp(text, "<|endoftext|><|im_start|>user", 29), "%s", text);
    stop(s);
    snprintf(template_text, sizeof template_text, "%sBe kind.", turns);
    write_template(template_text);
    s = serve(arguments);
    check(s, chat_path, "{\"messages\": [" GO "]}", 400, "not one mote knows", NULL);
    stop(s);
}

static void test_begin(const char *arguments) {
    static const char before[] = "\"post_processor\":{\"type\":\"ByteLevel\",",
        after[] = "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<|endoftext|>\"}},{\"Sequence\":{\"id\":\"A\"}}],"
                  "\"special_tokens\":{\"<|endoftext|>\":{\"id\":\"<|endoftext|>\",\"ids\":[4063],\"tokens\":[\"<|endoftext|>\"]}},";
    static const char *const prompts[] = {"\"What is FP8?\"", "\"<|endoftext|>What is FP8?\"", "[4063, 5, 6]", "[5, 6]", "\"\""};
    long counts[5];
    char path[512], body[256];
    size_t size;
    snprintf(path, sizeof path, "%s/tokenizer.json", temp_dir);
    char *bytes = file_bytes(path, &size), *at = bytes ? strstr(bytes, before) : NULL;
    if (!CHECK(at != NULL, "no post_processor")) return;
    char *text = (char *)allocate(size + sizeof after);
    int n = sprintf(text, "%.*s%s%s", (int)(at - bytes), bytes, after, at + strlen(before));
    write_bytes(path, text, (size_t)n);
    server s = serve(arguments);
    for (int i = 0; i < 5; i++) {
        snprintf(body, sizeof body, "{\"prompt\": %s, \"max_tokens\": 1}", prompts[i]);
        heard h = post(s, "/v1/completions", body);
        counts[i] = number(&h, "prompt_tokens");
        CHECK(h.status == 200, "%s: %d %s", body, h.status, h.body);
        forget(&h);
    }
    long plain = tokens_of(s, "/tokenize", "{\"prompt\": \"What is FP8?\"}");
    CHECK(counts[0] == counts[1] && counts[2] == 3 && counts[3] == 2 && counts[4] == 1, "%ld %ld %ld %ld %ld tokens", counts[0], counts[1],
          counts[2], counts[3], counts[4]);
    CHECK(plain == counts[0], "/tokenize counts %ld of %ld", plain, counts[0]);
    stop(s);
    free(text);
    free(bytes);
}

int main(int argc, char **argv) {
    char arguments[256];
    test_main_begin("clients", argc, argv);
    if (!temp_open()) return test_main_end();
    parrot_make(temp_dir, scripts, SAY_COUNT, 5, NULL, starts);
    snprintf(arguments, sizeof arguments, "-m %s --device cpu --context 4096", temp_dir);
    server parrot = serve(arguments), s = serve("--context 4096 --parallel 1");
    test_order(s);
    test_system(s);
    test_prefill(s);
    test_billing(s);
    test_images(s);
    test_found(s);
    test_cut_arguments(s);
    test_items(s);
    test_length(parrot);
    test_one_call(parrot);
    test_choice(s);
    test_required(s);
    test_budget(parrot);
    test_namespaces(parrot);
    test_custom(parrot);
    test_stops(parrot);
    test_counts(parrot);
    test_too_long(s);
    test_reading(s);
    test_old_http(s);
    stop(parrot);
    stop(s);
    test_waiting();
    test_effort(arguments);
    test_begin(arguments);
    test_templates(arguments);
    temp_close();
    return test_main_end();
}
