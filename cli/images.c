/* cli/images.c: image files of the command line and of messages. It knows files, and of pictures what the library says of them. */

enum { IMAGES_MAX = 32, IMAGE_FILE_MAX = 64 << 20 };       /* with a message; bytes of one */

/* Pictures that go with a message, and the names of their files; what they hold is owned. */
typedef struct pictures { mote_image of[IMAGES_MAX]; char *name[IMAGES_MAX]; int count; } pictures;

/* All but the first so many. */
static void free_pictures_from(pictures *p, int count) {
    while (p->count > count) {
        free((void *)(uintptr_t)p->of[--p->count].data);
        free(p->name[p->count]);
    }
}

static void free_pictures(pictures *p) {
    free_pictures_from(p, 0);
}

/* Moves all of another's to the end; there is room. */
static void move_pictures(pictures *to, pictures *from) {
    memcpy(to->of + to->count, from->of, (size_t)from->count * sizeof *from->of);
    memcpy(to->name + to->count, from->name, (size_t)from->count * sizeof *from->name);
    to->count += from->count;
    from->count = 0;
}

/* Names the file in an error of the library about image N of these. */
static void name_picture(const pictures *p, mote_error *error) {
    char why[sizeof error->message];
    int number, at = 0;
    if (sscanf(error->message, "image %d: %n", &number, &at) != 1 || !at || number < 1 || number > p->count || !p->name[number - 1]) return;
    strcpy(why, error->message + at);
    snprintf(error->message, sizeof error->message, "%.200s: %.250s", p->name[number - 1], why);
}

/* By its first bytes: a PNG, a JPEG or a format of pictures whose name the library says. */
static int is_picture(const char *bytes, size_t size) {
    static const struct { int at; const char *bytes; int size; } begins[] = {
        {0, "\x89PNG", 4}, {0, "\xff\xd8\xff", 3}, {8, "WEBP", 4}, {4, "ftyp", 4}, {0, "GIF8", 4}, {0, "II*", 4}, {0, "MM\0*", 4}, {0, "BM", 2}};
    for (size_t i = 0; i < sizeof begins / sizeof begins[0]; i++)
        if (size >= (size_t)(begins[i].at + begins[i].size) && !memcmp(bytes + begins[i].at, begins[i].bytes, (size_t)begins[i].size)) return 1;
    return 0;
}

/* Adds a picture's file, whose content becomes the list's, also after a failure. tokens: it may take at most, 0: as the library has it. out: a
   line about it; NULL: none. */
static int add_picture(const mote_model *model, const char *name, bytes *file, int tokens, FILE *out, pictures *to) {
    mote_error error = {0, ""};
    mote_image image = {.data = file->data, .size = file->size, .tokens = tokens};
    int width, height, takes;
    if (!mote_model_info(model)->images || to->count == IMAGES_MAX || mote_image_size(model, &image, &width, &height, &takes, &error)) {
        free(file->data);
        if (error.code) return complain(EXIT_FAILURE, "%s: %s", name, error.message);
        if (to->count == IMAGES_MAX) return complain(EXIT_FAILURE, "%s: at most %d images go with a message", name, IMAGES_MAX);
        return complain(EXIT_FAILURE, "%s: this model reads no images", name);
    }
    to->name[to->count] = strdup(name);
    to->of[to->count++] = image;
    if (out) show_format(out, "[read %s: %d x %d, %d tokens]\n", name, width, height, takes);
    return 0;
}

/* The files of --image, in their order. */
static int read_pictures(const mote_model *model, const options *o, pictures *to) {
    int code = 0;
    for (int i = 0; i < o->images.count && !code; i++) {
        const char *name = o->images.text[i];
        bytes file = {NULL, 0, 0};
        FILE *in = open_input(name, 0);
        if (!in) return input_failure();
        code = read_some(in, name, IMAGE_FILE_MAX, &file);
        fclose(in);
        if (code) free(file.data);
        else code = add_picture(model, name, &file, o->image_tokens, NULL, to);
    }
    return code;
}

/* Token ids with the pictures in their places, as mote_feed_images takes them; *opened: to be closed by the caller, NULL without pictures. */
static int place_pictures(const mote_model *model, const pictures *p, bytes *ids, size_t *count, mote_images **opened, mote_error *error) {
    bytes placed = {NULL, 0, 0};
    size_t need = *count;
    *opened = NULL;
    if (!p->count) return 0;
    int code = mote_images_open(model, p->of, p->count, opened, error);
    if (code) name_picture(p, error);
    for (int again = 0; !code && again < 2; again++) {             /* one token becomes as many as a picture takes */
        if (grow(&placed, need * sizeof(int32_t) + 1)) return MOTE_ENOMEM;
        code = mote_images_place(*opened, (const int32_t *)(const void *)ids->data, *count, (int32_t *)(void *)placed.data, need, &need, error);
        if (!code) break;
        if (!again && code == MOTE_EINVAL && need > *count) code = 0;
    }
    const int32_t *keys = (const int32_t *)(const void *)placed.data;
    size_t seen = 0;
    while (!code && seen < need && keys[seen] >= 0) seen++;
    if (!code && seen == need) {
        snprintf(error->message, sizeof error->message, "the prompt has no place for images, which is a token <|image_pad|>");
        code = error->code = MOTE_EINVAL;
    }
    if (code) {
        free(placed.data);
        return code;
    }
    free(ids->data);
    placed.size = need * sizeof(int32_t);
    *ids = placed;
    *count = need;
    return 0;
}
