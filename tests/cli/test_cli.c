// Tests of the program's commands: what they print, refuse and write. On a terminal: test_terminal.c; what others do to it:
// test_program.c.

#include "engine.h"
#include "shell.h"

#include <math.h>
#include <sys/stat.h>

#define FIXTURE "tests/fixtures/bf16-as-3.6"

static float golden[1 << 16], got[1 << 16];

// ---- Help and mistakes ------------------------------------------------------------------------------------------

static void test_help(void) {
    static const char *const commands[] = {"chat",       "run",    "info",   "tokenize",
                                           "detokenize", "render", "logits", "bench", "serve", "accuracy"};
    char line[64], usage[64];
    shell("mote --version");
    CHECK(code == 0 && strcmp(out.data, "mote " MOTE_VERSION "\n") == 0, "--version: %d %s", code, out.data);
    shell("mote --help");
    CHECK(code == 0 && err.size == 0, "--help: %d %s", code, err.data);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        shell("mote help");
        snprintf(line, sizeof line, "\n  %s ", commands[i]);
        CHECK(code == 0 && strstr(out.data, line), "help does not list %s", commands[i]);
        snprintf(line, sizeof line, "mote %s --help", commands[i]);
        snprintf(usage, sizeof usage, "usage: mote %s ", commands[i]);
        shell(line);
        CHECK(code == 0 && strstr(out.data, usage) && strstr(out.data, "  -m "), "%s: %d %s", line, code, out.data);
    }
    shell("mote help run");
    CHECK(code == 0 && strstr(out.data, "--top-k"), "help run: %d %s", code, out.data);
    CHECK(strstr(out.data, "mote run \"What is FP8?\""), "help run has no example: %s", out.data);
    shell("mote --help");
    int lines = 0;
    for (const char *at = out.data; (at = strchr(at, '\n')); at++) lines++;
    CHECK(lines <= 24, "mote --help does not fit a screen: %d lines", lines);
    shell("mote help bench");
    size_t widest = 0;
    for (const char *at = out.data; *at; at += strcspn(at, "\n") + 1) widest = strcspn(at, "\n") > widest ? strcspn(at, "\n") : widest;
    CHECK(strstr(out.data, "pp512") && strstr(out.data, "--accept 0.85,0.80,0.75") && widest <= 112, "help bench, %zu columns: %s", widest,
          out.data);
    shell("mote help selftest");
    CHECK(code == 0 && strstr(out.data, "usage: mote selftest ") && strstr(out.data, "\n  --device ") &&
              strstr(out.data, "\n  --sms ") && !strstr(out.data, "  -m "),
          "help selftest: %d %s", code, out.data);
    static const struct { const char *command, *options[12]; } news[] = {
        {"chat", {"--device", "--kv", "-v", "--mtp", "--draft-rows", "--verify-spec"}},
        {"run", {"--device", "--kv", "-v", "--mtp", "--draft-rows", "--verify-spec"}},
        {"info", {"--device", "--kv", "--quantize", "--synthetic"}}, {"logits", {"--device", "--kv", "--mtp"}},
        {"bench", {"--device", "--kv", "-v", "--sms", "--rows", "--synthetic", "--stages", "--json", "--context"}},
        {"bench", {"--mtp", "--draft-rows", "--accept", "--overlap", "--ask", "--locality", "--expert-slots"}}};
    for (size_t i = 0; i < sizeof news / sizeof news[0]; i++) {
        snprintf(line, sizeof line, "mote %s --help", news[i].command);
        shell(line);
        for (int k = 0; news[i].options[k]; k++) {
            snprintf(usage, sizeof usage, "\n  %s ", news[i].options[k]);
            CHECK(strstr(out.data, usage), "%s does not list %s", line, news[i].options[k]);
        }
    }
}

// The manual page has every option, with its value as the help has it.
static void test_manual(void) {
    static const char *const commands[] = {"chat", "run", "serve", "info", "tokenize", "logits", "bench", "accuracy", "selftest", "worker"};
    static char page[1 << 16];
    int options = 0;
    page[read_named("docs/mote.1", page, sizeof page - 1)] = 0;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        char line[256], name[32], value[32], wanted[160];
        snprintf(line, sizeof line, "mote help %s", commands[i]);
        shell(line);
        for (char *at = out.data; (at = strstr(at, "\n  -")); at++) {
            int end = 0, n = sscanf(at, " %31s%n", name, &end);
            int has_value = n == 1 && end < 24 && at[25] != ' ' && sscanf(at + 24, "%31s", value) == 1;
            if (!strcmp(name, "--help")) continue;
            size_t k = (size_t)snprintf(wanted, sizeof wanted, has_value ? "\n.BI " : "\n.B ");
            for (const char *c = name; *c; c++) k += (size_t)snprintf(wanted + k, sizeof wanted - k, *c == '-' ? "\\-" : "%c", *c);
            snprintf(wanted + k, sizeof wanted - k, has_value ? " \" %s\"\n" : "\n", value);
            CHECK(strstr(page, wanted), "mote help %s: %s is not in docs/mote.1 as '%s'", commands[i], name, wanted + 1);
            options++;
        }
    }
    CHECK(options > 80, "%d options", options);
}

// The help of --context tells the context that a chat has.
static void test_context_told(void) {
    shell("mote help chat");
    CHECK(strstr(out.data, "(default: the model's, at most 8192;"), "%s", out.data);
    shell_text("/context\n", "mote chat -m models/demo");
    CHECK(strstr(err.data, "of 4096 tokens used"), "of a model with 4096: %s", err.data);
}

