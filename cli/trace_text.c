/* cli/trace_text.c: a trace as text, at most 100 columns wide. */

enum { LABEL_WIDTH = 14, LABEL_BYTES = 4 * LABEL_WIDTH + 16 };

/* The bytes of a token that are no whole character, as vocabularies name such tokens. Of several tokens together they can be one. */
static void put_byte(buf *out, char byte) {
    putf(out, "<0x%02X>", (unsigned)(unsigned char)byte);
}

/* A character at `text`, of which n > 0 bytes are left, or a byte of it. Returns how many bytes that is. */
static int put_character(buf *out, const char *text, size_t n) {
    uint32_t c;
    const int size = utf8_decode(text, n, &c);
    if (size <= 0) put_byte(out, *text);
    else if (c == '\n') buf_text(out, "\\n");
    else if (c == '"') buf_text(out, "\\\"");
    else if (c == '\t') buf_text(out, "\\t");
    else if (c < ' ' || c == 127) putf(out, "\\x%02x", (unsigned)c);
    else utf8_put(out, c);
    return size > 0 ? size : 1;
}

/* A token's text in quotes, one line of at most `width` characters; its id where it has no text. Returns how many it took. */
static int print_label(const trace *t, int32_t id, int width) {
    size_t size = 0;
    const char *text = mote_token_bytes(t->model, id, &size), *end = text ? text + size : NULL;
    char bytes[LABEL_BYTES];
    buf out = {bytes, 0, sizeof bytes, 0};
    int shown = 2;
    if (!text) putf(&out, "#%" PRId32, id), shown = (int)out.size;
    else buf_text(&out, "\"");
    while (text && text < end) {
        const size_t before = out.size;
        text += put_character(&out, text, (size_t)(end - text));
        const int wide = (unsigned char)out.data[before] < 0x80 ? (int)(out.size - before) : 1;
        if (shown + wide + (text < end) > width) {
            out.size = before;
            buf_text(&out, "…");
            shown++;
            break;
        }
        shown += wide;
    }
    if (end) buf_text(&out, "\"");
    show(stdout, out.data, out.size);
    return shown;
}

static void print_padded(const trace *t, int32_t id, int width) {
    const int shown = print_label(t, id, width);
    printf("%*s", shown < width ? width - shown : 0, "");
}

static void print_token(const trace *t, int token) {
    printf("%3d ", token);
    print_padded(t, t->ids[token], LABEL_WIDTH);
}

/* ---- A layer --------------------------------------------------------------------------------------------------------- */

/* As many decimals as four digits allow. */
static int decimals_of(float value) {
    return value < 9.995f ? 2 : value < 99.95f ? 1 : 0;
}

static void print_range(const float *values, int n) {
    float low = values[0], high = values[0];
    for (int i = 1; i < n; i++) low = values[i] < low ? values[i] : low, high = values[i] > high ? values[i] : high;
    printf("  %4.*f-%-4.*f", decimals_of(low), (double)low, decimals_of(high), (double)high);
}

static void print_length(const series *s, int token) {
    const float value = *trace_at(s, token);
    printf("%7.*f", value < 999.995f ? 2 : 0, (double)value);
}

/* Where the largest of n numbers above 0 is that comes after the one at `last`, in order of size, then place; last -1: of all of them. -1:
   there is none. */
static int next_largest(const float *values, int n, int last) {
    int best = -1;
    for (int i = 0; i < n; i++) {
        const int after = last < 0 || values[i] < values[last] || (values[i] == values[last] && i > last);
        if (values[i] > 0 && after && (best < 0 || values[i] > values[best])) best = i;
    }
    return best;
}

