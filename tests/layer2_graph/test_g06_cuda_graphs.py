"""Graders of g06.
A recording is compared with the functions by the book, padding with what the graph reads, sizes
with the fewest possible, times with a walk through them."""

from functools import cache

import numpy as np
import pytest
import torch

from lab.judge.adversarial import VALUES, WORDS, views
from lab.judge.mistakes import mistake, raises
from layer1_kernels import kernels
from layer2_graph import CaptureError, Config, GraphRunner, Llama, PagedCache
from layer2_graph.checkpoint import shapes
from layer2_graph.g06_cuda_graphs import asked
from layer2_graph.testing.programs import Program, flat, here

# ---- predict_host_launches


def requests_of_a_step():
    """How often the host asks the device in a step of 3 sequences from a graph of size 3."""
    m = Config(L=2, C=32, H=4, G=2, D=16, F=48, V=31, eps=1e-5, theta=1e4, room=64)
    model = Llama(m, {name: torch.ones(shape) for name, shape in shapes(m)}, kernels("torch"))
    runner = GraphRunner(model, PagedCache(m, 3, 16), [3], 3, 1)
    return len(asked(runner, runner.cache.step([[1], [2], [3]])))


GUESSES = {
    1: ("replay_alone", "The replay is one request. But it reads its own buffers, and the step is "
                        "in other arrays."),
    2: ("one_copy", "The step is not one array; each of its arrays is copied by a request of its "
                    "own."),
    6: ("no_replay", "Count the replay as well."),
    486: ("whole_eager", "That is an eager step of 32 layers. In a replay the graph makes these "
                         "launches, not the host."),
    15: ("eager_layer", "That is an eager layer; its launches are in the graph."),
    8: ("fused_layer", "That is an eager layer of g05; its launches are in the graph.")}


def test_predict_host_launches(subject, truth):
    want, got = truth(requests_of_a_step), subject.predict_host_launches()
    name, why = GUESSES.get(got, ("other", "List what must happen before the replay."))
    assert type(got) is int and got == want, mistake(
        name, f"predict_host_launches: {got!r} requests is not right. {why}", why)


# ---- replay


STALE = "later calls read the results of the recording: new results are not copied into call.result"


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
              "no_call": ("no call is repeated", first),
              "twice": ("every call is made twice", 4 * first + 3),
              "reversed": ("the calls are made in reverse order", 2 * (first + 1)),
              "first_missing": ("the first call of the recording is missing", first + 1),
              "added": ("results are added to the recorded ones instead of overwriting them",
                        8 * first + 2)})
    y, twice, minus, last = tape.output
    agree(y, new, "exact", "x + 1, computed again", mistakes={
        "stale": (STALE, old),
        "added": ("results are added to the recorded ones instead of overwriting them", old + new)})
    agree(twice, 2 * new, "exact", "twice the result of an earlier call", mistakes={
        "copied_late": ("all calls are made before the first result is copied", 2 * old)})
    agree(minus, -new[1:], "exact", "minus a view of an earlier call's result", mistakes={
        "other_memory": ("a recorded result has other memory now, and its views still show the old "
                         "numbers: overwrite its contents", -old[1:])})
    agree(last, 5 * (new - 1), "exact", "5x, by the last call", mistakes={
        "last_missing": ("the last call is missing", 5 * (old - 1))})


def test_replay(subject, agree, rng):
    first, second = rng.standard_normal((2, 5)).astype(np.float32)
    example = subject.Example(first.tolist())
    tape = subject.Tape(example, subject.make("layer1_kernels:kernels", "torch"))
    example.put(second.tolist())
    tape.replay()
    old, new = silu_mul(first.astype(np.float64)), silu_mul(second.astype(np.float64))
    agree(example.total, (old + new)[None], "float32", "the total after a recording and a replay",
          mistakes={"no_call": ("no call is repeated", old[None]),
                    "stale": (STALE, (2 * old)[None]),
                    "twice": ("every call is made twice", (old + 2 * new)[None])})
    agree(tape.output, (new * (old + new))[None], "float32", "the output after a replay",
          mistakes={"last_missing": ("the last call is missing", (old * old)[None])})


