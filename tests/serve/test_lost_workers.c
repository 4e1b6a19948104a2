// Tests of mote serve with a worker that is lost and comes back, as processes: answers end with an error that names it, the server stays and says
// so, and serves again when the worker is there, without a restart. What nobody may take for it is refused.
//
// And with its own device lost, which no worker mends: then it ends, as it does without workers. LOSSY is a server that loses its device.
//
// Usage: test_lost_workers [--device NAME] [--brief]

#include "client.h"

#ifndef LOSSY
#define LOSSY "./lossy_serve"
#endif

#define SAID(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define CHAT(text, more) "{\"messages\": [" SAID("user", text) "], \"temperature\": 0, \"enable_thinking\": false, " more "}"
#define ENDLESS CHAT("What is FP8?", "\"max_tokens\": 3500, \"ignore_eos\": true, \"stream\": true")
#define FIRST CHAT("What is a mixture of experts? Tell me all that you know of it, and of its router", "\"max_tokens\": 12")
#define SECOND CHAT("Tell me a story about a fox in a wood, and let it be a long one with a bird", "\"max_tokens\": 12")

enum { LOST_SECONDS = 12 };                // in which an answer ends whose worker is lost: 10, and what a busy machine takes

typedef struct worker { pid_t pid; char address[64]; } worker;

// Listens where `listen` says, and has said so.
static worker start_worker(const char *dir, const char *listen) {
    worker w = {-1, ""};
    char command[512], line[512] = "";
    FILE *said;
    snprintf(command, sizeof command, "%s worker -m %s --device %s --threads 1 --secret-file %s --listen %s", MOTE_PROGRAM, dir, test_device,
             temp_path("key"), listen);
    w.pid = start_heard(command, &said);
    const char *at = NULL;
    while (!at && fgets(line, sizeof line, said)) at = strstr(line, "waits for a leader on ");
    if (!CHECK(at, "no worker: %s", line)) exit(test_main_end());
    sscanf(at, "waits for a leader on %63s", w.address);
    fclose(said);                          // nobody reads its log on
    return w;
}

static void kill_worker(const worker *w) {
    kill(w->pid, SIGKILL);
    waitpid(w->pid, NULL, 0);
}

// Waits until /health holds this.
static void wait_for_health(server s, const char *holds, double most) {
    const double until = now() + most;
    for (;;) {
        heard h = get(s, "/health");
        const int there = h.status == 200 && strstr(h.body, holds) != NULL;
        if (!there && now() >= until) CHECK(0, "/health after %.0f s: %d %s, expected '%s'", most, h.status, h.body, holds);
        forget(&h);
        if (there || now() >= until) return;
        usleep(100000);
    }
}

typedef struct said { char text[1024]; long cached; } said;

static said ask(server s, const char *body) {
    said a = {"", 0};
    heard h = post(s, "/v1/chat/completions", body);
    CHECK(h.status == 200, "%d %s", h.status, h.body);
    join(h.body, "content", a.text, sizeof a.text);
    a.cached = number(&h, "cached_tokens");
    forget(&h);
    return a;
}

// What is asked now is refused, and /health says why, both in words that hold these.
static void check_refuses(server s, const worker *w, const char *why) {
    heard h = post(s, "/v1/chat/completions", FIRST);
    CHECK(h.status == 503 && strstr(h.body, w->address) && strstr(h.body, why) && strstr(h.data, "Retry-After: "), "a request: %d %s", h.status, h.data);
    forget(&h);
    h = get(s, "/health");
    CHECK(h.status == 200 && strstr(h.body, "{\"status\": \"degraded\"") && strstr(h.body, "\"reason\": \"") && strstr(h.body, w->address) && strstr(h.body, why),
          "/health: %d %s", h.status, h.body);
    forget(&h);
}

// A stream under way ends with an error, which names the worker, when this is done to it.
static void lose_in_a_stream(server s, const worker *w, int number, const char *why) {
    static char data[1 << 20];
    size_t n = 0;
    int fd = dial(s);
    post_on(fd, "/v1/chat/completions", ENDLESS);
    CHECK(recv(fd, data, 512, 0) > 0, "no stream");
    kill(w->pid, number);
    const double until = now() + LOST_SECONDS;
    const char *error = NULL;
    data[0] = 0;
    while (!error && now() < until && n < sizeof data - 1) {
        struct pollfd p = {fd, POLLIN, 0};
        const ssize_t got = poll(&p, 1, 100) > 0 ? recv(fd, data + n, sizeof data - 1 - n, 0) : 0;
        if (got > 0) data[n += (size_t)got] = 0;
        error = strstr(data, "{\"error\"");
    }
    CHECK(error && strstr(error, w->address) && strstr(error, why), "within %d s the stream ends so: %s", LOST_SECONDS, error ? error : "it does not");
    close(fd);
}

