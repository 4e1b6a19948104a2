/* program/options.c: what can be asked for on the command line. A new option is a field and a line of the table. The parser
   knows nothing of what a value is for: options that exclude each other are their command's business.

   One table describes every option: what it takes, where the value goes, which commands know it, its line of help. */

enum { CHAT = 1, RUN = 2, INFO = 4, TOKENIZE = 8, DETOKENIZE = 16, RENDER = 32, LOGITS = 64, BENCH = 128, HELP = 256,
       SELFTEST = 512, SERVE = 1024, TRACE = 2048, WORKER = 4096, ACCURACY = 8192 };
enum { SPLIT_REPLICAS = MOTE_SPLIT_TENSOR + 1 };       /* a model on each device: of the program, not of the library */

typedef struct options {                   /* zero or NULL: not given, except where defaults() says otherwise */
    const char *drafter;                   /* a folder */
    const char *model, *prompt, *system, *effort, *tokens, *output, *mtp_output, *topic, *device, *devices, *synthetic, *json, *ask, *html, *text, *against;
    const char *host, *api_key, *api_key_file, *cache_dir, *name;
    texts stop, hosts, images;
    sides image_sides;                     /* of bench */
    int image_tokens;                      /* of one image, at most */
    list prompts, depths, rows, sessions;
    int beside, report, contexts;
    int layer;                             /* -1: not given */
    ranges layers;                         /* none: all */
    reals accept;
    seed seed;
    int max_tokens, context, threads, chunk, steps, repeat, think, top_k, raw, greedy, ids, nul_separated, help;
    int fits;                              /* tokens of context that the program chooses on a GPU; 0: the library does */
    int split;                             /* MOTE_SPLIT_..., or SPLIT_REPLICAS, of devices */
    const char *workers, *secret_file, *listen;
    char secret[260];                      /* of secret_file: read_secret */
    const char *split_layers;              /* of a pipeline; NULL: not given */
    double gpu_memory;                     /* bytes; 0: not given */
    int experts;                           /* MOTE_EXPERTS_... */
    speeds link;                           /* of a machine that is not here; 0: not given */
    int kv, quantize, sms, stages, verbose, no_history, mtp, draft_rows, verify;
    int port, parallel, queue, cors, log_json;       /* port, queue: -1: not given */
    double temperature, top_p, min_p, overlap, locality;
    int expert_slots;                      /* -1: not given, as of locality */
    double cache_memory, cache_disk, request_memory;      /* GB; -1: not given */
    double repetition, presence, frequency;                    /* NAN: not given */
} options;

static options defaults(void) {
    options o;
    memset(&o, 0, sizeof o);
    o.top_k = -1;
    o.temperature = o.top_p = o.min_p = o.overlap = o.cache_memory = o.cache_disk = o.request_memory = -1;
    o.port = o.queue = o.layer = o.expert_slots = -1;
    o.locality = -1;
    o.repetition = o.presence = o.frequency = NAN;
    o.repeat = 3;
    return o;
}

enum { FLAG, TEXT, TEXTS, WHOLE, REAL, SEED, SWITCH, LIST, RANGES, REALS, DEVICE, DEVICES, SPLIT, KV, MTP, QUANTIZE, ADDRESS, ADDRESSES, BYTES, HOME, LINK, SIDES };

typedef struct option {
    const char *name, *value;              /* value: how the help calls it */
    int kind;
    size_t offset;
    double low, high;
    int commands;
    const char *help;
} option;

#define AT(field) offsetof(options, field)
#define EVERY (CHAT | RUN | INFO | TOKENIZE | DETOKENIZE | RENDER | LOGITS | BENCH | SERVE | TRACE | WORKER | ACCURACY)
#define COMPUTES (CHAT | RUN | SERVE | INFO | LOGITS | BENCH | ACCURACY)

