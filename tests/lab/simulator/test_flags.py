"""Flags, locks and tickets: a right handshake of blocks is silent, and a wrong one is named."""

import numpy as np
import pytest

from lab.simulator.hearsay import Hearsay
from lab.simulator.ordering import Order

from .conftest import counted, ints, race, run

FENCE_REDUCTION = """__device__ unsigned int done = 0;
extern "C" __global__ void k(const float* x, QUALIFIER float* part, float* out, int n) {
    __shared__ float s[64];
    __shared__ bool last;
    int t = threadIdx.x;
    s[t] = x[blockIdx.x * 64 + t];
    __syncthreads();
    for (int o = 32; o; o >>= 1) {
        if (t < o) s[t] += s[t + o];
        __syncthreads();
    }
    if (t == 0) {
        part[blockIdx.x] = s[0];
        WRITER
        last = atomicInc(&done, gridDim.x - 1) == gridDim.x - 1;
        READER
    }
    __syncthreads();
    if (last && t == 0) {
        float sum = 0;
        for (int b = 0; b < gridDim.x; b++) sum += part[b];
        *out = sum;
    }
}"""


BEFORE_ITS_FENCE = "a flag tells only what a thread did before its last fence"
NO_FLAG_TELLS = "no flag that this block has read tells of it"
NOT_FENCED_SINCE = "this block has read a flag that tells of it, but has not fenced since"


@pytest.mark.parametrize("qualifier", ["volatile", ""])
@pytest.mark.parametrize("writer, reader, says", [
    (False, False, BEFORE_ITS_FENCE), (False, True, NO_FLAG_TELLS),
    (True, False, NOT_FENCED_SINCE), (True, True, "")])
@pytest.mark.parametrize("blocks", [8, 1024])
def test_threadfence_reduction(qualifier, writer, reader, says, blocks):
    """The sum and the ticket keep their order if both sides fence; volatile orders nothing."""
    x, out = np.ones(64 * blocks, np.float32), np.zeros(1, np.float32)
    launch = run(FENCE_REDUCTION, blocks, 64, x, counted(blocks), out, 64 * blocks, options=(
        f"-DQUALIFIER={qualifier}", f"-DWRITER={'__threadfence();' * writer}",
        f"-DREADER={'__threadfence();' * reader}"))
    assert out[0] == x.sum()
    assert bool(launch.warnings) == bool(says)
    assert all("ordering not proven" in w and says in w for w in launch.warnings)


VOLATILE_FLAG = """extern "C" __global__ void k(volatile int* flag, volatile float* x, float* y) {
    int t = threadIdx.x;
    if (blockIdx.x == 0) {
        x[t] = 7;
        __syncthreads();
        if (t == 0) { WRITER flag[0] = 1; flag[0] = 2; }
    } else {
        if (t == 0) { while (flag[0] == 0); while (flag[0] != 2); READER }
        __syncthreads();
        y[t] = WHAT;
    }
}"""


@pytest.mark.parametrize("writer, reader, says", [
    (False, False, BEFORE_ITS_FENCE), (False, True, BEFORE_ITS_FENCE),
    (True, False, NOT_FENCED_SINCE), (True, True, "")])
def test_volatile_data_and_a_volatile_flag(writer, reader, says):
    """Other threads than the two at the flag: the barriers carry it to them and from them."""
    fences = f"-DWRITER={'__threadfence();' * writer}", f"-DREADER={'__threadfence();' * reader}"
    y = counted(64)
    launch = run(VOLATILE_FLAG, 2, 64, ints(1), counted(64), y,
                 options=(*fences, "-DWHAT=x[63 - t]"))
    assert (y == 7).all()
    assert bool(launch.warnings) == bool(says)
    assert all("ordering not proven" in w and says in w for w in launch.warnings)
    again = run(VOLATILE_FLAG, 2, 64, ints(1), counted(64), counted(64),
                options=(*fences, "-DWHAT=flag[0]"))
    assert again.warnings == []                 # who looks again at the flag relies on no order


LOOK_BACK = """struct Status { int flag; float value; };
extern "C" __global__ void k(const float* x, float* y, QUALIFIER int* flag, PLAIN float* sum,
                             PLAIN float* prefix) {
    __shared__ float s[64];
    __shared__ float before;
    int t = threadIdx.x, b = blockIdx.x;
    s[t] = x[b * 64 + t];
    __syncthreads();
    for (int o = 1; o < 64; o <<= 1) {
        float v = t >= o ? s[t - o] : 0;
        __syncthreads();
        s[t] += v;
        __syncthreads();
    }
    if (t == 0) {
        sum[b] = s[63];
        __threadfence();
        flag[b] = 1;
        float running = 0;
        for (int i = b - 1; i >= 0; i--) {
            while (flag[i] == 0);
            __threadfence();
            if (flag[i] == 2) { running += prefix[i]; break; }
            running += sum[i];
        }
        prefix[b] = running + s[63];
        __threadfence();
        flag[b] = 2;
        before = running;
    }
    __syncthreads();
    y[b * 64 + t] = s[t] + before;
}"""


