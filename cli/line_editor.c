/* cli/line_editor.c: a message typed on a terminal: editing, completion, looking through the history. It knows keys and
   screens, and nothing of chats: what Tab completes is the caller's.

   The terminal is in raw mode only while a line is read. The text may have several lines: Enter ends it, Alt-Enter and Ctrl-J
   begin a new line, and what is pasted (bracketed paste) is inserted as it is. After each key all of it is drawn anew: text
   that is longer than the screen scrolls with the cursor. On a terminal without cursor movement (TERM=dumb, or none) keys are
   echoed, and only the end can be edited. */

#ifndef EDITOR_MOST
#define EDITOR_MOST (1 << 20)              /* bytes of a text: all of it is looked at after each key */
#endif

enum editor_end { EDITOR_LINE, EDITOR_CANCELLED, EDITOR_CLOSED };     /* Enter; Ctrl-C; Ctrl-D on nothing, or no terminal */

/* Keys beyond the 256 bytes. KEY_ALT + c: Alt with c. */
enum { KEY_LEFT = 256, KEY_RIGHT, KEY_UP, KEY_DOWN, KEY_HOME, KEY_END, KEY_DELETE, KEY_WORD_LEFT, KEY_WORD_RIGHT, KEY_PASTE,
       KEY_NONE, KEY_CLOSED, KEY_RESIZED, KEY_ALT };

typedef struct editor {
    bytes text, killed, draft;             /* draft: what was typed before history was looked at */
    bytes start;                           /* what the next message begins with */
    size_t at;                             /* the cursor: a byte of text where a character begins */
    history history;
    size_t shown;                          /* the message of history that is edited; their number: a new one */
    int input, dumb, row;                  /* row: of the cursor, from the first row drawn */
    int unread;                            /* 1 + a byte that was read too early; 0: none */
    int coloured;                          /* the prompt is */
    int ahead;                             /* bytes typed before the terminal was in raw mode: Enter is a line feed there */
    FILE *out;
    struct termios before;
    /* Completes e->text at e->at; NULL: nothing does. */
    void (*complete)(struct editor *e);
} editor;

/* ---- Drawing ------------------------------------------------------------------------------------------------- */

static struct winsize screen_size(const editor *e) {
    struct winsize size = {24, 80, 0, 0};
    if (ioctl(fileno(e->out), TIOCGWINSZ, &size) || size.ws_col < 8 || size.ws_row < 2) size.ws_col = 80, size.ws_row = 24;
    return size;
}

/* The place where drawing is: a row and a column from the beginning, and the rows that are on the screen. */
typedef struct pen { FILE *out; int row, column, width, first, last, coloured; } pen;

static void pen_new_row(pen *p) {
    if (p->out && p->row >= p->first && p->row < p->last) fputs("\r\n", p->out);
    p->row++;
    p->column = 0;
}

static void pen_draw(pen *p, const char *drawn, int width) {
    if (p->column + width > p->width) pen_new_row(p);
    if (p->out && p->row >= p->first && p->row <= p->last) fputs(drawn, p->out);
    p->column += width;
}

/* Draws n bytes of text. A pen without a place to draw only moves. */
static void pen_bytes(pen *p, const char *text, size_t n) {
    char drawn[16];
    int width;
    for (size_t at = 0; at < n;) {
        if (text[at] == '\n') {
            pen_new_row(p);
            pen_draw(p, "  ", 2);
            at++;
            continue;
        }
        at += character_look(text + at, n - at, drawn, &width);
        pen_draw(p, drawn, width);
    }
}

/* Draws the prompt and the first n bytes of the text. */
static void pen_text(pen *p, const char *prompt, const bytes *text, size_t n) {
    int coloured = p->out && p->coloured && p->first == 0;  /* it is on the first row */
    if (coloured) fputs("\033[1;36m", p->out);
    pen_bytes(p, prompt, strlen(prompt));
    if (coloured) fputs("\033[0m", p->out);
    pen_bytes(p, text->data, n);
    if (p->column == p->width) pen_new_row(p);
}

/* The beginning of the character that the cursor stands on: bytes typed one by one may have become one around it. */
static size_t character_at(const editor *e) {
    size_t at = 0, length;
    while (at < e->at) {
        first_character(e->text.data + at, e->text.size - at, &length);
        if (at + length > e->at) break;
        at += length;
    }
    return at;
}

