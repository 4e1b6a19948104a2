// Fuzz target of what a worker makes of a pass that a leader sends: whatever its bytes are, it is refused, or computed. make fuzz; needs clang.
// Run it from the top of the repository.
//
// An input: a byte of choices, then edits to a pass that is right: two bytes for the place, one for what is put there. Or the pass itself.

#include "library.h"

enum { PASS_CONTEXT = 24, PASS_SLOTS = 3 };

static worker_runner *served;

static void start_served(void) {
    mote_model *m = NULL;
    mote_error err;
    const mote_options o = {.size = sizeof o, .parts = MOTE_WEIGHTS_ONLY, .device = "cpu"};
    model_part part = part_of(0, 2, 0, 1);
    part.end = 2;
    served = (worker_runner *)calloc(1, sizeof *served);
    sockets_open(&served->sockets);
    if (model_open("tests/fixtures/bf16-as-3.5", &o, &part, 1, &m, &err)) must(0, err.message);
    const message_runner say = {.context = PASS_CONTEXT, .chunk = 12, .kv = MOTE_KV_F32, .layers = m->c.layers + 1};
    if (worker_runner_open(served, m, &say, 1, &err)) must(0, err.message);
    for (int i = 0; i < PASS_SLOTS; i++) {
        slot *s = served->slots[i] = (slot *)calloc(1, sizeof *s);
        must(!slot_begin(s, served->r, PASS_CONTEXT, 0, &err) && !slot_open(s, &err), "a slot");
    }
    served->sockets.over = 1;                              // nobody is there for the rows: that is no error of the pass
}

// A pass of n blocks of T rows each, from index on.
static void put_pass(buf *b, int n, int T, int index, int hidden, int embedded) {
    const int32_t count = n;
    b->size = 0;
    buf_add(b, &count, sizeof count);
    for (int k = 0; k < n; k++) {
        const message_request q = {.slot = k, .T = T, .replay = 0, .last = 1};
        buf_add(b, &q, sizeof q);
    }
    for (int k = 0; k < n; k++)
        for (int t = -1; t < T; t++) {
            const int at = index + t;
            const message_row row = {.index = at, .position = {at, at, at}, .id = t & 7, .embedded = embedded && !t};
            buf_add(b, &row, sizeof row);
        }
    for (int i = 0; embedded && i < n * hidden; i++) buf_add(b, &(float){0.5f}, sizeof(float));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static buf text;
    mote_error err;
    if (!served) start_served();
    if (!size) return 0;
    const unsigned choice = *data++;
    size--;
    if (choice & 1) put_pass(&text, 1 + choice / 2 % 3, 1 + choice / 8 % 8, choice / 64 * 4, served->r->m->c.hidden, choice & 2);
    else text.size = 0, buf_add(&text, data, size);
    for (; choice & 1 && size >= 3; data += 3, size -= 3) text.data[((size_t)data[0] << 8 | data[1]) % text.size] = (char)data[2];
    if (text.size > served->text_size) return 0;
    memcpy(served->text, text.data, text.size);
    served->as.ended = 0;
    const int code = worker_compute(served, 0, served->text, text.size, &err);
    must(code == MOTE_EINVAL || code == MOTE_EDEVICE, "an outcome");
    return 0;
}
