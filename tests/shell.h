// shell.h: the program as a user types it: commands through a shell, with their exit code, standard output and standard error.
// Run from the top of the repository. MOTE_PROGRAM (from the Makefile) is how to start the program there.

#ifndef MOTE_TEST_SHELL_H
#define MOTE_TEST_SHELL_H

#include "test.h"
#include "files.h"

#include <sys/wait.h>

#ifndef MOTE_PROGRAM
#define MOTE_PROGRAM "./mote"
#endif

typedef struct text { char data[1 << 20]; size_t size; } text;

static text out, err;                      // of the last command
static int code;                           // its exit code

static inline size_t read_named(const char *path, void *data, size_t capacity) {
    FILE *in = fopen(path, "rb");
    size_t size = in ? fread(data, 1, capacity, in) : 0;
    if (in) fclose(in);
    return size;
}

static inline size_t read_temp(const char *name, void *data, size_t capacity) {
    return read_named(temp_path(name), data, capacity);
}

static inline int temp_exists(const char *name) {
    return access(temp_path(name), F_OK) == 0;
}

// Runs a shell command with `input` on standard input. In the command, @ stands for the temporary folder and a leading
// "mote " for the program.
static inline void shell_with(const char *input, size_t input_size, const char *command) {
    char line[4096];
    size_t n = 0;
    temp_write("in", input, input_size);
    if (strncmp(command, "mote ", 5) == 0) {
        n = (size_t)snprintf(line, sizeof line, "%s", MOTE_PROGRAM);
        command += 4;
    }
    for (; *command && n + 70 < sizeof line; command++)
        if (*command == '@') n += (size_t)snprintf(line + n, sizeof line - n, "%s", temp_dir);
        else line[n++] = *command;
    snprintf(line + n, sizeof line - n, " <%s/in >%s/out 2>%s/err", temp_dir, temp_dir, temp_dir);
    int status = system(line);
    code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    out.size = read_temp("out", out.data, sizeof out.data - 1);
    err.size = read_temp("err", err.data, sizeof err.data - 1);
    out.data[out.size] = err.data[err.size] = 0;
}

static inline void shell(const char *command) {
    shell_with("", 0, command);
}

static inline void shell_text(const char *input, const char *command) {
    shell_with(input, strlen(input), command);
}

static inline int line_count(const text *t) {
    int lines = 0;
    for (size_t i = 0; i < t->size; i++) lines += t->data[i] == '\n';
    return lines;
}

// Standard error must be one line that starts with "mote: " and holds `part`, standard output empty.
static inline void check_refused(const char *command, int expected, const char *part) {
    shell(command);
    CHECK(code == expected, "%s: exit code %d, not %d", command, code, expected);
    CHECK(strncmp(err.data, "mote: ", 6) == 0 && line_count(&err) == 1 && strstr(err.data, part),
          "%s: said '%s', not one line with '%s'", command, err.data, part);
    CHECK(out.size == 0, "%s: printed '%s'", command, out.data);
}

#endif
