"""What an engine is doing now, for a page that shows it: `GET /engine`

pages, slots        P pages of S slots
requests            {id: {"status": "running" or "waiting", "table": [page], "computed": tokens in
                    its pages, "known": tokens of prompt and answer, "prompt": tokens of the prompt,
                    "cached": of those, found in pages, "preemptions", "age": seconds}}, running
                    ones first, in the order of the next step, then waiting ones, at most 100
refs                [holders of page 0, 1, …]: above 1 it is shared
remembered          [free pages whose contents are known, the next to be taken first]
tiers               memories below the pages, from the top: [{"name", "pages", "used"}]
running, waiting    how many
steps               the last 200: {"step": its number, "at": seconds before now, "counts": {id:
                    tokens}, "prompts": {id: of those, tokens of its prompt}}
seconds             the span of the figures below
ttft, tpot          medians in seconds, of answers that began or ended; null if there are none
throughput          tokens of answers a second
"""

from collections import deque
from itertools import islice
from statistics import median

from layer3_system.file_tier import HostOverFile
from layer3_system.recorder import name_of
from layer3_system.s11_kv_offload import TieredPool

BACK = 10.0             # seconds
SHOWN = 100             # waiting requests


class Live:
    """The last steps of an engine; an observer of its Bridge, asked in the engine's thread."""

    def __init__(self, steps=200):
        self.steps = deque(maxlen=steps)
        self.number = 0
        self.written, self.ttft, self.tpot = deque(), deque(), deque()      # (seconds, value)

    def stepped(self, engine, outputs):
        now = engine.clock()
        self.number += 1
        counts = {name_of(r): n for r, n in engine.counts.items()}
        prompts = {name_of(r): part for r, n in engine.counts.items()
                   if (part := min(len(r.prompt) - engine.begins[r], n)) > 0}
        self.steps.append((self.number, now, counts, prompts))
        self.written.append((now, sum(len(output.tokens) for output in outputs)))
        for request, tokens, _, reason in outputs:
            times = request.token_times
            if tokens and len(times) == len(tokens):
                self.ttft.append((now, times[0] - request.arrival))
            if reason and len(times) > 1:
                self.tpot.append((now, (times[-1] - times[0]) / (len(times) - 1)))
        self.forget(now)

    def aborted(self, requests):
        """Nothing to keep."""

    def forget(self, now):
        for table in (self.written, self.ttft, self.tpot):
            while table and table[0][0] < now - BACK:
                table.popleft()

    def state(self, engine):
        """The fields that this module's docstring lists."""
        now = engine.clock()
        pool = engine.pool
        scheduler = engine.scheduler
        self.forget(now)
        shown = [*scheduler.running, *islice(scheduler.waiting, SHOWN)]
        return {
            "pages": pool.P, "slots": pool.S, "refs": list(pool.refs),
            "remembered": [page for page in pool.free if pool.is_cached(page)],
            "tiers": tiers_of(pool),
            "requests": {name_of(r): self.request(r, now) for r in shown},
            "running": len(scheduler.running), "waiting": len(scheduler.waiting),
            "steps": [{"step": number, "at": now - at, "counts": counts, "prompts": prompts}
                      for number, at, counts, prompts in self.steps],
            "seconds": BACK,
            "ttft": median(value for _, value in self.ttft) if self.ttft else None,
            "tpot": median(value for _, value in self.tpot) if self.tpot else None,
            "throughput": sum(n for _, n in self.written) / BACK}

    def request(self, request, now):
        return {"status": request.status, "table": list(request.table),
                "computed": request.num_computed, "known": request.num_tokens,
                "prompt": len(request.prompt), "cached": request.num_cached,
                "preemptions": request.preemptions, "age": now - request.arrival}


def tiers_of(pool):
    """How full the memories below a pool are."""
    if not isinstance(pool, TieredPool):
        return []
    host = pool.host
    rows = [{"name": "host memory", "pages": host.places, "used": len(host.place_of)}]
    if isinstance(host, HostOverFile):
        file = host.file
        rows.append({"name": "file", "pages": file.records, "used": len(file.slot_of)})
    return rows
