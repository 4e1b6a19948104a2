/* cli/accuracy.c: the command accuracy: what the ways in which a model's tokens can be computed (decoding and prompts, types of the KV cache,
   quantised weights) cost, measured on a text against a reference.

   The text is cut into contexts of so many tokens; of each the tokens of the second half are scored, so that all have a context. All ways read
   a piece of the text, one after the other, before any reads the next: so only a piece's logits are in memory. Pieces are whole chunks of a
   prompt, whose bits do not depend on where calls are cut there. */

enum { PIECE = 256, CONTEXT = 2048, CONTEXTS = 8, DEFINED_CONTEXT = 512, DECODED_MOST = 64, WAYS_MOST = 4 };

static const double kl_bound = 0.01;       /* nats a token: what less is called no loss */

enum { AGAINST_DECODE, AGAINST_CPU, AGAINST_DEFINITION, AGAINST_FOLDER };

typedef struct way {
    const char *name;                      /* "decode", "prompt" */
    int kv;                                /* MOTE_KV_... */
    int call;                              /* tokens in a call, at most */
    mote_session *session;                 /* NULL: the definition's, which needs none */
    token_score *scores;                   /* [contexts * context / 2] */
} way;

typedef struct accuracy {
    const options *o;
    const char *name;                      /* of the model */
    const mote_model *model;
    mote_model *other;                     /* the reference's, owned; NULL: it is the model's own */
    int against;                           /* AGAINST_... */
    int context, contexts;                 /* tokens of a context, a multiple of PIECE */
    int32_t *ids;                          /* [contexts][context] */
    way reference, ways[WAYS_MOST];
    int count;                             /* of ways */
    float *expected, *logits;              /* of a piece; the definition's of a context */
    int threads;
} accuracy;

static int scored_tokens(const accuracy *a) { return a->contexts * (a->context / 2); }

static const mote_model *reference_model(const accuracy *a) { return a->other ? a->other : a->model; }

/* ---- The text -------------------------------------------------------------------------------------------------------- */

/* The text is read as mote run --raw reads it: the names of control tokens are these. Whether the reference, if it is another folder, has the
   same tokens for it. */
static int check_tokens(const accuracy *a, const bytes *text, const bytes *ids, size_t count) {
    bytes other = {NULL, 0, 0};
    size_t others = 0;
    int code = tokenize(a->other, text->data, text->size, &other, &others);
    if (!code && (others != count || memcmp(other.data, ids->data, count * sizeof(int32_t))))
        code = complain(EXIT_FAILURE, "%s: its tokenizer makes other tokens of the text than that of %s", a->o->against, a->name);
    free(other.data);
    return code;
}

static int wanted_context(const accuracy *a) {
    const int context_max = mote_model_info(a->model)->context_max;
    const int wanted = a->o->context ? a->o->context : a->against == AGAINST_DEFINITION ? DEFINED_CONTEXT : CONTEXT;
    return wanted < context_max ? wanted : context_max;
}

static int wanted_contexts(const accuracy *a) {
    return a->o->contexts ? a->o->contexts : a->against == AGAINST_DEFINITION ? 1 : CONTEXTS;
}

/* How many contexts of how many tokens: of `count`, in each of which there is space for one less where texts begin with a token of their own. */
static int plan_text(accuracy *a, size_t count) {
    const mote_info *info = mote_model_info(a->model);
    const size_t begins = info->begin_token >= 0;
    size_t context = (size_t)wanted_context(a);
    if (context > count + begins) context = count + begins;
    context -= context % PIECE;
    if (!context && count + begins < PIECE)
        return complain(EXIT_FAILURE, "%s: %zu tokens, and %d are needed at least", a->o->text, count, PIECE);
    if (!context) return complain(EXIT_FAILURE, "%s: its context of %d tokens is shorter than %d", a->name, info->context_max, PIECE);
    const size_t most = (size_t)wanted_contexts(a);
    const size_t fit = count / (context - begins);
    a->context = (int)context;
    a->contexts = (int)(most < fit ? most : fit);
    return 0;
}

