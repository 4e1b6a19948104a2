/* model/part.c: a part of a program: which layers, and which share of each. A model that is one part of several has the weights of that part
   alone. The first range has the embedding; the last one the norm, the head and the MTP layer, and, for that, the embedding, too. Knows
   numbers of layers and ranks. */

enum { DEVICES_MAX = 64 };       /* parts of a model */

typedef struct model_part {
    int range, ranges;           /* of layers, from 0; of so many */
    int rank, ranks;             /* of each of them, likewise */
    int first, end;              /* its layers: [first, end) of the program */
    int apart;                   /* each range is on a host of its own */
} model_part;

/* A part of so many ranges and ranks; its layers are whoever's who cuts the program. Of one range, all: begin_layers. */
static model_part part_of(int range, int ranges, int rank, int ranks) {
    const model_part p = {.range = range, .ranges = ranges, .rank = rank, .ranks = ranks, .first = 0, .end = 0, .apart = 0};
    return p;
}

static int part_is_first(const model_part *p) {
    return p->range == 0;
}

static int part_is_last(const model_part *p) {
    return p->range + 1 == p->ranges;
}

/* Rows of the vocabulary, in the embedding and in the head, that a rank has: as many as the others, but for the last one, which may have
   less. */
typedef struct vocab_share {
    int first, rows, most;       /* most: of any rank */
} vocab_share;

static vocab_share part_vocab(const model_part *p, int vocab) {
    vocab_share s;
    s.most = (vocab - 1) / p->ranks + 1;
    s.first = s.most * p->rank;
    s.rows = vocab - s.first < s.most ? vocab - s.first : s.most;
    return s;
}

static int part_has(const model_part *p, int layer) {
    return layer >= p->first && layer < p->end;
}
