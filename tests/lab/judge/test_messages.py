"""What a learner reads when an answer is wrong: short, true, and at the learner's own line."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from lab import course, stub
from lab.judge import compare, forked
from lab.judge.candidate import Candidate
from lab.judge.failures import Raised
from lab.judge.messages import Messages


def message(name, body):
    """The message about a stub whose `raise` or last comment is replaced by these lines."""
    lesson, exercise = course.find_exercise(name)
    language = exercise.language
    text = stub.extract(lesson.stubs[language], exercise.name, language)
    left = {"python": "    raise NotImplementedError", "cuda": f"    // {name}: about"}[language]
    text = text[:text.index(left)] + body
    sources = lesson.stubs | {language: stub.splice(lesson.stubs[language], text, language).text}
    verdict, *_ = forked.grade(lesson, Candidate(sources, dict.fromkeys(sources, "mine")),
                                 [exercise.name])
    assert verdict.verdict == "fail", verdict
    return verdict.message


def test_what_a_process_says_of_an_exception_is_bounded():
    """Its words are kept for every exercise, in memory and in an instructor's journal."""
    words = "x" * 10**7
    error = Raised(dict.fromkeys(("type", "text", "kind", "path", "line", "source"), words))
    assert sum(len(str(value)) for value in vars(error).values()) < 10_000
    assert Raised({"path": "k01.py", "line": 3}).line == 3 and Raised({}).path is None


def test_what_nobody_wrote_is_not_told_as_a_number_that_was_computed():
    with pytest.raises(AssertionError, match="got 7 \\(it held that before: nothing was written"):
        compare.agree(np.array([1.0, 7.0]), np.array([1.0, 2.0]), 0, "y", unwritten=7)
    with pytest.raises(AssertionError, match="got 3, expected 2"):
        compare.agree(np.array([1.0, 3.0]), np.array([1.0, 2.0]), 0, "y", unwritten=7)


@pytest.mark.parametrize("got, want", [
    (np.array([1 + 5j, 2]), np.array([1.0, 2.0])),
    (np.array([2 ** 63 + 1], np.uint64), np.array([2 ** 63], np.uint64)),
    (np.array([1_000_001]), np.array([1_000_000], np.uint32))])
def test_numbers_that_only_look_alike(got, want):
    """An imaginary part counts, and whole numbers are equal or not."""
    with pytest.raises(AssertionError, match="expected"):
        compare.agree(got, want, 1e-5, "y")


def test_a_mistake_that_gives_the_right_answer_explains_nothing():
    """With a single row, say, "only the first row" is right.
    The very array of right answers stands for a loss of digits."""
    want, got = np.array([1.0, 2.0]), np.array([1.0, 2.0005])
    for mistake, told in ((want.copy(), False), (want, True)):
        with pytest.raises(AssertionError) as wrong:
            compare.agree(got, want, 1e-6, "y", mistakes={"cancels": ("one cancels", mistake)})
        assert ("when one cancels" in str(wrong.value)) == told


def test_what_given_code_raises_is_told_at_the_line_of_the_exercise_that_called_it():
    said = message("generate", "    tokens = forward(model, 3, Cache(model, 9), ops)\n"
                               "    return tokens\n").splitlines()
    assert said[0].startswith("generate: TypeError: object of type 'int' has no len()")
    first, second = said[-2:]
    assert first.split(": ", 1)[1] == "tokens = forward(model, 3, Cache(model, 9), ops)"
    assert second.startswith("    which calls mine, line ")
    assert second.endswith(": positions = cache.next(len(tokens))")
    assert "which calls" not in message("generate", "    return prompt[len(prompt)]\n")


def test_a_long_text_of_an_exception_names_an_object_without_its_fields():
    said = message("end_request", "    engine.scheduler.finish(request, reason)\n"
                                  "    raise ValueError(f'{request!r} is there')\n")
    assert said.startswith("end_request: ValueError: an object of type Request is there\n")
    assert "KeyError: 'short'" in message("page_hash", "    raise KeyError('short')\n")


