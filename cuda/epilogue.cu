/* cuda/epilogue.cu: what becomes of a product's sum before it is stored, for all products of a step, a pass and a prompt. Knows matrices and
   tags; must not know how a sum came about, nor layers.

     y = factor sum + before                      factor: of the row: 1 / its root mean square, an activation scale, a router's weight
     before = residual + bias                     what y has had, if the output is added; the matrix's bias, if it has one
     h = weight activate(gate, up)                of a pair, gate and up as y without a residual

   One fused multiply-add, so that kernels which give a row the same sum give it the same bits; with neither bias nor residual it is a product,
   with factor 1 a sum. `before` is loaded while the sum is still being computed.

   Fixed-shape kernels take no bias and no activation but SiLU(gate) up (ANY: false): asking costs them registers, and who launches them
   asks epilogue_is_plain. Those of many rows ask once for a tile. Elsewhere what is off is a uniform branch on a parameter. */

/* How a result goes to its place. A sublayer's last product is added to the residual x, tagged; or it is stored, where the walk norms, scales
   and adds it (layers/kinds.cu), or where a rank's part of a sum lies; that of one row is given to the other ranks, too. Other products are
   stored. */
enum output { OUTPUT_STORE, OUTPUT_ADD, OUTPUT_GIVE };

/* SiLU(gate) up; with a limit gate is at most that, and up between minus that and that; with an alpha gate sigmoid(alpha gate) (up + 1);
   of other functions GELU(gate) up or ReLU(gate) up. 0: none of these. */
enum activation_function { ACTIVATION_SILU, ACTIVATION_GELU, ACTIVATION_RELU };
typedef struct activation { float limit, alpha; enum activation_function function; } activation;

/* Of a launch's products, in its kernel's parameters. */
typedef struct epilogue {
    enum output output;
    activation act;              /* of pairs */
    peer_gift gift;              /* OUTPUT_GIVE */
} epilogue;

/* Of the last product of a sublayer, which goes to rows->to. What has a bias is not given: the place of the lane's number is taken. */
static inline epilogue epilogue_of_output(const gpu_rows *rows, int biased) {
    const int gives = rows->gives && !biased;
    epilogue e = {.output = gives ? OUTPUT_GIVE : rows->to == rows->x ? OUTPUT_ADD : OUTPUT_STORE, .act = {}, .gift = {}};
    if (gives) e.gift = peers_gift(rows->q->peer);
    rows->q->given = gives;
    return e;
}

/* For kernels of many rows, which give nothing. */
static inline epilogue epilogue_kept(gpu_queue *q, const epilogue *of) {
    epilogue e = *of;
    if (e.output != OUTPUT_GIVE) return e;
    e.output = OUTPUT_STORE;
    q->given = 0;
    return e;
}

/* SiLU(gate) up? */
__host__ __device__ __forceinline__ bool activation_is_plain(const activation &a) {
    return a.limit == 0 && a.alpha == 0 && a.function == ACTIVATION_SILU;
}

/* Whether what asks for nothing else (ANY: false) takes it, with these matrices. */
__host__ __device__ __forceinline__ bool epilogue_is_plain(const epilogue &e, const gpu_matrix &w, const gpu_matrix &up) {
    return activation_is_plain(e.act) && !w.bias && !up.bias;
}

/* Bias of a row; 0: there is none. offset: bytes from w, an expert's matrix, to another expert's. */
template <bool ANY> __device__ __forceinline__ float epilogue_bias(const gpu_matrix &w, int64_t offset, int row) {
    return ANY && w.bias ? __ldg((const float *)((const char *)w.bias + offset) + row) : 0;
}

/* What the sum of an element of `row`, which goes to *y, is added to; of what is given, the lane's number in its place. */
template <bool ANY> __device__ __forceinline__ float epilogue_before(const epilogue &e, const gpu_matrix &w, int row, const float *y) {
    if (e.output == OUTPUT_GIVE) return __uint_as_float(peer_gift_number(e.gift, row));
    const float residual = e.output == OUTPUT_ADD ? __ldcg(y) : 0;
    return ANY && w.bias ? __fadd_rn(residual, __ldg(w.bias + row)) : residual;
}

__device__ __forceinline__ float epilogue_sum(float sum, float factor, float before) {
    return __fmaf_rn(sum, factor, before);
}

/* Stores an element. */
__device__ __forceinline__ void epilogue_store(float *y, float sum, float factor, float before, const gpu_tag &tag) {
    store_tagged(y, epilogue_sum(sum, factor, before), tag);
}

/* The same of an element of `row` of a step's output, which may be given. */
__device__ __forceinline__ void epilogue_output(const epilogue &e, float *y, int row, float sum, float factor, float before, const gpu_tag &tag) {
    const bool gives = e.output == OUTPUT_GIVE;
    const float all = epilogue_sum(sum, factor, gives ? 0 : before);
    if (gives) peer_give(e.gift, row, all, __float_as_uint(before));
    store_tagged(y, all, tag);
}

/* As the CPU's gelu. */
__device__ __forceinline__ float gpu_gelu(float x) {
    const float cube = __fmul_rn(__fmul_rn(x, x), x);
    return __fmul_rn(x, gpu_sigmoid(__fmul_rn(1.59576912f, __fmaf_rn(0.044715f, cube, x))));
}

/* As ReLU(gate) up of a matrix that is both. */
__device__ __forceinline__ float squared_relu(float x) {
    return x < 0 ? 0 : __fmul_rn(x, x);
}

/* As moe_activate: what is no number stays so. */
template <bool ANY> __device__ __forceinline__ float activate(const activation &a, float gate, float up) {
    if (ANY && a.limit != 0) {
        gate = gate > a.limit ? a.limit : gate;
        up = up > a.limit ? a.limit : up < -a.limit ? -a.limit : up;
    }
    if (ANY && a.function == ACTIVATION_RELU) return gate < 0 ? 0 : __fmul_rn(gate, up);
    if (ANY && a.function == ACTIVATION_GELU) return __fmul_rn(gpu_gelu(gate), up);
    if (ANY && a.alpha != 0) return __fmul_rn(__fmul_rn(gate, gpu_sigmoid(__fmul_rn(a.alpha, gate))), __fadd_rn(up, 1));
    return __fmul_rn(gpu_silu(gate), up);
}

/* h of a row of a pair, from both sums and their factor; offset: as in epilogue_bias. */
template <bool ANY>
__device__ __forceinline__ float epilogue_pair(const activation &a, const gpu_matrix &gate, const gpu_matrix &up, int64_t offset, int row,
                                               float gate_sum, float up_sum, float factor) {
    return activate<ANY>(a, epilogue_sum(gate_sum, factor, epilogue_bias<ANY>(gate, offset, row)),
                         epilogue_sum(up_sum, factor, epilogue_bias<ANY>(up, offset, row)));
}
