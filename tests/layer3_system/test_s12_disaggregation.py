"""Graders of s12.
Pure state machines: every fault is exact, and nothing waits."""

from itertools import product

import numpy as np

from lab.judge.mistakes import mistake, raises
from layer3_system.disaggregation.parts import Part, checksum
from layer3_system.disaggregation.timeline import frontier, layer_lanes
from layer3_system.s09_load_test import Objective

ARRIVALS = "layer3_system.testing.transfer_driver:Arrivals"
SETTLEMENT = "layer3_system.testing.transfer_driver:Settlement"


# ---- predictions


def test_predict_exposed_ms(subject):
    wire = 8192 * 131_072 / 32 / 50e9
    computed, sent = layer_lanes(32, 0.4 / 32, wire)
    want = (sent[-1][1] - computed[-1][1]) * 1e3
    got = subject.predict_exposed_ms()
    known = {"after_the_last": (32 * want, "that is all of it, as if nothing were sent before the "
                                           "last layer is computed"),
             "hidden": (0, "the last layer has no other layer's computing to hide in"),
             "counted_twice": (2 * want, "keys and values are both in the 131,072 bytes"),
             "compute": (12.5, "that is how long a layer computes, not how long it is sent")}
    name, why = next(((name, why) for name, (wrong, why) in known.items()
                      if isinstance(got, (int, float)) and abs(got - wrong) <= 0.05 * wrong + 1e-9),
                     ("other", "which layers are still to be sent when the last is computed?"))
    assert isinstance(got, (int, float)) and abs(got - want) <= 0.05 * want, mistake(
        name, f"predict_exposed_ms: {got!r:.20} ms is not right: {why}", why)


def test_choose_split(subject):
    curves = frontier(60, 200, Objective(1.5, 0.02), [4], 150)
    want = max(curves, key=curves.get)
    got = subject.choose_split()
    idle = "a prompt takes 34 ms of one machine, an answer 200 steps of the other: the first idles"
    name, why = ("idle", idle) if got == "split" else ("other", "expected split or together")
    assert got == want, mistake(name, f"choose_split: {got!r:.20} is not right: {why}", why)


# ---- parts_done


