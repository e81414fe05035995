"""Bytes of launches: what each reads and writes, and whose results, recorded from a running step"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from layer2_graph.launches import Launches

__all__ = ["CountedLaunch", "Traffic"]


class CountedLaunch(NamedTuple):
    """One recorded launch."""

    name: str
    inputs: tuple[int, ...]     # indices of the earlier launches whose results it reads
    moved: int                  # bytes that it reads and writes
    arrays: frozenset[int]      # addresses of the memory of its arguments


# Arguments that a kernel writes, and those of them that it only writes, all of them pages.
CHANGED = {"rope": (0, 1), "rope_and_cache": (0, 6, 7), "write_kv": (2, 3)}
TARGETS = {"rope_and_cache": (6, 7), "write_kv": (2, 3)}


class Traffic(Launches):
    """Records each launch with its bytes and its inputs: with Traffic() as traffic: …

    Use it as Launches; then traffic.launches has a CountedLaunch for each name.
    It keeps every array that it has seen alive: memory that is freed and used again would look like
    the same one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[CountedLaunch] = []
        self.writer: dict[int, int] = {}
        self.alive: list[Tensor] = []

    @property
    def moved(self) -> int:
        """Bytes of all launches."""
        return sum(launch.moved for launch in self.launches)

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        if len(self.names) > len(self.launches) and not self.inside:
            self.note(args, result)
        return result

    def watch(self, name: str, function: Callable) -> Callable:
        counted = super().watch(name, function)

        def one(*args):
            result = counted(*args)
            if not self.inside:             # a kernel called by another kernel is not a launch
                self.note(args, result)
            return result

        return one

    def note(self, args: tuple, result: object) -> None:
        """Record the most recent launch."""
        name = self.names[-1]
        number = len(self.launches)
        self.inside = True                  # operations of the recorder itself do not count
        targets = TARGETS.get(name, ())
        read = tensors([a for i, a in enumerate(args) if i not in targets])
        changed = tensors([args[i] for i in CHANGED.get(name, ())]) + tensors(result)
        inputs = {self.writer[place(a)] for a in read if place(a) in self.writer}
        self.launches.append(CountedLaunch(name, tuple(sorted(inputs)), moved(name, args, result),
                                    frozenset(map(place, tensors(args)))))
        self.writer |= dict.fromkeys(map(place, changed), number)
        self.alive += [*tensors(args), *changed]
        self.inside = False


def moved(name, args, result):
    """Bytes that a launch reads and writes: each array once, and only the needed rows of a table.

    Every slot counts as written; -1 must not occur.
    Attention reads the keys and values of each context once.
    The embedding counts one row a token.
    """
    if name in ("index", "embedding"):      # the embedding's rows, and rows of x
        return size(args[1], result) + size(result)
    if name == "index_copy_":               # rows of the last into the first, as in a static cache
        return size(args[2]) + 2 * size(args[3])
    if name == "rope":
        q, k, cos, _, positions = args
        return 2 * size(q, k) + size(positions) + 2 * len(q) * size(cos[0])
    if name == "rope_and_cache":
        q, k, v, cos, _, positions, _, _, slots = args
        return 2 * size(q, k, v) + size(positions, slots) + 2 * len(q) * size(cos[0])
    if name == "write_kv":
        k, v, _, _, slots = args
        return 2 * size(k, v) + size(slots)
    if name == "paged_attention":
        q, k_pages, _, tables, cu_q, lens, _ = args
        return size(q, tables, cu_q, lens, result) + 2 * int(lens.sum()) * size(k_pages[0, 0])
    return size(args) + size(result)


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if torch.is_tensor(leaf)]


def size(*trees):
    """Bytes of all arrays in the trees; an array that occurs twice counts once."""
    return sum({id(a): a.nbytes for a in tensors(trees)}.values())


def place(array):
    """The address of an array's memory, which its views share."""
    return array.untyped_storage().data_ptr()
