"""The course in a live kernel: cells written to the desk, refusals, %%cuda, and bad cells."""

import nbformat
import pytest
from nbclient import NotebookClient

from lab import course, stub
from lab.course import CourseError
from lab.desk import ipynb, notebook
from lab.desk.desk import Desk
from lab.judge import check, forked
from lab.judge.candidate import Candidate
from lab.judge.verdict import Verdict

ADD = "def count_add(n, itemsize):\n    return n, {} * n * itemsize\n"
KERNEL = """%%cuda
extern "C" __global__ void add_cuda(const float* x, const float* y, float* z, int n)
{{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    {}
        z[i] = x[i] + y[i];
}}
"""


class Kernel:
    """Runs one cell after another in a folder and gives back what the cell showed, as text."""

    def __init__(self, folder):
        self.client = NotebookClient(
            nbformat.v4.new_notebook(), timeout=600, kernel_name="python3", allow_errors=True,
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
            resources={"metadata": {"path": str(folder)}})
        self.client.create_kernel_manager()
        self.client.start_new_kernel()
        self.client.start_new_kernel_client()

    def run(self, source):
        cell = nbformat.v4.new_code_cell(source)
        self.client.nb.cells.append(cell)
        self.client.execute_cell(cell, len(self.client.nb.cells) - 1)
        self.html = "".join(o.get("data", {}).get("text/html", "") for o in cell.outputs)
        return "".join(o.get("text", "") or o.get("data", {}).get("text/plain", "")
                       or "\n".join(o.get("traceback", [])) for o in cell.outputs)


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    desk = Desk(tmp_path_factory.mktemp("notebook") / "work")
    desk.prepare()
    for lesson in ("r01_roofline", "k01_vector_add"):
        desk.start(course.find(lesson))
    return desk


@pytest.fixture(scope="module")
def live(desk):
    """A kernel beside the desk's r01 notebook."""
    kernel = Kernel(desk.folder / "day01_roofline")
    kernel.run('from lab import open_lesson\nlesson = open_lesson("r01_roofline")')
    yield kernel
    kernel.client._cleanup_kernel()


@pytest.fixture(scope="module")
def live_cuda(desk):
    kernel = Kernel(desk.folder / "layer1_kernels")
    kernel.run('from lab import open_lesson\nlesson = open_lesson("k01_vector_add")')
    yield kernel
    kernel.client._cleanup_kernel()


def text(desk):
    return desk.path(course.find("r01"), ".py").read_text()


def test_from_a_wrong_answer_to_a_pass(live, desk):
    live.run(ADD.format(2))
    assert "not yet: count_add" in live.run('lesson.check("count_add")')
    assert "only the two inputs" in live.html and "2 * n * itemsize" in text(desk)
    assert "nudge" in live.run('lesson.hint("count_add")')
    live.run(ADD.format(3))
    shown = live.run('lesson.check("count_add")')
    assert "pass: count_add" in shown and "r01_roofline.py" in shown
    assert desk.passed(course.find_exercise("r01/count_add")[1])
    assert "return n, 3 * n * itemsize" in text(desk)
    assert live.run('import lab; lab.mine("count_add")(2, 4)') == "(2, 24)"


def test_an_edited_file_is_refused_and_both_places_named(live, desk):
    live.run(ADD.format(3))
    live.run('lesson.check("count_add")')
    path = desk.path(course.find("r01"), ".py")
    edited = stub.splice(path.read_text(), ADD.format(5), "python").text
    path.write_text(edited)
    shown = live.run('lesson.check("count_add")')
    assert "refused" in shown
    assert "this notebook's cell" in shown and "r01_roofline.py, line" in shown
    assert path.read_text() == edited
    assert "not yet" in live.run('lesson.check("count_add", take="file")')
    assert "pass" in live.run('lesson.check("count_add", take="cell")')
    assert any(p.read_text() == edited for p in (desk.folder / ".kept").iterdir())


def test_a_verdict_that_cannot_be_recorded_is_shown(live):
    live.run(ADD.format(3))
    live.run("from lab.course import CourseError\nfrom lab.desk.desk import Desk\n"
             "def full(*_):\n    raise CourseError('cannot write: no room')\n"
             "record, Desk.record = Desk.record, full")
    shown = live.run('lesson.check("count_add")')
    live.run("Desk.record = record")
    assert "pass: count_add" in shown and "the verdict was not recorded: cannot write" in shown


def test_names_of_other_cells_are_reported(live):
    live.run("def thrice(n):\n    return 3 * n\n")
    live.run("def count_add(n, itemsize):\n    return n, thrice(n) * itemsize\n")
    shown = live.run('lesson.check("count_add")')
    assert "NameError" in shown and "uses thrice from another cell" in shown


def test_helpers_in_the_same_cell_come_along(live, desk):
    live.run("def triple(n):\n    return 3 * n\n\n"
             "def count_add(n, itemsize):\n    return n, triple(n) * itemsize\n")
    assert "pass" in live.run('lesson.check("count_add")')
    assert "def triple(n)" in text(desk)


