"""The course in a notebook: `lesson = open_lesson("k07_softmax")`, then `lesson.check(name)`."""

import ast
import contextlib
import html
import importlib
import re
import sys
import threading
from pathlib import Path

from lab import course, stub
from lab.course import ROOT, CourseError
from lab.desk import ipynb

COLOURS = {"pass": "#1a7f37", "fail": "#cf222e", "not_attempted": "#6e7781",
           "not_proven_here": "#9a6700", "error": "#8250df"}
WORDS = {"pass": "pass", "fail": "not yet", "not_attempted": "not attempted",
         "not_proven_here": "not proven here", "error": "error of the course"}


def open_lesson(name):
    """The lesson as a notebook's handle: checks, hints, and the notebook's own answers in place.

    Starts the warm process in the background, so that the first check finds its imports done.
    """
    from lab import device

    lesson = course.find(name)
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    if device.in_notebook():
        shell = sys.modules["IPython"].get_ipython()
        shell.register_magic_function(cuda_magic(lesson), "cell", "cuda")
        if remember not in shell.events.callbacks["pre_run_cell"]:
            shell.events.register("pre_run_cell", remember)
    if set(lesson.sources) & {"cuda"} or "triton" in lesson.sources["python"]:
        device.use_best()
    handle = NotebookLesson(lesson)
    threading.Thread(target=handle.warm, daemon=True).start()
    return handle


def mine(name):
    """The learner's implementation of an exercise where it passed on this version, else None."""
    from lab.desk.desk import Desk

    lesson, exercise = course.find_exercise(name)
    if exercise is None:
        raise CourseError(
            f"{name} is a lesson; mine() takes an exercise, such as {lesson.exercises[0].name}"
        )
    return Desk.find().mine(exercise)


def candidate_function(lesson, name, desk=None):
    """A lesson's public function with the learner's kernels in it, such as softmax of k07_softmax.

    None where an exercise that it needs has not passed on this version of the course. desk: its
    folder; None finds it.
    """
    from lab.desk.desk import Desk

    there = {each.id: each for each in course.lessons()}    # an edition may have fewer
    return Desk.find(desk).candidate_function(there[lesson], name) if lesson in there else None


def is_kernel(exercise):
    """True for what runs in the engine later: kernels, and the parts of floors 1 to 3."""
    question = exercise.name.startswith(("predict_", "choose_"))
    return exercise.lesson.floor.startswith("layer") and not question


