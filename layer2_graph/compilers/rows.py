"""A row for each compiler: what it made of one layer, counted, and whether it is the same layer.

Operations that launch are counted: of PyTorch by Launches, of inductor in the code that it wrote,
of ONNX Runtime and OpenVINO in the graph that they run, of XLA in its ENTRY.
Seconds are of this process and the processes that it started, on any core, for the first shape.
"""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

from lab import simulator
from layer1_kernels import kernels
from layer2_graph.compilations import Graphs, compilations
from layer2_graph.compilers.texts import entry_calls, nodes, without_places
from layer2_graph.decode_ladder.inductor import launches_in
from layer2_graph.g01_llama import load, rope_tables
from layer2_graph.g02_kv_cache import PagedCache
from layer2_graph.g05_fused_llama import FusedLlama, fused_block
from layer2_graph.g09_compilers import PlainBlock
from layer2_graph.launches import Launches
from layer2_graph.models import SMALL

T, LATER = 37, (38, 41, 1)              # tokens of the first call, and of the calls after it
TENSORRT = "trtexec --onnx=layer.onnx --exportLayerInfo=layers.json, on a machine with its GPU"


@dataclass
class CompilerRow:
    """What a compiler made of the layer.
    `missing` says why there is nothing."""

    name: str
    missing: str = ""
    operations: list[str] = field(default_factory=list)     # names of what is launched, in order
    seconds: float = 0.0                # of CPU, to the first result, or to what is not run here
    error: float | None = None          # the largest difference from PyTorch's; None: not run
    compilations: list[int] = field(default_factory=list)   # after T and each of LATER, if counted
    guards: list[str] = field(default_factory=list)     # that failed at each of LATER, "" for none


class Layer:
    """The second layer of the small model, and inputs of T tokens for it."""

    def __init__(self) -> None:
        self.model = load(SMALL, dtype=torch.float32)
        self.m = self.model.config
        self.block = PlainBlock(self.model.layers[1], self.m).eval()
        self.texts: dict[str, str] = {}         # what compilers wrote, by the name of a file

    def inputs(self, T: int) -> tuple[Tensor, ...]:
        """x (T, C), cos and sin (T, D//2), hidden (T, T)"""
        x = torch.randn(T, self.m.C, generator=torch.Generator().manual_seed(9))
        cos, sin = rope_tables(self.m, T)
        return x, cos, sin, torch.ones(T, T, dtype=torch.bool).triu(1)

    def error(self, result: Tensor, t: int = T) -> float:
        return float((result - self.block(*self.inputs(t))).abs().max())


def seconds() -> float:
    """CPU seconds of this process and of those that it started and that have ended."""
    return sum(os.times()[:4])


# ---- without a compiler


def eager(layer: Layer) -> CompilerRow:
    inputs = layer.inputs(T)
    with Launches() as launches:
        result = layer.block(*inputs)
    return CompilerRow("PyTorch, eager", "", launches.names, 0, layer.error(result))


def by_hand(layer: Layer) -> CompilerRow:
    fused = FusedLlama(layer.m, layer.model.weights, kernels("torch"))
    cache = PagedCache(layer.m, 1, T)
    batch = cache.step([[0] * T])
    x = layer.inputs(T)[0]
    nothing = torch.zeros_like(x)                       # what the layer before has left to add
    with Launches() as launches:
        fused.ops = launches.counting(fused.ops)
        first, residual = fused_block(fused, 1, x, nothing, batch, cache)
    return CompilerRow("g05, by hand", "", launches.names, 0, layer.error(first + residual))


# ---- compilers


def inductor(layer: Layer) -> CompilerRow:
    from torch._inductor.utils import run_and_get_code

    torch.compiler.reset()
    torch._inductor.config.compile_threads = 1          # else in processes that are not counted
    torch._inductor.config.force_disable_caches = True
    begin = seconds()
    result, code = run_and_get_code(torch.compile(layer.block, fullgraph=True), *layer.inputs(T))
    spent = seconds() - begin
    layer.texts["inductor.py.txt"] = without_places(code[-1])
    torch.compiler.reset()
    backend = Graphs()                                  # guards are Dynamo's, whatever compiles
    shapes = compilations(torch.compile(layer.block, backend=backend), backend,
                          [layer.inputs(t) for t in (T, *LATER)])
    return CompilerRow("torch.compile, inductor", "",
                       [launch.name for launch in launches_in(code[-1])], spent,
                       layer.error(result), shapes, failed_guards(layer))


def failed_guards(layer: Layer) -> list[str]:
    """What Dynamo says of the first guard that fails at each of LATER, "" where all hold."""
    torch.compiler.reset()
    compiled = torch.compile(layer.block, backend=Graphs())
    compiled(*layer.inputs(T))
    reasons = []
    for t in LATER:
        try:
            with torch._dynamo.config.patch(error_on_recompile=True):
                compiled(*layer.inputs(t))
            reasons.append("")
        except torch._dynamo.exc.RecompileError as error:
            reasons.append(str(error).splitlines()[-1].strip(" -"))
            compiled(*layer.inputs(t))
    return reasons


