// reference.c, the smallest engine: its greedy tokens are those of transformers, of every format and family of the fixtures, and mote's
// own; the program prints them as text, and says in one line what is wrong.
//
//   test_reference                   run from the top of the repository; the program stands beside it, or is REFERENCE

#define main reference_main
#include "../../reference.c"
#undef main

#include "api.h"
#include "files.h"
#include "shell.h"

#ifndef REFERENCE
#define REFERENCE "./reference"
#endif

typedef struct told_ids { int32_t id[256]; int count, most; } told_ids;

static int keep_id(void *user, int32_t id) {
    told_ids *t = (told_ids *)user;
    t->id[t->count++] = id;
    return t->count >= t->most;
}

// ---- Fixtures -------------------------------------------------------------------------------------------------------

// The prompt of a fixture is continued as transformers did, whatever the format and the family.
static void test_fixture(const char *dir) {
    char path[600];
    size_t prompt_size, size;
    told_ids told = {.most = 256};
    mote_model m;
    mote_error error = {0, ""};
    memset(&m, 0, sizeof m);
    snprintf(path, sizeof path, "%s/tokens.i32", dir);
    int32_t *prompt = (int32_t *)file_bytes(path, &prompt_size);
    snprintf(path, sizeof path, "%s/greedy.i32", dir);
    int32_t *greedy = (int32_t *)file_bytes(path, &size);
    const int count = (int)(prompt_size / 4), most = (int)(size / 4);
    if (CHECK(prompt && greedy && most > 3 && most < 256, "%s: reference results", dir) &&
        CHECK(!open_weights(&m, dir, &error), "%s", error.message)) {
        const int failed = continue_ids(&m, prompt, count, most, keep_id, &told, &error);
        CHECK(!failed && told.count == most, "%s: %d tokens of %d: %s", dir, told.count, most, error.message);
        for (int i = 0; i < told.count; i++) CHECK(told.id[i] == greedy[i], "%s: token %d is %d, not %d", dir, i, told.id[i], greedy[i]);
    }
    close_model(&m);
    free(prompt);
    free(greedy);
}

static int test_fixtures(const char *parent) {
    DIR *d = opendir(parent);
    int found = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char dir[512], path[600];
        snprintf(dir, sizeof dir, "%s/%s", parent, e->d_name);
        snprintf(path, sizeof path, "%s/greedy.i32", dir);
        if (access(path, F_OK)) continue;
        test_fixture(dir);
        found++;
    }
    if (d) closedir(d);
    return found;
}

// ---- mote's own -----------------------------------------------------------------------------------------------------

static const char *const texts[] = {"Once upon a time", "What is FP8?", "The wolf", "", "caf\xc3\xa9 \xe2\x82\xac 12,345"};
enum { TEXTS = sizeof texts / sizeof *texts, CONTINUED = 40 };

// The ids that mote gives, and their text. 0: none, as the prompt has no token.
static int mote_continues(const mote_model *model, const char *text, told_ids *told, char *to, size_t capacity, size_t *n) {
    mote_session *s = session_of(model, .context = 256);
    mote_generation g;
    mote_sampling greedy;
    mote_result result;
    int32_t prompt[128];
    size_t count = 0;
    memset(&g, 0, sizeof g);
    memset(&greedy, 0, sizeof greedy);
    memset(&result, 0, sizeof result);
    g.sampling = &greedy;
    g.max_tokens = CONTINUED;
    g.user = told;
    g.on_token = keep_id;
    EXPECT(MOTE_OK, mote_tokenize(model, text, strlen(text), 1, prompt, 128, &count, &failure));
    if (count) {
        EXPECT(MOTE_OK, mote_feed(s, prompt, count, &failure));
        EXPECT(MOTE_OK, mote_generate(s, &g, &result, &failure));
        EXPECT(MOTE_OK, mote_detokenize(model, told->id, (size_t)told->count, to, capacity, n, &failure));
    }
    mote_session_close(s);
    return count > 0;
}

