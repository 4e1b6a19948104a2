/* text/chat_template.c: which chat family a template is.

   A checkpoint brings its chat format as a Jinja program. We do not run Jinja: the programs we know are written out as C in
   the renderers of chat.c and give the same bytes. A program is recognised by a hash of its whole text, without indentation,
   empty lines and white space at line ends, none of which reaches the output of these programs.

   People change these programs: comments, a default system prompt, another sentence in the tools' instructions, no errors
   raised. A text of another hash that has all marks of a family, its call syntax and its way to begin an answer is used as
   that family's, with a notice, because this is what the model was trained on. One without is unknown, and so is one that says
   something else outside of its messages (chat_outer.c): a model prompted wrongly answers badly without a word. */

/* The family of a published text, by its hash. */
static int chat_published(slice text) {
    static const struct {
        uint64_t hash;
        int family;
    } known[] = {
        {0x0069FAE55F9BBDCCu, CHAT_QWEN3},                     /* Qwen3 (first release) */
        {0xD9204720CD536859u, CHAT_QWEN3 | CHAT_LENIENT},      /* Qwen3 (later text) */
        {0x7FF3A87A165FF7DEu, CHAT_QWEN3_5},                   /* Qwen3.5 4B and larger */
        {0x2B2ECD7ADCF49C7Du, CHAT_QWEN3_5 | CHAT_LENIENT},    /* Qwen3.5 35B-A3B (another text) */
        {0x0E50F370211D5EF7u, CHAT_QWEN3_5 | CHAT_QUIET},      /* Qwen3.5, small models */
        {0xFEDB038E6D6019AAu, CHAT_QWEN3_5 | CHAT_PRESERVE},   /* Qwen3.6 */
        {0x65237C533DFC9403u, CHAT_QWEN3_5 | CHAT_PRESERVE | CHAT_EFFORT},         /* Qwen3.8 */
        {0x34745074CF0C2763u, CHAT_QWEN3 | CHAT_LENIENT | CHAT_INSTRUCT},          /* Qwen3-Instruct-2507 */
        {0x4C4AB6A9BE100121u, CHAT_QWEN3 | CHAT_LENIENT | CHAT_OPEN},              /* Qwen3-Thinking-2507 */
        {0xDAEA3E2A09F36D01u, CHAT_CODER},                                         /* Qwen3-Coder */
        {0x425A298BE92F8C90u, CHAT_CODER | CHAT_NEXT},                             /* Qwen3-Coder-Next */
        {0xF656202A171EC590u, CHAT_CHATML | CHAT_SMOL},                            /* SmolLM2 */
        {0x819761F05F3C4C4Eu, CHAT_LLAMA3},                                        /* Llama 3, with line feeds and */
        {0x81D57DA67C942208u, CHAT_LLAMA3},                                        /* with \n in its texts */
        {0x212828A59577EE8Eu, CHAT_LLAMA3 | CHAT_DATED},                           /* Llama 3.1 */
        {0x9B7091A91A6BBBC2u, CHAT_LLAMA3 | CHAT_DATED | CHAT_TODAY},              /* Llama 3.2 */
        {0x4624748709C6779Eu, CHAT_MISTRAL | CHAT_SPACED},                         /* Mistral 7B v0.1 */
        {0xA0C1ADE382D780A5u, CHAT_MISTRAL},                                       /* Mixtral */
        {0x0A59C4C38B2F2D21u, CHAT_MISTRAL | CHAT_NEMO | CHAT_SPACED},             /* Mistral 7B v0.3 */
        {0xB712183BD40CE655u, CHAT_MISTRAL | CHAT_NEMO},                           /* Mistral Nemo */
        {0x017620F246E7F5A7u, CHAT_MISTRAL | CHAT_SMALL},                          /* Mistral Small 3.2 */
        {0x19A08280DDDB5CB8u, CHAT_GEMMA | CHAT_QUIET},                                           /* Gemma 4, 26B-A4B and 31B: of April 2026, */
        {0xEBD005F272DF02D9u, CHAT_GEMMA | CHAT_QUIET | CHAT_NAMES},                              /* of a time between them, */
        {0x47C5000BC50F5F6Fu, CHAT_GEMMA | CHAT_QUIET | CHAT_NAMES | CHAT_PRESERVE},              /* of July; */
        {0x41D71E7BAA168F3Au, CHAT_GEMMA | CHAT_QUIET | CHAT_BARE},                               /* E2B and E4B, of April */
        {0x8F43CC6E67BE5822u, CHAT_GEMMA | CHAT_QUIET | CHAT_NAMES | CHAT_PRESERVE | CHAT_BARE},  /* and July */
        {0x2AFF04BC04868654u, CHAT_ZEPHYR},                                        /* Zephyr, with \n in its texts and */
        {0xF3D93117425B0492u, CHAT_ZEPHYR},                                        /* with line feeds */
        {0xB3B5A05BA740C21Eu, CHAT_DEEPSEEK | CHAT_LINED},                         /* DeepSeek-V3 */
        {0x5267B0999D10A438u, CHAT_DEEPSEEK | CHAT_OPEN | CHAT_LINED},             /* DeepSeek-R1, its distillates */
        {0x9A32EA6C7F71DC2Du, CHAT_DEEPSEEK | CHAT_OPEN},                          /* R1, a later text */
        {0x4595D94EFDB8BE99u, CHAT_DEEPSEEK | CHAT_QUIET},                         /* DeepSeek-V3.1 */
        {0x601A95FF88CB6740u, CHAT_LAGUNA | CHAT_QUIET},                           /* Laguna XS-2.1 */
        {0xF26C007BA8236712u, CHAT_LAGUNA | CHAT_QUIET | CHAT_LINED},              /* Laguna XS.2 */
        {0x54B770C793FC0AEEu, CHAT_HARMONY},                                       /* gpt-oss */
        {0xF2FADD1BAF91002Eu, CHAT_GLM},                                           /* GLM-4.7-Flash */
        {0xED9ECC4F651BE568u, CHAT_GLM | CHAT_LINED},                              /* GLM-4.6 */
    };
    uint64_t hash = FNV_START;
    for (const char *p = text.p, *end = p + text.n; p < end;) {
        const char *newline = (const char *)memchr(p, '\n', (size_t)(end - p));
        const char *line_end = newline ? newline : end, *next = newline ? newline + 1 : end;
        while (p < line_end && (*p == ' ' || *p == '\t' || *p == '\r')) p++;
        while (p < line_end && (line_end[-1] == ' ' || line_end[-1] == '\t' || line_end[-1] == '\r')) line_end--;
        if (p < line_end) hash = fnv1a(fnv1a(hash, p, (size_t)(line_end - p)), "\n", 1);
        p = next;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].hash == hash) return known[i].family;
    return CHAT_UNKNOWN;
}

