/* text/tokenizer_file.c: tokenizer.json -> the tables that bpe.c works with: its model and its added tokens; the steps around
   the model are tokenizer_steps.c's. What comes after tokenizer_open knows no setting of the file.

   What the file asks for and we do not do is refused by name. "truncation", "padding" and "post_processor" are the
   caller's business: encoding adds no tokens. */

/* The byte that a character of the GPT-2 alphabet stands for, -1 if it is none. Printable Latin-1 stands for itself,
   the characters from U+0100 on for the other 68 bytes in their order. */
static int alphabet_byte(uint32_t cp) {
    if ((cp >= 33 && cp <= 126) || (cp >= 161 && cp <= 255 && cp != 173)) return (int)cp;
    if (cp < 256 || cp > 323) return -1;
    uint32_t k = cp - 256;
    return k < 33 ? (int)k : k < 67 ? (int)k + 127 - 33 : 173;
}

/* Replaces text by the bytes it stands for. 0, and nothing changed, when it is not in the alphabet. */
static int alphabet_decode(char *text, size_t *size) {
    const char *p = text, *end = text + *size;
    while (p < end) {
        if (alphabet_byte(utf8_next(&p, end)) < 0) return 0;
    }
    char *out = text;
    for (p = text; p < end;) *out++ = (char)alphabet_byte(utf8_next(&p, end)); /* never longer than what was read */
    *size = (size_t)(out - text);
    return 1;
}

/* Replaces U+2581 by a space. 0, and nothing changed, when the text has a space of its own, which no text to encode has. */
static int space_decode(char *text, size_t *size) {
    const char *p = text, *end = text + *size;
    char *out = text;
    if (memchr(text, ' ', *size)) return 0;
    while (p < end) {
        const int mark = end - p >= 3 && !memcmp(p, SPACE_MARK, 3);
        *out++ = mark ? ' ' : *p;
        p += mark ? 3 : 1;
    }
    *size = (size_t)(out - text);
    return 1;
}

/* Replaces a token's text by the bytes that it stands for. 0: it stands for none, and no merge makes it. */
static int piece_decode(const tokenizer *t, char *text, size_t *size) {
    return (t->characters ? space_decode : alphabet_decode)(text, size);
}

/* The byte of "<0x0A>", -1 if it is none. */
static int fallback_byte(const char *text, size_t size) {
    int value = 0;
    if (size != 6 || memcmp(text, "<0x", 3) || text[5] != '>') return -1;
    for (int i = 3; i < 5; i++) {
        const char *digits = "0123456789ABCDEF", *digit = (const char *)memchr(digits, text[i], 16);
        if (!digit) return -1;
        value = value * 16 + (int)(digit - digits);
    }
    return value;
}

static int load_string(const json *j, uint32_t node, buf *out) {
    size_t n = j->nodes[node].size; /* at least the unescaped size */
    char *at = (char *)buf_add(out, NULL, n);
    if (!at) return 0;
    out->size -= n - json_string(j, node, at, n);
    return 1;
}

/* The model's options. Those options that are null, false, "" or 0 are off. */
static int load_options(loader *l, uint32_t model) {
    static const char *const used[] = {"type", "vocab", "merges", "ignore_merges", "byte_fallback", "unk_token", "fuse_unk"};
    const json *j = &l->j;
    const int count = l->t->characters ? 7 : 4; /* where every byte has a token, no text is unknown */
    for (uint32_t k = model + 1; k < j->nodes[model].next; k = j->nodes[k + 1].next) {
        const json_node *value = j->nodes + k + 1;
        double number = 1;
        int empty = value->type == JSON_STRING && !value->size;
        if (json_double(j, k + 1, &number) == MOTE_ENOMEM) return fail_memory(l->err);
        int zero = number == 0;
        int off = value->type == JSON_NULL || value->type == JSON_FALSE || empty || zero;
        for (int i = 0; i < count; i++) off |= json_equals(j, k, used[i]);
        if (!off) {
            return fail(l->err, MOTE_EUNSUPPORTED, "%s: model option \"%.*s\" is not supported", l->path, QUOTE(l, k));
        }
    }
    l->t->ignore_merges = is_flag(j, model, "ignore_merges", JSON_TRUE);
    return MOTE_OK;
}

static int check_id(loader *l, uint32_t node, uint32_t name, uint32_t *id) {
    uint64_t value;
    if (!node || !json_u64(&l->j, node, &value) || value > TOKEN_ID_LIMIT) {
        return fail(l->err, MOTE_EFORMAT, "%s: token \"%.*s\" has no id from 0 to %d", l->path, QUOTE(l, name),
                    TOKEN_ID_LIMIT);
    }
    *id = (uint32_t)value;
    if (*id >= l->t->vocab) l->t->vocab = *id + 1;
    return MOTE_OK;
}

