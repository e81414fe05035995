"""Ladder, targets and measurements of k18_flash_backward: see lab/measure/bench.py."""

from lab import simulator
from layer1_kernels.k18_flash_backward import (
    TILES,
    delta_triton,
    keys_pass_triton,
    queries_pass_triton,
)

KINDS = {2: "bf16", 4: "fp32"}          # by bytes of a number


def shipped():
    """The kernels of flash_backward for Hopper: {name: simulator.Hopper}. Long, grouped, causal."""
    kernels = {}
    sizes = {"scale": "fp32"} | dict.fromkeys(("T", "N", "H"), "i32:16") | {"G": "i32"} | {
        f"{x}_{axis}": "i32:16" for x, axes in (("q", "bth"), ("k", "bng"), ("v", "bng"))
        for axis in axes}
    results = {"keys": (keys_pass_triton, ("grad_k", "grad_v")),
               "queries": (queries_pass_triton, ("grad_q",))}
    for (which, itemsize, D), (BM, BN, warps) in TILES.items():
        kind = KINDS[itemsize]
        kernel, outputs = results[which]
        arrays = dict.fromkeys(("q", "k", "v", "grad_out"), f"*{kind}") | {
            "lse": "*fp32", "delta": "*fp32"} | dict.fromkeys(outputs, f"*{kind}")
        name = f"{'flash ' if itemsize == 2 else ''}{which} pass, {kind}, D = {D}"
        kernels[name] = simulator.hopper(
            kernel, arrays | sizes, {"CAUSAL": True, "D": D, "BM": BM, "BN": BN, "BD": D},
            num_warps=warps, num_stages=2)
    return kernels
