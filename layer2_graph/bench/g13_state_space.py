"""What Triton makes of g13's kernel for Hopper; nothing of it is timed."""

from lab import simulator
from layer2_graph.g13_state_space import TILES, ssd_triton

KINDS = {2: ("bf16", 128, 64), 4: ("fp32", 16, 16)}     # by bytes of a number: N and P of a head


def shipped():
    """ssd_triton as `ssd` launches it: Mamba-2's heads in bf16, and those of the twins in fp32."""
    kernels = {}
    for itemsize, (kind, N, P) in KINDS.items():
        Q, warps, stages = TILES[itemsize]
        args = dict.fromkeys(("q", "k", "v", "y"), f"*{kind}") | {
            "log_a": "*fp32", "states": "*fp32", "cu_q": "*i32", "seats": "*i64", "H": "i32"}
        kernels[f"ssd, {kind}, {N} × {P}"] = simulator.hopper(
            ssd_triton, args, {"N": N, "P": P, "Q": Q}, num_warps=warps, num_stages=stages)
    return kernels
