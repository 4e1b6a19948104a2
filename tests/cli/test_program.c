// Tests of what others do to the program: standard streams that are closed or full, FIFOs and folders where files belong, pipes that
// nobody writes to, bytes that are no text, and the chat's commands after each other in any order.
//
// Contents   1. Standard streams   2. Files that are none   3. Words and a pipe   4. The chat's commands   5. Texts   6. Main

#include "shell.h"

#define FIXTURE "tests/fixtures/bf16-as-3.6"
#define BRIEFLY " --think off --temp 0 -n 8"

// ---- 1. Standard streams ----------------------------------------------------------------------------------------------

static int file_holds(const char *name, const char *part) {
    static char data[1 << 16];
    size_t size = read_temp(name, data, sizeof data - 1);
    data[size] = 0;
    return strstr(data, part) != NULL;
}

// Every command with every set of streams closed: none hangs or dies, and where there is something to print, that fails.
static void test_closed(void) {
    static const struct { const char *command; int prints, reads; } commands[] = {
        {"help", 1, 0}, {"version", 1, 0}, {"info", 1, 0}, {"tokenize", 1, 1}, {"detokenize", 1, 1}, {"render", 1, 1},
        {"run hi" BRIEFLY, 1, 0}, {"run" BRIEFLY, 1, 1}, {"chat" BRIEFLY, 1, 1}, {"bench --device cpu --prompt 4 --depth 0 --tokens 1 --repeat 1", 1, 0},
        {"logits -m " FIXTURE " --tokens " FIXTURE "/tokens.i32 -o @/l", 0, 0}, {"nosuch", 0, 0}};
    static const char *const inputs[] = {"Hello\n", "65\n", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"};
    char line[400];
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        for (int closed = 0; closed < 8; closed++) {
            const char *name = commands[i].command;
            int in = closed & 1, out_closed = closed & 2;
            temp_write("input", "", 0);
            snprintf(line, sizeof line, "(timeout 60 " MOTE_PROGRAM " %s %s %s %s)", name, in ? "<&-" : "", out_closed ? ">&-" : "",
                     closed & 4 ? "2>&-" : "");
            shell_text(inputs[!strcmp(name, "detokenize") ? 1 : !strcmp(name, "render") ? 2 : 0], line);
            int expected = !strcmp(name, "nosuch") ? 2 : (out_closed && commands[i].prints && !(in && commands[i].reads));
            if (in && commands[i].reads) CHECK(code == 0 || code == 1, "%s: %d", line, code);
            else CHECK(code == expected, "%s: exit code %d, not %d: %s", line, code, expected, err.data);
        }
}

// No file takes a closed stream's place.
static void test_places(void) {
    char line[300];
    snprintf(line, sizeof line, "(" MOTE_PROGRAM " bench --device cpu --prompt 4 --depth 0 --tokens 1 --repeat 1 --json @/j >&-)");
    shell(line);
    CHECK(code == 1 && file_holds("j", "\"synthetic\"") && !file_holds("j", "tok/s  "), "bench --json without standard output: %d %s", code, err.data);
    shell("(" MOTE_PROGRAM " logits -m " FIXTURE " --tokens " FIXTURE "/tokens.i32 -o @/whole)");
    shell("(" MOTE_PROGRAM " logits -v -m " FIXTURE " --tokens " FIXTURE "/tokens.i32 -o @/l <&- >&- 2>&-)");
    shell("(" MOTE_PROGRAM " logits -m " FIXTURE " --tokens " FIXTURE "/tokens.i32 -o @/l <&- >&- 2>&-)");
    shell("(cmp @/l @/whole)");
    CHECK(code == 0, "logits without standard streams: %s", out.data);
    shell("(" MOTE_PROGRAM " serve --port 0 <&- >&- 2>&- & server=$!; sleep 1; kill -0 $server && ls -l /proc/$server/fd | "
          "grep -c ' [012] -> /dev/null'; kill $server; wait $server)");
    CHECK(code == 0 && !strcmp(out.data, "3\n"), "serve without standard streams: %d '%s' %s", code, out.data, err.data);
}

static void test_full(void) {
    static const char *const commands[] = {"help", "info", "tokenize", "run hi" BRIEFLY, "run hi --think on -n 4", "chat" BRIEFLY};
    char line[300];
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        snprintf(line, sizeof line, "(timeout 60 " MOTE_PROGRAM " %s >/dev/full)", commands[i]);
        shell_text("Hello\n", line);
        CHECK(code == 1 && strstr(err.data, "standard output: No space left on device"), "%s: %d '%s'", line, code, err.data);
        snprintf(line, sizeof line, "(trap '' PIPE; (timeout 60 " MOTE_PROGRAM " %s; echo $? >&2) | true)", commands[i]);
        shell_text("Hello\n", line);
        CHECK(strstr(err.data, "Broken pipe\n1\n") || !strcmp(err.data, "0\n"), "%s: '%s'", line, err.data);
    }
}

