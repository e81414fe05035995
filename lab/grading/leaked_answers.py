"""Answers that an edition reveals: lines of the reference, found in other files."""

import gzip
import re

from lab import course, stub
from lab.desk import ipynb

SHORTEST = 20           # characters of a telling line, blanks left out
BINARY = (".npz", ".png", ".safetensors")


def notes(folder, plan):
    """A sentence for each answer that has half its lines or more in a file of the edition."""
    for exercise, file, count, most in leaks(folder, plan.answered):
        if 2 * count >= most:
            yield f"{exercise.id}: {count} of {most} lines of its answer are in {file}"


def leaks(folder, answered):
    """(exercise, file, lines found, lines in all) for each exercise of the lessons without
    answers, and each file of the edition that has any of its lines."""
    texts = {path.relative_to(folder): squeezed(readable(path)) for path in folder.rglob("*")
             if path.is_file() and ".git" not in path.parts and path.suffix not in BINARY}
    for lesson in course.lessons():
        for exercise in lesson.exercises if lesson not in answered else ():
            lines = telling(exercise)
            for path, text in texts.items():
                if count := sum(line in text for line in lines):
                    yield exercise, path, count, len(lines)


def telling(exercise):
    """The lines of the reference that its published stub lacks, blanks and comments left out."""
    lesson = exercise.lesson
    language = exercise.language
    stub_text = squeezed("\n".join(lesson.stubs.values()))
    whole = stub.extract(lesson.sources[language], exercise.name, language)
    comment = "#" if language == "python" else "//"
    lines = {squeezed(line.split(comment)[0]) for line in whole.splitlines()}
    return [line for line in sorted(lines) if len(line) > SHORTEST and line not in stub_text]


def squeezed(text):
    return re.sub(r"\s+", "", text)


def readable(path):
    """What a reader of a file sees: a notebook's cells and outputs, a compressed file's text."""
    if path.suffix == ".gz":
        return gzip.decompress(path.read_bytes()).decode()
    text = path.read_text("utf-8", errors="replace")
    if path.suffix == ".ipynb":
        cells = ipynb.load(text, str(path))["cells"]
        return "\n".join(ipynb.source(cell) + str(cell.get("outputs", "")) for cell in cells)
    return text
