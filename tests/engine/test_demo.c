/* test_demo.c: does the bundled model still answer? The 40 questions of tools/demo_eval.json, half of them phrasings it was
   never trained on, greedily and without thinking; an answer is right when it holds the keywords of its entry. And does
   its MTP layer draft well: how often is its first draft the token that the model itself chose next? Then the 108 questions
   of a stranger in tools/demo_unseen.txt, follow-ups and other languages among them, of which none may be answered with nonsense. */

#include "api.h"
#include "files.h"

enum { MOST_TEXT = 8192 };

static void lower(char *text) {
    for (; *text; text++)
        if (*text >= 'A' && *text <= 'Z') *text += 'a' - 'A';
}

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
    lower(answer);
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
   token two after it. */
static void count_drafts(const mote_model *m, const mote_session *s, size_t prompt, int *drafts, int *hits) {
    size_t n, vocab = (size_t)mote_model_info(m)->vocab_size;
    const int32_t *ids = mote_tokens(s, &n);
    mote_session *again = session_of(m, .context = (int)n);
    float *logits = (float *)allocate(n * vocab * sizeof *logits), *mtp = (float *)allocate(n * vocab * sizeof *mtp);
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
    answer *a = (answer *)allocate(sizeof *a);
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

/* ---- A stranger's questions ---------------------------------------------------------------------------------------- */

enum { GROUPS = 18, FIRST_GROUPS = 15, OF_A_GROUP = 6, MOST_WORDS = 90, MOST_TURNS = 2, RUN = 6 };

typedef struct unseen { char *turns[MOST_TURNS], *good, *bad; int count; } unseen;

static int in_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

/* Is word[0, n) in `text` as a word of its own? Both are lower case. */
static int is_word_of(const char *text, const char *word, size_t n) {
    char copy[64];
    if (n >= sizeof copy) return 0;
    memcpy(copy, word, n);
    copy[n] = 0;
    for (const char *at = text; (at = strstr(at, copy)); at++)
        if ((at == text || !in_word(at[-1])) && !in_word(at[n])) return 1;
    return 0;
}

/* Does a run of six words come a second time? `starts` are those of the words, the last one is the end. */
static int repeats(const char *const *starts, int words) {
    for (int i = 0; i + RUN <= words; i++)
        for (int j = i + 1; j + RUN <= words; j++) {
            size_t n = (size_t)(starts[i + RUN] - starts[i]);
            if (starts[j + RUN] - starts[j] == (ptrdiff_t)n && !memcmp(starts[i], starts[j], n)) return 1;
        }
    return 0;
}

/* What makes an answer nonsense, whatever it says; NULL: nothing. In lower case. `known` has all words it may consist of. */
static const char *nonsense_of(const char *text, const mote_result *r, const char *known, const char *asked) {
    const char *starts[MOST_WORDS + 2];
    int words = 0;
    size_t size = strlen(text);
    if (r->stop != MOTE_STOP_EOS) return "it does not end";
    if (!size || !(strchr(".!?\"", text[size - 1]) || (size > 3 && !strcmp(text + size - 3, "\u3002"))))
        return "the last sentence is not complete";
    for (const char *at = text; *at && words <= MOST_WORDS;) {
        size_t n = strcspn(at, " \n"), from = 0, letters;
        starts[words++] = at;
        for (; from < n; from += letters + !letters) {
            for (letters = 0; from + letters < n && in_word(at[from + letters]); letters++) {}
            if (letters && !is_word_of(known, at + from, letters) && !is_word_of(asked, at + from, letters))
                return "it has a word that nobody taught it";
        }
        at += n;
        at += strspn(at, " \n");
    }
    starts[words] = text + size;
    if (words < 2 || words > MOST_WORDS) return "it is too short or too long";
    return repeats(starts, words) ? "it repeats itself" : NULL;
}

/* Asks all turns in one conversation; 1 when the last answer is good. */
static int ask_unseen(const mote_model *m, const unseen *u, const char *known, int *nonsense) {
    mote_sampling greedy = {0};
    mote_session *s = session_of(m, 0);
    answer *a = (answer *)allocate(sizeof *a);
    char *asked = (char *)allocate(MOST_TURNS * MOST_TEXT);
    int good = 0;
    for (int i = 0; i < u->count; i++) {
        mote_generation g = {.sampling = &greedy, .think = MOTE_THINK_OFF, .max_tokens = 150, .on_text = collect, .user = a};
        mote_result r = {0};
        memset(a, 0, sizeof *a);
        EXPECT(MOTE_OK, mote_ask(s, u->turns[i], &g, &r, &failure));
        snprintf(asked + strlen(asked), MOST_TEXT, "%s\n", u->turns[i]);
        lower(asked);
        good = is_right(a->text, u->good) && !(u->bad && holds_one(a->text, u->bad, strlen(u->bad)));
        const char *why = nonsense_of(a->text, &r, known, asked);
        if (why) printf("test_demo: nonsense, %s: %s => %s\n", why, u->turns[i], a->text);
        else if (!good && i + 1 == u->count) printf("test_demo: not good: %s => %s\n", u->turns[i], a->text);
        *nonsense += why != NULL;
        good = good && !why;
    }
    free(asked);
    free(a);
    mote_session_close(s);
    return good;
}

/* The next question of the list; 0 at its end. `at` goes on, `groups` counts headings. Lines are cut apart in place. */
static int next_unseen(char **at, unseen *u, int *groups) {
    memset(u, 0, sizeof *u);
    while (**at) {
        char *line = *at, *end = line + strcspn(line, "\n");
        *at = end + (*end == '\n');
        *end = 0;
        if (!*line && u->good) return 1;
        if (!strncmp(line, "## ", 3)) *groups += 1;
        if (!strncmp(line, "? ", 2) && CHECK(u->count < MOST_TURNS, "one turn too many: %s", line))
            u->turns[u->count++] = line + 2;
        if (!strncmp(line, "+ ", 2)) u->good = line + 2;
        if (!strncmp(line, "- ", 2)) u->bad = line + 2;
    }
    return u->good != NULL;
}

/* All that the model was taught to say about mote and models, in lower case; free() it. */
static char *taught_words(void) {
    static const char *const files[] = {"mote.txt", "concepts.txt", "use.txt", "children.txt", "languages.txt", "follow_ups.txt", "first_hour.txt",
                                        "examples.txt"};
    char *all = (char *)allocate(1 << 20), path[64];
    size_t used = 0, size;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "tools/demo_questions/%s", files[i]);
        char *text = file_bytes(path, &size);
        if (!CHECK(text && used + size < 1 << 20, "%s", path)) continue;
        for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
            if (!strncmp(line, "A: ", 3)) used += (size_t)sprintf(all + used, "%s\n", line + 3);
        free(text);
    }
    lower(all);
    return all;
}

