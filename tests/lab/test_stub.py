"""Stubs and extracts: whole definitions are cut and read, and nothing else changes."""

import ast
import re
import types

import pytest

from lab import stub
from tests.lab.stub_samples import CUDA, CUDA_EXERCISES, PYTHON, dented, samples

# ---- cut


def test_a_stub_keeps_all_down_to_its_mark():
    assert stub.extract(stub.cut(PYTHON, ["total"], "python"), "total", "python") == dented('''
        @jit
        @ft.lru_cache(
            maxsize=None,       # exercise: no mark, this comes after code
        )
        def total(numbers, *, scale: float = 1.0) -> float:
            """The sum, scaled.

            # exercise: no mark either, this is a docstring
            """
            # Each is read once.
            answer = 0.0
            # exercise: add them up
            raise NotImplementedError("total: about 3 lines")''')
    assert "gives the answer away" not in stub.cut(PYTHON, ["total"], "python")


@pytest.mark.parametrize(("name", "end"), [
    ("fetch", '''
        async def fetch(source):
            """Await it."""
            async with source as rows:
                # exercise: collect the rows
                raise NotImplementedError("fetch: about 1 line")'''),
    ("nested", '''
        def nested(x):
            for k in range(3):
                with open(x) as file:
                    if k:
                        # exercise: read it
                        raise NotImplementedError("nested: about 3 lines")'''),
    ("Pool.take", '''
        class Pool(dict):
            def take(self, n):
                """Take n pages."""
                # exercise: enough left?
                raise NotImplementedError("Pool.take: about 3 lines")'''),
])
def test_python_stubs(name, end):
    cut = stub.cut(PYTHON, [name], "python")
    ast.parse(cut)
    assert stub.extract(cut, name, "python") == dented(end)
    assert PYTHON.startswith(cut[:cut.index("raise NotImplementedError")].rstrip())


@samples
def test_only_the_named_are_cut(language, source, exercises, names):
    for name in exercises:
        cut = stub.cut(source, [name], language)
        for other in names:
            same = (stub.normalised(cut, other, language)
                    == stub.normalised(source, other, language))
            assert same == (other != name), (name, other)


@pytest.mark.parametrize(("body", "kept"), [
    ("    try:\n        a()\n    except E:\n        # exercise: x\n        b()\n    finally:\n"
     "        c()\n",
     "    try:\n        a()\n    except E:\n        # exercise: x\n"
     "        raise NotImplementedError(…3 lines"),
    ("    match a:\n        case 1:\n            # exercise: x\n            return 2\n"
     "        case _:\n"
     "            return 3\n",
     "            # exercise: x\n            raise NotImplementedError(…3 lines"),
    ("    # exercise: the first counts\n    a = 1\n    # exercise: not this\n    return a\n",
     "    # exercise: the first counts\n    raise NotImplementedError(\"f: about 2 lines\")\n"),
    ('    s = """\n    # exercise: in a string\n"""\n    # exercise: here\n    return s\n',
     "    # exercise: here\n    raise NotImplementedError(\"f: about 1 line\")\n"),
    ("\t# exercise: tabs\n\treturn 1\n", "\t# exercise: tabs\n\traise NotImplementedError("),
])
def test_marks_in_blocks(body, kept):
    cut = stub.cut(f"def f(a):\n{body}x = 1\n", ["f"], "python")
    ast.parse(cut)
    assert cut.endswith("x = 1\n")
    for part in kept.split("…"):
        assert part in cut


