/* checkpoint/estimate.c: what is known of a checkpoint without its weights: of a folder with config.json alone, how a
   published one of its kind stores them. For describing and planning only. */

/* Is there any weight file in the folder, be it only its header? */
static int folder_has_weights(const char *dir) {
    static const char end[] = ".safetensors";
    DIR *d = opendir(dir);
    int found = 0;
    for (struct dirent *entry; d && !found && (entry = readdir(d));) {
        size_t n = strlen(entry->d_name);
        found = n >= sizeof end - 1 && !strcmp(entry->d_name + n - (sizeof end - 1), end);
    }
    if (d) closedir(d);
    return found;
}

/* That of modelopt, whose config.json, or hf_quant_config.json alone, lists what is not quantised: attention or not. */
static const char *estimate_modelopt(const json *j, uint32_t q) {
    static const char *const lists[] = {"ignore", "exclude_modules"};
    const uint32_t algorithm = json_get(j, q, "quant_algo");
    if (algorithm && json_equals(j, algorithm, "FP8")) return "fp8-channel";
    for (int i = 0; i < 2; i++) {
        const uint32_t list = json_get(j, q, lists[i]), end = list && j->nodes[list].type == JSON_ARRAY ? j->nodes[list].next : 0;
        for (uint32_t node = list + 1; node < end; node = j->nodes[node].next) {
            char name[256];
            const size_t n = json_string(j, node, name, sizeof name - 1);
            name[n < sizeof name ? n : sizeof name - 1] = 0;
            if (matches_stars("*self_attn*", name) || matches_stars("*linear_attn*", name)) return "nvfp4-experts";
        }
    }
    return "nvfp4";
}

/* The quantization recipe of a checkpoint, by its quant_method and format; NULL: it is not known. */
static const char *estimate_quantised(const json *j, uint32_t q) {
    static const struct { const char *method, *format, *recipe; } known[] = {
        {"fp8", NULL, "fp8"}, {"compressed-tensors", "float-quantized", "fp8-channel"},
        {"compressed-tensors", "pack-quantized", "int4"}, {"compressed-tensors", NULL, "nvfp4"}, {"gptq", NULL, "int4-experts"},
        {"awq", NULL, "int4-experts"}, {"auto-round", NULL, "int4-experts"}, {"mxfp4", NULL, "mxfp4"}, {"fbgemm_fp8", NULL, "fp8-channel"}};
    uint32_t method = json_get(j, q, "quant_method"), format = json_get(j, q, "format");
    if (method && json_equals(j, method, "modelopt")) return estimate_modelopt(j, q);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if ((method ? json_equals(j, method, known[i].method) : !i) &&
            (!known[i].format || (format && json_equals(j, format, known[i].format)))) return known[i].recipe;
    return NULL;
}

/* What hf_quant_config.json says, which modelopt writes, and of which older checkpoints' config.json knows nothing. */
static int estimate_beside(const char *dir, const char **name, mote_error *err) {
    json j;
    const int code = read_json(dir, "hf_quant_config.json", &j, err);
    if (code) return code;
    const uint32_t q = json_get(&j, 0, "quantization");
    if (q && j.nodes[q].type == JSON_OBJECT) *name = estimate_modelopt(&j, q);
    json_free(&j);
    return MOTE_OK;
}

/* How large matrices would be stored by config.json: what it says of quantisation, or its dtype. */
static int estimate_recipe(const char *dir, const quantization_recipe **recipe, mote_error *err) {
    static const char *const plain[][2] = {{"float32", "f32"}, {"float16", "f16"}};
    const char *name = "bf16";
    json j;
    int code = read_json(dir, "config.json", &j, err);
    if (code) return code;
    uint32_t text = json_get(&j, 0, "text_config"), q = json_get(&j, 0, "quantization_config");
    uint32_t dtype = json_get(&j, text, "dtype");
    if (!q) q = json_get(&j, text, "quantization_config");
    if (!dtype) dtype = json_get(&j, text, "torch_dtype");
    if (!dtype) dtype = json_get(&j, 0, "dtype");
    if (!dtype) dtype = json_get(&j, 0, "torch_dtype");
    for (int i = 0; i < 2 && dtype; i++)
        if (json_equals(&j, dtype, plain[i][0])) name = plain[i][1];
    if (q && j.nodes[q].type == JSON_OBJECT) name = estimate_quantised(&j, q);
    else if (file_exists(dir, "hf_quant_config.json")) code = estimate_beside(dir, &name, err);
    if (!code && !name)
        code = fail(err, MOTE_EUNSUPPORTED, "%s: there are no weights, and how this quantisation stores them is unknown", dir);
    else if (!code) *recipe = recipe_named(name);
    json_free(&j);
    return code;
}
