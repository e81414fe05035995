"""PTX text to a table of instructions.

PTX is the assembly language that the compilers emit and the driver translates for a GPU.
A module holds functions (`.entry` for kernels, `.func` for device functions) and variables in the
state spaces .global, .const and .shared.
Terms are those of the PTX ISA manual.

Scopes: `{ .reg .b16 low; ... }` declares a register for the block only, and the next block may
declare the same name with another type.
Each declaration therefore gets a name of its own, and so does each label: inline PTX with a loop is
inlined many times.
"""

import re
import struct
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from .dtypes import SIZES
from .errors import Unsupported


class Register(NamedTuple):
    name: str
    type: str               # as declared: b32, f32, pred, ...


class Special(NamedTuple):
    name: str               # tid.x, laneid, clock64, ...


class Immediate(NamedTuple):
    bits: int               # two's complement for integers, the encoding for floats
    size: int | None        # bytes of a float literal; None for integers, which fit any size


class Symbol(NamedTuple):
    name: str               # a variable, a parameter, a function or a label
    offset: int = 0


class Address(NamedTuple):
    base: object            # Register, Symbol or Immediate
    offset: int


class Vector(NamedTuple):
    items: tuple


class Pair(NamedTuple):     # d|p, the two results of shfl and setp
    first: object
    second: object


class Not(NamedTuple):
    register: Register


class Sink(NamedTuple):     # "_", a result that is not wanted
    pass


class Location(NamedTuple):
    path: str
    line: int


@dataclass(slots=True, eq=False)
class Instruction:
    text: str
    opcode: str                         # ld
    modifiers: tuple                    # ("global", "nc", "v4", "f32")
    operands: list
    guard: Register | None
    guard_negated: bool
    location: Location | None
    function: "Function"
    pc: int = 0
    run: object = None                  # what decoding makes of it: run(wave)
    kind: int = 0                       # how the scheduler treats it, see decode.py
    elementwise: object = None          # function, reads and write, see decode.py; and
    series: object = None               # the series that it is part of, see series.py
    dying: tuple = ()                   # registers that nothing needs afterwards
    target: int = 0                     # pc of a branch
    mask: object = None                 # .sync: reads the lanes that must come; None: all
    flops: int = 0                      # per lane
    simple_barrier: bool = False        # the plain __syncthreads()
    reduction: object = None            # barrier.red: writes its result


@dataclass(slots=True, eq=False)
class Variable:
    """A named piece of memory: .global, .const, .shared, .local or .param."""
    name: str
    space: str
    align: int
    size: int                           # bytes; 0 for an extern array
    type: str
    values: list = field(default_factory=list)          # initial elements, int or Symbol
    offset: int = 0                     # of a parameter within the parameter block
    extern: bool = False


@dataclass(slots=True, eq=False)
class Function:
    name: str
    is_kernel: bool
    parameters: list = field(default_factory=list)      # Variable
    results: list = field(default_factory=list)         # Variable; empty for kernels
    variables: dict = field(default_factory=dict)       # .shared, .local and .param of the body
    code: list = field(default_factory=list)
    registers: dict = field(default_factory=dict)       # name -> type
    labels: dict = field(default_factory=dict)          # label -> pc
    branch_targets: dict = field(default_factory=dict)  # label of a .branchtargets -> labels
    mentions: set = field(default_factory=set)          # names in its instructions
    most_threads: int = 0                               # of a block, by __launch_bounds__; 0: any


@dataclass(slots=True, eq=False)
class Module:
    functions: dict = field(default_factory=dict)
    variables: dict = field(default_factory=dict)


