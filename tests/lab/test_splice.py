"""Answers go into a lesson whole, and nothing else moves."""

import ast
import random
import re

import pytest

from lab import stub
from tests.lab.stub_samples import (
    CUDA,
    CUDA_EXERCISES,
    PYTHON,
    PYTHON_EXERCISES,
    dented,
    samples,
    spliced,
)


@samples
def test_round_trip(language, source, exercises, names):
    """Cut some, put the reference back one by one in any order: the reference again."""
    dice = random.Random(7)
    for _ in range(25):
        some = dice.sample(names, dice.randint(1, len(names)))
        text = stub.cut(source, [name for name in some if name in exercises], language)
        for name in some:
            text = spliced(text, stub.extract(source, name, language), language)
        for name in names:
            assert stub.normalised(text, name, language) == stub.normalised(source, name, language)
        assert stub.definitions(text, language) == stub.definitions(source, language)


@samples
def test_windows_newlines_and_byte_order_marks(language, source, exercises, names):
    other = "\ufeff" + source.replace("\n", "\r\n")
    assert stub.cut(other, exercises, language) == stub.cut(source, exercises, language)
    for name in names:
        assert stub.extract(other, name, language) == stub.extract(source, name, language)
        assert stub.normalised(other, name, language) == stub.normalised(source, name, language)
        assert stub.find_line(other, name, language) == stub.find_line(source, name, language)
    answer = stub.extract(other, names[2], language).replace("\n", "\r\n")
    assert "\r" not in spliced(stub.cut(other, exercises, language), answer, language)


@samples
def test_the_whole_module_is_taken_as_it_is(language, source, exercises, names):
    answer = source.replace("everything", "all") + "\n\n# at the end" * (language == "python")
    result = stub.splice(stub.cut(source, exercises, language), answer, language)
    assert result.text.rstrip("\n") == answer.rstrip("\n")
    assert result.origin == list(range(1, result.text.count("\n") + 1))


def test_a_cell_with_all_definitions_but_no_imports_keeps_the_imports():
    source = '"""Doc."""\nimport math\n\nN = 3\n\n\ndef f():\n    raise NotImplementedError\n'
    assert spliced(source, "def f():\n    return math.pi * N\n") == source.replace(
        "raise NotImplementedError", "return math.pi * N")


def test_helpers_go_directly_above_and_the_rest_stays():
    source = ("import os\n\n\ndef before():\n    return 0\n\n\n# about f\ndef f():\n    pass\n\n\n"
              "T = {1: f}\n")
    answer = ("# mine\nimport os\nimport math\n\nLIMIT = 3    # enough\n\n# helps\ndef helper(x):\n"
              "    return x\n\ndef f():\n    return helper(LIMIT)\n\nprint(f())\n")
    assert spliced(source, answer) == dented('''
        import os


        def before():
            return 0


        import math
        LIMIT = 3    # enough


        # helps
        def helper(x):
            return x


        # about f
        def f():
            return helper(LIMIT)


        print(f())


        T = {1: f}
    ''')


def test_what_was_spliced_before_is_replaced_and_does_not_pile_up():
    text = "def f():\n    pass\n\n\ndef g():\n    pass\n"
    for n in (64, 32, 64, 16):
        text = spliced(text, f"import os\nBLOCK = {n}\ndef h():\n    return {n}\n"
                             "def f():\n    return BLOCK\n")
        assert re.findall(r"BLOCK = (\d+)", text) == [str(n)]
        assert text.count("import os") == text.count("def h") == text.count("def f") == 1
    text = spliced(text, "import os\nos._exit(0)\ndef g():\n    return 2\n")
    assert text.count("import os") == text.count("os._exit(0)") == 1
    assert text.index("def f") < text.index("os._exit(0)") < text.index("def g")


def test_an_import_below_its_use_is_moved_up():
    source = "def f():\n    pass\n\n\nimport math\n\n\ndef g():\n    pass\n"
    text = spliced(source, "import math\nTAU = 2 * math.pi\ndef f():\n    return TAU\n")
    assert text.count("import math") == 1
    exec(text, {})


