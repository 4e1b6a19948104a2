// A soak of mote serve: many requests of all kinds over many connections, some of which go away in the middle; every answer
// must be one that is expected, and at the end the server must hold no more memory than after a warm-up.
//
// Usage: soak_serve PORT PID REQUESTS

#include "test.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ANSWER_MOST = 1 << 20 };

static int port, requests = 2000, next_request, answered, refused, left;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int dial(void) {
    struct sockaddr_in to;
    memset(&to, 0, sizeof to);
    to.sin_family = AF_INET;
    to.sin_port = htons((uint16_t)port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval most = {120, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) {
        close(fd);
        return -1;
    }
    return fd;
}

// Request number i: its kind and its conversation depend on that alone.
static int make(int i, char *out, size_t capacity) {
    static const char *const paths[] = {"/v1/chat/completions", "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses",
                                        "/tokenize", "/v1/chat/completions"};
    char body[2048];
    int kind = i % 7, who = i / 7 % 40;
    const char *stream = i % 3 ? "true" : "false";
    switch (kind) {
    case 0:
    case 1:
        snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"system\", \"content\": \"You are number %d.\"}, {\"role\": \"user\", \"content\": "
                 "\"What is FP8?\"}, {\"role\": \"assistant\", \"content\": \"A float, %d.\"}, {\"role\": \"user\", \"content\": \"And then?\"}], "
                 "\"max_tokens\": 6, \"stream\": %s}", who, i % 5, stream);
        break;
    case 2: snprintf(body, sizeof body, "{\"prompt\": \"Once %d\", \"max_tokens\": 4, \"logprobs\": 1, \"echo\": %s}", who, stream); break;
    case 3: snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello %d\"}], \"max_tokens\": 5, \"stream\": %s}", who, stream); break;
    case 4: snprintf(body, sizeof body, "{\"input\": \"Hello %d\", \"max_output_tokens\": 5, \"stream\": %s}", who, stream); break;
    case 5: snprintf(body, sizeof body, "{\"prompt\": \"text %d\"}", i); break;
    default:
        snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"max_tokens\": 20, \"enable_thinking\": false, "
                 "\"response_format\": {\"type\": \"json_schema\", \"json_schema\": {\"schema\": {\"enum\": [%d, true]}}}, \"n\": %d}", who, i % 4 ? 1 : 2);
    }
    return snprintf(out, capacity, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s", paths[kind], strlen(body), body);
}

// One answer. Its status, or 0.
static int hear(int fd, char *data) {
    size_t n = 0;
    for (;;) {
        ssize_t got = recv(fd, data + n, ANSWER_MOST - n - 1, 0);
        if (got <= 0) return 0;
        n += (size_t)got;
        data[n] = 0;
        const char *head = strstr(data, "\r\n\r\n"), *length = strstr(data, "Content-Length: ");
        if (!head) continue;
        if (length && length < head && n >= (size_t)(head - data) + 4 + strtoul(length + 16, NULL, 10)) return atoi(data + 9);
        if (!(length && length < head) && n >= 5 && !memcmp(data + n - 5, "0\r\n\r\n", 5)) return atoi(data + 9);
    }
}

static void *client(void *user) {
    char *data = (char *)allocate(ANSWER_MOST), out[4096];
    int fd = -1;
    (void)user;
    for (;;) {
        pthread_mutex_lock(&lock);
        int i = next_request++;
        pthread_mutex_unlock(&lock);
        if (i >= requests) break;
        if (fd < 0) fd = dial();
        int n = make(i, out, sizeof out);
        if (fd < 0 || send(fd, out, (size_t)n, MSG_NOSIGNAL) != n) {
            pthread_mutex_lock(&lock);
            CHECK(0, "request %d cannot be sent", i);
            pthread_mutex_unlock(&lock);
            break;
        }
        int leaves = i % 19 == 5, status = leaves ? 0 : hear(fd, data);
        pthread_mutex_lock(&lock);
        int expected = i % 7 == 6 && i % 4 == 0 ? 400 : 200;
        CHECK(leaves || status == expected || status == 503, "request %d: %d, expected %d: %s", i, status, expected, status ? data : "");
        answered += status == 200;
        refused += status == 503;
        left += leaves;
        pthread_mutex_unlock(&lock);
        if (leaves || strstr(data, "Connection: close")) {
            close(fd);
            fd = -1;
        }
        data[0] = 0;
    }
    if (fd >= 0) close(fd);
    free(data);
    return NULL;
}

static long resident(const char *pid) {
    char path[64];
    long all = 0, pages = 0;
    snprintf(path, sizeof path, "/proc/%s/statm", pid);
    FILE *in = fopen(path, "r");
    if (!in || fscanf(in, "%ld %ld", &all, &pages) != 2) pages = 0;
    if (in) fclose(in);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void run(int count, int connections) {
    pthread_t threads[256];
    next_request = 0;
    requests = count;
    for (int i = 0; i < connections; i++) pthread_create(&threads[i], NULL, client, NULL);
    for (int i = 0; i < connections; i++) pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
    int first = test_main_begin("soak", argc, argv) - 1;
    if (first + 2 >= argc) return 2;
    port = atoi(argv[first]);
    int most = atoi(argv[first + 2]), connections = 64;
    run(most / 2, connections);
    long before = resident(argv[first + 1]);
    run(most, connections);
    long after = resident(argv[first + 1]);
    CHECK(before > 0 && after < before + before / 20 + 8192, "%ld KiB after a warm-up, %ld KiB at the end", before, after);
    CHECK(answered > most / 2, "%d answers", answered);
    printf("%d answered, %d refused for the queue, %d left; %ld KiB, then %ld KiB\n", answered, refused, left, before, after);
    return test_main_end();
}
