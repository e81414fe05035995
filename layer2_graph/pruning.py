"""Drivers of g10: scores of all matrices of a model, masks by a pattern, what is left.

A score is {name of a matrix: (N, K)}: what has the smallest goes first.
A mask is {name: (N, K) bool}: True stays.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from layer2_graph.g01_llama import Llama, PagedCache
from layer2_graph.g07_weight_quantization import is_matrix, with_matrices
from layer2_graph.g10_sparsity import keep_2_4, saliency

Score = dict[str, Tensor]
MLP = ("gate_proj", "up_proj", "down_proj")


# ---- scores


def matrices(model: Llama) -> Score:
    return {name: w for name, w in model.weights.items() if is_matrix(name)}


def by_chance(model: Llama, seed: int = 0) -> Score:
    rng = torch.Generator().manual_seed(seed)
    return {name: torch.rand(w.shape, generator=rng) for name, w in matrices(model).items()}


def by_magnitude(model: Llama) -> Score:
    return {name: w.abs() for name, w in matrices(model).items()}


def by_curvature(model: Llama, hessian_of: dict[str, Tensor]) -> Score:
    """Saliencies, each by its own matrix' error. hessian_of: g07's hessians"""
    return {name: saliency(w, hessian_of[name]) for name, w in matrices(model).items()}


def gradients(model: Llama, tokens: Sequence[int]) -> Score:
    """Of the sum of the losses of a text's tokens, by each matrix."""
    weights = {name: w.detach().clone().requires_grad_(is_matrix(name))
               for name, w in model.weights.items()}
    own = Llama(model.config, weights, model.ops)
    cache = PagedCache(model.config, 1, len(tokens), model.embedding.dtype)
    logits = own.forward(cache.step([list(tokens[:-1])]), cache, every=True)
    loss = cross_entropy(logits, torch.tensor(tokens[1:]), reduction="sum")
    names = list(matrices(model))
    return dict(zip(names, torch.autograd.grad(loss, [weights[n] for n in names]), strict=True))


def fisher(model: Llama, documents: Sequence[Sequence[int]]) -> Score:
    """The mean over texts of a text's gradient squared: an estimate of the second derivative of the
    whole model's loss by each weight, the empirical Fisher information."""
    sums = {name: torch.zeros_like(w) for name, w in matrices(model).items()}
    for tokens in documents:
        for name, gradient in gradients(model, tokens).items():
            sums[name] += gradient.square() / len(documents)
    return sums


def by_fisher(model: Llama, information: Score) -> Score:
    return {name: information[name] * w.square() / 2 for name, w in matrices(model).items()}


# ---- masks


def of_rows(score: Score, share: float) -> Score:
    """Each row loses the same share of its weights."""
    masks = {}
    for name, s in score.items():
        order = s.argsort(dim=-1, stable=True)
        keep = torch.ones_like(s, dtype=torch.bool)
        masks[name] = keep.scatter(-1, order[:, :int(share * s.shape[1])], False)
    return masks


def of_all(score: Score, share: float) -> Score:
    """The smallest of all matrices together."""
    flat = torch.cat([s.flatten() for s in score.values()])
    least = flat.sort().values[int(share * len(flat))]
    return {name: s >= least for name, s in score.items()}


def in_2_4(score: Score) -> Score:
    return {name: keep_2_4(s) for name, s in score.items()}


def in_2_4_down(score: Score) -> Score:
    """The mistake: groups of four down the columns.
    As many zeros, where no instruction wants them.
    """
    return {name: keep_2_4(s.T).T for name, s in score.items()}


def channels(score: Score, share: float) -> Score:
    """Whole neurons of each MLP: a row of gate and up, and a column of down.
    Attention stays."""
    masks = {name: torch.ones_like(s, dtype=torch.bool) for name, s in score.items()}
    for first in [name for name in score if MLP[0] in name]:
        gate, up, down = (first.replace(MLP[0], part) for part in MLP)
        each = score[gate].sum(1) + score[up].sum(1) + score[down].sum(0)      # (F,)
        idle = each.argsort()[:int(share * len(each))]
        masks[gate][idle] = masks[up][idle] = masks[down][:, idle] = False
    return masks


def pruned(model: Llama, masks: Score) -> Llama:
    """The Llama whose matrices have zeros where the masks say so."""
    return with_matrices(model, lambda name, w: w * masks[name])
