"""The text that the small model and its draft learn:  python layer2_graph/small/corpus.py

Stories of a grammar (stories.py), and the docstrings of Python's standard library as the running
Python has them (licence: PSF License Agreement; its source is read where it is installed, and no
line of it is kept here).
A document is a story, a question and its story, or a docstring.

Every story of other seeds is held out, and every docstring of the files whose path has a small
hash, so that another Python holds out the same files.
No held-out text occurs in the text that is learnt; docstrings that differ by a word may.
"""

import ast
import hashlib
import sysconfig
from functools import cache
from pathlib import Path
from typing import NamedTuple

from layer2_graph.small.stories import Teller

BEGIN = "<|begin|>"
END = "<|end|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
STORIES = {"train": (0, 7000), "dev": (1, 60), "held out": (2, 350)}    # seed, how many
FILES = {"dev": range(2), "held out": range(2, 16), "train": range(16, 256)}    # first byte of hash
CHATS = 3                               # one story of this many comes with its question
ELSEWHERE = {"site-packages", "test", "tests", "idle_test"}     # of files that are not read


class Corpus(NamedTuple):
    """Texts with their marks, to learn from, to choose the best step by, or to judge by."""

    stories: list[str]
    docstrings: list[str]

    def sha256(self):
        return {kind: hashlib.sha256("".join(texts).encode()).hexdigest()
                for kind, texts in self._asdict().items()}


def document(text, question=None):
    """A text between its marks, as the tokenizer's chat template writes a conversation."""
    prefix = "" if question is None else f"{USER}{question}{END}{ASSISTANT}"
    return f"{BEGIN}{prefix}{text}{END}"


def stories(part):
    seed, count = STORIES[part]
    teller = Teller(seed)
    pairs = (teller.tell() for _ in range(count))
    return [document(text, None if i % CHATS else question)
            for i, (question, text) in enumerate(pairs)]


@cache
def docstrings():
    """{part: [docstring]} of the standard library, each text once."""
    root = Path(sysconfig.get_paths()["stdlib"])
    by_part = {part: {} for part in FILES}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if ELSEWHERE & set(name.parts):
            continue
        first = hashlib.sha256(name.as_posix().encode()).digest()[0]
        part = next(part for part, bytes_ in FILES.items() if first in bytes_)
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                by_part[part][(ast.get_docstring(node) or "").strip()] = None
    learnt = by_part["train"].keys()
    return {part: [document(text) for text in texts
                   if len(text) > 20 and (part == "train" or text not in learnt)]
            for part, texts in by_part.items()}


def corpus(part):
    """The Corpus of "train", "dev" or "held out"."""
    return Corpus(stories(part), docstrings()[part])


def main():
    for part in STORIES:
        documents = corpus(part)
        for kind, texts in documents._asdict().items():
            print(f"{part:9} {kind:10} {len(texts):6,} texts {sum(map(len, texts)):10,} characters"
                  f"  sha256 {documents.sha256()[kind][:12]}…")


if __name__ == "__main__":
    main()
