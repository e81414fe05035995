"""Student editions: what is in them, what is not, and that they work where they are cloned."""

import itertools
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from types import SimpleNamespace

import pytest
import yaml

from lab import course, device, stub
from lab.cli import app
from lab.course import ROOT, CourseError
from lab.grading import leaked_answers as leaks
from lab.grading import missing_answers as missing
from lab.grading import release
from lab.judge import tape
from lab.judge.subject import SLACK
from lab.remote.frames import frame, read_frame

K01 = course.find("k01_vector_add")


def silent(*words):
    """A release says what it records; not here."""


@pytest.fixture(scope="module")
def edition(tmp_path_factory):
    """(folder, notes): r01 with its answers, k01 as a stub, nothing else, no hints."""
    folder = tmp_path_factory.mktemp("editions") / "autumn"
    plan = release.edition(["k01"], answers_until="r01", hints=False)
    return folder, release.release(plan, folder, silent)


@pytest.fixture
def copy(edition, tmp_path):
    """A fresh clone of it, to write to."""
    subprocess.run(["git", "clone", "-q", str(edition[0]), str(tmp_path / "clone")], check=True)
    return tmp_path / "clone"


def inside(folder, *words, given=None):
    return subprocess.run([sys.executable, "-P", *map(str, words)], cwd=folder, input=given,
                          text=True, capture_output=True, env=device.child_environment(folder))


def lab(folder, *words):
    return inside(folder, "-m", "lab.cli", *words)


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")
            if path.is_file() and ".git" not in path.parts}


# ---- which lessons


@pytest.mark.parametrize("words, ids", [
    (["k01..k03"], "k01 k02 k03"), (["o06..k01"], "o06 k01"), (["day01"], "r01 r02 r03 r04"),
    (["s09", "r01_roofline"], "r01 s09"), (["r0"], "r01 r02 r03 r04"), ([], ""),
    (["day02_overview"], "o01 o02 o03 o04 o05 o06")])
def test_words_name_lessons(words, ids):
    assert " ".join(lesson.id[:3] for lesson in course.choose(words)) == ids


@pytest.mark.parametrize("word, says", [
    ("k03..k01", "k03_reduce comes after k01_vector_add"), ("x01", "no lesson 'x01'"),
    ("k21_example", "no lesson 'k21_example'"), ("k01..x", "no lesson 'x'"), ("", "no lesson ''")])
def test_words_that_name_none(word, says):
    with pytest.raises(CourseError, match=says):
        course.choose([word])


def test_answers_bring_all_lessons_before():
    plan = release.edition(["k01"], answers_until="o01")
    assert [i.id[:3] for i in plan.lessons] == ["r01", "r02", "r03", "r04", "o01", "k01"]
    assert [i.id for i in plan.stubs] == ["k01_vector_add"]
    assert plan.floors == ["day01_roofline", "day02_overview", "layer1_kernels"]
    with pytest.raises(CourseError, match="no lesson to release"):
        release.edition([])


# ---- what is there


def test_what_ships(edition):
    there = files(edition[0])
    assert {"layer1_kernels/k01_vector_add.py", "layer1_kernels/k01_vector_add.cu",
            "layer1_kernels/k01_vector_add.md", "notebooks/layer1_kernels/k01_vector_add.ipynb",
            "tests/layer1_kernels/test_k01_vector_add.py", "layer1_kernels/k02_transpose.py",
            "tests/layer1_kernels/k01_vector_add.recorded.json.gz", "README.md", "Makefile",
            "solutions/day01_roofline/r01_roofline.ipynb", ".github/workflows/check.yml",
            ".vscode/tasks.json", ".devcontainer/devcontainer.json",
            "tests/day01_roofline/r01_roofline.mutants.toml"} <= there
    assert not [name for name in there if name.startswith((
        "layer2", "layer3", "lab/authors.mk", "benchmarks/speed", "tests/lab",
        "solutions/layer1", "tests/layer1_kernels/k01_vector_add.mutants",
        "layer1_kernels/k02_transpose.md", "CHANGELOG", "notebooks/layer1_kernels/k02"))]


def test_graders_ship_with_what_they_compare_with():
    """Files beside the tests, which these import themselves, or what they import does."""
    for name, *beside in (
            ("g08", "oracle_g08_activation_kv_quantization", "quantization_cases"),
            ("k05", "matmul_cases"), ("k14", "oracle_k14_paged_attention"),
            ("k18", "matmul_cases", "oracle_k18_flash_backward")):
        lesson = course.find(name)
        assert [path.stem for path in lesson.graders] == [f"test_{lesson.id}", *beside]
        for path in lesson.graders:
            assert release.grader(release.edition([name]), path.relative_to(ROOT))
            assert not release.grader(release.edition(["k01"]), path.relative_to(ROOT))


