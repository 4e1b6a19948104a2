/* text/tool_calls.c: what a model writes as a tool call -> a JSON object {"name": "...", "arguments": {...}}, read while it
   comes. It knows the syntaxes in which models write calls, and nothing of tokens, of templates or of who wants the calls.

     <tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>                                    Qwen3
     <tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>               Qwen3.5, Qwen3-Coder
     {"name": "f", "parameters": {"x": 1}}                                                              Llama 3
     [TOOL_CALLS][{"name": "f", "arguments": {"x": 1}, "id": "123456789"}]                              Mistral Nemo
     [TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"x": 1}                                                      Mistral Small 3
     <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜>                     DeepSeek-V3.1
     <｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"x": 1}\n```<｜tool▁call▁end｜>                  DeepSeek-V3, R1
     <tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>                               GLM
     call:f{x:1,y:<|"|>z<|"|>}                                                                          Gemma 4
     {"x": 1}                                                   gpt-oss, after a header with the name: see chat_channels.c

   One rule for all of them: what the model wrote is never lost, invented or executed in part.
   - A tag means something only where the syntax has a place for it. A value ends where its own end tag stands and syntax
     follows: tags within it, those of a whole call even, are its text.
   - A call is one when all of it can be read, and the tools have one of its name. It is over after its last bracket or, unless a
     value may go on, its </function>; what follows is text, and so is what stands before it, also between it and its mark. The
     marks around a call are no text. All that is no call is text, to the byte.
   - Several follow each other in a list, or with commas, semicolons, line feeds or nothing between them.
   - An object without a mark is a call only if it holds what calls hold and nothing else; one that lies in other JSON is none.
   - What was forgotten is mended where only one thing can have been meant (see mend_json.c), what was cut off never.

   No byte is looked at again once it is decided, so the time is linear in the text, however it is cut into pieces. */

enum { NAME_FIRST = 1, NAME_IN_HEADER = 2, NAME_AND_KEYS = 4, NAME_AFTER_MARK = 8, NAME_AND_PAIRS = 16 };       /* syntaxes that any byte may begin */

typedef struct call_syntax {
    const char *begins;                                              /* a call's first byte after the opening tag; "": another one */
    int asked;                                                       /* NAME_...: only where models write so */
    int (*read)(call_reader *c, slice text, int end);                /* takes what has come of it: CALL_... */
    int (*put)(call_reader *c, slice text, buf *arguments);          /* name and arguments of a whole one; 0: it is none */
} call_syntax;

static const call_syntax call_syntaxes[] = {
    {"{", 0, json_read_call, json_put}, {"<", 0, tags_read, tags_put}, {"", NAME_FIRST, named_read, named_put},
    {"", NAME_IN_HEADER, headed_read, headed_put}, {"", NAME_AND_KEYS, keyed_read, keyed_put},
    {"", NAME_AFTER_MARK, marked_read, named_put}, {"", NAME_AND_PAIRS, pairs_read, named_put}};

enum { SYNTAX_HEADED = 3, SYNTAX_MARKED = 5 };   /* those that a call's text does not tell */

/* Of keys that come again in the same object the last one counts: marks the others in gone [j->count]. One hash table for all
   objects, by object and key. 0: out of memory. */
static int mark_repeated(const json *j, unsigned char *gone) {
    size_t cap = 16, mask;
    while (cap < (size_t)j->count * 2) cap *= 2;
    uint32_t *places = (uint32_t *)calloc(cap, 2 * sizeof *places);
    if (!places) return 0;
    uint32_t *objects = places + cap;
    mask = cap - 1;
    for (uint32_t object = 0; object < j->count; object++) {
        if (j->nodes[object].type != JSON_OBJECT) continue;
        for (uint32_t k = object + 1; k < j->nodes[object].next; k = j->nodes[k + 1].next) {
            const json_node *n = j->nodes + k;
            size_t at = fold(fnv1a(fnv1a(FNV_START, &object, sizeof object), j->text + n->start, n->size)) & mask;
            for (; places[at]; at = (at + 1) & mask) {
                const json_node *earlier = j->nodes + places[at];
                int same = objects[at] == object && earlier->size == n->size;
                if (same && !memcmp(j->text + earlier->start, j->text + n->start, n->size)) break;
            }
            if (places[at]) gone[places[at]] = 1;
            places[at] = k;
            objects[at] = object;
        }
    }
    free(places);
    return 1;
}

