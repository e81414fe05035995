"""One pytest run over a lesson's tests, a text behind `subject`: what came of each exercise."""

import contextlib
import inspect
import os
from dataclasses import replace
from pathlib import Path

import pytest

from lab import device
from lab.course import ROOT
from lab.judge import blame, mistakes, pace
from lab.judge.candidate import reference
from lab.judge.compare import sound
from lab.judge.isolate import Place
from lab.judge.messages import Messages, call_of
from lab.judge.subject import Raised, Stopped
from lab.judge.verdict import Verdict
from lab.remote import wire


class NotProvenHere(pytest.skip.Exception):
    """Raised by a test: this machine cannot show it, and why.
    Plain pytest counts it as skipped."""


CANDIDATE, SEED, OBSERVED = (pytest.StashKey() for _ in range(3))       # in the config
# In a test's item: what `pace` measured, and which exercise it is of.
RATIO = pytest.StashKey()
EXERCISE = pytest.StashKey()


# Plugins of pytest's that a grader has no use for; the last two collect garbage, again and again.
UNUSED = ("cacheprovider", "terminal", "logging", "threadexception", "unraisableexception")


class GradedRun:
    """One pytest run over a lesson's tests, all or those named in `tests`, and the outcomes by
    exercise.
    A pytest plugin."""

    def __init__(self, lesson, candidate, exercises, place, seed=0, observed=None, tests=None):
        self.lesson = lesson
        self.candidate = candidate
        self.exercises = exercises
        self.place = place
        self.seed = seed
        self.observed = observed
        self.tests = tests
        self.messages = Messages(lesson, candidate, exercises)
        self.paced = {e.speed: e for e in exercises.values() if e.speed_points}
        # (verdict, message) of each test
        self.outcomes = {name: [] for name in (*exercises, *self.paced)}
        self.values, self.seconds, self.broken = {}, dict.fromkeys(exercises, 0.0), ""
        self.ratios = {}                # to the course's speed, by name of the speed's row
        # of single tests: the names of those that passed, and what subject.calls had then
        self.causes = {}
        self.mistakes = {}              # (id, sentence) of each exercise's last failure
        self.doubts = []
        self.passes = set()
        self.calls = {}

    def verdicts(self):
        self.run()
        self.settle()
        rows = {name: self.verdict(name) for name in self.exercises}
        return rows | {name: self.speed(name) for name, e in self.paced.items()
                        if rows[e.name].verdict == "pass"}

    def run(self):
        test = os.path.relpath(self.lesson.test, ROOT)      # pytest takes no [ in a file's path
        with open(os.devnull, "w") as null, contextlib.redirect_stdout(null), \
                contextlib.redirect_stderr(null), contextlib.chdir(ROOT):
            pytest.main([test, "-c", os.devnull, "--rootdir", str(ROOT),
                         "--confcutdir", str(self.lesson.test.parents[1]),      # not above it
                         "--disable-plugin-autoload", "--import-mode=importlib", "--assert=plain",
                         *(word for name in UNUSED for word in ("-p", f"no:{name}"))],
                        plugins=[self])

    def settle(self):
        """Put the course's own answer to each test that ended in doubt: where that passes, the
        submission is at fault.
        Answers that an edition lacks passed when it was made."""
        if not self.doubts or self.candidate.sources == self.lesson.sources:
            return
        reference_run = None
        if self.lesson.answered:
            reference_run = GradedRun(
                self.lesson, replace(reference(self.lesson), shapes=False), self.exercises,
                Place(self.place.warm), self.seed, tests={doubt.test for doubt in self.doubts})
            reference_run.run()
        for doubt in self.doubts:
            if reference_run is None or doubt.test in reference_run.passes:
                before = self.outcomes[doubt.name][doubt.place][1]
                calls = reference_run and reference_run.calls[doubt.test]
                message = blame.told(doubt, before, calls)
                self.outcomes[doubt.name][doubt.place] = "fail", message
                self.causes[doubt.name] = blame.BLAMED

    def speed(self, name):
        """The verdict on the speed of an exercise that passed."""
        most = self.paced[name].speed_points
        if device.gpu() is None:
            return Verdict(name, "not_proven_here", None, most, "needs an NVIDIA GPU")
        kind, message = (self.outcomes[name] or [("error", self.no_test(self.paced[name]))])[0]
        ratio = self.ratios.get(name)
        if kind == "pass":
            return Verdict(name, kind, pace.points(ratio, most), most,
                           f"{ratio:.2f} × the speed of the course's own")
        return Verdict(name, kind, 0 if kind == "fail" else None, most, message)

    def no_test(self, exercise):
        return self.broken or f"{self.lesson.test.name} has no {exercise.test}"

    def verdict(self, name):
        points = self.exercises[name].points
        outcomes = self.outcomes[name]
        for kind, earned in (("error", None), ("fail", 0), ("not_proven_here", None)):
            for verdict, message in outcomes:
                if verdict == kind:
                    return Verdict(name, kind, earned, points, sound(message),
                                   self.values.get(name), self.seconds[name],
                                   self.causes.get(name, ""), *self.mistakes.get(name, ()))
        if not outcomes:
            return Verdict(name, "error", None, points, self.no_test(self.exercises[name]))
        return Verdict(name, "pass", points, points, "", self.values.get(name), self.seconds[name])

    # ---- pytest's hooks

    def pytest_configure(self, config):
        config.stash[CANDIDATE] = (self.lesson, self.candidate, self.place)
        config.stash[SEED] = self.seed
        config.stash[OBSERVED] = self.observed
        config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU")
        config.addinivalue_line("markers", "slow: left out of `make test`")

    def pytest_collectreport(self, report):
        if report.failed:
            self.broken = f"the course's own tests cannot be read: {report.longreprtext[-1000:]}"

    def pytest_internalerror(self, excrepr):
        self.broken = f"the course's own grader broke: {str(excrepr)[-1000:]}"

    def owner(self, item):
        test = item.originalname
        for name, exercise in self.paced.items():
            if test == exercise.test + "_speed":
                return name
        for name, exercise in self.exercises.items():
            if test == exercise.test or test.startswith(exercise.test + "__"):
                return name
        return None

    def pytest_collection_modifyitems(self, config, items):
        config.option.tbstyle = "value"         # no one reads a rendered traceback of a test
        measured = self.paced if device.gpu() else ()
        items[:] = [i for i in items if (owner := self.owner(i)) and (
            owner in measured or not i.get_closest_marker("gpu"))
            and (self.tests is None or i.name in self.tests)]
        # Speed comes last, and just before it the tests on unseen inputs, which name no mistake.
        items.sort(key=lambda i: (self.owner(i) in self.paced, "unseen" in i.fixturenames))
        for item in items:
            name = self.owner(item)
            item.stash[EXERCISE] = self.paced.get(name) or self.exercises[name]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        """Leave out the rest of an exercise that failed: its first failure is reported."""
        name = self.owner(item)
        exercise = self.paced[name].name if name in self.paced else name
        outcomes = self.outcomes[name] + self.outcomes[exercise]
        return True if any(kind != "pass" for kind, _ in outcomes) else None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        name = self.owner(item)
        if name in self.paced:
            self.ratios[name] = item.stash.get(RATIO, None)
        else:
            self.seconds[name] += call.duration
        proxy = getattr(item, "funcargs", {}).get("subject")
        if call.excinfo is not None:
            self.passes.discard(item.name)
            self.note(item, call.excinfo.value, proxy)
        elif call.when == "call":
            self.passes.add(item.name)
            self.outcomes[name].append(("pass", ""))
        if proxy is not None:
            self.calls[item.name] = tuple(proxy.calls)
            if name in proxy.values:
                self.values[name] = proxy.values[name]
        return (yield)

    def note(self, item, error, proxy):
        """Keep the outcome of a test that raised."""
        name = self.owner(item)
        verdict, message = self.outcome(error, name, item.funcargs.get("reference"))
        if not isinstance(error, NotProvenHere) and blame.doubtful(verdict, error, proxy):
            self.doubts.append(blame.Doubt(name, item.name, len(self.outcomes[name]), error,
                                           tuple(proxy.calls) if proxy else ()))
        self.causes[name] = blame.cause(error)
        self.mistakes[name] = mistakes.of(error)
        if isinstance(error, Raised | Stopped):
            message = "\n".join(filter(None, (f"{name}: {message}", self.mistakes[name][1])))
        self.outcomes[name].append((verdict, message))

    def outcome(self, error, name, course_own=None):
        """(verdict, message) of a test of exercise `name` that raised. course_own: what the test
        has as `reference`."""
        if isinstance(error, AssertionError):
            return "fail", self.messages.refused(error, name)
        if isinstance(error, NotProvenHere):
            return "not_proven_here", str(error)
        theirs = isinstance(error, Raised | Stopped) and error.subject is course_own is not None
        if isinstance(error, Raised) and not error.inside and not theirs:
            kind = "not_proven_here" if error.kind == "unsupported" else "fail"
            return kind, self.messages.raised(error, name)
        if isinstance(error, Stopped) and not theirs:
            return "fail", f"{error}{call_of(error)}{self.messages.last_place(error)}"
        return "error", broken(error, theirs)


def broken(error, theirs):
    """The message of an error that is the course's own. theirs: whether the reference made it"""
    if isinstance(error, Raised) and not theirs:
        return f"the course failed, not you: {error} (in the simulator)"
    if isinstance(error, wire.Unsendable):
        return f"the course failed, not you: {error}"
    place = inspect.getinnerframes(error.__traceback__)[-1] if error.__traceback__ else None
    where = f" ({Path(place.filename).name}, line {place.lineno})" if place else ""
    return f"the course failed, not you: {type(error).__name__}: {error}{where}"
