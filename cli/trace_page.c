/* cli/trace_page.c: a trace as one self-contained page: cli/trace_page/, with the trace's numbers in it.

   They are the JSON of <script type="application/json" id="trace">, which other programs may read there. All indices count from 0; lists
   named [tokens] have one entry a token, those of the MTP layer one less; numbers are rounded to three places.

     model, architecture         texts
     hidden, vocabulary          sizes
     chat                        true: the text is a question in the chat template
     tokens [tokens]             {id, text}: bytes that are no whole character of the token are written <0xE2>
     final [tokens]              |x|, the length of the residual, before the head
     next [tokens][5]            {id, text, p}: the most probable tokens after each, best first
     drafts [tokens - 1]         {id, text, p}: what the MTP layer drafts for the token after the next one; empty without that layer
     passes                      of the greedy answer: {tokens, taken, source}: the token that a pass begins with and its drafts, of which
                                 the first `taken` were taken; source: "mtp" or "copy"
     layers                      in order, the MTP layer last: {index, mtp, mixer, ffn}
       mixer, ffn                {kind, before [tokens], added [tokens]}: |x| before it, and the length of what it adds; and of kind
         "deltanet"              heads; decay, write, length [tokens][heads], S {rows, columns, scale [heads], values [heads]}: S after the
                                 last token, of which rows x columns whole numbers, -99 to 99, times scale / 99; of a large S each is the
                                 largest of a block
         "attention", "mla"      heads; weights [heads][tokens][token + 1]; gate [tokens][heads], only if there are gates
         "moe"                   experts, top_k; chosen [tokens][top_k]: {expert, weight}, heaviest first; router [tokens][experts]:
                                 probabilities; shared [tokens]: how far the shared expert's gate is open, only if there is one
         "mlp"                   nothing more */

static const char trace_page[] =
#include "trace_page.inc"
;

/* Up to three places, without zeros at the end. */
static void put_number(buf *out, double value) {
    char text[64];
    if (!isfinite(value)) {
        buf_text(out, "null");
        return;
    }
    int n = snprintf(text, sizeof text, "%.3f", value);
    while (text[n - 1] == '0') n--;
    if (text[n - 1] == '.') n--;
    buf_add(out, text, (size_t)n);
}

static void put_numbers(buf *out, const float *values, int n) {
    buf_text(out, "[");
    for (int i = 0; i < n; i++) {
        if (i) buf_text(out, ",");
        put_number(out, (double)values[i]);
    }
    buf_text(out, "]");
}

/* , "name": one number or a list of a token, for each of them; nothing of what there is none. */
static void put_series(buf *out, const char *name, const series *s, int tokens) {
    if (!s->values) return;
    putf(out, ",\"%s\":", name);
    if (s->n == 1) put_numbers(out, s->values, tokens);
    for (int token = 0; token < tokens && s->n > 1; token++) {
        buf_text(out, token ? "," : "[");
        put_numbers(out, trace_at(s, token), s->n);
    }
    if (s->n > 1) buf_text(out, "]");
}

static void put_token(buf *out, const trace *t, int32_t id) {
    size_t size = 0;
    const char *text = mote_token_bytes(t->model, id, &size);
    buf shown = {NULL, 0, 0, 0};
    for (size_t i = 0, n; text && i < size; i += n) {
        uint32_t c;
        const int whole = utf8_decode(text + i, size - i, &c);
        n = whole > 0 ? (size_t)whole : 1;
        if (whole > 0) buf_add(&shown, text + i, n);
        else put_byte(&shown, text[i]);
    }
    putf(out, "{\"id\":%" PRId32 ",\"text\":", id);
    put_quoted(out, shown.data ? shown.data : "", shown.size);
    out->failed |= shown.failed;
    buf_free(&shown);
}

static void put_candidate(buf *out, const trace *t, const candidate *c) {
    put_token(out, t, c->id);
    buf_text(out, ",\"p\":");
    put_number(out, (double)c->p);
    buf_text(out, "}");
}

static void put_picture(buf *out, const traced_layer *l) {
    const int cells = l->rows * l->columns;
    putf(out, ",\"S\":{\"rows\":%d,\"columns\":%d,\"scale\":[", l->rows, l->columns);
    for (int h = 0; h < l->heads; h++) {
        float scale = 0;
        for (int i = 0; i < cells; i++) scale = fmaxf(scale, fabsf(l->S[h * cells + i]));
        putf(out, "%s%.4g", h ? "," : "", (double)scale);
    }
    buf_text(out, "],\"values\":[");
    for (int h = 0; h < l->heads; h++) {
        const float *S = l->S + h * cells;
        float scale = 1e-30f;
        for (int i = 0; i < cells; i++) scale = fmaxf(scale, fabsf(S[i]));
        buf_text(out, h ? ",[" : "[");
        for (int i = 0; i < cells; i++) putf(out, "%s%d", i ? "," : "", (int)lrintf(99 * S[i] / scale));
        buf_text(out, "]");
    }
    buf_text(out, "]}");
}

static void put_attention(buf *out, const trace *t, const traced_layer *l, int tokens) {
    buf_text(out, ",\"weights\":[");
    for (int h = 0; h < l->heads; h++) {
        buf_text(out, h ? ",[" : "[");
        for (int token = 0; token < tokens; token++) {
            if (token) buf_text(out, ",");
            put_numbers(out, trace_at(&l->of[ATTENTION], token) + h * t->count, token + 1);
        }
        buf_text(out, "]");
    }
    buf_text(out, "]");
}

