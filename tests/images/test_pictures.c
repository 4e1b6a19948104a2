// Tests of pictures: which files are read and which refused, their pixels, how they are resized and cut into patches (images/), and what a
// checkpoint says of it (checkpoint/processor.c).
//
// Contents   1. Files made here   2. What is refused   3. Processors   4. DATA/vision-data: sizes, resizing, files, patches
//
// Usage: test_pictures [--brief] [DATA]

#include "../../engine.h"

#include "images.h"

#include "no_memory.h"
#include "test.h"
#include "files.h"
#include "make_files.h"

#include <regex.h>

// ---- 1. Files made here ---------------------------------------------------------------------------------------------

static int decode(const buf *file, picture *p, mote_error *err) {
    int width = 0, height = 0;
    *err = (mote_error){0, ""};
    const int code = picture_decode(file->data, file->size, p, err), sized = picture_size(file->data, file->size, &width, &height, NULL);
    CHECK(code == err->code && !code == !err->message[0], "code %d, error %d: %s", code, err->code, err->message);
    CHECK(code || (!sized && width == p->width && height == p->height), "%d x %d by the header", width, height);
    return code;
}

// Frees the file.
static void check_file(const char *name, buf file, int width, int height, const void *rgb) {
    mote_error err;
    picture p;
    if (CHECK(!decode(&file, &p, &err), "%s: %s", name, err.message) &&
        CHECK(p.width == width && p.height == height, "%s: %d x %d", name, p.width, p.height))
        for (int i = 0; i < width * height * 3; i++)
            if (!CHECK(p.rgb[i] == ((const unsigned char *)rgb)[i], "%s: byte %d is %d", name, i, p.rgb[i])) break;
    picture_free(&p);
    buf_free(&file);
}

static void check_refused(const char *name, buf file, int code, const char *says) {
    mote_error err;
    picture p;
    const int got = decode(&file, &p, &err);
    CHECK(got == code && strstr(err.message, says), "%s: %d, %s", name, got, err.message);
    picture_free(&p);
    buf_free(&file);
}

#define PNG(w, h, bits, type, ...) make_png(&(png_file){.width = w, .height = h, .depth = bits, .colour = type, __VA_ARGS__})
#define JPEG(w, h, n, first, blocks, ...) \
    make_jpeg(&(jpeg_file){.width = w, .height = h, .components = n, .wide = first, .values = blocks, __VA_ARGS__})
#define ROWS(text) .rows = (const unsigned char *)text, .size = sizeof text - 1

static void test_png(void) {
    check_file("RGB, and a row from the one above", PNG(2, 2, 8, 2, ROWS("\0\1\2\3\4\5\6\2\1\1\1\1\1\1")), 2, 2,
               "\1\2\3\4\5\6\2\3\4\5\6\7");
    check_file("grey, 1 bit", PNG(3, 1, 1, 0, ROWS("\0\xA0")), 3, 1, "\xff\xff\xff\0\0\0\xff\xff\xff");
    check_file("grey, 2 bits, with a transparent grey",
               PNG(2, 1, 2, 0, .transparent = "\0\1", .transparent_size = 2, ROWS("\0\x60")), 2, 1, "\xff\xff\xff\xaa\xaa\xaa");
    check_file("16 bits: the high byte", PNG(1, 1, 16, 2, ROWS("\0\x12\xff\x34\0\x56\x80")), 1, 1, "\x12\x34\x56");
    check_file("16 bits, one colour transparent, another one nearly that",
               PNG(2, 1, 16, 2, .transparent = "\0\1\0\2\0\3", .transparent_size = 6, ROWS("\0\0\1\0\2\0\3\0\1\0\2\0\4")), 2, 1,
               "\xff\xff\xff\0\0\0");
    check_file("alpha: over white", PNG(3, 1, 8, 6, ROWS("\0\1\2\3\0\1\2\3\xff\0\x64\xc8\x80")), 3, 1,
               "\xff\xff\xff\1\2\3\x7f\xb1\xe3");
    check_file("grey with alpha", PNG(2, 1, 8, 4, ROWS("\0\x40\xff\x40\0")), 2, 1, "\x40\x40\x40\xff\xff\xff");
    check_file("a palette, of which one colour is transparent and one is not there",
               PNG(4, 1, 2, 3, .palette = "\1\2\3\4\5\6\7\10\11", .palette_size = 9, .transparent = "\xff\0", .transparent_size = 2,
                                    ROWS("\0\x1b")), 4, 1, "\1\2\3\xff\xff\xff\7\10\11\0\0\0");
    check_file("interlaced: three passes of a pixel each, then a row",
               PNG(2, 2, 8, 0, .interlaced = 1, ROWS("\0\1\0\2\0\3\4")), 2, 2, "\1\1\1\2\2\2\3\3\3\4\4\4");
    static unsigned char trailing[5 + 60000];
    memcpy(trailing, "\0\1\2\3", 4);
    check_file("more data than rows", PNG(1, 1, 8, 2, .rows = trailing, .size = sizeof trailing), 1, 1, "\1\2\3");
}

