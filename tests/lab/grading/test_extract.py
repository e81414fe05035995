"""Exercises are found by name in whatever was sent, and nothing else of it is graded."""

import json

import pytest

from lab import course, stub
from lab.grading import extract
from lab.grading.model import Sent, Submission
from lab.judge import check

K07, S02 = course.find("k07_softmax"), course.find("s02_block_pool")
MERGE = stub.extract(K07.sources["python"], "merge", "python")
RATIO = stub.extract(K07.sources["python"], "predict_bytes_ratio", "python")
FUSED = stub.extract(K07.sources["cuda"], "softmax_fused_cuda", "cuda")
ONLINE = stub.extract(K07.sources["cuda"], "softmax_online_cuda", "cuda")
WRONG = "def merge(a, b):\n    return a\n"
BROKEN = "def merge(a, b):\n    return = a\n"
PY = "layer1_kernels/k07_softmax.py"


def sent(*files):
    """A submission of {name: text}; a notebook's text is the list of its code cells."""
    kinds = {".py": "python", ".cu": "cuda", ".ipynb": "notebook"}
    return Submission("ada", "ada", None, tuple(
        Sent(name, kinds["." + name.rsplit(".")[-1]], text if isinstance(text, str) else book(text))
        for name, text in files))


def book(cells):
    return json.dumps({"cells": [{"cell_type": "code", "metadata": {}, "source": text}
                                 for text in cells]})


def got(candidate, name, lesson=K07):
    """An exercise of a candidate, normalised; None where it is still the stub."""
    language = lesson.exercise(name).language
    mine = stub.normalised(candidate.sources[language], name, language)
    return mine if mine != stub.normalised(lesson.stubs[language], name, language) else None


def code(text, name, language="python"):
    return stub.normalised(text, name, language)


def filled(*answers, lesson=K07, language="python"):
    """The lesson's stub with answers in it, as on a desk."""
    text = lesson.stubs[language]
    for answer in answers:
        text = stub.splice(text, answer, language).text
    return text


def of(*files, lesson=K07):
    return extract.candidate(lesson, sent(*files))


def noted(notes, *words):
    assert any(all(word in note for word in words) for note in notes), notes


# ---- files


def test_nothing_sent_is_the_stub_and_not_attempted():
    made, notes = of()
    assert made.sources == K07.stubs and not notes
    verdict = check.untouched(K07, made, K07.exercise("merge"))
    assert verdict.verdict == "not_attempted" and "the submission" in verdict.message


def test_the_handed_out_desk_is_not_attempted():
    made, notes = of((PY, K07.stubs["python"]))
    assert made.sources == K07.stubs and not notes
    assert PY in check.untouched(K07, made, K07.exercise("merge")).message


@pytest.mark.parametrize("name", [
    PY, "k07_softmax.py", "byronada_12_34_k07_softmax.py", "byronada_LATE_12_34_k07_softmax-1.py",
    "homework.py", "Ada_12_assignsubmission_file_/k07_softmax.py"])
def test_a_file_by_any_name(name):
    made, notes = of((name, MERGE))
    assert got(made, "merge") == code(MERGE, "merge") and not notes
    assert made.labels["python"] == name


def test_a_file_named_as_another_lesson_is_that_ones():
    made, _ = of(("k01_vector_add.py", MERGE))
    assert got(made, "merge") is None


def test_a_name_of_several_lessons_needs_the_lessons_name():
    made, notes = of(("hw.py", RATIO))
    assert got(made, "predict_bytes_ratio") is None
    noted(notes, "hw.py", "several lessons have", "k07_softmax.py")
    assert got(of(("hw.py", RATIO + "\n\n\n" + MERGE))[0], "predict_bytes_ratio")
    assert got(of(("k07_softmax.py", RATIO))[0], "predict_bytes_ratio")
    named = ['lesson = open_lesson("k07_softmax")', RATIO]
    assert got(of(("hw.ipynb", named))[0], "predict_bytes_ratio")


def test_what_was_sent_again_counts():
    made, notes = of(("k07_softmax.py", WRONG), ("k07_softmax-1.py", MERGE))
    assert got(made, "merge") == code(MERGE, "merge")
    noted(notes, "merge", "k07_softmax.py has another version")


def test_helpers_imports_and_constants_come_along():
    text = ("import cmath\nfrom math import tau as full\nOWN = 3\n\n\n"
            "def own():\n    return OWN\n\n\n")
    made, notes = of((PY, filled(text + MERGE)))
    for piece in ("import cmath", "from math import tau as full", "OWN = 3", "def own()"):
        assert piece in made.sources["python"]
    assert not notes


