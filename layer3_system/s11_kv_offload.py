"""s11 · The next memory down: pages that leave the device, and come back

P: pages of the device   S: slots of a page, one token each   n: tokens
κ: bytes of a token's keys and values   f: FLOPs to compute one   F: FLOP/s   BW: byte/s of a copy
A page that is taken for something else first goes to a place in host memory, under the name that
s06 gave it.
When its text is asked for again it comes back.
That pays where κ/BW < f/F: it depends on the model and the link, and on the length only by the
latency of copies and by attention.
Costs a page: a copy of S·κ bytes each way; on the host some look-ups by name.
"""

from typing import NamedTuple
from zlib import crc32

from layer3_system.records import CHECK, HEADER, MAGIC, VERSION
from layer3_system.s01_request import Request
from layer3_system.s02_block_pool import pages_for
from layer3_system.s06_prefix_cache import HashChain, PrefixPool
from layer3_system.tiers import HostTier

__all__ = ["Costs", "TieredPool", "read_record", "worth_loading"]


def predict_rate() -> float:
    """GB/s of a link below which computing a token is faster than loading it.
    Within 3 % is right.

    Llama-3.1-8B: a token takes 16.06 GFLOP, its keys and values are 131,072 bytes.
    The GPU computes
    495 TFLOP/s. (A GB is 10⁹ bytes; latency and attention do not count here.)
    """
    # exercise: at which rate do both take the same time?
    return 131_072 / (16.06e9 / 495e12) / 1e9


def predict_found() -> float:
    """The share of documents that are found, from the second round on.
    From 0 to 1.

    64 documents are asked for in turn, again and again.
    The device holds 8, host memory 30 others.
    Both give up what was used longest ago.
    """
    # exercise: when document 1 comes again, which ones were used since?
    return 0.0                      # 63 others, and there is room for 38: it fell out long ago


# ---- the pool


class TieredPool(PrefixPool):
    """A PrefixPool whose pages go to host memory when they are taken for something else.

    host: names and their places below    copies: asked for here, made before the next step
    costs: None: whatever is below is loaded
    """

    index: HashChain

    def __init__(self, P: int, S: int = 16, index: HashChain | None = None,
                 host: HostTier | None = None, costs: "Costs | None" = None):
        """index: a HashChain; a tree of texts forgets names with the pages before them"""
        super().__init__(P, S, index)
        self.host = host or HostTier(P)
        self.copies = self.host.copies
        self.costs = costs
        self.asked = 0              # tokens that were looked up below
        self.loaded = 0             # tokens that were found there

    def evict(self, page: int) -> None:
        """A page of the device is about to hold something else: keep its contents below.

        Only a page with a name can ever be asked for.
        If its name is below already, it is only renewed there.
        If there is no place for it, its contents are lost.
        """
        # exercise: its name, a place for it, the copy; at the end the index drops the page
        name = self.index.name_of.get(page)
        if name in self.host:
            self.host.renew(name)
        elif name is not None:
            place = self.host.put(name)
            if place is not None:
                self.copies.out(page, place)
        self.index.drop(page)

    def load(self, name: bytes) -> int | None:
        """A page of the device for a name that is not on it, held once, with a copy from below.

        None, and nothing changed, if the name is not below or no page is free.
        The place keeps its contents.
        To take a page may evict another, into any place that is not pinned.
        """
        # exercise: its place, if a page is free; pin, take, unpin; the copy; the index, both ways
        place = self.host.get(name) if self.free else None
        if place is None:
            return None
        self.host.pin(name)
        page = self.take()
        self.host.unpin(name)
        self.copies.into(place, page)
        self.index.page_of[name] = page
        self.index.name_of[page] = name
        return page

    def promote(self, names: list[bytes]) -> None:
        """Bring up what is below, up to the first name that is nowhere.
        All pages are held until the last is there, then they are free and known: the scheduler
        finds them."""
        pages = []
        for name in names:
            page = self.index.page_of.get(name)
            if page is None:
                page = self.load(name)
            else:
                self.share([page])
            if page is None:
                break
            pages.append(page)
        self.release(pages)

    def match_prefix(self, request: Request) -> list[int]:
        """Pages that hold the beginning of a request, those that are worth loading included."""
        pages = super().match_prefix(request)
        if request.params.prompt_logprobs is None and self.has_room(request, pages):
            names = self.index.names(request, (request.num_tokens - 1) // self.S, self.S)
            here = len(pages)
            end = here
            while end < len(names) and (names[end] in self.host
                                        or names[end] in self.index.page_of):
                end += 1
            self.asked += (len(names) - here) * self.S
            if end > here and self.worth((end - here) * self.S, here * self.S):
                self.promote(names[:end])
                pages = super().match_prefix(request)
                self.loaded += (len(pages) - here) * self.S
        return pages

    def worth(self, tokens: int, before: int) -> bool:
        return self.costs is None or worth_loading(tokens, before, self.costs)

    def has_room(self, request: Request, pages: list[int]) -> bool:
        """Whether a request fits now.
        Else it waits, and what is loaded for it falls out again."""
        shared = sum(self.refs[page] > 0 for page in pages)
        return pages_for(request.num_tokens, self.S) - shared + self.spare <= len(self.free)


# ---- the choice


class Costs(NamedTuple):
    """What tokens cost on a machine, computed or loaded."""

    flops: float                    # of a token, without its attention to others
    attention: float                # FLOPs of a pair: a token and one that it attends to
    bytes: float                    # keys and values of a token, all layers
    rate: float                     # FLOP/s
    bandwidth: float                # byte/s of a copy; 0: there is no link
    latency: float                  # seconds until copies begin, once for all pages of a text


def worth_loading(tokens: int, before: int, costs: Costs) -> bool:
    """Whether loading the keys and values of a text's next `tokens` tokens is faster than computing
    them, after `before` tokens that are there.
    A token attends to itself and all before it.
    """
    # exercise: seconds to compute, seconds to load; without a link nothing is loaded
    if not costs.bandwidth:
        return False
    pairs = tokens * before + tokens * (tokens + 1) / 2
    compute = (tokens * costs.flops + pairs * costs.attention) / costs.rate
    return costs.latency + tokens * costs.bytes / costs.bandwidth < compute


# ---- a record of the file


def read_record(data: bytes, name: bytes, digest: bytes, length: int) -> bytes | None:
    """Keys and values of a record; None if it is anything but the whole record of this page.

    data: what was read, perhaps too little, too much or something else; never an exception
    length: bytes of keys and values that a page has
    """
    # exercise: is it as long as a record, is its header the expected one, is its checksum right?
    if len(data) != HEADER.size + length + CHECK.size:
        return None
    if HEADER.unpack_from(data) != (MAGIC, VERSION, digest, name, length):
        return None
    body, check = data[:-CHECK.size], data[-CHECK.size:]
    if check != CHECK.pack(crc32(body)):
        return None
    return body[HEADER.size:]
