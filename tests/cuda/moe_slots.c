// Part of gpu_batch_moe.c: experts whose home is host memory, and slots for them (layers/moe/place.cu). With any number of slots and after any
// history, rows have the bits that they have where all experts are on the device; slots hold what they are said to, and the least recently used
// ones are filled.

enum { SETS_OF_LOGITS = 4 };

static moe_slots slots;          // of the layer
static char *home, *slot_memory; // [experts][expert_bytes] in host memory; what the slots' kernel has on the device

// Logits of set s, of which experts are used often and seldom.
static void make_logits_of_set(int s, float *logits) {
    const int n = L.w.shape.experts;
    make_logits(INDEPENDENT, (uint32_t)s + 31, logits);
    for (int i = 0; i < ROWS * n; i++) logits[i] += (i % n + 5 * (s / 2)) % 7 < 2 ? 2 : 0;
}

// Brings the experts, which test_moved has moved, into host memory. Where they were, no number is left.
static void move_home(void) {
    const int experts = L.w.shape.experts;
    CUDA(cudaHostAlloc((void **)&home, L.expert_bytes * (size_t)experts, cudaHostAllocMapped));
    for (int e = 0; e < experts; e++) {
        matrix *const own[3] = {&L.w.gate_proj[e], &L.w.up_proj[e], &L.w.down_proj[e]};
        const char *from = (const char *)own[0]->component[CODES];
        char *to = home + (size_t)e * L.expert_bytes;
        CUDA(cudaMemcpy(to, from, L.expert_bytes, cudaMemcpyDeviceToHost));
        for (int i = 0; i < 3; i++) {
            for (int k = 0; (i != 1 || own[1] != own[0]) && k < formats[own[i]->format]->component_count; k++)
                own[i]->component[k] = to + ((const char *)own[i]->component[k] - from);
            if (own[i]->bias) own[i]->bias = (const float *)(void *)(to + ((const char *)own[i]->bias - from));
        }
    }
    CUDA(cudaMemset(L.moved, 0xff, (size_t)experts * (L.expert_bytes + 2048)));
    put_table();
    L.w.host_at = home;
    L.w.piece = L.expert_bytes;
}