def test_it_is_one_commit_and_nothing_beside(edition):
    def git(*words):
        return subprocess.run(["git", "-C", str(edition[0]), *words], check=True, text=True,
                              capture_output=True).stdout

    assert len(git("log", "--oneline", "--all").splitlines()) == 1
    assert git("status", "--short") == ""
    assert set(git("ls-files").splitlines()) == files(edition[0])


def test_the_modules_are_the_stubs_and_the_answers(edition):
    for lesson in course.lessons():
        if lesson.floor in ("day01_roofline", "layer1_kernels"):
            texts = lesson.sources if lesson.id == "r01_roofline" else lesson.stubs
            for language, text in texts.items():
                path = lesson.path(course.SUFFIX[language])
                assert (edition[0] / path.relative_to(ROOT)).read_text("utf-8") == text


def given_code():
    """All that the public stubs and the machinery show anyway, without blanks."""
    known = {path for i in course.lessons() for path in (i.path(".py"), i.path(".cu"))}
    texts = [text for i in course.lessons() for text in i.stubs.values()]
    texts += [path.read_text("utf-8") for top in ("lab", *(f.name for f in course.floors()))
              for path in (ROOT / top).rglob("*.py") if path not in known]
    return leaks.squeezed("\n".join(texts))


def test_no_answer_is_in_it(edition):
    """No line of an answer that is not given, unless a published stub has the same line."""
    given = given_code()
    texts = {name: leaks.squeezed(leaks.readable(edition[0] / name)) for name in files(edition[0])
             if not name.endswith(leaks.BINARY)}
    looked_for = [(exercise, line) for lesson in course.lessons() if lesson.id != "r01_roofline"
                  for exercise in lesson.exercises for line in leaks.telling(exercise)
                  if line not in given]
    assert len(looked_for) > 500
    told = [(exercise.id, line, name) for exercise, line in looked_for
            for name, text in texts.items() if line in text]
    assert told == []


def test_an_answer_that_is_told_is_noticed(copy):
    plan = release.edition(["k01"], "r01")
    before = set(leaks.notes(copy, plan))
    text = K01.sources["python"]
    cell = {"cell_type": "code", "source": stub.extract(text, "add_triton", "python"),
            "metadata": {}, "outputs": []}
    (copy / "notes.ipynb").write_text(json.dumps({"cells": [cell]}))
    assert set(leaks.notes(copy, plan)) - before == {
        "k01_vector_add/add_triton: 2 of 2 lines of its answer are in notes.ipynb"}


def test_what_the_reference_answered_tells_nothing_of_its_text(edition):
    path = edition[0] / tape.file_of(K01).relative_to(ROOT)
    data = json.loads(leaks.readable(path))
    assert {"test_predict_sectors_per_request", "test_add_cuda__work"} <= data["answers"].keys()
    assert data["steps"] > 0
    for _, answer in itertools.chain(*data["answers"].values()):
        assert b"lines" not in tape.base64.b64decode(answer)
        assert b"blockIdx" not in tape.base64.b64decode(answer)


def test_hints_ship_unless_they_are_left_out(edition, tmp_path):
    assert "Every thread runs the same code" not in (
        edition[0] / "layer1_kernels" / "k01_vector_add.md").read_text("utf-8")
    assert lab(edition[0], "list").returncode == 0
    plan = release.edition(["k01"])
    assert release.prose(K01, plan) == K01.markdown.read_text("utf-8")


def test_what_a_notebook_lacks_is_said(edition):
    assert [note for note in edition[1] if "of the notebook" in note] == [
        "2 cells of the notebook of k01_vector_add are comments: they need the answers to "
        "add_triton of k01_vector_add, generate of o02_life_of_a_token that this edition does not "
        "have"]


