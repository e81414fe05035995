"""Grade a text against a lesson: pytest in this process, the text behind `subject` in another."""

import contextlib
import functools
import hashlib
import inspect
import json
import os
import re
import tempfile
import time
import tomllib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pytest

from lab import course, device, stub, wire
from lab.course import ROOT, SUFFIX
from lab.subject import Raised, Stopped, Subject
from lab.warm import Child

SCHEMA = 1
VERDICTS = ("pass", "fail", "not_attempted", "not_proven_here", "error")


class NotProvenHere(pytest.skip.Exception):
    """Raised by a test: this machine cannot show it, and why. Plain pytest counts it as skipped."""


@dataclass(frozen=True)
class Candidate:
    """What is graded: one text a language, what to call it, and where its lines came from."""

    # by language: the whole module's text, the learner's name for it, each line's number in that
    sources: dict
    labels: dict
    origins: dict = field(default_factory=dict)     # None for a line that the learner does not have
    shapes: bool = False                            # hold the module to its shape comments

    def source(self):
        return ", ".join(dict.fromkeys(self.labels[language] for language in self.sources))


@dataclass
class Verdict:
    name: str
    verdict: str
    points: int | None
    max_points: int
    message: str = ""
    value: object = None            # what a prediction or a choice answered
    seconds: float = 0.0


def reference(lesson):
    labels = {k: f"{lesson.floor}/{lesson.id}{SUFFIX[k]}" for k in lesson.sources}
    return Candidate(lesson.sources, labels, shapes=True)


# ---- grading


def grade(lesson, candidate, names=None, warm=None):
    """Verdicts for the exercises in `names` (all when None), in the lesson's order.

    warm: the address of a warm process to fork from; one is started where it is None.
    """
    wanted = [e for e in lesson.exercises if names is None or e.name in names]
    verdicts = {e.name: untouched(lesson, candidate, e) for e in wanted}
    attempted = [e for e in wanted if verdicts[e.name] is None]
    if attempted:
        run = Run(lesson, candidate, {e.name: e for e in attempted}, warm)
        verdicts |= run.verdicts()
    return [verdicts[e.name] for e in wanted]


def untouched(lesson, candidate, exercise):
    """The verdict of an exercise that needs no test: not attempted, or not parsable."""
    text = candidate.sources[exercise.language]
    label = candidate.labels[exercise.language]
    try:
        mine = stub.normalised(text, exercise.name, exercise.language)
    except SyntaxError as error:
        line = told(candidate, exercise.language, error.lineno)
        shown = (error.text or "").strip()
        return Verdict(exercise.name, "fail", 0, exercise.points,
                       f"{label}, line {line}: {error.msg}\n    {shown}")
    except ValueError as error:
        return Verdict(exercise.name, "fail", 0, exercise.points, f"{label}: {error}")
    if mine is None:
        return Verdict(exercise.name, "not_attempted", 0, exercise.points,
                       f"{exercise.name} is not defined in {label}")
    if mine == stub.normalised(lesson.stubs[exercise.language], exercise.name, exercise.language):
        return Verdict(exercise.name, "not_attempted", 0, exercise.points,
                       f"still the stub in {label}")
    return None


def told(candidate, language, line):
    """The line number as the learner knows it."""
    origin = candidate.origins.get(language)
    if line is None or not origin:
        return line
    return origin[line - 1] if 0 < line <= len(origin) and origin[line - 1] else line


CANDIDATE, SEED = pytest.StashKey(), pytest.StashKey()


