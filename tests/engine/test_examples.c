// Tests that the examples do what they say, with the bundled model. The Makefile builds them.
//
// Usage: test_examples [--device NAME]

#include "engine.h"
#include "test.h"

#include <sys/wait.h>

enum { OUTPUT_MOST = 1 << 16 };

// The output of an example; NULL when it failed. free() it.
static char *output_of(const char *command) {
    char all[1024], *out = (char *)allocate(OUTPUT_MOST);
    snprintf(all, sizeof all, "%s/%s", EXAMPLES, command);
    FILE *in = popen(all, "r");
    size_t n = in ? fread(out, 1, OUTPUT_MOST - 1, in) : 0;
    int status = in ? pclose(in) : -1;
    out[n] = 0;
    return CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0 && n > 20, "%s: status %d: %s", command, status, out) ? out : (free(out), NULL);
}

static void check_says(const char *command, const char *const *words) {
    char *out = output_of(command);
    for (; out && *words; words++) CHECK(strstr(out, *words) != NULL, "%s says no %s: %s", command, *words, out);
    free(out);
}

// A model that reads no images says so.
static void check_image(void) {
    char out[OUTPUT_MOST / 16];
    FILE *in = popen(EXAMPLES "/image models/demo 'What is this?' docs/serve.png 2>&1", "r");
    size_t n = in ? fread(out, 1, sizeof out - 1, in) : 0;
    int status = in ? pclose(in) : -1;
    out[n] = 0;
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1 && strstr(out, "this model reads no images"), "image: status %d: %s", status, out);
}

// As many texts at a time as one likes: the same scores.
static void check_batch(void) {
    char *one = output_of("batch models/demo 60 1"), *many = output_of("batch models/demo 60 16");
    if (!one || !many) return;
    const char *end = strstr(one, "60 texts of "), *other = strstr(many, "60 texts of ");
    CHECK(end && other && end > one && end - one == other - many && !memcmp(one, many, (size_t)(end - one)), "one at a time: %s16: %s", one, many);
    CHECK(other && strstr(other, "tok/s, 16 at a time"), "no throughput: %s", many);
    free(one);
    free(many);
}

int main(int argc, char **argv) {
    static const char *const embed[] = {"expert", NULL}, *const tools[] = {NULL};
    static const char *const two[] = {"Ann: What is FP8?\n", "Bob: What is a router?\n", "8 bits", "expert", NULL};
    static const char *const experts[] = {"{", "\"answer\":", "\"sure\":", "\"experts\":", "\"words\":", "}\n", NULL};
    static const char *const said[] = {"\"said\"", "\"Gr\xc3\xbc\xc3\x9f" "e\"", NULL};
    static const char *const found[] = {"Nearest:\n", "E4M3 has four bits", "8 bits", NULL};
    static const char *const ranked[] = {"Nearest:\n", "Reranked:\n  0.", "A router chooses the experts", NULL};
    test_main_begin("test_examples", argc, argv);
    check_says("embed", embed);
    check_says("two_conversations", two);
    check_says("tools", tools);
    check_says("json", experts);
    check_says("json models/demo Hello '{\"const\": {\"said\": [\"hello\", \"Gr\\u00fc\\u00dfe\"]}}'", said);
    check_says("search", found);
    check_says("search 'What is the capital of China?' - tests/fixtures/embedding/qwen3-embedding tests/fixtures/embedding/qwen3-reranker", ranked);
    check_batch();
    check_image();
    return test_main_end();
}
