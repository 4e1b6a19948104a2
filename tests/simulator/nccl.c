/* tests/simulator/nccl.c: a library with the functions of NCCL that mote uses, for GPUs that are simulated: libnccl.so.2 of processes on one machine,
   over Unix sockets. As of a communicator that need not wait: calls return ncclInProgress, and ncclCommGetAsyncError goes on with what they began.

   In the environment: FAKE_NCCL=lost: nobody can join. FAKE_NCCL_LOG: a file to which each send adds a line. */

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, REMOTE_ERROR = 6, IN_PROGRESS = 7 };
enum { RANKS = 64 };

typedef struct { char internal[128]; } ncclUniqueId;
typedef struct { size_t size; unsigned magic, version; int blocking; } ncclConfig_t;

typedef struct ncclComm {
    char name[64];               /* of the sockets, without the rank */
    int rank, ranks, listener;
    int out[RANKS], in[RANKS];   /* connections; -1: not yet */
    int state;                   /* what ncclCommGetAsyncError says */
    char *at;                    /* what is under way: so many bytes are left, of or to this peer */
    size_t left;
    int peer, sends;
} ncclComm;

static struct sockaddr_un place_of(const ncclComm *c, int rank, socklen_t *size) {
    struct sockaddr_un at;
    memset(&at, 0, sizeof at);
    at.sun_family = AF_UNIX;
    const int n = snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "%s.%d", c->name, rank);     /* abstract: it ends with the process */
    *size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    return at;
}

/* A connection to a rank; -1: it is not there. */
static int reach(const ncclComm *c, int rank) {
    socklen_t size;
    const struct sockaddr_un at = place_of(c, rank, &size);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!connect(fd, (const struct sockaddr *)&at, size)) return fd;
    close(fd);
    return -1;
}

int ncclGetVersion(int *version) {
    *version = 22809;
    return SUCCESS;
}

int ncclGetUniqueId(ncclUniqueId *id) {
    unsigned char random[16];
    memset(id, 0, sizeof *id);
    if (getentropy(random, sizeof random)) return SYSTEM_ERROR;
    strcpy(id->internal, "mote-nccl-");
    for (int i = 0; i < 16; i++) snprintf(id->internal + strlen(id->internal), 3, "%02x", random[i]);
    return SUCCESS;
}

const char *ncclGetErrorString(int result) {
    return result == SUCCESS ? "no error" : result == REMOTE_ERROR ? "remote process exited or there was a network error" : "an error of the simulated NCCL";
}

int ncclCommInitRankConfig(ncclComm **comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config) {
    const char *fake = getenv("FAKE_NCCL");
    socklen_t size;
    *comm = NULL;
    if (config->magic != 0xcafebeef || config->size < sizeof *config || config->version < 21400 || config->blocking) return INVALID_ARGUMENT;
    if (ranks > RANKS || rank < 0 || rank >= ranks || memchr(id.internal, 0, 63) == NULL) return INVALID_ARGUMENT;
    ncclComm *c = (ncclComm *)calloc(1, sizeof *c);
    strcpy(c->name, id.internal);
    c->rank = rank;
    c->ranks = ranks;
    for (int i = 0; i < RANKS; i++) c->out[i] = c->in[i] = -1;
    c->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const struct sockaddr_un at = place_of(c, rank, &size);
    c->state = bind(c->listener, (const struct sockaddr *)&at, size) || listen(c->listener, RANKS) ? SYSTEM_ERROR : IN_PROGRESS;
    if (fake && !strcmp(fake, "lost")) c->state = REMOTE_ERROR;
    *comm = c;
    return IN_PROGRESS;
}

/* Connects to all, and says who it is. */
static void join(ncclComm *c) {
    for (int i = 0; i < c->ranks; i++) {
        if (i == c->rank || c->out[i] >= 0) continue;
        c->out[i] = reach(c, i);
        if (c->out[i] < 0) return;
        if (write(c->out[i], &c->rank, sizeof c->rank) != sizeof c->rank) c->state = REMOTE_ERROR;
    }
    if (c->state == IN_PROGRESS) c->state = SUCCESS;
}

/* The connection of a rank; -1: it has not come yet. */
static int from_rank(ncclComm *c, int rank) {
    int fd, who;
    while (c->in[rank] < 0 && (fd = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
        if (read(fd, &who, sizeof who) == sizeof who && who >= 0 && who < c->ranks && c->in[who] < 0) c->in[who] = fd;
        else close(fd);
    }
    return c->in[rank];
}

/* Goes on with what is under way. */
static void move(ncclComm *c) {
    const int fd = c->sends ? c->out[c->peer] : from_rank(c, c->peer);
    if (fd < 0) return;
    const ssize_t n = c->sends ? send(fd, c->at, c->left, MSG_DONTWAIT | MSG_NOSIGNAL) : recv(fd, c->at, c->left, MSG_DONTWAIT);
    if (n > 0) c->at += n, c->left -= (size_t)n;
    else if (n == 0 || (errno != EAGAIN && errno != EINTR)) c->state = REMOTE_ERROR;
    if (!c->left) c->state = SUCCESS;
}

int ncclCommGetAsyncError(ncclComm *c, int *result) {
    if (c->state == IN_PROGRESS && c->left) move(c);
    else if (c->state == IN_PROGRESS) join(c);
    *result = c->state;
    return SUCCESS;
}

static int begin(ncclComm *c, char *at, size_t count, int type, int peer, int sends) {
    if (c->state != SUCCESS || type != 7 || !count || peer < 0 || peer >= c->ranks || peer == c->rank) return INVALID_ARGUMENT;
    c->at = at;
    c->left = count * sizeof(float);
    c->peer = peer;
    c->sends = sends;
    return c->state = IN_PROGRESS;
}

int ncclSend(const void *from, size_t count, int type, int peer, ncclComm *c, void *stream) {
    const char *log = getenv("FAKE_NCCL_LOG");
    FILE *f = log ? fopen(log, "a") : NULL;
    (void)stream;
    if (f) fprintf(f, "%d to %d: %zu\n", c->rank, peer, count), fclose(f);
    return begin(c, (char *)(size_t)from, count, type, peer, 1);
}

int ncclRecv(void *to, size_t count, int type, int peer, ncclComm *c, void *stream) {
    (void)stream;
    return begin(c, (char *)to, count, type, peer, 0);
}

int ncclCommAbort(ncclComm *c) {
    for (int i = 0; i < c->ranks; i++) {
        if (c->out[i] >= 0) close(c->out[i]);
        if (c->in[i] >= 0) close(c->in[i]);
    }
    close(c->listener);
    free(c);
    return SUCCESS;
}
