"""Which tokens a query sees: a text is read at once, with a mask that a rule makes in each layer.

N: tokens    S: slots of a page    P: pages    H, G, D: heads, kv heads, their width
A rule is visible(q (N, H, D), k (N, G, D), scale) -> (N, N) bool: row t is what query t sees, and
it is what a decode step at t would see.
Reading at once only saves the steps.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from layer1_kernels import Kernels
from layer2_graph.g01_llama import Batch, Llama, PagedCache
from layer2_graph.g10_sparsity import chosen_table, page_bound

S = 16          # slots of a page, as in g01
Rule = Callable[[Tensor, Tensor, float], Tensor]


def scores_of(q: Tensor, k: Tensor, scale: float) -> Tensor:    # (N, H, D), (N, G, D) -> (H, N, N)
    keys = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = torch.einsum("thd,nhd->htn", q, keys) * scale
    return scores.masked_fill(~causal(len(q)), -torch.inf)


def causal(N: int) -> Tensor:
    return torch.ones(N, N, dtype=torch.bool).tril()


class MaskedCache(PagedCache):
    """A cache of one sequence, whose only step reads a whole text by a rule."""

    def __init__(self, config, N: int, visible: Rule):
        super().__init__(config, 1, N)
        self.visible = visible
        self.views: list[Tensor] = []        # (N,) tokens that each query saw, of each layer
        self.mass: list[Tensor] = []        # (N,) share of the plain softmax on those

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch, ops: Kernels,
               scale: float) -> Tensor:             # (N, H, D), 2 × (N, G, D) -> (N, H, D)
        scores = scores_of(q, k, scale)                             # (H, N, N)
        mask = self.visible(q, k, scale)
        self.views.append(mask.sum(1))
        self.mass.append((scores.softmax(-1) * mask).sum(-1).mean(0))
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        values = v.repeat_interleave(q.shape[1] // v.shape[1], 1)
        return torch.einsum("htn,nhd->thd", weights, values)


@torch.no_grad()
def judge(model: Llama, documents: Sequence[Sequence[int]], visible: Rule,
          begin: int = 0) -> dict[str, Any]:
    """perplexity, tokens that a query sees and share of its softmax on them, from token `begin`
    on, on average; the last two over layers and heads, too. by_document: perplexity of each."""
    losses = []
    views = []
    mass = []
    for tokens in documents:
        cache = MaskedCache(model.config, len(tokens), visible)
        logits = model.forward(cache.step([list(tokens)]), cache, every=True)
        follow = torch.tensor(tokens[begin + 1:])
        losses.append(cross_entropy(logits[begin:-1], follow, reduction="none"))
        views.append(torch.stack(cache.views)[:, begin:].double().flatten())
        mass.append(torch.stack(cache.mass)[:, begin:].flatten())
    return {"perplexity": float(torch.cat(losses).mean().exp()),
            "by_document": [float(loss.mean().exp()) for loss in losses],
            "seen": float(torch.cat(views).mean()), "mass": float(torch.cat(mass).mean())}


# ---- rules


def every(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return causal(len(q))


def by_bound(q: Tensor, k: Tensor, scale: float) -> Tensor:     # -> (N, P, H)
    """The bound of every full page, for each query; a last page that is part empty has zeros."""
    full = k[:len(k) // S * S].unflatten(0, (-1, S))                # (P, S, G, D)
    low = full.amin(1)
    high = full.amax(1)
    return padded(torch.stack([page_bound(row, low, high) for row in q]), len(k))


def by_mean_key(q: Tensor, k: Tensor, scale: float) -> Tensor:  # -> (N, P, H)
    """The score of the mean of a page's keys."""
    full = k[:len(k) // S * S].unflatten(0, (-1, S)).mean(1)        # (P, G, D)
    full = full.repeat_interleave(q.shape[1] // k.shape[1], 1)      # (P, H, D)
    return padded(torch.einsum("thd,phd->tph", q, full), len(k))


def by_mass(q: Tensor, k: Tensor, scale: float) -> Tensor:      # -> (N, P, 1)
    """What the softmax gives to a page, all heads together: the best choice, known too late."""
    mass = scores_of(q, k, scale).softmax(-1).sum(0)                # (N, N)
    mass = torch.nn.functional.pad(mass, (0, -len(k) % S))
    return mass.unflatten(1, (-1, S)).sum(-1)[..., None]


def by_age(q: Tensor, k: Tensor, scale: float) -> Tensor:       # -> (N, P, 1)
    """The first page, then the newest."""
    order = torch.arange(-(-len(k) // S)).double()
    order[0] = torch.inf
    return order.expand(len(q), -1)[..., None]


def padded(bounds, N):                              # (N, full pages, H) -> (N, P, H)
    return torch.nn.functional.pad(bounds, (0, 0, 0, -(-N // S) - bounds.shape[1]))


def pages(bounds_of: Callable, budget: int) -> Rule:
    """Each query sees the pages that chosen_table takes by bounds_of(q, k, scale) (N, P, H)."""
    def visible(q, k, scale):
        bounds = bounds_of(q, k, scale)
        mask = torch.zeros(len(q), bounds.shape[1], dtype=torch.bool)       # (N, P)
        for t, row in enumerate(bounds):
            P = t // S + 1
            chosen, _ = chosen_table(row[:P], torch.arange(P), t + 1, S, budget)
            mask[t, chosen] = True
        return mask.repeat_interleave(S, 1)[:, :len(k)] & causal(len(k))

    return visible


def evict(mass: Tensor, heavy: int, recent: int) -> Tensor:     # (n,) -> (at most heavy + recent,)
    """Which of n tokens stay, in order: the `recent` last ones, and of the others the `heavy` ones
    with the largest sums of weights that queries so far gave them.
    Source: Zhang and others, "H2O",
    2023."""
    n = len(mass)
    old = mass[:max(n - recent, 0)].argsort(descending=True, stable=True)[:heavy].sort().values
    return torch.cat((old, torch.arange(max(n - recent, 0), n)))


def heavy_hitters(heavy: int, recent: int) -> Rule:
    """Each query sees what `evict` has left; what is gone stays gone."""
    def visible(q, k, scale):
        scores = scores_of(q, k, scale)                             # (H, N, N)
        mask = torch.zeros(len(q), len(k), dtype=torch.bool)
        stay = torch.arange(0)
        mass = torch.zeros(len(k))
        for t in range(len(q)):
            stay = torch.cat((stay, torch.tensor([t])))
            mask[t, stay] = True
            mass[stay] += scores[:, t, stay].softmax(-1).mean(0)
            stay = stay[evict(mass[stay], heavy, recent)]
        return mask

    return visible


def blocks(budget: int) -> Rule:
    """Prefill in blocks of S queries: each block of queries sees its own block of keys, the first,
    and those whose mean key has the largest score with its mean query, `budget` at most."""
    def visible(q, k, scale):
        ends = range(0, len(q), S)
        means = torch.stack([by_mean_key(q[a:a + S].mean(0, keepdim=True), k, scale)[0]
                             for a in ends])                        # (P, P, H)
        mask = torch.zeros(len(means), len(means), dtype=torch.bool)
        for b, row in enumerate(means):
            row[0] = torch.inf
            near = torch.arange(b + 1)
            chosen, _ = chosen_table(row[:b + 1], near, S * (b + 1), S, budget)
            mask[b, chosen] = True
        mask = mask.repeat_interleave(S, 0).repeat_interleave(S, 1)
        return mask[:len(q), :len(k)] & causal(len(k))

    return visible


PAGES = {"by bound": by_bound, "by mean key": by_mean_key, "first and newest": by_age,
         "best possible": by_mass}


def rules(budget: int) -> dict[str, Rule]:
    """Every rule with room for `budget` pages of tokens."""
    half = budget * S // 2
    return {name: pages(bounds, budget) for name, bounds in PAGES.items()} | {
        "evicted": heavy_hitters(half, half - 1), "prefill by blocks": blocks(budget)}
