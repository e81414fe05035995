"""A classroom: submissions as they come, right, wrong, broken and hostile, made for a test."""

import io
import json
import os
import subprocess
import zipfile

from lab import course, stub
from lab.course import ROOT
from lab.judge import mutants

R01, K01 = course.find("r01_roofline"), course.find("k01_vector_add")
WHEN = 1_750_000_000            # of every submission, seconds since the epoch


def right(lesson, language="python"):
    return lesson.sources[language]


def changed(lesson, exercise, find, replacement, language="python"):
    """The reference with one exercise changed."""
    own = stub.extract(lesson.sources[language], exercise, language)
    assert own.count(find) == 1, f"{find!r} is {own.count(find)} times in {exercise}"
    return lesson.sources[language].replace(own, own.replace(find, replacement))


def body(line, exercise="count_add", lesson=R01):
    """The reference with a line before the first `return` of an exercise."""
    own = stub.extract(lesson.sources["python"], exercise, "python")
    first = next(row for row in own.splitlines() if row.lstrip().startswith("return"))
    return changed(lesson, exercise, first, f"    {line}\n{first}")


def mutant(lesson, number):
    """(language, text) of the lesson with a known mistake."""
    wrong = mutants.mutants(lesson)[number]
    language = lesson.exercise(wrong["exercise"]).language
    return mutants.mutate(lesson, wrong).sources[language]


def notebook(*cells, metadata=None):
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": metadata or {}, "cells": [
        {"cell_type": "code", "metadata": {}, "source": text, "outputs": [], "id": f"c{i}",
         "execution_count": None} for i, text in enumerate(cells)]})


def cell(lesson, exercise):
    language = lesson.exercise(exercise).language
    text = stub.extract(lesson.sources[language], exercise, language)
    return "%%cuda\n" + text if language == "cuda" else text


def zipped(**files):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return made.getvalue()


def desk(**texts):
    """{path: text} of a desk. texts: by r01, k01 or cu, the files' short names."""
    places = {"r01": "day01_roofline/r01_roofline.py", "k01": "layer1_kernels/k01_vector_add.py",
              "cu": "layer1_kernels/k01_vector_add.cu"}
    return {places[part]: text for part, text in texts.items()}


def everything():
    return desk(r01=right(R01), k01=right(K01), cu=right(K01, "cuda"))


