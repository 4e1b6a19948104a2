/* cli/wrap.c: text as it streams onto a terminal, with lines broken between words. A word is held back until it is known to be
   whole. Lines between ``` are left as they are. It knows columns, and nothing of answers. */

/* Columns that a character takes: 0 for combining marks and joiners, 2 for East Asian wide ones and emoji. */
static int character_width(int32_t c) {
    static const struct { int32_t from, upto; } none[] = {
        {0x300, 0x36f}, {0x483, 0x489}, {0x591, 0x5bd}, {0x610, 0x61a}, {0x64b, 0x65f}, {0x6d6, 0x6dc}, {0x900, 0x902},
        {0x93c, 0x93c}, {0x941, 0x948}, {0xe31, 0xe31}, {0xe34, 0xe3a}, {0xe47, 0xe4e}, {0x1ab0, 0x1aff}, {0x1dc0, 0x1dff},
        {0x200b, 0x200f}, {0x2060, 0x2064}, {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}, {0xfeff, 0xfeff},
        {0x1f3fb, 0x1f3ff}, {0xe0100, 0xe01ef}};
    static const struct { int32_t from, upto; } wide[] = {
        {0x1100, 0x115f}, {0x231a, 0x231b}, {0x23e9, 0x23ec}, {0x25fd, 0x25fe}, {0x2614, 0x2615}, {0x26a1, 0x26a1},
        {0x2705, 0x2705}, {0x2728, 0x2728}, {0x274c, 0x274c}, {0x2753, 0x2755}, {0x2795, 0x2797}, {0x2b50, 0x2b50},
        {0x2e80, 0x303e}, {0x3041, 0x33ff}, {0x3400, 0x4dbf}, {0x4e00, 0x9fff}, {0xa000, 0xa4cf}, {0xa960, 0xa97c},
        {0xac00, 0xd7a3}, {0xf900, 0xfaff}, {0xfe30, 0xfe6f}, {0xff00, 0xff60}, {0xffe0, 0xffe6}, {0x1f300, 0x1f64f},
        {0x1f680, 0x1f6ff}, {0x1f900, 0x1f9ff}, {0x1fa70, 0x1faff}, {0x20000, 0x3fffd}};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
        if (c >= none[i].from && c <= none[i].upto) return 0;
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++)
        if (c >= wide[i].from && c <= wide[i].upto) return 2;
    return 1;
}

typedef struct wrapper {
    int column, code, words;               /* columns and words of this line so far; code: between ``` */
    int columns;                           /* of the word that is held back */
    size_t size;
    char word[512];
} wrapper;

static int terminal_columns(FILE *out) {
    struct winsize size = {0, 0, 0, 0};
    return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* Shows the word that is held back, on a new line if it does not fit into this one. */
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
            /* A space at the end of a full line would begin the next one. */
            if (c == '\n' || w->code || !w->words || w->column < terminal_columns(out)) show(out, text + at, 1);
            w->column = c == '\n' ? 0 : w->column + (c == '\t' ? 8 - w->column % 8 : 1);
            if (c == '\n') w->words = 0;
            continue;
        }
        if (w->size + length > sizeof w->word) wrap_flush(w, out);
        memcpy(w->word + w->size, text + at, length);
        w->size += length;
        w->columns += width;
        if (width == 2) wrap_flush(w, out);                 /* scripts without spaces break anywhere */
    }
}
