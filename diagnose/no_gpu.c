/* diagnose/no_gpu.c: what diagnose/gpu.cu does, in a build without CUDA: no model is on a GPU there. */

static int cuda_fill(binder *b, const mote_callbacks *callbacks, mote_error *err) {
    (void)b, (void)callbacks;
    return fail(err, MOTE_EUNSUPPORTED, "this build is without CUDA");
}

static int gpu_measured_rows(const mote_session *s) {
    (void)s;
    return 0;
}

static int gpu_launches(mote_session *s, int rows, const mote_launch **launches, size_t *count, mote_error *err) {
    (void)s, (void)rows, (void)launches, (void)count;
    return fail(err, MOTE_EUNSUPPORTED, "this build is without CUDA");
}

static int gpu_measure(mote_session *s, mote_measurement *m, unsigned stages, mote_error *err) {
    (void)s, (void)m, (void)stages;
    return fail(err, MOTE_EUNSUPPORTED, "this build is without CUDA");
}

static int gpu_measure_link(const mote_model *m, double *link, double *memory, mote_error *err) {
    (void)m, (void)link, (void)memory;
    return fail(err, MOTE_EUNSUPPORTED, "this build is without CUDA");
}

static int gpu_measure_read(const mote_model *m, double *bytes_per_second, mote_error *err) {
    (void)m, (void)bytes_per_second;
    return fail(err, MOTE_EUNSUPPORTED, "this build is without CUDA");
}

static int gpu_chosen(const mote_runner *r, int32_t *chosen, mote_error *err) {
    (void)r, (void)chosen;
    return fail(err, MOTE_EUNSUPPORTED, "this build is without CUDA");
}

static int gpu_simulate(mote_runner *r, const double *accept, mote_error *err) {
    (void)r, (void)accept;
    return fail(err, MOTE_EUNSUPPORTED, "this build is without CUDA");
}

static int gpu_simulate_experts(mote_session *s, double locality, mote_error *err) {
    (void)s, (void)locality;
    return fail(err, MOTE_EUNSUPPORTED, "this build is without CUDA");
}

static int gpu_selftest(const char *device, int sms,
                        void (*row)(void *user, const char *what, double difference, double allowed, int ok), void *user,
                        int *failed, mote_error *err) {
    (void)device, (void)sms, (void)row, (void)user, (void)failed;
    return fail(err, MOTE_EUNSUPPORTED, "this build is without CUDA");
}
