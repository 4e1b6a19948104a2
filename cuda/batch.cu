/* cuda/batch.cu: a projection of up to BATCH_ROWS_MAX token rows, which cuda/batch_rows.cu has prepared: of more than STEP_ROWS, and
   of those that a block does not have the shared memory for. Knows matrices and prepared rows; must not know prologues or layers.

   Same bits as cuda/tiles.cu, row by row: the same mma in the same order, eight shares of the k blocks, each closed by itself (the
   rows' scale, then high + low terms) and added in order. So that two kernels agree, products and sums are written as __fmul_rn,
   __fadd_rn and __fmaf_rn here. A tile's weights are decoded once for all n-tiles of four token rows; what an n-tile costs is two
   loads of B, four mma and four fma.

   Two forms, for 8, 16, 32 and 64 rows each (NT n-tiles): wide (cuda/batch_wide.cu) for many tiles, narrow (cuda/batch_narrow.cu) for
   few. This file chooses one, deals the blocks to the segments and records the launch.

   n-tiles after the last row are computed, but for those of 64 rows by fours: straight-line code is worth more than they cost.
   Neither form polls: they wait, and store tags. With up to 8 rows they release their successor at entry, or `late`; with more its blocks would
   take registers and issue slots from theirs, so they do so when the weights have been multiplied. */

typedef void (*gpu_batch_kernel)(gpu_batch_projection);

typedef struct gpu_batch_choice {
    gpu_batch_kernel kernel;
    int bytes, block_tiles;      /* of shared memory; that a block has at a time */
} gpu_batch_choice;

template <int NT> static gpu_batch_choice gpu_batch_choose(int narrow) {
    const gpu_batch_choice of_narrow = {gpu_batch_narrow<NT>, batch_narrow<NT>::BYTES, 1};
    const gpu_batch_choice of_wide = {gpu_batch_wide<NT>, batch_sizes<NT>::BYTES, batch_sizes<NT>::BLOCK_TILES};
    return narrow ? of_narrow : of_wide;
}

static gpu_batch_choice gpu_batch_choice_of(int T, int narrow) {
    return T <= 8 ? gpu_batch_choose<2>(narrow) : T <= 16 ? gpu_batch_choose<4>(narrow) : T <= 32 ? gpu_batch_choose<8>(narrow) :
                                                                                                     gpu_batch_choose<16>(narrow);
}

/* Deals the blocks that are resident at once to the segments, in proportion to their tiles; one of few has a block for each
   turn. Returns how many there are. */
static int gpu_batch_deal(gpu_queue *q, gpu_batch_projection *p, const gpu_batch_choice *c) {
    enum { FEW = 16 };
    int64_t turns[PROJECTIONS], all = 0, many = 0;
    int used = 0;
    for (int i = 0; i < p->count; i++) {
        turns[i] = (gpu_batch_tiles(p->segment[i]) - 1) / c->block_tiles + 1;
        all += turns[i];
        many += turns[i] > FEW ? turns[i] : 0;
    }
    const int64_t left = gpu_blocks(q, c->kernel, (size_t)c->bytes, all) - (all - many);
    for (int i = 0; i < p->count; i++) {
        gpu_segment *s = &p->segment[i];
        s->blocks = turns[i] > FEW ? (int)(turns[i] * left / many) : (int)turns[i];
        if (s->blocks < 1) s->blocks = 1;
        s->first_block = used;
        used += s->blocks;
    }
    return used;
}

static node *gpu_record_product(gpu_queue *q, enum kernel_kind kind, gpu_batch_projection *p) {
    int tiles = 0;
    for (int i = 0; i < p->count; i++) tiles += gpu_batch_tiles(p->segment[i]);
    const gpu_batch_choice c = gpu_batch_choice_of(p->T, tiles < 4 * q->sms);
    const int blocks = gpu_batch_deal(q, p, &c);
    const gpu_matrix *w = &p->segment[0].w;
    node *n = gpu_record(q, kind, formats[w->format]->name, c.kernel, blocks, 1, (size_t)c.bytes, p);
    if (!kernels[kind].prefetched) return n;
    n->first_weights.from = w->data;
    n->first_weights.bytes = (uint32_t)min((int64_t)w->panels * w->k_blocks * w->panel_bytes, (int64_t)1 << 30);
    return n;
}

/* The number of a format's operand order in `order`, where there are *count; it is added if there is space for it. -1: there is none. */
static int gpu_batch_order_of(const gpu_matrix *w, const batch_rows *rows, int *count, gpu_batch_order *order) {
    for (int i = 0; i < *count; i++)
        if (gpu_operand_order(order[i].format) == gpu_operand_order(w->format)) return i;
    if (*count == BATCH_ORDERS) return -1;
    order[*count].format = w->format;
    order[*count].k_blocks = w->k_blocks;
    order[*count].to = rows[*count];
    return (*count)++;
}

/* Records a projection of the rows in q->batch: their preparation, then the products of all segments whose operand orders there is
   scratch for, and so on. To the schedule these are pieces of one kernel. */
template <class IN> static void gpu_record_batch(gpu_queue *q, enum kernel_kind kind, const gpu_projection<IN> *p) {
    const int from = q->count;
    for (int i = 0, extra = p->extra; i < p->count; extra = 0) {
        gpu_batch_projection part;
        gpu_batch_order order[BATCH_ORDERS];
        int orders = 0;
        memset(&part, 0, sizeof part);
        part.T = p->T;
        part.end = p->end;
        part.late = p->late;
        part.h_row = p->h_row;
        memcpy(part.rows, q->batch->rows, sizeof part.rows);
        for (; i < p->count; i++) {
            const int of = gpu_batch_order_of(&p->segment[i].w, part.rows, &orders, order);
            if (of < 0) break;
            part.order[part.count] = of;
            part.segment[part.count++] = p->segment[i];
        }
        gpu_record_preparation(q, kind, p->in, p->T, p->eps, orders, order, extra, p->late);
        gpu_record_product(q, kind, &part);
    }
    for (int i = from; i < q->count; i++) {
        q->nodes[i].piece = i - from;
        q->nodes[i].pieces = q->count - from;
    }
}
