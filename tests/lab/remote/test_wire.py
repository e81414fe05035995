"""What crosses arrives as it left, and what a hostile sender writes is refused."""

import io
import json
import math
from collections import Counter, OrderedDict, defaultdict

import numpy as np
import pytest
import torch

from lab.remote import wire
from lab.remote.frames import HEAD, WireError, frame, read_frame


def cross(value):
    tree, buffers = wire.pack(value)
    stream = io.BytesIO(frame(tree, buffers))

    def read(n):
        data = stream.read(n)
        if len(data) < n:
            raise EOFError
        return data

    return wire.unpack(*read_frame(read))


PLAIN = [None, True, 0, -7, 2**200, 1.5, math.inf, "ü\0", b"\xff", [1, (2, "x")], (), {},
         {"a": [1.0], 3: None}, {(1, 2): b""}, [[]]]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values(value):
    got = cross(value)
    assert got == value and type(got) is type(value)


def test_nan_and_minus_zero():
    assert math.isnan(cross(math.nan)) and math.copysign(1, cross(-0.0)) == -1


ARRAYS = [
    np.arange(12, dtype="f4").reshape(3, 4),
    np.arange(12.0)[::-2],
    np.zeros((0, 5), "i2"),
    np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1)[:, ::-1],
    np.array(3.5),
    np.float16([np.nan, -0.0]),
    np.array([True, False]),
    np.broadcast_to(np.float32(2), (3, 2)),
    np.array([1 + 2j]),
]


@pytest.mark.parametrize("value", ARRAYS, ids=lambda a: f"{a.dtype}{a.shape}{a.strides}")
def test_arrays_keep_dtype_shape_strides_and_bits(value):
    got = cross(value)
    assert got.dtype == value.dtype and got.shape == value.shape
    assert got.tobytes() == value.tobytes()
    if value.size:
        assert got.strides == value.strides
        got[...] = 0                            # it is the receiver's own memory


TENSORS = [
    torch.arange(6.0).reshape(2, 3),
    torch.arange(6).to(torch.bfloat16)[::2],
    torch.zeros(0, 3),
    torch.tensor(2.0, dtype=torch.float16),
    torch.arange(12.0).reshape(3, 4).t(),
    torch.arange(4.0).expand(3, 4),
    torch.tensor([1.5]).to(torch.float8_e4m3fn),
]


@pytest.mark.parametrize("value", TENSORS, ids=lambda t: f"{t.dtype}{tuple(t.shape)}{t.stride()}")
def test_tensors_keep_dtype_shape_and_strides(value):
    got = cross(value)
    assert got.dtype == value.dtype and got.shape == value.shape
    assert got.numel() == 0 or got.stride() == value.stride()
    assert torch.equal(got.to(torch.float64), value.to(torch.float64))


def test_requires_grad_crosses():
    assert cross(torch.ones(2, requires_grad=True)).requires_grad


def test_one_object_sent_twice_is_one_object():
    x, y = np.zeros(2), np.zeros(2)
    a, b, c, d = cross([x, y, x, y])
    assert a is c and b is d and a is not b


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, np.array([object()]), np.zeros(1, "datetime64[s]")],
    ids=["object", "set", "object array", "dates"],
)
def test_other_values_are_refused_with_their_type(value):
    with pytest.raises(wire.Unsendable, match="expected .*, found"):
        wire.pack(value)


class Sneaky(float):
    def __eq__(self, other):
        return True


def test_a_subclass_does_not_pass_for_its_base():
    with pytest.raises(wire.Unsendable, match="Sneaky"):
        wire.pack(Sneaky(1))


HOSTILE = [
    {"$": "array", "dtype": "object", "shape": [1], "strides": [8], "start": 0, "at": 0},
    {"$": "array", "dtype": "float64", "shape": [2**40], "strides": [8], "start": 0, "at": 0},
    {"$": "array", "dtype": "float64", "shape": [-1], "strides": [8], "start": 0, "at": 0},
    {"$": "array", "dtype": "float64", "shape": [1], "strides": [8], "start": -8, "at": 0},
    {"$": "array", "dtype": "float64", "shape": [1, 1], "strides": [8], "start": 0, "at": 0},
    {"$": "tensor", "dtype": "float32", "shape": [2], "strides": [4], "start": 4, "at": 0},
    {"$": "tensor", "dtype": "quint8", "shape": [8], "strides": [1], "start": 0, "at": 0},
    {"$": "same", "as": 3},
    {"$": "scalar", "dtype": "O", "at": 0},
    {"$": "pickle", "at": 0},
    {"no": 1},
    {"$": "dict", "items": [[[], 1]]},
    {"$": "bytes", "at": 9},
    {"$": "handle", "id": 1},
]


@pytest.mark.parametrize("tree", HOSTILE, ids=lambda t: json.dumps(t)[:50])
def test_hostile_trees_are_wire_errors(tree):
    with pytest.raises(WireError):
        wire.unpack(tree, [b"\0" * 8])


@pytest.mark.parametrize("data", [
    HEAD.pack(2**60, 0), HEAD.pack(4, 0) + b"[[[[", HEAD.pack(2, 0) + b"[]",
    HEAD.pack(4, 0) + b"\xff\xff\xff\xff",
    HEAD.pack(32, 3) + b'{"message": 1, "sizes": [1, -1]}abc'])
def test_hostile_frames_are_wire_errors(data):
    stream = io.BytesIO(data)
    with pytest.raises(WireError):
        read_frame(stream.read, largest=2**20)


def test_deep_nesting_is_a_wire_error():
    text = b'{"sizes": [], "message": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    stream = io.BytesIO(HEAD.pack(len(text), 0) + text)
    with pytest.raises(WireError):
        wire.unpack(*read_frame(stream.read))


@pytest.mark.parametrize("value", [
    Counter("aab"), OrderedDict(b=1, a=2), defaultdict(list, a=[1])], ids=repr)
def test_dictionaries_of_the_standard_library_arrive_as_plain_ones(value):
    back = cross(value)
    assert type(back) is dict and back == value and list(back) == list(value)


def test_a_tensor_arrives_as_it_reads():
    """Conjugates and negations are kept as a note at the tensor, not in its numbers."""
    x = torch.tensor([1 + 2j, 3 - 4j])
    for view in (x.conj(), x.conj().imag, x.conj().real):
        assert torch.equal(cross(view), view.resolve_conj().resolve_neg())
