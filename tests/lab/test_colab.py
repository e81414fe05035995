"""The course on Google Colab and Binder, as far as it can be tried anywhere else."""

import json
import re
import subprocess
import sys
import types

import pytest

from lab import colab, course, device, doctor
from lab.author import build
from lab.course import ROOT
from lab.desk import ipynb
from lab.simulator import KernelError, nvrtc

K01 = course.find("k01")


def first_cells():
    return {kind: ipynb.source(notebook["cells"][0]) for kind, notebook in
            zip(("stub", "solution"), build.make(K01), strict=True)}


def test_elsewhere_a_notebooks_first_cell_opens_the_lesson():
    from IPython.core.inputtransformer2 import TransformerManager

    code = TransformerManager().transform_cell(first_cells()["stub"])
    names = {}
    exec(code, names)           # `get_ipython` is not defined here: nothing asks for it
    assert names["lesson"].lesson == K01


def test_there_it_brings_the_course_first(monkeypatch):
    from IPython.core.inputtransformer2 import TransformerManager

    calls = []
    shell = types.SimpleNamespace(system=calls.append, run_line_magic=lambda *a: calls.append(a))
    monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
    exec(TransformerManager().transform_cell(first_cells()["stub"]),
         {"get_ipython": lambda: shell})
    clone, script = calls
    [address] = re.findall(r"git clone (\S+)\.git ", (ROOT / "README.md").read_text("utf-8"))
    assert clone == f"git clone -q --depth 1 {address} three-floors"
    assert script == ("run", "three-floors/lab/colab.py k01_vector_add")
    assert "colab" not in first_cells()["solution"]


@pytest.fixture
def here(monkeypatch):
    """{package: version} of what is installed."""
    versions = {}
    monkeypatch.setattr(colab, "installed", versions.get)
    return versions


def test_what_fits_stays_and_the_rest_comes_as_tested(here):
    here |= {"torch": "2.12.1+cu126", "numpy": "1.26.4", "filelock": "3.0"}
    lines = list(colab.constraints())
    tested = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert "torch==2.12.1+cu126" in lines and "filelock==3.0" in lines
    changed = [line.split("==")[0] for line in tested if line not in lines]
    assert sorted(changed) == ["filelock", "torch"], "numpy 1.26 is too old for the course"


@pytest.mark.parametrize("fails, says", [
    ("pip", "could not be set up here"), (None, "Your answers go to")])
def test_it_installs_advises_and_goes_to_the_desk(here, monkeypatch, tmp_path, capsys, fails, says):
    commands = []

    def run(command, **settings):
        commands.append(command)
        if fails in command:
            raise subprocess.CalledProcessError(1, command)

    desk = tmp_path / "work" / "layer1_kernels"
    desk.mkdir(parents=True)
    (desk / "k01_vector_add.ipynb").write_text("{}")
    monkeypatch.setattr(colab, "subprocess", types.SimpleNamespace(
        run=run, CalledProcessError=subprocess.CalledProcessError))
    monkeypatch.setattr("lab.setup.driver_version", lambda: None)
    monkeypatch.setattr("os.chdir", commands.append)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"))
    monkeypatch.setattr(colab, "ROOT", tmp_path)
    colab.main("k01_vector_add")
    assert says in capsys.readouterr().out
    if fails is None:
        pip, doctor, start, folder = commands
        assert pip[-2:] == ["--editable", str(tmp_path)] and doctor[-1] == "doctor"
        assert start[-2:] == ["start", "k01_vector_add"] and folder == desk


def test_another_torch_is_told(here, monkeypatch, tmp_path, capsys):
    here["torch"] = "2.4.0"
    monkeypatch.setattr(colab, "install", lambda extra: here.update(torch="2.13.0"))
    monkeypatch.setattr(colab.subprocess, "run", lambda *a, **k: None)
    monkeypatch.setattr("os.chdir", lambda folder: None)
    desk = tmp_path / "work" / "layer1_kernels"
    desk.mkdir(parents=True)
    (desk / "k01_vector_add.ipynb").write_text("{}")
    monkeypatch.setattr(colab, "ROOT", tmp_path)
    colab.main("k01_vector_add")
    assert "cannot run on torch 2.4.0: it is 2.13.0 now" in capsys.readouterr().out


@pytest.mark.parametrize("capability, says", [
    ((7, 5), "Triton and k17, g10 need capability 8.0"), ((8, 0), ""), ((9, 0), "")])
def test_an_old_gpu_is_told(monkeypatch, capability, says):
    """Colab's T4 is of capability 7.5."""
    monkeypatch.setattr("lab.device.gpu", lambda: device.Gpu("a GPU", capability, 2**34))
    answer = doctor.gpu()
    assert says in answer["do"] and answer["ok"] is (not says)


def test_which_lessons_cuda_c_an_old_gpu_cannot_run():
    failed = []
    for lesson in course.lessons():
        if "cuda" in lesson.sources:
            try:
                nvrtc.assemble(lesson.sources["cuda"], str(lesson.path(".cu")), arch="sm_75")
            except KernelError as error:
                assert "requires .target sm_80" in str(error)
                failed.append(lesson.id[:3])
    assert sorted(failed) == sorted(doctor.NEED_AMPERE)


def test_binder_makes_what_the_makefile_makes():
    lines = (ROOT / ".binder" / "postBuild").read_text("utf-8").splitlines()
    target = lines[lines.index("set -e") + 1].split()
    assert subprocess.run([*target, "-n"], cwd=ROOT, capture_output=True).returncode == 0
    python = (ROOT / ".binder" / "runtime.txt").read_text("utf-8")
    devcontainer = (ROOT / ".devcontainer" / "Dockerfile").read_text("utf-8")
    assert python.strip().replace("-", ":") in devcontainer
    notebook = json.loads(K01.notebook.read_text("utf-8"))
    assert notebook["metadata"]["kernelspec"]["name"] == lines[-1].split()[-1]
