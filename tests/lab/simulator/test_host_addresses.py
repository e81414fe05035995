"""Tables of pointers: addresses that a kernel reads as numbers."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from lab import simulator  # noqa: E402

from .conftest import error_of, run  # noqa: E402

GATHER = """
extern "C" __global__ void k(const unsigned long long *table, float *out, int n) {
    const float *row = (const float *)table[blockIdx.x];
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        out[blockIdx.x * n + i] = row[i];
}
"""


def table_of(tensors, offset=0):
    return torch.tensor([t.data_ptr() + offset for t in tensors])


def test_a_table_of_pointers():
    rows, out = [torch.rand(100) for _ in range(5)], torch.zeros(5, 100)
    run(GATHER, 5, 32, table_of(rows), out, np.int32(100))
    assert torch.equal(out, torch.stack(rows))


def test_pointers_into_the_middle_of_one_tensor():
    whole, out = torch.rand(4, 100), torch.zeros(4, 100)
    run(GATHER, 4, 32, table_of(whole), out, np.int32(100))
    assert torch.equal(out, whole)


POKE = """
extern "C" __global__ void k(unsigned long long **tables, long long where) {
    float *first = (float *)tables[threadIdx.x][0];
    first[threadIdx.x] = 1.5f;
    ((float *)where)[threadIdx.x] += 2.0f;
}
"""


def test_tables_of_tables_and_addresses_as_numbers():
    targets, direct = [torch.zeros(4) for _ in range(4)], torch.ones(4)
    inner = [table_of([t]) for t in targets]
    run(POKE, 1, 4, table_of(inner), np.int64(direct.data_ptr()))
    assert torch.equal(torch.stack(targets), 1.5 * torch.eye(4)) and (direct == 3).all()


def test_beyond_the_tensor_is_out_of_bounds():
    rows, out = [torch.rand(100)], torch.zeros(1, 100)
    error = error_of(GATHER, 1, 32, table_of(rows, offset=4), out, np.int32(100))
    assert error.kind == "out_of_bounds" and error.source_line.endswith("row[i];")


def test_other_tensors_are_out_of_reach():
    """An address that was not put into the kernel's memory may not be used."""
    row, secret, out = torch.rand(100), torch.rand(100), torch.zeros(1, 100)
    apart = (secret.data_ptr() - row.data_ptr()) // 4
    source = GATHER.replace("row[i]", "row[i + 1LL * n]")
    run(source.replace("1LL * n", "0"), 1, 32, table_of([row]), out, np.int32(100))
    error = error_of(source.replace("1LL * n", f"({apart}LL)"), 1, 32, table_of([row]), out,
                     np.int32(100))
    assert error.kind == "out_of_bounds"


def test_a_dead_tensor_is_out_of_reach():
    row, out = torch.rand(100), torch.zeros(1, 100)
    table = table_of([row])
    del row
    with pytest.raises(simulator.KernelError) as caught:
        run(GATHER, 1, 32, table, out, np.int32(100))
    assert caught.value.kind == "out_of_bounds"