static int cut_text(accuracy *a, const int32_t *ids, size_t count) {
    const int32_t begin = mote_model_info(a->model)->begin_token;
    int code = plan_text(a, count);
    if (code) return code;
    const size_t begins = begin >= 0, each = (size_t)a->context - begins;
    a->ids = malloc((size_t)a->contexts * (size_t)a->context * sizeof *a->ids);
    if (!a->ids) return complain(EXIT_FAILURE, "out of memory for %d tokens", a->contexts * a->context);
    for (int c = 0; c < a->contexts; c++) {
        int32_t *to = a->ids + (size_t)c * (size_t)a->context;
        if (begins) *to = begin;
        memcpy(to + begins, ids + (size_t)c * each, each * sizeof *to);
    }
    return 0;
}

/* Reads on until `text` has more than `limit` bytes, or all: *size, how many of them are whole lines or, of a line that is longer, whole characters. */
static int read_lines(FILE *in, const char *path, size_t limit, bytes *text, size_t *size) {
    const int code = read_some(in, path, limit, text);
    *size = text->size;
    if (code || text->size <= limit) return code;
    while (*size && text->data[*size - 1] != '\n') --*size;
    if (*size) return 0;
    for (*size = limit; *size && (text->data[*size] & 0xC0) == 0x80;) --*size;
    return 0;
}

/* As much of the file as the contexts need, and one token more, since what follows might be part of the last one; at most TEXT_MAX bytes. */
static int take_text(accuracy *a) {
    const size_t wanted = (size_t)wanted_context(a) * (size_t)wanted_contexts(a);
    bytes text = {NULL, 0, 0}, ids = {NULL, 0, 0};
    size_t count = 0, size = 0;
    FILE *in = open_input(a->o->text, 1);
    if (!in) return input_failure();
    int code = 0;
    for (size_t limit = 8 * wanted; !code && count <= wanted; limit *= 4) {
        if (limit > TEXT_MAX) limit = TEXT_MAX;
        code = read_lines(in, a->o->text, limit, &text, &size);
        if (!code) code = tokenize(a->model, text.data, size, &ids, &count);
        if (limit == TEXT_MAX || text.size <= limit) break;
    }
    fclose(in);
    text.size = size;
    if (!code && a->against == AGAINST_FOLDER) code = check_tokens(a, &text, &ids, count);
    if (!code) code = cut_text(a, (const int32_t *)(const void *)ids.data, count);
    free(text.data);
    free(ids.data);
    return code;
}

/* Of a synthetic model, which has no tokenizer. */
static int take_random(accuracy *a) {
    const int count = (a->o->contexts ? a->o->contexts : CONTEXTS) * (a->o->context ? a->o->context : CONTEXT);
    int32_t *ids = random_ids(count, mote_model_info(a->model)->vocab_size);
    if (!ids) return complain(EXIT_FAILURE, "out of memory for %d tokens", count);
    const int code = cut_text(a, ids, (size_t)count);
    free(ids);
    return code;
}

/* ---- Ways, and the reference ----------------------------------------------------------------------------------------- */

static int widest_kv(const mote_model *model) { return on_gpu(mote_model_info(model)) ? MOTE_KV_BF16 : MOTE_KV_F32; }

/* Calls of so many tokens are decoded: the bits of one by one. */
static int decoded_call(const mote_model *model) {
    const int from = mote_model_info(model)->prefill_from;
    return !from ? PIECE : from - 1 < DECODED_MOST ? from - 1 : DECODED_MOST;
}

static int open_way(const accuracy *a, const mote_model *model, way *w, mote_error *error) {
    mote_session_options how = {.size = sizeof how, .context = a->context, .chunk = PIECE, .threads = a->o->threads,
                                .callbacks = {.log = on_log, .cancel = on_cancel}, .kv = w->kv, .mtp = MOTE_MTP_OFF};
    return mote_session_open(model, &how, &w->session, error);
}

