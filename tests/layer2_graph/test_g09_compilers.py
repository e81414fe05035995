"""Graders of g09.
What is right is computed in NumPy, or counted on the course's own functions."""

import re

import numpy as np
import pytest
import torch

from lab.judge.mistakes import mistake, raises
from layer2_graph.compilations import Graphs, compilations, find_breaks
from layer2_graph.compilers.texts import RECORDED
from layer2_graph.g09_compilers import energy
from layer2_graph.testing.compile_driver import norm_kernel

DRIVER = "layer2_graph.testing.compile_driver:"


# ---- the predictions


def test_predict_graphs(subject):
    """Counted by Dynamo, on this machine."""
    right = find_breaks(energy, torch.ones(5, 3), torch.tensor(2), 2.0).graphs
    guess = subject.predict_graphs()
    why = {1: ("no_break", "Dynamo has no numbers: it cannot decide an `if` on one."),
           2: ("one_break", "There is more than one place at which Python must act."),
           3: ("breaks_counted", "That is how often Dynamo stops. What lies before the first stop, "
                                 "and after the last one?")}
    name, sentence = why.get(guess, ("other", "Look for each place where Python needs a value or "
                                              "does what no tensor operation does."))
    assert guess == right, mistake(name, f"predict_graphs: predicted {guess!r}. {sentence}",
                                   sentence)


def test_predict_compilations(subject):
    """Counted by a backend that compiles nothing."""
    backend = Graphs()
    torch.compiler.reset()
    step = torch.compile(lambda x: x * x + 1, backend=backend)
    right = compilations(step, backend, [(torch.ones(T, 8),) for T in (3, 5, 7, 1, 9)])
    guess = subject.predict_compilations()
    assert type(guess) is list, mistake(
        "no_list", f"predict_compilations: got {guess!r}, expected a list of five counts")
    why = {(1, 2, 3, 4, 5): ("each_size", "The second size is compiled with a symbol in its place, "
                                          "and that graph serves the third."),
           (1, 1, 1, 1, 1): ("first_fits", "At the first call nothing says that a size will "
                                           "change: it is a number in the graph."),
           (1, 2, 2, 2, 2): ("one_like_others", "A size of 1 broadcasts, so no symbol stands for "
                                                "it: it is a graph of its own.")}
    name, sentence = why.get(tuple(guess), ("other", "Go call by call: does a graph that is there "
                                                     "serve this size?"))
    assert guess == right, mistake(
        name, f"predict_compilations: predicted {guess}. {sentence}", sentence)


# ---- energy_whole


def energies(x, n, limit, wrong=None):              # (T, C) -> (C,)
    """Row by row."""
    largest = np.abs(x).max() if x.size else 0.0
    if wrong == "of_rows":
        largest = np.abs(x[:max(n, 0)]).max(initial=0)
    if (largest > limit or wrong == "always_scaled") and wrong != "never_scaled":
        x = x * (limit / largest)
    if wrong == "clamped":
        x = x.clip(-limit, limit)
    n = min(n + 1, len(x)) if wrong == "one_more" else n
    n = len(x) if wrong == "all_rows" else n
    return sum((x[t] ** 2 for t in range(min(max(n, 0), len(x)))), np.zeros(x.shape[1]))


ENERGIES = {
    "always_scaled": "x is scaled where no number is larger than the limit, too",
    "never_scaled": "x is not scaled down",
    "of_rows": "the largest number is sought in the first n rows alone, expected in all",
    "clamped": "numbers above the limit are cut off, expected all of x scaled down",
    "one_more": "row n counts, too: the first n rows are 0 to n - 1",
    "all_rows": "all rows count, expected the first n",
}
NOT_TAKEN = ("Both ways are computed. NaN or infinity of the one that is not taken gets into the "
             "result if it is multiplied by 0: choose by torch.where.")


@pytest.mark.parametrize("T, C, n, limit", [
    (5, 3, 2, 0.5), (5, 3, 2, 1e3), (127, 4, 127, 1.0), (1, 1, 0, 1.0), (6, 8, 9, 1.0),
    (1000, 2, 129, 0.1)])
def test_energy_whole(subject, agree, rng, T, C, n, limit):
    x = rng.standard_normal((T, C))
    got = subject.energy_whole(torch.from_numpy(x), torch.tensor(n), limit)
    agree(got, energies(x, n, limit), "float64", f"energy_whole, x {x.shape}, n = {n}, limit "
          f"{limit}", lambda i: f"column {i[0]}",
          {name: (why, energies(x, n, limit, name)) for name, why in ENERGIES.items()
           if name != "always_scaled" or np.abs(x).max() <= limit})


