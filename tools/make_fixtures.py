#!/usr/bin/env python3
"""Random qwen3_5_moe checkpoints with reference results, for the tests.

    make_fixtures.py OUT [NAME...]            write the small set (or the named fixtures) as OUT/NAME/
    make_fixtures.py OUT --large [NAME...]    the same for the larger set, which is not committed
    make_fixtures.py OUT --real-sizes [NAME...]
                                              the same with the layer sizes of Qwen3.5-35B-A3B: 12 GB, made and computed
                                              on a GPU if torch has one, which takes a minute
    make_fixtures.py --check DIR...           read fixtures back from disk and compare with their stored results

Needs torch (CPU is enough), transformers >= 5.17 and safetensors. A fixture folder holds

    config.json, model.safetensors (or shards and an index)   the checkpoint
    tokens.i32       T prompt ids
    logits.f32       [T, vocab] logits of the prompt
    mtp_logits.f32   [T-1, vocab] MTP logits: row p takes token p+1 and the final-normed hidden of p; absent without MTP
    greedy.i32       greedy continuation
    meta.json        sizes, seed, and how far the nearest ties are

and with real sizes also logits_bf16.f32 and mtp_logits_bf16.f32: the same with keys and values rounded to BF16.

All files are little endian. The arithmetic is float32 on the weights exactly as stored. The body is transformers' own
Qwen3_5MoeForCausalLM; transformers has no MTP head, so that one is put together here from its decoder layer.

Contents: 1 fixtures  2 weights  3 storage  4 reference  5 files  6 command line
"""
import argparse
import contextlib
import dataclasses
import json
import pathlib
import re
import sys
import time

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as hf
from transformers.models.qwen3_5_moe.configuration_qwen3_5_moe import Qwen3_5MoeTextConfig

import quant_layouts

BF16, F16, F32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
BLOCK = 128                     # FP8 weights have one scale per BLOCK x BLOCK tile; the last tiles may be smaller


# ---- 1. Fixtures ----------------------------------------------------------------------------------------------------
# Each one differs from the others in as many ways as possible: a formula that is wrong for some size, name or dtype
# should fail somewhere. Sizes are deliberately not powers of two.

@dataclasses.dataclass
class Fixture:
    text: dict                          # the text part of config.json, as it will be written
    tokens: int                         # prompt length
    seed: int                           # first seed to try
    nested: bool = False                # text_config and model.language_model.*, or flat and model.*
    dtype: torch.dtype = BF16           # of everything not named below
    dtypes: tuple = ()                  # (pattern, dtype) exceptions, first match wins
    fp8_scale: torch.dtype = None       # set: matrices are block FP8 with scales of this dtype
    fp8_not: str = "$^"                 # pattern of the matrices which stay as they are
    layouts: tuple = ()                 # (pattern, layout of quant_layouts.py) of quantised matrices, first match wins
    config: dict = None                 # quantization_config, with these
    kv_scales: bool = False             # add the scales of an FP8 cache, which the reference has no use for
    experts: str = "each"               # "each": three matrices per expert; "stacked": two 3-D tensors
    mtp_experts: str = "each"
    shards: str = None                  # None: one file; "split": two files by turns; "layers": one file per layer
    vision: bool = False                # add a few model.visual.* tensors, of which config.json says nothing
    greedy: int = 12
    greedy_gap: float = 1e-2            # least distance of the two best logits along the greedy continuation
    router_gap: float = 1e-4            # least distance of the last chosen and the first dropped router logit


def sizes(hidden, layers, vocab, heads, delta, experts, **more):
    """heads = (query, key-value, dim); delta = (key heads, value heads, key dim, value dim);
    experts = (count, chosen, inner size, inner size of the shared one)."""
    text = dict(hidden_size=hidden, num_hidden_layers=layers, vocab_size=vocab, hidden_act="silu", rms_norm_eps=1e-6,
                num_attention_heads=heads[0], num_key_value_heads=heads[1], head_dim=heads[2], attention_bias=False,
                attn_output_gate=True, linear_num_key_heads=delta[0], linear_num_value_heads=delta[1],
                linear_key_head_dim=delta[2], linear_value_head_dim=delta[3], linear_conv_kernel_dim=4,
                num_experts=experts[0], num_experts_per_tok=experts[1], moe_intermediate_size=experts[2],
                shared_expert_intermediate_size=experts[3], max_position_embeddings=4096, mtp_num_hidden_layers=1,
                tie_word_embeddings=False, eos_token_id=vocab - 1)
    text.update(more)
    return {key: value for key, value in text.items() if value is not None}


