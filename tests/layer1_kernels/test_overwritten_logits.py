"""What cross_entropy of k11 does to the tensors of whoever calls it, by torch's own autograd."""

import pytest
import torch


def both_functions():
    """The course's own, in this process: what they do to tensors does not cross to another."""
    from lab import device
    from layer1_kernels.k11_cross_entropy import cross_entropy, cross_entropy_overwriting_logits

    if device.gpu() is None:
        device.use_simulator()
    return cross_entropy, cross_entropy_overwriting_logits


def test_logits_are_overwritten_only_where_asked_for():
    keeps, overwrites = both_functions()
    torch.manual_seed(0)
    weight, hidden, targets = torch.randn(50, 8), torch.randn(3, 8), torch.tensor([4, 49, -100])
    want = None
    for function in (keeps, overwrites):
        x = hidden.clone().requires_grad_()
        logits = x @ weight.T
        before = logits.detach().clone()
        losses = function(logits, targets)
        assert torch.equal(logits, before)
        got, of_logits = torch.autograd.grad(losses.sum(), (x, logits), retain_graph=True)
        assert torch.equal(logits, before) == (function is keeps)
        assert (of_logits.data_ptr() == logits.data_ptr()) == (function is overwrites)
        want = got if want is None else want
        assert torch.equal(got, want)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(losses.sum(), x)


def test_what_autograd_may_not_overwrite():
    _, overwrites = both_functions()
    with pytest.raises(RuntimeError, match="logits is a leaf"):
        overwrites(torch.ones(2, 3, requires_grad=True), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="its rows overlap"):
        overwrites(torch.ones(1, 3).expand(2, 3), torch.tensor([0, 1]))
