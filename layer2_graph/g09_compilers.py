"""g09 · Let a compiler do it: graphs and their guards, your kernel in them, and what was fused

T: tokens   C: model width   P: pages   S: slots a page   G: key and value heads   D: head width
A compiler needs a graph.
Dynamo makes it by running bytecode on tensors without numbers, and guards what it assumed.
One layer in PyTorch's own operations has 45 launches, and g05's by hand 8.
"""

import re
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from layer2_graph.config import Config
from layer2_graph.g01_llama import Layer
from layer2_graph.g04_graph_passes import gated_mlp, norm, turn

__all__ = ["PlainBlock", "energy", "energy_whole", "fusions", "one_graph", "register_norm",
           "register_write"]


# ---- a layer to compile


class PlainBlock(torch.nn.Module):
    """g04's PlainLayer, for compilers: sizes are x.shape[0], since len(x) is a number for ever.

    layer: of g01's Llama, without biases    m: its Config
    """

    def __init__(self, layer: Layer, m: Config) -> None:
        super().__init__()
        self.m = m
        for name in ("attention_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down"):
            weight = getattr(layer, name)
            self.register_buffer(name, weight[0] if isinstance(weight, tuple) else weight)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor,
                hidden: Tensor) -> Tensor:      # (T, C), 2 × (T, D//2), (T, T) -> (T, C)
        """hidden: True where row t must not see column n, which is later."""
        m = self.m
        T = x.shape[0]
        y = norm(x, self.attention_norm, m.eps)
        q, k, v = ((y @ w.T).view(T, -1, m.D) for w in (self.q, self.k, self.v))
        cos, sin = cos[:, None], sin[:, None]                               # (T, 1, D//2)
        q = turn(q, cos, sin) * m.scale
        k = turn(k, cos, sin)
        k, v = (a.repeat_interleave(m.H // m.G, 1) for a in (k, v))         # (T, H, D)
        scores = q.transpose(0, 1) @ k.permute(1, 2, 0)                     # (H, T, T)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        mixed = (weights @ v.transpose(0, 1)).transpose(0, 1).reshape(T, -1)    # (T, H·D)
        return gated_mlp(x + mixed @ self.o.T, self, m.eps)


# ---- graphs, breaks, guards


def energy(x: Tensor, n: Tensor, limit: float) -> Tensor:       # (T, C), () int64 -> (C,)
    """The sum of squares of the first n rows, for each column.
    Before, x is scaled down so that no number of it, in any row, is larger than the limit."""
    if x.abs().max() > limit:
        x = x * (limit / x.abs().max())
    y = x * x
    print("energy of a batch")
    n = n.clamp(0, x.shape[0])
    return y[:int(n.item())].sum(0)


def predict_graphs() -> int:
    """Graphs that torch.compile makes of one call of `energy`."""
    # exercise: where must Dynamo stop, and what is there between two stops?
    return 4


def predict_compilations() -> list[int]:
    """How many graphs have been compiled after each of the calls with T = 3, 5, 7, 1 and 9."""
    # exercise: the second size makes a symbol; which sizes does it stand for?
    return [1, 2, 2, 3, 3]


def energy_whole(x: Tensor, n: Tensor, limit: float) -> Tensor:     # (T, C), () int64 -> (C,)
    """What `energy` returns, in one graph: nothing is printed, and Python learns no value."""
    # exercise: both ways are computed, and torch.where chooses; rows from n on give 0
    largest = x.abs().max()
    x = torch.where(largest > limit, x * (limit / largest), x)
    rows = torch.arange(x.shape[0], device=x.device)[:, None]       # a column of T
    return torch.where(rows < n, x * x, 0).sum(0)


def one_graph(step: Callable, example: Tensor, backend: Callable) -> Callable:
    """step(x (T, C)) compiled, and called once with the example: one graph for all T from 2 on.

    C stays a number in it.
    ValueError for an example of one row: 0 and 1 are never symbols.
    """
    if example.shape[0] < 2:
        raise ValueError(f"one_graph: the example has {example.shape[0]} rows, expected 2 or more")
    # exercise: say which axis is a symbol; compile for this backend; call
    torch._dynamo.mark_dynamic(example, 0)
    compiled = torch.compile(step, backend=backend, fullgraph=True)
    compiled(example)
    return compiled


# ---- your kernel as an operator


def register_norm(name: str, kernel: Callable) -> Callable:
    """The operator `name`: kernel(x (…, C), w (C,), eps) as compilers see it.

    The kernel changes nothing.
    Its result has x's shape and dtype, and new memory, row after row, whatever the strides of x.
    Registering a name again replaces it.
    """
    # exercise: types of arguments and result; the call; a result of that form without numbers
    @torch.library.custom_op(name, mutates_args=())
    def rmsnorm(x: Tensor, w: Tensor, eps: float) -> Tensor:
        return kernel(x, w, eps)

    @rmsnorm.register_fake
    def _(x, w, eps):
        return x.new_empty(x.shape)

    return rmsnorm


def register_write(name: str, kernel: Callable) -> Callable:
    """The operator `name`: kernel(k, v (T, G, D), k_pages, v_pages (P, S, G, D), slots (T,)), which
    writes into the pages, reads the others and returns nothing."""
    # exercise: types, and which arguments it changes. What returns nothing needs no fake
    @torch.library.custom_op(name, mutates_args=("k_pages", "v_pages"))
    def write_kv(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor) -> None:
        kernel(k, v, k_pages, v_pages, slots)

    return write_kv


# ---- what a compiler made


def fusions(text: str) -> dict[str, int]:
    """{kind: count} of the fusions that a run of an XLA module launches.

    text: its optimised HLO.
    ENTRY { … } runs, an instruction a line; other computations are called by those lines.
    A fusion's line has ` fusion(` and later `kind=kLoop` or the like.
    """
    if not re.search(r"^ENTRY ", text, re.M):
        raise ValueError("fusions: no ENTRY in this text; expected XLA's optimised module")
    # exercise: the text from ENTRY to the brace that closes it; then the kinds of its fusions
    entry = re.search(r"^ENTRY .*?^}", text, re.M | re.S)[0]
    return dict(Counter(re.findall(r" fusion\(.*\bkind=(\w+)", entry)))
