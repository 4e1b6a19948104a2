// The fuzz targets that look inside the whole library, as one program, so that it is compiled once. The program is there by each
// target's name, and is that target. The last one brings the server's rooms, some of whose names it changes.

#include "library.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);

#define LLVMFuzzerTestOneInput inputs_target
#include "fuzz_inputs.c"

#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput sessions_target
#include "fuzz_sessions.c"

#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput passes_target
#include "fuzz_passes.c"

#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput requests_target
#include "fuzz_requests.c"

#undef LLVMFuzzerTestOneInput

static int (*target)(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    static const struct { const char *name; int (*target)(const uint8_t *data, size_t size); } targets[] = {
        {"fuzz_inputs", inputs_target}, {"fuzz_sessions", sessions_target}, {"fuzz_passes", passes_target}, {"fuzz_requests", requests_target}};
    const char *slash = strrchr((*argv)[0], '/'), *name = slash ? slash + 1 : (*argv)[0];
    (void)argc;
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        if (!strcmp(name, targets[i].name)) target = targets[i].target;
    if (target) return 0;
    fprintf(stderr, "%s: no fuzz target of that name\n", name);
    exit(2);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return target(data, size);
}
