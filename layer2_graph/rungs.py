"""The rungs of one decode step, side by side:  python -m layer2_graph.rungs

For each rung: whether its tokens are those of g01's model, launches a layer, what the host asks for
in a step, bytes moved, time, and how near it comes to the floor that memory sets: weights and cache
over the bandwidth measured in the same run. Beside them Hugging Face's generate. What this machine
cannot show says so. Where tokens differ by more than rounding, nothing is timed, and the exit is 1.
The model is the small one, that of --model FOLDER, or with --135m one of random weights.
"""

import argparse
import datetime
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from day01_roofline import Job, Timing, copy_job, read_job, take_turns, this_device
from day01_roofline import measure as measure_jobs
from layer1_kernels import kernels
from layer2_graph.config import ModelError
from layer2_graph.decode_speed import shape_135m
from layer2_graph.drawing import Box, draw
from layer2_graph.g01_llama import Llama, PagedCache, load
from layer2_graph.g03_merging import MergedLlama
from layer2_graph.g05_fused_llama import FusedLlama, Traffic, place
from layer2_graph.g06_cuda_graphs import GraphRunner, Tape, asked, first_rows, pad_step
from layer2_graph.host import host_kernels, settle
from layer2_graph.inductor import launches_in

SMALL = Path(__file__).parent / "small"
SEQUENCES, PROMPT, COUNT, ROUNDS = 1, 64, 33, 12        # of the command
ATTENTION = "paged_attention"
# Once a layer: so a layer is what lies between two of them. The other is what PyTorch has of it
ATTENTIONS = (ATTENTION, "_scaled_dot_product_")
GRAPH, REPLAY = "fused, CUDA graph", "fused, the replay alone"
# Of a logit, see verdict: as in generate; and four times what bfloat16 moves the small model's by
ROUNDING = {"float32": 1e-2, "bfloat16": 0.5}


# ---- a rung of ours


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
        """(tokens, seconds a token): greedily, `count` of them; the first, of the prefill, is not
        timed. The time is the caller's: making the step and choosing the token are in it."""
        step = [[token] for token in self.prefill(prompts).argmax(-1).tolist()]
        tokens, began = [list(first) for first in step], time.perf_counter()
        for _ in range(count - 1):
            logits = self.forward(self.cache.step(step), self.cache)        # (B, V)
            step = [[token] for token in logits.argmax(-1).tolist()]        # waits for the device
            for some, token in zip(tokens, step, strict=True):
                some += token
        return tokens, (time.perf_counter() - began) / (count - 1)

    @torch.no_grad()
    def launches(self, prompts):
        """[Launch] of one decode step behind the prompts."""
        self.prefill(prompts)
        step = self.cache.step([[0]] * len(prompts))
        ops = self.model.ops
        with Traffic() as seen:
            self.model.ops = seen.counting(ops)
            self.model.forward(step, self.cache)
        self.model.ops = ops
        return seen.launches

    def asked(self, launches):
        """How many things the host asks the device for in a step of these launches."""
        return len(launches)


def a_layer(launches):
    """How many there are from one attention to the next; None where there are no two."""
    found = [i for i, launch in enumerate(launches) if launch.name.startswith(ATTENTIONS)]
    first, second = [*found, None, None][:2]
    return None if second is None else second - first


# ---- by torch.compile


@cache
def opaque(ops):
    """PyTorch's operations for the compiler to fuse, and two of `ops` that it cannot look into."""
    name = f"gpu_course_{ops.paged_attention.__name__}"

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
        """As read in the code that the compiler wrote. Their bytes are not counted."""
        from torch._inductor.utils import run_and_get_code

        self.prefill(prompts)
        step = self.cache.step([[0]] * len(prompts))
        torch.compiler.reset()                          # else there is no code to be seen
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
        """As a tape records them. A CUDA graph does not tell, and is recorded by the same calls."""
        self.prefill(prompts)
        pad_step(self.runner.buffers, self.cache.step([[0]] * len(prompts)), len(prompts))
        return recorded(Tape(partial(self.runner.compute, self.step), self.model.ops).calls)

    @torch.no_grad()
    def asked(self, launches):
        """As g06 counts: the step is copied into the buffers, and one replay does the rest."""
        return len(asked(self.runner, self.step))

    def replay(self):
        """The last step once more: none is made, and no token is chosen."""
        self.runner.graphs[len(self.cache.lens)].replay()


