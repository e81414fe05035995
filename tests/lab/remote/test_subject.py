"""The proxy to the code under test: what works through it, and what a bad child does to it."""

import itertools
import textwrap
import time

import numpy as np
import pytest
import torch

from lab import course
from lab.judge import subject as subjects
from lab.judge import time_limit
from lab.judge.isolate import running
from lab.judge.subject import Raised, Stopped, Subject
from lab.judge.time_limit import LAST_RESORT, SLICE, TimeLimit
from lab.remote import warm
from lab.remote.warm import Child

PROBE = '''
    import os, sys, time
    import numpy as np
    LIMIT = 3
    class Odd(Exception): pass
    class Pool:
        def __init__(self, n): self.n, self.log = n, []
        def take(self): self.n -= 1; return self.n
        def me(self): return self
        def __enter__(self): self.log.append("in"); return self
        def __exit__(self, *error): self.log.append("out")
        def __iter__(self): return iter(range(self.n))
    def double(x): return 2 * x
    def in_place(xs, key=None): xs[0][1:] *= 2; key[...] = 7
    def sorts(x, names, key=None): x.sort(); names.sort(); key and key.clear(); return x[0]
    async def later(x): return x + 1
    def count(n): yield from range(n)
    def same(a, b): return a is b
    def fails(): raise Odd("with a text")
    def leaves(): sys.exit(0)
    def dies(): os._exit(0)
    def sleeps(s): time.sleep(s); return s
    def works(s):
        while time.process_time() < s + START: pass
        return s
    START = time.process_time()
    def floods():
        while True: os.write(1, b"x" * 65536)
    def talks(): print("hello"); return 1
    DAWDLES = []
    def dawdle(): DAWDLES.append(True)
    def doubles(x):
        if DAWDLES: time.sleep(1)
        else: works(0.1); x *= 2
    def big(n): return np.zeros(n)
    def takes(pool): return pool.take()
    def hidden(): return [k for k in sys.modules if k.startswith(("tests", "solutions", "pytest"))]
    def paths(): return [p for p in sys.path]
    def writes():
        import lab.remote.child
        lab.remote.child.frame = lambda *a: b"\\0" * 15 + b"\\2" + b"[]" * 8
    def cube(x): return x * x * x
    def no_shape():
        import torch
        return torch.zeros(0, 2).unflatten(0, (-1, 0))
    def predict_one(): return np.int64(1)
    def predict_list(): return [1]
'''


@pytest.fixture
def probe(tmp_path):
    (tmp_path / "floor").mkdir()
    (tmp_path / "floor" / "x99_probe.py").write_text(textwrap.dedent(PROBE))

    def start():
        request = {"folder": str(tmp_path), "floor": "floor", "lesson": "x99_probe",
                   "simulator": False, "shapes": False}
        return Child("lab.remote.child", request, ("numpy", "torch", "lab.remote.child"))

    proxy = Subject(start, reference=lambda: Fast())
    yield proxy
    proxy.close()


class Fast:
    """A reference that needs no time."""

    changes = None              # what it changes is not known

    def _seconds(self, name, args, kwargs):
        return 0

    def _written(self, question):
        return self.changes

    def __getattr__(self, name):
        return name


def test_functions_data_and_keywords(probe):
    assert probe.double(4) == 8 and probe.LIMIT == 3 and probe.double(x="ab") == "abab"


@pytest.mark.parametrize("args, kwargs, allowed, says", [
    (([2.0, 1.0], ["a"]), {}, set(), "sorts changes its argument number 1, an array (2,)"),
    (([1.0, 2.0], ["b", "a"]), {}, set(), "sorts changes its argument number 2, ['b', 'a']"),
    (([1.0, 2.0], ["a"]), {"key": {1: 2}}, set(), "sorts changes its argument 'key', {1: 2}"),
    (([2.0, 1.0], ["b", "a"]), {}, {("array", 0)}, "argument number 2"),
    (([2.0, 1.0], ["b", "a"]), {}, {("array", 0), ("list", 1)}, None),
    (([1.0, 1.0], ["a", "b"]), {}, set(), None)])
