// A part of test_chat: the families without thinking, Qwen3.8's efforts: goldens of tests/fixtures/chats, what is mended, turns.

// name: of the goldens that its published template made. text: the least that says all that the family is recognised by.
typedef struct family_file { const char *name; int family; const char *text; } family_file;

#define LOOP "{% for m in messages %}"
#define RESULTS "<tool_response></tool_response>"
#define TAGS "<tool_call><function=></function><parameter=></parameter></tool_call>"
#define GLM "[gMASK]<sop>" LOOP "<|system|><|user|><|observation|>" RESULTS "<tool_call><arg_key></arg_key></tool_call><think></think>{% endfor %}"
#define LAGUNA(user) LAGUNA_BEGIN LOOP "<system>" user "<available_tools><assistant></assistant>" RESULTS                          \
    "<tool_call><arg_key></arg_key></tool_call></think>{% endfor %}{% if add_generation_prompt %}"
#define DEEPSEEK_OUTPUT DEEPSEEK("tool" UNDER "output" UNDER "begin")
#define DEEPSEEK_TEXT LOOP DEEPSEEK("User") DEEPSEEK_CALLS DEEPSEEK("tool" UNDER "call" UNDER "begin") DEEPSEEK_SEP DEEPSEEK("tool" UNDER "call" UNDER "end") \
    DEEPSEEK_CALLS_END DEEPSEEK("end" UNDER "of" UNDER "sentence") DEEPSEEK_OUTPUT DEEPSEEK("tool" UNDER "output" UNDER "end")
#define PROMPT "{% if add_generation_prompt %}<|im_start|>assistant\\n"
#define GEMMA_MARKS "<|turn><turn|><|channel>{{ m.content }}<channel|><|tool_call>call:<tool_call|><|tool_response><tool_response|>"
#define PROMPT_GEMMA "{% if add_generation_prompt %}{% if x %}<|turn>model\n{% endif %}"
enum { GEMMA = CHAT_GEMMA | CHAT_QUIET, GEMMA_JULY = GEMMA | CHAT_NAMES | CHAT_PRESERVE };
static const family_file family_files[] = {
    {"Qwen3.8", QWEN35 | CHAT_PRESERVE | CHAT_EFFORT,
     LOOP "<|im_end|>" RESULTS TAGS "{{ preserve_thinking + reasoning_effort }}Reasoning effort is set to xhigh."
     PROMPT "{% if enable_thinking is false %}<think>\\n\\n</think>\\n\\n{% else %}<think>\\n{% endif %}"},
    {"Qwen3-4B-Instruct-2507", QWEN3 | CHAT_LENIENT | CHAT_INSTRUCT,
     LOOP "<|im_end|>" RESULTS "{{ tools }}<tool_call>{\"name\": \"arguments\"}</tool_call>" PROMPT},
    {"Qwen3-4B-Thinking-2507", QWEN3 | CHAT_LENIENT | CHAT_OPEN,
     LOOP "<|im_end|>" RESULTS "{{ m.reasoning_content }}</think><tool_call>{\"name\": \"arguments\"}</tool_call>" PROMPT "<think>\\n"},
    {"Qwen3-Coder-Next", CHAT_CODER | CHAT_NEXT,
     LOOP "<|im_end|>" RESULTS TAGS "{{ tools }}<parameters>an inner <function=...></function>" PROMPT},
    {"SmolLM2-135M-Instruct", CHAT_CHATML | CHAT_SMOL, LOOP "You are a helpful AI assistant named SmolLM<|im_end|>" PROMPT},
    {"Mistral-7B-Instruct-v0.1", CHAT_MISTRAL | CHAT_SPACED, LOOP "[INST] {{ m.content }} [/INST]{{ m.content + eos_token + ' ' }}"},
    {"Mixtral-8x7B-Instruct-v0.1", CHAT_MISTRAL, LOOP "[INST] {{ m.content }} [/INST]{{ m.content + eos_token }}"},
    {"Mistral-7B-Instruct-v0.3", CHAT_MISTRAL | CHAT_NEMO | CHAT_SPACED,
     LOOP "[AVAILABLE_TOOLS][INST][/INST][TOOL_CALLS] [{{ eos_token }}[/TOOL_RESULTS]"},
    {"DeepSeek-V3", CHAT_DEEPSEEK | CHAT_LINED, DEEPSEEK_TEXT "{{'\\n" DEEPSEEK_OUTPUT "'}}{% if add_generation_prompt and not x %}" DEEPSEEK("Assistant")},
    {"DeepSeek-R1-Distill", CHAT_DEEPSEEK | CHAT_OPEN | CHAT_LINED,
     DEEPSEEK_TEXT "{{'\\n" DEEPSEEK_OUTPUT "'}}{% if add_generation_prompt and not x %}" DEEPSEEK("Assistant") "<think>\\n"},
    {"DeepSeek-R1", CHAT_DEEPSEEK | CHAT_OPEN, DEEPSEEK_TEXT "{% if add_generation_prompt and not x %}" DEEPSEEK("Assistant") "<think>\\n"},
    {"DeepSeek-V3.1", CHAT_DEEPSEEK | CHAT_QUIET,
     DEEPSEEK_TEXT "{% if add_generation_prompt and not x %}" DEEPSEEK("Assistant") "{% if not thinking %}<think></think>{% endif %}"},
    {"DeepSeek-V3.1-August", CHAT_DEEPSEEK | CHAT_QUIET | CHAT_BARE,
     DEEPSEEK_TEXT "{% if add_generation_prompt and not x %}" DEEPSEEK("Assistant") "{% if not thinking %}</think>{% else %}<think>{% endif %}"},
    {"Laguna-XS-2.1", CHAT_LAGUNA | CHAT_QUIET, LAGUNA("<user>") "<assistant>{% if enable_thinking %}<think>{% else %}</think>{% endif %}{% endif %}"},
    {"Laguna-XS.2", CHAT_LAGUNA | CHAT_QUIET | CHAT_LINED,
     LAGUNA("{{ '<user>\\n' }}") "{{ '<assistant>\\n' }}{% if enable_thinking %}<think>{% else %}</think>{% endif %}{% endif %}"},
    {"GLM-4.7-Flash", CHAT_GLM, GLM "{% if add_generation_prompt %}<|assistant|>{{ '</think>' if enable_thinking else '<think>' }}"},
    {"GLM-4.6", CHAT_GLM | CHAT_LINED, GLM "/nothink{% if add_generation_prompt %}<|assistant|>{{ '\\n<think></think>' if off else '' }}"},
    {"gemma-4-26B-A4B-it.2026-04", GEMMA, LOOP GEMMA_MARKS PROMPT_GEMMA "<channel|>"},
    {"gemma-4-26B-A4B-it.between", GEMMA | CHAT_NAMES, LOOP GEMMA_MARKS "{{ filter_keys }}" PROMPT_GEMMA "<channel|>"},
    {"gemma-4-26B-A4B-it.2026-07", GEMMA | CHAT_NAMES | CHAT_PRESERVE, LOOP GEMMA_MARKS "{{ filter_keys + preserve_thinking }}" PROMPT_GEMMA "<channel|>"},
    {"gemma-4-E4B-it.2026-07", GEMMA | CHAT_NAMES | CHAT_PRESERVE | CHAT_BARE,
     LOOP GEMMA_MARKS "{{ filter_keys + preserve_thinking }}" PROMPT_GEMMA},
    {"zephyr-7b-beta", CHAT_ZEPHYR, LOOP "<|user|><|system|>{{ m.content + eos_token }}{% if add_generation_prompt %}<|assistant|>"},
    {"gpt-oss", CHAT_HARMONY, HARMONY_TEMPLATE},
};
#undef GEMMA_MARKS
#undef PROMPT_GEMMA
#undef LOOP
#undef RESULTS
#undef TAGS
#undef GLM
#undef DEEPSEEK_TEXT
#undef DEEPSEEK_OUTPUT
#undef LAGUNA
#undef PROMPT