def recorded(calls):
    """[Launch] of a tape's calls."""
    seen = Traffic()
    for call in calls:
        seen.names.append(call.name)
        seen.note(call.args, call.result)
    return seen.launches


# ---- Hugging Face


class HuggingFace:
    """generate() of transformers on the same weights."""

    def __init__(self, model, **settings):
        """model: transformers' own    settings: of generate()"""
        self.model, self.settings = model, settings

    @torch.no_grad()
    def __call__(self, prompts, count):
        """(tokens, seconds a token), as Decoder. The prompts are of one length."""
        import transformers

        stamps = []

        class Clock(transformers.StoppingCriteria):
            """Asked after each token whether to stop: never."""

            def __call__(self, ids, scores, **others):
                if ids.is_cuda:
                    torch.cuda.synchronize()
                stamps.append(time.perf_counter())
                return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

        ids = torch.tensor(prompts, device=self.model.device)               # (B, N)
        out = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False,
            eos_token_id=None, pad_token_id=0, stopping_criteria=[Clock()], **self.settings)
        return out[:, ids.shape[1]:].tolist(), (stamps[-1] - stamps[0]) / (count - 1)

    @torch.no_grad()
    def launches(self, prompts):
        """[Launch] of the model's part of one decode step behind the prompts, as a Decoder's; none
        of a compiled one, whose code is not looked into."""
        if "compile_config" in self.settings:
            return []
        seen = []

        def begin(*of_the_model):
            seen.append(Traffic().__enter__())

        def end(*of_the_model):
            seen[-1].__exit__(None, None, None)

        hooks = [self.model.register_forward_pre_hook(begin),
                 self.model.register_forward_hook(end)]
        self(prompts, 2)                                    # a prefill, and a step
        for hook in hooks:
            hook.remove()
        return seen[-1].launches

    def asked(self, launches):
        """How many things the host asks the device for in a step of these launches."""
        return len(launches) or None


def their_config(m):
    """transformers' own config of a Llama of this shape, or why there is none."""
    if not find_spec("transformers"):
        return "transformers is not installed"
    import transformers

    return transformers.LlamaConfig(
        vocab_size=m.V, hidden_size=m.C, intermediate_size=m.F, num_hidden_layers=m.L,
        num_attention_heads=m.H, num_key_value_heads=m.G, head_dim=m.D, rms_norm_eps=m.eps,
        max_position_embeddings=m.room, tie_word_embeddings=m.tied,
        rope_parameters={"rope_type": "default", "rope_theta": m.theta})


def their_model(config, model):
    """transformers' model with the weights of ours. config: transformers' own"""
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_config(config)
    theirs = theirs.to(model.embedding.device, model.embedding.dtype).eval()
    state = theirs.load_state_dict(model.weights, strict=False)
    if state.unexpected_keys or set(state.missing_keys) - {"lm_head.weight"}:
        raise ModelError(f"transformers' model has no {state.unexpected_keys}, and is in want of "
                         f"{state.missing_keys}")
    return theirs


# ---- the ladder


class Rung(NamedTuple):
    """One way to decode, or why this machine has none."""

    name: str
    make: Callable              # () -> what decodes and counts
    missing: str = ""           # why it cannot run here, or nothing
    untimed: str = ""           # why its time here would say nothing, or nothing


def no_compiler():
    """Why torch.compile cannot make code for this CPU, or nothing."""
    if not shutil.which("g++"):
        return "torch.compile found no g++"
    if " " in torch.__file__:               # it links without quotation marks
        return "torch.compile cannot link where torch's path has a blank"
    return ""


def ladder(model, hugging_face, sequences, room):
    """[Rung], from the bottom. model: g01's    hugging_face: transformers' config, or why not"""
    device, dtype = model.embedding.device.type, model.embedding.dtype
    m, ops = model.config, model.ops
    compiler = "" if device == "cuda" else no_compiler()
    absent = hugging_face if isinstance(hugging_face, str) else ""
    numpy = ("" if (device, dtype, sequences) == ("cpu", torch.float32, 1) else
             "that is for one sequence in float32 on a CPU")

    def ours(kind, decoder=Decoder):
        return decoder(kind(m, model.weights, ops), sequences, room)

    theirs = cache(lambda: their_model(hugging_face, model))

    def generate(**settings):
        return HuggingFace(theirs(), **settings)

    def compile_config():                       # on a CPU generate() compiles only if it is forced
        import transformers

        config = transformers.CompileConfig()
        config._compile_all_devices = True
        return config

    static = {"cache_implementation": "static"}
    return [
        Rung("g01, op by op", lambda: ours(Llama)),
        Rung("merged", lambda: ours(MergedLlama)),
        Rung("fused", lambda: ours(FusedLlama)),
        Rung("fused, torch.compile", lambda: ours(FusedLlama, Compiled), compiler),
        Rung(GRAPH, lambda: ours(FusedLlama, Replayed),
             untimed="" if device == "cuda" else "a CPU replays a tape"),
        Rung("fused, one token by NumPy", lambda: Decoder(
            settle(FusedLlama(m, model.weights, host_kernels())), sequences, room), numpy),
        Rung("Hugging Face", generate, absent),
        Rung("Hugging Face, static cache", lambda: generate(**static, disable_compile=True),
             absent),
        Rung("Hugging Face, static, compiled",
             lambda: generate(**static, compile_config=compile_config()), absent or compiler),
    ]