// ---- 2. Files that are none -------------------------------------------------------------------------------------------

// Refused in one line, within the time.
static void check_quick(const char *input, const char *command, const char *part) {
    char line[512];
    snprintf(line, sizeof line, "(timeout 20 " MOTE_PROGRAM " %s)", command);
    shell_text(input, line);
    CHECK(code == 1 && line_count(&err) == 1 && strstr(err.data, part), "%s %s: %d '%s'", command, input, code, err.data);
}

// Commands that wait, and then are refused in one line: all of them at once, each for at most 20 s.
static void test_waits(void) {
    static const struct { const char *command, *part; } waits[] = {
        {"logits -m " FIXTURE " --tokens @/fifo -o @/l", "fifo: nothing came within 3 s"},
        {"run -m " FIXTURE " --tokens @/fifo", "fifo: nothing came within 3 s"},
        {"bench -m " FIXTURE " --ask @/fifo", "fifo: nothing came within 3 s"},
        {"logits -m " FIXTURE " --tokens " FIXTURE "/tokens.i32 -o @/unread", "unread: nobody reads from it"},
        {"bench -m " FIXTURE " --json @/unread", "unread: nobody reads from it"}};
    enum { WAITS = sizeof waits / sizeof waits[0] };
    char line[WAITS * 400], name[20];
    size_t n = (size_t)snprintf(line, sizeof line, "(mkfifo @/unread;");
    for (int i = 0; i < WAITS; i++)
        n += (size_t)snprintf(line + n, sizeof line - n, "(timeout 20 " MOTE_PROGRAM " %s >@/out%d 2>@/err%d; echo $? >>@/err%d) & ",
                              waits[i].command, i, i, i);
    snprintf(line + n, sizeof line - n, "wait)");
    shell(line);
    for (int i = 0; i < WAITS; i++) {
        snprintf(name, sizeof name, "err%d", i);
        err.size = read_temp(name, err.data, sizeof err.data - 1);
        err.data[err.size] = 0;
        CHECK(err.size > 3 && !strcmp(err.data + err.size - 3, "\n1\n") && line_count(&err) == 2 && strstr(err.data, waits[i].part),
              "%s: '%s'", waits[i].command, err.data);
    }
}

static void test_fifos(void) {
    char input[300];
    static const char *const commands[] = {"/read", "/load", "/save", "What is in @"};
    shell("(mkfifo @/fifo; mkdir @/folder @/model; mkfifo @/model/config.json)");
    test_waits();
    check_quick("", "info -m @/fifo", "fifo: is a file");
    check_quick("", "info -m @/model", "config.json: not a regular file");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        const char *space = i == 3 ? "" : " ";
        snprintf(input, sizeof input, "%s%s%s/fifo\n", commands[i], space, temp_dir);
        check_quick(input, "chat" BRIEFLY, "/fifo: not a regular file");
        snprintf(input, sizeof input, "%s%s%s/folder\n", commands[i], space, temp_dir);
        check_quick(input, "chat" BRIEFLY, "/folder: ");
        snprintf(input, sizeof input, "%s%s/dev/zero\n", commands[i], space);
        check_quick(input, "chat" BRIEFLY, "/dev/zero: ");
    }
    shell("(rm @/model/config.json; cp " FIXTURE "/* @/model; rm -f @/model/model.safetensors.index.json; mkfifo @/model/model.safetensors.index.json)");
    check_quick("", "run -m @/model hi", "model.safetensors.index.json: not a regular file");
    shell("(cat " FIXTURE "/tokens.i32 >@/fifo & timeout 20 " MOTE_PROGRAM " run -m " FIXTURE " --tokens @/fifo -n 2)");
    CHECK(code == 0 && out.size > 2, "tokens through a FIFO: %d %s", code, err.data);
}

// ---- 3. Words and a pipe ----------------------------------------------------------------------------------------------

