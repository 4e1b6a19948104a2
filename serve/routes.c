/* serve/routes.c: which path goes where. A new path is a line of the table; its function stands in a file of its own. */

/* The page loads nothing from elsewhere, and nothing may frame it. */
static void serve_page(server *s, connection *c, const json *j) {
    static const char page[] =
#include "page.inc"                        /* made of serve/page/ by the Makefile */
        ;
    const char *more_head = c->more_head;
    (void)s;
    (void)j;
    c->more_head = "Content-Security-Policy: default-src 'none'; img-src data:; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
                   "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n";
    connection_reply(c, 200, "text/html; charset=utf-8", page, sizeof page - 1);
    c->more_head = more_head;
}

typedef struct route {
    const char *method, *path;             /* one that ends with / goes on */
    int is_open;                           /* asks for no key */
    void (*function)(server *s, connection *c, const json *j);
    const char *shows;                     /* its list of messages, or of images, which may hold images; NULL: it has none */
} route;

static const route route_table[] = {
    {"GET", "/", 1, serve_page, NULL},
    {"GET", "/health", 1, serve_health, NULL},
    {"GET", "/metrics", 0, serve_metrics, NULL},
    {"GET", "/v1/models", 0, serve_models, NULL},
    {"GET", models_path, 0, serve_model_named, NULL},
    {"POST", "/v1/chat/completions", 0, serve_chat, "messages"},
    {"POST", "/v1/completions", 0, serve_completions, NULL},
    {"POST", "/v1/messages", 0, serve_messages, "messages"},
    {"POST", "/v1/messages/count_tokens", 0, serve_count_tokens, "messages"},
    {"POST", "/v1/responses", 0, serve_responses, "input"},
    {"POST", "/v1/embeddings", 0, serve_embeddings, NULL},
    {"POST", "/v1/rerank", 0, serve_rerank, NULL},
    {"POST", "/v2/rerank", 0, serve_rerank, NULL},
    {"POST", "/tokenize", 0, serve_tokenize, NULL},
    {"POST", "/detokenize", 0, serve_detokenize, NULL},

    /* As llama.cpp's server has them */
    {"GET", "/models", 0, serve_models, NULL},
    {"GET", "/props", 0, serve_props, NULL},
    {"GET", "/slots", 0, serve_slots, NULL},
    {"POST", "/chat/completions", 0, serve_chat, "messages"},
    {"POST", "/completion", 0, serve_native_completions, NULL},
    {"POST", "/completions", 0, serve_native_completions, NULL},

    /* As Ollama has them */
    {"GET", "/api/version", 0, serve_ollama_version, NULL},
    {"GET", "/api/tags", 0, serve_ollama_tags, NULL},
    {"GET", "/api/ps", 0, serve_ollama_tags, NULL},
    {"POST", "/api/chat", 0, serve_ollama_chat, "messages"},
    {"POST", "/api/generate", 0, serve_ollama_generate, "images"},
};
enum { ROUTE_COUNT = sizeof route_table / sizeof route_table[0] };

static int route_is_of(const route *r, const char *path) {
    size_t n = strlen(r->path);
    return n > 1 && r->path[n - 1] == '/' ? !strncmp(path, r->path, n) : !strcmp(path, r->path);
}

/* All paths, for who has found none. */
static void list_routes(char *out, size_t capacity) {
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < ROUTE_COUNT && n < capacity; i++)
        n += (size_t)snprintf(out + n, capacity - n, "%s%s", i ? ", " : "", route_table[i].path);
}

/* The route of a request; NULL, and refused: there is none. *allow: the methods that its path takes. */
static const route *find_route(const http_request *q, const char **allow, failure *f) {
    char known[512];
    *allow = NULL;
    for (int i = 0; i < ROUTE_COUNT; i++) {
        const route *r = &route_table[i];
        if (!route_is_of(r, q->path)) continue;
        if (!strcmp(q->method, r->method) || (!strcmp(q->method, "HEAD") && !strcmp(r->method, "GET"))) return r;
        *allow = strcmp(r->method, "GET") ? r->method : "GET, HEAD";
    }
    if (*allow) {
        refuse(f, 405, NULL, "%.100s does not take %s: it takes %s", q->path, q->method, *allow);
    } else {
        list_routes(known, sizeof known);
        refuse(f, 404, NULL, "there is no %.60s here: there are %s", q->path, known);
    }
    return NULL;
}
