"""The modules that a process imports before it forks what grades, or runs, a lesson's code.
What asks for such a process needs neither NumPy nor pytest for that, so it starts while they
load."""

import itertools
import re

from lab import course
from lab.course import ROOT
from lab.judge.imports import needed_floors

CUDA = ("numpy", "numpy.random", "lab.remote.warm_cuda", "lab.remote.child")


def floors_to(lesson):
    """The floors that a lesson's child sees: its own and those below it."""
    floors = [floor for floor in course.floors() if (ROOT / floor.name).is_dir()]
    return floors[:[floor.name for floor in floors].index(lesson.floor) + 1]


def replaced(floor, texts):
    """Whether any of the texts, by "floor/name" of a file, is on this floor."""
    return any(name.startswith(f"{floor.name}/") for name in texts)


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
    if re.search(r"\bLaunches\b|\bTorch\w+Mode\b|\boptim\.|\btorch\.compile\(", own_text):
        heavy.append("torch._dynamo")               # PyTorch imports it when one of these is used
    if re.search(r"\blibrary\.custom_op\(", own_text):
        heavy.append("torch.testing._internal.optests")     # opcheck's: 380 modules
    if re.search(r"\.backward\(\w|\bautograd\.grad\(", own_text):
        # with a gradient they import it: 480 modules, a second or more in each rank
        heavy.append("torch.fx.experimental.symbolic_shapes")
    return ("numpy", "numpy.random", *heavy, "lab.remote.child")


def floors_below(lesson, earlier=()):
    """The floors that the lesson needs, without its own, for the process to import that forks: a
    child would import the same.
    Not from the first on that `earlier` has texts for."""
    *below, _ = floors_to(lesson)
    names = needed_floors(lesson)
    return tuple(floor.name for floor in itertools.takewhile(
        lambda floor: not replaced(floor, earlier), below) if floor.name in names)


def text_of(floor):
    """The Python of all lessons of a floor."""
    return "".join(lesson.path(".py").read_text("utf-8") for lesson in floor.lessons)
