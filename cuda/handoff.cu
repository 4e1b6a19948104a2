/* cuda/handoff.cu: how a kernel hands its results to the next: programmatic dependent launch, marks, barriers. */

/* Everything before this kernel is complete and visible. Before it only weights may be read, state that no kernel of this
   step writes, and what was complete before the kernel in front triggered, if that triggers late. A rehearsal may read
   anything: what a kernel is to do right after its wait it does once before, on whatever is in memory, and drops the
   result. Then its code and parameters are in the caches when its turn comes. */
__device__ __forceinline__ void gpu_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next kernel become resident: what it may do before its gpu_wait harms nobody. Projections do so just before
   their own wait, which is a little quicker than at entry, where other kernels do. Only experts_up does so late, after its
   wait, when it has written what experts_down wants to know early. */
__device__ __forceinline__ void gpu_trigger() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Marks. A gpu_wait is over half a microsecond after the last store of the kernel in front, and only then can its results be
   asked for. Where that counts, a kernel asks for the values themselves until they are there: a float that is handed on in
   this way has a mark in its last two bits, a new one each time it is written. (So do the flags in NCCL's LL protocol,
   one beside every four bytes.) The rules:
   - x is stored after the writer's gpu_wait. So who has seen all of x knows that all before the writer is complete (and
     asks the second-level cache, where that is), and that the writer has read all it reads. Then norm_router may store the
     logits and the shared expert's h; who has seen all logits knows that x is complete.
   - The reader calls gpu_wait, too, but later: before it stores anything else, and before it ends.
   - Two bits are enough. experts_up triggers behind its wait, so a kernel that runs knows norm_router of the layer before
     complete, and since then the logits have been written once and x twice at most.
   - Nobody watches for what is written for the first time in a step: whatever was there before may look like it. */
typedef struct gpu_mark {
    uint32_t mask, bits;         /* which bits count: the last two, or none (no mark); what they say */
} gpu_mark;

/* The mark for what `stage` is about to write. */
static gpu_mark gpu_next_mark(const gpu_queue *q, enum gpu_stage stage, enum gpu_marked what) {
    gpu_mark mark = {0, 0};
    if (!q->writes || !(q->stages >> stage & 1)) return mark;
    mark.mask = 3;
    mark.bits = (uint32_t)++q->writes[what] & 3;
    return mark;
}

/* The mark to watch for; none: wait. */
static gpu_mark gpu_last_mark(const gpu_queue *q, enum gpu_marked what) {
    gpu_mark mark = {0, 0};
    if (!q->dependent || !q->writes || q->writes[what] < 2 || !(q->stages >> GPU_UP & 1)) return mark;
    mark.mask = 3;
    mark.bits = (uint32_t)q->writes[what] & 3;
    return mark;
}

/* *at = x, marked. */
__device__ __forceinline__ void gpu_tell(float *at, float x, const gpu_mark &mark) {
    uint32_t bits = (__float_as_uint(x) & ~mark.mask) | mark.bits;
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(bits) : "memory");
}

/* What may not be there yet. */
__device__ __forceinline__ float gpu_hear(const float *at) {
    float x;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x) : "l"(at) : "memory");
    return x;
}

__device__ __forceinline__ float4 gpu_hear4(const float *at) {
    float4 x;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(at) : "memory");
    return x;
}

/* Not zero if one of n values is not there yet. */
__device__ __forceinline__ uint32_t gpu_missing(const float *x, int n, const gpu_mark &mark) {
    uint32_t other = 0;
#pragma unroll
    for (int i = 0; i < n; i++) other |= __float_as_uint(x[i]) ^ mark.bits;
    return other & mark.mask;
}

/* Asks for a single value until it is there: many lanes and blocks that ask for many slow down the kernel in front. */
__device__ __forceinline__ void gpu_hear_one(const float *at, const gpu_mark &mark) {
    float x;
#pragma unroll 1
    do x = gpu_hear(at);
    while (gpu_missing(&x, 1, mark));
}

/* A barrier of the block's at which only some warps wait: the others say that they have come, and go on. */
__device__ __forceinline__ void gpu_arrive() {
    asm volatile("bar.arrive 1, %0;" ::"n"((int)GPU_THREADS) : "memory");
}

__device__ __forceinline__ void gpu_await_arrival() {
    asm volatile("bar.sync 1, %0;" ::"n"((int)GPU_THREADS) : "memory");
}
