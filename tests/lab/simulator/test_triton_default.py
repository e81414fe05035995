"""Without a GPU, importing the simulator is all that Triton needs to run on CPU tensors."""

import subprocess
import sys
from pathlib import Path

import pytest

from lab.judge.plugin import NotProvenHere

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

PATH = f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[3])!r})\n"
KERNEL = """
import triton.language as tl

@triton.jit
def double(x, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(x + i, tl.load(x + i) * 2)

def works():
    x = torch.ones(64)
    double[(1,)](x, N=64)
    return x.tolist() == [2] * 64
"""
ORDERS = {
    "simulator first": "import lab.simulator\nimport torch, triton",
    "triton first": "import torch, triton\nimport lab.simulator",
    "after a failure": """import torch, triton
try:
    triton.runtime.driver.active
except RuntimeError as error:
    assert "0 active drivers" in str(error)
else:
    assert 0
import lab.simulator""",
}


def python(tmp_path, text, *options):
    """Run a script in a process of its own -> what it prints."""
    if torch.cuda.is_available():
        raise NotProvenHere("what Triton does without a GPU: there is one")
    file = tmp_path / "script.py"
    file.write_text(text)
    done = subprocess.run([sys.executable, *options, file], capture_output=True, text=True,
                          cwd=Path(__file__).parents[3], check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("order", ORDERS)
def test_the_import_is_enough(tmp_path, order):
    python(tmp_path, PATH + ORDERS[order] + KERNEL + "assert works()\n")


def test_switching_it_off_and_on(tmp_path):
    python(tmp_path, PATH + ORDERS["simulator first"] + KERNEL + """
assert works()
lab.simulator.deactivate_triton()
try:
    works()
except RuntimeError as error:
    assert "active drivers" in str(error)
else:
    assert 0
lab.simulator.activate_triton()
assert works()
""")


def test_a_gpu_keeps_the_first_place(tmp_path):
    """Where another driver is active, the simulator is not."""
    python(tmp_path, PATH + """import lab.simulator
import triton
from triton.backends import backends
backends["nvidia"].driver.is_active = lambda: True
assert [name for name, b in backends.items() if b.driver.is_active()] == ["nvidia"]
""")


def test_nobody_pays_for_triton_who_does_not_use_it(tmp_path):
    out = python(tmp_path, PATH + "import lab.simulator", "-X", "importtime")
    modules = {line.split("|")[-1].strip().split(".")[0] for line in out.splitlines()}
    assert "lab" in modules and not modules & {"triton", "torch"}


def test_arrays_of_fp8_make_it_a_gpu_that_has_them(tmp_path):
    """Also beside launches without; what was chosen by hand stays."""
    python(tmp_path, PATH + ORDERS["simulator first"] + KERNEL + """
@triton.jit
def widen(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i).to(tl.float32) * 2)

x, y = torch.ones(64).to(torch.float8_e4m3fn), torch.zeros(64)
for _ in range(2):
    assert works()
    widen[(1,)](x, y, N=64)
    assert y.tolist() == [2] * 64
assert triton.runtime.driver.active.get_device_capability() == (8, 9)
lab.simulator.activate_triton()
try:
    widen[(1,)](x, y, N=64)
except triton.CompilationError as error:
    assert "fp8e4nv not supported" in str(error)
else:
    assert 0
""")
