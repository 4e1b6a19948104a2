/* checkpoint/complete.c: from a list of items to weights in memory: the arena, loading, and what follows: a useless MTP layer is
   left out, matrices are packed. */

/* Allocates the arena, if it fits, and sets all pointers into it. */
static int arena_open(binder *b, mote_error *err) {
    mote_model *m = b->m;
    load_item *items = (load_item *)(void *)b->items.data;
    m->arena_size = b->arena ? b->arena : 64;
    int code = m->memory->allocate(m, b->files->dir, err);
    if (code) return code;
    for (size_t i = 0; i < b->items.size / sizeof *items; i++) *items[i].target = m->arena + items[i].at;
    if (m->c.tied) m->lm_head = m->embed_tokens;
    memcpy(m->draft_head.plane, m->lm_head.plane, sizeof m->draft_head.plane);
    return check_experts(b);
}

/* An MTP layer with a weight that is no finite number, or with a projection of nothing but zeros, is left out: it would draft,
   but nothing that is ever accepted. */
static int check_mtp(binder *b, const mote_callbacks *callbacks, mote_error *err) {
    mote_model *m = b->m;
    const attention_weights *a = &m->mtp.mixer.w.attention;
    const matrix *const needed[] = {&m->mtp_fc, &a->q_proj, &a->k_proj, &a->v_proj, &a->o_proj};
    const load_item *items = (const load_item *)(void *)b->items.data;
    for (size_t i = 0; i < b->items.size / sizeof *items && m->has_mtp; i++) {
        const load_item *item = &items[i];
        int code, needs = 0;
        unsigned seen = 0;
        if (!item->is_mtp) continue;
        for (int k = 0; k < 5; k++) needs |= m->arena + item->at == needed[k]->plane[CODES];
        code = m->memory->scan(m, item, &seen, err);
        if (code) return code;
        const char *wrong = needs && !seen ? "is all zero" : NULL;
        if (seen & WEIGHTS_NOT_FINITE) wrong = "holds what is no finite number";
        if (!wrong) continue;
        notice(callbacks, "%s: MTP layer left out, nothing will be drafted: tensor %s %s", b->files->dir,
               table_name(&b->files->table, item->from), wrong);
        m->has_mtp = m->info.mtp_layers = 0;
        model_kinds(m);
    }
    return MOTE_OK;
}

static int load_weights(binder *b, const mote_callbacks *callbacks, mote_error *err) {
    const weight_memory *memory = b->m->memory;
    int code = arena_open(b, err);
    if (code) return code;
    qsort(b->items.data, b->items.size / sizeof(load_item), sizeof(load_item), by_place);
    code = memory->load(b, callbacks, err);
    if (!code) code = check_mtp(b, callbacks, err);
    if (!code) code = memory->complete(b, err);
    if (!code) report(callbacks, "loading weights", 1);
    return code;
}