static void test_unseen(const mote_model *m) {
    int count = 0, first = 0, later = 0, nonsense = 0, groups = 0, good_of[GROUPS] = {0};
    size_t size;
    unseen u;
    char *text = file_bytes("tools/demo_unseen.txt", &size), *known = taught_words(), *at = text;
    if (!CHECK(text != NULL, "tools/demo_unseen.txt")) return;
    for (; next_unseen(&at, &u, &groups) && CHECK(groups > 0 && groups <= GROUPS, "group %d", groups); count++)
        good_of[groups - 1] += ask_unseen(m, &u, known, &nonsense);
    printf("test_demo: good answers by group:");
    for (int i = 0; i < GROUPS; i++) {
        *(i < FIRST_GROUPS ? &first : &later) += good_of[i];
        printf(" %d", good_of[i]);
    }
    printf(" of %d each\n", OF_A_GROUP);
    printf("test_demo: %d of %d questions never trained on are answered well, and %d of %d of the last groups, %d with nonsense\n", first,
           FIRST_GROUPS * OF_A_GROUP, later, (GROUPS - FIRST_GROUPS) * OF_A_GROUP, nonsense);
    CHECK(groups == GROUPS && count == GROUPS * OF_A_GROUP, "%d questions in %d groups", count, groups);
    CHECK(first * 100 >= FIRST_GROUPS * OF_A_GROUP * 85, "%d of %d answers are good", first, FIRST_GROUPS * OF_A_GROUP);
    CHECK(later >= 10, "%d answers of the last groups are good: the first hour, the conversation itself, nonsense", later);
    CHECK(nonsense == 0, "%d answers are nonsense", nonsense);
    free(known);
    free(text);
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
    test_unseen(m);
    mote_close(m);
    return test_main_end();
}
