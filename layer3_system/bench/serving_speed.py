"""Tokens a second of many requests on a CPU, beside Hugging Face:
python -m layer3_system.bench.serving_speed

Each arm runs in a process of its own, and the arms take turns, so that a busy machine disturbs all.
Equal: B requests at once, PROMPT tokens each, WRITTEN to write.
Mixed: TRACE requests of mixed lengths, all there at the start, at most SEATS at a time; Hugging
Face takes them in padded batches of SEATS, in order of arrival.
A rate counts the tokens that requests asked for, over the wall time of everything, prompts
included. benchmarks/serving.json has the result, and the README its tables.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import torch

from day01_roofline import take_turns
from lab.course import ROOT, CourseError
from lab.device import cpu_model, library_settings
from lab.measure import targets
from layer2_graph import CpuLlama, cpu_kernels, tile
from layer2_graph.bench.decode_speed import MODELS
from layer2_graph.decode_ladder.comparison import their_config
from layer3_system.s01_request import SamplingParams
from layer3_system.s02_block_pool import BlockPool
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.s06_prefix_cache import PrefixPool
from layer3_system.s07_engine import Engine
from layer3_system.testing.mock_llama import ByteTokenizer

RECORD = Path(ROOT) / "benchmarks" / "serving.json"
ROUNDS, PROMPT, WRITTEN, SEATS, TRACE, BUDGET = 5, 32, 64, 8, 32, 512

# title, model, what is measured, the arms of the ratio, least figure
TARGETS = (
    ("8 at once, against one", "small", ("ours 8", "ours 1"), 5),
    ("8 at once, tokens/s", "135M", ("ours 8", None), 130),
    ("32 at once, tokens/s", "135M", ("ours 32", None), 270),
    ("8 at once, against generate", "135M", ("ours 8", "generate 8"), 130 / 97),
    ("32 at once, against generate", "135M", ("ours 32", "generate 32"), 270 / 240),
    ("mixed lengths, against padded static batches", "135M", ("ours mixed", "generate mixed"), 2),
    ("mixed lengths, against generate_batch", "135M", ("ours mixed", "generate_batch mixed"), 3),
    ("a prefix cache without a hit, against none", "135M", ("ours mixed", "no cache mixed"), 0.99),
)
OWN_SHARE = 0.10        # of a step with 32 sequences of the 135M shape: the engine's own Python


# ---- the load


def jobs(load, V):
    """[(prompt, tokens to write)] of a load: a number of equal requests, or "mixed"."""
    rng = torch.Generator().manual_seed(1)
    if load == "mixed":
        lengths = torch.exp(torch.randn(TRACE, 2, generator=rng) * 0.8
                            + torch.tensor([4.0, 3.6])).clamp(4, 384).int().tolist()
    else:
        lengths = [(PROMPT, WRITTEN)] * int(load)
    return [(torch.randint(V, (n,), generator=rng).tolist(), count) for n, count in lengths]


def mixed(jobs_of):
    return len({(len(prompt), count) for prompt, count in jobs_of}) > 1


# ---- the arms, each in its own process


def ours(pool, m, weights, batch):
    """(tokens/s, share of the time outside of model and sampler, [[token]])"""
    model = tile(CpuLlama(m, weights, cpu_kernels()))
    pages = pool(2048)
    engine = Engine(model, ByteTokenizer(), pages,
                    Scheduler(pages, SEATS if mixed(batch) else len(batch), BUDGET))
    inside = 0.0

    def timed(function):
        def call(*args, **others):
            nonlocal inside
            began = time.perf_counter()
            result = function(*args, **others)
            inside += time.perf_counter() - began
            return result
        return call

    for array in (engine.pages.k, engine.pages.v):
        array.zero_()           # the first touch is slow; a server that runs has touched all pages
    model.forward, engine.sample = timed(model.forward), timed(engine.sample)
    began = time.perf_counter()
    requests = [engine.submit(prompt, SamplingParams(count, temperature=0, ignore_eos=True))[0]
                for prompt, count in batch]
    while engine.busy:
        engine.step()
    seconds = time.perf_counter() - began
    return (sum(count for _, count in batch) / seconds, 1 - inside / seconds,
            [r.output for r in requests])


def hugging_face(m, weights):
    """transformers' model, which may write any token: no token ends a text."""
    from transformers import LlamaForCausalLM

    config = their_config(m)
    config.bos_token_id = None
    config.eos_token_id = None
    config.pad_token_id = 0
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(weights, strict=not m.tied)
    return model


def generate(m, weights, requests):
    """Batches of at most SEATS, or one batch if all are equal; padded on the left, as long as the
    longest answer of a batch."""
    model = hugging_face(m, weights)
    size = SEATS if mixed(requests) else len(requests)
    texts = []
    began = time.perf_counter()
    for first in range(0, len(requests), size):
        batch = requests[first:first + size]
        longest = max(len(prompt) for prompt, _ in batch)
        rows = torch.tensor([[0] * (longest - len(p)) + p for p, _ in batch])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p, _ in batch])
        tokens = model.generate(rows, attention_mask=mask, do_sample=False,
                               max_new_tokens=max(count for _, count in batch))
        texts += [row[longest:longest + count].tolist()
                  for row, (_, count) in zip(tokens, batch, strict=True)]
    return sum(count for _, count in requests) / (time.perf_counter() - began), None, texts