def test_what_a_cell_no_longer_has_leaves_the_file(live, desk):
    live.run("import os\nos.getpid()\n\ndef one():\n    return 1\n\n" + ADD.format(3))
    live.run('lesson.check("count_add")')
    assert "os.getpid()" in text(desk) and "def one()" in text(desk)
    live.run(ADD.format(3))
    assert "pass" in live.run('lesson.check("count_add")')
    assert "os.getpid()" not in text(desk) and "def one()" not in text(desk)


def test_a_cell_that_ends_the_process_is_a_verdict_and_the_notebook_lives(live):
    live.run("import os\ndef count_add(n, itemsize):\n    os._exit(0)\n")
    assert "os._exit" in live.run('lesson.check("count_add")')
    assert live.run("1 + 1") == "2"


def test_a_prediction_keeps_the_first_guess(live):
    for guess, says in (("2.0", "of a compute-bound kernel"), ("1.0", "Your first guess was 2.0")):
        live.run(f"def predict_gain_of_doubled_peak():\n    return {guess}\n")
        assert says in live.run('lesson.check("predict_gain_of_doubled_peak")')
    assert "first guess" in live.html and "width:40.0%" in live.html and "width:20.0%" in live.html


def test_an_unknown_name_is_one_sentence(live):
    shown = live.run('lesson.check("count_everything")')
    assert "refused" in shown and "has no exercise" in shown and "Traceback" not in shown


@pytest.mark.parametrize("more", ["%timeit count_add(10, 4)", "!echo count_add(10, 4)"])
def test_magics_are_no_part_of_an_answer(live, more):
    live.run("%matplotlib inline\n" + ADD.format(3))
    live.run(more)
    assert "pass" in live.run('lesson.check("count_add", take="cell")')


def test_a_cell_that_ends_at_another_depth_breaks_no_later_check(live):
    live.run("def count_add(n, itemsize):\n        flops = n\n    return flops, 3\n")
    shown = live.run('lesson.check("count_add")')
    assert "refused: line 3 of the cell: unindent" in shown and "Traceback" not in shown
    live.run(ADD.format(3))
    assert "pass: count_add" in live.run('lesson.check("count_add", take="cell")')


def test_a_line_of_python_may_begin_with_a_percent_sign(live, desk):
    live.run("def count_add(n, itemsize):\n    left = (n\n            % 7)\n    return n, "
             "3 * n * itemsize + 0 * left\n%matplotlib inline\n")
    assert "pass" in live.run('lesson.check("count_add", take="cell")')
    assert "% 7)" in text(desk) and "matplotlib" not in text(desk)


def test_a_check_in_the_cell_of_the_answer_is_no_part_of_it(live, desk):
    shown = live.run(ADD.format(3) + '\n\nlesson.check("count_add",\n             take="cell")\n')
    assert "pass: count_add" in shown and "lesson.check" not in text(desk)


@pytest.mark.parametrize("call", ["print(lesson.check('add'))", "lesson.check('add').passed",
                                  "lesson", "lesson.hint('add'), 3"])
def test_a_line_about_the_lesson_is_no_part_of_an_answer(call):
    cell = f"import math\n{call}\ndef add(lesson):\n    print(lesson)\n"
    assert ipynb.language_and_text(cell) == ("python", cell.replace(call, "", 1))


def test_a_cell_that_cannot_be_read_costs_its_own_exercise(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)             # no desk
    monkeypatch.setattr(notebook, "CELLS", [
        ADD.format(3), "def bound(flops, moved, peak, bandwidth)\n    return 1\n"])
    lesson = notebook.NotebookLesson(course.find("r01_roofline"))
    assert "pass: count_add" in repr(lesson.check("count_add"))
    assert "refused: line 1 of the cell: expected ':'" in repr(lesson.check("bound"))


def test_a_warm_process_that_cannot_start_is_told_by_the_first_check(monkeypatch, tmp_path):
    """Not by a traceback of the thread that tried."""
    def full(*args, **more):
        raise CourseError("the disk is full")

    monkeypatch.chdir(tmp_path)             # no desk
    monkeypatch.setattr(notebook, "CELLS", [ADD.format(3)])
    monkeypatch.setattr(forked.servers, "shared", full)
    monkeypatch.setattr(forked, "grade", full)
    lesson = notebook.NotebookLesson(course.find("r01_roofline"))
    lesson.warm()
    assert "refused: the disk is full" in repr(lesson.check("count_add"))


@pytest.mark.parametrize("other", ["%%bash\necho 'def count_add(n, itemsize): return 0, 0'",
                                   "%%writefile {}/x.py\ndef count_add(n, itemsize):\n    pass"])
def test_cells_of_other_magics_are_no_answers(live, tmp_path, other):
    live.run(ADD.format(3))
    live.run(other.format(tmp_path))
    assert "pass: count_add" in live.run('lesson.check("count_add", take="cell")')


