/* Tests of models whose first layers are on other hosts, as an application opens them: the bits of one host, whatever is computed. Workers are processes
   of this program. What workers and leaders say to each other, and what may go wrong, is test_workers'.

   Usage: test_hosts [--device NAME | --devices NAME,NAME...] [--brief] [DATA [MODEL...]]: what computes, on all hosts; of several devices the leader has
   the first one, and workers have the others, in turns. MODELs are checkpoint folders or names of mote_open_synthetic */

#include "api.h"
#include "diagnose/diagnose.h"

#include "session/play.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { HOSTS = 3, HOST_ADDRESS = 64 };

static const char host_secret[] = "a secret of the tests";

/* ---- Workers ------------------------------------------------------------------------------------------------------------- */

typedef struct host {
    pid_t pid;
    char address[HOST_ADDRESS];
} host;

/* Tells the address once it listens; it goes on until it is killed. */
static int host_says(void *user, const char *address) {
    int *to = (int *)user;
    if (*to >= 0 && write(*to, address, strlen(address) + 1) < 0) return 1;
    if (*to >= 0) close(*to);
    *to = -1;
    return 0;
}

/* to: where the address goes. */
static int host_run(const char *dir, const char *device, int to) {
    const mote_worker_options o = {.size = sizeof o, .listen = "127.0.0.1:0", .secret = host_secret, .device = device, .threads = 1, .running = host_says,
                                   .user = &to};
    return (strchr(dir, '/') ? mote_worker_run(dir, &o, &failure) : mote_worker_synthetic(dir, &o, &failure)) != MOTE_OK;
}

/* What worker number `at` computes on. */
static void host_device(int at, char to[16]) {
    int count = 1;
    const char *from = test_devices;
    for (const char *c = from; c && *c; c++) count += *c == ',';
    for (int i = count < 2 ? 0 : 1 + at % (count - 1); i; i--) from = strchr(from, ',') + 1;
    snprintf(to, 16, "%.*s", from ? (int)strcspn(from, ",") : 15, from ? from : test_device);
}

/* A GPU cannot be used after a fork: then it is another program, "--worker" and host_run's arguments. */
static host host_start(const char *dir, const char *device) {
    host h = {0, ""};
    int ends[2];
    char to[16];
    if (!CHECK(!pipe(ends), "no pipe")) exit(test_main_end());
    snprintf(to, sizeof to, "%d", ends[1]);
    fflush(NULL);
    h.pid = fork();
    if (!h.pid) {
        close(ends[0]);
        if (!strcmp(device, "cpu")) _exit(host_run(dir, device, ends[1]));
        execl("/proc/self/exe", "test_hosts", "--worker", dir, device, to, (char *)NULL);
        _exit(1);
    }
    close(ends[1]);
    CHECK(read(ends[0], h.address, sizeof h.address) > 0, "%s: no worker on %s", dir, device);
    close(ends[0]);
    return h;
}

static void host_kill(const host *h) {
    kill(h->pid, SIGKILL);
    waitpid(h->pid, NULL, 0);
}

/* ---- Tests ----------------------------------------------------------------------------------------------------------------- */

static int host_leads(const char *dir, const char *device, const host *h, int n, const char *layers, mote_model **m) {
    char list[HOSTS * (HOST_ADDRESS + 1)] = "";
    for (int i = 0; i < n; i++) snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? "," : "", h[i].address);
    const mote_options o = {.size = sizeof o, .parts = MOTE_WEIGHTS_ONLY, .device = device, .layers = layers, .workers = list, .secret = host_secret};
    return strchr(dir, '/') ? mote_open(dir, &o, m, &failure) : mote_open_synthetic(dir, &o, m, &failure);
}

static void host_logs(void *user, const char *line) {
    if (!strncmp(line, "rows between hosts", 18)) snprintf((char *)user, 300, "%s", line);
}

/* How rows go from host to host: where GPUs are several by NCCL, if it is installed. */
static void test_way(const char *what, const mote_model *m) {
    char line[300] = "";
    void *nccl = dlopen("libnccl.so.2", RTLD_LAZY);
    const char *want = !strcmp(test_device, "cpu") ? "" : nccl && test_devices ? "rows between hosts go by NCCL" : "rows between hosts go ";
    mote_session *s = session_of(m, .context = 64, .threads = 1, .callbacks = {.user = line, .log = host_logs});
    CHECK(*want ? !strncmp(line, want, strlen(want)) : !*line, "%s: %s", what, line);
    if (*line) printf("test_hosts: %s: %s\n", what, line);
    mote_session_close(s);
    if (nccl) dlclose(nccl);
}

