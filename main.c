/* mote, the program: a command line over engine.h and diagnose/diagnose.h, and over nothing else of mote. This is its
   spine: the table of commands, help and main(). The rooms are in program/, cli/ and serve/; each file knows those above it in this list, which
   is the order to read them in, but cli/ and serve/ know nothing of each other. Below them are the JSON reader and the marks of
   chats, of text/.

   In program/, what both of them need:

     terminal.c      showing text, signals, callbacks
     foreign.c       options of other engines, and what mote has for them
     values.c        values of options, from text
     options.c       the table of all options, and its parser
     files.c         growable bytes, a stream to its end
     write.c         JSON as it goes out
     paths.c         from what -m names to a checkpoint folder, or to why it is none
     model.c         the model that the options name, and how its sessions are to be opened
     replicas.c      copies of it, each on a device of its own

   in cli/, the command line:

     files.c         texts and token ids, files that a command writes
     session.c       sessions, sampling
     numbers.c       amounts, and what speculation did, for a person
     text.c          tokenize, detokenize, render
     wrap.c          lines broken between words
     screen.c        where run and chat show an answer
     run.c           run
     history.c       what was typed in chats, between runs as well
     characters.c    characters and words of a line
     line_editor.c   a message typed on a terminal: editing, completion, looking through history
     attach.c        text files that go with a message
     conversation.c  what chat talks in: a session, turns, undo
     chat_commands.c the commands that begin with /
     chat_input.c    lines and messages from a terminal or a pipe
     chat.c          chat: the loop
     logits.c        logits
     trace_values.c  what a trace keeps, of all that is told
     trace_text.c    a trace as text
     trace_page.c    a trace as a page
     trace.c         trace
     info_experts.c  what it predicts of experts in host memory
     info.c          info
     bench_tables.c  the output of bench: a table for people, JSON for machines
     bench_steps.c   prompts and steps: on the CPU, on a GPU, with simulated speculation, stage by stage
     bench_ask.c     questions answered without speculation and with it
     bench_images.c  how long pictures take
     bench_text.c    pieces of a text for sessions, their experts and drafts
     bench_sessions.c  several sessions at once
     bench_report.c  what a report tells beside the speeds
     bench.c         bench: planning and running it
     accuracy_score.c  how far logits are from those of a reference
     accuracy.c      accuracy
     selftest.c      selftest
     worker.c        worker

   and in serve/, HTTP:

     http.c          bytes -> HTTP requests
     budget.c        memory that requests under way may take
     connection.c    a client's connection: requests from it, answers to it
     listen.c        an address to listen on, and a thread for each connection
     field_table.c   what becomes of each field
     fields.c        a request's JSON, field by field; refusals
     access.c        who may ask
     server.c        what connections share: sessions, and whose turn it is to compute
     disk.c          timelines kept in a folder
     cache.c         which session takes a request, and how much of its prompt is there already
     answer.c        one answer, token by token
     answer_run.c    how it comes to a session
     ask.c           what the APIs have in common in what they ask for
     tools.c         the tools of a request, and which to call
     prompt.c        messages as the chat template takes them
     reply.c         an answer on its way out
     chat.c          /v1/chat/completions
     tokens.c        /v1/completions, /tokenize, /detokenize
     parts.c         answers that consist of parts
     messages.c      /v1/messages
     responses.c     /v1/responses
     embeddings.c    /v1/embeddings
     rerank.c        /v1/rerank, /v2/rerank
     models.c        /v1/models
     metrics.c       /metrics
     health.c        /health
     llamacpp.c      /props and /slots
     ollama.c        /api/chat and what else begins with /api/
     routes.c        which path goes where
     log.c           the line of a request
     serve.c         serve: one request, starting, the end

   Answers and data go to standard output, everything else to standard error. Exit codes: 0 done, 1 failed,
   2 not asked for properly, 130 stopped with Ctrl-C. */
#include "engine.h"
#include "diagnose/diagnose.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

/* Compiled a second time, for the program: the library has these four, too, but exports nothing that engine.h does not declare,
   and a program that reached into it could not be linked with an installed libmote. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"             /* the program needs a part of them */
#include "text/basics.c"
#include "text/utf8.c"
#include "text/json.c"
#include "text/chat_family.c"
#include "text/chat_marks.c"
#include "exchange/sha256.c"
#pragma GCC diagnostic pop