def generate_batch(m, weights, requests):
    """Hugging Face's own continuous batching, where each request may have its own length.
    Its cache holds all requests at once; by itself it would take its share of all memory of the
    machine."""
    from transformers import ContinuousBatchingConfig, GenerationConfig
    from transformers.generation.continuous_batching.utils import WorkloadHints

    model = hugging_face(m, weights)
    most = max(count for _, count in requests)
    config = GenerationConfig(do_sample=False, max_new_tokens=most, eos_token_id=-1,
                              pad_token_id=0)
    hints = WorkloadHints(max_prompt_length=max(len(prompt) for prompt, _ in requests),
                          max_generated_length=most, num_requests=len(requests))
    sizes = ContinuousBatchingConfig(max_batch_tokens=BUDGET)
    sizes.num_blocks = sum(-(-(len(prompt) + count) // sizes.page_size)
                           for prompt, count in requests)
    began = time.perf_counter()
    texts = {}
    with model.continuous_batching_context_manager(
            generation_config=config, continuous_batching_config=sizes,
            workload_hints=hints) as manager:
        for i, (prompt, count) in enumerate(requests):
            manager.add_request(prompt, str(i), max_new_tokens=count)
        while len(texts) < len(requests) and manager.is_running():
            result = manager.get_result(timeout=1)
            if result and result.is_finished():
                texts[int(result.request_id)] = list(result.generated_tokens)
        seconds = time.perf_counter() - began
    return (sum(len(text) for text in texts.values()) / seconds, None,
            [texts[i] for i in range(len(requests))])


ARMS = {"ours": partial(ours, PrefixPool), "no cache": partial(ours, BlockPool),
        "generate": generate, "generate_batch": generate_batch}
RUNS = {"small": ("ours 1", "ours 8"),
        "135M": ("ours 1", "ours 8", "ours 32", "generate 1", "generate 8", "generate 32",
                 "ours mixed", "no cache mixed", "generate mixed", "generate_batch mixed")}


def measure(run, model):
    """{"rate": tokens/s, "own": share of the engine, "tokens": of the first request} of a run."""
    arm, load = run.rsplit(" ", 1)
    m, weights = MODELS[model]()
    requests = jobs(load, m.V)
    ARMS[arm](m, weights, [(prompt, 2) for prompt, _ in requests])         # warm up
    rate, own, texts = ARMS[arm](m, weights, requests)
    return {"rate": rate, "own": own, "tokens": texts}


# ---- all runs, by turns


def in_process(run, model):
    """The answer of `measure` in a process of its own.
    CourseError with its last line if it fails."""
    done = subprocess.run([sys.executable, "-m", __spec__.name, "--run", run, "--model", model],
                          cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip() or "no reason given").splitlines()[-1]
        raise CourseError(f"{run}, {model}: {reason}")
    answer = json.loads(done.stdout.splitlines()[-1])
    print(f"{model}, {run}: {answer['rate']:.1f} tokens/s", file=sys.stderr)
    return answer


def judge(target, rounds):
    """A row of the record. rounds: {run: [measure()'s answer, a round each]}"""
    title, model, (own, other), limit = target
    rates = [answer["rate"] for answer in rounds[own]]
    figures = rates if other is None else [
        a / b["rate"] for a, b in zip(rates, rounds[other], strict=True)]
    return {"title": title, "model": model} | targets.judged(figures, limit)


def measure_all(rounds):
    record = {
        "date": datetime.date.today().isoformat(), "rounds": rounds, "prompt": PROMPT,
        "written": WRITTEN, "trace": TRACE, "seats": SEATS, "budget": BUDGET,
        "machine": {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)),
                    "threads": torch.get_num_threads(), "load_before": os.getloadavg()[0],
                    "settings": library_settings()},
        "versions": {name: importlib.metadata.version(name)
                     for name in ("torch", "numpy", "transformers")},
        "models": {}, "targets": []}
    for model, runs in RUNS.items():
        answers = take_turns({run: partial(in_process, run, model) for run in runs}, rounds)
        first = {run.rsplit(" ", 1)[1]: run for run in reversed(runs)}      # ours, of each load
        record["models"][model] = {run: {
            "rate": [answer["rate"] for answer in answers[run]],
            "own": [answer["own"] for answer in answers[run]],
            "same_texts": sum(a == b for a, b in zip(
                answers[run][0]["tokens"], answers[first[run.rsplit(" ", 1)[1]]][0]["tokens"],
                strict=True))} for run in runs}
        record["targets"] += [judge(t, answers) for t in TARGETS if t[1] == model]
    shares = record["models"]["135M"]["ours 32"]["own"]
    record["targets"].append({
        "title": "the engine's own share of a step, 32 at once", "model": "135M"}
        | targets.judged(shares, OWN_SHARE, at_least=False))
    return record


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", help="measure this one alone, as `ours 8`")
    parser.add_argument("--model", choices=MODELS, default="135M")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = parser.parse_args()
    if args.run:
        print(json.dumps(measure(args.run, args.model)))
        return 0
    try:
        record = measure_all(args.rounds)
    except (CourseError, importlib.metadata.PackageNotFoundError) as problem:
        print(problem, file=sys.stderr)
        return 1
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    for t in record["targets"]:
        print(f"{t['model']:6} {t['title']:48} {t['figure']:8.3g} (target {t['limit']:.3g}, "
              f"{'met' if t['met'] else 'missed'})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
