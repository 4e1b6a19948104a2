/* cuda/handoff.cu: how a kernel hands its results to the next one: programmatic dependent launch, tagged hand-off. Device
   functions; the host's part is cuda/schedule.c. Must not know shapes, weights or layers.

   What a kernel may do before its pdl_wait: load weights and other constants, prefetch anything into the L2, load and store
   what cuda/schedule.c names as early reads and writes, poll tagged values, and load x speculatively: after the wait the tags
   say what has to be loaded again. */

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
   Some do so late, after their own wait: experts_up, when it has stored the routing, which experts_down loads early,
   gpu_experts_down_lone, gpu_experts_down_dealt and norm_gate_up. */
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
     x             gated_norm_out or out, then experts_down   norm_router; with one row norm_in_proj or norm_qkv
                   of streams, the mixture: streams_up
     logits        norm_router                                experts_up

   Which tags a kernel stores and awaits is schedule_link's; why two bits suffice, and why polling cannot deadlock, stands
   there. Only kernels for fixed shapes poll; the others call pdl_wait first and ignore tags. Those that poll call pdl_wait,
   too, but later: before they store anything that is not named below, and before they end.

   What a matching tag implies
   - That this float is the new one. Each float has its own tag, so neither the order in which stores arrive nor the
     width of a load matters.
   - That all kernels before the producer are complete: it stores x only after its own pdl_wait.
   - Of all of x: that the producer has loaded all that x depends on, so that it may be overwritten. (Blocks of
     gated_norm_out that bring the DeltaNet log up to date store no x; what they load is not covered.)
   - Of a logit: that all of x is there. A block of norm_router stores logits only when its warps together have seen all
     of x. So experts_up loads x without checking its tags.
   So a block of norm_router that has all of x may store logits and the shared expert's h before its own wait, and one of
   norm_in_proj the mixer's projections.

   Memory order. Tagged stores and polling loads are relaxed, and no fence orders them with others. The tagged float
   itself needs none. What its tag implies about other data rests on the L2: these were there before the tagged store was
   issued, and are loaded from there (ld.relaxed.gpu, __ldcg), never from the L1. The PTX memory model promises this only
   for release and acquire.

   Values do not depend on who polls: stores are tagged with or without PDL. x and the logits lose two mantissa bits. */

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

