/* A model that calls functions of this program: it is told of them as JSON, its calls come as JSON, and their results go back.

   Build   cc -O3 -x c engine.cu tools.c -o tools -lm -lpthread
   Run     ./tools [MODEL_FOLDER [QUESTION]]

   The bundled model has never learned to call tools, and answers by itself; try one that has. What a call holds is the model's
   word, so a program checks it as it would check a stranger's. */
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CALLS_MOST = 8, ROUNDS_MOST = 5 };

static const char TOOLS[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_time\", \"description\": \"The time of day here.\","
    "  \"parameters\": {\"type\": \"object\", \"properties\": {}}}},"
    " {\"type\": \"function\", \"function\": {\"name\": \"roll_dice\", \"description\": \"Rolls dice.\","
    "  \"parameters\": {\"type\": \"object\", \"properties\": {\"sides\": {\"type\": \"integer\"}},"
    "   \"required\": [\"sides\"]}}}]";

typedef struct round_of_calls { char results[CALLS_MOST][64]; int calls; } round_of_calls;

/* 1: this call is one of that function. A real program reads it with its JSON library. */
static int calls(const char *call, const char *name) {
    char begin[64];
    snprintf(begin, sizeof begin, "{\"name\": \"%s\",", name);
    return strncmp(call, begin, strlen(begin)) == 0;
}

/* Called with each call, {"name": "roll_dice", "arguments": {"sides": 6}}. */
static int on_call(void *user, const char *call, size_t size) {
    round_of_calls *r = (round_of_calls *)user;
    if (r->calls == CALLS_MOST) return 1;
    char *result = r->results[r->calls++];
    const char *sides = strstr(call, "\"sides\": ");
    int n = sides ? atoi(sides + strlen("\"sides\": ")) : 0;
    time_t now = time(NULL);
    printf("[%.*s]\n", (int)size, call);
    if (calls(call, "get_time")) strftime(result, sizeof r->results[0], "%H:%M", localtime(&now));
    else if (calls(call, "roll_dice") && n > 0) snprintf(result, sizeof r->results[0], "%d", 1 + rand() % n);
    else snprintf(result, sizeof r->results[0], "error: no such function, or bad arguments");
    return 0;
}

static int on_text(void *user, int channel, const char *text, size_t size) {
    (void)user;
    if (channel == MOTE_ANSWER) fwrite(text, 1, size, stdout);
    return 0;
}

/* Asks, and answers the model's calls until it has none. */
static int ask(mote_session *session, const char *question, mote_error *error) {
    mote_generation generation;
    mote_result result;
    round_of_calls now, before;
    const char *message = question, *more[CALLS_MOST];
    memset(&generation, 0, sizeof generation);
    generation.size = sizeof generation;
    generation.tools = TOOLS;
    generation.max_tokens = 1000;
    generation.on_text = on_text;
    generation.on_call = on_call;
    generation.user = &now;
    for (int i = 0; i < ROUNDS_MOST; i++) {
        memset(&now, 0, sizeof now);
        int code = mote_ask(session, message, &generation, &result, error);
        putchar('\n');
        if (code || !now.calls) return code;
        before = now;
        message = before.results[0];
        for (int k = 1; k < before.calls; k++) more[k - 1] = before.results[k];
        generation.role = "tool";                      /* the first result is the message, the others go with it */
        generation.results = more;
        generation.result_count = before.calls - 1;
    }
    return MOTE_OK;
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : "models/demo";
    const char *question = argc > 2 ? argv[2] : "Roll two dice and tell me the time.";
    mote_model *model = NULL;
    mote_session *session = NULL;
    mote_error error;
    int code = mote_open(folder, NULL, &model, &error);
    if (!code) code = mote_session_open(model, NULL, &session, &error);
    if (!code) code = ask(session, question, &error);
    if (code) fprintf(stderr, "tools: %s\n", error.message);
    mote_session_close(session);
    mote_close(model);
    return code ? 1 : 0;
}