enum { MIXTRAL = CHAT_MISTRAL, NEMO = CHAT_MISTRAL | CHAT_NEMO, SMALL = CHAT_MISTRAL | CHAT_SMALL,
       EFFORTS = QWEN35 | CHAT_PRESERVE | CHAT_EFFORT, LLAMA31 = CHAT_LLAMA3 | CHAT_DATED, GPTOSS = CHAT_HARMONY };

// Of Llama 3, whose template is not in the fixtures, and what templates refuse.
#define GU(text) "<|turn>user\n" text "<turn|>\n"
#define H(role) "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define DATES H("system") "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
#define TOOLS_DATES H("system") "Environment: ipython\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
#define TOOLS_SAID "Given the following functions, please respond with a JSON for a function call with its proper arguments that best " \
                   "answers the given prompt.\n\nRespond in the format {'name': function name, 'parameters': dictionary of argument name " \
                   "and its value}.Do not use variables.\n\n"
#define LOW "Reasoning effort is set to low. Keep your thinking brief and focused, moving directly to the conclusion without " \
            "unnecessary elaboration."

#define ON "'date_string':'2026-01-02'"
#define SAYS(effort) "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: " \
    "2026-01-02\n\nReasoning: " effort "\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>"
#define CALLS_F(args) "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>" args "<|call|>"
#define RESULT_OF(f, text) "<|start|>functions." f " to=assistant<|channel|>commentary<|message|>" text "<|end|>"

