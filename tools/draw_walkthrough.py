#!/usr/bin/env python3
"""The pictures and numbers of docs/walkthrough.md, from traces of the bundled model; and whether what it quotes is still there.

    tools/draw_walkthrough.py ./mote                  # draws docs/walkthrough/*.svg, checks the excerpts, prints the numbers
    tools/draw_walkthrough.py ./mote --exercises DIR  # does the exercises in DIR, a scratch copy of the tree

Nothing but Python is needed. To be run again when the weights have changed: it prints the numbers in the order of the text.
"""
import html
import json
import math
import os
import random
import re
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
TEXT, FOLDER = os.path.join(ROOT, "docs", "walkthrough.md"), os.path.join(ROOT, "docs", "walkthrough")
QUESTION = "What is FP8?"
TOKEN = 7                       # "8", whose write into S is drawn
LAYER, HEAD = 4, 1              # of a DeltaNet layer: S is drawn
ATTENTION, EXPERTS = 7, 6       # the layers of the heat maps and of the experts

STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
.back { fill: #ffffff; stroke: #d1d9e0 } .small { font-size: 10px } .tiny { font-size: 9px } .dim { fill: #59636e }
.bold { font-weight: 600 }
.mono { font-family: ui-monospace, "SF Mono", Menlo, monospace } .mid { text-anchor: middle } .end { text-anchor: end }
.box { fill: #f6f8fa; stroke: #818b98 } .line { stroke: #818b98; fill: none } .frame { stroke: #d1d9e0; fill: none }
.pos { stroke: #bc4c00; fill: #bc4c00 } .neg { stroke: #0969da; fill: #0969da } .x { fill: #818b98 }
.mix { fill: #0969da } .ffn { fill: #bc4c00 } .ok { fill: #1a7f37 } .no { fill: #cf222e }
.oks { stroke: #1a7f37 } .nos { stroke: #cf222e } .cut { text-decoration: line-through }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .back { fill: #0d1117; stroke: #3d444d } .dim { fill: #9198a1 } .box { fill: #151b23; stroke: #656c76 }
.line { stroke: #656c76 } .frame { stroke: #3d444d } .pos { stroke: #f0883e; fill: #f0883e } .neg { stroke: #58a6ff; fill: #58a6ff }
.x { fill: #656c76 } .mix { fill: #58a6ff } .ffn { fill: #f0883e } .ok { fill: #3fb950 } .no { fill: #f85149 }
.oks { stroke: #3fb950 } .nos { stroke: #f85149 }
}"""


# ---- Traces ----------------------------------------------------------------------------------------------------------

def trace(mote, *arguments):
    """What mote trace tells, as cli/trace_page.c describes it"""
    with tempfile.TemporaryDirectory() as folder:
        page = os.path.join(folder, "trace.html")
        subprocess.run([mote, "trace", *arguments, "--html", page], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
        with open(page, encoding="utf-8") as file:
            return json.loads(re.search(r'id="trace">(.*?)</script>', file.read(), re.S).group(1))


def trace_ids(mote, ids):
    with tempfile.NamedTemporaryFile(suffix=".i32") as file:
        file.write(struct.pack(f"<{len(ids)}i", *ids))
        file.flush()
        return trace(mote, "--tokens", file.name)


def state(of):
    """S of the head that is drawn, after the last token"""
    S = of["layers"][LAYER]["mixer"]["S"]
    values, n = S["values"][HEAD], S["columns"]
    return [[v * S["scale"][HEAD] / 99 for v in values[i * n:(i + 1) * n]] for i in range(S["rows"])]


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector)) for row in matrix]


def length(vector):
    return math.sqrt(sum(a * a for a in vector))


def rank_one(matrix):
    """u, k with |k| = 1 that the matrix is u k^T of, and how much of its length is left over"""
    columns = list(zip(*matrix))
    k = max(matrix, key=length)
    for _ in range(50):
        u = times(matrix, k)
        k = times(columns, u)
        k = [a / length(k) for a in k]
    u = times(matrix, k)
    rest = [a - b * c for row, b in zip(matrix, u) for a, c in zip(row, k)]
    return u, k, length(rest) / length([a for row in matrix for a in row])


def rounding(of):
    """The length that rounding of S to 1 / 99 of its largest value is expected to have"""
    return max(abs(v) for row in of for v in row) / 99 / math.sqrt(12) * math.sqrt(len(of) * len(of[0]))


class Delta:
    """One token's write into S: what it was, what is written, what is read with its key before and after"""
    def __init__(self, mote, ids):
        before, after = trace_ids(mote, ids[:TOKEN]), trace_ids(mote, ids[:TOKEN + 1])
        mixer = after["layers"][LAYER]["mixer"]
        self.decay, self.beta = mixer["decay"][-1][HEAD], mixer["write"][-1][HEAD]
        self.before, self.after = state(before), state(after)
        self.decayed = [[self.decay * v for v in row] for row in self.before]
        written = [[a - b for a, b in zip(x, y)] for x, y in zip(self.after, self.decayed)]
        self.u, self.k, self.rest = rank_one(written)
        size, allowed = length([v for row in written for v in row]), 2 * (rounding(self.before) + rounding(self.after))
        assert self.rest * size < allowed, "what is written is no outer product"
        self.written = [[a * b for b in self.k] for a in self.u]
        self.said = times(self.decayed, self.k)
        self.wanted = [s + u / self.beta for s, u in zip(self.said, self.u)]
        self.says = times(self.after, self.k)


# ---- Drawing ---------------------------------------------------------------------------------------------------------

class Picture:
    def __init__(self, name, title, width, height):
        self.name = name
        size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        self.parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
                      f"<title>{html.escape(title)}</title><style>{STYLE}</style>",
                      f'<rect class="back" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="6"/>']

    def text(self, x, y, text, kind="", more=""):
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{kind}"{more}>{html.escape(text)}</text>')

    def rect(self, x, y, width, height, kind, more=""):
        self.parts.append(f'<rect x="{x:.4g}" y="{y:.4g}" width="{width:.4g}" height="{height:.4g}" class="{kind}"{more}/>')

    def line(self, points, kind="line", arrow=False):
        self.parts.append(f'<path class="{kind}" d="M{" L".join(f"{x:g} {y:g}" for x, y in points)}"/>')
        if arrow:
            (x0, y0), (x, y) = points[-2:]
            angle = math.atan2(y - y0, x - x0)
            ends = [(x - 7 * math.cos(angle + d), y - 7 * math.sin(angle + d)) for d in (-.4, .4)]
            self.line([ends[0], (x, y), ends[1]], kind)

    def box(self, x, y, width, height, text, kind="box", words=""):
        self.rect(x, y, width, height, kind, ' rx="4"')
        self.text(x + width / 2, y + height / 2 + 4, text, "mid " + words)

    def heat(self, x, y, cell, matrix, most, levels=9):
        """Values as cells, their sign as the colour, their size, up to `most`, as opacity, which eyes see as more than linear"""
        runs = {}
        for i, row in enumerate(matrix):
            level = [round(max(-1, min(1, v / most)) * levels) for v in row] + [None]
            start = 0
            for j in range(1, len(level)):
                if level[j] != level[start]:
                    if level[start]:
                        runs.setdefault(level[start], []).append(f"M{start} {i}h{j - start}")
                    start = j
        self.parts.append(f'<g transform="translate({x:g} {y + cell / 2:g}) scale({cell:g})">')
        for level, paths in sorted(runs.items()):
            kind = "pos" if level > 0 else "neg"
            self.parts.append(f'<path class="{kind}" stroke-opacity="{(abs(level) / levels) ** .7:.2g}" d="{"".join(paths)}"/>')
        self.parts.append("</g>")
        self.rect(x, y, cell * max(map(len, matrix)), cell * len(matrix), "frame")

    def save(self):
        path = os.path.join(FOLDER, self.name)
        os.makedirs(FOLDER, exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(self.parts) + "\n</svg>\n")
        size = os.path.getsize(path)
        assert size < 60000, f"{path}: {size} bytes, expected less than 60,000"


def shown(text):
    return text.replace("\n", "\\n").replace(" ", "\u00b7")


def draw_stack(t):
    layers, last = t["layers"], len(t["tokens"]) - 1
    p = Picture("stack.svg", "The layers of the bundled model, and what each adds to the residual", 840, 104 + 38 * len(layers))
    bottom = 60 + 38 * len(layers)
    main = [layer for layer in layers if not layer["mtp"]]
    most = max(max(layer["ffn"]["before"][last] + layer["ffn"]["added"][last] for layer in main), t["final"][last])
    unit = 380 / most
    p.text(24, 28, "the residual x goes up; each layer adds twice", "bold")
    p.line([(179, bottom), (179, bottom - 38 * (len(main) + 1) + 26)], arrow=True)
    p.text(400, 28, f"lengths for the last token of the question, {shown(t['tokens'][last]['text'])}", "bold")
    p.box(40, bottom, 278, 26, f"embed_tokens[{t['tokens'][last]['id']}]")
    for layer in main:
        y = bottom - 38 * (layer["index"] + 1)
        mixer, ffn = layer["mixer"], layer["ffn"]
        kind = {"deltanet": "DeltaNet: S", "attention": "attention: KV"}[mixer["kind"]]
        p.text(24, y + 17, str(layer["index"]), "dim")
        p.line([(164, y + 13), (194, y + 13)])
        p.box(40, y, 124, 26, kind, "box", "bold" if mixer["kind"] == "attention" else "")
        p.box(194, y, 124, 26, f"{ffn['top_k']} of {ffn['experts']} experts, +1")
        for row, (of, kind) in enumerate(((mixer, "mix"), (ffn, "ffn"))):
            before = of["before"][last] * unit
            p.rect(400, y + 13 * row, before, 11, "x")
            p.rect(400 + before, y + 13 * row, of["added"][last] * unit, 11, kind)
        p.text(330, y + 17, f"+{mixer['added'][last]:.1f} +{ffn['added'][last]:.1f}", "small dim")
    y = bottom - 38 * (len(main) + 1)
    best = t["next"][last][0]
    p.box(40, y, 278, 26, "norm, lm_head: logits")
    p.text(400, y + 17, f"|x| = {t['final'][last]:.1f}; the most probable token: {shown(best['text'])}, {100 * best['p']:.1f} %")
    for x, kind, words in ((400, "x", "|x| before"), (490, "mix", "what the mixer adds"), (630, "ffn", "what the experts add")):
        p.rect(x, bottom + 8, 11, 11, kind)
        p.text(x + 16, bottom + 18, words, "small dim")
    p.save()


def draw_delta(t, d):
    p = Picture("delta.svg", "One token's write into the memory S of a DeltaNet head", 840, 336)
    cell, top, most = 3, 96, max(abs(v) for row in d.before + d.after for v in row)
    side = cell * len(d.k)
    left = (24, 264, 504)
    names = (f"exp(g) S, with exp(g) = {d.decay:.2f}", f"+ u k\u1d40, with beta = {d.beta:.2f}", "= S after the token")
    for x, name, matrix in zip(left, names, (d.decayed, d.written, d.after)):
        p.text(x, 54, name, "bold")
        p.heat(x, top, cell, matrix, most / 3)
    token = shown(t["tokens"][TOKEN]["text"])
    p.text(24, 28, f"layer {LAYER}, head {HEAD}, token {TOKEN}, which is {token}: orange is above 0, blue below", "dim")
    p.heat(left[1], top - 14, cell, [d.k] * 3, max(map(abs, d.k)))
    p.text(left[1] + side / 2, top - 19, "k", "mid small dim")
    p.heat(left[1] - 14, top, cell, [[v] * 3 for v in d.u], max(map(abs, d.u)))
    p.text(left[1] - 9, top + side + 14, "u", "mid small dim")
    p.text(728, 54, "read with k", "bold")
    most = max(abs(v) for v in d.said + d.wanted + d.says)
    for i, (name, vector) in enumerate((("before", d.said), ("v", d.wanted), ("after", d.says))):
        p.heat(728 + 34 * i, top, cell, [[v] * 7 for v in vector], most)
        p.text(738 + 34 * i, top - 6, name, "mid small dim")
    p.text(24, top + side + 32, "rows: the value's elements; columns: the key's", "small dim")
    gap = length([a - b for a, b in zip(d.wanted, d.says)]) / length([a - b for a, b in zip(d.wanted, d.said)])
    p.text(816, top + side + 32, f"|v - read|: {gap:.2f} of what it was: 1 - beta", "small dim end")
    p.save()


def draw_attention(t):
    mixer, n = t["layers"][ATTENTION]["mixer"], len(t["tokens"])
    cell = 171 / n
    p = Picture("attention.svg", "Where the heads of an attention layer look", 840, 289)
    p.text(24, 28, f"layer {ATTENTION}: each row is a token, its cells the tokens it reads; a row sums to 1", "dim")
    for i, token in enumerate(t["tokens"]):
        p.text(98, 72 + cell * i, shown(token["text"]), "tiny end")
    for head, weights in enumerate(mixer["weights"]):
        x = 106 + 180 * head
        p.text(x, 54, f"head {head}", "bold")
        p.heat(x, 64, cell, [row + [0] * (n - len(row)) for row in weights], 1)
        p.line([(x + cell, 64), (x + cell * n, 64 + cell * (n - 1))], "frame")
        best = max(range(n), key=lambda i: weights[-1][i])
        p.text(x, 253, f"the last reads {100 * weights[-1][best]:.0f} % from", "small dim")
        p.text(x, 267, f"token {best}, {shown(t['tokens'][best]['text'])}", "small dim")
    p.save()


def draw_experts(t):
    ffn, n, cell = t["layers"][EXPERTS]["ffn"], len(t["tokens"]), 22
    p = Picture("experts.svg", "Which experts compute for which token", 840, 348)
    p.text(24, 28, f"the bundled model, layer {EXPERTS}: {ffn['top_k']} of {ffn['experts']} experts for each token", "bold")
    for e in range(ffn["experts"]):
        p.text(36, 62 + cell * e, str(e), "small dim end")
    lit = [[0] * n for _ in range(ffn["experts"])]
    for token, chosen in enumerate(ffn["chosen"]):
        for c in chosen:
            lit[c["expert"]][token] = c["weight"]
        x = 44 + cell * token + 14
        p.text(x, 234, shown(t["tokens"][token]["text"]), "small", f' transform="rotate(50 {x} 234)"')
    p.heat(44, 47, cell, lit, 1)
    for token, chosen in enumerate(ffn["chosen"]):
        for c in chosen:
            p.text(44 + cell * token + 11, 62 + cell * c["expert"], f"{100 * c['weight']:.0f}", "small mid")
    p.text(24, 326, "weights in per cent; the shared expert computes for all", "small dim")
    x, grid = 510, 18
    p.text(x, 28, "35B-A3B: 8 of 256, and the shared one", "bold")
    picked = set(random.Random(35).sample(range(256), 8))
    for e in range(256):
        p.rect(x + grid * (e % 16), 47 + 15 * (e // 16), grid - 2, 13, "ffn" if e in picked else "box")
    p.text(x, 310, "a sketch: the eight are drawn by lot, not by a router", "small dim")
    p.text(x, 326, "one token reads 9 / 257 of the experts' weights", "small dim")
    p.save()


def first_mixed(passes):
    """The first pass of the MTP layer with a draft that was taken and one that was not; else the first of all"""
    return next((i for i, p in enumerate(passes) if p["source"] == "mtp" and 0 < p["taken"] < len(p["tokens"]) - 1), 0)


def draw_mtp(t):
    """How the first pass that is mixed was drafted: three runs of the MTP layer"""
    at = first_mixed(t["passes"])
    tokens = [shown(x["text"]) for x in t["passes"][at]["tokens"]]
    before = shown(t["passes"][at - 1]["tokens"][t["passes"][at - 1]["taken"]]["text"] if at else t["tokens"][-1]["text"])
    p = Picture("mtp.svg", "What the MTP layer takes in, and what it drafts", 840, 330)
    p.text(24, 28, f"drafting after {tokens[0]}: the MTP layer once for each draft", "bold")
    for i in range(len(tokens) - 1):
        x, taken = 24 + 272 * i, i < t["passes"][at]["taken"]
        p.box(x, 262, 108, 26, f"embedding of {tokens[i]}", "box", "small")
        p.box(x + 124, 262, 108, 26, f"final row of {before}" if not i else f"its own, draft {i}", "box", "small")
        for side in (0, 124):
            p.line([(x + 54 + side, 262), (x + 54 + side, 240)], arrow=True)
            p.box(x + side, 214, 108, 26, "norm", "box", "small")
            p.line([(x + 54 + side, 214), (x + 54 + side, 192)], arrow=True)
        p.box(x, 166, 232, 26, "mtp_fc [hidden][2 hidden]", "box", "small")
        p.line([(x + 116, 166), (x + 116, 144)], arrow=True)
        p.box(x, 118, 232, 26, "attention + experts, norm", "box", "small")
        p.line([(x + 116, 118), (x + 116, 96)], arrow=True)
        p.box(x, 70, 232, 26, "draft_head: the highest logit", "box", "small")
        p.text(x + 116, 58, f"draft {i + 1}: {tokens[i + 1]}", "mid bold mono " + ("ok" if taken else "no"))
        if i + 2 < len(tokens):
            p.line([(x + 232, 131), (x + 252, 131), (x + 252, 304), (x + 450, 304), (x + 450, 289)], arrow=True)
    p.save()


def draw_passes(t):
    passes = t["passes"][:5]
    p = Picture("passes.svg", "The passes of an answer: drafts taken and refused", 840, 76 + 52 * len(passes))
    p.text(24, 28, "each line is one pass of the model: the chosen token and its drafts, as rows computed together", "bold")
    for i, one in enumerate(passes):
        y = 48 + 52 * i
        p.text(24, y + 18, f"pass {i + 1}", "dim")
        for k, token in enumerate(one["tokens"]):
            x, taken = 84 + 132 * k, k <= one["taken"]
            p.rect(x, y, 120, 28, "box " + ("" if not k else "oks" if taken else "nos"), ' rx="4"')
            words = "bold" if not k else "ok" if taken else "no cut"
            p.text(x + 60, y + 18, shown(token["text"]), "mid mono " + words)
        follows = passes[i + 1]["tokens"][0]["text"] if i + 1 < len(passes) else None
        note = f"then the model says {shown(follows)}" if follows else "..."
        p.text(84 + 132 * len(one["tokens"]) + 8, y + 12, f"{one['taken'] + 1} tokens", "small dim")
        p.text(84 + 132 * len(one["tokens"]) + 8, y + 26, note, "small dim")
    y = 62 + 52 * len(passes)
    for x, kind, words in ((84, "", "chosen by the model"), (230, "ok", "a draft that the model chooses, too"),
                           (460, "no cut", "a draft that it does not choose, and all after it")):
        p.text(x, y, words, "small " + kind)
    p.save()


# ---- The text --------------------------------------------------------------------------------------------------------

def blocks(text):
    """(language, lines) of each fenced block, in order"""
    return [(b.group(1), b.group(2)) for b in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.S | re.M)]


def check_excerpts(text):
    """Every block of C begins with a comment that names its file, and its lines stand there, in this order"""
    wrong = 0
    for language, body in blocks(text):
        if language != "c":
            continue
        head, *lines = body.splitlines()
        path = re.match(r"/\* ([\w./]+)", head).group(1)
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            source = iter([" ".join(line.split()) for line in file])
        for line in lines:
            if line.strip() not in ("", "...") and " ".join(line.split()) not in source:
                print(f"{path} has no line, or not in this order: {line}")
                wrong += 1
    return wrong


def change(mote_folder, body):
    """Of a block of changes: the file, its text, the lines with -, which must stand there once, and those with +"""
    head, *lines = body.splitlines()
    path = os.path.join(mote_folder, head.split(",")[0])
    with open(path, encoding="utf-8") as file:
        source = file.read()
    old = "".join(line[1:] + "\n" for line in lines if line[0] in " -")
    new = "".join(line[1:] + "\n" for line in lines if line[0] in " +")
    assert source.count(old) == 1, f"{path}: not there once:\n{old}"
    return path, source, old, new


def exercise(mote_folder, body):
    """Makes the changes of a block"""
    path, source, old, new = change(mote_folder, body)
    with open(path, "w", encoding="utf-8") as file:
        file.write(source.replace(old, new))
    return path, source


def exercises(folder):
    """Does each exercise in the scratch copy and takes its changes back"""
    with open(TEXT, encoding="utf-8") as file:
        text = file.read().split("## Exercises")[1]
    for part in re.split(r"^### ", text, flags=re.M)[1:]:
        print("####", part.splitlines()[0], flush=True)
        changed = []
        for language, body in blocks(part):
            if language == "diff":
                changed.append(exercise(folder, body))
            if language == "sh":
                print(subprocess.run(body, shell=True, cwd=folder, capture_output=True, text=True).stdout, flush=True)
        for path, source in reversed(changed):
            with open(path, "w", encoding="utf-8") as file:
                file.write(source)


def check_names(text):
    """Every path, every function and every test that the text names is there"""
    listed = subprocess.run(["git", "ls-files", "*.c", "*.cu", "*.h"], cwd=ROOT, check=True, capture_output=True, text=True)
    source = ""
    for path in listed.stdout.split():
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            source += "" if path.startswith("tests/") else file.read()
    known = set(re.findall(r"\w+", source + listed.stdout))
    wrong = [name for name in re.findall(r"`([a-z]\w*_\w+)`", text) if name not in known]
    wrong += [path for path in re.findall(r"`([\w/]+\.(?:c|cu|h|py))`", text) if not os.path.exists(os.path.join(ROOT, path))]
    for name in wrong:
        print(f"the text names {name}, which is not there")
    return len(wrong)


def numbers(t, d):
    """In the order of the text"""
    last, passes = len(t["tokens"]) - 1, t["passes"]
    text, made = [x["text"] for x in t["tokens"]], sum(len(p["tokens"]) - 1 for p in passes)
    taken = sum(p["taken"] for p in passes)
    S, ffn = t["layers"][LAYER]["mixer"], t["layers"][EXPERTS]["ffn"]
    print("tokens:", *(f"{x['id']} {x['text']!r}" for x in t["tokens"]))
    print(f"transcript: {last + 1} tokens, of which {text.count(text[last])} are {text[last]!r}")
    print(f"|x|: {t['layers'][0]['mixer']['before'][last]:.2f} at first, {t['final'][last]:.0f} before the head")
    print(f"layer {LAYER}, {text[TOKEN]!r}: decays {S['decay'][TOKEN]}; head {HEAD}: beta {d.beta:.2f}, 1 - beta {1 - d.beta:.2f}")
    for head, weights in enumerate(t["layers"][ATTENTION]["mixer"]["weights"]):
        best = sorted(range(last + 1), key=lambda i: -weights[last][i])[:2]
        print(f"layer {ATTENTION}, head {head}, last token: {', '.join(f'{weights[last][i]:.2f} from {text[i]!r}' for i in best)}")
    print(f"layer {EXPERTS}, last token: {ffn['chosen'][last]}")
    print("next:", *(f"{x['text']!r} {100 * x['p']:.1f} %" for x in t["next"][last]))
    print("passes:", *(f"{[x['text'] for x in p['tokens']]} {p['taken']} taken;" for p in passes))
    print(f"{len(passes)} passes, {taken + len(passes)} tokens, {taken} of {made} drafts taken")


def main():
    mote = os.path.abspath(sys.argv[1])
    if "--exercises" in sys.argv:
        exercises(os.path.abspath(sys.argv[sys.argv.index("--exercises") + 1]))
        return 0
    t = trace(mote, QUESTION)
    d = Delta(mote, [x["id"] for x in t["tokens"]])
    draw_stack(t)
    draw_delta(t, d)
    draw_attention(t)
    draw_experts(t)
    draw_mtp(t)
    draw_passes(t)
    numbers(t, d)
    with open(TEXT, encoding="utf-8") as file:
        text = file.read()
    for language, body in blocks(text):
        if language == "diff":
            change(ROOT, body)
    return 1 if check_excerpts(text) + check_names(text) else 0


if __name__ == "__main__":
    sys.exit(main())
