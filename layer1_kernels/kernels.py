"""The operations of a Llama as tables: one for each back end, and one of the learner's own."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import lab
from lab.course import answered
from layer1_kernels.gradients import BACKWARD, by_backward

__all__ = ["Kernels", "kernels"]

# Each operation's lesson, in which all its back ends are: `op` in Triton, `op_cuda`, `op_torch`.
LESSONS = {
    "matmul": "k05_matmul_tiled",
    "matmul_swiglu": "k10_swiglu",
    "rmsnorm": "k08_rmsnorm",
    "add_rmsnorm": "k08_rmsnorm",
    "rope": "k09_rope",
    "rope_and_cache": "k09_rope",
    "write_kv": "k14_paged_attention",
    "flash_attention": "k13_flash_attention",
    "paged_attention": "k14_paged_attention",
    "swiglu": "k10_swiglu",
    "softmax": "k07_softmax",
    "layernorm": "k08_rmsnorm",
    "cross_entropy": "k11_cross_entropy",
    "quantized_matmul": "k15_quantized_matmul",
    "fp8_matmul": "k19_fp8_matmul",
    "sort_slots": "k20_grouped_gemm",
    "grouped_gemm": "k20_grouped_gemm",
    "reduce_sum": "k03_reduce",
    "transpose": "k02_transpose",
}
GIVEN = {"sample": "sampling"}          # no exercise of this floor: its module, and the same names
SUFFIX = {"torch": ("_torch",), "triton": ("",), "cuda": ("_cuda", "")}     # in order of preference


@dataclass(frozen=True)
class Kernels:
    """What a model computes with.
    Signatures and shapes are those of each operation's lesson."""

    matmul: Callable
    matmul_swiglu: Callable
    rmsnorm: Callable
    add_rmsnorm: Callable
    rope: Callable
    rope_and_cache: Callable
    write_kv: Callable
    flash_attention: Callable
    paged_attention: Callable
    swiglu: Callable
    softmax: Callable
    layernorm: Callable
    cross_entropy: Callable
    quantized_matmul: Callable
    fp8_matmul: Callable
    sort_slots: Callable
    grouped_gemm: Callable
    reduce_sum: Callable
    transpose: Callable
    sample: Callable

    def sources(self):
        """{operation: what computes it}: "mine", or the name of the course's function."""
        functions = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: "mine" if function.__module__.startswith("desk.") else function.__name__
                for name, function in functions.items()}


def kernels(back_end, desk=None):
    """The table of a back end.

    torch: PyTorch's own operations, the oracle, on any device    triton: the course's kernels
    cuda: the course's CUDA kernels, and Triton's where there is none.
    They take only float32
    mine: the learner's kernels where they passed on this version of the course, else Triton's;
          with gradients of the learner's k18. desk: the folder of their desk; None finds it as
          `lab` does
    PyTorch's fill in for kernels that a student edition does not have.
    """
    if back_end == "mine":
        candidates = {name: lab.candidate_function(lesson, name, desk)
                      for name, lesson in LESSONS.items()}
        table = Kernels(**{name: candidates.get(name) or pick(name, module, ("",))
                           for name, module in (LESSONS | GIVEN).items()})
        return with_own_gradients(table, desk)
    if back_end not in SUFFIX:
        raise ValueError(f"kernels: {back_end!r}, expected {', '.join(SUFFIX)} or mine")
    return Kernels(**{name: pick(name, module, SUFFIX[back_end])
                      for name, module in (LESSONS | GIVEN).items()})


def with_own_gradients(table, desk):
    """A table whose operations have the gradients of the learner's backward kernels, where these
    passed."""
    for name, (lesson, function) in BACKWARD.items():
        backward = lab.candidate_function(lesson, function, desk)
        if backward is not None:
            table = replace(table, **{name: by_backward(getattr(table, name), backward)})
    return table


def pick(name, module, suffixes):
    """The first of an operation's functions that its module has, and that is not a stub here."""
    if module in LESSONS.values() and not answered(module):
        suffixes = SUFFIX["torch"]
    module = importlib.import_module(f"layer1_kernels.{module}")
    return next(kernel for suffix in suffixes
                if (kernel := getattr(module, name + suffix, None)) is not None)
