"""Jobs done by the workers of a Dask cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpu_trace_advisor.errors import BadUsage
from gpu_trace_advisor.ingest.locations import shown
from gpu_trace_advisor.parallel.job import Job, Result, work
from gpu_trace_advisor.parallel.pool import ATTEMPTS

TIMEOUT_S = 8  # to reach a scheduler, or for it to have a worker
POLL_S = 0.05


class Cluster:
    """The workers of a scheduler.

    Raises:
        BadUsage: it cannot be reached, has no worker, or is lost.
    """

    def __init__(self, scheduler: str) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise BadUsage("--scheduler needs Dask: pip install 'gpu-trace-advisor[cluster]'") from None
        _quiet()
        self.name = f"--scheduler {shown(scheduler)}"
        try:
            self.client: Any = Client(scheduler, timeout=TIMEOUT_S, set_as_default=False)  # type: ignore[no-untyped-call]
        except (OSError, ValueError, TimeoutError) as error:
            raise BadUsage(f"{self.name}: cannot be reached ({type(error).__name__})") from None
        self.where: dict[str, str] = {}
        """The worker that has analysed a recording."""
        self.alive_at = time.monotonic()

    def run(self, jobs: Sequence[Job]) -> Iterator[Result]:
        from distributed import as_completed

        self._check()
        futures: dict[Any, Job] = {}
        for job in jobs:
            at = self.where.get(job.place)
            where = {"workers": [at], "allow_other_workers": True} if at else {}
            with self._reached():
                futures[self.client.submit(_work, job, pure=False, retries=ATTEMPTS - 1, **where)] = job
        done = as_completed(list(futures), loop=self.client.loop)  # type: ignore[no-untyped-call]
        left = len(futures)
        self.alive_at = time.monotonic()
        while left:
            ready: list[Any] = done.next_batch(block=False)  # type: ignore[no-untyped-call]
            if not ready:
                self._check()
                time.sleep(POLL_S)
                continue
            finished = [future for future in ready if future.status == "finished"]
            with self._reached():
                results = dict(zip(finished, self.client.gather(finished), strict=True))
            for future in ready:
                job = futures.pop(future)
                left -= 1
                if future in results:
                    result, worker = results[future]
                    self.where[job.place] = worker
                    yield result
                else:
                    why = f"{shown(job.place)}: its worker was lost or failed ({_why(future)})"
                    yield Result(job.place, error=why)
                future.release()

    def _check(self) -> None:
        """The scheduler answers and has workers, or had some a moment ago."""
        running = self.client.status == "running"
        with self._reached():
            workers = running and bool(self.client.scheduler_info(n_workers=-1)["workers"])
        if workers:
            self.alive_at = time.monotonic()
        elif time.monotonic() > self.alive_at + TIMEOUT_S:
            lost = "it has no worker" if running else "it was lost"
            raise BadUsage(f"{self.name}: {lost}")
        elif not running:
            self.where.clear()

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """A scheduler that dies while it is spoken to is lost."""
        try:
            yield
        except (OSError, TimeoutError):
            raise BadUsage(f"{self.name}: it was lost") from None

    def close(self) -> None:
        self.client.close(timeout=1)


def _work(job: Job) -> tuple[Result, str]:
    """The result, and which worker it comes from."""
    from distributed import get_worker

    return work(job), str(get_worker().address)


def _quiet() -> None:
    """What becomes of the cluster is said in one line, not by its library."""
    import logging

    for name in ("distributed", "tornado", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _why(future: Any) -> str:
    """What went wrong on a worker: the kind of it only, since its words may hold anything."""
    try:
        return type(future.exception(timeout=1)).__name__
    except Exception as error:  # cancelled, or the cluster is gone
        return type(error).__name__
