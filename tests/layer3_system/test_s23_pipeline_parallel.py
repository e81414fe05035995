"""Graders of s23. p: stages   m: micro-batches, of uneven sizes on ranks   C: width"""

import re
from numbers import Integral

import torch

from lab.judge.mistakes import mistake
from lab.judge.ranks import RankFault
from layer3_system.pipeline import Deadlock, peak_kept, play

DRIVER = "layer3_system.testing.pipeline_ranks"
CASES = [(4, 8), (1, 1), (3, 1), (4, 2), (4, 3), (8, 32)]
ON_RANKS = [(3, [3, 5, 1, 4, 2]), (1, [2, 1])]      # stages, and tokens of each micro-batch
C = 8
AT_TOKEN = "token {0[0]}, number {0[1]}".format


def needed(kind, i, j, p):
    """What `needs` is to return."""
    rows = [("F", i - 1, j)] if kind == "F" else [("F", i, j), ("B", i + 1, j)]
    return [row for row in rows if row[1] in range(p)]


def schedules(p, m, all_first=False):
    """Of each stage: forwards, as many as stages after it or all, then pairs, then backwards."""
    aheads = [m if all_first else min(p - 1 - i, m) for i in range(p)]
    return [[("F", j) for j in range(ahead)] + [
        action for j in range(m) for action in (("F", ahead + j), ("B", j)) if action[1] < m]
        for ahead in aheads]


def check_guess(exercise, guess, right, known, hint):
    """known: {a wrong guess, written out: (id, sentence)}"""
    text = re.sub(r"\.0\b", "", str(list(guess) if isinstance(guess, tuple) else guess))
    name, why = known.get(text, ("other", hint))
    assert text == str(right), mistake(name, f"{exercise}: {text:.200} is not right: {why}", why)


def test_predict_steps(subject):
    check_guess("predict_steps", subject.predict_steps(), 2 * (32 + 8 - 1), {
        "71": ("no_way_back", "the last stage is done then, and the last gradients have still to "
               "go back through 7 stages"),
        "64": ("no_bubble", "that is the work of one stage: the last stage has nothing to do "
               "before 7 others have done a forward"),
        "512": ("one_at_a_time", "that is all work of all stages, one action at a time"),
        "39": ("no_backward", "that is until the last forward: 32 backwards a stage follow")},
        "draw the lanes of the first and the last stage")


def test_predict_kept(subject):
    check_guess("predict_kept", subject.predict_kept(), list(map(peak_kept, schedules(4, 8))), {
        "[8, 8, 8, 8]": ("as_gpipe", "that is GPipe: its first backward follows all forwards"),
        "[1, 2, 3, 4]": ("wrong_end", "a forward waits longest for its backward on the first "
                         "stage, not on the last"),
        "[4, 4, 4, 4]": ("all_alike", "a stage near the end waits for fewer others before its "
                         "first backward"),
        "[3, 2, 1, 0]": ("before_the_pair", "the forward of the first pair is kept, too")},
        "a list of four numbers: count the forwards before each stage's first backward")


def tuples(got, length, call):
    """A list of pairs (kind, micro-batch) or triples (kind, stage, micro-batch)."""
    assert isinstance(got, (list, tuple)) and all(
        isinstance(row, (list, tuple)) and len(row) == length and isinstance(row[0], str)
        and row[0] in {"F", "B"} and all(isinstance(n, Integral) for n in row[1:])
        for row in got), mistake(
            "not_actions", f"{call}: got {got!r:.200}, expected a list of {length}-tuples that "
            f'start with "F" or "B"')
    return [tuple(row) for row in got]


def broken(rows, m):
    """(id, what is wrong) with one stage's schedule, or None."""
    for kind, way in (("F", "forward"), ("B", "back")):
        own = [row[1] for row in rows if row[0] == kind]
        if beyond := set(own) - set(range(m)):
            return "beyond", f'it has ("{kind}", {beyond.pop()}) of {m} micro-batches'
        if missing := set(range(m)) - set(own):
            return f"never_{way}", f"micro-batch {min(missing)} never goes {way}"
        if len(own) > m:
            return "twice", f"{len(own)} micro-batches of {m} go {way}, so one does twice"
        if own != sorted(own):
            return f"{way}_reversed", (f"micro-batches go {way} in the order {own}: the next stage "
                                       "sends and receives them in the order 0, 1, 2 …")
    early = [j for j in range(m) if rows.index(("B", j)) < rows.index(("F", j))]
    return ("backward_first", f"micro-batch {early[0]} goes back before it went forward"
            ) if early else None


