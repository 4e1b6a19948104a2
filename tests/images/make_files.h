// make_files.h: small PNG and JPEG files with whatever is to be in them. Adler-32 is zero, which nobody looks at.

#ifndef MOTE_TEST_MAKE_FILES_H
#define MOTE_TEST_MAKE_FILES_H

static void put_number(buf *b, uint32_t value, int bytes) {
    for (int i = bytes; i--;) buf_add(b, &(char){(char)(value >> (8 * i))}, 1);
}

// Bits, of PNG from the lowest of a byte, of JPEG from the highest, with a zero after FF.
typedef struct bits { buf *to; uint32_t held; int count, high_first; } bits;

static void put_bits(bits *b, uint32_t value, int n) {
    for (int i = 0; i < n; i++) {
        const uint32_t bit = value >> (b->high_first ? n - 1 - i : i) & 1;
        b->held |= bit << (b->high_first ? 7 - b->count : b->count);
        if (++b->count < 8) continue;
        put_number(b->to, b->held, 1);
        if (b->high_first && b->held == 0xFF) put_number(b->to, 0, 1);
        b->held = 0;
        b->count = 0;
    }
}

// ---- PNG ------------------------------------------------------------------------------------------------------------

typedef struct png_file {
    int width, height, depth, colour, interlaced;      // colour: PNG's type, 0 grey, 2 RGB, 3 palette, 4 grey and alpha, 6 RGBA
    const char *palette, *transparent, *exif;          // PLTE, tRNS, eXIf
    int palette_size, transparent_size, exif_size;
    const unsigned char *rows;                         // with their filter types
    size_t size;
    size_t zeros;                                      // so many instead, compressed
} png_file;

// The remainder of the bits, the lowest of a byte first, by PNG's polynomial.
static uint32_t crc_of(const char *data, size_t size) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < 8 * size; i++) {
        const uint32_t bit = (crc ^ (unsigned char)data[i / 8] >> i % 8) & 1;
        crc = crc >> 1 ^ (bit ? 0xEDB88320 : 0);
    }
    return ~crc;
}

static void put_chunk(buf *to, const char *type, const void *data, size_t size) {
    const size_t at = to->size + 4;
    put_number(to, (uint32_t)size, 4);
    buf_text(to, type);
    buf_add(to, data, size);
    put_number(to, to->failed ? 0 : crc_of(to->data + at, size + 4), 4);
}

// Rows in stored blocks.
static void put_stored(buf *to, const unsigned char *rows, size_t size) {
    for (size_t at = 0, n; at < size || !size; at += n, size += !size) {
        n = size - at < 65535 ? size - at : 65535;
        put_number(to, at + n == size, 1);
        put_number(to, (uint32_t)((n & 255) << 8 | n >> 8), 2);
        put_number(to, (uint32_t)((~n & 255) << 8 | (~n >> 8 & 255)), 2);
        buf_add(to, rows + at, n);
    }
}

// Zeros as runs of 258 in a block with fixed codes: 13 bits each.
static void put_zeros(buf *to, size_t count) {
    bits b = {to, 0, 0, 0};
    put_bits(&b, 3, 3);
    put_bits(&b, 0x0C, 8);                             // a literal 0 is 00110000, from its highest bit
    for (size_t i = 1; i < count; i += 258) put_bits(&b, 0xA3, 8), put_bits(&b, 0, 5);     // 285 is 11000101, distance 1 is 00000
    put_bits(&b, 0, 7 + 8);
}

static buf make_png(const png_file *f) {
    buf to = {0}, packed = {0}, header = {0};
    put_number(&header, (uint32_t)f->width, 4);
    put_number(&header, (uint32_t)f->height, 4);
    put_number(&header, (uint32_t)(f->depth << 8 | f->colour), 2);
    put_number(&header, (uint32_t)f->interlaced, 3);
    put_number(&packed, 0x7801, 2);
    if (f->zeros) put_zeros(&packed, f->zeros);
    else put_stored(&packed, f->rows, f->size);
    put_number(&packed, 0, 4);
    buf_add(&to, "\x89PNG\r\n\x1a\n", 8);
    put_chunk(&to, "IHDR", header.data, header.size);
    if (f->palette) put_chunk(&to, "PLTE", f->palette, (size_t)f->palette_size);
    if (f->transparent) put_chunk(&to, "tRNS", f->transparent, (size_t)f->transparent_size);
    if (f->exif) put_chunk(&to, "eXIf", f->exif, (size_t)f->exif_size);
    put_chunk(&to, "IDAT", packed.data, packed.size);
    put_chunk(&to, "IEND", "", 0);
    buf_free(&packed);
    buf_free(&header);
    return to;
}

// ---- JPEG -----------------------------------------------------------------------------------------------------------

