"""Objects that a test builds and hands to the code under test, named as that code knows them: by a
parameter, a field or a key.
A learner has never heard of the class of a mock."""

import inspect

CLASSES = ("lab.judge.mocks:", "types:SimpleNamespace")
UNNAMED = "what the test hands over"


def is_one(path):
    """Is an object of this class, `module:Class`, such a stand-in?"""
    return path.startswith(CLASSES)


def name(things):
    """Name those among {name: thing} that have no name yet, and those in dicts by their keys."""
    for own, thing in things.items():
        name_fields([thing])
        if nameless(thing):
            thing._given = thing._label = own


def name_fields(things):
    """Name what stands in dicts, by its key."""
    for thing in things:
        if type(thing) is dict:
            name({key: value for key, value in thing.items() if type(key) is str})


def nameless(thing):
    return getattr(thing, "_given", None) == UNNAMED


def attribute(owner, own):
    """An attribute of a returned object or of a stand-in, in the words of a message."""
    if nameless(owner):
        return f"{own} of {UNNAMED}"
    return f"{owner._given or owner._type}.{own}"


def parameters(function):
    """Names of a function's parameters in order; [] where Python does not know them.
    It runs beside the code under test."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []
