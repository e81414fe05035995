"""The runner behind make gpu, over units made for the purpose."""

import json
import sys
import time
from pathlib import Path

import pytest

from lab.author import gpu_proof, prove, units
from lab.device import Gpu
from lab.measure import records as records
from lab.measure import turns

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
    for folder in ("benchmarks", "lab", "tests"):
        (tmp_path / folder).mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: x\n    slow: x\n")
    (tmp_path / "tests" / "test_a.py").write_text(
        f"import pytest\n{MARK}\ndef test_a():\n    pass\ndef test_b():\n    assert False\n")
    (tmp_path / "lab" / "measure").mkdir()
    (tmp_path / "lab" / "__init__.py").touch()
    (tmp_path / "lab" / "measure" / "__init__.py").touch()
    (tmp_path / "lab" / "measure" / "bench.py").write_text(BENCH)
    for module in (gpu_proof, units, prove):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(records, "ROOT", tmp_path)
    monkeypatch.setattr(gpu_proof.device, "gpu", lambda: GPU)
    return tmp_path


def python(code):
    return [sys.executable, "-c", code]


def test_a_unit_that_cannot_start_or_counts_nothing_is_a_failure():
    assert gpu_proof.Outcome(0, said="all 5 built").counts() == (1, 0, 0)
    assert gpu_proof.Outcome(5, said="no tests ran in 0.1s").counts() == (0, 1, 0)
    assert gpu_proof.Outcome(0, said="torch: bye", undecided=["SKIPPED x"]).counts() == (1, 0, 1)
    assert gpu_proof.Outcome(1, said="3 passed, 2 errors in 1s").counts() == (3, 2, 0)


def test_a_unit_ends_at_its_limit_with_its_children(course):
    begun = time.monotonic()
    outcome = gpu_proof.run("long", python("import subprocess; subprocess.run(['sleep', '60'])"), 1)
    assert outcome.exit_code in gpu_proof.TIMED_OUT
    assert time.monotonic() - begun < 20


def test_no_gpu_is_one_line(course, monkeypatch, capsys):
    monkeypatch.setattr(gpu_proof.device, "gpu", lambda: None)
    assert gpu_proof.prove() == 3
    assert capsys.readouterr().out == "no NVIDIA GPU here: nothing proven, nothing written\n"
    assert not list((course / "benchmarks").iterdir())


def test_gpu_units_are_recorded(course, capsys):
    assert gpu_proof.prove() == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 passed, 0 failed, 0 skipped"
    [file] = (course / "benchmarks").iterdir()
    record = json.loads(file.read_text())
    assert file.name == "nvidia-test-1.json" and record["capability"] == [9, 0]
    assert list(record["units"]) == ["tests/test_a.py", "bench copy", "bench matmul"]
    assert record["units"]["bench copy"]["results"] == {"rows": [1]}


def test_slices_go_on_where_the_last_one_stopped(course, monkeypatch, capsys):
    journal = course / "benchmarks" / "nvidia-test-1.partial.json"
    monkeypatch.setattr(gpu_proof.device, "workers", lambda: 1)
    ran = []
    real = gpu_proof.Slice.attempt

    def attempt(self, name):
        ran.append(name)
        real(self, name)
        self.end = 0                                    # the time is up

    monkeypatch.setattr(gpu_proof.Slice, "attempt", attempt)
    for done in (1, 2):
        assert gpu_proof.prove(60) == 3
        assert len(json.loads(journal.read_text())["units"]) == done
    assert "not finished" in capsys.readouterr().out
    ran.clear()
    assert gpu_proof.prove(60) == 0
    assert ran == ["tests/test_a.py"] and not journal.exists()


