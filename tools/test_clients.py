#!/usr/bin/env python3
"""Other people's clients against mote serve and the bundled model: openai, anthropic, lm-eval, llama-benchy.

    tools/test_clients.py ./mote

Needs the packages of tools/clients.txt; nothing but those is loaded from the network. `make test-clients` sees to that.
"""
import hashlib
import json
import os
import subprocess
import sys
import tempfile

import anthropic
import openai

from serving import serve

ASK = [{"role": "user", "content": "What is FP8?"}]
GREEDY = {"extra_body": {"temperature": 0}}
ANSWER = "FP8 is a floating point number in 8 bits"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
SCHEMA = {"type": "object", "properties": {"sure": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}, "list": {"type": "array", "maxItems": 2,
          "items": {"type": "string", "maxLength": 5}}}, "required": ["sure", "kind", "list"], "additionalProperties": False}


def refused(call, kind, holds):
    try:
        call()
    except kind as e:
        assert holds in str(e), e
        return
    raise AssertionError(f"not refused: {holds}")


def chat(url):
    c = openai.OpenAI(base_url=url + "/v1", api_key="any")
    assert c.models.list().data[0].id == "demo" and c.models.retrieve("demo").id == "demo"
    refused(lambda: c.models.retrieve("org/other"), openai.NotFoundError, "there is no model")
    whole = c.chat.completions.create(model="demo", messages=ASK, temperature=0)
    assert ANSWER in whole.choices[0].message.content and whole.choices[0].finish_reason == "stop"
    assert "eight bits" in whole.choices[0].message.reasoning_content
    text, events = "", 0
    for e in c.chat.completions.create(model="demo", messages=ASK, temperature=0, stream=True, stream_options={"include_usage": True}):
        if e.choices:
            text += e.choices[0].delta.content or ""
            events += e.choices[0].finish_reason is None
        usage = e.usage
    assert text == whole.choices[0].message.content
    assert events == usage.completion_tokens, (events, usage)          # the end has none, the role has one
    assert usage.prompt_tokens_details.cached_tokens > 0
    for seed in range(3):
        r = c.chat.completions.create(model="demo", messages=ASK, temperature=1.5, seed=seed, max_tokens=200, extra_body={"enable_thinking": seed > 1},
                                      response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}})
        value = json.loads(r.choices[0].message.content)
        assert set(value) == {"sure", "kind", "list"} and value["kind"] in "ab" and len(value["list"]) <= 2, value
    tools = [{"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}]
    towns = {"type": "object", "properties": {"city": {"enum": ["Bonn", "Ulm"]}}, "required": ["city"]}
    r = c.chat.completions.create(model="demo", messages=ASK, tool_choice="required", parallel_tool_calls=False, max_tokens=100, extra_body={"enable_thinking": False},
                                  tools=[{"type": "function", "function": {"name": "weather", "parameters": towns}}])
    call = r.choices[0].message.tool_calls[0].function
    assert call.name == "weather" and json.loads(call.arguments)["city"] in ("Bonn", "Ulm") and r.choices[0].finish_reason == "tool_calls", r
    begun = ASK + [{"role": "assistant", "content": "FP8 is a floating"}]
    r = c.chat.completions.create(model="demo", messages=begun, temperature=0, extra_body={"continue_final_message": True, "add_generation_prompt": False})
    assert r.choices[0].message.content.startswith(" point number"), r
    history = ASK + [{"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {
        "name": "weather", "arguments": '{"city": "B"}'}}]}, {"role": "tool", "tool_call_id": "1", "content": "sun"}]
    assert c.chat.completions.create(model="demo", messages=history, tools=tools, max_tokens=5).usage.completion_tokens == 5
    refused(lambda: c.chat.completions.create(model="demo", messages=ASK, n=2), openai.BadRequestError, "n must be 1")
    refused(lambda: c.chat.completions.create(model="demo", messages=[]), openai.BadRequestError, "messages")
    refused(lambda: c.chat.completions.create(model="demo", messages=[{"role": "user", "content": "x " * 9000}]), openai.BadRequestError,
            "maximum context length")
    r = c.completions.create(model="demo", prompt="Once upon", max_tokens=3, temperature=0, echo=True, logprobs=2)
    assert r.choices[0].text == "Once upon a time," and r.choices[0].logprobs.token_logprobs[0] is None
    r = c.chat.completions.create(model="demo", messages=ASK, max_tokens=2, logprobs=True, top_logprobs=2)
    assert len(r.choices[0].logprobs.content[0].top_logprobs) == 2


