// Tests of cuda/schedule.c, without a GPU: what schedule_link makes of the schedules of real models, that it refuses those which
// break a rule, and that no order of events that programmatic dependent launch allows goes wrong on those it accepts.
//
// Contents   1. Schedules of models   2. Refusals   3. A machine that runs schedules in random order   4. Shared memory
//            5. Main

#include "../../engine.h"
#include "../../kernels.cu"
#include "../../cuda/schedule.c"
#include "test.h"

enum { MOST_NODES = 640, FIRST_BYTES = 1 << 20, LIMIT = 1 << 16 };

static node nodes[MOST_NODES];
static int count;

static node *add(enum kernel_kind kind, int layer, int in_mtp) {
    static const char weights[1];
    node *n = &nodes[count++];
    memset(n, 0, sizeof *n);
    n->kind = kind;
    n->layer = layer;
    n->in_mtp = in_mtp;
    n->can_poll = 1;
    n->pieces = 1;
    n->blocks = 100;
    if (kernels[kind].prefetched) {
        n->first_weights.from = weights;
        n->first_weights.bytes = FIRST_BYTES;
    }
    return n;
}

// ---- 1. Schedules of models -----------------------------------------------------------------------------------------

static int in_units;             // experts run by units, as those of many rows do
static int placed;               // experts are in host memory, with slots
static enum layer_kind ffn = LAYER_MOE;
static int first_layer;          // of a range that is not the first: its own
static int in_turn;              // the rows are blocks of one slot, as those of a short prompt are
static int indexed;              // attention is
static const char *single;       // a letter for each layer, of one sublayer: M Mamba-2, * attention, E experts, - an MLP; NULL: layers are a mixer and an FFN
static int normed_after;         // sublayers' outputs are stored, and add_output follows; logits are capped, as of models that have that
static int streams;              // residual streams: sublayers read a mixture of them, and their outputs are stored

// The kernels of a kind of layer, in their order.
static void add_kind(enum layer_kind kind, int layer, int in_mtp) {
    if (streams) add(KERNEL_STREAMS_DOWN, layer, in_mtp);
    if (streams) add(KERNEL_STREAMS_UP, layer, in_mtp);
    for (int k = 0; k < KERNEL_KINDS; k++) {
        if (kernels[k].stage == STAGE_COUNT || stage_kinds[kernels[k].stage] != kind || (k == KERNEL_ROUTE && !in_units)) continue;
        if (((!in_turn || indexed) && k == KERNEL_APPEND) || (!placed && k == KERNEL_PLACE)) continue;
        if (indexed ? k == KERNEL_ATTEND : k == KERNEL_INDEX_SCORES || k == KERNEL_INDEX_CHOOSE || k == KERNEL_INDEX_ATTEND) continue;
        node *n = add((enum kernel_kind)k, layer, in_mtp);
        n->stores_output = normed_after || streams;
        n->late_reads = placed && k == KERNEL_UP ? BUFFER_EXPERTS : 0;
        n->can_poll = k != KERNEL_MAMBA_IN || nodes[count - 2].kind != KERNEL_MAMBA_OUT;
    }
    if (normed_after) add(KERNEL_ADD_OUTPUT, layer, in_mtp);
}

static void add_head(int layer, int in_mtp) {
    if (streams) add(KERNEL_STREAMS_DOWN, layer, in_mtp);
    if (streams) add(KERNEL_STREAMS_UP, layer, in_mtp);
    add(KERNEL_HEAD, layer, in_mtp);
    if (normed_after) add(KERNEL_CAP, layer, in_mtp);
}

static void add_mtp(int layers, int whole) {
    add(KERNEL_FC, layers, 1);
    if (whole) {
        add_kind(LAYER_ATTENTION, layers, 1);
        add_kind(ffn, layers, 1);
        add_head(layers, 1);
        return;
    }
    add(KERNEL_QKV, layers, 1);
    add(indexed ? KERNEL_INDEX_SCORES : KERNEL_ATTEND, layers, 1);
}

