"""The manifest: floors, lessons, exercises; where their files are, what their front matter says."""

import ast
import difflib
import hashlib
import re
import tomllib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from lab import stub

ROOT = Path(__file__).resolve().parents[1]
VERSION = "0.1.0"        # held equal to pyproject.toml's by a test
SUFFIX = {"python": ".py", "cuda": ".cu"}
SPEED = ".speed"        # ends the name of the row for an exercise's speed


class CourseError(Exception):
    """A mistake of the caller, told in one line.
    The terminal prints it and exits with code 2."""


@dataclass(frozen=True)
class Exercise:
    """One name to write, and where it stands."""

    lesson: "Lesson"
    name: str                   # a function, a kernel, or Class.method
    language: str               # python | cuda
    points: int
    hints: tuple[str, ...]      # nudge, idea, nearly the line
    speed_points: int = 0       # for its speed on a GPU, in a row of its own

    @property
    def speed(self):
        """The name of the row for its speed."""
        return self.name + SPEED

    @property
    def id(self):
        return f"{self.lesson.id}/{self.name}"

    @property
    def test(self):
        """The prefix of its test functions: test_<exercise>, test_<exercise>__<aspect>."""
        return "test_" + self.name.replace(".", "_")


@dataclass(frozen=True)
class Lesson:
    id: str
    floor: str
    answered: bool = True       # False in a student edition that has only its stubs

    def path(self, suffix):
        return ROOT / self.floor / f"{self.id}{suffix}"

    @property
    def markdown(self):
        return self.path(".md")

    @property
    def notebook(self):
        return ROOT / "notebooks" / self.floor / f"{self.id}.ipynb"

    @property
    def solution(self):
        return ROOT / "solutions" / self.floor / f"{self.id}.ipynb"

    @property
    def test(self):
        return ROOT / "tests" / self.floor / f"test_{self.id}.py"

    @cached_property
    def graders(self):
        """Its tests, and the files beside them that these import: what they compare with, where no
        answer can import it, and what tests of several lessons share."""
        beside = re.compile(rf"^from tests\.{self.floor}\.(\w+) import ", re.M)
        paths = [self.test]
        for path in paths:
            for name in beside.findall(path.read_text("utf-8")) if path.exists() else ():
                other = path.with_name(f"{name}.py")
                if other not in paths:
                    paths.append(other)
        return paths

    @property
    def bench(self):
        """The file of its measurements: ladder and targets.
        Most floors have none."""
        return ROOT / self.floor / "bench" / f"{self.id}.py"

    @property
    def mutants(self):
        return ROOT / "tests" / self.floor / f"{self.id}.mutants.toml"

    @property
    def twins(self):
        return self.mutants.with_name(f"{self.id}.twins.toml")

    @cached_property
    def sources(self):
        """The reference, or what a student edition has instead: language -> text."""
        return {language: self.path(suffix).read_text("utf-8")
                for language, suffix in SUFFIX.items() if self.path(suffix).exists()}

    @cached_property
    def stubs(self):
        """What a learner starts from: language -> text."""
        if not self.answered:
            return self.sources
        return {language: stub.cut(text, [e.name for e in self.exercises if e.language == language],
                                   language)
                for language, text in self.sources.items()}

    @cached_property
    def front(self):
        """The front matter of the lesson's Markdown: title, path, needs, points, hints."""
        import yaml  # here: a machine that only runs kernels may not have it

        if not self.markdown.exists():
            raise CourseError(f"{self.id}: {self.markdown.relative_to(ROOT)} is missing")
        text = self.markdown.read_text("utf-8")
        parts = text.split("---\n", 2)
        if len(parts) != 3 or parts[0]:
            raise CourseError(f"{self.markdown.relative_to(ROOT)}: no front matter between "
                              f"--- lines")
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)      # libyaml's, where it was built
        try:
            front = (yaml.load(parts[1], loader) or {}).get("lesson")
        except yaml.YAMLError as error:
            raise CourseError(f"{self.markdown.relative_to(ROOT)}: its front matter is no YAML: "
                              f"{' '.join(str(error).split())}") from None
        missing = {"title", "path", "needs", "points", "hints"} - set(front or {})
        if missing:
            raise CourseError(f"{self.markdown.relative_to(ROOT)}: the front matter lacks "
                              f"lesson: {', '.join(sorted(missing))}")
        return front

    @property
    def title(self):
        return self.front["title"]

    @property
    def core(self):
        return self.front["path"] == "core"

    @property
    def needs(self):
        return self.front["needs"]

    @property
    def ranks(self):
        """Whether its exercises run on several ranks, which exchange data over loopback."""
        return self.front.get("ranks", False)

    @cached_property
    def exercises(self):
        where = {name: language for language, text in self.sources.items()
                 for name in stub.definitions(text, language)}
        unknown = [name for name in self.front["points"] if name not in where]
        if unknown:
            raise CourseError(f"{self.id}: the front matter gives points for {', '.join(unknown)}, "
                              f"which the reference does not define")
        worthless = [name for language, text in self.sources.items()
                     for name in stub.marked(text, language)
                     if not {name, name.rpartition(".")[0]} & set(self.front["points"])]
        if worthless:
            raise CourseError(f"{self.id}: {', '.join(worthless)} has a comment `exercise:`, and "
                              f"the front matter gives no points for it: its stub would be the "
                              f"answer")
        speed = self.front.get("speed", {})
        if unknown := set(speed) - set(self.front["points"]):
            raise CourseError(f"{self.id}: the front matter gives points for the speed of "
                              f"{', '.join(sorted(unknown))}, which is not an exercise")
        return [Exercise(self, name, where[name], points, tuple(self.front["hints"].get(name, ())),
                         speed.get(name, 0))
                for name, points in self.front["points"].items()]

    def exercise(self, name):
        for exercise in self.exercises:
            if exercise.name == name:
                return exercise
        raise CourseError(f"{self.id} has no exercise {name!r}; it has "
                          f"{', '.join(e.name for e in self.exercises)}")

    def reached(self, name):
        """The exercises that a name of the reference needs, directly or through what it uses.
        A user of a class uses its methods; a CUDA kernel is used where its name is a string.
        """
        used = set()
        more = [name]
        while more:
            new = self.mentions.get(more.pop(), set()) - used
            used |= new
            more += new
        return [e for e in self.exercises if e.name.partition(".")[0] in used]

    @cached_property
    def mentions(self):
        """{name: the words in its definition} of each name at the top of the reference."""
        names_of = {}
        for node in ast.parse(self.sources["python"]).body:
            names = [node.name] if hasattr(node, "name") else [
                getattr(target, "id", None) for target in getattr(node, "targets", ())]
            words = {getattr(part, "id", getattr(part, "value", None))      # Name, Constant
                     for part in ast.walk(node)}
            names_of |= dict.fromkeys(names, {word for word in words if isinstance(word, str)})
        for name in stub.definitions(self.sources.get("cuda", ""), "cuda"):
            text = stub.normalised(self.sources["cuda"], name, "cuda")
            names_of[name] = set(re.findall(r"\w+", text)) - {name}
        return names_of

    def language(self, text_path):
        return "cuda" if Path(text_path).suffix == ".cu" else "python"

    @cached_property
    def fingerprint(self):
        """A digest of stubs and tests, not of the prose: it changes when task or grading does."""
        digest = hashlib.sha256(VERSION.encode())
        for text in (*self.stubs.values(), *(path.read_text("utf-8") for path in self.graders)):
            digest.update(text.encode())
        return digest.hexdigest()[:12]


