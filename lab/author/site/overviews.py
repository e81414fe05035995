"""The pages beside the lessons."""

import json
import re
from html import escape
from itertools import pairwise

from lab import course
from lab.author.build import body
from lab.author.site.pages import link
from lab.course import ROOT

TERM = re.compile(r"\*\*([^*]+)\*\*")
NO_TERM = re.compile(r"[.:?!]$|^[\d(]|^.$|^(a|the) |(\S+\s+){3}", re.I)     # emphasis, or a heading
PARAGRAPH = re.compile(r"\n\n|\n(?=- |\d\. )")
SENTENCE = re.compile(r"[.?!]\)?\s+(?=[A-Z*`$(])")       # where one ends
COLUMN, ROW, WIDTH, HEIGHT = 150, 30, 128, 22   # of the map, in pixels


def index():
    """The first page: what the course is, its map, and where everything is."""
    floors = [f"```{{toctree}}\n:caption: {floor.title}\n:hidden:\n\n"
              + "\n".join(f"{i.id[:3]} · {i.title} <{i.floor}/{i.id}>" for i in floor.lessons)
              + "\n```" for floor in course.floors()]
    return "\n\n".join([
        "# Three Floors", "From \"my GPU says 100 % and is still slow\" to a working LLM serving "
        "engine made of your own kernels. Real CUDA C and unmodified Triton are checked on a CPU, "
        "so you need no GPU to begin.",
        "```sh\nmake learn      # set up, put the lessons on your desk, and open the first\n```",
        "## The lessons", "*Each box is a lesson and leads to it; thick ones are the core path. "
        "A line leads from a lesson to one that needs it.*", lesson_map(),
        "```{toctree}\n:caption: The course\n:hidden:\n\nglossary\nwhere\nproven\nfigures\n"
        "instructors\n```", *floors, "```{toctree}\n:caption: Reference\n:hidden:\n\n"
        "reference/commands\nreference/simulator\n" + "\n".join(
            f"reference/{floor.name}" for floor in course.floors()) + "\n```"]) + "\n"


def lesson_map():
    """The lessons by floor, a column each, and what they need, as SVG."""
    places = {lesson.id: (COLUMN * x, ROW * y) for x, floor in enumerate(course.floors())
              for y, lesson in enumerate(floor.lessons)}
    lines = [line(places[name], places[lesson.id])
             for lesson in course.lessons() for name in lesson.needs]
    boxes = [box(lesson, *places[lesson.id]) for lesson in course.lessons()]
    wide = max(x for x, _ in places.values()) + WIDTH
    high = max(y for _, y in places.values()) + HEIGHT
    return (f'<div class="map"><svg viewBox="-14 -4 {wide + 18} {high + 8}" role="img" '
            f'aria-label="lessons and what they need"><g class="needs">{"".join(lines)}</g>'
            f'{"".join(boxes)}</svg></div>')


def line(start, end):
    """From a lesson's box to that of one which needs it: to the right, or beside the column."""
    x, y, middle = *end, HEIGHT / 2
    before = start[0] < x
    first = start[0] + WIDTH if before else start[0]
    bend = (first + x) / 2 if before else x - 12
    return (f'<path d="M{first} {start[1] + middle} C{bend} {start[1] + middle} {bend} '
            f'{y + middle} {x} {y + middle}"/>')


def box(lesson, x, y):
    kind = "core" if lesson.core else "deep"
    return (f'<a href="{lesson.floor}/{lesson.id}.html"><title>{escape(lesson.title)}</title>'
            f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="4" class="{kind}"/>'
            f'<text x="{x + 5}" y="{y + 15}">{lesson.id[:3]} {short(lesson.title)}</text></a>')


def short(title, most=16):
    return escape(title if len(title) <= most else title[:most - 1].rstrip(" ,") + "…")


def glossary():
    """Each term that a lesson defines, with the sentence that does."""
    terms = {}
    for lesson in course.lessons():
        for cell in body(lesson, lesson.stubs):
            if cell["cell_type"] != "markdown" or not cell["id"].startswith("text-"):
                continue
            paragraphs = PARAGRAPH.split(cell["source"])
            for paragraph, after in pairwise([*paragraphs, ""]):
                for match in () if paragraph.startswith("|") else TERM.finditer(paragraph):
                    if not NO_TERM.search(match[1]):
                        text = sentence(paragraph, match, after)
                        terms.setdefault(match[1].lower(), (match[1], text, lesson))
    rows = [f"{term}\n: {text} ({link(lesson, '')})" for _, (term, text, lesson) in sorted(
        terms.items())]
    return "# Glossary\n\nEach term with the sentence that introduces it.\n\n" + "\n\n".join(rows) \
        + "\n"


def sentence(paragraph, match, after):
    """The sentence of a paragraph in which a match lies, on one line, with the formula after the
    paragraph that it leads to."""
    ends = [end.end() for end in SENTENCE.finditer(paragraph)]
    start = max((end for end in ends if end <= match.start()), default=0)
    stop = min((end for end in ends if end >= match.end()), default=len(paragraph))
    words = " ".join(paragraph[start:stop].split())
    if start == 0:
        words = re.sub(r"^(- |\d\. )", "", words)
    if after.startswith("$$") and words[-1] not in ".?!":
        words += f" ${' '.join(after.strip('$').split())}$"
    return words


def where():
    """What runs on which machine, by lesson."""
    rows = ["| lesson | is written in | on a CPU | on a GPU |", "| --- | --- | --- | --- |"]
    for lesson in course.lessons():
        text = lesson.sources["python"]
        languages = [name for name, there in (
            ("CUDA C", "cuda" in lesson.sources), ("Triton", "@triton.jit" in text)) if there]
        cpu = "checked in the simulator" if languages else "runs as it is"
        if lesson.ranks:
            cpu += ", on several processes"
        speed = sum(bool(exercise.speed_points) for exercise in lesson.exercises)
        gpu = f"{speed} measured" if speed else "the same"
        rows.append(f"| {link(lesson, '')} {lesson.title} | {', '.join(languages) or 'Python'} | "
                    f"{cpu} | {gpu} |")
    return ("# What runs where\n\nEvery exercise can be done and checked without a GPU. Where one "
            "is measured on a GPU, a CPU says *not proven here*.\n\n" + "\n".join(rows) + "\n")


def proven():
    """What the course's own proof has shown of each lesson."""
    rows = ["| lesson | proofs | wrong answers | right answers | proven on |",
            "| --- | --: | --: | --: | --- |"]
    for floor in course.floors():
        record = json.loads((ROOT / "proofs" / f"{floor.name}.json").read_text("utf-8"))
        rows += [f"| {link(lesson, '')} {lesson.title} | {row['proofs']} | {row['mutants']} | "
                 f"{row['twins']} | {row['date']} |" for lesson in floor.lessons
                 if (row := record.get(lesson.id))]
    return PROVEN + "\n".join(rows) + "\n"


PROVEN = """# What is proven, and what is not

A grader is code, so it is tested as code is: with answers that are wrong in a known way, each of
which must be refused and its mistake named, and with right answers in another style, each of which
must pass. *wrong answers* counts the former, *right answers* the latter.

Not proven:

- **Speed.** Points for speed are given on a GPU alone. Which kernels have been measured there is
  written in the [figures](figures.md).
- **Other machines.** What needs several machines, or a device that no proof has had, says *not
  proven here* with its reason when it is run.
- **Every wrong answer.** A grader refuses the mistakes that somebody thought of, and tries hard
  inputs for the others.

"""
