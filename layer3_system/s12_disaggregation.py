"""s12 · Prefill here, decode there: the pages of a prompt go from one process to another

L: layers   n: pages of a prompt   S: slots of a page   G D: kv heads, head width
A process that computes prompts sends each layer's pages while it computes the next layer.
Another process writes the answers.
What travels is a part: one page of one layer, 2·S·G·D numbers.
Parts arrive in any order, twice, late or torn; each counts once.
The sender's pages are given back only when nothing can still read them.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from layer3_system.disaggregation.parts import Part, Ticket, checksum
from layer3_system.s02_block_pool import BlockPool, pages_for

__all__ = ["DecodeLoad", "Inbox", "Outbox", "PrefillLoad", "choose_workers", "parts_done"]


def predict_exposed_ms() -> float:
    """Milliseconds that a first token waits for the wire, after its prompt is computed. 5 % are
    near enough.

    Llama-3.1-8B in bf16, 32 layers: a token has 131,072 bytes of keys and values.
    The prompt has
    8,192 tokens and takes 400 ms, each layer as long as the others.
    The wire carries 50 GB/s.
    A layer's pages are sent as soon as that layer is computed.
    """
    # exercise: how long is one layer on the wire, and which layers are sent while others compute?
    return 8192 * 131_072 / 32 / 50e9 * 1e3


def choose_split() -> str:
    """Two machines: "together", each with prompts and answers, or "split", one for each?

    Prompts have 60 tokens, answers 200.
    What counts is how many requests a second keep 20 ms a token.
    A step costs 10 ms, 0.4 ms a prompt token and 0.6 ms a request that writes.
    """
    # exercise: how busy is the machine that computes prompts, and how busy is the other?
    return "together"               # 34 ms of prompt for each request, and 200 steps of answer


# ---- the sender


def parts_done(begin: int, end: int, prompt: int, S: int) -> list[int]:
    """Places of the pages that will not change any more, once tokens begin to end - 1 are computed.

    Those before `begin` were there, and their final pages were sent.
    Place i is the page of tokens i·S to i·S + S - 1. prompt: tokens of the whole prompt; begin <
    end ≤ prompt
    """
    # exercise: full pages only; at the end of the prompt the last one too, full or not
    last = pages_for(prompt, S) if end == prompt else end // S
    return list(range(begin // S, last))


class Outbox:
    """The pages of one request that are sent, on the sender's side.
    They must not change until nothing reads them any more."""

    def __init__(self, pool: BlockPool, lease_ends: float):
        """lease_ends: when the receiver has no right to them any more, in seconds"""
        self.pool = pool
        self.table: list[int] = []          # its pages: counted in pool.refs
        self.tickets: list[Ticket] = []     # poll() of each says "pending", "done" or "error"
        self.acknowledged = False           # the receiver has all parts
        self.aborted = False                # the answer is no longer wanted
        self.receiver_alive = True
        self.lease_ends = lease_ends
        self.released = False               # given back

    def hold(self, pages: Sequence[int]) -> None:
        """Hold pages, whatever becomes of the request that computed them."""
        self.pool.share(pages)
        self.table += pages

    def settle(self, now: float) -> bool:
        """Give the pages back if that is safe.
        True when they are given back, which happens once.

        It is safe when the receiver has all of them, or does not want them, or is dead, or its
        lease is over.
        But a page under a send must not change while somebody receives it.
        """
        # exercise: not twice; not under a send; a reason; give back self.table to self.pool
        if self.released:
            return False
        under_way = any(ticket.poll() == "pending" for ticket in self.tickets)
        if under_way and self.receiver_alive:
            return False
        over = self.acknowledged or self.aborted or now >= self.lease_ends
        if self.receiver_alive and not over:
            return False
        self.pool.release(self.table)
        self.released = True
        return True


# ---- the receiver


class Inbox:
    """The parts of one request as they arrive."""

    def __init__(self, id: str, attempt: int, L: int, n: int, size: int):
        """n: pages of the prompt    size: bytes of the keys of a page in a layer"""
        self.id = id
        self.attempt = attempt
        self.k = np.zeros((L, n, size), np.uint8)
        self.v = np.zeros((L, n, size), np.uint8)
        self.missing = {(layer, place) for layer in range(L) for place in range(n)}

    def accept(self, part: Part) -> bool:
        """Take in one part.
        True exactly once: when it is the last one that was missing.

        Not taken: a part of another request or another attempt, a torn one, one that is not
        missing. np.frombuffer(part.k, np.uint8) are its keys as numbers.
        """
        # exercise: three refusals; note it; keys and values to their place; was it the last one?
        if (part.id, part.attempt) != (self.id, self.attempt) or checksum(part) != part.crc:
            return False
        at = part.layer, part.place
        if at not in self.missing:
            return False
        self.missing.remove(at)
        self.k[at] = np.frombuffer(part.k, np.uint8)
        self.v[at] = np.frombuffer(part.v, np.uint8)
        return not self.missing


# ---- the router


class PrefillLoad(NamedTuple):
    """What the router knows of a process that computes prompts."""

    queue: int                      # tokens that wait there to be computed
    names: Collection[bytes]        # of the pages that it remembers


class DecodeLoad(NamedTuple):
    """What the router knows of a process that writes answers."""

    free: int                       # pages
    running: int                    # requests


def choose_workers(names: Sequence[bytes], prompt: int, answer: int, S: int,
                   prefills: Sequence[PrefillLoad],
                   decodes: Sequence[DecodeLoad]) -> tuple[int, int] | None:
    """Which prefill worker computes a prompt, and which decode worker writes its answer: their
    numbers.
    None if no decode worker has room: the request waits.

    names: of the prompt's full pages, in order    prompt, answer: tokens, `answer` at most
    S: slots of a page.
    The prefill worker is the one with the fewest tokens to compute until this prompt is done; the
    decode worker, of those with enough free pages, the one with the fewest running.
    Of equals, the first.
    """
    # exercise: room first; then a worker's queue, and of the prompt what it does not hold
    pages = pages_for(prompt + answer, S)
    fitting = [j for j, decode in enumerate(decodes) if decode.free >= pages]
    if not fitting:
        return None
    todo = []
    for queue, remembered in prefills:
        hits = 0
        while hits < len(names) and names[hits] in remembered:
            hits += 1
        todo.append(queue + prompt - hits * S)
    return todo.index(min(todo)), min(fitting, key=lambda j: decodes[j].running)
