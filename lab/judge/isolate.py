"""The code under test in a process of its own, seeing of the course what it may see."""

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


@contextlib.contextmanager
def prepared(lesson, sources, earlier=()):
    """A folder as the child sees the course: all lessons before as reference or as `earlier`
    ("floor/name" of a file -> its text), this one as `sources`, those after it on its floor as
    stubs; no floor above."""
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        for floor in course.floors():
            target, source = Path(folder, floor.name), ROOT / floor.name
            if floor.name != lesson.floor and not any(
                    name.startswith(f"{floor.name}/") for name in earlier):
                if source.is_dir():
                    target.symlink_to(source)
                continue
            target.mkdir()
            texts = dict(earlier) | {f"{floor.name}/{lesson.id}{SUFFIX[language]}": text
                                     for language, text in sources.items()}
            for path in source.iterdir():
                put(floor, path, target / path.name, lesson, texts)
            if floor.name == lesson.floor:
                break
        yield folder


def put(floor, path, target, lesson, texts):
    """One file of a floor as the child of a lesson sees it. texts: of what is not the course's."""
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
    sandbox (lab/grading/sandbox.py)."""

    def __init__(self, warm=None):
        self.warm = warm

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
    """Modules to import before the fork: what the lesson's own floor imports, where it is heavy.
    on_device: a process that has met the simulator is of no use."""
    text = "".join((ROOT / lesson.floor / f"{i.id}.py").read_text("utf-8")
                   for f in course.floors() if f.name == lesson.floor for i in f.lessons)
    heavy = [m for m in ("torch", "triton") if re.search(rf"^(import|from) {m}\b", text, re.M)]
    kernels = "triton" in heavy or "simulator" in text
    warmed = kernels and not on_device
    return ("numpy", *heavy, *(("lab.remote.warmup",) if warmed else ()), "lab.remote.child")


@contextlib.contextmanager
def running(lesson, sources, warm=None, reference=None, shapes=False, on_device=False,
            child=Child, earlier=()):
    """A Subject with these sources loaded, ended at the end. on_device: its kernels run on the GPU,
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
