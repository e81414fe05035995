"""Compare an answer with its oracle, and say in the problem's own terms what is wrong."""

import math
import reprlib
import sys
from itertools import islice

import numpy as np

from lab.judge.mistakes import mistake
from lab.judge.patterns import pattern

SIXTEEN_BITS = 1.6e-2       # relative: a few roundings of bfloat16, which keeps 8 bits
NUMBERS = (int, float, complex, np.generic)
MAX_VALUE_CHARS = 200   # characters of a value in a message
MAX_DIGITS = 40         # of an integer that a message writes out


def position(index):
    """The name of an element where the test has no better one."""
    return "element " + ", ".join(map(str, index)) if index else "the value"


def agree(got, want, tolerance, what, at=position, mistakes=None, unwritten=None):
    """AssertionError unless `got` equals `want` within `tolerance`.

    got: what the code under test returned; want: the oracle (float64 for real numbers)
    tolerance: relative to the largest |want|, and again to each element
    what: what is being compared, in words;  at(index): words for the place of an element
    mistakes: {id: (what went wrong, the array that one would get)}, tried when the answer is wrong.
        `want` itself, the same array, stands for a loss of digits
    unwritten: what the array held before the launch, if no right answer holds it
    """
    known = rows(mistakes or {})
    want = np.asarray(want)
    value = numbers(got, what)
    single = ("" if value.shape else f": it is {brief(got)}, a single value") if want.shape else \
        ", a single number"
    assert value.shape == want.shape, mistake(
        "shape", f"{what}: shape {value.shape}, expected {want.shape}{single}")
    wrong = differs(value, want, tolerance)
    if not wrong.any():
        return
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    count = f"{int(wrong.sum())} of {wrong.size} wrong; the first is " if wrong.size > 1 else ""
    before = unwritten is not None and value[index] == unwritten
    note = " (it held that before: nothing was written here)" if before else ""
    text = f"{what}: {count}{at(index)}: got {shown(value[index])}{note}, expected " \
           f"{shown(want[index])}"
    for name, sentence, answer in known:
        if says := explained(sentence, answer, value, want, tolerance):
            raise AssertionError(mistake(name, text + says, sentence))
    name, says = likely(value, want, wrong, tolerance, what)
    raise AssertionError(mistake("unwritten" if before else name, text + says, ""))


def likely(value, want, wrong, tolerance, what):
    """(id, sentence) of a mistake that no list names, each "" where nothing stands out."""
    many = wrong.size > 8 or 2 * wrong.sum() >= wrong.size      # rounding does not choose one
    if many and (says := digits(value, want, tolerance, what)):
        return "digits", says
    common = pattern(value, want, wrong,
                     lambda a, b: not differs(a, b, max(tolerance, 1e-6)).any())
    return "", f"\n{common[0].upper()}{common[1:]}." if common else ""


def lists(value):
    """The value with a list for each tuple in it, where either is a right answer."""
    return [*map(lists, value)] if isinstance(value, (list, tuple)) else value


def rows(mistakes):
    """[(id, what went wrong, the array that one would get)].
    ValueError where two ids have one sentence."""
    known = [(name, sentence, answer) for name, (sentence, answer) in mistakes.items()]
    sentences = [sentence for _, sentence, _ in known]
    if twice := {sentence for sentence in sentences if sentences.count(sentence) > 1}:
        raise ValueError(f"two mistakes have one sentence: {twice.pop()}")
    return known


def explained(sentence, answer, value, want, tolerance):
    """A sentence where an answer is what comes out of a mistake; "" where it is not."""
    loss_of_digits = answer is want
    answer = np.broadcast_to(np.asarray(answer), want.shape)
    if differs(value, answer, max(tolerance, 1e-3)).any() or not (
            loss_of_digits or nearer(value, answer, want, tolerance)):
        return ""
    only = loss_of_digits or np.isfinite(answer).any()
    return f"\nThis is what comes out {'' if only else '(among others) '}when {sentence}."


def nearer(value, answer, want, tolerance):
    """Whether a value is far nearer to a mistake's answer than to the right one.
    On some inputs a mistake hardly shows, or not at all: there it explains nothing.
    Nor where the answer is so large that the right one is lost in what is tolerated of it."""
    with np.errstate(invalid="ignore", over="ignore"):
        to_answer, to_want, size, right = (
            np.nan_to_num(np.abs(x), nan=0, posinf=0).sum() for x in (
                np.subtract(value, answer, dtype=np.complex128),
                np.subtract(value, want, dtype=np.complex128), answer, want))
    undefined = (np.isfinite(value) != np.isfinite(want)).any()
    lost = to_answer > max(0.1 * right, max(tolerance, 1e-6) * size)
    return not np.array_equal(answer, want) and bool(
        undefined or to_answer <= to_want / 5 and not (right and lost))


def rounded_once(got, want, name, what):
    """AssertionError unless a tensor of a 16-bit type is the oracle, rounded to that type at the
    very end.
    In 150,000 numbers of an RMSNorm and of a SwiGLU, float32 on the way moved at most one in ten
    thousand to its neighbour; a second rounding to 16 bits moved 26 % of them.

    got: the tensor that `name` wrote, on the inputs `what`;  want: the oracle, float64
    """
    torch = sys.modules["torch"]
    nearest = torch.from_numpy(np.asarray(want, np.float64)).to(got.dtype)
    off = int((got != nearest).sum())
    assert off <= 0.03 * got.numel(), mistake("rounded_twice", (
        f"{name} rounds to 16 bits more than once: on {what} {off:,} of {got.numel():,} numbers "
        f"are the neighbour of the right one. Compute in float32; the store alone rounds"))


