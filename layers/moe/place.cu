/* layers/moe/place.cu: experts_place: which experts of a layer whose home is host memory also lie in slots of device memory. It runs between
   norm_router and the kernels that read experts, and knows addresses and bytes of experts, nothing of what is in them.

   A runner has so many slots for each such layer (moe_slots), and a table of where the layer's experts are: in the slot that one has, else in host
   memory, from where kernels read it in place. experts_place chooses experts as experts_up does, and copies those that are in no slot into the
   slots that were not used for longest (LRU); experts that this pass needs stay where they are. If there are more than slots, the rest is read in
   place. What is chosen decides where experts lie and nothing else: their bits are the same everywhere.

   Grid: PLACE_BLOCKS blocks, which fill the link; each finds the same plan for itself, as a hand-off between blocks would take longer, and copies
   its part of each expert. Who is the last to have read the order of slots writes the new one, the table and the counts.

   Latency. Between the last logit and experts_up's first weight all of this is on the critical path. So what does not depend on the routing is done
   before it is known: the order is read, and it is found who will write the new one. Without misses nothing is copied, and the other blocks end.
   Where it polls the logits it copies and writes before its wait: norm_router reads no expert, and what comes before that is complete once logits
   are there.

   Memory order. The order is read before the block counts itself as ready, and changed by the last one to do so. Its successor, and all after it,
   read slots and table after their own wait, experts_down after experts_up has released it, which does so after its wait. */

enum {
    PLACE_BLOCKS = 16,
    PLACE_LOADS = 8,                                        /* 16-byte loads that a thread has in flight */
    PLACE_PART = GPU_THREADS * PLACE_LOADS * 16,            /* bytes that a block copies at a time */
    PLACE_OWN = GPU_EXPERTS / GPU_THREADS,                  /* neighbouring entries of the order that a thread has */
    PLACE_NONE = 0xffff,                                    /* a slot's expert: it has none yet */
    MOE_RECENT = 64                                         /* of simulated routing: experts that a layer remembers */
};

/* What a layer counts: experts that passes found in slots, that they did not; passes; bytes that were copied for prompts. */
enum { MOE_SEEN_HITS, MOE_SEEN_MISSES, MOE_SEEN_PASSES, MOE_SEEN_BROUGHT, MOE_SEEN };

/* The slots of a layer, in a runner's memory. */
typedef struct moe_slots {
    int count;                                              /* slots; 0: the layer has none */
    int resident;                                           /* all experts are in slots, since the runner was opened: nothing has to be placed */
    int64_t piece;                                          /* bytes of an expert, a multiple of 16 */
    const char *host;                                       /* [experts][piece] in mapped host memory: where the layer's experts are */
    char *memory;                                           /* [count][piece] */
    int64_t *at;                                            /* [experts] bytes from expert 0 in host memory to where each one is read */
    uint32_t *order;                                        /* [count] slots, least recently used first: expert << 16 | slot */
    unsigned long long *seen;                               /* [MOE_SEEN] counts since the runner was opened */
    uint32_t *ready;                                        /* blocks that have read the order; 0 between two launches */
    uint16_t *recent;                                       /* [MOE_RECENT] of simulated routing: experts that were used last */
} moe_slots;

typedef struct moe_place {
    handoff link;
    moe_gpu moe;
    moe_slots slots;
} moe_place;

/* What a block is to do, in shared memory. */
struct gpu_place_plan {
    uint32_t chosen[GPU_EXPERTS / 32], resident[GPU_EXPERTS / 32];      /* bit sets of experts: of this pass; in slots */
    uint16_t missing[GPU_EXPERTS], victim[GPU_EXPERTS];     /* number k: an expert to be copied, and into which slot */
    uint16_t evicted[GPU_EXPERTS];                          /* the expert that slot had */
    int warps[GPU_WARPS];
    int hits, misses, last;                                 /* experts of this pass in slots; not in slots; the block writes the new order */
};

/* Parts in which an expert of so many bytes is copied. */
__host__ __device__ __forceinline__ int gpu_expert_parts(int64_t piece) {
    return (int)((piece - 1) / PLACE_PART) + 1;
}

