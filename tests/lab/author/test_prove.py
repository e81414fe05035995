"""The runner behind make test, make test-all and make gpu, over stages made for the purpose."""

import json
import sys
import time

import pytest

from lab import course as course_of_lessons
from lab.author import durations, prove, verify
from lab.device import Gpu
from lab.measure import records as records

GPU = Gpu("NVIDIA Test 1", (9, 0), 80 * 2**30)
MARK = "@pytest.mark." + "gpu"          # in one word, this file would count as a GPU test

BENCH = """
import json, sys, time
if "--list" in sys.argv:
    print("copy\\nmatmul")
else:
    found = {"results": {"rows": [1]}, "clocks": {}}
    json.dump(found, open(sys.argv[sys.argv.index("--out") + 1], "w"))
"""


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A small course with one GPU test file and a bench of two units."""
    for folder in ("benchmarks", "lab", "tests", "work"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: x\n    slow: x\n")
    (tmp_path / "tests" / "test_a.py").write_text(
        f"import pytest\n{MARK}\ndef test_a():\n    pass\ndef test_b():\n    assert False\n")
    (tmp_path / "lab" / "measure").mkdir()
    (tmp_path / "lab" / "__init__.py").touch()
    (tmp_path / "lab" / "measure" / "__init__.py").touch()
    (tmp_path / "lab" / "measure" / "bench.py").write_text(BENCH)
    (tmp_path / "work" / "mine.py").write_text("mine")
    monkeypatch.setattr(prove, "ROOT", tmp_path)
    monkeypatch.setattr(records, "ROOT", tmp_path)
    monkeypatch.setattr(prove.device, "gpu", lambda: GPU)
    return tmp_path


def python(code):
    return [sys.executable, "-c", code]


def test_a_failed_stage_does_not_stop_the_next(course, monkeypatch, capsys):
    monkeypatch.setattr(prove, "stages", lambda sample: {
        "first": python("print('SKIPPED [1] a.py:1: no such thing here');"
                        "print('FAILED a.py::test_b - assert False');"
                        "print('=== 2 passed, 1 failed, 1 skipped in 3s ==='); exit(1)"),
        "second": python("print('7 lessons built')"),
        "third": python("exit(4)"),
    })
    assert prove.prove(sample=False) == 1
    said = capsys.readouterr().out
    assert "second     ok" in said and "7 lessons built" in said
    assert "third      FAILED" in said
    assert "  SKIPPED [1] a.py:1: no such thing here" in said
    assert said.index("failed:\n  FAILED a.py::test_b - assert False\n") > said.index("not proven")
    # pytest's own 2, 1 and 1, then the second stage, the untouched desk; the third failed
    assert said.splitlines()[-1] == "4 passed, 2 failed, 1 skipped"


def test_a_sample_says_so_last(course, monkeypatch, capsys):
    monkeypatch.setattr(prove, "stages", lambda sample: {"one": python("print('3 passed')")})
    assert prove.prove(sample=True) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(
        "4 passed, 0 failed, 0 skipped; a sample: ")
    (course / "tests" / "test_long.py").write_text(MARK.replace("gpu", "slow"))
    prove.prove(sample=True)
    assert capsys.readouterr().out.splitlines()[-1] == (
        "4 passed, 0 failed, 0 skipped; a sample: `make test-all` adds the deep lessons, all "
        "mutants but one of each exercise, and the slow tests in tests/test_long.py")
    prove.prove(sample=False)
    assert capsys.readouterr().out.splitlines()[-1] == "4 passed, 0 failed, 0 skipped"


def test_graders_run_once(capsys):
    """Those of exercises are left to `lab verify`, which runs them on the references."""
    lesson = course_of_lessons.find("r03_transformer_math")
    collected = {}
    for words in ((), ("--no-graders",)):
        pytest.main([str(lesson.test), "--collect-only", "-q", "-p", "no:cacheprovider", *words])
        collected[words] = set(capsys.readouterr().out.split("\n\n")[0].splitlines())
    graders = collected[()] - collected[("--no-graders",)]
    names = [e.test for e in lesson.exercises]
    assert graders and all(any(name in test for name in names) for test in graders)
    assert not any(f"::{name}" in test for test in collected[("--no-graders",)] for name in names)
    assert "--no-graders" in prove.stages(True)["tests"] and "verify" in prove.stages(True)


def test_a_record_says_what_took_how_long(course, monkeypatch):
    (course / "tests" / "test_slow.py").write_text(
        "import time\n\ndef test_c():\n    time.sleep(0.3)\nclass TestD:\n    def test_d(self):"
        "\n        pass\n")
    monkeypatch.setattr(durations, "ROOT", course)
    monkeypatch.setattr(prove, "stages", lambda sample: {
        "tests": [*prove.PYTEST, "--rootdir", str(course), str(course / "tests")],
        "verify": python("print('k07_softmax: 70 of 73 proofs, 36 mutants, 149 s')")})
    prove.prove(sample=False, record=course / "durations.json")
    record = json.loads((course / "durations.json").read_text())
    assert record["what"] == "all" and set(record["seconds"]) == {"tests", "verify"}
    assert list(record["tests"]) == ["tests/test_slow.py", "tests/test_a.py"]
    assert record["tests"]["tests/test_slow.py"] >= 0.3
    assert list(record["longest tests"])[0] == "tests/test_slow.py::test_c"
    assert set(record["longest tests"]) >= {"tests/test_slow.py::test_d", "tests/test_a.py::test_b"}
    assert record["proofs"] == {"k07_softmax": 149.0} and record["notebooks"] == {}


def test_a_sample_leaves_the_deep_lessons_out():
    sample, everything = prove.stages(True), prove.stages(False)
    for lesson in course_of_lessons.lessons():
        assert (f"--ignore=tests/{lesson.floor}/test_{lesson.id}.py" in sample["tests"]) \
            == (lesson.id not in sample["verify"]) \
            == (f"solutions/{lesson.floor}/{lesson.id}.ipynb" not in sample["solutions"]) \
            == (not lesson.core)
    assert everything["tests"][-1] == "tests" and everything["verify"][1:] == ["verify"]
    assert everything["solutions"][-1] == "solutions"


def test_a_sample_tries_one_mutant_of_each_exercise():
    assert prove.stages(True)["verify"][1:4] == ["verify", "--mutants", "1"]
    lesson = course_of_lessons.find("r01_roofline")
    rows = verify.verify([lesson], most=1)
    tried = [row["exercise"] for row in rows if row["proof"].startswith("mutant")]
    assert tried == [e.name for e in lesson.exercises] and all(row["ok"] for row in rows)


@pytest.mark.parametrize("code", [
    "open('work/mine.py', 'w').write('yours')", "import os; os.remove('work/mine.py')",
    "open('work/new', 'w')"])
def test_a_touched_desk_fails_the_run(course, monkeypatch, capsys, code):
    monkeypatch.setattr(prove, "stages", lambda sample: {"one": python(code)})
    assert prove.prove(sample=False) == 1
    assert "work/      FAILED" in capsys.readouterr().out


def test_a_stage_that_cannot_start_or_counts_nothing_is_a_failure():
    assert prove.Outcome("build", 0, said="all 5 built").counts() == (1, 0, 0)
    assert prove.Outcome("tests", 5, said="no tests ran in 0.1s").counts() == (0, 1, 0)
    assert prove.Outcome("tests", 1, said="3 passed, 2 errors in 1s").counts() == (3, 2, 0)


def test_a_stage_ends_at_its_limit_with_its_children(course):
    begun = time.monotonic()
    outcome = prove.run("long", python("import subprocess; subprocess.run(['sleep', '60'])"), 1)
    assert outcome.exit_code in prove.TIMED_OUT
    assert time.monotonic() - begun < 20


def test_no_gpu_is_one_line(course, monkeypatch, capsys):
    monkeypatch.setattr(prove.device, "gpu", lambda: None)
    assert prove.prove_gpu() == 3
    assert capsys.readouterr().out == "no NVIDIA GPU here: nothing proven, nothing written\n"
    assert not list((course / "benchmarks").iterdir())


def test_gpu_units_are_recorded(course, capsys):
    assert prove.prove_gpu() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 passed, 0 failed, 0 skipped"
    [file] = (course / "benchmarks").iterdir()
    record = json.loads(file.read_text())
    assert file.name == "nvidia-test-1.json" and record["capability"] == [9, 0]
    assert list(record["units"]) == ["tests/test_a.py", "bench copy", "bench matmul"]
    assert record["units"]["bench copy"]["results"] == {"rows": [1]}


def test_slices_go_on_where_the_last_one_stopped(course, monkeypatch, capsys):
    journal = course / "benchmarks" / "nvidia-test-1.partial.json"
    ran = []
    real = prove.run_unit

    def run_unit(name, command, limit):
        ran.append(name)
        row = real(name, command, limit)
        monkeypatch.setattr(prove, "SLICE", 0)      # the time is up
        return row

    monkeypatch.setattr(prove, "run_unit", run_unit)
    for done in (1, 2):
        monkeypatch.setattr(prove, "SLICE", 60)
        assert prove.prove_gpu() == 3
        assert len(json.loads(journal.read_text())["units"]) == done
    assert "not finished" in capsys.readouterr().out
    monkeypatch.setattr(prove, "SLICE", 60)
    assert prove.prove_gpu() == 0
    assert ran == ["tests/test_a.py", "bench copy", "bench matmul"] and not journal.exists()


def test_changed_sources_begin_again(course, monkeypatch):
    journal = course / "benchmarks" / "nvidia-test-1.partial.json"
    rows = {"tests/test_a.py": {"exit_code": 0}}
    record = records.about(GPU)
    journal.write_text(json.dumps({**record, "units": rows}))
    assert prove.earlier_units(journal, record) == rows
    (course / "lab" / "measure" / "bench.py").write_text(BENCH + "# changed\n")
    assert prove.earlier_units(journal, records.about(GPU)) == {}


def test_a_unit_that_outlasts_a_whole_slice_fails(course, monkeypatch):
    monkeypatch.setattr(prove, "gpu_units", lambda: {
        "bench quick": python(
            "import sys; open(sys.argv[-1], 'w').write('{\"results\": {}}')"),
        "bench long": python("import time; time.sleep(60)")})
    monkeypatch.setattr(prove, "SLICE", 2)
    assert prove.prove_gpu() == 3                   # the long one had a part of the slice
    assert prove.prove_gpu() == 1                   # and then the whole of it
    record = json.loads((course / "benchmarks" / "nvidia-test-1.json").read_text())
    assert record["units"]["bench quick"]["results"] == {}
    assert record["units"]["bench long"]["exit_code"] in prove.TIMED_OUT


def test_a_skipped_gpu_test_is_not_a_proof(course):
    (course / "tests" / "test_a.py").write_text(
        f"import pytest\n{MARK}\ndef test_a():\n    pytest.skip('no CuPy')\n")
    assert prove.prove_gpu() == 3
    record = json.loads((course / "benchmarks" / "nvidia-test-1.json").read_text())
    assert "no CuPy" in record["units"]["tests/test_a.py"]["not_proven"][0]


def test_what_cannot_be_run_is_one_line(course, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["prove", "gpu"])
    (course / "lab" / "measure" / "bench.py").unlink()
    assert prove.main() == 2
    assert capsys.readouterr().err.startswith("the bench cannot list its units: ")
    (course / "benchmarks" / "nvidia-test-1.partial.json").write_text("{")
    assert prove.main() == 2
    assert "is damaged: delete it to begin again" in capsys.readouterr().err
