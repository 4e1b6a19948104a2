/* An answer that is JSON of a schema, whatever the model would rather say: the library masks every token with which it would
   leave the schema.

   Build   cc -O3 -x c engine.cu json.c -o json -lm -lpthread
   Run     ./json [MODEL_FOLDER [QUESTION [SCHEMA]]]

   docs/server.md lists the keywords of JSON Schema that are honoured; the rest is refused by its name. */
#include "engine.h"

#include <stdio.h>
#include <string.h>

static const char experts[] =
    "{\"type\": \"object\","
    " \"properties\": {\"answer\": {\"type\": \"string\", \"maxLength\": 100},"
    "                \"sure\": {\"type\": \"boolean\"},"
    "                \"experts\": {\"type\": \"integer\", \"minimum\": 1, \"maximum\": 512},"
    "                \"words\": {\"type\": \"array\", \"items\": {\"type\": \"string\", \"pattern\": \"^[a-z]+$\", \"maxLength\": 20}, \"maxItems\": 4}},"
    " \"required\": [\"answer\", \"sure\", \"experts\", \"words\"]}";

static int print_text(void *user, int channel, const char *text, size_t size) {
    (void)user;
    if (channel == MOTE_ANSWER) fwrite(text, 1, size, stdout);
    return 0;
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : "models/demo";
    const char *question = argc > 2 ? argv[2] : "What is a mixture of experts?";
    mote_model *model = NULL;
    mote_session *session = NULL;
    mote_generation generation;
    mote_result result;
    mote_error error;
    memset(&generation, 0, sizeof generation);
    generation.size = sizeof generation;
    generation.schema = argc > 3 ? argv[3] : experts;
    generation.think = MOTE_THINK_OFF;
    generation.on_text = print_text;
    int code = mote_open(folder, NULL, &model, &error);
    if (!code) code = mote_session_open(model, NULL, &session, &error);
    if (!code) code = mote_ask(session, question, &generation, &result, &error);
    if (code) fprintf(stderr, "json: %s\n", error.message);
    else putchar('\n');
    mote_session_close(session);
    mote_close(model);
    return code ? 1 : result.stop != MOTE_STOP_EOS;            /* a full context may have cut it short */
}
