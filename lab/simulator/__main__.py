"""`python -m … FILE.cu`: launch a kernel of a CUDA file in the simulator, without a host program.

    … add.cu --grid 4 --block 256 float32:1000 float32:1000 float32:1000 1000

Arguments, in the kernel's order: `float32:1000` is an array of random numbers, `zeros:float32:1000`
one of zeros, `float32:20x30` one of two dimensions, and a number is a number.
Arrays that the kernel has changed are shown.
"""

import argparse
import re
import sys
from argparse import ArgumentTypeError
from pathlib import Path

import numpy as np

from . import CompileError, KernelError, RawModule, Unsupported, trace, use

ARRAY = re.compile(r"(zeros:)?([a-z]+\d+):(\d+(?:x\d+)*)")
SHOWN = 8               # numbers of an array


def argument(text):
    """An array or a number of a word."""
    if match := ARRAY.fullmatch(text):
        zeros, dtype, shape = match.groups()
        try:
            kind = np.dtype(dtype)
        except TypeError:
            raise ArgumentTypeError(f"{text!r}: numpy has no dtype {dtype!r}") from None
        size = tuple(map(int, shape.split("x")))
        draw = np.random.default_rng(0)
        numbers = np.zeros(size) if zeros else draw.standard_normal(size) if kind.kind == "f" \
            else draw.integers(0, 100, size)
        return numbers.astype(kind)
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    raise ArgumentTypeError(f"{text!r}: expected a number, or an array such as float32:1000")


def sizes(text):
    """(x, …) of 4 or 4,2,1."""
    return tuple(map(int, text.split(",")))


def options():
    parser = argparse.ArgumentParser(prog="python -m " + __spec__.name.rpartition(".")[0],
                                     description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--kernel", help="its name; needed where the file has several")
    parser.add_argument("--grid", type=sizes, default=(1,))
    parser.add_argument("--block", type=sizes, default=(32,))
    parser.add_argument("--shared", type=int, default=0, help="bytes of dynamic shared memory")
    parser.add_argument("arguments", nargs="*", type=argument)
    return parser.parse_intermixed_args()       # options may stand before the kernel's arguments


def kernel_of(module, name):
    """The kernel of that name, or the only one.
    KernelError where there is no only one."""
    names = [own for own, function in module.compile().functions.items() if function.is_kernel]
    if name is None and len(names) != 1:
        raise KernelError(f"{module.path} has {len(names)} kernels, {', '.join(names) or 'none'}: "
                          f"say which by --kernel", "argument")
    return module.get(name or names[0])


def main():
    own = options()
    if not own.file.exists():
        print(f"{own.file}: no such file", file=sys.stderr)
        return 2
    use("simulator")
    before = [a.copy() if isinstance(a, np.ndarray) else a for a in own.arguments]
    try:
        kernel = kernel_of(RawModule(own.file), own.kernel)
        with trace() as record:
            kernel(own.grid, own.block, own.arguments, own.shared)
    except (CompileError, KernelError, Unsupported) as error:
        print(error, file=sys.stderr)
        return 1
    print(record)
    for number, (old, new) in enumerate(zip(before, own.arguments, strict=True)):
        if isinstance(new, np.ndarray) and not np.array_equal(old, new, equal_nan=True):
            more = " …" if new.size > SHOWN else ""
            print(f"argument {number}: {new.reshape(-1)[:SHOWN]}{more}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
