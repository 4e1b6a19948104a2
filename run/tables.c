/* run/tables.c: rows of tables that stay in their files, fetched ahead of a pass: the host knows its tokens. Knows the model and its threads; must not
   know how a device computes. */

enum {
    TABLE_ALONE = 64,            /* so few rows one thread fetches: others would only have to be woken */
    TABLE_AHEAD = 256            /* rows that are announced together: the disk has so many to read at a time */
};

/* The table of layer i; NULL: it has none. */
static row_table *table_of(const mote_model *m, int i) {
    const sublayer *of = &m->layers[i].mixer;
    return i < m->c.layers && of->kind == LAYER_NGRAMS ? m->tables[of->w.ngrams.shape.number] : NULL;
}

/* code, error: of the first failure. */
typedef struct table_reading { row_table *table; const int64_t *rows; float *to; pthread_mutex_t lock; mote_error error; int cols, code; } table_reading;

/* Rows begin..end-1. */
static void tables_read_some(void *context, int begin, int end, int thread) {
    table_reading *t = (table_reading *)context;
    mote_error why;
    int code = MOTE_OK;
    (void)thread;
    for (int i = begin; i < end && !code; i++) {
        if ((i - begin) % TABLE_AHEAD == 0) rows_announce(t->table, t->rows + i, min_int(end - i, TABLE_AHEAD));
        code = rows_read(t->table, t->rows[i], t->to + (size_t)i * (size_t)t->cols, &why);
    }
    if (!code) return;
    pthread_mutex_lock(&t->lock);
    if (!t->code) t->code = code, t->error = why;
    pthread_mutex_unlock(&t->lock);
}

/* to[n][cols]: these rows of a table. */
static int tables_read(pool *threads, row_table *table, const int64_t *rows, int n, int cols, float *to, mote_error *err) {
    table_reading t = {.table = table, .rows = rows, .to = to, .cols = cols};
    pthread_mutex_init(&t.lock, NULL);
    if (n <= TABLE_ALONE) tables_read_some(&t, 0, n, 0);
    else parallel(threads, n, tables_read_some, &t);
    pthread_mutex_destroy(&t.lock);
    if (t.code && err) *err = t.error;
    return t.code;
}
