/* cuda/schedule.c: the schedule of a step on a GPU: which kernels run in which order, what each reads and writes and when, and,
   found by schedule_link, what it waits for, tags and prefetches; and, for all of a step, how much shared memory an SM needs so
   that neighbours fit beside each other. This is the only place that knows neighbours: a kernel is
   told by its `handoff` and knows none. Plain C, so that the rules can be tested without a GPU.

   How two kernels follow each other (programmatic dependent launch, cuda/handoff.cu): a kernel starts once all blocks of its
   predecessor have released it (griddepcontrol.launch_dependents) or ended. It may do some things early, before its wait
   (griddepcontrol.wait), which returns when its predecessor is complete. Every kernel waits before it ends, so then all
   kernels before it are complete, too.

   Rules. When kernel i starts, all kernels before `late` are complete, where late is the last one before i that does not
   release at entry: one that releases late did so after its own wait. Those from late to i - 1 may still run.
     1. Early reads: not of what a kernel from late to i - 1 writes, but for what late stores before it releases.
     2. Early writes: not of what a kernel from late to i - 1 reads or writes.
     3. What writes step_parameters never releases: it is complete when the next kernel starts, so that all may read them
        early.
     4. Tags (gpu_tag). A kernel that can poll a buffer's tags does so, in place of a wait, if its direct predecessor stores
        the buffer, in one launch, or polls it itself, and if the older values that it may find there have other tags: they are
        of this step (one was stored before late), at most three were stored from late on, and none of them without a tag, nor
        the one that was there before. Otherwise it waits.
     5. A kernel that polls may store `polled_writes` once it has seen all that it polls: its predecessor stores each value
        after its own wait, when it has loaded all that the value depends on. So these are not what its predecessor writes,
        nor what it loads for other ends (reads_without_tags).
   A schedule that breaks 1, 2, 3 or 5 is refused.

   Why it cannot deadlock. A kernel polls only kernels before it. When it starts, every block of its direct predecessor has released
   it or ended: each is resident or done, and, by induction, so is every block of every kernel before. Polling blocks hold SMs, but
   no block that they wait for still needs one. A block waits for nothing but kernels before its own, and the first kernel
   of a step for none.

   Before the first kernel of a schedule runs gpu_put, or a kernel that never releases: all before it is complete. */

/* The buffers and kernels of a step stand beside the kernels: layers/schedule.c, and layers/<kind>/schedule.c for each kind of layers/table.c.
   Those of a kind NAME are
     NAME_BUFFERS(ROW)   ROW(BUFFER, of_layer): of_layer: each layer has its own, as a state; otherwise all layers share it
     NAME_KERNELS(ROW)   ROW(KERNEL, "name", fields of kernel_uses in their order, by name; the others are 0)
   EACH_BUFFER and EACH_KERNEL are an ENTRY for every one. */
#define BUFFERS_OF_KIND(NAME, name) NAME##_BUFFERS(ENTRY)
#define KERNELS_OF_KIND(NAME, name) NAME##_KERNELS(ENTRY)
#define EACH_BUFFER STEP_BUFFERS(ENTRY) GPU_LAYER_KINDS(BUFFERS_OF_KIND)
#define EACH_KERNEL STEP_KERNELS(ENTRY) GPU_LAYER_KINDS(KERNELS_OF_KIND)

#define ENTRY(NAME, of_layer) BUFFER_NUMBER_##NAME,
enum { EACH_BUFFER BUFFERS };
#undef ENTRY
static_assert((int)BUFFERS < 32, "a set of buffers is 32 bits");
#define ENTRY(NAME, of_layer) BUFFER_##NAME = 1 << BUFFER_NUMBER_##NAME,
enum { EACH_BUFFER };
#undef ENTRY
#define ENTRY(NAME, of_layer) | (of_layer ? BUFFER_##NAME : 0)
enum { BUFFERS_OF_LAYER = 0 EACH_BUFFER };
#undef ENTRY
#define ENTRY(NAME, of_layer) #NAME,
static const char *const buffer_names[BUFFERS] = {EACH_BUFFER};
#undef ENTRY

enum release { RELEASE_ENTRY, RELEASE_LATE, RELEASE_NEVER };