class NotebookLesson:
    """What `open_lesson` gives: check(name), hint(name), show(name)."""

    def __init__(self, lesson):
        from lab.desk.desk import Desk

        self.lesson = lesson
        desk = Desk.find()
        here = Path.cwd().resolve()
        self.desk = desk if desk.exists() and desk.folder in (here, *here.parents) else None

    def __repr__(self):
        where = (f"on the desk {self.desk.folder}" if self.desk else
                 "not on a desk: checks save nothing")
        return f"{self.lesson.id} · {self.lesson.title} ({where})"

    def warm(self):
        from lab.judge import forked

        with contextlib.suppress(CourseError):      # the first check meets it, and says so
            forked.warm(self.lesson)

    def check(self, name, take=None):
        """Grade the cell that defines `name`, after writing it to the desk's file."""
        from lab.judge import forked

        try:
            exercise = self.lesson.exercise(name)
            if take not in (None, "cell", "file"):
                raise CourseError(f'take: expected "cell" or "file", found {take!r}')
            candidate, note = self.candidate(exercise, take)
            verdicts = forked.grade(self.lesson, candidate, [name])
        except CourseError as error:
            return Note("refused", str(error))
        notes = filter(None, (note, self.unrecorded(candidate, verdicts)))
        source = candidate.labels[exercise.language]
        return Result(verdicts, source, "; ".join(notes), self.first_guess(exercise))

    def unrecorded(self, candidate, verdicts):
        """Record verdicts on the desk: why that failed, else "".
        The learner sees them anyhow."""
        try:
            if self.desk:
                self.desk.record(self.lesson, candidate, verdicts)
        except CourseError as error:
            return f"the verdict was not recorded: {error}"
        return ""

    def candidate(self, exercise, take):
        """(what to grade, a remark): the desk's file with the cell in it, or the cell alone."""
        cell, others = executed(exercise)
        if cell is None:
            if self.desk is None:
                raise CourseError(f"no cell that was run defines {exercise.name}: run yours first")
            note = "no cell that was run defines it: graded the file"
            return self.desk.candidate(self.lesson), note
        language = exercise.language
        try:
            note = borrowed(cell, language, self.lesson, others)
            if self.desk is None:
                return self.from_cells(exercise.name), note
            if self.desk.write_cell(self.lesson, exercise, cell, take) == "file":
                note = "graded the text in the file, which differs from the cell"
        except SyntaxError as error:
            raise CourseError(f"line {error.lineno} of the cell: {error.msg}: "
                              f"{error.text or ''}") from None
        except ValueError as error:
            raise CourseError(of_the_cell(error)) from None
        return self.desk.candidate(self.lesson), note

    def from_cells(self, name):
        """The stubs, with every exercise that a cell run so far in this notebook defines.
        SyntaxError, or ValueError in CUDA: the cell of exercise `name` cannot be read.
        Any other exercise then stays the stub."""
        from lab.judge.candidate import Candidate

        sources = dict(self.lesson.stubs)
        for exercise in self.lesson.exercises:
            cell, _ = executed(exercise)
            if cell is None:
                continue
            language = exercise.language
            try:
                sources[language] = stub.splice(sources[language], cell, language).text
            except (SyntaxError, ValueError):
                if exercise.name == name:
                    raise
        return Candidate(sources, dict.fromkeys(sources, "this notebook"))

    def first_guess(self, exercise):
        if self.desk is None:
            return None
        return self.desk.state()["predictions"].get(exercise.id)

    def kernel(self, name):
        """A CUDA kernel of this lesson as it stands: the desk's file, or the cells run so far."""
        from lab import simulator

        candidate = self.desk.candidate(self.lesson) if self.desk else self.from_cells(name)
        module = simulator.RawModule(candidate.sources["cuda"], path=f"{self.lesson.id}.cu",
                                     is_text=True)
        return module.get(name)

    def ranks(self, name, arguments, **settings):
        """A function of this lesson as it stands, or `module:function` of the course, on a rank for
        each tuple of `arguments`: a RankRun. settings: of `ranks` in lab/judge/subject.py"""
        from lab.judge.isolate import running

        candidate = self.desk.candidate(self.lesson) if self.desk else self.from_cells(name)
        with running(self.lesson, candidate.sources, earlier=candidate.earlier) as subject:
            return subject.ranks(name, arguments, **settings)

    def hint(self, name):
        """The next of three hints."""
        from lab.desk import hints

        try:
            return Note("hint", hints.next_hint(self.lesson.exercise(name), self.desk))
        except CourseError as error:
            return Note("refused", str(error))

    def show(self, name):
        """The reference, after a pass or the third hint."""
        from lab.desk import hints

        try:
            return Note("reference", hints.show(self.lesson.exercise(name), self.desk), code=True)
        except CourseError as error:
            return Note("refused", str(error))


class Result:
    """A verdict as rich HTML, and as plain text where there is no browser.
    The verdict on the speed, where there is one, is a line of it."""

    def __init__(self, verdicts, source, note, first_guess):
        (self.verdict, *self.speed), self.source, self.note = verdicts, source, note
        now = self.verdict.value
        self.first_guess = first_guess if now is not None and first_guess != now else None

    @property
    def passed(self):
        return self.verdict.verdict == "pass"

    def lines(self):
        yield self.verdict.message
        for v in self.speed if self.verdict.verdict == "pass" else ():
            earned = "" if v.points is None else f", {v.points} of {v.max_points} points"
            yield f"{v.name}: {WORDS[v.verdict]}{earned}: {v.message}"
        if self.first_guess is not None:
            yield f"Your first guess was {self.first_guess}; this is {self.verdict.value}."
        if self.note:
            yield self.note

    def __repr__(self):
        head = f"{WORDS[self.verdict.verdict]}: {self.verdict.name}   [{self.source}]"
        return "\n".join([head, *filter(None, self.lines())])

    def _repr_html_(self):
        v = self.verdict
        body = "".join(f"<div style='white-space:pre-wrap;margin-top:4px'>{html.escape(line)}</div>"
                       for line in self.lines() if line)
        return (f"<div style='border-left:4px solid {COLOURS[v.verdict]};padding:4px 10px'>"
                f"<b style='color:{COLOURS[v.verdict]}'>{WORDS[v.verdict]}</b> "
                f"<code>{html.escape(v.name)}</code> "
                f"<span style='color:#6e7781'>{html.escape(self.source)}</span>{body}"
                f"{self.bars()}</div>")

    def bars(self):
        """The first guess drawn beside the answer, as two bars of one scale; "" without both."""
        guesses = {"first guess": self.first_guess, "now": self.verdict.value}
        if not all(type(v) in (int, float) and v >= 0 for v in guesses.values()):
            return ""
        longest = max(*guesses.values(), 1e-300)
        return "".join(f"<div style='display:flex;margin-top:2px'><span style='width:6em'>{name}"
                       f"</span><span style='width:{value / longest * 40:.1f}%;"
                       f"background:{colour}'>&nbsp;</span>&nbsp;{value:g}</div>"
                       for (name, value), colour in zip(guesses.items(), ("#8c959f", "#0969da"),
                                                        strict=True))


