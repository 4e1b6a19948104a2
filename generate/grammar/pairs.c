/* generate/grammar/pairs.c: a call in Gemma 4's values, as text/gemma_values.c writes them: {key:<|"|>text<|"|>,n:3}. It knows what of
   follow_values.c is different there: keys stand bare, a text has no escapes, nothing stands between values, and the mark around a
   text is a token, in whose place the grammar has a byte that no text has.

   What is read again by text/call_pairs.c: a text does not hold its mark, and names hold nothing of the syntax. */

/* ---- From tools to the grammar ------------------------------------------------------------------------------------------------- */

/* Whether a name can stand bare, as it is in JSON. */
static int is_pair_name(const char *name, size_t n) {
    if (!n || n > 128 || name[0] == ' ' || name[n - 1] == ' ') return 0;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || strchr(":,{}[]<\"\\", name[i])) return 0;
    return 1;
}

#define PAIR_QUOTE "<|\"|>"

static int pair_literal_text(schema *s, const json *j, uint32_t node) {
    const size_t n = json_string(j, node, NULL, 0);
    const char quote = (char)QUOTE_BYTE;
    buf text;
    memset(&text, 0, sizeof text);
    char *to = (char *)buf_add(&text, NULL, n + 1);
    if (to) to[json_string(j, node, to, n)] = 0;
    int plain = to && !strstr(to, PAIR_QUOTE);
    for (size_t i = 0; i < n && to; i++) plain &= (unsigned char)to[i] >= 0x20 || to[i] == '\n' || to[i] == '\t';
    if (!to) s->code = fail_memory(s->err);
    else if (!plain) schema_refuse_text(s, "a text with its mark or a control character in it, in a call,", to, n);
    buf_add(&s->text, &quote, 1);
    buf_add(&s->text, to, to ? n : 0);
    buf_add(&s->text, &quote, 1);
    buf_free(&text);
    return !s->code;
}

/* Appends a literal in these values. */
static int pair_literal(schema *s, const json *j, uint32_t node) {
    const json_node *n = j->nodes + node;
    const int object = n->type == JSON_OBJECT;
    if (n->type == JSON_STRING) return pair_literal_text(s, j, node);
    if (n->type < JSON_ARRAY) return buf_add(&s->text, j->text + n->start, n->size) != NULL;
    buf_text(&s->text, object ? "{" : "[");
    for (uint32_t k = node + 1; k < n->next; k = j->nodes[k].next) {
        if (k > node + 1) buf_text(&s->text, ",");
        if (object && !is_pair_name(j->text + j->nodes[k].start, j->nodes[k].size))
            return schema_refuse_text(s, "a name in a value", j->text + j->nodes[k].start, j->nodes[k].size);
        if (object) buf_add(&s->text, j->text + j->nodes[k].start, j->nodes[k].size), buf_text(&s->text, ":"), k++;
        if (!pair_literal(s, j, k)) return 0;
    }
    buf_text(&s->text, object ? "}" : "]");
    return !s->code;
}

/* Writes the literals of a kind anew, those that are not yet: from `own` on in the text they are. Then they are sorted again. */
static int pair_literals(schema *s, const schema_kind *k, size_t own) {
    for (int i = k->first; i < k->first + k->count; i++) {
        const schema_literal l = *literal_at(s, i);
        const size_t from = s->text.size;
        buf copy;
        json j;
        if (l.text >= own) continue;
        memset(&copy, 0, sizeof copy);
        buf_add(&copy, s->text.data + l.text, l.size);
        s->code = copy.failed ? fail_memory(s->err) : json_parse(&j, copy.data, copy.size, "a value", s->err);
        if (!s->code) {
            (void)pair_literal(s, &j, 0);
            json_free(&j);
        }
        buf_free(&copy);
        if (s->code || s->text.failed) return 0;
        literal_at(s, i)->text = (uint32_t)from;
        literal_at(s, i)->size = (uint32_t)(s->text.size - from);
    }
    for (int i = k->first + 1; i < k->first + k->count; i++)
        for (int n = i; n > k->first && literal_order(s, literal_at(s, n), literal_at(s, n - 1)) < 0; n--) {
            const schema_literal other = *literal_at(s, n);
            *literal_at(s, n) = *literal_at(s, n - 1);
            *literal_at(s, n - 1) = other;
        }
    return 1;
}