// What the program asks is seen in the tokens that do not fit, and in the answer.
static void test_words(void) {
    static text both;
    shell("mote run 'Say what this is:\n\nWhat is FP8?'" BRIEFLY);
    both = out;
    shell_text("What is FP8?\n", "mote run 'Say what this is:'" BRIEFLY);
    CHECK(code == 0 && out.size > 5 && !strcmp(out.data, both.data) && !err.size, "words and a file: '%s', not '%s'", out.data, both.data);
    shell_text("What is FP8?\n", "mote run -p 'Say what this is:'" BRIEFLY);
    CHECK(code == 0 && !strcmp(out.data, both.data), "-p and a file: '%s', not '%s'", out.data, both.data);
    shell_text("What is FP8?\n", "(cat | " MOTE_PROGRAM " run 'Say what this is:'" BRIEFLY ")");
    CHECK(code == 0 && !strcmp(out.data, both.data), "words and a pipe: '%s', not '%s'", out.data, both.data);
    shell_text("one two three four five six seven eight\n", "mote run 'Say what this is:' --context 12" BRIEFLY);
    CHECK(code == 1 && line_count(&err) == 1 && strstr(err.data, "--context N makes it larger"), "too long: %d %s", code, err.data);
    static char long_text[4 * 5000 + 2];                  // more tokens than the model has positions
    for (int i = 0; i < 5000; i++) memcpy(long_text + 4 * i, "one ", 4);
    long_text[4 * 5000] = '\n';
    shell_text(long_text, "mote run" BRIEFLY);
    CHECK(code == 1 && line_count(&err) == 1 && strstr(err.data, "the model has no larger one"), "too long for the model: %d %s", code, err.data);
    shell_text(long_text, "mote chat" BRIEFLY);
    CHECK(code == 1 && line_count(&err) == 1 && strstr(err.data, "the model has no larger one, /undo takes"), "too long for chat: %d %s", code,
          err.data);
    shell("mote run 'What is FP8?'" BRIEFLY);
    both = out;
    static const char *const none[] = {"</dev/null", "<&-", "0>@/written"};
    char line[200];
    for (int i = 0; i < 3; i++) {
        snprintf(line, sizeof line, "(" MOTE_PROGRAM " run 'What is FP8?'" BRIEFLY " %s)", none[i]);
        shell(line);
        CHECK(code == 0 && !strcmp(out.data, both.data) && !err.size, "%s: %d '%s' %s", line, code, out.data, err.data);
    }
    shell_text("What is FP8?\n", "mote run ''" BRIEFLY);
    CHECK(code == 0 && !strcmp(out.data, both.data), "no words and a file: '%s'", out.data);
    check_refused("mote run ''" BRIEFLY, 1, "the prompt is empty");
    shell("(mkfifo @/idle; timeout 30 " MOTE_PROGRAM " run 'What is FP8?'" BRIEFLY " <>@/idle)");
    CHECK(code == 0 && !strcmp(out.data, both.data) && line_count(&err) == 1 && strstr(err.data, "nothing came on standard input"),
          "an idle pipe: %d '%s' %s", code, out.data, err.data);
    shell_with("a\0b", 3, "mote run hi" BRIEFLY);
    CHECK(code == 1 && line_count(&err) == 1 && strstr(err.data, "holds a zero byte"), "a zero byte: %d %s", code, err.data);
    shell_text("caf\351 \344", "mote run hi" BRIEFLY);
    CHECK(code == 0 && !err.size, "no UTF-8: %d %s", code, err.data);
    shell("(head -c 70000000 /dev/zero | tr '\\0' x | " MOTE_PROGRAM " run hi" BRIEFLY ")");
    CHECK(code == 1 && line_count(&err) == 1 && strstr(err.data, "longer than 64 MiB"), "a large pipe: %d %s", code, err.data);
}

// ---- 4. The chat's commands -------------------------------------------------------------------------------------------

// A pipe's worth of lines, in which @ is the temporary folder.
static void chat(const char *lines, const char *options) {
    static char input[1 << 17];
    char line[200];
    size_t n = 0;
    for (; *lines && n + 100 < sizeof input; lines++)
        if (*lines == '%') n += (size_t)sprintf(input + n, "%s", temp_dir);
        else input[n++] = *lines;
    input[n] = 0;
    snprintf(line, sizeof line, "mote chat%s %s", BRIEFLY, options);
    shell_text(input, line);
}

static int count_of(const text *t, const char *part) {
    int n = 0;
    for (const char *at = t->data; (at = strstr(at, part)); at++) n++;
    return n;
}

