/* cli/selftest.c: the command selftest: one line for each of the library's own tests of a GPU, and their sum. */

typedef struct verdict { int passed, failed; } verdict;

static void on_selftest(void *user, const char *what, double difference, double allowed, int ok) {
    verdict *v = user;
    char limit[32] = "equal";
    if (v->passed + v->failed == 0) printf("%-56s%12s%12s\n", "", "difference", "allowed");
    if (allowed > 0) snprintf(limit, sizeof limit, "%.2g", allowed);
    printf("%-56s%12.2g%12s  %s\n", what, difference, limit, ok ? "ok" : "FAILED");
    fflush(stdout);
    if (ok) v->passed++;
    else v->failed++;
}

static int command_selftest(options *o) {
    verdict v = {0, 0};
    mote_error error = {0, ""};
    int failed = 0;
    if (mote_selftest(o->device, o->sms, on_selftest, &v, &failed, &error)) return report(&error);
    printf("%d passed, %d failed\n", v.passed, v.failed);
    return v.failed || failed || !v.passed ? EXIT_FAILURE : 0;
}
