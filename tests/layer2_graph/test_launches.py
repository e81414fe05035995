"""What counts as a launch."""

import pytest
import torch
from torch.nn.functional import batch_norm

from layer1_kernels import kernels
from layer2_graph import Launches

X = torch.ones(2, 3)


@pytest.mark.parametrize("run, names", [
    (lambda: X + 1, ["add"]),
    (lambda: X.T.reshape(3, 2), []),                                # views
    (lambda: X.T.reshape(6), ["clone"]),                            # a copy, since no view will do
    (lambda: (torch.empty(3), X.new_empty(3), torch.empty_like(X)), []),
    (lambda: X.clone().add_(1), ["clone", "add_"]),                 # in place
    (lambda: batch_norm(X, X[0], X[0]), ["native_batch_norm"]),
    (lambda: X.sum().item(), ["sum"]),                              # makes no array
    (lambda: X[2:].fill_(1), []),                                   # nothing to fill
])
def test_operations_of_pytorch(run, names):
    with Launches() as seen:
        run()
    assert seen.names == names


def test_a_kernel_is_one_launch_whatever_it_is_made_of():
    with Launches() as seen:
        ops = seen.counting(kernels("torch"))
        ops.swiglu(X, X)
    assert seen.names == ["swiglu"]
