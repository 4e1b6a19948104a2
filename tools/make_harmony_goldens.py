#!/usr/bin/env python3
"""Renders gpt-oss's chat template, and has openai-harmony read answers: goldens of tests/text/chat_families.c and chat_streams.c.

    make_harmony_goldens.py TEMPLATE.jinja TOKENIZER.json

tests/fixtures/chats/gpt-oss.json: requests as make_chat_goldens.py has them, with what the template makes of each. Where openai-harmony
renders the same conversation in another way, its first differing words stand beside ("harmony": [the template's, its]); mote follows the
template. tests/fixtures/chats/gpt-oss.answers.json: what a model writes, and its messages as openai-harmony reads them.

Needs jinja2 and openai-harmony, whose vocabulary is taken from the tokenizer.json instead of the network.
"""
import base64
import json
import os
import pathlib
import sys
import tempfile

from make_chat_goldens import ASKED, CASES, CLOCK, WEATHER, answer, call, environment, result, system, user, write_goldens

DAY = "2026-01-02"
SPECIAL = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"


def tool(name, description, **parameters):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def of(properties, required=()):
    return {"messages": [user("Hi")], "tools": [tool("f", "Does it.", type="object", properties=properties, required=list(required))]}


TEXT, NUMBER, WHOLE, SWITCH = {"type": "string"}, {"type": "number"}, {"type": "integer"}, {"type": "boolean"}
NOON = tool("clock", "The time")
TOOLS = {
    "plain types": of({"a": TEXT, "b": NUMBER, "c": WHOLE, "d": SWITCH, "e": {}, "f": {"type": "null"}, "g": True}, ["a", "c"]),
    "enums": of({"a": {"type": "string", "enum": ["x", "y"], "default": "x"}, "b": {"type": "string", "enum": [1, 2.5, None, True]},
                 "c": {"type": "string", "enum": [], "nullable": True}, "d": {"type": "integer", "enum": [1, 7], "default": "1"}}),
    "lists": of({"a": {"type": "array", "items": TEXT}, "b": {"type": "array", "items": NUMBER, "nullable": True}, "c": {"type": "array"},
                 "d": {"type": "array", "items": {"type": "array", "items": WHOLE}}, "e": {"type": "array", "nullable": True},
                 "f": {"type": "array", "items": {"type": "string", "enum": ["a"]}}, "g": {"type": "array", "items": {}},
                 "h": {"type": "array", "items": {"type": "number", "oneOf": [TEXT]}}, "i": {"type": "array", "items": {"type": ["object", "object"]}}}),
    "objects": of({"a": {"type": "object"}, "b": {"type": "object", "properties": {"k": TEXT, "l m": {"type": "object", "properties": {
        "n": SWITCH}}}, "required": ["k"]}, "c": {"type": "array", "items": {"type": "object", "properties": {"q": WHOLE}}},
        "d": {"type": "array", "items": {"type": "object", "properties": {"long": {"type": "string", "enum": ["eins", "zwei", "drei", "fünf"]}}}}}),
    "nullable": of({"a": {"type": "string", "nullable": True}, "b": {"type": "number", "nullable": True}, "c": {"type": ["string", "null"]},
                    "d": {"type": ["integer"]}, "e": {"type": [], "oneOf": [TEXT]}, "f": {"anyOf": [TEXT, {"type": "null"}]}}),
    "one of": of({"a": {"oneOf": [TEXT, NUMBER]}, "b": {"oneOf": [{"type": "string", "description": "as text", "default": "v"},
                                                                  {"type": "boolean", "default": True}], "default": "v"},
                  "c": {"oneOf": [{"type": "object"}, NUMBER]}, "d": {"oneOf": [{"type": "object", "properties": {"m": {"oneOf": [TEXT]}}}]},
                  "e": {"type": "string", "oneOf": [NUMBER]}, "f": {"oneOf": []}}),
    "defaults": of({"a": {"type": "string", "default": "é \"q\""}, "b": {"type": "number", "default": 1.5}, "c": {"type": "array", "items": TEXT,
        "default": ["a", None]}, "d": {"type": "boolean", "default": False}, "e": {"type": "integer", "default": None},
        "f": {"type": "object", "default": {"k": 1}}}),
    "descriptions": {"messages": [user("Hi")], "tools": [
        tool("f", "Two\nlines", type="object", properties={"a": {"type": "string", "description": "über\nall"}, "b": {"type": "string", "description": ""}}),
        tool("g", "", type="object", properties={}), tool("h", "h", type="object"), {"type": "function", "function": {"name": "i", "description": "i"}}]},
    "escaped names": of({"\u00e9\"": TEXT, "b": TEXT}, ["\u00e9\""]),
}
MESSAGES = {
    "developer": {"messages": [{"role": "developer", "content": "Be brief."}, user("Hi")]},
    "developer and tools": {"messages": [{"role": "developer", "content": "Be brief."}, user("Hi")], "tools": [NOON]},
    "identity": {"messages": [user("Hi")], "model_identity": "You are Mote."},
    "high": {"messages": [user("Hi")], "reasoning_effort": "high"},
    "browser": {"messages": [user("Hi")], "builtin_tools": ["browser"]},
    "python and tools": {"messages": [user("Hi")], "builtin_tools": ["python", "other"], "tools": [NOON]},
    "both": {"messages": [user("Hi")], "builtin_tools": ["python", "browser"]},
    "thinking of an answer": {"messages": [user("a"), answer("b", thinking="c"), user("d")]},
    "thinking of the last": {"messages": [user("a"), answer("b", thinking="c"), user("d"), answer("e", thinking="f")], "add_generation_prompt": False},
    "no thinking of the last": {"messages": [user("a"), answer("b", thinking="")], "add_generation_prompt": False},
    "call without an answer": {"messages": [user("a"), answer("", thinking="why", tool_calls=[call("clock", 1)]), result("noon", 1)], "tools": [NOON]},
    "call and answer": {"messages": [user("a"), answer("", thinking="why", tool_calls=[call("clock", 1)]), result("noon", 1), answer("Noon."),
                                     user("b")], "tools": [NOON]},
    "calls after an answer": {"messages": [user("a"), answer("b"), user("c"), answer("", thinking="d", tool_calls=[call("clock", 1)]), result("noon", 1),
                                           answer("", thinking="e", tool_calls=[call("get_weather", 2, city="Zürich")]), result('{"t": 1}', 2)],
                              "tools": [NOON, WEATHER]},
    "question before an answer": {"messages": [user("a"), answer("", thinking="b", tool_calls=[call("clock", 1)]), result("noon", 1), user("c")]},
    "text beside a call": {"messages": [user("a"), answer("Let me see.", tool_calls=[call("clock", 1)]), result("noon", 1)]},
    "text beside an old call": {"messages": [user("a"), answer("Let me see.", tool_calls=[call("clock", 1)]), result("noon", 1), answer("Noon."), user("b")]},
    "content type": {"messages": [user("a"), answer("", tool_calls=[{"name": "f", "arguments": {"x": 1}, "content_type": "code"}])]},
    "result as JSON": {"messages": [user("a"), answer("", tool_calls=[call("clock", 1)]), {"role": "tool", "content": {"t": [1, None]}}]},
}
ANSWERS = [
    "<|channel|>final<|message|>Hi there.<|return|>",
    "<|channel|>analysis<|message|>Think\n twice.<|end|><|start|>assistant<|channel|>final<|message|> Hi\n<|return|>",
    "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary<|message|>First I look.<|end|>"
    "<|start|>assistant to=functions.clock<|channel|>commentary json<|message|>{}<|call|>",
    "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Zürich\"}<|call|>",
    "<|channel|>commentary to=functions.get_weather json<|message|>{\"city\": \"B\"}<|call|>",
    "<|channel|>commentary to=functions.get_weather<|message|>{\"city\": \"B\"}<|call|>",
    " to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>{\"city\": \"B\"}<|call|>",
    " to=functions.get_weather<|channel|>commentary<|message|>{\"city\": \"<|B\"}<|call|>",
    "<|channel|>analysis to=functions.clock <|constrain|>json<|message|>{}<|call|>",
    "<|channel|>commentary to=functions.clock <|constrain|>json<|message|>{}<|call|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"B\"}<|call|>",
    "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|><|start|>assistant<|channel|>final<|message|>c<|return|>",
    "<|message|>without a channel<|end|>",
]