def test_a_name_defined_twice_is_what_its_last_definition_says():
    source = "def g():\n    pass\n\n\ndef f():\n    pass\n\n\nT = f\n"
    answer = "def f():\n    return 1\n\ndef f():\n    return 2\n\ndef g():\n    return 3\n"
    for cell in (answer, answer.replace("def f():\n    return 1\n\n", "")):
        names = {}
        text = spliced(source, cell)
        exec(text, names)
        assert names["T"]() == 2 and names["g"]() == 3
        source = text
    assert text.count("def f") == 1


@pytest.mark.parametrize("answer", ["print(1)\n", "def other():\n    return 1\n", ""])
def test_an_answer_that_replaces_nothing_goes_to_the_end(answer):
    source = "def f():\n    pass\n"
    assert spliced(source, answer) == source + "\n\n" * bool(answer) + answer
    assert spliced("", answer) == answer


def test_an_assignment_may_replace_a_function_and_future_imports_stand_first():
    source = '"""Doc."""\nimport os\n\n\ndef f():\n    pass\n'
    assert spliced(source, "f = lambda: 3\n") == source.replace(
        "def f():\n    pass", "f = lambda: 3")
    text = spliced(source, "from __future__ import annotations\ndef f() -> unknown:\n"
                           "    return 1\n")
    exec(text, {})
    assert text.index('"""') < text.index("__future__") < text.index("import os")


def test_statements_on_one_line_stay_together():
    text = spliced("def f():\n    pass\n\n\nx = 1\n", "import os; os.x = 1\ndef f():\n"
                                                      "    return 1\n")
    assert text == "import os; os.x = 1\n\n\ndef f():\n    return 1\n\n\nx = 1\n"


def test_a_property_and_its_setter_are_replaced_together():
    text = spliced(PYTHON, stub.extract(PYTHON, "Pool.free", "python").replace("pages", "left"))
    assert text == PYTHON.replace("return self.pages\n\n    @free", "return self.left\n\n    @free"
                                  ).replace("self.pages = n", "self.left = n")


CLASS = '''\
@deco
class Pool(Base):
    """Doc."""

    size = 3

    def take(self):
        pass

    def give(self):
        pass


x = Pool()
'''


def test_a_class_with_some_methods_replaces_only_these():
    for header in ("class Pool:", "class Pool(Base):", "class Pool(Pool):", "@deco\n"
                                                                            "class Pool(Base):"):
        text = spliced(CLASS, f'{header}\n    def take(self):\n        return """a\n  b"""\n')
        assert text == CLASS.replace("pass", 'return """a\n  b"""', 1)


def test_methods_are_indented_like_their_class():
    answer = ("class Pool:\n  limit = 1\n  # helps\n  def helper(self):\n    return (1,\n  2)\n\n"
              "  def give(self):\n    if 1:\n      return \"\"\"a\n  b\"\"\"\n")
    assert spliced(CLASS, answer) == CLASS.replace('''\
    def give(self):
        pass
''', '''\
    limit = 1

    # helps
    def helper(self):
      return (1,
    2)

    def give(self):
      if 1:
        return """a
  b"""
''')
    assert "\tdef take(self):\n\t    return 1" not in spliced(
        CLASS, "class Pool:\n\tdef take(self):\n\t\treturn 1\n")


def test_a_class_that_has_it_all_or_is_another_replaces_the_class():
    for answer in (CLASS.removesuffix("\n\nx = Pool()\n").replace("pass", "return 2"),
                   "class Pool(Other):\n    def take(self):\n        return 1\n",
                   "class Pool:\n    pass\n", "class Pool: size = 4\n"):
        assert spliced(CLASS, answer) == answer.rstrip() + "\n\n\nx = Pool()\n"


