"""One way through for recordings, wherever they are read: here, in other processes, on a cluster."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.cli import to_json
from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.parallel import job as jobs_
from gpu_trace_advisor.parallel import pool
from gpu_trace_advisor.parallel.advise import look_at
from gpu_trace_advisor.parallel.job import Job, Result, Tell, work
from gpu_trace_advisor.parallel.pool import Processes
from gpu_trace_advisor.trace.model import Trace

from tests.ranks.test_ranks import looked, run_of, training, write


def told(*given: Path, request: Request | None = None, **more: Any) -> str:
    """The Advice as JSON text."""
    return to_json(look_at(list(map(str, given)), request or Request(), **more).advice)


def test_the_advice_is_the_same_wherever_the_recordings_are_read(tmp_path: Path) -> None:
    """No option, one, two and four processes, and any order of the files."""
    folder = write(training(slow=2, phase="compute"), tmp_path / "run")
    (folder / "broken.json").write_text("not a trace", encoding="utf-8")
    (folder / "again.json").write_text((folder / "rank3.json").read_text(encoding="utf-8"), encoding="utf-8")
    files = sorted(folder.iterdir())
    expected = told(folder)
    plain = json.loads(expected)
    assert plain["ranks"]["stragglers"][0]["how"] == "replay" and plain["ranks"]["overlap"]["saving_ns"]
    assert any("broken.json" in error for error in plain["errors"])
    for jobs in (1, 2, 4):
        random.Random(jobs).shuffle(files)
        assert told(*files, jobs=jobs) == expected


def test_drawing_changes_nothing(tmp_path: Path) -> None:
    folder = write(training(slow=2, phase="loader"), tmp_path / "run")
    assert told(folder, jobs=2, drawn=True) == told(folder)
    found = look_at([str(folder)], Request(), jobs=2, drawn=True)
    assert (
        [drawing.place.rank for drawing in found.drawings if drawing.place]
        == [device.rank for device in found.advice.devices]
        == [0, 1, 2, 3]
    )


def test_of_many_ranks_few_are_shown_in_full_and_all_are_replayed(tmp_path: Path) -> None:
    folder = write(training(ranks=18, steps=4, slow=17, phase="loader"), tmp_path / "run")
    found = looked(folder, jobs=1)
    assert found.ranks is not None and len(found.ranks.rows) == 18 and len(found.traces) == 18
    assert 17 in [device.rank for device in found.devices] and len(found.devices) <= 4
    (straggler,) = found.ranks.stragglers
    assert straggler.ranks == (17,) and straggler.how == "replay"
    assert told(folder, jobs=2) == to_json(found)


@pytest.mark.cluster
def test_a_cluster_says_the_same(tmp_path: Path) -> None:
    from distributed import LocalCluster

    folder = write(training(slow=2, phase="compute"), tmp_path / "run")
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:  # type: ignore[no-untyped-call]
        assert told(folder, scheduler=cluster.scheduler_address) == told(folder)


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    folder = write(training(slow=2, phase="compute"), tmp_path / "run")
    places = [tmp_path / f"{rank}" / "trace.json" for rank in (3, 1, 2, 0)]
    for place in places:
        place.parent.mkdir()
        (folder / f"rank{place.parent.name}.json").rename(place)
    found = look_at(list(map(str, places)), Request(phase="training"), jobs=2).advice
    assert [trace.rank for trace in found.traces] == [device.rank for device in found.devices] == [0, 1, 2, 3]
    late = [finding.message for finding in found.findings if "comes last" in finding.message]
    assert [re.findall(r"communication rank (\d)", message) for message in late] == [["0"], ["1"], ["2"], ["3"]]
    assert all("Rank 2 comes last" in message for message in late)


def test_a_rank_that_is_asked_for(tmp_path: Path) -> None:
    folder = write(training(), tmp_path / "run")
    found = told(folder, request=Request(rank=1))
    plain = json.loads(found)
    assert [trace["rank"] for trace in plain["traces"]] == [1] and not plain["errors"]
    assert told(folder, request=Request(rank=1), jobs=2) == found


def held(job: Job) -> Result:
    """Whether Ctrl-C is held back from the worker since it was started."""
    return Result(job.place, error=str(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())))


def jobs_of(places: str) -> list[Job]:
    return [Job(place, Request(), len(places)) for place in places]


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals of POSIX")
def test_a_worker_that_starts_does_not_see_an_interruption() -> None:
    """It reaches all processes of a terminal, and one that is importing would print where it was."""
    workers = Processes(2, held)
    assert [result.error for result in workers.run(jobs_of("ab"))] == ["True"] * 2
    workers.close()
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def killed_by_three(job: Job) -> Result:
    """A recording that takes its worker with it; where is known of the others."""
    if job.place == "3":
        os.kill(os.getpid(), signal.SIGKILL)
    return Result(job.place, error=str(os.getpid()))


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="signals of POSIX")
def test_only_the_recording_that_kills_its_worker_is_given_up() -> None:
    workers = Processes(2, killed_by_three)
    found = {result.place: result.error for result in workers.run(jobs_of("1234567"))}
    workers.close()
    assert found.pop("3") == "3: its worker died 3 times; out of memory?"
    assert sorted(found) == list("124567") and len(set(found.values())) <= 5


@pytest.mark.parametrize("ranks", [4, 17])
def test_an_interruption_leaves_what_was_read(ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(training(ranks=ranks, steps=3, slow=2, phase="loader"), tmp_path / "run")
    last = f"rank{ranks - 1}.json"

    def interrupted(job: Job, tell: Tell | None = None) -> Result:
        if job.place.endswith(last):
            raise KeyboardInterrupt
        return work(job, tell)

    monkeypatch.setattr(pool, "work", interrupted)
    found = look_at([str(folder)], Request(), jobs=1)
    assert found.interrupted and found.advice.ranks is not None
    assert [row.rank for row in found.advice.ranks.rows] == list(range(ranks - 1))
    assert any(error.startswith(f"interrupted: 1 of {ranks}") and last in error for error in found.advice.errors)


@pytest.mark.parametrize("ranks", [(0,), (0, 1)])
def test_each_recording_is_read_once(
    ranks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, sample: Callable[[str], Path]
) -> None:
    places = [sample(f"comm-bound-rank-rank{rank}") for rank in ranks]
    begun: list[Path] = []
    from gpu_trace_advisor.ingest import read as real

    def counted(path: Path, tell: Tell | None = None, limit: int | None = None) -> Trace:
        begun.append(path)
        return real(path, tell, limit)

    monkeypatch.setattr(jobs_, "read", counted)
    run = run_of if len(ranks) > 1 else looked
    run(str(places[0].parent / "comm-bound-rank-rank[01].json.gz") if len(ranks) > 1 else str(places[0]), jobs=1)
    assert begun == places


@pytest.mark.cluster
def test_a_cluster_without_workers_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed import LocalCluster

    monkeypatch.setattr("gpu_trace_advisor.parallel.dask.TIMEOUT_S", 2)
    folder = write(training(ranks=2, steps=2), tmp_path / "run")
    with LocalCluster(n_workers=0, dashboard_address=None) as cluster:  # type: ignore[no-untyped-call]
        begun = time.monotonic()
        with pytest.raises(BadUsage, match="it has no worker"):
            look_at([str(folder)], Request(), scheduler=cluster.scheduler_address)
        assert time.monotonic() < begun + 10


@pytest.mark.cluster
@pytest.mark.flaky(reruns=2)  # a scheduler takes seconds to start where many tests run
def test_a_scheduler_that_is_lost_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is killed while the recordings are being read."""
    import subprocess
    import sys
    from socket import socket

    monkeypatch.setattr("gpu_trace_advisor.parallel.dask.TIMEOUT_S", 4)
    with socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    folder = write(training(ranks=2, steps=2), tmp_path / "run")
    scheduler = subprocess.Popen([*command, "--no-dashboard"], **quiet)
    try:
        cluster = _reached(address)
        scheduler.kill()
        begun = time.monotonic()
        with pytest.raises(BadUsage, match=r"it was lost|it has no worker|cannot be reached"):
            list(cluster.run([Job(str(folder / "rank0.json"), Request(), 2)]))
        cluster.close()
        assert time.monotonic() < begun + 10
    finally:
        scheduler.kill()
        scheduler.wait()


@pytest.mark.cluster
def test_a_scheduler_that_is_lost_before_a_result_is_fetched_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work is done, and its result cannot be had any more."""
    from distributed import LocalCluster
    from distributed.comm.core import CommClosedError
    from gpu_trace_advisor.parallel.dask import Cluster

    monkeypatch.setattr("gpu_trace_advisor.parallel.dask.TIMEOUT_S", 2)
    folder = write(training(ranks=2, steps=2), tmp_path / "run")

    def refused(_futures: object) -> None:
        raise CommClosedError("ConnectionRefusedError: [Errno 111] Connection refused")

    with LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as local:
        cluster = Cluster(local.scheduler_address)
        monkeypatch.setattr(cluster.client, "gather", refused)
        with pytest.raises(BadUsage, match="it was lost"):
            list(cluster.run([Job(str(folder / "rank0.json"), Request(), 2)]))
        cluster.close()


def _reached(address: str) -> Any:
    """The cluster, as soon as its scheduler has begun."""
    from gpu_trace_advisor.parallel.dask import Cluster

    for _ in range(10):
        try:
            return Cluster(address)
        except BadUsage:
            time.sleep(1)
    raise AssertionError("the scheduler did not begin")
