"""The code under test in a process of its own, which sees only its share of the course."""

import contextlib
import functools
import hashlib
import shutil
import tempfile
from pathlib import Path

from lab import device, stub
from lab.course import ROOT, SUFFIX
from lab.judge.imports import on_demand
from lab.judge.preloading import CUDA, floors_below, floors_to, preload, replaced
from lab.judge.subject import Subject
from lab.remote.warm import Child

CODE = tuple(SUFFIX.values())


@contextlib.contextmanager
def prepared(lesson, sources, earlier=()):
    """A folder as the child sees the course: earlier lessons as reference or as `earlier`
    ("floor/name" of a file -> its text), this one as `sources`, later ones on its floor as stubs;
    no floor above.

    A floor that is the course's own is a link.
    Any other has the texts that are not the course's, and its package looks for the rest where it
    is: stubs first, then the course.
    """
    texts = dict(earlier) | {f"{lesson.floor}/{lesson.id}{SUFFIX[language]}": text
                             for language, text in sources.items()}
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        for floor in floors_to(lesson):
            target = Path(folder, floor.name)
            own = ROOT / floor.name
            if not replaced(floor, texts):
                target.symlink_to(own)
                continue
            target.mkdir()
            for path in own.iterdir():
                if path.suffix not in (*CODE, ".md") and path.name != "__pycache__":
                    target.joinpath(path.name).symlink_to(path)         # data, rooms
            more = [*stub_folders(floor, lesson), own]
            contents = on_demand((own / "__init__.py").read_text("utf-8"))
            (target / "__init__.py").write_text(
                f"__path__ += {[str(place) for place in more]}\n{contents}", "utf-8")
            write(folder, floor, texts)
        yield folder


def write(folder, floor, texts):
    for name, text in texts.items():
        if name.startswith(f"{floor.name}/"):
            Path(folder, name).write_text(text, "utf-8")


def later(floor, lesson):
    """The lessons that come after this one on its own floor; none of another floor."""
    return floor.lessons[floor.lessons.index(lesson) + 1:] if lesson in floor.lessons else ()


class Place:
    """Where the code under test runs: in a process beside this one.
    An instructor's place is a sandbox (lab/grading/sandbox.py).

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
        with running(lesson, candidate.sources, self.warm, on_device=True,
                     earlier=candidate.earlier) as measured, \
                running(lesson, lesson.sources, self.warm, on_device=True) as reference:
            yield measured, reference

    def truth(self, test, data):
        """What a test made with the course's own solution, in the trusted process."""
        return data


@functools.cache
def stub_folders(floor, lesson):
    """[a folder with the stubs of the lessons after this one on its floor], [] if there are none.
    They are cut once for each text that they are made of."""
    after = later(floor, lesson)
    if not after:
        return []
    made_of = [*(ROOT / "lab" / "stub").glob("*.py"),
               *(one.path(suffix) for one in after for suffix in (*CODE, ".md"))]
    digest = hashlib.sha256(repr([(str(file.relative_to(ROOT)), file.read_bytes())
                                  for file in sorted(made_of) if file.exists()]).encode())
    folder = device.cache_folder() / f"stubs-{digest.hexdigest()[:24]}"
    if not folder.exists():
        fresh = Path(tempfile.mkdtemp(dir=folder.parent))
        for one in after:
            for language, text in one.stubs.items():
                (fresh / f"{one.id}{SUFFIX[language]}").write_text(text, "utf-8")
        try:
            fresh.rename(folder)
        except OSError:                             # another process was faster
            shutil.rmtree(fresh)
    return [folder]


def cuda_kernels(text):
    """The names of the kernels in CUDA C, () where it does not parse."""
    try:
        return tuple(stub.definitions(text, "cuda"))
    except (SyntaxError, ValueError):
        return ()


@contextlib.contextmanager
def running(lesson, sources, warm=None, reference=None, shapes=False, on_device=False,
            child=Child, earlier=()):
    """A Subject with these sources loaded, closed at the end. warm: the Servers that fork it.
    on_device: kernels run on the GPU, not in the simulator. child: what starts its process.
    earlier: as in `prepared`."""
    modules = preload(lesson, on_device)
    below = () if on_device else floors_below(lesson, earlier)      # they load the simulator
    kernels = () if on_device else cuda_kernels(sources.get("cuda", ""))
    with prepared(lesson, sources, earlier) as folder:
        request = {"folder": folder, "floor": lesson.floor, "lesson": lesson.id, "shapes": shapes,
                   "simulator": "lab.remote.warmup" in modules}
        proxy = Subject(lambda: child("lab.remote.child", request, modules, warm, below), reference,
                        cuda=(kernels, lambda: child("lab.remote.child", request, CUDA, warm)))
        try:
            yield proxy
        finally:
            proxy.close()
