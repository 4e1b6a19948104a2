/* cuda/shared_memory.cu: shared memory by its own addresses: loads, ldmatrix, and cp.async, which fills it in the background;
   barriers, of a block and of a cluster. Knows no data structures. */

__device__ __forceinline__ uint32_t shared_address(const void *at) {
    return (uint32_t)__cvta_generic_to_shared(at);
}

__device__ __forceinline__ float load_shared(uint32_t at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at));
    return v;
}

__device__ __forceinline__ float2 load_shared8(uint32_t at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at));
    return v;
}

__device__ __forceinline__ uint4 load_shared16(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

/* Four 8x8 matrices of 16-bit elements: lanes 8m..8m+7 give the addresses of the rows of matrix m. Of each, lane 4 g + i gets
   elements 2i and 2i + 1 of row g; TRANSPOSED: of column g. */
template <bool TRANSPOSED> __device__ __forceinline__ void load_matrices(uint32_t *to, uint32_t at) {
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(at));
}

/* Copies 16 bytes to shared memory in the background; zeros if not `there`. */
__device__ __forceinline__ void cp_async16(uint32_t shared, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(there ? 16 : 0) : "memory");
}

__device__ __forceinline__ void cp_async4(uint32_t shared, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(from) : "memory");
}

/* Ends a group of this thread's copies, which may be empty. */
__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most LEFT of this thread's groups are under way. */
template <int LEFT> __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* A barrier of some of the block's threads, whole warps, by its number; 0 is __syncthreads'. What a thread stored before it arrives is seen by those
   that wait. Each time it takes THREADS, of those that wait and those that arrive together. */
template <int NUMBER, int THREADS> __device__ __forceinline__ void barrier_wait() {
    asm volatile("bar.sync %0, %1;" ::"n"(NUMBER), "n"(THREADS) : "memory");
}

template <int NUMBER, int THREADS> __device__ __forceinline__ void barrier_arrive() {
    asm volatile("bar.arrive %0, %1;" ::"n"(NUMBER), "n"(THREADS) : "memory");
}

/* Publishes this block's shared memory to its cluster: visible to the others after their cluster_wait. */
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

/* Arrives after reading the others' shared memory. Relaxed: the loads are complete, their values have been stored. */
__device__ __forceinline__ void cluster_leave() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