static void test_mistakes(void) {
    check_refused("mote rnu", 2, "did you mean run?");
    check_refused("mote xyzzy", 2, "unknown command 'xyzzy'");
    check_refused("mote 'What is mote?'", 2, "mote run TEXT asks");
    check_refused("mote " FIXTURE, 2, "mote -m " FIXTURE " opens a checkpoint");
    check_refused("mote help rnu", 2, "did you mean run?");
    check_refused("mote run --tmep 1 -p x", 2, "did you mean --temp?");
    check_refused("mote run --frobnicate", 2, "'--frobnicate'");
    check_refused("mote info -p x", 2, "'-p'");
    check_refused("mote run hello there", 2, "unexpected argument 'there'");
    check_refused("mote info hello", 2, "unexpected argument 'hello'");
    check_refused("mote run -p", 2, "-p needs a value");
    check_refused("mote run -p x -n abc", 2, "not 'abc'");
    check_refused("mote run -p x -n 3x", 2, "from 1 to");
    check_refused("mote run -p x -n -3", 2, "-n needs a whole number");
    check_refused("mote run -p x -n 99999999999999999999", 2, "-n needs a whole number");
    check_refused("mote run -p x --temp hot", 2, "not 'hot'");
    check_refused("mote run -p x --temp nan", 2, "not 'nan'");
    check_refused("mote run -p x --top-p 1.5", 2, "from 0 to 1");
    check_refused("mote run -p x --seed -1", 2, "--seed needs");
    check_refused("mote run -p x --think maybe", 2, "on or off");
    check_refused("mote run -p x --greedy --temp 1", 2, "exclude each other");
    check_refused("mote run -p x --tokens y", 2, "exclude each other");
    check_refused("mote run -p x --greedy=1", 2, "takes no value");
    check_refused("mote run -p x --raw --system y", 2, "--raw");
    check_refused("mote bench --prompt 1,,2", 2, "--prompt needs");
    check_refused("mote logits -m " FIXTURE, 2, "--tokens");
    check_refused("mote info --device gpu", 2, "--device needs cpu, cuda or cuda:N, not 'gpu'");
    check_refused("mote info --device cuda:", 2, "not 'cuda:'");
    check_refused("mote run -p x --device cuda:1x", 2, "not 'cuda:1x'");
    check_refused("mote info --kv f16", 2, "--kv needs f32, bf16 or fp8, not 'f16'");
    check_refused("mote info --quantize int4", 2, "--quantize needs fp8 or head-fp8, not 'int4'");
    check_refused("mote info --gpu-memory 16", 2, "--gpu-memory needs gigabytes, as 16G or 16Gi, not '16'");
    check_refused("mote info --gpu-memory -1G", 2, "not '-1G'");
    check_refused("mote run -p x --gpu-memory nanG", 2, "not 'nanG'");
    check_refused("mote serve --experts cpu", 2, "--experts needs auto, device or host, not 'cpu'");
    check_refused("mote info --link 25:", 2, "--link needs GB/s");
    check_refused("mote info --link fast", 2, "not 'fast'");
    check_refused("mote run -p x --link 25", 2, "'--link'");
    check_refused("mote run -p x --n-cpu-moe 20", 2, "--experts host");
    check_refused("mote info -m x --synthetic y", 2, "exclude each other");
    check_refused("mote bench --rows 1,9", 2, "--rows needs");
    check_refused("mote bench --rows 0", 2, "--rows needs");
    check_refused("mote bench -m x --synthetic y", 2, "exclude each other");
    check_refused("mote bench --synthetic qwen3.5-0.8b:int4 --quantize fp8", 2, "--synthetic NAME:fp8");
    check_refused("mote run -p x --mtp 64", 2, "--mtp needs auto, or 0 to ");
    check_refused("mote chat --mtp -1", 2, "not '-1'");
    check_refused("mote bench --mtp off", 2, "not 'off'");
    check_refused("mote info --mtp 1", 2, "'--mtp'");
    check_refused("mote run -p x --draft-rows 0", 2, "--draft-rows needs a whole number from 1 to");
    check_refused("mote bench --verify-spec", 2, "'--verify-spec'");
    check_refused("mote bench --accept 0.9,1.1", 2, "--accept needs up to 7 numbers with commas between them from 0");
    check_refused("mote bench --accept 0.9,", 2, "not '0.9,'");
    check_refused("mote bench --accept 1,1,1,1,1,1,1,1", 2, "not '1,1,1,1,1,1,1,1'");
    check_refused("mote bench --accept 0.8 --overlap 2", 2, "--overlap needs a number from 0 to 1, not '2'");
    check_refused("mote bench --overlap 0", 2, "--overlap belongs");
    check_refused("mote bench --locality 0.8 --sessions 4", 2, "not with --locality");
    check_refused("mote bench --locality 1.5", 2, "--locality needs a number from 0 to 1, not '1.5'");
    check_refused("mote bench --device cpu --synthetic tiny --prompt 8 --depth 0 --tokens 2 --locality 0.8", 2, "--locality is of experts in host memory, for a GPU");
    check_refused("mote bench --accept 0.8 --mtp 0", 2, "not with --mtp 0");
    check_refused("mote bench --ask x --depth 0", 2, "not with --ask");
    check_refused("mote tokenize --device cpu", 2, "'--device'");
    check_refused("mote selftest -m x", 2, "'-m'");
    check_refused("mote run -p x --effort low --think off", 2, "--effort low and --think off exclude each other");
    check_refused("mote chat --effort none --think on", 2, "--effort none and --think on exclude each other");
    check_refused("mote serve --name ''", 2, "--name is empty");
    check_refused("mote run -p x --ctx-size 4096", 2, "no option --ctx-size; in mote: --context N");
    check_refused("mote serve --max_model_len=4096", 2, "no option --max_model_len; in mote: --context N");
    check_refused("mote run -p x --temperature 1", 2, "in mote: --temp T");
    check_refused("mote chat -ngl 99", 2, "in mote: all layers are on the GPU if there is one");
    check_refused("mote serve --served-model-name x", 2, "in mote: --name TEXT");
    check_refused("mote run hi --verbose", 2, "in mote: -v");
    check_refused("mote serve -tp 2", 2, "in mote: a model is on one GPU");
    check_refused("mote run -p x --threads 257", 2, "--threads needs a whole number from 1 to 256, not '257'");
    check_refused("mote logits --tokens x -o y --chunk 8193", 2, "--chunk needs a whole number from 1 to 8192");
}

static void test_failures(void) {
    check_refused("mote info -m @/nosuch", 1, "nosuch");
    check_refused("mote tokenize -m @", 1, "tokenizer.json");
    check_refused("mote run -m @/nosuch -p x", 1, "nosuch");
    check_refused("mote run -m @", 1, "the prompt is empty");
    check_refused("mote run -m " FIXTURE " --tokens @/nosuch.i32", 1, "nosuch.i32");
    temp_write("odd.i32", "12345", 5);
    temp_write("none.i32", "", 0);
    temp_write("big.i32", "\1\0\0\0\0\0\0\x7f", 8);
    check_refused("mote run -m " FIXTURE " --tokens @/odd.i32", 1, "multiple of 4");
    check_refused("mote logits -m " FIXTURE " --tokens @/none.i32 -o @/l", 1, "no tokens");
    check_refused("mote logits -m " FIXTURE " --tokens @/big.i32 -o @/l", 1, "token 1 is 2130706432");
    check_refused("mote logits -m " FIXTURE " --tokens " FIXTURE "/tokens.i32 -o @/no/l", 1, "no/l");
    check_refused("mote logits -m " FIXTURE " --tokens " FIXTURE "/tokens.i32 -o /dev/full", 1, "/dev/full");
    check_refused("mote logits -m " FIXTURE " --tokens " FIXTURE "/tokens.i32 -o @/l --mtp /dev/full", 1, "/dev/full");
    CHECK(!temp_exists("l"), "logits left a file behind");
    if (access("/dev/full", W_OK) == 0) CHECK(system(MOTE_PROGRAM " --version >/dev/full 2>&1"), "a full disk passed");
    else test_skip("no /dev/full");
}

