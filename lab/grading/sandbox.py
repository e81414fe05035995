"""The boxes in which a submission's code runs while a lesson's tests judge it.

A learner's Python runs in one box.
A kernel is only compiled there: the result runs in another, beside the course's own launchers and
under the course's own simulator, which have met none of the learner's code.
So a kernel's results, counts and races do not rest on the learner's word.
"""

import contextlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

from lab import stub
from lab.course import ROOT, SUFFIX
from lab.grading.box import BOX_MEMORY, NOBODY, Box, gpu_nodes
from lab.judge.imports import on_demand
from lab.judge.isolate import Place, later, running, write
from lab.judge.plugin import EXERCISE, NotProvenHere
from lab.judge.preloading import floors_to, preload, replaced
from lab.judge.subject import SECONDS, Raised, Stopped, Subject
from lab.remote.warm import Child

# Seconds for a compile: ten times layer 1's longest, flash_triton's 2.5 s, cold, on two busy cores.
COMPILING = 25
FULL = ("it and all that it started took more memory than a submission may have, "
        f"{BOX_MEMORY / 2**30:.0f} GiB; it was stopped")


def place_inside(folders):
    """Where a box has the tree: it may cover none of the folders that the box shows as they are."""
    return next(name for name in ("/course", "/lesson", "/desk", "/tree")
                if not any(Path(folder).is_relative_to(name) for folder in folders))


INSIDE = place_inside((ROOT, sys.prefix, sys.base_prefix))


def is_kernel(exercise):
    """Whether its text is compiled, never run: CUDA C, or a function under @triton.jit."""
    if exercise.language == "cuda":
        return True
    text = stub.extract(exercise.lesson.stubs["python"], exercise.name, "python")
    return "@triton.jit" in text


def launchers(lesson, candidate):
    """The lesson's Python for the process that runs the kernels: the course's own launchers; for an
    exercise in Python the course's solution where the learner tried it, else the stub."""
    text = lesson.stubs["python"]
    for exercise in lesson.exercises:
        if exercise.language == "python" and not is_kernel(exercise) and tried(exercise, candidate):
            answer = stub.extract(lesson.sources["python"], exercise.name, "python")
            text = stub.splice(text, answer, "python").text
    return text


def tried(exercise, candidate):
    try:
        mine = stub.normalised(candidate.sources["python"], exercise.name, "python")
    except (SyntaxError, ValueError):
        return False
    stub_text = stub.normalised(exercise.lesson.stubs["python"], exercise.name, "python")
    return mine is not None and mine != stub_text


def lay_out(lesson, folder, held_back=()):
    """The path of a tree, DESIGN's "what the child sees" as separate files, made once for all
    submissions: the lesson itself, later ones and those in `held_back` are stubs."""
    tree = Path(folder, f"{lesson.id}-held" if held_back else lesson.id)
    if not tree.exists():
        texts = {place(one, language): text for one in (lesson, *held_back)
                 for language, text in one.stubs.items()}
        fresh = tempfile.mkdtemp(dir=folder)
        for floor in floors_to(lesson):
            target = Path(fresh, floor.name)
            if not replaced(floor, texts):
                target.mkdir()                              # mounted
                continue
            # A file's mode stays behind: an autograder closes answers (autograder.py).
            shutil.copytree(ROOT / floor.name, target, copy_function=shutil.copyfile,
                            ignore=shutil.ignore_patterns("*.md", "__pycache__"))
            contents = (target / "__init__.py").read_text("utf-8")
            (target / "__init__.py").write_text(on_demand(contents), "utf-8")
            write(fresh, floor, texts | {place(one, language): text for one in later(floor, lesson)
                                         for language, text in one.stubs.items()})
        Path(fresh).chmod(0o755)
        with contextlib.suppress(OSError):                  # another job was faster
            Path(fresh).rename(tree)
    return tree


def place(lesson, language):
    """The place of a lesson's file in a tree: "floor/name"."""
    return f"{lesson.floor}/{lesson.id}{SUFFIX[language]}"


