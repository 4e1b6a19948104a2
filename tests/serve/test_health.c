// Tests of /health with runners that get on, rest and hang. Usage: test_health

#include "../../engine.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../../text/basics.c"
#include "../../text/utf8.c"
#include "../../text/json.c"
#include "../../program/write.c"

typedef struct server { mote_runner *runner; } server;
typedef struct failure { int status; char message[600]; } failure;
typedef struct connection { int status; char body[256]; failure reported; } connection;

static mote_seen seen;                     // of the only runner

int mote_runner_seen(mote_runner *runner, mote_seen *to, mote_error *error) {
    (void)runner;
    (void)error;
    *to = seen;
    return MOTE_OK;
}

static void connection_reply(connection *c, int status, const char *type, const char *body, size_t n) {
    CHECK(!strcmp(type, "application/json") && n < sizeof c->body, "%s of %zu bytes", type, n);
    c->status = status;
    snprintf(c->body, sizeof c->body, "%.*s", (int)n, body);
}

#include "../../serve/health.c"

static void check(int busy, double since, int status, const char *body) {
    server s = {NULL};
    connection c = {0, "", {0, ""}};
    seen.busy = busy;
    seen.since = since;
    serve_health(&s, &c, NULL);
    CHECK(c.status == status && !strcmp(c.body, body), "busy %d, since %g: %d %s", busy, since, c.status, c.body);
    CHECK(c.reported.status == (status == 503 ? 503 : 0) && !c.reported.message[0] == (status == 200), "what the log tells: %d '%s'", c.reported.status, c.reported.message);
}

int main(int argc, char **argv) {
    test_main_begin("health", argc, argv);
    check(0, 86400, 200, "{\"status\": \"ok\", \"step_age_seconds\": 86400.000}");
    check(1, 0.25, 200, "{\"status\": \"ok\", \"step_age_seconds\": 0.250}");
    check(1, 119, 200, "{\"status\": \"ok\", \"step_age_seconds\": 119.000}");
    check(1, 121, 503, "{\"status\": \"stuck\", \"step_age_seconds\": 121.000}");
    return test_main_end();
}
