/* text/chat_gemma.c: Gemma 4's format: turns with marks around them, thinking in a channel, tools in the system turn. Calls, their results
   and what the model says of them are one turn of the model. Google's texts of 2026 differ:

   - In April's a parameter that is called as what a schema says (type, description, ...) is left out; in later ones (CHAT_NAMES) not.
   - In July's (CHAT_PRESERVE) answers that follow each other share a turn, which ends before a question; where the model thinks, it goes on
     thinking after results; null is null.
   - In those of the small models (CHAT_BARE) no empty channel says that the model is not to think. */

/* What a message says, of its role the text outside of channels; each part without the white space around it. */
static int gemma_part(chat *c, slice text, int answer) {
    const chat_marks *const m = c->marks;
    c->reasoning.size = 0;
    while (answer && text.n) {
        const slice part = slice_before(text, m->think_end), said = slice_before(part, m->think);
        buf_slice(&c->reasoning, said);
        text = slice_from(text, part.n < text.n ? part.n + strlen(m->think_end) : text.n);
    }
    put_outside(c->out, slice_trim(answer ? slice_of(c->reasoning.data, c->reasoning.size) : text));
    return MOTE_OK;
}

static int gemma_content(chat *c, uint32_t i, int answer) {
    const json *j = &c->j;
    const uint32_t content = json_get(j, chat_message(c, i), "content");
    int code = MOTE_OK;
    slice text;
    if (!content || j->nodes[content].type != JSON_ARRAY) {
        code = chat_content(c, i, CONTENT_MESSAGE, &text);
        return code ? code : gemma_part(c, text, answer);
    }
    for (uint32_t k = content + 1; !code && k < j->nodes[content].next; k = j->nodes[k].next) {
        c->content.text.size = c->content.outside.size = 0;
        code = chat_part(c, k, chat_is_system(c, i), 1);
        if (!code) code = gemma_part(c, slice_of(c->content.text.data, c->content.text.size), answer);
        if (!i && chat_is_system(c, i)) put_words(c->out, " ");
    }
    return code;
}

static int gemma_system(chat *c) {
    const int given = chat_is_system(c, 0), thinks = c->think == MOTE_THINK_ON;
    int code = MOTE_OK;
    c->leading = (uint32_t)given;
    if (!given && !thinks && !c->has_tools) return MOTE_OK;
    open_turn(c->marks, "system\n", c->out);
    if (thinks) put_words(c->out, "<|think|>\n");
    if (given) code = gemma_content(c, 0, 0);
    for (uint32_t k = c->tools + 1; c->has_tools && !code && k < c->j.nodes[c->tools].next; k = c->j.nodes[k].next)
        code = gemma_tool(c, chat_function(&c->j, k));
    close_turn(c->marks, c->out);
    return code;
}

/* A call's arguments without their braces. A text that holds no object was cut off, and stands as it was written. */
static int gemma_arguments(chat *c, uint32_t arguments) {
    const uint32_t type = arguments ? c->j.nodes[arguments].type : (uint32_t)JSON_NULL;
    if (type == JSON_OBJECT) return gemma_object(c, arguments, 0);
    return type == JSON_STRING ? put_value(c, c->out, arguments, put_str) : MOTE_OK;
}

static int gemma_call(chat *c, uint32_t call) {
    put_words(c->out, c->marks->call);
    put_words(c->out, "call:");
    int code = put_member_text(c, c->out, call, "name");
    put_words(c->out, "{");
    if (!code) code = gemma_arguments(c, json_get(&c->j, call, "arguments"));
    put_words(c->out, "}");
    put_words(c->out, c->marks->call_end);
    return code;
}

/* The call whose id a result gives, of the `n` ids of calls in their order; n: none. The last of several with one id. */
static uint32_t gemma_answered(chat *c, const tool_id *ids, uint32_t n, uint32_t message) {
    tool_id one;
    uint32_t low = 0, high = n;
    if (!add_tool_id(&one, 0, &c->j, message, "tool_call_id", 0, &c->reasoning)) return n;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (ids[middle].hash <= one.hash) low = middle + 1;
        else high = middle;
    }
    return low && ids[low - 1].hash == one.hash ? low - 1 : n;
}

/* A tool's result. call: the one that it answers; 0: it says its name itself, or nobody does. opened: its mark is there already. */
static int gemma_result(chat *c, uint32_t i, uint32_t call, int opened) {
    const json *j = &c->j;
    const uint32_t content = json_get(j, chat_message(c, i), "content"), type = content ? j->nodes[content].type : (uint32_t)JSON_NULL;
    const uint32_t object = call ? call : chat_message(c, i), name = json_get(j, object, "name");
    int code = MOTE_OK;
    slice text;
    if (!opened) put_words(c->out, c->marks->result);
    put_words(c->out, "response:");
    if (name && j->nodes[name].type == JSON_STRING) put_value(c, c->out, name, put_str);
    else put_words(c->out, "unknown");
    put_words(c->out, "{value:");
    if (type == JSON_ARRAY || type == JSON_OBJECT) {
        put_words(c->out, gemma_quote);
        code = chat_content(c, i, CONTENT_TOOL, &text);
        put_marked(c->out, &c->content, text);
        put_words(c->out, gemma_quote);
    } else if (content) {
        code = gemma_value(c, content, 0);
    } else {
        put_words(c->out, c->family & CHAT_PRESERVE ? "null" : "None");
    }
    put_words(c->out, "}");
    put_words(c->out, c->marks->result_end);
    return code;
}

