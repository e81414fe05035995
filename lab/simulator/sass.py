"""SASS: the machine code that the assembler makes of PTX, as nvdisasm prints it.

It shows what PTX cannot: loads that were merged into wider ones, spills, tensor-core instructions.
The counts are of the instructions in the code, not of those that run: a loop's body counts once.
"""

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from . import nvrtc
from .errors import Unsupported
from .ptx import is_library

INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)(.*);")
PLACE = re.compile(r'\s*//## File "([^"]*)", line (\d+)')
TIMEOUT = 60


class Instruction(NamedTuple):
    opcode: str                 # with its modifiers: LDG.E.128
    text: str
    line: int | None


@dataclass
class Sass:
    """The machine code of one kernel for one architecture, without the padding at its end."""
    name: str
    arch: str
    code: list                  # Instruction

    @property
    def opcodes(self):
        """Counter of opcodes with their modifiers."""
        return Counter(inst.opcode for inst in self.code)

    def count(self, opcode, line=None):
        """Instructions of an opcode: "LDG" counts LDG.E too, "LDG.E.128" only itself."""
        return sum((inst.opcode + ".").startswith(opcode + ".") for inst in self.code
                   if line in (None, inst.line))

    def __str__(self):
        rows = [f"{self.name}, SASS for {self.arch}: {len(self.code)} instructions in the code, "
                f"not as they run"]
        return "\n".join(rows + [f"{n:6} {opcode}" for opcode, n in sorted(
            self.opcodes.items(), key=lambda item: (-item[1], item[0]))])


def sass(kernel, arch=nvrtc.ARCH):
    """-> Sass. kernel: a RawKernel, compiled for `arch`; or what Triton returns from a launch or
    from warmup(), which is compiled already.
    Raises Unsupported where there is no nvdisasm."""
    if hasattr(kernel, "asm"):
        target = kernel.metadata.target
        return disassemble(kernel.asm["cubin"], kernel.metadata.name, f"sm_{target.arch}")
    module = kernel.module
    module.compile()
    cubin, _ = nvrtc.assemble(module.source, module.path, module.options,
                              tuple(module.expressions()), arch)
    lowered = module.compiled.names.get(kernel.name, kernel.name)
    return replace(disassemble(cubin, lowered, arch), name=kernel.name)


def disassemble(cubin, name, arch):
    """A cubin (bytes) -> Sass of the kernel with this name in it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([tool("nvdisasm"), "-c", "-g", str(path)], capture_output=True,
                              text=True, timeout=TIMEOUT)
    if done.returncode:
        raise Unsupported(f"nvdisasm failed: {done.stderr.strip()}")
    start = done.stdout.find(f".text.{name}:\n")
    if start < 0:
        raise Unsupported(f"the cubin has no kernel `{name}`")
    return Sass(name, arch, read(done.stdout[start:]))


def read(text):
    """What nvdisasm prints, from a kernel's label on -> [Instruction].
    At the end of the code lies padding, a jump to itself and NOPs."""
    code, places, line, label, last_jump = [], [], None, "", None
    for row in text.splitlines()[1:]:
        if row.startswith("//-----"):                       # the next section
            break
        if match := PLACE.match(row):                       # then, where it was inlined
            places.append((match[1], int(match[2])))
        elif row.endswith(":"):
            label = row[:-1].strip()
        elif match := INSTRUCTION.match(row):
            if places:
                line = next((n for path, n in places if not is_library(path)), places[-1][1])
            if match[1] == "BRA" and label and f"({label})" in match[2]:
                last_jump = len(code)
            code.append(Instruction(match[1], match[1] + match[2].rstrip(), line))
            places = []
            label = ""
    while code and (code[-1].opcode == "NOP" or len(code) - 1 == last_jump):
        code.pop()
    return code


def tool(name):
    """The path of a program that comes with Triton or the CUDA toolkit."""
    spec = importlib.util.find_spec("triton")
    for root in spec.submodule_search_locations if spec else ():
        path = Path(root) / "backends" / "nvidia" / "bin" / name
        if path.exists():
            return str(path)
    if place := shutil.which(name):
        return place
    raise Unsupported(f"{name} is not installed: it comes with Triton (pip install triton) and "
                      f"with the CUDA toolkit")
