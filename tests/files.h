// files.h: what tests share about files: whole files as bytes, one temporary folder, and the tensors of a safetensors file.

#ifndef MOTE_TEST_FILES_H
#define MOTE_TEST_FILES_H

#include "test.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

// A whole file; free() it. NULL when it cannot be read, or is a folder. A zero follows the bytes.
static inline char *file_bytes(const char *path, size_t *size) {
    struct stat info;
    FILE *file = stat(path, &info) || S_ISDIR(info.st_mode) ? NULL : fopen(path, "rb");
    *size = 0;
    if (!file) return NULL;
    long n = fseek(file, 0, SEEK_END) ? 0 : ftell(file);
    char *bytes = n < 0 ? NULL : (char *)allocate((size_t)n);
    rewind(file);
    if (bytes) *size = fread(bytes, 1, (size_t)n, file);
    fclose(file);
    return bytes;
}

static inline int write_bytes(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    int ok = file && fwrite(bytes, 1, size, file) == size;
    if (file && fclose(file)) ok = 0;
    return CHECK(ok, "%s cannot be written", path);
}

// ---- The temporary folder -------------------------------------------------------------------------------------------

static char temp_dir[] = "/tmp/mote-test-XXXXXX";

static inline int temp_open(void) {
    return CHECK(mkdtemp(temp_dir) != NULL, "%s: no temporary folder", temp_dir);
}

// A path in it, valid until the fourth call from now.
static inline const char *temp_path(const char *name) {
    static char path[4][512];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof *path, "%s/%s", temp_dir, name);
    return path[turn];
}

static inline int temp_write(const char *name, const void *bytes, size_t size) {
    return write_bytes(temp_path(name), bytes, size);
}

static inline int temp_entries(void) {
    DIR *d = opendir(temp_dir);
    int n = 0;
    while (d && readdir(d)) n++;
    if (d) closedir(d);
    return n - 2;                            // "." and ".."
}

static inline void remove_inside(const char *folder) {
    DIR *d = opendir(folder);
    char path[1024];
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        if (snprintf(path, sizeof path, "%s/%s", folder, e->d_name) >= (int)sizeof path || !unlink(path)) continue;
        remove_inside(path);
        rmdir(path);
    }
    if (d) closedir(d);
}

static inline void temp_empty(void) {
    remove_inside(temp_dir);
}

static inline void temp_close(void) {
    temp_empty();
    CHECK(!rmdir(temp_dir), "%s is not empty", temp_dir);
}

// Changes a file's bytes.
typedef void edit_file(const char *name, char **bytes, size_t *size, const void *how);

// Makes the temporary folder a copy of another folder's files, each edited (NULL: as it is).
static inline void temp_copy_of(const char *from, edit_file *edit, const void *how) {
    DIR *d = opendir(from);
    char path[1024];
    temp_empty();
    if (!CHECK(d != NULL, "%s: run this from the top of the repository", from)) return;
    for (struct dirent *e; (e = readdir(d));) {
        size_t size;
        snprintf(path, sizeof path, "%s/%s", from, e->d_name);
        char *bytes = e->d_name[0] == '.' ? NULL : file_bytes(path, &size);
        if (!bytes) continue;
        if (edit) edit(e->d_name, &bytes, &size, how);
        temp_write(e->d_name, bytes, size);
        free(bytes);
    }
    closedir(d);
}

// Sets a number of a JSON file that has it after `"key": `.
static inline void set_number(char **json, size_t *size, const char *key, const char *value) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\": ", key);
    char *at = strstr(*json, quoted);
    if (!CHECK(at != NULL, "no %s", key)) return;
    at += strlen(quoted);
    char *rest = at + strcspn(at, ",\n}"), *out = (char *)allocate(*size + strlen(value));
    *size = (size_t)sprintf(out, "%.*s%s%s", (int)(at - *json), *json, value, rest);
    free(*json);
    *json = out;
}

// ---- Tensors --------------------------------------------------------------------------------------------------------

// A tensor in the bytes of a safetensors file: its data is from `begin` to `end`.
typedef struct tensor_place { char name[256], dtype[16]; size_t begin, end; } tensor_place;

// Goes on to the next tensor, in the order of the header, from an empty *at; 0 after the last one. Reads headers as the
// safetensors library writes them.
static inline int next_tensor(const char *file, const char **at, tensor_place *t) {
    uint64_t header;
    memcpy(&header, file, 8);
    const char *end = file + 8 + header, *info = *at ? *at : file + 8;
    for (;; info++) {
        info = (const char *)memchr(info, '"', (size_t)(end - info));
        if (!info) return 0;
        if (sscanf(info, "\"%255[^\"]\":{\"dtype\":\"%15[^\"]\"", t->name, t->dtype) == 2) break;
    }
    const char *offsets = strstr(info, "\"data_offsets\":[");
    if (!offsets || sscanf(offsets, "\"data_offsets\":[%zu,%zu]", &t->begin, &t->end) != 2) return 0;
    t->begin += 8 + (size_t)header;
    t->end += 8 + (size_t)header;
    *at = strchr(offsets, '}');
    return *at != NULL;
}

// Where the data of the first tensor of a type begins whose name holds `part`.
static inline size_t tensor_of(const char *file, const char *dtype, const char *part) {
    tensor_place t;
    const char *at = NULL;
    while (next_tensor(file, &at, &t))
        if (!strcmp(t.dtype, dtype) && strstr(t.name, part)) return t.begin;
    CHECK(0, "no %s tensor of %s", part, dtype);
    exit(test_main_end() ? 1 : 2);
}

#endif