/* First pass over the ids: how many tokens there are to hold. */
static int load_sizes(loader *l, uint32_t vocab, uint32_t added) {
    const json *j = &l->j;
    tokenizer *t = l->t;
    uint32_t id;
    for (uint32_t k = vocab + 1; k < j->nodes[vocab].next; k = j->nodes[k + 1].next) {
        if (check_id(l, k + 1, k, &id)) return l->err->code;
    }
    for (uint32_t a = added + 1; added && a < j->nodes[added].next; a = j->nodes[a].next) {
        uint32_t content = json_get(j, a, "content");
        if (!content || j->nodes[content].type != JSON_STRING || !j->nodes[content].size) {
            return fail(l->err, MOTE_EFORMAT, "%s: an added token has no content", l->path);
        }
        if (check_id(l, json_get(j, a, "id"), content, &id)) return l->err->code;
    }
    uint32_t slots = table_slots(j->nodes[vocab].size);
    t->tokens = (token *)calloc((size_t)t->vocab + 1, sizeof *t->tokens);
    t->index = (uint32_t *)malloc(slots * sizeof *t->index);
    t->index_mask = slots - 1;
    if (!t->tokens || !t->index) return fail_memory(l->err);
    memset(t->index, 0xFF, slots * sizeof *t->index);
    return MOTE_OK;
}

/* Bytes that a vocabulary may lack, as SmolLM2's does: control characters, and what begins no character that is assigned. They are
   left out of what is encoded, as the tokenizers library does. */
static int is_rare_byte(int b) {
    return (b < 0x20 && b != '\t' && b != '\n' && b != '\r') || b == 0x7F || b == 0xC0 || b == 0xC1 || b == 0xF1 || b == 0xF2 || b > 0xF4;
}

static int load_vocab(loader *l, uint32_t vocab) {
    const json *j = &l->j;
    tokenizer *t = l->t;
    uint32_t id = 0;
    memset(t->byte_ids, 0xFF, sizeof t->byte_ids);
    for (uint32_t k = vocab + 1; k < j->nodes[vocab].next; k = j->nodes[k + 1].next) {
        if (check_id(l, k + 1, k, &id)) return l->err->code;
        token *entry = t->tokens + id;
        if (entry->flags) {
            return fail(l->err, MOTE_EFORMAT, "%s: token \"%.*s\" has id %u, which is taken", l->path, QUOTE(l, k), id);
        }
        size_t start = t->bytes.size;
        if (!load_string(j, k, &t->bytes)) return fail_memory(l->err);
        size_t size = t->bytes.size - start;
        entry->start = (uint32_t)start;
        entry->flags = TOKEN_EXISTS;
        const int byte = t->characters ? fallback_byte(t->bytes.data + start, size) : -1;
        if (byte >= 0) {
            t->bytes.data[start] = (char)byte;
            t->byte_ids[byte] = id;
            size = 1;
        } else if (piece_decode(t, t->bytes.data + start, &size)) {
            uint32_t *slot = index_slot(t, t->bytes.data + start, size);
            if (*slot != NO_ID) {
                return fail(l->err, MOTE_EFORMAT, "%s: token \"%.*s\" is listed twice", l->path, QUOTE(l, k));
            }
            *slot = id;
        }
        entry->size = (uint32_t)size;
        t->bytes.size = start + size;
    }
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        if (!t->characters) t->byte_ids[b] = *index_slot(t, &byte, 1);
        if (t->byte_ids[b] == NO_ID && (t->characters || !is_rare_byte(b))) {
            return fail(l->err, MOTE_EFORMAT, "%s: the vocabulary has no token for byte 0x%02X", l->path, (unsigned)b);
        }
    }
    return MOTE_OK;
}

/* Sets left and right to the bytes of a merge's parts: "a b" or ["a", "b"]. 0 when it has not two. */
static int load_merge_parts(loader *l, uint32_t node) {
    const json *j = &l->j;
    const json_node *n = j->nodes + node;
    l->left.size = l->right.size = 0;
    if (n->type == JSON_ARRAY) {
        if (n->size != 2 || j->nodes[node + 1].type != JSON_STRING || n->next != node + 3) return 0;
        if (!load_string(j, node + 1, &l->left) || !load_string(j, node + 2, &l->right)) return 0;
    } else {
        if (n->type != JSON_STRING || !load_string(j, node, &l->left) || !l->left.size) return 0;
        const char *space = (const char *)memchr(l->left.data, ' ', l->left.size);
        if (!space) return 0;
        size_t size = (size_t)(space - l->left.data);
        buf_add(&l->right, space + 1, l->left.size - size - 1);
        l->left.size = size;
    }
    return l->left.size && l->right.size && piece_decode(l->t, l->left.data, &l->left.size) &&
           piece_decode(l->t, l->right.data, &l->right.size);
}

