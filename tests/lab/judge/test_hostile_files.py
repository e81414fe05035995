"""`lab check k07_softmax --file F` on files that are wrong in the usual ways: each gets a
verdict that says what is wrong and on which line, and the command survives."""

import subprocess
import sys

import pytest

from lab import course, stub
from lab.course import ROOT

LESSON = course.find("k07_softmax")


def whole(language, exercise, find, replacement):
    """The reference with one thing changed in one exercise, as a file, and the changed line."""
    text = LESSON.sources[language]
    own = stub.extract(text, exercise, language)
    assert own.count(find) == 1, f"{find!r} is {own.count(find)} times in {exercise}"
    text = text.replace(own, own.replace(find, replacement))
    place = text.index(replacement.strip() or own.split(find)[0][-40:])
    return text, text[:place].count("\n") + 1


def bare(language, exercise, find, replacement):
    """Only the exercise, as a file, below two lines of comment."""
    own = stub.extract(LESSON.sources[language], exercise, language)
    assert own.count(find) == 1, f"{find!r} is {own.count(find)} times in {exercise}"
    mark = "# mine\n\n" if language == "python" else "// mine\n\n"
    text = mark + own.replace(find, replacement)
    return text, text[:text.index(replacement)].count("\n") + 1


ONLINE_C, ONLINE_T, FUSED = "softmax_online_cuda", "softmax_online_triton", "softmax_fused_cuda"
CASES = {
    # how, language, exercise, find, replacement; words of the message; whether it names the line
    "no maximum": (bare, "cuda", ONLINE_C, "expf(x[c] - row_m)", "expf(x[c])", "maximum", None),
    "no maximum, Triton": (bare, "python", ONLINE_T, "tl.exp(v - m) / s", "tl.exp(v) / s",
                           "maximum", None),
    "no barrier": (whole, "cuda", "block_reduce", "    __syncthreads();                            "
                   "// every warp has written\n", "", "race", None),
    "out of bounds": (bare, "cuda", ONLINE_C, "int c = threadIdx.x; c < C; c += blockDim.x) {",
                      "int c = threadIdx.x; c <= C; c += blockDim.x) {", "out-of-bounds", None),
    "out of bounds, Triton": (bare, "python", ONLINE_T, "v = tl.load(x + c, c < C).to",
                              "v = tl.load(x + c).to", "out-of-bounds", True),
    "endless": (bare, "cuda", ONLINE_C, "c < C; c += blockDim.x) {", "c < C; c += 0) {",
                "endless", None),
    "endless, Python": (bare, "python", "merge", "    m = max(",
                        "    while True: pass\n    m = max(", "endless", True),
    "does not compile": (bare, "cuda", ONLINE_C, "float row_m = ", "float row_m = nothing + ",
                         'identifier "nothing" is undefined', True),
    "does not compile, Triton": (bare, "python", ONLINE_T, "tl.exp(v - m) / s",
                                 "tl.exp(v - nothing) / s", "nothing is not defined", True),
    "does not parse": (bare, "python", "merge", "    m = max(", "    m = = max(",
                       "invalid syntax", True),
    "ends the process": (bare, "python", "merge", "    m = max(", "    os._exit(0)\n    m = max(",
                         "os._exit", True),
}


def check(exercise, path):
    return subprocess.run([sys.executable, "-m", "lab.cli", "check", f"k07_softmax/{exercise}",
                           "--file", str(path)], capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_file_is_told_what_and_where(tmp_path, case):
    how, language, name, find, replacement, words, numbered = CASES[case]
    text, line = how(language, name, find, replacement)
    path = tmp_path / ("mine" + course.SUFFIX[language])
    path.write_text(("import os\n" if "_exit" in replacement else "") + text)
    line += "_exit" in replacement
    done = check(FUSED if name == "block_reduce" else name, path)
    said = done.stdout
    assert done.returncode == 1 and "✗" in said and words in said, said + done.stderr
    assert "Traceback" not in said + done.stderr
    if numbered:
        assert f"line {line}" in said, said
    elif numbered is None:
        assert "line " in said, said


def test_the_whole_answer_imported_is_not_attempted(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("from layer1_kernels.k07_softmax import *\n")
    done = subprocess.run([sys.executable, "-m", "lab.cli", "check", "k07_softmax", "--file",
                           str(path)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 3 and "0 of" in done.stdout and "✓" not in done.stdout


def test_an_answer_that_leans_on_an_import_of_itself_fails(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("import layer1_kernels.k07_softmax as k\n\n\ndef merge(a, b):\n"
                    "    return k.merge(a, b)\n")
    done = check("merge", path)
    assert done.returncode == 1 and "RecursionError" in done.stdout, done.stdout


def test_an_error_at_a_line_that_is_not_there_is_a_fail_all_the_same(tmp_path):
    """The child says where its exception came from; the grader must not trust it."""
    path = tmp_path / "mine.py"
    path.write_text("def merge(a, b):\n"
                    "    exec(compile('\\n' * 5000 + '1 / 0', __file__, 'exec'))\n")
    done = check("merge", path)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stdout, done.stdout + done.stderr
    assert "✗" in done.stdout and "Traceback" not in done.stdout + done.stderr
