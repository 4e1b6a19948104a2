// Tests of who may ask mote serve, and for how much: keys, names in Host, web pages, memory before and beside answers, files
// in its folder; and of how it ends. By a client that writes to sockets, as test_serve.c.

#include "client.h"

#include <ifaddrs.h>
#include <sys/stat.h>

// ---- Servers whose words are kept -----------------------------------------------------------------------------------

static char log_path[512];

static char *log_text(void) {
    size_t size;
    char *text = file_bytes(log_path, &size);
    return text ? text : (char *)allocate(1);
}

// environment: as the shell has it before a command. What the server says goes into the log.
static server serve_logged(const char *environment, const char *arguments) {
    server s = {-1, 0};
    char command[2048];
    double until = now() + 30;
    snprintf(log_path, sizeof log_path, "%s", temp_path("log"));
    snprintf(command, sizeof command, "%s exec %s serve --port 0 %s 2>'%s'", environment, MOTE_PROGRAM, arguments, log_path);
    signal(SIGPIPE, SIG_IGN);
    unlink(log_path);
    s.pid = fork();
    if (s.pid == 0) {
        signal(SIGHUP, SIG_DFL);                    // a server under nohup goes on
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    while (!s.port && now() < until) {
        char *text = log_text(), *at = strstr(text, " on http://"), *end = at ? strchr(at, '\n') : NULL;
        if (end) *end = 0, s.port = atoi(strrchr(at, ':') + 1);
        free(text);
        if (!s.port) usleep(20000);
    }
    char *said = log_text();
    if (!CHECK(s.port, "no server: %s", said)) exit(test_main_end());
    free(said);
    return s;
}

// It does not start, and says why.
static void check_no_server(const char *environment, const char *arguments, const char *holds) {
    char command[2048], said[4096];
    snprintf(command, sizeof command, "%s timeout 20 %s serve --port 0 %s 2>&1", environment, MOTE_PROGRAM, arguments);
    FILE *in = popen(command, "r");
    size_t n = in ? fread(said, 1, sizeof said - 1, in) : 0;
    said[n] = 0;
    int status = in ? pclose(in) : -1, code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    CHECK((code == 1 || code == 2) && strstr(said, holds), "%s %s: ended with %d, not with '%s': %s", environment, arguments, code,
          holds, said);
}

// One request on a connection of its own to `address`.
static void check_at(server s, const char *address, const char *request, int status, const char *holds) {
    struct sockaddr_in to;
    memset(&to, 0, sizeof to);
    to.sin_family = AF_INET;
    to.sin_port = htons((uint16_t)s.port);
    inet_pton(AF_INET, address, &to.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(!connect(fd, (struct sockaddr *)&to, sizeof to), "connect to %s: %s", address, strerror(errno));
    tell(fd, request, strlen(request));
    heard h = hear_for(fd, 20);
    CHECK(h.status == status && strstr(h.data, holds), "%s: %.100s...: %d, expected %d with '%s': %.300s", address, request, h.status,
          status, holds, h.data);
    forget(&h);
    close(fd);
}

static void check_raw(server s, const char *request, int status, const char *holds) {
    check_at(s, "127.0.0.1", request, status, holds);
}

#define MODELS "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
#define FP8 "{\"role\": \"user\", \"content\": \"What is FP8?\"}"

// ---- Keys -------------------------------------------------------------------------------------------------------------

static void test_no_key(void) {
    char arguments[600];
    check_no_server("", "--api-key ''", "--api-key is empty");
    check_no_server("MOTE_API_KEY=", "", "MOTE_API_KEY is empty");
    check_no_server("", "--api-key ' a'", "blank");
    check_no_server("", "--api-key \"$(printf 'a\\001b')\"", "control character");
    check_no_server("", "--api-key \"$(head -c 40000 /dev/zero | tr '\\0' k)\"", "longer than");
    check_no_server("", "--allow-host 'a b:c'", "--allow-host");
    static const struct { const char *text; size_t size; const char *holds; } files[] = {
        {"", 0, "is empty"}, {"\n", 1, "is empty"}, {"\r\n", 2, "is empty"}, {"a\0b\n", 4, "zero byte"}, {"a\tb\n", 4, "control"},
        {"a\n\r\n\n b\n", 8, "line 4, begins or ends with a blank"}, {"\n\r\n\n", 4, "is empty"}};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        temp_write("key", files[i].text, files[i].size);
        snprintf(arguments, sizeof arguments, "--api-key-file %s", temp_path("key"));
        check_no_server("MOTE_API_KEY=other", arguments, files[i].holds);
    }
    check_no_server("", "--api-key-file /nowhere/key", "/nowhere/key");
}

// header: X-Api-Key or Authorization, with what comes before the key
static void check_key(server s, const char *header, const char *key, int status) {
    static char request[65536];
    snprintf(request, sizeof request, MODELS "%s%s\r\n\r\n", header, key);
    check_raw(s, request, status, status == 200 ? "\"id\"" : "error");
}

static void test_long_key(void) {
    enum { LONG = 30000 };
    static char key[LONG + 2], wrong[LONG + 2];
    char arguments[600];
    memset(key, 'k', LONG);
    key[LONG / 2] = 'K';
    memcpy(wrong, key, LONG);
    temp_write("key", key, LONG);
    chmod(temp_path("key"), 0600);
    snprintf(arguments, sizeof arguments, "--api-key-file %s", temp_path("key"));
    server s = serve_logged("MOTE_API_KEY=other", arguments);
    char *said = log_text();
    CHECK(!strstr(said, "others"), "a key for its owner alone: %s", said);
    free(said);
    check_key(s, "X-Api-Key: ", key, 200);
    check_key(s, "Authorization: Bearer ", key, 200);
    check_key(s, "X-Api-Key: other\r\nAuthorization: Bearer ", key, 200);
    wrong[LONG - 1] = 'x';
    check_key(s, "X-Api-Key: ", wrong, 401);
    wrong[LONG - 1] = 0;
    check_key(s, "X-Api-Key: ", wrong, 401);
    wrong[LONG - 1] = wrong[LONG] = 'k';
    check_key(s, "X-Api-Key: ", wrong, 401);
    check_key(s, "X-Api-Key: ", "other", 401);
    check_key(s, "X-Api-Key:", "", 401);
    check_key(s, "Authorization: Bearer ", "", 401);
    check_key(s, "Authorization: Basic ", key, 401);
    check_key(s, "Accept: ", "*/*", 401);
    stop(s);
}

// The command line's key counts, else the file's, else the environment's.
static void test_key_order(void) {
    static const char *const keys[] = {"line", "file", "environment"};
    char arguments[600];
    temp_write("key", "file\r\n", 6);
    chmod(temp_path("key"), 0644);
    for (int i = 0; i < 3; i++) {
        snprintf(arguments, sizeof arguments, "%s %s%s", i < 1 ? "--api-key line" : "", i < 2 ? "--api-key-file " : "",
                 i < 2 ? temp_path("key") : "");
        server s = serve_logged("MOTE_API_KEY=environment", arguments);
        for (int k = 0; k < 3; k++) check_key(s, "X-Api-Key: ", keys[k], k == i ? 200 : 401);
        char *said = log_text();
        CHECK((strstr(said, "others may read it") != NULL) == (i == 1), "the file's mode: %s", said);
        free(said);
        stop(s);
    }
}

// ---- SIGHUP -----------------------------------------------------------------------------------------------------------

static void wait_said(const char *text, int times) {
    double until = now() + 20;
    char *said = log_text();
    while (count_of_text(said, text) < times && now() < until) {
        usleep(10000);
        free(said);
        said = log_text();
    }
    CHECK(count_of_text(said, text) == times, "'%s' not said %d times: %s", text, times, said);
    free(said);
}

// Keys are read again, several of them; a file that cannot be read, or holds none, changes nothing.
static void test_reread(void) {
    char arguments[600], path[512];
    snprintf(path, sizeof path, "%s", temp_path("key"));
    temp_write("key", "one\n", 4);
    chmod(path, 0600);
    snprintf(arguments, sizeof arguments, "--api-key-file %s --context 1024 --parallel 1", path);
    server s = serve_logged("MOTE_API_KEY=other", arguments);
    check_key(s, "X-Api-Key: ", "one", 200);
    temp_write("key", "\xef\xbb\xbf" "two\r\n\n\nthree", 15);         // as editors of Windows write it
    check_key(s, "X-Api-Key: ", "two", 401);
    kill(s.pid, SIGHUP);
    wait_said("read again, 2 keys", 1);
    check_key(s, "X-Api-Key: ", "one", 401);
    check_key(s, "X-Api-Key: ", "two", 200);
    check_key(s, "Authorization: Bearer ", "three", 200);
    check_key(s, "X-Api-Key: ", "two\r\nX-Api-Key: none", 200);
    check_key(s, "X-Api-Key: ", "", 401);
    static const char *const bad[] = {"", "\n\n", "four\n five\n", "four\tfive\n"};
    for (int i = 0; i < 4; i++) {
        temp_write("key", bad[i], strlen(bad[i]));
        kill(s.pid, SIGHUP);
        wait_said("what it held before stays, 2 keys", i + 1);
        check_key(s, "X-Api-Key: ", "two", 200);
        check_key(s, "X-Api-Key: ", "four", 401);
    }
    unlink(path);
    kill(s.pid, SIGHUP);
    wait_said("what it held before stays, 2 keys", 5);
    CHECK(!mkfifo(path, 0600), "mkfifo: %s", strerror(errno));         // nobody will ever write to it
    kill(s.pid, SIGHUP);
    wait_said("what it held before stays, 2 keys", 6);
    check_key(s, "X-Api-Key: ", "two", 200);
    char *said = log_text();
    CHECK(strstr(said, "No such file") && !strstr(said, "three"), "why, and no key: %s", said);
    free(said);
    unlink(path);
    stop(s);
}

// Keys that stay are good at any time while others come and go.
static void test_reread_races(void) {
    char arguments[600];
    temp_write("key", "stays\ngoes\n", 11);
    snprintf(arguments, sizeof arguments, "--api-key-file %s --context 1024 --parallel 1", temp_path("key"));
    server s = serve_logged("", arguments);
    pid_t storm = fork();
    if (storm == 0) {
        for (;;) kill(s.pid, SIGHUP), usleep(1000);
    }
    for (int i = 0; i < 60; i++) {
        check_key(s, "X-Api-Key: ", "stays", 200);
        check_key(s, "X-Api-Key: ", "wrong", 401);
    }
    kill(storm, SIGKILL);
    waitpid(storm, NULL, 0);
    stop(s);
}

// Without a key file SIGHUP, however often it comes, lets answers finish; after nohup it does nothing.
static void test_hangup(void) {
    server s = serve_logged("", "--api-key k --parallel 1");
    static const char asks[] = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: k\r\nContent-Length: 57\r\n\r\n"
                               "{\"prompt\": \"Once\", \"max_tokens\": 300, \"ignore_eos\": true}";
    int fd = dial(s);
    tell(fd, asks, sizeof asks - 1);
    usleep(300000);
    for (int i = 0; i < 3; i++) kill(s.pid, SIGHUP), usleep(20000);
    heard h = hear(fd);
    CHECK(h.status == 200 && number(&h, "completion_tokens") == 300, "an answer at SIGHUP: %d %s", h.status, h.data);
    forget(&h);
    close(fd);
    int code = end_of(s);
    CHECK(code == 0, "ended with %d", code);
    s = serve_logged("trap '' HUP;", "--context 1024 --parallel 1");
    kill(s.pid, SIGHUP);
    usleep(100000);
    check_raw(s, MODELS "\r\n", 200, "\"id\"");
    stop(s);
}

// ---- Names in Host ----------------------------------------------------------------------------------------------------

// An address of this machine that others can reach; 0: it has none.
static int outer_address(char *to, size_t capacity) {
    struct ifaddrs *all = NULL;
    to[0] = 0;
    if (getifaddrs(&all)) return 0;
    for (struct ifaddrs *a = all; a && !to[0]; a = a->ifa_next) {
        if (!a->ifa_addr || a->ifa_addr->sa_family != AF_INET) continue;
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)a->ifa_addr;
        if (ntohl(in->sin_addr.s_addr) >> 24 != 127) inet_ntop(AF_INET, &in->sin_addr, to, (socklen_t)capacity);
    }
    freeifaddrs(all);
    return to[0] != 0;
}