GRID_WORKSPACE = "%envreg"              # among a function's mentions: it waits for the whole grid
RESERVED, RESERVED_BYTES = "cooperative groups' own memory", 1024      # shared, of a block
TEXTURES = {"tld4", "txq", "suld", "sust", "sured", "suq", "istypep"}
SPECIAL = re.compile(
    r"%(n?tid\.[xyz]|n?ctaid\.[xyz]|laneid|warpid|nwarpid|smid|nsmid|gridid|clock|clock_hi|clock64|"
    r"globaltimer|globaltimer_lo|globaltimer_hi|lanemask_(?:eq|le|lt|ge|gt)|"
    r"dynamic_smem_size|total_smem_size|envreg[12])$")
NAME = r"[A-Za-z_$%][\w$]*"
MENTION = re.compile(r"(?<![\w$%])[A-Za-z_$][\w$]*")
MODULE_DIRECTIVE = re.compile(
    r'^\s*\.(version\s+[\d.]+|target\s+[\w, ]+|address_size\s+\d+|pragma\s+"[^"]*")')
BOUNDARY = re.compile(r"[;{}]|\.(?:loc|file|section)\b[^\n]*")
COMMENT = re.compile(r"(\.(?:loc|file)\b[^\n]*)|//[^\n]*|/\*.*?\*/", re.S)
ASSEMBLY = re.compile(r"// begin inline asm\n.*?// end inline asm\n", re.S)
PLACE = re.compile(r"\.loc\b[^\n]*")
LABEL = re.compile(r"\s*([\w$]+)\s*:(?!:)")
TEXTURE_READ = re.compile(r"(\{[^}]*\})\s*,\s*\[\s*(%[\w$]+)\s*,\s*(\{[^}]*\})\s*\]$")
CALL_BY_REGISTER = re.compile(r"(?:\([^)]*\)\s*,\s*)?(%[\w$]+)")
OPCODE = re.compile(r"(?:@(!?)(" + NAME + r")\s+)?([a-z][\w.:]*)\s*(.*)$", re.S)
VARIABLE = re.compile(
    r"((?:\.\w+(?:\([^)]*\))?(?:\s+\d+)?\s*)*?)\.(" + "|".join(SIZES) + r")\s+"
    r"(?:\.ptr\s*(?:\.(?:global|shared|const|local|generic)\s*)?(?:\.align\s+\d+\s*)?)?"
    r"(" + NAME + r")\s*(?:\[\s*(\d*)\s*\])?\s*(?:=\s*(.*))?$", re.S)
MOST_THREADS = re.compile(r"\.maxntid\s+([\d,\s]+)")
HEADER = re.compile(
    r"[\s\S]*?\.(entry|func)\s*(?:\(([^)]*)\)\s*)?(" + NAME + r")\s*(?:\(([^)]*)\))?([\s\S]*)$")


def split_commas(text):
    """Split at commas that are outside of brackets."""
    parts = []
    depth = 0
    start = 0
    for i, char in enumerate(text):
        if char in "{[(":
            depth += 1
        elif char in "}])":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return parts + [last] if last or parts else parts


def parse(text):
    """PTX text -> Module.
    Raises Unsupported for a directive that the parser does not know."""
    text = ASSEMBLY.sub(lambda match: at_one_line(match[0]), text)
    text = COMMENT.sub(lambda match: match[1] or " ", text)
    return _Parser(text).module


def at_one_line(assembly):
    """The text of an inline assembly with its first .loc alone: Triton 3.8 numbers the assembly's
    lines on from the line of the code that it stands for."""
    first = PLACE.search(assembly)
    return assembly[:first.end()] + PLACE.sub("", assembly[first.end():]) if first else assembly


