"""What `lab bench` measures, at small sizes on the CPU: every way runs, those of a family give the
same, and no way is credited with bytes that it does not ask for.
Nothing is timed."""

import importlib
import inspect
import re
from functools import partial

import pytest
import torch
import triton
from torch.overrides import TorchFunctionMode

import day01_roofline
from day01_roofline.compare import BASELINES, THEIRS
from lab import simulator
from lab.measure import bench
from lab.remote import shapes

# lesson -> the sizes it is measured at here. No two sizes of an array are alike.
SIZES = {
    "k01_vector_add": {"n": 1000},
    "k02_transpose": {"M": 36, "N": 20},
    "k03_reduce": {"n": 1000},
    "k04_matmul_naive": {"M": 5, "N": 20, "K": 48},
    "k05_matmul_tiled": {"M": 12, "N": 20, "K": 48},
    "k06_matmul_registers": {"M": 12, "N": 20, "K": 48},
    "k07_softmax": {"R": 4, "C": 1000},
    "k08_rmsnorm": {"T": 3, "C": 136},
    "k09_rope": {"T": 48, "H": 4, "G": 2, "D": 64},
    "k10_swiglu": {"T": 5, "C": 48, "F": 24},
    "k11_cross_entropy": {"T": 5, "V": 1000},
    "k12_tensor_cores": {"M": 16, "N": 32, "K": 48},
    "k13_flash_attention": {"B": 2, "T": 20, "H": 4, "G": 4, "D": 16},
    "k14_paged_attention": {"B": 8, "N": 32, "H": 4, "G": 2, "D": 16, "S": 16},
    "k15_quantized_matmul": {"N": 24, "K": 256, "group": 64},
    "k16_warp_tiles": {"M": 12, "N": 20, "K": 48},
    "k17_pipelines": {"M": 24, "N": 40, "K": 56},
    "k18_flash_backward": {"B": 2, "T": 20, "H": 4, "G": 4, "D": 16},
    "k19_fp8_matmul": {"M": 16, "N": 32, "K": 256},
    "k20_grouped_gemm": {"mixtral": (8, 24, 40, 26), "deepseek": (16, 40, 24, 48)},
}
NEAR = 0.03             # of the largest: results of bfloat16 numbers, rounded at different places
FOUR_BITS = 0.2         # likewise, where cuBLAS has the weights before they were cut to 4 bits
LEFT = {"rope_and_cache: pair": {"k"}}      # way -> what it also changes, as no other need do
# Kernels that no way launches here, and why.
UNTIMED = {"shares_cuda": "shows what each thread of the sum adds",
           "order_triton": "shows the order of the tiles",
           "wmma_once_cuda": "multiplies two fragments once",
           "holders_cuda": "shows which thread holds what of a fragment",
           "wmma_half_sums_cuda": "shows what becomes of sums in fp16",
           "read_rows_cuda": "shows what banks say of rows",
           "read_tile_cuda": "shows what a swizzle does",
           "unpack_all_triton": "shows what one function unpacks",
           "one_tile_triton": "shows the weights of one tile",
           "starts_triton": "shows where tiles of keys begin",
           "merge_triton": "256 keys and fewer are not split"}
NEEDS_A_GPU = {"cudnn": "No viable backend"}            # way -> what PyTorch says elsewhere


@pytest.fixture(scope="module", autouse=True)
def triton_on_the_cpu():
    simulator.activate_triton()
    yield
    simulator.deactivate_triton()


