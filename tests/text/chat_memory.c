// A part of test_chat: memory that runs out.

// A call with its n-th allocation failing, for each n: MOTE_ENOMEM, in the error too. With none failing: the result it
// had before.

typedef struct memory_case {
    const char *name;
    int (*call)(const mote_model *m, buf *result, mote_error *err); // result: to compare
} memory_case;

#define X30 "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"

static const char long_text[] =
    "<|im_start|>It is 21.\n e\xCC\xA3\xCC\x81 \xE1\x84\x92\xE1\x85\xA1 \xFF " X30 X30 X30
    "<|im_end|>, and some more words";

static const char long_request[] =
    "{'messages':[{'role':'system','content':'Be brief.'},{'role':'user','content':'<tool_response>'},"
    "{'role':'assistant','content':'<think>\\nsecond\\n</think>\\n\\nanswer','tool_calls':[{'id':'a','function':"
    "{'name':'f','arguments':{'x':[1,2.5e3,null],'y':1.5}}},{'id':'b','name':'g','arguments':{}}]},"
    "{'role':'tool','tool_call_id':'b','content':'It is 22.\\n'},{'role':'tool','tool_call_id':'a','content':'It is 21.\\n'},"
    "{'role':'developer','content':'Be kind.'},"
    "{'role':'assistant','content':'It is.','reasoning_content':'as it says'},{'role':'user','content':"
    "'Thank you, and what will it be like tomorrow, " X30 X30 X30 "?'}],"
    "'tools':[{'type':'function','function':{'name':'f','parameters':{'minimum':-1.25}}}]}";

static int call_double(const mote_model *m, buf *result, mote_error *err) {
    json j;
    double value = -7;
    (void)m;
    int code = json_parse(&j, "[12.5]", 6, "numbers", err);
    if (code) return code;
    code = json_double(&j, 1, &value);
    json_free(&j);
    if (!code) buf_add(result, &value, sizeof value);
    else CHECK(value == -7, "a number after an error");
    return code == MOTE_ENOMEM ? fail_memory(err) : code;
}

static int call_config(const mote_model *m, buf *result, mote_error *err) {
    json j;
    float value = 0;
    config_reader r;
    (void)m;
    memset(&r, 0, sizeof r);
    r.dir = "x";
    r.err = err;
    r.j = &j;
    r.code = json_parse(&j, "{\"rms_norm_eps\":1e-6}", 21, "config.json", err);
    if (r.code) return r.code;
    unsigned char read[8] = {0};
    CHECK(j.count <= sizeof read, "%u values", (unsigned)j.count);
    r.read = read;
    config_float(&r, 0, "rms_norm_eps", 0, 1, 0, &value);
    json_free(&j);
    if (!r.code) buf_add(result, &value, sizeof value);
    return r.code;
}

static int call_generation(const mote_model *m, buf *result, mote_error *err) {
    mote_model made = text_model(m->text, m->family);
    mote_callbacks silent = {0};
    int code = generation_read(&made, "models/demo", &silent, err);
    if (!code) buf_add(result, &made.sampling, sizeof made.sampling);
    if (!code) buf_add(result, made.eos.data, made.eos.size);
    buf_free(&made.eos);
    return code;
}

// A tokenizer.json with all that loading allocates for: a number among the options, tokens to be normalised.
static int call_open(const mote_model *m, buf *result, mote_error *err) {
    tokenizer *t;
    (void)m;
    int code = tokenizer_open(&t, temp_dir, err);
    if (!code) buf_add(result, t->bytes.data, t->bytes.size);
    if (!code) buf_add(result, &t->vocab, sizeof t->vocab);
    tokenizer_free(t);
    return code;
}

static int call_encode(const mote_model *m, buf *result, mote_error *err) {
    text_range r = {14, 30};
    return tokenizer_encode(m->text, long_text, sizeof long_text - 1, &r, 1, result, err);
}

static int call_render(const mote_model *m, buf *result, mote_error *err) {
    marked_text out;
    char request[sizeof long_request];
    memset(&out, 0, sizeof out);
    int code = chat_render(m->family, request, put_quotes(request, long_request), &out, err);
    if (!code) buf_add(result, out.text.data, out.text.size);
    if (!code) buf_add(result, out.outside.data, out.outside.size);
    else CHECK(!out.text.size && !out.outside.size, "output after an error");
    marked_free(&out);
    return code;
}

static int call_render_tokens(const mote_model *m, buf *result, mote_error *err) {
    int32_t ids[2048];
    char request[sizeof long_request];
    size_t n = put_quotes(request, long_request);
    int code = mote_render_tokens(m, request, n, ids, 2048, &n, err);
    if (!code) buf_add(result, ids, n * sizeof *ids);
    else CHECK(!n, "the count after an error");
    return code;
}

static int call_turn(const mote_model *m, buf *result, mote_error *err) {
    marked_text out;
    memset(&out, 0, sizeof out);
    turn t = {.system = "Be brief.", .role = "tool", .message = long_text};
    int code = chat_turn(m->family, &t, &out, err);
    if (!code) buf_add(result, out.text.data, out.text.size);
    if (!code) buf_add(result, out.outside.data, out.outside.size);
    marked_free(&out);
    return code;
}

