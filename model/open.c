/* model/open.c: opening and closing models: the calls of engine.h, and in which order a folder's files are read for them. Must not
   know tensor names, formats or how a device works. */

static int drafter_check_devices(const mote_options *o, const device_list *l, mote_error *err);
static int drafter_attach(mote_model *m, const mote_options *o, mote_error *err);

enum { DRAFT_ROWS = 65536 };                   /* of lm_head, for drafts, unless asked otherwise */

/* A model without anything, on the device that `name` says; NULL: on a GPU if there is one that can be used. `idle`:
   the model will compute nothing, GPUs are left alone. */
static mote_model *model_new(const char *name, int idle, const mote_callbacks *callbacks, mote_error *err) {
    mote_model *m = (mote_model *)calloc(1, sizeof *m);
    if (!m) {
        fail_memory(err);
        return NULL;
    }
    m->holders = 1;
    m->part = part_of(0, 1, 0, 1);
    m->draft_rows = DRAFT_ROWS;
    m->expert_slots_most = -1;
    m->report.info.device = m->device.name;
    m->report.info.begin_token = m->report.info.end_token = -1;
    if (!device_choose(m, name, idle, callbacks, err)) return m;
    free(m);
    return NULL;
}

/* What options say of weights. */
static void model_take(mote_model *m, const mote_options *o) {
    if (o->draft_rows > 0) m->draft_rows = o->draft_rows;
    m->quantize = o->quantize;
    m->experts_in = o->experts;
    m->images = o->images;
    if (m->device.gpu >= 0) device_keep(m, o->gpu_memory);
}

const char *mote_version(void) {
    return MOTE_VERSION;
}

/* Fills in the table of files that are not there with what a published checkpoint of m has, stored as a quantization recipe says: has its
   family ask for a model like it, which is thrown away. */
static int model_publish(const mote_model *m, checkpoint *files, const quantization_recipe *recipe, mote_error *err) {
    mote_model like = *m;
    binder b;
    memset(&b, 0, sizeof b);
    files->shards = (shard *)calloc(1, sizeof *files->shards);
    if (!files->shards) return fail_memory(err);
    files->shard_count = 1;
    files->shards[0].fd = -1;
    snprintf(files->shards[0].path, sizeof files->shards[0].path, "%s", files->dir);
    b.files = files;
    b.m = &like;
    b.publishes = recipe;
    b.err = err;
    begin_layers(&b);
    if (!b.code) m->c.family->bind(&b);
    weights_free(&like);
    return b.code;
}

/* Binds all tensors of the model that m->c describes. */
static int model_bind_to(mote_model *m, checkpoint *files, binder *b, const mote_callbacks *callbacks, mote_error *err) {
    b->files = files;
    b->m = m;
    b->err = err;
    bind_model(b, callbacks);
    return b->code;
}

/* Reads config.json and all headers and binds all tensors. describes: weights are not wanted, so they need not be there; if
   none is, tensors are those that a published checkpoint has. The binder and files are the caller's to free in any case. */
static int model_bind(mote_model *m, checkpoint *files, binder *b, const char *dir, int describes,
                      const mote_callbacks *callbacks, mote_error *err) {
    const quantization_recipe *recipe = NULL;
    memset(b, 0, sizeof *b);
    memset(files, 0, sizeof *files);
    quantization_check check;
    int code = config_read(&m->c, dir, err), there = !describes || folder_has_weights(dir);
    if (!code && *m->c.beside)
        notice(callbacks, "%s/config.json: %s says something else in text_config than beside it: that in text_config counts", dir, m->c.beside);
    if (!code && m->c.vision.depth && m->images >= 0)
        code = read_image_processor(dir, VISION_PATCH, VISION_MERGE, VISION_FRAMES, &m->pictures, err);
    files->dir = dir;
    if (!code) code = there ? checkpoint_open(files, dir, describes, err) : estimate_recipe(dir, &recipe, err);
    if (!code && !there) code = model_publish(m, files, recipe, err);
    if (!code && !there) code = model_bind_to(m, files, b, callbacks, err);
    else if (!code) {
        quantization_check_read(&check, dir);
        b->check = &check;
        code = model_bind_to(m, files, b, callbacks, err);
        if (!code) quantization_check_notice(&check, dir, callbacks);
        quantization_check_free(&check);
    }
    if (!code) m->fingerprint = config_fingerprint(&m->c);
    if (!code && m->quantize) m->fingerprint = fnv1a(m->fingerprint, &m->quantize, sizeof m->quantize);
    m->report.info.estimated = !there || files->table.without_data;
    return code;
}