def test_a_notebook_runs_although_answers_are_absent(edition):
    """With right answers in its cells.
    Cells that need others are comments that name them."""
    cells = [cell for cell in json.loads((edition[0] / K01.notebook.relative_to(ROOT)).read_text(
        "utf-8"))["cells"] if cell["cell_type"] == "code"]
    last = "".join(cells[-1]["source"]).splitlines()
    assert last[:4] == ["# These lines are comments since they need the answers to add_triton of "
                        "k01_vector_add, generate", "# of o02_life_of_a_token that this edition "
                        "does not have.", "#",
                        "# from day02_overview import NUMPY, decode, encode, generate, load_nano"]
    assert all(row.startswith("#") for row in last)
    said = release.inside(edition[0], "-c", missing.RUN, "k01", text=json.dumps(K01.sources))
    assert missing.wrong(K01, json.loads(said.splitlines()[-1])) == {}


def test_a_cell_that_prints_something_else_is_wrong_too():
    """A CUDA stub does nothing: its counts are zero, and there is no exception."""
    own = json.loads(K01.solution.read_text("utf-8"))["cells"]
    assert missing.wrong(K01, own) == {}
    checked = next(cell for cell in own if missing.CHECKED in cell["metadata"].get("tags", ()))
    checked["source"] = "".join(checked["source"])
    checked["outputs"][0]["text"] = ["0 sectors\n"]
    assert missing.wrong(K01, own) == {checked["source"]: ""}


def test_cells_in_comments():
    text = "```python\n# NBVAL_IGNORE_OUTPUT\na = f(\n  1)\n```\n\n```python\nprint(a)\n```\n"
    assert missing.as_comments(text, ["a = f(\n  1)"], ["bound", "Gone.here"]) == (
        f"```python\n{missing.COMMENT} the answers to bound of r01_roofline, Gone.here that\n"
        "# this edition does not have.\n#\n# a = f(\n#   1)\n```\n\n"
        "```python\nprint(a)\n```\n")


def test_the_package_names_only_floors_that_ship(edition):
    project = tomllib.loads((edition[0] / "pyproject.toml").read_text("utf-8"))
    built = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert built == ["lab", "day01_roofline", "day02_overview", "layer1_kernels"]
    assert project["project"]["entry-points"]["lab.commands"] == {}
    assert project["project"]["dependencies"]


def test_make_has_what_is_there(edition):
    def made(target):
        return subprocess.run(["make", "-n", target], cwd=edition[0],
                              capture_output=True).returncode

    assert made("learn") == made("test") == made("set-up") == 0
    assert made("gpu") == made("test-all") == 2


# ---- what it does


def test_a_desk_belongs_to_the_editions_git(copy):
    assert lab(copy, "start").returncode == 0
    assert not (copy / "work" / ".git").exists()
    listed = subprocess.run(["git", "-C", str(copy), "status", "--short", "-uall"],
                            capture_output=True, text=True, check=True).stdout
    assert "work/layer1_kernels/k01_vector_add.py" in listed


def test_the_workflow_checks_what_was_pushed(copy):
    """The workflow's own commands, in this environment instead of `make set-up`'s."""
    workflow = yaml.safe_load((copy / ".github" / "workflows" / "check.yml").read_text())
    steps = [step["run"] for step in workflow["jobs"]["check"]["steps"] if "run" in step]
    assert steps[0] == "make set-up"
    (copy / ".venv" / "bin").mkdir(parents=True)
    program = copy / ".venv" / "bin" / "lab"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m lab.cli "$@"\n')
    program.chmod(0o755)

    def run(step):
        return subprocess.run(["bash", "-e", "-c", step], cwd=copy, capture_output=True, text=True,
                              env=device.child_environment(copy)).returncode

    assert [run(step) for step in steps[1:]] == [0, 0, 0]
    found = {e["name"]: e["verdict"] for lesson in json.loads((copy / "check.json").read_text())
             for e in lesson["exercises"]}
    assert set(found.values()) == {"not_attempted"} and "add_triton" in found
    mine = copy / "work" / "day01_roofline" / "r01_roofline.py"
    mine.write_text(mine.read_text().replace(
        'raise NotImplementedError("count_add: about 3 lines")', "return n, n"))
    assert run(steps[2]) == 1


def test_a_desk_is_handed_in(copy):
    """What is in the zip is what the whole course grades."""
    assert lab(copy, "start", "k01").returncode == 0
    assert "was attempted" in lab(copy, "submit").stderr
    mine = copy / "work" / "layer1_kernels" / "k01_vector_add.py"
    mine.write_text(K01.path(".py").read_text("utf-8"))
    done = lab(copy, "submit", "--out", copy / "mine.zip")
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(copy / "mine.zip") as handed_in:
        sent = handed_in.read("layer1_kernels/k01_vector_add.py").decode()
    assert stub.extract(sent, "add_triton", "python") == stub.extract(
        K01.sources["python"], "add_triton", "python")