def test_inputs_stay_as_they_were(probe, monkeypatch, args, kwargs, allowed, says):
    monkeypatch.setattr(Fast, "changes", allowed)
    x = np.array(args[0])
    if says is None:
        probe.sorts(x, *args[1:], **kwargs)
        return
    with pytest.raises(AssertionError) as refusal:
        probe.sorts(x, *args[1:], **kwargs)
    assert says in str(refusal.value) and list(x) == args[0]


def test_objects_are_handles(probe):
    pool = probe.Pool(3)
    assert pool.take() == 2 and pool.n == 2 and probe.takes(pool) == 1 and list(pool) == [0]
    with pool as inside:
        assert inside.n == 1
    assert pool.log == ["in", "out"] and pool.me().take() == 0


def test_generators_and_coroutines(probe):
    assert list(probe.count(3)) == [0, 1, 2] and probe.later(1) == 2


def test_changed_arrays_come_back_even_nested_and_strided(probe):
    x, key = np.arange(8.0)[::2], torch.zeros(2, 3).t()
    probe.in_place([x], key=key)
    assert x.tolist() == [0, 4, 8, 12] and (key == 7).all()
    alone = torch.ones(1, 2)[:, ::2]                # one element, and a stride of 2
    probe.in_place([np.zeros(1)], key=alone)
    assert (alone == 7).all()


def test_one_array_given_twice_is_one_array(probe):
    x = np.zeros(2)
    assert probe.same(x, x) is True and probe.same(x, x.copy()) is False


def test_gradients(probe):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (grad,) = probe.grad("cube", [x], torch.tensor([1.0, 10.0]))
    assert grad.tolist() == [3, 120]


def test_an_exception_is_told_with_class_text_and_line(probe):
    with pytest.raises(Raised, match="Odd: with a text") as caught:
        probe.fails()
    assert caught.value.path == "x99_probe.py" and 'raise Odd' in caught.value.source
    with pytest.raises(Raised, match="sys.exit"):
        probe.leaves()
    assert probe.double(1) == 2                 # neither ended the child


def test_the_frames_of_pytorchs_own_code_are_left_out(probe):
    with pytest.raises(Raised) as told:
        probe.no_shape()
    assert told.value.text.startswith("unflatten got an unexpected error")
    assert "ambiguous" in told.value.text and "frame #0" not in told.value.text


def test_a_child_that_ends_itself(probe):
    with pytest.raises(Stopped, match="it ended itself with exit status") as caught:
        probe.dies()
    assert caught.value.why == "died"


@pytest.mark.parametrize("call", ["sleeps", "works"])
def test_a_child_that_hangs_is_ended(probe, monkeypatch, call):
    probe.double(1)
    monkeypatch.setattr(subjects, "SECONDS", 0.5)
    with pytest.raises(Stopped, match="endless") as caught:
        getattr(probe, call)(3600)
    assert caught.value.why == "hung"


def test_a_slow_reference_gives_more_time(probe, monkeypatch):
    probe.double(1)
    monkeypatch.setattr(subjects, "SECONDS", 0.5)
    monkeypatch.setattr(probe, "_reference", lambda: Slow())
    assert probe.sleeps(1.0) == 1.0


class Silent:
    """A child that gives no answer. looks: what `work` tells of each slice"""

    def __init__(self, looks):
        self.looks = looks
        self.slices = 0

    def answers(self, deadline):
        self.slices += 1
        return False

    def work(self):
        return next(self.looks)


def busy(share):
    """It could run in every slice, and gets this share of a core."""
    return ((5 + share * SLICE * n, True) for n in itertools.count())


@pytest.mark.parametrize("looks, slices", [
    (busy(1), 8),                                       # an endless loop with a core to itself
    (busy(4), 8),                                       # a fork bomb
    (busy(0.25), 1 + 4 * 7),                            # others run, too; the first counts whole
    (itertools.repeat((5, False)), 8),                  # it waits
    (itertools.cycle([(5, True), (5, False)]), 14)])    # it waits, or gets nothing