/* Appends JSON as put_json writes it, without keys that come again in the same object. */
static void put_once(argument_writer *a, const buf *text, buf *out) {
    json j;
    if (!may_parse(a, text, &j)) return;
    unsigned char *gone = (unsigned char *)calloc(j.count, 1);
    size_t from = 0;
    a->no_memory |= !gone || !mark_repeated(&j, gone);
    for (uint32_t k = 1; gone && k < j.count; k++) {
        if (!gone[k]) continue;
        uint32_t next = j.nodes[k + 1].next;             /* the same key comes again, so there is a next one */
        if (j.nodes[k].start - 1 >= from) {
            buf_add(out, text->data + from, j.nodes[k].start - 1 - from);
            from = j.nodes[next].start - 1;
        }
    }
    buf_add(out, text->data + from, text->size - from);
    free(gone);
    json_free(&j);
}

/* Writes a whole call into c->out. 0: it is none. */
static int call_put(call_reader *c, slice text) {
    buf arguments;
    memset(&arguments, 0, sizeof arguments);
    c->name.size = c->out.size = 0;
    int ok = c->syntax->put(c, text, &arguments) && !call_failed(c) && !arguments.failed;
    c->arguments.no_memory |= arguments.failed;
    if (ok) {
        buf_text(&c->out, "{\"name\": ");
        buf_add(&c->out, c->name.data, c->name.size);
        buf_text(&c->out, ", \"arguments\": ");
        put_once(&c->arguments, &arguments, &c->out);
        buf_add(&c->out, "}", 2);
    }
    buf_free(&arguments);
    return ok && !call_failed(c);
}

/* Bytes of the tag that opens a call at the beginning of s; 0: none does, -1: it may be one. Some models forget it: on a new
   line a call may begin without, *opened is 0 then. */
static int call_opens(const json *tools, slice s, int end, int on_line, size_t *opened) {
    call_tag tag = tag_at(s, end);
    if (tag.kind == TAG_PARTIAL) return tag.begun == TAG_OPEN || (tag.begun == TAG_FUNCTION && on_line) ? -1 : 0;
    *opened = tag.kind == TAG_OPEN ? tag.size : 0;
    return tag.kind == TAG_OPEN || (on_line && tag.kind == TAG_FUNCTION && (!tools || tool_named(tools, tag.name)));
}

/* Begins with a text in which a call may begin after the `opened` bytes of its tag. Keeps the memory that c has. */
static void call_begin(call_reader *c, const json *tools, size_t opened) {
    c->opened = opened;
    c->closed = c->whole = 0;
    c->is_closed = c->seeks = c->on_line = c->may_follow = 0;
    c->tags = opened > 0;
    c->arguments.tools = tools;
    c->arguments.parameters = 0;
    c->syntax = NULL;
    c->state = IN_CALL;
    c->at = c->begin = opened;
    c->function_size = 0;
    c->again = 0;
    c->parts.size = c->known.size = 0;
    memset(&c->part, 0, sizeof c->part);
    mend_begin(&c->arguments.mender, 0);
}

/* Looks for a call after a text that follows the mark: one on a line of its own, or after a colon or in a list. *at: where it, or
   what is around it, begins. Not after another mark. 0: there is none; -1: it may come. */
static int call_seek(const call_reader *c, slice text, int end, size_t *at) {
    enum { MOST = 512 };
    size_t last = c->opened + MOST;
    char before = ' ';                     /* the last byte that is no blank, or the line's beginning */
    for (*at = c->opened; *at < text.n && *at < last; ++*at) {
        const char b = text.p[*at];
        slice rest = slice_from(text, *at);
        if (b == '<') {
            call_tag tag = tag_at(rest, end);
            if (tag.kind == TAG_PARTIAL) return -1;
            if (tag.kind == TAG_OPEN || tag.kind == TAG_CLOSE) return 0;
            if (tag.kind == TAG_FUNCTION && before == '\n') return 1;
        }
        const size_t list = b == '[' ? 1 + (rest.n > 1 && is_blank(rest.p[1])) : 0;
        if (list && rest.n <= list && !end) return -1;
        if (b == '{' && (before == '\n' || (before == ':' && !c->named))) return 1;
        if (((list && rest.n > list && rest.p[list] == '{') || b == '`') && (before == '\n' || before == ':')) return 1;
        if (b == '\n' || !is_blank(b)) before = b;
    }
    return *at == last || end ? 0 : -1;
}

