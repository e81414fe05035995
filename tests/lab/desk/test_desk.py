"""The desk: what is put there, what survives an upgrade; nothing of a learner's is ever lost."""

import inspect
import json

import numpy as np
import pytest

from lab import course, stub
from lab.course import CourseError
from lab.desk import ipynb, merge
from lab.desk.desk import Desk
from lab.judge import check

LESSON = course.find("r01_roofline")
ADD = LESSON.exercise("count_add")
RIGHT = 'def count_add(n, itemsize):\n    """Mine."""\n    return n, 3 * n * itemsize\n'
OTHER = 'def count_add(n, itemsize):\n    return n, 2 * n * itemsize\n'


@pytest.fixture
def desk(tmp_path):
    desk = Desk(tmp_path / "a desk")            # a space in the path, as learners have
    desk.prepare()
    desk.start(LESSON)
    return desk


def kept(desk):
    folder = desk.folder / ".kept"
    return sorted(folder.iterdir()) if folder.exists() else []


def answer(desk, text):
    path = desk.path(LESSON, ".py")
    path.write_text(stub.splice(path.read_text(), text, "python").text)
    return path.read_text()


def upgraded(old, new):
    """The same lesson with another reference: `new` stands where `old` did."""
    newer = course.Lesson(LESSON.id, LESSON.floor)
    newer.__dict__["sources"] = {"python": LESSON.sources["python"].replace(old, new)}
    return newer


def test_start_puts_the_stub_and_the_notebook(desk):
    assert desk.path(LESSON, ".py").read_text() == LESSON.stubs["python"]
    assert desk.path(LESSON, ".ipynb").read_text() == LESSON.notebook.read_text()
    assert (desk.folder / "AGENTS.md").exists() and desk.lessons() == [LESSON]
    assert set(desk.start(LESSON).values()) == {"same"}


def test_the_desk_is_a_repository_of_its_own(desk):
    assert (desk.folder / ".git").is_dir()


def test_an_untouched_copy_is_refreshed(desk):
    newer = upgraded("one addition an element", "count again")
    assert desk.start(newer)[".py"] == "refreshed"
    assert "count again" in desk.path(LESSON, ".py").read_text() and not kept(desk)


def test_a_touched_copy_is_rebuilt_around_the_learners_work(desk):
    before = answer(desk, "import math\n\nHELPER = math.pi\n\n" + RIGHT)
    newer = upgraded("two roofs; the lower", "both roofs; the lower")
    assert desk.start(newer)[".py"] == "rebuilt"
    text = desk.path(LESSON, ".py").read_text()
    assert '"""Mine."""' in text and "HELPER = math.pi" in text and "both roofs" in text
    assert [p.read_text() for p in kept(desk)] == [before]
    assert desk.start(newer)[".py"] == "same"


def test_a_touched_notebook_keeps_answers_and_added_cells(desk):
    path = desk.path(LESSON, ".ipynb")
    notebook = json.loads(path.read_text())
    place = [ipynb.exercise_of(c) for c in notebook["cells"]].index("count_add")
    notebook["cells"][place]["source"] = RIGHT
    note = {"cell_type": "markdown", "id": "own", "metadata": {}, "source": "My note"}
    notebook["cells"].insert(place + 1, note)
    path.write_text(json.dumps(notebook))
    given = LESSON.notebook.read_text()
    newer = json.loads(given)
    newer["cells"][1]["source"] = "A new introduction."
    fresh = ipynb.carry_over(path.read_text(), given, json.dumps(newer), "x.ipynb")
    texts = [ipynb.source(c) for c in json.loads(fresh)["cells"]]
    assert "A new introduction." in texts and RIGHT in texts
    assert texts.index("My note") == texts.index(RIGHT) + 1
    again = ipynb.carry_over(fresh, json.dumps(newer), json.dumps(newer), "x.ipynb")
    assert ipynb.same_cells(again, fresh)


