"""in_64_bits tells a row that begins at 2^32 from row 0 by the threads that the simulator stops."""

import pytest

from lab.judge.addresses import FAR, ROWS, in_64_bits, tiles_in_64_bits
from lab.judge.subject import Raised
from lab.simulator import KernelError, RawKernel

SOURCE = """extern "C" __global__ void rows(float* c, int N)
{
    c[(%s)threadIdx.x * N + threadIdx.y] = 1;
}"""


class Plain:
    """A subject of one kernel, in this process."""

    def __init__(self, source):
        self.kernel = RawKernel(source, "rows")

    def launch(self, name, grid, block, args):
        try:
            self.kernel(grid if isinstance(grid, tuple) else (grid,), block, args)
        except KernelError as error:
            raise Raised({"type": "KernelError", "text": str(error)}) from None


@pytest.mark.parametrize("index, refused", [("size_t", False), ("long long", False), ("int", True),
                                            ("unsigned", True)])
def test_products_of_32_bits(index, refused):
    import numpy as np

    def check():
        in_64_bits(Plain(SOURCE % index), "rows", 1, (ROWS, 2), (np.zeros(2, np.float32), FAR), 2,
                   "c, m · N")

    if refused:
        with pytest.raises(AssertionError, match="30 threads reach beyond row 0 of c, m · N, "
                                                 "expected 32"):
            check()
    else:
        check()


@pytest.mark.parametrize("index, refused", [("size_t", False), ("int", True)])
def test_tiles_that_begin_with_row_16(index, refused):
    import numpy as np

    source = SOURCE.replace("threadIdx.x", "(16 * blockIdx.x + threadIdx.x)") % index

    def check():
        tiles_in_64_bits(Plain(source), "rows", (2,), (16, 2), (np.zeros(2, np.float32), FAR),
                         "m · N (c)")

    if refused:
        with pytest.raises(AssertionError, match="Make one factor of m · N .c. a size_t before"):
            check()
    else:
        check()


def test_what_touches_nothing_is_refused():
    with pytest.raises(AssertionError, match="0 threads reach beyond row 0 of c"):
        in_64_bits(Plain('extern "C" __global__ void rows(float* c, int N) {}'), "rows", 1, ROWS,
                   (None, FAR), 1, "c")


def test_another_failure_is_told_as_it_is():
    with pytest.raises(Raised, match="null pointer"):
        in_64_bits(Plain(SOURCE % "int"), "rows", 1, (ROWS, 2), (None, FAR), 2, "c")