def vocabulary(path, folder):
    """o200k_base.tiktoken of a tokenizer.json: a token's bytes in base64 and its rank on a line."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    byte_of = {chr(c): b for b, c in [(b, b) for b in plain] + [(b, 256 + i) for i, b in enumerate(others)]}
    tokens = sorted(json.loads(path.read_text())["model"]["vocab"].items(), key=lambda item: item[1])
    lines = [base64.b64encode(bytes(byte_of[c] for c in token)).decode() + f" {rank}\n" for token, rank in tokens]
    (folder / "o200k_base.tiktoken").write_text("".join(lines))
    os.environ["TIKTOKEN_ENCODINGS_BASE"] = str(folder)


def harmony_text(h, encoding, args):
    """The conversation as openai-harmony renders it."""
    said = h.SystemContent.new().with_conversation_start_date(DAY).with_reasoning_effort(getattr(h.ReasoningEffort, args.get("reasoning_effort", "medium").upper()))
    if "model_identity" in args:
        said = said.with_model_identity(args["model_identity"])
    for name in args.get("builtin_tools", []):
        said = said.with_browser_tool() if name == "browser" else said.with_python_tool() if name == "python" else said
    messages, rest, name = [], list(args["messages"]), None
    developer = h.DeveloperContent.new()
    if rest[0]["role"] in ("system", "developer"):
        developer = developer.with_instructions(rest.pop(0)["content"])
    if args.get("tools"):
        developer = developer.with_function_tools([h.ToolDescription.new(t["function"]["name"], t["function"]["description"], t["function"].get("parameters"))
                                                   for t in args["tools"]])
    messages.append(h.Message.from_role_and_content(h.Role.SYSTEM, said))
    if args.get("tools") or developer.instructions:
        messages.append(h.Message.from_role_and_content(h.Role.DEVELOPER, developer))
    for m in rest:
        if m["role"] == "user":
            messages.append(h.Message.from_role_and_content(h.Role.USER, m["content"]))
        elif m["role"] == "tool":
            messages.append(h.Message.from_author_and_content(h.Author.new(h.Role.TOOL, f"functions.{name}"), json.dumps(m["content"], ensure_ascii=False))
                            .with_recipient("assistant").with_channel("commentary"))
        else:
            thought = m.get("thinking") or (m["content"] if m.get("tool_calls") else "")
            if thought:
                messages.append(h.Message.from_role_and_content(h.Role.ASSISTANT, thought).with_channel("analysis"))
            for c in m.get("tool_calls", []):
                f = c.get("function", c)
                name = f["name"]
                messages.append(h.Message.from_role_and_content(h.Role.ASSISTANT, json.dumps(f["arguments"], ensure_ascii=False))
                                .with_recipient(f"functions.{name}").with_channel("commentary").with_content_type(f.get("content_type", "json")))
            if not m.get("tool_calls"):
                messages.append(h.Message.from_role_and_content(h.Role.ASSISTANT, m["content"]).with_channel("final"))
    conversation = h.Conversation.from_messages(messages)
    if args.get("add_generation_prompt", True):
        return encoding.decode_utf8(encoding.render_conversation_for_completion(conversation, h.Role.ASSISTANT))
    return encoding.decode_utf8(encoding.render_conversation_for_training(conversation))


def difference(a, b):
    """The words around the first difference."""
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return [a[max(at - 24, 0):at + 24], b[max(at - 24, 0):at + 24]]


def main():
    import openai_harmony as h
    template_path, tokenizer_path = map(pathlib.Path, sys.argv[1:])
    env = environment()
    env.globals["strftime_now"] = lambda form: DAY
    template = env.from_string(template_path.read_text())
    folder = pathlib.Path(tempfile.mkdtemp())
    vocabulary(tokenizer_path, folder)
    encoding = h.load_harmony_encoding(h.HarmonyEncodingName.HARMONY_GPT_OSS)
    cases, requests = [], {**CASES, **TOOLS, **MESSAGES}
    for name, args in requests.items():
        case = {"case": name}
        try:
            case["rendered"] = template.render(**{"add_generation_prompt": True, **args})
        except Exception as e:
            case["error"] = f"{type(e).__name__}: {e}"
        if "rendered" in case and name not in CASES:
            try:
                other = harmony_text(h, encoding, args)
                if other != case["rendered"]:
                    case["harmony"] = difference(case["rendered"], other)
            except Exception as e:
                case["harmony"] = f"{type(e).__name__}: {e}"
        cases.append(case)
    answers = []
    for text in ANSWERS:
        tokens = encoding.encode(text, allowed_special=set(SPECIAL))
        parsed = {"answer": text}
        try:
            parsed["messages"] = [{"channel": m.channel, "recipient": m.recipient, "content": m.content[0].text}
                                  for m in encoding.parse_messages_from_completion_tokens(tokens, h.Role.ASSISTANT, strict=False)]
        except Exception as e:
            parsed["error"] = f"{type(e).__name__}: {e}"
        answers.append(parsed)
    out = pathlib.Path(__file__).parent.parent / "tests/fixtures/chats"
    write_goldens(out / "gpt-oss.json", cases, requests)
    (out / "gpt-oss.answers.json").write_text(json.dumps(answers, ensure_ascii=False, indent=0) + "\n")


main()
