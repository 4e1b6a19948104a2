/* serve/http.c: bytes -> HTTP/1.1 requests (RFC 9112). It is fed whatever has arrived, in pieces of any size, and knows nothing
   of sockets, of what is answered, or of what a body holds.

   Strict where readers disagree, since a proxy may stand in front: lines end with CR LF, a length is given once and as digits,
   and never beside a transfer coding; chunk extensions and trailers, which nobody reads, have to be well-formed. Memory grows
   with what has arrived, never with what was announced.

   A request is read in two steps, so that it can be judged by its head before its body takes memory. */

enum { HTTP_HEAD_MOST = 32 << 10, HTTP_FIELDS_MOST = 100, HTTP_BODY_MOST = 96 << 20, HTTP_FRAMES_MOST = 1 << 20 };   /* bytes */
enum { HTTP_FRAME_MOST = 1024 };           /* bytes of a line of chunk framing */
enum { HTTP_KEEPS = 64 << 10 };            /* bytes of memory that a body leaves for the next one */

/* Results of http_next; any other is the status of an answer that refuses the request, after which the connection ends. */
enum { HTTP_MORE = 0, HTTP_DONE = 1, HTTP_HEAD_DONE = 2 };

typedef struct http_request {
    char method[16], path[1024];           /* without a query */
    char host[256], origin[256];           /* "" when not given */
    buf keys;                              /* of Authorization: Bearer and of X-Api-Key, a zero after each */
    int has_host, has_origin;
    int closes, expects;                   /* the connection ends after the answer; the client waits for 100 Continue */
    int version;                           /* 0 or 1: HTTP/1.0, HTTP/1.1 */
    buf body;
} http_request;

typedef struct http_reader {
    buf in;                                /* what has arrived; used up to `at` */
    size_t at, searched;                   /* of the head, so many bytes hold no end */
    enum { HTTP_HEAD, HTTP_BODY, HTTP_SIZE, HTTP_CHUNK, HTTP_CHUNK_END, HTTP_TRAILERS, HTTP_COMPLETE } stage;
    size_t left;                           /* bytes that the body or the chunk still lacks */
    size_t frames;                         /* bytes of chunk sizes and trailers so far */
    int has_length, chunked;
    const char *problem;                   /* with a status: what is wrong */
    http_request request;
} http_reader;

static void http_close(http_reader *r) {
    buf_free(&r->in);
    buf_free(&r->request.keys);
    buf_free(&r->request.body);
}

/* Forgets a request that was answered, but not what has arrived after it. A large body's memory is given back: a connection
   may be idle for long. */
static void http_again(http_reader *r) {
    buf in = r->in, body = r->request.body;
    size_t at = r->at;
    buf_free(&r->request.keys);
    memset(r, 0, sizeof *r);
    memmove(in.data, in.data + at, in.size - at);
    in.size -= at;
    if (body.cap > HTTP_KEEPS) buf_free(&body);
    body.size = 0;
    r->in = in;
    r->request.body = body;
}

static int http_refuse(http_reader *r, int status, const char *problem) {
    r->problem = problem;
    return status;
}

static int http_is_token(const char *text, size_t n) {
    static const char known[] = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    for (size_t i = 0; i < n; i++)
        if (!text[i] || !strchr(known, text[i])) return 0;
    return n > 0;
}

static int http_is(const char *text, size_t n, const char *word) {
    return n == strlen(word) && !strncasecmp(text, word, n);
}

/* 1: a list with commas holds the word. */
static int http_lists(const char *text, size_t n, const char *word) {
    const char *end = text + n;
    while (text < end) {
        size_t item = 0, rest;
        while (text < end && (*text == ' ' || *text == '\t' || *text == ',')) text++;
        while (text + item < end && text[item] != ',') item++;
        for (rest = item; rest && (text[rest - 1] == ' ' || text[rest - 1] == '\t');) rest--;
        if (http_is(text, rest, word)) return 1;
        text += item;
    }
    return 0;
}

static int http_copy(char *to, size_t capacity, const char *text, size_t n) {
    if (n >= capacity) return 0;
    memcpy(to, text, n);
    to[n] = 0;
    return 1;
}

static int http_length(http_reader *r, const char *text, size_t n) {
    size_t value = 0;
    if (r->has_length) return http_refuse(r, 400, "Content-Length is given twice");
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9') return http_refuse(r, 400, "Content-Length is no number");
        if (value <= HTTP_BODY_MOST) value = value * 10 + (size_t)(text[i] - '0');
    }
    if (!n) return http_refuse(r, 400, "Content-Length is no number");
    if (value > HTTP_BODY_MOST) return http_refuse(r, 413, "the body is longer than 96 MiB");
    r->has_length = 1;
    r->left = value;
    return HTTP_DONE;
}

