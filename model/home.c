/* model/home.c: where the routed experts of a model on a GPU lie: in the arena with all else, or, of models that are larger than the GPU's
   memory, in pinned host memory, which kernels read as they read the GPU's own (moe_weights.expert_at says how far apart experts are). If not
   all weights fit, no layer's experts are in the arena: what is left of the GPU's memory is worth more as slots for the experts that each
   layer uses (a runner's, run/). Knows items and what layers weigh; must not know how memory is pinned. */

/* Whether an item is of a routed expert: what loading sets is one's. */
static int item_is_expert(const mote_model *m, const load_item *item) {
    if (item->layer < 0) return 0;
    const layer *l = model_layer(m, item->layer);
    const moe_weights *w = &l->ffn.w.moe;
    const matrix *const all[3] = {w->gate_proj, w->up_proj, w->down_proj};
    const uintptr_t target = (uintptr_t)item->target;
    int is = 0;
    for (int i = 0; i < 3 && l->ffn.kind == LAYER_MOE; i++)
        is |= target >= (uintptr_t)all[i] && target < (uintptr_t)(all[i] + w->shape.experts);
    return is;
}

/* Gives all items their places: one after the other in the arena, what comes after them too, or in host memory of their layer. */
static void homes_lay(binder *b) {
    mote_model *m = b->m;
    load_item *items = (load_item *)(void *)b->items.data;
    size_t arena = 0;
    for (int i = 0; i <= m->c.layers; i++) m->homes[i].bytes = 0;
    for (size_t i = 0; i < b->items.size / sizeof *items; i++) {
        load_item *item = &items[i];
        expert_home *home = item_is_expert(m, item) ? &m->homes[item->layer] : NULL;
        item->in_host = home && home->in_host;
        item->at = item->in_host ? home->bytes : arena;
        if (home) home->bytes += item_capacity(item);
        if (!item->in_host) arena += item_capacity(item);
    }
    b->arena = b->arena - m->expert_tables_at + arena;
    m->draft_at = m->draft_at - m->expert_tables_at + arena;
    m->expert_tables_at = arena;
    m->arena_size = b->arena;
}

/* Chooses where the experts shall be. Host memory that is the device's own is not more of it. */
static void homes_choose(binder *b) {
    mote_model *m = b->m;
    int in_host = m->experts_in == MOTE_EXPERTS_HOST;
    if (!m->memory->pin) return;
    homes_lay(b);
    if (m->experts_in == MOTE_EXPERTS_AUTO && !m->device.integrated) {
        const uint64_t available = device_available(m);
        in_host = available && b->arena > available - available / 32;       /* sessions want some, too */
    }
    for (int i = 0; i <= m->c.layers; i++) m->homes[i].in_host = in_host && m->homes[i].bytes;
    if (in_host) homes_lay(b);
}

/* Bytes of the host's memory that may be pinned; UINT64_MAX: it does not say. A sixteenth stays free, and parts share it. */
static uint64_t homes_most(const mote_model *m) {
    const uint64_t left = host_memory_left();
    return left ? left / 16 * 15 / (uint64_t)(m->part.ranges * m->part.ranks) : UINT64_MAX;
}

/* Whether what is not in host memory fits, before the host's is asked for. */
static int homes_fit(const binder *b, mote_error *err) {
    const mote_model *m = b->m;
    const uint64_t available = device_available(m), needs = model_device_bytes(m);
    if (!available || needs <= available) return MOTE_OK;
    return fail(err, MOTE_ENOMEM, "%s: the weights%s need %.1f GB, only %.1f GB of memory are free on %s", b->files->dir,
                m->device.integrated ? "" : " beside the experts", (double)needs * 1e-9, (double)available * 1e-9, m->device.name);
}

/* Gets the experts their host memory. Those of layers for which there is none go to the arena after all, if that then fits. */
static int homes_pin(binder *b, mote_error *err) {
    mote_model *m = b->m;
    const uint64_t all = model_host_bytes(m, 0), most = homes_most(m);
    uint64_t pinned = 0;
    mote_error why = {.code = MOTE_OK, .message = ""};
    int code = all ? homes_fit(b, err) : MOTE_OK;
    if (code) return code;
    for (int i = 0; i <= m->c.layers && m->memory->pin; i++) {
        expert_home *home = &m->homes[i];
        if (!home->in_host) continue;
        if (!why.code && home->bytes > most - pinned) fail(&why, MOTE_ENOMEM, "%.1f GB can be had here", (double)most * 1e-9);
        if (!why.code) (void)m->memory->pin(m, home, &why);
        if (why.code) home->in_host = 0;
        else pinned += home->bytes;
    }
    if (!why.code) return MOTE_OK;
    homes_lay(b);
    const uint64_t available = device_available(m);
    if (!available || b->arena <= available) return MOTE_OK;
    return fail(err, MOTE_ENOMEM, "%s: its experts need %.1f GB of pinned host memory, %.1f GB were pinned: %s; the rest needs %.1f GB on %.40s, %.1f GB are free",
                b->files->dir, (double)all * 1e-9, (double)pinned * 1e-9, why.message, (double)b->arena * 1e-9, m->device.name,
                (double)available * 1e-9);
}

/* Says what lies where, if experts are in host memory. */
static void homes_notice(const binder *b, const mote_callbacks *callbacks) {
    const mote_model *m = b->m;
    const double bytes = (double)model_host_bytes(m, 0) * 1e-9;
    int layers = 0, of = 0;
    if (!m->memory->pin) return;
    for (int i = 0; i <= m->c.layers; i++) {
        layers += m->homes[i].in_host;
        of += m->homes[i].bytes != 0;
    }
    if (!layers) return;
    if (m->device.integrated)
        notice(callbacks, "%s: the experts of %d of %d layers, %.1f GB, are in pinned host memory, which on %s is the GPU's own: they are used where "
               "they lie, nothing is copied", b->files->dir, layers, of, bytes, m->device.name);
    else
        notice(callbacks, "%s: %sthe experts of %d of %d layers, %.1f GB, are in pinned host memory, all other weights, %.1f GB, on %s", b->files->dir,
               m->experts_in == MOTE_EXPERTS_HOST ? "" : "not all weights fit on the GPU: ", layers, of, bytes, (double)m->arena_size * 1e-9,
               m->device.name);
}