// A step of a model with attention in every `interval`th layer, with logits, and `drafts` drafts after it.
static void add_step(int layers, int interval, int drafts) {
    count = 0;
    add(KERNEL_EMBED, -1, 0);
    for (int i = first_layer; i < layers && single; i++)
        add_kind(single[i] == 'M' ? LAYER_MAMBA : single[i] == '*' ? LAYER_ATTENTION : single[i] == 'E' ? LAYER_MOE : LAYER_MLP, i, 0);
    for (int i = first_layer; i < layers && !single; i++) {
        add_kind((i + 1) % interval ? LAYER_DELTANET : LAYER_ATTENTION, i, 0);
        add_kind(ffn, i, 0);
    }
    add_head(-1, 0);
    if (single) return;
    add(KERNEL_MTP_ROWS, layers, 1);
    add_mtp(layers, 0);
    if (drafts < 0) return;
    add(KERNEL_TOPK_PARTIAL, -1, 0);
    add(KERNEL_ACCEPT, -1, 0);
    for (int i = 0; i < drafts; i++) {
        add(KERNEL_DRAFT_ROW, layers, 1);
        add_mtp(layers, 1);
        add(KERNEL_TOPK_PARTIAL, -1, 1);
        add(KERNEL_SAMPLE_TOKEN, -1, 1);
    }
}

static int link_all(int tagged) {
    schedule_conflict c = {0, 0, 0, ""};
    int ok = schedule_link(nodes, count, tagged, LIMIT, 1, &c);
    return ok ? 1 : (printf("node %d and %d: %s\n", c.node, c.with, c.rule), 0);
}

// Which kernels poll, tag and prefetch in a real step.
static void test_real(int layers, int interval) {
    int x = 0, logits = 0;
    add_step(layers, interval, 3);
    if (!CHECK(link_all(1), "%d layers, attention in every %d.", layers, interval)) return;
    for (int i = 0; i < count; i++) {
        const node *n = &nodes[i];
        const kernel_uses *k = &kernels[n->kind];
        int polls = !n->in_mtp && n->layer > 0 && k->polls;
        CHECK(!n->link.await.mask == !polls, "node %d, %s of layer %d polls: %d", i, k->name, n->layer, !polls);
        if (polls)
            CHECK(n->link.await.bits == ((uint32_t)(k->polls == BUFFER_X ? x : logits) & 3), "node %d awaits", i);
        CHECK(!n->link.publish.mask == (n->in_mtp || !k->tags), "node %d, %s tags", i, k->name);
        if (n->in_mtp || !k->tags) continue;
        int generation = k->tags == BUFFER_X ? ++x : ++logits;
        CHECK(n->link.publish.bits == ((uint32_t)generation & 3), "node %d, %s: generation %d", i, k->name, generation);
    }
    for (int i = 0; i + 2 < count; i++) {
        const int after_next = nodes[i].kind == KERNEL_UP || !nodes[i + 1].first_weights.bytes;
        uint32_t bytes = kernels[nodes[i].kind].prefetches && nodes[i + 1 + after_next].first_weights.bytes ? LIMIT : 0;
        const prefetch_span *p = &nodes[i].link.prefetch;
        CHECK(p->bytes == bytes, "node %d prefetches %u bytes", i, p->bytes);
        CHECK(!bytes || (p->share % 128 == 0 && p->share * 100 >= bytes), "node %d: shares of %u", i, p->share);
    }
    CHECK(x == 2 * layers && logits == layers, "%d and %d generations", x, logits);
    link_all(0);
    for (int i = 0; i < count; i++) CHECK(!nodes[i].link.await.mask, "node %d polls without dependent launch", i);
}

// A range of layers has the tags of the whole model, whether a kernel polls there or not, and nothing polls what the range before has stored.
static void test_range(int layers, int first) {
    node whole[MOST_NODES];
    add_step(layers, 4, 3);
    CHECK(link_all(1), "%d layers", layers);
    const int of = count;
    memcpy(whole, nodes, sizeof whole);
    first_layer = first;
    add_step(layers, 4, 3);
    first_layer = 0;
    CHECK(link_all(1), "layers %d to %d", first, layers - 1);
    schedule_continue(nodes, count, 2 * first, first);
    for (int i = 1, k = of - count + 1; i < count; i++, k++) {
        const handoff *got = &nodes[i].link, *want = &whole[k].link;
        CHECK(nodes[i].kind == whole[k].kind && nodes[i].layer == whole[k].layer, "node %d of a range is number %d", i, k);
        CHECK(!memcmp(&got->publish, &want->publish, sizeof got->publish), "from layer %d on, node %d publishes", first, i);
        CHECK(!got->await.mask || !memcmp(&got->await, &want->await, sizeof got->await), "from layer %d on, node %d awaits", first, i);
        CHECK(!got->await.mask || nodes[i].layer > first, "node %d polls what the range before has stored", i);
    }
    CHECK(nodes[0].kind == KERNEL_EMBED && !nodes[0].link.publish.mask, "what receives x stores it as it comes");
}

