// mote, over a library that loses devices: at SIGUSR1 the device of the answer that generates the next token. From then on what that runner's
// sessions are asked for fails, and what they generate ends. For test_replicas and test_lost_workers.

#include "engine.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>

enum { SESSIONS = 64, LOST = 8 };

static struct { mote_session *session; mote_runner *runner; } opened[SESSIONS];
static int opened_count;
static _Atomic(mote_runner *) lost[LOST];
static _Atomic int lost_count, loses;
static _Thread_local const mote_generation *generation;    // of this thread, and its session's runner
static _Thread_local mote_runner *runner_here;

static mote_runner *runner_of(const mote_session *s) {
    for (int i = 0; i < opened_count; i++)
        if (opened[i].session == s) return opened[i].runner;
    return NULL;
}

static int is_lost(mote_runner *r) {
    for (int i = 0; i < lost_count; i++)
        if (lost[i] == r) return 1;
    return 0;
}

static int fail_lost(mote_error *error) {
    if (error) *error = (mote_error){MOTE_EDEVICE, "the GPU has fallen off the bus"};
    return MOTE_EDEVICE;
}

static void on_signal(int number) {
    (void)number;
    loses = 1;
}

static int lossy_session_open(const mote_model *m, const mote_session_options *o, mote_session **s, mote_error *error) {
    signal(SIGUSR1, on_signal);
    int code = mote_session_open(m, o, s, error);
    if (!code && opened_count < SESSIONS) {
        opened[opened_count].session = *s;
        opened[opened_count++].runner = o->runner;
    }
    return code;
}

static int on_lossy_token(void *user, int32_t id) {
    if (atomic_exchange(&loses, 0) && lost_count < LOST) {
        lost[lost_count] = runner_here;
        lost_count++;
    }
    return is_lost(runner_here) || generation->on_token(user, id);
}

static int lossy_generate(mote_session *s, const mote_generation *g, mote_result *result, mote_error *error) {
    mote_generation mine = *g;
    generation = g;
    runner_here = runner_of(s);
    mine.on_token = on_lossy_token;
    int code = is_lost(runner_here) ? MOTE_EDEVICE : mote_generate(s, &mine, result, error);
    return is_lost(runner_here) ? fail_lost(error) : code;
}

static int lossy_feed(mote_session *s, const int32_t *ids, size_t count, mote_error *error) {
    return is_lost(runner_of(s)) ? fail_lost(error) : mote_feed(s, ids, count, error);
}

static int lossy_load(mote_session *s, const void *bytes, size_t size, mote_error *error) {
    return is_lost(runner_of(s)) ? fail_lost(error) : mote_load(s, bytes, size, error);
}

static int lossy_rewind(mote_session *s, const mote_checkpoint *c, mote_error *error) {
    return is_lost(runner_of(s)) ? fail_lost(error) : mote_rewind(s, c, error);
}

static int lossy_check_device(const mote_model *m, mote_error *error) {
    return lost_count ? fail_lost(error) : mote_check_device(m, error);
}

#define mote_check_device lossy_check_device
#define mote_session_open lossy_session_open
#define mote_generate lossy_generate
#define mote_feed lossy_feed
#define mote_load lossy_load
#define mote_rewind lossy_rewind
#include "main.c"