def rope(theta=1e7, fraction=0.25, **more):
    return dict(rope_type="default", rope_theta=theta, partial_rotary_factor=fraction, **more)


def pattern(letters):
    return [{"d": "linear_attention", "a": "full_attention"}[letter] for letter in letters]


DELTA_F32 = ((r"A_log$|linear_attn\.norm\.weight$", F32),)          # as the released 3.5 checkpoints
MROPE = dict(mrope_section=[11, 11, 10], mrope_interleaved=True)

SMALL = {
    "bf16-as-3.5": Fixture(
        sizes(40, 4, 100, (4, 1, 32), (2, 4, 16, 16), (5, 2, 20, 20), layer_types=pattern("ddda"),
              full_attention_interval=4, partial_rotary_factor=0.25, rope_parameters=rope(**MROPE)),
        tokens=72, seed=100, nested=True, dtypes=DELTA_F32, experts="stacked", shards="split", vision=True),
    "bf16-as-3.6": Fixture(
        sizes(28, 3, 67, (4, 2, 24), (2, 6, 20, 12), (5, 3, 20, 28), full_attention_interval=2,
              linear_conv_kernel_dim=3, output_gate_type="swish", rms_norm_eps=1e-3,
              rope_parameters=rope(1e6, 0.5)),
        tokens=66, seed=250, nested=True, experts="stacked", mtp_experts="stacked"),
    "f32-tied": Fixture(
        sizes(28, 2, 64, (2, 2, 16), (2, 2, 12, 20), (3, 1, 20, 16), layer_types=pattern("ad"), rms_norm_eps=1e-2,
              tie_word_embeddings=True, rope_parameters=rope(1e4, 1.0)),
        tokens=40, seed=300, dtype=F32),
    "f16-all-delta": Fixture(
        sizes(32, 3, 66, (2, 1, 16), (1, 4, 16, 12), (4, 4, 16, 24), layer_types=pattern("ddd"),
              linear_conv_kernel_dim=2, mtp_num_hidden_layers=None, rope_parameters=rope()),
        tokens=80, seed=400, dtype=F16, experts="stacked"),
    "mixed-all-attention": Fixture(
        sizes(32, 2, 59, (6, 3, 20), (1, 1, 8, 8), (4, 2, 12, 20), layer_types=pattern("aa"),
              rope_parameters=rope(5e5, 0.5)),
        tokens=48, seed=500, mtp_experts="stacked",
        dtypes=((r"embed_tokens|down_proj", F16), (r"lm_head|gate\.weight$|q_norm|experts\.2\.up", F32))),
    "fp8-ragged": Fixture(
        sizes(144, 2, 70, (2, 1, 40), (2, 6, 20, 24), (3, 2, 40, 36), layer_types=pattern("da"),
              full_attention_interval=2, rope_parameters=rope()),
        tokens=32, seed=600, nested=True, fp8_scale=BF16, dtypes=DELTA_F32, shards="layers"),
    "fp8-f32-scales": Fixture(
        sizes(32, 2, 52, (4, 2, 24), (1, 3, 32, 24), (3, 2, 136, 40), layer_types=pattern("ad"),
              rope_parameters=rope(1e6, 0.5)),
        tokens=30, seed=700, fp8_scale=F32, fp8_not=r"^mtp.*self_attn|k_proj|v_proj|layers\.1\..*shared_expert"),
    "nvfp4-fp8-tensor": Fixture(
        sizes(64, 2, 56, (4, 2, 16), (2, 4, 16, 12), (3, 2, 48, 32), layer_types=pattern("da"), rope_parameters=rope()),
        tokens=40, seed=800, nested=True, mtp_experts="stacked", kv_scales=True,
        layouts=((r"^mtp", None), (r"experts\.\d|shared_expert\.|lm_head", "nvfp4"),
                 (r"self_attn\.[qkvo]_proj|in_proj_qkv|in_proj_z|out_proj", "fp8-tensor")),
        config=dict(quant_method="modelopt", quant_algo="MIXED_PRECISION", ignore=["mtp*"])),
    "ct-nvfp4-fp8-int4": Fixture(
        sizes(64, 2, 57, (2, 1, 32), (1, 3, 16, 16), (4, 2, 32, 64), layer_types=pattern("ad"), rope_parameters=rope(1e6, 0.5)),
        tokens=36, seed=900,
        layouts=((r"layers\.0\.mlp\.experts\.\d", "nvfp4-ct"), (r"layers\.1\.mlp\.experts\.\d|lm_head", "fp8-channel"),
                 (r"^mtp.*experts\.\d", "int4-asym:32"), (r"shared_expert\.", "int4-asym:32"),
                 (r"self_attn\.[qkvo]_proj", "fp8-channel"), (r"in_proj_qkv|in_proj_z", "int4:64")),
        config=dict(quant_method="compressed-tensors", format="mixed-precision")),
    "gptq-awq-int4": Fixture(
        sizes(128, 2, 53, (4, 2, 16), (2, 4, 16, 16), (3, 2, 32, 48), layer_types=pattern("da"), rope_parameters=rope()),
        tokens=34, seed=950,
        layouts=((r"experts\.\d+\.(gate|up)_proj", "gptq:64"), (r"experts\.\d+\.down_proj", "gptq:32"),
                 (r"shared_expert\.", "gptq:0"), (r"self_attn\.[qkvo]_proj|in_proj_qkv|in_proj_z", "awq:32")),
        config=dict(quant_method="gptq", bits=4, group_size=64, sym=False, desc_act=False, checkpoint_format="gptq")),
}

