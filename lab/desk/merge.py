"""A learner's text and the course's in one file: who wrote what, and how both go on."""

import ast

from lab import stub
from lab.course import CourseError
from lab.desk import ipynb


def own_text(exercise, text):
    """The module's text with its other exercises as stubs: what a pass of this one rests on."""
    language = exercise.language
    stubs = exercise.lesson.stubs[exercise.language]
    for other in exercise.lesson.exercises:
        if other.language == language and other.name != exercise.name:
            text = stub.splice(text, stub.extract(stubs, other.name, language), language).text
    return text.strip()


def exercises_in(cell, lesson, language):
    """The lesson's exercises that a cell defines, one or several."""
    names = stub.definitions(cell, language)
    return [one for one in lesson.exercises if one.language == language and one.name in names]


def alike(text, base, suffix):
    """True where nothing of the learner's is in `text`; a notebook's outputs do not count."""
    return ipynb.same_cells(text, base) if suffix == ".ipynb" else text == base


def rebuilt(text, base, fresh, lesson, suffix, label):
    """`fresh` with everything of the learner's from `text`, where `text` was made from `base`."""
    if suffix == ".ipynb":
        return ipynb.carry_over(text, base, fresh, label)
    language = "cuda" if suffix == ".cu" else "python"
    try:
        return stub.splice(fresh, stub.changed(text, base, language), language).text
    except (SyntaxError, ValueError) as error:
        raise CourseError(
            f"{label} cannot be brought up to date, it does not parse ({error}): mend it, or "
            f"`lab reset {lesson.id}` (the old text is kept)"
        ) from None


def without(text, stub_text, exercise, suffix):
    """`text` with one exercise put back to what `stub_text` has."""
    if suffix == ".ipynb":
        return ipynb.put_back(text, stub_text, exercise)
    language = "cuda" if suffix == ".cu" else "python"
    if language != exercise.language:
        return text
    fresh = stub.extract(stub_text, exercise.name, language)
    return stub.splice(text, fresh, language).text


def forget(text, cell, keep, language):
    """`text` without what only `cell` brought: everything in it that no text in `keep` has.

    A cell is written to the file whole: the exercise, its helpers and imports, stray statements.
    What the learner then deletes from the cell must not stay behind in what is graded.
    A part of `text` goes only if it still is what the cell had: edited since, it is the learner's.
    """
    return (_forget_python if language == "python" else _forget_cuda)(text, cell, keep)


def edited_helper(text, last, cell, others, exercise):
    """The name of a helper in `cell` that the learner wrote or edited in the file: it differs from
    that in the cell of its exercise, in the cell that was written last, in the stub and in the
    cells of other exercises, `others`.
    None if there is none."""
    language = exercise.language
    known = [cell, last, exercise.lesson.stubs[language], *others]
    for name in stub.definitions(cell, language):
        if f"{exercise.name}.".startswith(f"{name}."):
            continue                        # the exercise itself, or its class
        there = stub.normalised(text, name, language)
        if there not in (None, *(stub.normalised(each, name, language) for each in known)):
            return name
    return None


def handed_back(text, last, others, exercise):
    """`text` with the course's own again where only the cell `last` had something else, and the
    text still has that.
    Exercises stay: they are the learner's. others: cells that count"""
    language = exercise.language
    lesson = exercise.lesson
    handed_out = lesson.stubs[language]
    exercises = {one.name.split(".")[0] for one in lesson.exercises}

    def only_there(name):
        form, *elsewhere = (stub.normalised(each, name, language) for each in (last, *others))
        return form and form == stub.normalised(text, name, language) and not any(elsewhere)

    back = [unit.text for unit in stub.read(handed_out, language)
            if unit.names and not exercises & set(unit.names) and all(map(only_there, unit.names))]
    for own in back:
        text = stub.splice(text, own, language).text
    return text


def _forget_python(text, cell, keep):
    nodes = {name for other in keep for name in stub.definitions(other, "python")}
    nodes |= {ast.dump(node) for other in keep for node in ast.parse(other).body}
    gone = {ast.dump(node) for node in ast.parse(cell).body
            if getattr(node, "name", None) not in nodes} - nodes
    text = stub.one_newline(text)
    lines = text.split("\n")            # as the parser counts: other characters end no line
    for node in reversed(ast.parse(text).body):
        if ast.dump(node) in gone:
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
            del lines[first - 1:node.end_lineno]
    return "\n".join(lines)


def _forget_cuda(text, cell, keep):
    names = {name for other in keep for name in stub.definitions(other, "cuda")}
    for name in stub.definitions(cell, "cuda"):
        if name not in names and stub.normalised(text, name, "cuda") == stub.normalised(
                cell, name, "cuda"):
            text = text.replace(stub.extract(text, name, "cuda"), "")
    return text