// Of the bundled model: the program prints the text of the same tokens.
static void test_bundled(void) {
    mote_model *fast = model_on("cpu", "models/demo", MOTE_EVERYTHING);
    for (int i = 0; i < (test_brief ? 1 : (int)TEXTS); i++) {
        told_ids want = {.most = 256};
        char text[4096], command[512];
        size_t n = 0;
        const int continues = mote_continues(fast, texts[i], &want, text, sizeof text - 1, &n);
        text[n] = 0;
        snprintf(command, sizeof command, REFERENCE " models/demo '%s' %d", texts[i], CONTINUED);
        shell(command);
        if (!continues) {
            CHECK(code == 1 && !out.size && line_count(&err) == 1, "a text without tokens: code %d, '%s'", code, err.data);
            continue;
        }
        CHECK(want.count > 5 && !code && !err.size, "'%s': code %d, '%s'", texts[i], code, err.data);
        CHECK(out.size == n + 1 && !memcmp(out.data, text, n) && out.data[n] == '\n', "'%s' goes on '%s', not '%s'", texts[i], out.data, text);
    }
    mote_close(fast);
}

// ---- The program ----------------------------------------------------------------------------------------------------

static void check_says(const char *command, int expected, const char *part) {
    shell(command);
    CHECK(code == expected && strstr(err.data, part) && !strncmp(err.data, "reference: ", 11), "%s: code %d, '%s', not '%s'", command, code,
          err.data, part);
    CHECK(line_count(&err) == (expected == 2 && strstr(part, "usage") ? 2 : 1) && !out.size, "%s: '%s', '%s'", command, err.data, out.data);
}

static void test_program(void) {
    shell(REFERENCE);
    CHECK(!code && strstr(err.data, "usage: ./reference DIR TEXT [TOKENS]"), "without arguments: code %d, '%s'", code, err.data);
    CHECK(!strncmp(out.data, "Once upon a time, there was", 27), "without arguments: '%s'", out.data);
    check_says(REFERENCE " models/demo", 2, "usage");
    check_says(REFERENCE " models/demo x 1 2", 2, "usage");
    check_says(REFERENCE " models/demo x 0", 2, "from 1 to 1048576");
    check_says(REFERENCE " models/demo x 3x", 2, "from 1 to 1048576");
    check_says(REFERENCE " models/demo x 99999999999999999999", 2, "from 1 to 1048576");
    check_says(REFERENCE " nowhere x", 1, "nowhere/tokenizer.json: No such file");
    check_says(REFERENCE " tests/fixtures/bf16-as-3.5 x", 1, "tokenizer.json: No such file");
    shell("cp -r models/demo @/cut && head -c 5000000 models/demo/model.safetensors >@/cut/model.safetensors");
    check_says(REFERENCE " @/cut x", 1, "cut/model.safetensors: ");
    shell("cp models/demo/model.safetensors @/cut && sed -i 's/\"vocab_size\": 4096/\"vocab_size\": 4000/' @/cut/config.json");
    check_says(REFERENCE " @/cut x", 1, "expected shape [4000, 256]");
    check_says("(" REFERENCE " models/demo x 3 >/dev/full)", 1, "No space left");
}

// What a context holds ends a text, or refuses it; so does the application.
static void test_ends(void) {
    mote_model m;
    mote_error error = {0, ""};
    told_ids told = {.most = 3};
    int32_t ids[40] = {0};
    memset(&m, 0, sizeof m);
    if (!CHECK(!open_weights(&m, "tests/fixtures/bf16-as-3.5", &error), "%s", error.message)) return;
    CHECK(!continue_ids(&m, ids, 1, 10, keep_id, &told, &error) && told.count == 3, "%d tokens, told to end after 3", told.count);
    told.most = 256;
    told.count = 0;
    m.c.context_max = 40;
    CHECK(!continue_ids(&m, ids, 38, 10, keep_id, &told, &error) && told.count == 2, "%d tokens for the last 2 of a context", told.count);
    CHECK(continue_ids(&m, ids, 40, 10, keep_id, &told, &error) == MOTE_ECONTEXT && strstr(error.message, "40 tokens"), "%s", error.message);
    CHECK(continue_ids(&m, ids, 0, 10, keep_id, &told, &error) == MOTE_EINVAL, "a text of nothing");
    told.count = 0;
    CHECK(!continue_ids(&m, ids, 1, 1, keep_id, &told, &error) && told.count == 1, "one token");
    buf_add(&m.eos, &told.id[0], sizeof told.id[0]);
    told.count = 0;
    CHECK(!continue_ids(&m, ids, 1, 10, keep_id, &told, &error) && !told.count, "%d tokens after one that ends a text", told.count);
    close_model(&m);
}

int main(int argc, char **argv) {
    test_main_begin("test_reference", argc, argv);
    if (!temp_open()) return 2;
    const int found = test_fixtures("tests/fixtures") + test_fixtures("tests/fixtures/families");
    CHECK(found > 15, "%d fixtures", found);
    test_ends();
    test_bundled();
    test_program();
    temp_close();
    return test_main_end();
}
