/* text/chat_request.c: a request as the families' renderers see it: its messages, their roles and contents. It knows nothing of how
   a family writes them. */

enum { EFFORT_HIGH, EFFORT_MEDIUM, EFFORT_LOW, EFFORT_NONE };    /* the first is a template's own */

/* What of a request is not written as it was given, since the template cannot say it: see chat_history.c. */
enum {
    CHANGED_JOINED = 1, CHANGED_CALLS = 2, CHANGED_RESULTS = 4, CHANGED_SYSTEM = 8, CHANGED_QUESTION = 16,
    CHANGED_TURNS = 32,      /* they do not alternate */
    CHANGED_TOOLS = 64       /* nowhere */
};

/* Places in the text of a chat: where the last message in which the user asks has ended, and the beginning of an answer begins.
   0: the first is not there, or nothing follows it. And CHANGED_...; in_answer: the model's turn goes on. */
typedef struct chat_places { size_t asked, answer; int changed, in_answer; } chat_places;

/* A conversation; messages that follow others, and a result's mark; a conversation that a timeline holds, which ends with its last message. */
enum { CHAT_WHOLE, CHAT_GOES_ON, CHAT_ANSWERS, CHAT_TIMELINE };

typedef struct chat {
    json j;
    int family;               /* chat_family flags */
    const chat_marks *marks;  /* the family's */
    marked_text *out;
    mote_error *err;
    buf anew;                 /* the request's text, if it was written anew */
    buf messages;             /* uint32_t node of each message */
    buf answering;            /* a byte for each: 1: a result that follows calls; before anything is written anew */
    uint32_t n;               /* messages */
    uint32_t leading;         /* of these, the first ones that are the system turn */
    uint32_t holder;          /* Mistral's: holds the system text: the first in a user's turn, of 7B v0.3 and Nemo the last */
    uint32_t round;           /* where the last round begins, after the last message in which the user asks */
    int has_tools;            /* tools is a list that is not empty */
    uint32_t tools;           /* its node */
    int preserve, vision_ids; /* "preserve_thinking", "add_vision_id" */
    int effort;               /* of thinking: EFFORT_... */
    int think;                /* MOTE_THINK_... */
    int continued;            /* "continue_final_message" */
    int prompt;               /* "add_generation_prompt" */
    int goes_on;              /* CHAT_... */
    int is_timeline;          /* the conversation is what a timeline holds, which ends with its last message */
    unsigned images, videos;  /* so far, for vision_ids */
    buf *numbers;             /* int: of the images, see mote_render_images; NULL: nobody asks */
    marked_text system;       /* of the system turn */
    marked_text content;      /* of the message at hand */
    buf reasoning;
    chat_places at;
} chat;

/* Appends a value of the request, as put_json or put_str (put) writes it. */
static int put_value(const chat *c, marked_text *out, uint32_t node,
                     int (*put)(const json *, uint32_t, buf *, mote_error *)) {
    size_t begin = out->text.size;
    int code = put(&c->j, node, &out->text, c->err);
    mark_outside(out, begin, out->text.size);
    return code;
}

static uint32_t chat_message(const chat *c, uint32_t i) {
    return ((const uint32_t *)(const void *)c->messages.data)[i];
}

static int chat_role(const chat *c, uint32_t i, const char *role) {
    uint32_t node = i < c->n ? json_get(&c->j, chat_message(c, i), "role") : 0;
    return node && json_equals(&c->j, node, role);
}

/* Applications call the same thing by two names. */
static int chat_is_system(const chat *c, uint32_t i) {
    return chat_role(c, i, "system") || chat_role(c, i, "developer");
}

/* Kinds of parts of a message's content. */
enum { PART_OTHER, PART_TEXT, PART_IMAGE, PART_VIDEO };

static int chat_part_kind(const json *j, uint32_t item) {
    uint32_t type = json_get(j, item, "type");
    if (json_get(j, item, "image") || json_get(j, item, "image_url") || (type && json_equals(j, type, "image"))) return PART_IMAGE;
    if (json_get(j, item, "video") || (type && json_equals(j, type, "video"))) return PART_VIDEO;
    return json_get(j, item, "text") ? PART_TEXT : PART_OTHER;
}

/* The system messages that are the system turn: the first message, and in families that have no other place for them those that
   follow it at once. */
