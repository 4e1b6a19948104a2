// library.h: the whole library, for fuzz targets that look inside. tests/fuzz/library.c makes one program of them, so that it is
// compiled once.

#ifndef MOTE_FUZZ_LIBRARY_H
#define MOTE_FUZZ_LIBRARY_H

#include "../../engine.cu"

static void must(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "fuzz: %s\n", what);
    abort();
}

#endif