// Slots of experts: experts_place polls the router's logits, and so does experts_up after it; the generations stay.
static int run_once(void);

static void test_placed(int layers, int drafts) {
    gpu_tag tags[MOST_NODES];
    int n = 0, again = 0;
    add_step(layers, 4, drafts);
    CHECK(link_all(1), "a plain step");
    for (int i = 0; i < count; i++)
        if (kernels[nodes[i].kind].tags) tags[n++] = nodes[i].link.publish;
    placed = 1;
    add_step(layers, 4, drafts);
    placed = 0;
    CHECK(link_all(1), "with slots");
    for (int i = 0; i < count; i++) {
        const node *k = &nodes[i];
        if (kernels[k->kind].tags) CHECK(again < n && !memcmp(&tags[again++], &k->link.publish, sizeof *tags), "node %d: another generation", i);
        if (k->kind == KERNEL_PLACE) CHECK(!k->link.await.mask == (k->in_mtp || !k->layer), "node %d, experts_place of layer %d, polls", i, k->layer);
        if (k->kind == KERNEL_UP)
            CHECK(k[-1].kind == KERNEL_PLACE && !memcmp(&k->link.await, &k[-1].link.await, sizeof k->link.await), "node %d polls what place does not", i);
    }
    CHECK(again == n, "%d of %d stores", again, n);
    for (int again = 0; again < (test_brief ? 3 : 50); again++) CHECK(run_once(), "a step with slots, run %d", again);
    for (int i = 0; i < count; i++) nodes[i].can_poll = nodes[i].kind != KERNEL_PLACE;
    CHECK(link_all(1), "an experts_place that waits");
    for (int i = 0; i < count; i++) CHECK(nodes[i].kind != KERNEL_UP || !nodes[i].link.await.mask, "node %d polls before experts_place does", i);
}

// Experts by units, blocks in turn: x and the logits have the generations that they have in a plain step, and no one polls for route's
// successor.
static void test_forms(int units, int turns) {
    gpu_tag tags[MOST_NODES];
    int n = 0, again = 0;
    add_step(8, 4, turns ? -1 : 3);
    CHECK(link_all(1), "a plain step");
    for (int i = 0; i < count; i++)
        if (kernels[nodes[i].kind].tags) tags[n++] = nodes[i].link.publish;
    in_units = units;
    in_turn = turns;
    add_step(8, 4, turns ? -1 : 3);
    in_units = in_turn = 0;
    CHECK(link_all(1), "in units %d, in turn %d", units, turns);
    for (int i = 0; i < count; i++) {
        if (kernels[nodes[i].kind].tags)
            CHECK(again < n && !memcmp(&tags[again++], &nodes[i].link.publish, sizeof *tags), "node %d: another generation", i);
        if (nodes[i].kind == KERNEL_UP && units) CHECK(!nodes[i].link.await.mask, "node %d polls", i);
    }
    CHECK(again == n, "%d of %d stores", again, n);
}

// A kernel that is launched in pieces is not polled, and its pieces share a generation: a row's bits do not depend on the
// number of rows. Without experts_up nothing bounds the age of a value: nothing is polled.
static void test_pieces(void) {
    add_step(4, 4, -1);
    for (int i = 0; i < count; i++)
        if (nodes[i].kind == KERNEL_ROUTER) {
            memmove(nodes + i + 1, nodes + i, (size_t)(count++ - i) * sizeof *nodes);
            nodes[i].pieces = nodes[i + 1].pieces = 2;
            nodes[++i].piece = 1;
        }
    CHECK(link_all(1), "pieces");
    for (int i = 1; i < count; i++) {
        if (nodes[i].kind == KERNEL_UP) CHECK(!nodes[i].link.await.mask, "a kernel in pieces is polled");
        if (nodes[i].piece) CHECK(nodes[i].link.publish.bits == nodes[i - 1].link.publish.bits, "pieces of one generation");
    }
    add_step(8, 4, -1);
    int left = 0;
    for (int i = 0; i < count; i++)
        if (nodes[i].kind != KERNEL_UP) nodes[left++] = nodes[i];
    count = left;
    schedule_conflict c;
    CHECK(schedule_link(nodes, count, 1, LIMIT, 0, &c), "a step cut down");
    for (int i = 0; i < count; i++) CHECK(!nodes[i].link.await.mask, "node %d polls without experts_up", i);
}

