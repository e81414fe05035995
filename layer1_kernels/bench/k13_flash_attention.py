"""Ladder, targets and measurements of k13_flash_attention: see lab/measure/bench.py."""

from functools import partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from lab import simulator
from layer1_kernels.k07_softmax import softmax
from layer1_kernels.k13_flash_attention import (
    flash_attention,
    flash_attention_cuda,
    flash_attention_torch,
    flash_every_tile_triton,
    flash_skip_triton,
    flash_triton,
    launch,
    load_tile,
    place,
    tiles,
)


@triton.jit
def scores_triton(q, k, matrix, scale, T, N, H, G, q_b, q_t, q_h, k_b, k_n, k_g,
                  CAUSAL: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
                  BD: tl.constexpr):
    """BM rows of the matrix (B, H, T, N) of scores, -inf where a query does not see a key."""
    b, h, first, last, common, reach = place(T, N, H, CAUSAL, BM)
    k += b * k_b + h // (H // G) * k_g
    queries = load_tile(q + b * q_b + h * q_h, q_t, first, T, BM, D, BD)
    t = first + tl.arange(0, BM)
    matrix += (((b * H + h) * T + t) * N)[:, None]
    for n in range(0, N, BN):
        keys = load_tile(k, k_n, n, N, BN, D, BD)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        c = n + tl.arange(0, BN)[None, :]
        scores = tl.where(c <= last[:, None], scores, -float("inf"))
        tl.store(matrix + c, scores, (t < T)[:, None] & (c < N))


@triton.jit
def mix_triton(matrix, v, out, T, N, H, G, v_b, v_n, v_g, CAUSAL: tl.constexpr, D: tl.constexpr,
               BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr):
    """BM rows of out: those of the matrix, now weights, times the values."""
    b, h, first, last, common, reach = place(T, N, H, CAUSAL, BM)
    v += b * v_b + h // (H // G) * v_g
    t, d = first + tl.arange(0, BM), tl.arange(0, BD)
    matrix += (((b * H + h) * T + t) * N)[:, None]
    mixed = tl.zeros([BM, BD], tl.float32)
    for n in range(0, N, BN):
        c = n + tl.arange(0, BN)[None, :]
        weights = tl.load(matrix + c, (t < T)[:, None] & (c < N), 0)
        mixed = tl.dot(weights, load_tile(v, v_n, n, N, BN, D, BD), mixed, input_precision="ieee")
    row = (b * T + t) * H + h
    tl.store(out + row[:, None] * D + d[None, :], mixed, (t < T)[:, None] & (d < D)[None, :])


def attention_three_kernels(q, k, v, causal, scale, sizes):
    """out of flash_attention by three kernels, which store the matrix in q's dtype."""
    B, T, H, D = q.shape
    _, N, G, _ = k.shape
    matrix = torch.empty((B * H * T, N), dtype=q.dtype, device=q.device)
    out = torch.empty((B, T, H, D), dtype=q.dtype, device=q.device)
    grid = (triton.cdiv(T, sizes["BM"]) * B * H,)
    scores_triton[grid](q, k, matrix, scale, T, N, H, G, *q.stride()[:3], *k.stride()[:3],
                        CAUSAL=causal, D=D, **sizes)
    mix_triton[grid](softmax(matrix), v, out, T, N, H, G, *v.stride()[:3],
                     CAUSAL=causal, D=D, **sizes)
    return out


FLASH = (flash_every_tile_triton, flash_skip_triton, flash_triton)

class Rung(NamedTuple):
    """One rung of the ladder, as counted in the simulator."""

    name: str
    reads: float            # bytes loaded, divided by those of q, k and v
    writes: float           # bytes stored, divided by those of out
    sectors: int            # of 32 bytes, loads and stores
    tiles: float            # of keys that were loaded
    compares: int           # warp instructions that compare or select
    instructions: int       # of a warp, all of them
    changed: str


