/* test_demo.c: does the bundled model still answer? The 40 questions of tools/demo_eval.json, half of them phrasings it was
   never trained on, greedily and without thinking; an answer is right when it holds the keywords of its entry. And does
   its MTP layer draft well: how often is its first draft the token that the model itself chose next? */

#include "../engine.cu"
#include "test.h"

static mote_error failure;

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

static int collect(void *user, int channel, const char *text, size_t size) {
    if (channel == MOTE_ANSWER) buf_add((buf *)user, text, size);
    return 0;
}

static int best_of(const float *logits, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Feeds the timeline of `s` anew and counts the drafts of generated tokens that hit: the MTP row of a position drafts the
   token two behind it. */
static void count_drafts(const mote_model *m, const mote_session *s, size_t prompt, int *drafts, int *hits) {
    size_t n, vocab = (size_t)mote_model_info(m)->vocab_size;
    const int32_t *ids = mote_tokens(s, &n);
    mote_session *again = NULL;
    float *logits = (float *)malloc(n * vocab * sizeof *logits), *mtp = (float *)malloc(n * vocab * sizeof *mtp);
    int code = mote_session_open(m, NULL, &again, &failure);
    if (!code) code = mote_feed_logits(again, ids, n, logits, mtp, &failure);
    CHECK(!code, "MTP logits: %s", failure.message);
    for (size_t at = prompt; !code && at < n; at++) {
        *drafts += 1;
        *hits += best_of(mtp + (at - 2) * vocab, (int)vocab) == ids[at];
    }
    free(logits);
    free(mtp);
    mote_session_close(again);
}

/* Asks one question; 1 when the answer is right. */
static int ask(const mote_model *m, const char *question, const char *keywords, int *drafts, int *hits) {
    mote_session *s = NULL;
    mote_sampling greedy;
    mote_generation g;
    mote_result r;
    buf answer;
    memset(&greedy, 0, sizeof greedy);
    memset(&g, 0, sizeof g);
    memset(&r, 0, sizeof r);
    memset(&answer, 0, sizeof answer);
    g.sampling = &greedy;
    g.think = MOTE_THINK_OFF;
    g.max_tokens = 150;
    g.on_text = collect;
    g.user = &answer;
    int code = mote_session_open(m, NULL, &s, &failure);
    if (!code) code = mote_ask(s, question, &g, &r, &failure);
    CHECK(!code, "%s: %s", question, failure.message);
    if (!code) count_drafts(m, s, (size_t)r.prompt_tokens, drafts, hits);
    mote_session_close(s);
    buf_add(&answer, "", 1);
    int right = !code && is_right(answer.data, keywords);
    if (!right) printf("test_demo: wrong: %s => %s\n", question, answer.data);
    buf_free(&answer);
    return right;
}

static void test_questions(const mote_model *m, const json *j) {
    int right = 0, held_out = 0, held_out_right = 0, drafts = 0, hits = 0;
    uint32_t node = 1, count = j->nodes[0].size;
    for (uint32_t i = 0; i < count; i++, node = j->nodes[node].next) {
        char question[512], keywords[512];
        size_t q = json_string(j, json_get(j, node, "question"), question, sizeof question - 1);
        size_t k = json_string(j, json_get(j, node, "keywords"), keywords, sizeof keywords - 1);
        int is_held_out = j->nodes[json_get(j, node, "held_out")].type == JSON_TRUE;
        if (!CHECK(q && q < sizeof question && k && k < sizeof keywords, "question %u", i + 1)) return;
        question[q] = keywords[k] = 0;
        int ok = ask(m, question, keywords, &drafts, &hits);
        right += ok;
        held_out += is_held_out;
        held_out_right += ok && is_held_out;
    }
    printf("test_demo: %d of %u right, %d of %d in a phrasing never trained on; first drafts: %d of %d\n", right, count,
           held_out_right, held_out, hits, drafts);
    CHECK(count == 40 && right >= 30, "%d of %u answers are right", right, count);
    CHECK(held_out_right >= 10, "%d of %d held-out phrasings are answered rightly", held_out_right, held_out);
    CHECK(hits * 10 >= drafts * 6, "%d of %d first drafts are the model's own token", hits, drafts);
}

int main(int argc, char **argv) {
    mote_model *m = NULL;
    buf text;
    json j;
    test_main_begin("test_demo", argc, argv);
    memset(&text, 0, sizeof text);
    int code = mote_open("models/demo", NULL, &m, &failure);
    if (!code) code = read_file("tools", "demo_eval.json", &text, &failure);
    if (!code) code = json_parse(&j, text.data, text.size, "tools/demo_eval.json", &failure);
    if (CHECK(!code, "%s", failure.message)) {
        test_questions(m, &j);
        json_free(&j);
    }
    buf_free(&text);
    mote_close(m);
    return test_main_end();
}
