"""Gradients of rope: it returns nothing, so the course's own kernel runs in this process."""

import itertools

import pytest
import torch

from lab import device
from layer1_kernels.k09_rope import rope, rope_angles, rope_torch


@pytest.fixture(autouse=True)
def simulator():
    if device.gpu() is None:
        device.use_simulator()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_gradients(agree, dtype):
    """Of slices of one array, and of two arrays, against PyTorch's in float64; upstream as it
    comes, its heads before its tokens, and one number for all."""
    torch.manual_seed(0)
    x, up = torch.randn(2, 5, 4, 12).to(getattr(torch, dtype))
    upstreams = {"whole": up, "turned": up.transpose(0, 1).contiguous().transpose(0, 1),
                 "expanded": up[0, 0, 0].expand(5, 4, 12)}
    cos, sin = (torch.from_numpy(table).float() for table in rope_angles(50, 12, 100.0))
    positions = torch.tensor([3, 0, 49, 1, 1])
    tables = {rope: (cos, sin), rope_torch: (cos.double(), sin.double())}

    def sliced(function, x):
        y = x * 1
        function(y[:, :2], y[:, 2:3], *tables[function], positions)
        return y

    def apart(function, x):
        q, k = x[:, :2].clone(), x[:, 2:3].clone()
        function(q, k, *tables[function], positions)
        return torch.cat((q, k, x[:, 3:]), dim=1)

    for way, (name, upstream) in itertools.product((sliced, apart), upstreams.items()):
        short, double = x.clone().requires_grad_(), x.double().requires_grad_()
        results = way(rope, short), way(rope_torch, double)
        got, = torch.autograd.grad(results[0], short, upstream)
        want, = torch.autograd.grad(results[1], double, upstream.double())
        assert got.dtype == x.dtype
        agree(results[0].detach(), results[1].detach().numpy(), dtype, f"rope, {way.__name__}")
        agree(got, want.numpy(), dtype, f"gradient of rope, {way.__name__}, upstream {name}")


def test_autograd_hears_of_the_change():
    """A backward pass that saved q is refused, since rope has overwritten it."""
    q, w = torch.ones(1, 1, 4), torch.ones(1, 1, 4, requires_grad=True)
    product = q * w
    rope(q, q[:, :0], torch.ones(1, 2), torch.ones(1, 2), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    with pytest.raises(RuntimeError, match="q is a leaf"):
        rope(w, q, torch.ones(1, 2), torch.ones(1, 2), torch.zeros(1, dtype=torch.int64))
