"""Local variables that are read before they have a value.

A compiler may do as it likes with such a value, and it does: `float s; for (...) s += x[i];` with a
known number of turns becomes NaN, or the store goes away.
Three looks find it.

The registers of a function that may be read before they are written are followed by taint.py.
That finds what the compiler has left in the code.
It warns by itself of a use that no path avoids.

What it has folded away is there in the code that it makes for a debugger (-G).
Where the source has a declaration without a value, and that code may read a variable too early, a
rehearsal runs it, once for each grid and block: the first and the last block, on copies of the
memory, for a limited time.
It only answers whether such a value is used; whatever else happens in it, the launch itself will
tell.
Whether the code may read too early is not followed into functions that are given a variable's
address, nor from element to element of an array that a loop fills; there a folded float gives
itself away by the NaN that the compiler writes for it, a folded integer does not.
"""

import re
from functools import lru_cache

from . import ptx
from .errors import KernelError
from .run import Run, reached_functions
from .signature import strip_comments
from .taint import ADVICE, LOCAL
from .uses import Flow, names, unset_registers

REHEARSAL = 40_000          # interpreted instructions, about a second
WARNING = re.compile(r'^(.*)\((\d+)\): warning #549-D: variable "(\w+)" is used before', re.M)
FOLDED = re.compile("0f7FC00000|0d7FF8000000000000")     # the NaN that stands for an unset float
PREPROCESSOR = re.compile(r"^\s*#\s*define\s+\w+(\([^)]*\))?([^\n]*)|^\s*#[^\n]*", re.M)
NO_VARIABLE = re.compile(r"\b(return|extern|__shared__|__constant__|__device__|typedef|using|goto|"
                         r"template|if|else|while|do|friend|delete|new|throw|struct \w+$)\b")
DECLARATION = re.compile(r"[A-Za-z_][\w:]*(\s+[\w:]+)*[\s*&]+\w+\s*(\[|=|$)")


def may_declare_without_value(source):
    """Might a local variable be declared without a value?
    A yes costs time and no more.
    With cub it would cost seconds, so there it is a no."""
    if re.search(r"#\s*include\s*<(cub|thrust)/", source):
        return False
    if re.search(r'#\s*include\s*"', source):
        return True
    text = re.sub(r'"(\\.|[^"\\\n])*"', " ", strip_comments(source))
    text = PREPROCESSOR.sub(r";\2;", text.replace("\\\n", " "))
    for inner in (r"\([^()]*\)", r"<[^<>;{}()]*>"):
        count = 1
        while count:
            text, count = re.subn(inner, " ", text)
    return any(declares(part) for part in re.findall(r"([^;{}]*);", text))


def declares(statement):
    """Is it `float s`, `int a = 1, b` or the like?"""
    statement = re.sub(r"^\s*(case\b[^:]*|default\s*):(?!:)", "", statement).strip()
    variables = re.sub(r"\[[^\]]*\]", "[", statement).split(",")
    return bool(not NO_VARIABLE.search(statement) and DECLARATION.match(variables[0])
                and any("=" not in v for v in variables))


# ---- the code for a debugger

def rehearse(module, name, grid, block, shared_mem, prepare):
    """Run what the compiler makes for a debugger, if there may be something to find.

    module   kernel.RawModule
    prepare  binds the arguments to a Run
    """
    debug = module.debug()
    if debug is None or module.lowered(name) not in debug.functions:
        return
    function = debug.functions[module.lowered(name)]
    check_warnings(module, debug, function)
    launch = name, grid, block
    if launch in module.rehearsed or not (suspicious(debug, function)
                                          or FOLDED.search(module.compiled.ptx)):
        return
    module.rehearsed.add(launch)
    run = Rehearsal(debug, function, grid, block, dynamic_shared=shared_mem,
                    sources=module.sources())
    prepare(run)
    for segment in run.space.segments:
        segment.bytes = segment.bytes.copy()
    run.place_globals({key: value.copy() for key, value in module.globals.items()})
    try:
        run.run()
    except KernelError as error:
        if error.kind == "uninitialised" and LOCAL in str(error):
            raise


