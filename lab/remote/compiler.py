"""Compiling in another process.

What a learner wrote is compiled in a process that may run the learner's code: a @triton.jit body
can run Python while it compiles, NVRTC reads files.
Only PTX, a cubin and a few numbers come out; they run in a process that has met no learner's code,
so what it counts and checks is the truth.
"""

import importlib
import json
from pathlib import Path

NUMBERS = ("num_warps", "num_ctas", "shared", "tmem_size", "global_scratch_size",
           "global_scratch_align", "profile_scratch_size", "profile_scratch_align")
LOG_KEPT = 4000                 # characters of a compiler's log


# ---- the process that compiles

def cuda(module, what, source, path, options, names, *arch):
    """CUDA C -> what a function of simulator.nvrtc gives, as data.
    It needs no module."""
    from lab.simulator import nvrtc

    function = {"ptx": "compile_ptx", "resources": "resources", "cubin": "assemble"}[what]
    result = getattr(nvrtc, function)(source, path, tuple(options), tuple(names), *arch)
    if what == "ptx":
        return [result.ptx, result.log[:LOG_KEPT], result.names]
    if what == "cubin":
        return result[0]
    return {name: list(row) for name, row in result.items()}


def triton(module, name, parameters, signature, constants, attrs, options, arch):
    """A @triton.jit function of the lesson's module -> {"ptx", "cubin", "name", numbers}.

    arch: the compute capability of the device on which it will run, 90 for 9.0
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as compiled
    from triton.runtime.jit import JITFunction

    function = getattr(module, name)
    while not isinstance(function, JITFunction):        # under @triton.autotune or heuristics
        function = function.fn
    if list(function.arg_names) != parameters:
        raise TypeError(f"{name} takes ({', '.join(function.arg_names)}), expected "
                        f"({', '.join(parameters)})")
    constants = {place: dtype(value) for place, value in constants.items()}
    kernel = compiled(ASTSource(function, signature, constants, attrs),
                      target=GPUTarget("cuda", arch, 32), options=options)
    numbers = {key: getattr(kernel.metadata, key, None) for key in NUMBERS}
    return {"ptx": kernel.asm["ptx"], "cubin": kernel.asm["cubin"], "name": kernel.metadata.name,
            **numbers}


def dtype(value):
    import triton.language as tl

    return tl.dtype(value["dtype"]) if isinstance(value, dict) else value


# ---- the process that runs

def elsewhere(ask, module):
    """From now on the other process compiles: CUDA C, and Triton's functions of one module.

    ask(what, *values) -> what one of the functions above gives there.
    """
    from lab.simulator import nvrtc
    from lab.simulator.session import session

    def cuda_there(what, *arguments):
        result = ask("cuda", what, *arguments)
        if what == "ptx":
            return nvrtc.Compiled(*result)
        if what == "cubin":
            return bytes(result)
        return {name: nvrtc.Resources(*row) for name, row in result.items()}

    session.compiler = cuda_there
    session.cache_dir = None
    compiler = importlib.import_module("triton.compiler")
    here = compiler.compile

    def triton_there(src, target=None, options=None, **more):
        if src.fn.__module__ != module:                 # from an earlier lesson: the course's own
            return here(src, target=target, options=options, **more)
        constants = {place: shown(value) for place, value in src.constants.items()}
        result = ask("triton", src.fn.__name__, list(src.fn.arg_names), dict(src.signature),
                    constants, dict(src.attrs), dict(options), target.arch)
        return rebuilt(src, target, options, result)

    compiler.compile = triton_there


def shown(value):
    """A constexpr as it crosses: tl.float32 has a name."""
    value = getattr(value, "value", value)
    return {"dtype": value.name} if type(value).__name__ == "dtype" else value


def schema(result, options):
    """The numbers of a compiled kernel.
    TypeError: the other process, which a learner's code may have changed, gave what Triton does
    not.
    Warps decide what is counted, so they are those of the launch."""
    if type(result) is not dict or [type(result.get(key)) for key in ("name", "ptx", "cubin")] != [
            str, str, bytes]:
        raise TypeError("the compiler's answer is not a kernel")
    numbers = {key: result.get(key) for key in NUMBERS if result.get(key) is not None}
    if any(type(n) is not int or not 0 <= n < 1 << 31 for n in numbers.values()):
        raise TypeError("the compiled kernel reports invalid sizes")
    if any(numbers.get(key) != options[key] for key in ("num_warps", "num_ctas")):
        raise TypeError("the kernel was compiled for another number of warps")
    if f".entry {result['name']}(" not in result["ptx"]:
        raise TypeError(f"the compiled PTX holds no kernel {result['name'][:80]}")
    return numbers


def rebuilt(src, target, options, result):
    """Triton's own object for a compiled kernel, from what the other process gave."""
    import hashlib

    from triton.compiler import CompiledKernel
    from triton.runtime.cache import get_cache_manager

    numbers = schema(result, options)
    name = result["name"]
    ptx = result["ptx"]
    cubin = result["cubin"]
    digest = hashlib.sha256(json.dumps([name, ptx, numbers, repr(options)]).encode()).hexdigest()
    metadata = {**options, **numbers, "name": name, "hash": digest, "target": vars(target)}
    cache = get_cache_manager(digest)
    stem = src.name[:150]
    files = {f"{stem}.ptx": ptx, f"{stem}.cubin": cubin,
             f"{stem}.json": json.dumps(metadata, default=vars)}
    group = {name: cache.put(data, name, binary=isinstance(data, bytes))
             for name, data in files.items()}
    cache.put_group(f"{stem}.json", group)
    return CompiledKernel(src, {name: Path(path) for name, path in group.items()}, digest)
