"""What a call changed among its arguments: arrays, lists and dicts."""

import contextlib

import numpy as np

from lab.remote import wire


class seen(contextlib.AbstractContextManager):
    """Remembers arguments, to tell which a call changed."""

    def __init__(self, args, kwargs):
        self.arrays = [(value, raw(value)) for value in wire.arrays([args, kwargs])]
        self.plain = {key: (value, frozen(value)) for key, value in
                      [*enumerate(args), *kwargs.items()] if type(value) in (list, dict)}

    def __exit__(self, *error):
        return False

    def changed(self):
        """[(position among the arrays, new value)]; the other side counts in the same order."""
        return [(i, value) for i, (value, before) in enumerate(self.arrays) if raw(value) != before]

    def edited(self):
        """Positions and names of the lists and dicts that changed."""
        return [key for key, (value, before) in self.plain.items() if frozen(value) != before]


def frozen(value):
    """What a list or dict holds, down to objects and arrays, which stand for themselves."""
    if type(value) in (list, tuple):
        return tuple(map(frozen, value))
    if type(value) is dict:
        return tuple((key, frozen(item)) for key, item in value.items())
    return value if type(value) in wire.PLAIN else id(value)


def raw(value):
    """The bytes of an array's elements, in order: NaN equals itself, -0 differs from 0."""
    if type(value) is np.ndarray:
        return value.tobytes()
    import torch

    flat = torch.Tensor.detach(value).reshape(-1).clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().tobytes()
