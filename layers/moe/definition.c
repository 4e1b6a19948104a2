/* layers/moe/definition.c: a mixture of experts, the definition.

   A router scores all experts; the top_k best compute, weighted by the softmax over their scores alone, which is the softmax over all,
   renormalised (or, of_all, as it is). The shared expert, if there is one, computes for every token, weighted by a sigmoid gate of
   its own, or by 1. An expert is a SwiGLU:

       expert(u) = down_proj (SiLU(gate_proj u) * up_proj u)

   With a limit gate_proj u is at most that, and up_proj u between minus that and that. With an alpha SiLU(gate) up is gate sigmoid(alpha gate)
   (up + 1); with gelu it is GELU(gate) up. With squared_relu there is no gate_proj, and it is ReLU(up)^2.

   Other routers, as DeepSeek V3's, score experts by sigmoid(router u), and weigh a chosen one by its score divided by the sum of those chosen (or,
   of_all, by its score). They choose by score + correction, a number of each expert that balances how often they are chosen; and, if experts are
   divided into groups, those of the groups_kept groups whose two best ranks have the largest sum. routed_scale multiplies all of these weights,
   expert_scale each expert's.

   If branches have norms of their own, router, routed experts and shared expert are given rows of their own, and the last one's output is apart
   from the others'. */

typedef struct defined_moe {
    double *score;               /* [experts] the router's */
    double *rank;                /* [experts] what they are chosen by */
    double *group;               /* [groups] the sum of a group's two best ranks */
    double *chosen;              /* [experts] 1: it is one of the top_k; 0: it is not */
    double *weight;              /* [experts] 0 where it is not */
    double *gate, *up;           /* [expert_size or shared_size] of an expert */
    double *down;                /* [hidden] */
} defined_moe;

static void moe_define_memory(const moe_shape *s, defined_memory *m, defined_moe *t) {
    t->score = defined_array(m, 1, s->experts);
    t->rank = defined_array(m, 1, s->experts);
    t->group = defined_array(m, 1, s->groups);
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
    if (s->squared_relu) return fmax(up, 0) * up;
    if (s->gelu) return defined_gelu(gate) * up;
    return alpha != 0 ? gate * defined_sigmoid(alpha * gate) * (up + 1) : defined_silu(gate) * up;
}

/* out[hidden] += weight expert(u), of expert e */
static void moe_define_expert(const moe_weights *w, const defined_moe *t, int e, double weight, const double *u, double *out) {
    const int size = w->up_proj[e].rows;
    if (!w->shape.squared_relu) defined_linear(&w->gate_proj[e], u, t->gate);
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

/* group[groups] = the sum of a group's two best ranks; -infinity becomes the rank of all experts that are not of one of the best groups, the
   lower index first among equals. */
static void moe_define_groups(const moe_shape *s, double *rank, double *group) {
    const int size = s->experts / s->groups;
    for (int g = 0; g < s->groups; g++) {
        double best = -INFINITY, second = -INFINITY;
        for (int e = g * size; e < (g + 1) * size; e++) {
            if (rank[e] > best) second = best, best = rank[e];
            else if (rank[e] > second) second = rank[e];
        }
        group[g] = best + second;
    }
    for (int g = 0; g < s->groups; g++) {
        int before = 0;
        for (int k = 0; k < s->groups; k++) before += group[k] > group[g] || (group[k] == group[g] && k < g);
        for (int e = g * size; e < (g + 1) * size && before >= s->groups_kept; e++) rank[e] = -INFINITY;
    }
}

/* rank[experts]: of the router's scores, or of their sigmoids, which score[experts] then becomes. */
static void moe_define_ranks(const moe_weights *w, const defined_moe *t) {
    const moe_shape *s = &w->shape;
    for (int e = 0; e < s->experts; e++) {
        if (s->sigmoid) t->score[e] = defined_sigmoid(t->score[e]);
        t->rank[e] = s->corrected ? t->score[e] + (double)w->correction[e] : t->score[e];
    }
    if (s->groups) moe_define_groups(s, t->rank, t->group);
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

/* weight[experts] = the chosen scores divided by their sum; of_all: as they are. */
static void moe_define_shares(const double *score, const double *chosen, int experts, int of_all, double *weight) {
    double sum = 1e-20;                                        /* as the models have it: no quotient of zeros */
    for (int e = 0; e < experts; e++)
        if (chosen[e]) sum += score[e];
    for (int e = 0; e < experts; e++) weight[e] = chosen[e] ? score[e] / (of_all ? 1 : sum) : 0;
}

static void moe_define_weights(const moe_weights *w, const double *score, const double *chosen, double *weight) {
    const moe_shape *s = &w->shape;
    if (s->sigmoid) moe_define_shares(score, chosen, s->experts, s->of_all, weight);
    else moe_define_softmax(score, chosen, s->experts, s->of_all, weight);
    for (int e = 0; e < s->experts && s->routed_scale != 0; e++) weight[e] *= (double)s->routed_scale;
    for (int e = 0; e < s->experts && s->expert_scaled; e++) weight[e] *= (double)w->expert_scale[e];
}

/* out[hidden] = layer(u[hidden]); b: of branches, NULL: all read u, and all is added up in out. */
static void moe_define(const defining *d, const moe_weights *w, const defined_moe *t, const double *u, const defined_branches *b, double *out) {
    const moe_shape *s = &w->shape;
    const int gated = s->shared_size && !s->shared_ungated;
    const double *router_u = b ? b->router : u, *shared_u = b ? b->shared : u;
    double shared_gate = 0;

    defined_linear(&w->router, router_u, t->score);
    if (gated) defined_linear(&w->shared_expert_gate, router_u, &shared_gate);
    defined_tell(d, "router", t->score, s->experts);
    if (gated) defined_tell(d, "shared_expert_gate", &shared_gate, 1);
    moe_define_ranks(w, t);
    moe_define_choice(t->rank, s->experts, s->top_k, t->chosen);
    moe_define_weights(w, t->score, t->chosen, t->weight);
    defined_tell(d, "experts", t->weight, s->experts);
    memset(out, 0, (size_t)s->hidden * sizeof *out);
    for (int e = 0; e < s->experts; e++)
        if (t->chosen[e]) moe_define_expert(w, t, e, t->weight[e], u, out);
    if (s->shared_size)                                        /* after the routed ones */
        moe_define_expert(w, t, s->experts, gated ? defined_sigmoid(shared_gate) : 1, shared_u, b ? b->shared_out : out);
}
