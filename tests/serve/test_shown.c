// Tests of mote serve with images: what each API calls one, how many tokens it takes, whose picture is whose prefix, what is refused.
// The model is models/demo with a tower that sees nothing, but not the same in two pictures.

#include "engine.h"
#include "client.h"
#include "vision.h"

static const char chat_path[] = "/v1/chat/completions", messages_path[] = "/v1/messages", responses_path[] = "/v1/responses";
static const char count_path[] = "/v1/messages/count_tokens";

#define DATA(png) "data:image/png;base64," png
#define SHOW(url) "{\"type\": \"image_url\", \"image_url\": {\"url\": \"" url "\"}}"
#define TEXT(text) "{\"type\": \"text\", \"text\": \"" text "\"}"
#define SOURCE(png) "{\"type\": \"image\", \"source\": {\"type\": \"base64\", \"media_type\": \"image/webp\", \"data\": \"" png "\"}}"
#define USER(parts) "{\"role\": \"user\", \"content\": [" parts "]}"
#define CHAT(parts) "{\"max_tokens\": 1, \"messages\": [" USER(parts) "]}"
#define WORDS TEXT("What is this?")

// "key" of a request's answer, which must be 200. Anthropic's input_tokens are those that were not known before: here all are meant.
static long asked(server s, const char *path, const char *body, const char *key) {
    heard h = post(s, path, body);
    CHECK(h.status == 200, "%s %.200s: %d %.400s", path, body, h.status, h.body);
    const long n = number(&h, key), known = strstr(h.body, "\"cache_read_input_tokens\"") ? number(&h, "cache_read_input_tokens") : 0;
    forget(&h);
    return n + known;
}

static void check_refused(server s, const char *path, const char *body, const char *says) {
    heard h = post(s, path, body);
    CHECK(h.status == 400 && strstr(h.body, says), "%s %.300s: %d %.400s, expected '%s'", path, body, h.status, h.body, says);
    forget(&h);
}

// An image is four tokens between two marks, in whatever words it comes.
static void test_words(server s) {
    const long words = asked(s, chat_path, CHAT(WORDS), "prompt_tokens"), quiet = asked(s, count_path, CHAT(WORDS), "input_tokens");
    const long items = asked(s, responses_path, "{\"max_output_tokens\": 1, \"input\": [" USER("{\"type\": \"input_text\", \"text\": \"What is this?\"}") "]}",
                             "input_tokens");
    static const struct { const char *path, *body, *key; int of; } same[] = {
        {chat_path, CHAT(SHOW(DATA(RED_PNG)) ", " WORDS), "prompt_tokens", 0},
        {chat_path, CHAT(WORDS ", {\"type\": \"image_url\", \"image_url\": \"DATA:;BASE64," RED_PNG "\"}"), "prompt_tokens", 0},
        {chat_path, CHAT("{\"type\": \"image\", \"data\": \"" RED_PNG "\", \"mimeType\": \"image/png\"}, " WORDS), "prompt_tokens", 0},
        {chat_path, CHAT("{\"type\": \"image_url\", \"image_url\": {\"url\": \"" DATA(RED_PNG) "\", \"detail\": \"low\"}}, " WORDS), "prompt_tokens", 0},
        {count_path, CHAT(SOURCE(RED_PNG) ", " WORDS), "input_tokens", 1},
        {messages_path, CHAT(WORDS ", " SOURCE(RED_PNG)), "input_tokens", 1},
        {responses_path, "{\"max_output_tokens\": 1, \"input\": [" USER("{\"type\": \"input_image\", \"image_url\": \"" DATA(RED_PNG) "\"}, "
                         "{\"type\": \"input_text\", \"text\": \"What is this?\"}") "]}", "input_tokens", 2}};
    const long without[] = {words, quiet, items};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        const long n = asked(s, same[i].path, same[i].body, same[i].key);
        CHECK(n == without[same[i].of] + 6, "number %zu takes %ld tokens, without its image %ld", i, n, without[same[i].of]);
    }
    CHECK(asked(s, chat_path, CHAT(SHOW(DATA(RED_PNG)) ", " TEXT("What is") ", " SHOW(DATA(BLUE_PNG)) ", " TEXT(" this?")), "prompt_tokens") == words + 12,
          "two images");
    heard h = get(s, "/v1/models");
    CHECK(strstr(h.body, "\"images\": true"), "%s", h.body);
    forget(&h);
}

