#!/bin/sh
# Compiles CUDA for the simulator: compile.sh CXX FILE.cu OBJECT [FLAG...]. The preprocessor, rewrite.pl, the compiler.
# Needs g++, perl and binutils 2.38: a kernel's own arrays are read as vectors, to which they are not aligned, so moves must not ask for that.
set -eu
cxx=$1 from=$2 to=$3
shift 3
here=$(dirname "$0")
$cxx -x c++ -std=c++17 -D__CUDACC__ -D__CUDA_ARCH__=900 -march=x86-64-v3 -I"$here" -include cuda_runtime.h -w "$@" -E "$from" -MMD -MP -MT "$to" -MF "$to.d" |
    perl "$here/rewrite.pl" >"$to.ii"
$cxx -x c++-cpp-output -std=c++17 -march=x86-64-v3 -ffp-contract=off -fno-strict-aliasing -Wa,-muse-unaligned-vector-move -w "$@" -c "$to.ii" -o "$to"