/* Where heads look: those three that look hardest at one token. */
static void print_looks(const trace *t, const traced_layer *l, int token) {
    const float *weights = trace_at(&l->of[ATTENTION], token);
    float hardest[256];
    int at[256], heads = l->heads < 256 ? l->heads : 256, best = -1;
    for (int h = 0; h < heads; h++) {
        at[h] = next_largest(weights + h * t->count, token + 1, -1);
        hardest[h] = at[h] < 0 ? 0 : weights[h * t->count + at[h]];
    }
    for (int k = 0; k < 3; k++) {
        if (k < heads) best = next_largest(hardest, heads, best);
        if (k < heads && best >= 0) printf("%3d>%-2d %4.2f", best, at[best], (double)hardest[best]);
        else printf("%*s", 11, "");
    }
}

/* The experts of most weight, at most two, and how many more there are, in so many columns. */
static void print_experts(const series *of, int token, int width) {
    const float *weights = trace_at(of, token);
    int e = -1, more = 0, column = 0;
    printf("  ");
    for (int k = 0; (e = next_largest(weights, of->n, e)) >= 0; k++) {
        if (k < 2) column += printf("%s%d %.2f", k ? ", " : "", e, (double)weights[e]);
        else more++;
    }
    if (more) column += printf(" +%d", more);
    printf("%*s", column < width ? width - column : 0, "");
}

static void print_mixer_token(const trace *t, const traced_layer *l, int token) {
    print_length(&l->of[MIXER_ADDED], token);
    if (l->of[DECAY].values) {
        print_range(trace_at(&l->of[DECAY], token), l->heads);
        print_range(trace_at(&l->of[WRITE], token), l->heads);
        print_range(trace_at(&l->of[S_LENGTH], token), l->heads);
    } else if (l->of[ATTENTION].values) {
        print_looks(t, l, token);
    }
}

static void print_layer_token(const trace *t, const traced_layer *l, int token) {
    print_token(t, token);
    print_length(&l->of[l->mixer ? MIXER_X : FFN_X], token);
    if (l->mixer) print_mixer_token(t, l, token);
    if (l->ffn) print_length(&l->of[FFN_ADDED], token);
    if (l->of[EXPERTS].values) print_experts(&l->of[EXPERTS], token, l->of[SHARED].values ? 20 : 0);
    if (l->of[SHARED].values) printf("%5.2f", (double)*trace_at(&l->of[SHARED], token));
    putchar('\n');
}

static void print_layer_head(const trace *t, int i) {
    const traced_layer *l = &t->layers[i];
    if (i == t->info->layers) printf("\nMTP layer, ");
    else printf("\nlayer %d, ", i);
    printf("%s%s%s\n", l->mixer ? l->mixer : "", l->mixer && l->ffn ? " + " : "", l->ffn ? l->ffn : "");
}

/* Tokens of which the layer knows: the MTP layer needs the one after it, too. */
static int layer_tokens(const trace *t, int i) {
    return i == t->info->layers ? t->count - 1 : t->count;
}

static void print_layer(const trace *t, int i) {
    const traced_layer *l = &t->layers[i];
    if (!l->mixer && !l->ffn) return;
    print_layer_head(t, i);
    printf("token%*s%7s", LABEL_WIDTH - 1, "", "|x|");
    if (l->mixer)
        printf(l->ffn ? "%7s%-33s" : "%7s%s", "+mixer", l->of[DECAY].values ? "  decay      write      |S|" : " head>token weight");
    const int shared = l->of[SHARED].values != NULL;
    if (l->ffn) printf("%7s%s", "+FFN", !l->of[EXPERTS].values ? "" : shared ? "  experts             share" : "  experts");
    putchar('\n');
    for (int token = 0; token < layer_tokens(t, i); token++) print_layer_token(t, l, token);
}

/* ---- One layer in detail ------------------------------------------------------------------------------------------- */

static void print_head_looks(const trace *t, const float *weights, int tokens) {
    int at = -1;
    printf("looks at");
    for (int k = 0; k < 3 && (at = next_largest(weights, tokens, at)) >= 0; k++) {
        printf(" %2d ", at);
        print_padded(t, t->ids[at], LABEL_WIDTH);
        printf(" %4.2f", (double)weights[at]);
    }
}

