/* tests/session/pair.h: a session on a shared runner beside one that is alone, to which the same is done; for test_runner and test_batch. */

static mote_runner *runner_with(const mote_model *m, const mote_session_options *o) {
    mote_runner *r = NULL;
    EXPECT(MOTE_OK, mote_runner_open(m, o, &r, &failure));
    if (!r) exit(test_main_end() ? 1 : 2);
    return r;
}

#define runner_of(m, ...) runner_with(m, &(mote_session_options){__VA_ARGS__})

static uint64_t random_state;

static int below(int n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int)((random_state >> 33) % (uint64_t)n);
}

typedef struct pair {
    mote_session *shared, *alone;
    mote_checkpoint *shared_before, *alone_before;          /* NULL: none */
    int polls[2];                /* of cancel, until it says yes; 0: it does not */
} pair;

static inline void compare_pair(const pair *p, const char *after) {
    size_t size;
    CHECK(count_of(p->shared) == count_of(p->alone), "after %s: %d tokens, alone %d", after, count_of(p->shared), count_of(p->alone));
    char *bytes = session_bytes(p->alone, &size);
    CHECK(session_is(p->shared, bytes, size), "after %s, of %d tokens: another state than alone", after, count_of(p->alone));
    free(bytes);
}

static inline void remember_pair(pair *p) {
    mote_checkpoint_free(p->shared_before);
    mote_checkpoint_free(p->alone_before);
    p->shared_before = checkpoint_of(p->shared);
    p->alone_before = checkpoint_of(p->alone);
}

static inline void rewind_pair(pair *p) {
    if (!p->shared_before) return;
    int code = mote_rewind(p->alone, p->alone_before, &failure);
    CHECK(mote_rewind(p->shared, p->shared_before, &failure) == code, "going back: %s", failure.message);
}

static inline void clone_pair(pair *p) {
    mote_session *clone = NULL;
    EXPECT(MOTE_OK, mote_clone(p->shared, &clone, &failure));
    if (!clone) return;
    mote_session_close(p->shared);
    p->shared = clone;
}

static inline void close_pair(pair *p) {
    mote_checkpoint_free(p->shared_before);
    mote_checkpoint_free(p->alone_before);
    mote_session_close(p->shared);
    mote_session_close(p->alone);
    memset(p, 0, sizeof *p);
}

/* on_token: keeps the token where *user points to, and goes on. */
static inline int keep_token(void *user, int32_t id) {
    int32_t **to = (int32_t **)user;
    *(*to)++ = id;
    return 0;
}