def check_parts(subject, S, prompt, chunk, cached=0):
    """All chunks of a prompt; cached: tokens that an earlier call sent."""
    sent = list(range(cached // S))
    for begin in range(cached, prompt, chunk):
        end = min(begin + chunk, prompt)
        with raises("no_list", TypeError, "expected a list of places"):
            got = list(subject.parts_done(begin, end, prompt, S))
        what = f"S {S}, a prompt of {prompt} tokens, tokens {begin} to {end - 1} computed: "
        for place in got:
            assert place not in sent, mistake(
                "twice_at_border", f"{what}page {place} is sent again", "a page is sent twice")
            full = min((place + 1) * S, prompt)
            assert place * S < prompt, mistake(
                "beyond_the_end", f"{what}page {place} is sent, and no token of the prompt is in "
                f"it", "a page after the prompt's last token is sent")
            assert full <= end, mistake(
                "part_filled_early", f"{what}page {place} is sent with {end - place * S} of its "
                f"{full - place * S} tokens", "a page is sent before all its tokens are in it")
            sent.append(place)
        late = [place for place in range(-(-prompt // S)) if place not in sent
                and min((place + 1) * S, prompt) <= end]
        if late:
            last = late[0] == prompt // S and begin <= late[0] * S
            raise AssertionError(mistake(
                "only_full_pages" if last else "left_out", f"{what}page {late[0]} is final, and "
                "it is never sent" + (f": it has {prompt % S} tokens" if last else ""),
                "the last page of a prompt is not full, and it is never sent" if last else
                "a page that is full is never sent"))
        assert got == sorted(got), mistake("order", f"{what}{got}: expected ascending places",
                                           "places are not in order")


def test_parts_done(subject, rng):
    check_parts(subject, 16, 48, 16)
    for prompt, chunk in product((1, 15, 16, 17, 47, 48), (1, 5, 16, 64)):
        check_parts(subject, 16, prompt, chunk)
    check_parts(subject, 16, 100, 16, cached=48)
    for S, prompt, chunk in rng.integers((1, 1, 1), (9, 130, 20), (12, 3)).tolist():
        check_parts(subject, S, prompt, chunk, cached=min(S, prompt - 1) // S * S)


# ---- Outbox.settle


def settled_by_the_book(pending, acknowledged, aborted, alive, over):
    """Whether pages may be given back: the truth table of 32 rows."""
    if not alive:
        return True
    return not pending and (acknowledged or aborted or over)


def settle_mistake(pending, acknowledged, aborted, alive, over, got):
    """(id, sentence) of a row that came out wrong."""
    if got and pending:
        return (("lease_before_send", "the lease ended, and pages were given back under a send: "
                 "somebody else's text goes out") if over and not (acknowledged or aborted) else
                ("frees_while_sending", "pages were given back while a send was reading them"))
    if got:
        return "no_reason", "the pages are given back without a reason: they may still be read"
    if not alive:
        return ("waits_for_the_dead", "the receiver is dead, and its pages are held for ever")
    if not (acknowledged or aborted):
        return "no_lease", "the lease is over, no answer came, and the pages are still held"
    return (("ignores_abort", "the client left, and the pages are still held") if aborted and
            not acknowledged else ("ignores_ack", "all parts have arrived, and the pages are still "
                                                  "held"))


def settled(subject, states, acknowledged, aborted, alive, times, lease_ends=30.0):
    with raises("states", AttributeError, "a ticket is asked with poll()"):
        drive = subject.make(SETTLEMENT, subject.Outbox, lease_ends)
        drive.become(states, acknowledged, aborted, alive)
        return drive.settle(times)


def check_settle(subject, states, acknowledged, aborted, alive, now):
    row = ("pending" in states, acknowledged, aborted, alive, now >= 30)
    want = settled_by_the_book(*row)
    (first, refs), (second, later) = settled(subject, states, acknowledged, aborted, alive,
                                             [now, now + 100 * want])
    what = (f"sends {', '.join(states)}; acknowledged {acknowledged}, aborted {aborted}, receiver "
            f"{'alive' if alive else 'dead'}, at {now} s of a lease until 30 s: ")
    gone = refs == [0, 0, 1] + [0] * 5
    if gone != want:
        name, why = settle_mistake(*row, gone)
        raise AssertionError(mistake(name, what + why, why))
    assert gone or refs == [1, 1, 2] + [0] * 5, mistake(
        "other_pages", f"{what}holders of the pages are {refs[:3]}, expected [1, 1, 2] or, given "
        f"back, [0, 0, 1]", "some pages are given back, and some are not")
    assert first is want, mistake("answer", f"{what}settle says {first!r}, expected {want}",
                                  "settle says True when it gives the pages back, else False")
    assert later == refs and second is False, mistake(
        "frees_twice", f"{what}a second call says {second!r}, expected False, and holders of the "
        f"pages are {later[:3]}, expected {refs[:3]}", "pages are given back twice")


def test_Outbox_settle(subject, rng):
    for states in (["done"], ["done", "pending", "done"]):
        for now in (10.0, 30.0):
            for facts in product((False, True), (False, True), (True, False)):
                check_settle(subject, states, *facts, now)
    check_settle(subject, [], True, False, True, 1.0)
    check_settle(subject, ["error", "done"], False, True, True, 1.0)
    check_settle(subject, ["error"], False, False, True, 1.0)
    for _ in range(12):
        states = rng.choice(["done", "pending", "error"], 3, p=[0.7, 0.15, 0.15]).tolist()
        check_settle(subject, states, *(bool(x) for x in rng.integers(0, 2, 3)),
                     float(rng.integers(0, 60)))


# ---- Inbox.accept


L, N, SIZE = 2, 3, 8                    # layers, pages of the prompt, bytes of a page's keys


def whole(layer, place, rng, id="r7", attempt=2, page=0):
    """A part as it was sent."""
    part = Part(id, attempt, layer, place, page, rng.bytes(SIZE), rng.bytes(SIZE), 0)
    return part._replace(crc=checksum(part))


def damaged(part, kind):
    """The same part, torn on the way."""
    if kind == "short":
        return part._replace(v=part.v[:-3])
    field = {"flipped key": "k", "flipped value": "v"}.get(kind)
    if field:
        data = bytearray(getattr(part, field))
        data[3] ^= 16
        return part._replace(**{field: bytes(data)})
    return part._replace(place=(part.place + 1) % N)


def arrivals(rng, faults):
    """Parts in an order that is drawn: [(what, part)].
    Each is whole at least once."""
    parts = [whole(layer, place, rng, page=(2 - place)) for layer in range(L)
             for place in range(N)]
    events = [("whole", part) for part in parts]
    for kind in faults:
        part = parts[rng.integers(len(parts))]
        if kind == "repeat":
            events.append(("repeat", whole(part.layer, part.place, rng)))
        elif kind == "other attempt":
            events.append((kind, whole(part.layer, part.place, rng, attempt=1)))
        elif kind == "other id":
            events.append((kind, whole(part.layer, part.place, rng, id="r8")))
        else:
            events.append((kind, damaged(part, kind)))
    return [events[i] for i in rng.permutation(len(events))]


def inbox_by_the_book(events):
    """([answer], {at: part}, [why it was refused, or None])"""
    taken, answers = {}, []
    for _, part in events:
        good = (part.id, part.attempt) == ("r7", 2) and checksum(part) == part.crc
        new = good and (part.layer, part.place) not in taken
        if new:
            taken[part.layer, part.place] = part
        answers.append(new and len(taken) == L * N)
    return answers, taken


WHY = {"other attempt": ("any_attempt", "a part of attempt 1, whose sender is dead, went into "
                                        "attempt 2"),
       "other id": ("any_request", "a part of another request was taken"),
       "flipped key": ("trusts_bytes", "a torn part was taken: the answer would be wrong"),
       "flipped value": ("trusts_bytes", "a torn part was taken: the answer would be wrong"),
       "other place": ("trusts_bytes", "a torn part was taken: the answer would be wrong"),
       "short": ("trusts_bytes", "a torn part was taken: the answer would be wrong"),
       "whole": ("last_wins", "a part that came again changed a page: decode may have written "
                              "into it since"),
       "repeat": ("last_wins", "a part that came again changed a page: decode may have written "
                               "into it since")}


def check_inbox(subject, events):
    box = subject.Inbox("r7", 2, L, N, SIZE)
    drive = subject.make(ARRIVALS, box)
    with raises("trusts_bytes", ValueError, "a torn part was taken: the answer would be wrong"), \
            raises("not_missing", KeyError, "a part that is not missing any more came again"):
        got = drive.deliver([tuple(part) for _, part in events])
    k, v, missing = drive.state()
    answers, taken = inbox_by_the_book(events)
    for field, array in (("k", k), ("v", v)):
        for at, part in taken.items():
            own = bytes(array[at])
            if own == getattr(part, field):
                continue
            kind = next((kind for kind, other in events if other is not part
                         and getattr(other, field)[:SIZE] == own), None)
            name, why = WHY.get(kind, ("other", "other bytes"))
            where = next((place for layer, place in taken
                          if layer == at[0] and place != at[1]
                          and getattr(taken[layer, place], field) == own), None)
            if where is not None:
                name = "sender_page_numbers"
                why = "a page's number is the sender's own: places are the same on both sides"
            elif not any(own):
                name, why = "not_copied", "nothing was copied there"
            raise AssertionError(mistake(
                name, f"layer {at[0]}, place {at[1]}: {'keys' if field == 'k' else 'values'} "
                f"{list(own[:4])} …, expected {list(getattr(part, field)[:4])} …: {why}", why))
    assert missing == 0, mistake("missing", f"{missing} parts are still missing after all came",
                                 "a part that came is still missing")
    check_answers(events, got, answers)


def check_answers(events, got, answers):
    """True exactly once, with the part that completes the request."""
    right = answers.index(True)
    for i, (answer, want) in enumerate(zip(got, answers, strict=True)):
        if answer is want:
            continue
        kind, part = events[i]
        assert isinstance(answer, bool), mistake(
            "answer", f"accept says {answer!r:.20}, expected True or False", "not a bool")
        what = f"part {i + 1} of {len(got)}, layer {part.layer}, place {part.place}: "
        assert answer or want is False, mistake(
            "never_true", f"{what}the last one that was missing, and accept does not say True",
            "accept does not say True when all is there")
        early = i < right
        raise AssertionError(mistake(
            "counts_messages" if early else "true_twice",
            what + ("accept says True, and parts are still missing: one that came twice, or was "
                    "refused, counted for another" if early else
                    "accept says True again: the request would start a second time"),
            "a part that came twice counted for one that is missing" if early else
            "the request started a second time"))


def test_Inbox_accept(subject, rng):
    kinds = ["repeat", "other attempt", "other id", "short", "flipped key", "flipped value",
             "other place"]
    check_inbox(subject, arrivals(rng, []))
    for kind in kinds:
        for _ in range(8):
            check_inbox(subject, arrivals(rng, [kind] * 3))
    for _ in range(30):
        check_inbox(subject, arrivals(rng, rng.choice(kinds, 9).tolist()))


# ---- choose_workers


def chosen_by_the_book(names, prompt, answer, S, prefills, decodes):
    room = [j for j, (free, _) in enumerate(decodes) if free * S >= prompt + answer]
    if not room:
        return None
    hits = [next((h for h, name in enumerate(names) if name not in own), len(names))
            for _, own in prefills]
    return (int(np.argmin([queue + prompt - S * h
                           for (queue, _), h in zip(prefills, hits, strict=True)])),
            min(room, key=lambda j: (decodes[j][1], j)))


def choice_mistake(names, prompt, answer, S, prefills, decodes, got, want):
    """(id, sentence) of a wrong choice."""
    if want is None:
        return "prefills_anyway", "no decode worker has room, and the prompt is computed all the " \
                                  "same: its pages arrive where none is free"
    if got is None:
        return "waits", "there is room, and the request waits"
    if got[0] != want[0]:
        runs = [sum(name in own for name in names) for _, own in prefills]
        loads = [queue for queue, _ in prefills]
        rules = {"least_loaded_only": (loads, "the shortest queue is not all: another worker holds "
                                              "pages of this prompt"),
                 "gap_in_prefix": ([q + prompt - S * r for q, r in zip(loads, runs, strict=True)],
                                   "a page after a gap was counted, and it is of no use"),
                 "longest_prefix_only": ([-next((h for h, name in enumerate(names)
                                                 if name not in own), len(names))
                                          for _, own in prefills],
                                         "the longest prefix is not all: tokens wait there")}
        return next(((name, why) for name, (cost, why) in rules.items()
                     if cost.index(min(cost)) == got[0]),
                    ("other_prefill", "another worker has fewer tokens to compute"))
    pages = -(-(prompt + answer) // S)
    if decodes[got[1]][0] < pages:
        return "too_few_pages", "the decode worker has too few free pages"
    return "busier", "a decode worker with room and fewer requests is passed over"


def check_choice(subject, names, prompt, answer, S, prefills, decodes):
    load = [subject.PrefillLoad(queue, own) for queue, own in prefills]
    room = [subject.DecodeLoad(*row) for row in decodes]
    with raises("prefills_anyway", ValueError, "no decode worker has room"), \
            raises("past_the_names", IndexError, "all names of the prompt may be remembered"):
        got = subject.choose_workers(names, prompt, answer, S, load, room)
    got = got if got is None else tuple(got)
    want = chosen_by_the_book(names, prompt, answer, S, prefills, decodes)
    if got != want:
        name, why = choice_mistake(names, prompt, answer, S, prefills, decodes, got, want)
        pages = [sum(name in own for name in names) for _, own in prefills]
        raise AssertionError(mistake(
            name, f"choose_workers, a prompt of {prompt} tokens, answer {answer}, pages of {S}: "
            f"prefill workers with {[queue for queue, _ in prefills]} tokens waiting hold {pages} "
            f"of its pages; decode workers (free pages, running): {decodes}; chosen "
            f"{got}, expected {want}: {why}", why))


def test_choose_workers(subject, rng):
    names = [b"a", b"b", b"c", b"d"]
    room = [(100, 3)]
    check_choice(subject, names, 70, 10, 16, [(0, [])], room)
    check_choice(subject, names, 70, 10, 16, [(4000, names), (300, [])], room)
    check_choice(subject, names, 70, 10, 16, [(30, []), (40, names[:3])], room)
    check_choice(subject, names, 70, 10, 16, [(5, [b"a", b"c", b"d"]), (0, [b"a", b"b"])], room)
    check_choice(subject, names, 70, 10, 16, [(5, []), (5, [])], [(4, 0), (5, 9), (100, 9)])
    check_choice(subject, names, 70, 10, 16, [(5, []), (5, [])], [(4, 0), (4, 1)])
    check_choice(subject, names, 70, 11, 16, [(0, names)], [(5, 0), (6, 7)])
    check_choice(subject, names, 70, 11, 16, [(0, names)], [(9, 7), (9, 2), (9, 2)])
    for _ in range(25):
        prefills = [(int(rng.integers(0, 100)), [name for name in names if rng.random() < 0.7])
                    for _ in range(int(rng.integers(1, 4)))]
        decodes = [tuple(rng.integers((3, 0), (9, 5)).tolist())
                   for _ in range(int(rng.integers(1, 4)))]
        check_choice(subject, names, int(rng.integers(65, 80)), int(rng.integers(1, 20)), 16,
                     prefills, decodes)
