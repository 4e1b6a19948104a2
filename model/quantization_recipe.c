/* model/quantization_recipe.c: how checkpoints as they are published store their matrices, module by module: for a model without
   files. Knows modules and tensor encodings; must not know tensor names. */

/* The first four are one format in all large matrices, the others what is published: nvidia's mixed NVFP4, and that of experts
   alone; INT4 of all linear layers, and of experts; FP8_DYNAMIC. */
typedef struct quantization_recipe {
    const char *name;
    enum encoding experts, shared, mixers, head, mtp;           /* experts or dense FFNs; the mixers' large projections; lm_head; the MTP layer */
} quantization_recipe;

static const quantization_recipe quantization_recipes[] = { /* name, experts, shared, mixers, head, mtp */
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

enum { RECIPE_COUNT = sizeof quantization_recipes / sizeof *quantization_recipes, RECIPE_DEFAULT = 3 }; /* as most checkpoints are */

static const quantization_recipe *recipe_named(const char *name) {
    for (int i = 0; i < RECIPE_COUNT; i++)
        if (!strcmp(quantization_recipes[i].name, name)) return &quantization_recipes[i];
    return &quantization_recipes[RECIPE_DEFAULT];
}

/* How a matrix of a module is stored. keep_precision: it is one that quantising leaves as it is (bind_kept). */
static enum encoding recipe_encoding(const quantization_recipe *recipe, enum module_kind module, int keep_precision) {
    if (module == MODULE_HEAD) return recipe->head;
    if (keep_precision) return ENCODING_BF16;
    if (module == MODULE_MTP) return recipe->mtp;
    if (module == MODULE_MLA && recipe->mixers == ENCODING_FP8_TENSOR) return ENCODING_BF16;      /* as NVIDIA leaves projections to latents */
    return module == MODULE_EXPERTS || module == MODULE_MLP ? recipe->experts : module == MODULE_SHARED ? recipe->shared : recipe->mixers;
}
