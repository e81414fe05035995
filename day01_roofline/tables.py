"""Tables of day 1, as text."""

from day01_roofline.r03_transformer_math import OPERATIONS


def step_table(steps):
    """GFLOP, GB and FLOP/byte of steps, side by side; a row for each operation, the last for all.

    steps: {title: ({operation: FLOPs}, {operation: bytes})}
    """
    lines = [" " * 10 + "".join(f"{title:>26}" for title in steps),
             " " * 10 + f"{'GFLOP':>10}{'GB':>6}{'FLOP/byte':>10}" * len(steps)]
    for name in (*OPERATIONS, "total"):
        line = f"{name:10}"
        for flops, moved in steps.values():
            work = flops.get(name, sum(flops.values()))
            load = moved.get(name, sum(moved.values()))
            line += f"{work / 1e9:10,.1f}{load / 1e9:6.1f}{work / load:10.1f}"
        lines.append(line)
    return "\n".join(lines)
