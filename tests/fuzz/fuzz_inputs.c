// Fuzz target for everything that reads what others wrote: JSON, safetensors headers, config.json, the index,
// tokenizer.json, generation_config.json, modules.json, chat templates and requests, texts, answers, saved sessions.
//
// With clang -fsanitize=fuzzer this is a libFuzzer target. Without it, -DFUZZ_MAIN gives a program with a random
// generator of its own: `fuzz_inputs [SECONDS [SEED]]`, or `fuzz_inputs FILE` to run one input again. Run it from the
// top of the repository.
//
// An input is a byte that chooses the target and a script of edits to a valid file of that kind, so that the first
// inputs already reach deep; one of the edits empties the file, so that any bytes at all are among them. Whatever an
// input is, nothing may crash, leak, or break what the checks below say.

#include "library.h"

#define FIXTURE "tests/fixtures/f32-tied"
#define SHARDS "tests/fixtures/bf16-as-3.5"
#define DEMO "models/demo"
#define EMBEDDING "tests/fixtures/embedding/qwen3-embedding"
#define POOLING "1_Pooling/config.json"

typedef struct fuzz_input { const uint8_t *p, *end; } fuzz_input;

static unsigned next_bytes(fuzz_input *in, int bytes) {
    unsigned value = 0;
    while (bytes-- > 0) value = value << 8 | (in->p < in->end ? *in->p++ : 0u);
    return value;
}

static int same(const buf *a, const buf *b) {
    return a->size == b->size && (!a->size || !memcmp(a->data, b->data, a->size));
}

// out = the seed after the script's edits.
static void edit(fuzz_input *in, const buf *seed, buf *out) {
    out->size = 0;
    buf_add(out, seed->data, seed->size);
    for (int i = 0; i < 64 && in->p < in->end; i++) {
        unsigned op = next_bytes(in, 1), n = next_bytes(in, 1);
        if (op == 255) out->size = 0, op = 1;                            // from nothing
        size_t at = next_bytes(in, 3) % (out->size + 1), rest = out->size - at, left = (size_t)(in->end - in->p);
        size_t from = op % 4 == 3 ? next_bytes(in, 3) : 0;
        if (op % 4 == 2) n *= 1 + op / 4;                                // delete
        if (op % 4 < 2 && n > left) n = (unsigned)left;
        if (op % 2 == 0 && n > rest) n = (unsigned)rest;
        if (op % 4 == 2) {
            memmove(out->data + at, out->data + at + n, rest - n);
            out->size -= n;
            continue;
        }
        if (op % 4) {                                                    // insert what the script or the seed holds
            char *to = (char *)buf_add(out, NULL, n);
            if (!to) return;
            memmove(out->data + at + n, out->data + at, rest);
        }
        for (unsigned k = 0; k < n; k++)
            out->data[at + k] = op % 4 == 3 ? seed->data[(from + k) % seed->size] : (char)next_bytes(in, 1);
    }
}

// ---- Files, models and sessions the targets start from --------------------------------------------------------------

enum { SEED_HEADER, SEED_CONFIG, SEED_INDEX, SEED_TOKENIZER, SEED_DEMO_TOKENIZER, SEED_GENERATION, SEED_TEMPLATE,
       SEED_TOKENIZER_CONFIG, SEED_REQUEST, SEED_TEXT, SEED_ANSWER, SEED_SAVED, SEED_SPACES, SEED_MODULES, SEED_POOLING, SEEDS };

static buf seeds[SEEDS], weights;

// Checkpoints of quantised layouts, and of families whose layers are of other kinds or not alike: header, data, config.json.
enum { QUANTISED = 7 };
static const char *const quantised[QUANTISED] = {"tests/fixtures/nvfp4-fp8-tensor", "tests/fixtures/ct-nvfp4-fp8-int4",
                                                 "tests/fixtures/gptq-awq-int4", "tests/fixtures/families/deepseek-v3",
                                                 "tests/fixtures/families/gpt-oss-mxfp4", "tests/fixtures/families/gemma4",
                                                 "tests/fixtures/families/laguna"};
static struct { buf header, data, config; } quantised_seeds[QUANTISED];
static char temp_dir[256];
static mote_model *model, *text_model;
static mote_session *session;

static const char *in_temp(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", temp_dir, name);
    return path;
}

static void write_temp(const char *name, const buf *bytes) {
    FILE *f = fopen(in_temp(name), "wb");
    must(f && fwrite(bytes->data, 1, bytes->size, f) == bytes->size && !fclose(f), "cannot write a temporary file");
}

