"""Ladder, targets and measurements of k20_grouped_gemm: see lab/measure/bench.py."""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from lab import simulator
from layer1_kernels.k05_matmul_tiled import GROUP, matmul
from layer1_kernels.k08_rmsnorm import Eager
from layer1_kernels.k20_grouped_gemm import (
    SORT,
    TILES,
    count_triton,
    grouped_gemm,
    grouped_gemm_triton,
    launch_grouped,
    place_triton,
    scan_triton,
    sort_slots,
    sort_slots_torch,
)


def skewed_experts(T, k, E, seed=0):                # -> (T, k) int32
    """The experts of T tokens, k different ones each.
    The chance of expert e falls as 1 / (e + 1), by Zipf's law, as that of words does; then the
    experts get new numbers, by chance."""
    rng = np.random.default_rng(seed)
    scores = rng.gumbel(size=(T, E)) - np.log(np.arange(1, E + 1))      # (T, E)
    experts = np.argsort(-scores, axis=1)[:, :k]    # (T, k)
    return torch.from_numpy(rng.permutation(E)[experts].astype(np.int32))


class Rung(NamedTuple):
    """One rung of the ladder, as counted in fp16."""

    name: str
    launches: int
    host_waits: int         # how often the host must know the loads before it can go on
    rows: float             # rows that are multiplied, over slots
    weights: float | None   # bytes of w that are asked for, over those of the chosen experts, each
    #                         once; None where PyTorch runs
    evenness: float | None  # work of the mean of 8 programs over that of the busiest
    changed: str


