"""Graders of g06. A recording is compared with the functions by the book, and a runner with its
model; launches are counted."""

import subprocess
import sys
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch

import layer2_graph
from lab import simulator
from lab.course import ROOT
from lab.judge.adversarial import VALUES, views
from layer1_kernels import kernels
from layer2_graph import (
    Batch,
    CaptureError,
    Config,
    Forked,
    GraphRunner,
    Llama,
    PagedCache,
    Tape,
    capture,
    choose_sizes,
    end_times,
    generate_on,
    greedy,
    load,
)
from layer2_graph.bench.g06_cuda_graphs import bench
from layer2_graph.checkpoint import shapes
from layer2_graph.g06_cuda_graphs import (
    Request,
    asked,
    blank_step,
    memory,
    needs,
    pad_step,
    serve,
)


def random_llama(**entries):
    torch.manual_seed(0)
    m = Config(**{"L": 2, "C": 32, "H": 4, "G": 2, "D": 16, "F": 48, "V": 31, "eps": 1e-5,
                  "theta": 1e4, "room": 64} | entries)
    return Llama(m, {name: torch.randn(shape) / 4 for name, shape in shapes(m)}, kernels("torch"))


def noisy(model, sequences, room):
    """A cache whose every slot holds something."""
    cache = PagedCache(model.config, sequences, room)
    cache.k.normal_(), cache.v.normal_()
    return cache


# ---- predict_host_launches


def test_predict_host_launches(subject, truth):
    """The truth is counted: the launches of a batch of 3 in a graph of size 3."""
    def counted():
        model = random_llama()
        runner = GraphRunner(model, PagedCache(model.config, 3, 16), [3], 3, 1)
        return asked(runner, runner.cache.step([[1], [2], [3]]))

    names = truth(counted)
    want, got = len(names), subject.predict_host_launches()
    assert type(got) is int, f"a prediction is a whole number, got {got!r}"
    assert got == want, (
        f"predict_host_launches: the host asks for {want}: {', '.join(names)}; predicted {got}"
        + {1: "\nThe replay is one. But it reads its own buffers, and the step is elsewhere.",
           want - 1: "\nThe replay itself is asked for, too.",
           486: "\nThat is an eager step of 32 layers: these launches are in the graph.",
           15: "\nThat is a layer, eager: its launches are in the graph."}.get(got, ""))


# ---- replay


def silu_mul(x):
    return x / (1 + np.exp(-x)) * (x + 1)


def recorded(subject, arrays):
    """(module, tape) of a program: `total` doubled and then 1 more, in place; y, which is x + 1;
    2y; minus a view of y; 5x."""
    graph, root = subject.make("torch.fx:Graph"), subject.make("torch.nn:Module")
    graph.placeholder("ops")
    for name, array in arrays.items():
        root.register_buffer(name, array.clone())
    total, x = map(graph.get_attr, arrays)
    call = graph.call_method
    call("mul_", (total, 2.0)), call("add_", (total, 1.0))
    y = call("add", (x, 1.0))
    twice, view = call("mul", (y, 2.0)), call("narrow", (y, 0, 1, 2))
    graph.output([y, twice, call("neg", (view,)), call("mul", (x, 5.0))])
    module = subject.make("torch.fx:GraphModule", root, graph)
    return module, subject.Tape(module, subject.make("layer1_kernels:kernels", "torch"))


def test_replay__in_order(subject, agree):
    """Calls in place, on an earlier result and on a view of one: each mistake has its own mark."""
    def arrays(total, x):
        return {"total": torch.tensor(total), "x": torch.tensor(x)}

    module, tape = recorded(subject, arrays([1.0, 7.0, 5.0], [6.0, 7.0, 8.0]))
    module.load_state_dict(arrays([3.0, 4.0, 6.0], [1.0, 2.0, 5.0]))
    tape.replay()
    first, old, new = (np.array(a) for a in ([3.0, 4, 6], [7.0, 8, 9], [2.0, 3, 6]))
    agree(module.total, 2 * first + 1, "exact",
          "numbers that one call doubles and the next one adds 1 to, both in place", mistakes={
              "no call is made again": first,
              "every call is made twice": 4 * first + 3,
              "the calls are made in reverse order": 2 * (first + 1),
              "the first call of the recording is left out": first + 1,
              "results are added to the recorded ones, not put over them": 8 * first + 2})
    y, twice, minus, last = tape.output
    agree(y, new, "exact", "x + 1, computed again", mistakes={
        "later calls read what the recording left: results are not put where the first are": old,
        "results are added to the recorded ones, not put over them": old + new})
    agree(twice, 2 * new, "exact", "twice the result of an earlier call", mistakes={
        "all calls are made before the first result is put into place": 2 * old})
    agree(minus, -new[1:], "exact", "minus a view of an earlier call's result", mistakes={
        "a recorded result has other memory now, and its views still show the old numbers: "
        "overwrite its contents": -old[1:]})
    agree(last, 5 * (new - 1), "exact", "5x, by the last call", mistakes={
        "the last call of the recording is left out": 5 * (old - 1)})


def test_replay(subject, agree, rng):
    first, second = rng.standard_normal((2, 5)).astype(np.float32)
    example = subject.Example(first.tolist())
    tape = subject.Tape(example, subject.make("layer1_kernels:kernels", "torch"))
    example.put(second.tolist())
    tape.replay()
    old, new = silu_mul(first.astype(np.float64)), silu_mul(second.astype(np.float64))
    at = lambda i: f"number {i[-1]}"        # noqa: E731
    agree(example.total, (old + new)[None], "float32", "the total after a recording and a replay",
          at, mistakes={
              "no call is made again": old[None],
              "later calls read what the recording left: results are not put where the first are":
                  (2 * old)[None],
              "every call is made twice": (old + 2 * new)[None]})
    agree(tape.output, (new * (old + new))[None], "float32", "the output after a replay", at,
          mistakes={"the last call of the recording is left out": (old * old)[None]})


