/* diagnose/parts.c: opens a model in parts, each with its own weights: what a group of runners computes with (run/group.c). Must not know how
   they exchange anything. */

/* The part of member i, of ranges with so many ranks. */
static model_part parts_member(int i, int ranges, int ranks) {
    return part_of(i / ranks, ranges, i % ranks, ranks);
}

/* Opens the parts of m, which is described. A member without the MTP layer, where another has it, is one of other ranges; if the last
   range leaves it out, so does the model. */
static int parts_open(mote_model *m, const char *dir, const mote_options *o, int ranges, int ranks, mote_error *err) {
    const int count = ranges * ranks;
    mote_options quiet = *o;
    int code = MOTE_OK;
    quiet.parts = MOTE_WEIGHTS_ONLY;
    quiet.callbacks.log = NULL;
    m->members = (mote_model **)calloc((size_t)count, sizeof *m->members);
    if (!m->members) return fail_memory(err);
    m->member_count = count;
    for (int i = 0; i < count && !code; i++) {
        const model_part part = parts_member(i, ranges, ranks);
        code = model_open(dir, &quiet, &part, 1, &m->members[i], err);
    }
    if (code) return code;
    for (int i = count - ranks; i < count; i++) m->has_mtp &= m->members[i]->has_mtp;
    m->report.info.mtp_layers = m->has_mtp;
    m->norm = m->members[count - 1]->norm;
    m->part = part_of(-1, ranges, 0, 1);                    /* it has no layers itself */
    return MOTE_OK;
}

int mote_open_parts(const char *dir, const mote_options *options, int ranges, int ranks, mote_model **model, mote_error *error) {
    const model_part whole = part_of(0, 1, 0, 1);
    mote_options o;
    mote_error failure;
    mote_model *m = NULL;
    if (!error) error = &failure;
    int code = take_options(&o, sizeof o, OPTIONS_0_3, options, "mote_options", error);
    if (!code) code = open_check("mote_open_parts", dir, &o, model, error);
    if (code) return code;
    if (ranges < 1 || ranks < 1 || ranges > 64 || ranks > 64)
        return fail(error, MOTE_EINVAL, "mote_open_parts: %d ranges of %d ranks, expected 1 to 64 of each", ranges, ranks);
    if (o.parts == MOTE_TEXT_ONLY || o.parts == MOTE_DESCRIPTION)
        return fail(error, MOTE_EINVAL, "mote_open_parts: a model without weights has no parts");
    if (o.device && strcmp(o.device, "cpu"))
        return fail(error, MOTE_EUNSUPPORTED, "mote_open_parts: device \"%.40s\": parts run on the CPU alone", o.device);
    o.device = "cpu";
    code = model_open(dir, &o, &whole, 0, &m, error);
    if (!code && ranges > m->c.layers)
        code = fail(error, MOTE_EUNSUPPORTED, "%s: %d layers cannot be divided into %d ranges", dir, m->c.layers, ranges);
    if (!code) code = parts_open(m, dir, &o, ranges, ranks, error);
    if (code) mote_close(m);
    else *model = m;
    return code;
}
