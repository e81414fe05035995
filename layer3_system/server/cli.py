"""A model behind OpenAI's API:  lab serve [MODEL] [--kernels torch|triton|cuda|mine]

It prints whose kernel computes each operation and whose part of the engine runs, then listens: on
this machine alone, unless --host says otherwise.
"""

import json
import signal
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from day02_overview import NANO
from lab import device
from lab.course import CourseError
from lab.terminal import main, own_desk
from layer2_graph.generate import IGNORE
from layer2_graph.models import SMALL
from layer3_system.disaggregation.fleet import FleetError
from layer3_system.s08_server import Bridge, Limits
from layer3_system.server.assembly import DTYPES, Setup, assemble
from layer3_system.server.fleet_engine import start_fleet
from layer3_system.server.hosts import Access, is_own
from layer3_system.server.sockets import listen
from layer3_system.server.tiers import Tiers

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def tiers_of(host_pages, file, records, reset, tp):
    """The Tiers that were asked for, or None.
    CourseError if they do not go together."""
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


def check_processes(setup, replicas, prefill, decode):
    """CourseError if flags do not go together with engines in processes of their own."""
    if (prefill is None) != (decode is None):
        raise CourseError("--prefill and --decode: expected both, or neither")
    if prefill and replicas:
        raise CourseError("--replicas and --prefill exclude each other: a replica computes its own "
                          "prompts")
    flag = "--replicas" if replicas else "--prefill" if prefill else None
    if flag and setup.tp > 1:
        raise CourseError(f"{flag} and --tp exclude each other: an engine of ranks is one process "
                          f"and its children")
    if replicas and setup.tiers and setup.tiers.file:
        raise CourseError("--replicas and --kv-file exclude each other: a file belongs to one "
                          "engine")
    if prefill and setup.tiers:
        raise CourseError("--prefill and --host-pages exclude each other: a page must not move "
                          "while it is sent")
    if prefill:
        check_travel(setup.config(), setup.called)


