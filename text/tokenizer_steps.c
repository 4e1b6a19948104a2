/* text/tokenizer_steps.c: what tokenizer.json asks for around its model: how a text is normalised and cut into words before,
   and how tokens become text after. Each form is recognised as a whole, and any other refused by name.

   Two sorts: byte-level BPE (normalizer NFC or none, Split steps and ByteLevel), and SentencePiece's BPE, whose text is not cut
   into words (normalizer Prepend and Replace, or the pre-tokenizer Metaspace; Gemma's Split at spaces, of which none are left). */

/* The state of loading. */
typedef struct loader {
    tokenizer *t;
    json j;
    const char *path;
    mote_error *err;
    buf left, right; /* scratch */
} loader;

/* A node's raw text as two arguments of "%.*s", cut short. */
#define QUOTE(l, node) \
    (int)((l)->j.nodes[node].size < 200 ? (l)->j.nodes[node].size : 200), (l)->j.text + (l)->j.nodes[node].start

/* The members of {"type":"Sequence", key:[...]}, or the one object itself. -1 when there are more than cap. */
static int load_sequence(const json *j, uint32_t node, const char *key, uint32_t *list, int cap) {
    uint32_t type = json_get(j, node, "type"), array;
    int count = 0;
    list[0] = node;
    if (!type || !json_equals(j, type, "Sequence")) return 1;
    array = json_get(j, node, key);
    if (!array || j->nodes[array].type != JSON_ARRAY) return -1;
    for (uint32_t i = array + 1; i < j->nodes[array].next; i = j->nodes[i].next) {
        if (count == cap) return -1;
        list[count++] = i;
    }
    return count;
}

static int refuse_type(loader *l, const char *what, uint32_t node) {
    uint32_t type = json_get(&l->j, node, "type");
    if (!type || l->j.nodes[type].type != JSON_STRING)
        return fail(l->err, MOTE_EFORMAT, "%s: %s without a type", l->path, what);
    return fail(l->err, MOTE_EUNSUPPORTED, "%s: %s \"%.*s\" is not supported", l->path, what, QUOTE(l, type));
}

static int is_type(const json *j, uint32_t node, const char *name) {
    uint32_t type = json_get(j, node, "type");
    return type && json_equals(j, type, name);
}

static int is_flag(const json *j, uint32_t object, const char *key, uint32_t type) {
    uint32_t node = json_get(j, object, key);
    return node && j->nodes[node].type == type;
}

static int is_text(const json *j, uint32_t object, const char *key, const char *text) {
    uint32_t node = json_get(j, object, key);
    return node && json_equals(j, node, text);
}

static int is_null(const json *j, uint32_t node) {
    return !node || j->nodes[node].type == JSON_NULL;
}

/* 1: the step replaces the text `from` by `to`. */
static int is_replace(const json *j, uint32_t step, const char *from, const char *to) {
    uint32_t pattern = json_get(j, step, "pattern");
    return is_type(j, step, "Replace") && pattern && is_text(j, pattern, "String", from) && is_text(j, step, "content", to);
}

/* ---- SentencePiece's BPE -------------------------------------------------------------------------------------------- */

/* [Prepend,] Replace. None, with the pre-tokenizer Metaspace. */
static int load_space_normalizer(loader *l, uint32_t node, int metaspace) {
    const json *j = &l->j;
    uint32_t list[2];
    if (is_null(j, node) && metaspace) return MOTE_OK;
    if (is_null(j, node) || metaspace)
        return fail(l->err, MOTE_EUNSUPPORTED,
                    "%s: byte_fallback needs spaces replaced, by the normalizer or by Metaspace, not by both", l->path);
    int count = load_sequence(j, node, "normalizers", list, 2), prepends = count == 2;
    if (count < 1) return refuse_type(l, "normalizer", node);
    if (prepends && !(is_type(j, list[0], "Prepend") && is_text(j, list[0], "prepend", SPACE_MARK)))
        return refuse_type(l, "normalizer", list[0]);
    if (!is_replace(j, list[prepends], " ", SPACE_MARK)) return refuse_type(l, "normalizer", list[prepends]);
    l->t->space = prepends ? SPACE_ALWAYS : SPACE_NONE;
    return MOTE_OK;
}

/* Metaspace that cuts nothing. Older files say add_prefix_space in place of prepend_scheme. */
static int load_metaspace(loader *l, uint32_t node) {
    const json *j = &l->j;
    uint32_t scheme = json_get(j, node, "prepend_scheme");
    if (!is_flag(j, node, "split", JSON_FALSE) || !is_text(j, node, "replacement", SPACE_MARK))
        return fail(l->err, MOTE_EUNSUPPORTED, "%s: Metaspace is supported with split false and replacement U+2581", l->path);
    if (scheme ? json_equals(j, scheme, "never") : is_flag(j, node, "add_prefix_space", JSON_FALSE)) l->t->space = SPACE_NONE;
    else if (!scheme || json_equals(j, scheme, "always")) l->t->space = SPACE_MISSING;
    else if (json_equals(j, scheme, "first")) l->t->space = SPACE_AT_START;
    else
        return fail(l->err, MOTE_EUNSUPPORTED, "%s: Metaspace: prepend_scheme \"%.*s\" is not supported", l->path, QUOTE(l, scheme));
    return MOTE_OK;
}