static void check_host(server s, const char *address, const char *host, const char *more, int status) {
    char request[512];
    snprintf(request, sizeof request, "GET /v1/models HTTP/1.1\r\nHost: %s\r\n%s\r\n", host, more);
    check_at(s, address, request, status, status == 200 ? "\"id\"" : "error");
}

static const char *const own_hosts[] = {"localhost", "LocalHost", "localhost.", "localhost:8080", "localhost.:80", "a.localhost", "127.0.0.1",
                                        "127.0.0.1:1", "192.168.1.7:8080", "[::1]", "[fd00::1]:8080", ""};
static const char *const other_hosts[] = {"evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "[evil]",
                                          "[::1", "127.1", "1.2.3", "localhost:80x", "evil.example:localhost", ":80", ".", "notlocalhost",
                                          "127.0.0.1 evil", "localhost:", "x@localhost"};

// Whatever --host says, it is the address that a connection came in on that counts.
static void test_hosts(void) {
    char outer[64];
    int has_outer = outer_address(outer, sizeof outer);
    if (!has_outer) test_skip("this machine has no address that others can reach");
    server open = serve_logged("", "--host 0.0.0.0 --allow-host Box.Local.:80 --allow-host gpu");
    char *said = log_text();
    CHECK(strstr(said, "other machines can reach it, and no key is asked for"), "no notice: %s", said);
    free(said);
    server mapped = serve("--host ::"), keyed = serve("--host 0.0.0.0 --api-key k");
    for (int i = 0; i < 2; i++) {
        const char *at = i ? outer : "127.0.0.1";
        if (i && !has_outer) break;
        for (size_t k = 0; k < sizeof own_hosts / sizeof own_hosts[0]; k++) {
            check_host(open, at, own_hosts[k], "", 200);
            check_host(mapped, at, own_hosts[k], "", 200);
        }
        for (size_t k = 0; k < sizeof other_hosts / sizeof other_hosts[0]; k++) {
            int status = !strcmp(other_hosts[k], "localhost:") ? 200 : 403;
            check_host(open, at, other_hosts[k], "", status);
            check_host(mapped, at, other_hosts[k], "", status);
        }
        check_host(open, at, "box.LOCAL:8080", "", 200);
        check_host(open, at, "GPU.", "", 200);
        check_host(open, at, "gpu.box.local", "", 403);
        check_at(open, at, "GET /v1/models HTTP/1.0\r\n\r\n", 200, "\"id\"");
        check_host(keyed, at, "evil.example", "X-Api-Key: k\r\n", i ? 200 : 403);      // where others reach it, who knows the key may ask
        check_host(keyed, at, "evil.example", "", i ? 401 : 403);
    }
    stop(open);
    stop(mapped);
    stop(keyed);
}