@pytest.mark.parametrize("copied_before", [True, False])
def test_a_cell_that_was_copied_keeps_both_texts(desk, copied_before):
    """JupyterLab copies a cell's metadata, too: the one with the course's id is the answer."""
    given = LESSON.notebook.read_text()
    mine = json.loads(given)
    place = [ipynb.exercise_of(c) for c in mine["cells"]].index("count_add")
    copy = {**mine["cells"][place], "id": "copied", "source": "# my first attempt\n" + OTHER}
    mine["cells"][place]["source"] = RIGHT
    mine["cells"].insert(place + (not copied_before), copy)
    fresh = json.loads(ipynb.carry_over(json.dumps(mine), given, given, "x.ipynb"))
    answer, = [c for c in fresh["cells"] if ipynb.exercise_of(c) == "count_add"]
    assert ipynb.source(answer) == RIGHT
    assert copy["source"] in [ipynb.source(c) for c in fresh["cells"]]


def test_two_cells_of_one_id_are_both_kept(desk):
    given = LESSON.notebook.read_text()
    mine = json.loads(given)
    mine["cells"] += [{"cell_type": "code", "id": "mine-a", "metadata": {}, "source": text,
                       "outputs": [], "execution_count": None} for text in ("one = 1", "two = 2")]
    fresh = json.loads(ipynb.carry_over(json.dumps(mine), given, given, "x.ipynb"))
    assert {"one = 1", "two = 2"} <= {ipynb.source(c) for c in fresh["cells"]}
    ids = [c["id"] for c in fresh["cells"]]
    assert "mine-a" in ids and len(ids) == len(set(ids))


def test_a_notebook_of_a_format_without_ids_gets_no_cell_twice(desk):
    given = LESSON.notebook.read_text()
    mine = json.loads(given)
    for cell in mine["cells"]:
        del cell["id"]
    place = [ipynb.exercise_of(c) for c in mine["cells"]].index("count_add")
    mine["cells"][place]["source"] = RIGHT
    fresh = json.loads(ipynb.carry_over(json.dumps(mine), given, given, "x.ipynb"))
    assert len(fresh["cells"]) == len(mine["cells"])
    assert ipynb.source(fresh["cells"][place]) == RIGHT


def test_a_folder_that_ignores_files_already_goes_on_ignoring_them(tmp_path):
    (tmp_path / ".gitignore").write_text("*.secret\n")
    Desk(tmp_path).prepare()
    assert (tmp_path / ".gitignore").read_text() == "*.secret\n"


def test_a_cell_is_written_to_the_file_and_the_old_text_kept(desk):
    before = desk.path(LESSON, ".py").read_text()
    assert desk.write_cell(LESSON, ADD, RIGHT) == "cell"
    assert '"""Mine."""' in desk.path(LESSON, ".py").read_text()
    assert [p.read_text() for p in kept(desk)] == [before]


def test_a_file_edited_meanwhile_is_never_overwritten(desk):
    desk.write_cell(LESSON, ADD, RIGHT)
    edited = answer(desk, OTHER)
    with pytest.raises(CourseError) as refusal:
        desk.write_cell(LESSON, ADD, RIGHT.replace("n, 3", "n + 0, 3"))
    said = str(refusal.value)
    assert "this notebook's cell" in said and "r01_roofline.py, line" in said
    assert desk.path(LESSON, ".py").read_text() == edited
    assert desk.write_cell(LESSON, ADD, RIGHT, take="file") == "file"
    with pytest.raises(CourseError, match="two versions"):
        desk.write_cell(LESSON, ADD, RIGHT)         # nor after the file was chosen once
    assert desk.path(LESSON, ".py").read_text() == edited
    assert desk.write_cell(LESSON, ADD, RIGHT, take="cell") == "cell"
    assert edited in [p.read_text() for p in kept(desk)]