class CudaIsTheCpu(TorchFunctionMode):
    """Arrays that are asked for on a GPU are made on the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.cuda:
            return args[0]
        there = {"device": "cpu"} if (kwargs or {}).get("device") == "cuda" else {}
        return function(*args, **(kwargs or {}) | there)


@pytest.fixture
def families(monkeypatch):
    """families(lesson): what its bench() hands to day 1, the same numbers each time."""
    def built(lesson):
        module = importlib.import_module(f"{lesson.floor}.bench.{lesson.id}")
        torch.manual_seed(0)
        with CudaIsTheCpu():
            return module.bench(**SIZES[lesson.id])

    monkeypatch.setattr(day01_roofline, "measure_side_by_side", lambda found: found)
    # what torch.compile reads of a function is tried here, not what it makes of it
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    return built


def lessons():
    return [lesson for lesson in bench.units() if lesson.floor == "layer1_kernels"]


def result(run):
    """{name: array} that a way returns, or leaves in the arrays it knows if it returns none."""
    found = run()
    if found is None:
        return {name: value for name, value in inspect.getclosurevars(run).nonlocals.items()
                if torch.is_tensor(value)}
    return {"result": found[0] if isinstance(found, tuple) else found}


def same(a, b, near):
    """True where two results agree; attention of PyTorch has its heads before its tokens."""
    a, b = a.squeeze().double(), b.squeeze().double()
    if a.shape != b.shape:
        a = a.transpose(-3, -2)
    return a.shape == b.shape and (a - b).abs().max() <= near * b.abs().max()


def kernels(lesson):
    """The kernels of a lesson: of its .cu, but for those that a macro makes; and in Triton."""
    modules = [importlib.import_module(f"{lesson.floor}.{name}")
               for name in (lesson.id, f"bench.{lesson.id}")]
    found = set(re.findall(r"__global__\b[^(;]*?(?:\([^)]*\)\s*)?(\w+_cuda)\(",
                           lesson.sources.get("cuda", "")))
    return found | {name for module in modules for name, value in vars(module).items()
                    if name.endswith("_triton")
                    and isinstance(value, triton.JITFunction) and "tl.program_id(" in value.src
                    and value.fn.__module__ == module.__name__}


def test_every_bench_has_its_sizes():
    assert list(SIZES) == [lesson.id for lesson in lessons()]


@pytest.mark.parametrize("lesson", lessons(), ids=lambda i: i.id)
def test_bench(families, lesson):
    with shapes.checked(lesson.path(".py")):
        every = families(lesson)
    launched = set()
    for name, figures in bench.targets(lesson).items():
        family, _, way = name.partition(": ")
        assert way in every[family][2] and way not in BASELINES, f"no kernel {name}"
        rivals = {figure.removeprefix("times_") for figure in figures if "times_" in figure}
        assert rivals <= set(every[family][2]) & set(BASELINES)
    for family, (flops, moved, ways, *peak) in every.items():
        assert isinstance(flops, int) and ": " not in family
        assert all(isinstance(dtype, torch.dtype) for dtype in peak)
        assert set(ways) & set(BASELINES) and set(ways) - set(BASELINES), f"{family}: {list(ways)}"
        first = next(way for way in BASELINES if way in ways)
        want = None
        for way in [first, *(way for way in ways if way != first)]:
            run = families(lesson)[family][2][way]                  # not changed by another way
            if isinstance(run, str):
                assert way in THEIRS and run
                continue
            least, run = run if isinstance(run, tuple) else (moved, run)
            assert isinstance(least, int) and least > 0
            if way in NEEDS_A_GPU:
                with pytest.raises(RuntimeError, match=NEEDS_A_GPU[way]):
                    run()
                continue
            with simulator.trace() as trace:
                got = result(run)
            launched |= {launch.name for launch in trace.launches}
            asked = sum(launch.bytes_loaded + launch.bytes_stored for launch in trace.launches)
            assert way in BASELINES or asked >= least, (
                f"{family}: {way} is credited with {least} bytes and asks for {asked}")
            want = want or got
            shared = set(want) & set(got) - LEFT.get(f"{family}: {way}", set())
            assert shared, f"{family}: {way} gives {list(got)}, {first} {list(want)}"
            near = FOUR_BITS if family.startswith("int4") and way == "cublas" else NEAR
            for name in shared:
                assert same(got[name], want[name], near), f"{family}: {way} gives another {name}"
    left = kernels(lesson) - launched - set(UNTIMED)
    assert not left, f"no way launches {', '.join(sorted(left))}"