// ---- Files that are written -------------------------------------------------------------------------------------

#define LOGITS_ARGUMENTS "logits --device cpu -m " FIXTURE " --tokens " FIXTURE "/tokens.i32"
#define LOGITS "mote " LOGITS_ARGUMENTS

// The kind of a file in the temporary temp_dir, as in S_IFREG; 0: there is none. Links are not followed.
static unsigned temp_kind(const char *name) {
    struct stat status;
    return lstat(temp_path(name), &status) ? 0 : status.st_mode & S_IFMT;
}

static int temp_holds(const char *name, const char *expected) {
    char data[64];
    size_t size = read_temp(name, data, sizeof data);
    return temp_exists(name) && size == strlen(expected) && memcmp(data, expected, size) == 0;
}

// What was typed after -m, where it is no checkpoint folder: one line that names the cause. A hub cache is looked into.
static void test_paths(void) {
    check_refused("mote info -m Qwen/Qwen3.5-35B-A3B-FP8", 1,
                  "looks like a Hugging Face id: hf download Qwen/Qwen3.5-35B-A3B-FP8 --local-dir D, then -m D");
    check_refused("mote info -m Qwen/Nosuch", 1, "mote has no network code, and hf comes with pip install huggingface_hub");
    check_refused("mote info -m nosuch", 1, "nosuch: no such folder; hf download ORG/NAME --local-dir nosuch would fetch");
    check_refused("mote info -m '~/models'", 1, "does not replace a ~ inside quotes");
    check_refused("mote info -m main.c", 1, "main.c: is a file");
    shell("mkdir -p @/empty @/gguf @/lfs @/part @/hub/models--A--B/snapshots/1 @/hub/models--A--B/snapshots/2; touch @/gguf/m.gguf");
    check_refused("mote info -m @/gguf/m.gguf", 1, "a GGUF file, which mote does not read");
    check_refused("mote info -m @/empty", 1, "the folder is empty");
    check_refused("mote info -m @/gguf", 1, "holds GGUF files only");
    shell("(echo 'version https://git-lfs.github.com/spec/v1' > @/lfs/model.safetensors)");
    check_refused("mote info -m @/lfs", 1, "a Git LFS pointer, not the file itself: run git lfs pull in");
    shell("cp tests/fixtures/f32-tied/config.json @/part; touch @/part/b.safetensors;"
          "(echo '{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\",\"z\":\"a.safetensors\",\"w\":\"c.safetensors\"}}'"
          " > @/part/model.safetensors.index.json)");
    check_refused("mote info -m @/part", 1, "an incomplete download: 2 of the 3 files in model.safetensors.index.json are missing, "
                  "the first is a.safetensors");
    shell("cp tests/fixtures/f32-tied/* @/hub/models--A--B/snapshots/2");
    shell("mote info -m @/hub/models--A--B");
    CHECK(code == 0 && strstr(out.data, "snapshots/2"), "a folder of the hub's cache: %d %s", code, err.data);
    shell("HF_HUB_CACHE=@/hub " MOTE_PROGRAM " info -m A/B");
    CHECK(code == 0 && strstr(out.data, "snapshots/2"), "a Hugging Face id that is in the cache: %d %s", code, err.data);
    shell("rm -r @/empty @/gguf @/lfs @/part @/hub");
}

// info needs no weights: of config.json alone, with or without an index, and of files without data it is an estimate.
static void test_estimates(void) {
    shell("mkdir @/config @/index @/headers; cp tests/fixtures/bf16-as-3.5/config.json @/config;"
          "cp tests/fixtures/bf16-as-3.5/config.json tests/fixtures/bf16-as-3.5/model.safetensors.index.json @/index;"
          "cp tests/fixtures/bf16-as-3.5/*.json @/headers; for f in 1 2; do F=model-0000$f-of-00002.safetensors;"
          "S=tests/fixtures/bf16-as-3.5/$F; N=$(od -An -t u8 -N 8 $S); head -c $((N + 8)) $S > @/headers/$F; done");
    static const char *const folders[] = {"config", "index", "headers"};
    for (int i = 0; i < 3; i++) {
        char line[64];
        snprintf(line, sizeof line, "mote info -m @/%s", folders[i]);
        shell(line);
        CHECK(code == 0 && strstr(out.data, "\nestimate ") && strstr(out.data, "by module, estimated\n") && strstr(out.data, "tokens, estimated\n"),
              "%s: %d %s%s", line, code, out.data, err.data);
        snprintf(line, sizeof line, "mote run -m @/%s Hello", folders[i]);
        shell(line);
        CHECK(code == 1 && err.size > 0, "%s: %d", line, code);
    }
    shell("mote info -m tests/fixtures/bf16-as-3.5");
    CHECK(code == 0 && !strstr(out.data, "estimate"), "an estimate of what is there: %s", out.data);
    shell("rm -r @/config @/index @/headers");
}