def test_what_the_lesson_gives_stays_the_lessons():
    text = filled(MERGE).replace("BLOCK = 4096", "BLOCK = 8").replace(
        "def softmax_torch(x):", "def softmax_torch(x, cheat=1):")
    made, notes = of((PY, text))
    assert "BLOCK = 4096" in made.sources["python"] and "cheat" not in made.sources["python"]
    noted(notes, "the course's own", "BLOCK", "softmax_torch")


def test_a_given_launcher_replaced_by_torch_does_not_count():
    cheat = "\n\ndef softmax(x):\n    return torch.softmax(x, -1)\n"
    made, notes = of(("hw.py", MERGE + cheat))
    assert stub.normalised(made.sources["python"], "softmax", "python") == stub.normalised(
        K07.stubs["python"], "softmax", "python")
    noted(notes, "softmax")


def test_an_import_over_a_given_name_loses_only_that_name():
    text = "from math import (inf as BLOCK,\n    pi,\n)\nimport os as np, cmath\nimport math\n\n\n"
    made, notes = of(("hw.py", text + MERGE))
    text = made.sources["python"]
    assert "from math import pi" in text and "import cmath" in text and "BLOCK = 4096" in text
    assert "import os" not in text and "import numpy as np" in text
    noted(notes, "BLOCK", "np")


def test_stray_statements_are_left_out():
    stray = ("\nprint(merge((1, 2), (3, 4)))\nsimulator.RawModule = None\nBOX = {}\nBOX['a'] = 1\n"
             "if __name__ == '__main__':\n    print(1)\nfor i in range(3):\n    pass\n")
    made, notes = of((PY, filled(MERGE) + stray))
    for piece in ("print(", "RawModule = None", "BOX['a']", "__main__", "for i in"):
        assert piece not in made.sources["python"]
    assert "BOX = {}" in made.sources["python"]
    noted(notes, "define nothing", "print(merge")


def test_statements_that_share_a_line_count_as_stray_together():
    made, _ = of((PY, "import cmath; print(cmath)\n" + filled(MERGE)))
    assert "cmath" not in made.sources["python"] and got(made, "merge")


def test_imports_under_a_condition_come_along():
    text = "try:\n    import cupy\nexcept ImportError:\n    cupy = None\n\n\n"
    made, notes = of((PY, filled(text + MERGE)))
    assert "import cupy" in made.sources["python"] and not notes


def test_a_docstring_of_the_module_is_not_worth_a_note():
    made, notes = of((PY, '"""Mine."""\n\n' + MERGE))
    assert "k07 · Softmax" in made.sources["python"] and not notes


def test_a_file_of_an_older_course_works_by_name():
    old = filled(MERGE).replace("def check(", "def check_shapes(").replace("FITS", "MOST")
    made, _ = of((PY, old))
    assert got(made, "merge") == code(MERGE, "merge") and "FITS = 12_000" in made.sources["python"]


def test_lines_are_the_students():
    text = "\n\n\n" + filled(MERGE).replace('"""k07', '"""My k07')
    made, _ = of((PY, text))
    line = stub.find_line(made.sources["python"], "merge", "python")
    assert made.origins["python"][line - 1] == stub.find_line(text, "merge", "python")


def test_lines_stay_where_what_was_left_out_stood():
    text = "print(1)\n'''a\nb\nc'''\nBLOCK = (\n  1)\n" + MERGE
    made, _ = of(("hw.py", text))
    line = stub.find_line(made.sources["python"], "merge", "python")
    assert made.origins["python"][line - 1] == 7


def test_a_line_of_two_files_says_whose_it_is():
    answer, book = "\n" + MERGE, "k07_softmax.ipynb"
    made, _ = of(("a.py", answer), (book, ["x = 1", RATIO]))
    assert made.labels["python"] == f"a.py, {book}"
    text, places = made.sources["python"], made.origins["python"]
    assert places[stub.find_line(text, "merge", "python") - 1] == (
        f"line {stub.find_line(answer, 'merge', 'python')} of a.py")
    assert places[stub.find_line(text, "predict_bytes_ratio", "python") - 1] == (
        f"code cell 2 of {book}, line 1")


# ---- classes


METHOD = stub.extract(S02.sources["python"], "BlockPool.copy_on_write", "python")


