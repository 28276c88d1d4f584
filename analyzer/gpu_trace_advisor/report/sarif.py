"""The findings as SARIF 2.1.0, for what shows results beside code: at the Python line where stacks were recorded.

A path is given as it lies below the current folder: the longest end of the recorded one that is a file there, so that a
trace from another machine finds its lines. Where there is none, the result is about the trace.
"""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath
from typing import Any

from gpu_trace_advisor.advice.model import Advice, place_of
from gpu_trace_advisor.advice.verdict import device_label
from gpu_trace_advisor.analysis.summary import PYTHON_LINE
from gpu_trace_advisor.report.redaction import shareable
from gpu_trace_advisor.rulekit.rule import Finding, Source
from gpu_trace_advisor.sanitize import json_text
from gpu_trace_advisor.trace.model import Note
from gpu_trace_advisor.units import between, duration

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
WARNING = 0.05  # of the wall: a saving that reaches it is a warning, a smaller one a note


def render(advice: Advice, version: str, folder: Path) -> str:
    """SARIF as JSON text; `folder` is where the program's files are looked for."""
    rules: dict[str, Finding] = {}
    for finding in advice.findings:
        rules.setdefault(finding.rule, finding)
    place = {rule: i for i, rule in enumerate(rules)}
    walls = {place_of(device): device for device in advice.devices}
    results = []
    for finding in advice.findings:
        device = walls.get(place_of(finding))
        wall = device.wall_ns if device else 0
        results.append(_result(finding, place[finding.rule], wall, device_label(device) if device else "", folder))
    driver = {"name": "advise", "version": version, "rules": [_rule(f) for f in rules.values()]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": not advice.errors,
                "toolExecutionNotifications": [
                    *({"level": "error", "message": {"text": shareable(error)}} for error in advice.errors),
                    *map(_notification, advice.health),
                ],
            }
        ],
        "results": results,
        "properties": {"verdict": shareable(advice.verdict)},
    }
    return json_text({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}) + "\n"


def _rule(finding: Finding) -> dict[str, Any]:
    sources = [_source(source) for source in finding.sources]
    help_text = "\n".join([*(f"Verify: {finding.verify}" for _ in (1,) if finding.verify), *sources])
    return {
        "id": finding.rule,
        "name": "".join(word.capitalize() for word in finding.rule.split("-")),
        "shortDescription": {"text": finding.title},
        "fullDescription": {"text": f"{finding.title}. See advise --explain {finding.rule}."},
        "help": {"text": help_text or finding.title},
        "defaultConfiguration": {"level": "warning"},
    }


def _source(source: Source) -> str:
    corrected = f" Corrected: {source.correction}" if source.correction else ""
    return f"{source.title}, {source.section}: {source.says}{corrected}"


def _result(finding: Finding, rule: int, wall: int, device: str, folder: Path) -> dict[str, Any]:
    text = f"{shareable(finding.message)} {shareable(finding.how)}"
    if finding.saving_ns:
        text = f"Saves {between(finding.saving_ns)} of {duration(wall)} ({finding.grade}). {text}"
    big = finding.saving_ns is not None and finding.saving_ns[1] >= WARNING * wall
    lines = list(dict.fromkeys(item.python or item.what for item in finding.evidence))
    found = [location for line in lines if (location := python_location(line, folder))]
    about = {"logicalLocations": [{"name": device, "kind": "resource"}]} if device else {}
    trace = {"physicalLocation": {"artifactLocation": {"uri": uri(shareable(finding.file))}}, **about}
    key = hashlib.sha256(f"{finding.rule}\0{device}\0{lines[:1]}".encode()).hexdigest()[:32]
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule,
        "level": "warning" if big else "note",
        "message": {"text": text},
        "locations": [*found[:1], *([] if found else [trace])],
        "relatedLocations": [
            {"id": i, **location} for i, location in enumerate([*found[1:], *([trace] if found else [])], 1)
        ],
        "partialFingerprints": {"finding/v1": key},
        "properties": {
            "grade": finding.grade,
            "confidence": finding.confidence,
            "saving_ns": list(finding.saving_ns) if finding.saving_ns else None,
            "evidence": [
                {"what": shareable(e.what), "count": e.count, "ns": e.ns, "at_ms": list(e.at_ms)}
                for e in finding.evidence
            ],
        },
    }


def _notification(note: Note) -> dict[str, Any]:
    return {"level": "note", "descriptor": {"id": note.code}, "message": {"text": shareable(note.message)}}


def python_location(line: str, folder: Path) -> dict[str, Any] | None:
    """Where a recorded frame `file.py(12): function` lies; None for what is no frame."""
    found = PYTHON_LINE.match(line)
    if not found:
        return None
    path = below(found["file"], folder)
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": uri(path), "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": max(int(found["line"]), 1)},
        },
        "logicalLocations": [{"name": shareable(found["function"]), "kind": "function"}],
    }


def below(recorded: str, folder: Path) -> str:
    """The longest end of a recorded path that is a file in the folder; else without what it tells of the machine."""
    parts = [part for part in PurePosixPath(recorded.replace("\\", "/")).parts if part not in ("/", "..", ".")]
    for first in range(len(parts)):
        if (folder / Path(*parts[first:])).is_file():
            return "/".join(parts[first:])
    return shareable(recorded)


def uri(path: str) -> str:
    """A relative reference of a path: what may not stand in one is spelt out, byte by byte where it is no UTF-8."""
    from urllib.parse import quote

    return quote(path.replace("\\", "/"), safe="/", errors="surrogateescape")