static const option option_table[] = {                     /* name, value, kind, offset, low, high, commands, help */
    {"-m", "DIR", TEXT, AT(model), 0, 0, EVERY, "checkpoint folder (default: the bundled model, models/demo)"},
    {"-p", "TEXT", TEXT, AT(prompt), 0, 0, RUN, "the prompt; -p may be left out (default: what is piped in)"},
    {"--system", "TEXT", TEXT, AT(system), 0, 0, CHAT | RUN, "system message"},
    {"--think", "on|off", SWITCH, AT(think), 0, 0, CHAT | RUN, "think first (default: as the template has it)"},
    {"--effort", "LEVEL", TEXT, AT(effort), 0, 0, CHAT | RUN, "how hard to think: none, low, medium, high (default: the template's)"},
    {"--raw", NULL, FLAG, AT(raw), 0, 0, RUN, "feed the prompt as it is, print all that comes"},
    {"--raw", NULL, FLAG, AT(raw), 0, 0, TRACE, "the text as it is, without the chat template"},
    {"--tokens", "FILE.i32", TEXT, AT(tokens), 0, 0, RUN | LOGITS | TRACE, "token ids to read, as little-endian int32"},
    {"--ids", NULL, FLAG, AT(ids), 0, 0, RUN, "print token ids on one line instead of text (always so with --tokens)"},
    {"--image", "FILE", TEXTS, AT(images), 0, 0, RUN | LOGITS, "a PNG or JPEG that the model is shown before the prompt; may be repeated, in order"},
    {"--image", "WxH,...", SIDES, AT(image_sides), 0, 0, BENCH,
     "instead: pictures of so many pixels: how long until the vision tower is done, and until the first token"},
    {"--image-tokens", "N", WHOLE, AT(image_tokens), 64, 1 << 16, CHAT | RUN | LOGITS | BENCH | SERVE,
     "most tokens of an image, larger ones are reduced (default: 4096, or the checkpoint's own limit if that is less)"},
    {"-o", "OUT.f32", TEXT, AT(output), 0, 0, LOGITS, "write float32 [tokens, vocabulary] here"},
    {"--mtp", "OUT.f32", TEXT, AT(mtp_output), 0, 0, LOGITS,
     "write the MTP layer's float32 [tokens - 1, vocabulary] here"},
    {"--chunk", "N", WHOLE, AT(chunk), 1, 8192, COMPUTES & ~ACCURACY, "tokens of a prompt computed at a time"},
    {"-n", "N", WHOLE, AT(max_tokens), 1, INT_MAX, CHAT | RUN, "at most N tokens (default: until the context is full)"},
    {"--stop", "TEXT", TEXTS, AT(stop), 0, 0, CHAT | RUN, "end the answer before TEXT; may be repeated"},
    {"--greedy", NULL, FLAG, AT(greedy), 0, 0, CHAT | RUN, "always the most probable token, no penalties"},
    {"--no-history", NULL, FLAG, AT(no_history), 0, 0, CHAT, "do not remember what is typed between runs"},
    {"--temp", "T", REAL, AT(temperature), 0, 100, CHAT | RUN, "temperature; 0 is greedy (default: the model's own)"},
    {"--top-k", "K", WHOLE, AT(top_k), 0, INT_MAX, CHAT | RUN, "only the K most probable tokens; 0: all"},
    {"--top-p", "P", REAL, AT(top_p), 0, 1, CHAT | RUN, "only the most probable tokens that sum up to P"},
    {"--min-p", "P", REAL, AT(min_p), 0, 1, CHAT | RUN, "only tokens at least P times as probable as the best"},
    {"--repetition-penalty", "P", REAL, AT(repetition), 0, 10, CHAT | RUN, "divides logits of tokens seen; 1: none"},
    {"--presence-penalty", "P", REAL, AT(presence), -2, 2, CHAT | RUN, "taken once from logits of tokens generated"},
    {"--frequency-penalty", "P", REAL, AT(frequency), -2, 2, CHAT | RUN, "the same for each time it was generated"},
    {"--seed", "N", SEED, AT(seed), 0, 0, CHAT | RUN, "same seed, same text (default: a new one)"},
    {"-0", NULL, FLAG, AT(nul_separated), 0, 0, TOKENIZE, "the input holds texts separated by zero bytes"},
    {"--layer", "N", WHOLE, AT(layer), 0, INT_MAX, TRACE, "this layer alone, from 0, with every head; the MTP layer is the last one"},
    {"--layers", "LIST", RANGES, AT(layers), 0, 0, TRACE, "of the layers, which follow the summary, only these, as 0-3,7"},
    {"--html", "FILE", TEXT, AT(html), 0, 0, TRACE, "write a page with pictures here, too"},
    {"--prompt", "N,N...", LIST, AT(prompts), 1, 1 << 24, BENCH, "prompt lengths to read (default: 128,512)"},
    {"--depth", "N,N...", LIST, AT(depths), 0, 1 << 24, BENCH,
     "context depths to decode at (default: 0,1024; on a GPU 0,4096,32768,131072)"},
    {"--rows", "N,N...", LIST, AT(rows), 1, MOTE_ROWS_MAX, BENCH, "GPU: tokens decoded in one step, up to 8 (default: 1,2,3,4)"},
    {"--tokens", "N", WHOLE, AT(steps), 1, 1 << 20, BENCH,
     "steps decoded in one measurement (default: 32; on a GPU 200, at most 1000); with --ask of an answer (128)"},
    {"--repeat", "N", WHOLE, AT(repeat), 1, 99, BENCH,
     "measurements of which the median counts (default: 3); not for decoding on a GPU"},
    {"--ask", "FILE", TEXT, AT(ask), 0, 0, BENCH,
     "instead: answer its questions, one a line, without and with speculation, and compare"},
    {"--sessions", "N,N...", LIST, AT(sessions), 1, 64, BENCH,
     "instead: so many sessions at once, each of them after its own prompt of --prompt tokens (default: 128)"},
    {"--beside", "N", WHOLE, AT(beside), 1, 1 << 24, BENCH,
     "with --sessions: while one more session reads a prompt of N tokens; how long they wait, and how much longer that takes"},
    {"--report", NULL, FLAG, AT(report), 0, 0, BENCH,
     "prompts, depths and questions of its own, with machine, driver, hashes and self-test: one block of text to paste"},
    {"--accept", "P,P,P", REALS, AT(accept), 0, 1, BENCH,
     "GPU: speculation, too, simulated: the rates at which first, second, third drafts are accepted"},
    {"--overlap", "R", REAL, AT(overlap), 0, 1, BENCH,
     "with --accept: share of its experts that a row has in common with the first, simulated"},
    {"--expert-slots", "N", WHOLE, AT(expert_slots), 0, 1024, BENCH,
     "GPU, experts in host memory: at most so many slots for them in each layer (default: as many as fit)"},
    {"--locality", "P", REAL, AT(locality), 0, 1, BENCH,
     "with slots: the probability with which an expert is one that its layer has used last, simulated"},
    {"--text", "FILE", TEXT, AT(text), 0, 0, BENCH,
     "with --sessions: each reads another piece of this text, and goes on with what is most probable: with plain steps, then speculating"},
    {"--text", "FILE", TEXT, AT(text), 0, 0, ACCURACY, "the text to read, as mote run --raw reads it: a file"},
    {"--against", "WHAT", TEXT, AT(against), 0, 0, ACCURACY,
     "the reference: decode, with the device's widest KV cache (default); cpu, which computes in F32; definition, in double precision, slow; or "
     "another checkpoint's folder"},
    {"--context", "N", WHOLE, AT(context), 256, 1 << 20, ACCURACY,
     "tokens of a context, a multiple of 256 (default: 2048, against the definition 512)"},
    {"--contexts", "N", WHOLE, AT(contexts), 1, 1000, ACCURACY, "read at most so many (default: 8, against the definition 1)"},
    {"--synthetic", "NAME[:FORMAT][:N]", TEXT, AT(synthetic), 0, 0, INFO | BENCH | WORKER | ACCURACY,
     "random weights of a known model's shapes instead of a folder, as qwen3.5-35b-a3b:fp8; :N for N layers"},
    {"--stages", NULL, FLAG, AT(stages), 0, 0, BENCH, "GPU: each stage alone, too, at the first depth and rows"},
    {"--json", "FILE|-", TEXT, AT(json), 0, 0, BENCH | ACCURACY, "write the numbers for machines; -: to standard output"},
    {"--host", "ADDRESS", TEXT, AT(host), 0, 0, SERVE, "listen here (default: 127.0.0.1, this machine alone)"},
    {"--port", "N", WHOLE, AT(port), 0, 65535, SERVE, "listen on this port (default: 8080); 0: on any that is free"},
    {"--name", "TEXT", TEXT, AT(name), 0, 0, SERVE, "what clients call the model (default: what -m says, or its folder)"},
    {"--parallel", "N", WHOLE, AT(parallel), 1, 256, SERVE,
     "answers at the same time, of all replicas together (default: as many as fit, at most 16 a replica)"},
    {"--queue", "N", WHOLE, AT(queue), 0, 4096, SERVE, "requests that may wait for their turn (default: 64)"},
    {"--cache-memory", "GB", REAL, AT(cache_memory), 0, 1e6, SERVE,
     "memory for what conversations had read already (default: a quarter of what is free)"},
    {"--cache-dir", "DIR", TEXT, AT(cache_dir), 0, 0, SERVE, "keep that here for the next run, too (default: nowhere)"},
    {"--cache-disk", "GB", REAL, AT(cache_disk), 0, 1e6, SERVE, "at most so much of it there (default: 10)"},
    {"--request-memory", "GB", REAL, AT(request_memory), 0.001, 1e6, SERVE,
     "memory for all requests under way; beyond it they are told to come back (default: 2)"},
    {"--api-key", "TEXT", TEXT, AT(api_key), 0, 0, SERVE, "ask clients for this key (default: MOTE_API_KEY, if that is set)"},
    {"--api-key-file", "FILE", TEXT, AT(api_key_file), 0, 0, SERVE, "ask clients for a key of this file, one a line; SIGHUP reads it again"},
    {"--allow-host", "NAME", TEXTS, AT(hosts), 0, 0, SERVE, "let clients call this machine by NAME; may be repeated"},
    {"--cors", NULL, FLAG, AT(cors), 0, 0, SERVE, "let web pages of any origin ask"},
    {"--context", "N", WHOLE, AT(context), 1, INT_MAX, CHAT | RUN | INFO | SERVE,
     "tokens of context (default: the model's, at most 8192; on a GPU what fits, at most 131072)"},
    {"--context", "N", WHOLE, AT(context), 1, INT_MAX, BENCH, "tokens of context (default: what the depths need)"},
    {"--device", "cpu|cuda[:N]", DEVICE, AT(device), 0, 0, COMPUTES | WORKER, "what computes (default: a GPU if there is one)"},
    {"--device", "cuda[:N]", DEVICE, AT(device), 0, 0, SELFTEST, "the GPU to test (default: the first)"},
    {"--devices", "LIST", DEVICES, AT(devices), 0, 0, COMPUTES & ~SERVE, "several that hold the model together, as 0,1 for two GPUs, or cpu,cpu"},
    {"--devices", "LIST", DEVICES, AT(devices), 0, 0, SERVE, "several that serve the model, each or together: as 0,1 for two GPUs, or cpu,cpu"},
    {"--split", "HOW", SPLIT, AT(split), 0, 0, CHAT | RUN | INFO | LOGITS | ACCURACY,
     "what each of the devices has: pipeline[:N,N...]: some layers, N if given; tensor: a share of every layer (default: auto, a pipeline)"},
    {"--split", "HOW", SPLIT, AT(split), 0, 0, SERVE,
     "what each of the devices has: replicas: the model; pipeline[:N,N...]: some layers, N if given; tensor: a share of every layer "
     "(default: auto, replicas where they fit, else a pipeline)"},
    {"--split", "HOW", SPLIT, AT(split), 0, 0, BENCH,
     "what each of the devices has: replicas: the model, and --sessions are dealt out over them; pipeline[:N,N...]: some layers, N if given; "
     "tensor: a share of every layer (default: auto, a pipeline)"},
    {"--kv", "f32|bf16|fp8", KV, AT(kv), 0, 0, ACCURACY, "only this type of the KV cache (default: each one that the device has)"},
    {"--kv", "f32|bf16|fp8", KV, AT(kv), 0, 0, COMPUTES & ~ACCURACY,
     "type of the KV cache (default: f32 on the CPU, bf16 on a GPU)"},
    {"--mtp", "auto|N", MTP, AT(mtp), 0, 0, CHAT | RUN | BENCH | SERVE,
     "tokens to draft for each pass, by the MTP layer or copied from before; auto: as many as pay (default)"},
    {"--drafter", "DIR", TEXT, AT(drafter), 0, 0, CHAT | RUN | INFO | BENCH | SERVE,
     "folder of a block drafter (DFlash) that was trained for the model, which drafts, too; --synthetic's is \"synthetic\""},
    {"--quantize", "fp8|head-fp8", QUANTIZE, AT(quantize), 0, 0, COMPUTES,
     "turn BF16 weights into FP8 when they are loaded, half the bytes, not the checkpoint's own: fp8: all matrices, an untied lm_head too; "
     "head-fp8: lm_head alone, a tied one as a copy"},
    {"--gpu-memory", "SIZE", BYTES, AT(gpu_memory), 0, 0, COMPUTES,
     "take at most so much of a GPU's memory, as 16G (10^9 bytes) or 16Gi (2^30) (default: what is free)"},
    {"--experts", "auto|device|host", HOME, AT(experts), 0, 0, COMPUTES,
     "where a GPU's experts lie: in its memory, or the host's (default: auto, in its memory if all weights fit there)"},
    {"--link", "GB/s[:GB/s]", LINK, AT(link), 0, 0, INFO,
     "predict for a GPU with such a link to the host's memory, and such a memory of its own, and for --gpu-memory"},
    {"--draft-rows", "N", WHOLE, AT(draft_rows), 1, INT_MAX, CHAT | RUN | BENCH | SERVE,
     "drafts come from the first N tokens of the vocabulary (default: 65536)"},
    {"--verify-spec", NULL, FLAG, AT(verify), 0, 0, CHAT | RUN,
     "check speculation: decode plainly beside it and stop at the first difference"},
    {"--sms", "N", WHOLE, AT(sms), 1, 4096, BENCH | SELFTEST,
     "GPU: blocks for N SMs, streaming multiprocessors (default: all)"},
    {"--workers", "ADDRESS,...", ADDRESSES, AT(workers), 0, 0, CHAT | RUN | LOGITS | BENCH | SERVE | ACCURACY,
     "other hosts that have the first layers, as 10.0.0.2:7000,10.0.0.3:7000: mote worker runs there"},
    {"--listen", "ADDRESS", ADDRESS, AT(listen), 0, 0, WORKER, "wait for a leader here, as 10.0.0.2:7000 (default: 127.0.0.1:7000)"},
    {"--secret-file", "FILE", TEXT, AT(secret_file), 0, 0, CHAT | RUN | LOGITS | BENCH | SERVE | WORKER | ACCURACY, "the secret that workers and their leader share: its first line"},
    {"--threads", "N", WHOLE, AT(threads), 1, 256, CHAT | RUN | LOGITS | BENCH | SERVE | WORKER | ACCURACY,
     "threads, on the CPU (default: one for each processor, at most 256)"},
    {"-v", NULL, FLAG, AT(verbose), 0, 0, SERVE, "a line for each request: what it was, why it was refused, tokens, speed, time"},
    {"--log-json", NULL, FLAG, AT(log_json), 0, 0, SERVE, "these lines as JSON, for machines"},
    {"-v", NULL, FLAG, AT(verbose), 0, 0, CHAT | RUN | BENCH,
     "list the kernels that a step on the GPU launches; at the end, of experts in host memory, how many were in slots; of run: where rows of n-grams came from"},
    {"--help", NULL, FLAG, AT(help), 0, 0, EVERY | SELFTEST | HELP, "print this"},
};
enum { OPTION_COUNT = sizeof option_table / sizeof option_table[0] };

