/* run/executors.c: which executor runs a model: the one of the device that its weights are on, or that of a group of such. */

#ifdef __CUDACC__
enum { GROUP_CHUNK = 4096 };                                /* token rows: of a long prompt several are on their way */

/* Of members on GPUs. */
static const executor cuda_group_executor = {
    .kv = MOTE_KV_BF16, .chunk = GROUP_CHUNK, .chunk_alignment = PREFILL_ALIGNMENT, .ring_rows = RING_ROWS, .shares_memory = 0,
    .reads_text = 1, GROUP_FUNCTIONS};

/* As a worker computes on its GPU. */
static const executor cuda_remote_executor = {
    .kv = MOTE_KV_BF16, .chunk = GROUP_CHUNK, .chunk_alignment = PREFILL_ALIGNMENT, .ring_rows = RING_ROWS, .shares_memory = 0,
    .reads_text = 1, REMOTE_FUNCTIONS(sizeof(struct gpu_slot), gpu_layout_slot)};
#endif

static const executor *executor_of(const mote_model *m) {
#ifdef __CUDACC__
    if (m->members && m->members[m->member_count - 1]->device.gpu >= 0) return &cuda_group_executor;
    if (m->remote && m->remote->say.on_gpu) return &cuda_remote_executor;
    if (m->device.gpu >= 0) return &cuda_executor;
#endif
    if (m->members) return &group_executor;
    if (m->remote) return &remote_executor;
    return &cpu_executor;
}
