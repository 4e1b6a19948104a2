// Tests of how an answer's text is told, through the API: channels, calls, stop texts, one_call, counts. A checkpoint that says what
// a script tells it replays any answer.
//
// Contents   1. Helpers   2. Answers   3. Tokens of the thinking   4. Characters
//
// Usage: test_answers [--brief] [DATA]

#include "api.h"
#include "parrot.h"

// ---- 1. Helpers -----------------------------------------------------------------------------------------------------

#define CALL(x) "<tool_call>\n<function=read>\n<parameter=path>\n" x "\n</parameter>\n</function>\n</tool_call>"
#define TOLD(x) "[C]<function=read>\n<parameter=path>\n" x "\n</parameter>\n</function>[.]{\"name\": \"read\", \"arguments\": {\"path\": \"" x "\"}}"

static const char TOOLS[] = "[{\"type\": \"function\", \"function\": {\"name\": \"read\", \"parameters\": {\"type\": \"object\", "
                            "\"properties\": {\"path\": {\"type\": \"string\"}}}}}]";

// What was told, with a mark, [A], [T] or [C], where the channel changes, [.] at a call's end, and the call after it.
typedef struct told { char text[4096]; size_t size; int channel, calls, stop_at; } told;

static void add(told *t, const char *text, size_t size) {
    if (t->size + size < sizeof t->text) memcpy(t->text + t->size, text, size), t->size += size;
}

static int hear_text(void *user, int channel, const char *text, size_t size) {
    static const char *const marks[] = {"[A]", "[T]", "[C]"};
    told *t = (told *)user;
    if (channel != t->channel) add(t, marks[channel], 3);
    if (size) add(t, text, size);
    else add(t, "[.]", 3);
    t->channel = size ? channel : -1;
    return 0;
}

static int hear_call(void *user, const char *call, size_t size) {
    told *t = (told *)user;
    add(t, call, size);
    return ++t->calls == t->stop_at;
}

typedef struct replay {
    const char *script, *want;
    const char *stops[3];
    int no_tools, one_call, stop_at, raw, max_tokens;    // of the question
    int stop, stop_text, calls, broken;                  // of the result
} replay;

