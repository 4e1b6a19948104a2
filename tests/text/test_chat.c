// Tests of text: rendering, recognition of templates, the answer as a stream of channels, and what becomes of text from
// outside on its way to token ids, in the calls of section 3 of engine.h and in mote_ask; also when memory runs out.
// Usage: test_chat [DATA], from the top of the repository: the folder that holds tokenizers, chat_templates and
// chat_goldens; without it those tests are skipped.
//
// Parts
//   chat_rendering.c   rendering, in literal cases; malformed requests; turns
//   chat_streams.c     the answer as a stream of channels
//   chat_outside.c     text from outside on its way to token ids; the same text, the same tokens
//   chat_memory.c      memory that runs out
//   chat_families.c    the families without thinking, Qwen3.8's efforts: goldens of tests/fixtures/chats, what is mended, turns
//   here               arguments; published templates and goldens

#include "inside.h"
#include "api.h"
#include "files.h"
#include "no_memory.h"
#include "harmony.h"

enum { LENIENT35 = CHAT_QWEN3_5 | CHAT_LENIENT };

#include "chat_rendering.c"
#include "chat_streams.c"
#include "chat_outside.c"

// ---- Arguments ------------------------------------------------------------------------------------------------------

static void test_arguments(const mote_model *m) {
    static const char request[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"</think>\"}]}";
    static const char hello[] = "<think>Hello";
    int32_t ids[64];
    char text[256];
    size_t n = 99, size = sizeof request - 1;
    mote_model bare = text_model(NULL, CHAT_UNKNOWN), silent = text_model(m->text, CHAT_UNKNOWN);
    mote_model mute = text_model(NULL, m->family);
#define REFUSED(code, call) (n = 99, EXPECT(code, call), CHECK(n == 0, "the count after " #call))
    REFUSED(MOTE_EINVAL, mote_tokenize(NULL, hello, 3, 0, ids, 64, &n, &failure));
    REFUSED(MOTE_EINVAL, mote_tokenize(m, NULL, 3, 0, ids, 64, &n, &failure));
    REFUSED(MOTE_EINVAL, mote_tokenize(m, hello, 3, 0, NULL, 64, &n, &failure));
    EXPECT(MOTE_EINVAL, mote_tokenize(m, hello, 3, 0, ids, 64, NULL, &failure));
    REFUSED(MOTE_EINVAL, mote_detokenize(NULL, ids, 1, text, 64, &n, &failure));
    REFUSED(MOTE_EINVAL, mote_detokenize(m, NULL, 1, text, 64, &n, &failure));
    REFUSED(MOTE_EINVAL, mote_detokenize(m, ids, 1, NULL, 64, &n, &failure));
    EXPECT(MOTE_EINVAL, mote_detokenize(m, ids, 1, text, 64, NULL, &failure));
    REFUSED(MOTE_EINVAL, mote_render(NULL, request, size, text, 64, &n, &failure));
    REFUSED(MOTE_EINVAL, mote_render(m, NULL, 0, text, 64, &n, &failure));
    REFUSED(MOTE_EINVAL, mote_render(m, request, size, NULL, 64, &n, &failure));
    EXPECT(MOTE_EINVAL, mote_render(m, request, size, text, 64, NULL, &failure));
    REFUSED(MOTE_EINVAL, mote_render_tokens(NULL, request, size, ids, 64, &n, &failure));
    REFUSED(MOTE_EINVAL, mote_render_tokens(m, NULL, 0, ids, 64, &n, &failure));
    REFUSED(MOTE_EINVAL, mote_render_tokens(m, request, size, NULL, 64, &n, &failure));
    EXPECT(MOTE_EINVAL, mote_render_tokens(m, request, size, ids, 64, NULL, &failure));
    REFUSED(MOTE_EINVAL, mote_render_tokens(m, request, size - 1, ids, 64, &n, &failure));
    CHECK(strstr(failure.message, "chat request: "), "<%s>", failure.message);
    REFUSED(MOTE_EUNSUPPORTED, mote_tokenize(&bare, hello, 3, 0, ids, 64, &n, &failure));
    REFUSED(MOTE_EUNSUPPORTED, mote_detokenize(&bare, ids, 1, text, 64, &n, &failure));
    REFUSED(MOTE_EUNSUPPORTED, mote_render(&silent, request, size, text, 64, &n, &failure));
    REFUSED(MOTE_EUNSUPPORTED, mote_render_tokens(&silent, request, size, ids, 64, &n, &failure));
    REFUSED(MOTE_EUNSUPPORTED, mote_render_tokens(&mute, request, size, ids, 64, &n, &failure));
    CHECK(!mote_token_bytes(NULL, 1, &n) && !mote_token_bytes(m, 1, NULL) && !mote_token_bytes(&bare, 1, &n), "bytes");
    EXPECT(MOTE_OK, mote_tokenize(m, NULL, 0, 1, NULL, 0, &n, &failure));
    EXPECT(MOTE_OK, mote_detokenize(m, NULL, 0, NULL, 0, &n, &failure));
    EXPECT(MOTE_EINVAL, mote_render_tokens(m, request, size, NULL, 0, &n, &failure));
    size_t needed = n;
    CHECK(needed > 10, "%zu tokens needed", needed);
    EXPECT(MOTE_EINVAL, mote_render_tokens(m, request, size, ids, needed - 1, &n, &failure));
    EXPECT(MOTE_OK, mote_render_tokens(m, request, size, ids, needed, &n, &failure));
    CHECK(n == needed && ids[0] == tokenizer_find(m->text, "<|im_start|>"), "%zu tokens of %zu", n, needed);
    int32_t think = tokenizer_find(m->text, "<think>");
    EXPECT(MOTE_OK, mote_tokenize(m, hello, sizeof hello - 1, 1, ids, 64, &n, &failure));
    CHECK(ids[0] == think, "trusted text");
    EXPECT(MOTE_OK, mote_tokenize(m, hello, sizeof hello - 1, 0, ids, 64, &n, &failure));
    CHECK(ids[0] != think && n > 3, "plain text");
}

#include "chat_memory.c"

// ---- Published templates and goldens --------------------------------------------------------------------------------

static const char INTERLEAVED[] = "google-gemma-4-31B-it-interleaved";    // another project's, used as Google's of April

// Used as a published family's, but not rendered as they say: changed by others, and gpt-oss's of its first day, which refuses tools.
static int is_modified(const char *name) {
    return !strcmp(name, "Qwen3.5.community-modified.Li-Lee") || !strcmp(name, "gpt-oss.onnxruntime-extensions") || !strcmp(name, INTERLEAVED);
}

static int golden_family(const char *name) { // what we say a template of this file name is
    if (!strncmp(name, "Qwen3.5.community", 17)) return QWEN35;
    if (!strcmp(name, "Qwen-Qwen3-0.6B") || !strcmp(name, "Qwen3.from-tokenizer_config")) return QWEN3;
    if (!strcmp(name, "Qwen3.5-4B")) return QWEN35;
    if (!strcmp(name, "Qwen3.5-35B-A3B.from-REAP")) return LENIENT35;
    if (!strcmp(name, "Qwen3-Coder")) return CHAT_CODER;
    if (!strcmp(name, "meta-llama-Llama-3.1-8B-Instruct")) return CHAT_LLAMA3 | CHAT_DATED;
    if (!strncmp(name, "meta-llama", 10) || !strncmp(name, "Llama3.2", 8)) return CHAT_LLAMA3 | CHAT_DATED | CHAT_TODAY;
    if (!strcmp(name, "mistralai-Mistral-Nemo-Instruct-2407")) return CHAT_MISTRAL | CHAT_NEMO;
    if (strstr(name, "gpt-oss")) return CHAT_HARMONY;
    if (!strncmp(name, "Mistral-Small-3.2", 17)) return CHAT_MISTRAL | CHAT_SMALL;
    if (!strcmp(name, "DeepSeek-V3.from-tokenizer_config")) return CHAT_DEEPSEEK | CHAT_LINED;
    if (!strcmp(name, "deepseek-ai-DeepSeek-V3.1")) return CHAT_DEEPSEEK | CHAT_QUIET;
    if (!strncmp(name, "GLM-4", 5)) return strcmp(name, "GLM-4.6") ? CHAT_GLM : CHAT_GLM | CHAT_LINED;
    if (!strcmp(name, "google-gemma-4-31B-it") || !strcmp(name, INTERLEAVED)) return CHAT_GEMMA | CHAT_QUIET;
    if (!strcmp(name, "gemma-4.onnxruntime-extensions")) return CHAT_GEMMA | CHAT_QUIET | CHAT_BARE;
    if (!strcmp(name, "gemma-4.google-original.forcepusher")) return CHAT_GEMMA | CHAT_QUIET | CHAT_NAMES;
    return strcmp(name, "Qwen3.5.from-ComfyUI-tokenizer_config") ? CHAT_UNKNOWN : QWEN35 | CHAT_QUIET;
}

// The family; text is copied, as detection cuts its comments.
static int detect(const char *text, size_t n, int *modified) {
    buf copy = {0};
    buf_add(&copy, text, n);
    int family = (int)chat_detect(copy.data, copy.size, modified);
    buf_free(&copy);
    return family;
}

// The same program with other white space is the same. A published one with another word in it is used as its family's, one of
// which half is missing is not.
static void check_detect(const char *name, int want, int published, const buf *text) {
    int modified = 0;
    buf other;
    memset(&other, 0, sizeof other);
    int got = detect(text->data, text->size, &modified);
    CHECK(got == want && modified == !published, "%s: family %d, modified %d", name, got, modified);
    for (size_t i = 0; i < text->size; i++) { // other line ends and a longer tail: the same
        if (text->data[i] == '\n') buf_text(&other, " \r");
        buf_add(&other, text->data + i, 1);
    }
    buf_text(&other, " \r\n\r\n");
    CHECK(detect(other.data, other.size, &modified) == want && modified == !published, "%s: not seen with other line ends", name);
    CHECK(detect(text->data, text->size / 2, &modified) == CHAT_UNKNOWN, "%s: seen in its first half", name);
    slice before = slice_before(slice_of(text->data, text->size), "message");
    other.size = 0;
    buf_slice(&other, before);
    buf_text(&other, "another_");
    buf_slice(&other, slice_from(slice_of(text->data, text->size), before.n));
    CHECK(detect(other.data, other.size, &modified) == want && modified, "%s: changed, family %d, modified %d", name, want, modified);
    buf_free(&other);
}

// The goldens are of 2026-01-02, in whatever form the template asks for.
static void put_today(int family, buf *text) {
    static const char then[] = "2026-01-02";
    char today[64];
    slice all = slice_of(text->data, text->size), before = slice_before(all, then);
    buf out = {0};
    if (before.n == all.n) return;
    chat_today(today, sizeof today, family & (CHAT_MISTRAL | CHAT_HARMONY));
    buf_slice(&out, before);
    buf_text(&out, today);
    buf_slice(&out, slice_from(all, before.n + strlen(then)));
    buf_free(text);
    *text = out;
}

// DeepSeek's: V3's and R1's leave calls open and take no objects for arguments; V3.1's second text writes those that are a text as a text of JSON; an
// empty text is no JSON; V3.1's first text knows thinking by the name "thinking" alone; the first of R1 forgets system messages.
static int deepseek_is_mended(int family, slice name) {
    static const char *const calls[] = {"call", "after a call", "call with text", "two calls", "no arguments", "two rounds", "thought before a call",
                                        "tool_call_and_response", "answered call", "calls as text"};
    const int v31 = family & CHAT_QUIET, first = !v31 && family & CHAT_LINED;
    for (size_t i = 0; i < COUNT(calls); i++) {
        if (name.n != strlen(calls[i]) || !slice_starts(name, calls[i])) continue;
        if (i == 4) return 1;
        return i == 8 ? first || (v31 && !(family & CHAT_BARE)) : i == 9 ? v31 && !(family & CHAT_BARE) : !v31 || family & CHAT_BARE;
    }
    return slice_starts(name, "content_parts") || (family & CHAT_BARE && slice_starts(name, "on")) ||
           (first && family & CHAT_OPEN && slice_starts(name, "system in"));
}

// What engine.h says of requests that the templates refuse, render as Python source text, or leave something of out.
static int is_mended(int family, slice name) {
    static const char *const systems[] = {"system", "empty system", "answered", "low", "tools and system"};
    static const char *const calls[] = {"call", "after a call", "call with text", "two calls", "no arguments", "call without a tool"};
    const int bare = (family & ~CHAT_SPACED) == CHAT_MISTRAL;
    if (family & CHAT_MISTRAL && slice_starts(name, "tool_call_and_response")) return 1;     // ids that have not nine characters
    for (size_t i = 0; i < COUNT(systems) && bare; i++)
        if (slice_starts(name, systems[i]) && name.n == strlen(systems[i])) return 1;
    for (size_t i = 0; i < COUNT(calls) && (bare || family & (CHAT_CHATML | CHAT_ZEPHYR)); i++)
        if (slice_starts(name, calls[i]) && name.n == strlen(calls[i]) && (i < 5 || !(family & CHAT_CHATML))) return 1;
    static const char *const refused[] = {"xhigh", "tools", "call with text", "two calls", "call without a tool", "thinking"};
    for (size_t i = 0; i < COUNT(refused) && family & CHAT_HARMONY; i++)                     // another effort, no description, reasoning_content
        if (slice_is(name, refused[i])) return 1;
    if ((family & CHAT_CODER || family == CHAT_GLM || family & CHAT_LAGUNA) && slice_starts(name, "no arguments")) return 1;
    if (family & CHAT_DEEPSEEK) return deepseek_is_mended(family, name);
    if (family & CHAT_GEMMA && (slice_starts(name, "call with text") || slice_starts(name, "call without a tool"))) return 1;
    if (family & CHAT_GEMMA && slice_starts(name, "no arguments") && family & CHAT_PRESERVE) return 1;
    if (family & CHAT_GEMMA && slice_starts(name, "system parts") && !(family & CHAT_NAMES)) return 1;
    if (family & CHAT_NEMO && (slice_starts(name, "answered") || slice_starts(name, "call with text"))) return 1;
    if (family & CHAT_NEMO && slice_starts(name, "call without a tool")) return 1;           // a user after a result
    return !(family & (CHAT_QWEN3_5 | CHAT_SMALL | CHAT_GLM)) && slice_starts(name, "content_parts");
}

// The request of a golden: beside what came of it, or, where many files have the same ones, in requests.json by the golden's name.
static void put_request(const json *goldens, uint32_t golden, const json *requests, buf *args) {
    char name[100];
    const uint32_t here = json_get(goldens, golden, "args"), of = json_get(goldens, golden, "case");
    snprintf(name, sizeof name, "%.*s", (int)goldens->nodes[of].size, goldens->text + goldens->nodes[of].start);
    const uint32_t there = here || !requests ? 0 : json_get(requests, 0, name);
    args->size = 0;
    if (CHECK(here || there, "%s: no request", name)) put_json(here ? goldens : requests, here ? here : there, args, NULL);
}

static void check_goldens(const char *dir, const char *name, int family, const tokenizer *t) {
    char file[300];
    buf args, want;
    json j, requests;
    mote_error err, none;
    memset(&args, 0, sizeof args);
    memset(&want, 0, sizeof want);
    snprintf(file, sizeof file, "%s.json", name);
    const int are_shared = !read_json(dir, "requests.json", &requests, &none);
    const int read = !read_json_of(dir, file, JSON_ARRAY, &j, &err);
    CHECK(read, "%s", err.message);
    for (uint32_t k = 1; read && k < j.nodes[0].next; k = j.nodes[k].next) {
        uint32_t rendered = json_get(&j, k, "rendered");
        char label[400];
        put_request(&j, k, are_shared ? &requests : NULL, &args);
        want.size = 0;
        if (rendered) put_string(&j, rendered, &want);
        buf_text(&want, ""); // not NULL even when empty
        put_today(family, &want);
        uint32_t name_node = json_get(&j, k, "case");
        if (is_mended(family, slice_of(j.text + j.nodes[name_node].start, j.nodes[name_node].size))) continue;
        snprintf(label, sizeof label, "%s case %u", name, k);
        check_render(family, args.data, args.size, rendered ? want.data : NULL, want.size, label);
        if (t && rendered) check_same_tokens(t, family, args.data, args.size, label);
    }
    if (read) json_free(&j);
    if (are_shared) json_free(&requests);
    buf_free(&args);
    buf_free(&want);
}

#include "chat_families.c"

static void test_published(const char *data, const tokenizer *qwen3, const tokenizer *qwen35, const tokenizer *gemma) {
    char templates[1024], goldens[1024], name[256];
    int seen = 0, known = 0;
    snprintf(templates, sizeof templates, "%s/chat_templates", data);
    snprintf(goldens, sizeof goldens, "%s/chat_goldens", data);
    DIR *dir = opendir(templates);
    if (!dir) {
        test_skip("no chat templates and goldens in the data folder");
        return;
    }
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        const char *dot = strstr(e->d_name, ".jinja");
        buf text;
        mote_error err;
        memset(&text, 0, sizeof text);
        if (!dot) continue;
        snprintf(name, sizeof name, "%.*s", (int)(dot - e->d_name), e->d_name);
        if (read_file(templates, e->d_name, &text, &err)) {
            CHECK(0, "%s", err.message);
            continue;
        }
        check_detect(name, golden_family(name), golden_family(name) && !is_modified(name), &text);
        buf_free(&text);
        seen++;
        if (!golden_family(name) || is_modified(name)) continue;
        known++;
        check_goldens(goldens, name, golden_family(name), golden_family(name) & CHAT_GEMMA ? gemma : golden_family(name) & QWEN35 ? qwen35 : qwen3);
    }
    closedir(dir);
    CHECK(seen > 20 && known == 19, "%d templates, %d of them known", seen, known);
}

