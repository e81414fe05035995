"""What the compilers make of the shipped kernels for Hopper: `make compiled` records it.

A module of a floor takes part if it has a function shipped() -> {name: lab.simulator.Hopper}. No
GPU is needed, and nothing is timed: registers and spills are the assembler's word, instructions are
counted in the code.
"""

import importlib
import importlib.metadata
import json
import sys

from lab import course
from lab.course import ROOT
from lab.simulator import nvrtc

FILE = ROOT / "benchmarks" / "hopper.json"
SHARED = 227 * 1024         # bytes that a block may have: CUDA's table of compute capabilities, 9.0
WIDE = 16                   # bytes of a thread's widest access


def modules():
    """{name: import path} of the floors' modules that define shipped()."""
    return {path.stem: ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for floor in course.floors() for path in sorted((ROOT / floor.name).rglob("*.py"))
            if "\ndef shipped(" in path.read_text("utf-8")}


def rows(module):
    """{kernel: its row in the record}, JSON-able. module: its import path"""
    kernels = importlib.import_module(module).shipped()
    return {name: {
        "warps": k.num_warps, "registers": k.registers, "spilled_bytes": k.spills,
        "shared_bytes": k.shared, "wgmma": k.wgmma, "mma_sync": k.mma_sync, "cp_async": k.cp_async,
        "tma_loads": k.tma_loads, "widest_copy": max(k.copies, default=0),
        "widest_load": max(k.loads, default=0),
        "widest_store": max(k.stores, default=0), "serialised": k.serialised,
        "needs": list(k.needs), "may_spill": k.may_spill,
        "blocks": (fits := k.occupancy("H200")).blocks, "limited_by": fits.limiter,
    } for name, k in kernels.items()}


def faults(name, row):
    """Sentences about what a shipped kernel must not have."""
    wrong = []
    if row["spilled_bytes"] > row["may_spill"]:
        wrong.append(f"{name} spills {row['spilled_bytes']} bytes a thread")
    if row["serialised"]:
        wrong.append(f"{name}: its wgmma instructions wait for each other: {row['serialised'][0]}")
    if row["shared_bytes"] > SHARED:
        wrong.append(f"{name} takes {row['shared_bytes']} bytes of shared memory, at most {SHARED}")
    wrong += [f"{name} has no {count}" for count in row["needs"] if not row[count]]
    widest = max(row["widest_load"], row["widest_copy"])
    if widest < WIDE and not row["tma_loads"]:
        wrong.append(f"{name} loads at most {widest} bytes a lane, expected {WIDE}")
    return wrong


def table(modules):
    """The rows of all modules as text."""
    lines = [f"{'kernel':34}{'warps':>6}{'registers':>10}{'spilled':>8}{'shared':>8}{'wgmma':>6}"
             f"{'mma.sync':>9}{'TMA':>5}{'cp.async':>9}{'bytes':>6}{'load':>6}{'store':>6}"
             f"{'blocks':>7}  limited by"]
    for kernels in modules.values():
        for name, r in kernels.items():
            lines.append(f"{name:34}{r['warps']:6}{r['registers']:10}{r['spilled_bytes']:8}"
                         f"{r['shared_bytes']:8}{r['wgmma']:6}{r['mma_sync']:9}{r['tma_loads']:5}"
                         f"{r['cp_async']:9}{r['widest_copy']:6}{r['widest_load']:6}"
                         f"{r['widest_store']:6}{r['blocks']:7}  {r['limited_by']}")
    return "\n".join(lines)


def compilers():
    """{compiler: its version}"""
    return {"triton": importlib.metadata.version("triton"),
            "nvrtc": ".".join(map(str, nvrtc.version()))}


def main():
    record = {name: rows(module) for name, module in modules().items()}
    wrong = [fault for kernels in record.values() for name, row in kernels.items()
             for fault in faults(name, row)]
    print(table(record), *wrong, sep="\n")
    if not wrong:
        FILE.write_text(json.dumps({
            "target": "sm_90a", **compilers(), "modules": record}, indent=1) + "\n", "utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
