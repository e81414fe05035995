"""Triton around its kernels: calls, options, tuners, hooks, printing, failing, the device."""

import linecache
import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402

from lab import simulator  # noqa: E402
from lab.simulator import ptx  # noqa: E402

from . import triton_kernels  # noqa: E402
from .triton_kernels import add_kernel, attention_kernel, matmul_kernel  # noqa: E402

pytestmark = pytest.mark.usefixtures("simulated_triton")


# ---- the language around a kernel

@triton.jit(noinline=True)
def cube(x):
    return x * x * x


@triton.jit
def square(x):
    return x * x


@triton.jit
def language_kernel(x, y, n, BLOCK: tl.constexpr, APPLY: tl.constexpr):
    tl.static_assert(BLOCK >= 32)
    tl.static_print("compiled for", BLOCK)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i, i < n, other=0.0)
    swapped = tl.inline_asm_elementwise("shf.l.wrap.b32 $0, $1, $1, 16;", "=r,r",
                                        [v.to(tl.int32, bitcast=True)], dtype=tl.int32,
                                        is_pure=True, pack=1)
    tl.store(y + i, APPLY(v) + cube(n), i < n)
    tl.store(y + BLOCK + i, swapped.to(tl.float32, bitcast=True), i < n)


def test_functions_calls_and_inline_assembly():
    x, y = torch.randn(32), torch.zeros(64)
    language_kernel[(1,)](x, y, 32, BLOCK=32, APPLY=square)
    assert torch.allclose(y[:32], x**2 + 32**3)
    bits = x.numpy().view(np.uint32)
    assert (y[32:].numpy().view(np.uint32) == (bits << 16 | bits >> 16)).all()


@pytest.mark.parametrize("warps, stages", [(1, 1), (8, 4), (16, 2)])
def test_any_number_of_warps_and_stages(warps, stages):
    a, b, c = torch.randn(64, 64).half(), torch.randn(64, 64).half(), torch.zeros(64, 64)
    matmul_kernel[(2, 2)](a, b, c, 64, 64, 64, 32, 32, 16, "ieee", num_warps=warps,
                          num_stages=stages)
    assert torch.allclose(c, a.float() @ b.float(), atol=1e-3)
    assert simulator.last_launch().block == (32 * warps, 1, 1)


