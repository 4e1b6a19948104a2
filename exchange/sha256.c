/* exchange/sha256.c: SHA-256 (FIPS 180-4), by which hosts and reports tell checkpoints apart, and with a key HMAC (RFC 2104), by which a
   host shows that it knows a secret. Knows bytes alone. */

enum { SHA256_BLOCK = 64, SHA256_SIZE = 32 };

typedef struct sha256 {
    uint32_t state[8];
    uint64_t size;                         /* bytes so far */
    unsigned char block[SHA256_BLOCK];     /* of them the last size % SHA256_BLOCK */
} sha256;

static uint32_t sha256_turn(uint32_t x, int bits) {
    return x >> bits | x << (32 - bits);
}

static void sha256_open(sha256 *s) {
    static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memset(s, 0, sizeof *s);
    memcpy(s->state, first, sizeof first);
}

/* Takes in a block of 64 bytes. w: the last sixteen words of the message's schedule. */
static void sha256_block(sha256 *s, const unsigned char *block) {
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
        0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
        0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
        0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
        0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
        0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t w[16], a = s->state[0], b = s->state[1], c = s->state[2], d = s->state[3];
    uint32_t e = s->state[4], f = s->state[5], g = s->state[6], h = s->state[7];
    for (int i = 0; i < 64; i++) {
        uint32_t *word = &w[i & 15];
        if (i < 16) {
            const unsigned char *p = block + 4 * i;
            *word = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
        } else {
            const uint32_t x = w[(i - 15) & 15], y = w[(i - 2) & 15];
            *word += w[(i - 7) & 15] + (sha256_turn(x, 7) ^ sha256_turn(x, 18) ^ x >> 3) + (sha256_turn(y, 17) ^ sha256_turn(y, 19) ^ y >> 10);
        }
        const uint32_t chosen = (e & f) ^ (~e & g), most = (a & b) ^ (a & c) ^ (b & c);
        const uint32_t one = h + (sha256_turn(e, 6) ^ sha256_turn(e, 11) ^ sha256_turn(e, 25)) + chosen + k[i] + *word;
        const uint32_t two = (sha256_turn(a, 2) ^ sha256_turn(a, 13) ^ sha256_turn(a, 22)) + most;
        h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
    }
    const uint32_t add[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; i++) s->state[i] += add[i];
}

/* Whole blocks are taken where they lie. */
static void sha256_add(sha256 *s, const void *bytes, size_t n) {
    const unsigned char *p = (const unsigned char *)bytes;
    while (n) {
        const size_t have = s->size % SHA256_BLOCK, room = SHA256_BLOCK - have, take = n < room ? n : room;
        if (take == SHA256_BLOCK) sha256_block(s, p);
        else memcpy(s->block + have, p, take);
        if (take == room && have) sha256_block(s, s->block);
        s->size += take;
        p += take;
        n -= take;
    }
}

/* Ends it. */
static void sha256_close(sha256 *s, unsigned char to[SHA256_SIZE]) {
    const uint64_t bits = 8 * s->size;
    unsigned char end[8];
    for (int i = 0; i < 8; i++) end[i] = (unsigned char)(bits >> (56 - 8 * i));
    sha256_add(s, "\x80", 1);
    while (s->size % SHA256_BLOCK != 56) sha256_add(s, "", 1);
    sha256_add(s, end, sizeof end);
    for (int i = 0; i < SHA256_SIZE; i++) to[i] = (unsigned char)(s->state[i / 4] >> (24 - i % 4 * 8));
}

static void hmac_sha256(const void *key, size_t key_size, const void *text, size_t size, unsigned char to[SHA256_SIZE]) {
    unsigned char own[SHA256_BLOCK] = {0}, pad[SHA256_BLOCK];
    sha256 s;
    sha256_open(&s);
    if (key_size <= SHA256_BLOCK) memcpy(own, key, key_size);
    else sha256_add(&s, key, key_size), sha256_close(&s, own);
    for (int outer = 0; outer < 2; outer++) {
        for (int i = 0; i < SHA256_BLOCK; i++) pad[i] = own[i] ^ (outer ? 0x5c : 0x36);
        sha256_open(&s);
        sha256_add(&s, pad, sizeof pad);
        if (outer) sha256_add(&s, to, SHA256_SIZE);
        else sha256_add(&s, text, size);
        sha256_close(&s, to);
    }
}
