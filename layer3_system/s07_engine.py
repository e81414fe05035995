"""s07 · The engine: scheduler, pages, model and sampler, one step after another

B: requests of a step   T: its new tokens, of all of them   S: slots of a page   V: vocabulary
A step asks the scheduler which requests compute how many tokens, builds the model's input, samples
for the requests that have caught up, and returns what is new.
It knows no phases: a prompt, a chunk of one and one more token are the same to it.
Costs O(T + B · pages of the longest table) on the host a step, and the text of each new token.
"""

import logging
import time
from collections.abc import Callable, Iterable
from itertools import accumulate

import torch

from layer1_kernels import Sampling, kernels
from layer2_graph import Batch
from layer2_graph.hybrid import SeatedBatch
from layer3_system.engine.drafts import Drafter
from layer3_system.engine.draws import Flight, draw_tokens
from layer3_system.engine.intake import Codec, Grammars, Intake, default_pages
from layer3_system.engine.invariants import broken_rules
from layer3_system.engine.outputs import Output, Outputs
from layer3_system.model import Model, Runner, has_state, make_cache
from layer3_system.s01_request import Request, SamplingParams
from layer3_system.s02_block_pool import BlockPool, Broken, slots_of
from layer3_system.s03_static_batching import StaticScheduler
from layer3_system.s04_continuous_batching import Scheduler
from layer3_system.s06_prefix_cache import PrefixPool
from layer3_system.states import Seats, check_parts, unspoiled

log = logging.getLogger(__name__)

__all__ = ["Engine", "Flight", "Output", "build_step", "check_engine"]


# ---- what the model gets


def predict_steps() -> list[tuple[int, int, int]]:
    """How many tokens each step computes: [(of a, of b, of c)], a row a step, until all finish.

    The three requests arrive together, in this order, and only their length ends them:
    a: a prompt of 10 tokens, an answer of 2   b: 3, and 4   c: 5, and 1
    A step computes at most 8 tokens.
    There are enough pages and seats for all.
    """
    # exercise: how much of the budget does each get? A prompt may be split
    return [(8, 0, 0),          # the budget ends within a's prompt
            (2, 3, 3),          # the rest of a, b, part of c; then a and b have their first token
            (1, 1, 2),          # a's second token is its last: it is never computed
            (0, 1, 0),
            (0, 1, 0)]          # b's third token, and from it the fourth


def known_tokens(request: Request) -> list[int]:
    """Its prompt, its answer so far, its draft (guesses, s10), and always one 0 more.

    The 0 stands for a token that is still being computed.
    """
    return [*request.tokens, *request.draft, 0]


def as_batch(tokens: list[int], positions: list[int], slots: list[int], tables: list[list[int]],
             cu_q: list[int], lens: list[int]) -> Batch:
    """The Batch of these lists, each in the dtype that kernels expect."""
    return Batch(*map(torch.tensor, (tokens, positions, slots)), *(
        torch.tensor(a, dtype=torch.int32) for a in (tables, cu_q, lens)))


def build_step(counts: dict[Request, int], S: int) -> Batch:
    """The Batch that computes counts[request] tokens of each request.

    S: slots of a page. num_computed counts these tokens already: the last of them has position
    num_computed - 1. The tables have pages for them. block_tables has a row for each request,
    padded with 0 to the longest table.
    """
    # exercise: tokens, positions, slots, request by request; then tables, cu_q and lens; as_batch
    tokens = []
    positions = []
    slots = []
    for request, n in counts.items():
        end = request.num_computed
        tokens += known_tokens(request)[end - n:end]
        positions += range(end - n, end)
        slots += slots_of(request.table, end - n, end, S)
    width = max(len(r.table) for r in counts)
    tables = [r.table + [0] * (width - len(r.table)) for r in counts]
    cu_q = [0, *accumulate(counts.values())]
    lens = [r.num_computed for r in counts]
    return as_batch(tokens, positions, slots, tables, cu_q, lens)


def carry_over(batch: Batch, counts: dict[Request, int],
               newest: dict[Request, torch.Tensor]) -> None:
    """Put tokens that are still being computed into a batch that builds on them.
    Nothing is read from the device.

    newest: {request: its token that is still being computed}
    """
    for request, end in zip(counts, accumulate(counts.values()), strict=True):
        if newest and request.num_computed > request.num_tokens + len(request.draft):
            batch.tokens[end - 1] = newest[request]


# ---- what is sampled


def to_draw(counts: dict[Request, int], every: bool) -> list[tuple[Request, int]]:
    """[(request, row)]: the requests that get a token after a step, and the row of the scores that
    each is drawn from.

    A request has caught up if num_computed >= num_tokens + pending (above it only with guesses);
    pending counts tokens that an earlier step is still computing.
    When a request has just completed its prompt (num_computed == len(prompt)), the answers in
    request.forks get their first token from the same row and follow it in the list. every: False if
    the scores have a row for each request; True if they have one for each token of the step: a
    request's row is then that of the last of its tokens
    """
    # exercise: walk along the rows; skip requests that have not caught up; a request's forks follow
    pairs = []
    end = 0
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


