/* layers/mamba/definition.c: a Mamba-2 layer (Dao and Gu 2024, "Transformers are SSMs"), the definition.

   Every head keeps a matrix S, state_dim numbers for each element of x. A token lets S decay, adds its x along B, and reads S along C:

       S = exp(-exp(A_log) dt) S + dt x B^T        dt > 0: how long the token's step is
       y = S C + D x                               read after the write, so that a token sees itself

   That is the delta rule without the delta: what S holds for B is not corrected. x, B and C come out of a convolution over the last tokens;
   the heads of a group share B and C. Then y is gated, and normed group by group: the gate comes first. */

typedef struct defined_mamba {
    double *S;                   /* [heads][head_dim][state_dim] */
    double *window;              /* [taps][channels] conv inputs of the last tokens, the newest last */
    double *in, *c;              /* [channels] C, B, x before the convolution and after it */
    double *z, *y;               /* [heads][head_dim] the gate, the output */
    double *dt, *decay;          /* [heads] */
} defined_mamba;

static void mamba_define_memory(const mamba_shape *s, defined_memory *m, defined_mamba *t) {
    t->S = defined_array(m, mamba_inner(s), s->state_dim);
    t->window = defined_array(m, s->taps, mamba_channels(s));
    t->in = defined_array(m, 1, mamba_channels(s));
    t->c = defined_array(m, 1, mamba_channels(s));
    t->z = defined_array(m, s->heads, s->head_dim);
    t->y = defined_array(m, s->heads, s->head_dim);
    t->dt = defined_array(m, 1, s->heads);
    t->decay = defined_array(m, 1, s->heads);
}

/* c[channels] = SiLU(conv1d(in) + bias): each channel's own weights over its last `taps` inputs. */
static void mamba_define_conv(const mamba_shape *s, const mamba_weights *w, double *window, const double *in, double *c) {
    const int channels = mamba_channels(s);
    memmove(window, window + channels, (size_t)(s->taps - 1) * (size_t)channels * sizeof *window);
    memcpy(window + (s->taps - 1) * channels, in, (size_t)channels * sizeof *window);
    for (int i = 0; i < channels; i++) {
        double sum = (double)w->conv_bias[i];
        for (int tap = 0; tap < s->taps; tap++) sum += (double)w->conv1d[i * s->taps + tap] * window[tap * channels + i];
        c[i] = defined_silu(sum);
    }
}

/* One token of one head: the two lines above. S: [head_dim][state_dim]. */
static void mamba_define_rule(const mamba_shape *s, double *S, const double *x, const double *B, const double *C, double dt, double decay, double D,
                              double *y) {
    for (int i = 0; i < s->head_dim; i++) {
        double *row = S + i * s->state_dim;
        y[i] = D * x[i];
        for (int j = 0; j < s->state_dim; j++) {
            row[j] = decay * row[j] + dt * x[i] * B[j];
            y[i] += row[j] * C[j];
        }
    }
}

/* y = y SiLU(z), divided by the root mean square of its group, times norm. */
static void mamba_define_gate(const mamba_shape *s, const float *norm, double *y, const double *z) {
    const int size = mamba_inner(s) / s->groups;
    for (int i = 0; i < mamba_inner(s); i++) y[i] *= defined_silu(z[i]);
    for (int g = 0; g < s->groups; g++) {
        const double rms = defined_rms(y + g * size, size, (double)s->eps);
        for (int i = g * size; i < (g + 1) * size; i++) y[i] = y[i] / rms * (double)norm[i];
    }
}

/* out[hidden] = layer(u[hidden]), of the token after those that S holds. */
static void mamba_define(const defining *d, const mamba_weights *w, defined_mamba *t, const double *u, double *out) {
    const mamba_shape *s = &w->shape;
    const int shared = s->groups * s->state_dim;
    defined_linear(&w->in_proj_cbx, u, t->in);
    defined_linear(&w->in_proj_z, u, t->z);
    defined_linear(&w->in_proj_dt, u, t->dt);
    defined_tell(d, "in_proj_cbx", t->in, mamba_channels(s));
    defined_tell(d, "in_proj_z", t->z, mamba_inner(s));
    defined_tell(d, "in_proj_dt", t->dt, s->heads);
    mamba_define_conv(s, w, t->window, t->in, t->c);
    for (int h = 0; h < s->heads; h++) {
        const double *C = t->c + h / (s->heads / s->groups) * s->state_dim, *x = t->c + 2 * shared + h * s->head_dim;
        t->dt[h] = defined_softplus(t->dt[h] + (double)w->dt_bias[h]);
        t->decay[h] = exp(-exp((double)w->A_log[h]) * t->dt[h]);
        mamba_define_rule(s, t->S + (size_t)(h * s->head_dim) * (size_t)s->state_dim, x, C + shared, C, t->dt[h], t->decay[h], (double)w->D[h],
                          t->y + h * s->head_dim);
    }
    mamba_define_gate(s, w->norm, t->y, t->z);
    defined_tell(d, "dt", t->dt, s->heads);
    defined_tell(d, "decay", t->decay, s->heads);
    defined_tell(d, "S", t->S, mamba_inner(s) * s->state_dim);
    defined_tell(d, "y", t->y, mamba_inner(s));
    defined_linear(&w->out_proj, t->y, out);
}
