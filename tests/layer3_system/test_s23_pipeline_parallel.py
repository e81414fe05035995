"""Graders of s23. p: stages   m: micro-batches, of uneven sizes on ranks"""

import re

import torch

from lab.judge.mistakes import mistake
from lab.judge.ranks import RankFault
from layer3_system.pipeline import Deadlock, bubble, peak_kept, play

DRIVER = "layer3_system.testing.pipeline_ranks"
CASES = [(4, 8), (1, 1), (3, 1), (4, 2), (4, 3), (8, 32)]
# stages, and tokens of each micro-batch, on ranks
ON_RANKS = [(3, [3, 5, 1, 4, 2]), (1, [2, 1])]
C = 8
TICKS = {"F": 1, "B": 1}


def needed(kind, i, j, p):
    """What `needs` is to return, as a set."""
    if kind == "F":
        return {("F", i - 1, j)} if i else set()
    return {("F", i, j)} | ({("B", i + 1, j)} if i < p - 1 else set())


def forwards_first(i, p, m, ahead):
    """`ahead` forwards, then pairs, then the remaining backwards."""
    rows = [("F", j) for j in range(ahead)]
    for j in range(m):
        rows += [("F", ahead + j)] if ahead + j < m else []
        rows += [("B", j)]
    return rows


# ---- predictions


def test_predict_steps(subject):
    p = 8
    m = 32
    times = play([forwards_first(i, p, m, m) for i in range(p)], needed, TICKS)
    want = max(end for _, end in times.values())
    got = subject.predict_steps()
    known = {
        p - 1 + 2 * m: ("no_way_back", "the last stage is done then, and the last gradients have "
                        "still to go back through 7 stages"),
        2 * m: ("no_bubble", "that is the work of one stage: the last stage has nothing to do "
                "before 7 others have done a forward"),
        2 * m * p: ("one_at_a_time", "that is all work of all stages, one action at a time"),
        m + p - 1: ("no_backward", "that is until the last forward: 32 backwards a stage follow")}
    name, why = known.get(got, ("other", "draw the lanes of the first and the last stage"))
    assert got == want, mistake(name, f"{got!r:.20} ticks is not it: {why}", why)


def test_predict_kept(subject):
    p = 4
    m = 8
    want = [peak_kept(forwards_first(i, p, m, p - 1 - i)) for i in range(p)]
    got = subject.predict_kept()
    assert isinstance(got, (list, tuple)) and len(got) == p, mistake(
        "not_four", f"predict_kept: got {got!r:.200}, expected a list of four numbers")
    known = {(m,) * p: ("as_gpipe", "that is GPipe, whose first backward comes after all forwards"),
             tuple(want[::-1]): ("wrong_end", "a forward waits longest for its backward on the "
                                 "first stage, not on the last"),
             (p,) * p: ("all_alike", "a stage near the end waits for fewer others before its first "
                        "backward"),
             tuple(w - 1 for w in want): ("before_the_pair", "the forward of the first pair is "
                                          "kept, too")}
    name, why = known.get(tuple(got), ("other", "count the forwards before the first backward"))
    assert list(got) == want, mistake(name, f"kept at the peak, {list(got)} is not it: {why}", why)


# ---- schedules


