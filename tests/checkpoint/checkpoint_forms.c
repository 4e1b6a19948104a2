// checkpoint_forms.c: families' checkpoints as others than their makers store them: stacks of experts taken apart, and matrices in each
// encoding that is published. Made of the fixtures in tests/fixtures/families. Part of test_checkpoint.

// A part of that name, type and shape, all zero.
static part *form_part(parts *all, const char *type, const char *shape, const char *name, ...) __attribute__((format(printf, 4, 5)));
static part *form_part(parts *all, const char *type, const char *shape, const char *name, ...) {
    va_list args;
    if (!CHECK(all->n < (int)COUNT(all->list), "more than %d tensors", (int)COUNT(all->list))) exit(1);
    part *t = &all->list[all->n++];
    va_start(args, name);
    vsnprintf(t->name, sizeof t->name, name, args);
    va_end(args);
    part_set(t, type, shape);
    return t;
}

// Row `row`, or every `step`th from there on, of entry e of a stack in BF16, [E][cols][rows] or, of biases, [E][rows]; as name [rows / step][cols].
static void form_entry(parts *all, const part *stack, int e, int row, int step, const char *name) {
    const int bias = stack->dims == 2, rows = (int)stack->shape[bias ? 1 : 2], cols = bias ? 1 : (int)stack->shape[1];
    const uint16_t *from = (const uint16_t *)(const void *)stack->data + (size_t)e * (size_t)(rows * cols);
    char shape[40];
    snprintf(shape, sizeof shape, bias ? "%d" : "%d,%d", rows / step, cols);
    part *t = form_part(all, "BF16", shape, "%.159s", name);
    for (int r = 0; r < rows / step; r++)
        for (int c = 0; c < cols; c++) ((uint16_t *)(void *)t->data)[r * cols + c] = from[c * rows + row + r * step];
}

// What a stack of gpt-oss is taken apart to: a list of matrices, or gate, up and down one by one.
static void form_gpt_oss_stack(parts *all, const part *stack, const char *experts, const char *what, int single) {
    const int up = !strncmp(what, "gate_up", 7), bias = strstr(what, "_bias") != NULL;
    const char *end = bias ? "bias" : "weight";
    char name[400];
    for (int e = 0; e < (int)stack->shape[0]; e++)
        for (int half = 0; half < (single && up ? 2 : 1); half++) {
            if (!single) snprintf(name, sizeof name, "%s%s.%d.%s", experts, up ? "gate_up_projs" : "down_projs", e, end);
            else snprintf(name, sizeof name, "%s%d.%s.%s", experts, e, !up ? "down_proj" : half ? "up_proj" : "gate_proj", end);
            form_entry(all, stack, e, half, single && up ? 2 : 1, name);
        }
}

// gpt-oss in BF16 in the temporary folder, as Unsloth or (single) llm-compressor stores it.
static parts *form_gpt_oss(int single) {
    static const char stacks[] = ".mlp.experts.", router[] = ".mlp.router.";
    if (!temp_fixture("families/gpt-oss-bf16")) exit(1);
    parts *all = parts_read(F), *to = (parts *)calloc(1, sizeof *to);
    for (int i = 0; i < all->n; i++) {
        part *t = &all->list[i];
        const char *at = strstr(t->name, stacks), *r = strstr(t->name, router);
        char name[320];
        if (at) {
            snprintf(name, sizeof name, "%.*s", (int)(at - t->name) + (int)sizeof stacks - 1, t->name);
            form_gpt_oss_stack(to, t, name, at + sizeof stacks - 1, single);
            free(t->data);
            continue;
        }
        if (r) snprintf(name, sizeof name, "%.*slinear.%s", (int)(r - t->name) + (int)sizeof router - 1, t->name, r + sizeof router - 1);
        if (r && !single) snprintf(t->name, sizeof t->name, "%.159s", name);
        to->list[to->n++] = *t;
    }
    free(all);
    return to;
}

// Numbers of a quantised matrix with which its weights are about as large as the fixtures', of both signs: else sums cancel, and logits are what
// rounding makes of them.
static void form_tame(part *t, int codes) {
    for (size_t b = 0; !strcmp(t->type, "F8_E4M3") && b < t->size; b++)
        t->data[b] = (char)(0x30 | (codes ? random_int(0, 255) & 0x8f : t->data[b] & 7));
    for (size_t b = 1; !strcmp(t->type, "F16") && b < t->size; b += 2) t->data[b] = 0x24;
}