def test_a_stub_left_below_an_answer_is_no_other_exercise():
    left = '    raise NotImplementedError("page_hash: about 2 lines")\n'
    told = message("page_hash", "    x = 1\n" + left)
    assert told.startswith("page_hash: its line `raise NotImplementedError` still stands")


@pytest.mark.parametrize("line, says", [
    ("ctypes.string_at(0)", "the process crashed: Segmentation fault"),
    ("os.write(2, b'MemoryError: full'); os._exit(1)", "the process crashed: MemoryError: full"),
    ("os._exit(3)", "the process ended without an answer: it ended itself with exit status 3"),
    ("os.kill(os.getpid(), 9)", "the process ended without an answer: SIGKILL ended it")])
def test_a_process_that_ends_is_told_at_its_line(line, says):
    told = message("page_hash", f"    import ctypes, os\n    {line}\n").splitlines()
    assert told[0].startswith(f"page_hash: {says}") and told[-1].endswith(f": {line}")
    assert told[1].startswith("  in page_hash(")


@pytest.mark.parametrize("before", [
    "class Run:\n    def abort(self): pass\n", "def abort(n): pass\n", "run.abort()\n",
    "run.kill(3)\n"])
@pytest.mark.parametrize("line", ["os.abort()", "_exit(1)", "    os.kill(0, 9)"])
def test_a_killed_process_is_not_blamed_on_a_method_of_that_name(before, line):
    lesson = course.find("r01_roofline")
    words = Messages(lesson, Candidate({"python": before + line}, {"python": "mine"}), {})
    stopped = SimpleNamespace(stack=[], why="died")
    assert words.last_place(stopped).endswith(f": {line.strip()}")


def test_of_two_definitions_the_one_that_counts_is_named():
    lesson = course.find("r01_roofline")
    text = "def count_add(n):\n    return 1\n\n\n@wraps\ndef count_add(n):\n    return 2\n"
    exercises = {"count_add": lesson.exercise("count_add")}
    words = Messages(lesson, Candidate({"python": text}, {"python": "mine"}), exercises)
    assert words.definition("count_add") == "\n    mine, line 6: def count_add(n):"


def test_none_makes_one_think_of_return():
    assert "Is a `return` missing?" in message("column_wavefronts", "    print(pitch)\n")
    assert "Is a `return`" not in message("column_wavefronts",
                                          "    return None if pitch == 32 else pitch\n")


def test_none_that_was_meant_is_no_missing_return():
    """None is an answer of largest_group: that no group will do."""
    lesson, exercise = course.find_exercise("largest_group")
    own = stub.extract(lesson.sources["python"], exercise.name, "python")
    wrong = own.replace("return group", "return None if group == 1024 else group")
    assert wrong != own
    text = stub.splice(lesson.sources["python"], wrong, "python").text
    sources = lesson.sources | {"python": text}
    verdict, *_ = forked.grade(lesson, Candidate(sources, dict.fromkeys(sources, "mine")),
                               [exercise.name])
    assert "got no group, expected 1024" in verdict.message, verdict
    assert "Is a `return`" not in verdict.message


@pytest.mark.parametrize("body, says, line", [
    ("    p = p @ p\n    return p, p\n", "tl.dot multiplies tiles", "p = p @ p"),
    ("    import math\n    return p, p\n", "unsupported AST node type: Import", "import math"),
    ("    return p\n", "several values are wanted", "row, column = grouped_triton(")])
def test_triton_names_the_line_of_the_function_that_is_called(body, says, line):
    said = message("grouped_triton", body)
    assert says in said and said.splitlines()[-1].split(": ", 1)[1].startswith(line)
    assert len(said.splitlines()) == 2          # the reason and the place, no listing


