/* run/cpu/vision.c: the vision tower on the CPU, from patches to features: its stages (layers/vision/cpu.c) one after the other. */

/* The stages. */
static int cpu_vision_run(vision_job *j, const vision_image *image, mote_error *err) {
    const vision_weights *w = j->w;
    vision_embed(j);
    for (int i = 0; i < w->shape.depth; i++) {
        if (image->between(image->user, (double)i / w->shape.depth)) return fail(err, MOTE_ECANCELLED, "cancelled");
        vision_attention(j, &w->blocks[i]);
        vision_mlp(j, &w->blocks[i]);
    }
    vision_join(j, image->features);
    return MOTE_OK;
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
    const int code = cpu_vision_run(&j, image, err);
    free(own);
    return code;
}
