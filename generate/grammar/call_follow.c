/* generate/grammar/call_follow.c: follows an answer through a call, byte by byte and mark by mark, by the grammar that call.c has made of the
   tools. It knows the forms of calls, and what is a schema's the rest of the follower follows (follow.c). */

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