// A dense model's step, and its blocks in turn.
static void test_dense(int layers, int interval, int turns) {
    ffn = LAYER_MLP;
    in_turn = turns;
    add_step(layers, interval, turns ? -1 : 3);
    ffn = LAYER_MOE;
    in_turn = 0;
    CHECK(link_all(1), "%d dense layers, attention in every %d., in turn %d", layers, interval, turns);
    for (int i = 0; i < count && !turns; i++) {
        const node *n = &nodes[i];
        const int polls = !n->in_mtp && n->layer > 0 && kernels[n->kind].polls;
        CHECK(!n->link.await.mask == !polls, "node %d, %s of layer %d polls: %d", i, kernels[n->kind].name, n->layer, !polls);
    }
}

// Layers of one sublayer, in any order: several mixers after each other, several FFNs.
static void test_single(const char *letters, int turns) {
    single = letters;
    in_turn = in_units = turns;
    add_step((int)strlen(letters), 1, -1);
    single = NULL;
    in_turn = in_units = 0;
    CHECK(link_all(1), "layers %s, in turn %d", letters, turns);
    for (int i = 1; i < count; i++) {
        const int after = (int)nodes[i - 1].kind;
        if (nodes[i].kind == KERNEL_MAMBA_IN && (after == KERNEL_DOWN || after == KERNEL_MAMBA_OUT))
            CHECK(!nodes[i].link.await.mask == (after == KERNEL_MAMBA_OUT), "layers %s, in turn %d: node %d polls", letters, turns, i);
    }
}

// A step of a model whose attention is indexed, with drafts, and its blocks in turn.
static void test_indexed(int turns) {
    indexed = 1;
    in_turn = turns;
    add_step(48, 4, turns ? -1 : 3);
    indexed = in_turn = 0;
    CHECK(link_all(1), "indexed attention, in turn %d", turns);
}

// Residual streams: what a sublayer reads is tagged and polled, once a sublayer, and no output is. In a range, too.
static void test_streams(int layers, int first, int drafts) {
    int x = 2 * first;
    streams = 1;
    first_layer = first;
    add_step(layers, 4, drafts);
    streams = first_layer = 0;
    CHECK(link_all(1), "streams, layers %d to %d", first, layers - 1);
    schedule_continue(nodes, count, 2 * first, first);
    for (int i = 0; i < count; i++) {
        const node *n = &nodes[i];
        const kernel_uses *k = &kernels[n->kind];
        if (k->polls == BUFFER_X) CHECK(!n->link.await.mask == (n->in_mtp || n->layer == first), "node %d, %s of layer %d", i, k->name, n->layer);
        if (k->polls == BUFFER_X && n->link.await.mask) CHECK(n->link.await.bits == ((uint32_t)x & 3), "node %d awaits", i);
        if (k->tags != BUFFER_X) continue;
        CHECK(!n->link.publish.mask == (n->in_mtp || n->layer < 0 || n->kind != KERNEL_STREAMS_UP), "node %d, %s tags", i, k->name);
        x += n->link.publish.mask != 0;
        CHECK(!n->link.publish.mask || n->link.publish.bits == ((uint32_t)x & 3), "node %d: generation %d", i, x);
    }
    CHECK(x == 2 * layers, "%d generations", x);
    for (int again = 0; again < (test_brief ? 3 : 50); again++) CHECK(run_once(), "a step with streams, run %d", again);
}

// Norms after sublayers: x is stored as often as without, by add_output, which whoever polls x polls in its place.
static void test_normed_after(enum layer_kind of) {
    int x = 0;
    ffn = of;
    normed_after = 1;
    add_step(8, 4, 3);
    ffn = LAYER_MOE;
    normed_after = 0;
    CHECK(link_all(1), "norms after sublayers");
    for (int i = 0; i < count; i++) {
        const node *n = &nodes[i];
        const kernel_uses *k = &kernels[n->kind];
        if (k->polls == BUFFER_X) CHECK(!n->link.await.mask == (n->in_mtp || n->layer == 0), "node %d, %s of layer %d polls", i, k->name, n->layer);
        if (k->polls == BUFFER_X && n->link.await.mask) CHECK(n[-1].kind == KERNEL_ADD_OUTPUT, "node %d polls %s", i, kernels[n[-1].kind].name);
        if (k->tags != BUFFER_X || n->in_mtp) continue;
        CHECK((n->link.publish.mask == 0) == n->stores_output, "node %d, %s tags", i, k->name);
        if (n->stores_output) continue;
        x++;
        CHECK(n->link.publish.bits == ((uint32_t)x & 3), "node %d: generation %d", i, x);
    }
    CHECK(x == 16, "%d generations", x);
}