def ladder(T, k, E, N, K):
    """Every way of this lesson to multiply the slots of T tokens: [Rung]. w: (E, N, K)"""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(T, K, generator=rng).half()                         # (T, K)
    w = torch.randn(E, N, K, generator=rng).half()                      # (E, N, K)
    order, offsets = sort_slots_torch(skewed_experts(T, k, E), E)       # (R,), (E + 1,)
    loads = offsets.diff()                                              # (E,)
    rows = x[order // k]                                                # (R, K)
    least = int((loads > 0).sum()) * w[0].nbytes
    flops = 2 * N * K * len(order)
    with simulator.trace() as sorting:
        sort_slots(skewed_experts(T, k, E), E)
    with simulator.trace() as trace:
        for e, part in enumerate(rows.split(loads.tolist())):
            if len(part):
                matmul(part, w[e])
    rungs = [rung("Triton: a matmul for each", trace.launches, 1, least, flops,
                  "as many launches as chosen experts")]
    padded = rows.new_zeros(E, int(loads.max()), K)                     # (E, largest, K)
    with Eager() as eager, FlopCounterMode(display=False) as counter:
        torch.bmm(padded, w.transpose(1, 2))
    rungs.append(Rung("PyTorch: padded to the largest", eager.launches, 1,
                      counter.get_total_flops() / flops, None, None,
                      "one launch, mostly of zeros"))
    y = x.new_empty(len(order), N)                                      # (R, N)
    changes = ("a list of tiles; the sort is 3 of 4", "w is read less, tiles are emptier",
               "more so")
    for BM, changed in zip((16, 32, 64), changes, strict=True):
        with simulator.trace() as trace:
            launch_grouped(x, w, y, order, offsets, None, k, 8, {
                "BM": BM, "BN": 32, "BK": 32, "GROUP": GROUP, "num_warps": BM // 16})
        launches = sorting.launches + trace.launches
        rungs.append(rung(f"Triton: grouped, BM = {BM}", launches, 0, least, flops, changed))
    return rungs


def rung(name, launches, waits, least, flops, changed):
    """The Rung of some launches. least: bytes of the chosen experts   flops: that are needed"""
    weights = 0
    multiplied = 0
    for launch in launches:
        multiplied += sum(count for kind, count in launch.totals.flops_by_type.items()
                          if "tensor" in kind)
        weights += sum(launch.lines[line].access(space, op).bytes
                       for (line, space, op), request in launch.requests.items()
                       if op == "load" and next(iter(request.lanes.values()))[0] == "w")
    grouped = launches[-1].name == "grouped_gemm_triton"
    return Rung(name, len(launches), waits, multiplied / flops, weights / least,
                launches[-1].evenness if grouped else None, changed)


def shipped(N=2048, K=7168):
    """What grouped_gemm compiles for Hopper: {name: simulator.Hopper}.

    Tiles of w come by the TMA.
    Rows of x are gathered, so they come by cp.async: the TMA's copies take neighbouring rows.
    """
    kernels = {}
    for dtype, kind, tiles in ((torch.bfloat16, "bf16", ("gemm", "gemm", "dots")),
                               (torch.float32, "fp32", ("dots", "dots"))):
        for name, (BM, BN, BK, warps, stages) in zip(tiles, TILES[dtype.itemsize], strict=True):
            args = {"x": f"*{kind}", "w": f"tensordesc<{kind}[{BN},{BK}]>", "y": f"*{kind}",
                    "offsets": "*i32", "order": "*i32", "weights": "*fp32", "N": "i32:16",
                    "K": "i32:16", "EACH": "i32", "E": "i32:16"}
            kernels[f"grouped_{name}_{kind}_{BM}_rows"] = simulator.hopper(
                grouped_gemm_triton, args, {"BM": BM, "BN": BN, "BK": BK, "GROUP": GROUP},
                num_warps=warps, num_stages=stages,
                needs=["tma_loads", "wgmma"] if name == "gemm" else ["tma_loads"])
    return kernels


def sorting(E=256, BLOCK=64):
    """The same of sort_slots for E experts."""
    meta = {"E": E, "BLOCK": BLOCK}
    arrays = {"count": ("experts", "counts"), "place": ("experts", "offsets", "starts", "order")}
    kernels = {kernel: simulator.hopper(function, dict.fromkeys(arrays[kernel], "*i32") |
                                        {"n": "i32"}, meta, **SORT)
               for kernel, function in (("count", count_triton), ("place", place_triton))}
    scan = dict.fromkeys(("counts", "offsets", "starts"), "*i32") | {"blocks": "i32"}
    meta = {"E": E, "B": BLOCK // 4}
    return kernels | {"scan": simulator.hopper(scan_triton, scan, meta, **SORT)}


H200_TARGETS = {"Mixtral: grouped_gemm": {"times_torch": 0.85},
                "DeepSeek: grouped_gemm": {"times_torch": 0.85}}


def bench(mixtral=(8, 14_336, 4096, 8192), deepseek=(256, 2048, 7168, 32_768)):
    """On a GPU: this lesson's kernels and torch's by turns; rows of lab.measure.bench.

    (E, N, K, R) of the first product of an MLP of two models, for 4096 tokens with 2 of 8 and 8 of
    256 experts; loads by Zipf's law.
    Rows of x are in order already: torch's grouped_mm, which does not gather, takes them so.
    cublas: a matmul for each expert, whose load the host knows already.
    """
    from day01_roofline import measure_side_by_side

    families = {}
    for name, k, (E, N, K, R) in (("Mixtral", 2, mixtral), ("DeepSeek", 8, deepseek)):
        experts = skewed_experts(R // k, k, E).cuda()                   # (T, k)
        _, offsets = sort_slots_torch(experts, E)
        order = torch.arange(R, device="cuda", dtype=torch.int32)
        x = torch.randn(R, K, device="cuda", dtype=torch.bfloat16)      # (R, K)
        w = torch.randn(E, N, K, device="cuda", dtype=torch.bfloat16) / K**0.5  # (E, N, K)
        chosen = int((offsets.diff() > 0).sum())
        families[name] = 2 * R * N * K, 2 * (R * K + chosen * N * K + R * N), {
            "torch": partial(torch.nn.functional.grouped_mm, x, w.transpose(1, 2),
                             offs=offsets[1:]),
            "cublas": partial(one_by_one, x, w, offsets.diff().tolist()),
            "grouped_gemm": partial(grouped_gemm, x, w, order, offsets)}, x.dtype
        families[f"sort of {name}"] = R, 8 * R, {
            "torch": partial(sort_slots_torch, experts, E),
            "sort_slots": partial(sort_slots, experts, E)}
    return measure_side_by_side(families)


def one_by_one(x, w, loads):                        # (R, K), (E, N, K) -> (R, N)
    """A matmul for each expert with rows, by the vendor's library; the host knows the loads."""
    return torch.cat([part @ w[e].T for e, part in enumerate(x.split(loads)) if len(part)])