class Run:
    """One pytest run over a lesson's tests, and what it found, by exercise. A pytest plugin."""

    def __init__(self, lesson, candidate, exercises, warm):
        self.lesson, self.candidate, self.exercises, self.warm = lesson, candidate, exercises, warm
        self.outcomes = {name: [] for name in exercises}        # (verdict, message) of each test
        self.values, self.seconds, self.broken = {}, dict.fromkeys(exercises, 0.0), ""

    def verdicts(self):
        with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), \
                contextlib.redirect_stderr(null):
            pytest.main([str(self.lesson.test), "-c", os.devnull, "--rootdir", str(ROOT),
                         "--confcutdir", str(ROOT / "tests"), "--disable-plugin-autoload",
                         "--import-mode=importlib", "--assert=plain", "-p", "no:cacheprovider",
                         "-p", "no:terminal"], plugins=[self])
        return {name: self.verdict(name) for name in self.exercises}

    def verdict(self, name):
        points = self.exercises[name].points
        outcomes = self.outcomes[name]
        for kind, earned in (("error", None), ("fail", 0), ("not_proven_here", None)):
            for verdict, message in outcomes:
                if verdict == kind:
                    return Verdict(name, kind, earned, points, message, self.values.get(name),
                                   self.seconds[name])
        if not outcomes:
            return Verdict(name, "error", None, points, self.broken or
                           f"{self.lesson.test.name} has no {self.exercises[name].test}")
        return Verdict(name, "pass", points, points, "", self.values.get(name), self.seconds[name])

    # ---- pytest's hooks

    def pytest_configure(self, config):
        config.stash[CANDIDATE] = (self.lesson, self.candidate, self.warm)
        config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU")
        config.addinivalue_line("markers", "slow: left out of `make test`")

    def pytest_collectreport(self, report):
        if report.failed:
            self.broken = f"the course's own tests cannot be read: {report.longreprtext[-1000:]}"

    def owner(self, item):
        test = item.originalname
        for name, exercise in self.exercises.items():
            if test == exercise.test or test.startswith(exercise.test + "__"):
                return name
        return None

    def pytest_collection_modifyitems(self, items):
        items[:] = [i for i in items if self.owner(i) and not i.get_closest_marker("gpu")]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        """Leave out the rest of an exercise that failed: its first failure is what is told."""
        return True if any(kind != "pass" for kind, _ in self.outcomes[self.owner(item)]) else None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        name = self.owner(item)
        self.seconds[name] += call.duration
        if call.excinfo is not None:
            verdict, message = self.judge(call.excinfo.value, name)
            own = isinstance(call.excinfo.value, (Raised, Stopped))
            self.outcomes[name].append((verdict, f"{name}: {message}" if own else message))
        elif call.when == "call":
            self.outcomes[name].append(("pass", ""))
        proxy = getattr(item, "funcargs", {}).get("subject")
        if proxy is not None and name in proxy.values:
            self.values[name] = proxy.values[name]
        return (yield)

    def judge(self, error, name):
        """(verdict, message) of a test of exercise `name` that raised."""
        if isinstance(error, AssertionError):
            said = str(error) or "a test without a message failed: please report it"
            return "fail", self.in_own_lines(said) + self.definition(name)
        if isinstance(error, NotProvenHere):
            return "not_proven_here", str(error)
        if isinstance(error, Raised) and error.inside:
            return "error", f"the course failed, not you: {error} (in the simulator)"
        if isinstance(error, Raised):
            return "not_proven_here" if error.kind == "unsupported" else "fail", self.explain(error)
        if isinstance(error, Stopped):
            return "fail", f"{error}{self.last_place(error)}"
        if isinstance(error, wire.Unsendable):
            return "error", f"the course failed, not you: {error}"
        place = inspect.getinnerframes(error.__traceback__)[-1] if error.__traceback__ else None
        where = f" ({Path(place.filename).name}, line {place.lineno})" if place else ""
        return "error", f"the course failed, not you: {type(error).__name__}: {error}{where}"

    def explain(self, error):
        """What the learner's code raised, with the learner's own line."""
        language = "cuda" if str(error.path).endswith(".cu") else "python"
        own = error.path == self.lesson.id + SUFFIX[language]
        if error.type == "NotImplementedError" and ": about " in error.text:
            return f"it needs {error.text.split(':')[0]}, which is still a stub"
        if error.kind == "compile":
            return self.compiler_says(error.text)
        if error.kind is not None:
            return self.in_own_lines(error.text, language) if own else error.text
        if own and error.line:
            return f"{error.type}: {error.text}{self.place(language, error.line)}"
        place = f"\n    {error.path}, line {error.line}: {error.source}" if error.line else ""
        return f"{error.type}: {error.text}{place}"

    def place(self, language, line):
        """A line of the candidate as its author knows it, with its text."""
        text = self.candidate.sources[language].splitlines()[line - 1].strip()
        return (f"\n    {self.candidate.labels[language]}, "
                f"line {told(self.candidate, language, line)}: {text}")

    def definition(self, name):
        """Where the candidate defines an exercise."""
        language = self.exercises[name].language
        text = self.candidate.sources[language]
        return self.place(language, stub.find_line(text, name, language))

    def in_own_lines(self, text, language=None):
        """A message with files and lines as the candidate's author knows them.

        `FILE, line N` is a place in any text; where all is about one language, each `line N` is.
        """
        for each, label in self.candidate.labels.items():
            def own(match, each=each):
                return f"{match[1]}line {told(self.candidate, each, int(match[2]))}"

            file = self.lesson.id + SUFFIX[each]
            if language in (None, each):
                before = "" if language else re.escape(file) + ", "
                text = re.sub(rf"\b({before})line (\d+)\b", own, text)
            text = re.sub(rf"\b{re.escape(file)}(?=, line)", lambda _, label=label: label, text)
        return text

    def compiler_says(self, text):
        """NVRTC's log from its first error on, in the learner's file and lines."""
        file = rf"\S*{self.lesson.id}\.cu\((\d+)\)"
        text = text[first.start():] if (first := re.search(rf"{file}: error", text)) else text

        def own(match):
            line = told(self.candidate, "cuda", int(match[1]))
            return f"{self.candidate.labels['cuda']}, line {line}"

        return re.sub(file, own, text)

    def last_place(self, stopped):
        """Where a child was when it was stopped, or the line that ends a process, if seen."""
        for file, line in stopped.stack:
            if Path(file).name == f"{self.lesson.id}.py":
                return self.place("python", line)
        for number, text in enumerate(self.candidate.sources["python"].splitlines(), 1):
            if stopped.why == "died" and re.search(r"\b(_exit|abort|kill|killpg)\s*\(", text):
                return self.place("python", number)
        return ""


