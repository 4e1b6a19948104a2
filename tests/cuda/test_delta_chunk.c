// Tests of tests/deltanet_chunk.h, without a GPU: the chunk form of the delta rule against the recurrence, both in double,
// and that the comparison would see a chunk form that is wrong.
//
// Contents   1. Tokens   2. The recurrence   3. The chunk form against it   4. Main

#include "deltanet_chunk.h"
#include "test.h"

enum { MOST_TOKENS = 256, MOST_DIM = 24 };

static const double bound = 1e-11;              // relative, of doubles after up to 256 tokens

// ---- 1. Tokens ------------------------------------------------------------------------------------------------------

enum gates { ORDINARY, NEVER, AT_ONCE, NOW_AND_THEN, INFINITE, GATES };
enum keys { RANDOM, REPEATED, ALL_EQUAL, ONE_HOT, KEYS };

static const char *gate_names[] = {"ordinary", "never", "at once", "now and then", "infinite"};
static const char *key_names[] = {"random", "repeated", "all equal", "one-hot"};

typedef struct tokens {
    int n, dk, dv;
    double q[MOST_TOKENS * MOST_DIM], k[MOST_TOKENS * MOST_DIM], v[MOST_TOKENS * MOST_DIM], g[MOST_TOKENS], beta[MOST_TOKENS];
} tokens;

typedef struct outcome {
    double S[MOST_DIM * MOST_DIM], o[MOST_TOKENS * MOST_DIM];
} outcome;

static tokens given;
static outcome first, wanted, got;

static double uniform_number(double low, double high) {
    return low + (high - low) * random_bits() / 4294967296.0;
}

static void random_unit(double *x, int n) {
    double squares = 1e-6;
    for (int i = 0; i < n; i++) x[i] = uniform_number(-1, 1), squares += x[i] * x[i];
    for (int i = 0; i < n; i++) x[i] /= sqrt(squares);
}

static double random_gate(enum gates gates, int t) {
    if (gates == NEVER) return 0;
    if (gates == AT_ONCE) return -90;
    if (gates == NOW_AND_THEN) return t % 7 == 3 ? -90 : uniform_number(-0.01, 0);
    if (gates == INFINITE && t % 5 == 2) return -INFINITY;
    return -exp(uniform_number(-7, 2));
}

static void make_tokens(int n, int dk, int dv, enum gates gates, enum keys keys) {
    given.n = n, given.dk = dk, given.dv = dv;
    for (int t = 0; t < n; t++) {
        double *k = given.k + t * dk;
        random_unit(given.q + t * dk, dk);
        random_unit(k, dk);
        if (t && (keys == ALL_EQUAL || (keys == REPEATED && t % 3))) memcpy(k, k - dk, (size_t)dk * sizeof *k);
        for (int i = 0; keys == ONE_HOT && i < dk; i++) k[i] = i == t % dk;
        for (int i = 0; i < dk; i++) given.q[t * dk + i] /= sqrt((double)dk);
        for (int i = 0; i < dv; i++) given.v[t * dv + i] = uniform_number(-3, 3);
        given.g[t] = random_gate(gates, t);
        given.beta[t] = keys == ALL_EQUAL ? 1 : uniform_number(0, 1);
    }
    for (int i = 0; i < dk * dv; i++) first.S[i] = uniform_number(-1, 1);
}

// ---- 2. The recurrence ----------------------------------------------------------------------------------------------

static void recurrence(outcome *to) {
    int dk = given.dk, dv = given.dv;
    memcpy(to->S, first.S, sizeof to->S);
    for (int t = 0; t < given.n; t++)
        for (int d = 0; d < dv; d++) {
            double *row = to->S + d * dk, u = given.v[t * dv + d];
            for (int c = 0; c < dk; c++) row[c] *= exp(given.g[t]), u -= row[c] * given.k[t * dk + c];
            for (int c = 0; c < dk; c++) row[c] += given.beta[t] * u * given.k[t * dk + c];
            to->o[t * dv + d] = 0;
            for (int c = 0; c < dk; c++) to->o[t * dv + d] += row[c] * given.q[t * dk + c];
        }
}

// ---- 3. The chunk form against it -----------------------------------------------------------------------------------

static void chunks(outcome *to, int begin, int length) {
    int dk = given.dk, dv = given.dv;
    memcpy(to->S, first.S, sizeof to->S);
    for (int t = 0, n; t < given.n; t += n) {
        n = t ? length : begin;
        if (n > given.n - t) n = given.n - t;
        delta_chunk(to->S, given.q + t * dk, given.k + t * dk, given.v + t * dv, given.g + t, given.beta + t, n, dk, dv,
                    to->o + t * dv);
    }
}

// |a - b| / |b|; NaN is a difference, too.
static double difference(const double *a, const double *b, int n) {
    double off = 0, all = 1e-300;
    for (int i = 0; i < n; i++) off += (a[i] - b[i]) * (a[i] - b[i]), all += b[i] * b[i];
    return off == off ? sqrt(off / all) : INFINITY;
}

static double compare(void) {
    double o = difference(got.o, wanted.o, given.n * given.dv), S = difference(got.S, wanted.S, given.dk * given.dv);
    return o > S ? o : S;
}

static void test_case(int n, int begin, int length, enum gates gates, enum keys keys) {
    make_tokens(n, random_int(1, MOST_DIM), random_int(1, MOST_DIM), gates, keys);
    recurrence(&wanted);
    chunks(&got, begin, length);
    CHECK(compare() < bound, "%d tokens, chunks of %d, then %d, gates %s, keys %s: %.2g", n, begin, length, gate_names[gates],
          key_names[keys], compare());
}

// Chunks of every length: one, several in a row, the last of them ragged, the first of them short.
static void test_lengths(void) {
    for (int length = 1; length <= DELTA_CHUNK_MOST; length++)
        for (int gates = 0; gates < GATES; gates++)
            for (int keys = 0; keys < KEYS; keys++) {
                if (test_brief && (length + gates + keys) % 8) continue;
                test_case(length, length, length, (enum gates)gates, (enum keys)keys);
                test_case(3 * length, length, length, (enum gates)gates, (enum keys)keys);
                test_case(random_int(1, MOST_TOKENS), random_int(1, length), length, (enum gates)gates, (enum keys)keys);
            }
}

// The comparison sees a gate that is off by a tenth of a percent, a tail that is taken for tokens, and a lost update.
static void test_it_can_fail(void) {
    make_tokens(100, 16, 16, ORDINARY, RANDOM);
    recurrence(&wanted);
    given.g[40] *= 1.001;
    chunks(&got, 32, 32);
    CHECK(compare() > bound, "a wrong gate: %.2g", compare());
    make_tokens(100, 16, 16, NEVER, REPEATED);
    recurrence(&wanted);
    given.beta[99] = 0;
    chunks(&got, 32, 32);
    CHECK(compare() > bound, "a lost update: %.2g", compare());
    make_tokens(100, 16, 16, AT_ONCE, RANDOM);
    recurrence(&wanted);
    chunks(&got, 32, 32);
    got.o[50] = NAN;
    CHECK(!(compare() < bound), "a NaN: %.2g", compare());
    make_tokens(65, 16, 16, ORDINARY, RANDOM);
    given.n = 64;
    recurrence(&wanted);
    given.n = 65;
    chunks(&got, 32, 32);
    CHECK(compare() > bound, "a row too many: %.2g", compare());
}

// ---- 4. Main --------------------------------------------------------------------------------------------------------

int main(int argc, char **argv) {
    test_main_begin("test_delta_chunk", argc, argv);
    test_lengths();
    test_it_can_fail();
    return test_main_end();
}
