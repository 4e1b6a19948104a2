// A part of test_engine: rewinding, copies, saved sessions.

// ---- Rewinding and copies -------------------------------------------------------------------------------------------

static void test_rewind(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .chunk = 5, .threads = 1);
    size_t n;
    mote_checkpoint *empty = checkpoint_of(s);
    feed_to(s, f, 8, "rewind");
    mote_checkpoint *at8 = checkpoint_of(s);
    feed_to(s, f, 9, "rewind");
    mote_checkpoint *at9 = checkpoint_of(s);
    feed_to(s, f, 18, "rewind");
    EXPECT(MOTE_OK, mote_rewind(s, at8, &failure));
    CHECK(mote_tokens(s, &n) && n == 8 && same_row(f, mote_logits(s), 7), "%s: rewound to 8", f->dir);
    EXPECT(MOTE_OK, mote_rewind(s, at9, &failure));
    CHECK(mote_tokens(s, &n) && n == 9 && same_row(f, mote_logits(s), 8), "%s: rewound forward to 9", f->dir);
    feed_to(s, f, 15, "after rewinding forward");
    EXPECT(MOTE_OK, mote_rewind(s, empty, &failure));
    CHECK(mote_tokens(s, &n) && n == 0 && !mote_logits(s), "%s: rewound to the start", f->dir);
    EXPECT(MOTE_OK, mote_rewind(s, at9, &failure));
    feed_to(s, f, 20, "forward again");
    EXPECT(MOTE_OK, mote_rewind(s, at8, &failure));
    feed_to(s, f, f->T, "the rest");
    EXPECT(MOTE_OK, mote_rewind(s, at8, &failure));
    EXPECT(MOTE_OK, mote_rewind(s, at8, &failure));
    feed_to(s, f, f->T, "the rest once more");
    mote_session_close(s);
    mote_checkpoint_free(empty);
    mote_checkpoint_free(at8);
    mote_checkpoint_free(at9);
    mote_checkpoint_free(NULL);
}

// Checkpoints whose tokens are gone are refused, and leave the session as it was.
static void test_stale(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1), *other = session_of(f->m, .context = f->T, .threads = 1);
    int32_t wrong = (f->tokens[6] + 1) % f->vocab;
    size_t size;
    feed_to(s, f, 6, "stale");
    mote_checkpoint *at6 = checkpoint_of(s);
    feed_to(s, f, 12, "stale");
    mote_checkpoint *at12 = checkpoint_of(s);
    EXPECT(MOTE_OK, mote_rewind(s, at6, &failure));
    EXPECT(MOTE_OK, mote_feed(s, &wrong, 1, &failure));
    char *bytes = session_bytes(s, &size);
    EXPECT(MOTE_EINVAL, mote_rewind(s, at12, &failure));
    CHECK(session_is(s, bytes, size), "%s: refused rewind changed the session", f->dir);
    EXPECT(MOTE_OK, mote_rewind(s, at6, &failure));
    EXPECT(MOTE_EINVAL, mote_rewind(s, at12, &failure));
    EXPECT(MOTE_EINVAL, mote_rewind(s, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_rewind(other, at6, &failure));
    feed_to(s, f, 12, "the checkpoint's tokens again");
    EXPECT(MOTE_OK, mote_rewind(s, at12, &failure));
    mote_reset(s, NULL);
    EXPECT(MOTE_EINVAL, mote_rewind(s, at6, &failure));
    feed_to(s, f, 7, "after a reset");
    EXPECT(MOTE_OK, mote_rewind(s, at6, &failure));
    feed_to(s, f, f->T, "to the end");
    mote_checkpoint_free(at6);
    mote_checkpoint_free(at12);
    mote_session_close(s);
    mote_session_close(other);
    free(bytes);
}

