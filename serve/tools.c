/* serve/tools.c: the tools of a request, and which of them the answer may or must call. It knows tools as functions with a
   schema, which is what a chat template takes: a namespace is part of the names of its functions, and a custom tool, which
   takes a text, is a function of one parameter. What of an answer is a call of which tool is found out here, too. */

enum { TOOLS_MOST = 1024 };
enum { CHOICE_AUTO, CHOICE_NONE, CHOICE_REQUIRED };

typedef struct known_tool {                /* texts of a request, unescaped. Owned */
    char *name;                            /* what the model is told */
    char *space, *own;                     /* the namespace, NULL: none, and the name in it */
    int is_custom;
} known_tool;

typedef struct tool_fields {               /* nodes of a request; 0: not given */
    uint32_t space, name, description, schema;
    int is_custom;
    uint32_t format;                       /* of a custom one */
    uint32_t strict;                       /* true: a call must follow the schema */
} tool_fields;

static known_tool *tool_at(const request *x, size_t i) {
    return (known_tool *)(void *)x->known.data + i;
}

static size_t tools_count(const request *x) {
    return x->known.size / sizeof(known_tool);
}

static void tools_close(request *x) {
    for (size_t i = 0; i < tools_count(x); i++) {
        free(tool_at(x, i)->name);
        free(tool_at(x, i)->space);
        free(tool_at(x, i)->own);
    }
    buf_free(&x->known);
}

/* The tool of a name; NULL: there is none. */
static const known_tool *find_tool(const request *x, const char *name) {
    for (size_t i = 0; i < tools_count(x); i++)
        if (!strcmp(tool_at(x, i)->name, name)) return tool_at(x, i);
    return NULL;
}

/* The inside of a name: after its namespace's, where it has one, which ends with _ as mcp__files__ does. */
static void put_tool_name(buf *out, const json *j, uint32_t space, uint32_t name) {
    const json_node *s = j->nodes + space;
    if (space) put_inside(out, j, space);
    if (space && s->size && j->text[s->start + s->size - 1] != '_') buf_text(out, "__");
    put_inside(out, j, name);
}

/* The name in {"name": ...}, {"function": {"name": ...}} or {"custom": {"name": ...}}, as OpenAI's two APIs have it; 0: there
   is none. */
static uint32_t choice_name(const fields *q, uint32_t node, uint32_t *space) {
    fields c = {q->j, node, q->f};
    uint32_t inner = field(&c, "function"), name = field(&c, "name");
    fields in = {q->j, inner ? inner : field(&c, "custom"), q->f};
    if (!name && in.object) name = field(&in, "name");
    *space = field(&c, "namespace");
    return name && node_type(q, name) == JSON_STRING ? name : 0;
}

/* 1: a choice, or an element of allowed_tools, names the tool. */
static int names_tool(const fields *q, uint32_t node, const known_tool *t) {
    uint32_t space, name = choice_name(q, node, &space);
    if (!name) return 0;
    if (json_equals(q->j, name, t->name) && !space) return 1;
    return t->space && json_equals(q->j, name, t->own) && (!space || json_equals(q->j, space, t->space));
}

static int tool_is_allowed(const request *x, const known_tool *t) {
    const fields *q = &x->q;
    if (!x->allowed) return 1;
    for (uint32_t k = x->allowed + 1; k < node_next(q, x->allowed); k = node_next(q, k))
        if (names_tool(q, k, t)) return 1;
    return 0;
}

/* The tool as it is known; 0: it is refused. */
static int tool_know(request *x, const tool_fields *of, known_tool *t) {
    const fields *q = &x->q;
    buf whole = {NULL, 0, 0, 0};
    json j;
    memset(t, 0, sizeof *t);
    if (!of->name || node_type(q, of->name) != JSON_STRING || !q->j->nodes[of->name].size)
        return !refuse(q->f, 400, "tools", "a tool without a name");
    if (tools_count(x) == TOOLS_MOST) return !refuse(q->f, 400, "tools", "more than %d tools", TOOLS_MOST);
    buf_text(&whole, "\"");
    put_tool_name(&whole, q->j, of->space, of->name);
    buf_text(&whole, "\"");
    int code = whole.failed ? MOTE_ENOMEM : json_parse(&j, whole.data, whole.size, "a name", NULL);
    if (!code) t->name = node_text(&j, 0);
    size_t n = code ? 0 : json_string(&j, 0, NULL, 0);
    if (!code) json_free(&j);
    buf_free(&whole);
    t->own = node_text(q->j, of->name);
    if (of->space) t->space = node_text(q->j, of->space);
    t->is_custom = of->is_custom;
    const known_tool *same = t->name ? find_tool(x, t->name) : NULL;
    if (!t->name || !t->own || (of->space && !t->space)) refuse(q->f, 503, NULL, "out of memory");
    else if (strlen(t->name) != n) refuse(q->f, 400, "tools", "a tool whose name holds a NUL");
    else if (same && (same->space || t->space || same->is_custom != t->is_custom))
        refuse(q->f, 400, "tools", "two tools are called %.100s", t->name);
    if (buf_add(&x->known, t, sizeof *t) && !q->f->status) return 1;
    if (x->known.failed) free(t->name), free(t->space), free(t->own), refuse(q->f, 503, NULL, "out of memory");
    return 0;
}

