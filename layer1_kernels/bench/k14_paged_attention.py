"""Ladder, targets and measurements of k14_paged_attention: see lab/measure/bench.py."""

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import triton

from lab import simulator
from layer1_kernels import k13_flash_attention as k13
from layer1_kernels.k14_paged_attention import (
    decode_batch,
    gather_triton,
    launch,
    merge_triton,
    paged_attention,
    paged_attention_cuda,
    paged_triton,
    sizes_for,
    write_kv,
    write_kv_torch,
    write_kv_triton,
)


class Rung(NamedTuple):
    """One rung of the ladder, as counted in the simulator."""

    name: str
    launches: int
    programs: int           # of the launch that attends
    reads: float            # bytes loaded, over those of the keys and values
    writes: float           # bytes stored, over those of out
    sectors: int            # of 32 bytes, loads and stores
    each: int               # warp instructions of an attending program
    instructions: int       # of a warp, all of them
    changed: str


def gather_then_flash(q, k_pages, v_pages, block_tables, cu_q, lens, scale, sizes):
    """paged_attention of sequences of one length, one query each: their pages are copied together
    for k13's kernel."""
    B, _, D = q.shape
    _, S, G, _ = k_pages.shape
    N = S * block_tables.shape[1]
    keys, values = (torch.empty((B, N, G, D), dtype=q.dtype, device=q.device) for _ in range(2))
    for pages, together in ((k_pages, keys), (v_pages, values)):
        gather_triton[(triton.cdiv(N, sizes["BN"]), G, B)](
            pages, block_tables, lens, together, *pages.stride()[:3], block_tables.stride(0), N, G,
            S=S, D=D, BN=sizes["BN"], BD=sizes["BD"], num_warps=sizes["num_warps"])
    return k13.launch(k13.flash_triton, q[:, None], keys, values, True, scale, sizes)[0][:, 0]


def heads_apart(q, k_pages, v_pages, *others):
    """paged_attention with a program for each query head: one launch for each head of a group."""
    R = q.shape[1] // k_pages.shape[2]
    out = torch.empty_like(q)
    for r in range(R):
        out[:, r::R] = launch(paged_triton, merge_triton, q[:, r::R], k_pages, v_pages, *others)
    return out


def ladder(N, H, G, D, splits):
    """One sequence of N tokens decodes, N a multiple of 16, float16, pages of 16 slots: [Rung]."""
    args = decode_batch(1, N, H, G, D, 16)
    sizes = {"BM": 16, "BN": 16, "BD": triton.next_power_of_2(D), "num_warps": 1}
    runs = {"gather, then flash": lambda: gather_then_flash(*args, sizes),
            "heads apart": lambda: heads_apart(*args, 1, sizes),
            "heads packed": lambda: launch(paged_triton, merge_triton, *args, 1, sizes),
            "packed, split": lambda: launch(paged_triton, merge_triton, *args, splits, sizes)}
    changes = ("pages copied together, then k13", "read straight from the pages",
               "a group shares its keys", "shorter programs, some more bytes")
    steps = []
    least = 2 * N * G * D * 2                               # bytes of keys and values
    for (name, run), changed in zip(runs.items(), changes, strict=True):
        with simulator.trace() as trace:
            out = run()
        attend = [one for one in trace.launches if one.name in ("paged_triton", "flash_triton")]
        programs = sum(int(np.prod(one.grid)) for one in attend)
        steps.append(Rung(
            name, len(trace.launches), programs,
            sum(one.bytes_loaded for one in trace.launches) / least,
            sum(one.bytes_stored for one in trace.launches) / out.nbytes,
            sum(one.totals.sum("transactions", "global") for one in trace.launches),
            sum(one.steps for one in attend) // programs,
            sum(one.steps for one in trace.launches), changed))
    return steps


