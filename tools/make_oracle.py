#!/usr/bin/env python3
"""Long prompts through checkpoints, in float64 and as transformers computes them in BF16: for tests/cuda/gpu_accuracy.c.

    make_oracle.py DIR... [--tokens 100,1000,4000]

For each checkpoint folder DIR (as make_fixtures.py writes them) and each length N, DIR/oracle/ gets

    N.i32         N + 64 random token ids
    N.logits      float32 [N + 64, vocab]: of the prompt, and of 64 tokens after it
    N.mtp         float32 [N + 63, vocab]: of the MTP layer; absent without one
    N.state       float32 [DeltaNet layers][value heads][value dim][key dim] after the N tokens
    N.txt         lines of a name and a number: the sizes, and by how much BF16 is off: the root mean square of the
                  differences in standard deviations, of logits, MTP logits, states, and the 64 rows after the prompt

The weights are exactly those stored. float64 is transformers' modeling file with every float32 replaced; BF16 is the file as
it is, with parameters, activations and KV in BF16; only A_log, which checkpoints store as float32, stays so.

Needs what make_fixtures.py needs; a GPU for real sizes.
"""
import argparse
import importlib.util
import inspect
import json
import pathlib
import re
import sys
import tempfile

import torch
from safetensors.torch import load_file

import make_fixtures as fixtures

AFTER = 64                      # tokens behind a prompt


def modeling(dtype):
    """transformers' modeling file, computing in float64 where that is asked for, and keeping the states of DeltaNet layers
    in `states`."""
    source = inspect.getsource(fixtures_modeling)
    if dtype == torch.float64:
        source = re.sub(r"torch\.float(32)?\b", "torch.float64", source).replace(".float()", ".double()")
    name = f"{fixtures_modeling.__name__}_{str(dtype).removeprefix('torch.')}"
    path = pathlib.Path(tempfile.mkdtemp()) / "modeling.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rule, module.states = module.torch_chunk_gated_delta_rule, []

    def keeping_rule(*arguments, **named):
        out, state = rule(*arguments, **dict(named, output_final_state=True))
        module.states.append(state)
        return out, state

    module.torch_chunk_gated_delta_rule = keeping_rule
    return module


fixtures_modeling = fixtures.hf
MODELING = {dtype: modeling(dtype) for dtype in (torch.float64, torch.bfloat16)}


def open_model(folder, dtype):
    """-> body and MTP head with the stored weights, in dtype."""
    fixtures.hf = MODELING[dtype]
    config = json.loads((folder / "config.json").read_text())
    text, tensors = config.get("text_config", config), {}
    for file in folder.glob("*.safetensors"):
        tensors.update({name: tensor.to(torch.get_default_device()) for name, tensor in load_file(file).items()
                        if not name.startswith("model.visual.")})
    body, mtp = fixtures.build(text, any(name.startswith("mtp.") for name in tensors))
    fixtures.from_tensors(tensors, body, mtp, any(name.startswith("model.language_model.") for name in tensors))
    for model in (body, mtp):
        for name, parameter in model.named_parameters() if model else ():
            if not (dtype == torch.bfloat16 and name.endswith("A_log")):
                parameter.data = parameter.data.to(dtype)
    return body, mtp


@torch.no_grad()
def compute(folder, dtype, ids, N):
    """-> {name: float64 tensor} of a prompt of N tokens and those after it."""
    body, mtp = open_model(folder, dtype)
    states = MODELING[dtype].states
    logits, mtp_logits = fixtures.prompt_logits(body, mtp, ids)
    states.clear()
    body.model(ids[None, :N], use_cache=False)
    kept = [state[0].transpose(-1, -2).double() for state in states]      # [heads, key, value] -> [heads, value, key]
    states.clear()
    result = {"logits": logits.double()}
    if mtp_logits is not None:
        result["mtp"] = mtp_logits.double()
    if kept:
        result["state"] = torch.stack(kept)
    return result


def off(values, exact):
    return ((values - exact).square().mean().sqrt() / exact.std()).item()


def write_oracle(folder, N, generator):
    text = json.loads((folder / "config.json").read_text())
    text = text.get("text_config", text)
    ids = torch.randint(0, text["vocab_size"], (N + AFTER,), generator=generator, device=generator.device)
    exact = compute(folder, torch.float64, ids, N)
    rounded = compute(folder, torch.bfloat16, ids, N)
    lines = dict(prompt=N, after=AFTER, vocab=text["vocab_size"], delta_layers=len(exact.get("state", ())),
                 value_heads=text["linear_num_value_heads"], value_dim=text["linear_value_head_dim"],
                 key_heads=text["linear_num_key_heads"], key_dim=text["linear_key_head_dim"],
                 taps=text["linear_conv_kernel_dim"])
    for name in exact:
        lines["bf16_" + name] = off(rounded[name], exact[name])
    lines["bf16_after"] = off(rounded["logits"][N:], exact["logits"][N:])
    out = folder / "oracle"
    out.mkdir(exist_ok=True)
    fixtures.write_array(out / f"{N}.i32", ids, "<i4")
    for name, values in exact.items():
        fixtures.write_array(out / f"{N}.{name}", values, "<f4")
    (out / f"{N}.txt").write_text("".join(f"{name} {value:.9g}\n" for name, value in lines.items()))
    print(folder.name, json.dumps(lines), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="100,1000,4000")
    parser.add_argument("folders", nargs="+", metavar="DIR")
    arguments = parser.parse_args()
    if torch.cuda.is_available():
        torch.set_default_device("cuda")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for folder in arguments.folders:
        generator = torch.Generator(torch.get_default_device()).manual_seed(1)
        for N in map(int, arguments.tokens.split(",")):
            write_oracle(pathlib.Path(folder), N, generator)


if __name__ == "__main__":
    main()
