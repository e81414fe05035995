"""The shipped kernels, compiled for Hopper: rules that hold, and a record that is up to date."""

import json

import pytest

from lab.author import hopper_report

CLEAN = {"warps": 8, "registers": 120, "spilled_bytes": 0, "shared_bytes": 1024, "wgmma": 4,
         "mma_sync": 0, "cp_async": 0, "tma_loads": 0, "widest_copy": 0, "widest_load": 16,
         "widest_store": 16, "serialised": [], "needs": ["wgmma"], "may_spill": 4, "blocks": 2,
         "limited_by": "registers"}


@pytest.mark.parametrize("change, says", [
    ({}, None),
    ({"spilled_bytes": 4}, None),
    ({"spilled_bytes": 8}, "spills 8 bytes a thread"),
    ({"serialised": ["non wgmma instructions"]}, "wait for each other"),
    ({"shared_bytes": 233_000}, "233000 bytes of shared memory"),
    ({"wgmma": 0, "mma_sync": 9}, "has no wgmma"),
    ({"widest_load": 4}, "loads at most 4 bytes a lane"),
    ({"widest_load": 4, "widest_copy": 16}, None),
    ({"widest_load": 4, "widest_copy": 8}, "loads at most 8 bytes a lane"),
])
def test_faults(change, says):
    found = hopper_report.faults("matmul_kernel", CLEAN | change)
    assert (not found) if says is None else (len(found) == 1 and says in found[0]), found


def test_faults_of_a_persistent_kernel():
    """The TMA has no width a lane."""
    needs = CLEAN | {"needs": ["wgmma", "tma_loads"]}
    by_tma = needs | {"widest_load": 0, "widest_store": 0, "tma_loads": 6}
    assert hopper_report.faults("matmul_persistent", by_tma) == []
    assert hopper_report.faults("matmul_persistent", needs) == [
        "matmul_persistent has no tma_loads"]


@pytest.mark.slow
@pytest.mark.parametrize("module", hopper_report.modules())
def test_shipped_kernels(module):
    same_compiler = hopper_report.compilers().items() <= record().items()
    for name, row in hopper_report.rows(hopper_report.modules()[module]).items():
        assert hopper_report.faults(name, row) == []
        known = recorded()[module].get(name, {})
        assert known.get("warps") == row["warps"], f"{name}: run `make compiled`"
        assert not same_compiler or known == row, f"{name}: run `make compiled`"


def test_the_record_is_without_faults():
    assert set(recorded()) == set(hopper_report.modules()), "run `make compiled`"
    for kernels in recorded().values():
        for name, row in kernels.items():
            assert hopper_report.faults(name, row) == []


def record():
    return json.loads(hopper_report.FILE.read_text("utf-8"))


def recorded():
    return record()["modules"]