def test_replay__arguments_by_name_and_several_results(subject, agree, rng):
    x = torch.from_numpy(rng.standard_normal((2, 4)).astype(np.float32))
    one = subject.Call("add", subject.torch.add, (x, x), {"alpha": 3}, torch.zeros(2, 4))
    two = subject.Call("sort", subject.torch.sort, (x,), {},
                       (torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.int64)))
    subject.replay([one, two])
    agree(one.result, 4 * x.double().numpy(), "float32", "x + 3x, recorded with alpha=3 by name",
          mistakes={"arguments by name are forgotten": 2 * x.double().numpy()})
    values, places = two.result
    agree(values, np.sort(x.numpy()), "exact", "the first result of a sort", mistakes={
        "results are put into place only where a call returns a single array": np.zeros((2, 4)),
        "the results of a call change places": np.argsort(x.numpy())})
    agree(places, np.argsort(x.numpy()), "exact", "the second result of a sort",
          mistakes={"only the first of several results is put into place": np.zeros((2, 4))})


class Program:
    """A random program of PyTorch calls on (4, 4) arrays, with views, several results and steps in
    place: a torch.fx module, built by the `make` of either side. Its arrays are x and y."""

    NAMES = ("add", "sub", "maximum", "t", "flip", "sort", "add_", "neg_", "chunk", "mul", "clone")

    def __init__(self, make, draws, arrays):
        self.graph, root = make("torch.fx:Graph"), make("torch.nn:Module")
        self.item = make("builtins:getattr", make("importlib:import_module", "operator"), "getitem")
        self.graph.placeholder("ops")
        for name, array in arrays.items():
            root.register_buffer(name, array.clone())
        self.nodes = [self.graph.get_attr(name) for name in arrays]
        for name, *places in draws:
            self.add(name, *(self.nodes[place % len(self.nodes)] for place in places))
        self.graph.output([self.nodes[-1], (self.nodes[-2], {"third": self.nodes[-3]})])
        self.module = make("torch.fx:GraphModule", root, self.graph)

    def add(self, name, one, other):
        call, item = self.graph.call_method, self.item
        rest = {"flip": ([0],), "add_": (1.5,), "chunk": (2,)}
        if name in ("add", "sub", "maximum", "mul"):
            rest[name] = (other,)
        node = call(name, (one, *rest.get(name, ())))
        if name == "sort":                              # values, and places as numbers
            parts = [self.graph.call_function(item, (node, i)) for i in (0, 1)]
            node = call("add", (parts[0], parts[1]))
        elif name == "chunk":                           # two views, laid side by side again
            halves = [self.graph.call_function(item, (node, i)) for i in (1, 0)]
            for half in halves:
                call("mul_", (half, 0.5))
            node = call("t", (one,))
        self.nodes.append(node)

    @staticmethod
    def here(path, *args):
        module, _, name = path.partition(":")
        return getattr(import_module(module), name)(*args)


def flat(output):
    last, (second, rest) = output
    return np.stack([np.asarray(a, dtype=np.float64) for a in (last, second, rest["third"])])


def test_replay__drawn_programs(subject, agree, rng):
    """The course's own side runs each again, eagerly; hard numbers come in between."""
    ops = subject.make("layer1_kernels:kernels", "torch")
    for round in range(40):
        draws = [(str(rng.choice(Program.NAMES)), *rng.integers(0, 99, 2).tolist())
                 for _ in range(rng.integers(1, 9))]
        kinds = sorted(VALUES)[round % len(VALUES)], sorted(VALUES)[-round % len(VALUES)]
        contents = [{name: torch.from_numpy(VALUES[kind](rng, (4, 4)))
                     for name, kind in zip("xy", kinds, strict=True)} for _ in range(3)]
        theirs, own = (Program(make, draws, contents[0]) for make in (subject.make, Program.here))
        tape, before = subject.Tape(theirs.module, ops), flat(own.module(None))
        for arrays in contents[1:]:
            for program in (theirs, own):
                program.module.load_state_dict(arrays)
            want = flat(own.module(None))
            tape.replay()
            agree(flat(tape.output), want, "exact",
                  f"the output after a replay of x, y and then {', '.join(d[0] for d in draws)}, "
                  f"numbers of the kinds {' and '.join(kinds)}",
                  at=lambda i: f"result {i[0]}, row {i[1]}, column {i[2]}",
                  mistakes={"the output stays as it was": before})
            before = want


RESULTS = {
    "an int64 past 2^31": (torch.tensor([2**40 + 1, -5]), torch.zeros(2, dtype=torch.int64)),
    "truth values": (torch.tensor([True, False]), torch.tensor([False, True])),
    "numbers over a NaN and an infinity": (torch.tensor([1.5, -2.0]),
                                           torch.tensor([torch.nan, torch.inf])),
    "float64 numbers": (torch.tensor([1 / 3], dtype=torch.float64), torch.zeros(1).double()),
    "17 numbers": (torch.arange(17.0), torch.zeros(17)),
    "40,000 numbers": (torch.arange(40_000.0), torch.zeros(40_000)),
    "a single number": (torch.tensor(7.0), torch.tensor(1.0)),
    "nothing, of three columns": (torch.zeros(0, 3), torch.zeros(0, 3)),
}


