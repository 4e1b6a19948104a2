// client.h: a server in a process of its own, and a client that writes to a socket what others' clients write, and worse.
// MOTE_PROGRAM (from the Makefile) is how to start the program, from the top of the repository.

#ifndef MOTE_TEST_CLIENT_H
#define MOTE_TEST_CLIENT_H

#include "test.h"
#include "files.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#ifndef MOTE_PROGRAM
#define MOTE_PROGRAM "./mote"
#endif

// ---- A server and its clients ---------------------------------------------------------------------------------------

typedef struct server { pid_t pid; int port; } server;

static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// A process whose standard error is *said.
static inline pid_t start_heard(const char *command, FILE **said) {
    char line[1024];
    int out[2];
    snprintf(line, sizeof line, "exec %s", command);
    if (pipe(out)) exit(2);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(out[1], STDERR_FILENO);
        close(out[0]);
        close(out[1]);
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    *said = fdopen(out[0], "r");
    return pid;
}

// A server of that program. *said: what it says on standard error once it serves.
static inline server serve_program(const char *program, const char *arguments, FILE **said) {
    server s = {-1, 0};
    char command[1000], line[512] = "";
    snprintf(command, sizeof command, "%s serve --port 0 %s", program, arguments);
    s.pid = start_heard(command, said);
    while (fgets(line, sizeof line, *said)) {
        const char *at = strstr(line, " on http://"), *port = at ? strrchr(at, ':') : NULL;
        if (port) s.port = atoi(port + 1);
        if (port) break;
    }
    signal(SIGPIPE, SIG_IGN);
    if (!CHECK(s.port, "no server: %s", line)) exit(test_main_end());
    return s;
}

static inline server serve_heard(const char *arguments, FILE **said) {
    return serve_program(MOTE_PROGRAM, arguments, said);
}

static inline server serve(const char *arguments) {
    FILE *said;
    server s = serve_heard(arguments, &said);
    fclose(said);
    return s;
}

// Its exit code, or 1000 and the signal that ended it.
static inline int end_of(server s) {
    int status = 0;
    waitpid(s.pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static inline void stop(server s) {
    kill(s.pid, SIGTERM);
    int code = end_of(s);
    CHECK(code == 0, "the server ended with %d", code);
}

static inline int dial(server s) {
    struct sockaddr_in to;
    memset(&to, 0, sizeof to);
    to.sin_family = AF_INET;
    to.sin_port = htons((uint16_t)s.port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (!CHECK(!connect(fd, (struct sockaddr *)&to, sizeof to), "connect: %s", strerror(errno))) exit(test_main_end());
    return fd;
}

static inline void tell(int fd, const char *bytes, size_t n) {
    while (n) {
        ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent <= 0) return;
        bytes += sent;
        n -= (size_t)sent;
    }
}

typedef struct heard {                     // what came back
    int status;
    char *data;                            // head and body, ended by a zero
    size_t size;
    char *body;                            // without chunk framing, from its place in a copy
    size_t body_size;
    int over;                              // the connection ended
} heard;

static inline void forget(heard *h) {
    free(h->data);
    free(h->body);
    memset(h, 0, sizeof *h);
}

// Takes chunk framing out, as far as it has come. 1: the last chunk was there.
static inline int unchunk(heard *h, const char *at, const char *end) {
    h->body_size = 0;
    while (at < end) {
        char *line;
        size_t n = strtoul(at, &line, 16);
        if (line + 2 > end || line + 2 + n + 2 > end) return 0;
        memcpy(h->body + h->body_size, line + 2, n);
        h->body_size += n;
        at = line + 2 + n + 2;
        if (!n) return 1;
    }
    return 0;
}

// Is an answer whole?
static inline int is_whole(heard *h) {
    const char *head = strstr(h->data, "\r\n\r\n");
    if (!head) return 0;
    const char *length = strstr(h->data, "Content-Length: "), *chunked = strstr(h->data, "Transfer-Encoding: chunked");
    h->status = atoi(h->data + 9);
    head += 4;
    free(h->body);
    h->body = (char *)allocate(h->size);
    if (chunked && chunked < head) return unchunk(h, head, h->data + h->size);
    size_t n = length && length < head ? strtoul(length + 16, NULL, 10) : h->status == 204 ? 0 : (size_t)-1;
    size_t have = h->size - (size_t)(head - h->data);
    h->body_size = have < n ? have : n;
    memcpy(h->body, head, h->body_size);
    return have >= n;
}

// Reads one answer, or to the end of the connection. Up to `timeout` seconds.
static inline heard hear_for(int fd, double timeout) {
    heard h;
    double until = now() + timeout;
    memset(&h, 0, sizeof h);
    h.data = (char *)allocate(1);
    while (!is_whole(&h)) {
        struct pollfd p = {fd, POLLIN, 0};
        double left = until - now();
        if (left <= 0 || poll(&p, 1, (int)(left * 1000) + 1) <= 0) break;
        h.data = (char *)realloc(h.data, h.size + 65537);
        ssize_t n = recv(fd, h.data + h.size, 65536, 0);
        if (n <= 0) {
            h.over = 1;
            break;
        }
        h.size += (size_t)n;
        h.data[h.size] = 0;
    }
    if (!h.body) h.body = (char *)allocate(1);
    h.body[h.body_size] = 0;
    return h;
}

static inline heard hear(int fd) {
    return hear_for(fd, 120);
}

static inline void post_on(int fd, const char *path, const char *body) {
    char head[512];
    int n = snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", path, strlen(body));
    tell(fd, head, (size_t)n);
    tell(fd, body, strlen(body));
}

static inline heard post(server s, const char *path, const char *body) {
    int fd = dial(s);
    post_on(fd, path, body);
    heard h = hear(fd);
    close(fd);
    return h;
}

static inline heard get(server s, const char *path) {
    char head[256];
    int fd = dial(s), n = snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", path);
    tell(fd, head, (size_t)n);
    heard h = hear(fd);
    close(fd);
    return h;
}

// What an answer has after "key": a number, or -1.
static inline long number(const heard *h, const char *key) {
    char name[64];
    snprintf(name, sizeof name, "\"%s\": ", key);
    const char *at = strstr(h->body, name);
    return at ? strtol(at + strlen(name), NULL, 10) : -1;
}

// The value of a metric, all labels together; -1: there is none.
static inline long metric(server s, const char *name) {
    char begin[64];
    heard h = get(s, "/metrics");
    snprintf(begin, sizeof begin, "\nmote_%s", name);
    long value = -1;
    for (const char *at = h.body; (at = strstr(at, begin));) {
        at += strlen(begin);
        if (*at != ' ' && *at != '{') continue;
        value = (value < 0 ? 0 : value) + strtol(strchr(at, ' '), NULL, 10);
    }
    forget(&h);
    return value;
}

// Appends what stands in quotes after each "key": in the text, escapes as they are.
static inline void join(const char *text, const char *key, char *to, size_t capacity) {
    char name[64];
    size_t n = strlen(to);
    snprintf(name, sizeof name, "\"%s\": \"", key);
    for (const char *at = text; (at = strstr(at, name));) {
        for (at += strlen(name); *at && *at != '"' && n + 3 < capacity; at++) {
            if (*at == '\\') to[n++] = *at++;
            to[n++] = *at;
        }
        to[n] = 0;
    }
}

static inline int count_of_text(const char *text, const char *part) {
    int n = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) n++;
    return n;
}

#endif
