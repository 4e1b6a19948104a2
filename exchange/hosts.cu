/* exchange/hosts.cu: rows of x of a GPU whose neighbours are on other hosts. Either by NCCL (exchange/nccl.cu), from memory to memory, in the
   stream's order; or through pinned memory, from where the member's transport (peer.by) takes them and where it puts them: then the host waits for
   rows before a step is launched that begins with them. In both ways a step is done, and its rows are gone, when the host goes on: who sends them
   can be asked, and no kernel of mote's waits for another host. Knows floats and copies; must not know layers or models. */

/* Pinned memory, and the last copy between it and the GPU. */
typedef struct host_rows {
    float *rows;
    cudaEvent_t copied;
} host_rows;

/* A member's. */
typedef struct gpu_hosts {
    peer *me;                    /* NULL: its neighbours are on this host, or it has none */
    host_rows received, sent;
    pthread_mutex_t lock;        /* of what follows: who holds it calls NCCL */
    void *comm;                  /* NCCL's; NULL: rows go through pinned memory */
    int over;                    /* the group has come to its end */
} gpu_hosts;

static int hosts_before(const gpu_hosts *h) {
    return h->me && h->me->at.range > 0;
}

static int hosts_after(const gpu_hosts *h) {
    return h->me && h->me->at.range + 1 < h->me->at.ranges;
}

static void host_rows_open(gpu_queue *q, host_rows *r, size_t floats) {
    if (q->status == cudaSuccess) gpu_check(q, cudaHostAlloc((void **)&r->rows, floats * sizeof(float), cudaHostAllocDefault), "pinning memory");
    if (q->status == cudaSuccess) gpu_check(q, cudaEventCreateWithFlags(&r->copied, cudaEventDisableTiming), "an event");
}

static void host_rows_close(host_rows *r) {
    if (r->copied) (void)cudaEventDestroy(r->copied);
    if (r->rows) (void)cudaFreeHost(r->rows);
}

/* For at most so many floats at once. The GPU is chosen. */
static void hosts_open(gpu_queue *q, gpu_hosts *h, peer *me, size_t floats) {
    pthread_mutex_init(&h->lock, NULL);
    h->me = me;
    if (hosts_before(h)) host_rows_open(q, &h->received, floats);
    if (hosts_after(h)) host_rows_open(q, &h->sent, floats);
}

/* ---- By NCCL --------------------------------------------------------------------------------------------------------------- */

/* Whatever is under way ends; from now on rows go through pinned memory. */
static void hosts_leave(gpu_hosts *h) {
    if (!h->me) return;
    pthread_mutex_lock(&h->lock);
    if (h->comm) (void)nccl.abort(h->comm);
    h->comm = NULL;
    pthread_mutex_unlock(&h->lock);
}

/* The group has come to its end, as who calls knows. */
static void hosts_end(gpu_hosts *h) {
    if (!h->me) return;
    __atomic_store_n(&h->over, 1, __ATOMIC_RELAXED);
    hosts_leave(h);
}

static void hosts_close(gpu_hosts *h) {
    if (!h->me) return;
    hosts_leave(h);
    host_rows_close(&h->received);
    host_rows_close(&h->sent);
    pthread_mutex_destroy(&h->lock);
}

/* What has become of a call that returned `result`. */
static int hosts_result(gpu_hosts *h, int result) {
    pthread_mutex_lock(&h->lock);
    if (!h->comm) result = NCCL_INTERNAL_ERROR;
    else if (result == NCCL_IN_PROGRESS && nccl.error(h->comm, &result) != NCCL_SUCCESS) result = NCCL_INTERNAL_ERROR;
    pthread_mutex_unlock(&h->lock);
    return result;
}

/* Begins to join the others. The GPU is chosen. */
static int hosts_join(gpu_hosts *h, const group_id *id) {
    pthread_mutex_lock(&h->lock);
    const int result = h->comm ? NCCL_INTERNAL_ERROR : nccl_join(&h->comm, h->me->at.ranges, id, h->me->at.range);
    if (result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS) h->comm = NULL;
    pthread_mutex_unlock(&h->lock);
    return result;
}

