/* cuda/handoff.cu: how a kernel hands its results to the next one: programmatic dependent launch, tagged hand-off. Knows the launch queue, and of the stages only that experts_up calls launch_dependents late; must not
   know shapes, weights or layers.

   What a kernel may do before its pdl_wait:
   - load weights and other constants, and prefetch anything into the L2;
   - load state that no earlier kernel of the step stores: old KV rows, the DeltaNet state S and its log. conv_delta then
     also stores S, which no other kernel of the step loads or stores;
   - load step_parameters: gpu_draw and gpu_accept, which store them, never call launch_dependents, so the kernel behind
     them starts only when they are complete;
   - load what was complete before its predecessor called launch_dependents, if that does so late: experts_down, behind
     experts_up, loads the routing, x and what norm_router stored;
   - load tagged values and poll them, and, when their tags match, do what that implies (see gpu_tag);
   - load x speculatively: after the wait the tags say what has to be loaded again. */

/* griddepcontrol.wait: when it returns, the predecessor is complete and its stores are visible; so are, as completion is
   transitive (cuda/launch.cu), all kernels before it and theirs. */
__device__ __forceinline__ void pdl_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* griddepcontrol.launch_dependents: the next kernel starts once all blocks have called it or ended. What that may do
   before its own wait does not interfere with this one.

   Projections call it just before their own wait, which is a little quicker than at entry, where the other kernels do.
   Only experts_up does so late, after its own wait, when it has stored the routing, which experts_down loads early. */
__device__ __forceinline__ void pdl_launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Tagged hand-off.
   griddepcontrol.wait returns 0.5 us or more (H100) after the predecessor's last store, and only then can a kernel load
   its results. Where that latency is on the critical path, the consumer polls the data instead: the producer stores each
   float with a 2-bit generation tag in its lowest mantissa bits, a new one each time the buffer is stored, and the
   consumer reloads the float (ld.relaxed.gpu) until the tag matches. NCCL's LL protocol does the same with a flag word
   beside every four bytes.

     buffer        stored by                                  polled, or loaded speculatively, by
     x             gated_norm_out or out, then experts_down   norm_router; norm_in_proj or norm_qkv
     logits        norm_router                                experts_up

   Only kernels for fixed shapes do so; the others call pdl_wait first and ignore tags. The consumer calls pdl_wait, too,
   but later: before it stores anything that is not named below, and before it ends (cuda/launch.cu says why).

   What a matching tag implies
   - That this float is the new one. Each float has its own tag, so neither the order in which stores arrive nor the
     width of a load matters.
   - That all kernels before the producer are complete: it stores x only after its own pdl_wait.
   - Of all of x: that the producer has loaded all that x depends on, so that it may be overwritten. (Blocks of
     experts_down that bring the DeltaNet log up to date store no x; what they load is not covered.)
   - Of a logit: that all of x is there. A block of norm_router stores logits only when its warps together have seen all
     of x. So experts_up loads x without checking its tags.
   So a block of norm_router that has all of x may store logits and the shared expert's h before its own wait. The
   readers of the old ones, experts_up and experts_down of the layer before, are complete. Where only the MoE stages run,
   experts_down is the producer of x itself, and has loaded them.

   Memory order. Tagged stores and polling loads are relaxed, and no fence orders them with others. The tagged float
   itself needs none. What its tag implies about other data rests on the L2: these were there before the tagged store was
   issued, and are loaded from there (ld.relaxed.gpu, __ldcg), never from the L1. The PTX memory model promises this only
   for release and acquire.

   Why two bits suffice. experts_up calls launch_dependents after its own wait. So when a kernel behind experts_up of
   layer i - 1 runs, norm_router of layer i - 1 is complete. From then up to experts_up of layer i, x is stored twice (by
   experts_down of layer i - 1, and by gated_norm_out or out of layer i) and the logits once (by norm_router of layer i).
   A consumer finds one of three generations of x, or one of two of the logits; four tags tell them apart.
   What is stored for the first time in a step is not polled: what was there before may have any tag. From the second
   time on, the older generations are of this step, by the same argument.

   Why it cannot deadlock. A consumer polls only what its direct predecessor stores (or the last T of them, where a wide
   projection is launched row by row). A kernel starts only when every block of its predecessor has called
   launch_dependents or ended: each of them is resident or done, and, by induction, so is every block of every kernel
   before. Polling blocks hold SMs, but no block that they wait for still needs one. A resident block waits only for
   kernels before its own, and the first kernel of a step for none. Without PDL, or where experts_up is left out of the
   step, nothing is polled (gpu_last_tag).

   Values do not depend on who polls: stores are tagged with or without PDL. x and the logits lose two mantissa bits. */
typedef struct gpu_tag {
    uint32_t mask, bits;         /* mask: the two lowest bits, or 0 (no tag); bits: the generation */
} gpu_tag;

/* The tag for what `stage` is about to store: the buffer's next generation in this step. None if the stage does not run,
   or q->writes is NULL. */
static gpu_tag gpu_next_tag(const gpu_queue *q, enum gpu_stage stage, enum gpu_tagged what) {
    gpu_tag tag = {0, 0};
    if (!q->writes || !(q->stages >> stage & 1)) return tag;
    tag.mask = 3;
    tag.bits = (uint32_t)++q->writes[what] & 3;
    return tag;
}

/* The tag to poll for: the buffer's last generation. None: the consumer has to call pdl_wait before it loads. */
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

/* Loads from the L2 what another kernel may be storing at this time, or has just stored. */
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

/* Not zero if the tag of one of n values does not match. No tag matches always. */
__device__ __forceinline__ uint32_t tag_mismatch(const float *x, int n, const gpu_tag &tag) {
    uint32_t other = 0;
#pragma unroll
    for (int i = 0; i < n; i++) other |= __float_as_uint(x[i]) ^ tag.bits;
    return other & tag.mask;
}

/* Polls a single value; the caller then loads all it needs and checks every tag. Polling by many lanes and blocks for
   many values slows down the kernel that stores them. */
__device__ __forceinline__ void spin_until_tagged(const float *at, const gpu_tag &tag) {
    float x;
#pragma unroll 1
    do x = load_relaxed(at);
    while (tag_mismatch(&x, 1, tag));
}

