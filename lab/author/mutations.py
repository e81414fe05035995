"""Does the proof notice a changed line?
`python -m lab.author.mutations --seed 1 --count 60`

Changes are drawn at random, from each room in turn, and made one at a time in this clone, which
must hold no other change: run it in a clone of its own.
For each, files of tests run until one fails, the nearest by imports first.
benchmarks/mutations.json has what came of it.
"""

import argparse
import ast
import json
import random
import re
import subprocess
import time
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

from lab.author.units import PYTEST, packed, seconds_of
from lab.course import ROOT

RECORD = ROOT / "benchmarks" / "mutations.json"
NOT_PRODUCT = ("tests/", "solutions/", "notebooks/", "benchmarks/")
LIMIT = 600             # seconds of tests for one change
SWAPS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
         ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
         ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "+",
         ast.And: "or", ast.Or: "and"}
# In CUDA C, where a line has nothing else than code before it: a token and what it becomes.
TOKENS = {" < ": " <= ", " <= ": " < ", " + ": " - ", " - ": " + ", " * ": " + ", " == ": " != ",
          "&&": "||", " += ": " = "}


@dataclass(frozen=True)
class Mutation:
    """A piece of a file (from `start` to `end`, in characters) and what stands there instead."""

    file: str
    line: int
    start: int
    end: int
    before: str
    after: str


# ---- what can be changed


def mutations(file):
    """All mutations of a file, relative to the course."""
    text = (ROOT / file).read_text("utf-8")
    if file.endswith(".cu"):
        return cuda_mutations(file, text)
    source = Source(text)
    spans = {change for function in ast.walk(ast.parse(text))
             if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
             for statement in function.body for node in ast.walk(statement)
             for change in source.changes(node)}
    return [Mutation(file, text.count("\n", 0, start) + 1, start, end, text[start:end], after)
            for start, end, after in sorted(spans)]


class Source:
    """The text of a Python file, with the indices of its nodes."""

    def __init__(self, text):
        self.text = text
        self.lines = text.splitlines(keepends=True)
        self.starts = list(accumulate(map(len, self.lines), initial=0))

    def index(self, line, column):
        """The index in the text of a line and a column of bytes, as `ast` counts."""
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node):
        """Where a node begins and ends."""
        return (self.index(node.lineno, node.col_offset),
                self.index(node.end_lineno, node.end_col_offset))

    def changes(self, node):
        """[(start, end, new text)] for a node."""
        match node:
            case ast.Compare(left=left, ops=[kind], comparators=[right]):
                return self.operator(left, kind, right)
            case ast.BinOp(left=left, op=kind, right=right):
                return self.operator(left, kind, right)
            case ast.BoolOp(op=kind, values=[left, right]):
                return self.operator(left, kind, right)
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                return [(*self.span(node), self.text[slice(*self.span(inner))])]
            case ast.Constant(value=bool() as value):
                return [(*self.span(node), str(not value))]
            case ast.Constant(value=int() as value):
                return [(*self.span(node), str(value + 1))]
            case ast.Return(value=ast.expr() as value):
                return [(*self.span(value), "None")]
            case ast.If(test=test) | ast.While(test=test):
                return [(*self.span(test), f"not ({self.text[slice(*self.span(test))]})")]
            case ast.Expr(value=ast.Call()):
                return [(*self.span(node), "pass")]
        return []

    def operator(self, left, kind, right):
        """The change of what stands between two operands; parentheses stay where they are."""
        start = self.span(left)[1]
        between = self.text[start:self.span(right)[0]]
        sign = re.search(r"not\s+in|is\s+not|\w+|[^\s()\w\\\\]+", between)
        if type(kind) not in SWAPS or not sign or "#" in between:
            return []
        return [(start + sign.start(), start + sign.end(), SWAPS[type(kind)])]


def cuda_mutations(file, text):
    """Those of CUDA C: operators in the part of a line before a comment."""
    rows = []
    start = 0
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        code = line.partition("//")[0]
        rows += [Mutation(file, number, start + place.start(), start + place.end(), token, after)
                 for token, after in TOKENS.items()
                 for place in re.finditer(re.escape(token), code)]
        start += len(line)
    return rows


def draw(count, seed):
    """Mutations, from each room in turn, from a file drawn in it."""
    dice = random.Random(seed)
    rooms = {}
    for file in tracked("*.py", "*.cu"):
        if not file.startswith(NOT_PRODUCT):
            rooms.setdefault(str(Path(file).parent), []).append(file)
    order = sorted(rooms)
    dice.shuffle(order)
    rows = []
    while len(rows) < count:
        room = order[len(rows) % len(order)]
        choice = mutations(dice.choice(rooms[room]))
        if choice:
            rows.append(dice.choice(choice))
    return rows


def tracked(*patterns):
    return subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True,
                          check=True).stdout.split()


# ---- which tests notice


def nearest(file):
    """Files of tests that come to a file by imports, the nearest and quickest first; then those of
    its room, since a command that they start imports what they do not."""
    users = {}
    for user in tracked("*.py"):
        for name in imports(user):
            users.setdefault(name, []).append(user)
    lesson = Path(file).stem
    distance = {file: 0}
    queue = [file]
    for name in queue:
        for user in users.get(name, []):
            if user not in distance:
                distance[user] = distance[name] + 1
                queue.append(user)
    room = f"tests/{Path(file).parent}/"
    tests = [name for name in tracked("tests/*test_*.py")
             if name in distance or name.startswith(room)]
    return sorted(tests, key=lambda name: (lesson not in name, distance.get(name, 2),
                                           seconds_of(name)))


def imports(file):
    """Files of the course that a file imports."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    stems = {name.replace(".", "/") for name in names}
    return {f"{stem}{end}" for stem in stems for end in (".py", "/__init__.py", ".cu")
            if (ROOT / f"{stem}{end}").is_file()}


def killer(mutation):
    """The first test that fails with this mutation, or None; and the seconds of tests.
    Files of tests that LIMIT leaves no time for are not run; one that does not end in it has
    failed."""
    path = ROOT / mutation.file
    text = path.read_text("utf-8")
    begun = time.monotonic()
    try:
        path.write_text(text[:mutation.start] + mutation.after + text[mutation.end:], "utf-8")
        for files in packed(nearest(mutation.file)):
            if time.monotonic() - begun > LIMIT:
                break
            try:
                run = subprocess.run([*PYTEST, "-x", "--tb=no", "-m", "not alone and not soak",
                                      "--timeout=600", *files],
                                     cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
            except subprocess.TimeoutExpired:       # as where an import never ends
                return files[0], time.monotonic() - begun
            if run.returncode not in (0, 5):
                failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
                return failed[1] if failed else files[0], time.monotonic() - begun
    finally:
        path.write_text(text, "utf-8")
    return None, time.monotonic() - begun


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    options = parser.parse_args()
    if subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=ROOT).returncode:
        parser.error("this clone holds changes that are not committed: use a clone of its own")
    rows = []
    for mutation in draw(options.count, options.seed):
        test, seconds = killer(mutation)
        rows.append({**asdict(mutation), "killed_by": test, "seconds": round(seconds)})
        print(f"{'killed' if test else 'LIVES':7}{mutation.file}:{mutation.line}  "
              f"{mutation.before!r} → {mutation.after!r}  {test or ''}  {seconds:.0f} s",
              flush=True)
        RECORD.write_text(json.dumps({"seed": options.seed, "mutations": rows}, indent=1,
                                     ensure_ascii=False) + "\n", "utf-8")
    print(f"{sum(bool(row['killed_by']) for row in rows)} of {len(rows)} killed")


if __name__ == "__main__":
    main()
