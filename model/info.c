/* model/info.c: what mote_model_info says of a model that has been bound, and loaded if its weights are wanted. Knows the parts of a model
   and the binder's sums; must not know files. */

/* "BF16+INT4 g128": how the matrices of each module are stored, and the types of its vectors. */
static void model_module_dtypes(mote_model *m, const binder *b) {
    for (int k = 0; k < MODULE_KINDS; k++) {
        char *to = m->report.module_dtypes[k], sides[32];
        size_t n = 0, size = sizeof m->report.module_dtypes[k];
        for (int s = 0; s < ENCODING_COUNT; s++) {
            const tensor_encoding *as = tensor_encodings[s];
            int told = 0;
            for (int other = 0; other < s; other++)             /* two encodings of one name */
                told |= b->encodings[k] >> other & 1 && !strcmp(tensor_encodings[other]->name, as->name);
            if (!(b->encodings[k] >> s & 1) || told) continue;
            sides[0] = 0;
            if (s == ENCODING_QUANTISED) snprintf(sides, sizeof sides, " %dx%d", TILE, TILE);
            else if (format_has_blocks(as->format) && s != ENCODING_FP8_TENSOR)
                snprintf(sides, sizeof sides, " %dx%d", m->c.fp8_rows, m->c.fp8_cols);
            if (format_has_groups(as->format) && b->group[k] > 0) snprintf(sides, sizeof sides, " g%d", b->group[k]);
            if (n < size) n += (size_t)snprintf(to + n, size - n, "%s%s%s", n ? "+" : "", as->name, sides);
        }
        m->report.modules[k].name = module_names[k];
        m->report.modules[k].dtype = to;
    }
}

/* Writes the numbers of a shape that are told; returns how many. */
static int model_sizes(const void *shape, const shape_field *row, int count, mote_size *to) {
    int n = 0;
    for (int i = 0; i < count; i++) {
        if (!*row[i].report) continue;
        to[n].name = row[i].report;
        to[n++].value = (int)shape_value(shape, row, i);
    }
    return n;
}

/* Tokens of one image by the checkpoint, and by what its tower takes; 0: it reads none. */
static int model_image_tokens(const mote_model *m) {
    const int64_t side = m->pictures.patch * m->pictures.merge, most = side ? m->pictures.most / (side * side) : 0;
    return !m->has_vision ? 0 : most < VISION_PATCHES_MAX / VISION_JOINED ? (int)most : VISION_PATCHES_MAX / VISION_JOINED;
}

/* The vision tower, after the kinds of layers. */
static void model_vision_kind(mote_model *m) {
    mote_info *o = &m->report.info;
    mote_layers *of = &m->report.kinds[o->kind_count];
    o->images = m->has_vision;
    o->image_tokens = model_image_tokens(m);
    if (!m->has_vision) return;
    of->name = "vision";
    of->count = m->vision.shape.depth;
    of->sizes = m->report.vision_sizes;
    of->size_count = model_sizes(&m->vision.shape, vision_fields, VISION_FIELD_COUNT, m->report.vision_sizes);
    o->kind_count++;
}

/* The kinds of layers that there are, and the stages that they bring. */
static void model_kinds(mote_model *m) {
    mote_info *o = &m->report.info;
    o->kinds = m->report.kinds;
    o->stages = m->report.stages;
    o->kind_count = o->stage_count = 0;
    for (int k = 0; k < LAYER_KIND_COUNT; k++) {
        mote_layers *of = &m->report.kinds[o->kind_count];
        of->count = 0;
        for (int i = 0; i < m->c.layers; i++)
            of->count += ((int)m->layers[i].mixer.kind == k) + ((int)m->layers[i].ffn.kind == k);
        if (!of->count) continue;
        of->name = layer_kind_names[k];
        of->sizes = m->report.sizes[k];
        of->size_count = model_sizes(largest_of(&m->largest, (enum layer_kind)k), layer_fields[k].row, layer_fields[k].count, m->report.sizes[k]);
        o->kind_count++;
    }
    for (int i = 0; i < STAGE_COUNT; i++) {
        int there = (stage_kinds[i] == LAYER_NONE && (i != STAGE_STREAMS || m->c.streams)) || (stage_kinds[i] == LAYER_MTP && m->has_mtp);
        for (int k = 0; k < o->kind_count; k++)
            there |= stage_kinds[i] < LAYER_KIND_COUNT && m->report.kinds[k].name == layer_kind_names[stage_kinds[i]];
        if (there) m->report.stages[o->stage_count++] = stage_names[i];
    }
    model_vision_kind(m);
    if (m->memory->describe) m->memory->describe(m);
}

