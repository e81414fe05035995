"""What a child sees of the course: the floors below as they are, later lessons as stubs."""

import textwrap

import pytest

from lab import course, stub
from lab.course import ROOT
from lab.judge import isolate, plugin, preloading
from lab.judge.candidate import Candidate
from lab.judge.subject import Raised

PROBE = '''
    def where(name):
        import importlib
        return importlib.import_module(name).__file__
    def text(name):
        from pathlib import Path
        return Path(where(name)).read_text("utf-8")
    def loaded():
        import sys
        return sorted(name for name in sys.modules if name.startswith(("layer", "day")))
'''


def probed(lesson, **options):
    """A child of the lesson whose answer tells what it sees."""
    text = lesson.sources["python"] + textwrap.dedent(PROBE)
    return isolate.running(lesson, lesson.sources | {"python": text}, **options)


@pytest.fixture(scope="module")
def engine():
    """A child of s07."""
    with probed(course.find("s07")) as child:
        yield child


def test_a_later_lesson_is_its_stub(engine):
    assert engine.text("layer3_system.s08_server") == course.find("s08").stubs["python"]


def test_an_earlier_lesson_and_the_floors_below_are_the_courses_own(engine):
    for name in ("layer3_system.s02_block_pool", "layer2_graph.g01_llama",
                 "layer1_kernels.k07_softmax", "day02_overview.o02_life_of_a_token"):
        path = ROOT / f"{name.replace('.', '/')}.py"
        assert engine.text(name) == path.read_text("utf-8")


@pytest.mark.parametrize("name", [
    "tests.conftest", "tests.layer2_graph.oracle_g08_activation_kv_quantization",
    "layer3_system.s99", "lab.no_such_room"])
def test_nothing_else_is_there(engine, name):
    with pytest.raises(Raised, match="No module named"):
        engine.where(name)


def test_a_floor_above_is_not_there():
    with probed(course.find("o02")) as child, pytest.raises(Raised, match="No module named"):
        child.where("layer1_kernels.k01_vector_add")


def test_the_floors_below_are_imported_before_the_fork():
    below = preloading.floors_below(course.find("s07"))
    assert below == ("layer1_kernels", "layer2_graph")              # it needs nothing of the days
    assert preloading.floors_below(course.find("r01")) == ()


def test_a_floor_with_texts_of_the_authors_is_not_imported_before_the_fork():
    lesson = course.find("s05")
    assert preloading.floors_below(lesson) == ("day01_roofline", "layer1_kernels", "layer2_graph")
    own = {"layer1_kernels/k07_softmax.py": "def softmax(x):\n    return 'the author\\'s own'\n"}
    assert preloading.floors_below(lesson, own) == ("day01_roofline",)
    with isolate.prepared(course.find("k08"), course.find("k08").sources, own) as folder:
        assert "own" in isolate.Path(folder, "layer1_kernels/k07_softmax.py").read_text()
    with probed(course.find("g01"), earlier=own) as child:
        assert child.text("layer1_kernels.k07_softmax") == own["layer1_kernels/k07_softmax.py"]
        assert child.text("layer1_kernels.k15_quantized_matmul") == course.find(
            "k15").sources["python"]


def test_a_stub_in_the_cache_is_not_cut_again(tmp_path, monkeypatch):
    cut = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(stub, "cut", lambda *words, own=stub.cut: cut.append(words) or own(*words))
    for name in ("r02_clock", "r02_clock"):
        floor = course.floors()[0]
        lesson = course.Lesson(name, floor.name)
        isolate.stub_folders.cache_clear()
        for one in floor.lessons:
            one.__dict__.pop("stubs", None)
        [folder] = isolate.stub_folders(floor, lesson)
        assert sorted(path.name for path in folder.iterdir()) == [
            "r03_transformer_math.py", "r04_number_formats.py"]
    assert len(cut) == 2                        # r03 and r04, once
    isolate.stub_folders.cache_clear()


class Told(plugin.GradedRun):
    """A run that keeps what pytest tells of each test."""

    def pytest_runtest_logreport(self, report):
        self.reports = [*getattr(self, "reports", ()), report.longreprtext]


def test_the_traceback_of_a_failed_test_is_not_rendered():
    """No one reads its text, and it takes a quarter of a proof's time."""
    lesson = course.find("r01")
    wrong = stub.splice(lesson.stubs["python"],
                        "def count_add(n, itemsize):\n    return n, itemsize\n", "python").text
    run = Told(lesson, Candidate({"python": wrong}, {"python": "a.py"}),
               {"count_add": lesson.exercise("count_add")}, isolate.Place())
    verdict = run.verdicts()["count_add"]
    texts = "".join(run.reports)
    assert verdict.verdict == "fail" and "got 16" in texts and "def test_" not in texts
