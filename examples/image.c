/* A question about pictures, and a second one about the same: the pictures are read once, as tokens of the conversation like its words.

   Build   cc -O3 -x c engine.cu image.c -o image -lm -lpthread
   Run     ./image MODEL_FOLDER QUESTION FILE...

   The files are PNG or JPEG; the model is one with a vision tower, such as Qwen3.5's. docs/images.md says what becomes of a picture. */
#include "engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGES_MOST = 16 };

/* A whole file; its bytes are to be freed. size 0: it cannot be read. */
static mote_image image_of(const char *path) {
    mote_image image;
    memset(&image, 0, sizeof image);
    FILE *file = fopen(path, "rb");
    long size = file && !fseek(file, 0, SEEK_END) ? ftell(file) : -1;
    void *bytes = size > 0 ? malloc((size_t)size) : NULL;
    if (bytes && !fseek(file, 0, SEEK_SET) && fread(bytes, 1, (size_t)size, file) == (size_t)size) image.size = (size_t)size;
    image.data = bytes;
    if (file) fclose(file);
    return image;
}

static int print_text(void *user, int channel, const char *text, size_t size) {
    (void)user;
    if (channel == MOTE_ANSWER) fwrite(text, 1, size, stdout), fflush(stdout);
    return 0;
}

int main(int argc, char **argv) {
    mote_image images[IMAGES_MOST];
    mote_model *model = NULL;
    mote_session *session = NULL;
    mote_generation generation;
    mote_error error;
    int count = 0, width, height, tokens;
    if (argc < 4 || argc - 3 > IMAGES_MOST) return fprintf(stderr, "image: MODEL_FOLDER QUESTION FILE..., at most %d files\n", IMAGES_MOST), 2;
    int code = mote_open(argv[1], NULL, &model, &error);
    for (; !code && count < argc - 3; count++) {
        images[count] = image_of(argv[3 + count]);
        code = mote_image_size(model, &images[count], &width, &height, &tokens, &error);     /* of the header alone */
        if (!code) printf("%s: %d x %d, %d tokens\n", argv[3 + count], width, height, tokens);
    }
    memset(&generation, 0, sizeof generation);
    generation.size = sizeof generation;
    generation.think = MOTE_THINK_OFF;
    generation.on_text = print_text;
    generation.images = images;
    generation.image_count = count;
    if (!code) code = mote_session_open(model, NULL, &session, &error);
    if (!code) code = mote_ask(session, argv[2], &generation, NULL, &error);
    if (!code) printf("\n---\n");
    generation.image_count = 0;                             /* they are in the conversation */
    if (!code) code = mote_ask(session, "Describe it in one word.", &generation, NULL, &error);
    if (code) fprintf(stderr, "image: %s\n", error.message);
    else putchar('\n');
    for (int i = 0; i < count; i++) free((void *)images[i].data);
    mote_session_close(session);
    mote_close(model);
    return code != 0;
}