/* Adds a way, unless it is the reference itself. What the model has not is left out, and said. */
static int add_way(accuracy *a, const char *name, int kv, int call) {
    way *w = &a->ways[a->count];
    mote_error error = {0, ""};
    if (!a->other && a->against == AGAINST_DECODE && kv == a->reference.kv && call == a->reference.call) return 0;
    *w = (way){.name = name, .kv = kv, .call = call};
    const int code = open_way(a, a->model, w, &error);
    if (code && code != MOTE_EUNSUPPORTED) return report(&error);
    if (code) on_log(NULL, error.message);
    if (code) return 0;
    a->count++;
    w->scores = malloc((size_t)scored_tokens(a) * sizeof *w->scores);
    return w->scores ? 0 : complain(EXIT_FAILURE, "out of memory for %d scores", scored_tokens(a));
}

static int open_ways(accuracy *a) {
    const mote_info *info = mote_model_info(a->model);
    int code = 0;
    for (int kv = widest_kv(a->model); kv <= MOTE_KV_FP8 && !code; kv++) {
        if (a->o->kv && kv != a->o->kv) continue;
        code = add_way(a, "decode", kv, decoded_call(a->model));
        if (!code && info->prefill_from) code = add_way(a, "prompt", kv, PIECE);
    }
    if (code || a->count) return code;
    if (a->o->kv && a->o->kv < widest_kv(a->model)) return complain(EXIT_USAGE, "accuracy: a GPU has no KV cache in F32");
    return complain(EXIT_USAGE, "accuracy: what is asked for is the reference itself: nothing is left to compare");
}

static int open_reference(accuracy *a) {
    const mote_model *model = reference_model(a);
    mote_error error = {0, ""};
    a->reference = (way){.name = "decode", .kv = widest_kv(model), .call = decoded_call(model)};
    if (a->against == AGAINST_DEFINITION) return 0;
    return open_way(a, model, &a->reference, &error) ? report(&error) : 0;
}

/* Experts in host memory get no slots on a GPU: the first session's would leave nothing for the others', and passes of many tokens read most experts
   anyway. */
static int without_slots(mote_model *model) {
    mote_error error = {0, ""};
    if (!mote_model_info(model)->expert_layers || !mote_limit_expert_slots(model, 0, &error)) return 0;
    return report(&error);
}

/* The reference's model, if it is not the one that is measured: unquantised, where that is asked for. */
static int open_other(accuracy *a) {
    const int cpu = a->against == AGAINST_CPU || a->against == AGAINST_DEFINITION;
    options o = *a->o;
    const mote_info *info = mote_model_info(a->model);
    const int elsewhere = on_gpu(info) || (a->against == AGAINST_DEFINITION && info->device_count > 1);
    if (a->against != AGAINST_FOLDER && !o.quantize && !(cpu && elsewhere)) return 0;
    if (a->against == AGAINST_FOLDER) o.model = o.against;
    if (cpu) o.device = "cpu", o.devices = o.workers = o.secret_file = o.split_layers = NULL, o.split = 0, o.gpu_memory = 0, o.experts = 0;
    o.quantize = 0;
    int code = open_model(&o, a->against == AGAINST_FOLDER ? MOTE_EVERYTHING : MOTE_WEIGHTS_ONLY, &a->other);
    if (!code) code = without_slots(a->other);
    if (code) return code;
    const int here = mote_model_info(a->model)->vocab_size, there = mote_model_info(a->other)->vocab_size;
    if (here == there) return 0;
    return complain(EXIT_FAILURE, "%s: its vocabulary has %d tokens, that of %s %d", a->o->against, there, a->name, here);
}

/* ---- Reading --------------------------------------------------------------------------------------------------------- */

/* Of `count` tokens of the text; logits: [count][vocab] or NULL. */
static int read_piece(const way *w, const int32_t *ids, int count, float *logits, int vocab) {
    mote_error error = {0, ""};
    for (int at = 0, n; at < count; at += n) {
        n = count - at < w->call ? count - at : w->call;
        float *to = logits ? logits + (size_t)at * (size_t)vocab : NULL;
        if (mote_feed_logits(w->session, ids + at, (size_t)n, to, NULL, &error)) return report(&error);
    }
    return 0;
}

static void keep_defined(void *user, const mote_traced *value) {
    float *to = user;
    if (value->layer >= 0 || strcmp(value->name, "logits")) return;
    for (int i = 0; i < value->count; i++) to[(size_t)value->token * (size_t)value->count + (size_t)i] = (float)value->values[i];
}