def check_travel(config, called):
    """CourseError if a model's cache is more than keys and values of each head: those travel."""
    if config.linear or config.latent:
        raise CourseError(f"--prefill: {called} has a cache of another kind than keys and values, "
                          f"which are what is sent")


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
    api_key: Annotated[str | None, typer.Option(help="the key that clients must send")] = None,
    allow_host: Annotated[list[str] | None, typer.Option(
        metavar="NAME", help="also answer to this name or address; may be repeated")] = None,
    allow_origin: Annotated[list[str] | None, typer.Option(
        metavar="ORIGIN", help="let pages of this origin call; * for any; repeatable")] = None,
    name: Annotated[str | None, typer.Option(help="the model's name for clients")] = None,
    dtype: Annotated[str, typer.Option(help=", ".join(DTYPES))] = "float32",
    ignore: IGNORE = None,
    pages: Annotated[int | None, typer.Option(
        min=1, help="pages in the pool, 16 tokens each")] = None,
    max_seqs: Annotated[int, typer.Option(min=1, help="most answers that run at a time")] = 32,
    budget: Annotated[int, typer.Option(min=1, help="most tokens in one step")] = 256,
    chunk: Annotated[int | None, typer.Option(
        min=1, help="most tokens of one prompt in a step")] = None,
    draft: Annotated[str | None, typer.Option(
        metavar="lookup|shipped|FOLDER",
        help="guess the next tokens, from the text itself or by a model, and verify them in one "
             "step. With a model a seed gives other answers than without one")] = None,
    guesses: Annotated[int, typer.Option(
        min=1, max=16, help="most guesses for a request in a step; fewer where they "
                            "do not pay")] = 4,
    host_pages: Annotated[int | None, typer.Option(
        min=1, help="pages kept in host memory when they are taken for something else; vLLM's "
                    "kv_offloading_size, which counts GiB")] = None,
    kv_file: Annotated[Path | None, typer.Option(
        metavar="PATH", help="a file for pages that fall out of host memory; a later server with "
                             "the same weights finds them")] = None,
    kv_file_pages: Annotated[int | None, typer.Option(
        min=1, help="most pages in the file; 4 times --host-pages if not given")] = None,
    kv_file_reset: Annotated[bool, typer.Option(
        "--kv-file-reset", help="forget what is in the file, whosever it is")] = False,
    async_scheduling: Annotated[bool, typer.Option(
        "--async-scheduling", help="launch a step before the previous one is read")] = False,
    tp: Annotated[int, typer.Option(
        min=1, help="ranks that share every layer; vLLM's tensor_parallel_size")] = 1,
    replicas: Annotated[int | None, typer.Option(
        min=1, help="whole engines, each in a process of its own; one that ends is started "
                    "again")] = None,
    prefill: Annotated[int | None, typer.Option(
        min=1, help="processes that compute prompts and send their pages to those of "
                    "--decode")] = None,
    decode: Annotated[int | None, typer.Option(
        min=1, help="processes that write answers")] = None,
    queue: Annotated[int, typer.Option(min=0, help="most answers that wait")] = Limits.queue,
    body: Annotated[int, typer.Option(min=1, help="most bytes of a request")] = Limits.body,
    tokens: Annotated[int | None, typer.Option(min=1, help="most tokens in one answer")] = None,
    seconds: Annotated[float, typer.Option(min=0.001, help="time limit for one answer")]
        = Limits.seconds,
    grace: Annotated[float, typer.Option(min=0, help="seconds for open answers at the end")]
        = Limits.grace,
    desk: Annotated[Path | None, typer.Option(help="a desk other than work/")] = None,
):
    """Serve a model with OpenAI's API.
    Ctrl-C or SIGTERM ends it, after the open answers."""
    if api_key == "":
        raise CourseError("--api-key: expected a key, found an empty text")
    with ending_quietly():
        folder, called = find_model(model, table != "torch" and device.gpu() is None)
        own_folder = own_desk(desk).folder if table == "mine" else None
        tiers = tiers_of(host_pages, kv_file, kv_file_pages, kv_file_reset, tp)
        setup = Setup(folder, called, table, own_folder, dtype, tuple(ignore or ()), pages,
                      {"max_seqs": max_seqs, "budget": budget, "chunk": chunk}, draft, guesses,
                      async_scheduling, tiers, tp, prefill is not None)
        count = replicas or decode
        check_processes(setup, replicas, prefill, decode)
        try:
            engine, candidates, summary, team = (
                start_fleet(setup, name or called, prefill or 0, count) if count
                else assemble(setup))
        except (ValueError, FleetError) as error:
            raise CourseError(str(error)) from None
        print(summary)
        listening = listen(host, port)
        listener = listener_of(engine, name or called, Limits(body, tokens, queue, seconds, grace),
                               api_key, listening, candidates["Bridge"] or Bridge,
                               Access((host, *(allow_host or ())), tuple(allow_origin or ())))
    run(listener, listening, team)


@contextmanager
def ending_quietly():
    """A signal before the server listens ends the process with status 0."""
    def leave(number, frame):
        raise SystemExit(0)

    signals = signal.SIGINT, signal.SIGTERM
    if threading.current_thread() is not threading.main_thread():
        yield                                               # only the main thread gets signals
        return
    before = [signal.signal(number, leave) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)


def listener_of(engine, name, limits, api_key, listening, kind, access):
    """What serves an engine at a socket. kind, access: as make_app takes them"""
    from layer3_system.server.app import Listener, make_app  # FastAPI takes half a second

    def say():
        print(where(engine.pool, listening.getsockname(), name, api_key), flush=True)

    return Listener(make_app(engine, name, limits, api_key, kind, access), listening=say)


def run(listener, listening, team):
    """Serve until told to stop.
    CourseError if a rank ends. team: the processes of the other ranks, or None"""
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
