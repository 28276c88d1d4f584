"""Jobs done in this process, or in others of this machine: one recording after the other in each of them."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from gpu_trace_advisor.ingest.locations import shown
from gpu_trace_advisor.parallel.job import Job, Result, Tell, forget, text_bytes, work
from gpu_trace_advisor.runtime import heap, start_up

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

ATTEMPTS = 3  # a recording whose worker dies is tried so many times


class Workers(Protocol):
    """Where jobs are done."""

    def run(self, jobs: Sequence[Job]) -> Iterator[Result]:
        """Their results, whoever is done first."""

    def close(self) -> None:
        """Stop what is running, and let go of what was kept."""


@dataclass
class Here:
    """This process."""

    tell: Tell

    def run(self, jobs: Sequence[Job]) -> Iterator[Result]:
        for job in jobs:
            yield work(job, self.tell)

    def close(self) -> None:
        forget()


@dataclass
class _Process:
    """One worker, with a pool of its own so that its death costs the others nothing."""

    pool: ProcessPoolExecutor | None = None
    places: set[str] = field(default_factory=set)
    """What it has analysed."""

    def submit(self, job: Job, function: Callable[[Job], Result]) -> Future[Result]:
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        if self.pool is None:
            self.pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_begin)
        self.places.add(job.place)
        with _held_interrupts():  # a worker takes over that they are held, until it ignores them
            return self.pool.submit(function, job)

    def close(self) -> None:
        if self.pool is None:
            return
        running = list((getattr(self.pool, "_processes", None) or {}).values())
        self.pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.terminate()
        self.pool = None
        self.places.clear()


class Processes:
    """Processes of this machine. A recording goes to the one that has analysed it before, else the largest first to whoever is
    free; when a worker dies its recording is tried again."""

    def __init__(self, count: int, function: Callable[[Job], Result] = work) -> None:
        self.processes = [_Process() for _ in range(count)]
        self.function = function

    def run(self, jobs: Sequence[Job]) -> Iterator[Result]:
        from concurrent.futures import FIRST_COMPLETED, wait
        from concurrent.futures.process import BrokenProcessPool

        left = deque(sorted(jobs, key=lambda job: -text_bytes(job.place)))
        tried = {job.place: 0 for job in jobs}
        free = list(self.processes)
        running: dict[Future[Result], tuple[_Process, Job]] = {}
        while left or running:
            for process in list(free):
                if not left:
                    break
                mine = next((job for job in left if job.place in process.places), None)
                elsewhere = {place for other in self.processes for place in other.places}
                job = mine or next((job for job in left if job.place not in elsewhere), left[0])
                left.remove(job)
                free.remove(process)
                running[process.submit(job, self.function)] = process, job
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                process, job = running.pop(future)
                free.append(process)
                try:
                    yield future.result()
                except BrokenProcessPool:
                    process.close()
                    tried[job.place] += 1
                    if tried[job.place] < ATTEMPTS:
                        left.append(job)
                        continue
                    why = f"{shown(job.place)}: its worker died {ATTEMPTS} times; out of memory?"
                    yield Result(job.place, error=why)

    def close(self) -> None:
        for process in self.processes:
            process.close()


def _begin() -> None:
    """What a worker does first."""
    heap.own_process()
    start_up.rarely_collect()
    ignore_interrupts()


@contextmanager
def _held_interrupts() -> Iterator[None]:
    """Ctrl-C takes effect after the block, where the system can hold it back."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_interrupts() -> None:
    """Ctrl-C reaches every process of a terminal; only the first one is to react."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