def test_replay__hard(subject, agree):
    """Results of each form, calls that return nothing, one call twice, and no call at all."""
    for what, (new, old) in RESULTS.items():
        for form, nest in NESTS.items():
            kernel = subject.make("lab.judge.mocks:Watched", None, nest(new))
            call = subject.Call("made up", kernel, (), {}, nest(old))
            subject.replay([call])
            agree(torch.utils._pytree.tree_leaves(call.result)[-1], new.numpy(), "exact",
                  f"replay, {what}, {form}")
    new = torch.arange(12.0).view(3, 4)
    for layout, old in views(torch.zeros(3, 4)).items():
        kernel = subject.make("lab.judge.mocks:Watched", None, new)
        call = subject.Call("made up", kernel, (), {}, old)
        subject.replay([call])
        agree(call.result, new.numpy(), "exact", f"replay, a recorded result with {layout}")
    silent = subject.make("lab.judge.mocks:Watched")
    call = subject.Call("write_kv", silent, (torch.ones(2),), {}, None)
    for asked_for, times in (([call], 1), ([call, call], 3), ([], 3), ([call] * 5, 8)):
        subject.replay(asked_for)
        assert len(silent.calls) == times, (
            f"replay: a call that returns nothing was made {len(silent.calls)} times in all, "
            f"expected {times}: such as write_kv, it is asked again like any other, and as often "
            f"as it was recorded")


NESTS = {"by itself": lambda x: x, "the last of a tuple": lambda x: (3, None, x),
         "in a dict within a list": lambda x: [{"kept": x}]}


# ---- pad_step


def step_of(B, pages, cu_q=None, first=0):
    """A Batch of B = T with numbers that show where they are from."""
    rows = torch.arange(B)
    cu_q = torch.arange(B + 1) if cu_q is None else torch.tensor(cu_q)
    return (rows + 11 + first, rows + 21 + first, rows + 31 + first,
            (torch.arange(B * pages).view(B, pages) + 41 + first).int(), cu_q.int(),
            (rows + 81 + first).int())


NAMES = ("tokens", "positions", "slots", "block_tables", "cu_q", "lens")


@pytest.mark.parametrize("B, size, cu_q", [
    (3, 5, None), (2, 6, [0, 0, 2]), (1, 4, None), (4, 4, [0, 2, 2, 4, 4]), (6, 6, None)])
def test_pad_step(subject, agree, B, size, cu_q):
    rows, pages, width = 6, 3, 2
    stale = [x.clone() for x in step_of(rows, pages, [0, 0, 0, 0, 0, 5, 6], 100)]
    step = step_of(B, width, cu_q)
    buffers, given = subject.Batch(*stale), subject.Batch(*step)
    launches = subject.make("layer2_graph:Launches")
    with launches:
        subject.pad_step(buffers, given, size)
    got = {name: getattr(buffers, name).numpy() for name in NAMES}
    want = dict(zip(NAMES, (x.numpy() for x in step), strict=True))
    old = dict(zip(NAMES, (x.numpy() for x in stale), strict=True))
    of = f"a batch of {B} in a graph of {size}"

    def at(i):
        return f"row {i[0]}, {'the step' if i[0] < B else 'padding'}"

    def padded(name, value):
        return np.concatenate([want[name], np.full(size - B, value)])

    def left(name):
        return np.concatenate([want[name], old[name][B:size]])

    for name in NAMES:
        assert len(got[name]) == len(old[name]), (
            f"pad_step: the buffer of {name} has {len(got[name])} entries now, and had "
            f"{len(old[name])}: copy into its first rows, since the graph reads this memory")
    none = {name: old[name][:size] for name in NAMES}
    agree(got["slots"][:size], padded("slots", -1), "exact", f"slots, {of}", at, mistakes={
        "the step is not copied": none["slots"],
        "a padded row keeps a slot: it writes into a page that may be somebody's": left("slots"),
        "slot 0 is taken for nowhere: it is the first token of page 0": padded("slots", 0),
        "the step's own rows are made padding, too": np.full(size, -1),
        "rows from B + 1 on are reset, row B is not":
            np.concatenate([want["slots"], old["slots"][B:B + 1], np.full(size - B, -1)])[:size]})
    agree(got["lens"][:size], padded("lens", 1), "exact", f"lens, {of}", at, mistakes={
        "a padded row has its old context, and attention reads all of it": left("lens"),
        "a padded row has one token and a context of none: its softmax is over nothing":
            padded("lens", 0),
        "a sequence's context is taken from its position":
            np.append(want["positions"] + 1, np.ones(size - B, int)),
        "a padded row has the context of the step's first sequence":
            padded("lens", want["lens"][0]),
        "the step's own contexts are made padding, too": np.ones(size, int),
        "lens of the step are not copied": np.append(old["lens"][:B], np.ones(size - B, int))})
    ends = np.concatenate([want["cu_q"], np.arange(B + 1, size + 1)])
    agree(got["cu_q"][:size + 1], ends, "exact", f"cu_q, {of}", lambda i: f"entry {i[0]}",
          mistakes={
              "the padded rows' part is left from an earlier step":
                  np.concatenate([want["cu_q"], old["cu_q"][B + 1:size + 1]]),
              "the padded rows belong to no sequence, and attention leaves nothing in them":
                  np.concatenate([want["cu_q"], np.full(size - B, B)]),
              "the step's own part is overwritten: a sequence may have none or two new tokens":
                  np.arange(size + 1),
              "padded sequences begin where counting starts, not where the step ends":
                  np.concatenate([want["cu_q"], np.arange(1, size - B + 1)]),
              "the first padded sequence ends at B, where it begins; its token ends at B + 1":
                  np.concatenate([want["cu_q"], np.arange(B, size)]),
              "padding begins an entry early: entry B is the step's, cu_q has one more than rows":
                  np.concatenate([want["cu_q"][:B], np.arange(B + 1, size + 1),
                                  old["cu_q"][size:size + 1]]),
              "the first padded sequence has all padded rows; each is a sequence of one token":
                  np.concatenate([want["cu_q"], np.full(size - B, size)]),
              "cu_q of the step is not copied":
                  np.concatenate([old["cu_q"][:B + 1], np.arange(B + 1, size + 1)])})
    for name in ("tokens", "positions"):
        agree(got[name][:B], want[name], "exact", f"{name} of the step, {of}", at,
              mistakes={f"{name} are not copied": none[name][:B]})
    agree(got["block_tables"][:B, :width], want["block_tables"], "exact",
          f"block_tables of the step, {of}, {width} pages into buffers of {pages}",
          mistakes={"block_tables are not copied": old["block_tables"][:B, :width],
                    "tables are put at the right end of the buffers' rows; they begin at the left":
                        np.concatenate([old["block_tables"][:B, :pages - width],
                                        want["block_tables"]], axis=1)[:, :width]})
    asked_for = len(launches.names)
    assert asked_for <= 14, (
        f"pad_step: {asked_for} launches for {of}. Whole arrays and slices take 9; row by row "
        f"the host is as busy as before")
    assert size > B or asked_for <= 6, (
        f"pad_step: {asked_for} launches for {of}: there is no padding, and copies take 6")


