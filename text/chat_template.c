/* text/chat_template.c: which chat family a template is.

   A checkpoint brings its chat format as a Jinja program. We do not run Jinja: the programs we know are written out as C in
   chat.c and give the same bytes. A program is recognised by a hash of its whole text, without indentation, empty lines and
   white space at line ends (none of which reaches the output, since every tag of these programs strips what is before it).
   Anything else about an unknown text could change the prompt, and a model prompted wrongly answers badly without a word, so
   we refuse the others. One family holds several published texts, told apart by flags. */

typedef enum chat_family {
    CHAT_UNKNOWN = 0,
    CHAT_QWEN3 = 1,    /* calls as JSON; the model opens <think> itself */
    CHAT_QWEN3_5 = 2,  /* calls as <function=f><parameter=x>; the prompt ends inside an open <think> */
    CHAT_LENIENT = 4,  /* Qwen3: content that is no text counts as empty; Qwen3.5: so do arguments that are no object */
    CHAT_QUIET = 8,    /* thinks only when asked to */
    CHAT_PRESERVE = 16 /* Qwen3.6: "preserve_thinking" keeps old thoughts; arguments that are no text are all JSON */
} chat_family;

static chat_family chat_detect(const char *template_text, size_t len) {
    static const struct {
        uint64_t hash;
        int family;
    } known[] = {
        {0x0069FAE55F9BBDCCu, CHAT_QWEN3}, /* Qwen3 (first release) */
        {0xD9204720CD536859u, CHAT_QWEN3 | CHAT_LENIENT}, /* Qwen3 (later text) */
        {0x7FF3A87A165FF7DEu, CHAT_QWEN3_5}, /* Qwen3.5 4B and larger */
        {0x2B2ECD7ADCF49C7Du, CHAT_QWEN3_5 | CHAT_LENIENT}, /* Qwen3.5 35B-A3B (another text) */
        {0x0E50F370211D5EF7u, CHAT_QWEN3_5 | CHAT_QUIET}, /* Qwen3.5, small models */
        {0xFEDB038E6D6019AAu, CHAT_QWEN3_5 | CHAT_PRESERVE}, /* Qwen3.6 */
    };
    uint64_t hash = FNV_START;
    for (const char *p = template_text, *end = p + len; p < end;) {
        const char *newline = (const char *)memchr(p, '\n', (size_t)(end - p));
        const char *line_end = newline ? newline : end, *next = newline ? newline + 1 : end;
        while (p < line_end && (*p == ' ' || *p == '\t' || *p == '\r')) p++;
        while (p < line_end && (line_end[-1] == ' ' || line_end[-1] == '\t' || line_end[-1] == '\r')) line_end--;
        if (p < line_end) hash = fnv1a(fnv1a(hash, p, (size_t)(line_end - p)), "\n", 1);
        p = next;
    }
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].hash == hash) return (chat_family)known[i].family;
    }
    return CHAT_UNKNOWN;
}

static const char *chat_known(void) {
    return "Qwen3, Qwen3.5";
}

static int chat_unknown(mote_error *err) {
    return fail(err, MOTE_EUNSUPPORTED, "unknown chat template (known: %s); raw prompts work", chat_known());
}
