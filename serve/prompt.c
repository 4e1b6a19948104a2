/* serve/prompt.c: messages as the chat template takes them, put together of a request's own escaped strings, and the tokens
   that the template makes of them. It knows what a message is, and nothing of how an API words one. */

static void ask_close(request *x) {
    for (int i = 0; i < x->image_count; i++) free((void *)(uintptr_t)x->images[i].data);
    buf_free(&x->noted);
    buf_free(&x->system);
    buf_free(&x->messages);
    buf_free(&x->tools);
    tools_close(x);
}

/* ---- Contents ------------------------------------------------------------------------------------------------------- */

/* By the user, who may show images; by others, in texts alone; by a tool: what is neither text nor an image that is read is told as such. */
enum { CONTENT_ASKED, CONTENT_SAID, CONTENT_RESULT };

/* The text of a part; 0: it has none. */
static uint32_t part_text(const fields *part) {
    fields source = {part->j, field(part, "source"), part->f};
    uint32_t text = field(part, "text");
    if (!text && source.object && field_is(part, "type", "document") && field_is(&source, "type", "text")) text = field(&source, "data");
    if (!text && field_is(part, "type", "refusal")) text = field(part, "refusal");
    return text && node_type(part, text) == JSON_STRING ? text : 0;
}

/* [image], for a part of type image, image_url or input_image. */
static void put_placeholder(buf *out, const fields *part) {
    uint32_t type = field(part, "type");
    const char *name = type && node_type(part, type) == JSON_STRING ? part->j->text + part->j->nodes[type].start : "";
    size_t n = *name ? part->j->nodes[type].size : 0;
    if (n > 6 && !memcmp(name, "input_", 6)) name += 6, n -= 6;
    if (n > 4 && !memcmp(name + n - 4, "_url", 4)) n -= 4;
    buf_text(out, "[");
    if (http_is_token(name, n)) buf_add(out, name, n);
    else buf_text(out, "attachment");
    buf_text(out, "]");
}

/* What is found: {"type": "search_result", "title": ..., "source": ..., "content": [...]}, or a document with such a list in its source.
   0: the part is neither. */
static int put_found(buf *out, const fields *part) {
    static const char *const names[] = {"title", "source"};
    fields source = {part->j, field(part, "source"), part->f}, in = *part;
    if (field_is(part, "type", "document") && source.object && field_is(&source, "type", "content")) in = source;
    else if (!field_is(part, "type", "search_result")) return 0;
    const uint32_t content = field(&in, "content");
    for (int i = 0; i < 2; i++) {
        const uint32_t name = field(part, names[i]);
        if (!name || node_type(part, name) != JSON_STRING) continue;
        put_inside(out, part->j, name);
        buf_text(out, "\\n");
    }
    if (content && node_type(part, content) == JSON_STRING) put_inside(out, part->j, content);
    for (uint32_t k = content + 1; content && node_type(part, content) == JSON_ARRAY && k < node_next(part, content); k = node_next(part, k)) {
        fields inner = {part->j, k, part->f};
        const uint32_t text = part_text(&inner);
        if (text) put_inside(out, part->j, text);
        else put_placeholder(out, &inner);
    }
    return 1;
}

/* The JSON of a value, inside a JSON text. */
static void put_json_inside(buf *out, const json *j, uint32_t node) {
    buf text = {NULL, 0, 0, 0};
    put_node(&text, j, node);
    put_escaped(out, text.data, text.size);
    out->failed |= text.failed;
    buf_free(&text);
}

/* A part of a tool's result that is no text: a word for what mote cannot read, the name of a tool, or else its JSON. */
static void put_result_part(buf *out, const fields *part) {
    static const char *const holds[] = {"source", "data", "image_url", "input_audio", "file", "file_id", "file_data", "file_url", "blob"};
    const uint32_t name = field(part, "tool_name");
    int other = !part->j->nodes[part->object].size;
    for (size_t i = 0; i < sizeof holds / sizeof holds[0]; i++) other |= field(part, holds[i]) != 0;
    if (field_is(part, "type", "tool_reference") && name) {
        buf_text(out, "[tool_reference: ");
        put_inside(out, part->j, name);
        buf_text(out, "]");
    } else if (is_image_part(part)) {      /* of a model that reads none */
        buf_text(out, UNREAD_IMAGE);
    } else if (other || (field(part, "type") && part->j->nodes[part->object].size == 1)) {
        put_placeholder(out, part);
    } else {
        put_json_inside(out, part->j, part->object);
    }
}

