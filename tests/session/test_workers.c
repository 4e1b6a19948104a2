/* Tests of models whose first layers are on other hosts: workers as processes of this machine.

   Usage: test_workers */

#include "inside.h"

#include "api.h"
#include "families.h"
#include "files.h"

#include <sys/wait.h>

enum { WORKERS = 3, WORKER_TOKENS = 24, WORKER_ANSWER = 12, WORKER_LINES = 3 };

static const char worker_secret[] = "a secret of the tests";

typedef struct worker_process {
    pid_t pid;
    char address[ADDRESS_SIZE];
} worker_process;

/* Tells the address once it listens; it goes on until it is killed. */
static int worker_says(void *user, const char *address) {
    int *to = (int *)user;
    if (*to >= 0 && write(*to, address, strlen(address) + 1) < 0) return 1;
    if (*to >= 0) close(*to);
    *to = -1;
    return 0;
}

static int worker_log = -1;                /* where workers that are started write what they log; -1: nowhere */

static void worker_logs(void *user, const char *line) {
    (void)user;
    if (worker_log >= 0 && write(worker_log, line, strlen(line)) < 0) worker_log = -1;
}

/* listen: "127.0.0.1:0" is a port that is free. */
static worker_process worker_start_at(const char *dir, const char *secret, const char *listen) {
    worker_process w = {0, ""};
    int ends[2];
    if (!CHECK(!pipe(ends), "no pipe")) exit(test_main_end());
    fflush(NULL);
    w.pid = fork();
    if (!w.pid) {
        const mote_worker_options o = {.size = sizeof o, .listen = listen, .secret = secret, .device = "cpu", .threads = 1, .running = worker_says, .user = &ends[1],
                                       .callbacks = {.log = worker_logs}};
        close(ends[0]);
        _exit(mote_worker_run(dir, &o, &failure) != MOTE_OK);
    }
    close(ends[1]);
    CHECK(read(ends[0], w.address, sizeof w.address) > 0, "%s: no worker", dir);
    close(ends[0]);
    return w;
}

static worker_process worker_start(const char *dir, const char *secret) {
    return worker_start_at(dir, secret, "127.0.0.1:0");
}

/* One that knows the secret; *log: what it logs can be read there. */
static worker_process worker_start_logged(const char *dir, int *log) {
    int ends[2];
    if (!CHECK(!pipe(ends), "no pipe")) exit(test_main_end());
    worker_log = ends[1];
    const worker_process w = worker_start(dir, worker_secret);
    close(ends[1]);
    worker_log = -1;
    *log = ends[0];
    return w;
}

static void worker_kill(const worker_process *w) {
    kill(w->pid, SIGKILL);
    waitpid(w->pid, NULL, 0);
}

static mote_options leader_options(const char *workers) {
    const mote_options o = {.size = sizeof o, .parts = MOTE_WEIGHTS_ONLY, .device = "cpu", .workers = workers, .secret = worker_secret};
    return o;
}

static mote_model *leader_of(const char *dir, const worker_process *w, int n) {
    char list[WORKERS * (ADDRESS_SIZE + 1)] = "";
    mote_model *m = NULL;
    for (int i = 0; i < n; i++) snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? "," : "", w[i].address);
    const mote_options o = leader_options(list);
    EXPECT(MOTE_OK, mote_open(dir, &o, &m, &failure));
    if (!m) exit(test_main_end() ? 1 : 2);
    return m;
}

/* ---- Bits ---------------------------------------------------------------------------------------------------------------- */

/* What sessions make of some tokens. */
typedef struct worker_play {
    float *logits;               /* [WORKER_TOKENS][vocab] */
    int32_t answer[WORKER_ANSWER], chosen[WORKER_LINES][WORKER_ANSWER];
    char *saved;
    size_t size;
} worker_play;

static int worker_keeps(void *user, int32_t id) {
    int32_t **to = (int32_t **)user;
    *(*to)++ = id;
    return 0;
}