static void test_outputs(void) {
    size_t whole;
    temp_write("old", "kept", 4);
    check_refused(LOGITS " -o @/old --mtp @/no/m", 1, "no/m");
    check_refused("mote logits -m @/nosuch --tokens " FIXTURE "/tokens.i32 -o @/old", 1, "nosuch");
    check_refused(LOGITS "x -o @/old", 1, "tokens.i32x");
    check_refused(LOGITS " -o @/old --mtp @/old", 2, "same file");
    check_refused(LOGITS " -o @/old --mtp @/./old", 2, "same file");
    shell("cd @ && ln old hard && ln -s old soft && ln -s later dangling && mkfifo fifo");
    check_refused(LOGITS " -o @/old --mtp @/hard", 2, "same file");
    check_refused(LOGITS " -o @/soft --mtp @/old", 2, "same file");
    check_refused("mote bench -m @/nosuch --json @/old", 1, "nosuch");
    CHECK(temp_holds("old", "kept"), "a file was changed before there was anything to write");
    check_refused(LOGITS " -o @/new --mtp @/./new", 2, "same file");
    CHECK(!temp_exists("new"), "a refused command left its file behind");

    check_refused(LOGITS " -o @/soft --mtp /dev/full", 1, "/dev/full");
    CHECK(temp_kind("soft") == S_IFLNK && temp_kind("old") == S_IFREG && temp_holds("old", ""),
          "a failed write through a symbolic link");
    temp_write("old", "kept", 4);
    check_refused(LOGITS " -o /dev/full --mtp @/old", 1, "/dev/full");
    CHECK(temp_holds("old", ""), "the second file of a failed write: not empty, or removed");
    check_refused(LOGITS " -o @/dangling --mtp /dev/full", 1, "/dev/full");
    CHECK(temp_kind("dangling") == S_IFLNK, "a failed write removed a symbolic link");
    shell("cat @/fifo >/dev/null & " MOTE_PROGRAM " " LOGITS_ARGUMENTS " -o @/fifo --mtp /dev/full");
    CHECK(code == 1 && temp_kind("fifo") == S_IFIFO, "a failed write removed a FIFO: %d %s", code, err.data);
    shell("mote bench --device cpu -m " FIXTURE " --prompt 4 --depth 9 --context 5 --json @/soft");
    CHECK(code == 1 && temp_kind("soft") == S_IFLNK && temp_holds("old", ""), "a bench that failed: %d", code);

    shell(LOGITS " -o @/new");
    whole = read_temp("new", got, sizeof got);
    shell(LOGITS " -o @/soft");
    CHECK(code == 0 && temp_kind("soft") == S_IFLNK && whole && read_temp("old", got, sizeof got) == whole,
          "logits through a symbolic link: %d %s", code, err.data);
    temp_write("old", got, sizeof got);
    shell(LOGITS " -o @/old");
    CHECK(code == 0 && read_temp("old", got, sizeof got) == whole, "logits over a longer file: %d %s", code, err.data);
    shell("cat @/fifo >@/copy & " MOTE_PROGRAM " " LOGITS_ARGUMENTS " -o @/fifo && wait");
    CHECK(code == 0 && read_temp("copy", got, sizeof got) == whole, "logits into a FIFO: %d %s", code, err.data);
    shell(LOGITS " -o /dev/null --mtp @/new");
    CHECK(code == 0 && access("/dev/null", W_OK) == 0, "logits to a device: %d %s", code, err.data);
}

// ---- Input without an end, zero bytes ---------------------------------------------------------------------------

// Runs a command that must refuse its input, with 4 GB of address space and a minute at most. Not so much for the brief
// tests: an address sanitizer reserves terabytes.
static void check_bounded(const char *command, const char *part) {
    char line[512];
    snprintf(line, sizeof line, "(%s timeout 60 " MOTE_PROGRAM " %s)", test_brief ? "" : "ulimit -v 4000000;", command);
    shell(line);
    CHECK(code == 1 && line_count(&err) == 1 && strstr(err.data, part) && out.size == 0, "%s: %d '%.200s' %.200s", line,
          code, out.data, err.data);
}

static void test_endless(void) {
    static int32_t ids[4097];
    check_bounded("run --device cpu -m " FIXTURE " --tokens /dev/zero", "/dev/zero: more than 4096 tokens");
    check_bounded("run --device cpu -m " FIXTURE " --tokens /dev/zero --context 9", "/dev/zero: more than 9 tokens");
    check_bounded("logits --device cpu -m " FIXTURE " --tokens /dev/zero -o @/endless",
                  "/dev/zero: more than 4096 tokens");
    CHECK(!temp_exists("endless"), "tokens without an end left a file behind");
    temp_write("long.i32", ids, sizeof ids);
    check_refused("mote logits -m " FIXTURE " --tokens @/long.i32 -o @/l", 1, "long.i32: more than 4096 tokens");
    temp_write("long.i32", ids, 40);
    shell("mote logits -m " FIXTURE " --tokens @/long.i32 -o @/l");
    CHECK(code == 0, "ten tokens: %d %s", code, err.data);
    check_refused("mote run -m " FIXTURE " --tokens @/long.i32 --context 9", 1, "long.i32: more than 9 tokens");
    check_bounded("run -m " FIXTURE " </dev/zero", "standard input: longer than 64 MiB");
    check_bounded("bench --device cpu -m " FIXTURE " --ask /dev/zero", "/dev/zero: longer than 64 MiB");
}

static void test_endless_text(void) {
    check_bounded("tokenize </dev/zero", "standard input: longer than 64 MiB");
    check_bounded("detokenize </dev/zero", "standard input: longer than 64 MiB");
    check_bounded("render </dev/zero", "standard input: longer than 64 MiB");
    check_bounded("chat --device cpu </dev/zero", "standard input: a message longer than 64 MiB");
    shell("(yes '1234567 \\' | " MOTE_PROGRAM " chat)");
    CHECK(code == 1 && line_count(&err) == 1 && strstr(err.data, "a message longer than 64 MiB"),
          "a message without an end: %d %.200s", code, err.data);
}

static void test_zero_bytes(void) {
    static const char chat[] = "What\0is mote?\na\\\nb\0\\\nc\n/stats\0\nWhat is mote?\n", ids[] = "65\0 66\n";
    shell_with(chat, sizeof chat - 1, "mote chat --greedy --think off -n 8");
    CHECK(code == 1 && line_count(&out) == 1 && out.size > 1 && line_count(&err) == 3 &&
              strstr(err.data, "mote: standard input: the message holds a zero byte"),
          "chat with zero bytes: %d '%s' %s", code, out.data, err.data);
    shell_with(chat, sizeof chat - 1, "mote run --greedy --think off -n 8");
    CHECK(code == 1 && out.size == 0 && line_count(&err) == 1 && strstr(err.data, "holds a zero byte"),
          "run with zero bytes: %d '%s' %s", code, out.data, err.data);
    shell_with(ids, sizeof ids - 1, "mote detokenize");
    CHECK(code == 1 && out.size == 0 && strstr(err.data, "line 1: holds a zero byte"),
          "detokenize with zero bytes: %d '%s' %s", code, out.data, err.data);
}

// ---- Token ids in, logits and ids out ---------------------------------------------------------------------------

// The largest difference, in standard deviations of the golden logits; infinite when the sizes differ.
static double compare(const char *golden_path, const char *temp_name) {
    size_t n = read_named(golden_path, golden, sizeof golden), m = read_temp(temp_name, got, sizeof got);
    double sum = 0, squares = 0, worst = 0;
    if (n != m || n == 0) return INFINITY;
    n /= sizeof(float);
    for (size_t i = 0; i < n; i++) {
        sum += golden[i];
        squares += (double)golden[i] * golden[i];
        if (!(fabs(golden[i] - got[i]) <= worst)) worst = fabs(golden[i] - got[i]);
    }
    return worst / sqrt(squares / (double)n - sum / (double)n * (sum / (double)n));
}

