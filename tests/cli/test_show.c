// Tests of images on the command line: --image of run and logits, /read and @FILE of chat.
// The model is models/demo with a tower that sees nothing, but not the same in two pictures.

#include "shell.h"
#include "vision.h"

static const char model[] = "-m @/model --device cpu";

static void picture(const char *name, const char *base64) {
    shell_text(base64, "base64 -d");
    CHECK(!code, "base64 -d: %d %s", code, err.data);
    temp_write(name, out.data, out.size);
}

// The logits of these ids, with options, into a file; the exit code.
static int logits(const int32_t *ids, size_t count, const char *options, const char *name) {
    char command[1024];
    temp_write("ids", ids, count * sizeof *ids);
    snprintf(command, sizeof command, "mote logits %s --kv f32 --tokens @/ids %s -o @/%s", model, options, name);
    shell(command);
    CHECK(!code, "%s: %s", command, err.data);
    return code;
}

static char *rows(const char *name, size_t *count) {
    size_t size;
    char *bytes = file_bytes(temp_path(name), &size);
    *count = size / (4096 * sizeof(float));
    return bytes;
}

// A picture changes the rows from its first token on, and stands for one pad or for as many as it has tokens.
static void test_logits(void) {
    static const int32_t one[] = {5, 6, 7, 4072, 4075, 4073, 8}, four[] = {5, 6, 7, 4072, 4075, 4075, 4075, 4075, 4073, 8};
    static const int32_t two[] = {5, 4072, 4075, 4073, 4072, 4075, 4073};
    const size_t row = 4096 * sizeof(float);
    size_t n[5];
    if (logits(one, 7, "--image @/red.png", "a") || logits(four, 10, "--image @/red.png --chunk 3", "b") || logits(one, 7, "--image @/blue.png", "c") ||
        logits(two, 7, "--image @/red.png --image @/blue.png", "d") || logits(two, 7, "--image @/blue.png --image @/red.png", "e")) return;
    char *a = rows("a", &n[0]), *b = rows("b", &n[1]), *c = rows("c", &n[2]), *d = rows("d", &n[3]), *e = rows("e", &n[4]);
    CHECK(n[0] == 10 && n[1] == 10 && n[2] == 10 && n[3] == 13 && n[4] == 13, "%zu, %zu, %zu, %zu, %zu rows", n[0], n[1], n[2], n[3], n[4]);
    CHECK(!memcmp(a, b, 10 * row), "one pad and four are not the same");
    CHECK(!memcmp(a, c, 4 * row) && memcmp(a + 4 * row, c + 4 * row, row) && memcmp(a + 9 * row, c + 9 * row, row), "red is as blue");
    CHECK(!memcmp(d, e, 2 * row) && memcmp(d + 2 * row, e + 2 * row, row), "the order of pictures does not matter");
    free(a), free(b), free(c), free(d), free(e);
}

static void test_run(void) {
    static text red;
    shell("mote run -m @/model --device cpu --image @/red.png -p 'What is it?' --greedy -n 12 --ids --kv f32");
    red = out;
    CHECK(!code && out.size, "run --image: %s", err.data);
    shell("mote run -m @/model --device cpu --image @/red.png -p 'What is it?' --greedy -n 12 --ids --kv f32");
    CHECK(!strcmp(red.data, out.data), "the same question has two answers: %s, %s", red.data, out.data);
    shell_text("a<|vision_start|><|image_pad|><|vision_end|>b", "mote run -m @/model --device cpu --raw --image @/red.png --greedy -n 2 --ids");
    CHECK(!code && out.size, "run --raw --image: %s", err.data);
    shell_text("no place", "mote run -m @/model --device cpu --raw --image @/red.png --greedy -n 2 --ids");
    CHECK(code == 1 && strstr(err.data, "image"), "an image without a place: %d, %s", code, err.data);
    temp_write("a.txt", "text", 4);
    check_refused("mote run -m @/model --device cpu --image @/none.png -p a", 1, "none.png");
    check_refused("mote run -m @/model --device cpu --image @/a.txt -p a", 1, "a.txt: not an image");
    check_refused("mote run --device cpu --image @/red.png -p a", 1, "red.png: this model reads no images");
    check_refused("mote logits -m @/model --device cpu --image @/cut.png --tokens @/ids -o @/x", 1, "/cut.png: a broken PNG");
    check_refused("mote run -m @/model --device cpu --image @/red.png --image @/cut.png -p a", 1, "/cut.png: a broken PNG");
    check_refused("mote run --image-tokens 3 -p a", 2, "--image-tokens");
    check_refused("mote run -m @/model --device cpu --image @/red.png --image @/red.png -p a --context 12", 1, "context");
}