/* A prompt in chunks, an answer with drafts, the session as bytes. */
static void worker_play_alone(const mote_model *m, const int32_t *ids, worker_play *p) {
    const mote_sampling greedy = {0};
    int32_t *at = p->answer;
    mote_generation g = {.size = sizeof g, .sampling = &greedy, .max_tokens = WORKER_ANSWER, .on_token = worker_keeps, .user = &at};
    mote_session *s = session_of(m, .context = 64, .chunk = 9, .threads = 1, .mtp = m->has_mtp ? 3 : MOTE_MTP_OFF);
    p->logits = (float *)allocate((size_t)WORKER_TOKENS * (size_t)m->c.vocab * sizeof *p->logits);
    memset(p->answer, -1, sizeof p->answer);
    EXPECT(MOTE_OK, mote_feed_logits(s, ids, WORKER_TOKENS, p->logits, NULL, &failure));
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    p->saved = session_bytes(s, &p->size);
    mote_session_close(s);
}

/* Several sessions together; one of them goes back to a checkpoint. */
static void worker_play_together(const mote_model *m, const int32_t *ids, worker_play *p) {
    mote_runner *r = NULL;
    mote_turn turns[WORKER_LINES];
    memset(turns, 0, sizeof turns);
    EXPECT(MOTE_OK, mote_runner_open(m, &(mote_session_options){.context = 64, .threads = 1}, &r, &failure));
    for (int i = 0; i < WORKER_LINES; i++) {
        turns[i].session = session_of(m, .context = 64, .runner = r);
        EXPECT(MOTE_OK, mote_feed(turns[i].session, ids + i, 7, &failure));
    }
    mote_checkpoint *c = checkpoint_of(turns[1].session);
    EXPECT(MOTE_OK, mote_feed(turns[1].session, ids, 5, &failure));
    EXPECT(MOTE_OK, mote_rewind(turns[1].session, c, &failure));
    mote_checkpoint_free(c);
    for (int k = 0; k < WORKER_ANSWER; k++) {
        EXPECT(MOTE_OK, mote_step_many(turns, WORKER_LINES, &failure));
        for (int i = 0; i < WORKER_LINES; i++) p->chosen[i][k] = turns[i].id;
    }
    for (int i = 0; i < WORKER_LINES; i++) mote_session_close(turns[i].session);
    mote_runner_close(r);
}

static worker_play worker_play_of(const mote_model *m) {
    worker_play p;
    int32_t ids[WORKER_TOKENS];
    memset(&p, 0, sizeof p);
    for (int i = 0; i < WORKER_TOKENS; i++) ids[i] = (i * 7 + 3) % m->c.vocab;
    worker_play_alone(m, ids, &p);
    worker_play_together(m, ids, &p);
    return p;
}

/* With n workers all is as on one host, a saved session, too. */
static void test_worker_bits(const char *dir, int n) {
    worker_process w[WORKERS];
    for (int i = 0; i < n; i++) w[i] = worker_start(dir, worker_secret);
    mote_model *m = leader_of(dir, w, n), *whole = model_on("cpu", dir, MOTE_WEIGHTS_ONLY);
    worker_play got = worker_play_of(m), want = worker_play_of(whole);
    CHECK(!memcmp(got.logits, want.logits, (size_t)WORKER_TOKENS * (size_t)m->c.vocab * sizeof(float)), "%s, %d workers: logits", dir, n);
    CHECK(!memcmp(got.answer, want.answer, sizeof got.answer), "%s, %d workers: an answer", dir, n);
    CHECK(!memcmp(got.chosen, want.chosen, sizeof got.chosen), "%s, %d workers: steps together", dir, n);
    CHECK(got.size == want.size && !memcmp(got.saved, want.saved, got.size), "%s, %d workers: a saved session", dir, n);
    mote_session *s = session_of(m, .context = 64, .threads = 1, .mtp = m->has_mtp ? 3 : MOTE_MTP_OFF);
    EXPECT(MOTE_OK, mote_load(s, want.saved, want.size, &failure));
    CHECK(session_is(s, want.saved, want.size), "%s, %d workers: a session that one host saved", dir, n);
    mote_session_close(s);
    free(got.logits);
    free(got.saved);
    free(want.logits);
    free(want.saved);
    mote_close(m);
    mote_close(whole);
    for (int i = 0; i < n; i++) worker_kill(&w[i]);
}

