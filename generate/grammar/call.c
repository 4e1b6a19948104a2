/* generate/grammar/call.c: an answer that is one complete tool call, or several, as the model's template has them: which bytes and which of
   the two marks of a call may come next. It knows the syntax and the tools' schemas, and nothing of tokens but that the marks are one
   each. What is written so is read by text/tool_calls.c.

     <tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>                                    FORM_JSON
     <tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>               FORM_TAGS
     {"name": "f", "parameters": {"x": 1}}                                                              FORM_BARE, one alone
     [TOOL_CALLS][{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]                 FORM_LIST
     [TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}                                                   FORM_NAMED
     <|channel|>commentary to=functions.f json<|message|>{"x": 1}                                       FORM_HEADED, one alone
     <tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>                               FORM_KEYS
     <tool_call>f\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>                         FORM_KEY_LINES
     <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>       FORM_MARKED
     ...<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"x": 1}\n```<｜tool▁call▁end｜>...              FORM_MARKED_BLOCK
     <|tool_call>call:f{x:1}<tool_call|><|tool_call>call:g{}<tool_call|>                                FORM_PAIRS, see pairs.c

   Between tags a string is its own text, without quotes, up to "\n</parameter>"; it holds no tag of the syntax. All other values are
   JSON. Names are outside text: they are matched as bytes, never as tags. */

typedef struct call_function { schema_literal begins; int32_t node; } call_function;   /* the text before its arguments; these */

/* Of a parameter between tags. */
typedef struct raw_texts {
    int32_t first, count;       /* literals that are strings, without quotes */
    int are_strings;            /* any text of it is read as a string, but for null, whatever it looks like: put_argument */
} raw_texts;

enum call_form { FORM_JSON, FORM_TAGS, FORM_BARE, FORM_LIST, FORM_NAMED, FORM_KEYS, FORM_KEY_LINES, FORM_MARKED, FORM_MARKED_BLOCK,
                 FORM_PAIRS, FORM_HEADED };

/* Marks within calls that may be tokens of the vocabulary: a form's texts have a byte in place of each, which no text has, so that the
   token must come and not its letters; where the vocabulary has none, a grammar has the letters. */
enum { CALL_TAGS = 5, TAG_BYTE = 0xf8 };
static const char *const key_tags[CALL_TAGS] = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", NULL};
static const char *const list_tags[CALL_TAGS] = {DEEPSEEK_CALLS, DEEPSEEK("tool" UNDER "call" UNDER "begin"), DEEPSEEK_SEP,
                                                 DEEPSEEK("tool" UNDER "call" UNDER "end"), DEEPSEEK_CALLS_END};
static const char *const pair_tags[CALL_TAGS] = {NULL, NULL, NULL, NULL, PAIR_QUOTE};            /* QUOTE_BYTE */

/* Texts of a form: around a name, after the arguments; around a parameter's name, after its value; before all calls, after them. */
enum { CALL_BEGINS, CALL_ARGUMENTS, CALL_ENDS, KEY_BEGINS, VALUE_BEGINS, VALUE_ENDS, LIST_BEGINS, LIST_ENDS, CALL_TEXTS };

typedef struct call_syntax_form {
    const char *opens, *closes;              /* the marks, which are tokens: before a call; after it or, where form_is_named, after its name */
    const char *texts[CALL_TEXTS];
} call_syntax_form;