static void editor_draw(editor *e, const char *prompt) {
    struct winsize size = screen_size(e);
    pen cursor = {.width = size.ws_col}, end = cursor;
    pen_text(&cursor, prompt, &e->text, character_at(e));
    pen_text(&end, prompt, &e->text, e->text.size);
    if (e->row) fprintf(e->out, "\033[%dA", e->row);
    fputs("\r\033[J", e->out);
    pen draw = {.out = e->out, .row = 0, .column = 0, .width = size.ws_col,
                .first = cursor.row >= size.ws_row ? cursor.row - size.ws_row + 1 : 0, .last = end.row, .coloured = e->coloured};
    if (draw.last > draw.first + size.ws_row - 1) draw.last = draw.first + size.ws_row - 1;
    pen_text(&draw, prompt, &e->text, e->text.size);
    if (draw.last > cursor.row) fprintf(e->out, "\033[%dA", draw.last - cursor.row);
    fputc('\r', e->out);
    if (cursor.column) fprintf(e->out, "\033[%dC", cursor.column);
    e->row = cursor.row - draw.first;
    fflush(e->out);
}

/* Leaves the text on the screen, the cursor after it. */
static void editor_leave(editor *e, const char *prompt) {
    e->at = e->text.size;
    if (!e->dumb) editor_draw(e, prompt);
    fputs("\r\n", e->out);
    fflush(e->out);
    e->row = 0;
}

/* ---- Keys ---------------------------------------------------------------------------------------------------- */

static void on_resize(int signal) {
    (void)signal;
}

/* A byte, or a key: closed, resized (or another signal), none within `wait` milliseconds, below 1000; -1: for ever. SIGINT
   counts as Ctrl-C: it is blocked but while ppoll waits, so that none is missed between looking at the flag and waiting. */
static int editor_byte(editor *e, int wait) {
    if (e->unread) {
        int byte = e->unread - 1;
        e->unread = 0;
        return byte;
    }
    struct pollfd input = {e->input, POLLIN, 0};
    struct timespec limit = {0, wait * 1000000L};
    unsigned char byte;
    sigset_t interrupt, before;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, &before);
    int ready = interrupted ? -1 : ppoll(&input, 1, wait < 0 ? NULL : &limit, &before);
    int key = interrupted ? 3 : ready < 0 ? KEY_RESIZED : ready == 0 ? KEY_NONE : KEY_CLOSED;
    if (key == KEY_CLOSED && read(e->input, &byte, 1) == 1) key = byte;
    interrupted = 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    return key;
}

/* The key of an escape sequence after ESC [ or ESC O. */
static int sequence_key(const char *parameters, int final) {
    int number = atoi(parameters), modified = strchr(parameters, ';') != NULL;
    switch (final) {
        case 'A': return KEY_UP;
        case 'B': return KEY_DOWN;
        case 'C': return modified ? KEY_WORD_RIGHT : KEY_RIGHT;
        case 'D': return modified ? KEY_WORD_LEFT : KEY_LEFT;
        case 'H': return KEY_HOME;
        case 'F': return KEY_END;
        case '~':
            return number == 1 || number == 7 ? KEY_HOME : number == 4 || number == 8 ? KEY_END : number == 3 ? KEY_DELETE
                 : number == 200 ? KEY_PASTE : KEY_NONE;
        default: return KEY_NONE;
    }
}

static int editor_key(editor *e) {
    enum { ESCAPE = 27, SEQUENCE_WAIT = 50 };  /* the second: milliseconds until the next byte of a sequence */
    char parameters[16] = "";
    size_t n = 0;
    int c = editor_byte(e, -1);
    if (c != ESCAPE) return c;
    do c = editor_byte(e, SEQUENCE_WAIT);  /* some terminals send Alt as an ESC before the ESC of a key */
    while (c == ESCAPE);
    if (c > 255) return KEY_NONE;
    if (c != '[' && c != 'O') return KEY_ALT + c;
    while ((c = editor_byte(e, SEQUENCE_WAIT)) < 0x40)
        if (n + 1 < sizeof parameters) parameters[n++] = (char)c, parameters[n] = 0;
    return c > 255 ? KEY_NONE : sequence_key(parameters, c);
}

