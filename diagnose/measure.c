/* diagnose/measure.c: how fast the CPU reads memory, by the threads that a session would have. Knows no layers. */

enum { READ_PIECE = 4 << 20, READ_ENOUGH = 256 << 20, READ_MOST = 1 << 30, READ_TIMES = 8 };   /* bytes; passes */

typedef struct read_job {
    const char *from;
    size_t bytes;
    uint64_t mixed[MAX_THREADS];   /* what was read, so that the compiler cannot leave it out */
} read_job;

/* In registers of 128 bits, which every processor has: on a Zen 4 those of 512 read a tenth to a fifth less. */
static void read_pieces(void *context, int begin, int end, int thread) {
    read_job *job = (read_job *)context;
    size_t last = (size_t)end * READ_PIECE < job->bytes ? (size_t)end * READ_PIECE : job->bytes;
    const uint64_t *word = (const uint64_t *)(const void *)job->from;
    uint64_t mixed[32] = {0};
    for (size_t i = (size_t)begin * READ_PIECE / 8; i + 32 <= last / 8; i += 32)
        for (int k = 0; k < 32; k++) mixed[k] ^= word[i + (size_t)k];
    for (int k = 0; k < 32; k++) job->mixed[thread] ^= mixed[k];
}

/* Bytes per second of the best of some passes over `bytes` of memory. */
static double cpu_read_speed(pool *threads, const char *from, size_t bytes) {
    read_job job;
    double best = 0;
    memset(&job, 0, sizeof job);
    job.from = from;
    job.bytes = bytes;
    for (int i = 0; i < READ_TIMES; i++) {
        double start = seconds();
        parallel(threads, (int)((bytes - 1) / READ_PIECE) + 1, read_pieces, &job);
        double speed = (double)bytes / (seconds() - start);
        if (speed > best) best = speed;
    }
    return best;
}

/* Of the weights, or, where they are few and would stay in a cache, of other memory. threads: 0: one for each processor. */
static int measure_cpu_read(const mote_model *m, int threads, double *bytes_per_second, mote_error *err) {
    size_t bytes = m->arena_size < (size_t)READ_MOST ? m->arena_size : (size_t)READ_MOST;
    char *more = NULL;
    if (bytes < READ_ENOUGH) {
        bytes = READ_ENOUGH;
        more = (char *)aligned_alloc(64, bytes);
        if (!more) return fail_memory(err);
        memset(more, 1, bytes);
    }
    pool *p = pool_open(threads ? threads : processors());
    if (p) *bytes_per_second = cpu_read_speed(p, more ? more : m->arena, bytes);
    pool_close(p);
    free(more);
    return p ? MOTE_OK : fail(err, MOTE_ENOMEM, "the system gives no %d threads", threads ? threads : processors());
}
