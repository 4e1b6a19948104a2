// A part of test_api: on_logits, bias, log-probabilities.

// ---- on_logits ------------------------------------------------------------------------------------------------------

typedef struct ending { int max_tokens, stop_tokens, stop_asked; const char *stop; } ending;

static void generate_heard(const mote_model *m, mote_session *s, const mote_sampling *p, const ending *e, int mask, heard *h) {
    mote_generation g = generation_to(h, s, p, e->max_tokens);
    feed_question(m, s);
    h->start = (size_t)count_of(s);
    h->mask = mask;
    h->stop_tokens = e->stop_tokens;
    h->stop_asked = e->stop_asked;
    g.stop = &e->stop;
    g.stop_count = e->stop != NULL;
    EXPECT(MOTE_OK, mote_generate(s, &g, &h->r, &failure));
    CHECK(!h->wrong, "%d calls of on_logits or on_logprobs were not for the next position", h->wrong);
    CHECK(h->tokens == h->r.generated_tokens && h->probed == h->tokens && (size_t)count_of(s) == h->start + (size_t)h->tokens,
          "%d tokens, %d told, %d probed", h->r.generated_tokens, h->tokens, h->probed);
    CHECK(h->asked == h->tokens + (e->stop_asked != 0), "%d tokens, on_logits was called %d times", h->tokens, h->asked);
    int broke = 0;
    for (int i = 0; i < h->tokens && i < MOST; i++) broke += masked(h, i, h->ids[i]);
    CHECK(!broke, "%d of %d tokens were masked", broke, h->tokens);
}

// With every depth the callbacks hear the same, however the answer ends and whatever is masked.
static void test_on_logits(const mote_model *m) {
    static const ending endings[] = {{40, 0, 0, NULL}, {1, 0, 0, NULL}, {2, 0, 0, NULL}, {3, 0, 0, NULL}, {7, 0, 0, NULL},
                                     {40, 4, 0, NULL}, {40, 11, 0, NULL}, {40, 0, 1, NULL}, {40, 0, 6, NULL}, {0, 0, 0, "ert"}};
    const mote_sampling samplings[] = {sampling_of(0, 0), sampling_of(0.8f, 0), sampling_of(0.8f, 0.5f)};
    mote_session *s[DEPTHS];
    heard *want = (heard *)allocate(sizeof *want), *got = (heard *)allocate(sizeof *got);
    for (int d = 0; d < DEPTHS; d++) s[d] = session_at(m, depths[d]);
    for (int i = test_brief ? 3 : 0; i < 10; i += test_brief ? 3 : 1)
        for (int k = test_brief; k < (test_brief ? 2 : 3); k++)
            for (int mask = test_brief ? 3 : 0; mask < 6; mask += 3) {
                generate_heard(m, s[0], &samplings[k], &endings[i], mask, want);
                for (int d = 1; d < DEPTHS; d += test_brief ? 3 : 1) {
                    generate_heard(m, s[d], &samplings[k], &endings[i], mask, got);
                    CHECK(same_heard(got, want), "ending %d, sampling %d, mask %d, depth %d: heard otherwise", i, k, mask, depths[d]);
                }
            }
    mote_speculation x;
    EXPECT(MOTE_OK, mote_speculation_of(s[DEPTHS - 1], &x, &failure));
    CHECK(test_brief || (x.accepted[MOTE_DRAFT_MTP][0] > 10 && x.drafted[MOTE_DRAFT_MTP][0] > x.accepted[MOTE_DRAFT_MTP][0]),
          "drafts: %d, accepted %d", (int)x.drafted[MOTE_DRAFT_MTP][0], (int)x.accepted[MOTE_DRAFT_MTP][0]);
    for (int d = 0; d < DEPTHS; d++) mote_session_close(s[d]);
    free(want);
    free(got);
}

// Without penalties it sees the model's own logits; what it does not touch does not change the answer.
static void test_plain_logits(const mote_model *m) {
    int vocab = mote_model_info(m)->vocab_size;
    mote_session *s = session_at(m, MOTE_MTP_AUTO), *plain = session_at(m, MOTE_MTP_OFF);
    mote_sampling p = sampling_of(0, 0);
    ending e = {test_brief ? 5 : 20, 0, 0, NULL};
    heard *h = (heard *)allocate(sizeof *h);
    generate_heard(m, s, &p, &e, 0, h);
    feed_question(m, plain);
    int other = 0;
    for (int i = 0; i < h->tokens; i++) {
        int32_t id;
        other += hash_of(1, mote_logits(plain), (size_t)vocab * sizeof(float)) != h->logits[i];
        EXPECT(MOTE_OK, mote_step(plain, &p, &id, &failure));
        other += id != h->ids[i];
    }
    CHECK(!other, "%d rows or tokens differ from mote_step's", other);
    mote_session_close(plain);
    mote_session_close(s);
    free(h);
}

