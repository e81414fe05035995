"""What is graded: the text of a lesson's modules, and how its author knows them."""

from dataclasses import dataclass, field

from lab.course import SUFFIX


@dataclass(frozen=True)
class Candidate:
    """What is graded: one text a language, what to call it, and where its lines came from."""

    # by language: the whole module's text, the learner's name for it, each line's number in that,
    # in a notebook "code cell 3, line 2"
    sources: dict
    labels: dict
    origins: dict = field(default_factory=dict)     # None for a line that the learner does not have
    shapes: bool = False                            # hold the module to its shape comments
    broken: dict = field(default_factory=dict)      # by exercise: where and why it cannot be read
    # by "floor/name" of a file: the author's texts of earlier lessons whose answers are not here
    earlier: dict = field(default_factory=dict)

    def source(self):
        return ", ".join(dict.fromkeys(self.labels[language] for language in self.sources))


def reference(lesson):
    labels = {k: f"{lesson.floor}/{lesson.id}{SUFFIX[k]}" for k in lesson.sources}
    return Candidate(lesson.sources, labels, shapes=True)


def told(candidate, language, line):
    """A line in words, "line 2", as the learner knows it."""
    where = place(candidate, language, line) or line
    return where if isinstance(where, str) else f"line {where}"


def place(candidate, language, line):
    """Where the learner has a line, as in `origins`; None where the course put it there."""
    origin = candidate.origins.get(language)
    if not origin or line is None or not 0 < line <= len(origin):
        return line
    return origin[line - 1]
