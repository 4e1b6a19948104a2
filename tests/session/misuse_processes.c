// A part of test_misuse: signals, forks and jumps.

// The status of a child process that runs `body`, for at most ten seconds.
static int in_child(int (*body)(void *), void *argument) {
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) return -1;
    if (!child) {
        alarm(10);
        _exit(body(argument));
    }
    waitpid(child, &status, 0);
    return status;
}

// An application that opens a session, and then waits for SIGTERM with sigtimedwait: no other thread may be given it.
static int waits_for_signal(void *argument) {
    const mote_model *m = (const mote_model *)argument;
    struct timespec limit = {5, 0};
    mote_session_options o = {0};
    mote_session *s = NULL;
    sigset_t set;
    const int32_t ids[] = {3, 4, 5};
    o.context = 32;
    o.threads = 4;
    if (mote_session_open(m, &o, &s, NULL) || mote_feed(s, ids, 3, NULL)) return 2;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    if (kill(getpid(), SIGTERM)) return 3;
    int got = sigtimedwait(&set, NULL, &limit);
    mote_session_close(s);
    return got == SIGTERM ? 0 : 4;
}

typedef struct family_session { mote_session *s; mote_model *m; } family_session;

// A child cannot use the session that its parent opened, but can close it, and the model, and open its own.
static int closes_inherited(void *argument) {
    family_session *f = (family_session *)argument;
    const int32_t ids[] = {3, 4, 5};
    mote_session_options o = {0};
    mote_session *own = NULL;
    size_t count;
    o.context = 32;
    o.threads = 2;
    if (mote_feed(f->s, ids, 3, NULL) != MOTE_EINVAL) return 2;
    if (!mote_tokens(f->s, &count) || count < 3) return 3;
    mote_session_close(f->s);
    if (mote_session_open(f->m, &o, &own, NULL) || mote_feed(own, ids, 3, NULL)) return 4;
    mote_session_close(own);
    mote_close(f->m);
    return 0;
}

// A callback that never returns: the session is busy for ever, and can be closed by whoever made the call, or by what that one
// calls, as a destructor would. In a child: the memory of the call is lost.
static jmp_buf out_of;

static int jump(void *user, int32_t id) {
    (void)id;
    longjmp(*(jmp_buf *)user, 1);
}

__attribute__((noinline)) static void close_below(mote_session *s) {
    volatile char wide[200];
    wide[0] = 1;
    mote_session_close(s);
    wide[199] = wide[0];
}

static int lines_logged;

static void count_line(void *user, const char *line) {
    (void)line;
    ++*(int *)user;
}

static int jumps_out(void *argument) {
    static const int32_t ids[] = {3, 4, 5};
    for (volatile int below = 0; below < 2; below++) {
        mote_callbacks callbacks = {.log = count_line, .user = &lines_logged};
        mote_session *volatile s = session_on((const mote_model *)argument, 64, &callbacks);
        mote_generation g = {.on_token = jump, .user = &out_of};
        if (mote_feed(s, ids, 3, NULL)) return 2;
        if (!setjmp(out_of)) {
            mote_generate(s, &g, NULL, NULL);
            return 3;
        }
        if (mote_reset(s, &failure) != MOTE_EINVAL || !strstr(failure.message, "busy")) return 4;
        if (below) close_below(s);
        else mote_session_close(s);
        if (lines_logged) return 5 + below;                 // it was not closed
    }
    return 0;
}

static void test_processes(void) {
    static const int32_t ids[] = {3, 4, 5};
    mote_model *m = model_of(FIXTURE, MOTE_WEIGHTS_ONLY);
    for (int i = 0; i < (test_brief ? 2 : 7); i++) {
        int status = in_child(waits_for_signal, m);
        CHECK(status == 0, "waiting for a signal beside a session: status %#x", (unsigned)status);
    }
    int jumped = in_child(jumps_out, m);
    CHECK(jumped == 0, "closing a session after a longjmp out of a callback: status %#x", (unsigned)jumped);
    family_session f = {NULL, m};
    mote_session_options o = {0};
    o.context = 32;
    o.threads = 3;
    EXPECT(MOTE_OK, mote_session_open(m, &o, &f.s, &failure));
    usleep(200000);                                         // helpers have begun: AddressSanitizer's locks, taken then, are not released in a fork
    EXPECT(MOTE_OK, mote_feed(f.s, ids, 3, &failure));
    for (int i = 0; i < 3; i++) {
        struct timespec pause = {0, i * 20000000};          // helpers that still look for work, and helpers that sleep
        nanosleep(&pause, NULL);
        int status = in_child(closes_inherited, &f);
        CHECK(status == 0, "closing a session in a forked child: status %#x", (unsigned)status);
        EXPECT(MOTE_OK, mote_feed(f.s, ids, 3, &failure));  // the parent's goes on
    }
    mote_session_close(f.s);
    mote_close(m);
}
