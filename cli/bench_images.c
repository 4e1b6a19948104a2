/* cli/bench_images.c: how long pictures take: until the vision tower is done with their pixels, and until the first token after them. It knows sizes,
   and that the library times one at a time. */

/* Tokens that the largest picture takes, and 64 around it. */
static int plan_images(const mote_model *model, const options *o, int *need) {
    const sides *s = &o->image_sides;
    *need = 0;
    for (int i = 0; i < s->count; i++) {
        const mote_image image = {.data = "", .size = 3 * (size_t)s->width[i] * (size_t)s->height[i], .width = s->width[i], .height = s->height[i],
                                  .tokens = o->image_tokens};
        mote_error error;
        int tokens;
        if (mote_image_size(model, &image, NULL, NULL, &tokens, &error)) return report(&error);
        if (tokens + 64 > *need) *need = tokens + 64;
    }
    return 0;
}

/* One size; on a GPU the first time, which prepares it, does not count. */
static int bench_image(bench *b, int width, int height) {
    double opening[99], features[99], first[99];
    mote_image_times t = {.width = width, .height = height};
    mote_error error;
    char label[32];
    for (int r = on_gpu(b->info) ? -1 : 0; r < b->o->repeat; r++) {
        if (interrupted) return EXIT_INTERRUPTED;
        if (mote_measure_image(b->session, &t, &error)) return report(&error);
        if (r < 0) continue;
        opening[r] = t.open;
        features[r] = t.features;
        first[r] = t.first_token;
    }
    const timing pixels = summarise(opening, b->o->repeat), tower = summarise(features, b->o->repeat), all = summarise(first, b->o->repeat);
    snprintf(label, sizeof label, "%dx%d", width, height);
    begin_row(b, "image", label, 14);
    put(b, "tokens", t.tokens, 1, 8, 0);
    put(b, "open_seconds", pixels.median, 1e3, 10, 1);
    put(b, "features_seconds", tower.median, 1e3, 12, 1);
    put(b, "features_lowest", tower.low, 1e3, 10, 1);
    put(b, "features_highest", tower.high, 1e3, 10, 1);
    put(b, "first_token_seconds", all.median, 1e3, 15, 1);
    put(b, "first_token_lowest", all.low, 1e3, 10, 1);
    put(b, "first_token_highest", all.high, 1e3, 10, 1);
    end_row(b);
    return 0;
}

static int bench_images(bench *b, options *o, const char *name, const mote_model *model) {
    int need, code = plan_images(model, o, &need);
    if (code) return code;
    if (!o->context) o->context = need;
    code = open_session(model, o, &b->session);
    if (code) return code;
    print_head(b, name);
    json_head(b, name);
    fprintf(b->table, "%-14s%8s%10s%12s%10s%10s%15s%10s%10s\n", "image", "tokens", "pixels ms", "features ms", "lowest", "highest", "first token ms", "lowest",
            "highest");
    for (int i = 0; i < o->image_sides.count && !code; i++) code = bench_image(b, o->image_sides.width[i], o->image_sides.height[i]);
    if (b->json) fputs("\n]}\n", b->json);
    return code;
}