/* Refuses a part that is no text. */
static void refuse_part(request *x, const fields *part, const char *where) {
    const uint32_t type = field(part, "type");
    const int reads = x->a->server->reads_images;
    char *name = type ? node_text(part->j, type) : NULL;
    if (!is_image_part(part))
        refuse(x->q.f, 400, where, "%s holds a part of type \"%.40s\": mote takes text %s", where, name ? name : "", reads ? "and images" : "alone");
    else if (!reads) refuse(x->q.f, 400, where, "%s holds a part of type \"%.40s\": this model reads no images", where, name ? name : "");
    else refuse(x->q.f, 400, where, "%s holds an image: they may stand in what a user says and in a tool's result", where);
    free(name);
}

/* A content, a text or a list of parts, into the inside of a JSON text, or of the last of several: see put_contents. where: for messages. */
static void put_content(request *x, buf *out, uint32_t content, int by, const char *where) {
    const fields *q = &x->q;
    if (!content || node_type(q, content) == JSON_NULL) return;
    if (node_type(q, content) == JSON_STRING) {
        put_inside(out, q->j, content);
        return;
    }
    if (node_type(q, content) != JSON_ARRAY && by == CONTENT_RESULT) {
        put_json_inside(out, q->j, content);
        return;
    }
    if (node_type(q, content) != JSON_ARRAY) {
        refuse(q->f, 400, where, "%s must be a text or a list of parts", where);
        return;
    }
    for (uint32_t k = content + 1; !q->f->status && k < node_next(q, content); k = node_next(q, k)) {
        fields part = {q->j, k, q->f};
        uint32_t text = part_text(&part);
        if (field_is(&part, "type", "search_result") && k > content + 1) buf_text(out, "\\n\\n");
        if (text) {
            put_inside(out, q->j, text);
        } else if (put_found(out, &part)) {
            continue;
        } else if (by != CONTENT_SAID && x->a->server->reads_images && is_image_part(&part)) {
            ask_image(x, out, &part);
        } else if (by == CONTENT_RESULT && node_type(q, k) == JSON_OBJECT) {
            put_result_part(out, &part);
        } else if (by == CONTENT_RESULT) {
            put_json_inside(out, q->j, k);
        } else {
            refuse_part(x, &part, where);
        }
    }
}

/* A content that was put together: a text, or, where images came into it, a list of parts, of which these images end and begin texts. */
static void put_contents(const request *x, buf *out, const buf *content, int images_before) {
    const int has_images = x->image_count > images_before;
    buf_text(out, has_images ? "[{\"type\": \"text\", \"text\": \"" : "\"");
    buf_add(out, content->data, content->size);
    buf_text(out, has_images ? "\"}]" : "\"");
    out->failed |= content->failed;
}

/* ---- Messages ------------------------------------------------------------------------------------------------------- */

/* A system message: those at the beginning become one, the others stay where they are. */
static void ask_system(request *x, uint32_t content, const char *where) {
    if (x->has_turns) put_next(&x->messages), buf_text(&x->messages, "{\"role\": \"system\", \"content\": \"");
    else if (x->system.size) buf_text(&x->system, "\\n\\n");
    put_content(x, x->has_turns ? &x->messages : &x->system, content, CONTENT_SAID, where);
    if (x->has_turns) buf_text(&x->messages, "\"}");
    x->last_answers = 0;
}

/* A user's turn of what was put together. images_before: how many there were before it. */
static void ask_user_said(request *x, const buf *content, int images_before) {
    x->has_turns = 1;
    x->last_answers = 0;
    put_next(&x->messages);
    buf_text(&x->messages, "{\"role\": \"user\", \"content\": ");
    put_contents(x, &x->messages, content, images_before);
    buf_text(&x->messages, "}");
}

/* images: Ollama's list of them; 0: not given. */
static void ask_user(request *x, uint32_t content, uint32_t images, const char *where) {
    const int before = x->image_count;
    buf said = {NULL, 0, 0, 0};
    ask_image_list(x, &said, images, 0);
    put_content(x, &said, content, CONTENT_ASKED, where);
    ask_user_said(x, &said, before);
    buf_free(&said);
}

/* The result of a tool. id: of the call; images: as of ask_user. */
static void ask_result(request *x, uint32_t id, uint32_t content, uint32_t images, const char *where) {
    const int before = x->image_count;
    buf result = {NULL, 0, 0, 0};
    x->has_turns = 1;
    x->last_answers = 0;
    put_next(&x->messages);
    buf_text(&x->messages, "{\"role\": \"tool\"");
    put_member(&x->messages, x->q.j, "tool_call_id", id);
    buf_text(&x->messages, ", \"content\": ");
    ask_image_list(x, &result, images, 1);
    put_content(x, &result, content, CONTENT_RESULT, where);
    put_contents(x, &x->messages, &result, before);
    buf_text(&x->messages, "}");
    buf_free(&result);
}

