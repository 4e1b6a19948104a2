#!/usr/bin/env python3
"""Choose among runs of tools/train_demo_model.py and their means, by the phrasings kept for that.

    python3 tools/mix_demo_models.py --out models/demo [--from models/demo] RUN...

RUN and --from are exported folders; one that is not there is left out. Tried are each run, the mean of all, and these with
a part of --from. An entry of tools/demo_questions/ is asked in its first phrasing, a trained one, and in those of V:. It is
right when each token of its answer is the model's first choice after the ones before, thinking off: what greedy decoding
would write. H: phrasings and demo_unseen.txt, which measure, have no part in the choice.
"""
import argparse
import json
import os
import time

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from train_demo_model import CHUNK, HERE, Model, export, load_checkpoint, read_questions, with_name, with_words

NAME = "Clara"                                                  # in place of {name}
TURN = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
PARTS = (0.1, 0.2, 0.35, 0.5)                                   # of --from in a mean


def cases_of(questions, tok):
    """[(trained, what is asked, ids of the chat, length of the prompt)]"""
    other = next(e for e in questions if not e["p"])
    cases = []
    for e in questions:
        first, start = next(iter(e["p"]), "nothing"), ""
        e = with_name(e, NAME)
        if first != "nothing":
            before = with_name(other if first == "any" else first, NAME)
            start = TURN.format(before["q"][0]) + before["a"] + "<|im_end|>\n"
            e = with_words(e, before["q"][0], before["q"][0])
        for asked in e["q"][:1] + e["v"]:
            prompt = tok.encode(start + TURN.format(asked)).ids
            cases.append((asked not in e["v"], asked, prompt + tok.encode(e["a"] + "<|im_end|>").ids, len(prompt)))
    return cases


@torch.no_grad()
def answers(model, cases, device):
    """Of each case: is the answer right, and its log-probability."""
    out = []
    for at in range(0, len(cases), 128):
        part = [case[2:] for case in cases[at:at + 128]]
        length = -(-max(len(ids) for ids, _ in part) // CHUNK) * CHUNK
        rows, counts = torch.zeros(len(part), length + 1, dtype=torch.long), torch.zeros(len(part), length - 1)
        for row, count, (ids, start) in zip(rows, counts, part):
            row[:len(ids)] = torch.tensor(ids)
            count[start - 1:len(ids) - 1] = 1                   # the prompt's last token predicts the answer's first
        rows, counts = rows.to(device), counts.to(device)
        hidden = model(rows)[0][:, :-1]
        logits, target = F.linear(hidden, model.model.embed_tokens.weight).float(), rows[:, 1:-1]
        right = ((logits.argmax(-1) == target) | (counts == 0)).all(-1)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view_as(counts)
        out += zip(right.tolist(), (-(loss * counts).sum(-1)).tolist())
    return out


def mixes_of(runs, start):
    """Shares of the runs and of --from: each alone, the mean of the runs, and all of these with a part of --from."""
    alone = [[float(i == j) for j in range(runs + start)] for i in range(runs + start)]
    means = alone[:runs] + ([[1 / runs] * runs + [0.0] * start] if runs > 1 else [])
    with_start = [[(1 - part) * s for s in mean[:-1]] + [part] for mean in means for part in PARTS] if start else []
    return means + alone[runs:] + with_start


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("runs", nargs="+", metavar="RUN")
    ap.add_argument("--out", required=True, help="folder to write, e.g. models/demo")
    ap.add_argument("--from", dest="start", metavar="DIR", help="the model that the runs went on from")
    ap.add_argument("--questions", default=os.path.join(HERE, "demo_questions"))
    ap.add_argument("--template", default=os.path.join(HERE, "../models/demo/chat_template.jinja"))
    ap.add_argument("--report", help="JSON file for all that was tried")
    args = ap.parse_args()
    began, device, model = time.time(), "cuda" if torch.cuda.is_available() else "cpu", Model().eval()
    runs = [f for f in args.runs if os.path.exists(os.path.join(f, "model.safetensors"))]
    folders, states = runs + ([args.start] if args.start else []), []
    print(f"runs: {', '.join(runs)}", flush=True)
    for f in folders:
        load_checkpoint(model, f)
        states.append({name: w.clone() for name, w in model.state_dict().items()})
    model.to(device)
    tok = Tokenizer.from_file(os.path.join(folders[0], "tokenizer.json"))
    cases, tried = cases_of(read_questions(args.questions), tok), []
    kept = sum(not trained for trained, *_ in cases)
    for shares in mixes_of(len(runs), bool(args.start)):
        for name, w in model.state_dict().items():
            w.copy_(sum(s * state[name] for s, state in zip(shares, states)))
        found = answers(model, cases, device)
        right = [sum(ok for (ok, _), case in zip(found, cases) if case[0] == trained) for trained in (True, False)]
        likely = sum(p for _, p in found) / len(found)
        wrong = [case[1] for (ok, _), case in zip(found, cases) if not ok]
        tried.append(dict(shares=dict(zip(folders, shares)), trained=right[0], kept=right[1], likely=likely, wrong=wrong))
        print(f"{' '.join(f'{s:.2f}' for s in shares)}: {right[0]} of {len(cases) - kept} trained phrasings right, {right[1]} of "
              f"{kept} kept ones, log-probability {likely:.3f}, {time.time() - began:.0f} s", flush=True)
    best = max((t for t in tried if any(t["shares"][f] for f in runs)), key=lambda t: (t["trained"] + t["kept"], t["likely"]))
    print(f"chosen: {best['shares']}")
    for name, w in model.state_dict().items():
        w.copy_(sum(best["shares"][f] * state[name] for f, state in zip(folders, states)))
    export(model.cpu(), tok, args.out, args.template)
    if args.report:
        json.dump(dict(chosen=best["shares"], tried=tried), open(args.report, "w"), indent=1, ensure_ascii=False)


if __name__ == "__main__":
    main()
