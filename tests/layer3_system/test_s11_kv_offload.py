"""Graders of s11.
Pages hold names instead of numbers, so that each content can be read."""

import struct
from collections import OrderedDict
from zlib import crc32

import numpy as np

from lab.judge.mistakes import mistake, raises
from layer3_system.s11_kv_offload import Costs
from layer3_system.tiers import HostTier

HOST = "layer3_system.tiers:HostTier"
DRIVER = "layer3_system.testing.tier_driver:Memories"


def near(got, wrong, share):
    return isinstance(got, (int, float)) and abs(got - wrong) <= share * abs(wrong) + 1e-12


# ---- predictions


def test_predict_rate(subject):
    low, high = 1e6, 1e12
    while high - low > 1:                           # bisection on the two times
        rate = (low + high) / 2
        low, high = (rate, high) if 131_072 / rate > 16.06e9 / 495e12 else (low, rate)
    want = low / 1e9
    got = subject.predict_rate()
    known = {"one_millisecond": (0.131, "that is 131 kB in a millisecond; a token takes 0.03 ms"),
             "counted_twice": (2 * want, "an add and a multiplication are two, and they are in the "
                                         "16.06 GFLOP already"),
             "bus": (64, "that is the rate of PCIe 5: the question is where both times are equal"),
             "bits": (want * 8, "131,072 are bytes, not bits")}
    name, why = next(((name, why) for name, (wrong, why) in known.items() if near(got, wrong, .02)),
                     ("other", "how long does a token take to compute, and how many bytes fit "
                               "through a link in that time?"))
    assert near(got, want, 0.03), mistake(
        name, f"predict_rate: {got!r:.20} GB/s is not right: {why}", why)


def found_share(documents, device, host, rounds=4):
    """Documents found from the second round on; what leaves the device goes to the host."""
    near_by, below = OrderedDict(), OrderedDict()
    found = 0
    for i in range(documents * rounds):
        name = i % documents
        found += i >= documents and (name in near_by or name in below)
        near_by.pop(name, None)
        below.pop(name, None)
        near_by[name] = None
        if len(near_by) > device:
            below[near_by.popitem(last=False)[0]] = None
        if len(below) > host:
            below.popitem(last=False)
    return found / (documents * (rounds - 1))


def test_predict_found(subject):
    want = found_share(64, 8, 30)
    got = subject.predict_found()
    known = {"what_is_kept": (38 / 64, "38 of 64 are somewhere, but never the one that comes next: "
                                       "that one was used longest ago"),
             "host_alone": (30 / 64, "the device's own count, too; and is it the next one that is "
                                     "there?"),
             "all": (1, "64 do not fit into 8 + 30"),
             "device_alone": (8 / 64, "those 8 are the newest, and the oldest comes next")}
    name, why = next(((name, why) for name, (wrong, why) in known.items() if near(got, wrong, .01)),
                     ("other", "which document is given up just before it is asked for?"))
    assert isinstance(got, (int, float)) and abs(got - want) < 0.005, mistake(
        name, f"predict_found: {got!r:.20} is not right: {why}", why)


# ---- TieredPool.evict


def called(name):
    return "no name" if name is None else repr(name.decode())


def memories(subject, P, places, below=()):
    """A pool of P pages over some places, and a driver around it."""
    pool = subject.TieredPool(P, 4, None, subject.make(HOST, places))
    drive = subject.make(DRIVER, pool)
    drive.put_below(list(below))
    return pool, drive


def labels(letter, count):
    return [f"{letter}{i}".encode() for i in range(count)]


def evicted_by_the_book(P, places, below, texts, pinned=()):
    """(copies out, names below from the oldest) when texts pass by: [(names, full)]."""
    host = HostTier(places)
    for name in below:
        host.put(name)
    for name in pinned:
        host.pin(name)
    free = OrderedDict.fromkeys(range(P))
    contents = {}
    outs = []
    for names, full in texts:
        pages = [free.popitem(last=False)[0] for _ in names]
        for page in pages:
            old = contents.pop(page, None)
            if old is None:
                continue
            if old in host:
                host.renew(old)
            elif (place := host.put(old)) is not None:
                outs.append((page, place, old))
        contents |= dict(zip(pages, names, strict=True)) if full else {}
        free |= OrderedDict.fromkeys(reversed(pages))
    return outs, list(host.place_of)


