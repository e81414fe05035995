"""Gradients for a kernel that has no backward kernel of its own: its oracle's, or a refusal."""

import functools
import inspect

import torch
from torch.autograd.function import once_differentiable


def differentiable(kernel, oracle):
    """`kernel` for autograd: its results, and the gradients of `oracle`, a PyTorch function of the
    same arguments, which backward computes again from the saved inputs.

    Not for a kernel that works in place. Gradients of gradients are refused by torch.
    """
    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):
            tensor = [isinstance(a, torch.Tensor) for a in args]
            ctx.save_for_backward(*(a for a, t in zip(args, tensor, strict=True) if t))
            ctx.others = [None if t else a for a, t in zip(args, tensor, strict=True)]
            ctx.tensor = tensor
            return kernel(*args)

        @staticmethod
        @once_differentiable
        def backward(ctx, *upstream):
            saved = iter(ctx.saved_tensors)
            args = [next(saved).detach().requires_grad_(need) if t else other for t, need, other in
                    zip(ctx.tensor, ctx.needs_input_grad, ctx.others, strict=True)]
            with torch.enable_grad():
                results = oracle(*args)
            wanted = [a for a, need in zip(args, ctx.needs_input_grad, strict=True) if need]
            gradients = iter(torch.autograd.grad(results, wanted, upstream if len(upstream) > 1
                                             else upstream[0], allow_unused=True))
            return tuple(next(gradients) if need else None for need in ctx.needs_input_grad)

    order = inspect.signature(kernel)

    @functools.wraps(kernel)
    def function(*args, **kwargs):
        arguments = order.bind(*args, **kwargs)
        arguments.apply_defaults()
        return Kernel.apply(*arguments.args)

    return function


def without_gradients(function):
    """`function`, for arrays that need no gradient: autograd cannot see what a kernel writes.

    RuntimeError where one does and gradients are on.
    """
    @functools.wraps(function)
    def checked(*args, **kwargs):
        if torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad
                                           for a in (*args, *kwargs.values())):
            raise RuntimeError(f"{function.__name__}: an array requires a gradient, which "
                               f"{function.__name__} does not give; use torch.no_grad(), or "
                               f"PyTorch's operation")
        return function(*args, **kwargs)

    return checked
