#!/usr/bin/env python3
"""A Llama model out of a GGUF file as a checkpoint folder, for tests: weights as F16, everything else from the file's own metadata.

    gguf_to_checkpoint.py FILE.gguf DIR

DIR gets model.safetensors, config.json, generation_config.json, tokenizer.json and tokenizer_config.json with the chat template. Quantised
blocks become the numbers they stand for, rounded to F16. llama.cpp stores the rows of q_proj and k_proj so that the two halves
of a head that rotate together are neighbours: here they are put back.

Needs numpy.
"""
import json
import pathlib
import struct
import sys

import numpy as np

SCALARS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
STRING, ARRAY = 8, 9
F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8
BLOCK = 32                              # values of a quantised block
CONTROL, USER_DEFINED = 3, 4            # types of tokens

# What tokenizer.json says for a name in tokenizer.ggml.pre.
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
PRE_TOKENIZERS = {
    "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]},
}


class Gguf:
    """A file's metadata and tensors, as {name: (shape, type, offset)}; the innermost dimension is the last here."""

    def __init__(self, path):
        self.bytes = np.fromfile(path, np.uint8)
        self.at = 0
        if self.take(4) != b"GGUF" or self.number("<u4") != 3:
            sys.exit(f"{path}: not a GGUF file of version 3")
        tensors, keys = self.number("<u8"), self.number("<u8")
        self.metadata = {}
        for _ in range(keys):
            key = self.string()
            self.metadata[key] = self.value(self.number("<u4"))
        self.tensors = {}
        for _ in range(tensors):
            name = self.string()
            shape = [self.number("<u8") for _ in range(self.number("<u4"))][::-1]
            self.tensors[name] = shape, self.number("<u4"), self.number("<u8")
        alignment = self.metadata.get("general.alignment", 32)
        self.data = -(-self.at // alignment) * alignment

    def take(self, n):
        self.at += n
        return self.bytes[self.at - n:self.at].tobytes()

    def number(self, kind):
        kind = np.dtype(kind)
        return np.frombuffer(self.take(kind.itemsize), kind)[0].item()

    def string(self):
        return self.take(self.number("<u8")).decode()

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.number(SCALARS[kind])
        kind, n = self.number("<u4"), self.number("<u8")
        return [self.value(kind) for _ in range(n)]

    def floats(self, name):
        """A tensor's numbers, float32."""
        shape, kind, offset = self.tensors[name]
        n, start = int(np.prod(shape)), self.data + offset
        if kind in (F32, F16):
            return self.bytes[start:start + n * (4 if kind == F32 else 2)].view("<f4" if kind == F32 else "<f2").astype(np.float32).reshape(shape)
        size = {Q4_1: 20, Q8_0: 34}.get(kind)
        if not size:
            sys.exit(f"{name}: tensors of type {kind} are not supported")
        blocks = self.bytes[start:start + n // BLOCK * size].reshape(-1, size)
        scale = blocks[:, :2].copy().view("<f2").astype(np.float32)
        if kind == Q8_0:                # scale, 32 signed bytes
            return (scale * blocks[:, 2:].view(np.int8)).reshape(shape)
        low, high = blocks[:, 4:] & 15, blocks[:, 4:] >> 4          # scale, minimum, the first 16 codes in the low halves
        return (scale * np.hstack([low, high]) + blocks[:, 2:4].copy().view("<f2").astype(np.float32)).reshape(shape)


def unpermute(weight, heads):
    """Rows of q_proj or k_proj [heads * size, hidden]: pairs (2i, 2i + 1) of a head become (i, i + size / 2)."""
    return weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}
OUTSIDE = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}


def checkpoint_name(name):
    if name in OUTSIDE:
        return OUTSIDE[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.weight"


def write_weights(g, path, heads, kv_heads):
    header, offset, parts = {"__metadata__": {"format": "pt"}}, 0, []
    for name in g.tensors:
        weight = g.floats(name)
        if name.endswith("attn_q.weight"):
            weight = unpermute(weight, heads)
        if name.endswith("attn_k.weight"):
            weight = unpermute(weight, kv_heads)
        parts.append(weight.astype("<f2").tobytes())
        header[checkpoint_name(name)] = {"dtype": "F16", "shape": list(weight.shape), "data_offsets": [offset, offset + len(parts[-1])]}
        offset += len(parts[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        f.writelines(parts)


def config(g):
    m = g.metadata
    get = lambda key: m["llama." + key]
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": get("embedding_length"),
            "intermediate_size": get("feed_forward_length"), "num_hidden_layers": get("block_count"),
            "num_attention_heads": get("attention.head_count"), "num_key_value_heads": get("attention.head_count_kv"),
            "max_position_embeddings": get("context_length"), "rope_theta": get("rope.freq_base"), "rope_scaling": None,
            "rms_norm_eps": float(str(np.float32(get("attention.layer_norm_rms_epsilon")))), "vocab_size": len(m["tokenizer.ggml.tokens"]),
            "tie_word_embeddings": "output.weight" not in g.tensors, "attention_bias": False, "mlp_bias": False, "torch_dtype": "float16",
            "bos_token_id": m["tokenizer.ggml.bos_token_id"], "eos_token_id": m["tokenizer.ggml.eos_token_id"]}


def tokenizer(g):
    m = g.metadata
    if m["tokenizer.ggml.model"] != "gpt2" or m["tokenizer.ggml.pre"] not in PRE_TOKENIZERS:
        sys.exit(f"tokenizer {m['tokenizer.ggml.model']}, {m['tokenizer.ggml.pre']}: not supported")
    tokens = m["tokenizer.ggml.tokens"]
    added = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": kind == CONTROL}
             for i, kind in enumerate(m["tokenizer.ggml.token_type"]) if kind in (CONTROL, USER_DEFINED)]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
            "pre_tokenizer": PRE_TOKENIZERS[m["tokenizer.ggml.pre"]], "post_processor": None, "decoder": BYTE_LEVEL,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": {t: i for i, t in enumerate(tokens)},
                      "merges": [pair.split(" ") for pair in m["tokenizer.ggml.merges"]]}}


def tokenizer_config(g):
    m = g.metadata
    token = lambda name: m["tokenizer.ggml.tokens"][m[f"tokenizer.ggml.{name}_token_id"]]
    return {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": token("bos"), "eos_token": token("eos"), "clean_up_tokenization_spaces": False,
            "model_max_length": m["llama.context_length"], "chat_template": m["tokenizer.chat_template"]}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    g, folder = Gguf(sys.argv[1]), pathlib.Path(sys.argv[2])
    if g.metadata["general.architecture"] != "llama":
        sys.exit(f"{sys.argv[1]}: architecture {g.metadata['general.architecture']} is not supported")
    folder.mkdir(parents=True, exist_ok=True)
    c = config(g)
    write_weights(g, folder / "model.safetensors", c["num_attention_heads"], c["num_key_value_heads"])
    files = {"config.json": c, "generation_config.json": {k: c[k] for k in ("bos_token_id", "eos_token_id")},
             "tokenizer.json": tokenizer(g), "tokenizer_config.json": tokenizer_config(g)}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n")


main()
