"""Ladder, targets and measurements of g06_cuda_graphs: see lab/measure/bench.py."""

from functools import partial

import torch

from layer2_graph.g01_llama import Llama, PagedCache
from layer2_graph.g06_cuda_graphs import Forked, GraphRunner


def bench(shape="Llama-3.2-1B", batches=(1, 16), N=256, device="cuda"):
    """On a GPU: a bf16 decode step of a Llama of this shape, eager, from a graph, and from one with
    q, k and v side by side; lab.measure.bench rows.
    Random weights; the N-th token of each.

    shape: of day01_roofline's LLAMAS
    """
    from day01_roofline import LLAMAS, decode_costs, measure_side_by_side
    from layer1_kernels import kernels
    from layer2_graph.checkpoint import shapes
    from layer2_graph.config import Config

    m = LLAMAS[shape]
    config = Config(L=m.L, C=m.C, H=m.H, G=m.G, D=m.D, F=m.F, V=m.V, eps=1e-5, theta=5e5, room=N,
                    tied=m.tied)
    weights = {name: torch.randn(size, device=device, dtype=torch.bfloat16) / size[-1] ** 0.5
               for name, size in shapes(config)}
    models = [kind(config, weights, kernels("triton")) for kind in (Llama, Forked)]
    (flops, once, each), families = decode_costs(m, N, 2), {}
    for B in batches:
        cache = PagedCache(config, B, N, torch.bfloat16, device)
        models[0].forward(cache.step([[1] * (N - 1)] * B), cache)
        step = cache.step([[1]] * B)
        ways = [models[0], *(GraphRunner(model, cache, [B], B, cache.pages) for model in models)]
        families[f"decode, B = {B}"] = (B * flops, once + B * each, {
            name: partial(way.forward, step, cache)
            for name, way in zip(("eager", "graph", "forked graph"), ways, strict=True)})
    return measure_side_by_side(families)
