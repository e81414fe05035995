"""RawKernel and RawModule: launch CUDA C as CuPy does, on a GPU or in the simulator."""

import re
from operator import index
from pathlib import Path

from . import nvrtc, ptx, signature, unset, variables
from .arguments import bind
from .cache import compile_cached, own_path
from .errors import CompileError, KernelError
from .report import make_launch
from .run import Run, plain_name
from .session import session


class RawKernel:
    """A kernel of a CUDA C text.

    source   the text
    name     the kernel's name; a template's instance as in C++: "softmax<float, 256>"
    options  for NVRTC, such as "-DTILE=16"
    path     the file's name in messages
    any_barrier  may the warps of a block meet at different __syncthreads()? CUDA C forbids it; PTX
             counts the warps that arrive and does not ask where.
             False: it is an error

    kernel(grid, block, args, shared_mem=0): grid and block are an int or a tuple of up to three;
    args are numpy arrays, torch tensors, Python or numpy numbers, numpy.void for structs.
    Arrays are written in place.
    Raises CompileError, KernelError or Unsupported.
    """

    def __init__(self, source, name, options=(), path=None, any_barrier=False):
        self.name = name
        self.module = RawModule(source, options=options, path=path or "<kernel>", names=(name,),
                                is_text=True, any_barrier=any_barrier)

    def __call__(self, grid, block, args, shared_mem=0):
        self.module.launch(self.name, triple("grid", grid), triple("block", block), tuple(args),
                           shared_mem)

    @property
    def ptx(self):
        """The kernel's own part of the PTX text, without comments, debug lines and blank lines."""
        self.module.compile()
        lowered = self.module.lowered(self.name)
        text = self.module.compiled.ptx
        body = text[re.search(rf"\.entry {re.escape(lowered)}\b", text).start():]
        lines = body[:body.index("\n}") + 2].splitlines()
        return "\n".join(line for line in lines
                         if line.strip() and not re.match(r"\s*(//|\.loc\b)", line))

    @property
    def resources(self):
        """Registers, static shared memory and spills, from the assembler (nvrtc.Resources)."""
        return self.module.resources(self.name)