/* A block copies one of them. Returns its bytes. */
__device__ __forceinline__ int gpu_copy_part(char *to, const char *from, int64_t piece, int part) {
    const int64_t begin = (int64_t)part * PLACE_PART + threadIdx.x * 16;
    uint4 v[PLACE_LOADS];
#pragma unroll
    for (int k = 0; k < PLACE_LOADS; k++) {
        v[k] = make_uint4(0, 0, 0, 0);
        ld_streaming(&v[k], from + begin + k * GPU_THREADS * 16, begin + k * GPU_THREADS * 16 < piece);
    }
#pragma unroll
    for (int k = 0; k < PLACE_LOADS; k++)
        if (begin + k * GPU_THREADS * 16 < piece) *(uint4 *)(to + begin + k * GPU_THREADS * 16) = v[k];
    return (int)min(piece - (int64_t)part * PLACE_PART, (int64_t)PLACE_PART);
}

/* The experts of row t, as experts_up chooses them, when norm_router's logits have arrived. */
template <int LISTS> __device__ __forceinline__ int gpu_place_choice(const moe_place &p, int t) {
    uint32_t key[LISTS][8];
    load_logits<LISTS, STEP_ROWS>(p.moe, t, p.link.await, key);
    return gpu_choose<LISTS>(p.moe, key);
}

/* A warp has every eighth row. */
__device__ __forceinline__ void gpu_place_choose(const moe_place &p, gpu_place_plan *plan) {
#pragma unroll 1
    for (int t = threadIdx.x / 32; t < p.moe.T; t += GPU_WARPS) {
        const int few = p.moe.shape.experts <= 256;
        const int expert = few ? gpu_place_choice<1>(p, t) : gpu_place_choice<GPU_EXPERTS / 256>(p, t);
        if ((int)threadIdx.x % 32 < p.moe.shape.top_k) atomicOr(&plan->chosen[expert / 32], 1u << expert % 32);
    }
}

/* The thread's entries of the order; after the last one PLACE_NONE. */
__device__ __forceinline__ void gpu_place_load(const moe_slots &s, uint32_t *entry) {
#pragma unroll
    for (int k = 0; k < PLACE_OWN; k++) {
        const int i = threadIdx.x * PLACE_OWN + k;
        entry[k] = i < s.count ? __ldcg(s.order + i) : (uint32_t)PLACE_NONE << 16;
    }
}

__device__ __forceinline__ bool gpu_in_set(const uint32_t *set, uint32_t expert) {
    return expert < GPU_EXPERTS && (set[expert / 32] >> expert % 32 & 1);
}

/* Lists the chosen experts that are in no slot, ascending. One warp. */
__device__ __forceinline__ void gpu_place_missing(gpu_place_plan *plan) {
    const int lane = threadIdx.x % 32;
    uint32_t left = plan->chosen[lane] & ~plan->resident[lane];
    const int hits = __reduce_add_sync(~0u, __popc(plan->chosen[lane] & plan->resident[lane])), own = __popc(left);
    const int upto = warp_prefix_sum(own);
    for (int k = upto - own; left; k++, left &= left - 1) plan->missing[k] = (uint16_t)(lane * 32 + __ffs((int)left) - 1);
    if (lane != 31) return;
    plan->hits = hits;
    plan->misses = upto;
}

/* The slots before the thread's first entry that this pass does not use. All threads of the block call it. */
__device__ __forceinline__ int gpu_place_idle(const moe_slots &s, gpu_place_plan *plan, const uint32_t *entry) {
    int own = 0;
#pragma unroll
    for (int k = 0; k < PLACE_OWN; k++)
        own += (int)threadIdx.x * PLACE_OWN + k < s.count && !gpu_in_set(plan->chosen, entry[k] >> 16);
    const int upto = warp_prefix_sum(own), warp = threadIdx.x / 32;
    int before = upto - own;
    if (threadIdx.x % 32 == 31) plan->warps[warp] = upto;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < GPU_WARPS; w++) before += w < warp ? plan->warps[w] : 0;
    return before;
}

/* Experts that are copied: as many as there are slots which this pass does not use. */
__device__ __forceinline__ int gpu_place_filled(const moe_slots &s, const gpu_place_plan *plan) {
    return min(plan->misses, s.count - plan->hits);
}

