"""What a failed test says to the author of a text: in the text's own files and lines."""

import re
from pathlib import Path

from lab import course, stub
from lab.course import SUFFIX
from lab.judge.candidate import place, told

# A call that ends the process, and no method of that name.
ENDS = re.compile(r"(?:\bos\.|(?<![\w.])(?<!def ))(_exit|abort|kill|killpg)\s*\(")
MAX_REPR_CHARS = 300    # of an exception's text, up to which an object in it shows its fields


def call_of(error):
    """The call that raised or was stopped, on a line of its own; "" where it had no arguments."""
    return f"\n  in {error.call}" if error.call and error.call.arguments else ""


class Messages:
    """The words about one candidate. exercises: {name: Exercise}"""

    def __init__(self, lesson, candidate, exercises):
        self.lesson = lesson
        self.candidate = candidate
        self.exercises = exercises

    def refused(self, error, name):
        """Of an assertion about exercise `name`."""
        message = str(error) or "a test without a message failed: please report it"
        if re.search(r"\bgot (nothing \()?None\b", message) and not self.returns(name):
            message += "\nIs a `return` missing?"
        message = re.sub(r"\b(a )?Remote( object)?\b", "an object", message)
        unprintable = r"\nassert .*raised in repr\(\).*"
        message = re.sub(unprintable, "", message, flags=re.S)
        return self.in_own_lines(message) + self.definition(name)

    def raised(self, error, name):
        """Of what the learner's code raised, with the learner's own line, while exercise `name` was
        judged."""
        language = "cuda" if str(error.path).endswith(".cu") else "python"
        in_lesson = error.path == self.lesson.id + SUFFIX[language]
        if error.type == "NotImplementedError" and ": about " in error.text:
            missing = error.text.split(":")[0]
            return (f"it needs {missing}, which is still a stub" if missing != name else
                    "its line `raise NotImplementedError` still stands")
        if error.kind == "compile":
            return self.compiler_says(error.text)
        if error.kind is not None:
            return self.in_own_lines(error.text, language) if in_lesson else error.text
        text = without_fields(error.text)
        if in_lesson and error.line:
            return f"{error.type}: {text}{call_of(error)}{self.lines_of(language, error)}"
        # another file, without the line's text: an edition may hold that back
        place = f"\n    {error.path}, line {error.line}" if error.line else ""
        return f"{error.type}: {text}{place}"

    def lines_of(self, language, error):
        """The line that raised.
        Where it is not in an exercise, the line of one that led to it comes first."""
        source = self.candidate.sources[language]
        there = stub.definitions(source, language)
        own = [one.name for one in self.lesson.exercises if one.name in there]

        def in_exercise(line):
            return type(line) is int and any(stub.holds(source, name, language, line)
                                             for name in own)

        led = [line for line in error.callers if in_exercise(line) and self.line_of(language, line)]
        if in_exercise(error.line) and self.line_of(language, error.line):
            led = []
        places = [place for line in [*led[-1:], error.line]
                  if (place := self.line_of(language, line))]
        return "\n    which calls ".join([*places[:1], *(place.strip() for place in places[1:])])

    def line_of(self, language, line):
        """A line of the candidate as its author knows it, with its text; "" for one that the course
        put there."""
        lines = stub.one_newline(self.candidate.sources[language]).split("\n")
        if type(line) is not int or not 0 < line <= len(lines):
            return ""                   # the child's own word: it may be wrong
        if place(self.candidate, language, line) is None:
            return ""
        text = lines[line - 1].strip()
        return (f"\n    {self.candidate.labels[language]}, "
                f"{told(self.candidate, language, line)}: {text}")

    def returns(self, name):
        one = self.exercises[name.removesuffix(course.SPEED)]
        text = stub.extract(self.candidate.sources[one.language], one.name, one.language)
        return re.search(r"^\s*(return|yield) *[^\s#]", text, re.M)

    def definition(self, name):
        """Where the candidate defines an exercise."""
        one = self.exercises[name.removesuffix(course.SPEED)]
        line = stub.find_line(self.candidate.sources[one.language], one.name, one.language)
        return self.line_of(one.language, line)

    def in_own_lines(self, text, language=None):
        """A message with files and lines as the candidate's author knows them.

        `FILE, line N` is a place in any text; `line N` alone is one in a text about one language.
        """
        for each, label in self.candidate.labels.items():
            def own(match, each=each, label=label):
                line = int(match[1])
                known = place(self.candidate, each, line) is not None
                return f"{label}, {told(self.candidate, each, line)}" if known else match[0]

            file = re.escape(self.lesson.id + SUFFIX[each])
            if language == each:
                text = re.sub(rf"(?<!{file}, )\bline (\d+)\b",
                              lambda match: told(self.candidate, language, int(match[1])), text)
            text = re.sub(rf"\b{file}, line (\d+)\b", own, text)
        return text

    def compiler_says(self, text):
        """NVRTC's log from its first error on, in the learner's file and lines."""
        file = rf"\S*{self.lesson.id}\.cu\((\d+)\)"
        text = text[first.start():] if (first := re.search(rf"{file}: error", text)) else text

        def own(match):
            return (f"{self.candidate.labels['cuda']}, "
                    f"{told(self.candidate, 'cuda', int(match[1]))}")

        return re.sub(file, own, text)

    def last_place(self, stopped):
        """Where a child was when it was stopped, or the line that may have ended its process."""
        for file, line in stopped.stack:
            if Path(file).name == f"{self.lesson.id}.py":
                return self.line_of("python", line)
        lines = stub.one_newline(self.candidate.sources["python"]).split("\n")
        for number, text in enumerate(lines, 1):
            if stopped.why == "died" and ENDS.search(text):
                return self.line_of("python", number)
        return ""


def without_fields(text):
    """An exception's text; in a long one a dataclass is named, without the values of its fields."""
    if len(text) <= MAX_REPR_CHARS:
        return text
    return re.sub(r"\b([A-Z]\w*)\(\w+=.*\)", r"an object of type \1", text, flags=re.S)