// ---- 2. Refusals ----------------------------------------------------------------------------------------------------

static void refused(int at, int with, unsigned buffers, const char *rule) {
    schedule_conflict c = {-1, -1, 0, ""};
    int ok = schedule_link(nodes, count, 1, LIMIT, 1, &c);
    CHECK(!ok && c.node == at && c.with == with && c.buffers == buffers && strstr(c.rule, rule), "refused: node %d and %d: %s",
          c.node, c.with, c.rule);
    if (ok) return;                             // the message names both kernels, and the buffers
    CHECK(strstr(c.rule, kernels[nodes[at].kind].name) && strstr(c.rule, kernels[nodes[with].kind].name), "kernels: %s", c.rule);
    for (int b = 0; b < BUFFERS; b++)
        if (buffers >> b & 1) CHECK(strstr(strrchr(c.rule, ':'), buffer_names[b]), "%s: %s", buffer_names[b], c.rule);
}

static void test_refusals(void) {
    count = 0;                                  // experts_down reads x early: its predecessor must have released late
    add(KERNEL_EMBED, -1, 0);
    add(KERNEL_DOWN, 0, 0);
    refused(1, 0, BUFFER_X, "early read");
    count = 0;                                  // a layer's state belongs to one kernel of a step
    add(KERNEL_DELTA, 0, 0);
    add(KERNEL_IN_PROJ, 0, 0);
    add(KERNEL_DELTA, 0, 0);
    refused(2, 0, BUFFER_S | BUFFER_LOG, "early read");
    nodes[2].layer = 1;                         // another layer's is another
    CHECK(link_all(1), "two layers' states");
    count = 0;                                  // two drafts in a row, without the kernel that chooses between them
    add(KERNEL_ATTEND, 4, 1);
    add(KERNEL_O_PROJ, 4, 1);
    add(KERNEL_ATTEND, 4, 1);
    refused(2, 0, BUFFER_KV, "early read");
    nodes[0].kind = nodes[2].kind = KERNEL_INDEX_SCORES;
    refused(2, 0, BUFFER_KV, "early read");
    nodes[1].kind = KERNEL_SAMPLE_TOKEN;        // which never releases: what is before it is complete
    CHECK(link_all(1), "two drafts");
    count = 0;                                  // routing is stored before experts_up releases, h after
    add(KERNEL_UP, 0, 0);
    add(KERNEL_DOWN, 0, 0);
    CHECK(link_all(1), "early read of what is stored before the release");
    count = 0;                                  // where experts are, experts_up reads early, unless experts_place says so only now
    add(KERNEL_PLACE, 0, 0);
    add(KERNEL_UP, 0, 0);
    refused(1, 0, BUFFER_EXPERTS, "early read");
    nodes[1].late_reads = BUFFER_EXPERTS;
    CHECK(link_all(1), "late read of addresses");
    nodes[1].late_reads = 0;
    nodes[1].layer = 1;
    CHECK(link_all(1), "another layer's addresses");
}

// ---- 3. A machine that runs schedules in random order -------------------------------------------------------------------

// What a value in memory is: the node that stored it, and its tag.
typedef struct content { int writer; unsigned tag; } content;

enum { LAYERS = 3, DO_START, DO_EARLY, DO_POLL, DO_WAIT, DO_READ, DO_WRITE, DO_RELEASE, DO_END };

typedef struct running {
    int started, polled, waited, released, ended;
    unsigned early_reads, early_writes, reads, writes;      // still to be done
} running;

static running run[MOST_NODES];
static content memory[BUFFERS][LAYERS];

static content *cell(const node *n, int b) {
    return &memory[b][BUFFERS_OF_LAYER >> b & 1 && n->layer >= 0 ? n->layer % LAYERS : 0];
}

// The node before i that stores this buffer last; -1: none.
static int writer_before(int i, int b) {
    for (int j = i - 1; j >= 0; j--) {
        unsigned stored = node_writes(&nodes[j]);
        if (stored >> b & 1 && cell(&nodes[j], b) == cell(&nodes[i], b)) return j;
    }
    return -1;
}