LARGE = {
    "large-1500": Fixture(
        sizes(192, 8, 700, (6, 2, 80), (2, 6, 40, 32), (16, 4, 96, 160), layer_types=pattern("dddaddda"),
              full_attention_interval=4, rope_parameters=rope(**MROPE)),
        tokens=1500, seed=1000, nested=True, fp8_scale=BF16, dtypes=DELTA_F32, shards="split", greedy=24,
        greedy_gap=5e-3, router_gap=1e-5),
    "large-real-ratios": Fixture(
        sizes(128, 4, 520, (8, 1, 256), (2, 4, 128, 128), (32, 8, 40, 40), layer_types=pattern("ddda"),
              full_attention_interval=4, partial_rotary_factor=0.25, rope_parameters=rope(**MROPE)),
        tokens=300, seed=1100, nested=True, fp8_scale=BF16, shards="layers", vision=True, greedy=24,
        greedy_gap=5e-3, router_gap=1e-5),
    "large-ratio-4": Fixture(
        sizes(112, 12, 1000, (8, 2, 48), (2, 8, 32, 32), (24, 10, 28, 200), full_attention_interval=3,
              tie_word_embeddings=True, rope_parameters=rope(1e5, 0.5)),
        tokens=700, seed=1200, nested=True, experts="stacked", mtp_experts="stacked", shards="split", greedy=24,
        greedy_gap=5e-3, router_gap=1e-5),
}


# The layers of Qwen3.5-35B-A3B, four and the MTP layer, stored as its two releases are. Routers with 256 experts are
# close to a tie somewhere in every prompt: here the prompt is chosen, not the seed (see choose_prompt).
def real_sizes():
    return sizes(2048, 4, 2048, (16, 2, 256), (16, 32, 128, 128), (256, 8, 512, 512), layer_types=pattern("ddda"),
                 full_attention_interval=4, partial_rotary_factor=0.25, rope_parameters=rope(**MROPE))


REAL = {
    "real-bf16": Fixture(real_sizes(), tokens=120, seed=2000, nested=True, dtypes=DELTA_F32, experts="stacked",
                         shards="layers", router_gap=1e-3),
    "real-fp8": Fixture(real_sizes(), tokens=120, seed=2100, nested=True, dtypes=DELTA_F32, fp8_scale=BF16,
                        shards="layers", router_gap=1e-3),
}


