/* Tests of ranges of layers on several devices, as an application opens them: the bits of one device, whatever is computed.
   Usage: test_pipeline [--device NAME] [--brief] [DATA [MODEL...]]: with `cuda` ranges on cuda:0, cuda:1, ...; MODELs are checkpoint folders or names of
   mote_open_synthetic */

#include "api.h"

#include "session/play.h"

/* may_lack: the machine may have fewer devices. */
static mote_model *model_with(const char *name, const mote_options *options, int may_lack) {
    mote_model *m = NULL;
    mote_options o = *options;
    o.size = sizeof o;                                      /* of 0 devices are not looked at */
    EXPECT_EITHER(MOTE_OK, may_lack ? MOTE_EDEVICE : MOTE_OK,
                  strchr(name, '/') ? mote_open(name, &o, &m, &failure) : mote_open_synthetic(name, &o, &m, &failure));
    if (!m) test_skip(failure.message);
    return m;
}

/* layers: of each range; NULL: as the library divides them. */
static void test_ranges(const char *name, int ranges, const char *layers, const played *want) {
    char devices[64] = "", what[400];
    for (int i = 0; i < ranges; i++)
        snprintf(devices + strlen(devices), sizeof devices - strlen(devices), strcmp(test_device, "cpu") ? "%scuda:%d" : "%scpu", i ? "," : "", i);
    snprintf(what, sizeof what, "%s on %s, %s layers", name, devices, layers ? layers : "all");
    mote_model *m = model_with(name, &(mote_options){.parts = MOTE_WEIGHTS_ONLY, .devices = devices, .split = MOTE_SPLIT_PIPELINE, .layers = layers}, ranges > 2);
    if (!m) return;
    compare_play(what, m, want);
    mote_close(m);
}

static void test_model(const char *name) {
    played want = {0};
    char layers[32];
    mote_model *m = model_with(name, &(mote_options){.parts = MOTE_WEIGHTS_ONLY, .device = test_device}, 0);
    if (!m) return;
    const int count = mote_model_info(m)->layers;
    play(m, &want);
    mote_close(m);
    if (!test_brief || count == 2) test_ranges(name, 2, NULL, &want);
    snprintf(layers, sizeof layers, "1,%d", count - 1);
    if (count > 2) test_ranges(name, 2, layers, &want);
    snprintf(layers, sizeof layers, "%d,1", count - 1);
    if (!test_brief && count > 2) test_ranges(name, 2, layers, &want);
    if (!test_brief && count > 2) test_ranges(name, 3, NULL, &want);
    played_free(&want);
}

int main(int argc, char **argv) {
    const int first = test_main_begin("test_pipeline", argc, argv);
    for (int i = first; i < argc; i++) test_model(argv[i]);
    if (first >= argc) test_model("tests/fixtures/bf16-as-3.6");
    if (first >= argc) test_model("tests/fixtures/families/gpt-oss-mxfp4");
    return test_main_end();
}