static void remove_temp(void) {
    static const char *const names[] = {
        "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json", "generation_config.json",
        "chat_template.jinja", "tokenizer_config.json", "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors", "modules.json", POOLING};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unlink(in_temp(names[i]));
    rmdir(in_temp("1_Pooling"));
}

static void clean_up(void) {
    mote_session_close(session);
    mote_close(model);
    mote_close(text_model);
    for (int i = 0; i < SEEDS; i++) buf_free(&seeds[i]);
    buf_free(&weights);
    for (int i = 0; i < QUANTISED; i++) {
        buf_free(&quantised_seeds[i].header);
        buf_free(&quantised_seeds[i].data);
        buf_free(&quantised_seeds[i].config);
    }
    remove_temp();
    rmdir(temp_dir);
}

static void load_seed(int seed, const char *dir, const char *name) {
    mote_error err;
    must(!read_file(dir, name, &seeds[seed], &err), "a seed is missing: run this from the top of the repository");
}

// Appends JSON that is written here with ' for ".
static void seed_json(buf *out, const char *text) {
    for (; *text; text++) buf_add(out, *text == '\'' ? "\"" : text, 1);
}

// A tokenizer.json as small as can be: 256 bytes, three merges, two added tokens.
static void seed_tokenizer(buf *out) {
    char text[64];
    seed_json(out, "{'normalizer':{'type':'NFC'},'pre_tokenizer':{'type':'ByteLevel','add_prefix_space':false,"
              "'trim_offsets':true,'use_regex':true},'added_tokens':[{'id':259,'content':'<a>','special':true},"
              "{'id':260,'content':'<b>','normalized':true}],'model':{'type':'BPE','merges':['a b',['b','c'],'ab c'],"
              "'vocab':{'ab':256,'bc':257,'abc':258");
    for (unsigned byte = 0, moved = 256; byte < 256; byte++) {
        int plain = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
        snprintf(text, sizeof text, ",\"\\u%04x\":%u", plain ? byte : moved++, byte);
        buf_text(out, text);
    }
    buf_text(out, "}}}");
}

// The same of SentencePiece's BPE.
static void seed_spaces(buf *out) {
    char text[64];
    seed_json(out, "{'normalizer':null,'pre_tokenizer':{'type':'Metaspace','replacement':'\xE2\x96\x81','prepend_scheme':'first','split':false},"
              "'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken':{'id':'<a>'}},{'Sequence':{'id':'A'}},{'SpecialToken':{'id':'<a>'}}],"
              "'special_tokens':{'<a>':{'id':'<a>','ids':[1],'tokens':['<a>']}}},'decoder':{'type':'Sequence','decoders':[{'type':"
              "'Replace','pattern':{'String':'\xE2\x96\x81'},'content':' '},{'type':'ByteFallback'},{'type':'Fuse'},{'type':'Strip',"
              "'content':' ','start':1,'stop':0}]},'added_tokens':[{'id':1,'content':'<a>','special':true}],'model':{'type':'BPE',"
              "'unk_token':'u','byte_fallback':true,'merges':['\xE2\x96\x81 a',['a','b'],'\xE2\x96\x81 ab'],'vocab':{'u':0,'<a>':1,"
              "'\xE2\x96\x81':258,'a':259,'b':260,'\xE2\x96\x81" "a':261,'ab':262,'\xE2\x96\x81" "ab':263");
    for (unsigned byte = 0; byte < 256; byte++) {
        snprintf(text, sizeof text, ",\"<0x%02X>\":%u", byte, byte + 2);
        buf_text(out, text);
    }
    buf_text(out, "}}}");
}

// Edits begin at what opens: an edited seed that does not says nothing of what comes after.
static void tokenizer_must_open(int seed) {
    tokenizer *t = NULL;
    mote_error err;
    write_temp("tokenizer.json", &seeds[seed]);
    must(!tokenizer_open(&t, temp_dir, &err), err.message);
    tokenizer_free(t);
    remove_temp();
}

static void start_session(void) {
    static const int32_t ids[5] = {1, 2, 3, 4, 5};
    mote_session_options o;
    mote_error err;
    size_t n;
    memset(&o, 0, sizeof o);
    o.context = 16;
    o.threads = 1;
    must(!mote_session_open(model, &o, &session, &err) && !mote_feed(session, ids, 5, &err), "session");
    mote_save(session, NULL, 0, &n, NULL);
    must(!mote_save(session, buf_add(&seeds[SEED_SAVED], NULL, n), n, &n, &err), "save");
}