# ---- 2. Weights -----------------------------------------------------------------------------------------------------
# Every vector is random too (a norm left at its start value would hide a missing 1+w), and the spreads are chosen so
# that activations neither die out nor explode and logits come out with a standard deviation of about 2.5.

def draw(name, shape, tied, generator):
    noise = torch.randn(shape, generator=generator, device=generator.device)
    fan_in = shape[-1] ** 0.5
    if name.endswith("A_log"):
        return (torch.rand(shape, generator=generator, device=generator.device) * 8 + 0.05).log()
    if name.endswith("dt_bias"):
        return noise * 0.5 - 1
    if name.endswith("linear_attn.norm.weight"):
        return noise * 0.1 + 1                          # the only norm whose weight is not centred on zero
    if "norm" in name:
        return noise * 0.15
    if "conv1d" in name:
        return noise * 0.5
    if "embed_tokens" in name:
        return noise * (2.5 / fan_in if tied else 1)
    if name.endswith("mlp.gate.weight"):
        return noise * 2 / fan_in
    return noise * (2.5 if "lm_head" in name else 1.2) / fan_in


# ---- 3. Storage -----------------------------------------------------------------------------------------------------
# to_tensors() turns a model's parameters into the tensors of a checkpoint, from_tensors() turns any checkpoint of the
# family back into float32 parameters. The reference always computes with what came back, so it sees every rounding.

FP8_MATRIX = re.compile(r"(self_attn\.[qkvo]_proj|linear_attn\.(in_proj_qkv|in_proj_z|out_proj)"
                        r"|(gate|up|down)_proj)\.weight$")
STACKED = re.compile(r"(.*\.experts)\.(gate_up|down)_proj$")


def quantise(matrix, scale_dtype):
    """[out, in] -> FP8 codes and scales [ceil(out/BLOCK), ceil(in/BLOCK)] with matrix = codes * scale."""
    rows, columns = matrix.shape
    padded = nn.functional.pad(matrix, (0, -columns % BLOCK, 0, -rows % BLOCK))
    tiles = padded.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
    scale = (tiles.abs().amax((1, 3)) / 448).clamp(min=1e-12).to(scale_dtype)
    return (matrix / spread(scale, matrix.shape)).clamp(-448, 448).to(FP8), scale


def spread(scale, shape):
    wide = scale.float().repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return wide[:shape[0], :shape[1]]


def stored_name(parameter, nested, is_mtp):
    if is_mtp:
        return "mtp." + parameter
    return re.sub(r"^model\.", "model.language_model.", parameter) if nested else parameter


def parameters(body, mtp, nested):
    """(parameter, checkpoint name, belongs to MTP) of the whole model; a tied lm_head does not appear."""
    for module in (body, mtp):
        for name, parameter in (module.named_parameters() if module is not None else ()):
            yield parameter, stored_name(name, nested, module is mtp), module is mtp


def split_experts(name, stack):
    """One stacked parameter [experts, out, in] -> the matrices of its experts."""
    base, kind = STACKED.match(name).groups()
    for e, matrix in enumerate(stack):
        if kind == "down":
            yield f"{base}.{e}.down_proj.weight", matrix
        else:
            gate, up = matrix.chunk(2)
            yield f"{base}.{e}.gate_proj.weight", gate
            yield f"{base}.{e}.up_proj.weight", up