@triton.jit
def hints_kernel(x, y, n, BLOCK: tl.constexpr):
    """Where the caches keep a line changes no value."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(0) * BLOCK >= n:
        return
    total = tl.load(x + i, i < n, eviction_policy="evict_last")
    total += tl.load(x + i, i < n, eviction_policy="evict_first")
    total += tl.load(x + i, i < n, cache_modifier=".cg") + tl.load(x + i, i < n, volatile=True)
    total += tl.load(x + i, i < n, cache_modifier=".cv")
    tl.store(y + i, total, i < n, cache_modifier=".wt")
    tl.store(y + n + i, total, i < n, eviction_policy="evict_first")
    tl.store(y + 2 * n + i, total, i < n, cache_modifier=".cs")


def test_cache_hints_early_return_and_compiler_options():
    x, y = torch.rand(100), torch.zeros(3, 100)
    hints_kernel[(4,)](x, y, 100, BLOCK=64, enable_fp_fusion=False, maxnreg=32)
    assert torch.allclose(y, (5 * x).expand(3, 100))


@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def heuristic_kernel(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(y + i, tl.load(x + i) + 1)
    else:
        tl.store(y + i, tl.load(x + i, i < n), i < n)


def test_heuristics():
    x = torch.rand(64)
    for n, more in ((64, 1), (50, 0)):
        y = torch.zeros(64)
        heuristic_kernel[(2,)](x, y, n, BLOCK=32)
        assert torch.equal(y[:n], x[:n] + more)


def test_hooks_and_warmup():
    seen, last = [], simulator.last_launch()
    kernel = add_kernel.warmup(torch.float32, torch.float32, torch.float32, 8, BLOCK=64, grid=(1,))
    assert kernel.asm["ptx"].count(".entry") == 1 and simulator.last_launch() is last
    triton.knobs.runtime.launch_enter_hook.add(lambda data: seen.append(data.get()["name"]))
    add_kernel.add_pre_run_hook(lambda *args, **_: seen.append("before"))
    try:
        x, z = torch.rand(8), torch.zeros(8)
        add_kernel[(1,)](x, x, z, 8, BLOCK=64)
    finally:
        add_kernel.pre_run_hooks.clear()
        triton.knobs.runtime.launch_enter_hook.calls.clear()
    assert seen == ["before", "add_kernel"] and torch.equal(z, 2 * x)


def total_config(block):
    return triton.Config({"BLOCK": block}, pre_hook=lambda args: args["total"].zero_())


@triton.autotune([total_config(64), total_config(256)], key=["n"])
@triton.jit
def total_kernel(x, total, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(total, tl.sum(tl.load(x + i, i < n, other=0.0), 0))


def test_autotuning_with_a_hook_that_clears_the_result():
    x, total = torch.rand(1000), torch.zeros(1)
    total_kernel[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, total, 1000)
    assert torch.allclose(total, x.sum())
    assert total_kernel.best_config.kwargs["BLOCK"] == 256  # four times fewer programs


def test_an_autotuner_with_its_own_clock_counts_too():
    with pytest.warns(DeprecationWarning):
        tuner = triton.autotune([triton.Config({"BLOCK": b}) for b in (32, 128)], key=["n"],
                                warmup=1, rep=1)(add_kernel)
    x, z = torch.rand(256), torch.zeros(256)
    tuner[lambda meta: (triton.cdiv(256, meta["BLOCK"]),)](x, x, z, 256)
    assert torch.equal(z, 2 * x) and tuner.best_config.kwargs["BLOCK"] == 128


def test_choices_on_disk_are_kept_apart_from_a_gpus(monkeypatch, tmp_path):
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    asked, make = [], triton.compiler.compiler.make_backend

    def make_and_tell(target):
        asked.append(target.arch)
        return make(target)
    monkeypatch.setattr(triton.compiler.compiler, "make_backend", make_and_tell)
    configs = [triton.Config({"BLOCK": b}) for b in (32, 128)]
    x, z = torch.rand(256), torch.zeros(256)
    for _ in range(2):                                      # the second finds the first one's file
        tuner = triton.autotune(configs, key=["n"], cache_results=True)(add_kernel)
        tuner[lambda meta: (triton.cdiv(256, meta["BLOCK"]),)](x, x, z, 256)
        assert torch.equal(z, 2 * x) and tuner.best_config.kwargs["BLOCK"] == 128
    assert asked.count(-80) == 2 and set(asked) <= {80, -80}
    assert len(list(tmp_path.rglob("*.autotune.json"))) == 1


def test_no_time_is_ever_reported():
    with pytest.raises(simulator.Unsupported, match="measures no time"):
        triton.testing.do_bench(lambda: None)


# ---- printing, asserting, failing

@triton.jit
def print_kernel(x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    v = tl.load(x + i)
    tl.device_print("value", v)
    tl.device_assert(v < n, "a value is too large")


def test_device_print(capsys):
    x = torch.tensor([0.5, 1.25, -3.0, 4.0])
    print_kernel[(2,)](x, 10, BLOCK=4, num_warps=1)
    lines = capsys.readouterr().out.splitlines()
    for block in (0, 1):
        for i, v in enumerate(x.tolist()):
            assert f"pid ({block}, 0, 0) idx ({i}) value: {v:f}" in lines


def test_device_assert_works_in_debug_mode_only(capsys):
    x = torch.tensor([0.5, 1.25, -3.0, 4.0])
    print_kernel[(1,)](x, 2, BLOCK=4, num_warps=1)
    with pytest.raises(simulator.KernelError, match="a value is too large") as caught:
        print_kernel[(1,)](x, 2, BLOCK=4, num_warps=1, debug=True)
    assert caught.value.kind == "assert" and caught.value.path == __file__
    assert caught.value.source_line.startswith("tl.device_assert(v < n")


@triton.jit
def overflow_kernel(x, y):
    tl.store(y, tl.load(x) + tl.load(x))


def test_debug_mode_finds_integer_overflow():
    x, y = torch.tensor([2**31 - 1], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    overflow_kernel[(1,)](x, y)
    assert y.item() == -2
    with pytest.raises(simulator.KernelError, match="int32 overflow") as caught:
        overflow_kernel[(1,)](x, y, debug=True)
    assert caught.value.kind == "assert" and caught.value.source_line.startswith("tl.store(y")


def test_writing_out_of_bounds_names_parameter_line_and_element():
    x, z = torch.rand(100), torch.zeros(90)
    with pytest.raises(simulator.KernelError) as caught:
        add_kernel[(1,)](x, x, z, 100, BLOCK=128)
    text = str(caught.value)
    assert "element 90 of `z` (90 float32)" in text and "tl.store(z + i" in text
    assert caught.value.kind == "out_of_bounds"
    assert caught.value.path == triton_kernels.__file__


@triton.jit
def sum_without_atomics(x, total, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x + i), 0)
    tl.store(total, tl.load(total) + part)


def test_a_race_between_programs():
    with pytest.raises(simulator.KernelError) as caught:
        sum_without_atomics[(4,)](torch.rand(512), torch.zeros(1), BLOCK=128)
    text = str(caught.value)
    assert caught.value.kind == "race" and caught.value.path == __file__
    assert "race" in text and "`total`" in text and "tl.store(total, tl.load(total) + part)" in text


@triton.jit
def exchange_kernel(x, BLOCK: tl.constexpr, BARRIER: tl.constexpr):
    """Threads of one program hand values to each other through global memory."""
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i) + 1)
    if BARRIER:
        tl.debug_barrier()
    tl.store(x + BLOCK + i, tl.load(x + (BLOCK - 1 - i)))


@pytest.mark.parametrize("barrier", [True, False])
def test_threads_of_one_program(barrier):
    x = torch.rand(512)
    want = x[:256].flip(0) + 1
    if not barrier:
        with pytest.raises(simulator.KernelError, match="only tl.debug_barrier.. between the two"):
            exchange_kernel[(1,)](x, BLOCK=256, BARRIER=barrier)
        return
    with simulator.trace() as t:
        exchange_kernel[(1,)](x, BLOCK=256, BARRIER=barrier)
    assert torch.equal(x[256:], want)
    assert not t.launches[0].warnings


def test_an_endless_kernel_ends():
    @triton.jit
    def kernel(flag):
        while tl.load(flag, volatile=True) == 0:
            pass
    with simulator.budget(20_000), pytest.raises(simulator.KernelError) as caught:
        kernel[(1,)](torch.zeros(1, dtype=torch.int32))
    assert caught.value.kind == "endless"
    assert caught.value.source_line in ("while tl.load(flag, volatile=True) == 0:", "pass")


def test_tritons_own_errors_come_through():
    @triton.jit
    def kernel(x):
        tl.store(x, tl.arange(0, 3))
    with pytest.raises(triton.CompilationError, match="power of 2"):
        kernel[(1,)](torch.zeros(4))
    with pytest.raises(triton.runtime.errors.OutOfResources, match="shared memory"):
        matmul_kernel[(1, 1)](torch.zeros(256, 256), torch.zeros(256, 256), torch.zeros(256, 256),
                              256, 256, 256, 128, 128, 128, "tf32", num_stages=4)


CELL = """
@triton.jit
def kernel(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, 2 * tl.load(x + i))
"""


def test_a_kernel_of_a_notebook_cell():
    """A cell has a name that no file has; its text is where Python's tracebacks find it."""
    linecache.cache["<cell 7>"] = len(CELL), None, CELL.splitlines(keepends=True), "<cell 7>"
    names = {"triton": triton, "tl": tl, "__name__": "__main__"}
    exec(compile(CELL, "<cell 7>", "exec"), names)
    x, y = torch.rand(64), torch.zeros(64)
    names["kernel"][(1,)](x, y, N=64)
    assert torch.equal(y, 2 * x)
    with pytest.raises(simulator.KernelError) as caught:
        names["kernel"][(1,)](x, y[:60], N=64)
    assert caught.value.path == "<cell 7>" and caught.value.line == 5
    assert "tl.store(y + i, 2 * tl.load(x + i))" in str(caught.value)


