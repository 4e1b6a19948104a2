/* checkpoint/memory.c: the memory that holds a model's weights, as a table of functions: all that differs from device to device.
   memory_cpu.c and memory_cuda.cu define one each, device.c chooses by name. Knows items; must not know what they are of. */

typedef struct weight_memory {
    /* Makes device `number` the model's, without using it yet. *none: there is no device of this kind at all. */
    int (*choose)(mote_model *m, int number, int *none, mote_error *err);
    uint64_t (*available)(const mote_model *m);                /* bytes free, 0 when it does not say */
    int (*allocate)(mote_model *m, const char *dir, mote_error *err);      /* m->arena, of m->arena_size bytes */
    /* Host memory for a layer's experts, pinned, all zero. err: why there is none; release() frees it. NULL: no device of this kind asks for it. */
    int (*pin)(mote_model *m, expert_home *home, mote_error *err);
    void (*release)(mote_model *m);

    /* All items of a binder, sorted by place in the files. */
    int (*load)(binder *b, const mote_callbacks *callbacks, mote_error *err);

    /* WEIGHTS_... of all words of an item that is there. */
    int (*scan)(const mote_model *m, const load_item *item, unsigned *seen, mote_error *err);
    int (*complete)(binder *b, mote_error *err);               /* when all are there: brings them into the layout of kernels; NULL: they lie so */
    int (*works)(const mote_model *m, mote_error *err);        /* whether the device still computes for this process; NULL: always */
    void (*describe)(mote_model *m);                           /* what mote_info says of computing on it; NULL: nothing */
    const char *(*vision_refused)(const vision_weights *w);    /* why nothing computes such a tower on it; NULL: it takes all */
    dtype kv;                                                  /* of the numbers in KV caches, unless asked otherwise */
    int packs;                                                 /* matrices lie in row panels, and tables say where experts are */
} weight_memory;

/* Bytes that the model may still take of its device, 0 when that does not say, as a worker's does not. */
static uint64_t device_available(const mote_model *m) {
    const uint64_t left = m->remote ? 0 : m->memory->available(m);
    return !left ? 0 : left > m->device.kept ? left - m->device.kept : 1;
}

/* Leaves the device what is free there beyond so many bytes; 0: nothing. */
static void device_keep(mote_model *m, uint64_t bytes) {
    const uint64_t left = m->memory->available(m);
    m->device.kept = bytes && left > bytes ? left - bytes : 0;
}

/* Whether the weights fit. on, device: " on ", "cuda:0 ...", or neither. */
static int arena_fits(const mote_model *m, const char *dir, const char *on, const char *device, mote_error *err) {
    uint64_t available = device_available(m);
    if (!available || m->arena_size <= available) return MOTE_OK;
    return fail(err, MOTE_ENOMEM, "%s: the weights need %.1f GB, only %.1f GB of memory are free%s%s", dir,
                (double)m->arena_size * 1e-9, (double)available * 1e-9, on, device);
}

/* Allocates the arena, if it fits, and sets all pointers into it. */
static int arena_open(binder *b, mote_error *err) {
    mote_model *m = b->m;
    load_item *items = (load_item *)(void *)b->items.data;
    m->arena_size = b->arena ? b->arena : 64;
    int code = m->memory->allocate(m, b->files->dir, err);
    for (size_t i = 0; !code && i < b->items.size / sizeof *items; i++) *items[i].target = item_memory(m, &items[i]);
    return code;
}
