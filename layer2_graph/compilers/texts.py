"""What compilers wrote, read."""

import re
from pathlib import Path

RECORDED = Path(__file__).parent / "recorded"
FREE = ("parameter", "constant", "bitcast", "tuple", "get-tuple-element")   # they launch nothing
INSTRUCTION = re.compile(r" = .*? ([a-z][\w-]*)\(")


def entry_calls(text: str) -> list[str]:
    """What an XLA module's ENTRY launches, in order; of a fusion, `fusion: ` and its operations."""
    bodies = dict(re.findall(r"^(?:ENTRY )?%([\w.-]+) [^\n]*{\n(.*?)^}", text, re.M | re.S))
    entry = re.search(r"^ENTRY %([\w.-]+)", text, re.M)[1]
    calls = []
    for line in bodies[entry].splitlines():
        opcode = INSTRUCTION.search(line)[1]
        if opcode == "fusion":
            inner = INSTRUCTION.findall(bodies[re.search(r"calls=%([\w.-]+)", line)[1]])
            names = dict.fromkeys(name for name in inner if name not in (*FREE, "broadcast"))
            opcode = f"fusion: {' + '.join(names)}"
        if opcode not in FREE:
            calls.append(opcode)
    return calls


def without_places(text: str) -> str:
    """A module's text, of XLA or inductor, without the files and lines that it came from."""
    text = re.sub(r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n(\d.*\n)*\n*", "", text,
                  flags=re.M)
    text = re.sub(r"^# kernel path: .*\n", "", text, flags=re.M)
    return re.sub(r" ?stack_frame_id=\d+", "", text)


def nodes(path: Path | str) -> list[str]:
    """The operators of an ONNX file, in order."""
    import onnx

    return [node.op_type for node in onnx.load(path).graph.node]


def inductor_kernels(text: str) -> dict[str, str]:
    """{name: C++ or Triton} of the kernels in the code that inductor wrote."""
    return dict(re.findall(r"^(\w+) = async_compile\.\w+\(.*?'''\n?(.*?)^'''", text, re.M | re.S))


# OpenVINO's Subgraph holds what its list then lacks: the products and the softmax of attention.
MATRIX = {"mm", "bmm", "addmm", "matmul", "fusedmatmul", "gemm", "dot", "fullyconnected",
          "attention", "subgraph"}
MOVES = {"cpp", "triton", "poi", "fused", "fusion", "reshape", "transpose", "clone", "copy", "cat",
         "concat", "concatenate", "concatenation", "split", "slice", "expand", "unsqueeze", "view",
         "convert"}


def kind(operation: str) -> str:
    """`matrix`, `moves` for one that makes no new numbers, else `arithmetic`."""
    words = set(re.findall("[a-z]+", operation.lower()))
    if words & MATRIX:
        return "matrix"
    return "moves" if words <= MOVES else "arithmetic"