/* Rows do not come, or cannot be sent. Who asks the host at the other end hears of that, too, and says which one it is: waits for that a little. */
static void hosts_lost(gpu_hosts *h) {
    const struct timespec pause = {.tv_sec = 0, .tv_nsec = 50000000};
    for (int i = 0; i < 20 && !__atomic_load_n(&h->over, __ATOMIC_RELAXED); i++) nanosleep(&pause, NULL);
    hosts_leave(h);
    h->me->ended = 1;
}

/* Queues sending n floats at x to the next range, or receiving them from the one before. */
static void hosts_queue(gpu_queue *q, gpu_hosts *h, float *x, size_t n, int sends) {
    const int other = h->me->at.range + (sends ? 1 : -1);
    int result = NCCL_INTERNAL_ERROR;
    pthread_mutex_lock(&h->lock);
    if (h->comm && sends) result = nccl.send(x, n, NCCL_FLOAT32, other, h->comm, q->stream);
    else if (h->comm) result = nccl.receive(x, n, NCCL_FLOAT32, other, h->comm, q->stream);
    pthread_mutex_unlock(&h->lock);
    while ((result = hosts_result(h, result)) == NCCL_IN_PROGRESS) sched_yield();
    if (result != NCCL_SUCCESS) hosts_lost(h);
}

/* Waits until the event has come. joined: or NCCL has an error to tell, which ends what the event waits for. */
static void hosts_await(gpu_queue *q, gpu_hosts *h, cudaEvent_t event, int joined) {
    cudaError_t status;
    for (unsigned i = 1; (status = cudaEventQuery(event)) == cudaErrorNotReady; i++) {
        if (i % 64 == 0) sched_yield();
        if (joined && i % 4096 == 0 && !h->me->ended && hosts_result(h, NCCL_IN_PROGRESS) != NCCL_SUCCESS) hosts_lost(h);
    }
    (void)cudaGetLastError();                               /* that it was not ready is none */
    gpu_check(q, status, "sending rows");
}

/* ---- Rows ------------------------------------------------------------------------------------------------------------------ */

/* Whether they go by NCCL. */
static int hosts_joined(gpu_hosts *h) {
    pthread_mutex_lock(&h->lock);
    const int joined = h->comm != NULL;
    pthread_mutex_unlock(&h->lock);
    return joined;
}

/* Queues what brings n floats of the range before to x; of the first range nothing. */
static void hosts_receive(gpu_queue *q, gpu_hosts *h, float *x, size_t n) {
    host_rows *r = &h->received;
    if (!hosts_before(h) || h->me->ended || q->status != cudaSuccess) return;
    if (hosts_joined(h)) {
        hosts_queue(q, h, x, n, 0);
        return;
    }
    gpu_check(q, cudaEventSynchronize(r->copied), "receiving rows");
    exchange_receive(h->me, r->rows, n);
    if (h->me->ended) return;
    gpu_check(q, cudaMemcpyAsync(x, r->rows, n * sizeof *x, cudaMemcpyHostToDevice, q->stream), "receiving rows");
    gpu_check(q, cudaEventRecord(r->copied, q->stream), "receiving rows");
}

/* Sends n floats of x to the next range, when all that was queued before is done; of the last range nothing. */
static void hosts_send(gpu_queue *q, gpu_hosts *h, float *x, size_t n) {
    host_rows *r = &h->sent;
    if (!hosts_after(h) || h->me->ended || q->status != cudaSuccess) return;
    const int joined = hosts_joined(h);
    if (joined) hosts_queue(q, h, x, n, 1);
    else gpu_check(q, cudaMemcpyAsync(r->rows, x, n * sizeof *x, cudaMemcpyDeviceToHost, q->stream), "sending rows");
    gpu_check(q, cudaEventRecord(r->copied, q->stream), "sending rows");
    if (q->status == cudaSuccess) hosts_await(q, h, r->copied, joined);
    if (!joined && q->status == cudaSuccess) exchange_send(h->me, r->rows, n);
}