#define LONG TEN TEN TEN TEN TEN TEN TEN TEN TEN TEN
#define TEN "one two three four five six seven eight nine ten "

// The same picture is a prefix, another one of its size is none; a question about a picture that was there need not read it again.
static void test_prefixes(server s) {
    static const char red[] = CHAT(SHOW(DATA(RED_PNG)) ", " TEXT(LONG "Which colour is it?")), blue[] = CHAT(SHOW(DATA(BLUE_PNG)) ", " TEXT(LONG "Which colour is it?"));
    static const char other[] = CHAT(SHOW(DATA(RED_PNG)) ", " TEXT(LONG "Another question."));
    const long all = asked(s, chat_path, red, "prompt_tokens"), others = asked(s, chat_path, blue, "cached_tokens");
    const long again = asked(s, chat_path, red, "cached_tokens"), same = asked(s, chat_path, red, "cached_tokens");
    const long question = asked(s, chat_path, other, "cached_tokens");
    CHECK(others < 8, "of another picture %ld tokens are known", others);
    CHECK(again > all - 10 && same > all - 10, "of %ld tokens with the same picture %ld and %ld are known", all, again, same);
    CHECK(question >= 8 && question < same, "of another question about it %ld", question);
}

#define CALLS "{\"role\": \"assistant\", \"tool_calls\": [{\"id\": \"a\", \"type\": \"function\", \"function\": {\"name\": \"see\", \"arguments\": \"{}\"}}, " \
              "{\"id\": \"b\", \"type\": \"function\", \"function\": {\"name\": \"see\", \"arguments\": \"{}\"}}]}"
#define SEEN(id, png) "{\"role\": \"tool\", \"tool_call_id\": \"" id "\", \"content\": [" TEXT("seen ") ", " SHOW(DATA(png)) "]}"
#define AFTER(results) "{\"max_tokens\": 1, \"messages\": [" USER(TEXT("Look.")) ", " CALLS ", " results "]}"

// Images in results of tools, which come in any order.
static void test_results(server s) {
    const long all = asked(s, chat_path, AFTER(SEEN("a", RED_PNG) ", " SEEN("b", BLUE_PNG)), "prompt_tokens");
    CHECK(asked(s, chat_path, AFTER(SEEN("b", BLUE_PNG) ", " SEEN("a", RED_PNG)), "cached_tokens") > all - 10, "the same in another order is another prompt");
    CHECK(asked(s, chat_path, AFTER(SEEN("b", RED_PNG) ", " SEEN("a", BLUE_PNG)), "cached_tokens") < all - 20, "the other one's picture is the same");
    static const char claude[] = "{\"max_tokens\": 1, \"messages\": [" USER(TEXT("Look.")) ", {\"role\": \"assistant\", \"content\": [{\"type\": \"tool_use\", "
        "\"id\": \"a\", \"name\": \"see\", \"input\": {}}]}, " USER("{\"type\": \"tool_result\", \"tool_use_id\": \"a\", \"content\": [%s]}") "]}";
    static const char codex[] = "{\"max_output_tokens\": 1, \"input\": [" USER("{\"type\": \"input_text\", \"text\": \"Look.\"}") ", {\"type\": \"function_call\", "
        "\"call_id\": \"a\", \"name\": \"see\", \"arguments\": \"{}\"}, {\"type\": \"function_call_output\", \"call_id\": \"a\", \"output\": [%s]}]}";
    char with[4096], without[4096];
    snprintf(with, sizeof with, claude, SOURCE(RED_PNG));
    snprintf(without, sizeof without, claude, TEXT(""));
    CHECK(asked(s, count_path, with, "input_tokens") == asked(s, count_path, without, "input_tokens") + 6, "an image in a tool_result");
    snprintf(with, sizeof with, codex, "{\"type\": \"input_image\", \"image_url\": \"" DATA(RED_PNG) "\"}");
    snprintf(without, sizeof without, codex, "{\"type\": \"input_text\", \"text\": \"\"}");
    CHECK(asked(s, responses_path, with, "input_tokens") == asked(s, responses_path, without, "input_tokens") + 6, "an image in a function_call_output");
}