def to_tensors(fixture, body, mtp):
    tensors = {}
    for parameter, name, is_mtp in parameters(body, mtp, fixture.nested):
        each = (fixture.mtp_experts if is_mtp else fixture.experts) == "each"
        pieces = split_experts(name, parameter.data) if each and STACKED.match(name) else [(name, parameter.data)]
        for piece, value in pieces:
            layout = next((layout for pat, layout in fixture.layouts if re.search(pat, piece)), None)
            if layout:
                for suffix, part in quant_layouts.pack(value, layout).items():
                    tensors[piece.removesuffix("weight") + suffix] = part
            elif fixture.fp8_scale and FP8_MATRIX.search(piece) and not re.search(fixture.fp8_not, piece):
                tensors[piece], tensors[piece + "_scale_inv"] = quantise(value, fixture.fp8_scale)
            else:
                dtype = next((d for pat, d in fixture.dtypes if re.search(pat, piece)), fixture.dtype)
                tensors[piece] = value.to(dtype)
        if fixture.kv_scales and name.endswith("self_attn.k_norm.weight"):
            for kv, scale in (("k", 0.0123), ("v", 0.0061)):
                tensors[name.replace("k_norm.weight", f"{kv}_proj.{kv}_scale")] = torch.tensor(scale)
                tensors[name.replace("k_norm.weight", f"{kv}_proj.input_scale")] = torch.tensor(0.5)
    return {name: tensor.contiguous().clone() for name, tensor in tensors.items()}


def from_tensors(tensors, body, mtp, nested):
    """Fills the parameters; every tensor must be used exactly once, vision aside."""
    left = {name: tensor for name, tensor in tensors.items()
            if not re.search(r"^model\.visual\.|_proj\.[kv]_scale$", name)}

    def take(name, shape):
        scale = left.pop(name + "_scale_inv", None)
        if scale is not None:
            value = left.pop(name).float()
            return value * spread(scale, value.shape)
        if len(shape) == 2 and name.endswith(".weight"):
            return quant_layouts.unpack(lambda part: left.pop(name.removesuffix("weight") + part, None), shape)
        return left.pop(name).float()

    for parameter, name, _ in parameters(body, mtp, nested):
        if name in left or not STACKED.match(name):
            value = take(name, parameter.shape)
        else:
            rows = [take(piece, matrix.shape) for piece, matrix in split_experts(name, parameter.data)]
            value = torch.cat(rows).view(parameter.shape)
        assert value.shape == parameter.shape, name
        parameter.data.copy_(value)
    assert not left, f"unused tensors: {sorted(left)[:3]}"


def vision_tensors(generator):
    """A few tensors named as a vision tower's; a text engine skips them whatever their shape, one is even empty."""
    shapes = {"patch_embed.proj.weight": (8, 3, 2, 4, 4), "patch_embed.proj.bias": (8,), "pos_embed.weight": (16, 8),
              "blocks.0.attn.qkv.weight": (24, 8), "blocks.0.attn.qkv.bias": (24,), "blocks.0.norm1.weight": (8,),
              "merger.linear_fc1.weight": (32, 32), "deepstack_merger_list.weight": (0, 8)}
    return {"model.visual." + name: torch.randn(shape, generator=generator).to(BF16) for name, shape in shapes.items()}


# ---- 4. Reference ---------------------------------------------------------------------------------------------------
# No cache anywhere: each greedy step runs the whole sequence again, so the reference has no state to get wrong.

class MtpHead(nn.Module):
    """fc([norm(embedding of the next token), norm(hidden)]) -> one attention + MoE layer -> norm. Shares lm_head."""

    def __init__(self, text):
        super().__init__()
        config = text_config(dict(text, num_hidden_layers=1, layer_types=pattern("a")))
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.pre_fc_norm_embedding = hf.Qwen3_5MoeRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.pre_fc_norm_hidden = hf.Qwen3_5MoeRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList([hf.Qwen3_5MoeDecoderLayer(config, 0)])
        self.norm = hf.Qwen3_5MoeRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary = hf.Qwen3_5MoeTextRotaryEmbedding(config)

    def forward(self, embeddings, hidden):
        both = torch.cat((self.pre_fc_norm_embedding(embeddings), self.pre_fc_norm_hidden(hidden)), dim=-1)
        rows = both.shape[1]
        angles = self.rotary(both, torch.arange(rows).expand(3, 1, rows))
        future = torch.full((1, 1, rows, rows), -torch.inf).triu(1)
        return self.norm(self.layers[0](self.fc(both), position_embeddings=angles, attention_mask=future))


def text_config(text):
    config = Qwen3_5MoeTextConfig(**text)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"    # expert by expert, in float32
    return config