static void print_head_detail(const trace *t, const traced_layer *l, int token, int h) {
    printf("  head %-2d ", h);
    if (l->of[DECAY].values)
        printf("decay %5.3f, write %5.3f, |S| %6.2f", (double)trace_at(&l->of[DECAY], token)[h], (double)trace_at(&l->of[WRITE], token)[h],
               (double)trace_at(&l->of[S_LENGTH], token)[h]);
    if (l->of[GATE].values) printf("gate %4.2f, ", (double)trace_at(&l->of[GATE], token)[h]);
    if (l->of[ATTENTION].values) print_head_looks(t, trace_at(&l->of[ATTENTION], token) + h * t->count, token + 1);
    putchar('\n');
}

/* Name by name, in lines of several: expert, weight or probability. */
static void print_numbered(const char *what, const float *values, int n, int most) {
    int e = -1;
    printf("  %-14s", what);
    for (int k = 0; k < most && (e = next_largest(values, n, e)) >= 0; k++)
        printf("%s%4d %5.3f", k && k % 7 == 0 ? "\n                " : " ", e, (double)values[e]);
    putchar('\n');
}

static void print_added(const traced_layer *l, int token) {
    printf(" |x| %.2f; ", (double)*trace_at(&l->of[l->mixer ? MIXER_X : FFN_X], token));
    if (l->mixer) printf("the mixer adds %.2f", (double)*trace_at(&l->of[MIXER_ADDED], token));
    if (l->mixer && l->ffn)
        printf(", the FFN to %.2f %.2f", (double)*trace_at(&l->of[FFN_X], token), (double)*trace_at(&l->of[FFN_ADDED], token));
    else if (l->ffn) printf("the FFN adds %.2f", (double)*trace_at(&l->of[FFN_ADDED], token));
}

static void print_detail(const trace *t, int i) {
    const traced_layer *l = &t->layers[i];
    print_layer_head(t, i);
    for (int token = 0; token < layer_tokens(t, i); token++) {
        print_token(t, token);
        print_added(l, token);
        if (l->of[SHARED].values) printf("; shared expert %.2f", (double)*trace_at(&l->of[SHARED], token));
        putchar('\n');
        for (int h = 0; h < l->heads; h++) print_head_detail(t, l, token, h);
        if (l->of[EXPERTS].values) print_numbered("experts", trace_at(&l->of[EXPERTS], token), l->of[EXPERTS].n, l->of[EXPERTS].n);
        if (l->of[ROUTER].values) print_numbered("router's best", trace_at(&l->of[ROUTER], token), l->of[ROUTER].n, 14);
    }
}

/* ---- Around the layers --------------------------------------------------------------------------------------------- */

static void print_legend(const trace *t) {
    const traced_layer *l = t->layers;
    int states = 0, attention = 0, experts = 0, shared = 0;
    for (int i = 0; i < t->info->layers; i++) {
        states |= l[i].of[DECAY].values != NULL;
        attention |= l[i].of[ATTENTION].values != NULL;
        experts |= l[i].of[EXPERTS].values != NULL;
        shared |= l[i].of[SHARED].values != NULL;
    }
    printf("|x|      length of the residual, the vector of a token that every layer reads and adds to\n"
           "+mixer   length of what the mixer adds, which looks at earlier tokens; +FFN: which looks at none\n");
    if (states)
        printf("decay    what is left of a head's memory S, from 0, nothing, to 1, all; write: how strongly a token\n"
               "         is written into it; |S|: its length then; each from the lowest of the heads to the highest\n");
    if (attention) printf("5>2 0.91 head 5 takes 91 %% of what it reads from token 2; the three heads that look hardest\n");
    if (experts) printf("experts  the chosen ones, with their weights, and how many more%s\n", shared ? "; share: the shared one's" : "");
}