def test_answers_are_judged_as_in_the_whole_course(copy):
    """Also where the reference's counts are needed: a prediction, an endless loop."""
    right = lab(copy, "check", "k01", "--json", "--file", K01.path(".py"))
    wrong = copy / "wrong.py"
    wrong.write_text("def predict_sectors_per_request():\n    return 4\n")
    endless = copy / "endless.cu"
    endless.write_text("""
extern "C" __global__ void add_cuda(const float* x, const float* y, float* z, int n)
{
    int i = threadIdx.x;
    volatile float* out = z;
    while (i < n) out[i] = x[i];
}""")
    found = [{e["name"]: e for e in json.loads(done.stdout)["exercises"]} for done in (
        right, lab(copy, "check", "predict_sectors_per_request", "--json", "--file", wrong),
        lab(copy, "check", "add_cuda", "--json", "--file", endless))]
    assert found[0]["add_triton"]["verdict"] == "pass"
    assert found[0]["predict_sectors_per_request"]["verdict"] == "pass"
    assert "threads 4 bytes apart" in found[1]["predict_sectors_per_request"]["message"]
    assert found[2]["add_cuda"]["verdict"] == "fail"
    most = json.loads(leaks.readable(copy / tape.file_of(K01).relative_to(ROOT)))["steps"]
    assert f"did not end within {SLACK * most} warp" in found[2]["add_cuda"]["message"]


def test_what_is_not_given_is_refused_in_one_line(edition):
    for words, says in ((["show", "--now", "add_triton"], "not in this edition"),
                        (["release", "k01", "--out", "x"], "No such command"),
                        (["check", "k02_transpose"], "planned, not there yet")):
        done = lab(edition[0], *words)
        assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1


def test_torch_fills_in_for_kernels(edition):
    done = inside(edition[0], "-c", "import torch; from layer1_kernels import kernels\n"
                  "for name in ('torch', 'triton', 'cuda', 'mine'):\n"
                  "    table = kernels(name)\n"
                  "    print(table.matmul(torch.ones(2, 3), torch.ones(4, 3)).sum().item(),"
                  " table.sources()['softmax'])")
    assert done.stdout.splitlines() == ["24.0 softmax_torch"] * 4, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)            # a whole `make test`
def test_make_test_proves_a_fresh_clone(copy):
    done = inside(copy, "-m", "lab.author.prove", "landing")
    assert done.returncode == 0, done.stdout[-3000:]
    for unit in ("verify k01_vector_add", "verify r01_roofline", "lab build --check"):
        assert re.search(rf" ok +\d+ s  {unit}$", done.stdout, re.M), unit
    assert done.stdout.splitlines()[-1].endswith(", 0 failed, 0 skipped")


# ---- what does not work


def test_a_folder_in_use_is_left_alone(tmp_path, command):
    (tmp_path / "mine.txt").write_text("mine")
    code, out, err = command(app, "lab", "release", "k01", "--out", tmp_path)
    assert (code, out) == (2, "") and "is not empty: nothing was written" in err
    assert files(tmp_path) == {"mine.txt"}


def test_all_that_cannot_be_passed_is_said_at_once():
    rows = [("g01", "f", "pass", ""), ("g02", "a", "fail", "1, not 2"), ("g02", "b", "error", ""),
            ("g03", "c", "not_proven_here", ""), ("g03", "d.speed", "fail", ""),
            ("g04", "e", "fail", "")]
    release.refuse_unless_right([rows[0], *rows[3:5]], "there")
    with pytest.raises(CourseError) as refused:
        release.refuse_unless_right(iter(rows), "there")
    assert str(refused.value) == ("g02/a: the course's own answer does not pass there (fail: 1, "
                                  "not 2). Nor do some of g04")


@pytest.mark.slow
def test_what_cannot_be_passed_is_not_released(tmp_path):
    """o04 counts with r03's count_parameters: without its answers no right answer could pass."""
    with pytest.raises(CourseError, match="o04_training_math/.* --answers-until gives those"):
        release.release(release.edition(["o04"]), tmp_path / "out", silent)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def notebooks_as_they_are(monkeypatch):
    """Their cells are not run to find those that need what the edition lacks."""
    monkeypatch.setattr(missing, "mend", lambda plan, folder, inside: [])


