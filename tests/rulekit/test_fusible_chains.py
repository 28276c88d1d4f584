"""Where chains of memory-bound kernels end: what one kernel cannot do is no chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from gpu_trace_advisor.analysis.device_window import views
from gpu_trace_advisor.analysis.request import Request
from gpu_trace_advisor.rulekit.fusible_chains import chains

from tests.build import Event, call, kernel, op, trace


def elementwise(functor: str) -> str:
    return (
        f"void at::native::vectorized_elementwise_kernel<4, at::native::{functor}, at::detail::Array<char*, 2> >(int)"
    )


def reduction(outputs: int = 1) -> str:
    return (
        f"void at::native::reduce_kernel<512, {outputs}, at::native::ReduceOp<float, at::native::MeanOps<float, float>, "
        "unsigned int, float, 4> >(at::native::ReduceOp<float>)"
    )


ADD, MUL, EXP = (elementwise(f"{name}<float>") for name in ("CUDAFunctor_add", "AUnaryFunctor_mul", "exp_kernel_cuda"))
COUNT = elementwise("CUDAFunctorOnSelf_add<long>")
BATCH_NORM = "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 512, true, 1>(float, float)"
ROWS = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*)"


def found(kernels: Sequence[str | tuple[str, str, dict[str, Any]]]) -> list[int]:
    """How many kernels each chain has, in order, of kernels of 10 µs one after the other, with operators where told."""
    events: list[Event] = []
    for i, one in enumerate(kernels):
        name, operator, more = one if isinstance(one, tuple) else (one, "", {})
        shapes = {key: value for key, value in more.items() if key != "grid"}
        if operator:
            events.append(op(operator, 10 * i, 10 * i + 5, **shapes))
        events.append(call(10 * i + 1, 10 * i + 4, i + 1))
        grid = {key: value for key, value in more.items() if key == "grid"}
        events.append(kernel(10 * i + 6, 10 * i + 16, i + 1, name, **grid))
    view = views(trace(*events), Request(window="all"))[0][0]
    ordered = sorted(chains(view), key=lambda chain: int(chain.places[0, 0]))
    return [chain.places.shape[1] for chain in ordered]


def dims(*shapes: list[int]) -> dict[str, Any]:
    return {"Input Dims": list(shapes)}


@pytest.mark.parametrize("name", [BATCH_NORM, reduction(outputs=4), "nll_loss_forward_reduce_cuda_kernel_2d"])
def test_a_reduction_over_more_than_a_row_is_the_last_of_its_chain(name: str) -> None:
    assert found([ADD, MUL, name, EXP, ADD, MUL, EXP]) == [3, 4]


@pytest.mark.parametrize("name", [ROWS, reduction()])
def test_a_reduction_of_rows_goes_on(name: str) -> None:
    assert found([ADD, MUL, name, EXP, ADD]) == [5]


@pytest.mark.parametrize(("grid", "lengths"), [([64, 1, 1], [6]), ([1, 32, 1], [3, 3])])
def test_several_blocks_for_one_output_are_a_reduction_of_everything(grid: list[int], lengths: list[int]) -> None:
    assert found([ADD, MUL, (reduction(), "", {"grid": grid}), EXP, ADD, MUL]) == lengths


@pytest.mark.parametrize(
    ("arguments", "lengths"),
    [
        (dims([64, 1024], []), [3, 3]),  # aten::mean(self, dtype)
        (dims([64, 1024], [], [], []), [6]),  # aten::mean(self, dim, keepdim, dtype)
    ],
)
def test_a_mean_of_a_whole_tensor_is_told_by_its_arguments(arguments: dict[str, Any], lengths: list[int]) -> None:
    assert found([ADD, MUL, (reduction(), "aten::mean", arguments), EXP, ADD, MUL]) == lengths


def test_counters_and_single_numbers_are_no_members() -> None:
    """A counter of batches between two kernels; a chain of operators on scalars."""
    assert found([ADD, MUL, COUNT, EXP]) == []
    assert found([ADD, MUL, EXP, COUNT, ADD, EXP, MUL]) == [3, 3]
    scalars = [(ADD, "aten::add", dims([], [1])), (MUL, "aten::mul", dims([1], [])), (EXP, "aten::exp", dims([]))]
    assert found(scalars) == []
    large = [(name, operator, dims([64, 64], [])) for name, operator, _ in scalars]
    assert found(large) == [3]
