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
    const char *before, *after;          // what an answer that thinks begins with, what follows </think>
    int lines;                           // a line feed after <think>, before </think> and after the answer
    const char *calls_begin, *call, *next_call, *calls_end;              // what calls begin with; add(a: 1), the first one, another; what follows
    int thinking, after_results, always; // old thinking; an answer after results thinks as well; every other one does
} template_marks;

#define PLAIN_MARKS {"<|fim_prefix|>", "<arg_key>"}, {"<|fim_middle|>", "</arg_key>"}, {"<|fim_suffix|>", "<arg_value>"}, {"<|fim_pad|>", "</arg_value>"}
#define KEYED_ADD "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"
#define LINED_ADD "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
#define DEEPSEEK_TOKENS                                                                                                       \
    {"<|object_ref_start|>", "<｜begin▁of▁sentence｜>"}, {"<|im_end|>", "<｜end▁of▁sentence｜>"}, {"<|box_start|>", "<｜User｜>"},    \
    {"<|box_end|>", "<｜Assistant｜>"}, {"<|fim_prefix|>", "<｜tool▁calls▁begin｜>"}, {"<|fim_middle|>", "<｜tool▁call▁begin｜>"},   \
    {"<|fim_suffix|>", "<｜tool▁sep｜>"}, {"<|fim_pad|>", "<｜tool▁call▁end｜>"}, {"<|repo_name|>", "<｜tool▁calls▁end｜>"},         \
    {"<tool_response>", "<｜tool▁output▁begin｜>"}, {"</tool_response>", "<｜tool▁output▁end｜>"},                                 \
    {"<tool_call>", "<｜tool▁outputs▁begin｜>"}, {"</tool_call>", "<｜tool▁outputs▁end｜>"}
#define DEEPSEEK_TEXT "<｜User｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜><｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>" \
                      "<｜tool▁output▁begin｜><｜tool▁output▁end｜></think>"
