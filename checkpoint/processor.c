/* checkpoint/processor.c: what a checkpoint says of the pictures that its vision tower reads: preprocessor_config.json, or `image_processor`
   in processor_config.json. Both may be absent, and so may each key: then it is what Qwen3.5 publishes.

   size.shortest_edge and size.longest_edge are numbers of pixels of a whole picture, whatever their names say; min_pixels and max_pixels are other
   names for them, which come first. What would make other pixels of a picture than images/ does is refused. */

enum { PROCESSOR_LEAST = 65536, PROCESSOR_MOST = 1 << 24 };

typedef struct processor_reader {
    const json *j;
    uint32_t object;
    const char *path;
    mote_error *err;
} processor_reader;

/* A number of pixels, by its first name that is there; *out stays without one. */
static int processor_pixels(const processor_reader *r, const char *key, const char *edge, int64_t *out) {
    const uint32_t size = json_get(r->j, r->object, "size");
    uint32_t node = json_get(r->j, r->object, key);
    uint64_t value;
    if (!node || r->j->nodes[node].type == JSON_NULL) node = size ? json_get(r->j, size, edge) : 0;
    if (!node || r->j->nodes[node].type == JSON_NULL) return MOTE_OK;
    if (!json_u64(r->j, node, &value) || value < 1 || value > 1 << 30)
        return fail(r->err, MOTE_EFORMAT, "%s: %s, or size.%s, must be a whole number of pixels from 1 to %d", r->path, key, edge, 1 << 30);
    *out = (int64_t)value;
    return MOTE_OK;
}

/* A key that says nothing, or this. */
static int processor_is(const processor_reader *r, const char *key, double expected) {
    const uint32_t node = json_get(r->j, r->object, key);
    const json_node *n = &r->j->nodes[node];
    double value = 0;
    if (!node || n->type == JSON_NULL || (n->type == JSON_TRUE && expected == 1)) return MOTE_OK;
    if (json_double(r->j, node, &value) || fabs(value - expected) > 1e-6 * fabs(expected))
        return fail(r->err, MOTE_EUNSUPPORTED, "%s: %s is not %.10g", r->path, key, expected);
    return MOTE_OK;
}

/* A list of three halves: bytes become (x - 127.5) / 127.5. */
static int processor_halves(const processor_reader *r, const char *key) {
    const uint32_t node = json_get(r->j, r->object, key);
    double value = 0.5;
    if (!node || r->j->nodes[node].type == JSON_NULL) return MOTE_OK;
    const uint32_t count = r->j->nodes[node].type == JSON_ARRAY ? r->j->nodes[node].size : 0;
    for (uint32_t i = 0, item = node + 1; i < count && value == 0.5; i++, item = r->j->nodes[item].next)
        if (json_double(r->j, item, &value)) value = 0;
    if (count == 3 && value == 0.5) return MOTE_OK;
    return fail(r->err, MOTE_EUNSUPPORTED, "%s: %s is not [0.5, 0.5, 0.5]", r->path, key);
}

static int processor_read(const processor_reader *r, int temporal, picture_limits *to) {
    const struct { const char *key; double value; } fixed[] = {
        {"resample", 3}, {"patch_size", (double)to->patch}, {"merge_size", (double)to->merge}, {"temporal_patch_size", (double)temporal},
        {"do_resize", 1}, {"do_rescale", 1}, {"do_normalize", 1}, {"do_convert_rgb", 1}, {"rescale_factor", 1.0 / 255}};
    int code = MOTE_OK;
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed && !code; i++) code = processor_is(r, fixed[i].key, fixed[i].value);
    if (!code) code = processor_halves(r, "image_mean");
    if (!code) code = processor_halves(r, "image_std");
    if (!code) code = processor_pixels(r, "min_pixels", "shortest_edge", &to->least);
    if (!code) code = processor_pixels(r, "max_pixels", "longest_edge", &to->most);
    if (!code && to->least > to->most)
        code = fail(r->err, MOTE_EFORMAT, "%s: at least %lld pixels and at most %lld", r->path, (long long)to->least, (long long)to->most);
    return code;
}

/* As Qwen3.5 publishes it. */
static void picture_limits_of(int patch, int merge, picture_limits *to) {
    memset(to, 0, sizeof *to);
    to->patch = patch;
    to->merge = merge;
    to->least = PROCESSOR_LEAST;
    to->most = PROCESSOR_MOST;
}

/* Reads what pictures become for a tower whose patches have such sides, of which merge x merge become one token, with so many frames. */
static int read_image_processor(const char *dir, int patch, int merge, int temporal, picture_limits *to, mote_error *err) {
    static const char *const names[] = {"preprocessor_config.json", "processor_config.json"};
    char path[PATH_SIZE];
    json j;
    picture_limits_of(patch, merge, to);
    const int nested = !file_exists(dir, names[0]);
    if (nested && !file_exists(dir, names[1])) return MOTE_OK;
    int code = read_json(dir, names[nested], &j, err);
    if (code) return code;
    const uint32_t object = nested ? json_get(&j, 0, "image_processor") : 0;
    const processor_reader r = {&j, object, path, err};
    if (join_path(path, sizeof path, dir, names[nested])) code = fail(err, MOTE_EINVAL, "%s/%s: path too long", dir, names[nested]);
    if (!code && (!nested || object)) code = processor_read(&r, temporal, to);
    json_free(&j);
    return code;
}