// script, want, stops, no_tools, one_call, stop_at, raw, max_tokens, stop, stop_text, calls, broken
static const replay replays[] = {
    // calls, and what is none
    {"</think>\n\nI look.\n\n" CALL("a.txt") "\n" CALL("b.txt"), "[A]I look." TOLD("a.txt") TOLD("b.txt"),
     {NULL, NULL, NULL}, 0, 0, 0, 0, 0, MOTE_STOP_EOS, 0, 2, 0},
    {"</think>\n\nThe tag <tool_call> opens one.\n</tool_call> \n", "[A]The tag <tool_call> opens one.\n</tool_call> \n",
     {NULL, NULL, NULL}, 0, 0, 0, 0, 0, MOTE_STOP_EOS, 0, 0, 1},
    {"</think>\n\nIt is:\n" CALL("a.txt") " ", "[A]It is:\n" CALL("a.txt") " ", {NULL, NULL, NULL}, 1, 0, 0, 0, 0, MOTE_STOP_EOS, 0, 0, 0},
    {"</think>\n\n<tool_call>\n<function=read>\n<parameter=path>\nhalf of it ~ ", "[A]<tool_call>\n<function=read>\n<parameter=path>\nhalf of it ~ ",
     {NULL, NULL, NULL}, 0, 0, 0, 0, 0, MOTE_STOP_EOS, 0, 0, 1},
    {"I open it.\n" CALL("c.txt") "\n</think>\n", "[T]I open it." TOLD("c.txt"), {NULL, NULL, NULL}, 0, 0, 0, 0, 0, MOTE_STOP_EOS, 0, 1, 0},
    {"I open it.\n" CALL("d.txt") "\n</think>\n\nSoon.", "[T]I open it." TOLD("d.txt") "[A]Soon.",
     {NULL, NULL, NULL}, 0, 0, 0, 0, 0, MOTE_STOP_EOS, 0, 1, 0},
    // raw: all of it
    {"Raw: " CALL("e.txt") "</think>~ ", "[A]Raw: " CALL("e.txt") "</think>~ ", {NULL, NULL, NULL}, 0, 0, 0, 1, 0, MOTE_STOP_EOS, 0, 0, 0},
    {"Raw thoughts. Question: none</think> ~", "[A]Raw thoughts. ", {"Question:", NULL, NULL}, 0, 0, 0, 1, 0, MOTE_STOP_TEXT, 0, 0, 0},
    // one call, by itself and by the callback
    {"</think>\n\nOne.\n" CALL("f.txt") "\n" CALL("g.txt") " ~", "[A]One." TOLD("f.txt"), {NULL, NULL, NULL}, 0, 1, 0, 0, 0, MOTE_STOP_CALL, 0, 1, 0},
    {"</think>\n\n<tool_call>\n<function=read>\n</function>\n<function=read>\n</function>\n</tool_call>! ~",
     "[C]<function=read>\n</function>[.]{\"name\": \"read\", \"arguments\": {}}", {NULL, NULL, NULL}, 0, 1, 0, 0, 0, MOTE_STOP_CALL, 0, 1, 0},
    {"</think>\n\nTwo.\n" CALL("h.txt") "\n" CALL("i.txt") "\n" CALL("j.txt") " ~", "[A]Two." TOLD("h.txt") TOLD("i.txt"),
     {NULL, NULL, NULL}, 0, 0, 2, 0, 0, MOTE_STOP_CALLBACK, 0, 2, 0},
    {"</think>\n\nNo end.\n<function=read>\n</function>\n</tool_call>~ ", "[A]No end.[C]<function=read>\n</function>[.]{\"name\": \"read\", \"arguments\": {}}",
     {NULL, NULL, NULL}, 0, 1, 0, 0, 0, MOTE_STOP_CALL, 0, 1, 0},
    // stop texts: in the answer
    {"The task has a line. Question: how many? I count.\n</think>\n\nIt is 4. Question: next? ~", "[T]The task has a line. Question: how many? I count.[A]It is 4. ",
     {"none", "Question:", NULL}, 0, 0, 0, 0, 0, MOTE_STOP_TEXT, 1, 0, 0},
    {"</think>\n\nI look at path.\n" CALL("path") "\nThen path. ~", "[A]I look at ", {"path", NULL, NULL}, 0, 0, 0, 0, 0, MOTE_STOP_TEXT, 0, 0, 0},
    {"</think>\n\nI look.\n" CALL("here") "\nThen here. ~", "[A]I look." TOLD("here") "[A]Then ", {"here", NULL, NULL}, 0, 0, 0, 0, 0, MOTE_STOP_TEXT, 0, 1, 0},
    {"</think>\n\nCut: <tool_call>\n<function=read>\n<parameter=path>\nand HALT it ~", "[A]Cut: <tool_call>\n<function=read>\n<parameter=path>\nand ",
     {"HALT", NULL, NULL}, 0, 0, 0, 0, 0, MOTE_STOP_TEXT, 0, 0, 1},
    {"</think>\n\nabcab abcabd ~", "[A]abcab ", {"abcabd", "bd ", "x"}, 0, 0, 0, 0, 0, MOTE_STOP_TEXT, 0, 0, 0},
    {"</think>\n\nsome words and more ~", "[A]some ", {"words and", "ds and", "rds and"}, 0, 0, 0, 0, 0, MOTE_STOP_TEXT, 0, 0, 0},
    {"</think>\n\nfirst first line\nsecond ~", "[A]first first line", {"\n", "", NULL}, 1, 0, 0, 0, 0, MOTE_STOP_TEXT, 0, 0, 0},
    {"</think>\n\nlast last line\n", "[A]last last line", {"\n ", "\n", NULL}, 0, 0, 0, 0, 0, MOTE_STOP_TEXT, 1, 0, 0},
    {"</think>\n\nit never comes, neve ", "[A]it never comes, neve ", {"neverr", "neve ~", NULL}, 0, 0, 0, 0, 0, MOTE_STOP_EOS, 0, 0, 0}};

enum { REPLAYS = sizeof replays / sizeof *replays };

