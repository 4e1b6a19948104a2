/* formats/formats.c: the table of weight formats, and what the file of each one defines. Knows matrices as arrays of
   numbers; must not know layers, files or threads.

   A matrix consists of components, arrays of numbers. The first, CODES, has a number for each weight. The others have one for
   so many rows and columns: scales, or a factor of all weights. Computing, checking, packing and counting go over components
   and do not ask for the format.

   Checkpoints store one format in several ways. A tensor encoding lists the tensors that stand for a matrix, and says how each
   component comes of them: most lie in memory as they are stored, the rest is converted when it is loaded. Which encoding a
   matrix has is seen from the tensors that are there.

   A format is formats/name.c, and formats/name.cu for its kernels, with a line here and in kernels.cu. It defines
     name_format     a weight_format: what it is called, and its components
     name_floats     columns of a row, as floats
     name_inspect    whether a number is zero, or not finite
     name_kernel     a cpu_kernel: how the CPU multiplies with it
     format_name     in name.cu: see formats/fragments.cu
   and its tensor encodings, which have lines here, too. formats/dispatch.c and .cu make of them the switches that the rest calls.
   In hot code the format is a constant.

   The components of a matrix [rows][cols]; `packed` ones lie in row panels in a GPU's memory (cuda/panels.cu), the others row
   by row, without gaps between the rows:
     F32, F16, BF16  CODES the weights, packed
     FP8_BLOCK       CODES E4M3, packed. SCALES F32 [blocks down][blocks across], of block_rows x block_cols weights;
                     ONE_BLOCK is both where there is one scale in all
     FP8_ROW         CODES E4M3, packed. SCALES F32 [rows]: one for each row
     NVFP4           CODES E2M1, packed: two in a byte, the even column in the lower half, cols / 2 bytes a row.
                     SCALES E4M3, never negative, [rows][cols / 16]. FACTOR one F32, never negative
                     weight = code * (scale * factor); cols is a multiple of 16
     MXFP4           CODES as in NVFP4, packed. SCALES E8M0, packed, [rows][cols / 32]; weight = code * 2^(scale - 127); cols is a
                     multiple of 32
     INT4            CODES 0..15, packed, two in a byte as in NVFP4. SCALES 32-bit words [rows][cols / block_cols], a group
                     of block_cols = 32, 64, 128 or cols columns each: the scale's F32 bits, of which the lowest five are
                     the zero point 0..16 instead. An F16 or BF16 has zeros there, so those scales are exact
                     weight = (code - zero point) * scale; cols is a multiple of 8; scales may be negative
     INT4_FINE       INT4 in groups of 32 columns on a GPU, where k blocks are as wide as groups or narrower */

#define FORMATS(X) \
    X(F32, f32) X(F16, f16) X(BF16, bf16) X(FP8_BLOCK, fp8_block) X(NVFP4, nvfp4) X(FP8_ROW, fp8_row) X(INT4, int4) \
    X(INT4_FINE, int4_fine) X(MXFP4, mxfp4)

/* The first whose tensors are all there counts; without one, what is missing is said of that of which most are there. */
#define TENSOR_ENCODINGS(X) \
    X(F32, f32) X(F16, f16) X(BF16, bf16) X(FP8_BLOCK, fp8_block) X(FP8_TENSOR, fp8_tensor) X(FP8_CHANNEL, fp8_channel) \
    X(FP8_BLOCK_CT, fp8_block_ct) X(NVFP4, nvfp4) X(NVFP4_CT, nvfp4_ct) X(GPTQ, gptq) X(AWQ, awq) X(INT4_CT, int4_ct) \
    X(MXFP4, mxfp4) X(MXFP8, mxfp8) X(MXFP8_E8M0, mxfp8_e8m0) X(QUANTISED, quantised)

#define FORMAT_ENUMERATOR(NAME, name) FORMAT_##NAME,
enum format { FORMATS(FORMAT_ENUMERATOR) FORMAT_COUNT };
#undef FORMAT_ENUMERATOR
#define ENCODING_ENUMERATOR(NAME, name) ENCODING_##NAME,
enum encoding { TENSOR_ENCODINGS(ENCODING_ENUMERATOR) ENCODING_COUNT };
#undef ENCODING_ENUMERATOR

enum { CODES, SCALES, FACTOR, MAX_COMPONENTS = 4, MAX_PARTS = 5, PART_DIMS = 3 };

/* How the CPU multiplies with a matrix (cpu/matrix.c). What is where kernels see in the components. */
enum cpu_kernel {
    CPU_FLOATS,                  /* its rows become floats, by name_floats: right for any format */
    CPU_BF16, CPU_F16,           /* the same; for one token row cpu/products.c unpacks the codes itself */
    CPU_E4M3,                    /* cpu/products.c unpacks the codes; SCALES are F32, of blocks or of rows */
    CPU_E2M1_E4M3,               /* cpu/nibbles.c, for SCALES of an E4M3 for each 16 columns, and a FACTOR of all */
    CPU_E2M1_E8M0,               /* cpu/quarter_products.c, for SCALES of an E8M0 for each 32 columns */
    CPU_UINT4                    /* the same, for words of a scale and a zero point for each group of columns */
};

