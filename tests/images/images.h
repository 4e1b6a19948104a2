// images.h: the room images/ and what reads a processor's configuration, for their test and their fuzzer.

#ifndef MOTE_TEST_IMAGES_H
#define MOTE_TEST_IMAGES_H

#include "../../engine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../text/basics.c"
#include "../../text/utf8.c"
#include "../../text/json.c"
#include "../../exchange/sha256.c"
#include "../../images/picture.c"
#include "../../images/stb_image.h"
#include "../../images/stb.c"
#include "../../images/header.c"
#include "../../images/decode.c"
#include "../../images/resize.c"
#include "../../images/patches.c"
#include "../../checkpoint/safetensors.c"
#include "../../checkpoint/folder.c"
#include "../../checkpoint/processor.c"

#endif