// The script that begins with this token, into t.
static mote_result say(const mote_model *m, int32_t start, const replay *r, told *t) {
    mote_session *s = session_of(m, .context = 2048, .threads = 1);
    mote_bias bias = {start, 100};
    mote_sampling p;
    mote_generation g;
    mote_result result;
    memset(&p, 0, sizeof p);
    memset(&g, 0, sizeof g);
    memset(t, 0, sizeof *t);
    p.bias = &bias;
    p.bias_count = 1;
    g.sampling = &p;
    g.think = MOTE_THINK_ON;
    g.tools = r->no_tools ? NULL : TOOLS;
    g.on_text = hear_text;
    g.on_call = hear_call;
    g.user = t;
    g.stop = r->stops;
    while (g.stop_count < 3 && r->stops[g.stop_count]) g.stop_count++;
    g.one_call = r->one_call;
    g.raw = r->raw;
    g.max_tokens = r->max_tokens ? r->max_tokens : 400;
    t->channel = -1;
    t->stop_at = r->stop_at;
    EXPECT(MOTE_OK, mote_ask(s, "Go.", &g, &result, &failure));
    mote_session_close(s);
    t->text[t->size] = 0;
    return result;
}

// ---- 2. Answers -----------------------------------------------------------------------------------------------------

// Without spaces at the end: a script's last token may have some more.
static const char *trimmed(const char *text, char to[4096]) {
    size_t n = (size_t)snprintf(to, 4096, "%s", text);
    while (n && to[n - 1] == ' ') n--;
    if (n > 2 && !memcmp(to + n - 3, "[A]", 3)) n -= 3;
    to[n] = 0;
    return to;
}

static void check_replay(const mote_model *m, int32_t start, const replay *r, int piece) {
    told t;
    char is[4096], want[4096];
    mote_result got = say(m, start, r, &t);
    CHECK(!strcmp(trimmed(t.text, is), trimmed(r->want, want)), "%s, %d bytes a token\ntold %s\nnot  %s", r->script, piece, t.text, r->want);
    CHECK(got.stop == r->stop && got.stop_text == r->stop_text, "%s: ended by %d, stop text %d", r->script, got.stop, got.stop_text);
    CHECK(got.calls == r->calls && t.calls == r->calls && got.broken_calls == r->broken, "%s: %d calls, %d broken", r->script, got.calls,
          got.broken_calls);
}

// Tokens of `piece` bytes, so that tags, stop texts and characters begin and end anywhere in them. Scripts' tokens differ from each other.
static void test_replays(int piece) {
    const char *scripts[REPLAYS];
    int32_t starts[REPLAYS];
    for (int i = 0; i < REPLAYS; i++) scripts[i] = replays[i].script;
    parrot_make(temp_dir, scripts, REPLAYS, piece, NULL, starts);
    mote_model *m = model_of(temp_dir, MOTE_EVERYTHING);
    for (int i = 0; i < REPLAYS; i++)
        check_replay(m, starts[i], replays + i, piece);
    mote_close(m);
    temp_empty();
}

// Wherever max_tokens cuts an answer that begins stop texts and a call, all that was held back is told: as without stop texts and
// calls.
static void test_cut(int piece) {
    static const char *const script[] = {"</think>\n\nSome STOOP, some STO and STO\n<tool_call>\n<function=read>\n<parameter=path>\nS ~"};
    replay held = {.script = script[0], .stops = {"STOP", "STORY", "S\n"}}, plain = held;
    int32_t start;
    plain.stops[0] = NULL;
    plain.no_tools = 1;
    parrot_make(temp_dir, script, 1, piece, NULL, &start);
    mote_model *m = model_of(temp_dir, MOTE_EVERYTHING);
    for (int n = 1, stop = MOTE_STOP_LENGTH; stop == MOTE_STOP_LENGTH && n < 200; n++) {
        told t, u;
        held.max_tokens = plain.max_tokens = n;
        stop = say(m, start, &held, &t).stop;
        CHECK(say(m, start, &plain, &u).stop == stop, "%d tokens: another end", n);
        char is[4096], want[4096];
        CHECK(!strcmp(trimmed(t.text, is), trimmed(u.text, want)), "%d tokens of %d bytes: told %s\nnot %s", n, piece, t.text, u.text);
        CHECK(n < 200 - 1, "no end");
    }
    mote_close(m);
    temp_empty();
}