@dataclass
class Row:
    """What was found of a rung. None where it was not counted, or does not apply."""

    name: str
    missing: str = ""               # why it was not run, or nothing
    untimed: str = ""               # why it was not timed, or nothing
    same: int | None = None         # tokens before the first that is not g01's; None: all are
    gap: float | None = None        # by how much g01 prefers its own token there to the other
    launches: int | None = None     # a layer
    asked: int | None = None        # what the host asks for in a step
    moved: int | None = None        # bytes of a step
    seconds: float | None = None    # a token
    spread: float | None = None     # how much single runs differ, and how far off their median
    uncertainty: float | None = None    # may be: shares of it
    runs: int | None = None
    share: float | None = None      # the floor's time over this one's


def measure(model, hugging_face, sequences=SEQUENCES, prompt=PROMPT, count=COUNT, rounds=ROUNDS):
    """(facts, [Row], {name: [Box]}) of all rungs, timed by turns. Arguments as ladder's.

    prompt, count: tokens of each prompt and behind it    Boxes: of a layer, where it was seen
    """
    load, random = os.getloadavg()[0], torch.Generator().manual_seed(0)
    dtype = str(model.embedding.dtype).removeprefix("torch.")
    prompts = torch.randint(model.config.V, (sequences, prompt), generator=random).tolist()
    rungs = ladder(model, hugging_face, sequences, prompt + count)
    rows = {rung.name: Row(rung.name, rung.missing, rung.untimed) for rung in rungs}
    running = {rung.name: rung.make() for rung in rungs if not rung.missing}
    want, graphs = None, {}
    for name, decode in running.items():
        launches = decode.launches(prompts)
        rows[name].launches, rows[name].asked = a_layer(launches), decode.asked(launches)
        rows[name].moved = sum(launch.moved for launch in launches) or None
        if rows[name].launches and isinstance(decode, Decoder):
            graphs[name] = boxes(launches, decode.model.layers[1])
        tokens, _ = decode(prompts, count)              # whatever is compiled is compiled now
        want = want or tokens
        rows[name].same, rows[name].gap = first_difference(model, prompts, want, tokens)
        if wrong(rows[name], dtype):
            rows[name].untimed = "what is wrong is not timed"
    timers = {name: lambda decode=decode: decode(prompts, count)[1]
              for name, decode in running.items() if not rows[name].untimed}
    seconds = take_turns(timers, rounds)
    device, floor = this_device(), floor_bytes(model, sequences, prompt + count / 2)
    jobs = [copy_job(device), read_job(device)]
    if GRAPH in timers:
        jobs.append(Job(REPLAY, running[GRAPH].replay, 0, floor))
        rows[REPLAY] = replace(rows[GRAPH], name=REPLAY, asked=1)
    found = measure_jobs(jobs, device, limit=4)
    rates = {job.name: job.moved / found[job.name].seconds for job in jobs[:2]}
    bandwidth = max(rates.values())
    timings = {name: Timing.of(runs) for name, runs in seconds.items()}
    for name, timing in (timings | {job.name: found[job.name] for job in jobs[2:]}).items():
        row = rows[name]
        row.seconds, row.spread = timing.seconds, timing.spread
        row.uncertainty, row.runs = timing.uncertainty, timing.runs
        row.share = floor / bandwidth / timing.seconds
    weights = sum(w.nbytes for w in model.weights.values())
    facts = {"date": datetime.date.today().isoformat(), "device": device.name,
             "threads": torch.get_num_threads(), "load": load,
             "versions": versions(), "dtype": dtype,
             "sequences": sequences, "prompt": prompt, "count": count, "weights": weights,
             "cache": device.cache, "floor": floor, "copy": rates["copy"], "read": rates["read"]}
    return facts, list(rows.values()), graphs