/* The data flow between the kernels of a step: sets of buffers. After the wait it may read and write all that it names. */
typedef struct kernel_uses {
    const char *name;
    enum stage stage;            /* STAGE_COUNT: that of the kernel before it */
    enum release release;
    unsigned reads, writes, early_reads, early_writes;
    unsigned released;           /* RELEASE_LATE: of writes, what is stored before the release */
    unsigned polls;              /* of reads: one buffer, whose tags the kernels for fixed shapes can poll */
    unsigned polled_writes;      /* of writes: stored by those when they have polled */
    unsigned tags;               /* of writes: one buffer, stored with tags */
    unsigned reads_without_tags;  /* of reads: those that what it tags does not depend on */
    int prefetches;              /* it leaves the memory bus idle for a while; some shapes' kernels make use of it */
    int one_per_sm;              /* an SM is to have one block of it, unless there are more blocks than SMs */
    int prefetched;              /* its first weights are worth the prefetch of one that prefetches */
} kernel_uses;

#define ENTRY(NAME, ...) KERNEL_##NAME,
enum kernel_kind { EACH_KERNEL KERNEL_KINDS };
#undef ENTRY

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#define ENTRY(NAME, title, ...) {.name = title, __VA_ARGS__},
static const kernel_uses kernels[KERNEL_KINDS] = {EACH_KERNEL};
#undef ENTRY
#pragma GCC diagnostic pop

/* A generation tag in the two lowest mantissa bits of a float. */
typedef struct gpu_tag {
    uint32_t mask, bits;         /* mask: the two lowest bits, or 0 (no tag); bits: the generation */
} gpu_tag;

/* Weights to be prefetched into L2. */
typedef struct prefetch_span {
    const char *from;
    uint32_t bytes;              /* a multiple of 16; 0: nothing */
    uint32_t share;              /* bytes of a block */
} prefetch_span;

/* The hand-off of a kernel with its neighbours; its parameters begin with it. */
typedef struct handoff {
    gpu_tag await;               /* of what it polls; mask 0: it waits instead */
    gpu_tag publish;             /* of what it tags; mask 0: it does not */
    prefetch_span prefetch;
} handoff;

typedef struct node {
    enum kernel_kind kind;
    int layer;                   /* -1 outside of layers: nothing is tagged, as a head may be recorded by itself, where other generations are */
    int in_mtp;                  /* of the MTP layer: x is another buffer, and is not tagged */
    int can_poll;                /* this kernel knows tags */
    unsigned late_reads;         /* of its kernel's early reads those that it does after its wait */
    int stores_output;           /* of a sublayer whose output does not go into x: it writes OUTPUT in its place, without tags */
    int piece;                   /* number of this launch among those of one kernel: 0 but for the later ones */
    int pieces;                  /* launches of it */
    int blocks;
    int in_clusters;             /* blocks that need not have an SM each: of all clusters some have two */
    int shared;                  /* bytes of its SM's shared memory that a block takes */
    prefetch_span first_weights; /* what it reads first; share is not used */
    handoff link;                /* filled in by schedule_link */
} node;

/* The residual of the MTP layer is a buffer of its own. */
static unsigned node_buffers(const node *n, unsigned set) {
    if (!n->in_mtp || !(set & BUFFER_X)) return set;
    return (set & ~(unsigned)BUFFER_X) | BUFFER_MTP_X;
}

static unsigned node_early_reads(const node *n) {
    return node_buffers(n, kernels[n->kind].early_reads & ~n->late_reads);
}

static unsigned node_writes(const node *n) {
    const unsigned set = kernels[n->kind].writes, stored = n->stores_output && set & BUFFER_X ? BUFFER_OUTPUT : 0;
    return node_buffers(n, stored ? (set & ~(unsigned)BUFFER_X) | stored : set);
}

static unsigned node_tags(const node *n) {
    return n->layer < 0 ? 0 : kernels[n->kind].tags & ~(n->stores_output ? (unsigned)BUFFER_X : 0);
}

/* Of `set`, what is the same buffer for both. */
static unsigned same_buffers(const node *a, const node *b, unsigned set) {
    return a->layer == b->layer ? set : set & ~(unsigned)BUFFERS_OF_LAYER;
}

/* Which buffers break a rule, if nodes[i] does, and who is in its way. rule: all of that in words, until this thread's next refusal. */
typedef struct schedule_conflict { int node, with; unsigned buffers; const char *rule; } schedule_conflict;

