"""Speed points where an instructor grades: only compiled code enters a process of the course.

No GPU is needed: the simulator stands in for it, and the tests inspect what a driver would load.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest
import triton
import triton.language as tl

from lab import course
from lab.grading import box, sandbox
from lab.judge import pace
from lab.judge.candidate import Candidate
from lab.judge.plugin import NotProvenHere
from lab.remote import compiler
from lab.simulator import RawModule, cuda
from lab.simulator.session import session

LESSON = course.find("k07_softmax")
SMALL = [pace.numbers("float32", 3, 100)]
CANARY = "from pathlib import Path\nPath('/tmp/met').write_text('the learner was here')\n"


def sent(change):
    """The reference with its Python text changed."""
    return Candidate(LESSON.sources | {"python": change(LESSON.sources["python"])}, {})


@pytest.fixture
def simulated(monkeypatch):
    """The simulator for the GPU in the process of the course, and in the one beside it."""
    child, running = sandbox.Sandbox.child, sandbox.running
    monkeypatch.setattr(sandbox.Sandbox, "child", lambda self, kind: child(
        self, "kernels" if kind == "device" else kind))
    monkeypatch.setattr(sandbox, "running", lambda *given, on_device=False, **named: running(
        *given, **named))


def compared(candidate, folder):
    """Compare one call of softmax on both sides; whether the learner's Python ran on its side."""
    Path(folder).chmod(0o755)
    place = sandbox.Sandbox(box.best()[0], LESSON, candidate, folder)
    try:
        with place.pace(LESSON, candidate) as sides:
            calls = [side.make("lab.remote.pace_calls:Calls", side.softmax, SMALL, "cpu")
                     for side in sides]
            for each in calls:
                each.prepare(1, [0])
                each.run(1)
            pace.same("softmax", *(each.prints(2) for each in calls))
            return sides[0].make("pathlib:Path", "/tmp/met").exists()
    finally:
        place.close()


def test_the_learners_kernel_is_what_runs(simulated, tmp_path):
    compared(sent(lambda text: text), tmp_path)
    wrong = sent(lambda text: text.replace("e / tl.sum(e), c < C", "e, c < C"))
    with pytest.raises(AssertionError, match="not the one for that call's inputs"):
        compared(wrong, tmp_path)


def test_the_learners_python_never_meets_the_clock(simulated, tmp_path):
    """A launcher of their own and what runs at the import stay in the other box."""
    mine = sent(lambda text: text + "\n\ndef softmax(x):\n    return x * 0\n\n\n" + CANARY)
    assert not compared(mine, tmp_path)


@pytest.fixture
def started(monkeypatch, tmp_path):
    """What Sandbox asks the warm process for, and its boxes' mounts."""
    asked = SimpleNamespace(children=[], binds=[])
    monkeypatch.setattr(sandbox, "Child", lambda *given: (
        asked.children.append(given), SimpleNamespace())[1])
    monkeypatch.setattr(sandbox, "Box", lambda level, binds, user, loopback: (
        asked.binds.append(binds), SimpleNamespace(request=dict, close=lambda: None))[1])
    monkeypatch.setattr(sandbox, "gpu_nodes", lambda: ["/dev/nvidia0", "/dev/nvidiactl"])
    place = sandbox.Sandbox("bubblewrap", LESSON, sent(lambda text: text), tmp_path, "warm")
    yield place, asked
    place.close()


def test_on_a_gpu_the_process_has_met_no_simulator_and_sees_the_device(started):
    place, asked = started
    for kind in ("device", "kernels", "candidate"):
        place.child(kind)
    requests = [request for _, request, _, _ in asked.children]
    assert [r["simulator"] for r in requests] == [False, True, True]
    assert ["shown" in r for r in requests] == [True, True, False]      # another one compiles
    assert ["lab.remote.warmup" in modules for _, _, modules, _ in asked.children] == [
        False, True, True]
    assert [warm for *_, warm in asked.children] == [None, "warm", "warm"]
    assert ["/dev/nvidia0" in binds for binds in asked.binds] == [True, False, False]


@pytest.mark.parametrize("level", box.LEVELS[:2])
def test_a_device_can_be_opened_in_a_box(level):
    """/dev/zero under another name; a mount for data refuses."""
    if problem := box.trial(level):
        raise NotProvenHere(problem)
    one = box.Box(level, {"/dev/nvidia0": "/dev/zero", "/data/zero": "/dev/zero"})
    inside = Path(f"/proc/{one.holder}/root")
    try:
        with open(inside / "dev/nvidia0", "rb") as file:
            assert file.read(3) == b"\0\0\0"
        with pytest.raises(PermissionError):
            open(inside / "data/zero", "rb").close()
    finally:
        one.close()


# ---- what comes out of the box in which a kernel is compiled

SOURCE = "template <typename T> __global__ void twice(T *x) { x[threadIdx.x] *= 2; }"
NAME = "twice<float>"


@pytest.fixture
def compiles_elsewhere(monkeypatch):
    """The other process of `compiling.elsewhere`, in this one: the questions it gets."""
    asked = []

    def ask(what, *given):
        from lab.simulator import nvrtc

        asked.append((what, *given[4:]))
        found = compiler.cuda(None, what, *given)
        return nvrtc.Compiled(*found) if what == "ptx" else found

    monkeypatch.setattr(session, "compiler", ask)
    return asked


def test_cuda_c_comes_as_a_cubin_for_the_device(compiles_elsewhere):
    loaded = []

    def raw_module(path, enable_cooperative_groups):
        loaded.append((Path(path).read_bytes(), enable_cooperative_groups))
        Path(path).unlink()
        return SimpleNamespace(get_function=lambda name: name)

    cupy = SimpleNamespace(
        RawModule=raw_module,
        cuda=SimpleNamespace(Device=lambda: SimpleNamespace(compute_capability="90")))
    module = RawModule(SOURCE, names=[NAME], is_text=True)
    module.function(NAME)
    lowered = module.compiled.names[NAME]
    assert cuda.gpu_kernel(cupy, module, NAME) == cuda.gpu_kernel(cupy, module, NAME) == lowered
    (binary, cooperative), = loaded
    assert binary.startswith(b"\x7fELF") and lowered.encode() in binary and not cooperative
    assert compiles_elsewhere == [("ptx", "sm_80"), ("cubin", "sm_90")]


@triton.jit
def fill(x, BLOCK: tl.constexpr):
    tl.store(x + tl.arange(0, BLOCK), 1.0)


@pytest.mark.parametrize("arch, target", [(80, ".target sm_80"), (90, ".target sm_90a")])
def test_triton_is_compiled_for_the_device_that_asks(arch, target):
    module = SimpleNamespace(fill=fill)
    found = compiler.triton(module, "fill", ["x", "BLOCK"], {"x": "*fp32", "BLOCK": "constexpr"},
                             {(1,): 32}, {}, {"num_warps": 1}, arch)
    assert target in found["ptx"] and found["cubin"].startswith(b"\x7fELF")
    assert found["name"] == "fill" and found["num_warps"] == 1


@pytest.mark.parametrize("folders, inside", [
    (["/home/ada/gpu", "/usr"], "/course"), (["/course", "/usr"], "/lesson"),
    (["/lesson/gpu", "/course/.venv"], "/desk"), (["/courses/gpu", "/usr"], "/course")])
def test_a_box_has_its_tree_where_it_covers_no_other(folders, inside):
    """A course cloned at /course was covered by the learner's tree, and no box started."""
    assert sandbox.place_inside(folders) == inside
