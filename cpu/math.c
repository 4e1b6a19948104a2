/* cpu/math.c: norms, activations and rotation, of plain arrays; random numbers. */

static inline float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

static inline float silu(float x) {
    return x * sigmoid(x);
}

/* x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, as GELU is approximated in models: of the tanh an exponential is left. */
static inline float gelu(float x) {
    return x * sigmoid(1.59576912f * (x + 0.044715f * x * x * x));
}

static inline float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

static float rms_factor(const float *x, int n, float eps) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * x[i];
    return (float)(1.0 / sqrt(sum / n + (double)eps));
}

/* out[t] = rms(x[t]) * w for T rows of n; out may be x. */
static void rms_norm(float *out, const float *x, const float *w, int T, int n, float eps) {
    for (int t = 0; t < T; t++) {
        const float *row = x + (size_t)t * (size_t)n;
        float *to = out + (size_t)t * (size_t)n, factor = rms_factor(row, n, eps);
        for (int i = 0; i < n; i++) to[i] = row[i] * factor * w[i];
    }
}

/* x[n] = rms(x), in place. */
static void rms_divide(float *x, int n, float eps) {
    const float factor = rms_factor(x, n, eps);
    for (int i = 0; i < n; i++) x[i] *= factor;
}

/* Rotates the pairs (x[i], x[i + dim/2]) by the angles of one position. */
static void rotate(float *x, const float *angles, int dim) {
    int half = dim / 2;
    for (int i = 0; i < half; i++) {
        float a = x[i], b = x[half + i], c = angles[i], s = angles[half + i];
        x[i] = a * c - b * s;
        x[half + i] = b * c + a * s;
    }
}

/* Rotates the pairs (x[2 i], x[2 i + 1]) by the same angles. */
static void rotate_pairs(float *x, const float *angles, int dim) {
    for (int i = 0; i < dim / 2; i++) {
        const float a = x[2 * i], b = x[2 * i + 1], c = angles[i], s = angles[dim / 2 + i];
        x[2 * i] = a * c - b * s;
        x[2 * i + 1] = b * c + a * s;
    }
}

/* A uniform number in [0, 1) that depends on seed and position only (splitmix64). */
BOTH double uniform(uint64_t seed, uint64_t position) {
    uint64_t z = seed * 0x9e3779b97f4a7c15u + (position + 1) * 0xd1342543de82ef95u;
    for (int i = 0; i < 2; i++) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
    }
    return (double)(z >> 11) * 0x1p-53;
}
