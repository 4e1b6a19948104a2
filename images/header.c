/* images/header.c: which format bytes are of, and what a PNG's and a JPEG's header says: sides, and by EXIF how to turn them. Only reads;
   every length is compared with what is there. */

enum { PNG_SIGNATURE = 8, EXIF_ORIENTATION = 0x0112 };

typedef struct picture_header {
    int is_png;
    int64_t width, height;         /* as stored */
    int orientation;               /* EXIF's, 1 to 8; 1: upright */
} picture_header;

typedef struct image_bytes {
    const unsigned char *data;
    size_t size;
} image_bytes;

/* A number of n bytes at `at`, the first byte the highest, or the lowest. 0 where they are not all there. */
static uint32_t image_number(const image_bytes *b, size_t at, int n, int little) {
    uint32_t value = 0;
    if (at > b->size || b->size - at < (size_t)n) return 0;
    for (int i = 0; i < n; i++) value = value << 8 | b->data[at + (size_t)(little ? n - 1 - i : i)];
    return value;
}

static int image_has(const image_bytes *b, size_t at, const char *text, size_t n) {
    return at <= b->size && b->size - at >= n && !memcmp(b->data + at, text, n);
}

/* The name of a format that is not read; NULL: none that is known. */
static const char *image_other_format(const image_bytes *b) {
    static const struct { const char *name; int at; const char *bytes; int size; } others[] = {
        {"WebP", 8, "WEBP", 4}, {"AVIF", 4, "ftypavif", 8}, {"AVIF", 4, "ftypavis", 8}, {"HEIC", 4, "ftyphe", 6},
        {"HEIC", 4, "ftypmif1", 8}, {"HEIC", 4, "ftypmsf1", 8}, {"TIFF", 0, "II*\0", 4}, {"TIFF", 0, "MM\0*", 4}, {"TIFF", 0, "II+\0", 4},
        {"TIFF", 0, "MM\0+", 4}, {"GIF", 0, "GIF8", 4}, {"BMP", 0, "BM", 2}, {"PDF", 0, "%PDF", 4}, {"JPEG XL", 0, "\xff\x0a", 2},
        {"JPEG XL", 4, "JXL ", 4}, {"JPEG 2000", 4, "jP  ", 4}, {"JPEG 2000", 0, "\xff\x4f\xff\x51", 4}, {"an icon", 0, "\0\0\1\0", 4},
        {"Photoshop's PSD", 0, "8BPS", 4}, {"a video", 4, "ftyp", 4}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (image_has(b, (size_t)others[i].at, others[i].bytes, (size_t)others[i].size)) return others[i].name;
    size_t at = image_has(b, 0, "\xef\xbb\xbf", 3) ? 3 : 0;
    while (at < b->size && at < 256 && strchr(" \t\r\n", b->data[at]) && b->data[at]) at++;
    return image_has(b, at, "<svg", 4) || image_has(b, at, "<?xml", 5) ? "SVG" : NULL;
}

/* The orientation that EXIF's TIFF structure gives, of n bytes at `at`. 1: it gives none, or is broken. */
static int exif_orientation(const image_bytes *file, size_t at, size_t n) {
    const image_bytes b = {file->data + at, n};
    const int little = image_has(&b, 0, "II*\0", 4);
    if (!little && !image_has(&b, 0, "MM\0*", 4)) return 1;
    const size_t directory = image_number(&b, 4, 4, little);
    const uint32_t entries = image_number(&b, directory, 2, little);
    if (directory + 2 + 12 * (size_t)entries > n) return 1;
    for (uint32_t i = 0; i < entries; i++) {
        const size_t entry = directory + 2 + 12 * (size_t)i;            /* tag, type, count, value; type 3: 16 bits */
        if (image_number(&b, entry, 2, little) != EXIF_ORIENTATION) continue;
        const uint32_t value = image_number(&b, entry + 8, 2, little);
        return image_number(&b, entry + 2, 2, little) == 3 && value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}

/* A PNG is a signature and chunks: length, type, data, a check. */
static int png_header(const image_bytes *b, picture_header *to, mote_error *err) {
    if (!image_has(b, PNG_SIGNATURE, "\0\0\0\15IHDR", 8) || b->size < PNG_SIGNATURE + 25)
        return fail(err, MOTE_EFORMAT, "a broken PNG: it does not begin with its sizes");
    to->width = image_number(b, PNG_SIGNATURE + 8, 4, 0);
    to->height = image_number(b, PNG_SIGNATURE + 12, 4, 0);
    for (size_t at = PNG_SIGNATURE; b->size - at >= 12;) {
        const size_t n = image_number(b, at, 4, 0), rest = b->size - at - 12;
        if (n > rest) break;
        if (image_has(b, at + 4, "eXIf", 4)) to->orientation = exif_orientation(b, at + 8, n);
        at += 12 + n;
    }
    return MOTE_OK;
}

/* A frame header: length, precision, height, width, components. Four of them are CMYK, of which only Adobe's marker says how it is stored. */
static int jpeg_frame(const image_bytes *b, size_t at, int marker, int transform, picture_header *to, mote_error *err) {
    if (marker > 0xC2)
        return fail(err, MOTE_EUNSUPPORTED, "a lossless or arithmetic JPEG (SOF%d) is not read: baseline and progressive ones are", marker - 0xC0);
    if (b->size - at < 8) return fail(err, MOTE_EFORMAT, "a broken JPEG: it ends in its header");
    to->height = image_number(b, at + 3, 2, 0);
    to->width = image_number(b, at + 5, 2, 0);
    if (b->data[at + 2] != 8) return fail(err, MOTE_EUNSUPPORTED, "a JPEG of %d bits is not read: those of 8 bits are", b->data[at + 2]);
    if (b->data[at + 7] == 4 && transform != 0 && transform != 2)
        return fail(err, MOTE_EUNSUPPORTED, "a JPEG with 4 components is read with Adobe's marker alone, as CMYK or YCCK");
    return MOTE_OK;
}

/* A JPEG is markers, FF and a byte, most of them with a segment: length, data. */
static int jpeg_header(const image_bytes *b, picture_header *to, mote_error *err) {
    int transform = -1, has_exif = 0;
    for (size_t at = 2; at < b->size;) {
        if (b->data[at] != 0xFF) {
            at++;                                  /* padding between segments */
            continue;
        }
        while (at < b->size && b->data[at] == 0xFF) at++;
        const int marker = at < b->size ? b->data[at++] : 0;
        if (marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC)
            return jpeg_frame(b, at, marker, transform, to, err);
        const size_t n = image_number(b, at, 2, 0);
        if (n < 2 || n > b->size - at) break;
        if (marker == 0xE1 && image_has(b, at + 2, "Exif\0\0", 6) && n >= 8 && !has_exif) {
            to->orientation = exif_orientation(b, at + 8, n - 8);
            has_exif = 1;
        }
        if (marker == 0xEE && image_has(b, at + 2, "Adobe\0", 6) && n >= 14) transform = b->data[at + 13];
        at += n;
    }
    return fail(err, MOTE_EFORMAT, "a broken JPEG: no frame is in it");
}

/* The header of a picture file, its size and sides within the limits. MOTE_EUNSUPPORTED: another format, by its name. */
static int picture_read_header(const void *data, size_t size, picture_header *to, mote_error *err) {
    const image_bytes b = {(const unsigned char *)data, size};
    memset(to, 0, sizeof *to);
    to->orientation = 1;
    if (!size) return fail(err, MOTE_EFORMAT, "an empty image");
    if (size > PICTURE_BYTES_MOST)
        return fail(err, MOTE_EUNSUPPORTED, "an image of %zu bytes: at most %d are read", size, PICTURE_BYTES_MOST);
    to->is_png = image_has(&b, 0, "\x89PNG\r\n\x1a\n", PNG_SIGNATURE);
    if (!to->is_png && !image_has(&b, 0, "\xff\xd8\xff", 3)) {
        const char *name = image_other_format(&b);
        if (name) return fail(err, MOTE_EUNSUPPORTED, "%s is not read: PNG and JPEG are", name);
        return fail(err, MOTE_EFORMAT, "not an image of a known format: PNG and JPEG are read");
    }
    const int code = to->is_png ? png_header(&b, to, err) : jpeg_header(&b, to, err);
    return code ? code : picture_check(to->width, to->height, err);
}
