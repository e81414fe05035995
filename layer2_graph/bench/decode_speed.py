"""How fast one text grows on a CPU, beside Hugging Face:  python -m layer2_graph.bench.decode_speed

Each arm runs in a process of its own, and the arms take turns, so that a busy machine disturbs all.
An arm reads PROMPT tokens and writes 1 + WARM + STEPS.
The first comes from the prefill, the next WARM are not timed, and the median of the others is its
decode step.
The prefill is timed on answers of one token, the first WARM of which do not count.
The floor of a step is what it must read (the weights, and the keys and values of its context) at
this machine's read rate in the same rounds.
benchmarks/decode.json has the result.
The other side needs transformers.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import median

import torch

from day01_roofline import (
    Job,
    Timing,
    count_bytes,
    count_flops,
    decode_costs,
    read_job,
    take_turns,
    this_device,
)
from day01_roofline import measure as measure_jobs
from lab.course import ROOT, CourseError
from lab.device import cpu_model, library_settings
from lab.measure import targets
from lab.measure.bench import row
from layer1_kernels import kernels
from layer2_graph.bench.decode_card import RECORD, table
from layer2_graph.checkpoint import read_weights
from layer2_graph.config import read_config
from layer2_graph.cpu.kernels import cpu_kernels, one_block
from layer2_graph.cpu.llama import CpuLlama
from layer2_graph.g01_llama import Llama
from layer2_graph.generate import continuation
from layer2_graph.models import SMALL, shape_135m

ROUNDS, PROMPT, WARM, STEPS, PREFILLS = 5, 256, 5, 64, 5
READ = "read"                   # the arm that measures the memory, and no model


@dataclass(frozen=True)
class DecodeTarget:
    """over: the arm whose seconds are divided by those of OURS; READ: the floor's are."""

    title: str
    model: str
    phase: str
    over: str
    limit: float


OURS = "fused"
TARGETS = (
    DecodeTarget("decode, against generate", "135M", "decode", "generate", 2),
    DecodeTarget("decode, against generate with a static cache", "135M", "decode", "static", 2),
    DecodeTarget("decode, share of the floor", "135M", "decode", READ, 0.55),
    DecodeTarget("prefill, against generate", "135M", "prefill", "generate", 1),
    DecodeTarget("decode, against generate", "small", "decode", "generate", 2),
    DecodeTarget("decode, against generate with a static cache", "small", "decode", "static", 2),
    DecodeTarget("prefill, against generate", "small", "prefill", "generate", 1),
)


# ---- one arm, in its own process


def small():
    """(Config, weights) of the model that comes with the course."""
    m = replace(read_config(SMALL), ends=())                # so that it does not stop
    return m, read_weights(SMALL, m, torch.float32)


MODELS = {"135M": shape_135m, "small": small}


def ours(make, m, weights):
    """A function (prompt, count) -> (tokens, the clock at each) of one of our models."""
    model = make(m, weights)

    def run(prompt, count):
        stamped = [(token, time.perf_counter()) for token, _ in continuation(model, prompt, count)]
        return zip(*stamped, strict=True)

    return run


