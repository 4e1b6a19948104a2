// templates.h: the templates whose answers begin with a token of their own, as the least text that each is recognised by, and the bundled
// tokenizer under their marks; and Gemma 4's.

#ifndef MOTE_TEST_TEMPLATES_H
#define MOTE_TEST_TEMPLATES_H

#include "files.h"

enum { KEPT, LEFT_OUT, NEVER_SAID };     // old thinking: stays; a question leaves it out; the template has none in histories

typedef struct template_marks {
    const char *name, *text;             // mote_info's; the least text of a template
    const char *marks[16][2];            // added tokens of the bundled model, and what they are called here
    const char *ends[3], *end, *end_of_calls;        // tokens that end an answer; the ones that do
    const char *after;                   // what follows </think>
    const char *call, *next_call, *calls_end;        // add(a: 1), the first one, another, and what follows the last one
    int thinking, after_results;         // old thinking; an answer after results thinks as well
} template_marks;

#define PLAIN_MARKS {"<|fim_prefix|>", "<arg_key>"}, {"<|fim_middle|>", "</arg_key>"}, {"<|fim_suffix|>", "<arg_value>"}, {"<|fim_pad|>", "</arg_value>"}
#define KEYED_ADD "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"
#define MESSAGES(text) "{% for m in messages %}" text "{% endfor %}"
#define BEGINS(text) "{% if add_generation_prompt %}" text "{% endif %}"
static const template_marks templates[] = {
    {.name = "GLM",
     .text = "[gMASK]<sop>" MESSAGES("<|system|><|user|><|observation|><tool_response></tool_response><tool_call><arg_key></arg_key></tool_call><think></think>")
             BEGINS("<|assistant|>{{ '</think>' if x else '<think>' }}"),
     .marks = {{"<|object_ref_start|>", "[gMASK]"}, {"<|object_ref_end|>", "<sop>"}, {"<|box_start|>", "<|system|>"}, {"<|box_end|>", "<|user|>"},
               {"<|quad_start|>", "<|assistant|>"}, {"<|quad_end|>", "<|observation|>"}, PLAIN_MARKS},
     .ends = {"<|endoftext|>", "<|user|>", "<|observation|>"}, .end = "<|user|>", .end_of_calls = "<|observation|>",
     .after = "", .call = KEYED_ADD, .next_call = KEYED_ADD, .calls_end = "", .thinking = LEFT_OUT, .after_results = 1},
};
#undef MESSAGES
#undef BEGINS

enum { TEMPLATES = sizeof templates / sizeof *templates };

static inline void template_replace(const char *path, const char *from, const char *to) {
    size_t size, n = strlen(from);
    char *text = file_bytes(path, &size), *at = text ? strstr(text, from) : NULL;
    if (CHECK(at != NULL, "%s: no %s", path, from)) {
        char *out = (char *)allocate(size + strlen(to) + 1);
        const int written = sprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + n);
        write_bytes(path, out, (size_t)written);
        free(out);
    }
    free(text);
}

// The least text that is recognised as Gemma 4's. july: what that of July 2026 has more.
#define GEMMA_LEAST(july)                                                                                                        \
    "{% for m in messages %}<|turn><turn|><|channel>{{ m.content }}<channel|><|tool_call>call:<tool_call|><|tool_response><tool_response|>" \
    july "{% endfor %}{% if add_generation_prompt %}{% if x %}<|turn>model\n<channel|>{% endif %}{% endif %}"

// Of a folder with the bundled tokenizer: its added tokens get the family's names, and it the family's template.
static inline void template_rename(const char *folder, const template_marks *f) {
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json"};
    char path[1024], from[64], to[64];
    for (int i = 0; i < 16 && f->marks[i][0]; i++)
        for (int k = 0; k < 2; k++) {
            snprintf(path, sizeof path, "%s/%s", folder, files[k]);
            snprintf(from, sizeof from, "\"%s\"", f->marks[i][0]);
            snprintf(to, sizeof to, "\"%s\"", f->marks[i][1]);
            template_replace(path, from, to);
        }
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    write_bytes(path, f->text, strlen(f->text));
}

#endif