// A checkpoint's file in two: the header, and what follows it.
static void load_weights_of(const char *dir, buf *header, buf *data) {
    mote_error err;
    uint32_t size;
    must(!read_file(dir, "model.safetensors", data, &err), "run this from the top of the repository");
    memcpy(&size, data->data, 4);
    buf_add(header, data->data + 8, size);
    memmove(data->data, data->data + 8 + size, data->size -= 8 + size);
}

static void start(void) {
    mote_options o;
    mote_error err;
    const char *tmp = getenv("TMPDIR");
    snprintf(temp_dir, sizeof temp_dir, "%s/mote-fuzz-XXXXXX", tmp ? tmp : "/tmp");
    must(mkdtemp(temp_dir) && !atexit(clean_up), "cannot make a temporary folder");
    load_weights_of(FIXTURE, &seeds[SEED_HEADER], &weights);
    for (int i = 0; i < QUANTISED; i++) {
        load_weights_of(quantised[i], &quantised_seeds[i].header, &quantised_seeds[i].data);
        must(!read_file(quantised[i], "config.json", &quantised_seeds[i].config, &err), "a quantised fixture is missing");
    }
    load_seed(SEED_CONFIG, FIXTURE, "config.json");
    load_seed(SEED_INDEX, SHARDS, "model.safetensors.index.json");
    load_seed(SEED_DEMO_TOKENIZER, DEMO, "tokenizer.json");
    load_seed(SEED_GENERATION, DEMO, "generation_config.json");
    load_seed(SEED_TEMPLATE, DEMO, "chat_template.jinja");
    load_seed(SEED_TOKENIZER_CONFIG, DEMO, "tokenizer_config.json");
    load_seed(SEED_MODULES, EMBEDDING, "modules.json");
    load_seed(SEED_POOLING, EMBEDDING, POOLING);
    seed_tokenizer(&seeds[SEED_TOKENIZER]);
    seed_spaces(&seeds[SEED_SPACES]);
    tokenizer_must_open(SEED_TOKENIZER);
    tokenizer_must_open(SEED_DEMO_TOKENIZER);
    tokenizer_must_open(SEED_SPACES);
    seed_json(&seeds[SEED_REQUEST],
              "{'messages':[{'role':'system','content':'Be brief.'},{'role':'user','content':[{'type':'text','text':"
              "'h\\u00e9'},{'type':'image'}]},{'role':'assistant','content':'<think>\\nt\\n</think>\\n\\na',"
              "'reasoning_content':'r','tool_calls':[{'id':'a','type':'function','function':{'name':'f','arguments':{'x':"
              "[1,2.5e3,null]}}},{'id':'b','name':'g','arguments':{}}]},{'role':'tool','tool_call_id':'b','content':'7</tool_response>'},"
              "{'role':'tool','tool_call_id':'a','content':'8'},{'role':'developer','content':'d'},{'role':'user','content':'go'},"
              "{'role':'user','content':null},{'role':'assistant','content':'I','tool_calls':[{'id':'c','function':{'name':'f','arguments':"
              "'[1'}}]},{'role':'tool','content':[{'type':'text','text':'9'}]},{'role':'user','content':''},"
              "{'role':'assistant','content':'so'},{'role':'assistant','content':'so'}],"
              "'tools':[{'type':'function','function':{'name':'f','parameters':{}}}],'enable_thinking':false,"
              "'add_generation_prompt':false,'continue_final_message':true}");
    buf_text(&seeds[SEED_TEXT], "Don't 123 <|im_start|>\xC3\xA9 e\xCC\x81  \r\n\tx \xF0\x9F\x98\x80\xED\x95\x9C"
             "\xE1\x84\x92\xE1\x85\xA1");
    buf_text(&seeds[SEED_ANSWER], "<|channel|>analysis<|message|>a<|end|><|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|>{\"x\": \"\"}"
             "<|call|><|start|>assistant<|channel|>final<|message|>b<|return|>");
    buf_text(&seeds[SEED_ANSWER], "<think>\na\n</think>\n\nb <x\n<tool_call>\n<function=f>\n<parameter=x>\n[1]\n</parameter>\n</function>\n</tool_call>"
             "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": [True,], \"y\": \"\\n\"}}</tool_call>"
             "\nc[TOOL_CALLS][{\"name\": \"f\"}, {}][TOOL_CALLS]f[CALL_ID]1[ARGS]{\"x\": 1}, f{} d\n"
             "[TOOL_CALLS] e:\n[{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"f\", \"arguments\": \"{}\"}] ```json\n{\"a\": [{}]}```"
             "<tool_call>f<arg_key>x</arg_key>\n<arg_value>1</arg_value> <arg_key>y</arg_key><arg_value>2</arg_value></tool_call>"
             DEEPSEEK_CALLS DEEPSEEK("tool" UNDER "call" UNDER "begin") "f" DEEPSEEK_SEP "{\"x\": 1}" DEEPSEEK("tool" UNDER "call" UNDER "end") "\n"
             DEEPSEEK("tool" UNDER "call" UNDER "begin") "function" DEEPSEEK_SEP "f\n```json\n{}\n```" DEEPSEEK_CALLS_END
             "<|channel>thought\nt\n<channel|>e<|tool_call>call:f{x:<|\"|>1<|\"|>,y:{z:[null,-1e5,{}]},\"k\":True}<tool_call|><|channel>x\n<|tool_call>call:f{}<tool_call|>");
    memset(&o, 0, sizeof o);
    o.parts = MOTE_WEIGHTS_ONLY;
    must(!mote_open(FIXTURE, &o, &model, &err), "cannot open " FIXTURE);
    o.parts = MOTE_TEXT_ONLY;
    must(!mote_open(DEMO, &o, &text_model, &err), "cannot open " DEMO);
    start_session();
}

