// Tests of the checkpoint reader: the container, whole folders made wrong one way at a time, large ones; and
// of what opening does inside: how much context fits, synthetic weights, experts at equal distances.
// Usage: test_checkpoint [DATA], from the top of the repository; DATA is the unpacked data folder.
//
// Parts
//   checkpoint_container.c   the container, 134 safetensors files
//   checkpoint_tensors.c     folders whose tensors and shards were made wrong (config.json: test_config)
//   checkpoint_fused.c       matrices that are parts of a fused one
//   checkpoint_rows.c        tables that stay in their files
//   checkpoint_latent.c      DeepSeek V3, GLM-4.7-Flash and their MTP layer
//   checkpoint_laguna.c      Laguna
//   checkpoint_gemma4.c      Gemma 4
//   checkpoint_nemotron.c    Nemotron 3 Nano, as ModelOpt stores it
//   checkpoint_text.c        tokenizer, template and generation_config.json made wrong
//   checkpoint_large.c       large checkpoints
//   checkpoint_dense.c       dense models, made of fixtures
//   checkpoint_autoround.c   dense models as AutoRound writes them
//   checkpoint_forms.c       families' checkpoints as others than their makers store them
//   here                     inside: plans and synthetic weights

#include "inside.h"
#include "api.h"
#include "folders.h"

#include "checkpoint_container.c"
#include "checkpoint_tensors.c"
#include "checkpoint_finite.c"
#include "checkpoint_laguna.c"
#include "checkpoint_gemma4.c"
#include "checkpoint_fused.c"
#include "checkpoint_rows.c"
#include "checkpoint_latent.c"
#include "checkpoint_text.c"
#include "checkpoint_large.c"
#include "checkpoint_dense.c"
#include "checkpoint_autoround.c"
#include "checkpoint_forms.c"
#include "checkpoint_nemotron.c"

// ---- Inside: plans and synthetic weights -----------------------------------------------------------------------------

// The most context that fits into the memory of a context's plan is that one or, where it costs no more, a longer one.
static void test_fits(void) {
    static const char fixture[] = "tests/fixtures/bf16-as-3.5";
    mote_model *m = model_of(fixture, MOTE_EVERYTHING);
    mote_options o = {.device = "cpu"};
    mote_session_options so = {.threads = 2}, planned = so;
    EXPECT(MOTE_OK, session_options(m, &so, &so, &failure));
    mote_session *s = session_shell(m, &so, 0, &failure);
    if (!CHECK(s != NULL, "a session")) return;
    for (int context = 1, most = m->report.info.context_max; context <= most; context += 1 + context / 3) {
        mote_memory p;
        planned.context = context;
        EXPECT(MOTE_OK, mote_plan(fixture, &o, &planned, &p, &failure));
        uint64_t session = p.total - p.weights;
        uint64_t less = session - 1;
        int fits = context_that_fits(s, &session), one_less = context_that_fits(s, &less);
        CHECK(fits >= context && one_less < context, "context %d: %d fit, with a byte less %d", context, fits, one_less);
    }
    CHECK(context_that_fits(s, &(uint64_t){0}) == 0, "something fits into nothing");
    session_free(s);
    mote_close(m);
}

