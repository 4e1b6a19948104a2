/* run/cpu/memory.c: memory for runners and sessions on the CPU, and for what they do. */

/* `floats` of memory, zero; NULL: there are not so many. */
static float *cpu_alloc(size_t floats) {
    const size_t bytes = floats * sizeof(float) + CACHE_LINE;
    const uint64_t available = memory_available();
    return !available || bytes <= available ? (float *)calloc(1, bytes) : NULL;
}

static int cpu_no_memory(const char *what, size_t floats, mote_error *err) {
    const double wanted = (double)floats * sizeof(float), there = (double)memory_available();
    return fail(err, MOTE_ENOMEM, "%s needs %.2f GB, %.2f GB of memory are free%s", what, wanted * 1e-9, there * 1e-9,
                wanted < there ? ", but this process gets no more: is there a limit (ulimit -v)?" : "");
}