/* The parameters of a custom tool, by its format: a text, or one by a grammar, which the model is told of. */
static void put_custom(request *x, const tool_fields *of) {
    const fields *q = &x->q;
    buf *out = &x->tools;
    fields format = {q->j, of->format, q->f};
    fields inner = {q->j, of->format ? field(&format, "grammar") : 0, q->f};  /* of chat completions; of responses it is flat */
    const fields *grammar = inner.object ? &inner : &format;
    uint32_t definition = of->format ? field(grammar, "definition") : 0, syntax = definition ? field(grammar, "syntax") : 0;
    buf_text(out, ", \"description\": \"");
    if (of->description) put_inside(out, q->j, of->description);
    if (definition) {
        buf_text(out, "\\n\\nThe input follows this grammar (");
        if (syntax) put_inside(out, q->j, syntax);
        buf_text(out, "):\\n");
        put_inside(out, q->j, definition);
    }
    buf_text(out, "\", \"parameters\": {\"type\": \"object\", \"properties\": {\"input\": {\"type\": \"string\"}}, "
                  "\"required\": [\"input\"]}");
}

/* A tool that may be called; schema 0: it takes nothing. */
static void ask_tool(request *x, const tool_fields *of) {
    const fields *q = &x->q;
    known_tool t;
    if (!tool_know(x, of, &t) || !tool_is_allowed(x, &t)) return;
    x->is_strict |= of->strict && node_type(q, of->strict) == JSON_TRUE;
    put_next(&x->tools);
    buf_text(&x->tools, "{\"type\": \"function\", \"function\": {\"name\": \"");
    put_tool_name(&x->tools, q->j, of->space, of->name);
    buf_text(&x->tools, "\"");
    if (of->is_custom) {
        put_custom(x, of);
    } else {
        if (of->description) buf_text(&x->tools, ", \"description\": "), put_node(&x->tools, q->j, of->description);
        buf_text(&x->tools, ", \"parameters\": ");
        if (of->schema) put_node(&x->tools, q->j, of->schema);
        else buf_text(&x->tools, "{\"type\": \"object\", \"properties\": {}}");
    }
    buf_text(&x->tools, "}}");
}

/* A tool that only the API's own servers run is passed over, and told in the answer's head. */
static void note_hosted(request *x, const fields *tool) {
    char name[80];
    uint32_t type = field(tool, "type");
    size_t n = type && node_type(tool, type) == JSON_STRING ? x->q.j->nodes[type].size : 0;
    if (!n || n > 64) {
        refuse(x->q.f, 400, "tools", "a tool of no type that is known");
        return;
    }
    n = (size_t)snprintf(name, sizeof name, "tools.%.*s", (int)n, x->q.j->text + x->q.j->nodes[type].start);
    note(&x->noted, name, n);
}

/* ---- Which of them to call ------------------------------------------------------------------------------------------ */

/* "none", "auto", "required", or an object: one tool, or those that are allowed. To be asked before the tools are. */
static void openai_choice(request *x) {
    const fields *q = &x->q;
    uint32_t choice = field(q, "tool_choice"), space;
    fields c = {q->j, choice, q->f};
    if (choice && field_is(&c, "type", "allowed_tools")) {
        fields inner = {q->j, field(&c, "allowed_tools"), q->f};       /* of chat completions; of responses it is flat */
        if (inner.object) c = inner;
        x->allowed = field_of(&c, "tools", JSON_ARRAY);
        choice = field(&c, "mode");
        if (!x->allowed || q->j->nodes[x->allowed].size > TOOLS_MOST || !choice)
            refuse(q->f, 400, "tool_choice", "tool_choice of type allowed_tools must have a mode and a list of tools");
    }
    if (!choice || json_equals(q->j, choice, "auto")) return;
    if (json_equals(q->j, choice, "none")) x->choice = CHOICE_NONE;
    else x->choice = CHOICE_REQUIRED;
    if (x->choice == CHOICE_NONE || json_equals(q->j, choice, "required")) return;
    if (node_type(q, choice) == JSON_OBJECT && choice_name(q, choice, &space)) x->chosen = choice;
    else refuse(q->f, 400, "tool_choice", "tool_choice must be none, auto, required, allowed_tools or a function");
}

