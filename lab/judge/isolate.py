"""The code under test in a process of its own, which sees only its share of the course."""

import ast
import contextlib
import hashlib
import os
import re
import tempfile
from pathlib import Path

from lab import course, device
from lab.course import ROOT, SUFFIX
from lab.judge.subject import Subject
from lab.remote.warm import Child

BELOW = ".below"                # where the child's folder has the floors that are the course's own


@contextlib.contextmanager
def prepared(lesson, sources, earlier=()):
    """A folder as the child sees the course: earlier lessons as reference or as `earlier`
    ("floor/name" of a file -> its text), this one as `sources`, later ones on its floor as stubs;
    no floor above."""
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        for floor in course.floors():
            if not (ROOT / floor.name).is_dir():
                continue
            whole = floor.name != lesson.floor and not any(
                name.startswith(f"{floor.name}/") for name in earlier)
            target = Path(folder, BELOW if whole else "", floor.name)
            target.mkdir(parents=True)
            texts = dict(earlier) | {f"{floor.name}/{lesson.id}{SUFFIX[language]}": text
                                     for language, text in sources.items()}
            for path in (ROOT / floor.name).iterdir():
                put(floor, path, target / path.name, lesson, texts)
            if whole:
                Path(folder, floor.name).symlink_to(target)
            if floor.name == lesson.floor:
                break
        yield folder


def put(floor, path, target, lesson, texts):
    """One file of a floor as the child of a lesson sees it. texts: those not the course's."""
    after = floor.lessons[floor.lessons.index(lesson) + 1:] if lesson in floor.lessons else ()
    later = {i.id: i for i in after}.get(path.stem)
    if path.name == "__init__.py":
        target.write_text(on_demand(path.read_text("utf-8")), "utf-8")
    elif f"{floor.name}/{path.name}" in texts:
        target.write_text(texts[f"{floor.name}/{path.name}"], "utf-8")
    elif later and path.suffix in SUFFIX.values():
        target.symlink_to(stub_file(path, later))
    elif path.name != "__pycache__" and path.suffix != ".md":
        target.symlink_to(path)


class Place:
    """Where the code under test runs: in a process beside this one. An instructor's place is a
    sandbox (lab/grading/sandbox.py).

    shows_answers: whether the author of the code may see the course's answers
    """

    shows_answers = True

    def __init__(self, warm=None):
        self.warm = warm

    def of(self, candidate):
        """The place for another text of the same author and lesson."""
        return self

    def subject(self, lesson, candidate, test, reference):
        """A context with the Subject that a test, pytest's item, is given. reference(): the
        course's own, for limits."""
        return running(lesson, candidate.sources, self.warm, reference, candidate.shapes,
                       earlier=candidate.earlier)

    def reference(self, lesson, test):
        """A context with the course's own solution."""
        return running(lesson, lesson.sources, self.warm)

    def reference_for_limits(self, lesson, test):
        """The same, for limits of the code under test, which no test sees."""
        return self.reference(lesson, test)

    @contextlib.contextmanager
    def pace(self, lesson, candidate):
        """A context with two Subjects on the GPU: the code under test, and the course's own."""
        with running(lesson, candidate.sources, on_device=True,
                     earlier=candidate.earlier) as mine, \
                running(lesson, lesson.sources, on_device=True) as own:
            yield mine, own

    def truth(self, test, data):
        """What a test made with the course's own solution, in the trusted process."""
        return data


def on_demand(contents):
    """A floor's table of contents that imports a module when a name of it is first asked for: a
    child needs few of them, and all take a tenth of a second."""
    home = {alias.name: node.module for node in ast.parse(contents).body
            if isinstance(node, ast.ImportFrom) for alias in node.names}
    return ("from importlib import import_module\n\n"
            f"HOME = {home!r}\n__all__ = list(HOME)\n\n\n"
            "def __getattr__(name):\n"
            "    if name not in HOME:\n"
            "        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')\n"
            "    module = import_module(HOME[name])\n"
            "    # all of its names: one may be the module's own, which the import has just bound\n"
            "    globals().update((n, getattr(module, n)) for n in HOME if HOME[n] == HOME[name])\n"
            "    return globals()[name]\n")


def stub_file(path, lesson):
    """The stub of a lesson's module as a file, made once for each text."""
    text = lesson.stubs[lesson.language(path)]
    file = device.cache_folder() / (hashlib.sha256(text.encode()).hexdigest()[:24] + path.suffix)
    if not file.exists():
        fresh = file.with_suffix(f".{os.getpid()}")
        fresh.write_text(text, "utf-8")
        fresh.replace(file)
    return file


def preload(lesson, on_device=False):
    """Modules to import before the fork: what the lesson's own floor and those below it import,
    where it is heavy. on_device: a process that has loaded the simulator is of no use."""
    texts = {}
    for floor in course.floors():
        texts[floor.name] = "".join((ROOT / floor.name / f"{i.id}.py").read_text("utf-8")
                                    for i in floor.lessons)
        if floor.name == lesson.floor:
            break
    text = "".join(texts.values())
    own_text = lesson.path(".py").read_text("utf-8")
    heavy = [m for m in ("torch", "triton") if re.search(rf"^(import|from) {m}\b", text, re.M)]
    if "simulator" in text and not on_device:
        # Where the floor's own kernels run there, the first run is paid for as well.
        own = re.search(r"^(import|from) triton\b|simulator", texts[lesson.floor], re.M)
        heavy.append("lab.remote.warmup" if own else "lab.simulator")
    if re.search(r"\bLaunches\b|\bTorch\w+Mode\b", own_text):
        heavy.append("torch._dynamo")               # PyTorch's modes import it when first entered
    if re.search(r"\.backward\(", own_text):
        # backward with a gradient imports it: 480 modules, a second or more in each rank
        heavy.append("torch.fx.experimental.symbolic_shapes")
    return ("numpy", "numpy.random", *heavy, "lab.remote.child")


@contextlib.contextmanager
def running(lesson, sources, warm=None, reference=None, shapes=False, on_device=False,
            child=Child, earlier=()):
    """A Subject with these sources loaded, closed at the end. on_device: kernels run on the GPU,
    not in the simulator. child: what starts its process. earlier: as in `prepared`."""
    modules = preload(lesson, on_device)
    with prepared(lesson, sources, earlier) as folder:
        request = {"folder": folder, "floor": lesson.floor, "lesson": lesson.id, "shapes": shapes,
                   "simulator": "lab.remote.warmup" in modules}
        proxy = Subject(lambda: child("lab.remote.child", request, modules, warm), reference)
        try:
            yield proxy
        finally:
            proxy.close()
