// A part of test_session: keys and values of each type, saved bytes.

// ---- Keys and values ------------------------------------------------------------------------------------------------

static mote_session *kv_session(const fixture *f, int chunk, int kv) {
    return session_of(f->m, .context = f->T + chunk, .chunk = chunk, .threads = 1, .kv = kv);
}

// Saved as one type and loaded as another, the rows are those of the first rounded to the second; and back.
static void test_kv_conversion(const fixture *f, int from, int to) {
    mote_session *s = kv_session(f, 0, from), *t = kv_session(f, 5, to);
    mote_session *back = kv_session(f, 0, from);
    size_t size, other, wide = (size_t)(f->m->largest.attention.kv_heads * f->m->largest.attention.head_dim), n = 13 * wide;
    float *want = (float *)allocate(n * 4), *got = (float *)allocate(n * 4), *twice = (float *)allocate(n * 4);
    advance(s, f, 13);
    advance(t, f, 6);
    char *bytes = session_bytes(s, &size);
    EXPECT(MOTE_OK, mote_load(t, bytes, size, &failure));
    CHECK(t->o.kv == to && t->count == 13 && same_logits(t, s->slot.logits, f->vocab), "%s: KV type %d to %d", f->dir, from, to);
    char *converted = session_bytes(t, &other);
    EXPECT(MOTE_OK, mote_load(back, converted, other, &failure));
    for (int i = 0; i < 2 * f->m->c.layers + 2; i++) {
        const attention_state *r = &s->slot.state[i / 2].attention, *u = &t->slot.state[i / 2].attention;
        const attention_state *w = &back->slot.state[i / 2].attention;
        if (i / 2 < f->m->c.layers ? f->m->layers[i / 2].mixer.kind != LAYER_ATTENTION : !s->slot.has_mtp) continue;
        kv_convert((char *)want, DTYPE_F32, (const char *)(i % 2 ? r->v : r->k), kv_type_of(s->o.kv), n);
        kv_convert((char *)twice, DTYPE_F32, (const char *)(i % 2 ? w->v : w->k), kv_type_of(s->o.kv), n);
        kv_convert((char *)got, DTYPE_F32, (const char *)(i % 2 ? u->v : u->k), kv_type_of(t->o.kv), n);
        int wrong = 0, kept = 0;
        for (size_t j = 0; j < n - (i / 2 == f->m->c.layers ? wide : 0); j++) {
            float rounded = to == MOTE_KV_BF16 ? float_of_bf16(bf16_of_float(want[j]))
                          : to == MOTE_KV_FP8 ? float_of_fp8(fp8_of_float(want[j])) : want[j];
            wrong += got[j] != rounded;
            kept += twice[j] == want[j];
        }
        CHECK(!wrong && (from < to || kept), "%s: KV type %d to %d: %d values", f->dir, from, to, wrong);
    }
    advance(t, f, f->T);
    mote_session *all[] = {s, t, back};
    for (int i = 0; i < 3; i++) mote_session_close(all[i]);
    void *memory[] = {bytes, converted, want, got, twice};
    for (int i = 0; i < 5; i++) free(memory[i]);
}

// ---- Saved bytes ----------------------------------------------------------------------------------------------------

// A damaged copy is refused with the code, and the session stays as it was.
static void refuse_bytes(mote_session *s, const char *bytes, size_t size, int want, const char *what) {
    size_t n;
    char *before = session_bytes(s, &n);
    memset(&failure, 0, sizeof failure);
    int code = mote_load(s, bytes, size, &failure);
    CHECK(code == want && failure.code == want && failure.message[0], "%s: %d, expected %d: %s", what, code, want,
          failure.message);
    CHECK(session_is(s, before, n), "%s: the session changed", what);
    free(before);
}

