"""One device's window: what rules select in it."""

from gpu_trace_advisor.advice.rule_cases import view_of

DRAWN = """
    step |..........
    host abn.......
    s7   .aaabbbnnn
    a: cutlass_gemm_128x64
    b: softmax_forward
    n: ncclDevKernel_AllReduce_Sum_bf16
"""


def test_kernels_are_selected_by_name_and_by_class() -> None:
    view = view_of(DRAWN)
    assert view.kernels().tolist() == [0, 1, 2]
    assert view.kernels("gemm").tolist() == [0]
    assert view.kernels("^ncclDev|softmax").tolist() == [1, 2]
    assert view.kernels(kernel_class="softmax").tolist() == [1]
    assert view.kernels("gemm", "softmax").tolist() == []