// The same tokens after another beginning: what the session still holds of them was computed from that beginning.
static void test_stale_rows(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1);
    int32_t other = (f->tokens[0] + 1) % f->vocab;
    size_t size;
    feed_to(s, f, 6, "stale rows");
    char *bytes = session_bytes(s, &size);
    feed_to(s, f, 12, "stale rows");
    mote_checkpoint *at12 = checkpoint_of(s);
    for (int i = 0; i < 2; i++) {
        mote_reset(s, NULL);
        EXPECT(MOTE_OK, mote_feed(s, &other, 1, &failure));
        EXPECT(MOTE_OK, mote_feed(s, f->tokens + 1, 11, &failure));
        mote_reset(s, NULL);
        if (i) EXPECT(MOTE_OK, mote_load(s, bytes, size, &failure));
        else feed_to(s, f, 6, "stale rows");
        EXPECT(MOTE_EINVAL, mote_rewind(s, at12, &failure));
        feed_to(s, f, 12, "stale rows");
    }
    free(bytes);
    mote_checkpoint_free(at12);
    mote_session_close(s);
}

static void test_clone(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T, .chunk = 3, .threads = 2), *a = NULL, *b = NULL;
    int32_t wrong = (f->tokens[10] + 1) % f->vocab;
    EXPECT(MOTE_OK, mote_clone(s, &b, &failure));
    feed_to(b, f, 4, "clone of an empty session");
    mote_session_close(b);
    feed_to(s, f, 10, "clone");
    EXPECT(MOTE_OK, mote_clone(s, &a, &failure));
    CHECK(same_row(f, mote_logits(a), 9), "%s: logits of a clone", f->dir);
    EXPECT(MOTE_OK, mote_feed(s, &wrong, 1, &failure));
    EXPECT(MOTE_OK, mote_clone(a, &b, &failure));
    mote_session_close(s);
    feed_to(a, f, f->T, "clone");
    mote_session_close(a);
    feed_to(b, f, f->T, "clone of a clone");
    mote_session_close(b);
}

static void test_reset_and_full(const fixture *f) {
    mote_session *s = session_of(f->m, .context = 20, .chunk = 6, .threads = 1);
    size_t n;
    int32_t id = -7;
    feed_to(s, f, 13, "reset");
    mote_reset(s, NULL);
    CHECK(mote_tokens(s, &n) && n == 0 && !mote_logits(s), "%s: reset", f->dir);
    EXPECT(MOTE_EINVAL, mote_step(s, NULL, &id, &failure));
    EXPECT(MOTE_EINVAL, mote_generate(s, NULL, NULL, &failure));
    EXPECT(MOTE_ECONTEXT, mote_feed(s, f->tokens, 21, &failure));
    CHECK(mote_tokens(s, &n) && n == 0, "%s: nothing is fed when not all fits", f->dir);
    feed_to(s, f, 20, "after a reset");
    EXPECT(MOTE_ECONTEXT, mote_feed(s, f->tokens, 1, &failure));
    EXPECT(MOTE_ECONTEXT, mote_step(s, NULL, &id, &failure));
    CHECK(id == -7 && same_row(f, mote_logits(s), 19), "%s: a full session stays as it was", f->dir);
    EXPECT(MOTE_OK, mote_sample(s, NULL, &id, &failure));
    mote_result r;
    EXPECT(MOTE_OK, mote_generate(s, NULL, &r, &failure));
    CHECK(r.stop == MOTE_STOP_CONTEXT && r.generated_tokens == 0, "%s: generating with a full context", f->dir);
    EXPECT(MOTE_OK, mote_feed(s, f->tokens, 0, &failure));
    mote_session_close(s);
}

// ---- Saved sessions -------------------------------------------------------------------------------------------------

