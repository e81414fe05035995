"""Load on a server, and how long its clients wait:  lab load [URL] [--rates 1,2,4] …

Requests arrive at random, or as a trace says; each is a streamed completion of a given length.
The times are the clients' own.
Without rates it sends all requests at once, which shows about how many tokens a second the server
can write, and tries shares of that.
The curve goes into a JSON file and a picture.
"""

import asyncio
import datetime
import json
import os
import time
from pathlib import Path
from typing import Annotated

import httpx
import numpy as np
import typer
from rich.progress import Progress

from lab.course import CourseError
from lab.device import cpu_model
from lab.terminal import main
from layer3_system.s03_static_batching import Job, mixed_trace
from layer3_system.s09_load_test import (
    QS,
    Objective,
    Sample,
    Summary,
    poisson_arrivals,
    summarise,
)

SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.1, 1.5)      # of that of all at once, without rates
LETTERS = range(97, 123)        # tokens of prompts: every shipped model knows these numbers
COLUMNS = ("req/s", "asked", "tok/s", "good/s", "TTFT", "p90", "p99", "TPOT", "p90", "p99", "E2E",
           "failed")

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


# ---- one request


async def ask(client, model, prompt, job, began):
    """Send one request when its time has come, and read its answer: a Sample."""
    await asyncio.sleep(max(began + job.arrival - time.monotonic(), 0))
    body = {"model": model, "prompt": prompt, "max_tokens": job.output, "ignore_eos": True,
            "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    first = last = None
    tokens = 0
    wrong = None
    try:
        async with client.stream("POST", "/v1/completions", json=body) as reply:
            if reply.status_code != 200:
                wrong = error_of(await reply.aread())
            async for line in reply.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                last = time.monotonic() - began
                first = last if first is None else first
                wrong = wrong or (event.get("error") or {}).get("message")
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    except httpx.HTTPError as error:
        wrong = f"{type(error).__name__}: {error}"
    if wrong is None and tokens != job.output:
        wrong = f"{tokens} tokens came, {job.output} were asked for"
    return Sample(job.arrival, first, last, tokens, wrong)


def error_of(body):
    try:
        return json.loads(body)["error"]["message"]
    except (ValueError, LookupError, TypeError):
        return body[:200].decode(errors="replace")


# ---- one test


async def test(url, model, headers, jobs, progress, title):
    """[Sample] of a trace."""
    rng = np.random.default_rng(len(jobs))
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=600,
                                 trust_env=False) as client:
        bar = progress.add_task(title, total=len(jobs))
        began = time.monotonic()
        tasks = [asyncio.create_task(ask(client, model, rng.choice(LETTERS, job.prompt).tolist(),
                                         job, began)) for job in jobs]
        for task in tasks:
            task.add_done_callback(lambda _: progress.advance(bar))
        return await asyncio.gather(*tasks)


def read_trace(path):
    """[Job] of a file: a line of JSON each, with arrival in seconds, prompt and output in tokens.
    CourseError names a line that is wrong."""
    jobs = []
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CourseError(f"{path}: {error}") from None
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            job = Job(float(entry["arrival"]), int(entry["prompt"]), int(entry["output"]))
        except (ValueError, LookupError, TypeError):
            job = None
        if job is None or job.arrival < 0 or min(job.prompt, job.output) < 1:
            raise CourseError(f"{path}, line {number}: expected {{\"arrival\": seconds, "
                              f"\"prompt\": tokens, \"output\": tokens}}, found {line[:80]!r}")
        jobs.append(job)
    if not jobs:
        raise CourseError(f"{path} holds no request")
    return jobs


def at_rate(jobs, rate):
    """The same requests, arriving at random."""
    arrivals = poisson_arrivals(rate, len(jobs), np.random.default_rng(0))
    return [job._replace(arrival=float(t)) for job, t in zip(jobs, arrivals, strict=True)]


# ---- the result


def line(title, s):
    """A row of the table.
    Times are in milliseconds, medians unless a percentile is named."""
    def ms(value):
        return "–" if value is None else f"{1000 * value:.0f}"

    offered = "–" if s.offered is None else f"{s.offered:.0f}"
    return (title, offered, f"{s.throughput:.0f}", f"{s.goodput:.2f}", *map(ms, s.ttft.values()),
            *map(ms, s.tpot.values()), ms(s.e2e[0.5]), str(s.failed))


def draw(curve, objective):
    """How long clients wait against how much the server writes: a figure."""
    import matplotlib.pyplot as plt

    from lab.plots import GREY, INK, closed

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    x = [summary.throughput for summary in curve]
    for panel, name, limit in zip(panels, ("ttft", "tpot"), objective, strict=True):
        for q, style in zip(QS, ("-o", "--o", ":o"), strict=True):
            y = [1000 * (getattr(summary, name)[q] or float("nan")) for summary in curve]
            panel.plot(x, y, style, color=INK, markersize=4, label=f"p{100 * q:g}")
        panel.axhline(1000 * limit, color=GREY, linewidth=1)
        panel.annotate("limit", (x[0], 1000 * limit), color=GREY, fontsize=8, va="bottom")
        panel.set(xlabel="tokens a second", yscale="log",
                  title=f"{name.upper()}, ms, against throughput")
        panel.legend(frameon=False)
    return closed(figure)


