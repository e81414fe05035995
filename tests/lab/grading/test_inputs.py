"""What an instructor hands to the reports: points of their own, and the class list."""

from fractions import Fraction

import pytest

from lab import course
from lab.course import CourseError
from lab.grading.points import shown, worths

K01, K07 = course.find("k01_vector_add"), course.find("k07_softmax")


def test_without_a_file_the_course_says_the_points():
    assert {name: worth for (_, name), worth in worths([K07]).items()} == {
        "predict_bytes_ratio": 1, "softmax_fused_cuda": 1, "merge": 1, "softmax_online_cuda": 2,
        "softmax_online_cuda.speed": 2, "softmax_online_triton": 2,
        "softmax_online_triton.speed": 2}


def test_a_lessons_worth_is_shared_among_its_exercises(text_file):
    path = text_file("grading.toml", '[points]\n"k07_softmax" = 10\n"k07_softmax/merge" = 2.5\n'
                     '"k07_softmax/softmax_online_triton.speed" = 0\n')
    found = {name: worth for (_, name), worth in worths([K07], path).items()}
    assert found == {"predict_bytes_ratio": Fraction(5, 4), "softmax_fused_cuda": Fraction(5, 4),
                     "merge": Fraction(5, 2), "softmax_online_cuda": Fraction(5, 2),
                     "softmax_online_cuda.speed": Fraction(5, 2),
                     "softmax_online_triton": Fraction(5, 2), "softmax_online_triton.speed": 0}
    assert worths([K01], path) == worths([K01]), "points of lessons that are not graded are ignored"


@pytest.mark.parametrize("text, said", [
    ('[points]\n"k99" = 1', "[points] 'k99': expected LESSON or LESSON/EXERCISE, found no lesson "
                            "'k99'"),
    ('[points]\n"k07_softmax/merged" = 1', "'k07_softmax/merged': expected one of "
                                           "predict_bytes_ratio, "),
    ('[points]\n"k07_softmax" = -1', "'k07_softmax': expected a number from 0 up, found -1"),
    ('[points]\n"k07_softmax" = "ten"', "expected a number from 0 up, found 'ten'"),
    ('[points]\n"k07_softmax" = true', "expected a number from 0 up, found True"),
    ('[points]\n"k07_softmax" = inf', "expected a number from 0 up, found Decimal('Infinity')"),
    ('[points]\n"k07_softmax" = 1\n"k07_softmax/merge" = 2', "'k07_softmax' is 1, but its "
                                                             "exercises alone have 2"),
    ("points = 3", "expected the table [points] alone, found 'points'"),
    ("[late]\nday = 1", "expected the table [points] alone, found 'late'"),
    ("[points", "expected a TOML file with a table [points], found: "),
])
def test_wrong_points_are_refused(text_file, text, said):
    path = text_file("grading.toml", text + "\n")
    with pytest.raises(CourseError) as caught:
        worths([K07], path)
    assert str(path) in str(caught.value) and said in str(caught.value)


@pytest.mark.parametrize("points, text", [
    (None, ""), (Fraction(0), "0"), (Fraction(10), "10"), (Fraction(5, 2), "2.5"),
    (Fraction(10, 7), "1.43"), (Fraction(1, 200), "0.01"), (Fraction(100), "100")])
def test_points_are_shown_in_hundredths(points, text):
    assert shown(points) == text


CANVAS = """\
Student,ID,SIS User ID,SIS Login ID,Section,k01_vector_add: first kernels (77),Final Score
,,,,,Manual Posting,
    Points Possible,,,,,10,(read only)
"Doe, Ada",1,u1,ada,A,,
"Roe, Ben Lee",2,u2,ben,A,,
"Poe, Eve",3,u3,eve,B,,
"Zoe, Max",4,u4,max,B,,
"""


def test_a_canvas_gradebook_is_filled(graded, write, text_file):
    roster = text_file("roster.csv", CANVAS)
    sent = [graded("ADA", "pp"), graded("roebenlee", "nnnnnpp"), graded("3", "p"), graded("zed")]
    lines, files = write(*sent, roster=roster)
    assert files["canvas.csv"] == """\
Student,ID,SIS User ID,SIS Login ID,Section,k01_vector_add: first kernels (77),k02_transpose
,,,,,,
    Points Possible,,,,,5,8
"Doe, Ada",1,u1,ada,A,2,0
"Roe, Ben Lee",2,u2,ben,A,0,3
"Poe, Eve",3,u3,eve,B,1,0
"Zoe, Max",4,u4,max,B,,
"""
    assert [line.split(",")[0] for line in files["grades.csv"].splitlines()[1:]] == [
        "3", "ADA", "max", "roebenlee", "zed"]
    assert "not on the roster: zed" in lines
    assert "without a submission: max" in lines
    assert ("k01_vector_add: first kernels (77) is out of 10 in Canvas, of 5 here: set "
            "grading.toml, or Canvas") in lines


def test_an_ambiguous_name_is_reported_and_not_guessed(graded, write, text_file):
    roster = text_file("roster.csv", 'Student,ID,SIS Login ID,Section\n"Doe, Jane",1,jd1,A\n'
                       '"Doe, Jane",2,jd2,A\n"Roe, Ben",3,ben,A\n')
    lines, files = write(graded("doejane", "p"), graded("ben", "p"), graded("Ben Roe", "pp"),
                         roster=roster)
    assert "doejane could be jd1 or jd2 on the roster: matched with no student" in lines
    assert "Ben Roe and ben could each be ben on the roster: matched with no student" \
        in lines
    assert [row[-2:] for row in files["canvas.csv"].splitlines()[1:]] == [",,"] * 3
    assert not any("without a submission" in line for line in lines)


def test_a_plain_roster_lists_who_sent_nothing(graded, write, text_file):
    roster = text_file("roster.csv", "student,group\nada,1\nben,1\n")
    lines, files = write(graded("ada", "p"), roster=roster)
    assert "canvas.csv" not in files
    assert files["grades.csv"].splitlines()[2] == "ben" + "," * 18
    assert "without a submission: ben" in lines


@pytest.mark.parametrize("text, said", [
    ("", "line 1: expected a gradebook exported from Canvas"),
    ("name;id\nada;1\n", "line 1: expected a gradebook exported from Canvas (columns Student, ID, "
                         "SIS Login ID, Section, …) or a CSV file with a column student, found the "
                         "columns name;id"),
    ("student\nada\nada\n", "line 3: expected each student once, found 'ada' in line 2 already"),
    ("student,group\nada\n", "line 2: expected 2 cells as in the first line, found 1"),
    ("student,group\n,1\n", "line 2: expected a student, found an empty cell"),
    ('student\n"ada\n', "expected a gradebook"),
    ("Student,ID,Section,k01_vector_add (1),k01_vector_add (2)\n",
     "line 1: expected one column for k01_vector_add, found k01_vector_add (1) and "
     "k01_vector_add (2)"),
])
def test_a_wrong_roster_is_refused(graded, write, text_file, tmp_path, text, said):
    roster = text_file("roster.csv", text)
    with pytest.raises(CourseError) as caught:
        write(graded("ada"), roster=roster)
    assert str(roster) in str(caught.value) and said in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_roster_in_another_encoding_is_refused(graded, write, tmp_path):
    roster = tmp_path / "roster.csv"
    roster.write_bytes("student\nJosé\n".encode("latin-1"))
    with pytest.raises(CourseError, match="in UTF-8, found: "):
        write(graded("ada"), roster=roster)
