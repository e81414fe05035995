"""`lab submit` packs what the learner wrote, and a grader reads the same out of it."""

import io
import json
import os
import subprocess
import sys
import zipfile

import pytest

from lab import course, stub
from lab.course import ROOT, CourseError
from lab.desk.desk import Desk
from lab.grading import extract, intake, submit
from lab.judge import check

K07, R01 = course.find("k07_softmax"), course.find("r01_roofline")
MERGE = stub.extract(K07.sources["python"], "merge", "python")
FUSED = stub.extract(K07.sources["cuda"], "softmax_fused_cuda", "cuda")
RATIO = stub.extract(K07.sources["python"], "predict_bytes_ratio", "python")


@pytest.fixture
def desk(tmp_path):
    desk = Desk(tmp_path / "a desk")
    desk.prepare()
    for lesson in (R01, K07):
        desk.start(lesson)
    return desk


def answer(desk, text, suffix=".py", lesson=K07):
    path = desk.path(lesson, suffix)
    language = lesson.language(path)
    path.write_text(stub.splice(path.read_text(), text, language).text)


def held(packed):
    with zipfile.ZipFile(io.BytesIO(packed.data)) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def read_back(packed, tmp_path):
    folder = tmp_path / "sent"
    folder.mkdir(exist_ok=True)
    (folder / "ada.zip").write_bytes(packed.data)
    submission, = intake.read_all(folder)
    assert not submission.problems
    return submission


def test_only_the_learners_own_is_packed(desk):
    answer(desk, "import cmath\n\n\ndef helper():\n    return cmath.pi\n\n\n" + MERGE)
    answer(desk, FUSED, ".cu")
    files = held(submit.pack(desk, desk.lessons()))
    assert sorted(files) == ["layer1_kernels/k07_softmax.cu", "layer1_kernels/k07_softmax.py",
                             "manifest.json"]
    text = files["layer1_kernels/k07_softmax.py"]
    assert "def merge" in text and "def helper" in text and "import cmath" in text
    assert "softmax_oracle" not in text and "softmax_online_triton" not in text
    assert json.loads(files["manifest.json"]) == {
        "schema": 1, "course_version": course.VERSION,
        "lessons": {"k07_softmax": ["softmax_fused_cuda", "merge"]}}


def test_a_grader_reads_the_same_as_from_the_desk(desk, tmp_path):
    answer(desk, "OWN = 3\n\n\ndef helper():\n    return OWN\n\n\n" + MERGE)
    answer(desk, "__device__ float own(float a) { return a; }\n\n" + FUSED, ".cu")
    submission = read_back(submit.pack(desk, desk.lessons()), tmp_path)
    assert submission.student == "ada" and submission.version == course.VERSION
    made, notes = extract.candidate(K07, submission)
    assert made.sources == desk.candidate(K07).sources and not notes
    assert [v.verdict for v in check.grade(K07, made, ["merge"])] == ["pass"]


@pytest.mark.parametrize("lesson", course.lessons(), ids=lambda lesson: lesson.id)
def test_every_reference_survives_being_packed(lesson, tmp_path):
    desk = Desk(tmp_path / "work")
    desk.prepare()
    desk.start(lesson)
    for language, text in lesson.sources.items():
        desk.path(lesson, course.SUFFIX[language]).write_text(text)
    made, notes = extract.candidate(lesson, read_back(submit.pack(desk, [lesson]), tmp_path))
    for e in lesson.exercises:
        assert stub.normalised(made.sources[e.language], e.name, e.language) == stub.normalised(
            lesson.sources[e.language], e.name, e.language)
    assert not notes


def test_a_cell_that_was_never_checked_is_packed_too(desk):
    path = desk.path(K07, ".ipynb")
    notebook = json.loads(path.read_text())
    notebook["cells"].append({"cell_type": "code", "id": "mine", "metadata": {}, "outputs": [],
                              "execution_count": None, "source": RATIO})
    path.write_text(json.dumps(notebook))
    packed = submit.pack(desk, [K07])
    assert "def predict_bytes_ratio" in held(packed)["layer1_kernels/k07_softmax.py"]
    assert any("from" in note and "code cell" in note for note in packed.notes)


def test_equal_desks_give_equal_bytes(desk):
    answer(desk, MERGE)
    first = submit.pack(desk, desk.lessons()).data
    os.utime(desk.path(K07, ".py"), (1, 1))
    assert submit.pack(desk, desk.lessons()).data == first


def test_what_became_of_each_exercise(desk):
    answer(desk, MERGE)
    answer(desk, "def predict_bytes_ratio():\n    return 17\n")
    candidate = desk.candidate(K07)
    desk.record(K07, candidate, check.grade(K07, candidate, ["merge", "predict_bytes_ratio"]))
    what = {row.exercise.name: row.what for row in submit.pack(desk, [K07]).rows}
    assert what == {"merge": "passed", "predict_bytes_ratio": "touched",
                    "softmax_fused_cuda": "stub", "softmax_online_cuda": "stub",
                    "softmax_online_triton": "stub"}


def test_a_file_that_does_not_parse_is_packed_whole(desk, tmp_path):
    text = desk.path(K07, ".py").read_text() + "\n\ndef merge(:\n"
    desk.path(K07, ".py").write_text(text)
    packed = submit.pack(desk, desk.lessons())
    assert held(packed)["layer1_kernels/k07_softmax.py"] == text
    assert any("does not parse" in note for note in packed.notes)
    made, _ = extract.candidate(K07, read_back(packed, tmp_path))
    assert list(made.broken) == ["merge"] and "k07_softmax.py, line" in made.broken["merge"]


def test_nothing_attempted_is_a_sentence(desk):
    with pytest.raises(CourseError, match="nothing to hand in"):
        submit.pack(desk, desk.lessons())


def test_nothing_is_overwritten(desk, tmp_path, monkeypatch):
    answer(desk, MERGE)
    packed = submit.pack(desk, [K07])
    monkeypatch.chdir(tmp_path)
    first, second = submit.write(packed, desk), submit.write(packed, desk)
    assert first.name.startswith("a desk-2") and second.stem == first.stem + "-1"
    (tmp_path / "mine.zip").write_bytes(b"old")
    with pytest.raises(CourseError, match="there already"):
        submit.write(packed, desk, "mine.zip")
    assert (tmp_path / "mine.zip").read_bytes() == b"old"
    with pytest.raises(CourseError, match="cannot write"):
        submit.write(packed, desk, tmp_path / "none" / "mine.zip")


def lab(desk, *words, cwd):
    command = [sys.executable, "-m", "lab.cli", "--desk", str(desk.folder), *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_the_command(desk, tmp_path):
    answer(desk, MERGE)
    done = lab(desk, "submit", "k07", "--out", "mine.zip", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "k07_softmax/merge" in done.stdout and "mine.zip" in done.stdout
    assert "left out: still the stub" in done.stdout and zipfile.is_zipfile(tmp_path / "mine.zip")
    for words, says in ((["submit", "r01"], "nothing to hand in"),
                        (["submit", "k01"], "not on the desk"),
                        (["submit", "--out", "mine.zip"], "there already")):
        done = lab(desk, *words, cwd=tmp_path)
        assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
