"""Mistakes by id: what a grader knows to be wrong travels with the failure, whatever its form.

    agree(got, want, mistakes={"no_rescale": ("the sums are added as they are", array)})
    assert got == want, mistake("keeps_pages", f"{held} pages are still held")
    with same_report("one_barrier", kind="race", array="tile"):
        subject.launch(…)
    with raises("empty_row", ZeroDivisionError):
        subject.mean([])

A report or an exception that no grader names has its own kind or class as its id.
"""

import contextlib


class Message(str):
    """The text of a failure. mistake: its id; sentence: the part of the text that explains it"""

    mistake = sentence = ""


def mistake(name, text, sentence=None):
    """The message of an `assert`, with the id of the mistake that it tells.

    sentence: the part that is the mistake's own, where the rest says which numbers are wrong
    """
    message = Message(text)
    message.mistake = name
    message.sentence = text if sentence is None else sentence
    return message


def same_report(name, sentence="", *, kind, array=None, words=""):
    """Within this context, the simulator's reports of one kind are the mistake `name`.

    kind: of lab/simulator/errors.py;  array: a report must name it, if it is not None
    words: that a report must contain;  sentence: added to the report, for the learner
    """
    return named(name, sentence, lambda error: getattr(error, "kind", None) == kind and (
        array is None or f"`{array}`" in error.text) and words in error.text)


def raises(name, exception, sentence=""):
    """Within this context, an exception of this class in the code under test is the mistake `name`.

    sentence: added to the exception's text, for the learner
    """
    return named(name, sentence, lambda error: getattr(error, "type", None) == exception.__name__)


@contextlib.contextmanager
def named(name, sentence, applies):
    """What is raised within, where it applies, is the mistake `name`; the innermost name counts."""
    try:
        yield
    except Exception as error:
        if applies(error) and not hasattr(error, "mistake"):
            error.mistake = name
            error.sentence = sentence
        raise


def of(error):
    """(id, sentence) of the mistake in what a test raised, each "" where there is none.

    An exception may bring both itself, as `.mistake` and `.sentence`, or in its message.
    Else its id is the kind of a report, the class of the learner's exception or why a process was
    stopped.
    """
    messages = (part for part in error.args[:1] if isinstance(part, Message))
    for owner in (error, *messages):
        if name := getattr(owner, "mistake", ""):
            return name, getattr(owner, "sentence", "")
    own = (getattr(error, part, "") for part in ("kind", "type", "why"))
    return next(filter(None, own), ""), ""
