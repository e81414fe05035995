"""`lab doctor`: what this machine can run, and what to do about the rest."""

import contextlib
import importlib.metadata
import platform
import sys

from lab import course, device

AMPERE = (8, 0)                 # Triton supports no older GPU (its README)
NEED_AMPERE = ("k17", "g10")    # whose CUDA C uses instructions that older ones lack


def examine():
    """[{name, found, ok, needed, do}]: `do` is empty where there is nothing to do."""
    rows = [row("course", course.VERSION, True), python(), system()]
    rows += [package(name, needed) for name, needed in
             (("numpy", True), ("torch", True), ("triton", True), ("jupyterlab", True))]
    rows += [nvrtc(), simulator(), gpu()]
    if device.gpu():
        rows.append(cupy())
    return rows


def row(name, value, ok, do="", needed=True):
    return {"name": name, "found": value, "ok": ok, "needed": needed, "do": "" if ok else do}


def python():
    fits = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return row("Python", platform.python_version(), fits, "install Python 3.11, 3.12 or 3.13")


def system():
    system = platform.system()
    processor = platform.machine()
    fits = system == "Linux" and processor in ("x86_64", "aarch64")
    return row("system", f"{system} {processor}", fits,
               "use Linux on x86_64 or aarch64 (WSL 2 on Windows, a Linux container on macOS): "
               "NVRTC and Triton have no wheels for others")


def package(name, needed):
    try:
        return row(name, importlib.metadata.version(name), True)
    except importlib.metadata.PackageNotFoundError:
        return row(name, "missing", False, "run `make learn` again: it completes what is missing",
                   needed)


def nvrtc():
    """NVRTC compiles CUDA C; it needs no GPU and no driver."""
    try:
        from lab.simulator import nvrtc as compiler

        return row("NVRTC", ".".join(map(str, compiler.version())), True)
    except (ImportError, OSError, RuntimeError) as error:
        return row("NVRTC", f"not usable: {error}", False,
                   "run `make learn` again: it installs nvidia-cuda-nvrtc")


def simulator():
    try:
        from lab import simulator as machine

        return row("simulator", machine.self_test(), True)
    except Exception as error:          # whatever is wrong with it is the finding
        return row("simulator", f"self-test failed: {error}", False,
                   "please report this with the line above")


def gpu():
    """A GPU is never needed: kernels are judged in the simulator, and a GPU adds speed."""
    gpu_here = device.gpu()
    if gpu_here:
        major, minor = gpu_here.capability
        memory = f"{gpu_here.memory / 2**30:.0f} GiB"
        what = f"{gpu_here.name}, capability {major}.{minor}, {memory}"
        if gpu_here.capability < AMPERE:
            return row("GPU", what, False, f"Triton and {', '.join(NEED_AMPERE)} need capability "
                       "8.0: their kernels are not proven on this GPU", needed=False)
        return row("GPU", what, True)
    do = "nothing to do: kernels run in the simulator, speed is not proven here"
    if device.maybe_driver():
        do = ("a driver is there, yet torch sees no GPU: is it the CPU build? "
              "Remove .venv and run `make learn`")
    return row("GPU", "none", False, do, needed=False)


def cupy():
    for name in ("cupy-cuda13x", "cupy-cuda12x"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return row("CuPy", importlib.metadata.version(name), True)
    return row("CuPy", "missing", False,
               "remove .venv and run `make learn`: it picks the matching CuPy", needed=False)