def actions(got, call, m):
    """The schedule as pairs: each forward and each backward once, a forward before its backward,
    both in the order of the micro-batches."""
    assert isinstance(got, (list, tuple)) and all(
        isinstance(a, (list, tuple)) and len(a) == 2 and a[0] in ("F", "B") for a in got), mistake(
            "not_actions", f'{call}: got {got!r:.200}, expected a list of pairs such as ("F", 0)',
            "a schedule is a list of pairs")
    rows = [tuple(a) for a in got]
    for kind, way in (("F", "forward"), ("B", "back")):
        own = [j for k, j in rows if k == kind]
        for j in own:
            assert j in range(m), mistake(
                "beyond", f'{call} has ("{kind}", {j}): the micro-batches are 0 to {m - 1}',
                "a schedule has a micro-batch that does not exist")
            assert own.count(j) == 1, mistake(
                "twice", f"{call}: micro-batch {j} goes {way} {own.count(j)} times",
                "a micro-batch goes the same way twice")
        for j in range(m):
            assert j in own, mistake(f"never_{way}", f"{call}: micro-batch {j} never goes {way}",
                                     f"a micro-batch never goes {way}")
    for j in range(m):
        assert rows.index(("F", j)) < rows.index(("B", j)), mistake(
            "backward_first", f"{call}: micro-batch {j} goes back before it went forward",
            "a micro-batch goes back before it went forward")
    for kind, way in (("F", "forward"), ("B", "back")):
        own = [j for k, j in rows if k == kind]
        assert own == list(range(m)), mistake(
            f"{way}_reversed", f"{call}: micro-batches go {way} in the order "
            f"{', '.join(map(str, own[:4]))} …, expected 0, 1, 2 …: the next stage sends and "
            f"receives them in this order", f"micro-batches go {way} out of order")
    return rows


def check_schedules(subject, name, p, m, want, peaks):
    """want: the schedules, a stage each.  peaks: {(kept by each stage): (id, sentence)}"""
    title = f"{name} of {p} stages and {m} micro-batches"
    got = [actions(getattr(subject, name)(i, p, m), f"{name}({i}, {p}, {m})", m) for i in range(p)]
    try:
        times = play(got, needed, TICKS)
    except Deadlock as error:
        raise AssertionError(mistake("deadlock", f"{title}: the stages wait for each other: "
                                     f"{error}", "the stages wait for each other")) from None
    kept = tuple(map(peak_kept, got))
    right = tuple(map(peak_kept, want))
    if kept != right and kept in peaks:
        cause, why = peaks[kept]
        raise AssertionError(mistake(
            cause, f"{title}: the stages keep {', '.join(map(str, kept))} micro-batches at the "
            f"peak, expected {', '.join(map(str, right))}: {why}", why))
    length = max(end for _, end in times.values())
    assert length == 2 * (m + p - 1), mistake(
        "idle", f"{title}: all is done after {length:g} ticks, expected {2 * (m + p - 1)}: stages "
        f"are idle for {bubble(times, p):.0%} of the time. Does a stage wait for a backward before "
        f"it goes on with the next forward?", "stages wait where they could go on")
    for i in range(p):
        wrong = next((k for k in range(2 * m) if got[i][k] != want[i][k]), None)
        assert wrong is None, mistake(
            "other_order", f"{name}({i}, {p}, {m}): action {wrong} is {got[i][wrong]}, expected "
            f"{want[i][wrong]}", "an action comes at another place")


def cases(rng):
    """[(p, m)], five of them drawn."""
    return [*CASES, *rng.integers(2, 12, (5, 2)).tolist()]


def test_gpipe(subject, rng):
    for p, m in cases(rng):
        check_schedules(subject, "gpipe", p, m, [forwards_first(i, p, m, m) for i in range(p)], {
            tuple(min(p - i, m) for i in range(p)): (
                "as_1f1b", "a backward comes before the last forward, as in 1F1B")})


def test_one_forward_one_backward(subject, rng):
    for p, m in cases(rng):
        want = [forwards_first(i, p, m, min(p - 1 - i, m)) for i in range(p)]
        check_schedules(subject, "one_forward_one_backward", p, m, want, {
            (m,) * p: ("as_gpipe", "all forwards come first, as in GPipe"),
            tuple(min(p - i + 1, m) for i in range(p)): (
                "one_more_ahead", "one forward more than there are stages after it comes first"),
            (min(p, m),) * p: ("ahead_alike", "each stage does as many forwards first as stage 0")})