static const call_syntax_form call_forms[] = {
    {"<tool_call>", "</tool_call>", {"\n{\"name\": \"", "\", \"arguments\": ", "}\n", "", "", "", "", ""}},
    {"<tool_call>", "</tool_call>", {"\n<function=", ">\n", "", "<parameter=", ">\n", "\n</parameter>\n", "", ""}},
    {"", "", {"{\"name\": \"", "\", \"parameters\": ", "}", "", "", "", "", ""}},
    {"[TOOL_CALLS]", "", {"{\"name\": \"", "\", \"arguments\": ", "}", "", "", "", "", ""}},
    {"[TOOL_CALLS]", "[ARGS]", {"", "", "", "", "", "", "", ""}},
    {"<tool_call>", "</tool_call>", {"", "", "", "\xf8", "\xf9\xfa", "\xfb", "", ""}},
    {"<tool_call>", "</tool_call>", {"", "\n", "", "\xf8", "\xf9\n\xfa", "\xfb\n", "", ""}},
    {"", "", {"\xf9", "\xfa", "\xfb", "", "", "", "\xf8", "\xfc"}},
    {"", "", {"\xf9" "function\xfa", "\n```json\n", "\n```\xfb", "", "", "", "\xf8", "\xfc"}},
    {"<|tool_call>", "<tool_call|>", {"call:", "{", "", "", "", "", "", ""}},
    {"<|channel|>", "<|message|>", {"commentary to=functions.", " json", "", "", "", "", "", ""}}};

/* 1: a mark stands between a call's name and its arguments, after which nothing follows. */
static int form_is_named(enum call_form form) {
    return form == FORM_NAMED || form == FORM_HEADED;
}

typedef struct call_grammar {
    enum call_form form;
    int one_call;
    char texts[CALL_TEXTS][80];  /* of the form, with marks that are no tokens written out */
    call_function *functions;    /* sorted by their text */
    int count;
    raw_texts *raw;              /* [nodes] the strings among a node's literals */
} call_grammar;

static const char FUNCTION_ENDS[] = "</function>\n";

static int form_is_marked(enum call_form form) {
    return form == FORM_MARKED || form == FORM_MARKED_BLOCK;
}

static int form_has_keys(enum call_form form) {
    return form == FORM_KEYS || form == FORM_KEY_LINES;
}

/* The call's values are between tags, those that are strings without quotes. */
static int form_has_values(enum call_form form) {
    return form == FORM_TAGS || form_has_keys(form);
}

static void call_grammar_close(call_grammar *c) {
    free(c->functions);
    free(c->raw);
    memset(c, 0, sizeof *c);
}

/* ---- From tools to the grammar ------------------------------------------------------------------------------------------------- */

/* The tool's object with its name, inside an item of the list of tools. */
static uint32_t tool_of(const json *tools, uint32_t item) {
    uint32_t function = json_get(tools, item, "function");
    return function ? function : item;
}

/* Whether a name can stand between the brackets of a tag, or in front of one. */
static int is_tag_name(const char *name, size_t n) {
    if (!n || n > 128 || name[0] == ' ' || name[n - 1] == ' ' || name[0] == '\'') return 0;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || strchr("<>\"\\", name[i])) return 0;
    return 1;
}

/* Does put_argument read a node's texts as strings? So where any string may stand, but not where anything may. */
static int texts_are_strings(const schema *s, const schema_node *n) {
    enum { ANY = 63 };
    int types = 0, strings = 0;
    for (int k = n->first; k < n->first + n->count; k++) {
        const schema_kind *kind = kind_at(s, k);
        strings |= kind->kind == KIND_STRING;
        types |= kind->kind == KIND_STRING ? 8 : kind->kind == KIND_NUMBER ? 4 : kind->kind == KIND_ARRAY ? 16 : kind->kind == KIND_OBJECT ? 32 : 0;
        for (int i = 0; kind->kind == KIND_LITERALS && i < kind->count; i++) {
            const char first = s->text.data[literal_at(s, kind->first + i)->text];
            types |= first == 'n' ? 1 : first == 't' || first == 'f' ? 2 : first == '[' ? 16 : first == '{' ? 32 : first == '"' ? 0 : 4;
        }
    }
    return strings && types != ANY;
}