def check_evict(subject, P, places, texts, below=(), pinned=()):
    pool, drive = memories(subject, P, places, below)
    drive.pin(list(pinned))
    for names, full in texts:
        with raises("no_check", KeyError, "a page without a name may be taken, too"):
            drive.pass_by(names, full)
    got = drive.state()
    outs, order = evicted_by_the_book(P, places, below, texts, pinned)
    what = f"{P} pages, {places} places below"
    for kind, page, place, name in got["copies"]:
        assert kind == "out", mistake(
            "wrong_way", f"{what}: a copy from place {page} into page {place}; what is evicted "
            f"goes out", "a page that is evicted goes out of the device")
        assert name is not None and None not in got["order"], mistake(
            "copies_unnamed", f"{what}: page {page} goes to place {place} without a name; nothing "
            f"will ever ask for it", "a page without a name went down; nothing will ever ask for "
                                     "it")
        assert place is not None, mistake(
            "no_place", f"{what}: page {page} is copied to the place None: all places are pinned, "
            f"and its contents are lost", "put gives None when all places are pinned")
        assert place in range(places) and page in range(P) and got["below"].get(place), mistake(
            "turned_round", f"{what}: a copy out from {page} to {place}: expected a page below {P} "
            f"and a place below {places}", "out takes the page first, then the place")
    for name, page in got["page_of"].items():
        assert got["device"].get(page) == name, mistake(
            "still_known", f"{what}: page {page} is known as {called(name)}, and "
            f"{called(got['device'].get(page))} was written into it", "the index still knows a "
            "page by what was in it before")
    names = [name for *_, name in got["copies"]]
    again = next((name for i, name in enumerate(names) if name in names[:i] or name in below), None)
    assert again is None or len(names) <= len(outs), mistake(
        "copies_again", f"{what}: {called(again)} is below already and is copied down again: "
        f"{len(names)} copies, expected {len(outs)}", "a page that is below already is copied down "
                                                      "again")
    assert names or not outs, mistake(
        "forgets_first", f"{what}: nothing went down, expected {len(outs)} pages. Is the name read "
        f"before self.index.drop(page) forgets it?", "nothing goes down")
    for name, place in got["place_of"].items():
        assert got["below"].get(place) == name, mistake(
            "other_contents", f"{what}: place {place} is known as {called(name)} and holds "
            f"{called(got['below'].get(place))}", "a place holds another text than its name says")
    assert got["order"] == order, mistake(
        "not_renewed" if sorted(got["order"]) == sorted(order) or below else "other_order",
        f"{what}: the next to be given up below are {', '.join(map(called, got['order'][:3]))}; "
        f"expected {', '.join(map(called, order[:3]))}: a page that leaves the device was used "
        f"later than what lies below", "a name below counts as old although the device has just "
                                       "given it up")
    copies = [tuple(copy[1:]) for copy in got["copies"]]
    assert copies == outs, mistake(
        "other", f"{what}: copies {copies[:4]}, expected {outs[:4]}", "other copies")


def drawn_texts(rng, P, count):
    """Texts that pass by, some of them part full; no name twice on the device at a time."""
    return [(labels(f"{i}.", int(rng.integers(1, P + 1))), bool(rng.random() < 0.8))
            for i in range(count)]


def test_TieredPool_evict(subject, rng):
    check_evict(subject, 4, 8, [(labels("a", 3), True), (labels("b", 4), True)])
    check_evict(subject, 4, 3, [(labels("a", 4), True), (labels("b", 4), True),
                                (labels("c", 2), True)])
    check_evict(subject, 3, 8, [(labels("a", 2), False), (labels("b", 3), True),
                                (labels("c", 3), True)])
    check_evict(subject, 3, 4, [(labels("x", 2), True), (labels("b", 3), True)],
                below=[*labels("x", 2), b"y"])
    check_evict(subject, 2, 2, [(labels("a", 2), True), (labels("b", 2), True)],
                below=labels("x", 2), pinned=labels("x", 2))
    check_evict(subject, 2, 2, [(labels("a", 2), True), (labels("b", 2), True)],
                below=labels("x", 2), pinned=labels("x", 1))
    for P, places in ((1, 1), (5, 3), (7, 16)):
        check_evict(subject, P, places, drawn_texts(rng, P, 8))


