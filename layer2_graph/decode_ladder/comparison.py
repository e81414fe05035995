"""The rungs of one decode step, side by side:  python -m layer2_graph.decode_ladder

For each rung: whether its tokens are those of g01's model, launches a layer, what the host asks for
in a step, bytes moved, time, and how near it comes to the floor that memory sets: weights and cache
over the bandwidth measured in the same run.
Beside them Hugging Face's generate.
A rung that this machine cannot run says so.
One whose tokens differ by more than rounding is not timed, and the exit is 1.
The model is the small one, that of --model FOLDER, or with --135m one of random weights.
"""

import argparse
import datetime
import json
import os
import re
import sys
from dataclasses import asdict, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

from day01_roofline import Job, Timing, copy_job, read_job, take_turns, this_device
from day01_roofline import measure as measure_jobs
from lab.measure.turns import alone
from layer1_kernels import kernels
from layer2_graph.config import ModelError
from layer2_graph.decode_ladder.decoders import Decoder, a_layer
from layer2_graph.decode_ladder.hugging_face import their_config, transformers_config
from layer2_graph.decode_ladder.ladder import GRAPH, ladder
from layer2_graph.decode_ladder.report import RungResult, boxes, picture, text, wrong
from layer2_graph.g01_llama import Llama, load
from layer2_graph.models import SMALL, shape_135m

SEQUENCES, PROMPT, COUNT, ROUNDS = 1, 64, 33, 12        # of the command
REPLAY = "fused, the replay alone"


# ---- side by side


def measure(model, hugging_face, sequences=SEQUENCES, prompt=PROMPT, count=COUNT, rounds=ROUNDS):
    """(facts, [RungResult], {name: [Box]}) of all rungs, timed by turns.
    Arguments as ladder's.

    prompt, count: tokens of each prompt and after it    Boxes: of a layer, if it was counted
    """
    load = os.getloadavg()[0]
    random = torch.Generator().manual_seed(0)
    prompts = torch.randint(model.config.V, (sequences, prompt), generator=random).tolist()
    rungs = ladder(model, hugging_face, sequences, prompt + count)
    rows = {rung.name: RungResult(rung.name, rung.missing, rung.untimed) for rung in rungs}
    running = {rung.name: rung.make() for rung in rungs if not rung.missing}
    graphs = check_rungs(model, rows, running, prompts, count)
    timers = {name: lambda decode=decode: decode(prompts, count)[1]
              for name, decode in running.items() if not rows[name].untimed}
    device = this_device()
    floor = floor_bytes(model, sequences, prompt + count / 2)
    jobs = [copy_job(device), read_job(device)]
    if GRAPH in timers:
        jobs.append(Job(REPLAY, running[GRAPH].replay, 0, floor))
        rows[REPLAY] = replace(rows[GRAPH], name=REPLAY, asked=1)
    with alone():
        seconds = take_turns(timers, rounds)
        measured = measure_jobs(jobs, device, limit=4)
    rates = {job.name: job.moved / measured[job.name].seconds for job in jobs[:2]}
    timings = {name: Timing.of(runs) for name, runs in seconds.items()}
    timings |= {job.name: measured[job.name] for job in jobs[2:]}
    for name, timing in timings.items():
        note_timing(rows[name], timing, floor / max(rates.values()))
    facts = {"date": datetime.date.today().isoformat(), "device": device.name,
             "threads": torch.get_num_threads(), "load": load,
             "versions": versions(), "dtype": dtype_of(model),
             "sequences": sequences, "prompt": prompt, "count": count,
             "weights": sum(w.nbytes for w in model.weights.values()),
             "cache": device.cache, "floor": floor, "copy": rates["copy"], "read": rates["read"]}
    return facts, list(rows.values()), graphs


def check_rungs(model, rows, running, prompts, count):
    """Run each rung once: its launches, and whether its tokens are the first rung's, go into its
    row.
    What is compiled is compiled then.
    Returns {name: [Box]}."""
    want = None
    graphs = {}
    for name, decode in running.items():
        row = rows[name]
        launches = decode.launches(prompts)
        row.launches = a_layer(launches)
        row.asked = decode.asked(launches)
        row.moved = sum(launch.moved for launch in launches) or None
        if row.launches and isinstance(decode, Decoder):
            graphs[name] = boxes(launches, decode.model.layers[1])
        tokens, _ = decode(prompts, count)
        want = want or tokens
        row.same, row.gap = first_difference(model, prompts, want, tokens)
        if wrong(row, dtype_of(model)):
            row.untimed = "what is wrong is not timed"
    return graphs


