// Tests of mote serve with two replicas: which of them takes a request, timelines that one has read and the other goes on with, what is told of
// each, and what becomes of all that when the device of one is lost. LOSSY is a server that loses devices: see lossy_serve.c.
// With --device cuda the replicas are on two GPUs. There an answer may be over before the next request comes, and a prompt that is read in
// other pieces has other bits: so what needs answers under way, or is compared with a server that keeps nothing, is tested on the CPU.

#include "client.h"

#ifndef LOSSY
#define LOSSY "./lossy_serve"
#endif

#define SAID(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define ENDLESS "{\"messages\": [" SAID("user", "What is FP8?") "], \"max_tokens\": 3500, \"ignore_eos\": true, \"stream\": true}"
static const char *two = "--devices cpu,cpu --split replicas --threads 1";
static const char *devices[2] = {"cpu", "cpu"};

static int on_gpus(void) {
    return strcmp(devices[0], "cpu") != 0;
}

static server serve_two(const char *arguments) {
    char all[512];
    snprintf(all, sizeof all, "%s %s", two, arguments);
    return serve(all);
}

// A metric of one replica; -1: there is none.
static long metric_of(server s, const char *name, int replica) {
    char begin[96];
    heard h = get(s, "/metrics");
    snprintf(begin, sizeof begin, "\nmote_%s{replica=\"%d\",device=\"%s\"} ", name, replica, devices[replica]);
    const char *at = strstr(h.body, begin);
    const long value = at ? strtol(at + strlen(begin), NULL, 10) : -1;
    forget(&h);
    return value;
}

static void wait_for_busy(server s, int replica, long value) {
    double until = now() + 20;
    while (metric_of(s, "sessions_busy", replica) != value && now() < until) usleep(20000);
    const long busy = metric_of(s, "sessions_busy", replica);
    CHECK(busy == value, "replica %d has %ld busy sessions, expected %ld", replica, busy, value);
}

// Passes, and tokens of prompts.
static long computed(server s, int replica) {
    return metric_of(s, "batches_total", replica) + metric_of(s, "read_tokens_total", replica);
}

typedef struct said { char text[4096]; long cached, prompt; int replica; } said;     // an answer, and which replica has given it

// By what each has computed before and after; -1: nobody has, or both.
static said ask_at(server s, const char *path, const char *body) {
    static said a;
    const long before[2] = {computed(s, 0), computed(s, 1)};
    heard h = post(s, path, body);
    CHECK(h.status == 200, "%s: %d %s", path, h.status, h.body);
    a.text[0] = 0;
    join(h.body, strstr(path, "chat") ? "content" : "text", a.text, sizeof a.text);
    a.cached = number(&h, "cached_tokens");
    a.prompt = number(&h, "prompt_tokens");
    const int first = computed(s, 0) > before[0], second = computed(s, 1) > before[1];
    a.replica = first == second ? -1 : second;
    forget(&h);
    return a;
}

// A chat of one question, and of a second one if there is `answer`.
static said ask(server s, const char *question, const char *answer) {
    static char body[1 << 14];
    size_t n = (size_t)snprintf(body, sizeof body, "{\"messages\": [" SAID("user", "%s"), question);
    if (answer) n += (size_t)snprintf(body + n, sizeof body - n, ", " SAID("assistant", "%s") ", " SAID("user", "Go on"), answer);
    snprintf(body + n, sizeof body - n, "], \"max_tokens\": 12, \"temperature\": 0, \"enable_thinking\": false}");
    return ask_at(s, "/v1/chat/completions", body);
}

// Reads a prompt of so many tokens.
static said ask_ids(server s, int from, int count) {
    static char body[1 << 15];
    size_t n = (size_t)snprintf(body, sizeof body, "{\"max_tokens\": 0, \"prompt\": [");
    for (int i = 0; i < count; i++) n += (size_t)snprintf(body + n, sizeof body - n, "%s%d", i ? ", " : "", 20 + (from + i * i) % 200);
    snprintf(body + n, sizeof body - n, "]}");
    return ask_at(s, "/v1/completions", body);
}