FORK_BOMB = "import os\n    while True: os.fork()"
# name of the entry -> bytes or text of a file, or {path: …} of a folder
SUBMISSIONS = {
    "right desk": lambda: everything(),
    "right archive.zip": lambda: zipped(**everything()),
    "right notebook": lambda: {"r01_roofline.ipynb": (
        ROOT / "solutions/day01_roofline/r01_roofline.ipynb").read_text()},
    "untouched": lambda: desk(r01=R01.stubs["python"], k01=K01.stubs["python"],
                              cu=K01.stubs["cuda"]),
    "only r01.py": None,        # see `write`: a loose file
    "one mistake": lambda: desk(r01=mutant(R01, 0)),
    "kernel out of bounds": lambda: everything() | desk(cu=mutant(K01, 0)),
    "kernel that does not compile": lambda: everything() | desk(cu=changed(
        K01, "add_cuda", "z[i] = x[i]", "z[i] = nothing[i]", "cuda")),
    "kernel that never ends": lambda: desk(cu=changed(
        K01, "add_grid_stride_cuda", "i += step", "i += 0", "cuda")),
    "wrong kernel in Triton": lambda: everything() | desk(k01=changed(
        K01, "add_triton", "+ tl.load(y", "- tl.load(y")),
    "empty folder": dict,
    "empty.zip": lambda: zipped(),
    "corrupt.zip": lambda: zipped(**everything())[:300],
    "slip.zip": lambda: zipped(**desk(r01=right(R01)), **{
        "../../day01_roofline/r01_roofline.py": mutant(R01, 0), "/etc/cron.d/x.py": "x = 1"}),
    "bomb.zip": lambda: zipped(**desk(r01=right(R01)), **{"bomb.py": b"#" * 300_000_000}),
    "latin": lambda: {"r01_roofline.py": ("# café\n" + right(R01)).encode("latin-1")},
    "utf-16": lambda: {"r01_roofline.py": right(R01).encode("utf-16")},
    "endless": lambda: desk(r01=body("while True: pass")),
    "fork bomb": lambda: desk(r01=body(FORK_BOMB)),
    "os._exit": lambda: desk(r01=body("import os; os._exit(0)")),
    "sys.exit": lambda: desk(r01=body("import sys; sys.exit(0)")),
    "exit at the top": lambda: desk(r01="import os\nos._exit(0)\n" + right(R01)),
    "flood": lambda: desk(r01=body("while True: print('x' * 65536)")),
    "memory": lambda: desk(r01=body("x = [bytearray(1 << 28) for _ in range(1000)]")),
    "raises": lambda: desk(r01=body("raise ValueError('=SUM(A1) <script>alert(1)</script>')")),
    "lies": lambda: desk(r01=body("return type('T', (tuple,), {'__eq__': lambda s, o: True})()")),
    "syntax": lambda: desk(r01=changed(R01, "count_add", "return", "return return")),
    "ten thousand cells": lambda: {"r01_roofline.ipynb": notebook(
        *(f"x{i} = {i}" for i in range(9_993)), *(cell(R01, e.name) for e in R01.exercises))},
    "twice": lambda: {"r01_roofline.ipynb": notebook(
        "def count_add(n, itemsize):\n    return 0, 0", cell(R01, "count_add"))},
    "magics": lambda: {"r01_roofline.ipynb": notebook(
        "!rm -rf /", "%matplotlib inline\n" + cell(R01, "count_add"), "not python at all")},
    "cells of CUDA": lambda: {"k01_vector_add.ipynb": notebook(
        cell(K01, "add_cuda"), cell(K01, "add_triton"))},
    "no notebook": lambda: {"r01_roofline.ipynb": "{'cells': "},
    "deep": lambda: {"a/" * 400 + "r01_roofline.py": right(R01)},
    "launcher replaced": lambda: desk(k01=K01.stubs["python"] + (
        "\n\ndef add(x, y):\n    return x + y\n")),
    "a_LATE_17_18_r01_roofline.py": lambda: right(R01),
    "Ada Lovelace_21_assignsubmission_file_": lambda: {"r01_roofline.py": right(R01)},
    "again.zip": lambda: zipped(**desk(r01=mutant(R01, 0))),
    "again-1.zip": lambda: zipped(**desk(r01=right(R01))),
}


def write(folder, names=None):
    """Make the submissions in a folder."""
    for name in names or SUBMISSIONS:
        if name == "only r01.py":
            put(folder / "only" / "r01.py", right(R01))
            continue
        made = SUBMISSIONS[name]()
        for path, data in made.items() if isinstance(made, dict) else [("", made)]:
            put(folder / name / path if path else folder / name, data)
        (folder / name).mkdir(exist_ok=True) if made == {} else None
    if names is None:
        links(folder)
        repository(folder / "repository")
    for path in sorted(folder.rglob("*"), reverse=True):
        os.utime(path, (WHEN, WHEN), follow_symlinks=False)
    if names is None:
        os.utime(folder / "again-1.zip", (WHEN + 60, WHEN + 60))


def put(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def links(folder):
    """A folder whose answer is a link to another student's."""
    (folder / "thief").mkdir()
    (folder / "thief" / "r01_roofline.py").symlink_to(
        folder / "right desk" / "day01_roofline" / "r01_roofline.py")
    (folder / "linked").symlink_to(folder / "right desk")


def repository(folder):
    put(folder / "day01_roofline/r01_roofline.py", right(R01))
    stamp = f"{WHEN} +0000"
    run = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@x"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "done"]):
        subprocess.run([*run, *words], check=True, capture_output=True,
                       env=os.environ | {"GIT_AUTHOR_DATE": stamp, "GIT_COMMITTER_DATE": stamp})