static void test_damaged_saves(const fixture *f, const fixture *other) {
    mote_session *s = session_of(f->m, .context = f->T, .threads = 1), *t = session_of(f->m, .context = f->T, .threads = 1);
    mote_session *foreign = session_of(other->m, .context = f->T, .threads = 1);
    mote_session *small = session_of(f->m, .context = 9, .threads = 1);
    size_t size;
    feed_to(s, f, 10, "damage");
    feed_to(t, f, 7, "damage");
    feed_to(small, f, 2, "damage");
    char *bytes = session_bytes(s, &size);
    for (size_t n = 0; n < size; n += n < 100 ? 1 : size / 37) refuse_bytes(t, bytes, n, MOTE_EFORMAT, "truncated");
    refuse_bytes(t, bytes, size + 1, MOTE_EFORMAT, "too long");
    refuse_bytes(t, NULL, 0, MOTE_EINVAL, "no bytes");
    refuse_bytes(small, bytes, size, MOTE_ECONTEXT, "too small a context");
    refuse_bytes(foreign, bytes, size, MOTE_EINVAL, "another checkpoint");
    for (size_t bit = 0; bit < 8 * sizeof(saved_header); bit++) {
        size_t at = bit / 8;
        int in_count = at >= offsetof(saved_header, count) && at < offsetof(saved_header, generated_from);
        int in_ranks = bit >= 8 * offsetof(saved_header, has) + 8 && bit < 8 * offsetof(saved_header, has) + 14;
        bytes[at] = (char)(bytes[at] ^ 1 << bit % 8);
        if (at < offsetof(saved_header, fingerprint)) refuse_bytes(t, bytes, size, MOTE_EFORMAT, "another magic");
        else if (at < offsetof(saved_header, checksum)) refuse_bytes(t, bytes, size, MOTE_EINVAL, "another fingerprint");
        else if (in_count) {
            int32_t count;
            memcpy(&count, bytes + offsetof(saved_header, count), 4);
            refuse_bytes(t, bytes, size, count > f->T ? MOTE_ECONTEXT : MOTE_EFORMAT, "another count");
        } else {
            refuse_bytes(t, bytes, size, in_ranks ? MOTE_EINVAL : MOTE_EFORMAT, "another checksum or field");
        }
        bytes[at] = (char)(bytes[at] ^ 1 << bit % 8);
    }
    bytes[size / 2] ^= 1;
    refuse_bytes(t, bytes, size, MOTE_EFORMAT, "a bit of the state");
    memset(bytes + sizeof(saved_header), 0x7f, 4);
    saved_header *header = (saved_header *)(void *)bytes;
    header->checksum = saved_checksum(bytes, size);
    refuse_bytes(t, bytes, size, MOTE_EFORMAT, "an id outside the vocabulary");
    feed_to(t, f, f->T, "after all refusals");
    free(bytes);
    mote_session *all[] = {s, t, foreign, small};
    for (int i = 0; i < 4; i++) mote_session_close(all[i]);
}

// Damaged copies of every type; one of a type that there is not has a checksum that fits.
static void test_kv_damage(const fixture *f, int kv) {
    mote_session *s = kv_session(f, 0, kv), *t = kv_session(f, 0, MOTE_KV_BF16);
    size_t size;
    saved_header h;
    advance(s, f, 8);
    advance(t, f, 5);
    char *bytes = session_bytes(s, &size);
    refuse_bytes(t, bytes, size - 1, MOTE_EFORMAT, "KV rows cut off");
    refuse_bytes(t, bytes, size + 1, MOTE_EFORMAT, "too long");
    memcpy(&h, bytes, sizeof h);
    for (int32_t other = -1; other <= 5; other++) {
        saved_header changed = h;
        changed.kv = other;
        memcpy(bytes, &changed, sizeof h);
        changed.checksum = saved_checksum(bytes, size);
        memcpy(bytes, &changed, sizeof h);
        if (other != kv && (f->m->report.info.kv_bytes_per_token > 0 || f->mtp))
            refuse_bytes(t, bytes, size, MOTE_EFORMAT, "another KV type");
        changed.kv = kv;
        changed.has = other;
        memcpy(bytes, &changed, sizeof h);
        changed.checksum = saved_checksum(bytes, size);
        memcpy(bytes, &changed, sizeof h);
        if (other != h.has) refuse_bytes(t, bytes, size, MOTE_EFORMAT, "other MTP rows");
    }
    memcpy(bytes, &h, sizeof h);
    bytes[size - 1] ^= 1;
    refuse_bytes(t, bytes, size, MOTE_EFORMAT, "a bit of the last row");
    bytes[size - 1] ^= 1;
    EXPECT(MOTE_OK, mote_load(t, bytes, size, &failure));
    free(bytes);
    mote_session_close(s);
    mote_session_close(t);
}

