"""Odd recordings of others, forty to forty-nine: what has to be said of each, worked out by hand from how it was made."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_trace_advisor.cli import main

pytestmark = pytest.mark.real
Json = dict[str, Any]
FIRST, LAST = 40, 49


@pytest.fixture
def advised(real_traces: Path, capsys: pytest.CaptureFixture[str]) -> Callable[[str], Json]:
    """The JSON of a case, by its number."""

    def of(number: str) -> Json:
        (folder,) = (real_traces / "cases").glob(f"{number}-*")
        (file,) = [path for path in folder.iterdir() if path.suffix in (".json", ".sqlite")]
        assert main([str(file), "--format", "json"]) == 0
        found: Json = json.loads(capsys.readouterr().out)
        return found

    return of


def share(advice: Json, cause: str) -> float:
    """Percent of the wall of the first device."""
    (device,) = advice["devices"]
    found: int = sum(part["ns"] for part in device["attribution"] if part["cause"] == cause)
    return 100 * found / int(device["wall_ns"])


def rules(advice: Json) -> list[str]:
    return [finding["rule"] for finding in advice["findings"]]


def test_serving_engines_communicate(advised: Callable[[str], Json]) -> None:
    advice = advised("40")
    assert share(advice, "exposed-communication") == pytest.approx(42.5, abs=0.1)
    assert advice["devices"][0]["communication_ns"] == 8_500_000
    assert rules(advice)[0] in ("comm-overlap", "tensor-parallel", "ddp-bucket", "largest-loss")


def test_computing_on_the_cpu(advised: Callable[[str], Json]) -> None:
    advice = advised("41")
    assert share(advice, "cpu-compute") == pytest.approx(39.4, abs=0.1)
    assert rules(advice)[0] == "cpu-compute" and "torch-compile" not in rules(advice)


def test_failed_calls(real_traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(real_traces / "cases" / "42-failed-call" / "trace.sqlite")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("advise: trace.sqlite: 2 CUDA calls failed, first cudaDeviceSynchronize with error 700")
    assert "cudaErrorIllegalAddress" in line


def test_capture_of_a_graph(advised: Callable[[str], Json]) -> None:
    advice = advised("43")
    assert "cuda-graphs" not in rules(advice) and not any(f["saving_ns"] for f in advice["findings"])
    assert "lost-kernels" not in {note["code"] for note in advice["health"]}


def test_kernels_of_inductor(advised: Callable[[str], Json]) -> None:
    classes: dict[str, int] = {}
    for kernel in advised("44")["devices"][0]["kernels_by_name"]:
        classes[kernel["class"]] = classes.get(kernel["class"], 0) + kernel["ns"]
    assert not {"attention", "normalization"} & classes.keys()
    assert classes["gemm"] == sum(classes.values()) / 2


def test_a_fallback_is_no_median(real_traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(real_traces / "cases" / "45-latency-fallback" / "trace.json"), "-v"])
    assert "launch to start on an idle GPU 60.0 µs" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("number", "most"), [("46", 0.10), ("48", 0.0003)])
def test_nothing_is_saved_from_what_is_unknown(number: str, most: float, advised: Callable[[str], Json]) -> None:
    advice = advised(number)
    wall = advice["devices"][0]["wall_ns"]
    assert all(finding["saving_ns"][1] <= most * wall for finding in advice["findings"] if finding["saving_ns"])


def test_communication_speaks_in_an_unknown_phase(advised: Callable[[str], Json]) -> None:
    advice = advised("47")
    assert share(advice, "exposed-communication") == pytest.approx(60, abs=1)
    assert advice["phase"]["name"] == "unknown" and rules(advice)[0] in ("comm-overlap", "ddp-bucket")


def test_managed_memory(advised: Callable[[str], Json]) -> None:
    advice = advised("49")
    assert share(advice, "page-fault") > 0 and "managed-memory" in rules(advice)
    (finding,) = [finding for finding in advice["findings"] if finding["rule"] == "managed-memory"]
    assert "cudaMemPrefetchAsync" in finding["how"]


def test_every_case_has_its_test(real_traces: Path) -> None:
    numbers = {int(path.name[:2]) for path in (real_traces / "cases").iterdir() if path.name[:2].isdigit()}
    assert {number for number in numbers if number >= FIRST} == set(range(FIRST, LAST + 1))