# ---- the code under test


@contextlib.contextmanager
def prepared(lesson, sources):
    """A folder as the child sees the course: floors below as reference; on this floor the lessons
    before as reference, this one as `sources`, later ones as stubs; nothing above."""
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        for floor in course.floors():
            target = Path(folder, floor.name)
            if floor.name != lesson.floor:
                if (ROOT / floor.name).is_dir():
                    target.symlink_to(ROOT / floor.name)
                continue
            target.mkdir()
            later = set(floor.lessons[floor.lessons.index(lesson) + 1:])
            lessons = {i.id: i for i in floor.lessons}
            for path in (ROOT / floor.name).iterdir():
                other = lessons.get(path.stem)
                if path.suffix not in SUFFIX.values() or other is None:
                    if path.name != "__pycache__" and path.suffix != ".md":
                        (target / path.name).symlink_to(path)
                elif other in later:
                    (target / path.name).symlink_to(stub_file(path, other))
                elif other != lesson:
                    (target / path.name).symlink_to(path)
            for language, text in sources.items():
                (target / (lesson.id + SUFFIX[language])).write_text(text, "utf-8")
            break
        yield folder


def stub_file(path, lesson):
    """The stub of a lesson's module as a file, made once for each text."""
    text = lesson.stubs[lesson.language(path)]
    file = device.cache_folder() / (hashlib.sha256(text.encode()).hexdigest()[:24] + path.suffix)
    if not file.exists():
        fresh = file.with_suffix(f".{os.getpid()}")
        fresh.write_text(text, "utf-8")
        fresh.replace(file)
    return file


def preload(lesson):
    """Modules to import before the fork: what the lesson's own floor imports, where it is heavy."""
    text = "".join((ROOT / lesson.floor / f"{i.id}.py").read_text("utf-8")
                   for f in course.floors() if f.name == lesson.floor for i in f.lessons)
    heavy = [m for m in ("torch", "triton") if re.search(rf"^(import|from) {m}\b", text, re.M)]
    kernels = "triton" in heavy or "simulator" in text
    return ("numpy", *heavy, *(("lab.warmup",) if kernels else ()), "lab.child")


@contextlib.contextmanager
def running(lesson, sources, warm=None, reference=None, shapes=False):
    """A Subject with these sources loaded, ended at the end."""
    modules = preload(lesson)
    with prepared(lesson, sources) as folder:
        request = {"folder": folder, "floor": lesson.floor, "lesson": lesson.id, "shapes": shapes,
                   "simulator": "lab.warmup" in modules}
        proxy = Subject(lambda: Child("subject", request, modules, warm), reference)
        try:
            yield proxy
        finally:
            proxy.close()


def under_test(config, request):
    """(lesson, candidate, warm): what a plain pytest run grades is the reference."""
    found = config.stash.get(CANDIDATE, None)
    if found is not None:
        return found
    lesson = course.find(request.path.stem.removeprefix("test_"))
    return lesson, reference(lesson), None