#define DEEPSEEK_ADD "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": \"1\"}<｜tool▁call▁end｜>"
#define R1_ADD "<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{\"a\": \"1\"}\n```<｜tool▁call▁end｜>"
#define MESSAGES(text) "{% for m in messages %}" text "{% endfor %}"
#define BEGINS(text) "{% if add_generation_prompt %}" text "{% endif %}"
static const template_marks templates[] = {
    {.name = "GLM",
     .text = "[gMASK]<sop>" MESSAGES("<|system|><|user|><|observation|><tool_response></tool_response><tool_call><arg_key></arg_key></tool_call><think></think>")
             BEGINS("<|assistant|>{{ '</think>' if x else '<think>' }}"),
     .marks = {{"<|object_ref_start|>", "[gMASK]"}, {"<|object_ref_end|>", "<sop>"}, {"<|box_start|>", "<|system|>"}, {"<|box_end|>", "<|user|>"},
               {"<|quad_start|>", "<|assistant|>"}, {"<|quad_end|>", "<|observation|>"}, PLAIN_MARKS},
     .ends = {"<|endoftext|>"}, .end = "<|user|>", .end_of_calls = "<|observation|>",
     .before = "", .after = "", .calls_begin = "", .call = KEYED_ADD, .next_call = KEYED_ADD, .calls_end = "", .thinking = LEFT_OUT, .after_results = 1},
    {.name = "GLM",                    // 4.6
     .text = "[gMASK]<sop>" MESSAGES("<|system|><|user|><|observation|><tool_response></tool_response><tool_call><arg_key></arg_key></tool_call><think></think>/nothink")
             BEGINS("<|assistant|>{{- '\\n<think></think>' if x else '' }}"),
     .marks = {{"<|object_ref_start|>", "[gMASK]"}, {"<|object_ref_end|>", "<sop>"}, {"<|box_start|>", "<|system|>"}, {"<|box_end|>", "<|user|>"},
               {"<|quad_start|>", "<|assistant|>"}, {"<|quad_end|>", "<|observation|>"}, PLAIN_MARKS},
     .ends = {"<|endoftext|>"}, .end = "<|user|>", .end_of_calls = "<|observation|>",
     .before = "\n<think>", .after = "\n", .calls_begin = "\n", .call = LINED_ADD, .next_call = "\n" LINED_ADD, .calls_end = "", .thinking = LEFT_OUT, .after_results = 1},
    {.name = "DeepSeek",               // V3.1
     .text = "{{ bos_token + x }}" MESSAGES(DEEPSEEK_TEXT) "{% if add_generation_prompt and not y %}<｜Assistant｜>{% if not thinking %}<think></think>{% endif %}{% endif %}",
     .marks = {DEEPSEEK_TOKENS}, .ends = {"<｜end▁of▁sentence｜>"}, .end = "<｜end▁of▁sentence｜>", .end_of_calls = "<｜end▁of▁sentence｜>", .before = "", .after = "",
     .calls_begin = "<｜tool▁calls▁begin｜>", .call = DEEPSEEK_ADD, .next_call = DEEPSEEK_ADD, .calls_end = "<｜tool▁calls▁end｜>", .thinking = NEVER_SAID},
    {.name = "DeepSeek",               // R1
     .text = "{{ bos_token + x }}" MESSAGES(DEEPSEEK_TEXT) "{% if add_generation_prompt and not y %}<｜Assistant｜><think>\\n{% endif %}",
     .marks = {DEEPSEEK_TOKENS}, .ends = {"<｜end▁of▁sentence｜>"}, .end = "<｜end▁of▁sentence｜>", .end_of_calls = "<｜end▁of▁sentence｜>", .before = "", .after = "\n\n",
     .calls_begin = "<｜tool▁calls▁begin｜>", .call = R1_ADD, .next_call = "\n" R1_ADD, .calls_end = "<｜tool▁calls▁end｜>", .thinking = NEVER_SAID, .always = 1},
    {.name = "Laguna",
     .text = "〈|EOS|〉" MESSAGES("<system><user><available_tools><assistant></assistant><tool_response></tool_response><tool_call><arg_key></arg_key></tool_call></think>")
             BEGINS("<assistant>{% if x %}<think>{% else %}</think>{% endif %}"),
     .marks = {{"<|object_ref_start|>", "〈|EOS|〉"}, {"<|fim_prefix|>", "<assistant>"}, {"<|im_end|>", "</assistant>"}, {"<tool_response>", "none"},
               {"</tool_response>", "nor this"}},
     .ends = {"〈|EOS|〉", "</assistant>"}, .end = "</assistant>", .end_of_calls = "</assistant>",
     .before = "", .after = "", .calls_begin = "", .call = KEYED_ADD, .next_call = KEYED_ADD, .calls_end = "", .thinking = KEPT, .after_results = 1},
    {.name = "Laguna",                 // the first text
     .text = "〈|EOS|〉" MESSAGES("<system>{{ '<user>\\n' }}<available_tools><assistant></assistant><tool_response></tool_response><tool_call><arg_key></arg_key></tool_call></think>")
             BEGINS("{{ '<assistant>\\n' }}{% if x %}<think>{% else %}</think>{% endif %}"),
     .marks = {{"<|object_ref_start|>", "〈|EOS|〉"}, {"<|fim_prefix|>", "<assistant>"}, {"<|im_end|>", "</assistant>"}, {"<tool_response>", "none"},
               {"</tool_response>", "nor this"}},
     .ends = {"〈|EOS|〉", "</assistant>"}, .end = "</assistant>", .end_of_calls = "</assistant>", .lines = 1, .before = "", .after = "\n", .calls_begin = "\n",
     .call = LINED_ADD, .next_call = "\n" LINED_ADD, .calls_end = "\n", .thinking = KEPT, .after_results = 1},
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