PADS = {
    "one padded row": {"B": 4, "size": 5}, "one row in all": {"B": 1, "size": 1, "rows": 1},
    "a batch of 15 in 17": {"B": 15, "size": 17, "rows": 33}, "slots past 2^31": {"first": 2**33},
    "a table of one page": {"width": 1}, "a table as wide as the buffers'": {"width": 3},
    "block tables that are columns of a wider one": {"layout": "rows far apart"},
    "block tables whose columns come first": {"layout": "columns first"},
    "more rows than 15 bits count": {"B": 32_768, "size": 32_770, "rows": 33_000, "pages": 2},
    "a batch of none": {"B": 0, "size": 2},
}


def test_pad_step__hard(subject, agree, rng):
    """The graph reads views made of the buffers before. Then random batches, small ones one after
    the other in the same buffers."""
    for what, case in PADS.items():
        judge_padding(subject, agree, what, **case)
    for _ in range(60):
        B, size, rows = np.sort(rng.integers(1, 7, 3)).tolist()
        width, pages = np.sort(rng.integers(1, 4, 2)).tolist()
        cu_q = [0, *np.sort(rng.integers(0, B + 1, B - 1)).tolist(), B]
        judge_padding(subject, agree, f"cu_q of the step {cu_q}", B, size, rows, width, pages,
                      cu_q, int(rng.integers(200, 2**20)))


def judge_padding(subject, agree, what, B=3, size=5, rows=6, width=2, pages=3, cu_q=None, first=0,
                  layout=None):
    stale = [x.clone() for x in step_of(rows, pages, [0] * rows + [rows], 100)]
    numbers = list(step_of(B, width, cu_q))
    numbers[2] = numbers[2] + first
    if layout:
        numbers[3] = views(numbers[3])[layout]
    buffers, given = subject.Batch(*stale), subject.Batch(*numbers)
    read = subject.first_rows(buffers, size)
    tape = subject.Tape(subject.make("lab.judge.mocks:Watched"),
                        subject.make("layer1_kernels:kernels", "torch"))
    with subject.HostReads(tape), tape:         # as in a capture: contents must not be read
        subject.pad_step(buffers, given, size)
    of = f"a batch of {B} in a graph of {size}, {what}"
    want = [x.numpy() for x in numbers]
    for place, rest in ((2, np.full(size, -1)), (4, np.arange(size + 1)), (5, [1] * size)):
        want[place] = np.append(want[place], rest[len(want[place]):])
    moved = {name: x.numpy() for name, x in zip(NAMES, stale, strict=True)}
    for name, right, before in zip(NAMES, want, numbers, strict=True):
        shape = tuple(map(slice, right.shape))
        got = getattr(read, name).numpy()
        mistakes = {
            "what the graph reads is as it was: the buffers have another address now":
                moved[name][shape],
            "what the graph reads of the padded rows is as it was": np.append(
                right[:B + 1], moved[name][B + 1:len(right)]) if name == "cu_q" else np.concatenate(
                [right[:B], moved[name][B:len(right), ...][(slice(None), *shape[1:])]])}
        agree(got[shape], right, "exact", f"{name}, {of}", mistakes=mistakes)
        agree(getattr(given, name), before.numpy(), "exact", f"{name} of the step itself, {of}")
        if name in ("tokens", "positions", "block_tables"):
            most = max(moved[name].max(), right.max(initial=0))
            assert ((got[B:] >= 0) & (got[B:] <= most)).all(), (
                f"pad_step, {of}: {name} of the padded rows are {got[B:].tolist()}: no such one "
                f"exists, and they are read; 0 or what was there is harmless")


def test_pad_step__unseen(subject, agree, rng):
    for _ in range(4):
        B, size, rows = np.sort(rng.integers(1, 20, 3)).tolist()
        width, pages = np.sort(rng.integers(1, 9, 2)).tolist()
        cu_q = [0, *np.sort(rng.integers(0, B + 1, B - 1)).tolist(), B]
        judge_padding(subject, agree, f"cu_q of the step {cu_q}", B, size, rows, width, pages,
                      cu_q, int(rng.integers(200, 2**20)))


# ---- choose_sizes


def fewest(max_batch, waste):
    """The least number of sizes, trying every next one from each batch on."""
    @cache
    def best(batch):                        # sizes for batches from this one on
        if batch > max_batch:
            return 0
        return min(1 + best(size + 1) for size in range(batch, max_batch + 1)
                   if size == batch or size - batch <= waste * size)
    return best(1)


@pytest.mark.parametrize("max_batch, waste", [
    (20, 0.5), (64, 0.25), (20, 0.34), (7, 0), (1, 0.5), (100, 0.1), (33, 0.99)])
def test_choose_sizes(subject, max_batch, waste):
    judge_sizes(subject, max_batch, waste)


def test_choose_sizes__every_small_one(subject):
    """Shares that a float holds exactly, 1 among them, so that a padding can be exactly `waste`."""
    for eighths in (4, 2, 6, 1, 7, 3, 5, 0, 8):
        for max_batch in (*range(24, 0, -1), 65):
            judge_sizes(subject, max_batch, eighths / 8)


