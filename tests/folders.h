// folders.h: checkpoint folders made wrong, for the tests that include the engine: a copy of a fixture in the temporary folder,
// one change to it, and what opening it must say.

#ifndef MOTE_TEST_FOLDERS_H
#define MOTE_TEST_FOLDERS_H

#include "files.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

// In the temporary folder. A checkpoint in it is changed by reading a shard's tensors with the engine's own reader, changing
// the list, and writing it again.

static int temp_text(const char *name, const char *text) {
    return temp_write(name, text, strlen(text));
}

static int temp_copy(const char *dir, const char *name) {
    buf text = {0};
    mote_error err = {0};
    int ok = CHECK(!read_file(dir, name, &text, &err), "%s", err.message) && temp_write(name, text.data, text.size);
    buf_free(&text);
    return ok;
}

// A copy of tests/fixtures/NAME without its reference results.
static int temp_fixture(const char *name) {
    char dir[256];
    int ok = 1;
    snprintf(dir, sizeof dir, "tests/fixtures/%s", name);
    temp_empty();
    DIR *d = opendir(dir);
    if (!CHECK(d, "%s: run this from the top of the repository", dir)) return 0;
    for (struct dirent *e; ok && (e = readdir(d));)
        if (strstr(e->d_name, ".safetensors") || !strcmp(e->d_name, "config.json")) ok = temp_copy(dir, e->d_name);
    closedir(d);
    return ok;
}

// Replaces the first `find` in a file of the temporary folder. 0 when it is not there.
static int temp_replace(const char *name, const char *find, const char *replace) {
    buf text = {0}, out = {0};
    mote_error err;
    const char *at = read_file(temp_dir, name, &text, &err) ? NULL : strstr(text.data, find);
    if (at) {
        buf_add(&out, text.data, (size_t)(at - text.data));
        buf_text(&out, replace);
        buf_text(&out, at + strlen(find));
        temp_write(name, out.data, out.size);
    }
    buf_free(&text);
    buf_free(&out);
    return at != NULL;
}

typedef struct part {
    char name[160], type[16];
    int dims;
    uint64_t shape[8];
    size_t size;
    char *data;
} part;

typedef struct parts {
    int n;
    part list[1000];
} parts;

static void parts_free(parts *p) {
    for (int i = 0; i < p->n; i++) free(p->list[i].data);
    free(p);
}

static parts *parts_read(const char *file) {
    parts *p = (parts *)calloc(1, sizeof *p);
    tensor_table table = {0};
    struct stat info;
    mote_error err = {0};
    int fd = open(temp_path(file), O_RDONLY);
    int code = fd < 0 || fstat(fd, &info) || safetensors_read(&table, fd, (uint64_t)info.st_size, 0, file, &err);
    CHECK(!code && table_count(&table) < COUNT(p->list), "%s: %s", file, err.message);
    for (size_t i = 0; !code && i < table_count(&table) && i + 1 < COUNT(p->list); i++) {
        const tensor *t = table_at(&table, i);
        part *to = &p->list[p->n++];
        snprintf(to->name, sizeof to->name, "%s", table_name(&table, t));
        snprintf(to->type, sizeof to->type, "%s", container_types[t->type].name);
        to->dims = t->dims;
        memcpy(to->shape, t->shape, sizeof t->shape);
        to->size = (size_t)t->size;
        to->data = (char *)calloc(1, to->size + 1);
        code = read_at(fd, to->data, to->size, t->begin, file, &err);
    }
    table_free(&table);
    if (fd >= 0) close(fd);
    return p;
}