def test_two_exercises_may_share_a_cell(desk):
    """Each check writes both, so the text in the file is the notebook's, whichever was checked."""
    other = LESSON.exercise("attainable")
    both = RIGHT + "\n\n" + stub.extract(LESSON.sources["python"], other.name, "python")
    desk.write_cell(LESSON, ADD, both)
    desk.write_cell(LESSON, other, both.replace("n, 3", "n + 0, 3"))
    assert desk.write_cell(LESSON, ADD, both.replace("n, 3", "n + 1, 3")) == "cell"
    assert "n + 1, 3" in desk.path(LESSON, ".py").read_text()
    answer(desk, OTHER)
    with pytest.raises(CourseError, match="count_add has two versions"):
        desk.write_cell(LESSON, other, both)        # an edit in the file is still safe


HELPED = """def times(n):
    return {} * n


def count_add(n, itemsize):
    return n, times(n) * itemsize
"""


def test_a_helper_edited_in_the_file_is_not_overwritten_either(desk):
    desk.write_cell(LESSON, ADD, HELPED.format(2))
    path = desk.path(LESSON, ".py")
    mended = path.read_text().replace("return 2 * n", "return 3 * n")
    path.write_text(mended)
    with pytest.raises(CourseError, match=r"times has two versions: .*r01_roofline.py, line \d+,"):
        desk.write_cell(LESSON, ADD, HELPED.format(2))
    assert path.read_text() == mended
    assert desk.write_cell(LESSON, ADD, HELPED.format(3)) == "cell"     # they agree
    assert desk.write_cell(LESSON, ADD, HELPED.format(4)) == "cell"     # edited in the cell alone


@pytest.mark.parametrize("before", [None, RIGHT])
def test_a_helper_written_in_the_file_is_not_overwritten_by_a_cell_that_is_new(desk, before):
    if before:
        desk.write_cell(LESSON, ADD, before)
    mine = answer(desk, "def times(n):\n    return 7 * n\n")
    with pytest.raises(CourseError, match=r"times has two versions: .*r01_roofline.py, line \d+,"):
        desk.write_cell(LESSON, ADD, HELPED.format(3))
    assert desk.path(LESSON, ".py").read_text() == mine
    assert desk.write_cell(LESSON, ADD, HELPED.format(7)) == "cell"     # they agree


def test_after_a_reset_a_helper_is_still_the_cells(desk):
    desk.write_cell(LESSON, ADD, HELPED.format(2))
    desk.reset(LESSON, ADD)
    assert desk.write_cell(LESSON, ADD, HELPED.format(3)) == "cell"
    assert "return 3 * n" in desk.path(LESSON, ".py").read_text()


def test_a_helper_of_two_cells_is_of_the_one_that_was_checked_last(desk):
    bound = "def times(n):\n    return 5 * n\n\n\ndef bound(flops, moved, peak, bandwidth):\n" \
            "    return times(1)\n"
    desk.write_cell(LESSON, ADD, HELPED.format(3))
    desk.write_cell(LESSON, LESSON.exercise("bound"), bound)
    assert "return 5 * n" in desk.path(LESSON, ".py").read_text()
    assert desk.write_cell(LESSON, ADD, HELPED.format(3)) == "cell"
    assert "return 3 * n" in desk.path(LESSON, ".py").read_text()


GIVEN = "RIDGES = 4\n\n\ndef given():\n    return RIDGES\n\n\n"


def test_what_the_course_gives_comes_back_when_a_cell_no_longer_overrides_it(desk, monkeypatch):
    stubs = {"python": GIVEN + LESSON.stubs["python"]}
    monkeypatch.setitem(LESSON.__dict__, "stubs", stubs)
    desk.path(LESSON, ".py").write_text(stubs["python"])
    desk.write_cell(LESSON, ADD, RIGHT)
    once = desk.path(LESSON, ".py").read_text()
    desk.write_cell(LESSON, ADD, GIVEN.replace("4", "8").replace("return ", "return 1 + ") + RIGHT)
    text = desk.path(LESSON, ".py").read_text()
    assert "RIDGES = 8" in text and "return 1 + RIDGES" in text
    desk.write_cell(LESSON, ADD, RIGHT)
    assert desk.path(LESSON, ".py").read_text() == once