def test_replay__arguments_by_name_and_several_results(subject, agree, rng):
    x = torch.from_numpy(rng.standard_normal((2, 4)).astype(np.float32))
    one = subject.Call("add", subject.torch.add, (x, x), {"alpha": 3}, torch.zeros(2, 4))
    two = subject.Call("sort", subject.torch.sort, (x,), {},
                       (torch.zeros(2, 4), torch.zeros(2, 4, dtype=torch.int64)))
    subject.replay([one, two])
    agree(one.result, 4 * x.double().numpy(), "float32", "x + 3x, recorded with alpha=3 by name",
          mistakes={"no_kwargs": ("keyword arguments (call.kwargs) are left out",
                                  2 * x.double().numpy())})
    values, places = two.result
    agree(values, np.sort(x.numpy()), "exact", "the first result of a sort", mistakes={
        "single_only": ("results are copied only where a call returns a single array",
                        np.zeros((2, 4))),
        "results_swapped": ("the results of a call change places", np.argsort(x.numpy()))})
    agree(places, np.argsort(x.numpy()), "exact", "the second result of a sort", mistakes={
        "first_only": ("only the first of several results is copied", np.zeros((2, 4)))})


RESULTS = {
    "numbers over a NaN and an infinity": (torch.tensor([1.5, -2.0]),
                                           torch.tensor([torch.nan, torch.inf])),
    "an int64 past 2^31": (torch.tensor([2**40 + 1, -5]), torch.zeros(2, dtype=torch.int64)),
    "truth values": (torch.tensor([True, False]), torch.tensor([False, True])),
    "float64 numbers": (torch.tensor([1 / 3], dtype=torch.float64), torch.zeros(1).double()),
    "17 numbers": (torch.arange(17.0), torch.zeros(17)),
    "40,000 numbers": (torch.arange(40_000.0), torch.zeros(40_000)),
    "a single number": (torch.tensor(7.0), torch.tensor(1.0)),
    "nothing, of three columns": (torch.zeros(0, 3), torch.zeros(0, 3)),
}
NESTS = {"by itself": lambda x: x, "the last of a tuple": lambda x: (3, None, x),
         "in a dict within a list": lambda x: [{"kept": x}]}


def test_replay__hard(subject, agree):
    """Results of each form, calls that return nothing, one call twice, and no call at all."""
    for what, (new, old) in RESULTS.items():
        known = {"through_float": ("results go through float32, which has 24 bits for whole "
                                   "numbers", new.float().numpy()),
                 "nan_stays": ("a NaN or an infinity of the recording is multiplied or added "
                               "instead of overwritten", (0 * old + new).numpy())}
        for form, nest in NESTS.items():
            kernel = subject.make("lab.judge.mocks:Watched", None, nest(new))
            call = subject.Call("made up", kernel, (), {}, nest(old.clone()))
            subject.replay([call])
            agree(torch.utils._pytree.tree_leaves(call.result)[-1], new.numpy(), "exact",
                  f"replay, {what}, {form}", mistakes=known)
    new = torch.arange(12.0).view(3, 4)
    for layout, old in views(torch.zeros(3, 4)).items():
        kernel = subject.make("lab.judge.mocks:Watched", None, new)
        call = subject.Call("made up", kernel, (), {}, old)
        subject.replay([call])
        agree(call.result, new.numpy(), "exact", f"replay, a recorded result with {layout}")
    silent = subject.make("lab.judge.mocks:Watched")
    call = subject.Call("write_kv", silent, (torch.ones(2),), {}, None)
    why = "Repeat it like any other call (write_kv is one), as often as it was recorded"
    for calls, times in (([call], 1), ([call, call], 3), ([], 3), ([call] * 5, 8)):
        subject.replay(calls)
        assert len(silent.calls) == times, mistake(
            "none_skipped", f"replay: a call that returns None was made {len(silent.calls)} times, "
                            f"expected {times}. {why}", why)


def test_replay__drawn_programs(subject, agree, rng):
    """The course's own side runs each again, eagerly; hard numbers come in between."""
    ops = subject.make("layer1_kernels:kernels", "torch")
    for turn in range(40):
        draws = [(str(rng.choice(Program.NAMES)), *rng.integers(0, 99, 2).tolist())
                 for _ in range(rng.integers(1, 9))]
        kinds = sorted(VALUES)[turn % len(VALUES)], sorted(VALUES)[-turn % len(VALUES)]
        contents = [{name: torch.from_numpy(VALUES[kind](rng, (4, 4)))
                     for name, kind in zip("xy", kinds, strict=True)} for _ in range(3)]
        theirs, own = (Program(make, draws, contents[0]) for make in (subject.make, here))
        tape, before = subject.Tape(theirs.module, ops), flat(own.module(None))
        for arrays in contents[1:]:
            for program in (theirs, own):
                program.module.load_state_dict(arrays)
            want = flat(own.module(None))
            tape.replay()
            agree(flat(tape.output), want, "exact",
                  f"the output after a replay of x, y and then {', '.join(d[0] for d in draws)}, "
                  f"with {' and '.join(WORDS[kind] for kind in kinds)}",
                  at=lambda i: f"result {i[0]}, row {i[1]}, column {i[2]}",
                  mistakes={"unchanged": ("the output stays as it was", before)})
            before = want