typedef struct past_call {                 /* nodes of a request; 0: not given */
    uint32_t id, space, name;
    uint32_t arguments;                    /* an object, or its JSON as a text, which may be empty */
    uint32_t input;                        /* of a custom tool: a text in place of arguments */
    const char *says;                      /* the name, where there is no node of it */
} past_call;

/* An object; what is none, as it was cut off or never was one, as a text, which the template writes as it is. */
static void put_arguments(request *x, buf *out, uint32_t arguments) {
    const fields *q = &x->q;
    json inner;
    buf other = {NULL, 0, 0, 0};
    memset(&inner, 0, sizeof inner);
    char *text = arguments && node_type(q, arguments) == JSON_STRING ? node_text(q->j, arguments) : NULL;
    const int is_json = text && !json_parse(&inner, text, strlen(text), "arguments", NULL);
    if (!arguments || (text && !text[strspn(text, " \n\t\r")]) || (is_json && inner.nodes[0].type == JSON_NULL)) buf_text(out, "{}");
    else if (is_json && inner.nodes[0].type == JSON_OBJECT) put_node(out, &inner, 0);
    else if (text || node_type(q, arguments) == JSON_OBJECT) put_node(out, q->j, arguments);
    else put_node(&other, q->j, arguments), put_quoted(out, other.data, other.size);
    out->failed |= other.failed;
    buf_free(&other);
    json_free(&inner);
    free(text);
}

/* One call of an answer of the past. */
static void ask_call(request *x, buf *out, const past_call *c, const char *where) {
    const fields *q = &x->q;
    if (!c->says && (!c->name || node_type(q, c->name) != JSON_STRING)) {
        refuse(q->f, 400, where, "%s holds a call without a name", where);
        return;
    }
    put_next(out);
    buf_text(out, "{\"type\": \"function\"");
    put_member(out, q->j, "id", c->id);
    buf_text(out, ", \"function\": {\"name\": \"");
    if (c->says) buf_text(out, c->says);
    else put_tool_name(out, q->j, c->space, c->name);
    buf_text(out, "\", \"arguments\": ");
    if (c->input) buf_text(out, "{\"input\": "), put_node(out, q->j, c->input), buf_text(out, "}");
    else put_arguments(x, out, c->arguments);
    buf_text(out, "}}");
}

/* An answer of the past: the insides of JSON texts, and calls with commas between them. */
static void ask_assistant(request *x, const buf *text, const buf *thought, const buf *calls) {
    buf *out = &x->messages;
    x->has_turns = x->last_answers = 1;
    x->last_calls = calls->size > 0;
    put_next(out);
    buf_text(out, "{\"role\": \"assistant\", \"content\": \"");
    buf_add(out, text->data, text->size);
    buf_text(out, "\"");
    if (thought->size) {
        buf_text(out, ", \"reasoning_content\": \"");
        buf_add(out, thought->data, thought->size);
        buf_text(out, "\"");
    }
    if (calls->size) {
        buf_text(out, ", \"tool_calls\": [");
        buf_add(out, calls->data, calls->size);
        buf_text(out, "]");
    }
    buf_text(out, "}");
    out->failed |= text->failed | thought->failed | calls->failed;
}

/* The last message is to be continued: what has begun is no thinking, no call and no JSON that a mask could go on with. where:
   the field that asks for it. */
static void ask_continued(request *x, const char *where) {
    failure *f = x->q.f;
    x->continues = 1;
    if (!x->last_answers) refuse(f, 400, where, "%s: the last message is not the assistant's", where);
    else if (x->last_calls) refuse(f, 400, where, "%s: the last message calls a tool, whose result must follow", where);
    else if (x->a->schema || x->choice == CHOICE_REQUIRED)
        refuse(f, 400, where, "%s: an answer that has begun cannot be made to follow a schema or to be a call", where);
    x->thinks = MOTE_THINK_OFF;
}

/* ---- The prompt ----------------------------------------------------------------------------------------------------- */

/* The token that a text is as a whole; -1: it is none. */
static int32_t token_of(const mote_model *model, const char *text) {
    int32_t id;
    size_t n = 0;
    return !mote_tokenize(model, text, strlen(text), 1, &id, 1, &n, NULL) && n == 1 ? id : -1;
}

/* Of a text that is a prompt of its own: it begins as the model's texts do. special: as in mote_tokenize; end: the token at its end, -1:
   none. */
