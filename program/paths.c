/* program/paths.c: from what was typed after -m to a checkpoint folder: Hugging Face ids and the hub's cache are looked up, and
   what is no checkpoint folder is refused with its cause. It looks at names, and at the first bytes of a few files; all else
   about a checkpoint is the library's to say. */

enum { LFS_POINTER_MOST = 1024 };          /* bytes: a pointer file of Git LFS has some 130 */

static int ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* "org/name", as models are called there. */
static int is_hub_id(const char *text) {
    const char *slash = strchr(text, '/');
    size_t allowed = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./");
    return slash && slash > text && slash[1] && !strchr(slash + 1, '/') && !text[allowed] && text[0] != '.' && text[0] != '~';
}

/* The newest snapshot of a folder models--org--name that holds a config.json: 1 if there is one. */
static int newest_snapshot(const char *folder, char *found) {
    char path[PATH_MAX];
    glob_t all;
    time_t newest = 0;
    int any = 0;
    snprintf(path, sizeof path, "%.3500s/snapshots/*/config.json", folder);
    if (glob(path, GLOB_NOSORT, NULL, &all) == 0)
        for (size_t i = 0; i < all.gl_pathc; i++) {
            struct stat s;
            size_t length = strlen(all.gl_pathv[i]) - strlen("/config.json");
            if (stat(all.gl_pathv[i], &s) || length >= PATH_MAX || (any && s.st_mtime < newest)) continue;
            newest = s.st_mtime;
            any = 1;
            snprintf(found, PATH_MAX, "%.*s", (int)length, all.gl_pathv[i]);
        }
    globfree(&all);
    return any;
}

/* The snapshot of a model in the local cache of the Hugging Face hub. */
static int find_in_hub(const char *id, char *found) {
    const char *cache = getenv("HF_HUB_CACHE"), *hf = getenv("HF_HOME"), *home = getenv("HOME");
    const char *slash = strchr(id, '/');
    char root[PATH_MAX], folder[PATH_MAX];
    if (cache && *cache) snprintf(root, sizeof root, "%s", cache);
    else if (hf && *hf) snprintf(root, sizeof root, "%s/hub", hf);
    else snprintf(root, sizeof root, "%s/.cache/huggingface/hub", home ? home : "");
    snprintf(folder, sizeof folder, "%.3000s/models--%.*s--%s", root, (int)(slash - id), id, slash + 1);
    return newest_snapshot(folder, found);
}

#define GET_HF "mote has no network code, and hf comes with pip install huggingface_hub"

static int path_missing(const char *path) {
    if (path[0] == '~')
        return complain(EXIT_FAILURE, "%s: no such folder: the shell does not replace a ~ inside quotes", path);
    if (is_hub_id(path))
        return complain(EXIT_FAILURE, "%s: no such folder; it looks like a Hugging Face id: hf download %s --local-dir D, "
                        "then -m D; " GET_HF, path, path);
    return complain(EXIT_FAILURE, "%s: no such folder; hf download ORG/NAME --local-dir %s would fetch a checkpoint; " GET_HF, path,
                    path);
}

static int path_is_file(const char *path) {
    const char *what = ends_with(path, ".gguf")          ? "a GGUF file, which mote does not read"
                       : ends_with(path, ".safetensors") ? "one file of a checkpoint"
                                                         : "a file";
    return complain(EXIT_FAILURE, "%s: is %s: -m needs the checkpoint's folder, with config.json and *.safetensors", path,
                    what);
}

/* A file that Git LFS has not replaced by what it stands for. */
static int is_lfs_pointer(const char *path) {
    static const char start[] = "version https://git-lfs";
    char bytes[sizeof start - 1];
    struct stat s;
    FILE *in = stat(path, &s) == 0 && S_ISREG(s.st_mode) && s.st_size <= LFS_POINTER_MOST ? fopen(path, "rb") : NULL;
    int is = in && fread(bytes, 1, sizeof bytes, in) == sizeof bytes && memcmp(bytes, start, sizeof bytes) == 0;
    if (in) fclose(in);
    return is;
}

enum { SHARDS_MOST = 512 };                /* of an index, that are looked for */

/* The shards that an index names and that are not there: how many of how many, and the first in `first`. It is not parsed:
   what ends in .safetensors" is a shard. */