// ---- Targets --------------------------------------------------------------------------------------------------------

static void check_error(int code, const mote_error *err) {
    must(!code || (code == err->code && *err->message), "an error without code or message");
    must(!code || !strchr(err->message, '\n'), "a message of two lines");
}

static void fuzz_json(const buf *text) {
    json j;
    mote_error err;
    char out[64];
    double value;
    uint64_t whole;
    char *exact = (char *)malloc(text->size + 1);              // nothing after the text
    if (text->size) memcpy(exact, text->data, text->size);
    exact = (char *)realloc(exact, text->size ? text->size : 1);
    int code = json_parse(&j, exact, text->size, "fuzz", &err);
    check_error(code, &err);
    for (uint32_t i = 0; !code && i < j.count; i++) {
        const json_node *n = &j.nodes[i];
        must(n->next > i && n->next <= j.count, "json: next");
        must(n->type >= JSON_ARRAY || (size_t)n->start + n->size <= text->size, "json: range");
        if (n->type == JSON_STRING) must(json_string(&j, i, out, sizeof out) <= n->size, "json: a string grew");
        json_u64(&j, i, &whole);
        json_double(&j, i, &value);
        json_equals(&j, i, "abc");
        json_get(&j, i, "a");
    }
    if (!code) json_free(&j);
    free(exact);
}

static void use_model(void) {
    mote_options o;
    mote_session_options so;
    mote_memory plan;
    mote_error err;
    mote_model *m = NULL, *described_model = NULL;
    mote_session *s = NULL;
    const int32_t ids[3] = {0, 0, 0};
    memset(&o, 0, sizeof o);
    memset(&so, 0, sizeof so);
    so.context = 4;
    so.threads = 1;
    o.parts = MOTE_WEIGHTS_ONLY;
    int planned = mote_plan(temp_dir, NULL, &so, &plan, &err);
    check_error(planned, &err);
    int code = mote_open(temp_dir, &o, &m, &err);
    check_error(code, &err);
    must(!code == (m != NULL), "a model after an error");
    must(code || !planned || planned == MOTE_EINVAL, "mote_plan refuses what mote_open opens");
    o.parts = MOTE_DESCRIPTION;
    int described = mote_open(temp_dir, &o, &described_model, &err);
    check_error(described, &err);
    must(described == planned || planned == MOTE_EINVAL, "a description differs from mote_plan");
    mote_close(described_model);
    if (!code && !mote_session_open(m, &so, &s, &err)) check_error(mote_feed(s, ids, 3, &err), &err);
    mote_session_close(s);
    mote_close(m);
}

static void write_model(const buf *header, const buf *config_text, const buf *data, unsigned n) {
    buf file = {NULL, 0, 0, 0};
    char start_bytes[8] = {0};
    for (int i = 0; i < 4; i++) start_bytes[i] = (char)((header->size + n) >> 8 * i);
    if (n) start_bytes[6] = (char)(n >> 8);
    buf_add(&file, start_bytes, 8);
    buf_add(&file, header->data, header->size);
    buf_add(&file, data->data, data->size);
    write_temp("model.safetensors", &file);
    write_temp("config.json", config_text);
    buf_free(&file);
}

