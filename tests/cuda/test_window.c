// Windows of attention on a GPU, without one: layers/attention/chunks.c. Which positions each row of a launch meets and sees, by the walks of
// the kernels, against the window itself: all of it, in order, once, and wherever else a launch begins always in the same split. And that they
// are in a ring, whatever was computed before and dropped.
//
// Contents   1. A step   2. A prompt   3. A ring   4. Main

#include "../../engine.h"
#include "../../kernels.cu"
#include "../../layers/attention/chunks.c"
#include "test.h"

static const int windows[] = {1, 2, 3, 16, 24, 61, 62, 63, 64, 65, 126, 127, 128, 129, 200, 446, 447, 448, 449, 512, 1000, 1024, 4096, INT_MAX};

// The first position after those that a row at this one does not see.
static int window_begin(int position, int window) {
    return (int)((long long)position + 1 > window ? (long long)position + 1 - window : 0);
}

// ---- 1. A step ------------------------------------------------------------------------------------------------------

// What row t of a launch whose first row is at `first` meets: attend_fast begins with the chunk of row 0's window, attend_any, `own`, with its
// own row's. Splits that the launch takes for idle (attend_place_of) meet nothing.
static void step_row(int window, int most, int first, int T, int t, int own) {
    const int splits = attend_splits(attend_window(window == INT_MAX ? 0 : window), most), end = first + T, last = first + t;
    const int chunks = (end + ATTEND_CHUNK - 1) / ATTEND_CHUNK, from = attend_window_first(own ? last : first, window) / ATTEND_CHUNK;
    const int partials = max_int(1, min_int((chunks + ATTEND_CLUSTER - 1) / ATTEND_CLUSTER, splits / ATTEND_CLUSTER));
    int next = window_begin(last, window), met = 0, bad = 0;
    for (int chunk = from; chunk < chunks; chunk++) {          // the split whose walk comes to this chunk, and how many do
        int walks = 0;
        for (int split = 0; split < splits; split++) {
            const int begin = attend_own_chunk(from, split, splits);
            bad += begin < from || begin - from >= splits;
            if (chunk < begin || (chunk - begin) % splits) continue;
            walks++;
            bad += split != chunk % splits;                    // of the position and the layer alone
            bad += split / ATTEND_CLUSTER >= partials;
        }
        bad += walks != 1;
        met++;
        for (int at = chunk * ATTEND_CHUNK; at < (chunk + 1) * ATTEND_CHUNK; at++)
            if (!attend_hidden(last, at, window)) bad += at != next++;
    }
    bad += next != last + 1;
    bad += splits < most && met > splits;                      // no split has two chunks of a window that fits
    bad += window < INT_MAX && met > (window + T + 2 * ATTEND_CHUNK - 3) / ATTEND_CHUNK;
    CHECK(!bad, "window %d, %d of %d splits, rows %d to %d: row %d", window, splits, most, first, end - 1, t);
}

static void steps(void) {
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++)
        for (int most = ATTEND_CLUSTER; most <= 4 * ATTEND_CLUSTER; most *= 2)
            for (int first = 0; first < 1200; first += test_brief || first > 300 ? 13 : 1)
                for (int T = 1; T <= STEP_ROWS; T++)
                    for (int t = 0; t < T; t++) step_row(windows[w], most, first, T, t, t % 2);
    step_row(128, 32, INT_MAX - 200, 4, 3, 0);
    step_row(INT_MAX, 32, 100000, 1, 0, 0);
}

// ---- 2. A prompt ----------------------------------------------------------------------------------------------------

// A block of `span` positions from block_first on, of a call of rows position .. end - 1: its rows see what a window is, of tiles from `from` on,
// those masked that may hide something.
static void prompt_block(int window, int keys, int span, int block_first, int position, int end) {
    const int kv_end = min_int(block_first + span, end), from = attend_window_first(block_first, window) / keys;
    int bad = 0;
    for (int row = max_int(block_first, position); row < kv_end; row++) {
        int next = window_begin(row, window);
        bad += from * keys > next;
        for (int tile = from; tile * keys < kv_end; tile++) {
            const int after = attend_tile_after(tile, keys, block_first), before = attend_tile_before(tile, keys, kv_end, window);
            for (int at = tile * keys; at < (tile + 1) * keys; at++)
                if (!(after && at > row) && !(before && at <= row - window)) bad += at != next++;
        }
        bad += next != row + 1;
    }
    CHECK(!bad, "window %d, tiles of %d, positions %d to %d of %d to %d", window, keys, block_first, kv_end - 1, position, end - 1);
}

static void prompts(void) {
    static const int calls[][2] = {{0, 70}, {0, 530}, {17, 201}, {64, 1024}, {499, 700}};
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++)
        for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
            for (int keys = 16; keys <= 64; keys *= 2)
                for (int span = 16; span <= 128; span *= 2)
                    for (int first = calls[c][0] / span * span; first < calls[c][1]; first += span)
                        prompt_block(windows[w], keys, span, first, calls[c][0], calls[c][1]);
}

// ---- 3. A ring ------------------------------------------------------------------------------------------------------

// Calls of up to `rows` rows, each appended before the first of them is attended, some of them dropped, all or the last few. What a row sees lies
// where a step's chunks and a prompt's tiles look for it, of which none reaches past the ring's end.
static void ring_calls(int window, int rows) {
    const capacity r = {.context = INT_MAX, .rows = rows, .window = window};
    const int ring = attention_ring(&r);
    int *held = (int *)allocate((size_t)ring * sizeof *held), bad = ring % ATTEND_CHUNK;
    CHECK(ring >= window - 1 + rows && ring < window + rows + 256, "window %d, calls of %d: a ring of %d rows", window, rows, ring);
    for (int count = 0, end = 3 * ring + 100; count < end;) {
        const int T = random_int(0, 2) ? random_int(1, min_int(rows, MOTE_ROWS_MAX)) : random_int(1, rows);
        const int first = attend_ring_first(count, window, ring);
        for (int t = 0; t < T; t++) held[attend_row(count + t, ring)] = count + t;
        for (int t = 0; t < T; t += random_int(1, max_int(1, min_int(T - 1 - t, 50))))
            for (int at = window_begin(count + t, window), keys = 16 << random_int(0, 2); at <= count + t; at++) {
                const int tile = attend_row(at / keys * keys, ring);
                bad += at / keys * keys < first || attend_row_from(first, at / keys * keys, ring) != tile;
                bad += tile + keys > ring || held[tile + at % keys] != at || tile + at % keys != attend_row(at, ring);
            }
        if (random_int(0, 9)) count += random_int(0, 3) || T > MOTE_ROWS_MAX ? T : random_int(1, T);
    }
    CHECK(!bad, "window %d, calls of %d rows: a ring of %d loses rows", window, rows, ring);
    free(held);
}

static void rings(void) {
    static const int rows[] = {MOTE_ROWS_MAX, 64, 192, 1024};
    for (size_t w = 0; w < sizeof windows / sizeof *windows && windows[w] <= (test_brief ? 128 : 1000); w++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) ring_calls(windows[w], rows[i]);
    const capacity longest = {.context = INT_MAX, .rows = 8192, .window = INT_MAX, .ring_rows = 1024};
    CHECK(attention_ring(&longest) == INT_MAX && attend_row(INT_MAX - 1, INT_MAX) == INT_MAX - 1, "a window that is longer than any ring");
}

// ---- 4. Main --------------------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    test_main_begin("test_window", argc, argv);
    steps();
    prompts();
    rings();
    return test_main_end();
}
