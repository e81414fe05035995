"""The manifest and the front matter: what an author may get wrong in them is one sentence."""

import pytest

from lab import course
from lab.course import CourseError, Lesson

FRONT = {"title": "T", "path": "core", "needs": [], "hints": {}}
SOURCE = """
def double(x):
    # exercise: twice as much
    return 2 * x


class Pool:
    def take(self):
        # exercise: the first page
        return 1
"""


def lesson(points, source=SOURCE):
    one = Lesson("k99_new", "layer1_kernels")
    one.__dict__["sources"], one.__dict__["front"] = {"python": source}, FRONT | {"points": points}
    return one


@pytest.mark.parametrize("points", [{"double": 1, "Pool.take": 1}, {"double": 1, "Pool": 2}])
def test_what_is_marked_and_has_points_is_an_exercise(points):
    assert [e.name for e in lesson(points).exercises] == list(points)


@pytest.mark.parametrize("points, name", [
    ({"Pool.take": 1}, "double"), ({"double": 1}, "Pool.take")])
def test_a_mark_without_points_would_give_the_answer_away(points, name):
    with pytest.raises(CourseError, match=f"{name} has a comment `exercise:`, and the front matter "
                                          "gives no points for it"):
        _ = lesson(points).exercises


@pytest.fixture
def manifest(tmp_path, monkeypatch):
    """manifest(lessons, planned) -> the floors that such a file gives."""
    (tmp_path / "lab").mkdir()
    (tmp_path / "layer1_kernels").mkdir()

    def write(lessons, planned):
        rows = ", ".join(f'["{i}", "core", "T"]' for i in planned)
        (tmp_path / "lab" / "course.toml").write_text(
            f"[layer1_kernels]\ntitle = 'L'\nlessons = {lessons}\nplanned = [{rows}]\n")
        course.floors.cache_clear()
        return course.floors()

    monkeypatch.setattr(course, "ROOT", tmp_path)
    yield write
    monkeypatch.undo()
    course.floors.cache_clear()


def test_nothing_need_be_planned(manifest):
    assert manifest(["k01_a"], [])[0].planned == ()
    with pytest.raises(CourseError, match="no lesson 'k02_b'; there are k01_a"):
        course.find("k02_b")


def test_an_id_is_listed_once(manifest):
    assert [i.id for i in manifest(["k01_a"], ["k02_b"])[0].lessons] == ["k01_a"]
    with pytest.raises(CourseError, match="lists k02_b twice: a lesson that is there is no longer"):
        manifest(["k01_a", "k02_b"], ["k02_b"])


def test_a_planned_lesson_with_files_says_what_to_do(manifest, tmp_path):
    manifest(["k01_a"], ["k02_b"])
    with pytest.raises(CourseError, match="k02_b is planned, not there yet"):
        course.find("k02_b")
    (tmp_path / "layer1_kernels" / "k02_b.py").touch()
    with pytest.raises(CourseError, match="k02_b has files, and is `planned` in lab/course.toml: "
                                          "move its id to `lessons` there"):
        course.find("k02_b")


@pytest.mark.parametrize("text, says", [
    ("no lines\n", "no front matter between --- lines"),
    ("---\nlesson:\n  title: T\n---\n", "lacks lesson: hints, needs, path, points"),
    ("---\nlesson:\n  hints:\n    - a pair: q, k\n      and v\n---\n", "is no YAML: while")])
def test_front_matter_that_cannot_be_read_is_one_sentence(text, says, tmp_path, monkeypatch):
    monkeypatch.setattr(course, "ROOT", tmp_path)
    one = Lesson("k99_new", "layer1_kernels")
    one.markdown.parent.mkdir()
    one.markdown.write_text(text, "utf-8")
    with pytest.raises(CourseError, match=f"k99_new.md: .*{says}") as error:
        _ = one.front
    assert "\n" not in str(error.value)
