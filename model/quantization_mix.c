/* model/quantization_mix.c: how checkpoints as they are published store their matrices, module by module: for a model without
   files. Knows modules and tensor encodings; must not know tensor names. */

/* The first four are one format in all large matrices, the others what is published: nvidia's mixed NVFP4, and that of experts
   alone; INT4 of all linear layers, and of experts; FP8_DYNAMIC. */
typedef struct quantization_mix {
    const char *name;
    enum encoding experts, shared, mixers, head, mtp;           /* experts or dense FFNs; the mixers' large projections; lm_head; the MTP layer */
} quantization_mix;

static const quantization_mix quantization_mixes[] = {      /* name, experts, shared, mixers, head, mtp */
    {"f32", ENCODING_F32, ENCODING_F32, ENCODING_F32, ENCODING_BF16, ENCODING_F32},
    {"f16", ENCODING_F16, ENCODING_F16, ENCODING_F16, ENCODING_BF16, ENCODING_F16},
    {"bf16", ENCODING_BF16, ENCODING_BF16, ENCODING_BF16, ENCODING_BF16, ENCODING_BF16},
    {"fp8", ENCODING_FP8_BLOCK, ENCODING_FP8_BLOCK, ENCODING_FP8_BLOCK, ENCODING_BF16, ENCODING_FP8_BLOCK},
    {"nvfp4", ENCODING_NVFP4, ENCODING_NVFP4, ENCODING_FP8_TENSOR, ENCODING_NVFP4, ENCODING_BF16},
    {"nvfp4-experts", ENCODING_NVFP4, ENCODING_BF16, ENCODING_BF16, ENCODING_BF16, ENCODING_BF16},
    {"int4", ENCODING_INT4_CT, ENCODING_INT4_CT, ENCODING_INT4_CT, ENCODING_BF16, ENCODING_BF16},
    {"int4-experts", ENCODING_GPTQ, ENCODING_BF16, ENCODING_BF16, ENCODING_BF16, ENCODING_BF16},
    {"fp8-channel", ENCODING_FP8_CHANNEL, ENCODING_FP8_CHANNEL, ENCODING_FP8_CHANNEL, ENCODING_BF16, ENCODING_BF16},
    {"mxfp4", ENCODING_MXFP4, ENCODING_BF16, ENCODING_BF16, ENCODING_BF16, ENCODING_BF16}};

enum { MIX_COUNT = sizeof quantization_mixes / sizeof *quantization_mixes, MIX_DEFAULT = 3 };      /* as most checkpoints are */

static const quantization_mix *mix_named(const char *name) {
    for (int i = 0; i < MIX_COUNT; i++)
        if (!strcmp(quantization_mixes[i].name, name)) return &quantization_mixes[i];
    return &quantization_mixes[MIX_DEFAULT];
}

/* How a matrix of a module is stored. kept: it is one that quantising leaves as it is (bind_kept). */
static enum encoding mix_encoding(const quantization_mix *mix, enum module_kind module, int kept) {
    if (module == MODULE_HEAD) return mix->head;
    if (kept) return ENCODING_BF16;
    if (module == MODULE_MTP) return mix->mtp;
    return module == MODULE_EXPERTS || module == MODULE_MLP ? mix->experts : module == MODULE_SHARED ? mix->shared : mix->mixers;
}
