/* cpu/stretches.c: where the codes and scales of a weight row's stretches lie, for cpu/nibbles.c. */

enum {
    FEW_TOKENS = 4,              /* token rows that are multiplied while weights come from memory */
    TURNED_STRETCHES = 16,       /* stretches of their columns that are turned at a time, and the floats of these */
    TURNED_ROOM = TURNED_STRETCHES * STRETCH_TOKEN,
    NIBBLES_AHEAD = 4096         /* the codes so many bytes on are asked for: a core by itself does not look that far ahead */
};

/* A weight row from some stretch on. */
typedef struct nibble_row {
    const uint8_t *codes;
    const char *scales;          /* of the row's first column */
    size_t codes_step, scales_step;     /* to the row below: bytes */
    int stretch;                 /* the first one */
    int step, spread;            /* 2^spread stretches on, scales lie `step` bytes on */
    int shift;                   /* INT4: 2^shift lanes of a stretch have one scale */
} nibble_row;

/* What of a row's end is less than a stretch, with zeros behind it. */
typedef struct row_end {
    uint8_t codes[STRETCH / 2];
    char scales[STRETCH_LANES];
} row_end;

/* The scales of the n-th stretch. */
INLINE const char *stretch_scales(const nibble_row *r, int n) {
    return r->scales + ((r->stretch + n) >> r->spread) * r->step;
}

/* Is a matrix one for cpu/nibbles.c? There a lane's columns have one scale, and so have whole lanes of a stretch. */
static int nibble_order(const matrix *w) {
    const int group = w->block_cols;
    return w->format == FORMAT_NVFP4 ||
           (w->format == FORMAT_INT4 && (group >= w->cols || (group >= 32 && !(group & (group - 1)))));
}

/* Written field by field, and inlined: a wide load of what was just stored in pieces would wait for all stores before it. */
INLINE void nibble_row_at(const matrix *w, int row, int stretch, nibble_row *r) {
    const plane *planes = formats[w->format]->planes;
    const int group = w->block_cols;
    r->codes_step = plane_bytes(&planes[CODES], w->cols);
    r->scales_step = plane_bytes(&planes[SCALES], plane_cols(&planes[SCALES], w));
    r->codes = (const uint8_t *)w->plane[CODES] + (size_t)row * r->codes_step + stretch * (STRETCH / 2);
    r->scales = (const char *)w->plane[SCALES] + (size_t)row * r->scales_step;
    r->stretch = stretch;
    r->step = w->format == FORMAT_NVFP4 ? STRETCH / NVFP4_GROUP : group < STRETCH && group < w->cols ? STRETCH / group * 4 : 4;
    r->spread = w->format == FORMAT_NVFP4 || group < STRETCH ? 0 : __builtin_ctz((unsigned)(group / STRETCH));
    if (w->format == FORMAT_INT4 && group >= w->cols) r->spread = 31;
    r->shift = group >= STRETCH || group >= w->cols ? 4 : group == 32 ? 2 : 3;
}

INLINE void nibble_row_below(nibble_row *r) {
    r->codes += r->codes_step;
    r->scales += r->scales_step;
}

/* A row's last stretch, if it is not whole, of so many columns; r is the row from there on. */
static void nibble_row_end(const nibble_row *r, enum format f, int cols, nibble_row *last, row_end *end) {
    const int lanes = (cols + 7) / 8;
    const size_t bytes = f == FORMAT_NVFP4 ? (size_t)lanes / 2 : (((size_t)lanes - 1) >> r->shift << 2) + 4;
    memset(end, 0, sizeof *end);
    memcpy(end->codes, r->codes, (size_t)cols / 2);
    memcpy(end->scales, stretch_scales(r, 0), bytes);
    *last = *r;
    last->codes = end->codes;
    last->scales = end->scales;
    last->step = 0;
}
