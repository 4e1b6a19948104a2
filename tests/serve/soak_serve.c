// A soak of mote serve: requests of all kinds over many connections, some of which go away in the middle. Every answer must be byte for
// byte the one that a second server gives to the same request alone, ids and times aside; the server must say that it gets on, compute
// answers together, and at the end hold no more memory than after a warm-up.
//
// Usage: soak_serve PORT PID PORT_ALONE SECONDS

#include "client.h"

#include <pthread.h>

enum { CLIENTS = 64, KINDS = 12, PEOPLE = 24 };

static server busy, alone;
static double ends;
static int next_request, answered, refused, left;
static char *expected[KINDS * PEOPLE];     // what `alone` answers
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, lock_alone = PTHREAD_MUTEX_INITIALIZER;

#define TOOLS "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": {\"type\": \"object\", \"properties\": " \
              "{\"city\": {\"type\": \"string\", \"maxLength\": 20}, \"days\": {\"enum\": [1, 3]}}, \"required\": [\"city\"]}}}]"

// A request of one kind by one person, and its path.
static const char *make(int kind, int who, char *body, size_t capacity) {
    static const char *const paths[KINDS] = {[2] = "/v1/completions", [3] = "/v1/completions", [4] = "/v1/messages", [5] = "/v1/responses",
                                             [9] = "/tokenize", [11] = "/v1/completions"};
    const char *stream = who % 3 ? "true" : "false";
    size_t n;
    switch (kind) {
    case 0: snprintf(body, capacity, "{\"messages\": [{\"role\": \"user\", \"content\": \"Tell me of %d dogs\"}], \"max_tokens\": 24, \"seed\": %d, "
                     "\"temperature\": 0.9, \"enable_thinking\": %s, \"stream\": %s}", who, who, who % 2 ? "true" : "false", stream); break;
    case 1: snprintf(body, capacity, "{\"messages\": [{\"role\": \"system\", \"content\": \"You are number %d.\"}, {\"role\": \"user\", \"content\": "
                     "\"What is FP8?\"}, {\"role\": \"assistant\", \"content\": \"A float, %d.\"}, {\"role\": \"user\", \"content\": \"And then?\"}], "
                     "\"max_tokens\": 12, \"seed\": 7, \"stream\": %s}", who % 6, who, stream); break;
    case 2: snprintf(body, capacity, "{\"prompt\": \"Once %d\", \"max_tokens\": 6, \"seed\": %d, \"logprobs\": 2, \"echo\": %s}", who, who, stream); break;
    case 3: snprintf(body, capacity, "{\"prompt\": [%d, 5, %d], \"max_tokens\": 40, \"seed\": %d, \"ignore_eos\": true, \"stream\": %s}", who + 9, who + 40, who,
                     stream); break;
    case 4: snprintf(body, capacity, "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello %d\"}], \"max_tokens\": 16, \"seed\": 3, \"stream\": %s}", who, stream); break;
    case 5: snprintf(body, capacity, "{\"input\": \"Hello %d\", \"max_output_tokens\": 16, \"seed\": 4, \"stream\": %s}", who, stream); break;
    case 6: snprintf(body, capacity, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"max_tokens\": 60, \"seed\": %d, \"enable_thinking\": false, "
                     "\"stream\": %s, \"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"type\": \"object\", \"properties\": "
                     "{\"a\": {\"enum\": [%d, true]}, \"b\": {\"type\": \"array\", \"items\": {\"type\": \"boolean\"}, \"maxItems\": 3}}, "
                     "\"required\": [\"a\", \"b\"]}}}}", who, stream, who); break;
    case 7: snprintf(body, capacity, "{\"messages\": [{\"role\": \"user\", \"content\": \"Weather %d?\"}], " TOOLS ", \"tool_choice\": \"required\", "
                     "\"max_tokens\": 50, \"seed\": %d, \"enable_thinking\": false, \"stream\": %s}", who, who, stream); break;
    case 8: snprintf(body, capacity, "{\"messages\": [{\"role\": \"user\", \"content\": \"Is it warm in %d?\"}], " TOOLS ", \"max_tokens\": 24, \"seed\": %d, "
                     "\"temperature\": 1.1, \"stream\": %s}", who, who, stream); break;
    case 9: snprintf(body, capacity, "{\"prompt\": \"text %d\"}", who); break;
    case 10: snprintf(body, capacity, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"n\": 2}"); break;
    default:
        n = (size_t)snprintf(body, capacity, "{\"max_tokens\": 3, \"seed\": 1, \"prompt\": \"");
        for (int i = 0; i < 150; i++) n += (size_t)snprintf(body + n, capacity - n, "word %d ", (i * who) % 11);
        snprintf(body + n, capacity - n, "\"}");
    }
    return paths[kind] ? paths[kind] : "/v1/chat/completions";
}