// Replaces the matrices whose names have this part by random ones in another encoding, where their sizes fit, and the router apart. Parts that
// may be left out are. Returns how many.
static int form_encode(parts *all, const char *of, enum encoding e) {
    const int n = all->n;
    int count = 0;
    for (int i = 0; i < n; i++) {
        part *plain = &all->list[i];
        char *end = strstr(plain->name, ".weight"), module[160];
        if (plain->dims != 2 || !strstr(plain->name, of) || strstr(plain->name, ".mlp.gate.") || !end || strcmp(end, ".weight")) continue;
        const int rows = (int)plain->shape[0], cols = (int)plain->shape[1], groups = format_has_groups(tensor_encodings[e]->format);
        const matrix w = {.rows = rows, .cols = cols, .block_rows = 128, .block_cols = !groups ? 128 : cols % 32 ? cols : 32};
        if (cols % tensor_encodings[e]->cols || rows % tensor_encodings[e]->rows) continue;
        count++;
        snprintf(module, sizeof module, "%.*s", (int)(end - plain->name), plain->name);
        for (int k = 0, first = 1; k < part_count(tensor_encodings[e]); k++) {
            const matrix_part *from = &tensor_encodings[e]->parts[k];
            uint64_t shape[PART_DIMS];
            char text[64] = "";
            const char *rest;
            if (from->optional) continue;
            const int dims = part_shape(from->shape, &w, shape, &rest);
            for (int d = 0; d < dims; d++)
                snprintf(text + strlen(text), sizeof text - strlen(text), "%s%llu", d ? "," : "", (unsigned long long)shape[d]);
            part *t = first ? plain : form_part(all, "U8", "0", "-");
            first = 0;
            snprintf(t->name, sizeof t->name, "%.140s%s", module, from->suffix);
            part_set(t, from->stored ? from->stored : "BF16", text);
            fused_numbers(t);
            form_tame(t, k == CODES);
            const float factor = strstr(from->suffix, "global") ? 16.0f : 0.0625f;       /* of NVFP4: weights as large as the fixtures' */
            if (k && !strcmp(t->type, "F32") && t->size == sizeof factor) memcpy(t->data, &factor, sizeof factor);
            for (size_t b = 0; !strcmp(t->type, "I64") && b < t->size; b += 16) memcpy(t->data + b, (int64_t[]){w.rows, w.cols}, 16);
        }
    }
    return count;
}

// What the CPU computes of the folder is what the definitions say; the module is of this dtype. A matrix in another one's place moves logits by
// about their standard deviation; float instead of double costs Gemma 4's fixture 1.7e-5 of it as it is.
static void check_form(const char *title, const char *module, const char *dtype) {
    mote_model *m = model_on("cpu", temp_dir, MOTE_WEIGHTS_ONLY);
    if (!m) return;
    check_dense_logits(title, m, 5e-5);
    for (int i = 0; i < m->report.info.module_count; i++)
        if (!strcmp(m->report.info.modules[i].name, module))
            CHECK(strstr(m->report.info.modules[i].dtype, dtype) != NULL, "%s: %s, not %s", title, m->report.info.modules[i].dtype, dtype);
    mote_close(m);
}

static void test_gpt_oss_forms(void) {
    static const struct { enum encoding e; const char *dtype; } published[] = {
        {ENCODING_FP8_CHANNEL, "FP8 per channel"}, {ENCODING_FP8_BLOCK_CT, "FP8"}, {ENCODING_NVFP4, "NVFP4"}, {ENCODING_NVFP4_CT, "NVFP4"},
        {ENCODING_INT4_CT, "INT4"}};
    for (int single = 0; single < 2; single++) {
        parts *all = form_gpt_oss(single);
        parts_write(all, F);
        check_logits(single ? "experts one by one" : "experts in lists", "families/gpt-oss-bf16", 0);
        for (size_t i = 0; i < COUNT(published); i++) {
            parts *coded = form_gpt_oss(single);
            form_encode(coded, ".mlp.experts.", published[i].e);
            form_encode(coded, ".self_attn.", published[i].e);
            parts_write(coded, F);
            check_form(tensor_encodings[published[i].e]->name, "experts", published[i].dtype);
            parts_free(coded);
        }
        parts_free(all);
    }
}