/* Raw mode on or off. Lines end with CR; signals are characters. */
static int editor_raw(editor *e, int on) {
    struct termios raw;
    if (!on) {
        if (!e->dumb) fputs("\033[?2004l", e->out);
        fflush(e->out);
        return tcsetattr(e->input, TCSADRAIN, &e->before);
    }
    if (tcgetattr(e->input, &e->before)) return -1;
    raw = e->before;
    raw.c_iflag &= ~(tcflag_t)(ICRNL | INLCR | IXON | ISTRIP);
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG | IEXTEN);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    if (tcsetattr(e->input, TCSADRAIN, &raw)) return -1;
    if (!e->dumb) fputs("\033[?2004h", e->out);
    return 0;
}

/* Ctrl-Z: back to the shell, with its terminal; drawn anew below what it showed. */
static void editor_suspend(editor *e) {
    fputs("\r\n", e->out);
    editor_raw(e, 0);
    raise(SIGTSTP);
    editor_raw(e, 1);
    e->row = 0;
}

/* ---- Editing ------------------------------------------------------------------------------------------------- */

/* Inserts at the cursor; 0 when it is refused, for its size. */
static int editor_insert(editor *e, const char *data, size_t size) {
    if (size > EDITOR_MOST - e->text.size || grow(&e->text, e->text.size + size + 1)) return 0;
    memmove(e->text.data + e->at + size, e->text.data + e->at, e->text.size - e->at);
    memcpy(e->text.data + e->at, data, size);
    e->text.size += size;
    e->at += size;
    return 1;
}

/* Removes bytes from..upto, which hold the cursor or touch it; kept: they can be put back by Ctrl-Y. */
static void editor_remove(editor *e, size_t from, size_t upto, int kept) {
    if (kept && from < upto) {
        e->killed.size = 0;
        append(&e->killed, e->text.data + from, upto - from);
    }
    memmove(e->text.data + from, e->text.data + upto, e->text.size - upto);
    e->text.size -= upto - from;
    e->at = from;
}

static void editor_set(editor *e, const char *text, size_t size) {
    e->text.size = e->at = 0;
    editor_insert(e, text, size);
}

/* A paste: all that the terminal sends between its marks is text, line feeds as well. More than a text may have is read, and
   refused whole, with a bell. */
static void editor_paste(editor *e) {
    static const char end[] = "\033[201~";
    bytes pasted = {NULL, 0, 0};
    int refused = 0;
    for (int c; (c = editor_byte(e, 999)) < 256;) {
        char one = (char)c;
        if (append(&pasted, &one, 1)) break;
        if (pasted.size >= 6 && memcmp(pasted.data + pasted.size - 6, end, 6) == 0) {
            pasted.size -= 6;
            break;
        }
        if (pasted.size <= EDITOR_MOST) continue;
        refused = 1;
        memmove(pasted.data, pasted.data + pasted.size - 5, 5);
        pasted.size = 5;
    }
    if (refused) pasted.size = 0;
    size_t n = 0;
    for (size_t i = 0; i < pasted.size; i++) {             /* CR LF and CR become LF */
        if (pasted.data[i] == '\r' && i + 1 < pasted.size && pasted.data[i + 1] == '\n') continue;
        pasted.data[n++] = pasted.data[i] == '\r' ? '\n' : pasted.data[i];
    }
    if (refused || (n && !editor_insert(e, pasted.data, n))) fputc('\a', e->out);
    free(pasted.data);
}

/* A typed character: its first byte has been read. */
static void editor_type(editor *e, int first) {
    char character[4] = {(char)first};
    int n = 1, length = first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    for (int c; n < length && (c = editor_byte(e, 500)) < 256;) {
        if ((c & 0xc0) != 0x80) {          /* no UTF-8: that is the next key */
            e->unread = c + 1;
            break;
        }
        character[n++] = (char)c;
    }
    editor_insert(e, character, (size_t)n);
}

/* Shows message i of the history, or again what was typed. */
static void editor_show(editor *e, size_t i) {
    if (i > history_count(&e->history)) return;
    if (e->shown == history_count(&e->history)) {
        e->draft.size = 0;
        append(&e->draft, e->text.data ? e->text.data : "", e->text.size);
    }
    e->shown = i;
    if (i == history_count(&e->history)) editor_set(e, e->draft.data, e->draft.size);
    else editor_set(e, history_at(&e->history, i), strlen(history_at(&e->history, i)));
}