/* With n workers. */
static void test_hosts(const char *dir, int n, const char *layers, const played *want) {
    host h[HOSTS];
    char what[400], device[16];
    mote_model *m = NULL;
    snprintf(what, sizeof what, "%s on %s, %d workers", dir, test_device, n);
    for (int i = 0; i < n; i++) host_device(i, device), h[i] = host_start(dir, device);
    EXPECT(MOTE_OK, host_leads(dir, test_device, h, n, layers, &m));
    if (m) test_way(what, m);
    if (m) compare_play(what, m, want);
    mote_close(m);
    for (int i = 0; i < n; i++) host_kill(&h[i]);
}

/* Hosts with GPUs and without do not share a model. */
static void test_kinds(const char *dir, const char *worker, const char *leader, const char *why) {
    host h = host_start(dir, worker);
    mote_model *m = NULL;
    EXPECT(MOTE_EUNSUPPORTED, host_leads(dir, leader, &h, 1, NULL, &m));
    CHECK(strstr(failure.message, why) != NULL, "%s", failure.message);
    mote_close(m);
    host_kill(&h);
}

/* A worker that is killed, or stopped: the next call fails within 15 seconds, and names it. */
static void test_lost(const char *dir, int number) {
    char device[16];
    host_device(0, device);
    host h = host_start(dir, device);
    mote_model *m = NULL;
    int32_t ids[] = {1, 2, 3}, id;
    EXPECT(MOTE_OK, host_leads(dir, test_device, &h, 1, NULL, &m));
    if (m) {
        mote_session *s = session_of(m, .context = 64, .threads = 1);
        EXPECT(MOTE_OK, mote_feed(s, ids, 3, &failure));
        EXPECT(MOTE_OK, mote_step(s, NULL, &id, &failure));
        const time_t began = time(NULL);
        kill(h.pid, number);
        EXPECT(MOTE_EDEVICE, mote_step(s, NULL, &id, &failure));
        CHECK(time(NULL) - began < 15, "%s: %ld s", dir, (long)(time(NULL) - began));
        CHECK(strstr(failure.message, h.address) != NULL, "%s: %s", h.address, failure.message);
        EXPECT(MOTE_EDEVICE, mote_step(s, NULL, &id, &failure));
        mote_session_close(s);
    }
    mote_close(m);
    host_kill(&h);
}

static void test_model(const char *dir) {
    char layers[32];
    played want = {0};
    const mote_options alone = {.size = sizeof alone, .parts = MOTE_WEIGHTS_ONLY, .device = test_device};
    mote_model *m = NULL;
    EXPECT(MOTE_OK, strchr(dir, '/') ? mote_open(dir, &alone, &m, &failure) : mote_open_synthetic(dir, &alone, &m, &failure));
    if (!m) return;
    const int count = mote_model_info(m)->layers;
    play(m, &want);
    mote_close(m);
    snprintf(layers, sizeof layers, "1,%d", count - 1);
    test_hosts(dir, 1, layers, &want);
    if (!test_brief && count > 2) test_hosts(dir, 2, NULL, &want);
    played_free(&want);
}

int main(int argc, char **argv) {
    static const char *const dirs[] = {"tests/fixtures/bf16-as-3.6", "tests/fixtures/families/gpt-oss-mxfp4"};
    if (argc == 5 && !strcmp(argv[1], "--worker")) return host_run(argv[2], argv[3], atoi(argv[4]));
    const int first = test_main_begin("test_hosts", argc, argv);
    for (int i = first; i < argc; i++) test_model(argv[i]);
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs && first >= argc; i++) test_model(dirs[i]);
    test_lost(dirs[0], SIGKILL);
    if (!test_brief) test_lost(dirs[0], SIGSTOP);
    if (strcmp(test_device, "cpu")) {
        test_kinds(dirs[0], test_device, "cpu", "it computes on a GPU, and the leader on a CPU");
        test_kinds(dirs[0], "cpu", test_device, "it computes on a CPU, and the leader on a GPU");
    }
    return test_main_end();
}
