/* layers/kinds.cu: the kinds of layers on a GPU: layers/kinds.c says what a kind defines for this. */

#define X(NAME, name) name##_gpu name;
typedef struct layer_gpus { LAYER_KINDS(X) } layer_gpus;
#undef X

/* Scratch of a step's kernels in GPU memory, each kind's apart: a kernel may store before its predecessor is complete. */
static void layer_lay_gpu(layout *l, const layer_shapes *s, const capacity *r, const gpu_queue *q, layer_gpus *to) {
#define X(NAME, name) name##_lay_gpu(l, &s->name, r, q, &to->name);
    LAYER_KINDS(X)
#undef X
}

/* Records the kernels of a layer; with rows->state_only only those that its mixer's state needs. */
static void layer_record(const gpu_rows *rows, const layer *l, const layer_gpus *g, const layer_state *state) {
    switch (l->mixer.kind) {
#define X(NAME, name) case LAYER_##NAME: name##_record(rows, &l->mixer.w.name, &g->name, &state->name); break;
        MIXERS(X)
#undef X
        default: break;
    }
    if (rows->state_only) return;
    switch (l->ffn.kind) {
#define X(NAME, name) case LAYER_##NAME: name##_record(rows, &l->ffn.w.name, &g->name); break;
        FFNS(X)
#undef X
        default: break;
    }
}
