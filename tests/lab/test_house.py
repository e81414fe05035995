"""Rules of the house that a machine can hold."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from itertools import pairwise

import pytest

from lab import course
from lab.author import house
from lab.author.house import PARTICIPLES, variables
from lab.course import ROOT

FLOORS = ["lab", *(floor.name for floor in course.floors())]
FILES = [p for floor in FLOORS for p in sorted((ROOT / floor).rglob("*.py"))]


def imports(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module


# The rooms of a floor, lowest first. A file that stands in no room is in the floor's own, "".
ROOMS = {
    "lab": ["words", "setup", "colab", "stub", "simulator", "course", "device", "remote", "judge",
            "desk", "terminal", "plots", "measure", "elsewhere", "author", "grading", "doctor",
            "cli"],
    "day01_roofline": ["", "bench"],
    "layer1_kernels": ["", "bench"],
    "layer2_graph": ["config_entries", "experts", "mixers", "config", "checkpoint", "models",
                     "drawing", "launches", "passes", "", "testing", "cpu", "decode_ladder",
                     "compilers", "twins", "bench"],
    "layer3_system": ["", "testing", "server", "bench"],
}


def module(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path):
    """The course's modules that a file imports, wherever in it."""
    modules = {module(p) for p in FILES}
    for node in house.executed(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & modules
        elif isinstance(node, ast.ImportFrom):
            package = ".".join(module(path).split(".")[:-node.level]) if node.level else ""
            source = ".".join(filter(None, (package, node.module)))
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                if inner in modules or source in modules:
                    yield inner if inner in modules else source


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path):
    """From a floor to those below it, and within one from a room to those below it."""
    floor, *inner = module(path).split(".")
    for name in imported(path):
        other, *there = name.split(".")
        assert FLOORS.index(other) <= FLOORS.index(floor), \
            f"{path.relative_to(ROOT)} imports {name}, which is above it"
        if inner and there and other == floor and floor in ROOMS:
            rooms = ROOMS[floor]
            own, its = (room(rooms, names) for names in (inner, there))
            assert rooms.index(its) <= rooms.index(own), \
                f"{path.relative_to(ROOT)} imports {name}, from a room above its own"


def room(rooms, names):
    return names[0] if names[0] in rooms else ""


# Modules of a room `testing` that graders alone use: graphs and models to judge with, no answers.
MADE_BY_GRADERS = {f"layer2_graph.testing.{name}" for name in ("graphs", "layer_traffic",
                                                                "programs")}


@cache
def bound(path):
    """The names that a module's text binds, wherever in it."""
    names = {"__doc__"}
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


@pytest.mark.parametrize("folder", sorted(p for p in (ROOT / "tests").iterdir() if p.is_dir()),
                         ids=lambda path: path.name)
def test_what_tests_import_is_there(folder):
    """Also in files that only the full proof runs."""
    absent = []
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
                continue
            place = ROOT.joinpath(*node.module.split("."))
            if node.module.partition(".")[0] not in (*FLOORS, "tests"):
                continue
            file = next((f for f in (place / "__init__.py", place.with_suffix(".py"))
                         if f.exists()), None)
            names = bound(file) if file else set()
            absent += [f"{path.name}: {node.module}.{alias.name}" for alias in node.names
                       if alias.name not in names and "__getattr__" not in names
                       and not (place / alias.name).is_dir()
                       and not (place / f"{alias.name}.py").exists()]
    assert not absent, absent


def test_what_graders_compare_with_is_no_room_of_a_floor():
    """An answer could import it there.
    A room `testing` has what runs beside an answer, which graders name in a string as
    `module:function`, or in a lesson."""
    texts = {path: path.read_text("utf-8") for floor in FLOORS
             for path in (*(ROOT / floor).rglob("*.py"), *(ROOT / floor).glob("*.md"))}
    texts |= {path: re.sub(r"(?m)^from .*", "", path.read_text("utf-8"))
              for floor in FLOORS[1:] for path in (ROOT / "tests" / floor).rglob("*.py")}
    given = {module(path): path for path in FILES if path.match("testing/[!_]*.py")}
    unused = {name for name, own in given.items()
              if not any(name in text for path, text in texts.items() if path != own)}
    assert unused == MADE_BY_GRADERS


