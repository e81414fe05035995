"""What a notebook's cell brought into the desk's file, and how it leaves again.

A cell is written to the file whole: the exercise, its helpers and imports, stray statements. When
the learner deletes a helper from the cell, it must not stay behind in what is graded.
"""

import ast

from lab import stub


def forget(text, cell, keep, language):
    """`text` without what only `cell` brought: everything in it that no text in `keep` has too.

    A part of `text` goes only if it still is what the cell had: edited since, it is the learner's.
    """
    return (_forget_python if language == "python" else _forget_cuda)(text, cell, keep)


def _forget_python(text, cell, keep):
    kept = {name for other in keep for name in stub.definitions(other, "python")}
    kept |= {ast.dump(node) for other in keep for node in ast.parse(other).body}
    gone = {ast.dump(node) for node in ast.parse(cell).body
            if getattr(node, "name", None) not in kept} - kept
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):
        if ast.dump(node) in gone:
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            del lines[first - 1:node.end_lineno]
    return "".join(lines)


def _forget_cuda(text, cell, keep):
    kept = {name for other in keep for name in stub.definitions(other, "cuda")}
    for name in stub.definitions(cell, "cuda"):
        if name not in kept and stub.normalised(text, name, "cuda") == stub.normalised(
                cell, name, "cuda"):
            text = text.replace(stub.extract(text, name, "cuda"), "")
    return text