# ---- pad_step


def step_of(B, pages, cu_q=None, first=0):
    """A Batch of B = T with numbers that show where they are from."""
    rows = torch.arange(B)
    cu_q = torch.arange(B + 1) if cu_q is None else torch.tensor(cu_q)
    return (rows + 11 + first, rows + 21 + first, rows + 31 + first,
            (torch.arange(B * pages).view(B, pages) + 41 + first).int(), cu_q.int(),
            (rows + 81 + first).int())


NAMES = ("tokens", "positions", "slots", "block_tables", "cu_q", "lens")


class Padding:
    """What a graph may find in the buffers: a step of B rows, those before it, and padding."""

    def __init__(self, B, size, step, stale):
        self.B, self.size = B, size
        self.want = dict(zip(NAMES, (x.numpy() for x in step), strict=True))
        self.old = dict(zip(NAMES, (x.numpy().copy() for x in stale), strict=True))

    def padded(self, name, value):
        return np.concatenate([self.want[name], np.full(self.size - self.B, value)])

    def left(self, name):
        return np.concatenate([self.want[name], self.old[name][self.B:self.size]])

    def slots(self):
        own, old, B, size = self.want["slots"], self.old["slots"], self.B, self.size
        return {
            "slots_not_copied": ("slots of the step are not copied", old[:size]),
            "slot_kept": ("a padded row keeps its old slot and writes into a page that may belong "
                          "to another request", self.left("slots")),
            "slot_0": ("padded rows get slot 0, which is the first place of page 0; use -1",
                       self.padded("slots", 0)),
            "own_slots_padded": ("the slots of the step are overwritten with padding",
                                 np.full(size, -1)),
            "row_b_left": ("padding starts at row B + 1; it must start at row B", np.concatenate(
                [own, old[B:B + 1], np.full(size - B, -1)])[:size])}

    def lens(self):
        ones = np.ones(self.size - self.B, int)
        return {
            "lens_kept": ("a padded row keeps its old length, so attention reads the whole old "
                          "context", self.left("lens")),
            "lens_0": ("a padded row has one new token and length 0, so its softmax is over "
                       "nothing", self.padded("lens", 0)),
            "lens_of_positions": ("lens is computed from positions instead of copied",
                                  np.append(self.want["positions"] + 1, ones)),
            "lens_of_first": ("a padded row has the length of the step's first sequence",
                              self.padded("lens", self.want["lens"][0])),
            "own_lens_padded": ("the lengths of the step are overwritten with padding",
                                np.ones(self.size, int)),
            "lens_not_copied": ("lens of the step are not copied",
                                np.append(self.old["lens"][:self.B], ones))}

    def cu_q(self):
        own, old, B, size = self.want["cu_q"], self.old["cu_q"], self.B, self.size
        count = np.arange(B + 1, size + 1)
        after = {
            "cu_q_kept": ("the entries of cu_q for the padded rows are from an earlier step",
                          old[B + 1:size + 1]),
            "no_sequence": ("cu_q stays at B, so the padded rows belong to no sequence and "
                            "attention writes nothing for them", np.full(size - B, B)),
            "from_1": ("cu_q starts again at 1 for the padded rows; it must continue from B",
                       np.arange(1, size - B + 1)),
            "one_less": ("the first padded sequence ends at B, where it starts; its token ends at "
                         "B + 1", np.arange(B, size)),
            "one_sequence": ("the first padded sequence has all padded rows; each is a sequence of "
                             "one token", np.full(size - B, size))}
        return {name: (why, np.concatenate([own, rest])) for name, (why, rest) in after.items()} | {
            "cu_q_overwritten": ("the step's own entries of cu_q are overwritten; a sequence may "
                                 "have zero or two new tokens", np.arange(size + 1)),
            "entry_early": ("padding starts an entry early: entry B is the step's, cu_q has one "
                            "more than rows", np.concatenate([own[:B], count,
                                                              old[size:size + 1]])),
            "cu_q_not_copied": ("cu_q of the step is not copied", np.append(old[:B + 1], count))}

    def tables(self, width, pages):
        own, old = self.want["block_tables"], self.old["block_tables"][:self.B]
        return {
            "tables_not_copied": ("block_tables are not copied", old[:, :width]),
            "tables_right": ("tables are put at the right end of the buffers' rows; they start at "
                             "the left", np.append(old[:, :pages - width], own, 1)[:, :width])}