static int begin(server s, const char *body) {
    char block[512];
    int fd = dial(s);
    post_on(fd, "/v1/chat/completions", body);
    CHECK(recv(fd, block, sizeof block, 0) > 0, "no stream");
    return fd;
}

// ---- Where a request goes ---------------------------------------------------------------------------------------------

static const char *const questions[3] = {
    "What is a mixture of experts? Tell me all that you know of it, and of its router",
    "Tell me a story about a fox in a wood, and let it be a long one with a bird",
    ("What do you know of the bandwidth of memory, and of what decides how many tokens a model generates in a second, on this machine and on "
     "others that are larger, and what would you do to have more of them?")};

// The answer that a server gives to the same, which keeps nothing of what it has read.
static void check_same(const said *a, server alone, const char *question, const char *answer) {
    if (on_gpus()) return;
    const said b = ask(alone, question, answer);
    CHECK(!strcmp(a->text, b.text), "'%s', and from one that is alone '%s'", a->text, b.text);
}

// A conversation goes back to its replica; others go to the one that has rested longest.
static void test_affinity(server s, server alone) {
    said first[2], again;
    for (int i = 0; i < 2; i++) {
        first[i] = ask(s, questions[i], NULL);
        check_same(&first[i], alone, questions[i], NULL);
    }
    CHECK(first[0].replica >= 0 && first[1].replica == !first[0].replica, "replicas %d and %d", first[0].replica, first[1].replica);
    for (int turn = 0; turn < 2; turn++)
        for (int i = 0; i < 2; i++) {
            again = ask(s, questions[i], first[i].text);
            CHECK(again.replica == first[i].replica, "question %d is asked of replica %d, then of %d", i, first[i].replica, again.replica);
            CHECK(again.cached > 20, "%ld tokens of %ld were there", again.cached, again.prompt);
            check_same(&again, alone, questions[i], first[i].text);
        }
}

// The same request has the same answer in both.
static void test_alike(server s) {
    static const char body[] = "{\"messages\": [" SAID("user", "What is FP8, and what is it good for?") "], \"max_tokens\": 24, \"seed\": 7, "
                               "\"temperature\": 1, \"cache_prompt\": false, \"enable_thinking\": false}";
    const said first = ask_at(s, "/v1/chat/completions", body), second = ask_at(s, "/v1/chat/completions", body);
    CHECK(first.replica >= 0 && second.replica == !first.replica, "replicas %d and %d", first.replica, second.replica);
    CHECK(*first.text && !strcmp(first.text, second.text), "'%s' and '%s'", first.text, second.text);
}

// What is asked at the same time is spread; a busy replica takes what would be long to read elsewhere, and no more.
static void test_load(void) {
    enum { LONG = 2500, SHORT = 100 };
    server s = serve_two("--parallel 8");
    const int busy = ask_ids(s, 1, LONG).replica, idle = ask_ids(s, 2, SHORT).replica;
    CHECK(busy >= 0 && idle == !busy, "%d, %d", busy, idle);
    CHECK(ask_ids(s, 3, SHORT).replica == busy && ask_ids(s, 4, SHORT).replica == idle, "not in turns");
    int one = begin(s, ENDLESS);
    wait_for_busy(s, busy, 1);
    said a = ask_ids(s, 1, LONG + 1), b = ask_ids(s, 3, SHORT + 1);
    CHECK(a.cached >= LONG, "a long prompt: %ld tokens of %ld were there", a.cached, a.prompt);
    CHECK(b.cached == 0, "a short one: %ld tokens of %ld were there", b.cached, b.prompt);
    close(one);
    wait_for_busy(s, busy, 0);
    int fd[4];
    for (int i = 0; i < 4; i++) fd[i] = begin(s, ENDLESS);
    CHECK(metric_of(s, "sessions_busy", 0) == 2 && metric_of(s, "sessions_busy", 1) == 2, "4 answers: %ld and %ld", metric_of(s, "sessions_busy", 0),
          metric_of(s, "sessions_busy", 1));
    for (int i = 0; i < 4; i++) close(fd[i]);
    stop(s);
}