static void test_logits(void) {
    static const char *const chunks[] = {"", "--chunk 1", "--chunk 7"};
    char line[256];
    for (int i = 0; i < 3; i++) {
        snprintf(line, sizeof line,
                 "mote logits --device cpu -m " FIXTURE " --tokens " FIXTURE "/tokens.i32 -o @/l --mtp @/m %s",
                 chunks[i]);
        shell(line);
        CHECK(code == 0 && out.size == 0, "%s: %d %s", line, code, err.data);
        double body = compare(FIXTURE "/logits.f32", "l"), mtp = compare(FIXTURE "/mtp_logits.f32", "m");
        CHECK(body < 1e-3, "%s: logits differ by %g standard deviations", line, body);
        CHECK(mtp < 1e-3, "%s: MTP logits differ by %g standard deviations", line, mtp);
    }
}

static void test_ids(void) {
    int32_t ids[64];
    char expected[1024];
    size_t count = read_named(FIXTURE "/greedy.i32", ids, sizeof ids) / 4, n = 0;
    for (size_t i = 0; i < count; i++)
        n += (size_t)snprintf(expected + n, sizeof expected - n, "%s%d", i ? " " : "", (int)ids[i]);
    char line[256];
    snprintf(line, sizeof line,
             "mote run --device cpu -m " FIXTURE " --tokens " FIXTURE "/tokens.i32 -n %zu --greedy --ids", count);
    shell(line);
    CHECK(code == 0 && count > 0 && strncmp(out.data, expected, n) == 0 && strcmp(out.data + n, "\n") == 0,
          "%s: %d, '%s', not '%s'", line, code, out.data, expected);
}

static void test_interrupt(void) {
    if (system("timeout 1 true 2>/dev/null")) {
        test_skip("no timeout command");
        return;
    }
    shell("timeout --preserve-status -s INT 3 " MOTE_PROGRAM " bench --device cpu -m " FIXTURE " --depth 0 --tokens 100"
          " --repeat 99 --prompt 200,200,200,200,200,200,200,200,200,200,200,200,200,200 --threads 1");
    CHECK(code == 130 && err.size == 0, "interrupted: exit code %d: %s", code, err.data);
}

// ---- Hosts --------------------------------------------------------------------------------------------------------

static void test_several_hosts(void) {
    static const char *const addresses[] = {"''", "7101", "localhost:7000", "::1:7000", "127.0.0.1:70000", "127.0.0.1:"};
    char line[300];
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        snprintf(line, sizeof line, "mote run -p x --secret-file @/key --workers %s", addresses[i]);
        check_refused(line, 2, "--workers needs addresses in numbers");
        snprintf(line, sizeof line, "mote worker --secret-file @/key --listen %s", addresses[i]);
        check_refused(line, 2, "--listen needs an address in numbers");
    }
    check_refused("mote run -p x --secret-file @/key --workers ,127.0.0.1:1", 2, "--workers needs");
    check_refused("mote run -p x --secret-file @/key --workers 127.0.0.1:1,", 2, "--workers needs");
    check_refused("mote run -p x --secret-file @/key --workers 127.0.0.1:1,,127.0.0.1:2", 2, "--workers needs");
    check_refused("mote run -p x --secret-file @/key --workers 127.0.0.1:1 --devices cpu,cpu", 2, "--workers and --devices exclude each other");
    check_refused("mote run -p x --secret-file @/key --workers 127.0.0.1:1 --split tensor", 2, "as a pipeline");
    check_refused("mote serve --secret-file @/key --workers 127.0.0.1:1 --split replicas", 2, "as a pipeline");
    check_refused("mote run -p x --workers 127.0.0.1:1", 2, "--workers needs --secret-file");
    check_refused("mote run -p x --secret-file @/key", 2, "--secret-file needs --workers");
    check_refused("mote serve --secret-file @/key", 2, "--secret-file needs --workers");
    check_refused("mote worker", 2, "worker needs --secret-file");
}

// Files that hold no secret, folders that hold no model, how a worker ends.
static void test_worker(void) {
    static const char zero[] = "a secret with a \0 zero byte in it\n";
    temp_write("key", "a secret of the tests\n", 22);
    temp_write("zero", zero, sizeof zero - 1);
    temp_write("short", "short\n", 6);
    shell("chmod 600 @/key && mkfifo @/fifo");
    check_refused("mote worker -m " FIXTURE " --secret-file @/none", 1, "/none: No such file");
    check_refused("mote worker -m " FIXTURE " --secret-file @/zero", 1, "/zero: its first line holds a zero byte: it must be text");
    check_refused("mote worker -m " FIXTURE " --secret-file @/short", 1, "/short: its first line is the secret, of 16 to 256 bytes");
    check_refused("mote worker -m " FIXTURE " --secret-file tests", 1, "tests: it is a folder");
    check_refused("mote worker -m " FIXTURE " --secret-file @/fifo", 1, "/fifo: it is no regular file");
    check_refused("mote worker -m tests --secret-file @/key --listen 127.0.0.1:0", 1, "tests");
    check_refused("mote run -m " FIXTURE " -p x --secret-file @/key --workers 127.0.0.1:1,127.0.0.1:1", 1, "127.0.0.1:1 is named twice");
    check_refused("mote run -m " FIXTURE " -p x --device cpu --secret-file @/key --workers 127.0.0.1:1 --split pipeline:7,7", 1, "the layers asked for are 14 in all");
    check_refused("mote run -m " FIXTURE " -p x --device cpu --secret-file @/key --workers 127.0.0.1:1 --split pipeline:4", 1, "expected 2 numbers");
    if (system("timeout 1 true 2>/dev/null")) {
        test_skip("no timeout command");
        return;
    }
    shell("timeout --foreground --preserve-status -s TERM 2 " MOTE_PROGRAM " worker -m " FIXTURE " --secret-file @/key --listen 0.0.0.0:0");
    CHECK(code == 0 && strstr(err.data, "whoever reaches this machine") && strstr(err.data, " waits for a leader on 0.0.0.0:"), "SIGTERM: %d %s", code, err.data);
    shell("timeout --foreground --preserve-status -s INT 2 " MOTE_PROGRAM " worker -m " FIXTURE " --secret-file @/key --listen [::1]:0");
    CHECK(code == 130 || strstr(err.data, "[::1]:0: "), "Ctrl-C: %d %s", code, err.data);
}

// ---- Devices ------------------------------------------------------------------------------------------------------