/* The results of an answer's calls, up to message `end`. One without the id of a call is that of the call of its number. */
static int gemma_results(chat *c, uint32_t calls, uint32_t i, uint32_t end) {
    const json *j = &c->j;
    const uint32_t count = j->nodes[calls].size;
    tool_id *ids = (tool_id *)calloc((size_t)count + 1, sizeof *ids);
    uint32_t *nodes = (uint32_t *)calloc((size_t)count + 1, sizeof *nodes), n = 0;
    int code = ids && nodes ? MOTE_OK : fail_memory(c->err);
    for (uint32_t k = calls + 1, at = 0; !code && at < count; k = j->nodes[k].next, at++) {
        nodes[at] = chat_function(j, k);
        n = add_tool_id(ids, n, j, k, "id", at, &c->reasoning);
    }
    if (!code) qsort(ids, n, sizeof *ids, by_tool_id);
    for (uint32_t k = i; !code && k < end; k++) {
        const uint32_t found = gemma_answered(c, ids, n, chat_message(c, k)), named = json_get(j, chat_message(c, k), "name");
        const uint32_t call = found < n ? nodes[ids[found].at] : named || k - i >= count ? 0 : nodes[k - i];
        code = gemma_result(c, k, call, 0);
    }
    free(ids);
    free(nodes);
    return code;
}

/* What an answer thought, where that stays. */
static void gemma_thought(chat *c, uint32_t i, int calls) {
    static const char *const keys[] = {"reasoning", "reasoning_content"};
    const int july = c->family & CHAT_PRESERVE, shown = i >= c->round ? july || calls : c->preserve && calls;
    uint32_t node = 0;
    for (int k = 0; k < 2 && !node; k++) node = gemma_true_member(&c->j, chat_message(c, i), keys[k]);
    if (!shown || !node || c->j.nodes[node].type != JSON_STRING) return;
    put_words(c->out, c->marks->think);
    put_words(c->out, "thought\n");
    put_value(c, c->out, node, put_str);
    put_words(c->out, "\n");
    put_words(c->out, c->marks->think_end);
}

/* An answer with the results of its calls, up to message `end`. goes_on: its turn is that of the answer before. A text beside calls stands
   before them, as the model writes it: the template has it after the results. */
static int gemma_answer(chat *c, uint32_t i, uint32_t end, int goes_on) {
    const uint32_t calls = chat_calls_of(c, i);
    const int july = c->family & CHAT_PRESERVE, results = end > i + 1;
    if (!goes_on) put_words(c->out, c->marks->answer);
    gemma_thought(c, i, calls != 0);
    int code = gemma_content(c, i, 1);
    for (uint32_t k = calls + 1; calls && !code && k < c->j.nodes[calls].next; k = c->j.nodes[k].next)
        code = gemma_call(c, chat_function(&c->j, k));
    if (!code && results) code = gemma_results(c, calls, i + 1, end);
    c->at.in_answer = calls != 0;
    if (calls && !results) put_words(c->out, c->marks->result);
    else if (c->continued && end == c->n) return code;
    else if (july && chat_role(c, end, "assistant")) return code;
    else if (!results || (july && end < c->n)) close_turn(c->marks, c->out);
    return code;
}

static int gemma_turn(chat *c, uint32_t i) {
    put_words(c->out, c->marks->turn);
    int code = put_member_text(c, c->out, chat_message(c, i), "role");
    put_words(c->out, "\n");
    if (!code) code = gemma_content(c, i, 0);
    close_turn(c->marks, c->out);
    c->at.in_answer = 0;
    return code;
}

static int gemma_conversation(chat *c) {
    int code = MOTE_OK, answered = 0;
    put_words(c->out, "<bos>");
    code = gemma_system(c);
    for (uint32_t i = c->round = c->leading; i < c->n; i++)
        if (chat_role(c, i, "user")) c->round = i + 1;
    for (uint32_t i = c->leading, end; !code && i < c->n; i = end) {
        end = i + 1;
        if (i == c->round) c->at.asked = c->out->text.size;
        if (chat_role(c, i, "assistant")) {
            while (chat_calls_of(c, i) && chat_role(c, end, "tool")) end++;
            code = gemma_answer(c, i, end, answered);
            answered = 1;
        } else if (!chat_role(c, i, "tool")) {                 /* a result of no call has become a question's text */
            code = gemma_turn(c, i);
            answered = 0;
        }
    }
    return code;
}

/* The beginning of the model's turn; in_answer: what comes after the results in it. */
static void gemma_prompt(int family, int off, int in_answer, marked_text *out) {
    const chat_marks *const m = chat_marks_of(family);
    if (!in_answer) put_words(out, m->answer);
    if (in_answer ? off || !(family & CHAT_PRESERVE) : !off || family & CHAT_BARE) return;
    put_words(out, m->think);
    put_words(out, "thought\n");
    if (off) put_words(out, m->think_end);
}

/* Messages that follow others: questions and results, which go on in the model's turn. */
static int gemma_further(chat *c) {
    int code = MOTE_OK;
    for (uint32_t i = 0; !code && i < c->n; i++) {
        const int result = chat_role(c, i, "tool");
        code = result ? gemma_result(c, i, 0, !i && c->goes_on == CHAT_ANSWERS) : gemma_turn(c, i);
        c->at.in_answer = result;
    }
    return code;
}