// A timeline that one replica has swapped out comes back in the other, and from a folder in the next run in either.
static void test_swapping(server alone) {
    char arguments[256];
    snprintf(arguments, sizeof arguments, "--parallel 2 --cache-dir %s/kept", temp_dir);
    server s = serve_two(arguments);
    said first = ask(s, questions[0], NULL), second;
    second = ask(s, questions[1], NULL);
    const said third = ask(s, questions[2], NULL);
    CHECK(first.replica >= 0 && second.replica == !first.replica && third.replica == first.replica, "%d, %d, %d", first.replica, second.replica,
          third.replica);
    said again;
    if (on_gpus() && metric(s, "shelved_timelines") < 1) {
        test_skip("this GPU reads the prompt sooner than it swaps it in");
        ask(s, questions[0], NULL);
    } else {
        CHECK(metric(s, "shelved_timelines") >= 1, "%ld swapped out", metric(s, "shelved_timelines"));
        again = ask(s, questions[0], first.text);
        CHECK(again.replica == second.replica && again.cached > 20, "replica %d, where %ld tokens of %ld were there", again.replica, again.cached,
              again.prompt);
        check_same(&again, alone, questions[0], first.text);
    }
    stop(s);
    s = serve_two(arguments);
    again = ask(s, questions[0], first.text);
    CHECK(again.cached > 20, "after a new start %ld tokens of %ld were there", again.cached, again.prompt);
    again = ask(s, questions[2], third.text);
    CHECK(again.cached > 20, "after a new start, the other one: %ld tokens of %ld were there", again.cached, again.prompt);
    stop(s);
}

// Asks this after a first question and its answer, and, if there is one, a second question and its answer.
static said ask_after(server s, const char *answer, const char *second, const char *then, const char *question) {
    static char body[1 << 14];
    char between[5000] = "";
    if (second) snprintf(between, sizeof between, SAID("user", "%s") ", " SAID("assistant", "%s") ", ", second, then);
    snprintf(body, sizeof body, "{\"messages\": [" SAID("user", "%s") ", " SAID("assistant", "%s") ", %s" SAID("user", "%s") "], \"max_tokens\": 12, "
             "\"temperature\": 0, \"enable_thinking\": false}", questions[0], answer, between, question);
    return ask_at(s, "/v1/chat/completions", body);
}

// A timeline that comes back, here from a folder, takes the place that has rested longest, also where another one holds some of it: a conversation
// that began as it did.
static void test_swapped_place(void) {
    char arguments[256];
    snprintf(arguments, sizeof arguments, "--parallel 2 --cache-dir %s/kept-apart", temp_dir);
    server s = serve_two(arguments);
    const said first = ask(s, questions[0], NULL), on = ask_after(s, first.text, NULL, NULL, questions[2]);
    stop(s);
    s = serve_two(arguments);
    const said apart = ask_after(s, first.text, NULL, NULL, "Go on"), other = ask(s, questions[1], NULL);
    const said last = ask_after(s, first.text, NULL, NULL, "Go on");
    CHECK(apart.replica >= 0 && other.replica == !apart.replica && last.replica == apart.replica, "replicas %d, %d, %d", apart.replica, other.replica, last.replica);
    const said back = ask_after(s, first.text, questions[2], on.text, "Go on");
    CHECK(last.cached > 20 && back.cached > last.cached + 20, "of %ld tokens %ld were there, of the conversation that began so %ld", back.prompt, back.cached,
          last.cached);
    CHECK(back.replica == other.replica, "it has come back in replica %d, where something was asked last, and not in %d", back.replica, other.replica);
    stop(s);
}

// Both replicas are full: one request may wait, and takes the first place.
static void test_full(void) {
    server s = serve_two("--parallel 2 --queue 1");
    int one = begin(s, ENDLESS), other = begin(s, ENDLESS), waits = dial(s);
    wait_for_busy(s, 0, 1);
    wait_for_busy(s, 1, 1);
    post_on(waits, "/v1/chat/completions", "{\"messages\": [" SAID("user", "a") "], \"max_tokens\": 2}");
    double until = now() + 20;
    while (metric(s, "requests_waiting") != 1 && now() < until) usleep(20000);
    heard h = post(s, "/v1/chat/completions", ENDLESS);
    CHECK(h.status == 503 && strstr(h.data, "Retry-After: "), "the queue is full: %d %s", h.status, h.data);
    forget(&h);
    close(other);
    h = hear(waits);
    CHECK(h.status == 200, "the next one: %d %s", h.status, h.body);
    forget(&h);
    close(one);
    close(waits);
    stop(s);
}