// The corners of an image whose corners are 10, 20 / 30, 40, turned.
static void test_orientation(void) {
    static const unsigned char corners[9][4] = {{10, 20, 30, 40}, {10, 20, 30, 40}, {20, 10, 40, 30}, {40, 30, 20, 10}, {30, 40, 10, 20},
                                                {10, 30, 20, 40}, {30, 10, 40, 20}, {40, 20, 30, 10}, {20, 40, 10, 30}};
    for (int i = 0; i <= 9 * 2 + 1; i++) {
        const int orientation = i / 2, valid = orientation <= 8 ? orientation : 0, wide = orientation >= 5 && orientation <= 8 ? 16 : 24;
        const unsigned char values[] = {10, 99, 20, 30, 99, 40};
        char exif[26];
        mote_error err;
        picture p;
        make_exif(exif, orientation, i % 2);
        buf file = JPEG(24, 16, 1, 1, values, .count = 6, .exif = exif, .exif_size = 26);
        if (CHECK(!decode(&file, &p, &err), "orientation %d: %s", orientation, err.message) && CHECK(p.width == wide, "%d", p.width))
            for (int k = 0; k < 4; k++) {
                const unsigned char *at = p.rgb + 3 * (k % 2 * (p.width - 1) + k / 2 * (p.height - 1) * p.width);
                CHECK(*at == corners[valid][k], "orientation %d: corner %d is %d", orientation, k, *at);
            }
        picture_free(&p);
        buf_free(&file);
    }
    char exif[26];
    make_exif(exif, 6, 0);
    check_file("PNG's eXIf", PNG(2, 1, 8, 0, .exif = exif, .exif_size = 26, ROWS("\0\1\2")), 1, 2, "\1\1\1\2\2\2");
    for (int n = 0; n < 26; n++)                           // its only entry ends after 22 bytes
        check_file("EXIF that ends early", PNG(2, 1, 8, 0, .exif = exif, .exif_size = n, ROWS("\0\1\2")), n < 22 ? 2 : 1,
                   n < 22 ? 1 : 2, "\1\1\1\2\2\2");
}

static void test_jpeg(void) {
    static const unsigned char grey[] = {50, 200, 128, 7}, cmyk[] = {200, 100, 50, 255};
    unsigned char rgb[32 * 8 * 3];
    for (int kind = 0; kind < 4; kind++) {
        for (int i = 0; i < 32 * 8; i++) memset(rgb + 3 * i, grey[i % 32 / 8], 3);
        check_file("grey", JPEG(32, 8, 1, 1, grey, .count = 4, .progressive = kind % 2, .restart = kind / 2), 32, 8, rgb);
    }
    for (int i = 0; i < 64; i++) memcpy(rgb + 3 * i, cmyk, 3);
    check_file("Adobe's CMYK", JPEG(8, 8, 4, 1, cmyk, .count = 4, .adobe = 1), 8, 8, rgb);
    check_refused("CMYK, but which", JPEG(8, 8, 4, 1, cmyk, .count = 4), MOTE_EUNSUPPORTED, "4 components");

    // 4:2:2, of 9 chroma samples the last one another: the column next to the edge has three quarters of it.
    static const unsigned char wide[] = {128, 128, 128, 128, 128, 128, 128, 188};
    buf file = JPEG(18, 8, 3, 2, wide, .count = 8);
    mote_error err;
    picture p;
    if (CHECK(!decode(&file, &p, &err), "4:2:2: %s", err.message)) {
        CHECK(p.rgb[15 * 3] > 145 && p.rgb[15 * 3] < 153, "a quarter: %d", p.rgb[15 * 3]);
        CHECK(p.rgb[16 * 3] > 188 && p.rgb[16 * 3] < 194, "three quarters: %d", p.rgb[16 * 3]);
        CHECK(p.rgb[17 * 3] > 209 && p.rgb[17 * 3] < 215, "the edge: %d", p.rgb[17 * 3]);
    }
    picture_free(&p);
    buf_free(&file);
}

