"""The graph of recordings of others: unchanged replays, what removing a cause saves, and pairs of recordings."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from gpu_trace_advisor.analysis.device_window import DeviceWindow, views
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.errors import AdviseError
from gpu_trace_advisor.graph import Edge, Point
from gpu_trace_advisor.graph.build import build_graph
from gpu_trace_advisor.ingest import read
from gpu_trace_advisor.replay.changes import Change, scaled, without_host, without_waits
from gpu_trace_advisor.replay.fixes import FIXES, saving
from gpu_trace_advisor.replay.sweep import replay, wall_ns

from tests.pairs import PAIRS, measure

pytestmark = pytest.mark.real

GENERIC = ("framework", "python", "launch-call", "host-unknown")
# Damaged or cut recordings whose replay rests on what no edge explains: no saving is shown for them.
DISTRUSTED = (
    "sglang-qwen3-8b-decode-graph-mi300x", "torchrec-graph-rank0of16-a100-80g",  # kernels are missing
    # PyTorch programs of whose host's work nothing is recorded but calls.
    "cs336-small-windows-rtx5000ada.sqlite", "shiftvit-cold-a4000", "shiftvit-warm-a4000",
)  # fmt: skip
# 13.3 s after the only launch, marked on a thread that launches nothing: no edge ends there, and nothing is to be saved.
AFTER_THE_LAST_CALL = "triton-example-a100"


@cache
def all_studies(folder: Path) -> tuple[DeviceWindow, ...]:
    """Of every recording with device work, in its default window."""
    found: list[DeviceWindow] = []
    for path in sorted(folder.rglob("*")):
        if path.name.endswith((".json.gz", ".json", ".sqlite")) and path.is_file():
            try:
                found += views(read(path), Request())[0]
            except AdviseError:
                continue
    return tuple(found)


@pytest.fixture(scope="module")
def recorded(real_traces: Path) -> tuple[DeviceWindow, ...]:
    return all_studies(real_traces / "traces" if (real_traces / "traces").is_dir() else real_traces)


@pytest.fixture(scope="module")
def folder(real_traces: Path) -> Path:
    return real_traces


def one(recorded: tuple[DeviceWindow, ...], name: str) -> DeviceWindow:
    return next(view for view in recorded if view.trace.name.startswith(name))


def saved(view: DeviceWindow, change: Change) -> int:
    before = wall_ns(view.program.unchanged, view.window, view.index)
    return before - wall_ns(replay(change(view.graph)), view.window, view.index)


def test_unchanged(recorded: tuple[DeviceWindow, ...]) -> None:
    assert len(recorded) > 30
    wrong = {s.trace.name: s.trust for s in recorded if abs(s.trust.error) > 0.02}
    assert not wrong


def test_trust(recorded: tuple[DeviceWindow, ...]) -> None:
    distrusted = {s.trace.name.split(".json")[0] for s in recorded if not s.trust.enough}
    assert distrusted == set(DISTRUSTED)


@pytest.mark.parametrize(
    "causes", [("dataloader",), GENERIC, ("allocator",), ("module-load",), ("host-sync",)], ids=lambda causes: causes[0]
)
def test_without_a_cause_it_saves_at_least_the_causes_share(
    recorded: tuple[DeviceWindow, ...], causes: tuple[str, ...]
) -> None:
    wrong = []
    for view in recorded:
        if not view.trust.enough or view.trace.name.startswith(AFTER_THE_LAST_CALL):
            continue
        graph = view.graph
        # Without its synchronisations alone a program waits in the next copy that blocks instead (DLRM): all waits.
        waits = np.unique(graph.ref[graph.point == Point.RETURN]).tolist()
        less = saved(view, without_waits(waits) if causes == ("host-sync",) else without_host(causes))
        share = sum(view.causes.get(cause, 0) for cause in causes)
        if less < share - 0.005 * view.window.wall_ns:
            wrong.append((view.trace.name, share / view.window.wall_ns, less / view.window.wall_ns))
    assert not wrong


def test_no_replay_is_faster_than_the_busiest_stream(recorded: tuple[DeviceWindow, ...]) -> None:
    for view in recorded:
        if view.window.kind != "gpu":
            continue
        graph = view.graph
        mine = graph.device == view.index
        # Operations of a stream may overlap (programmatic dependent launch): what overlaps counts once.
        gaps = graph.weight_ns[(graph.kind == Edge.STREAM) | (graph.kind == Edge.GRAPH)]
        overlap = -int(np.minimum(gaps, 0).sum())
        busiest = max(int(graph.duration_ns[mine & (graph.stream == s)].sum()) for s in np.unique(graph.stream[mine]))
        everything = without_waits(np.unique(graph.ref[graph.point == Point.RETURN]).tolist())
        done = replay(without_host((*GENERIC, "dataloader", "allocator", "module-load"))(everything(graph)))
        assert wall_ns(done, view.window, view.index) >= busiest - overlap, view.trace.name


def test_critical_paths_add_up(recorded: tuple[DeviceWindow, ...]) -> None:
    for view in recorded:
        path = view.critical_path
        assert sum(path.by_cause.values()) == path.span_ns == view.window.wall_ns, view.trace.name


def test_hand_over_edges_decide_what_a_loader_costs(
    recorded: tuple[DeviceWindow, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    view = one(recorded, "resnet50-numworkers0-A")
    unchanged = wall_ns(view.program.unchanged, view.window, 0)
    without = wall_ns(replay(without_host(["dataloader"])(view.graph)), view.window, 0)
    assert without / unchanged - 1 < -0.25
    monkeypatch.setattr("gpu_trace_advisor.graph.host_edges.HANDOVER_HOLE_NS", 10**15)
    rows = np.unique(view.graph.ref[view.graph.point == Point.MARK])
    missing = build_graph(view.program.attributions, rows)
    before = wall_ns(replay(missing), view.window, 0)
    assert abs(before / view.window.wall_ns - 1) < 0.002  # which an unchanged replay does not show
    assert wall_ns(replay(without_host(["dataloader"])(missing)), view.window, 0) / before - 1 > -0.10


def test_queue_depth(recorded: tuple[DeviceWindow, ...]) -> None:
    view = one(recorded, "cs336-2.7B-eager")
    half = scaled(np.arange(len(view.graph.row)), 0.5)
    left = 1 - saved(view, half) / wall_ns(view.program.unchanged, view.window, 0)
    assert left == pytest.approx(0.50, abs=0.01)


def test_graphs_give_nothing_where_the_device_is_busy(recorded: tuple[DeviceWindow, ...]) -> None:
    view = one(recorded, "cs336-2.7B-eager")
    what = saving(view.graph, [FIXES["cuda-graphs"]], view.window, 0)
    assert what.high_ns < 0.001 * what.wall_ns


@pytest.mark.parametrize("name", ["torchrec-graph", "rank0", "rank3"])
def test_graphs_are_refused_where_a_wait_without_a_name_decides(recorded: tuple[DeviceWindow, ...], name: str) -> None:
    assert FIXES["cuda-graphs"].refuses(one(recorded, name).graph)


def test_graphs_are_priced_where_launches_are_what_is_slow(recorded: tuple[DeviceWindow, ...]) -> None:
    for name, least in (("bert-small", 0.6), ("vllm-gptoss", 0.7), ("transformer-tutorial-a", 0.5)):
        view = one(recorded, name)
        assert FIXES["cuda-graphs"].refuses(view.graph) is None
        assert saving(view.graph, [FIXES["cuda-graphs"]], view.window, 0).low_ns > least * view.window.wall_ns


def test_pairs(folder: Path) -> None:
    """Of the compiled model more than chains of kernels was fused: there it took less than was promised."""
    results = [result for pair in PAIRS for result in measure(pair, folder)]
    assert [result.what for result in results if not result.holds] == [
        f"2.7 B model, A100: compiled with CUDA graphs instead of eager; {part}" for part in ("a step", "the window")
    ]
    assert all(result.width <= 0.4 for result in results)
    assert all(abs(result.error) <= 0.21 for result in results)
    assert [round(result.after, 1) for result in results[::2]] == [126.2, 30.8, 30.8, 781.1]
    assert [round(result.after, 1) for result in results[1::2]] == [846.5, 307.7, 307.7, 7811.6]