@triton.jit
def doubled(x, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, 2 * tl.load(x + i))


def test_a_fault_within_an_assembly_has_its_own_line():
    with pytest.raises(simulator.KernelError) as caught:
        doubled[(4,)](torch.ones(1000), BLOCK=256)
    assert caught.value.source_line == "tl.store(x + i, 2 * tl.load(x + i))"


def test_lines_counted_on_within_an_assembly_are_not_the_kernels():
    """As Triton 3.8 writes a load of two registers in line 6."""
    kernel = ptx.parse("""
.visible .entry k(.param .u64 x)
{
	.reg .b32 %r<3>;
	.reg .b64 %rd<2>;
	ld.param.b64 %rd1, [x];
	.loc	1 6 21                          // a.py:6:21
	// begin inline asm
	.loc	1 6 21                          // a.py:6:21
	mov.u32 %r1, 0x0;
	.loc	1 7 21                          // a.py:7:21
	mov.u32 %r2, 0x0;
	.loc	1 8 21                          // a.py:8:21
	ld.global.v2.b32 { %r1, %r2 }, [ %rd1 + 0 ];
	// end inline asm
	.loc	1 7 5                           // a.py:7:5
	ret;
	.file	1 "/a.py"
}
""").functions["k"]
    assert [inst.location and inst.location.line for inst in kernel.code] == [None, 6, 6, 6, 7]