static int load_merges(loader *l, uint32_t merges) {
    const json *j = &l->j;
    tokenizer *t = l->t;
    uint32_t slots = table_slots(j->nodes[merges].size), rank = 0;
    t->merges = (merge *)malloc(slots * sizeof *t->merges);
    t->merge_mask = slots - 1;
    if (!t->merges) return fail_memory(l->err);
    memset(t->merges, 0xFF, slots * sizeof *t->merges);
    for (uint32_t m = merges + 1; m < j->nodes[merges].next; m = j->nodes[m].next, rank++) {
        uint32_t left = NO_ID, right = NO_ID, id = NO_ID;
        if (load_merge_parts(l, m)) {
            left = *index_slot(t, l->left.data, l->left.size);
            right = *index_slot(t, l->right.data, l->right.size);
            buf_add(&l->left, l->right.data, l->right.size);
            if (!l->left.failed) id = *index_slot(t, l->left.data, l->left.size);
        }
        if (l->left.failed || l->right.failed) return fail_memory(l->err);
        if (left == NO_ID || right == NO_ID || id == NO_ID) {
            return fail(l->err, MOTE_EFORMAT, "%s: merge %u: not two tokens whose union is a token", l->path, rank);
        }
        if (t->tokens[id].flags & TOKEN_ADDED) continue;
        merge *slot = merge_slot(t, left, right);
        slot->left = left;
        slot->right = right;
        slot->rank = rank;
        slot->id = id;
    }
    return MOTE_OK;
}

/* 1: an added token is white space alone, U+2581 included, which is text. */
static int is_blank_token(const json *j, uint32_t object, const buf *text) {
    const char *p = text->data, *end = p + text->size;
    if (is_flag(j, object, "special", JSON_TRUE) || is_flag(j, object, "normalized", JSON_TRUE)) return 0;
    while (p < end && (memchr(" \t\r\n", *p, 4) || (end - p >= 3 && !memcmp(p, SPACE_MARK, 3)))) p += (unsigned char)*p > ' ' ? 3 : 1;
    return p == end;
}

/* Enters one added token into the vocabulary and into the set of those to look for. */
static int load_added_token(loader *l, uint32_t object, uint32_t content) {
    static const char *const refused[] = {"single_word", "lstrip", "rstrip"};
    const json *j = &l->j;
    tokenizer *t = l->t;
    uint32_t id = 0;
    if (check_id(l, json_get(j, object, "id"), content, &id)) return l->err->code;
    for (int i = 0; i < 3; i++) {
        if (!is_flag(j, object, refused[i], JSON_TRUE)) continue;
        return fail(l->err, MOTE_EUNSUPPORTED, "%s: added token \"%.*s\": %s is not supported", l->path,
                    QUOTE(l, content), refused[i]);
    }
    l->left.size = 0;
    if (!load_string(j, content, &l->left)) return fail_memory(l->err);
    const int normalized = is_flag(j, object, "normalized", JSON_TRUE);
    const int blank = is_blank_token(j, object, &l->left);
    added_set *set = normalized ? &t->normalized : blank ? &t->blank : &t->raw;
    added_token *added = set->list + set->count++;
    added->start = (uint32_t)t->bytes.size;
    added->id = id;
    if (normalized && t->use_nfc) {
        nfc(l->left.data, l->left.size, &t->bytes);
    } else if (normalized && t->characters && !t->late_spaces) {
        if (t->space == SPACE_ALWAYS) buf_add(&t->bytes, " ", 1);
        for (const char *p = l->left.data, *end = p + l->left.size; p < end;) put_unmarked(&t->bytes, &p, end);
    } else {
        buf_add(&t->bytes, l->left.data, l->left.size);
    }
    added->size = (uint32_t)(t->bytes.size - added->start);
    token *k = t->tokens + id;
    if (!k->flags) { /* not in the model's own vocabulary */
        k->start = (uint32_t)t->bytes.size;
        k->size = (uint32_t)l->left.size;
        buf_add(&t->bytes, l->left.data, l->left.size);
    }
    if (t->bytes.failed) return fail_memory(l->err);
    size_t size = l->left.size;
    int same = k->size == size && !memcmp(t->bytes.data + k->start, l->left.data, size);
    if (piece_decode(t, l->left.data, &size)) {
        uint32_t known = *index_slot(t, l->left.data, size);
        same = known == NO_ID ? same : known == id;
    }
    if (!same || (k->flags & TOKEN_ADDED)) {
        return fail(l->err, MOTE_EFORMAT, "%s: added token \"%.*s\" has id %u, but the vocabulary differs", l->path,
                    QUOTE(l, content), id);
    }
    k->flags |= TOKEN_EXISTS | (blank ? 0 : TOKEN_ADDED) | (is_flag(j, object, "special", JSON_TRUE) ? TOKEN_SPECIAL : 0);
    return MOTE_OK;
}

