#!/usr/bin/env python3
"""Tiny random checkpoints as Qwen3-Embedding-0.6B and Qwen3-Reranker-0.6B are published, with transformers' results, for the tests.

    make_embedding_fixtures.py tests/fixtures/embedding

Needs torch (CPU is enough), transformers >= 5.17, tokenizers and safetensors. What the published ones have, and these have of them:

    embedding   saved from Qwen3Model: names without "model.", no lm_head, though config.json says Qwen3ForCausalLM with a tied head; the
                tokenizer's post-processor puts <|endoftext|> after a text; modules.json and 1_Pooling: the last token's row, of length 1
    reranker    Qwen3ForCausalLM with a tied head; the tokenizer adds nothing; the answer is the last row's logits of "yes" and "no"

with twice as much in the heads as in the residual, as there (16 heads of 128, hidden_size 1024). A folder holds, beside the checkpoint,

    texts.txt        a text a line, line feeds in it as \\n; of the reranker instruction, query, document, with tabs between them
    tokens.i32       of each text: how many ids, and these
    embeddings.f32   [texts][2][hidden_size] of length 1: the last row; the mean of all rows
    scores.f32       [texts][3] logits of yes and of no after the prompt; the probability of yes among the two

The arithmetic is transformers', in float64 but for what it does in float32 itself (norms, rotation, softmax), on the weights as stored.
"""
import json
import pathlib
import shutil
import sys

import numpy
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

VOCAB = 320
TASK = "Given a web search query, retrieve relevant passages that answer the query"
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
LEARNT = """the capital of China is Beijing
gravity is a force that attracts two bodies towards each other
Given a web search query, retrieve relevant passages that answer the query
yes
no
yes
no
the document answers the query and the answer is in the document
"""
LONG = " ".join(f"Passage {i} tells of gravity, of the capital of China and of {i * i} other things." for i in range(12))
TEXTS = [f"Instruct: {TASK}\nQuery:What is the capital of China?", f"Instruct: {TASK}\nQuery:Explain gravity", "The capital of China is Beijing.",
         "Gravity is a force that attracts two bodies towards each other. It gives weight to physical objects.", "Gr\u00fc\u00dfe e\u0301 \u4e16\u754c \U0001f600  x\t1,234", "a", "",
         LONG]
PAIRS = [(TASK, "What is the capital of China?", "The capital of China is Beijing."), (TASK, "Explain gravity", "The capital of China is Beijing."),
         (TASK, "Explain gravity", "Gravity is a force that attracts two bodies towards each other. "), ("Find code", "\u4e16\u754c?", LONG)]