class RawModule:
    """A CUDA C file, or its text, with several kernels; compiled once, at the first launch."""

    def __init__(self, source, options=(), path=None, names=(), is_text=False, any_barrier=False):
        if not is_text and "\n" not in str(source) and Path(source).suffix in (".cu", ".cuh", ".h"):
            path = path or str(source)
            source = Path(source).read_text(encoding="utf-8")
        self.source = str(source)
        self.options = tuple(options)
        self.path = path or "<kernel>"
        self.names = list(names)
        self.any_barrier = any_barrier
        self.globals = {}                                   # memory of __device__ variables
        self.forget()

    def forget(self):
        """Drop the compiled code; the next launch compiles again."""
        self.compiled = self.ptx = self.on_gpu = None
        self.arch = session.arch                            # what it is compiled for
        self.debug_ptx = False                              # not looked at yet
        self.rehearsed = set()                              # see unset.py

    def get(self, name):
        """-> RawKernel"""
        kernel = RawKernel.__new__(RawKernel)
        kernel.name = name
        kernel.module = self
        if name not in self.names:
            self.names.append(name)
            if self.ptx and self.lowered(name) not in self.ptx.functions:   # a template's instance
                self.forget()
        return kernel

    def get_global(self, name):
        """-> DeviceVariable: a __device__ or __constant__ variable by its name in the source, with
        its namespaces; also a static one.
        Raises KernelError if there is none."""
        variable = variables.find(self.compile(), name, self.source, self.path)
        if session.device() == "cuda":
            from . import cuda
            memory = cuda.memory_of(self, variable)
        else:
            memory = variables.HostMemory(variables.memory_of(variable, self.globals))
        return variables.DeviceVariable(name, memory,
                                        *variables.declared(self.source, name, variable.size))

    def compile(self):
        """-> ptx.Module, compiled if need be."""
        if self.arch != session.arch:
            self.forget()
        if self.compiled is None:
            try:
                self.compiled = self.compiled_with(self.options)
            except CompileError as error:
                self.drop_unknown(str(error))
                raise
            self.ptx = ptx.parse(own_path(self.compiled.ptx, self.path))
        return self.ptx

    def compiled_with(self, options):
        return compile_cached(self.source, self.path, options, tuple(sorted(self.expressions())),
                              session.cache_dir)

    def debug(self):
        """-> ptx.Module as compiled for a debugger if a local variable may be without a value, else
        None."""
        if self.debug_ptx is False:
            self.debug_ptx = None
            if unset.may_declare_without_value(self.source):
                try:
                    compiled = self.compiled_with((*self.options, "-G"))
                    self.debug_ptx = ptx.parse(own_path(compiled.ptx, self.path))
                except KernelError:
                    pass                            # the launch does not depend on it
        return self.debug_ptx

    def lowered(self, name):
        """A kernel's name in the PTX.
        The compiler gives it for the names it was asked about."""
        if name in self.compiled.names or name in self.ptx.functions:
            return self.compiled.names.get(name, name)
        like = [n for n, f in self.ptx.functions.items() if f.is_kernel and plain_name(n) == name]
        return like[0] if len(like) == 1 else name

    def sources(self):
        return {self.path: self.source, full(self.path): self.source}

    def expressions(self):
        """The names that the compiler must translate: template instances and C++ names."""
        return [n for n in self.names if not is_extern_c(self.source, n) and n[:2] != "_Z"]

    def drop_unknown(self, log):
        """Forget names that do not compile, so that they spoil no other kernel of the module."""
        unknown = [n for n in self.names if f"nv_mangled_name {n}\n" in log]
        self.names = [n for n in self.names if n not in unknown]
        for name in unknown:
            if f'identifier "{name}" is undefined' in log:
                self.function(name)                         # says which kernels there are

    def function(self, name):
        module = self.compile()
        lowered = self.lowered(name)
        if lowered not in module.functions:
            known = ", ".join(f"`{plain_name(n)}`" for n, f in module.functions.items()
                              if f.is_kernel)
            raise KernelError(f"{self.path} has no kernel `{name}`; it has {known or 'none'}",
                              "argument", path=self.path)
        return module.functions[lowered]

    def resources(self, name, arch=nvrtc.ARCH):
        self.compile()
        key = self.source, self.path, self.options, tuple(self.expressions()), arch
        table = session.compiler("resources", *key) if session.compiler else \
            nvrtc.resources(*key)
        return table[self.lowered(name)]

    def launch(self, name, grid, block, args, shared_mem):
        if session.device() == "cuda":
            from . import cuda
            return cuda.launch(self, name, grid, block, args, shared_mem)
        function = self.function(name)
        declared = signature.parameters(self.source, name)
        threads = block[0] * block[1] * block[2]
        if 0 < function.most_threads < threads:
            raise KernelError(f"block {block} has {threads} threads; __launch_bounds__ of `{name}` "
                              f"allows {function.most_threads}", "argument")

        def prepare(run):
            run.parameters = bind(name, run.kernel.parameters, declared, args, run.space)
            run.any_barrier = self.any_barrier
            return run
        if session.checks:
            unset.rehearse(self, name, grid, block, shared_mem, prepare)
        run = prepare(Run(self.ptx, function, grid, block, dynamic_shared=shared_mem,
                          sources=self.sources(), budget=session.step_budget,
                          checks=session.checks))
        run.place_globals(self.globals)
        run.run()
        session.finish(make_launch(run, name))


def full(path):
    return str(Path(path).absolute())


def is_extern_c(source, name):
    """Does this kernel have its plain name in the PTX?"""
    if "<" in name:
        return False
    text = signature.strip_comments(source)
    function = r"\b" + re.escape(name) + r"\s*\("
    return bool(re.search(r'extern\s+"C"[^;{}]*' + function, text)
                or any(re.search(function, block) for block in extern_c_blocks(text)))


def extern_c_blocks(text):
    """The text within each `extern "C" { ... }`, or to the end if it is never closed, as where a
    header's #ifdef hides the brace."""
    for start in re.finditer(r'extern\s+"C"\s*\{', text):
        depth = 1
        for brace in re.finditer(r"[{}]", text[start.end():]):
            depth += 1 if brace[0] == "{" else -1
            if depth == 0:
                yield text[start.end():start.end() + brace.start()]
                break
        else:
            yield text[start.end():]


def triple(what, size):
    """An int or up to three of them -> (x, y, z)."""
    try:
        size = tuple(index(n) for n in (size if isinstance(size, (tuple, list)) else [size]))
    except TypeError:
        raise KernelError(f"{what} {size!r}: expected one to three whole numbers",
                          "argument") from None
    limits = (2**31 - 1, 65535, 65535) if what == "grid" else (1024, 1024, 64)
    if not 1 <= len(size) <= 3 or min(size) < 1:
        raise KernelError(f"{what} {size}: expected one to three positive sizes", "argument")
    size = size + (1,) * (3 - len(size))
    if any(n > limit for n, limit in zip(size, limits, strict=True)):
        raise KernelError(f"{what} {size}: the largest possible is {limits}", "argument")
    if what == "block" and size[0] * size[1] * size[2] > 1024:
        raise KernelError(f"block {size} has {size[0] * size[1] * size[2]} threads; the limit is "
                          "1024", "argument")
    return size