// ---- What is told --------------------------------------------------------------------------------------------------------

static void check_told(server s, const char *path, const char *holds) {
    heard h = get(s, path);
    CHECK(h.status == 200 && strstr(h.body, holds), "%s lacks '%s': %d %s", path, holds, h.status, h.body);
    forget(&h);
}

static void test_told(server s) {
    check_told(s, "/v1/models", "\"parallel\": 5");
    check_told(s, "/props", "\"total_slots\": 5");
    check_told(s, "/props", on_gpus() ? "\"devices\": [\"cuda:0 " : "\"devices\": [\"cpu\", \"cpu\"]");
    check_told(s, "/slots", "{\"id\": 4, \"n_ctx\": ");
    check_told(s, "/slots", on_gpus() ? "\"device\": \"cuda:1 " : "\"device\": \"cpu\", \"is_processing\": false");
    check_told(s, "/health", "{\"status\": \"ok\", \"step_age_seconds\": ");
    check_told(s, "/health", on_gpus() ? ", \"replicas\": [{\"device\": \"cuda:0\", " : ", \"replicas\": [{\"device\": \"cpu\", \"status\": \"ok\", ");
    check_told(s, "/metrics", "\n# TYPE mote_batches_total counter\nmote_batches_total{replica=\"0\",device=\"");
    CHECK(metric_of(s, "sessions", 0) == 3 && metric_of(s, "sessions", 1) == 2 && metric(s, "replica_works") == 2, "sessions of replicas");
    CHECK(metric_of(s, "weight_bytes", 1) > 1000000, "%ld bytes of weights", metric_of(s, "weight_bytes", 1));
}

// Experts in host memory are counted by their names, which a server without any does not have.
static void test_experts_told(server none) {
    static const char *const names[] = {"expert_hits_total", "expert_misses_total", "expert_link_bytes_total"};
    for (int i = 0; i < 3; i++) CHECK(metric(none, names[i]) == -1, "%s of experts that are not in host memory", names[i]);
    if (!on_gpus()) return;
    server s = serve("--device cuda --experts host --parallel 1");
    for (int i = 0; i < 3; i++) CHECK(metric(s, names[i]) >= 0, "%s is not told", names[i]);
    stop(s);
}

static void check_refused(const char *arguments, const char *holds) {
    char command[512], said[2048] = "";
    snprintf(command, sizeof command, "%s serve --port 0 %s 2>&1", MOTE_PROGRAM, arguments);
    FILE *in = popen(command, "r");
    size_t n = in ? fread(said, 1, sizeof said - 1, in) : 0;
    said[n] = 0;
    const int code = in ? pclose(in) : 0;
    CHECK(WIFEXITED(code) && WEXITSTATUS(code) && strstr(said, holds), "mote serve %s: %d, '%s', not with '%s'", arguments, code, said, holds);
}

static void test_refusals(void) {
    check_refused("--devices cpu,cpu --parallel 1", "2 replicas take 2 to 128");
    check_refused("--devices cpu,cpu,cpu --parallel 193", "3 replicas take 3 to 192");
    check_refused("--device cpu --parallel 65", "at most 64 on one device");
    check_refused("--split replicas", "--split needs --devices");
    check_refused("--device cpu --devices cpu,cpu", "exclude each other");
    check_refused("--devices cpu,0 --split replicas", "all on GPUs, or all on the CPU");
    check_refused("--devices cpu,cpu --split replicas --parallel 2 --context 100000000", "context");
}

// ---- Devices that are lost ----------------------------------------------------------------------------------------------