/* Replace, ByteFallback, Fuse[, Strip]. */
static int load_space_decoder(loader *l, uint32_t node) {
    static const char *const types[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
    const json *j = &l->j;
    uint32_t list[4];
    if (is_null(j, node)) return fail(l->err, MOTE_EUNSUPPORTED, "%s: byte_fallback without a decoder is not supported", l->path);
    int count = load_sequence(j, node, "decoders", list, 4);
    if (count < 3) return refuse_type(l, "decoder", node);
    for (int i = 0; i < count; i++)
        if (!is_type(j, list[i], types[i])) return refuse_type(l, "decoder", list[i]);
    uint64_t start = 0, stop = 0;
    l->t->strip_space = count == 4;
    if (count == 4 && (!is_text(j, list[3], "content", " ") || !json_u64(j, json_get(j, list[3], "start"), &start) || start != 1 ||
                       !json_u64(j, json_get(j, list[3], "stop"), &stop) || stop))
        return fail(l->err, MOTE_EUNSUPPORTED, "%s: Strip that takes more than one space at the start is not supported", l->path);
    return is_replace(j, list[0], SPACE_MARK, " ") ? MOTE_OK : refuse_type(l, "decoder", list[0]);
}

/* 1: a Split at spaces: after a normalizer has replaced them it cuts nothing. */
static int splits_spaces(const json *j, uint32_t node) {
    const uint32_t pattern = json_get(j, node, "pattern");
    return is_type(j, node, "Split") && pattern && is_text(j, pattern, "String", " ") && is_flag(j, node, "invert", JSON_FALSE);
}

/* ---- Byte-level BPE ------------------------------------------------------------------------------------------------- */

static int load_normalizer(loader *l, uint32_t node) {
    const json *j = &l->j;
    uint32_t list[8];
    if (is_null(j, node)) return MOTE_OK;
    int count = load_sequence(j, node, "normalizers", list, 8);
    if (count < 0) return refuse_type(l, "normalizer", node);
    for (int i = 0; i < count; i++) {
        if (!is_type(j, list[i], "NFC")) return refuse_type(l, "normalizer", list[i]);
        l->t->use_nfc = 1;
    }
    return MOTE_OK;
}

/* The regular expression of a Split step, 0 when the step is anything else. Laguna's line breaks begin the piece after them. */
static uint32_t load_split(const json *j, uint32_t step) {
    const uint32_t pattern = json_get(j, step, "pattern"), regex = pattern ? json_get(j, pattern, "Regex") : 0;
    const int lines = regex && json_equals(j, regex, PATTERN_LAGUNA_LINES);
    return is_text(j, step, "behavior", lines ? "MergedWithNext" : "Isolated") && is_flag(j, step, "invert", JSON_FALSE) ? regex : 0;
}

/* 1: the steps before ByteLevel have the expressions of this splitter. */
static int is_splitter(const json *j, const uint32_t *steps, int splits, const char *const *patterns) {
    for (int i = 0; i < splits; i++) {
        if (!patterns[i] || !json_equals(j, load_split(j, steps[i]), patterns[i])) return 0;
    }
    return splits == 3 || !patterns[splits];
}

/* Recognises [Split..., ByteLevel] by the exact text of the expressions; [Digits, ByteLevel]. */
static int load_pre_tokenizer(loader *l, uint32_t node) {
    const json *j = &l->j;
    uint32_t steps[4];
    if (is_null(j, node)) {
        return fail(l->err, MOTE_EUNSUPPORTED, "%s: no pre_tokenizer: only byte-level BPE and byte_fallback are supported",
                    l->path);
    }
    int count = load_sequence(j, node, "pretokenizers", steps, 4);
    if (count < 1) return refuse_type(l, "pre-tokenizer", node);
    const int digits = count == 2 && is_type(j, steps[0], "Digits") && is_flag(j, steps[0], "individual_digits", JSON_TRUE);
    if (digits) steps[0] = steps[--count];
    const int splits = count - 1;
    for (int i = 0; i < count; i++) {
        if (!is_type(j, steps[i], i < splits ? "Split" : "ByteLevel")) return refuse_type(l, "pre-tokenizer", steps[i]);
        if (i < splits && !load_split(j, steps[i])) {
            return fail(l->err, MOTE_EUNSUPPORTED, "%s: Split that is not an isolated Regex is not supported", l->path);
        }
    }
    if (!is_flag(j, steps[splits], "add_prefix_space", JSON_FALSE)) {
        return fail(l->err, MOTE_EUNSUPPORTED, "%s: ByteLevel with add_prefix_space is not supported", l->path);
    }
    if (is_flag(j, steps[splits], "use_regex", JSON_FALSE) != (splits > 0)) {
        return fail(l->err, MOTE_EUNSUPPORTED, "%s: ByteLevel with%s use_regex after %d Split steps is not supported",
                    l->path, splits ? "" : "out", splits);
    }
    for (int k = 0; k < SPLITTERS; k++) {
        if (!is_splitter(j, steps, splits, split_patterns[k])) continue;
        l->t->kind = digits ? SPLIT_DIGITS : (splitter)k;
        return MOTE_OK;
    }
    return fail(l->err, MOTE_EUNSUPPORTED, "%s: pre-tokenizer pattern not supported: %.*s", l->path,
                QUOTE(l, load_split(j, steps[splits - 1])));
}

/* The id of a token that a TemplateProcessing names. */
static int load_template_token(loader *l, uint32_t token, uint32_t known, int32_t *id) {
    const json *j = &l->j;
    const uint32_t name = json_get(j, token, "id");
    const int is_listed = name && known && j->nodes[known].type == JSON_OBJECT;
    uint64_t number;
    for (uint32_t k = known + 1; is_listed && k < j->nodes[known].next; k = j->nodes[k + 1].next) {
        const json_node *a = j->nodes + k, *b = j->nodes + name;
        const uint32_t ids = a->size == b->size && !memcmp(j->text + a->start, j->text + b->start, a->size) ? json_get(j, k + 1, "ids") : 0;
        if (!ids || j->nodes[ids].type != JSON_ARRAY || j->nodes[ids].size != 1) continue;
        if (!json_u64(j, ids + 1, &number) || number >= TOKEN_ID_LIMIT) continue;
        *id = (int32_t)number;
        return MOTE_OK;
    }
    return fail(l->err, MOTE_EFORMAT, "%s: post_processor: expected the tokens around a text to be in special_tokens, with one id each",
                l->path);
}

/* A TemplateProcessing: the tokens that it puts before and after a text. */
static int load_template(loader *l, uint32_t node) {
    const json *j = &l->j;
    const uint32_t single = json_get(j, node, "single"), known = json_get(j, node, "special_tokens");
    int32_t *to = &l->t->begin;
    int code = MOTE_OK;
    if (!single || j->nodes[single].type != JSON_ARRAY)
        return fail(l->err, MOTE_EFORMAT, "%s: post_processor: expected \"single\" to be an array", l->path);
    for (uint32_t k = single + 1; !code && k < j->nodes[single].next; k = j->nodes[k].next) {
        const uint32_t token = json_get(j, k, "SpecialToken");
        if (!token) to = &l->t->end;                        /* it is the text */
        else if (*to < 0) code = load_template_token(l, token, known, to);
        else code = fail(l->err, MOTE_EUNSUPPORTED, "%s: post_processor: more than one token %s a text is not supported", l->path,
                         to == &l->t->begin ? "before" : "after");
    }
    return code;
}

static int load_post_processor(loader *l, uint32_t node) {
    uint32_t list[8];
    const int count = is_null(&l->j, node) ? 0 : load_sequence(&l->j, node, "processors", list, 8);
    int code = count < 0 ? refuse_type(l, "post_processor", node) : MOTE_OK;
    l->t->begin = l->t->end = -1;
    for (int i = 0; i < count && !code; i++) {
        if (is_type(&l->j, list[i], "TemplateProcessing")) code = load_template(l, list[i]);
        else if (!is_type(&l->j, list[i], "ByteLevel")) code = refuse_type(l, "post_processor", list[i]);
    }
    return code;
}

/* All steps. */
static int load_steps(loader *l, uint32_t model) {
    const json *j = &l->j;
    const uint32_t pre = json_get(j, 0, "pre_tokenizer"), decoder = json_get(j, 0, "decoder");
    const uint32_t normalizer = json_get(j, 0, "normalizer");
    const int metaspace = pre && is_type(j, pre, "Metaspace");
    int code = load_post_processor(l, json_get(j, 0, "post_processor"));
    if (code) return code;
    l->t->characters = is_flag(j, model, "byte_fallback", JSON_TRUE) && (metaspace || is_null(j, pre) || splits_spaces(j, pre));
    if (!l->t->characters) {
        code = load_pre_tokenizer(l, pre);
        if (!code) code = load_normalizer(l, normalizer);
        if (!code && !is_null(j, decoder) && !is_type(j, decoder, "ByteLevel")) code = refuse_type(l, "decoder", decoder);
        return code;
    }
    l->t->kind = SPLIT_NONE;
    code = load_space_normalizer(l, normalizer, metaspace);
    if (!code && metaspace) code = load_metaspace(l, pre);
    l->t->late_spaces = metaspace;
    return code ? code : load_space_decoder(l, decoder);
}