/* Adds the texts of the strings among a node's literals. */
static void call_raw_texts(schema *s, raw_texts *raw, int32_t node, const char *ends) {
    const schema_node *n = node_at(s, node);
    raw->first = schema_count(&s->literals, sizeof(schema_literal));
    raw->are_strings = texts_are_strings(s, n);
    for (int k = n->first; k < n->first + n->count; k++) {
        const schema_kind kind = *kind_at(s, k);
        for (int i = 0; kind.kind == KIND_LITERALS && i < kind.count; i++) {
            const schema_literal l = *literal_at(s, kind.first + i);
            buf text;
            memset(&text, 0, sizeof text);
            if (s->text.data[l.text] != '"') continue;
            const char *at = s->text.data + l.text + 1, *end = s->text.data + l.text + l.size - 1;
            while (at < end) utf8_put(&text, next_character(&at, end));
            buf_add(&text, "", 1);
            if (!text.failed && strstr(text.data, ends)) schema_refuse_text(s, "a text that holds the end tag of a value, in a call between tags,", text.data, strlen(text.data));
            else if (!text.failed && strlen(text.data) + 1 == text.size) literal_add(s, text.data, text.size - 1);
            if (text.failed) s->code = fail_memory(s->err);
            buf_free(&text);
        }
    }
    raw->count = schema_count(&s->literals, sizeof(schema_literal)) - raw->first;
    for (int i = raw->first + 1; i < raw->first + raw->count; i++)
        for (int k = i; k > raw->first && literal_order(s, literal_at(s, k), literal_at(s, k - 1)) < 0; k--) {
            schema_literal other = *literal_at(s, k);
            *literal_at(s, k) = *literal_at(s, k - 1);
            *literal_at(s, k - 1) = other;
        }
}

/* The parameters of a function as tags: their names, and the strings that they may be. */
static int call_parameters(call_grammar *c, schema *s, int32_t node) {
    const char *const ends = form_has_keys(c->form) ? key_tags[3] : "</parameter>";
    for (int k = node_at(s, node)->first; k < node_at(s, node)->first + node_at(s, node)->count; k++) {
        const schema_kind kind = *kind_at(s, k);
        for (int i = 0; kind.kind == KIND_OBJECT && i < kind.count && !s->code; i++) {
            const schema_name n = *name_at(s, kind.first + i);
            if (!is_tag_name(s->text.data + n.text, n.size)) return schema_refuse_text(s, "a parameter of such a name", s->text.data + n.text, n.size);
            if (!c->raw[n.node].count) call_raw_texts(s, &c->raw[n.node], n.node, ends);
        }
        if (kind.kind == KIND_OBJECT && kind.more >= 0 && !c->raw[kind.more].count) call_raw_texts(s, &c->raw[kind.more], kind.more, ends);
    }
    return !schema_failed(s);
}

/* The text of a call up to its arguments. */
static void call_begins(const call_grammar *c, schema *s, const json *tools, uint32_t name, call_function *f) {
    size_t from = s->text.size;
    buf_text(&s->text, c->texts[CALL_BEGINS]);
    size_t begin = s->text.size;
    put_json_text(&s->text, tools, name);
    const char *text = s->text.data + begin;
    const size_t size = schema_failed(s) ? 0 : s->text.size - begin;
    const char wrong = c->form == FORM_NAMED ? '[' : c->form == FORM_HEADED ? ' ' : 0;
    if (size && wrong && memchr(text, wrong, size)) schema_refuse_text(s, "a tool of such a name", text, size);
    if ((form_has_values(c->form) || form_is_marked(c->form) || form_is_named(c->form)) && !schema_failed(s) && !is_tag_name(text, size))
        schema_refuse_text(s, "a tool of such a name", text, size);
    if (c->form == FORM_PAIRS && !schema_failed(s) && !is_pair_name(text, size)) schema_refuse_text(s, "a tool of such a name", text, size);
    buf_text(&s->text, c->texts[CALL_ARGUMENTS]);
    f->begins.text = (uint32_t)from;
    f->begins.size = (uint32_t)(s->text.size - from);
}

