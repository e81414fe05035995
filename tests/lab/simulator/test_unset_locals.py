"""Local variables that were never set: reported though the compiler may have folded them away."""

from pathlib import Path

import numpy as np
import pytest

from lab import simulator
from lab.simulator.unset import Rehearsal, may_declare_without_value, suspicious

from .conftest import error_of, run

LESSONS = Path(__file__).parents[3] / "layer1_kernels"
HEAD = 'extern "C" __global__ void k(const float* x, float* y, int n) {\n    int t = threadIdx.x;\n'

# source, the line that reads too early
UNSET = {
    "plain": (HEAD + """    float s;
    for (int i = 0; i < n; i++) s += x[i];
    y[t] = s;
}""", 4),
    "known number of turns": (HEAD + """    float s;
    for (int i = 0; i < 4; i++) s += x[i];
    y[t] = s;
}""", 4),
    "straight": (HEAD + """    float s;
    s += x[t];
    y[t] = s;
}""", 4),
    "array": (HEAD + """    float s[4];
    for (int i = 0; i < 8; i++) s[i % 4] += x[i];
    y[t] = s[0] + s[1] + s[2] + s[3];
}""", 4),
    "array element": (HEAD + """    float s[2];
    s[0] = 0;
    for (int i = 0; i < 8; i++) { s[0] += x[i]; s[1] += x[i] * x[i]; }
    y[t] = s[0] + s[1];
}""", 5),
    "one branch": (HEAD + """    float s;
    if (n > 100) s = 1;
    y[t] = s;
}""", 5),
    "one branch of the threads": (HEAD + """    float s;
    if (t < 16) s = x[t];
    y[t] = s * 2;
}""", 5),
    "carried by a loop": (HEAD + """    float last;
    for (int i = 0; i < n; i++) {
        y[i] = x[i] - last;
        last = x[i];
    }
}""", 5),
    "in a function": ("""__device__ float sum(const float* x) {
    float s;
    for (int i = 0; i < 4; i++) s += x[i];
    return s;
}
""" + HEAD + """    y[t] = sum(x);
}""", 3),
    "in a template": ("""template <typename T, int N> __device__ T sum(const T* x) {
    T s;
    for (int i = 0; i < N; i++)
        s += x[i];
    return s;
}
""" + HEAD + """    y[t] = sum<float, 4>(x);
}""", 4),
    "member of a struct": ("""struct Both { float sum, squares; };
""" + HEAD + """    Both s;
    s.sum = 0;
    for (int i = 0; i < 4; i++) {
        s.sum += x[i];
        s.squares += x[i] * x[i];
    }
    y[t] = s.sum + s.squares;
}""", 8),
    "an array set in part": (HEAD + """    float s[4];
    for (int j = 0; j < 3; j++) s[j] = 0;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) s[j] += x[i];
    y[t] = s[0] + s[1] + s[2] + s[3];
}""", 6),
    "in a member function": ("""struct Sum {
    float s, squares;
    __device__ void clear() { s = 0; }
    __device__ void add(float v) { s += v; squares += v * v; }
};
""" + HEAD + """    Sum sum;
    sum.clear();
    for (int i = 0; i < 4; i++) sum.add(x[i]);
    y[t] = sum.s + sum.squares;
}""", 4),
    "declared by a macro": ("""#define SUM float s
""" + HEAD + """    SUM;
    for (int i = 0; i < 4; i++) s += x[i];
    y[t] = s;
}""", 5),
    "flags together": (HEAD + """    bool large, small;
    if (t < 16) { large = x[t] > 1; small = x[t] < -1; }
    bool both = large & small;
    if (both) y[t] = 1;
}""", 6),
    "decides a branch": (HEAD + """    int seen;
    for (int i = 0; i < 4; i++)
        if (x[i] > 2) seen = 1;
    if (seen) y[t] = 1;
}""", 6),
}


@pytest.mark.parametrize("case", UNSET)
def test_a_variable_that_was_not_set(case):
    source, line = UNSET[case]
    x, y = np.zeros((2, 64), np.float32)
    error = error_of(source, 1, 32, x, y, 8)
    assert error.kind == "uninitialised", error
    assert "a local variable" in str(error) and "give it a value where it is declared" in str(error)
    assert line == error.line or f"read in line {line}" in str(error), error
    assert not y.any(), "a rehearsal must not write"


