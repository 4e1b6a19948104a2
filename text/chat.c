/* text/chat.c: messages -> prompt, in the format of the model: whole requests (JSON). It gives text, and which of it is from
   outside; it knows nothing of ids, models or sessions. Single turns are chat_turn.c's, the answer is chat_stream.c's.

   Requests are rendered as the family's templates do. What the programs refuse and clients send nevertheless has a meaning
   here: see engine.h at mote_render. Stricter than the programs on purpose: what they would print as Python source text (a
   list as a tool's answer) or pass over (a number as "tools") is an error.

   A request: {"messages": [...], "tools": [...], "enable_thinking": ..., "add_generation_prompt": ..., ...}
   All that comes out of its JSON is from outside, and so are the messages of a turn. The template's own words are not:
   its tags, the <think> it writes around a thought, the places for images inside a content. */

/* The tool messages that follow an assistant's with calls, in the order of the calls. */
static int chat_order_results(chat *c) {
    uint32_t *messages = (uint32_t *)(void *)c->messages.data, first;
    char *answering = (char *)buf_add(&c->answering, NULL, c->n);
    int code = answering ? MOTE_OK : fail_memory(c->err);
    if (!code) memset(answering, 0, c->n);
    for (uint32_t i = 0; !code && i < c->n; i = first) {
        uint32_t calls = chat_role(c, i, "assistant") ? json_get(&c->j, messages[i], "tool_calls") : 0, end = first = i + 1;
        if (!calls || c->j.nodes[calls].type != JSON_ARRAY) continue;
        while (chat_role(c, end, "tool")) end++;
        memset(answering + first, chat_calls_of(c, i) != 0, end - first);
        if (end > first + 1) code = order_results(&c->j, calls, messages + first, end - first, c->err);
        first = end;
    }
    return code;
}

/* The beginning of the model's turn, or what comes next in it. think: MOTE_THINK_DEFAULT (the template's own), _ON or _OFF. */
static void chat_prompt(int family, int think, int in_answer, marked_text *out) {
    const chat_marks *m = chat_marks_of(family);
    int off = think == MOTE_THINK_OFF || (think == MOTE_THINK_DEFAULT && family & CHAT_QUIET);
    if (family & CHAT_GLM) {
        glm_prompt(m, family & CHAT_LINED, off, out);
        return;
    }
    if (family & CHAT_LAGUNA) {
        laguna_prompt(m, family & CHAT_LINED, off, out);
        return;
    }
    if (family & CHAT_DEEPSEEK) {
        deepseek_prompt(m, family, off, in_answer, out);
        return;
    }
    if (family & CHAT_GEMMA) {
        gemma_prompt(family, off, in_answer, out);
        return;
    }
    if (!(family & CHAT_MISTRAL)) put_words(out, m->answer);       /* there it is how a question ends */
    if (family & CHAT_OPEN) off = 0;
    else if (family & (CHAT_INSTRUCT | CHAT_HARMONY) || !*m->think || (!off && family & CHAT_QWEN3)) return;
    put_words(out, m->think);
    put_words(out, "\n");
    if (!off) return;
    put_words(out, "\n");
    put_words(out, m->think_end);
    put_words(out, "\n\n");
}

/* 1: a message ends in text that can be continued. */
static int chat_ends_in_text(const chat *c, uint32_t i) {
    const json *j = &c->j;
    uint32_t content = json_get(j, chat_message(c, i), "content"), last = 0;
    if (content && j->nodes[content].type == JSON_STRING) return 1;
    if (!content || j->nodes[content].type != JSON_ARRAY) return 0;
    for (uint32_t k = content + 1; k < j->nodes[content].next; k = j->nodes[k].next) last = k;
    return last && chat_part_kind(j, last) == PART_TEXT;
}

/* "continue_final_message": the last message is an answer that the model goes on with. */
static int chat_check_continued(const chat *c) {
    uint32_t i = c->n - 1, calls = json_get(&c->j, chat_message(c, i), "tool_calls");
    const char *wrong = NULL;
    if (c->prompt) wrong = "add_generation_prompt would begin another";
    else if (!chat_role(c, i, "assistant")) wrong = "the last message is not the assistant's";
    else if (calls && c->j.nodes[calls].type == JSON_ARRAY && c->j.nodes[calls].size) wrong = "the last message calls tools";
    else if (!chat_ends_in_text(c, i)) wrong = "the last message has no text to continue";
    return wrong ? fail(c->err, MOTE_EINVAL, "continue_final_message: %s", wrong) : MOTE_OK;
}

