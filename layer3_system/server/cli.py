"""A model behind OpenAI's API:  lab serve [MODEL] [--kernels torch|triton|cuda|mine]

It prints whose kernel computes each operation and whose part of the engine runs, then listens: on
this machine alone, unless --host says otherwise.
"""

import inspect
import json
import socket
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer

from day02_overview import NANO
from lab import course, device
from lab.course import CourseError
from lab.terminal import main, own_desk
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
from layer2_graph.generate import IGNORE, Letters, check_table, is_nano, used, whose
from layer2_graph.models import SMALL
from layer3_system.engine.intake import default_pages
from layer3_system.parallel.plan import Plan
from layer3_system.parallel.team import Team
from layer3_system.s01_request import sample_rows
from layer3_system.s02_block_pool import BlockPool
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.s06_prefix_cache import HashChain, PrefixPool
from layer3_system.s07_engine import Engine
from layer3_system.s08_server import Bridge, Limits
from layer3_system.s10_speculative import accept, draw_by_noise, lookup, roll_back
from layer3_system.s11_kv_offload import TieredPool, read_record
from layer3_system.s22_tensor_parallel import check_ranks
from layer3_system.server.drafters import drafter_of
from layer3_system.server.hosts import Access, is_own
from layer3_system.server.tiers import Tiers, connect, host_of
from layer3_system.structured import Grammars

PARTS = {part.__name__: part for part in (BlockPool, HashChain, PrefixPool, Scheduler, Engine,
                                           Bridge, sample_rows)}
GUESSING = {part.__name__: part for part in (lookup, draw_by_noise, accept, roll_back)}
TIERED = {part.__name__: part for part in (TieredPool, read_record)}
DTYPES = {name: getattr(torch, name) for name in ("float32", "bfloat16", "float16")}

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


# ---- the engine's parts


def needed(lesson, name):
    """The exercises that a part is made of: itself, methods of the class, and what they use."""
    methods = [e for e in lesson.exercises if e.name == name or e.name.startswith(f"{name}.")]
    return methods + [e for e in lesson.reached(name) if e not in methods]


def candidate_of(desk, name):
    """A part of the engine from the learner's desk, if all its exercises passed; else None."""
    lessons = {lesson.id: lesson for lesson in course.lessons()}
    lesson = lessons.get((PARTS | GUESSING | TIERED)[name].__module__.rpartition(".")[2])
    exercises = needed(lesson, name) if lesson else []
    if not exercises or not all(map(desk.passed, exercises)):
        return None
    return getattr(desk.module(lesson), name)


def methods_of(kind):
    return {name: f for name, f in vars(kind).items()
            if inspect.isfunction(f) and not name.startswith("__") or isinstance(f, property)}


def pool_of(candidates, P, S, host=None):
    """A pool with the learner's parts in it. candidates: {name: part or None}    host: a tier below

    PrefixPool builds on BlockPool, so the learner's methods go between the two. TieredPool builds
    on both, and gets those methods of theirs that it does not have itself.
    """
    index = (candidates.get("HashChain") or HashChain)()
    methods = methods_of(candidates.get("BlockPool") or BlockPool)
    if host:
        tiered = candidates.get("TieredPool") or TieredPool
        methods |= methods_of(candidates.get("PrefixPool") or PrefixPool)
        kind = type("TieredPool", (tiered,), {
            name: method for name, method in methods.items() if name not in vars(TieredPool)})
        return kind(P, S, index, host)
    below = type("BlockPool", (BlockPool,), methods)
    kind = type("PrefixPool", (candidates.get("PrefixPool") or PrefixPool, below), {})
    return kind(P, S, index)


def build(model, tokenizer, ops, candidates, pages, S=16, draft=None, guesses=4, overlap=False,
          below=None, **options):
    """An Engine. candidates: {name: the learner's part, or None for the course's}
    pages: None for 16 contexts of the model, at most 2¹⁶ tokens
    draft: what guesses: "lookup" or a model    guesses: of a request in a step, at most
    overlap: launch a step before the previous one is read
    below: a HostTier for pages that are taken    options: of the Scheduler"""
    pool = pool_of(candidates, pages or default_pages(model.config, S), S, below)
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


def tiers_of(host_pages, file, records, reset, tp):
    """The Tiers that were asked for, or None. CourseError if they do not go together."""
    if host_pages is None:
        if file or reset:
            raise CourseError("--kv-file: expected --host-pages, too: pages reach the file from "
                              "host memory")
        return None
    if tp > 1:
        raise CourseError("--host-pages and --tp exclude each other: each rank has its own part "
                          "of a page")
    return Tiers(host_pages, file, records or 4 * host_pages, reset)


# ---- the model


def find_model(word, simulated):
    """(its folder, its name): a folder, a name that `lab get` fetched, or a shipped model."""
    if word is None:
        return (NANO, "nano") if simulated else (SMALL, "small")
    fetched = device.cache_folder() / "models" / word
    if Path(word).is_dir():
        return Path(word).resolve(), Path(word).resolve().name
    if not fetched.is_dir():
        raise CourseError(f"no folder {word}, and no model of that name was fetched: "
                          f"`lab get OWNER/NAME`")
    return fetched, word