def test_two_partial_classes_are_both_taken():
    answer = ("class Pool:\n    def take(self):\n        return 1\n\n"
              "class Pool:\n  def give(self):\n    return 2\n")
    assert spliced(CLASS, answer) == CLASS.replace("pass", "return 1", 1).replace(
        "    def give(self):\n        pass", "    def give(self):\n      return 2")


def test_comments_at_the_end_of_a_function_belong_to_it():
    source = "def f():\n    pass\n    # old\ndef g():\n    pass\n"
    assert spliced(source, "def f():\n    return 1\n    # new\n") == source.replace(
        "pass\n    # old", "return 1\n    # new")
    assert spliced(source, "H = 1\ndef g():\n    return H\n") == (
        "def f():\n    pass\n    # old\nH = 1\n\n\ndef g():\n    return H\n")


def test_what_is_below_the_last_method_stays_below():
    text = spliced(CLASS, "class Pool:\n    def give(self):\n        return 1\n    alias = give\n")
    assert text.index("return 1") < text.index("alias = give") < text.index("x = Pool()")
    exec(text.replace("(Base)", "").replace("@deco", ""), {})


def test_a_syntax_error_has_its_line():
    with pytest.raises(SyntaxError) as caught:
        stub.splice("def f():\n    pass\n", "x = 1\n\ndef f(:\n    pass\n", "python")
    assert caught.value.lineno == 3


def test_cuda_helpers_constants_and_scopes():
    source = dented('''
        #include <cuda_fp16.h>
        constexpr int N = 8;

        extern "C" {
        // about f
        __global__ void f(float* x) {
            // f: about 1 line
        }
        __global__ void g(float* x) { }
        }
    ''')
    answer = dented('''
        #include <cuda_fp16.h>
        #include <mma.h>
        #define M 4
        constexpr int N = 16;   // more
        namespace detail {
        // helps
        __device__ float help(float x) { return x; }
        }
        #ifndef W
        #define W 32
        #endif
        extern "C" __global__ void f(float* x) {
            x[0] = detail::help(N);
        }
    ''')
    assert spliced(source, answer, "cuda") == dented('''
        #include <cuda_fp16.h>
        constexpr int N = 16;   // more

        #include <mma.h>

        #define M 4

        namespace detail {
        // helps
        __device__ float help(float x) { return x; }
        }

        #ifndef W
        #define W 32
        #endif

        extern "C" {
        // about f
        extern "C" __global__ void f(float* x) {
            x[0] = detail::help(N);
        }
        __global__ void g(float* x) { }
        }
    ''')


def test_a_kernel_keeps_its_blocks_and_what_is_added_stays_out_of_those_of_others():
    source = 'int a;\n\nextern "C" __global__ void f() { }\nint z;\n'
    answer = ('extern "C" {\n__device__ int h() { return 1; }\n__global__ void f() { h(); }\n}\n'
              "#if 0\n__device__ int old() { }\n#endif\n")
    text = spliced(source, answer, "cuda")
    assert text == dented('''
        int a;

        extern "C" {
        __device__ int h() { return 1; }
        }

        extern "C" {
        __global__ void f() { h(); }
        }

        #if 0
        __device__ int old() { }
        #endif
        int z;
    ''')
    bare = "#define N 3\n__global__ void f() { h() + N; }\nint b;\n"
    assert spliced(text, bare, "cuda") == text.replace("h();", "h() + N;").replace(
        'extern "C" {\n__global__', '#define N 3\n\nextern "C" {\n__global__').replace(
        "#if 0", "int b;\n\n#if 0")


def test_cuda_overloads_are_told_apart_and_new_ones_do_not_replace():
    answer = "__device__ half twice(half x) { return x * half(2); }\n"
    text = spliced(CUDA, answer, "cuda")
    assert text == CUDA.replace("__device__ half twice(half x) { return x + x; }", answer.strip())
    answer = "__global__ void wait(int* flag) { }\n"
    assert stub.definitions(spliced(CUDA, answer, "cuda"), "cuda").count("wait") == 1


