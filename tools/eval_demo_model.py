#!/usr/bin/env python3
"""Measure the bundled model with transformers' own code, from the files as they are stored.

    python3 tools/eval_demo_model.py --model models/demo [--limit N] [--report FILE] [--choose FILE] [--reference DIR]

Greedy answers, thinking off and on, to one trained phrasing and to every held-out phrasing of tools/demo_questions/,
follow-ups after what they follow; an answer is right when it has all its keywords (K: comma = and, bar = or). Then the
share of the model's own answer tokens that the MTP layer's first draft names, and a few stories. --choose writes 40
questions for the engine's test, --reference the logits of one chat for the engine to be checked against (the layout of
the test fixtures).

Contents
  1. Loading     dequantise, fill transformers' model and an MTP layer made of its parts
  2. Answering   greedy, a batch at a time, every step from the beginning: slow and simple
  3. Measuring
"""
import argparse, json, os, time
import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as M
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig
from train_demo_model import HERE, read_questions, with_name, with_words

NAME = "Clara"                                                  # in place of {name}


# ---- 1. Loading ------------------------------------------------------------------------------------------------------

class Mtp(torch.nn.Module):
    """The MTP layer out of transformers' own parts; transformers itself leaves these weights unread."""
    def __init__(self, cfg):
        super().__init__()
        one = Qwen3_5MoeTextConfig(**{**cfg.to_dict(), "num_hidden_layers": 1, "layer_types": ["full_attention"]})
        one._attn_implementation = "eager"
        one._experts_implementation = "eager"
        h, eps = cfg.hidden_size, cfg.rms_norm_eps
        self.fc = torch.nn.Linear(2 * h, h, bias=False)
        self.pre_fc_norm_embedding = M.Qwen3_5MoeRMSNorm(h, eps=eps)
        self.pre_fc_norm_hidden = M.Qwen3_5MoeRMSNorm(h, eps=eps)
        self.layers = torch.nn.ModuleList([M.Qwen3_5MoeDecoderLayer(one, 0)])
        self.norm = M.Qwen3_5MoeRMSNorm(h, eps=eps)
        self.rotary = M.Qwen3_5MoeTextRotaryEmbedding(config=one)

    def forward(self, embedded, hidden):
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)], -1))
        n = x.shape[1]
        pos = torch.arange(n, device=x.device).view(1, 1, -1).expand(3, 1, -1)
        mask = torch.full((n, n), float("-inf"), device=x.device).triu(1)[None, None]
        return self.norm(self.layers[0](x, position_embeddings=self.rotary(x, pos), attention_mask=mask))


def load(folder, device):
    """(model, mtp) in float32 with the dequantised weights of the folder; every tensor is used exactly once"""
    config = json.load(open(os.path.join(folder, "config.json")))["text_config"]
    cfg = Qwen3_5MoeTextConfig(**config)
    cfg._attn_implementation = "eager"
    cfg._experts_implementation = "eager"
    model, mtp = M.Qwen3_5MoeForCausalLM(cfg).float().eval(), Mtp(cfg).float().eval()
    files, used = load_file(os.path.join(folder, "model.safetensors")), set()

    def get(name):
        used.add(name)
        w = files[name].float()
        if name + "_scale_inv" in files:
            used.add(name + "_scale_inv")
            s = files[name + "_scale_inv"].float()
            w *= s.repeat_interleave(128, 0)[:w.shape[0]].repeat_interleave(128, 1)[:, :w.shape[1]]
        return w

    for module, prefix in ((model.model, "model.language_model."), (mtp, "mtp.")):
        for name, p in module.named_parameters():
            stem = prefix + name.rsplit(".", 1)[0]
            experts = range(cfg.num_experts)
            if name.endswith("experts.gate_up_proj"):
                w = torch.stack([torch.cat([get(f"{stem}.{e}.{k}_proj.weight") for k in ("gate", "up")])
                                 for e in experts])
            elif name.endswith("experts.down_proj"):
                w = torch.stack([get(f"{stem}.{e}.down_proj.weight") for e in experts])
            else:
                w = get(prefix + name)
            assert w.shape == p.shape, name
            p.data.copy_(w)
    model.lm_head.weight = model.model.embed_tokens.weight
    assert used == set(files), set(files) - used
    return model.to(device), mtp.to(device)


