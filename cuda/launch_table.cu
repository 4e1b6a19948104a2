/* cuda/launch_table.cu: which kernel multiplies which token rows by which matrices: projections of a step, those of a pass, and a prompt's
   products. cuda/product_launch.cu reads it. Experts have a table of their own, layers/moe/decode_launch.cu. `mote bench -v` prints what steps, blocks and prompts take.

     token rows     matrices                                          kernel
     1              after a norm, as many tiles as there are blocks   gpu_project_fixed, slim: of FP8 blocks and 35B's hidden size
     1 to 4         of PROJECT_FIXED                                  gpu_project_fixed<.., SHAPE, 1>, <.., 2>, <.., 4>: gpu_fixed_rows
                    any                                               gpu_project<.., 1>, gpu_project<.., 4>
     5 to 64; fewer of which a block does not hold the fragments:
     to 8           any, if the clusters are all resident             gpu_batch_split
     to 64          less than BATCH_WIDE_TILES tiles for each SM      gpu_batch_narrow<n-tiles>: of 8, 16, 32, 64 rows
                    more                                              gpu_batch_wide<n-tiles>
     a prompt       of prefill_multiplies                             gemm_kernel<format, token rows of a tile>: gemm_width

   The first that takes all matrices of a projection runs it. Fixed shapes take no biases and no activation but SiLU(gate) up. */

/* Fixed shapes (cuda/tiles.cu) by format: most token rows after a norm, whose columns are the hidden size, and of other rows, whose columns are
   those of out_proj and o_proj; there are kernels for fewer rows, too, but three run through that of four. All formats of other rows share one
   kernel, and its registers. Each kernel costs everyone who builds some seconds. */
#define PROJECT_FIXED(X)        \
    X(nvfp4,     35b_a3b,   4, 0) \
    X(fp8_block, 35b_a3b,   4, 4) \
    X(bf16,      35b_a3b,   4, 4) \
    X(fp8_row,   35b_a3b,   4, 1) \
    X(int4,      35b_a3b,   4, 1) \
    X(nvfp4,     122b_a10b, 4, 0) \
    X(fp8_block, 122b_a10b, 4, 2) \
    X(bf16,      122b_a10b, 4, 2) \
    X(nvfp4,     nemotron,  1, 0) \
    X(fp8_block, nemotron,  1, 0) \
    X(bf16,      nemotron,  1, 0) \
    X(nvfp4,     flash_next, 1, 0) \
    X(fp8_block, flash_next, 1, 1) \
    X(bf16,      flash_next, 1, 1)

enum { BATCH_WIDE_TILES = 4 };

/* Most token rows of the kernels for a shape: of a format, and of any. */
template <class F, class SHAPE> __host__ __device__ constexpr int projects_fixed(bool normed) {
    int rows = 0;
#define ROWS_OF_LINE(format, shape, after_norm, other) \
    if (std::is_same<F, format_##format>::value && std::is_same<SHAPE, shape_##shape>::value) rows = normed ? after_norm : other;
    PROJECT_FIXED(ROWS_OF_LINE)
#undef ROWS_OF_LINE
    return rows;
}

template <class SHAPE> constexpr int most_projects_fixed(bool normed) {
    int most = 0;
#define ROWS_OF_LINE(format, shape, after_norm, other) \
    if (std::is_same<SHAPE, shape_##shape>::value && most < (normed ? after_norm : other)) most = normed ? after_norm : other;
    PROJECT_FIXED(ROWS_OF_LINE)
#undef ROWS_OF_LINE
    return most;
}