static void fuzz_index(const buf *index) {
    static const char *const names[] = {"config.json", "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors"};
    for (int i = 0; i < 3; i++) {
        char from[PATH_SIZE];
        if (realpath(SHARDS, from) && strlen(from) + 64 < sizeof from) {
            strcat(strcat(from, "/"), names[i]);
            must(!symlink(from, in_temp(names[i])), "symlink");
        }
    }
    write_temp("model.safetensors.index.json", index);
    use_model();
}

// Plain text: no added token, unless the file lists a single byte as one.
static void check_tokens(const tokenizer *t, const char *text, size_t n, buf *ids, buf *back) {
    text_range all = {0, n};
    ids->size = back->size = 0;
    if (tokenizer_encode(t, text, n, &all, 1, ids, NULL)) return;
    for (size_t i = 0; i < ids->size / sizeof(int32_t); i++) {
        size_t size;
        const char *bytes = tokenizer_token(t, ((int32_t *)(void *)ids->data)[i], &size);
        must(bytes != NULL, "a token without bytes");
        must(size == 1 || !(t->tokens[((int32_t *)(void *)ids->data)[i]].flags & TOKEN_ADDED), "a control token");
        buf_add(back, bytes, size);
    }
}

static void fuzz_tokenizer(const buf *text) {
    static const char sample[] = "abc <a>e\xCC\x81 12\xFF";
    tokenizer *t = NULL;
    mote_error err;
    buf ids = {NULL, 0, 0, 0}, back = {NULL, 0, 0, 0};
    write_temp("tokenizer.json", text);
    int code = tokenizer_open(&t, temp_dir, &err);
    check_error(code, &err);
    if (!code) {
        tokenizer_encode(t, sample, sizeof sample - 1, NULL, 0, &ids, &err);
        check_tokens(t, sample, sizeof sample - 1, &ids, &back);
        for (int32_t id = -1; id <= tokenizer_vocab(t) && id < 400; id++) {
            size_t n;
            const char *bytes = tokenizer_token(t, id, &n);
            if (bytes) buf_add(&back, bytes, n);
            tokenizer_is_special(t, id);
        }
        tokenizer_find(t, "<a>");
    }
    tokenizer_free(t);
    buf_free(&ids);
    buf_free(&back);
}

// Plain text: decode(encode(text)) is the text in normalisation form C; a stream in pieces is the stream at once.
static void fuzz_text(const buf *text, unsigned step) {
    buf ids = {NULL, 0, 0, 0}, back = {NULL, 0, 0, 0}, clean = {NULL, 0, 0, 0}, form = {NULL, 0, 0, 0};
    utf8_stream s;
    mote_error err;
    utf8_clean(text->data, text->size, &clean);
    nfc(clean.data, clean.size, &form);
    check_tokens(text_model->text, text->data, text->size, &ids, &back);
    must(same(&form, &back), "decode(encode(text)) is not the text");
    back.size = form.size = 0;
    nfc(clean.data, clean.size, &back);
    nfc(back.data, back.size, &form);
    must(same(&form, &back), "NFC of NFC differs");
    back.size = 0;
    memset(&s, 0, sizeof s);
    for (size_t i = 0; i < text->size; i += step) {
        utf8_stream_push(&s, text->data + i, text->size - i < step ? text->size - i : step, &back);
    }
    utf8_stream_end(&s, &back);
    must(same(&clean, &back), "a stream in pieces differs");
    ids.size = 0;
    check_error(tokenizer_encode(text_model->text, text->data, text->size, NULL, 0, &ids, &err), &err);
    buf_free(&ids);
    buf_free(&back);
    buf_free(&clean);
    buf_free(&form);
}

// Appends the added tokens of a text of which `count` ranges are from outside.
static void added_tokens(const char *text, size_t n, const text_range *outside, size_t count, buf *added) {
    buf ids = {NULL, 0, 0, 0};
    must(!tokenizer_encode(text_model->text, text, n, outside, count, &ids, NULL), "a prompt without tokens");
    for (size_t i = 0; i < ids.size / sizeof(int32_t); i++) {
        const int32_t *id = (const int32_t *)(void *)ids.data + i;
        if (text_model->text->tokens[*id].flags & TOKEN_ADDED) buf_add(added, id, sizeof *id);
    }
    buf_free(&ids);
}

