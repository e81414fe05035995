"""s07 · The engine: scheduler, pages, model and sampler, one step after the other

B: requests of a step   T: its new tokens, of all of them   S: slots of a page   V: vocabulary
A step asks the scheduler who computes how much, lays it out for the model, samples where a request
has caught up with its tokens, and tells everybody what is new. It keeps no phases: a prompt, a part
of one, and one token more are the same to it.
Costs O(T + B · pages of the longest table) of the host a step, and a look at every token's text.
"""

from itertools import accumulate

import torch

from layer2_graph import Step
from layer3_system.bare_engine import BareEngine, Flight, Output, draws_of, sampling
from layer3_system.s02_block_pool import Broken, check_pool, slots_of

__all__ = ["Engine", "Flight", "Output", "build_step", "check_engine"]


# ---- what the model gets


def predict_steps():
    """Tokens that each step computes: [(of a, of b, of c)], a row a step, until all are over.

    Three requests come at once, in this order, and nothing ends their answers but length:
    a: a prompt of 10 tokens, 2 to be written   b: 3, and 4   c: 5, and 1
    A step computes at most 8 tokens. There are pages and seats for all.
    """
    # exercise: who gets how much of the budget? A prompt may be cut; whose last token is needed?
    return [(8, 0, 0),          # the budget ends within a's prompt
            (2, 3, 3),          # a's rest, b, a part of c; a and b have their first token after it
            (1, 1, 2),          # a's second token is its last: nobody computes that one
            (0, 1, 0),
            (0, 1, 0)]          # b's third token, and from it the fourth


def known_tokens(request):
    """Its prompt and its answer so far; guesses; and 0 for a token that is still being computed."""
    return [*request.tokens, *request.draft, 0]


def build_step(counts, S):
    """The Step that computes the newest counts[request] of the computed tokens of each request.

    S: slots of a page. Expects num_computed to count them already, and pages for them.
    The rows of block_tables are as long as the longest table; a 0 stands where one is shorter.
    """
    # exercise: for each request its tokens, positions and slots; then tables, cu_q and lens
    tokens, positions, slots = [], [], []
    for request, n in counts.items():
        end = request.num_computed
        tokens += known_tokens(request)[end - n:end]
        positions += range(end - n, end)
        slots += slots_of(request.table, end - n, end, S)
    width = max(len(r.table) for r in counts)
    tables = [r.table + [0] * (width - len(r.table)) for r in counts]
    cu_q = [0, *accumulate(counts.values())]
    lens = [r.num_computed for r in counts]
    return Step(*map(torch.tensor, (tokens, positions, slots)), *(
        torch.tensor(a, dtype=torch.int32) for a in (tables, cu_q, lens)))


# ---- what is sampled


def to_draw(counts, every):
    """[(request, row)]: who gets a token after a step, and from which row of its scores.

    Those that have caught up: num_computed has reached num_tokens + pending, where pending counts
    tokens that a step before is still computing. Where a request has just computed its prompt, the
    answers that wait for it, request.forks, get their first token from the same row.
    every: whether the scores have a row for each token of the step, or one for each request
    """
    # exercise: go along the rows; skip who has not caught up; forks come right behind
    pairs, end = [], 0
    for b, (request, n) in enumerate(counts.items()):
        end += n
        if request.num_computed < request.num_tokens + request.pending:
            continue
        row = end - 1 if every else b
        pairs.append((request, row))
        if request.num_computed == len(request.prompt):
            pairs += [(other, row) for other in request.forks]
    return pairs


# ---- the step, and the end


def run_step(engine):
    """Compute one step, or launch it: [Output] of what is known by now.

    engine.guess() sees to guesses; engine.launch(counts) -> [Flight]; engine.commit(flight) ->
    [Output]. engine.counts holds the counts of this step, {} where nobody can run.
    With engine.overlap, what is launched waits in engine.flights for the next step to commit it.
    """
    # exercise: guess, schedule, launch; what was launched is committed now, or one step later
    engine.guess()
    engine.counts = engine.scheduler.schedule()
    flights = engine.launch(engine.counts) if engine.counts else []
    if engine.overlap:
        flights, engine.flights = engine.flights, flights
    return [output for flight in flights for output in engine.commit(flight)]