// Whose stream has ended: 0 or 1.
static int first_to_end(const int fd[2], char *end, size_t capacity) {
    size_t n[2] = {0, 0};
    static char data[2][1 << 20];
    double until = now() + 60;
    for (int which = -1; now() < until && which < 0;) {
        struct pollfd p[2] = {{fd[0], POLLIN, 0}, {fd[1], POLLIN, 0}};
        poll(p, 2, 1000);
        for (int i = 0; i < 2 && which < 0; i++) {
            if (!p[i].revents) continue;
            ssize_t got = n[i] < sizeof data[i] - 1 ? recv(fd[i], data[i] + n[i], sizeof data[i] - 1 - n[i], 0) : 0;
            if (got > 0) data[i][n[i] += (size_t)got] = 0;
            if (got <= 0 || strstr(data[i], "\"error\"")) which = i;
        }
        if (which < 0) continue;
        const char *at = strstr(data[which], "{\"error\"");
        snprintf(end, capacity, "%s", at ? at : "");
        return which;
    }
    return -1;
}

static void test_lost(server alone) {
    FILE *log;
    char arguments[128], end[2048] = "", line[512] = "", want[64];
    int fd[2], told = 0;
    snprintf(arguments, sizeof arguments, "%s --parallel 4", two);
    server s = serve_program(LOSSY, arguments, &log);
    said first[2], again;
    for (int i = 0; i < 2; i++) first[i] = ask(s, questions[i], NULL);
    CHECK(first[0].replica >= 0 && first[1].replica == !first[0].replica, "%d, %d", first[0].replica, first[1].replica);
    for (int i = 0; i < 2; i++) fd[i] = begin(s, ENDLESS);
    CHECK(metric_of(s, "sessions_busy", 0) == 1 && metric_of(s, "sessions_busy", 1) == 1, "both are in one replica");
    kill(s.pid, SIGUSR1);
    const int ended = first_to_end(fd, end, sizeof end), gone = metric_of(s, "replica_works", 0) == 0 ? 0 : 1;
    snprintf(want, sizeof want, "replica %d, on cpu, is lost: the GPU has fallen off the bus", gone + 1);
    CHECK(ended >= 0 && strstr(end, want), "the answer that was lost: '%s', expected '%s'", end, want);
    CHECK(metric_of(s, "replica_works", gone) == 0 && metric_of(s, "replica_works", !gone) == 1, "which replicas work");
    CHECK(fgets(line, sizeof line, log) && strstr(line, want) && strstr(line, "1 of 2 replicas serve on"), "said: %s", line);
    wait_for_busy(s, gone, 0);
    wait_for_busy(s, !gone, 1);                            /* the other goes on */
    check_told(s, "/health", "{\"status\": \"degraded\", ");
    check_told(s, "/health", "\"status\": \"lost\"");
    for (int i = 0; i < 4; i++) {
        again = ask(s, questions[i % 2], i < 2 ? first[i].text : NULL);
        check_same(&again, alone, questions[i % 2], i < 2 ? first[i].text : NULL);
        CHECK(metric_of(s, "sessions_busy", gone) == 0, "the lost replica answers");
    }
    kill(s.pid, SIGUSR1);
    const int code = end_of(s);
    CHECK(code == 1, "without devices the server ends with %d", code);
    while (fgets(line, sizeof line, log)) told |= strstr(line, "is lost: the GPU has fallen off the bus") != NULL;
    CHECK(told, "nothing is said of what was lost");
    CHECK(!strcmp(line, "mote: the device is lost\n"), "its last words: %s", line);
    fclose(log);
    for (int i = 0; i < 2; i++) close(fd[i]);
}

int main(int argc, char **argv) {
    test_main_begin("replicas", argc, argv);
    signal(SIGPIPE, SIG_IGN);
    temp_open();
    if (!strncmp(test_device, "cuda", 4)) {
        two = "--devices 0,1 --split replicas";
        devices[0] = "cuda:0";
        devices[1] = "cuda:1";
    }
    server s = serve_two("--parallel 5"), alone = serve("--device cpu --threads 1 --parallel 1 --cache-memory 0");
    test_affinity(s, alone);
    test_alike(s);
    test_told(s);
    test_experts_told(s);
    stop(s);
    test_swapping(alone);
    if (!on_gpus()) {
        test_load();
        test_full();
        test_swapped_place();
        test_lost(alone);
        test_refusals();
    }
    stop(alone);
    temp_close();
    return test_main_end();
}
