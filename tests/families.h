// families.h: the reference checkpoints of model families beside qwen3_5_moe: all folders of tests/fixtures/families, which every device has to
// run or to refuse by name, and of DATA/family-data, where those of families that are not known are told as not tested. After api.h and files.h.

#ifndef MOTE_TEST_FAMILIES_H
#define MOTE_TEST_FAMILIES_H

#include "api.h"
#include "files.h"

typedef struct family_folders { int count; char dir[64][512], family[64][32]; } family_folders;

static inline int compare_folders(const void *a, const void *b) {
    return strcmp((const char *)a, (const char *)b);
}

// Does it open on test_device? What is refused as it should be is skipped, with the reason. Of a family that is not known, config.json may hold
// what Python writes and JSON has not, as Nemotron-H's Infinity. family: 32 bytes for its name.
static inline int family_opens(const char *dir, int may_be_unknown, char *family) {
    mote_options o = {.parts = MOTE_WEIGHTS_ONLY, .device = test_device};
    mote_model *m = NULL;
    memset(&failure, 0, sizeof failure);
    const int code = mote_open(dir, &o, &m, &failure), on_gpu = strcmp(test_device, "cpu") != 0;
    if (!code) snprintf(family, 32, "%s", mote_model_info(m)->architecture);
    mote_close(m);
    if (!code) return 1;
    char *end = strstr(failure.message, ", mote runs ");
    const int unknown = may_be_unknown && (end || strstr(failure.message, "not valid JSON"));
    if (end) *end = 0;
    if (CHECK(unknown || (on_gpu && code == MOTE_EUNSUPPORTED), "%s does not open: %s", dir, failure.message)) test_skip(failure.message);
    return 0;
}

// Is one of the first n of the same family as the next?
static inline int family_has_another(const family_folders *f, int n) {
    for (int i = 0; i < n; i++)
        if (!strcmp(f->family[i], f->family[f->count])) return 1;
    return 0;
}

// only_new: not those of families that f has before.
static inline void add_family_folders(family_folders *f, const char *parent, int may_be_unknown, int only_new) {
    static family_folders found;
    DIR *d = opendir(parent);
    const int before = f->count;
    found.count = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char *dir = found.dir[found.count], tokens[600];
        if (!CHECK(found.count < 63, "%s: too many folders", parent)) break;
        snprintf(tokens, sizeof tokens, "%s/%s/tokens.i32", parent, e->d_name);
        snprintf(dir, sizeof *found.dir, "%s/%s", parent, e->d_name);
        found.count += access(tokens, F_OK) == 0;
    }
    if (d) closedir(d);
    CHECK(found.count > 0, "%s: no reference checkpoints", parent);
    qsort(found.dir, (size_t)found.count, sizeof *found.dir, compare_folders);
    for (int i = 0; i < found.count && CHECK(f->count < 64, "%s: too many folders", parent); i++)
        if (family_opens(found.dir[i], may_be_unknown, f->family[f->count]) && !(only_new && family_has_another(f, before)))
            memcpy(f->dir[f->count++], found.dir[i], sizeof *found.dir);
}

// All of them, in the order of their names; valid until the next call. In brief, of DATA those whose family the repository has none of: the
// others run the same code over larger numbers, which was three quarters of test_definition's time.
static inline const family_folders *families_here(void) {
    static family_folders f;
    char data[512];
    f.count = 0;
    add_family_folders(&f, "tests/fixtures/families", 0, 0);
    snprintf(data, sizeof data, "%s/family-data", test_data_dir() ? test_data_dir() : "");
    if (!test_data_dir() || access(data, F_OK)) test_skip("no family-data in the data folder: larger checkpoints of the families");
    else add_family_folders(&f, data, 1, test_brief);
    return &f;
}

#endif
