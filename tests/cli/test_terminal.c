// Tests of the program on a terminal: the chat, and that nothing of a text, a file or an argument steers the terminal.

#include "shell.h"

#include <poll.h>
#include <pty.h>
#include <termios.h>

// Reads from the terminal into `screen` until `wanted` has appeared; 0 after twenty silent seconds or at the end.
static int wait_for(int terminal, text *screen, const char *wanted) {
    struct pollfd p = {terminal, POLLIN, 0};
    screen->size = 0;
    while (poll(&p, 1, 20000) > 0 && screen->size + 1 < sizeof screen->data) {
        ssize_t n = read(terminal, screen->data + screen->size, sizeof screen->data - 1 - screen->size);
        if (n <= 0) return 0;
        screen->size += (size_t)n;
        screen->data[screen->size] = 0;
        if (strstr(screen->data, wanted)) return 1;
    }
    return 0;
}

static void type(int terminal, const char *keys) {
    if (write(terminal, keys, strlen(keys)) < 0) CHECK(0, "the terminal is gone");
}

static void test_terminal(void) {
    static text screen;
    int terminal, status = 0;
    struct winsize size = {40, 200, 0, 0};
    pid_t child = forkpty(&terminal, NULL, NULL, &size);
    if (child < 0) {
        test_skip("no pseudo-terminal here: the chat on a terminal");
        return;
    }
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", "TERM=dumb exec " MOTE_PROGRAM " --no-history --greedy --think off --temp 0", (char *)NULL);
        _exit(127);
    }
    CHECK(wait_for(terminal, &screen, "> "), "no prompt: %s", screen.data);
    CHECK(strstr(screen.data, "/help"), "no banner: %s", screen.data);
    type(terminal, "half a line");
    CHECK(wait_for(terminal, &screen, "line"), "no echo: %s", screen.data);
    usleep(200000);                        // the echo may be the terminal's: let the program wait for input
    type(terminal, "\3");                  // clears the line: what follows is a command of its own
    CHECK(wait_for(terminal, &screen, "> "), "no new prompt after Ctrl-C: %s", screen.data);
    type(terminal, "/stats\r");
    CHECK(wait_for(terminal, &screen, "statistics on"), "/stats after Ctrl-C: %s", screen.data);
    type(terminal, "What is a router?\r");
    CHECK(wait_for(terminal, &screen, "tok/s; context"), "an answer: %s", screen.data);
    type(terminal, "/undo\r");
    CHECK(wait_for(terminal, &screen, "took the last turn back"), "/undo: %s", screen.data);
    type(terminal, "/quit\r");
    wait_for(terminal, &screen, "never");
    CHECK(waitpid(child, &status, 0) == child && status == 0, "exit status %d", status);
    close(terminal);
}

