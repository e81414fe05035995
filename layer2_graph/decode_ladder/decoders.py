"""Rungs of our own: a model and a way to compute its decode steps, and what a step asks for.

B: sequences of a step   V: vocabulary   a launch: as g01 counts them
"""

import time
from dataclasses import replace
from functools import cache, partial

import torch
from torch import Tensor

from layer1_kernels import kernels
from layer2_graph.decode_ladder.inductor import launches_in
from layer2_graph.g01_llama import PagedCache
from layer2_graph.g06_cuda_graphs import GraphRunner, Tape, asked, first_rows, pad_step
from layer2_graph.traffic import Traffic

ATTENTION = "paged_attention"
# One in each layer, so a layer is what lies between two. The second is PyTorch's own.
ATTENTIONS = (ATTENTION, "_scaled_dot_product_")


class Decoder:
    """A model with a cache of its own, and a way to compute its decode steps."""

    def __init__(self, model, sequences, room):
        self.model = model
        self.cache = PagedCache(model.config, sequences, room, model.embedding.dtype,
                                model.embedding.device)
        self.forward = self.prepare()

    def prepare(self):
        """What decode steps are computed with."""
        return self.model.forward

    def prefill(self, prompts):                         # -> (B, V)
        self.cache.lens = [0] * len(prompts)
        return self.model.forward(self.cache.step(prompts), self.cache)

    @torch.no_grad()
    def __call__(self, prompts, count):
        """(tokens, seconds a token): `count` tokens, greedily; the first, from the prefill, is not
        timed.
        The time is the caller's: it includes making the step and choosing the token."""
        step = [[token] for token in self.prefill(prompts).argmax(-1).tolist()]
        tokens = [list(first) for first in step]
        began = time.perf_counter()
        for _ in range(count - 1):
            logits = self.forward(self.cache.step(step), self.cache)        # (B, V)
            step = [[token] for token in logits.argmax(-1).tolist()]        # waits for the device
            for some, token in zip(tokens, step, strict=True):
                some += token
        return tokens, (time.perf_counter() - began) / (count - 1)

    @torch.no_grad()
    def launches(self, prompts):
        """[CountedLaunch] of one decode step after the prompts."""
        self.prefill(prompts)
        step = self.cache.step([[0]] * len(prompts))
        ops = self.model.ops
        with Traffic() as traffic:
            self.model.ops = traffic.counting(ops)
            self.model.forward(step, self.cache)
        self.model.ops = ops
        return traffic.launches

    def asked(self, launches):
        """How many things the host asks the device for in a step of these launches."""
        return len(launches)


def a_layer(launches):
    """The number of launches from one attention to the next; None if there are not two."""
    attentions = [i for i, launch in enumerate(launches) if launch.name.startswith(ATTENTIONS)]
    first, second = [*attentions, None, None][:2]
    return None if second is None else second - first


# ---- by torch.compile


@cache
def opaque(ops):
    """PyTorch's operations for the compiler to fuse, and two of `ops` that it cannot look into."""
    name = f"three_floors_{ops.paged_attention.__name__}"

    @torch.library.custom_op(f"{name}::rope_and_cache", mutates_args=("q", "k_pages", "v_pages"))
    def rope_and_cache(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, positions: Tensor,
                       k_pages: Tensor, v_pages: Tensor, slots: Tensor) -> None:
        ops.rope_and_cache(q, k, v, cos, sin, positions, k_pages, v_pages, slots)

    @torch.library.custom_op(f"{name}::{ATTENTION}", mutates_args=())
    def paged_attention(q: Tensor, k_pages: Tensor, v_pages: Tensor, block_tables: Tensor,
                        cu_q: Tensor, lens: Tensor, scale: float) -> Tensor:
        return ops.paged_attention(q, k_pages, v_pages, block_tables, cu_q, lens,
                                   scale).contiguous()

    @paged_attention.register_fake
    def _(q, *others):
        return q.new_empty(q.shape)

    return replace(kernels("torch"), rope_and_cache=rope_and_cache, paged_attention=paged_attention)


class Compiled(Decoder):
    """A decode step as torch.compile makes it, in one piece."""

    def prepare(self):
        self.model.ops = opaque(self.model.ops)
        return torch.compile(self.model.forward, fullgraph=True, dynamic=False)

    @torch.no_grad()
    def launches(self, prompts):
        """As read in the code that the compiler wrote.
        Their bytes are not counted."""
        from torch._inductor.utils import run_and_get_code

        self.prefill(prompts)
        step = self.cache.step([[0]] * len(prompts))
        torch.compiler.reset()                          # else there is no code to read
        _, code = run_and_get_code(self.forward, step, self.cache)
        return launches_in(code[-1])


# ---- in a CUDA graph


class Replayed(Decoder):
    """A decode step that is recorded once: in a CUDA graph, and on a CPU on g06's tape."""

    def prepare(self):
        batch = len(self.cache.lens)
        self.runner = GraphRunner(self.model, self.cache, [batch], batch, self.cache.pages)
        self.step = first_rows(self.runner.buffers, batch)      # what the recording reads
        return self.runner.forward

    @torch.no_grad()
    def launches(self, prompts):
        """As a tape records them.
        A CUDA graph does not list them, but records the same calls."""
        self.prefill(prompts)
        pad_step(self.runner.buffers, self.cache.step([[0]] * len(prompts)), len(prompts))
        return recorded(Tape(partial(self.runner.compute, self.step), self.model.ops).calls)

    @torch.no_grad()
    def asked(self, launches):
        """As g06 counts: the step is copied into the buffers, and one replay does the rest."""
        return len(asked(self.runner, self.step))

    def replay(self):
        """The last step again: no Batch is made, and no token is chosen."""
        self.runner.graphs[len(self.cache.lens)].replay()


def recorded(calls):
    """[CountedLaunch] of a tape's calls."""
    traffic = Traffic()
    for call in calls:
        traffic.names.append(call.name)
        traffic.note(call.args, call.result)
    return traffic.launches
