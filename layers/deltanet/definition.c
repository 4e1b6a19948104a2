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
} defined_deltanet;

static void deltanet_define_state(const deltanet_shape *s, defined_deltanet *state) {
    state->S = defined_array((size_t)s->value_heads * (size_t)s->value_dim * (size_t)s->key_dim);
    state->window = defined_array((size_t)s->taps * (size_t)deltanet_channels(s));
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

/* out[hidden] = the layer's output for one token, of the normalised u[hidden]. */
static void deltanet_define(const deltanet_weights *w, defined_deltanet *state, const double *u, double *out) {
    const deltanet_shape *s = &w->shape;
    const int channels = deltanet_channels(s), keys = s->key_heads * s->key_dim, values = s->value_heads * s->value_dim;
    double *qkv = defined_array((size_t)channels), *c = defined_array((size_t)channels);
    double *z = defined_array((size_t)values), *b = defined_array((size_t)s->value_heads), *a = defined_array((size_t)s->value_heads);
    double *q = defined_array((size_t)s->key_dim), *k = defined_array((size_t)s->key_dim), *o = defined_array((size_t)values);
    double *decay = defined_array((size_t)s->value_heads), *beta = defined_array((size_t)s->value_heads);

    defined_linear(&w->in_proj_qkv, u, qkv);                      /* q [key_heads][key_dim], k the same, v [value_heads][value_dim] */
    defined_linear(&w->in_proj_z, u, z);                          /* the output gate */
    defined_linear(&w->in_proj_b, u, b);
    defined_linear(&w->in_proj_a, u, a);
    defined_tell("in_proj_qkv", qkv, channels);
    defined_tell("in_proj_z", z, values);
    defined_tell("in_proj_b", b, s->value_heads);
    defined_tell("in_proj_a", a, s->value_heads);
    deltanet_define_conv(s, w, state->window, qkv, c);

    for (int h = 0; h < s->value_heads; h++) {
        const int key_head = h / (s->value_heads / s->key_heads);
        const double g = -exp((double)w->A_log[h]) * defined_softplus(a[h] + (double)w->dt_bias[h]);
        double *head = o + h * s->value_dim;
        decay[h] = exp(g);
        beta[h] = defined_sigmoid(b[h]);
        deltanet_define_unit(q, c + key_head * s->key_dim, s->key_dim, 1 / sqrt((double)s->key_dim));
        deltanet_define_unit(k, c + keys + key_head * s->key_dim, s->key_dim, 1);
        deltanet_define_rule(s, state->S + h * s->value_dim * s->key_dim, q, k, c + 2 * keys + h * s->value_dim, g, beta[h], head);
        double rms = defined_rms(head, s->value_dim, (double)s->eps);
        for (int i = 0; i < s->value_dim; i++)                    /* o / rms(o) norm SiLU(z) */
            head[i] = head[i] / rms * (double)w->norm[i] * defined_silu(z[h * s->value_dim + i]);
    }
    defined_tell("decay", decay, s->value_heads);
    defined_tell("beta", beta, s->value_heads);
    defined_tell("S", state->S, values * s->key_dim);
    defined_tell("o", o, values);
    defined_linear(&w->out_proj, o, out);

    defined_free(qkv);
}
