// Tests of typing: the program's chat on a pseudo-terminal, driven key by key. What was typed is seen in what the program makes
// of it: `/seed` and `/system` answer without the model.
//
// Contents   1. A terminal   2. Keys   3. Long and pasted text, names   4. Interrupts   5. History   6. Main

#include "files.h"
#include "test.h"

#include <poll.h>
#include <pty.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

// ---- 1. A terminal --------------------------------------------------------------------------------------------------

enum { SCREEN = 1 << 20 };

static int terminal;
static pid_t child;
static char screen[SCREEN];

// Starts `mote chat` with these options; 0: there are no terminals here.
static int begin(const char *term, const char *options, int columns) {
    struct winsize size = {24, (unsigned short)columns, 0, 0};
    char command[1024];
    snprintf(command, sizeof command, "HOME=%s TERM=%s exec " MOTE_PROGRAM " chat --greedy --think off %s", temp_dir, term, options);
    child = forkpty(&terminal, NULL, NULL, &size);
    if (child < 0) return 0;
    if (child == 0) {
        unsetenv("XDG_STATE_HOME");
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    return 1;
}

// Reads until `wanted` appears, and after it `then`; 0 after twenty silent seconds or at the end.
static int wait_for(const char *wanted, const char *then) {
    struct pollfd p = {terminal, POLLIN, 0};
    size_t n = 0;
    screen[0] = 0;
    while (n + 1 < SCREEN && poll(&p, 1, 20000) > 0) {
        ssize_t got = read(terminal, screen + n, SCREEN - 1 - n);
        if (got <= 0) return 0;
        n += (size_t)got;
        screen[n] = 0;
        const char *found = strstr(screen, wanted);
        if (found && strstr(found, then)) return 1;
    }
    return 0;
}

static void type(const char *keys) {
    for (size_t n = strlen(keys); n > 0;) {
        ssize_t done = write(terminal, keys, n > 512 ? 512 : n);
        if (done <= 0) {
            CHECK(0, "the terminal is gone");
            return;
        }
        keys += done;
        n -= (size_t)done;
    }
}

// The prompt as it is drawn with nothing after it.
static const char *prompt = "\033[J\033[1;36m> \033[0m\r\033[2C";

// Types keys; the program then says this, and waits for more.
static void says(const char *keys, const char *wanted, const char *what) {
    type(keys);
    CHECK(wait_for(wanted, prompt), "%s: not '%s' in '%.300s'", what, wanted, screen);
}

// The program ends, all right, after these keys.
static void end(const char *keys) {
    int status = -1;
    type(keys);
    wait_for("\001never\001", "");
    CHECK(waitpid(child, &status, 0) == child && status == 0, "exit status %d", status);
    close(terminal);
}

// ---- 2. Keys --------------------------------------------------------------------------------------------------------

static void test_keys(void) {
    says("", "", "a prompt");
    says("/sed 12\033b\033[D\033[De\001\005\r", "seed 12\r\n", "arrows and word moves");     // the e goes where one is missing
    says("/seed 345\177\1776\r", "seed 36\r\n", "backspace");
    says("seed 7\001/\r", "seed 7\r\n", "Ctrl-A");
    says("/seed 1 234\027\r", "seed 1\r\n", "Ctrl-W takes a word");
    says("junk\025/seed 8\r", "seed 8\r\n", "Ctrl-U");
    says("/seed 94\002\013\031\031\r", "seed 944\r\n", "Ctrl-K, and Ctrl-Y twice");
    says("/seed 56\033[D\033[3~\r", "seed 5\r\n", "delete");
    says("\033[Ax\177\177" "4\r", "seed 4\r\n", "up: the message before");
    says("/seed 77\r", "seed 77\r\n", "another");
    says("\033[A\033[A\033[B\r", "seed 77\r\n", "up, up, down");
    says("\022 4\022\r", "seed 4\r\n", "Ctrl-R finds an older one");
    says("\022 77\003/seed 3\r", "seed 3\r\n", "Ctrl-C leaves the search");
    says("/see\t 21\r", "seed 21\r\n", "Tab completes a command");
    says("/system \303\244\344\270\255\360\237\230\200x\177\177\177\r", "system message set", "wide characters");
    says("\033OH\033OF\033[1~\033[4~\033[1;5C\033[99~\033xx\025/seed 6\r", "seed 6\r\n", "keys of all kinds");
}

// Commands that need the last question, and texts that go with a message.
static void test_questions(void) {
    char line[256];
    says("/retry\r", "there is no last question", "/retry without one");
    says("What is mote?\r", "tok/s, first after", "an answer, and its line");
    size_t longest = 0;
    for (const char *at = strstr(screen, "\033[?2004l"); at && *at; at += strcspn(at, "\n") + (strchr(at, '\n') != NULL)) {
        size_t n = strcspn(at, "\r\n");
        if (!memchr(at, '\033', n) && n > longest) longest = n;
    }
    CHECK(longest > 20 && longest <= 40, "lines of %zu columns on a terminal of 40: '%s'", longest, screen);
    says("/retry\r", "the temperature is 0", "/retry");
    says("/set temperature 0.5\r", "temperature         0.5", "/set");
    says("/regen\r", "first after", "/regen");
    type("/edit\r");
    CHECK(wait_for("What is mote?", ""), "/edit shows the last question: '%.300s'", screen);
    says("\177 for?\r", "first after", "and asks it changed");
    says("/undo\r", "took the last turn back", "the first turn was replaced");
    says("/undo\r", "nothing to take back", "so there was one");
    says("/context\r", "0 of 4096 tokens used, 4096 free", "/context");
    says("What is mote?\r", "first after", "a turn");
    says("/context\r", "turn 1 of the last 1: ", "/context tells what it cost");
    says("/context 2\r", "/context needs a number of tokens, ", "too small a context");
    says("/context 600\r", "a context of 600 tokens", "/context N");
    says("What can it do?\r", "first after", "the conversation goes on there");
    snprintf(line, sizeof line, "/save %s\r", temp_path("saved"));
    says(line, "saved to", "/save");
    says("/reset\r", "a new conversation", "/reset");
    snprintf(line, sizeof line, "/load %s\r", temp_path("saved"));
    says(line, "What can it do?", "/load shows the last turn");
    says("/reset\r", "a new conversation", "/reset");
    says("/tokens a\r", "1 token\r\n", "/tokens");
    temp_write("note", "a short note\n", 13);
    temp_write("binary", "a\0b", 3);
    snprintf(line, sizeof line, "/read %s\r", temp_path("note"));
    says(line, "13 B, ", "/read");
    snprintf(line, sizeof line, "/read %s\r", temp_path("binary"));
    says(line, "not a text: byte 1", "/read of no text");
    snprintf(line, sizeof line, "What is in @%s?\r", temp_path("note"));
    says(line, "first after", "a file that a message names");
    snprintf(line, sizeof line, "What is in @%s?\r", temp_path("binary"));
    type(line);
    CHECK(wait_for("not a text: byte 1", "\033[?2004h"), "one that is no text: '%.300s'", screen);
    says("\025/set temperature 0\r", "temperature         0", "/set");
    says("/reset\r", "a new conversation", "/reset");
    snprintf(line, sizeof line, "What is in @%s\t?\r", temp_path("not"));
    says(line, "13 B, ", "Tab after @");
    snprintf(line, sizeof line, "/read %s\t\r", temp_path("not"));
    says(line, "13 B, ", "Tab after /read");
    says("/set te\t 0\r", "temperature         0", "Tab in /set");
    says("/set max\t 1\rWhat is FP8?\r", "[cut after -n 1; /set max-tokens N says otherwise]", "an answer that is cut");
    says("/set max_tokens 0\r", "until the context is full", "no longer");
    says("/reset\r", "a new conversation", "/reset");
}

// A file that a message names and that is not there, and the last question of a conversation that was loaded.
static void test_held(void) {
    char line[256];
    type("What is in @nosuch?\r");
    CHECK(wait_for("nosuch: No such file", "\033[?2004h"), "held: '%.300s'", screen);
    says("\r", "first after", "and asked as it is");
    says("/undo\r", "took the last turn back", "one turn");
    says("/undo\r", "nothing to take back", "and no other");
    type("See @nosuch.\r");
    CHECK(wait_for("nosuch: No such file", "\033[?2004h"), "held: '%.300s'", screen);
    says("\025What is mote?\r", "first after", "changed");
    says("/context 700\r", "a context of 700 tokens", "/context N");
    type("/edit\r");
    CHECK(wait_for("What is mote?", ""), "/edit after /context: '%.300s'", screen);
    says("\177 for?\r", "first after", "and asks it changed");
    snprintf(line, sizeof line, "/save %s\r", temp_path("saved"));
    says(line, "saved to", "/save");
    says("/reset\r", "a new conversation", "/reset");
    snprintf(line, sizeof line, "/load %s\r", temp_path("saved"));
    says(line, "> What is mote for?", "/load");
    type("/edit\r");
    CHECK(wait_for("What is mote for?", ""), "/edit after /load: '%.300s'", screen);
    says("\025What is FP8?\r", "first after", "and asks it changed");
    says("/undo\r", "took the last turn back", "in the place of the old one");
    says("/undo\r", "nothing to take back", "which was the only one");
}

// ---- 3. Long and pasted text, names ---------------------------------------------------------------------------------

static void test_long(void) {
    static char line[8000];
    strcpy(line, "/seed ");
    memset(line + 6, 'x', 7000);
    strcpy(line + 7006, "end\r");
    says(line, "xxend'", "a line of 7,000 characters");
    type("\033[200~/seed 5\r\nis\tno command\n\033[201~");
    CHECK(wait_for("no command", ""), "a paste is drawn: '%.300s'", screen);
    says("\177\025\177\025/seed 15\r", "seed 15\r\n", "and taken back");
}

// Names that people type, and slips of the hand, which never lead to a command that erases.
static void test_names(void) {
    says("/clear\r", "new conversation", "/clear");
    says("/new\r", "new conversation", "/new");
    says("/sede 1\r", "did you mean /seed?", "a slip");
    says("/rest\r", "/help lists them", "one that is near /reset");
    says("/laod x\r", "/help lists them", "one that is near /load");
    says("/umdo\r", "/help lists them", "one that is near /undo");
}

// Pasted lines are one message: there is one answer.
static void test_paste(void) {
    type("\033[200~What is a router?\r\nAnd what\r\nis an expert?\r\nSay it shortly.\033[201~");
    CHECK(wait_for("shortly.", ""), "the paste: '%.300s'", screen);
    says("\r", "", "an answer");
    says("/undo\r", "took the last turn back", "one turn of four lines");
    says("/undo\r", "nothing to take back", "and no other");
    says("What is\nFP8?\r", "", "Ctrl-J begins a line");
    says("/undo\r", "took the last turn back", "and that");
    says("/undo\r", "nothing to take back", "one turn, too");
}

// ---- 4. Interrupts --------------------------------------------------------------------------------------------------

static void test_stopped_answers(void) {
    says("/temp 100\r", "temperature 100", "an answer that does not end soon");
    type("What is mote?\r");
    CHECK(wait_for("What is mote?", "\033[?2004l") && wait_for(" ", ""), "the answer begins: '%.300s'", screen);
    says("\003", "[stopped]", "Ctrl-C stops the answer");
    says("/context\r", "turn 1 of the last 1: ", "which stays as far as it came");
    type("And then?\r");
    CHECK(wait_for("And then?", "\033[?2004l") && wait_for(" ", ""), "the conversation goes on: '%.300s'", screen);
    says("\003", "[stopped]", "Ctrl-C stops that");
    says("/undo\r", "took the last turn back", "one turn");
    says("/undo\r", "took the last turn back", "and the other");
    says("/undo\r", "nothing to take back", "and no more");
    says("/temp 0\r", "temperature 0", "as it was");
}

// Ctrl-C while a long question is read takes it back; it can be asked again.
static void test_stopped_questions(void) {
    static char question[18000];
    for (size_t n = 0; n + 20 < sizeof question; n += 6) strcpy(question + n, "words ");
    says("/reset\r", "a new conversation", "/reset");
    says("/context 4096\r", "a context of 4096 tokens", "/context N");
    type("\033[200~");
    type(question);
    type("\033[201~\r");
    CHECK(wait_for("\033[?2004l", "reading the prompt"), "a long question is read: '%.300s'", screen);
    says("\003", "stopped while the question was read", "Ctrl-C stops that");
    says("/context\r", "0 of 4096 tokens used", "it is gone");
    says("/set temperature 1\r", "temperature         1", "/set");
    type("/retry\r");
    CHECK(wait_for("/retry", "reading the prompt"), "it is read again: '%.300s'", screen);
    says("\003", "stopped while the question was read", "Ctrl-C stops that, too");
    says("/temp 0\r", "temperature 0", "as it was");
}

static void test_interrupts(void) {
    says("half a line\003/seed 31\r", "seed 31\r\n", "Ctrl-C drops the line");
    says("\"\"\"\rsome\rlines\r\003/seed 32\r", "seed 32\r\n", "Ctrl-C leaves the quoted mode");
    says("goes on \\\r\003/seed 33\r", "seed 33\r\n", "and a line that goes on");
    says("\003", "Ctrl-C again", "Ctrl-C on nothing");
    says("/seed 34\r", "seed 34\r\n", "something in between");
    says("\003", "Ctrl-C again", "Ctrl-C on nothing, once more");
}

// ---- 5. History -----------------------------------------------------------------------------------------------------

static void test_history(void) {
    char path[600];
    struct stat about;
    snprintf(path, sizeof path, "%s/.local/state/mote/history", temp_dir);
    CHECK(stat(path, &about) == 0 && (about.st_mode & 0777) == 0600, "%s: mode %o", path, (unsigned)about.st_mode);
    if (!begin("xterm", "", 60)) return;
    says("", "", "a second run");
    says("\033[A\r", "seed 34\r\n", "the last message of the run before");
    says("\022FP8\005 And BF16?\r", "And BF16?", "a message of two lines, found again");
    says("/undo\r", "took the last turn back", "one turn");
    end("\004");
    off_t size = stat(path, &about) == 0 ? about.st_size : 0;
    if (!begin("xterm", "--no-history", 60)) return;
    says("", "", "a third run");
    says("\033[A/seed 61\r", "seed 61\r\n", "no history");
    end("\004");
    CHECK(stat(path, &about) == 0 && about.st_size == size, "--no-history wrote");
    CHECK(!unlink(path) && !mkfifo(path, 0600), "%s: no FIFO", path);
    if (!begin("xterm", "", 60)) return;
    says("", "", "a fourth run, whose history is a FIFO");
    says("/seed 62\r", "seed 62\r\n", "which nobody waits for");
    end("\004");
}

// ---- 6. Main --------------------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    test_main_begin("test_chat_input", argc, argv);
    temp_open();
    unsetenv("NO_COLOR");
    if (!begin("xterm", "--threads 1", 40)) {
        test_skip("no pseudo-terminal here: typing");
        return test_main_end();
    }
    test_keys();
    test_long();
    test_names();
    test_paste();
    test_questions();
    test_held();
    test_stopped_answers();
    test_stopped_questions();
    test_interrupts();
    end("\003");
    test_history();
    prompt = "\033[J> \r\033[2C";
    setenv("NO_COLOR", "1", 1);
    if (begin("xterm", "", 40)) {
        says("", "", "a prompt without colour");
        CHECK(!strstr(screen, "\033[1;"), "NO_COLOR, and a colour: %.300s", screen);
        end("/bye\r");
    }
    unsetenv("NO_COLOR");
    prompt = "> ";
    if (begin("dumb", "", 40)) {
        says("", "", "a terminal that only prints");
        says("/seed 455\177\r", "seed 45\r\n", "backspace there");
        says("junk\025/seed 46\r", "seed 46\r\n", "Ctrl-U there");
        end("/bye\r");
    }
    temp_close();
    return test_main_end();
}