static int has_marks(slice text, const chat_marks *m) {
    const char *const marks[] = {m->turn, m->turn_end, m->think, m->think_end, m->result, m->result_end,
                                 m->call, m->call_end, m->call_name, m->call_argument};
    size_t i = 0;
    while (i < sizeof marks / sizeof *marks && slice_has(text, marks[i])) i++;
    return i == sizeof marks / sizeof *marks;
}

/* 1: a template that can open the thinking and close it, `open` before `closed`, does the latter unless it is asked for. begin:
   its beginning of an answer. */
static int is_quiet(slice text, slice begin, size_t open, size_t closed) {
    static const char *const defaults[] = {"not defined", "undefined", "default(true"};    /* it thinks unless told */
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        if (slice_has(begin, defaults[i])) return 0;
    return open < closed && slice_has(begin, "enable_thinking") && !slice_has(text, "set enable_thinking");
}

/* A template's own system turn. */
static int smol_flag(slice text) {
    return slice_has(text, "You are a helpful AI assistant named SmolLM") ? CHAT_SMOL : 0;
}

/* Qwen's families, which think. How an answer begins tells most: after the last add_generation_prompt there is a thinking block
   that is closed at once, and in Qwen3.5 also one that stays open. begin: that part. */
static int recognise_thinking(slice text, slice begin) {
    const chat_marks *const m = chat_marks_of_answers;
    char closed_block[64];
    snprintf(closed_block, sizeof closed_block, "%s\\n\\n%s\\n\\n", m->think, m->think_end);    /* as Jinja has line feeds */
    size_t closed = slice_before(begin, closed_block).n, open = slice_before(begin, m->think).n;
    int family = CHAT_UNKNOWN;
    if (closed == begin.n) {                                   /* Qwen3-Thinking-2507 has the other alone */
        const int always = open < begin.n && has_marks(text, &chat_families[0]) && !slice_has(text, m->call_name) &&
                           slice_has(text, "reasoning_content");
        return always ? CHAT_QWEN3 | CHAT_LENIENT | CHAT_OPEN : CHAT_UNKNOWN;
    }
    if (open == closed) {                                      /* the first one is closed: another may follow */
        slice after = slice_from(begin, closed + strlen(closed_block));
        open = begin.n - after.n + slice_before(after, m->think).n;
    }
    const int opens = open < begin.n, tags = slice_has(text, m->call_name);
    for (int i = 0; i < CHAT_FAMILY_COUNT && !family; i++) {
        const int f = chat_families[i].family & CHAT_QWENS;
        if (f && has_marks(text, &chat_families[i]) && (f == CHAT_QWEN3_5) == opens && (f == CHAT_QWEN3_5) == tags) family = f;
    }
    if (!family) return CHAT_UNKNOWN;
    if (family == CHAT_QWEN3) return slice_has(text, "message.content is string") ? family | CHAT_LENIENT : family;
    if (slice_has(text, "arguments is mapping") && !slice_has(text, "arguments is string")) family |= CHAT_LENIENT;
    if (slice_has(text, "preserve_thinking")) family |= CHAT_PRESERVE;
    if (slice_has(text, "reasoning_effort") && slice_has(text, "Reasoning effort is set to xhigh.")) family |= CHAT_EFFORT;
    return is_quiet(text, begin, open, closed) ? family | CHAT_QUIET : family;
}

