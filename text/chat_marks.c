/* text/chat_marks.c: the marks with which each chat family writes turns, thinking, results and calls: the one place
   where they are written out. It is data alone: the program takes it as well. */

enum {
    CHAT_KEEPS = CHAT_EFFORT | CHAT_LAGUNA,                    /* that say old thinking too */
    CHAT_QWENS = CHAT_QWEN3 | CHAT_QWEN3_5,                    /* those that chat_qwen.c writes */
    CHAT_ANSWER_TURNS = CHAT_GLM | CHAT_DEEPSEEK | CHAT_LAGUNA                                     /* whose answers begin with a token of their own, which is `turn` */
};

/* The marks of a family; "": it has none. Qwen's turns are `turn`, the role, a line feed, the content, `turn_end` and a line
   feed. */
typedef struct chat_marks {
    int family;                                                /* the flags of one that is written so, all of them */
    const char *name;                                          /* mote_info.chat_template */
    const char *turn, *turn_end, *line_end;                    /* what a turn (of CHAT_ANSWER_TURNS an answer) begins with; what ends one; what follows that */
    const char *user, *answer;                                 /* how a user's turn and an answer begin */
    const char *think, *think_end, *result, *result_end;       /* gpt-oss's: headers of the thinking and of what follows it */
    const char *call, *call_end, *call_name, *call_argument;   /* the last two: of the syntax inside a call */
    const char *call_name_end, *call_argument_end;             /* of a syntax of tags */
    const char *image, *video;                                 /* places for the vision model's output */
    const char *ends[2];                                       /* tokens that end an answer; NULL: turn_end does */
} chat_marks;

/* DeepSeek's marks have a fullwidth bar, and U+2581 between words. */
#define UNDER "\xE2\x96\x81"
#define DEEPSEEK(words) "<\xEF\xBD\x9C" words "\xEF\xBD\x9C>"
#define DEEPSEEK_BEGIN DEEPSEEK("begin" UNDER "of" UNDER "sentence")
#define DEEPSEEK_CALLS DEEPSEEK("tool" UNDER "calls" UNDER "begin")
#define DEEPSEEK_CALLS_END DEEPSEEK("tool" UNDER "calls" UNDER "end")
#define DEEPSEEK_SEP DEEPSEEK("tool" UNDER "sep")
#define DEEPSEEK_OUTPUTS DEEPSEEK("tool" UNDER "outputs" UNDER "begin")
#define DEEPSEEK_OUTPUTS_END DEEPSEEK("tool" UNDER "outputs" UNDER "end")

#define LAGUNA_BEGIN "\xE3\x80\x88|EOS|\xE3\x80\x89"

#define CHATML                                                                                                                \
    .turn = "<|im_start|>", .turn_end = "<|im_end|>", .line_end = "\n", .user = "<|im_start|>user", .answer = "<|im_start|>assistant\n"
#define THINKING .think = "<think>", .think_end = "</think>"
#define RESULT_TAGS .result = "<tool_response>", .result_end = "</tool_response>"
#define CALL_MARKS .call = "<tool_call>", .call_end = "</tool_call>"
#define JSON_KEYS(ARGUMENTS) .call_name = "\"name", .call_argument = "\"" ARGUMENTS, .call_name_end = "", .call_argument_end = ""
#define CALL_TAGS                                                                                                             \
    .call_name = "<function=", .call_argument = "<parameter=", .call_name_end = "</function>", .call_argument_end = "</parameter>"
#define CALL_KEYS                                                                                                             \
    .call_name = "", .call_argument = "<arg_key>", .call_name_end = "", .call_argument_end = "</arg_key>"
#define QWEN_IMAGES .image = "<|vision_start|><|image_pad|><|vision_end|>", .video = "<|vision_start|><|video_pad|><|vision_end|>"
#define WITHOUT_THINKING .think = "", .think_end = ""
#define WITHOUT_RESULTS .result = "", .result_end = ""
#define WITHOUT_CALLS .call = "", .call_end = "", .call_name = "", .call_argument = "", .call_name_end = "", .call_argument_end = ""
#define WITHOUT_IMAGES .image = "", .video = ""
#define ENDS_WITH_TURN .ends = {NULL, NULL}