@pytest.mark.parametrize("plain", ["", "volatile"])
def test_decoupled_look_back_scan(plain):
    n = 64 * 24
    x, y = np.ones(n, np.float32), np.zeros(n, np.float32)
    launch = run(LOOK_BACK, 24, 64, x, y, ints(24), counted(24), counted(24),
                 options=("-DQUALIFIER=volatile", f"-DPLAIN={plain}"))
    assert np.array_equal(y, np.cumsum(x))
    assert launch.warnings == []


FLAG = """extern "C" __global__ void k(QUALIFIER int* flag, float* x, float* y) {
    if (blockIdx.x == 0) {
        x[threadIdx.x] = 1;
        RELEASE
        flag[threadIdx.x] = 1;
    } else {
        LOOK (flag[threadIdx.x] == 0);
        ACQUIRE
        y[threadIdx.x] = x[threadIdx.x];
    }
}"""


@pytest.mark.parametrize("release, acquire, says", [
    ("__threadfence", "__threadfence", ""),
    ("__threadfence", "", "this block has read a flag that tells of it, but has not fenced since"),
    ("", "__threadfence", "a flag tells only what a thread did before its last fence"),
    ("__threadfence_block", "__threadfence", "no flag that this block has read tells of it"),
    ("__threadfence", "__threadfence_block", "this block has read a flag")])
def test_a_flag_needs_a_fence_on_either_side(release, acquire, says):
    """For all blocks, that is."""
    options = [f"-D{name}={call}{'();' * bool(call)}" for name, call in
               (("RELEASE", release), ("ACQUIRE", acquire))]
    launch = run(FLAG, 2, 32, ints(32), counted(32), counted(32),
                 options=("-DQUALIFIER=volatile", "-DLOOK=while", *options))
    assert bool(launch.warnings) == bool(says)
    if says:
        assert "ordering not proven" in launch.warnings[0] and says in launch.warnings[0]


def test_who_raises_a_flag_for_others_fences_after_the_barrier():
    source = """extern "C" __global__ void k(volatile int* flag, float* x, float* y) {
    if (blockIdx.x == 0) {
        x[threadIdx.x] = 1;
        BEFORE
        __syncthreads();
        if (threadIdx.x == 0) { AFTER *flag = 1; }
    } else {
        if (threadIdx.x == 0) { while (*flag == 0); __threadfence(); }
        __syncthreads();
        y[threadIdx.x] = x[63 - threadIdx.x];
    }
}"""
    fence = "__threadfence();"
    launch = run(source, 2, 64, ints(1), counted(64), counted(64),
                 options=("-DBEFORE=", f"-DAFTER={fence}"))
    assert launch.warnings == []
    launch = run(source, 2, 64, ints(1), counted(64), counted(64),
                 options=(f"-DBEFORE={fence}", "-DAFTER="))
    assert "meet at a barrier, then one of them must fence (for all blocks)" in launch.warnings[0]


def test_a_flag_needs_to_be_volatile_or_atomic():
    race(FLAG, 2, 32, ints(32), counted(), counted(),
         options=("-DQUALIFIER=", "-DRELEASE=", "-DLOOK=y[0] =", "-DACQUIRE="))


PASSED_ON = """extern "C" __global__ void k(int* flag, float* x, float* y) {
    int b = blockIdx.x, t = threadIdx.x;
    if (b > 0) {
        if (t == 0) {
            while (atomicAdd(flag, 0) < WAIT);
            __threadfence();
        }
        MEET
        y[32 * b + t] = x[32 * (b + BEHIND) + t];
    }
    x[32 * b + t] = b;
    __syncthreads();
    if (t == 0) {
        __threadfence();
        atomicAdd(flag, 1);
    }
}"""