@pytest.mark.parametrize("B, size, cu_q", [
    (3, 5, None), (2, 6, [0, 0, 2]), (1, 4, None), (4, 4, [0, 2, 2, 4, 4]), (6, 6, None)])
def test_pad_step(subject, agree, B, size, cu_q):
    rows, pages, width = 6, 3, 2
    stale = [x.clone() for x in step_of(rows, pages, [0, 0, 0, 0, 0, 5, 6], 100)]
    step = step_of(B, width, cu_q)
    buffers, batch = subject.Batch(*stale), subject.Batch(*step)
    padding, launches = Padding(B, size, step, stale), subject.make("layer2_graph:Launches")
    with launches:
        subject.pad_step(buffers, batch, size)
    got = {name: getattr(buffers, name).numpy() for name in NAMES}
    want, of = padding.want, f"a batch of {B} in a graph of {size}"

    def at(i):
        return f"row {i[0]}, {'the step' if i[0] < B else 'padding'}"

    for name in NAMES:
        assert len(got[name]) == len(padding.old[name]), mistake("other_length", (
            f"pad_step: the buffer of {name} has {len(got[name])} entries now, and had "
            f"{len(padding.old[name])}: copy into its first rows; the graph reads this memory"))
    agree(got["slots"][:size], padding.padded("slots", -1), "exact", f"slots, {of}", at,
          mistakes=padding.slots())
    agree(got["lens"][:size], padding.padded("lens", 1), "exact", f"lens, {of}", at,
          mistakes=padding.lens())
    agree(got["cu_q"][:size + 1], np.append(want["cu_q"], np.arange(B + 1, size + 1)), "exact",
          f"cu_q, {of}", lambda i: f"entry {i[0]}", mistakes=padding.cu_q())
    for name in ("tokens", "positions"):
        agree(got[name][:B], want[name], "exact", f"{name} of the step, {of}", at, mistakes={
            f"{name}_not_copied": (f"{name} are not copied", padding.old[name][:B])})
    agree(got["block_tables"][:B, :width], want["block_tables"], "exact",
          f"block_tables of the step, {of}, {width} pages into buffers of {pages}",
          mistakes=padding.tables(width, pages))
    count = len(launches.names)
    why = ("9 are enough with whole arrays and slices. Copying row by row keeps the host as busy "
           "as before")
    assert count <= 14, mistake("row_by_row", f"pad_step: {count} launches for {of}; {why}", why)
    assert size > B or count <= 6, mistake(
        "no_padding", f"pad_step: {count} launches for {of}: there is no padding, copies take 6")


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
    """The graph reads views made of the buffers before.
    Then random batches, small ones one after the other in the same buffers."""
    for what, case in PADS.items():
        judge_padding(subject, agree, what, **case)
    for _ in range(60):
        random_padding(subject, agree, rng, 7, 4)


def test_pad_step__unseen(subject, agree, rng):
    for _ in range(4):
        random_padding(subject, agree, rng, 20, 9)


def random_padding(subject, agree, rng, most, widest):
    B, size, rows = np.sort(rng.integers(1, most, 3)).tolist()
    width, pages = np.sort(rng.integers(1, widest, 2)).tolist()
    cu_q = [0, *np.sort(rng.integers(0, B + 1, B - 1)).tolist(), B]
    judge_padding(subject, agree, f"cu_q of the step {cu_q}", B, size, rows, width, pages, cu_q,
                  int(rng.integers(200, 2**20)))