// What chat says to these lines.
static void chat(const char *lines, const char *options) {
    char command[1024];
    snprintf(command, sizeof command, "mote chat %s --greedy -n 3 --think off %s", model, options);
    shell_text(lines, command);
}

// How many tokens are used, by /context.
static int used(void) {
    const char *at = strstr(err.data, " tokens used");
    while (at && at > err.data && at[-1] != '\n' && strchr("0123456789 of", at[-1])) at--;
    return at ? atoi(at) : -1;
}

static void test_chat(void) {
    char lines[2048];
    chat("What is it?\n/context\n", "");
    const int plain = used();
    snprintf(lines, sizeof lines, "/read %s\nWhat is it?\n/context\n", temp_path("red.png"));
    chat(lines, "");
    CHECK(strstr(err.data, "red.png: 64 x 64, 4 tokens]") && used() == plain + 6, "/read: %d tokens, %d without: %s", used(), plain, err.data);
    snprintf(lines, sizeof lines, "/read %s\nWhat is it?\n/set temperature 0\n/retry\n/context\n/undo\n/context\n", temp_path("red.png"));
    chat(lines, "");
    CHECK(strstr(err.data, "0 of ") && strstr(err.data, "took the last turn back"), "/retry and /undo: %s", err.data);
    CHECK(used() == plain + 6, "/retry has another prompt: %d, %d", used(), plain);
    snprintf(lines, sizeof lines, "Compare @%s and @%s.\nGo on\n/context\n", temp_path("red.png"), temp_path("blue.png"));
    chat(lines, "");
    CHECK(strstr(err.data, "red.png: 64") && strstr(err.data, "blue.png: 64 x 64, 4 tokens]") && !code, "@FILE: %s", err.data);
    snprintf(lines, sizeof lines, "/read %s\n", temp_path("big.png"));
    chat(lines, "");
    CHECK(strstr(err.data, "big.png: 1600 x 1200, 1900 tokens]"), "%s", err.data);
    chat(lines, "--image-tokens 300");
    CHECK(strstr(err.data, "big.png: 1600 x 1200, 300 tokens]"), "--image-tokens 300: %s", err.data);
    snprintf(lines, sizeof lines, "/read %s\n/read %s\n", temp_path("image.webp"), temp_path("binary"));
    chat(lines, "");
    CHECK(strstr(err.data, "image.webp: WebP is not read") && strstr(err.data, "binary: not a text: byte 1"), "%s", err.data);
    snprintf(lines, sizeof lines, "/read %s\nWhat is it?\n/save %s\n/load %s\n/retry\n/context\n", temp_path("red.png"), temp_path("saved"), temp_path("saved"));
    chat(lines, "");
    CHECK(strstr(err.data, "images are not in the file") && strstr(err.data, "there is no last question") && !strstr(err.data, "pad"), "/load: %s", err.data);
}

int main(int argc, char **argv) {
    test_main_begin("test_show", argc, argv);
    if (!temp_open()) return test_main_end();
    mkdir(temp_path("model"), 0700);
    vision_make(temp_path("model"));
    picture("red.png", RED_PNG);
    picture("blue.png", BLUE_PNG);
    temp_write("big.png", "\x89PNG\r\n\x1a\n\0\0\0\15IHDR\0\0\6\x40\0\0\4\xb0\10\2\0\0\0\0\0\0\0", 33);
    temp_write("cut.png", "\x89PNG\r\n\x1a\n\0\0\0\15IHDR\0\0\0\x40\0\0\0\x40\10\2\0\0\0\0\0\0\0", 33);
    temp_write("image.webp", "RIFF\0\0\0\0WEBPVP8 \xff", 17);
    temp_write("binary", "a\0b", 3);
    test_logits();
    test_run();
    test_chat();
    temp_close();
    return test_main_end();
}
