"""What somebody's own code raises is told; what ends the program from outside still does."""

import os
import signal
import time
from threading import Thread

import pytest
from gpu_trace_advisor.runtime import guarded
from gpu_trace_advisor.runtime.guarded import Failed, TookTooLong, attempt, time_limit


def spin(seconds: float) -> str:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
    return "done"


def test_ctrl_c_ends_what_runs_in_somebody_s_own_code() -> None:
    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        spin(5)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it may be ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            attempt(work)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_of_its_own_is_a_fault() -> None:
    def work() -> None:
        raise KeyboardInterrupt("mine")

    with pytest.raises(Failed, match=r"^KeyboardInterrupt: mine$"):
        attempt(work)


def test_a_shorter_limit_around_another_stays_and_a_longer_one_goes_on() -> None:
    with pytest.raises(TookTooLong, match=r"0\.2 s"), time_limit(0.2), time_limit(60):
        spin(5)
    with pytest.raises(TookTooLong, match=r"0\.4 s"), time_limit(0.4):
        with pytest.raises(TookTooLong, match=r"0\.1 s"), time_limit(0.1):
            spin(5)
        spin(5)
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_other_threads_run_without_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "LONGEST_S", 0.01)
    answers: list[str] = []
    thread = Thread(target=lambda: answers.append(attempt(lambda: spin(0.1))))
    thread.start()
    thread.join()
    assert answers == ["done"]
