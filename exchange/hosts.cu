/* exchange/hosts.cu: rows of x of a GPU whose neighbours are on other hosts: through pinned memory, from where the member's transport (peer.by) takes
   them and where it puts them. The host waits: what a step begins with is on the GPU before the step is launched, and what it has made goes on when
   it is done. So no kernel waits for another host. Knows floats and copies; must not know layers or models. */

/* Pinned memory, and the last copy between it and the GPU. */
typedef struct host_rows {
    float *rows;                 /* NULL: no range comes before this one, or after it */
    cudaEvent_t copied;
} host_rows;

/* A member's. */
typedef struct gpu_hosts {
    peer *me;                    /* NULL: its neighbours are on this host, or it has none */
    host_rows received, sent;
} gpu_hosts;

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
    h->me = me;
    if (me->at.range) host_rows_open(q, &h->received, floats);
    if (me->at.range + 1 < me->at.ranges) host_rows_open(q, &h->sent, floats);
}

static void hosts_close(gpu_hosts *h) {
    host_rows_close(&h->received);
    host_rows_close(&h->sent);
}

/* Waits for n floats of the range before, and queues their copy to x; of the first range nothing. */
static void hosts_receive(gpu_queue *q, gpu_hosts *h, float *x, size_t n) {
    host_rows *r = &h->received;
    if (!r->rows || q->status != cudaSuccess) return;
    gpu_check(q, cudaEventSynchronize(r->copied), "receiving rows");
    exchange_receive(h->me, r->rows, n);
    if (h->me->ended) return;
    gpu_check(q, cudaMemcpyAsync(x, r->rows, n * sizeof *x, cudaMemcpyHostToDevice, q->stream), "receiving rows");
    gpu_check(q, cudaEventRecord(r->copied, q->stream), "receiving rows");
}

/* Sends n floats of x to the next range, when all that was queued before is done; of the last range nothing. */
static void hosts_send(gpu_queue *q, gpu_hosts *h, const float *x, size_t n) {
    host_rows *r = &h->sent;
    if (!r->rows || q->status != cudaSuccess) return;
    gpu_check(q, cudaMemcpyAsync(r->rows, x, n * sizeof *x, cudaMemcpyDeviceToHost, q->stream), "sending rows");
    gpu_check(q, cudaEventRecord(r->copied, q->stream), "sending rows");
    gpu_check(q, cudaEventSynchronize(r->copied), "sending rows");
    if (q->status == cudaSuccess) exchange_send(h->me, r->rows, n);
}
