// A part of test_api: tools and calls, thinking that is dropped, turns.

// ---- Calls ----------------------------------------------------------------------------------------------------------

typedef struct called { char json[1024]; int count, stop_at; heard h; } called;

static int hear_call(void *user, const char *call, size_t size) {
    called *c = (called *)((char *)user - offsetof(called, h));
    if (strlen(call) == size && strlen(c->json) + size + 2 < sizeof c->json) strcat(strcat(c->json, call), ";");
    return ++c->count == c->stop_at;
}

static const char TOOLS[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"add\", \"description\": \"Adds.\", \"parameters\": {\"type\": \"object\", "
    "\"properties\": {\"a\": {\"type\": \"number\"}, \"note\": {\"type\": \"string\"}}}}}]";

// An answer that says just this: after the question, or what was asked.
static void force(const mote_model *m, mote_generation *g, heard *h, const char *text, int32_t *ids) {
    h->force_count = text_ids(m, text, 1, ids, MOST);
    h->force = ids;
    h->start = 0;
    g->on_logits = hear_logits;
}

static int forced_logits(void *user, float *logits, int vocab) {
    heard *h = (heard *)user;
    for (int i = 0; i < vocab; i++)
        if (h->asked >= h->force_count || i != h->force[h->asked]) logits[i] = -INFINITY;
    h->asked++;
    return h->asked > h->force_count;
}

static const struct { const char *text, *calls; int broken; } call_cases[] = {
    {"<tool_call>\n<function=add>\n<parameter=a>\n3\n</parameter>\n<parameter=note>\n3\n</parameter>\n</function>\n</tool_call>",
     "{\"name\": \"add\", \"arguments\": {\"a\": 3, \"note\": \"3\"}};", 0},
    {"Let me see.\n\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"add\"}\n"
     "</tool_call>", "{\"name\": \"add\", \"arguments\": {\"a\": 1}};{\"name\": \"add\", \"arguments\": {}};", 0},
    {"<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "", 1},                                  // no such tool
    {"<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}", "", 1},
    {"<tool_call>\nno call\n</tool_call> So.", "", 1},
    {"So:\n<function=add>\n<parameter=a>\n3\n</parameter>\n</function>\n</tool_call>",             // not opened
     "{\"name\": \"add\", \"arguments\": {\"a\": 3}};", 0},
    {"<function=add>\n</function>", "{\"name\": \"add\", \"arguments\": {}};", 0},
    {"I use <function=add> for that, </function> and no more.", "", 0},
    {"No call at all.", "", 0}};

static void test_calls(const mote_model *m) {
    mote_sampling p = sampling_of(0, 0);
    for (size_t i = 0; i < sizeof call_cases / sizeof *call_cases; i += test_brief ? 5 : 1)
        for (int d = test_brief; d < 2; d++) {
            mote_session *s = session_at(m, d ? 3 : MOTE_MTP_OFF);
            called *c = (called *)allocate(sizeof *c);
            mote_generation g = generation_to(&c->h, s, &p, 0);
            int32_t ids[MOST];
            force(m, &g, &c->h, call_cases[i].text, ids);
            g.on_logits = forced_logits;
            g.on_call = hear_call;
            g.tools = TOOLS;
            g.think = MOTE_THINK_OFF;
            EXPECT(MOTE_OK, mote_ask(s, "Add.", &g, &c->h.r, &failure));
            CHECK(!strcmp(c->json, call_cases[i].calls) && c->h.r.calls == c->count && c->h.r.broken_calls == call_cases[i].broken,
                  "call %zu: %d calls, %d broken: %s", i, c->h.r.calls, c->h.r.broken_calls, c->json);
            free(c);
            mote_session_close(s);
        }
}

// ---- Conversations --------------------------------------------------------------------------------------------------

// The timeline's tokens are those that the template renders of this request.
static void check_timeline(const mote_model *m, const mote_session *s, const char *request, size_t after, const char *what) {
    int32_t ids[CONTEXT];
    char text[4096];
    size_t want = 0, count = 0, n = 0;
    EXPECT(MOTE_OK, mote_render_tokens(m, request, strlen(request), ids, CONTEXT, &want, &failure));
    const int32_t *have = mote_tokens(s, &count);
    EXPECT(MOTE_OK, mote_detokenize(m, have, count, text, sizeof text, &n, &failure));
    CHECK(count == want + after && !memcmp(have, ids, want * sizeof *ids), "%s: %zu tokens after %zu, the template has %zu:\n%.*s", what,
          count, after, want, (int)n, text);
}

static void say(const mote_model *m, mote_session *s, const char *role, const char *message, int think, const char *answer,
                heard *h, mote_generation *with) {
    mote_sampling p = sampling_of(0, 0);
    mote_generation g = generation_to(h, s, &p, 0);
    int32_t ids[MOST];
    force(m, &g, h, answer, ids);
    g.on_logits = forced_logits;
    g.role = role;
    g.think = think;
    g.system = "Be brief. ";
    g.tools = TOOLS;
    if (with) g.keep_thinking = with->keep_thinking, g.results = with->results, g.result_count = with->result_count;
    EXPECT(MOTE_OK, mote_ask(s, message, &g, &h->r, &failure));
    CHECK(h->r.generated_tokens == h->force_count, "\"%s\": %d tokens of %d", answer, h->r.generated_tokens, h->force_count);
}

#define SYSTEM "{\"tools\": %s, \"messages\": [{\"role\": \"system\", \"content\": \"Be brief. \"}, {\"role\": \"user\", \"content\": \"One?\"}, "
#define CALL_TEXT "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
#define CALL "{\"function\": {\"name\": \"add\", \"arguments\": {\"a\": \"1\"}}}"

// A user turn leaves old thinking behind, and what is then there is the template's rendering, token for token. Thinking between the
// calls of a turn stays until then.
static void test_thinking(const mote_model *m, int mtp) {
    mote_session *s = session_at(m, mtp);
    heard *h = (heard *)allocate(sizeof *h);
    const char *more[] = {" 3\n"};
    mote_generation with;
    char request[4096];
    size_t read = 99, total = 0;
    memset(&with, 0, sizeof with);
    say(m, s, NULL, "One?", MOTE_THINK_ON, "Hmm, one.\n</think>\n\n It is 1 . \n<|im_end|>", h, NULL);
    snprintf(request, sizeof request, SYSTEM "{}]}", TOOLS);
    snprintf(request + strlen(request) - strlen(", {}]}"), 64, "], \"enable_thinking\": true}");
    check_timeline(m, s, request, (size_t)h->r.generated_tokens, "the first turn");

    EXPECT(MOTE_OK, mote_ask_count(s, "Two?", NULL, &read, &total, &failure));
    say(m, s, "user", "Two?", MOTE_THINK_ON, "A call, then.\n</think>\n\nI add.\n\n" CALL_TEXT "\n" CALL_TEXT "<|im_end|>", h, NULL);
    CHECK((int)read == h->r.prompt_tokens && total + (size_t)h->r.generated_tokens == (size_t)count_of(s), "counted %zu, %zu", read,
          total);
    snprintf(request, sizeof request, SYSTEM "{\"role\": \"assistant\", \"content\": \" It is 1 . \", \"reasoning_content\": \"Hmm, one.\"}, "
             "{\"role\": \"user\", \"content\": \"Two?\"}], \"enable_thinking\": true}", TOOLS);
    check_timeline(m, s, request, (size_t)h->r.generated_tokens, "the second turn");

    with.results = more;
    with.result_count = 1;
    say(m, s, "tool", "2", MOTE_THINK_ON, "So 2 it is.\n</think>\n\nTwo.<|im_end|>", h, &with);
    snprintf(request, sizeof request, SYSTEM "{\"role\": \"assistant\", \"content\": \" It is 1 . \"}, {\"role\": \"user\", \"content\": \"Two?\"}, "
             "{\"role\": \"assistant\", \"content\": \"I add.\", \"reasoning_content\": \"A call, then.\", \"tool_calls\": [" CALL ", " CALL "]}, "
             "{\"role\": \"tool\", \"content\": \"2\"}, {\"role\": \"tool\", \"content\": \" 3\\n\"}], \"enable_thinking\": true}", TOOLS);
    check_timeline(m, s, request, (size_t)h->r.generated_tokens, "the tool's turn: thinking stays");

    size_t first = (size_t)count_of(s);
    EXPECT(MOTE_OK, mote_drop_thinking(s, &read, &failure));
    CHECK(read > 0 && (size_t)count_of(s) < first, "nothing was dropped");
    size_t size;
    char *bytes = session_bytes(s, &size);
    EXPECT(MOTE_OK, mote_drop_thinking(s, &read, &failure));
    CHECK(read == 0 && session_is(s, bytes, size), "dropped twice");
    free(bytes);
    say(m, s, NULL, "Three?", MOTE_THINK_OFF, "Cut sh", h, NULL);       // and no end: on_logits stops it
    snprintf(request, sizeof request, SYSTEM "{\"role\": \"assistant\", \"content\": \" It is 1 . \"}, {\"role\": \"user\", \"content\": \"Two?\"}, "
             "{\"role\": \"assistant\", \"content\": \"I add.\", \"tool_calls\": [" CALL ", " CALL "]}, {\"role\": \"tool\", \"content\": \"2\"}, "
             "{\"role\": \"tool\", \"content\": \" 3\\n\"}, {\"role\": \"assistant\", \"content\": \"Two.\"}, {\"role\": \"user\", \"content\": \"Three?\"}], "
             "\"enable_thinking\": false}", TOOLS);
    check_timeline(m, s, request, (size_t)h->r.generated_tokens, "the third turn");
    say(m, s, NULL, "Four?", MOTE_THINK_ON, "No end to thin", h, NULL);
    say(m, s, NULL, "Five?", MOTE_THINK_ON, "</think>\n\nFive.<|im_end|>", h, NULL);
    size_t at = strlen(request) - strlen("], \"enable_thinking\": false}");
    snprintf(request + at, sizeof request - at, ", {\"role\": \"assistant\", \"content\": \"Cut sh\"}, {\"role\": \"user\", \"content\": \"Four?\"}, "
             "{\"role\": \"assistant\", \"content\": \"\"}, {\"role\": \"user\", \"content\": \"Five?\"}], \"enable_thinking\": true}");
    check_timeline(m, s, request, (size_t)h->r.generated_tokens, "cut short in an answer and in thinking");
    mote_session_close(s);
    free(h);
}

// keep_thinking, mote_feed: the timeline is appended to. A clone drops what its original drops.
static void test_kept_thinking(const mote_model *m) {
    mote_session *s = session_at(m, MOTE_MTP_AUTO), *clone = NULL;
    heard *h = (heard *)allocate(sizeof *h);
    mote_generation with;
    size_t read = 0, other = 0, before;
    int32_t id = 0;
    memset(&with, 0, sizeof with);
    with.keep_thinking = 1;
    say(m, s, NULL, "One?", MOTE_THINK_ON, "Hmm.\n</think>\n\nOne.<|im_end|>", h, NULL);
    mote_checkpoint *c = checkpoint_of(s);
    int32_t *ids = (int32_t *)allocate(CONTEXT * sizeof *ids);
    memcpy(ids, mote_tokens(s, &before), (size_t)count_of(s) * sizeof *ids);
    say(m, s, NULL, "Two?", MOTE_THINK_ON, "Hm.\n</think>\n\nTwo.<|im_end|>", h, &with);
    CHECK(!memcmp(mote_tokens(s, NULL), ids, before * sizeof *ids), "keep_thinking changed the history");
    EXPECT(MOTE_OK, mote_drop_thinking(s, &read, &failure));
    CHECK(read == 0, "thinking that was to be kept is dropped");
    size_t saved_size;
    char *saved = session_bytes(s, &saved_size);
    EXPECT(MOTE_OK, mote_rewind(s, c, &failure));
    say(m, s, NULL, "Two?", MOTE_THINK_ON, "Hm.\n</think>\n\nTwo.<|im_end|>", h, NULL);
    EXPECT(MOTE_OK, mote_load(s, saved, saved_size, &failure));
    EXPECT(MOTE_OK, mote_drop_thinking(s, &read, &failure));
    CHECK(read == 0, "what was loaded drops thinking that another timeline remembered");
    free(saved);
    EXPECT(MOTE_OK, mote_rewind(s, c, &failure));
    say(m, s, NULL, "Two?", MOTE_THINK_ON, "Hm.\n</think>\n\nTwo.<|im_end|>", h, NULL);
    EXPECT(MOTE_OK, mote_feed(s, ids, 0, &failure));        // nothing, and what is refused, changes nothing
    EXPECT(MOTE_ECONTEXT, mote_feed(s, ids, CONTEXT, &failure));
    EXPECT(MOTE_OK, mote_clone(s, &clone, &failure));
    EXPECT(MOTE_OK, mote_drop_thinking(s, &read, &failure));
    EXPECT(MOTE_OK, mote_drop_thinking(clone, &other, &failure));
    size_t size;
    char *bytes = session_bytes(s, &size);
    CHECK(read > 0 && read == other && session_is(clone, bytes, size), "a clone drops other thinking");
    free(bytes);
    say(m, s, NULL, "Three?", MOTE_THINK_ON, "Hm.\n</think>\n\nThree.<|im_end|>", h, NULL);
    EXPECT(MOTE_OK, mote_feed(s, &id, 1, &failure));
    EXPECT(MOTE_OK, mote_drop_thinking(s, &read, &failure));
    CHECK(read == 0, "dropped after mote_feed");
    mote_checkpoint_free(c);
    mote_session_close(clone);
    mote_session_close(s);
    free(ids);
    free(h);
}

// A timeline that moves to another session takes its checkpoints with it.
static void test_moved_timeline(const mote_model *m) {
    mote_session *s = session_at(m, MOTE_MTP_AUTO), *to = session_at(m, MOTE_MTP_AUTO);
    mote_generation g;
    mote_sampling greedy;
    int32_t ids[256];
    memset(&g, 0, sizeof g);
    memset(&greedy, 0, sizeof greedy);
    g.sampling = &greedy;
    g.max_tokens = 20;
    EXPECT(MOTE_OK, mote_feed(s, ids, (size_t)text_ids(m, QUESTION, 1, ids, 256), &failure));
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    mote_checkpoint *c = checkpoint_of(s);
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    EXPECT(MOTE_OK, mote_feed(s, ids, 5, &failure));
    size_t size, count;
    char *bytes = session_bytes(s, &size);
    EXPECT(MOTE_EINVAL, mote_rewind(to, c, &failure));
    EXPECT(MOTE_OK, mote_load(to, bytes, size, &failure));
    free(bytes);
    EXPECT(MOTE_OK, mote_reset(s, &failure));
    EXPECT(MOTE_OK, mote_feed(s, ids, 3, &failure));
    mote_session_close(s);
    EXPECT(MOTE_OK, mote_rewind(to, c, &failure));
    s = session_at(m, MOTE_MTP_AUTO);
    mote_tokens(to, &count);
    EXPECT(MOTE_OK, mote_feed(s, ids, (size_t)text_ids(m, QUESTION, 1, ids, 256), &failure));
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    CHECK((size_t)count_of(s) == count, "%zu tokens after the rewind, expected %d", count, count_of(s));
    CHECK(same_logits(to, mote_logits(s), mote_model_info(m)->vocab_size), "other logits after a checkpoint that moved");
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    EXPECT(MOTE_OK, mote_generate(to, &g, NULL, &failure));
    CHECK(count_of(s) == count_of(to) && !memcmp(mote_tokens(s, NULL), mote_tokens(to, NULL), (size_t)count_of(s) * sizeof *ids),
          "another text after a checkpoint that moved");
    mote_checkpoint_free(c);
    mote_session_close(to);
    mote_session_close(s);
}

static void test_turn_errors(const mote_model *m) {
    static const char *const tools[] = {"", "{}", "[", "[{}], 1"};
    const char *const results[] = {"a", NULL};
    mote_session *s = session_at(m, MOTE_MTP_AUTO);
    mote_generation g;
    memset(&g, 0, sizeof g);
    for (int i = 0; i < 4; i++) {
        g.tools = tools[i];
        EXPECT(MOTE_EINVAL, mote_ask(s, "Hello", &g, NULL, &failure));
        EXPECT(MOTE_EINVAL, mote_ask_count(s, "Hello", &g, NULL, NULL, &failure));
    }
    memset(&g, 0, sizeof g);
    g.results = results;
    g.result_count = 2;
    g.role = "tool";
    EXPECT(MOTE_EINVAL, mote_ask(s, "Hello", &g, NULL, &failure));
    g.result_count = 1;
    g.role = NULL;
    EXPECT(MOTE_EINVAL, mote_ask(s, "Hello", &g, NULL, &failure));
    g.result_count = 0;
    g.top_logprobs = -1;
    EXPECT(MOTE_EINVAL, mote_ask(s, "Hello", &g, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_ask_count(s, NULL, NULL, NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_drop_thinking(NULL, NULL, &failure));
    CHECK(count_of(s) == 0, "refused turns left tokens");
    mote_session_close(s);
}