@dataclass(frozen=True)
class Floor:
    name: str
    title: str
    lessons: tuple[Lesson, ...]
    planned: tuple[tuple[str, str, str], ...]       # (id, core | deep, title)
    edition: bool = False       # in a student edition


@cache
def floors():
    with open(ROOT / "lab" / "course.toml", "rb") as file:
        manifest = tomllib.load(file)
    ids = [i for entry in manifest.values()
           for i in (*entry["lessons"], *(row[0] for row in entry.get("planned", ())))]
    twice = sorted({i for i in ids if ids.count(i) > 1})
    if twice:
        raise CourseError(f"lab/course.toml lists {', '.join(twice)} twice: a lesson that is there "
                          f"is no longer `planned`")
    return tuple(Floor(name, entry["title"],
                       tuple(Lesson(i, name, i not in entry.get("stubs", ()))
                             for i in entry["lessons"]),
                       tuple(tuple(row) for row in entry.get("planned", ())),
                       "stubs" in entry)
                 for name, entry in manifest.items())


def lessons():
    return [lesson for floor in floors() for lesson in floor.lessons]


def edition():
    """True in a student edition, as `lab release` makes it: without some answers."""
    return any(floor.edition for floor in floors())


def answered(lesson_id):
    """True where the reference of this lesson is here."""
    return any(lesson.id == lesson_id and lesson.answered for lesson in lessons())