static int schedule_refuse(const node *nodes, schedule_conflict *c, int i, int with, unsigned buffers, const char *rule) {
    static __thread char why[256];
    int n = snprintf(why, sizeof why, "%s of layer %d, after %s of layer %d: %s:", kernels[nodes[i].kind].name, nodes[i].layer,
                     kernels[nodes[with].kind].name, nodes[with].layer, rule);
    for (int b = 0; b < BUFFERS && n < (int)sizeof why; b++)
        if (buffers >> b & 1) n += snprintf(why + n, sizeof why - (size_t)n, " %s", buffer_names[b]);
    c->node = i;
    c->with = with;
    c->buffers = buffers;
    c->rule = why;
    return 0;
}

/* Rules 1 to 3 for nodes[i]. late: the last before it that does not release at entry; -1: none. */
static int schedule_check(const node *nodes, int i, int late, schedule_conflict *c) {
    const node *n = &nodes[i];
    const kernel_uses *k = &kernels[n->kind];
    unsigned reads = node_early_reads(n), writes = node_buffers(n, k->early_writes);
    if (k->writes & BUFFER_STEP && k->release != RELEASE_NEVER)
        return schedule_refuse(nodes, c, i, i, BUFFER_STEP, "writers of step_parameters never release");
    for (int j = late < 0 ? 0 : late; j < i; j++) {
        const kernel_uses *other = &kernels[nodes[j].kind];
        unsigned stored = node_writes(&nodes[j]), loaded = stored | node_buffers(&nodes[j], other->reads | other->early_reads);
        if (j == late && other->release == RELEASE_NEVER) continue;     /* complete */
        if (j == late) stored &= ~other->released;
        unsigned clash = same_buffers(n, &nodes[j], reads & stored);
        if (clash) return schedule_refuse(nodes, c, i, j, clash, "early read of what may still be written");
        clash = same_buffers(n, &nodes[j], writes & loaded);
        if (clash) return schedule_refuse(nodes, c, i, j, clash, "early write of what may still be used");
    }
    return 1;
}

/* What nodes[i] polls: its direct predecessor, or what that polls, too. -1: there is none. */
static int schedule_polled(const node *nodes, int i) {
    const unsigned polls = kernels[nodes[i].kind].polls;
    i--;
    while (i >= 0 && nodes[i].link.await.mask && nodes[i].pieces == 1 && kernels[nodes[i].kind].polls == polls) i--;
    return i;
}

/* Whether nodes[i] polls, by rule 4. stored, of this buffer: the generation stored last; before_late: that before late. untagged: buffers in which
   it may find values without tags. */
static int schedule_polls(const node *nodes, int i, int stored, int before_late, unsigned untagged) {
    const node *n = &nodes[i];
    const int at = schedule_polled(nodes, i);
    const unsigned polls = kernels[n->kind].polls;
    return n->can_poll && !n->in_mtp && polls && at >= 0 && !nodes[at].in_mtp && nodes[at].pieces == 1 &&
           node_tags(&nodes[at]) & polls && !(untagged & polls) && before_late >= 1 && stored - before_late <= 3;
}

static gpu_tag tag_of(int generation) {
    gpu_tag tag = {3, (uint32_t)generation & 3};
    return tag;
}

/* Prefetches what nodes[i + 2] reads first: the successor of nodes[i] keeps the bus busy, what is after it does not yet run. Or what the
   successor does, if it has weights that it reads before those that it waits for. */
static void schedule_prefetch(node *nodes, int count, int i, uint32_t limit) {
    prefetch_span *p = &nodes[i].link.prefetch;
    if (!kernels[nodes[i].kind].prefetches || i + 2 >= count || nodes[i].blocks < 1) return;
    *p = nodes[i + 1].first_weights.bytes ? nodes[i + 1].first_weights : nodes[i + 2].first_weights;
    if (p->bytes > limit) p->bytes = limit;
    p->share = (p->bytes / (uint32_t)nodes[i].blocks / 128 + 1) * 128;
}

/* Fills in every node's link. tagged: kernels may poll, there is programmatic dependent launch. prefetch: most bytes of a
   prefetch. whole: not cut down to some stages for timing, where results do not count; only then rules can be broken.
   Returns 0, and says why, if the schedule breaks one. */
