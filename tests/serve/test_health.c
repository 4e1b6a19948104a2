// Tests of /health with runners that get on, rest, hang and are lost. Usage: test_health

#include "../../engine.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../../text/basics.c"
#include "../../text/utf8.c"
#include "../../text/json.c"
#include "../../program/write.c"

enum { REPLICAS_MOST = 3 };
typedef struct replica { mote_runner *runner; int lost; char why[64]; } replica;
typedef struct server { replica replicas[REPLICAS_MOST]; int replica_count; pthread_mutex_t lock; } server;
typedef struct failure { int status; char message[600]; } failure;
typedef struct connection { int status; char body[512]; failure reported; } connection;

static mote_seen seen[REPLICAS_MOST];      // a runner stands for its entry

int mote_runner_seen(mote_runner *runner, mote_seen *to, mote_error *error) {
    (void)error;
    *to = *(mote_seen *)(void *)runner;
    return MOTE_OK;
}

static const char *replica_device(const replica *r) {
    static const char *const devices[REPLICAS_MOST] = {"cuda:0 NVIDIA H100 (sm_90)", "cuda:1 NVIDIA H100 (sm_90)", "cpu"};
    return devices[(mote_seen *)(void *)r->runner - seen];
}

static void connection_reply(connection *c, int status, const char *type, const char *body, size_t n) {
    CHECK(!strcmp(type, "application/json") && n < sizeof c->body, "%s of %zu bytes", type, n);
    c->status = status;
    snprintf(c->body, sizeof c->body, "%.*s", (int)n, body);
}

#include "../../serve/health.c"

typedef struct state { int busy, lost; double since; } state;

static void check(const state *of, int count, int status, const char *body) {
    server s = {.replica_count = count, .lock = PTHREAD_MUTEX_INITIALIZER};
    connection c = {0, "", {0, ""}};
    for (int i = 0; i < count; i++) {
        s.replicas[i] = (replica){(mote_runner *)(void *)&seen[i], of[i].lost, ""};
        if (of[i].lost) snprintf(s.replicas[i].why, sizeof s.replicas[i].why, "replica %d \"is\" lost", i + 1);
        seen[i].busy = of[i].busy;
        seen[i].since = of[i].since;
    }
    serve_health(&s, &c, NULL);
    CHECK(c.status == status && !strcmp(c.body, body), "%d replicas: %d %s, expected %s", count, c.status, c.body, body);
    CHECK(c.reported.status == (status == 503 ? 503 : 0) && !c.reported.message[0] == (status == 200), "what the log tells: %d '%s'", c.reported.status, c.reported.message);
}

int main(int argc, char **argv) {
    test_main_begin("health", argc, argv);
#define REPLICA(device, status, since) "{\"device\": \"" device "\", \"status\": \"" status "\", \"step_age_seconds\": " since "}"
    check((state[]){{0, 0, 86400}}, 1, 200, "{\"status\": \"ok\", \"step_age_seconds\": 86400.000}");
    check((state[]){{1, 0, 0.25}}, 1, 200, "{\"status\": \"ok\", \"step_age_seconds\": 0.250}");
    check((state[]){{1, 0, 119}}, 1, 200, "{\"status\": \"ok\", \"step_age_seconds\": 119.000}");
    check((state[]){{1, 0, 121}}, 1, 503, "{\"status\": \"stuck\", \"step_age_seconds\": 121.000}");
    check((state[]){{1, 0, 2}, {1, 0, 1}}, 2, 200, "{\"status\": \"ok\", \"step_age_seconds\": 1.000, \"replicas\": ["
          REPLICA("cuda:0", "ok", "2.000") ", " REPLICA("cuda:1", "ok", "1.000") "]}");
    check((state[]){{1, 1, 300}, {1, 0, 1}, {0, 0, 3}}, 3, 200, "{\"status\": \"degraded\", \"step_age_seconds\": 1.000, \"reason\": \"replica 1 \\\"is\\\" lost\", \"replicas\": ["
          REPLICA("cuda:0", "lost", "300.000") ", " REPLICA("cuda:1", "ok", "1.000") ", " REPLICA("cpu", "ok", "3.000") "]}");
    check((state[]){{1, 1, 3}, {1, 0, 150}}, 2, 503, "{\"status\": \"stuck\", \"step_age_seconds\": 150.000, \"replicas\": ["
          REPLICA("cuda:0", "lost", "3.000") ", " REPLICA("cuda:1", "stuck", "150.000") "]}");
    check((state[]){{0, 1, 5}, {0, 1, 4}}, 2, 200, "{\"status\": \"degraded\", \"step_age_seconds\": 5.000, \"reason\": \"replica 1 \\\"is\\\" lost\", \"replicas\": ["
          REPLICA("cuda:0", "lost", "5.000") ", " REPLICA("cuda:1", "lost", "4.000") "]}");
    return test_main_end();
}