// The control tokens of a prompt are those of the template's own words.
static void check_prompt(const marked_text *prompt) {
    buf added = {NULL, 0, 0, 0}, own = {NULL, 0, 0, 0};
    size_t count, at = 0;
    const text_range *r = outside_of(prompt, &count);
    for (size_t i = 0; i < count; i++) {
        must(r[i].begin >= at && r[i].begin < r[i].end && r[i].end <= prompt->text.size, "ranges");
        added_tokens(prompt->text.data + at, r[i].begin - at, NULL, 0, &own);
        at = r[i].end;
    }
    added_tokens(prompt->text.data + at, prompt->text.size - at, NULL, 0, &own);
    added_tokens(prompt->text.data, prompt->text.size, r, count, &added);
    must(same(&added, &own), "a control token from outside");
    buf_free(&added);
    buf_free(&own);
}

static void fuzz_request(const buf *request, unsigned family) {
    static const int families[] = {CHAT_QWEN3, CHAT_QWEN3 | CHAT_LENIENT, CHAT_QWEN3_5, CHAT_QWEN3_5 | CHAT_LENIENT,
                                   CHAT_QWEN3_5 | CHAT_QUIET, CHAT_QWEN3_5 | CHAT_PRESERVE, CHAT_UNKNOWN,
                                   CHAT_QWEN3_5 | CHAT_PRESERVE | CHAT_EFFORT, CHAT_QWEN3 | CHAT_LENIENT | CHAT_INSTRUCT, CHAT_CODER,
                                   CHAT_CODER | CHAT_NEXT, CHAT_CHATML | CHAT_SMOL, CHAT_LLAMA3 | CHAT_DATED, CHAT_MISTRAL,
                                   CHAT_MISTRAL | CHAT_NEMO, CHAT_MISTRAL | CHAT_SMALL, CHAT_ZEPHYR, CHAT_LLAMA3, CHAT_CHATML | CHAT_BOS,
                                   CHAT_GLM, CHAT_GLM | CHAT_LINED, CHAT_DEEPSEEK | CHAT_LINED, CHAT_DEEPSEEK | CHAT_OPEN, CHAT_DEEPSEEK | CHAT_QUIET,
                                   CHAT_LAGUNA | CHAT_QUIET, CHAT_LAGUNA | CHAT_QUIET | CHAT_LINED,
                                   CHAT_HARMONY, CHAT_GEMMA | CHAT_QUIET,
                                   CHAT_GEMMA | CHAT_QUIET | CHAT_NAMES | CHAT_PRESERVE, CHAT_GEMMA | CHAT_QUIET | CHAT_BARE};
    enum { COUNT = sizeof families / sizeof *families };
    marked_text out;
    mote_error err;
    memset(&out, 0, sizeof out);
    int code = chat_render((chat_family)families[family % COUNT], request->data, request->size, &out, &err);
    check_error(code, &err);
    must(!code || !out.text.size, "a prompt after an error");
    if (!code) check_prompt(&out);
    marked_free(&out);
}

static void emit_to(void *user, int channel, const char *text, size_t n) {
    char mark[2] = {(char)('0' + channel), '|'};
    buf *out = (buf *)user;
    for (size_t i = 0; i < n; i++) {
        buf_add(out, mark, 1);
        buf_add(out, text + i, 1);
    }
    if (!n) buf_add(out, mark, 2);
}

static void check_call(void *user, const char *call, size_t size) {
    json j;
    mote_error err;
    must(strlen(call) == size && !json_parse(&j, call, size, "call", &err), "a call is no JSON");
    uint32_t name = json_get(&j, 0, "name"), arguments = json_get(&j, 0, "arguments");
    must(name && j.nodes[name].type == JSON_STRING && arguments && j.nodes[arguments].type == JSON_OBJECT, "a call lacks its parts");
    json_free(&j);
    buf_add((buf *)user, call, size);
}

// The marks of messages with headers come whole, the text between them in pieces.
static void hear_messages(chat_stream *s, const buf *text, unsigned step, int in_header) {
    channels_begin(s, in_header ? IN_HEADER : IN_BODY);
    for (size_t i = 0, n; i < text->size; i += n) {
        const int mark = header_mark(slice_of(text->data + i, text->size - i));
        for (n = 1; mark < 0 && n < step && i + n < text->size && header_mark(slice_of(text->data + i + n, text->size - i - n)) < 0;) n++;
        if (mark >= 0) n = strlen(header_marks[mark]), channels_mark(s, mark);
        else chat_stream_push(s, text->data + i, n);
    }
}