#define PREFLIGHT "OPTIONS /v1/chat/completions HTTP/1.1\r\nAccess-Control-Request-Method: POST\r\n"

static void test_pages(void) {
    server s = serve("--api-key k --cors"), closed = serve("");
    check_raw(s, PREFLIGHT "Host: localhost\r\nOrigin: http://a.b\r\n\r\n", 204, "Allow-Methods: GET, POST");
    check_raw(s, PREFLIGHT "Host: evil.example\r\nOrigin: http://a.b\r\n\r\n", 403, "Host");
    check_raw(s, PREFLIGHT "Host: localhost\r\n\r\n", 401, "key");
    check_raw(s, PREFLIGHT "Host: localhost\r\nOrigin: http://a.b\r\nOrigin: http://localhost\r\n\r\n", 400, "Origin");
    check_raw(closed, PREFLIGHT "Host: localhost\r\nOrigin: http://a.b\r\n\r\n", 403, "origin");
    check_raw(closed, PREFLIGHT "Host: localhost\r\nOrigin: http://localhost\r\n\r\n", 405, "does not take OPTIONS");
    check_raw(closed, MODELS "Origin: http://localhost\r\nOrigin: http://a.b\r\n\r\n", 400, "Origin");
    check_raw(closed, MODELS "Origin: http://localhost\r\n\r\n", 200, "\"id\"");
    check_raw(closed, MODELS "Origin: null\r\n\r\n", 403, "origin");
    check_raw(closed, MODELS "Origin:\r\n\r\n", 403, "origin");
    stop(s);
    stop(closed);
}

