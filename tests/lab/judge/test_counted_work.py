"""What a grader counts of a launch: no way to read or write memory goes uncounted."""

import numpy as np
import pytest

from lab import course, stub
from lab.course import SUFFIX
from lab.judge import check
from lab.judge.candidate import Candidate
from lab.judge.isolate import running

K01, K07 = course.find("k01_vector_add"), course.find("k07_softmax")
ASYNC = '''__shared__ float s[32];
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                 :: "r"((unsigned)__cvta_generic_to_shared(s + i)), "l"(x + i));
    asm volatile("cp.async.wait_all;");
    z[i] = s[i];'''
READS = {
    "plain": "z[i] = x[i];",
    "atomicOr": "z[i] = __int_as_float(atomicOr((int*)x + i, 0));",
    "atomicAdd of zero": "z[i] = atomicAdd((float*)x + i, 0.0f);",
    "atomicCAS": "z[i] = __int_as_float(atomicCAS((int*)x + i, 0, 0));",
    "volatile": "z[i] = ((volatile float*)x)[i];",
    "__ldg": "z[i] = __ldg(x + i);", "__ldcg": "z[i] = __ldcg(x + i);",
    "relaxed": 'asm volatile("ld.relaxed.gpu.f32 %0, [%1];" : "=f"(z[i]) : "l"(x + i));',
    "acquire": 'asm volatile("ld.acquire.gpu.f32 %0, [%1];" : "=f"(z[i]) : "l"(x + i));',
    "ldu": 'asm volatile("ldu.global.f32 %0, [%1];" : "=f"(z[i]) : "l"(x + i));',
    "asm": 'asm volatile("ld.f32 %0, [%1];" : "=f"(z[i]) : "l"(x + i));',
    "cp.async": ASYNC,
}
WRITES = {
    "atomicExch": "atomicExch(z + i, x[i]);", "atomicAdd": "atomicAdd(z + i, x[i]);",
    "red": 'asm volatile("red.global.add.f32 [%0], %1;" :: "l"(z + i), "f"(x[i]));',
    "__stcg": "__stcg(z + i, x[i]);", "volatile": "((volatile float*)z)[i] = x[i];",
    "relaxed": 'asm volatile("st.relaxed.gpu.f32 [%0], %1;" :: "l"(z + i), "f"(x[i]));',
}


def counted(body):
    """The launch of a kernel that copies 32 numbers from x to z by one warp."""
    text = f'extern "C" __global__ void copy(const float* x, float* z)\n{{\n' \
           f"    int i = threadIdx.x;\n    {body}\n}}\n"
    with running(K01, K01.sources | {"cuda": text}) as subject:
        x, z = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
        launch = subject.launch("copy", 1, 32, (x, z))
    assert (z == x).all()
    return launch


@pytest.mark.parametrize("way", READS)
def test_each_way_to_read_is_a_load(way):
    launch = counted(READS[way])
    assert (launch.requests("load"), launch.bytes("load")) == (1, 128)
    assert launch.memory("global", "load")["transactions"] == 4
    assert launch.sectors_per_request("load") == 4


@pytest.mark.parametrize("way", WRITES)
def test_each_way_to_write_is_a_store(way):
    launch = counted(WRITES[way])
    assert (launch.requests("store"), launch.bytes("store")) == (1, 128)
    assert launch.sectors_per_request("store") == 4


def test_an_atomic_in_shared_memory_counts_among_bank_conflicts():
    launch = counted("__shared__ int s[1024]; s[32 * i] = 0; __syncthreads();\n"
                     "    atomicAdd(s + 32 * i, 1); z[i] = x[i];")
    assert launch.memory("shared", "store")["transactions"] == 64
    assert launch.bank_conflicts() == 32


def graded(lesson, exercise, find, replacement):
    """The verdict on the reference with one change in an exercise."""
    language = lesson.exercise(exercise).language
    own = stub.extract(lesson.sources[language], exercise, language)
    assert own.count(find) == 1
    text = stub.splice(lesson.sources[language], own.replace(find, replacement), language).text
    sources = lesson.sources | {language: text}
    labels = {each: lesson.id + SUFFIX[each] for each in sources}
    return check.grade(lesson, Candidate(sources, labels), [exercise])[0]


def test_what_is_read_again_through_an_atomic_is_told():
    again = "z[i] = fmaxf(x[i], __int_as_float(atomicOr((int*)x + i, 0))) + y[i]"
    verdict = graded(K01, "add_grid_stride_cuda", "z[i] = x[i] + y[i]", again)
    assert verdict.verdict == "fail" and "bytes; 65,536 are enough" in verdict.message, verdict


@pytest.mark.parametrize("find, replacement, says", [
    ("expf(x[c] - row_m)",
     "expf(fmaxf(x[c], __int_as_float(atomicOr((int*)x + c, 0))) - row_m)",
     "writes each number 2 times, expected 1"),
    ("y[c] = expf(x[c] - row_m) / s;", "atomicExch(y + c, expf(x[c] - row_m) / s);",
     "reads each number 3 times, expected 2")])
def test_a_pass_too_many_by_an_atomic_is_told(find, replacement, says):
    """An atomic that loads is a store as well, and one that stores is a load."""
    verdict = graded(K07, "softmax_online_cuda", find, replacement)
    assert verdict.verdict == "fail", verdict
    assert says in verdict.message, verdict
