/* cli/characters.c: characters and words of a line that is edited: how they are drawn, where the next one is. It knows no keys and no
   screen. */

/* A character as it is drawn: `drawn`, of up to 15 bytes, *width columns. Returns its bytes in text. */
static size_t character_look(const char *text, size_t size, char *drawn, int *width) {
    size_t length;
    int32_t c = first_character(text, size, &length);
    *width = c < 0 ? 4 : character_width(c);
    if (c < 0) snprintf(drawn, 16, "<%02X>", (unsigned char)text[0]);
    else if (c == '\t') *width = 4, strcpy(drawn, "    ");
    else if (steers_terminal(c)) *width = snprintf(drawn, 16, c < 0x80 ? "^%c" : "<U+%04X>", c < 0x80 ? c ^ 0x40 : c);
    else snprintf(drawn, 16, "%.*s", (int)length, text);
    return length;
}

/* The character before byte `at` begins there; with what combines with it. */
static size_t character_before(const bytes *b, size_t at) {
    size_t length;
    do {
        at--;
        while (at > 0 && (b->data[at] & 0xc0) == 0x80) at--;
    } while (at > 0 && character_width(first_character(b->data + at, b->size - at, &length)) == 0);
    return at;
}

static size_t character_after(const bytes *b, size_t at) {
    size_t length;
    do {
        first_character(b->data + at, b->size - at, &length);
        at += length;
    } while (at < b->size && character_width(first_character(b->data + at, b->size - at, &length)) == 0);
    return at;
}

static int is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t';
}

static size_t word_before(const bytes *b, size_t at) {
    while (at > 0 && is_space(b->data[at - 1])) at--;
    while (at > 0 && !is_space(b->data[at - 1])) at--;
    return at;
}

static size_t word_after(const bytes *b, size_t at) {
    while (at < b->size && is_space(b->data[at])) at++;
    while (at < b->size && !is_space(b->data[at])) at++;
    return at;
}
