// A part of test_misuse: files in the way of a saved session; sessions of other checkpoints.

// ---- Saved files ----------------------------------------------------------------------------------------------------

static void write_text(const char *path, const char *text) {
    FILE *out = fopen(path, "wb");
    CHECK(out && fputs(text, out) >= 0 && !fclose(out), "%s", path);
}

static int text_is(const char *path, const char *want) {
    char text[64] = "";
    FILE *in = fopen(path, "rb");
    size_t n = in ? fread(text, 1, sizeof text - 1, in) : 0;
    if (in) fclose(in);
    return n == strlen(want) && !strcmp(text, want);
}

static mode_t mode_of(const char *path) {
    struct stat info;
    return lstat(path, &info) ? 0 : info.st_mode;
}

static void test_save_in_the_way(const mote_model *m) {
    mote_session *s = session_on(m, 32, NULL), *t = session_on(m, 32, NULL);
    const char *path = temp_path("session"), *link = temp_path("link"), *fifo = temp_path("fifo");
    feed_some(s, 0, 9);
    temp_empty();
    mode_t before = umask(0);
    EXPECT(MOTE_OK, mote_save_file(s, path, &failure));
    umask(before);
    CHECK((mode_of(path) & 07777) == 0600, "a new file is its owner's alone: %o", (unsigned)mode_of(path));
    CHECK(!chmod(path, 0644), "chmod");
    EXPECT(MOTE_OK, mote_save_file(s, path, &failure));
    CHECK((mode_of(path) & 07777) == 0644, "an old file keeps its permissions: %o", (unsigned)mode_of(path));
    CHECK(!symlink("session", link), "symlink");
    CHECK(!truncate(path, 0), "truncate");
    EXPECT(MOTE_OK, mote_save_file(s, link, &failure));
    CHECK(S_ISLNK(mode_of(link)), "the link is still one");
    EXPECT(MOTE_OK, mote_load_file(t, path, &failure));     // the target was written
    CHECK(temp_entries() == 2, "%d entries", temp_entries());
    CHECK(!unlink(path), "unlink");
    EXPECT(MOTE_EIO, mote_save_file(s, link, &failure));    // leads nowhere now
    CHECK(S_ISLNK(mode_of(link)) && access(path, F_OK), "a link to nothing stays one");
    CHECK(!mkfifo(fifo, 0600), "mkfifo");
    EXPECT(MOTE_EIO, mote_save_file(s, fifo, &failure));
    CHECK(S_ISFIFO(mode_of(fifo)), "a FIFO stays one");
    struct sockaddr_un address = {AF_UNIX, ""};             // in place of a device, which the test must not risk
    snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", temp_dir);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(listener >= 0 && !bind(listener, (struct sockaddr *)&address, sizeof address), "a socket");
    EXPECT(MOTE_EIO, mote_save_file(s, address.sun_path, &failure));
    CHECK(S_ISSOCK(mode_of(address.sun_path)), "a socket stays one");
    CHECK(!close(listener) && !unlink(address.sun_path), "the socket");
    EXPECT(MOTE_EIO, mote_save_file(s, temp_dir, &failure));
    EXPECT(MOTE_EIO, mote_save_file(s, "", &failure));
    EXPECT(MOTE_EIO, mote_save_file(s, temp_path("no folder/session"), &failure));
    CHECK(temp_entries() == 2, "failed saves left something: %d entries", temp_entries());
    mote_session_close(s);
    mote_session_close(t);
}

// The names that an earlier version wrote to, and that anybody may have put there.
static void test_save_beside(const mote_model *m) {
    mote_session *s = session_on(m, 32, NULL);
    const char *path = temp_path("session"), *part = temp_path("session.part"), *victim = temp_path("victim");
    feed_some(s, 0, 9);
    temp_empty();
    write_text(victim, "mine");
    CHECK(!symlink("victim", part), "symlink");
    EXPECT(MOTE_OK, mote_save_file(s, path, &failure));
    CHECK(text_is(victim, "mine") && S_ISLNK(mode_of(part)), "a link beside it, and its target");
    CHECK(!unlink(part), "unlink");
    write_text(part, "mine, too");
    EXPECT(MOTE_OK, mote_save_file(s, path, &failure));
    CHECK(text_is(part, "mine, too"), "a file beside it");
    CHECK(temp_entries() == 3, "%d entries", temp_entries());
    mote_session_close(s);
}

typedef struct saver { mote_session *s; const char *path; int rounds, wrong, *stop; } saver;

