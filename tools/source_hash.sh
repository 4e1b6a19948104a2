#!/bin/sh
# Prints the SHA-256 of the library's own sources, as they are included into engine.cu, without comments and white space: what
# a comment or a line break changes does not change it. Needs perl, which Debian and Ubuntu always have.
# Usage: tools/source_hash.sh, from the top of the repository
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tools/amalgamate.sh "$folder"
cat "$folder/engine.h" "$folder/engine.cu" |
    perl -0777 -pe 's{("(?:\\.|[^"\\])*"|\x27(?:\\.|[^\x27\\])*\x27)|/\*.*?\*/|//[^\n]*|\s+}{defined $1 ? $1 : ""}gse' |
    sha256sum | cut -d ' ' -f 1
