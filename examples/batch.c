/* Scores many texts by their log-likelihood, sixteen at a time: how probable is each of them as the answer to one question? That is what
   multiple-choice benchmarks ask, and who ranks candidates.

   The question is read once. Each session is a clone of the one that has read it, and goes back to there by a checkpoint before the next
   text. All sessions are of one runner: what their threads ask for at the same time is computed in one pass, which reads the weights once.

   Calls of at most four tokens meet in a pass; a longer one is computed alone, as its own rows share the reading already. So texts
   are fed four tokens at a time: sixteen threads make passes of up to 64 rows, while a text of ten tokens alone is a pass of ten. Texts of
   hundreds of tokens are better fed as a whole.

   Build   cc -O3 -x c engine.cu batch.c -o batch -lm -lpthread, or for the GPU of this machine, too
           nvcc -O3 -std=c++17 -arch=native -x cu engine.cu batch.c -o batch
   Run     ./batch [MODEL_FOLDER [TEXTS [SESSIONS]]] */
#include "engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char QUESTION[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"What is FP8?\"}], \"enable_thinking\": false}";

enum { TEXTS_MOST = 1000, SESSIONS_MOST = 64, TOKENS_MOST = 64, MEET_MOST = 4 };

typedef struct text {
    char words[160];
    double logprob;                        /* of all its tokens, after the question */
    int tokens;
} text;

typedef struct batch {
    const mote_model *model;
    mote_checkpoint *asked;                /* after the question */
    text texts[TEXTS_MOST];
    int count, next;                       /* texts; the first that nobody has taken */
    pthread_mutex_t lock;                  /* of next */
} batch;

typedef struct worker {
    batch *b;
    mote_session *session;
    int code;
    mote_error error;
} worker;

static int score(worker *w, text *t) {
    int32_t ids[TOKENS_MOST];
    mote_logprob found[MEET_MOST];
    size_t count;
    int code = mote_tokenize(w->b->model, t->words, strlen(t->words), 0, ids, TOKENS_MOST, &count, &w->error);
    if (!code) code = mote_rewind(w->session, w->b->asked, &w->error);
    for (size_t at = 0, n; !code && at < count; at += n) {
        n = count - at < (size_t)MEET_MOST ? count - at : (size_t)MEET_MOST;
        code = mote_feed_logprobs(w->session, ids + at, n, 0, found, NULL, &w->error);
        for (size_t i = 0; !code && i < n; i++) t->logprob += found[i].logprob;
    }
    t->tokens = (int)count;
    return code;
}

/* Texts, until all are taken. */
static void *work(void *user) {
    worker *w = (worker *)user;
    for (;;) {
        pthread_mutex_lock(&w->b->lock);
        const int i = w->b->next < w->b->count && !w->code ? w->b->next++ : -1;
        pthread_mutex_unlock(&w->b->lock);
        if (i < 0) return NULL;
        w->code = score(w, &w->b->texts[i]);
    }
}

/* Opens the sessions: the first one reads the question, the others are its clones. */
static int open_workers(batch *b, worker *w, int count, mote_error *error) {
    mote_session_options options;
    mote_runner *runner = NULL;
    int32_t ids[4 * TOKENS_MOST];
    size_t n;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.context = 512;                             /* tokens: the question and a text */
    options.mtp = MOTE_MTP_OFF;                        /* nothing is generated, so nothing is drafted */
    int code = mote_runner_open(b->model, &options, &runner, error);
    options.runner = runner;
    if (!code) code = mote_session_open(b->model, &options, &w[0].session, error);
    mote_runner_close(runner);                         /* it lives as long as its sessions */
    if (!code) code = mote_render_tokens(b->model, QUESTION, strlen(QUESTION), ids, 4 * TOKENS_MOST, &n, error);
    if (!code) code = mote_feed(w[0].session, ids, n, error);
    if (!code) code = mote_checkpoint_take(w[0].session, &b->asked, error);
    for (int i = 1; i < count && !code; i++) code = mote_clone(w[0].session, &w[i].session, error);
    return code;
}

/* Scores all texts; *seconds: how long it took. */
static int run(worker *w, int count, double *seconds, mote_error *error) {
    pthread_t thread[SESSIONS_MOST];
    struct timespec start, end;
    int started = 0, code = 0;
    clock_gettime(CLOCK_MONOTONIC, &start);
    while (started < count && !pthread_create(&thread[started], NULL, work, &w[started])) started++;
    for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    *seconds = (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
    for (int i = 0; i < started && !code; i++)
        if ((code = w[i].code)) *error = w[i].error;
    return code || started ? code : (snprintf(error->message, sizeof error->message, "no threads"), 1);
}

/* Ten times ten times ten sentences. */
static void write_texts(batch *b, int count) {
    static const char *const who[] = {"A router", "An expert", "FP8", "BF16", "A tensor", "Attention", "A token", "The KV cache", "A GPU", "A dog"};
    static const char *const does[] = {"chooses", "is", "has", "keeps", "needs", "computes", "reads", "eats", "stores", "predicts"};
    static const char *const what[] = {"experts for each token", "a format with 8 bits", "the next token", "keys and values", "much memory",
                                       "a small network", "an array of numbers", "the weights", "a piece of text", "bones"};
    b->count = count;
    for (int i = 0; i < count; i++)
        snprintf(b->texts[i].words, sizeof b->texts[i].words, "%s %s %s.", who[i % 10], does[i / 10 % 10], what[(i / 100 + i) % 10]);
}

static int by_logprob(const void *a, const void *b) {
    const double x = ((const text *)a)->logprob / ((const text *)a)->tokens, y = ((const text *)b)->logprob / ((const text *)b)->tokens;
    return (x < y) - (x > y);
}

int main(int argc, char **argv) {
    static batch b;
    static worker workers[SESSIONS_MOST];
    const int asked = argc > 2 ? atoi(argv[2]) : TEXTS_MOST, many = argc > 3 ? atoi(argv[3]) : 16;
    const int sessions = many < 1 ? 1 : many > SESSIONS_MOST ? (int)SESSIONS_MOST : many;
    mote_model *model = NULL;
    mote_error error;
    double seconds = 0;
    long tokens = 0;
    int code = mote_open(argc > 1 ? argv[1] : "models/demo", NULL, &model, &error);
    b.model = model;
    pthread_mutex_init(&b.lock, NULL);
    write_texts(&b, asked < 1 ? 1 : asked > TEXTS_MOST ? (int)TEXTS_MOST : asked);
    for (int i = 0; i < sessions; i++) workers[i].b = &b;
    if (!code) code = open_workers(&b, workers, sessions, &error);
    if (!code) code = run(workers, sessions, &seconds, &error);
    if (code) {
        fprintf(stderr, "batch: %s\n", error.message);
    } else {
        for (int i = 0; i < b.count; i++) tokens += b.texts[i].tokens;
        qsort(b.texts, (size_t)b.count, sizeof *b.texts, by_logprob);
        for (int i = 0; i < 5 && i < b.count; i++) printf("%8.4f a token: %s\n", b.texts[i].logprob / b.texts[i].tokens, b.texts[i].words);
        printf("%d texts of %ld tokens in %.2f s: %.0f texts/s, %.0f tok/s, %d at a time\n", b.count, tokens, seconds, b.count / seconds,
               (double)tokens / seconds, sessions);
    }
    for (int i = 0; i < sessions; i++) mote_session_close(workers[i].session);
    mote_checkpoint_free(b.asked);
    mote_close(model);
    return code != 0;
}