class Note:
    """A sentence of the course: a hint, a refusal, the reference."""

    passed = False

    def __init__(self, kind, text, code=False):
        self.kind = kind
        self.text = text
        self.code = code

    def __repr__(self):
        return f"{self.kind}: {self.text}" if not self.code else self.text

    def _repr_html_(self):
        start, end = (("<pre>", "</pre>") if self.code else
                      ("<span style='white-space:pre-wrap'>", "</span>"))
        return (f"<div style='border-left:4px solid #0969da;padding:4px 10px'><b>{self.kind}</b> "
                f"{start}{html.escape(self.text)}{end}</div>")


# ---- cells


CELLS = []              # texts of the cells run since open_lesson, in order


def remember(info):
    """IPython calls this before each cell."""
    CELLS.append(info.raw_cell)


def executed(exercise):
    """(text of the last cell run that defines the exercise or None, texts of the others)."""
    answer = None
    others = []
    for raw in reversed(CELLS):
        language, text = ipynb.language_and_text(raw) or ("", "")
        cuda = language == "cuda"
        if answer is None and cuda == (exercise.language == "cuda") and defines(text, exercise):
            answer = text
        elif language == "python":
            others.append(text)
    return answer, others


def defines(text, exercise):
    """A cell with an error in it defines what its header says."""
    try:
        names = stub.definitions(text, exercise.language)
    except (SyntaxError, ValueError):
        return stub.seems_to_define(text, exercise.name, exercise.language)
    return exercise.name in names


def borrowed(cell, language, lesson, others):
    """A remark where the cell leans on names that only other cells define."""
    if language == "cuda":
        return ""
    stub_text = lesson.stubs["python"]
    have = set(stub.definitions(stub_text, "python")) | module_names(stub_text)
    elsewhere = set()
    for text in others:
        try:
            elsewhere |= set(stub.definitions(text, "python")) | module_names(text)
        except (SyntaxError, ValueError):
            continue                        # a magic, or a cell that never ran through
    missing = sorted((stub.free_names(cell, "python") - have) & elsewhere)
    if not missing:
        return ""
    return (f"The cell uses {', '.join(missing)} from another cell. Only this cell is graded: "
            f"move {'it' if len(missing) == 1 else 'them'} in here.")


def module_names(text):
    """Names that a text binds at its top level by import or assignment."""
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(a.asname or a.name).split(".")[0] for a in node.names}
        for target in ast.walk(node) if isinstance(node, (ast.Assign, ast.AnnAssign)) else ():
            if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store):
                names.add(target.id)
    return names


def cuda_magic(lesson):
    """%%cuda: compile the cell inside the lesson's file, and point at the learner's own line."""
    def cuda(line, cell):
        simulator = importlib.import_module("lab.simulator")
        if "cuda" not in lesson.stubs:
            return Note("not compiled", f"{lesson.id} has no CUDA exercises")
        try:
            spliced = stub.splice(lesson.stubs["cuda"], cell, "cuda")
        except ValueError as error:
            return Note("does not compile", of_the_cell(error))
        try:
            module = simulator.RawModule(spliced.text, path=f"{lesson.id}.cu", is_text=True)
            compiled = module.compile()
        except simulator.CompileError as error:
            where = spliced.origin[error.line - 1] if error.line else None
            return Note("does not compile", compile_text(error, where))
        names = stub.definitions(cell, "cuda")
        kernels = ", ".join(name for name in names if name in compiled.functions)
        return Note("compiles", kernels or f"{', '.join(names) or 'nothing'}, for kernels to call")
    return cuda


def of_the_cell(error):
    """Why the CUDA C of a cell cannot be read, its line counted from the top (%%cuda is line 1)."""
    return re.sub(r"^line (\d+)", lambda line: f"line {int(line[1]) + 1} of the cell", str(error))


def compile_text(error, where):
    """The compiler's message, its line counted from the top of the cell (%%cuda is line 1)."""
    text = str(error)
    if where is None:
        return text
    return text.replace(f"({error.line})", f"(line {where + 1} of the cell)")
