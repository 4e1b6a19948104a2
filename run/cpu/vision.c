/* run/cpu/vision.c: the vision tower on the CPU, from patches to features: its stages (layers/vision/cpu.c) one after the other. */

/* The stages. */
static int cpu_vision_run(vision_job *j, float *features, mote_error *err) {
    vision_embed(j);
    for (int i = 0; i < j->w->shape.depth && !j->ended; i++) {
        vision_attention(j, i);
        vision_mlp(j, i);
    }
    vision_join(j, features);
    return j->ended ? fail(err, MOTE_ECANCELLED, "cancelled") : MOTE_OK;
}

static int cpu_vision(mote_runner *r, const vision_image *image, mote_error *err) {
    const int n = image->rows * image->columns;
    vision_job j = r->s.vision;
    float *own = NULL;
    if (n > r->o.patches) {
        layout l = layout_from(NULL);
        char what[64];
        vision_layout(&l, &r->m->vision.shape, n, &j);
        own = cpu_alloc(l.used);
        snprintf(what, sizeof what, "an image of %d x %d patches", image->rows, image->columns);
        if (!own) return cpu_no_memory(what, l.used, err);
        l = layout_from(layout_base(own));
        vision_layout(&l, &r->m->vision.shape, n, &j);
    }
    j.threads = r->threads;
    j.w = &r->m->vision;
    j.rows = image->rows;
    j.columns = image->columns;
    j.patches = image->patches;
    j.pause = image->between;
    j.user = image->user;
    const int code = cpu_vision_run(&j, image->features, err);
    free(own);
    return code;
}