@pytest.mark.parametrize("x, n", [
    ([[1.0, 2.0], [np.nan, 3.0]], 1), ([[0.0, 0.0], [0.0, 0.0]], 2), ([[0.5, 0.0], [0, np.nan]], 1),
    ([[1.0, 2.0], [3.0, 4.0]], -1)])
def test_energy_whole__not_taken(subject, x, n):
    """NaN after row n, zeros that would be divided by, no rows."""
    x = np.array(x)
    got = subject.energy_whole(torch.from_numpy(x), torch.tensor(n), 2.0)
    want = energies(x, n, 2.0)
    assert np.array_equal(got, want), mistake(
        "not_taken", f"energy_whole of {x.tolist()}, n = {n}: got {list(map(float, got))}, "
        f"expected {want.tolist()}. {NOT_TAKEN}", NOT_TAKEN)


def test_energy_whole__one_graph(subject, rng):
    x = torch.from_numpy(rng.standard_normal((5, 3)))
    graphs, breaks = subject.make(f"{DRIVER}breaks", subject.energy_whole,
                                  [x, torch.tensor(2), 0.5])
    kinds = {"print_stays": (r"print", "It still prints."),
             "if_stays": (r"jump|\bif\b", "An `if` on a number of a tensor is left."),
             "item_stays": (r"\.item\(|int\(|scalar", "Python asks for the number in a tensor: "
                                                      "compare with the tensor n itself.")}
    first = breaks[0] if breaks else ""
    name, sentence = next(((name, why) for name, (pattern, why) in kinds.items()
                           if re.search(pattern, first)), ("other", "A break is left."))
    assert not breaks, mistake(
        name, f"energy_whole: {graphs} graphs. The first break, and Dynamo's word for it: {first}. "
        f"{sentence}", sentence)
    assert graphs == 1, mistake("no_graph", f"energy_whole: {graphs} graphs, expected 1, made of "
                                "tensor operations")


# ---- one_graph


def test_one_graph(subject, agree, rng):
    """T = 5, 3, 64 and 2 share a graph, and C is a number in it."""
    inputs = [torch.from_numpy(rng.standard_normal((T, 8))) for T in (5, 3, 64, 2)]
    told = subject.make(f"{DRIVER}shared_graph", subject.one_graph, inputs)
    counts, sizes = told["counts"], told["sizes"]
    assert counts[-1], mistake("not_compiled", "one_graph: the backend was never called: the "
                               "function that is returned is not compiled for it")
    assert told["first"] == 1, mistake(
        "not_called", f"one_graph: {told['first']} graphs when it returns, expected 1: call it "
        "with the example, which is marked, first")
    assert counts[-1] == 1 or sizes[0][1] == "8", mistake(
        "wrong_axis", f"one_graph: x is {sizes[0]} in the first graph: C is a symbol, and T a "
        "number. Tokens are axis 0")
    assert counts[-1] == 1, mistake(
        "specialised", f"one_graph: T = 5, 3, 64, 2 made {counts} graphs, expected 1 for all. At "
        f"the first call T was a number in the graph: its x is {sizes[0]}. Mark the axis before.")
    assert sizes[0][1] == "8", mistake(
        "all_symbols", f"one_graph: x is {sizes[0]} in the graph: C is a symbol as well. A width "
        "that the compiler knows makes better kernels; mark axis 0 alone")
    for x, got in zip(inputs, told["results"], strict=True):
        agree(got, 2 * np.maximum(x.numpy(), 0), "float64", f"the step, T = {len(x)}")


# ---- register_norm


NORMS = {
    "no_fake": (r"no fake impl", "There is no fake: a compiler has no numbers to run the kernel "
                                 "on, and must know the result's form."),
    "fake_shape": (r"Shapes", "The fake's shape is not that of the result."),
    "fake_dtype": (r"Dtypes", "The fake's dtype is not that of the result: bfloat16 comes in, and "
                              "goes out."),
    "fake_strides": (r"Stride", "The fake's strides are not those of the result. Of a transposed "
                                "x, empty_like has x's strides, and the kernel writes row after "
                                "row: the compiler would compute wrong addresses."),
    "changes_declared": (r"[mM]utat|mutable|did not mutate", "The kernel changes no argument."),
}