static int call_function_add(call_grammar *c, schema *s, const json *tools, uint32_t tool, mote_error *err) {
    uint32_t name = json_get(tools, tool, "name"), parameters = json_get(tools, tool, "parameters");
    call_function *f = &c->functions[c->count];
    uint32_t set[1];
    char text[48] = "";
    if (json_string(tools, name, text, sizeof text - 1) >= sizeof text) strcpy(text, "a tool of a long name");
    snprintf(s->label, sizeof s->label, "tools: %s", text);
    if (!parameters) parameters = json_get(tools, tool, "input_schema");
    s->j = tools;
    s->err = err;
    call_begins(c, s, tools, name, f);
    for (int i = 0; i < c->count; i++)                     /* given twice: the first one counts */
        if (!text_order(s, c->functions[i].begins.text, c->functions[i].begins.size, f->begins.text, f->begins.size)) return s->code;
    if (s->code) return s->code;
    f->node = parameters ? schema_add(s, tools, parameters, err) : schema_node_of(s, set, 0);
    if (!parameters && !s->code) node_kinds(s, f->node), schema_heights(s);
    int objects = 0;
    for (int i = 0; !s->code && i < node_at(s, f->node)->count; i++) {
        const schema_kind *k = kind_at(s, node_at(s, f->node)->first + i);
        objects |= k->kind == KIND_OBJECT && k->height < VALUE_DEPTH;
    }
    if (!objects && !s->code) schema_refuse(s, parameters ? parameters : NO_PLACE, "parameters that are no object");
    c->count++;
    return s->code;
}

/* The marks that may be tokens in a form. */
static const char *const *form_tags(enum call_form form) {
    static const char *const none[CALL_TAGS] = {NULL};
    if (form == FORM_PAIRS) return pair_tags;
    return form_is_marked(form) ? list_tags : form_has_keys(form) ? key_tags : none;
}

/* A text of a form, in which marks that are no tokens are written out. */
static void call_text_of(char *to, size_t size, const char *text, const char *const *tags, const int32_t *ids) {
    for (size_t n = 0; *text && n + 1 < size; text++) {
        const int tag = (unsigned char)*text - TAG_BYTE, is_text = tag >= 0 && tag < CALL_TAGS && (!ids || ids[tag] < 0);
        if (is_text) n += (size_t)snprintf(to + n, size - n, "%s", tags[tag]);
        else to[n++] = *text, to[n] = 0;
    }
}

/* Reads the tools, of which one, or any if `tool` is NULL, is to be called. ids [CALL_TAGS]: tokens of form_tags, -1 of those that are none;
   NULL: all are text. To be closed in any case. */
static int call_grammar_open(call_grammar *c, schema *s, const json *tools, const char *tool, enum call_form form, const int32_t *ids, mote_error *err) {
    int code = MOTE_OK;
    memset(c, 0, sizeof *c);
    c->form = form;
    for (int i = 0; i < CALL_TEXTS; i++) call_text_of(c->texts[i], sizeof c->texts[i], call_forms[form].texts[i], form_tags(form), ids);
    if (!tools->nodes || !tools->nodes[0].size) return fail(err, MOTE_EINVAL, "tool_choice: a call is required, but there are no tools");
    c->functions = (call_function *)calloc(tools->nodes[0].size, sizeof *c->functions);
    if (!c->functions) return fail_memory(err);
    for (uint32_t k = 1; k < next_node(tools, 0) && !code; k = next_node(tools, k)) {
        uint32_t of = tool_of(tools, k), name = json_get(tools, of, "name");
        if (!node_is(tools, name, JSON_STRING)) return fail(err, MOTE_EINVAL, "tools: a tool without a name");
        if (!tool || json_equals(tools, name, tool)) code = call_function_add(c, s, tools, of, err);
    }
    if (!code && !c->count) return fail(err, MOTE_EINVAL, "tool_choice: there is no tool \"%.*s\"", tool ? shown(tool, strlen(tool)) : 0, tool ? tool : "");
    if (code) return code;
    c->raw = (raw_texts *)calloc((size_t)schema_count(&s->nodes, sizeof(schema_node)), sizeof *c->raw);
    if (!c->raw) return fail_memory(err);
    if (form == FORM_PAIRS && !pairs_schema(s)) return s->code ? s->code : fail_memory(err);
    for (int i = 0; i < c->count && form_has_values(form); i++)
        if (!call_parameters(c, s, c->functions[i].node)) return s->code;
    for (int i = 1; i < c->count; i++)
        for (int k = i; k && literal_order(s, &c->functions[k].begins, &c->functions[k - 1].begins) < 0; k--) {
            call_function other = c->functions[k];
            c->functions[k] = c->functions[k - 1];
            c->functions[k - 1] = other;
        }
    return schema_failed(s);
}

