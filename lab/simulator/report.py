"""What is kept of a launch: counts per source line, as objects, as data and as a table."""

from dataclasses import asdict, dataclass, field

SPACES = ("global", "shared")


@dataclass
class MemoryCounts:
    """Loads or stores in one space; counts.py says what requests, sectors and wavefronts are."""
    requests: int = 0           # of one warp each
    transactions: int = 0       # sectors of global, wavefronts of shared memory
    ideal: int = 0              # the fewest transactions possible
    bytes: int = 0              # asked for by the lanes

    def add(self, row):
        self.requests += row[0]
        self.transactions += row[1]
        self.ideal += row[2]
        self.bytes += row[3]


@dataclass
class LineCounts:
    """One source line, or all of them."""
    steps: int = 0              # warp instructions
    lane_steps: int = 0
    flops: int = 0
    barriers: int = 0           # of one warp each
    splits: int = 0             # times that lanes disagreed on a branch
    memory: dict = field(default_factory=dict)      # (space, operation) -> MemoryCounts;
                                                    # operation: "load", "store" or "atomic"

    def access(self, space, op):
        return self.memory.setdefault((space, op), MemoryCounts())


@dataclass
class Launch:
    """One launch of a kernel, as counted."""
    name: str
    grid: tuple
    block: tuple
    steps: int
    lane_steps: int
    warnings: list
    lines: dict                 # line -> LineCounts
    totals: LineCounts
    path: str = ""
    text: dict = field(default_factory=dict)        # line -> its source
    checked_blocks: int = 0     # race-checked, of all blocks
    shared_bytes: int = 0       # shared memory of a block

    @property
    def flops(self):
        return self.totals.flops

    @property
    def bytes_loaded(self):
        """Bytes that lanes asked of global memory."""
        return self._sum("bytes", "global", ("load", "atomic"))

    @property
    def bytes_stored(self):
        return self._sum("bytes", "global", ("store", "atomic"))

    def sectors_per_request(self, space="global", op=None, line=None):
        """Mean sectors of 32 bytes a warp request. op: "load", "store", "atomic" or None for all.
        None if there was no request."""
        ops = (op,) if op else ("load", "store", "atomic")
        requests = self._sum("requests", space, ops, line)
        return self._sum("transactions", space, ops, line) / requests if requests else None

    def bank_conflict_degree(self, line=None):
        """Wavefronts of shared memory over the fewest possible; 1.0 is free of conflicts. None if
        shared memory was not used."""
        ops = ("load", "store", "atomic")
        ideal = self._sum("ideal", "shared", ops, line)
        return self._sum("transactions", "shared", ops, line) / ideal if ideal else None

    def _sum(self, what, space, ops, line=None):
        counts = self.totals if line is None else self.lines.get(line, LineCounts())
        return sum(getattr(c, what) for (s, op), c in counts.memory.items()
                   if s == space and op in ops)

    def as_data(self):
        """All of it as a dict that JSON can hold."""
        return {
            "name": self.name, "grid": list(self.grid), "block": list(self.block),
            "steps": self.steps, "lane_steps": self.lane_steps, "warnings": list(self.warnings),
            "flops": self.flops, "bytes_loaded": self.bytes_loaded,
            "bytes_stored": self.bytes_stored, "path": self.path,
            "checked_blocks": self.checked_blocks, "shared_bytes": self.shared_bytes,
            "lines": {str(n): counts_as_data(c) | {"text": self.text.get(n, "")}
                      for n, c in self.lines.items()},
            "totals": counts_as_data(self.totals),
        }

    def __str__(self):
        head = (f"{self.name}  grid {self.grid} block {self.block}  "
                f"{self.steps} warp instructions  {self.flops} flops  "
                f"{self.bytes_loaded} bytes loaded  {self.bytes_stored} stored")
        rows = [f"{'line':>5} {'access':14} {'requests':>9} {'per request':>12} {'ideal':>6}  "
                f"source"]
        for line, counts in sorted(self.lines.items()):
            for (space, op), c in counts.memory.items():
                unit = "sectors" if space == "global" else "wavefr."
                rows.append(f"{line:5} {space + ' ' + op:14} {c.requests:9} "
                            f"{c.transactions / c.requests:5.2f} {unit} "
                            f"{c.ideal / c.requests:5.2f}  {self.text.get(line, '')[:48]}")
        notes = [f"warning: {w}" for w in self.warnings]
        return "\n".join([head, *rows, *notes])


def counts_as_data(counts):
    data = asdict(counts)
    data["memory"] = {f"{space} {op}": asdict(c) for (space, op), c in counts.memory.items()}
    return data


def make_launch(run, name):
    """A finished Run -> Launch."""
    counts, lines, totals, text = run.counts, {}, LineCounts(), {}
    path = next((i.location.path for i in run.kernel.code if i.location), "")
    for inst, warps in counts.warps.items():
        line = inst.location.line if inst.location else 0
        text.setdefault(line, run.text(inst.location))
        lanes = counts.lanes.get(inst, 0)
        for row in (lines.setdefault(line, LineCounts()), totals):
            row.steps += warps
            row.lane_steps += lanes
            row.flops += lanes * inst.flops
            row.barriers += warps if inst.opcode in ("bar", "barrier") and "warp" not in \
                inst.modifiers else 0
            row.splits += counts.splits.get(inst, 0)
            for space, memory in counts.memory.get(inst, {}).items():
                row.access(space, operation(inst, space)).add(memory)
    return Launch(name, run.grid, run.block, totals.steps, totals.lane_steps,
                  list(run.warnings.values()), lines, totals, path, text, run.checked_blocks,
                  run.shared_size)


def operation(inst, space):
    """What an instruction does to a space; cp.async loads from global and stores to shared."""
    if inst.opcode in ("atom", "red"):
        return "atomic"
    if inst.opcode == "cp":
        return "load" if space == "global" else "store"
    return "store" if inst.opcode == "st" or "store" in inst.modifiers else "load"