// ---- 2. What is refused ---------------------------------------------------------------------------------------------

// Every beginning of a file but those that lack its end mark alone.
static void check_beginnings(const char *name, buf file, size_t end) {
    mote_error err;
    picture p;
    for (size_t n = 0; n < file.size; n++) {
        char *part = (char *)allocate(n);
        memcpy(part, file.data, n);
        const buf beginning = {part, n, n, 0};
        const int code = decode(&beginning, &p, &err);
        CHECK(n < file.size - end ? code == MOTE_EFORMAT : !code, "%s: %zu of %zu bytes: %d, %s", name, n, file.size, code, err.message);
        picture_free(&p);
        free(part);
    }
    buf_free(&file);
}

static void test_beginnings(void) {
    static const unsigned char values[] = {50, 200, 128, 7, 1, 2, 3, 4, 5, 6, 7, 8};
    check_beginnings("PNG", PNG(2, 2, 8, 2, ROWS("\0\1\2\3\4\5\6\2\1\1\1\1\1\1")), 0);
    check_beginnings("PNG, interlaced", PNG(2, 2, 8, 0, .interlaced = 1, ROWS("\0\1\0\2\0\3\4")), 0);
    check_beginnings("JPEG", JPEG(32, 24, 1, 1, values, .count = 12), 2);
    check_beginnings("JPEG, restarts", JPEG(32, 24, 1, 1, values, .count = 12, .restart = 2), 2);
    check_beginnings("JPEG, progressive", JPEG(32, 24, 1, 1, values, .count = 12, .progressive = 1), 0);
    check_beginnings("JPEG, colours", JPEG(16, 16, 3, 1, values, .count = 12), 2);
    check_refused("a JPEG with too few blocks", JPEG(32, 24, 1, 1, values, .count = 9), MOTE_EFORMAT, "broken JPEG");
    check_refused("with restarts", JPEG(32, 24, 1, 1, values, .count = 8, .restart = 2), MOTE_EFORMAT, "ends early");
    check_refused("a PNG with too few rows", PNG(2, 2, 8, 0, ROWS("\0\1\2")), MOTE_EFORMAT, "not enough");
}

// Every bit after the signature.
static void test_damage(void) {
    const char palette[] = {1, 2, 3, 4, 5, 6};
    buf file = PNG(2, 1, 8, 3, .palette = palette, .palette_size = 6, .transparent = "\xff\x80", .transparent_size = 2, ROWS("\0\0\1"));
    for (size_t bit = 64; bit < 8 * file.size; bit++) {
        mote_error err = {0, ""};
        picture p;
        file.data[bit / 8] ^= (char)(1 << bit % 8);
        const int code = decode(&file, &p, &err);
        CHECK(code == MOTE_EFORMAT || code == MOTE_EUNSUPPORTED, "bit %zu: %d, %s", bit, code, err.message);
        file.data[bit / 8] ^= (char)(1 << bit % 8);
        if (!code) picture_free(&p);
    }
    file.data[file.size - 1] ^= 1;
    check_refused("a damaged chunk", file, MOTE_EFORMAT, "a broken PNG: its chunk at byte");
}

