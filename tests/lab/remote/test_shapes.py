"""Shape comments are assertions while `checked` is active, and nothing else ever is."""

import asyncio
import importlib.util

import pytest

from lab.remote.shapes import ShapeError, checked

PRELUDE = '''
class A:
    """Just a shape."""

    def __init__(self, *shape):
        self.shape = shape

    def __add__(self, other):
        return self

    def __iadd__(self, other):
        self.shape = other.shape
        return self


def boom():
    raise ValueError("boom")


'''
FIRST = PRELUDE.count("\n") + 1


@pytest.fixture
def load(tmp_path):
    def make(body):
        path = tmp_path / "lesson.py"
        path.write_text(PRELUDE + body, "utf-8")
        spec = importlib.util.spec_from_file_location("lesson_under_test", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    return make


def passes(module, *args):
    with checked(module.__file__):
        return module.f(*args)


def fails(module, *args):
    with pytest.raises(ShapeError) as caught, checked(module.__file__):
        module.f(*args)
    lines = [entry.lineno + 1 for entry in caught.traceback if str(entry.path) == module.__file__]
    assert min(lines) >= FIRST              # the traceback leads into the code, not to its top
    return str(caught.value)


def test_a_true_claim_passes_and_a_false_one_names_all(load):
    m = load("def f(n):\n    x = A(2, n)  # (B, T)\n    y = A(n, 2)  # (T, B)\n    return x, y\n")
    passes(m, 3)
    assert fails(load("def f():\n    x = A(2, 3)  # (B, T)\n    y = A(3, 3)   # (T, B)\n"),) == (
        f"lesson.py:{FIRST + 2}: y is (T, B) by its comment, but its shape is (3, 3), "
        f"and B is 2 here")


@pytest.mark.parametrize(("line", "says"), [
    ("x = A(2, 3)  # (T,)", "but its shape is (2, 3)"),
    ("x = A(2, 3)  # (T, T)", "T was 2 before"),
    ("x = A(2)  # ()", "x is () by its comment, but its shape is (2,)"),
    ("x = A(4, 9)  # (T, 2 * T + 2)", "T is 4 here"),
    ("x = A(4, 1)  # (T, T // 2)", "(4, 1)"),
    ("x = A(4, 4)  # (T, T - 1)", "(4, 4)"),
    ("x = A(4, 4)  # (T, 5)", "(T, 5)"),
    ("x = A(1, 2, 4)  # (..., C, C)", "C was 2 before"),
    ("x = A(4)  # (..., C, C)", "(4,)"),
    ("x = A(4, 4)  # (T,)  # and why", "(T,)"),
    ("x: object = A(2)  # (T, C)", "x is (T, C)"),
    ("x = A(2)\n    x += A(1, 2)  # (T,)", "(1, 2)"),
    ("x = y = A(2)  # (T, C)", "x is (T, C)"),
    ("x, n = A(2), 3  # (T, C)", "x is (T, C)"),
    ("x, (y, z) = A(2), (A(2), A(3))  # (T,)", "z is (T,)"),
    ("x, y = A(2), A(3)  # (T,), (T,)", "y is (T,)"),
    ("x, y = A(2), A(3)  # (T,), (T, C)", "y is (T, C)"),
    ("x = A(\n        2,\n    )  # (T, C)", "x is (T, C)"),
    ("h = A()\n    h.w = A(3)  # (V, C)", "h.w is (V, C)"),
    ("x = 3.0  # (T,)", "it has no shape: it is a float"),
    ("x = 3; y = A(3)  # (T, C)", "y is (T, C)"),
    ("if True: x = A(3)  # (T, C)", "x is (T, C)"),
    ("for i in 1, 2: x = A(i)  # (T,)", "and T is 1 here"),
    ("for i in 1, 2:\n        x = A(i)  # (T,)", "and T is 1 here"),
    ("for i in 1, 2:\n        x = A(\n            i)  # (T,)", "and T is 1 here"),
    ("x = A(8)  # (2 * F,)\n    y = A(3)  # (F,)", "x is (2 * F,) by its comment"),
    ("x = A(8)  # (2*F,)\n    y = A(9)  # (2 * F,)", "2 * F was 8 before"),
    ("größe = A(8)  # (T, C)", "größe is (T, C)"),
    ("x = [i for i in (1, 2)] and A(1)  # (T, C)", "x is (T, C)"),
    ("x = [i for i in (j for j in (1, 2))] and A(1)  # (T, C)", "x is (T, C)"),
    ("with open(__file__) as file:\n        x = A(1)  # (T, C)", "x is (T, C)"),
    ("try:\n        x = A(1)  # (T, C)\n    finally:\n        x = A(1, 2)", "its shape is (1,)"),
])
def test_false_claims(load, line, says):
    assert says in fails(load(f"def f():\n    {line}\n"))
    assert says in fails(load(f"def f():\n    {line}\n    return 0\n"))


@pytest.mark.parametrize("line", [
    "x = A(4, 9, 3)  # (T, 2*T + 1, 1 + T//2)",
    "x = A(1, 2, 4)  # (..., C)",
    "x = A(4)  # (..., C)",
    "x = A()  # ()",
    "x = A(4)  # (T,)  # why it is so, in words (T, C)",
    "x = A(4)  # (see), no claim",
    "x = A(4)  # (T, C) before the sum",
    "x = A(4)  # (T, len(x))",
    "x = A(4)  # (T, -1)",
    "x = A(4)  # T, C",
    "x = A(4)  # (T, C), (C,) -> (T, C)",
    "x = A(4)  # (\"T\", C)",
    "x = A(4)  # (T, 1.5)",
    "x: 'A'  # (T, C)",
    "out = [0]; out[0] = A(4)  # (T, C)",
    "x = A(4); print(end='')  # (T, C)",
    "x, n = A(4), 3  # (T,)",
    "x, n = A(4), (4, 4)  # (T,)",
    "x = A(8)  # (2 * F,)\n    y = A(4)  # (F,)",
    "x = A(3)\n    if not x: x = A(4)  # (T, C)",
    "for i in (): x = A(4)  # (T, C)",
    "x = A(2, 2)\n    g = lambda: x  # (T,)\n    g.shape = (1,)" .replace("  # (T,)", ""),
    "x = A(8)  # (T // 0,)",
    "x = '# (T, C)'",
])
def test_true_claims_and_comments_that_are_none(load, line):
    passes(load(f"def f():\n    {line}\n    return 0\n"))


def test_sizes_are_those_of_one_call(load):
    m = load("def g(n):\n    x = A(n)  # (T,)\n    if n:\n        g(n - 1)\n"
             "    y = A(n)  # (T,)\n\n\n"
             "def f():\n    g(3)\n    g(2)\n    def inner():\n        z = A(7)  # (T,)\n"
             "    x = A(1)  # (T,)\n"
             "    inner()\n    y = A(1)  # (T,)\n")
    passes(m)


def test_nested_functions_and_methods_and_decorators(load):
    m = load("import functools\n\n\nclass K:\n    table = A(5)  # (V,)\n\n    @property\n"
             "    @functools.cache\n    def p(self):\n        self.w = A(1)  # (C, C)\n"
             "        return 1\n\n\n"
             "def f():\n    return K().p\n")
    assert "self.w is (C, C)" in fails(m)


def test_an_assignment_that_raises_claims_nothing(load):
    m = load("def f():\n    x = A(1, 2)\n    try:\n        x = boom()  # (T,)\n"
             "    except ValueError:\n"
             "        pass\n    y = A(1)  # (T,)\n    it = iter(())\n    try:\n"
             "        y = next(it)  # (T, C)\n"
             "    except StopIteration:\n        return y\n")
    passes(m)
    m = load("def f():\n    x = A(1, 2)\n    x = boom()  # (T,)\n")
    with pytest.raises(ValueError, match="boom"):
        passes(m)


def test_a_multi_line_statement_is_judged_when_it_is_done(load):
    m = load("def g(*a):\n    return a[0]\n\n\ndef f():\n    x = A(1, 2)  # (T, C)\n    x = g(\n"
             "        A(3),\n        [i\n         for i in (1, 2)],\n        x,\n    )  # (F,)\n"
             "    return x\n")
    passes(m)


def test_generators(load):
    m = load("def g(n):\n    x = A(9, 9)\n    for i in range(3):\n        x = yield A(n)  # (T,)\n"
             "        y = A(n)  # (T,)\n\n\n"
             "def f(n, sent):\n    one, two = g(n), g(n + 1)\n    next(one), next(two)\n"
             "    one.send(A(n)), two.send(A(n + 1))\n    one.send(A(*sent))\n    two.close()\n"
             "    try:\n        one.throw(ValueError)\n    except ValueError:\n        pass\n")
    passes(m, 4, (4,))
    assert "T is 4 here" in fails(m, 4, (5,))


def test_delegation_and_async(load):
    m = load("import asyncio\n\n\ndef inner(n):\n    yield 1\n    return A(n)\n\n\ndef g(n):\n"
             "    x = A(1, 1)\n"
             "    x = yield from inner(n)  # (4,)\n\n\nasync def h(n):\n    x = A(1, 1)\n"
             "    x = await k(n)  # (4,)\n    return x\n\n\nasync def k(n):\n"
             "    await asyncio.sleep(0)\n"
             "    if not n:\n        boom()\n    return A(n)\n\n\n"
             "async def caught():\n    x = A(1, 1)\n    try:\n        x = await k(0)  # (4,)\n"
             "    except ValueError:\n        return x\n\n\ndef f(n):\n    list(g(n))\n"
             "    asyncio.run(h(n))\n"
             "    asyncio.run(caught())\n")
    passes(m, 4)
    assert "x is (4,)" in fails(m, 5)
    with pytest.raises(ShapeError), checked(m.__file__):
        asyncio.run(m.h(5))


def test_async_comprehensions(load):
    m = load("import asyncio\n\n\nasync def rows():\n    for k in (1, 2):\n"
             "        await asyncio.sleep(0)\n"
             "        yield k\n\n\nasync def g(n):\n    x = A(1, 1)\n"
             "    x = [k async for k in rows()] and A(n)  # (4,)\n    async for k in rows():\n"
             "        y = A(k, n)  # (..., 4)\n\n\ndef f(n):\n    asyncio.run(g(n))\n")
    passes(m, 4)
    assert "x is (4,)" in fails(m, 5)


def test_a_violation_cannot_be_swallowed(load):
    m = load("def f():\n    try:\n        x = A(1)  # (T, C)\n    except Exception:\n        pass\n"
             "    return A(1)\n")
    assert "x is (T, C)" in fails(m)


def test_globals(load):
    assert "table is (V, C)" in fails(load("def f():\n    global table\n"
                                           "    table = A(1)  # (V, C)\n"))


def test_other_files_are_left_alone(load, tmp_path):
    m = load("def f():\n    x = A(1)  # (T, C)\n    return x\n")
    other = tmp_path / "other.py"
    other.write_text("pass\n")
    with checked(other):
        m.f()
    m.f()


def test_afterwards_all_is_as_before(load):
    m = load("def f():\n    def g():\n        'Doc.'\n        x = A(1)  # (T, C)\n"
             "    return g\n\n\ninner = f()\n")
    code, names = m.f.__code__, dir(m)
    with pytest.raises(ShapeError), checked(m.__file__):
        assert m.f().__doc__ == "Doc."
        with pytest.raises(ShapeError):     # it was there before
            m.inner()
    assert m.f.__code__ is code and dir(m) == names
    m.inner()


def test_wrong_counts_are_an_error_at_once(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("x, y, z = f()  # (T,), (C,)\n")
    says = "a.py:1: 2 shapes in the comment, 3 targets"
    with pytest.raises(ShapeError, match=says), checked(path):
        pass