static void test_refusals(server s) {
    static const struct { const char *parts, *says; } refused[] = {
        {SHOW("https://example.org/a.png"), "messages[0].content[0]: this server fetches no addresses"}, {SHOW("file:///etc/passwd"), "reads no files"},
        {SHOW(DATA(RED_PNG)) ", " SHOW("http://a"), "\"messages[0].content[1]: this server"}, {SHOW("data:image/png," RED_PNG), "must be data:image/...;base64"},
        {SHOW("data:image/png;base64,%%%%"), "no base64"}, {SHOW("data:image/png;base64,a"), "no base64"}, {SHOW("data:image/png;base64,aG=sbG8="), "no base64"},
        {SHOW("data:image/png;base64,aGVsb==="), "no base64"}, {SHOW("data:image/png;base64,aGVs\\tbG8="), "no base64"}, {SHOW("data:image/png;base64,"), "an empty image"},
        {SHOW("data:image/png;base64,UklGRgAAAABXRUJQVlA4IA=="), "messages[0].content[0]: WebP is not read"}, {SHOW("data:image/png;base64,aGVsbG8="), "not an image"},
        {"{\"type\": \"image_url\", \"image_url\": {\"url\": \"" DATA(RED_PNG) "\", \"detail\": \"huge\"}}", "detail must be auto, low, high or original"},
        {"{\"type\": \"image_url\", \"image_url\": {\"url\": \"" DATA(RED_PNG) "\", \"detail\": 1}}", "detail must be auto, low, high or original"},
        {"{\"type\": \"image_url\"}", "without its data"}, {"{\"type\": \"input_image\", \"file_id\": \"f\"}", "in place of file_id"},
        {"{\"type\": \"image\", \"source\": {\"type\": \"url\", \"url\": \"http://a\"}}", "type base64"},
        {"{\"type\": \"video_url\", \"video_url\": {\"url\": \"x\"}}", "text and images"}, {"{\"type\": \"image\"}", "without its data"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char body[2048];
        snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": [%s]}]}", refused[i].parts);
        check_refused(s, chat_path, body, refused[i].says);
    }
    check_refused(s, chat_path, "{\"messages\": [{\"role\": \"system\", \"content\": [" SHOW(DATA(RED_PNG)) "]}, " USER(TEXT("a")) "]}", "what a user says");
    check_refused(s, chat_path, "{\"messages\": [" USER(TEXT("a")) ", {\"role\": \"assistant\", \"content\": [" SHOW(DATA(RED_PNG)) "]}, " USER(TEXT("a")) "]}",
                  "what a user says");
    check_refused(s, chat_path, AFTER(SEEN("b", RED_PNG) ", " SEEN("a", "aGVsbG8=")), "\"messages[3].content[1]: not an image");
    check_refused(s, chat_path, AFTER(SEEN("b", BROKEN_PNG) ", " SEEN("a", RED_PNG)), "\"messages[2].content[1]: a broken PNG");
    check_refused(s, responses_path, "{\"input\": [" USER("{\"type\": \"input_text\", \"text\": \"a\"}, {\"type\": \"input_image\", \"image_url\": \"data:,\"}") "]}",
                  "\"input[0].content[1]: a data: address");
    check_refused(s, messages_path, CHAT("{\"type\": \"tool_result\", \"tool_use_id\": \"a\", \"content\": [" TEXT("a") ", " SOURCE("!") "]}"),
                  "\"messages[0].content[0].content[1]: its data is no base64");
    check_refused(s, messages_path, "{\"max_tokens\": 1, \"messages\": [" USER("{\"type\": \"image\", \"source\": {\"type\": \"file\", \"file_id\": \"a\"}}") "]}",
                  "type base64");

    char *many = (char *)allocate(40 * 1024), *at = many + sprintf(many, "{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", \"content\": [");
    for (int i = 0; i < 33; i++) at += sprintf(at, "%s%s", i ? ", " : "", SHOW(DATA(RED_PNG)));
    strcpy(at, "]}]}");
    check_refused(s, chat_path, many, "at most 32 images");
    free(many);
}