@pytest.mark.parametrize(("source", "name", "says"), [
    ("x = 1\n\n\ndef f():\n    return 1     # exercise: after code\n", "f",
     "line 4: f has no comment # exercise:"),
    ("def f():\n    x = [\n        # exercise: inside\n        1]\n    return x\n", "f",
     "line 1: f cannot be cut at its mark"),
    ("def f():\n    for x in y:\n    # exercise: no block yet\n        a\n", "f",
     "line 1: f cannot be cut at its mark"),
    ("def f():\n    try:\n        # exercise: x\n        a()\n    finally:\n        b()\n", "f",
     "line 1: f cannot be cut at its mark"),
    ("def f():\n    x = 1\n    # exercise: nothing below\n", "f", "line 3: nothing of f"),
    ("def f():\n    # exercise: x\n    a\n\n\ndef f():\n    b\n", "f",
     "line 6: f is defined here too"),
])
def test_python_that_cannot_be_cut(source, name, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        stub.cut(source, [name], "python")


def test_a_cuda_stub_closes_what_is_open():
    cut = stub.cut(CUDA, CUDA_EXERCISES, "cuda")
    assert stub.extract(cut, "transpose", "cuda") == dented('''
        template <typename T, int B = (3 > 2 ? 32 : 64)>
        __global__ void __launch_bounds__(256, 2)
        transpose(const T* __restrict__ in,
                  T* out, int n = 3)
        {
            __shared__ T tile[B][B + 1];        // one more: no bank twice
            int x = blockIdx.x * B + threadIdx.x;
            // exercise: load the tile, wait, store it turned
            // transpose: about 6 lines
        }''')
    assert stub.extract(cut, "reduce", "cuda") == dented('''
        extern "C" __global__ void reduce(const float* x, float* out, int n) {
            float sum = 0.f;
            for (int i = threadIdx.x; i < n; i += blockDim.x) {
                if (i < n) {
                    // exercise: add, and write when the last is read
                    // reduce: about 5 lines
                    return;
                }
            }
        }''')
    assert stub.extract(cut, "wait", "cuda") == dented('''
        __global__ void wait(volatile int* flag) {
            int spins = 0;
            while (spins < 10) {
                // exercise: wait for the flag
                // wait: about 2 lines
                return;
            }
        }''')
    assert stub.extract(cut, "pick", "cuda") == dented('''
        __device__ float pick(int k) {
            switch (k) {
                case 0:
                    // exercise: choose
                    // pick: about 2 lines
                    return {};
            }
        }''')
    assert cut.endswith("        if (k == 7) return k;\n    }\n    // exercise: if there was no 7\n"
                        "    // branches: about 1 line\n    return {};\n}\n")


@pytest.mark.parametrize(("source", "says"), [
    ("void f(int a) {\n    g(a,\n    // exercise: x\n    a);\n}\n", "line 3: f cannot be cut "
                                                                    "here, in the middle of a"),
    ("void f(int a) {\n    int x =\n    // exercise: x\n    a;\n}\n", "line 3: f cannot be cut "
                                                                      "here, in the middle of a"),
    ("void f(int a) {\n#if A\n    // exercise: x\n    a++;\n#endif\n}\n",
     "line 3: f cannot be cut here, under an #if"),
    ("void f(int a) {\n    a++;\n    // exercise: x\n}\n", "line 3: nothing of f is left"),
    ("void f() { }        // exercise: after code\n", "line 1: f has no comment // exercise:"),
    ("int f(int a) {\n    // exercise: x\n    g();\n}\nint f(float a) { }\n",
     "line 5: f is defined here too"),
])
def test_cuda_that_cannot_be_cut(source, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        stub.cut(source, ["f"], "cuda")


def test_cuda_stubs_compile(tmp_path):
    nvrtc = pytest.importorskip("lab.simulator.nvrtc")
    if nvrtc.library_folder() is None:
        pytest.skip("not proven here: the NVRTC wheel is not installed")
    source = CUDA.replace("grüße", "gruesse")           # NVRTC takes ASCII names only
    source = source.replace("x[0] = 0.f;", "")
    for some in ([], CUDA_EXERCISES, *([name] for name in CUDA_EXERCISES)):
        ptx = nvrtc.compile_ptx(stub.cut(source, some, "cuda"), str(tmp_path / "stub.cu"),
                                name_expressions=["transpose<float>"]).ptx
        assert ("st.global" in ptx) == (len(some) < 2), some        # the whole stub writes nothing


# ---- definitions, extract, find_line


def test_definitions():
    assert stub.definitions(PYTHON, "python") == [
        "jit", "total", "total_of_two", "one_line", "grüße", "fetch", "nested", "outer", "Pool",
        "Pool.take", "Pool.free", "Pool.Inner", "Pool.Inner.take"]
    assert stub.definitions(CUDA, "cuda") == [
        "TILE", "CEIL", "LANES", "Pair", "Tile", "twice", "transpose", "reduce", "operator+",
        "grüße", "half_of", "pick", "wait", "branches"]
    odd = "struct X final { int a; };\ntypedef struct { int b; } Y;\nenum class Z : int { A };\n"
    assert stub.definitions(odd, "cuda") == ["X", "Y", "Z"]
    assert stub.definitions("", "python") == stub.definitions("\n// none\n", "cuda") == []


def test_extract_is_the_whole_definition_and_no_more():
    assert stub.extract(PYTHON, "total_of_two", "python") == dented('''
        def total_of_two(a, b):     # a name that begins like another
            return total((a, b))''')
    assert stub.extract(PYTHON, "Pool", "python").startswith("@dataclass(\n    frozen=True,\n)\n"
                                                             "class")
    assert stub.extract(PYTHON, "Pool.free", "python") == dented('''
        class Pool(dict):
            @property
            def free(self):
                return self.pages
            @free.setter
            def free(self, n):
                self.pages = n''')
    assert stub.extract(PYTHON, "BLOCK", "python") == "BLOCK = 128         # threads"
    assert stub.extract(CUDA, "CEIL", "cuda") == (
        "#define CEIL(a, b) \\\n    (((a) + (b) - 1) / (b))")
    assert stub.extract(CUDA, "grüße", "cuda") == (
        "__global__ void grüße(float* x) { x[0] = 0.f; }  // non-ASCII")
    assert stub.extract(CUDA, "Tile", "cuda") == (
        "template <int N> struct Tile { float x[N > 0 ? N : 1]; };")
    assert stub.extract(CUDA, "WARPS", "cuda") == "constexpr int WARPS = TILE / LANES;"
    assert stub.extract(CUDA, "weights", "cuda").startswith("__constant__")
    assert stub.extract(CUDA, "Index", "cuda").startswith("using")


@samples
def test_a_missing_name_is_told_with_what_is_there(language, source, exercises, names):
    for function in (stub.extract, stub.find_line):
        with pytest.raises(KeyError, match=f"no tot here, only .*{re.escape(names[0])}"):
            function(source, "tot", language)
    with pytest.raises(KeyError):
        stub.cut(source, ["tot"], language)
    assert stub.normalised(source, "tot", language) is None


@samples
def test_find_line(language, source, exercises, names):
    rows = source.split("\n")
    for name in names:
        first = stub.find_line(source, name, language)
        text = stub.extract(source, name, language).split("\n")
        assert rows[first - 1] in text
        assert not rows[first - 1].lstrip().startswith(("@", "maxsize")), "decorators are above it"


PROPERTY = """class A:
    @property
    def size(self):
        return 1

    @size.setter
    def size(self, n):
        pass
"""


@pytest.mark.parametrize("source, name, line", [
    (PROPERTY, "A.size", 3), (PROPERTY * 2, "A.size", 11),
    ("def f():\n    pass\n\n\ndef f():\n    pass\n\n\nf = counted(f)\n", "f", 5)])
def test_the_last_definition_is_the_one_that_counts(source, name, line):
    assert stub.find_line(source, name, "python") == line


# ---- normalised


def test_python_is_equal_up_to_comments_docstrings_and_layout():
    a = 'def f(x):\n    """One."""\n    # why\n    return (x +\n            1)\n'
    b = "def f( x ) :\n  # other\n\n  return x+1 # so\n"
    assert stub.normalised(a, "f", "python") == stub.normalised(b, "f", "python")
    for other in ("def f(x):\n    return x + 2\n", "def f(y):\n    return y + 1\n", "@d\n" + b,
                  "async " + b, "f = lambda x: x + 1\n", "def f(x):\n    '''One.'''\n"):
        assert stub.normalised(a, "f", "python") != stub.normalised(other, "f", "python")
    assert stub.normalised("def f():\n    '''Doc.'''\n", "f", "python") == stub.normalised(
        "def f(): pass\n", "f", "python")


def test_cuda_is_equal_up_to_comments_and_layout():
    a = 'extern "C" __global__ void f(float* x) {\n    // why\n    x[0] = 1.f;  /* so */\n}\n'
    b = 'extern "C"\n__global__ void f(float *x)\n{ x[0]=1.f; }'
    assert stub.normalised(a, "f", "cuda") == stub.normalised(b, "f", "cuda")
    for other in (b.replace("1.f", "1.0f"), b.replace("=", "+="), b.replace('extern "C"', ""),
                  b.replace("x[0]=1.f;", 'char* s = "// why";')):
        assert stub.normalised(a, "f", "cuda") != stub.normalised(other, "f", "cuda")
    plus = [stub.normalised(f"int f(int a) {{ return {e}; }}", "f", "cuda")
            for e in ("a++ + a", "a + ++a", "a+++a", "a + + + a")]
    assert plus[0] == plus[2] and len(set(plus)) == 3
    assert stub.normalised("#define N 3 // three\n", "N", "cuda") == stub.normalised(
        "#  define  N \\\n 3\n", "N", "cuda")


# ---- free_names


@pytest.mark.parametrize(("cell", "free"), [
    ("def f(x, *a, k=D, **w):\n    y = x\n    return y + g(a, k, w)\n", {"D", "g"}),
    ("import numpy as np\nfrom a import b as c\nprint(np, c, b)\n", {"b"}),
    ("[i + n for i in rows if i]\ni\n", {"n", "rows", "i"}),
    ("def f():\n    global c\n    c = 1\nprint(c)\n", set()),
    ("def f():\n    global c\n    return c\n", {"c"}),
    ("def f(n):\n    def g():\n        nonlocal n\n        n = 2\n        return m\n"
     "    return g\n", {"m"}),
    ("class A(B):\n    x = y\n    z = x\n    def f(self) -> T:\n"
     "        return x, __class__, super()\n",
     {"B", "y", "T", "x"}),
    ("f = lambda a, b=c: a + b + d\n", {"c", "d"}),
    ("for k in r: pass\nprint(k)\nwith o as p: p\ntry: q\nexcept E as e: e\n",
     {"r", "o", "q", "E"}),
    ("if (n := 3): n\nx: int = 3\ny: T\n", {"T"}),
    ("@deco\ndef f(): f()\n__name__, __file__, print, len\n", {"deco"}),
    ("{k: v for k, v in d.items()}; {s for s in t}; list(u for u in w)\n", {"d", "t", "w"}),
    ("def f():\n    return [x for x in range(3) if x > lim]\n", {"lim"}),
    ("class A:\n    n = 3\n    m = [i for i in range(n)]\n", set()),
    ("del x\n", set()),
])
def test_free_names_of_python(cell, free):
    assert stub.free_names(cell, "python") == free


@pytest.mark.parametrize("text", ["a " * 50_000, 'R"(' * 50_000, "f<" * 50_000, "a {} " * 20_000])
def test_cuda_without_an_end_is_refused_at_once(text):
    """Graders read what no one has looked at: none of these may take a minute."""
    with pytest.raises(ValueError, match="never ends"):
        stub.definitions(text, "cuda")


DEEP_CHAIN = "if a: pass\n" + "elif a: pass\n" * 900


@pytest.mark.parametrize("text", [
    "-" * 50_000 + "1", "a" + ".a" * 50_000, DEEP_CHAIN,
    "class A(a" + ".a" * 900 + "): pass", "@a" + ".a" * 900 + "\nclass A: pass"])
def test_python_too_deep_to_be_read_is_a_syntax_error(text):
    with pytest.raises(SyntaxError, match="nested too deeply"):
        stub.definitions(text, "python")


def test_python_too_deep_for_one_layout_is_compared_as_it_stands():
    deep = "def f():\n    return a" + ".a" * 600 + "\n"
    assert stub.normalised(deep, "f", "python") and stub.changed(deep, "", "python")


def test_every_stub_of_the_sample_runs():
    """The stub is a module like the reference, and each function in it says that it is one."""
    module = types.ModuleType("stubbed")
    exec(stub.cut(PYTHON, ["total", "nested"], "python"), module.__dict__)
    with pytest.raises(NotImplementedError, match="total: about 3 lines"):
        module.total((1,))
    with pytest.raises(NotImplementedError, match="nested: about 3 lines"):
        module.nested(__file__)