SET = {
    "every branch": """    float s;
    if (n > 4) s = 1; else s = 2;
    y[t] = s;""",
    "by a loop that runs": """    float last;
    for (int i = 0; i < 4; i++) last = x[i];
    y[t] = last;""",
    "used where it was set": """    float v;
    if (t < 16) v = x[t];
    if (t < 16) y[t] = v;""",
    "a flag guards it": """    float best; bool any = false;
    for (int i = 0; i < n; i++)
        if (!any || x[i] > best) { best = x[i]; any = true; }
    if (any) y[t] = best;""",
    "by a function": """    float lo, hi;
    sincosf(x[t], &lo, &hi);
    y[t] = lo + hi;""",
    "an array by a loop": """    float s[8];
    for (int j = 0; j < 8; j++) s[j] = 0;
    for (int i = 0; i < n; i++) for (int j = 0; j < 8; j++) s[j] += x[i];
    for (int j = 0; j < 8; j++) y[j] = s[j];""",
    "a vector by its members": """    float4 v;
    v.x = v.y = v.z = x[t];
    v.w = 0;
    reinterpret_cast<float4*>(y)[t % 16] = v;""",
    "flags together": """    bool large, small;
    if (t < 16) { large = x[t] > 1; small = x[t] < -1; }
    bool either = large | small, both = large & small;
    if (t < 16 && (either | both)) y[t] = 1;""",
    "shuffled and not used": """    float v;
    if (t < 16) v = x[t];
    float w = __shfl_down_sync(~0u, v, 8);
    if (t < 8) y[t] = w;""",
}


@pytest.mark.parametrize("case", SET)
def test_a_variable_that_is_set_where_it_counts(case):
    x, y = np.zeros((2, 64), np.float32)
    assert run(HEAD + SET[case] + "\n}", 1, 32, x, y, 8).warnings == []


def test_predicates_that_were_never_set():
    source = """extern "C" __global__ void k(float* y) {
    asm volatile("{.reg .pred p, q, r, s; and.pred r, p, q; or.pred s, r, p;"
        "@s st.global.b32 [%0], 0;}" :: "l"(y) : "memory");
}"""
    error = error_of(source, 1, 128, np.zeros(1, np.float32))
    assert error.kind == "uninitialised" and "decides which way this goes" in str(error)


def test_no_rehearsal_without_checks():
    x, y = np.zeros((2, 64), np.float32)
    run(UNSET["plain"][0], 1, 32, x, y, 8, checks=False)
    with simulator.trace(checks=False):
        simulator.RawKernel(UNSET["array"][0], "k")(1, 32, (x, y, 8))


def test_a_rehearsal_leaves_no_trace(capsys):
    """What it prints, adds and counts stays in it."""
    source = """__device__ int launches;
extern "C" __global__ void k(int* y, int n) {
    int s;
    if (n > 0) s = atomicAdd(&launches, 1);
    if (n > 0) { y[0] = s + 1; printf("once\\n"); }
}"""
    y = np.zeros(1, np.int32)
    launch = run(source, 1, 1, y, 1)
    assert y[0] == 1 and capsys.readouterr().out == "once\n" and launch.warnings == []


@pytest.mark.parametrize("file", sorted(LESSONS.glob("*.cu")), ids=lambda file: file.stem)
def test_the_lessons_kernels_need_no_rehearsal(file):
    """Nothing in them can be read before it is set, so they are neither accused nor slowed."""
    module = simulator.RawModule(file)
    module.compile()
    for ptx in filter(None, (module.ptx, module.debug())):
        assert not [name for name, function in ptx.functions.items()
                    if function.is_kernel and suspicious(ptx, function)]


def test_a_launch_is_rehearsed_once(monkeypatch):
    runs = []
    monkeypatch.setattr(Rehearsal, "run", lambda run: runs.append(run.grid))
    kernel = simulator.RawKernel(HEAD + SET["used where it was set"] + "\n}", "k")
    x, y = np.zeros((2, 64), np.float32)
    for grid in (1, 1, 2, 1):
        kernel(grid, 32, (x, y, 8))
    assert runs == [(1, 1, 1), (2, 1, 1)]


def test_where_a_variable_may_be_without_a_value():
    may = may_declare_without_value
    assert all(may(s) for s in ("{ float s; }", "{ int a = 1, b; }", "{ T s[4]; }", "{ A<3> a; }",
                                "{ float *p; }", "#define S float s;\n", '#include "a.cuh"'))
    assert not any(may(s) for s in (
        "{ float s = 0; return s; }", "{ __shared__ float s[4]; }", "{ f(a); i++; }",
        "void k(float* x, int n) { for (int i = 0; i < n; i++) x[i] = 0; }",
        "{ float s[2] = {1, 2}; /* int a; */ x = y; }",
        "#include <cub/cub.cuh>\nvoid k() { int a[4]; }", "using a::b;",
        "{ if (a) f<2>(b); else g(c); while (d) h(e); }", "struct S; __device__ float f(int a);"))
