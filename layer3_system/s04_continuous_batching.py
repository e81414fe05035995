"""s04 · Admit at every step: one budget of tokens, no phases

B: requests of a step   T: its tokens, at most the budget   P, S: pages of the pool, slots of each
Each running request has num_tokens and num_computed; a step computes some of what is missing. A
prompt misses all of its tokens, an answer in the making one. So both can share a step, and who is
done leaves after any step and makes room for the next.
Costs O(B) of the host a step.
"""

from collections import deque

from layer3_system.s01_request import RequestError
from layer3_system.s02_block_pool import pages_for

__all__ = ["Scheduler"]


def predict_two_seats():
    """Steps until all of six answers are there, two requests at a time, admitted at every step.

    They come at once and have 8, 2, 2, 2, 8 and 2 tokens to write, in this order. A prompt is
    short: its step gives the first token.
    """
    # exercise: a whole number of steps; who sits where, and until when?
    return 2 + 2 + 2 + 8            # the second seat: three short ones, then the other long one


class Scheduler:
    """Who computes how many tokens in the next step. First come, first served.

    waiting: requests without pages, in the order of arrival    running: those with pages, likewise
    copies: {new page: old page}, to be copied before the step
    """

    def __init__(self, pool, max_seqs=32, budget=256, chunk=None):
        """max_seqs: requests that run at a time    budget: tokens a step
        chunk: tokens of one request a step, None as many as the budget allows
        """
        if not 1 <= max_seqs <= budget:
            raise ValueError(f"Scheduler: expected 1 <= max_seqs <= budget, so that each running "
                             f"request gets a token a step; found {max_seqs} and {budget}")
        if chunk is not None and chunk < 1:
            raise ValueError(f"Scheduler: expected a chunk of 1 token or more, found {chunk}")
        self.pool, self.max_seqs, self.budget, self.chunk = pool, max_seqs, budget, chunk
        self.waiting, self.running, self.copies = deque(), [], {}

    def add(self, request):
        """Queue a request. RequestError where all pages would not do for its prompt and a token.

        Its answer ends where all pages are full.
        """
        most = self.pool.P * self.pool.S
        if request.num_tokens >= most:
            raise RequestError(f"prompt: expected at most {most - 1} tokens, since all pages hold "
                               f"{most}; found {request.num_tokens}")
        for each in (request, *request.forks):
            each.limit = min(each.limit, most)
        self.waiting.append(request)

    # ---- the next step

    def schedule(self):
        """{request: tokens that the next step computes of it}. They count as computed from here."""
        self.copies = {}
        counts = self.schedule_running()
        # who had to go for pages finds too few, and nobody overtakes: none is admitted then
        self.admit_waiting(counts, self.budget - sum(counts.values()))
        for request, n in counts.items():
            request.num_computed += n
            request.draft = request.draft[:max(0, request.num_computed - request.num_tokens)]
        return counts

    def schedule_running(self):
        """{request: tokens} of those that run already, oldest first.

        Each gets what it lacks, while one token is left for everybody behind it. Where pages are
        short, `make_room` may send away the newest: those get nothing.
        """
        # exercise: for each `tokens_left`, `make_room`; who was sent away has no part in the step
        counts, left = {}, self.budget
        for request in list(self.running):
            if request not in self.running:     # gone, for an older one
                break
            behind = len(self.running) - 1 - len(counts)
            n = self.make_room(request, min(self.tokens_left(request), left - behind))
            if n > 0:
                counts[request] = n
                left -= n
        return counts

    def admit_waiting(self, counts, left):
        """Add to counts from the waiting, first come first served, while seats, budget and pages
        last. Nobody overtakes. left: tokens of the budget

        Each answer has a seat: a request needs one, and one more for each of its forks.
        """
        # exercise: only ever look at the first; stop where it does not fit. `admit` finds pages
        while self.waiting and left > 0:
            request = self.waiting[0]
            seats = sum(1 + len(r.forks) for r in [*self.running, request])
            if seats > self.max_seqs or not self.admit(request):
                return
            self.running.append(self.waiting.popleft())
            counts[request] = min(self.tokens_left(request), left)
            left -= counts[request]

    def tokens_left(self, request):
        """Tokens that one step may compute of a request. Nobody needs its last one computed."""
        known = request.num_tokens + request.pending + len(request.draft)
        missing = min(known, request.limit - 1) - request.num_computed
        return min(missing, self.chunk or missing)

    # ---- pages

    def admit(self, request):
        """Pages for all tokens of a request that waited. False where there are too few.

        Those that the pool knows already need not be computed. For each running request one page
        stays free, so that the newcomer is not the next to go.
        """
        table = [] if request.received else self.pool.match_prefix(request)
        cached = len(table)
        self.pool.share(table)
        missing = pages_for(request.num_tokens, self.pool.S) - cached
        if missing + len(self.running) > len(self.pool.free):
            self.pool.release(table)
            return False
        self.pool.grow(table, request.num_tokens)
        request.table, request.num_cached_pages = table, cached
        request.num_computed = cached * self.pool.S
        if request.received:                    # all of its prompt, and its last token once more
            request.num_computed = len(request.prompt) - 1
        if request.scheduled_at is None:
            request.num_cached = request.num_computed
        request.status = "running"
        return True

    def reserve(self, request, n):
        """Pages of its own for the next n tokens of a running request. False where they lack."""
        table, first = request.table, request.num_computed // self.pool.S
        shared = first < len(table) and self.pool.refs[table[first]] > 1
        missing = pages_for(request.num_computed + n, self.pool.S) - len(table)
        if missing + shared > len(self.pool.free):
            return False
        if shared:
            old, new = self.pool.copy_on_write(table, first)
            self.copies[new] = old
        return self.pool.grow(table, request.num_computed + n)

    def make_room(self, request, n):
        """How many of the next n tokens of a running request have pages now: all, or none where it
        is itself sent away. Who goes is the newest, until there are pages."""
        if n > 0 and request.draft and not self.reserve(request, n):
            request.draft, n = [], 1    # guesses are not worth anybody's pages
        while n > 0 and not self.reserve(request, n):
            self.preempt(self.running[-1])
            n = n if request in self.running else 0
        return n

    def preempt(self, request):
        """Send a running request back: it gives up its pages, waits at the head of the queue, and
        will be computed anew. Its answer so far stays."""
        request.preemptions += 1
        request.draft = []
        # exercise: the pages go back, nothing is computed any more; it comes next
        self.running.remove(request)
        self.pool.release(request.table)
        request.num_computed, request.status = 0, "waiting"
        self.waiting.appendleft(request)

    # ---- coming and going

    def fork(self, request):
        """The other answers to its prompt run from here on, on the same pages."""
        table = request.table[:pages_for(len(request.prompt), self.pool.S)]
        for other in request.forks:
            self.pool.share(table)
            other.table, other.num_computed = list(table), len(request.prompt)
            other.num_cached_pages = request.num_cached_pages
            other.status, other.leader = "running", None
        at = self.running.index(request) + 1
        self.running[at:at] = request.forks
        request.forks = []

    def finish(self, request, reason):
        """It is over, wherever it was: waiting, running. Nothing changes where it is over already.

        reason: stop, length, abort or error
        """
        # exercise: leave the queue that it is in, give back its pages, note status and reason
        if request.status == "finished":
            return
        (self.running if request.status == "running" else self.waiting).remove(request)
        self.pool.release(request.table)
        request.status, request.reason = "finished", reason