PREFIX = ('<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the '
          'answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n')
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def make_tokenizer(appends_end):
    """A byte-level BPE with Qwen3's steps, and few merges."""
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)])
    t.decoder = decoders.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    t.train_from_iterator(LEARNT.split("\n"), trainers.BpeTrainer(vocab_size=VOCAB - len(CONTROL), show_progress=False,
                                                                    initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.add_special_tokens([AddedToken(c, normalized=False) for c in CONTROL])
    bytes_alone = processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    end = processors.TemplateProcessing("$A:0 <|endoftext|>:0", "$A:0 <|endoftext|>:0 $B:1 <|endoftext|>:1",
                                        [("<|endoftext|>", t.token_to_id("<|endoftext|>"))])
    t.post_processor = processors.Sequence([bytes_alone, end]) if appends_end else bytes_alone
    assert t.get_vocab_size() == VOCAB and t.token_to_id("yes") and t.token_to_id("no")
    return t


def make_weights(config, prefix, seed, embeds):
    """embeds: deviation of the embedding, which is the head, too."""
    g = torch.Generator().manual_seed(seed)
    h, d, inner = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d

    def matrix(rows, cols):
        return (torch.randn(rows, cols, generator=g) * 1.5 / cols ** 0.5).bfloat16()

    def norm(n):
        return (1 + 0.3 * torch.randn(n, generator=g)).bfloat16()

    w = {"embed_tokens.weight": (embeds * torch.randn(VOCAB, h, generator=g)).bfloat16(), "norm.weight": norm(h)}
    for i in range(config["num_hidden_layers"]):
        w |= {f"layers.{i}.{name}.weight": value for name, value in {
            "input_layernorm": norm(h), "post_attention_layernorm": norm(h), "self_attn.q_norm": norm(d), "self_attn.k_norm": norm(d),
            "self_attn.q_proj": matrix(q, h), "self_attn.k_proj": matrix(kv, h), "self_attn.v_proj": matrix(kv, h), "self_attn.o_proj": matrix(h, q),
            "mlp.gate_proj": matrix(inner, h), "mlp.up_proj": matrix(inner, h), "mlp.down_proj": matrix(h, inner)}.items()}
    return {prefix + name: value.contiguous() for name, value in w.items()}


def make_checkpoint(to, tokenizer, end, prefix, seed, embeds, hidden, heads, kv_heads, head_dim, inner, context):
    """config.json as published, but for the sizes."""
    config = dict(architectures=["Qwen3ForCausalLM"], attention_bias=False, attention_dropout=0.0, bos_token_id=tokenizer.token_to_id("<|endoftext|>"),
                  eos_token_id=tokenizer.token_to_id(end), head_dim=head_dim, hidden_act="silu", hidden_size=hidden, initializer_range=0.02,
                  intermediate_size=inner, max_position_embeddings=context, max_window_layers=2, model_type="qwen3", num_attention_heads=heads,
                  num_hidden_layers=2, num_key_value_heads=kv_heads, rms_norm_eps=1e-6, rope_scaling=None, rope_theta=1000000,
                  sliding_window=None, tie_word_embeddings=True, torch_dtype="bfloat16", transformers_version="4.51.3", use_cache=True,
                  use_sliding_window=False, vocab_size=VOCAB)
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    (to / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tokenizer.save(str(to / "tokenizer.json"), pretty=False)
    (to / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer_class="PreTrainedTokenizerFast", eos_token="<|im_end|>", pad_token="<|endoftext|>"), indent=1) + "\n")
    save_file(make_weights(config, prefix, seed, embeds), str(to / "model.safetensors"), metadata={"format": "pt"})
    (to / "model.safetensors").chmod(0o644)


def write_texts(to, texts, tokens):
    (to / "texts.txt").write_text("".join(t.replace("\n", "\\n") + "\n" for t in texts), encoding="utf-8")
    numpy.concatenate([numpy.array([len(ids), *ids], "<i4") for ids in tokens]).tofile(to / "tokens.i32")
    print(f"{to}: {[len(ids) for ids in tokens]} tokens")


def make_embedding(to):
    make_checkpoint(to, make_tokenizer(True), "<|endoftext|>", "", 11, 1, 48, 2, 1, 48, 48, 2048)
    (to / "modules.json").write_text(json.dumps([dict(idx=i, name=str(i), path=f"{i}_{kind}" if i else "", type=f"sentence_transformers.models.{kind}")
                                                 for i, kind in enumerate(("Transformer", "Pooling", "Normalize"))], indent=1) + "\n")
    (to / "1_Pooling").mkdir()
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    (to / "1_Pooling" / "config.json").write_text(json.dumps(dict(word_embedding_dimension=48, include_prompt=True,
                                                                  **{"pooling_mode_" + m: m == "lasttoken" for m in modes}), indent=1) + "\n")
    tokenizer = AutoTokenizer.from_pretrained(to)
    tokens = [tokenizer(text)["input_ids"] for text in TEXTS]
    rows = {}
    for dtype in (torch.float64, torch.float32):
        model = AutoModel.from_pretrained(to, dtype=dtype, attn_implementation="eager").eval()
        assert type(model).__name__ == "Qwen3Model"
        with torch.no_grad():
            hidden = [model(torch.tensor([ids])).last_hidden_state[0] for ids in tokens]
        rows[dtype] = torch.stack([torch.nn.functional.normalize(torch.stack([h[-1], h.mean(0)]), dim=1) for h in hidden]).double()
    print(f"{to}: float32 is {(rows[torch.float64] - rows[torch.float32]).abs().max():.1e} off")
    write_texts(to, TEXTS, tokens)
    rows[torch.float64].float().numpy().astype("<f4").tofile(to / "embeddings.f32")


def make_reranker(to):
    make_checkpoint(to, make_tokenizer(False), "<|im_end|>", "model.", 22, 0.2, 32, 4, 2, 16, 64, 2048)
    tokenizer = AutoTokenizer.from_pretrained(to)
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
    tokens = [encode(PREFIX) + encode(f"<Instruct>: {task}\n<Query>: {query}\n<Document>: {text}") + encode(SUFFIX) for task, query, text in PAIRS]
    yes, no = tokenizer.convert_tokens_to_ids("yes"), tokenizer.convert_tokens_to_ids("no")
    model = AutoModelForCausalLM.from_pretrained(to, dtype=torch.float64, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = torch.stack([model(torch.tensor([ids])).logits[0, -1] for ids in tokens])[:, [yes, no]].double()
    write_texts(to, ["\t".join(p) for p in PAIRS], tokens)
    scores = torch.cat([logits, logits.softmax(1)[:, :1]], 1)
    print(scores)
    scores.float().numpy().astype("<f4").tofile(to / "scores.f32")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    out = pathlib.Path(sys.argv[1])
    make_embedding(out / "qwen3-embedding")
    make_reranker(out / "qwen3-reranker")
