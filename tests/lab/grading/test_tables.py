"""The instructor's tables, to the letter."""

import pytest

from lab.course import CourseError

NOON = 1_767_268_800.0                      # 2026-01-01T12:00:00Z

GRADES = """\
student,submission,when,sandbox,total,out_of,k01_vector_add/add_cuda,\
k01_vector_add/predict_sectors_per_request,k01_vector_add/add_grid_stride_cuda,\
k01_vector_add/add_vector_cuda,k01_vector_add/add_vector_cuda.speed,k01_vector_add/add_triton,\
k01_vector_add/add_triton.speed,k02_transpose/predict_sectors_per_store,\
k02_transpose/transpose_tile_cuda,k02_transpose/column_wavefronts,\
k02_transpose/transpose_swizzled_cuda,k02_transpose/transpose_vector_cuda,\
k02_transpose/transpose_vector_cuda.speed
ada,ada.zip,2026-01-01T12:00:00Z,bubblewrap,6,11,1,1,1,1,,0,,0,2,0,,0,
ben,ben.zip,,limits,0,13,0,0,0,0,,0,,0,0,0,0,0,
"""


def test_grades(graded, write):
    _, files = write(graded("ben", "f", when=None, sandbox="limits"),
                     graded("ada", "ppppnnpn!"))
    assert files["grades.csv"] == GRADES


@pytest.mark.parametrize("older, newer", [
    ("ada.zip", "ada-1.zip"), ("ada-2.zip", "ada-10.zip"), ("ada-1", "ada-1.tar.gz")])
def test_of_one_time_what_was_sent_again_last_counts(graded, write, older, newer):
    _, files = write(graded("ada", "p", path=newer), graded("ada", "f", path=older))
    assert files["grades.csv"].splitlines()[1].startswith(f"ada,{newer},")


def test_verdicts_have_the_message_in_one_line_and_the_regrade(graded, write, text_file):
    overrides = text_file("overrides.csv", "student,lesson,exercise,points,reason\n"
                          "ada,k01_vector_add,add_cuda,0.5,\"right, but late\"\n")
    sent = graded("ada", "f", add_cuda={"message": "row 3:\n  wrong"})
    _, files = write(sent, overrides=overrides)
    lines = files["verdicts.csv"].splitlines()
    assert lines[:3] == [
        "student,lesson,exercise,verdict,points,max_points,message,regraded",
        'ada,k01_vector_add,add_cuda,fail,0.5,1,row 3: wrong,"right, but late"',
        "ada,k01_vector_add,predict_sectors_per_request,not_attempted,0,1,,"]
    assert files["grades.csv"].splitlines()[1].startswith(
        "ada,ada.zip,2026-01-01T12:00:00Z,bubblewrap,0.5,13,0.5,0,")


def test_a_regrade_decides_what_the_course_could_not(graded, write, text_file):
    overrides = text_file("overrides.csv", "student,lesson,exercise,points,reason\n"
                          "ada,k01_vector_add,add_cuda,1,seen by hand\n")
    _, before = write(graded("ada", "!"))
    _, after = write(graded("ada", "!"), overrides=overrides)
    assert ",0,12,,0," in before["grades.csv"]
    assert ",1,13,1,0," in after["grades.csv"]


@pytest.mark.parametrize("row, said", [
    ("bob,k01_vector_add,add_cuda,1,why", "line 2: expected a student with a submission, found "
                                          "'bob'"),
    ("ada,k09,add_cuda,1,why", "line 2: expected a lesson that is graded here, found 'k09'"),
    ("ada,k01_vector_add,add,1,why", "line 2: expected an exercise of k01_vector_add (add_cuda, "),
    ("ada,k01_vector_add,add_cuda,1.5,why", "line 2: expected points from 0 to 1, found '1.5'"),
    ("ada,k01_vector_add,add_cuda,-1,why", "expected points from 0 to 1, found '-1'"),
    ("ada,k01_vector_add,add_cuda,nan,why", "expected points from 0 to 1, found 'nan'"),
    ("ada,k01_vector_add,add_cuda,1,", "line 2: expected a reason"),
    ("ada,k01_vector_add,add_cuda,1", "line 2: expected 5 cells"),
    ("ada,k01_vector_add,add_cuda,1,a\nada,k01_vector_add,add_cuda,0,b", "is in line 2 already"),
])
def test_a_wrong_regrade_is_refused_before_anything_is_written(
        tmp_path, row, said, graded, write, text_file):
    overrides = text_file("overrides.csv",
                          f"student,lesson,exercise,points,reason\n{row}\n")
    with pytest.raises(CourseError) as caught:
        write(graded("ada"), overrides=overrides)
    assert str(overrides) in str(caught.value) and said in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_latest_counts_unless_the_best_is_asked_for(graded, write):
    sent = [graded("ada", "pp", path="a.zip", when=NOON),
            graded("ada", "p", path="b.zip", when=NOON + 60),
            graded("ada", "ppp", path="c.zip", when=None)]
    assert "\nada,b.zip," in write(*sent)[1]["grades.csv"]
    assert "\nada,c.zip," in write(*sent, best=True)[1]["grades.csv"]
    tied = [graded("ada", "p", path="a.zip"), graded("ada", "p", path="b.zip")]
    assert "\nada,b.zip," in write(*tied, best=True)[1]["grades.csv"]
    assert "\nada,b.zip," in write(*tied)[1]["grades.csv"]


def test_a_spreadsheet_computes_nothing(graded, write):
    evil = '=HYPERLINK("http://x","y")'
    sent = graded(evil, "f", path="+a.zip", add_cuda={"message": "@SUM(1)"})
    _, files = write(sent)
    grades = files["grades.csv"].splitlines()[1]
    assert grades.startswith('"\'=HYPERLINK(""http://x"",""y"")",\'+a.zip,')
    assert ",fail,0,1,'@SUM(1)," in files["verdicts.csv"]
    _, files = write(graded("\tada"), graded("\rben"), graded("-eve"))
    assert [line[:4] for line in files["grades.csv"].split("\n")[1:4]] == ["'\tad", "\ufffdben",
                                                                          "'-ev"]
