/* exchange/exchange.c: what the members of a group give each other, who compute one program together: the table of a transport's functions,
   and what is the same with all transports. Knows bytes and floats; must not know layers, models or devices.

   A program is cut into ranges, one after the other, each of which hands rows to the next one; a range into ranks, each of which has a share of
   every sum. Shares are gathered, and added by every rank in the order of ranks. So all ranks have the same bits, and these depend on how many
   ranks there are, but not on the transport or on who comes first. */

/* Which one of the members. */
typedef struct group_place {
    int range, ranges;           /* from 0; of so many */
    int rank, ranks;             /* of the range, from 0; of so many */
} group_place;

/* By what a library that links hosts knows a group: NCCL's ncclUniqueId. */
typedef struct group_id { char bytes[128]; } group_id;

/* A member, as its own thread sees it. */
typedef struct peer {
    const struct exchange *by;
    group_place at;
    struct peer *const *all;                                /* [ranges][ranks] of its group */
    struct thread_group *threads;                           /* the transport's: exchange/threads.c; */
    struct gpu_peer *gpu;                                   /* exchange/peers.cu; */
    struct socket_peer *sockets;                            /* exchange/sockets.c. NULL: it has none */
    int ended;                   /* a call has failed: later ones do nothing, and what they should have filled means nothing */
} peer;

/* A transport. Functions return 0; not 0 if the group has come to its end, or a member cannot be reached. */
typedef struct exchange {
    int (*send)(peer *me, const void *from, size_t bytes);  /* to the same rank of the next range; may return before that has them */
    int (*receive)(peer *me, void *to, size_t bytes);       /* what the same rank of the range before has sent */
    int (*gather)(peer *me, const void *from, size_t bytes, void *all);    /* of all ranks of a range: to all [ranks][bytes] of each of them */
    void (*end)(peer *me);       /* the group has come to its end: calls that wait return, and all later ones at once */
} exchange;

static void exchange_send(peer *me, const float *rows, size_t n) {
    if (!me->ended) me->ended = me->by->send(me, rows, n * sizeof *rows);
}

static void exchange_receive(peer *me, float *rows, size_t n) {
    if (!me->ended) me->ended = me->by->receive(me, rows, n * sizeof *rows);
}

static void exchange_gather(peer *me, const void *from, size_t bytes, void *all) {
    if (!me->ended) me->ended = me->by->gather(me, from, bytes, all);
}

/* y [n] becomes the sum of all ranks' y. all: [ranks][n] scratch. */
static void exchange_sum(peer *me, float *y, size_t n, float *all) {
    exchange_gather(me, y, n * sizeof *y, all);
    if (me->ended) return;
    memcpy(y, all, n * sizeof *y);
    for (int rank = 1; rank < me->at.ranks; rank++)
        for (size_t i = 0; i < n; i++) y[i] += all[(size_t)rank * n + i];
}
