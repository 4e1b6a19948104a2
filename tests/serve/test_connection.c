// Tests of connections without what they are for: threads and memory that are not there, budgets, who is on this machine. A
// small server that answers every request with its body stands for the real one.

#include "../../engine.h"
#include "no_memory.h"
#include "test.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../../text/basics.c"

static double clock_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int complain(int exit_code, const char *format, ...) {
    CHECK(0, "complains: %s", format);
    return exit_code;
}

#include "../../serve/http.c"
#include "../../serve/budget.c"
#include "../../serve/connection.c"
#include "../../serve/listen.c"

static int no_threads;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *user);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *user) {
    return no_threads ? EAGAIN : __real_pthread_create(thread, how, run, user);
}

// ---- A server ---------------------------------------------------------------------------------------------------------

static budget memory;
static listener door;
static int port;

static void echo_connection(void *user, int fd) {
    connection c;
    (void)user;
    connection_open(&c, fd, &memory, "");
    for (;;) {
        int code = connection_next(&c);
        if (code == HTTP_HEAD_DONE) code = connection_body(&c);
        if (code == HTTP_MORE) break;
        if (code != HTTP_DONE) c.in.request.closes = 1;
        const buf *body = &c.in.request.body;
        if (code == HTTP_DONE) connection_reply(&c, 200, "text/plain", body->data, body->size);
        else connection_reply(&c, code, "text/plain", c.in.problem, strlen(c.in.problem));
        if (c.gone || c.in.request.closes || serve_stops) break;
        connection_again(&c);
    }
    connection_close(&c);
}

static int told;                           // that the server stops

static void tell_stop(void *user) {
    (void)user;
    told++;
}

static void awake(void *user) {
    (void)user;
}

static void *run_door(void *user) {
    (void)user;
    listener_run(&door, awake, tell_stop);
    return NULL;
}