def judge_padding(subject, agree, what, B=3, size=5, rows=6, width=2, pages=3, cu_q=None, first=0,
                  layout=None):
    stale = [x.clone() for x in step_of(rows, pages, [0] * rows + [rows], 100)]
    numbers = list(step_of(B, width, cu_q))
    numbers[2] = numbers[2] + first
    if layout:
        numbers[3] = views(numbers[3])[layout]
    moved = {name: x.numpy().copy() for name, x in zip(NAMES, stale, strict=True)}
    buffers, given = subject.Batch(*stale), subject.Batch(*numbers)
    read = subject.first_rows(buffers, size)
    tape = subject.Tape(subject.make("lab.judge.mocks:Watched"),
                        subject.make("layer1_kernels:kernels", "torch"))
    with raises("reads_contents", CaptureError, "pad_step must not read an array on the host"), \
            subject.HostReads(tape), tape:
        subject.pad_step(buffers, given, size)
    of = f"a batch of {B} in a graph of {size}, {what}"
    want = [x.numpy() for x in numbers]
    for place, rest in ((2, np.full(size, -1)), (4, np.arange(size + 1)), (5, [1] * size)):
        want[place] = np.append(want[place], rest[len(want[place]):])
    for name, right, before in zip(NAMES, want, numbers, strict=True):
        shape = tuple(map(slice, right.shape))
        got = getattr(read, name).numpy()
        own = B + (name == "cu_q")
        agree(got[shape], right, "exact", f"{name}, {of}", mistakes={
            "buffers_replaced": ("the graph still reads the old contents: the buffers were "
                                 "replaced instead of overwritten", moved[name][shape]),
            "padding_left": ("the graph still reads the old contents of the padded rows",
                             np.concatenate([right[:own], moved[name][shape][own:]])),
            "cut_off": ("numbers past 2^31 - 1 are cut off", np.minimum(right, 2**31 - 1))})
        agree(getattr(given, name), before.numpy(), "exact", f"{name} of the step itself, {of}")
        if name in ("tokens", "positions", "block_tables"):
            most = max(moved[name].max(), right.max(initial=0))
            assert ((got[B:] >= 0) & (got[B:] <= most)).all(), mistake("out_of_range", (
                f"pad_step, {of}: {name} of the padded rows are {got[B:].tolist()}. Such {name} do "
                f"not exist, but they are read. Keep the old value, or use 0"))


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
    of = f"choose_sizes({max_batch}, {waste}): {got!r}"
    assert isinstance(got, (list, tuple)) and got and all(type(n) is int for n in got), mistake(
        "no_list", f"{of}: expected a list of whole numbers")
    assert max(got) <= max_batch, mistake(
        "past_buffers", f"{of}: a graph of {max(got)} rows reads past buffers of {max_batch}")
    assert max(got) == max_batch, mistake(
        "no_size", f"{of}: no size holds a batch of {max(got) + 1}, but batches of up to "
                   f"{max_batch} may come")
    assert list(got) == sorted(set(got)) and got[0] > 0, mistake(
        "not_ascending", f"{of}: expected each size once, in ascending order, from 1 up")
    for batch in range(1, max_batch + 1):
        size = next(n for n in got if n >= batch)
        name, why = ("of_max_batch", "The share refers to the rows of the size, not to max_batch") \
            if size - batch <= waste * max_batch else ("too_much", "Another size is needed")
        assert size - batch <= waste * size, mistake(
            name, f"{of}: a batch of {batch} runs with {size} rows, {size - batch} of them padding:"
                  f" {(size - batch) / size:.0%} of {size}, and {waste:.0%} is allowed. {why}", why)
    least = least or fewest(max_batch, waste)
    name, why = too_many(got, max_batch, waste)
    assert len(got) == least, mistake(
        name, f"{of}: {len(got)} sizes, but {least} are enough. {why}", why)


def too_many(sizes, max_batch, waste):
    """(id, sentence)"""
    if len(sizes) == max_batch:
        return "each_own", "Every batch has a size of its own, so `waste` is not used"
    if any(size - one == waste * size for one, size in zip(sizes, sizes[1:], strict=False)):
        return "exactly_waste", "A share of exactly `waste` is allowed"
    if all(next(n for n in sizes if n >= b) - b <= waste * b for b in range(1, max_batch + 1)):
        return "by_batch", "Divide the padding by the rows of the size, not by the batch"
    return "too_many", "Lower the batch as far as a size allows"


def test_choose_sizes__unseen(subject, reference, rng):
    """Any list of sizes passes that is valid and has no shorter valid one."""
    for most in rng.integers(2, 400, 4).tolist():
        waste = float(rng.integers(1, 16)) / 16
        judge_sizes(subject, most, waste, len(reference.choose_sizes(most, waste)))


