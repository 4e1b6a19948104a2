"""Write a GGUF of random weights with the shapes of a dense Qwen3.5, to time a GGUF engine on it.

usage: peer_dense.py OUT.gguf qwen3.5-4b|qwen3.5-0.8b q8_0|q4_K [LAYERS]

Every matrix has the one type, the tied embedding too; vectors are F32. Prints the bytes that a decoded token reads.
"""
import math, struct, sys
import numpy as np

SHAPES = {  # hidden, FFN, layers, heads, KV heads, DeltaNet's value heads
    "qwen3.5-0.8b": (1024, 3584, 24, 8, 2, 16),
    "qwen3.5-4b": (2560, 9216, 32, 16, 4, 32),
}
VOCABULARY, HEAD, KEY_HEADS, STATE, TAPS, EVERY = 248320, 256, 16, 128, 4, 4
TYPES = {"q8_0": (8, 32, 34, 7), "q4_K": (12, 256, 144, 15)}  # ggml type, weights and bytes of a block, file type
F32 = 0


def blocks(kind, size, rng):
    """About `size` bytes of blocks: random, of a mean near 0 and a deviation near 0.03."""
    width = TYPES[kind][2]
    data = rng.integers(0, 256, (size // width, width), dtype=np.uint8)
    scales = [0.0004] if kind == "q8_0" else [0.00013, 0.00098]  # d, dmin: their means cancel
    data[:, :2 * len(scales)] = np.frombuffer(np.array(scales, np.float16).tobytes(), np.uint8)
    return memoryview(data.tobytes())


def tensors(shape, layers):
    """(name, dimensions, fastest first; whether quantised)"""
    hidden, ffn, _, heads, kv_heads, value_heads = shape
    keys, values = KEY_HEADS * STATE, value_heads * STATE
    yield "token_embd.weight", (hidden, VOCABULARY), True
    yield "output_norm.weight", (hidden,), False
    for i in range(layers):
        if (i + 1) % EVERY == 0:
            mixer = {"attn_q.weight": (hidden, 2 * heads * HEAD), "attn_k.weight": (hidden, kv_heads * HEAD),
                     "attn_v.weight": (hidden, kv_heads * HEAD), "attn_output.weight": (heads * HEAD, hidden),
                     "attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,)}
        else:
            mixer = {"attn_qkv.weight": (hidden, 2 * keys + values), "attn_gate.weight": (hidden, values),
                     "ssm_alpha.weight": (hidden, value_heads), "ssm_beta.weight": (hidden, value_heads),
                     "ssm_out.weight": (values, hidden), "ssm_conv1d.weight": (TAPS, 2 * keys + values),
                     "ssm_norm.weight": (STATE,), "ssm_dt.bias": (value_heads,), "ssm_a": (value_heads,)}
        mixer.update({"attn_norm.weight": (hidden,), "post_attention_norm.weight": (hidden,), "ffn_gate.weight": (hidden, ffn),
                      "ffn_up.weight": (hidden, ffn), "ffn_down.weight": (ffn, hidden)})
        for name, dims in mixer.items():
            yield f"blk.{i}.{name}", dims, len(dims) == 2 and "conv1d" not in name


def vector(name, n, rng):
    x = rng.standard_normal(n, dtype=np.float32)
    if name.endswith("ssm_a"): return -np.exp(x / 2)
    return 1 + x / 10 if "norm" in name else x / 4


def text(x):
    return struct.pack("<Q", len(x)) + x.encode()


def metadata(shape, layers, file_type):
    hidden, ffn, _, heads, kv_heads, value_heads = shape
    own = {"block_count": layers, "context_length": 262144, "embedding_length": hidden, "feed_forward_length": ffn,
           "vocab_size": VOCABULARY, "attention.head_count": heads, "attention.head_count_kv": kv_heads,
           "attention.key_length": HEAD, "attention.value_length": HEAD, "attention.layer_norm_rms_epsilon": 1e-6,
           "rope.freq_base": 1e7, "rope.dimension_count": HEAD // 4, "rope.dimension_sections": [11, 11, 10, 0],
           "ssm.conv_kernel": TAPS, "ssm.inner_size": value_heads * STATE, "ssm.state_size": STATE,
           "ssm.time_step_rank": value_heads, "ssm.group_count": KEY_HEADS, "full_attention_interval": EVERY}
    pairs = {"general.architecture": "qwen35", "general.name": "random", "general.file_type": file_type,
             "tokenizer.ggml.model": "none", **{"qwen35." + k: v for k, v in own.items()}}
    packed = b""
    for key, value in pairs.items():
        packed += text(key)
        if isinstance(value, str): packed += struct.pack("<I", 8) + text(value)
        elif isinstance(value, float): packed += struct.pack("<If", 6, value)
        elif isinstance(value, int): packed += struct.pack("<II", 4, value)
        else: packed += struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    return len(pairs), packed


def main(path, model, kind, layers=None):
    shape, (number, per_block, block_bytes, file_type) = SHAPES[model], TYPES[kind]
    layers = int(layers or shape[2])
    rng = np.random.default_rng(0)
    table, offset, total, read, planned = b"", 0, 0, 0, []
    for name, dims, quantised in tensors(shape, layers):
        n = math.prod(dims)
        size = n // per_block * block_bytes if quantised else 4 * n
        assert not quantised or dims[0] % per_block == 0, name
        table += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number if quantised else F32, offset)
        planned.append((name, n, size, quantised))
        read += size
        offset += size + -size % 32
    count, pairs = metadata(shape, layers, file_type)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(planned), count) + pairs + table
    random = blocks(kind, 16 << 20, rng)
    with open(path, "wb", buffering=0) as out:
        out.write(head + bytes(-len(head) % 32))
        for name, n, size, quantised in planned:
            if not quantised: out.write(vector(name, n, rng).tobytes())
            for at in range(0, size if quantised else 0, len(random)):
                out.write(random[:min(len(random), size - at)])
            out.write(bytes(-size % 32))
    print(f"{read / 1e9:.3f} GB a token")


if len(sys.argv) not in (4, 5): sys.exit(__doc__.strip())
main(*sys.argv[1:])