/* Finds out in which syntax the call is written. The opening tag may come again, and a list or a code block be around it. */
static int call_head(call_reader *c, slice text, int end) {
    while (c->on_line) {
        while (c->at < text.n && text.p[c->at] == '\n') c->at++;
        const call_tag tag = tag_at(slice_from(text, c->at), end);
        if (tag.kind == TAG_PARTIAL) return CALL_MORE;
        c->on_line = tag.kind == TAG_OPEN;
        if (!c->on_line) break;
        c->begin = c->opened = c->at += tag.size;
        c->tags++;
    }
    for (int is_json = 1; is_json;) {
        while (c->at < text.n && (is_blank(text.p[c->at]) || text.p[c->at] == '[' || text.p[c->at] == '`')) c->at++;
        const slice s = slice_from(text, c->at);
        is_json = c->at && s.n && text.p[c->at - 1] == '`' && !memcmp(s.p, "json", s.n < 4 ? s.n : 4);
        if (is_json && s.n < 4) return end ? CALL_NONE : CALL_MORE;
        c->at += is_json ? 4 : 0;
    }
    if (c->at == text.n) return end ? CALL_NONE : CALL_MORE;
    if (c->marked) c->syntax = call_syntaxes + SYNTAX_MARKED;
    const int asked = c->named * NAME_FIRST | (c->keyed && c->tags) * NAME_AND_KEYS | c->pairs * NAME_AND_PAIRS;
    for (size_t i = 0; i < sizeof call_syntaxes / sizeof *call_syntaxes && !c->syntax; i++)
        if (*call_syntaxes[i].begins == text.p[c->at] || asked & call_syntaxes[i].asked) c->syntax = call_syntaxes + i;
    return c->syntax ? CALL_WHOLE : CALL_NONE;
}

/* Reads on. text: all that has come since the beginning, well-formed UTF-8; end: TEXT_... CALL_WHOLE: the call is in c->out,
   its own text is that from c->begin to c->end, and what stands between its mark and c->begin is text. CALL_NONE: all up to c->at is
   text; nothing is, if c->may_follow: none follows. Never CALL_MORE at the end. */
static int call_read(call_reader *c, slice text, int end) {
    const int follows = c->may_follow ? named_follows(c, text, end) : 1;
    if (follows <= 0) return follows ? CALL_MORE : CALL_NONE;
    c->may_follow = 0;
    int found = c->syntax ? CALL_WHOLE : call_head(c, text, end);
    if (found == CALL_WHOLE) found = c->syntax->read(c, text, end);
    const int nothing_begun = !c->syntax || (!*c->syntax->begins && !c->function_size);
    size_t at = 0;
    if (found == CALL_NONE && nothing_begun && c->seeks) {
        const int sought = call_seek(c, text, end, &at);
        if (sought < 0) return CALL_MORE;
        c->seeks = c->named = c->keyed = c->marked = c->pairs = 0;
        c->syntax = NULL;
        c->at = c->begin = sought ? at : c->opened;
        return sought ? call_read(c, text, end) : CALL_NONE;
    }
    if (found != CALL_WHOLE || call_put(c, text)) return found;
    c->again = c->may_follow = 0;
    return CALL_NONE;
}

/* Brackets of an object that are open where it turned out to be no call; *quoted: inside a text. */
static int call_depth(const call_reader *c, int *quoted) {
    *quoted = c->arguments.mender.quote != 0;
    return c->state == IN_CALL_OBJECT ? c->arguments.mender.depth : 0;
}

/* The beginning of the first whole call in a text that is over, of whatever tool; text.n: there is none. keyed: as call_reader's.
   *failed: no memory. */
static size_t first_call(slice text, int keyed, int *failed) {
    call_reader c;
    size_t at = 0, opened = 0;
    memset(&c, 0, sizeof c);
    c.keyed = keyed;
    for (int found = CALL_NONE; at < text.n && found != CALL_WHOLE && !call_failed(&c); at += found == CALL_WHOLE ? 0 : c.at) {
        at += slice_before(slice_from(text, at), chat_marks_of_answers->call).n;
        if (at == text.n || call_opens(NULL, slice_from(text, at), TEXT_IS_CUT, 0, &opened) < 1) break;
        call_begin(&c, NULL, opened);
        found = call_read(&c, slice_from(text, at), TEXT_IS_CUT);
    }
    *failed |= call_failed(&c);
    call_reader_free(&c);
    return at;
}
