/* cuda/simulation.cu: what a measurement may pretend in a step (mote_measurement.accept, overlap): the only interface through which
   benchmarks reach into the kernels of production, which call these functions at three places. Off, they change nothing. */

typedef struct simulation {
    int32_t on;                  /* tokens are random, drafts are accepted at these rates */
    float accept[MOTE_ROWS_MAX - 1];
} simulation;

/* Random numbers of a step: other ones for each slot. */
__device__ __forceinline__ uint64_t simulated_seed(const step_parameters *step) {
    return (uint64_t)step->shift << 20 ^ step->sequence;
}

/* A random token below n; place: its index in the step. */
__device__ __forceinline__ int32_t simulated_token(const step_parameters *step, int place, int n) {
    return (int32_t)(uniform(simulated_seed(step), (uint64_t)(MOTE_ROWS_MAX + place)) * n);
}

/* Whether the draft after row t is accepted. */
__device__ __forceinline__ bool simulated_accept(const simulation *s, const step_parameters *step, int t) {
    return uniform(simulated_seed(step), (uint64_t)t) < s->accept[t];
}

/* The token row whose logit of this expert row t takes: row 0's for a share `overlap`, of 2^32, of the experts, picked by a
   hash of their number. 0: its own. */
__device__ __forceinline__ int simulated_row(uint32_t overlap, int t, int expert) {
    return overlap && (uint32_t)(expert + 1) * 0x9e3779b1u < overlap ? 0 : t;
}