@pytest.mark.parametrize("body, says", [
    ("    i = tl.arange(0, BLOCK)\n    z[i] = x[i] + y[i]\n", "a pointer is not an array: tl.load"),
    ("    i = tl.arange(0, BLOCK)\n    z[i] = 1.0\n", "tl.store(z + i, values, mask) writes"),
    ("    i = tl.arange(0, BLOCK)\n    for j in i:\n        tl.store(z + j, 0.0)\n",
     "a `for` counts over range(…)"),
    ("    for j in tl.arange(0, BLOCK):\n        tl.store(z + j, 0.0)\n",
     "a `for` counts over range(…)"),
    ("    i = tl.arange(0, BLOCK)\n    if i < n:\n        tl.store(z + i, 0.0)\n", "use a mask"),
    ("    i = tl.arange(0, BLOCK)\n    tl.store(z + i, x + i)\n", "an address is not a value"),
    ("    i = np.arange(0, BLOCK)\n    tl.store(z + i, 0.0)\n", "such as tl.arange"),
    ("    return tl.load(x + tl.arange(0, BLOCK))\n", "does the kernel return a value?")])
def test_what_triton_says_of_blocks_and_pointers_is_translated(body, says):
    text = message("add_triton", body)
    assert says in text
    assert "_semantic" not in text and "'func'" not in text and "ambiguous" not in text


@pytest.mark.parametrize("line", ["tl.load(a + tl.arange(0, 16))", "tl.load(a)", "a[0]",
                                  "tl.store(c, 0.0)"])
def test_what_triton_says_of_descriptors_is_translated(line):
    text = message("matmul_flat_triton", f"    x = {line}\n    c.store([0, 0], x)\n")
    assert "a descriptor is not an address: d.load([row, column]) reads" in text
    assert "has no attribute" not in text and text.endswith(f": x = {line}")


def test_a_name_that_an_object_lacks_is_answered_by_those_it_has():
    text = message("last_scores", "    return model.ops.matmul(x[rows], model.haed)\n")
    assert "no attribute 'haed'" in text
    assert "; it has " in text and " head," in text and "__" not in text


def test_a_name_that_a_graders_table_lacks_is_answered_by_those_it_has():
    text = message("attend_contiguous", "    return ops.attention(q, keys, values)\n")
    assert "has no attribute 'attention'; it has flash_attention" in text


def test_a_name_that_a_class_of_the_course_lacks_is_answered_by_those_it_has():
    text = message("last_scores", "    return type(model).haed\n")
    assert "no attribute 'haed'; it has " in text and " head" in text and "__" not in text


def test_an_object_that_does_not_tell_its_names_is_no_fault_of_the_courses():
    text = message("last_scores", "    class Shy:\n        def __dir__(self):\n"
                                  "            raise ValueError\n    return Shy().haed\n")
    assert "no attribute 'haed'" in text and "it has" not in text


def test_an_exception_names_the_arguments_of_the_call():
    text = message("merge", "    return a[7]\n")
    assert "IndexError: tuple index out of range\n  in merge((" in text


@pytest.mark.parametrize("word, name", [
    ("make_room", "Bridge.make_room"), ("Bridge.make_room", "Bridge.make_room")])
def test_a_method_is_found_by_its_own_name(word, name):
    assert course.find_exercise(word)[1].name == name


@pytest.mark.parametrize("word, says", [
    ("make_rom", "did you mean s08_server/Bridge.make_room?"),
    ("softmax_onlin_cuda", "k07_softmax/softmax_online_cuda"),
    ("zzz", "no lesson 'zzz'; there are r01_roofline")])
def test_a_name_that_is_not_there_is_answered_by_near_ones(word, says):
    with pytest.raises(course.CourseError, match=re.escape(says)):
        course.find_exercise(word)


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
    ("tl.dot(queries.T, keys.T)", "tl.dot multiplies (M, K) by (K, N): turn a tile with .T",
     "scores = tl.dot("),
    ("tl.dot(queries, tl.trans(keys.to(tl.float32)))", "must be same dtype", "scores = tl.dot(")])
def test_triton_says_which_shapes_or_types_do_not_meet(scores, says, line):
    first, place = message("attend_triton", f"    scores = {scores}\n    return m, s, mixed\n"
                           ).splitlines()
    assert first.startswith("attend_triton: CompilationError: ") and says in first
    assert place.startswith("    mine, line ") and place.split(": ", 1)[1].startswith(line)