/* Slips of the hand from a to b, for "did you mean": characters too many, missing, wrong, or two of them swapped. Names here
   are short: what does not fit is simply far away. */
static int distance(const char *a, const char *b) {
    int row[32], above[32] = {0}, two_above[32] = {0}, n = (int)strlen(b);
    if (n >= 32) return INT_MAX;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        memcpy(two_above, above, sizeof above);
        memcpy(above, row, sizeof row);
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = above[j - 1] + (a[i - 1] != b[j - 1]);
            if (above[j] + 1 < best) best = above[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && two_above[j - 2] + 1 < best)
                best = two_above[j - 2] + 1;
            row[j] = best;
        }
    }
    return row[n];
}

/* Keeps the candidate nearest to `typed` in *best, if it is near enough to be a slip of the hand: two of them in a longer
   name. */
static void consider(const char *typed, const char *candidate, const char **best) {
    int d = distance(typed, candidate);
    if (d <= (strlen(candidate) > 5 ? 2 : 1) && (!*best || d < distance(typed, *best))) *best = candidate;
}

/* Returns NULL, or what is needed. */
static const char *set_split(const char *text, int serves, options *o) {
    static const char *const names[] = {"auto", "pipeline", "tensor", "replicas"};     /* by MOTE_SPLIT_..., SPLIT_REPLICAS */
    const size_t n = strcspn(text, ":");
    list layers;
    for (o->split = 0; o->split <= (serves ? SPLIT_REPLICAS : MOTE_SPLIT_TENSOR); o->split++) {
        if (strlen(names[o->split]) != n || memcmp(names[o->split], text, n)) continue;
        o->split_layers = text[n] ? text + n + 1 : NULL;
        if (!text[n] || (o->split == MOTE_SPLIT_PIPELINE && parse_list(text + n + 1, 1, INT_MAX, &layers))) return NULL;
        break;
    }
    if (!strcmp(text, "replicas")) return "auto, pipeline or tensor here, as replicas are of serve and bench alone";
    return serves ? "auto, replicas, pipeline, tensor, or pipeline: and the layers of each device, as pipeline:20,28"
                  : "auto, pipeline, tensor, or pipeline: and the layers of each device, as pipeline:20,28";
}