def shipped():
    """The kernels for Hopper as the launchers start them: bf16, decoding and a chunk of a prompt,
    8 query heads to a kv head, pages of 16."""
    names = paged_triton.arg_names
    kinds = dict.fromkeys(names[:names.index("R")], "i32:16") | dict.fromkeys(
        ("block_tables", "cu_q", "lens"), "*i32") | dict.fromkeys(
        ("q", "k_pages", "v_pages"), "*bf16") | {
        "out": "*fp32", "lse": "*fp32", "scale": "fp32", "T": "i32", "B": "i32", "splits": "i32"}
    kernels = {}
    for what, T, kind in (("decode", 1, "*fp32"), ("chunk", 512, "*bf16")):
        sizes = sizes_for(T, 1, 8, 128, 2)
        warps = sizes.pop("num_warps")
        stages = sizes.pop("num_stages")
        kernels[f"paged_triton, {what}"] = simulator.hopper(
            paged_triton, kinds | {"out": kind}, {"R": 8, "S": 16, "D": 128} | sizes, warps, stages)
    kernels["merge_triton"] = simulator.hopper(
        merge_triton, ["*fp32", "*fp32", "*bf16", "i32:16", "i32"], {"D": 128, "BS": 8, "BD": 128})
    names = write_kv_triton.arg_names
    kinds = dict.fromkeys(names[:5], "*bf16") | {"slots": "*i64"} | dict.fromkeys(
        names[5:names.index("D")], "i32:16") | {"G": "i32"}
    kernels["write_kv_triton"] = simulator.hopper(write_kv_triton, kinds, {"D": 128, "BLOCK": 1024})
    return kernels


H200_TARGETS = {"decoding: paged_attention": {"share_of_copy": 0.85}}   # from 512 MB of keys on

def bench(B=64, N=4096, H=64, G=8, D=128, S=16):
    """On a GPU: decoding with a gigabyte of keys and values, and the roofs; lab.measure.bench rows.

    Then a quarter of the sequences in fp32, for the CUDA kernel; one sequence of 2·N, whose keys
    are split; and a quarter of all keys and values written into their pages.
    `sdpa` is PyTorch's own attention over keys that lie in one piece, `torch` gathers them first.
    """
    from torch.nn.functional import scaled_dot_product_attention

    from day01_roofline import measure_side_by_side

    def sdpa(q, keys, values):
        return scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=True)

    def together(pages, tables):                # -> (B, G, N, D)
        return pages[tables.long()].flatten(1, 2).transpose(1, 2)

    def gathered(q, k_pages, v_pages, tables, *_):
        return sdpa(q, together(k_pages, tables), together(v_pages, tables))

    compiled, compiled_write = (torch.compile(formula, dynamic=False)
                                for formula in (gathered, write_kv_torch))

    def decoding(B, N, dtype, ladder):
        """A family. ladder: the ways besides those of all, from arguments and sizes."""
        args = decode_batch(B, N, H, G, D, S, "cuda", dtype)
        q, *pages, tables = args[:4]
        keys, values = (together(x, tables) for x in pages)     # (B, G, N, D)
        sizes = sizes_for(B, B, H // G, D, dtype.itemsize)
        ways = {"sdpa": partial(sdpa, q, keys, values), "torch": partial(gathered, *args),
                "torch.compile": partial(compiled, *args), **ladder(args, sizes),
                "paged_attention": partial(paged_attention, *args)}
        return 4 * B * N * H * D, keys.nbytes + values.nbytes + 2 * q.nbytes, ways, dtype

    def packed(args, sizes):
        return {"heads packed": partial(launch, paged_triton, merge_triton, *args, 1, sizes)}

    def steps(args, sizes):
        return {"gather, then flash": partial(gather_then_flash, *args, k13.tiles(1, D, 2)),
                "heads apart": partial(heads_apart, *args, 1, sizes)} | packed(args, sizes)

    T = B * N // 4
    bf16 = torch.bfloat16
    k, v, k_pages, v_pages = torch.randn(4, T, G, D, device="cuda", dtype=bf16)     # (T, G, D)
    k_pages, v_pages = (x.view(T // S, S, G, D) for x in (k_pages, v_pages))
    slots = torch.randperm(T, device="cuda")                                        # (T,)
    return measure_side_by_side({
        "decoding": decoding(B, N, bf16, steps),
        "decoding fp32": decoding(B // 4, N, torch.float32, lambda args, sizes: {
            "paged_cuda": partial(paged_attention_cuda, *args)}),
        "one sequence": decoding(1, 2 * N, bf16, packed),
        "write_kv": (0, 4 * k.nbytes + slots.nbytes, {
            "torch": lambda: write_kv_torch(k, v, k_pages, v_pages, slots),
            "torch.compile": lambda: compiled_write(k, v, k_pages, v_pages, slots),
            "triton": lambda: write_kv(k, v, k_pages, v_pages, slots)})})