#include "program/terminal.c"
#include "program/foreign.c"
#include "program/values.c"
#include "program/options.c"
#include "program/files.c"
#include "program/write.c"
#include "program/paths.c"
#include "program/model.c"
#include "program/replicas.c"

#include "cli/files.c"
#include "cli/session.c"
#include "cli/numbers.c"
#include "cli/text.c"
#include "cli/images.c"
#include "cli/wrap.c"
#include "cli/screen.c"
#include "cli/run.c"
#include "cli/history.c"
#include "cli/characters.c"
#include "cli/line_editor.c"
#include "cli/attach.c"
#include "cli/conversation.c"
#include "cli/chat_commands.c"
#include "cli/chat_input.c"
#include "cli/chat.c"
#include "cli/logits.c"
#include "cli/trace_values.c"
#include "cli/trace_text.c"
#include "cli/trace_page.c"
#include "cli/trace.c"
#include "cli/info_experts.c"
#include "cli/info.c"
#include "cli/bench_tables.c"
#include "cli/bench_steps.c"
#include "cli/bench_ask.c"
#include "cli/bench_images.c"
#include "cli/bench_text.c"
#include "cli/bench_sessions.c"
#include "cli/bench_report.c"
#include "cli/bench.c"
#include "cli/accuracy_score.c"
#include "cli/accuracy.c"
#include "cli/selftest.c"
#include "cli/worker.c"

#include "serve/http.c"
#include "serve/budget.c"
#include "serve/connection.c"
#include "serve/listen.c"
#include "serve/field_table.c"
#include "serve/fields.c"
#include "serve/access.c"
#include "serve/server.c"
#include "serve/disk.c"
#include "serve/cache.c"
#include "serve/answer.c"
#include "serve/answer_run.c"
#include "serve/ask.c"
#include "serve/tools.c"
#include "serve/images.c"
#include "serve/prompt.c"
#include "serve/reply.c"
#include "serve/chat.c"
#include "serve/tokens.c"
#include "serve/parts.c"
#include "serve/messages.c"
#include "serve/responses.c"
#include "serve/embeddings.c"
#include "serve/rerank.c"
#include "serve/models.c"
#include "serve/metrics.c"
#include "serve/health.c"
#include "serve/llamacpp.c"
#include "serve/ollama.c"
#include "serve/routes.c"
#include "serve/log.c"
#include "serve/reach.c"
#include "serve/serve.c"

/* Commands, help and main. */

typedef struct command {
    const char *name, *summary, *usage;
    int bit;                               /* its bit in option.commands */
    int (*function)(options *o);
    const char *more;                      /* after its options; NULL: nothing */
} command;

static int command_help(options *o);

static int command_version(options *o) {
    (void)o;
    printf("mote %s\n", mote_version());
    return 0;
}

static const char chat_more[] =
    "/help in the chat lists its commands and keys. On a GPU the context is what fits beside the weights, up to\n"
    "131,072 tokens, on the CPU 8,192, and never more than the model's own; /context N goes on in another one. Thinking\n"
    "of earlier answers does not stay in it.\n";

static const char run_more[] =
    "The prompt is TEXT, what is piped in or, with a blank line between them, both. The answer alone goes to standard\n"
    "output: thinking is shown on a terminal, and counted on standard error elsewhere.\n"
    "  mote run \"What is FP8?\" --think off -n 100\n"
    "  mote run \"Summarise this.\" < notes.txt\n"
    "  mote run --raw -p \"Once upon a time\"\n";

static const char serve_more[] =
    "Chat pages, agents and benchmarks connect to http://127.0.0.1:8080/v1; docs/server.md lists what they may ask for.\n"
    "Ctrl-C lets answers finish, a second one stops. TLS is a proxy's business, and so is the open network.\n"
    "  mote serve -m DIR --context 32768 --parallel 2\n"
    "  mote serve -m DIR --devices 0,1\n";

static const char info_more[] =
    "No weights are read. They need not even be there: of a folder with config.json alone, or with files that end\n"
    "after their headers, it is an estimate, and says so.\n";

static const char trace_more[] =
    "First what comes next, drafts and passes; then, layer by layer, lengths of the residual, DeltaNet's decay and write\n"
    "strength, which heads look where, the router's choices, of the first 64 tokens. It is computed by the definitions of\n"
    "the layers: slowly, in double precision, on the CPU. The text is a question, as for mote run, and its answer goes on\n"
    "for a few tokens.\n"
    "  mote trace \"What is FP8?\" --html trace.html\n"
    "  mote trace --raw \"Once upon a time\" --layer 3\n";

