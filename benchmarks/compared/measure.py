"""One kernel on one tool, in a process of its own: python measure.py TOOL KERNEL.
Prints JSON:

equal      whether the result is the expected one; null if the tool computes none
refusal    what the tool says as it refuses, or null
warnings   what it says beside a result
seconds    of a CPU, for the launch with its compilation and without imports
"""

import contextlib
import importlib.util
import json
import os
import resource
import sys
import tempfile
import time
import tomllib
import warnings
from importlib import metadata
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
HEADS = {"numba": "from numba import cuda, float32\n",
         "triton": "import triton\nimport triton.language as tl\n"}


def cpu_seconds():
    """This process's so far, with its threads and the programs that it ran, such as ptxas."""
    programs = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + programs.ru_utime + programs.ru_stime


def arguments(case):
    """{name: array or number}, always the same."""
    rng = np.random.default_rng(0)
    names = {"np": np, "zeros": lambda n, dtype=np.float32: np.zeros(n, dtype),
             "random": lambda n: rng.random(n, np.float32),
             "integers": lambda below, n: rng.integers(0, below, n).astype(np.int32)}
    return eval(f"dict({case['arguments']})", names)


def function(name, case, language, folder):
    """The kernel of a Python language, imported from a file: Triton reads its source there."""
    path = Path(folder, f"{name}.py")
    path.write_text(HEADS[language] + case[language], "utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def three(size):
    return (*np.atleast_1d(size).tolist(), 1, 1)[:3]


# Tools: (name, case, values, folder) -> what launches, as a function that returns warnings

def ours_cuda(name, case, values, folder):
    from lab import simulator
    simulator.use("simulator")
    kernel = simulator.RawKernel(case["cuda"], name)
    numbers = [np.int32(v) if isinstance(v, int) else v for v in values.values()]

    def launch():
        kernel(three(case["grid"]), three(case["threads"]), numbers)
        return simulator.last_launch().warnings
    return launch


def triton_launch(name, case, values, folder):
    import torch
    kernel = function(name, case, "triton", folder)
    tensors = [torch.from_numpy(v) if isinstance(v, np.ndarray) else v for v in values.values()]
    return lambda: kernel[three(case["grid"])](*tensors)


def ours_triton(name, case, values, folder):
    from lab import simulator
    simulator.activate_triton()
    start = triton_launch(name, case, values, folder)

    def launch():
        start()
        return simulator.last_launch().warnings
    return launch


def interpreter(name, case, values, folder):
    start = triton_launch(name, case, values, folder)

    def launch():
        start()
        return []
    return launch


def ttsem(name, case, values, folder):
    from ttsem import sanitize
    start = triton_launch(name, case, values, folder)

    def launch():
        with sanitize.session():
            start()
        return []
    return launch


def numba(name, case, values, folder):
    kernel = function(name, case, "numba", folder)

    def launch():
        kernel[three(case["grid"]), three(case["threads"])](*values.values())
        return []
    return launch


def vgre(name, case, values, folder):
    from vgre.kernel import Dim3, Kernel
    from vgre.runtime import Runtime
    runtime = Runtime()
    runtime.init()

    def launch():
        runtime.launch(Kernel(name, case["cuda"]), Dim3(*three(case["grid"])),
                       Dim3(*three(case["threads"])), list(values.values()))
        runtime.synchronize()
        return []
    return launch


class Refusal(Exception):
    """What a tool says that does not raise."""


def sentryward(name, case, values, folder):
    """It proves, and computes nothing: null is its result."""
    from sentryward import verify

    from lab.simulator import nvrtc
    ptx, settings = Path(folder, "kernel.ptx"), Path(folder, "input.json")
    numbers = [{"parameter": number, "type": "u32", "value": value}
               for number, value in enumerate(values.values()) if isinstance(value, int)]
    settings.write_text(json.dumps({
        "schema": "spverify.kernel-input/v1", "entry": name, "arguments": numbers,
        "launch": {"grid_dim": three(case["grid"]), "block_dim": three(case["threads"])}}))

    def launch():
        ptx.write_text(nvrtc.compile_ptx(case["cuda"], "kernel.cu", arch="sm_100").ptx)
        report = verify(ptx, input=settings, timeout_seconds=60)
        if report["result"] != "race_free":
            codes = sorted({d["code"] for d in report["diagnostics"]})
            raise Refusal(f"{report['result']}: {', '.join(codes)}")
        return []
    return launch


TOOLS = {"ours_cuda": ours_cuda, "ours_triton": ours_triton, "numba": numba,
         "interpreter": interpreter, "ttsem": ttsem, "vgre": vgre, "sentryward": sentryward}
PACKAGES = {"ours_cuda": ("nvidia-cuda-nvrtc", "numpy"), "ours_triton": ("triton", "numpy"),
            "numba": ("numba-cuda", "numba", "numpy"), "interpreter": ("triton", "numpy"),
            "ttsem": ("ttsem", "triton", "numpy"), "vgre": ("vgre",),
            "sentryward": ("sentryward", "nvidia-cuda-nvrtc")}


def measure(tool, name, folder):
    with open(FOLDER / "kernels.toml", "rb") as file:
        case = tomllib.load(file)[name]
    values = arguments(case)
    truth = eval(case["expected"], {"np": np, **arguments(case)})
    answer = {"equal": None, "refusal": None, "warnings": []}
    launch = TOOLS[tool](name, case, values, folder)
    begun = cpu_seconds()
    try:
        answer["warnings"] = launch()
    except Exception as error:
        answer["refusal"] = f"{type(error).__name__}: {error}"
    answer["seconds"] = cpu_seconds() - begun
    if answer["refusal"] is None and tool != "sentryward":
        answer["equal"] = bool(np.allclose(values["y"], truth, rtol=1e-5, atol=0))
    return answer | {"versions": {p: metadata.version(p) for p in PACKAGES[tool]}}


def main():
    tool, name = sys.argv[1:]
    warnings.simplefilter("ignore")
    os.environ |= {"NUMBA_ENABLE_CUDASIM": "1"} if tool == "numba" else {}
    os.environ |= {"TRITON_INTERPRET": "1"} if tool == "interpreter" else {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder             # empty: the launch compiles
        with contextlib.redirect_stdout(sys.stderr):        # a tool may print
            answer = measure(tool, name, folder)
    print("\n" + json.dumps(answer))


if __name__ == "__main__":
    main()