// Equal timelines have equal bytes, whatever the session held before: one that was used and reset, one that had other rows in its logs.
static void test_canonical(const fixture *f, int kv) {
    mote_session *s = kv_session(f, 0, kv), *t = kv_session(f, 0, kv);
    mote_generation g = {.max_tokens = 5};
    for (int tokens = 0; tokens <= f->T; tokens += tokens < 2 ? 1 : 7) {
        size_t size;
        advance(t, f, f->T - 7);
        EXPECT(MOTE_OK, mote_generate(t, &g, NULL, &failure));
        EXPECT(MOTE_OK, mote_reset(s, &failure));
        EXPECT(MOTE_OK, mote_reset(t, &failure));
        mote_session *fresh = kv_session(f, 0, kv);
        advance(fresh, f, tokens);
        advance(s, f, tokens);
        advance(t, f, tokens);
        char *bytes = session_bytes(fresh, &size);
        CHECK(session_is(s, bytes, size), "%s: %d tokens after as many: other bytes", f->dir, tokens);
        CHECK(session_is(t, bytes, size), "%s: %d tokens after a longer text: other bytes", f->dir, tokens);
        EXPECT(MOTE_OK, mote_load(t, bytes, size, &failure));
        CHECK(session_is(t, bytes, size), "%s: %d tokens, loaded: other bytes", f->dir, tokens);
        free(bytes);
        mote_session_close(fresh);
        EXPECT(MOTE_OK, mote_reset(t, &failure));
    }
    // Two rows in a log that held five before, and four.
    EXPECT(MOTE_OK, mote_reset(s, &failure));
    static const int of_s[] = {5, 7}, of_t[] = {4, 5, 7};
    for (int i = 0; i < 2; i++) advance(s, f, of_s[i]);
    for (int i = 0; i < 3; i++) advance(t, f, of_t[i]);
    size_t size;
    char *bytes = session_bytes(s, &size);
    CHECK(session_is(t, bytes, size), "%s: a log of two rows after longer ones: other bytes", f->dir);
    free(bytes);
    mote_session_close(s);
    mote_session_close(t);
}

// A checkpoint that outlives its model, and another model where that one was: the two change places. Synthetic ones are told
// apart by their shapes and formats.
static void test_dangling_checkpoint(const char *name, const char *other) {
    static const int32_t ids[] = {3, 4, 5, 6, 7};
    mote_options o = {.device = "cpu"};
    mote_model *m[2], whole;
    for (int i = 0; i < 2; i++) EXPECT(MOTE_OK, mote_open_synthetic(i ? other : name, &o, &m[i], &failure));
    mote_session *s = session_of(m[0], .context = 32, .threads = 1);
    EXPECT(MOTE_OK, mote_feed(s, ids, 5, &failure));
    mote_checkpoint *c = checkpoint_of(s);
    float *logits = (float *)allocate((size_t)m[0]->c.vocab * sizeof *logits);
    memcpy(logits, mote_logits(s), (size_t)m[0]->c.vocab * sizeof *logits);
    mote_session_close(s);
    whole = *m[0];
    *m[0] = *m[1];
    *m[1] = whole;
    for (int i = 0; i < 2; i++) {
        s = session_of(m[i], .context = 32, .threads = 1);
        EXPECT(MOTE_OK, mote_feed(s, ids, 5, &failure));
        if (i) EXPECT(MOTE_OK, mote_feed(s, ids, 2, &failure));
        EXPECT(i ? MOTE_OK : MOTE_EINVAL, mote_rewind(s, c, &failure));
        CHECK(count_of(s) == 5 && same_logits(s, logits, m[1]->c.vocab) == i, "%s, %s: model %d's state", name, other, i);
        mote_session_close(s);
    }
    s = session_of(m[1], .context = 32, .threads = 1, .kv = MOTE_KV_BF16);
    EXPECT(MOTE_OK, mote_feed(s, ids, 5, &failure));
    EXPECT(MOTE_EINVAL, mote_rewind(s, c, &failure));
    mote_session_close(s);
    mote_checkpoint_free(c);
    free(logits);
    for (int i = 0; i < 2; i++) mote_close(m[i]);
}

// A model is there as long as a session of it is.
static void test_closed_model(const fixture *f) {
    mote_model *m = model_of(f->dir, MOTE_WEIGHTS_ONLY);
    mote_session *s = session_of(m, .context = f->T, .threads = 1), *clone = NULL;
    EXPECT(MOTE_OK, mote_feed(s, f->tokens, 5, &failure));
    mote_close(m);
    EXPECT(MOTE_OK, mote_clone(s, &clone, &failure));
    mote_session_close(s);
    EXPECT(MOTE_OK, mote_feed(clone, f->tokens + 5, 5, &failure));
    CHECK(same_logits(clone, plain_row(f, 9), f->vocab), "%s: other logits when its model was closed", f->dir);
    mote_session_close(clone);
}
