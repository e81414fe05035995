"""What fewer bits cost and gain:  python -m layer2_graph.bench.weight_bits quality; … speed

quality: perplexity of the small model on all held-out text, under every scheme of g07.
GPTQ's Hessians come from the text that chose the best step of training, and that neither trains nor
judges.
speed: one row times a matrix on this CPU, ROUNDS times by turns. "k15" is the course's own back
end, torch, which makes all of w in memory first; "PyTorch" stands for PyTorch's kernels for packed
weights, which make it in registers.
They are private to PyTorch, and may disappear.
benchmarks/weight_bits.json has both.
"""

import datetime
import json
import os
import sys
import time
from functools import partial
from statistics import median

import torch

from day01_roofline import take_turns
from lab.course import ROOT
from lab.device import cpu_model
from layer1_kernels import quantize_weight, quantized_matmul_torch
from layer2_graph.checkpoint import Tokenizer
from layer2_graph.g01_llama import load
from layer2_graph.g07_weight_quantization import (
    hessians,
    is_matrix,
    perplexity,
    relative_error,
    schemes,
    with_gptq,
    with_matrices,
    with_zero_point,
)
from layer2_graph.models import SMALL
from layer2_graph.small.corpus import BEGIN, corpus

RECORD = ROOT / "benchmarks" / "weight_bits.json"
SIDE = 8192
GROUP = 128
ROUNDS = 7
CALLS = 3
GPTQ = ("int4, 32", "ternary, 32, least error")


# ---- what is lost


def bits_of(model, scheme):
    """Bits of a weight of the matrices: of the packed codes and the scales."""
    matrices = [w for name, w in model.weights.items() if is_matrix(name)]
    return 8 * sum(map(scheme.nbytes, matrices)) / sum(w.numel() for w in matrices)


def variants(model, hessian_of):
    """(name, bits of a weight, the Llama) of every scheme. hessian_of: hessians"""
    yield "fp16", 16, with_matrices(model, lambda name, w: w.half().float())
    for name, scheme in schemes().items():
        yield name, bits_of(model, scheme), scheme.llama(model)
    yield "int4, 32, zero point", 4 + (16 + 4) / 32, with_matrices(
        model, lambda _, w: with_zero_point(w, 4, 32))
    for name in GPTQ:
        scheme = schemes()[name]
        yield f"{name}, GPTQ", bits_of(model, scheme), with_gptq(model, scheme, hessian_of)


def quality():
    model = load(SMALL, dtype=torch.float32)
    tokenizer = Tokenizer(SMALL, model.config)

    def tokens(texts):
        return [tokenizer.encode(text.removeprefix(BEGIN))[:model.config.room] for text in texts]

    judged = {part: tokens(texts) for part, texts in corpus("held out")._asdict().items()}
    hessian_of = hessians(model, tokens(sum(corpus("dev"), [])))
    rows = {"fp32": row(model, model, 32, judged)}
    for name, bits, other in variants(model, hessian_of):
        rows[name] = row(model, other, bits, judged)
        print(name, rows[name], flush=True)
    return {"schemes": rows, "tokens": {part: sum(len(text) - 1 for text in texts)
                                        for part, texts in judged.items()}}


def row(model, other, bits, judged):
    return {"bits": bits, "error": relative_error(model, other)} | {
        part: perplexity(other, texts) for part, texts in judged.items()}


# ---- what is gained


def ways():
    """{name: (bytes of the weights, a call)}: one row of fp32 or bf16 times a matrix (N, K)."""
    torch.manual_seed(0)
    w, x = torch.randn(SIDE, SIDE), torch.randn(1, SIDE)                # (N, K), (1, K)
    runs = {"fp32, PyTorch": (w.nbytes, partial(torch.matmul, x, w.T))}
    short = w.bfloat16()
    y = x.bfloat16()
    runs["bf16, PyTorch"] = short.nbytes, partial(torch.matmul, y, short.T)
    for bits in (8, 4):
        packed = quantize_weight(w, bits, GROUP)
        runs[f"int{bits}, k15"] = (sum(a.nbytes for a in packed), partial(
            quantized_matmul_torch, x, *packed, bits, GROUP))
    codes, scales = quantize_weight(w, 8, SIDE)                         # a row is a group
    scales = scales[:, 0].bfloat16()
    runs["int8, PyTorch"] = (codes.nbytes + scales.nbytes, partial(
        torch._weight_int8pack_mm, y, codes, scales))
    digits = torch.randint(16, (SIDE, SIDE), dtype=torch.int32)
    packed = torch._convert_weight_to_int4pack_for_cpu(digits, 1)
    pairs = torch.rand(SIDE // GROUP, SIDE, 2).bfloat16()               # scale and zero
    runs["int4, PyTorch"] = (packed.nbytes + pairs.nbytes, partial(
        torch._weight_int4pack_mm_for_cpu, y, packed, GROUP, pairs))
    return runs


def seconds(call):
    """The median time of CALLS calls."""
    taken = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return median(taken)


def speed():
    torch.set_num_threads(1)
    known = ways()
    taken = take_turns({name: partial(seconds, call) for name, (_, call) in known.items()}, ROUNDS)
    return {"shape": [SIDE, SIDE], "group": GROUP, "rounds": ROUNDS, "threads": 1, "ways": {
        name: {"bytes": moved, "seconds": taken[name]} for name, (moved, _) in known.items()}}


def keep(parts, file):
    """Run the part that the command line names, and put its result into a record; -> the exit code.

    parts: {name: function -> dict}. The other parts of the record stay.
    """
    if len(sys.argv) != 2 or sys.argv[1] not in parts:
        print(f"got {' '.join(sys.argv[1:]) or 'nothing'}, expected {' or '.join(parts)}",
              file=sys.stderr)
        return 2
    part = sys.argv[1]
    load_before = os.getloadavg()[0]
    result = parts[part]() | {"date": datetime.date.today().isoformat(), "torch": torch.__version__,
                             "cpu": cpu_model(), "load_before": load_before}
    record = json.loads(file.read_text("utf-8")) if file.exists() else {}
    record[part] = result
    file.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(keep({"quality": quality, "speed": speed}, RECORD))