// ---- Memory -----------------------------------------------------------------------------------------------------------

// What the head decides is answered at the head, and the connection ends.
static void check_at_head(server s, const char *path, const char *more, size_t size, int status) {
    char head[512];
    int fd = dial(s), n = snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nHost: localhost\r\n%sExpect: 100-continue\r\nContent-Length: %zu\r\n\r\n",
                                   path, more, size);
    double began = now();
    tell(fd, head, (size_t)n);
    heard h = hear_for(fd, 8);
    CHECK(h.status == status && strstr(h.data, "Connection: close"), "%s %s, %zu bytes: %.200s", path, more, size, h.data);
    CHECK(now() - began < 5, "answered after %.1f s", now() - began);
    forget(&h);
    char rest[16];
    CHECK(recv(fd, rest, sizeof rest, 0) == 0, "the connection goes on");
    close(fd);
}

static void test_at_head(void) {
    server s = serve("--api-key k --request-memory 0.01");
    check_at_head(s, "/v1/chat/completions", "", 1000, 401);
    check_at_head(s, "/v1/chat/completions", "X-Api-Key: no\r\n", 96 << 20, 401);
    check_at_head(s, "/v1/chat/completions", "X-Api-Key: k\r\nOrigin: http://a.b\r\n", 1000, 403);
    check_at_head(s, "/v1/chat/completions", "X-Api-Key: k\r\n", (96 << 20) + 1, 413);
    check_at_head(s, "/v1/chat/completions", "X-Api-Key: k\r\n", 8 << 20, 413);
    check_at_head(s, "/nowhere", "X-Api-Key: k\r\n", 1000, 404);
    check_at_head(s, "/v1/models", "X-Api-Key: k\r\n", 1000, 405);
    // What needs no key reads no body either: it would be memory for strangers.
    check_raw(s, "GET /health HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\nabc", 200, "Connection: close");
    // Who sends the body all the same reads the answer, and no reset.
    static char request[4 << 20];
    int fd = dial(s), n = snprintf(request, sizeof request, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
                                   sizeof request);
    tell(fd, request, (size_t)n);
    tell(fd, request, sizeof request);
    heard h = hear_for(fd, 8);
    CHECK(h.status == 401, "after a body: %d", h.status);
    forget(&h);
    close(fd);
    stop(s);
}

