#!/usr/bin/env python3
"""A small random block drafter (DFlash) for a fixture of make_family_fixtures.py, with reference results.

    make_drafter_fixture.py TARGET OUT       write it
    make_drafter_fixture.py --check TARGET OUT

Needs numpy. A folder holds config.json and model.safetensors under the released names, and logits.f32 [len(COUNTS)][block - 1][vocab]: what a
block drafts after the first COUNTS[i] tokens of the target's prompt and its greedy continuation, row by row; the next of these tokens begins
the block. The reference is in float64, and computes everything again for each block: there is no state to get wrong. config.json has keys of
its target that mean nothing in a drafter, as published ones have: partial_rotary_factor, attn_output_gate.
"""
import json
import pathlib
import sys

import numpy as np

import make_family_fixtures as family

COUNTS, BLOCK, WINDOW, TAPS, MASK = (5, 40, 71, 75), 10, 24, (0, 2), 56
HEADS, PAIRS, DIM, INNER, KINDS = 4, 2, 16, 40, ("sliding_attention", "full_attention")


def config(target):
    c = target.c
    return dict(architectures=["DFlashDraftModel"], model_type="qwen3", hidden_size=c["hidden_size"], num_hidden_layers=len(KINDS), vocab_size=c["vocab_size"],
                num_attention_heads=HEADS, num_key_value_heads=PAIRS, head_dim=DIM, intermediate_size=INNER, hidden_act="silu", rms_norm_eps=1e-6,
                attention_bias=False, max_position_embeddings=4096, tie_word_embeddings=False, layer_types=list(KINDS), sliding_window=WINDOW,
                use_sliding_window=True, attn_output_gate=True, partial_rotary_factor=0.25, rope_parameters=dict(rope_type="default", rope_theta=1e5,
                partial_rotary_factor=0.25), block_size=BLOCK, num_target_layers=c["num_hidden_layers"],
                dflash_config=dict(mask_token_id=MASK, target_layer_ids=list(TAPS)))


def tensors(hidden):
    yield "fc.weight", (hidden, len(TAPS) * hidden), "matrix"
    for i in range(len(KINDS)):
        p = f"layers.{i}."
        for name, rows, columns in (("q", HEADS * DIM, hidden), ("k", PAIRS * DIM, hidden), ("v", PAIRS * DIM, hidden), ("o", hidden, HEADS * DIM)):
            yield f"{p}self_attn.{name}_proj.weight", (rows, columns), "matrix"
        for name in ("q_norm", "k_norm"): yield f"{p}self_attn.{name}.weight", (DIM,), "norm"
        for name, rows, columns in (("gate", INNER, hidden), ("up", INNER, hidden), ("down", hidden, INNER)):
            yield f"{p}mlp.{name}_proj.weight", (rows, columns), "matrix"
        for name in ("input", "post_attention"): yield f"{p}{name}_layernorm.weight", (hidden,), "norm"
    for name in ("hidden_norm", "norm"): yield name + ".weight", (hidden,), "norm"


def taps(target, ids):
    """-> [T, taps * hidden]: the target's residual after the layers of TAPS"""
    x, seen = target.w(target.body + "embed_tokens.weight")[ids], []
    for i, kind in enumerate(family.layer_kinds(target.c)):
        x = target.layer(x, f"{target.body}layers.{i}.", kind)
        seen.append(x)
    return np.concatenate([seen[i] for i in TAPS], -1)


def drafts(target, stored, ids, begin):
    """-> logits [BLOCK - 1, vocab] of a block that token `begin` begins, after ids"""
    def w(name): return (stored[name][1].astype("<u4") << 16).view("<f4").astype(np.float64)
    def norm(x, name): return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w(name + ".weight")
    def linear(x, name): return x @ w(name + ".weight").T
    def turn(x, first):
        angle = (first + np.arange(len(x)))[:, None, None] * 1e5 ** (-2.0 * np.arange(DIM // 2) / DIM)
        a, b = x[..., :DIM // 2], x[..., DIM // 2:]
        return np.concatenate((a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)), -1)
    def heads(x): return x.reshape(len(x), -1, DIM)

    T, context = len(ids), norm(linear(taps(target, ids), "fc"), "hidden_norm")
    x = target.w(target.body + "embed_tokens.weight")[[begin] + [MASK] * (BLOCK - 1)]
    for i, kind in enumerate(KINDS):
        p = f"layers.{i}.self_attn."
        u = norm(x, f"layers.{i}.input_layernorm")
        both = np.concatenate((context, u))
        q = turn(norm(heads(linear(u, p + "q_proj")), p + "q_norm"), T)
        k, v = turn(norm(heads(linear(both, p + "k_proj")), p + "k_norm"), 0), heads(linear(both, p + "v_proj"))
        k, v = (np.repeat(y, HEADS // PAIRS, 1) for y in (k, v))
        scores, age = np.einsum("ihd,jhd->hij", q, k) * DIM ** -0.5, T + np.arange(BLOCK)[:, None] - np.arange(T + BLOCK)
        if kind == "sliding_attention": scores[:, (age < 0) | (age >= WINDOW)] = -np.inf
        x = x + linear(np.einsum("hij,jhd->ihd", family.softmax(scores), v).reshape(BLOCK, -1), p + "o_proj")
        u, p = norm(x, f"layers.{i}.post_attention_layernorm"), f"layers.{i}.mlp."
        x = x + linear(family.silu(linear(u, p + "gate_proj")) * linear(u, p + "up_proj"), p + "down_proj")
    return norm(x[1:], "norm") @ target.w("lm_head.weight").T


def reference(target, folder, stored):
    line = np.concatenate([np.fromfile(folder / name, "<i4") for name in ("tokens.i32", "greedy.i32")])
    return np.stack([drafts(target, stored, line[:n], line[n]) for n in COUNTS])


if __name__ == "__main__":
    source, out = (pathlib.Path(name) for name in sys.argv[-2:])
    target = family.Model(source)
    if sys.argv[1] == "--check":
        want = np.fromfile(out / "logits.f32", "<f4")
        off = np.abs(reference(target, source, family.read_tensors(out / "model.safetensors")).ravel() - want).max() / want.std()
        print(out, f"off by {off:.1e} of the logits' deviation")
        sys.exit(bool(off > 1e-6))
    rng, stored = np.random.default_rng(7), {}
    for name, shape, kind in tensors(target.c["hidden_size"]): stored[name] = "BF16", family.to_bf16(family.draw(kind, shape, rng))
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config(target), indent=1) + "\n")
    family.write_tensors(out / "model.safetensors", stored)
    logits = reference(target, source, stored)
    logits.astype("<f4").tofile(out / "logits.f32")
    print(out, "logit_std", round(float(logits.std()), 3), "bytes", sum(file.stat().st_size for file in out.iterdir()), "drafts", logits.argmax(-1).tolist())
