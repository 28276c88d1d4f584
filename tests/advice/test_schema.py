"""The JSON Schema of an Advice: what the tool writes is valid, and the schema's words are the code's."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_trace_advisor.advice.model
import pytest
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.advice.model import Advice, WhatIf
from gpu_trace_advisor.attribution import SIDES
from gpu_trace_advisor.attribution.causes import CATEGORIES, CAUSES, IDLE
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.trace.kernel_names import CLASS_NAMES
from jsonschema import Draft202012Validator

from tests.advices import advice, device, host

SCHEMA: dict[str, Any] = json.loads(
    Path(gpu_trace_advisor.advice.model.__file__).with_name("advice.schema.json").read_text(encoding="utf-8")
)
VALIDATOR = Draft202012Validator(SCHEMA)
SAMPLES = (
    "training-dataloader", "comm-bound-rank-rank1", "graph-decode-nsys", "sync-storm", "pageable-copies", "cpu-mlp",
    "multi-stream-events-nsys", "cold-start",
)  # fmt: skip


def errors(document: object) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(document)]


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["schema"]["const"] == gpu_trace_advisor.advice.model.SCHEMA


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_said_of_a_sample_is_valid(name: str, sample: Callable[[str], Path]) -> None:
    found = advise_traces([read(sample(name))])
    assert errors(json.loads(json.dumps(found.to_json()))) == []


@pytest.mark.parametrize(
    "value",
    [
        advice(device()),
        advice(device(rank=0), device(rank=1, process=7, gpu=3)),
        advice(device(queued_gap_ns=None, memory=None, step_ns=None, steps=(), window="1.5:20", gaps=())),
        advice(host=host()),
        dataclasses.replace(advice(device()), errors=("b.json: not a trace",)),
        dataclasses.replace(
            advice(device()),
            what_if=(
                WhatIf("a.json", None, None, 0, ("dataloader",), (1, 2), (1.0, 1.1), ("the loader keeps up",), ()),
                WhatIf(
                    "a.json",
                    None,
                    None,
                    1,
                    ("graph",),
                    None,
                    None,
                    (),
                    (("graph", "communication has its own stream"),),
                ),
            ),
        ),
    ],
    ids=["device", "ranks", "little", "host", "errors", "what-if"],
)
def test_values_made_by_hand_are_valid(value: Advice) -> None:
    assert errors(value.to_json()) == []


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("devices", 0, "wall_ns"), 1.5),
        (("devices", 0, "attribution", 0, "cause"), "bad-luck"),
        (("devices", 0, "surprise"), 1),
        (("devices", 0, "copies", 0, "bytes"), -1),
        (("phase", "name"), "guess"),
        (("schema",), 2),
    ],
    ids=["float", "cause", "additional", "negative", "phase", "version"],
)
def test_what_breaks_the_schema_is_found(place: tuple[str | int, ...], value: object) -> None:
    document = json.loads(json.dumps(advice(device()).to_json()))
    at = document
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    assert len(errors(document)) == 1


def test_the_words_are_those_of_the_code() -> None:
    item = SCHEMA["$defs"]["item"]["properties"]
    assert item["cause"]["enum"] == list(CAUSES)
    assert set(item["category"]["enum"]) == set(CATEGORIES)
    assert item["side"]["enum"] == [*SIDES, None]
    assert SCHEMA["$defs"]["on_path"]["properties"]["cause"]["enum"] == list(CAUSES)
    assert SCHEMA["$defs"]["part"]["properties"]["cause"]["enum"] == list(IDLE)
    assert SCHEMA["$defs"]["part"]["properties"]["side"]["enum"] == list(SIDES)
    assert SCHEMA["$defs"]["kernel"]["properties"]["class"]["enum"] == list(CLASS_NAMES)


def test_everything_in_the_schema_is_described() -> None:
    bare = [
        f"{name}.{key}"
        for name, part in [("", SCHEMA), *SCHEMA["$defs"].items()]
        for key, value in part["properties"].items()
        if "description" not in value and "$ref" not in value and "oneOf" not in value
    ]
    assert bare == []
