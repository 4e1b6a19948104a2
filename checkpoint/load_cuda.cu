/* checkpoint/load_cuda.cu: reads the weights of a checkpoint into GPU memory, or, of experts that lie there, into the host's. It touches the
   files, the arena and the fingerprint; it knows items (load.c), not layers.

   A few threads read the files into pinned buffers: from the page cache what is there, the rest past it (O_DIRECT). Each has
   two: while one is copied to the GPU on the thread's own stream, it reads into the other. When all is read, they and the
   caller's thread take the items that are converted, one by one, through the page cache.

   Threads take pieces by an atomic counter and write disjoint parts of the arena. What they share is atomic or, like the
   first failure, under a lock. The fingerprint is a sum, so their order does not matter. */

enum {
    LOAD_THREADS = 8, LOAD_BUFFERS = 2,                        /* buffers of each thread */
    LOAD_PIECE = 8 << 20, LOAD_GAP = 64 << 10,                 /* bytes: of a buffer; largest gap that is read over */
    LOAD_ALIGN = 4096                                          /* bytes: offsets, sizes and buffers of direct I/O */
};

typedef struct load_piece {                                    /* of a file; aligned, it fits a buffer */
    int file;
    uint64_t begin, end;
    size_t first;                                              /* first item with bytes in it */
} load_piece;

typedef struct gpu_loader {
    const mote_model *m;
    const checkpoint *files;
    const load_item *items;                                    /* sorted by file and offset */
    size_t item_count;
    buf pieces;                                                /* struct load_piece */
    int *direct;                                               /* [shards] opened with O_DIRECT, or -1 */
    char *buffers;                                             /* pinned, [LOAD_THREADS][LOAD_BUFFERS][LOAD_PIECE] */
    size_t next;                                               /* piece to be taken next (atomic) */
    size_t next_item;                                          /* item to be looked at next, is it converted? (atomic) */
    uint64_t done;                                             /* bytes read (atomic) */
    uint64_t sample;                                           /* sum of sample_bytes (atomic) */
    int running, stop;                                         /* threads that run; whether they must end (atomic) */
    pthread_mutex_t lock;
    mote_error err;                                            /* the first failure */
} gpu_loader;

typedef struct gpu_reader { gpu_loader *of; pthread_t id; char *buffers; } gpu_reader;

/* Records the first failure and makes all threads end. */
static void loader_failed(gpu_loader *l, const mote_error *err) {
    pthread_mutex_lock(&l->lock);
    if (!l->err.code) l->err = *err;
    pthread_mutex_unlock(&l->lock);
    __atomic_store_n(&l->stop, 1, __ATOMIC_RELEASE);
}

/* On a GPU that shares the host's memory: gives back what of a file is in the page cache; the weights need the memory. n 0: to its
   end. */
static void leave_cache(const gpu_loader *l, const shard *s, uint64_t offset, size_t n) {
    if (l->m->device.integrated) (void)posix_fadvise(s->fd, (off_t)offset, (off_t)n, POSIX_FADV_DONTNEED);
}

/* Cuts what the items cover into pieces of up to LOAD_PIECE bytes; items with small gaps between them share one. Items may
   overlap: part of a tensor beside all of it. */
static int loader_cut(gpu_loader *l) {
    load_piece *p = NULL;
    for (size_t i = 0; i < l->item_count; i++) {
        const load_item *item = &l->items[i];
        uint64_t at = item->from->begin + item->offset, end = at + item->size;
        if (p && p->file == item->from->file && at < p->end) at = p->end < end ? p->end : end;
        const uint64_t number = component_bytes(item_component(item), 1);       /* is not cut */
        while (!item_converts(item) && at < end) {
            uint64_t limit = p ? p->begin / LOAD_ALIGN * LOAD_ALIGN + LOAD_PIECE : 0;
            if (!p || p->file != item->from->file || at > p->end + LOAD_GAP || at + number > limit) {
                p = (load_piece *)buf_add(&l->pieces, NULL, sizeof *p);
                if (!p) return 0;
                p->file = item->from->file;
                p->begin = at;
                p->first = i;
                limit = at / LOAD_ALIGN * LOAD_ALIGN + LOAD_PIECE;
            }
            p->end = at = end < limit ? end : limit - (limit - at) % number;
        }
    }
    return 1;
}

