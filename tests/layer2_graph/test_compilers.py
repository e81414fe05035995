"""One layer through compilers: what was recorded is read again, and what needs none is run."""

import importlib.util
import json
from collections import Counter

import pytest
import torch

from lab import simulator
from layer1_kernels.k08_rmsnorm import rmsnorm_torch
from layer2_graph import Launches, PlainBlock, PlainLayers
from layer2_graph.compilations import Graphs, compilations, find_breaks
from layer2_graph.compilers.__main__ import table
from layer2_graph.compilers.rows import CompilerRow, Layer, T, by_hand, eager, optional
from layer2_graph.compilers.texts import (
    RECORDED,
    entry_calls,
    inductor_kernels,
    kind,
    without_places,
)
from layer2_graph.decode_ladder.inductor import launches_in
from layer2_graph.g04_graph_passes import norm
from layer2_graph.g09_compilers import energy, energy_whole, fusions

ROWS = {row["name"]: row
        for row in json.loads((RECORDED / "rows.json").read_text("utf-8"))["rows"]}


def text(name):
    return (RECORDED / name).read_text("utf-8")


@pytest.fixture(scope="module")
def layer():
    return Layer()


def test_the_block_is_the_layer_of_g04(layer):
    x, cos, sin, hidden = layer.inputs(13)
    plain = PlainLayers(layer.model).layers[1]
    assert torch.allclose(layer.block(x, cos, sin, hidden), plain(x, cos, sin), atol=1e-5)
    assert isinstance(layer.block, PlainBlock)


@pytest.mark.parametrize("measure", [eager, by_hand])
def test_what_needs_no_compiler_is_as_recorded(layer, measure):
    row = measure(layer)
    assert row.operations == ROWS[row.name]["operations"]
    assert row.error < 1e-5


def test_every_answer_was_that_of_pytorch():
    errors = {name: row["error"] for name, row in ROWS.items() if row["error"] is not None}
    assert len(errors) == 6 and max(errors.values()) < 1e-5


def test_compilations_are_recorded_where_they_are_counted():
    assert {name: row["compilations"] for name, row in ROWS.items() if row["compilations"]} == {
        "torch.compile, inductor": [1, 2, 2, 3], "JAX, XLA": [1, 2, 3, 4]}


def test_the_recorded_texts_hold_the_recorded_operations():
    code = text("inductor.py.txt")
    names = [launch.name for launch in launches_in(code)]
    assert names == ROWS["torch.compile, inductor"]["operations"]
    assert {name for name in names if name.startswith("cpp")} == set(inductor_kernels(code))
    code = text("inductor_triton.py.txt")
    names = [launch.name for launch in launches_in(code)]
    assert names == ROWS["torch.compile, in Triton"]["operations"]
    assert {name for name in names if name.startswith("triton")} == set(inductor_kernels(code))
    hlo = text("hlo.txt")
    assert entry_calls(hlo) == ROWS["JAX, XLA"]["operations"]
    assert sum(fusions(hlo).values()) == len(entry_calls(hlo)) == 27