static int compare_added(const void *a, const void *b) {
    const added_token *x = (const added_token *)a, *y = (const added_token *)b;
    int order = memcmp(x->text, y->text, x->size < y->size ? x->size : y->size);
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

static int load_added_set(loader *l, added_set *s) {
    for (uint32_t i = 0; i < s->count; i++) s->list[i].text = l->t->bytes.data + s->list[i].start;
    if (s->count) qsort(s->list, s->count, sizeof *s->list, compare_added);
    for (uint32_t i = 0; i < s->count; i++) {
        const added_token *a = s->list + i;
        s->first[(unsigned char)*a->text] = 1;
        if (i && !compare_added(a - 1, a)) {
            return fail(l->err, MOTE_EFORMAT, "%s: added token \"%.*s\" is listed twice", l->path,
                        (int)(a->size < 200 ? a->size : 200), a->text);
        }
    }
    return MOTE_OK;
}

static int load_added(loader *l, uint32_t added) {
    const json *j = &l->j;
    tokenizer *t = l->t;
    size_t count = added ? j->nodes[added].size : 0;
    int code = MOTE_OK;
    t->raw.list = (added_token *)calloc(count + 1, sizeof *t->raw.list);
    t->normalized.list = (added_token *)calloc(count + 1, sizeof *t->normalized.list);
    t->blank.list = (added_token *)calloc(count + 1, sizeof *t->blank.list);
    if (!t->raw.list || !t->normalized.list || !t->blank.list) return fail_memory(l->err);
    for (uint32_t a = added + 1; added && !code && a < j->nodes[added].next; a = j->nodes[a].next) {
        code = load_added_token(l, a, json_get(j, a, "content"));
    }
    if (!code) code = load_added_set(l, &t->raw);
    if (!code) code = load_added_set(l, &t->normalized);
    if (!code) code = load_added_set(l, &t->blank);
    return code;
}

static int load_tokenizer(loader *l) {
    const json *j = &l->j;
    tokenizer *const t = l->t;
    uint32_t model = json_get(j, 0, "model"), added = json_get(j, 0, "added_tokens"), vocab, merges;
    if (!model) return fail(l->err, MOTE_EFORMAT, "%s: no \"model\"", l->path);
    if (!is_type(j, model, "BPE")) return refuse_type(l, "model", model);
    int code = load_steps(l, model);
    if (!code) code = load_options(l, model);
    if (code) return code;
    vocab = json_get(j, model, "vocab");
    merges = json_get(j, model, "merges");
    if (!vocab || j->nodes[vocab].type != JSON_OBJECT) return fail(l->err, MOTE_EFORMAT, "%s: model: vocab must be an object", l->path);
    if (!merges || j->nodes[merges].type != JSON_ARRAY) return fail(l->err, MOTE_EFORMAT, "%s: model: merges must be a list", l->path);
    if (added && j->nodes[added].type != JSON_ARRAY) return fail(l->err, MOTE_EFORMAT, "%s: added_tokens must be a list", l->path);
    code = load_sizes(l, vocab, added);
    if (!code) code = load_vocab(l, vocab);
    if (!code) code = load_added(l, added); /* before the merges, which must not make these */
    if (!code) code = load_merges(l, merges);
    const int32_t around[] = {t->begin, t->end};
    for (int i = 0; i < 2 && !code; i++)
        if (around[i] >= 0 && ((uint32_t)around[i] >= t->vocab || !t->tokens[around[i]].flags))
            code = fail(l->err, MOTE_EFORMAT, "%s: post_processor: no token has id %d", l->path, around[i]);
    return code;
}

/* Opens dir/tokenizer.json. The tokenizer never changes afterwards: any number of threads may use it. */
static int tokenizer_open(tokenizer **out, const char *dir, mote_error *err) {
    static const char name[] = "tokenizer.json";
    char path[4096];
    mote_error ignored;
    buf text = {NULL, 0, 0, 0};
    loader l;
    memset(&l, 0, sizeof l);
    *out = NULL;
    l.path = path;
    l.err = err ? err : &ignored;
    int code = read_file(dir, name, &text, l.err);
    if (!code) code = join_path(path, sizeof path, dir, name);
    if (!code) code = json_parse(&l.j, text.data, text.size, path, l.err);
    if (!code) {
        l.t = (tokenizer *)calloc(1, sizeof *l.t);
        code = l.t ? load_tokenizer(&l) : fail_memory(l.err);
    }
    buf_free(&l.left);
    buf_free(&l.right);
    json_free(&l.j);
    buf_free(&text);
    if (code) {
        tokenizer_free(l.t);
    } else {
        *out = l.t;
    }
    return code;
}
