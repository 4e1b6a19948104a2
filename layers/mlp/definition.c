/* layers/mlp/definition.c: a dense FFN, the definition: a SwiGLU that every token goes through,

       x += down_proj (SiLU(gate_proj u) * up_proj u),  u = norm(x) */

/* x[hidden] += the layer's output for one token. */
static void mlp_define(const mlp_weights *w, double *x) {
    const mlp_shape *s = &w->shape;
    double *u = defined_array((size_t)s->hidden), *h = defined_array((size_t)s->size), *up = defined_array((size_t)s->size);
    double *out = defined_array((size_t)s->hidden);

    defined_tell("x", x, s->hidden);
    defined_norm(u, x, w->norm, s->hidden, (double)s->eps);
    defined_linear(&w->gate_proj, u, h);
    defined_linear(&w->up_proj, u, up);
    for (int i = 0; i < s->size; i++) h[i] = defined_silu(h[i]) * up[i];
    defined_tell("h", h, s->size);
    defined_linear(&w->down_proj, h, out);
    defined_tell("added", out, s->hidden);
    for (int i = 0; i < s->hidden; i++) x[i] += out[i];

    defined_free(u);
}