def build(text, has_mtp):
    body = hf.Qwen3_5MoeForCausalLM(text_config(text)).float().eval()
    if body.config.tie_word_embeddings:
        assert body.lm_head.weight is body.model.embed_tokens.weight
    return body, MtpHead(text).float().eval() if has_mtp else None


class RouterGap:
    """Watches every router: the smallest distance between the last chosen and the first dropped logit, over all and by
    the number of the last token that a row depends on."""

    def __init__(self, body, mtp):
        self.least, self.by_token = torch.inf, {}
        for model, ahead in ((body, 0), (mtp, 1)):
            for module in model.modules() if model else ():
                if isinstance(module, hf.Qwen3_5MoeTopKRouter) and module.top_k < module.num_experts:
                    module.register_forward_hook(lambda *arguments, ahead=ahead: self.see(*arguments, ahead))

    def see(self, router, _, output, ahead):
        best = output[0].topk(router.top_k + 1).values
        for token, gap in enumerate((best[:, -2] - best[:, -1]).tolist(), ahead):
            self.by_token[token] = min(gap, self.by_token.get(token, torch.inf))
            self.least = min(self.least, gap)

    def first_below(self, least):
        """The first token with a smaller gap than that, or None."""
        return min((token for token, gap in self.by_token.items() if gap < least), default=None)

    def forget(self):
        self.least, self.by_token = torch.inf, {}


@torch.no_grad()
def prompt_logits(body, mtp, ids):
    """[T] -> logits [T, vocab] and MTP logits [T-1, vocab] (or None)."""
    hidden = body.model(ids[None], use_cache=False).last_hidden_state
    logits = body.lm_head(hidden)[0]
    if mtp is None:
        return logits, None
    return logits, body.lm_head(mtp(body.model.embed_tokens(ids[None, 1:]), hidden[:, :-1]))[0]


@torch.no_grad()
def continue_greedily(body, ids, count, least_gap, routers=None, router_gap=0):
    """-> (count new ids, smallest gap), or (None, gap) as soon as a gap, or a router's, is smaller than given."""
    smallest = torch.inf
    for _ in range(count):
        best = body(ids[None], use_cache=False, logits_to_keep=1).logits[0, -1].topk(2)
        smallest = min(smallest, (best.values[0] - best.values[1]).item())
        if smallest < least_gap or routers and routers.least < router_gap:
            return None, smallest
        ids = torch.cat((ids, best.indices[:1]))
    return ids[-count:], smallest


@contextlib.contextmanager
def bf16_cache():
    """Attention with keys and values rounded to BF16, as a cache of that type keeps them."""
    exact = hf.eager_attention_forward

    def rounding(module, query, key, value, *more, **named):
        return exact(module, query, key.to(BF16).float(), value.to(BF16).float(), *more, **named)

    hf.eager_attention_forward = rounding
    try:
        yield
    finally:
        hf.eager_attention_forward = exact


def choose_prompt(fixture, body, mtp, ids, routers, generator):
    """Changes tokens of a prompt until no router is close to a tie, with either cache, then its last one until that
    holds for the greedy continuation too. -> (results by file name, greedy ids, smallest gap of the greedy ids)"""
    def draw_token(at):
        ids[at] = torch.randint(0, fixture.text["vocab_size"] - 1, (), generator=generator, device=ids.device)

    for _ in range(1000):
        routers.forget()
        exact = prompt_logits(body, mtp, ids)
        with bf16_cache():
            rounded = prompt_logits(body, mtp, ids)
        close = routers.first_below(fixture.router_gap)
        if close is not None:
            draw_token(close)
            continue
        greedy, gap = continue_greedily(body, ids, fixture.greedy, fixture.greedy_gap, routers, fixture.router_gap)
        if greedy is not None and fixture.text["eos_token_id"] not in greedy:
            return {"logits": exact[0], "mtp_logits": exact[1], "logits_bf16": rounded[0],
                    "mtp_logits_bf16": rounded[1]}, greedy, gap
        draw_token(-1)
    raise SystemExit("no prompt without near ties")


def largest_difference(logits, others):
    """As a share of the logits' standard deviation."""
    return ((logits - others).abs().max() / logits.std()).item()


