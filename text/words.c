/* text/words.c: the pre-tokenizers, which cut text into words. They know classes of characters and the text of each
   pattern, and nothing of tokens, merges or the file that asks for a pattern.

   tokenizer.json gives a regular expression that cuts text into words; merges never cross a cut. There is no regular
   expression engine here: each known expression has a matcher that does what it says, and any other is refused. The
   expressions are ordered alternatives; a matcher returns the end of what the first one that matches at p takes, or p
   when none does. Classes of characters are disjoint bits, so a set like [^\s\p{L}\p{N}] is one mask. */

enum {                                          /* sets */
    SET_NEWLINE = 1 << CLASS_NEWLINE,           /* [\r\n] */
    SET_SPACE = 1 << CLASS_SPACE | SET_NEWLINE, /* \s, the property White_Space */
    SET_CASELESS = 1 << CLASS_LM | 1 << CLASS_LO,
    SET_UPPER = 1 << CLASS_LU | 1 << CLASS_LT | SET_CASELESS,   /* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}] */
    SET_LOWER = 1 << CLASS_LL | SET_CASELESS,                   /* [\p{Ll}\p{Lm}\p{Lo}] */
    SET_L = SET_UPPER | SET_LOWER,
    SET_M = 1 << CLASS_M,
    SET_N = 1 << CLASS_N,
    SET_PS = 1 << CLASS_P | 1 << CLASS_S,
    SET_ALL = (1 << CLASS_EVEN) - 1
};

/* The class bit of the character at p and its length; 0 and 0 at the end. */
static unsigned class_at(const char *p, const char *end, int *n) {
    const char *q = p;
    if (p == end) {
        *n = 0;
        return 0;
    }
    uint32_t cp = utf8_next(&q, end);
    *n = (int)(q - p);
    return char_class(cp);
}

/* The end of the longest run of at most `limit` characters of a set. */
static const char *span(const char *p, const char *end, unsigned set, size_t limit) {
    int n;
    for (; limit && (class_at(p, end, &n) & set); limit--) p += n;
    return p;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d), or without the (?i). Ignoring case, U+017F (long s) is an s. */
static const char *match_contraction(const char *p, const char *end, int ignore_case) {
    char c[2] = {0, 0};
    if (end - p < 2 || *p != '\'') return p;
    if (ignore_case && end - p >= 3 && !memcmp(p + 1, "\xC5\xBF", 2)) return p + 3;
    for (int i = 0; i < 2 && i + 1 < end - p; i++) {
        c[i] = p[i + 1];
        if (ignore_case && c[i] >= 'A' && c[i] <= 'Z') c[i] = (char)(c[i] + 32);
    }
    if (c[0] == 's' || c[0] == 't' || c[0] == 'm' || c[0] == 'd') return p + 2;
    if ((c[0] == 'r' && c[1] == 'e') || (c[0] == 'v' && c[1] == 'e') || (c[0] == 'l' && c[1] == 'l')) return p + 3;
    return p;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ : up to the last line break of the run; else the run but its last character, which the next
   word may begin with; all of it at the end of the text. */
static const char *match_space(const char *p, const char *end, int newlines) {
    const char *last = p, *line = p, *q = p;
    unsigned c;
    for (int n; (c = class_at(q, end, &n)) & SET_SPACE; q += n) {
        last = q;
        if (c & SET_NEWLINE) line = q + n;
    }
    if (newlines && line > p) return line;
    return q < end && last > p ? last : q;
}

/* Qwen2, Qwen3; Llama 3 takes up to three digits; Qwen3.5 has [\p{L}\p{M}] as letters and [^\s\p{L}\p{M}\p{N}] as the rest. */
#define PATTERN_CL100K(digits) \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PATTERN_QWEN2 PATTERN_CL100K("\\p{N}")
#define PATTERN_LLAMA3 PATTERN_CL100K("\\p{N}{1,3}")
#define PATTERN_QWEN35 \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}" \
    "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const char *match_qwen(const char *p, const char *end, unsigned letters, size_t digits) {
    int n;
    unsigned first = class_at(p, end, &n);
    const char *q = match_contraction(p, end, 1);
    if (q > p) return q;
    if (!(first & (SET_NEWLINE | SET_L | SET_N)) && (q = span(p + n, end, letters, SIZE_MAX)) > p + n) return q;
    if (first & letters) return span(p, end, letters, SIZE_MAX);
    if (first & SET_N) return span(p, end, SET_N, digits);
    const char *rest = p + (*p == ' ');
    q = span(rest, end, SET_ALL & ~(SET_SPACE | letters | SET_N), SIZE_MAX);
    if (q > rest) return span(q, end, SET_NEWLINE, SIZE_MAX);
    return match_space(p, end, 1);
}

