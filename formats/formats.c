/* formats/formats.c: the table of weight formats, and what the file of each one defines. Knows matrices as arrays of
   numbers; must not know layers, files or threads.

   A matrix consists of planes, arrays of numbers. The first, CODES, has a number for each weight. The others have one for
   so many rows and columns: scales; zero points, an order of columns or a factor of all weights are planes, too. Binding,
   loading, checking, packing and counting go over planes and do not ask for the format.

   A format is formats/name.c, and formats/name.cu for its kernels, with a line here and in kernels.cu. It defines
     name_format     a weight_format: what it is called, and its planes
     name_floats     columns of a row, as floats
     name_random     random numbers for made-up models
     name_inspect    whether a number is zero, or not finite
     format_name     in name.cu: see formats/fragments.cu
   formats/dispatch.c and .cu make of them the switches that the rest calls. In hot code the format is a constant. */

#define FORMATS(X) X(F32, f32) X(F16, f16) X(BF16, bf16) X(FP8_BLOCK, fp8_block)

#define FORMAT_ENUMERATOR(NAME, name) FORMAT_##NAME,
enum format { FORMATS(FORMAT_ENUMERATOR) FORMAT_COUNT };
#undef FORMAT_ENUMERATOR

enum { CODES, SCALES, MAX_PLANES = 4 };

/* A plane of a format. */
typedef struct plane {
    const char *tensor;          /* its name behind the module's: ".weight" */
    const char *stored;          /* its type in the file; NULL: F32, F16 or BF16 */
    int bits;                    /* of a number in memory. Less than 8: several in a byte, rows are whole bytes */
    int rows, cols;              /* of the matrix that have a number together; 0: a block's. INT_MAX: all */
    int packed;                  /* lies in row panels in a GPU's memory: see cuda/panels.cu */

    /* What is stored -> what lies in memory, rows x cols numbers; NULL: they are the same. Needs a whole tensor at a time. */
    void (*convert)(dtype stored, const void *from, void *to, int rows, int cols);

    /* The first of n numbers that is not allowed, in *value how it is written; n: all are. NULL: any will do. */
    size_t (*find_wrong)(const void *numbers, size_t n, char value[32]);
    const char *number, *allowed;                  /* for the message: "scale", "finite numbers" */
} plane;

typedef struct weight_format {
    const char *name;            /* in reports: "FP8" */
    const char *known;           /* in messages: "FP8 with weight_scale_inv" */
    const char *made;            /* behind the name of a made-up model: "fp8" */
    int plane_count;
    plane planes[MAX_PLANES];
    const char *(*unfit)(int block_rows, int block_cols);      /* what kernels do not take; NULL: they take all */
} weight_format;

typedef struct matrix {
    enum format format;
    int rows, cols;
    const void *plane[MAX_PLANES];
    int block_rows, block_cols;  /* sides of a block, for planes that have a number for each */
} matrix;

/* Where a row's numbers lie, in each plane. */
typedef struct weight_row { const char *plane[MAX_PLANES]; } weight_row;

enum { TILE = 128 };             /* columns turned into floats at a time, the width of an FP8 block */

/* Numbers of a plane along the matrix's rows, and along its columns. */
INLINE int plane_rows(const plane *p, const matrix *w) {
    return (w->rows - 1) / (p->rows ? p->rows : w->block_rows) + 1;
}

INLINE int plane_cols(const plane *p, const matrix *w) {
    return (w->cols - 1) / (p->cols ? p->cols : w->block_cols) + 1;
}

/* Bytes of n numbers side by side. */
INLINE size_t plane_bytes(const plane *p, int n) {
    return ((size_t)n * (size_t)p->bits + 7) / 8;
}

/* Made-up models and the checks of a loaded one see a plane as words: numbers, or, where those have less than 8 bits,
   bytes. */
INLINE size_t plane_words(const plane *p, int rows, int cols) {
    return (size_t)rows * (p->bits < 8 ? plane_bytes(p, cols) : (size_t)cols);
}

/* In a GPU's memory eight rows (a row panel) times 64 bytes (a k block) of a packed plane lie together, see cuda/panels.cu. It
   is given the room that takes on a CPU, too. */
enum { PANEL_ROWS = 8, K_BLOCK_BYTES = 64, PANEL_BYTES = PANEL_ROWS * K_BLOCK_BYTES };

static int gpu_k_blocks(size_t row_bytes) {
    return (int)((row_bytes + K_BLOCK_BYTES - 1) / K_BLOCK_BYTES);
}

static int gpu_row_panels(int rows) {
    return (rows + PANEL_ROWS - 1) / PANEL_ROWS;
}

/* Bytes of memory that a plane of rows x cols numbers is given. */
static size_t plane_room(const plane *p, int rows, int cols) {
    size_t row = plane_bytes(p, cols);
    if (p->packed) return (size_t)gpu_row_panels(rows) * (size_t)gpu_k_blocks(row) * PANEL_BYTES;
    return ((size_t)rows * row + 63) / 64 * 64;
}

/* What name_inspect finds. */
enum { WEIGHTS_NOT_ZERO = 1, WEIGHTS_NOT_FINITE = 2 };

/* Of a floating-point number without its sign; those from `infinite` on are not finite. */
BOTH unsigned inspect_magnitude(uint32_t bits, uint32_t infinite) {
    return (bits != 0 ? WEIGHTS_NOT_ZERO : 0) | (bits >= infinite ? WEIGHTS_NOT_FINITE : 0);
}
