#!/usr/bin/env python3
"""A checkpoint of Qwen3.5-35B-A3B's sizes with random numbers, to time loading with. It cannot talk.

    python3 tools/make_large_checkpoint.py DIR nvfp4|gptq|fp8 [LAYERS]

nvfp4: experts and lm_head in modelopt's NVFP4, attention and DeltaNet in FP8 per tensor; gptq: experts in GPTQ's INT4, the rest
BF16; fp8: FP8 blocks. 40 layers are 22, 24 and 37 GB. Numbers repeat every 64 MB. Needs numpy.
"""
import json
import os
import struct
import sys

import numpy as np

HIDDEN, VOCAB, EXPERTS, SIZE = 2048, 248320, 256, 512
SHARD = 5 << 30


def pools():
    """Bytes that a tensor of a type may hold: no NaN, scales positive."""
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, 64 << 20, dtype=np.uint8)
    codes = np.where(raw & 127 == 127, 0x30, raw).astype(np.uint8)
    bf16 = ((rng.standard_normal(32 << 20, dtype=np.float32) * 0.02).view(np.uint32) >> 16).astype(np.uint16)
    return {"U8": raw, "I32": raw, "F8_E4M3": codes, "E4M3 scale": codes & 0x3f, "BF16": bf16.view(np.uint8),
            "F16 scale": np.full(1 << 20, 0.002, np.float16).view(np.uint8),
            "F32": np.full(1 << 10, 0.001, np.float32).view(np.uint8)}


BYTES = {"U8": 1, "F8_E4M3": 1, "E4M3 scale": 1, "BF16": 2, "F16 scale": 2, "I32": 4, "F32": 4}


def linear(name, rows, cols, layout):
    """[(name, type, shape)] of a matrix."""
    if layout == "nvfp4":
        return [(name + ".weight", "U8", (rows, cols // 2)), (name + ".weight_scale", "E4M3 scale", (rows, cols // 16)),
                (name + ".weight_scale_2", "F32", ()), (name + ".input_scale", "F32", ())]
    if layout == "gptq":
        return [(name + ".qweight", "I32", (cols // 8, rows)), (name + ".qzeros", "I32", (cols // 128, rows // 8)),
                (name + ".scales", "F16 scale", (cols // 128, rows))]
    if layout == "fp8":
        return [(name + ".weight", "F8_E4M3", (rows, cols)),
                (name + ".weight_scale_inv", "F32", (-(-rows // 128), -(-cols // 128)))]
    if layout == "fp8 tensor":
        return [(name + ".weight", "F8_E4M3", (rows, cols)), (name + ".weight_scale", "F32", ())]
    return [(name + ".weight", "BF16", (rows, cols))]


def vector(name, *shape):
    return [(name, "BF16", shape)]


def layer(at, full, experts, mixer):
    out = vector(at + "input_layernorm.weight", HIDDEN) + vector(at + "post_attention_layernorm.weight", HIDDEN)
    if full:
        a = at + "self_attn."
        for name, rows, cols in ("q_proj", 8192, HIDDEN), ("k_proj", 512, HIDDEN), ("v_proj", 512, HIDDEN), ("o_proj", HIDDEN, 4096):
            out += linear(a + name, rows, cols, mixer)
        out += vector(a + "q_norm.weight", 256) + vector(a + "k_norm.weight", 256)
    else:
        a = at + "linear_attn."
        for name, rows, cols in ("in_proj_qkv", 8192, HIDDEN), ("in_proj_z", 4096, HIDDEN), ("out_proj", HIDDEN, 4096):
            out += linear(a + name, rows, cols, mixer)
        out += linear(a + "in_proj_a", 32, HIDDEN, "bf16") + linear(a + "in_proj_b", 32, HIDDEN, "bf16")
        out += vector(a + "conv1d.weight", 8192, 1, 4) + vector(a + "norm.weight", 128)
        out += vector(a + "A_log", 32) + vector(a + "dt_bias", 32)
    m = at + "mlp."
    out += linear(m + "gate", EXPERTS, HIDDEN, "bf16") + linear(m + "shared_expert_gate", 1, HIDDEN, "bf16")
    shared = "bf16" if experts == "gptq" else experts
    for where, layout in [(m + "shared_expert.", shared)] + [(f"{m}experts.{e}.", experts) for e in range(EXPERTS)]:
        for name, rows, cols in ("gate_proj", SIZE, HIDDEN), ("up_proj", SIZE, HIDDEN), ("down_proj", HIDDEN, SIZE):
            out += linear(where + name, rows, cols, layout)
    return out


def config(kind, layers):
    types = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(layers)]
    text = dict(model_type="qwen3_5_moe_text", hidden_size=HIDDEN, num_hidden_layers=layers, vocab_size=VOCAB, hidden_act="silu",
                layer_types=types, rms_norm_eps=1e-6, num_attention_heads=16, num_key_value_heads=2, head_dim=256,
                attention_bias=False, attn_output_gate=True, linear_num_key_heads=16, linear_num_value_heads=32,
                linear_key_head_dim=128, linear_value_head_dim=128, linear_conv_kernel_dim=4, num_experts=EXPERTS,
                num_experts_per_tok=8, moe_intermediate_size=SIZE, shared_expert_intermediate_size=SIZE,
                max_position_embeddings=262144, mtp_num_hidden_layers=0, tie_word_embeddings=False, eos_token_id=248044,
                partial_rotary_factor=0.25, rope_parameters=dict(rope_type="default", rope_theta=1e7, partial_rotary_factor=0.25))
    out = dict(architectures=["Qwen3_5MoeForConditionalGeneration"], model_type="qwen3_5_moe", text_config=text,
               tie_word_embeddings=False)
    if kind == "fp8":
        out["quantization_config"] = dict(quant_method="fp8", weight_block_size=[128, 128])
    return out


def write(folder, tensors):
    """Shards of at most SHARD bytes, and their index."""
    data, shards, size = pools(), [[]], 0
    for name, kind, shape in tensors:
        n = BYTES[kind] * int(np.prod(shape, dtype=np.int64))
        if size + n > SHARD:
            shards.append([])
            size = 0
        shards[-1].append((name, kind, shape, size, size + n))
        size += n
    index = {}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        header = {name: dict(dtype=kind.replace("E4M3 scale", "F8_E4M3").replace(" scale", ""), shape=list(shape),
                             data_offsets=[begin, end]) for name, kind, shape, begin, end in shard}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(folder, file), "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for name, kind, shape, begin, end in shard:
                pool, left = data[kind], end - begin
                while left:
                    left -= out.write(pool[:left].data)
                index[name] = file
        print(f"{file}: {shard[-1][4] / 1e9:.1f} GB", file=sys.stderr)
    json.dump(dict(weight_map=index), open(os.path.join(folder, "model.safetensors.index.json"), "w"))


def main():
    folder, kind, layers = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 40
    os.makedirs(folder, exist_ok=True)
    mixer = {"nvfp4": "fp8 tensor", "gptq": "bf16", "fp8": "fp8"}[kind]
    root = "model.language_model."
    tensors = vector(root + "embed_tokens.weight", VOCAB, HIDDEN) + vector(root + "norm.weight", HIDDEN)
    tensors += linear("lm_head", VOCAB, HIDDEN, "nvfp4" if kind == "nvfp4" else "bf16")
    for i in range(layers):
        tensors += layer(f"{root}layers.{i}.", i % 4 == 3, kind, mixer)
    write(folder, tensors)
    json.dump(config(kind, layers), open(os.path.join(folder, "config.json"), "w"), indent=1)


if __name__ == "__main__":
    main()