def test_cuda_constants_do_not_pile_up():
    text = "__global__ void f() { }\n"
    for n in (64, 32, 64):
        text = spliced(text, f"#define B {n}\nconstexpr int C = {n};\nstruct S {{ int x[{n}]; }};\n"
                             f"__device__ int h(int a) {{ return {n}; }}\n"
                             "__global__ void f() { h(B); }\n",
                       "cuda")
        for part in ("#define B", "int C", "struct S", "int h", "void f"):
            assert text.count(part) == 1


def test_a_kernel_alone_is_not_the_whole_file():
    source = ("#include <cuda_fp16.h>\nusing namespace std;\n\n__global__ void f() { }\n"
              "template __global__ void f<int>();\n")
    text = spliced(source, "__global__ void f() { int x; }\n", "cuda")
    assert text == source.replace("{ }", "{ int x; }")


def test_a_macro_in_a_condition_is_another_one():
    source = "#if A\n#define L 1\n#else\n#define L 2\n#endif\n__global__ void f() { }\nint x;\n"
    assert spliced(source, "#if A\n#define L 3\n#endif\n", "cuda") == source.replace("L 1", "L 3")
    text = spliced(source, "#define L 3\n__global__ void f() { int x = L; }\n", "cuda")
    assert text.startswith(source.split("__global__")[0] + "#define L 3\n")


def test_two_definitions_on_one_line():
    source = "__global__ void f() { g(); } __global__ void h() { }  // both\n"
    text = spliced(source, "__global__ void f() { int x; }\n", "cuda")
    assert text == source.replace("g();", "int x;")


@pytest.mark.parametrize(("text", "says"), [
    ("\nvoid f() {\n    if (x) {\n}\n", "line 2: this { is never closed"),
    ("void f() {\n}\n}\n", "line 3: this } closes nothing"),
    ("\nnamespace a {\nvoid f() { }\n", "line 2: this namespace a { is never closed"),
    ("void f(int a {\n}\n", "line 1: this ( is never closed"),
    ("int x;\n/* no end\n", "line 2: this comment never ends"),
    ('void f() {\n  g("abc);\n}\n', "line 2: this string never ends"),
    ("void f() {\n  g('a);\n}\n", "line 2: this character never ends"),
    ("#if A\nvoid f() { }\n", "line 1: this #if A is never closed"),
    ("void f() { }\n#endif\n", "line 2: this #endif has no #if"),
    ("#else\n", "line 1: this #else has no #if"),
])
def test_unbalanced_cuda_is_one_clear_line(text, says):
    for action in (lambda: stub.definitions(text, "cuda"), lambda: stub.splice("", text, "cuda")):
        with pytest.raises(ValueError, match=re.escape(says)):
            action()


def test_a_missing_semicolon_is_left_to_the_compiler():
    assert "int x = 3" in spliced("void f() { }\n", "int x = 3\n", "cuda")


