/* session/files.c: sessions in files: written whole or not at all. */

/* 0, or -1 and errno. */
static int write_all(int fd, const char *bytes, size_t size) {
    while (size) {
        ssize_t n = write(fd, bytes, size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -1;
        bytes += n;
        size -= (size_t)n;
    }
    return 0;
}

/* Where a file of this path is to be written: a symbolic link is followed, what is there must be a regular file that may be
   written. to: the file's own path; *mode: the permissions that it has, or is to have. */
static int replace_place(const char *path, char to[PATH_SIZE], mode_t *mode, mote_error *err) {
    struct stat info;
    *mode = 0600;
    if (!realpath(path, to)) {
        if (errno != ENOENT) return fail(err, MOTE_EIO, "%s: %s", path, strerror(errno));
        if (!lstat(path, &info)) return fail(err, MOTE_EIO, "%s: a symbolic link that leads nowhere", path);
        if (snprintf(to, PATH_SIZE, "%s", path) >= PATH_SIZE) return fail(err, MOTE_EINVAL, "%s: path too long", path);
        return MOTE_OK;
    }
    if (stat(to, &info)) return fail(err, MOTE_EIO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return fail(err, MOTE_EIO, "%s: not a regular file", path);
    if (access(to, W_OK)) return fail(err, MOTE_EIO, "%s: %s", path, strerror(errno));
    *mode = info.st_mode & 0777;
    return MOTE_OK;
}

/* Brings a folder's entries to the disk. 0, or what went wrong; that a file system cannot do it, or that the folder may be
   written but not read, is not wrong. */
static int sync_folder(const char *folder) {
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int broken = fd < 0 || fsync(fd) ? errno : 0;
    if (fd >= 0) close(fd);
    return broken == EACCES || broken == EINVAL || broken == EROFS ? 0 : broken;
}

/* Writes a file whole or not at all, whoever else reads or writes it, and whenever the machine stops: first under a new name
   in the same folder, to the disk, and then in the place of the old one. */
static int replace_file(const char *path, const char *bytes, size_t size, mote_error *err) {
    static const char unique[] = "/.mote-XXXXXX";
    char to[PATH_SIZE], part[PATH_SIZE + sizeof unique];
    mode_t mode;
    int code = replace_place(path, to, &mode, err);
    if (code) return code;
    const char *slash = strrchr(to, '/');
    int folder = slash ? (int)(slash - to) : 1;
    snprintf(part, sizeof part, "%.*s%s", folder, slash ? to : ".", unique);
    int fd = mkostemp(part, O_CLOEXEC);                     /* 0600, and never a file or link that is already there */
    if (fd < 0) return fail(err, MOTE_EIO, "%s: no file can be made in its folder: %s", path, strerror(errno));
    int broken = write_all(fd, bytes, size) || fchmod(fd, mode) || fsync(fd) ? errno : 0;
    if (close(fd) && !broken) broken = errno;
    if (!broken && rename(part, to)) broken = errno;
    if (broken) {
        unlink(part);
        return fail(err, MOTE_EIO, "%s: cannot be written: %s", path, strerror(broken));
    }
    part[folder ? folder : 1] = 0;                          /* "/" has no shorter name */
    if ((broken = sync_folder(part))) return fail(err, MOTE_EIO, "%s: its folder cannot be synced: %s", path, strerror(broken));
    return MOTE_OK;
}

int mote_save_file(const mote_session *session, const char *path, mote_error *error) {
    char *bytes = NULL;
    size_t size;
    int code = session_enter(session, path != NULL, "mote_save_file: needs a session and a path", error);
    if (!code) code = save_bytes((mote_session *)session, &bytes, &size, error);
    if (!code) code = replace_file(path, bytes, size, error);
    free(bytes);
    return code;
}

/* The bytes of a session's file, `size` of them, to be freed by the caller. */
static int load_file(const mote_session *s, int fd, const char *path, char **bytes, size_t size, mote_error *err) {
    saved_header h;
    mote_error why;
    if (size < sizeof h) return fail(err, MOTE_EFORMAT, "%s: not a saved session: %zu bytes", path, size);
    int code = read_at(fd, &h, sizeof h, 0, path, err);
    if (code) return code;
    if ((code = saved_check_header(s, &h, size, &why))) return fail(err, code, "%s: %s", path, why.message);
    *bytes = (char *)malloc(size);
    return *bytes ? read_at(fd, *bytes, size, 0, path, err) : fail_memory(err);
}

int mote_load_file(mote_session *session, const char *path, mote_error *error) {
    mote_error why;
    char *bytes = NULL;
    uint64_t size;
    int fd, code = session_enter(session, path != NULL, "mote_load_file: needs a session and a path", error);
    if (!code) code = open_regular(path, &fd, &size, error);
    if (code) return code;
    code = load_file(session, fd, path, &bytes, (size_t)size, error);
    close(fd);
    if (!code && (code = session_load(session, bytes, (size_t)size, &why))) fail(error, code, "%s: %s", path, why.message);
    free(bytes);
    return code;
}
