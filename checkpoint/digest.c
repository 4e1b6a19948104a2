/* checkpoint/digest.c: one number for a folder, by which two hosts see that they have the same model in theirs: of config.json, and of the names,
   sizes and samples of all files of weights. */

enum { DIGEST_SAMPLE = 4096, DIGEST_APART = 4 << 20 };      /* bytes of a file that are looked at, and from one to the next */

static int digest_shard(sha256 *to, const shard *s, mote_error *err) {
    unsigned char bytes[DIGEST_SAMPLE];
    const char *name = strrchr(s->path, '/') + 1;
    int code = MOTE_OK;
    sha256_add(to, name, strlen(name) + 1);
    sha256_add(to, &s->size, sizeof s->size);
    for (uint64_t at = 0; s->fd >= 0 && at < s->size && !code; at += DIGEST_APART) {
        const size_t n = s->size - at < DIGEST_SAMPLE ? (size_t)(s->size - at) : (size_t)DIGEST_SAMPLE;
        code = read_at(s->fd, bytes, n, at, s->path, err);
        sha256_add(to, bytes, n);
    }
    return code;
}

static int folder_digest(const char *dir, unsigned char to[SHA256_SIZE], mote_error *err) {
    checkpoint files;
    buf config;
    sha256 s;
    memset(&files, 0, sizeof files);
    memset(&config, 0, sizeof config);
    files.dir = dir;
    sha256_open(&s);
    int code = read_file(dir, "config.json", &config, err);
    if (!code) code = checkpoint_open(&files, dir, 0, err);
    if (!code) sha256_add(&s, config.data, config.size);
    for (int i = 0; i < files.shard_count && !code; i++) code = digest_shard(&s, &files.shards[i], err);
    sha256_close(&s, to);
    checkpoint_close(&files);
    buf_free(&config);
    return code;
}
