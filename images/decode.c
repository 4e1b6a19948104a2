/* images/decode.c: a PNG or JPEG file becomes a picture: upright, as its EXIF data says, and over white where it is transparent. */

/* Orientations from 5 on exchange rows and columns. */
static int turned(const picture_header *h) {
    return h->orientation >= 5;
}

/* The upright size of a picture file. Its header alone is read, and compared with the limits. */
static int picture_size(const void *data, size_t size, int *width, int *height, mote_error *err) {
    picture_header h;
    const int code = picture_read_header(data, size, &h, err);
    if (code) return code;
    *width = (int)(turned(&h) ? h.height : h.width);
    *height = (int)(turned(&h) ? h.width : h.height);
    return MOTE_OK;
}

/* A PNG's CRC-32 of n bytes. */
static uint32_t png_crc(const uint32_t table[256], const unsigned char *data, size_t n) {
    uint32_t crc = 0xFFFFFFFF;
    for (size_t i = 0; i < n; i++) crc = crc >> 8 ^ table[(crc ^ data[i]) & 255];
    return ~crc;
}

/* Whether each chunk up to IEND is whole, and has its checksum, of its type and its data. */
static int png_check(const void *data, size_t size, mote_error *err) {
    const image_bytes b = {(const unsigned char *)data, size};
    uint32_t table[256];
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xEDB88320 : 0);
    }
    for (size_t at = PNG_SIGNATURE; size - at >= 12;) {
        const size_t n = image_number(&b, at, 4, 0);
        if (n > size - at - 12) break;
        if (png_crc(table, b.data + at + 4, n + 4) != image_number(&b, at + 8 + n, 4, 0))
            return fail(err, MOTE_EFORMAT, "a broken PNG: its chunk at byte %zu has not the checksum that stands there", at);
        if (image_has(&b, at + 4, "IEND", 4)) return MOTE_OK;
        at += 12 + n;
    }
    return fail(err, MOTE_EFORMAT, "a broken PNG: it ends early");
}

/* A byte over white: s a + 255 (255 - a), divided by 255 and rounded. */
static unsigned char over_white(unsigned s, unsigned a) {
    const unsigned t = s * a + 255 * (255 - a) + 128;
    return (unsigned char)((t + (t >> 8)) >> 8);
}

/* A row of pixels with `channels` bytes as RGB, whose pixels are `step` bytes apart. */
static void put_row(const unsigned char *from, int width, int channels, unsigned char *to, ptrdiff_t step) {
    for (int x = 0; x < width; x++, from += channels, to += step)
        for (int c = 0; c < 3; c++) {
            const unsigned char s = from[channels >= 3 ? c : 0];
            to[c] = channels & 1 ? s : over_white(s, from[channels - 1]);
        }
}

/* Stored pixel (x, y) of a picture of w x h comes to:
     1 x, y   2 w-1-x, y   3 w-1-x, h-1-y   4 x, h-1-y   5 y, x   6 h-1-y, x   7 h-1-y, w-1-x   8 y, w-1-x */
static void put_upright(const unsigned char *from, int w, int h, int channels, int orientation, picture *to) {
    const ptrdiff_t row = (ptrdiff_t)to->width * 3;
    const int back_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    const int back_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    const ptrdiff_t along_x = orientation >= 5 ? row : 3, along_y = orientation >= 5 ? 3 : row;
    for (int y = 0; y < h; y++, from += (ptrdiff_t)w * channels) {
        unsigned char *first = to->rgb + along_y * (back_y ? h - 1 - y : y) + (back_x ? along_x * (w - 1) : 0);
        put_row(from, w, channels, first, back_x ? -along_x : along_x);
    }
}

/* Decodes a picture file, which becomes the caller's to free after MOTE_OK. MOTE_EFORMAT: broken, or no image; MOTE_EUNSUPPORTED: of another
   format, or above the limits. */
static int picture_decode(const void *data, size_t size, picture *to, mote_error *err) {
    picture_header h;
    unsigned char *pixels;
    int channels = 0;
    memset(to, 0, sizeof *to);
    int code = picture_read_header(data, size, &h, err);
    if (code) return code;
    const int width = (int)h.width, height = (int)h.height;
    code = h.is_png ? png_check(data, size, err) : MOTE_OK;
    if (!code) code = stb_decode(data, size, h.is_png, width, height, &pixels, &channels, err);
    if (code) return code;
    if (channels == 3 && h.orientation == 1) {
        to->width = width;
        to->height = height;
        to->rgb = pixels;
        return MOTE_OK;
    }
    code = turned(&h) ? picture_new(height, width, to, err) : picture_new(width, height, to, err);
    if (!code) put_upright(pixels, width, height, channels, h.orientation, to);
    free(pixels);
    return code;
}
