"""Traces handed to Holistic Trace Analysis: the same idle and compute time, and where the two differ by definition."""

from collections.abc import Callable
from pathlib import Path

import gpu_trace_advisor
import pytest

pytestmark = [pytest.mark.hta, pytest.mark.filterwarnings("ignore")]

# Compute in one, communication in the other: HTA knows collectives by "nccl" at the start of the name alone.
OTHER_COLLECTIVES = {"vllm-gptoss-mxfp4-eager-tp8-b200.json.gz"}
SAMPLES = ("eager-decode", "sync-storm", "pageable-copies", "graph-decode-nsys")
REAL = (
    "kineto/bert-small-h100.json.gz",
    "kineto/resnet50-numworkers0-A-v100.json.gz",
    "kineto/memcpy-pinned-overlap-a100-40g.json.gz",
    "kineto/dlrm-8rank-v100/rank0.json.gz",
    "kineto/vllm-gptoss-mxfp4-eager-tp8-b200.json.gz",
    "nsys/cs336-2.7B-eager-fp32-a100-80g.sqlite",
    "nsys/saxpy-mpi-a100-40g.sqlite",
)


def temporal(path: Path) -> dict[str, float]:
    """HTA's temporal breakdown of one trace, µs."""
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis

    row = BreakdownAnalysis.get_temporal_breakdown(gpu_trace_advisor.read(path).to_hta(), visualize=False).iloc[0]
    return {key: float(row[f"{key}_time(us)"]) for key in ("idle", "compute", "non_compute", "kernel")}


def ours(path: Path) -> dict[str, float]:
    """The same four from `advise`, µs."""
    device = gpu_trace_advisor.advise(path, request=gpu_trace_advisor.Request(window="gpu")).devices[0]
    return {
        "idle": device.idle_ns / 1000,
        "compute": device.compute_ns / 1000,
        "non_compute": (device.communication_ns + device.copy_ns) / 1000,
        "kernel": device.wall_ns / 1000,
    }


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_agree(name: str, sample: Callable[[str], Path]) -> None:
    assert temporal(sample(name)) == pytest.approx(ours(sample(name)), abs=0.01)


@pytest.mark.real
@pytest.mark.parametrize("name", REAL)
def test_real_traces_agree(name: str, real_traces: Path) -> None:
    path = real_traces / "traces" / name
    theirs, mine = temporal(path), ours(path)
    assert theirs["idle"] == pytest.approx(mine["idle"], abs=0.01)
    assert theirs["kernel"] == pytest.approx(mine["kernel"], abs=0.01)
    if path.name not in OTHER_COLLECTIVES:
        assert theirs == pytest.approx(mine, abs=0.01)
    else:
        assert theirs["compute"] > mine["compute"]


@pytest.mark.real
def test_its_own_reader_rounds(real_traces: Path, tmp_path: Path) -> None:
    """HTA's reader, on the same file: starts rounded up and ends rounded down to whole µs turn into idle time."""
    from hta.analyzers.breakdown_analysis import BreakdownAnalysis
    from hta.common.trace import Trace as HtaTrace

    path = real_traces / "traces" / "kineto" / "bert-small-h100.json.gz"
    own = HtaTrace(trace_files={0: str(path)}, trace_dir=str(tmp_path))
    own.parse_traces(use_multiprocessing=False)
    rounded = float(BreakdownAnalysis.get_temporal_breakdown(own, visualize=False).iloc[0]["idle_time(us)"])
    assert rounded > ours(path)["idle"] + 20  # 60 kernels lose up to 2 µs each


def test_launches_stay_linked(sample: Callable[[str], Path]) -> None:
    """HTA's index_correlation points from each operation to its launch call and back."""
    trace = gpu_trace_advisor.read(sample("eager-decode"))
    frame = trace.to_hta(rank=3).traces[3]
    kernels = frame[frame["stream"] != -1]
    back = frame.loc[kernels["index_correlation"], "index_correlation"]
    assert (back.to_numpy() == kernels["index"].to_numpy()).all()
    assert len(kernels) == len(trace.operations)
