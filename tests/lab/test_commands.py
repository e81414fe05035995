"""Commands that a floor registers by entry point, found by `lab` in an installed package."""

import os
import subprocess
import sys

import pytest

from lab.course import ROOT

MODULE = '''
"""A floor's own command."""
import typer
from lab.course import CourseError

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def greet(name: str, loud: bool = False):
    """Say hello."""
    if name == "absent":
        raise CourseError("no one is there")
    print(f"hello {name}{'!' * loud}")
    raise typer.Exit(3 if loud else 0)
'''


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """lab(words) -> the finished process, where a package with three commands is installed."""
    folder = tmp_path_factory.mktemp("installed")
    (folder / "floor.py").write_text(MODULE)
    info = folder / "floor-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: floor\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[lab.commands]\ngreet = floor:app\n"
                                           "lost = no_such_module:app\nempty = floor:nothing\n")

    def one(*words):
        paths = os.pathsep.join((str(ROOT), str(folder)))
        return subprocess.run([sys.executable, "-m", "lab.cli", *words], capture_output=True,
                              text=True, env={**os.environ, "PYTHONPATH": paths})
    return one


def test_it_gets_its_words_and_its_exit_code_is_ours(lab):
    done = lab("greet", "Mira", "--loud")
    assert (done.returncode, done.stdout, done.stderr) == (3, "hello Mira!\n", "")


def test_its_own_help(lab):
    done = lab("greet", "--help")
    assert done.returncode == 0 and "Say hello." in done.stdout and "lab greet" in done.stdout


def test_it_is_listed_without_being_imported(lab):
    done = lab("--help")
    assert done.returncode == 0
    for name in ("greet", "lost", "check"):
        assert f"  {name} " in done.stdout
    assert "From no_such_module." in done.stdout


def test_the_floors_own_say_what_they_do(lab):
    done = lab("--help")
    for words in ("serve    Serve a model with OpenAI's API",
                  "load     Measure a server under load",
                  "get      Fetch a model from the Hugging Face hub"):
        assert words in done.stdout


@pytest.mark.parametrize("words, says", [
    (["lost"], "the command lost, registered as no_such_module:app, cannot be loaded: "
               "No module named 'no_such_module'"),
    (["empty"], "the command empty, registered as floor:nothing, cannot be loaded"),
    (["greet", "absent"], "no one is there"),
    (["greet"], "Missing argument 'name'"),
    (["greet", "Mira", "--soft"], "--soft")])
def test_what_goes_wrong_is_one_line(lab, words, says):
    done = lab(*words)
    assert done.returncode == 2 and says in done.stderr and done.stdout == ""
    assert done.stderr.startswith("lab: ") and len(done.stderr.splitlines()) == 1