static void test_again(void) {
    static text first;
    chat("What is FP8?\nWhat is mote?\n", "");
    first = out;
    // After /load and after /context the last question is there, and the answer is the same.
    chat("What is FP8?\nWhat is mote?\n/save %/s\n/reset\n/load %/s\n/retry\n/context\n/undo\n/retry\n/undo\n/undo\n", "");
    CHECK(code == 0 && !strncmp(out.data, first.data, first.size) && line_count(&out) == 3 &&
              !strcmp(out.data + first.size, strchr(first.data, '\n') + 1),
          "/retry after /load: %d '%s' %s", code, out.data, err.data);
    CHECK(count_of(&err, "took the last turn back") == 2 && count_of(&err, "nothing to take back") == 1 && strstr(err.data, "turn 2 of the last 2") &&
              count_of(&err, "there is no last question") == 1, "/undo after /load: %s", err.data);
    chat("What is FP8?\nWhat is mote?\n/context 900\n/retry\n/context\n/context4000\n/retry\n/undo\n/undo\n/undo\n", "");
    CHECK(code == 0 && line_count(&out) == 4 && !strncmp(out.data, first.data, first.size) && strstr(err.data, "of 900 tokens used") &&
              strstr(err.data, "a context of 4000 tokens") && count_of(&err, "took the last turn back") == 2,
          "/retry after /context: %d '%s' %s", code, out.data, err.data);
    // A loaded conversation with a system message keeps it.
    chat("What is FP8?\n/context\n/save %/s\n/reset\n/load %/s\n/retry\n/context\n", "--system 'Answer in one word.'");
    const char *used = strstr(err.data, " of 4096 tokens used"), *then = used ? strstr(used + 1, " of 4096 tokens used") : NULL;
    CHECK(code == 0 && then && !strncmp(used - 2, then - 2, 2), "the system message after /load: %d %s", code, err.data);
    // What is saved is without thinking, which the next question drops here: a chat that loads it goes on alike.
    chat("What is FP8?\n/save %/s\n/context\n/reset\n/load %/s\n/context\n", "");
    used = strstr(err.data, " of 4096 tokens used"), then = used ? strstr(used + 1, " of 4096 tokens used") : NULL;
    CHECK(code == 0 && then && !strncmp(used - 2, then - 2, 2), "thinking before /save: %d %s", code, err.data);
    // A question that does not fit is asked again without the turn before it.
    chat("What is FP8?\nWhat is the difference between one and another and a third one of them all in this long message?\n/context\n/retry\n/context 300\n"
         "/retry\n/context\n", "--context 45");
    CHECK(code == 1 && line_count(&out) == 2 && count_of(&err, "do not fit") == 2 && strstr(err.data, "turn 2 of the last 2") &&
              strstr(err.data, "/context N goes on in a larger one"),
          "a question that failed: %d '%s' %s", code, out.data, err.data);
    chat("What is FP8?\n", "--context 24 -n 100");
    CHECK(code == 0 && line_count(&err) == 1 && strstr(err.data, "full: /context N goes on"), "a full context: %d %s", code, err.data);
    chat("/stats on\n/stats on\n/stats on\n/stats off\n", "");
    CHECK(code == 0 && count_of(&err, "statistics on") == 3 && count_of(&err, "statistics off") == 1, "/stats: %s", err.data);
    chat("What is in @nosuch.txt?\n\"\"\"\n@property\nsays what?\n\"\"\"\nMail to me@nosuch\n", "");
    CHECK(code == 1 && line_count(&out) == 2 && line_count(&err) == 1 && strstr(err.data, "mote: nosuch.txt: No such file"),
          "@nosuch: %d '%s' %s", code, out.data, err.data);
}

// What a command says, alone.
static void check_says(const char *lines, const char *wanted) {
    chat(lines, "");
    CHECK(code == 0 && strstr(err.data, wanted), "%s: %d '%s', not '%s'", lines, code, err.data, wanted);
}

