/* cuda/handoff.cu: how a kernel hands its results to the next: programmatic dependent launch, tags, barriers. */

/* Everything before this kernel is complete and visible. Before it only weights may be read, state that no kernel of this
   step writes, and what was complete before the predecessor triggered, if that triggers late. A rehearsal may read
   anything: what a kernel is to do right after its wait it does once before, on whatever is in memory, and drops the
   result. Then its code and parameters are in the caches when its turn comes. */
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next kernel become resident: what it may do before its pdl_wait harms nobody. Projections do so just before
   their own wait, which is a little quicker than at entry, where other kernels do. Only experts_up does so late, after its
   wait, when it has written what experts_down wants to know early. */
__device__ __forceinline__ void pdl_launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Marks. A pdl_wait is over half a microsecond after the last store of the predecessor, and only then can its results be
   asked for. Where that counts, a kernel asks for the values themselves until they are there: a float that is handed on in
   this way has a tag in its last two bits, a new one each time it is written. (So do the flags in NCCL's LL protocol,
   one beside every four bytes.) The rules:
   - x is stored after the writer's pdl_wait. So who has seen all of x knows that all before the writer is complete (and
     asks the L2, where that is), and that the writer has read all it reads. Then norm_router may store the
     logits and the shared expert's h; who has seen all logits knows that x is complete.
   - The reader calls pdl_wait, too, but later: before it stores anything else, and before it ends.
   - Two bits are enough. experts_up triggers behind its wait, so a kernel that runs knows norm_router of the layer before
     complete, and since then the logits have been written once and x twice at most.
   - Nobody watches for what is written for the first time in a step: whatever was there before may look like it. */
typedef struct gpu_tag {
    uint32_t mask, bits;         /* which bits count: the last two, or none (no tag); what they say */
} gpu_tag;

/* The tag for what `stage` is about to write. */
static gpu_tag gpu_next_tag(const gpu_queue *q, enum gpu_stage stage, enum gpu_tagged what) {
    gpu_tag tag = {0, 0};
    if (!q->writes || !(q->stages >> stage & 1)) return tag;
    tag.mask = 3;
    tag.bits = (uint32_t)++q->writes[what] & 3;
    return tag;
}

/* The tag to watch for; none: wait. */
static gpu_tag gpu_last_tag(const gpu_queue *q, enum gpu_tagged what) {
    gpu_tag tag = {0, 0};
    if (!q->dependent || !q->writes || q->writes[what] < 2 || !(q->stages >> GPU_UP & 1)) return tag;
    tag.mask = 3;
    tag.bits = (uint32_t)q->writes[what] & 3;
    return tag;
}

/* *at = x, tagged. */
__device__ __forceinline__ void store_tagged(float *at, float x, const gpu_tag &tag) {
    uint32_t bits = (__float_as_uint(x) & ~tag.mask) | tag.bits;
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(bits) : "memory");
}

/* What may not be there yet. */
__device__ __forceinline__ float load_relaxed(const float *at) {
    float x;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x) : "l"(at) : "memory");
    return x;
}

__device__ __forceinline__ float4 load_relaxed4(const float *at) {
    float4 x;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(at) : "memory");
    return x;
}

/* Not zero if one of n values is not there yet. */
__device__ __forceinline__ uint32_t tag_mismatch(const float *x, int n, const gpu_tag &tag) {
    uint32_t other = 0;
#pragma unroll
    for (int i = 0; i < n; i++) other |= __float_as_uint(x[i]) ^ tag.bits;
    return other & tag.mask;
}

/* Asks for a single value until it is there: many lanes and blocks that ask for many slow down the predecessor. */
__device__ __forceinline__ void spin_until_tagged(const float *at, const gpu_tag &tag) {
    float x;
#pragma unroll 1
    do x = load_relaxed(at);
    while (tag_mismatch(&x, 1, tag));
}

/* A barrier of the block's at which only some warps wait: the others say that they have come, and go on. */
__device__ __forceinline__ void gpu_arrive() {
    asm volatile("bar.arrive 1, %0;" ::"n"((int)GPU_THREADS) : "memory");
}

__device__ __forceinline__ void gpu_await_arrival() {
    asm volatile("bar.sync 1, %0;" ::"n"((int)GPU_THREADS) : "memory");
}
