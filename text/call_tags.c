/* text/call_tags.c: a call as tags, Qwen3.5's: <function=f>\n<parameter=x>\n1\n</parameter>\n</function>. It knows where a
   value ends, and nothing of what it means. */

enum { IN_CALL, IN_FUNCTION, IN_PARAMETER, AFTER_VALUE, AFTER_FUNCTION };

static void value_begins(call_reader *c, const char *text, const call_tag *tag) {
    c->part.name = (size_t)(tag->name.p - text);
    c->part.name_size = tag->name.n;
    c->at += tag->size;
    c->part.value = c->at;
    c->part.value_size = 0;
    c->nested = c->functions = 0;
    c->whole = 0;
    c->state = IN_PARAMETER;
}

/* 1: the schema is one of those that the parameters so far have. */
static int is_given(const call_reader *c, uint32_t schema) {
    const uint32_t *known = (const uint32_t *)(const void *)c->known.data;
    for (size_t i = 0; i < c->known.size / sizeof *known; i++)
        if (known[i] == schema) return 1;
    return 0;
}

/* The value at hand ends at part.value_size. */
static void value_ends(call_reader *c, const char *text) {
    uint32_t schema = parameter_schema(&c->arguments, slice_of(text + c->part.name, c->part.name_size));
    buf_add(&c->parts, &c->part, sizeof c->part);
    if (schema && !is_given(c, schema)) buf_add(&c->known, &schema, sizeof schema);
    c->part.value = 0;
}

/* 1: a <parameter=...> on a line of its own ends the value before it, whose end tag was forgotten. Only one that the tool has
   and that was not given. Of a tool without a list of them, any. */
static int ends_forgotten(const call_reader *c, const char *text, slice name) {
    const argument_writer *a = &c->arguments;
    uint32_t schema = parameter_schema(a, name);
    slice own = slice_of(text + c->part.name, c->part.name_size);
    if (c->nested || c->functions) return 0;
    if (own.n == name.n && !memcmp(own.p, name.p, name.n)) return 0;
    return schema ? !is_given(c, schema) : !a->parameters || !json_get(a->tools, a->parameters, "properties");
}

enum { TURNS_BACK = 64 };                        /* so often what follows a call is read again */

/* The text that followed </parameter> and </function> was no value's: the call had ended there. */
static int tags_turn_back(call_reader *c, const char *text) {
    c->parts.size = c->whole_parts;
    c->part = c->whole_part;
    c->closed = c->whole;
    c->turns_back++;
    value_ends(c, text);
    return call_ends_before_text(c);
}

/* A '<' in a value. What it opens on a line of its own, as a call within the text would, it closes itself. */
static int tags_in_value(call_reader *c, slice text, const call_tag *tag, int end) {
    const int on_line = text.p[c->at - 1] == '\n';
    const size_t here = c->at;
    if (tag->kind == TAG_LAST) {         /* an answer that is over, and ends with </tool_call>, forgot the other end tags */
        const char *const closes = chat_marks_of_answers->call_end;
        slice all = slice_trim(text);
        if (end == TEXT_ENDS && c->whole && c->turns_back < TURNS_BACK) return tags_turn_back(c, text.p);
        if (end != TEXT_ENDS || !slice_ends(all, closes) || c->nested || c->functions) return CALL_NONE;
        c->at = (size_t)(all.p + all.n - text.p);
        c->end = c->at - strlen(closes);
        c->part.value_size = c->end - c->part.value;
        value_ends(c, text.p);
        return CALL_WHOLE;
    }
    if (tag->kind == TAG_PARAMETER && on_line && ends_forgotten(c, text.p, tag->name)) {
        c->part.value_size = here - c->part.value;
        value_ends(c, text.p);
        value_begins(c, text.p, tag);
        return CALL_MORE;
    }
    c->at += tag->size ? tag->size : 1;
    if (tag->kind == TAG_PARAMETER) c->nested += on_line;
    if (tag->kind == TAG_FUNCTION) c->functions += on_line;
    if (tag->kind == TAG_PARAMETER_END) {
        c->is_own = !c->nested;
        c->nested -= c->nested > 0;
        c->part.value_size = here - c->part.value;
        c->state = AFTER_VALUE;
    } else if (tag->kind == TAG_FUNCTION_END && c->functions) {
        c->functions--;
    } else if (tag->kind == TAG_FUNCTION_END) {
        c->part.value_size = here - c->part.value;
        c->state = AFTER_FUNCTION;
    }
    return CALL_MORE;
}