// syntax: 16: Mistral's marks, 24: Gemma's, also of thinking, 32: Llama's objects, 40: DeepSeek's marks, 48: GLM's keys and values, of calls; 56: messages with headers.
static void hear_answer(const buf *text, unsigned step, int thinking, int end, const json *calls, int syntax, buf *told) {
    chat_stream s;
    memset(&s, 0, sizeof s);
    s.emit = emit_to;
    s.on_call = calls ? check_call : NULL;
    s.tools = calls;
    s.marks = (syntax & 56) == 24 ? chat_marks_of(CHAT_GEMMA) : NULL;
    s.marked_calls = (syntax & 56) == 40;
    s.call_mark = s.marks ? s.marks->call : s.marked_calls ? DEEPSEEK_CALLS : (syntax & 48) == 16 ? "[TOOL_CALLS]" : NULL;
    s.bare_calls = (syntax & 56) == 32;
    s.keyed_calls = (syntax & 56) == 48;
    s.user = told;
    chat_stream_begin(&s, thinking);
    if (syntax == 56) hear_messages(&s, text, step, thinking);
    for (size_t i = 0; i < text->size && !s.headed; i += step)
        chat_stream_push(&s, text->data + i, text->size - i < step ? text->size - i : step);
    chat_stream_end(&s, end);
    must(!chat_stream_failed(&s), "an answer's memory");
    chat_stream_free(&s);
}

// In pieces or not, an answer is the same, and whatever is told as a call is one. Its text is well formed.
static void fuzz_answer(const buf *text, unsigned step, int thinking, int end, int calls) {
    static const char tools[] = "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"x\": {\"type\": [\"string\", \"null\"]}, "
                                "\"y\": {\"$ref\": \"#/$defs/y\"}}, \"$defs\": {\"y\": {\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"object\"}]}}}}]";
    buf clean = {NULL, 0, 0, 0}, whole = {NULL, 0, 0, 0}, pieces = {NULL, 0, 0, 0};
    utf8_stream stream;
    mote_error err;
    json j;
    memset(&stream, 0, sizeof stream);
    utf8_stream_push(&stream, text->data, text->size, &clean);
    utf8_stream_end(&stream, &clean);
    must(!json_parse(&j, tools, sizeof tools - 1, "tools", &err), "tools");
    hear_answer(&clean, (unsigned)clean.size + 1, thinking, end, calls ? &j : NULL, calls, &whole);
    hear_answer(&clean, step, thinking, end, calls ? &j : NULL, calls, &pieces);
    must(same(&whole, &pieces), "an answer in pieces differs");
    json_free(&j);
    buf_free(&clean);
    buf_free(&whole);
    buf_free(&pieces);
}

static void fuzz_saved(const buf *saved) {
    buf after = {NULL, 0, 0, 0};
    mote_error err;
    size_t n;
    int32_t id = 7;
    must(!mote_load(session, seeds[SEED_SAVED].data, seeds[SEED_SAVED].size, &err), "its own saved session");
    int code = mote_load(session, saved->data, saved->size, &err);
    check_error(code, &err);
    mote_save(session, NULL, 0, &n, NULL);
    must(!mote_save(session, buf_add(&after, NULL, n), n, &n, &err), "save");
    must(same(&after, code ? &seeds[SEED_SAVED] : saved), "a session that is not what was loaded");
    if (!code) {
        check_error(mote_feed(session, &id, 1, &err), &err);
        check_error(mote_step(session, NULL, &id, &err), &err);
        mote_reset(session, NULL);
    }
    buf_free(&after);
}

static void fuzz_text_files(const buf *text, const char *name) {
    mote_options o;
    mote_error err;
    mote_model *m;
    mote_sampling sampling;
    memset(&o, 0, sizeof o);
    o.parts = MOTE_TEXT_ONLY;
    write_temp("tokenizer.json", &seeds[SEED_TOKENIZER]);
    write_temp(name, text);
    int code = mote_open(temp_dir, &o, &m, &err);
    check_error(code, &err);
    if (code) return;
    mote_sampling_defaults(m, &sampling);
    mote_close(m);
}

// How texts are to be embedded: never what is not one of the ways.
static void fuzz_modules(const buf *modules, const buf *pooling) {
    mote_options o;
    mote_error err;
    mote_model *m;
    memset(&o, 0, sizeof o);
    o.parts = MOTE_TEXT_ONLY;
    must(!mkdir(in_temp("1_Pooling"), 0700), "cannot make a temporary folder");
    write_temp(POOLING, pooling);
    write_temp("modules.json", modules);
    write_temp("chat_template.jinja", &seeds[SEED_TEMPLATE]);
    must(!mote_open(temp_dir, &o, &m, &err), "modules.json keeps a model from being opened");
    check_error(m->no_pooling.code, &m->no_pooling);
    must(!m->no_pooling.code == (m->report.info.pooling == MOTE_POOLING_LAST || m->report.info.pooling == MOTE_POOLING_MEAN), "pooling");
    mote_close(m);
}