def digits(value, want, tolerance, what):
    """A sentence about an answer that is wrong in its last digits alone; "" about any other."""
    if want.dtype.kind != "f" or tolerance * 5 > SIXTEEN_BITS or not want.any() or \
            differs(value, want, SIXTEEN_BITS).any():
        return ""
    finite = np.isfinite(want)
    error = np.abs(value[finite] - want[finite]).max() / np.abs(want[finite]).max()
    right, bits = (int(-math.log10(error)), 32) if error < 1e-5 else ("two or three", 16)
    name = what.split(",")[0]
    whole = all(name.count(a) == name.count(b) for a, b in ("()", "[]"))
    return (f"\n{name if whole else 'It'} is right to {right} digits: somewhere a number is "
            f"stored, multiplied or added in {bits} bits, or a sum leaves numbers out, or a small "
            f"term is wrong.")


def numbers(got, what):
    """An array of the numbers in `got`; bfloat16 and fp8 as float32."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(got, torch.Tensor):
        got = got.detach()
        short = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2     # unknown to NumPy
        got = (got.float() if got.dtype in short else got).numpy()
    kind = type(got).__name__
    assert isinstance(got, (bool, int, float, list, tuple, np.ndarray, np.generic)), mistake(
        "not_numbers",
        f"{what}: got {'nothing (None)' if got is None else f'a {kind}'}, expected numbers")
    try:
        value = np.asarray(got)
    except ValueError:
        raise AssertionError(mistake(
            "not_numbers", f"{what}: got a ragged {kind}, expected numbers")) from None
    assert value.dtype.kind in "biufc", mistake(
        "not_numbers", f"{what}: got {got!r}, expected numbers")
    return value


def differs(value, want, tolerance):
    """Where `value` is not `want`.
    NaN equals only NaN, an infinity only itself."""
    if want.dtype.kind in "biu" and value.dtype.kind in "biu":
        return value != want
    wide = np.complex128 if "c" in (value.dtype.kind, want.dtype.kind) else np.float64
    value = value.astype(wide)
    want = want.astype(wide)
    finite = np.isfinite(want)
    scale = np.abs(want[finite]).max(initial=0.0)
    with np.errstate(invalid="ignore"):
        near = np.abs(value - want) <= tolerance * (scale + np.abs(want)) / 2
    same = (value == want) | (np.isnan(value) & np.isnan(want))
    return ~np.where(finite, near, same)


def shown(number):
    """A number as a reader wants it: six digits, and the sign of a wrong scale still visible."""
    return f"{number:.6g}" if isinstance(number, float | np.floating) else str(number)


def alike(got, want, tolerance, what):
    """AssertionError unless two answers have the same form and their numbers are equal within
    `tolerance`: nested lists, tuples and dicts of numbers, texts and arrays."""
    if isinstance(want, dict):
        assert isinstance(got, dict) and set(got) == set(want), \
            f"{what}: got {brief(got)}, expected the keys {', '.join(map(str, want))}"
        for key in want:
            alike(got[key], want[key], tolerance, f"{what}, {key}")
    elif isinstance(want, (list, tuple)) and not all(isinstance(w, NUMBERS) for w in want):
        assert isinstance(got, (list, tuple)) and len(got) == len(want), \
            f"{what}: got {brief(got)}, expected {brief(want)}"
        for position, pair in enumerate(zip(got, want, strict=True)):
            alike(*pair, tolerance, f"{what}, element {position}")
    elif want is None or isinstance(want, (str, bytes, bool)):
        assert type(got) is type(want) and got == want, \
            f"{what}: got {brief(got)}, expected {brief(want)}"
    else:
        agree(got, want, tolerance, what)


def brief(value, items=0):
    """A value in a message: arrays by their shape and first `items`, long ones cut."""
    torch = sys.modules.get("torch")
    if isinstance(value, (np.ndarray, torch.Tensor) if torch else np.ndarray):
        if value.ndim:
            first = ", ".join(map(shown, value.reshape(-1)[:items].tolist()))
            return f"an array {tuple(value.shape)}" + (f" that begins {first}" if first else "")
        value = value.item()
    text = Words().repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]} …"


def sound(text):
    """A text that any file can hold: an answer may have lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


class Words(reprlib.Repr):
    """repr for a message: the beginning of a large container, and the length of an integer that is
    longer than Python prints (see sys.set_int_max_str_digits)."""

    def __init__(self):
        super().__init__()
        self.maxlevel = 8
        self.maxlist = self.maxtuple = self.maxset = MAX_VALUE_CHARS
        self.maxstring = self.maxother = 4 * MAX_VALUE_CHARS    # it cuts in the middle; see brief

    def repr_int(self, value, level):
        digits = int(math.log10(abs(value))) + 1 if value else 1
        return repr(value) if digits <= MAX_DIGITS else f"an integer of {digits:,} digits"

    def repr_dict(self, value, level):
        """In its own order."""
        rows = [f"{self.repr1(k, level - 1)}: {self.repr1(v, level - 1)}"
                for k, v in islice(value.items(), MAX_VALUE_CHARS)]
        return "{" + ", ".join(rows) + "}"

    def repr_ndarray(self, value, level):
        return brief(value)

    repr_Tensor = repr_ndarray