def test_a_method_comes_out_of_its_class():
    made, notes = of(("hw.py", METHOD), lesson=S02)
    assert got(made, "BlockPool.copy_on_write", S02) == code(S02.sources["python"],
                                                             "BlockPool.copy_on_write")
    assert got(made, "BlockPool.grow", S02) is None and not notes


def test_a_given_method_stays_the_lessons_and_a_new_one_comes_along():
    given = next(name for name in stub.definitions(S02.stubs["python"], "python")
                 if name.startswith("BlockPool.") and name not in
                 {e.name for e in S02.exercises}).split(".")[1]
    extra = (f"\n    def {given}(self, *anything):\n        return 0\n"
             "\n    def own_helper(self):\n        return 1\n\n    print('hello')\n")
    made, notes = of(("s02_block_pool.py", METHOD.rstrip() + "\n" + extra), lesson=S02)
    text = made.sources["python"]
    assert "own_helper" in text and "anything" not in text and "hello" not in text
    noted(notes, f"BlockPool.{given}")
    noted(notes, "print('hello')")


def test_a_class_under_another_header_gives_its_methods_alone():
    text = "@frozen\nclass BlockPool(\n        dict):\n" + METHOD.split("\n", 1)[1]
    made, notes = of(("hw.py", text), lesson=S02)
    assert got(made, "BlockPool.copy_on_write", S02) and "dict)" not in made.sources["python"]
    noted(notes, "header of BlockPool")


# ---- CUDA


def test_kernels_of_a_file_with_their_helpers():
    own = "#include <cuda_fp16.h>\n#define TWICE(x) (2 * (x))\n__device__ float mine(float a)" \
          "\n{\n    return TWICE(a);\n}\n\n"
    changed = K07.stubs["cuda"].replace("__syncthreads();", "", 1)
    text = own + stub.splice(changed, FUSED, "cuda").text
    made, notes = of(("k07_softmax.cu", text))
    cuda = made.sources["cuda"]
    assert got(made, "softmax_fused_cuda") == code(FUSED, "softmax_fused_cuda", "cuda")
    assert "cuda_fp16" in cuda and "TWICE(a)" in cuda
    assert code(cuda, "block_reduce", "cuda") == code(K07.stubs["cuda"], "block_reduce", "cuda")
    noted(notes, "block_reduce")


def test_a_cuda_function_that_never_ends_costs_no_other():
    made, notes = of(("k07_softmax.cu", FUSED + "\n__device__ float f() {\n"))
    assert got(made, "softmax_fused_cuda") == code(FUSED, "softmax_fused_cuda", "cuda")
    noted(notes, "k07_softmax.cu, line", "never closed")


# ---- what does not parse


def test_a_broken_file_is_kept_and_the_verdict_names_the_line():
    made, _ = of((PY, "x = 1\n" + BROKEN))
    verdict = check.untouched(K07, made, K07.exercise("merge"))
    assert verdict.verdict == "fail" and f"{PY}, line 3" in verdict.message


def test_a_broken_second_file_spoils_nothing():
    made, notes = of((PY, MERGE), ("a/k07_softmax.py", BROKEN), ("hw.py", BROKEN))
    assert got(made, "merge") == code(MERGE, "merge")
    noted(notes, "a/k07_softmax.py, line 2", "cannot be read")


@pytest.mark.parametrize("text", [
    "merge = " + "-" * 50_000 + "1", "merge = a" + ".a" * 50_000,
    "class A(a" + ".a" * 900 + "): pass", "if a: pass\n" + "elif a: pass\n" * 900])
def test_a_text_too_deep_to_be_read_is_a_verdict(text):
    made, _ = of((PY, text + "\ndef merge(): pass\n"))
    verdict = check.untouched(K07, made, K07.exercise("merge"))
    assert verdict.verdict == "fail" and "nested too deeply" in verdict.message


# ---- notebooks


def test_the_last_cell_that_defines_it_counts():
    made, notes = of(("hw.ipynb", [WRONG, "x = 1", MERGE]))
    assert got(made, "merge") == code(MERGE, "merge")
    assert made.labels["python"] == "hw.ipynb, code cell 3"
    noted(notes, "merge", "code cells 1, 3", "last counts")


def test_a_stub_below_the_answer_does_not_undo_it():
    handed = stub.extract(K07.stubs["python"], "merge", "python")
    assert got(of(("hw.ipynb", [MERGE, handed]))[0], "merge")