// Damage to them is named.
static void test_gpt_oss_forms_damaged(void) {
    static const char list[] = "model.layers.1.mlp.experts.gate_up_projs.2.weight", up[] = "model.layers.1.mlp.experts.2.up_proj.bias";
    static const struct { int single; const char *drop, *needle; } cases[] = {
        {0, list, "gate_up_projs.2.weight is missing"}, {0, "model.layers.0.mlp.experts.down_projs.5.bias", "down_projs.5.bias is missing"},
        {0, "model.layers.0.mlp.experts.gate_up_projs.0.bias", "gate_up_proj is missing"}, {0, "model.layers.1.mlp.router.linear.bias", "router.linear.bias"},
        {1, up, "experts.2.up_proj.bias is missing"}, {1, "model.layers.0.mlp.experts.3.down_proj.weight", "experts.3.down_proj.weight is missing"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *needles[3] = {cases[i].needle};
        parts *all = form_gpt_oss(cases[i].single), *kept = (parts *)calloc(1, sizeof *kept);
        for (int k = 0; k < all->n; k++)
            if (strcmp(all->list[k].name, cases[i].drop)) kept->list[kept->n++] = all->list[k];
        CHECK(kept->n + 1 == all->n, "%s: not there", cases[i].drop);
        parts_write(kept, F);
        check_open(cases[i].needle, MOTE_WEIGHTS_ONLY, BAD, needles);
        free(kept);
        parts_free(all);
    }
}

static const enum encoding published_forms[] = {ENCODING_FP8_BLOCK, ENCODING_FP8_TENSOR, ENCODING_FP8_CHANNEL, ENCODING_NVFP4, ENCODING_NVFP4_CT,
                                                ENCODING_GPTQ, ENCODING_AWQ, ENCODING_INT4_CT};

// A checkpoint of DeepSeek, whose makers store FP8, without its scales and what config.json says of them.
static void form_plain(parts *all) {
    int n = 0;
    for (int i = 0; i < all->n; i++) {
        part *t = &all->list[i];
        char shape[40];
        if (strstr(t->name, "_scale_inv")) {
            free(t->data);
            continue;
        }
        snprintf(shape, sizeof shape, "%d,%d", (int)t->shape[0], (int)t->shape[1]);
        if (!strcmp(t->type, "F8_E4M3")) {
            part_set(t, "BF16", shape);
            for (size_t b = 0; b < t->size; b += 2) t->data[b] = (char)random_int(0, 255), t->data[b + 1] = (char)(0x3d | (random_int(0, 1) ? 0x80 : 0));
        }
        all->list[n++] = *t;
    }
    if (n < all->n) CHECK(temp_replace(CONFIG, "\"quant_method\": \"fp8\"", "\"quant_method\": \"compressed-tensors\""), "no quant_method");
    memset(&all->list[n], 0, (size_t)(all->n - n) * sizeof *all->list);
    all->n = n;
}

// Every family in each encoding that is published of such: all matrices of its layers but routers.
static void test_family_forms(void) {
    static const char *const families[] = {"laguna", "laguna-elements", "glm4-moe-lite", "deepseek-v3", "qwen3-moe", "gemma4-dense"};
    for (size_t i = 0; i < COUNT(families) * COUNT(published_forms); i++) {
        const enum encoding e = published_forms[i % COUNT(published_forms)];
        char folder[80], title[160];
        snprintf(folder, sizeof folder, "families/%s", families[i / COUNT(published_forms)]);
        snprintf(title, sizeof title, "%s in %s", folder, tensor_encodings[e]->name);
        if (!temp_fixture(folder)) continue;
        parts *all = parts_read(F);
        form_plain(all);
        const int matrices = form_encode(all, ".self_attn.", e) + form_encode(all, ".mlp.", e);
        CHECK(matrices > 0, "%s: no matrix fits", title);
        parts_write(all, F);
        check_form(title, "-", "");
        parts_free(all);
    }
}

// Gemma 4 with its experts one by one, as quantised checkpoints have them, under this name.
static parts *form_gemma4(const char *experts) {
    static const char stacks[] = ".experts.";
    if (!temp_fixture("families/gemma4")) exit(1);
    parts *all = parts_read(F), *to = (parts *)calloc(1, sizeof *to);
    for (int i = 0; i < all->n; i++) {
        part *t = &all->list[i];
        const char *at = strstr(t->name, stacks);
        if (!at) {
            to->list[to->n++] = *t;
            continue;
        }
        const int up = strstr(at, "gate_up") != NULL, rows = (int)t->shape[1] / (up ? 2 : 1), cols = (int)t->shape[2];
        const size_t size = (size_t)(rows * cols) * sizeof(uint16_t);
        char shape[40];
        snprintf(shape, sizeof shape, "%d,%d", rows, cols);
        for (int k = 0; k < (int)t->shape[0] * (up ? 2 : 1); k++) {
            const char *what = !up ? "down_proj" : k % 2 ? "up_proj" : "gate_proj";
            part *one = form_part(to, "BF16", shape, "%.*s.%s.%d.%s.weight", (int)(at - t->name), t->name, experts, up ? k / 2 : k, what);
            memcpy(one->data, t->data + (size_t)k * size, size);
        }
        free(t->data);
    }
    free(all);
    return to;
}

// nvidia's and RedHat's NVFP4, FP8 per channel, and others; BF16 has the stack's numbers.
static void test_gemma4_forms(void) {
    static const char *const names[] = {"experts", "moe.experts"};
    for (int i = 0; i < 2; i++) {
        parts *plain = form_gemma4(names[i]);
        parts_write(plain, F);
        check_logits(names[i], "families/gemma4", 0);
        parts_free(plain);
        for (size_t k = 0; k < COUNT(published_forms); k++) {
            parts *all = form_gemma4(names[i]);
            char title[80];
            snprintf(title, sizeof title, "gemma4 with %s in %s", names[i], tensor_encodings[published_forms[k]]->name);
            CHECK(form_encode(all, "experts.", published_forms[k]) == 3 * 6 * 3, "%s: other experts", title);
            if (i) form_encode(all, ".self_attn.", published_forms[k]);
            parts_write(all, F);
            check_form(title, "experts", tensor_encodings[published_forms[k]]->name);
            parts_free(all);
        }
    }
}
