// Tests of shapes: that each field of each table is in the fingerprint, in what the largest shape is widened to, and in the features that
// are asked for; and that what an executor does not do is refused by name.
// Usage: test_shapes, from the top of the repository.

#include "inside.h"
#include "api.h"
#include "field_tables.h"
#ifndef __CUDACC__
#include "diagnose/work.c"
#endif

// A model of three layers that has each kind of layer; the caller's to config_free.
static config model_of_all_kinds(void) {
    config c;
    memset(&c, 0, sizeof c);
    c.family = &model_families[0];
    c.layers = 3;
    c.layer = (config_layer *)allocate(4 * sizeof *c.layer);
    memset(c.layer, 0, 4 * sizeof *c.layer);
    c.layer[0] = config_layer_of(LAYER_DELTANET, LAYER_MOE);
    c.layer[1] = c.layer[3] = config_layer_of(LAYER_ATTENTION, LAYER_MLP);
    c.layer[2] = config_layer_of(LAYER_MLA, LAYER_MOE);
    return c;
}

// Sets field i of a shape to a value that it had not.
static void change_field(void *shape, const shape_field *row, int i) {
    const int32_t whole = (int32_t)shape_value(shape, row, i) + 1;
    const float real = (float)shape_value(shape, row, i) + 0.5f;
    memcpy((char *)shape + 4 * i, row[i].is_float ? (const void *)&real : (const void *)&whole, 4);
}

// Each field of a model, in each layer, is in its fingerprint; so are the kinds of layers, their order and the family.
static void shapes_fingerprint(void) {
    config c = model_of_all_kinds();
    const uint64_t before = config_fingerprint(&c);
    for (int i = 0; i < CONFIG_FIELD_COUNT; i++) {
        config other = c;
        if (!strcmp(config_fields[i].name, "layers")) continue;       // a change of it reads other layers
        change_field(&other, config_fields, i);
        CHECK(config_fingerprint(&other) != before, "config.%s", config_fields[i].name);
    }
    for (int l = 0; l <= c.layers; l++) {
        config_layer *of = &c.layer[l], kept = *of;
        const struct { void *shape; int table; } all[] = {{&of->mixer.of, of->mixer.kind}, {&of->ffn.of, of->ffn.kind}, {&of->rope, OF_ROPE},
                                                          {&of->mixer.residual, OF_RESIDUAL}, {&of->ffn.residual, OF_RESIDUAL}};
        for (size_t k = 0; k < COUNT(all); k++)
            for (int i = 0; i < field_tables[all[k].table].count; i++) {
                change_field(all[k].shape, field_tables[all[k].table].row, i);
                CHECK(config_fingerprint(&c) != before, "layer %d: %s.%s", l, field_tables[all[k].table].name, field_tables[all[k].table].row[i].name);
                *of = kept;
            }
    }
    CHECK(config_fingerprint(&c) == before, "a model is its own");
    c.layer[0].mixer.kind = LAYER_ATTENTION;
    CHECK(config_fingerprint(&c) != before, "another mixer");
    c.layer[0].mixer.kind = LAYER_DELTANET;
    c.family = &model_families[1];
    CHECK(config_fingerprint(&c) != before, "another family");
    config_free(&c);
}

// A field that is widened is the largest of all layers; others are the last one's. Whatever may be told is at most LAYER_SIZES numbers.
static void shapes_widening(void) {
    for (int k = 0; k < LAYER_KIND_COUNT; k++) {
        const shape_field *row = layer_fields[k].row;
        any_shape one, two, most;
        memset(&one, 0, sizeof one);
        memset(&two, 0, sizeof two);
        memset(&most, 0, sizeof most);
        for (int i = 0; i < layer_fields[k].count; i++) {
            change_field(i % 2 ? &one : &two, row, i);
            change_field(&two, row, i);
        }
        shape_widen(&most, &two, row, layer_fields[k].count);
        shape_widen(&most, &one, row, layer_fields[k].count);
        for (int i = 0; i < layer_fields[k].count; i++) {
            const double a = shape_value(&one, row, i), b = shape_value(&two, row, i);
            CHECK(shape_value(&most, row, i) == (row[i].widen == WIDEN_NONE || a > b ? a : b), "%s.%s", layer_kind_names[k], row[i].name);
        }
        CHECK(layer_fields[k].count <= LAYER_SIZES, "%s: %d fields", layer_kind_names[k], layer_fields[k].count);
    }
}