// Blocks of 8 x 8 equal values: each has a DC coefficient, and no other.
typedef struct jpeg_file {
    int width, height, components, wide;               // wide: horizontal sampling of the first component, 1 or 2
    const unsigned char *values;                       // of blocks, as MCUs have them
    int count;
    int progressive, restart, adobe;                   // restart: MCUs; adobe: its transform + 1
    int scans;                                         // of a progressive file: more scans, which say nothing new
    const char *exif;
    int exif_size;
} jpeg_file;

static void put_segment(buf *to, int marker, const void *data, size_t size) {
    put_number(to, (uint32_t)(0xFF00 | marker), 2);
    put_number(to, (uint32_t)size + 2, 2);
    buf_add(to, data, size);
}

static void put_tables(buf *to) {
    static const unsigned char dc[17 + 12] = {0, 0, 0, 0, 12, [17] = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};    // categories: codes of 4 bits
    static const unsigned char ac[17 + 1] = {16, 1};                                                            // the end of a block: 0
    unsigned char quantization[65] = {0};
    memset(quantization + 1, 1, 64);
    put_segment(to, 0xDB, quantization, sizeof quantization);
    put_segment(to, 0xC4, dc, sizeof dc);
    put_segment(to, 0xC4, ac, sizeof ac);
}

static void put_scan_header(buf *to, const jpeg_file *f, int from, int last) {
    put_number(to, 0xFFDA, 2);
    put_number(to, (uint32_t)(6 + 2 * f->components), 2);
    put_number(to, (uint32_t)f->components, 1);
    for (int c = 0; c < f->components; c++) put_number(to, (uint32_t)(c + 1) << 8, 2);
    put_number(to, (uint32_t)(from << 16 | last << 8), 3);
}

static void put_dc(bits *b, int difference, int progressive) {
    int category = 0;
    while (abs(difference) >> category) category++;
    put_bits(b, (uint32_t)category, 4);
    put_bits(b, (uint32_t)(difference < 0 ? difference - 1 : difference) & ((1u << category) - 1), category);
    if (!progressive) put_bits(b, 0, 1);
}

static void put_scan(buf *to, const jpeg_file *f) {
    const int per_unit = f->components - 1 + f->wide;
    bits b = {to, 0, 0, 1};
    int before[4] = {0}, marker = 0;
    put_scan_header(to, f, 0, f->progressive ? 0 : 63);
    for (int i = 0; i < f->count; i++) {
        const int place = i % per_unit, component = place < f->wide ? 0 : place - f->wide + 1;
        if (f->restart && i && i % (f->restart * per_unit) == 0) {
            put_bits(&b, 0x7F, (8 - b.count) % 8);
            put_number(to, (uint32_t)(0xFFD0 + marker++ % 8), 2);
            memset(before, 0, sizeof before);
        }
        const int dc = 8 * (f->values[i] - 128);
        put_dc(&b, dc - before[component], f->progressive);
        before[component] = dc;
    }
    put_bits(&b, 0x7F, (8 - b.count) % 8);
}

static buf make_jpeg(const jpeg_file *f) {
    buf to = {0}, frame = {0};
    put_number(&to, 0xFFD8, 2);
    if (f->exif) {
        buf app = {0};
        buf_add(&app, "Exif\0\0", 6);
        buf_add(&app, f->exif, (size_t)f->exif_size);
        put_segment(&to, 0xE1, app.data, app.size);
        buf_free(&app);
    }
    if (f->adobe) put_segment(&to, 0xEE, (char[12]){'A', 'd', 'o', 'b', 'e', 0, 100, 0, 0, 0, 0, (char)(f->adobe - 1)}, 12);
    put_tables(&to);
    put_number(&frame, 8, 1);
    put_number(&frame, (uint32_t)f->height, 2);
    put_number(&frame, (uint32_t)f->width, 2);
    put_number(&frame, (uint32_t)f->components, 1);
    for (int c = 0; c < f->components; c++) put_number(&frame, (uint32_t)((c + 1) << 16 | (c ? 1 : f->wide) << 12 | 1 << 8), 3);
    put_segment(&to, f->progressive ? 0xC2 : 0xC0, frame.data, frame.size);
    if (f->restart) put_segment(&to, 0xDD, (char[2]){0, (char)f->restart}, 2);
    put_scan(&to, f);
    for (int i = 0; i < f->scans; i++) put_scan(&to, f);
    put_number(&to, 0xFFD9, 2);
    buf_free(&frame);
    return to;
}

// EXIF's orientation as a TIFF structure of 26 bytes, in either byte order.
static void make_exif(char to[26], int orientation, int little) {
    const char low[] = "II*\0\10\0\0\0\1\0\x12\1\3\0\1\0\0\0\0\0\0\0\0\0\0\0", high[] = "MM\0*\0\0\0\10\0\1\1\x12\0\3\0\0\0\1\0\0\0\0\0\0\0\0";
    memcpy(to, little ? low : high, 26);
    to[little ? 18 : 19] = (char)orientation;
}

#endif