// ---- 3. Tokens of the thinking --------------------------------------------------------------------------------------

static const struct { replay r; int before; } thoughts[] = {      // bytes of the script up to the end of the thinking
    {{"No thinking at all ~", NULL, {NULL, NULL, NULL}, 1, 0, 0, 1, 0, 0, 0, 0, 0}, 0},
    {{"Some thinking.\n</think>\n\nand an answer ~", NULL, {NULL, NULL, NULL}, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 23},
    {{"A thought that never ends. ~", NULL, {NULL, NULL, NULL}, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 28},
    {{"Thought, call.\n" CALL("k.txt") "\n</think> ~", NULL, {NULL, NULL, NULL}, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 26},
    {{"Thinks of <tool_call> only.\n</think> ~", NULL, {NULL, NULL, NULL}, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 36}};

enum { THOUGHTS = sizeof thoughts / sizeof *thoughts, PIECE = 4 };

// Tokens are of at least PIECE bytes and few are longer, so the count is known within some.
static void test_thinking(void) {
    const char *scripts[THOUGHTS];
    int32_t starts[THOUGHTS];
    told t;
    for (int i = 0; i < THOUGHTS; i++) scripts[i] = thoughts[i].r.script;
    parrot_make(temp_dir, scripts, THOUGHTS, PIECE, NULL, starts);
    mote_model *m = model_of(temp_dir, MOTE_EVERYTHING);
    for (int i = 0; i < THOUGHTS; i++) {
        mote_result r = say(m, starts[i], &thoughts[i].r, &t);
        int most = (thoughts[i].before + PIECE - 1) / PIECE;
        CHECK(r.thinking_tokens <= most && r.thinking_tokens >= most - 2 && r.thinking_tokens < r.generated_tokens,
              "%s: %d tokens of thinking, expected %d", scripts[i], r.thinking_tokens, most);
    }
    mote_close(m);
    temp_empty();
}

// ---- 4. Characters --------------------------------------------------------------------------------------------------

// A stop text that is no well-formed text never cuts a character in two: it stands for U+FFFD, as all such text does.
static void test_characters(void) {
    static const char *const scripts[] = {"</think>\n\nca\xC3\xA9 and \xE2\x82\xAC here ~", "</think>\n\nbad \xC3 byte ~"};
    // script, want, stops, no_tools, one_call, stop_at, raw, max_tokens, stop, stop_text, calls, broken
    static const replay cases[] = {
        {NULL, "[A]ca\xC3\xA9 and \xE2\x82\xAC here ~", {"\xA9", "\xC3", "\x82\xAC"}, 0, 0, 0, 0, 0, MOTE_STOP_EOS, 0, 0, 0},
        {NULL, "[A]ca\xC3\xA9 and ", {"\xE2\x82\xAC here and more", "\xE2\x82\xAC", NULL}, 0, 0, 0, 0, 0, MOTE_STOP_TEXT, 1, 0, 0},
        {NULL, "[A]bad ", {"\xC3 b", NULL, NULL}, 0, 0, 0, 0, 0, MOTE_STOP_TEXT, 0, 0, 0}};
    for (int piece = 2; piece < 7; piece++) {
        int32_t starts[2];
        parrot_make(temp_dir, scripts, 2, piece, NULL, starts);
        mote_model *m = model_of(temp_dir, MOTE_EVERYTHING);
        for (int i = 0; i < 3; i++) check_replay(m, starts[i / 2], cases + i, piece);
        mote_close(m);
        temp_empty();
    }
}

int main(int argc, char **argv) {
    test_main_begin("test_answers", argc, argv);
    if (!temp_open()) return test_main_end();
    for (int piece = 2; piece < 12; piece += test_brief ? 4 : 1) test_replays(piece);
    for (int piece = 2; piece < 6; piece += test_brief ? 2 : 1) test_cut(piece);
    test_thinking();
    test_characters();
    temp_close();
    return test_main_end();
}