class _Parser:
    def __init__(self, text):
        self.module = Module()
        self.files = {int(n): path for n, path in re.findall(r'\.file\s+(\d+)\s+"([^"]*)"', text)}
        self.function = None
        self.scopes = []                # register name -> Register, innermost last
        self.labels_of = []             # per scope: its first instruction, {label: its own name}
        self.scope_count = 0
        self.location = None
        self.callers = {}               # (file, line, column) -> where it was inlined
        self.read(text)

    def read(self, text):
        pending = ""
        start = 0
        skipping = 0
        for match in BOUNDARY.finditer(text):
            pending += text[start:match.start()]
            start = match.end()
            token = match[0]
            if skipping:                                    # within a .section of debug data
                skipping += {"{": 1, "}": -1}.get(token, 0)
                skipping = 0 if skipping == 1 else skipping
                pending = ""
            elif token.startswith(".section"):
                skipping = 1
                if "{" in token:
                    skipping = 2
            elif token.startswith(".loc"):
                pending = self.labels(pending)
                self.loc(token)
            elif token.startswith(".file"):
                pass
            elif token == "{" and (not self.labels(pending).strip() or self.is_header(pending)):
                pending = self.labels(pending)
                self.open(pending)
                pending = ""
            elif token == "}" and not pending.strip():
                self.close()
            elif token == "}" and self.labels(pending).strip() == "":
                pending = ""
                self.close()
            elif token == ";":
                self.statement(self.labels(pending).strip())
                pending = ""
            else:
                pending += token

    def is_header(self, text):
        return self.function is None and re.search(r"\.(entry|func)\b", text)

    def labels(self, text):
        while self.function and (match := LABEL.match(text)):
            here = len(self.function.code)
            name = f"{match[1]}@{here}" if len(self.scopes) > 1 else match[1]
            self.labels_of[-1][1][match[1]] = name
            self.function.labels[name] = here
            text = text[match.end():]
        return text

    def open(self, header):
        if self.function is None:
            self.function = self.header(header)
            self.module.functions[self.function.name] = self.function
            self.location = None
            self.callers = {}
        self.scopes.append({})
        self.labels_of.append((len(self.function.code), {}))
        self.scope_count += 1

    def close(self):
        self.scopes.pop()
        first, names = self.labels_of.pop()
        if not self.scopes:
            self.function = None
        elif names:
            self.resolve(first, names)

    def resolve(self, first, names):
        """Branches of the scope that ends here, to its own labels."""
        targets = self.function.branch_targets
        for name in targets.keys() & names.values():
            targets[name] = [names.get(label, label) for label in targets[name]]
        for inst in self.function.code[first:]:
            if inst.opcode in ("bra", "brx"):
                inst.operands = [o._replace(name=names.get(o.name, o.name))
                                 if isinstance(o, Symbol) else o for o in inst.operands]

    def header(self, text):
        match = HEADER.match(text)
        function = Function(match[3], match[1] == "entry")
        if bounds := MOST_THREADS.search(match[5]):
            function.most_threads = prod(int(n) for n in re.findall(r"\d+", bounds[1]))
        function.results = [self.variable(p, "param") for p in split_commas(match[2] or "")]
        function.parameters = [self.variable(p, "param") for p in split_commas(match[4] or "")]
        offset = 0
        for parameter in function.parameters:
            offset = -(-offset // parameter.align) * parameter.align
            parameter.offset = offset
            offset += parameter.size
        return function

    def statement(self, text):
        if not text:
            return
        if text[0] == ".":
            self.directive(text)
        elif self.function:
            self.instruction(" ".join(text.split()))
        else:
            raise Unsupported(f"the PTX parser does not know: {text[:80]}")

    def directive(self, text):
        word = re.match(r"\.(\w+)", text)[1]
        if word in ("version", "target", "address_size", "pragma", "noreturn"):
            self.module_directives(text)
        elif word == "callprototype":
            pass                                            # the called function says it
        elif word == "reg":
            self.declare_registers(text)
        elif word == "branchtargets":
            here = len(self.function.code)
            label = [k for k, pc in self.function.labels.items() if pc == here][-1]
            self.function.branch_targets[label] = split_commas(text[len(".branchtargets"):])
        elif re.search(r"\.(func|entry)\b", text):
            pass                                            # a declaration, its body is elsewhere
        elif re.search(r"\.(global|const|shared|local|param)\b", text):
            variable = self.variable(text)
            home = self.function.variables if self.function else self.module.variables
            if self.function and variable.name in home:     # param0 of another call
                variable.size = max(variable.size, home[variable.name].size)
            home[variable.name] = variable
        else:
            self.module_directives(text)

    def module_directives(self, text):
        """`.version 9.0 .target sm_80 .address_size 64` end with a newline and not with `;`, so
        that they arrive together with the statement that follows."""
        rest = MODULE_DIRECTIVE.sub("", text).strip()
        if rest == text:
            raise Unsupported(f"the PTX parser does not know the directive: {text[:80]}")
        self.statement(rest)

    def variable(self, text, space=None):
        match = VARIABLE.match(text.strip())
        if not match:
            raise Unsupported(f"the PTX parser does not know the declaration: {text[:80]}")
        words, ptx_type, name, length, values = match.groups()
        space_word = re.search(r"\.(global|const|shared|local|param)\b", words)
        align = re.search(r"\.align\s+(\d+)", words)
        size = SIZES[ptx_type] * (1 if length is None else int(length or 0))
        initial = values.strip().strip("{}").split(",") if values else []
        return Variable(name, space_word[1] if space_word else space,
                        int(align[1]) if align else SIZES[ptx_type], size, ptx_type,
                        [self.initial(v) for v in initial], extern=length == "")

    def initial(self, text):
        text = text.strip()
        if text.isdigit() and text[0] != "0":               # most of a table of numbers
            return int(text)
        text = re.sub(r"^generic\((.*)\)$", r"\1", text)
        value = self.operand(text)
        return value.bits if isinstance(value, Immediate) else value

    def declare_registers(self, text):
        ptx_type, names = re.match(r"\.reg\s*(?:\.v[24]\s*)?\.(\w+)\s+(.*)$", text, re.S).groups()
        scope = self.scopes[-1]
        suffix = "" if len(self.scopes) == 1 else f"@{self.scope_count}"
        for name in split_commas(names):
            many = re.match(r"(" + NAME + r")<(\d+)>$", name)
            for one in [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]:
                scope[one] = Register(one + suffix, ptx_type)
                self.function.registers[one + suffix] = ptx_type

    def instruction(self, text):
        match = OPCODE.match(text)
        if not match:
            raise Unsupported(f"the PTX parser does not know the instruction: {text}")
        negated, guard, mnemonic, operands = match.groups()
        self.function.mentions.update(MENTION.findall(operands))
        opcode, *modifiers = mnemonic.split(".")
        code = self.function.code
        if opcode == "call":
            parsed = [operands]
            if register := CALL_BY_REGISTER.match(operands):
                parsed.append(self.operand(register[1]))
        elif opcode in TEXTURES:
            parsed = []                                     # decode.py refuses them
        elif opcode == "tex":
            read = TEXTURE_READ.match(operands)             # of other forms: refused as well
            parsed = [self.operand(part) for part in read.groups()] if read else []
        else:
            parsed = [self.operand(part) for part in split_commas(operands)]
        code.append(Instruction(text, opcode, tuple(m.strip(":") for m in modifiers), parsed,
                                self.operand(guard) if guard else None, negated == "!",
                                self.location, self.function, pc=len(code)))

    def operand(self, text):
        text = text.strip()
        for scope in reversed(self.scopes):
            if text in scope:
                return scope[text]
        if text[0] == "[":
            return self.address(text[1:-1])
        if text[0] == "{":
            return Vector(tuple(self.operand(part) for part in split_commas(text[1:-1])))
        if text[0] == "!":
            return Not(self.operand(text[1:]))
        if text == "_":
            return Sink()
        if "|" in text:
            return Pair(*(self.operand(part) for part in text.split("|")))
        if (number := literal(text)) is not None:
            return number
        if text == "%reserved_smem_offset_1":
            return self.reserved_shared()
        if match := SPECIAL.match(text):
            if "envreg" in text:
                self.function.mentions.add(GRID_WORKSPACE)
            return Special(match[1])
        if match := re.match(r"(" + NAME + r")\s*([+-]\s*\w+)?$", text):
            return Symbol(match[1], int(match[2].replace(" ", ""), 0) if match[2] else 0)
        raise Unsupported(f"the PTX parser does not know the operand: {text}")

    def reserved_shared(self):
        """Shared memory that the driver keeps for cooperative groups, here an array like others."""
        self.module.variables[RESERVED] = Variable(RESERVED, "shared", 16, RESERVED_BYTES, "b8")
        self.function.mentions.add(RESERVED)
        return Symbol(RESERVED)

    def address(self, text):
        if match := re.match(r"\s*([^+\s]+)\s*(?:([+-])\s*(-?\w+))?\s*$", text):
            base = self.operand(match[1])
            offset = int(match[3], 0) if match[3] else 0
            return Address(base, -offset if match[2] == "-" else offset)
        raise Unsupported(f"the PTX parser does not know the address: [{text}]")

    def loc(self, text):
        """.loc file line column[, function_name f, inlined_at file line column]

        A line within an inlined header function is blamed on the first caller that is not in a
        header.
        Triton writes the chain of callers in a comment: `// a.py:1:2 @[ b.py:3:4 ]`.
        """
        numbers = re.match(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)", text).groups()
        file, line, column = (int(n) for n in numbers)
        if match := re.search(r"inlined_at\s+(\d+)\s+(\d+)\s+(\d+)", text):
            self.callers[file, line, column] = tuple(int(n) for n in match.groups())
        if line == 0:
            return                                          # no line: keep the one before
        chain = [(self.files.get(file, ""), line)]
        if "@[" in text:
            comment = text.split("//", 1)[1]
            chain += [(path.strip(), int(n)) for path, n in
                      re.findall(r"@\[\s*(.*?):(\d+):\d+", comment)]
        else:
            place = (file, line, column)
            while place in self.callers and len(chain) < 64:
                place = self.callers[place]
                chain.append((self.files.get(place[0], ""), place[1]))
        mine = [place for place in chain if not is_library(place[0])]
        path, line = mine[0] if mine else chain[-1]
        self.location = Location(self.full_path(path), line)

    def full_path(self, path):
        """Triton's comments hold base names; the .file table holds paths."""
        return next((p for p in self.files.values() if p == path or p.endswith("/" + path)), path)


LIBRARY = re.compile(
    r"/(nvidia/[^/]+|simulator)/include/|/triton/language/|/site-packages/triton/|^cuda_|/cccl/|"
    r"__nv_nvrtc_builtin")
TRITON_LIBRARY = {"standard.py", "core.py", "random.py", "math.py", "semantic.py"}


def is_library(path):
    """Is this file a header or part of Triton, rather than written for this kernel?"""
    return bool(LIBRARY.search(path)) or path in TRITON_LIBRARY


def literal(text):
    """A number -> Immediate, else None. 0f3F800000 is a float, 0d... a double, in their bits."""
    if re.match(r"0[fF][0-9a-fA-F]{8}$", text):
        return Immediate(int(text[2:], 16), 4)
    if re.match(r"0[dD][0-9a-fA-F]{16}$", text):
        return Immediate(int(text[2:], 16), 8)
    if re.match(r"-?(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?$", text):
        digits = text.rstrip("U")
        octal = re.match(r"-?0\d+$", digits)
        return Immediate(int(digits, 8 if octal else 0), None)
    if re.match(r"-?\d+\.\d*(e[+-]?\d+)?$", text):
        return Immediate(struct.unpack("<Q", struct.pack("<d", float(text)))[0], 8)
    if text == "WARP_SZ":
        return Immediate(32, None)
    return None