def test_no_import_circle():
    """A package itself is left out: it imports its modules, and they ask for it while they run."""
    graph = {module(p): {name for name in imported(p) if "." in name} - {module(p)}
             for p in FILES if p.name != "__init__.py"}
    list(TopologicalSorter(graph).static_order())       # CycleError names the circle


def test_parts_of_the_engine_know_no_later_lesson():
    """They stand below s07, whose Engine uses them."""
    for path in (ROOT / "layer3_system" / "engine").glob("*.py"):
        for name in imported(path):
            lesson = re.fullmatch(r"layer3_system\.(s\d\d)_\w+", name)
            assert name != "layer3_system" and (lesson is None or lesson[1] <= "s06"), \
                f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_variables_are_nouns(path):
    """A participle says that something was got, and not what it is."""
    names = [(line, name) for line, name in variables(ast.parse(path.read_text("utf-8")))
             if name in PARTICIPLES]
    assert not names, f"{path.relative_to(ROOT)}: {names}"


def test_a_constant_says_what_it_bounds():
    """No constant is `MOST`, `FEW` or the like: most of what?"""
    vague = {"MOST", "FEW", "ENOUGH", "LONGEST", "WHOLE", "NEAR", "ALONE"}
    for path in FILES:
        names = {name for _, name in variables(ast.parse(path.read_text("utf-8")))}
        assert not names & vague, f"{path.relative_to(ROOT)}: {names & vague}"


def test_a_line_is_a_statement():
    """At most 5 tuple assignments for each 1,000 lines, in every room."""
    dense = house.density({str(p.relative_to(ROOT)): p.read_text("utf-8") for p in FILES})
    assert {room: number for room, number in dense.items() if number > 5} == {}


def is_a_truth(node):
    """Whether a node is a comparison, a `not`, or a call of bool, any, all or isinstance."""
    return isinstance(node, ast.Compare) or (
        isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)) or (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        and node.func.id in ("bool", "any", "all", "isinstance"))


def is_a_sequence(node):
    """Whether a node is a text, a list or a tuple, written out or as a comprehension."""
    return isinstance(node, (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple)) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str))


def counts_a_truth(node):
    """Whether a node adds or subtracts a truth, or repeats a text or a list by one."""
    parts = ([node.left, node.right] if isinstance(node, ast.BinOp) else
             [node.value] if isinstance(node, ast.AugAssign) else [])
    return any(map(is_a_truth, parts)) and (
        isinstance(node.op, (ast.Add, ast.Sub))
        or isinstance(node.op, ast.Mult) and any(map(is_a_sequence, parts)))