/* Bytes that the layers remember: of each token, and in all. */
static void model_state(mote_model *m) {
    mote_info *o = &m->report.info;
    layer_state none;
    state_piece piece[STATE_PIECES];
    capacity r;
    memset(&none, 0, sizeof none);
    memset(&r, 0, sizeof r);
    r.kv = m->memory->kv;
    r.context = 1;
    for (int i = 0; i < m->c.layers; i++)
        for (int k = layer_pieces(&m->layers[i], &r, &none, piece); k--;) {
            *(!piece[k].rows ? &o->state_bytes : piece[k].window ? &o->window_bytes_per_token : &o->kv_bytes_per_token) += piece[k].size;
            o->window = max_int(o->window, piece[k].window);
        }
}

/* What a model has on its device. */
static mote_device model_on_device(const mote_model *m) {
    const mote_device d = {.name = m->device.name,
                           .first_layer = m->part.first,
                           .layer_count = m->part.end - m->part.first,
                           .rank = m->part.rank,
                           .ranks = m->part.ranks,
                           .weight_bytes = m->report.info.weight_bytes};
    return d;
}

/* What lies in the host's memory for a GPU. */
static void model_homes(mote_model *m) {
    mote_info *o = &m->report.info;
    o->host_bytes = model_host_bytes(m, 0);
    o->expert_bytes = model_host_bytes(m, 1);
    o->experts_shared = o->host_bytes && m->device.integrated;
    for (int i = 0; i <= m->c.layers; i++) o->expert_layers += m->homes[i].in_host;
}

static void model_info(mote_model *m, const binder *b) {
    const config *c = &m->c;
    mote_info *o = &m->report.info;
    model_module_dtypes(m, b);
    o->architecture = c->family->name;
    o->layers = c->layers;
    o->mtp_layers = m->has_mtp;
    o->hidden_size = c->hidden;
    o->vocab_size = c->vocab;
    o->context_max = c->context_max;
    o->tied_embeddings = c->tied;
    o->quantize = m->quantize;
    o->modules = m->report.modules;
    for (int k = 0; k < MODULE_KINDS; k++) {
        if (!m->report.modules[k].parameters && !m->report.modules[k].bytes) continue;
        o->parameters += m->report.modules[k].parameters;
        if (k != MODULE_MTP) o->active_parameters += b->active[k];
        o->weight_bytes += m->report.modules[k].bytes;
        o->weight_bytes_per_token += m->report.modules[k].bytes_per_token;
        m->report.modules[o->module_count++] = m->report.modules[k];
    }
    model_kinds(m);
    model_state(m);
    model_homes(m);
    m->report.devices[0] = model_on_device(m);
    o->devices = m->report.devices;
    o->device_count = 1;
}

int mote_model_tables(const mote_model *model, mote_tables_seen *seen, mote_error *error) {
    if (!model || !seen) return fail(error, MOTE_EINVAL, "mote_model_tables: needs a model and a place for what its tables have done");
    memset(seen, 0, sizeof *seen);
    for (int i = 0; i < model->member_count; i++) {
        mote_tables_seen of;
        (void)mote_model_tables(model->members[i], &of, NULL);
        seen->bytes = of.bytes > seen->bytes ? of.bytes : seen->bytes;         /* ranks have the same */
        seen->cached += of.cached;
        seen->read += of.read;
        seen->cache_bytes += of.cache_bytes;
    }
    for (int i = 0; i < TABLES_MAX; i++)
        if (model->tables[i]) rows_seen(model->tables[i], seen);
    return MOTE_OK;
}