/* ChatML without thinking: turns alone, or with tools. begin: after the last add_generation_prompt. */
static int recognise_chatml(slice text, slice begin) {
    const chat_marks *const coder = chat_marks_of(CHAT_CODER);
    if (!slice_has(text, coder->turn_end) || !slice_has(begin, "<|im_start|>assistant")) return CHAT_UNKNOWN;
    if (!slice_has(text, "tool")) return CHAT_CHATML | smol_flag(text);
    if (!slice_has(text, coder->call) || !slice_has(text, coder->result) || slice_has(text, "<think>")) return CHAT_UNKNOWN;
    if (slice_has(text, coder->call_name) && slice_has(text, "<parameters>"))
        return slice_has(text, "an inner <function=...></function>") ? CHAT_CODER | CHAT_NEXT : CHAT_CODER;
    const int default_system = slice_has(text, "helpful assistant");            /* Qwen2.5 */
    return slice_has(text, "\"name") && !default_system ? CHAT_QWEN3 | CHAT_LENIENT | CHAT_INSTRUCT : CHAT_UNKNOWN;
}

/* gpt-oss: messages with headers, which name their channels. begin: after the last add_generation_prompt. */
static int recognise_harmony(slice text, slice begin) {
    const int channels = slice_has(text, "<|channel|>analysis<|message|>") && slice_has(text, "<|channel|>final<|message|>");
    return channels && slice_has(text, "<|end|>") && slice_has(text, "functions.") && slice_has(begin, "<|start|>assistant") ? CHAT_HARMONY : CHAT_UNKNOWN;
}

static int recognise_mistral(slice text) {
    if (!slice_has(text, "[INST]") || !slice_has(text, "[/INST]") || !slice_has(text, "eos_token") || slice_has(text, "<<SYS>>"))
        return CHAT_UNKNOWN;
    if (!slice_has(text, "[AVAILABLE_TOOLS]"))
        return slice_has(text, "eos_token + ' '") ? CHAT_MISTRAL | CHAT_SPACED : CHAT_MISTRAL;
    if (!slice_has(text, "[/TOOL_RESULTS]")) return CHAT_UNKNOWN;
    if (slice_has(text, "[SYSTEM_PROMPT]")) return slice_has(text, "[CALL_ID]") ? CHAT_MISTRAL | CHAT_SMALL : CHAT_UNKNOWN;
    return slice_has(text, "[TOOL_CALLS] [") ? CHAT_MISTRAL | CHAT_NEMO | CHAT_SPACED : CHAT_MISTRAL | CHAT_NEMO;
}

/* GLM. begin: after the last add_generation_prompt. */
static int recognise_glm(slice text, slice begin) {
    static const char *const says[] = {"[gMASK]<sop>", "<|system|>", "<|observation|>"};
    for (int i = 0; i < 3; i++)
        if (!slice_has(text, says[i])) return CHAT_UNKNOWN;
    if (!has_marks(text, chat_marks_of(CHAT_GLM)) || !slice_has(begin, "<|assistant|>")) return CHAT_UNKNOWN;
    if (slice_has(text, "/nothink")) return CHAT_GLM | CHAT_LINED;
    return slice_has(begin, "'</think>' if") ? CHAT_GLM : CHAT_UNKNOWN;
}