enum { CHAT_ONE_SYSTEM = CHAT_QWEN3_5 | CHAT_MISTRAL | CHAT_HARMONY };

static int chat_leads(const chat *c, uint32_t i) {
    return chat_is_system(c, i) && (!i || c->family & CHAT_ONE_SYSTEM);
}

static const char noted_system[] = "System message:\n";       /* before one that has no turn of its own */

/* Families whose templates know contents that are lists of parts, and take nothing but a text for one. */
enum { CHAT_PARTS = CHAT_QWEN3_5 | CHAT_LLAMA3 | CHAT_SMALL | CHAT_GEMMA | CHAT_GLM | CHAT_LAGUNA };

/* The number that an image has as "image"; without one how many come before it in the prompt. */
enum { IMAGE_NUMBERS = 1 << 30 };

static void put_image_number(chat *c, uint32_t item) {
    uint64_t given = 0;
    const int is_given = json_u64(&c->j, json_get(&c->j, item, "image"), &given) && given < IMAGE_NUMBERS;
    const int number = is_given ? (int)given : (int)c->images;
    buf_add(c->numbers, &number, sizeof number);
}

/* A part. What is no text becomes a place for the vision model's output. */
static int chat_part(chat *c, uint32_t item, int system, int counted) {
    const int kind = chat_part_kind(&c->j, item), image = kind == PART_IMAGE;
    if (kind == PART_OTHER) return fail(c->err, MOTE_EINVAL, "Unexpected item type in content.");
    if (kind == PART_TEXT) return put_value(c, &c->content, json_get(&c->j, item, "text"), put_str);
    if (system) return fail(c->err, MOTE_EINVAL, "System message cannot contain %s.", image ? "images" : "videos");
    if (!*(image ? c->marks->image : c->marks->video))
        return fail(c->err, MOTE_EINVAL, "%s cannot be given to this chat template", image ? "images" : "videos");
    if (counted && image && c->numbers) put_image_number(c, item);
    if (counted) *(image ? &c->images : &c->videos) += 1;
    if (c->vision_ids) {
        char label[32];
        snprintf(label, sizeof label, "%s %u: ", image ? "Picture" : "Video", image ? c->images : c->videos);
        put_words(&c->content, label);
    }
    put_words(&c->content, image ? c->marks->image : c->marks->video);
    return MOTE_OK;
}

enum { CONTENT_SYSTEM, CONTENT_SEARCH, CONTENT_MESSAGE, CONTENT_TOOL }; /* what a content is rendered for */

/* Message i's content into c->content; *text: all of it, for Qwen3.5 without the white space around it. */
static int chat_content(chat *c, uint32_t i, int use, slice *text) {
    const json *j = &c->j;
    uint32_t node = json_get(j, chat_message(c, i), "content"), type = node ? j->nodes[node].type : (uint32_t)JSON_NULL;
    int code = MOTE_OK;
    c->content.text.size = c->content.outside.size = 0;
    *text = slice_of(NULL, 0);
    if (type == JSON_STRING) {
        code = put_value(c, &c->content, node, put_str);
    } else if (type == JSON_ARRAY) {
        for (uint32_t k = node + 1; !code && k < j->nodes[node].next; k = j->nodes[k].next)
            code = chat_part(c, k, use == CONTENT_SYSTEM, use == CONTENT_MESSAGE || use == CONTENT_TOOL);
    } else if (use == CONTENT_TOOL && !(c->family & (CHAT_LENIENT | CHAT_PARTS))) {
        if (node) code = put_value(c, &c->content, node, put_str);
    } else if (type != JSON_NULL && (use == CONTENT_SYSTEM || c->family & CHAT_PARTS || !(c->family & CHAT_LENIENT))) {
        return fail(c->err, MOTE_EINVAL, "message %u: content must be a text or a list of parts", i);
    }
    *text = slice_of(c->content.text.data, c->content.text.size);
    if (c->family & CHAT_QWEN3_5) *text = slice_trim(*text);
    return code;
}

/* A true/false/null member: 1, 0, 0; `absent` when it is not there; -1 and an error for other values. */
static int chat_flag(chat *c, const char *key, int absent) {
    uint32_t node = json_get(&c->j, 0, key);
    if (!node) return absent;
    if (c->j.nodes[node].type <= JSON_TRUE) return c->j.nodes[node].type == JSON_TRUE;
    fail(c->err, MOTE_EINVAL, "chat request: \"%s\" must be true or false", key);
    return -1;
}

