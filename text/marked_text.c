/* text/marked_text.c: text, and which of it is from outside. Whoever writes a prompt writes it with this, so that what is from
   outside stays plain text when it is encoded. It knows nothing of what the text says. */

/* Text, and which of it is from outside: text_range, as tokenizer_encode takes them. */
typedef struct marked_text {
    buf text, outside;
} marked_text;

static void marked_free(marked_text *m) {
    buf_free(&m->text);
    buf_free(&m->outside);
}

static int marked_failed(const marked_text *m) {
    return m->text.failed | m->outside.failed;
}

static const text_range *outside_of(const marked_text *m, size_t *count) {
    *count = m->outside.size / sizeof(text_range);
    return (const text_range *)(const void *)m->outside.data;
}

static void put_words(marked_text *out, const char *words) {
    buf_text(&out->text, words);
}

static void mark_outside(marked_text *out, size_t begin, size_t end) {
    text_range range = {begin, end};
    if (begin < end) buf_add(&out->outside, &range, sizeof range);
}

static void put_outside(marked_text *out, slice s) {
    size_t begin = out->text.size;
    buf_slice(&out->text, s);
    mark_outside(out, begin, out->text.size);
}

/* Appends a slice of `from` with its marks. */
static void put_marked(marked_text *out, const marked_text *from, slice s) {
    size_t count, to = out->text.size, begin = s.n ? (size_t)(s.p - from->text.data) : 0, end = begin + s.n;
    const text_range *r = outside_of(from, &count);
    buf_slice(&out->text, s);
    for (size_t i = 0; i < count; i++) {
        size_t a = r[i].begin > begin ? r[i].begin : begin, b = r[i].end < end ? r[i].end : end;
        if (a < b) mark_outside(out, to + a - begin, to + b - begin);
    }
}