def test_what_counts_as_time_of_an_answer(monkeypatch, looks, slices):
    monkeypatch.setattr(time_limit, "monotonic", lambda: 0)     # the clock never ends it
    child = Silent(looks)
    assert not TimeLimit(child).answered(8 * SLICE)
    assert child.slices == slices


def test_a_slice_that_lasts_longer_counts_for_more(monkeypatch):
    """A fork bomb keeps the grader from looking: two seconds pass between two looks."""
    monkeypatch.setattr(time_limit, "monotonic", itertools.count().__next__)
    child = Silent(busy(8))
    assert not TimeLimit(child).answered(10)
    assert child.slices <= 6


def test_the_clock_is_the_last_resort(monkeypatch):
    """For a child that always could run and gets nothing."""
    monkeypatch.setattr(time_limit, "monotonic", itertools.count().__next__)
    child = Silent(busy(0))
    assert not TimeLimit(child).answered(10 * SLICE)
    assert LAST_RESORT * 10 * SLICE / 3 < child.slices < LAST_RESORT * 10 * SLICE


def test_the_work_of_a_process_is_its_own(probe):
    """With that of what it started."""
    assert probe.double(1) == 2
    before, _ = probe._child.work()
    assert probe.works(0.3) == 0.3
    after, _ = probe._child.work()
    assert 0.2 <= after - before <= 2


def test_what_left_its_session_is_its_own_too():
    """Or each process of a fork bomb would hide its time in a session of its own."""
    sessions = {"7": ("1", "7"), "8": ("7", "7"), "9": ("8", "9"), "10": ("9", "10"),
                "11": ("1", "11"), "12": ("11", "11")}          # {process: (parent, session)}
    stats = {pid: ["S", parent, "0", session] for pid, (parent, session) in sessions.items()}
    assert warm.family(stats, "7") == {"7", "8", "9", "10"}


@pytest.mark.parametrize("state, runs", [("R", True), ("D", True), ("S", False)])
def test_one_that_waits_for_a_disk_is_not_idle(probe, monkeypatch, state, runs):
    """proc_pid_stat(5): D waits for a disk, which others may keep busy."""
    assert probe.double(1) == 2
    true = warm.fields
    monkeypatch.setattr(warm, "fields", lambda stat: [state, *true(stat)[1:]])
    assert probe._child.work()[1] is runs


def test_the_references_seconds_are_its_own(probe):
    """Not those of what runs beside it: SLACK times as long would be no limit."""
    assert 0.2 <= probe._seconds("works", [0.3], {}) <= 1
    assert probe._seconds("sleeps", [0.5], {}) < 0.25


def test_what_the_reference_writes_never_reaches_the_arrays_of_a_slow_caller(probe, monkeypatch):
    """At the limit it is asked for its time: a call that writes nothing has written nothing."""
    reference = Subject(probe._start)
    probe.dawdle()
    reference.double(1)
    monkeypatch.setattr(subjects, "SECONDS", 0.5)
    monkeypatch.setattr(probe, "_reference", lambda: reference)
    x = np.array([1.0, 2.0])
    probe.doubles(x)
    reference.close()
    assert x.tolist() == [1, 2]


class Slow(Fast):
    def _seconds(self, name, args, kwargs):
        return 0.3


def test_a_flood_is_stopped(probe):
    with pytest.raises(Stopped) as caught:
        probe.floods()
    assert caught.value.why == "flooded"


def test_a_reply_that_is_too_large(probe, monkeypatch):
    monkeypatch.setattr(subjects, "LARGEST", 1000)
    with pytest.raises(Stopped, match="at most 1,000") as caught:
        probe.big(1000)
    assert caught.value.why == "garbled"


def test_a_forged_answer_is_garbled(probe):
    probe.Pool(1)
    with pytest.raises(Stopped) as caught:
        probe.writes()
        probe.double(1)
    assert caught.value.why == "garbled"


