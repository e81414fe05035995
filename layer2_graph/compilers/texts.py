"""What compilers wrote, read."""

import re
from collections import Counter
from pathlib import Path

__all__ = ["RECORDED", "entry_calls", "inductor_kernels", "node_counts"]

RECORDED = Path(__file__).parent / "recorded"


def entry_calls(text: str) -> Counter:
    """{opcode: count} of an XLA module's ENTRY, without what launches nothing."""
    entry = re.search(r"^ENTRY .*?^}", text, re.M | re.S)[0]
    opcodes = re.findall(r"^ +(?:ROOT )?%?[\w.-]+ = .*? ([a-z][\w-]*)\(", entry, re.M)
    free = ("parameter", "constant", "bitcast", "tuple", "get-tuple-element")
    return Counter(opcode for opcode in opcodes if opcode not in free)


def node_counts(path: Path | str) -> Counter:
    """{operator: count} of the nodes of an ONNX file."""
    import onnx

    return Counter(node.op_type for node in onnx.load(path).graph.node)


def inductor_kernels(text: str) -> dict[str, str]:
    """{name: C++ or Triton} of the kernels in the code that inductor wrote."""
    return dict(re.findall(r"^(\w+) = async_compile\.\w+\(.*?'''\n?(.*?)^'''", text, re.M | re.S))
