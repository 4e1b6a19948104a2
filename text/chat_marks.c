/* text/chat_marks.c: the chat families, and the marks with which each writes turns, thinking, results and calls: the one place
   where they are written out. It is data alone: the program takes it as well. */

typedef enum chat_family {
    CHAT_UNKNOWN = 0,
    CHAT_QWEN3 = 1,     /* calls as JSON; the model opens its thinking itself */
    CHAT_QWEN3_5 = 2,   /* calls as tags, one in another; the prompt ends inside open thinking */
    /* Published texts of one family differ: */
    CHAT_LENIENT = 4,   /* Qwen3: content that is no text counts as empty; Qwen3.5: so do arguments that are no object */
    CHAT_QUIET = 8,     /* thinks only when asked to */
    CHAT_PRESERVE = 16  /* Qwen3.6: "preserve_thinking" keeps old thoughts; arguments that are no text are all JSON */
} chat_family;

/* The marks of a family. A turn is `turn`, the role, a line feed, the content, `turn_end` and a line feed. */
typedef struct chat_marks {
    int family;                                                /* without the flags */
    const char *name;                                          /* mote_info.chat_template */
    const char *turn, *turn_end, *think, *think_end, *result, *result_end;
    const char *call, *call_end, *call_name, *call_argument;   /* the last two: of the syntax inside a call */
    const char *call_name_end, *call_argument_end;             /* of a syntax of tags */
    const char *image, *video;                                 /* places for the vision model's output */
} chat_marks;

static const chat_marks chat_families[] = {
    {CHAT_QWEN3, "Qwen3", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_response>", "</tool_response>",
     "<tool_call>", "</tool_call>", "\"name", "\"arguments", "", "", "", ""},
    {CHAT_QWEN3_5, "Qwen3.5", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_response>", "</tool_response>",
     "<tool_call>", "</tool_call>", "<function=", "<parameter=", "</function>", "</parameter>",
     "<|vision_start|><|image_pad|><|vision_end|>", "<|vision_start|><|video_pad|><|vision_end|>"},
};

enum { CHAT_FAMILY_COUNT = sizeof chat_families / sizeof *chat_families };

/* For those who read what a model of any family writes: all families have these marks but the tags inside a call, in which
   models of the others write calls as well. */
static const chat_marks *const chat_marks_of_answers = &chat_families[1];

/* NULL: of an unknown template. */
static const chat_marks *chat_marks_of(int family) {
    for (int i = 0; i < CHAT_FAMILY_COUNT; i++)
        if (chat_families[i].family & family) return &chat_families[i];
    return NULL;
}