/* ---- Following a call ------------------------------------------------------------------------------------------------------------ */

static void follower_begin_calls(follower *w, const call_grammar *calls, int lines) {
    follower_begin(w, 0, lines);
    w->calls = calls;
    w->pairs = calls->form == FORM_PAIRS;
    w->now.threads[0].f = frame_of(IN_CALLS, 0, 0);
}

/* A call begins with its name; at: where the calls are when it is over. 0: no links are left. */
static int call_push_name(follower *w, place *p, thread *t, int at) {
    frame name = frame_of(IN_CALL_NAME, 0, 0);
    name.is.literal.last = w->calls->count;
    t->f.at = (uint8_t)at;
    t->f.lines = t->f.spaces = 0;
    return thread_push(w, p, t, name);
}

/* The arguments of the call whose text before them is complete. */
static void call_arguments(follower *w, place *out, thread *t, int32_t node) {
    const schema_node *n = node_at(w->s, node);
    const int pairs = w->pairs, tags = form_has_values(w->calls->form) || pairs;       /* the arguments have begun */
    if (form_is_named(w->calls->form)) thread_pop(w, t);        /* nothing follows them */
    else t->f = frame_of(IN_CALL_BODY, 0, 0), t->f.at = (uint8_t)tags;
    frame value = frame_of(AT_VALUE, node, 0);
    value.at = VALUE_ARGUMENTS;
    thread call = *t;
    if (!tags && thread_push(w, out, &call, value)) place_add(out, &call);
    for (int k = n->first; k < n->first + n->count && tags; k++) {
        thread one = *t;
        if (kind_at(w->s, k)->kind == KIND_OBJECT && kind_at(w->s, k)->height != NO_HEIGHT &&
            thread_push(w, out, &one, frame_of(pairs ? IN_OBJECT : IN_PARAMETERS, k, 0)))
            place_add(out, &one);
    }
}

static void call_opens_at(follower *w, place *out, thread *t) {
    const enum call_form form = w->calls->form;
    const int after = t->f.at == AFTER_CALL;
    const int follows = (form == FORM_NAMED || form == FORM_PAIRS) && !w->calls->one_call;      /* at once */
    if (form == FORM_LIST ? t->f.at != BEFORE_CALLS : after && !follows) return;
    if (form == FORM_LIST) t->f.at = BEFORE_LIST;
    if (form == FORM_LIST || call_push_name(w, out, t, AFTER_CALL)) place_add(out, t);
}

/* A mark, which is a token of its own: it opens a call, or closes it or its name. */
static int place_tag(follower *w, const place *p, place *out, int opens) {
    out->count = 0;
    out->links = p->links;
    for (int i = 0; i < p->count; i++) {
        thread t = p->threads[i];
        const int named = form_is_named(w->calls->form) && t.f.in == IN_CALL_NAME;
        const call_function *f = &w->calls->functions[named ? t.f.is.literal.first : 0];
        if (opens && t.f.in == IN_CALLS) {
            call_opens_at(w, out, &t);
        } else if (!opens && named && f->begins.size == t.f.is.literal.size) {
            call_arguments(w, out, &t, f->node);
        } else if (!opens && t.f.in == IN_PARAMETERS && !t.f.count && form_has_keys(w->calls->form) && object_is_complete(w->s, &t.f)) {
            thread_pop(w, &t);                             /* to the body, */
            thread_pop(w, &t);                             /* and to the calls */
            place_add(out, &t);
        } else if (!opens && t.f.in == IN_CALL_BODY && t.f.at == 1) {
            thread_pop(w, &t);
            place_add(out, &t);
        }
    }
    return out->count > 0;
}