/* The plan is of this host's part, whoever has the others: they need not be there. */
static void test_worker_plan(const char *dir, int n) {
    mote_memory whole, here, part;
    mote_options o = leader_options(n == 1 ? "127.0.0.1:1" : "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3");
    const mote_session_options how = {.size = sizeof how, .context = 64, .threads = 1};
    const mote_options alone = {.size = sizeof alone, .device = "cpu"};
    EXPECT(MOTE_OK, mote_plan(dir, &alone, &how, &whole, &failure));
    EXPECT(MOTE_OK, mote_plan(dir, &o, &how, &here, &failure));
    worker_process w[WORKERS];
    for (int i = 0; i < n; i++) w[i] = worker_start(dir, worker_secret);
    mote_model *m = leader_of(dir, w, n), *described = NULL;
    CHECK(here.weights == m->members[n]->arena_size && here.weights < whole.weights, "%s: %llu bytes of weights planned, %zu taken of %llu", dir,
          (unsigned long long)here.weights, m->members[n]->arena_size, (unsigned long long)whole.weights);
    CHECK(here.kv && here.kv < whole.kv && here.state <= whole.state && here.available && here.sessions > whole.sessions / 2 && here.context_fits > 0,
          "%s: %llu of %llu bytes of KV, %d sessions of %d", dir, (unsigned long long)here.kv, (unsigned long long)whole.kv, here.sessions, whole.sessions);
    o.parts = MOTE_DESCRIPTION;
    EXPECT(MOTE_OK, mote_open(dir, &o, &described, &failure));
    EXPECT(MOTE_OK, mote_plan_device(described, n, &how, &part, &failure));
    CHECK(part.total == here.total && part.sessions > 0, "%s: this host's part, by its number", dir);
    EXPECT(MOTE_OK, mote_plan_device(described, 0, &how, &part, &failure));
    CHECK(!part.available && part.sessions == -1 && part.weights && part.weights < whole.weights, "%s: what is free on another host is not known", dir);
    mote_close(described);
    mote_close(m);
    for (int i = 0; i < n; i++) worker_kill(&w[i]);
}

/* ---- What is refused ------------------------------------------------------------------------------------------------------ */

static void worker_refused(const char *dir, const mote_options *o, int code, const char *why) {
    mote_model *m = NULL;
    EXPECT(code, mote_open(dir, o, &m, &failure));
    CHECK(strstr(failure.message, why) != NULL, "%s: %s", why, failure.message);
    mote_close(m);
}

static void test_worker_refusals(const char *dir) {
    worker_process w = worker_start(dir, worker_secret);
    mote_options o = leader_options(w.address);
    worker_refused("tests/fixtures/families/qwen3-moe", &o, MOTE_EINVAL, "is another model than the leader's");
    o.secret = "another secret, as long";
    worker_refused(dir, &o, MOTE_EINVAL, "it has another secret");
    o.secret = "short";
    worker_refused(dir, &o, MOTE_EINVAL, "need a secret of 16 bytes");
    o.secret = worker_secret;
    o.split = MOTE_SPLIT_TENSOR;
    worker_refused(dir, &o, MOTE_EUNSUPPORTED, "a range of layers on one device");
    o.split = MOTE_SPLIT_AUTO;
    o.workers = "localhost";
    worker_refused(dir, &o, MOTE_EINVAL, "\"localhost\" is no address");
    o.workers = "127.0.0.1:1,127.0.0.1:2,127.0.0.1:1";
    worker_refused(dir, &o, MOTE_EINVAL, "127.0.0.1:1 is named twice");
    o.workers = "127.0.0.1:1,";
    worker_refused(dir, &o, MOTE_EINVAL, "expected addresses");
    o.workers = "127.0.0.1:1,,127.0.0.1:2";
    worker_refused(dir, &o, MOTE_EINVAL, "expected addresses");
    o.workers = "127.0.0.1:1";
    worker_refused(dir, &o, MOTE_EIO, "worker 127.0.0.1:1: Connection refused");
    o.workers = w.address;
    mote_model *m = leader_of(dir, &w, 1);
    worker_refused(dir, &o, MOTE_EDEVICE, "it serves another leader");
    mote_close(m);
    mote_close(leader_of(dir, &w, 1));                      /* who comes after it is served */
    worker_kill(&w);
}