# ---- end_times


def times(waits, costs, start=lambda ends, cost, starts: max(ends)):
    """When each call ends. start: of a call, by the ends of those that it waits for, in the order
    of their numbers, its cost, and the starts of the earlier calls"""
    ends, starts = [], []
    for numbers, cost in zip(waits, costs, strict=True):
        starts.append(start([ends[j] for j in sorted(numbers)] or [0], cost, starts))
        ends.append(starts[-1] + cost)
    return np.array(ends)


def wrong_times(waits, costs):
    """{id: (sentence, ends)}"""
    def by_cost(pick):
        return np.array([cost + pick([costs[j] for j in numbers] or [0])
                         for numbers, cost in zip(waits, costs, strict=True)])

    right = times(waits, costs)
    return {
        "one_stream": ("each call waits for the previous one, as on a single stream",
                       np.cumsum(costs)),
        "first_ends": ("a call starts when the first call that it waits for ends",
                       times(waits, costs, lambda ends, cost, starts: min(ends))),
        "highest_number": ("a call waits only for the one of the highest number, which need not "
                           "end last", times(waits, costs, lambda ends, cost, starts: ends[-1])),
        "lowest_number": ("a call waits only for the one of the lowest number",
                          times(waits, costs, lambda ends, cost, starts: ends[0])),
        "queue": ("a call waits until the earlier ones have started, as in a queue",
                  times(waits, costs, lambda ends, cost, starts: max([*ends, *starts]))),
        "free_ends_at_0": ("a call that costs nothing ends at 0, not when it may start",
                           times(waits, costs, lambda ends, cost, starts: max(ends) * (cost > 0))),
        "longer": ("the longer of wait and cost is taken; one comes after the other",
                   times(waits, costs, lambda ends, cost, starts: max(0, max(ends) - cost))),
        "added_up": ("the times of parallel calls are added; take the largest",
                     times(waits, costs, lambda ends, cost, starts: sum(ends))),
        "costs_for_ends": ("costs of the calls that it waits for are taken for their ends",
                           by_cost(max)),
        "costs_added": ("costs of the calls that it waits for are added up, not their ends "
                        "compared", by_cost(sum)),
        "no_cost": ("a call's own cost is left out", np.zeros(len(costs))),
        "sorted": ("the ends are sorted; they belong to the calls, in their order",
                   np.sort(right)),
        "starts": ("these are the start times, not the end times", right - costs),
        "no_waiting": ("no call waits", np.array(costs)),
        "costs_of_1": ("every call costs 1", times(waits, [1] * len(costs)))}


@pytest.mark.parametrize("waits, costs", [
    ([set(), {0}, {0}, {1, 2}, {3}, {0, 2}], [2, 9, 3, 4, 1, 5]),
    ([set(), set(), set(), {0, 1, 2}], [3, 1, 2, 2]),
    ([set(), {0}, {1}, {0}], [1, 1, 1, 1]),
    ([set(), {0}, {0, 1}, {0, 1, 2}, set()], [4, 3, 0, 7, 2]), ([], [])])
def test_end_times(subject, agree, waits, costs):
    got = subject.end_times(sets(subject, waits), costs)
    assert np.ndim(got), mistake("one_number", (
        f"end_times: got one number, {got}; return the ends of all calls, of which the critical "
        f"path is the largest"))
    agree(np.array(got, dtype=float), times(waits, costs).astype(float), "exact",
          f"end_times of calls that cost {costs}, and wait for {[sorted(w) for w in waits]}",
          at=lambda i: f"call {i[0]}", mistakes=wrong_times(waits, costs))


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
          f"end_times, {what}", at=lambda i: f"call {i[0]}", mistakes={
              "whole_costs": ("costs are rounded down to whole numbers",
                              times(waits, [int(cost) for cost in costs]))})
    for i in range(min(len(waits), 5)):
        left = subject.make("builtins:sorted", handed[i])
        assert left == waits[i], mistake("needs_changed", (
            f"end_times, {what}: it changes what call {i} waits for: {left}, and it was "
            f"{waits[i]}"))


def test_end_times__unseen(subject, agree, rng):
    waits = [sorted(set(rng.integers(0, i, 3).tolist())) if i else [] for i in range(30)]
    costs = rng.integers(0, 100, 30).tolist()
    judge_ends(subject, agree, f"calls that cost {costs} and wait for {waits}", waits, costs)