def theirs(options, m, weights):
    """The same of Hugging Face's generate.
    It may write any token, so that it does not stop."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=m.V, hidden_size=m.C, intermediate_size=m.F, num_hidden_layers=m.L,
        num_attention_heads=m.H, num_key_value_heads=m.G, head_dim=m.D, rms_norm_eps=m.eps,
        rope_theta=m.theta, max_position_embeddings=m.room, tie_word_embeddings=m.tied,
        bos_token_id=None, eos_token_id=None, pad_token_id=None)).eval()
    model.load_state_dict(weights, strict=not m.tied)

    class Stamps:
        """A streamer, as generate calls it: it gets the prompt, and then each token."""

        def __init__(self):
            self.tokens = []
            self.seconds = []

        def put(self, tokens):
            self.tokens.append(tokens.flatten()[-1].item())
            self.seconds.append(time.perf_counter())

        def end(self):
            pass

    def run(prompt, count):
        stamps = Stamps()
        model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False,
                       streamer=stamps, **options)
        return stamps.tokens[1:], stamps.seconds[1:]

    return run


ARMS = {
    "torch": partial(ours, lambda m, weights: Llama(m, weights, kernels("torch"))),
    "host": partial(ours, lambda m, weights: one_block(Llama(m, weights, cpu_kernels()))),
    "fused": partial(ours, lambda m, weights: one_block(CpuLlama(m, weights, cpu_kernels()))),
    "generate": partial(theirs, {}),
    "static": partial(theirs, {"cache_implementation": "static", "disable_compile": True}),
}


def measure(arm, model):
    """{"prefill": seconds, "decode": seconds of a step, "tokens": [int]} of an arm; of READ the
    rate of the memory, in byte/s."""
    if arm == READ:
        device = this_device()
        job = read_job(device)
        return {"rate": job.moved / measure_jobs([job], device)[job.name].seconds}
    m, weights = MODELS[model]()
    run = ARMS[arm](m, weights)
    prompt = torch.randint(m.V, (PROMPT,), generator=torch.Generator().manual_seed(1)).tolist()
    prefills = []
    for _ in range(WARM + PREFILLS):
        began = time.perf_counter()
        _, (ended,) = run(prompt, 1)
        prefills.append(ended - began)
    tokens, stamps = run(prompt, 1 + WARM + STEPS)
    steps = [after - before for before, after in pairwise(stamps)]
    return {"prefill": median(prefills[WARM:]), "decode": median(steps[WARM:]),
            "tokens": list(tokens)}


# ---- all arms, by turns


def in_process(arm, model):
    """What `measure` says in a process of its own.
    CourseError with its last line if it fails."""
    done = subprocess.run([sys.executable, "-m", __spec__.name, "--arm", arm, "--model", model],
                          cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise CourseError(f"{arm}, {model}: {reason}")
    print(f"{model}, {arm}: {done.stdout.strip()[:100]}", file=sys.stderr)
    return json.loads(done.stdout)


def floor_bytes(model):
    """Bytes that the decode step in the middle of those timed must read."""
    m, _ = MODELS[model]()
    _, weights, each = decode_costs(m, PROMPT + 1 + WARM + STEPS // 2, 4)
    return weights + each


def judge(target, rounds, moved):
    """A row of the record. rounds: {arm: [measure()'s answer, a round each]}; moved: floor_bytes"""
    own = [answer[target.phase] for answer in rounds[OURS]]
    if target.over == READ:
        other = [moved / answer["rate"] for answer in rounds[READ]]
    else:
        other = [answer[target.phase] for answer in rounds[target.over]]
    ratios = [theirs / seconds for theirs, seconds in zip(other, own, strict=True)]
    return asdict(target) | targets.judged(ratios, target.limit)


def agreement(tokens, others):
    """The number of equal tokens of two texts before the first difference."""
    return next((i for i, (a, b) in enumerate(zip(tokens, others, strict=True)) if a != b),
                len(tokens))


def measure_all():
    """Measure all by turns; -> the record."""
    record = {
        "date": datetime.date.today().isoformat(), "rounds": ROUNDS, "prompt": PROMPT,
        "written": 1 + WARM + STEPS, "timed": STEPS, "ours": OURS,
        "machine": {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)),
                    "threads": torch.get_num_threads(), "load_before": os.getloadavg()[0],
                    "settings": library_settings()},
        "versions": {name: importlib.metadata.version(name)
                     for name in ("torch", "numpy", "transformers")},
        "models": {}, "targets": []}
    for model in MODELS:
        rounds = take_turns({arm: partial(in_process, arm, model) for arm in (READ, *ARMS)}, ROUNDS)
        moved = floor_bytes(model)
        first = rounds[OURS][0]["tokens"]
        record["models"][model] = {
            "floor_bytes": moved, "rates": [answer["rate"] for answer in rounds[READ]],
            "arms": {arm: {
                "prefill": [answer["prefill"] for answer in rounds[arm]],
                "decode": [answer["decode"] for answer in rounds[arm]],
                "same_tokens": agreement(first, rounds[arm][0]["tokens"])} for arm in ARMS}}
        record["targets"] += [judge(target, rounds, moved) for target in TARGETS
                              if target.model == model]
    return record


def rows(record):
    """The record as rows of lab.measure.bench: of each model, arm and phase."""
    result = {}
    for name, measured in record["models"].items():
        m, _ = MODELS[name]()
        arms = {arm: {phase: Timing.of(seconds[phase]) for phase in ("prefill", "decode")}
                for arm, seconds in measured["arms"].items()}
        flops, _, _ = decode_costs(m, PROMPT + 1 + WARM + STEPS // 2, 4)
        prompt = sum(count_flops(m, 1, PROMPT, PROMPT).values())
        read = sum(sum(moved) for moved in count_bytes(m, 1, PROMPT, PROMPT, 4).values())
        phases = {"prefill": (Job("prefill", None, prompt, read), {}),
                  "decode": (Job("decode", None, flops, measured["floor_bytes"]),
                             {"read": median(measured["rates"])})}
        for phase, (job, roofs) in phases.items():
            against = {arm: arms[arm][phase] for arm in ("generate", "static")}
            result |= {f"{name}, {phase}: {arm}": row(job, timings[phase], roofs, against)
                      for arm, timings in arms.items()}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arm", choices=(READ, *ARMS), help="measure this one alone")
    parser.add_argument("--model", choices=MODELS, default="135M")
    args = parser.parse_args()
    if args.arm:
        print(json.dumps(measure(args.arm, args.model)))
        return 0
    try:
        record = measure_all()
    except (CourseError, importlib.metadata.PackageNotFoundError) as problem:
        print(problem, file=sys.stderr)
        return 1
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(table(record))
    return 0


if __name__ == "__main__":
    sys.exit(main())