static int follower_tag(follower *w, int opens) {
    if (!place_tag(w, &w->now, &w->next, opens)) return 0;
    w->now = w->next;
    follower_compact(w);
    return 1;
}

/* 1: byte number `at` of the text before a function's arguments is b. */
static int function_goes_on(const follower *w, const call_function *f, uint32_t at, unsigned char b) {
    return at < f->begins.size && (unsigned char)w->s->text.data[f->begins.text + at] == b;
}

static void step_call_name(follower *w, place *out, thread *t, unsigned char b) {
    const call_function *list = w->calls->functions;
    frame *f = &t->f;
    uint32_t at = f->is.literal.size++;
    int32_t first = f->is.literal.first, last = f->is.literal.last;
    while (first < last && !function_goes_on(w, &list[first], at, b)) first++;
    while (first < last && !function_goes_on(w, &list[last - 1], at, b)) last--;
    f->is.literal.first = first;
    f->is.literal.last = last;
    if (first == last) return;
    const int whole = list[first].begins.size == at + 1 && !form_is_named(w->calls->form);
    if (!whole || (w->calls->form == FORM_KEYS && last > first + 1)) place_add(out, t);      /* no byte ends a name, which may begin another */
    if (whole) call_arguments(w, out, t, list[first].node);
}

/* A text of which `size` bytes have been read. 0: it does not go on so; 2: it is complete. */
static int step_text(frame *f, const char *text, unsigned char b) {
    if ((unsigned char)text[f->count] != b) return 0;
    return text[++f->count] ? 1 : 2;
}

/* ---- Parameters between tags ------------------------------------------------------------------------------------------------------ */

/* The value of a parameter begins: each kind of it in a thread of its own, as strings may be empty. */
static void parameter_value(follower *w, place *out, const thread *parameters, int32_t node) {
    const schema_node *n = node_at(w->s, node);
    const raw_texts *raw = &w->calls->raw[node];
    thread t = *parameters;
    if (!thread_push(w, out, &t, frame_of(IN_PARAMETER_END, 0, 0))) return;
    frame value = frame_of(AT_VALUE, node, 1);
    value.at = raw->are_strings ? VALUE_NULL : VALUE_PARAMETER;
    thread one = t;
    if (thread_push(w, out, &one, value)) place_add(out, &one);
    for (int k = n->first; k < n->first + n->count; k++) {
        frame text = frame_of(IN_TEXT, k, 1);
        text.is.string.state = 1;
        one = t;
        if (kind_at(w->s, k)->kind == KIND_STRING && thread_push(w, out, &one, text)) place_add(out, &one);
    }
    value = frame_of(IN_LITERAL, 0, 1);
    value.is.literal.first = raw->first;
    value.is.literal.last = raw->first + raw->count;
    one = t;
    if (raw->count && thread_push(w, out, &one, value)) place_add(out, &one);
}