// The bytes that a shell command writes to a terminal which changes none of them. NULL: no terminal to be had.
static const text *on_terminal(const char *command) {
    static text screen;
    struct termios raw;
    struct winsize size = {40, 200, 0, 0};
    int terminal, status = 0;
    memset(&raw, 0, sizeof raw);
    cfmakeraw(&raw);
    raw.c_cflag |= CREAD;
    pid_t child = forkpty(&terminal, NULL, &raw, &size);
    if (child < 0) return NULL;
    if (child == 0) {
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    wait_for(terminal, &screen, "\001never\001");
    close(terminal);
    int ended = waitpid(child, &status, 0) == child && WIFEXITED(status);
    CHECK(ended, "%s: status %d", command, status);
    screen.data[screen.size] = 0;
    return &screen;
}

// Takes the program's own sequences out: dimmed, plain, progress.
static void strip_own(text *t) {
    static const char *const own[] = {"\033[2m", "\033[0m", "\r\033[K"};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        for (char *at = t->data; (at = strstr(at, own[i]));) {
            const char *rest = at + strlen(own[i]);
            memmove(at, rest, strlen(rest) + 1);
        }
    t->size = strlen(t->data);
}

static int control_count(const text *t) {
    int count = 0;
    for (size_t i = 0; i < t->size; i++) {
        unsigned char byte = (unsigned char)t->data[i];
        count += (byte < ' ' && byte != '\n' && byte != '\t') || byte == 0x7f;
        count += byte >= 0x80 && byte < 0xa0 && i > 0 && (unsigned char)t->data[i - 1] == 0xc2;
    }
    return count;
}

// What is printed of texts, files and arguments: whole on a pipe, controls visible on a terminal.
static void test_visible(void) {
    static const char raw[] = "a\033]0;x\a\r\177\b\302\2331m\342\200\256q\342\201\246\tz\001\302\240\303\251\n";
    static const char shown[] = "a^[]0;x^G^M^?^H<U+009B>1m<U+202E>q<U+2066>\tz^A\302\240\303\251\n";
    const text *screen;
    char line[512], request[256];
    shell_with(raw, sizeof raw - 1, "mote tokenize");
    temp_write("ids", out.data, out.size);
    static text ids;
    ids = out;
    shell_with(ids.data, ids.size, "mote detokenize");
    CHECK(code == 0 && out.size == sizeof raw && memcmp(out.data, raw, sizeof raw) == 0, "detokenize to a file: '%s'",
          out.data);
    snprintf(line, sizeof line, MOTE_PROGRAM " detokenize <%s/ids", temp_dir);
    if (!(screen = on_terminal(line))) {
        test_skip("no pseudo-terminal here: control characters");
        return;
    }
    snprintf(request, sizeof request, "%s^@", shown);
    CHECK(strcmp(screen->data, request) == 0, "detokenize on a terminal: '%s'", screen->data);
    snprintf(request, sizeof request, "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]}", "a\\u001bb\\u009bc");
    temp_write("request", request, strlen(request));
    snprintf(line, sizeof line, MOTE_PROGRAM " render <%s/request", temp_dir);
    screen = on_terminal(line);
    CHECK(screen && strstr(screen->data, "\na^[b<U+009B>c<|im_end|>"), "render on a terminal: '%s'", screen->data);
    screen = on_terminal(MOTE_PROGRAM " info -m \"$(printf '/nosuch\\033\\177\\302\\233\\233\\351')\"");
    CHECK(screen && control_count(screen) == 0 && strstr(screen->data, "^?<U+009B><9B><E9>"),
          "an error message on a terminal: '%s'", screen->data);
    screen = on_terminal("printf '/x\\033c\\r\\n/save /nosuch/\\177\\n' | " MOTE_PROGRAM " chat");
    static text remarks;
    remarks = *screen;
    strip_own(&remarks);
    CHECK(control_count(&remarks) == 0 && strstr(remarks.data, "unknown command /x^[c") &&
              strstr(remarks.data, "/nosuch/^?"),
          "remarks of the chat on a terminal: '%s'", remarks.data);
}

// That -n has cut an answer is said to who sees it, and not into a log.
static void test_cut(void) {
    static const char command[] = MOTE_PROGRAM " run 'What is FP8?' --greedy --think off -n 2";
    const text *screen = on_terminal(command);
    shell(command);
    CHECK(code == 0 && !err.size, "run -n 2: %d %s", code, err.data);
    if (!screen) test_skip("no pseudo-terminal here: an answer that is cut");
    else CHECK(strstr(screen->data, "-n has cut the answer"), "run -n 2 on a terminal: '%s'", screen->data);
}

// A temperature at which every token comes: with some seed, those of control characters among them.
static void test_visible_answers(void) {
    static const char *const commands[] = {
        MOTE_PROGRAM " run --raw -p x -n 100 --temp 100 --top-k 0 --top-p 1 --seed %d",
        "(echo x | " MOTE_PROGRAM " chat --think off -n 100 --temp 100 --top-k 0 --top-p 1 --seed %d)",
        "echo x | " MOTE_PROGRAM " chat --think on -n 100 --temp 100 --top-k 0 --top-p 1 --seed %d"};
    static text screen;
    for (int i = 0; i < 3; i++) {
        char line[256];
        int seed = 20, found = 0;
        for (; seed < 60 && !found; seed++) {
            snprintf(line, sizeof line, commands[i], seed);
            if (i < 2) shell(line);        // thinking is left out of pipes
            if (i < 2 && (code || !control_count(&out))) continue;
            const text *raw = on_terminal(line);
            if (!raw) {
                test_skip("no pseudo-terminal here: answers with control characters");
                return;
            }
            screen = *raw;
            strip_own(&screen);
            found = screen.size > 200 && strchr(screen.data, '^');
        }
        CHECK(found, "%s: no control character for 40 seeds: %s", line, err.data);
        CHECK(control_count(&screen) == 0, "%s: %d control characters in '%s'", line, control_count(&screen), screen.data);
    }
}

int main(int argc, char **argv) {
    test_main_begin("test_terminal", argc, argv);
    if (!temp_open()) return test_main_end();
    if (access("models/demo/config.json", F_OK) == 0) {
        test_terminal();
        test_cut();
        test_visible();
        test_visible_answers();
    } else {
        test_skip("no models/demo: terminal");
    }
    temp_close();
    return test_main_end();
}
