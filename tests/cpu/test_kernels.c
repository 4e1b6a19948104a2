// Tests of kernels.cu: each stage against a plain double-precision version of its formula, and against itself computed
// in other blocks and by other numbers of threads, bit for bit.
//
// Parts
//   kernels_numbers.c     numbers and threads
//   kernels_matrices.c    matrices, norms and angles
//   kernels_deltanet.c    DeltaNet
//   kernels_mamba.c       Mamba-2
//   kernels_attention.c   attention
//   kernels_mla.c         multi-head latent attention
//   kernels_moe.c         mixture of experts
//   here                  helpers

#include "../../kernels.cu"
#include "../../layers/definition.c"
#include "../../layers/mla/definition.c"
#include "../../layers/moe/definition.c"
#include "test.h"

// ---- Helpers --------------------------------------------------------------------------------------------------------

// Uniform in [-1, 1].
static float random_float(void) {
    return (float)((double)random_bits() / 2147483647.5 - 1);
}

static float *floats(size_t n) {
    return (float *)allocate(n * sizeof(float));
}

static float *random_floats(size_t n, float factor) {
    float *f = floats(n);
    for (size_t i = 0; i < n; i++) f[i] = factor * random_float();
    return f;
}

static int same_bits(const float *a, const float *b, size_t n) {
    return !memcmp(a, b, n * sizeof *a);
}

// Largest |a - b| as a share of the largest |b|; infinite when anything is not finite.
static double distance(const float *a, const double *b, size_t n) {
    double worst = 0, size = 1e-30;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) return INFINITY;
        worst = fmax(worst, fabs(a[i] - b[i]));
        size = fmax(size, fabs(b[i]));
    }
    return worst / size;
}

#include "kernels_numbers.c"
#include "kernels_nibbles.c"
#include "kernels_matrices.c"
#include "kernels_deltanet.c"
#include "kernels_mamba.c"
#include "kernels_attention.c"
#include "kernels_mla.c"
#include "kernels_moe.c"

int main(int argc, char **argv) {
    test_main_begin("test_kernels", argc, argv);
    pool *pools[3] = {pool_open(1), pool_open(2), pool_open(test_brief ? 2 : 3)};        // more than there are cores take long to wait for each other
    if (!CHECK(pools[0] && pools[1] && pools[2], "three pools")) return test_main_end();
    test_fp8_codes();
    test_half_codes();
    test_e4m3_vectors();
    test_block_fp8_vector();
    test_pools();
    test_matrix_rows();
    test_dots();
    test_linears(pools);
    test_limbs();
    test_lane_products(0);
    test_quarter_products(0, CPU_UINT4);
    test_quarter_products(0, CPU_E2M1_E8M0);
#ifdef LEVELS
    test_levels();
#endif
    test_project(pools);
    test_embed();
    test_activations();
    test_norms();
    for (int dim = 2; dim <= 64; dim *= 2)
        for (int plane = 0; plane < 2; plane++) test_rotary(dim, dim * 37 - 74, dim % 3 ? 1e4f : 1e7f, plane);
    for (int ratio = 1; ratio <= 4; ratio++)
        for (int taps = 1; taps <= 5; taps++) test_deltanet(1 + taps % 2, ratio, 8 + 6 * ratio, 7 + taps, taps, pools);
    test_deltanet(1, 2, 16, 8, 30, pools);
    test_deltanet(2, 2, 128, 128, 4, pools);
    test_rejected_rows(pools[0]);
    test_gated_norm(pools[1]);
    for (int taps = 1; taps <= 5; taps++) test_mamba(1 + taps % 3, taps, 12 + 13 * taps, 5 + taps, taps, pools);
    test_mamba(2, 4, 128, 64, 4, pools);
    test_mamba(2, 1, 32, 3, 12, pools);
    test_kv_codes();
    test_exp_below();
    test_attention(1, 1, 16, 16, 1, 40, 0, pools);
    test_attention(2, 1, 24, 6, 1, 40, 0, pools);
    test_attention(4, 4, 20, 10, 0, 40, 0, pools);
    test_attention(8, 2, 32, 8, 1, 40, 0, pools);
    test_attention(6, 2, 66, 2, 0, 40, 0, pools);
    test_attention(2, 1, 128, 64, 1, 40, 0, pools);
    test_attention(8, 2, 64, 64, 0, 40, 0, pools);
    test_attention(4, 1, 128, 128, 0, 40, 0, pools);
    test_attention(2, 1, 512, 512, 0, 40, 0, pools);
    test_attention(4, 2, 512, 128, 1, SPAN + 8, 0, pools);
    test_attention(5, 1, 20, 4, 1, 2 * SPAN + 8, 0, pools);
    test_attention(4, 2, 16, 16, 0, 40, 1, pools);
    test_attention(8, 2, 16, 16, 0, 40, 7, pools);
    test_attention(6, 2, 16, 16, 0, 40, 1000, pools);         // a window that ends nothing: sinks alone
    test_attention(5, 1, 20, 4, 1, 2 * SPAN + 100, 24, pools);       // spans that are before the window
    test_attention(4, 1, 16, 16, 1, 2 * SPAN + 100, SPAN + 24, pools);
    test_kv_scales(pools);
    test_attention_extremes(pools[0]);
    test_mla_kind(pools);
    test_moe_choose();
    test_moe_routers();
    test_moe_choose_nan();
    test_moe_list_assignments();
    test_moe(32, 5, 2, 12, 20, 0, pools);
    test_moe(40, 1, 1, 33, 8, 0, pools);
    test_moe(17, 16, 4, 7, 7, 0, pools);
    test_moe(24, 3, 3, 16, 1, 0, pools);
    test_moe(48, 5, 2, 16, 144, 1, pools);
    test_moe(32, 4, 2, 144, 16, 1, pools);
    test_moe_limits();
    test_index_select();
    test_index_spans(DTYPE_F32, pools[0]);
    test_index_spans(DTYPE_BF16, pools[1]);
    for (int i = 0; i < 3; i++) pool_close(pools[i]);
    return test_main_end();
}