/* Laguna's texts. begin: after the last add_generation_prompt. */
static int recognise_laguna(slice text, slice begin) {
    static const char *const says[] = {LAGUNA_BEGIN, "<available_tools>", "<system>"};
    for (int i = 0; i < 3; i++)
        if (!slice_has(text, says[i])) return CHAT_UNKNOWN;
    if (!has_marks(text, chat_marks_of(CHAT_LAGUNA)) || !slice_has(begin, "<assistant>") || !slice_has(begin, "<think>")) return CHAT_UNKNOWN;
    return CHAT_LAGUNA | CHAT_QUIET | (slice_has(text, "<user>\\n") ? CHAT_LINED : 0);
}

/* DeepSeek-V3's, R1's and V3.1's texts. V3.2's is another. begin: after the last add_generation_prompt. */
static int recognise_deepseek(slice text, slice begin) {
    static const char *const opens[] = {"<think>\\n", "<think>\n"}, *const lined[] = {"'\\n" DEEPSEEK("tool" UNDER "output" UNDER "begin"),
                                                                                   "'\n" DEEPSEEK("tool" UNDER "output" UNDER "begin")};
    chat_marks marks = *chat_marks_of(CHAT_DEEPSEEK);
    marks.think = marks.think_end = "";
    if (!has_marks(text, &marks) || !slice_has(text, DEEPSEEK_CALLS_END) || !slice_has(text, DEEPSEEK_SEP) || slice_has(text, "DSML") ||
        !slice_has(begin, marks.answer))
        return CHAT_UNKNOWN;
    if (slice_has(begin, "not thinking")) return CHAT_DEEPSEEK | CHAT_QUIET | (slice_has(begin, "<think></think>") ? 0 : CHAT_BARE);
    const int open = slice_has(begin, opens[0]) || slice_has(begin, opens[1]), line = slice_has(text, lined[0]) || slice_has(text, lined[1]);
    return CHAT_DEEPSEEK | (open ? CHAT_OPEN : 0) | (line ? CHAT_LINED : 0);
}

/* Gemma 4's texts. begin: after the last add_generation_prompt. */
static int recognise_gemma(slice text, slice begin) {
    const chat_marks *const m = chat_marks_of(CHAT_GEMMA);
    if (!has_marks(text, m) || !slice_has(begin, "<|turn>model") || !slice_has(text, "call:")) return CHAT_UNKNOWN;
    return CHAT_GEMMA | CHAT_QUIET | (slice_has(text, "filter_keys") ? CHAT_NAMES : 0) | (slice_has(text, "preserve_thinking") ? CHAT_PRESERVE : 0) |
           (slice_has(begin, "<channel|>") ? 0 : CHAT_BARE);
}

/* What the renderers write around the messages, where a template says it under no condition, in the words of chat_outer.c: in front of
   them, after the token that texts begin with, and after them. More is said under conditions, or among the messages. */
static const struct { int family; const char *before[2], *after[2]; } outer_texts[] = {
    {CHAT_LLAMA3 | CHAT_DATED,
     {"<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: \1\n\n\1<|eot_id|>", ""},
     {"<|start_header_id|>assistant<|end_header_id|>\n\n", ""}},
    {CHAT_LLAMA3, {"", ""}, {"<|start_header_id|>assistant<|end_header_id|>\n\n", ""}},
    {CHAT_MISTRAL | CHAT_SMALL, {"[SYSTEM_PROMPT]\1[/SYSTEM_PROMPT]", ""}, {"", ""}},
    {CHAT_MISTRAL, {"", ""}, {"", ""}},
    {CHAT_ZEPHYR, {"", ""}, {"<|assistant|>\n", ""}},
    {CHAT_HARMONY, {"<|start|>system<|message|>\1<|end|>", ""}, {"<|start|>assistant", ""}},
    {CHAT_GLM, {"[gMASK]<sop>", ""}, {"<|assistant|>\1", ""}},
    {CHAT_LAGUNA | CHAT_LINED, {LAGUNA_BEGIN, ""}, {"<assistant>\n", ""}},
    {CHAT_LAGUNA, {LAGUNA_BEGIN, ""}, {"<assistant>", ""}},
    {CHAT_DEEPSEEK, {"\1", ""}, {"", DEEPSEEK("Assistant")}},
    {CHAT_GEMMA, {"", ""}, {"", "<|turn>model\n"}},
    {CHAT_QWEN3 | CHAT_OPEN, {"", ""}, {"<|im_start|>assistant\n<think>\n", "<|im_start|>assistant\n"}},
    {0, {"", ""}, {"<|im_start|>assistant\n", ""}}};

