"""The results of the rungs: a table, and a picture of a layer of each."""

import re
from dataclasses import dataclass

from layer2_graph.decode_ladder.decoders import a_layer
from layer2_graph.drawing import Box, draw
from layer2_graph.traffic import place

# Of a logit, see verdict: as in generate; four times what bfloat16 changes the small model's by.
ROUNDING = {"float32": 1e-2, "bfloat16": 0.5}
# The name of a launch in a picture: by its weights if it is a matrix, else by its own name.
MATRICES = {"qkv": "q & k & v", "gate_up": "gate & up", "o": "output"}
NAMES = {"add_rmsnorm": "add + norm", "rmsnorm": "norm", "rope_and_cache": "rope + write",
         "write_kv": "write", "paged_attention": "attention", "matmul_swiglu": "gate & up + SwiGLU",
         "swiglu": "SwiGLU"}


# ---- the table


@dataclass
class RungResult:
    """The results of a rung.
    None: not counted, or does not apply."""

    name: str
    missing: str = ""               # why it was not run, or nothing
    untimed: str = ""               # why it was not timed, or nothing
    same: int | None = None         # tokens before the first that is not g01's; None: all are
    gap: float | None = None        # by how much g01 prefers its own token there to the other
    launches: int | None = None     # a layer
    asked: int | None = None        # what the host asks for in a step
    moved: int | None = None        # bytes of a step
    seconds: float | None = None    # a token
    spread: float | None = None         # how much single runs differ: a share of their median
    uncertainty: float | None = None    # how far off the median may be: a share of it
    runs: int | None = None
    share: float | None = None      # the floor's time over this one's


def wrong(row, dtype):
    """Whether rounding fails to explain a row's first different token: it never explains NaN."""
    return row.same is not None and not row.gap <= ROUNDING[dtype]


def verdict(row, dtype):
    """A few words on a row's tokens. dtype: of the weights, "float32" or "bfloat16"

    Two correct ways to compute add in different orders, so their scores differ by rounding, and
    they may choose differently between two tokens with nearly equal scores.
    ROUNDING is the largest such gap.
    """
    if row.same is None:
        return "identical"
    if wrong(row, dtype):
        return f"wrong after {row.same}: gap {row.gap:.2g}"
    return f"different after {row.same}, within rounding (gap {row.gap:.2g})"


def text(facts, rows):
    """The rows as a table."""
    floor = facts["floor"] / max(facts["copy"], facts["read"])
    lines = [f"{facts['device']}, {facts['threads']} of PyTorch's threads, {facts['dtype']}; "
             f"load of the machine before: {facts['load']:.1f}; {facts['date']}",
             f"{facts['sequences']} × {facts['prompt']} tokens, then {facts['count']} more",
             f"floor: {facts['floor'] / 1e6:.2f} MB of weights and cache at "
             f"{max(facts['copy'], facts['read']) / 1e9:.1f} GB/s, {floor * 1e3:.3f} ms"]
    if facts["weights"] < facts["cache"]:
        lines.append(f"The weights fit into the last-level cache of {facts['cache'] / 1e6:.0f} MB: "
                     f"memory sets no floor here.")
    lines.append(f"{'':32}{'launches':>9}{'asked by':>10}{'MB':>9}{'ms':>10}{'':7}{'of the':>8}")
    lines.append(f"{'':32}{'a layer':>9}{'the host':>10}{'a step':>9}{'a token':>10}{'':7}"
                 f"{'floor':>8}  tokens")
    for row in rows:
        if row.missing:
            lines.append(f"{row.name:32}not proven here: {row.missing}")
            continue
        launches, times = ("–" if n is None else n for n in (row.launches, row.asked))
        moved = "–" if row.moved is None else f"{row.moved / 1e6:.2f}"
        time = (f"{row.seconds * 1e3:>10.3f} ±{row.uncertainty:4.0%}{row.share:>9.0%}"
                if row.seconds else f"{'not proven here':>25}")
        lines.append(f"{row.name:32}{launches:>9}{times:>10}{moved:>9}{time}  "
                     + "; ".join(filter(None, (verdict(row, facts["dtype"]), row.untimed))))
    if any(not row.missing and None in (row.launches, row.moved) for row in rows):
        lines += ["–: not counted. A compiler's code says which arrays it takes, not how much of "
                  "them it needs;", "its code for Hugging Face's model is not read"]
    return "\n".join(lines)


# ---- the picture


def boxes(launches, layer):
    """[Box] of the second layer, from the launches of a step; its inputs from outside come first.

    layer: its weights, a Layer or a MergedLayer
    """
    many = a_layer(launches)
    start = many + 1 if launches[0].name == "index" else many   # the embedding, if it is alone
    here = launches[start:start + many]
    outside = sorted({i for launch in here for i in launch.inputs if i < start}, reverse=True)
    at = {i: n for n, i in enumerate([*outside, *range(start, start + many)])}
    drawn = [Box("x" if i == start - 1 else "residual", launch=False) for i in outside]
    for launch in here:
        note = f"{launch.moved:,} bytes" if launch.moved else ""
        drawn.append(Box(label(launch, layer), tuple(at[i] for i in launch.inputs), note))
    return drawn


def picture(name, drawn):
    """The boxes of a rung's layer as an SVG text."""
    return draw(drawn, f"{name}: {sum(box.launch for box in drawn)} launches a layer")


def label(launch, layer):
    """What a launch does, in a word or two; & is merged, + is fused."""
    known = {key: name for name, matrix in layer._asdict().items() if isinstance(matrix, tuple)
             for key in (place(matrix[0]), tuple(matrix[0].shape))}
    weights = next((known[key] for key in launch.arrays if key in known), "")
    weights = MATRICES.get(weights, weights)
    if launch.name in ("matmul", "mm"):
        return weights
    if launch.name == "addmm":                          # the library's, with an add at its end
        return f"{weights} + add"
    if "_fused_" in launch.name:                        # the compiler names what it has fused
        return " + ".join(re.findall("[a-z]+", launch.name.split("_fused_")[1]))
    return NAMES.get(launch.name, launch.name)
