/* generate/decoder.c: what decoding keeps in a session from one call to the next: what is known of drafts, where tokens may be copied from,
   and memory to choose tokens in. session/ has a pointer to it, and knows no more. */

/* How often something has happened lately. */
typedef struct rate {
    double share, weight;                                   /* weight: the samples that it averages */
} rate;

enum {
    CONFIDENCE_CLASSES = 8,      /* classes of a draft's probability, */
    COPY_CLASSES = 7             /* of the length of a match */
};

/* A model's drafts accepted, if those before them are. */
typedef struct draft_rates {
    rate place[MOTE_ROWS_MAX - 1];                          /* by place, */
    rate confidence[CONFIDENCE_CLASSES];                    /* by the probability that the draft head gave them */
} draft_rates;

typedef struct speculation {
    mote_speculation stats;
    mote_drafter_use blocks;                                /* the same of the block drafter */
    draft_rates mtp, block;                                 /* of the MTP layer; of the block drafter */
    rate copied[COPY_CLASSES];                              /* copies accepted, by the length of the match so far */
    rate *judges[2];                                        /* to be told whether a draft that was not verified was right; or NULL */
    int32_t unverified;                                     /* that draft */
    int32_t next;                                           /* the token that begins the next pass; -1: not chosen yet */
    int drafts;                                             /* that follow it, made already */
    double passed;                                          /* seconds(): when the last pass was over */
    int rows;                                               /* of the last pass */
    int prepared;                                           /* the device is, for answers */
} speculation;

typedef struct decoder {
    speculation spec;
    copy_index copies;
    float *sorted;               /* [vocab] logits being sampled */
    int32_t *heap, *counts;      /* [vocab]; counts: of tokens, zero between calls */
} decoder;

/* Lays one out; NULL while counting. context: tokens that drafts are copied from; 0: nothing is drafted. */
static decoder *decoder_layout(layout *l, int vocab, int context) {
    decoder counted = {0}, *d = (decoder *)(void *)layout_alloc(l, (sizeof *d + sizeof(float) - 1) / sizeof(float)), *to = d ? d : &counted;
    to->sorted = layout_alloc(l, (size_t)vocab);
    to->heap = (int32_t *)(void *)layout_alloc(l, (size_t)vocab);
    to->counts = (int32_t *)(void *)layout_alloc(l, (size_t)vocab);
    if (context) copies_layout(l, &to->copies, context);
    return d;
}