def test_a_cell_that_only_wraps_an_answer_does_not_replace_it():
    wrapped = "merge = Watched(merge)\nprint(merge.calls)\nmerge = merge.function\n"
    made, notes = of(("hw.ipynb", [MERGE, wrapped]))
    assert got(made, "merge") == code(MERGE, "merge") and not notes
    assert of(("hw.ipynb", [wrapped]))[0].sources == K07.stubs


@pytest.mark.parametrize("text", ["merge = lambda a, b: merge(b, a) if b else a\n",
                                  "merge = cache(lambda a, b: merge(b, a) if b else a)\n",
                                  "if True:\n    def merge(a, b):\n        return merge(b, a)\n"])
def test_an_answer_that_calls_itself_is_one(text):
    assert got(of(("hw.ipynb", [text]))[0], "merge") == code(text, "merge")


def test_cells_in_another_order_and_one_split_in_two():
    cells = ["%%cuda\n" + ONLINE, "def smaller(a, b):\n    return larger(b, a)\n", MERGE, RATIO,
             "import math as m2\n\n\ndef larger(a, b):\n    return m2.inf\n",
             "def merge(a, b):\n    return smaller(a, b)\n", "%%cuda\n" + FUSED,
             "print(merge(1, 2))"]
    made, _ = of(("k07_softmax.ipynb", cells))
    text = made.sources["python"]
    assert all(got(made, e) for e in ("merge", "predict_bytes_ratio", "softmax_fused_cuda",
                                      "softmax_online_cuda"))
    assert "def smaller" in text and "def larger" in text and "import math as m2" in text
    assert "print" not in text and made.labels["python"] == "k07_softmax.ipynb"


def test_only_what_is_needed_of_other_cells_comes_along():
    cells = ["lesson = open_lesson('k07_softmax')", "SCALE = 2", "a = lesson.check('merge')",
             "result = 1", "def merge(a, b):\n    result = SCALE\n    return result, a, b\n"]
    text = of(("hw.ipynb", cells))[0].sources["python"]
    assert "SCALE = 2" in text and "lesson.check" not in text and "result = 1" not in text


def test_a_star_import_comes_along_where_a_name_is_missing():
    cells = ["from cmath import *", "def merge(a, b):\n    return polar(a)\n"]
    assert "from cmath import *" in of(("hw.ipynb", cells))[0].sources["python"]
    assert "from cmath" not in of(("hw.ipynb", [cells[0], MERGE]))[0].sources["python"]


def test_a_cuda_cell_takes_its_helpers_from_another():
    helper = "%%cuda\n__device__ float mine(float a) { return a; }\n"
    cells = [helper, "%%cuda\n" + FUSED.replace("expf(", "mine(")]
    made, _ = of(("hw.ipynb", cells))
    assert "float mine" in made.sources["cuda"] and got(made, "softmax_fused_cuda")
    line = stub.find_line(made.sources["cuda"], "softmax_fused_cuda", "cuda")
    assert made.labels["cuda"] == "hw.ipynb"
    assert made.origins["cuda"][line - 1] == "code cell 2, line 2"      # %%cuda is line 1
    helped = made.sources["cuda"].split("\n").index("__device__ float mine(float a) { return a; }")
    assert made.origins["cuda"][helped] == "code cell 1, line 2"


def test_given_cells_that_were_edited_do_not_count():
    cells = ["BLOCK = 7\nimport torch as np\n", MERGE + "\nFITS = 3\n"]
    made, notes = of(("hw.ipynb", cells))
    assert "BLOCK = 4096" in made.sources["python"] and "FITS = 12_000" in made.sources["python"]
    noted(notes, "FITS")


@pytest.mark.parametrize("magic", ["%timeit merge((1, 2), (3, 4))", "!pip install numpy", "merge??",
                                   "%matplotlib inline", "files = !ls", "?merge"])
def test_magics_in_the_cell_are_left_out(magic):
    made, notes = of(("hw.ipynb", [MERGE + "\n" + magic + "\n"]))
    assert got(made, "merge") == code(MERGE, "merge")
    noted(notes, "code cell 1", magic)


def test_a_block_may_hold_nothing_but_a_magic():
    made, notes = of(("hw.ipynb", ["if True:\n    !ls\n" + MERGE]))
    assert got(made, "merge") == code(MERGE, "merge")
    noted(notes, "code cell 1", "!ls")


def test_a_percent_sign_that_is_python_stays():
    text = "def merge(a, b):\n    c = (a\n% b)\n    return '''\n%d\n!'''\n"
    made, notes = of(("hw.ipynb", [text]))
    assert got(made, "merge") == code(text, "merge") and not notes


