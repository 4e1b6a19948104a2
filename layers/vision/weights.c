/* layers/vision/weights.c: the vision tower: its sizes and weights. It reads the patches of an image and gives a row of the language model's
   residual for each four of them, before any of its layers; so it is no kind of layer, and knows none. The formulas: definition.c.

   A patch is 16 x 16 pixels of 3 colours, in two frames, which of a still image are alike: 1,536 numbers. Patches stand in blocks of 2 x 2, and
   blocks row by row: patch p is the p % 4-th of block p / 4. */

enum {
    VISION_PATCH = 16, VISION_CHANNELS = 3, VISION_FRAMES = 2,
    VISION_PIXELS = VISION_CHANNELS * VISION_FRAMES * VISION_PATCH * VISION_PATCH,       /* numbers of a patch */
    VISION_MERGE = 2, VISION_JOINED = VISION_MERGE * VISION_MERGE,                        /* side of a block, and its patches */
    VISION_HEAD_MAX = 256,       /* dimensions of a head */
    VISION_WHOLE_COLS = 64,      /* a packed matrix has multiples of these: its products are a prompt's, whatever the tower's widths */
    VISION_PATCHES_MAX = 65536   /* of an image: the limit of the models that there are */
};

#define VISION_EPS 1e-6          /* of its norms: no config.json says it */

/* depth: blocks, 0: there is no tower; size: of their FFN; side: positions are side x side; out: of a feature, the language model's hidden size;
   theta: of the rotary frequencies. */
#define VISION_FIELDS(X)                                                                                                             \
    X(int,   depth,  NONE, NONE, "")                                                                                                 \
    X(int,   hidden, NONE, NONE, "hidden")                                                                                           \
    X(int,   heads,  NONE, NONE, "heads")                                                                                            \
    X(int,   size,   NONE, NONE, "size")                                                                                             \
    X(int,   side,   NONE, NONE, "positions_side")                                                                                   \
    X(int,   out,    NONE, NONE, "out")                                                                                              \
    X(float, theta,  NONE, NONE, "")
SHAPE(VISION, vision)

static inline int vision_head_dim(const vision_shape *s) {
    return s->hidden / s->heads;
}

/* (x - mean(x)) / sqrt(var(x) + eps) weight + bias */
typedef struct vision_norm { const float *weight, *bias; } vision_norm;

typedef struct vision_block {
    vision_norm norm1, norm2;
    matrix qkv, proj;            /* [3 hidden][hidden] rows of queries, keys, values; [hidden][hidden] */
    matrix fc1, fc2;             /* [size][hidden], [hidden][size] */
} vision_block;

/* All matrices have biases. */
typedef struct vision_weights {
    vision_shape shape;
    matrix patches;              /* [hidden][VISION_PIXELS] */
    const float *positions;      /* [side][side][hidden] */
    vision_block *blocks;        /* [depth] */
    vision_norm norm;            /* of a patch, before four are joined: */
    matrix fc1, fc2;             /* [4 hidden][4 hidden], [out][4 hidden] */
} vision_weights;

/* Where patch p of an image of so many columns stands. */
BOTH void vision_place(int p, int columns, int *row, int *column) {
    const int block = p / VISION_JOINED, across = columns / VISION_MERGE;
    *row = block / across * VISION_MERGE + p % VISION_JOINED / VISION_MERGE;
    *column = block % across * VISION_MERGE + p % VISION_MERGE;
}

/* Where position i of `size` lies among `side` embeddings, whose first and last are the first and the last position's: between *tap and the next,
   *weight of the way. */
BOTH void vision_between(int i, int size, int side, int *tap, double *weight) {
    const double at = size > 1 ? (double)i * (side - 1) / (size - 1) : 0;
    *tap = (int)at;
    *weight = at - *tap;
}

/* Whether a tower can read an image of so many patches. */
static inline int vision_reads(int rows, int columns) {
    return rows > 0 && columns > 0 && rows % VISION_MERGE == 0 && columns % VISION_MERGE == 0 && rows <= VISION_PATCHES_MAX / columns;
}