// DATA/tokenizers/name/file, which need not be called tokenizer.json. NULL when it cannot be opened.
static tokenizer *open_tokenizer(const char *data, const char *name, const char *file) {
    char path[4096];
    tokenizer *t = NULL;
    mote_error err = {0, "no such file"};
    snprintf(path, sizeof path, "%s/tokenizers/%s/%s", data, name, file);
    char *full = realpath(path, NULL);
    CHECK(full && !symlink(full, temp_path("tokenizer.json")) && !tokenizer_open(&t, temp_dir, &err), "%s: %s", path,
          err.message);
    temp_empty();
    free(full);
    return t;
}

static tokenizer *gemma_tokenizer(void) {
    tokenizer *t = NULL;
    mote_error err = {0};
    CHECK(!tokenizer_open(&t, "tests/fixtures/gemma4", &err), "%s", err.message);
    return t;
}

// Under Gemma's own tokenizer, whose control tokens are the template's.
static void test_gemma(void) {
    static const int texts[] = {GEMMA, GEMMA_JULY, GEMMA_JULY | CHAT_BARE};
    tokenizer *t = gemma_tokenizer();
    if (t) test_outside(t, texts, COUNT(texts));
    tokenizer_free(t);
}

static void test_with_data(const char *data) {
    tokenizer *qwen3 = open_tokenizer(data, "qwen3", "tokenizer.json");
    tokenizer *qwen35 = open_tokenizer(data, "qwen3_5", "tokenizer.reconstructed.json");
    compared = not_compared = 0;
    tokenizer *mistral = open_tokenizer(data, "mistral_v1", "tokenizer.json"), *gemma = gemma_tokenizer();
    tokenizer *gptoss = open_tokenizer(data, "gptoss", "tokenizer.json");
    test_published(data, qwen3, qwen35, gemma);
    for (size_t i = 0; i < COUNT(family_files); i++) {
        const int f = family_files[i].family;
        const tokenizer *t = f & QWEN35 ? qwen35 : f & (CHAT_MISTRAL | CHAT_ZEPHYR) ? mistral : f & CHAT_GEMMA ? gemma : f & CHAT_HARMONY ? gptoss : qwen3;
        check_goldens("tests/fixtures/chats", family_files[i].name, f, t);
    }
    tokenizer_free(mistral);
    tokenizer_free(gemma);
    if (gptoss) test_marks_outside(gptoss, CHAT_HARMONY);
    tokenizer_free(gptoss);
    CHECK(compared > 40 && not_compared < compared, "%d renderings compared, %d not", compared, not_compared);
    if (qwen3) {
        test_tool_result(qwen3);
        test_same_tokens(qwen3);
        test_past(qwen3, families, 2);
        test_outside(qwen3, families, 2);
    }
    if (qwen35) {
        test_same_tokens(qwen35);
        test_past(qwen35, families + 2, COUNT(families) - 2);
        test_outside(qwen35, families + 2, COUNT(families) - 2);
    }
    tokenizer_free(qwen3);
    tokenizer_free(qwen35);
}

static void test_demo(void) {
    mote_options o;
    mote_model *m;
    memset(&o, 0, sizeof o);
    o.parts = MOTE_TEXT_ONLY;
    EXPECT(MOTE_OK, mote_open("models/demo", &o, &m, &failure));
    if (failure.code) return;
    test_arguments(m);
    test_same_tokens(m->text);
    test_past(m->text, families, COUNT(families));
    test_past_call();
    test_outside(m->text, families, COUNT(families));
    test_memory(m->text);
    mote_close(m);
}

int main(int argc, char **argv) {
    test_main_begin("test_chat", argc, argv);
    if (!temp_open()) return test_main_end();
    test_render();
    test_malformed();
    test_turn();
    test_stream();
    test_channels();
    test_harmony_goldens();
    test_families();
    test_demo();
    test_gemma();
    if (test_data_dir()) test_with_data(test_data_dir());
    else test_skip("no data folder: published chat templates, goldens and tokenizers");
    temp_close();
    return test_main_end();
}
