// Tests of how many drafts each session of a batch verifies: what the sessions choose one after the other, from costs that passes teach them, is
// within a hundredth as fast as the best of all allocations, alike or not, and as no drafts. The passes' seconds are a table's.

#include "inside.h"
#include "api.h"

enum { USERS = 8, DEPTH_MOST = 3, TURNS = 400 };

// Milliseconds of a pass of 1, 2, 4, .. 64 rows, and of one of drafts.
typedef struct machine { const char *name; double pass[7]; double draft; } machine;

static double machine_pass(const machine *of, int rows) {
    int at = 0;
    while (at < 5 && rows > 2 << at) at++;
    const double low = of->pass[at], high = of->pass[at + 1], share = (double)(rows - (1 << at)) / (1 << at);
    return (low + (high - low) * share) * 1e-3;
}

static double allocation_tokens(int depth, const double *accept) {
    double tokens = 1, all = 1;
    for (int i = 0; i < depth; i++) tokens += all *= accept[i];
    return tokens;
}

// Tokens a second of all, where sessions_with[k] of them have k drafts.
static double allocation_speed(const machine *of, const int *sessions_with, const double *accept) {
    double tokens = 0;
    int rows = 0, most = 0;
    for (int d = 0; d <= DEPTH_MOST; d++) {
        tokens += sessions_with[d] * allocation_tokens(d, accept);
        rows += sessions_with[d] * (d + 1);
        if (sessions_with[d]) most = d;
    }
    return tokens / (machine_pass(of, rows) + most * of->draft * 1e-3);
}

static double best_allocation(const machine *of, const double *accept, int *best) {
    double speed = 0;
    for (int a = 0; a <= USERS; a++)
        for (int b = 0; a + b <= USERS; b++)
            for (int c = 0; a + b + c <= USERS; c++) {
                const int with[DEPTH_MOST + 1] = {a, b, c, USERS - a - b - c};
                const double one = allocation_speed(of, with, accept);
                if (one > speed) speed = one, memcpy(best, with, sizeof with);
            }
    return speed;
}

// What the sessions choose after so many passes, all of them beginning with so many drafts.
static void allocation_chosen(mote_session *const *s, const machine *of, const double *accept, int begin, int *with) {
    mote_runner *r = s[0]->slot.runner;
    memset(&r->costs, 0, sizeof r->costs);
    for (int i = 0; i < USERS; i++) {
        acceptance_begin(&s[i]->decoder->spec);
        for (int k = 0; k < MOTE_ROWS_MAX - 1; k++) acceptance_of(&s[i]->decoder->spec, MOTE_DRAFT_MTP)->place[k].share = k < DEPTH_MOST ? accept[k] : 0;
        s[i]->decoder->spec.stats.depth = begin;
    }
    for (int turn = 0; turn < TURNS; turn++) {
        int rows = 0, drafters = 0;
        double tokens = 0;
        for (int i = 0; i < USERS; i++) {
            const int depth = s[i]->decoder->spec.stats.depth;
            s[i]->decoder->spec.rows = depth + 1;
            rows += depth + 1;
            drafters += depth > 0;
            tokens += allocation_tokens(depth, accept);
        }
        cost_learn(&r->costs.together, rows, 0, machine_pass(of, rows));
        if (drafters) cost_learn(&r->costs.drafting, drafters, 0, of->draft * 1e-3);
        r->costs.sessions = USERS;
        r->costs.rows = rows;
        r->costs.drafters = drafters;
        r->costs.accepted = tokens / USERS;
        for (int i = 0; i < USERS; i++) speculation_choose(s[i]);
    }
    memset(with, 0, (DEPTH_MOST + 1) * sizeof *with);
    for (int i = 0; i < USERS; i++) with[s[i]->decoder->spec.stats.depth]++;
}

static void allocation_check(mote_session *const *s, const machine *of, const double *accept, int begin) {
    static const int plain[DEPTH_MOST + 1] = {USERS};
    int best[DEPTH_MOST + 1] = {0}, with[DEPTH_MOST + 1];
    const double most = best_allocation(of, accept, best), none = allocation_speed(of, plain, accept);
    allocation_chosen(s, of, accept, begin, with);
    const double got = allocation_speed(of, with, accept);
    CHECK(got > 0.99 * most && got > 0.99 * none, "%s, accepted at %.2f, from %d: %d %d %d %d sessions have 0 to 3 drafts, %.0f tok/s; best are %d %d %d %d, %.0f; "
          "without drafts %.0f", of->name, accept[0], begin, with[0], with[1], with[2], with[3], got, best[0], best[1], best[2], best[3], most, none);
}

int main(int argc, char **argv) {
    test_main_begin("test_allocation", argc, argv);
    static const machine machines[] = {{"FP8 on an H100", {1.53, 2.08, 3.04, 5.26, 8.31, 12.49, 18.93}, 0.15},
                                       {"NVFP4 on an H100", {1.21, 1.63, 2.41, 4.30, 6.80, 10.29, 16.03}, 0.12},
                                       {"dense: as many bytes whatever the rows", {10, 10.1, 10.2, 10.4, 10.8, 11.6, 13.2}, 0.4}};
    static const double accepts[][DEPTH_MOST] = {{0.85, 0.8, 0.75}, {0.6, 0.5, 0.4}, {0.95, 0.93, 0.9}, {0.05, 0.05, 0.05}};
    mote_session *s[USERS];
    mote_runner *r;
    mote_model *m = model_on("cpu", "models/demo", MOTE_WEIGHTS_ONLY);
    EXPECT(MOTE_OK, mote_runner_open(m, &(mote_session_options){.context = 64}, &r, &failure));
    for (int i = 0; i < USERS; i++) EXPECT(MOTE_OK, mote_session_open(m, &(mote_session_options){.runner = r}, &s[i], &failure));
    for (size_t k = 0; k < COUNT(machines); k++)
        for (size_t a = 0; a < COUNT(accepts); a++)
            for (int begin = 0; begin <= DEPTH_MOST; begin += DEPTH_MOST) allocation_check(s, &machines[k], accepts[a], begin);
    for (int i = 0; i < USERS; i++) mote_session_close(s[i]);
    mote_runner_close(r);
    mote_close(m);
    return test_main_end();
}
