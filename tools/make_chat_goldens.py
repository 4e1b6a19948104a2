#!/usr/bin/env python3
"""Renders chat templates as transformers does: the goldens of tests/text/chat_families.c.

    make_chat_goldens.py TEMPLATE.jinja...

Beside each template comes a TEMPLATE.json: a list of requests, each with what the template makes of it, or its error. Needs jinja2.
"""
import json
import pathlib
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
    "unicode": {"messages": [user('你好 👋 <b>&"quoted"</b>')]},
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


def main():
    for path in map(pathlib.Path, sys.argv[1:]):
        template = environment().from_string(path.read_text())
        cases = []
        for name, args in CASES.items():
            case = {"case": name, "args": args}
            try:
                case["rendered"] = template.render(bos_token="<s>", eos_token="</s>", **{"add_generation_prompt": True, **args})
            except Exception as e:
                case["error"] = f"{type(e).__name__}: {e}"
            cases.append(case)
        path.with_suffix(".json").write_text(json.dumps(cases, ensure_ascii=False, indent=0) + "\n")


if __name__ == "__main__":
    main()
