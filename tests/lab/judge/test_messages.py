"""What a learner reads when an answer is wrong: short, true, and at the learner's own line."""

import numpy as np
import pytest

from lab import course, stub
from lab.judge import check, compare
from lab.judge.candidate import Candidate


def message(name, body):
    """What is said of a stub whose `raise` is replaced by these lines, or its last comment."""
    lesson, exercise = course.find_exercise(name)
    language = exercise.language
    text = stub.extract(lesson.stubs[language], exercise.name, language)
    left = {"python": "    raise NotImplementedError", "cuda": f"    // {name}: about"}[language]
    text = text[:text.index(left)] + body
    sources = lesson.stubs | {language: stub.splice(lesson.stubs[language], text, language).text}
    verdict, = check.grade_warm(lesson, Candidate(sources, dict.fromkeys(sources, "mine")),
                                [exercise.name])
    assert verdict.verdict == "fail", verdict
    return verdict.message


def test_what_nobody_wrote_is_not_told_as_a_number_that_was_computed():
    with pytest.raises(AssertionError, match="got 7 \\(it held that before: nobody wrote it"):
        compare.agree(np.array([1.0, 7.0]), np.array([1.0, 2.0]), 0, "y", unwritten=7)
    with pytest.raises(AssertionError, match="got 3, expected 2"):
        compare.agree(np.array([1.0, 3.0]), np.array([1.0, 2.0]), 0, "y", unwritten=7)


def test_a_mistake_that_gives_the_right_answer_explains_nothing():
    """With a single row, say, "only the first row" is right. The very array of right answers stands
    for a loss of digits."""
    want, got = np.array([1.0, 2.0]), np.array([1.0, 2.0005])
    for mistake, told in ((want.copy(), False), (want, True)):
        with pytest.raises(AssertionError) as wrong:
            compare.agree(got, want, 1e-6, "y", mistakes={"one cancels": mistake})
        assert ("when one cancels" in str(wrong.value)) == told


def test_none_makes_one_think_of_return():
    assert "Is a `return` missing?" in message("column_wavefronts", "    print(pitch)\n")


@pytest.mark.parametrize("body, says, line", [
    ("    p = p @ p\n    return p, p\n", "tl.dot multiplies tiles", "p = p @ p"),
    ("    import math\n    return p, p\n", "unsupported AST node type: Import", "import math"),
    ("    return p\n", "several values are wanted", "row, column = grouped_triton(")])
def test_triton_names_the_line_of_the_function_that_is_called(body, says, line):
    said = message("grouped_triton", body)
    assert says in said and said.splitlines()[-1].split(": ", 1)[1].startswith(line)
    assert len(said.splitlines()) == 2          # the reason and the place, no listing


@pytest.mark.parametrize("statement, says, line", [
    ("tile[warp][lane] = x[m0]\n    __syncthreads();", 'expected a ";"', "__syncthreads();"),
    ("tile[warp][column] = x[m0];", 'identifier "column" is undefined', "tile[warp][column]")])
def test_cuda_names_the_learners_line_in_the_compilers_words(statement, says, line):
    name = "transpose_tile_cuda"
    first, listing, *rest = message(name, f"    {statement}\n}}\n").splitlines()
    stub_lines = course.find_exercise(name)[0].stubs["cuda"].splitlines()
    at = next(n for n, text in enumerate(stub_lines, 1) if f"// {name}: about" in text)
    at += statement[:statement.index(line)].count("\n")
    assert first == f"{name}: mine, line {at}: error: {says}"
    assert listing.strip().startswith(line) and rest[0].strip() == "^"
    assert len(rest) < 3                        # at most one sentence more, on what to look for


@pytest.mark.parametrize("scores, says, line", [
    ("tl.dot(queries, tl.trans(keys)) + m[None, :]", "incompatible dimensions", "scores = tl.dot("),
    ("tl.dot(queries, tl.trans(keys.to(tl.float32)))", "must be same dtype", "scores = tl.dot(")])
def test_triton_says_which_shapes_or_types_do_not_meet(scores, says, line):
    first, place = message("attend_triton", f"    scores = {scores}\n    return m, s, mixed\n"
                           ).splitlines()
    assert first.startswith("attend_triton: CompilationError: ") and says in first
    assert place.startswith("    mine, line ") and place.split(": ", 1)[1].startswith(line)