static void test_one_device(void) {
    shell("mote info -m " FIXTURE " --device cpu");
    CHECK(code == 0 && strstr(out.data, "\ndevice          cpu\n"), "info --device cpu: %d %s", code, out.data);
    shell("mote run --device=cpu -v -m " FIXTURE " --tokens " FIXTURE "/tokens.i32 -n 1 --greedy");
    CHECK(code == 0 && line_count(&err) == 1 && strstr(err.data, "CPU"), "run -v on the CPU: %d %s", code, err.data);
    check_refused("mote bench --device cpu --stages -m " FIXTURE, 1, "for one GPU");
    check_refused("mote bench --device cpu --sms 4 -m " FIXTURE, 1, "for one GPU");
    check_refused("mote bench --device cpu --rows 1,8 -m " FIXTURE, 1, "for one GPU");
    check_refused("mote bench --device cpu --accept 0.8 -m " FIXTURE, 1, "for one GPU");
    shell("mote info -m " FIXTURE);
    if (strstr(out.data, "\ndevice          cuda")) {
        test_skip("a GPU is here: what is refused without one");
        return;
    }
    check_refused("mote info -m " FIXTURE " --device cuda", 1, "");
    check_refused("mote run -m " FIXTURE " --device cuda:0 -p x", 1, "");
    check_refused("mote bench -m " FIXTURE " --device cuda", 1, "");
    check_refused("mote selftest", 1, "");
    check_refused("mote selftest --device cuda:1 --sms 4", 1, "");
}

static void test_several_devices(void) {
    static text one;
    shell("mote run --device cpu -m " FIXTURE " --tokens " FIXTURE "/tokens.i32 -n 8 --greedy");
    CHECK(code == 0 && out.size > 8, "run on the CPU: %d %s", code, err.data);
    one = out;
    memset(&out, 0, sizeof out);
    shell("mote run --device cpu -m " FIXTURE " --tokens " FIXTURE "/tokens.i32 -n 8 --greedy --gpu-memory 16G --experts host");
    CHECK(code == 0 && strstr(err.data, "mote: note: --gpu-memory is of GPUs, and does nothing on the CPU\n") && strstr(err.data, "note: --experts is of GPUs"),
          "options of a GPU on the CPU: %d %s", code, err.data);
    shell("mote bench --device cpu --synthetic tiny --prompt 4 --depth 0 --tokens 1 --repeat 1 --expert-slots 4");
    CHECK(code == 0 && strstr(err.data, "note: --expert-slots is of GPUs"), "--expert-slots on the CPU: %d %s", code, err.data);
    shell("mote info --device cpu --synthetic qwen3.5-35b-a3b:nvfp4 --context 1024 --gpu-memory 16Gi --link 25:400");
    CHECK(code == 0 && !strstr(err.data, "does nothing"), "--gpu-memory of a prediction: %d %s", code, err.data);
    static const char *const lists[] = {"--devices cpu", "--devices cpu,cpu", "--devices cpu,cpu --split auto", "--devices cpu,cpu --split pipeline",
                                        "--devices=cpu,cpu --split=pipeline:2,1"};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        char command[300];
        snprintf(command, sizeof command, "mote run -m " FIXTURE " --tokens " FIXTURE "/tokens.i32 -n 8 --greedy %s", lists[i]);
        shell(command);
        CHECK(code == 0 && !strcmp(out.data, one.data), "%s: %d %s, other tokens", lists[i], code, err.data);
    }
    shell("mote run -m models/demo --device cpu -p 'Hi' -n 8 --greedy --raw --devices cpu,cpu");
    CHECK(code == 2 && strstr(err.data, "--device and --devices exclude each other"), "device and devices: %d %s", code, err.data);
    shell("mote info -m models/demo --devices cpu,cpu --split tensor");
    CHECK(code == 0 && strstr(out.data, "\ndevice          cpu+cpu: 8 layers on 2 ranks\n") && strstr(out.data, "\nby device\n") &&
          strstr(out.data, "  cpu       0-7 2/2 "), "info of ranks: %d %s%s", code, out.data, err.data);
    shell("mote info -m models/demo --devices cpu,cpu,cpu --split pipeline:1,2,5");
    CHECK(code == 0 && strstr(out.data, "cpu+cpu+cpu: 1+2+5 layers\n") && strstr(out.data, "  cpu       3-7 "), "info of a pipeline: %d %s%s", code, out.data,
          err.data);
    shell("mote info --synthetic qwen3.5-397b-a17b:int4 --devices cpu,cpu,cpu");
    CHECK(code == 0 && strstr(out.data, "20+20+20 layers\n"), "info of what does not fit here: %d %s%s", code, out.data, err.data);
    shell("mote bench --synthetic tiny --devices cpu,cpu --prompt 8 --depth 0,8 --tokens 2 --repeat 1");
    CHECK(code == 0 && strstr(out.data, "device   cpu+cpu: 3+1 layers") && strstr(out.data, "tg2 @ d8"), "bench: %d %s%s", code, out.data, err.data);
    check_refused("mote run -p x --devices cpu,cpu --split replicas", 2, "replicas are of serve and bench alone");
    check_refused("mote run -p x --split pipeline", 2, "--split needs --devices");
    check_refused("mote run -p x --devices cpu,gpu", 2, "as 0,1 or cpu,cpu, not 'cpu,gpu'");
    check_refused("mote run -p x --devices ''", 2, "--devices needs");
    check_refused("mote run -p x --devices 0,", 2, "--devices needs");
    check_refused("mote run -p x --devices cpu,cpu --split pipelines", 2, "not 'pipelines'");
    check_refused("mote run -p x --devices cpu,cpu --split pipeline:", 2, "as pipeline:20,28, not 'pipeline:'");
    check_refused("mote run -p x --devices cpu,cpu --split tensor:2", 2, "not 'tensor:2'");
    check_refused("mote run -p x --devices cpu,cpu --split replicas", 2, "not 'replicas'");
    check_refused("mote info -m models/demo --devices cpu,cpu --split pipeline:4,5", 1, "the layers asked for are 9 in all, the model has 8");
    check_refused("mote info -m models/demo --devices cpu,cpu --split pipeline:4", 1, "expected 2 numbers");
    check_refused("mote info -m models/demo --devices cpu,0", 1, "GPUs and CPUs cannot share a model");
    check_refused("mote tokenize --devices cpu,cpu", 2, "--devices");
}

// ---- The bundled model ------------------------------------------------------------------------------------------