static size_t line_begin(const bytes *b, size_t at) {
    while (at > 0 && b->data[at - 1] != '\n') at--;
    return at;
}

static size_t line_end(const bytes *b, size_t at) {
    while (at < b->size && b->data[at] != '\n') at++;
    return at;
}

/* Up and down: a line of the text, and beyond its first and last one the history. */
static void editor_vertical(editor *e, int down) {
    size_t begin = line_begin(&e->text, e->at), end = line_end(&e->text, e->at), column = e->at - begin;
    if (down ? end == e->text.size : begin == 0) {
        if (down || e->shown > 0) editor_show(e, down ? e->shown + 1 : e->shown - 1);
        return;
    }
    size_t to = down ? end + 1 : line_begin(&e->text, begin - 1), last = line_end(&e->text, to);
    e->at = to + column < last ? to + column : last;
    while (e->at > to && (e->text.data[e->at] & 0xc0) == 0x80) e->at--;
}

/* Ctrl-R: looks back in the history for what is typed, Ctrl-R again for an older one. Ctrl-C and Ctrl-G leave it as it was; any
   other key is returned, for what was found. */
static int editor_search(editor *e) {
    char wanted[64] = "", prompt[96];
    size_t n = 0, found = history_count(&e->history), from;
    for (;;) {
        snprintf(prompt, sizeof prompt, "(search %s) ", wanted);
        editor_draw(e, prompt);
        int key = editor_key(e);
        if (key == KEY_RESIZED) continue;
        if (key == 3 || key == 'G' - '@') editor_show(e, history_count(&e->history));
        if (key == 3 || key == 'G' - '@') return KEY_NONE;
        from = history_count(&e->history);
        if (key == 'R' - '@') from = found;
        else if ((key == 127 || key == 8) && n > 0) wanted[--n] = 0;
        else if (key >= ' ' && key < 256 && key != 127 && n + 1 < sizeof wanted) wanted[n++] = (char)key, wanted[n] = 0;
        else return key;
        while (from > 0 && !strstr(history_at(&e->history, from - 1), wanted)) from--;
        if (from > 0) editor_show(e, found = from - 1);
    }
}

/* Moves, removes, inserts. What ends the line is the caller's. */
static void editor_command(editor *e, int key) {
    bytes *t = &e->text;
    switch (key) {
        case KEY_LEFT: case 'B' - '@': if (e->at > 0) e->at = character_before(t, e->at); break;
        case KEY_RIGHT: case 'F' - '@': if (e->at < t->size) e->at = character_after(t, e->at); break;
        case KEY_HOME: case 'A' - '@': e->at = line_begin(t, e->at); break;
        case KEY_END: case 'E' - '@': e->at = line_end(t, e->at); break;
        case KEY_WORD_LEFT: case KEY_ALT + 'b': e->at = word_before(t, e->at); break;
        case KEY_WORD_RIGHT: case KEY_ALT + 'f': e->at = word_after(t, e->at); break;
        case KEY_UP: case 'P' - '@': editor_vertical(e, 0); break;
        case KEY_DOWN: case 'N' - '@': editor_vertical(e, 1); break;
        case 127: case 8: if (e->at > 0) editor_remove(e, character_before(t, e->at), e->at, 0); break;
        case KEY_DELETE: case 'D' - '@': if (e->at < t->size) editor_remove(e, e->at, character_after(t, e->at), 0); break;
        case 'W' - '@': case KEY_ALT + 127: editor_remove(e, word_before(t, e->at), e->at, 1); break;
        case KEY_ALT + 'd': editor_remove(e, e->at, word_after(t, e->at), 1); break;
        case 'U' - '@': editor_remove(e, line_begin(t, e->at), e->at, 1); break;
        case 'K' - '@': editor_remove(e, e->at, line_end(t, e->at), 1); break;
        case 'Y' - '@': editor_insert(e, e->killed.data ? e->killed.data : "", e->killed.size); break;
        case 'Z' - '@': editor_suspend(e); break;
        case 'L' - '@': fputs("\033[H\033[2J", e->out), e->row = 0; break;
        case '\t': if (e->complete) e->complete(e); break;
        case '\n': case KEY_ALT + '\r': editor_insert(e, "\n", 1); break;
        case KEY_PASTE: editor_paste(e); break;
        default: if (key >= ' ' && key < 256) editor_type(e, key);
    }
}

