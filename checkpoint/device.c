/* checkpoint/device.c: the device that holds a model and computes, by its name. */

/* The memory of GPUs; NULL: this build has no CUDA. */
static const weight_memory *gpu_memory(void) {
#ifdef __CUDACC__
    return &cuda_memory;
#else
    return NULL;
#endif
}

static int gpu_choose(mote_model *m, int number, int *none, mote_error *err) {
    const weight_memory *memory = gpu_memory();
    if (memory) return memory->choose(m, number, none, err);
    *none = 1;
    return fail(err, MOTE_EDEVICE, "cuda:%d: this build has no CUDA; one by make GPUS=all has", number);
}

/* "cpu": -1; "cuda", "cuda:0", "cuda:1", ...: the number; NULL: 0. */
static int device_number(const char *name, int *number, mote_error *err) {
    char *end;
    *number = name && !strcmp(name, "cpu") ? -1 : 0;
    if (!name || *number < 0 || !strcmp(name, "cuda")) return MOTE_OK;
    if (!strncmp(name, "cuda:", 5) && name[5] >= '0' && name[5] <= '9') {
        long n = strtol(name + 5, &end, 10);
        *number = n < 1000 ? (int)n : 1000;
        if (!*end) return MOTE_OK;
    }
    return fail(err, MOTE_EINVAL, "device \"%.40s\", expected \"cpu\", \"cuda\", or \"cuda:\" and a number", name);
}

/* Gives a model the device that `name` says; NULL: a GPU if there is one that can be used. idle: it will compute nothing, GPUs are
   left alone. */
static int device_choose(mote_model *m, const char *name, int idle, const mote_callbacks *callbacks, mote_error *err) {
    int number, none, code = device_number(name, &number, err);
    mote_error why;
    if (code) return code;
    if (number >= 0 && !idle) {
        code = gpu_choose(m, number, &none, name ? err : &why);
        if (!code) m->memory = gpu_memory();
        if (name || !code) return code;
        if (!none) notice(callbacks, "%s: using the CPU", why.message);
    }
    m->memory = &cpu_memory;
    return cpu_memory.choose(m, 0, &none, err);
}