/* told: of binding; callbacks: of loading. */
static int model_open_weights(mote_model *m, const char *dir, int load, const mote_callbacks *told, const mote_callbacks *callbacks,
                              mote_error *err) {
    checkpoint files;
    binder b;
    int code = model_bind(m, &files, &b, dir, !load, told, err);
    if (!code && load) code = load_weights(&b, callbacks, err);
    if (!code) model_info(m, &b);
    buf_free(&b.items);
    checkpoint_close(&files);
    return code;
}

/* Tokenizer and chat template, each where the folder has it; need_one: neither is an error. */
static int model_open_text(mote_model *m, const char *dir, int need_one, const mote_callbacks *callbacks, mote_error *err) {
    buf template_text;
    memset(&template_text, 0, sizeof template_text);
    int code = template_read(dir, &template_text, err);
    if (!code && (file_exists(dir, "tokenizer.json") || (need_one && !template_text.size)))
        code = tokenizer_open(&m->text, dir, err);
    if (m->text) m->report.info.begin_token = m->text->begin, m->report.info.end_token = m->text->end;
    for (int32_t id = 0; m->text && id < tokenizer_vocab(m->text); id++) {
        size_t n;
        if (tokenizer_token(m->text, id, &n)) m->longest_token = max_size(m->longest_token, n);
    }
    if (!code && template_text.size) {
        int modified;
        m->has_template = 1;
        m->family = chat_detect(template_text.data, template_text.size, &modified);
        m->chat_begin = m->text ? m->text->begin : -1;
        if (m->text && m->family & CHAT_BOS) code = chat_begin_read(dir, m->text, &m->chat_begin, err);
        const chat_marks *marks = chat_marks_of(m->family);
        m->report.info.chat_template = marks ? marks->name : NULL;
        if (marks && modified)
            notice(callbacks, "%s: the chat template is a modified %s template: used as %s's%s", dir, marks->name, marks->name,
                   m->family & CHAT_QUIET ? ", which thinks only when asked to" : "");
    }
    buf_free(&template_text);
    return code;
}

/* The tokens that end an answer in the chat template, at most two, -1 for one that is not there. */
static void answer_ends_of(const mote_model *m, int32_t *ends) {
    const chat_marks *marks = m->text ? chat_marks_of(m->family) : NULL;
    for (int i = 0; i < 2; i++) {
        const char *end = !marks ? NULL : *marks->ends ? marks->ends[i] : i ? NULL : marks->turn_end;
        ends[i] = end ? tokenizer_find(m->text, end) : -1;
    }
}

/* What mote_open checks before it looks at the folder. */
static int open_check(const char *name, const char *dir, const mote_options *o, mote_model **model, mote_error *err) {
    if (dir && model && o->parts >= MOTE_EVERYTHING && o->parts <= MOTE_DESCRIPTION && o->draft_rows >= 0 &&
        o->quantize >= MOTE_QUANTIZE_OFF && o->quantize <= MOTE_QUANTIZE_HEAD_FP8 && o->experts >= MOTE_EXPERTS_AUTO && o->experts <= MOTE_EXPERTS_HOST &&
        (o->images == 0 || o->images == -1))
        return MOTE_OK;
    return fail(err, MOTE_EINVAL, "%s: needs a folder, a place for the model, parts of MOTE_EVERYTHING..., draft_rows of 0 or more, "
                                  "quantize of MOTE_QUANTIZE_..., experts of MOTE_EXPERTS_..., images of 0 or -1", name);
}