def different(got, want, peaks):
    """(id, what is wrong) with whole schedules; peaks: {kept by each stage: (id, sentence)}"""
    p = len(want)
    try:
        times = play(got, needed, {"F": 1, "B": 1})
    except Deadlock as error:
        return "deadlock", f"the stages wait for each other: {error}"
    kept, right = (tuple(map(peak_kept, rows)) for rows in (got, want))
    if kept != right and kept in peaks:
        name, why = peaks[kept]
        return name, f"the stages keep {kept} micro-batches at the peak, expected {right}: {why}"
    length = max(end for _, end in times.values())
    if length > len(want[0]) + 2 * p - 2:
        return "idle", (f"all is done after {length:g} ticks, expected {len(want[0]) + 2 * p - 2}. "
                        "Does a stage wait for a backward before it goes on with a forward?")
    i = next(i for i in range(p) if got[i] != want[i])
    return "other_order", f"stage {i} does {got[i]}, expected {want[i]}"


def check_schedules(subject, rng, name, peaks):
    """In fixed cases and five that are drawn. peaks(p, m): as in different()"""
    for p, m in [*CASES, *rng.integers(2, 12, (5, 2)).tolist()]:
        got = []
        for i in range(p):
            call = f"{name}({i}, {p}, {m})"
            got.append(tuples(getattr(subject, name)(i, p, m), 2, call))
            fault = broken(got[i], m)
            assert not fault, mistake(fault[0], f"{call}: {fault[1]}")
        want = schedules(p, m, all_first=name == "gpipe")
        fault, text = different(got, want, peaks(p, m)) if got != want else ("", "")
        assert not fault, mistake(fault, f"{name} of {p} stages and {m} micro-batches: {text}")


def test_gpipe(subject, rng):
    check_schedules(subject, rng, "gpipe", lambda p, m: {
        tuple(min(p - i, m) for i in range(p)): (
            "as_1f1b", "a backward comes before the last forward, as in 1F1B")})


def test_one_forward_one_backward(subject, rng):
    check_schedules(subject, rng, "one_forward_one_backward", lambda p, m: {
        (m,) * p: ("as_gpipe", "all forwards come first, as in GPipe"),
        tuple(min(p - i + 1, m) for i in range(p)): (
            "one_more_ahead", "one forward more than there are stages after it comes first"),
        (min(p, m),) * p: ("ahead_alike", "each stage does as many forwards first as stage 0")})


def test_needs(subject, rng):
    """Three stages whole, the ends of one and of eight, and two that are drawn."""
    rows = [*((3, i, j) for i in (1, 0, 2) for j in (0, 2)), (1, 0, 1), (8, 7, 0), (8, 0, 5),
            *((9, *row) for row in rng.integers(1, 8, (2, 2)).tolist())]
    for kind, (p, i, j) in ((kind, row) for kind in "FB" for row in rows):
        call = f'needs("{kind}", {i}, {j}, {p})'
        got = tuples(subject.needs(kind, i, j, p), 3, call)
        want = needed(kind, i, j, p)
        for row in got:
            name, why = (
                ("beyond_ends", "there is no such stage: one at an end has one neighbour")
                if row[1] not in range(p) else
                ("other_part", "another micro-batch is the schedule's matter") if row[2] != j else
                ("wrong_way", "forwards come from the stage before, gradients from the next one"))
            assert row in want, mistake(name, f"{call} waits for {row}: {why}", why)
        for row in want:
            name, why = (("own_forgotten", "a backward needs what its own stage's forward kept")
                         if row[:2] == ("F", i) else
                         ("no_neighbour", "what the neighbour computes must have come"))
            assert row in got, mistake(name, f"{call} does not wait for {row}: {why}", why)


class Problem:
    """Two layers of tanh a stage, and what one process computes of them in float64.

    inputs[i][j]: of stage i and micro-batch j, the last stage's outputs after them; losses[j];
    gradients[j]: of all weights and biases in order
    """

    def __init__(self, rng, p, sizes):
        leaves = [torch.from_numpy(rng.standard_normal(shape) / C**0.5).requires_grad_()
                  for _ in range(2 * p) for shape in ((C, C), (C,))]
        batch, self.targets = torch.from_numpy(rng.standard_normal((2, sum(sizes), C)))
        graph = [batch.split(sizes)]
        for w, b in zip(leaves[::2], leaves[1::2], strict=True):
            graph.append([torch.tanh(x @ w.T + b) for x in graph[-1]])
        losses = [((y - t) ** 2).sum() / sum(sizes)
                  for y, t in zip(graph[-1], self.targets.split(sizes), strict=True)]
        self.sizes = sizes
        self.gradients = [torch.autograd.grad(loss, leaves) for loss in losses]
        self.weights = [leaf.detach() for leaf in leaves]
        self.inputs = [[x.detach() for x in parts] for parts in graph[::2]]
        self.losses = torch.stack(losses).detach()

    def on_ranks(self, subject, function):
        """The results of each rank; a send that waits is told in the words of the lesson."""
        p = len(self.weights) // 4
        layers = [t.float() for t in self.weights]
        try:
            return subject.ranks(f"{DRIVER}:{function}", [
                (schedule, self.sizes, [layers[4 * i:4 * i + 2], layers[4 * i + 2:4 * i + 4]],
                 torch.cat(self.inputs[i]).float(), self.targets.float() if i == p - 1 else None)
                for i, schedule in enumerate(schedules(p, len(self.sizes)))]).results
        except RankFault as error:
            if not re.search(r"in send of [^;]*\(s23", str(error)):
                raise
            why = ("a stage waits until its send is received, and the other stage waits in a send, "
                   "too: begin sends with isend, and do not wait for them")
            waits = str(error).partition(". A send")[0]
            raise AssertionError(mistake("blocking_send", f"{waits}. Here {why}", why)) from None


