"""s04 · Admit at every step: one budget of tokens, no phases

B: requests of a step   T: its tokens, at most the budget   P, S: pages of the pool, slots of each
Each running request has num_tokens and num_computed; a step computes some of the difference.
A new prompt lacks all of its tokens, a request in the middle of its answer lacks one.
So both can share a step, and a finished request leaves after any step and makes room for the next.
Costs O(B) on the host a step.
"""

from collections import deque

from layer3_system.s01_request import Request, RequestError
from layer3_system.s02_block_pool import BlockPool, pages_for

__all__ = ["Scheduler"]


def predict_two_seats() -> int:
    """Steps until six answers are complete, on two seats, with requests admitted at every step.

    They arrive together and write 8, 2, 2, 2, 8 and 2 tokens, in this order.
    Each prompt is short:
    it takes one step, which gives the first token.
    """
    # exercise: a whole number of steps: which request holds which seat, and until when?
    return 2 + 2 + 2 + 8            # the second seat: three short ones, then the other long one


class Scheduler:
    """Decides which requests run in the next step, and how many tokens of each.

    First come, first served. waiting: requests without pages    running: requests with pages; both
    in order of arrival
    copies: {new page: old page}, to be copied before the step
    """

    def __init__(self, pool: BlockPool, max_seqs: int = 32, budget: int = 256,
                 chunk: int | None = None):
        """max_seqs: requests that run at a time    budget: tokens a step
        chunk: tokens of one request a step; None: as many as the budget allows
        """
        if not 1 <= max_seqs <= budget:
            raise ValueError(f"Scheduler: expected 1 <= max_seqs <= budget, so that each running "
                             f"request gets a token a step; found {max_seqs} and {budget}")
        if chunk is not None and chunk < 1:
            raise ValueError(f"Scheduler: expected a chunk of 1 token or more, found {chunk}")
        self.pool = pool
        self.max_seqs = max_seqs
        self.budget = budget
        self.chunk = chunk
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.copies: dict[int, int] = {}

    def add(self, request: Request) -> None:
        """Queue a request.
        RequestError if all pages together cannot hold its prompt and a token.

        Its answer ends when all pages are full.
        """
        most = self.pool.P * self.pool.S
        if request.num_tokens >= most:
            raise RequestError(f"prompt: expected at most {most - 1} tokens, since all pages hold "
                               f"{most}; found {request.num_tokens}")
        for each in (request, *request.forks):
            each.limit = min(each.limit, most)
        self.waiting.append(request)

    # ---- the next step

    def schedule(self) -> dict[Request, int]:
        """{request: how many of its tokens the next step computes}. They count as computed now."""
        self.copies = {}
        counts = self.schedule_running()
        # after a preemption the head of the queue finds too few pages: nothing is admitted
        self.admit_waiting(counts, self.budget - sum(counts.values()))
        for request, n in counts.items():
            request.num_computed += n
            request.draft = request.draft[:max(0, request.num_computed - request.num_tokens)]
        return counts

    def schedule_running(self) -> dict[Request, int]:
        """{request: tokens} for the running requests, oldest first.

        Each gets the tokens it lacks, but leaves one for each request after it.
        If pages run out, `make_room` preempts the newest requests; a preempted request gets no
        tokens.
        """
        # exercise: for each request `tokens_left`, then `make_room`; leave out preempted ones
        counts = {}
        left = self.budget
        for i, request in enumerate(list(self.running)):
            if request not in self.running:     # preempted for an older one
                break
            later = len(self.running) - 1 - i
            n = self.make_room(request, min(self.tokens_left(request), left - later))
            if n > 0:
                counts[request] = n
                left -= n
        return counts

    def admit_waiting(self, counts: dict[Request, int], left: int) -> None:
        """Admit waiting requests, first come, first served, while seats, budget and pages last, and
        add their tokens to `counts`. left: what remains of the budget, in tokens

        Stops at the first request that does not fit.
        A request needs one seat, and one more for each of its forks.
        """
        # exercise: look only at the head of the queue; stop if it does not fit
        while self.waiting and left > 0:
            request = self.waiting[0]
            seats = sum(1 + len(r.forks) for r in [*self.running, request])
            if seats > self.max_seqs or not self.admit(request):
                return
            self.running.append(self.waiting.popleft())
            counts[request] = min(self.tokens_left(request), left)
            left -= counts[request]

    def tokens_left(self, request: Request) -> int:
        """How many tokens of a request one step may compute.

        The token that reaches its limit is never computed: nothing follows it.
        """
        known = request.num_tokens + request.pending + len(request.draft)
        missing = min(known, request.limit - 1) - request.num_computed
        return min(missing, self.chunk or missing)

    # ---- pages

    def admit(self, request: Request) -> bool:
        """Allocate pages for all tokens of a waiting request; False if there are too few.

        Tokens whose pages the pool already holds need not be computed.
        One page stays free for each running request, so that the newcomer is not preempted at once.
        """
        self.pool.spare = len(self.running)
        table = [] if request.received else self.pool.match_prefix(request)
        cached = len(table)
        self.pool.share(table)
        missing = pages_for(request.num_tokens, self.pool.S) - cached
        if missing + self.pool.spare > len(self.pool.free):
            self.pool.release(table)
            return False
        self.pool.grow(table, request.num_tokens)
        request.table = table
        request.num_cached_pages = cached
        request.num_computed = cached * self.pool.S
        if request.received:                    # all of its prompt; the last token is recomputed
            request.num_computed = len(request.prompt) - 1
        if request.scheduled_at is None:
            request.num_cached = 0 if request.received else request.num_computed
        request.status = "running"
        return True

    def reserve(self, request: Request, n: int) -> bool:
        """Allocate pages that no other request holds, for a running request's next n tokens.

        False if there are too few.
        """
        table = request.table
        first = request.num_computed // self.pool.S
        shared = first < len(table) and self.pool.refs[table[first]] > 1
        missing = pages_for(request.num_computed + n, self.pool.S) - len(table)
        if missing + shared > len(self.pool.free):
            return False
        if shared:
            old, new = self.pool.copy_on_write(table, first)
            self.copies[new] = old
        elif first < len(table):            # another answer may have filled it and ended
            self.pool.evict(table[first])
        return self.pool.grow(table, request.num_computed + n)

    def make_room(self, request: Request, n: int) -> int:
        """Find pages for a running request's next n tokens, preempting the newest requests if
        needed.
        Returns n, or 0 if the request was itself preempted.

        A request with a draft (s10) may get 1: its guesses are dropped first.
        """
        if n > 0 and request.draft and not self.reserve(request, n):
            request.draft = []          # guesses are not worth a preemption
            n = 1
        while n > 0 and not self.reserve(request, n):
            self.preempt(self.running[-1])
            n = n if request in self.running else 0
        return n

    def preempt(self, request: Request) -> None:
        """Preempt a running request: free its pages and put it at the head of the queue.

        Its tokens will be computed again; its answer so far stays.
        """
        request.preemptions += 1
        request.draft = []
        # exercise: free its pages, reset what was computed, make it first in the queue
        self.running.remove(request)
        self.pool.release(request.table)
        request.num_computed = 0
        request.status = "waiting"
        self.waiting.appendleft(request)

    # ---- coming and going

    def fork(self, request: Request) -> None:
        """Start the other answers to a request's prompt, on the same pages."""
        table = request.table[:pages_for(len(request.prompt), self.pool.S)]
        for other in request.forks:
            self.pool.share(table)
            other.table = list(table)
            other.num_computed = len(request.prompt)
            other.num_cached_pages = request.num_cached_pages
            other.status = "running"
            other.leader = None
        at = self.running.index(request) + 1
        self.running[at:at] = request.forks
        request.forks = []

    def finish(self, request: Request, reason: str) -> None:
        """Finish a waiting or running request; a second call does nothing.

        reason: stop, length, abort or error
        """
        # exercise: remove it from its list, free its pages, set status and reason
        if request.status == "finished":
            return
        (self.running if request.status == "running" else self.waiting).remove(request)
        self.pool.release(request.table)
        request.status = "finished"
        request.reason = reason