/* A worker of another version, for one leader: it says its hello and closes. */
typedef struct strange_worker { int listens; const char *engine; uint32_t version; pthread_t thread; } strange_worker;

static void *strange_main(void *user) {
    strange_worker *w = (strange_worker *)user;
    wire_hello own, other;
    const int fd = accept(w->listens, NULL, NULL);
    hello_is(&own);
    own.version = w->version;
    snprintf(own.engine, sizeof own.engine, "%s", w->engine);
    (void)wire_write(fd, &own, sizeof own, WIRE_HANDSHAKE);
    (void)wire_read_by(fd, &other, sizeof other, 0, seconds() + WIRE_HANDSHAKE);
    close(fd);
    return NULL;
}

/* Another version is named by both sides, with their own, and a strange one cannot write to anybody's terminal. */
static void test_worker_version(const char *dir) {
    static const struct { const char *engine; uint32_t more; const char *said; } others[] = {
        {MOTE_VERSION, 1, "is mote " MOTE_VERSION ", protocol "}, {"9.9", 0, "is mote 9.9, protocol "}, {"1\x1b[2J\n", 0, "is mote 1?[2J?, protocol "}};
    for (size_t i = 0; i < COUNT(others); i++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
        socklen_t size = sizeof at;
        char address[64];
        strange_worker w = {.listens = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), .engine = others[i].engine, .version = WIRE_VERSION + others[i].more};
        CHECK(!bind(w.listens, (struct sockaddr *)&at, size) && !listen(w.listens, 1) && !getsockname(w.listens, (struct sockaddr *)&at, &size), "no socket");
        snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(at.sin_port));
        pthread_create(&w.thread, NULL, strange_main, &w);
        const mote_options o = leader_options(address);
        worker_refused(dir, &o, MOTE_EUNSUPPORTED, others[i].said);
        CHECK(strstr(failure.message, address) && strstr(failure.message, "; this is mote " MOTE_VERSION), "%s", failure.message);
        pthread_join(w.thread, NULL);
        close(w.listens);
    }
    char line[300] = "";
    int log;
    worker_process w = worker_start_logged(dir, &log);
    const int fd = wire_connect(w.address);
    wire_hello own, other;
    hello_is(&own);
    own.version++;
    CHECK(!wire_write(fd, &own, sizeof own, WIRE_HANDSHAKE) && !wire_read_by(fd, &other, sizeof other, 0, seconds() + WIRE_HANDSHAKE), "no hello");
    CHECK(wire_read_by(fd, &other, 1, 0, seconds() + WIRE_HANDSHAKE), "a worker goes on with a leader of another version");
    CHECK(read(log, line, sizeof line - 1) > 0 && strstr(line, "is mote " MOTE_VERSION ", protocol ") && strstr(line, "; this is mote "), "said: %s", line);
    close(fd);
    close(log);
    mote_close(leader_of(dir, &w, 1));                      /* who has the right one is served */
    worker_kill(&w);
}

/* ---- Any bytes ------------------------------------------------------------------------------------------------------------ */

static int worker_connection_to(const worker_process *w, int knows) {
    const int fd = wire_connect(w->address);
    CHECK(fd >= 0, "%s: %s", w->address, strerror(errno));
    if (knows) EXPECT(MOTE_OK, wire_shake(fd, worker_secret, 1, "the worker", &failure));
    return fd;
}