def responses(url):
    c = openai.OpenAI(base_url=url + "/v1", api_key="any")
    r = c.responses.create(model="demo", input="What is FP8?", temperature=0)
    assert ANSWER in r.output_text and [i.type for i in r.output] == ["reasoning", "message"]
    with c.responses.stream(model="demo", input=ASK, temperature=0) as s:
        kinds = [e.type for e in s]
        assert s.get_final_response().output_text == r.output_text
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed" and "response.reasoning_text.delta" in kinds
    r = c.responses.create(model="demo", input="x", text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}, reasoning={"effort": "none"})
    assert set(json.loads(r.output_text)) == {"sure", "kind", "list"}
    history = ASK + [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                     {"type": "function_call_output", "call_id": "c", "output": "sun"}]
    assert c.responses.create(model="demo", input=history, max_output_tokens=3).status == "incomplete"
    with c.responses.stream(model="demo", input="x " * 9000) as s:
        failed = [e for e in s if e.type == "response.failed"]
    assert failed[0].response.error.code == "context_length_exceeded", failed
    refused(lambda: c.responses.create(model="demo", input="x", previous_response_id="r"), openai.BadRequestError, "previous_response_id")


def messages(url):
    c = anthropic.Anthropic(base_url=url, api_key="any")
    r = c.messages.create(model="demo", max_tokens=100, messages=ASK, **GREEDY)
    assert ANSWER in r.content[0].text and r.stop_reason == "end_turn" and len(r.content) == 1
    with c.messages.stream(model="demo", max_tokens=100, messages=ASK, **GREEDY, thinking={"type": "enabled", "budget_tokens": 1024}) as s:
        for _ in s:
            pass
        final = s.get_final_message()
    assert [b.type for b in final.content] == ["thinking", "text"] and ANSWER in final.content[1].text
    again = ASK + [{"role": "assistant", "content": [b.model_dump(include={"type", "text", "thinking", "signature"}) for b in final.content]},
                   {"role": "user", "content": "And BF16?"}]
    assert c.messages.create(model="demo", max_tokens=5, messages=again).usage.cache_read_input_tokens > 10
    tools = [{"name": "weather", "input_schema": PARAMETERS}]
    n = c.messages.count_tokens(model="demo", messages=ASK, tools=tools).input_tokens
    assert n > c.messages.count_tokens(model="demo", messages=ASK).input_tokens + 100
    assert c.messages.create(model="demo", max_tokens=60, messages=ASK, **GREEDY, stop_sequences=[" point"]).stop_sequence == " point"
    begun = ASK + [{"role": "assistant", "content": "FP8 is a floating"}]
    assert c.messages.create(model="demo", max_tokens=9, messages=begun, **GREEDY).content[0].text.startswith(" point number")
    refused(lambda: c.messages.create(model="demo", max_tokens=-1, messages=ASK), anthropic.BadRequestError, "max_tokens")
    m = c.messages.create(model="demo", max_tokens=0, messages=ASK)                     # reads the prompt alone
    assert not m.content and m.stop_reason == "max_tokens" and m.usage.output_tokens == 0, m
    refused(lambda: c.messages.create(model="demo", max_tokens=1, messages=[{"role": "user", "content": "x " * 9000}]), anthropic.BadRequestError,
            "prompt is too long")