static const render_case family_cases[] = {
    // gpt-oss: efforts as clients name them; it always thinks.
    {GPTOSS, "{" ON ",'messages':[" USER "],'reasoning_effort':'none','enable_thinking':false}", SAYS("low") "<|start|>user<|message|>Hi<|end|><|start|>assistant"},
    {GPTOSS, "{" ON ",'messages':[" USER "],'reasoning_effort':'minimal'}", SAYS("low") "<|start|>user<|message|>Hi<|end|><|start|>assistant"},
    {GPTOSS, "{" ON ",'messages':[" USER "],'reasoning_effort':'xhigh'}", SAYS("high") "<|start|>user<|message|>Hi<|end|><|start|>assistant"},
    {GPTOSS, "{" ON ",'messages':[" USER "],'reasoning_effort':'much'}", NULL},
    // System messages at the beginning are one, another is told in its place; contents in parts.
    {GPTOSS, "{" ON ",'messages':[{'role':'system','content':'S'},{'role':'developer','content':[{'type':'text','text':'D'}]}," USER
             ",{'role':'system','content':'N'}]}",
     SAYS("medium") "<|start|>developer<|message|># Instructions\n\nS\n\nD\n\n<|end|><|start|>user<|message|>Hi<|end|><|start|>developer<|message|># Instructions\n\nN\n\n<|end|><|start|>assistant"},
    {GPTOSS, "{" ON ",'messages':[{'role':'user','content':[{'type':'image'}]}]}", NULL},
    // Thinking under the name that clients use, beside a text; arguments as text; several calls, each with its result.
    {GPTOSS, "{" ON ",'messages':[" USER ",{'role':'assistant','content':'C','reasoning_content':'R','tool_calls':[{'function':{'name':'f','arguments':'{\\'x\\':1}'}}]},"
             "{'role':'tool','content':'1'}]}",
     SAYS("medium") "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>analysis<|message|>R<|end|><|start|>assistant<|channel|>analysis<|message|>C<|end|>"
     CALLS_F("{'x': 1}") RESULT_OF("f", "'1'") "<|start|>assistant"},
    {GPTOSS, "{" ON ",'messages':[" USER ",{'role':'assistant','thinking':'R','tool_calls':[{'id':'a','function':{'name':'f','arguments':{}}},{'id':'b','function':"
             "{'name':'g','arguments':'{\\'y\\': [2]}'}},{'id':'c','function':{'name':'f','arguments':{}}}]},{'role':'tool','tool_call_id':'c','content':'3'},"
             "{'role':'tool','tool_call_id':'a','content':'1'}],'add_generation_prompt':false}",
     SAYS("medium") "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>analysis<|message|>R<|end|>" CALLS_F("{}") RESULT_OF("f", "'1'")
     "<|start|>assistant to=functions.g<|channel|>commentary json<|message|>{'y': [2]}<|call|>" CALLS_F("{}") RESULT_OF("f", "'3'")},
    {GPTOSS, "{" ON ",'messages':[" USER ",{'role':'assistant','tool_calls':[{'function':{'name':'f','arguments':'{\\'x\\': \\'R'}},{'function':{'name':'g'}}]},"
             "{'role':'tool','content':'1'},{'role':'tool','content':'2'}],'add_generation_prompt':false}",
     SAYS("medium") "<|start|>user<|message|>Hi<|end|>" CALLS_F("{'x': 'R") RESULT_OF("f", "'1'")
     "<|start|>assistant to=functions.g<|channel|>commentary json<|message|>{}<|call|>" RESULT_OF("g", "'2'")},
    // A result without a call: by its own name, or as a user's text; other roles are passed over.
    {GPTOSS, "{" ON ",'messages':[{'role':'tool','name':'f','content':'1'},{'role':'tool','content':'2'},{'role':'critic','content':'3'}],'add_generation_prompt':false}",
     SAYS("medium") RESULT_OF("f", "'1'") "<|start|>user<|message|>Tool result:\n2<|end|>"},
    // An answer that goes on; what is thought in it.
    {GPTOSS, "{" ON ",'messages':[" USER ",{'role':'assistant','content':'It is','thinking':'R'}],'continue_final_message':true}",
     SAYS("medium") "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>analysis<|message|>R<|end|><|start|>assistant<|channel|>final<|message|>It is"},
    {GPTOSS, "{" ON ",'messages':[" USER ",{'role':'assistant','content':null},{'role':'assistant','content':'<|channel|>final<|message|>'}]}",
     SAYS("medium") "<|start|>user<|message|>Hi<|end|><|start|>assistant<|channel|>final<|message|><|end|><|start|>assistant<|channel|>final<|message|>"
     "<|channel|>final<|message|><|end|><|start|>assistant"},
    {LLAMA31, "{'date_string':'Today','messages':[" USER "]}",
     "<|begin_of_text|>" H("system") "Cutting Knowledge Date: December 2023\nToday Date: Today\n\n<|eot_id|>" H("user") "Hi<|eot_id|>" H("assistant")},
    {CHAT_LLAMA3, "{'messages':[" USER "]}", "<|begin_of_text|>" H("user") "Hi<|eot_id|>" H("assistant")},
    {CHAT_LLAMA3, "{'messages':[{'role':'system','content':' S '}," USER ",{'role':'assistant','content':'A\\n'}],"
                  "'add_generation_prompt':false}",
     "<|begin_of_text|>" H("system") "S<|eot_id|>" H("user") "Hi<|eot_id|>" H("assistant") "A<|eot_id|>"},
    {CHAT_LLAMA3, "{'messages':[" USER ",{'role':'assistant','content':'It is '}],'continue_final_message':true}",
     "<|begin_of_text|>" H("user") "Hi<|eot_id|>" H("assistant") "It is"},
    {LLAMA31, "{'messages':[{'role':'user','content':[{'type':'text','text':' a '},{'type':'text','text':'b '}]}]}",
     "<|begin_of_text|>" DATES "<|eot_id|>" H("user") "a b<|eot_id|>" H("assistant")},
    {LLAMA31, "{'messages':[{'role':'user','content':[{'type':'image'}]}]}", NULL},
    {LLAMA31, "{'messages':[{'role':'system','content':'S'}],'tools':[{}]}",
     "<|begin_of_text|>" TOOLS_DATES "S<|eot_id|>" H("user") TOOLS_SAID "{}\n\n<|eot_id|>" H("assistant")},
    {LLAMA31, "{'messages':[" USER ",{'role':'assistant','tool_calls':[{'function':{'name':'f','arguments':{}}},{}]}]}", NULL},
    // Several calls in a turn, a text beside one, one that was cut off; results in the order of the calls.
    {LLAMA31, "{'messages':[" USER ",{'role':'assistant','content':null,'tool_calls':[{'id':'a','function':{'name':'f','arguments':{'x':1}}},"
              "{'id':'b','function':{'name':'g','arguments':'{\\'y\\': [2]}'}}]},{'role':'tool','tool_call_id':'b','content':'2'},"
              "{'role':'tool','tool_call_id':'a','content':'1'}]}",
     "<|begin_of_text|>" DATES "<|eot_id|>" H("user") "Hi<|eot_id|>" H("assistant") "{'name': 'f', 'parameters': {'x': 1}}; "
     "{'name': 'g', 'parameters': {'y': [2]}}<|eot_id|>" H("ipython") "'1'<|eot_id|>" H("ipython") "'2'<|eot_id|>" H("assistant")},
    {LLAMA31, "{'messages':[" USER ",{'role':'assistant','content':'So:','tool_calls':[{'function':{'name':'f','arguments':{}}}]}],"
              "'add_generation_prompt':false}",
     "<|begin_of_text|>" DATES "<|eot_id|>" H("user") "Hi<|eot_id|>" H("assistant") "So:\n\n{'name': 'f', 'parameters': {}}<|eot_id|>"},
    {LLAMA31, "{'messages':[" USER ",{'role':'assistant','tool_calls':[{'function':{'name':'f','arguments':'{\\'x\\': \\'R'}}]}],"
              "'add_generation_prompt':false}",
     "<|begin_of_text|>" DATES "<|eot_id|>" H("user") "Hi<|eot_id|>" H("assistant") "{'name': 'f', 'parameters': {'x': 'R}<|eot_id|>"},
    // The tools stand in a question that comes first, be it an empty one.
    {LLAMA31, "{'messages':[{'role':'assistant','content':'Hello'}," USER "],'tools':[{}]}",
     "<|begin_of_text|>" TOOLS_DATES "<|eot_id|>" H("user") TOOLS_SAID "{}\n\n<|eot_id|>" H("assistant") "Hello<|eot_id|>"
     H("user") "Hi<|eot_id|>" H("assistant")},
    {LLAMA31, "{'messages':[{'role':'assistant','tool_calls':[{'function':{'name':'f','arguments':{}}}]},{'role':'tool','content':'1'}],"
              "'tools':[{}]}",
     "<|begin_of_text|>" TOOLS_DATES "<|eot_id|>" H("user") TOOLS_SAID "{}\n\n<|eot_id|>" H("assistant") "{'name': 'f', 'parameters': {}}"
     "<|eot_id|>" H("ipython") "'1'<|eot_id|>" H("assistant")},
    // Calls and results of templates that have no place for them.
    {CHAT_LLAMA3, "{'messages':[" USER ",{'role':'assistant','content':'So:','tool_calls':[{'function':{'name':'f','arguments':{}}}]}]}",
     "<|begin_of_text|>" H("user") "Hi<|eot_id|>" H("assistant") "So:\n\n{'name': 'f', 'parameters': {}}<|eot_id|>" H("assistant")},
    {CHAT_CHATML, "{'messages':[{'role':'assistant','content':'','tool_calls':[{'function':{'name':'f','arguments':''}},"
                  "{'name':'g','arguments':{'x':'y'}}]},{'role':'tool','content':'1'}]}",
     OUT3 "{'name': 'f', 'arguments': {}}; {'name': 'g', 'arguments': {'x': 'y'}}<|im_end|>\n<|im_start|>tool\n1<|im_end|>\n" OUT3},
    {CHAT_ZEPHYR, "{'messages':[" USER ",{'role':'assistant','tool_calls':[{'name':'f'}]},{'role':'tool','content':'1'}]}",
     "<|user|>\nHi</s>\n<|assistant|>\n{'name': 'f', 'arguments': {}}</s>\n<|user|>\nTool result:\n1</s>\n<|assistant|>\n"},
    {MIXTRAL, "{'messages':[" USER ",{'role':'assistant','content':'So:','tool_calls':[{'name':'f'}]},{'role':'tool','content':'1'},"
              "{'role':'tool','content':[{'type':'text','text':'2'}]}," USER "]}",
     "<s>[INST] Hi [/INST]So:\n\n{'name': 'f', 'arguments': {}}</s>[INST] Tool result:\n1\n\nTool result:\n2\n\nHi [/INST]"},
    // A system text before the first question, where there is no turn for it; one in the middle.
    {MIXTRAL, "{'messages':[{'role':'system','content':'S'}," USER "]}", "<s>[INST] S\n\nHi [/INST]"},
    {MIXTRAL, "{'messages':[{'role':'system','content':'S'},{'role':'developer','content':'D'}," USER ","
              "{'role':'assistant','content':'A'},{'role':'system','content':'N'}," USER "]}",
     "<s>[INST] S\n\nD\n\nHi [/INST]A</s>[INST] System message:\nN [/INST][INST] Hi [/INST]"},
    {SMALL, "{'messages':[{'role':'system','content':'S'}," USER ",{'role':'assistant','content':'A'},"
            "{'role':'system','content':'N'}," USER "]}",
     "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]Hi[/INST]A</s>[SYSTEM_PROMPT]N[/SYSTEM_PROMPT][INST]Hi[/INST]"},
    // In an assistant's place, which Small's template has as well; Nemo refuses two questions, and has the system text in the last turn.
    {SMALL, "{'messages':[{'role':'system','content':'S'}," USER ",{'role':'system','content':'N'}," USER "]}",
     "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]Hi[/INST][SYSTEM_PROMPT]N[/SYSTEM_PROMPT][INST]Hi[/INST]"},
    {SMALL, "{'messages':[{'role':'system','content':'S'}," USER "," USER "]}",
     "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]Hi\n\nHi[/INST]"},
    {NEMO, "{'messages':[" USER ",{'role':'system','content':'N'}," USER "]}", "<s>[INST]Hi\n\nSystem message:\nN\n\nHi[/INST]"},
    {NEMO, "{'messages':[{'role':'system','content':'S'},{'role':'user','content':''}," USER ",{'role':'user','content':['x']}]}", NULL},
    {NEMO, "{'messages':[{'role':'system','content':'S'},{'role':'user','content':''}," USER ",{'role':'user','content':"
           "[{'type':'text','text':'a'},{'type':'text','text':'b'}]}]}", "<s>[INST]S\n\nHi\n\nab[/INST]"},
    {SMALL, "{'messages':[{'role':'system','content':'S'}," USER ",{'role':'user','content':[{'type':'image'}]}]}",
     "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]Hi\n\n[IMG][/INST]"},
    // Two answers are one, unless one calls; a greeting first.
    {NEMO, "{'messages':[{'role':'assistant','content':'G'}," USER ",{'role':'assistant','content':'A'},{'role':'assistant','content':'B'},"
           USER "]}", "<s>G</s>[INST]Hi[/INST]A\n\nB</s>[INST]Hi[/INST]"},
    {NEMO, "{'messages':[" USER ",{'role':'assistant','content':'A'},{'role':'assistant','content':'So:','tool_calls':[{'id':'123456789',"
           "'function':{'name':'f','arguments':'{\\'x'}}]},{'role':'tool','tool_call_id':'123456789','content':'2'}," USER "]}",
     "<s>[INST]Hi[/INST]A</s>So:[TOOL_CALLS][{'name': 'f', 'arguments': {'x, 'id': '123456789'}]</s>"
     "[TOOL_RESULTS]{'content': 2, 'call_id': '123456789'}[/TOOL_RESULTS][INST]Hi[/INST]"},
    {SMALL, "{'messages':[{'role':'system','content':''}," USER ",{'role':'assistant','content':'So:','tool_calls':[{'id':'123456789',"
            "'function':{'name':'f','arguments':'{\\'x\\':1}'}}]},{'role':'tool','tool_call_id':'123456789','content':'2'}," USER "]}",
     "<s>[SYSTEM_PROMPT][/SYSTEM_PROMPT][INST]Hi[/INST]So:[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{'x': 1}</s>"
     "[TOOL_RESULTS]123456789[TOOL_CONTENT]2[/TOOL_RESULTS][INST]Hi[/INST]"},
    // The system text and the tools stand in the last question, be it an empty one.
    {NEMO, "{'messages':[{'role':'system','content':'S'}," USER ",{'role':'assistant','content':'A'}]}", "<s>[INST]S\n\nHi[/INST]A</s>"},
    {NEMO, "{'messages':[{'role':'system','content':'S'},{'role':'assistant','content':'A'}],'tools':[{'function':{'name':'f'}}]}",
     "<s>[AVAILABLE_TOOLS][{'type': 'function', 'function': {'name': 'f'}}][/AVAILABLE_TOOLS][INST]S\n\n[/INST]A</s>"},
    {MIXTRAL, "{'messages':[{'role':'system','content':'S'},{'role':'assistant','content':'G'}," USER "]}",
     "<s>G</s>[INST] S\n\nHi [/INST]"},
    {MIXTRAL, "{'messages':[{'role':'system','content':'S'}]}", "<s>[INST] S\n\n [/INST]"},
    {NEMO, "{'messages':[{'role':'system','content':'S'}," USER ",{'role':'assistant','content':'A'},"
           "{'role':'system','content':'N'}," USER "]}",
     "<s>[INST]Hi[/INST]A</s>[INST]System message:\nN[/INST][INST]S\n\nHi[/INST]"},
    {NEMO, "{'messages':[{'role':'system','content':'S'}," USER ",{'role':'system','content':'N'}]}",
     "<s>[INST]Hi[/INST][INST]S\n\nSystem message:\nN[/INST]"},
    {MIXTRAL, "{'messages':[" USER "," USER "],'tools':[{}]}", "<s>[INST] Hi\n\nHi [/INST]"},
    {MIXTRAL, "{'messages':[" USER ",{'role':'tool','content':'1'}]}", "<s>[INST] Hi\n\nTool result:\n1 [/INST]"},
    {MIXTRAL, "{'messages':[" USER ",{'role':'critic','content':'1'}]}", NULL},
    // Ids of nine characters are made of others, the same for a call and its result.
    {NEMO, "{'messages':[" USER ",{'role':'assistant','tool_calls':[{'id':'call_1','function':{'name':'f','arguments':{'x':1}}}]},"
           "{'role':'tool','tool_call_id':'call_1','content':'2'}]}",
     "<s>[INST]Hi[/INST][TOOL_CALLS][{'name': 'f', 'arguments': {'x': 1}, 'id': '9gD2Dimct'}]</s>"
     "[TOOL_RESULTS]{'content': 2, 'call_id': '9gD2Dimct'}[/TOOL_RESULTS]"},
    {SMALL, "{'messages':[{'role':'system','content':''}," USER ",{'role':'assistant','tool_calls':[{'id':'123456789',"
            "'function':{'name':'f','arguments':{}}}]},{'role':'tool','tool_call_id':'123456789','content':'2'}]}",
     "<s>[SYSTEM_PROMPT][/SYSTEM_PROMPT][INST]Hi[/INST][TOOL_CALLS]f[CALL_ID]123456789[ARGS]{}</s>"
     "[TOOL_RESULTS]123456789[TOOL_CONTENT]2[/TOOL_RESULTS]"},
    // Gemma 4: a result is of the call whose id it gives, or of its number; one of no call is a question's text; a text beside calls stands
    // before them; arguments that were cut off stand as they were written; other roles.
    {GEMMA, "{'messages':[" USER ",{'role':'assistant','content':' So: ','tool_calls':[{'id':'a','function':{'name':'f','arguments':'{\\'x\\': 1}'}},"
            "{'id':'b','function':{'name':'g','arguments':'{\\'y'}}]},{'role':'tool','tool_call_id':'b','content':'2'},"
            "{'role':'tool','tool_call_id':'a','content':'1'}]}",
     "<bos>" GU("Hi") "<|turn>model\nSo:<|tool_call>call:f{x:1}<tool_call|><|tool_call>call:g{{'y}<tool_call|>"
     "<|tool_response>response:f{value:<|'|>1<|'|>}<tool_response|><|tool_response>response:g{value:<|'|>2<|'|>}<tool_response|>"},
    {GEMMA, "{'messages':[" USER ",{'role':'assistant','tool_calls':[{'name':'f','arguments':null},{'name':'g'}]},{'role':'tool','content':'1'},"
            "{'role':'tool','name':'h','content':''},{'role':'tool','content':true}],'enable_thinking':true}",
     "<bos><|turn>system\n<|think|>\n<turn|>\n" GU("Hi") "<|turn>model\n<|tool_call>call:f{}<tool_call|><|tool_call>call:g{}<tool_call|>"
     "<|tool_response>response:f{value:<|'|>1<|'|>}<tool_response|><|tool_response>response:h{value:<|'|><|'|>}<tool_response|>"
     "<|tool_response>response:unknown{value:true}<tool_response|>"},
    {GEMMA_JULY, "{'messages':[" USER ",{'role':'assistant','tool_calls':[{'name':'f','arguments':'{\\'y\\':null}'}]},{'role':'tool','content':'1'}],"
                 "'enable_thinking':true}",
     "<bos><|turn>system\n<|think|>\n<turn|>\n" GU("Hi") "<|turn>model\n<|tool_call>call:f{y:null}<tool_call|>"
     "<|tool_response>response:f{value:<|'|>1<|'|>}<tool_response|><|channel>thought\n"},
    {GEMMA_JULY, "{'messages':[" USER ",{'role':'tool','content':'1'},{'role':'assistant','content':'A'},{'role':'tool','content':'2'}]}",
     "<bos>" GU("Hi") GU("Tool result:\n1") "<|turn>model\nA<turn|>\n" GU("Tool result:\n2") "<|turn>model\n<|channel>thought\n<channel|>"},
    {GEMMA, "{'messages':[{'role':'critic','content':'x'},{'role':'assistant','content':'It '}],'continue_final_message':true}",
     "<bos><|turn>critic\nx<turn|>\n<|turn>model\nIt"},
    {GEMMA | CHAT_BARE, "{'messages':[" USER "],'enable_thinking':false}", "<bos>" GU("Hi") "<|turn>model\n"},
    {GEMMA, "{'messages':[{'role':'user','content':[{'type':'image'}]}]}", NULL},
    {GEMMA, "{'messages':[{'role':'user','content':[{'type':'input_audio'}]}]}", NULL},
    {GEMMA, "{'messages':[" USER ",{'role':'assistant','tool_calls':[{'name':'f'}]},{'role':'tool','content':[{'type':'image'}]}]}", NULL},
    {GEMMA, "{'messages':[" USER ",{'role':'assistant','tool_calls':[{'name':'f'}]},{'role':'tool','content':{'x':1}}]}", NULL},
    {GEMMA, "{'messages':[{'role':'user','content':5}]}", NULL},
    {GEMMA, "{'messages':[" USER "],'tools':[{'function':{'name':'f','description':['x']}}]}", NULL},
    // Efforts as clients name them.
    {EFFORTS, "{'messages':[" USER "],'reasoning_effort':'minimal'}", "<|im_start|>system\n" LOW "<|im_end|>\n" IN OUT35},
    {EFFORTS, "{'messages':[" USER "],'reasoning_effort':'medium'}", IN OUT35},
    {EFFORTS, "{'messages':[" USER "],'reasoning_effort':'none'}", IN OUT3 "<think>\n\n</think>\n\n"},
    {EFFORTS, "{'messages':[" USER "],'reasoning_effort':'low','enable_thinking':false}", IN OUT3 "<think>\n\n</think>\n\n"},
    {EFFORTS, "{'messages':[" USER "],'reasoning_effort':'highest'}", NULL},
    {EFFORTS, "{'messages':[" USER "],'reasoning_effort':''}", NULL},
    {QWEN35, "{'messages':[" USER "],'reasoning_effort':'low'}", IN OUT35},
    {CHAT_CHATML, "{'messages':[" USER "]}", IN OUT3},
    {CHAT_CHATML, "{'messages':[" USER ",{'role':'assistant','content':'It '}],'continue_final_message':true}", IN OUT3 "It "},
    {CHAT_CODER, "{'messages':[{'role':'tool','content':'1'}]}",
     "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<|im_end|>\n" OUT3},
};

