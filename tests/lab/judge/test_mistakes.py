"""The id of a mistake travels with the failure, whatever its form."""

import numpy as np
import pytest

from lab import course, stub
from lab.course import CourseError
from lab.judge import compare, forked, mistakes, mutants, plugin
from lab.judge.candidate import Candidate
from lab.judge.isolate import running
from lab.judge.launched import Launched
from lab.judge.mistakes import raises, same_report
from lab.judge.subject import Raised, Stopped
from lab.judge.verdict import Verdict
from lab.judge.work import LIMITS, same_work

R01, K01 = course.find("r01_roofline"), course.find("k01_vector_add")
RACE = '''extern "C" __global__ void racing(float* z)
{
    __shared__ float tile[32];
    tile[threadIdx.x % 16] = threadIdx.x;
    z[threadIdx.x] = tile[31 - threadIdx.x];
}
'''


def told(ask):
    """(id, sentence, message) of the failure that ask() raises."""
    with pytest.raises(Exception) as failure:
        ask()
    return *mistakes.of(failure.value), str(failure.value)


def refused(got, want, **known):
    """The same of an answer that `agree` compares with numbers."""
    return told(lambda: compare.agree(got, np.array(want), 1e-6, "y", mistakes=known))


# ---- forms of failures


def test_a_mistake_of_an_array_has_its_id_and_its_sentence():
    name, sentence, message = refused(
        [2.0, 4.0], [1.0, 2.0], halved=("it is halved", [0.5, 1.0]),
        doubled=("it is doubled", [2.0, 4.0]))
    assert (name, sentence) == ("doubled", "it is doubled")
    assert message.endswith("This is what comes out when it is doubled.")
    assert "doubled" not in message.replace("it is doubled", "")


def test_a_mistake_of_a_single_value_and_of_a_pair():
    assert refused(3, 4, less=("one is missing", 3))[0] == "less"
    assert refused((1, 2), (1, 4), half=("half is counted", (1, 2)))[0] == "half"


@pytest.mark.parametrize("got, name", [
    (None, "not_numbers"), ([[1.0, 2.0]], "shape"), (np.array([1.0, 2.0005]), "digits"),
    (np.array([9.0, 2.0]), "")])
def test_what_no_list_names(got, name):
    assert refused(got, [1.0, 2.0])[:2] == (name, told(
        lambda: compare.agree(got, np.array([1.0, 2.0]), 1e-6, "y"))[2] * (
            name in ("not_numbers", "shape")))


def test_what_nobody_wrote_has_an_id():
    assert told(lambda: compare.agree(np.array([1.0, 7.0]), np.array([1.0, 2.0]), 0, "y",
                                      unwritten=7))[0] == "unwritten"


def test_two_ids_of_one_array_with_one_sentence_are_a_mistake_of_the_course():
    with pytest.raises(ValueError, match="two mistakes have one sentence: it is lost"):
        compare.agree([1.0], [1.0], 0, "y", mistakes={"a": ("it is lost", [2.0]),
                                                      "b": ("it is lost", [3.0])})


def test_each_mistake_of_an_array_has_an_id_and_a_sentence():
    with pytest.raises(TypeError):
        compare.agree([2.0], [1.0], 0, "y", mistakes={"it is doubled": 2.0})
    assert refused([2.0], [1.0], doubled=("it is doubled", (2.0,)))[0] == "doubled"


def test_a_plain_assertion_has_an_id():
    """Graders run with --assert=plain; here pytest would rewrite the assertion."""
    code = "assert not 3, mistake('keeps_pages', '3 pages are still held')"
    text = "3 pages are still held"
    assert told(lambda: exec(code, vars(mistakes))) == ("keeps_pages", text, text)


def test_each_count_has_an_id_and_a_meaning_of_its_own():
    _, names, meanings = zip(*LIMITS.values(), strict=True)
    assert len(set(names)) == len(set(meanings)) == len(LIMITS)


