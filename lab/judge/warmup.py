"""Imported by a warm process that grades many texts: pays once what every grading would pay again.

The floors and what graders compare with are forgotten again: the code under test, too, runs in a
fork of this process, and sees only what lab.judge.isolate gives it of the course.
"""

import ast
import contextlib
import importlib
import sys

from lab import course

FORGOTTEN = {"tests", *(floor.name for floor in course.floors())}


def imported(text):
    """The modules that a file imports at its top."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def warm_up(lesson):
    """Read a lesson's stubs, which it keeps, and import what its tests do."""
    stubs = lesson.stubs, lesson.exercises
    for name in imported(lesson.test.read_text("utf-8")):
        importlib.import_module(name)
    return stubs


READ = []
for lesson in course.lessons():
    # One that is being written may be broken. Its own grading says so; the others' go on.
    with contextlib.suppress(Exception):
        READ.append(warm_up(lesson))
for name in [name for name in sys.modules if name.partition(".")[0] in FORGOTTEN]:
    del sys.modules[name]
importlib.import_module("lab.judge.warm_pytest")
