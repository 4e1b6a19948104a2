// serve/lexicon.c: the vocabulary in alphabetical order, so that tokens which begin alike are tried together. It knows the
// model's tokens, and nothing of what they are tried for.

enum { WORD_MOST = 48 };                   // bytes: longer tokens are never chosen under a mask

typedef struct word {
    int32_t id;
    uint16_t size, same;                   // bytes; so many of them are those of the word before
    const char *bytes;
} word;

typedef struct lexicon {
    int vocab;
    word *words, *odd;                     // all words; those that a JSON string cannot hold whole and unescaped
    int count, odd_count;
    int32_t *ends;                         // tokens that end an answer
    int end_count;
} lexicon;

static int word_order(const void *a, const void *b) {
    const word *x = (const word *)a, *y = (const word *)b;
    int order = memcmp(x->bytes, y->bytes, x->size < y->size ? x->size : y->size);
    return order ? order : (int)x->size - (int)y->size;
}

// Is the token's text no text but a tag? Such tokens are found in trusted text only.
static int is_control(const mote_model *model, int32_t id, const char *bytes, size_t size) {
    int32_t trusted[4], plain[WORD_MOST];
    size_t n = 0, m = 0;
    if (!memchr("<[", bytes[0], 2)) return 0;
    if (mote_tokenize(model, bytes, size, 1, trusted, 4, &n, NULL) || n != 1 || trusted[0] != id) return 0;
    return mote_tokenize(model, bytes, size, 0, plain, WORD_MOST, &m, NULL) || m != 1 || plain[0] != id;
}

static int is_plain_text(const char *bytes, size_t size) {
    for (size_t i = 0; i < size;) {
        uint32_t c;
        int n = utf8_decode(bytes + i, size - i, &c);
        if (n <= 0 || c < 0x20 || c == '"' || c == '\\') return 0;
        i += (size_t)n;
    }
    return 1;
}

static void words_sort(word *words, int count) {
    qsort(words, (size_t)count, sizeof *words, word_order);
    for (int i = 1; i < count; i++)
        while (words[i].same < words[i - 1].size && words[i].same < words[i].size &&
               words[i].bytes[words[i].same] == words[i - 1].bytes[words[i].same])
            words[i].same++;
}

static void lexicon_close(lexicon *x) {
    free(x->words);
    free(x->odd);
    free(x->ends);
}

static int lexicon_open(lexicon *x, const mote_model *model) {
    memset(x, 0, sizeof *x);
    x->vocab = mote_model_info(model)->vocab_size;
    x->words = (word *)calloc((size_t)x->vocab, sizeof *x->words);
    x->odd = (word *)calloc((size_t)x->vocab, sizeof *x->odd);
    x->ends = (int32_t *)calloc((size_t)x->vocab, sizeof *x->ends);
    if (!x->words || !x->odd || !x->ends) return 0;
    for (int32_t id = 0; id < x->vocab; id++) {
        size_t size = 0;
        const char *bytes = mote_token_bytes(model, id, &size);
        if (mote_is_end(model, id)) x->ends[x->end_count++] = id;
        else if (bytes && size && size <= WORD_MOST && !is_control(model, id, bytes, size)) {
            word w = {id, (uint16_t)size, 0, bytes};
            x->words[x->count++] = w;
            if (!is_plain_text(bytes, size)) x->odd[x->odd_count++] = w;
        }
    }
    words_sort(x->words, x->count);
    words_sort(x->odd, x->odd_count);
    return 1;
}
