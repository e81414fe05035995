"""A lesson in ten minutes: what `lab new` writes can be built, verified, started and graded."""

import os
import shutil
import subprocess
import sys

import pytest

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

    assert lab("new", "k16_warp_tiles")[0] == 0
    manifest = copy / "lab" / "course.toml"
    lines = [line for line in manifest.read_text().splitlines() if '"k16_warp_tiles"' not in line]
    manifest.write_text("\n".join(lines).replace('"k15_quantized_matmul"',
                                                 '"k15_quantized_matmul", "k16_warp_tiles"'))
    for words, says in ((("build", "k16"), "solutions/layer1_kernels/k16_warp_tiles.ipynb"),
                        (("build", "k16", "--check"), "0 stale"),
                        (("verify", "k16"), "0 failed"),
                        (("start", "k16"), "1 lesson(s) on the desk")):
        code, said = lab(*words)
        assert code == 0 and says in said, said
    code, said = lab("rename", "k16/double", "twice")
    assert code == 0 and "written layer1_kernels/k16_warp_tiles.md" in said, said
    code, said = lab("build", "k16")
    assert code == 0, said
    code, said = lab("verify", "k16")
    assert code == 0 and "0 failed" in said, said
    assert "double" not in (copy / "layer1_kernels" / "k16_warp_tiles.py").read_text()
    for words, says in ((("rename", "k16/double", "x"), "has no exercise 'double'"),
                        (("rename", "k16/twice", "a b"), "is not a name for a function"),
                        (("rename", "k16/twice", "twice"), "already defines twice")):
        code, said = lab(*words)
        assert code == 2 and says in said, said
    code, said = lab("check", "k16")
    assert code == 3 and "not attempted" in said, said
