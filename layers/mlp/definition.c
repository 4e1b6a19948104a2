/* layers/mlp/definition.c: a dense FFN, the definition: a SwiGLU that every token goes through,

       out = down_proj (SiLU(gate_proj u) * up_proj u)

   or, with gelu, the same with GELU; with squared_relu out = down_proj ReLU(up_proj u)^2. */

typedef struct defined_mlp { double *h, *up; } defined_mlp;                /* [size] */

static void mlp_define_memory(const mlp_shape *s, defined_memory *m, defined_mlp *t) {
    t->h = defined_array(m, 1, s->size);
    t->up = defined_array(m, 1, s->size);
}

/* out[hidden] = layer(u[hidden]) */
static void mlp_define(const defining *d, const mlp_weights *w, const defined_mlp *t, const double *u, double *out) {
    const mlp_shape *s = &w->shape;
    defined_linear(mlp_gate(w), u, t->h);
    defined_linear(&w->up_proj, u, t->up);
    for (int i = 0; i < s->size; i++)
        t->h[i] = (s->squared_relu ? fmax(t->h[i], 0) : s->gelu ? defined_gelu(t->h[i]) : defined_silu(t->h[i])) * t->up[i];
    defined_tell(d, "h", t->h, s->size);
    defined_linear(&w->down_proj, t->h, out);
}
