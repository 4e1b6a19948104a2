#!/bin/sh
# Prints the SHA-256 of the sources that a part of the GPU's tests covers (tools/test_gpu.sh), without comments and white space: what a
# comment or a line break changes does not change it. The parts:
#   tests        the whole library, and the tests that need a GPU
#   sanitizers   what the kernels are made of and who launches them, and the program that runs them
#   oracles      the same, and how models are read; how oracles are made and compared
# Needs perl, which Debian and Ubuntu always have.
# Usage: tools/source_hash.sh PART, from the top of the repository
set -eu

# sources FOLDER...: their C and CUDA, in the order of their names.
sources() {
    find "$@" -name '*.c' -o -name '*.cu' | LC_ALL=C sort
}

scripts=/dev/null                              # in Python
compute='cpu cuda exchange formats layers run'
attends='tests/cuda/attend_prompt.c tests/cuda/attend_index.c'                # parts of gpu_attention.c
case ${1:-} in
    tests)      files="engine.h engine.cu kernels.cu tokenizer.c
                       $(sources $compute checkpoint diagnose families generate model session text workers)
                       tests/cuda/gpu_attention.c $attends tests/cuda/gpu_latent.c tests/cuda/gpu_ngrams.c tests/cuda/gpu_streams.c tests/cuda/gpu_mamba.c
                       tests/cuda/gpu_batch.c tests/cuda/gpu_batch_moe.c tests/cuda/moe_slots.c tests/cuda/gpu_exchange.c tests/cuda/gpu_prefill.c
                       tests/cuda/gpu_product.c tests/cuda/gpu_vision.c tests/cuda/gpu_drafter.c tests/gpu_inside.c tests/gpu.h tests/model/test_vision.c" ;;
    sanitizers) files="kernels.cu $(sources $compute) tests/cuda/gpu_attention.c $attends tests/cuda/gpu_mamba.c
                       tests/cuda/gpu_product.c tests/cuda/gpu_production.c tests/cuda/gpu_streams.c" ;;
    oracles)    files="kernels.cu $(sources $compute checkpoint families model) tests/cuda/gpu_accuracy.c"
                scripts='tools/make_fixtures.py tools/make_oracle.py tools/quant_layouts.py' ;;
    *)          echo "source_hash.sh: tests, sanitizers or oracles?" >&2; exit 2 ;;
esac

{
    perl -0777 -pe 's{("(?:\\.|[^"\\])*"|\x27(?:\\.|[^\x27\\])*\x27)|/\*.*?\*/|//[^\n]*|\s+}{defined $1 ? $1 : ""}gse' $files
    cat $scripts
} | sha256sum | cut -d ' ' -f 1
