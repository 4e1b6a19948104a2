/* diagnose/parts.c: opens a model in so many ranges and ranks, for tests: on the CPU. */

int mote_open_parts(const char *dir, const mote_options *options, int ranges, int ranks, mote_model **model, mote_error *error) {
    mote_options o;
    mote_error failure;
    device_list l;
    if (!error) error = &failure;
    int code = take_options(&o, sizeof o, OPTIONS_0_3, options, "mote_options", error);
    if (!code) code = open_check("mote_open_parts", dir, &o, model, error);
    if (code) return code;
    if (ranges < 1 || ranks < 1 || ranges > DEVICES_MAX || ranks > DEVICES_MAX / ranges)
        return fail(error, MOTE_EINVAL, "mote_open_parts: %d ranges of %d ranks, expected 1 to %d of both together", ranges, ranks, DEVICES_MAX);
    if (o.parts == MOTE_TEXT_ONLY || o.parts == MOTE_DESCRIPTION)
        return fail(error, MOTE_EINVAL, "mote_open_parts: a model without weights has no parts");
    if (o.devices || (o.device && strcmp(o.device, "cpu")))
        return fail(error, MOTE_EUNSUPPORTED, "mote_open_parts: device \"%.40s\": parts run on the CPU alone", o.device ? o.device : o.devices);
    memset(&l, 0, sizeof l);
    l.ranges = ranges;
    l.ranks = ranks;
    for (l.count = 0; l.count < ranges * ranks; l.count++) snprintf(l.name[l.count], sizeof *l.name, "cpu");
    return parts_open(model_open, dir, &o, &l, 1, model, error);
}