static void put_mixer(buf *out, const trace *t, const traced_layer *l, int tokens) {
    if (!l->mixer) {
        buf_text(out, "null");
        return;
    }
    putf(out, "{\"kind\":\"%s\",\"heads\":%d", l->mixer, l->heads);
    put_series(out, "before", &l->of[MIXER_X], tokens);
    put_series(out, "added", &l->of[MIXER_ADDED], tokens);
    put_series(out, "decay", &l->of[DECAY], tokens);
    put_series(out, "write", &l->of[WRITE], tokens);
    put_series(out, "length", &l->of[S_LENGTH], tokens);
    put_series(out, "gate", &l->of[GATE], tokens);
    if (l->S) put_picture(out, l);
    if (l->of[ATTENTION].values) put_attention(out, t, l, tokens);
    buf_text(out, "}");
}

static void put_chosen(buf *out, const series *of, int tokens) {
    buf_text(out, ",\"chosen\":[");
    for (int token = 0; token < tokens; token++) {
        const float *weights = trace_at(of, token);
        int e = -1;
        buf_text(out, token ? ",[" : "[");
        for (int k = 0; (e = next_largest(weights, of->n, e)) >= 0; k++) {
            putf(out, "%s{\"expert\":%d,\"weight\":", k ? "," : "", e);
            put_number(out, (double)weights[e]);
            buf_text(out, "}");
        }
        buf_text(out, "]");
    }
    buf_text(out, "]");
}

static void put_ffn(buf *out, const trace *t, const traced_layer *l, int tokens) {
    if (!l->ffn) {
        buf_text(out, "null");
        return;
    }
    putf(out, "{\"kind\":\"%s\"", l->ffn);
    put_series(out, "before", &l->of[FFN_X], tokens);
    put_series(out, "added", &l->of[FFN_ADDED], tokens);
    if (l->of[EXPERTS].values) {
        putf(out, ",\"experts\":%d,\"top_k\":%d", l->of[EXPERTS].n, size_named(t->info, "moe", "experts_per_token"));
        put_chosen(out, &l->of[EXPERTS], tokens);
    }
    put_series(out, "router", &l->of[ROUTER], tokens);
    put_series(out, "shared", &l->of[SHARED], tokens);
    buf_text(out, "}");
}

static void put_layers(buf *out, const trace *t) {
    buf_text(out, ",\n\"layers\":[");
    for (int i = 0; i <= t->info->layers; i++) {
        const traced_layer *l = &t->layers[i];
        if (!l->mixer && !l->ffn) continue;
        putf(out, "%s\n{\"index\":%d,\"mtp\":%s,\"mixer\":", i ? "," : "", i, i == t->info->layers ? "true" : "false");
        put_mixer(out, t, l, layer_tokens(t, i));
        buf_text(out, ",\"ffn\":");
        put_ffn(out, t, l, layer_tokens(t, i));
        buf_text(out, "}");
    }
    buf_text(out, "]");
}

static void put_passes(buf *out, const trace *t) {
    const mote_traced_pass *pass = (const mote_traced_pass *)(const void *)t->passes.data;
    buf_text(out, ",\n\"passes\":[");
    for (size_t i = 0; i < t->passes.size / sizeof *pass; i++, pass++) {
        buf_text(out, i ? ",{\"tokens\":[" : "{\"tokens\":[");
        for (int k = 0; k <= pass->drafts; k++) {
            if (k) buf_text(out, ",");
            put_token(out, t, pass->ids[k]);
            buf_text(out, "}");
        }
        putf(out, "],\"taken\":%d,\"source\":\"%s\"}", pass->taken, pass->source == MOTE_DRAFT_COPY ? "copy" : "mtp");
    }
    buf_text(out, "]");
}

static void put_trace(buf *out, const trace *t) {
    buf_text(out, "{\"model\":");
    put_text(out, t->name);
    buf_text(out, ",\"architecture\":");
    put_text(out, t->info->architecture);
    putf(out, ",\"hidden\":%d,\"vocabulary\":%d,\"chat\":%s,\n\"tokens\":[", t->info->hidden_size, t->info->vocab_size,
         t->chat ? "true" : "false");
    for (int token = 0; token < t->count; token++) {
        if (token) buf_text(out, ",");
        put_token(out, t, t->ids[token]);
        buf_text(out, "}");
    }
    buf_text(out, "],\n\"final\":");
    put_numbers(out, t->final, t->count);
    buf_text(out, ",\n\"next\":[");
    for (int token = 0; token < t->count; token++) {
        buf_text(out, token ? ",[" : "[");
        for (int k = 0; k < TRACE_NEXT && k < t->info->vocab_size; k++) {
            if (k) buf_text(out, ",");
            put_candidate(out, t, &t->next[token * TRACE_NEXT + k]);
        }
        buf_text(out, "]");
    }
    buf_text(out, "],\n\"drafts\":[");
    for (int token = 0; token + 1 < t->count && t->info->mtp_layers; token++) {
        if (token) buf_text(out, ",");
        put_candidate(out, t, &t->drafts[token]);
    }
    buf_text(out, "]");
    put_passes(out, t);
    put_layers(out, t);
    buf_text(out, "}\n");
}

/* The page, with the trace where it says so. "<" only stands in texts of the JSON, and would be HTML here. */
static int trace_write(const trace *t, output *to) {
    static const char place[] = "@trace@";
    const char *at = strstr(trace_page, place);
    buf json = {NULL, 0, 0, 0};
    put_trace(&json, t);
    int code = json.failed ? complain(EXIT_FAILURE, "out of memory for the page") : begin_outputs(to, 1);
    if (!code) fwrite(trace_page, 1, (size_t)(at - trace_page), to->file);
    for (size_t i = 0; i < json.size && !code; i++) {
        if (json.data[i] == '<') fputs("\\u003c", to->file);
        else fputc(json.data[i], to->file);
    }
    if (!code) fputs(at + sizeof place - 1, to->file);
    buf_free(&json);
    return code;
}
