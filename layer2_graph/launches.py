"""Count launches: what a GPU would be asked to start, counted the same on a CPU."""

from collections.abc import Callable
from dataclasses import fields, replace

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from layer1_kernels import Kernels

__all__ = ["Launches"]


# Operations that make an array and move nothing. The first is a view in all but name.
FREE = ("_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


class Launches(TorchDispatchMode):
    """While it is active, it lists launches: with Launches() as seen: …; len(seen.names)

    A launch is a call of a kernel of a `Kernels` table, or one of PyTorch's operations that makes
    or changes an array.
    Views move nothing and are not counted, nor is memory that is only set aside, nor an array of no
    numbers, nor are the operations that a kernel's own launcher is made of.
    `seen.counting(table)` is the same table, whose calls count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.inside = False

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        launched = any(hasattr(leaf, "data_ptr") and leaf.numel() for leaf in tree_leaves(result))
        name = operation.overloadpacket.__name__
        free = operation.is_view or name in FREE
        if launched and not free and not self.inside:
            self.names.append(name)
        return result

    def counting(self, ops: Kernels) -> Kernels:
        """The same table of kernels, each call of which is one launch."""
        return replace(ops, **{f.name: self.watch(f.name, getattr(ops, f.name))
                               for f in fields(ops)})

    def watch(self, name: str, function: Callable) -> Callable:
        """The function, each call of which is one launch of this name."""
        def one(*args, **kwargs):
            if self.inside:                 # a kernel that calls another one
                return function(*args, **kwargs)
            self.names.append(name)
            self.inside = True
            try:
                return function(*args, **kwargs)
            finally:
                self.inside = False

        return one