static void wait_for(server s, const char *name, long value) {
    double until = now() + 20;
    long last;
    while ((last = metric(s, name)) != value && now() < until) usleep(20000);
    CHECK(last == value, "%s is %ld, expected %ld", name, last, value);
}

static void announce(int fd, const char *path, size_t size) {
    char head[256];
    int n = snprintf(head, sizeof head, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n", path, size);
    tell(fd, head, (size_t)n);
}

// Bodies of which a half is there hold all of the memory: what comes then is refused and told to come back, what needs none is
// answered, and when they have gone all is as before.
static void test_half_bodies(void) {
    enum { COUNT = 24, HALF = 1 << 20 };
    server s = serve("--request-memory 0.01");
    static char text[HALF];
    int fd[COUNT], busy = 0;
    memset(text, ' ', sizeof text);
    for (int i = 0; i < COUNT; i++) {
        fd[i] = dial(s);
        announce(fd[i], "/tokenize", 2 * HALF);
        tell(fd[i], text, sizeof text);
    }
    for (int i = 0; i < COUNT; i++) {
        struct pollfd p = {fd[i], POLLIN, 0};
        if (poll(&p, 1, 300) <= 0) continue;
        heard h = hear_for(fd[i], 5);
        CHECK(h.status == 503 && strstr(h.data, "Retry-After: 1\r\n") && strstr(h.data, "--request-memory"), "too much: %.300s", h.data);
        busy++;
        forget(&h);
    }
    CHECK(busy >= COUNT - 5 && busy < COUNT, "%d of %d half bodies are refused", busy, COUNT);
    long used = metric(s, "request_bytes"), most = metric(s, "request_bytes_limit");
    CHECK(used > 2 * HALF && used <= most && most == 10000000, "%ld bytes of %ld", used, most);
    check_raw(s, MODELS "\r\n", 200, "\"id\"");
    for (int i = 0; i < COUNT; i++) close(fd[i]);
    wait_for(s, "request_bytes", 0);
    heard h = post(s, "/tokenize", "{\"prompt\": \"Hi\"}");
    CHECK(h.status == 200, "afterwards: %d %s", h.status, h.data);
    forget(&h);
    stop(s);
}

// A tree takes many times its text.
static void test_trees(void) {
    enum { SIZE = 1 << 19 };
    server s = serve("--request-memory 0.02");
    char *body = (char *)allocate(SIZE);
    size_t n = (size_t)snprintf(body, SIZE, "{\"prompt\": \"Hi\", \"x\": [1");
    while (n < SIZE - 4) body[n++] = ',', body[n++] = '1';
    memcpy(body + n, "]}", 3);
    heard h = post(s, "/tokenize", body);
    CHECK(h.status == 413 && strstr(h.body, "--request-memory"), "a large tree: %d %s", h.status, h.body);
    forget(&h);
    for (char *c = strchr(body, '[') + 1; *c != ']'; c++) *c = ' ';
    h = post(s, "/tokenize", body);
    CHECK(h.status == 200, "a small one of as many bytes: %d %s", h.status, h.body);
    forget(&h);
    wait_for(s, "request_bytes", 0);
    free(body);
    stop(s);
}

// Answers are counted, too: the log-probabilities of a whole context are more than there is.
static void test_answers(void) {
    static char body[1 << 16];
    server s = serve("--request-memory 0.003");
    size_t n = (size_t)snprintf(body, sizeof body, "{\"max_tokens\": 0, \"echo\": true, \"logprobs\": 20, \"prompt\": [1");
    for (int i = 0; i < 4000; i++) n += (size_t)snprintf(body + n, sizeof body - n, ",%d", i % 7);
    snprintf(body + n, sizeof body - n, "]}");
    heard h = post(s, "/v1/completions", body);
    CHECK(h.status == 413 && strstr(h.body, "--request-memory"), "log-probabilities of 4001 tokens: %d %.300s", h.status, h.body);
    forget(&h);
    wait_for(s, "request_bytes", 0);
    h = post(s, "/v1/completions", "{\"max_tokens\": 0, \"echo\": true, \"logprobs\": 20, \"prompt\": [1, 2, 3]}");
    CHECK(h.status == 200, "of three: %d %.300s", h.status, h.body);
    forget(&h);
    stop(s);
}

// ---- The folder of timelines ------------------------------------------------------------------------------------------

static int is_there(const char *folder, const char *name) {
    char path[600];
    struct stat status;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return !lstat(path, &status);
}

static void ask_about(server s, const char *what) {
    char body[1024];
    snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": \"What is %s? Tell me all that you know of it, and of what it is made, "
             "and of all else that I should know before I use one of them on my own machine\"}], \"max_tokens\": 4}", what);
    heard h = post(s, "/v1/chat/completions", body);
    CHECK(h.status == 200, "%d %s", h.status, h.body);
    forget(&h);
}