static int right_value(int i, int b) {
    return cell(&nodes[i], b)->writer == writer_before(i, b);
}

// A node stores a buffer: no node before it may still have to read it, or to store it.
static int store(int i, int b) {
    int ok = 1;
    for (int j = 0; j < i; j++) {
        unsigned left = run[j].early_reads | run[j].reads | run[j].early_writes | run[j].writes;
        // what the tagged values of the predecessor depend on, it has loaded when they are seen
        if (run[i].polled && j == i - 1)
            left &= node_buffers(&nodes[j], kernels[nodes[j].kind].reads_without_tags) |
                    (node_writes(&nodes[j]) & ~node_buffers(&nodes[j], node_tags(&nodes[j])));
        if (left >> b & 1 && cell(&nodes[j], b) == cell(&nodes[i], b)) ok = 0;
    }
    content *c = cell(&nodes[i], b);
    c->writer = i;
    c->tag = node_tags(&nodes[i]) >> b & 1 && nodes[i].link.publish.mask ? nodes[i].link.publish.bits
                                                                                : random_bits() & 3;
    return ok;
}

static int lowest(unsigned set) {
    int b = random_int(0, BUFFERS - 1);
    while (!(set >> b & 1)) b = (b + 1) % BUFFERS;
    return b;
}

// Tries to take one event of node i; *wrong: it went wrong. 0: there was none to take.
static int event(int i, int *wrong) {
    running *r = &run[i];
    const node *n = &nodes[i];
    const kernel_uses *k = &kernels[n->kind];
    if (r->ended || (!r->started && i && !run[i - 1].released && !run[i - 1].ended)) return 0;
    if (!r->started) {
        r->started = 1;
        r->released = k->release == RELEASE_ENTRY;
        return 1;
    }
    if (r->early_reads) {
        int b = lowest(r->early_reads);
        r->early_reads &= ~(1u << b);
        *wrong |= !right_value(i, b);
        return 1;
    }
    if (r->early_writes) {
        int b = lowest(r->early_writes);
        r->early_writes &= ~(1u << b);
        r->writes &= ~(1u << b);
        *wrong |= !store(i, b);
        return 1;
    }
    if (n->link.await.mask && !r->polled) {
        int b = lowest(k->polls);
        if (cell(n, b)->tag != n->link.await.bits) return 0;
        r->polled = 1;
        *wrong |= !right_value(i, b);                       // an older value with the same tag?
        for (b = 0; b < BUFFERS; b++)                       // all else that it reads is there, too, but for what it leaves until its wait
            if ((k->reads & ~n->late_reads) >> b & 1) *wrong |= !right_value(i, b);
        r->reads &= n->late_reads;
        return 1;
    }
    unsigned free = r->waited ? r->writes : r->polled ? r->writes & k->polled_writes : 0;
    if (free && (!r->waited || !r->reads) && (r->waited || random_int(0, 1))) {
        int b = lowest(free);
        r->writes &= ~(1u << b);
        *wrong |= !store(i, b);
        return 1;
    }
    if (!r->waited) return i && !run[i - 1].ended ? 0 : (r->waited = 1);
    if (r->reads) {
        int b = lowest(r->reads);
        r->reads &= ~(1u << b);
        *wrong |= !right_value(i, b);
        return 1;
    }
    if (k->release == RELEASE_LATE && !r->released && !(r->writes & k->released)) return r->released = 1;
    return r->writes ? 0 : (r->ended = 1);
}

// Runs the schedule once. 0: it hung, or something went wrong.
static int run_once(void) {
    int first = 0, wrong = 0;
    memset(run, 0, sizeof run);
    for (int b = 0; b < BUFFERS; b++)
        for (int l = 0; l < LAYERS; l++) memory[b][l].writer = -1, memory[b][l].tag = random_bits() & 3;
    for (int i = 0; i < count; i++) {
        const kernel_uses *k = &kernels[nodes[i].kind];
        run[i].early_reads = node_early_reads(&nodes[i]);
        run[i].early_writes = node_buffers(&nodes[i], k->early_writes);
        run[i].reads = node_buffers(&nodes[i], k->reads);
        run[i].writes = node_writes(&nodes[i]);
    }
    while (first < count && !wrong) {
        int started = first, moved = 0;
        while (started < count && run[started].started) started++;
        int from = random_int(first, started < count ? started : count - 1), span = (started < count ? started : count - 1) - first + 1;
        for (int j = 0; j < span && !moved; j++) moved = event(first + (from - first + j) % span, &wrong);
        if (!moved) return 0;
        while (first < count && run[first].ended) first++;
    }
    return !wrong;
}