/* What names of efforts mean, templates' and clients'. -1: nothing. */
static int effort_named(slice name) {
    static const struct { const char *name; int effort; } known[] = {
        {"none", EFFORT_NONE}, {"off", EFFORT_NONE}, {"minimal", EFFORT_LOW}, {"low", EFFORT_LOW}, {"medium", EFFORT_MEDIUM},
        {"high", EFFORT_HIGH}, {"xhigh", EFFORT_HIGH}, {"max", EFFORT_HIGH}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (name.n == strlen(known[i].name) && !memcmp(name.p, known[i].name, name.n)) return known[i].effort;
    return -1;
}

/* "reasoning_effort", where the template reads it. *think: none is no thinking, unless the template has no way to say that. */
static int read_effort(chat *c, int *think) {
    const uint32_t node = json_get(&c->j, 0, "reasoning_effort");
    const int always = c->family & CHAT_HARMONY;
    buf name;
    if (!(c->family & CHAT_EFFORTS)) return MOTE_OK;
    if (always) c->effort = EFFORT_MEDIUM;
    memset(&name, 0, sizeof name);
    if (node && c->j.nodes[node].type != JSON_NULL) {
        put_string(&c->j, node, &name);
        c->effort = name.failed ? -1 : effort_named(slice_of(name.data, name.size));
    }
    int code = name.failed ? fail_memory(c->err) : MOTE_OK;
    if (!code && c->effort < 0)
        code = fail(c->err, MOTE_EINVAL, "Unexpected reasoning effort %.*s: none, minimal, low, medium, high, xhigh or max",
                    (int)(name.size < 40 ? name.size : 40), name.size ? name.data : "");
    buf_free(&name);
    if (c->effort == EFFORT_NONE) *think = MOTE_THINK_OFF;
    if (*think == MOTE_THINK_OFF && !always) c->effort = EFFORT_NONE;
    return code;
}

/* Reads the members of a request but the messages themselves. *think: MOTE_THINK_... */
static int chat_options(chat *c, int *think) {
    const int named = c->family & CHAT_DEEPSEEK && json_get(&c->j, 0, "thinking");      /* which goes before the name that others have */
    const char *const key = named ? "thinking" : "enable_thinking";
    uint32_t enable = json_get(&c->j, 0, key);
    int on = chat_flag(c, key, 0), preserve = chat_flag(c, "preserve_thinking", c->family & CHAT_EFFORT ? 1 : 0);
    c->continued = chat_flag(c, "continue_final_message", 0);
    c->vision_ids = chat_flag(c, "add_vision_id", 0);
    c->prompt = chat_flag(c, "add_generation_prompt", !c->continued);
    if (on < 0 || c->prompt < 0 || preserve < 0 || c->vision_ids < 0 || c->continued < 0) return MOTE_EINVAL;
    c->preserve = preserve && c->family & CHAT_PRESERVE;
    if (c->family & CHAT_GLM) {
        const int clears = chat_flag(c, "clear_thinking", 1);
        if (clears < 0) return MOTE_EINVAL;
        c->preserve = !clears && !(c->family & CHAT_LINED);
    }
    int chosen = enable && c->j.nodes[enable].type != JSON_NULL;
    *think = !chosen ? MOTE_THINK_DEFAULT : on ? MOTE_THINK_ON : MOTE_THINK_OFF;
    int code = read_effort(c, think);
    c->think = *think;
    return code || !c->continued ? code : chat_check_continued(c);
}

/* Messages that follow others, as the families write them that are not of chat_qwen.c: questions and results. */
static int chat_further(chat *c) {
    int code = MOTE_OK;
    for (uint32_t i = 0; !code && i < c->n; i++) {
        const int result = chat_role(c, i, "tool");
        if (c->family & CHAT_GEMMA) return gemma_further(c);
        if (c->family & CHAT_DEEPSEEK) return deepseek_messages(c);
        if (c->family & CHAT_GLM) code = glm_message(c, i);
        else if (c->family & CHAT_LAGUNA) code = laguna_message(c, i);
        else if (c->family & CHAT_LLAMA3) code = result ? llama_result(c, i) : llama_message(c, i, 0);
        else if (c->family & CHAT_MISTRAL) code = mistral_user(c, i);
        else if (c->family & CHAT_HARMONY) code = result ? harmony_result(c, i, 0) : harmony_message(c, i);
        else code = result && c->family & CHAT_CODER ? coder_result(c, i) : plain_message(c, i);
    }
    return code;
}

/* All messages, as the family writes them. */
static int chat_conversation(chat *c) {
    if (c->goes_on) return chat_further(c);
    if (c->family & CHAT_GLM) return glm_conversation(c);
    if (c->family & CHAT_LAGUNA) return laguna_conversation(c);
    if (c->family & CHAT_DEEPSEEK) return deepseek_conversation(c);
    if (c->family & CHAT_LLAMA3) return llama_conversation(c);
    if (c->family & CHAT_MISTRAL) return mistral_conversation(c);
    if (c->family & CHAT_CODER) return coder_conversation(c);
    if (c->family & CHAT_HARMONY) return harmony_conversation(c);
    if (c->family & CHAT_GEMMA) return gemma_conversation(c);
    return c->family & (CHAT_CHATML | CHAT_ZEPHYR) ? plain_conversation(c) : qwen_conversation(c);
}

/* The lists of a request. */
static int chat_read(chat *c) {
    const json *j = &c->j;
    int code = MOTE_OK;
    if (j->nodes[0].type != JSON_OBJECT) return fail(c->err, MOTE_EINVAL, "chat request: not a JSON object");
    uint32_t messages = chat_list(c, "messages", &code);
    c->tools = chat_list(c, "tools", &code);
    c->has_tools = c->tools != 0;
    if (code) return code;
    if (!messages) return fail(c->err, MOTE_EINVAL, "No messages provided.");
    c->messages.size = c->n = 0;
    for (uint32_t k = messages + 1; k < j->nodes[messages].next; k = j->nodes[k].next) {
        if (j->nodes[k].type != JSON_OBJECT) return fail(c->err, MOTE_EINVAL, "chat request: a message is no object");
        buf_add(&c->messages, &k, sizeof k);
        c->n++;
    }
    return c->messages.failed ? fail_memory(c->err) : MOTE_OK;
}

/* A history that the template cannot say becomes one that it can. */
static int chat_rewrite(chat *c) {
    int rewrites = 0;
    while (chat_leads(c, c->leading)) c->leading++;
    c->at.changed = history_changes(c, &rewrites);
    int code = rewrites ? put_history(c, &c->anew) : MOTE_OK;
    c->leading = 0;
    if (code || !rewrites) return code;
    json_free(&c->j);
    code = json_parse(&c->j, c->anew.data, c->anew.size, "chat request", c->err);
    if (code == MOTE_EFORMAT) return fail(c->err, MOTE_EINVAL, "chat request: the arguments of a call are nested too deep");
    return code ? code : chat_read(c);
}

static int chat_request(chat *c) {
    int code = chat_read(c);
    if (!code) code = chat_order_results(c);
    if (!code && !c->goes_on) code = chat_rewrite(c);
    if (!code) code = chat_options(c, &c->think);
    c->prompt &= !c->is_timeline;
    if (!code) code = chat_conversation(c);
    c->at.answer = c->out->text.size;
    if (!code && c->prompt) chat_prompt(c->family, c->think, c->at.in_answer, c->out);
    return code;
}

/* Appends the prompt to out; nothing after an error. numbers: of its images, NULL where nobody asks. */
static int chat_render_images(chat_family f, const char *request, size_t len, int what, marked_text *out, chat_places *at, buf *numbers,
                              mote_error *err) {
    chat c;
    size_t before = out->text.size, marks = out->outside.size;
    if (f == CHAT_UNKNOWN) return chat_unknown(err);
    memset(&c, 0, sizeof c);
    c.family = f;
    c.marks = chat_marks_of(f);
    c.out = out;
    c.err = err;
    c.goes_on = what == CHAT_TIMELINE ? CHAT_WHOLE : what;
    c.is_timeline = what == CHAT_TIMELINE;
    c.numbers = numbers;
    int code = json_parse(&c.j, request, len, "chat request", err);
    if (code == MOTE_EFORMAT) code = MOTE_EINVAL; /* not a file's format: the caller's argument */
    if (code && err) err->code = code;
    if (!code) code = chat_request(&c);
    /* Also in place of an error, which may come of text that is missing. */
    if (marked_failed(out) || marked_failed(&c.system) || marked_failed(&c.content) || c.reasoning.failed) code = fail_memory(err);
    if (code) {
        out->text.size = before;
        out->outside.size = marks;
    }
    json_free(&c.j);
    buf_free(&c.anew);
    buf_free(&c.messages);
    buf_free(&c.answering);
    marked_free(&c.system);
    marked_free(&c.content);
    buf_free(&c.reasoning);
    *at = c.at;
    return code;
}

static int chat_render_at(chat_family f, const char *request, size_t len, int what, marked_text *out, chat_places *at, mote_error *err) {
    return chat_render_images(f, request, len, what, out, at, NULL, err);
}

static int chat_render(chat_family f, const char *request, size_t len, marked_text *out, mote_error *err) {
    chat_places at;
    return chat_render_at(f, request, len, CHAT_WHOLE, out, &at, err);
}
