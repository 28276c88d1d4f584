"""FLOPs beside PyTorch's own counter (`torch.utils.flop_counter`), for what it counts."""

import json
from math import prod
from typing import Any

import pytest
import torch
from gpu_trace_advisor.roofline.flops import Cost
from gpu_trace_advisor.roofline.operator_costs import cost

pytestmark = pytest.mark.torch

BF16 = "c10::BFloat16"


def ours(operator: str, dims: list[list[int]], concrete: list[str] | None = None) -> Cost:
    types = [BF16 if shape else "Scalar" for shape in dims]
    texts = (json.dumps(part) if part is not None else "" for part in (dims, types, None, concrete))
    found = cost(operator, *texts, "bf16_kernel")
    assert found
    return found


def counted(function: Any, *tensors: list[int]) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        function(*(torch.empty(shape, device="meta", requires_grad=False) for shape in tensors))
    return int(counter.get_total_flops())


@pytest.mark.parametrize(
    ("operator", "function", "shapes"),
    [
        ("aten::mm", "mm", [[64, 4096], [4096, 1000]]),
        ("aten::addmm", "addmm", [[1000], [64, 4096], [4096, 1000]]),
        ("aten::bmm", "bmm", [[8, 16, 32], [8, 32, 64]]),
        ("aten::baddbmm", "baddbmm", [[8, 16, 64], [8, 16, 32], [8, 32, 64]]),
    ],
)
def test_products(operator: str, function: str, shapes: list[list[int]]) -> None:
    assert ours(operator, shapes).flops == counted(getattr(torch, function), *shapes)


CONVOLUTIONS = [
    # x, w, stride, padding, dilation, transposed, output padding, groups
    ([32, 3, 224, 224], [64, 3, 7, 7], [2, 2], [3, 3], [1, 1], False, [0, 0], 1),
    ([8, 256, 14, 14], [1024, 256, 1, 1], [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    ([8, 1024, 32, 32], [1024, 1, 3, 3], [1, 1], [1, 1], [1, 1], False, [0, 0], 1024),
    ([8, 64, 32, 32], [64, 16, 3, 3], [1, 1], [2, 2], [2, 2], False, [0, 0], 4),
    ([4, 64, 16, 16], [64, 32, 4, 4], [2, 2], [1, 1], [1, 1], True, [0, 0], 1),
    ([4, 64, 15, 15], [64, 16, 3, 3], [2, 2], [1, 1], [1, 1], True, [1, 1], 2),
    ([2, 8, 100], [16, 8, 5], [3], [2], [1], False, [0], 1),
    ([2, 8, 9, 10, 11], [16, 8, 3, 3, 3], [1, 1, 1], [1, 1, 1], [1, 1, 1], False, [0, 0, 0], 1),
]


@pytest.mark.parametrize(("x", "w", "stride", "padding", "dilation", "transposed", "more", "groups"), CONVOLUTIONS)
def test_convolutions(
    x: list[int], w: list[int], stride: list[int], padding: list[int], dilation: list[int], transposed: bool,
    more: list[int], groups: int,
) -> None:  # fmt: skip
    """FLOPs by the counter; bytes by the shape of PyTorch's own result."""
    arguments = (stride, padding, dilation, transposed, more, groups)
    told = ["", "", "", str(stride), str(padding), str(dilation), str(transposed), str(more), str(groups)]
    found = ours("aten::convolution", [x, w, *[[]] * 7], told)
    assert found.flops == counted(lambda a, b: torch.convolution(a, b, None, *arguments), x, w)
    result = torch.convolution(torch.empty(x, device="meta"), torch.empty(w, device="meta"), None, *arguments).shape
    assert found.bytes == 2 * (prod(x) + prod(w) + prod(result))
    assert found.window and (found.window.groups, found.window.filters) == (groups, result[1])
    assert 2 * found.batch * found.m * found.n * found.k == found.flops
    back = ["", "", "", "", *told[3:], "[True, True, False]"]
    both = ours("aten::convolution_backward", [list(result), x, w, *[[]] * 8], back)
    assert both.flops == 2 * found.flops


@pytest.mark.parametrize(("queries", "keys"), [(512, 512), (1, 4096), (128, 700)])
def test_attention(queries: int, keys: int) -> None:
    """The counter knows no mask, so it is compared without one."""
    shapes = [[2, 8, queries, 64], [2, 8, keys, 64], [2, 8, keys, 64]]
    from torch.utils import flop_counter

    of_torch: Any = flop_counter
    told = ["", "", "", "0.", "False", "False", ""]
    forward = ours("aten::_scaled_dot_product_flash_attention", [*shapes, *[[]] * 4], told)
    assert forward.flops == of_torch.sdpa_flop_count(*shapes)
    told = [""] * 11 + ["False"]
    backward = ours("aten::_scaled_dot_product_flash_attention_backward", [shapes[0], *shapes, *[[]] * 8], told)
    assert backward.flops == of_torch.sdpa_backward_flop_count(shapes[0], *shapes)
