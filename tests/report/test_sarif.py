"""SARIF 2.1.0: what the schema requires, and the lines where they lie."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_trace_advisor.cli import main
from gpu_trace_advisor.report import sarif
from gpu_trace_advisor.rulekit.rule import Evidence
from gpu_trace_advisor.trace.model import Note

from tests.advices import MS, advice, device
from tests.report.test_markdown import finding

LEVELS = {"none", "note", "warning", "error"}


def check_required(log: dict[str, Any]) -> None:
    """What sarif-schema-2.1.0 requires of the objects that are used here."""
    assert log["version"] == "2.1.0"
    assert log["$schema"].startswith("https://")
    for run in log["runs"]:
        driver = run["tool"]["driver"]
        assert isinstance(driver["name"], str)
        ids = [rule["id"] for rule in driver["rules"]]
        assert len(set(ids)) == len(ids)
        for rule in driver["rules"]:
            for key in ("shortDescription", "fullDescription", "help"):
                assert rule[key]["text"]
            assert rule["defaultConfiguration"]["level"] in LEVELS
        for invocation in run["invocations"]:
            assert isinstance(invocation["executionSuccessful"], bool)
            for note in invocation["toolExecutionNotifications"]:
                assert note["message"]["text"]
                assert note["level"] in LEVELS
        for result in run["results"]:
            assert result["message"]["text"]
            assert result["level"] in LEVELS
            assert ids[result["ruleIndex"]] == result["ruleId"]
            assert all(isinstance(value, str) for value in result["partialFingerprints"].values())
            for location in [*result["locations"], *result["relatedLocations"]]:
                place = location["physicalLocation"]
                assert place["artifactLocation"]["uri"]
                assert not place["artifactLocation"]["uri"].startswith(("/", "file:"))
                assert place.get("region", {"startLine": 1})["startLine"] >= 1
            numbers = [location["id"] for location in result["relatedLocations"]]
            assert len(set(numbers)) == len(numbers)


def rendered(*findings: Any, folder: Path, **changes: Any) -> dict[str, Any]:
    log: dict[str, Any] = json.loads(sarif.render(advice(device(), findings=findings, **changes), "1.2.3", folder))
    check_required(log)
    return log


def test_a_finding_is_a_result_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").touch()
    evidence = (Evidence("next", 1, MS, (0.5,), "/home/alice/job/src/train.py(7): main"),)
    (result,) = rendered(finding(evidence=evidence), folder=tmp_path)["runs"][0]["results"]
    (place,) = result["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "src/train.py"
    assert place["physicalLocation"]["region"] == {"startLine": 7}
    assert place["logicalLocations"] == [{"name": "main", "kind": "function"}]
    assert result["level"] == "warning"
    assert result["message"]["text"].startswith("Saves 20.0 ms to 30.0 ms of 100.0 ms (modelled).")
    assert "alice" not in json.dumps(result)


def test_without_a_line_it_is_about_the_trace(tmp_path: Path) -> None:
    evidence = (Evidence("kernel", 1, MS, (0.5,)),)
    (result,) = rendered(finding(evidence=evidence, saving_ns=None), folder=tmp_path)["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "run.json"
    assert result["level"] == "note"


def test_one_rule_for_several_findings_and_health_as_notifications(tmp_path: Path) -> None:
    run = rendered(
        finding(), finding(device=1), folder=tmp_path, health=(Note("cut", "cut off", 1),), errors=("x: bad",)
    )["runs"][0]
    assert len(run["tool"]["driver"]["rules"]) == 1
    invocation = run["invocations"][0]
    assert not invocation["executionSuccessful"]
    assert [note["level"] for note in invocation["toolExecutionNotifications"]] == ["error", "note"]


def test_no_finding_is_an_empty_list(tmp_path: Path) -> None:
    assert rendered(folder=tmp_path)["runs"][0]["results"] == []


@pytest.mark.parametrize(
    ("path", "expected"), [("a b/ü.py", "a%20b/%C3%BC.py"), ("a\\b.py", "a/b.py"), ("\udcff.py", "%FF.py")]
)
def test_uri(path: str, expected: str) -> None:
    assert sarif.uri(path) == expected


def test_the_command_writes_it(sample: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "advise.sarif"
    assert main([str(sample("training-dataloader")), "--format", "sarif", "-o", str(path)]) == 0
    log = json.loads(path.read_text(encoding="utf-8"))
    check_required(log)
    assert log["runs"][0]["results"]
