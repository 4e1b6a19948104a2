/* run/cpu/vision.c: the vision tower on the CPU, from patches to features: its stages (layers/vision/cpu.c) one after the other. */

static int cpu_vision(mote_runner *r, const vision_image *image, mote_error *err) {
    const vision_weights *w = &r->m->vision;
    vision_job j = r->s.vision;
    j.threads = r->threads;
    j.w = w;
    j.rows = image->rows;
    j.columns = image->columns;
    j.patches = image->patches;
    vision_embed(&j);
    for (int i = 0; i < w->shape.depth; i++) {
        if (image->between(image->user, (double)i / w->shape.depth)) return fail(err, MOTE_ECANCELLED, "cancelled");
        vision_attention(&j, &w->blocks[i]);
        vision_mlp(&j, &w->blocks[i]);
    }
    vision_join(&j, image->features);
    return MOTE_OK;
}