def test_a_count_has_an_id():
    with running(K01, K01.sources) as subject:
        x, z = np.ones(64, np.float32), np.zeros(64, np.float32)
        launch = subject.launch("add_cuda", 2, 32, (x, x, z, 64))
    twice = Launched([*launch.launches] * 2)
    assert told(lambda: same_work("add_cuda", twice, launch))[0] == "launches"
    totals = launch.launches[0]["totals"]
    loads = {count: n // 2 for count, n in totals["memory"]["global load"].items()}
    half = launch.launches[0] | {"totals": totals | {"memory": {"global load": loads}}}
    name, sentence, _ = told(lambda: same_work("add_cuda", launch, Launched([half])))
    assert (name, sentence) == LIMITS["bytes loaded"][1:]


@pytest.fixture(scope="module")
def racing():
    """racing(): launches a kernel whose threads write one place."""
    with running(K01, K01.sources | {"cuda": RACE}) as subject:
        yield lambda: subject.launch("racing", 1, 32, (np.zeros(32, np.float32),))


def test_a_report_has_its_kind_as_an_id(racing):
    assert told(racing)[0] == "race"


@pytest.mark.parametrize("report, name", [
    ({"kind": "race"}, "one_barrier"), ({"kind": "race", "array": "tile"}, "one_barrier"),
    ({"kind": "race", "array": "til"}, "race"), ({"kind": "barrier"}, "race"),
    ({"kind": "race", "words": "in the same instruction"}, "one_barrier"),
    ({"kind": "race", "words": "__syncwarp()"}, "race")])
def test_a_report_that_a_grader_names(racing, report, name):
    def ask():
        with same_report("one_barrier", "a barrier is missing", **report):
            racing()

    assert told(ask)[:2] == (name, "a barrier is missing" * (name == "one_barrier"))


def test_an_exception_has_its_class_as_an_id_or_the_name_that_a_grader_gives():
    def ask(exception):
        with raises("empty_row", exception, "a row may be empty"), raises("other", KeyError):
            raise Raised({"type": "ZeroDivisionError", "text": "division by zero"})

    assert told(lambda: ask(ValueError))[:2] == ("ZeroDivisionError", "")
    assert told(lambda: ask(ZeroDivisionError))[:2] == ("empty_row", "a row may be empty")


def test_the_innermost_name_counts():
    def ask():
        with raises("outer", KeyError), raises("inner", KeyError):
            raise Raised({"type": "KeyError", "text": "k"})

    assert told(ask)[0] == "inner"


def test_what_stops_a_process_and_what_an_exception_brings_itself():
    class Waiting(Exception):
        mistake = "deadlock"

    assert mistakes.of(Stopped("hung", "no answer"))[0] == "hung"
    assert mistakes.of(Waiting("ranks wait for each other")) == ("deadlock", "")
    assert mistakes.of(KeyError("x")) == ("", "")


# ---- in a verdict, by a process of its own: this one's pytest rewrites assertions


def graded(lesson, exercise, find, replacement):
    language = lesson.exercise(exercise).language
    own = stub.extract(lesson.sources[language], exercise, language)
    assert own.count(find) == 1
    text = stub.splice(lesson.sources[language], own.replace(find, replacement), language).text
    sources = lesson.sources | {language: text}
    return forked.grade(lesson, Candidate(sources, dict.fromkeys(sources, "mine")), [exercise])[0]


@pytest.mark.parametrize("find, replacement, name", [
    ("3 * n * itemsize", "2 * n * itemsize", "inputs_only"),
    ("flops = n", "flops = m", "NameError"), ("return flops, moved", "return 0", "no_pair")])
def test_a_verdict_has_the_id_and_its_message_does_not(find, replacement, name):
    verdict = graded(R01, "count_add", find, replacement)
    assert (verdict.verdict, verdict.mistake) == ("fail", name)
    assert name == "NameError" or name not in verdict.message


def test_a_sentence_for_an_exception_is_told():
    run = plugin.GradedRun(R01, Candidate(R01.sources, dict.fromkeys(R01.sources, "mine")),
                    {"count_add": R01.exercise("count_add")}, None)
    error = Raised({"type": "ZeroDivisionError", "text": "division by zero"})
    error.mistake = "empty_row"
    error.sentence = "a row may be empty"
    item = type("Item", (), {"originalname": "test_count_add", "name": "t", "funcargs": {}})()
    run.note(item, error, None)
    verdict = run.verdict("count_add")
    assert (verdict.mistake, verdict.sentence) == ("empty_row", "a row may be empty")
    assert verdict.message == ("count_add: ZeroDivisionError: division by zero\n"
                               "a row may be empty")


# ---- rows of mutants


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """rows(text): the mutants and twins of r01 where its file of mutants is this text."""
    monkeypatch.setattr(course.Lesson, "mutants", tmp_path / "r01_roofline.mutants.toml")

    def write(text):
        R01.mutants.write_text(text)
        return mutants.mutants(R01)
    return write


ROW = '[[mutant]]\nexercise = "count_add"\n'


@pytest.mark.parametrize("text, says", [
    (ROW + 'body = "return 0"', "a row of count_add has nothing, expected one of shows"),
    (ROW + 'shows = "a"', "a row of count_add has nothing, expected one of body, text, find"),
    (ROW + 'shows = "a"\nbody = "return 0"\nfind = "n"\nreplace = "m"',
     "a row of count_add has body and find, expected one")])
def test_a_row_has_one_change_and_one_name(rows, text, says):
    with pytest.raises(CourseError, match=says):
        for row in rows(text):
            mutants.mutate(R01, row)


def test_guesses_are_mutants_and_a_twin(rows):
    made = rows('[[guesses]]\nexercise = "predict_gain_of_doubled_peak"\nright = "1.01"\n'
                'wrong = {"2" = "doubled", "memory" = "a_word", "(1, None)" = "a_pair"}')
    assert [(row["body"], row["shows"]) for row in made] == [
        ("return 2", "doubled"), ("return 'memory'", "a_word"), ("return (1, None)", "a_pair")]
    assert "return 2\n" in mutants.mutate(R01, made[0]).sources["python"]
    *_, twin = mutants.twins(R01)
    assert (twin["exercise"], twin["body"]) == ("predict_gain_of_doubled_peak", "return 1.01")


@pytest.mark.parametrize("lesson, exercise, body", [
    (R01, "count_add", "\n    flops = 0\n    if n:\n        flops = 1\n    return flops, n\n"),
    (K01, "add_cuda", "int i = 0;\nif (i < n) {\n    z[i] = 1;\n}"),
    (course.find("s02_block_pool"), "BlockPool.grow", "return None")])
def test_a_body_stands_for_all_below_the_comment(lesson, exercise, body):
    language = lesson.exercise(exercise).language
    text = mutants.mutate(lesson, {"exercise": exercise, "body": body}).sources[language]
    above, mark, below = stub.extract(text, exercise, language).partition("exercise:")
    own = stub.extract(lesson.sources[language], exercise, language).partition("exercise:")
    assert (above, mark) == own[:2] and "exercise:" not in below
    lines = [line.strip() for line in body.strip().splitlines()]
    assert [line.strip() for line in below.strip().splitlines()][1:] == \
        lines + ["}"] * (language == "cuda")


def test_a_failure_fits_a_mutant_by_its_id():
    failure = Verdict("count_add", "fail", 0, 1, "it is lost", mistake="a")
    assert mutants.fits({"exercise": "count_add", "shows": "a"}, "count_add", failure)
    assert not mutants.fits({"exercise": "count_add", "shows": "b"}, "count_add", failure)
    assert not mutants.fits({"exercise": "bound", "shows": "a"}, "count_add", failure)
