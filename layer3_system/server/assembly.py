"""What `lab serve` serves with: an engine made of its flags, in this process or in others"""

import inspect
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lab import course, device
from lab.course import CourseError
from lab.terminal import own_desk
from layer1_kernels import kernels
from layer2_graph import (
    CpuLlama,
    Tokenizer,
    cpu_kernels,
    model_of,
    read_config,
    read_weights,
    tile,
)
from layer2_graph.generate import Letters, check_table, is_nano, used, whose
from layer2_graph.models import SMALL
from layer3_system.engine.intake import default_pages
from layer3_system.model import has_state
from layer3_system.parallel.plan import Plan
from layer3_system.parallel.team import Team
from layer3_system.s01_request import sample_rows
from layer3_system.s02_block_pool import BlockPool
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.s06_prefix_cache import HashChain, PrefixPool
from layer3_system.s07_engine import Engine
from layer3_system.s08_server import Bridge
from layer3_system.s10_speculative import accept, draw_by_noise, lookup, roll_back
from layer3_system.s11_kv_offload import TieredPool, read_record
from layer3_system.s12_disaggregation import Inbox, Outbox, choose_workers
from layer3_system.s22_tensor_parallel import check_ranks
from layer3_system.server.drafters import drafter_of
from layer3_system.server.tiers import Tiers, connect, host_of
from layer3_system.structured import Grammars

SHARING = HashChain, PrefixPool          # which do nothing for a model that keeps a state
PARTS = {part.__name__: part for part in (BlockPool, HashChain, PrefixPool, Scheduler, Engine,
                                           Bridge, sample_rows)}
GUESSING = {part.__name__: part for part in (lookup, draw_by_noise, accept, roll_back)}
TIERED = {part.__name__: part for part in (TieredPool, read_record)}
APART = {part.__name__: part for part in (Inbox, Outbox, choose_workers)}
DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16")}
S = 16                  # slots of a page


# ---- the engine's parts


def needed(lesson, name):
    """The exercises that a part is made of: itself, methods of the class, and what they use."""
    methods = [e for e in lesson.exercises if e.name == name or e.name.startswith(f"{name}.")]
    return methods + [e for e in lesson.reached(name) if e not in methods]


def candidate_of(desk, name):
    """A part of the engine from the learner's desk, if all its exercises passed; else None."""
    lessons = {lesson.id: lesson for lesson in course.lessons()}
    lesson = lessons.get((PARTS | GUESSING | TIERED | APART)[name].__module__.rpartition(".")[2])
    exercises = needed(lesson, name) if lesson else []
    if not exercises or not all(map(desk.passed, exercises)):
        return None
    return getattr(desk.module(lesson), name)


def methods_of(kind):
    return {name: f for name, f in vars(kind).items()
            if inspect.isfunction(f) and not name.startswith("__") or isinstance(f, property)}


def pool_of(candidates, P, S, host=None, shared=True):
    """A pool with the learner's parts in it. candidates: {name: part or None}    host: a tier below
    shared: whether requests may share the pages of a prefix

    PrefixPool builds on BlockPool, so the learner's methods go between the two.
    TieredPool builds on both, and gets those methods of theirs that it does not have itself.
    """
    methods = methods_of(candidates.get("BlockPool") or BlockPool)
    below = type("BlockPool", (BlockPool,), methods)
    if not shared:
        return below(P, S)
    index = (candidates.get("HashChain") or HashChain)()
    if host:
        tiered = candidates.get("TieredPool") or TieredPool
        methods |= methods_of(candidates.get("PrefixPool") or PrefixPool)
        kind = type("TieredPool", (tiered,), {
            name: method for name, method in methods.items() if name not in vars(TieredPool)})
        return kind(P, S, index, host)
    kind = type("PrefixPool", (candidates.get("PrefixPool") or PrefixPool, below), {})
    return kind(P, S, index)


def build(model, tokenizer, ops, candidates, pages, S=S, draft=None, guesses=4, overlap=False,
          below=None, **options):
    """An Engine. candidates: {name: the learner's part, or None for the course's}
    pages: None for 16 contexts of the model, at most 2¹⁶ tokens
    draft: what guesses: "lookup" or a model    guesses: of a request in a step, at most
    overlap: launch a step before the previous one is read
    below: a HostTier for pages that are taken    options: of the Scheduler"""
    pool = pool_of(candidates, pages or default_pages(model.config, S), S, below,
                   shared=not has_state(model))
    scheduler = (candidates.get("Scheduler") or Scheduler)(pool, **options)
    kind = candidates.get("Engine") or Engine
    sample = candidates.get("sample_rows") or ops.sample
    if draft and overlap:
        raise CourseError("--draft and --async-scheduling exclude each other: guesses depend on "
                          "the newest token")
    drafter = drafter_of(draft, guesses, model, tokenizer, sample, candidates, pool.P, S,
                         scheduler.max_seqs) if draft else None
    engine = kind(model, tokenizer, pool, scheduler, sample, drafter, overlap,
                  grammars=Grammars(tokenizer, model.config))
    if below:
        connect(engine)
    return engine


# ---- the model


def model_with(table, desk, config, weights):
    """A model on the kernels of a table; a dense one for torch on a CPU is the faster CpuLlama.

    desk: the folder of the learner's, for the table "mine"
    """
    on_cpu = weights["model.embed_tokens.weight"].is_cpu
    if table == "torch" and on_cpu and not (config.E or config.latent or config.linear):
        return CpuLlama(config, weights, cpu_kernels())
    return model_of(config, weights, kernels(table, desk))