static void *save_again(void *argument) {
    saver *me = (saver *)argument;
    for (int i = 0; i < me->rounds; i++) me->wrong += mote_save_file(me->s, me->path, NULL) != MOTE_OK;
    __atomic_add_fetch(me->stop, 1, __ATOMIC_RELEASE);
    return NULL;
}

// Two sessions save to one path while a third one loads from it: every load sees a whole file of one of them.
static void test_concurrent_saves(const mote_model *m) {
    mote_session *a = session_on(m, 64, NULL), *b = session_on(m, 64, NULL);
    mote_session *t = session_on(m, 64, NULL);
    int stop = 0, loads = 0, damaged = 0;
    temp_empty();
    const char *path = temp_path("session");
    feed_some(a, 0, 9);
    feed_some(b, 5, 60);
    saver savers[2] = {{a, path, test_brief ? 20 : 300, 0, &stop}, {b, path, test_brief ? 20 : 300, 0, &stop}};
    pthread_t ids[2];
    EXPECT(MOTE_OK, mote_save_file(a, path, &failure));
    for (int i = 0; i < 2; i++) CHECK(!pthread_create(&ids[i], NULL, save_again, &savers[i]), "a thread");
    while (__atomic_load_n(&stop, __ATOMIC_ACQUIRE) < 2) {
        damaged += mote_load_file(t, path, &failure) != MOTE_OK || (count_of(t) != 9 && count_of(t) != 60);
        loads++;
    }
    for (int i = 0; i < 2; i++) pthread_join(ids[i], NULL);
    CHECK(loads > 0 && !damaged, "%d of %d loads saw a damaged file: %s", damaged, loads, failure.message);
    CHECK(!savers[0].wrong && !savers[1].wrong && temp_entries() == 1, "%d and %d saves failed, %d entries", savers[0].wrong,
          savers[1].wrong, temp_entries());
    mote_session *all[] = {a, b, t};
    for (int i = 0; i < 3; i++) mote_session_close(all[i]);
}

// ---- Another checkpoint ---------------------------------------------------------------------------------------------

static void flip_bit(const char *name, char **bytes, size_t *size, const void *at) {
    if (!strcmp(name, "model.safetensors") && at) (*bytes)[*(const size_t *)at] ^= 1;
    (void)size;
}

typedef struct number { const char *key, *value; } number;

static void edit_number(const char *name, char **bytes, size_t *size, const void *how) {
    const number *n = (const number *)how;
    if (!strcmp(name, "config.json")) set_number(bytes, size, n->key, n->value);
}

// Opens the changed copy, and loads what was saved with the fixture itself.
static void load_changed(const char *bytes, size_t size, int want, const char *what) {
    mote_model *m = model_of(temp_dir, MOTE_WEIGHTS_ONLY);
    mote_session *s = session_on(m, 32, NULL);
    int code = mote_load(s, bytes, size, &failure);
    CHECK(code == want && (!code || strstr(failure.message, "another checkpoint")), "%s changed: %d", what, code);
    mote_session_close(s);
    mote_close(m);
}

// Every tensor in turn has its first bit changed, every number of config.json that leaves the shapes alone another value.
static void test_other_checkpoints(void) {
    static const number numbers[] = {{"rope_theta", "12345.0"}, {"rms_norm_eps", "3e-6"},
                                     {"max_position_embeddings", "777"}, {"num_experts_per_tok", "1"}};
    mote_model *m = model_of(FIXTURE, MOTE_WEIGHTS_ONLY);
    mote_session *s = session_on(m, 32, NULL);
    size_t size, file_size;
    tensor_place t;
    const char *next = NULL;
    char path[128];
    feed_some(s, 0, 5);
    char *bytes = session_bytes(s, &size);
    temp_copy_of(FIXTURE, NULL, NULL);
    load_changed(bytes, size, MOTE_OK, "nothing");
    snprintf(path, sizeof path, "%s/model.safetensors", FIXTURE);
    char *file = file_bytes(path, &file_size);
    for (int i = 0; file && next_tensor(file, &next, &t); i++) {
        if (test_brief && i % 5) continue;
        temp_copy_of(FIXTURE, flip_bit, &t.begin);
        load_changed(bytes, size, MOTE_EINVAL, t.name);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        temp_copy_of(FIXTURE, edit_number, &numbers[i]);
        load_changed(bytes, size, MOTE_EINVAL, numbers[i].key);
    }
    CHECK(next != NULL, "%s: no tensors", path);
    free(file);
    free(bytes);
    mote_session_close(s);
    mote_close(m);
}
