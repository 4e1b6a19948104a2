/* serve/access.c: who may ask: the keys, the names that a Host may give, web pages of other origins. It judges the head of a
   request, and knows nothing of what is asked.

   DNS rebinding: a web page's own name may be made to lead to this server; its requests then count as the page's own, but they
   give that name as their Host. So a Host is an address, localhost, or a name that --allow-host knows. Only where others can
   reach the server and have to know a key any name will do: such a page does not know the key. */

typedef struct access {
    pthread_mutex_t lock;                  /* of the keys: they may be replaced while requests are judged */
    buf keys;                              /* a zero after each */
    int key_count;
    int asks_key;                          /* stays as it is when the server starts */
    const char *key_file;                  /* where they stand; NULL: they came from elsewhere, or there are none */
    const texts *hosts;
    int allows_origins;
} access_rules;

/* The name or address of a Host, without its port, the brackets of an IPv6 address, and a dot at its end. 0: it is none. */
static int host_name(const char *host, char name[256]) {
    size_t open = host[0] == '[', n = strcspn(host, open ? "]" : ":");
    const char *port = host + n + (open && host[n]);
    if (open && host[n] != ']') return 0;
    if (*port && (*port != ':' || strspn(port + 1, "0123456789") != strlen(port + 1))) return 0;
    n -= open;
    if (!open && n && host[n - 1] == '.') n--;
    if (!n || n > 255 || strcspn(host + open, " /@\t") < n) return 0;
    memcpy(name, host + open, n);
    name[n] = 0;
    return 1;
}

enum { KEY_MOST = HTTP_HEAD_MOST - 2048, KEYS_MOST = 256, KEY_FILE_MOST = 1 << 18 };       /* bytes, keys, bytes */

static int is_key(const char *key, const char *from) {
    size_t n = strlen(key);
    if (!n) return complain(0, "%s is empty: that would let everybody in", from);
    if (n > KEY_MOST) return complain(0, "%s is longer than %d bytes: no header holds it", from, KEY_MOST);
    for (size_t i = 0; i < n; i++)
        if (http_is_control(key[i]) || key[i] == '\t') return complain(0, "%s holds a control character: no header can", from);
    if (key[0] == ' ' || key[n - 1] == ' ') return complain(0, "%s begins or ends with a blank: no header's value does", from);
    return 1;
}

/* Adds the keys of a file's text, one a line, to `keys`; empty lines are none. text: it is cut into lines. Returns how many
   there are; 0: it has been said what is wrong. */
static int split_keys(char *text, const char *path, buf *keys) {
    int count = 0, line = 1;
    char from[300];
    for (char *next; text; text = next, line++) {
        next = strchr(text, '\n');
        if (next) *next++ = 0;
        size_t n = strlen(text);
        if (n && text[n - 1] == '\r') text[--n] = 0;
        if (!n) continue;
        snprintf(from, sizeof from, "%.200s, line %d,", path, line);
        if (!is_key(text, from)) return 0;
        if (count == KEYS_MOST) return complain(0, "%s holds more than %d keys", path, KEYS_MOST);
        if (!buf_add(keys, text, n + 1)) return complain(0, "out of memory");
        count++;
    }
    return count ? count : complain(0, "%s is empty: that would let everybody in", path);
}

/* The keys in a file, into `keys`. flags: further ones for open. Returns how many; 0: it has been said why not. */
static int read_keys(const char *path, int flags, buf *keys) {
    bytes text = {NULL, 0, 0};
    struct stat status;
    int count = 0, fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    FILE *in = fd >= 0 ? fdopen(fd, "rb") : NULL;
    if (!in) {
        file_failure(path);
        if (fd >= 0) close(fd);
        return 0;
    }
    if (!fstat(fd, &status) && S_ISREG(status.st_mode) && status.st_mode & 077)
        show_format(stderr, "mote: note: %s holds keys, and others may read it: chmod 600\n", path);
    int code = read_some(in, path, KEY_FILE_MOST, &text);
    fclose(in);
    if (!code && text.size > KEY_FILE_MOST) code = complain(EXIT_FAILURE, "%s is longer than %d bytes", path, KEY_FILE_MOST);
    if (!code && strlen(text.data) < text.size) code = complain(EXIT_FAILURE, "%s holds a zero byte: no header can", path);
    if (!code) count = split_keys(text.data + (strncmp(text.data, "\xef\xbb\xbf", 3) ? 0 : 3), path, keys);
    free(text.data);
    return count;
}

