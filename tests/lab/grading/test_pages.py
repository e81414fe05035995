"""What students and instructors read: nothing submitted is markup, nothing hidden is revealed."""

import json
import re
from html.parser import HTMLParser

import pytest

from lab import course
from lab.grading.model import Result
from lab.grading.sanitize import clean, file_name
from lab.grading.summary import kind
from lab.judge.mutants import mutants

EVIL = '<script>alert(1)</script><img src=x onerror="alert(2)">\'";&\x1b[31m\u202e'
NOON = 1_767_268_800.0


class Tags(HTMLParser):
    """All tags of a page, and its text."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = set(), set(), "", []
        self.feed(page)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.text += " "
        self.attributes |= {name for name, _ in attributes}
        if tag not in ("meta", "link", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag != "rect":
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def evil(graded, write, text_file):
    """Reports of a submission that has markup wherever it can."""
    overrides = text_file("overrides.csv", "student,lesson,exercise,points,reason\n"
                          'ada,k01_vector_add,predict_sectors_per_request,1,"<i>by hand</i>"\n')
    said = {"message": EVIL + " SECRET", "feedback": EVIL, "text": EVIL}
    sent = [graded(EVIL, "f!", path=EVIL, sandbox=EVIL, problems=[EVIL], add_cuda=said,
                   predict_sectors_per_request=said),
            graded(EVIL, "p", path=EVIL + "2", when=NOON - 1), graded("ada", "ff", add_cuda=said)]
    return write(*sent, overrides=overrides)[1]


def test_nothing_submitted_is_markup(evil):
    pages = {name: text for name, text in evil.items() if name.endswith(".html")}
    assert len(pages) == 3
    for name, text in pages.items():
        page = Tags(text)
        assert not page.tags & {"script", "img", "i", "iframe"}, name
        assert not any(attribute.startswith("on") for attribute in page.attributes), name
        assert "\x1b" not in text and "\u202e" not in text, name
        assert "<script>alert(1)</script>" in page.text, name
    assert "<i>by hand</i>" in Tags(pages["feedback/ada.html"]).text


def test_a_page_needs_no_network(evil):
    for name, text in evil.items():
        if name.endswith(".html"):
            assert not re.search(r"https?:|//[a-z]|@import|url\(", text), name


def test_students_are_never_told_messages(evil):
    told = {name: text for name, text in evil.items() if name.startswith(("feedback/", "results/"))}
    assert len(told) == 4
    assert not any("SECRET" in text for text in told.values())
    assert "SECRET" in evil["verdicts.csv"] and "SECRET" in evil["summary.html"]


def test_a_students_page(graded, write, text_file):
    overrides = text_file("overrides.csv", "student,lesson,exercise,points,reason\n"
                          "ada,k01_vector_add,add_grid_stride_cuda,0.5,half of it\n")
    sent = graded("ada", "pff!", problems=["a.ipynb: no notebook"],
                  predict_sectors_per_request={"feedback": "count again\n    line 3: return 4"})
    earlier = graded("ada", "pp", path="first.zip", when=NOON - 60)
    _, files = write(earlier, sent, overrides=overrides)
    page = " ".join(Tags(files["feedback/ada.html"]).text.split())
    for words in ("1.5 of 12 points", "ada.zip, 2026-01-01 12:00:00 UTC", "a.ipynb: no notebook",
                  "k01_vector_add 1.5 of 4 k02_transpose 0 of 8", "✓ passed add_cuda 1 of 1",
                  "✗ failed predict_sectors_per_request count again line 3: return 4 0 of 1",
                  "add_grid_stride_cuda Regraded by your instructor: half of it 0.5 of 1",
                  "! the course failed add_vector_cuda The course failed here, not you",
                  "Your other submissions", "first.zip 2026-01-01 11:59:00 UTC 2 of 13"):
        assert words in page, words
    assert 'width="142.5"' in files["feedback/ada.html"], "1.5 of 4 of a bar of 380"


def test_gradescope(graded, write):
    sent = graded("ada", "pf!", add_cuda={"feedback": "well done"},
                  predict_sectors_per_request={"feedback": "count\nagain"})
    said = json.loads(write(sent)[1]["results/ada.json"])
    tests = said.pop("tests")
    assert said == {"score": 1.0, "output": "1 of 12 points", "output_format": "text",
                    "visibility": "visible"}
    text = {"output_format": "text", "visibility": "visible"}
    assert tests[:3] == [
        {"name": "k01_vector_add/add_cuda", "score": 1.0, "max_score": 1.0, "status": "passed",
         "output": "well done", **text},
        {"name": "k01_vector_add/predict_sectors_per_request", "score": 0.0, "max_score": 1.0,
         "status": "failed", "output": "count\nagain", **text},
        {"name": "k01_vector_add/add_grid_stride_cuda", "output":
         "The course failed here, not you: it counts neither for nor against you, and your "
         "instructor is told.", **text}]
    assert len(tests) == 13


def test_the_summary(graded, write):
    known = [m for m in mutants(course.find("k01_vector_add")) if m["exercise"] == "add_cuda"][0]
    wrong = {"message": "element 3", "mistake": known["shows"]}
    lines, files = write(
        graded("ada", "f", add_cuda=wrong), graded("ben", "f", add_cuda=wrong, sandbox="limits"),
        graded("eve", "p!", predict_sectors_per_request={"message": "KeyError: 'x'"}),
        graded("max", "f", add_cuda={"message": "odd\nmore"}, problems=["x.py: not UTF-8"]))
    said = json.loads(files["summary.json"])
    assert said["exercises"]["k01_vector_add/add_cuda"] == {"pass": 1, "fail": 3}
    assert said["exercises"]["k01_vector_add/predict_sectors_per_request"] == {
        "not_attempted": 3, "error": 1}
    first, second = said["mistakes"]["k01_vector_add"]
    assert first["students"] == ["ada", "ben"]
    assert (first["kind"], first["mistake"]) == ("when", known["when"])
    assert second == {"exercise": "add_cuda", "kind": "message", "mistake": "odd",
                      "students": ["max"]}
    assert said["course_errors"] == [{"exercise": "k01_vector_add/predict_sectors_per_request",
                                      "message": "KeyError: 'x'", "students": ["eve"]}]
    assert said["problems"] == [{"student": "max", "submission": "max.zip",
                                 "problems": ["x.py: not UTF-8"]}]
    assert lines == [
        "4 students, mean 0.25 of 13",
        "COURSE ERRORS: 1 answer could not be judged, in "
        "k01_vector_add/predict_sectors_per_request",
        "WEAK SANDBOX: 1 student graded with limits alone; such code could read files and use the "
        "network", "1 submission with problems: see summary.html"]
    page = " ".join(Tags(files["summary.html"]).text.split())
    assert page.index("The course failed") < page.index("Exercise by exercise")
    assert "add_cuda ✓ 1 ✗ 3" in page and "never a penalty" in page


@pytest.mark.parametrize("sentence, mistake", [
    ("only the inputs are counted", "only the inputs are counted"), ("", "3 of 4 wrong")])
def test_a_mistake_with_an_id_is_told_by_its_sentence(sentence, mistake):
    result = Result("r01_roofline", "count_add", "fail", 0, 1, "3 of 4 wrong\nwhen …",
                    mistake="inputs_only", sentence=sentence)
    known = [{"exercise": "count_add", "shows": "inputs_only", "body": "return 0"}]
    assert kind(known, result) == ("message", mistake)
    assert kind([known[0] | {"when": "you forget z"}], result) == ("when", "you forget z")


def test_only_the_lessons_asked_for_are_reported(graded, tmp_path):
    from lab.grading import reports

    lessons = [course.find("k02_transpose")]
    rules = reports.read(lessons, {"ada"})
    reports.write(tmp_path, [graded("ada", "pnnnnp")], rules, lessons=lessons)
    row = (tmp_path / "grades.csv").read_text("utf-8").splitlines()[1]
    assert row == "ada,ada.zip,2026-01-01T12:00:00Z,bubblewrap,1,8,1,0,0,0,0,"


def test_nobody_sent_anything(write):
    lines, files = write()
    assert lines == ["0 students"]
    assert sorted(files) == ["grades.csv", "summary.html", "summary.json", "verdicts.csv"]


def test_the_same_input_gives_the_same_bytes(graded, write):
    sent = [graded("ada", "pf"), graded("ben", "f!"), graded("ada", "p", path="b.zip")]
    assert write(*sent) == write(*reversed(sent))


NAMES = ["ada", "Ada", "ADA", "../../etc/passwd", "..", ".", "", "/", "con", "aux.txt", "a b",
         "a_b", "é", "e\u0301", "日本", "x" * 300, "x" * 301, "-rf", "ada.", "a\x00b", "a\nb",
         "\udcff", file_name("Ada"), file_name(file_name("Ada"))]


def test_file_names_are_safe_and_never_the_same():
    names = [file_name(name) for name in NAMES]
    assert all(re.fullmatch(r"[a-z0-9_][a-z0-9_.-]*", name) and len(name) < 100 for name in names)
    assert len({name.casefold() for name in names}) == len(NAMES)
    assert names[0] == "ada" and "con" not in names and "aux.txt" not in names


def test_odd_students_have_their_pages(graded, write):
    _, files = write(*(graded(name, "p") for name in NAMES))
    assert sum(name.startswith("feedback/") for name in files) == len(NAMES)
    assert len(files) == 4 + 2 * len(NAMES), "nothing is written beside the folder"


def test_text_is_cleaned():
    assert clean("a\r\nb\tc\x07\x1b[0m\u202e\udcff") == "a\nb\tc\ufffd\ufffd[0m\ufffd\ufffd"
    assert clean("x" * 5000, 10) == "x" * 10 + "\n… (4990 more characters)"
