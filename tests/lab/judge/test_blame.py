"""Whose fault an exception in a test is: a zero stands unless the course's own raises it too."""

import contextlib
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab import course, stub
from lab.course import SUFFIX, Lesson
from lab.judge import blame, check
from lab.judge.candidate import Candidate
from lab.judge.conversation import Call
from lab.judge.isolate import Place
from lab.judge.subject import Subject

K01, R01 = course.find("k01_vector_add"), course.find("r01_roofline")


def candidate(lesson, **sources):
    sources = lesson.sources | sources
    return Candidate(sources, {language: lesson.id + SUFFIX[language] for language in sources})


def kernel(line, above=""):
    """The verdict on k01's add_cuda with one more line."""
    own = stub.extract(K01.sources["cuda"], "add_cuda", "cuda")
    head, mark, rest = own.partition("// exercise:")
    text = stub.splice(K01.sources["cuda"], above + head + line + "\n" + mark + rest, "cuda").text
    return check.grade(K01, candidate(K01, cuda=text), ["add_cuda"])[0]


def answer(lesson, name, value):
    """The verdict on an exercise that returns `value`."""
    signature = stub.extract(lesson.stubs["python"], name, "python").split(":\n")[0]
    text = stub.splice(lesson.sources["python"], f"{signature}:\n    return {value}\n",
                       "python").text
    return check.grade(lesson, candidate(lesson, python=text), [name])[0]


def test_an_instruction_that_the_simulator_lacks_fails_where_the_courses_own_needs_none():
    verdict = kernel('unsigned v; asm volatile("mov.u32 %0, %%pm0;" : "=r"(v));')
    assert (verdict.verdict, verdict.points) == ("fail", 0), verdict
    assert verdict.message.startswith(
        "it uses `mov.u32 %r2, %pm0`, which the simulator does not have; the course's own answer "
        "needs no such instruction: write it without"), verdict
    assert "k01_vector_add.cu, line " in verdict.message


def test_a_global_that_no_machine_holds_fails():
    verdict = kernel("if (n < 0) z[0] = big[n];", "__device__ char big[1ull << 46];\n")
    assert (verdict.verdict, verdict.points) == ("fail", 0), verdict
    assert "the simulator cannot run it, though it runs the course's own answer" in verdict.message


@pytest.mark.parametrize("value, words", [
    ("10**400", "integer of 401 digits|0{400}"), ("10**5000", "an integer of 5,001 digits"),
    ("-10**5000", "an integer of 5,001 digits"), ("float('nan')", "nan"),
    ("float('inf')", "inf"), ("__import__('decimal').Decimal('1e999')", "an object"),
    ("__import__('fractions').Fraction(10**400, 3)", "an object"),
    ("__import__('numpy').float16(7)", "7"), ("[10**5000]", "an integer of 5,001 digits")])
@pytest.mark.parametrize("lesson, name", [(R01, "predict_intensity_of_matmul"),
                                          (K01, "predict_sectors_per_request"),
                                          (R01, "count_add")])
def test_a_number_that_no_test_can_work_with_fails_and_is_named(lesson, name, value, words):
    verdict = answer(lesson, name, value)
    assert (verdict.verdict, verdict.points) == ("fail", 0), verdict
    assert re.search(words, verdict.message), verdict.message


def test_a_numpy_integer_is_as_good_a_prediction_as_an_integer():
    right = check.grade(K01, candidate(K01), ["predict_sectors_per_request"])[0]
    value = f"__import__('numpy').int64({right.value})"
    verdict = answer(K01, "predict_sectors_per_request", value)
    assert verdict.verdict == "pass" and type(verdict.value) is int, verdict


# ---- tests of its own

@dataclass(frozen=True)
class Graded(Lesson):
    """A lesson with another test file."""

    file: Path = None

    @property
    def test(self):
        return self.file


@pytest.fixture
def graded(tmp_path):
    """graded(body of a test of count_add, value that it returns) -> its verdict."""
    def verdict(body, value="None", place=None, answered=True):
        (tmp_path / "conftest.py").write_text("anybody may have written this\n")    # as in /tmp
        file = tmp_path / "tests" / "floor" / "test_of_count_add.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            "from lab.judge.plugin import NotProvenHere\n"
            "from lab.judge.fixtures import reference_fixture, rng, subject\n\n\n"
            "def test_count_add(subject, reference, rng):\n" + textwrap.indent(body, "    "))
        lesson = Graded(R01.id, R01.floor, answered, file)
        signature = stub.extract(lesson.stubs["python"], "count_add", "python").split(":\n")[0]
        text = stub.splice(lesson.sources["python"], f"{signature}:\n    return {value}\n",
                           "python").text
        return check.grade(lesson, candidate(lesson, python=text), ["count_add"], place)[0]

    return verdict


def test_the_message_has_what_came_and_what_the_courses_own_returned_to_the_same_call(graded):
    verdict = graded("flops, bytes = subject.count_add(1000, 2)\n")
    assert (verdict.verdict, verdict.points) == ("fail", 0), verdict.message
    assert verdict.message == "count_add(1000, 2) returned None, expected (1000, 6000)"


