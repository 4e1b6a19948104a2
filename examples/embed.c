/* The smallest program with mote inside: it opens a model, asks one question and prints the answer as it comes.

   Build   cc -O3 -x c engine.cu embed.c -o embed -lm -lpthread, or for the GPU of this machine, too
           nvcc -O3 -std=c++17 -arch=native -x cu engine.cu embed.c -o embed
   Run     ./embed [MODEL_FOLDER [QUESTION]]

   It computes on the GPU if there is one. mote_options.device, here NULL, chooses: "cpu", "cuda", "cuda:1". */
#include "engine.h"

#include <stdio.h>
#include <string.h>

/* Called with each piece of the answer; returning non-zero would stop it. */
static int print_text(void *user, int channel, const char *text, size_t size) {
    (void)user;
    if (channel == MOTE_ANSWER) fwrite(text, 1, size, stdout);
    fflush(stdout);
    return 0;
}

static int ask(const mote_model *model, const char *question, mote_error *error) {
    mote_session *session = NULL;
    mote_generation generation;
    int code = mote_session_open(model, NULL, &session, error);
    if (code) return code;
    memset(&generation, 0, sizeof generation);         /* zero: the defaults, for everything */
    generation.size = sizeof generation;
    generation.think = MOTE_THINK_OFF;
    generation.on_text = print_text;
    code = mote_ask(session, question, &generation, NULL, error);
    putchar('\n');
    mote_session_close(session);
    return code;
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : "models/demo";
    const char *question = argc > 2 ? argv[2] : "What is a mixture of experts?";
    mote_model *model = NULL;
    mote_error error;
    int code = mote_open(folder, NULL, &model, &error);
    if (!code) code = ask(model, question, &error);
    if (code) fprintf(stderr, "embed: %s\n", error.message);
    mote_close(model);
    return code ? 1 : 0;
}
