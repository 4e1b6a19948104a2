/* text/chat_deepseek.c: DeepSeek's formats, V3's, R1's and V3.1's: all system text at the beginning, questions without an end, calls between
   marks, results after which the answer goes on. None of the templates tells the model of tools: an application does, in its
   system text. V3's and R1's leave calls open, and a second round of them without its beginning: here each is whole, as the models write them. */

/* V3.1: names before the mark between name and arguments, results without one around them all, thinking where it is asked for. */
static int deepseek_is_31(const chat *c) {
    return (c->family & CHAT_QUIET) != 0;
}

/* An answer that does not think; BARE: of V3.1's first text. */
static void deepseek_closed(const chat_marks *m, int family, marked_text *out) {
    if (!(family & CHAT_BARE)) put_words(out, m->think);
    put_words(out, m->think_end);
}

/* function<sep>f\n```json\n{"x": 1}\n```, or of V3.1 f<sep>{"x": 1}, between the marks of a call. */
static int deepseek_call(chat *c, uint32_t item) {
    const json *j = &c->j;
    const int v31 = deepseek_is_31(c);
    const uint32_t call = chat_function(j, item), type = json_get(j, item, "type"), arguments = json_get(j, call, "arguments");
    int code = MOTE_OK;
    put_words(c->out, c->marks->call);
    if (!v31 && type && j->nodes[type].type == JSON_STRING) put_value(c, c->out, type, put_str);
    else if (!v31) put_words(c->out, "function");
    if (!v31) put_words(c->out, DEEPSEEK_SEP);
    code = put_member_text(c, c->out, call, "name");
    put_words(c->out, v31 ? DEEPSEEK_SEP : "\n```json\n");
    if (!code && arguments && j->nodes[arguments].size) code = put_call_arguments(c, arguments);
    else put_words(c->out, "{}");
    if (!v31) put_words(c->out, "\n```");
    put_words(c->out, c->marks->call_end);
    return code;
}

/* What a content says after thinking in it, of R1's after the last. */
static slice deepseek_said(const chat *c, slice content) {
    const slice before = slice_before(content, c->marks->think_end);
    if (!(c->family & (CHAT_QUIET | CHAT_OPEN)) || before.n == content.n) return content;
    return c->family & CHAT_OPEN ? slice_after(content, c->marks->think_end) : slice_from(content, before.n + strlen(c->marks->think_end));
}

/* What comes right before a message. */
enum { AFTER_ANSWER, AFTER_QUESTION, AFTER_RESULT };

static int deepseek_answer(chat *c, uint32_t i, int before) {
    const uint32_t calls = chat_calls_of(c, i);
    const int after = before == AFTER_RESULT, asked = before == AFTER_QUESTION, v31 = deepseek_is_31(c);
    slice content;
    int code = chat_content(c, i, CONTENT_MESSAGE, &content);
    if (after && !v31) put_words(c->out, DEEPSEEK_OUTPUTS_END);
    else if (v31 ? asked : !after) put_words(c->out, c->marks->answer);
    if (v31 && asked) deepseek_closed(c->marks, c->family, c->out);
    put_marked(c->out, &c->content, calls || after ? content : deepseek_said(c, content));
    if (calls) put_words(c->out, DEEPSEEK_CALLS);
    for (uint32_t k = calls + 1; calls && !code && k < c->j.nodes[calls].next; k = c->j.nodes[k].next) {
        if (k > calls + 1 && !v31) put_words(c->out, "\n");
        code = deepseek_call(c, k);
    }
    if (calls) put_words(c->out, DEEPSEEK_CALLS_END);
    if (i + 1 < c->n || !c->continued) put_words(c->out, c->marks->turn_end);
    c->at.in_answer = v31;                     /* whose templates begin no other answer then */
    return code;
}

static int deepseek_result(chat *c, uint32_t i, int before) {
    const int first = before != AFTER_RESULT;
    slice content;
    int code = chat_content(c, i, CONTENT_TOOL, &content);
    if (first && !deepseek_is_31(c)) put_words(c->out, DEEPSEEK_OUTPUTS);
    else if (!first && c->family & CHAT_LINED) put_words(c->out, "\n");
    put_words(c->out, c->marks->result);
    put_marked(c->out, &c->content, content);
    put_words(c->out, c->marks->result_end);
    c->at.in_answer = 1;
    return code;
}

static int deepseek_user(chat *c, uint32_t i) {
    slice content;
    int code = chat_content(c, i, CONTENT_MESSAGE, &content);
    put_words(c->out, c->marks->user);
    put_marked(c->out, &c->content, content);
    c->at.in_answer = 0;
    return code;
}

/* The messages, without those of the system; other roles are passed over. */
static int deepseek_messages(chat *c) {
    int code = MOTE_OK, before = AFTER_ANSWER;
    for (uint32_t i = 0; !code && i < c->n; i++) {
        if (i && i == c->round) c->at.asked = c->out->text.size;
        if (chat_role(c, i, "user")) code = deepseek_user(c, i), before = AFTER_QUESTION;
        else if (chat_role(c, i, "assistant")) code = deepseek_answer(c, i, before), before = AFTER_ANSWER;
        else if (chat_role(c, i, "tool")) code = deepseek_result(c, i, before), before = AFTER_RESULT;
    }
    if (before == AFTER_RESULT && !deepseek_is_31(c)) put_words(c->out, DEEPSEEK_OUTPUTS_END);
    return code;
}

static int deepseek_conversation(chat *c) {
    int code = MOTE_OK, systems = 0;
    put_words(c->out, DEEPSEEK_BEGIN);
    for (uint32_t i = 0; !code && i < c->n; i++) {
        slice text;
        if (!chat_is_system(c, i)) continue;
        code = chat_content(c, i, CONTENT_SYSTEM, &text);
        if (systems++) put_words(c->out, "\n\n");
        put_marked(c->out, &c->content, text);
    }
    c->at.in_answer = deepseek_is_31(c);       /* until a question comes */
    for (uint32_t i = 0; i < c->n; i++)
        if (chat_role(c, i, "user")) c->round = i + 1;
    return code ? code : deepseek_messages(c);
}

/* The beginning of an answer; in_answer: it goes on. */
static void deepseek_prompt(const chat_marks *m, int family, int off, int in_answer, marked_text *out) {
    if (in_answer) return;
    put_words(out, m->answer);
    if (family & CHAT_OPEN) put_words(out, "<think>\n");
    else if (family & CHAT_QUIET && off) deepseek_closed(m, family, out);
    else if (family & CHAT_QUIET) put_words(out, m->think);
}
