// A part of test_checkpoint: tokenizer, template and generation_config.json made wrong.

static const char DEMO[] = "models/demo", TOKENIZER[] = "tokenizer.json", GENERATION[] = "generation_config.json",
                  TEMPLATE[] = "chat_template.jinja", TOKENIZER_CONFIG[] = "tokenizer_config.json";

static int temp_tokenizer(void) {
    temp_empty();
    return temp_copy(DEMO, TOKENIZER);
}

static void check_prompt(const char *title, int code, const char *needle) {
    static const char request[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
    mote_options o = {0};
    mote_model *m;
    mote_error err = {0};
    char text[256];
    size_t n;
    o.parts = MOTE_TEXT_ONLY;
    if (!CHECK(!mote_open(temp_dir, &o, &m, &err), "%s: %s", title, err.message)) return;
    int got = mote_render(m, request, sizeof request - 1, text, sizeof text, &n, &err);
    CHECK(got == code && (!code || strstr(err.message, needle)), "%s: render: code %d, %s", title, got, err.message);
    mote_close(m);
}

static void test_text(void) {
    // title, fixture, edit, file, a, b, c, code, plan, needles
    static const wrong_folder cases[] = {
        {"no tokenizer", "", REMOVE, TOKENIZER, "", "", "", MOTE_EIO, SAME, {TOKENIZER}},
        {"tokenizer cut", "", CUT, TOKENIZER, "4", "", "", BAD, SAME, {TOKENIZER, "JSON"}},
        {"tokenizer empty", "", TEXT, TOKENIZER, "", "", "", BAD, SAME, {TOKENIZER}},
        {"tokenizer a list", "", TEXT, TOKENIZER, "[]", "", "", BAD, SAME, {TOKENIZER}},
        {"generation cut", "", TEXT, GENERATION, "{'eos_token_id': ", "", "", BAD, SAME, {GENERATION, "JSON"}},
        {"generation a list", "", TEXT, GENERATION, "[]", "", "", BAD, SAME, {GENERATION}},
        {"generation: sampling of other types", "", TEXT, GENERATION,
         "{'temperature':'hot','top_k':-5,'top_p':1e999,'min_p':0.5,'do_sample':[]}", "", "", OK, SAME,
         {"temperature ignored", "top_k ignored", "top_p ignored"}},
        {"generation: nulls", "", TEXT, GENERATION, "{'eos_token_id':null,'temperature':null,'do_sample':null}", "", "", OK,
         SAME, {NULL}},
        {"generation: what mote does not sample with", "", TEXT, GENERATION, "{'suppress_tokens':[5,7],'num_beams':1,'typical_p':1.0}", "", "", OK, SAME,
         {"suppress_tokens ignored", "samples without it"}},
        {"generation: nothing that mote lacks", "", TEXT, GENERATION, "{'suppress_tokens':[],'num_beams':1,'typical_p':1.0,'forced_eos_token_id':null}", "",
         "", OK, SAME, {NULL}},
        {"generation: numbers of Python", "", TEXT, GENERATION, "{'temperature':Infinity}", "", "", OK, SAME, {"temperature ignored"}},
        {"generation: an id as text", "", TEXT, GENERATION, "{'eos_token_id':'x'}", "", "", BAD, SAME,
         {GENERATION, "eos_token_id"}},
        {"generation: text among ids", "", TEXT, GENERATION, "{'eos_token_id':[1,'x']}", "", "", BAD, SAME,
         {GENERATION, "eos_token_id"}},
        {"generation: a negative id", "", TEXT, GENERATION, "{'eos_token_id':-1}", "", "", BAD, SAME, {"eos_token_id"}},
        {"generation: a fraction", "", TEXT, GENERATION, "{'eos_token_id':[1e99]}", "", "", BAD, SAME, {"eos_token_id"}},
        {"generation: an id that no token has", "", TEXT, GENERATION, "{'eos_token_id':[1,4096]}", "", "", OK, SAME, {"eos_token_id 4096 ends nothing: there are 4096 tokens"}},
        {"generation: a list in the list", "", TEXT, GENERATION, "{'eos_token_id':[[1]]}", "", "", BAD, SAME, {"eos_token_id"}},
        {"generation: a large id", "", TEXT, GENERATION, "{'eos_token_id':[4294967297]}", "", "", BAD, SAME,
         {"eos_token_id"}},
        {"generation: 16 ids", "", TEXT, GENERATION, "{'eos_token_id':[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,16,1]}", "",
         "", OK, SAME, {NULL}},
        {"tokenizer a link to nothing", "", LINK, TOKENIZER, "", "", "", MOTE_EIO, SAME, {TOKENIZER}},
        {"generation a link to nothing", "", LINK, GENERATION, "", "", "", MOTE_EIO, SAME, {GENERATION}},
        {"template a link to nothing", "", LINK, TEMPLATE, "", "", "", MOTE_EIO, SAME, {TEMPLATE}},
        {"tokenizer_config a link to nothing", "", LINK, TOKENIZER_CONFIG, "", "", "", MOTE_EIO, SAME, {TOKENIZER_CONFIG}},
        {"template unknown", "", TEXT, TEMPLATE, "{{ messages }}", "", "", OK, SAME, {NULL}},
        {"tokenizer_config cut", "", TEXT, TOKENIZER_CONFIG, "{", "", "", BAD, SAME, {TOKENIZER_CONFIG, "JSON"}},
        {"template of other types", "", TEXT, TOKENIZER_CONFIG, "{'chat_template':[1,{},{'name':'default'},[]]}", "",
         "", OK, SAME, {NULL}},
        {"template a number", "", TEXT, TOKENIZER_CONFIG, "{'chat_template':1}", "", "", OK, SAME, {NULL}},
    };
    if (access("models/demo/tokenizer.json", R_OK)) {
        test_skip("models/demo is not there");
        return;
    }
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (!temp_tokenizer()) return;
        apply_edit(&cases[i]);
        check_open(cases[i].title, MOTE_TEXT_ONLY, cases[i].code, cases[i].needles);
    }
    temp_tokenizer();
    check_prompt("no template", NOT, "template");
    temp_text(TEMPLATE, "{{ messages }}");
    check_prompt("template unknown", NOT, "raw");
    temp_copy(DEMO, TEMPLATE);
    check_prompt("template known", OK, "");
    const char *ids[3] = {TOKENIZER, "vocab_size", "64"}, *none[3] = {NULL}, *generation[3] = {GENERATION};
    temp_fixture(TIED);
    check_open("weights alone", MOTE_EVERYTHING, OK, none);
    temp_copy(DEMO, TOKENIZER);
    check_open("ids beyond vocab_size", MOTE_EVERYTHING, BAD, ids);
    check_open("ids beyond vocab_size, weights only", MOTE_WEIGHTS_ONLY, OK, none);
    temp_text(GENERATION, "{");
    check_open("generation cut, weights only", MOTE_WEIGHTS_ONLY, BAD, generation);
}