/* All that the tools' schemas hold as these values have it. */
static int pairs_schema(schema *s) {
    const size_t own = s->text.size;
    const int count = schema_count(&s->kinds, sizeof(schema_kind));
    for (int i = 0; i < count && !s->code; i++) {
        const schema_kind k = *kind_at(s, i);
        for (int n = 0; k.kind == KIND_OBJECT && n < k.count && !s->code; n++) {
            const schema_name name = *name_at(s, k.first + n);
            if (!is_pair_name(s->text.data + name.text, name.size)) schema_refuse_text(s, "a parameter of such a name", s->text.data + name.text, name.size);
        }
        if (k.kind == KIND_LITERALS && !s->code) (void)pair_literals(s, &k, own);
    }
    return !schema_failed(s);
}

/* ---- Following values -------------------------------------------------------------------------------------------------------------- */

/* A byte of a text after its mark. */
static void step_pair_text(follower *w, place *out, thread *t, unsigned char b) {
    const schema_kind *k = kind_at(w->s, t->f.of);
    const automaton *a = k->detail >= 0 ? automaton_at(w->s, k->detail) : NULL;
    frame *f = &t->f;
    uint32_t code = f->is.string.code;
    if (b == QUOTE_BYTE) {
        if (f->more || f->count < k->least || (a && !a->accepts[f->is.string.state])) return;
        thread_pop(w, t);
        place_add(out, t);
        return;
    }
    f->is.string.tag = b == (unsigned char)PAIR_QUOTE[f->is.string.tag] ? f->is.string.tag + 1 : b == '<';
    if ((b < 0x20 && b != '\n' && b != '\t') || !PAIR_QUOTE[f->is.string.tag]) return;
    if (!f->more && f->count >= k->most) return;
    if (!f->more) f->count += k->most < UINT32_MAX || f->count < k->least;
    const int read = b < 0x80 && !f->more ? 2 : string_byte(f, b, &code);
    if (b < 0x80 && read == 2) code = b;
    f->is.string.code = read == 2 ? 0 : code;
    if (!read || (a && read == 1 && !string_can_go_on(a, f))) return;
    if (a && read == 2) f->is.string.state = automaton_step(a, f->is.string.state, code);
    if (!a || f->is.string.state) place_add(out, t);
}

/* A byte of a key, or the colon after it, with which its value begins. */
static void step_pair_key(follower *w, place *out, thread *t, unsigned char b) {
    const schema *s = w->s;
    const schema_kind *k = kind_at(s, t->f.of);
    frame *f = &t->f;
    if (b == ':') {
        const int is_known = f->is.key.first < f->is.key.last && name_at(s, k->first + f->is.key.first)->size == f->is.key.size;
        const int name = is_known ? f->is.key.first : -1, is_other = f->is.key.is_other && f->is.key.size;
        thread_pop(w, t);
        if (is_known ? !object_takes(s, f, name) : !is_other) return;
        if (is_known) f->is.object.seen[name / 64] |= (uint64_t)1 << (name % 64);
        f->is.object.name = name;
        f->at = 3;
        step_object(w, out, t, b);
        return;
    }
    f->is.key.is_other &= f->is.key.size < 64 && ((b >= '0' && b <= '9') || ((b | 32) >= 'a' && (b | 32) <= 'z') || b == '_' || b == '-');
    names_narrow(s, f, b);
    if (f->is.key.is_other || names_take(s, &w->links[t->below].f, f)) place_add(out, t);
}

/* An object between its keys and values, as step_object. */
static void step_pair_object(follower *w, place *out, thread *t, unsigned char b) {
    const schema *s = w->s;
    frame *f = &t->f;
    if (b == '}' && f->at < 2 && object_is_complete(s, f)) {
        thread_pop(w, t);
        place_add(out, t);
        return;
    }
    if ((b == ',' ? f->at != 1 : f->at == 1) || !object_takes_more(s, f)) return;
    f->at = 2;
    frame key = frame_of(IN_KEY, f->of, f->depth);
    key.is.key.last = kind_at(s, f->of)->count;
    key.is.key.is_other = object_takes_others(s, f);
    if (b == ',') place_add(out, t);
    else if (thread_push(w, out, t, key)) step_pair_key(w, out, t, b);
}
