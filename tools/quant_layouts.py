"""How published checkpoints store a quantised matrix, for make_fixtures.py: pack() a float matrix in one of the layouts,
unpack() whatever tensors stand for a matrix, as float32. Layouts:

    nvfp4          weight U8, weight_scale E4M3, weight_scale_2                              modelopt
    nvfp4-ct       weight_packed U8, weight_scale E4M3, weight_global_scale (a divisor)      compressed-tensors
    fp8-tensor     weight E4M3, weight_scale scalar
    fp8-channel    weight E4M3, weight_scale [rows, 1] BF16
    gptq:G         qweight, qzeros (less one), scales F16, g_idx; groups of G columns, 0: of all; zero points of any value
    awq:G          qweight, qzeros, scales F16
    int4:G         weight_packed I32, weight_scale BF16, weight_shape                        compressed-tensors, symmetric
    int4-asym:G    the same with weight_zero_point
"""
import torch

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
FP8, F16, BF16, I32 = torch.float8_e4m3fn, torch.float16, torch.bfloat16, torch.int32
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]                # the columns of a word's nibbles, from the lowest


def words(codes, order=range(8)):
    """[.., 8 n] codes of 4 bits -> [.., n] I32."""
    eight = codes.long().unflatten(-1, (-1, 8))
    total = sum(eight[..., column] << 4 * place for place, column in enumerate(order))
    return torch.where(total >= 2 ** 31, total - 2 ** 32, total).to(I32)


def nibbles(packed, order=range(8)):
    """[.., n] I32 -> [.., 8 n] codes."""
    out = torch.empty(*packed.shape, 8, dtype=torch.long)
    for place, column in enumerate(order):
        out[..., column] = packed.long() >> 4 * place & 15
    return out.flatten(-2)


def nvfp4(matrix, by_division):
    factor = (matrix.abs().amax() / (6 * 448)).clamp(min=1e-12)
    groups = matrix.unflatten(1, (-1, 16))
    scale = (groups.abs().amax(2) / 6 / factor).clamp(max=448).to(FP8)
    unit = scale.float() * factor
    codes = ((groups / unit.clamp(min=1e-30).unsqueeze(2)).unsqueeze(3) - E2M1).abs().argmin(3).flatten(1)
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    if by_division:
        return {"weight_packed": packed, "weight_scale": scale, "weight_global_scale": (1 / factor).reshape(1)}
    return {"weight": packed, "weight_scale": scale, "weight_scale_2": factor.reshape(())}


def integers(matrix, group, symmetric, dtype):
    """Codes [rows, columns], scales and zero points [rows, groups]."""
    groups = matrix.unflatten(1, (-1, group or matrix.shape[1]))
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    scale = ((groups.abs().amax(2) / 7.5) if symmetric else (high - low) / 15).clamp(min=1e-4).to(dtype)
    zero = torch.full(scale.shape, 8) if symmetric else (-low / scale.float()).round().clamp(1, 15).long()
    codes = (groups / scale.float().unsqueeze(2)).round().long() + zero.unsqueeze(2)
    return codes.clamp(0, 15).flatten(1), scale, zero


def pack(matrix, layout):
    """-> {name behind the module's: tensor}"""
    kind, _, group = layout.partition(":")
    group = int(group or 0)
    if kind.startswith("nvfp4"):
        return nvfp4(matrix, kind == "nvfp4-ct")
    if kind.startswith("fp8"):
        most = matrix.abs().amax() if kind == "fp8-tensor" else matrix.abs().amax(1, keepdim=True)
        scale = (most / 448).clamp(min=1e-12).to(BF16 if kind == "fp8-channel" else torch.float32)
        return {"weight": (matrix / scale.float()).clamp(-448, 448).to(FP8), "weight_scale": scale}
    codes, scale, zero = integers(matrix, group, kind == "int4", F16 if kind in ("gptq", "awq") else BF16)
    if kind == "gptq":
        order = torch.arange(matrix.shape[1]) // (group or matrix.shape[1])
        return {"qweight": words(codes).T, "qzeros": words((zero - 1).T), "scales": scale.T, "g_idx": order.to(I32)}
    if kind == "awq":
        return {"qweight": words(codes.T, AWQ_ORDER), "qzeros": words(zero.T, AWQ_ORDER), "scales": scale.T}
    parts = {"weight_packed": words(codes), "weight_scale": scale, "weight_shape": torch.tensor(matrix.shape)}
    if kind == "int4-asym":
        padded = torch.nn.functional.pad(zero.T, (0, -matrix.shape[0] % 8))
        parts["weight_zero_point"] = words(padded).T
    return parts


def unpack(take, shape):
    """take(name behind the module's) -> the tensor, once, or None; shape: of the matrix. None: not a layout of these."""
    rows, columns = shape
    spread = lambda groups: groups.repeat_interleave(columns // groups.shape[1], 1)
    take("input_scale")
    if (packed := take("qweight")) is not None:
        awq = packed.shape == (columns, rows // 8)
        order = AWQ_ORDER if awq else range(8)
        codes = nibbles(packed, order).T if awq else nibbles(packed.T)
        zero = nibbles(take("qzeros"), order).T + (0 if awq else 1)
        take("g_idx")
        return (codes - spread(zero)) * spread(take("scales").float().T)
    if (shape := take("weight_shape")) is not None:
        assert shape.tolist() == [rows, columns]
        packed, scale, zero = take("weight_packed"), take("weight_scale").float(), take("weight_zero_point")
        zero = torch.full(scale.shape, 8) if zero is None else nibbles(zero.T)[:, :rows].T
        return (nibbles(packed) - spread(zero)) * spread(scale)
    weight = take("weight")
    if weight is None or weight.dtype == torch.uint8:
        packed = take("weight_packed") if weight is None else weight
        codes = torch.stack((packed.long() & 15, packed.long() >> 4), 2).flatten(1)
        scale, factor, divisor = take("weight_scale").float(), take("weight_scale_2"), take("weight_global_scale")
        return E2M1[codes] * spread(scale * factor if divisor is None else scale / divisor)
    scale = take("weight_scale")
    return weight.float() if scale is None else weight.float() * scale.float()