def test_a_reset_that_cannot_read_a_file_changes_none(desk):
    mine = answer(desk, RIGHT)
    desk.path(LESSON, ".ipynb").write_text("{")
    with pytest.raises(CourseError, match="not a notebook that can be read"):
        desk.reset(LESSON, ADD)
    assert desk.path(LESSON, ".py").read_text() == mine and kept(desk) == []


def test_an_empty_cell_does_not_undo_work_in_the_file(desk):
    edited = answer(desk, RIGHT)
    cell = stub.extract(LESSON.stubs["python"], "count_add", "python")
    assert desk.write_cell(LESSON, ADD, cell) == "file"
    assert desk.path(LESSON, ".py").read_text() == edited


def graded(desk):
    candidate = desk.candidate(LESSON)
    verdicts = check.grade(LESSON, candidate, ["count_add"])
    desk.record(LESSON, candidate, verdicts)
    return verdicts[0]


def test_a_byte_order_mark_is_no_part_of_an_answer(desk):
    path = desk.path(LESSON, ".py")
    path.write_text(answer(desk, RIGHT), "utf-8-sig")
    assert path.read_text()[0] == "\ufeff" and graded(desk).verdict == "pass"


def test_mine_is_what_last_passed_and_nothing_else(desk):
    assert desk.mine(ADD) is None
    answer(desk, RIGHT)
    assert desk.mine(ADD) is None               # it has not passed yet
    assert graded(desk).verdict == "pass" and desk.mine(ADD)(5, 4) == (5, 60)
    answer(desk, "def bound(flops, moved, peak, bandwidth):\n    return 1\n")
    assert desk.passed(ADD)                     # another exercise of the file does not matter
    answer(desk, OTHER)
    assert desk.mine(ADD) is None and not desk.passed(ADD)


def test_a_kernel_is_mine_while_another_of_its_file_does_not_compile(tmp_path):
    lesson = course.find("k01_vector_add")
    desk = Desk(tmp_path)
    desk.prepare()
    desk.start(lesson)
    text = lesson.sources["cuda"]
    desk.path(lesson, ".cu").write_text(text)
    candidate = desk.candidate(lesson)
    desk.record(lesson, candidate, check.grade(lesson, candidate, ["add_vector_cuda"]))
    own = stub.extract(text, "add_cuda", "cuda")
    desk.path(lesson, ".cu").write_text(text.replace(own, own.replace("int i =", "int =")))
    x, out = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    mine = desk.mine(lesson.exercise("add_vector_cuda"))
    mine((1,), (32,), (x, x, out, 8))
    assert out.tolist() == (2 * x).tolist()
    assert desk.mine(lesson.exercise("add_cuda")) is None


def test_who_uses_a_class_needs_its_methods():
    lesson = course.find("s08_server")
    assert [e.name for e in lesson.reached("Bridge")] == ["Call.add"]
    assert lesson.reached("Call") == []


def test_a_public_function_is_ones_own_when_all_that_it_needs_passed(tmp_path):
    lesson = course.find("k07_softmax")
    assert [e.name for e in lesson.reached("softmax")] == ["softmax_online_triton"]
    assert [e.name for e in lesson.reached("softmax_cuda")] == ["softmax_fused_cuda",
                                                                "softmax_online_cuda"]
    assert lesson.reached("softmax_torch") == []
    desk = Desk(tmp_path)
    desk.prepare()
    desk.start(lesson)
    for suffix, language in ((".py", "python"), (".cu", "cuda")):
        desk.path(lesson, suffix).write_text(lesson.sources[language])
    assert desk.candidate_function(lesson, "softmax") is None          # right, and not graded yet
    candidate = desk.candidate(lesson)
    desk.record(lesson, candidate, check.grade(lesson, candidate, ["softmax_online_triton"]))
    # inside: what refuses gradients
    function = inspect.unwrap(desk.candidate_function(lesson, "softmax"))
    assert function.__module__.startswith("desk.k07_softmax.")
    assert function.__globals__["__file__"] == str(desk.path(lesson, ".py"))
    assert desk.candidate_function(lesson, "softmax_cuda") is None
    # nothing of the learner's is in it
    assert desk.candidate_function(lesson, "softmax_torch") is None