def model_with(table, desk, config, weights):
    """A model on the kernels of a table; a dense one for torch on a CPU is the faster CpuLlama.

    desk: the folder of the learner's, for the table "mine"
    """
    on_cpu = weights["model.embed_tokens.weight"].is_cpu
    if table == "torch" and on_cpu and not (config.E or config.latent):
        return CpuLlama(config, weights, cpu_kernels())
    return model_of(config, weights, kernels(table, desk))


def draft_model(word, config, dtype):
    """What --draft names: "lookup", or a model. CourseError if that is none that fits."""
    if word in (None, "lookup"):
        return word
    folder = SMALL.parent / "draft" if word == "shipped" else Path(word)
    if not folder.is_dir():
        raise CourseError(f"--draft {word}: expected lookup, shipped or the folder of a model")
    small = read_config(folder)
    if small.V != config.V:
        raise CourseError(f"--draft {word}: a vocabulary of {small.V} tokens, expected {config.V}, "
                          f"the model's own: guesses are token numbers")
    weights = read_weights(folder, small, dtype, device.torch_device())
    return model_with("torch", None, small, weights)


def listen(host, port):
    """A socket that listens. CourseError if the address is not available.

    Its connections inherit TCP_NODELAY, so they send at once what they have: else a small piece of
    a stream waits until the client has acknowledged the one before, and clients take 40 ms to do
    so. asyncio sets it only for a socket that names its protocol; create_server's does not.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=2048)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, OverflowError) as error:
        raise CourseError(f"cannot listen on {host}, port {port}: {error}") from None


# ---- the command


@app.command()
def serve(
    model: Annotated[str | None, typer.Argument(
        metavar="MODEL", help="a folder as Hugging Face has it, or OWNER/NAME as fetched by "
                              "`lab get`; else the small model, or the nano model if kernels "
                              "run in the simulator")] = None,
    table: Annotated[str, typer.Option("--kernels", help="torch, triton, cuda or mine")] = "torch",
    host: Annotated[str, typer.Option(help="0.0.0.0 for the whole network")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one")] = 8000,
    api_key: Annotated[str | None, typer.Option(help="that clients must send")] = None,
    allow_host: Annotated[list[str] | None, typer.Option(
        metavar="NAME", help="also answer to this name or address; may be repeated")] = None,
    allow_origin: Annotated[list[str] | None, typer.Option(
        metavar="ORIGIN", help="let pages of this origin call; * for any; repeatable")] = None,
    name: Annotated[str | None, typer.Option(help="of the model, for clients")] = None,
    dtype: Annotated[str, typer.Option(help=", ".join(DTYPES))] = "float32",
    ignore: IGNORE = None,
    pages: Annotated[int | None, typer.Option(min=1, help="of 16 tokens")] = None,
    max_seqs: Annotated[int, typer.Option(min=1, help="answers that run at a time")] = 32,
    budget: Annotated[int, typer.Option(min=1, help="tokens a step")] = 256,
    chunk: Annotated[int | None, typer.Option(min=1, help="of a prompt, tokens a step")] = None,
    draft: Annotated[str | None, typer.Option(
        metavar="lookup|shipped|FOLDER",
        help="guess the next tokens, from the text itself or by a model, and verify them in one "
             "step. With a model a seed gives other answers than without one")] = None,
    guesses: Annotated[int, typer.Option(
        min=1, max=16, help="of a request in a step, at most; fewer where they do not pay")] = 4,
    host_pages: Annotated[int | None, typer.Option(
        min=1, help="pages kept in host memory when they are taken for something else; vLLM's "
                    "kv_offloading_size, which counts GiB")] = None,
    kv_file: Annotated[Path | None, typer.Option(
        metavar="PATH", help="a file for pages that fall out of host memory; a later server with "
                             "the same weights finds them")] = None,
    kv_file_pages: Annotated[int | None, typer.Option(
        min=1, help="of the file, at most; 4 times --host-pages if not given")] = None,
    kv_file_reset: Annotated[bool, typer.Option(
        "--kv-file-reset", help="forget what is in the file, whosever it is")] = False,
    async_scheduling: Annotated[bool, typer.Option(
        "--async-scheduling", help="launch a step before the previous one is read")] = False,
    tp: Annotated[int, typer.Option(
        min=1, help="ranks that share every layer; vLLM's tensor_parallel_size")] = 1,
    queue: Annotated[int, typer.Option(min=0, help="answers that wait")] = Limits.queue,
    body: Annotated[int, typer.Option(min=1, help="bytes of a request")] = Limits.body,
    tokens: Annotated[int | None, typer.Option(min=1, help="of an answer")] = None,
    seconds: Annotated[float, typer.Option(min=0.001, help="for an answer")] = Limits.seconds,
    grace: Annotated[float, typer.Option(min=0, help="seconds for open answers at the end")]
        = Limits.grace,
    desk: Annotated[Path | None, typer.Option(help="a desk other than work/")] = None,
):
    """Serve a model with OpenAI's API. Ctrl-C or SIGTERM ends it, after the open answers."""
    simulated = table != "torch" and device.gpu() is None
    if simulated:
        device.use_simulator()
    folder, called = find_model(model, simulated)
    mine = own_desk(desk) if table == "mine" else None
    try:
        if dtype not in DTYPES:
            raise CourseError(f"--dtype {dtype!r}: expected {', '.join(DTYPES)}")
        config = read_config(folder, ignore or ())
        tokenizer = Letters() if is_nano(folder) else Tokenizer(folder, config)
        check_ranks(config, tp, called)
        tiers = tiers_of(host_pages, kv_file, kv_file_pages, kv_file_reset, tp)
        weights = read_weights(folder, config, DTYPES[dtype],
                               device.torch_device() if tp == 1 else "cpu")
        parts = PARTS | (GUESSING if draft else {}) | (TIERED if tiers else {})
        candidates = {part: candidate_of(mine, part) if mine else None for part in parts}
        plan = Plan(str(folder), tp, table, str(mine.folder) if mine else None, dtype,
                    tuple(ignore or ()))
        team = Team(plan) if tp > 1 else None
        llama = (team.lead(config, weights) if team else
                 model_with(table, mine.folder if mine else None, config, weights))
        check_table(folder, config, llama.ops, DTYPES[dtype])
        below = host_of(tiers, config, weights, 16, candidates["read_record"] or read_record) \
            if tiers else None
        engine = build(llama, tokenizer, llama.ops, candidates, pages, max_seqs=max_seqs,
                       budget=budget, chunk=chunk, draft=draft_model(draft, config, DTYPES[dtype]),
                       guesses=guesses, overlap=async_scheduling, below=below)
    except ValueError as error:
        raise CourseError(str(error)) from None
    print(f"{called}: {sum(w.numel() for w in weights.values()):,} weights, on "
          f"{f'{tp} ranks of ' if team else ''}"
          f"{'this CPU, kernels in the simulator' if simulated else plan.place}")
    say_whose(llama.ops.sources(), used(llama.alone() if team else llama), candidates)
    if DTYPES[dtype] != torch.float32 and weights["model.embed_tokens.weight"].is_cpu:
        print(f"  {dtype} is slow on a CPU: the kernels made for one take float32; without --dtype "
              f"it answers several times as fast")
    if isinstance(llama, CpuLlama) and None not in tile(llama).arrays(1):
        print(f"  {'decoding':16} cpu        CpuLlama.forward, in NumPy around the table")
    del weights                         # of several ranks each keeps its part alone
    run(engine, name or called, Limits(body, tokens, queue, seconds, grace), api_key,
        listen(host, port), candidates["Bridge"] or Bridge, team,
        Access((host, *(allow_host or ())), tuple(allow_origin or ())))


