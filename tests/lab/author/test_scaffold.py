"""A lesson in ten minutes: what `lab new` writes can be built, verified, started and graded."""

import os
import shutil
import subprocess
import sys

import pytest

from lab.author import rename
from lab.course import ROOT


@pytest.mark.slow
@pytest.mark.timeout(1800)              # a dozen commands, among them two builds
def test_a_new_lesson_is_whole_from_the_start(tmp_path):
    copy = tmp_path / "course"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(
        ".venv", ".git", "work", "__pycache__", ".*_cache", "tests"))
    (copy / "tests" / "layer1_kernels").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "conftest.py", copy / "tests")

    def lab(*words):
        done = subprocess.run([sys.executable, "-m", "lab.cli", *words], cwd=copy,
                              capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": str(copy)})
        return done.returncode, done.stdout + done.stderr

    assert lab("new", "k21_example")[0] == 0
    manifest = copy / "lab" / "course.toml"
    manifest.write_text(manifest.read_text().replace('"k20_grouped_gemm"',
                                                     '"k20_grouped_gemm", "k21_example"'))
    for words, says in ((("build", "k21"), "solutions/layer1_kernels/k21_example.ipynb"),
                        (("build", "k21", "--check"), "0 stale"),
                        (("verify", "k21"), "0 failed"),
                        (("start", "k21"), "1 lesson(s) on the desk")):
        code, said = lab(*words)
        assert code == 0 and says in said, said
    code, said = lab("rename", "k21/double", "twice")
    assert code == 0 and "written layer1_kernels/k21_example.md" in said, said
    code, said = lab("build", "k21")
    assert code == 0, said
    code, said = lab("verify", "k21")
    assert code == 0 and "0 failed" in said, said
    assert "double" not in (copy / "layer1_kernels" / "k21_example.py").read_text()
    for words, says in ((("rename", "k21/double", "x"), "has no exercise 'double'"),
                        (("rename", "k21/twice", "a b"), "is not a name for a function"),
                        (("rename", "k21/twice", "twice"), "already defines twice")):
        code, said = lab(*words)
        assert code == 2 and says in said, said
    code, said = lab("check", "k21")
    assert code == 3 and "not attempted" in said, said


def test_a_method_gets_its_new_name_where_it_is_defined_and_tested(tmp_path):
    text = ("class Other:\n    def step(self):\n        pass\n\n\nclass Student:\n"
            "    def step(self):\n        self.optimiser.step()\n\n\n"
            "def test_Student_step__twice(): ...\n")
    (tmp_path / "a.py").write_text(text)
    mended = rename.renamed(tmp_path / "a.py", "Student.step", "Student.advance")
    changed = [row for row in mended.split("\n") if row not in text.split("\n")]
    assert changed == ["    def advance(self):", "def test_Student_advance__twice(): ..."]
    assert mended.index("def step(") < mended.index("class Student") < mended.index("def advance(")
