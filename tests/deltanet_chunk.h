/* tests/deltanet_chunk.h: the delta rule, a chunk of tokens at a time: the definition of what layers/deltanet/prefill.cu
   computes. Plain C in double; uses libc alone.

   The recurrence (layers/deltanet/cpu.c) takes one token after the other, which leaves matrix units idle: S, of value_dim x
   key_dim, meets one vector at a time. This is the same rule for a chunk of n tokens, made of matrix products.

   Within a chunk let G_i = g_1 + ... + g_i, the logarithm of what decay leaves at token i of the chunk's S, and S_0 be S
   before the chunk. Unrolled, the recurrence says that token i finds

       e^{G_i} S_0 + sum over j < i of e^{G_i - G_j} u_j k_j^T

   decayed already, and what it adds is, with x_i = v_i - e^{G_i} S_0 k_i, which knows nothing of the other tokens,

       u_i = b_i (x_i - sum over j < i of e^{G_i - G_j} (k_j . k_i) u_j)

   A linear system for the u_j, lower triangular. With u'_j = e^{-G_j} u_j and x'_j = e^{-G_j} x_j the gates leave it:

       (I + A) u' = B x'        A_ij = b_i (k_i . k_j) for j < i, else 0        B = diag(b)

   so u' = T B x' with T = (I + A)^-1, and with the gates put back

       u_i = sum over j <= i of T_ij e^{G_i - G_j} b_j x_j

   T is computed without gates: their differences G_i - G_j are never positive, whereas e^{-G_j} alone overflows as soon
   as a head forgets at once. Its elements stay at most 1 in size, for |k| <= 1 and b <= 1. What is left are two products:

       o_i = e^{G_i} S_0 q_i + sum over j <= i of e^{G_i - G_j} (q_i . k_j) u_j
       S   = e^{G_n} S_0 + sum over j of e^{G_n - G_j} u_j k_j^T */

#ifndef MOTE_TEST_DELTANET_CHUNK_H
#define MOTE_TEST_DELTANET_CHUNK_H

#include <math.h>

enum { DELTA_CHUNK_MOST = 64 };  /* tokens of a chunk */

static double delta_chunk_dot(const double *a, const double *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* decay[i][j] = e^{G_i - G_j} for j <= i, else 0. Each is a sum of the gates in between: a difference of two long sums would
   lose the small gates after a large one, and be NaN after an infinite one. */
static void delta_chunk_decay(double (*decay)[DELTA_CHUNK_MOST], const double *g, int n) {
    for (int j = 0; j < n; j++) {
        double sum = 0;
        for (int i = 0; i < n; i++) {
            if (i > j) sum += g[i];
            decay[i][j] = i < j ? 0 : exp(sum);
        }
    }
}

/* T = (I + A)^-1 by forward substitution, row after row: T_ij = [i = j] - sum over j <= l < i of A_il T_lj. */
static void delta_chunk_inverse(double (*T)[DELTA_CHUNK_MOST], const double *k, const double *beta, int n, int dk) {
    double A[DELTA_CHUNK_MOST];  /* a row of A */
    for (int i = 0; i < n; i++) {
        for (int l = 0; l < i; l++) A[l] = beta[i] * delta_chunk_dot(k + i * dk, k + l * dk, dk);
        for (int j = 0; j < n; j++) {
            T[i][j] = i == j;
            for (int l = j; l < i; l++) T[i][j] -= A[l] * T[l][j];
        }
    }
}

/* A chunk of n <= DELTA_CHUNK_MOST tokens of one value head. q, k: [n][dk], normalised, q times 1 / sqrt(dk); v: [n][dv];
   g: [n], the logarithm of decay; beta: [n]. S: [dv][dk], read and written; o: [n][dv]. Each row of S is independent of the
   others, and belongs to one element of v and o. */
static void delta_chunk(double *S, const double *q, const double *k, const double *v, const double *g, const double *beta,
                        int n, int dk, int dv, double *o) {
    double T[DELTA_CHUNK_MOST][DELTA_CHUNK_MOST], decay[DELTA_CHUNK_MOST][DELTA_CHUNK_MOST];
    double entry[DELTA_CHUNK_MOST], x[DELTA_CHUNK_MOST], u[DELTA_CHUNK_MOST];
    delta_chunk_decay(decay, g, n);
    delta_chunk_inverse(T, k, beta, n, dk);
    for (int i = 0; i < n; i++) entry[i] = exp(g[0]) * decay[i][0];            /* e^{G_i} */
    for (int d = 0; d < dv; d++) {
        double *row = S + d * dk;
        for (int i = 0; i < n; i++) x[i] = v[i * dv + d] - entry[i] * delta_chunk_dot(row, k + i * dk, dk);
        for (int i = 0; i < n; i++) {
            u[i] = 0;
            for (int j = 0; j <= i; j++) u[i] += T[i][j] * decay[i][j] * beta[j] * x[j];
        }
        for (int i = 0; i < n; i++) {
            double sum = entry[i] * delta_chunk_dot(row, q + i * dk, dk);
            for (int j = 0; j <= i; j++) sum += decay[i][j] * delta_chunk_dot(q + i * dk, k + j * dk, dk) * u[j];
            o[i * dv + d] = sum;
        }
        for (int c = 0; c < dk; c++) {
            row[c] *= entry[n - 1];
            for (int j = 0; j < n; j++) row[c] += decay[n - 1][j] * u[j] * k[j * dk + c];
        }
    }
}

#endif