def test_a_percent_sign_beside_a_magic_stays_too():
    """The cell is no Python as it stands, so it is for IPython to say which line is its own."""
    lesson = course.find("r01_roofline")
    own = stub.extract(lesson.sources["python"], "count_add", "python")
    odd = own.replace("    moved = 3 * n * itemsize ", "    moved = (\n(3 * n * itemsize + 2**80)\n"
                      "% 2**80\n)")
    assert odd != own
    cells = [stub.extract(lesson.sources["python"], e.name, "python") for e in lesson.exercises]
    cells[cells.index(own)] = "%matplotlib inline\n" + odd
    made, notes = of(("hw.ipynb", cells), lesson=lesson)
    names = [e.name for e in lesson.exercises]
    assert {v.verdict for v in check.grade(lesson, made, names)} == {"pass"}
    assert [note.partition(": ")[2] for note in notes] == ["left out %matplotlib inline"]


def test_a_cell_under_time_defines_and_one_under_bash_does_not():
    assert got(of(("hw.ipynb", ["%%time\n" + MERGE]))[0], "merge")
    assert not got(of(("hw.ipynb", ["%%timeit\n" + MERGE]))[0], "merge")      # it keeps no name
    assert got(of(("hw.ipynb", ["%%bash\n" + MERGE]))[0], "merge") is None


def test_a_broken_cell_spoils_no_other():
    made, notes = of(("hw.ipynb", ["def f(:\n", MERGE, "!ls\nx = = 1\n", BROKEN]))
    assert got(made, "merge") == code(MERGE, "merge")
    noted(notes, "code cell 4, line 2", "cannot be read")


def test_a_cell_that_ends_at_another_depth_spoils_no_other():
    odd = "def other(n):\n        flops = n\n    return flops, 3\n"
    made, _ = of(("k07_softmax.ipynb", [odd + "# merge\n", MERGE]))
    assert got(made, "merge") == code(MERGE, "merge")


def test_a_cell_that_is_all_there_is_and_broken_is_a_verdict_with_its_line():
    made, _ = of(("hw.ipynb", ["x = 1", "\n" + BROKEN]))
    verdict = check.untouched(K07, made, K07.exercise("merge"))
    assert verdict.verdict == "fail" and "hw.ipynb, code cell 2, line 3" in verdict.message


@pytest.mark.parametrize("text", ["", "[", "[" * 100_000, "{}", '{"cells": [3]}'])
def test_what_is_no_notebook_gives_nothing(text):
    assert of(("merge.ipynb", text + '"merge"'))[0].sources == K07.stubs


def test_a_notebook_of_ten_thousand_cells():
    cells = [f"x{n} = {n}\nprint('merge', x{n})\n" for n in range(10_000)]
    cells[5000] = "def merge(a, b):\n    return x17, a, b\n"
    made, _ = of(("hw.ipynb", cells))
    assert got(made, "merge") and "x17 = 17" in made.sources["python"]
    assert "x18" not in made.sources["python"]


@pytest.mark.parametrize("row", [" " * 100_000 + "x\n(", "a," * 50_000 + "\nx("])
def test_a_cell_made_to_cost_minutes_is_read_at_once(row):
    assert got(of(("hw.ipynb", [MERGE, MERGE + row]))[0], "merge") == code(MERGE, "merge")


# ---- the desk's one truth


def test_a_desks_file_counts_and_its_notebook_gives_what_is_still_a_stub():
    made, notes = of((PY, filled(MERGE)), ("layer1_kernels/k07_softmax.ipynb", [WRONG, RATIO]))
    assert got(made, "merge") == code(MERGE, "merge") and got(made, "predict_bytes_ratio")
    noted(notes, "predict_bytes_ratio", "code cell 2", PY)
    noted(notes, "merge", "has another version")
    assert made.labels["python"] == f"{PY}, layer1_kernels/k07_softmax.ipynb"
    place = stub.find_line(made.sources["python"], "predict_bytes_ratio", "python")
    assert made.origins["python"][place - 1] == (
        "code cell 2 of layer1_kernels/k07_softmax.ipynb, line 1")


def test_the_result_is_graded():
    made, _ = of((PY, filled(MERGE)), ("k07_softmax.ipynb", [RATIO]))
    names = ["merge", "predict_bytes_ratio", "softmax_online_cuda"]
    verdicts = {v.name: v.verdict for v in check.grade(K07, made, names)}
    assert [verdicts[name] for name in names] == ["pass", "pass", "not_attempted"]
