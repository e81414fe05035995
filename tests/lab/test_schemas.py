"""Files that other programs read, against those programs' schemas.

GitHub's and Kubernetes' as packages have them.
Of devcontainer.json (containers.dev) and of VS Code's tasks.json, whose schema the editor makes
when it starts, the part that our files use, written down from the specification and from the
editor's documentation.
"""

import copy
import json
import subprocess
import sys

import jsonschema
import pytest
import yaml

from lab.course import ROOT

GRADING = ROOT / "lab" / "grading"
WORKFLOWS = [*sorted((ROOT / ".github" / "workflows").glob("*.yml")),
             *(GRADING / name for name in ("classroom.yml", "matrix.yml", "edition/check.yml"))]
JOB = GRADING / "kubernetes.yaml"
KUBERNETES = "1.37"


def table(required=(), **fields):
    """The schema of an object that has these fields and no other."""
    return {"type": "object", "properties": fields, "required": list(required),
            "additionalProperties": False}


TEXT, NUMBER, TRUTH = ({"type": kind} for kind in ("string", "integer", "boolean"))
COUNT = {"type": "integer", "minimum": 1}
SIZE = {"type": "string", "pattern": r"^\d+([tgmk]b)?$"}
CONTAINER = table(
    ["build"], name=TEXT, build=table(["dockerfile"], dockerfile=TEXT, context=TEXT),
    hostRequirements=table(cpus=COUNT, memory=SIZE, storage=SIZE), postCreateCommand=TEXT,
    remoteEnv={"type": "object", "additionalProperties": {"type": ["string", "null"]}},
    customizations={"type": "object"})
PLACES = ("absolute", "relative", "autoDetect", "search")
MATCHER = table(
    ["pattern"], owner=TEXT, source=TEXT, severity={"enum": ["error", "warning", "info"]},
    fileLocation={"anyOf": [{"enum": PLACES}, {"type": "array", "minItems": 2, "maxItems": 2,
                                               "prefixItems": [{"enum": PLACES}, TEXT]}]},
    pattern=table(["regexp", "file", "message"], regexp={"type": "string", "format": "regex"},
                  file=NUMBER, line=NUMBER, column=NUMBER, message=NUMBER))
TASK = table(
    ["label", "type", "command"], label=TEXT, type={"enum": ["shell", "process"]}, command=TEXT,
    args={"type": "array", "items": TEXT}, isBackground=TRUTH,
    group=table(["kind"], kind={"enum": ["build", "test", "none"]}, isDefault=TRUTH),
    presentation=table(reveal={"enum": ["always", "silent", "never"]}, focus=TRUTH, echo=TRUTH,
                       clear=TRUTH, panel={"enum": ["shared", "dedicated", "new"]}),
    problemMatcher={"anyOf": [MATCHER, {"type": "array", "items": MATCHER}]})
TASKS = table(["version", "tasks"], version={"const": "2.0.0"},
              tasks={"type": "array", "minItems": 1, "items": TASK})
EDITORS = {".devcontainer/devcontainer.json": (CONTAINER, ("hostRequirements",)),
           ".vscode/tasks.json": (TASKS, ("tasks", 0, "problemMatcher"))}


@pytest.mark.parametrize("name", EDITORS)
def test_an_editors_file_is_one_by_its_schema(name):
    schema, place = EDITORS[name]
    right = json.loads((ROOT / name).read_text("utf-8"))
    rules = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    assert [str(error) for error in rules.iter_errors(right)] == []
    broken = copy.deepcopy(right)
    inner = broken
    for key in place:
        inner = inner[key]
    inner["misspelt"] = inner.pop(next(iter(inner)))
    assert not rules.is_valid(broken)


def workflow_refusal(path):
    """What GitHub's schema of workflows says against a file; empty where it is right."""
    pytest.importorskip("check_jsonschema", reason="not proven here: needs check-jsonschema")
    done = subprocess.run([sys.executable, "-P", "-m", "check_jsonschema", "--builtin-schema",
                           "vendor.github-workflows", path], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_one_by_githubs_schema(path, tmp_path):
    assert workflow_refusal(path) == ""
    broken = tmp_path / path.name
    broken.write_text(path.read_text("utf-8").replace("runs-on:", "runs_on:"))
    assert "runs_on" in workflow_refusal(broken)


def job_refusal(job):
    """What Kubernetes' own schema says against a manifest; empty where it is right."""
    schemas = pytest.importorskip("kubernetes_validate",
                                  reason="not proven here: needs kubernetes-validate")
    try:
        schemas.validate(job, KUBERNETES, strict=True)
    except schemas.ValidationError as error:
        return str(error)
    return ""


def test_the_pods_are_a_job_by_kubernetes_schema():
    job = yaml.safe_load(JOB.read_text("utf-8"))
    assert job_refusal(job) == ""
    job["spec"]["completionsMode"] = job["spec"].pop("completionMode")
    assert "completionsMode" in job_refusal(job)