#define OLLAMA(images) "{\"stream\": false, \"options\": {\"num_predict\": 1}, \"messages\": [{\"role\": \"user\", \"content\": \"What is this?\"" images "}]}"
#define GENERATE(images) "{\"stream\": false, \"options\": {\"num_predict\": 1}, \"prompt\": \"What is this?\"" images "}"

// Ollama's lists of base64 beside a text, before which they stand.
static void test_ollama(server s) {
    static const char key[] = "prompt_eval_count";
    const long words = asked(s, "/api/chat", OLLAMA(""), key), prompt = asked(s, "/api/generate", GENERATE(""), key);
    CHECK(asked(s, "/api/chat", OLLAMA(", \"images\": [\"" RED_PNG "\"]"), key) == words + 6, "an image of /api/chat");
    CHECK(asked(s, "/api/chat", OLLAMA(", \"images\": [\"" RED_PNG "\", \"" DATA(BLUE_PNG) "\"]"), key) == words + 12, "two images of /api/chat");
    CHECK(asked(s, "/api/generate", GENERATE(", \"images\": [\"" RED_PNG "\"]"), key) == prompt + 6, "an image of /api/generate");
    const long all = asked(s, chat_path, CHAT(SHOW(DATA(BLUE_PNG)) ", " WORDS), "prompt_tokens");
    (void)asked(s, "/api/chat", OLLAMA(", \"images\": [\"" BLUE_PNG "\"]"), key);
    CHECK(asked(s, chat_path, CHAT(SHOW(DATA(BLUE_PNG)) ", " WORDS), "cached_tokens") > all - 10, "an image of Ollama's is not before the text");
    char lines[512], body[2048];                       // as MIME breaks them, which Ollama reads, too
    size_t n = 0;
    for (size_t i = 0; BLUE_PNG[i]; i++) n += (size_t)sprintf(lines + n, i % 76 == 75 ? "%c\\r\\n" : "%c", BLUE_PNG[i]);
    snprintf(body, sizeof body, OLLAMA(", \"images\": [\"%s\\n\"]"), lines);
    CHECK(asked(s, "/api/chat", body, key) == words + 6, "base64 in lines");
    snprintf(body, sizeof body, CHAT(SHOW("data:image/png;base64,%s") ", " WORDS), lines);
    CHECK(asked(s, chat_path, body, "cached_tokens") > all - 10, "base64 in lines is another picture");
    check_refused(s, "/api/chat", OLLAMA(", \"images\": [\"" RED_PNG "\", \"aGVsbG8=\"]"), "\"messages[0].images[1]: not an image");
    check_refused(s, "/api/chat", OLLAMA(", \"images\": [7]"), "messages[0].images[0] must be an image in base64");
    check_refused(s, "/api/chat", OLLAMA(", \"images\": \"" RED_PNG "\""), "messages[0].images must be a list");
    check_refused(s, "/api/chat", OLLAMA(", \"images\": [\"http://a/b.png\"]"), "messages[0].images[0]: its data is no base64");
    check_refused(s, "/api/generate", GENERATE(", \"images\": [\"" BROKEN_PNG "\"]"), "\"images[0]: a broken PNG");
}

// Base64 of a PNG's header alone, of so many pixels: enough to count its tokens.
static void header_png(char to[64], int width, int height) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned char png[33] = "\x89PNG\r\n\x1a\n\0\0\0\15IHDR";
    for (int i = 0; i < 4; i++) {
        png[16 + i] = (unsigned char)(width >> (24 - 8 * i));
        png[20 + i] = (unsigned char)(height >> (24 - 8 * i));
    }
    memcpy(png + 24, "\10\2", 3);
    for (int i = 0; i < 33; i += 3) {
        const uint32_t three = (uint32_t)png[i] << 16 | (uint32_t)png[i + 1] << 8 | png[i + 2];
        for (int k = 0; k < 4; k++) *to++ = digits[three >> (18 - 6 * k) & 63];
    }
    *to = 0;
}

