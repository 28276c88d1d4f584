"""What findings say the host did while the GPU had nothing to do: each record's own time, by its name."""

from __future__ import annotations

import pytest
from gpu_trace_advisor.advice.build import advise_traces
from gpu_trace_advisor.advice.model import Advice
from gpu_trace_advisor.rulekit.rule import Finding

from tests.build import Event, advice, call, copy, frame, kernel, op, step
from tests.build import trace as recorded

STEPS = 4


def finding(given: Advice, rule: str) -> Finding:
    return next(one for one in given.findings if one.rule == rule)


def rules(given: Advice) -> set[str]:
    return {one.rule for one in given.findings}


def launched(at: float, number: int, start: float, end: float) -> list[Event]:
    return [
        op("aten::mm", at, at + 20),
        call(at + 5, at + 10, number),
        kernel(start, end, number, "ampere_sgemm_128x64_tn"),
    ]


def test_each_operator_on_the_cpu_has_its_own_time() -> None:
    """Before each kernel three operators on CPU tensors follow each other: 3, 2 and 1 ms."""
    events: list[Event] = []
    for i in range(STEPS):
        at = 10_000 * i
        events += [step(i, at, at + 10_000), op("aten::to", at, at + 3000), op("aten::sub_", at + 3000, at + 5000),
                   op("aten::div_", at + 5000, at + 6000), *launched(at + 6000, i + 1, at + 6015, at + 10_000)]  # fmt: skip
    found = finding(advice(*events), "cpu-compute")
    assert "aten::to 12.0 ms (4 times), aten::sub_ 8.00 ms (4 times), aten::div_ 4.00 ms (4 times)" in found.message
    assert found.ns == 24_000_000


def test_what_runs_while_a_read_value_keeps_the_queue_empty() -> None:
    """The value is read, then 900 of 1,000 µs go to writing it down; the wait of 3 ms covers all of it."""
    events: list[Event] = []
    for i in range(STEPS):
        at = 5000 * i
        events += [step(i, at, at + 5000), *launched(at, 2 * i + 1, at + 15, at + 4000),
                   call(at + 30, at + 4010, 2 * i + 2, "cudaMemcpyAsync"),
                   copy(at + 4001, at + 4004, 2 * i + 2, "Memcpy DtoH (Device -> Pageable)", bytes=4),
                   frame("json/encoder.py(182): encode", at + 4050, at + 4950)]  # fmt: skip
    found = finding(advice(*events), "host-sync")
    assert "meanwhile the host runs json/encoder.py(182): encode." in found.message
    assert f"{STEPS} times" in found.message and "1 a step" in found.message


def test_a_read_by_the_clock_of_another_device_drains_the_gpu_as_well() -> None:
    """On ROCm the call seems to return 3 µs before its copy ends; then the GPU waits for the host, 800 µs in each step."""
    events: list[Event] = []
    for i in range(STEPS):
        at = 5000 * i
        events += [step(i, at, at + 5000), *launched(at, 2 * i + 1, at + 15, at + 4000),
                   op("aten::_local_scalar_dense", at + 30, at + 4010),
                   call(at + 32, at + 4006, 2 * i + 2, "hipMemcpyWithStream"),
                   copy(at + 4002, at + 4009, 2 * i + 2, "Memcpy DtoH (Device -> Pageable)", bytes=4),
                   op("aten::view", at + 4100, at + 4103)]  # fmt: skip
    found = finding(advice(*events), "host-sync")
    assert found.ns == pytest.approx(3 * (5015 - 4009) * 1000, rel=0.03)  # between the steps; little after the last
    assert "meanwhile" not in found.message  # no record runs there


def test_a_long_function_is_no_launching_of_operators() -> None:
    """A function of 800 µs between one kernel and the next: nothing to compile or to capture, however often it comes."""
    events: list[Event] = []
    for i in range(STEPS):
        at = 3000 * i
        events += [step(i, at, at + 3000), frame("loop.py(9): decide", at, at + 800),
                   *launched(at + 800, i + 1, at + 815, at + 3000)]  # fmt: skip
    given = advice(*events)
    assert "loop.py(9): decide for 3.20 ms, 4 times" in finding(given, "python-block").message
    assert not {"torch-compile", "cuda-graphs"} & rules(given)


def test_of_many_small_records_none_is_most_of_it() -> None:
    """30 functions of 30 µs and one of 40 µs, each of its own name, touch each other before every kernel."""
    events: list[Event] = []
    for i in range(STEPS):
        at = 1500 * i
        events.append(step(i, at, at + 1500))
        events += [frame(f"model.py({n}): part_{n}", at + 30 * n, at + 30 * n + 30) for n in range(30)]
        events += [frame("model.py(99): longest", at + 900, at + 940), *launched(at + 940, i + 1, at + 955, at + 1500)]
    found = finding(advice(*events), "cpu-bound-python")
    assert "the largest part, 160.0 µs, in model.py(99): longest" in found.message


def test_what_compiles_in_every_step_is_no_start_up() -> None:
    """3 ms of a compiler before each kernel of 1 ms; in one of four steps it is what a warm loop may still meet."""

    def said(compiling: set[int]) -> str:
        events: list[Event] = []
        for i in range(STEPS):
            at = 5000 * i
            compiled = [frame("torch/_dynamo/convert_frame.py(400): _compile", at, at + 3000)] if i in compiling else []
            events += [step(i, at, at + 5000), *compiled, *launched(at + 3000, i + 1, at + 3015, at + 4000)]
        found = finding(advice(*events), "module-load")
        assert sum(part.ns for part in found.named if part.cause == "compile") == 3_000_000 * len(compiling)
        return f"{found.title} {found.message} {found.how}"

    always, once = said({0, 1, 2, 3}), said({2})
    assert "In 4 of 4 steps" in always and "TORCH_LOGS=recompiles" in always and "Start-up" not in always
    assert "Start-up" in once and "recompiles" not in once


def test_who_recorded_shapes_is_not_told_to() -> None:
    """Kernels of an operator that nobody models, with its shapes: another tool looks inside them."""

    def said(**shapes: str) -> str:
        device = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132, "computeMajor": 9}]
        events: list[Event] = []
        for i in range(STEPS):
            at = 1000 * i
            events += [step(i, at, at + 1000), op("mylib::scan", at, at + 20, **shapes), call(at + 5, at + 10, i + 1),
                       kernel(at + 15, at + 1015, i + 1, "my_scan")]  # fmt: skip
        return finding(advise_traces([recorded(*events, deviceProperties=device)]), "nothing-to-do").how

    assert "record_shapes" in said()
    assert "record_shapes" not in said(**{"Input Dims": "[[4096, 64]]", "Input type": '["float"]'})


def test_a_thread_that_waits_for_a_request_is_said_to_wait() -> None:
    """4 of 5 ms the server waits in `queue.get`; stacks were recorded, and nobody is told to record them."""
    events: list[Event] = []
    for i in range(STEPS):
        at = 5000 * i
        events += [frame("queue.py(154): get", at, at + 4000),
                   frame("<method 'acquire' of '_thread.lock' objects>", at + 1, at + 3999),
                   *launched(at + 4000, i + 1, at + 4015, at + 5000)]  # fmt: skip
    given = advice(*events)
    found = finding(given, "largest-loss")
    assert found.title == "The largest loss: the host waiting for something else"
    assert "acquire" in found.message and "without requests a server idles by nature" in found.how
    assert "the host waited for something else" in given.verdict
    assert not any("with_stack" in text for text in (given.verdict, found.how))