static void print_next(const trace *t) {
    printf("\nwhat comes next: the five most probable tokens after each, in per cent\n");
    for (int token = 0; token < t->count; token++) {
        print_token(t, token);
        for (int k = 0; k < TRACE_NEXT && k < t->info->vocab_size; k++) {
            const candidate *c = &t->next[token * TRACE_NEXT + k];
            printf("%4.0f ", 100 * (double)c->p);
            if (k + 1 < TRACE_NEXT) print_padded(t, c->id, 11);
            else print_label(t, c->id, 11);
        }
        putchar('\n');
    }
}

/* A draft is taken if it is the model's own choice. */
static void print_drafts(const trace *t) {
    printf("\nwhat the MTP layer drafts: it knows the token and the one after it, and says which follows that\n");
    for (int token = 0; token + 1 < t->count; token++) {
        const candidate *d = &t->drafts[token];
        const int32_t own = t->next[(token + 1) * TRACE_NEXT].id;
        print_token(t, token);
        putchar(' ');
        print_padded(t, t->ids[token + 1], LABEL_WIDTH);
        printf(" %3.0f ", 100 * (double)d->p);
        print_padded(t, d->id, LABEL_WIDTH);
        printf(d->id == own ? "  taken\n" : "  refused: the model says ");
        if (d->id == own) continue;
        print_label(t, own, LABEL_WIDTH);
        putchar('\n');
    }
}

static void print_passes(const trace *t) {
    const mote_traced_pass *pass = (const mote_traced_pass *)(const void *)t->passes.data;
    const int count = (int)(t->passes.size / sizeof *pass);
    int tokens = 0;
    for (int i = 0; i < count; i++) tokens += 1 + pass[i].taken;
    printf("\nhow it goes on, always with the most probable token: %d tokens in %d passes\n", tokens, count);
    for (int i = 0; i < count; i++) {
        printf("%3d ", i + 1);
        print_label(t, pass[i].ids[0], LABEL_WIDTH);
        for (int k = 0; k < pass[i].drafts; k++) {
            printf(k < pass[i].taken ? " + " : " - ");
            print_label(t, pass[i].ids[1 + k], LABEL_WIDTH);
        }
        printf("%s\n", pass[i].source == MOTE_DRAFT_COPY && pass[i].drafts ? " (copied)" : "");
    }
    printf(t->info->mtp_layers ? "+ a draft of the MTP layer that was taken, - one that was refused, and all after it\n"
                               : "there is no MTP layer; what stands earlier in the text is copied as a draft\n");
}

/* What there is to know before any layer. */
static void print_summary(const trace *t) {
    print_next(t);
    if (t->info->mtp_layers && t->count > 1) print_drafts(t);
    print_passes(t);
}

static int is_among(const ranges *r, int i) {
    int is = !r->count;
    for (int k = 0; k < r->count; k++) is |= i >= r->first[k] && i <= r->last[k];
    return is;
}

static void print_layers(const trace *t, const ranges *shown) {
    printf("\nlayer by layer\n");
    print_legend(t);
    for (int i = 0; i <= t->info->layers; i++)
        if (is_among(shown, i)) print_layer(t, i);
    printf("\nafter the last layer |x| is");
    for (int token = 0; token < t->count; token++) printf("%s%.2f", token % 10 ? " " : token ? "\n  " : " ", (double)t->final[token]);
    putchar('\n');
}

/* only: the layer to show in detail, and nothing else; -1: a summary, and then of the layers those `shown`. */
static void trace_print(const trace *t, int only, const ranges *shown) {
    show_format(stdout, "%s, %s: %d layers%s, hidden size %d\n%d token%s%s\n", t->name, t->info->architecture, t->info->layers,
                t->info->mtp_layers ? " and an MTP layer" : "", t->info->hidden_size, t->count, t->count > 1 ? "s" : "",
                t->chat ? ", a question in the chat template" : "");
    if (only >= 0) {
        print_detail(t, only);
        return;
    }
    print_summary(t);
    print_layers(t, shown);
}
