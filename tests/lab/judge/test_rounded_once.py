"""A second rounding to 16 bits is told from float32 on the way."""

import numpy as np
import pytest
import torch

from lab.judge.compare import rounded_once


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_second_rounding_is_told(dtype):
    rng = np.random.default_rng(0)
    a, b = (torch.from_numpy(rng.uniform(0.5, 2, (30, 50))).to(dtype) for _ in range(2))
    want = (torch.sqrt(a.double()) * b.double()).numpy()
    root = torch.sqrt(a.float())
    rounded_once((root * b.float()).to(dtype), want, "kernel", "1,500 numbers")
    with pytest.raises(AssertionError, match="kernel rounds to 16 bits more than once: on 1,500"):
        rounded_once((root.to(dtype).float() * b.float()).to(dtype), want, "kernel",
                     "1,500 numbers")