/* After a </parameter>: if no syntax follows, it was the value's text. */
static int tags_after_value(call_reader *c, slice text, const call_tag *tag) {
    const int next = tag->kind == TAG_OPEN || (tag->kind == TAG_FUNCTION && call_names(c, tag->name));
    const slice own = slice_of(text.p + c->function, c->function_size);
    if (tag->kind == TAG_FUNCTION) (void)call_names(c, own);
    c->state = IN_PARAMETER;
    if (tag->kind == TAG_FUNCTION_END && (c->is_own || !c->functions)) {
        c->at += tag->size;
        c->state = AFTER_FUNCTION;
        if (!c->is_own) return CALL_MORE;
        c->whole = c->at;
        c->whole_part = c->part;
        c->whole_parts = c->parts.size;
    } else if (c->is_own && tag->kind == TAG_PARAMETER) {
        value_ends(c, text.p);
        value_begins(c, text.p, tag);
    } else if (c->is_own && (next || tag->kind == TAG_CLOSE)) {
        value_ends(c, text.p);
        return call_ends(c, tag);
    }
    return CALL_MORE;
}

/* After a </function>: if the call is not over, it was the text of the value at hand; without one the call is over, and text follows. */
static int tags_after_function(call_reader *c, slice text, const call_tag *tag) {
    const slice own = slice_of(text.p + c->function, c->function_size);
    int over = call_is_over(c, tag);
    if (!over && tag->kind == TAG_FUNCTION && call_names(c, tag->name)) over = call_ends(c, tag);
    if (tag->kind == TAG_FUNCTION) (void)call_names(c, own);
    if (over && c->part.value) value_ends(c, text.p);
    if (over) return CALL_WHOLE;
    if (!c->part.value) return call_ends_before_text(c);
    c->state = IN_PARAMETER;
    return CALL_MORE;
}

static int tags_in_function(call_reader *c, slice text, const call_tag *tag) {
    if (tag->kind == TAG_CLOSE) return call_ends(c, tag);
    if (tag->kind == TAG_PARAMETER) {
        value_begins(c, text.p, tag);
    } else if (tag->kind == TAG_FUNCTION_END) {
        c->closed = c->at += tag->size;
        c->state = AFTER_FUNCTION;
    } else {
        return CALL_NONE;
    }
    return CALL_MORE;
}

static int tags_begin(call_reader *c, slice text, const call_tag *tag) {
    if (tag->kind != TAG_FUNCTION || !call_names(c, tag->name)) return CALL_NONE;
    c->function = (size_t)(tag->name.p - text.p);
    c->function_size = tag->name.n;
    c->at += tag->size;
    c->state = IN_FUNCTION;
    return CALL_MORE;
}

static int tags_read(call_reader *c, slice text, int end) {
    for (int found = CALL_MORE;;) {
        if (c->state != IN_PARAMETER) {
            skip_blanks(c, text);
        } else if (c->at < text.n) {
            const char *next = (const char *)memchr(text.p + c->at, '<', text.n - c->at);
            c->at = next ? (size_t)(next - text.p) : text.n;
        }
        call_tag tag = tag_at(slice_from(text, c->at), end);
        if (tag.kind == TAG_PARTIAL) return CALL_MORE;
        switch (c->state) {
        case IN_CALL: found = tags_begin(c, text, &tag); break;
        case IN_FUNCTION: found = tags_in_function(c, text, &tag); break;
        case IN_PARAMETER: found = tags_in_value(c, text, &tag, end); break;
        case AFTER_VALUE: found = tags_after_value(c, text, &tag); break;
        default: found = tags_after_function(c, text, &tag);
        }
        if (found != CALL_MORE) return found;
    }
}

/* One line end after the opening tag, one before the end tag are not the value's. */
static slice value_text(const call_part *part, const char *text) {
    slice s = slice_of(text + part->value, part->value_size);
    s = slice_from(s, slice_starts(s, "\r\n") ? 2 : slice_starts(s, "\n"));
    s.n -= slice_ends(s, "\r\n") ? 2 : (size_t)slice_ends(s, "\n");
    return s;
}

/* The name and the values of the parameters. lined: a line end at either end of a value is not its own. */
static int put_call_values(call_reader *c, slice text, int lined, buf *arguments) {
    const call_part *parts = (const call_part *)(const void *)c->parts.data;
    size_t count = c->parts.failed ? 0 : c->parts.size / sizeof *parts;
    put_quoted(slice_of(text.p + c->function, c->function_size), &c->name);
    buf_text(arguments, "{");
    for (size_t i = 0; i < count; i++) {
        slice name = slice_of(text.p + parts[i].name, parts[i].name_size);
        size_t before = arguments->size;
        if (before > 1) buf_text(arguments, ", ");
        put_quoted(name, arguments);
        buf_text(arguments, ": ");
        const slice value = lined ? value_text(parts + i, text.p) : slice_of(text.p + parts[i].value, parts[i].value_size);
        if (!put_argument(&c->arguments, name, value, arguments)) arguments->size = before;
    }
    buf_text(arguments, "}");
    return 1;
}

static int tags_put(call_reader *c, slice text, buf *arguments) {
    return put_call_values(c, text, 1, arguments);
}