static int mask_all(void *user, float *logits, int vocab) {
    for (int i = 0; i < vocab; i++) logits[i] = -INFINITY;
    ++*(int *)user;
    return 0;
}

static int mask_badly(void *user, float *logits, int vocab) {
    logits[vocab / 2] = NAN;
    ++*(int *)user;
    return 0;
}

static int mask_later(void *user, float *logits, int vocab) {
    return ++*(int *)user > 3 ? mask_all(user, logits, vocab) : 0;
}

static void test_bad_masks(const mote_model *m) {
    int (*const bad[])(void *, float *, int) = {mask_all, mask_badly, mask_later};
    for (int i = 0; i < 3; i++)
        for (int hot = 0; hot < 2; hot++) {
            mote_session *s = session_at(m, MOTE_MTP_AUTO);
            mote_sampling p = sampling_of((float)hot, 0);
            mote_generation g;
            int calls = 0, start;
            memset(&g, 0, sizeof g);
            g.sampling = &p;
            g.user = &calls;
            g.on_logits = bad[i];
            feed_question(m, s);
            start = count_of(s);
            EXPECT(MOTE_EINVAL, mote_generate(s, &g, NULL, &failure));
            CHECK(count_of(s) == start + (i == 2 ? 3 : 0), "a bad mask: %d tokens", count_of(s) - start);
            g.verify = 1;
            EXPECT(MOTE_EINVAL, mote_generate(s, &g, NULL, &failure));
            CHECK(count_of(s) == start + (i == 2 ? 3 : 0), "verify and on_logits together");
            mote_session_close(s);
        }
}

// ---- Bias -----------------------------------------------------------------------------------------------------------

// What a plain answer says is forbidden by bias: the answers avoid it, with every depth alike, and so does mote_step.
static void test_bias(const mote_model *m) {
    mote_session *s[DEPTHS];
    heard *first = (heard *)allocate(sizeof *first), *want = (heard *)allocate(sizeof *want), *got = (heard *)allocate(sizeof *got);
    ending e = {test_brief ? 12 : 30, 0, 0, NULL};
    for (int d = 0; d < DEPTHS; d++) s[d] = session_at(m, depths[d]);
    for (int k = test_brief; k < (test_brief ? 2 : 3); k++) {
        mote_bias bias[12];
        mote_sampling p = sampling_of(k ? 0.7f : 0, k == 2 ? 0.5f : 0);
        generate_heard(m, s[0], &p, &e, 0, first);
        for (int i = 0; i < 12; i++) bias[i].id = first->ids[i], bias[i].bias = i % 2 ? -INFINITY : -50;
        p.bias = bias;
        p.bias_count = 12;
        generate_heard(m, s[0], &p, &e, 0, want);
        int banned = 0;
        for (int i = 0; i < want->tokens; i++)
            for (int b = 1; b < 12; b += 2) banned += want->ids[i] == bias[b].id;
        CHECK(!banned && want->ids[0] != first->ids[0], "%d forbidden tokens", banned);
        for (int d = 0; d < DEPTHS; d += test_brief ? 4 : 1) {          // with the callbacks, and with bias alone
            generate_heard(m, s[d], &p, &e, 0, got);
            CHECK(same_heard(got, want), "bias, sampling %d, depth %d", k, depths[d]);
            mote_generation g = generation_to(got, s[d], &p, e.max_tokens);
            g.on_logits = NULL;
            g.on_logprobs = NULL;
            g.verify = 1;
            feed_question(m, s[d]);
            EXPECT(MOTE_OK, mote_generate(s[d], &g, &got->r, &failure));
            CHECK(got->tokens == want->tokens && !memcmp(got->ids, want->ids, sizeof got->ids), "bias alone, depth %d", depths[d]);
        }
        feed_question(m, s[0]);
        int other = 0;
        for (int i = 0; i < 10; i++) {
            int32_t sampled = -1, stepped = -1;
            EXPECT(MOTE_OK, mote_sample(s[0], &p, &sampled, &failure));
            EXPECT(MOTE_OK, mote_step(s[0], &p, &stepped, &failure));
            other += sampled != want->ids[i] || stepped != want->ids[i];
        }
        CHECK(!other, "%d of 10 steps with bias differ", other);
    }
    mote_bias wrong[] = {{-1, 0}, {1 << 30, 0}, {1, NAN}, {1, INFINITY}};
    for (int i = 0; i < 5; i++) {
        mote_sampling p = sampling_of(0, 0);
        int32_t id = 0;
        p.bias = i < 4 ? &wrong[i] : NULL;
        p.bias_count = 1;
        EXPECT(MOTE_EINVAL, mote_step(s[0], &p, &id, &failure));
    }
    for (int d = 0; d < DEPTHS; d++) mote_session_close(s[d]);
    free(first);
    free(want);
    free(got);
}

// ---- Log-probabilities ----------------------------------------------------------------------------------------------

