// cli/wrap.c: text as it streams onto a terminal, with lines broken between words. A word is held back until it is known to be
// whole. Lines between ``` are left as they are. It knows columns, and nothing of answers.

typedef struct wrapper {
    int column, code, words;               // columns and words of this line so far; code: between ```
    int columns;                           // of the word that is held back
    size_t size;
    char word[512];
} wrapper;

static int terminal_columns(FILE *out) {
    struct winsize size = {0, 0, 0, 0};
    return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// Shows the word that is held back, on a new line if it does not fit into this one.
static void wrap_flush(wrapper *w, FILE *out) {
    if (!w->size) return;
    if (!w->words && w->size >= 3 && memcmp(w->word, "```", 3) == 0) w->code = !w->code;
    if (!w->code && w->column > 0 && w->column + w->columns > terminal_columns(out)) {
        putc('\n', out);
        w->column = 0;
    }
    show(out, w->word, w->size);
    w->column += w->columns;
    w->words++;
    w->size = 0;
    w->columns = 0;
}

static void wrap_text(wrapper *w, FILE *out, const char *text, size_t size) {
    size_t length;
    for (size_t at = 0; at < size; at += length) {
        int32_t c = first_character(text + at, size - at, &length);
        int width = c < 0 ? 4 : character_width(c);
        if (c == '\n' || c == ' ' || c == '\t') {
            wrap_flush(w, out);
            // A space at the end of a full line would begin the next one.
            if (c == '\n' || w->code || !w->words || w->column < terminal_columns(out)) show(out, text + at, 1);
            w->column = c == '\n' ? 0 : w->column + (c == '\t' ? 8 - w->column % 8 : 1);
            if (c == '\n') w->words = 0;
            continue;
        }
        if (w->size + length > sizeof w->word) wrap_flush(w, out);
        memcpy(w->word + w->size, text + at, length);
        w->size += length;
        w->columns += width;
        if (width == 2) wrap_flush(w, out);                 // scripts without spaces break anywhere
    }
}
