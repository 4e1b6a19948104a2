/* Finds documents for a question, and answers from the best one: retrieval-augmented generation with this file and the library.

   1. Every document becomes a row of numbers, once. So does the question; the nearest rows, by their dot products, are the candidates.
   2. A reranker reads question and candidate together, and says with what probability the answer to "is it relevant?" is yes.
   3. A chat model gets the best one with the question.

   The models are Qwen3-Embedding-0.6B, Qwen3-Reranker-0.6B (or larger ones of their kinds) and any chat model. Other embedding models want other
   words before a question, which their card tells. A model that was not trained to embed texts, such as the bundled one, finds little.

   Build   cc -O3 -x c engine.cu search.c -o search -lm -lpthread, or for the GPU of this machine, too
           nvcc -O3 -std=c++17 -arch=native -x cu engine.cu search.c -o search
   Run     ./search [QUESTION [DOCUMENTS [EMBEDDER [RERANKER [CHAT_MODEL]]]]]
           DOCUMENTS: a file, of which each line is one; - for a few of our own. The others are folders; - for RERANKER: none */
#include "engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DOCUMENTS_MOST = 10000, CANDIDATES = 3, TOKENS_MOST = 2048, TEXT_MOST = 8192 };

static const char TASK[] = "Given a web search query, retrieve relevant passages that answer the query";

typedef struct document {
    char *text;
    float *embedding;                      /* [hidden_size] */
    double score;
} document;

typedef struct tokens {
    int32_t ids[TOKENS_MOST];
    size_t count;
} tokens;

/* Appends a text. special: its control tokens are ours, not those that somebody wrote into a document. */
static int put(const mote_model *model, tokens *to, const char *text, int special, mote_error *error) {
    size_t more = 0;
    int code = mote_tokenize(model, text, strlen(text), special, to->ids + to->count, TOKENS_MOST - to->count, &more, error);
    to->count += code ? 0 : more;
    return code;
}

/* A text as its model's texts are: with what it was trained to see at their beginning and end. */
static int embed(const mote_model *model, mote_session *session, const char *text, float *embedding, mote_error *error) {
    const mote_info *info = mote_model_info(model);
    tokens t;
    t.count = 0;
    if (info->begin_token >= 0) t.ids[t.count++] = info->begin_token;
    int code = put(model, &t, text, 0, error);
    if (!code && info->end_token >= 0 && t.count < TOKENS_MOST) t.ids[t.count++] = info->end_token;
    return code ? code : mote_embed(session, t.ids, t.count, NULL, embedding, error);
}

static int by_score(const void *a, const void *b) {
    const double x = ((const document *)a)->score, y = ((const document *)b)->score;
    return (x < y) - (x > y);
}

static int open_model(const char *folder, mote_model **model, mote_session **session, mote_error *error) {
    mote_session_options options;
    int code = mote_open(folder, NULL, model, error);
    if (code) return code;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.context = mote_model_info(*model)->context_max < TOKENS_MOST ? 0 : (int)TOKENS_MOST;
    return mote_session_open(*model, &options, session, error);
}

/* Sorts the documents by their cosine with the question. */
static int search(const char *folder, const char *question, document *all, int count, mote_error *error) {
    mote_model *model = NULL;
    mote_session *session = NULL;
    char query[TEXT_MOST];
    float *numbers = NULL;
    int code = open_model(folder, &model, &session, error);
    const int size = code ? 0 : mote_model_info(model)->hidden_size;
    if (!code && !mote_model_info(model)->pooling) fprintf(stderr, "search: %s is no embedding model: expect little\n", folder);
    if (!code && !(numbers = (float *)malloc(((size_t)count + 1) * (size_t)size * sizeof *numbers)))
        code = (snprintf(error->message, sizeof error->message, "out of memory"), MOTE_ENOMEM);
    snprintf(query, sizeof query, "Instruct: %s\nQuery:%s", TASK, question);
    if (!code) code = embed(model, session, query, numbers, error);
    for (int i = 0; i < count && !code; i++) {
        all[i].embedding = numbers + (size_t)(i + 1) * (size_t)size;
        code = embed(model, session, all[i].text, all[i].embedding, error);
        all[i].score = 0;
        for (int k = 0; k < size && !code; k++) all[i].score += (double)numbers[k] * all[i].embedding[k];
    }
    if (!code) qsort(all, (size_t)count, sizeof *all, by_score);
    free(numbers);                         /* an application keeps those of the documents */
    mote_session_close(session);
    mote_close(model);
    return code;
}