static void test_text(void) {
    static const char texts[] = "Hello world\0\0 two  spaces\n\0<|im_start|>user\n\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80";
    shell_with(texts, sizeof texts - 1, "mote tokenize -0");
    CHECK(code == 0 && line_count(&out) == 4, "tokenize -0: %d, %s%s", code, out.data, err.data);
    static text ids;
    ids = out;
    shell_with(ids.data, ids.size, "mote detokenize");
    CHECK(code == 0 && out.size == sizeof texts && memcmp(out.data, texts, sizeof texts) == 0,
          "detokenize: %d, %zu bytes %s", code, out.size, err.data);
    shell_text("a\nb\n", "mote tokenize");
    CHECK(code == 0 && line_count(&out) == 1, "tokenize: %d, %s", code, out.data);
    shell_text("", "mote tokenize -0");
    CHECK(code == 0 && out.size == 0, "tokenize of nothing: %d, %s", code, out.data);
    shell_text("65 x\n", "mote detokenize");
    CHECK(code == 1 && strstr(err.data, "line 1: 'x'"), "detokenize x: %d %s", code, err.data);
    shell_text("1\n99999999\n", "mote detokenize");
    CHECK(code == 1 && err.size, "detokenize of an id outside: %d %s", code, err.data);
    shell_text("{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"enable_thinking\":false}", "mote render");
    static const char *const prompt =
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    CHECK(code == 0 && strcmp(out.data, prompt) == 0, "render: %d '%s' %s", code, out.data, err.data);
    shell_text("{\"messages\":", "mote render");
    CHECK(code == 1 && line_count(&err) == 1, "render of half a request: %d %s", code, err.data);
}

static void test_run(void) {
    static text first;
    shell("mote run -p 'What is a mixture of experts?' --greedy --think off -n 60");
    CHECK(code == 0 && out.size > 20 && out.data[out.size - 1] == '\n' && !strstr(out.data, "think>") && !err.size,
          "run: %d '%s' %s", code, out.data, err.data);
    first = out;
    shell_text("What is a mixture of experts?\n", "mote run --greedy --think off -n 60");
    CHECK(code == 0 && strcmp(out.data, first.data) == 0, "run from a pipe: %d '%s'", code, out.data);
    shell("mote run -p 'What is a mixture of experts?' --greedy --think on -n 200");
    CHECK(code == 0 && !strstr(out.data, "think>"), "run, thinking: %d '%s'", code, out.data);
    shell("mote run -p 'Tell me a story.' --think off --temp 1 --seed 7 -n 40");
    CHECK(code == 0 && err.size == 0, "run --seed: %d %s", code, err.data);
    first = out;
    shell("mote run -p 'Tell me a story.' --think off --temp 1 --seed 7 -n 40");
    CHECK(code == 0 && strcmp(out.data, first.data) == 0, "same seed, other text: '%s', '%s'", out.data, first.data);
    shell("mote run -p 'Tell me a story.' --think off --temp 1 -n 4");
    CHECK(code == 0 && err.size == 0, "nobody asked for the seed: %s", err.data);
    shell("mote run -p 'Tell me a story.' --think off --temp 1 -n 4 -v");
    CHECK(code == 0 && strstr(err.data, "mote: seed "), "the seed is not told: %s", err.data);
    shell("mote run 'What is mote?' --think off --greedy -n 9");
    first = out;
    shell("mote -p 'What is mote?' --think off --greedy -n 9");
    CHECK(code == 0 && out.size > 9 && !strcmp(out.data, first.data), "mote -p: %d '%s', '%s'", code, out.data, first.data);
    shell("mote run 'What is mote?' --greedy --think on -n 60");
    CHECK(code == 0 && strstr(err.data, "mote: thought for ") && !strstr(out.data, "think>"), "not counted: %s", err.data);
    shell("mote run 'Tell me a story.' --think off --greedy -n 60 --repetition-penalty 3 --presence-penalty 2"
          " --frequency-penalty 2");
    first = out;
    shell("mote run 'Tell me a story.' --think off --greedy -n 60");
    CHECK(code == 0 && strcmp(out.data, first.data) != 0, "penalties change nothing: '%s'", out.data);
    shell("mote run --raw -p 'Once upon a time' --greedy -n 10");
    CHECK(code == 0 && out.size > 1, "run --raw: %d '%s'", code, out.data);
    first = out;
    shell("mote run --raw -p 'Once upon a time' --greedy -n 10 --ids");
    CHECK(code == 0 && line_count(&out) == 1, "run --ids: %d '%s'", code, out.data);
    static text ids;
    ids = out;
    shell_with(ids.data, ids.size, "mote detokenize");
    CHECK(code == 0 && strncmp(first.data, out.data, strlen(out.data)) == 0, "ids are '%s', text '%s'", out.data,
          first.data);
    shell("mote run --raw -p 'Once upon a time' --greedy -n 10 --stop ' '");
    CHECK(code == 0 && !strchr(out.data, ' '), "run --stop: %d '%s'", code, out.data);
    shell("mote run --raw -p 'Once upon a time there was' --context 3");
    CHECK(code == 1 && line_count(&err) >= 1, "run beyond the context: %d %s", code, err.data);
}

static void test_chat(void) {
    shell_text("What is mote?\n/undo\nWhat is\\\na router?\n\n", "mote --greedy --think off -n 20");
    CHECK(code == 0 && line_count(&out) >= 2, "chat: %d '%s' %s", code, out.data, err.data);
    CHECK(strstr(err.data, "took the last turn back") && !strstr(out.data, "> "), "chat: '%s' %s", out.data, err.data);
    shell_text("What is mote?\n/save @/none/x\n", "mote chat --greedy --think off -n 5");
    CHECK(code == 1 && strstr(err.data, "mote: "), "/save into nowhere: %d %s", code, err.data);
    char input[256];
    snprintf(input, sizeof input, "What is mote?\n/save %s/s\n/reset\n/load %s/s\n/hlep\n/quit\nnever read\n", temp_dir,
             temp_dir);
    shell_text(input, "mote chat --greedy --think off -n 5");
    CHECK(code == 0 && strstr(err.data, "loaded ") && strstr(err.data, "did you mean /help?"), "/load: %d %s", code,
          err.data);
    CHECK(line_count(&out) == 1, "chat went on after /quit: '%s'", out.data);
}

// The README's commands that need no GPU and no download.
static void test_readme(void) {
    char line[512], command[512];
    FILE *in = fopen("README.md", "r");
    int ran = 0;
    while (in && fgets(line, sizeof line, in)) {
        if (strncmp(line, "    ./mote", 10) || strstr(line, "-m ") || strstr(line, "selftest")) continue;
        line[strcspn(line, "#\n")] = 0;
        snprintf(command, sizeof command, "mote %s", line + 10);
        shell(command);
        CHECK(code == 0, "README: %s: %d %s", line, code, err.data);
        ran++;
    }
    if (in) fclose(in);
    CHECK(!in || ran > 3, "%d commands in the README", ran);
}

