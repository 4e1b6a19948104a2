/* formats/dispatch.c: what the tables of formats and of tensor encodings generate: arrays of their descriptions, and a switch for
   each of the formats' functions. */

#define FORMAT_ADDRESS(NAME, name) &name##_format,
static const weight_format *const formats[] = {FORMATS(FORMAT_ADDRESS)};
#undef FORMAT_ADDRESS

#define ENCODING_ADDRESS(NAME, name) &name##_encoding,
static const tensor_encoding *const tensor_encodings[] = {TENSOR_ENCODINGS(ENCODING_ADDRESS)};
#undef ENCODING_ADDRESS

/* f may be a constant. */
INLINE enum cpu_kernel kernel_of(const enum format f) {
#define FORMAT_IS(NAME, name) if (f == FORMAT_##NAME) return (enum cpu_kernel)name##_kernel;
    FORMATS(FORMAT_IS)
#undef FORMAT_IS
    return CPU_FLOATS;
}

static int part_count(const tensor_encoding *s) {
    int n = 0;
    while (n < MAX_PARTS && s->parts[n].suffix) n++;
    return n;
}

/* Whether it has scales for groups of columns, whose width the shape of the scales tells. */
static int format_has_groups(enum format f) {
    int has = 0;
    for (int i = 0; i < formats[f]->component_count; i++) has |= formats[f]->components[i].rows && !formats[f]->components[i].cols;
    return has;
}

/* One dimension of a part's shape, see matrix_part; *form: what follows it. */
static uint64_t part_size(const char **form, const matrix *w) {
    const char of = **form;
    uint64_t size = of == 'n' || of == 'h' ? (uint64_t)w->rows : (uint64_t)w->cols;
    uint64_t per = of == 'h' ? (uint64_t)w->block_rows : of == 'g' ? (uint64_t)w->block_cols : 1;
    if (of >= '0' && of <= '9') size = strtoul(*form, (char **)form, 10);
    else ++*form;
    if (**form == '/') per = strtoul(*form + 1, (char **)form, 10);
    return (size + per - 1) / per;
}

/* The first shape that a part's text says; returns its dimensions. *rest: the text of the next that is as good, or NULL. */
static int part_shape(const char *form, const matrix *w, uint64_t shape[PART_DIMS], const char **rest) {
    int dims = 0;
    while (*form && *form != '|' && dims < PART_DIMS) {
        shape[dims++] = part_size(&form, w);
        while (*form == ' ') form++;
    }
    *rest = *form == '|' ? form + 1 : NULL;
    return dims;
}

/* Which dimension of the first shape is the groups across; -1: none. */
static int part_groups(const char *form) {
    int dim = 0;
    for (; *form && *form != '|' && *form != 'g'; form++) dim += *form == ' ';
    return *form == 'g' ? dim : -1;
}

/* Whether it has scales for blocks whose sides config.json says. */
static int format_has_blocks(enum format f) {
    int has = 0;
    for (int i = 0; i < formats[f]->component_count; i++) has |= !formats[f]->components[i].rows;
    return has;
}

/* k blocks of a row. */
static int matrix_k_blocks(const matrix *w) {
    const component *codes = &formats[w->format]->components[CODES];
    const int cols = w->whole_cols ? (w->cols + w->whole_cols - 1) / w->whole_cols * w->whole_cols : w->cols;
    return (int)((component_bytes(codes, cols) - 1) / (size_t)codes->packed) + 1;
}

/* Bytes of memory that component i of a matrix is given. Packed components follow each other, and are packed together. */
static size_t matrix_component_capacity(const matrix *w, int i) {
    const component *p = &formats[w->format]->components[i];
    const size_t packed = (size_t)gpu_row_panels(w->rows) * (size_t)matrix_k_blocks(w) * (size_t)(PANEL_ROWS * p->packed);
    const size_t plain = component_capacity(p, component_rows(p, w), component_cols(p, w));    /* more, of narrow groups */
    return packed > plain ? (packed + 63) / 64 * 64 : plain;
}

/* Bytes of all components of a matrix. */
static uint64_t matrix_bytes(const matrix *w) {
    uint64_t n = 0;
    for (const component *p = formats[w->format]->components, *end = p + formats[w->format]->component_count; p < end; p++)
        n += (uint64_t)component_rows(p, w) * component_bytes(p, component_cols(p, w));
    return n;
}

/* Of a matrix of format f. */
INLINE weight_row row_of(const matrix *w, int row, const enum format f) {
    weight_row r = {{NULL}};
    for (int i = 0; i < formats[f]->component_count; i++) {
        const component *p = &formats[f]->components[i];
        size_t at = (size_t)(row / (p->rows ? p->rows : w->block_rows));
        r.component[i] = (const char *)w->component[i] + at * component_bytes(p, component_cols(p, w));
    }
    return r;
}

/* out[n] = columns col.. of a row, as floats; f is a constant. */
INLINE void row_floats(const matrix *w, const weight_row *row, int col, int n, float *__restrict out,
                       const enum format f) {
#define FORMAT_IS(NAME, name) if (f == FORMAT_##NAME) name##_floats(w, row, col, n, out);
    FORMATS(FORMAT_IS)
#undef FORMAT_IS
}

/* The same of any matrix. */
static weight_row matrix_row(const matrix *w, int row) {
    switch (w->format) {
#define FORMAT_CASE(NAME, name) case FORMAT_##NAME: return row_of(w, row, FORMAT_##NAME);
        FORMATS(FORMAT_CASE)
#undef FORMAT_CASE
        default: return row_of(w, row, FORMAT_F32);
    }
}

static void matrix_row_floats(const matrix *w, const weight_row *row, int col, int n, float *out) {
    switch (w->format) {
#define FORMAT_CASE(NAME, name) case FORMAT_##NAME: row_floats(w, row, col, n, out, FORMAT_##NAME); break;
        FORMATS(FORMAT_CASE)
#undef FORMAT_CASE
        default: break;
    }
}

static void matrix_floats(const matrix *w, int row, int col, int n, float *out) {
    weight_row r = matrix_row(w, row);
    matrix_row_floats(w, &r, col, n, out);
}

/* WEIGHTS_... of word i of a component. */
BOTH unsigned format_inspect(enum format f, int component, const void *words, size_t i) {
    switch (f) {
#define FORMAT_CASE(NAME, name) case FORMAT_##NAME: return name##_inspect(component, words, i);
        FORMATS(FORMAT_CASE)
#undef FORMAT_CASE
        default: return 0;
    }
}