@pytest.mark.parametrize("shape, dtype, across", [
    ((3, 8), torch.float32, False), ((5, 8), torch.float32, False), ((1, 8), torch.float32, False),
    ((2, 3, 127), torch.float32, False), ((3, 8), torch.bfloat16, False),
    ((3, 8), torch.float32, True)])
def test_register_norm(subject, rng, shape, dtype, across):
    """PyTorch's own opcheck, and whether it is one operator for all of these."""
    x = torch.from_numpy(rng.standard_normal(shape)).to(dtype)
    x = x.mT.contiguous().mT if across else x
    w = torch.from_numpy(rng.standard_normal(shape[-1])).to(dtype)
    inputs = [[torch.ones(3, 8), torch.ones(8), 1e-5], [x, w, 1e-5]]
    first, other = subject.make(f"{DRIVER}norm_problems", subject.register_norm, inputs)
    if problem := " ".join((first or other).values()):
        name, (_, sentence) = next(
            ((name, row) for name, row in NORMS.items() if re.search(row[0], problem)),
            ("fake_computes", ("", "The fake computes: its arguments have shape, dtype and "
                                   "strides, and no numbers.")))
        if name == "fake_shape" and not first:
            name = "fake_constant"
            sentence = "The fake's shape was right for x (3, 8): it holds for that one alone."
        shown = f"x {tuple(x.shape)} {dtype}, strides {x.stride()}"
        assert not problem, mistake(name, f"register_norm, {shown}: {sentence} opcheck says: "
                                    f"{problem}", sentence)


def test_register_norm__in_a_graph(subject, agree, rng):
    """In a function without a break: two graphs for three sizes, and the kernel's numbers."""
    w = torch.from_numpy(rng.standard_normal(8)).float()
    inputs = [[torch.from_numpy(rng.standard_normal((T, 8))).float(), w, 1e-5] for T in (3, 5, 7)]
    counts, results = subject.make(f"{DRIVER}norm_in_graph", subject.register_norm, inputs)
    assert counts == [1, 2, 2], mistake(
        "recompiled", f"register_norm: graphs after T = 3, 5, 7: {counts}, expected [1, 2, 2]. The "
        "fake turns a size into a number: take x.shape as it is")
    for (x, *rest), got in zip(inputs, results, strict=True):
        agree(got, norm_kernel(x + 1, *rest).numpy() * 2, "exact", f"twice the norm, {len(x)} rows",
              mistakes={"no_kernel": ("there are zeros where the kernel's numbers should be",
                                      np.zeros(x.shape, np.float32))})


# ---- register_write


def pages_and_tokens(rng):
    P, S, G, D, T = 4, 3, 2, 5, 7
    k, v = (torch.from_numpy(rng.standard_normal((T, G, D))).float() for _ in range(2))
    pages = [torch.from_numpy(rng.standard_normal((P, S, G, D))).float() for _ in range(2)]
    return [k, v, *pages, torch.from_numpy(rng.permutation(P * S)[:T])]