// The end of a JSON value.
static const char *value_end(const char *at) {
    int depth = 0;
    for (; *at; at++) {
        if (*at == '"')
            for (at++; *at && *at != '"'; at++) at += *at == '\\' && at[1];
        else if (*at == '{' || *at == '[') depth++;
        else if (strchr("}],\n", *at) && --depth < 0) break;
        else if (*at == ',') depth++;
    }
    return at;
}

// Takes out of an answer what differs from one time to the next: ids, times, what was in the cache, signs of life.
static void settle(char *text) {
    static const char *const keys[] = {"id", "item_id", "call_id", "created", "created_at", "timings", "cached_tokens", "sequence_number", "input_tokens",
                                       "cache_read_input_tokens", "cache_creation_input_tokens"};
    static const char *const events[] = {": ", "event: ping\n", "event: response.in_progress\n"};
    char *to = text;
    for (const char *at = text; *at;) {
        size_t skipped = 0;
        for (size_t i = 0; i < sizeof events / sizeof *events && (at == text || at[-1] == '\n'); i++)
            if (!strncmp(at, events[i], strlen(events[i])) && strstr(at, "\n\n")) skipped = (size_t)(strstr(at, "\n\n") + 2 - at);
        for (size_t i = 0; i < sizeof keys / sizeof *keys && *at == '"' && !skipped; i++) {
            size_t n = strlen(keys[i]);
            if (!strncmp(at + 1, keys[i], n) && !strncmp(at + 1 + n, "\": ", 3)) skipped = (size_t)(value_end(at + n + 4) - at);
        }
        at += skipped;
        if (!skipped) *to++ = *at++;
    }
    *to = 0;
}

// The answer, however long it takes: there may be forty requests before it, and sanitizers.
static heard hear_it(server s, const char *path, const char *body) {
    int fd = dial(s);
    post_on(fd, path, body);
    heard h = hear_for(fd, 900);
    close(fd);
    return h;
}

static char *answer_alone(int which) {
    char body[4096];
    pthread_mutex_lock(&lock_alone);
    if (!expected[which]) {
        const char *path = make(which / PEOPLE, which % PEOPLE, body, sizeof body);
        heard h = hear_it(alone, path, body);
        CHECK(h.status == 200 || h.status == 400, "alone, %s: %d %s", path, h.status, h.data);
        settle(h.body);
        expected[which] = h.body;
        h.body = NULL;
        forget(&h);
    }
    pthread_mutex_unlock(&lock_alone);
    return expected[which];
}

static void check_answer(int which, heard *h) {
    char *want = answer_alone(which);
    size_t same = 0;
    settle(h->body);
    while (want[same] && want[same] == h->body[same]) same++;
    const size_t from = same < 60 ? 0 : same - 60;
    pthread_mutex_lock(&lock);
    CHECK(!want[same] && !h->body[same], "kind %d of %d: '%.200s' alone, '%.200s' beside others, of %zu bytes", which / PEOPLE, which % PEOPLE, want + from,
          h->body + from, h->size);
    answered++;
    pthread_mutex_unlock(&lock);
}