// What takes memory by the picture's size, and that not before its size is known to be within limits.
static void test_bombs(void) {
    static const unsigned char value = 128;
    const size_t before = largest_allocation;
    largest_allocation = 0;
    check_refused("30 MB after 8 x 8", PNG(8, 8, 8, 2, .zeros = 30 << 20), MOTE_EFORMAT, "more data than rows");
    check_refused("60,000 a side", PNG(60000, 60000, 8, 2, ROWS("\0")), MOTE_EUNSUPPORTED, "60000 x 60000");
    check_refused("2^31", PNG(INT_MAX, INT_MAX, 8, 2, ROWS("\0")), MOTE_EUNSUPPORTED, "2147483647 x 2147483647");
    check_refused("2^32 - 1", PNG(-1, -1, 8, 2, ROWS("\0")), MOTE_EUNSUPPORTED, "4294967295");
    check_refused("many pixels", PNG(8193, 8192, 8, 2, ROWS("\0")), MOTE_EUNSUPPORTED, "at most 67108864");
    check_refused("no pixels", PNG(0, 1, 8, 2, ROWS("\0")), MOTE_EFORMAT, "0 x 1");
    check_refused("thin", PNG(1, 30000, 8, 2, ROWS("\0")), MOTE_EUNSUPPORTED, "200 times");
    check_refused("wide", PNG(201, 1, 8, 2, ROWS("\0")), MOTE_EUNSUPPORTED, "200 times");
    check_refused("a JPEG of 65,535 a side", JPEG(65535, 65535, 1, 1, &value, .count = 1), MOTE_EUNSUPPORTED, "65535 x 65535");
    check_refused("a JPEG without height", JPEG(8, 0, 1, 1, &value, .count = 1), MOTE_EFORMAT, "8 x 0");
    buf file = PNG(1, 1, 8, 2, ROWS("\0\1\2\3"));
    file.data[33] = 0x3f;                                  // of IDAT's length
    check_refused("an IDAT chunk longer than the file", file, MOTE_EFORMAT, "ends early");
    CHECK(largest_allocation < 1 << 20, "%zu bytes at once", largest_allocation);
    largest_allocation = before;
    check_refused("a hundred scans", JPEG(8, 8, 1, 1, &value, .count = 1, .progressive = 1, .scans = 100), MOTE_EFORMAT, "scans");
    unsigned char flat[8 * 8 * 3];
    memset(flat, 128, sizeof flat);
    check_file("fifty", JPEG(8, 8, 1, 1, &value, .count = 1, .progressive = 1, .scans = 49), 8, 8, flat);
    unsigned char rows[200 * 2] = {0}, black[200 * 3] = {0};
    check_file("1 x 200", PNG(1, 200, 8, 0, .rows = rows, .size = sizeof rows), 1, 200, black);
}

