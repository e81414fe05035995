"""A lesson's ladder: a row for each step with its bytes, its sectors and what changed."""

import importlib
from typing import NamedTuple

import pytest

from lab import simulator
from lab.measure.ladder import table

# lesson -> the sizes it is counted at here, and the columns of its bytes and of its sectors
LADDERS = {
    "k01_vector_add": ((256,), "bytes", "sectors"),
    "k02_transpose": ((32, 32), "bytes", "load store"),
    "k03_reduce": ((1024,), "bytes", "sectors"),
    "k04_matmul_naive": ((32, 16, 32), "asked", "sectors load store"),
    "k05_matmul_tiled": ((32, 32, 32), "asked", "sectors"),
    "k06_matmul_registers": ((32, 32, 8), "asked", "sectors"),
    "k07_softmax": ((1, 512), "reads writes", "sectors"),
    "k08_rmsnorm": ((1, 512), "reads writes moved", "sectors"),
    "k09_rope": ((2, 2, 1, 64), "asked", "sectors"),
    "k10_swiglu": ((32, 32, 32), "reads writes moved", "sectors"),
    "k11_cross_entropy": ((1, 512), "asked", "sectors"),
    "k12_tensor_cores": ((16, 16, 16), "bytes", "sectors"),
    "k13_flash_attention": ((64, 16, 16), "reads writes", "sectors"),
    "k14_paged_attention": ((64, 4, 2, 16, 2), "reads writes", "sectors"),
    "k15_quantized_matmul": ((8, 2048, 128), "weights scales", "sectors"),
    "k16_warp_tiles": ((128, 128, 16), "asked wanted wavefronts distance"),
    "k17_pipelines": ((64, 64, 64), "barriers conflicts shared"),
    "k18_flash_backward": ((32, 16, 16), "products largest"),
    "k19_fp8_matmul": ((16, 64, 128), "operands scales"),
    "k20_grouped_gemm": ((12, 2, 4, 16, 16), "launches host_waits rows"),
}


@pytest.fixture(scope="module", autouse=True)
def triton_on_the_cpu():
    simulator.activate_triton()
    yield
    simulator.deactivate_triton()


@pytest.mark.parametrize("lesson", LADDERS)
def test_ladder(lesson):
    sizes, *columns = LADDERS[lesson]
    steps = importlib.import_module(f"layer1_kernels.bench.{lesson}").ladder(*sizes)
    assert len({step.changed for step in steps}) == len(steps)
    for step in steps:
        for column in " ".join(columns).split():
            counted = getattr(step, column)
            assert (counted is None) == (column == "sectors" and step.name.startswith("PyTorch"))
            assert counted is None or counted >= 0
    head, *rows = table(steps).splitlines()
    assert len(rows) == len(steps)
    assert max(map(len, (head, *rows))) <= 120      # a notebook's line
    assert all(row.endswith(step.changed) for row, step in zip(rows, steps, strict=True))


def test_table():
    class Step(NamedTuple):
        name: str
        at_once: int
        share: float
        changed: str

    assert table([Step("first", 1234567, 1 / 3, "begins"), Step("second step", 4, None, "ends")]) \
        == ("step           at once   share  changed\n"
            "first        1,234,567  0.3333  begins\n"
            "second step          4       -  ends")