def test_files_of_tests_share_the_gpu_and_one_that_failed_runs_again_alone(course, monkeypatch):
    """Each waits until the other runs; the second finds the first's file only when it is alone."""
    meet = "for _ in range(600):\n    if Path({other!r}).exists(): break\n    time.sleep(0.1)\n"
    start = "import sys, time; from pathlib import Path\nPath({own!r}).touch()\n" + meet
    monkeypatch.setattr(gpu_proof.device, "workers", lambda: 2)
    monkeypatch.setattr(gpu_proof, "gpu_units", lambda: {
        "tests/test_a.py": python(start.format(own="a", other="b") + "time.sleep(1)\n"
                                  "Path('ended').touch()"),
        "tests/test_b.py": python(start.format(own="b", other="a") +
                                  "sys.exit(not Path('ended').exists())")})
    assert gpu_proof.prove(60) == 0
    record = json.loads((course / "benchmarks" / "nvidia-test-1.json").read_text())
    assert list(record["units"]) == ["tests/test_a.py", "tests/test_b.py"]


def test_benches_prepare_at_once_and_measure_one_at_a_time(course, monkeypatch):
    """Once both have begun, each waits, before it measures, until the other has prepared; neither
    sees the other measure.
    Neither may run again, as a bench that failed does."""
    bench = ("import pathlib, sys, time; from lab.measure import turns\n"
             "open('ran_{own}', 'x')\n"
             "turns.prepare(pathlib.Path(sys.argv[-3])); pathlib.Path('begun_{own}').touch()\n"
             "while not pathlib.Path('begun_{other}').exists(): time.sleep(0.1)\n"
             "time.sleep({seconds}); pathlib.Path('{own}').touch()\n"
             "with turns.alone():\n"
             "    assert pathlib.Path('{other}').exists()\n"
             "    pathlib.Path('measuring').mkdir(); time.sleep(0.5)\n"
             "    pathlib.Path('measuring').rmdir()\n"
             "pathlib.Path(sys.argv[-1]).write_text('{{}}')")
    whole = Path(turns.__file__).read_text()
    (course / "lab" / "measure" / "turns.py").write_text(whole)
    monkeypatch.setattr(gpu_proof.device, "workers", lambda: 2)
    monkeypatch.setattr(gpu_proof, "gpu_units", lambda: {
        "bench a": python(bench.format(own="a", other="b", seconds=0)),
        "bench b": python(bench.format(own="b", other="a", seconds=2))})
    assert gpu_proof.prove(60) == 0
    assert not list((course / "benchmarks").glob("*.turns"))


def test_a_bench_that_failed_runs_again_alone(course, monkeypatch):
    monkeypatch.setattr(gpu_proof, "gpu_units", lambda: {"bench a": python(
        "import pathlib, sys; again = pathlib.Path('a'); exists = again.exists(); again.touch()\n"
        "pathlib.Path(sys.argv[-1]).write_text('{}'); sys.exit(not exists)")})
    assert gpu_proof.prove(60) == 0


def test_changed_sources_begin_again(course, monkeypatch):
    journal = course / "benchmarks" / "nvidia-test-1.partial.json"
    rows = {"tests/test_a.py": {"exit_code": 0}}
    record = records.about(GPU)
    journal.write_text(json.dumps({**record, "units": rows}))
    assert gpu_proof.earlier_units(journal, record) == rows
    (course / "lab" / "measure" / "bench.py").write_text(BENCH + "# changed\n")
    assert gpu_proof.earlier_units(journal, records.about(GPU)) == {}


def test_a_unit_that_outlasts_a_whole_slice_fails(course, monkeypatch):
    monkeypatch.setattr(gpu_proof.device, "workers", lambda: 1)
    monkeypatch.setattr(gpu_proof, "gpu_units", lambda: {
        "bench quick": python(
            "import sys; open(sys.argv[-1], 'w').write('{\"results\": {}}')"),
        "bench long": python("import time; time.sleep(60)")})
    assert gpu_proof.prove(2) == 3                  # the long one had a part of the slice
    assert gpu_proof.prove(2) == 1                  # and then the whole of it
    record = json.loads((course / "benchmarks" / "nvidia-test-1.json").read_text())
    assert record["units"]["bench quick"]["results"] == {}
    assert record["units"]["bench long"]["exit_code"] in gpu_proof.TIMED_OUT


def test_a_skipped_gpu_test_is_not_a_proof(course):
    (course / "tests" / "test_a.py").write_text(
        f"import pytest\n{MARK}\ndef test_a():\n    pytest.skip('no CuPy')\n")
    assert gpu_proof.prove() == 3
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