def own_error(body, ids, logits):
    """What float32 costs: the reference's distance from itself, computed for a shorter prompt in other blocks."""
    rows = len(ids) * 2 // 3
    return largest_difference(logits[:rows], prompt_logits(body, None, ids[:rows])[0])


# ---- 5. Files -------------------------------------------------------------------------------------------------------

def full_config(fixture, tensors):
    text = dict(fixture.text, model_type="qwen3_5_moe_text", dtype=str(fixture.dtype).removeprefix("torch."))
    if fixture.nested:
        config = dict(architectures=["Qwen3_5MoeForConditionalGeneration"], model_type="qwen3_5_moe", text_config=text,
                      tie_word_embeddings=text["tie_word_embeddings"])
    else:
        config = dict(architectures=["Qwen3_5MoeForCausalLM"], **text)
    if fixture.config:
        config["quantization_config"] = fixture.config
    if fixture.fp8_scale:
        plain = sorted(name.removesuffix(".weight") for name, tensor in tensors.items()
                       if name.endswith(".weight") and tensor.dim() == 2 and tensor.dtype != FP8)
        config["quantization_config"] = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic",
                                             weight_block_size=[BLOCK, BLOCK], modules_to_not_convert=plain)
    return config


def shard_of(style, index, name):
    if style is None:
        return "model.safetensors"
    if style == "split":                        # by turns: an FP8 matrix and its scales land in different files
        return f"model-0000{index % 2 + 1}-of-00002.safetensors"
    layer = re.match(r"model\..*layers\.(\d+)\.", name)
    return f"layers-{layer[1]}.safetensors" if layer else \
        "mtp.safetensors" if name.startswith("mtp.") else "outside.safetensors"