@pytest.fixture
def subject(request):
    """The code under test: a proxy to its own process. See lab/subject.py."""
    lesson, candidate, warm = under_test(request.config, request)
    with contextlib.ExitStack() as stack:
        @functools.cache
        def own():                  # started only when a limit is hit
            return stack.enter_context(running(lesson, lesson.sources, warm))

        yield stack.enter_context(running(lesson, candidate.sources, warm, own, candidate.shapes))


@pytest.fixture(name="reference")
def reference_fixture(request):
    """The course's own solution behind the same proxy, for counts to compare with."""
    lesson, _, warm = under_test(request.config, request)
    with running(lesson, lesson.sources, warm) as proxy:
        yield proxy


@pytest.fixture
def rng(request):
    """Random inputs. The seed is fixed for learners; whoever grades submissions gives another."""
    import numpy as np

    return np.random.default_rng(request.config.stash.get(SEED, 0))


# ---- a learner's mistakes, and the mutants that stand for them


def mutants(lesson):
    """[{exercise, find, replace, says, when?}] of a lesson."""
    if not lesson.mutants.exists():
        return []
    with open(lesson.mutants, "rb") as file:
        return tomllib.load(file).get("mutant", [])


def mutate(lesson, mutant):
    """The reference with one mistake made."""
    exercise = lesson.exercise(mutant["exercise"])
    text = lesson.sources[exercise.language]
    whole = stub.extract(text, exercise.name, exercise.language)
    if whole.count(mutant["find"]) != 1:
        raise course.CourseError(f"{lesson.mutants.name}: {mutant['find']!r} occurs "
                                 f"{whole.count(mutant['find'])} times in {exercise.name}, "
                                 f"expected 1")
    wrong = stub.splice(text, whole.replace(mutant["find"], mutant["replace"]), exercise.language)
    return replace(reference(lesson), shapes=False,
                   sources=lesson.sources | {exercise.language: wrong.text})


def with_likely_causes(lesson, verdicts):
    """Add "You get this when …" where a failure reads like a known mistake."""
    known = mutants(lesson)
    for verdict in verdicts:
        for mutant in known if verdict.verdict == "fail" else ():
            if (mutant["exercise"] == verdict.name and mutant.get("when")
                    and mutant["says"] in verdict.message):
                verdict.message += f"\nYou get this when {mutant['when']}."
                break
    return verdicts


# ---- the report


def report(lesson, candidate, verdicts):
    """The schema of `lab check --json`. device: what the verdicts rest on, the same everywhere."""
    return {
        "schema": SCHEMA,
        "course_version": course.VERSION,
        "lesson": lesson.id,
        "device": "simulator" if "lab.warmup" in preload(lesson) else "cpu",
        "source": candidate.source(),
        "exercises": [{k: v for k, v in asdict(verdict).items() if k not in ("value", "seconds")}
                      for verdict in verdicts],
    }


def exit_code(verdicts):
    """0 all passed; 1 a fail or an error of the course; 3 none failed, yet not all passed."""
    kinds = {v.verdict for v in verdicts}
    return 1 if kinds & {"fail", "error"} else 0 if kinds <= {"pass"} else 3


def main(connection, request):
    """The grader role of the warm process: grade in a fork, answer with the verdicts as JSON."""
    lesson = course.find(request["lesson"])
    began = time.monotonic()
    verdicts = grade(lesson, Candidate(**request["candidate"]), request["names"], request["warm"])
    verdicts = with_likely_causes(lesson, verdicts)
    connection.sendall(wire.frame({"verdicts": [asdict(v) for v in verdicts],
                                   "seconds": time.monotonic() - began}, []))


def grade_warm(lesson, candidate, names=None):
    """`grade` in a process of its own, forked from the warm one: for notebooks and `lab watch`."""
    child = Child("grader", {"lesson": lesson.id, "candidate": asdict(candidate), "names": names},
                  ("pytest", *preload(lesson)))
    try:
        message, _ = wire.read_frame(lambda n: child.read(n, time.monotonic() + 600))
    except (EOFError, TimeoutError):
        raise course.CourseError("the grader stopped without an answer: "
                                 f"{child.output()[-500:]}") from None
    finally:
        child.kill()
    return [Verdict(**v) for v in message["verdicts"]]


def dumps(data):
    return json.dumps(data, indent=2, ensure_ascii=False)
