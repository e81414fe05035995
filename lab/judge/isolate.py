"""The code under test in a process of its own, which sees only its share of the course."""

import contextlib
import functools
import hashlib
import itertools
import re
import shutil
import tempfile
from pathlib import Path

from lab import course, device, stub
from lab.course import ROOT, SUFFIX
from lab.judge.imports import needed_floors, on_demand
from lab.judge.subject import Subject
from lab.remote.warm import Child

CODE = tuple(SUFFIX.values())


@contextlib.contextmanager
def prepared(lesson, sources, earlier=()):
    """A folder as the child sees the course: earlier lessons as reference or as `earlier`
    ("floor/name" of a file -> its text), this one as `sources`, later ones on its floor as stubs;
    no floor above.

    A floor that is the course's own is a link. Any other has the texts that are not the course's,
    and its package looks for the rest where it is: stubs first, then the course.
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


def floors_to(lesson):
    """The floors that a lesson's child sees: its own and those below it."""
    floors = [floor for floor in course.floors() if (ROOT / floor.name).is_dir()]
    return floors[:[floor.name for floor in floors].index(lesson.floor) + 1]


def replaced(floor, texts):
    """Whether any of the texts, by "floor/name" of a file, is on this floor."""
    return any(name.startswith(f"{floor.name}/") for name in texts)


def write(folder, floor, texts):
    for name, text in texts.items():
        if name.startswith(f"{floor.name}/"):
            Path(folder, name).write_text(text, "utf-8")


def later(floor, lesson):
    """The lessons that come after this one on its own floor; none of another floor."""
    return floor.lessons[floor.lessons.index(lesson) + 1:] if lesson in floor.lessons else ()


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


def preload(lesson, on_device=False):
    """Modules to import before the fork: what the lesson's own floor imports and those below it
    that it needs, where it is heavy. on_device: a process that has loaded the simulator is of no
    use."""
    names = needed_floors(lesson)
    texts = [text_of(floor) for floor in floors_to(lesson) if floor.name in names]
    text = "".join(texts)
    own_text = lesson.path(".py").read_text("utf-8")
    heavy = [m for m in ("torch", "triton") if re.search(rf"^(import|from) {m}\b", text, re.M)]
    if "simulator" in text and not on_device:
        # Where the floor's own kernels run there, the first run is paid for as well.
        own = re.search(r"^(import|from) triton\b|simulator", texts[-1], re.M)
        heavy += ["lab.remote.warm_cuda", "lab.remote.warmup"] if own else ["lab.simulator"]
    if on_device:                                   # no child of the simulator is of use
        heavy.append("lab.remote.pace_calls")
    if re.search(r"\bLaunches\b|\bTorch\w+Mode\b|\boptim\.", own_text):
        heavy.append("torch._dynamo")               # PyTorch imports it when one of these is used
    if re.search(r"\.backward\(\w|\bautograd\.grad\(", own_text):
        # with a gradient they import it: 480 modules, a second or more in each rank
        heavy.append("torch.fx.experimental.symbolic_shapes")
    return ("numpy", "numpy.random", *heavy, "lab.remote.child")


CUDA = ("numpy", "numpy.random", "lab.remote.warm_cuda", "lab.remote.child")


def cuda_kernels(text):
    """The names of the kernels in CUDA C, () where it does not parse."""
    try:
        return tuple(stub.definitions(text, "cuda"))
    except (SyntaxError, ValueError):
        return ()


def floors_below(lesson, earlier=()):
    """The floors that the lesson needs, without its own, for the process to import that forks: a
    child would import the same. Not from the first on that `earlier` has texts for."""
    *below, _ = floors_to(lesson)
    names = needed_floors(lesson)
    return tuple(floor.name for floor in itertools.takewhile(
        lambda floor: not replaced(floor, earlier), below) if floor.name in names)


def text_of(floor):
    """The Python of all lessons of a floor."""
    return "".join(lesson.path(".py").read_text("utf-8") for lesson in floor.lessons)


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
