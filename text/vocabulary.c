/* text/vocabulary.c: the vocabulary in alphabetical order, so that tokens which begin alike are tried together. It knows the tokenizer's
   tokens, and nothing of what they are tried for. */

enum { WORD_MAX = 48 };                    /* bytes: longer tokens are never chosen under a mask */

typedef struct word {
    int32_t id;
    uint8_t size, same;                    /* bytes; so many of them are those of the word before */
    uint8_t characters;                    /* 0: odd: not text as it stands in a JSON string, or with a < or a line separator */
    const char *bytes;
} word;

typedef struct vocabulary {
    word *words, *odd;                     /* all words; the odd ones */
    int count, odd_count;
} vocabulary;

static int word_order(const void *a, const void *b) {
    const word *x = (const word *)a, *y = (const word *)b;
    int order = memcmp(x->bytes, y->bytes, x->size < y->size ? x->size : y->size);
    return order ? order : (int)x->size - (int)y->size;
}

static int plain_length(const char *bytes, size_t size) {
    int count = 0;
    for (size_t i = 0; i < size; count++) {
        uint32_t c;
        int n = utf8_decode(bytes + i, size - i, &c);
        if (n <= 0 || c < 0x20 || c == '"' || c == '\\' || c == '<' || c == 0x2028 || c == 0x2029) return 0;
        i += (size_t)n;
    }
    return count;
}

static void words_sort(word *words, int count) {
    qsort(words, (size_t)count, sizeof *words, word_order);
    for (int i = 1; i < count; i++)
        while (words[i].same < words[i - 1].size && words[i].same < words[i].size &&
               words[i].bytes[words[i].same] == words[i - 1].bytes[words[i].same])
            words[i].same++;
}

static void vocabulary_free(vocabulary *v) {
    if (!v) return;
    free(v->words);
    free(v->odd);
    free(v);
}

/* All tokens but control tokens and the `end_count` that end an answer. NULL: out of memory. */
static vocabulary *vocabulary_new(const tokenizer *t, const int32_t *ends, size_t end_count) {
    size_t most = (size_t)tokenizer_vocab(t);
    vocabulary *v = (vocabulary *)calloc(1, sizeof *v);
    if (!v) return NULL;
    v->words = (word *)malloc(most * sizeof *v->words + 1);
    v->odd = (word *)malloc(most * sizeof *v->odd + 1);
    if (!v->words || !v->odd) {
        vocabulary_free(v);
        return NULL;
    }
    for (int32_t id = 0; id < (int32_t)most; id++) {
        size_t size = 0;
        int is_end = 0;
        const char *bytes = tokenizer_token(t, id, &size);
        for (size_t i = 0; i < end_count; i++) is_end |= ends[i] == id;
        for (size_t i = 0; bytes && i < size && size <= WORD_MAX; i++) is_end |= (unsigned char)bytes[i] >= 0xf8;       /* no text has it */
        if (!bytes || !size || size > WORD_MAX || is_end || tokenizer_is_added(t, id)) continue;
        word w = {.id = id, .size = (uint8_t)size, .same = 0, .characters = (uint8_t)plain_length(bytes, size), .bytes = bytes};
        v->words[v->count++] = w;
        if (!w.characters) v->odd[v->odd_count++] = w;
    }
    words_sort(v->words, v->count);
    words_sort(v->odd, v->odd_count);
    return v;
}
