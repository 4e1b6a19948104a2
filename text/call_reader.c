/* text/call_reader.c: what the readers of all call syntaxes share: where one is in a call, and the tags around calls and in
   them. The rule that they keep is in tool_calls.c. */

enum { CALL_MORE, CALL_WHOLE, CALL_NONE };       /* more text must come first; a call; no call */

enum { TEXT_GOES_ON, TEXT_IS_CUT, TEXT_ENDS };   /* more text may come; none: something cut it short; it was over */

typedef void (*call_sink)(void *user, const char *call, size_t size);

struct call_syntax;

typedef struct call_part { size_t name, name_size, value, value_size; } call_part;      /* in the text */

typedef struct call_reader {
    argument_writer arguments;
    const struct call_syntax *syntax;    /* NULL: the first bytes after the opening tag have not come */
    int named;                           /* a name may come first */
    int marked;                          /* DeepSeek's: each call comes after a mark of its own */
    int keyed;                           /* GLM's: a name may come first, and keys and values between tags */
    int pairs;                           /* Gemma's: a name, and its values */
    int bare;                            /* it has no mark: an object is a call only if it holds nothing else */
    int in_list;                         /* one without a mark stands in a list that has not ended */
    int seeks;                           /* a text may stand between its mark and itself */
    int on_line;                         /* its mark stands on a line of its own, and may come again */
    int state;                           /* of the syntax */
    size_t at;                           /* so much of the text is decided: whole calls and what is none end here */
    size_t opened;                       /* bytes of the mark */
    int tags;                            /* that open the call, one after the other */
    size_t begin, end;                   /* what the tags around the call enclose; after a text, the call alone */
    size_t closed;                       /* after its last bracket or </function> */
    int is_closed;                       /* its end tag has come */
    int again;                           /* after a whole call: another one begins at `at`, without a tag of its own; */
    int may_follow;                      /* or it may, and the first text will tell */
    buf name, out;                       /* the name as JSON; the call as JSON, a zero after it */
    /* tags */
    call_part part;                      /* the parameter at hand */
    size_t function, function_size;
    buf parts, known;                    /* call_part[]; the schemas of those that the tool has */
    int nested, functions;               /* tags that the value itself opened */
    int is_own;                          /* the last </parameter> was the value's */
    call_part whole_part;                /* the parameter that was the last when </function> came, and the parts before it; */
    size_t whole_parts, whole;           /* where that was; 0: it did not */
    int turns_back;                      /* to there, in the answer so far */
} call_reader;

static void call_reader_free(call_reader *c) {
    argument_writer_free(&c->arguments);
    buf_free(&c->name);
    buf_free(&c->out);
    buf_free(&c->parts);
    buf_free(&c->known);
}

static int call_failed(const call_reader *c) {
    return c->arguments.no_memory || c->arguments.mender.out.failed || c->arguments.value.failed || c->name.failed ||
           c->out.failed || c->parts.failed || c->known.failed;
}

/* 1: there is a tool of this name, whose parameters are known then. */
static int call_names(call_reader *c, slice name) {
    argument_writer *a = &c->arguments;
    uint32_t tool = a->tools ? tool_named(a->tools, name) : 0;
    a->parameters = tool ? json_get(a->tools, tool, "parameters") : 0;
    return tool || !a->tools;
}

/* ---- Tags ---- */

enum { TAG_NONE, TAG_PARTIAL, TAG_LAST, TAG_OPEN, TAG_CLOSE, TAG_FUNCTION, TAG_FUNCTION_END, TAG_PARAMETER, TAG_PARAMETER_END };

typedef struct call_tag {
    int kind;            /* TAG_PARTIAL: may become one; TAG_LAST: the text is over */
    int begun;           /* the first kind that it may become, or might have if the text were not over; else 0 */
    size_t size;
    slice name;          /* of a function or parameter */
} call_tag;

/* The name that s begins with, up to '>', without quotes. 0: there is none; -1: it may be one. */
static int tag_name(slice s, call_tag *tag) {
    enum { MOST = 256 };
    size_t n = s.n < MOST ? s.n : (size_t)MOST;
    const char *over = n ? (const char *)memchr(s.p, '>', n) : NULL;
    if (!over) return s.n < MOST ? -1 : 0;
    slice name = slice_trim(slice_of(s.p, (size_t)(over - s.p)));
    if (name.n > 1 && (*name.p == '"' || *name.p == '\'') && name.p[name.n - 1] == *name.p)
        name = slice_of(name.p + 1, name.n - 2);
    tag->name = name;
    tag->size += (size_t)(over - s.p) + 1;
    return name.n && !memchr(name.p, '\n', name.n) && !memchr(name.p, '<', name.n);
}

/* The tag that s begins with. */
static call_tag tag_at(slice s, int end) {
    const chat_marks *const m = chat_marks_of_answers;
    const struct { const char *text; int kind; } tags[] = {
        {m->call, TAG_OPEN}, {m->call_end, TAG_CLOSE}, {m->call_name, TAG_FUNCTION}, {m->call_name_end, TAG_FUNCTION_END},
        {m->call_argument, TAG_PARAMETER}, {m->call_argument_end, TAG_PARAMETER_END}};
    call_tag tag = {TAG_NONE, TAG_NONE, 0, {NULL, 0}};
    if (!s.n) tag.kind = end ? TAG_LAST : TAG_PARTIAL;
    for (size_t i = 0; s.n && i < sizeof tags / sizeof *tags; i++) {
        size_t n = strlen(tags[i].text);
        if (memcmp(s.p, tags[i].text, s.n < n ? s.n : n)) continue;
        int is = s.n >= n ? 1 : -1;
        tag.size = n;
        if (is > 0 && (tags[i].kind == TAG_FUNCTION || tags[i].kind == TAG_PARAMETER)) is = tag_name(slice_from(s, n), &tag);
        tag.kind = is > 0 ? tags[i].kind : is && !end ? TAG_PARTIAL : TAG_NONE;
        if (is < 0) tag.begun = tags[i].kind;
        if (is) break;
    }
    if (tag.kind < TAG_OPEN) tag.size = 0;
    return tag;
}

static void skip_blanks(call_reader *c, slice text) {
    while (c->at < text.n && is_blank(text.p[c->at])) c->at++;
}

/* The call ends where its text is decided up to, or with the end tag there. */
static int call_ends(call_reader *c, const call_tag *tag) {
    c->end = c->at;
    c->is_closed = tag->kind == TAG_CLOSE;
    if (c->is_closed) c->at += tag->size;
    return CALL_WHOLE;
}

/* It ends after its last bracket or end tag: what follows is text. */
static int call_ends_before_text(call_reader *c) {
    c->end = c->at = c->closed;
    c->is_closed = 0;
    return CALL_WHOLE;
}

/* 1: what follows shows that a call is over whose last bracket or end tag has come. A tag that is cut off does, too. */
static int call_is_over(call_reader *c, const call_tag *tag) {
    int cut = tag->begun == TAG_CLOSE || tag->begun == TAG_OPEN || tag->begun == TAG_FUNCTION;
    return (cut || tag->kind == TAG_CLOSE || tag->kind == TAG_OPEN || tag->kind == TAG_LAST) && call_ends(c, tag);
}