/* Without cursor movement: shows the text from a byte on. */
static void editor_echo_from(editor *e, size_t at) {
    char drawn[16];
    int width;
    for (; at < e->text.size; fputs(drawn, e->out)) at += character_look(e->text.data + at, e->text.size - at, drawn, &width);
}

/* Without cursor movement: echoes what is typed at the end, takes back the last character, or all of it. */
static void editor_echo(editor *e, int key, const char *prompt) {
    char drawn[16];
    int width;
    size_t before = e->text.size;
    if (key == 'U' - '@') {
        e->text.size = e->at = 0;
        fprintf(e->out, "\r\n%s", prompt);
    } else if ((key == 127 || key == 8) && before) {
        size_t from = character_before(&e->text, before);
        character_look(e->text.data + from, before - from, drawn, &width);
        editor_remove(e, from, before, 0);
        while (width--) fputs("\b \b", e->out);
    } else if (key == '\t' || (key >= ' ' && key < 256 && key != 127)) {
        if (key == '\t') editor_insert(e, "\t", 1);
        else editor_type(e, key);
        editor_echo_from(e, before);
    }
    fflush(e->out);
}

/* ---- Reading a message --------------------------------------------------------------------------------------- */

/* 1: more input is there, so that drawing can wait. */
static int editor_pending(const editor *e) {
    struct pollfd input = {e->input, POLLIN, 0};
    return poll(&input, 1, 0) > 0;
}

static enum editor_end editor_loop(editor *e, const char *prompt) {
    if (e->dumb) fputs(prompt, e->out), editor_echo_from(e, 0), fflush(e->out);
    for (;;) {
        if (!e->dumb && !editor_pending(e)) editor_draw(e, prompt);
        int key = editor_key(e);
        if (key == '\n' && e->ahead > 0) key = '\r';
        if (key < 256 && e->ahead > 0) e->ahead--;
        if (key == 'R' - '@' && !e->dumb) key = editor_search(e);
        if (key == '\r' || (e->dumb && key == '\n')) return EDITOR_LINE;
        if (key == 3) return EDITOR_CANCELLED;
        if (key == KEY_CLOSED || (key == 'D' - '@' && !e->text.size)) return EDITOR_CLOSED;
        if (e->dumb) editor_echo(e, key, prompt);
        else editor_command(e, key);
    }
}

/* Reads a message into e->text, zero-terminated, which begins with e->start; after EDITOR_CANCELLED it holds what had been
   typed. */
static enum editor_end editor_read(editor *e, const char *prompt) {
    struct sigaction resize, before;
    memset(&resize, 0, sizeof resize);
    resize.sa_handler = on_resize;
    e->text.size = e->at = 0;
    e->row = 0;
    e->shown = history_count(&e->history);
    if (grow(&e->text, 1) || editor_raw(e, 1)) return EDITOR_CLOSED;
    if (e->start.size) editor_insert(e, e->start.data, e->start.size);
    e->start.size = 0;
    if (ioctl(e->input, FIONREAD, &e->ahead)) e->ahead = 0;
    sigaction(SIGWINCH, &resize, &before);
    enum editor_end end = editor_loop(e, prompt);
    editor_leave(e, prompt);
    sigaction(SIGWINCH, &before, NULL);
    editor_raw(e, 0);
    e->text.data[e->text.size] = 0;
    return end;
}

static void editor_open(editor *e, FILE *out, int keeps_history) {
    const char *term = getenv("TERM"), *plain = getenv("NO_COLOR");
    memset(e, 0, sizeof *e);
    e->input = STDIN_FILENO;
    e->out = out;
    e->dumb = !term || !*term || strcmp(term, "dumb") == 0;
    e->coloured = !plain || !*plain;
    history_open(&e->history, keeps_history);
}

static void editor_close(editor *e) {
    history_close(&e->history);
    free(e->text.data);
    free(e->killed.data);
    free(e->draft.data);
    free(e->start.data);
}
