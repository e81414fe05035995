"""A lesson in each language with everything in it, for the tests of stubs and splices."""

import textwrap

import pytest

from lab import stub

PYTHON = '''\
"""k99 · A lesson with everything in it."""

from dataclasses import dataclass
import functools as ft

BLOCK = 128         # threads


def jit(function):
    return function


# ---- the oracle


@jit
@ft.lru_cache(
    maxsize=None,       # exercise: no mark, this comes after code
)
def total(numbers, *, scale: float = 1.0) -> float:
    """The sum, scaled.

    # exercise: no mark either, this is a docstring
    """
    # Each is read once.
    answer = 0.0
    # exercise: add them up
    for number in numbers:
        # one at a time
        answer += number

    return answer * scale
    # a comment that gives the answer away


def total_of_two(a, b):     # a name that begins like another
    return total((a, b))


def one_line(x): return x + 1


def grüße(größe):
    """Non-ASCII: größer als ß?"""
    wörter = {"ä": größe}
    return wörter["ä"] * 2


async def fetch(source):
    """Await it."""
    async with source as rows:
        # exercise: collect the rows
        return [row async for row in rows]


def nested(x):
    for k in range(3):
        with open(x) as file:
            if k:
                # exercise: read it
                return file.read()
        x += 1
    return None


def outer(n):
    def inner(m):
        return m + n

    class Local:
        def total(self):
            return n

    return inner(1) + Local().total()


@dataclass(
    frozen=True,
)
class Pool(dict):
    """Pages."""

    pages: int
    SLOTS = 16

    def take(self, n):
        """Take n pages."""
        # exercise: enough left?
        if n > self.pages:
            raise ValueError(n)
        return self.pages - n

    @property
    def free(self):
        return self.pages

    @free.setter
    def free(self, n):
        self.pages = n

    class Inner:
        def take(self):
            return 1


TABLE = {"total": total}
if __name__ == "__main__":
    print(total([1, 2]))
'''
PYTHON_EXERCISES = ["total", "fetch", "nested", "Pool.take"]
PYTHON_NAMES = [*PYTHON_EXERCISES, "total_of_two", "one_line", "grüße", "outer", "Pool.free",
                "Pool.Inner.take"]

CUDA = r'''
// k99: a lesson with everything in it
#include <cuda_fp16.h>
#define TILE 32      // threads
#define CEIL(a, b) \
    (((a) + (b) - 1) / (b))
#if __CUDA_ARCH__ < 300 || defined(NOTHING)
#define LANES 31
#else
#define LANES 32
#endif

constexpr int WARPS = TILE / LANES;
__constant__ float weights[3] = {1.f, 2.f, 3.f};
struct __align__(8) Pair { float a, b; __device__ float sum() const { return a + b; } };
using Index = unsigned int;
template <int N> struct Tile { float x[N > 0 ? N : 1]; };

__device__ float twice(float x);        // a prototype: "{ not a body }"

/* a comment with a brace { and // another */
__device__ __forceinline__ float twice(float x) { return 2.f * x; }
__device__ half twice(half x) { return x + x; }

template <typename T, int B = (3 > 2 ? 32 : 64)>
__global__ void __launch_bounds__(256, 2)
transpose(const T* __restrict__ in,
          T* out, int n = 3)
{
    __shared__ T tile[B][B + 1];        // one more: no bank twice
    int x = blockIdx.x * B + threadIdx.x;
    // exercise: load the tile, wait, store it turned
    for (int y = 0; y < B; ++y) {
        tile[y][threadIdx.x] = in[y * n + x];
    }
    __syncthreads();
    for (int y = 0; y < B; ++y)
        out[x * n + y] = tile[threadIdx.x][y];
}

extern "C" __global__ void reduce(const float* x, float* out, int n) {
    float sum = 0.f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        if (i < n) {
            // exercise: add, and write when the last is read
            sum += twice(x[i]);
        }
        // done
    }
    const char* text = "} // exercise: no mark \" {";
    char brace = '{', quote = '\'';
    const char* raw = R"x(} " { // exercise: none )" )x";
    if (text != raw && brace != quote) out[0] = sum;
}

extern "C" {
__device__ Pair operator+(Pair p, Pair q) { return {p.a + q.a, p.b + q.b}; }
__global__ void grüße(float* x) { x[0] = 0.f; }  // non-ASCII
}

namespace inner {
namespace {
__device__ auto half_of(float x) -> float { return x / 2; }
}
__device__ float pick(int k) {
    switch (k) {
        case 0:
            // exercise: choose
            return 1.f;
        default: return half_of(2.f);
    }
}
}

__global__ void wait(volatile int* flag) {
    int spins = 0;
    while (spins < 10) {
        // exercise: wait for the flag
        if (*flag) break;
        spins++;
    }
}

__device__ int branches(int n) {
#if __CUDA_ARCH__ >= 800
    for (int k = 0; k < n; k++) {
#else
    for (int k = n; k; k--) {
#endif
        if (k == 7) return k;
    }
    // exercise: if there was no 7
    return 0;
}
'''
CUDA_EXERCISES = ["transpose", "reduce", "pick", "wait", "branches"]
CUDA_NAMES = [*CUDA_EXERCISES, "twice", "operator+", "grüße", "half_of"]
SAMPLES = [("python", PYTHON, PYTHON_EXERCISES, PYTHON_NAMES),
           ("cuda", CUDA, CUDA_EXERCISES, CUDA_NAMES)]
samples = pytest.mark.parametrize(("language", "source", "exercises", "names"), SAMPLES,
                                  ids=["python", "cuda"])


def dented(text):
    return textwrap.dedent(text).lstrip("\n")


def spliced(source, answer, language="python"):
    """The spliced text, once its origins are right and splicing again changes nothing."""
    result = stub.splice(source, answer, language)
    lines, answers = result.text.split("\n"), answer.replace("\r\n", "\n").split("\n")
    assert len(result.origin) == len(lines) - 1 and lines[-1] == ""
    for line, origin in zip(lines, result.origin, strict=False):
        learners = answers[origin - 1].strip() if origin else ""
        assert learners in line or line.strip() in learners
    assert stub.splice(result.text, answer, language).text == result.text
    return result.text