static int32_t *token_list(const mote_model *model, const char *text, size_t size, int special, int32_t end, size_t *count, mote_error *error) {
    const int32_t begin = mote_model_info(model)->begin_token;
    const size_t first = begin >= 0;                        /* places for it */
    int32_t *ids = NULL;
    *count = 0;
    for (size_t need = size / 2 + 64;; need = *count) {
        int32_t *more = (int32_t *)realloc(ids, (first + need + 1) * sizeof *ids);
        if (more) ids = more;
        else error->code = MOTE_ENOMEM;
        if (more && !mote_tokenize(model, text, size, special, ids + first, need, count, error)) {
            const size_t given = special && first && *count && ids[first] == begin;
            if (first) ids[0] = begin;
            memmove(ids + first, ids + first + given, (*count - given) * sizeof *ids);
            *count += first - given;
            if (end >= 0) ids[(*count)++] = end;
            return ids;
        }
        if (!more || error->code != MOTE_EINVAL || *count <= need) break;
    }
    free(ids);
    return NULL;
}

/* The request that the template takes. */
static void put_chat(const request *x, buf *text) {
    buf_text(text, "{\"messages\": [");
    if (x->system.size) {
        buf_text(text, "{\"role\": \"system\", \"content\": \"");
        buf_add(text, x->system.data, x->system.size);
        buf_text(text, x->messages.size ? "\"}, " : "\"}");
    }
    buf_add(text, x->messages.data, x->messages.size);
    buf_text(text, "]");
    if (x->a->tools) buf_text(text, ", \"tools\": "), buf_text(text, x->a->tools);
    if (x->thinks) putf(text, ", \"enable_thinking\": %s", x->thinks == MOTE_THINK_ON ? "true" : "false");
    const int preserves = x->preserves == MOTE_THINK_ON;
    if (x->preserves) putf(text, ", \"preserve_thinking\": %s, \"clear_thinking\": %s", preserves ? "true" : "false", preserves ? "false" : "true");
    if (x->effort) putf(text, ", \"reasoning_effort\": \"%s\"", x->effort);
    if (!x->adds_prompt || x->continues) buf_text(text, ", \"add_generation_prompt\": false");
    if (x->continues) buf_text(text, ", \"continue_final_message\": true");
    buf_text(text, "}");
    text->failed |= x->messages.failed | x->system.failed;
}

/* Notes what the template cannot say as it was given: tools, or words of the list of messages, whatever the API calls it. */
static void note_changes(request *x, const buf *text) {
    char words[128], name[64];
    size_t n = 0;
    mote_error error = {0, ""};
    if (mote_render_changes(x->a->server->model, text->data, text->size, words, sizeof words, &n, &error)) {
        refuse_error(x->q.f, &error);
        return;
    }
    for (size_t at = 0, size; at < n; at += size + 2) {
        for (size = 0; at + size < n && words[at + size] != ','; size++) {}
        const int tools = size == 5 && !memcmp(words + at, "tools", 5);
        const int length = tools ? snprintf(name, sizeof name, "tools")
                                 : snprintf(name, sizeof name, "%s.%.*s", x->list ? x->list : "messages", (int)size, words + at);
        note(&x->noted, name, (size_t)length);
    }
}

/* The prompt's tokens, of all that was put together. */
static void ask_render(request *x) {
    answer *a = x->a;
    mote_error error = {0, ""};
    buf text = {NULL, 0, 0, 0};
    connection *c = a->client;
    if (x->q.f->status) return;
    if (c->images > x->image_text) {                       /* they are text after all, and cost what text does */
        const int status = connection_take(c, c->taken + REQUEST_TEXTS * (c->images - x->image_text));
        if (status) refuse(x->q.f, status, NULL, "%s", c->in.problem);
        if (status) return;
        c->images = x->image_text;
    }
    put_chat(x, &text);
    if (text.failed) refuse(x->q.f, 503, NULL, "out of memory");
    for (size_t need = text.size / 2 + 64; !x->q.f->status; need = a->prompt_count) {
        free(a->prompt);
        a->prompt = (int32_t *)malloc(need * sizeof *a->prompt);
        int code = a->prompt ? mote_render_tokens(a->server->model, text.data, text.size, a->prompt, need, &a->prompt_count,
                                                  &error) : fail_memory(&error);
        if (!code) break;
        if (code != MOTE_EINVAL || a->prompt_count <= need) refuse_error(x->q.f, &error);
    }
    if (!x->q.f->status) note_changes(x, &text);
    place_images(x, &text);
    buf_free(&text);
}