// A field that asks for a feature asks for it when it is, or is not, 0, and for that one alone.
static void shapes_features(void) {
    for (size_t t = 0; t < COUNT(field_tables); t++) {
        int32_t shape[64];
        CHECK(field_tables[t].count <= (int)COUNT(shape), "%s: %d fields", field_tables[t].name, field_tables[t].count);
        memset(shape, 0, sizeof shape);
        const feature_set none = shape_features(shape, field_tables[t].row, field_tables[t].count);
        for (int i = 0; i < field_tables[t].count; i++) {
            const shape_field *f = &field_tables[t].row[i];
            change_field(shape, field_tables[t].row, i);
            const feature_set with = shape_features(shape, field_tables[t].row, field_tables[t].count);
            CHECK(with == (f->set ? none | feature_bit(f->feature) : none & ~feature_bit(f->feature)) &&
                  (f->feature == FEATURE_NONE || with != none), "%s.%s asks for %llx", field_tables[t].name, f->name,
                  (unsigned long long)(with ^ none));
            memset(shape, 0, sizeof shape);
        }
    }
    for (int f = FEATURE_NONE + 1; f < FEATURE_COUNT; f++) CHECK(feature_names[f] && *feature_names[f], "feature %d has no name", f);
}

// Takes each feature that a model asks for from each executor in turn: the model is refused by that name, with the layer, the device,
// and the one that still could.
static void shapes_refused(const char *name) {
    static const char *const devices[EXECUTOR_KINDS] = {"the CPU", "a GPU", "a GPU"};
    mote_options o;
    mote_model *m = NULL;
    int refused = 0;
    memset(&o, 0, sizeof o);
    o.device = "cpu";
    EXPECT(MOTE_OK, mote_open_synthetic(name, &o, &m, &failure));
    if (!m) return;
    for (int e = 0; e < EXECUTOR_KINDS; e++) {
        EXPECT(MOTE_OK, check_features(m, "DIR", (enum executor_kind)e, executor_features, &failure));
        for (int f = FEATURE_NONE + 1; f < FEATURE_COUNT; f++) {
            feature_set on[EXECUTOR_KINDS];
            char want[200], hint[40];
            int first = -1;
            for (int i = m->c.layers; i >= 0; i--) {
                const layer *l = model_layer(m, i);
                const feature_set of = i < m->c.layers + m->has_mtp ? sublayer_features(&l->mixer) | sublayer_features(&l->ffn) : 0;
                if (of & feature_bit((enum feature)f)) first = i;
            }
            for (int nobody = 0; nobody < 2; nobody++) {
                memcpy(on, executor_features, sizeof on);
                for (int k = 0; k < EXECUTOR_KINDS; k++)
                    if (nobody || k == e) on[k] &= ~feature_bit((enum feature)f);
                const int code = check_features(m, "DIR", (enum executor_kind)e, on, &failure);
                snprintf(hint, sizeof hint, " on %s, use %s", devices[e], devices[e == EXECUTOR_CPU ? EXECUTOR_STEP : EXECUTOR_CPU]);
                snprintf(want, sizeof want, "DIR: layer %d: %s are not supported%s", first, feature_names[f], nobody ? "" : hint);
                CHECK(first < 0 ? !code : code == MOTE_EUNSUPPORTED && !strcmp(failure.message, want), "%s, executor %d: code %d: %s, expected %s", name, e,
                      code, failure.message, want);
                refused += code != MOTE_OK;
            }
        }
    }
    CHECK(refused > 0, "%s asks for nothing", name);
    mote_close(m);
}

// What no field says: experts of two formats, and a pair of matrices that are stored in two ways. A CPU runs them, a GPU does not.
static void shapes_unlike(void) {
    mote_options o;
    mote_model *m = NULL;
    memset(&o, 0, sizeof o);
    o.device = "cpu";
    EXPECT(MOTE_OK, mote_open_synthetic("tiny", &o, &m, &failure));
    if (m) {
        m->layers[2].ffn.w.moe.up_proj[1].format = FORMAT_F16;
        EXPECT(MOTE_OK, check_features(m, "DIR", EXECUTOR_CPU, executor_features, &failure));
        EXPECT(MOTE_EUNSUPPORTED, check_features(m, "DIR", EXECUTOR_STEP, executor_features, &failure));
        CHECK(!strcmp(failure.message, "DIR: layer 2: experts of different dtypes are not supported on a GPU, use the CPU"), "%s", failure.message);
    }
    mote_close(m);
    m = NULL;
    EXPECT(MOTE_OK, mote_open_synthetic("tiny-dense", &o, &m, &failure));
    if (m) {
        m->mtp.layer.ffn.w.mlp.up_proj.format = FORMAT_F16;
        EXPECT(MOTE_OK, check_features(m, "DIR", EXECUTOR_CPU, executor_features, &failure));
        EXPECT(MOTE_EUNSUPPORTED, check_features(m, "DIR", EXECUTOR_STEP, executor_features, &failure));
        CHECK(!strcmp(failure.message, "DIR: MTP layer: a gate_proj and an up_proj of different dtypes are not supported on a GPU, use the CPU"), "%s",
              failure.message);
    }
    mote_close(m);
}