# Parts of a text; those in one row, between two ||, are variants of which a text has one at most.
PARTS = {"python": '''
import os
%%
import math
import sys
%%
from math import exp, log
%%
B = 3 || B = 4
%%
M, N = 1, 2
%%
x = 1; y = 2
%%
x += 1
%%
print(1)
%%
# lone
%%
# above
C = 3
%%
"""doc"""
%%
def f(a):
    return a
    # trailing
||
def f(a):
    # exercise: do
    return a + 1
||
f = lambda: 3
%%
@deco(
  1)
def g():
    return 2
||
@deco
def g(): return 1
%%
# about h
def h():
    pass

    # trailing
%%
async def k():
\tawait x
%%
class P:
    a = 1
    def m(self):
        return 1

    def n(self):
        return 2
        # trailing
||
class P:
  def m(self):
    return """a
 b"""
||
class P(Q):
    def m(self): return 3
||
class P: pass
||
@deco
class P:
    """doc"""
    def n(self):
        pass
    x = 3
%%
class R:
    @v.setter
    def v(self, x):
        return 3
%%
for i in r:
    print(i)
%%
try:
    import cupy
except ImportError:
    cupy = None
''', "cuda": r'''
#include <a.h>
%%
#include <b.h>
%%
#define B 3 || #define B 4 // four
%%
#define C(a) \
  (a)
%%
#ifndef W
#define W 3
#endif
%%
#if A
#define L 1
#else
#define L 2
#endif
%%
using T = float;
%%
constexpr int N = 3; || constexpr int N = 4;  // four
%%
// lone
%%
enum { AA, BB };
%%
#pragma once
%%
struct S { int a; }; || struct S { int b; int f() { return b; } };
%%
__device__ float d(float x);
%%
/* multi
 line */
__device__ float d(float x) { return x; }
||
__device__ int d(int x) { return x; }
%%
extern "C" __global__ void k() {
    x[0] = 1;
}
||
extern "C" {
__global__ void k() { }
}
%%
namespace a {
// help
__device__ int h() { }
}
%%
extern "C" {
__device__ int u() { }
namespace b { __device__ int v() { } }
}
%%
template <class T> __global__ void t(T* x) { }
%%
void one() { } void two() { }
%%
template __global__ void t<int>(int*);
%%
typedef struct { int x; } Z;
'''}


@pytest.mark.parametrize("language", PARTS)
def test_random_answers_in_random_sources(language):
    """No answer is lost, doubled or torn, whatever it and the source are made of."""
    dice = random.Random(11)
    parts = [[variant.strip("\n ") for variant in part.split("||")]
             for part in PARTS[language].split("%%")]
    for _ in range(300):
        source, answer = ("".join(dice.choice(part) + "\n" * dice.randint(1, 4)
                                  for part in dice.sample(parts, dice.randint(0, 9)))
                          for _ in range(2))
        text = spliced(source, answer, language)
        if language == "python":
            ast.parse(text)
        for name in stub.definitions(answer, language):
            if name != "P":             # it may be amended only
                assert stub.normalised(answer, name, language) == (
                    stub.normalised(text, name, language)), (source, answer)


# ---- changed


def test_changed_carries_the_learners_parts_over():
    base = stub.cut(PYTHON, PYTHON_EXERCISES, "python")
    mine = spliced(base, "import os\nSTEP = 2\ndef total(numbers):\n    return STEP\n")
    mine = spliced(mine, "class Pool:\n    def take(self, n):\n        return n\n")
    fresh = base.replace("BLOCK = 128", "BLOCK = 256").replace("def jit(function)", "def jit(f)")
    text = spliced(fresh, stub.changed(mine, base, "python"))
    assert "BLOCK = 256" in text and "def jit(f)" in text and "STEP = 2" in text
    for name in ("total", "Pool.take"):
        assert stub.normalised(text, name, "python") == stub.normalised(mine, name, "python")
    assert stub.changed(base, base, "python") == ""
    assert spliced(fresh, "") == fresh


def test_a_method_that_was_deleted_comes_back():
    base = CLASS.replace("Base", "object").replace("@deco\n", "")
    mine = base.replace("    def give(self):\n        pass\n", "")
    assert stub.changed(mine, base, "python") == ""
    mine = mine.replace("pass", "return 2")
    assert spliced(base, stub.changed(mine, base, "python")) == base.replace("pass", "return 2", 1)


def test_changed_in_cuda():
    base = stub.cut(CUDA, CUDA_EXERCISES, "cuda")
    mine = spliced(base, "#define STEP 3\n"
                         "__global__ void wait(volatile int* flag) { *flag = STEP; }\n", "cuda")
    fresh = base.replace("#define TILE 32", "#define TILE 16")
    text = spliced(fresh, stub.changed(mine, base, "cuda"), "cuda")
    assert "#define TILE 16" in text and "#define STEP 3" in text and "*flag = STEP" in text
    helper = "namespace own {\n// mine\n__device__ int help() { return 1; }\n}"
    assert stub.changed(f"int x;\n{helper}\n", "int x;\n", "cuda") == helper + "\n\n"
