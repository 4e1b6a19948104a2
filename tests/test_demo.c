/* test_demo.c: does the bundled model still answer? The 40 questions of tools/demo_eval.json, half of them phrasings it was
   never trained on, greedily and without thinking; an answer is right when it holds the keywords of its entry. And does
   its MTP layer draft well: how often is its first draft the token that the model itself chose next? */

#include "api.h"
#include "files.h"

enum { MOST_TEXT = 8192 };

/* One alternative of a keyword, in lower case, is somewhere in the answer. */
static int holds_one(const char *answer, const char *alternatives, size_t n) {
    for (const char *p = alternatives, *end = p + n; p < end;) {
        const char *bar = (const char *)memchr(p, '|', (size_t)(end - p)), *stop = bar ? bar : end;
        char word[128];
        while (p < stop && *p == ' ') p++;
        size_t size = (size_t)(stop - p);
        while (size && p[size - 1] == ' ') size--;
        if (size && size < sizeof word) {
            memcpy(word, p, size);
            word[size] = 0;
            if (strstr(answer, word)) return 1;
        }
        p = stop + 1;
    }
    return 0;
}

/* "expert, router|gate": a comma means and, a bar means or. */
static int is_right(char *answer, const char *keywords) {
    for (char *c = answer; *c; c++)
        if (*c >= 'A' && *c <= 'Z') *c += 'a' - 'A';
    for (const char *p = keywords;; p++) {
        size_t n = strcspn(p, ",");
        if (!holds_one(answer, p, n)) return 0;
        p += n;
        if (!*p) return 1;
    }
}

typedef struct answer { char text[MOST_TEXT]; size_t size; } answer;

static int collect(void *user, int channel, const char *text, size_t size) {
    answer *a = (answer *)user;
    if (channel != MOTE_ANSWER || a->size + size >= MOST_TEXT) return 0;
    memcpy(a->text + a->size, text, size);
    a->size += size;
    return 0;
}

/* Feeds the timeline of `s` anew and counts the drafts of generated tokens that hit: the MTP row of a position drafts the
   token two behind it. */
static void count_drafts(const mote_model *m, const mote_session *s, size_t prompt, int *drafts, int *hits) {
    size_t n, vocab = (size_t)mote_model_info(m)->vocab_size;
    const int32_t *ids = mote_tokens(s, &n);
    mote_session *again = session_of(m, .context = (int)n);
    float *logits = (float *)room(n * vocab * sizeof *logits), *mtp = (float *)room(n * vocab * sizeof *mtp);
    EXPECT(MOTE_OK, mote_feed_logits(again, ids, n, logits, mtp, &failure));
    for (size_t at = prompt; at < n; at++) {
        *drafts += 1;
        *hits += best_of(mtp + (at - 2) * vocab, (int)vocab) == ids[at];
    }
    free(logits);
    free(mtp);
    mote_session_close(again);
}

/* Asks one question; 1 when the answer is right. */
static int ask(const mote_model *m, const char *question, const char *keywords, int *drafts, int *hits) {
    answer *a = (answer *)room(sizeof *a);
    mote_sampling greedy = {0};
    mote_generation g = {.sampling = &greedy, .think = MOTE_THINK_OFF, .max_tokens = 150, .on_text = collect, .user = a};
    mote_session *s = session_of(m, 0);
    mote_result r = {0};
    EXPECT(MOTE_OK, mote_ask(s, question, &g, &r, &failure));
    count_drafts(m, s, (size_t)r.prompt_tokens, drafts, hits);
    mote_session_close(s);
    int right = is_right(a->text, keywords);
    if (!right) printf("test_demo: wrong: %s => %s\n", question, a->text);
    free(a);
    return right;
}

/* An entry of demo_eval.json. */
static const char ENTRY[] = "{ \"question\": \"%511[^\"]\", \"keywords\": \"%511[^\"]\", \"held_out\": %7[a-z]";

int main(int argc, char **argv) {
    int count = 0, right = 0, held_out = 0, held_out_right = 0, drafts = 0, hits = 0;
    char question[512], keywords[512], held[8];
    size_t size;
    test_main_begin("test_demo", argc, argv);
    mote_model *m = model_of("models/demo", MOTE_EVERYTHING);
    char *text = file_bytes("tools/demo_eval.json", &size);
    for (const char *at = text; at && (at = strchr(at, '{')); at++, count++) {
        if (!CHECK(sscanf(at, ENTRY, question, keywords, held) == 3, "question %d", count + 1)) break;
        int ok = ask(m, question, keywords, &drafts, &hits), is_held_out = !strcmp(held, "true");
        right += ok;
        held_out += is_held_out;
        held_out_right += ok && is_held_out;
    }
    printf("test_demo: %d of %d right, %d of %d in a phrasing never trained on; first drafts: %d of %d\n", right, count,
           held_out_right, held_out, hits, drafts);
    CHECK(count == 40 && right >= 30, "%d of %d answers are right", right, count);
    CHECK(held_out_right >= 10, "%d of %d held-out phrasings are answered rightly", held_out_right, held_out);
    CHECK(hits * 10 >= drafts * 6, "%d of %d first drafts are the model's own token", hits, drafts);
    free(text);
    mote_close(m);
    return test_main_end();
}