/* The prompt of Qwen3-Reranker, as its card has it; logits of the next token say yes or no. */
static int judge(const mote_model *model, mote_session *session, const char *question, document *d, mote_error *error) {
    char text[2 * TEXT_MOST];
    int32_t yes = -1, no = -1;
    size_t one;
    tokens t;
    t.count = 0;
    snprintf(text, sizeof text, "<Instruct>: %s\n<Query>: %s\n<Document>: %s", TASK, question, d->text);
    int code = put(model, &t, "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
                              "Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n", 1, error);
    if (!code) code = put(model, &t, text, 0, error);
    if (!code) code = put(model, &t, "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", 1, error);
    if (!code) code = mote_tokenize(model, "yes", 3, 0, &yes, 1, &one, error);
    if (!code) code = mote_tokenize(model, "no", 2, 0, &no, 1, &one, error);
    if (!code) code = mote_reset(session, error);
    if (!code) code = mote_feed(session, t.ids, t.count, error);
    const float *logits = code ? NULL : mote_logits(session);
    if (logits) d->score = 1 / (1 + exp((double)logits[no] - logits[yes]));
    return code;
}

/* Sorts the candidates by the probability that they answer the question. */
static int rerank(const char *folder, const char *question, document *all, int count, mote_error *error) {
    mote_model *model = NULL;
    mote_session *session = NULL;
    int code = open_model(folder, &model, &session, error);
    for (int i = 0; i < count && !code; i++) code = judge(model, session, question, &all[i], error);
    if (!code) qsort(all, (size_t)count, sizeof *all, by_score);
    mote_session_close(session);
    mote_close(model);
    return code;
}

static int print_text(void *user, int channel, const char *text, size_t size) {
    (void)user;
    if (channel == MOTE_ANSWER) fwrite(text, 1, size, stdout);
    return 0;
}

static int answer(const char *folder, const char *question, const char *source, mote_error *error) {
    mote_model *model = NULL;
    mote_session *session = NULL;
    mote_generation generation;
    char message[2 * TEXT_MOST];
    snprintf(message, sizeof message, "%s\n\nAnswer from this text alone:\n%s", question, source);
    memset(&generation, 0, sizeof generation);
    generation.size = sizeof generation;
    generation.max_tokens = 400;
    generation.on_text = print_text;
    int code = open_model(folder, &model, &session, error);
    if (!code) code = mote_ask(session, message, &generation, NULL, error);
    putchar('\n');
    mote_session_close(session);
    mote_close(model);
    return code;
}

static int read_documents(const char *file, document *to) {
    static const char *const ours[] = {"FP8 is a number format with 8 bits: E4M3 has four bits of exponent and three of mantissa.",
                                       "A router chooses the experts that a token is sent to.", "The capital of China is Beijing.",
                                       "Gravity is a force that attracts two bodies towards each other.", "Bread rises because yeast makes carbon dioxide."};
    char line[TEXT_MOST];
    FILE *in = strcmp(file, "-") ? fopen(file, "r") : NULL;
    int count = 0;
    for (; !in && !strcmp(file, "-") && count < 5; count++) to[count].text = strdup(ours[count]);
    while (in && count < DOCUMENTS_MOST && fgets(line, sizeof line, in)) {
        line[strcspn(line, "\n")] = 0;
        if (*line) to[count++].text = strdup(line);
    }
    if (in) fclose(in);
    return count;
}

static void print(const char *what, const document *all, int count) {
    printf("%s\n", what);
    for (int i = 0; i < count; i++) printf("%8.4f  %s\n", all[i].score, all[i].text);
}

int main(int argc, char **argv) {
    static document all[DOCUMENTS_MOST];
    const char *question = argc > 1 ? argv[1] : "What is FP8?", *embedder = argc > 3 ? argv[3] : "models/demo";
    const int count = read_documents(argc > 2 ? argv[2] : "-", all), candidates = count < CANDIDATES ? count : (int)CANDIDATES;
    mote_error error = {MOTE_EIO, "no documents"};
    int code = count ? search(embedder, question, all, count, &error) : MOTE_EIO;
    if (!code) print("Nearest:", all, candidates);
    if (!code && argc > 4 && strcmp(argv[4], "-")) {
        code = rerank(argv[4], question, all, candidates, &error);
        if (!code) print("Reranked:", all, candidates);
    }
    if (!code) code = answer(argc > 5 ? argv[5] : "models/demo", question, all[0].text, &error);
    if (code) fprintf(stderr, "search: %s\n", error.message);
    for (int i = 0; i < count; i++) free(all[i].text);
    return code != 0;
}