// lm_head turned into FP8: the codes and scales of the checkpoint's BF16, block by block, also of drafts; a tied one is the embedding, or a
// copy where the head alone is turned: then all else is as it was.
static void test_quantised_head(const char *dir, int quantize) {
    mote_options o = {.parts = MOTE_WEIGHTS_ONLY, .device = "cpu", .quantize = quantize};
    const int alone = quantize == MOTE_QUANTIZE_HEAD_FP8;
    mote_model *m = NULL, *plain = model_of(dir, MOTE_WEIGHTS_ONLY);
    EXPECT(MOTE_OK, mote_open(dir, &o, &m, &failure));
    if (!m) return;
    const matrix *w = &m->lm_head, *of = &plain->lm_head;
    const uint16_t *from = (const uint16_t *)of->component[CODES];
    const uint8_t *code = (const uint8_t *)w->component[CODES];
    const float *scale = (const float *)w->component[SCALES];
    const int across = (w->cols + 127) / 128;
    int wrong = 0;
    CHECK(m->embed_tokens.format == FORMAT_BF16 && of->format == FORMAT_BF16 && m->embed_tokens.rows == w->rows, "%s: another embedding", dir);
    if (m->c.tied && !alone) CHECK(w->format == FORMAT_BF16 && code == m->embed_tokens.component[CODES], "%s: a tied head is turned", dir);
    else if (CHECK(w->format == FORMAT_FP8_BLOCK && w->rows == of->rows && w->cols == of->cols, "%s: the head is %s", dir, formats[w->format]->name)) {
        float most[16] = {0};                                /* of blocks */
        CHECK((w->rows + 127) / 128 * across <= (int)COUNT(most), "%s: more blocks", dir);
        for (int i = 0; i < w->rows * w->cols; i++) {
            float *largest = &most[i / w->cols / 128 * across + i % w->cols / 128];
            *largest = fmaxf(*largest, fabsf(float_of_bf16(from[i])));
        }
        for (int i = 0; i < w->rows * w->cols; i++) {
            const int block = i / w->cols / 128 * across + i % w->cols / 128;
            wrong += scale[block] != most[block] / 448 || code[i] != fp8_of_float(float_of_bf16(from[i]) / scale[block]);
        }
        CHECK(!wrong, "%s: %d of %d x %d numbers of the head are others", dir, wrong, w->rows, w->cols);
        CHECK(!m->has_mtp || (m->draft_head.format == w->format && m->draft_head.component[CODES] == w->component[CODES] &&
                              m->draft_head.component[SCALES] == w->component[SCALES]), "%s: drafts have another head", dir);
    }
    const mote_info *a = mote_model_info(m), *b = mote_model_info(plain);
    const uint64_t head = (uint64_t)w->rows * (uint64_t)w->cols, scales = (uint64_t)((w->rows + 127) / 128 * across) * sizeof *scale;
    const uint64_t row = m->c.tied && alone ? (uint64_t)w->cols : 0;                    /* of the embedding, beside the head */
    CHECK(a->parameters == b->parameters && a->active_parameters == b->active_parameters + row, "%s: other parameters", dir);
    if (alone) {
        CHECK(a->weight_bytes == (m->c.tied ? b->weight_bytes + head : b->weight_bytes - head) + scales, "%s: other bytes", dir);
        CHECK(a->weight_bytes_per_token < b->weight_bytes_per_token, "%s: a token reads no less", dir);
    }
    mote_close(m);
    mote_close(plain);
}

// A head that has no BF16 to be turned is refused by its tensor.
static void test_other_heads(void) {
    static const char *const dirs[] = {"tests/fixtures/f32-tied", "tests/fixtures/f16-all-delta"};
    for (int i = 0; i < (int)COUNT(dirs); i++) {
        const mote_options o = {.parts = MOTE_DESCRIPTION, .device = "cpu", .quantize = MOTE_QUANTIZE_HEAD_FP8};
        mote_model *m = NULL;
        EXPECT(MOTE_EUNSUPPORTED, mote_open(dirs[i], &o, &m, &failure));
        CHECK(strstr(failure.message, i ? "lm_head.weight: a head of F16" : "embed_tokens.weight: a head of F32"), "%s", failure.message);
    }
}

// The spread of what is made up, and codes that are no NaN.
static void test_synthetic_values(void) {
    double bf16 = 0, fp8 = 0;
    int wrong = 0, n = 1 << 16;
    for (uint32_t i = 0; i < (uint32_t)n; i++) {
        float w = float_of_bf16(synthetic_bf16(7, i)), s = synthetic_scale(9, i);
        uint8_t code = synthetic_fp8(8, i);
        float v = fp8_bits(code) * FP8_BITS_SCALE;
        int bell = synthetic_bell(8, i), clipped = bell > 448 ? 448 : bell < -448 ? -448 : bell;
        wrong += (code & 0x7f) == 0x7f || !(fabsf(v - (float)clipped) <= fabsf((float)clipped) / 16);
        wrong += !(s > 0 && s < 128);
        bf16 += (double)w * w;
        fp8 += (double)(v * s) * (v * s);
    }
    CHECK(!wrong, "%d wrong FP8 codes or scales", wrong);
    CHECK(fabs(sqrt(bf16 / n) - 0.02) < 0.002 && fabs(sqrt(fp8 / n) - 0.02) < 0.006, "spread %g in BF16, %g in FP8",
          sqrt(bf16 / n), sqrt(fp8 / n));
}