// Saved after blocks of 1 to `most` tokens, and loaded into sessions of other sizes, used or not.
static void test_save(const fixture *f, int most) {
    mote_session *s = session_of(f->m, .context = f->T, .chunk = most, .threads = 1);
    mote_session *used = session_of(f->m, .context = f->T + 9, .chunk = 64, .threads = 2);
    for (int i = 0, n = 0; n <= 12; i++, n += 1 + i % most) {
        size_t size, needed;
        if (n) feed_to(s, f, n, "save");
        char *bytes = session_bytes(s, &size);
        EXPECT(MOTE_EINVAL, mote_save(s, bytes, size - 1, &needed, &failure));
        CHECK(needed == size, "%s: size needed", f->dir);
        mote_session *fresh = session_of(f->m, .context = n + 2, .chunk = 2, .threads = 1);
        EXPECT(MOTE_OK, mote_load(fresh, bytes, size, &failure));
        EXPECT(MOTE_OK, mote_load(used, bytes, size, &failure));
        CHECK(session_is(fresh, bytes, size) && session_is(used, bytes, size), "%s: saved again after %d", f->dir, n);
        CHECK(n ? same_row(f, mote_logits(used), n - 1) : !mote_logits(used), "%s: loaded after %d", f->dir, n);
        feed_to(fresh, f, n + 1, "loaded");
        feed_to(fresh, f, n + 2, "loaded");
        feed_to(used, f, n + 7, "loaded");
        CHECK(session_is(s, bytes, size), "%s: saving changed the session", f->dir);
        mote_session_close(fresh);
        free(bytes);
    }
    feed_to(s, f, f->T, "saved");
    mote_session_close(s);
    mote_session_close(used);
}

// Damaged bytes are refused, and the session stays as it was. (test_session damages every bit of the header.)
static void test_refused_bytes(const fixture *f) {
    mote_session *s = session_of(f->m, .context = f->T), *t = session_of(f->m, .context = f->T);
    mote_session *small = session_of(f->m, .context = 9);
    size_t size, before;
    feed_to(s, f, 10, "damage");
    feed_to(t, f, 7, "damage");
    char *bytes = session_bytes(s, &size), *old = session_bytes(t, &before);
    EXPECT(MOTE_EFORMAT, mote_load(t, bytes, size - 1, &failure));
    EXPECT(MOTE_EFORMAT, mote_load(t, bytes, size + 1, &failure));
    EXPECT(MOTE_EFORMAT, mote_load(t, bytes, 0, &failure));
    EXPECT(MOTE_EINVAL, mote_load(t, NULL, 0, &failure));
    EXPECT(MOTE_ECONTEXT, mote_load(small, bytes, size, &failure));
    bytes[size / 2] ^= 1;
    EXPECT(MOTE_EFORMAT, mote_load(t, bytes, size, &failure));
    CHECK(session_is(t, old, before), "%s: refused bytes changed the session", f->dir);
    feed_to(t, f, f->T, "after refused bytes");
    free(bytes);
    free(old);
    close_all((mote_session *[]){s, t, small}, 3);
}

static void test_save_files(const fixture *f) {
    const char *path = temp_path("session"), *bad = temp_path("none/session");
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1), *t = session_of(f->m, .context = f->T, .threads = 1);
    size_t size, before;
    temp_empty();
    feed_to(s, f, 9, "file");
    EXPECT(MOTE_OK, mote_save_file(s, path, &failure));
    feed_to(s, f, f->T < 13 ? f->T : 13, "file");
    EXPECT(MOTE_OK, mote_save_file(s, path, &failure));                 /* over the old one */
    EXPECT(MOTE_OK, mote_load_file(t, path, &failure));
    feed_to(t, f, f->T, "from a file");
    char *bytes = session_bytes(s, &size), *old = session_bytes(t, &before);
    EXPECT(MOTE_EIO, mote_save_file(s, bad, &failure));
    EXPECT(MOTE_EINVAL, mote_save_file(s, NULL, &failure));
    EXPECT(MOTE_EIO, mote_save_file(s, temp_dir, &failure));                 /* a folder */
    EXPECT(MOTE_EIO, mote_load_file(t, bad, &failure));
    EXPECT(MOTE_EIO, mote_load_file(t, temp_dir, &failure));
    EXPECT(MOTE_EINVAL, mote_load_file(t, NULL, &failure));
    write_bytes(path, bytes, size - 5);
    EXPECT(MOTE_EFORMAT, mote_load_file(t, path, &failure));
    write_bytes(path, bytes, 0);
    EXPECT(MOTE_EFORMAT, mote_load_file(t, path, &failure));
    CHECK(session_is(t, old, before), "%s: failed loads changed the session", f->dir);
    CHECK(temp_entries() == 1, "%d files: a failed save left one", temp_entries());
    free(bytes);
    free(old);
    mote_session_close(s);
    mote_session_close(t);
}