static void test_formats(void) {
    static const struct { const char *bytes; int size; const char *says; } files[] = {
        {"", 0, "empty"}, {"hello", 5, "not an image"}, {"RIFF\0\0\0\0WEBPVP8 ", 16, "WebP"}, {"\0\0\0\40ftypavif\0", 13, "AVIF"},
        {"\0\0\0\40ftypheic\0", 13, "HEIC"}, {"\0\0\0\40ftypmif1\0", 13, "HEIC"}, {"II*\0\10\0\0\0", 8, "TIFF"}, {"MM\0*\0\0\0\10", 8, "TIFF"},
        {"GIF89a", 6, "GIF"}, {"BM\0\0", 4, "BMP"}, {"%PDF-1.7", 8, "PDF"}, {"<svg ", 5, "SVG"}, {"\xef\xbb\xbf \n<?xml version", 17, "SVG"},
        {"\xff\x0a\0", 3, "JPEG XL"}, {"\0\0\0\14JXL \r\n", 10, "JPEG XL"}, {"\0\0\0\14jP  \r\n", 10, "JPEG 2000"}, {"\0\0\0\40ftypisom", 12, "video"},
        {"\xff\xd8\xff", 3, "broken JPEG"}, {"\x89PNG\r\n\x1a\n", 8, "broken PNG"}, {"\xff\xd8\xff\xc3\0\13\10\0\1\0\1\1\1\x11\0", 15, "lossless"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        mote_error err = {0, ""};
        int width, height;
        char *bytes = (char *)memcpy(malloc((size_t)files[i].size + !files[i].size), files[i].bytes, (size_t)files[i].size);
        CHECK(picture_size(bytes, (size_t)files[i].size, &width, &height, &err) && strstr(err.message, files[i].says), "%s: %s", files[i].says,
              err.message);
        free(bytes);
    }
}

// Each allocation fails in turn.
static void test_no_memory(void) {
    static const unsigned char values[12] = {0};
    unsigned char rows[16 * 16 * 8 + 30] = {0};                  // seven passes, 30 rows
    const buf files[] = {PNG(16, 16, 16, 6, .interlaced = 1, .rows = rows, .size = sizeof rows),
                         JPEG(32, 24, 1, 1, values, .count = 12, .progressive = 1)};
    for (int i = 0; i < 2; i++) {
        mote_error err = {0, ""};
        for (long n = 0;; n++) {
            picture p = {0, 0, NULL}, resized = {0, 0, NULL};
            refuse_at = (allocations = 0) + n;
            int code = picture_decode(files[i].data, files[i].size, &p, &err);
            if (!code) code = picture_resize(&p, 64, 32, &resized, &err);
            const long count = allocations;
            refuse_at = -1;
            picture_free(&p);
            if (!code) picture_free(&resized);
            if (count <= n) {
                CHECK(!code && n > 8, "file %d: %ld allocations: %s", i, n, err.message);
                break;
            }
            if (!CHECK(code == MOTE_ENOMEM, "file %d, allocation %ld: %d, %s", i, n, code, err.message)) break;
        }
        free(files[i].data);
    }
}

// ---- 3. Processors --------------------------------------------------------------------------------------------------

static void test_processors(void) {
    static const struct { const char *file, *text; int code; int64_t least, most; } all[] = {
        {"preprocessor_config.json", "{}", 0, 65536, 1 << 24},
        {"preprocessor_config.json", "{\"size\": {\"shortest_edge\": 4096, \"longest_edge\": 24576}, \"patch_size\": 16, \"merge_size\": 2, \"resample\": 3,"
                                     "\"image_mean\": [0.5, 0.5, 0.5], \"do_resize\": true, \"rescale_factor\": 0.00392156862745098}", 0, 4096, 24576},
        {"preprocessor_config.json", "{\"size\": {\"shortest_edge\": 1}, \"min_pixels\": 2048, \"max_pixels\": null}", 0, 2048, 1 << 24},
        {"processor_config.json", "{\"image_processor\": {\"size\": {\"longest_edge\": 70000}}}", 0, 65536, 70000},
        {"processor_config.json", "{\"size\": {\"longest_edge\": 70000}}", 0, 65536, 1 << 24},
        {"preprocessor_config.json", "{\"resample\": 2}", MOTE_EUNSUPPORTED, 0, 0},
        {"preprocessor_config.json", "{\"patch_size\": 14}", MOTE_EUNSUPPORTED, 0, 0},
        {"preprocessor_config.json", "{\"merge_size\": 1}", MOTE_EUNSUPPORTED, 0, 0},
        {"preprocessor_config.json", "{\"do_resize\": false}", MOTE_EUNSUPPORTED, 0, 0},
        {"preprocessor_config.json", "{\"image_mean\": [0.48, 0.45, 0.4]}", MOTE_EUNSUPPORTED, 0, 0},
        {"preprocessor_config.json", "{\"image_std\": [0.5, 0.5]}", MOTE_EUNSUPPORTED, 0, 0},
        {"preprocessor_config.json", "{\"min_pixels\": 0}", MOTE_EFORMAT, 0, 0},
        {"preprocessor_config.json", "{\"max_pixels\": 100}", MOTE_EFORMAT, 0, 0},
        {"preprocessor_config.json", "{\"size\": {\"longest_edge\": 1e9}}", MOTE_EFORMAT, 0, 0},
        {"preprocessor_config.json", "[]", MOTE_EFORMAT, 0, 0}};
    picture_limits limits;
    mote_error err;
    if (!temp_open()) return;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        temp_empty();
        temp_write(all[i].file, all[i].text, strlen(all[i].text));
        const int code = read_image_processor(temp_dir, 16, 2, 2, &limits, &err);
        CHECK(code == all[i].code && (!code || strstr(err.message, all[i].file)), "%s: %d, %s", all[i].text, code, code ? err.message : "");
        CHECK(code || (limits.least == all[i].least && limits.most == all[i].most), "%s: %lld, %lld", all[i].text, (long long)limits.least,
              (long long)limits.most);
    }
    temp_empty();
    CHECK(!read_image_processor(temp_dir, 16, 2, 2, &limits, &err) && limits.most == 1 << 24, "no file");
    temp_close();
}

// ---- 4. DATA/vision-data --------------------------------------------------------------------------------------------

static const char *vision_file(const char *folder, const char *name, const char *ending) {
    static char path[2][PATH_SIZE];
    static int turn;
    turn = !turn;
    snprintf(path[turn], PATH_SIZE, "%s/vision-data/%s/%s%s", test_data_dir(), folder, name, ending);
    return path[turn];
}