// All that belongs to an expert lies as far from expert 0's, which GPUs rely on; wherever that is. moved: expert 1 and the last change places.
static void test_distances(const char *name, moe_weights *w, int moved) {
    const int E = w->shape.experts;
    matrix *const all[3] = {w->gate_proj, w->up_proj, w->down_proj};
    for (int i = 0; i < 3 && moved; i++) {
        const matrix first = all[i][1];
        all[i][1] = all[i][E - 1];
        all[i][E - 1] = first;
    }
    for (int e = 0; e < E; e++) {
        const int64_t distance = moe_distance(w, e);
        CHECK(e ? distance > 0 : !distance, "%s: expert %d is at %lld", name, e, (long long)distance);
        CHECK((const char *)w->down_proj[0].component[CODES] + distance == (const char *)w->down_proj[e].component[CODES],
              "%s: expert %d is elsewhere", name, e);
    }
}

// What is wrong with an expert is seen.
static void test_wrong_places(const char *name, moe_weights *w) {
    const int e = w->shape.experts - 2;
    const matrix up = w->up_proj[e], down = w->down_proj[e];
    w->up_proj[e].format = FORMAT_F16;
    CHECK(moe_distance(w, e) == -1, "%s: two formats have a distance", name);
    w->up_proj[e] = up;
    w->down_proj[e].component[CODES] = w->down_proj[0].component[CODES];
    CHECK(moe_distance(w, e) == -1, "%s: a matrix of another expert", name);
    w->down_proj[e] = down;
    w->down_proj[e].bias = (const float *)down.component[CODES];
    CHECK(moe_distance(w, e) == -1, "%s: a bias that expert 0 has not", name);
    w->down_proj[0].bias = (const float *)w->down_proj[0].component[CODES];
    CHECK(moe_distance(w, e) > 0, "%s: biases as far apart", name);
    w->down_proj[e].bias++;
    CHECK(moe_distance(w, e) == -1, "%s: a bias that is elsewhere", name);
}

// Every synthetic model has a description, of all its layers and of the first ones, which are the same.
static void test_presets(void) {
    for (int i = 0; i < PRESETS + PRESET_CONFIGS; i++) {
        const char *name = i < PRESETS ? presets[i].name : preset_configs[i - PRESETS].name;
        const int layers = i < PRESETS ? presets[i].layers : preset_configs[i - PRESETS].layers;
        mote_options o = {.device = "cpu", .parts = MOTE_DESCRIPTION};
        char few[64], more[64];
        mote_model *whole = NULL, *part = NULL, *none = NULL;
        snprintf(few, sizeof few, "%s:bf16:2", name);
        snprintf(more, sizeof more, "%s:bf16:%d", name, layers + 1);
        EXPECT(MOTE_OK, mote_open_synthetic(name, &o, &whole, &failure));
        EXPECT(MOTE_OK, mote_open_synthetic(few, &o, &part, &failure));
        EXPECT(MOTE_EINVAL, mote_open_synthetic(more, &o, &none, &failure));
        if (whole && part) {
            CHECK(whole->c.layers == layers && part->c.layers == 2 && whole->has_mtp == part->has_mtp, "%s: %d and %d layers", name, whole->c.layers,
                  part->c.layers);
            for (int k = 0; k < 2; k++) CHECK(!memcmp(&whole->c.layer[k], &part->c.layer[k], sizeof *part->c.layer), "%s: another layer %d", name, k);
            CHECK(!memcmp(&whole->c.layer[layers], &part->c.layer[2], sizeof *part->c.layer), "%s: another MTP layer", name);
        }
        mote_close(whole);
        mote_close(part);
    }
}