static void parts_write(const parts *p, const char *file) {
    buf header = {0}, out = {0};
    size_t at = 0;
    char text[512];
    for (int i = 0; i < p->n; i++) {
        const part *t = &p->list[i];
        snprintf(text, sizeof text, "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? ',' : '{', t->name, t->type);
        buf_text(&header, text);
        for (int d = 0; d < t->dims; d++) {
            snprintf(text, sizeof text, "%s%llu", d ? "," : "", (unsigned long long)t->shape[d]);
            buf_text(&header, text);
        }
        snprintf(text, sizeof text, "],\"data_offsets\":[%zu,%zu]}", at, at + t->size);
        buf_text(&header, text);
        at += t->size;
    }
    buf_text(&header, p->n ? "}" : "{}");
    for (int i = 0; i < 8; i++) text[i] = (char)(header.size >> 8 * i & 0xFF);
    buf_add(&out, text, 8);
    buf_add(&out, header.data, header.size);
    for (int i = 0; i < p->n; i++) buf_add(&out, p->list[i].data, p->list[i].size);
    temp_write(file, out.data, out.size);
    buf_free(&header);
    buf_free(&out);
}

// Gives a tensor a dtype, a shape ("3,28") and zeros of that size.
static void part_set(part *t, const char *type, const char *shape) {
    uint64_t bits = 0;
    snprintf(t->type, sizeof t->type, "%s", type);
    for (int i = 0; i < TYPE_COUNT; i++)
        if (!strcmp(container_types[i].name, type)) bits = (uint64_t)container_types[i].bits;
    for (t->dims = 0; *shape; shape += *shape == ',') {
        char *end;
        t->shape[t->dims] = strtoull(shape, &end, 10);
        bits *= t->shape[t->dims++];
        shape = end;
    }
    free(t->data);
    t->size = (size_t)(bits / 8);
    t->data = (char *)calloc(1, t->size + 1);
}

// Each case is one change to a copy of a fixture, the code it must give and what the message (or, where the folder is
// accepted, a notice) must say. mote_plan must agree with mote_open on all that can be seen without the weights.

static void keep_notices(void *user, const char *line) {
    CHECK(!strchr(line, '\n'), "a notice has a line feed: %s", line);
    buf_text((buf *)user, line);
    buf_text((buf *)user, "\n");
}

static int says(const char *text, const char *const *needles) {
    for (int i = 0; i < 3 && needles[i]; i++)
        if (!strstr(text, needles[i])) return 0;
    return 1;
}

static void check_open(const char *title, int parts_to_open, int code, const char *const *needles) {
    static char untouched;
    mote_model *before = (mote_model *)(void *)&untouched, *m = before;
    mote_options o = {0};
    mote_error err = {-1, "nothing"};
    buf notices = {0};
    o.parts = parts_to_open;
    o.callbacks.log = keep_notices;
    o.callbacks.user = &notices;
    int got = mote_open(temp_dir, &o, &m, &err);
    buf_add(&notices, "", 1);
    CHECK(got == code, "%s: code %d, not %d: %s", title, got, code, got ? err.message : "(accepted)");
    if (got) CHECK(m == before && err.code == got && !strchr(err.message, '\n') && strstr(err.message, temp_dir),
                   "%s: model touched, or code %d, or message <%s>", title, err.code, err.message);
    const char *said = got ? err.message : notices.failed ? "" : notices.data;
    CHECK(says(said, needles), "%s: message <%s> lacks %s, %s or %s", title, said, needles[0], needles[1], needles[2]);
    if (!got) mote_close(m);
    buf_free(&notices);
}

// What needs no weights: mote_plan and MOTE_DESCRIPTION.
static void check_plan(const char *title, int code, const char *const *needles) {
    mote_memory plan = {0};
    mote_error err = {-1, "nothing"};
    mote_options o = {0};
    mote_model *m = NULL;
    int got = mote_plan(temp_dir, NULL, NULL, &plan, &err);
    CHECK(got == code, "%s: plan: code %d, not %d: %s", title, got, code, got ? err.message : "(accepted)");
    if (got) CHECK(err.code == got && says(err.message, needles), "%s: plan: message <%s>", title, err.message);
    else CHECK(plan.weights && plan.total >= plan.weights + plan.kv + plan.state, "%s: plan", title);
    o.parts = MOTE_DESCRIPTION;
    got = mote_open(temp_dir, &o, &m, &err);
    CHECK(got == code && (!got == (m != NULL)), "%s: description: code %d, not %d: %s", title, got, code, err.message);
    const mote_info *info = got ? NULL : mote_model_info(m);
    CHECK(!info || (info->weight_bytes > 0 && info->parameters > 0), "%s: description of nothing", title);
    mote_close(m);
}

enum edit {
    DROP,       // tensor a
    ADD,        // tensor a of dtype b and shape c, zeros, to the file
    RETYPE,     // tensor a to dtype b and shape c, zeros
    RENAME,     // tensor a to b
    POKE,       // the first bytes of tensor a become b
    REPLACE,    // in the file, a by b
    TEXT,       // the file becomes a
    LINK,       // the file becomes a symbolic link to nothing
    CUT,        // the file's last bytes: a of them
    REMOVE      // the file
};

static const char *const F = "model.safetensors", *const CONFIG = "config.json",
                  *const INDEX = "model.safetensors.index.json";

typedef struct wrong_folder {
    const char *title, *fixture;
    enum edit edit;
    const char *file, *a, *b, *c;
    int code, plan;             // of mote_open; of mote_plan, SAME as that or OK
    const char *needles[3];
} wrong_folder;

enum { SAME = 0, FINE = 1 };

static void edit_tensors(const wrong_folder *w) {
    parts *p = parts_read(w->file);
    int i = 0;
    while (i < p->n && strcmp(p->list[i].name, w->a)) i++;
    if (w->edit == ADD) {
        snprintf(p->list[p->n].name, sizeof p->list[p->n].name, "%s", w->a);
        part_set(&p->list[p->n++], w->b, w->c);
    } else if (CHECK(i < p->n, "%s: no tensor %s", w->title, w->a)) {
        part *t = &p->list[i];
        if (w->edit == RETYPE) part_set(t, w->b, w->c);
        if (w->edit == RENAME) snprintf(t->name, sizeof t->name, "%s", w->b);
        if (w->edit == POKE) memcpy(t->data, w->b, (size_t)atoi(w->c));
        if (w->edit == DROP) {
            free(t->data);
            memmove(t, t + 1, (size_t)(--p->n - i) * sizeof *t);
        }
    }
    parts_write(p, w->file);
    parts_free(p);
}

enum { QUOTED = 1024 };

// JSON as it is written in the tables below, with ' for ".
static const char *quoted(const char *text, char *to) {
    size_t i = 0;
    for (; text[i] && i < QUOTED - 1; i++) to[i] = text[i] == '\'' ? '"' : text[i];
    to[i] = 0;
    return to;
}

static void apply_edit(const wrong_folder *w) {
    struct stat info;
    char a[QUOTED], b[QUOTED];
    if (w->edit <= POKE) edit_tensors(w);
    if (w->edit == REPLACE)
        CHECK(temp_replace(w->file, quoted(w->a, a), quoted(w->b, b)), "%s: no %s in %s", w->title, a, w->file);
    if (w->edit == TEXT) temp_text(w->file, quoted(w->a, a));
    if (w->edit == LINK) {
        unlink(temp_path(w->file));
        CHECK(!symlink("nothing", temp_path(w->file)), "%s: symlink", w->title);
    }
    if (w->edit == REMOVE) CHECK(!unlink(temp_path(w->file)), "%s: unlink", w->title);
    if (w->edit == CUT)
        CHECK(!stat(temp_path(w->file), &info) && !truncate(temp_path(w->file), info.st_size - atoi(w->a)), "%s: cut",
              w->title);
}

#define OK MOTE_OK
#define BAD MOTE_EFORMAT
#define NOT MOTE_EUNSUPPORTED

// Every case alone, in a fresh copy of its fixture.
static inline void check_folders(const wrong_folder *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const wrong_folder *w = &cases[i];
        if (!temp_fixture(w->fixture)) continue;
        apply_edit(w);
        check_open(w->title, MOTE_WEIGHTS_ONLY, w->code, w->needles);
        check_plan(w->title, w->plan == FINE ? OK : w->code, w->needles);
    }
}
#define TIED "f32-tied"
#define FP8 "fp8-f32-scales"
#define SHARDS "fp8-ragged"

#endif
