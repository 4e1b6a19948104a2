// A part of test_tokenizer: pre-tokenizers.

// Words between bars, as the Hugging Face tokenizers library cuts these texts.

typedef struct words_case {
    splitter kind;
    const char *words;
} words_case;

static const words_case words_cases[] = {
    {SPLIT_GPT2, "I|'m| you|'|LL| it|'|S|'|S| x|'|ſ| y|'|RE|'d| '|tis"},
    {SPLIT_GPT2, "a| | b|   \n| c| \r\n\r\n | d|\t|\t|e|   "},
    {SPLIT_GPT2, "12345| x|1|y|²½٣"},
    {SPLIT_GPT2, "Hello|,| World|!!| foo|.|bar|(|baz|);|\n|//|x|/|\n"},
    {SPLIT_GPT2, "iPhone| HTTPServer| ABCdef| ǅx| ʰA| 中A中"},
    {SPLIT_GPT2, "म|\340\244\276|नक| ह|\340\244\277|न|\340\245\215|द|\340\245\200| e|"
     "\314\201\314\201!\314\201| \314\201|A"},
    {SPLIT_GPT2, "漢字カタカナ|・|ひらがな|゠|12|abc한국"},
    {SPLIT_GPT2, "a|\302\240|b|\343\200\200|\343\200\200|c|\342\200\250|d|\302\205|e|\034|f|"
     "\342\200\213|g|\357\273\277|h"},
    {SPLIT_GPT2, "$|x| +|y| ~|z| _|w| ^|v| `|u| #|1| -|a"},
    {SPLIT_GPT2, "😀👨\342\200\215👩🏽| x|\356\200\200|y|\001|z"},
    {SPLIT_GPT2, "   "},
    {SPLIT_GPT2, " \n \n| x"},
    {SPLIT_GPT2, "'"},
    {SPLIT_GPT2, "A|\314\201|B| \314\201|BC"},
    {SPLIT_QWEN2, "I|'m| you|'LL| it|'S|'S| x|'ſ| y|'RE|'d| '|tis"},
    {SPLIT_QWEN2, "a| | b|   \n| c| \r\n\r\n| | d|\t|\te|   "},
    {SPLIT_QWEN2, "1|2|3|4|5| x|1|y|²|½|٣"},
    {SPLIT_QWEN2, "Hello|,| World|!!| foo|.bar|(baz|);\n|//|x|/\n"},
    {SPLIT_QWEN2, "iPhone| HTTPServer| ABCdef| ǅx| ʰA| 中A中"},
    {SPLIT_QWEN2, "म|\340\244\276नक| ह|\340\244\277न|\340\245\215द|\340\245\200| e|\314\201\314\201!"
     "\314\201| \314\201|A"},
    {SPLIT_QWEN2, "漢字カタカナ|・ひらがな|゠|1|2|abc한국"},
    {SPLIT_QWEN2, "a|\302\240b|\343\200\200|\343\200\200c|\342\200\250d|\302\205e|\034f|"
     "\342\200\213g|\357\273\277h"},
    {SPLIT_QWEN2, "$x| +|y| ~|z| _|w| ^|v| `|u| #|1| -|a"},
    {SPLIT_QWEN2, "😀👨\342\200\215👩🏽| x|\356\200\200y|\001z"},
    {SPLIT_QWEN2, "   "},
    {SPLIT_QWEN2, " \n \n| x"},
    {SPLIT_QWEN2, "'"},
    {SPLIT_QWEN2, "A|\314\201B| \314\201|BC"},
    {SPLIT_QWEN35, "I|'m| you|'LL| it|'S|'S| x|'ſ| y|'RE|'d| '|tis"},
    {SPLIT_QWEN35, "a| | b|   \n| c| \r\n\r\n| | d|\t|\te|   "},
    {SPLIT_QWEN35, "1|2|3|4|5| x|1|y|²|½|٣"},
    {SPLIT_QWEN35, "Hello|,| World|!!| foo|.bar|(baz|);\n|//|x|/\n"},
    {SPLIT_QWEN35, "iPhone| HTTPServer| ABCdef| ǅx| ʰA| 中A中"},
    {SPLIT_QWEN35, "म\340\244\276नक| ह\340\244\277न\340\245\215द\340\245\200| e\314\201\314\201|!"
     "\314\201| \314\201A"},
    {SPLIT_QWEN35, "漢字カタカナ|・ひらがな|゠|1|2|abc한국"},
    {SPLIT_QWEN35, "a|\302\240b|\343\200\200|\343\200\200c|\342\200\250d|\302\205e|\034f|"
     "\342\200\213g|\357\273\277h"},
    {SPLIT_QWEN35, "$x| +|y| ~|z| _|w| ^|v| `|u| #|1| -|a"},
    {SPLIT_QWEN35, "😀👨\342\200\215👩🏽| x|\356\200\200y|\001z"},
    {SPLIT_QWEN35, "   "},
    {SPLIT_QWEN35, " \n \n| x"},
    {SPLIT_QWEN35, "'"},
    {SPLIT_QWEN35, "A\314\201B| \314\201BC"},
    {SPLIT_GPT4O, "I'm| you'LL| it'S|'S| x'ſ| y'RE|'d| '|tis"},
    {SPLIT_GPT4O, "a| | b|   \n| c| \r\n\r\n| | d|\t|\te|   "},
    {SPLIT_GPT4O, "123|45| x|1|y|²½٣"},
    {SPLIT_GPT4O, "Hello|,| World|!!| foo|.bar|(baz|);\n//|x|/\n"},
    {SPLIT_GPT4O, "i|Phone| HTTPServer| ABCdef| ǅx| ʰ|A| 中A中"},
    {SPLIT_GPT4O, "म\340\244\276नक| ह\340\244\277न\340\245\215द\340\245\200| e\314\201\314\201|!"
     "\314\201| \314\201|A"},
    {SPLIT_GPT4O, "漢字カタカナ|・ひらがな|゠|12|abc한국"},
    {SPLIT_GPT4O, "a|\302\240b|\343\200\200|\343\200\200c|\342\200\250d|\302\205e|\034f|"
     "\342\200\213g|\357\273\277h"},
    {SPLIT_GPT4O, "$x| +|y| ~|z| _|w| ^|v| `|u| #|1| -|a"},
    {SPLIT_GPT4O, "😀👨\342\200\215👩🏽| x|\356\200\200y|\001z"},
    {SPLIT_GPT4O, "   "},
    {SPLIT_GPT4O, " \n \n| x"},
    {SPLIT_GPT4O, "'"},
    {SPLIT_GPT4O, "A\314\201|B| \314\201|BC"},
    {SPLIT_DEEPSEEK, "I|'m| you|'LL| it|'S|'S| x|'|ſ| y|'RE|'d| '|tis"},
    {SPLIT_DEEPSEEK, "a| | b|   \n| c| \r\n\r\n| | d|\t|\te|   "},
    {SPLIT_DEEPSEEK, "123|45| x|1|y|²½٣"},
    {SPLIT_DEEPSEEK, "Hello|,| World|!!| foo|.bar|(baz|);\n|//|x|/\n"},
    {SPLIT_DEEPSEEK, "iPhone| HTTPServer| ABCdef| ǅx| ʰA| |中|A|中"},
    {SPLIT_DEEPSEEK, "म\340\244\276नक| ह\340\244\277न\340\245\215द\340\245\200| e\314\201\314\201|!|"
     "\314\201| \314\201A"},
    {SPLIT_DEEPSEEK, "漢字カタカナ|・|ひらがな|゠|12|abc한국"},
    {SPLIT_DEEPSEEK, "a|\302\240b|\343\200\200|\343\200\200c|\342\200\250d|\302\205e|\034f|"
     "\342\200\213g|\357\273\277h"},
    {SPLIT_DEEPSEEK, "$x| +|y| ~|z| _|w| ^|v| `|u| #|1| -|a"},
    {SPLIT_DEEPSEEK, "😀👨|\342\200\215|👩🏽| x|\356\200\200y|\001z"},
    {SPLIT_DEEPSEEK, "   "},
    {SPLIT_DEEPSEEK, " \n \n| x"},
    {SPLIT_DEEPSEEK, "'"},
    {SPLIT_DEEPSEEK, "A\314\201B| \314\201BC"},
    {SPLIT_LLAMA3, "I|'m| you|'LL| it|'S|'S| x|'ſ| y|'RE|'d| '|tis"},
    {SPLIT_LLAMA3, "a| | b|   \n| c| \r\n\r\n| | d|\t|\te|   "},
    {SPLIT_LLAMA3, "123|45| x|1|y|²½٣"},
    {SPLIT_LLAMA3, "Hello|,| World|!!| foo|.bar|(baz|);\n|//|x|/\n"},
    {SPLIT_LLAMA3, "iPhone| HTTPServer| ABCdef| ǅx| ʰA| 中A中"},
    {SPLIT_LLAMA3, "\340\244\256|\340\244\276\340\244\250\340\244\225| \340\244\271|\340\244\277\340\244\250|"
     "\340\245\215\340\244\246|\340\245\200| e|\314\201\314\201!\314\201| \314\201|A"},
    {SPLIT_LLAMA3, "漢字カタカナ|・ひらがな|゠|12|abc한국"},
    {SPLIT_LLAMA3, "a|\302\240b|\343\200\200|\343\200\200c|\342\200\250d|\302\205e|\034f|\342\200\213g|\357\273\277h"},
    {SPLIT_LLAMA3, "$x| +|y| ~|z| _|w| ^|v| `|u| #|1| -|a"},
    {SPLIT_LLAMA3, "😀👨\342\200\215👩🏽| x|\356\200\200y|\001z"},
    {SPLIT_LLAMA3, "   "},
    {SPLIT_LLAMA3, " \n \n| x"},
    {SPLIT_LLAMA3, "'"},
    {SPLIT_LLAMA3, "A|\314\201B| \314\201|BC"},
    {SPLIT_TEKKEN, "I|'m| you|'LL| it|'S|'S| x|'ſ| y|'RE|'d| '|tis"},
    {SPLIT_TEKKEN, "a| | b|   \n| c| \r\n\r\n| | d|\t|\te|   "},
    {SPLIT_TEKKEN, "1|2|3|4|5| x|1|y|²|½|٣"},
    {SPLIT_TEKKEN, "Hello|,| World|!!| foo|.bar|(baz|);\n//|x|/\n"},
    {SPLIT_TEKKEN, "i|Phone| HTTPServer| ABCdef| ǅx| ʰ|A| 中A中"},
    {SPLIT_TEKKEN, "\340\244\256\340\244\276\340\244\250\340\244\225| \340\244\271\340\244\277\340\244\250\340\245\215"
     "\340\244\246\340\245\200| e\314\201\314\201|!\314\201| \314\201|A"},
    {SPLIT_TEKKEN, "漢字カタカナ|・ひらがな|゠|1|2|abc한국"},
    {SPLIT_TEKKEN, "a|\302\240b|\343\200\200|\343\200\200c|\342\200\250d|\302\205e|\034f|\342\200\213g|\357\273\277h"},
    {SPLIT_TEKKEN, "$x| +|y| ~|z| _|w| ^|v| `|u| #|1| -|a"},
    {SPLIT_TEKKEN, "😀👨\342\200\215👩🏽| x|\356\200\200y|\001z"},
    {SPLIT_TEKKEN, "   "},
    {SPLIT_TEKKEN, " \n \n| x"},
    {SPLIT_TEKKEN, "'"},
    {SPLIT_TEKKEN, "A\314\201|B| \314\201|BC"},
    {SPLIT_DIGITS, "I|'m| you|'|LL| it|'|S|'|S| x|'|ſ| y|'|RE|'d| '|tis"},
    {SPLIT_DIGITS, "a| | b|   \n| c| \r\n\r\n | d|\t|\t|e|   "},
    {SPLIT_DIGITS, "1|2|3|4|5| x|1|y|²|½|٣"},
    {SPLIT_DIGITS, "Hello|,| World|!!| foo|.|bar|(|baz|);|\n|//|x|/|\n"},
    {SPLIT_DIGITS, "iPhone| HTTPServer| ABCdef| ǅx| ʰA| 中A中"},
    {SPLIT_DIGITS, "\340\244\256|\340\244\276|\340\244\250\340\244\225| \340\244\271|\340\244\277|\340\244\250|"
     "\340\245\215|\340\244\246|\340\245\200| e|\314\201\314\201!\314\201| \314\201|A"},
    {SPLIT_DIGITS, "漢字カタカナ|・|ひらがな|゠|1|2|abc한국"},
    {SPLIT_DIGITS, "a|\302\240|b|\343\200\200|\343\200\200|c|\342\200\250|d|\302\205|e|\034|f|\342\200\213|"
     "g|\357\273\277|h"},
    {SPLIT_DIGITS, "$|x| +|y| ~|z| _|w| ^|v| `|u| #|1| -|a"},
    {SPLIT_DIGITS, "😀👨\342\200\215👩🏽| x|\356\200\200|y|\001|z"},
    {SPLIT_DIGITS, "   "},
    {SPLIT_DIGITS, " \n \n| x"},
    {SPLIT_DIGITS, "'"},
    {SPLIT_DIGITS, "A|\314\201|B| \314\201|BC"},
    {SPLIT_LAGUNA, "a| | b|   |\n| c| |\r\n\r\n| | d|\t|\te|   "},
    {SPLIT_LAGUNA, "Hello|,| World|!!|\n\n| | foo|(bar|);|\n|//|x|/|\n"},
    {SPLIT_LAGUNA, "\n"},
    {SPLIT_LAGUNA, "\r\n"},
    {SPLIT_LAGUNA, "\r|\r\n\n\r|x|\r"},
    {SPLIT_LAGUNA, "x| |\n| |\n| y|\n"},
    {SPLIT_LAGUNA, " |\n| |\n| x"},
    {SPLIT_LAGUNA, "I|'m| |1|2|3|4|5|\n\n|6|7|8| '|s|\n|'t"},
    {SPLIT_LAGUNA, "if| x|:|\n|   | return| |1|\n\n\n|\tdef| f|():|\r\n|\t|\tpass"},
    {SPLIT_LAGUNA, "a|\n| b"},
    {SPLIT_LAGUNA, "\n\n| a"},
    {SPLIT_LAGUNA, "漢字|\n|abc|\342\200\250|\n|x"},
    {SPLIT_LAGUNA, "a|\r"},
    {SPLIT_LAGUNA, "\r\n|a|\r\n"},
    {SPLIT_LAGUNA, "A|!|\n|!|\n"},
    {SPLIT_LAGUNA, "   |\n"},
    {SPLIT_LAGUNA, "   "},
    {SPLIT_NONE, "Hello, World!!  12\n\n x"},
};

static void test_words(void) {
    for (size_t i = 0; i < COUNT(words_cases); i++) {
        const char *want = words_cases[i].words, *word;
        buf text = EMPTY, got = EMPTY;
        word_iterator w;
        size_t size;
        for (const char *p = want; *p; p++) {
            if (*p != '|') buf_add(&text, p, 1);
        }
        w.kind = words_cases[i].kind;
        w.p = w.outer = w.inner = text.data;
        w.end = text.data + text.size;
        while ((word = next_word(&w, &size)) != NULL) {
            if (got.size) buf_add(&got, "|", 1);
            buf_add(&got, word, size);
        }
        CHECK(buf_is(&got, want, strlen(want)), "splitter %d: <%.*s>, not <%s>", (int)w.kind, (int)got.size,
              got.data, want);
        buf_free(&text);
        buf_free(&got);
    }
}