def first_difference(model, prompts, want, got):
    """(tokens that are the same, by how much the model prefers its own next one to the other's), or
    twice None. Of several sequences that differ, the one with the largest gap."""
    found = []
    for prompt, right, tokens in zip(prompts, want, got, strict=True):
        i = next((i for i, pair in enumerate(zip(right, tokens, strict=True)) if len({*pair}) > 1),
                 None)
        if i is not None:
            text = prompt + right[:i]
            scores = Decoder(model, 1, len(text)).prefill([text])[0]        # (V,)
            found.append((i, float(scores[right[i]] - scores[tokens[i]])))
    return max(found, key=lambda pair: pair[1], default=(None, None))


def wrong(row, dtype):
    """Whether rounding does not explain where the tokens of a Row part: NaN is never explained."""
    return row.same is not None and not row.gap <= ROUNDING[dtype]


def verdict(row, dtype):
    """What is to be said of the tokens of a Row. dtype: of the weights, "float32" or "bfloat16"

    Two right ways to compute add in another order, so their scores differ by rounding, and of two
    tokens with nearly equal scores each may take another. ROUNDING is what that may be.
    """
    if row.same is None:
        return "identical"
    if wrong(row, dtype):
        return f"wrong after {row.same}: gap {row.gap:.2g}"
    return f"parted by rounding after {row.same} (gap {row.gap:.2g})"


def floor_bytes(model, sequences, N):
    """The fewest bytes of a decode step: each weight once, and the cache of N tokens a sequence.

    Of an embedding that is not the head as well, a step reads only a row a token.
    """
    m, itemsize = model.config, model.embedding.itemsize
    weights = sum(w.nbytes for w in model.weights.values())
    if not m.tied:
        weights -= model.embedding.nbytes
    return int(weights + sequences * (N * 2 * m.L * m.G * m.D + m.C) * itemsize)


def cores():
    """How many cores this process has. Two threads of one count once, as they do for PyTorch."""
    about = [Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
             for cpu in os.sched_getaffinity(0)]
    return len({path.read_text() if path.exists() else path for path in about})


def versions():
    return {"python": sys.version.split()[0]} | {
        name: version(name) for name in ("torch", "triton", "transformers") if find_spec(name)}


# ---- drawn


# what a launch is called in a picture: by its weights if it is a matrix, else by its name
MATRICES = {"qkv": "q & k & v", "gate_up": "gate & up", "o": "output"}
NAMES = {"add_rmsnorm": "add + norm", "rmsnorm": "norm", "rope_and_cache": "rope + write",
         "write_kv": "write", "paged_attention": "attention", "matmul_swiglu": "gate & up + SwiGLU",
         "swiglu": "SwiGLU"}


def boxes(launches, layer):
    """[Box] of the second layer out of the launches of a step; what comes from outside first.

    layer: its weights, a Layer or a MergedLayer
    """
    many = a_layer(launches)
    start = many + (launches[0].name == "index")        # the embedding, unless it is fused
    here = launches[start:start + many]
    outside = sorted({i for launch in here for i in launch.inputs if i < start}, reverse=True)
    at = {i: n for n, i in enumerate([*outside, *range(start, start + many)])}
    drawn = [Box("x" if i == start - 1 else "residual", launch=False) for i in outside]
    for launch in here:
        note = f"{launch.moved:,} bytes" if launch.moved else ""
        drawn.append(Box(label(launch, layer), tuple(at[i] for i in launch.inputs), note))
    return drawn


def picture(name, drawn):
    """The boxes of a rung's layer as an SVG text."""
    return draw(drawn, f"{name}: {sum(box.launch for box in drawn)} launches a layer")


def label(launch, layer):
    """What a launch does, in a word or two; & is merged, + is fused."""
    known = {key: name for name, matrix in layer._asdict().items() if isinstance(matrix, tuple)
             for key in (place(matrix[0]), tuple(matrix[0].shape))}
    weights = next((known[key] for key in launch.arrays if key in known), "")
    weights = MATRICES.get(weights, weights)
    if launch.name in ("matmul", "mm"):
        return weights
    if launch.name == "addmm":                          # the library's, with an add at its end
        return f"{weights} + add"
    if "_fused_" in launch.name:                        # the compiler names what it has fused
        return " + ".join(re.findall("[a-z]+", launch.name.split("_fused_")[1]))
    return NAMES.get(launch.name, launch.name)


