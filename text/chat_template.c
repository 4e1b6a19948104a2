/* text/chat_template.c: which chat family a template is.

   A checkpoint brings its chat format as a Jinja program. We do not run Jinja: the programs we know are written out as C in
   chat.c and give the same bytes. A program is recognised by a hash of its whole text, without indentation, empty lines and
   white space at line ends (none of which reaches the output, since every tag of these programs strips what is before it).

   People change these programs: comments, a default system prompt, another sentence in the tools' instructions, no errors
   raised. A text of another hash that has all marks of a family, its call syntax and its way to begin an answer is used as
   that family's, with a notice, because this is what the model was trained on. One without is unknown: a model prompted
   wrongly answers badly without a word. */

/* The family of a published text, by its hash. */
static int chat_published(slice text) {
    static const struct {
        uint64_t hash;
        int family;
    } known[] = {
        {0x0069FAE55F9BBDCCu, CHAT_QWEN3},                     /* Qwen3 (first release) */
        {0xD9204720CD536859u, CHAT_QWEN3 | CHAT_LENIENT},      /* Qwen3 (later text) */
        {0x7FF3A87A165FF7DEu, CHAT_QWEN3_5},                   /* Qwen3.5 4B and larger */
        {0x2B2ECD7ADCF49C7Du, CHAT_QWEN3_5 | CHAT_LENIENT},    /* Qwen3.5 35B-A3B (another text) */
        {0x0E50F370211D5EF7u, CHAT_QWEN3_5 | CHAT_QUIET},      /* Qwen3.5, small models */
        {0xFEDB038E6D6019AAu, CHAT_QWEN3_5 | CHAT_PRESERVE},   /* Qwen3.6 */
    };
    uint64_t hash = FNV_START;
    for (const char *p = text.p, *end = p + text.n; p < end;) {
        const char *newline = (const char *)memchr(p, '\n', (size_t)(end - p));
        const char *line_end = newline ? newline : end, *next = newline ? newline + 1 : end;
        while (p < line_end && (*p == ' ' || *p == '\t' || *p == '\r')) p++;
        while (p < line_end && (line_end[-1] == ' ' || line_end[-1] == '\t' || line_end[-1] == '\r')) line_end--;
        if (p < line_end) hash = fnv1a(fnv1a(hash, p, (size_t)(line_end - p)), "\n", 1);
        p = next;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].hash == hash) return known[i].family;
    return CHAT_UNKNOWN;
}

static int slice_has(slice s, const char *words) {
    return slice_before(s, words).n < s.n;
}

static int has_marks(slice text, const chat_marks *m) {
    const char *const marks[] = {m->turn, m->turn_end, m->think, m->think_end, m->result, m->result_end,
                                 m->call, m->call_end, m->call_name, m->call_argument};
    size_t i = 0;
    while (i < sizeof marks / sizeof *marks && slice_has(text, marks[i])) i++;
    return i == sizeof marks / sizeof *marks;
}

/* 1: a template that can open the thinking and close it, `open` before `closed`, does the latter unless it is asked for. begin:
   its beginning of an answer. */
static int is_quiet(slice text, slice begin, size_t open, size_t closed) {
    static const char *const defaults[] = {"not defined", "undefined", "default(true"};    /* it thinks unless told */
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        if (slice_has(begin, defaults[i])) return 0;
    return open < closed && slice_has(begin, "enable_thinking") && !slice_has(text, "set enable_thinking");
}

/* The family that a text without comments belongs to by what it says. How an answer begins tells most: after the last
   add_generation_prompt there is a thinking block that is closed at once, and in Qwen3.5 also one that stays open. */
static int chat_recognise(slice text) {
    const chat_marks *const m = chat_marks_of_answers;
    char closed_block[64];
    snprintf(closed_block, sizeof closed_block, "%s\\n\\n%s\\n\\n", m->think, m->think_end);       /* as Jinja has line feeds */
    slice begin = slice_after(text, "add_generation_prompt");
    size_t closed = slice_before(begin, closed_block).n, open = slice_before(begin, m->think).n;
    int family = CHAT_UNKNOWN;
    if (begin.n == text.n || closed == begin.n) return CHAT_UNKNOWN;
    if (open == closed) {                                      /* the first one is closed: another may follow */
        slice after = slice_from(begin, closed + strlen(closed_block));
        open = begin.n - after.n + slice_before(after, m->think).n;
    }
    const int opens = open < begin.n, tags = slice_has(text, m->call_name);
    for (int i = 0; i < CHAT_FAMILY_COUNT && !family; i++) {
        const int f = chat_families[i].family;
        if (has_marks(text, &chat_families[i]) && (f == CHAT_QWEN3_5) == opens && (f == CHAT_QWEN3_5) == tags) family = f;
    }
    if (!family) return CHAT_UNKNOWN;
    if (family == CHAT_QWEN3) return slice_has(text, "message.content is string") ? family | CHAT_LENIENT : family;
    if (slice_has(text, "arguments is mapping") && !slice_has(text, "arguments is string")) family |= CHAT_LENIENT;
    if (slice_has(text, "preserve_thinking")) family |= CHAT_PRESERVE;
    return is_quiet(text, begin, open, closed) ? family | CHAT_QUIET : family;
}

/* The text without Jinja's comments, in its own place. */
static slice cut_comments(char *text, size_t n) {
    size_t to = 0;
    for (slice rest = slice_of(text, n); rest.n;) {
        slice before = slice_before(rest, "{#"), comment = slice_from(rest, before.n);
        size_t end = slice_before(comment, "#}").n;
        if (end == comment.n) before = rest;                   /* none that ends */
        memmove(text + to, before.p, before.n);
        to += before.n;
        rest = before.n == rest.n ? slice_of(NULL, 0) : slice_from(comment, end + 2);
    }
    return slice_of(text, to);
}

/* The family of a template; what it says is of no use afterwards. *modified: it is none that was published. */
static chat_family chat_detect(char *text, size_t len, int *modified) {
    int family = chat_published(slice_of(text, len));
    *modified = !family;
    if (!family) {
        slice bare = cut_comments(text, len);
        family = chat_published(bare);
        if (!family) family = chat_recognise(bare);
    }
    return (chat_family)family;
}

/* "Qwen3, Qwen3.5" */
static const char *chat_known(void) {
    return "Qwen3, Qwen3.5";
}

static int chat_unknown(mote_error *err) {
    return fail(err, MOTE_EUNSUPPORTED, "unknown chat template (known: %s); raw prompts work", chat_known());
}