# ---- 2. Answering ----------------------------------------------------------------------------------------------------

class Chatter:
    def __init__(self, folder, device):
        self.model, self.mtp = load(folder, device)
        self.tok = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        self.stops = [self.tok.token_to_id(t) for t in ("<|im_end|>", "<|endoftext|>")]
        self.device = device

    def prompt(self, question, thinking, before=None):
        """before: an entry whose question and answer come first in the chat"""
        s = ""
        if before:
            s = (f"<|im_start|>user\n{before['q'][0]}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
                 f"{before['a']}<|im_end|>\n")
        s += f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n<think>\n"
        return self.tok.encode(s + ("" if thinking else "\n</think>\n\n")).ids

    @torch.no_grad()
    def greedy(self, prompts, limit):
        """[(ids of prompt and answer, length of the prompt)]; rows are filled up at the end, which no row can see"""
        out = []
        for at in range(0, len(prompts), 256):
            part = prompts[at:at + 256]
            ids = torch.zeros(len(part), max(map(len, part)) + limit, dtype=torch.long, device=self.device)
            for i, p in enumerate(part):
                ids[i, :len(p)] = torch.tensor(p)
            length = torch.tensor([len(p) for p in part], device=self.device)
            live = torch.ones(len(part), dtype=torch.bool, device=self.device)
            for _ in range(limit):
                rows = live.nonzero()[:, 0]
                h = self.model.model(ids[rows, :length[rows].max()], use_cache=False).last_hidden_state
                last = h[torch.arange(len(rows), device=self.device), length[rows] - 1]
                new = self.model.lm_head(last).argmax(-1)
                ids[rows, length[rows]] = new
                length[rows] += 1
                live[rows] = ~torch.isin(new, torch.tensor(self.stops, device=self.device))
                if not live.any():
                    break
            out += [(row[:n].tolist(), len(p)) for row, n, p in zip(ids, length.tolist(), part)]
        return out

    def text(self, ids, start):
        """The answer without its thought; all of it when the thought never ends."""
        s = self.tok.decode([i for i in ids[start:] if i not in self.stops], skip_special_tokens=False)
        return s.split("</think>")[-1].strip()

    @torch.no_grad()
    def draft_agreement(self, answers):
        """Share of answer tokens after the first that the MTP layer's first draft names."""
        hit = total = 0
        for ids, start in answers:
            x = torch.tensor([ids], device=self.device)
            h = self.model.model(x, use_cache=False).last_hidden_state
            m = self.mtp(self.model.model.embed_tokens(x[:, 1:]), h[:, :-1])
            draft = self.model.lm_head(m)[0].argmax(-1)                 # row p names token p+2
            for p in range(start - 1, len(ids) - 2):
                hit += int(draft[p] == ids[p + 2])
                total += 1
        return hit / max(total, 1)


# ---- 3. Measuring ----------------------------------------------------------------------------------------------------

def is_right(answer, keywords):
    answer = answer.lower()
    return all(any(w.strip().lower() in answer for w in group.split("|")) for group in keywords.split(","))


def measure(chatter, cases, thinking, second=False, limit=160):
    """Asks every question of cases; as the second of a chat if so told, after what it follows or after another one."""
    def before(e, other):
        first = e["p"][0] if e["p"] else other
        return with_name(first if isinstance(first, dict) else other, NAME) if second else None

    firsts = [before(e, cases[(i - 7) % len(cases)][1]) for i, (_, e) in enumerate(cases)]
    answers = chatter.greedy([chatter.prompt(q, thinking, first) for first, (q, _) in zip(firsts, cases)], limit)
    texts = [chatter.text(*a) for a in answers]
    keywords = [with_words(e, *[first["q"][0] if first else ""] * 2)["k"] for first, (_, e) in zip(firsts, cases)]
    return answers, texts, [is_right(t, k) for t, k in zip(texts, keywords)]