static int http_key(http_reader *r, const char *text, size_t n) {
    buf_add(&r->request.keys, text, n);
    buf_add(&r->request.keys, "", 1);
    return r->request.keys.failed ? http_refuse(r, 503, "out of memory") : HTTP_DONE;
}

/* One field of the head: those that matter are remembered. */
static int http_field(http_reader *r, const char *name, size_t name_size, const char *value, size_t n) {
    http_request *q = &r->request;
    if (http_is(name, name_size, "content-length")) return http_length(r, value, n);
    if (http_is(name, name_size, "transfer-encoding")) {
        if (!http_is(value, n, "chunked") || r->chunked) return http_refuse(r, 501, "the only transfer coding is chunked");
        r->chunked = 1;
    } else if (http_is(name, name_size, "content-encoding")) {
        if (!http_is(value, n, "identity")) return http_refuse(r, 415, "the body must not be compressed");
    } else if (http_is(name, name_size, "connection")) {
        if (http_lists(value, n, "close")) q->closes = 1;
        else if (!q->version && http_lists(value, n, "keep-alive")) q->closes = 0;
    } else if (http_is(name, name_size, "host")) {
        if (q->has_host++ || !http_copy(q->host, sizeof q->host, value, n)) return http_refuse(r, 400, "a strange Host");
    } else if (http_is(name, name_size, "origin")) {
        if (q->has_origin++ || !http_copy(q->origin, sizeof q->origin, value, n)) return http_refuse(r, 400, "a strange Origin");
    } else if (http_is(name, name_size, "expect")) {
        if (!http_is(value, n, "100-continue")) return http_refuse(r, 417, "the only thing to expect is 100-continue");
        q->expects = q->version;
    } else if (http_is(name, name_size, "authorization")) {
        size_t at = 7;
        if (n <= at || strncasecmp(value, "bearer ", at)) return HTTP_DONE;
        while (value[at] == ' ') at++;     /* the value has no blanks at its end */
        return http_key(r, value + at, n - at);
    } else if (http_is(name, name_size, "x-api-key")) {
        return http_key(r, value, n);
    }
    return HTTP_DONE;
}

static int http_is_blank(char c) {
    return c == ' ' || c == '\t';
}

static int http_is_control(char c) {
    return ((unsigned char)c < 0x20 && c != '\t') || c == 0x7f;
}

/* A line of the head (matters: it means something) or a trailer: NAME: VALUE */
static int http_field_line(http_reader *r, const char *line, size_t n, int matters) {
    const char *colon = (const char *)memchr(line, ':', n);
    if (!colon || !http_is_token(line, (size_t)(colon - line))) return http_refuse(r, 400, "a header line that is no field");
    const char *value = colon + 1, *end = line + n;
    while (value < end && http_is_blank(*value)) value++;
    while (end > value && http_is_blank(end[-1])) end--;
    for (const char *p = value; p < end; p++)
        if (http_is_control(*p)) return http_refuse(r, 400, "a control character in the header");
    return matters ? http_field(r, line, (size_t)(colon - line), value, (size_t)(end - value)) : HTTP_DONE;
}

/* METHOD SP /path SP HTTP/1.x */
static int http_request_line(http_reader *r, const char *line, size_t n) {
    http_request *q = &r->request;
    const char *end = line + n, *target = (const char *)memchr(line, ' ', n);
    const char *version = target ? (const char *)memchr(target + 1, ' ', (size_t)(end - target - 1)) : NULL;
    if (!version || !http_is_token(line, (size_t)(target - line))) return http_refuse(r, 400, "the first line is no request");
    const size_t method = (size_t)(target++ - line);
    if (end - version != 9 || memcmp(version, " HTTP/", 6) || version[7] != '.' || version[6] < '0' || version[6] > '9' ||
        version[8] < '0' || version[8] > '9')
        return http_refuse(r, 400, "the first line is no request");     /* it may be anything: the log has none of it */
    if (!http_copy(q->method, sizeof q->method, line, method)) return http_refuse(r, 501, "an unknown method");
    if (version[6] != '1') return http_refuse(r, 505, "HTTP/1.1 and 1.0 are spoken here");
    q->version = version[8] > '0';
    q->closes = !q->version;
    size_t size = (size_t)(version - target), path = 0;
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)target[i] <= 0x20 || (unsigned char)target[i] >= 0x7f) return http_refuse(r, 400, "a strange path");
    while (path < size && target[path] != '?' && target[path] != '#') path++;
    if (!path || target[0] != '/') return http_refuse(r, 400, "the path must begin with /");
    if (!http_copy(q->path, sizeof q->path, target, path)) return http_refuse(r, 414, "the path is too long");
    return HTTP_DONE;
}