def judge_sizes(subject, max_batch, waste, least=None):
    got = subject.choose_sizes(max_batch, waste)
    of = f"choose_sizes({max_batch}, {waste})"
    assert isinstance(got, (list, tuple)) and got and all(type(n) is int for n in got), \
        f"{of}: got {got!r}, expected a list of whole numbers"
    assert max(got) <= max_batch, (
        f"{of}: {got}: a graph of {max(got)} rows reads past buffers of {max_batch}")
    assert max(got) == max_batch, (
        f"{of}: {got}: no graph holds a batch of {max(got) + 1}, and {max_batch} may come")
    assert list(got) == sorted(set(got)) and got[0] > 0, (
        f"{of}: {got}: expected each size once, in ascending order, from 1 up")
    for batch in range(1, max_batch + 1):
        size = next(n for n in got if n >= batch)
        assert size - batch <= waste * size, (
            f"{of}: {got}: a batch of {batch} takes {size} rows, {size - batch} of them padding: "
            f"{(size - batch) / size:.0%} of {size}, and {waste:.0%} is allowed" + (
                f"\nIt is {waste:.0%} or less of what? Rows of the size, not of the largest batch."
                if size - batch <= waste * max_batch else ""))
    least = least or fewest(max_batch, waste)
    assert len(got) == least, f"{of}: {len(got)} captures, and {least} do: {got}" + (
        "\nIs a batch refused whose padding is just the share allowed?"
        if len(got) < max_batch and any(
            size - one == waste * size for one, size in zip(got, got[1:], strict=False)) else
        "\nIs the padding divided by the batch? It is a share of the rows that run."
        if all(next(n for n in got if n >= b) - b <= waste * b
               for b in range(1, max_batch + 1)) and len(got) < max_batch else
        "\nEvery batch has a size of its own: what is `waste` for?" if len(got) == max_batch
        else "")


def test_choose_sizes__unseen(subject, reference, rng):
    """Any list of sizes passes that is valid and has no shorter valid one."""
    for most in rng.integers(2, 400, 4).tolist():
        waste = float(rng.integers(1, 16)) / 16
        judge_sizes(subject, most, waste, len(reference.choose_sizes(most, waste)))


# ---- end_times


@pytest.mark.parametrize("waits, costs", [
    ([set(), {0}, {0}, {1, 2}, {3}, {0, 2}], [2, 9, 3, 4, 1, 5]),
    ([set(), set(), set(), {0, 1, 2}], [3, 1, 2, 2]),
    ([set(), {0}, {1}, {0}], [1, 1, 1, 1]),
    ([set(), {0}, {0, 1}, {0, 1, 2}, set()], [4, 3, 0, 7, 2]), ([], [])])
def test_end_times(subject, agree, waits, costs):
    def ends(pick=max, costs=costs, of=lambda waits: waits, begin=False):
        found = []
        for i, cost in zip(of(waits), costs, strict=True):
            found.append(cost + pick([found[j] for j in i] or [0]))
        return np.array([e - c for e, c in zip(found, costs, strict=True)] if begin else found)

    def by_cost(pick):
        return np.array([cost + pick([costs[j] for j in i] or [0])
                         for i, cost in zip(waits, costs, strict=True)])

    def chosen(own):
        """own(ends of those that it waits for, cost, earlier beginnings): when a call begins"""
        found, begun = [], []
        for i, cost in zip(waits, costs, strict=True):
            begun.append(own([found[j] for j in i] or [0], cost, begun))
            found.append(begun[-1] + cost)
        return np.array(found)

    got = subject.end_times(sets(subject, waits), costs)
    assert np.ndim(got), (f"end_times: one number, {got}; the ends of all calls are asked for, and "
                          f"the critical path is the latest of them")
    agree(np.array(got, dtype=float), ends().astype(float), "exact",
          f"end_times of calls that cost {costs}, and wait for {[sorted(w) for w in waits]}",
          at=lambda i: f"call {i[0]}", mistakes={
              "each call waits for the one before, as on one stream": np.cumsum(costs),
              "it begins when the first of those that it waits for ends": ends(min),
              "a call waits only for the one of the highest number, which need not end last":
                  ends(of=lambda ws: [sorted(w)[-1:] for w in ws]),
              "a call waits only for the one of the lowest number":
                  ends(of=lambda ws: [sorted(w)[:1] for w in ws]),
              "a call waits until the earlier ones have begun, as in a queue":
                  chosen(lambda ends, cost, begun: max([*ends, *begun])),
              "a call that costs nothing ends at 0, not when it may begin":
                  chosen(lambda ends, cost, begun: max(ends) * (cost > 0)),
              "costs of the calls that it waits for are taken for their ends": by_cost(max),
              "costs of the calls that it waits for are added up, not their ends compared":
                  by_cost(sum),
              "a call's own cost is left out": np.zeros(len(costs)),
              "the longer of wait and cost is taken; the one comes after the other":
                  chosen(lambda ends, cost, begun: max(0, max(ends) - cost)),
              "the ends are sorted; they belong to the calls, in their order": np.sort(ends()),
              "calls that run side by side are added up": ends(sum),
              "these are the times at which the calls begin": ends(begin=True),
              "nobody waits for anybody": np.array(costs),
              "each call counts as one, whatever it costs": ends(costs=[1] * len(costs))})


def sets(subject, waits):
    """The same as sets, which cannot be sent to the child as they are."""
    kind = subject.make("importlib:import_module", "builtins").set
    return subject.make("builtins:list", subject.make("builtins:map", kind, [*map(list, waits)]))


def soonest(waits, costs):
    """By a walk through time: every call that can begin does, then the next end comes."""
    ends, now = {}, 0
    while len(ends) < len(costs):
        for i, cost in enumerate(costs):
            if i not in ends and all(j in ends and ends[j] <= now for j in waits[i]):
                ends[i] = now + cost
        later = [end for end in ends.values() if end > now]
        ready = any(i not in ends and all(j in ends and ends[j] <= now for j in waits[i])
                    for i in range(len(costs)))
        now = now if ready or not later else min(later)
    return [ends[i] for i in range(len(costs))]