// A quantised checkpoint with its header or its config.json edited, or some bytes of its tensors.
static void fuzz_quantised(unsigned which, unsigned part, fuzz_input *in) {
    buf edited = {NULL, 0, 0, 0};
    const buf *header = &quantised_seeds[which].header, *data = &quantised_seeds[which].data;
    const buf *config_text = &quantised_seeds[which].config;
    if (part < 2) edit(in, part ? config_text : header, &edited);
    if (part == 2) buf_add(&edited, data->data, data->size);
    for (int i = 0; part == 2 && i < 8 && in->p < in->end; i++) {
        size_t at = next_bytes(in, 3) % edited.size;
        edited.data[at] = (char)next_bytes(in, 1);
    }
    write_model(part == 0 ? &edited : header, part == 1 ? &edited : config_text, part == 2 ? &edited : data, 0);
    use_model();
    buf_free(&edited);
    remove_temp();
}

static void run_target(unsigned target, fuzz_input *in) {
    static const int seed_of[] = {SEED_REQUEST, SEED_HEADER, SEED_CONFIG, SEED_INDEX, SEED_TOKENIZER,
                                  SEED_DEMO_TOKENIZER, SEED_TEXT, SEED_REQUEST, SEED_ANSWER, SEED_SAVED,
                                  SEED_GENERATION, SEED_TEMPLATE, SEED_TOKENIZER_CONFIG, SEED_SPACES, SEED_MODULES, SEED_POOLING};
    buf text = {NULL, 0, 0, 0};
    unsigned option = target == 1 || (target >= 6 && target <= 8) ? next_bytes(in, 1) : 0, step = option % 7 + 1;
    edit(in, &seeds[seed_of[target]], &text);
    if (target == 0) fuzz_json(&text);
    if (target == 1) write_model(&text, &seeds[SEED_CONFIG], &weights, option < 200 ? 0 : option - 200), use_model();
    if (target == 2) write_model(&seeds[SEED_HEADER], &text, &weights, 0), use_model();
    if (target == 3) fuzz_index(&text);
    if (target == 4 || target == 5 || target == 13) fuzz_tokenizer(&text);
    if (target == 6) fuzz_text(&text, step);
    if (target == 7) fuzz_request(&text, option);
    if (target == 8) fuzz_answer(&text, step, option & 128, option & 64 ? TEXT_ENDS : TEXT_IS_CUT, option & 56);
    if (target == 9) fuzz_saved(&text);
    if (target == 10) fuzz_text_files(&text, "generation_config.json");
    if (target == 11) fuzz_text_files(&text, "chat_template.jinja");
    if (target == 12) fuzz_text_files(&text, "tokenizer_config.json");
    if (target == 14) fuzz_modules(&text, &seeds[SEED_POOLING]);
    if (target == 15) fuzz_modules(&seeds[SEED_MODULES], &text);
    buf_free(&text);
    remove_temp();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_input in = {data, data + size};
    if (!*temp_dir) start();
    enum { TARGETS = 16 };
    unsigned target = next_bytes(&in, 1) % (TARGETS + 3 * QUANTISED);
    if (target < TARGETS) run_target(target, &in);
    else fuzz_quantised((target - TARGETS) % QUANTISED, (target - TARGETS) / QUANTISED, &in);
    return 0;
}

#ifdef FUZZ_MAIN
int main(int argc, char **argv) {
    uint8_t data[256];
    uint64_t random = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    buf file = {NULL, 0, 0, 0};
    unsigned long runs = 0;
    double limit = argc > 1 ? atof(argv[1]) : 10, began = seconds();
    if (argc > 1 && !read_file(NULL, argv[1], &file, NULL)) {
        LLVMFuzzerTestOneInput((const uint8_t *)file.data, file.size);
        buf_free(&file);
        return 0;
    }
    for (; seconds() - began < limit; runs++) {
        size_t size = 0;
        do {
            random = random * 6364136223846793005u + 1442695040888963407u;
            data[size++] = (uint8_t)(random >> 56);
        } while (size < sizeof data && random >> 40 & 31);
        LLVMFuzzerTestOneInput(data, size);
    }
    printf("fuzz_inputs: %lu runs\n", runs);
    return 0;
}
#endif