def test_a_pass_ends_with_the_version_it_was_for(desk, monkeypatch):
    answer(desk, RIGHT)
    graded(desk)
    monkeypatch.setitem(LESSON.__dict__, "fingerprint", "another")
    assert not desk.passed(ADD)


def test_the_first_guess_is_kept(desk):
    guess = LESSON.exercise("predict_gain_of_doubled_peak")
    for value in (2.0, 1.0):
        answer(desk, f"def predict_gain_of_doubled_peak():\n    return {value}\n")
        candidate = desk.candidate(LESSON)
        desk.record(LESSON, candidate, check.grade(LESSON, candidate, [guess.name]))
    assert desk.state()["predictions"][guess.id] == 2.0 and desk.passed(guess)


def test_reset_of_one_exercise_and_of_a_lesson(desk):
    answer(desk, RIGHT)
    with_both = answer(desk, "def bound(flops, moved, peak, bandwidth):\n    return 1\n")
    desk.reset(LESSON, ADD)
    text = desk.path(LESSON, ".py").read_text()
    assert "Mine" not in text and "return 1\n" in text and not desk.touched(ADD)
    desk.reset(LESSON)
    assert desk.path(LESSON, ".py").read_text() == LESSON.stubs["python"]
    assert with_both in [p.read_text() for p in kept(desk)]


def test_what_a_file_cannot_be_read_for_is_said_and_mended_by_a_reset(desk):
    path = desk.path(LESSON, ".py")
    path.write_text("def count_add(:\n")
    with pytest.raises(CourseError, match=r"line 1 does not parse.*`lab reset r01_roofline`"):
        desk.reset(LESSON, ADD)
    for damaged in (b"def count_add(:\n", b"\xff\xfe"):
        path.write_bytes(damaged)
        desk.reset(LESSON)
        assert path.read_text() == LESSON.stubs["python"]
        assert damaged in [copy.read_bytes() for copy in kept(desk)]


def test_a_file_in_another_encoding_is_one_line_when_the_course_is_newer(desk):
    desk.path(LESSON, ".py").write_bytes(b"\xff\xfe")
    with pytest.raises(CourseError, match="is not UTF-8 text"):
        desk.start(upgraded("one addition an element", "count again"))


@pytest.mark.parametrize("odd", "\x0b\x0c\x1c\x85\u2028")
def test_a_character_that_ends_a_line_for_some_ends_none_for_the_parser(odd):
    text = f'NOTE = "{odd}"\nstray = 1\n\n\ndef helper():\n    return 2\n'
    assert merge.forget(text, "stray = 1\n", [], "python") == text.replace("stray = 1\n", "")


@pytest.mark.parametrize("text", ["{", "[]", '{"passed": 3}', "\0"])
def test_a_damaged_state_is_one_line_and_loses_nothing(desk, text):
    desk.state_file.write_text(text)
    with pytest.raises(CourseError, match="damaged"):
        desk.state()
    assert desk.state_file.read_text() == text


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"cells": [{}]}', '{"cells": 3}', "\x00\x01"])
def test_a_damaged_notebook_is_one_line(text):
    with pytest.raises(CourseError, match="not a notebook"):
        ipynb.load(text, "x.ipynb")


def test_a_file_that_does_not_parse_stops_the_upgrade_and_stays(desk):
    path = desk.path(LESSON, ".py")
    path.write_text("def count_add(:\n")
    newer = upgraded("one addition an element", "count again")
    with pytest.raises(CourseError, match="does not parse"):
        desk.start(newer)
    assert path.read_text() == "def count_add(:\n"