def inductor_in_triton(layer: Layer) -> CompilerRow:
    """What inductor writes in Triton.
    It is not run: for a CPU, Triton has no compiler."""
    from torch._inductor.exc import InductorError
    from torch._inductor.graph import GraphLowering

    torch.compiler.reset()
    simulator.activate_triton()                         # inductor asks for a device, then writes
    codes: list[str] = []
    begin = seconds()
    try:
        with (torch._inductor.config.patch(cpu_backend="triton"),
              mock.patch.object(GraphLowering, "save_output_code", codes.append)):
            torch.compile(layer.block, fullgraph=True)(*layer.inputs(T))
    except InductorError as error:
        if "compatible backends for target (cpu)" not in str(error):
            raise
    finally:
        simulator.deactivate_triton()
    spent = seconds() - begin
    layer.texts["inductor_triton.py.txt"] = without_places(codes[-1])
    return CompilerRow("torch.compile, in Triton", "",
                       [launch.name for launch in launches_in(codes[-1])], spent)


def onnx_file(layer: Layer, folder: str) -> Path:
    """The layer as an ONNX file, whose T is a name."""
    path = Path(folder) / "layer.onnx"
    t = torch.export.Dim("T", min=2, max=512)
    program = torch.onnx.export(layer.block, layer.inputs(T), dynamo=True, verbose=False,
                                dynamic_shapes=({0: t}, {0: t}, {0: t}, {0: t, 1: t}))
    program.save(path)
    return path


def exported(layer: Layer) -> CompilerRow:
    with tempfile.TemporaryDirectory() as folder:
        begin = seconds()
        path = onnx_file(layer, folder)
        spent = seconds() - begin
        operations = nodes(path)
    return CompilerRow("ONNX, exported", "", operations, spent)


def onnx_runtime(layer: Layer) -> CompilerRow:
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = onnx_file(layer, folder)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.optimized_model_filepath = f"{folder}/optimised.onnx"
        options.log_severity_level = 3                  # its warning says that the file is for here
        begin = seconds()
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [node.name for node in session.get_inputs()]

        def run(*inputs):
            return torch.from_numpy(session.run(None, dict(zip(names, map(Tensor.numpy, inputs),
                                                               strict=True)))[0])

        run(*layer.inputs(T))
        spent = seconds() - begin
        error = max(layer.error(run(*layer.inputs(t)), t) for t in (T, *LATER))
        operations = nodes(options.optimized_model_filepath)
    return CompilerRow("ONNX Runtime", "", operations, spent, error)


def xla(layer: Layer) -> CompilerRow:
    import numpy as np

    from layer2_graph.compilers.jax_block import jax_block

    weights = {name: w.numpy() for name, w in layer.block.named_buffers()}
    block = jax_block(layer.m)
    inputs = [[a.numpy() for a in layer.inputs(t)] for t in (T, *LATER)]
    begin = seconds()
    text = block.lower(*inputs[0], weights).compile().as_text()
    spent = seconds() - begin
    layer.texts["hlo.txt"] = without_places(text)
    result = torch.from_numpy(np.array(block(*inputs[0], weights)))
    shapes = []
    for own in inputs:
        block(*own, weights)
        shapes.append(block._cache_size())
    return CompilerRow("JAX, XLA", "", entry_calls(text), spent, layer.error(result), shapes)


def openvino(layer: Layer) -> CompilerRow:
    import openvino as ov

    with tempfile.TemporaryDirectory() as folder:
        path = onnx_file(layer, folder)
        begin = seconds()
        compiled = ov.compile_model(ov.convert_model(path), "CPU",
                                    {"INFERENCE_PRECISION_HINT": "f32"})

        def run(t):
            return torch.from_numpy(compiled([a.numpy() for a in layer.inputs(t)])[0].copy())

        run(T)
        spent = seconds() - begin
        error = max(layer.error(run(t), t) for t in (T, *LATER))
        operations = [node.get_rt_info()["layerType"].astype(str)
                      for node in compiled.get_runtime_model().get_ordered_ops()]
    operations = [name for name in operations if name not in ("Input", "Output", "Const")]
    return CompilerRow("OpenVINO", "", operations, spent, error)


def tensorrt(layer: Layer) -> CompilerRow:
    return CompilerRow("TensorRT", f"not proven here: {TENSORRT}")


def optional(name: str, measure: Callable, *packages: str) -> Callable[[Layer], CompilerRow]:
    """`measure`, or a row that says which package is not installed."""
    def row(layer):
        lacking = [package for package in packages if find_spec(package) is None]
        if lacking:
            return CompilerRow(name, f"not installed here: {', '.join(lacking)}")
        return measure(layer)

    return row


ONNX = ("onnx", "onnxscript")
COMPILERS: tuple[Callable[[Layer], CompilerRow], ...] = (
    eager, inductor, inductor_in_triton, optional("ONNX, exported", exported, *ONNX),
    optional("ONNX Runtime", onnx_runtime, *ONNX, "onnxruntime"),
    optional("OpenVINO", openvino, *ONNX, "openvino"),
    optional("JAX, XLA", xla, "jax"),       # after OpenVINO, which forks: JAX has threads
    tensorrt, by_hand)
