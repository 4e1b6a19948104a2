/* serve/budget.c: memory that all requests under way may take together. It counts bytes, and knows nothing of what they are.
   Nobody waits for it: what it cannot give is refused, so that requests which hold a part of it can never wait for each
   other. */

enum { REQUEST_TEXTS = 30 };               /* bytes for each of a text, as messages, a prompt and tokens: the worst that was measured, one long word */

typedef struct budget {
    size_t most;                           /* bytes */
    _Atomic size_t used;
} budget;

/* 0: there are not as many left. */
static int budget_take(budget *b, size_t bytes) {
    size_t used = b->used;
    do {
        if (used > b->most || bytes > b->most - used) return 0;
    } while (!atomic_compare_exchange_weak(&b->used, &used, used + bytes));
    return 1;
}

static void budget_give(budget *b, size_t bytes) {
    b->used -= bytes;
}
