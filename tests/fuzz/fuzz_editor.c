// Fuzzer of what is typed: any bytes, on a terminal of any size, through the line editor; its screen is drawn by a small terminal
// of our own, which knows what may be written to it. Then the same bytes as an answer that is wrapped. make fuzz; needs clang.

#include "../../engine.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_INTERRUPTED = 130 };

static int columns = 80, rows = 24;
static unsigned turns;                     // how often it was asked whether more input is there

// More input is there, as it seems, but for each third time, so that what is typed is drawn.
static int more_input(void) {
    return turns++ % 3 != 0;
}

static int window_size(struct winsize *size) {
    size->ws_col = (unsigned short)columns;
    size->ws_row = (unsigned short)rows;
    return 0;
}

#define EDITOR_MOST (1 << 14)
#define ioctl(file, request, size) ((void)(file), window_size((struct winsize *)(void *)(size)))
#include "../../program/terminal.c"
#include "../../program/files.c"
#include "../../cli/files.c"
#include "../../cli/wrap.c"
#include "../../cli/history.c"
#include "../../cli/characters.c"
#define poll(files, count, limit) ((void)(files), more_input())
#include "../../cli/line_editor.c"
#undef poll
#undef ioctl

static void must(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "fuzz_editor: %s\n", what);
    abort();
}

// ---- A terminal --------------------------------------------------------------------------------------------------

typedef struct vt { int row, column, top; } vt;            // top: the highest row that was ever on the screen

// The parameter of an escape sequence at s, which the program may have written; its length.
static size_t vt_sequence(vt *t, const char *s) {
    size_t n = 2 + strspn(s + 2, "0123456789;?");
    int count = atoi(s + 2);
    must(s[1] == '[', "an escape sequence that is no CSI");
    switch (s[n]) {
        case 'A': t->row -= count ? count : 1; break;
        case 'C': t->column += count ? count : 1; break;
        case 'H': t->row = t->top = t->column = 0; break;
        case 'J': case 'm': case 'h': case 'l': break;
        default: must(0, "an escape sequence that nobody knows");
    }
    must(t->row >= t->top, "the cursor goes above what was drawn");
    must(t->column < columns || s[n] != 'C', "the cursor goes beyond the last column");
    return n + 1;
}

static void vt_draw(vt *t, const char *s, size_t size) {
    size_t length;
    for (size_t at = 0; at < size; at += length) {
        int32_t c = first_character(s + at, size - at, &length);
        if (c == 27) length = vt_sequence(t, s + at);
        else if (c == '\r') t->column = 0;
        else if (c == '\n') t->row++;
        else if (c == '\a') continue;
        else {
            must(c == '\b' || (c >= 0 && c != '\t' && !steers_terminal(c)), "a byte that steers a terminal");
            t->column += c == '\b' ? 0 : character_width(c);
            must(t->column <= columns, "a row is longer than the screen is wide");
        }
        if (t->row - t->top >= rows) t->top = t->row - rows + 1;
    }
}

// ---- Typing ------------------------------------------------------------------------------------------------------

static void complete(editor *e) {
    editor_insert(e, "\303\251t", 3);
}

static void check_text(const editor *e) {
    must(e->at <= e->text.size && e->text.size <= e->text.capacity, "the cursor is outside the text");
    must(e->shown <= history_count(&e->history), "a message that the history does not have");
}

// Lines until the input ends; each is remembered.
static void type(const uint8_t *data, size_t size, int dumb) {
    int ends[2];
    char *drawn = NULL;
    size_t drawn_size = 0;
    editor e;
    vt t = {0, 0, 0};
    memset(&e, 0, sizeof e);
    if (pipe(ends)) return;
    must(write(ends[1], data, size) == (ssize_t)size, "a pipe that takes no input");
    close(ends[1]);
    e.input = ends[0];
    e.dumb = dumb;
    e.coloured = 1;
    e.complete = complete;
    e.out = open_memstream(&drawn, &drawn_size);
    must(e.out && !grow(&e.text, 1), "no memory");
    for (int lines = 0; lines < 64; lines++) {
        e.text.size = e.at = 0;
        e.row = 0;
        e.shown = history_count(&e.history);
        enum editor_end end = editor_loop(&e, "> ");
        check_text(&e);
        editor_leave(&e, "> ");
        e.text.data[e.text.size] = 0;
        if (end == EDITOR_CLOSED) break;
        if (strlen(e.text.data) == e.text.size) history_add(&e.history, e.text.data);
    }
    fclose(e.out);
    if (!dumb) vt_draw(&t, drawn, drawn_size);
    free(drawn);
    close(ends[0]);
    editor_close(&e);
}

// The same text in two cuts is wrapped to the same lines.
static void wrap(const char *text, size_t size, size_t cut) {
    for (int i = 0; i < 2; i++) {
        wrapper w;
        FILE *out = fopen("/dev/null", "w");
        must(out != NULL, "no /dev/null");
        memset(&w, 0, sizeof w);
        wrap_text(&w, out, text, i ? cut : size);
        if (i) wrap_text(&w, out, text + cut, size - cut);
        wrap_flush(&w, out);
        fclose(out);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    signal(SIGTSTP, SIG_IGN);
    if (size < 3 || size > 60000) return 0;
    columns = 8 + data[0] % 100;
    rows = 2 + data[1] % 40;
    turns = data[1];
    type(data + 3, size - 3, data[2] & 1);
    wrap((const char *)data + 3, size - 3, data[2] % (size - 2));
    return 0;
}