def written(old, new, slots):
    """Slot by slot: pages (P, S, G, D) after the write."""
    pages = old.numpy().copy()
    S = pages.shape[1]
    for t, slot in enumerate(slots.tolist()):
        pages[slot // S, slot % S] = new[t].numpy()
    return pages


def test_register_write(subject, rng):
    """The schema says what is changed: PyTorch's opcheck, and argument by argument."""
    problem, marks = subject.make(f"{DRIVER}write_problems", subject.register_write,
                                  pages_and_tokens(rng))
    names = ("k", "v", "k_pages", "v_pages", "slots")
    changed = {name for name, mark in zip(names, marks, strict=True) if mark}
    missing = sorted({"k_pages", "v_pages"} - changed)
    assert missing != ["k_pages", "v_pages"], mistake(
        "no_mutation", "register_write: no argument is declared as changed, and the kernel writes "
        "into the pages. A compiler may move such a call, or drop it, since nothing needs it.")
    assert not missing, mistake("half_mutation", f"register_write: {' and '.join(missing)}: not "
                                "declared as changed. The kernel writes into both.")
    extra = sorted(changed - {"k_pages", "v_pages"})
    assert not extra, mistake(
        "all_mutated", f"register_write: {', '.join(extra)}: declared as changed, but only read. A "
        "compiler then keeps or copies for nothing what it could have shared.")
    text = " ".join(problem.values())
    assert not problem, mistake("opcheck", f"register_write: opcheck says: {text}")


def test_register_write__read_after(subject, agree, rng):
    """A compiled function reads the pages before and after the write."""
    k, v, *pages, slots = arguments = pages_and_tokens(rng)
    right, swapped = ([written(old, new, slots) for old, new in zip(pages, both, strict=True)]
                      for both in ((k, v), (v, k)))
    before = sum(old.double().sum() for old in pages)
    with raises("result_given", RuntimeError, "An operator that writes in place returns nothing."):
        *sums, got_k, got_v = subject.make(f"{DRIVER}write_then_read", subject.register_write,
                                           arguments)
    for i, got in enumerate((got_k, got_v)):
        agree(got, right[i], "exact", ("k_pages", "v_pages")[i], mistakes={
            "swapped": ("keys and values are exchanged", swapped[i]),
            "not_written": ("the pages are as before", pages[i])})
    after = sum(pages.sum(dtype=np.float64) for pages in right)
    agree(np.array([float(s) for s in sums]), np.array([float(before), after]), "float32",
          "sums of the pages before and after", mistakes={
        "moved": ("both sums are those after the write", np.array([after, after]))})


# ---- fusions


SMALL = """HloModule m, is_scheduled=true

%fused_computation (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %inner = f32[4]{0} fusion(%p), kind=kLoop, calls=%deeper
  ROOT %add.1 = f32[4]{0} add(%inner, %p)
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %fusion.1 = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused_computation
  %dot = f32[4]{0} dot(%fusion.1, %x)
  %fusion = f32[4]{0} fusion(%dot, %x), kind=kInput, calls=%fused_computation, metadata={op="a"}
  ROOT %fusion.2 = (f32[4]{0}, f32[]) fusion(%fusion), kind=kLoop, calls=%other
}
"""
AFTER = SMALL + """
%other (q: f32[4]) -> f32[4] {
  %q = f32[4]{0} parameter(0)
  ROOT %fusion.9 = f32[4]{0} fusion(%q), kind=kLoop, calls=%fused_computation
}
"""
NONE = "HloModule n\n\nENTRY %main (x: f32[]) -> f32[] {\n  ROOT %x = f32[] parameter(0)\n}\n"


def counted(text, wrong=None):
    """{kind: count}, line by line."""
    counts, inside = {}, wrong == "whole_text"
    for line in text.splitlines():
        inside = inside or line.startswith("ENTRY ")
        if inside and " fusion(" in line:
            kind = re.search(r"kind=(\w+)", line)[1]
            counts[kind] = counts.get(kind, 0) + 1
        inside = inside and (line != "}" or wrong in ("whole_text", "to_the_end"))
    return counts


@pytest.mark.parametrize("name", ["small", "after", "none", "recorded", "drawn"])
def test_fusions(subject, rng, name):
    lines = SMALL.splitlines(keepends=True)
    more = rng.integers(1, 9)
    text = {"small": SMALL, "after": AFTER, "none": NONE,
            "drawn": "".join(lines[:9] + [lines[10]] * more + lines[9:]),
            "recorded": (RECORDED / "hlo.txt").read_text("utf-8")}[name]
    got, right = subject.fusions(text), counted(text)
    assert isinstance(got, dict), mistake(
        "no_dict", f"fusions: got {type(got).__name__}, expected a dict")
    why = [("whole_text", counted(text, "whole_text"), "Fusions of other computations are counted: "
            "they run as a part of the line that calls them."),
           ("to_the_end", counted(text, "to_the_end"), "What stands after ENTRY's closing brace is "
            "counted as well."),
           ("total", {"fusion": sum(right.values())}, "Count each kind by itself."),
           ("lines_once", dict.fromkeys(right, 1), "Each kind is there once: count its lines.")]
    label, sentence = next(((label, why) for label, value, why in why if got == value),
                           ("other", "Count the lines of ENTRY that have ` fusion(`, by kind."))
    assert got == right, mistake(label, f"fusions of the text `{name}`: got {got}, expected "
                                 f"{right}. {sentence}", sentence)


def test_fusions__no_entry(subject):
    with pytest.raises(Exception, match="fusions: no ENTRY in this text"):
        subject.fusions("fusion(%x), kind=kLoop")