# ---- TieredPool.load


def situation(subject, P, places, below, passed, held):
    pool, drive = memories(subject, P, places, below)
    if passed:
        drive.pass_by(passed)
    if held:
        drive.compute(held)
    return pool, drive


def check_load(subject, P, places, below, passed, held, names):
    """Loads names one after the other; those that cannot be loaded give None."""
    pool, drive = situation(subject, P, places, below, passed, held)
    what = f"{P} pages, {places} places below"
    for name in names:
        before = drive.state()
        known = name in before["place_of"]
        full = not before["free"]
        with raises("unpinned", KeyError, "taking a page pushed out the place that is to be read") \
                if known else raises("not_below", KeyError, f"{called(name)} is not below"):
            page = pool.load(name)
        after = drive.state()
        if not known or full:
            why = "no page is free" if known else f"{called(name)} is not below"
            changes = [key for key in before if before[key] != after[key]]
            assert page is not None or changes != ["order"], mistake(
                "spare_too_early", f"{what}: {why}, and {called(name)} is now the next to go. "
                f"`unpin` says that the device has it, too, and it has not: look at self.free "
                f"before you pin", "unpin is called for a page that did not come")
            assert after["pinned"] == [], mistake(
                "stays_pinned", f"{what}: {called(name)} stays pinned though {why}",
                "a place stays pinned")
            assert page is None and after == before, mistake(
                "full_device" if known else "not_below", f"{what}: {why}, and load gives "
                f"{page!r:.30}{' and changes something' if changes else ''}: expected None, and "
                f"all as it was",
                "something changes although nothing can be loaded")
            continue
        check_loaded(what, name, page, before, after)


def check_loaded(what, name, page, before, after):
    """After one load."""
    say = called(name)
    assert page in range(len(after["refs"])), mistake(
        "no_page", f"{what}: load of {say} gives {page!r:.30}, expected a page: it is below, and "
        f"{len(before['free'])} pages are free", "load does not give the page")
    place = before["place_of"][name]
    intos = [copy[1:3] for copy in after["copies"][len(before["copies"]):] if copy[0] == "into"]
    assert intos, mistake(
        "no_copy", f"{what}: page {page} should hold {say}; no copy into it was asked for",
        "a page is taken and nothing is copied into it")
    copies = ", ".join(f"into{pair}" for pair in intos)
    assert intos[0] != (page, place) or page == place, mistake(
        "turned_round", f"{what}: the copy of {say} is {copies}, expected into{place, page}: the "
        f"place first, then the page", "into takes the place first, then the page")
    assert intos == [(place, page)], mistake(
        "other_copy", f"{what}: the copy of {say} is {copies}, expected into{place, page} alone. "
        f"Its place must be known before a page is taken", "another place is copied, or another "
                                                           "page written")
    lost = next((n for n, place in after["place_of"].items() if after["below"].get(place) != n),
                None)
    assert after["device"].get(page) == name and lost is None, mistake(
        "unpinned", f"{what}: page {page} should hold {say} and holds "
        f"{called(after['device'].get(page))}: to take the page evicted another one into the "
        f"place that was to be read", "taking a page pushes out the place that is to be read: "
                                      "the text of another user")
    assert name in after["place_of"], mistake(
        "frees_host", f"{what}: {say} is not below any more: when the device gives it up, it is "
        f"copied down again", "the place below is given up")
    assert after["page_of"].get(name) == page, mistake(
        "not_noted", f"{what}: {say} came into page {page}, and the index does not know it: it "
        f"is never found", "a page came up, and the index does not know it")
    assert after["name_of"].get(page) == name, mistake(
        "noted_one_way", f"{what}: {say} leads to page {page}, but name_of has no name for page "
        f"{page}: once it is taken for something else, {say} still leads to it",
        "the index knows the page of a name, and not the name of the page")
    assert after["refs"][page] == 1 and page not in after["free"], mistake(
        "lets_go", f"{what}: page {page} is held {after['refs'][page]} times, expected once: the "
        f"next load may take it", "the page is not held")
    assert after["pinned"] == [], mistake(
        "stays_pinned", f"{what}: {say} stays pinned", "a place stays pinned")
    assert after["order"][0] == name, mistake(
        "not_spare", f"{what}: the host gives up {called(after['order'][0])} before {say}, which "
        f"the device has, too: that is what `unpin` tells it", "the copy below is not the "
                                                                  "first to be given up")