def embeddings(url):
    c = openai.OpenAI(base_url=url + "/v1", api_key="any")
    r = c.embeddings.create(model="demo", input=["FP8", "A router chooses experts."])          # the client asks for base64
    assert [d.index for d in r.data] == [0, 1] and all(abs(sum(x * x for x in d.embedding) - 1) < 1e-5 for d in r.data), r
    one = c.embeddings.create(model="demo", input="FP8", encoding_format="float", dimensions=8, extra_body={"pooling": "last"})
    length = sum(x * x for x in r.data[0].embedding[:8]) ** 0.5
    assert all(abs(a / length - b) < 1e-6 for a, b in zip(r.data[0].embedding, one.data[0].embedding)) and len(one.data[0].embedding) == 8, one
    refused(lambda: c.embeddings.create(model="demo", input=[]), openai.BadRequestError, "is empty")


def run(command, folder):
    environment = dict(os.environ, HOME=folder, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    r = subprocess.run([os.path.join(os.path.dirname(sys.executable), command[0])] + command[1:], env=environment, capture_output=True, text=True)
    assert r.returncode == 0, r.stdout + r.stderr
    return r.stdout


def lm_eval(url, folder):
    rows = [{"q": "Once upon a", "c": [" model", " time", " bit"], "a": 1}, {"q": "They lived happily ever", "c": [" after", " GPU"], "a": 0},
            {"q": "FP8 is a floating point number in 8", "c": [" dogs", " bits"], "a": 1}]
    data = os.path.join(folder, "own.jsonl")
    with open(data, "w") as f:
        f.writelines(json.dumps(r) + "\n" for r in rows)
    with open(os.path.join(folder, "own.yaml"), "w") as f:
        f.write(f"task: own\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\ntest_split: test\noutput_type: multiple_choice\n"
                'doc_to_text: "{{q}}"\ndoc_to_choice: "{{c}}"\ndoc_to_target: "{{a}}"\nmetric_list: [{metric: acc, higher_is_better: true}]\n')
    out = run(["lm_eval", "--model", "local-completions", "--model_args",
               f"model=demo,base_url={url}/v1/completions,tokenizer=models/demo,tokenizer_backend=huggingface,num_concurrent=2,max_length=4096",
               "--include_path", folder, "--tasks", "own", "--batch_size", "2"], folder)
    line = next(l for l in out.splitlines() if l.startswith("|own"))
    assert line.split("|")[7].strip() in ("1", "1.0000"), out


def benchy(url, folder):
    book = "http://book.invalid/"                      # found in its cache
    cache = os.path.join(folder, ".cache", "llama-benchy")
    os.makedirs(cache)
    with open(os.path.join(cache, hashlib.md5(book.encode()).hexdigest() + ".txt"), "w") as f:
        f.write("The quick brown fox jumps over the lazy dog. " * 1000)
    out = run(["llama-benchy", "--base-url", url + "/v1", "--model", "mote/demo", "--served-model-name", "demo", "--tokenizer", "models/demo",
               "--book-url", book, "--pp", "128", "--tg", "32", "--runs", "1", "--skip-coherence", "--exact-tg", "--no-cache", "--format", "json",
               "--save-result", os.path.join(folder, "benchy.json"), "--exit-on-first-fail"], folder)
    with open(os.path.join(folder, "benchy.json")) as f:
        assert "tg" in f.read(), out


def main():
    process, url = serve(sys.argv[1])
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, test in (("chat completions", lambda: chat(url)), ("responses", lambda: responses(url)), ("messages", lambda: messages(url)), ("embeddings", lambda: embeddings(url)),
                               ("lm-eval", lambda: lm_eval(url, folder)), ("llama-benchy", lambda: benchy(url, folder))):
                test()
                print(f"{name}: passed", flush=True)
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