def check_flights(result, i, sends):
    assert result["sends"] == sends, mistake("handle_dropped", (
        f"stage {i} puts {result['sends']} handles into stage.flights, expected {sends}, one for "
        f"each send: else nothing waits for its end, and its tensor may be freed before it left"))


def check_kept(agree, problem, i, j, pair, reused):
    """The pair that a stage has kept. reused: what one buffer for all inputs holds at the end"""
    x, y, x_waits, y_waits = pair
    what = f"stage {i}, micro-batch {j}"
    agree(x, problem.inputs[i][j], "float32", f"{what}: the input kept", AT_TOKEN, {
        "buffer_reused": ("a later micro-batch is received into the same tensor",
                          reused[:len(problem.inputs[i][j])])})
    assert x_waits or i == 0, mistake("no_gradient", (
        f"{what}: its input asks for no gradient (requires_grad_): stage {i - 1} would get none"))
    assert y_waits, mistake("detached", f"{what}: no backward can begin from the output that is "
                            f"kept, it has no graph")
    last = i + 2 == len(problem.inputs)
    assert y.shape == () or not last, mistake("loss_not_kept", (
        f"{what}: its output is the loss, a single number; kept is one of shape {tuple(y.shape)}"))
    agree(y, problem.losses[j] if last else problem.inputs[i + 1][j], "float32",
          f"{what}: the output kept", *[AT_TOKEN] * (not last))


def test_forward_step(subject, rng, agree):
    for p, sizes in ON_RANKS:
        problem = Problem(rng, p, sizes)
        m = len(sizes)
        results = problem.on_ranks(subject, "forward_alone")
        for i, result in enumerate(results):
            kept = dict(result["kept"])
            assert sorted(kept) == list(range(m)), mistake(
                "not_kept", f"after {m} forwards, stage {i} has in stage.kept only {sorted(kept)}")
            reused = torch.zeros(max(sizes), C, dtype=torch.float64)
            for x in problem.inputs[i]:
                reused[:len(x)] = x
            for j in range(m):
                check_kept(agree, problem, i, j, kept[j], reused)
            check_flights(result, i, m * (i < p - 1))
        losses = problem.losses
        means = losses * sum(sizes) / torch.tensor(sizes)
        agree(results[-1]["total"], losses.sum(), "float32", "stage.total of the last stage",
              mistakes={
                  "overwritten_loss": ("only the last micro-batch's loss is there", losses[-1]),
                  "mean_loss": ("each micro-batch's own mean counts alike, whatever its tokens",
                                means.mean())})


def test_backward_step(subject, rng, agree):
    for p, sizes in ON_RANKS:
        problem = Problem(rng, p, sizes)
        m = len(sizes)
        for i, result in enumerate(problem.on_ranks(subject, "backward_alone")):
            for k, got in enumerate(result["gradients"]):
                what = f"stage {i}, layer {k // 2}: the gradient of the {('weight', 'bias')[k % 2]}"
                assert got is not None, mistake("no_backward", f"{what}: there is none")
                parts = [gradients[4 * i + k] for gradients in problem.gradients]
                agree(got, sum(parts), "float32", what, mistakes={
                    "grad_overwritten": ("only the last micro-batch's gradient is there: they add "
                                         "up", parts[-1]),
                    "divided_by_m": ("the gradient is divided by the number of micro-batches: the "
                                     "loss is a sum of their shares", sum(parts) / m)})
            assert result["left"] == 0, mistake("keeps_all", (
                f"stage {i} still keeps {result['left']} micro-batches after their backwards, and "
                f"{result['peak']} at the peak: take them out of stage.kept"))
            check_flights(result, i, m * (i > 0))
