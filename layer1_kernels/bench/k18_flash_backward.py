"""Ladder, targets and measurements of k18_flash_backward: see lab/measure/bench.py."""

from functools import cache, partial
from typing import NamedTuple

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from lab import simulator
from layer1_kernels import k13_flash_attention as k13
from layer1_kernels.k13_flash_attention import flash_attention, flash_attention_torch
from layer1_kernels.k18_flash_backward import (
    TILES,
    delta_triton,
    flash_backward,
    keys_pass_triton,
    launch,
    queries_pass_triton,
)

KERNELS = delta_triton, keys_pass_triton, queries_pass_triton
KINDS = {2: "bf16", 4: "fp32"}          # by bytes of a number


class Largest(TorchDispatchMode):
    """The bytes of the largest array that PyTorch makes inside."""

    bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, torch.Tensor):
                self.bytes = max(self.bytes, x.untyped_storage().nbytes())
        return result


class Rung(NamedTuple):
    """One rung of the ladder, as counted in float16; the forward pass is that of k13."""

    name: str
    products: float         # FLOPs of products, over those of a forward pass over the same tiles
    tiles: int | None       # of a head that a pass visits; None where PyTorch runs
    reads: float | None     # bytes loaded, over those of q, k, v, out, dO, lse and dlse
    writes: float | None    # bytes stored, over those of the three results
    largest: float          # bytes of the largest array that is made, over those of q
    changed: str


def ladder(N, D, tile):
    """Gradients of causal attention of N queries to N keys, two heads on one, float16: [Rung]."""
    rng = torch.Generator().manual_seed(0)
    q, grad_out = (torch.randn(1, N, 2, D, generator=rng).half() for _ in range(2))
    k, v = (torch.randn(1, N, 1, D, generator=rng).half() for _ in range(2))
    grad_lse = torch.randn(1, N, 2, generator=rng)
    sizes = {"BM": tile, "BN": tile, "BD": triton.next_power_of_2(D), "num_warps": tile // 16}
    forward = 4 * 2 * D * N * N                 # FLOPs if every tile is visited
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    with Largest() as largest, FlopCounterMode(display=False) as counter:
        torch.autograd.grad(flash_attention_torch(*leaves, True, D ** -0.5), leaves,
                            (grad_out, grad_lse))
    rungs = [Rung("PyTorch: plain formula, run again", counter.get_total_flops() / forward, None,
                  None, None, largest.bytes / q.nbytes, "T × N arrays, in fp32")]
    for name, causal, changed in (
            ("Triton: two passes, not causal", False, "tiles: no T × N array"),
            ("Triton: two passes, causal", True, "no tile of the future")):
        out, lse = k13.launch(k13.flash_skip_triton, q, k, v, causal, D ** -0.5, sizes)
        with simulator.trace() as trace, Largest() as largest:
            launch(KERNELS, q, k, v, out, lse, grad_out, grad_lse, causal, D ** -0.5, sizes, sizes)
        rungs.append(rung(name, trace.launches, q, k, causal, tile, largest.bytes, changed))
    return rungs


def rung(name, launches, q, k, causal, tile, largest, changed):
    """The Rung of the launches of one backward pass."""
    _, N, H, D = q.shape
    visited = k13.count_tiles(N, N, tile, tile)[0] if causal else (-(-N // tile)) ** 2
    flops = sum(count for run in launches for kind, count in run.totals.flops_by_type.items()
                if "tensor" in kind)
    least = 3 * q.nbytes + 2 * k.nbytes + 2 * 4 * N * H         # q, out, dO, k, v, lse, dlse
    return Rung(name, flops / (4 * tile * tile * D * H * visited), visited,
                sum(run.bytes_loaded for run in launches) / least,
                sum(run.bytes_stored for run in launches) / (q.nbytes + 2 * k.nbytes),
                largest / q.nbytes, changed)


def compiled(which, itemsize, D, change=None, meta=None):
    """A pass, "keys" or "queries", for Hopper: long, grouped, causal, but for what is changed.

    change: argument types   meta: constexprs, both as simulator.hopper takes them
    """
    BM, BN, warps, stages = TILES[which, itemsize, D]
    kind = KINDS[itemsize]
    kernel, outputs = {"keys": (keys_pass_triton, ("grad_k", "grad_v")),
                       "queries": (queries_pass_triton, ("grad_q",))}[which]
    args = dict.fromkeys(("q", "k", "v", "grad_out"), f"*{kind}") | {"lse": "*fp32",
                                                                    "delta": "*fp32"}
    args |= dict.fromkeys(outputs, f"*{kind}") | {"scale": "fp32", "G": "i32"}
    args |= dict.fromkeys(("T", "N", "H"), "i32:16") | {
        f"{x}_{axis}": "i32:16" for x, axes in (("q", "bth"), ("k", "bng"), ("v", "bng"))
        for axis in axes}
    constexprs = {"CAUSAL": True, "D": D, "BM": BM, "BN": BN, "BD": D}
    # On an H200 the keys' pass of D = 128 takes four fifths of the time of the best tiles that
    # spill nothing (benchmarks/LOG.md).
    return simulator.hopper(kernel, args | (change or {}), constexprs | (meta or {}),
                            num_warps=warps, num_stages=stages,
                            needs=["wgmma"] if itemsize == 2 else [],
                            may_spill=256 if (which, itemsize, D) == ("keys", 2, 128) else 0)


def shipped():
    """The two passes for Hopper as flash_backward launches them: {name: simulator.Hopper}.

    Those in 16 bits have `flash` in their names: they must run on Hopper's own tensor cores.
    """
    return {f"{'flash ' if itemsize == 2 else ''}{which} pass, {KINDS[itemsize]}, D = {D}":
            compiled(which, itemsize, D) for which, itemsize, D in TILES}


H200_TARGETS = {"attention backward: flash_backward": {"times_cudnn": 0.70}}


def bench(B=4, T=4096, H=16, G=16, D=128):
    """On a GPU: the backward pass alone, PyTorch's, the vendor's and the course's; rows of
    lab.measure.bench.

    Causal, T = N, bf16.
    FLOPs are 2.5 forward passes, five products for two, whatever is computed again.
    `flash` is FlashAttention-2 in PyTorch, `cudnn` NVIDIA's own.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    from day01_roofline import measure_side_by_side

    scale = D ** -0.5
    q, grad_out = (torch.randn(B, T, H, D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    k, v = (torch.randn(B, T, G, D, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    heads = [x.detach().transpose(1, 2).requires_grad_() for x in (q, k, v)]

    def vendor(backend):
        def forward():
            with sdpa_kernel([backend]):
                return scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=H != G)
        return gradients_of(forward, heads, grad_out.transpose(1, 2))

    out, lse = flash_attention(q, k, v, True, scale)
    ways = {"flash": vendor(SDPBackend.FLASH_ATTENTION),
            "cudnn": vendor(SDPBackend.CUDNN_ATTENTION),
            "torch": gradients_of(lambda: flash_attention_torch(*leaves, True, scale)[0], leaves,
                                  grad_out),
            "flash_backward": partial(flash_backward, q, k, v, out, lse, grad_out, None, True,
                                      scale)}
    flops = 5 * 2 * B * H * D * T * (T + 1) // 2
    moved = 4 * q.nbytes + 4 * k.nbytes + 4 * B * T * H
    return measure_side_by_side({"attention backward": (flops, moved, ways, q.dtype)})


def gradients_of(forward, leaves, upstream):
    """A function that runs the backward pass of `forward()`, which runs when it is first called."""
    result = cache(forward)
    return lambda: torch.autograd.grad(result(), leaves, upstream, retain_graph=True)
