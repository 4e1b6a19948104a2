/* layers/moe/definition.c: a mixture of experts, the definition.

   A router scores all experts; the top_k best compute, weighted by the softmax over their scores alone, which is the softmax over all,
   renormalised (or, of_all, as it is). The shared expert, if there is one, computes for every token, weighted by a sigmoid gate of
   its own. An expert is a SwiGLU:

       expert(u) = down_proj (SiLU(gate_proj u) * up_proj u)

   With a limit gate_proj u is at most that, and up_proj u between minus that and that. With an alpha SiLU(gate) up is gate sigmoid(alpha gate) (up + 1). */

typedef struct defined_moe {
    double *score;               /* [experts] the router's */
    double *chosen;              /* [experts] 1: it is one of the top_k; 0: it is not */
    double *weight;              /* [experts] 0 where it is not */
    double *gate, *up;           /* [expert_size or shared_size] of an expert */
    double *down;                /* [hidden] */
} defined_moe;

static void moe_define_memory(const moe_shape *s, defined_memory *m, defined_moe *t) {
    t->score = defined_array(m, 1, s->experts);
    t->chosen = defined_array(m, 1, s->experts);
    t->weight = defined_array(m, 1, s->experts);
    t->gate = defined_array(m, 1, max_int(s->expert_size, s->shared_size));
    t->up = defined_array(m, 1, max_int(s->expert_size, s->shared_size));
    t->down = defined_array(m, 1, s->hidden);
}

/* An element of what goes into down_proj. */
static double moe_define_activation(const moe_shape *s, double gate, double up) {
    const double limit = (double)s->limit, alpha = (double)s->alpha;
    if (limit != 0) gate = fmin(gate, limit), up = fmax(fmin(up, limit), -limit);
    return alpha != 0 ? gate * defined_sigmoid(alpha * gate) * (up + 1) : defined_silu(gate) * up;
}

/* out[hidden] += weight expert(u), of expert e */
static void moe_define_expert(const moe_weights *w, const defined_moe *t, int e, double weight, const double *u, double *out) {
    const int size = w->gate_proj[e].rows;
    defined_linear(&w->gate_proj[e], u, t->gate);
    defined_linear(&w->up_proj[e], u, t->up);
    for (int i = 0; i < size; i++) t->gate[i] = moe_define_activation(&w->shape, t->gate[i], t->up[i]);
    defined_linear(&w->down_proj[e], t->gate, t->down);
    for (int i = 0; i < w->shape.hidden; i++) out[i] += weight * t->down[i];
}

/* chosen[experts] = 1 for the top_k highest scores, the lower index first among equals. */
static void moe_define_choice(const double *score, int experts, int top_k, double *chosen) {
    memset(chosen, 0, (size_t)experts * sizeof *chosen);
    for (int n = 0; n < top_k; n++) {
        int best = -1;
        for (int e = 0; e < experts; e++)
            if (!chosen[e] && (best < 0 || score[e] > score[best])) best = e;
        chosen[best] = 1;
    }
}

/* weight[experts] = softmax of the chosen scores; of_all: of all scores, and 0 where none is chosen. */
static void moe_define_softmax(const double *score, const double *chosen, int experts, int of_all, double *weight) {
    double top = -INFINITY, sum = 0;
    for (int e = 0; e < experts; e++)
        if (chosen[e] && score[e] > top) top = score[e];
    for (int e = 0; e < experts; e++)
        if (chosen[e] || of_all) sum += exp(score[e] - top);
    for (int e = 0; e < experts; e++) weight[e] = chosen[e] ? exp(score[e] - top) / sum : 0;
}

/* out[hidden] = layer(u[hidden]) */
static void moe_define(const defining *d, const moe_weights *w, const defined_moe *t, const double *u, double *out) {
    const moe_shape *s = &w->shape;
    double shared_gate = 0;

    defined_linear(&w->router, u, t->score);
    if (s->shared_size) defined_linear(&w->shared_expert_gate, u, &shared_gate);
    defined_tell(d, "router", t->score, s->experts);
    if (s->shared_size) defined_tell(d, "shared_expert_gate", &shared_gate, 1);
    moe_define_choice(t->score, s->experts, s->top_k, t->chosen);
    moe_define_softmax(t->score, t->chosen, s->experts, s->of_all, t->weight);
    defined_tell(d, "experts", t->weight, s->experts);
    memset(out, 0, (size_t)s->hidden * sizeof *out);
    for (int e = 0; e < s->experts; e++)
        if (t->chosen[e]) moe_define_expert(w, t, e, t->weight[e], u, out);
    if (s->shared_size) moe_define_expert(w, t, s->experts, defined_sigmoid(shared_gate), u, out);      /* after the routed ones */
}
