// A part of test_session: what the index of the timeline finds, and after the timeline was cut.

enum { COPY_CONTEXT = 300 };

// An index of its own.
static copy_index *index_open(int context) {
    copy_index *c = (copy_index *)allocate(sizeof *c);
    layout count = layout_from(NULL);
    copies_layout(&count, c, context);
    layout l = layout_from((float *)allocate(count.used * sizeof(float)));
    copies_layout(&l, c, context);
    return c;
}

static void index_close(copy_index *c) {
    free(c->ends_short);
    free(c);
}

// The length of the longest match of the last tokens, by comparing with every place.
static int longest_match(const int32_t *ids, int end) {
    const token_tail t = {ids, NULL, end};
    int longest = 0;
    for (int at = COPY_SHORT; at < end; at++) longest = max_int(longest, copies_match(&t, at, end));
    return longest;
}

// Random texts of few words, which repeat themselves: what is found is there, and long matches are found. cut: to where the
// timeline goes back now and then.
static void check_found(int words, int cut) {
    int32_t ids[COPY_CONTEXT + MOTE_ROWS_MAX], next;
    copy_index *c = index_open(COPY_CONTEXT);
    int found = 0, missed = 0, length;
    for (int n = 0, cuts = 0; n < COPY_CONTEXT - 1; n++) {
        if (cut && n % 50 == 49 && cuts++ < 20) {
            n = random_int(0, n);
            c->indexed = min_int(c->indexed, n);
        }
        const int from = n > 40 && n % 60 > 20 ? random_int(0, 1) : 0;
        ids[n] = from && n % 60 > 25 ? ids[n - 26] : random_int(0, words - 1);
        next = n > 26 ? ids[n - 25] : 0;
        ids[n + 1] = next;
        const int at = copies_find(c, ids, n + 1, &next, 1, &length), longest = longest_match(ids, n + 2);
        if (at) {
            const token_tail t = {ids, &next, n + 1};
            CHECK(at < n + 2 && length >= COPY_SHORT && length == copies_match(&t, at, n + 2) && length <= longest,
                  "%d words: a match of %d tokens at %d of %d", words, length, at, n + 2);
            found++;
        }
        missed += longest >= COPY_LONG && length < COPY_LONG;
    }
    CHECK(found > 10 && missed * 10 <= found, "%d words: %d found, %d long ones missed", words, found, missed);
    index_close(c);
}

// What followed is taken, beyond the end of the timeline too.
static void test_copies_found(void) {
    static const int32_t tokens[] = {1, 2, 3, 4, 5, 1, 2}, same[] = {7, 7, 7};
    int32_t ids[8] = {3};
    int length;
    copy_index *c = index_open(16);
    int at = copies_find(c, tokens, 7, ids, 1, &length);
    CHECK(at == 3 && length == 3, "a match of %d tokens at %d", length, at);
    copies_take(tokens, 7, ids, 1, at, 7);
    static const int32_t want[] = {3, 4, 5, 1, 2, 3, 4, 5};
    CHECK(!memcmp(ids, want, sizeof want), "copied %d %d %d %d %d %d %d", ids[1], ids[2], ids[3], ids[4], ids[5], ids[6], ids[7]);
    ids[0] = 9;
    CHECK(!copies_find(c, tokens, 7, ids, 1, &length), "found what is not there, at %d", at);
    index_close(c);
    c = index_open(16);
    ids[0] = 7;
    at = copies_find(c, same, 3, ids, 1, &length);
    copies_take(same, 3, ids, 1, at, 3);
    CHECK(at == 3 && ids[1] == 7 && ids[2] == 7 && ids[3] == 7, "one token again and again: at %d", at);
    CHECK(!copies_find(c, same, 1, ids, 1, &length), "found before the first token");
    index_close(c);
    for (int words = 2; words < 40; words += words / 2)
        for (int cut = 0; cut < 2; cut++) check_found(words, cut);
}

// A session's index follows its timeline: after rewinding, loading and feeding otherwise copies are those of the new tokens.
static void test_copies_cut(const mote_model *m) {
    static const int32_t first[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2}, second[] = {1, 2, 3, 9, 9, 1, 2};
    mote_session *s = session_of(m, .context = CONTEXT, .threads = 1), *copy = NULL;
    drafts d;
    EXPECT(MOTE_OK, mote_feed(s, first, 3, &failure));
    mote_checkpoint *start = checkpoint_of(s);
    EXPECT(MOTE_OK, mote_feed(s, first + 3, 8, &failure));
    memset(&d, 0, sizeof d);
    d.ids[0] = 3;
    drafts_copy(s, 1, 2, &d);
    CHECK(d.n == 2 && d.ids[1] == 4 && d.ids[2] == 5 && d.of[0] == &s->decoder->spec.copied[0], "%d copies: %d %d", d.n, d.ids[1], d.ids[2]);
    EXPECT(MOTE_OK, mote_clone(s, &copy, &failure));
    d.n = 0;
    drafts_copy(copy, 1, 2, &d);
    CHECK(d.n == 2 && d.ids[1] == 4, "a clone copies %d: %d", d.n, d.ids[1]);
    mote_session_close(copy);
    EXPECT(MOTE_OK, mote_rewind(s, start, &failure));
    EXPECT(MOTE_OK, mote_feed(s, second + 3, 4, &failure));
    drafts_copy(s, 1, 2, &d);
    CHECK(d.n == 2 && d.ids[1] == 9 && d.ids[2] == 9, "after another text %d copies: %d %d", d.n, d.ids[1], d.ids[2]);
    EXPECT(MOTE_OK, mote_reset(s, &failure));
    drafts_copy(s, 1, 2, &d);
    CHECK(d.n == 0, "an empty timeline copies %d", d.n);
    mote_checkpoint_free(start);
    mote_session_close(s);
    s = session_of(m, .context = CONTEXT, .threads = 1, .mtp = MOTE_MTP_OFF);
    CHECK(!s->decoder->copies.ends_short && !s->slot.block_logits && !drafts_most(s, 10, 10), "a session without drafts has their memory");
    mote_session_close(s);
}