/* Is all of [offset, offset + n) of a file in the page cache? No, too, where the kernel does not tell: before Linux 6.5, or of
   another user's file. (A read with RWF_NOWAIT would tell everywhere, but may start to read ahead.) */
static int is_cached(int fd, uint64_t offset, size_t n) {
    enum { CACHESTAT = 451 };                                  /* cachestat(2), on every machine */
    const struct { uint64_t offset, size; } range = {offset, n};
    struct { uint64_t cached, dirty, writeback, evicted, recently_evicted; } pages;
    return syscall(CACHESTAT, fd, &range, &pages, 0) == 0 && pages.cached * (uint64_t)sysconf(_SC_PAGESIZE) >= n;
}

/* Reads n bytes from an aligned offset into an aligned buffer that has capacity for whole blocks: what is not in the page cache by
   direct I/O as far as it goes (not every file system has it, and it ends at the last whole block of a file), the rest through it. */
static int read_piece(const gpu_loader *l, int file, char *to, size_t n, uint64_t offset, mote_error *err) {
    const shard *s = &l->files->shards[file];
    const int direct = is_cached(s->fd, offset, n) ? -1 : l->direct[file];
    size_t done = 0;
    while (direct >= 0 && done < n && done % LOAD_ALIGN == 0) {
        size_t ask = (n - done + LOAD_ALIGN - 1) / LOAD_ALIGN * LOAD_ALIGN;
        ssize_t got = pread(direct, to + done, ask, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        done += (size_t)got;
    }
    int code = done < n ? read_at(s->fd, to + done, n - done, offset + done, s->path, err) : MOTE_OK;
    leave_cache(l, s, offset, n);
    return code;
}

/* Reads a piece, checks it, and starts copying each item's part to its place in the arena. */
static int reader_piece(gpu_loader *l, const load_piece *p, char *buffer, cudaStream_t stream, mote_error *err) {
    uint64_t base = p->begin / LOAD_ALIGN * LOAD_ALIGN;
    int code = read_piece(l, p->file, buffer, (size_t)(p->end - base), base, err);
    for (size_t i = p->first; !code && i < l->item_count; i++) {
        const load_item *item = &l->items[i];
        uint64_t begin = item->from->begin + item->offset, end = begin + item->size;
        if (item->from->file != p->file || begin >= p->end) break;
        if (item_converts(item)) continue;
        uint64_t low = begin > p->begin ? begin : p->begin, high = end < p->end ? end : p->end;
        if (low >= high) continue;
        const char *bytes = buffer + (low - base);
        code = check_numbers(l->files, item, bytes, (size_t)(low - begin), (size_t)(high - low), err);
        if (code) break;
        char *to = item_memory(l->m, item) + (low - begin);
        cudaError_t status = cudaSuccess;
        if (item->in_host) memcpy(to, bytes, (size_t)(high - low));
        else status = cudaMemcpyAsync(to, bytes, (size_t)(high - low), cudaMemcpyHostToDevice, stream);
        if (status != cudaSuccess) code = gpu_fail(err, status, "copying weights to the GPU");
        if (code) break;
        __atomic_add_fetch(&l->done, high - low, __ATOMIC_RELAXED);
        if (item->again) continue;
        __atomic_add_fetch(&l->sample, sample_bytes(l->files, item->from, item->offset, item->size, bytes, (size_t)(low - begin),
                                                    (size_t)(high - low)),
                           __ATOMIC_RELAXED);
    }
    return code;
}

/* Reads pieces until none are left. A buffer is overwritten only after the event that follows its copies: they read it. */
static int reader_pieces(gpu_loader *l, char *buffers, cudaStream_t stream, const cudaEvent_t *copied,
                         mote_error *err) {
    for (size_t n = 0; !__atomic_load_n(&l->stop, __ATOMIC_ACQUIRE); n++) {
        size_t slot = n % LOAD_BUFFERS, i = __atomic_fetch_add(&l->next, 1, __ATOMIC_RELAXED);
        if (i >= l->pieces.size / sizeof(load_piece)) break;
        cudaError_t status = n < LOAD_BUFFERS ? cudaSuccess : cudaEventSynchronize(copied[slot]);
        if (status != cudaSuccess) return gpu_fail(err, status, "copying weights to the GPU");
        int code = reader_piece(l, (const load_piece *)(void *)l->pieces.data + i, buffers + slot * LOAD_PIECE, stream,
                                err);
        if (code) return code;
        status = cudaEventRecord(copied[slot], stream);
        if (status != cudaSuccess) return gpu_fail(err, status, "copying weights to the GPU");
    }
    return MOTE_OK;
}

/* Loads the next item that is converted; *done: there is none. */
static int loader_converted(gpu_loader *l, int *done, mote_error *err) {
    const load_item *item = NULL;
    uint64_t sample = 0;
    while (!item) {
        size_t i = __atomic_fetch_add(&l->next_item, 1, __ATOMIC_RELAXED);
        *done = i >= l->item_count;
        if (*done) return MOTE_OK;
        if (item_converts(&l->items[i])) item = &l->items[i];
    }
    char *to = item_memory(l->m, item);
    void *held = item->in_host ? to : malloc(item_held(item));
    int code = held ? load_converted(l->m, l->files, item, held, &sample, err) : fail_memory(err);
    cudaError_t status = code || held == to ? cudaSuccess : cudaMemcpy(to, held, item_held(item), cudaMemcpyHostToDevice);
    if (held != to) free(held);
    if (status != cudaSuccess) return gpu_fail(err, status, "copying weights to the GPU");
    if (!item->again) __atomic_add_fetch(&l->sample, sample, __ATOMIC_RELAXED);
    if (!code) __atomic_add_fetch(&l->done, item->size, __ATOMIC_RELAXED);
    return code;
}

static void *reader_main(void *argument) {
    gpu_reader *me = (gpu_reader *)argument;
    gpu_loader *l = me->of;
    cudaStream_t stream = NULL;
    cudaEvent_t copied[LOAD_BUFFERS];
    mote_error err;
    int events = 0, code = MOTE_OK, done = 0;
    cudaError_t status = cudaSetDevice(l->m->device.gpu);
    if (status == cudaSuccess) status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (status != cudaSuccess) stream = NULL;
    while (status == cudaSuccess && events < LOAD_BUFFERS) {
        status = cudaEventCreateWithFlags(&copied[events], cudaEventDisableTiming);
        events += status == cudaSuccess;
    }
    if (status != cudaSuccess) code = gpu_fail(&err, status, "starting a stream");
    else code = reader_pieces(l, me->buffers, stream, copied, &err);
    while (!code && !done && !__atomic_load_n(&l->stop, __ATOMIC_ACQUIRE)) code = loader_converted(l, &done, &err);
    if (stream) status = cudaStreamSynchronize(stream);        /* also after a failure: the copies read the buffers */
    if (!code && status != cudaSuccess) code = gpu_fail(&err, status, "copying weights to the GPU");
    for (int i = 0; i < events; i++) (void)cudaEventDestroy(copied[i]);
    if (stream) (void)cudaStreamDestroy(stream);
    if (code) loader_failed(l, &err);
    __atomic_sub_fetch(&l->running, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* The caller's part while the threads read: items that are converted, progress reports, cancelling. */
static void loader_run(gpu_loader *l, uint64_t total, const mote_callbacks *callbacks) {
    struct timespec pause;
    mote_error err;
    int code = MOTE_OK, done = 0;
    memset(&pause, 0, sizeof pause);
    pause.tv_nsec = 1000000;
    for (size_t i = 0; !done || __atomic_load_n(&l->running, __ATOMIC_ACQUIRE); i++) {
        if (__atomic_load_n(&l->stop, __ATOMIC_ACQUIRE)) break;
        if (cancelled(callbacks))
            code = fail(&err, MOTE_ECANCELLED, "%s: loading was cancelled", l->files->dir);
        else if (!done) code = loader_converted(l, &done, &err);
        if (i % 64 == 0 || done)
            report(callbacks, "loading weights", (double)__atomic_load_n(&l->done, __ATOMIC_RELAXED) / (double)total);
        if (code) loader_failed(l, &err);
        if (done) nanosleep(&pause, NULL);
    }
}

/* Starts up to LOAD_THREADS threads, does the caller's part, and joins them. */
static void loader_threads(gpu_loader *l, uint64_t total, const mote_callbacks *callbacks) {
    gpu_reader readers[LOAD_THREADS];
    mote_error err;
    int started = 0;
    size_t pieces = l->pieces.size / sizeof(load_piece);
    for (; started < LOAD_THREADS && (size_t)started < pieces; started++) {
        gpu_reader *r = &readers[started];
        r->of = l;
        r->buffers = l->buffers + (size_t)started * LOAD_BUFFERS * LOAD_PIECE;
        __atomic_add_fetch(&l->running, 1, __ATOMIC_RELAXED);
        if (!thread_start(&r->id, reader_main, r)) continue;
        __atomic_sub_fetch(&l->running, 1, __ATOMIC_RELAXED);
        break;
    }
    if (pieces && !started) {
        fail(&err, MOTE_ENOMEM, "the system gives no thread to load weights");
        loader_failed(l, &err);
    }
    loader_run(l, total ? total : 1, callbacks);
    for (int i = 0; i < started; i++) pthread_join(readers[i].id, NULL);
}

static void loader_close(gpu_loader *l) {
    for (int i = 0; l->direct && i < l->files->shard_count; i++) {
        if (l->direct[i] >= 0) close(l->direct[i]);
        leave_cache(l, &l->files->shards[i], 0, 0);
    }
    free(l->direct);
    buf_free(&l->pieces);
    if (l->buffers) (void)cudaFreeHost(l->buffers);
    pthread_mutex_destroy(&l->lock);
}

/* Brings the scales of FP8 KV caches back to the host: kernels get them as arguments. */
static int load_kv_scales(binder *b, mote_error *err) {
    const load_item *items = (const load_item *)(const void *)b->items.data;
    const size_t count = b->items.size / sizeof *items;
    size_t scales = 0;
    cudaError_t status = cudaSuccess;
    for (size_t i = 0; i < count; i++) scales += items[i].component == KV_SCALE;
    if (!scales) return MOTE_OK;
    b->m->kv_scales = (float *)malloc(scales * sizeof(float));
    if (!b->m->kv_scales) return fail_memory(err);
    for (size_t i = 0; i < count && status == cudaSuccess; i++) {
        if (items[i].component != KV_SCALE) continue;
        float *to = b->m->kv_scales + --scales;
        *items[i].target = to;
        status = cudaMemcpy(to, item_memory(b->m, &items[i]), sizeof *to, cudaMemcpyDeviceToHost);
    }
    return status == cudaSuccess ? MOTE_OK : gpu_fail(err, status, "reading the scales of the KV cache");
}

static int cuda_load(binder *b, const mote_callbacks *callbacks, mote_error *err) {
    gpu_loader l;
    uint64_t total = 0;
    memset(&l, 0, sizeof l);
    pthread_mutex_init(&l.lock, NULL);
    l.m = b->m;
    l.files = b->files;
    l.items = (const load_item *)(void *)b->items.data;
    l.item_count = b->items.size / sizeof *l.items;
    l.direct = (int *)malloc((size_t)b->files->shard_count * sizeof *l.direct);
    for (int i = 0; l.direct && i < b->files->shard_count; i++)
        l.direct[i] = open(b->files->shards[i].path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
    for (size_t i = 0; i < l.item_count; i++) total += l.items[i].size;
    if (!l.direct || !loader_cut(&l)) {
        fail_memory(&l.err);
    } else {
        size_t pieces = l.pieces.size / sizeof(load_piece), most = LOAD_THREADS, threads = pieces < most ? pieces : most;
        cudaError_t status = cudaSuccess;
        if (threads)
            status = cudaHostAlloc((void **)&l.buffers, threads * LOAD_BUFFERS * LOAD_PIECE, cudaHostAllocDefault);
        if (status == cudaSuccess) loader_threads(&l, total, callbacks);
        else gpu_fail(&l.err, status, "allocating pinned buffers");
    }
    loader_close(&l);
    b->m->fingerprint += l.sample;
    if (!l.err.code) (void)load_kv_scales(b, &l.err);
    if (l.err.code && err) *err = l.err;
    return l.err.code;
}
