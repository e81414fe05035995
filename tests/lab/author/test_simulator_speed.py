"""The benchmark behind make speed: its parts, and the record.
No time is judged here."""

import importlib.util
import json
import sys

import numpy as np
import pytest

from lab.author import simulator_speed
from lab.course import CourseError


@pytest.fixture
def program():
    """benchmarks/speed/measure.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("measure", simulator_speed.MEASURE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def record():
    return json.loads(simulator_speed.RECORD.read_text("utf-8"))


def rounds(*seconds):
    return {"imports": 0.1, "first": 1.0, "rounds": list(seconds)}


MEASURED = {"unchecked": rounds(1.0, 2.0, 4.0), "simulator": rounds(2.0, 4.0, 8.0),
            "numba": rounds(10.0, 30.0, 80.0)}


@pytest.mark.parametrize("over, limit, at_least, figure, lowest, highest, checked, met", [
    ("numba", 15, True, 15, 10, 20, 7.5, True),         # ratios of a round: 10, 15, 20
    ("numba", 15.1, True, 15, 10, 20, 7.5, False),
    ("simulator", 2, False, 2, 2, 2, None, True),
    ("simulator", 1.9, False, 2, 2, 2, None, False),
    (None, 2, False, 2, 1, 4, 4, True),
    (None, 1.9, False, 2, 1, 4, 4, False)])
def test_a_target_is_judged_by_the_median_of_its_rounds(over, limit, at_least, figure, lowest,
                                                        highest, checked, met):
    target = simulator_speed.SpeedTarget("it", "job", over, limit, at_least)
    row = simulator_speed.judge(target, MEASURED)
    assert [row[name] for name in ("figure", "lowest", "highest", "with_checks", "met")] == \
        [figure, lowest, highest, checked, met]


def test_later_launches_count_and_the_first_stands_apart():
    answers = [{"imports": 1, "first": 9, "seconds": [2, 1, 3]},
               {"imports": 3, "first": 7, "seconds": [5, 5, 80]}]
    assert simulator_speed.condense(answers) == {"imports": 2, "first": 8, "rounds": [2, 5]}


def test_the_sides_take_turns_and_each_has_its_python(monkeypatch, capsys):
    calls = []

    def measure(python, job, side):
        calls.append((python, side))
        return {"seconds": [1.0]}
    monkeypatch.setattr(simulator_speed, "measure", measure)
    monkeypatch.setattr(simulator_speed, "ROUNDS", 3)
    found = simulator_speed.take_turns("job", ["unchecked", "numba"], {"numba": "its python"})
    ours, theirs = (sys.executable, "unchecked"), ("its python", "numba")
    assert calls == [ours, theirs, theirs, ours, ours, theirs]
    assert {side: len(answers) for side, answers in found.items()} == {"unchecked": 3, "numba": 3}


def test_a_process_that_fails_is_an_error(tmp_path, monkeypatch):
    broken = tmp_path / "measure.py"
    broken.write_text("import sys; print('{}'); sys.exit('wrong result: error 0.5')")
    monkeypatch.setattr(simulator_speed, "MEASURE", broken)
    with pytest.raises(CourseError, match="job on numba: wrong result: error 0.5"):
        simulator_speed.measure(sys.executable, "job", "numba")


@pytest.mark.parametrize("value", [None, 1.1, np.nan])
def test_a_wrong_result_has_no_time(program, value):
    """None: the launch writes nothing, and what an earlier one wrote does not count."""
    result, truth = np.ones(4), np.ones(4)

    def launch():
        if value is not None:
            result[2:] = value
    with pytest.raises(SystemExit, match="wrong result"):
        program.timed(launch, result, truth, 0.01)
    assert program.timed(lambda: result.fill(1.001), result, truth, 0.01) >= 0


def test_one_measurement():
    found = simulator_speed.measure(sys.executable, "cuda_matmul_64", "unchecked")
    assert found.keys() == {"imports", "first", "seconds", "versions"}
    assert len(found["seconds"]) >= 3 and min(found["seconds"]) > 0
    assert found["versions"]["numpy"] == np.__version__


def test_every_job_is_measured(program):
    assert simulator_speed.jobs().keys() == program.JOBS.keys()
    sides = {side for sides in simulator_speed.jobs().values() for side in sides}
    assert sides == {"unchecked", "simulator", *simulator_speed.ENVIRONMENTS}


def test_the_record_says_what_its_figures_say(record):
    """Each target is there, and its verdict is the one that the measured seconds give."""
    assert record["rounds"] >= 3 and record["machine"]["cores"] >= 1
    for job, sides in simulator_speed.jobs().items():
        assert record["measured"][job].keys() == set(sides)
        assert all(len(found["rounds"]) == record["rounds"]
                   for found in record["measured"][job].values())
    assert record["targets"] == [simulator_speed.judge(target, record["measured"][target.job])
                                 for target in simulator_speed.TARGETS]


def test_the_table_names_each_target_and_hides_no_miss(record):
    lines = simulator_speed.text(record).splitlines()
    for row in record["targets"]:
        line, = (line for line in lines if line.startswith(f"| {row['title']} |"))
        assert ("| met |" in line) == row["met"] and ("| **missed** |" in line) != row["met"]
