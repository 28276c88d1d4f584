"""The findings as a GitLab code-quality report, made of the SARIF log: the same places, texts and fingerprints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.report import sarif
from gpu_trace_advisor.sanitize import json_text

SEVERITY = {"warning": "major", "note": "minor"}


def render(advice: Advice, version: str, folder: Path) -> str:
    """The report as JSON text; `folder` is where the program's files are looked for."""
    (run,) = json.loads(sarif.render(advice, version, folder))["runs"]
    return json_text([_issue(result) for result in run["results"]]) + "\n"


def _issue(result: dict[str, Any]) -> dict[str, Any]:
    place = result["locations"][0]["physicalLocation"]
    return {
        "type": "issue",
        "check_name": result["ruleId"],
        "description": result["message"]["text"],
        "severity": SEVERITY[result["level"]] if result["properties"]["saving_ns"] else "info",
        "fingerprint": result["partialFingerprints"]["finding/v1"],
        "location": {
            "path": place["artifactLocation"]["uri"],
            "lines": {"begin": place.get("region", {}).get("startLine", 1)},
        },
    }