/* 1: a template of a family says what its renderer writes outside of the messages, as far as that can be read off it. */
static int says_outside(slice text, int family) {
    outer_text o;
    size_t i = 0;
    int same = 1;
    while ((family & outer_texts[i].family) != outer_texts[i].family) i++;
    if (outer_read(&o, text)) {
        const char *before = o.before.data + (*o.before.data == OUTER_BOS), *after = o.after.data;
        same = (!strcmp(before, outer_texts[i].before[0]) || !strcmp(before, outer_texts[i].before[1])) &&
               (!strcmp(after, outer_texts[i].after[0]) || !strcmp(after, outer_texts[i].after[1]));
    }
    outer_free(&o);
    return same;
}

/* The family that a text without comments belongs to by what it says. */
static int chat_recognise(slice text) {
    slice begin = slice_after(text, "add_generation_prompt");
    int family = recognise_mistral(text);
    if (family || begin.n == text.n) return family;
    family = recognise_glm(text, begin);
    if (!family) family = recognise_deepseek(text, begin);
    if (!family) family = recognise_laguna(text, begin);
    if (!family) family = recognise_thinking(text, begin);
    if (!family) family = recognise_chatml(text, begin);
    if (!family) family = recognise_gemma(text, begin);
    if (!family) family = recognise_harmony(text, begin);
    if (family) return family;
    if (slice_has(begin, "<|start_header_id|>assistant<|end_header_id|>") && slice_has(text, "<|eot_id|>")) {
        if (!slice_has(text, "Cutting Knowledge Date")) return slice_has(text, "tool") ? CHAT_UNKNOWN : CHAT_LLAMA3;
        return CHAT_LLAMA3 | CHAT_DATED | (slice_has(text, "strftime_now") ? CHAT_TODAY : 0);
    }
    const int zephyr = slice_has(text, "<|user|>") && slice_has(text, "<|system|>") && slice_has(text, "eos_token");
    return zephyr && slice_has(begin, "<|assistant|>") ? CHAT_ZEPHYR : CHAT_UNKNOWN;
}

/* The text without Jinja's comments, in its own place. */
static slice cut_comments(char *text, size_t n) {
    size_t to = 0;
    for (slice rest = slice_of(text, n); rest.n;) {
        slice before = slice_before(rest, "{#"), comment = slice_from(rest, before.n);
        size_t end = slice_before(comment, "#}").n;
        if (end == comment.n) before = rest;                   /* none that ends */
        memmove(text + to, before.p, before.n);
        to += before.n;
        rest = before.n == rest.n ? slice_of(NULL, 0) : slice_from(comment, end + 2);
    }
    return slice_of(text, to);
}

/* The family of a template; what it says is of no use afterwards. *modified: it is none that was published. */
static chat_family chat_detect(char *text, size_t len, int *modified) {
    int family = chat_published(slice_of(text, len));
    *modified = !family;
    if (!family) {
        slice bare = cut_comments(text, len);
        family = chat_published(bare);
        if (!family) family = chat_recognise(bare);
        if (!family || !says_outside(bare, family)) return CHAT_UNKNOWN;
        if (!(family & (CHAT_LLAMA3 | CHAT_MISTRAL | CHAT_GEMMA | CHAT_DEEPSEEK | CHAT_HARMONY)) && slice_has(bare, "bos_token")) family |= CHAT_BOS;
    }
    return (chat_family)family;
}

static const char *chat_known(void) {
    return "Qwen3, Qwen3.5, Qwen3.8, Qwen3-Coder, ChatML, Llama 3, Mistral, Zephyr, Gemma 4, GLM, DeepSeek, Laguna, gpt-oss";
}

static int chat_unknown(mote_error *err) {
    return fail(err, MOTE_EUNSUPPORTED, "unknown chat template (known: %s); raw prompts work", chat_known());
}