static void check_choice(const request *x) {
    const fields *q = &x->q;
    for (uint32_t k = x->allowed + 1, found; x->allowed && k < node_next(q, x->allowed) && !q->f->status; k = node_next(q, k)) {
        found = 0;
        for (size_t i = 0; i < tools_count(x); i++) found |= names_tool(q, k, tool_at(x, i));
        if (!found) refuse(q->f, 400, "tool_choice", "tool_choice allows a tool that is not among tools");
    }
    if (x->choice == CHOICE_REQUIRED && !x->tools.size) refuse(q->f, 400, "tool_choice", "tool_choice without tools");
}

/* All tools have been asked: what of them the answer is told. one: a single call is wanted. */
static void ask_choice(request *x, int one) {
    answer *a = x->a;
    const fields *q = &x->q;
    check_choice(x);
    if (q->f->status || !x->tools.size) return;
    const known_tool *chosen = NULL;
    for (size_t i = 0; x->chosen && i < tools_count(x) && !chosen; i++)
        if (names_tool(q, x->chosen, tool_at(x, i))) chosen = tool_at(x, i);
    if (x->chosen && !chosen) refuse(q->f, 400, "tool_choice", "tool_choice names a tool that is not among tools");
    size_t n = x->tools.size;
    a->tools = (char *)malloc(n + 3);
    if (chosen) a->tool = strdup(chosen->name);
    if (!a->tools || x->tools.failed || (chosen && !a->tool)) {
        refuse(q->f, 503, NULL, "out of memory");
        return;
    }
    a->tools[0] = '[';
    memcpy(a->tools + 1, x->tools.data, n);
    memcpy(a->tools + 1 + n, "]", 2);
    a->one_call = one;
    a->tool_choice = x->choice == CHOICE_REQUIRED ? MOTE_TOOLS_REQUIRED : MOTE_TOOLS_AUTO;
    if (a->schema && !a->tool_choice) note(&x->noted, "tools", strlen("tools"));       /* the mask leaves no call */
    if (x->is_strict && !a->tool_choice) note(&x->noted, "tools.strict", strlen("tools.strict"));
    if (!a->tool_choice) return;
    if (a->ignores_end) refuse(q->f, 400, "ignore_eos", "ignore_eos cannot go with a call that is required, which ends the answer");
    if (a->schema) refuse(q->f, 400, "tool_choice", "an answer that is a call follows the tool's schema, and no other");
    mote_generation g = {.size = sizeof g};
    g.tools = a->tools;
    g.tool_choice = a->tool_choice;
    g.tool = a->tool;
    ask_check(x, &g, "tool_choice");
}

/* The tools and the choice of a request to either of OpenAI's APIs. ask: takes one tool, which they write differently. */
static void openai_tools(request *x, void (*ask)(request *x, uint32_t node)) {
    const fields *q = &x->q;
    uint32_t tools = field_of(q, "tools", JSON_ARRAY);
    int parallel = 1;
    field_flag(q, "parallel_tool_calls", &parallel);
    openai_choice(x);
    for (uint32_t k = tools + 1; tools && x->choice != CHOICE_NONE && !q->f->status && k < node_next(q, tools); k = node_next(q, k))
        ask(x, k);
    ask_choice(x, !parallel);
}

/* ---- What comes back ------------------------------------------------------------------------------------------------ */

/* The text that a custom tool is called with. */
static void put_custom_input(buf *out, const tool_call *call) {
    json j;
    if (json_parse(&j, call->arguments, strlen(call->arguments), "arguments", NULL)) {
        put_text(out, call->arguments);
        return;
    }
    uint32_t input = json_get(&j, 0, "input");
    buf_text(out, "\"");
    if (input) put_inside(out, &j, input);
    buf_text(out, "\"");
    json_free(&j);
}
