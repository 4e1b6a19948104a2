/* images/resize.c: a picture at another size: bicubic with antialiasing in integers, bit for bit as torchvision's path for bytes on a CPU,
   which is what transformers and vLLM compute.

   First along rows, then along columns, each rounded to bytes; an axis whose size stays is left alone. With s = from / to, g = max(s, 1) and
   Keys' kernel K of a = -1/2, the value i of an axis is
       c = (i + 1/2) s,   sum over [c - 2g + 1/2] <= j < [c + 2g + 1/2] of  x[j] K((j - c + 1/2) / g),   the weights divided by their sum.
   Weights are 16-bit numbers with as many bits of fraction as the largest one of the axis leaves. */

typedef struct resize_axis {
    int size, most, bits;          /* values, most taps of one of them, bits of the weights' fraction */
    int *first, *count;            /* [size]: the first value that is read, and how many are */
    int16_t *weight;               /* [size][most] */
} resize_axis;

static void resize_axis_free(resize_axis *a) {
    free(a->first);
    free(a->weight);
}

static double resize_kernel(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

/* The taps of value i of an axis: their number, the first one in *first, their weights in to. */
static int resize_taps(int from, int to_size, int i, int *first, double *to) {
    const double scale = (double)from / to_size, inverse = scale >= 1 ? 1 / scale : 1, support = scale >= 1 ? 2 * scale : 2;
    const double centre = scale * (i + 0.5);
    const int low = (int)(centre - support + 0.5), high = (int)(centre + support + 0.5);
    double sum = 0;
    *first = low > 0 ? low : 0;
    const int count = (high < from ? high : from) - *first;
    for (int j = 0; j < count; j++) sum += to[j] = resize_kernel((j + *first - centre + 0.5) * inverse);
    for (int j = 0; j < count && sum != 0; j++) to[j] /= sum;
    return count;
}

/* to: to be freed by the caller in any case. */
static int resize_axis_new(int from, int to_size, resize_axis *to, mote_error *err) {
    const double scale = (double)from / to_size;
    double largest = 0;
    memset(to, 0, sizeof *to);
    to->size = to_size;
    to->most = (int)ceil(scale >= 1 ? 2 * scale : 2) * 2 + 1;
    const size_t most = (size_t)to->most, size = (size_t)to_size;
    double *taps = (double *)malloc(most * sizeof *taps);
    to->first = (int *)malloc(2 * size * sizeof *to->first);
    to->weight = (int16_t *)malloc(size * most * sizeof *to->weight);
    if (!taps || !to->first || !to->weight) {
        free(taps);
        return fail_memory(err);
    }
    to->count = to->first + size;
    for (int i = 0; i < to_size; i++) {
        const int n = to->count[i] = resize_taps(from, to_size, i, to->first + i, taps);
        for (int j = 0; j < n; j++) largest = fmax(largest, taps[j]);
    }
    while (to->bits < 22 && (int)(0.5 + largest * (1 << (to->bits + 1))) < 1 << 15) to->bits++;
    for (int i = 0; i < to_size; i++) {
        const int n = resize_taps(from, to_size, i, to->first + i, taps);
        int16_t *weight = to->weight + (size_t)i * most;
        for (int j = 0; j < n; j++) weight[j] = (int16_t)(taps[j] * (1 << to->bits) + (taps[j] < 0 ? -0.5 : 0.5));
    }
    free(taps);
    return MOTE_OK;
}

static unsigned char resize_byte(int32_t sum, int bits) {
    const int32_t value = sum >> bits;
    return (unsigned char)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* Each row to a->size pixels. */
static void resize_rows(const picture *from, const resize_axis *a, picture *to) {
    const unsigned char *row = from->rgb;
    unsigned char *out = to->rgb;
    for (int y = 0; y < from->height; y++, row += (size_t)from->width * 3)
        for (int i = 0; i < a->size; i++, out += 3) {
            const int16_t *weight = a->weight + (size_t)i * (size_t)a->most;
            const unsigned char *x = row + (size_t)a->first[i] * 3;
            int32_t sum[3];
            for (int c = 0; c < 3; c++) sum[c] = 1 << (a->bits - 1);
            for (int j = 0; j < a->count[i]; j++, x += 3)
                for (int c = 0; c < 3; c++) sum[c] += weight[j] * x[c];
            for (int c = 0; c < 3; c++) out[c] = resize_byte(sum[c], a->bits);
        }
}

/* Each column to a->size pixels; sums: of a row. */
static void resize_columns(const picture *from, const resize_axis *a, int32_t *sums, picture *to) {
    const size_t n = (size_t)from->width * 3;
    for (int i = 0; i < a->size; i++) {
        const int16_t *weight = a->weight + (size_t)i * (size_t)a->most;
        const unsigned char *row = from->rgb + n * (size_t)a->first[i];
        unsigned char *out = to->rgb + n * (size_t)i;
        for (size_t x = 0; x < n; x++) sums[x] = 1 << (a->bits - 1);
        for (int j = 0; j < a->count[i]; j++, row += n)
            for (size_t x = 0; x < n; x++) sums[x] += weight[j] * row[x];
        for (size_t x = 0; x < n; x++) out[x] = resize_byte(sums[x], a->bits);
    }
}

/* One axis alone; to: another picture. */
static int resize_along(const picture *from, int columns, int size, picture *to, mote_error *err) {
    resize_axis axis;
    memset(to, 0, sizeof *to);
    int code = resize_axis_new(columns ? from->height : from->width, size, &axis, err);
    int32_t *sums = code || !columns ? NULL : (int32_t *)malloc((size_t)from->width * 3 * sizeof *sums);
    if (!code && columns && !sums) code = fail_memory(err);
    if (!code) code = columns ? picture_new(from->width, size, to, err) : picture_new(size, from->height, to, err);
    if (!code && columns) resize_columns(from, &axis, sums, to);
    else if (!code) resize_rows(from, &axis, to);
    free(sums);
    resize_axis_free(&axis);
    return code;
}

/* A picture at another size, which is the caller's to free after MOTE_OK; a copy if it is the same size. */
static int picture_resize(const picture *from, int width, int height, picture *to, mote_error *err) {
    picture rows = *from;
    int code = width == from->width ? MOTE_OK : resize_along(from, 0, width, &rows, err);
    if (code) return code;
    if (height != from->height) code = resize_along(&rows, 1, height, to, err);
    else code = picture_new(width, height, to, err);
    if (!code && height == from->height) memcpy(to->rgb, rows.rgb, picture_bytes(to));
    if (rows.rgb != from->rgb) free(rows.rgb);
    return code;
}