/* The first idle slots are filled. idle: number of the thread's first one. */
__device__ __forceinline__ void gpu_place_victims(const moe_slots &s, gpu_place_plan *plan, const uint32_t *entry, int idle) {
    const int filled = gpu_place_filled(s, plan);
#pragma unroll
    for (int k = 0; k < PLACE_OWN; k++) {
        if ((int)threadIdx.x * PLACE_OWN + k >= s.count || gpu_in_set(plan->chosen, entry[k] >> 16)) continue;
        if (idle < filled) {
            plan->victim[idle] = (uint16_t)entry[k];
            plan->evicted[idle] = (uint16_t)(entry[k] >> 16);
        }
        idle++;
    }
}

/* The new order: slots that stay idle, then those that are filled, then those that were used again. */
__device__ __forceinline__ void gpu_place_order(const moe_slots &s, const gpu_place_plan *plan, const uint32_t *entry, int idle) {
    const int filled = gpu_place_filled(s, plan), used = s.count - plan->hits;
#pragma unroll
    for (int k = 0; k < PLACE_OWN; k++) {
        const int i = threadIdx.x * PLACE_OWN + k;
        if (i >= s.count) continue;
        if (gpu_in_set(plan->chosen, entry[k] >> 16)) {
            s.order[used + i - idle] = entry[k];
        } else if (idle < filled) {
            s.order[used - filled + idle] = (uint32_t)plan->missing[idle] << 16 | (entry[k] & 0xffff);
            idle++;
        } else {
            s.order[idle++ - filled] = entry[k];
        }
    }
}

/* Where experts are from now on, and the counts. */
__device__ __forceinline__ void gpu_place_table(const moe_slots &s, const gpu_place_plan *plan) {
    for (int k = threadIdx.x; k < gpu_place_filled(s, plan); k += GPU_THREADS) {
        if (plan->evicted[k] != PLACE_NONE) s.at[plan->evicted[k]] = plan->evicted[k] * s.piece;
        s.at[plan->missing[k]] = s.memory - s.host + plan->victim[k] * s.piece;
    }
    if (threadIdx.x) return;
    atomicAdd(&s.seen[MOE_SEEN_HITS], (unsigned long long)plan->hits);
    atomicAdd(&s.seen[MOE_SEEN_MISSES], (unsigned long long)plan->misses);
    atomicAdd(&s.seen[MOE_SEEN_PASSES], 1ull);
}

/* Copies the block's parts of the experts. */
__device__ __forceinline__ void gpu_place_copy(const moe_slots &s, const gpu_place_plan *plan) {
    const int parts = gpu_expert_parts(s.piece), all = gpu_place_filled(s, plan) * parts;
#pragma unroll 1
    for (int i = blockIdx.x; i < all; i += gridDim.x)
        (void)gpu_copy_part(s.memory + plan->victim[i / parts] * s.piece, s.host + plan->missing[i / parts] * s.piece, s.piece, i % parts);
}

/* Simulated routing (mote_simulate_experts): of a row's experts the share `locality`, of 2^32, is drawn from the last ones that the layer has
   used, the others from all. They are drawn before experts_place waits for the router, and used after that, as if they came from there: so that
   drawing takes no time that choosing would not. Then it writes logits by which its successors choose the same. */
struct gpu_place_draws {
    uint16_t of[BATCH_ROWS_MAX][GPU_TOP];                   /* of a row */
    uint16_t recent[MOE_RECENT];                            /* moe_slots.recent as it was */
};

/* How many of moe_slots.recent count. */
__device__ __forceinline__ int gpu_place_recent(const moe_place &p) {
    return min((int)MOE_RECENT, 2 * p.moe.shape.top_k);
}

/* A warp draws the experts of row t, each another one: a lane draws again as long as one before it has the same. */
__device__ __forceinline__ void gpu_place_draw(const moe_place &p, gpu_place_plan *plan, gpu_place_draws *draws, int t) {
    enum { TRIES = 64 };
    const int lane = threadIdx.x % 32, is = lane < p.moe.shape.top_k;
    const uint64_t seed = (uint64_t)(uintptr_t)p.slots.at ^ __ldcg(&p.slots.seen[MOE_SEEN_PASSES]) << 40;
    uint64_t draw = (uint64_t)t << 32 | (uint64_t)lane << 24;
    const bool recent = uniform(seed, draw++) * 4294967296.0 < p.moe.locality;
    int expert = 0, again = is;
    for (int n = 0; __any_sync(~0u, again); n++) {
        if (again && n >= TRIES) expert = (expert + 1) % p.moe.shape.experts;
        else if (again) {
            const double u = uniform(seed, draw++);
            expert = recent ? draws->recent[(int)(u * gpu_place_recent(p))] : (int)(u * p.moe.shape.experts);
        }
        const uint32_t same = __match_any_sync(~0u, is ? expert : -1 - lane);
        again = is && (same & ((1u << lane) - 1));
    }
    if (!is) return;
    draws->of[t][lane] = (uint16_t)expert;
    atomicOr(&plan->chosen[expert / 32], 1u << expert % 32);
}

