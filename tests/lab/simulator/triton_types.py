"""Types of Triton's numbers, and numbers of each, for the tests of its operations."""

import numpy as np
import torch

INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16,
            torch.uint32, torch.uint64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
EPSILON = {torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.float32: 2e-6, torch.float64: 1e-12}


def name(dtype):
    return str(dtype).removeprefix("torch.")


def integers(rng, dtype, shape):
    """Of the whole range, with the ends and zero among them."""
    limits = np.iinfo(name(dtype))
    values = rng.integers(limits.min, limits.max, shape, dtype=name(dtype), endpoint=True)
    values.reshape(-1)[:3] = limits.min, limits.max, 0
    return torch.from_numpy(values)