/* The whole head, n bytes up to its empty line. */
static int http_head(http_reader *r, const char *head, size_t n) {
    int code = HTTP_DONE;
    for (size_t at = 0, line = 0; code == HTTP_DONE && at < n; line++) {
        const char *begin = head + at, *end = (const char *)memmem(begin, n - at, "\r\n", 2);
        size_t size = end ? (size_t)(end - begin) : n - at;
        if (memchr(begin, '\n', size) || memchr(begin, '\r', size) || memchr(begin, 0, size))
            return http_refuse(r, 400, "a control character in the header");
        if (line > HTTP_FIELDS_MOST) return http_refuse(r, 431, "more than 100 header fields");
        code = line ? http_field_line(r, begin, size, 1) : http_request_line(r, begin, size);
        at += size + 2;
    }
    if (code != HTTP_DONE) return code;
    if (r->request.version && !r->request.has_host) return http_refuse(r, 400, "HTTP/1.1 needs a Host");
    if (r->chunked && (r->has_length || !r->request.version))
        return http_refuse(r, 400, "a transfer coding beside a Content-Length, or in HTTP/1.0");
    r->stage = r->chunked ? HTTP_SIZE : r->left ? HTTP_BODY : HTTP_COMPLETE;
    return HTTP_HEAD_DONE;
}

static int http_read_head(http_reader *r) {
    while (r->in.size - r->at >= 2 && !memcmp(r->in.data + r->at, "\r\n", 2)) r->at += 2;     /* empty lines before it */
    const char *head = r->in.data + r->at;
    size_t have = r->in.size - r->at, from = r->searched > 3 ? r->searched - 3 : 0;
    const char *end = have > from ? (const char *)memmem(head + from, have - from, "\r\n\r\n", 4) : NULL;
    r->searched = have;
    if ((end ? (size_t)(end - head) : have) > HTTP_HEAD_MOST) return http_refuse(r, 431, "the header is longer than 32 KiB");
    if (!end) return HTTP_MORE;
    r->at += (size_t)(end - head) + 4;
    return http_head(r, head, (size_t)(end - head));
}

/* Moves what has arrived of the body, or of a chunk, into it. HTTP_DONE: it is whole. */
static int http_read_body(http_reader *r) {
    size_t have = r->in.size - r->at, n = have < r->left ? have : r->left;
    if (r->request.body.size + n > HTTP_BODY_MOST) return http_refuse(r, 413, "the body is longer than 96 MiB");
    if (n && !buf_add(&r->request.body, r->in.data + r->at, n)) return http_refuse(r, 503, "out of memory");
    r->at += n;
    r->left -= n;
    return r->left ? HTTP_MORE : HTTP_DONE;
}

/* A line of chunk framing: *line, *n. HTTP_MORE: it is not whole. A CR or LF that is not part of its end is refused as soon as
   it is there. */
static int http_frame_line(http_reader *r, const char **line, size_t *n) {
    const char *begin = r->in.data + r->at;
    size_t have = r->in.size - r->at, most = HTTP_FRAME_MOST + 2, look = have < most ? have : most;
    const char *feed = look ? (const char *)memchr(begin, '\n', look) : NULL;
    size_t size = feed ? (size_t)(feed - begin) : look;    /* with the CR before the LF, or one that may be */
    const char *carriage = size ? (const char *)memchr(begin, '\r', size) : NULL;
    if ((feed && !carriage) || (carriage && carriage + 1 < begin + size))
        return http_refuse(r, 400, "a line of chunk framing that does not end with CR LF");
    if (!feed) return look < most ? HTTP_MORE : http_refuse(r, 413, "too much chunk framing");
    r->frames += size + 1;
    if (r->frames > HTTP_FRAMES_MOST) return http_refuse(r, 413, "too much chunk framing");
    *line = begin;
    *n = size - 1;
    r->at += size + 1;
    return HTTP_DONE;
}

static size_t http_skip_blanks(const char *text, size_t n, size_t at) {
    while (at < n && http_is_blank(text[at])) at++;
    return at;
}