def run_step(engine: "Engine") -> list[Output]:
    """Take one step; [Output] of everything committed in it.

    Sets engine.counts to this step's counts; if they are empty, it launches nothing.
    Without engine.overlap it commits what it launched.
    With overlap it commits engine.flights, those of the step before, and stores the new ones there.
    """
    # exercise: guess, schedule, launch; commit these flights now, or with overlap one step later
    engine.guess()
    engine.counts = engine.scheduler.schedule()
    flights = engine.launch(engine.counts) if engine.counts else []
    if engine.overlap:
        flights, engine.flights = engine.flights, flights
    return [output for flight in flights for output in engine.commit(flight)]


def end_request(engine: "Engine", request: Request, reason: str, error: str | None = None) -> None:
    """Finish a request in any state; a second call does nothing.

    The answers in its own forks finish with it, for the same reason; request.forks need not be
    emptied.
    Each finished request gets status "finished", reason, error and finished_at = engine.clock(),
    and adds 1 to engine.finished.
    """
    # exercise: already finished? Remove it from scheduler or leader; then record it and its forks
    if request.status == "finished":
        return
    if request.leader:
        request.leader.forks.remove(request)
    else:
        engine.scheduler.finish(request, reason)
    for each in (request, *request.forks):
        each.status = "finished"
        each.reason = reason
        each.error = error
        each.finished_at = engine.clock()
        engine.finished += 1
    request.forks = []


