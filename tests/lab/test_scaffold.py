"""A lesson in ten minutes: what `lab new` writes can be built, verified, started and graded."""

import os
import shutil
import subprocess
import sys

import pytest

from lab.course import ROOT


@pytest.mark.slow
def test_a_new_lesson_is_whole_from_the_start(tmp_path):
    copy = tmp_path / "course"
    shutil.copytree(ROOT, copy, symlinks=True, ignore=shutil.ignore_patterns(
        ".venv", ".git", "work", "__pycache__", ".*_cache", "tests"))
    shutil.copytree(ROOT / "tests" / "day01_roofline", copy / "tests" / "day01_roofline")
    shutil.copy(ROOT / "tests" / "conftest.py", copy / "tests")

    def lab(*words):
        done = subprocess.run([sys.executable, "-m", "lab.cli", *words], cwd=copy, timeout=200,
                              capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": str(copy)})
        return done.returncode, done.stdout + done.stderr

    assert lab("new", "r04_number_formats")[0] == 0
    manifest = copy / "lab" / "course.toml"
    lines = [line for line in manifest.read_text().splitlines()
             if '"r04_number_formats"' not in line]
    text = "\n".join(lines).replace('"r03_transformer_math"]',
                                     '"r03_transformer_math", "r04_number_formats"]')
    manifest.write_text(text)
    for words, says in ((("build", "r04"), "solutions/day01_roofline/r04_number_formats.ipynb"),
                        (("build", "r04", "--check"), "0 stale"),
                        (("verify", "r04"), "0 failed"),
                        (("start", "r04"), "1 lesson(s) on the desk")):
        code, said = lab(*words)
        assert code == 0 and says in said, said
    code, said = lab("check", "r04")
    assert code == 3 and "not attempted" in said, said