static int call_detokenize(const mote_model *m, buf *result, mote_error *err) {
    int32_t ids[100];
    char text[2000];
    size_t n = 99;
    for (int i = 0; i < 100; i++) ids[i] = i + 300;
    int code = mote_detokenize(m, ids, 100, text, sizeof text, &n, err);
    if (!code) buf_add(result, text, n);
    else CHECK(!n, "the count after an error");
    return code;
}

static void add_text(void *user, int channel, const char *text, size_t size) {
    (void)channel;
    buf_add((buf *)user, text, size);
}

static void add_call(void *user, const char *call, size_t size) {
    buf_add((buf *)user, call, size);
}

// An answer with calls in both syntaxes and arguments of all types.
static int call_stream(const mote_model *m, buf *result, mote_error *err) {
    static const char tools[] = "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"x\": {\"type\": \"object\"}, \"n\": {\"type\": \"integer\"}}}}]";
    static const char text[] = "I look.\n<tool_call>\n<function=f>\n<parameter=x>\n{'a': True, 'a': 1}\n</parameter>\n<parameter=n>\n+05\n"
                               "</parameter>\n<parameter=t>\n" X30 "\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n{\"name\": \"f\", "
                               "\"arguments\": \"{\\\"x\\\": 1}\"}\n</tool_call>\nDone.";
    chat_stream s;
    json j;
    (void)m;
    int code = json_parse(&j, tools, sizeof tools - 1, "tools", err);
    if (code) return code;
    memset(&s, 0, sizeof s);
    s.emit = add_text;
    s.on_call = add_call;
    s.tools = &j;
    s.user = result;
    chat_stream_begin(&s, 0);
    for (size_t i = 0; i < sizeof text - 1; i++) chat_stream_push(&s, text + i, 1);
    chat_stream_end(&s, TEXT_ENDS);
    code = chat_stream_failed(&s) ? fail_memory(err) : MOTE_OK;
    chat_stream_free(&s);
    json_free(&j);
    return code;
}

static void check_memory(const memory_case *c, const mote_model *m, int rest) {
    buf want, got;
    mote_error err;
    memset(&want, 0, sizeof want);
    memset(&got, 0, sizeof got);
    CHECK(!c->call(m, &want, &err) && want.size, "%s: with enough memory", c->name);
    long failed = 0;
    buf_add(&got, NULL, 1 << 20); // so that what a case itself adds fits
    for (long n = 0;; n++) {
        got.size = 0;
        memset(&err, 0, sizeof err);
        allocations = 0;
        refuse_at = n;
        refuse_rest = rest;
        int code = c->call(m, &got, &err);
        int reached = allocations > n;
        refuse_at = -1;
        if (!reached) break;
        failed++;
        CHECK(code == MOTE_ENOMEM && err.code == code && strstr(err.message, "out of memory"),
              "%s: allocation %ld: code %d, <%s>", c->name, n, code, err.message);
    }
    CHECK(failed && same_ids(&got, &want), "%s: %ld failed, then %zu bytes, not %zu", c->name, failed, got.size,
          want.size);
    buf_free(&want);
    buf_free(&got);
}

static void write_tokenizer(void) {
    buf text = {0};
    char member[32];
    buf_text(&text, "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"use_regex\":true,"
                    "\"add_prefix_space\":false},\"added_tokens\":[{\"id\":300,\"content\":\"<a>\"},{\"id\":301,"
                    "\"content\":\"e\\u0301<b>\",\"normalized\":true}],\"model\":{\"type\":\"BPE\",\"dropout\":0.0,"
                    "\"merges\":[\"a b\",[\"ab\",\"c\"]],\"vocab\":{\"ab\":256,\"abc\":257");
    for (unsigned byte = 0, moved = 256; byte < 256; byte++) {
        int plain = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
        snprintf(member, sizeof member, ",\"\\u%04x\":%u", plain ? byte : moved++, byte);
        buf_text(&text, member);
    }
    buf_text(&text, "}}}");
    temp_write("tokenizer.json", text.data, text.size);
    buf_free(&text);
}

static void test_memory(tokenizer *t) {
    static const memory_case cases[] = {
        {"json_double", call_double},
        {"config_float", call_config},
        {"generation_read", call_generation},
        {"tokenizer_open", call_open},
        {"tokenizer_encode", call_encode},
        {"chat_render", call_render},
        {"mote_render_tokens", call_render_tokens},
        {"chat_turn", call_turn},
        {"mote_detokenize", call_detokenize},
        {"chat_stream_push", call_stream},
    };
    write_tokenizer();
    for (size_t i = 0; i < COUNT(cases); i++) {
        for (int k = 0; k < (test_brief ? 2 : 4); k++) {
            mote_model m = text_model(t, k % 2 ? QWEN35 : QWEN3);
            check_memory(cases + i, &m, k / 2);
        }
    }
    temp_empty();
}