// Names as APIs have them, the bytes of tokens, and levels of effort that contradict.
static void test_values(void) {
    static const struct { const char *line, *says; } sets[] = {
        {"/set top_p 0.5", "top-p               0.5"}, {"/set top_p=0.5", "top-p               0.5"}, {"/set temp 0.25", "temperature         0.25"},
        {"/set repeat_penalty 1.5", "repetition-penalty  1.5"}, {"/set presence_penalty -1", "presence-penalty    -1"}, {"/set seed 12", "seed 12"},
        {"/set max_tokens 3", "max-tokens          3"}, {"/set n_predict 0", "max-tokens          0 (until the context is full)"},
        {"/set", "max-tokens          8"}, {"/set max_tokens -1", "/set max-tokens needs 0 to"},
        {"/tokens caf\303\251", "c3"}, {"/tokens <|im_end|>", "3c "}};
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        char line[100];
        snprintf(line, sizeof line, "%s\n", sets[i].line);
        check_says(line, sets[i].says);
    }
    chat("/set max_tokens 2\nWhat is FP8?\n/context\n", "");
    static text two;
    two = out;
    chat("What is FP8?\n", "-n 2");
    CHECK(code == 0 && out.size > 1 && !strcmp(two.data, out.data), "/set max_tokens 2: '%s', not '%s'", two.data, out.data);
    check_says("/effort low\n", "/think is off, which contradicts that\n");
    check_says("/effort none\n/think on\n", "/effort is none, which contradicts that: /effort alone first\n");
    check_says("/effort none\n/think on\n/think\n", "thinking: off\n");
    check_says("/think on\n/effort low\n/think off\n/effort\n/think off\n", "/effort is low, which contradicts that");
    chat("/think on\n/effort low\n/effort\n/think off\n", "");
    CHECK(!strstr(err.data, "contradicts") && strstr(err.data, "thinking: off"), "/effort alone: %s", err.data);
}

// wrong: says so in one line, whatever came before.
static const struct { const char *line; int wrong; } chat_lines[] = {
    {"What is FP8?", 0}, {"And BF16?", 0}, {"\"\"\"two\nlines\"\"\"", 0}, {"goes on \\\nhere", 0}, {"/retry", 0}, {"/regen", 0}, {"/undo", 0},
    {"/edit", 0}, {"/context", 0}, {"/context4096", 0}, {"/context 300", 0}, {"/context 60", 0}, {"/save %/s", 0}, {"/load %/s", 0},
    {"/reset", 0}, {"/new", 0}, {"/clear", 0}, {"/system x", 0}, {"/system", 0}, {"/think on", 0}, {"/think off", 0}, {"/think", 0}, {"/set", 0},
    {"/set top-k 5", 0}, {"/set top-k", 0}, {"/temp", 0}, {"/temp0", 0}, {"/temp 0.5", 0}, {"/seed", 0}, {"/seed7", 0}, {"/read LICENSE", 0},
    {"/tokens", 0}, {"/tokens <|im_end|>", 0}, {"/stats", 0}, {"/stats on", 0}, {"/stats off", 0}, {"/help", 0}, {"What is in @LICENSE?", 0},
    {"/think maybe", 1}, {"/think on off", 1}, {"/set x", 1}, {"/set top-k x", 1}, {"/set top-k 1 2", 1}, {"/temp x", 1}, {"/temp nan", 1},
    {"/temp -1", 1}, {"/seed x", 1}, {"/seed -1", 1}, {"/seed 99999999999999999999999", 1}, {"/read", 1}, {"/read %/none", 1}, {"/read %", 1},
    {"/stats on on", 1}, {"/stats 1", 1}, {"/help set", 1}, {"/undo 3", 1}, {"/reset now", 1}, {"/retry 2", 1}, {"/edit x", 1}, {"/quit now", 1},
    {"/context x", 1}, {"/context 0", 1}, {"/context -1", 1}, {"/context 99999999", 1}, {"/context 1e3", 1}, {"/context4x", 1}, {"/save", 1},
    {"/save %/none/s", 1}, {"/save %", 1}, {"/load", 1}, {"/load %/none", 1}, {"/load LICENSE", 1}, {"/", 1}, {"//", 1}, {"/ x", 1}, {"/foo", 1},
    {"/UNDO", 1}, {"/undo\302\240", 1}, {"/contextcontextcontextcontextcontextcontext 1", 1}, {"see @%/none.", 1}, {"see @%", 1}};

enum { CHAT_LINES = sizeof chat_lines / sizeof chat_lines[0] };

