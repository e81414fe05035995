"""CUDA C to PTX with NVRTC, NVIDIA's run-time compiler, through ctypes.

Neither a GPU nor a driver is needed.
NVRTC comes from the wheel nvidia-cuda-nvrtc; the headers cuda_fp16.h, mma.h and their like from
nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl.
"""

import ctypes
import importlib.util
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from .errors import CompileError, KernelError
from .hints import hint

OWN_HEADERS = str(Path(__file__).parent / "include")        # the few C headers that kernels include
ARCH = "sm_80"                  # the newest whose PTX the simulator knows in full
MAX_ERRORS = 3                  # errors of a log that are shown
NOT_THIS_ONE = re.compile(r"\n\S.*: note #3328-D(?:.|\n)*")    # a note on each built-in operator
STANDARD_OPTIONS = ("-lineinfo", "--std=c++17", "-default-device",
                    *(["--device-int128"] if sys.platform == "linux" else []),  # nvcc has it too
                    # <math.h> defines these; NVRTC has no <math.h>
                    "-DINFINITY=__int_as_float(0x7f800000)", "-DNAN=__int_as_float(0x7fffffff)")

NO_CACHE = "--no-cache"         # where there is a driver, a second compilation would leave no log


class Compiled(NamedTuple):
    ptx: str
    log: str                    # warnings
    names: dict                 # name expression -> name in the PTX


class Resources(NamedTuple):
    """What ptxas gives a kernel on one GPU architecture."""
    registers: int              # per thread
    shared: int                 # static, bytes per block
    spill_stores: int           # bytes per thread
    spill_loads: int
    stack: int = 0              # bytes of local memory per thread: spills and local arrays
    barriers: int = 0           # that a block uses


def library_folder():
    """The folder of libnvrtc within the installed wheel, or None."""
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations if spec else ():
        for pattern in ("*/lib/libnvrtc.so.*", "*/bin/*/nvrtc64*.dll", "*/bin/nvrtc64*.dll"):
            if paths := sorted(Path(root).glob(pattern)):
                return paths[-1].parent
    return None


@cache
def library():
    """libnvrtc, loaded.
    Its builtins come first: NVRTC 13.0 does not find them by itself."""
    folder = library_folder()
    if folder is None:
        raise KernelError(
            "NVRTC is not installed: pip install nvidia-cuda-nvrtc nvidia-cuda-runtime",
            "unsupported")
    files = [f for f in sorted(folder.iterdir()) if re.search(r"nvrtc.*\.(so\.|dll)", f.name)
             and ".alt" not in f.name]
    builtins = [f for f in files if "builtins" in f.name]
    for path in builtins:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    lib = ctypes.CDLL(str(next(f for f in files if f not in builtins)))
    lib.nvrtcGetErrorString.restype = ctypes.c_char_p
    return lib


