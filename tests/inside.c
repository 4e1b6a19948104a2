// The tests that look inside the whole library, as one program, because compiling it for each of them would take longer than they
// run: sanitizers, another processor and the plain build do so again. The program is there by each test's name, and is that test.
// Names at file level have to differ between these tests; what one defines as a macro for its own texts ends here.

#include "inside.h"

#define main chat_main
#include "text/test_chat.c"
#undef CALL
#undef USER

#undef main
#define main render_main
#include "text/test_render.c"

#undef main
#define main checkpoint_main
#include "checkpoint/test_checkpoint.c"

#undef main
#define main config_main
#include "checkpoint/test_config.c"

#undef main
#define main session_main
#include "session/test_session.c"

#undef main
#define main passes_main
#include "session/test_passes.c"

#undef main
#define main rows_main
#include "session/test_rows.c"

#undef main
#define main images_main
#include "session/test_images.c"

#undef main
#define main rings_main
#include "session/test_rings.c"

#undef main
#define main parts_main
#include "session/test_parts.c"

#undef main
#define main devices_main
#include "session/test_devices.c"

#undef main
#define main workers_main
#include "session/test_workers.c"

#undef main
#define main constraint_main
#include "generate/test_constraint.c"

#undef main
#define main harmony_main
#include "generate/test_harmony.c"

#undef main
#define main timelines_main
#include "generate/test_timelines.c"

#undef main
#define main gemma_main
#include "generate/test_gemma.c"

#undef main
#define main definition_main
#include "model/test_definition.c"

#undef main
#define main vision_main
#include "model/test_vision.c"

#undef main
#define main fields_main
#include "model/test_fields.c"

#undef main
#define main trace_main
#include "model/test_trace.c"

#undef main
#define main shapes_main
#include "model/test_shapes.c"

#undef main
#define main allocation_main
#include "generate/test_allocation.c"

#undef main
#define main dense_layers_main
#include "model/test_dense_layers.c"

#undef main
#define main drafter_main
#include "model/test_drafter.c"
#undef main

int main(int argc, char **argv) {
    static const struct { const char *name; int (*main)(int argc, char **argv); } tests[] = {
        {"test_chat", chat_main},       {"test_render", render_main},         {"test_checkpoint", checkpoint_main},
        {"test_config", config_main},   {"test_session", session_main},       {"test_constraint", constraint_main}, {"test_harmony", harmony_main},
        {"test_passes", passes_main},   {"test_rows", rows_main},             {"test_images", images_main},
        {"test_parts", parts_main},
        {"test_rings", rings_main},     {"test_devices", devices_main},     {"test_definition", definition_main},
        {"test_fields", fields_main},   {"test_vision", vision_main},   {"test_trace", trace_main},           {"test_shapes", shapes_main},
        {"test_dense_layers", dense_layers_main},                             {"test_timelines", timelines_main},
        {"test_gemma", gemma_main},      {"test_workers", workers_main}, {"test_drafter", drafter_main},   {"test_allocation", allocation_main}};
    const char *slash = strrchr(argv[0], '/'), *name = slash ? slash + 1 : argv[0];
    for (size_t i = 0; i < COUNT(tests); i++)
        if (!strcmp(name, tests[i].name)) return tests[i].main(argc, argv);
    fprintf(stderr, "%s: no test of that name\n", name);
    return 2;
}