def test_a_compiled_kernel_says_what_it_takes():
    x = torch.rand(64)
    kernel = add_kernel.warmup(x, x, x, 64, BLOCK=64, grid=(1,))
    z = torch.zeros(64)
    kernel[(1, 1, 1)](x, x, z, 64, 64)
    assert torch.equal(z, 2 * x)
    with pytest.raises(simulator.KernelError, match=r"takes 5 arguments .* 4 were given"):
        kernel[(1, 1, 1)](x, x, z, 64)


# ---- the device

def test_the_device_key_is_the_simulators_own():
    x = torch.rand(8)
    add_kernel[(1,)](x, x, torch.zeros(8), 8, BLOCK=8)
    assert "simulator" in add_kernel.device_caches
    simulator.activate_triton(capability=89)
    add_kernel[(1,)](x, x, torch.zeros(8), 8, BLOCK=8)
    targets = {key: cached[2].arch for key, cached in add_kernel.device_caches.items()}
    assert targets["simulator"] == 80 and targets["simulator sm_89"] == 89


def test_an_unknown_capability_is_refused():
    with pytest.raises(simulator.KernelError, match="80 and 89"):
        simulator.activate_triton(capability=90)


def test_registers_and_stack_are_the_assemblers():
    """Against what cuobjdump reads from the same cubin."""
    kernel = attention_kernel.warmup(torch.float16, torch.float16, torch.float16, torch.float16, 64,
                                     0.5, D=32, BM=32, BN=32, grid=(1,))
    kernel._init_handles()
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        text = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True,
                              text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", text).groups()
    assert (kernel.n_regs, kernel.n_spills) == (int(registers), int(stack) // 4)


def test_without_a_gpu_triton_says_so_when_the_simulator_is_off():
    simulator.deactivate_triton()
    if torch.cuda.is_available():
        pytest.skip("not proven here: there is a GPU")
    with pytest.raises(RuntimeError, match="active drivers"):
        add_kernel[(1,)](torch.zeros(8), torch.zeros(8), torch.zeros(8), 8, BLOCK=8)


def test_from_the_gpu_to_the_simulator_and_back():
    if not torch.cuda.is_available():
        pytest.skip("not proven here: needs an NVIDIA GPU")
    x = torch.rand(1000)
    total = total_kernel[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)]
    for device in ("cuda", "cpu", "cuda"):
        (simulator.activate_triton if device == "cpu" else simulator.deactivate_triton)()
        here, z, result = (t.to(device) for t in (x, torch.zeros(1000), torch.zeros(1)))
        add_kernel[(4,)](here, here, z, 1000, BLOCK=256)
        assert torch.equal(z, 2 * here)
        total_kernel.cache.clear()
        total(here, result, 1000)
        assert torch.allclose(result, here.sum())