COSTS = {
    "one call": ([[]], [4]), "all cost nothing": ([[], [0], [0, 1]], [0, 0, 0]),
    "bytes past 2^31": ([[], [0], [0, 1], []], [2**40 + 1, 2**31, 3, 2**33 + 1]),
    "halves and thirds": ([[], [0], [0], [1, 2]], [0.5, 1 / 3, 0.25, 1.5]),
}


def test_end_times__hard(subject, agree, rng):
    """Then random calls of small costs, 0 among them, in which equal ends are frequent."""
    for what, (waits, costs) in COSTS.items():
        judge_ends(subject, agree, what, waits, costs)
    for _ in range(250):
        count = int(rng.integers(2, 8))
        waits = [sorted({int(j) for j in rng.integers(0, i, rng.integers(0, 3))}) if i else []
                 for i in range(count)]
        costs = rng.integers(0, 3, count).tolist()
        judge_ends(subject, agree, f"calls that cost {costs} and wait for {waits}", waits, costs)


def judge_ends(subject, agree, what, waits, costs):
    handed = sets(subject, waits)
    got = subject.end_times(handed, costs)
    agree(got, np.array(soonest(waits, costs), dtype=np.float64),
          "float64" if "thirds" in what else "exact",
          f"end_times, {what}", at=lambda i: f"call {i[0]}")
    for i in range(min(len(waits), 5)):
        left = subject.make("builtins:sorted", handed[i])
        assert left == waits[i], (
            f"end_times, {what}: it changes what call {i} waits for: {left}, and it was {waits[i]}")


def test_end_times__unseen(subject, agree, rng):
    waits = [sorted(set(rng.integers(0, i, 3).tolist())) if i else [] for i in range(30)]
    costs = rng.integers(0, 100, 30).tolist()
    judge_ends(subject, agree, f"calls that cost {costs} and wait for {waits}", waits, costs)


# ---- the recording


