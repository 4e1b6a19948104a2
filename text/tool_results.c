/* text/tool_results.c: which tool result answers which call. Templates have no ids: a model takes the first result for that of
   its first call, so the results of a round have to stand in the order of its calls. It knows nothing of what either says.

   A result is that of the call whose id it gives ("tool_call_id", and the call's "id"). One that gives none, or an id of no
   call, goes to the first call without a result of its own: so these keep their order. With several calls of one id the
   results of that id are theirs in order; those left over come last. None is lost. */

typedef struct tool_id {
    uint64_t hash;                             /* of its text */
    uint32_t at;                               /* which call, or which result */
} tool_id;

static int by_tool_id(const void *a, const void *b) {
    const tool_id *x = (const tool_id *)a, *y = (const tool_id *)b;
    return x->hash != y->hash ? (x->hash > y->hash) - (x->hash < y->hash) : (x->at > y->at) - (x->at < y->at);
}

/* Adds the id that an object has under this key, if it is a text that is not empty. scratch: holds it meanwhile. */
static uint32_t add_tool_id(tool_id *ids, uint32_t n, const json *j, uint32_t object, const char *key, uint32_t at, buf *scratch) {
    uint32_t node = json_get(j, object, key);
    scratch->size = 0;
    if (node && j->nodes[node].type == JSON_STRING) put_string(j, node, scratch);
    if (!scratch->size) return n;
    ids[n].hash = fnv1a(FNV_START, scratch->data, scratch->size);
    ids[n].at = at;
    return n + 1;
}

enum { RESULT_FREE, RESULT_HELD, RESULT_PLACED };

/* Both lists of ids are sorted: those that are equal are passed over together, each call with its result. answer [calls] and
   states [results]; what has the id of a call is held for it, or until the end. */
static void match_tool_ids(const tool_id *calls, uint32_t call_count, const tool_id *results, uint32_t count, uint32_t *answer,
                           unsigned char *states) {
    uint32_t i = 0, k = 0;
    while (k < count) {
        const int order = i < call_count ? (calls[i].hash > results[k].hash) - (calls[i].hash < results[k].hash) : 1;
        if (order < 0) {
            i++;
            continue;
        }
        if (order == 0) answer[calls[i++].at] = results[k].at;
        if (order == 0 || (i && calls[i - 1].hash == results[k].hash)) states[results[k].at] = RESULT_HELD;
        k++;
    }
}

/* Brings the nodes of `count` tool messages that follow an assistant's with these calls, a list, into their order. */
static int order_results(const json *j, uint32_t calls, uint32_t *messages, uint32_t count, mote_error *err) {
    uint32_t call_count = j->nodes[calls].size, n = 0, m = 0, next = 0, put = 0;
    tool_id *ids = (tool_id *)calloc((size_t)call_count + count, sizeof *ids);
    uint32_t *answer = (uint32_t *)calloc((size_t)call_count + count, sizeof *answer), *order = NULL;
    unsigned char *states = (unsigned char *)calloc(count, 1);
    buf scratch;
    memset(&scratch, 0, sizeof scratch);
    int code = ids && answer && states ? MOTE_OK : fail_memory(err);
    for (uint32_t k = calls + 1, i = 0; !code && i < call_count; k = j->nodes[k].next, i++) {
        n = add_tool_id(ids, n, j, k, "id", i, &scratch);
        answer[i] = count;
    }
    for (uint32_t i = 0; !code && i < count; i++) m = add_tool_id(ids + n, m, j, messages[i], "tool_call_id", i, &scratch);
    if (!code && scratch.failed) code = fail_memory(err);
    if (!code) {
        order = answer + call_count;
        qsort(ids, n, sizeof *ids, by_tool_id);
        qsort(ids + n, m, sizeof *ids, by_tool_id);
        match_tool_ids(ids, n, ids + n, m, answer, states);
    }
    for (uint32_t i = 0; !code && i < call_count; i++) {
        while (answer[i] == count && next < count && states[next] != RESULT_FREE) next++;
        uint32_t result = answer[i] == count ? next : answer[i];
        if (result == count) continue;
        states[result] = RESULT_PLACED;
        order[put++] = messages[result];
    }
    for (uint32_t i = 0; !code && i < count; i++)
        if (states[i] != RESULT_PLACED) order[put++] = messages[i];
    if (!code) memcpy(messages, order, count * sizeof *order);
    free(ids);
    free(answer);
    free(states);
    buf_free(&scratch);
    return code;
}