def write_checkpoint(folder, fixture, tensors):
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    shards, weight_map = {}, {}
    for index, (name, tensor) in enumerate(tensors.items()):
        weight_map[name] = shard_of(fixture.shards, index, name)
        shards.setdefault(weight_map[name], {})[name] = tensor
    for file, part in shards.items():
        save_file({name: tensor.cpu() for name, tensor in part.items()}, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(0o644)
    if fixture.shards:
        index = {"metadata": {"total_size": total_bytes(tensors)}, "weight_map": weight_map}
        write_json(folder / "model.safetensors.index.json", index)
    write_json(folder / "config.json", full_config(fixture, tensors))


def total_bytes(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def write_array(path, tensor, dtype):
    tensor.cpu().numpy().astype(dtype).tofile(path)


def random_model(fixture, seed):
    """-> body, MTP head, the tensors that the checkpoint will hold, a prompt, and the generator."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    body, mtp = build(fixture.text, fixture.text.get("mtp_num_hidden_layers", 0) > 0)
    for parameter, parameter_name, _ in parameters(body, mtp, fixture.nested):
        parameter.data = draw(parameter_name, parameter.shape, body.config.tie_word_embeddings, generator)
    if body.config.tie_word_embeddings:
        body.lm_head.weight = body.model.embed_tokens.weight
    tensors = to_tensors(fixture, body, mtp)
    from_tensors(tensors, body, mtp, fixture.nested)
    ids = torch.randint(0, fixture.text["vocab_size"] - 1, (fixture.tokens,), generator=generator,
                        device=generator.device)
    return body, mtp, tensors, ids, generator


def write_fixture(out, name, fixture):
    """Tries seeds until neither the greedy continuation nor a router is close to a tie, then writes the folder."""
    for seed in range(fixture.seed, fixture.seed + 90):
        body, mtp, tensors, ids, generator = random_model(fixture, seed)
        routers = RouterGap(body, mtp)
        logits, mtp_logits = prompt_logits(body, mtp, ids)
        if routers.least < fixture.router_gap:
            continue
        greedy, gap = continue_greedily(body, ids, fixture.greedy, fixture.greedy_gap)
        if greedy is not None and fixture.text["eos_token_id"] not in greedy and routers.least >= fixture.router_gap:
            break
    else:
        raise SystemExit(f"{name}: no seed without near ties")
    if fixture.vision:
        tensors.update(vision_tensors(generator))
    write_results(out, name, fixture, tensors, ids, {"logits": logits, "mtp_logits": mtp_logits}, greedy,
                  dict(seed=seed, mtp=mtp is not None, logit_std=round(logits.std().item(), 4),
                       min_greedy_gap=round(gap, 6),
                       min_router_gap=round(routers.least, 7) if routers.least < torch.inf else None))


def write_real_fixture(out, name, fixture):
    """The same, but it is the prompt that is chosen."""
    start = time.monotonic()
    body, mtp, tensors, ids, generator = random_model(fixture, fixture.seed)
    routers = RouterGap(body, mtp)
    results, greedy, gap = choose_prompt(fixture, body, mtp, ids, routers, generator)
    logits = results["logits"]
    write_results(out, name, fixture, tensors, ids, results, greedy,
                  dict(seed=fixture.seed, mtp=True, logit_std=round(logits.std().item(), 4),
                       min_greedy_gap=round(gap, 6), min_router_gap=round(routers.least, 7),
                       reference_error=own_error(body, ids, logits),
                       bf16_cache_error=largest_difference(logits, results["logits_bf16"]), device=str(logits.device),
                       seconds=round(time.monotonic() - start, 1)))


def write_results(out, name, fixture, tensors, ids, results, greedy, notes):
    folder = pathlib.Path(out) / name
    write_checkpoint(folder, fixture, tensors)
    write_array(folder / "tokens.i32", ids, "<i4")
    for file, values in results.items():
        if values is not None:
            write_array(folder / f"{file}.f32", values, "<f4")
    write_array(folder / "greedy.i32", greedy, "<i4")
    meta = dict(name=name, tokens=fixture.tokens, greedy=fixture.greedy, vocab=fixture.text["vocab_size"], **notes,
                tensors=len(tensors), bytes=total_bytes(tensors), transformers=transformers.__version__)
    write_json(folder / "meta.json", meta)
    print(json.dumps(meta), flush=True)


def check_fixture(folder):
    """Recomputes a fixture from nothing but its files; True if it gives the stored numbers."""
    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)
    tensors = {}
    for file in folder.glob("*.safetensors"):
        tensors.update(load_file(file))
    body, mtp = build(text, any(name.startswith("mtp.") for name in tensors))
    from_tensors(tensors, body, mtp, any(name.startswith("model.language_model.") for name in tensors))
    ids = torch.from_numpy(numpy.fromfile(folder / "tokens.i32", "<i4")).long().to(torch.get_default_device())
    wanted_greedy = numpy.fromfile(folder / "greedy.i32", "<i4")
    greedy, _ = continue_greedily(body, ids, len(wanted_greedy), 0)
    good = greedy.tolist() == wanted_greedy.tolist()
    report = [f"greedy {'equal' if good else 'DIFFERS'}"]
    for file, values in zip(("logits.f32", "mtp_logits.f32"), prompt_logits(body, mtp, ids)):
        if values is None:
            continue
        wanted = torch.from_numpy(numpy.fromfile(folder / file, "<f4")).view(values.shape).to(values.device)
        error = ((values - wanted).abs().max() / wanted.std()).item()
        good = good and error < 1e-4
        report.append(f"{file} {error:.1e} of std {wanted.std():.3f}")
    print(f"{'ok  ' if good else 'FAIL'} {folder.name}: {', '.join(report)}", flush=True)
    return good


# ---- 6. Command line ------------------------------------------------------------------------------------------------

def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--real-sizes", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("paths", nargs="+", metavar="OUT [NAME...] | DIR...")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    if arguments.check:
        sys.exit(not all([check_fixture(folder) for folder in arguments.paths]))
    if arguments.real_sizes and torch.cuda.is_available():
        torch.set_default_device("cuda")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    fixtures = REAL if arguments.real_sizes else LARGE if arguments.large else SMALL
    write = write_real_fixture if arguments.real_sizes else write_fixture
    for name in arguments.paths[1:] or fixtures:
        write(arguments.paths[0], name, fixtures[name])


if __name__ == "__main__":
    main()