static void test_family_cases(void) {
    for (size_t i = 0; i < COUNT(family_cases); i++) {
        const render_case *c = family_cases + i;
        char request[1024], want[2048];
        size_t n = put_quotes(request, c->request), want_n = c->want ? put_quotes(want, c->want) : 0;
        check_render(c->family, request, n, c->want ? want : NULL, want_n, request);
    }
}

// What an application is told of a history that the template cannot say.
static void test_family_changes(void) {
#define ANSWER "{'role':'assistant','content':'A'}"
#define CALLED "{'role':'assistant','content':'','tool_calls':[{'function':{'name':'f','arguments':{}}}]}"
#define NOTE "{'role':'system','content':'N'}"
#define RESULT "{'role':'tool','content':'1'}"
    static const struct { int family; const char *request; int changed; } cases[] = {
        {NEMO, USER "," ANSWER "," USER, 0}, {NEMO, NOTE "," USER, 0}, {NEMO, USER "," CALLED "," RESULT "," ANSWER, 0},
        {NEMO, USER "," USER, CHANGED_JOINED}, {NEMO, USER "," CALLED "," RESULT "," USER, CHANGED_TURNS}, {NEMO, ANSWER "," USER, CHANGED_TURNS},
        {NEMO, NOTE "," USER "," ANSWER, CHANGED_SYSTEM}, {NEMO, NOTE, CHANGED_QUESTION},
        {SMALL, USER "," NOTE "," USER, 0}, {SMALL, USER "," ANSWER "," NOTE "," USER, 0}, {SMALL, ANSWER "," ANSWER, CHANGED_JOINED | CHANGED_TURNS},
        {MIXTRAL, USER "," CALLED "," RESULT, CHANGED_CALLS | CHANGED_RESULTS}, {MIXTRAL, NOTE "," USER, CHANGED_SYSTEM},
        {LLAMA31, USER "," ANSWER "," CALLED "," RESULT "," USER, 0}, {LLAMA31, USER "," USER, 0},
        {CHAT_LLAMA3, USER "," CALLED, CHANGED_CALLS}, {CHAT_ZEPHYR, USER "," RESULT, CHANGED_RESULTS}, {CHAT_CHATML, USER "," RESULT, 0},
        {GPTOSS, NOTE "," USER "," CALLED "," RESULT "," ANSWER, 0}, {GPTOSS, USER "," NOTE, CHANGED_SYSTEM}, {GPTOSS, USER "," RESULT, CHANGED_RESULTS},
        {GPTOSS, "{'role':'assistant','tool_calls':[{'name':'f'},{'name':'g'}]}", CHANGED_CALLS},
        {GEMMA, USER "," NOTE "," USER "," CALLED "," RESULT "," USER, 0}, {GEMMA, USER "," RESULT "," ANSWER, CHANGED_RESULTS},
        {GEMMA, "{'role':'assistant','content':'A','tool_calls':[{'name':'f'}]}," RESULT "," NOTE "," RESULT, CHANGED_CALLS | CHANGED_RESULTS},
        {QWEN35, USER "," NOTE "," USER, CHANGED_SYSTEM}, {QWEN3, USER "," NOTE "," USER "," USER "," CALLED "," RESULT, 0}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char quoted[1024], request[1100];
        marked_text out;
        chat_places at;
        memset(&out, 0, sizeof out);
        put_quotes(quoted, cases[i].request);
        const size_t n = (size_t)snprintf(request, sizeof request, "{\"messages\":[%s]}", quoted);
        const int code = chat_render_at((chat_family)cases[i].family, request, n, CHAT_WHOLE, &out, &at, NULL);
        CHECK(!code && at.changed == cases[i].changed, "family %x, %s: %d, changed %x, not %x", (unsigned)cases[i].family, request, code,
              (unsigned)at.changed, (unsigned)cases[i].changed);
        marked_free(&out);
    }
#undef ANSWER
#undef CALLED
#undef NOTE
#undef RESULT
}