def write_reference(chatter, folder, entry):
    """A chat of two turns, its logits and its MTP logits, in float32."""
    chat = chatter.prompt(entry["q"][0], False) + chatter.tok.encode(entry["a"] + "<|im_end|>\n").ids
    chat += chatter.prompt("Tell me a short story about a dog.", True)
    chat += chatter.greedy([chat], 40)[0][0][len(chat):]
    x = torch.tensor([chat], device=chatter.device)
    with torch.no_grad():
        h = chatter.model.model(x, use_cache=False).last_hidden_state
        logits = chatter.model.lm_head(h)[0]
        drafts = chatter.model.lm_head(chatter.mtp(chatter.model.model.embed_tokens(x[:, 1:]), h[:, :-1]))[0]
    os.makedirs(folder, exist_ok=True)
    np.array(chat, np.int32).tofile(os.path.join(folder, "tokens.i32"))
    logits.float().cpu().numpy().tofile(os.path.join(folder, "logits.f32"))
    drafts.float().cpu().numpy().tofile(os.path.join(folder, "mtp_logits.f32"))
    print(f"reference: {len(chat)} tokens, logits {tuple(logits.shape)}, standard deviation {logits.std():.4f}")


def choose(entries, count):
    """Every n-th entry; by turns its first trained phrasing and its held-out one."""
    picked = [entries[i * len(entries) // count] for i in range(count)]
    return [dict(question=(e["h"] if i % 2 and e["h"] else e["q"])[0], keywords=e["k"], held_out=bool(i % 2 and e["h"]))
            for i, e in enumerate(picked)]


def main():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--model", required=True)
    ap.add_argument("--questions", default=os.path.join(HERE, "demo_questions"))
    ap.add_argument("--limit", type=int, default=0, help="entries to ask about (0: all)")
    ap.add_argument("--report", help="JSON file for every question and answer")
    ap.add_argument("--choose", help="JSON file for 40 questions, chosen evenly")
    ap.add_argument("--reference", help="folder for the logits of one chat")
    args = ap.parse_args()
    torch.set_float32_matmul_precision("highest")
    entries = [with_name(e, NAME) for e in read_questions(args.questions) if e["k"]]
    alone, follow_ups = ([e for e in entries if (e["p"] in ([], ["nothing"])) == first] for first in (True, False))
    if args.choose:
        json.dump(choose(alone, 40), open(args.choose, "w"), indent=1, ensure_ascii=False)
    if args.limit:
        alone, follow_ups = ([some[i * len(some) // args.limit] for i in range(min(args.limit, len(some)))]
                             for some in (alone, follow_ups))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    chatter, report, started = Chatter(args.model, device), [], time.time()
    if args.reference:
        write_reference(chatter, args.reference, alone[0])
    for some, turn, second, thinking in ((alone, "first turn", False, False), (alone, "first turn", False, True),
                                         (alone, "second turn", True, False), (follow_ups, "follow-up", True, False),
                                         (follow_ups, "follow-up", True, True)):
        trained = [(e["q"][i % len(e["q"])], e) for i, e in enumerate(some)]
        for name, cases in (("trained", trained), ("held out", [(h, e) for e in some for h in e["h"]])):
            answers, texts, right = measure(chatter, cases, thinking, second)
            drafts = chatter.draft_agreement(answers[:100])
            print(f"thinking {'on ' if thinking else 'off'}, {turn}, {name} phrasings: {sum(right)} of "
                  f"{len(right)} right ({100 * sum(right) / len(right):.1f} %), MTP first draft agrees "
                  f"{100 * drafts:.1f} %", flush=True)
            report += [dict(thinking=thinking, turn=turn, set=name, q=q, right=ok, answer=t, keywords=e["k"])
                       for (q, e), t, ok in zip(cases, texts, right)]
    asks = ["Tell me a story.", "tell me a short story about a rabbit", "Tell me a story about a little bear, please."]
    for q, a in zip(asks, chatter.greedy([chatter.prompt(q, False) for q in asks], 300)):
        print(f"\n> {q}\n{chatter.text(*a)}")
        report.append(dict(thinking=False, set="story", q=q, answer=chatter.text(*a)))
    print(f"\n{time.time() - started:.0f} s")
    if args.report:
        json.dump(report, open(args.report, "w"), indent=1, ensure_ascii=False)


if __name__ == "__main__":
    main()
