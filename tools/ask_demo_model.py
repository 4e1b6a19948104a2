#!/usr/bin/env python3
"""Measure the bundled model through mote serve, on any machine: the phrasings of tools/demo_questions/, greedily.

    python3 tools/ask_demo_model.py ./mote [--model models/demo] [--before DIR] [--report FILE]

Each entry is asked in one trained phrasing, in those held out (H:) and in those kept to choose between runs (V:): first in a
chat, with thinking, and as its second question; follow-ups after what they follow. An answer is right when it has all its
keywords. --before: the folder of an earlier tools/demo_questions/; what it held out already is counted apart, too. Needs
what train_demo_model.py and eval_demo_model.py need, to import them; the answers are mote's own.
"""
import argparse
import concurrent.futures
import json
import os
import urllib.request

from eval_demo_model import NAME, is_right
from serving import serve
from train_demo_model import HERE, read_questions, with_name, with_words


def ask(url, turns, thinking):
    """The answer to the last of the turns; those before it alternate between user and assistant."""
    messages = [dict(role=("user", "assistant")[i % 2], content=t) for i, t in enumerate(turns)]
    body = dict(messages=messages, temperature=0, max_tokens=250, chat_template_kwargs=dict(enable_thinking=thinking))
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.load(reply)["choices"][0]["message"]["content"] or ""


def cases_of(entries, tag, second):
    """[(entry, turns)]: the phrasings of q (one of them), h or v of each entry; second: after another question"""
    cases = []
    for i, e in enumerate(entries):
        first = e["p"][0] if e["p"] and e["p"][0] != "nothing" else "any" if second else None
        if first == "any":
            first = entries[(i + 7) % len(entries)] if not e["p"] else entries[0]["any"]
        e = with_name(e, NAME)
        before = []
        if first:
            first = with_name(first, NAME)
            before, e = [first["q"][0], first["a"]], with_words(e, first["q"][0], first["q"][0])
        for q in [e["q"][i % len(e["q"])]] if tag == "q" else e[tag]:
            cases.append((e, before + [q]))
    return cases


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("program", help="mote")
    ap.add_argument("--model", default=os.path.join(HERE, "../models/demo"))
    ap.add_argument("--questions", default=os.path.join(HERE, "demo_questions"))
    ap.add_argument("--before", help="folder of earlier questions")
    ap.add_argument("--report", help="JSON file for every question and answer")
    args = ap.parse_args()
    entries = [e for e in read_questions(args.questions) if e["k"]]
    alone = [e for e in entries if e["p"] in ([], ["nothing"])]
    follow_ups = [dict(e, any=next(a for a in alone if not a["p"])) for e in entries if e["p"] not in ([], ["nothing"])]
    earlier = {h for e in read_questions(args.before) for h in with_name(e, NAME)["h"]} if args.before else set()
    server, url = serve(args.program, "-m", args.model, "--cache-memory", "0")
    report = []
    try:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for name, some, thinking, second in (("first turn", alone, False, False), ("first turn, thinking", alone, True, False),
                                                 ("second turn", [e for e in alone if not e["p"]], False, True),
                                                 ("follow-up", follow_ups, False, False)):
                for tag, kind in (("q", "trained"), ("h", "held out"), ("v", "kept to choose by")):
                    cases = cases_of(some, tag, second)
                    texts = list(pool.map(lambda case: ask(url, case[1], thinking), cases))
                    rows = [dict(set=name, kind=kind, turns=turns, keywords=e["k"], answer=text, right=is_right(text, e["k"]),
                                 before=turns[-1] in earlier) for (e, turns), text in zip(cases, texts)]
                    old = [r["right"] for r in rows if r["before"]]
                    print(f"{name}, {kind}: {sum(r['right'] for r in rows)} of {len(rows)}"
                          + (f"; of those from before {sum(old)} of {len(old)}" if old else ""), flush=True)
                    report += rows
    finally:
        server.terminate()
    if args.report:
        json.dump(report, open(args.report, "w"), indent=1, ensure_ascii=False)


if __name__ == "__main__":
    main()