// What templates say outside of their messages.
static void test_outside_texts(void) {
#define TURNS "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
#define ENDS "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    static const struct { const char *text; int family; } templates[] = {
        {TURNS ENDS, CHAT_CHATML}, {"{{ bos_token }}" TURNS ENDS, CHAT_CHATML | CHAT_BOS}, {"{{- bos_token -}}\n" TURNS "\n" ENDS "\n", CHAT_CHATML | CHAT_BOS},
        {"{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}<|im_start|>{{ m.role + '\\n' + m.content }}<|im_end|>\n{% endfor %}" ENDS,
         CHAT_CHATML | CHAT_BOS},
        {"{% if not x is defined %}{% set x = '}}' %}{% endif %}{{ bos_token }}" TURNS ENDS, CHAT_CHATML | CHAT_BOS},
        {"{% set x %}Not said.{% endset %}{% macro y() %}Nor this.{% endmacro %}" TURNS ENDS, CHAT_CHATML},
        {"{% if messages[0].role != 'system' %}A default.{% endif %}" TURNS ENDS, CHAT_CHATML},
        {"Be kind." TURNS ENDS, CHAT_UNKNOWN}, {"{{ bos_token + 'Be kind.' }}" TURNS ENDS, CHAT_UNKNOWN}, {TURNS ENDS "{{ eos_token }}", CHAT_UNKNOWN},
        {"{{ bos_token }}{{ bos_token }}" TURNS ENDS, CHAT_UNKNOWN}, {"{{ greeting | trim }}" TURNS ENDS, CHAT_UNKNOWN},
        {TURNS "{% if add_generation_prompt %}<|im_start|>assistant\n<begin>{% endif %}", CHAT_UNKNOWN},
        {TURNS "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif", CHAT_CHATML}};
    for (size_t i = 0; i < COUNT(templates); i++) {
        int modified, got = detect(templates[i].text, strlen(templates[i].text), &modified);
        CHECK(got == templates[i].family && modified, "%s: family %x, not %x", templates[i].text, (unsigned)got, (unsigned)templates[i].family);
    }
