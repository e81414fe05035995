"""Ladder, targets and measurements of g05_fused_llama: see lab/measure/bench.py."""

import torch

from layer2_graph.g01_llama import Llama


def bench_cpu():
    """Without a GPU: a prompt and decode steps on this CPU, by this lesson's model on the table of
    cpu/kernels.py and by Hugging Face, fp32, in turns; rows of lab.measure.bench.
    It takes minutes and needs transformers."""
    from layer2_graph.bench.decode_speed import measure_all, rows

    return rows(measure_all())


# The time that a user waits: making the Batch and reading the token are in it.
H200_TARGETS = {"fused, CUDA graph": {"share_of_copy": 0.65, "times_hf": 8,
                                      "times_hf_compiled": 1.0}}


def bench(m=None, N=256, count=33, rounds=12, device="cuda"):
    """On a GPU: a decode step by each rung and by Hugging Face, in turns; lab.measure.bench rows.

    m: a Config, of Llama-3.2-1B if None; random weights in bfloat16, one sequence.
    N, count: tokens before and in the timed part, whose first is not timed.
    A time is what a user waits, by the host's clock: it includes making the Batch and reading the
    chosen token back.
    The row of the replay alone has neither, and is timed by the GPU's clock.
    Bytes are the floor's: weights, and the cache once.
    So the shares of copy and read are shares of the floor.
    A rung whose tokens are wrong has no row.
    """
    from day01_roofline import LLAMAS, Job, Timing
    from lab.measure.bench import row
    from layer1_kernels import kernels
    from layer2_graph.checkpoint import shapes
    from layer2_graph.config import Config
    from layer2_graph.decode_ladder import comparison

    shape = LLAMAS["Llama-3.2-1B"]
    m = m or Config(**{letter: getattr(shape, letter) for letter in "LCHGDFV"}, eps=1e-5, theta=5e5,
                    room=2048, tied=shape.tied)
    weights = {name: (0.02 * torch.randn(size, device=device)).bfloat16()
               for name, size in shapes(m)}
    model = Llama(m, weights, kernels("triton"))
    theirs = comparison.their_config(m)
    facts, rows, _ = comparison.measure(model, theirs, 1, N, count, rounds)
    timings = {r.name: Timing(r.seconds, r.spread, r.uncertainty, r.runs) for r in rows
               if r.seconds}
    against = {key: timings[name] for key, name in (
        ("eager", "g01, op by op"), ("hf", "Hugging Face"),
        ("hf_compiled", "Hugging Face, static, compiled")) if name in timings}
    job = Job("a step", None, 2 * sum(w.numel() for w in weights.values()), facts["floor"])
    roofs = {name: facts[name] for name in ("copy", "read")}
    return {name: row(job, timing, roofs, against) for name, timing in timings.items()}
