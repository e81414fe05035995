"""What the graders share.
Tolerances are named here, once, with their reason."""

import sys

import pytest

from lab import course, device
from lab.judge import compare
from lab.judge.fixtures import pace, reference_fixture, rng, subject, truth  # noqa: F401  (fixtures)


def pytest_addoption(parser):
    parser.addoption("--no-graders", action="store_true", help="leave out what grades exercises, "
                     "but for what needs a GPU: `lab verify` runs it on the course's own answers")


def grades_an_exercise(item):
    """Whether a test is one that `lab verify` runs on the reference."""
    lesson = next((i for i in course.lessons() if i.test == item.path), None)
    name = getattr(item, "originalname", item.name)
    return lesson is not None and any(
        name == e.test or name.startswith(f"{e.test}__") for e in lesson.exercises)


def pytest_collection_modifyitems(config, items):
    """Skip what needs a GPU where there is none, with the reason, so that it is counted."""
    if config.getoption("--no-graders"):
        elsewhere = {i for i in items
                     if not i.get_closest_marker("gpu") and grades_an_exercise(i)}
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [i for i in items if i not in elsewhere]
    for item in items:
        if item.get_closest_marker("gpu") and device.gpu() is None:
            item.add_marker(pytest.mark.skip(reason="not proven here: needs an NVIDIA GPU"))


TOLERANCES = {
    # relative to the largest true value, plus the same relative to the element itself
    "exact": 0.0,
    "float64": 1e-12,       # a few roundings of 1.1e-16
    "float32": 2e-5,        # sums of about a thousand terms, roundings of 6e-8; fp16 sums miss it
    "float16": 2e-3,        # one rounding of the result (4.9e-4) and slack; fp16 sums miss it
    "bfloat16": 1.6e-2,     # likewise, 3.9e-3
}


@pytest.fixture
def agree():
    """agree(got, want, precision, what, at=…, mistakes={…}, unwritten=…): an array equals its
    oracle, or a message that names the first wrong element and the likely mistake."""
    def check(got, want, precision="exact", what="the result", at=compare.position, mistakes=None,
              unwritten=None):
        compare.agree(got, want, TOLERANCES[precision], what, at, mistakes or {}, unwritten)
    return check


@pytest.fixture
def unseen(subject, reference):  # noqa: F811  (the fixture of that name)
    """unseen(name, *arguments, precision=…): a function gives what the course's own gives.
    For inputs drawn from `rng`: no one can know an instructor's beforehand, so answers stored for
    the inputs of the other tests do not pass.
    An argument that is a function makes an object of the lesson's on the side it is given;
    `shown` then says what the arguments are."""
    def check(name, *arguments, precision="float64", shown=None):
        got, want = (getattr(side, name)(*(a(side) if callable(a) else a for a in arguments))
                     for side in (subject, reference))
        shown = shown or ", ".join(map(compare.brief, arguments))
        compare.alike(got, want, TOLERANCES[precision], f"{name}({shown})")
    return check


@pytest.fixture
def triton_on_the_cpu():
    """Triton's kernels run in the simulator, on tensors of the CPU."""
    from lab import simulator

    simulator.activate_triton()
    yield
    simulator.deactivate_triton()


@pytest.fixture
def command(monkeypatch, capsys):
    """command(app, name, *words) -> (exit code, stdout, stderr) of a floor's command, in this
    process."""
    from lab.terminal import main  # here: a check runs no command, and it takes a moment

    def run(app, name, *words):
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        with pytest.raises(SystemExit) as done:
            main(app, name)
        return done.value.code, *capsys.readouterr()
    return run
