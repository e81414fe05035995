"""A student's page reveals no answer that an edition held back, whatever the code does."""

import html
import os

import pytest

from lab import course, stub
from lab.course import CourseError
from lab.grading import release, run
from tests.redteam import attacks

HELD = course.find("k07_softmax")
LESSON = course.find("g01_llama")
ANSWER = stub.extract(HELD.sources["python"], "softmax_online_triton", "python")
LOOK = """
import inspect, pathlib, sys
import layer1_kernels.k07_softmax as module
text = pathlib.Path(module.__file__).read_text()
def files():
    paths = (p for f in sys.path for p in pathlib.Path(f, "layer1_kernels").rglob("*k07*"))
    return "".join(p.read_bytes().decode("latin-1") for p in paths)
for read in (lambda: inspect.getsource(module), files):
    try:
        text += read()
    except Exception as error:
        text += repr(error)
print(text, file=sys.stderr)
print(text)
"""
TELL = {
    "raises": "raise ValueError(text[text.find(START):][:3500])",
    "answers": "return text[text.find(START):][:3500]",
    "notes": "error = ValueError('x'); error.add_note(text); raise error from ValueError(text)",
    "within": "module.softmax_online_triton.fn(*[None] * 12)",
    "keeps": "import warnings; warnings.warn(text); "
             "return type(text[text.find(START):][:3000], (), {})()",
}


def lines(text):
    """Lines of the answer that its stub does not have."""
    given = HELD.stubs["python"]
    return {line.strip() for line in text.splitlines()
            if len(line.strip()) > 25 and line.strip() not in given}


def sent(folder, exercise):
    """A submission for each way to reveal it."""
    own = stub.extract(LESSON.stubs["python"], exercise, "python")
    head, _, _ = own.partition("raise NotImplementedError")
    indent = head[head.rfind("\n") + 1:]
    for name, tell in TELL.items():
        text = LOOK + tell.replace("START", repr("@triton.jit"))
        body = "".join(f"{indent}{line}\n" for line in text.strip().splitlines())
        file = folder / name / f"{LESSON.id}.py"
        file.parent.mkdir(parents=True)
        file.write_text(LESSON.stubs["python"].replace(own, head.rstrip(" ") + body))


@pytest.fixture
def edition(tmp_path):
    """As much of an edition as `lab grade` reads: k07's answers were held back."""
    plan = release.edition(["day01", "day02", "layer1_kernels", LESSON.id], "o06")
    folder = tmp_path / "edition"
    release.put(folder / "lab" / "course.toml", release.manifest(plan).encode())
    return folder


def told(tmp_path, *options):
    """All that students are shown."""
    exercise = next(e.name for e in LESSON.exercises if e.language == "python")
    sent(tmp_path / "sent", exercise)
    rows, _ = attacks.grade(tmp_path / "sent", tmp_path / "out", dict(os.environ), options=options)
    assert {row["verdict"] for (_, name), row in rows.items() if name.endswith("/" + exercise)} == {
        "fail"}
    pages = [*(tmp_path / "out" / "feedback").iterdir(), *(tmp_path / "out" / "results").iterdir()]
    return html.unescape("\n".join(page.read_text() for page in pages)).replace('\\"', '"')


def test_what_an_edition_held_back_is_on_no_page(tmp_path, edition):
    pages = told(tmp_path, "--edition", str(edition))
    assert [line for line in lines(ANSWER) if line in pages] == []


def test_where_nothing_was_held_back_the_attack_works(tmp_path):
    """So it is the edition that closes it."""
    pages = told(tmp_path)
    assert [line for line in lines(ANSWER) if line in pages]


def test_right_answers_pass_where_their_author_wrote_the_lessons_before(tmp_path):
    """k10 uses a kernel of k05: the student's own, without which it is still a stub."""
    k05, k10 = course.find("k05"), course.find("k10")
    plan = release.edition(["day01", "day02", "layer1_kernels"], "o06")
    release.put(tmp_path / "edition/lab/course.toml", release.manifest(plan).encode())
    for student, sent_lessons in (("whole", [k05, k10]), ("alone", [k10])):
        for lesson in sent_lessons:
            for language, text in lesson.sources.items():
                release.put(tmp_path / "sent" / student / (lesson.id + course.SUFFIX[language]),
                            text.encode())
    rows, said = attacks.grade(tmp_path / "sent", tmp_path / "out", dict(os.environ),
                               options=("--edition", str(tmp_path / "edition")))
    verdicts = {student: [row["verdict"] for (who, name), row in rows.items() if who == student
                          and name.startswith(k10.id) and not name.endswith(course.SPEED)]
                for student in ("whole", "alone")}
    assert set(verdicts["whole"]) == {"pass"}, (said, rows)
    assert "pass" in verdicts["alone"] and "error" not in verdicts["alone"], said


def test_an_edition_says_which_answers_it_held_back(tmp_path, edition):
    held = run.held_back(edition)
    assert {HELD.id, LESSON.id} <= held and "r01_roofline" not in held
    with pytest.raises(CourseError, match="expected a folder that `lab release` made"):
        run.held_back(tmp_path)
