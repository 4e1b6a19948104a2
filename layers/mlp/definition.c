/* layers/mlp/definition.c: a dense FFN, the definition: a SwiGLU that every token goes through,

       out = down_proj (SiLU(gate_proj u) * up_proj u) */

/* out[hidden] = the layer's output for one token, of the normalised u[hidden]. */
static void mlp_define(const mlp_weights *w, const double *u, double *out) {
    const mlp_shape *s = &w->shape;
    double *h = defined_array((size_t)s->size), *up = defined_array((size_t)s->size);
    defined_linear(&w->gate_proj, u, h);
    defined_linear(&w->up_proj, u, up);
    for (int i = 0; i < s->size; i++) h[i] = defined_silu(h[i]) * up[i];
    defined_tell("h", h, s->size);
    defined_linear(&w->down_proj, h, out);
    defined_free(h);
}