def test_the_call_that_went_wrong_is_found_among_others(graded):
    verdict = graded("subject.attainable(1.0, 1.0, 1.0)\n"
                     "first = subject.count_add(1, 2)\n"
                     "second = subject.count_add(1000, 2)\n"
                     "subject.attainable(2.0, 1.0, 1.0)\n"
                     "first[1] + second[1] + 0\n", "(1, 'a') if n > 1 else (n, 3 * n * itemsize)")
    assert verdict.message == "count_add(1000, 2) returned (1, 'a'), expected (1000, 6000)"


def test_an_attribute_that_a_returned_object_lacks(graded):
    verdict = graded("subject.count_add(1000, 2).count(1)\n", "object()")
    assert verdict.message == ("count_add(1000, 2) returned an object of type object, expected "
                               "(1000, 6000)")


def test_an_edition_has_no_answer_to_ask_and_still_tells_what_came(graded):
    """The course's own passed its tests when the edition was made."""
    verdict = graded("flops, bytes = subject.count_add(1000, 2)\n", answered=False)
    assert (verdict.verdict, verdict.points) == ("fail", 0)
    assert verdict.message == "count_add(1000, 2) returned None"


def test_what_fails_with_the_courses_own_answer_too_is_the_courses(graded):
    verdict = graded("subject.count_add(1000, 2)\nint('a')\n")
    assert (verdict.verdict, verdict.points) == ("error", None)
    assert "the course failed, not you: ValueError" in verdict.message


def test_a_test_that_this_machine_cannot_run_is_not_proven(graded):
    verdict = graded("subject.count_add(1000, 2)\nraise NotProvenHere('needs a GPU')\n")
    assert (verdict.verdict, verdict.points, verdict.message) == (
        "not_proven_here", None, "needs a GPU")


def test_what_the_reference_raises_is_not_told_as_the_learners_line(graded):
    verdict = graded("reference.attainable(subject.count_add(1000, 2)[0], 1, 1)\n", "([1],)")
    assert (verdict.verdict, verdict.points) == ("fail", 0)
    assert verdict.message.startswith("count_add(1000, 2) returned ([1],), expected (1000, 6000)")


HANDED_OVER = {
    "by its place": "subject.count_add(watched, 2)",
    "by its name": "subject.count_add(n=watched, itemsize=2)",
    "as a field": "subject.count_add(subject.make('types:SimpleNamespace', n=watched), 2)",
    "as a field that is set": "subject.make('builtins:setattr', box := subject.make("
                              "'types:SimpleNamespace'), 'n', watched)\nsubject.count_add(box, 2)",
    "in a dict": "subject.count_add({'n': watched}, 2)"}


@pytest.mark.parametrize("how", HANDED_OVER)
def test_what_a_test_hands_over_is_named_as_the_learners_code_names_it(graded, how):
    """Not by the class of the mock, of which no lesson speaks."""
    body = (f"watched = subject.make('lab.judge.mocks:Watched', None, 3)\n{HANDED_OVER[how]}\n"
            "assert watched.calls[0][0] + 1\n")
    value = "(n['n'] if type(n) is dict else getattr(n, 'n', n))(None)"
    verdict = graded(body, value, answered=False)
    assert verdict.verdict == "fail", verdict
    assert verdict.message == "n.calls returned [[None]]", verdict


def test_a_stand_in_that_no_parameter_names_has_no_name_of_a_class(graded):
    verdict = graded("watched = subject.make('lab.judge.mocks:Watched', None, 3)\n"
                     "subject.count_add([watched], 2)\nint(watched.calls[0] + 1)\n",
                     "n[0](None)", answered=False)
    assert "Watched" not in verdict.message
    assert "calls of what the test hands over" in verdict.message


@pytest.mark.parametrize("value", ["None", "10**400", "object()"])
def test_a_prediction_is_not_given_away(value):
    """It may be retried: an odd answer must not reveal the right one."""
    right = check.grade(K01, candidate(K01), ["predict_sectors_per_request"])[0].value
    calls = (Call("predict_it", "", "None", "nothing"),)
    own = (Call("predict_it", "", "77", "a whole number"),)
    doubt = blame.Doubt("predict_it", "test", 0, TypeError("no"), calls)
    assert blame.told(doubt, "", own) == "predict_it() returned None, expected a whole number"
    said = answer(K01, "predict_sectors_per_request", value).message
    assert f"expected {right}" not in said


class NoProcess(Place):
    """Nothing starts here."""

    @contextlib.contextmanager
    def subject(self, lesson, candidate, test, reference):
        def start():
            raise OSError("cannot fork")

        yield Subject(start, reference)


def test_a_machine_that_starts_no_process_is_no_answers_fault(graded):
    verdict = graded("subject.count_add(1000, 2)\n", place=NoProcess())
    assert (verdict.verdict, verdict.points) == ("error", None)
    assert "NotStarted: cannot fork" in verdict.message
