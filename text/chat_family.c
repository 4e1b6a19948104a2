/* text/chat_family.c: the chat families, as bits. */

typedef enum chat_family {
    CHAT_UNKNOWN = 0,
    CHAT_QWEN3 = 1,         /* calls as JSON; the model opens its thinking itself */
    CHAT_QWEN3_5 = 2,       /* calls as tags, one in another; the prompt ends inside open thinking */
    /* Published texts of one family differ: */
    CHAT_LENIENT = 4,       /* Qwen3: content that is no text counts as empty; Qwen3.5: so do arguments that are no object */
    CHAT_QUIET = 8,         /* thinks only when asked to */
    CHAT_PRESERVE = 16,     /* Qwen3.6: "preserve_thinking" keeps old thoughts; arguments that are no text are all JSON */
    CHAT_CODER = 32,        /* Qwen3-Coder: calls as Qwen3.5's, tools as tags, no thinking */
    CHAT_CHATML = 64,       /* turns alone */
    CHAT_LLAMA3 = 128,
    CHAT_MISTRAL = 256,
    CHAT_ZEPHYR = 512,
    CHAT_EFFORT = 1 << 10,  /* Qwen3.8: "reasoning_effort"; old thoughts stay unless asked */
    CHAT_INSTRUCT = 1 << 11,/* Qwen3-2507: never thinks */
    CHAT_OPEN = 1 << 12,    /* Qwen3-2507: always thinks, from the prompt on */
    CHAT_NEXT = 1 << 13,    /* Qwen3-Coder-Next */
    CHAT_SMOL = 1 << 14,    /* SmolLM2: ChatML with a system turn of its own */
    CHAT_DATED = 1 << 15,   /* Llama 3.1: dates and tools */
    CHAT_TODAY = 1 << 16,   /* Llama 3.2: the date is today's */
    CHAT_SPACED = 1 << 17,  /* Mistral 7B of 2023: a space after each answer */
    CHAT_NEMO = 1 << 18,    /* Mistral Nemo: marks that are tokens, without spaces; tools */
    CHAT_SMALL = 1 << 19,   /* Mistral Small 3: a system turn; calls with a name in front */
    CHAT_BOS = 1 << 20,     /* begins with the tokenizer's own first token, where a renderer does not write that itself */
    CHAT_HARMONY = 1 << 21, /* gpt-oss: messages with headers, which name their channels */
    CHAT_GEMMA = 1 << 26,   /* Gemma 4: values in a syntax of its own, results in the model's turn; with PRESERVE the text of July 2026 */
    CHAT_NAMES = 1 << 27,   /* a parameter may be called as what a schema says */
    CHAT_BARE = 1 << 28,    /* nothing tells the model not to think; DeepSeek-V3.1's first text: a bare </think> does */
    CHAT_LINED = 1 << 23,   /* GLM-4.6: line feeds around marks; DeepSeek: between results */
    CHAT_LAGUNA = 1 << 22,  /* Laguna, of which the texts think only when asked to; LINED: the first one */
    CHAT_DEEPSEEK = 1 << 25,/* DeepSeek-V3; OPEN: R1, QUIET: V3.1 */
    CHAT_GLM = 1 << 24      /* GLM-4.7: turns that only the next one ends; calls as keys and values between tags */
} chat_family;

/* Families whose templates know efforts of thinking. */
enum { CHAT_EFFORTS = CHAT_EFFORT | CHAT_HARMONY };
