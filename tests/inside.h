/* inside.h: the whole library with its definitions, for tests that look inside. tests/inside.c makes one program of them, so that it is
   compiled once. */

#ifndef MOTE_TEST_INSIDE_H
#define MOTE_TEST_INSIDE_H

#define MOTE_DEFINITIONS
#include "../engine.cu"

enum { QWEN3 = CHAT_QWEN3, QWEN35 = CHAT_QWEN3_5 };

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#endif