/* The two word alternatives of GPT-4o, from the optional character before the letters on:
     [upper]*[lower]+(?i:'s|...)?   then   [upper]+[lower]*(?i:'s|...)?     without the contractions in Mistral's Tekken
   where caseless letters and marks are in both sets. The first takes all of [upper]; when no lower case follows, it
   steps back to the last character that is also in [lower], and that one character is its [lower]+. */
static const char *match_cased(const char *p, const char *end, int need_lower, int contractions) {
    const char *q = p, *both = NULL;
    unsigned c;
    for (int n; (c = class_at(q, end, &n)) & (SET_UPPER | SET_M); q += n) {
        if (c & (SET_CASELESS | SET_M)) both = q + n;
    }
    const char *lower = span(q, end, SET_LOWER | SET_M, SIZE_MAX);
    if (need_lower && lower == q) lower = both ? both : p;
    if (lower == p || (!need_lower && q == p)) return p;
    return contractions ? match_contraction(lower, end, 1) : lower;
}

#define PATTERN_SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define PATTERN_CASED(suffix, digits) \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+" suffix "|" \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*" suffix "|" \
    digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define PATTERN_GPT4O PATTERN_CASED(PATTERN_SUFFIX, "\\p{N}{1,3}")
#define PATTERN_TEKKEN PATTERN_CASED("", "\\p{N}")
static const char *match_gpt4o(const char *p, const char *end, int contractions, size_t digits) {
    int n;
    unsigned first = class_at(p, end, &n);
    const char *q;
    for (int need_lower = 1; need_lower >= 0; need_lower--) {
        int prefix = !(first & (SET_NEWLINE | SET_L | SET_N));
        if (prefix && (q = match_cased(p + n, end, need_lower, contractions)) > p + n) return q;
        if ((q = match_cased(p, end, need_lower, contractions)) > p) return q;
    }
    if (first & SET_N) return span(p, end, SET_N, digits);
    const char *rest = p + (*p == ' ');
    q = span(rest, end, SET_ALL & ~(SET_SPACE | SET_L | SET_N), SIZE_MAX);
    if (q == rest) return match_space(p, end, 1);
    while (q < end && (*q == '\r' || *q == '\n' || *q == '/')) q++;
    return q;
}

/* DeepSeek V3 splits three times, each time inside the pieces before: \p{N}{1,3}, then runs of these ranges, then: */
#define PATTERN_DEEPSEEK_N "\\p{N}{1,3}"
#define PATTERN_DEEPSEEK_CJK "[\xE4\xB8\x80-\xE9\xBE\xA5\xE3\x81\x80-\xE3\x82\x9F\xE3\x82\xA0-\xE3\x83\xBF]+"
#define PATTERN_DEEPSEEK \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+" \
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
static const char *match_deepseek(const char *p, const char *end) {
    int n;
    unsigned first = class_at(p, end, &n);
    const char *q = p + 1;
    if (n == 1 && (first & SET_PS)) { /* all ASCII punctuation and symbols are in the list */
        while (q < end && ((*q >= 'A' && *q <= 'Z') || (*q >= 'a' && *q <= 'z'))) q++;
        if (q > p + 1) return q;
    }
    int prefix = !(first & (SET_NEWLINE | SET_L | SET_PS));
    if (prefix && (q = span(p + n, end, SET_L | SET_M, SIZE_MAX)) > p + n) return q;
    if (first & (SET_L | SET_M)) return span(p, end, SET_L | SET_M, SIZE_MAX);
    const char *rest = p + (*p == ' ');
    q = span(rest, end, SET_PS, SIZE_MAX);
    if (q > rest) return span(q, end, SET_NEWLINE, SIZE_MAX);
    return match_space(p, end, 1);
}

static int deepseek_cjk(uint32_t cp) {
    return (cp >= 0x4E00 && cp <= 0x9FA5) || (cp >= 0x3040 && cp <= 0x30FF);
}

/* Laguna first cuts before each run of line breaks, which the text after it keeps (MergedWithNext); then as Qwen2. */
#define PATTERN_LAGUNA_LINES "(?:\\r?\\n)+(?!\\r?\\n)"
static const char *match_line_break(const char *p, const char *end) {
    const char *feed = p + (p < end && *p == '\r');
    return feed < end && *feed == '\n' ? feed + 1 : p;
}