// The name of the one file that the server has made; bytes: what it holds.
static char *kept_file(const char *folder, char *name, size_t capacity, size_t *size) {
    char path[800];
    DIR *d = opendir(folder);
    name[0] = 0;
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (strstr(e->d_name, ".session")) snprintf(name, capacity, "%s", e->d_name);
    if (d) closedir(d);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return file_bytes(path, size);
}

static void put_file(const char *folder, const char *name, const char *bytes, size_t size) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    write_bytes(path, bytes, size);
}

// Files that the server has not made stay, whatever they hold and however they are called.
static void test_folder(void) {
    static const char *const users[] = {"chat.session", "0123456789abcdef.session", "0123456789ABCDEF.session", "0123456789abcde.session",
                                        "0123456789abcdef.session.session", "notes.txt"};
    enum { USERS = sizeof users / sizeof users[0] };
    char folder[256], arguments[600], name[300], link[600], target[600];
    size_t size;
    snprintf(folder, sizeof folder, "%s/kept", temp_dir);
    snprintf(arguments, sizeof arguments, "--parallel 1 --cache-dir %s", folder);
    server s = serve_logged("", arguments);
    ask_about(s, "FP8");
    stop(s);
    char *bytes = kept_file(folder, name, sizeof name, &size);
    if (!CHECK(bytes && size > 1000, "nothing is kept in %s", folder)) return;
    for (int i = 0; i < USERS; i++) put_file(folder, users[i], bytes, size);
    put_file(folder, "fedcba9876543210.session", "no session", 10);
    snprintf(link, sizeof link, "%s/fedcba9876543211.session", folder);
    snprintf(target, sizeof target, "%s/elsewhere", temp_dir);
    write_bytes(target, bytes, size);
    CHECK(!symlink(target, link), "symlink: %s", strerror(errno));
    snprintf(arguments, sizeof arguments, "--parallel 1 --cache-dir %s --cache-disk 0", folder);
    s = serve_logged("", arguments);
    ask_about(s, "a mixture of experts");
    stop(s);
    for (int i = 0; i < USERS; i++) CHECK(is_there(folder, users[i]), "%s is gone", users[i]);
    CHECK(is_there(folder, "fedcba9876543210.session") && is_there(folder, "fedcba9876543211.session"), "another file or a link is gone");
    CHECK(!is_there(folder, name), "%s stays, with place for none", name);
    char *said = log_text();
    CHECK(count_of_text(said, "holds other things, too") == 1, "not said once: %s", said);
    free(said);
    // In the place of a file to come lies something else: it stays as it is, too.
    snprintf(link, sizeof link, "%s/%s", folder, name);
    write_bytes(target, "precious", 8);
    CHECK(!symlink(target, link), "symlink: %s", strerror(errno));
    snprintf(arguments, sizeof arguments, "--parallel 1 --cache-dir %s", folder);
    s = serve_logged("", arguments);
    ask_about(s, "FP8");
    stop(s);
    size_t left;
    char *precious = file_bytes(target, &left);
    CHECK(left == 8 && !memcmp(precious, "precious", 8), "a link was followed: %zu bytes", left);
    free(precious);
    free(bytes);
}