/* A warp has every eighth row. */
__device__ __forceinline__ void gpu_place_draw_all(const moe_place &p, gpu_place_plan *plan, gpu_place_draws *draws) {
    for (int t = threadIdx.x / 32; t < p.moe.T; t += GPU_WARPS) gpu_place_draw(p, plan, draws, t);
}

/* Logits by which all others choose the same, and the experts that were used last. One block, all of whose threads call it. */
__device__ __forceinline__ void gpu_place_pretend(const moe_place &p, const gpu_place_draws *draws) {
    const int experts = p.moe.shape.experts, top_k = p.moe.shape.top_k, uses = p.moe.T * top_k, recent = gpu_place_recent(p);
    for (int i = threadIdx.x; i < p.moe.T * experts; i += GPU_THREADS) p.moe.router[i] = -64;
    if ((int)threadIdx.x < recent) {
        const int i = threadIdx.x + uses;
        p.slots.recent[threadIdx.x] = i < recent ? draws->recent[i] : draws->of[(i - recent) / top_k][(i - recent) % top_k];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < uses; i += GPU_THREADS)
        p.moe.router[i / top_k * experts + draws->of[i / top_k][i % top_k]] = 4 - 0.125f * (float)(i % top_k);
}

/* Whether the block is the last one to have read what places are found by. One thread, after all others have; the count then is 0 again. */
__device__ __forceinline__ int gpu_place_is_last(const moe_slots &s) {
    __threadfence();
    const int last = atomicInc(s.ready, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
    return last;
}

/* What it waits for before its end is norm_router, if it has polled that. */
template <bool SIMULATED> __global__ void __launch_bounds__(GPU_THREADS) gpu_experts_place(const __grid_constant__ moe_place p) {
    typedef typename std::conditional<SIMULATED, gpu_place_draws, char>::type draws_type;
    __shared__ gpu_place_plan plan;
    __shared__ draws_type draws;
    uint32_t entry[PLACE_OWN];
    pdl_launch_dependents();
    if (threadIdx.x < GPU_EXPERTS / 32) plan.chosen[threadIdx.x] = plan.resident[threadIdx.x] = 0;
    gpu_place_load(p.slots, entry);
    if constexpr (SIMULATED)
        if (threadIdx.x < MOE_RECENT) draws.recent[threadIdx.x] = __ldcg(&p.slots.recent[threadIdx.x]);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < PLACE_OWN; k++) {
        const uint32_t expert = entry[k] >> 16;
        if (expert < GPU_EXPERTS) atomicOr(&plan.resident[expert / 32], 1u << expert % 32);
    }
    if constexpr (SIMULATED) gpu_place_draw_all(p, &plan, &draws);
    __syncthreads();
    if (threadIdx.x == GPU_THREADS - 1) plan.last = gpu_place_is_last(p.slots);     /* of the warp that is the last to have a row to choose for */
    if (!p.link.await.mask) pdl_wait();
    if constexpr (!SIMULATED) gpu_place_choose(p, &plan);
    __syncthreads();
    if (threadIdx.x < 32) gpu_place_missing(&plan);
    const int idle = gpu_place_idle(p.slots, &plan, entry);
    if (plan.misses) {
        gpu_place_victims(p.slots, &plan, entry, idle);
        __syncthreads();
        gpu_place_copy(p.slots, &plan);
    }
    if (plan.last) {
        gpu_place_order(p.slots, &plan, entry, idle);
        gpu_place_table(p.slots, &plan);
        if constexpr (SIMULATED) gpu_place_pretend(p, &draws);
    }
    pdl_wait();
}
