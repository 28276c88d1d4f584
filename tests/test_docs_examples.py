"""Examples of the pages, run as they are written: limits, tests of a suite, what a workflow does."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.readme import ROOT

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DEMO = "traces/training-dataloader.json.gz"


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [code for found, code in BLOCK.findall(text) if found == language]


def run(*command: str, at: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    if not (at / "traces").exists():
        (at / "traces").symlink_to(ROOT / "traces")
    bare = {name: value for name, value in os.environ.items() if name not in ("CI", "GITHUB_ACTIONS")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command, cwd=at, env={**bare, "PATH": path, **environment}, capture_output=True, text=True, check=False
    )


def test_the_budget_holds_for_the_demo_trace_twice(tmp_path: Path) -> None:
    (budget,) = blocks("docs/gate.md", "toml")
    (tmp_path / "budget.toml").write_text(budget, encoding="utf-8")
    for _ in range(2):
        done = run(sys.executable, "-m", "gpu_trace_advisor", DEMO, "--budget", "budget.toml", at=tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_the_tests_of_a_suite_pass_twice(tmp_path: Path) -> None:
    """The one that holds the demo trace to a limit: the other records."""
    example = next(code for code in blocks("docs/gate.md", "python") if "def test_saved" in code)
    (tmp_path / "test_efficiency.py").write_text(example, encoding="utf-8")
    for _ in range(2):
        done = run(
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-k",
            "saved",
            "--import-mode=importlib",
            at=tmp_path,
        )
        assert done.returncode == 0, done.stdout
        assert "1 passed" in done.stdout


def workflows() -> dict[str, Any]:
    """File name -> what a YAML parser makes of it; `on` is its word for true."""
    found = {}
    for code in blocks("docs/integrations.md", "yaml"):
        name = code.partition("\n")[0].removeprefix("# ")
        found[name] = yaml.safe_load(code)
    return found


def test_the_workflow_calls_the_action_with_inputs_that_it_has() -> None:
    files = workflows()
    action, workflow = files[".github/actions/efficiency/action.yml"], files[".github/workflows/efficiency.yml"]
    assert action["runs"]["using"] == "composite"
    assert all({"run", "shell"} <= set(step) for step in action["runs"]["steps"])
    assert workflow[True] == "pull_request"
    (job,) = workflow["jobs"].values()
    (call,) = (step for step in job["steps"] if step.get("uses", "").startswith("./"))
    assert Path(call["uses"], "action.yml") == Path(".github/actions/efficiency/action.yml")
    required = {name for name, one in action["inputs"].items() if one.get("required")}
    assert required <= set(call["with"]) <= set(action["inputs"])
    used = set(re.findall(r"inputs\.(\w+)", str(action["runs"])))
    assert used == set(action["inputs"])


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ({}, 2),
        ({"against": DEMO}, 0),
        ({"budget": "strict.toml"}, 1),
        ({"against": "traces/gpu-bound-training.json.gz"}, 2),
    ],
)
def test_what_the_action_runs_does_what_it_says(inputs: dict[str, str], code: int, tmp_path: Path) -> None:
    """Neither a recording to compare with nor limits; the recording itself; a limit that is broken; another program."""
    action = workflows()[".github/actions/efficiency/action.yml"]
    step = action["runs"]["steps"][-1]
    values = {name: one.get("default", "") for name, one in action["inputs"].items()} | {"trace": DEMO} | inputs
    environment = {
        name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda match: values[match[1]], text)
        for name, text in step["env"].items()
    }
    (tmp_path / "strict.toml").write_text('[limits]\nidle = "1%"\n', encoding="utf-8")
    done = run("bash", "-c", step["run"], at=tmp_path, **environment)
    assert done.returncode == code, done.stdout + done.stderr