static int dial(void) {
    struct sockaddr_in to;
    struct timeval most = {20, 0};
    memset(&to, 0, sizeof to);
    to.sin_family = AF_INET;
    to.sin_port = htons((uint16_t)port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
    CHECK(!connect(fd, (struct sockaddr *)&to, sizeof to), "connect: %s", strerror(errno));
    return fd;
}

// Sends a request and reads to the connection's end. Returns the status; 0: nothing came; -1: it does not end.
static int ask(const char *request, char *answer, size_t capacity) {
    int fd = dial();
    size_t n = 0;
    ssize_t got = 1;
    send(fd, request, strlen(request), MSG_NOSIGNAL);
    while (n < capacity - 1 && (got = recv(fd, answer + n, capacity - 1 - n, 0)) > 0) n += (size_t)got;
    answer[n] = 0;
    close(fd);
    return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? -1 : n > 9 ? atoi(answer + 9) : 0;
}

static int descriptors(void) {
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n;
}

static void wait_for_none(void) {
    for (int i = 0; listener_connections(&door) && i < 1000; i++) usleep(2000);
    CHECK(!listener_connections(&door), "%d connections are left", listener_connections(&door));
}

// ---- What is not there ------------------------------------------------------------------------------------------------

#define ASK "POST / HTTP/1.1\r\nHost: x\r\nX-Api-Key: k\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc"

// Whichever allocation fails, and whether those after it do: an answer, the right one or 503, and nothing is left.
static void test_no_memory(void) {
    char answer[4096];
    int before = descriptors(), answered = 0, busy = 0;
    for (refuse_rest = 0; refuse_rest < 2; refuse_rest++)
        for (long at = 0; at < 12; at++) {
            allocations = 0;
            refuse_at = at;
            int status = ask(ASK, answer, sizeof answer);
            refuse_at = -1;
            CHECK(status == 503 || (status == 200 && strstr(answer, "\r\n\r\nabc")), "allocation %ld fails, then %s: %d %s", at,
                  refuse_rest ? "all" : "none", status, answer);
            CHECK(status != 503 || strstr(answer, "Retry-After: 1\r\n"), "503 without Retry-After: %s", answer);
            answered += status == 200;
            busy += status == 503;
        }
    CHECK(answered > 2 && busy > 4, "%d answered, %d refused: no test", answered, busy);
    wait_for_none();
    CHECK(descriptors() == before, "%d descriptors, then %d", before, descriptors());
    CHECK(!memory.used, "%zu bytes of the budget are lost", memory.used);
}

static void test_no_threads(void) {
    char answer[4096];
    int before = descriptors();
    no_threads = 1;
    for (int i = 0; i < 2 * CONNECTIONS_MOST; i++) {
        int status = ask("", answer, sizeof answer);
        if (!CHECK(status == 503 && strstr(answer, "Retry-After: 1\r\n"), "number %d without a thread: %d %s", i, status, answer)) break;
    }
    no_threads = 0;
    CHECK(ask(ASK, answer, sizeof answer) == 200, "afterwards: %s", answer);
    wait_for_none();
    CHECK(descriptors() == before, "%d descriptors, then %d", before, descriptors());
}

// One more than there are places for is told so, and a place that is free again is taken again.
static void test_too_many(void) {
    char answer[4096];
    int fd[CONNECTIONS_MOST];
    for (int i = 0; i < CONNECTIONS_MOST; i++) fd[i] = dial();
    for (int i = 0; listener_connections(&door) < CONNECTIONS_MOST && i < 1000; i++) usleep(2000);
    int status = ask(ASK, answer, sizeof answer);
    CHECK(status == 503 && strstr(answer, "Retry-After"), "one too many: %d %s", status, answer);
    close(fd[7]);
    for (int i = 0; listener_connections(&door) == CONNECTIONS_MOST && i < 1000; i++) usleep(2000);
    CHECK(ask(ASK, answer, sizeof answer) == 200, "in its place: %s", answer);
    for (int i = 0; i < CONNECTIONS_MOST; i++)
        if (i != 7) close(fd[i]);
    wait_for_none();
}

static void test_budget(void) {
    budget b = {100, 0};
    CHECK(budget_take(&b, 60) && !budget_take(&b, 41) && budget_take(&b, 40) && !budget_take(&b, 1), "%zu of 100", b.used);
    CHECK(!budget_take(&b, SIZE_MAX) && budget_take(&b, 0), "%zu of 100", b.used);
    budget_give(&b, 60);
    CHECK(b.used == 40 && budget_take(&b, 60), "%zu of 100", b.used);
    connection c;
    memset(&c, 0, sizeof c);
    b.used = 0;
    c.budget = &b;
    CHECK(!connection_take(&c, 30) && !connection_take(&c, 20) && b.used == 30, "%zu taken", b.used);
    CHECK(connection_take(&c, 101) == 413 && b.used == 30, "more than all");
    CHECK(budget_take(&b, 60) && connection_take(&c, 50) == 503 && b.used == 90, "more than there is: %zu", b.used);
    connection_release(&c);
    CHECK(b.used == 60, "%zu after one has gone", b.used);
}

// A long answer reaches a client that reads slowly whole.
static void test_long(void) {
    enum { SIZE = 3 << 20 };
    char head[256], block[5000];
    char *body = (char *)allocate(SIZE);
    size_t got = 0, n;
    int fd = dial();
    for (size_t i = 0; i < SIZE; i++) body[i] = (char)('a' + i % 23);
    send(fd, head, (size_t)snprintf(head, sizeof head, "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", SIZE), 0);
    for (size_t at = 0; at < SIZE; at += n) n = (size_t)send(fd, body + at, SIZE - at, MSG_NOSIGNAL);
    char *all = (char *)allocate(SIZE + 4096);
    for (ssize_t more; got < SIZE + 4000 && (more = recv(fd, block, sizeof block, 0)) > 0; got += (size_t)more) memcpy(all + got, block, (size_t)more);
    const char *at = strstr(all, "\r\n\r\n");
    CHECK(at && got - (size_t)(at + 4 - all) == SIZE && !memcmp(at + 4, body, SIZE), "%zu bytes of %d", got, SIZE);
    close(fd);
    free(all);
    free(body);
    wait_for_none();
    CHECK(!memory.used, "%zu bytes of the budget are lost", memory.used);
}

static void test_addresses(void) {
    static const struct { const char *text; int is; } known[] = {
        {"127.0.0.1", 1}, {"127.9.8.7", 1}, {"::1", 1}, {"::ffff:127.0.0.1", 1}, {"::ffff:127.1.2.3", 1}, {"0.0.0.0", 0}, {"::", 0}, {"10.0.0.1", 0},
        {"128.0.0.1", 0}, {"126.255.255.255", 0}, {"::ffff:10.0.0.1", 0}, {"::127.0.0.1", 0}, {"fd00::1", 0}, {"fe80::7f00:1", 0}, {"::2", 0}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct sockaddr_storage at;
        CHECK(read_address(known[i].text, 1, &at) && is_loopback_address(&at) == known[i].is, "%s", known[i].text);
    }
}

int main(int argc, char **argv) {
    pthread_t thread;
    int others = 1;
    test_main_begin("connection", argc, argv);
    memory.most = 1 << 24;
    listener_init(&door, echo_connection, NULL);
    CHECK(!listener_open(&door, "127.0.0.1", &port, &others) && port && !others, "cannot listen");
    signal(SIGPIPE, SIG_IGN);
    pthread_create(&thread, NULL, run_door, NULL);
    test_budget();
    test_addresses();
    test_no_memory();
    test_no_threads();
    test_too_many();
    test_long();
    CHECK(!told, "the end was told of %d times before it came", told);
    serve_stops = 1;
    pthread_join(thread, NULL);
    CHECK(told == 1, "the end was told of %d times", told);
    return test_main_end();
}