static const char *line_piece(const char *p, const char *end) {
    const char *q;
    while ((q = match_line_break(p, end)) > p) p = q;
    while (p < end && match_line_break(p, end) == p) p++;
    return p;
}

/* GPT-2, which ByteLevel applies itself: 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static const char *match_gpt2(const char *p, const char *end) {
    static const unsigned sets[3] = {SET_L, SET_N, SET_ALL & ~(SET_SPACE | SET_L | SET_N)};
    const char *q = match_contraction(p, end, 0), *rest = p + (*p == ' ');
    if (q > p) return q;
    for (int i = 0; i < 3; i++) {
        if ((q = span(rest, end, sets[i], SIZE_MAX)) > rest) return q;
    }
    return match_space(p, end, 0);
}

/* SPLIT_NONE: a text is one word. SPLIT_DIGITS: the step Digits makes a word of each number, what is between is GPT-2's. */
typedef enum splitter {
    SPLIT_GPT2, SPLIT_QWEN2, SPLIT_QWEN35, SPLIT_LLAMA3, SPLIT_GPT4O, SPLIT_TEKKEN, SPLIT_DEEPSEEK, SPLIT_LAGUNA,
    SPLITTERS, SPLIT_DIGITS, SPLIT_NONE
} splitter;

/* The regular expressions of the Split steps of each splitter. */
static const char *const split_patterns[SPLITTERS][3] = {
    {NULL, NULL, NULL},
    {PATTERN_QWEN2, NULL, NULL},
    {PATTERN_QWEN35, NULL, NULL},
    {PATTERN_LLAMA3, NULL, NULL},
    {PATTERN_GPT4O, NULL, NULL},
    {PATTERN_TEKKEN, NULL, NULL},
    {PATTERN_DEEPSEEK_N, PATTERN_DEEPSEEK_CJK, PATTERN_DEEPSEEK},
    {PATTERN_LAGUNA_LINES, PATTERN_QWEN2, NULL},
};

typedef struct word_iterator {
    splitter kind;
    const char *p, *end;
    const char *outer, *inner; /* ends of the pieces of the earlier splits that p is in */
} word_iterator;

static const char *match_word(splitter kind, const char *p, const char *end) {
    switch (kind) {
    case SPLIT_QWEN2: case SPLIT_LAGUNA: return match_qwen(p, end, SET_L, 1);
    case SPLIT_QWEN35: return match_qwen(p, end, SET_L | SET_M, 1);
    case SPLIT_LLAMA3: return match_qwen(p, end, SET_L, 3);
    case SPLIT_GPT4O: return match_gpt4o(p, end, 1, 3);
    case SPLIT_TEKKEN: return match_gpt4o(p, end, 0, 1);
    case SPLIT_DEEPSEEK: return match_deepseek(p, end);
    case SPLIT_NONE: return end;
    default: return match_gpt2(p, end);
    }
}

/* Sets the ends of the pieces that begin at w->p. */
static void next_piece(word_iterator *w) {
    const int digits = w->kind == SPLIT_DEEPSEEK ? 3 : w->kind == SPLIT_DIGITS;
    if (!digits) {
        w->outer = w->inner = w->kind == SPLIT_LAGUNA ? line_piece(w->p, w->end) : w->end;
        return;
    }
    if (w->p == w->outer) {
        w->outer = span(w->p, w->end, SET_N, (size_t)digits);
        if (w->outer == w->p) w->outer = span(w->p, w->end, SET_ALL & ~SET_N, SIZE_MAX);
    }
    w->inner = w->outer;
    if (w->kind == SPLIT_DIGITS) return;
    const char *q = w->p;
    int cjk = deepseek_cjk(utf8_next(&q, w->outer));
    w->inner = q;
    while (w->inner < w->outer && deepseek_cjk(utf8_next(&q, w->outer)) == cjk) w->inner = q;
}

/* The next word of [p, end), NULL after the last. What no alternative matches is a word as well, up to the next match. */
static const char *next_word(word_iterator *w, size_t *size) {
    const char *start = w->p, *gap = start, *match = start;
    if (start == w->end) return NULL;
    if (start == w->inner) next_piece(w);
    while (gap < w->inner && (match = match_word(w->kind, gap, w->inner)) == gap) utf8_next(&gap, w->inner);
    w->p = gap > start ? gap : match;
    *size = (size_t)(w->p - start);
    return start;
}
