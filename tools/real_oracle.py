#!/usr/bin/env python3
"""What transformers makes of a real model, in float32: the reference of tests/engine/real_model.c.

    real_oracle.py DIR tests/fixtures/real [FILE.gguf]

DIR is a folder of gguf_to_checkpoint.py. The fixtures' text.txt is read; reference.txt and tokenizer.jsonl are written:

    reference.txt     lines of a name, a count and as many numbers: ids of the text, the log-probability of each next one, logits at some
                      positions (every STRIDE-th, and the largest), greedy ids after a question, the turns of a conversation
    tokenizer.jsonl   {"text", "ids"}: texts, and what the tokenizers library makes of them

With a GGUF file, the one that DIR was made of, llama.cpp (xllamacpp) answers the same question, and how far it agrees is printed: it rounds
activations to 8 bits where weights are quantised, so it parts where two tokens are about as probable.

Needs torch, transformers and jinja2; xllamacpp for llama.cpp.
"""
import hashlib
import json
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

STRIDE, TOP, GREEDY, ANSWER = 1024, 16, 200, 60
QUESTION = "What is gravity?"
TALK = ["What is the capital of France?", "And of Italy?", "Tell me one thing that one can see there."]
TEXTS = ["", " ", "Hello, world!", "  two  spaces\n\n\nand lines\r\n\ttabs", "I'll say it's 3.14159, or 1,000,000!", "١٢٣ and ²½ and Ⅷ",
         "naïve café, Zürich, Ελληνικά, русский, 你好，世界, 한국어, हिन्दी", "😀👨‍👩‍👧 e\u0301\u0323", "<|im_start|>user\nHi<|im_end|>\n",
         "<|endoftext|><repo_name>x", "a\x04b\x1d\x7f c", "def f(x):\n    return x ** 2  # square\n", "x" * 100, " " * 50 + "end", "UPPER lower MiXeD",
         "https://example.org/a?b=c&d=%20", "\u00a0\u3000\u2028", "don't DON'T 'tis we've"]


def line(out, name, numbers, form="{}"):
    numbers = list(numbers)
    out.write(f"{name} {len(numbers)} " + " ".join(form.format(n) for n in numbers) + "\n")


@torch.no_grad()
def greedy(model, ids, most, ends):
    """Ids after a prompt, and the smallest distance between the best logit and the next."""
    new, gap, past, feed = [], float("inf"), None, torch.tensor([ids])
    while len(new) < most and not (new and new[-1] in ends):
        result = model(feed, past_key_values=past, use_cache=True)
        best = result.logits[0, -1].topk(2)
        gap = min(gap, (best.values[0] - best.values[1]).item())
        new.append(best.indices[0].item())
        past, feed = result.past_key_values, torch.tensor([new[-1:]])
    return new, gap


def write_text(out, model, ids):
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
    scores = torch.log_softmax(logits.double(), -1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    at = list(range(0, len(ids), max(1, len(ids) // 15)))
    line(out, "ids", ids)
    line(out, "logprobs", scores.tolist(), "{:.7g}")
    line(out, "perplexity", [torch.exp(-scores.mean()).item()], "{:.9g}")
    line(out, "positions", at)
    line(out, "stride", [STRIDE])
    line(out, "logits", logits[at, ::STRIDE].flatten().tolist(), "{:.6g}")
    top = logits[at].topk(TOP)
    line(out, "top_ids", top.indices.flatten().tolist())
    line(out, "top_logits", top.values.flatten().tolist(), "{:.6g}")
    line(out, "deviation", [logits[at].std().item()], "{:.6g}")


def prompt(tokenizer, messages):
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False).input_ids


def llama_cpp(path, tokenizer, ids, ours):
    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.cpuparams.n_threads, params.n_gpu_layers = 2048, 2, 0
    server = xllamacpp.Server(params)
    request = {"prompt": ids, "n_predict": len(ours), "temperature": 0, "n_probs": 3, "cache_prompt": False}
    told = server.handle_completions(request)["choices"][0]["logprobs"]["content"]
    theirs = [t["id"] for t in told]
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    print(f"llama.cpp: {same} of {len(ours)} greedy tokens are the same")
    if same < min(len(ours), len(theirs)):
        print("  here:", repr(tokenizer.decode(ours[same:same + 8])), " there:", repr(tokenizer.decode(theirs[same:same + 8])))
        print("  there:", [(t["token"], round(t["logprob"], 3)) for t in told[same]["top_logprobs"]])
    return same


def main():
    folder, fixtures = sys.argv[1], pathlib.Path(sys.argv[2])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ends = {tokenizer.eos_token_id}
    with open(fixtures / "tokenizer.jsonl", "w") as out:
        for text in TEXTS:
            out.write(json.dumps({"text": text, "ids": tokenizer(text, add_special_tokens=False).input_ids}, ensure_ascii=False) + "\n")
    with open(fixtures / "reference.txt", "w") as out:
        weights = (pathlib.Path(folder) / "model.safetensors").read_bytes()
        out.write(f"# {hashlib.sha256(weights).hexdigest()}\n")
        write_text(out, model, tokenizer((fixtures / "text.txt").read_text(), add_special_tokens=False).input_ids)
        ids = prompt(tokenizer, [{"role": "user", "content": QUESTION}])
        new, gap = greedy(model, ids, GREEDY, set())
        line(out, "question", ids)
        line(out, "greedy", new)
        line(out, "greedy_gap", [gap], "{:.6g}")
        messages = []
        for text in TALK:
            messages.append({"role": "user", "content": text})
            answer, gap = greedy(model, prompt(tokenizer, messages), ANSWER, ends)
            line(out, "turn", answer)
            line(out, "turn_gap", [gap], "{:.6g}")
            messages.append({"role": "assistant", "content": tokenizer.decode(answer, skip_special_tokens=True)})
            print(f"> {text}\n{messages[-1]['content']}\n")
    if len(sys.argv) > 3:
        same = llama_cpp(sys.argv[3], tokenizer, ids, new)
        if same < len(new):
            with torch.no_grad():
                logits = model(torch.tensor([ids + new[:same]])).logits[0, -1]
            scores = torch.log_softmax(logits, -1).topk(3)
            print("  here:", [(tokenizer.decode([t]), round(s, 3)) for t, s in zip(scores.indices.tolist(), scores.values.tolist())])


main()