def test_what_a_flag_tells_is_passed_on():
    """Block b waits for b flags: it knows of all blocks before it, by flag after flag.
    Its other threads know when they have met the one that waited."""
    def options(wait="b", meet="__syncthreads();", behind="-b"):
        return f"-DWAIT={wait}", f"-DMEET={meet}", f"-DBEHIND={behind}"
    for meet in ("__syncthreads();", "__syncwarp();"):
        launch = run(PASSED_ON, 4, 32, ints(), counted(32 * 4), counted(32 * 4),
                     options=options(meet=meet))
        assert launch.warnings == []
    race(PASSED_ON, 4, 32, ints(), counted(32 * 4), counted(32 * 4), options=options(meet=""))
    race(PASSED_ON, 4, 32, ints(), counted(32 * 4), counted(32 * 4),
         options=options(wait="1", behind="-1"))


def test_a_lock_and_a_ticket_tell_of_all_who_came_before():
    """Of the blocks that take a ticket in one step, only the last one knows of all; and tickets
    that are only for a block tell others nothing."""
    source = """extern "C" __global__ void k(int* ticket, float* part, float* out) {
    part[blockIdx.x] = 1;
    __threadfence();
    if (TAKE(ticket, 1) == gridDim.x - LAST) {
        __threadfence();
        float sum = 0;
        for (int b = 0; b < gridDim.x; b++) sum += part[b];
        *out = sum;
    }
}"""
    out = counted(1)
    assert run(source, 40, 1, ints(), counted(40), out,
               options=("-DLAST=1", "-DTAKE=atomicAdd")).warnings == []
    assert out[0] == 40
    for last, take in ((2, "atomicAdd"), (1, "atomicAdd_block")):
        wrong = run(source, 40, 1, ints(), counted(40), counted(1),
                    options=(f"-DLAST={last}", f"-DTAKE={take}"))
        assert "ordering not proven" in wrong.warnings[0]


def test_spin_locks():
    """With atomics, and with a volatile flag in shared memory."""
    count = ints()
    launch = run("""extern "C" __global__ void k(int* lock, int* count) {
    if (threadIdx.x == 0) {
        while (atomicCAS(lock, 0, 1) != 0);
        __threadfence();
        *count = *count + 1;
        __threadfence();
        atomicExch(lock, 0);
    }
}""", 16, 32, ints(), count)
    assert count[0] == 16 and launch.warnings == []
    y = counted(1)
    launch = run("""extern "C" __global__ void k(float* y) {
    __shared__ volatile int flag;
    __shared__ float value;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        value = 7;
        __threadfence_block();
        flag = 1;
    }
    if (threadIdx.x == 32) {
        while (flag == 0);
        __threadfence_block();
        y[0] = value;
    }
}""", 1, 64, y)
    assert y[0] == 7 and all("ordering not proven" in w for w in launch.warnings)


def test_a_fence_without_a_flag_makes_nobody_wait():
    """In shared memory and in an array, within a block and between two."""
    shared = """extern "C" __global__ void k(float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = 1;
    __threadfence_block();
    y[threadIdx.x] = s[63 - threadIdx.x];
}"""
    assert "only a fence between them" in str(race(shared, 1, 64, counted(64)))
    y = counted(64)
    run(shared.replace("__threadfence_block", "__syncthreads"), 1, 64, y)
    assert (y == 1).all()
    race("""extern "C" __global__ void k(float* x, float* y) {
    int i = blockIdx.x * 64 + threadIdx.x;
    x[i] = 1;
    __threadfence();
    y[i] = x[127 - i];
}""", 2, 64, counted(128), counted(128))


def test_a_lock_in_shared_memory_is_a_warning():
    """An atomic there may be the flag that a fence needs."""
    y = np.array([7, 0], np.float32)
    launch = run("""extern "C" __global__ void k(float* y) {
    __shared__ int flag;
    __shared__ float value;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        value = y[0];
        __threadfence_block();
        atomicExch(&flag, 1);
    }
    if (threadIdx.x == 32) {
        while (atomicAdd(&flag, 0) == 0);
        __threadfence_block();
        y[1] = value;
    }
}""", 1, 64, y)
    assert y[1] == 7 and any("ordering not proven" in w for w in launch.warnings)


def test_what_goes_round_is_noted_once():
    """A wait that spins and a loop of stores keep nothing for each round, but a store that somebody
    may have seen stays beside the next one."""
    notes, told, lanes = Hearsay(Order(2, 32)), {}, np.arange(4)
    for _ in range(100):
        notes.note(told, lanes, lanes, reads=False, writes=True)
    assert len(notes.events) == 1
    for _ in range(100):
        notes.note(told, lanes + 32, lanes, reads=True, writes=False)
    assert len(notes.events) == 2
    notes.note(told, lanes, lanes, reads=False, writes=True)
    notes.note(told, lanes + 32, lanes, reads=True, writes=False)
    assert len(notes.events) == 4
