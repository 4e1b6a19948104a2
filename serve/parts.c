/* serve/parts.c: answers that consist of parts: a thought, a text, a call of a tool, each opened, added to and closed. Two APIs
   have them, and each writes them in its own words. */

enum { PART_NONE, PART_THINKING, PART_TEXT, PART_CALL };

typedef struct part_writer {
    void (*open)(reply *r);
    void (*add)(reply *r, const char *text, size_t n);     /* a token's; n may be 0 */
    void (*close)(reply *r);                               /* also puts the part into r->items */
} part_writer;

static void part_close(reply *r) {
    if (r->part == PART_NONE) return;
    r->writer->close(r);
    r->part = PART_NONE;
    r->parts++;
}

static void part_open(reply *r, int part) {
    if (r->part == part && part != PART_CALL) return;
    part_close(r);
    r->part = part;
    r->part_text.size = 0;
    r->writer->open(r);
}

static void part_add(reply *r, const char *text, size_t n) {
    if (n) buf_add(&r->part_text, text, n);
    r->writer->add(r, text, n);
}

static void part_event(answer *a) {
    reply *r = (reply *)a->user;
    const buf *thinking = &a->piece[MOTE_THINKING], *text = &a->piece[MOTE_ANSWER];
    int calls = answer_calls(a);
    if (thinking->size) part_open(r, PART_THINKING), part_add(r, thinking->data, thinking->size);
    if (text->size) part_open(r, PART_TEXT), part_add(r, text->data, text->size);
    for (int i = a->calls_reported; i < calls; i++) {
        r->part_call = answer_call(a, i);
        part_open(r, PART_CALL);
        part_add(r, r->part_call->arguments, strlen(r->part_call->arguments));
        part_close(r);
    }
    if (thinking->size || text->size || calls > a->calls_reported || a->is_end) return;
    if (r->part != PART_NONE) part_add(r, "", 0);
    else answer_progress(a, PROGRESS_TICK);
}