def note_timing(row, timing, fastest):
    """fastest: seconds that the step's bytes take at the memory's own rate"""
    row.seconds = timing.seconds
    row.spread = timing.spread
    row.uncertainty = timing.uncertainty
    row.runs = timing.runs
    row.share = fastest / timing.seconds


def dtype_of(model):
    return str(model.embedding.dtype).removeprefix("torch.")


def first_difference(model, prompts, want, got):
    """(number of equal tokens, by how much the model prefers its own next one to the other's), or
    (None, None).
    Of several sequences that differ, the one with the largest gap."""
    gaps = []
    for prompt, right, tokens in zip(prompts, want, got, strict=True):
        i = next((i for i, pair in enumerate(zip(right, tokens, strict=True)) if len({*pair}) > 1),
                 None)
        if i is not None:
            text = prompt + right[:i]
            scores = Decoder(model, 1, len(text)).prefill([text])[0]        # (V,)
            gaps.append((i, float(scores[right[i]] - scores[tokens[i]])))
    return max(gaps, key=lambda pair: pair[1], default=(None, None))


def floor_bytes(model, sequences, N):
    """The fewest bytes of a decode step: each weight once, and the cache of N tokens a sequence.

    Of an embedding that is not the head as well, a step reads only a row a token.
    """
    m = model.config
    itemsize = model.embedding.itemsize
    weights = sum(w.nbytes for w in model.weights.values())
    if not m.tied:
        weights -= model.embedding.nbytes
    return int(weights + sequences * (N * 2 * m.L * m.G * m.D + m.C) * itemsize)


def cores():
    """The number of cores that this process has.
    Two threads of one count once, as for PyTorch."""
    about = [Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
             for cpu in os.sched_getaffinity(0)]
    return len({path.read_text() if path.exists() else path for path in about})


def versions():
    return {"python": sys.version.split()[0]} | {
        name: version(name) for name in ("torch", "triton", "transformers") if find_spec(name)}


# ---- the command


def arguments_of(words):
    parser = argparse.ArgumentParser(prog="python -m layer2_graph.decode_ladder",
                                     description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", type=Path, default=SMALL, metavar="FOLDER")
    which.add_argument("--135m", dest="shape", action="store_true",
                       help="a Llama of 135 million random weights, as decode_speed has it")
    parser.add_argument("--ignore-config", action="append", default=[], metavar="KEY",
                        help="an entry of config.json to take as absent; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="record what was measured")
    parser.add_argument("--svg", type=Path, metavar="DIR", help="draw a layer of each rung")
    return parser.parse_args(words)


def main(words=None):
    args = arguments_of(words)
    on_gpu = torch.cuda.is_available()
    if args.json and torch.get_num_threads() < cores():
        print(f"--json: torch has {torch.get_num_threads()} threads, expected {cores()} or more, "
              f"one for each core: such a record misleads. Is OMP_NUM_THREADS set?",
              file=sys.stderr)
        return 2
    try:
        here = (kernels("triton" if on_gpu else "torch"),
                torch.bfloat16 if on_gpu else torch.float32, "cuda" if on_gpu else "cpu")
        name, model, theirs = (random_135m(*here) if args.shape else
                               of_folder(args.model, args.ignore_config, *here))
        model.config.check_room(PROMPT + COUNT)
        facts, rows, graphs = measure(model, theirs)
        print(text(facts, rows))
        write(args, {"model": name, **facts, "rungs": [*map(asdict, rows)]}, graphs)
    except (ModelError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return int(any(wrong(row, facts["dtype"]) for row in rows))


def write(args, record, graphs):
    """The record and the drawings, where the command asks for them."""
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    if args.svg:
        args.svg.mkdir(parents=True, exist_ok=True)
        for name, drawn in graphs.items():
            path = args.svg / f"{re.sub('[^a-z0-9]+', '_', name.lower())}.svg"
            path.write_text(picture(name, drawn), "utf-8")


def of_folder(folder, ignore, ops, dtype, device):
    """(name, g01's model, transformers' config or why there is none) of a folder."""
    model = load(folder, ops, dtype, device, ignore)
    theirs = (f"transformers does not ignore {', '.join(ignore)}" if ignore else
              transformers_config(folder))
    return folder.resolve().name, model, theirs


def random_135m(ops, dtype, device):
    """The same of decode_speed's shape, with random weights."""
    m, weights = shape_135m()
    weights = {name: w.to(device, dtype) for name, w in weights.items()}
    return "135M", Llama(m, weights, ops), their_config(m)