def test_TieredPool_load(subject, rng):
    a, b, x = labels("a", 6), labels("b", 4), labels("x", 8)
    check_load(subject, 4, 2, x[:2], a[:4], [], [x[0]])
    check_load(subject, 6, 8, x[:3], [], [], x[:3])
    check_load(subject, 4, 2, x[:2], a[:4], [], [x[1], x[0]])
    check_load(subject, 3, 1, x[:1], a[:3], [], [x[0], b"nowhere", x[0] + b"?"])
    check_load(subject, 3, 4, x[:2], [], a[:3], [x[0], x[1]])
    check_load(subject, 3, 4, x[:3], a[:3], a[3:5], [x[1], x[2], b[0]])
    for P, places in ((5, 3), (9, 8), (2, 5)):
        held = int(rng.integers(0, P))
        below = [x[i] for i in rng.permutation(8)[:places]]
        check_load(subject, P, places, below, a[:P - held], b[:held],
                   [x[i] for i in rng.permutation(8)[:4]])


# ---- worth_loading


LLAMA_8B = Costs(16.06e9, 4 * 32 * 4096, 131_072, 495e12, 50e9, 10e-6)


def seconds(tokens, before, costs, half=0.5):
    """(to compute, to load), token by token; another `half` is a mistake."""
    pairs = sum(before + i + 1 for i in range(tokens)) if half == 0.5 else \
        tokens * (before + half * tokens)
    compute = (tokens * costs.flops + pairs * costs.attention) / costs.rate
    return compute, costs.latency + tokens * costs.bytes / costs.bandwidth


def worth(tokens, before, costs, **options):
    if not costs.bandwidth:
        return False
    compute, load = seconds(tokens, before, costs, **options)
    return load < compute


def worth_variants(tokens, before, costs):
    """{id: (sentence, what comes out of it)}"""
    return {"no_link": ("without a link nothing can be loaded",
                        costs.bandwidth == 0 or worth(tokens, before, costs)),
            "no_latency": ("a copy takes its latency, too, and this one is short",
                           worth(tokens, before, costs._replace(latency=0))),
            "no_attention": ("each token attends to all before it, which costs FLOPs, too",
                             worth(tokens, before, costs._replace(attention=0))),
            "no_before": ("the tokens before count, too: each new token attends to all of them",
                          worth(tokens, 0, costs)),
            "only_before": ("the tokens attend to each other, too, half of them on average",
                            worth(tokens, before, costs, half=0.0)),
            "all_pairs": ("a token attends to those before it: half of the pairs, on average",
                          worth(tokens, before, costs, half=1.0)),
            "turned_round": ("that loads where computing is faster",
                             costs.bandwidth > 0 and not worth(tokens, before, costs))}


def check_worth(subject, cases):
    """All cases at once: a mistake is one that explains each of them.

    cases: [(tokens, before, costs)]; those whose two times are equal but for rounding are left out
    """
    cases = [case for case in cases if not case[2].bandwidth or
             abs(np.subtract(*seconds(*case))) > 1e-9 * seconds(*case)[0]]
    with raises("no_link", ZeroDivisionError, "bandwidth 0: there is no link"):
        got = [bool(subject.worth_loading(n, before, subject.Costs(*costs)))
               for n, before, costs in cases]
    want = [worth(*case) for case in cases]
    at = next((i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b), None)
    if at is None:
        return
    every = [worth_variants(*case) for case in cases]
    name, why = next(((name, why) for name, (why, _) in every[0].items()
                      if [row[name][1] for row in every] == got),
                     ("other", "are both times in seconds, and is the shorter one chosen?"))
    n, before, costs = cases[at]
    compute, load = seconds(n, before, costs) if costs.bandwidth else (0, np.inf)
    raise AssertionError(mistake(
        name, f"worth_loading({n}, {before}, …): {compute * 1e3:.4f} ms to compute, "
        f"{load * 1e3:.4f} ms to load, got {got[at]}, expected {want[at]}: {why}", why))