/* Those with flags come before those without. Of Qwen's, "Qwen3" is the first. */
static const chat_marks chat_families[] = {
    {.family = CHAT_QWEN3, .name = "Qwen3", CHATML, THINKING, RESULT_TAGS, CALL_MARKS, JSON_KEYS("arguments"), WITHOUT_IMAGES, ENDS_WITH_TURN},
    {.family = CHAT_QWEN3_5 | CHAT_EFFORT, .name = "Qwen3.8", CHATML, THINKING, RESULT_TAGS, CALL_MARKS, CALL_TAGS, QWEN_IMAGES, ENDS_WITH_TURN},
    {.family = CHAT_QWEN3_5, .name = "Qwen3.5", CHATML, THINKING, RESULT_TAGS, CALL_MARKS, CALL_TAGS, QWEN_IMAGES, ENDS_WITH_TURN},
    {.family = CHAT_CODER, .name = "Qwen3-Coder", CHATML, WITHOUT_THINKING, RESULT_TAGS, CALL_MARKS, CALL_TAGS, WITHOUT_IMAGES, ENDS_WITH_TURN},
    {.family = CHAT_CHATML, .name = "ChatML", CHATML, WITHOUT_THINKING, WITHOUT_RESULTS, WITHOUT_CALLS, WITHOUT_IMAGES, ENDS_WITH_TURN},
    {.family = CHAT_LLAMA3, .name = "Llama 3",
     .turn = "<|start_header_id|>", .turn_end = "<|eot_id|>", .line_end = "",
     .user = "<|start_header_id|>user", .answer = "<|start_header_id|>assistant<|end_header_id|>\n\n",
     WITHOUT_THINKING, WITHOUT_RESULTS, .call = "", .call_end = "", JSON_KEYS("parameters"), WITHOUT_IMAGES, ENDS_WITH_TURN},
    {.family = CHAT_MISTRAL, .name = "Mistral",
     .turn = "[INST]", .turn_end = "</s>", .line_end = "", .user = "[INST]", .answer = "[/INST]",
     WITHOUT_THINKING, .result = "[TOOL_RESULTS]", .result_end = "[/TOOL_RESULTS]",
     .call = "[TOOL_CALLS]", .call_end = "", JSON_KEYS("arguments"), .image = "[IMG]", .video = "", ENDS_WITH_TURN},
    {.family = CHAT_ZEPHYR, .name = "Zephyr",
     .turn = "<|", .turn_end = "</s>", .line_end = "\n", .user = "<|user|>\n", .answer = "<|assistant|>\n",
     WITHOUT_THINKING, WITHOUT_RESULTS, WITHOUT_CALLS, WITHOUT_IMAGES, ENDS_WITH_TURN},
    {.family = CHAT_GLM, .name = "GLM",
     .turn = "<|assistant|>", .turn_end = "", .line_end = "", .user = "<|user|>", .answer = "<|assistant|>",
     THINKING, RESULT_TAGS, CALL_MARKS, CALL_KEYS, WITHOUT_IMAGES, .ends = {"<|user|>", "<|observation|>"}},
    {.family = CHAT_LAGUNA, .name = "Laguna",
     .turn = "<assistant>", .turn_end = "</assistant>", .line_end = "\n", .user = "<user>", .answer = "<assistant>",
     THINKING, RESULT_TAGS, CALL_MARKS, CALL_KEYS, WITHOUT_IMAGES, ENDS_WITH_TURN},
    {.family = CHAT_DEEPSEEK, .name = "DeepSeek",
     .turn = DEEPSEEK("Assistant"), .turn_end = DEEPSEEK("end" UNDER "of" UNDER "sentence"), .line_end = "",
     .user = DEEPSEEK("User"), .answer = DEEPSEEK("Assistant"), THINKING,
     .result = DEEPSEEK("tool" UNDER "output" UNDER "begin"), .result_end = DEEPSEEK("tool" UNDER "output" UNDER "end"),
     .call = DEEPSEEK("tool" UNDER "call" UNDER "begin"), .call_end = DEEPSEEK("tool" UNDER "call" UNDER "end"),
     .call_name = "", .call_argument = "", .call_name_end = "", .call_argument_end = "", WITHOUT_IMAGES, ENDS_WITH_TURN},
    {.family = CHAT_GEMMA, .name = "Gemma 4",
     .turn = "<|turn>", .turn_end = "<turn|>", .line_end = "\n", .user = "<|turn>user", .answer = "<|turn>model\n",
     .think = "<|channel>", .think_end = "<channel|>", .result = "<|tool_response>", .result_end = "<tool_response|>",
     .call = "<|tool_call>", .call_end = "<tool_call|>", .call_name = "", .call_argument = "", .call_name_end = "", .call_argument_end = "",
     WITHOUT_IMAGES, .ends = {"<turn|>", "<|tool_response>"}},
    {.family = CHAT_HARMONY, .name = "gpt-oss",
     .turn = "<|start|>", .turn_end = "<|end|>", .line_end = "", .user = "<|start|>user<|message|>", .answer = "<|start|>assistant",
     .think = "<|channel|>analysis<|message|>", .think_end = "<|channel|>final<|message|>", WITHOUT_RESULTS, WITHOUT_CALLS, WITHOUT_IMAGES,
     .ends = {"<|return|>", "<|call|>"}},
};
#undef CALL_KEYS
#undef CHATML
#undef ENDS_WITH_TURN
#undef THINKING
#undef RESULT_TAGS
#undef CALL_MARKS
#undef JSON_KEYS
#undef CALL_TAGS
#undef QWEN_IMAGES
#undef WITHOUT_THINKING
#undef WITHOUT_RESULTS
#undef WITHOUT_CALLS
#undef WITHOUT_IMAGES

enum { CHAT_FAMILY_COUNT = sizeof chat_families / sizeof *chat_families };

/* For those who read what a model of any family writes: all families have these marks but the tags inside a call, in which
   models of the others write calls as well. */
static const chat_marks *const chat_marks_of_answers = &chat_families[2];

static const chat_marks *chat_marks_of(int family);

/* The marks with which a model of a family thinks and calls. */
static const chat_marks *chat_marks_of_model(int family) {
    return family & (CHAT_GEMMA | CHAT_ANSWER_TURNS | CHAT_HARMONY) ? chat_marks_of(family) : chat_marks_of_answers;
}

/* NULL: of an unknown template. */
static const chat_marks *chat_marks_of(int family) {
    for (int i = 0; i < CHAT_FAMILY_COUNT; i++)
        if (family && (chat_families[i].family & family) == chat_families[i].family) return &chat_families[i];
    return NULL;
}