/* A parameter's name and the text that ends it, of which `at` bytes have come, after "<parameter=". */
static void step_parameter_name(follower *w, place *out, thread *t, unsigned char b) {
    const schema *s = w->s;
    const schema_kind *k = kind_at(s, t->f.of);
    const char *const begins = w->calls->texts[KEY_BEGINS], *const ends = w->calls->texts[VALUE_BEGINS];
    frame *f = &t->f;
    if (f->count < strlen(begins)) {
        if (step_text(f, begins, b)) place_add(out, t);
        return;
    }
    int is_known = f->is.key.first < f->is.key.last && name_at(s, k->first + f->is.key.first)->size == f->is.key.size;
    int name = is_known ? f->is.key.first : -1;
    if (f->at || b == (unsigned char)*ends) {
        const int takes = f->at || (is_known ? object_takes(s, &w->links[t->below].f, name) : f->is.key.is_other && f->is.key.size);
        if (!takes || (unsigned char)ends[f->at++] != b) return;
        if (ends[f->at]) place_add(out, t);
        if (ends[f->at]) return;
        int32_t node = is_known ? name_at(s, k->first + name)->node : k->more;
        thread_pop(w, t);
        if (is_known) t->f.is.object.seen[name / 64] |= (uint64_t)1 << (name % 64);
        parameter_value(w, out, t, node);
        return;
    }
    f->is.key.is_other &= f->is.key.size < 64 && ((b >= '0' && b <= '9') || ((b | 32) >= 'a' && (b | 32) <= 'z') || b == '_' || b == '-');
    names_narrow(s, f, b);
    if (f->is.key.is_other || names_take(s, &w->links[t->below].f, f)) place_add(out, t);
}

/* Between parameters: another one, or the function's end. */
static void step_parameter_list(follower *w, place *out, thread *t, unsigned char b) {
    const schema *s = w->s;
    frame *f = &t->f;
    thread other = *t;
    if (!f->count && object_takes_more(s, f)) {
        frame name = frame_of(IN_PARAMETER_NAME, f->of, 0);
        name.is.key.last = kind_at(s, f->of)->count;
        name.is.key.is_other = object_takes_others(s, f);
        if (b == (unsigned char)*w->calls->texts[KEY_BEGINS] && thread_push(w, out, &other, name)) step_parameter_name(w, out, &other, b);
    }
    if (form_has_keys(w->calls->form)) return;             /* the call's mark ends them */
    int read = f->count || object_is_complete(s, f) ? step_text(f, FUNCTION_ENDS, b) : 0;
    if (read == 2) thread_pop(w, t);
    if (read) place_add(out, t);
}