def check_needs(subject, kind, i, j, p):
    got = subject.needs(kind, i, j, p)
    call = f'needs("{kind}", {i}, {j}, {p})'
    assert isinstance(got, (list, tuple, set)) and all(
        isinstance(a, (list, tuple)) and len(a) == 3 for a in got), mistake(
            "not_triples", f"{call}: got {got!r:.200}, expected a list of (kind, stage, "
                           f"micro-batch)", "expected a list of triples")
    got = {tuple(a) for a in got}
    want = needed(kind, i, j, p)
    action = f"{'forward' if kind == 'F' else 'backward'} {j} of stage {i} of {p}"
    for other in sorted(got - want, key=str):
        name, why = (
            ("beyond_ends", f"there is no stage {other[1]}") if other[1] not in range(p) else
            ("other_part", "another micro-batch is the schedule's matter") if other[2] != j else
            ("wrong_way", "forwards come from the stage before, gradients from the next stage"))
        text = why if name != "beyond_ends" else "a stage at the end has one neighbour"
        raise AssertionError(mistake(name, f"{call}: {action} waits for {other}: {why}", text))
    for other in sorted(want - got):
        name, why = (("own_forgotten", "a backward needs what its own stage's forward has kept")
                     if other[:2] == ("F", i) else
                     ("no_neighbour", "what the neighbour computes must have come"))
        raise AssertionError(mistake(name, f"{call}: {action} begins without {other}: {why}", why))


def test_needs(subject, rng):
    """The whole table of three stages; the ends of one and of eight; two drawn."""
    for kind in "FB":
        for p, i, j in [*((3, i, j) for i in (1, 0, 2) for j in (0, 2)), (1, 0, 1), (8, 7, 0),
                        (8, 0, 5), *((9, *row) for row in rng.integers(1, 8, (2, 2)).tolist())]:
            check_needs(subject, kind, i, j, p)


# ---- on ranks


class Problem:
    """Two layers of tanh a stage, and what one process computes of them in float64."""

    def __init__(self, rng, p, sizes):
        def draw(*shape):
            return torch.from_numpy(rng.standard_normal(shape))

        self.p = p
        self.sizes = sizes
        self.weights = [[(draw(C, C) / C**0.5, draw(C)) for _ in range(2)] for _ in range(p)]
        self.targets = draw(sum(sizes), C)
        self.inputs = [draw(sum(sizes), C)]             # of each stage, and the last one's output
        for i in range(p):
            self.inputs.append(self.layers(i, self.inputs[i]))
        errors = ((self.inputs[p] - self.targets) ** 2).sum(1)
        self.losses = torch.stack([part.sum() for part in errors.split(sizes)]) / sum(sizes)

    def layers(self, i, x):
        for w, b in self.weights[i]:
            x = torch.tanh(x @ w.T + b)
        return x

    def gradients(self, part=slice(None)):
        """Of all weights by stage, from some tokens."""
        leaves = [t.requires_grad_() for stage in self.weights for pair in stage for t in pair]
        x = self.inputs[0]
        for i in range(self.p):
            x = self.layers(i, x)
        loss = ((x - self.targets)[part] ** 2).sum() / sum(self.sizes)
        return [g.numpy() for g in torch.autograd.grad(loss, leaves)]

    def arguments(self, inputs_everywhere):
        p = self.p
        m = len(self.sizes)
        return [(forwards_first(i, p, m, min(p - 1 - i, m)), self.sizes,
                 [(w.detach().float(), b.detach().float()) for w, b in self.weights[i]],
                 self.inputs[i].detach().float() if inputs_everywhere or i == 0 else None,
                 self.targets.float() if i == p - 1 else None) for i in range(p)]


def on_ranks(subject, function, arguments):
    """A RankRun; a send of the learner's that waits is told in the words of the lesson."""
    try:
        return subject.ranks(f"{DRIVER}:{function}", arguments)
    except RankFault as error:
        if not re.search(r"in send of [^;]*\(s23", str(error)):
            raise
        why = ("a stage waits until its send is received, and the other stage waits in a send, "
               "too: begin sends with isend, and do not wait for them")
        waits = str(error).partition(". A send")[0]
        raise AssertionError(mistake("blocking_send", f"{waits}. Here {why}", why)) from None


def of_a_token(index):
    return "token {}, number {}".format(*index)