#undef TURNS
#undef ENDS
}

// Families whose turns are no longer what they were once thinking is dropped are not among these.
static const int turn_families[] = {
    QWEN3 | CHAT_LENIENT | CHAT_INSTRUCT, CHAT_CODER, CHAT_CODER | CHAT_NEXT, CHAT_CHATML, CHAT_CHATML | CHAT_SMOL, CHAT_LLAMA3,
    LLAMA31, LLAMA31 | CHAT_TODAY, CHAT_MISTRAL | CHAT_SPACED, MIXTRAL, NEMO | CHAT_SPACED, NEMO, SMALL, CHAT_ZEPHYR, EFFORTS,
    GEMMA | CHAT_BARE, GEMMA_JULY | CHAT_BARE, CHAT_GLM, CHAT_GLM | CHAT_LINED, GPTOSS,
    CHAT_DEEPSEEK | CHAT_LINED, CHAT_DEEPSEEK | CHAT_QUIET, CHAT_DEEPSEEK | CHAT_QUIET | CHAT_BARE, CHAT_LAGUNA | CHAT_QUIET,
    CHAT_LAGUNA | CHAT_QUIET | CHAT_LINED};

// A conversation turn by turn is what the template renders of the whole; without thinking, where old thinking is left out.
static void check_family_turns(int family, const char *system, const json *tools) {
    const int spaced = family & CHAT_NEMO && family & CHAT_SPACED, think = family & CHAT_ANSWER_TURNS ? MOTE_THINK_OFF : MOTE_THINK_DEFAULT;
    const char *const lined = family & CHAT_LAGUNA ? "\nA\n" : family & CHAT_GLM ? "\nA" : "A";
    const char *const headed = "<|channel|>final<|message|>A";
    const char *const answer = family & CHAT_EFFORT ? "r\n</think>\n\nA" : family & CHAT_HARMONY ? headed : spaced ? " A" : family & CHAT_LINED ? lined : "A";     // as the model writes it
    marked_text out;
    buf request = {0};
    memset(&out, 0, sizeof out);
    turn first = {.system = system, .tools = tools, .role = "user", .message = " one\n", .think = think, .first = 1, .effort = "low"};
    turn second = {.role = "user", .message = "two", .think = think};
    CHECK(!chat_turn((chat_family)family, &first, &out, NULL), "family %x: first turn", (unsigned)family);
    put_words(&out, answer);
    put_words(&out, chat_marks_of(family)->turn_end);
    put_words(&out, turn_gap((chat_family)family));
    CHECK(!chat_turn((chat_family)family, &second, &out, NULL), "family %x: second turn", (unsigned)family);
    buf_text(&request, think ? "{\"enable_thinking\":false,\"messages\":[" : "{\"reasoning_effort\":\"low\",\"messages\":[");
    if (system) buf_text(&request, "{\"role\":\"system\",\"content\":\"");
    if (system) buf_text(&request, system), buf_text(&request, "\"},");
    buf_text(&request, "{\"role\":\"user\",\"content\":\" one\\n\"},"
                       "{\"role\":\"assistant\",\"content\":\"A\",\"reasoning_content\":\"");
    if (!(family & CHAT_LAGUNA)) buf_text(&request, "r");       // that says all of it
    buf_text(&request, "\"},{\"role\":\"user\",\"content\":\"two\"}]");
    if (tools) buf_text(&request, ",\"tools\":"), put_json(tools, 0, &request, NULL);
    buf_text(&request, "}");
    check_render(family, request.data, request.size, out.text.data, out.text.size, "turns and render");
    marked_free(&out);
    buf_free(&request);
}