class Sandbox(Place):
    """The boxes for one submission's text of one lesson; closed at the end of its run."""

    shows_answers = False

    def __init__(self, level, lesson, candidate, folder, warm=None, user=NOBODY, held_back=()):
        """folder: of the grading run, for trees that submissions share. held_back: earlier lessons
        whose answers the student does not have: the learner's process gets the candidate's own."""
        super().__init__(warm)
        self.held_tree = lay_out(lesson, folder, held_back) if held_back else None
        self.level = level
        self.folder = folder
        self.lesson = lesson
        self.candidate = candidate
        self.user = user
        self.files = tempfile.TemporaryDirectory(dir=folder)
        Path(self.files.name).chmod(0o755)
        self.tree = lay_out(lesson, folder)
        self.boxes = {}
        self.compilers = {}
        self.compiled = {}
        self.kernels = self.own_reference = None
        self.held = contextlib.ExitStack()

    def of(self, candidate):
        if candidate.sources == self.candidate.sources:
            return self
        place = Sandbox(self.level, self.lesson, candidate, self.folder, self.warm, self.user)
        place.held_tree = self.held_tree
        self.held.callback(place.close)
        return place

    @contextlib.contextmanager
    def subject(self, lesson, candidate, test, reference):
        if is_kernel(test.stash[EXERCISE]):         # no learner's code in it: one for all tests
            self.kernels = proxy = self.kernels or Subject(
                lambda: self.child("kernels"), reference, self.compile)
        else:
            proxy = Guarded(lambda: self.child("candidate"), reference)
            proxy.walls = self.level != "limits"
        try:
            yield proxy
        finally:
            if proxy is not self.kernels:
                proxy.close()
            if proxy.stopped:           # whatever it started ends with the box
                self.renew()

    @contextlib.contextmanager
    def pace(self, lesson, candidate):
        """The learner's side, too, is the course's Python: only compiled kernels are the learner's.
        """
        measured = Subject(lambda: self.child("device"), compiler=self.compile)
        try:
            with running(lesson, lesson.sources, on_device=True) as reference:
                yield measured, reference
        finally:
            measured.close()
            if measured.stopped:
                self.renew()

    def child(self, kind):
        """A process with the learner's text ("candidate"), or with the course's Python and the
        learner's CUDA C: in the simulator ("kernels") or on the GPU ("device")."""
        sources = dict(self.candidate.sources)
        python = self.lesson.id + ".py"
        on_device = kind == "device"
        modules = preload(self.lesson, on_device)
        request = {"floor": self.lesson.floor, "lesson": self.lesson.id, "shapes": False,
                   "simulator": "lab.remote.warmup" in modules}
        if kind != "candidate":
            request["shown"] = {f"{INSIDE}/{self.lesson.floor}/{python}": sources["python"]}
            sources["python"] = launchers(self.lesson, self.candidate)
        folder, box = self.box(kind, sources)
        request |= {"folder": folder, "box": box.request()}
        try:
            child = Child("lab.remote.child", request, modules, None if on_device else self.warm)
        except (OSError, RuntimeError):
            if box.full:                # with what an earlier test left in it
                raise Stopped("full", FULL) from None
            raise
        child.box = box
        return child

    def box(self, kind, sources):
        """(folder of the tree as the child sees it, the box)."""
        if kind not in self.boxes:
            tree = self.held_tree or self.tree if kind == "candidate" else self.tree
            texts = dict(self.candidate.earlier) if tree == self.held_tree else {}
            texts |= {place(self.lesson, language): text for language, text in sources.items()}
            if self.level == "limits":
                self.boxes[kind] = self.unboxed(tree, texts), Box(self.level, {}, self.user)
                return self.boxes[kind]
            binds = {INSIDE: tree, str(ROOT / "lab"): ROOT / "lab"}
            binds |= {f"{INSIDE}/{name}": ROOT / name for name in self.whole(tree)}
            for name, text in texts.items():
                file = Path(self.files.name, f"{kind}-{name.replace('/', '-')}")
                file.write_text(text, "utf-8")
                file.chmod(0o644)
                binds[f"{INSIDE}/{name}"] = file
            if kind == "device":
                binds |= {node: node for node in gpu_nodes()}
            box = Box(self.level, binds, self.user, self.lesson.ranks and kind == "candidate")
            self.boxes[kind] = INSIDE, box
        return self.boxes[kind]

    @staticmethod
    def whole(tree):
        """Names of the floors that are shown as the course has them."""
        return [path.name for path in tree.iterdir() if not any(path.iterdir())]

    def unboxed(self, tree, texts):
        """The folder of the tree where there is no box.
        Every user may read it: where we are root, the learner's code runs as another."""
        folder = Path(self.held.enter_context(tempfile.TemporaryDirectory(dir=self.files.name)))
        shutil.copytree(tree, folder, dirs_exist_ok=True)           # with the tree's mode
        for name in self.whole(tree):
            (folder / name).rmdir()                                 # where a box mounts it
            (folder / name).symlink_to(ROOT / name)
        for name, text in texts.items():
            (folder / name).write_text(text, "utf-8")
        return str(folder)

    def compile(self, tree, buffers):
        """A kernel as the learner's box compiles it: asked once, and the same for every test."""
        from lab.remote import wire

        key = json.dumps(tree, sort_keys=True)
        if key not in self.compiled:
            what, *arguments = wire.unpack(tree, buffers)
            if what not in self.compilers:
                self.compilers[what] = Compiler(lambda: self.child("candidate"),
                                                patience=COMPILING / SECONDS)
            try:
                self.compiled[key] = self.compilers[what].compile(what, *arguments)
            except Raised as error:
                self.compiled[key] = distrusted(error)
            except Stopped as error:
                self.compiled[key] = error      # the next test need not wait for it again
                self.renew()                    # whatever it started ends with the box
        if isinstance(self.compiled[key], Exception):
            raise self.compiled[key]
        return self.compiled[key]

    @contextlib.contextmanager
    def reference(self, lesson, test):
        """The course's own process, one for all tests."""
        if self.own_reference is None:
            self.own_reference = self.held.enter_context(
                running(lesson, lesson.sources, self.warm))
        yield self.own_reference

    def renew(self):
        """End all that runs in the boxes; the next test gets new ones."""
        if self.kernels is not None:
            self.kernels.close()
            self.kernels = None
        for compiler in self.compilers.values():
            compiler.close()
        self.compilers.clear()
        for _, box in self.boxes.values():
            box.close()
        self.boxes.clear()

    def forget(self):
        """New boxes, which know nothing of those before, nor of what was compiled there."""
        self.renew()
        self.compiled.clear()

    def close(self):
        self.renew()
        self.held.close()
        self.files.cleanup()