// A kind of layers that a device has no kernels for is refused by its name.
static void shapes_latent(void) {
    mote_options o;
    mote_model *m = NULL;
    memset(&o, 0, sizeof o);
    o.device = "cpu";
    EXPECT(MOTE_OK, mote_open_synthetic("tiny-latent", &o, &m, &failure));
    if (!m) return;
    EXPECT(MOTE_OK, check_features(m, "DIR", EXECUTOR_CPU, executor_features, &failure));
    feature_set without[EXECUTOR_KINDS];
    memcpy(without, executor_features, sizeof without);
    without[EXECUTOR_STEP] &= ~feature_bit(FEATURE_LATENT);
    EXPECT(MOTE_EUNSUPPORTED, check_features(m, "DIR", EXECUTOR_STEP, without, &failure));
    CHECK(!strcmp(failure.message, "DIR: layer 0: latent keys and values are not supported on a GPU, use the CPU"), "%s", failure.message);
    mote_close(m);
}

// A norm after an FFN, a scaled residual, biases of attention: all executors do them.
static void shapes_residual(void) {
    mote_options o;
    mote_model *m = NULL;
    memset(&o, 0, sizeof o);
    o.device = "cpu";
    EXPECT(MOTE_OK, mote_open_synthetic("tiny", &o, &m, &failure));
    for (int i = 0; i < 3 && m; i++) {
        if (i == 0) m->layers[1].ffn.residual.normed_after = 1;
        if (i == 1) m->layers[1].ffn.residual.scaled = 1;
        for (int k = 0; k < m->c.layers && i == 2; k++)
            if (m->layers[k].mixer.kind == LAYER_ATTENTION) m->layers[k].mixer.w.attention.shape.biased = 1;
        for (int e = 0; e < EXECUTOR_KINDS; e++) EXPECT(MOTE_OK, check_features(m, "DIR", (enum executor_kind)e, executor_features, &failure));
    }
    mote_close(m);
}

// Operations of attention, counted position by position: all that a row sees, a window, the groups that an index leaves and the scores of all of them.
static void shapes_operations(void) {
    static const struct { int window, heads, group, budget, position, rows; } cases[] = {
        {0, 0, 0, 0, 100, 50}, {40, 0, 0, 0, 0, 100}, {40, 0, 0, 0, 200, 7}, {0, 2, 4, 32, 0, 130}, {0, 2, 4, 32, 1000, 33}, {0, 2, 4, 32, 30, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sublayer l;
        double want = 0;
        memset(&l, 0, sizeof l);
        l.kind = LAYER_ATTENTION;
        attention_shape *s = &l.w.attention.shape;
        *s = (attention_shape){.heads = 3, .kv_heads = 1, .head_dim = 8, .window = cases[i].window, .index_heads = cases[i].heads, .index_dim = 16,
                               .index_group = cases[i].group, .index_budget = cases[i].budget};
        for (int row = cases[i].position; row < cases[i].position + cases[i].rows; row++) {
            const int whole = cases[i].heads ? (row + 1) / 4 : 0, left = whole > 8;    // 8 groups of 4 are kept, and what is no whole group
            for (int at = 0; at <= row; at++) {
                const int seen = !s->window || row - at < s->window, last = at >= 4 * whole;
                if (seen && (!left || at < 32 || last)) want += 3 * (2 * 8 + 2 * 8);
                if (left && at % 4 == 3) want += 2 * 2 * 16;
            }
        }
        const double got = sublayer_operations(&l, STAGE_ATTEND, cases[i].rows, cases[i].position);
        CHECK(got == want, "case %zu: %g operations, not %g", i, got, want);
        l.w.attention.index_qk = (matrix){.format = FORMAT_BF16, .rows = 48, .cols = 24};
        CHECK(sublayer_operations(&l, STAGE_QKV, 5, 0) == 5 * 2.0 * 48 * 24, "case %zu: index_qk is not counted", i);
        const traffic of = {.length = 1000, .kv = DTYPE_BF16};
        CHECK(sublayer_bytes(&l, STAGE_ATTEND, &of) > 0, "case %zu: no bytes", i);
    }
}

int main(int argc, char **argv) {
    test_main_begin("test_shapes", argc, argv);
    shapes_fingerprint();
    shapes_widening();
    shapes_features();
    shapes_refused("tiny");
    shapes_refused("tiny-dense");
    shapes_refused("tiny-oss");
    shapes_unlike();
    shapes_latent();
    shapes_residual();
    shapes_operations();
    return test_main_end();
}