static void test_family_turns(void) {
    static const char list[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\",\"parameters\":{}}}]";
    json tools;
    if (!CHECK(!json_parse(&tools, list, sizeof list - 1, "tools", NULL), "tools")) return;
    for (size_t i = 0; i < COUNT(turn_families); i++) {
        const int f = turn_families[i], moves = f & CHAT_NEMO;      // system text and tools go with the last question
        check_family_turns(f, NULL, NULL);
        if (!moves) check_family_turns(f, "S", NULL);
        if (!moves && !(f & CHAT_SMALL)) check_family_turns(f, NULL, &tools);
        turn tool = {.role = "tool", .message = "1"};
        marked_text out;
        memset(&out, 0, sizeof out);
        int code = chat_turn((chat_family)f, &tool, &out, NULL);
        int places = f & (QWEN3 | QWEN35 | CHAT_CODER | CHAT_CHATML | CHAT_DATED | CHAT_GEMMA | CHAT_GLM | CHAT_DEEPSEEK | CHAT_LAGUNA);
        CHECK(places ? !code && out.text.size : code == MOTE_EINVAL && !out.text.size, "family %x: a tool's turn: %d", (unsigned)f, code);
        marked_free(&out);
    }
    json_free(&tools);
}

// Every byte of a request that stands in the prompt is marked: here all texts consist of these.
static void test_family_marks(void) {
    static const char S[] = "\xC2\xA7", request[] =
        "{'tools':[{'type':'function','function':{'name':'~','description':'~','~':['~'],'parameters':{'~':'~','properties':"
        "{'~':{'type':'~','description':'~','~':{'~':1}}}}}}],'messages':[{'role':'system','content':'~'},"
        "{'role':'user','content':'~'},{'role':'assistant','content':'~','reasoning_content':'~','tool_calls':[{'id':'~','function':"
        "{'name':'~','arguments':{'~':'~'}}}]},{'role':'tool','tool_call_id':'~','content':'~'},"
        "{'role':'assistant','content':'~'},{'role':'user','content':'~'}]}";
    buf text = {0};
    for (const char *p = request; *p; p++) buf_text(&text, *p == '~' ? S : *p == '\'' ? "\"" : (char[]){*p, 0});
    for (size_t i = 0; i < COUNT(turn_families); i++) {
        marked_text out;
        size_t count, at = 0, found = 0;
        memset(&out, 0, sizeof out);
        if (turn_families[i] & CHAT_MISTRAL && !(turn_families[i] & (CHAT_NEMO | CHAT_SMALL))) continue;      // no tools
        int code = chat_render((chat_family)turn_families[i], text.data, text.size, &out, NULL);
        CHECK(!code, "family %x: %d", (unsigned)turn_families[i], code);
        const text_range *r = outside_of(&out, &count);
        for (size_t k = 0; k + 1 < out.text.size; k++) {
            if (memcmp(out.text.data + k, S, 2)) continue;
            while (at < count && r[at].end <= k) at++;
            CHECK(at < count && r[at].begin <= k && r[at].end >= k + 2, "family %x: byte %zu", (unsigned)turn_families[i], k);
            found++;
        }
        CHECK(found >= 4, "family %x: %zu texts", (unsigned)turn_families[i], found);
        marked_free(&out);
    }
    buf_free(&text);
}

// Calls and results that turns of a timeline hold, which mote_ask counts before it takes a result.
static void test_family_counts(void) {
    static const struct { int family; const char *turn; int calls, results; } turns[] = {
        {LLAMA31, H("assistant") "{\"name\": \"f\", \"parameters\": {}}", 1, 0},
        {LLAMA31, H("assistant") "The \"name\" is f", 0, 0},
        {LLAMA31, H("assistant") "So: {\"name\": \"f\", \"parameters\": {}}; {\"name\": \"f\", \"parameters\": {}}.", 2, 0},
        {LLAMA31, H("ipython") "\"1\"", 0, 1},
        {LLAMA31, H("user") "{\"name\": 1}", 0, 0},
        {CHAT_CODER, OUT3 "\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n<tool_call>\n<function=f>\n</function>\n</tool_call>", 2, 0},
        {CHAT_CODER, "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>\n", 0, 2},
        {CHAT_CODER | CHAT_NEXT, "<|im_start|>user\n<tool_response>\n1\n</tool_response>", 0, 1},
        {CHAT_CHATML, "<|im_start|>tool\n1", 0, 1},
        {CHAT_CHATML, OUT3 "<tool_call>{\"name\": \"f\"}</tool_call>", 1, 0},
        {CHAT_ZEPHYR, "<|assistant|>\nA\0B", 0, 0},
        {GPTOSS, "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>", 1, 0},
        {GPTOSS, "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{'to=", 1, 0},
        {GPTOSS, "<|start|>assistant<|channel|>final<|message|>to=functions.f<|message|>", 0, 0},
        {GPTOSS, "<|start|>functions.f to=assistant<|channel|>commentary<|message|>\"1\"<|end|>", 0, 1},
        {GPTOSS, "<|start|>user<|message|>to=assistant<|end|>", 0, 0},
        {GEMMA, "<|turn>model\n<|tool_call>call:f{}<tool_call|><|tool_call>call:g{}<tool_call|><|tool_response>response:f{value:1}<tool_response|>", 2, 1},
        {GEMMA, "<|turn>model\n<|channel>thought\nSo<channel|><|tool_call>call:f{}<tool_call|><|tool_response>", 1, 0},
    };
    for (size_t i = 0; i < COUNT(turns); i++) {
        slice turn = slice_of(turns[i].turn, strlen(turns[i].turn));
        int calls = turn_calls((chat_family)turns[i].family, turn), results = turn_results((chat_family)turns[i].family, turn);
        CHECK(calls == turns[i].calls && results == turns[i].results, "%s: %d calls, %d results", turns[i].turn, calls, results);
    }
}

// Tools that gpt-oss's template refuses: without a description, or without what wraps them.
static void test_bare_tools(void) {
    static const char request[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"tools\":[{\"name\":\"f\",\"description\":null},{\"function\":{\"name\":\"g\"}}]}";
    marked_text out;
    memset(&out, 0, sizeof out);
    CHECK(!chat_render(CHAT_HARMONY, request, sizeof request - 1, &out, NULL) &&
          slice_has(slice_of(out.text.data, out.text.size), "namespace functions {\n\ntype f = () => any;\n\ntype g = () => any;\n\n} //"), "tools without a description");
    marked_free(&out);
}

static void test_families(void) {
    test_bare_tools();
    test_family_cases();
    test_family_counts();
    test_family_changes();
    test_outside_texts();
    test_family_turns();
    test_family_marks();
    for (size_t i = 0; i < COUNT(family_files); i++) {
        buf text = {0};
        buf_text(&text, family_files[i].text);
        check_detect(family_files[i].name, family_files[i].family, 0, &text);
        check_goldens("tests/fixtures/chats", family_files[i].name, family_files[i].family, NULL);
        buf_free(&text);
    }
}