class Boxed(Subject):
    """A process with the learner's text."""

    def _stopped(self, error):
        stopped = super()._stopped(error)
        return Stopped("full", FULL) if self._child.box.full else stopped


class Compiler(Boxed):
    """Where the learner's kernels are compiled."""

    def _stopped(self, error):
        stopped = super()._stopped(error)
        if stopped.why != "hung":
            return stopped
        return Stopped("hung", f"the compiler did not end within {COMPILING} s: which part of the "
                               f"kernel runs, or is unrolled, while it compiles?", stopped.stack)


class Guarded(Boxed):
    """The learner's process; an oracle runs in the course's own, which the learner's code cannot
    reach."""

    walls = True            # its box has a network of its own

    def __getattr__(self, name):
        if name.endswith("_oracle") and self._reference is not None:
            return getattr(self._reference(), name)
        return super().__getattr__(name)

    def ranks(self, name, arguments, **settings):
        if not self.walls:
            raise NotProvenHere("ranks need a network of their own, which only a box of level "
                                "bubblewrap or namespaces has: see lab/grading/README.md")
        return super().ranks(name, arguments, **settings)

    def _exchange(self, what, *values, slow=None):
        try:
            return super()._exchange(what, *values, slow=slow)
        except Raised as error:
            raise distrusted(error) from None


def distrusted(error):
    """What the learner's process raised, without any claim that the course or the machine is at
    fault: a claim would take the exercise out of the maximum."""
    error.inside = False
    if error.kind == "unsupported":
        error.kind = None
    return error
