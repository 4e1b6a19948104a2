/* layers/mla/prefill_launch.cu: a layer of multi-head latent attention for the many token rows of a prompt: there are no kernels for it, the rows
   are decoded. */

static int mla_can_prefill(const mla_weights *, dtype) {
    return 0;
}

static size_t mla_prefill_bytes(const mla_shape *, int, dtype) {
    return 0;
}

static cudaError_t mla_run_prefill(const prefill_rows *, const mla_weights *, const mla_gpu *, const mla_state *) {
    return cudaErrorNotSupported;
}
