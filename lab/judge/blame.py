"""Whose fault an exception is that no test expected.

The course's own answer is put to the same test with the same inputs.
Where it passes, the submission alone made the difference: that is a fail, explained by what it
returned and what the course's own returned from the same call.
"""

import re
from collections import Counter
from dataclasses import dataclass

from lab.judge.subject import NotStarted, Raised, Stopped

BLAMED = "Blamed"               # Verdict.cause of such a fail
UNCOMPILED = "Uncompiled"       # of a kernel whose whole file NVRTC refused
UNLOADED = "Unloaded"           # of a function whose whole file raised when it was imported


@dataclass(frozen=True)
class Doubt:
    """A test that may have ended by what was submitted, or by a mistake of the course."""

    name: str           # of the exercise, or of its speed
    test: str           # with its parameters
    place: int          # of its outcome among those of `name`
    error: Exception
    calls: tuple        # of conversation: what the code under test returned to this test


def cause(error):
    """Verdict.cause of what a test raised: its class, UNCOMPILED or UNLOADED."""
    if isinstance(error, Raised) and error.kind == "compile":
        return UNCOMPILED
    return UNLOADED if isinstance(error, Raised) and error.loading else type(error).__name__


def doubtful(verdict, error, subject):
    """Whether the course's own answer must be asked whose fault `error` is."""
    if isinstance(error, NotStarted):
        return False
    return verdict in ("error", "not_proven_here") or misused(error, subject)


def misused(error, subject):
    """Whether a test used a returned object in a way that the object does not allow: no line of the
    learner's raised it."""
    return (isinstance(error, Raised) and error.subject is subject and error.line is None
            and error.type in ("AttributeError", "TypeError") and "argument" not in error.text
            and not error.text.startswith("module "))


def told(doubt, message, reference):
    """The message of a fail. message: what it was before; reference: the calls of the course's
    own answer in the same test, None where its answers are not given."""
    error = doubt.error
    if isinstance(error, Raised) and error.kind == "unsupported":
        used = re.search("`([^`]+)`", error.text)
        what = f"`{used[1]}`" if used else "something"
        return (f"it uses {what}, which the simulator does not have; the course's own answer needs "
                f"no such instruction: write it without\n  {message}")
    if isinstance(error, Raised) and error.inside:
        return (f"the simulator cannot run it, though it runs the course's own answer in the same "
                f"test\n  {error}")
    call, other = difference(doubt.calls, reference or ())
    if call is not None:
        return f"{call} returned {call.result}{wanted(call, other)}"
    if isinstance(error, Stopped):
        return message
    reason = str(error) if isinstance(error, Raised) else f"{type(error).__name__}: {error}"
    return (f"the course's code cannot use what it was given ({reason[:200]}); with the course's "
            f"own answer this test passes")


def wanted(call, other):
    """What the course's own returned instead; for a prediction only the kind of answer."""
    if other is None:
        return ""
    if call.name.startswith(("predict_", "choose_")):
        return f", expected {other.kind}"
    same = call.arguments == other.arguments
    return f", expected {'' if same else 'something like '}{other.result}"


def difference(mine, reference):
    """(the last Call whose result differs from that of the same call of the course's own, the
    course's Call). (None, None) if there is none."""
    theirs = dict(numbered(reference))
    for key, call in reversed(numbered(mine)):
        if key in theirs and theirs[key].result != call.result:
            return call, theirs[key]
    for call in reversed(mine):                 # its arguments came from an answer before it
        others = [other for other in reference if other.name == call.name]
        if others and call.result not in [other.result for other in others]:
            return call, others[-1]
    return (mine[-1], None) if mine and not reference else (None, None)


def numbered(calls):
    """[((name, arguments, how many such calls came before), call)]."""
    count = Counter()
    pairs = []
    for call in calls:
        key = call.name, call.arguments
        pairs.append(((*key, count[key]), call))
        count[key] += 1
    return pairs