static const char bench_more[] =
    "Rows are named as llama-bench names them: pp512 reads a prompt of 512 tokens, tg32 @ d4096 decodes 32 tokens\n"
    "after 4,096, one by one. On a GPU decoding is measured on its own clock, with 1 to 4 tokens in a step (rows) as\n"
    "speculation verifies them, beside what the step reads and the share of the memory's speed that is; what is in\n"
    "the context does not matter for that, so depths are pretended. Speculation depends on the text: --ask measures\n"
    "it on questions, --accept simulates it. Files of --json keep their names from version to version.\n"
    "  mote bench -m DIR --prompt 512,8192 --depth 0,32768\n"
    "  mote bench --synthetic qwen3.5-35b-a3b:fp8:4        without a download: four layers, random weights\n"
    "  mote bench -m DIR --ask questions.txt               questions, one a line, with speculation and without\n"
    "  mote bench -m DIR --accept 0.85,0.80,0.75           speculation with these rates of acceptance\n"
    "  mote bench -m DIR --sessions 8 --text FILE          eight sessions at once, each with its piece of a text\n"
    "  mote bench -m DIR --report                          a block of text that tells of a machine\n";

static const char accuracy_more[] =
    "Each way of computing is compared with the reference, token by token: KL divergence (natural logarithm), whether\n"
    "the most probable token is the same, perplexity. The text is cut into contexts, of which the second half is scored. It\n"
    "should be like what the model will read, with the marks of its template if that is chats. --quantize and --against need\n"
    "memory for two models.\n"
    "  mote accuracy -m DIR --text FILE                    prompts and KV types against decode\n"
    "  mote accuracy -m DIR --text FILE --quantize fp8     FP8 weights against the checkpoint's own\n"
    "  mote accuracy -m DIR --text FILE --against ORIGIN   a quantised checkpoint against what it was made of\n";

static const char worker_more[] =
    "The leader, mote serve --workers, on another host must have the same folder and the same secret. All hosts compute on\n"
    "a GPU, or all on the CPU. What goes between hosts is not enciphered: it is for a network that nobody else is on.\n"
    "Addresses are numbers, as 10.0.0.2:7000 or [::1]:7000; 0.0.0.0:7000 is open to all who reach the machine. A leader that\n"
    "is lost, or silent for 20 s, leaves it to the next one; a server finds it again after a restart at the same address.\n"
    "  mote worker -m DIR --secret-file key --listen 10.0.0.2:7000 --device cuda:0\n"
    "  mote serve -m DIR --secret-file key --workers 10.0.0.2:7000       on another host\n";

static const command command_table[] = {                   /* name, summary, usage, bit, function, more */
    {"chat", "talk with a model (the default)", "[OPTIONS]", CHAT, command_chat, chat_more},
    {"run", "print one answer", "TEXT [OPTIONS]", RUN, command_run, run_more},
    {"serve", "answer over HTTP, as OpenAI's and Anthropic's servers do", "[OPTIONS]", SERVE, command_serve, serve_more},
    {"info", "what a model is made of, and the memory it takes", "[OPTIONS]", INFO, command_info, info_more},
    {"tokenize", "text from standard input to token ids", "[-m DIR] [-0] < TEXT", TOKENIZE, command_tokenize, NULL},
    {"detokenize", "lines of token ids from standard input to texts, each ended by a zero byte", "[-m DIR] < IDS",
     DETOKENIZE, command_detokenize, NULL},
    {"render", "a chat request (JSON) from standard input to the prompt text", "[-m DIR] < REQUEST", RENDER,
     command_render, NULL},
    {"logits", "write the logits of every token of a file", "[-m DIR] --tokens FILE.i32 -o OUT.f32 [OPTIONS]", LOGITS,
     command_logits, NULL},
    {"trace", "what happens inside while a text is read, layer by layer", "TEXT [OPTIONS]", TRACE, command_trace, trace_more},
    {"bench", "measure the speed of reading and of decoding", "[OPTIONS]", BENCH, command_bench, bench_more},
    {"accuracy", "measure what precision costs: prompts, types of the KV cache, quantised weights", "--text FILE [OPTIONS]", ACCURACY,
     command_accuracy, accuracy_more},
    {"selftest", "test a GPU: every stage against its definition in plain C; needs no model", "[OPTIONS]", SELFTEST,
     command_selftest, NULL},
    {"worker", "compute some of the layers of a model for another host", "[-m DIR] --secret-file FILE [--listen ADDRESS]", WORKER, command_worker, worker_more},
    {"help", "explain a command", "[COMMAND]", HELP, command_help, NULL},
    {"version", "print the version", "", HELP, command_version, NULL},
};
enum { COMMAND_COUNT = sizeof command_table / sizeof command_table[0] };