def test_the_norm_in_inductors_triton_is_that_of_the_layer(layer, tmp_path):
    name, body = next(iter(inductor_kernels(text("inductor_triton.py.txt")).items()))
    file = tmp_path / "written_by_inductor.py"
    file.write_text("import triton\nimport triton.language as tl\n"
                    "from torch._inductor.runtime.triton_helpers import libdevice\n\n"
                    + body[body.index("@triton.jit"):], "utf-8")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x, w = layer.inputs(T)[0], layer.model.layers[1].attention_norm
    y = torch.full_like(x, torch.nan)
    simulator.activate_triton()
    try:
        getattr(module, name)[-(-T // 4),](x, w, y, *x.shape, XBLOCK=4)
    finally:
        simulator.deactivate_triton()
    assert torch.allclose(y, rmsnorm_torch(x, w, layer.m.eps), atol=1e-5)


def test_the_prose_is_what_was_recorded():
    """Claims of g09's text that are not printed by a cell."""
    kinds = {name: Counter(map(kind, row["operations"])) for name, row in ROWS.items()}
    assert len(ROWS["PyTorch, eager"]["operations"]) == 45
    assert len(ROWS["g05, by hand"]["operations"]) == 8
    assert {kinds[name]["matrix"] for name in ("PyTorch, eager", "torch.compile, inductor",
                                               "torch.compile, in Triton", "ONNX Runtime",
                                               "JAX, XLA")} == {9}
    assert ROWS["torch.compile, inductor"]["operations"].count("addmm") == 2
    openvino = Counter(ROWS["OpenVINO"]["operations"])
    assert openvino["Subgraph"] == 1 and not openvino["MatMul"] and not openvino["Softmax"]
    assert openvino["FullyConnected"] == 7


def test_a_norm_is_six_launches_in_pytorch_and_one_of_inductor():
    x, w = torch.ones(37, 192), torch.ones(192)
    with Launches() as seen:
        norm(x, w, 1e-5)
    assert len(seen.names) == 6
    operations = ROWS["torch.compile, inductor"]["operations"]
    assert sum("mean" in operation for operation in operations) == 2


HLO = """HloModule m

FileNames
1 "block.py"

StackFrames
1 {file_location_id=1 parent_frame_id=1}

%sum (p: f32[4]) -> f32[] {
  %p = f32[4]{0} parameter(0)
  %square = f32[4]{0} multiply(%p, %p)
  ROOT %r = f32[] reduce(%square), to_apply=%add, metadata={op_name="a" stack_frame_id=1}
}

ENTRY %main (x: f32[4]) -> f32[] {
  %x = f32[4]{0} parameter(0)
  %dot = f32[4]{0} dot(%x, %x)
  ROOT %f = f32[] fusion(%dot), kind=kLoop, calls=%sum
}
"""


def test_a_fusion_is_named_by_what_it_computes():
    assert entry_calls(HLO) == ["dot", "fusion: multiply + reduce"]


def test_a_text_says_nothing_of_where_it_was_made():
    clean = without_places(HLO)
    assert "block.py" not in clean and "stack_frame" not in clean and 'op_name="a"' in clean
    assert entry_calls(clean) == entry_calls(HLO)


@pytest.mark.parametrize("operation, right", [
    ("addmm", "matrix"), ("FusedMatMul", "matrix"), ("fusion: dot", "matrix"),
    ("paged_attention", "matrix"), ("cpp_fused_clone_transpose_4", "moves"),
    ("fusion: transpose + copy", "moves"), ("Reshape", "moves"), ("rsqrt", "arithmetic"),
    ("cpp_fused_add_clone_expand_mul_split_sub_unsqueeze_view_1", "arithmetic"),
    ("masked_fill", "arithmetic"), ("QuickGelu", "arithmetic")])
def test_kinds_of_operations(operation, right):
    assert kind(operation) == right


def test_a_package_that_is_not_there_is_said():
    row = optional("Compiler", eager, "no_such_package")(None)
    assert row.missing == "not installed here: no_such_package"
    lines = table([row, CompilerRow("File", "", ["Mul", "MatMul"], 1.5)]).splitlines()
    assert lines[1].endswith(row.missing) and lines[2].split() == ["File", "2", "1", "0", "1.5"]


def test_graphs_are_counted_with_their_sizes():
    torch.compiler.reset()
    backend = Graphs()
    step = torch.compile(lambda x: x + 1, backend=backend)
    assert compilations(step, backend, [(torch.ones(T, 4),) for T in (3, 3, 5, 6)]) == [1, 1, 2, 2]
    (first,), (second,) = backend.sizes
    assert first == ("3", "4") and second[1] == "4" and not second[0].isdigit()


def test_breaks_are_found_with_their_lines():
    arguments = torch.ones(5, 3), torch.tensor(2), 0.5
    graphs, reasons = find_breaks(energy, *arguments)
    assert graphs == 4
    assert [word in reason for word, reason in zip(("if ", "print", ".item()"), reasons,
                                                   strict=True)] == [True] * 3
    assert find_breaks(energy_whole, *arguments) == (1, [])
    assert torch.equal(energy(*arguments), energy_whole(*arguments))