def end_request(engine, request, reason, error=None):
    """A request is over, whatever it is doing. Nothing happens where it was over before.

    scheduler.finish(request, reason) takes it out of its queue and gives back its pages. One that
    waits for another's prompt is in no queue and has none; it is in request.leader.forks. Those
    that wait for this one's prompt end with it, for the same reason. Each that ends gets its
    status, reason, error and finished_at, by engine.clock(), and counts in engine.finished.
    """
    # exercise: over already? Leave the queue or the leader; then note it, for all that end
    if request.status == "finished":
        return
    if request.leader:
        request.leader.forks.remove(request)
    else:
        engine.scheduler.finish(request, reason)
    for each in (request, *request.forks):
        each.status, each.reason, each.error = "finished", reason, error
        each.finished_at = engine.clock()
        engine.finished += 1
    request.forks = []


class Engine(BareEngine):
    """It serves requests with a model. Its parts are arguments."""

    def step(self):
        """Compute one step, or launch it; [Output] of what is known by now."""
        outputs = run_step(self)
        failed, self.failed = self.failed, []
        return outputs + [Output(request, [], "", request.reason) for request in failed]

    def forward(self, counts):
        """Run the model and sample: a Flight."""
        every = any(r.draft or r.params.prompt_logprobs is not None for r in counts)
        step = build_step(counts, self.pool.S)
        draws = draws_of(to_draw(counts, every))
        self.carry_over(step, counts)
        there = Step(*(a.to(self.device) for a in step))
        logits = (self.model.forward(there, self.pages, every=True) if every else
                  self.runner.forward(there, self.pages))           # (T or B, V)
        rows = torch.tensor([draw.row for draw in draws], dtype=torch.long, device=self.device)
        drawn = self.adjust(logits[rows], draws)    # a copy: a sampler may write to it
        tokens = self.sample(drawn, sampling(draws, self.device)) if draws else rows
        for request in {draw.request for draw in draws if draw.request in counts}:
            request.pending += 1
        if self.overlap and self.runner is not self.model:
            logits = logits.clone()             # the next step writes over a graph's
        return Flight(counts, step, draws, logits, tokens)

    def end(self, request, reason, error=None):
        """It is over, whatever it is doing. reason: stop, length, abort or error"""
        self.keep(request, reason)
        end_request(self, request, reason, error)


# ---- what must hold


def check_engine(engine):
    """Broken where one of the invariants does not hold. Call it after any step."""
    pool, scheduler = engine.pool, engine.scheduler
    running, waiting = scheduler.running, scheduler.waiting
    check_pool(pool, [*(r.table for r in [*running, *waiting]), *engine.held.values()])
    if len(running) > scheduler.max_seqs:
        raise Broken(f"{len(running)} requests run, at most {scheduler.max_seqs} may")
    if sum(engine.counts.values()) > scheduler.budget:
        raise Broken(f"{sum(engine.counts.values())} tokens in a step of at most "
                     f"{scheduler.budget}")
    for request in waiting:
        if request.table or request.num_computed or request.status != "waiting":
            raise Broken(f"{request.id} waits, with pages or as {request.status}")
    holders = {}
    for request in running:
        known, capacity = request.num_tokens + request.pending, len(request.table) * pool.S
        if request.status != "running" or not request.num_computed <= known <= request.limit:
            raise Broken(f"{request.id}: {request.num_computed} tokens computed of {known}, at "
                         f"most {request.limit}; {request.status}")
        if request.num_computed > capacity:
            raise Broken(f"{request.id}: {request.num_computed} tokens in {capacity} slots")
        for i, page in enumerate(request.table):
            holders.setdefault(page, []).append((request, i))
    for page, tables in holders.items():
        end = min([(tables[0][1] + 1) * pool.S, *(r.num_computed for r, _ in tables)])
        for request, i in tables:
            if i != tables[0][1] or request.tokens[:end] != tables[0][0].tokens[:end]:
                raise Broken(f"page {page} is shared by texts that begin apart")
    if engine.submitted != engine.finished + sum(1 + len(r.forks) for r in [*running, *waiting]):
        raise Broken("a request is neither waiting nor running nor finished")
    if not running and not waiting and not engine.held and pool.used:
        raise Broken(f"nobody is there, and {pool.used} pages are held")