// A folder that cannot be written is said once a minute at most.
static void test_lost_folder(void) {
    char folder[256], arguments[600], what[64];
    snprintf(folder, sizeof folder, "%s/lost", temp_dir);
    snprintf(arguments, sizeof arguments, "--parallel 1 --cache-dir %s", folder);
    server s = serve_logged("", arguments);
    CHECK(!rmdir(folder), "rmdir: %s", strerror(errno));
    for (int i = 0; i < 5; i++) {
        snprintf(what, sizeof what, "number %d", i);
        ask_about(s, what);
    }
    stop(s);
    char *said = log_text();
    CHECK(count_of_text(said, folder) == 1, "not said once: %s", said);
    free(said);
}

// ---- UTF-8 --------------------------------------------------------------------------------------------------------------

static int is_utf8(const char *text) {
    const unsigned char *p = (const unsigned char *)text;
    while (*p) {
        int n = *p < 0x80 ? 0 : *p >= 0xc2 && *p < 0xe0 ? 1 : *p >= 0xe0 && *p < 0xf0 ? 2 : *p >= 0xf0 && *p < 0xf5 ? 3 : -1;
        if (n < 0) return 0;
        for (p++; n-- > 0; p++)
            if ((*p & 0xc0) != 0x80) return 0;
    }
    return 1;
}

static void check_utf8(server s, const char *path, const char *body, const char *holds) {
    heard h = body ? post(s, path, body) : get(s, path);
    CHECK(is_utf8(h.data) && strstr(h.body, holds), "%s: no UTF-8, or not with '%s': %s", path, holds, h.data);
    forget(&h);
}

static void test_utf8(void) {
    char here[512], name[600], arguments[700], body[512];
    if (!CHECK(getcwd(here, sizeof here - 16) != NULL, "no folder")) return;
    strcat(here, "/models/demo");
    snprintf(name, sizeof name, "%s/m\xff\xc3", temp_dir);
    CHECK(!symlink(here, name), "symlink: %s", strerror(errno));
    snprintf(arguments, sizeof arguments, "-m %s", name);
    server s = serve(arguments);
    static const struct { const char *path, *body; } asks[] = {
        {"/v1/chat/completions", "{\"max_tokens\": 3, \"messages\": [" FP8 "], \"stream\": %s}"},
        {"/v1/completions", "{\"max_tokens\": 3, \"prompt\": \"x\", \"stream\": %s}"},
        {"/v1/messages", "{\"max_tokens\": 3, \"messages\": [" FP8 "], \"stream\": %s}"},
        {"/v1/responses", "{\"max_output_tokens\": 3, \"input\": \"x\", \"stream\": %s}"}};
    check_utf8(s, "/v1/models", NULL, "\"m\xef\xbf\xbd\xef\xbf\xbd\"");
    for (int i = 0; i < 8; i++) {
        snprintf(body, sizeof body, asks[i / 2].body, i % 2 ? "true" : "false");
        check_utf8(s, asks[i / 2].path, body, "\"m\xef\xbf\xbd\xef\xbf\xbd\"");
    }
    for (int i = 0; i < 4; i++) {          // what is quoted of a request may be cut anywhere
        snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"%.*s\xf0\x9f\x98\x80\xf0\x9f\x98\x80\"}]}]}", 34 + i,
                 "0123456789012345678901234567890123456789");
        check_utf8(s, "/v1/chat/completions", body, "01234567890123456789");
    }
    stop(s);
}