/* Bytes at each stage of a connection, and all kinds of messages with random fields: the worker goes on. */
static void test_worker_bytes(const char *dir) {
    worker_process w = worker_start(dir, worker_secret);
    mote_model *m = leader_of(dir, &w, 1);
    char bytes[600];
    for (int i = 0; i < (test_brief ? 60 : 400); i++) {
        wire line;
        message_runner say = {.ticket = "", .context = 32, .chunk = 8, .kv = MOTE_KV_F32, .layers = m->c.layers + 1, .window = m->largest.attention.window};
        message_slot slot_say = {.slot = 0, .context = 16, .at = 0, .bytes = 0};
        const int knows = i % 4 != 0, runs = i % 4 > 1;
        wire_open(&line, worker_connection_to(&w, knows));
        for (size_t k = 0; k < sizeof bytes; k++) bytes[k] = (char)(i % 3 ? random_bits() : random_bits() % 3);
        memcpy(say.ticket, m->members[0]->remote->say.ticket, sizeof say.ticket);
        const wire_part runner = {&say, sizeof say}, one = {&slot_say, sizeof slot_say}, any = {bytes, random_bits() % sizeof bytes};
        if (runs) CHECK(!wire_send(&line, MESSAGE_RUNNER, &runner, 1, 5), "a runner");
        if (runs) CHECK(!wire_send(&line, MESSAGE_SLOT_OPEN, &one, 1, 5), "a slot");
        if (knows) (void)wire_send(&line, runs ? MESSAGE_LINK + random_bits() % 10 : MESSAGE_MODEL + random_bits() % 3, &any, 1, 5);
        else (void)wire_write(line.fd, bytes, any.size, 5);
        wire_close(&line);
    }
    CHECK(!kill(w.pid, 0) && waitpid(w.pid, NULL, WNOHANG) == 0, "the worker has ended");
    mote_session *s = session_of(m, .context = 32, .threads = 1);
    EXPECT(MOTE_OK, mote_feed(s, (const int32_t[]){1, 2, 3}, 3, &failure));
    mote_session_close(s);
    mote_close(m);
    worker_kill(&w);
}

/* Who connects and says nothing has 5 seconds, and the log says so. */
static void test_worker_silence(const char *dir) {
    char line[300] = "";
    int log;
    worker_process w = worker_start_logged(dir, &log);
    const int fd = worker_connection_to(&w, 0);
    CHECK(read(log, line, sizeof line - 1) > 0 && strstr(line, "has not shown within 5 s that it knows the secret"), "said: %s", line);
    CHECK(!strncmp(line, "127.0.0.1:", 10), "said of whom: %s", line);
    close(fd);
    close(log);
    worker_kill(&w);
}

static char refusal_lines[400];

static void refusal_logs(void *user, const char *line) {
    (void)user;
    snprintf(refusal_lines + strlen(refusal_lines), sizeof refusal_lines - strlen(refusal_lines), "%s\n", line);
}

/* Of whoever is refused often one line is said, and one a minute; those for whom there is no place are counted together. */
static void test_worker_refused_often(void) {
    static refusals r = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const mote_callbacks callbacks = {.log = refusal_logs};
    char peer[ADDRESS_SIZE];
    int said = 0;
    for (int i = 0; i < 40; i++) {
        snprintf(peer, sizeof peer, "10.0.0.5:%d", 4000 + i);
        said += refusals_count(&r, peer);
    }
    CHECK(said == 1, "%d lines of 40 refusals", said);
    for (int i = 0; i < 2 * REFUSALS_ADDRESSES; i++) {
        snprintf(peer, sizeof peer, "[fe80::%d]:7", i + 1);
        said += refusals_count(&r, peer);
    }
    CHECK(said == REFUSALS_ADDRESSES, "%d lines of %d addresses", said, 2 * REFUSALS_ADDRESSES + 1);
    refusals_tell(&r, &callbacks);
    CHECK(!*refusal_lines, "said too early: %s", refusal_lines);
    for (int i = 0; i < REFUSALS_ADDRESSES; i++) r.of[i].said -= REFUSALS_SECONDS;
    refusals_tell(&r, &callbacks);
    CHECK(!strcmp(refusal_lines, "10.0.0.5: refused 39 more times within 60 s\nother addresses: refused 17 more times within 60 s\n"), "%s", refusal_lines);
    for (int i = 0; i < REFUSALS_ADDRESSES; i++) r.of[i].said -= REFUSALS_SECONDS;
    refusals_tell(&r, &callbacks);
    CHECK(refusals_count(&r, "10.0.0.5:1"), "an address that was quiet is said again");
}

