/* layers/moe/definition.c: a mixture of experts, the definition.

   A router scores all experts; the top_k best compute, weighted by the softmax over their scores alone, which is the softmax over all,
   renormalised (or, of_all, as it is). The shared expert, if there is one, computes for every token, weighted by a sigmoid gate of
   its own. An expert is a SwiGLU:

       expert(u) = down_proj (SiLU(gate_proj u) * up_proj u)

   With a limit gate_proj u is at most that, and up_proj u between minus that and that. With an alpha SiLU(gate) up is gate sigmoid(alpha gate) (up + 1). */

/* An element of what goes into down_proj. */
static double moe_define_activation(const moe_shape *s, double gate, double up) {
    const double limit = (double)s->limit, alpha = (double)s->alpha;
    if (limit != 0) gate = fmin(gate, limit), up = fmax(fmin(up, limit), -limit);
    return alpha != 0 ? gate * defined_sigmoid(alpha * gate) * (up + 1) : defined_silu(gate) * up;
}

/* out[hidden] += weight expert(u), of expert e */
static void moe_define_expert(const moe_weights *w, int e, double weight, const double *u, double *out) {
    const matrix *gate_proj = &w->gate_proj[e], *up_proj = &w->up_proj[e], *down_proj = &w->down_proj[e];
    double *gate = defined_array((size_t)gate_proj->rows), *up = defined_array((size_t)up_proj->rows);
    double *down = defined_array((size_t)down_proj->rows);
    defined_linear(gate_proj, u, gate);
    defined_linear(up_proj, u, up);
    for (int i = 0; i < gate_proj->rows; i++) gate[i] = moe_define_activation(&w->shape, gate[i], up[i]);
    defined_linear(down_proj, gate, down);
    for (int i = 0; i < down_proj->rows; i++) out[i] += weight * down[i];
    defined_free(gate);
}

/* chosen[experts] = 1 for the top_k highest scores, the lower index first among equals. */
static void moe_define_choice(const double *score, int experts, int top_k, char *chosen) {
    for (int n = 0; n < top_k; n++) {
        int best = -1;
        for (int e = 0; e < experts; e++)
            if (!chosen[e] && (best < 0 || score[e] > score[best])) best = e;
        chosen[best] = 1;
    }
}

/* out[hidden] = the layer's output for one token, of the normalised u[hidden]. */
static void moe_define(const moe_weights *w, const double *u, double *out) {
    const moe_shape *s = &w->shape;
    double *score = defined_array((size_t)s->experts), *weight = defined_array((size_t)s->experts);
    double shared_gate = 0, top = -INFINITY, sum = 0;
    char *chosen = (char *)defined_array((size_t)s->experts);

    defined_linear(&w->router, u, score);
    if (s->shared_size) defined_linear(&w->shared_expert_gate, u, &shared_gate);
    defined_tell("router", score, s->experts);
    if (s->shared_size) defined_tell("shared_expert_gate", &shared_gate, 1);
    moe_define_choice(score, s->experts, s->top_k, chosen);
    for (int e = 0; e < s->experts; e++)
        if (chosen[e] && score[e] > top) top = score[e];
    for (int e = 0; e < s->experts; e++)
        if (chosen[e] || s->of_all) sum += exp(score[e] - top);
    for (int e = 0; e < s->experts; e++)
        if (chosen[e]) weight[e] = exp(score[e] - top) / sum;
    defined_tell("experts", weight, s->experts);
    memset(out, 0, (size_t)s->hidden * sizeof *out);
    for (int e = 0; e < s->experts; e++)
        if (chosen[e]) moe_define_expert(w, e, weight[e], u, out);
    if (s->shared_size) moe_define_expert(w, s->experts, defined_sigmoid(shared_gate), u, out);      /* after the routed ones */

    defined_free(score);
}