static void test_machine(void) {
    int accepted = 0, polls = 0, wrong = 0, caught = 0;
    int rounds = test_brief ? 300 : 20000;
    for (int round = 0; round < rounds; round++) {
        count = 0;
        const int n = random_int(2, 14), streamed = random_int(0, 1);
        for (int i = 0; i < n; i++) {
            node *x = add((enum kernel_kind)random_int(KERNEL_IN_PROJ, KERNEL_MLP_DOWN), random_int(0, LAYERS - 1), 0);
            x->can_poll = random_int(0, 4) > 0;
            // likely successors, so that there is something to poll
            if (i && random_int(0, 2)) x->layer = x[-1].layer;
            if (i && random_int(0, 2) && x[-1].kind < KERNEL_MLP_DOWN) x->kind = (enum kernel_kind)(x[-1].kind + 1);
            if (i && x[-1].kind == KERNEL_OUT_PROJ && random_int(0, 2)) x->kind = KERNEL_ROUTER;
            if (i && x[-1].stores_output && random_int(0, 3)) x->kind = KERNEL_ADD_OUTPUT;
            if (i && x[-1].kind == KERNEL_ADD_OUTPUT && random_int(0, 2)) x->kind = random_int(0, 1) ? KERNEL_ROUTER : KERNEL_IN_PROJ;
            if (i && x[-1].kind == KERNEL_PLACE && random_int(0, 2)) x->kind = KERNEL_UP;
            if (streamed && random_int(0, 5) == 0) x->kind = KERNEL_STREAMS_UP;
            if (i && x[-1].kind == KERNEL_STREAMS_UP && random_int(0, 2)) x->kind = random_int(0, 1) ? KERNEL_ROUTER : KERNEL_IN_PROJ;
            x->late_reads = x->kind == KERNEL_UP && random_int(0, 1) ? BUFFER_EXPERTS : 0;
            x->stores_output = kernels[x->kind].tags == BUFFER_X && x->kind != KERNEL_ADD_OUTPUT && x->kind != KERNEL_STREAMS_UP &&
                               (streamed || random_int(0, 2) == 0);
        }
        schedule_conflict c;
        int ok = schedule_link(nodes, count, 1, LIMIT, 1, &c);
        if (!ok) schedule_link(nodes, count, 1, LIMIT, 0, &c);
        accepted += ok;
        for (int i = 0; i < count; i++) polls += ok && nodes[i].link.await.mask;
        for (int again = 0; again < 5; again++) {
            int went = run_once();
            if (ok) wrong += !went;
            else if (!went && ++caught) break;
        }
    }
    CHECK(!wrong, "%d runs of accepted schedules went wrong", wrong);
    CHECK(accepted > rounds / 50 && polls > rounds / 200, "%d accepted, with %d polls", accepted, polls);
    CHECK(caught > rounds / 50, "the machine sees only %d of the schedules that are refused go wrong", caught);
    printf("%d random schedules: %d accepted with %d polls; of the others %d were seen going wrong\n", rounds, accepted, polls,
           caught);
}

// Real steps, and such with a broken tag, which the machine must notice.
static void test_machine_real(void) {
    int went = 0;
    for (int again = 0; again < (test_brief ? 3 : 100); again++) {
        ffn = again % 2 ? LAYER_MLP : LAYER_MOE;
        normed_after = again % 3 == 2;
        indexed = again % 5 > 2;
        add_step(8, 4, 2);
        normed_after = indexed = 0;
        link_all(1);
        CHECK(run_once(), "a real step, run %d", again);
        ffn = LAYER_MOE;
        test_single("MEM*EMMEE*-M", 0);
        CHECK(run_once(), "layers of one sublayer, run %d", again);
    }
    for (int again = 0; again < 100; again++) {
        add_step(8, 4, -1);
        link_all(1);
        for (int i = 0; i < count; i++)
            if (nodes[i].kind == KERNEL_ROUTER && nodes[i].layer == 5) nodes[i].link.await.bits ^= 2;
        went += run_once();
    }
    CHECK(went < 100, "a wrong tag was never noticed");
}

