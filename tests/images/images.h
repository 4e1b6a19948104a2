// images.h: the room images/ and what reads a processor's configuration, for their test and their fuzzer.

#ifndef MOTE_TEST_IMAGES_H
#define MOTE_TEST_IMAGES_H

#include "../../tokenizer.c"

#include <sys/stat.h>

#include "../../exchange/sha256.c"
#include "../../images/picture.c"
#include "../../images/stb_image.h"
#include "../../images/stb.c"
#include "../../images/header.c"
#include "../../images/decode.c"
#include "../../images/resize.c"
#include "../../images/patches.c"

#endif
