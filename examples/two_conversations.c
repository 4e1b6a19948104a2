/* Two conversations with one model at the same time: the weights are in memory once, each conversation is a session on a
   thread of its own.

   Build   cc -O3 -x c engine.cu two_conversations.c -o two_conversations -lm -lpthread
   Run     ./two_conversations [MODEL_FOLDER] */
#include "engine.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

typedef struct conversation {
    const mote_model *model;
    const char *name, *questions[2];
    char answer[2][2000];
    size_t size[2];
    int turn, code;
    mote_error error;
} conversation;

static int keep_text(void *user, int channel, const char *text, size_t size) {
    conversation *c = (conversation *)user;
    size_t *have = &c->size[c->turn], left = sizeof c->answer[0] - 1 - *have;
    if (channel != MOTE_ANSWER) return 0;
    if (size > left) size = left;
    memcpy(c->answer[c->turn] + *have, text, size);
    *have += size;
    return *have == sizeof c->answer[0] - 1;           /* full: stops */
}

static void *talk(void *user) {
    conversation *c = (conversation *)user;
    mote_session *session = NULL;
    mote_session_options options;
    mote_generation generation;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    memset(&generation, 0, sizeof generation);
    generation.size = sizeof generation;
    options.context = 2048;
    options.threads = 1;                               /* on the CPU: half of two cores each */
    generation.think = MOTE_THINK_OFF;
    generation.on_text = keep_text;
    generation.user = c;
    c->code = mote_session_open(c->model, &options, &session, &c->error);
    for (c->turn = 0; !c->code && c->turn < 2; c->turn++)
        c->code = mote_ask(session, c->questions[c->turn], &generation, NULL, &c->error);
    mote_session_close(session);
    return NULL;
}

int main(int argc, char **argv) {
    static conversation ann, bob;
    conversation *both[] = {&ann, &bob};
    pthread_t thread[2];
    mote_model *model = NULL;
    mote_error error;
    int code = mote_open(argc > 1 ? argv[1] : "models/demo", NULL, &model, &error), started = 0;
    if (code) fprintf(stderr, "two_conversations: %s\n", error.message);
    ann.name = "Ann", ann.questions[0] = "What is FP8?", ann.questions[1] = "And what is BF16?";
    bob.name = "Bob", bob.questions[0] = "What is a mixture of experts?", bob.questions[1] = "What is a router?";
    for (; !code && started < 2; started++) {
        both[started]->model = model;
        if (pthread_create(&thread[started], NULL, talk, both[started])) break;
    }
    for (int i = 0; i < started; i++) {
        conversation *c = both[i];
        pthread_join(thread[i], NULL);
        for (int turn = 0; turn < 2 && !c->code; turn++) printf("%s: %s\n%s\n\n", c->name, c->questions[turn], c->answer[turn]);
        if (c->code) fprintf(stderr, "%s: %s\n", c->name, c->error.message);
        code |= c->code;
    }
    mote_close(model);
    return code || started < 2;
}
