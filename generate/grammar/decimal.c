/* generate/grammar/decimal.c: the numbers that lie within bounds, as digits that are written one after the other: after each it is known
   which may follow, so that a number never comes to where no digit fits. Exact: sixteen digits before the point and fifteen after
   it, as whole numbers. It knows digits, and nothing of JSON schemas. */

#define DECIMAL_PART 1000000000000000u                      /* a whole one, in units of the last digit after the point */
#define DECIMAL_MAX 1000000000000000000u                    /* larger numbers are not written */

typedef struct decimal { uint64_t whole, part; int negative; } decimal;

/* The numbers of one sign by their magnitude, whole and part: from `low` to `high`. */
typedef struct magnitudes { int none; decimal low, high; } magnitudes;

typedef struct number_range {
    int whole;                                              /* there is no point */
    int exponents;                                          /* they may be written: there are no bounds */
    uint64_t multiple;                                      /* of this; 0: of anything */
    magnitudes sign[2];                                     /* not negative, negative */
} number_range;

static int decimal_order(decimal a, decimal b) {            /* of magnitudes */
    if (a.whole != b.whole) return a.whole < b.whole ? -1 : 1;
    return a.part < b.part ? -1 : a.part > b.part;
}

/* Reads a JSON number: 1; 0 when it has more digits after the point. Larger ones than can be written are DECIMAL_MAX. */
static int decimal_read(const char *text, size_t n, decimal *out) {
    char digits[64];
    int count = 0, point = -1, exponent = 0, sign = 1, zeros = 1;
    size_t i = n && text[0] == '-';
    memset(out, 0, sizeof *out);
    out->negative = (int)i;
    for (; i < n && (text[i] | 32) != 'e'; i++) {
        if (text[i] == '.') point = count;
        else if (count || text[i] != '0' || point >= 0) {
            if (count == (int)sizeof digits) return 0;
            zeros &= text[i] == '0';
            digits[count++] = text[i];
        }
    }
    if (point < 0) point = count;
    if (i < n && (text[++i] == '-' || text[i] == '+')) sign = text[i++] == '-' ? -1 : 1;
    for (; i < n; i++) exponent = exponent > 9999 ? exponent : exponent * 10 + (text[i] - '0');
    if (zeros) return 1;
    point += sign * exponent;
    uint64_t unit = DECIMAL_PART / 10;
    for (int k = 0; k < (point > count ? point : count); k++) {
        unsigned digit = k < count ? (unsigned)(digits[k] - '0') : 0;
        if (k < point) {
            out->whole = out->whole >= DECIMAL_MAX / 10 ? DECIMAL_MAX : out->whole * 10 + digit;
            if (out->whole == DECIMAL_MAX) return out->part = 0, 1;
            continue;
        }
        int place = k - point;                              /* after the point */
        if (place >= 15 && digit) return 0;
        if (place >= 15) continue;
        for (unit = DECIMAL_PART / 10; place > 0; place--) unit /= 10;
        out->part += digit * unit;
    }
    return 1;
}

/* One step away from zero (by 1) or towards it (by -1); 0: there is none. */
static int decimal_next(decimal *d, int whole, int by) {
    if (by < 0 && !d->whole && !d->part) return 0;
    if (whole) return d->whole += (uint64_t)(int64_t)by, 1;
    if (by > 0 && ++d->part == DECIMAL_PART) d->part = 0, d->whole++;
    else if (by < 0 && d->part-- == 0) d->part = DECIMAL_PART - 1, d->whole--;
    return 1;
}

/* All numbers that are written without bounds. */
static void range_open(number_range *r, int whole, int has_bounds) {
    decimal high = {has_bounds ? DECIMAL_MAX - 1 : DECIMAL_PART - 1, whole ? 0 : DECIMAL_PART - 1, 0};
    memset(r, 0, sizeof *r);
    r->whole = whole;
    r->exponents = !whole && !has_bounds;
    r->sign[0].high = r->sign[1].high = high;
    (void)decimal_next(&r->sign[1].low, whole, 1);          /* there is no -0 */
}

static void range_raise(number_range *r, int sign, decimal low, int exclusive) {
    magnitudes *m = &r->sign[sign];
    if (r->whole && low.part) low.part = 0, low.whole++, exclusive = 0;
    if (exclusive) (void)decimal_next(&low, r->whole, 1);
    if (decimal_order(low, m->low) > 0) m->low = low;
}

static void range_lower(number_range *r, int sign, decimal high, int exclusive) {
    magnitudes *m = &r->sign[sign];
    if (r->whole && high.part) high.part = 0, exclusive = 0;
    if (exclusive && !decimal_next(&high, r->whole, -1)) m->none = 1;
    else if (decimal_order(high, m->high) < 0) m->high = high;
}

/* At least (is_low) or at most so much. */
static void range_bound(number_range *r, decimal bound, int is_low, int exclusive) {
    int zero = !bound.whole && !bound.part, negative = bound.negative && !zero;
    if (is_low && negative) range_lower(r, 1, bound, exclusive);
    if (is_low && !negative) r->sign[1].none = 1, range_raise(r, 0, bound, exclusive);
    if (!is_low && negative) r->sign[0].none = 1, range_raise(r, 1, bound, exclusive);
    if (!is_low && !negative) range_lower(r, 0, bound, exclusive);
}

/* Whether there is a number with a magnitude from low to high. */
static int range_has(const number_range *r, int sign, decimal low, decimal high) {
    const magnitudes *m = &r->sign[sign];
    if (m->none) return 0;
    if (decimal_order(low, m->low) < 0) low = m->low;
    if (decimal_order(high, m->high) > 0) high = m->high;
    if (decimal_order(low, high) > 0) return 0;
    return r->multiple < 2 || high.whole / r->multiple * r->multiple >= low.whole;
}

static int range_is_empty(const number_range *r, int sign) {
    return !range_has(r, sign, r->sign[sign].low, r->sign[sign].high);
}

/* Whether the digits before the point may be these, or these with more of them. */
static int range_takes_whole(const number_range *r, int sign, uint64_t digits) {
    for (uint64_t scale = 1;; scale *= 10) {
        decimal low = {digits * scale, 0, 0}, high = {digits * scale + scale - 1, r->whole ? 0 : DECIMAL_PART - 1, 0};
        if (range_has(r, sign, low, high)) return 1;
        if (!digits || low.whole > r->sign[sign].high.whole || scale >= DECIMAL_MAX / 10 || digits > DECIMAL_MAX / (scale * 10))
            return 0;
    }
}

/* The same of `count` digits after the point, which are the last ones of `part` here. */
static int range_takes_part(const number_range *r, int sign, uint64_t whole, uint64_t part, int count) {
    uint64_t scale = DECIMAL_PART;
    for (int i = 0; i < count; i++) scale /= 10;
    decimal low = {whole, part * scale, 0}, high = {whole, part * scale + scale - 1, 0};
    return count <= 15 && range_has(r, sign, low, high);
}

/* Whether the number itself is within the range. */
static int range_holds(const number_range *r, int sign, uint64_t whole, uint64_t part, int count) {
    for (int i = count; i < 15; i++) part *= 10;
    decimal d = {whole, part, 0};
    return range_has(r, sign, d, d);
}
