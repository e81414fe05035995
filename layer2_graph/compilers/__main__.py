"""One layer through the compilers that are here, as a table; --record keeps what they wrote."""

import argparse
import datetime
import json
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import torch

from day01_roofline import this_device
from layer2_graph.compilers.rows import COMPILERS, LATER, CompilerRow, Layer, T
from layer2_graph.compilers.texts import RECORDED, kind

PACKAGES = ("torch", "onnx", "onnxscript", "onnxruntime", "openvino", "jax")


def table(rows: list[CompilerRow]) -> str:
    """The rows as text: launches, of these matrices, CPU seconds, error, graphs."""
    lines = [f"{'one layer, T = ' + str(T):26}{'launches':>9}{'matrices':>9}{'moves':>6}"
             f"{'CPU s':>7}{'error':>9}   graphs after T = {T}, {', '.join(map(str, LATER))}"]
    for row in rows:
        if row.missing:
            lines.append(f"{row.name:26}{row.missing}")
            continue
        kinds = [kind(operation) for operation in row.operations]
        answer = ("" if row.error is None else          # a file that was not run has none
                  f"{row.error:9.1e}   {', '.join(map(str, row.compilations)) or 'not counted'}")
        lines.append(f"{row.name:26}{len(kinds):9}{kinds.count('matrix'):9}{kinds.count('moves'):6}"
                     f"{row.seconds:7.1f}{answer}")
    return "\n".join(lines)


def versions() -> dict[str, str]:
    """{package: version} of those that are installed."""
    installed = {d.metadata["Name"] for d in metadata.distributions()}
    return {name: metadata.version(name) for name in PACKAGES if name in installed}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m layer2_graph.compilers", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="the rows, with versions and machine")
    parser.add_argument("--record", action="store_true",
                        help="write rows and texts into layer2_graph/compilers/recorded")
    options = parser.parse_args()
    torch.set_num_threads(1)
    layer = Layer()
    with torch.no_grad():
        rows = [measure(layer) for measure in COMPILERS]
    print(table(rows))
    facts = {"date": datetime.date.today().isoformat(), "device": this_device().name,
             "versions": versions(), "T": T, "later": LATER, "rows": list(map(asdict, rows))}
    text = json.dumps(facts, indent=1) + "\n"
    if options.json:
        Path(options.json).write_text(text, "utf-8")
    if options.record:
        for name, content in {"rows.json": text, **layer.texts}.items():
            (RECORDED / name).write_text(content, "utf-8")


if __name__ == "__main__":
    main()
