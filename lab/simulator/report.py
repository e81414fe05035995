"""What is kept of a launch: counts per source line, as objects, as data and as text.

All of it is counted at PTX level: the assembler may still merge, widen or drop instructions, and
no cache is modelled.
"""

from collections import Counter
from dataclasses import asdict, dataclass, field, fields

from .classes import class_of, work
from .counts import SECTOR
from .distance import load_to_use
from .lanes import WARP

UNITS = {"global": "sectors", "local": "sectors", "shared": "wavefr.", "const": "words"}
OPS = ("load", "store", "atomic")


@dataclass
class MemoryCounts:
    """Loads or stores in one space; counts.py says what requests, sectors and wavefronts are."""
    requests: int = 0           # of one warp each
    transactions: int = 0       # sectors of global and local, wavefronts of shared memory, words of
                                # constant memory
    ideal: int = 0              # the fewest transactions possible
    distinct: int = 0           # bytes, each once a request, however many lanes share it
    bytes: int = 0              # asked for by the lanes

    def add(self, row):
        self.requests += row[0]
        self.transactions += row[1]
        self.ideal += row[2]
        self.distinct += row[3]
        self.bytes += row[4]


@dataclass
class LineCounts:
    """One source line, or all of them."""
    steps: int = 0              # warp instructions
    lane_steps: int = 0
    flops: int = 0              # on floats of all types; an fma is two, an atomic none
    barriers: int = 0           # of one warp each
    splits: int = 0             # times that lanes disagreed on a branch
    memory: dict = field(default_factory=dict)      # (space, operation) -> MemoryCounts;
                                                    # operation: "load", "store" or "atomic"
    flops_by_type: Counter = field(default_factory=Counter)     # "fp32", "tensor bf16", ...
    integer_ops: int = 0        # operations on integers, addresses among them
    instructions: Counter = field(default_factory=Counter)      # class -> warp instructions
    divergent: int = 0          # branches of a warp on which its own lanes disagreed

    def access(self, space, op):
        return self.memory.setdefault((space, op), MemoryCounts())

    def add(self, other):
        """Counts of more lines."""
        for name in ("steps", "lane_steps", "flops", "barriers", "splits", "integer_ops",
                     "divergent"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for (space, op), c in other.memory.items():
            self.access(space, op).add((c.requests, c.transactions, c.ideal, c.distinct, c.bytes))
        self.flops_by_type.update(other.flops_by_type)
        self.instructions.update(other.instructions)

    def sum(self, what, space, ops=OPS):
        return sum(getattr(c, what) for (s, op), c in self.memory.items()
                   if s == space and op in ops)

    def bytes_by_space(self):
        """Bytes that lanes asked for: {space: {operation: bytes}}."""
        totals = {}
        for (space, op), c in self.memory.items():
            totals.setdefault(space, {})[op] = c.bytes
        return totals

    @property
    def bytes_moved(self):
        """Bytes of the sectors of global memory that requests touched."""
        return SECTOR * self.sum("transactions", "global")

    @property
    def bytes_asked(self):
        """Bytes that lanes asked of global memory, an atomic's once."""
        return self.sum("bytes", "global")

    @property
    def intensity(self):
        """FLOP over bytes_moved.
        None if nothing was moved."""
        return self.flops / self.bytes_moved if self.bytes_moved else None

    @property
    def intensity_asked(self):
        """FLOP over bytes_asked.
        None if nothing was asked for."""
        return self.flops / self.bytes_asked if self.bytes_asked else None

    @property
    def active_lanes(self):
        """Mean number of lanes that ran an instruction, of 32.
        None without instructions."""
        return self.lane_steps / self.steps if self.steps else None


@dataclass
class Launch:
    """One launch of a kernel, as counted."""
    name: str
    grid: tuple
    block: tuple
    steps: int
    lane_steps: int
    warnings: list
    lines: dict                 # line -> LineCounts; "file.cuh:12" for a line of another file
    totals: LineCounts
    path: str = ""
    text: dict = field(default_factory=dict)        # line -> its source
    checked_blocks: int = 0     # for races and uninitialised values, of all blocks
    shared_bytes: int = 0       # shared memory of a block
    requests: dict = field(default_factory=dict)    # (line, space, operation) -> its first Request
    timeline: object = None     # of block (0, 0, 0), see timeline.py
    busiest: int = 0            # instructions of the warp that runs the most
    in_flight: float | None = None      # bytes of a block's cp.async that are still on their way
                                # when its threads' wait for a group returns, mean over waits;
                                # None without such waits. An mbarrier's waits do not count
    load_to_use: int | None = None      # multiply-adds in the code between a load from global
                                # memory and the first use of what it brings; see distance.py

    @property
    def evenness(self):
        """Mean instructions of a warp over those of the busiest: 1 if all warps run as many."""
        blocks, threads = (x * y * z for x, y, z in (self.grid, self.block))
        return self.steps / max(self.busiest * blocks * -(-threads // WARP), 1)

    @property
    def flops(self):
        return self.totals.flops

    @property
    def bytes_loaded(self):
        """Bytes that lanes asked of global memory."""
        return self.totals.sum("bytes", "global", ("load", "atomic"))

    @property
    def bytes_stored(self):
        return self.totals.sum("bytes", "global", ("store", "atomic"))

    def sectors_per_request(self, space="global", op=None, line=None):
        """Mean sectors of 32 bytes a warp request. op: "load", "store", "atomic" or None for all.
        None if there was no request."""
        return self._per_request("transactions", space, op, line)

    def ideal_per_request(self, space="global", op=None, line=None):
        """The fewest sectors that hold what a request asked for, as sectors_per_request()."""
        return self._per_request("ideal", space, op, line)

    def bank_conflict_degree(self, line=None):
        """Wavefronts of shared memory over the fewest possible; 1.0 is free of conflicts.
        None if shared memory was not used."""
        counts = self.counts(line)
        ideal = counts.sum("ideal", "shared")
        return counts.sum("transactions", "shared") / ideal if ideal else None

    def counts(self, line=None):
        """-> LineCounts of a line, or of all."""
        return self.totals if line is None else self.lines.get(line, LineCounts())

    def _per_request(self, what, space, op, line):
        counts = self.counts(line)
        ops = (op,) if op else OPS
        requests = counts.sum("requests", space, ops)
        return counts.sum(what, space, ops) / requests if requests else None

    def as_data(self):
        """All of it as a dict that JSON can hold."""
        return {
            "name": self.name, "grid": list(self.grid), "block": list(self.block),
            "steps": self.steps, "lane_steps": self.lane_steps, "evenness": self.evenness,
            "warnings": list(self.warnings),
            "flops": self.flops, "bytes_loaded": self.bytes_loaded,
            "bytes_stored": self.bytes_stored, "path": self.path,
            "checked_blocks": self.checked_blocks, "shared_bytes": self.shared_bytes,
            "in_flight": self.in_flight, "load_to_use": self.load_to_use,
            "lines": {str(n): counts_as_data(c) | {"text": self.text.get(n, "")}
                      for n, c in self.lines.items()},
            "totals": counts_as_data(self.totals),
        }

    def __str__(self):
        return "\n".join([*self.summary(), *self.memory_table(), *self.work_table(),
                          *(f"warning: {w}" for w in self.warnings)])

    def summary(self):
        total = self.totals
        blocks = self.grid[0] * self.grid[1] * self.grid[2]
        yield f"{self.name}  grid {self.grid} block {self.block}, counted at PTX level"
        yield f"  {self.steps} warp instructions: {listed(total.instructions)}"
        yield (f"  {self.flops} flops{': ' if self.flops else ''}{listed(total.flops_by_type)}; "
               f"{total.integer_ops} integer operations")
        yield (f"  {self.bytes_loaded} bytes loaded, {self.bytes_stored} stored, "
               f"{total.bytes_moved} in sectors")
        if self.flops and total.bytes_asked:
            yield (f"  {total.intensity:.3g} FLOP/byte of sectors moved, "
                   f"{total.intensity_asked:.3g} of bytes asked for")
        if self.bank_conflict_degree():
            yield (f"  shared memory: {total.sum('requests', 'shared')} requests, bank-conflict "
                   f"degree {self.bank_conflict_degree():.3g}")
        if self.in_flight is not None:
            yield (f"  cp.async: {self.in_flight:.6g} bytes of a block still on their way after a "
                   f"wait, on average")
        yield (f"  barriers that warps reached: {total.barriers}; divergent branches: "
               f"{total.divergent}; {total.active_lanes or 0:.1f} of {WARP} lanes active")
        yield (f"  {self.checked_blocks} of {blocks} blocks checked for races and "
               f"uninitialised values")

    def memory_table(self):
        yield f"{'line':>5} {'access':14} {'requests':>9} {'per request':>13} {'ideal':>6}  source"
        for line, counts in sorted(self.lines.items(), key=in_order):
            for (space, op), c in counts.memory.items():
                yield (f"{line:>5} {space + ' ' + op:14} {c.requests:9} "
                       f"{c.transactions / c.requests:5.2f} {UNITS[space]:7} "
                       f"{c.ideal / c.requests:6.2f}  {self.text.get(line, '')[:48]}")

    def work_table(self):
        """The lines that compute, reach a barrier or diverge."""
        rows = {line: c for line, c in self.lines.items() if c.flops or c.barriers or c.divergent}
        if rows:
            yield (f"{'line':>5} {'instructions':>12} {'lanes':>5} {'flops':>10} {'barriers':>8} "
                   f"{'divergent':>9}  source")
        for line, c in sorted(rows.items(), key=in_order):
            yield (f"{line:>5} {c.steps:12} {c.active_lanes:5.1f} {c.flops:10} {c.barriers:8} "
                   f"{c.divergent:9}  {self.text.get(line, '')[:48]}")


def listed(counter):
    """{"memory": 8, "float": 2} -> "8 memory, 2 float", the largest first."""
    return ", ".join(f"{n} {name}" for name, n in
                     sorted(counter.items(), key=lambda item: (-item[1], item[0])) if n)


def in_order(row):
    """Sorts lines by number; those of other files come last."""
    return (isinstance(row[0], str), row[0])


def counts_as_data(counts):
    data = {f.name: getattr(counts, f.name) for f in fields(counts)}
    return data | {
        "memory": {f"{space} {op}": asdict(c) for (space, op), c in counts.memory.items()},
        "flops_by_type": dict(counts.flops_by_type), "instructions": dict(counts.instructions),
        "bytes_by_space": counts.bytes_by_space(), "bytes_moved": counts.bytes_moved,
        "bytes_asked": counts.bytes_asked, "intensity": counts.intensity,
        "intensity_asked": counts.intensity_asked, "active_lanes": counts.active_lanes,
    }


def make_launch(run, name):
    """A finished Run -> Launch."""
    counts, lines, totals, text, requests = run.counts, {}, LineCounts(), {}, {}
    paths = Counter(i.location.path for i in run.kernel.code if i.location)
    path = max(paths, key=paths.get, default="")
    for inst, warps in counts.warps.items():
        line = place_of(inst, path)
        if line not in lines:
            lines[line], text[line] = LineCounts(), run.text(inst.location)
        row = lines[line]
        lanes = counts.lanes.get(inst, 0)
        flops, kind, integer_ops = work(inst)
        row.steps += warps
        row.lane_steps += lanes
        row.flops += lanes * flops
        row.integer_ops += lanes * integer_ops
        row.instructions[class_of(inst)] += warps
        if flops:
            row.flops_by_type[kind] += lanes * flops
        row.barriers += warps if inst.opcode in ("bar", "barrier") and "warp" not in \
            inst.modifiers else 0
        row.splits += counts.splits.get(inst, 0)
        row.divergent += counts.divergent.get(inst, 0)
        for space, memory in counts.memory.get(inst, {}).items():
            key = line, space, operation(inst, space)
            row.access(*key[1:]).add(memory)
            if key not in requests:
                requests[key] = counts.first[inst, space]()
    for row in lines.values():
        totals.add(row)
    return Launch(name, run.grid, run.block, totals.steps, totals.lane_steps,
                  list(run.warnings.values()), lines, totals, path, text, run.checked_blocks,
                  run.shared_size, requests, counts.timeline, counts.busiest,
                  in_flight(counts.waits, run.grid), load_to_use(run.kernel))


def in_flight(waits, grid):
    """Counts.waits -> Launch.in_flight"""
    lane_waits, lanes, left = waits
    if not lane_waits:
        return None
    lanes_of_block = lanes / (grid[0] * grid[1] * grid[2])
    return left / lane_waits * lanes_of_block


def place_of(inst, path):
    """The line of an instruction; with its file if that is not the kernel's; 0 if not known."""
    location = inst.location
    if location is None:
        return 0
    return location.line if location.path == path else \
        f"{location.path.rsplit('/', 1)[-1]}:{location.line}"


def operation(inst, space):
    """What an instruction does to a space; cp.async loads from global and stores to shared."""
    if inst.opcode in ("atom", "red", "mbarrier"):
        return "atomic"
    if inst.opcode == "cp":
        return "load" if space == "global" else "store"
    stores = inst.opcode in ("st", "stmatrix") or "store" in inst.modifiers
    return "store" if stores else "load"