def draft_model(word, config, dtype):
    """What --draft names: "lookup", or a model.
    CourseError if that is none that fits."""
    if word in (None, "lookup"):
        return word
    folder = SMALL.parent / "draft" if word == "shipped" else Path(word)
    if not folder.is_dir():
        raise CourseError(f"--draft {word}: expected lookup, shipped or the folder of a model")
    small = read_config(folder)
    if small.V != config.V:
        raise CourseError(f"--draft {word}: a vocabulary of {small.V} tokens, expected {config.V}, "
                          f"the model's own: guesses are token numbers")
    if small.linear:
        raise CourseError(f"--draft {word}: a model that keeps a state of each request, expected "
                          f"one that takes guesses back")
    weights = read_weights(folder, small, dtype, device.torch_device())
    return model_with("torch", None, small, weights)


# ---- all of it


class Setup(NamedTuple):
    """What makes an engine: flags of `lab serve`."""

    folder: Path                    # of the model
    called: str                     # its name, for people
    table: str                      # of kernels
    desk: Path | None               # of the learner, for the table "mine"
    dtype: str
    ignore: tuple[str, ...]
    pages: int | None
    scheduling: dict[str, Any]      # options of the Scheduler
    draft: str | None
    guesses: int
    overlap: bool
    tiers: Tiers | None
    tp: int = 1
    apart: bool = False             # prompts and answers in processes of their own

    def config(self):
        """The model's Config.
        CourseError if a flag does not fit it."""
        if self.dtype not in DTYPES:
            raise CourseError(f"--dtype {self.dtype!r}: expected {', '.join(DTYPES)}")
        config = read_config(self.folder, self.ignore)
        check_ranks(config, self.tp, self.called)
        if self.draft and config.linear:
            raise CourseError(f"--draft: {self.called} keeps a state of each request, which takes "
                              f"no guess back")
        return config

    def tokenizer(self, config):
        return Letters() if is_nano(self.folder) else Tokenizer(self.folder, config)

    def simulated(self):
        """Whether kernels run in the simulator."""
        return self.table != "torch" and device.gpu() is None

    def candidates(self, config):
        """{name of a part: the learner's, or None for the course's}"""
        desk = own_desk(self.desk) if self.table == "mine" else None
        names = PARTS | (GUESSING if self.draft else {}) | (TIERED if self.tiers else {}) | (
            APART if self.apart else {})
        unused = SHARING if config.linear else ()
        return {name: candidate_of(desk, name) if desk else None
                for name, part in names.items() if part not in unused}


class Assembly(NamedTuple):
    """An engine, and what it was made of."""

    engine: Engine
    candidates: dict[str, Any]      # {name of a part: the learner's, or None}
    summary: str                    # whose kernels and parts run
    team: Team | None               # the processes of the other ranks


def assemble(setup):
    """The Assembly of a Setup.
    CourseError or ValueError if its flags do not go together."""
    if setup.simulated():
        device.use_simulator()
    config = setup.config()
    tokenizer = setup.tokenizer(config)
    dtype = DTYPES[setup.dtype]
    weights = read_weights(setup.folder, config, dtype,
                           device.torch_device() if setup.tp == 1 else "cpu")
    candidates = setup.candidates(config)
    desk = own_desk(setup.desk).folder if setup.table == "mine" else None
    plan = Plan(str(setup.folder), setup.tp, setup.table, str(desk) if desk else None,
                setup.dtype, setup.ignore)
    team = Team(plan) if setup.tp > 1 else None
    llama = team.lead(config, weights) if team else model_with(setup.table, desk, config, weights)
    check_table(setup.folder, config, llama.ops, dtype)
    below = host_of(setup.tiers, config, weights, S, candidates["read_record"] or read_record) \
        if setup.tiers else None
    operations = used(llama.alone() if team else llama)
    if isinstance(llama, CpuLlama):
        tile(llama)                     # before steps are timed; it empties llama.weights
    engine = build(llama, tokenizer, llama.ops, candidates, setup.pages, below=below,
                   draft=draft_model(setup.draft, config, dtype), guesses=setup.guesses,
                   overlap=setup.overlap, **setup.scheduling)
    summary = about(setup, llama, candidates, weights, operations, plan.place)
    return Assembly(engine, candidates, summary, team)


def about(setup, llama, candidates, weights, operations, place):
    """The model, where it computes, and whose kernels and parts of the engine run, one a line."""
    ranks = f"{setup.tp} ranks of " if setup.tp > 1 else ""
    where = "this CPU, kernels in the simulator" if setup.simulated() else place
    lines = [f"{setup.called}: {sum(w.numel() for w in weights.values()):,} weights, on "
             f"{ranks}{where}",
             whose_parts(llama.ops.sources(), operations, candidates)]
    if setup.dtype != "float32" and (setup.simulated() or place == "cpu"):
        lines.append(f"  {setup.dtype} is slow on a CPU: the kernels made for one take float32; "
                     f"without --dtype it answers several times as fast")
    if isinstance(llama, CpuLlama) and None not in llama.arrays(1):
        lines.append(f"  {'decoding':16} cpu        CpuLlama.forward, in NumPy around the table")
    return "\n".join(lines)


def whose_parts(sources, names, candidates):
    """Whose kernels and parts of the engine run, one a line."""
    parts = dict(candidates)
    sample = "mine" if parts.pop("sample_rows") else sources["sample"]
    lines = [*whose(sources | {"sample": sample}, [*names, "sample"]),
             *(f"  {part:16} {'mine' if candidate else 'reference'}"
               for part, candidate in parts.items())]
    yours = sum(line.split()[1] == "mine" for line in lines)
    return "\n".join([*lines, *([f"  yours: {yours}"] if yours else [])])