class Engine:
    """Serves requests with a model.
    Pool, scheduler and sampler are arguments."""

    def __init__(self, model: Model, tokenizer: Codec, pool: BlockPool | None = None,
                 scheduler: Scheduler | StaticScheduler | None = None,
                 sample: Callable[[torch.Tensor, Sampling], torch.Tensor] | None = None,
                 drafter: Drafter | None = None, overlap: bool = False,
                 clock: Callable[[], float] = time.monotonic,
                 grammars: Grammars | None = None):
        """model: with config and forward, like g01's Llama    tokenizer: with encode and decode
        pool: by default pages for 16 contexts, at most 2¹⁶ tokens; no PrefixPool for a model that
        keeps a state of each request (g13), and no drafter: ValueError
        scheduler: on that pool    sample: like the kernels' `sample`
        drafter: makes guesses, which steps verify
        overlap: launch a step before the results of the previous one are read
        grammars: for answers that must match something (s13)
        """
        if overlap and drafter:
            raise ValueError("Engine: overlap and a drafter exclude each other: guesses depend on "
                             "the newest token")
        state = has_state(model)
        if state:
            check_parts(pool, drafter)
        self.model = model
        self.runner: Runner = model
        self.tokenizer = tokenizer
        self.clock = clock
        self.pool = pool or (BlockPool if state else PrefixPool)(default_pages(model.config, 16))
        self.scheduler = scheduler or Scheduler(self.pool)
        self.sample = sample or kernels("torch").sample
        self.drafter = drafter
        self.overlap = overlap
        self.pages = make_cache(model, self.pool.P, self.pool.S, self.scheduler.max_seqs)
        self.seats = Seats(self.scheduler.max_seqs) if state else None
        self.intake = Intake(model.config, tokenizer, self.pool, self.scheduler, clock,
                             grammars, state)
        self.outputs = Outputs(self.pool, self.scheduler, model.config.ends, clock, drafter)
        self.room = self.intake.room
        self.counts: dict[Request, int] = {}    # of the newest step: {request: tokens it computes}
        self.begins: dict[Request, int] = {}    # {request: tokens computed before that step}
        self.computing: dict[Request, int] = {}     # of the newest forward
        self.flights: list[Flight] = []         # launched and not committed
        self.failed: list[Request] = []         # ended by the newest launch
        self.submitted = 0
        self.finished = 0

    def use(self, runner: Runner) -> None:
        """Compute with another forward, such as g06's GraphRunner on this engine's pages, in steps
        for which one row of scores a request is enough."""
        self.runner = runner

    # ---- requests

    def submit(self, prompt: list[int], params: SamplingParams | None = None,
               id: str | None = None, salt: str = "", hold: bool = False,
               received: tuple[torch.Tensor, torch.Tensor] | None = None) -> list[Request]:
        """Queue a prompt: its [Request], one for each of its n answers.
        RequestError if it cannot be served.

        hold: keep the pages of an answer after its end, until `release`
        received: keys and values of the prompt, computed elsewhere, as `Pages.read` gives them
        """
        answers = self.intake.submit(prompt, params or SamplingParams(), id, salt, hold, received)
        self.submitted += len(answers)
        return answers

    def check(self, prompt: list[int], params: SamplingParams) -> None:
        """RequestError if a prompt cannot be served."""
        self.intake.check(prompt, params)

    def abort(self, requests: Iterable[Request]) -> None:
        """End requests in any state; finished ones stay as they are."""
        for request in requests:
            self.end(request, "abort")

    def end(self, request: Request, reason: str, error: str | None = None) -> None:
        """Finish a request in any state. reason: stop, length, abort or error"""
        if reason in ("stop", "length"):
            self.intake.keep(request)
        end_request(self, request, reason, error)

    def release(self, request: Request) -> None:
        """Give back the pages held for a finished request; once."""
        self.intake.release(request)

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self.scheduler.running or self.scheduler.waiting or self.flights)

    # ---- a step

    def step(self) -> list[Output]:
        """Take one step: [Output] of everything committed in it."""
        outputs = self.catch_up() if any(r.guide for r in self.scheduler.running) else []
        self.begins = {}
        outputs += run_step(self)
        failed = self.failed
        self.failed = []
        return outputs + [Output(request, [], "", request.reason) for request in failed]

    def catch_up(self) -> list[Output]:
        """Commit what was launched: a mask depends on the newest token."""
        flights = self.flights
        self.flights = []
        return [output for flight in flights for output in self.commit(flight)]

    def guess(self) -> None:
        """Make guesses for requests that lack one token, no more than they may still write."""
        if self.drafter is None:
            return
        requests = [r for r in self.scheduler.running
                    if r.num_tokens - r.num_computed == 1 and not r.forks]
        for request, guesses in zip(requests, self.drafter.propose(requests), strict=True):
            if request.guide:
                guesses = request.guide.standing(guesses)
            request.draft = guesses[:max(request.limit - request.num_tokens - 1, 0)]

    def launch(self, counts: dict[Request, int]) -> list[Flight]:
        """One Flight of all requests; if a kernel raises, one Flight each, so that only the request
        at fault ends."""
        now = self.clock()
        for request, n in counts.items():
            self.begins[request] = request.num_computed - n
            request.scheduled_at = request.scheduled_at or now
            if request.received:
                self.pages.write(request.table, *request.received)
                request.received = None
        self.pages.copy(self.scheduler.copies)
        try:
            return [self.forward(counts)]
        except Exception as error:              # a kernel may raise anything
            if len(counts) > 1:
                self.scheduler.copies = {}
                return [flight for request, n in counts.items()
                        for flight in self.launch({request: n})]
            (request,) = counts
            log.warning("request %s failed: %s: %s", request.id, type(error).__name__, error)
            self.failed += [request, *request.forks]
            self.end(request, "error", f"{type(error).__name__}: {error}")
            return []

    def forward(self, counts: dict[Request, int]) -> Flight:
        """Run the model and sample: a Flight."""
        every = any(r.draft or r.params.prompt_logprobs is not None for r in counts)
        newest = {request: token for flight in self.flights
                  for request, token in flight.newest.items()}
        self.computing = counts
        batch = build_step(counts, self.pool.S)
        device = self.model.embedding.device
        on_device = Batch(*(array.to(device) for array in batch))
        carry_over(on_device, counts, newest)
        if self.seats:
            rows = self.seats.of([*counts], self.scheduler.running)
            on_device = SeatedBatch(on_device, rows.to(device))
        pairs = to_draw(counts, every)
        with unspoiled(self.pages, on_device):
            logits = (self.model.forward(on_device, self.pages, every=True) if every else
                      self.runner.forward(on_device, self.pages))       # (T or B, V)
            draws, tokens = draw_tokens(logits, pairs, newest, self.sample, self.drafter)
        for request, _ in pairs:
            if request in counts:
                request.pending += 1
        if self.runner is not self.model:
            logits = logits.clone()             # the next replay overwrites a graph's logits
        return Flight(counts, batch, draws, logits, tokens)

    def commit(self, flight: Flight) -> list[Output]:
        """Read what a step computed: [Output] of each request with news.
        Some end with it."""
        outputs = []
        for output in self.outputs.commit(flight):
            if output.reason:
                self.end(output.request, output.reason, output.request.error)
            outputs.append(output)
        return outputs


# ---- what must hold


def check_engine(engine: Engine) -> None:
    """Broken if an invariant does not hold.
    Call it after every step."""
    pool = engine.pool
    scheduler = engine.scheduler
    running = scheduler.running
    waiting = scheduler.waiting
    rules = broken_rules(scheduler, engine.counts, engine.intake.held.values())
    if rules:
        raise Broken(rules[0])
    holders = {}
    for request in running:
        known = request.num_tokens + request.pending
        capacity = len(request.table) * pool.S
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
                raise Broken(f"page {page} is shared by requests whose tokens differ there")
    if engine.submitted != engine.finished + sum(1 + len(r.forks) for r in [*running, *waiting]):
        raise Broken("a request is neither waiting, running nor finished")
    if not running and not waiting and not engine.intake.held and pool.used:
        raise Broken(f"no request is left, but {pool.used} pages are still allocated")
