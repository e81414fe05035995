"""The oracles' own arithmetic against numpy's and torch's, where these round once."""

import random

import numpy as np
import pytest

from .oracles import formats
from .oracles.formats import BF16, E4M3, E5M2, F16, F32, F64, decode, encode
from .oracles.operands import anything, edges


@pytest.fixture(scope="module")
def doubles():
    """Doubles as bits: all kinds, and many close to float32's and smaller formats' numbers."""
    rng = random.Random(0)
    bits = [*edges("f64"), *(anything("f64", rng) for _ in range(4000))]
    for _ in range(4000):
        number = decode(anything("f32", rng), F32)
        if formats.finite(number):
            bits.append(encode(number, F64) + rng.choice((-1, 0, 1, 1 << 28)) & 2**64 - 1)
    return [b for b in bits if decode(b, F64) is not None]


def as_floats(bits):
    return np.array(bits, np.uint64).view(np.float64)


@pytest.mark.parametrize("form, dtype, unsigned", [(F32, np.float32, np.uint32),
                                                   (F16, np.float16, np.uint16)])
def test_rounding_as_numpy_has_it(doubles, form, dtype, unsigned):
    with np.errstate(over="ignore", under="ignore"):
        wanted = as_floats(doubles).astype(dtype).view(unsigned).tolist()
    assert [encode(decode(b, F64), form) for b in doubles] == wanted


@pytest.mark.parametrize("form, name, greatest", [(BF16, "bfloat16", np.inf),
                                                  (E4M3, "float8_e4m3fn", 448),
                                                  (E5M2, "float8_e5m2", np.inf)])
def test_rounding_as_torch_has_it(doubles, form, name, greatest):
    torch = pytest.importorskip("torch")
    with np.errstate(over="ignore", under="ignore"):
        floats = as_floats(doubles).astype(np.float32)      # torch goes by way of float32
    floats = floats[np.abs(floats) <= greatest]
    dtype = getattr(torch, name)
    narrow = torch.from_numpy(floats).to(dtype)
    wanted = narrow.view(torch.uint8 if narrow.itemsize == 1 else torch.uint16).tolist()
    bits = floats.view(np.uint32).tolist()
    assert [encode(decode(b, F32), form) for b in bits] == wanted


def test_arithmetic_as_numpy_has_it(doubles):
    rng = random.Random(1)
    a, b = ([rng.choice(doubles) for _ in range(4000)] for _ in range(2))
    x, y = as_floats(a), as_floats(b)
    with np.errstate(all="ignore"):
        wanted = {formats.add: x + y, formats.multiply: x * y, formats.divide: x / y}
        roots = np.sqrt(x)
    for function, numbers in wanted.items():
        for p, q, number in zip(a, b, numbers, strict=True):
            compare(function(decode(p, F64), decode(q, F64)), number)
    for p, number in zip(a, roots, strict=True):
        compare(formats.root(decode(p, F64)), number)


def compare(exact, number):
    if np.isnan(number):
        assert exact is None
    else:
        assert encode(exact, F64) == int(number.view(np.uint64))