def choose(words):
    """The lessons that words name, in the course's order: an id, its start, a floor, k01..k08."""
    known = lessons()
    chosen = set()
    for word in words:
        first, dots, last = word.partition("..")
        if dots:
            start = known.index(find(first))
            end = known.index(find(last))
            if start > end:
                raise CourseError(f"{word}: {known[start].id} comes after {known[end].id}")
            chosen |= set(known[start:end + 1])
        else:
            named = {lesson for lesson in known if word and (
                lesson.id.startswith(word) or lesson.floor.startswith(word))}
            chosen |= named or {find(word)}
    return [lesson for lesson in known if lesson in chosen]


def find(lesson_id):
    """The lesson with this id, or with the only id that starts with it: `k07` finds k07_softmax."""
    known = lessons()
    exact = [lesson for lesson in known if lesson.id == lesson_id]
    near = exact or [lesson for lesson in known if lesson_id and lesson.id.startswith(lesson_id)]
    if len(near) == 1:
        return near[0]
    planned = [floor for floor in floors() for row in floor.planned if row[0] == lesson_id]
    files = planned and Lesson(lesson_id, planned[0].name).path(".py").exists()
    if files and not edition():
        raise CourseError(f"{lesson_id} has files, and is `planned` in lab/course.toml: move its "
                          f"id to `lessons` there")
    if planned:
        raise CourseError(f"{lesson_id} is planned, not there yet; `lab list` shows the map")
    raise CourseError(f"no lesson {lesson_id!r}; there are {', '.join(i.id for i in known)}")


def find_exercise(word):
    """(lesson, exercise or None) for `k07_softmax`, `k07_softmax/softmax_cuda`, `softmax_cuda`;
    for a method, its own name will do."""
    head, slash, name = word.partition("/")
    if slash:
        lesson = find(head)
        return lesson, lesson.exercise(name)
    if any(i.id.startswith(word) for i in lessons()) or not word:
        return find(word), None
    known = [(lesson, e) for lesson in lessons() for e in lesson.exercises]
    owners = [pair for pair in known if word in (pair[1].name, pair[1].name.split(".")[-1])]
    if len(owners) == 1:
        return owners[0]
    if owners:
        choice = ", ".join(f"{lesson.id}/{e.name}" for lesson, e in owners)
        raise CourseError(f"{word} is the name of several exercises: write one of {choice}")
    names = {name: f"{lesson.id}/{e.name}" for lesson, e in known
             for name in (e.name, e.name.split(".")[-1])}
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.7)
    if near:
        raise CourseError(f"no lesson or exercise {word!r}; did you mean "
                          f"{' or '.join(dict.fromkeys(names[name] for name in near))}?")
    return find(word), None
