"""One launch while it runs: its memory, its limits, its counters and what it complains about."""

import math
import re
import sys

import numpy as np

from .counts import Counts
from .errors import KernelError, Unsupported
from .grid_sync import GridWorkspace
from .hearsay import Hearsay, has_volatile
from .lanes import WARP
from .memory import CODE_WINDOW, SEGMENT_SHIFT, AddressSpace, Segment
from .ordering import Order
from .ptx import GRID_WORKSPACE, Symbol
from .races import Shadow
from .scheduler import Scheduler
from .session import LARGEST_SHARED, session
from .taint import Taint
from .variables import fill, holds_addresses, memory_of, source_name
from .wave import Wave, thread_index

WAVE_LANES = 65536          # enough to hide Python, few enough for registers to stay in the cache
CHECKED_WHOLE = 32768       # a grid of no more lanes is checked whole,
CHECKED_LANES = 16384       # of a larger one a sample of this many
PATIENCE = 4_000_000        # interpreted instructions, half a minute or so, if no budget is set


class Run:
    """Everything that the waves of a launch share.

    module   ptx.Module
    kernel   ptx.Function
    sources  path -> text, for messages
    """

    def __init__(self, module, kernel, grid, block, *, sources, dynamic_shared=0, budget=None,
                 checks=True):
        self.module = module
        self.kernel = kernel
        self.grid = grid
        self.block = block
        self.threads = block[0] * block[1] * block[2]
        self.sources = sources
        self.dynamic_shared = dynamic_shared
        self.budget = budget or 1 << 62
        self.patience = PATIENCE if budget is None else 1 << 62
        self.checks = checks
        self.counts = Counts()
        self.space = AddressSpace()
        self.steps = 0                          # warp instructions
        self.interpreter_steps = 0
        self.warnings = {}
        self.output = []
        self.checked_blocks = 0                 # how many, and
        self.checked_numbers = []               # which: those of each checked wave
        self.parameters = np.zeros(0, np.uint8)
        self.cooperative = False                # may blocks wait for each other? Then one
                                                # wave has them all
        self.keeps_copies = False               # do threads store copies of one value, which may
                                                # differ in the last bit? Triton's do
        self.any_barrier = False                # may warps meet at different __syncthreads()?
        self.addresses = {}                     # variable -> address, or offset within its window
        self.functions_at = {}                  # address -> function, for calls by a pointer
        self.shared_arrays = []                 # (C name, bytes)
        self.grid_workspace = 0                 # its address; what grid.sync() counts in
        self.place_variables()

    # ---- memory

    def place_variables(self):
        """Offsets for the shared variables: the static ones, and then all extern ones in one place,
        which is dynamic shared memory."""
        self.shared_variables = shared_variables(self.module, self.kernel)
        end = 0
        extern = [v for v in self.shared_variables if v.extern]
        for variable in self.shared_variables:
            if not variable.extern:
                end = -(-end // variable.align) * variable.align
                self.addresses[variable.name] = end
                self.shared_arrays.append((plain_name(variable.name), variable.size))
                end += variable.size
        for variable in extern:
            self.addresses[variable.name] = -(-end // 16) * 16
            if self.dynamic_shared:
                self.shared_arrays.append((plain_name(variable.name), self.dynamic_shared))
        self.shared_size = -(-end // 16) * 16 + self.dynamic_shared if extern else end
        largest = LARGEST_SHARED[session.capability]
        if self.shared_size > largest:
            raise KernelError(
                f"kernel `{plain_name(self.kernel.name)}` wants {self.shared_size} bytes of shared "
                f"memory; a block can have {largest}", "argument")

    def place_globals(self, segments):
        """Give the module's .global and .const variables addresses.
        `segments` keeps their memory between launches, since a __device__ variable outlives a
        kernel."""
        for i, function in enumerate(self.module.functions.values()):
            self.addresses[function.name] = (CODE_WINDOW << SEGMENT_SHIFT) + 16 * i
            self.functions_at[self.addresses[function.name]] = function
        # A kernel may take a parameter's address: to index into a struct, or to choose between two.
        self.place_of_parameters = self.space.add(
            Segment(self.parameters, "the parameters", writable=False)).base
        self.addresses |= {p.name: self.place_of_parameters + p.offset
                           for p in self.kernel.parameters}
        for variable in self.module.variables.values():
            if variable.space in ("global", "const"):
                segment = Segment(memory_of(variable, segments), source_name(variable.name))
                self.addresses[variable.name] = self.space.add(segment).base
        if any(GRID_WORKSPACE in f.mentions for f in reached_functions(self.module, self.kernel)):
            self.cooperative = True
            self.grid_workspace = self.space.add(
                GridWorkspace(self.grid[0] * self.grid[1] * self.grid[2])).base
        written = segments.setdefault("initialised", set())
        for variable in self.module.variables.values():
            if holds_addresses(variable) and variable.name not in written:
                fill(variable, [self.addresses[v.name] + v.offset if isinstance(v, Symbol) else v
                                for v in variable.values], segments[variable.name])
                written.add(variable.name)

    # ---- running

    def run(self):
        blocks = self.grid[0] * self.grid[1] * self.grid[2]
        plan = list(self.plan(blocks))
        lanes = -(-self.threads // WARP) * WARP
        order = Order(sum(last - first for first, last, checked in plan if checked), lanes)
        order.flags.hearsay = Hearsay(order) if has_volatile(self.module) else None
        with np.errstate(all="ignore"):
            for first, last, checked in plan:
                wave = Wave(self, np.arange(first, last), self.kernel)
                if checked:
                    wave.shadow, wave.taint = Shadow(wave, order), Taint(wave)
                    self.checked_blocks += last - first
                    self.checked_numbers.extend(wave.block_numbers)
                Scheduler(self, wave).run()
                if checked:
                    wave.shadow.settle()
        self.print_output()

    def plan(self, blocks):
        """-> (first block, last block + 1, checked?) of each wave, in order.
        Of a large grid only
        some blocks are checked: the first, the last, and some in the middle."""
        lanes = -(-self.threads // WARP) * WARP
        per_wave = max(1, WAVE_LANES // lanes)
        few = max(1, CHECKED_LANES // 3 // lanes)
        if self.cooperative:
            yield 0, blocks, self.checks
            return
        if blocks * lanes <= CHECKED_WHOLE or not self.checks:
            yield from ((i, min(i + per_wave, blocks), self.checks)
                        for i in range(0, blocks, per_wave))
            return
        sample = {0: few, (blocks - few) // 2: few, blocks - few: few}
        start = 0
        while start < blocks:
            checked = start in sample
            end = start + sample[start] if checked else min(
                [i for i in sample if i > start] + [start + per_wave])
            yield start, end, checked
            start = end

    def checked_block(self, i):
        """The place in the grid of the i-th of the checked blocks."""
        return tuple(int(n) for n in thread_index(self.checked_numbers[i], self.grid))

    def print_output(self):
        """printf appears when the kernel has ended, as on a GPU."""
        if self.output:
            sys.stdout.write("".join(self.output))

    # ---- complaints

    def shared_name(self, offset, size):
        """What lies at a place in shared memory, as the learner knows it."""
        for variable in self.shared_variables:
            start = self.addresses[variable.name]
            end = self.shared_size if variable.extern else start + variable.size
            if start <= offset < end:
                return f"`{plain_name(variable.name)}` at byte {offset - start} ({size} bytes)"
        return f"shared memory at byte {offset} ({size} bytes)"

    def text(self, location):
        """The source line at a location, "" where the file is not at hand."""
        if location is None:
            return ""
        if location.path not in self.sources:
            try:
                with open(location.path, encoding="utf-8") as file:
                    self.sources[location.path] = file.read()
            except OSError:
                self.sources[location.path] = ""
        lines = self.sources[location.path].split("\n")
        return lines[location.line - 1].strip() if 0 < location.line <= len(lines) else ""

    def where(self, inst):
        if inst.location is None:
            return f"kernel `{self.kernel.name}`"
        name = inst.location.path.rsplit("/", 1)[-1]
        return f"{name}, line {inst.location.line}: {self.text(inst.location)}"

    def error(self, inst, kind, message, wave=None, lane=None, also=1):
        """-> KernelError, or Unsupported for that kind, with all that is known."""
        location = inst.location
        thread = block = None
        lines = [message]
        if lane is not None:
            thread = wave.thread_of(lane)
            block = wave.block_of(lane)
            others = f" and {also - 1} other threads" if also > 1 else ""
            lines.append(f"kernel `{plain_name(self.kernel.name)}`, thread {thread} of block "
                         f"{block}{others}")
        lines.append(self.where(inst))
        facts = {"line": location and location.line, "path": location and location.path,
                 "source_line": self.text(location), "thread": thread, "block": block}
        if kind == "unsupported":
            return Unsupported("\n  ".join(lines), **facts)
        return KernelError("\n  ".join(lines), kind, **facts)

    def warn(self, inst, message):
        self.warnings.setdefault((inst, message.split(":")[0]), f"{message}\n  {self.where(inst)}")

    def out_of_budget(self, inst, wave):
        limit = f"{self.budget} warp instructions" if self.budget < 1 << 62 else \
            f"{self.patience} simulated instructions"
        begun = int(wave.block_numbers[-1]) + 1
        waits = "" if begun == math.prod(self.grid) else (
            f" Or does it wait for a later block? Blocks from {begun} on had not begun: only a "
            f"cooperative launch promises that all run at once.")
        raise self.error(inst, "endless", f"the kernel did not end within {limit}: an endless "
                         f"loop?{waits} It was here", wave, int(wave.lanes.index[0]))


def reached_functions(module, kernel):
    """The kernel, and the functions that it may call."""
    names = {symbol.name for variable in module.variables.values() if holds_addresses(variable)
             for symbol in variable.values if isinstance(symbol, Symbol)}   # tables of functions
    reached = []
    left = [kernel]
    while left:
        function = left.pop()
        reached.append(function)
        names |= function.mentions
        left += [f for name, f in module.functions.items() if name in names
                 and f not in reached and f not in left]
    return reached


def shared_variables(module, kernel):
    """The shared variables that the kernel or a function that it may call mentions."""
    reached = reached_functions(module, kernel)
    names = set().union(*(f.mentions for f in reached))
    own = [v for function in reached for v in function.variables.values()]
    everywhere = [v for v in module.variables.values() if v.name in names]
    return [v for v in everywhere + own if v.space == "shared"]


def plain_name(name):
    """A mangled C++ name -> the name as it is written: _ZN4math7softmaxILi64EEvPf -> math::softmax;
    of a variable within a function the variable's: _ZZ7softmaxILi64EEvPfE4warp -> warp."""
    if name.startswith("_ZZ"):
        for end in re.finditer(r"E(?=(\d+)([A-Za-z_]\w*)$)", name):
            rest = name[end.end() + len(end[1]):]
            if re.fullmatch(r"(_\d+|__\d+_)?", rest[int(end[1]):]) and len(rest) >= int(end[1]):
                return rest[:int(end[1])]
    words = []
    i = 3 if name.startswith("_ZN") else 2
    while name.startswith("_Z") and (digits := re.compile(r"\d+").match(name, i)):
        i = digits.end() + int(digits[0])
        words.append(name[digits.end():i])
        if not name.startswith("_ZN"):
            break
    return "::".join(w for w in words if not w.startswith(("_INTERNAL", "_GLOBAL__N"))) or name
