"""`lab rename LESSON/OLD NEW`: another name for an exercise, in all files of its lesson."""

import re
import subprocess

from lab import stub
from lab.course import ROOT, CourseError

FENCE = re.compile(r"^```.*?^```$", re.M | re.S)


def rename(lesson, old, new):
    """Rename an exercise; (files that were written, files to look at), relative paths.
    The latter
    name it still: other files of the course, and those that call a method of any class by it.

    old: as in the front matter, a method as Class.method. new: the name alone
    """
    lesson.exercise(old)
    if not new.isidentifier():
        raise CourseError(f"{new!r} is not a name for a function")
    whole = ".".join([*old.split(".")[:-1], new])
    for language, text in lesson.sources.items():
        if whole in stub.definitions(text, language):
            raise CourseError(f"{lesson.id} already defines {whole}")
    texts = {path: renamed(path, old, whole) for path in files(lesson)}
    for path, text in texts.items():
        path.write_text(text, "utf-8")
    word = old.rpartition(".")[2]
    calls = [relative(path) for path, text in texts.items() if re.search(rf"\.{word}\b", text)]
    return [relative(path) for path in texts], [*calls, *mentions(old, texts)]


def files(lesson):
    return [path for path in (*map(lesson.path, (".py", ".cu", ".md")), lesson.bench,
                              *lesson.graders, lesson.mutants, lesson.twins) if path.exists()]


def renamed(path, old, new):
    """The text of a file with the new name.
    In prose, only code has names."""
    text = path.read_text("utf-8")
    short_old = old.rpartition(".")[2]
    short_new = new.rpartition(".")[2]
    test_old, test_new = (name.replace(".", "_") for name in (old, new))

    def words(code):
        code = re.sub(rf"\b{re.escape(old)}\b", new, code)
        code = re.sub(rf"\btest_{re.escape(test_old)}(?=\b|__)", f"test_{test_new}", code)
        if "." in old:              # other classes may have a method of that name
            return code
        return re.sub(rf"\b{re.escape(short_old)}\b", short_new, code)

    if path.suffix == ".py" and "." in old and old in stub.definitions(text, "python"):
        rows = text.split("\n")
        line = stub.find_line(text, old, "python") - 1
        rows[line] = re.sub(rf"\b{short_old}\b", short_new, rows[line], count=1)
        text = "\n".join(rows)
    if path.suffix != ".md":
        return words(text)
    start, front, prose = text.split("---\n", 2)
    prose = FENCE.sub(lambda m: words(m[0]), prose)
    prose = re.sub(r"`[^`\n]+`", lambda m: words(m[0]), prose)
    front = re.sub(r"`[^`\n]+`|^ +\S+:", lambda m: words(m[0]), front, flags=re.M)
    return "---\n".join([start, front, prose])


def mentions(old, done):
    """Other files of the course that have the old name as a word."""
    word = old.rpartition(".")[2]
    listed = subprocess.run(["git", "-C", str(ROOT), "grep", "-lwF", word, "--", "*.py", "*.md",
                             "*.toml"], capture_output=True, text=True).stdout.split()
    return [name for name in listed if ROOT / name not in done]


def relative(path):
    return str(path.relative_to(ROOT))