@cache
def version():
    """(major, minor) of NVRTC."""
    major = ctypes.c_int()
    minor = ctypes.c_int()
    check(library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


@cache
def include_folders():
    """Where the CUDA headers are, in all installed wheels."""
    folder = library_folder()
    spec = importlib.util.find_spec("nvidia")
    if folder is None:
        return ()
    homes = (folder.parent.parent, *map(Path, spec.submodule_search_locations))
    roots = {folder.parent, *(root for home in homes for root in home.iterdir())}
    folders = [root / "include" for root in sorted(roots)]
    return tuple(str(f) for include in folders for f in (include, include / "cccl") if f.is_dir())


def check(code):
    if code:
        raise KernelError(f"NVRTC: {library().nvrtcGetErrorString(code).decode()}", "compile")


def compile_ptx(source, path, options=(), name_expressions=(), arch=ARCH):
    """CUDA C -> Compiled.
    Raises CompileError with the learner's line."""
    with Program(source, path) as program:
        for name in name_expressions:
            program.add_name(name)
        program.compile((f"--gpu-architecture={arch}", *STANDARD_OPTIONS, *includes(path),
                         *options))
        return Compiled(program.get("PTX"), program.log(),
                        {name: program.lowered(name) for name in name_expressions})


def resources(source, path, options=(), name_expressions=(), arch=ARCH):
    """Registers, shared memory and spills of every kernel: {name in the PTX: Resources}."""
    return assemble(source, path, options, name_expressions, arch)[1]


def assemble(source, path, options=(), name_expressions=(), arch=ARCH):
    """CUDA C -> cubin (bytes), and {name in the PTX: Resources} of every kernel."""
    with Program(source, path) as program:
        for name in name_expressions:
            program.add_name(name)
        program.compile((f"--gpu-architecture={arch}", "--ptxas-options=-v", *STANDARD_OPTIONS,
                         *includes(path), *options))
        return program.get_bytes("CUBIN"), read_resources(program.log())


def read_resources(log):
    """The log of ptxas -v -> {kernel: Resources}."""
    resources = {}
    for name, text in re.findall(r"entry function '([^']+)'(.*?)(?=Compiling entry|\Z)", log, re.S):
        def number(pattern, text=text):
            match = re.search(pattern, text)
            return int(match[1]) if match else 0
        resources[name] = Resources(
            number(r"Used (\d+) registers"), number(r"(\d+) bytes smem"),
            number(r"(\d+) bytes spill stores"), number(r"(\d+) bytes spill loads"),
            number(r"(\d+) bytes stack frame"), number(r"used (\d+) barriers"))
    return resources


def includes(path):
    folder = os.path.dirname(os.path.abspath(path)) if os.path.exists(path) else None
    return [f"-I{f}" for f in ([folder] if folder else []) + [OWN_HEADERS, *include_folders()]] \
        + [f"--pre-include={OWN_HEADERS}/host_types.h"]


class Program:
    """An nvrtcProgram, destroyed at the end of the `with`."""

    def __init__(self, source, path):
        self.source, self.path, self.handle = source, path, ctypes.c_void_p()

    def __enter__(self):
        check(library().nvrtcCreateProgram(ctypes.byref(self.handle), self.source.encode(),
                                           self.path.encode(), 0, None, None))
        return self

    def __exit__(self, *_):
        library().nvrtcDestroyProgram(ctypes.byref(self.handle))

    def add_name(self, name):
        check(library().nvrtcAddNameExpression(self.handle, name.encode()))

    def compile(self, options):
        options = [option.encode() for option in (*options, NO_CACHE)]
        array = (ctypes.c_char_p * len(options))(*options)
        if library().nvrtcCompileProgram(self.handle, len(options), array):
            raise compile_error(self.log(), self.source, self.path)

    def get(self, what):
        return self.get_bytes(what).split(b"\0")[0].decode(errors="replace")

    def get_bytes(self, what):
        size = ctypes.c_size_t()
        check(getattr(library(), f"nvrtcGet{what}Size")(self.handle, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        check(getattr(library(), f"nvrtcGet{what}")(self.handle, buffer))
        return buffer.raw

    def log(self):
        return self.get("ProgramLog").strip()

    def lowered(self, name):
        result = ctypes.c_char_p()
        check(library().nvrtcGetLoweredName(self.handle, name.encode(), ctypes.byref(result)))
        return result.value.decode()


def compile_error(log, source, path):
    """NVRTC's log already shows the line with a caret; find its number, keep the first errors."""
    match = re.search(re.escape(path) + r"\((\d+)\): (?:catastrophic )?error", log) or \
        re.search(r"\((\d+)\): (?:catastrophic )?error", log)
    line = int(match[1]) if match else line_of_feature(log, source)
    lines = source.split("\n")
    text = lines[line - 1].strip() if line and line <= len(lines) else ""
    shown = first_errors(log)
    advice = hint(log)
    return CompileError(f"{shown}\n{advice}" if advice else shown, line=line, path=path,
                        source_line=text)


def line_of_feature(log, source):
    """The line of inline PTX that asks for a newer GPU: ptxas names its own lines.
    None for other errors."""
    if feature := re.search(r"Feature '%?([^']+)' requires", log):
        before, word, _ = source.partition(feature[1])
        return before.count("\n") + 1 if word else None
    return None


def first_errors(log):
    """The first MAX_ERRORS errors of a log: the rest often follows from them, and warnings bury
    them."""
    errors = [NOT_THIS_ONE.sub("", part) for part in re.split(r"\n\s*\n", log)
              if re.search(r"\(\d+\): (?:catastrophic )?error", part)]
    if not errors:                              # ptxas has a form of its own
        return log
    left = len(errors) - MAX_ERRORS
    more = [f"and {left} more, which may follow from these"] if left > 0 else []
    return "\n\n".join(errors[:MAX_ERRORS] + more)
