"""Gradients of a kernel: by a backward kernel where there is one, by its oracle, or a refusal."""

import functools
import importlib
import importlib.util
import inspect
from pathlib import Path

import torch
from torch.autograd.function import once_differentiable

from lab.course import ROOT, answered

FLOOR = "layer1_kernels"
# Kernels whose gradients a later lesson computes, as with_backward wants it: (lesson, function)
BACKWARD = {"flash_attention": ("k18_flash_backward", "flash_backward")}


def differentiable(kernel, oracle):
    """`kernel` for autograd: its results, and gradients by its backward kernel of BACKWARD, where
    this course has that, else those of `oracle`, a PyTorch function of the same arguments.

    Not for a kernel that works in place.
    Gradients of gradients are refused by torch.
    """
    order = inspect.signature(kernel)
    by_oracle = with_oracle(kernel, oracle)
    by_kernel = with_backward(kernel, lambda: backward_of(kernel.__name__))

    @functools.wraps(kernel)
    def function(*args, **kwargs):
        arguments = order.bind(*args, **kwargs)
        arguments.apply_defaults()
        needed = torch.is_grad_enabled() and any(
            isinstance(a, torch.Tensor) and a.requires_grad for a in arguments.args)
        way = by_kernel if needed and backward_of(kernel.__name__) else by_oracle
        return way.apply(*arguments.args)

    return function


def by_backward(kernel, backward):
    """`kernel` for autograd, with the gradients of `backward`, whatever its own are."""
    order = inspect.signature(kernel)
    way = with_backward(kernel, lambda: backward)

    @functools.wraps(kernel)
    def function(*args, **kwargs):
        arguments = order.bind(*args, **kwargs)
        arguments.apply_defaults()
        return way.apply(*arguments.args)

    return function


def with_oracle(kernel, oracle):
    """The autograd Function whose backward runs `oracle` on the saved inputs, and differentiates
    that."""
    class ByOracle(torch.autograd.Function):
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

    return ByOracle


def with_backward(kernel, find):
    """The autograd Function of a kernel in BACKWARD: it saves arrays and results, and its backward
    is find()(*arrays, *results, *upstream, *the other arguments), a gradient for each array.

    Arrays come first among the kernel's arguments, and it has several results.
    """
    class ByKernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):
            arrays = [a for a in args if isinstance(a, torch.Tensor)]
            results = kernel(*args)
            ctx.save_for_backward(*arrays, *results)
            ctx.others = args[len(arrays):]
            return results

        @staticmethod
        @once_differentiable
        def backward(ctx, *upstream):
            gradients = find()(*ctx.saved_tensors, *upstream, *ctx.others)
            return *gradients, *(None for _ in ctx.others)

    return ByKernel


@functools.cache
def backward_of(name):
    """The backward kernel of a kernel; None where BACKWARD has none or its lesson is not here.

    A lesson is not here if a student edition has only its stubs, or if Python would import another
    text than the course's: a child that grades an earlier lesson sees this one as a stub.
    """
    lesson, function = BACKWARD.get(name, (None, None))
    if not answered(lesson):
        return None
    module = f"{FLOOR}.{lesson}"
    text = Path(importlib.util.find_spec(module).origin).resolve()
    if text != (ROOT / FLOOR / f"{lesson}.py").resolve():
        return None
    return getattr(importlib.import_module(module), function)


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
