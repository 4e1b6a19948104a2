#!/usr/bin/env python3
"""Renders chat templates as transformers does: the goldens of tests/text/chat_families.c.

    make_chat_goldens.py TEMPLATE.jinja...

Beside each template comes a TEMPLATE.json: a list of requests by their names, each with what the template makes of it, or its error; and one
requests.json, which has the requests of all. Needs jinja2.
"""
import json
import pathlib
import re
import sys

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": " Get the weather ", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "City name", "minLength": 1},
                                     "days": {"type": "integer", "enum": [1, 7]}}, "required": ["city"]}}}
CLOCK = {"type": "function", "function": {"name": "clock", "strict": True, "parameters": {"type": "object", "properties": {}}}}


def user(text):
    return {"role": "user", "content": text}


def answer(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


def call(name, number, **arguments):
    return {"id": f"call0000{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(text, number):
    return {"role": "tool", "content": text, "tool_call_id": f"call0000{number}"}


ASKED = [user("Weather in Zürich?"), answer("", tool_calls=[call("get_weather", 1, city="Zürich", days=2, deep=[True, None], fast=True, near=None)]),
         result('{"temp": 21.5}', 1)]
CASES = {
    "user": {"messages": [user("Hello")]},
    "system": {"messages": [system(" Be brief.\n"), user(" Hi \n")]},
    "empty system": {"messages": [system(""), user("Hi")]},
    "turns": {"messages": [user("1+1?"), answer(" 2\n"), user("and 2+2?"), answer("4"), user("1+1?")]},
    "thinking in the text": {"messages": [user("1+1?"), answer("<think>\neasy\n</think>\n\n2"), user("and 2+2?")]},
    "thinking": {"messages": [user("1+1?"), answer("2", reasoning_content="\neasy "), user("and 2+2?"), answer("4", reasoning_content="so")],
                 "add_generation_prompt": False},
    "answered": {"messages": [system("S"), user("1+1?"), answer("2")], "add_generation_prompt": False},
    "off": {"messages": [user("Hello")], "enable_thinking": False},
    "on": {"messages": [user("Hello")], "enable_thinking": True},
    "low": {"messages": [system("S"), user("Hello")], "reasoning_effort": "low"},
    "medium": {"messages": [user("Hello")], "reasoning_effort": "medium"},
    "xhigh": {"messages": [user("Hello")], "reasoning_effort": "xhigh", "tools": [CLOCK]},
    "dropped": {"messages": [user("a"), answer("b", reasoning_content="c"), user("d")], "preserve_thinking": False},
    "kept": {"messages": [user("a"), answer("b", reasoning_content="c"), user("d")], "preserve_thinking": True},
    "tools": {"messages": [user("Weather in Zürich?")], "tools": [WEATHER, CLOCK]},
    "tools and system": {"messages": [system("S"), user("Hi"), answer("Hi"), user("Weather?")], "tools": [WEATHER]},
    "call": {"messages": ASKED, "tools": [WEATHER]},
    "after a call": {"messages": ASKED + [answer("Fine."), user("Thanks")], "tools": [WEATHER]},
    "call with text": {"messages": ASKED[:1] + [answer(" Let me see. ", tool_calls=[call("clock", 1)]), result("noon", 1)], "tools": [CLOCK]},
    "two calls": {"messages": [user("Both?"), answer("", tool_calls=[call("clock", 1), call("get_weather", 2, city='"B"')]),
                               result("noon", 1), result("sun", 2)], "tools": [WEATHER, CLOCK]},
    "no arguments": {"messages": [user("Go"), answer("", tool_calls=[{"id": "call00001", "type": "function", "function": {
        "name": "clock", "arguments": ""}}]), result("noon", 1)]},
    "call without a tool": {"messages": [user("Go"), answer("Well"), result("noon", 1), result("later", 2), answer("ok"), user("Hm")]},
    "two rounds": {"messages": ASKED + [answer("", tool_calls=[call("clock", 2)]), result("noon", 2), answer("Fine."), user("Both?"),
                                        answer("", reasoning_content="both", tool_calls=[call("clock", 3), call("clock", 4)]),
                                        result("one", 3), result("two", 4)], "tools": [WEATHER, CLOCK]},
    "thought before a call": {"messages": ASKED[:1] + [answer("So:", reasoning_content=" clock\n", tool_calls=[call("clock", 1)]), result("noon", 1)]},
    "cleared": {"messages": [user("a"), answer("b", reasoning_content="c"), user("d")], "clear_thinking": True},
    "not cleared": {"messages": [user("a"), answer("b", reasoning_content="c"), user("d")], "clear_thinking": False},
    "thinking flag": {"messages": [user("Hello"), answer("Hi"), user("Hello")], "thinking": True},
    "system in the middle": {"messages": [system("S"), user("Hi"), answer("Hello"), system("N"), user("Hi")]},
    "unicode": {"messages": [user('你好 👋 <b>&"quoted"</b>')]},
}


ORDER = {"type": "function", "function": {"name": "order", "description": "Orders.", "parameters": {"type": "object", "required": ["what", "type"], "properties": {
    "what": {"type": "string", "enum": ["tea", "b<|turn>"], "description": ""}, "type": {"type": "string", "nullable": True}, "Zip": {"type": "number"},
    "any": {"description": "anything"}, "several": {"type": ["string", "null"]}, "list": {"type": "array", "description": "l", "items": {
        "type": "object", "properties": {"b": {"type": "boolean"}, "a": {"type": "array", "items": {"type": ["string", "integer"], "default": None}},
                                         "description": {"type": "string"}}, "required": ["a"], "minItems": 1, "x-more": {"B": [1.0, "s"], "a": True}}},
    "where": {"type": "object", "nullable": False, "properties": {"street": {"type": "string"}, "required": {"type": "boolean"}}, "required": ["street"]},
    "open": {"type": "object", "description": "open", "extra": {"type": "string", "description": "more"}}, "empty": {"type": "array", "items": {}}}},
    "response": {"type": "object", "description": "What came."}}}
VALUES = {"text": 'say "hi"\n{a:1}', "Number": -1.50, "big": 1e30, "no": False, "list": [[], {}, ["x", {"k": "v", "A": 2}]], "b": {}, "B": {"z": 1, "y": "<|\"|>"}}
# Of Gemma 4 alone: its values, and where its turns begin and end.
GEMMA_CASES = {
    "schemas": {"messages": [user("Tea")], "tools": [ORDER]},
    "values": {"messages": [user("Tea"), answer(None, tool_calls=[call("order", 1, **VALUES)]), {**result("", 1), "content": [
        {"type": "text", "text": " a "}, {"type": "text", "text": "b"}]}], "tools": [CLOCK]},
    "parts": {"messages": [user([{"type": "text", "text": " a "}, {"type": "text", "text": "b\n"}]), answer([{"type": "text", "text": " c"}]), user("d")]},
    "channels": {"messages": [user("<|channel>x<channel|>"), answer(" <|channel>thought\nno<channel|> A <|channel>more<channel|>b<channel|>c "), user("d")]},
    "thinking calls": {"messages": [user("a"), answer("", reasoning_content="old", tool_calls=[call("clock", 1)]), result("1", 1), user("b"),
                                    answer("", reasoning_content="new", tool_calls=[call("clock", 2)]), result("2", 2)], "enable_thinking": True, "tools": [CLOCK]},
    "thinking kept": {"messages": [user("a"), answer("", reasoning="old", tool_calls=[call("clock", 1)]), result("1", 1), answer("B", reasoning="x"),
                                   user("c")], "preserve_thinking": True},
    "rounds": {"messages": [user("a"), answer("", tool_calls=[call("clock", 1)]), result("1", 1), answer("", tool_calls=[call("clock", 2)]),
                            result("2", 2), answer("B"), user("c")]},
    "results and a question": {"messages": [user("a"), answer("", tool_calls=[call("clock", 1)]), result("1", 1), user("b")]},
    "no results": {"messages": [user("a"), answer("", tool_calls=[call("clock", 1)])]},
    "no results and a question": {"messages": [user("a"), answer("", tool_calls=[call("clock", 1)]), user("b")]},
    "names": {"messages": [user("a"), answer("", tool_calls=[call("clock", 1), call("other", 2)]), {**result("1", 1), "name": "x"},
                           {"role": "tool", "content": None, "tool_call_id": "call00002"}]},
    "two answers": {"messages": [user("a"), answer("B"), answer("C"), user("d"), answer("E"), answer("", tool_calls=[call("clock", 1)]), result("1", 1)]},
    "a late system": {"messages": [user("a"), system(" S "), {"role": "developer", "content": "D"}, user("b")], "enable_thinking": True},
    "system parts": {"messages": [system([{"type": "text", "text": " a "}, {"type": "text", "text": "b"}]), user("c")]},
}


# Arguments as the text that DeepSeek's templates want.
DEEPSEEK_CASES = {
    "calls as text": {"messages": [user("Go"), answer(None, tool_calls=[{"id": "call00001", "type": "function", "function": {"name": "clock", "arguments": '{"a":1}'}},
                                                                   {"id": "call00002", "type": "function", "function": {"name": "clock", "arguments": "{}"}}]),
                                   result("noon", 1), result("one", 2)]},
    "answered call": {"messages": [user("Go"), answer(None, tool_calls=[{"id": "call00001", "type": "function", "function": {"name": "clock", "arguments": '{"a":1}'}}]),
                                   result("noon", 1), answer("It is noon."), user("Thanks")]},
}


# Thinking that is said again.
LAGUNA_CASES = {
    "thoughts": {"messages": [user("a"), answer("b", reasoning_content="c"), user("d"), answer(" e\n", reasoning=" f\n", reasoning_content="g"), user("h"),
                              answer("<think>\ni\n</think>\n\nj"), user("k")], "enable_thinking": True},
    "thinking and tools": {"messages": [system("S "), user("a"), answer("", reasoning_content="c", tool_calls=[call("clock", 1)]), result("noon", 1)],
                           "tools": [CLOCK], "enable_thinking": True},
    "tools alone": {"messages": [system(" "), user("a")], "tools": [CLOCK]},
    "thinking alone": {"messages": [system(""), user("a")], "enable_thinking": True},
}


def environment():
    def refuse(message):
        raise ValueError(message)

    def tojson(x, ensure_ascii=False, indent=None):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = refuse
    return env


def write_goldens(path, cases, requests):
    """Writes the cases, and adds their requests to those of all files beside it: one of a name is the same in all."""
    shared = path.with_name("requests.json")
    known = json.loads(shared.read_text()) if shared.exists() else {}
    for name, args in requests.items():
        assert known.setdefault(name, args) == args, f"{name} is another request in {shared}"
    path.write_text(json.dumps(cases, ensure_ascii=False, indent=0) + "\n")
    shared.write_text("{\n" + ",\n".join(f"{json.dumps(k, ensure_ascii=False)}: {json.dumps(v, ensure_ascii=False)}" for k, v in known.items()) + "\n}\n")


def main():
    for path in map(pathlib.Path, sys.argv[1:]):
        text = re.sub(r"(?<=\bend)generation\b", "if", re.sub(r"(?<={%-) generation\b", " if true", path.read_text()))   # marks of training
        template = environment().from_string(text)
        bos = "<bos>" if "<|turn>" in text else "<\uff5cbegin\u2581of\u2581sentence\uff5c>" if "<\uff5c" in text else "<s>"
        cases, requests = [], {**CASES, **(GEMMA_CASES if bos == "<bos>" else DEEPSEEK_CASES if "\uff5c" in bos else LAGUNA_CASES if "<available_tools>" in text else {})}
        for name, args in requests.items():
            case = {"case": name}
            try:
                case["rendered"] = template.render(bos_token=bos, eos_token="</s>", **{"add_generation_prompt": True, **args})
            except Exception as e:
                case["error"] = f"{type(e).__name__}: {e}"
            cases.append(case)
        write_goldens(path.with_suffix(".json"), cases, requests)


if __name__ == "__main__":
    main()
