/* checkpoint/estimate.c: what is known of a checkpoint without its weights: of a folder with config.json alone, the tensors that a
   published one has. For describing and planning only. */

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

/* The format that large matrices would have by config.json: what it says of quantisation, or its dtype. */
static int estimate_format(const char *dir, enum format *made, mote_error *err) {
    static const struct { const char *dtype; enum format format; } plain[] = {
        {"float32", FORMAT_F32}, {"float16", FORMAT_F16}, {"bfloat16", FORMAT_BF16}};
    buf file;
    json j;
    memset(&file, 0, sizeof file);
    int code = read_json(dir, "config.json", &file, &j, err);
    if (code) return code;
    uint32_t text = json_get(&j, 0, "text_config"), q = json_get(&j, 0, "quantization_config"), dtype = json_get(&j, text, "dtype");
    if (!q) q = json_get(&j, text, "quantization_config");
    if (!dtype) dtype = json_get(&j, text, "torch_dtype");
    if (!dtype) dtype = json_get(&j, 0, "dtype");
    if (!dtype) dtype = json_get(&j, 0, "torch_dtype");
    *made = FORMAT_BF16;
    for (int i = 0; i < 3 && dtype; i++)
        if (json_equals(&j, dtype, plain[i].dtype)) *made = plain[i].format;
    if (q && j.nodes[q].type == JSON_OBJECT) {
        uint32_t method = json_get(&j, q, "quant_method");
        *made = FORMAT_FP8_BLOCK;
        if (method && !json_equals(&j, method, "fp8"))
            code = fail(err, MOTE_EUNSUPPORTED, "%s: there are no weights, and how large they would be is known for FP8 and for "
                        "unquantised ones only", dir);
    }
    json_free(&j);
    buf_free(&file);
    return code;
}