// The text is the same however many tokens are drafted, and from whichever part of the vocabulary.
static void test_speculation(void) {
    static const char *const ways[] = {"3 --draft-rows 100", "2 --verify-spec", "auto", "1", "2", "7"};
    const int count = test_brief ? 2 : (int)(sizeof ways / sizeof ways[0]), tokens = test_brief ? 12 : 60;
    static const char *const texts[] = {"--greedy", "--temp 1 --seed 7"};
    static text plain;
    char line[256];
    for (size_t i = 0; i < 2; i++) {
        snprintf(line, sizeof line, "mote run -p 'Tell me a story.' --think off -n %d %s --mtp 0", tokens, texts[i]);
        shell(line);
        CHECK(code == 0 && out.size > 20 && err.size == 0, "%s: %d %s", line, code, err.data);
        plain = out;
        for (int k = 0; k < count; k++) {
            snprintf(line, sizeof line, "mote run -p 'Tell me a story.' --think off -n %d %s --mtp %s", tokens, texts[i], ways[k]);
            shell(line);
            CHECK(code == 0 && strcmp(out.data, plain.data) == 0 && err.size == 0, "%s: %d '%s', not '%s' %s", line,
                  code, out.data, plain.data, err.data);
        }
    }
    shell_text("/stats\nWhat is mote?\n", "mote --greedy --think off -n 8 --mtp 2");
    CHECK(code == 0 && strstr(err.data, "tok/s; context") && strstr(err.data, "\n drafts of the last passes: ") &&
              strstr(err.data, " tokens per pass; drafts accepted, by place: MTP "),
          "/stats with --mtp 2: %d %s", code, err.data);
    shell_text("/stats\nWhat is mote?\n", "mote --greedy --think off -n 1 --mtp 2");
    CHECK(code == 0 && strstr(err.data, " 1.00 tokens per pass; drafts accepted, by place: none; "),
          "/stats where no draft fits: %d %s", code, err.data);
    shell_text("/stats\nWhat is mote?\n", "mote --greedy --think off -n 8 --mtp 0");
    CHECK(code == 0 && strstr(err.data, "tok/s; context") && !strstr(err.data, "tokens per pass"),
          "/stats with --mtp 0: %d %s", code, err.data);
}

static void test_reports(void) {
    shell("mote info");
    CHECK(code == 0 && strstr(out.data, "qwen3_5_moe") && strstr(out.data, "FP8 128x128"), "info: %d %s %s", code,
          out.data, err.data);
    shell("mote bench --device cpu --prompt 16 --depth 0,8 --tokens 2 --repeat 1");
    CHECK(code == 0 && line_count(&out) == 8 && strstr(out.data, "GB/s"), "bench: %d %s %s", code, out.data, err.data);
    check_refused("mote bench --prompt 16000000", 1, "context");
}

// ---- The two files ----------------------------------------------------------------------------------------------

// What README.md says to put into CMakeLists.txt builds the two files, for the CPU.
static void test_cmake(void) {
    static const char lists[] =
        "mkdir @/app && cp @/dist/engine.h @/dist/engine.c examples/embed.c @/app && { echo 'cmake_minimum_required(VERSION 3.10)'; "
        "echo 'project(app C)'; sed '/^```cmake/,/^```$/!d; /^```/d; s/-O3/-O0 -Wall -Wextra -Werror/' README.md; "
        "echo 'add_executable(embed embed.c)'; echo 'target_link_libraries(embed mote)'; } >@/app/CMakeLists.txt; :";
    if (test_brief || system("command -v cmake >/dev/null 2>&1")) {
        test_skip("the two files with CMake");
        return;
    }
    shell(lists);
    shell("cmake -S @/app -B @/app/build >@/cmake.log && cmake --build @/app/build >>@/cmake.log");
    CHECK(code == 0, "cmake: %.1000s", err.data);
    shell("@/app/build/embed @/nosuch");
    CHECK(code == 1 && strstr(err.data, "nosuch"), "embed of CMake without a model: %d %s", code, err.data);
}

static void test_amalgamation(void) {
    // What is compiled of engine.c and, as C, of engine.cu is the same text.
    static const char *const builds[] = {
        "cc -std=c11 -Wall -Wextra -Werror -I@/dist -O0 @/dist/engine.c examples/embed.c -o @/embed -lm -lpthread",
        "c++ -std=c++17 -Wall -Wextra -Werror -I@/dist -O0 -x c++ @/dist/engine.cu examples/embed.c -o @/embed"
        " -lm -lpthread"};
    shell("tools/amalgamate.sh @/dist");
    CHECK(code == 0, "amalgamate: %s", err.data);
    shell("grep -c __CUDACC__ @/dist/engine.c");
    CHECK(!strcmp(out.data, "0\n"), "engine.c has parts for GPUs: %s", out.data);
    // NDEBUG: an assertion names its file.
    shell("cc -std=c11 -E -P -DNDEBUG -I@/dist @/dist/engine.c -o @/c.i && cc -std=c11 -E -P -DNDEBUG -I@/dist -x c @/dist/engine.cu -o @/cu.i && "
          "cmp @/c.i @/cu.i");
    CHECK(code == 0, "engine.c is not engine.cu as C: %s%.1000s", out.data, err.data);
    shell("echo '#include \"diagnose.h\"' | cc -std=c11 -Wall -Wextra -Werror -I@/dist -fsyntax-only -x c -");
    CHECK(code == 0, "diagnose.h alone: %.1000s", err.data);
    for (int i = 0; i < (test_brief ? 0 : 2); i++) {
        if (i == 1 && system("command -v c++ >/dev/null 2>&1")) {
            test_skip("no C++ compiler: the two files as C++");
            continue;
        }
        shell(builds[i]);
        CHECK(code == 0, "%s: %.1000s", builds[i], err.data);
        shell("@/embed @/nosuch");
        CHECK(code == 1 && strstr(err.data, "nosuch"), "embed without a model: %d %s", code, err.data);
        if (access("models/demo/config.json", F_OK)) continue;
        shell("@/embed models/demo 'What is a router?'");
        CHECK(code == 0 && out.size > 1, "embed: %d '%s' %s", code, out.data, err.data);
    }
    test_cmake();
}

int main(int argc, char **argv) {
    test_main_begin("test_cli", argc, argv);
    if (!temp_open()) return test_main_end();
    test_help();
    test_manual();
    test_context_told();
    test_mistakes();
    test_failures();
    test_paths();
    test_estimates();
    test_outputs();
    test_endless();
    test_logits();
    test_ids();
    test_interrupt();
    test_one_device();
    test_several_devices();
    test_several_hosts();
    test_worker();
    if (access("models/demo/config.json", F_OK) == 0) {
        test_text();
        test_endless_text();
        test_zero_bytes();
        test_run();
        test_chat();
        test_readme();
        test_speculation();
        test_reports();
    } else {
        test_skip("no models/demo: text, run, chat, info, bench");
    }
    test_amalgamation();
    temp_close();
    return test_main_end();
}