/* ---- Workers that are lost ------------------------------------------------------------------------------------------------- */

/* The first of n workers is killed, or stopped: calls fail within so many seconds, and name it; so do all later ones. */
static void test_worker_lost(const char *dir, int n, int signal, double most) {
    worker_process w[WORKERS];
    for (int i = 0; i < n; i++) w[i] = worker_start(dir, worker_secret);
    mote_model *m = leader_of(dir, w, n);
    mote_session *s = session_of(m, .context = 64, .threads = 1);
    int32_t id;
    EXPECT(MOTE_OK, mote_feed(s, (const int32_t[]){1, 2, 3}, 3, &failure));
    kill(w->pid, signal);
    if (signal == SIGSTOP) waitpid(w->pid, NULL, WUNTRACED);       /* until then a thread of it may still answer */
    const double began = seconds();
    EXPECT(MOTE_EDEVICE, mote_step(s, NULL, &id, &failure));
    CHECK(seconds() - began < most, "%.1f s", seconds() - began);
    CHECK(strstr(failure.message, w->address) != NULL, "%s: %s", w->address, failure.message);
    EXPECT(MOTE_EDEVICE, mote_step(s, NULL, &id, &failure));
    mote_session_close(s);
    mote_close(m);
    worker_kill(w);
    if (n > 1) mote_close(leader_of(dir, w + 1, n - 1));    /* those that are left serve the next leader */
    for (int i = 1; i < n; i++) worker_kill(&w[i]);
}

static void worker_rows(const mote_model *m, float *logits) {
    mote_session *s = session_of(m, .context = 64, .threads = 1);
    EXPECT(MOTE_OK, mote_feed_logits(s, (const int32_t[]){1, 2, 3}, 3, logits, NULL, &failure));
    mote_session_close(s);
}

/* A worker that is lost is reached again when one is there with the same folder; this host's part stays as it is. */
static void test_worker_back(const char *dir, int n) {
    worker_process w[WORKERS];
    int32_t id;
    for (int i = 0; i < n; i++) w[i] = worker_start(dir, worker_secret);
    mote_model *m = leader_of(dir, w, n);
    const size_t floats = 3 * (size_t)m->c.vocab;
    float *before = (float *)allocate(2 * floats * sizeof *before), *after = before + floats;
    EXPECT(MOTE_OK, mote_reconnect(m, NULL, &failure));
    worker_rows(m, before);
    mote_session *s = session_of(m, .context = 64, .threads = 1);
    EXPECT(MOTE_OK, mote_feed(s, (const int32_t[]){1, 2, 3}, 3, &failure));
    worker_kill(w);
    EXPECT(MOTE_EDEVICE, mote_step(s, NULL, &id, &failure));
    EXPECT(MOTE_EIO, mote_reconnect(m, NULL, &failure));
    CHECK(strstr(failure.message, w->address) && strstr(failure.message, "Connection refused"), "nobody there: %s", failure.message);
    worker_process other = worker_start_at("tests/fixtures/fp8-ragged", worker_secret, w->address);
    EXPECT(MOTE_EINVAL, mote_reconnect(m, NULL, &failure));
    CHECK(strstr(failure.message, w->address) && strstr(failure.message, "is another model than the leader's"), "another folder: %s", failure.message);
    worker_kill(&other);
    other = worker_start_at(dir, "another secret, as long", w->address);
    EXPECT(MOTE_EINVAL, mote_reconnect(m, NULL, &failure));
    CHECK(strstr(failure.message, w->address) && strstr(failure.message, "another secret"), "another secret: %s", failure.message);
    worker_kill(&other);
    w[0] = worker_start_at(dir, worker_secret, w->address);
    EXPECT(MOTE_OK, mote_reconnect(m, NULL, &failure));
    EXPECT(MOTE_EDEVICE, mote_step(s, NULL, &id, &failure));               /* that session stays lost */
    mote_session_close(s);
    worker_rows(m, after);
    CHECK(!memcmp(before, after, floats * sizeof *before), "%s: other logits than before", dir);
    free(before);
    mote_close(m);
    for (int i = 0; i < n; i++) worker_kill(&w[i]);
}