/* What an option about drafts needs; %d: the most in a pass. */
static const char *needs_drafts(const char *what) {
    static char text[64];
    snprintf(text, sizeof text, what, MOTE_ROWS_MAX - 1);
    return text;
}

/* Stores one option's value. Returns NULL, or what the option needs instead of this value. */
static const char *set_option(const option *d, const char *value, options *o) {
    void *at = (char *)o + d->offset;
    texts *several = at;
    switch (d->kind) {
    case FLAG: *(int *)at = 1; return NULL;
    case TEXT: *(const char **)at = value; return NULL;
    case TEXTS:
        if (several->count == STOPS_MAX) return "at most 16 of them";
        several->text[several->count++] = value;
        return NULL;
    case WHOLE: return parse_whole(value, d->low, d->high, at) ? NULL : "a whole number";
    case REAL: return parse_real(value, d->low, d->high, at) ? NULL : "a number";
    case SEED: ((seed *)at)->given = 1; return parse_seed(value, &((seed *)at)->value) ? NULL : "a whole number";
    case SWITCH: return parse_switch(value, at) ? NULL : "on or off";
    case DEVICE: return parse_device(value, at) ? NULL : "cpu, cuda or cuda:N";
    case DEVICES: return parse_devices(value, at) ? NULL : "up to 16 of them with commas between them, as 0,1 or cpu,cpu";
    case ADDRESS: *(const char **)at = value; return parse_address(value, strlen(value)) ? NULL : "an address in numbers, as 10.0.0.2:7000 or [::1]:7000";
    case ADDRESSES:
        return parse_addresses(value, at) ? NULL : "addresses in numbers with commas between them, as 10.0.0.2:7000,[::1]:7000";
    case SPLIT: return set_split(value, (d->commands & (SERVE | BENCH)) != 0, o);
    case KV: return parse_kv(value, at) ? NULL : "f32, bf16 or fp8";
    case QUANTIZE: return parse_quantize(value, at) ? NULL : "fp8 or head-fp8";
    case BYTES: return parse_bytes(value, at) ? NULL : "gigabytes, as 16G or 16Gi";
    case HOME: return parse_experts(value, at) ? NULL : "auto, device or host";
    case LINK: return parse_speeds(value, at) ? NULL : "GB/s of the link, or of link and memory, as 25 or 25:936";
    case SIDES: return parse_sides(value, at) ? NULL : "up to 16 sizes in pixels with commas between them, as 1024x1024";
    case MTP: return parse_mtp(value, at) ? NULL : needs_drafts("auto, or 0 to %d");
    case RANGES: return parse_ranges(value, at) ? NULL : "up to 16 numbers or ranges, as 0-3,7";
    case REALS: return parse_reals(value, d->low, d->high, at) ? NULL : needs_drafts("up to %d numbers with commas between them");
    default: return parse_list(value, d->low, d->high, at) ? NULL : "up to 16 whole numbers with commas between them";
    }
}