/* Follows the tags that a parameter's text must not have: 0 when it has one. */
static int text_tags(frame *f, int keys, unsigned char b) {
    static const char *const all[2][6] = {{"<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>"},
                                          {"<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}};
    const char *const *tags = all[keys];
    int left = 0, at = f->is.string.tag;
    for (int i = 0; i < 6 && at; i++) {
        if (!(f->is.string.tags >> i & 1) || (unsigned char)tags[i][at] != b) continue;
        if (!tags[i][at + 1]) return 0;
        left |= 1 << i;
    }
    f->is.string.tag = left ? at + 1 : b == '<';
    f->is.string.tags = left ? left : b == '<' ? 63 : 0;
    return 1;
}

/* A byte of text between tags; the first one of its end, a line feed or a <, may also begin that. */
static void step_tag_text(follower *w, place *out, thread *t, unsigned char b) {
    const schema_kind *k = kind_at(w->s, t->f.of);
    const automaton *a = k->detail >= 0 ? automaton_at(w->s, k->detail) : NULL;
    frame *f = &t->f;
    thread end = *t;
    uint32_t code = f->is.string.code;
    if (b == (unsigned char)*w->calls->texts[VALUE_ENDS] && !f->more && f->count >= k->least && (!a || a->accepts[f->is.string.state])) {
        thread_pop(w, &end);
        step_call(w, out, &end, b);
    }
    if ((b < 0x20 && b != '\n' && b != '\t') || !text_tags(f, form_has_keys(w->calls->form), b)) return;
    if (!f->more && f->count >= k->most) return;
    if (!f->more) f->count += k->most < UINT32_MAX || f->count < k->least;
    int read = b < 0x80 && !f->more ? 2 : string_byte(f, b, &code);
    if (b < 0x80 && read == 2) code = b;
    f->is.string.code = read == 2 ? 0 : code;
    if (!read || (a && read == 1 && !string_can_go_on(a, f))) return;
    if (a && read == 2) f->is.string.state = automaton_step(a, f->is.string.state, code);
    if (!a || f->is.string.state) place_add(out, t);
}

/* A byte between calls that come after marks: the one before all of them, another call, or the mark after them. */
static void step_marked_calls(follower *w, place *out, thread *t, unsigned char b) {
    const call_grammar *c = w->calls;
    const int more = t->f.at == IN_LIST && !c->one_call, lined = c->form == FORM_MARKED_BLOCK;
    thread item = *t;
    frame *f = &t->f;
    int read;
    if (f->at == BEFORE_CALLS && !f->count && b == '\n' && f->lines < w->first_lines) {
        f->lines++;
        place_add(out, t);
    }
    if (f->at == BEFORE_CALLS && b != '\n') {
        read = step_text(f, c->texts[LIST_BEGINS], b);
        if (read == 2) f->at = BEFORE_ITEM, f->count = 0;
        if (read) place_add(out, t);
    }
    if (item.f.at == BEFORE_ITEM || (more && !lined)) {
        if (call_push_name(w, out, &item, IN_LIST)) step_call_name(w, out, &item, b);
    } else if (more && b == '\n') {
        item.f.at = BEFORE_ITEM;
        place_add(out, &item);
    }
    if (f->at == IN_LIST || f->at == AT_LIST_END) {
        f->at = AT_LIST_END;
        read = step_text(f, c->texts[LIST_ENDS], b);
        if (read == 2) f->at = AFTER_CALL, f->count = 0;
        if (read) place_add(out, t);
    }
}

/* A byte between calls. */
static void step_calls(follower *w, place *out, thread *t, unsigned char b) {
    const enum call_form form = w->calls->form;
    const int one_call = w->calls->one_call;
    frame *f = &t->f;
    if (form_is_named(form) || form == FORM_PAIRS) return;
    if (form_is_marked(form)) {
        step_marked_calls(w, out, t, b);
        return;
    }
    if (form == FORM_BARE || f->at == BEFORE_ITEM) {
        if (f->at != AFTER_CALL && call_push_name(w, out, t, form == FORM_LIST ? IN_LIST : AFTER_CALL)) step_call_name(w, out, t, b);
        return;
    }
    if (form == FORM_LIST) {
        const int at = f->at;
        f->at = BEFORE_ITEM;
        if (at == BEFORE_LIST && b == ' ' && !f->spaces) f->at = BEFORE_LIST, f->spaces = 1;
        else if (at == IN_LIST && b == ']') f->at = AFTER_CALL;
        else if (at == IN_LIST && b == ',' && !one_call) f->at = AFTER_COMMA;
        else if (!(at == BEFORE_LIST && b == '[') && !(at == AFTER_COMMA && b == ' ')) return;
    } else {
        if (b != '\n' || f->at == BEFORE_CALL || (f->at ? one_call : f->lines == w->first_lines)) return;
        if (f->at) f->at = BEFORE_CALL;
        else f->lines++;
    }
    place_add(out, t);
}

static void step_call(follower *w, place *out, thread *t, unsigned char b) {
    frame *f = &t->f;
    int read;
    switch (f->in) {
    case IN_CALLS: step_calls(w, out, t, b); return;
    case IN_CALL_NAME: step_call_name(w, out, t, b); return;
    case IN_CALL_BODY:                          /* at: 0 before its last text, 1 before the mark */
        read = f->at ? 0 : step_text(f, w->calls->texts[CALL_ENDS], b);
        if (read == 2 && w->calls->form == FORM_JSON) f->at = 1;
        else if (read == 2) thread_pop(w, t);
        break;
    case IN_PARAMETERS: step_parameter_list(w, out, t, b); return;
    case IN_PARAMETER_NAME: step_parameter_name(w, out, t, b); return;
    case IN_PARAMETER_END:
        read = step_text(f, w->calls->texts[VALUE_ENDS], b);
        if (read == 2) thread_pop(w, t);
        break;
    default: step_tag_text(w, out, t, b); return;
    }
    if (read) place_add(out, t);
}
