/* run/executors.c: which executor runs a model: the one of the device that its weights are on, or that of the parts which have them. */

static const executor *executor_of(const mote_model *m) {
#ifdef __CUDACC__
    if (m->device.gpu >= 0) return &cuda_executor;
#endif
    if (m->members) return &group_executor;
    if (m->remote) return &remote_executor;
    return &cpu_executor;
}