static const command *find_command(const char *name) {
    const char *near = NULL;
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(name, command_table[i].name) == 0) return &command_table[i];
        consider(name, command_table[i].name, &near);
    }
    if (strchr(name, ' ')) complain(0, "unknown command '%s'; mote run TEXT asks", name);
    else if (access(name, F_OK) == 0) complain(0, "unknown command '%s'; mote -m %s opens a checkpoint", name, name);
    else if (near) complain(0, "unknown command '%s'; did you mean %s?", name, near);
    else complain(0, "unknown command '%s'; mote help lists them", name);
    return NULL;
}

/* A text after what has `column` columns already, in lines of up to 110 columns that begin with `indent` spaces. */
static void print_wrapped(const char *text, int column, int indent) {
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column + 1 + n > 110) column = printf("\n%*s", indent, "") - 1;
        column += printf(" %.*s", n, text);
        text += n + (text[n] == ' ');
    }
    putchar('\n');
}

static void print_usage(const command *c) {
    printf("mote %s: %s\n\nusage: mote %s %s\n", c->name, c->summary, c->name, c->usage);
    for (int i = 0; i < OPTION_COUNT; i++) {
        const option *d = &option_table[i];
        if (!(d->commands & c->bit)) continue;
        int column = printf("  %-21s %-14s", d->name, d->value ? d->value : "");
        print_wrapped(d->help, column, 38);
    }
    if (c->more) printf("\n%s", c->more);
}

static int command_help(options *o) {
    if (o->topic) {
        const command *c = find_command(o->topic);
        if (!c) return EXIT_USAGE;
        print_usage(c);
        return 0;
    }
    printf("mote %s: chat with a Mixture-of-Experts model, from its checkpoint folder\n\n"
           "usage: mote [COMMAND] [OPTIONS]\n", mote_version());
    for (int i = 0; i < COMMAND_COUNT; i++) printf("  %-11s%s\n", command_table[i].name, command_table[i].summary);
    printf("\nmote help COMMAND tells the rest, with its options. Without -m DIR, commands use the bundled model.\n"
           "A text from a file or a pipe may have up to %d MiB. Exit codes: 0 done, 1 failed, 2 not asked for properly,\n"
           "130 stopped with Ctrl-C.\n", TEXT_MAX >> 20);
    return 0;
}

/* A standard stream that is closed would be the next file that mote opens. Reading from what takes its place ends at once;
   writing to it fails, as it would have. */
static int fill_streams(void) {
    for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; stream++)
        if (fcntl(stream, F_GETFD) < 0 && open("/dev/null", O_RDONLY) != stream) return EXIT_FAILURE;
    return 0;
}

int main(int argc, char **argv) {
    const command *c = &command_table[0];
    int first = 1;
    options o = defaults();
    if (fill_streams()) return complain(EXIT_FAILURE, "a standard stream is closed, and /dev/null: %s", strerror(errno));
    if (argc > 1) {
        const char *word = argv[1];
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) word = "help";
        if (strcmp(word, "--version") == 0) word = "version";
        if (word[0] != '-') {
            if (!(c = find_command(word))) return EXIT_USAGE;
            first = 2;
        }
        for (int i = 1; first == 1 && i < argc; i++)
            if (strcmp(argv[i], "-p") == 0) c = find_command("run");      /* mote -p TEXT */
    }
    int code = parse_options(c->name, c->bit, argc - first, argv + first, &o);
    if (!code && o.help) print_usage(c);
    else if (!code) code = c->function(&o);
    if ((fflush(stdout) || ferror(stdout)) && !code)
        code = complain(EXIT_FAILURE, "standard output: %s", strerror(errno));
    return end_of_program(code);
}
