/* run/executors.c: which executor runs a model: the one of the device that its weights are on. */

static const executor *executor_of(const mote_model *m) {
#ifdef __CUDACC__
    if (m->gpu >= 0) return &cuda_executor;
#endif
    (void)m;
    return &cpu_executor;
}