static int schedule_link(node *nodes, int count, int tagged, uint32_t prefetch, int whole, schedule_conflict *c) {
    int stored[BUFFERS] = {0}, before_late[BUFFERS] = {0}, late = -1;
    unsigned untagged = 0, plain = 0;                       /* buffers that may have values without tags from late on, that have them now */
    for (int i = 0; i < count; i++) {
        node *n = &nodes[i];
        const kernel_uses *k = &kernels[n->kind];
        memset(&n->link, 0, sizeof n->link);
        if (whole && !schedule_check(nodes, i, late, c)) return 0;
        for (int b = 0; b < BUFFERS; b++) {
            if (k->polls >> b & 1 && tagged && schedule_polls(nodes, i, stored[b], before_late[b], untagged))
                n->link.await = tag_of(stored[b]);
            if (!(node_tags(n) >> b & 1) || n->in_mtp) continue;
            stored[b] += n->piece == 0;
            n->link.publish = tag_of(stored[b]);
        }
        for (int polled = schedule_polled(nodes, i), j = polled; n->link.await.mask && j < i; j++) {
            const kernel_uses *front = &kernels[nodes[j].kind];
            const unsigned used = j == polled ? (front->writes & ~front->tags) | front->reads_without_tags : front->reads | front->writes;
            unsigned clash = k->polled_writes & used;
            if (whole && clash) return schedule_refuse(nodes, c, i, j, clash, "store of what the polled kernel may still use");
        }
        schedule_prefetch(nodes, count, i, prefetch);
        const unsigned tags = n->in_mtp ? 0 : node_tags(n);
        if (k->release != RELEASE_ENTRY) untagged = plain;
        plain = (plain | node_writes(n)) & ~tags;
        untagged |= plain;
        if (k->release == RELEASE_ENTRY) continue;
        late = i;
        memcpy(before_late, stored, sizeof stored);
    }
    return 1;
}

/* The generations of X and ROUTER begin after so many that are stored before the first node, by another runner: tags are part of the values, which
   do not depend on who computes them. */
static void schedule_continue(node *nodes, int count, int x, int router) {
    for (int i = 0; i < count; i++) {
        const kernel_uses *k = &kernels[nodes[i].kind];
        gpu_tag *await = &nodes[i].link.await, *publish = &nodes[i].link.publish;
        if (await->mask) *await = tag_of((int)await->bits + (k->polls & BUFFER_X ? x : router));
        if (publish->mask) *publish = tag_of((int)publish->bits + (k->tags & BUFFER_X ? x : router));
    }
}

/* Shared memory of an SM, the rest of which is L1: the driver divides the two anew for each kernel, unless it is told. Told the
   same for all kernels of a step, it never has to, and how many blocks fit beside each other is known here. */

/* Bytes that an SM needs, at most `most`: for a block of each kernel beside one of its predecessor, so that it can start early,
   and for two of a kernel that has more blocks than there are SMs, or clusters of them. */
static int schedule_shared(const node *nodes, int count, int sms, int most) {
    int need = 0, before = 0;
    for (int i = 0; i < count; i++) {
        const int own = nodes[i].shared, beside = (nodes[i].blocks > sms || nodes[i].in_clusters) && own > before ? own : before;
        if (own + beside > need) need = own + beside;
        before = own;
    }
    return need < most ? need : most;
}

/* Bytes that a block of nodes[i] has to take where SMs are to have `need`: its own or, if it is to be the only one of its kernel
   and its neighbours' blocks still fit beside it, more than half of what they then get. Without that, where the predecessor's
   blocks leave no space, those SMs that are done with it first get two, and others none. */
static int schedule_block_shared(const node *nodes, int count, int i, int sms, int need, int most) {
    static const int sizes[] = {16, 32, 64, 100, 132, 164, 196};        /* KB: what an SM can be set to, below its most */
    const int own = nodes[i].shared, before = i ? nodes[i - 1].shared : 0, after = i + 1 < count ? nodes[i + 1].shared : 0;
    int size = most;
    for (int k = (int)(sizeof sizes / sizeof *sizes) - 1; k >= 0; k--)
        if (need <= sizes[k] * 1024 && sizes[k] * 1024 < size) size = sizes[k] * 1024;
    const int half = size / 2 + 1, fits = before <= size - half && after <= size - half;
    return kernels[nodes[i].kind].one_per_sm && nodes[i].blocks <= sms && !nodes[i].in_clusters && own < half && fits ? half : own;
}
