"""Ladder, targets and measurements of k19_fp8_matmul: see lab/measure/bench.py."""

from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
import triton

from lab import simulator
from layer1_kernels.k05_matmul_tiled import matmul_tiled_triton
from layer1_kernels.k19_fp8_matmul import (
    FP8_GPU,
    TILES,
    TILES_OF_ROWS,
    dequantize_blocks,
    encode_weight,
    fp8_epilogue_triton,
    fp8_matmul,
    fp8_matmul_triton,
    part_sums,
    quantize_blocks,
    quantize_rows,
    quantize_triton,
    scaled_matmul_fp8,
)

INT8 = 127              # the largest code
MATRICES = {            # kind: how Hugging Face names them
    "q, k, v": ("q_proj", "k_proj", "v_proj"), "o": ("o_proj",),
    "gate, up": ("gate_proj", "up_proj"), "down": ("down_proj",)}
TILE = {"BM": 16, "BN": 64, "BK": 128, "ROWS": 8, "num_warps": 4}       # of the ladder


def rounded(x, kind, rows, group):              # (M, K) -> (M, K)
    """x as its codes stand for it, with a scale for each rows x group numbers, or for all.

    kind: e4m3; int8, whose rows and group divide x; or bf16, which has no scales
    """
    M, K = x.shape
    rows = min(rows, M)
    group = min(group, K)
    if kind == "bf16":
        return x.bfloat16().float()
    if kind == "e4m3":
        return dequantize_blocks(*quantize_blocks(x, rows, group), rows, group)
    blocks = x.reshape(M // rows, rows, K // group, group)
    scales = blocks.abs().amax((1, 3), keepdim=True) / INT8
    return ((blocks / torch.where(scales > 0, scales, 1)).round() * scales).reshape(M, K)


def outlier_errors(kind, rows, group, factors, M=64, K=1024):
    """Errors of the other K - 1 channels of normal numbers, relative to them, where the last is
    multiplied by each of the factors; a scale for each rows x group numbers."""
    rng = torch.Generator().manual_seed(0)
    plain = torch.randn(M, K, generator=rng)
    errors = []
    for factor in factors:
        x = plain.clone()
        x[:, -1] *= factor
        off = (rounded(x, kind, rows, group) - x)[:, :-1].double()
        errors.append(float(off.norm() / x[:, :-1].double().norm()))
    return errors


def sum_errors(promoted_sum, lengths, bits, every, step=32, size=16):
    """Relative errors of sums of K products, for each K of lengths, uniform numbers from 0 to 1;
    after each `step` the sum is cut to `bits`, after each `every` steps it is promoted.

    every: None for never
    """
    rng = np.random.default_rng(0)
    errors = []
    for K in lengths:
        parts = part_sums(rng.random((size, K)), rng.random((size, K)), step)
        exact = parts.sum(0)
        off = promoted_sum(parts, bits, every or len(parts)) - exact
        errors.append(float(np.sqrt((off**2).mean() / (exact**2).mean())))
    return errors


def with_outliers(model, factor, channels=(3, 40)):
    """o02's Llama as the same function, with some channels of what its matrices read `factor` times
    as large: the norms' weights grow, and the columns of q, k, v, gate and up shrink."""
    by = np.ones(model.embedding.shape[1], np.float32)                  # (C,)
    by[list(channels)] = factor
    layers = [layer._replace(
        attention_norm=layer.attention_norm * by, mlp_norm=layer.mlp_norm * by,
        **{name: getattr(layer, name) / by for name in ("q", "k", "v", "gate", "up")})
        for layer in model.layers]
    return model._replace(layers=layers)


def model_errors(model, texts, kind, of_x, of_w):
    """(error, letters) of a model whose every matrix multiplies rounded numbers: the mean error of
    a product, relative, on the activations it meets; and of how many letters of the texts the most
    likely next one is that of exact products.

    of_x, of_w: (rows, group) that share a scale
    """
    from day02_overview import NUMPY, Cache, encode, forward

    errors = []
    weights = {}                                # each is rounded once

    def matmul(a, w):                           # (T, K), (N, K) -> (T, N)
        exact = a @ w.T
        key = w.ctypes.data
        if key not in weights:
            weights[key] = rounded(torch.from_numpy(w), kind, *of_w)
        x = rounded(torch.from_numpy(np.ascontiguousarray(a)), kind, *of_x)
        got = (x @ weights[key].T).numpy()
        off = (got - exact).astype(np.float64)
        errors.append(np.linalg.norm(off) / np.linalg.norm(exact.astype(np.float64)))
        return got

    same = 0
    for text in texts:
        tokens = encode(text)
        best, coarse = (forward(model, tokens, Cache(model, len(tokens)), ops).argmax(-1)
                        for ops in (NUMPY, NUMPY._replace(matmul=matmul)))
        same += int((best == coarse).sum())
    return float(np.mean(errors)), same


def by_kind(errors):
    """{kind of matrix: (median, worst)} of {name of a matrix: the error of its products}."""
    kinds = {kind: [error for name, error in errors.items() if name.split(".")[-2] in names]
             for kind, names in MATRICES.items()}
    return {kind: (median(some), max(some)) for kind, some in kinds.items()}


class Rung(NamedTuple):
    """One rung of the ladder; of the launches that multiply, as counted."""

    name: str
    operands: int           # bytes of x and w that are asked for
    scales: int             # bytes of scales that are asked for
    arithmetic: float       # fp32 FLOPs for each number of c
    error: float            # of c, relative, against float64 of x and w as they were in bf16
    changed: str


def ladder(M, N, K, group=128):
    """Every way of this lesson to multiply x by w, and k05's in bf16: [Rung].

    All with the same tile.
    M, N, K: multiples of it; group: one of 128 or more
    """
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(M, K, generator=rng).bfloat16()                     # (M, K)
    w = torch.randn(N, K, generator=rng).bfloat16()                     # (N, K)
    want = x.double() @ w.double().T
    tensor = *quantize_blocks(x, M, K), *quantize_blocks(w, N, K)
    rows = *quantize_blocks(x, 1, K), *quantize_blocks(w, 1, K)
    groups = *quantize_blocks(x, 1, group), *encode_weight(w, group)
    c = torch.empty(M, N, dtype=torch.bfloat16)                         # (M, N)
    programs = triton.cdiv(M, TILE["BM"]) * triton.cdiv(N, TILE["BN"]),
    sizes = c, M, N, K

    def by_rows(a, a_scales, w, w_scales):
        """The product where a row has one scale, or all rows have one."""
        scales = (s[:, 0].expand(len(q)).contiguous() for q, s in ((a, a_scales), (w, w_scales)))
        fp8_epilogue_triton[programs](a, w, *scales, *sizes, **TILE)

    def by_groups(a, a_scales, w, w_scales):
        fp8_matmul_triton[programs](a, w, a_scales, w_scales, *sizes, K // group, GROUP=group,
                                    **TILE)

    order = {key: value for key, value in TILE.items() if key != "ROWS"}
    ways = {"Triton: k05, bf16": ("no scale", lambda: matmul_tiled_triton[programs](
                x, w, *sizes, K, 1, K, 1, GROUP=TILE["ROWS"], **order)),
            "Triton: e4m3, tensor": ("half the bytes, 2 scales", partial(by_rows, *tensor)),
            "Triton: e4m3, rows": ("M + N scales, after the sum", partial(by_rows, *rows)),
            f"Triton: e4m3, groups of {group}": ("a scale for each part of the sum",
                                                 partial(by_groups, *groups))}
    rungs = []
    for name, (changed, run) in ways.items():
        with simulator.trace() as trace, simulator.capability(FP8_GPU):
            run()
        loads = bytes_by_array(trace.launches[0])
        scales = loads.get("a_scales", 0) + loads.get("w_scales", 0)
        rungs.append(Rung(name, loads["a"] + loads["w"], scales,
                          trace.launches[0].totals.flops_by_type.get("fp32", 0) / (M * N),
                          float((c - want).norm() / want.norm()), changed))
    return rungs


def bytes_by_array(launch):
    """{array: bytes that a launch asks for, those of a request each once}."""
    loads = {}
    for (line, space, op), request in launch.requests.items():
        array = next(iter(request.lanes.values()))[0]
        if op == "load":
            loads[array] = loads.get(array, 0) + launch.lines[line].access(space, op).distinct
    return loads


def shipped():
    """What scaled_matmul_fp8 compiles for Hopper: {name: simulator.Hopper}."""
    arrays = {"a": "*fp8e4nv", "w": "*fp8e4nv", "a_scales": "*fp32", "w_scales": "*fp32",
              "c": "*bf16", "M": "i32", "N": "i32:16", "K": "i32:16"}
    kernels = {}
    for kernel, name, tiles in ((fp8_matmul_triton, "blocks", TILES),
                                (fp8_epilogue_triton, "rows", TILES_OF_ROWS)):
        for BM, BN, BK, warps, stages in tiles:
            more = {"groups": "i32"} if name == "blocks" else {}
            meta = {"GROUP": 128} if name == "blocks" else {}
            kind, needs = ("matmul", ["wgmma"]) if BM >= 64 else ("dots", [])   # of 64 rows or more
            kernels[f"fp8_{kind}_{name}_{BM}x{BN}"] = simulator.hopper(
                kernel, arrays | more, meta | {"BM": BM, "BN": BN, "BK": BK, "ROWS": 8},
                num_warps=warps, num_stages=stages, needs=needs)
    return kernels


def quantizing():
    """The same of quantize_rows, which loads 8 bytes a lane from bf16: a group is 128 numbers."""
    args = {"x": "*bf16", "q": "*fp8e4nv", "scales": "*fp32", "K": "i32:16", "groups": "i32"}
    return simulator.hopper(quantize_triton, args, {"GROUP": 128}, num_warps=1)


H200_TARGETS = {"rows: scaled_matmul_fp8": {"times_torch": 0.85, "times_cublas": 1.5}}


def bench(M=8192, N=8192, K=8192):
    """On a GPU: this lesson's kernels, torch's _scaled_mm, and cuBLAS in bf16 (through torch), by
    turns; rows of lab.measure.bench.

    torch: _scaled_mm with a scale for each row, which adds in few bits, as Triton's kernels do on
    Hopper by default.
    It stands beside groups of 128 too, whose work is larger. fp8_matmul also quantises x. cublas:
    the same numbers in bf16.
    They are -7 to 7: 7/448 is 1/64, and with this scale e4m3 has them all, so that all ways give
    the same.
    """
    from day01_roofline import measure_side_by_side

    x, w = (torch.randint(-7, 8, (rows, K), device="cuda").bfloat16() for rows in (M, N))
    families = {}
    rows = *quantize_blocks(x, 1, K), *quantize_blocks(w, 1, K)
    groups = *quantize_blocks(x, 1, 128), *encode_weight(w)
    cublas = partial(torch.matmul, x, w.T)
    work = 2 * M * N * K, (M + N) * K + 2 * M * N
    families["rows"] = *work, {"torch": partial(scaled_mm, *rows), "cublas": cublas,
                               "scaled_matmul_fp8": partial(by_row, *rows)}
    families["groups of 128"] = *work, {"torch": partial(scaled_mm, *rows), "cublas": cublas,
                                        "scaled_matmul_fp8": partial(by_group, *groups),
                                        "fp8_matmul": partial(fp8_matmul, x, *groups[2:])}
    families["quantise"] = M * K, 3 * M * K, {
        "torch": partial(quantize_blocks, x, 1, 128),
        "torch.compile": partial(torch.compile(quantize_blocks, dynamic=False), x, 1, 128),
        "quantize_rows": partial(quantize_rows, x)}
    return measure_side_by_side(families)


def by_row(a, a_scales, w, w_scales):           # (M, K), (M, 1), (N, K), (N, 1) -> (M, N)
    return scaled_matmul_fp8(a, w, a_scales[:, 0], w_scales[:, 0], dtype=torch.bfloat16)


def by_group(a, a_scales, w, w_scales):
    return scaled_matmul_fp8(a, w, a_scales, w_scales, 128, torch.bfloat16)


def scaled_mm(a, a_scales, w, w_scales):        # (M, K), (M, 1), (N, K), (N, 1) -> (M, N)
    return torch._scaled_mm(a, w.T, scale_a=a_scales, scale_b=w_scales.T,
                            out_dtype=torch.bfloat16, use_fast_accum=True)