def check_flights(run, i, m, sends):
    """sends: whether stage i has somewhere to send to."""
    begun = run.results[i]["begun"]
    assert begun == m * sends, mistake(
        "handle_dropped", f"stage {i} puts {begun} handles into stage.flights, expected "
        f"{m * sends}, one for each send: else the end of the send is not waited for, and its "
        f"tensor may be freed before it has left", "a send's handle is not in stage.flights")


def test_forward_step(subject, rng, agree):
    for p, sizes in ON_RANKS:
        check_forward(subject, rng, agree, p, sizes)


def check_forward(subject, rng, agree, p, sizes):
    problem = Problem(rng, p, sizes)
    m = len(sizes)
    run = on_ranks(subject, "forward_alone", problem.arguments(False))
    for i, result in enumerate(run.results):
        kept = dict(result["kept"])
        reused = torch.zeros(max(sizes), C, dtype=torch.float64)
        for part in problem.inputs[i].split(sizes):
            reused[:len(part)] = part
        for j in range(m):
            assert j in kept, mistake("not_kept", f"stage {i}: stage.kept has no {j} after forward "
                                      f"{j}", "stage.kept lacks a micro-batch")
            x, y, x_waits, y_waits = kept[j]
            what = f"stage {i}, micro-batch {j}"
            agree(x, problem.inputs[i].split(sizes)[j], "float32", f"{what}: the input kept",
                  of_a_token, {"buffer_reused": (
                      "a later micro-batch is received into the same tensor", reused[:sizes[j]])})
            assert x_waits or i == 0, mistake(
                "no_gradient", f"{what}: its input asks for no gradient (requires_grad_): stage "
                f"{i - 1} would get none", "an input asks for no gradient")
            assert y_waits, mistake("detached", f"{what}: the output that is kept has no graph: a "
                                    f"backward cannot begin from it", "an output has no graph")
            if i < p - 1:
                agree(y, problem.inputs[i + 1].split(sizes)[j], "float32", f"{what}: the output",
                      of_a_token)
                continue
            assert y.shape == (), mistake(
                "loss_not_kept", f"{what}: the output that is kept has shape {tuple(y.shape)}, "
                f"expected the loss, a single number", "the last stage does not keep the loss")
            agree(y, problem.losses[j], "float32", f"{what}: the loss")
        check_flights(run, i, m, i < p - 1)
    losses = problem.losses
    tokens = torch.tensor(sizes)
    agree(run.results[-1]["total"], losses.sum(), "float32", "stage.total of the last stage",
          mistakes={"overwritten_loss": ("only the last micro-batch's loss is there", losses[-1]),
                    "mean_loss": ("each micro-batch's own mean counts alike, whatever its tokens",
                                  (losses * sum(sizes) / tokens).mean())})


def test_backward_step(subject, rng, agree):
    for p, sizes in ON_RANKS:
        check_backward(subject, rng, agree, p, sizes)


def check_backward(subject, rng, agree, p, sizes):
    problem = Problem(rng, p, sizes)
    m = len(sizes)
    run = on_ranks(subject, "backward_alone", problem.arguments(True))
    want = problem.gradients()
    wrong = {
        "grad_overwritten": ("only the last micro-batch's gradient is there: they add up",
                             problem.gradients(slice(sum(sizes[:-1]), None))),
        "divided_by_m": (f"the gradient is divided by the {m} micro-batches: the loss is a sum of "
                         f"their shares", [g / m for g in want])}
    for i, result in enumerate(run.results):
        for k, got in enumerate(result["gradients"]):
            at = 4 * i + k
            what = f"stage {i}, layer {k // 2}: the gradient of {('the weight', 'the bias')[k % 2]}"
            assert got is not None, mistake("no_backward", f"{what}: there is none",
                                            "the weights get no gradient")
            agree(got, want[at], "float32", what, mistakes={
                name: (sentence, grads[at]) for name, (sentence, grads) in wrong.items()})
        assert result["left"] == 0, mistake(
            "keeps_all", f"stage {i} still keeps {result['left']} micro-batches after their "
            f"backwards, and {result['peak']} at the peak: take them out of stage.kept",
            "activations stay after their backward")
        check_flights(run, i, m, i > 0)