static size_t http_skip_token(const char *text, size_t n, size_t at) {
    while (at < n && http_is_token(text + at, 1)) at++;
    return at;
}

/* Text in quotes, from the first quote on. Returns where it ends, `at` when it does not. */
static size_t http_skip_quoted(const char *text, size_t n, size_t at) {
    for (size_t i = at + 1; i < n && !http_is_control(text[i]); i++) {
        if (text[i] == '"') return i + 1;
        if (text[i] == '\\' && (++i == n || http_is_control(text[i]))) break;
    }
    return at;
}

/* 1: these are chunk extensions: ;NAME, ;NAME=TOKEN or ;NAME="TEXT", any number of them, with blanks around ; and = */
static int http_are_extensions(const char *text, size_t n) {
    for (size_t at = 0; at < n;) {
        at = http_skip_blanks(text, n, at);
        if (at == n || text[at] != ';') return 0;
        size_t name = http_skip_blanks(text, n, at + 1), end = http_skip_token(text, n, name);
        if (end == name) return 0;
        at = http_skip_blanks(text, n, end);
        if (at == n) return end == n;      /* blanks belong before ; or = */
        if (text[at] != '=') continue;
        size_t value = http_skip_blanks(text, n, at + 1);
        at = value < n && text[value] == '"' ? http_skip_quoted(text, n, value) : http_skip_token(text, n, value);
        if (at == value) return 0;
    }
    return 1;
}

static int http_read_size(http_reader *r) {
    const char *line;
    size_t n, digits = 0, value = 0;
    int code = http_frame_line(r, &line, &n);
    if (code != HTTP_DONE) return code;
    for (; digits < n; digits++) {
        char c = line[digits];
        int lower = c | 0x20, digit = c >= '0' && c <= '9' ? c - '0' : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
        if (digit < 0) break;
        if (value <= HTTP_BODY_MOST) value = value * 16 + (size_t)digit;
    }
    if (!digits || !http_are_extensions(line + digits, n - digits)) return http_refuse(r, 400, "a chunk without a size");
    if (value > HTTP_BODY_MOST) return http_refuse(r, 413, "the body is longer than 96 MiB");
    r->left = value;
    r->stage = value ? HTTP_CHUNK : HTTP_TRAILERS;
    return HTTP_DONE;
}

/* CR LF after a chunk's bytes. */
static int http_read_chunk_end(http_reader *r) {
    size_t have = r->in.size - r->at, n = have < 2 ? have : 2;
    if (memcmp(r->in.data + r->at, "\r\n", n)) return http_refuse(r, 400, "a chunk is longer than its size");
    if (n < 2) return HTTP_MORE;
    r->at += 2;
    r->frames += 2;
    r->stage = HTTP_SIZE;
    return HTTP_DONE;
}

/* Trailers, which nobody reads, up to an empty line. */
static int http_read_trailer(http_reader *r) {
    const char *line;
    size_t n;
    int code = http_frame_line(r, &line, &n);
    if (code != HTTP_DONE) return code;
    if (n) return http_field_line(r, line, n, 0);
    r->stage = HTTP_COMPLETE;
    return HTTP_DONE;
}

static int http_read_stage(http_reader *r) {
    int code;
    switch (r->stage) {
    case HTTP_HEAD: return http_read_head(r);
    case HTTP_SIZE: return http_read_size(r);
    case HTTP_CHUNK_END: return http_read_chunk_end(r);
    case HTTP_TRAILERS: return http_read_trailer(r);
    default:
        code = http_read_body(r);
        if (code == HTTP_DONE) r->stage = r->stage == HTTP_BODY ? HTTP_COMPLETE : HTTP_CHUNK_END;
        return code;
    }
}

/* Goes on with what has arrived. HTTP_HEAD_DONE: of r->request all but the body is there, and the next call goes on with that.
   HTTP_DONE: it is whole; http_again before the next one. Else HTTP_MORE or a status. */
static int http_next(http_reader *r) {
    int code = r->in.failed ? http_refuse(r, 503, "out of memory") : r->in.size ? HTTP_DONE : HTTP_MORE;
    while (code == HTTP_DONE && r->stage != HTTP_COMPLETE) code = http_read_stage(r);
    if (code != HTTP_MORE || r->at < (1 << 16)) return code;
    memmove(r->in.data, r->in.data + r->at, r->in.size - r->at);       /* what was used is given up */
    r->in.size -= r->at;
    r->at = 0;
    return code;
}

/* More has arrived. */
static void http_push(http_reader *r, const char *bytes, size_t n) {
    buf_add(&r->in, bytes, n);
}