def say_whose(sources, names, candidates):
    """Whose kernels and parts of the engine run, one a line."""
    parts = dict(candidates)
    sample = "mine" if parts.pop("sample_rows") else sources["sample"]
    lines = [*whose(sources | {"sample": sample}, [*names, "sample"]),
             *(f"  {part:16} {'mine' if candidate else 'reference'}"
               for part, candidate in parts.items())]
    print("\n".join(lines))
    yours = sum(line.split()[1] == "mine" for line in lines)
    if yours:
        print(f"  yours: {yours}")


def run(engine, name, limits, api_key, listening, kind, team, access):
    """Serve until told to stop. CourseError if a rank ends.

    kind, access: as make_app takes them    team: the processes of the other ranks, or None
    """
    from layer3_system.server.app import Listener, make_app  # FastAPI takes half a second

    def say():
        print(where(engine.pool, listening.getsockname(), name, api_key), flush=True)

    app = make_app(engine, name, limits, api_key, kind, access)
    listener = Listener(app, listening=say)
    if team:
        team.watched_by(partial(setattr, listener, "should_exit", True))
    listener.run(sockets=[listening])
    if team and team.fault:
        raise CourseError(team.fault)


def where(pool, address, name, api_key):
    """The message once it listens: where, and what to try."""
    host, port = address[:2]
    key = f" -H 'Authorization: Bearer {api_key}'" if api_key else ""
    prompt = json.dumps({"model": name, "prompt": "Once upon a time", "max_tokens": 40})
    place = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    text = (f"{pool.P} pages of {pool.S} tokens. Listening on {place}, try\n"
            f"  curl {place}/v1/completions{key} -H 'Content-Type: application/json' -d '{prompt}'")
    if not is_own(host) and not api_key:
        text += "\n  anyone who reaches this address can use it: --api-key guards it"
    return text


if __name__ == "__main__":
    main(app, "serve")
