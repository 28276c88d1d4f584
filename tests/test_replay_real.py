"""The graph of recordings of others: unchanged replays, what removing a cause saves, and pairs of recordings."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from analyzer.changes import Change, scaled, without_host, without_waits
from analyzer.errors import AdviseError
from analyzer.fixes import FIXES, saving
from analyzer.graph import Edge, Point
from analyzer.graph.build import build_graph
from analyzer.ingest import read
from analyzer.replay import replay, wall_ns
from analyzer.study import Request, Study, studies
from tests.pairs import PAIRS, measure

pytestmark = pytest.mark.real

GENERIC = ("framework", "python", "launch-call", "host-unknown")
# Damaged or cut recordings whose replay rests on what no edge explains: no saving is shown for them.
DISTRUSTED = ("sglang-qwen3-8b-decode-graph-mi300x", "torchrec-graph-rank0of16-a100-80g")
# 13.3 s after the only launch, marked on a thread that launches nothing: no edge ends there, and nothing is to be saved.
AFTER_THE_LAST_CALL = "triton-example-a100"


@cache
def all_studies(folder: Path) -> tuple[Study, ...]:
    """Of every recording with device work, in its default window."""
    found: list[Study] = []
    for path in sorted(folder.rglob("*")):
        if path.name.endswith((".json.gz", ".json", ".sqlite")) and path.is_file():
            try:
                found += studies(read(path), Request())[0]
            except AdviseError:
                continue
    return tuple(found)


@pytest.fixture(scope="module")
def recorded(real_traces: Path) -> tuple[Study, ...]:
    return all_studies(real_traces / "traces" if (real_traces / "traces").is_dir() else real_traces)


@pytest.fixture(scope="module")
def folder(real_traces: Path) -> Path:
    return real_traces


def one(recorded: tuple[Study, ...], name: str) -> Study:
    return next(study for study in recorded if study.trace.name.startswith(name))


def saved(study: Study, change: Change) -> int:
    before = wall_ns(study.program.unchanged, study.window, study.index)
    return before - wall_ns(replay(change(study.graph)), study.window, study.index)


def test_unchanged(recorded: tuple[Study, ...]) -> None:
    assert len(recorded) > 30
    wrong = {s.trace.name: s.trust for s in recorded if abs(s.trust.error) > 0.02}
    assert not wrong


def test_trust(recorded: tuple[Study, ...]) -> None:
    distrusted = {s.trace.name.split(".json")[0] for s in recorded if not s.trust.enough}
    assert distrusted == set(DISTRUSTED)


@pytest.mark.parametrize(
    "causes", [("dataloader",), GENERIC, ("allocator",), ("module-load",), ("host-sync",)], ids=lambda causes: causes[0]
)
def test_without_a_cause_it_saves_at_least_the_causes_share(
    recorded: tuple[Study, ...], causes: tuple[str, ...]
) -> None:
    wrong = []
    for study in recorded:
        if not study.trust.enough or study.trace.name.startswith(AFTER_THE_LAST_CALL):
            continue
        graph = study.graph
        # Without its synchronisations alone a program waits in the next copy that blocks instead (DLRM): all waits.
        waits = np.unique(graph.ref[graph.point == Point.RETURN]).tolist()
        less = saved(study, without_waits(waits) if causes == ("host-sync",) else without_host(causes))
        share = sum(study.causes.get(cause, 0) for cause in causes)
        if less < share - 0.005 * study.window.wall_ns:
            wrong.append((study.trace.name, share / study.window.wall_ns, less / study.window.wall_ns))
    assert not wrong


def test_no_replay_is_faster_than_the_busiest_stream(recorded: tuple[Study, ...]) -> None:
    for study in recorded:
        if study.window.kind != "gpu":
            continue
        graph = study.graph
        mine = graph.device == study.index
        # Operations of a stream may overlap (programmatic dependent launch): what overlaps counts once.
        gaps = graph.weight_ns[(graph.kind == Edge.STREAM) | (graph.kind == Edge.GRAPH)]
        overlap = -int(np.minimum(gaps, 0).sum())
        busiest = max(int(graph.duration_ns[mine & (graph.stream == s)].sum()) for s in np.unique(graph.stream[mine]))
        everything = without_waits(np.unique(graph.ref[graph.point == Point.RETURN]).tolist())
        done = replay(without_host((*GENERIC, "dataloader", "allocator", "module-load"))(everything(graph)))
        assert wall_ns(done, study.window, study.index) >= busiest - overlap, study.trace.name


def test_critical_paths_add_up(recorded: tuple[Study, ...]) -> None:
    for study in recorded:
        path = study.critical_path
        assert sum(path.by_cause.values()) == path.span_ns == study.window.wall_ns, study.trace.name


def test_hand_over_edges_decide_what_a_loader_costs(
    recorded: tuple[Study, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = one(recorded, "resnet50-numworkers0-A")
    unchanged = wall_ns(study.program.unchanged, study.window, 0)
    without = wall_ns(replay(without_host(["dataloader"])(study.graph)), study.window, 0)
    assert without / unchanged - 1 < -0.25
    monkeypatch.setattr("analyzer.graph.host_edges.HANDOVER_HOLE_NS", 10**15)
    rows = np.unique(study.graph.ref[study.graph.point == Point.MARK])
    missing = build_graph(study.program.attributions, rows)
    before = wall_ns(replay(missing), study.window, 0)
    assert abs(before / study.window.wall_ns - 1) < 0.002  # which an unchanged replay does not show
    assert wall_ns(replay(without_host(["dataloader"])(missing)), study.window, 0) / before - 1 > -0.10


def test_queue_depth(recorded: tuple[Study, ...]) -> None:
    study = one(recorded, "cs336-2.7B-eager")
    half = scaled(np.arange(len(study.graph.row)), 0.5)
    left = 1 - saved(study, half) / wall_ns(study.program.unchanged, study.window, 0)
    assert left == pytest.approx(0.50, abs=0.01)


def test_graphs_give_nothing_where_the_device_is_busy(recorded: tuple[Study, ...]) -> None:
    study = one(recorded, "cs336-2.7B-eager")
    what = saving(study.graph, [FIXES["cuda-graphs"]], study.window, 0)
    assert what.high_ns < 0.001 * what.wall_ns


@pytest.mark.parametrize("name", ["torchrec-graph", "rank0", "rank3"])
def test_graphs_are_refused_where_a_wait_without_a_name_decides(recorded: tuple[Study, ...], name: str) -> None:
    assert FIXES["cuda-graphs"].refuses(one(recorded, name).graph)


def test_graphs_are_priced_where_launches_are_what_is_slow(recorded: tuple[Study, ...]) -> None:
    for name, least in (("bert-small", 0.6), ("vllm-gptoss", 0.7), ("transformer-tutorial-a", 0.5)):
        study = one(recorded, name)
        assert FIXES["cuda-graphs"].refuses(study.graph) is None
        assert saving(study.graph, [FIXES["cuda-graphs"]], study.window, 0).low_ns > least * study.window.wall_ns


def test_pairs(folder: Path) -> None:
    results = [measure(pair, folder) for pair in PAIRS]
    assert sum(result.holds for result in results) >= 2
    assert all(result.width <= 0.4 for result in results)
    assert all(abs(result.error) <= 0.21 for result in results)
    assert [round(result.after, 1) for result in results] == [126.3, 30.8, 781.2]
