"""What ranks sent, counted, beside what the lessons derive, into benchmarks/collective_bytes.json.

    python -m layer3_system.bench.counted_bytes

Bytes of all ranks together.
Messages are counted as they are sent; a collective of the library is counted by the sizes that it
was called with, as a ring would send them (lab/remote/traffic.py).
"""

import json
import sys
from collections.abc import Iterator
from typing import Any

import torch

from lab import course
from lab.course import ROOT
from lab.judge.isolate import running
from layer1_kernels import kernels
from layer2_graph import route
from layer3_system.context import zigzag
from layer3_system.s23_pipeline_parallel import gpipe, one_forward_one_backward

RECORD = ROOT / "benchmarks" / "collective_bytes.json"
TESTING = "layer3_system.testing"
Counted = tuple[str, int, int, int]         # what was done, ranks, bytes counted, bytes derived


def collectives(subject: Any) -> Iterator[Counted]:
    """s20: 1,200 numbers of 4 bytes."""
    size = 4 * 1200
    x = torch.ones(1200)
    for n in (2, 3, 4):
        run = subject.ranks("all_reduce", [(x.clone(),) for _ in range(n)])
        yield "all-reduce, ring", n, int(run.matrix().sum()), 2 * (n - 1) * size
        run = subject.ranks("broadcast_tree", [(x.clone(), 0) for _ in range(n)])
        yield "broadcast, tree", n, int(run.matrix().sum()), (n - 1) * size
        pieces = [x.clone() for _ in range(n)]
        run = subject.ranks("all_to_all", [(pieces, pieces) for _ in range(n)])
        yield "all-to-all", n, int(run.matrix().sum()), n * (n - 1) * size


def data(subject: Any) -> Iterator[Counted]:
    """s21: three steps of a Llama of 90,496 parameters, of which 16,512 stay gathered in stage 3;
    from stage 1 on the ranks add one number for the gradients' norm."""
    P = 90_496
    for n in (2, 4):
        for stage, numbers in enumerate((2 * P, 2 * P + 2, 2 * P + 2, 3 * P - 16_512 + 2)):
            run = subject.ranks(f"{TESTING}.training_driver:train_llama",
                                [(stage, [5, 9, 2, 7, 3, 6])] * n)
            counted = int(run.during("step").matrix().sum())
            yield f"3 steps, ZeRO stage {stage}", n, counted, 3 * (n - 1) * 4 * numbers


def tensors(subject: Any) -> Iterator[Counted]:
    """s22: the small Llama reads 12 tokens and then writes 4 times 4."""
    C, L, V = 192, 4, 2048
    prompts = [[5, 7, 300], [9], [1000, 3, 4, 1500, 2, 8], [44, 2047]]
    tokens = sum(map(len, prompts)) + 3 * len(prompts)
    run = subject.ranks(f"{TESTING}.tensor_driver:write_tokens", [("small", prompts, 4)] * 2)
    sums = 2 * (2 * L + 1) * tokens * C
    yield "4 tokens for 4 prompts", 2, int(run.during("forward").matrix().sum()), \
        4 * (sums + 4 * len(prompts) * V)


def stages(subject: Any) -> Iterator[Counted]:
    """s23: a step of sequences of 28 tokens in all, 64 numbers a token."""
    sizes = [3, 5, 4, 2, 6, 3, 1, 4]
    for name, schedule in (("GPipe", gpipe), ("1F1B", one_forward_one_backward)):
        for p in (2, 4):
            run = subject.ranks(f"{TESTING}.pipeline_llama:train_llama",
                                [(schedule(i, p, len(sizes)), sizes) for i in range(p)])
            yield f"a step, {name}", p, int(run.matrix().sum()), 2 * (p - 1) * sum(sizes) * 64 * 4


def experts(subject: Any) -> Iterator[Counted]:
    """s24: rows of 24 numbers of 8 bytes, which go and come back; counts of 8 bytes go before."""
    C, F, E, k = 24, 20, 12, 3
    torch.manual_seed(0)
    router, gate_up, down = (torch.randn(shape, dtype=torch.float64) / 5
                             for shape in ((E, C), (E, 2 * F, C), (E, C, F)))
    for tokens in ([5, 0], [5, 0, 17], [5, 0, 17, 9]):
        n = len(tokens)
        xs = [torch.randn(count, C, dtype=torch.float64) for count in tokens]
        run = subject.ranks(f"{TESTING}.expert_ranks:by_experts",
                            [(x, router, gate_up, down, k, torch.ones_like(x)) for x in xs])
        travel = 0                      # rows whose expert is another rank's
        for rank, x in enumerate(xs):
            choices = route(x, router, k, kernels("torch"))[1]
            travel += int((choices // (E // n) != rank).sum())
        yield f"a layer, tokens {tokens}", n, int(run.during("forward").matrix().sum()), \
            8 * (2 * travel * C + n * (n - 1) * E // n)


def contexts(subject: Any) -> Iterator[Counted]:
    """s25: 56 tokens, 8 query and 4 kv heads of 16 numbers of 8 bytes."""
    N, H, G, D = 56, 8, 4, 16
    q, k, v = (torch.randn(N, heads, D, dtype=torch.float64) for heads in (H, G, G))
    for W in (2, 4):
        ways = {"ring": (zigzag(N, W), 2 * G * N * (W - 1)),
                "ulysses": (torch.arange(N).view(W, -1), 2 * (H + G) * N * (W - 1) // W)}
        for name, (cut, numbers) in ways.items():
            run = subject.ranks(f"{TESTING}.context_ranks:{name}_cases",
                                [([(q[p], k[p], v[p])], D ** -0.5) for p in cut])
            yield f"attention, {name}", W, int(run.matrix().sum()), 8 * D * numbers


PARTS = {"s20_collectives": collectives, "s21_data_parallel": data, "s22_tensor_parallel": tensors,
         "s23_pipeline_parallel": stages, "s24_expert_parallel": experts,
         "s25_context_parallel": contexts}


def main() -> int:
    """1 where a count is not what was derived."""
    rows = []
    for name, part in PARTS.items():
        lesson = course.find(name)
        with running(lesson, lesson.sources) as subject:
            for what, ranks, counted, derived in part(subject):
                rows.append({"lesson": name, "what": what, "ranks": ranks, "counted": counted,
                             "derived": derived})
                print(f"{name:22} {what:32} {ranks} ranks {counted:11,} counted {derived:11,} "
                      f"derived", flush=True)
    wrong = sum(row["counted"] != row["derived"] for row in rows)
    RECORD.write_text(json.dumps({"torch": torch.__version__, "differences": wrong, "rows": rows},
                                 indent=1) + "\n")
    print(f"{len(rows)} rows, {wrong} differences")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
