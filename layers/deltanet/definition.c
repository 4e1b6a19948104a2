/* layers/deltanet/definition.c: a Gated DeltaNet layer (Yang et al. 2024, "Gated Delta Networks"), the definition.

   Every value head keeps a matrix S that maps keys to values. A token first lets S decay, then corrects what S holds for the token's
   key, then reads S with the query:

       S = exp(g) S                       g < 0: how much is forgotten
       u = beta (v - S k)                 what S should say for k, minus what it says: the delta
       S = S + u k^T                      written along k
       o = S q                            read after the write, so that a token sees itself

   The decay comes first, so that the correction is against the decayed memory. value_heads is a multiple of key_heads: neighbouring
   value heads share a key head's q and k. */

typedef struct defined_deltanet {
    double *S;                   /* [value_heads][value_dim][key_dim] */
    double *window;              /* [taps][channels] conv inputs of the last tokens, the newest last */
    double *qkv, *c;             /* [channels] q [key_heads][key_dim], k the same, v [value_heads][value_dim]; c: after the convolution */
    double *q, *k;               /* [key_dim] of a head, of length 1 but for a factor */
    double *z, *o;               /* [value_heads][value_dim] the output gate, the output */
    double *b, *a;               /* [value_heads] what beta and the decay are made of */
    double *beta, *decay;        /* [value_heads] */
} defined_deltanet;

static void deltanet_define_memory(const deltanet_shape *s, defined_memory *m, defined_deltanet *t) {
    t->S = defined_array(m, s->value_heads * s->value_dim, s->key_dim);
    t->window = defined_array(m, s->taps, deltanet_channels(s));
    t->qkv = defined_array(m, 1, deltanet_channels(s));
    t->c = defined_array(m, 1, deltanet_channels(s));
    t->q = defined_array(m, 1, s->key_dim);
    t->k = defined_array(m, 1, s->key_dim);
    t->z = defined_array(m, s->value_heads, s->value_dim);
    t->o = defined_array(m, s->value_heads, s->value_dim);
    t->b = defined_array(m, 1, s->value_heads);
    t->a = defined_array(m, 1, s->value_heads);
    t->beta = defined_array(m, 1, s->value_heads);
    t->decay = defined_array(m, 1, s->value_heads);
}

/* c[channels] = SiLU(conv1d(qkv)): each channel's own weights over its last `taps` inputs. */
static void deltanet_define_conv(const deltanet_shape *s, const deltanet_weights *w, double *window, const double *qkv, double *c) {
    const int channels = deltanet_channels(s);
    memmove(window, window + channels, (size_t)(s->taps - 1) * (size_t)channels * sizeof *window);
    memcpy(window + (s->taps - 1) * channels, qkv, (size_t)channels * sizeof *window);
    for (int i = 0; i < channels; i++) {
        double sum = 0;
        for (int tap = 0; tap < s->taps; tap++) sum += (double)w->conv1d[i * s->taps + tap] * window[tap * channels + i];
        c[i] = defined_silu(sum);
    }
}

/* y = x / |x| factor. 1e-6 under the root, as in the reference: a zero vector stays zero. */
static void deltanet_define_unit(double *y, const double *x, int n, double factor) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    for (int i = 0; i < n; i++) y[i] = x[i] / sqrt(sum + 1e-6) * factor;
}

/* One token of one value head: the four lines above. S: [value_dim][key_dim]. */
static void deltanet_define_rule(const deltanet_shape *s, double *S, const double *q, const double *k, const double *v, double g,
                                 double beta, double *o) {
    for (int i = 0; i < s->value_dim; i++) {
        double *row = S + i * s->key_dim, held = 0;
        for (int j = 0; j < s->key_dim; j++) row[j] *= exp(g);                     /* S = exp(g) S */
        for (int j = 0; j < s->key_dim; j++) held += row[j] * k[j];                /* S k */
        double u = beta * (v[i] - held);                                           /* u = beta (v - S k) */
        for (int j = 0; j < s->key_dim; j++) row[j] += u * k[j];                   /* S = S + u k^T */
        o[i] = 0;
        for (int j = 0; j < s->key_dim; j++) o[i] += row[j] * q[j];                /* o = S q */
    }
}

/* out[hidden] = layer(u[hidden]), of the token after those that S holds. */
static void deltanet_define(const defining *d, const deltanet_weights *w, defined_deltanet *t, const double *u, double *out) {
    const deltanet_shape *s = &w->shape;
    const int keys = s->key_heads * s->key_dim, values = s->value_heads * s->value_dim;

    defined_linear(&w->in_proj_qkv, u, t->qkv);
    defined_linear(&w->in_proj_z, u, t->z);
    defined_linear(&w->in_proj_b, u, t->b);
    defined_linear(&w->in_proj_a, u, t->a);
    defined_tell(d, "in_proj_qkv", t->qkv, deltanet_channels(s));
    defined_tell(d, "in_proj_z", t->z, values);
    defined_tell(d, "in_proj_b", t->b, s->value_heads);
    defined_tell(d, "in_proj_a", t->a, s->value_heads);
    deltanet_define_conv(s, w, t->window, t->qkv, t->c);

    for (int h = 0; h < s->value_heads; h++) {
        const int key_head = h / (s->value_heads / s->key_heads);
        const double *q = t->c + key_head * s->key_dim, *k = q + keys, *v = t->c + 2 * keys + h * s->value_dim, *z = t->z + h * s->value_dim;
        const double g = -exp((double)w->A_log[h]) * defined_softplus(t->a[h] + (double)w->dt_bias[h]);
        double *S = t->S + (size_t)(h * s->value_dim) * (size_t)s->key_dim, *o = t->o + h * s->value_dim;
        t->decay[h] = exp(g);
        t->beta[h] = defined_sigmoid(t->b[h]);
        deltanet_define_unit(t->q, q, s->key_dim, 1 / sqrt((double)s->key_dim));
        deltanet_define_unit(t->k, k, s->key_dim, 1);
        deltanet_define_rule(s, S, t->q, t->k, v, g, t->beta[h], o);
        const double rms = defined_rms(o, s->value_dim, (double)s->eps);
        for (int i = 0; i < s->value_dim; i++) o[i] = o[i] / rms * (double)w->norm[i] * (s->sigmoid_gate ? defined_sigmoid(z[i]) : defined_silu(z[i]));
    }
    defined_tell(d, "decay", t->decay, s->value_heads);
    defined_tell(d, "beta", t->beta, s->value_heads);
    defined_tell(d, "S", t->S, values * s->key_dim);
    defined_tell(d, "o", t->o, values);
    defined_linear(&w->out_proj, t->o, out);
}
