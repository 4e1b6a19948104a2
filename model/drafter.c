/* model/drafter.c: opens a block drafter beside its target. It is a model of its own, on the target's device, without embedding and head,
   which it takes from the target. Knows what of a target it needs; must not know tensor names, nor how drafts are made or verified. */

/* Refuses what has no drafter; NULL: nothing. */
static int drafter_refuse(const char *dir, const char *on, mote_error *err) {
    return on ? fail(err, MOTE_EUNSUPPORTED, "%s: a drafter is not supported on %s", dir, on) : MOTE_OK;
}

/* Before a model is opened on devices, which takes long: on how many. */
static int drafter_check_devices(const mote_options *o, const device_list *l, mote_error *err) {
    if (!*o->drafter) return fail(err, MOTE_EINVAL, "the drafter's folder is an empty name");
    return drafter_refuse(o->drafter, o->workers || l->count > 1 ? "several devices or workers" : NULL, err);
}

/* Refuses a target for which nothing runs a drafter. */
static int drafter_check_target(const mote_model *m, const char *dir, mote_error *err) {
    return drafter_refuse(dir, m->c.streams ? "a model with several residual streams" : m->c.embed_factor != 0 ? "a model with scaled embeddings" : NULL, err);
}

/* Refuses what a GPU does not run of a drafter. */
static int drafter_check_windows(const config *c, const mote_model *m, const char *dir, mote_error *err) {
    int both = 0;
    for (int i = 0; i < c->layers; i++) both |= c->layer[i].mixer.of.attention.window && !c->drafter.causal[1];
    return drafter_refuse(dir, both && m->device.gpu >= 0 ? "a GPU where rows with a window see those after them, use the CPU" : NULL, err);
}

/* Refuses one that was made for another target. */
static int drafter_check(const config *c, const mote_model *m, const char *dir, mote_error *err) {
    const struct { const char *name; int is, target; } alike[] = {{"num_target_layers", c->drafter.target_layers, m->c.layers},
        {"hidden_size", c->hidden, m->c.hidden}, {"vocab_size", c->vocab, m->c.vocab}};
    for (size_t i = 0; i < sizeof alike / sizeof *alike; i++)
        if (alike[i].is != alike[i].target)
            return fail(err, MOTE_EINVAL, "%s/config.json: %s is %d, the model has %d: the drafter is another model's", dir, alike[i].name,
                        alike[i].is, alike[i].target);
    return drafter_check_windows(c, m, dir, err);
}

/* Binds its tensors: of a description without weights those that a published drafter has. The binder and files are the caller's to free. */
static int drafter_bind(mote_model *m, checkpoint *files, binder *b, const char *dir, int load, const mote_callbacks *callbacks,
                        mote_error *err) {
    const quantization_recipe *recipe = NULL;
    const int there = load || folder_has_weights(dir);
    files->dir = dir;
    int code = there ? checkpoint_open(files, dir, !load, err) : estimate_recipe(dir, &recipe, err);
    if (!code && !there) code = model_publish(m, files, recipe, err);
    m->report.info.estimated = !there || files->table.without_data;
    return code ? code : model_bind_to(m, files, b, callbacks, err);
}

/* Binds its tensors, and loads them, unless it is described alone. */
static int drafter_load(mote_model *m, const char *dir, int load, const mote_callbacks *callbacks, mote_error *err) {
    checkpoint files;
    binder b;
    memset(&files, 0, sizeof files);
    memset(&b, 0, sizeof b);
    int code = drafter_bind(m, &files, &b, dir, load, callbacks, err);
    if (!code) model_info(m, &b);
    if (!code) m->fingerprint = config_fingerprint(&m->c);
    if (!code) m->fingerprint = fnv1a(m->fingerprint, &m->c.drafter, sizeof m->c.drafter);
    if (!code && load) code = load_weights(&b, callbacks, err);
    buf_free(&b.items);
    checkpoint_close(&files);
    return code;
}

/* It is a module of its target, with the encodings of its largest one; a token that is decoded without drafts reads none of it. */
static void drafter_count(mote_model *m, const mote_model *d) {
    mote_info *o = &m->report.info;
    const mote_info *of = &d->report.info;
    const mote_module *largest = of->modules;
    for (int i = 1; i < of->module_count; i++)
        if (of->modules[i].bytes > largest->bytes) largest = &of->modules[i];
    const mote_module is = {.name = module_names[MODULE_DRAFTER], .dtype = largest->dtype, .parameters = of->parameters, .bytes = d->arena_size, .bytes_per_token = 0};
    m->report.modules[o->module_count++] = is;
    o->parameters += is.parameters;
    o->weight_bytes += is.bytes;
    o->estimated |= of->estimated;
    m->report.devices[0].weight_bytes += is.bytes;
}

/* Without anything, on the target's device. */
static mote_model *drafter_new(const mote_model *m, const mote_options *o, mote_error *err) {
    char name[32];
    snprintf(name, sizeof name, m->device.gpu >= 0 ? "cuda:%d" : "cpu", m->device.gpu);
    mote_model *d = model_new(name, 0, &o->callbacks, err);
    if (d) d->device.kept = m->device.kept;
    return d;
}

/* m gets a drafter; a draft head, if it has none; and another fingerprint, as a saved session holds the drafter's state, too. */
static void drafter_join(mote_model *m, mote_model *d) {
    if (!m->draft_head.rows) m->draft_head = m->lm_head, m->draft_head.rows = draft_vocab(m);
    m->fingerprint = fnv1a(m->fingerprint, &d->fingerprint, sizeof d->fingerprint);
    drafter_count(m, d);
    m->drafter = d;
    if (m->memory->describe) m->memory->describe(m);
}

/* Opens the drafter that o names, for m. */
static int drafter_attach(mote_model *m, const mote_options *o, mote_error *err) {
    int code = drafter_check_target(m, o->drafter, err);
    mote_model *d = code ? NULL : drafter_new(m, o, err);
    if (!d) return err->code;
    code = config_read_as(&d->c, o->drafter, drafter_config_of, err);
    if (!code) code = drafter_check(&d->c, m, o->drafter, err);
    if (!code) code = drafter_load(d, o->drafter, o->parts != MOTE_DESCRIPTION, &o->callbacks, err);
    if (code) {
        mote_close(d);
        return code;
    }
    drafter_join(m, d);
    return MOTE_OK;
}