// The same name makes the same bytes.
static void test_synthetic(const char *name) {
    mote_options o = {.device = "cpu"};
    mote_model *m = NULL, *again = NULL;
    EXPECT(MOTE_OK, mote_open_synthetic(name, &o, &m, &failure));
    EXPECT(MOTE_OK, mote_open_synthetic(name, &o, &again, &failure));
    if (m && again) {
        moe_weights *w = &m->layers[1].ffn.w.moe;
        CHECK(m->arena_size == again->arena_size && !memcmp(m->arena, again->arena, m->arena_size), "%s: differs", name);
        test_distances(name, w, 0);
        test_distances(name, w, 1);
        test_wrong_places(name, w);
    }
    mote_close(m);
    mote_close(again);
}

// gate_proj and up_proj of a dense FFN are stored alike, which GPUs rely on, or not.
static void test_pairs(const char *name) {
    mote_options o = {.device = "cpu"};
    mote_model *m = NULL;
    EXPECT(MOTE_OK, mote_open_synthetic(name, &o, &m, &failure));
    if (!m) return;
    mlp_weights *w = &m->layers[1].ffn.w.mlp;
    CHECK(m->layers[1].ffn.kind == LAYER_MLP && mlp_pairs(w), "%s: no pair", name);
    w->up_proj.block_cols = 32;
    CHECK(!mlp_pairs(w), "%s: a pair with other groups", name);
    w->up_proj.block_cols = w->gate_proj.block_cols;
    w->up_proj.format = FORMAT_BF16;
    CHECK(!mlp_pairs(w), "%s: a pair of two formats", name);
    mote_close(m);
}

int main(int argc, char **argv) {
    test_main_begin("test_checkpoint", argc, argv);
    if (!temp_open()) return test_main_end();
    test_container();
    test_container_generator();
    test_tensors();
    test_quantised();
    test_not_finite();
    test_gpt_oss();
    test_gpt_oss_rope();
    test_laguna_tensors();
    test_laguna_keys();
    test_laguna_layers();
    test_gemma4_tensors();
    test_gemma4_single("experts");
    test_gemma4_single("moe.experts");
    test_gemma4_keys();
    test_gemma4_layers();
    test_fused();
    test_tables();
    test_latent();
    test_latent_mtp();
    test_shards();
    test_without_mtp();
    test_tied();
    test_prefixes();
    test_cancel();
    test_text();
    test_large_index();
    test_large_tokenizer();
    test_fits();
    test_quantised_head("tests/fixtures/bf16-as-3.5", MOTE_QUANTIZE_FP8);
    test_quantised_head("tests/fixtures/bf16-as-3.5", MOTE_QUANTIZE_HEAD_FP8);
    test_quantised_head("tests/fixtures/families/gpt-oss-bf16", MOTE_QUANTIZE_FP8);
    test_quantised_head("tests/fixtures/families/gpt-oss-bf16", MOTE_QUANTIZE_HEAD_FP8);
    test_quantised_head("tests/fixtures/families/gemma4", MOTE_QUANTIZE_FP8);
    test_quantised_head("tests/fixtures/families/gemma4", MOTE_QUANTIZE_HEAD_FP8);
    test_other_heads();
    test_synthetic_values();
    test_presets();
    test_synthetic("tiny:fp8");
    test_synthetic("tiny:bf16");
    test_synthetic("tiny:nvfp4");
    test_synthetic("tiny:nvfp4-experts");
    test_synthetic("tiny:int4");
    test_synthetic("tiny:int4-experts");
    test_synthetic("tiny:fp8-channel");
    test_pairs("tiny-dense:int4");
    test_dense_stored();
    test_autoround();
    test_gpt_oss_forms();
    test_gpt_oss_forms_damaged();
    test_family_forms();
    test_gemma4_forms();
    test_nemotron_forms();
    test_nemotron_mixed();
    test_nemotron_mixed_damaged();
    temp_close();
    return test_main_end();
}