/* The options of one command; name: the command's, for messages. */
static int parse_options(const char *name, int command, int count, char **arguments, options *o) {
    for (int i = 0; i < count; i++) {
        char *typed = arguments[i], *value = NULL;
        const option *d = NULL;
        const char *near = NULL, *needs;
        if (typed[0] != '-' || !typed[1]) {
            const char **one = command == HELP ? &o->topic : command & (RUN | TRACE) ? &o->prompt : NULL;
            if (!one || *one)
                return complain(EXIT_USAGE, "%s: unexpected argument '%s'; see mote %s --help", name, typed, name);
            *one = typed;
            continue;
        }
        if (typed[1] == '-' && (value = strchr(typed, '='))) *value++ = 0;
        for (int k = 0; k < OPTION_COUNT; k++) {
            if (!(option_table[k].commands & command)) continue;
            if (strcmp(typed, option_table[k].name) == 0) d = &option_table[k];
            consider(typed, option_table[k].name, &near);
        }
        const char *here = d ? NULL : foreign_answer(typed);
        if (here) return complain(EXIT_USAGE, "%s: no option %s; in mote: %s", name, typed, here);
        if (!d && near && strlen(typed) > 2)
            return complain(EXIT_USAGE, "%s: unknown option '%s'; did you mean %s?", name, typed, near);
        if (!d) return complain(EXIT_USAGE, "%s: unknown option '%s'; see mote %s --help", name, typed, name);
        if (d->kind == FLAG && value) return complain(EXIT_USAGE, "%s: %s takes no value", name, typed);
        if (d->kind != FLAG && !value && ++i < count) value = arguments[i];
        if (d->kind != FLAG && !value) return complain(EXIT_USAGE, "%s: %s needs a value: %s", name, typed, d->value);
        needs = set_option(d, value, o);
        if (needs && d->high > 0)
            return complain(EXIT_USAGE, "%s: %s needs %s from %.0f to %.0f, not '%s'", name, typed, needs, d->low,
                            d->high, value);
        if (needs) return complain(EXIT_USAGE, "%s: %s needs %s, not '%s'", name, typed, needs, value);
    }
    return 0;
}