static int missing_shards(const char *folder, const char *index, int *all, char first[256]) {
    static char names[SHARDS_MOST][256];
    int missing = 0;
    *all = 0;
    for (const char *at = index; (at = strstr(at, ".safetensors\"")) && *all < SHARDS_MOST; at++) {
        const char *begin = at, *end = at + strlen(".safetensors");
        char path[PATH_MAX];
        int known = 0;
        while (begin > index && begin[-1] != '"') begin--;
        if (end - begin >= (ptrdiff_t)sizeof names[0]) continue;
        snprintf(names[*all], sizeof names[0], "%.*s", (int)(end - begin), begin);
        for (int i = *all - 1; i >= 0 && !known; i--) known = strcmp(names[i], names[*all]) == 0;
        if (known) continue;
        snprintf(path, sizeof path, "%.3500s/%s", folder, names[*all]);
        if (access(path, F_OK) && !missing++) snprintf(first, 256, "%s", names[*all]);
        ++*all;
    }
    return missing;
}

enum { NO_WEIGHTS, ALL_OR_NO_WEIGHTS, ALL_WEIGHTS };   /* what of a checkpoint must be there */

static int check_shards(const char *folder, int wanted) {
    char path[PATH_MAX], first[256];
    bytes index = {NULL, 0, 0};
    int all = 0, missing = 0;
    snprintf(path, sizeof path, "%.3500s/model.safetensors.index.json", folder);
    FILE *in = is_regular(path) ? fopen(path, "rb") : NULL;     /* else the library says what it is */
    if (in && !read_some(in, path, TEXT_MAX, &index)) missing = missing_shards(folder, index.data, &all, first);
    if (in) fclose(in);
    free(index.data);
    if (!missing || (wanted == ALL_OR_NO_WEIGHTS && missing == all)) return 0;
    return complain(EXIT_FAILURE, "%s: an incomplete download: %d of the %d files in model.safetensors.index.json are missing, "
                    "the first is %s; hf download goes on where it was", folder, missing, all, first);
}

/* The fault of a folder, as far as its files' names and first bytes tell: 0, or it has been said. */
static int check_folder(const char *folder, int wanted) {
    char path[PATH_MAX];
    int files = 0, weights = 0, gguf = 0, config = 0, code = 0;
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && !code && (entry = readdir(dir));) {
        const char *name = entry->d_name;
        if (name[0] == '.') continue;
        files++;
        weights += ends_with(name, ".safetensors");
        gguf += ends_with(name, ".gguf");
        config += strcmp(name, "config.json") == 0;
        snprintf(path, sizeof path, "%.3500s/%.256s", folder, name);
        if ((ends_with(name, ".safetensors") || ends_with(name, ".json")) && is_lfs_pointer(path))
            code = complain(EXIT_FAILURE, "%s: a Git LFS pointer, not the file itself: run git lfs pull in %s", path, folder);
    }
    if (dir) closedir(dir);
    if (code || !dir) return code;
    if (!files) return complain(EXIT_FAILURE, "%s: the folder is empty", folder);
    if (gguf && !weights)
        return complain(EXIT_FAILURE, "%s: holds GGUF files only, which mote does not read: it opens the checkpoint they were "
                        "made of, config.json and *.safetensors", folder);
    return config && wanted != NO_WEIGHTS ? check_shards(folder, wanted) : 0;
}

/* The folder that was meant: *path may become another one, which lasts as long as the program. */
static int resolve_model(const char **path, int wanted) {
    static char found[PATH_MAX];
    struct stat s;
    if (stat(*path, &s)) {
        if (errno != ENOENT && errno != ENOTDIR) return file_failure(*path);
        if (!is_hub_id(*path) || !find_in_hub(*path, found)) return path_missing(*path);
        on_log(NULL, "opening the snapshot in the Hugging Face cache");
        *path = found;
    } else if (!S_ISDIR(s.st_mode)) {
        return path_is_file(*path);
    } else {
        char config[PATH_MAX];
        snprintf(config, sizeof config, "%.3500s/config.json", *path);
        if (access(config, F_OK) && newest_snapshot(*path, found)) *path = found;
    }
    return check_folder(*path, wanted);
}
