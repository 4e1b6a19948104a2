// Fuzzer of pictures: any bytes as a file, made PNG and JPEG files with some of their bytes changed, and a processor's configuration. What is
// read is resized, cut into patches and hashed. make fuzz; needs clang.

#include "../images/images.h"

#include "../images/make_files.h"

enum { PIXELS_MOST = 1 << 14 };            // of pictures that are decoded, for speed alone

static void check(int code, const mote_error *err) {
    if (code && (err->code != code || !err->message[0] || strchr(err->message, '\n'))) abort();
}

// What a tower would read of a picture.
static void try_tower(const picture *p, const picture_limits *limits) {
    mote_error err = {0, ""};
    unsigned char hash[SHA256_SIZE];
    picture resized;
    int width, height;
    int code = picture_fit(limits, p->width, p->height, &width, &height, &err);
    const int side = limits->patch * limits->merge;
    check(code, &err);
    if (code || (int64_t)width * height > 16 * PIXELS_MOST) return;
    if (width < 1 || height < 1 || width % side || height % side) abort();
    code = picture_resize(p, width, height, &resized, &err);
    if (code || resized.width != width || resized.height != height) abort();
    float *patches = (float *)malloc(picture_bytes(&resized) * 2 * sizeof *patches);
    picture_patches(&resized, limits->patch, limits->merge, patches);
    for (size_t i = 0; i < picture_bytes(&resized) * 2; i++)
        if (!(patches[i] >= -1 && patches[i] <= 1)) abort();
    picture_hash(&resized, hash);
    free(patches);
    picture_free(&resized);
}

static void try_file(const void *data, size_t size, const picture_limits *limits) {
    mote_error err = {0, ""};
    picture p;
    int width, height, code = picture_size(data, size, &width, &height, &err);
    check(code, &err);
    if (code || (int64_t)width * height > PIXELS_MOST) return;
    code = picture_decode(data, size, &p, &err);
    check(code, &err);
    if (code) return;
    if (p.width != width || p.height != height) abort();
    try_tower(&p, limits);
    picture_free(&p);
}

// A file of numbers from the input, whose bytes are then changed: pairs of a place and a byte.
static buf made_file(const uint8_t *data, size_t size) {
    buf file;
    char exif[26];
    make_exif(exif, data[0] & 15, data[0] & 1);
    const size_t half = size / 2;
    if (data[1] & 1) {
        file = make_png(&(png_file){.width = 1 + data[2] % 32, .height = 1 + data[3] % 32, .depth = 1 << data[4] % 5, .colour = data[5] % 7,
                                    .interlaced = data[1] >> 1 & 1, .exif = data[1] & 4 ? exif : NULL, .exif_size = 26,
                                    .palette = (const char *)data, .palette_size = 9,
                                    .transparent = data[1] & 8 ? (const char *)data : NULL, .transparent_size = data[6] % 7,
                                    .rows = data + 8, .size = half - 8, .zeros = data[1] & 16 ? data[7] * 64u : 0});
    } else {
        const int components = (int[]){1, 3, 4, 3}[data[4] % 4], wide = 1 + (components > 1 && data[5] & 1);
        file = make_jpeg(&(jpeg_file){.width = 1 + data[2] % 64, .height = 1 + data[3] % 64, .components = components, .wide = wide,
                                      .values = data + 8, .count = (int)(half - 8), .progressive = data[1] >> 1 & 1, .restart = data[6] % 5,
                                      .adobe = data[7] % 4, .scans = data[1] & 8 ? data[7] % 4 : 0, .exif = data[1] & 4 ? exif : NULL,
                                      .exif_size = 26});
    }
    for (size_t i = half; i + 2 < size; i += 3) {
        const size_t at = data[i] | (size_t)data[i + 1] << 8;
        if (at < file.size) file.data[at] = (char)data[i + 2];
    }
    return file;
}

// The checksums of a PNG's chunks as their data ask for, so that what was changed is read.
static void mend_checks(buf *file) {
    size_t at = 8;
    while (at + 12 <= file->size) {
        const unsigned char *n = (const unsigned char *)file->data + at;
        const size_t size = (size_t)n[0] << 24 | (size_t)n[1] << 16 | (size_t)n[2] << 8 | n[3];
        if (size > file->size - at - 12) return;
        const uint32_t crc = crc_of(file->data + at + 4, size + 4);
        for (int i = 0; i < 4; i++) file->data[at + 8 + size + (size_t)i] = (char)(crc >> (24 - 8 * i));
        at += 12 + size;
    }
}

static void try_processor(const char *text, size_t size) {
    mote_error err = {0, ""};
    picture_limits limits = {16, 2, 65536, 1 << 24};
    json j;
    int code = json_parse(&j, text, size, "processor", &err);
    check(code, &err);
    if (code) return;
    const processor_reader r = {&j, 0, "processor", &err};
    code = processor_read(&r, 2, &limits);
    check(code, &err);
    if (!code && (limits.least < 1 || limits.least > limits.most)) abort();
    json_free(&j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 40) return 0;
    const picture_limits limits = {1 + data[1] % 16, 1 + data[2] % 4, 1 + data[3] * 16, 1 + data[3] * 16 + data[4] * 64};
    switch (data[0] % 4) {
    case 0: try_file(data + 5, size - 5, &limits); break;
    case 1: try_processor((const char *)data + 1, size - 1); break;
    default: {
        buf file = made_file(data + 5, size - 5);
        if (!file.failed && (data[5 + 1] & 33) == 33) mend_checks(&file);
        if (!file.failed) try_file(file.data, file.size, &limits);
        buf_free(&file);
    }
    }
    return 0;
}