static int json_file(const char *folder, const char *name, json *j) {
    char path[PATH_SIZE];
    mote_error err;
    snprintf(path, sizeof path, "%s/vision-data/%s", test_data_dir(), folder);
    return CHECK(!read_json_of(path, name, JSON_ARRAY, j, &err), "%s", err.message);
}

static int number_at(const json *j, uint32_t node) {
    double value = 0;
    json_double(j, node, &value);
    return (int)value;
}

static void string_at(const json *j, uint32_t object, const char *key, char *to, size_t cap) {
    const uint32_t node = json_get(j, object, key);
    to[node ? json_string(j, node, to, cap - 1) : 0] = 0;
}

// [height, width, least, most, height and width that it has to be]; 0, 0: refused.
static void test_sizes(void) {
    json j;
    if (!json_file("small", "sizes.json", &j)) return;
    uint32_t item = 1;
    for (uint32_t i = 0; i < j.nodes[0].size; i++, item = j.nodes[item].next) {
        int n[6], width = 0, height = 0;
        uint32_t at = item + 1;
        for (int k = 0; k < 6; k++, at = j.nodes[at].next) n[k] = number_at(&j, at);
        const picture_limits limits = {16, 2, n[2], n[3]};
        const int code = picture_fit(&limits, n[1], n[0], &width, &height, NULL);
        if (code && n[4] && (n[0] > PICTURE_SIDE_MOST || n[1] > PICTURE_SIDE_MOST || n[0] * (int64_t)n[1] > PICTURE_PIXELS_MOST)) continue;
        CHECK(!code == !!n[4] && (code || (height == n[4] && width == n[5])), "%d x %d, %d to %d: %d x %d, not %d x %d", n[1], n[0], n[2], n[3],
              width, height, n[5], n[4]);
    }
    json_free(&j);
}

static void test_resize(void) {
    json j;
    if (!json_file("resize", "resize.json", &j)) return;
    uint32_t item = 1;
    for (uint32_t i = 0; i < j.nodes[0].size; i++, item = j.nodes[item].next) {
        char name[64];
        size_t size, expected_size;
        mote_error err;
        string_at(&j, item, "name", name, sizeof name);
        picture from = {number_at(&j, json_get(&j, item, "width")), number_at(&j, json_get(&j, item, "height")), NULL}, to = {0, 0, NULL};
        const int width = number_at(&j, json_get(&j, item, "to_width")), height = number_at(&j, json_get(&j, item, "to_height"));
        from.rgb = (unsigned char *)file_bytes(vision_file("resize", name, ".in.u8"), &size);
        char *expected = file_bytes(vision_file("resize", name, ".torchvision.u8"), &expected_size);
        if (CHECK(from.rgb && expected && size == picture_bytes(&from) && expected_size == (size_t)width * (size_t)height * 3, "%s: its files", name) &&
            CHECK(!picture_resize(&from, width, height, &to, &err), "%s: %s", name, err.message))
            CHECK(!memcmp(to.rgb, expected, expected_size), "%s is not as torchvision makes it", name);
        picture_free(&from);
        picture_free(&to);
        free(expected);
    }
    json_free(&j);
}

static int matches(const char *pattern, const char *text) {
    regex_t r;
    if (regcomp(&r, pattern, REG_EXTENDED | REG_NOSUB)) return 0;
    const int is = !regexec(&r, text, 0, NULL, 0);
    regfree(&r);
    return is;
}

// How far a decoded file is from its reference.
static void check_decoded(const char *name, const picture *p, const json *j, uint32_t item) {
    size_t size;
    char *rgb = file_bytes(vision_file("files", name, ".rgb"), &size);
    double mean = 0, sum = 0;
    int most = 0;
    json_double(j, json_get(j, item, "mean"), &mean);
    if (CHECK(rgb && size == picture_bytes(p) && p->width == number_at(j, json_get(j, item, "width")), "%s: %d x %d", name, p->width, p->height)) {
        for (size_t i = 0; i < size; i++) {
            const int difference = abs(p->rgb[i] - (unsigned char)rgb[i]);
            sum += difference;
            if (difference > most) most = difference;
        }
        CHECK(most <= number_at(j, json_get(j, item, "max")) && sum / (double)size <= mean, "%s: off by up to %d, in the mean %.4f", name, most,
              sum / (double)size);
    }
    free(rgb);
}

