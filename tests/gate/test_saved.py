"""What was saved earlier is believed only where every value is what this project writes."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_trace_advisor.advice.model
import pytest
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.errors import AdviseError, BadUsage
from gpu_trace_advisor.gate.baseline import Baseline, load_runs
from gpu_trace_advisor.gate.budget import load
from gpu_trace_advisor.gate.check import gates
from gpu_trace_advisor.gate.run_record import Run, run_of
from gpu_trace_advisor.gate.saved import decoded, first_violation
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.report.text.gate import github, render_comparison
from gpu_trace_advisor.sanitize import json_text
from jsonschema import Draft202012Validator

from tests.hostile import mutated

SCHEMA: dict[str, Any] = json.loads(
    Path(gpu_trace_advisor.advice.model.__file__).with_name("advice.schema.json").read_text("utf-8")
)


@pytest.fixture(scope="module")
def plain(sample: Callable[[str], Path]) -> dict[str, Any]:
    """An advice in JSON."""
    found: dict[str, Any] = json.loads(json_text(advise_traces([read(sample("mlp-training"))]).to_json()))
    return found


@pytest.fixture(scope="module")
def baseline(plain: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A baseline in JSON."""
    path = tmp_path_factory.mktemp("baseline") / "a.json"
    Baseline().with_run(run_of(plain)).write(path)
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_the_schema_is_read_as_jsonschema_reads_it(seed: int, plain: dict[str, Any]) -> None:
    validator = Draft202012Validator(SCHEMA)
    rng = random.Random(seed)
    changed = mutated(plain, rng, 1)
    assert bool(first_violation(changed, SCHEMA)) == (not validator.is_valid(changed))


@pytest.mark.parametrize("seed", range(150))
def test_whatever_stands_in_a_saved_file_is_compared_or_refused(
    seed: int, plain: dict[str, Any], baseline: dict[str, Any], tmp_path: Path
) -> None:
    rng = random.Random(seed)
    path = tmp_path / "before.json"
    path.write_text(json.dumps(mutated(rng.choice((plain, baseline)), rng)), encoding="utf-8")
    try:
        outcome = gates(plain, [path], None, Request())
    except AdviseError as error:
        assert "\n" not in str(error) and len(str(error)) < 1000
        return
    assert outcome.exit_code in (0, 1, 2)
    json.loads(json_text(outcome.to_json()))
    assert outcome.comparison is not None
    assert render_comparison(outcome.comparison, color=False, width=80)
    github(outcome.comparison, (), "a.json")


@pytest.mark.parametrize(
    ("number", "says"),
    [("Infinity", "no number"), ("NaN", "no number"), ("1e999", "out of all range"), ("1" * 400, "beyond 64 bits"),
     (str(2**63), "beyond 64 bits"), ("-1", "not at least 0"), ("true", "not integer"), ('"3"', "not integer")],
)  # fmt: skip
@pytest.mark.parametrize("saved", ["advice", "baseline"])
def test_a_number_that_is_none(
    number: str, says: str, saved: str, plain: dict[str, Any], baseline: dict[str, Any], tmp_path: Path
) -> None:
    text = json.dumps(plain if saved == "advice" else baseline)
    key = '"wall_ns": '
    at = text.index(key) + len(key)
    end = text.index(",", at)
    path = tmp_path / "before.json"
    path.write_text(text[:at] + number + text[end:], encoding="utf-8")
    if saved == "baseline":
        says = says.replace("not at least 0", "below zero").replace("not integer", "not a whole number")
    with pytest.raises(BadUsage, match=says):
        load_runs(path, Request())


def test_a_count_written_as_a_fraction_is_that_count(plain: dict[str, Any], tmp_path: Path) -> None:
    """`6.0` is an integer to JSON Schema, and other programs that pass a file on write it so."""
    before, after = tmp_path / "before.json", tmp_path / "after.json"
    before.write_text(json.dumps(plain), encoding="utf-8")
    device = plain["devices"][0]
    given = {
        **plain,
        "devices": [{**device, "operations": float(device["operations"]), "kernels": float(device["kernels"])}],
    }
    after.write_text(json.dumps(given), encoding="utf-8")
    assert ".0," in after.read_text("utf-8")
    assert load_runs(after, Request())[0].lanes == load_runs(before, Request())[0].lanes
    assert gates({**plain, "devices": [{**device, "operations": 7}]}, [after], None, Request()).comparison is not None


def test_a_deep_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    path.write_text('{"schema": ' + "[" * 100_000 + "]" * 100_000 + "}", encoding="utf-8")
    with pytest.raises(BadUsage, match="nested too deep"):
        load_runs(path, Request())


def test_a_run_comes_back_as_it_was(plain: dict[str, Any]) -> None:
    run = run_of(plain)
    assert decoded(json.loads(json_text(run.to_json())), Run, "") == run


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[device."²"]\nidle = "10%"', "expected a number"),
        ('[device."٣"]\nidle = "10%"', "expected a number"),
        ('[device."1²"]\nidle = "10%"', "expected a number"),
        (f'[rank.{"9" * 5000}]\nidle = "10%"', "expected a number"),
        ("a = " + "[" * 3000 + "]" * 3000, "nested too deep"),
        ("a = " + "{b = " * 3000 + "1" + "}" * 3000, "nested too deep"),
        ("[limits]\nidle = inf", "expected a number"),
        ("[limits]\nidle = nan", "expected a number"),
        (f"[limits]\nlaunches = {'9' * 5000}", "not TOML"),
        ("[limits]\nidle = \ud800", "no UTF-8"),
        ("limits = 3", "expected a table"),
        ("device = 3", "expected a table"),
        ("[limits]\nidle = {max = {}}", "expected a number"),
        ("[limits]\nidle = []", "expected a number"),
        ("level = []\n[limits]\nidle = 1", "expected"),
        ("x = 1979-05-27", "no such thing|there are"),
    ],
)
def test_a_budget_that_is_none(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "budget.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(BadUsage, match=says) as refused:
        load(path)
    assert len(str(refused.value)) < 1000