/* A list member's node, 0 when absent, null or empty; *code for other values. */
static uint32_t chat_list(chat *c, const char *key, int *code) {
    uint32_t node = json_get(&c->j, 0, key);
    if (!node || c->j.nodes[node].type == JSON_NULL) return 0;
    if (c->j.nodes[node].type == JSON_ARRAY) return c->j.nodes[node].size ? node : 0;
    *code = fail(c->err, MOTE_EINVAL, "chat request: \"%s\" must be a list", key);
    return 0;
}

/* A member's text as str() has it; nothing when it is absent. */
static int put_member_text(const chat *c, marked_text *out, uint32_t object, const char *key) {
    uint32_t node = json_get(&c->j, object, key);
    return node ? put_value(c, out, node, put_str) : MOTE_OK;
}

/* The calls of an assistant's message: a list's node; 0: none. */
static uint32_t chat_calls_of(const chat *c, uint32_t i) {
    uint32_t calls = json_get(&c->j, chat_message(c, i), "tool_calls");
    return calls && c->j.nodes[calls].type == JSON_ARRAY && c->j.nodes[calls].size ? calls : 0;
}

/* The arguments of a call. A text that holds no object was cut off, and stands as it was written. */
static int put_call_arguments(const chat *c, uint32_t arguments) {
    const json_node *n = c->j.nodes + arguments;
    return put_value(c, c->out, arguments, n->type == JSON_STRING && n->size ? put_str : put_json);
}

/* The thinking that a content begins with, up to its last </think>, which it then is without. Without one: nothing. */
static slice cut_thinking(const chat_marks *m, slice *content) {
    const slice before = slice_before(*content, m->think_end);
    if (before.n == content->n) return slice_of(NULL, 0);
    *content = slice_skip_newlines(slice_after(*content, m->think_end));
    return slice_skip_newlines(slice_after(slice_drop_newlines(before), m->think));
}

/* What a call, or a tool, is wrapped in; itself when it is not. */
static uint32_t chat_function(const json *j, uint32_t node) {
    uint32_t function = json_get(j, node, "function");
    return function && j->nodes[function].type == JSON_OBJECT ? function : node;
}

/* 1: two strings are the same, of at most 512 bytes where they are escaped in different ways. */
static int strings_equal(const json *j, uint32_t a, uint32_t b) {
    const json_node *x = j->nodes + a, *y = j->nodes + b;
    char text[2][512];
    if (x->type != JSON_STRING || y->type != JSON_STRING) return 0;
    if (x->size == y->size && !memcmp(j->text + x->start, j->text + y->start, x->size)) return 1;
    if (!memchr(j->text + x->start, '\\', x->size) && !memchr(j->text + y->start, '\\', y->size)) return 0;
    const size_t n = json_string(j, a, text[0], sizeof *text);
    return n <= sizeof *text && json_string(j, b, text[1], sizeof *text) == n && !memcmp(text[0], text[1], n);
}

/* The date of today, of the machine's time zone: "26 Jul 2024", or "2024-07-26". */
static void chat_today(char *text, size_t capacity, int numeric) {
    static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    const time_t now = time(NULL);
    struct tm day;
    memset(&day, 0, sizeof day);
    localtime_r(&now, &day);
    if (numeric) snprintf(text, capacity, "%d-%02d-%02d", day.tm_year + 1900, day.tm_mon + 1, day.tm_mday);
    else snprintf(text, capacity, "%02d %s %d", day.tm_mday, months[day.tm_mon % 12], day.tm_year + 1900);
}

/* The date that a prompt tells: the request's "date_string", or else this one; NULL: today's. */
static void put_date(const chat *c, int numeric, const char *otherwise) {
    const uint32_t given = json_get(&c->j, 0, "date_string");
    char today[64];
    if (given && c->j.nodes[given].type == JSON_STRING) {
        (void)put_value(c, c->out, given, put_str);
        return;
    }
    if (!otherwise) chat_today(today, sizeof today, numeric);
    put_words(c->out, otherwise ? otherwise : today);
}