/* One that was stopped and goes on computes for the next runner. */
static void test_worker_thaws(const char *dir) {
    worker_process w = worker_start(dir, worker_secret);
    mote_model *m = leader_of(dir, &w, 1);
    mote_runner *r = NULL;
    kill(w.pid, SIGSTOP);
    waitpid(w.pid, NULL, WUNTRACED);
    const double began = seconds();
    EXPECT(MOTE_EIO, mote_runner_open(m, NULL, &r, &failure));
    CHECK(seconds() - began < WIRE_SILENCE + 1, "%.1f s", seconds() - began);
    CHECK(strstr(failure.message, w.address) && strstr(failure.message, "has not been heard of for 5 s"), "%s", failure.message);
    kill(w.pid, SIGCONT);
    EXPECT(MOTE_OK, mote_reconnect(m, NULL, &failure));
    EXPECT(MOTE_OK, mote_runner_open(m, NULL, &r, &failure));
    mote_runner_close(r);
    mote_close(m);
    worker_kill(&w);
}

/* A leader that is stopped loses its worker, which then serves another one. */
static void test_worker_leader_stops(const char *dir) {
    worker_process w = worker_start(dir, worker_secret);
    const mote_options o = leader_options(w.address);
    mote_model *m = NULL;
    int ends[2];
    if (!CHECK(!pipe(ends), "no pipe")) return;
    fflush(NULL);
    const pid_t leader = fork();
    if (!leader) {
        const int code = mote_open(dir, &o, &m, &failure);
        if (code || write(ends[1], "", 1) != 1) _exit(1);
        for (;;) pause();
    }
    close(ends[1]);
    char byte;
    CHECK(read(ends[0], &byte, 1) == 1, "no leader");
    close(ends[0]);
    poll(NULL, 0, (WIRE_ABSENCE + 2) * 1000);               /* one that only waits keeps its worker */
    worker_refused(dir, &o, MOTE_EDEVICE, "it serves another leader");
    kill(leader, SIGSTOP);
    const double began = seconds();
    while (mote_open(dir, &o, &m, &failure) && seconds() < began + WIRE_ABSENCE + 5) poll(NULL, 0, 500);
    CHECK(m && seconds() > began + WIRE_ABSENCE - WIRE_BEAT - 1, "after %.1f s: %s", seconds() - began, failure.message);
    mote_close(m);
    kill(leader, SIGKILL);
    waitpid(leader, NULL, 0);
    worker_kill(&w);
}

int main(int argc, char **argv) {
    static const char *const dirs[] = {"tests/fixtures/bf16-as-3.6", "tests/fixtures/families/gemma4", "tests/fixtures/families/deepseek-v3",
                                       "tests/fixtures/families/gpt-oss-mxfp4", "tests/fixtures/families/qwen3-next"};
    test_main_begin("test_workers", argc, argv);
    for (size_t i = 0; i < COUNT(dirs); i++) test_worker_bits(dirs[i], 1);
    test_worker_bits("tests/fixtures/families/gpt-oss-mxfp4", 3);
    test_worker_plan("tests/fixtures/bf16-as-3.6", 1);
    test_worker_plan("tests/fixtures/families/gpt-oss-mxfp4", 3);
    test_worker_refusals("tests/fixtures/fp8-ragged");
    test_worker_version("tests/fixtures/fp8-ragged");
    test_worker_bytes("tests/fixtures/fp8-ragged");
    test_worker_refused_often();
    if (!test_brief) test_worker_silence("tests/fixtures/fp8-ragged");
    for (int n = 1; n <= 2; n++) test_worker_lost("tests/fixtures/families/qwen3-moe", n, SIGKILL, 5);
    if (!test_brief) test_worker_lost("tests/fixtures/families/qwen3-moe", 2, SIGSTOP, WIRE_SILENCE + 5);
    for (int n = 1; n <= 2; n++) test_worker_back("tests/fixtures/families/qwen3-moe", n);
    if (!test_brief) test_worker_thaws("tests/fixtures/families/qwen3-moe");
    if (!test_brief) test_worker_leader_stops("tests/fixtures/families/qwen3-moe");
    return test_main_end();
}
