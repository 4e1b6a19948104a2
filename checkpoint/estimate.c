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

/* The quantization recipe of a checkpoint, by its quant_method and format; NULL: it is not known. */
static const char *estimate_quantised(const json *j, uint32_t q) {
    static const struct { const char *method, *format, *recipe; } known[] = {
        {"fp8", NULL, "fp8"}, {"modelopt", NULL, "nvfp4"}, {"compressed-tensors", "float-quantized", "fp8-channel"},
        {"compressed-tensors", "pack-quantized", "int4"}, {"compressed-tensors", NULL, "nvfp4"}, {"gptq", NULL, "int4-experts"},
        {"awq", NULL, "int4-experts"}, {"auto-round", NULL, "int4-experts"}, {"mxfp4", NULL, "mxfp4"}, {"fbgemm_fp8", NULL, "fp8-channel"}};
    uint32_t method = json_get(j, q, "quant_method"), format = json_get(j, q, "format");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if ((method ? json_equals(j, method, known[i].method) : !i) &&
            (!known[i].format || (format && json_equals(j, format, known[i].format)))) return known[i].recipe;
    return NULL;
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
    if (!name)
        code = fail(err, MOTE_EUNSUPPORTED, "%s: there are no weights, and how this quantisation stores them is unknown", dir);
    else *recipe = recipe_named(name);
    json_free(&j);
    return code;
}
