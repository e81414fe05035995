"""Which kinds of hard inputs a grader hands over, for `lab verify --gaps`: they are looked at as
they cross to the code under test, so that what is listed is what ran."""

import numpy as np

from lab.judge.adversarial import INPUTS, Handed
from lab.judge.compare import numbers
from lab.remote import wire


class Observer:
    """Looks at every call of one test. uses: kinds of INPUTS that were seen; takes: what the
    exercise takes, in the words of Kind.needs."""

    def __init__(self):
        self.uses = set()
        self.takes = set()
        self.sizes = {}

    def kinds(self):
        """What `examine` needs of it, as lists."""
        return sorted(self.uses), sorted(self.takes)

    def __call__(self, name, values, launch=False):
        handed = self.handed(name, values, launch)
        self.uses |= {kind for kind, one in INPUTS.items() if one.seen(handed)}
        self.takes |= {
            word for word, applies in (
                ("floats", any(numbers(a, name).dtype.kind == "f" and numbers(a, name).size > 1
                               for a in wire.arrays(values))),
                ("sizes", any(a.ndim and a.size > 1 for a in handed.arrays)),
                ("numbers", handed.numbers), ("kernels", launch), ("handed", handed.objects),
                ("views", not launch and any(a.ndim > 1 for a in handed.arrays)),
                ("calls", not launch)) if applies}

    def handed(self, name, values, launch):
        arrays = [numbers(a, name) for a in wire.arrays(values)]
        if fractions := list(real(values)):
            arrays.append(np.array(fractions))
        sizes = [a.shape for a in arrays], lengths(values), whole(values), list(real(values))
        again = self.sizes.setdefault(name, sizes) != sizes
        return Handed(arrays, {n for a in arrays for n in a.shape} | whole(values), again, launch,
                      has_objects(values))


def lengths(values):
    return [len(v) for v in values if isinstance(v, (list, tuple, str, dict))]


def whole(value):
    """The whole numbers in a value, lengths of lists and texts included."""
    if isinstance(value, (bool, float)) or value is None:
        return set()
    if isinstance(value, (int, np.integer)):
        return {int(value)}
    if isinstance(value, (str, bytes)):
        return {len(value)}
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return {len(value)}.union(*map(whole, value))
    return set()


def real(value):
    """The floats in a value that are in no array."""
    if isinstance(value, float):
        yield value
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from real(item)


def has_objects(value):
    """Whether something other than data is handed over: an object of the code under test."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return any(map(has_objects, value))
    return type(value).__name__ == "Remote"
