// Tests of what may go wrong around a session: memory that runs out at any point, callbacks that call back, arguments that
// are not there, files in the way of a saved session, other checkpoints, signals and forks.
// Usage: test_misuse [--device NAME] [--brief]. On a GPU: arguments that are not there, and callbacks.
//
// Parts
//   misuse_memory.c      allocations that fail, each of them once
//   misuse_callbacks.c   callbacks that call back, cancel and stop
//   misuse_null.c        arguments that are NULL
//   misuse_files.c       files in the way of a saved session; sessions of other checkpoints
//   misuse_processes.c   signals, forks and jumps
//   here                 helpers

#include "api.h"
#include "files.h"
#include "no_memory.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

// ---- Helpers --------------------------------------------------------------------------------------------------------

static const char DEMO[] = "models/demo", FIXTURE[] = "tests/fixtures/fp8-f32-scales";

static mote_session *session_on(const mote_model *m, int context, const mote_callbacks *callbacks) {
    mote_session_options o = {.context = context, .chunk = 8, .threads = 2, .mtp = 2};
    if (callbacks) o.callbacks = *callbacks;
    return session_with(m, &o);
}

// What an answer gave: its text, each piece with its channel, and its tokens.
typedef struct heard {
    char text[4096];
    int32_t ids[256];
    int size, count;
} heard;

static int hear_text(void *user, int channel, const char *text, size_t size) {
    heard *h = (heard *)user;
    for (size_t i = 0; i < size && h->size + 2 <= (int)sizeof h->text; i++) {      // in pieces or at once: the same
        h->text[h->size++] = (char)('0' + channel);
        h->text[h->size++] = text[i];
    }
    return 0;
}

static int hear_token(void *user, int32_t id) {
    heard *h = (heard *)user;
    if (h->count < 256) h->ids[h->count++] = id;
    return 0;
}

static int same_answer(const heard *a, const heard *b) {
    return a->size == b->size && a->count == b->count && !memcmp(a->text, b->text, (size_t)a->size) &&
           !memcmp(a->ids, b->ids, sizeof *a->ids * (size_t)a->count);
}

static mote_generation generation_to(heard *h, int max_tokens) {
    static mote_sampling greedy;
    mote_generation g = {0};
    g.sampling = &greedy;
    g.max_tokens = max_tokens;
    g.on_text = hear_text;
    g.on_token = hear_token;
    g.user = h;
    return g;
}

#include "misuse_memory.c"
#include "misuse_callbacks.c"
#include "misuse_null.c"
#include "misuse_files.c"
#include "misuse_processes.c"

int main(int argc, char **argv) {
    test_main_begin("test_misuse", argc, argv);
    if (!temp_open()) return test_main_end();
    mote_model *demo = model_of(DEMO, MOTE_EVERYTHING);
    int is_cpu = !strcmp(test_device, "cpu");
    if (is_cpu) test_processes();
    if (is_cpu) test_null_models(demo);
    test_null_sessions(demo);
    test_callbacks(demo);
    test_cancelled_turn(demo);
    test_cancelled_restore(demo);
    test_results(demo);
    if (is_cpu) {
        test_save_in_the_way(demo);
        test_save_beside(demo);
        test_concurrent_saves(demo);
        test_other_checkpoints();
        test_memory(demo);
        test_call_memory(demo);
    }
    mote_close(demo);
    temp_close();
    return test_main_end();
}
