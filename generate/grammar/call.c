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
