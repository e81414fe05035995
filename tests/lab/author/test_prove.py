"""The runner behind make test and make test-all, over units made for the purpose."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab import course
from lab.author import machine, prove, units
from lab.author.units import Unit
from lab.course import ROOT
from lab.judge.plugin import NotProvenHere

BURN = "import time\nwhile time.process_time() < 1: pass"
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder in which units run, with a desk."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "mine.py").write_text("mine")
    monkeypatch.setattr(prove, "ROOT", tmp_path)
    monkeypatch.setattr(prove, "JOURNAL", tmp_path / ".cache" / "proof.json")
    monkeypatch.setattr(prove.device, "workers", lambda: 2)
    return tmp_path


def python(name, code, **more):
    return Unit(name, (sys.executable, "-c", code), **more)


def run(planned, **more):
    proof = prove.Proof(**more)
    return prove.watched(proof, planned, time.monotonic()), proof


def test_a_failed_unit_stops_no_other_and_is_told_with_its_first_lines(place, capsys):
    (place / "test_a.py").write_text(
        "import pytest\n\ndef test_right():\n    pass\n\ndef test_wrong():\n    x = 7\n"
        "    assert x == 8\n\ndef test_absent():\n    pytest.skip('no such thing here')\n")
    code, proof = run([Unit("tests", (*PYTEST, "test_a.py")), python("fine", "print('built')"),
                       python("broken", "print('line one'); exit(4)")])
    said = capsys.readouterr().out
    assert code == 1
    assert "test_a.py::test_wrong" in said and "assert 7 == 8" in said
    assert "  1 × test_a.py: no such thing here" in said
    assert "broken: exit code 4" in said and "line one" in said
    # test_right, `fine` and the untouched desk; test_wrong and `broken`; test_absent
    assert prove.counts(proof.rows) == "3 passed, 2 failed, 1 skipped"
    assert list(proof.rows["tests"].files) == ["test_a.py"]


def test_units_compile_in_the_courses_own_folder_share_warm_processes_and_have_a_thread(place):
    code = ("import os; folders = [os.environ[name] for name in ('XDG_CACHE_HOME', "
            "'TRITON_CACHE_DIR', 'TORCHINDUCTOR_CACHE_DIR')]; "
            f"assert all(f.startswith({str(ROOT / '.cache')!r}) for f in folders); "
            "assert os.path.isdir(os.environ['LAB_WARM']) and os.environ['OMP_NUM_THREADS'] == '1'")
    status, _ = run([python("folders", code)])
    assert status == 0


def test_the_summary_says_what_the_machine_went_through(place, capsys):
    run([python("burn", BURN)])
    said = capsys.readouterr().out
    assert float(said.split(" CPU seconds")[0].split()[-1]) >= 1
    assert "least free memory" in said and "killed for want of memory" in said
    assert "highest load" in said and "longest:" in said


def test_cpu_time_counts_before_a_process_is_waited_for():
    if not Path("/proc/stat").exists():
        raise NotProvenHere("not proven here: needs /proc, as on Linux")
    before = machine.cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", BURN], stdout=subprocess.PIPE) as process:
        process.stdout.read()                           # until it ends
        assert machine.cpu_seconds() - before >= 0.9


def test_a_long_failure_is_cut_to_its_first_lines(place):
    text = prove.beginning("\n".join(f"line {n}" for n in range(100)))
    assert text.splitlines()[-2:] == ["…", "line 99"] and len(text.splitlines()) == prove.LINES + 2
    assert prove.beginning("one\n\ntwo") == "one\ntwo"


def test_rows_of_lab_verify_are_counted():
    rows = [{"lesson": "k01", "exercise": "add", "proof": "mutant 1", "ok": ok,
             "message": "not_proven_here: why"} for ok in (True, True, False, None)]
    row = prove.verified(1, rows)
    assert (row.passed, row.failed, row.skipped) == (2, 1, 1) and not row.ok
    assert row.failures == ["k01/add: mutant 1\nnot_proven_here: why"]
    assert row.unproven == ["k01: why"]


def test_a_unit_that_reports_nothing_is_a_failure(place):
    verify = Unit("verify", (sys.executable, "-c", "print('no rows')", "verify"))
    silent = Unit("tests", (sys.executable, "-c", "exit(0)", "pytest"))
    code, proof = run([verify])
    assert code == 1 and "no rows" in proof.rows["verify"].failures[0]
    code, proof = run([silent])
    assert code == 1 and "no report" in proof.rows["tests"].failures[0]


def test_a_file_of_which_the_marks_leave_nothing_is_no_failure(place):
    (place / "test_a.py").write_text("def test_one():\n    pass\n")
    code, proof = run([Unit("tests", (*PYTEST, "-m", "absent", "test_a.py"))])
    assert code == 0 and proof.rows["tests"].passed == 0
    code, proof = run([Unit("tests", (*PYTEST, "test_b.py"))])
    assert code == 1


def test_a_unit_ends_at_its_limit_with_what_it_started(place, monkeypatch):
    monkeypatch.setattr(prove, "PATIENCE", 0.5)
    code, proof = run([python("long", "import subprocess; subprocess.run(['sleep', '77'])",
                              seconds=0)])
    assert code == 1 and "ended after" in proof.rows["long"].failures[0]


def test_what_is_drawn_is_left_out_after_the_deadline(place):
    planned = [python("drawn", "", drawn=True), python("must", ""),
               python("last", "", alone=True)]
    code, proof = run(planned, deadline=time.monotonic())
    assert code == 0 and [unit.name for unit in proof.left_out] == ["drawn"]
    assert {"must", "last"} <= set(proof.rows)


def test_a_unit_that_must_be_alone_is(place):
    note = "import pathlib, time; p = pathlib.Path('here'); p.touch(); time.sleep(0.3); p.unlink()"
    look = "import pathlib, sys; sys.exit(pathlib.Path('here').exists())"
    code, _ = run([python("alone", look, alone=True), python("a", note), python("b", "")])
    assert code == 0


@pytest.mark.parametrize("code", [
    "open('work/mine.py', 'w').write('yours')", "import os; os.remove('work/mine.py')",
    "open('work/new', 'w')"])
def test_a_touched_desk_fails_the_proof(place, capsys, code):
    exit_code, _ = run([python("one", code)])
    assert exit_code == 1 and "work/ changed during the proof" in capsys.readouterr().out


# ---- the full proof goes on where it was


@pytest.fixture
def whole(place, monkeypatch):
    """A full proof of three units that each leave a mark when they run."""
    mark = "import sys; open('marks', 'a').write(sys.argv[1])"
    planned = [Unit(name, (sys.executable, "-c", mark, name)) for name in "abc"]
    keys = dict.fromkeys("abc", "as it was")
    monkeypatch.setattr(units, "full", lambda: planned)
    monkeypatch.setattr(units, "key", lambda unit: keys[unit.name])
    monkeypatch.setattr(prove.proven, "keep_seconds", lambda seconds: None)
    monkeypatch.setattr(prove.device, "workers", lambda: 1)
    return place, keys, planned


def marks(place):
    return sorted((place / "marks").read_text())


def test_a_full_proof_repeats_only_what_changed(whole):
    place, keys, _ = whole
    assert prove.full()[0] == 0 and marks(place) == ["a", "b", "c"]
    assert prove.full()[0] == 0 and marks(place) == ["a", "b", "c"]
    keys["b"] = "changed"
    code, proof = prove.full()
    assert code == 0 and marks(place) == ["a", "b", "b", "c"]
    assert prove.counts(proof.rows) == "4 passed, 0 failed, 0 skipped"


def test_a_failed_unit_runs_again(whole):
    place, _, planned = whole
    planned[1] = Unit("b", (sys.executable, "-c", "exit(1)"))
    assert prove.full()[0] == 1
    planned[1] = Unit("b", (sys.executable, "-c", "open('marks', 'a').write('b')"))
    assert prove.full()[0] == 0 and marks(place) == ["a", "b", "c"]


def test_a_slice_stops_and_the_next_goes_on(whole, capsys):
    place, _, planned = whole
    planned[0] = Unit("a", (sys.executable, "-c", "import time; time.sleep(1.2)"), seconds=0)
    planned[1:] = [Unit(name, planned[1].command[:3] + (name,), seconds=1) for name in "bc"]
    assert prove.full(1)[0] == 3
    assert "not finished: 2 units are left" in capsys.readouterr().out
    assert prove.full()[0] == 0 and marks(place) == ["b", "c"]


def test_a_damaged_journal_is_one_line(whole, monkeypatch, capsys):
    prove.JOURNAL.parent.mkdir()
    prove.JOURNAL.write_text("{")
    monkeypatch.setattr(sys, "argv", ["prove", "all"])
    assert prove.main() == 2
    assert "is damaged: delete it to begin again" in capsys.readouterr().err


@pytest.mark.parametrize("text, seconds", [("9m", 540), ("90s", 90), ("1h", 3600)])
def test_a_slice_is_a_time(text, seconds):
    assert prove.in_seconds(text) == seconds


@pytest.mark.parametrize("words", [["all", "--slice", "9"], ["all", "--slice", "m"],
                                   ["all", "--slice", "60s"],
                                   ["landing", "--slice", "9m"], ["some"]])
def test_what_cannot_be_understood_is_refused(monkeypatch, capsys, words):
    monkeypatch.setattr(sys, "argv", ["prove", *words])
    with pytest.raises(SystemExit) as done:
        prove.main()
    assert done.value.code == 2 and "error: " in capsys.readouterr().err


def test_graders_run_once(capsys):
    """Those of exercises are left to `lab verify`, which runs them on the references."""
    lesson = course.find("r03_transformer_math")
    collected = {}
    for words in ((), ("--no-graders",)):
        pytest.main([str(lesson.test), "--collect-only", "-q", "-p", "no:cacheprovider", *words])
        collected[words] = set(capsys.readouterr().out.split("\n\n")[0].splitlines())
    graders = collected[()] - collected[("--no-graders",)]
    names = [e.test for e in lesson.exercises]
    assert graders and all(any(name in test for name in names) for test in graders)
    assert not any(f"::{name}" in test for test in collected[("--no-graders",)] for name in names)


def test_a_full_proof_runs_one_unit_more_than_there_are_cores(whole, capsys):
    _, _, planned = whole
    meet = ("import pathlib, time; pathlib.Path('met_{0}').touch()\n"
            "while len(list(pathlib.Path().glob('met_*'))) < 2: time.sleep(0.05)")
    planned[1:] = [python(name, meet.format(name)) for name in "bc"]
    assert prove.full()[0] == 0
    assert capsys.readouterr().out.startswith("3 units, 2 at a time")