// Killed: nobody is there, then somebody with another folder, then it is there again; twice, as one that has come back may be lost, too.
static void test_killed(server s, worker *w) {
    const said first = ask(s, FIRST), second = ask(s, SECOND);
    CHECK(*first.text && *second.text, "nothing is said");
    lose_in_a_stream(s, w, SIGKILL, "has closed the connection");
    waitpid(w->pid, NULL, 0);
    check_refuses(s, w, "");
    wait_for_health(s, "Connection refused", 10);
    check_refuses(s, w, "Connection refused");
    worker other = start_worker("tests/fixtures/fp8-ragged", w->address);
    wait_for_health(s, "is another model than the leader's", 10);
    check_refuses(s, w, "is another model than the leader's");
    kill_worker(&other);
    *w = start_worker("models/demo", w->address);
    wait_for_health(s, "\"status\": \"ok\"", 20);
    const said again = ask(s, FIRST);
    CHECK(!strcmp(again.text, first.text), "'%s', before '%s'", again.text, first.text);
    CHECK(again.cached > 20, "of a conversation that was kept %ld tokens are there", again.cached);
    CHECK(!strcmp(ask(s, SECOND).text, second.text), "the second answer has changed");
    kill_worker(w);
    check_refuses(s, w, "");
    *w = start_worker("models/demo", w->address);
    wait_for_health(s, "\"status\": \"ok\"", 20);
    CHECK(!strcmp(ask(s, FIRST).text, first.text), "the answer has changed");
    CHECK(metric(s, "sessions_busy") == 0 && metric(s, "sessions") == 1, "%ld of %ld sessions busy", metric(s, "sessions_busy"), metric(s, "sessions"));
}

// Stopped, it is lost within 10 s; when it goes on, so does the server.
static void test_stopped(server s, worker *w) {
    const said first = ask(s, FIRST);
    lose_in_a_stream(s, w, SIGSTOP, "has not been heard of for 10 s");
    check_refuses(s, w, "has not been heard of for");
    kill(w->pid, SIGCONT);
    wait_for_health(s, "\"status\": \"ok\"", 20);
    CHECK(!strcmp(ask(s, FIRST).text, first.text), "the answer has changed");
}

// The stream under way ends with the reason, requests that come are refused with it, and the server ends by itself.
static void test_own_device(const char *arguments) {
    static char data[1 << 20];
    char line[1024], last[1024] = "";
    FILE *log;
    server s = serve_program(LOSSY, arguments, &log);
    int fd = dial(s), status = 0, told = 0;
    post_on(fd, "/v1/chat/completions", ENDLESS);
    CHECK(recv(fd, data, 512, 0) > 0, "no stream");
    kill(s.pid, SIGUSR1);
    size_t n = 0;
    for (ssize_t got; n < sizeof data - 1 && (got = recv(fd, data + n, sizeof data - 1 - n, 0)) > 0;) n += (size_t)got;
    data[n] = 0;
    const char *error = strstr(data, "{\"error\"");
    CHECK(error && strstr(error, "the GPU has fallen off the bus"), "the stream ends so: %s", error ? error : "it does not");
    close(fd);
    const double until = now() + LOST_SECONDS;
    pid_t ended = 0;
    while (!(ended = waitpid(s.pid, &status, WNOHANG)) && now() < until) usleep(20000);
    CHECK(ended == s.pid && WIFEXITED(status) && WEXITSTATUS(status) == 1, "within %d s the server ends so: %d, %x", LOST_SECONDS, (int)ended, status);
    if (!ended) stop(s);
    while (fgets(line, sizeof line, log)) {
        told += !strcmp(line, "mote: the GPU has fallen off the bus\n");
        snprintf(last, sizeof last, "%s", line);
    }
    CHECK(told == 1 && !strcmp(last, "mote: the device is lost\n"), "of its own device it tells %d times, and ends by %s", told, last);
    fclose(log);
}

int main(int argc, char **argv) {
    static const char key[] = "a secret of the tests\n";
    char arguments[512], line[1024];
    int told = 0, back = 0;
    FILE *log;
    test_main_begin("lost_workers", argc, argv);
    signal(SIGPIPE, SIG_IGN);
    temp_open();
    temp_write("key", key, sizeof key - 1);
    chmod(temp_path("key"), 0600);
    worker w = start_worker("models/demo", "127.0.0.1:0");
    snprintf(arguments, sizeof arguments, "-m models/demo --device %s --threads 1 --parallel 1 --workers %s --secret-file %s --cache-dir %s", test_device,
             w.address, temp_path("key"), temp_path("kept"));
    server s = serve_heard(arguments, &log);
    test_killed(s, &w);
    if (!test_brief) test_stopped(s, &w);
    kill_worker(&w);
    check_refuses(s, &w, "");
    stop(s);                               // it can be stopped while nobody is there
    while (fgets(line, sizeof line, log)) {
        told += strstr(line, w.address) && strstr(line, "; what its sessions had read is lost\n");
        back += strstr(line, "serves again\n") != NULL;
    }
    CHECK(told >= 3 && back >= 2 && told == back + 1, "the log tells of %d losses, and that it serves again %d times", told, back);
    fclose(log);
    w = start_worker("models/demo", "127.0.0.1:0");
    snprintf(arguments, sizeof arguments, "-m models/demo --device %s --threads 1 --parallel 1 --workers %s --secret-file %s", test_device, w.address,
             temp_path("key"));
    test_own_device(arguments);
    kill_worker(&w);
    temp_close();
    return test_main_end();
}
