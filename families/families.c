/* families/families.c: the table of model families: the only place that lists them all.

   A family is one line here and one file, which defines, for a family `name`:
     name_types   the model_types of config.json that are of this family, ended by NULL
     name_read    reads the family's own keys of config.json: shapes, layers, what must be as mote has it
     name_bind    asks the binder for every tensor, by its name there */

#define FAMILIES(X) \
    X(qwen3_5_moe) X(qwen3_5) X(qwen3_moe) X(qwen3) X(qwen3_next) X(llama) X(mistral) X(mixtral) X(gpt_oss) X(deepseek_v3) \
    X(glm4_moe_lite) X(laguna) X(gemma4) X(qwen4_exp) X(nemotron_h)

typedef struct model_family {
    const char *name;                          /* mote_info.architecture */
    const char *const *types;
    void (*read)(config_reader *r, config *c);
    void (*bind)(binder *b);
} model_family;

static const model_family model_families[] = {
#define X(of) {.name = #of, .types = of##_types, .read = of##_read, .bind = of##_bind},
    FAMILIES(X)
#undef X
};

enum { FAMILY_COUNT = sizeof model_families / sizeof *model_families };

/* The family of this model_type; NULL: none that mote runs, and *err says which those are. */
static const model_family *family_find(const json *j, uint32_t type, const char *dir, mote_error *err) {
    char known[256] = "";
    size_t n = 0;
    for (int i = 0; i < FAMILY_COUNT; i++)
        for (const char *const *name = model_families[i].types; *name; name++) {
            if (json_equals(j, type, *name)) return &model_families[i];
            int last = i + 1 == FAMILY_COUNT && !name[1];
            n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", !n ? "" : last ? " and " : ", ", *name);
        }
    fail(err, MOTE_EUNSUPPORTED, "%s/config.json: model_type \"%.*s\" is not known, mote runs %s", dir,
         (int)(j->nodes[type].size < 60 ? j->nodes[type].size : 60), j->text + j->nodes[type].start, known);
    return NULL;
}

/* Binds every tensor of the model, its layers allocated, to what the family calls it. */
static void family_bind(binder *b, const mote_callbacks *callbacks) {
    bind_frequencies(b);
    common_untie(b, callbacks);
    if (!b->code) b->m->c.family->bind(b);
    if (!b->code) common_leftovers(b, callbacks);
    if (!b->code) common_vision_notice(b, callbacks);
}