// Each line once after some others, then all in any order: the chat goes on, and what is wrong is told in a line.
static void test_sequences(void) {
    static char lines[1 << 16];
    static int which[2000];
    int rounds = test_brief ? 1 : 4, length = test_brief ? 120 : 400;
    for (int round = 0; round < rounds; round++) {
        size_t n = 0;
        for (int i = 0; i < length; i++) {
            which[i] = i < CHAT_LINES && round == 0 ? i : random_int(0, CHAT_LINES - 1);
            n += (size_t)snprintf(lines + n, sizeof lines - n, "%s\n/set between%d\n", chat_lines[which[i]].line, i);
        }
        chat(lines, "--context 400");
        CHECK(code == 1, "round %d ended with %d", round, code);
        char *at = err.data;
        for (int i = 0; i < length; i++) {
            char mark[60];
            snprintf(mark, sizeof mark, "/set knows no 'between%d'; /set alone lists all\n", i);
            char *end = strstr(at, mark);
            if (!CHECK(end != NULL, "round %d: it ended at '%s'", round, chat_lines[which[i]].line)) return;
            int said = 0;
            for (char *c = at; c < end; c++) said += *c == '\n';
            if (chat_lines[which[i]].wrong)
                CHECK(said == 1, "round %d: '%s': %d lines: '%.*s'", round, chat_lines[which[i]].line, said, (int)(end - at), at);
            at = end + strlen(mark);
        }
    }
}

// ---- 5. Texts ---------------------------------------------------------------------------------------------------------

// Bytes of every kind, on standard input and as arguments: none ends with a signal, and what fails says so in a line.
static void test_hostile(void) {
    static const char *const commands[] = {"tokenize", "tokenize -0", "detokenize", "render", "run --raw -n 4", "run" BRIEFLY, "chat" BRIEFLY};
    static const struct { const char *data; size_t size; } inputs[] = {
        {"", 0}, {"\0", 1}, {"\0\0\0", 3}, {"\377\376", 2}, {"\360\237\230", 3}, {"\355\240\200", 3}, {"-1\n", 3}, {"1 2 3 99999999999\n", 18},
        {"+1\n", 3}, {"1\r\n\t2\n", 6}, {"{}", 2}, {"[]", 2}, {"{\"messages\":[]}", 15}, {"{\"messages\":{}}", 15}, {"{\"messages\":[{}]}", 17},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud800\"}]}", 49}, {"[[[[[[[[[[[[[[[[", 16}, {"\n\n\n", 3}, {"\\\n\\\n\\", 5}, {"\"\"\"\n", 4}};
    static const char *const arguments[] = {"run \"$(printf '\\377\\376')\"" BRIEFLY, "run \"$(printf '\\360\\237')\" --system \"$(printf '\\300')\"" BRIEFLY,
        "info -m \"$(printf '\\377')\"", "info -m ''", "run hi --stop ''" BRIEFLY, "run hi --stop \"$(printf '\\377')\"" BRIEFLY, "help ''", "''", "'-'", "run -- hi",
        "bench --ask ''", "logits --tokens '' -o ''", "run --tokens ''", "info --synthetic ''", "info --synthetic :::", "info --synthetic tiny:fp8:0",
        "info --synthetic tiny:fp8:99999999999", "info --device ''", "bench --prompt ''", "bench --json ''", "run '' ''"};
    char line[400];
    for (size_t c = 0; c < sizeof commands / sizeof commands[0]; c++)
        for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
            snprintf(line, sizeof line, "(timeout 60 " MOTE_PROGRAM " %s)", commands[c]);
            shell_with(inputs[i].data, inputs[i].size, line);
            CHECK((code == 0 || code == 1) && (code == 0 || line_count(&err) == 1), "%s of input %zu: %d '%s'", line, i, code, err.data);
        }
    for (size_t i = 0; i < sizeof arguments / sizeof arguments[0]; i++) {
        snprintf(line, sizeof line, "(timeout 60 " MOTE_PROGRAM " %s)", arguments[i]);
        shell(line);
        CHECK(code <= 2 && (code == 0 || line_count(&err) == 1), "%s: %d '%s'", line, code, err.data);
    }
    shell("(head -c 1000000 /dev/zero | tr '\\0' '[' | timeout 60 " MOTE_PROGRAM " render)");
    CHECK(code == 1 && line_count(&err) == 1, "a million brackets: %d '%.200s'", code, err.data);
    shell("(yes 1 | head -c 3000000 | timeout 60 " MOTE_PROGRAM " detokenize | wc -c)");
    CHECK(code == 0 && atoi(out.data) > 1500000, "a million and a half of lines: %d '%s'", code, out.data);
}

// ---- 6. Main ----------------------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    test_main_begin("test_program", argc, argv);
    if (access("models/demo/config.json", F_OK)) {
        test_skip("no models/demo");
        return test_main_end();
    }
    if (!temp_open()) return test_main_end();
    test_closed();
    test_places();
    test_full();
    test_fifos();
    test_words();
    test_again();
    test_values();
    test_sequences();
    test_hostile();
    temp_close();
    return test_main_end();
}