/* The reference's logits of the piece at `at` of a context, in *to; none of them are needed if not `scored`. */
static int read_reference(const accuracy *a, const int32_t *context, int at, int scored, const float **to) {
    const int vocab = mote_model_info(a->model)->vocab_size;
    const mote_callbacks calls = callbacks();
    mote_error error = {0, ""};
    *to = a->expected;
    if (a->against != AGAINST_DEFINITION)
        return read_piece(&a->reference, context + at, PIECE, scored ? a->expected : NULL, vocab);
    if (!at && mote_trace(reference_model(a), context, (size_t)a->context, &calls, keep_defined, a->expected, &error))
        return report(&error);
    *to += (size_t)at * (size_t)vocab;
    return 0;
}

/* Of the piece at `at` of context c: rows whose next token is of the context's second half. */
static int score_piece(accuracy *a, int c, int at) {
    const int vocab = mote_model_info(a->model)->vocab_size, half = a->context / 2;
    const int first = at < half - 1 ? half - 1 : at, end = at + PIECE < a->context - 1 ? at + PIECE : a->context - 1;
    const int32_t *context = a->ids + (size_t)c * (size_t)a->context;
    const size_t skip = first < end ? (size_t)(first - at) * (size_t)vocab : 0;
    const float *expected;
    int code = read_reference(a, context, at, first < end, &expected);
    for (int i = 0; i < a->count && !code; i++) {
        const way *w = &a->ways[i];
        code = read_piece(w, context + at, PIECE, first < end ? a->logits : NULL, vocab);
        if (code || first >= end) continue;
        const scoring s = {.reference = expected + skip, .logits = a->logits + skip, .next = context + first + 1,
                           .scores = w->scores + c * half + first - (half - 1), .count = end - first, .vocab = vocab, .threads = a->threads};
        score_tokens(&s);
        for (int t = 0; t < s.count && !code; t++)
            if (!isfinite(s.scores[t].kl))
                code = complain(EXIT_FAILURE, "accuracy: %s, %s KV cache, token %d of context %d: a logit is not a number", w->name,
                                kv_names[w->kv], first + t, c + 1);
    }
    return code;
}

static int empty_timelines(const accuracy *a) {
    mote_error error = {0, ""};
    if (a->reference.session && mote_reset(a->reference.session, &error)) return report(&error);
    for (int i = 0; i < a->count; i++)
        if (mote_reset(a->ways[i].session, &error)) return report(&error);
    return 0;
}

static int score_text(accuracy *a) {
    const int pieces = a->context / PIECE;
    int code = 0;
    for (int c = 0; c < a->contexts && !code; c++) {
        char what[48];
        snprintf(what, sizeof what, "context %d of %d", c + 1, a->contexts);
        code = empty_timelines(a);
        for (int p = 0; p < pieces && !code; p++) {
            if (isatty(STDERR_FILENO)) on_progress(NULL, what, (c + (double)p / pieces) / a->contexts);
            code = score_piece(a, c, p * PIECE);
        }
    }
    clear_progress();
    return code;
}

/* ---- What it tells --------------------------------------------------------------------------------------------------- */

static void describe_reference(const accuracy *a, char *to, size_t capacity) {
    const char *kv = kv_names[a->reference.kv];
    if (a->against == AGAINST_DEFINITION) snprintf(to, capacity, "the definition, in double precision, on the CPU");
    else if (a->against == AGAINST_FOLDER) snprintf(to, capacity, "%.200s, decode, %s KV cache", a->o->against, kv);
    else snprintf(to, capacity, "decode%s, %s KV cache%s", a->against == AGAINST_CPU ? " on the CPU" : "", kv,
                  a->o->quantize ? ", the checkpoint's own weights" : "");
}