# ---- the command


def rates_of(text):
    """[requests a second] of "1,2,4"; CourseError says what is wrong."""
    try:
        rates = [float(word) for word in text.split(",")]
    except ValueError:
        rates = []
    if not rates or min(rates) <= 0 or rates != sorted(rates):
        raise CourseError(f"--rates {text!r}: expected ascending numbers above 0, as 1,2,4")
    return rates


def model_of(url, headers):
    """The name of the model that a server has.
    CourseError if there is no server."""
    try:
        reply = httpx.get(f"{url}/v1/models", headers=headers, timeout=10, trust_env=False)
        if reply.status_code != 200:
            raise CourseError(f"{url}: {error_of(reply.content)}")
        return reply.json()["data"][0]["id"]
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise CourseError(f"no server at {url}: {error}. `lab serve` starts one") from None
    except (ValueError, LookupError, TypeError):
        raise CourseError(f"{url}/v1/models: expected OpenAI's list of models") from None


@app.command()
def load(
    url: Annotated[str, typer.Argument(help="a server's address, as lab serve prints it")]
        = "http://127.0.0.1:8000",
    rates: Annotated[str | None, typer.Option(help="requests a second, as 1,2,4")] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="seconds in which requests arrive")] = 20,
    requests: Annotated[int, typer.Option(min=1, help="requests, if all come at once")] = 100,
    prompt: Annotated[int, typer.Option(min=1, help="median tokens of a prompt")] = 48,
    output: Annotated[int, typer.Option(min=1, help="median tokens of an answer")] = 48,
    most: Annotated[int, typer.Option(min=1, help="tokens of a prompt, and of an answer")] = 192,
    trace: Annotated[Path | None, typer.Option(
        metavar="FILE", help="replay it: lines of JSON with arrival, prompt, output")] = None,
    ttft: Annotated[float, typer.Option(help="objective, seconds")] = 0.5,
    tpot: Annotated[float, typer.Option(help="objective, seconds")] = 0.05,
    api_key: Annotated[str | None, typer.Option(help="the server's key")] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="file for the curve")]
        = Path("load.json"),
):
    """Measure a server under load, up to saturation.
    Shows TTFT, TPOT, throughput and goodput."""
    url = url.rstrip("/")
    objective = Objective(ttft, tpot)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    wanted = None if rates is None else rates_of(rates)
    jobs = read_trace(trace) if trace else None
    model = model_of(url, headers)
    points = []
    before = os.getloadavg()[0]

    def mixed(count):
        return mixed_trace(max(count, 1), np.random.default_rng(1), prompt=(prompt, most),
                           output=(output, most))

    with Progress() as progress:
        def measure(title, rate, jobs):
            samples = asyncio.run(test(url, model, headers, jobs, progress, title))
            last = max(job.arrival for job in jobs)
            offered = sum(job.output for job in jobs) / last if last else None
            points.append((title, rate, summarise(samples, objective, offered)))
            wrong = [s.error for s in samples if s.error]
            if wrong:
                progress.console.print(f"{title}: {len(wrong)} failed, the first: {wrong[0]}")

        if trace:
            measure("as the trace says", None, jobs)
        elif not wanted:
            measure("all at once", None, mixed(requests))
            whole = points[0][-1]
            if whole.failed == whole.requests:
                raise CourseError("all at once: every request failed, so there is no rate to share")
            wanted = [share * (whole.requests - whole.failed) / whole.seconds for share in SHARES]
        for rate in wanted or ():
            measure(f"{rate:.3g}", rate, at_rate(mixed(round(rate * seconds)), rate))
    table(points)
    write_curve(out, model, before, objective, points)
    files = [out]
    curve = [summary for _, rate, summary in points if rate]
    if len(curve) > 1:
        files.append(out.with_suffix(".png"))
        draw(curve, objective).savefig(files[-1], dpi=120)
    print(f"in {' and '.join(map(str, files))}")


def write_curve(path, model, before, objective, points):
    """A file that `read_curve` reads. before: the client's load
    points: (title, rate, Summary)"""
    path.write_text(json.dumps({
        "date": datetime.date.today().isoformat(), "model": model,
        "client": {"cpu": cpu_model(), "cores": len(os.sched_getaffinity(0)),
                   "load_before": before},
        "objective": objective._asdict(),
        "tests": [{"rate": rate, **as_json(summary)} for _, rate, summary in points]},
        indent=1) + "\n", "utf-8")


def read_curve(path):
    """(Objective, {rate: Summary}) of a file that `lab load` wrote; None stands for all at once."""
    data = json.loads(path.read_text("utf-8"))
    curve = {}
    for test in data["tests"]:
        rate = test.pop("rate")
        curve[rate] = Summary(**{
            name: {float(q): v for q, v in value.items()} if isinstance(value, dict) else value
            for name, value in test.items()})
    return Objective(**data["objective"]), curve


def as_json(summary):
    return {name: {str(q): v for q, v in value.items()} if isinstance(value, dict) else value
            for name, value in summary._asdict().items()}


def table(rows):
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for column in COLUMNS:
        grid.add_column(column, justify="right", no_wrap=True)
    for title, _, summary in rows:
        grid.add_row(*line(title, summary))
    Console().print(grid)
    print("times in ms")


if __name__ == "__main__":
    main(app, "load")