// Asks, and goes away when something has come, or at once.
static void ask_and_leave(const char *path, const char *body, int waits) {
    char block[512];
    int fd = dial(busy);
    post_on(fd, path, body);
    if (waits) (void)!recv(fd, block, sizeof block, 0);
    close(fd);
}

static void *client(void *user) {
    char body[4096];
    (void)user;
    while (now() < ends) {
        pthread_mutex_lock(&lock);
        const int i = next_request++, leaves = i % 11 == 5;
        left += leaves;
        pthread_mutex_unlock(&lock);
        const int which = i % KINDS * PEOPLE + i / KINDS % PEOPLE;
        const char *path = make(which / PEOPLE, which % PEOPLE, body, sizeof body);
        heard h = {0};
        if (leaves) ask_and_leave(path, body, i % 2);
        while (!leaves && now() < ends) {
            h = hear_it(busy, path, body);
            if (h.status != 503) break;
            forget(&h);
            sleep(1);
            pthread_mutex_lock(&lock);
            refused++;
            pthread_mutex_unlock(&lock);
        }
        if (h.status) check_answer(which, &h);
        forget(&h);
    }
    return NULL;
}

static void *watcher(void *user) {
    (void)user;
    while (now() < ends) {
        heard h = get(busy, "/health");
        pthread_mutex_lock(&lock);
        CHECK(h.status == 200 && strstr(h.body, "\"ok\""), "/health: %d %s", h.status, h.body);
        pthread_mutex_unlock(&lock);
        forget(&h);
        usleep(500000);
    }
    return NULL;
}

static long resident(pid_t pid) {
    char path[64];
    long all = 0, pages = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *in = fopen(path, "r");
    if (!in || fscanf(in, "%ld %ld", &all, &pages) != 2) pages = 0;
    if (in) fclose(in);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void run(double seconds) {
    pthread_t threads[CLIENTS + 1];
    ends = now() + seconds;
    for (int i = 0; i <= CLIENTS; i++) pthread_create(&threads[i], NULL, i ? client : watcher, NULL);
    for (int i = 0; i <= CLIENTS; i++) pthread_join(threads[i], NULL);
}

// All that were left are over soon.
static void check_idle(void) {
    double until = now() + 10;
    while (metric(busy, "sessions_busy") && now() < until) usleep(10000);
    CHECK(metric(busy, "sessions_busy") == 0 && metric(busy, "requests_waiting") == 0, "%ld sessions busy, %ld requests waiting at the end",
          metric(busy, "sessions_busy"), metric(busy, "requests_waiting"));
}

int main(int argc, char **argv) {
    enum { MEMORY_SECONDS = 60 };                          // in less there is no warm-up
    int first = test_main_begin("soak", argc, argv) - 1;
    if (first + 3 >= argc) return 2;
    signal(SIGPIPE, SIG_IGN);
    busy = (server){atoi(argv[first + 1]), atoi(argv[first])};
    alone = (server){-1, atoi(argv[first + 2])};
    const double seconds = atof(argv[first + 3]);
    run(seconds / 2);
    long before = resident(busy.pid);
    run(seconds / 2);
    long after = resident(busy.pid);
    check_idle();
    CHECK(before > 0 && (seconds < MEMORY_SECONDS || after < before + before / 20 + 8192), "%ld KiB after a warm-up, %ld KiB at the end", before, after);
    CHECK(answered > 20 && left > 0, "%d answers, %d left: no test", answered, left);
    const double batches = (double)metric(busy, "batches_total"), together = (double)metric(busy, "batch_answers_total");
    CHECK(batches > 0 && together > 1.5 * batches, "%.0f passes of %.0f answers", batches, together);
    printf("%d answered as alone, %d refused for the queue, %d left; %.2f answers a pass; %ld KiB, then %ld KiB\n", answered, refused, left,
           together / batches, before, after);
    for (int i = 0; i < KINDS * PEOPLE; i++) free(expected[i]);
    return test_main_end();
}