def ladder(N, D, tile):
    """Causal attention of N queries to N keys, one head, float16, tiles of tile·tile: [Rung]."""
    q, k, v = (torch.linspace(-1, 1, N * D).reshape(1, N, 1, D).half() for _ in range(3))
    sizes = {"BM": tile, "BN": tile, "BD": triton.next_power_of_2(D)}
    with simulator.trace() as trace:
        attention_three_kernels(q, k, v, True, D ** -0.5, sizes)
        for kernel in FLASH:
            launch(kernel, q, k, v, True, D ** -0.5, sizes)
    scores, softmaxes, mix, *flash = trace.launches
    runs = {"three kernels": [scores, softmaxes, mix]} | {run.name: [run] for run in flash}
    keys = [scores.bytes_loaded - q.nbytes, *((run.bytes_loaded - q.nbytes) / 2 for run in flash)]
    changes = ("the matrix goes through memory", "tile by tile, no matrix", "future tiles skipped",
               "mask on the diagonal only")
    return [Rung(name, sum(run.bytes_loaded for run in each) / (3 * q.nbytes),
                 sum(run.bytes_stored for run in each) / q.nbytes,
                 sum(run.totals.sum("transactions", "global") for run in each),
                 moved / (tile * D * q.element_size()),
                 sum(run.totals.instructions["compare"] for run in each),
                 sum(run.steps for run in each), changed)
            for (name, each), moved, changed in zip(runs.items(), keys, changes, strict=True)]


def shipped():
    """flash_triton for Hopper as flash_attention launches it: bf16, long, D = 128 and 64."""
    pointers = dict.fromkeys(("q", "k", "v", "out"), "*bf16") | {"lse": "*fp32"}
    sizes = {"T": "i32:16", "N": "i32:16", "H": "i32:16", "G": "i32"} | {
        f"{x}_{axis}": "i32:16" for x, axes in (("q", "bth"), ("k", "bng"), ("v", "bng"))
        for axis in axes}
    return {f"flash_triton, D = {D}": simulator.hopper(
        flash_triton, pointers | {"scale": "fp32"} | sizes,
        {"CAUSAL": True, "D": D, "BM": 128, "BN": 64, "BD": D}, num_warps=8, num_stages=3,
        needs=["wgmma"]) for D in (128, 64)}


H200_TARGETS = {"attention: flash_triton": {
    "flop_per_second": 400e12, "times_flash": 1.15, "times_cudnn": 0.70}}

def bench(B=4, T=4096, H=16, G=16, D=128):
    """On a GPU: the ladder, PyTorch plain and compiled, the vendor's, and the roofs; rows of
    lab.measure.bench.

    Causal, T = N; bf16, and one sequence of fp32 for the CUDA kernel.
    `flash` is FlashAttention-2 in PyTorch, `cudnn` NVIDIA's own, `sdpa` what PyTorch chooses.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    from day01_roofline import measure_side_by_side

    def sdpa(*heads):
        return scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=H != G)

    def vendor(backend):
        def run():
            with sdpa_kernel([backend]):
                return sdpa(*heads)
        return run

    scale = D ** -0.5
    q = torch.randn(B, T, H, D, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(B, T, G, D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    sizes = tiles(T, D, 2)
    compiled = torch.compile(flash_attention_torch, dynamic=False)
    ways = {"flash": vendor(SDPBackend.FLASH_ATTENTION),
            "cudnn": vendor(SDPBackend.CUDNN_ATTENTION),
            "torch": lambda: flash_attention_torch(q, k, v, True, scale),
            "torch.compile": lambda: compiled(q, k, v, True, scale),
            "three kernels": lambda: attention_three_kernels(q, k, v, True, scale, sizes)}
    ways |= {kernel.__name__: partial(launch, kernel, q, k, v, True, scale, sizes)
             for kernel in FLASH}
    flops = 4 * B * H * D * T * (T + 1) // 2
    moved = 2 * q.nbytes + 2 * k.nbytes + 4 * B * T * H
    wide = [x[:1].float() for x in (q, k, v)]       # (1, T, H, D), 2 × (1, T, G, D)
    wide_heads = [x.transpose(1, 2) for x in wide]
    return measure_side_by_side({
        "attention": (flops, moved, ways, q.dtype),
        "attention fp32": (flops // B, 2 * (wide[0].nbytes + wide[1].nbytes) + 4 * T * H, {
            "sdpa": lambda: sdpa(*wide_heads),
            "flash": "it takes 16-bit numbers only",
            "cudnn": "it takes 16-bit numbers only",
            "torch": lambda: flash_attention_torch(*wide, True, scale),
            "torch.compile": lambda: compiled(*wide, True, scale),
            "triton": lambda: flash_attention(*wide, True, scale),
            "flash_cuda": lambda: flash_attention_cuda(*wide, True, scale)}, torch.float32)})