// Empty slots.
static void open_slots(int count) {
    uint32_t order[GPU_EXPERTS];
    const size_t bytes = (size_t)count * L.w.piece;
    memset(&slots, 0, sizeof slots);
    CUDA(cudaMalloc(&slot_memory, bytes + 32768));
    CUDA(cudaMemset(slot_memory, 0, bytes + 32768));
    slots.count = count;
    slots.piece = (int64_t)L.w.piece;
    slots.host = home;
    slots.at = (int64_t *)(void *)slot_memory;
    slots.order = (uint32_t *)(void *)(slot_memory + 8192);
    slots.seen = (unsigned long long *)(void *)(slot_memory + 16384);
    slots.ready = (uint32_t *)(void *)(slot_memory + 20480);
    slots.recent = (uint16_t *)(void *)(slot_memory + 24576);
    slots.memory = slot_memory + 32768;
    for (int i = 0; i < count; i++) order[i] = (uint32_t)PLACE_NONE << 16 | (uint32_t)i;
    CUDA(cudaMemcpy(slots.order, order, (size_t)count * sizeof *order, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(slots.at, L.expert_at, (size_t)L.w.shape.experts * sizeof *slots.at, cudaMemcpyDeviceToDevice));
    L.p.slots = &slots;
}

static void close_slots(void) {
    cudaFree(slot_memory);
    L.p.slots = NULL;
}

// What experts_place should do: the same by loops. Slots from the least recently used one, each one's expert, -1: none.
typedef struct model_of_slots { int count, slot[GPU_EXPERTS], expert[GPU_EXPERTS]; unsigned long long hits, misses; } model_of_slots;

static void model_begin(model_of_slots *m, int count) {
    memset(m, 0, sizeof *m);
    m->count = count;
    for (int i = 0; i < count; i++) m->slot[i] = i, m->expert[i] = -1;
}

static void model_pass(model_of_slots *m, const uint8_t *chosen) {
    model_of_slots was = *m;
    int missing[GPU_EXPERTS], misses = 0, hits = 0, idle = 0, n = 0, used = 0;
    for (int i = 0; i < m->count; i++) hits += was.expert[i] >= 0 && chosen[was.expert[i]];
    for (int e = 0; e < L.w.shape.experts; e++) {
        int resident = 0;
        for (int i = 0; i < m->count; i++) resident |= was.expert[i] == e;
        if (chosen[e] && !resident) missing[misses++] = e;
    }
    const int filled = misses < m->count - hits ? misses : m->count - hits;
    used = m->count - hits;
    for (int i = 0; i < m->count; i++) {
        const int is_used = was.expert[i] >= 0 && chosen[was.expert[i]], at = is_used ? used++ : idle < filled ? m->count - hits - filled + idle : n++;
        m->slot[at] = was.slot[i];
        m->expert[at] = is_used || idle >= filled ? was.expert[i] : missing[idle];
        idle += !is_used;
    }
    m->hits += (unsigned long long)hits;
    m->misses += (unsigned long long)misses;
}

// The experts of T rows: those of the largest logits.
static void choose_rows(const float *logits, int T, uint8_t *chosen) {
    const int n = L.w.shape.experts;
    memset(chosen, 0, GPU_EXPERTS);
    for (int t = 0; t < T; t++) {
        uint8_t of[GPU_EXPERTS] = {0};
        for (int r = 0; r < L.w.shape.top_k; r++) {
            int best = -1;
            for (int e = 0; e < n; e++)
                if (!of[e] && (best < 0 || logits[t * n + e] > logits[t * n + best])) best = e;
            of[best] = chosen[best] = 1;
        }
    }
}

// Order, table, contents of slots, and, where a row's experts are those of the largest logits, all that the model has.
static void check_slots(const layer_case *c, const char *what, const model_of_slots *m) {
    uint32_t order[GPU_EXPERTS];
    int64_t at[GPU_EXPERTS];
    unsigned long long seen[MOE_SEEN];
    int wrong = 0, other = 0, bytes = 0, is_slot[GPU_EXPERTS] = {0}, resident[GPU_EXPERTS] = {0};
    char *piece = (char *)malloc(L.w.piece);
    CUDA(cudaMemcpy(order, slots.order, (size_t)slots.count * sizeof *order, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(at, slots.at, (size_t)c->experts * sizeof *at, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(seen, slots.seen, sizeof seen, cudaMemcpyDeviceToHost));
    for (int i = 0; i < slots.count; i++) {
        const int slot = order[i] & 0xffff, expert = (int)(order[i] >> 16);
        wrong += slot >= slots.count || is_slot[slot]++;
        if (m) other += slot != m->slot[i] || (expert == PLACE_NONE ? -1 : expert) != m->expert[i];
        if (expert == PLACE_NONE) continue;
        wrong += expert >= c->experts || resident[expert]++ || slots.host + at[expert] != slots.memory + slot * slots.piece;
        CUDA(cudaMemcpy(piece, slots.memory + slot * slots.piece, L.w.piece, cudaMemcpyDeviceToHost));
        bytes += memcmp(piece, home + expert * slots.piece, L.w.piece) != 0;
    }
    for (int e = 0; e < c->experts; e++) wrong += !resident[e] && at[e] != e * slots.piece;
    CHECK(!wrong && !bytes, "%s, %s: %d entries are wrong, %d slots have other bytes", c->name, what, wrong, bytes);
    if (m) CHECK(!other && seen[MOE_SEEN_HITS] == m->hits && seen[MOE_SEEN_MISSES] == m->misses,
                 "%s, %s: %d slots are not in their order; hits %llu, not %llu, misses %llu, not %llu", c->name, what, other,
                 seen[MOE_SEEN_HITS], m->hits, seen[MOE_SEEN_MISSES], m->misses);
    free(piece);
}

// A history of random passes. wants: [SETS_OF_LOGITS] what rows should become.
static void test_slots(const layer_case *c, int count, float *const *logits, float *const *wants) {
    static const int rows[] = {1, 1, 1, 2, 3, 4, 1, 2, 5, 8, 17, 64};
    float *kept = want;
    uint8_t chosen[GPU_EXPERTS];
    model_of_slots m;
    char what[64];
    open_slots(count);
    model_begin(&m, count);
    for (int pass = 0; pass < (test_brief ? 8 : 30); pass++) {
        const int s = random_int(0, SETS_OF_LOGITS - 1), T = rows[random_int(0, test_brief ? 8 : 11)];
        snprintf(what, sizeof what, "%d slots, pass %d, logits %d", count, pass, s);
        want = wants[s];
        put_rows(start);
        run(0, T, T > STEP_ROWS || random_int(0, 3) == 0, logits[s]);
        get_rows(got);
        compare(c->name, what, T, 0, T);
        choose_rows(logits[s], T, chosen);
        model_pass(&m, chosen);
        if (!test_brief || pass % 4 == 3) check_slots(c, what, moe_ranks_scores(&L.w.shape) ? NULL : &m);
    }
    want = kept;
    close_slots();
}

static void test_home(const layer_case *c) {
    const int counts[] = {1, c->top_k, 2 * c->top_k + 1, c->experts - 1, c->experts};
    float *logits[SETS_OF_LOGITS], *wants[SETS_OF_LOGITS], *kept = want;
    const size_t n = (size_t)ROWS * (size_t)c->hidden * (L.branches.shared_to ? 2 : 1);
    for (int s = 0; s < SETS_OF_LOGITS; s++) {
        logits[s] = (float *)malloc(ROWS * (size_t)c->experts * 4);
        wants[s] = (float *)malloc(n * 4);
        make_logits_of_set(s, logits[s]);
        want = wants[s];
        want_alone(logits[s]);
    }
    want = kept;
    move_home();
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i] <= c->experts && (!test_brief || i % 2 == 0)) test_slots(c, counts[i], logits, wants);
    for (int s = 0; s < SETS_OF_LOGITS; s++) free(logits[s]), free(wants[s]);
    cudaFreeHost(home);
    L.w.host_at = NULL;
}
