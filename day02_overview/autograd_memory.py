"""A Llama of torch modules in which training can be counted, to check o04's formulas.

Positions are left out: they change no count.
`book` attention keeps the scores, as a textbook writes it; the other kind is PyTorch's fused one,
which keeps one number for each query and head.
"""

import math
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks


class Norm(nn.Module):
    """RMSNorm that keeps its arrays by name."""

    def __init__(self, C, suffix=""):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(C))
        self.suffix = suffix

    def forward(self, x, arrays):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        normed = x * scale
        y = normed * self.weight
        arrays |= {name + self.suffix: a for name, a in
                   zip(("x", "scale", "normed", "y"), (x, scale, normed, y), strict=True)}
        return y


class TorchLayer(nn.Module):
    """One layer of a day01 `LlamaShape`.
    `arrays` holds what the last forward made, by name."""

    def __init__(self, m, book=False):
        super().__init__()
        self.m = m
        self.book = book
        self.arrays = {}
        self.norm, self.norm2 = Norm(m.C), Norm(m.C, "2")
        self.q, self.k, self.v, self.o = (nn.Linear(n, k, bias=False) for n, k in (
            (m.C, m.H * m.D), (m.C, m.G * m.D), (m.C, m.G * m.D), (m.H * m.D, m.C)))
        self.gate, self.up, self.down = (nn.Linear(n, k, bias=False) for n, k in (
            (m.C, m.F), (m.C, m.F), (m.F, m.C)))

    def forward(self, x):                                   # (B, T, C) -> (B, T, C)
        self.arrays = {}
        x = x + self.attention(self.norm(x, self.arrays))
        return x + self.mlp(self.norm2(x, self.arrays))

    def attention(self, y):                                 # (B, T, C) -> (B, T, C)
        B, T, _ = y.shape
        q, k, v = (w(y).view(B, T, -1, self.m.D).transpose(1, 2) for w in (self.q, self.k, self.v))
        self.arrays |= {"q": q, "k": k, "v": v}
        mixed = (self.by_the_book if self.book else self.fused)(q, k, v)    # (B, H, T, D)
        mixed = mixed.transpose(1, 2).reshape(B, T, -1)
        self.arrays["mixed"] = mixed
        return self.o(mixed)

    def fused(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def by_the_book(self, q, k, v):
        """(B, H, T, D), 2 × (B, G, T, D) -> (B, H, T, D); every T × T product is made."""
        B, H, T, D = q.shape
        q = q.reshape(B, -1, H // k.shape[1], T, D)
        scores = q @ k[:, :, None].mT / math.sqrt(D)        # (B, G, H / G, T, T)
        later = torch.ones(T, T, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        self.arrays["scores"] = weights
        return (weights @ v[:, :, None]).reshape(B, H, T, D)

    def mlp(self, y):                                       # (B, T, C) -> (B, T, C)
        gate = self.gate(y)
        up = self.up(y)
        silu = F.silu(gate)
        self.arrays |= {"gate": gate, "up": up, "silu": silu, "hidden": silu * up}
        return self.down(self.arrays["hidden"])


class TorchLlama(nn.Module):
    """Tokens in, the mean loss of the next tokens out."""

    def __init__(self, m, book=False):
        super().__init__()
        self.embedding = nn.Embedding(m.V, m.C)
        self.layers = nn.ModuleList(TorchLayer(m, book) for _ in range(m.L))
        self.norm = Norm(m.C)
        self.head = None if m.tied else nn.Linear(m.C, m.V, bias=False)

    def forward(self, tokens, targets):                     # 2 × (B, T) -> ()
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.loss(x, targets)

    def loss(self, x, targets):                             # (B, T, C), (B, T) -> ()
        y = self.norm(x, {})
        weight = self.embedding.weight if self.head is None else self.head.weight
        return F.cross_entropy((y @ weight.T).flatten(0, 1), targets.flatten())


def place(a):
    """Where an array's numbers lie: views of one storage are one array."""
    return a.untyped_storage().data_ptr()


def counted_kept(layer, x):
    """{array: numbers} that autograd keeps from a forward of the layer, weights left out."""
    saved = {}
    own = {place(weight) for weight in layer.parameters()}

    def pack(a):
        if place(a) not in own:
            saved[place(a)] = a
        return a

    with saved_tensors_hooks(pack, lambda a: a):
        layer(x)
    names = {place(a): name for name, a in layer.arrays.items()}
    numbers = Counter()
    for at, a in saved.items():                              # fused attention keeps one of its own
        name = names.get(at, "copies" if layer.book else "lse")
        numbers[name] += a.untyped_storage().nbytes() // a.itemsize
    return dict(numbers)


class Again(torch.autograd.Function):
    """A layer that keeps only its input, and runs again in backward."""

    @staticmethod
    def forward(ctx, layer, x):
        ctx.layer = layer
        ctx.save_for_backward(x)
        return layer(x)

    @staticmethod
    def backward(ctx, upstream):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.layer(x)
        torch.autograd.backward(y, upstream)
        return None, x.grad


class Live:
    """Arrays that autograd holds now, each counted once, and their peak in numbers."""

    def __init__(self, weights):
        self.own = {place(w) for w in weights}
        self.holders = {}
        self.now = 0
        self.peak = 0

    def hold(self, a):
        return Held(self, a)


class Held:
    """One array for as long as autograd holds it."""

    def __init__(self, live, a):
        self.live, self.a, self.at = live, a, place(a)
        if self.at not in live.own:
            live.holders[self.at] = live.holders.get(self.at, 0) + 1
            if live.holders[self.at] == 1:
                live.now += self.numbers()
            live.peak = max(live.peak, live.now)

    def numbers(self):
        return self.a.untyped_storage().nbytes() // self.a.itemsize

    def __del__(self):
        if self.at not in self.live.own:
            self.live.holders[self.at] -= 1
            if not self.live.holders[self.at]:
                self.live.now -= self.numbers()


def counted_peak(layers, x, recompute):
    """The most numbers that autograd keeps at once in forward and backward of the layers."""
    live = Live([weight for layer in layers for weight in layer.parameters()])
    with saved_tensors_hooks(live.hold, lambda box: box.a):
        x = x.clone().requires_grad_()
        y = x
        for layer in layers:
            y = Again.apply(layer, y) if recompute else layer(y)
            layer.arrays = {}                               # so the names keep nothing alive
        y.sum().backward()
    return live.peak


def counted_flops(model, tokens, targets):
    """FLOPs of the matrix products in one forward and backward, as PyTorch counts them."""
    from torch.utils.flop_counter import FlopCounterMode  # it imports triton, a tenth of a second

    with FlopCounterMode(display=False) as counter:
        model(tokens, targets).backward()
    return counter.get_total_flops()