# ---- the command


def text(facts, rows):
    """The rows as a table."""
    floor = facts["floor"] / max(facts["copy"], facts["read"])
    lines = [f"{facts['device']}, {facts['threads']} of PyTorch's threads, {facts['dtype']}; "
             f"load of the machine before: {facts['load']:.1f}; {facts['date']}",
             f"{facts['sequences']} × {facts['prompt']} tokens, then {facts['count']} more",
             f"floor: {facts['floor'] / 1e6:.2f} MB of weights and cache at "
             f"{max(facts['copy'], facts['read']) / 1e9:.1f} GB/s, {floor * 1e3:.3f} ms"]
    if facts["weights"] < facts["cache"]:
        lines.append(f"The weights fit into the last-level cache of {facts['cache'] / 1e6:.0f} MB: "
                     f"memory sets no floor here.")
    lines.append(f"{'':32}{'launches':>9}{'asked by':>10}{'MB':>9}{'ms':>10}{'':7}{'of the':>8}")
    lines.append(f"{'':32}{'a layer':>9}{'the host':>10}{'a step':>9}{'a token':>10}{'':7}"
                 f"{'floor':>8}  tokens")
    for row in rows:
        if row.missing:
            lines.append(f"{row.name:32}not proven here: {row.missing}")
            continue
        launches, times = ("–" if n is None else n for n in (row.launches, row.asked))
        moved = "–" if row.moved is None else f"{row.moved / 1e6:.2f}"
        time = (f"{row.seconds * 1e3:>10.3f} ±{row.uncertainty:4.0%}{row.share:>9.0%}"
                if row.seconds else f"{'not proven here':>25}")
        lines.append(f"{row.name:32}{launches:>9}{times:>10}{moved:>9}{time}  "
                     + "; ".join(filter(None, (verdict(row, facts["dtype"]), row.untimed))))
    if any(not row.missing and None in (row.launches, row.moved) for row in rows):
        lines += ["–: not counted. A compiler's code says which arrays it is given, not how much "
                  "it needs of them;", "what it makes of Hugging Face's model is not looked into"]
    return "\n".join(lines)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m layer2_graph.rungs",
                                     description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", type=Path, default=SMALL, metavar="FOLDER")
    which.add_argument("--135m", dest="shape", action="store_true",
                       help="a Llama of 135 million random weights, as decode_speed has it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="record what was measured")
    parser.add_argument("--svg", type=Path, metavar="DIR", help="draw a layer of each rung")
    args = parser.parse_args(arguments)
    on_gpu = torch.cuda.is_available()
    if args.json and torch.get_num_threads() < cores():
        print(f"--json: torch has {torch.get_num_threads()} threads, expected {cores()} or more, "
              f"one for each core: such a record misleads. Is OMP_NUM_THREADS set?",
              file=sys.stderr)
        return 2
    try:
        here = (kernels("triton" if on_gpu else "torch"),
                torch.bfloat16 if on_gpu else torch.float32, "cuda" if on_gpu else "cpu")
        name, model, theirs = random_135m(*here) if args.shape else of_folder(args.model, *here)
        model.config.check_room(PROMPT + COUNT)
        facts, rows, graphs = measure(model, theirs)
        print(text(facts, rows))
        if args.json:
            found = {"model": name, **facts, "rungs": [*map(asdict, rows)]}
            args.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        if args.svg:
            args.svg.mkdir(parents=True, exist_ok=True)
            for name, drawn in graphs.items():
                path = args.svg / f"{re.sub('[^a-z0-9]+', '_', name.lower())}.svg"
                path.write_text(picture(name, drawn), "utf-8")
    except (ModelError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return int(any(wrong(row, facts["dtype"]) for row in rows))


def of_folder(folder, ops, dtype, device):
    """(name, g01's model, transformers' config or why there is none) of a folder."""
    return folder.resolve().name, load(folder, ops, dtype, device), transformers_config(folder)


def random_135m(ops, dtype, device):
    """The same of decode_speed's shape, with random weights."""
    m, weights = shape_135m()
    weights = {name: w.to(device, dtype) for name, w in weights.items()}
    return "135M", Llama(m, weights, ops), their_config(m)


def transformers_config(folder):
    """transformers' own config of a model, or why there is none."""
    if not find_spec("transformers"):
        return "transformers is not installed"
    import transformers

    return transformers.AutoConfig.from_pretrained(folder)


if __name__ == "__main__":
    sys.exit(main())