// Sizes are known before anything is decoded: what does not fit is refused by its tokens, and "low" is few of them.
static void test_sizes(server s) {
    char png[64], body[512];
    header_png(png, 1600, 1600);
    snprintf(body, sizeof body, CHAT("{\"type\": \"image_url\", \"image_url\": {\"url\": \"data:image/png;base64,%s\"%s}}"), png, "");
    check_refused(s, chat_path, body, "your request has 25");                  // 50 x 50 tokens, and a few
    CHECK(asked(s, count_path, body, "input_tokens") > 2500, "count_tokens of an image that is too large for the context");
    snprintf(body, sizeof body, CHAT("{\"type\": \"image_url\", \"image_url\": {\"url\": \"data:image/png;base64,%s\"%s}}"), png, ", \"detail\": \"low\"");
    const long low = asked(s, count_path, body, "input_tokens");
    CHECK(low > 200 && low < 280, "with the detail low: %ld tokens", low);
    check_refused(s, chat_path, body, "messages[0].content[0]: a broken PNG");
    header_png(png, 60000, 60000);
    snprintf(body, sizeof body, CHAT("{\"type\": \"image_url\", \"image_url\": {\"url\": \"data:image/png;base64,%s\"%s}}"), png, "");
    check_refused(s, chat_path, body, "60000 x 60000");
}

// A long image takes less of --request-memory than a text of its length, and what only looks like one takes what a text does.
static void test_memory(const char *folder) {
    char arguments[512];
    snprintf(arguments, sizeof arguments, "-m %s --device cpu --parallel 1 --context 512 --request-memory 0.01", folder);
    server s = serve(arguments);
    const size_t n = 1200000;
    char *body = (char *)allocate(n + 512), *at = body + sprintf(body, "{\"max_tokens\": 1, \"messages\": [{\"role\": \"user\", \"content\": ");
    char *content = at + sprintf(at, "[{\"type\": \"image_url\", \"image_url\": {\"url\": \"data:image/png;base64,");
    memset(content, 'A', n);
    strcpy(content + n, "\"}}]}]}");
    check_refused(s, chat_path, body, "not an image");
    strcpy(at, "\"");
    memset(at + 1, 'A', n);
    strcpy(at + 1 + n, "\"}]}");
    heard h = post(s, chat_path, body);
    CHECK(h.status == 413 && strstr(h.body, "--request-memory"), "a text: %d %.200s", h.status, h.body);
    forget(&h);
    free(body);
    stop(s);
}

static void test_text_model(void) {
    server s = serve("--device cpu --parallel 1 --context 512");
    check_refused(s, chat_path, CHAT(SHOW(DATA(RED_PNG))), "this model reads no images");
    check_refused(s, messages_path, CHAT(SOURCE(RED_PNG)), "this model reads no images");
    check_refused(s, responses_path, "{\"input\": [" USER("{\"type\": \"input_image\", \"image_url\": \"" DATA(RED_PNG) "\"}") "]}", "this model reads no images");
    stop(s);
}

// Two replicas, and a model in two parts: the same tokens and prefixes.
static void test_shared(const char *folder) {
    static const char *const splits[] = {"replicas", "pipeline", "tensor"};
    for (int i = 0; i < 3; i++) {
        char arguments[512];
        snprintf(arguments, sizeof arguments, "-m %s --devices cpu,cpu --split %s --threads 2 --parallel 2 --context 2048", folder, splits[i]);
        server s = serve(arguments);
        test_words(s);
        test_prefixes(s);
        test_results(s);
        check_refused(s, chat_path, CHAT(SHOW(DATA(BROKEN_PNG))), "messages[0].content[0]: a broken PNG");
        stop(s);
    }
}

int main(int argc, char **argv) {
    char arguments[512];
    test_main_begin("test_shown", argc, argv);
    if (!temp_open()) return test_main_end();
    vision_make(temp_dir);
    snprintf(arguments, sizeof arguments, "-m %s --device %s --parallel 1 --context 2048", temp_dir, test_device);
    server s = serve(arguments);
    test_words(s);
    test_prefixes(s);
    test_results(s);
    test_refusals(s);
    test_ollama(s);
    test_sizes(s);
    stop(s);
    test_memory(temp_dir);
    if (!strcmp(test_device, "cpu")) test_shared(temp_dir);
    test_text_model();
    temp_close();
    return test_main_end();
}
