/* An answer that is valid JSON of a given shape, whatever the model would rather say: on_logits masks every token with which
   the text would leave the shape.

   Build   cc -O3 -x c engine.cu json.c -o json -lm -lpthread
   Run     ./json [MODEL_FOLDER [QUESTION [SHAPE]]]

   The shape is an example of what is wanted: "" stands for any text, 0 for any whole number, true for true or false, [x] for a
   list of x. All else, the keys of objects above all, comes as it is there. */
#include "engine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { DEPTH = 16, TEXT_MOST = 100, DIGITS_MOST = 9, LIST_MOST = 4 };   /* a model that finds no end is given one */

enum { BETWEEN, KEY, TEXT, ESCAPED, NUMBER, WORD };

/* How far the text has got: where in the shape, and in which value of it. Small, as it is copied to try a token. */
typedef struct place {
    const char *at;              /* what of the shape is next */
    const char *list[DEPTH];     /* the lists we are inside of: where their x begins */
    int items[DEPTH], depth;
    int in;                      /* BETWEEN values, or in one */
    int length, more;            /* of a text, bytes, and those that a UTF-8 character still lacks; of a number, digits */
    const char *word;            /* the rest of true or false */
} place;

static int step_value(place *s, unsigned char c) {
    if (s->in == WORD) {
        if (c != (unsigned char)*s->word) return 0;
        if (!*++s->word) s->in = BETWEEN;
        return 1;
    }
    if (s->in == ESCAPED) {
        s->in = TEXT;
        return c && strchr("\"\\/bfnrt", c) != NULL;
    }
    if (s->more) return s->more--, (c & 0xc0) == 0x80;
    if (c == '"') return s->in = BETWEEN, 1;
    if (s->length++ >= TEXT_MOST || c < 0x20 || (c >= 0x80 && c < 0xc2) || c > 0xf4) return 0;
    if (c == '\\') s->in = ESCAPED;
    s->more = c < 0x80 ? 0 : c < 0xe0 ? 1 : c < 0xf0 ? 2 : 3;
    return 1;
}

static int step_between(place *s, unsigned char c) {
    const char *p = s->at;
    if (s->depth && *p == ']' && c == ',' && s->items[s->depth - 1]++ < LIST_MOST) return s->at = s->list[s->depth - 1], 1;
    if (strncmp(p, "true", 4) == 0) {
        s->at += 4;
        s->in = WORD;
        s->word = c == 't' ? "rue" : "alse";
        return c == 't' || c == 'f';
    }
    s->at++;
    if (*p == '0') {
        s->in = NUMBER;
        s->length = c == '0' ? (int)DIGITS_MOST : c != '-';
        return c == '-' || (c >= '0' && c <= '9');
    }
    if (!*p || c != (unsigned char)*p || (c == '[' && s->depth == DEPTH)) return 0;
    if (c == '"') s->in = p[1] == '"' ? TEXT : KEY;
    if (s->in == TEXT) s->at++, s->length = 0;
    if (c == '[') s->list[s->depth] = s->at, s->items[s->depth++] = 1;
    if (c == ']') s->depth--;
    return 1;
}

/* May this byte come next? Then s goes behind it. */
static int step(place *s, unsigned char c) {
    if (s->in == KEY) {
        if (c == '"') s->in = BETWEEN;
        return c && c == (unsigned char)*s->at++;
    }
    if (s->in == NUMBER && c >= '0' && c <= '9' && s->length < DIGITS_MOST && (s->length || c != '0')) return ++s->length;
    if (s->in == NUMBER && s->length) s->in = BETWEEN;
    if (s->in == NUMBER) return 0;
    return s->in == BETWEEN ? step_between(s, c) : step_value(s, c);
}

static int finished(const place *s) {
    return !*s->at && (s->in == BETWEEN || (s->in == NUMBER && s->length));
}

/* May this token come next? Control tokens look like <tags>: they are no text. */
static int fits(const mote_model *model, const place *s, int32_t id) {
    size_t size = 0;
    const char *bytes = mote_token_bytes(model, id, &size);
    place after = *s;
    if (mote_is_end(model, id)) return finished(s);
    if (!bytes || !size || (size > 2 && bytes[0] == '<' && bytes[size - 1] == '>')) return 0;
    for (size_t i = 0; i < size; i++)
        if (!step(&after, (unsigned char)bytes[i])) return 0;
    return 1;
}

typedef struct writer { const mote_model *model; place now; } writer;

static int mask(void *user, float *logits, int vocab_size) {
    const writer *w = (const writer *)user;
    for (int id = 0; id < vocab_size; id++)
        if (!fits(w->model, &w->now, id)) logits[id] = -INFINITY;
    return 0;
}

static int follow(void *user, int32_t id) {
    writer *w = (writer *)user;
    size_t size = 0;
    const char *bytes = mote_token_bytes(w->model, id, &size);
    for (size_t i = 0; i < size && !mote_is_end(w->model, id); i++) step(&w->now, (unsigned char)bytes[i]);
    return 0;
}

static int print_text(void *user, int channel, const char *text, size_t size) {
    (void)user, (void)channel;
    fwrite(text, 1, size, stdout);
    return 0;
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : "models/demo";
    const char *question = argc > 2 ? argv[2] : "What is a mixture of experts?";
    const char *shape = argc > 3 ? argv[3] : "{\"answer\": \"\", \"sure\": true, \"experts\": 0, \"words\": [\"\"]}";
    mote_model *model = NULL;
    mote_session *session = NULL;
    mote_generation generation;
    mote_error error;
    writer w;
    memset(&generation, 0, sizeof generation);
    generation.size = sizeof generation;
    memset(&w, 0, sizeof w);
    int code = mote_open(folder, NULL, &model, &error);
    if (!code) code = mote_session_open(model, NULL, &session, &error);
    w.model = model;
    w.now.at = shape;
    generation.think = MOTE_THINK_OFF;
    generation.raw = 1;                                /* all is JSON, there are no channels to look for */
    generation.on_logits = mask;
    generation.on_token = follow;
    generation.on_text = print_text;
    generation.user = &w;
    if (!code) code = mote_ask(session, question, &generation, NULL, &error);
    if (code) fprintf(stderr, "json: %s\n", error.message);
    else putchar('\n');
    mote_session_close(session);
    mote_close(model);
    return code ? 1 : !finished(&w.now);
}