def rate_between(tokens, before, costs, first, second):
    """The costs with a bandwidth at which two times of computing lie on both sides of loading."""
    middle = (first + second) / 2 - costs.latency
    return costs._replace(bandwidth=tokens * costs.bytes / middle)


def test_worth_loading(subject, rng):
    cases = [(1000, 0, LLAMA_8B), (1000, 0, LLAMA_8B._replace(bandwidth=1e9)),
             (16, 0, LLAMA_8B._replace(latency=10e-3)), (1000, 0, LLAMA_8B._replace(bandwidth=0)),
             (100, 32_768, LLAMA_8B._replace(bandwidth=3e9))]
    for tokens, before in ((1000, 0), (4000, 100), (129, 0), (1, 0), (127, 16)):
        exact = seconds(tokens, before, LLAMA_8B)[0]
        for half in (0.0, 1.0):                     # between the right time and a wrong one
            other = seconds(tokens, before, LLAMA_8B, half=half)[0]
            cases.append((tokens, before, rate_between(tokens, before, LLAMA_8B, exact, other)))
    for tokens, before in rng.integers((1, 0), (5000, 50_000), (12, 2)).tolist():
        exact = seconds(tokens, before, LLAMA_8B)[0]
        cases += [(tokens, before, rate_between(tokens, before, LLAMA_8B, exact * part,
                                                exact * part)) for part in (0.99, 1.01)]
    check_worth(subject, cases)


# ---- read_record


DIGEST, NAME = bytes(range(32)), bytes(range(100, 132))


def packed(payload, name=NAME, digest=DIGEST, version=1, magic=b"KVPG", length=None):
    """A record by the book."""
    data = struct.pack("<4sH32s32sQ", magic, version, digest, name,
                       len(payload) if length is None else length) + payload
    return data + struct.pack("<I", crc32(data))


def said(got):
    return f"{len(got)} bytes" if isinstance(got, (bytes, bytearray)) else f"{got!r:.40}"


def check_miss(subject, name, data, length, what, why):
    with raises("raises", struct.error, why), raises("raises", IndexError, why), \
            raises("raises", ValueError, why):
        got = subject.read_record(data, NAME, DIGEST, length)
    assert got is None, mistake(name, f"{what}: got {said(got)}, expected None: {why}", why)


def test_read_record(subject, rng):
    for length in (1, 128, 1000):
        payload = rng.bytes(length)
        got = subject.read_record(packed(payload), NAME, DIGEST, length)
        assert got is not None, mistake(
            "refuses", f"a whole record, length {length}: got None. Is it refused for its length "
            f"(header, payload and checksum), for its header (magic, version, digest, name, "
            f"length, in this order), or for its checksum (of header and payload)?",
            "a whole record is refused")
        assert got == payload, mistake(
            "other_bytes", f"a whole record, length {length}: got {said(got)}, which is not the "
            f"payload", "what comes out is not the payload")
    payload = rng.bytes(176)
    whole = packed(payload)
    check_miss(subject, "any_model", packed(payload, digest=NAME), 176,
               "a record of another model", "pages of other weights: fluent and wrong")
    check_miss(subject, "any_name", packed(payload, name=DIGEST), 176,
               "a record of another page", "another text's page")
    check_miss(subject, "any_version", packed(payload, version=2), 176, "a record of version 2",
               "no one knows what a later version means")
    check_miss(subject, "any_version", packed(payload, magic=b"KVPX"), 176,
               "a record that begins with KVPX", "no one knows what that is")
    check_miss(subject, "any_length", packed(payload[:100]), 176, "a record of 100 bytes",
               "a page has 176 bytes here")
    check_miss(subject, "any_length", packed(payload, length=100), 176,
               "a record whose header says 100 bytes", "header and page disagree")
    check_miss(subject, "any_length", whole + b"\0", 176, "a byte too much",
               "a record is as long as its header, its payload and its checksum")
    check_miss(subject, "longer", packed(payload + b"\0\0\0", length=176), 176,
               "a record with 3 bytes more than its header says, and a checksum of all of them",
               "too much is as odd as too little")
    for end in range(len(whole)):
        check_miss(subject, "cut", whole[:end], 176, f"a record cut after {end} bytes",
                   "a record that is cut is a miss")
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        check_miss(subject, "no_checksum", bytes(data), 176, f"a bit of byte {at} is flipped",
                   "a bit that flipped must be a miss")