// ---- 4. Shared memory -----------------------------------------------------------------------------------------------

enum { KB = 1024, SMS = 132, MOST_SHARED = 228 * KB };

static node *add_shared(enum kernel_kind kind, int shared, int blocks) {
    node *n = add(kind, 0, 0);
    n->shared = shared;
    n->blocks = blocks;
    return n;
}

static void test_shared(void) {
    count = 0;
    CHECK(schedule_shared(nodes, 0, SMS, MOST_SHARED) == 0, "no kernels need no shared memory");
    add_shared(KERNEL_ROUTER, 10 * KB, SMS);
    CHECK(schedule_shared(nodes, count, SMS, MOST_SHARED) == 10 * KB, "one kernel needs its own");
    add_shared(KERNEL_UP, 30 * KB, SMS);
    add_shared(KERNEL_DOWN, 20 * KB, SMS - 4);
    CHECK(schedule_shared(nodes, count, SMS, MOST_SHARED) == 50 * KB, "a block beside one of its predecessor");
    nodes[1].blocks = SMS + 1;
    CHECK(schedule_shared(nodes, count, SMS, MOST_SHARED) == 60 * KB, "two of a kernel with more blocks than SMs");
    CHECK(schedule_shared(nodes, count, SMS, 40 * KB) == 40 * KB, "at most what there is");
    CHECK(schedule_block_shared(nodes, count, 1, SMS, 60 * KB, MOST_SHARED) == 30 * KB, "a block has its own");
    for (int need = 40 * KB; need <= MOST_SHARED; need += KB) {
        const int got = schedule_block_shared(nodes, count, 2, SMS, need, MOST_SHARED);
        CHECK(got >= 20 * KB && 2 * got > need, "%d KB of %d KB: a second block fits", got / KB, need / KB);
    }
    CHECK(schedule_block_shared(nodes, count, 2, SMS, 60 * KB, MOST_SHARED) == 32 * KB + 1, "of 64 KB, the next size to 60");
    CHECK(schedule_block_shared(nodes, count, 2, SMS, 101 * KB, 100 * KB) == 50 * KB + 1, "of the most there is");
    nodes[1].shared = 32 * KB;
    CHECK(schedule_block_shared(nodes, count, 2, SMS, 60 * KB, MOST_SHARED) == 20 * KB, "its predecessor's would not fit");
    nodes[1].shared = 30 * KB;
    add_shared(KERNEL_IN_PROJ, 32 * KB, 2 * SMS);
    CHECK(schedule_block_shared(nodes, count, 2, SMS, 60 * KB, MOST_SHARED) == 20 * KB, "its successor's would not fit");
    nodes[3].shared = 31 * KB;
    CHECK(schedule_block_shared(nodes, count, 2, SMS, 60 * KB, MOST_SHARED) == 32 * KB + 1, "both fit where they take less than half");
    nodes[2].blocks = SMS + 1;
    CHECK(schedule_block_shared(nodes, count, 2, SMS, 60 * KB, MOST_SHARED) == 20 * KB, "more blocks than SMs");
    nodes[2].blocks = SMS;
    nodes[2].shared = 40 * KB;
    CHECK(schedule_block_shared(nodes, count, 2, SMS, 60 * KB, MOST_SHARED) == 40 * KB, "more than half: its own is enough");
}

// ---- 5. Main --------------------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    test_main_begin("test_schedule", argc, argv);
    test_real(40, 4);
    test_real(48, 4);
    test_real(60, 4);
    test_real(4, 1);
    test_real(5, 100);
    for (int first = 1; first < 8; first++) test_range(8, first);
    for (int turns = 0; turns < 2; turns++) {
        test_single("MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", turns);
        test_single("MMMM**EE--M*M*-E", turns);
    }
    test_pieces();
    test_placed(8, 3);
    test_placed(48, -1);
    test_forms(1, 0);
    test_forms(0, 1);
    test_forms(1, 1);
    test_dense(64, 4, 0);
    test_dense(28, 1, 0);
    test_dense(8, 4, 1);
    test_indexed(0);
    test_indexed(1);
    test_normed_after(LAYER_MOE);
    test_normed_after(LAYER_MLP);
    test_streams(8, 0, 3);
    test_streams(8, 3, 3);
    test_streams(48, 0, -1);
    test_refusals();
    test_machine();
    test_machine_real();
    test_shared();
    return test_main_end();
}