@pytest.mark.slow
def test_what_a_lesson_needs_is_taken_from_the_desk(tmp_path, notebooks_as_they_are):
    """o04 again, where r03 is released too: the learner's own count_parameters stands in."""
    folder = tmp_path / "made"
    release.release(release.edition(["r03", "o04"]), folder, silent)
    assert lab(folder, "start").returncode == 0
    r03, o04 = course.find("r03"), course.find("o04")
    on_desk = folder / "work" / o04.floor / f"{o04.id}.py"
    on_desk.write_text(o04.path(".py").read_text("utf-8"))

    def verdicts():
        return {e["name"]: e for e in json.loads(
            lab(folder, "check", "o04", "--json").stdout)["exercises"]}

    before = [e["message"] for e in verdicts().values() if e["verdict"] == "fail"]
    assert before == ["step_bytes: it needs count_parameters, which is still a stub"]
    (folder / "work" / r03.floor / f"{r03.id}.py").write_text(r03.path(".py").read_text("utf-8"))
    assert {e["verdict"] for e in verdicts().values()} == {"pass"}


def test_a_course_that_git_does_not_track(tmp_path, monkeypatch):
    monkeypatch.setattr(release, "ROOT", tmp_path)
    with pytest.raises(CourseError, match="what ships is what git tracks"):
        release.tracked()


# ---- tapes


def question(what, *values):
    return frame({"do": what, "with": list(values)}, [])


def test_a_replayed_reference_answers_what_it_was_asked():
    answer = frame({"value": 7}, [])
    child = tape.ReplayChild([[tape.digest(question("get", None, "x")),
                            tape.base64.b64encode(answer).decode()]])
    with pytest.raises(RuntimeError, match="no longer asks"):
        tape.ReplayChild([["0", ""]]).sendall(question("get", None, "y"))
    child.sendall(question("get", None, "x"))
    assert read_frame(child.part) == ({"value": 7}, [])
    with pytest.raises(RuntimeError, match="no longer asks"):
        child.sendall(question("get", None, "x"))


def test_what_a_test_counts_in_the_reference_is_written_down():
    """And the test is given what the edition will give it, in the same order."""
    made, test = tape.ReferenceTape(), SimpleNamespace(name="test_predict")
    counts = [{"names": ["rope", "matmul"]}, [(3, 4), (0.5, None)]]
    assert [tape.Taped(made).truth(test, data) for data in counts] == counts
    kept = json.loads(json.dumps(made.data()))["truths"]
    assert [tape.value(tape.base64.b64decode(text)) for text in kept["test_predict"]] == counts
    with pytest.raises(tape.wire.Unsendable):
        tape.Taped(made).truth(test, object())


@pytest.mark.slow
@pytest.mark.timeout(1800)            # an edition with tapes of layer 1
def test_a_grader_that_counts_in_the_reference_ships_without_it(tmp_path, notebooks_as_they_are):
    """g01's grader counts the launches of g01's own model."""
    plan = release.edition(["g01"], answers_until="k15")
    release.release(plan, tmp_path / "made", silent)
    g01 = course.find("g01")
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def predict_launches():\n    return 13\n")
    right, told = (json.loads(lab(tmp_path / "made", "check", "predict_launches", "--json",
                                  "--file", file).stdout)["exercises"][0]
                   for file in (g01.path(".py"), wrong))
    assert right["verdict"] == "pass" and told["verdict"] == "fail"
    assert "The two additions are launches too, PyTorch's own." in told["message"]


def test_arrays_may_differ_in_their_last_bits():
    import numpy as np

    def asked(value):
        tree, buffers = tape.wire.pack([np.full(3, value)])
        return tape.digest(frame({"do": "call", "with": tree}, buffers))

    assert asked(1.0) == asked(1.0 + 1e-15)
    assert asked(1.0) != tape.digest(question("call"))


def test_limits_are_the_longest_of_the_tape():
    def launch(steps):
        tree, _ = tape.wire.pack(([{"steps": steps, "lines": {"1": "secret"}}], []))
        return tape.Exchange(question("launch"), frame({"value": tree}, []))

    made = tape.ReferenceTape()
    made.graded += [launch(5), launch(30), tape.Exchange(question("call"), b"", 0.5)]
    made.asked["test_a"] = [launch(1)]
    data = made.data()
    assert (data["steps"], data["seconds"]) == (30, 0.5)
    [[_, answer]] = data["answers"]["test_a"]
    assert b"secret" not in tape.base64.b64decode(answer)
