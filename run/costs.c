/* run/costs.c: what passes of a runner take, by their token rows: learned from the passes that answers run anyway. Nothing is measured
   apart from them. It knows neither sessions nor drafts.

   Seconds vary upwards: a pass is the first of its kind, or another process has the processor. So an estimate follows a faster pass soon
   and a slower one slowly, and one sample alone is not believed. What was seen at a context of another size, or COST_AGE passes
   ago, counts as not seen.

   Of one session's passes the numbers of rows are few, and each is seen often: between them costs are interpolated. Fewer rows than all
   of these cost as little as their share, which is less than they will: so what is chosen by these costs tries them, and then knows.
   Those of several sessions have any number of rows, and the next row's cost is a small difference of two that are not exact: a power
   law through all that was seen, what is near counting most, is steadier (cost_fitted). */

/* Passes of one number of rows. */
typedef struct row_cost {
    double seconds;
    uint64_t last;               /* of the table's passes */
    int samples;                 /* up to COST_SAMPLES */
    int position;                /* tokens before the last of them */
} row_cost;

typedef struct cost_table {
    row_cost of[PASS_ROWS_MAX + 1];                         /* [rows] */
    uint64_t passes;
} cost_table;

enum { COST_TRUSTED = 2, COST_SAMPLES = 16, COST_AGE = 2048 };

/* A pass of twice as many rows takes 2 to the power of this times as long: a guess for more rows than were seen. */
static const double COST_GROWTH = 0.65;

/* Whether a cell tells what a pass after `position` tokens takes now: keys and values of a long context are a part of it. */
static int cost_is_fresh(const cost_table *c, const row_cost *cell, int position) {
    const int64_t at = position, then = cell->position;
    return cell->samples && c->passes - cell->last < COST_AGE && at <= 2 * then + 4096 && then <= 2 * at + 4096;
}

static int cost_is_known(const cost_table *c, int rows, int position) {
    return c->of[rows].samples >= COST_TRUSTED && cost_is_fresh(c, &c->of[rows], position);
}

/* A pass of so many rows after `position` tokens took so long. */
static void cost_learn(cost_table *c, int rows, int position, double spent) {
    row_cost *cell = &c->of[rows];
    c->passes++;
    if (!cost_is_fresh(c, cell, position)) cell->samples = 0;
    if (!cell->samples) cell->seconds = spent;
    else if (cell->samples < COST_TRUSTED) cell->seconds = fmin(cell->seconds, spent);
    else if (spent < cell->seconds) cell->seconds += (spent - cell->seconds) / 4;
    else cell->seconds += (fmin(spent, 1.5 * cell->seconds) - cell->seconds) / 32;
    cell->samples = min_int(cell->samples + 1, COST_SAMPLES);
    cell->position = position;
    cell->last = c->passes;
}

/* Seconds that one would take; 0: nothing is known. */
static double cost_expected(const cost_table *c, int rows, int position) {
    int below = rows, above = rows;
    while (below && !cost_is_known(c, below, position)) below--;
    while (above <= PASS_ROWS_MAX && !cost_is_known(c, above, position)) above++;
    const double low = c->of[below].seconds, high = above <= PASS_ROWS_MAX ? c->of[above].seconds : 0;
    if (below && above <= PASS_ROWS_MAX)
        return above == below ? low : low + (high - low) * (rows - below) / (above - below);
    return below ? low * pow((double)rows / below, COST_GROWTH) : above <= PASS_ROWS_MAX ? high * rows / above : 0;
}

/* The same by a power law. COST_GROWTH counts as much as COST_TRUSTED samples of half and twice as many rows would. */
static double cost_fitted(const cost_table *c, int rows, int position) {
    double sum = 0, x = 0, y = 0, xx = 2 * COST_TRUSTED * log(2) * log(2), xy = COST_GROWTH * xx;
    for (int at = 1; at <= PASS_ROWS_MAX; at++) {
        if (!cost_is_known(c, at, position)) continue;
        const double weight = c->of[at].samples * (at < rows ? (double)at / rows : (double)rows / at);
        const double of_rows = log((double)at / rows), of_seconds = log(c->of[at].seconds);
        sum += weight;
        x += weight * of_rows;
        y += weight * of_seconds;
        xx += weight * of_rows * of_rows;
        xy += weight * of_rows * of_seconds;
    }
    if (sum <= 0) return 0;
    const double growth = fmin(fmax((xy - x * y / sum) / (xx - x * x / sum), 0), 1);
    return exp((y - growth * x) / sum);
}
