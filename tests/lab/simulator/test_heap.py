"""malloc, free, new and delete in a kernel."""

import numpy as np
import pytest

from .conftest import error_of, run

KERNEL = 'extern "C" __global__ void k(int* y, int n) {\n    int t = threadIdx.x;\n    %s\n}'


def test_threads_have_arrays_of_their_own(rng):
    y, m = rng.integers(0, 100, 128).astype(np.int32), np.arange(128) % 64 % 5 + 1
    want = y * m * (m + 1) // 2
    run(KERNEL % """int m = t % 5 + 1, sum = 0, *mine = y + 64 * blockIdx.x + t;
    int* a = (int*)malloc(sizeof(int) * m);
    for (int i = 0; i < m; i++) a[i] = (i ? a[i - 1] : 0) + *mine;
    for (int i = 0; i < m; i++) sum += a[i];
    *mine = sum;
    free(a);""", 2, 64, y, 0)
    assert np.array_equal(y, want)


def test_new_and_delete_of_objects():
    y = np.zeros(32, np.int32)
    run("struct Pair { int a, b; __device__ Pair(int a) : a(a), b(2 * a) {} };\n" + KERNEL % """
    Pair* p = t % 2 ? new Pair(t) : nullptr;
    y[t] = p ? p->a + p->b : -1;
    delete p;""", 1, 32, y, 0)
    assert np.array_equal(y, np.where(np.arange(32) % 2, 3 * np.arange(32), -1))


def test_a_full_heap_gives_null_and_a_freed_block_may_be_had_again():
    y = np.zeros(4, np.int32)
    run(KERNEL % """for (int i = 0; i < 4; i++) {
        void* p = malloc(i == 1 ? 9 << 20 : 7 << 20);
        y[i] = p != nullptr;
        if (i != 2) free(p);
    }""", 1, 1, y, 0)
    assert np.array_equal(y, [1, 0, 1, 0])


@pytest.mark.parametrize("body, kind, words", [
    ("int* a = (int*)malloc(8); a[n] = 1; y[t] = a[n];", "out_of_bounds", "the heap of malloc()"),
    ("int* a = (int*)malloc(8); free(a); free(a + n - n);", "out_of_bounds", "freed before"),
    ("free(y + n);", "out_of_bounds", "did not return")])
def test_misuse_is_found(body, kind, words):
    error = error_of(KERNEL % body, 1, 1, np.zeros(1, np.int32), 3 << 20)
    assert error.kind == kind and error.line == 3 and words in str(error)


def test_memory_that_was_freed_is_another_threads_without_a_race():
    """160 blocks are more than one wave."""
    n = 160 * 256
    y = np.zeros(n, np.int32)
    launch = run(KERNEL % """int i = blockIdx.x * 256 + t, *p = (int*)malloc(16);
    p[0] = i; p[1] = 2 * i;
    y[i] = p[0] + p[1];
    free(p);""", 160, 256, y, 0)
    assert not launch.warnings and np.array_equal(y, 3 * np.arange(n))