def test_what_it_prints_is_kept_apart(probe):
    assert probe.talks() == 1
    deadline = time.monotonic() + 5
    while "hello" not in probe.printed() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "hello" in probe.printed()


def test_the_child_cannot_import_tests_or_the_course_itself(probe):
    assert probe.hidden() == []
    from lab.course import ROOT
    assert str(ROOT) not in probe.paths()


def test_answers_to_predictions_are_kept_as_plain_values(probe):
    probe.predict_one()
    probe.predict_list()
    assert probe.values == {"predict_one": 1} and type(probe.values["predict_one"]) is int


def test_callbacks_do_not_cross(probe):
    from lab.remote.wire import Unsendable
    with pytest.raises(Unsendable, match="subject.make"):
        probe.double(lambda: 1)


def test_mocks_are_built_in_the_child(probe):
    assert probe.make("fractions:Fraction", 1, 2).numerator == 1


def test_a_launch_may_be_as_long_as_the_references_times_a_slack(monkeypatch):
    """60,000 elements take more warp instructions than the floor; the reference needs as many.
    The second try is given the reference's seconds, too."""
    lesson = course.find("k01_vector_add")
    with running(lesson, lesson.sources) as reference, \
            running(lesson, lesson.sources, None, lambda: reference) as candidate:
        x, z = np.ones(60_000, np.float32), np.zeros(60_000, np.float32)
        asked = []
        effort = reference._effort
        monkeypatch.setattr(reference, "_effort", lambda *launch: (effort(*launch)[0], 7.0))
        ask = candidate._ask
        monkeypatch.setattr(candidate, "_ask", lambda *question, slow=None: (
            asked.append(slow) or ask(*question, slow=slow)))
        launch = candidate.launch("add_cuda", 235, 256, (x, x, z, len(x)))
        assert launch.steps > subjects.STEPS and (z == 2).all()
        first, second = asked
        assert first is None and second() == 7.0


def test_a_launch_says_which_capability_it_wants(tmp_path):
    (tmp_path / "floor").mkdir()
    (tmp_path / "floor" / "x99_probe.py").write_text("")
    (tmp_path / "floor" / "x99_probe.cu").write_text(
        'extern "C" __global__ void arch(int* y) { y[0] = __CUDA_ARCH__; }')
    request = {"folder": str(tmp_path), "floor": "floor", "lesson": "x99_probe",
               "simulator": True, "shapes": False}
    probe = Subject(lambda: Child("lab.remote.child", request, ("numpy", "torch",
                                                                 "lab.remote.child")))
    seen = []
    for chosen in ({}, {"capability": 89}, {}):
        y = np.zeros(1, np.int32)
        probe.launch("arch", 1, 1, (y,), **chosen)
        seen.append(int(y[0]))
    probe.close()
    assert seen == [800, 890, 800]


def test_a_floor_gives_its_public_names_and_imports_only_what_is_asked_for():
    """So a child starts in a tenth of the time.
    Python's own error tells of a missing name."""
    lesson = course.find("k02_transpose")
    text = lesson.sources["python"] + textwrap.dedent('''
        def imported():
            import sys
            return sorted(m for m in sys.modules if m.startswith("layer1_kernels.k"))
        def add():
            from layer1_kernels import vector_add
            return vector_add.__module__
        def table():
            from layer1_kernels import Kernels
            from layer1_kernels import kernels          # the function, not the module of its name
            return kernels.__name__
        def nothing():
            from layer1_kernels import no_such_kernel
        ''')
    with running(lesson, lesson.sources | {"python": text}) as child:
        assert child.imported() == ["layer1_kernels.k02_transpose"]
        assert child.add() == "layer1_kernels.k01_vector_add"
        assert child.imported() == ["layer1_kernels.k01_vector_add", "layer1_kernels.k02_transpose"]
        assert child.table() == "kernels"
        with pytest.raises(Raised, match="cannot import name 'no_such_kernel'"):
            child.nothing()