def check_warnings(module, debug, kernel):
    """Raise what the compiler itself has seen, in the kernel or in a function that it calls."""
    for path, line, name in WARNING.findall(module.compiled.log):
        line = int(line)
        for function in reached_functions(debug, kernel):
            lines = [i.location.line for i in function.code
                     if i.location and i.location.path.endswith(path)]
            if lines and min(lines) <= line <= max(lines):
                text = module.source.split("\n")[line - 1].strip()
                raise KernelError(
                    f"uninitialised value: {LOCAL}, `{name}`, has no value when line {line} reads "
                    f"it{ADVICE}\n  {path}, line {line}: {text}", "uninitialised", line=line,
                    path=module.path, source_line=text)


class Rehearsal(Run):
    """A short run whose results are dropped."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.patience = REHEARSAL

    def plan(self, blocks):
        """The first block and the last; all, where they wait for each other."""
        if self.cooperative:
            yield 0, blocks, True
        else:
            yield from ((i, i + 1, True) for i in sorted({0, blocks - 1}))

    def print_output(self):
        """What it prints is dropped."""


@lru_cache(256)
def suspicious(module, kernel):
    """May the kernel, or a function that it may call, read a local variable that has no value?"""
    return any(unset_registers(function) or LocalMemory(function).read_too_early()
               for function in reached_functions(module, kernel) if function.code)


class LocalMemory:
    """Which bytes of a function's local memory are written when it reads them.
    A store at an index that is not known counts for the whole array, and so does handing the
    address on; a loop is taken to run at least once, since where it depends on an argument
    nothing is folded away."""

    def __init__(self, function):
        self.function = function
        self.size = max([v.size for v in function.variables.values() if v.space == "local"],
                        default=0)
        self.places = {}                        # register -> (offset, is it exactly this?)
        self.early = False

    def read_too_early(self):
        if self.size:
            self.find_places()
            Flow(self.function).forward(self.after)
        return self.early

    def find_places(self):
        depots = {v.name for v in self.function.variables.values() if v.space == "local"}
        for inst in self.function.code:
            if inst.opcode not in ("mov", "cvta", "add") or not names(inst.operands[0]):
                continue
            first, *rest = inst.operands[1:]
            place = self.places.get(getattr(first, "name", None))
            if inst.opcode == "mov" and isinstance(first, ptx.Symbol) and first.name in depots:
                place = (first.offset, True)
            if place is None:
                continue
            if rest:
                known = isinstance(rest[0], ptx.Immediate)
                place = (place[0] + rest[0].bits, place[1]) if known else (place[0], False)
            self.places[names(inst.operands[0])[0]] = place

    def after(self, inst, written):
        """The bytes (a bit each) that are written after the instruction; notes an early read."""
        for operand in inst.operands:
            base = operand.base if isinstance(operand, ptx.Address) else operand
            place = self.places.get(getattr(base, "name", None))
            if place is None or inst.opcode in ("cvta", "add") or (
                    inst.opcode == "mov" and names(inst.operands[0])[0] in self.places):
                continue
            offset, exact = place
            whole = -1 << offset
            if not isinstance(operand, ptx.Address):
                written |= whole                                    # the address goes elsewhere
                continue
            offset += operand.offset
            part = ((1 << width(inst)) - 1) << offset
            if inst.opcode == "ld":
                self.early |= part & ~written != 0
            elif inst.opcode == "st" and inst.guard is None:
                written |= part if exact else whole
            else:
                written |= whole
        return written


def width(inst):
    """Bytes of a load or store."""
    size = next((ptx.SIZES[m] for m in inst.modifiers if m in ptx.SIZES), 1)
    count = next((int(m[1]) for m in inst.modifiers if m in ("v2", "v4", "v8")), 1)
    return size * count
