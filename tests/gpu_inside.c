// The tests that look inside kernels, as one program, because compiling all kernels takes minutes: in CUDA, for a GPU or for the simulated one.
// The program is there by each test's name, and is that test, in a namespace of its own.

#include "inside.h"

#include "api.h"
#include "files.h"
#include "folders.h"
#include "gpu.h"

namespace attention_test {
#include "cuda/gpu_attention.c"
}

namespace latent_test {
#include "cuda/gpu_latent.c"
}

namespace ngrams_test {
#include "cuda/gpu_ngrams.c"
}

namespace streams_test {
#include "cuda/gpu_streams.c"
}

namespace mamba_test {
#include "cuda/gpu_mamba.c"
}

namespace batch_test {
#include "cuda/gpu_batch.c"
}

namespace batch_moe_test {
#include "cuda/gpu_batch_moe.c"
}

namespace product_test {
#include "cuda/gpu_product.c"
}

namespace exchange_test {
#include "cuda/gpu_exchange.c"
}

namespace vision_test {
#include "cuda/gpu_vision.c"
}

namespace drafter_test {
#include "cuda/gpu_drafter.c"
}

int main(int argc, char **argv) {
    static const struct { const char *name; int (*main)(int argc, char **argv); } tests[] = {
        {"gpu_attention", attention_test::main}, {"gpu_latent", latent_test::main},       {"gpu_ngrams", ngrams_test::main},
        {"gpu_batch", batch_test::main},         {"gpu_batch_moe", batch_moe_test::main}, {"gpu_exchange", exchange_test::main},
        {"gpu_vision", vision_test::main},       {"gpu_streams", streams_test::main},
        {"gpu_mamba", mamba_test::main},         {"gpu_product", product_test::main},
        {"gpu_drafter", drafter_test::main}};
    const char *slash = strrchr(argv[0], '/'), *name = slash ? slash + 1 : argv[0];
    for (size_t i = 0; i < COUNT(tests); i++)
        if (!strcmp(name, tests[i].name)) return tests[i].main(argc, argv);
    fprintf(stderr, "%s: no test of that name\n", name);
    return 2;
}