/* The command line's key, else those of a file, else the environment's. Returns the exit code. */
static int access_open(access_rules *a, const options *o) {
    const char *key = o->api_key, *from = "--api-key";
    char name[256];
    memset(a, 0, sizeof *a);
    pthread_mutex_init(&a->lock, NULL);
    a->hosts = &o->hosts;
    a->allows_origins = o->cors;
    for (int i = 0; i < o->hosts.count; i++)
        if (!host_name(o->hosts.text[i], name)) return complain(EXIT_USAGE, "--allow-host %s is no name", o->hosts.text[i]);
    if (!key) a->key_file = o->api_key_file;
    if (!key && !a->key_file) key = getenv("MOTE_API_KEY"), from = "MOTE_API_KEY";
    if (a->key_file) a->key_count = read_keys(a->key_file, 0, &a->keys);
    else if (key) a->key_count = is_key(key, from) && buf_add(&a->keys, key, strlen(key) + 1);
    a->asks_key = key || a->key_file;
    return a->key_count || !a->asks_key ? 0 : EXIT_FAILURE;
}

/* Reads the key file again, without waiting for it. If there is no key in it, those from before stay. */
static void access_reread(access_rules *a) {
    buf keys = {NULL, 0, 0, 0}, old = keys;
    char line[400];
    int count = read_keys(a->key_file, O_NONBLOCK, &keys);
    if (count) {
        pthread_mutex_lock(&a->lock);
        old = a->keys;
        a->keys = keys;
        a->key_count = count;
        pthread_mutex_unlock(&a->lock);
    }
    snprintf(line, sizeof line, "%.300s: %s, %d key%s", a->key_file, count ? "read again" : "what it held before stays",
             a->key_count, a->key_count == 1 ? "" : "s");
    on_log(NULL, line);
    buf_free(count ? &old : &keys);
}

static void access_close(access_rules *a) {
    buf_free(&a->keys);
    a->key_count = 0;
}

/* Takes as long for any key as it does for the right one: the time depends on what was given alone. */
static int same_key(const char *given, const char *key) {
    size_t n = strlen(given), m = strlen(key), k = 0;
    volatile unsigned different = n != m;
    for (size_t i = 0; i < n; i++) {
        different |= (unsigned)(given[i] ^ key[k]);
        k = k + 1 < m ? k + 1 : 0;
    }
    return !different;
}

/* 1: one of the keys that the request gives is one of those asked for. All are compared with all. */
static int has_key(access_rules *a, const http_request *q) {
    int has = 0;
    pthread_mutex_lock(&a->lock);
    for (size_t at = 0; at < q->keys.size; at += strlen(q->keys.data + at) + 1)
        for (size_t k = 0; k < a->keys.size; k += strlen(a->keys.data + k) + 1) has |= same_key(q->keys.data + at, a->keys.data + k);
    pthread_mutex_unlock(&a->lock);
    return has;
}

static int is_address(const char *name) {
    struct in6_addr at;
    return inet_pton(AF_INET, name, &at) == 1 || inet_pton(AF_INET6, name, &at) == 1;
}

/* 1: a Host may give this name. One that gives none is no web page's. */
static int is_own_host(const access_rules *a, const char *host) {
    static const char local[] = ".localhost";
    char name[256];
    if (!host[0]) return 1;
    if (!host_name(host, name)) return 0;
    size_t n = strlen(name), m = sizeof local - 1;
    if (!strcasecmp(name, local + 1) || (n > m && !strcasecmp(name + n - m, local)) || is_address(name)) return 1;
    for (int i = 0; i < a->hosts->count; i++) {
        char allowed[256];
        if (host_name(a->hosts->text[i], allowed) && !strcasecmp(name, allowed)) return 1;
    }
    return 0;
}

/* 1: the Origin is the page that this server itself has given. */
static int is_own_origin(const http_request *q) {
    const char *name = strstr(q->origin, "://");
    return name && !strcasecmp(name + 3, q->host);
}

/* 1: a browser asks whether a page of another origin may ask. It sends no key with that. */
static int is_preflight(const access_rules *a, const http_request *q) {
    return a->allows_origins && q->has_origin && !strcmp(q->method, "OPTIONS");
}

/* is_open: what is asked for needs no key. */
static void check_access(access_rules *a, const connection *c, int is_open, failure *f) {
    const http_request *q = &c->in.request;
    if ((c->is_loopback || !a->asks_key) && !is_own_host(a, q->host))
        refuse(f, 403, NULL, "this server answers to localhost and to addresses; for the name in Host: --allow-host");
    else if (q->has_origin && !a->allows_origins && !is_own_origin(q))
        refuse(f, 403, NULL, "pages of other origins may not ask: see --cors");
    else if (a->asks_key && !is_open && !is_preflight(a, q) && !has_key(a, q))
        refuse(f, 401, NULL, "the API key is missing or wrong");
}
