"""Events behind a claim: what they are called and how many there are. Times are µs."""

from collections.abc import Sequence

import numpy as np
import pytest
from gpu_trace_advisor.analysis.device_window import DeviceWindow, views
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.rulekit.evidence import of_causes, of_operations, of_rows
from gpu_trace_advisor.trace.model import Kind

from tests.build import Event, call, copy, kernel, op, sync, trace


def view(*events: Event) -> DeviceWindow:
    return views(trace(*events), Request(window="all"))[0][0]


def test_a_record_that_leaves_two_gaps_is_one() -> None:
    """addmm is ready late for both of its kernels; the second mm has none to wait for."""
    one = view(
        op("aten::addmm", 0, 100), call(40, 42, 1), kernel(45, 50, 1), call(90, 92, 2), kernel(95, 100, 2),
        op("aten::mm", 100, 140), call(130, 132, 3), kernel(135, 300, 3), op("aten::mm", 140, 170), call(150, 152, 4),
        kernel(301, 310, 4),
    )  # fmt: skip
    found = {e.what: (e.count, e.ns) for e in of_causes(one, "framework")}
    assert found["aten::addmm"] == (1, 40_000 + (90 - 50) * 1000)
    assert found["aten::mm"] == (1, 30_000)


@pytest.mark.parametrize(
    ("names", "called"),
    [
        (["ampere_sgemm_128x64_tn"] * 3, "ampere_sgemm_128x64_tn"),
        (["b_gemm", "a_gemm", "a_gemm"], "a_gemm and 1 other"),
        (["a_gemm", "b_gemm", "c_gemm"], "a_gemm and 2 others"),
        # Variants of one template are called alike.
        (["void gemm<128>(int)", "void gemm<64>(int)"], "gemm"),
        (["x" * 70 + "_a", "x" * 70 + "_b"], "x" * 45 + "… and 1 other"),
    ],
)
def test_operations_of_several_names(names: Sequence[str], called: str) -> None:
    events = [
        event
        for i, name in enumerate(names, 1)
        for event in (call(10 * i, 10 * i + 1, i), kernel(10 * i + 2, 10 * i + 9, i, name))
    ]
    one = view(*events)
    found = of_operations(one, np.arange(len(names)))
    assert (found.what, found.count, found.ns) == (called, len(names), 7_000 * len(names))
    assert of_operations(one, np.arange(len(names)), "products").what == "products"


def test_copies_keep_the_memory_that_they_read() -> None:
    one = view(
        call(0, 1, 1, "cudaMemcpyAsync"), copy(2, 9, 1, "HtoD (Pageable -> Device)"),
        call(10, 11, 2, "cudaMemcpyAsync"), copy(12, 19, 2, "DtoH (Device -> Pageable)"),
        call(20, 21, 3, "cudaMemcpyAsync"), copy(22, 29, 3, "HtoD (Pageable -> Device)"),
    )  # fmt: skip
    assert of_operations(one, np.arange(3)).what == "Memcpy HtoD (Pageable -> Device) and 1 other"


def test_calls_of_several_names() -> None:
    one = view(call(0, 1, 1), kernel(2, 9, 1), sync(3, 10), sync(11, 12, "cudaStreamSynchronize"))
    rows = np.flatnonzero(one.trace.kind == Kind.CALL)
    assert of_rows(one, rows[1:]).what == "cudaDeviceSynchronize and 1 other"
    assert of_rows(one, rows[2:]).what == "cudaStreamSynchronize"