def test_take_is_one_of_two_words(live, desk):
    before = text(desk)
    live.run(ADD.format(7))
    shown = live.run('lesson.check("count_add", take="File")')
    assert "refused" in shown and 'take: expected "cell" or "file", found' in shown
    assert text(desk) == before
    live.run(ADD.format(3))


def test_a_cuda_cell_in_a_lesson_without_cuda_is_one_sentence(live):
    shown = live.run("%%cuda\nint x;\n")
    assert "r01_roofline has no CUDA exercises" in shown and "Traceback" not in shown


def test_a_kernel_that_is_not_closed_is_one_sentence(live_cuda):
    open_kernel = KERNEL.format("if (i < n)").rstrip().removesuffix("}")
    shown = live_cuda.run(open_kernel)
    assert "does not compile" in shown and "line 3 of the cell: this { is never closed" in shown
    shown = live_cuda.run('lesson.check("add_cuda")')
    assert "refused" in shown and "line 3 of the cell: this { is never closed" in shown
    assert "Traceback" not in shown


def test_a_compile_error_points_at_the_line_of_the_cell(live_cuda):
    shown = live_cuda.run(KERNEL.format("if (j < n)"))
    assert "does not compile" in shown and 'identifier "j" is undefined' in shown
    assert "line 5 of the cell" in shown and "^" in shown and "if (j < n)" in shown


def test_a_cuda_cell_without_a_kernel_names_its_functions(live_cuda):
    shown = live_cuda.run("%%cuda\n__device__ float half_of(float v) { return v / 2; }\n")
    assert "half_of, for kernels to call" in shown


def test_a_cuda_cell_from_wrong_to_right(live_cuda):
    assert "compiles" in live_cuda.run(KERNEL.format("if (i <= n)"))
    shown = live_cuda.run('lesson.check("add_cuda")')
    assert "not yet" in shown and "out-of-bounds" in shown and "z[i] = x[i] + y[i]" in shown
    live_cuda.run(KERNEL.format("if (i < n)"))
    assert "pass: add_cuda" in live_cuda.run('lesson.check("add_cuda")')


def test_the_learners_own_kernel_runs(live_cuda):
    live_cuda.run(KERNEL.format("if (i < n)"))
    live_cuda.run('lesson.check("add_cuda")')
    shown = live_cuda.run(
        "import numpy as np\nx = np.ones(40, np.float32); z = np.zeros(40, np.float32)\n"
        'lesson.kernel("add_cuda")(2, 32, (x, x, z, 40)); z.sum()')
    assert "80" in shown


def test_a_triton_cell(live_cuda):
    text = "import triton\nimport triton.language as tl\n\n"
    text += stub.extract(course.find("k01").sources["python"], "add_triton", "python")
    live_cuda.run(text.replace("* BLOCK + ", "+ "))
    assert "start one element apart" in live_cuda.run('lesson.check("add_triton")')
    live_cuda.run(text)
    assert "pass" in live_cuda.run('lesson.check("add_triton")')
    shown = live_cuda.run("import torch\nx = torch.ones(40); z = torch.zeros(40)\n"
                          "add_triton[(2,)](x, x, z, 40, BLOCK=32); z.sum().item()")
    assert shown == "80.0"


def test_methods_of_one_class_may_be_in_cells_of_their_own(monkeypatch):
    cells = [f"class A:\n    def {name}(self):\n        return 1\n" for name in ("f", "g", "given")]
    monkeypatch.setattr(notebook, "CELLS", cells)
    for name, cell in zip(("A.f", "A.g", "A.h"), [*cells[:2], None], strict=True):
        found, _ = notebook.executed(course.Exercise(None, name, "python", 1, ()))
        assert found == cell, name


@pytest.mark.parametrize("value", ["None", "10**5000", "'\\ud800'", "float('nan')", "object()"])
@pytest.mark.parametrize("name, head", [("predict_intensity_of_matmul", "()"),
                                        ("count_add", "(n, itemsize)")])
def test_an_odd_answer_is_told_as_anywhere(live, name, head, value):
    """A verdict on the notebook's cell, in the words that `lab grade` has for the same text."""
    lesson = course.find("r01_roofline")
    cell = f"def {name}{head}:\n    return {value}\n"
    said = live.run(cell) + live.run(f'lesson.check("{name}")')
    sources = lesson.sources | {"python": stub.splice(lesson.sources["python"], cell,
                                                      "python").text}
    [verdict] = check.grade(lesson, Candidate(sources, {"python": "x.py"}), [name])
    first = verdict.message.splitlines()[0]
    assert verdict.verdict == "fail" and first in said, (first, said)
    assert "course failed" not in said and "Traceback" not in said


def test_an_answer_that_is_no_number_is_not_compared_with_a_first_guess():
    passed = Verdict("predict_rows", "pass", 1, 1)
    assert passed.value is None
    assert "first guess" not in repr(notebook.Result([passed], "mine", "", 26))