static void print_accuracy_head(const accuracy *a, FILE *table, const char *reference, double perplexity) {
    const mote_info *info = mote_model_info(a->model);
    show_format(table, "model      %s%s%s\n", a->name,
                a->o->synthetic ? " (synthetic: random weights, which say little of real ones)" : a->o->quantize ? " with --quantize " : "",
                a->o->quantize ? quantize_names[a->o->quantize] : "");
    show_format(table, "device     %s\n", info->device);
    show_format(table, "text       %s: %d context%s of %d tokens, the last %d of each scored\n", a->o->synthetic ? "random tokens" : a->o->text,
                a->contexts, a->contexts == 1 ? "" : "s", a->context, a->context / 2);
    show_format(table, "reference  %s: perplexity %.6g\n\n", reference, perplexity);
    fprintf(table, "%-16s%30s%15s%14s\n", "", "KL divergence, nats a token", "first choice", "perplexity");
    fprintf(table, "%-8s%-8s%10s%10s%10s%15s%14s%10s\n", "", "KV", "mean", "99 %", "largest", "the same", "", "change");
}

static void print_way(const way *w, const accuracy_summary *s, FILE *table) {
    fprintf(table, "%-8s%-8s%10.6f%10.6f%10.6f%13.2f %%%14.6g%+8.3f %%\n", w->name, kv_names[w->kv], s->kl, s->kl_99, s->kl_most, 100 * s->same,
            s->perplexity, 100 * (s->perplexity / s->expected - 1));
}

static void print_conclusion(const accuracy *a, const way *w, const accuracy_summary *s, FILE *table) {
    fprintf(table, "%s, %s KV cache: %.2g nats a token, %s than %g", w->name, kv_names[w->kv], s->kl, s->kl < kl_bound ? "less" : "not less",
            kl_bound);
    if (!s->others) fprintf(table, "; all first choices are the reference's\n");
    else fprintf(table, "; 1 in %.0f first choices is another than the reference's\n", (double)scored_tokens(a) / s->others);
}

static void json_way(const way *w, const accuracy_summary *s, FILE *json, int first) {
    fprintf(json, "%s\n  {\"name\": \"%s\", \"kv\": \"%s\", ", first ? "" : ",", w->name, kv_names[w->kv]);
    fprintf(json, "\"kl_mean\": %.12g, \"kl_99\": %.12g, \"kl_largest\": %.12g, \"same_first\": %.12g, \"perplexity\": %.12g}", s->kl, s->kl_99,
            s->kl_most, s->same, s->perplexity);
}

static void json_accuracy_head(const accuracy *a, FILE *json, const char *reference, double perplexity) {
    fputs("{", json);
    json_text(json, "mote", mote_version());
    fputs(", ", json);
    json_text(json, "model", a->name);
    fprintf(json, ", \"synthetic\": %s, \"quantize\": ", a->o->synthetic ? "true" : "false");
    if (a->o->quantize) fprintf(json, "\"%s\", ", quantize_names[a->o->quantize]);
    else fputs("null, ", json);
    json_text(json, "device", mote_model_info(a->model)->device);
    fputs(",\n ", json);
    json_text(json, "text", a->o->synthetic ? "" : a->o->text);
    fprintf(json, ", \"contexts\": %d, \"context\": %d, \"scored\": %d,\n ", a->contexts, a->context, scored_tokens(a));
    json_text(json, "reference", reference);
    fprintf(json, ", \"reference_perplexity\": %.12g,\n \"rows\": [", perplexity);
}

/* json: NULL when it is not wanted. */
static int tell_accuracy(const accuracy *a, FILE *table, FILE *json) {
    accuracy_summary s[WAYS_MOST];
    char reference[320];
    double *kl = malloc((size_t)scored_tokens(a) * sizeof *kl);
    if (!kl) return complain(EXIT_FAILURE, "out of memory for %d scores", scored_tokens(a));
    for (int i = 0; i < a->count; i++) s[i] = summarise_scores(a->ways[i].scores, scored_tokens(a), kl);
    free(kl);
    describe_reference(a, reference, sizeof reference);
    print_accuracy_head(a, table, reference, s[0].expected);
    if (json) json_accuracy_head(a, json, reference, s[0].expected);
    for (int i = 0; i < a->count; i++) {
        print_way(&a->ways[i], &s[i], table);
        if (json) json_way(&a->ways[i], &s[i], json, i == 0);
    }
    fputc('\n', table);
    for (int i = 0; i < a->count; i++) print_conclusion(a, &a->ways[i], &s[i], table);
    if (!mote_model_info(a->model)->prefill_from) fputs("prompts are computed as decode is, to the bit\n", table);
    if (json) fputs("\n]}\n", json);
    return 0;
}