def test_no_arithmetic_on_truths():
    """Nothing is added to a comparison or taken from it, and it multiplies no text and no list.
    Masks of arrays multiply, and combine by & and |."""
    wrong = [f"{path.relative_to(ROOT)}, line {node.lineno}" for path in FILES
             for node in ast.walk(ast.parse(path.read_text("utf-8"))) if counts_a_truth(node)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("line, wrong", [
    ("n += x > 1", True), ("n - (not x)", True), ("'s' * (n != 1)", True), ("bool(n) * [1]", True),
    ("f'{n}, ' * any(x)", True), ("(n, 1) * (n > 1)", True), ("[i for i in x] * (n > 1)", True),
    ("w * (x > 0)", False), ("[0] * n", False), ("'s' if n > 1 else ''", False)])
def test_arithmetic_on_truths_is_seen(line, wrong):
    assert any(map(counts_a_truth, ast.walk(ast.parse(line)))) == wrong


def test_the_house_is_counted():
    """A hand-made house: two files in a circle, a participle, one tuple assignment in four lines
    outside kernels."""
    files = {"lab/a.py": "from lab import b\nfound, n = b.x, 1\n",
             "README.md": "# One\n\n`two` three",
             "lab/b.py": "import lab.a\nx = 1\n", "tests/c.py": "x, y = 1, 2\n",
             "layer1_kernels/k.py": "@triton.jit\ndef kernel(x):\n    a, b = x, x\n"}
    assert house.numbers(files) == {
        "files": 3, "lines": 7, "longest file, lines": 3, "files of more than 400 lines": 0,
        "modules in a circle of imports": 2, "tuple assignments for each 1,000 lines": 142.9,
        "functions of more than 25 lines": 0, "variables named with a participle": 1,
        "words of README.md": 3}


def test_an_import_for_types_alone_closes_no_circle():
    files = {"lab/a.py": "from lab import b\n"}
    assert house.in_a_circle(files | {"lab/b.py": "import lab.a\n"})
    assert not house.in_a_circle(files | {"lab/b.py": "if TYPE_CHECKING:\n    import lab.a\n"})


# Product files of more than 400 lines, each with its reason.
LONG = {
    "lab/simulator/ptx.py": "one grammar",
    "layer1_kernels/k14_paged_attention.py": "a lesson: into pages, out of them, attention on them",
    "layer2_graph/g07_weight_quantization.py": "a lesson: formats, packing, scales, GPTQ",
    "layer2_graph/g06_cuda_graphs.py": "a lesson: its exercises, and the runner that uses them all",
    "layer2_graph/__init__.py": "generated: the names that its lessons make public",
    "layer3_system/__init__.py": "generated, likewise",
}


def test_no_file_is_long_without_a_reason():
    long = {str(p.relative_to(ROOT)) for p in FILES
            if len(p.read_text("utf-8").splitlines()) > 400}
    assert long == LONG.keys()


def test_a_file_of_tests_has_600_lines_at_most():
    lengths = {str(p.relative_to(ROOT)): len(p.read_text("utf-8").splitlines())
               for p in (ROOT / "tests").rglob("*.py")}
    assert not {name: count for name, count in lengths.items() if count > 600}


# Functions of more than 25 lines. In rooms of one kind their number, which may only shrink:
LONG_IN_ROOMS = {
    r"/pictures(/|\.py)": 34,           # a picture: what is drawn, in the order of drawing
    r"/bench/": 21,                     # a ladder is one table, a rung a row; a bench, its cases
}
# Elsewhere their names, by the reason that they have for it.
LONG_FUNCTIONS = {
    "a kernel, in one piece as the compiler wants it": {
        "layer1_kernels/k14_paged_attention.py: paged_triton",
        "layer1_kernels/k15_quantized_matmul.py: quantized_tiled_triton",
        "layer1_kernels/sampling.py: sample_triton"},
    "what a kernel is launched with, checked thing by thing": {
        "lab/simulator/hopper.py: specialise",
        "layer1_kernels/k13_flash_attention.py: check",
        "layer1_kernels/k19_fp8_matmul.py: scaled_matmul_fp8",
        "layer1_kernels/k20_grouped_gemm.py: check"},
    "a list of rules, a statement each": {
        "layer3_system/planner.py: plan_faults", "layer3_system/s07_engine.py: check_engine",
        "layer2_graph/decode_ladder/report.py: text"},
    "a table: what is there, a row each": {
        "day02_overview/profiles.py: model", "layer2_graph/decode_ladder/ladder.py: ladder"},
    "a command: from its words to its end, or a run that is measured, step by step": {
        "day01_roofline/compare.py: measure_side_by_side",
        "lab/desk/jupyter.py: serve", "lab/grading/grade.py: grade",
        "lab/grading/class_speed.py: measure", "layer2_graph/generate.py: generate",
        "layer2_graph/decode_ladder/comparison.py: measure",
        "layer3_system/testing/recovery_driver.py: saves",
        "layer3_system/testing/tensor_driver.py: serve"},
    "a training loop, its settings above it": {
        "day02_overview/laws/train.py: train", "layer2_graph/small/train.py: train",
        "layer2_graph/twins/train.py: train"},
    "a forward pass, as its formulas stand in the lesson": {
        "day02_overview/nano/train.py: forward", "layer2_graph/cpu/llama.py: decode"},
    "a picture, in a file that has other things as well": {
        "lab/plots.py: roofline", "layer2_graph/drawing.py: draw"},
    "a reader of text: one pass, one state": {
        "lab/stub/cuda.py: _declarations", "lab/stub/cuda.py: read", "lab/stub/python.py: _units",
        "lab/simulator/ptx.py: _Parser.read", "layer3_system/automaton.py: Nodes.read_repeat"},
    "a branch for each form of an instruction, a register or an argument": {
        *(f"lab/simulator/instructions/{name}" for name in (
            "atomic.py: atom", "compare.py: setp", "control.py: call",
            "floating.py: float_arithmetic", "matrix.py: multiply_accumulate",
            "matrix_loads.py: ldmatrix", "wmma.py: Transfer.__init__")),
        "lab/simulator/arguments.py: encode_scalar", "lab/simulator/wave.py: Wave.make_special"},
    "a class that needs Triton, made on demand": {"lab/simulator/triton_driver.py: make_driver"},
    "on the path of many instructions, where a call costs": {
        "lab/simulator/barriers.py: BarrierRoom.release",
        "lab/simulator/counts.py: Counts.count_parts",
        "lab/simulator/scheduler.py: Scheduler.run_group", "lab/simulator/taint.py: Taint.results",
        "lab/simulator/taint.py: Taint.vary"},
    "what an object or a report consists of, a line each": {
        "lab/simulator/report.py: make_launch", "lab/simulator/run.py: Run.__init__",
        "layer3_system/s07_engine.py: Engine.__init__", "lab/grading/box.py: Box.__init__",
        "lab/remote/child.py: SubjectServer.describe",
        "layer3_system/disaggregation/fleet.py: Fleet.__init__"},
    "what is kept and what is replaced, decided in one place": {
        "lab/desk/desk.py: Desk.write_cell", "lab/grading/extract.py: candidate"},
}


def test_no_function_is_long_without_a_reason():
    counts = dict.fromkeys(LONG_IN_ROOMS, 0)
    names = set()
    for path in FILES:
        name = str(path.relative_to(ROOT))
        long = house.long_functions(path.read_text("utf-8"))
        room = next((room for room in counts if re.search(room, f"/{name}")), None)
        if room:
            counts[room] += len(long)
        else:
            names |= {f"{name}: {function}" for function in long}
    assert counts == LONG_IN_ROOMS
    assert names == set().union(*LONG_FUNCTIONS.values())


def test_lines_of_a_function_are_those_of_its_code():
    body = "    x = 1\n\n    # why\n" * 25
    text = f'class A:\n  def f():\n    """Doc.\n\n    More."""\n{body}'
    assert house.long_functions(text) == []
    assert house.long_functions(text + "    return x\n") == ["A.f"]


@pytest.mark.parametrize("folder", [ROOT / "lab", *(
    p.parent for p in FILES if p.name == "__init__.py" and p.parents[1] != ROOT)],
                         ids=lambda p: str(p.relative_to(ROOT)))
def test_a_room_has_a_table_of_contents(folder):
    """Its __init__.py names each of its files, and nothing that is not there, a line each."""
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8")))
    listed = re.findall(r"^(\w+)/?  +\S", text, re.M)
    there = {p.stem for p in folder.glob("[!_]*.py")} | {
        p.parent.name for p in folder.glob("*/__init__.py")}
    assert sorted(listed) == sorted(there)


def test_the_simulator_stands_alone():
    for path in (ROOT / "lab" / "simulator").rglob("*.py"):
        others = [n for n in imports(path)
                  if n.split(".")[0] in FLOORS and not n.startswith("lab.simulator")]
        assert not others, f"{path.relative_to(ROOT)} imports {others}"


def test_the_environment_is_read_in_one_place():
    for path in FILES:
        if path.name in ("device.py", "setup.py"):
            continue
        assert not re.search(r"\bos\.(environ|getenv)", path.read_text("utf-8")), \
            f"{path.relative_to(ROOT)} reads the environment; lab/device.py does that"


def test_heavy_imports_are_lazy():
    """A machine lent for its GPU may lack what notebooks need, and `lab --help` should be quick."""
    light = ("sys", "lab", *(f"lab.{m}" for m in (
        "cli", "judge.check", "judge.subject", "desk.desk", "author.build", "plots",
        "author.verify")))
    heavy = ("torch", "triton", "yaml", "jupytext", "nbclient", "jupyter_server", "matplotlib",
             "watchfiles", "IPython")
    code = f"import {', '.join(light)}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_one_version():
    with open(ROOT / "pyproject.toml", "rb") as file:
        assert tomllib.load(file)["project"]["version"] == course.VERSION
    assert f"## {course.VERSION}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_project_has_one_name():
    """Three Floors; `three-floors` where there are no blanks."""
    names = r"gpu.course"
    other = subprocess.run(["git", "grep", "-niE", names, "--", ":!tests/lab/test_house.py",
                            ":!tests/layer2_graph/test_decode_ladder.py"],     # compiled code
                           cwd=ROOT, capture_output=True, text=True)
    assert (other.returncode, other.stdout) == (1, "")


def test_the_manifest_is_in_order_and_says_no_id_twice():
    ids = [i for floor in course.floors()
           for i in [*(x.id for x in floor.lessons), *(r[0] for r in floor.planned)]]
    assert len(ids) == len(set(ids))
    for floor in course.floors():
        assert all(a.id < b.id for a, b in pairwise(floor.lessons)), floor.name


@pytest.mark.parametrize("lesson", course.lessons(), ids=lambda i: i.id)
def test_a_lesson_is_whole(lesson):
    """Its parts are there, needs exist, points and hints are given, prose stays within bounds."""
    known = {i.id for i in course.lessons()} | {r[0] for f in course.floors() for r in f.planned}
    assert set(lesson.needs) <= known, f"needs {set(lesson.needs) - known}"
    assert lesson.front["path"] in ("core", "deep")
    assert set(lesson.front["hints"]) == {e.name for e in lesson.exercises}
    for exercise in lesson.exercises:
        assert exercise.points > 0 and len(exercise.hints) == 3
        assert f'lesson.check("{exercise.name}")' in lesson.markdown.read_text("utf-8")
        stub = lesson.stubs[exercise.language]
        count = int(re.search(rf"{re.escape(exercise.name)}: about (\d+) line", stub)[1])
        assert count <= 15, f"{exercise.name}: {count} lines are the learner's, at most 15"


# Turns of phrase that read as translated, in any case but where a pattern says (?-i:…). `anew`:
# again. `so many`: this many. `no multiple`: not a multiple. `behind`, of order or time: after.
# `nobody`: no one, of people; of a thing no block, no rank, nothing. `Who has …`, at the start of a
# sentence that is no question: the thing that has. `who waits`: which rank waits.
PHRASES = re.compile(r"\b(" + "|".join((
    r"the begin of", r"anew\b", r"once more\b", r"so many\b", r"is no (multiple|name)\b",
    r"that are none\b", r"are to be had", r"otherwise than", r"at the least\b", r"broken off",
    r"of what was (given|said)\b", r"without a word\b", r"by why\b", r"parted by rounding",
    r"at one step all the time", r"how many are it\b", r"where end\b", r"to look on\b",
    r"takes no conversation", r"pieces here and there", r"skip who\b", r"had to go for\b",
    r"rests? on (who|the logits)\b", r"(right|comes?|came|arguments|NaN) behind\b",
    r"behind (row|the (last|next))\b",
    r"(?-i:[Nn]obody)\b",                       # NOBODY is a user of Unix
    r"(?-i:(^|(?<=[.:] ))Who (is|has|runs|goes|asks)\b[^?]*$)",
    r"who (adds up|can go on|chooses|does what|gets (it|which)|gives which|has (seen|what|which)|"
    r"holds which|knows that|needs which|raises|reads which|removes|sends how|shares it|sits where|"
    r"touched|waits|was in)\b")) + ")", re.IGNORECASE)
STORIES = "layer2_graph/small/words.py"         # words of the corpus


def of_the_exercises(lesson):
    """The functions of a lesson's graders that its exercises' tests are or call."""
    tree = ast.parse((ROOT / "tests" / lesson.floor / f"test_{lesson.id}.py").read_text("utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    tests = tuple(f"test_{e.name.replace('.', '_')}" for e in lesson.exercises)
    found, left = {}, [name for name in functions if name.partition("__")[0] in tests]
    while left:
        name = left.pop()
        if name in functions and name not in found:
            found[name] = functions[name]
            left += [node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)]
    return found.values()


@pytest.mark.parametrize("lesson", course.lessons(), ids=lambda lesson: lesson.id)
def test_a_grader_says_what_is_wrong(lesson):
    functions = of_the_exercises(lesson)
    assert functions
    bare = [f"line {node.lineno}: {ast.unparse(node)}" for function in functions
            for node in ast.walk(function) if isinstance(node, ast.Assert) and node.msg is None]
    assert not bare, f"asserts without a message: {bare}"


def test_phrases_that_must_not_come_back():
    """In code, its tests, guides and the lessons' prose; what a model wrote is left out."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.cu", "*.toml", "Makefile", "*.mk", "*.md", "*.html"],
        cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    hits = [f"{name}, line {number}: {line.strip()}"
            for name in listed if name not in (STORIES, "tests/lab/test_house.py")
            and (ROOT / name).exists()
            for number, line in enumerate(written_by_us(ROOT / name).splitlines(), 1)
            if PHRASES.search(line)]
    assert not hits, "\n".join(hits)


def written_by_us(path):
    """A file's text, with an empty line for each line of its ```text blocks."""
    text = path.read_text("utf-8")
    return re.sub(r"(?ms)^```text\n.*?^```", lambda m: "\n" * m[0].count("\n"), text)


@pytest.mark.parametrize("text, mended", [
    ("So many are saved.", "That is how many are saved."),
    ("the arguments behind a format", "the arguments after a format"),
    ("forks come right behind", "a wall right in front, what lies behind it"),
    ("a block that nobody runs", "user=NOBODY"), ("Nobody reads it.", "wave.nobodies"),
    ("## Who waits", "## Who it is for"), ("Who has room runs.", "Who has room?"),
    ("leave without a word", "leave"), ("Answers that are over, by why.", "by what")])
def test_a_phrase_is_found(text, mended):
    assert PHRASES.search(text)
    assert not PHRASES.search(mended)


# A sentence that ends, and another that begins on the same line.
TWO_SENTENCES = re.compile(r"[\w`)\]²³\"]{2}[.?!] +[A-Z`]")


def crowded(text):
    """The lines of a file's docstrings that hold the end of a sentence and another sentence."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(
        node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
    lines = [line for node in nodes for line in (ast.get_docstring(node) or "").splitlines()]
    return [line for line in lines if TWO_SENTENCES.search(line)]


def test_a_line_of_a_docstring_has_one_sentence():
    paths = [*FILES, *(ROOT / "tests").rglob("*.py")]
    hits = [f"{path.relative_to(ROOT)}: {line}" for path in paths
            for line in crowded(path.read_text("utf-8"))]
    assert not hits, "\n".join(hits)


@pytest.mark.parametrize("text, count", [
    ('"""One. Two."""', 1), ('"""One.\nTwo. Three."""', 1), ('"""One.\nTwo."""', 0),
    ('"""In 1.5 s, e.g. here."""', 0),
    ('def f():\n    """Is it? It is."""\nclass C:\n    """What it is: `c`."""', 1)])
def test_a_crowded_line_is_found(text, count):
    assert len(crowded(text)) == count


def test_the_text_speaks_of_itself_alone():
    """No path of somebody's machine, no package registry's host but PyTorch's in the Makefile."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True,
                            check=True).stdout
    own = f"{ROOT}/" if len(ROOT.parts) > 2 else None       # /tmp and the like are anybody's
    here = "tests/lab/test_house.py"
    for name in listed.splitlines():
        path = ROOT / name
        if path.suffix in (".png", ".safetensors") or not path.exists() or name == here:
            continue
        text = path.read_text("utf-8", errors="replace")
        assert own is None or own not in text, f"{name} holds a path of this machine"
        for host in ("pypi.org", "pythonhosted.org", "conda.anaconda.org"):
            assert host not in text, f"{name} names {host}"


def test_no_lesson_that_is_there_is_called_planned():
    there = {word for lesson in course.lessons() for word in (lesson.id, lesson.id[:3])}
    wrong = [f"{lesson.id}: {word}" for lesson in course.lessons()
             for word in re.findall(r"`(\w+)` \(planned\)", lesson.path(".md").read_text("utf-8"))
             if word in there]
    assert not wrong, "no longer planned: " + "; ".join(wrong)