static void test_files(void) {
    json j;
    if (!json_file("files", "files.json", &j)) return;
    uint32_t item = 1;
    for (uint32_t i = 0; i < j.nodes[0].size; i++, item = j.nodes[item].next) {
        char name[64], refuse[200], may_refuse[200];
        buf file = {0};
        mote_error err;
        picture p;
        string_at(&j, item, "file", name, sizeof name);
        string_at(&j, item, "refuse", refuse, sizeof refuse);
        string_at(&j, item, "may_refuse", may_refuse, sizeof may_refuse);
        file.data = file_bytes(vision_file("files", name, ""), &file.size);
        if (!CHECK(file.data != NULL, "%s is not there", name)) continue;
        const int code = decode(&file, &p, &err);
        if (*refuse || (code && *may_refuse))
            CHECK(code && matches(*refuse ? refuse : may_refuse, err.message), "%s: %s", name, code ? err.message : "is read");
        else if (CHECK(!code, "%s: %s", name, err.message)) check_decoded(name, &p, &j, item);
        picture_free(&p);
        buf_free(&file);
    }
    json_free(&j);
}

// The pictures of a checkpoint's prompt as its tower has to read them: the pixels are those of its processor, bit for bit.
static void test_patches(const char *folder, const char *const *files) {
    size_t size, at = 0;
    char dir[PATH_SIZE];
    picture_limits limits;
    mote_error err;
    char *expected = file_bytes(vision_file(folder, "pixel_values.f32", ""), &size);
    snprintf(dir, sizeof dir, "%s/vision-data/%s", test_data_dir(), folder);
    if (!CHECK(!read_image_processor(dir, 16, 2, 2, &limits, &err), "%s", err.message)) return;
    for (; expected && *files; files++) {
        picture p, resized = {0, 0, NULL};
        int width, height;
        buf file = {0};
        file.data = file_bytes(vision_file(folder, *files, ""), &file.size);
        if (!CHECK(!decode(&file, &p, &err), "%s: %s", *files, err.message)) continue;
        if (!picture_fit(&limits, p.width, p.height, &width, &height, &err)) picture_resize(&p, width, height, &resized, &err);
        const size_t bytes = picture_bytes(&resized) * 2 * sizeof(float);
        float *values = (float *)allocate(bytes);
        if (resized.rgb) picture_patches(&resized, limits.patch, limits.merge, values);
        if (CHECK(resized.rgb && at + bytes <= size, "%s: %d x %d", *files, resized.width, resized.height) && !strstr(*files, ".jpg"))
            CHECK(!memcmp(values, expected + at, bytes), "%s has other pixels", *files);
        at += bytes;
        free(values);
        picture_free(&p);
        picture_free(&resized);
        buf_free(&file);
    }
    CHECK(expected && at == size, "%s: %zu of %zu bytes", folder, at, size);
    free(expected);
}

// The hash is of height, width and pixels, and of nothing else.
static void test_hash(void) {
    unsigned char rgb[] = {1, 2, 3, 4, 5, 6}, hash[SHA256_SIZE], same[SHA256_SIZE];
    const picture wide = {2, 1, rgb}, high = {1, 2, rgb};
    sha256 s;
    sha256_open(&s);
    sha256_add(&s, "\1\0\0\0\2\0\0\0\1\2\3\4\5\6", 14);
    sha256_close(&s, same);
    picture_hash(&wide, hash);
    CHECK(!memcmp(hash, same, sizeof hash), "the hash of a wide picture");
    picture_hash(&high, hash);
    CHECK(memcmp(hash, same, sizeof hash), "a high picture has the hash of a wide one");
}

int main(int argc, char **argv) {
    test_main_begin("test_pictures", argc, argv);
    test_png();
    test_orientation();
    test_jpeg();
    test_beginnings();
    test_damage();
    test_bombs();
    test_formats();
    test_no_memory();
    test_processors();
    test_hash();
    struct stat info;
    if (!test_data_dir() || stat(vision_file("small", "sizes.json", ""), &info)) {
        test_skip("no DATA/vision-data");
        return test_main_end();
    }
    test_sizes();
    test_resize();
    test_files();
    test_patches("dev-v-moe-one", (const char *const[]){"photo.png", NULL});
    test_patches("dev-v-moe-three", (const char *const[]){"wide.png", "small.jpg", "tall.png", NULL});
    test_patches("dev-v-dense-two", (const char *const[]){"grey.png", "palette.png", NULL});
    return test_main_end();
}