// ---- The end ------------------------------------------------------------------------------------------------------------

// Who has asked for nothing yet does not hold up the end, and who has begun to ask does for a moment.
static void test_end(void) {
    static const char *const sent[] = {"", "\r\n", "\r\n\r\n\r\n", "\r", "GET /health HT", "GET /health HTTP/1.1\r\nHost: localhost\r\n",
                                       "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20\r\n\r\n{\"prompt\"",
                                       "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"",
                                       "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n\r\n"};
    enum { SENT = sizeof sent / sizeof sent[0] };
    server s = serve("");
    int fd[SENT];
    for (int i = 0; i < SENT; i++) {
        fd[i] = dial(s);
        tell(fd[i], sent[i], strlen(sent[i]));
    }
    wait_for(s, "connections", SENT + 1);
    double began = now();
    kill(s.pid, SIGTERM);
    int code = end_of(s);
    CHECK(code == 0 && now() - began < 6, "ended with %d after %.1f s", code, now() - began);
    heard h = hear_for(fd[6], 1);
    CHECK(h.status == 503 && strstr(h.body, "being stopped"), "half a body at the end: %s", h.data);
    forget(&h);
    for (int i = 0; i < SENT; i++) close(fd[i]);
}

// The end while one reads a long prompt and others wait: those that wait are told, and the one is answered.
static void test_end_under_load(void) {
    static char body[1 << 15];
    server s = serve("--parallel 1 --queue 4");
    int one = dial(s), two = dial(s);
    size_t n = (size_t)snprintf(body, sizeof body, "{\"max_tokens\": 2, \"prompt\": \"");
    for (int i = 0; i < (test_brief ? 300 : 1200); i++) n += (size_t)snprintf(body + n, sizeof body - n, "word %d", i % 7);
    snprintf(body + n, sizeof body - n, "\"}");
    post_on(one, "/v1/completions", body);
    wait_for(s, "sessions_busy", 1);
    post_on(two, "/v1/completions", body);
    usleep(200000);
    kill(s.pid, SIGTERM);
    heard h = hear_for(two, 5);
    CHECK(h.status == 503 && strstr(h.body, "being stopped"), "one that waits: %d %s", h.status, h.data);
    forget(&h);
    h = hear(one);
    CHECK(h.status == 200 && strstr(h.data, "Connection: close"), "one that reads: %d %s", h.status, h.data);
    forget(&h);
    int code = end_of(s);
    CHECK(code == 0, "ended with %d", code);
    close(one);
    close(two);
}

// Clients that vanish, whatever they had sent or got, leave nothing.
static void test_vanished(void) {
    static const char *const sent[] = {"", "\r\n", "GET /hea", "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"prompt\"",
                                       "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 37\r\n\r\n{\"prompt\": \"Once\", \"max_tokens\": 3000}"};
    enum { SENT = sizeof sent / sizeof sent[0], TIMES = 12 };
    server s = serve("--parallel 2");
    for (int k = 0; k < TIMES; k++)
        for (int i = 0; i < SENT; i++) {
            int fd = dial(s);
            tell(fd, sent[i], strlen(sent[i]));
            if (k % 3) usleep(k % 3 == 1 ? 3000 : 30000);
            struct linger hard = {1, 0};   // a reset
            if (k % 2) setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
            close(fd);
        }
    wait_for(s, "connections", 1);
    wait_for(s, "sessions_busy", 0);
    wait_for(s, "requests_waiting", 0);
    wait_for(s, "request_bytes", 0);
    stop(s);
}

int main(int argc, char **argv) {
    test_main_begin("access", argc, argv);
    if (!temp_open()) return test_main_end();
    test_no_key();
    test_long_key();
    test_key_order();
    test_reread();
    test_reread_races();
    test_hangup();
    test_hosts();
    test_pages();
    test_at_head();
    test_half_bodies();
    test_trees();
    test_answers();
    test_folder();
    test_lost_folder();
    test_utf8();
    test_end();
    test_end_under_load();
    test_vanished();
    temp_close();
    return test_main_end();
}