/* A part of the model in a folder, a part_opener. What there is to note of the folder, the first one that is opened has noted, the whole. */
static int model_open(const char *dir, const mote_options *o, const model_part *part, int load, mote_model **model, mote_error *error) {
    mote_callbacks told = o->callbacks;
    if (part->ranges > 1 || part->ranks > 1) told.log = NULL;
    mote_model *m = model_new(o->device, o->parts == MOTE_TEXT_ONLY, &told, error);
    if (!m) return error->code;
    model_take(m, o);
    m->part = *part;
    int32_t ends[2];
    int code = generation_read(m, dir, &told, error);
    if (!code) pooling_read(m, dir);
    if (!code && o->parts != MOTE_WEIGHTS_ONLY) code = model_open_text(m, dir, o->parts == MOTE_TEXT_ONLY, &told, error);
    answer_ends_of(m, ends);
    if (!code) code = model_ends(m, dir, ends, error);
    if (!code && o->parts != MOTE_TEXT_ONLY) code = model_open_weights(m, dir, load, &told, &o->callbacks, error);
    if (!code && m->text && m->c.layers && tokenizer_vocab(m->text) > m->c.vocab)
        code = fail(error, MOTE_EFORMAT, "%s/tokenizer.json: token ids up to %d, but config.json says vocab_size is %d",
                    dir, tokenizer_vocab(m->text) - 1, m->c.vocab);
    if (!code && m->text) ends_notice(m, dir, &told);
    if (code) {
        mote_close(m);
        return code;
    }
    *model = m;
    return MOTE_OK;
}

/* What shares the model: devices of this host, or hosts. */
static int model_devices(device_list *l, const mote_options *o, mote_error *err) {
    return o->workers ? workers_list(l, o, err) : device_list_of(l, o, err);
}

int mote_open(const char *dir, const mote_options *options, mote_model **model, mote_error *error) {
    mote_options o;
    mote_error failure;
    device_list devices;
    if (!error) error = &failure;
    int code = take_options(&o, sizeof o, OPTIONS_0_3, options, "mote_options", error);
    if (!code) code = open_check("mote_open", dir, &o, model, error);
    if (!code) code = model_devices(&devices, &o, error);
    if (!code && o.drafter) code = drafter_check_devices(&o, &devices, error);
    mote_model *opened = NULL;
    part_opener *open = o.workers ? workers_open_part : model_open;
    if (!code) code = parts_open(open, dir, &o, &devices, o.parts != MOTE_DESCRIPTION, &opened, error);
    if (!code && o.drafter && o.parts != MOTE_TEXT_ONLY) code = drafter_attach(opened, &o, error);
    if (code) mote_close(opened);
    else *model = opened;
    return code;
}

/* Ids that can be chosen: those the tokenizer knows. Above them the table is padding. */
static int known_vocab(const mote_model *m) {
    const int known = m->text ? tokenizer_vocab(m->text) : m->c.vocab;
    return min_int(known, m->c.vocab);
}

/* The model's vocabulary, made when an answer is first masked; NULL: out of memory. Threads that need it at once may each make one: the
   first one stays. */
static const vocabulary *model_vocabulary(const mote_model *model) {
    vocabulary **place = &((mote_model *)(uintptr_t)model)->vocabulary, *there = __atomic_load_n(place, __ATOMIC_ACQUIRE);
    if (there) return there;
    vocabulary *made = vocabulary_new(model->text, (const int32_t *)(const void *)model->eos.data, model->eos.size / sizeof(int32_t));
    if (made && !__atomic_compare_exchange_n(place, &there, made, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        vocabulary_free(made);
        return there;
    }
    return made;
}

static const mote_model *model_hold(const mote_model *model) {
    __atomic_add_fetch(&((mote_model *)model)->holders, 1, __ATOMIC_RELAXED);
    return model;
}

void mote_close(mote_model *model) {
    if (!model || __atomic_sub_fetch(&model->holders, 1, __ATOMIC_ACQ_REL)) return;
    for (int i = 0; i < model->member_count; i++) mote_close(model->members[i]);
    free(model->members);
    mote_close(model->drafter);
    remote_forget(model->remote);
    tokenizer_free(model->text);
    vocabulary_free(model->vocabulary);
    model->memory->release(model);
    config_free(&model->c);
    weights_free(model);
    buf_free(&model->eos);
    free(model);
}

const mote_info *mote_model_info(const mote_model *model) {
    return model ? &model->report.info : NULL;
}
