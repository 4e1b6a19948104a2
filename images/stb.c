/* images/stb.c: stb_image's decoders of PNG and JPEG. The memory that they take follows from the sides, which are checked before, and from
   the file's size. */

/* The pixels of a PNG or JPEG whose sides are known, upper left first, with as many channels as the file has: 1 grey, 2 with alpha, 3 RGB,
   4 with alpha. They are the caller's to free after MOTE_OK. */
static int stb_decode(const void *data, size_t size, int is_png, int width, int height, unsigned char **pixels, int *channels,
                      mote_error *err) {
    int bits = 8;
    stbi__context s;
    stbi__g_failure_reason = "broken data";
    stbi__start_mem(&s, (const unsigned char *)data, (int)size, (stbi__uint32)width, (stbi__uint32)height);
    *pixels = (unsigned char *)(is_png ? stbi__png_load(&s, &width, &height, channels, &bits)
                                       : stbi__jpeg_load(&s, &width, &height, channels));
    if (*pixels && bits == 16) {
        unsigned char *high = stbi__convert_16_to_8((stbi__uint16 *)*pixels, width, height, *channels);
        if (!high) free(*pixels);
        *pixels = high;
    }
    if (*pixels) return MOTE_OK;
    if (!strcmp(stbi__g_failure_reason, "outofmem")) return fail_memory(err);
    return fail(err, MOTE_EFORMAT, "a broken %s: %s", is_png ? "PNG" : "JPEG", stbi__g_failure_reason);
}