/* ---- The command ----------------------------------------------------------------------------------------------------- */

static int accuracy_usage(const options *o, int *against) {
    *against = !o->against || !strcmp(o->against, "decode") ? AGAINST_DECODE : !strcmp(o->against, "cpu") ? AGAINST_CPU
               : !strcmp(o->against, "definition") ? AGAINST_DEFINITION : AGAINST_FOLDER;
    if (o->model && o->synthetic) return complain(EXIT_USAGE, "accuracy: -m and --synthetic exclude each other");
    if (o->synthetic && (o->text || o->quantize || *against == AGAINST_FOLDER))
        return complain(EXIT_USAGE, "accuracy: not with --synthetic: --text, --quantize, --against DIR");
    if (!o->synthetic && !o->text)
        return complain(EXIT_USAGE, "accuracy: --text FILE is needed: some ten thousand words, as the model will read them");
    if (o->workers && (o->quantize || *against == AGAINST_FOLDER))
        return complain(EXIT_USAGE, "accuracy: not with --workers, which serve one model at a time: --quantize, --against DIR");
    if (o->context && o->context % PIECE) return complain(EXIT_USAGE, "accuracy: --context needs a multiple of %d, not '%d'", PIECE, o->context);
    if (*against == AGAINST_DEFINITION && o->context > MOTE_TRACE_TOKENS)
        return complain(EXIT_USAGE, "accuracy: --against definition takes a --context of up to %d", MOTE_TRACE_TOKENS);
    return 0;
}

static int measure_accuracy(accuracy *a) {
    const size_t vocab = (size_t)mote_model_info(a->model)->vocab_size;
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    if (a->against == AGAINST_CPU && !on_gpu(mote_model_info(a->model))) a->against = AGAINST_DECODE;
    int code = open_other(a);
    a->threads = a->o->threads ? a->o->threads : processors > 0 ? (int)(processors < SCORERS_MOST ? processors : SCORERS_MOST) : 1;
    if (a->threads > SCORERS_MOST) a->threads = SCORERS_MOST;
    if (!code) code = a->o->synthetic ? take_random(a) : take_text(a);
    if (!code) code = open_reference(a);
    if (!code) code = open_ways(a);
    if (code) return code;
    const size_t rows = a->against == AGAINST_DEFINITION ? (size_t)a->context : PIECE;
    a->expected = malloc(rows * vocab * sizeof *a->expected);
    a->logits = malloc(PIECE * vocab * sizeof *a->logits);
    if (!a->expected || !a->logits) return complain(EXIT_FAILURE, "out of memory for %zu rows of logits", rows + PIECE);
    return score_text(a);
}

static void free_accuracy(accuracy *a) {
    mote_session_close(a->reference.session);
    for (int i = 0; i < WAYS_MOST; i++) {
        mote_session_close(a->ways[i].session);
        free(a->ways[i].scores);
    }
    free(a->ids);
    free(a->expected);
    free(a->logits);
    mote_close(a->other);
}

static int command_accuracy(options *o) {
    const int to_screen = o->json && !strcmp(o->json, "-");
    static char name[PATH_MAX + 16];       /* opening another folder would change o->model */
    mote_model *model = NULL;
    output json = {0};
    accuracy a = {.o = o, .name = name};
    int code = accuracy_usage(o, &a.against);
    if (code) return code;
    catch_interrupt(1);
    if (o->json && !to_screen) code = open_output(&json, o->json);
    if (!code) code = open_model(o, o->synthetic ? MOTE_WEIGHTS_ONLY : MOTE_EVERYTHING, &model);
    if (!code) {
        snprintf(name, sizeof name, "%s", o->synthetic ? o->synthetic : o->model);
        a.model = model;
        code = without_slots(model);
        if (!code) code = measure_accuracy(&a);
    }
    if (!code) code = begin_outputs(&json, 1);
    if (!code) code = tell_accuracy(&a, to_screen ? stderr : stdout, to_screen ? stdout : json.file);
    code = close_outputs(&json, 1, code);
    free_accuracy(&a);
    mote_close(model);
    return code;
}