OPS = kernels("torch")
REFUSED = {
    "item": lambda x, ops: x.sum().item(),
    "if": lambda x, ops: x if x.sum() > 0 else -x,
    "float": lambda x, ops: x * float(x[0]),
    "tolist": lambda x, ops: x * x.tolist()[0],
    "numpy": lambda x, ops: torch.from_numpy(x.numpy()),
    "cpu": lambda x, ops: x.cpu(),
    "mask": lambda x, ops: x[x > 0],
    "write by a mask": lambda x, ops: x.__setitem__(x > 0, 2.0),
    "nonzero": lambda x, ops: x.nonzero(),
    "equal": lambda x, ops: torch.equal(x, x),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_question_to_the_device_is_refused(name):
    x = torch.ones(3)
    with pytest.raises(CaptureError, match="needs an array's contents on the host"):
        capture(partial(REFUSED[name], x), OPS, "cpu")
    assert (x + 1 > 0).all().item()             # no mode is left active


def test_a_kernel_may_look_at_contents_and_is_one_launch():
    model = random_llama()
    step = PagedCache(model.config, 2, 16).step([[1], [2]])
    q, pages = torch.randn(2, 4, 16), torch.randn(2, 16, 2, 16)
    tape = capture(lambda ops: ops.paged_attention(q, pages, pages, *step[3:], 0.25), OPS, "cpu")
    assert [call.name for call in tape.calls] == ["paged_attention"]
    step.lens.fill_(9)
    q.mul_(2)
    tape.replay()
    want = OPS.paged_attention(q, pages, pages, *step[3:], 0.25)
    assert torch.equal(tape.output, want)


def test_python_is_not_run_again_and_its_numbers_are_frozen():
    x, seen, factor = torch.ones(2), [], 2.0

    def step(ops):
        seen.append(factor)
        return x * factor

    tape = Tape(step, OPS)
    address, factor = tape.output.data_ptr(), 10.0
    x.fill_(3)
    tape.replay()
    assert seen == [2.0] and tape.output.tolist() == [6, 6]
    assert tape.output.data_ptr() == address


def test_memory_that_is_set_aside_is_no_launch():
    x = torch.ones(3)
    tape = Tape(lambda ops: torch.empty(3).copy_(x).mul_(2), OPS)
    x.fill_(5)
    tape.replay()
    assert [call.name for call in tape.calls] == ["copy_", "mul_"]
    assert tape.output.tolist() == [10] * 3


def test_views_lie_where_they_lay():
    x = torch.arange(6.0)
    tape = Tape(lambda ops: (x.view(2, 3).t() + 1).reshape(6)[1:3], OPS)
    x.mul_(10)
    tape.replay()
    assert tape.output.tolist() == [31, 11]


# ---- the runner


LADDERS = [([1, 2, 4, 8], 6), ([1, 2, 4, 8, 16], 20), ([3], 5), ([1, 2, 4, 8], 4), ([7], 7),
           ([9], 1)]


@pytest.mark.parametrize("sizes, max_batch", LADDERS)
def test_every_batch_has_a_graph_or_the_fallback(sizes, max_batch):
    model = random_llama(L=1)
    cache, other = noisy(model, max_batch, 20), PagedCache(model.config, max_batch, 20)
    other.k.copy_(cache.k), other.v.copy_(cache.v)
    runner = GraphRunner(model, cache, sizes, max_batch, cache.pages)
    assert torch.equal(cache.k, other.k) and torch.equal(cache.v, other.v)      # capturing
    assert len(runner.buffers.tokens) == runner.sizes[-1] <= max_batch
    for batch in [*range(max_batch, 0, -1), *range(1, max_batch + 1)]:          # shrinks and grows
        step = first_sequences(cache, batch)
        fits = batch <= runner.sizes[-1]
        assert ("replay" in asked(runner, step)) == fits
        before = cache.k.clone(), cache.v.clone()
        got, want = runner.forward(step, cache).clone(), model.forward(step, other)
        assert got.shape == (batch, 31)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        elsewhere = torch.ones(cache.k.shape[1] * 16, dtype=torch.bool)
        elsewhere[step.slots] = False
        for old, new in zip(before, (cache.k, cache.v), strict=True):
            old, new = (x.flatten(1, 2)[:, elsewhere].view(torch.int32) for x in (old, new))
            assert torch.equal(old, new)                    # bytewise
        torch.testing.assert_close(cache.k, other.k, rtol=1e-5, atol=1e-5)


def first_sequences(cache, batch):
    """A step of one new token for each of the first sequences, at the third place of each."""
    cache.lens = [2] * len(cache.lens)
    step = cache.step([[b % 31] for b in range(len(cache.lens))])
    return Batch(step.tokens[:batch], step.positions[:batch], step.slots[:batch],
                step.block_tables[:batch], step.cu_q[:batch + 1], step.lens[:batch])


REQUESTS = [Request([1, 2, 3], 6, 0), Request([4], 10, 0), Request([5, 6], 3, 2),
            Request([7] * 9, 12, 3), Request([9], 1, 7), Request([8, 8], 2, 18)]


@pytest.mark.parametrize("entries", [{}, {"tied": True, "qk_norm": True, "bias_qkv": True}])
@pytest.mark.parametrize("sizes", [[1, 2, 4], [2], [6], [1, 3]])
def test_requests_that_come_and_go_get_the_tokens_they_would_get_alone(sizes, entries):
    model = random_llama(**entries)
    cache = noisy(model, len(REQUESTS), 21)
    runner = GraphRunner(model, cache, sizes, 6, cache.pages)
    got, steps = serve(runner, cache, REQUESTS)
    assert got == [greedy(model, [r.prompt], r.count)[0] for r in REQUESTS]
    assert len({B for B, _ in steps}) > 3 and any(T > B for B, T in steps)


@pytest.mark.parametrize("folder", ["day02_overview/nano", "layer2_graph/small"])
def test_shipped_models_too(folder):
    model = load(Path(layer2_graph.__file__).parents[1] / folder, dtype=torch.float32)
    requests = [r._replace(prompt=[t + 60 for t in r.prompt]) for r in REQUESTS[:4]]
    cache = noisy(model, 4, 21)
    got, _ = serve(GraphRunner(model, cache, [1, 2, 4], 4, cache.pages), cache, requests)
    assert got == [greedy(model, [r.prompt], r.count)[0] for r in requests]


def test_it_stands_in_for_a_model():
    model = random_llama()
    cache = PagedCache(model.config, 3, 20)
    runner = GraphRunner(model, cache, [4], 4, cache.pages)
    prompts = [[1, 2], [3], [4, 5, 6]]
    assert generate_on(cache, runner, prompts, 9) == greedy(model, prompts, 9)


def test_what_a_padded_row_reads_stays_in_it():
    model = random_llama()
    cache = noisy(model, 3, 20)
    runner = GraphRunner(model, cache, [4], 4, cache.pages)
    step = cache.step([[5], [], []])
    step = Batch(step.tokens, step.positions, step.slots + 2 * 32, step.block_tables[2:],
                torch.tensor([0, 1], dtype=torch.int32), step.lens[:1])
    want = model.forward(step, cache)
    cache.k[:, 0], cache.v[:, 0] = torch.nan, torch.inf                 # page 0: the padded rows'
    runner.buffers.block_tables[:, 1:] = 10**6                          # after the last page
    torch.testing.assert_close(runner.forward(step._replace(block_tables=step.block_tables[:, :1]),
                                              cache), want)
    assert runner.graphs[4].output[1:].isnan().any()
    assert (runner.buffers.block_tables[:, 1:] == 10**6).all()


def test_two_new_tokens_for_one_and_none_for_another_fit_by_their_shapes():
    model = random_llama()
    caches = [PagedCache(model.config, 3, 20) for _ in range(2)]
    runner = GraphRunner(model, caches[0], [4], 4, caches[0].pages)
    for new in ([[1], [2], [3]], [[4, 5], [], [6]], [[], [7], [8, 9]], [[1], [2], [3]]):
        got = runner.forward(caches[0].step(new), caches[0])
        want = model.forward(caches[1].step(new), caches[1])
        there = [bool(tokens) for tokens in new]
        torch.testing.assert_close(got[there], want[there])


def test_what_does_not_fit_runs_eagerly():
    model = random_llama()
    cache = PagedCache(model.config, 3, 40)
    runner = GraphRunner(model, cache, [1, 2], 3, 2)
    wide = cache.step([[1], [2], [3]])
    assert wide.block_tables.shape[1] == 3
    one = Batch(*(x[:1] for x in wide[:4]), wide.cu_q[:2], wide.lens[:1])
    assert runner.pick(one) is None
    narrow = one._replace(block_tables=one.block_tables[:, :2])
    assert runner.pick(narrow) == 1
    assert runner.pick(wide._replace(block_tables=wide.block_tables[:, :2])) is None
    assert runner.pick(PagedCache(model.config, 2, 32).step([[1, 2], [3]])) is None


def test_bad_input_is_one_sentence():
    model = random_llama()
    cache = PagedCache(model.config, 2, 16)
    for sizes, max_batch, pages in (([], 2, 1), ([0, 2], 2, 1), ([1], 0, 1), ([1], 2, 0)):
        with pytest.raises(ValueError, match="expected one size or more, all numbers 1 or more"):
            GraphRunner(model, cache, sizes, max_batch, pages)
    runner = GraphRunner(model, cache, [2], 2, 1)
    with pytest.raises(ValueError, match="another cache than the one"):
        runner.forward(cache.step([[1], [2]]), PagedCache(model.config, 2, 16))


@pytest.fixture
def triton_on_the_cpu():
    simulator.activate_triton()
    yield
    simulator.deactivate_triton()


def test_triton_kernels_are_replayed_too(triton_on_the_cpu):
    model = random_llama(L=1)
    want = greedy(model, [[1, 2], [3]], 3)
    model.ops = kernels("triton")
    cache = noisy(model, 2, 16)
    runner = GraphRunner(model, cache, [4], 4, cache.pages)
    assert generate_on(cache, runner, [[1, 2], [3]], 3) == want


# ---- counts


def test_the_host_asks_for_the_same_whatever_the_layers():
    for L in (1, 3):
        model = random_llama(L=L)
        runner = GraphRunner(model, PagedCache(model.config, 3, 16), [3, 4], 4, 1)
        step = runner.cache.step([[1], [2], [3]])
        assert len(asked(runner, step)) == 7
        runner.sizes = [4]
        assert len(asked(runner, step)) == 10
        runner.sizes = []
        assert len(asked(runner, step)) == 15 * L + 6
        assert len(runner.graphs[3].calls) == 15 * L + 6


def test_calls_wait_for_writers_and_for_readers():
    x, y = torch.ones(4), torch.ones(4)

    def step(ops):
        a = x + 1               # 0
        b = y + 1               # 1
        x.mul_(2)               # 2: after 0 has read it
        y[2:].add_(1)           # 3: after 1 has read it
        c = y[:2] * 3           # 4: another half than 3 writes
        d = x + a               # 5
        return b, c, d

    assert needs(Tape(step, OPS).calls) == [set(), set(), {0}, {1}, set(), {0, 2}]


def test_a_layer_is_12_steps_of_15():
    for L in (1, 2):
        model = random_llama(L=L)
        runner = GraphRunner(model, PagedCache(model.config, 2, 16), [2], 2, 1)
        calls = runner.graphs[2].calls
        ends = end_times(needs(calls), [1] * len(calls))
        assert max(ends) == 12 * L + 4
        for end, matrices in ((3, 3), (10, 2)):                 # q, k, v; gate, up
            together = [c.name for c, e in zip(calls, ends, strict=True) if e == end]
            assert together == ["matmul"] * matrices


def test_memory_is_given_back_after_the_last_use():
    x = torch.ones(100)
    tape = Tape(lambda ops: (((x + 1) * 2).view(10, 10) - 1).sum(1), OPS)
    assert memory(tape) == 2 * 400                      # two neighbours in the chain
    tape = Tape(lambda ops: (x + 1, x * 2, x - 1), OPS)
    assert memory(tape) == 3 * 400                      # all are the output


def test_a_pool_holds_what_the_largest_does():
    model = random_llama()
    runner = GraphRunner(model, PagedCache(model.config, 2, 16), choose_sizes(8, 0.5), 8, 1)
    held = [memory(runner.graphs[size]) for size in runner.sizes]
    assert list(runner.graphs) == runner.sizes[::-1]            # the largest is captured first
    assert held == sorted(held) and held[-1] == 8 * held[0]


@pytest.mark.parametrize("entries", [{}, {"qk_norm": True, "bias_qkv": True}])
def test_side_by_side_gives_the_same_tokens(entries):
    model = random_llama(**entries)
    forked = Forked(model.config, model.weights, model.ops)
    assert greedy(forked, [[1, 2, 3], [4]], 9) == greedy(model, [[1, 2, 3], [4]], 9)
    cache = PagedCache(model.config, 2, 16)
    runner = GraphRunner(forked, cache, [2], 2, 1)
    assert generate_on(cache, runner, [[1, 2, 3], [4]], 9) == greedy(model, [[1, 2, 3], [4]], 9)


def test_padding_leaves_blank_buffers_blank():
    buffers = blank_step(3, 2, "cpu")
    assert buffers.slots.tolist() == [-1] * 3 and buffers.lens.tolist() == [1] * 3
    pad_step(buffers, Batch(*(torch.tensor(x) for x in ([5], [0], [7], [[1, 0]], [0, 1], [1]))), 3)
    assert buffers.cu_q.tolist() == [0, 1, 2, 3] and buffers.slots.tolist() == [7, -1, -1]
    assert all(x.dtype == kind for x, kind in zip(
        buffers, [torch.int64] * 3 + [torch.int32] * 3, strict=True))


def test_what_is_measured_gives_the_same_scores(triton_on_the_cpu, monkeypatch):
    """Every way of the bench, in the simulator; nothing is timed."""
    import day01_roofline as day1

    tiny = day1.Llama("tiny", L=1, C=32, H=2, G=1, D=16, F=32, V=48, tied=True)
    monkeypatch.setitem(day1.LLAMAS, "tiny", tiny)
    monkeypatch.setattr(day1, "measure_side_by_side", lambda found: found)
    for flops, moved, ways in bench("tiny", (2,), 4, "cpu").values():
        assert type(flops) is int and type(moved) is int
        eager, *others = (way().float() for way in ways.values())
        for other in others:
            torch.testing.assert_close(other, eager)


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [Llama, Forked])
def test_graphs_on_a_gpu(kind):
    small = random_llama(qk_norm=True, bias_qkv=True)
    weights = {name: w.cuda() for name, w in small.weights.items()}
    model = kind(replace(small.config, room=64), weights, kernels("triton"))
    cache = PagedCache(model.config, len(REQUESTS), 21, device="cuda")
    runner = GraphRunner(model, cache, [1, 2, 4], 6, cache.pages)
    assert not cache.k.any() and not cache.v.any()
    got, _ = serve(runner, cache, REQUESTS)
    assert got == [greedy(model, [r.prompt], r.count)[0] for r in REQUESTS]


ASKS_A_GPU = """
import torch
from layer1_kernels import kernels
from layer2_graph import capture

x = torch.ones(3, device="cuda")
try:
    capture(lambda ops: x * x.sum().item(), kernels("triton"), "cuda")
except RuntimeError:
    print("refused")
"""


@pytest.mark.gpu
def test_a_gpu_refuses_what_the_tape_refuses():
    """In a process of its own: after a failed capture, it may not be able to use its GPU again."""
    done = subprocess.run([sys.executable, "-c", ASKS_A_GPU], cwd=ROOT, text=True,
                          capture_output=True)
    assert done.stdout == "refused\n", done.stderr
