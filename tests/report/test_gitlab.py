"""A GitLab code-quality report: the fields that GitLab requires, each finding once, where SARIF puts it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from gpu_trace_advisor.cli import main


def test_each_finding_has_what_gitlab_requires(
    sample: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    trace = str(sample("training-dataloader"))
    assert main([trace, "--format", "gitlab"]) == 0
    issues = json.loads(capsys.readouterr().out)
    assert main([trace, "--format", "json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [issue["check_name"] for issue in issues] == [finding["rule"] for finding in findings]
    assert len({issue["fingerprint"] for issue in issues}) == len(issues)
    for issue in issues:
        assert issue["description"] and issue["location"]["path"] == "training-dataloader.json.gz"
        assert issue["severity"] in ("info", "minor", "major") and issue["location"]["lines"]["begin"] == 1
    assert issues[0]["severity"] == "major"  # half of the time
