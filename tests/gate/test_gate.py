"""Budgets: limits at, under and over what is found, their units, scopes and levels, and what a broken one says."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.attribution.causes import CATEGORIES, CAUSES
from gpu_trace_advisor.cli import main
from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.gate.budget import BROKEN, OK, UNKNOWN, Check, budget, check, load
from gpu_trace_advisor.gate.metrics import GETTERS
from gpu_trace_advisor.parallel import advise as spread
from gpu_trace_advisor.quantity import NUMBER, SHARE, SIZE, TIME, parse, shown
from gpu_trace_advisor.trace.model import Note

from tests.advices import MS, advice, device, host

# Of tests.advices.device: 100 ms in 2 steps of 50 ms; 50 ms kernels, 6 ms copies, 44 ms idle: 30 dataloader,
# 8 framework, 4 python, 2 launch-latency; 20 kernels, 21 operations and launches, 2 syncs, 60 MB copied.
FOUND = {
    "idle": (0.44, 22 * MS), "busy": (0.56, 28 * MS), "compute": (0.50, 25 * MS), "copies": (0.06, 3 * MS),
    "dataloader": (0.30, 15 * MS), "dataloader-gaps": (0.30, 15 * MS), "launch-overhead": (0.14, 7 * MS),
    "framework": (0.08, 4 * MS), "idle-host": (0.42, 21 * MS), "idle-submitted": (0.02, MS),
    "exposed-communication": (0, 0), "unattributed": (0, 0),
}  # fmt: skip
COUNTED = {
    "kernels": 10, "operations": 10.5, "launches": 10.5, "syncs": 1, "blocking-copies": 0.5, "copy-calls": 0.5,
    "allocations": 0, "graph-launches": 0,
}  # fmt: skip


def checks(limits: dict[str, Any], of: Advice | None = None, **settings: Any) -> list[Check]:
    return check((of or advice(device())).to_json(), budget({"limits": limits, **settings}, "b.toml"))


def one(limits: dict[str, Any], of: Advice | None = None, **settings: Any) -> Check:
    (found,) = checks(limits, of, **settings)
    return found


# Found


@pytest.mark.parametrize("name", FOUND)
def test_parts_as_shares_and_as_times_per_step(name: str) -> None:
    share, ns = FOUND[name]
    assert one({name: "100%"}).found == pytest.approx(share)
    assert one({name: "1 s"}).found == pytest.approx(ns)


@pytest.mark.parametrize("name", COUNTED)
def test_counts_per_step(name: str) -> None:
    found = one({name: 1000})
    assert (found.found, found.per) == (COUNTED[name], "step")


@pytest.mark.parametrize(
    ("name", "limit", "value"),
    [
        ("step", "1 s", 50 * MS),
        ("wall", "1 s", 100 * MS),
        ("copied", "1 GB", 30e6),
        ("peak-allocated", "10 GiB", 2**30),
        ("peak-reserved", "10 GiB", 2**31),
        ("launch-latency-call", "1 ms", 6_000),
        ("launches.linked", 100, 21),
        ("replay.error", 1, 0.01),
    ],
)
def test_what_is_not_per_step(name: str, limit: object, value: float) -> None:
    assert one({name: limit}).found == value


def test_without_steps_counts_and_times_are_of_the_window() -> None:
    found = one({"kernels": 30}, advice(device(window="gpu", steps=(), step_ns=None)))
    assert (found.found, found.per) == (20, "window")


def test_every_cause_and_category_can_be_limited() -> None:
    assert {*CATEGORIES, *CAUSES} <= set(GETTERS)


# Held


@pytest.mark.parametrize(
    ("limits", "status"),
    [
        ({"idle": "44.1%"}, OK),
        ({"idle": "44%"}, OK),
        ({"idle": "43.9%"}, BROKEN),
        ({"framework": "4.001 ms"}, OK),
        ({"framework": "4 ms"}, OK),
        ({"framework": "3999 us"}, BROKEN),
        ({"kernels": 11}, OK),
        ({"kernels": 10}, OK),
        ({"kernels": 9}, BROKEN),
        ({"busy": {"min": "55.9%"}}, OK),
        ({"busy": {"min": "56%"}}, OK),
        ({"busy": {"min": "56.1%"}}, BROKEN),
        ({"kernels": {"equals": 10}}, OK),
        ({"kernels": {"equals": 11}}, BROKEN),
        ({"kernels": {"equals": 9}}, BROKEN),
        ({"peak_allocated": "1 GiB"}, OK),
        ({"peak_allocated": "1023 MiB"}, BROKEN),
    ],
)
def test_under_at_and_over_a_limit(limits: dict[str, Any], status: str) -> None:
    assert one(limits).status == status


def test_a_broken_limit_says_limit_found_excess_and_evidence() -> None:
    assert one({"dataloader": "20%"}).line() == (
        "dataloader 30 %, limit ≤ 20 % (device 0): exceeded by 10 points; first: gap of 32.000 ms at 2.500 ms of the "
        "trace before Memcpy HtoD: dataloader 30.000 ms in next(loader), train.py(7): main"
    )
    assert one({"kernels": 8}).line() == (
        "kernels per step 10, limit ≤ 8 (device 0): exceeded by 2; first: most often ampere_sgemm_128x64_tn: 20 calls"
    )
    assert one({"copies": "1 ms"}).line() == (
        "copies per step 3 ms, limit ≤ 1 ms (device 0): exceeded by 2 ms; first: HtoD pageable: 1 copies, 6.000 ms"
    )


def test_levels() -> None:
    broken = one({"idle": {"max": "1%", "level": "warn"}})
    assert (broken.status, broken.fails) == (BROKEN, False)
    assert one({"idle": {"max": "1%", "level": "error"}}, level="warn").fails
    assert not one({"idle": "1%"}, level="warn").fails
    assert checks({"idle": {"max": "1%", "level": "off"}}) == []


def test_a_span_is_two_limits() -> None:
    assert [c.status for c in checks({"kernels": {"min": 5, "max": 9}})] == [OK, BROKEN]


# Unknown


def test_what_the_trace_cannot_tell_fails_unless_allowed() -> None:
    silent = advice(device(memory=None, step_ns=None, steps=(), window="gpu"))
    found = one({"peak-allocated": "1 GiB"}, silent)
    assert (found.found, found.status, found.fails) == (None, UNKNOWN, True)
    assert "unknown, limit ≤ 1 GiB (device 0): the trace does not tell" in found.line()
    assert one({"step": "1 ms"}, silent).line().endswith("no steps are marked")
    assert not one({"peak-allocated": "1 GiB"}, silent, unknown="ok").fails
    assert not one({"peak-allocated": {"max": "1 GiB", "unknown": "ok"}}, silent).fails


@pytest.mark.parametrize("code", ["lost-kernels", "partial", "unrecorded-graph-nodes"])
def test_lost_records_make_what_rests_on_them_unknown(code: str) -> None:
    damaged = replace(advice(device()), health=(Note(code, "records were lost", 3),))
    assert [c.status for c in checks({"idle": "99%", "kernels": 99, "step": "1 s"}, damaged)] == [UNKNOWN, UNKNOWN, OK]


def test_of_the_host_alone_only_its_steps_are_known() -> None:
    found = checks({"step": "50 ms", "idle": "99%"}, advice(host=host()))
    assert [(c.status, c.where) for c in found] == [(OK, "host"), (UNKNOWN, "host")]
    assert found[1].evidence == "no GPU work was recorded"


# Devices and recordings


def test_each_device_is_held_by_itself() -> None:
    two = advice(device(), device(device=1, kernels=60))
    assert [(c.where, c.status) for c in checks({"kernels": 20}, two)] == [("device 0", OK), ("device 1", BROKEN)]


def test_limits_of_one_device_or_rank() -> None:
    two = advice(device(rank=0), device(rank=1, device=1, kernels=60))
    plain = {"device": {"1": {"kernels": 20}}, "rank": {"0": {"kernels": 20}}}
    found = check(two.to_json(), budget(plain, "b.toml"))
    assert [(c.where, c.status) for c in found] == [("rank 1 device 1", BROKEN), ("rank 0 device 0", OK)]


@pytest.mark.parametrize(
    ("aggregate", "operator", "found"),
    [
        ("median", "max", 10), ("worst", "max", 30), ("best", "max", 5),
        ("median", "min", 10), ("worst", "min", 5), ("best", "min", 30),
    ],
)  # fmt: skip
def test_several_recordings_of_a_device_are_one_number(aggregate: str, operator: str, found: float) -> None:
    runs = advice(*(device(file=f"{n}.json", kernels=n) for n in (10, 60, 20)))
    assert one({"kernels": {operator: 1}}, runs, aggregate=aggregate).found == found


# Written wrongly


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[limits]\nidel = '10%'", r"idel: no such thing to limit; did you mean .*idle"),
        ("[limits]\nidle = 10", r'idle = 10: give it as "10%" or "0.5 ms"'),
        ("[limits]\nidle = '10 apples'", "expected a number such as"),
        ("[limits]\nidle = true", "expected a number"),
        (f"[limits]\nkernels = {'9' * 400}", "kernels: a number of 400 digits; expected one such as 200"),
        (f"[limits]\nkernels = {'9' * 5000}", "not TOML"),
        ("[limits]\nidle = '1,5%'", "idle = '1,5%': expected a number such as"),
        ("[limits]\nstep = '1234,567 ms'", "expected a number such as"),
        ("[limits]\nkernels = '10%'", "kernels = '10%': give it as 200"),
        ("[limits]\nidle = {maximum = '10%'}", r"maximum: no such thing to limit; did you mean max"),
        ("[limits]\nidle = {level = 'warn'}", "idle: no limit; give max, min, equals"),
        ("[limits]\nidle = {max = '1%', level = 'fatal'}", "level = 'fatal': expected error, warn, off"),
        ("limit = 3", "limit: no such thing to limit; did you mean limits"),
        ("unknown = 'maybe'\n[limits]\nidle = '1%'", "unknown = 'maybe': expected error, ok"),
        ("[device.first]\nidle = '1%'", r"\[device.first\]: expected a number"),
        ("device = 3", r"\[device\]: expected a table"),
        ("", "no limits in it"),
        ("[limits", "not TOML"),
    ],
)
def test_a_wrong_budget_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "b.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadUsage, match=message) as raised:
        load(path)
    assert str(path) in str(raised.value)


def test_a_missing_file_a_device_and_a_path_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="No such file"):
        load(tmp_path / "none.toml")
    plain = advice(device()).to_json()
    with pytest.raises(BadUsage, match="kernels of device 7: the recording has no such device, only 0"):
        check(plain, budget({"device": {"7": {"kernels": 1}}}, "b.toml"))
    with pytest.raises(BadUsage, match=r"did you mean launches\.linked"):
        check(plain, budget({"limits": {"launches.lnked": 1}}, "b.toml"))


# Quantities


@pytest.mark.parametrize(
    ("text", "value", "dimension"),
    [
        ("10%", 0.1, SHARE), ("0.5 ms", 5e5, TIME), ("20us", 2e4, TIME), ("3 µs", 3e3, TIME), ("2s", 2e9, TIME),
        ("2 GiB", 2**31, SIZE), ("1 GB", 1e9, SIZE), (200, 200, NUMBER), ("1_000", 1000, NUMBER), (".5", 0.5, NUMBER),
        ("1,234,567.5 ms", 1.2345675e12, TIME), ("12,000", 12000, NUMBER),
    ],
)  # fmt: skip
def test_quantities_as_they_are_written(text: object, value: float, dimension: str) -> None:
    found = parse(text, (SHARE, TIME, SIZE, NUMBER), "x")
    assert found.value == pytest.approx(value)
    assert found.dimension == dimension


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [
        (0.1, SHARE, "10 %"), (123456, TIME, "123.5 µs"), (999, TIME, "999 ns"), (2.5e9, TIME, "2.5 s"),
        (2**30, SIZE, "1 GiB"), (10, SIZE, "10 B"), (1234, NUMBER, "1,234"), (0.5, NUMBER, "0.5"),
    ],
)  # fmt: skip
def test_quantities_as_they_are_shown(value: float, dimension: str, text: str) -> None:
    assert shown(value, dimension) == text


# The command


@pytest.fixture
def trace(sample: Callable[[str], Path]) -> str:
    """4 steps of 29.821 ms; 60.658 of 128.398 ms in the loader; 49 kernels a step."""
    return str(sample("training-dataloader"))


@pytest.mark.parametrize(
    ("text", "code", "complaint"),
    [
        ("[limits]\nkernels = 49\nstep = '29.821 ms'", 0, ""),
        ("[limits]\nkernels = 48", 1, "broken: kernels per step 49, limit ≤ 48 (device 0): exceeded by 1"),
        ("[limits]\nkernels = {max = 48, level = 'warn'}", 0, ""),
        ("[limits]\ndataloader = '47%'", 1, "broken: dataloader 47.24 %"),
        ("[limits]\ndataloader = '47.3%'", 0, ""),
        ("[limits]\nkernels = 48\nidle='1%'", 1, "(and 1 more)"),
        ("[limits]\nkernls = 48", 2, "did you mean kernels"),
    ],
)
def test_exit_codes_and_the_line_on_standard_error(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, complaint: str
) -> None:
    path = tmp_path / "budget.toml"
    path.write_text(text, encoding="utf-8")
    assert main([trace, "--budget", str(path)]) == code
    out, err = capsys.readouterr()
    assert complaint in err
    assert err.count("\n") == (1 if code else 0)
    assert ("BUDGET" in out) == (code != 2)


def test_an_interruption_keeps_no_limit(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = spread.look_at
    monkeypatch.setattr(spread, "look_at", lambda *given, **more: real(*given, **more)._replace(interrupted=True))
    (tmp_path / "b.toml").write_text("[limits]\nidle = '100%'", encoding="utf-8")
    assert main([trace, "--budget", str(tmp_path / "b.toml")]) == 130
    assert capsys.readouterr() == ("", "advise: interrupted\n")


def test_unknown_alone_is_inconclusive(
    sample: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "budget.toml"
    path.write_text("[limits]\npeak-reserved = '1 GiB'\n", encoding="utf-8")
    assert main([str(sample("sync-storm-nsys")), "--budget", str(path)]) == 2
    assert "unknown: peak-reserved unknown, limit ≤ 1 GiB" in capsys.readouterr().err
    path.write_text("unknown = 'ok'\n[limits]\npeak-reserved = '1 GiB'\n", encoding="utf-8")
    assert main([str(sample("sync-storm-nsys")), "--budget", str(path)]) == 0


def test_json_and_annotations(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "budget.toml"
    path.write_text("[limits]\nkernels = 48\nidle = {max = '1%', level = 'warn'}\n", encoding="utf-8")
    assert main([trace, "--budget", str(path), "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)["budget"]["checks"]
    assert {key: found[0][key] for key in ("name", "found", "limit", "by", "fails")} == {
        "name": "kernels", "found": 49, "limit": 48, "by": 1, "fails": True,
    }  # fmt: skip
    assert (found[1]["name"], found[1]["status"], found[1]["fails"]) == ("idle", "broken", False)
    assert main([trace, "--budget", str(path), "--format", "github"]) == 1
    error, warning = capsys.readouterr().out.splitlines()
    assert error.startswith(
        "::error title=training-dataloader.json.gz%3A budget broken%3A kernels::kernels per step 49"
    )
    assert warning.startswith("::warning title=")
    path.write_text("[limits]\nkernels = 49\n", encoding="utf-8")
    assert main([trace, "--budget", str(path), "--format", "github"]) == 0
    assert capsys.readouterr().out == "::notice title=training-dataloader.json.gz%3A within budget::1 limits kept\n"