static double log_sum(const float *logits, int n) {
    double best = logits[0], total = 0;
    for (int i = 1; i < n; i++) best = fmax(best, logits[i]);
    for (int i = 0; i < n; i++) total += exp(logits[i] - best);
    return best + log(total);
}

// The token and the best ones are as the row of logits says.
static int logprobs_right(const mote_logprob *token, const mote_logprob *best, int top, const float *logits, int n) {
    double total = log_sum(logits, n);
    int wrong = !(fabs(token->logprob - (logits[token->id] - total)) < 1e-5);
    for (int i = 0; i < top; i++) {
        int above = 0;
        for (int j = 0; j < n; j++)
            above += logits[j] > logits[best[i].id] || (logits[j] == logits[best[i].id] && j < best[i].id);
        wrong += above != i || !(fabs(best[i].logprob - (logits[best[i].id] - total)) < 1e-5);
    }
    return !wrong;
}

static void test_logprobs(const mote_model *m) {
    int vocab = mote_model_info(m)->vocab_size, wrong = 0;
    mote_session *s = session_at(m, MOTE_MTP_AUTO), *plain = session_at(m, MOTE_MTP_OFF);
    mote_sampling p = sampling_of(0.9f, 0.5f);
    heard *h = (heard *)allocate(sizeof *h);
    ending e = {test_brief ? 6 : 30, 0, 0, NULL};
    generate_heard(m, s, &p, &e, 0, h);
    feed_question(m, plain);
    for (int i = 0; i < h->tokens; i++) {
        int32_t id, top[TOP];
        float values[TOP];
        wrong += !logprobs_right(h->told[i], h->told[i] + 1, TOP, mote_logits(plain), vocab);
        EXPECT(MOTE_OK, mote_top_logprobs(plain, TOP, top, values, &failure));
        for (int k = 0; k < TOP; k++) wrong += top[k] != h->told[i][1 + k].id || values[k] != h->told[i][1 + k].logprob;
        EXPECT(MOTE_OK, mote_step(plain, &p, &id, &failure));
    }
    CHECK(!wrong, "%d log-probabilities of an answer are not those of its logits", wrong);
    mote_session_close(plain);
    mote_session_close(s);
    free(h);
}

// Of a prompt in two calls, against the logits of the same calls. The row before a call is what mote_logits has: on a GPU it is
// computed as decode does, those within a call as prompts are.
static void test_prompt_logprobs(const mote_model *m, int count, int cut, int top) {
    int vocab = mote_model_info(m)->vocab_size, wrong = 0;
    mote_session *s = session_at(m, MOTE_MTP_AUTO), *plain = session_at(m, MOTE_MTP_AUTO);
    int32_t *ids = (int32_t *)allocate((size_t)count * sizeof *ids);
    float *logits = (float *)allocate((size_t)count * (size_t)vocab * sizeof *logits);
    mote_logprob *tokens = (mote_logprob *)allocate((size_t)count * sizeof *tokens);
    mote_logprob *best = (mote_logprob *)allocate((size_t)(count * top + 1) * sizeof *best);
    for (int i = 0; i < count; i++) ids[i] = random_int(0, vocab - 1);
    for (int from = 0, n; from < count; from += n) {
        n = from ? count - from : cut;
        EXPECT(MOTE_OK, mote_feed_logits(plain, ids + from, (size_t)n, logits + (size_t)from * (size_t)vocab, NULL, &failure));
        EXPECT(MOTE_OK, mote_feed_logprobs(s, ids + from, (size_t)n, top, tokens + from, top ? best + from * top : NULL, &failure));
        memcpy(logits + (size_t)(from + n - 1) * (size_t)vocab, mote_logits(plain), (size_t)vocab * sizeof *logits);
    }
    wrong += tokens[0].id != ids[0] || tokens[0].logprob != 0 || (top && best[0].id != -1);
    for (int i = 1; i < count; i++)
        wrong += tokens[i].id != ids[i] ||
                 !logprobs_right(tokens + i, best + i * top, top, logits + (size_t)(i - 1) * (size_t)vocab, vocab);
    CHECK(!wrong, "%d of %d log-probabilities of a prompt are wrong", wrong, count);
    CHECK(count_of(s) == count && same_logits(s, logits + (size_t)(count - 1) * (size_t)vocab, vocab), "the timeline after it");
    EXPECT(MOTE_EINVAL, mote_feed_logprobs(s, ids, 1, 1, tokens, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_feed_logprobs(s, ids, 1, -1, tokens, best, &failure));
    EXPECT(MOTE_EINVAL, mote_feed_logprobs(s, ids, 1, vocab + 1, tokens, best, &failure));
    EXPECT(MOTE_ECONTEXT, mote_feed_logprobs(s, ids, CONTEXT, 0, tokens, NULL, &failure));
    CHECK(count_of(s) == count, "a refused call changed the timeline");
    mote_session_close(s);
    mote_session_close(plain);
    free(ids);
    free(logits);
    free(tokens);
    free(best);
}