typedef struct component {
    int bits;                    /* of a number in memory. Less than 8: several in a byte, rows are whole bytes */
    int rows, cols;              /* of the matrix that have a number together; 0: a block's. INT_MAX: all */
    int packed;                  /* bytes of a row in a k block, in row panels in a GPU's memory (cuda/panels.cu); 0: not packed */
    int by_groups;               /* codes of four bits, whose places in a k block there are format_mxfp4's */

    /* The first of n numbers that is not allowed, in *value how it is written; n: all are. NULL: any will do. */
    size_t (*find_wrong)(const void *numbers, size_t n, char value[32]);
    const char *number, *allowed;                  /* for the message: "scale", "finite numbers" */
} component;

typedef struct weight_format {
    const char *name;            /* in reports: "FP8" */
    int component_count;
    component components[MAX_COMPONENTS];
    const char *(*unsupported_reason)(int block_rows, int block_cols); /* what kernels do not take; NULL: they take all */
    int small_group;             /* what it is on a GPU where groups have 32 columns or less; of formats with groups */
} weight_format;

typedef struct matrix {
    enum format format;
    int rows, cols;
    const void *component[MAX_COMPONENTS];
    int block_rows, block_cols;  /* sides of a block, for components that have a number for each */
    const float *bias;           /* [rows] what is added to its products; NULL: nothing */
    int whole_cols;              /* packed, its rows have zeros up to a multiple of so many columns; 0: of a k block's */
} matrix;

/* Where a row's numbers lie, in each component. */
typedef struct weight_row { const char *component[MAX_COMPONENTS]; } weight_row;

/* A tensor that stands for a matrix, or for a part of it. */
typedef struct matrix_part {
    const char *suffix;          /* its name after the module's: ".weight" */
    const char *stored;          /* its type in the file; NULL: F32, F16 or BF16 */

    /* Its dimensions, by a space between each, at most PART_DIMS: "n k/32 16". One is n or k, rows or columns of the matrix, h or g,
       its blocks down or across, or a number; "/8": an eighth of these, rounded up. "": a single number, without dimensions. After "|"
       another shape that is as good: "n 1|n". A stack has one dimension more before these (bind_slice), which is not said here. */
    const char *shape;
    int optional;
} matrix_part;

/* The input of a conversion: the tensors of a matrix, and what a component of it needs to know. */
typedef struct conversion {
    const matrix *w;
    int rows, cols;              /* of the component, in numbers */
    const void *part[MAX_PARTS]; /* the tensors' bytes; NULL: not there, or not needed */
    int type[MAX_PARTS];         /* their types, dtype or another */
    int zeros_stored, asymmetric;/* of GPTQ, as config.json has it: zero points are not stored less one; differ from 8 */
    char why[96];                /* what is wrong, for the message */
} conversion;

/* How a component is converted. */
typedef struct component_source {
    int part;                    /* of this tensor */
    unsigned needs;              /* and of these: a bit set */

    /* NULL: as it is stored. Else fills `to`; returns -1, or the tensor that cannot be, and c->why. */
    int (*convert)(conversion *c, void *to);
} component_source;

typedef struct tensor_encoding {
    const char *name;            /* in reports: "FP8 per tensor" */
    enum format format;
    int rows, cols;              /* the matrix has a multiple of so many */
    matrix_part parts[MAX_PARTS];       /* the first has the codes; up to the first without a suffix */
    component_source components[MAX_COMPONENTS];
} tensor_encoding;

enum {
    TILE = 128,                  /* columns turned into floats at a time, the width of an FP8 block */
    ONE_BLOCK = 1 << 29          /* sides of a block that is all of a matrix */
};

/* Numbers of a component along the matrix's rows, and along its columns. */
INLINE int component_rows(const component *p, const matrix *w) {
    return (w->rows - 1) / (p->rows ? p->rows : w->block_rows) + 1;
}

INLINE int component_cols(const component *p, const matrix *w) {
    return (w->cols - 1) / (p->cols ? p->cols : w->block_cols) + 1;
}

/* Bytes of n numbers side by side. */
INLINE size_t component_bytes(const component *p, int n) {
    return ((size_t)n * (size_t)p->bits + 7) / 8;
}

/* Synthetic models and the checks of a loaded one see a component as words: numbers, or, where those have less than 8 bits,
   bytes. */
INLINE size_t component_words(const component *p, int rows, int cols) {
    return (size_t)rows * (p->bits < 8 ? component_bytes(p, cols) : (size_t)cols);
}

/* In a GPU's memory eight rows (a row panel) of a k block of each packed component lie together, see cuda/panels.cu. A packed
   component is given the memory that takes on a CPU, too. */
enum { PANEL_ROWS = 8 };

static int gpu_row_panels(int rows) {
    return (rows + PANEL_ROWS - 1) / PANEL_ROWS;
}

/* Bytes of a component's numbers side by side, with zeros to the next 64. */
static size_t component_capacity(const component *p, int rows, int cols) {
    return ((size_t)rows * component_bytes(p, cols) + 63) / 64 * 64;
}

/* The findings of name_inspect. */
enum { WEIGHTS_NOT_ZERO = 1, WEIGHTS_NOT_FINITE = 2 };

/* Of a floating-point number without its sign; those from `infinite` on are not finite. */
BOTH unsigned inspect_magnitude(uint32_t bits, uint32_t infinite) {
    return (bits != 0 ? WEIGHTS_NOT_ZERO : 0) | (bits >= infinite ? WEIGHTS_NOT_FINITE : 0);
}
