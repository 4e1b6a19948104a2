/* images/patches.c: a resized picture as its tower reads it, and the hash by which pictures are told apart. */

/* [rows * columns][3][2][patch][patch]: colour, frame, y, x; both frames of a still picture are equal. Patches follow each other by blocks
   of merge x merge: block row, block column, row in it, column in it. Bytes become (x - 127.5) / 127.5. The picture's sides are multiples of
   patch * merge. */
static void picture_patches(const picture *p, int patch, int merge, float *to) {
    const int side = patch * merge;
    float value[256];
    for (int i = 0; i < 256; i++) value[i] = ((float)i - 127.5f) / 127.5f;
    for (int block = 0; block < p->width / side * (p->height / side); block++)
        for (int k = 0; k < merge * merge; k++) {
            const int x = block % (p->width / side) * side + k % merge * patch, y = block / (p->width / side) * side + k / merge * patch;
            for (int c = 0; c < 3; c++) {
                const unsigned char *from = p->rgb + ((size_t)y * (size_t)p->width + (size_t)x) * 3 + c;
                float *frame = to;
                for (int row = 0; row < patch; row++, from += (size_t)p->width * 3)
                    for (int column = 0; column < patch; column++) *to++ = value[from[3 * column]];
                memcpy(to, frame, (size_t)(to - frame) * sizeof *to);
                to += to - frame;
            }
        }
}

/* SHA-256 of what the tower sees: height and width, 32 bits each, little endian, and the RGB bytes of a resized picture. */
static void picture_hash(const picture *p, unsigned char to[SHA256_SIZE]) {
    unsigned char sides[8];
    sha256 s;
    for (int i = 0; i < 8; i++) sides[i] = (unsigned char)((uint32_t)(i < 4 ? p->height : p->width) >> (8 * (i % 4)));
    sha256_open(&s);
    sha256_add(&s, sides, sizeof sides);
    sha256_add(&s, p->rgb, picture_bytes(p));
    sha256_close(&s, to);
}
