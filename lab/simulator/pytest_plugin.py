"""`pytest --simulate`: tests of Triton and CuPy kernels of any project, checked without a GPU.

Tensors that a test makes on "cuda" lie on the CPU, Triton's driver is the simulator, and where CuPy
is not installed, what tests need most of it is there, on numpy.
A kernel with a race, an address out of bounds or an uninitialised value fails its test with the
line of its source.
"""

import contextlib
import re
import sys
from importlib.util import find_spec

import pytest

from . import cupy_on_numpy
from .session import session, trace
from .triton_default import activate_triton, deactivate_triton

CUDA = re.compile(r"cuda(:\d+)?")


def pytest_addoption(parser):
    parser.addoption("--simulate", action="store_true",
                     help="run CUDA and Triton kernels in a simulator, with its checks, and make "
                          "tensors for a GPU on the CPU")


def pytest_configure(config):
    if config.getoption("--simulate"):
        stack = contextlib.ExitStack()
        config.add_cleanup(stack.close)
        simulate(stack)


def simulate(stack):
    """Until the stack is closed, kernels run in the simulator and a test sees a GPU."""
    before = session.chosen
    session.chosen = "simulator"
    stack.callback(setattr, session, "chosen", before)
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{__package__}."):
            module.__tracebackhide__ = True     # a failed test shows its own lines, not ours
    if find_spec("triton") is not None:
        activate_triton()
        stack.callback(deactivate_triton)       # after torch no longer says that there is a GPU
    if find_spec("torch") is not None:
        stack.enter_context(torch_on_the_cpu())
    if find_spec("cupy") is None:
        stack.enter_context(cupy_on_numpy.imported())


@contextlib.contextmanager
def torch_on_the_cpu():
    """Whatever asks torch for a CUDA device gets the CPU; torch.cuda says that there is a GPU."""
    import torch
    from torch.overrides import TorchFunctionMode

    def here(value):
        if isinstance(value, torch.device) and value.type == "cuda":
            return torch.device("cpu")
        return "cpu" if isinstance(value, str) and CUDA.fullmatch(value) else value

    class OnTheCpu(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is torch.Tensor.cuda:
                return args[0]
            return function(*map(here, args),
                            **{key: here(value) for key, value in (kwargs or {}).items()})

    says = {"is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0,
            "synchronize": lambda device=None: None, "empty_cache": lambda: None,
            "get_device_capability": lambda device=None: divmod(session.capability, 10),
            "get_device_name": lambda device=None: "simulator"}
    with contextlib.ExitStack() as stack:
        for name, answer in says.items():
            stack.callback(setattr, torch.cuda, name, getattr(torch.cuda, name))
            setattr(torch.cuda, name, answer)
        stack.enter_context(OnTheCpu())
        yield


@pytest.fixture
def launches():
    """The launches of a test, with their counts, such as `launches[-1].bytes_loaded`."""
    if session.device() != "simulator":
        pytest.fail("the fixture `launches` counts in the simulator: run pytest with --simulate")
    with trace() as record:
        yield record.launches


def pytest_report_header(config):
    if config.getoption("--simulate"):
        real = " CuPy is a stand-in on numpy." if "cupy" in sys.modules and hasattr(
            sys.modules["cupy"], "STAND_IN") else ""
        return f"kernels run in the simulator; tensors for a GPU lie on the CPU.{real}"
    return None
