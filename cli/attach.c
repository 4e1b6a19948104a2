/* cli/attach.c: text and image files that go with a message: after /read, or named in it by @FILE. It knows files and the tokenizer. */

/* What is added to a message, and to its images; image_tokens: of one at most. */
typedef struct attachments { bytes *text; pictures *images; int image_tokens; } attachments;

/* The first byte that is no UTF-8 text, or zero; `size` if it is text. */
static size_t first_binary(const char *text, size_t size) {
    size_t length;
    for (size_t at = 0; at < size; at += length)
        if (!text[at] || first_character(text + at, size - at, &length) < 0) return at;
    return size;
}

/* Adds a file to a message: a text with its name, as documents are shown to models, or an image; says how long it is. Not 0: it has
   been said why not. */
static int attach_file(const mote_model *model, const char *name, FILE *out, const attachments *all) {
    bytes text = {NULL, 0, 0}, ids = {NULL, 0, 0}, *to = all->text;
    char size[32];
    size_t count = 0;
    FILE *in = open_input(name, 0);
    if (!in) return input_failure();
    int code = read_text(in, name, &text);
    fclose(in);
    size_t wrong = code ? 0 : first_binary(text.data, text.size);
    if (!code && wrong < text.size && is_picture(text.data, text.size)) return add_picture(model, name, &text, all->image_tokens, out, all->images);
    if (!code && wrong < text.size) code = complain(EXIT_FAILURE, "%s: not a text: byte %zu is no UTF-8", name, wrong);
    if (!code && text.size > TEXT_MAX - to->size)
        code = complain(EXIT_FAILURE, "%s: with the texts before it longer than %d MiB", name, TEXT_MAX >> 20);
    if (!code) code = tokenize(model, text.data, text.size, &ids, &count);
    size_t ended = !code && text.size && text.data[text.size - 1] == '\n';
    if (!code) code = append(to, name, strlen(name)) || append(to, ":\n```\n", 6) || append(to, text.data, text.size) ||
                      append(to, &"\n```\n\n"[ended], 6 - ended);
    human((double)text.size, "B", size);
    if (!code) show_format(out, "[read %s: %s, %zu tokens]\n", name, size, count);
    free(text.data);
    free(ids.data);
    return code;
}

enum { ATTACH_ALL, ATTACH_THERE, ATTACH_READABLE }; /* each name must be a file's; those that are must be readable; none must */

/* Adds the files that a message names: words that begin with @; a comma or the like after the name is not part of it. */
static int attach_named(const mote_model *model, const char *message, FILE *out, int which, const attachments *to) {
    char name[PATH_MAX];
    for (const char *at = message; (at = strchr(at, '@')); at++) {
        size_t n = strcspn(at + 1, " \t\n");
        if ((at > message && !strchr(" \t\n", at[-1])) || !n || n >= sizeof name) continue;
        memcpy(name, at + 1, n);
        name[n] = 0;
        while (n && access(name, F_OK) && strchr(",.;:!?)\"'", name[n - 1])) name[--n] = 0;
        if (!n || (which != ATTACH_ALL && !is_regular(name))) continue;
        int code = attach_file(model, name, out, to);
        if (code && which != ATTACH_READABLE) return code;
    }
    return 0;
}
