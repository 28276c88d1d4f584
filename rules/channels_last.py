import re
from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.columns.codes import present
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_fixes import faster, running_time
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.trace.kernel_names import kernel_class
from gpu_trace_advisor.units import duration, percent

FROM = 0.03  # of the wall in such conversions: what is left at the model's borders takes about a percent
KEPT = 0.5  # pessimistic: the conversions at input, output and around layers without such a kernel stay
CONVERTS = re.compile(
    r"nchw_?to_?nhwc|nhwc_?to_?nchw|nchwToFold|convertTensor|^batched_transpose_|SubTensorOp\w*d|jit_uni_reorder|simple_reorder",
    re.IGNORECASE,
)
"""cuDNN's, MIOpen's (`batched_transpose_*`, `SubTensorOpWithCastTensor4d`) and oneDNN's."""
OF_MIOPEN = re.compile(r"^batched_transpose_|SubTensorOp", re.IGNORECASE)  # only its convolutions launch these


@rule(
    title="Convolutions convert their tensors to channels-last and back",
    cites=("gt-layout-4x",),
    fires=(
        """
        step |............
        host a.b.c.S=====
        s7   .aabbbbbcc..
        a: void cudnn::ops::nchwToNhwcKernel<float, float>
        b: sm80_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc
        c: void cudnn::ops::nhwcToNchwKernel<float, float>
        repeat: 3
        """,
        """
        step |............
        host a.b.c.S=====
        s7   .aabbbbbcc..
        a: batched_transpose_32x32_half.kd
        b: igemm_fwd_gtcx35_nhwc_fp16_bx0_ex0_bt256x128x32
        c: batched_transpose_32x32_half.kd
        repeat: 3
        """,
    ),
    quiet=(
        case(
            """
        step |............
        host a.b.c.S=====
        s7   .aabbbbbcc..
        a: sm80_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc
        b: sm80_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc
        repeat: 3
        """,
            "Channels-last already.",
        ),
        case(
            """
        step |..................................................................................
        host a.b.c.S===========================================================================
        s7   .abbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbc...
        a: void cudnn::ops::nchwToNhwcKernel<float, float>
        b: sm80_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc
        c: void cudnn::ops::nhwcToNchwKernel<float, float>
        repeat: 3
        """,
            "A few, at the model's borders.",
        ),
        case(
            """
        step |............
        host a.b.c.S=====
        s7   .aabbbbbcc..
        a: void transpose_kernel<float>
        b: ampere_bf16_s16816gemm_bf16_128x128
        c: void transpose_kernel<float>
        repeat: 3
        """,
            "A transformer transposes heads, and has no convolutions.",
        ),
        case(
            """
        step |............
        host ab..S=======
        s7   ..aabbbbbbb..
        a: void nchwToNhwcKernel<float, float>
        b: ampere_bf16_s16816gemm_bf16_128x128
        repeat: 3
        """,
            "An image is converted once, for a model without convolutions.",
        ),
    ),
)
def channels_last(view: DeviceWindow) -> Iterator[Claim]:
    """Around its convolutions the program moves whole tensors from one order of dimensions to the other.

    Why it costs: tensor cores want the channels innermost, the tensors have them outermost, so the library converts each
    input and result: a read and a write of the whole tensor every time.

    What to do: `model.to(memory_format=torch.channels_last)`, and the same for the inputs; remove `.contiguous()` and
    `view` calls in between that force the other order.

    How to verify: record again; the kernels named `nchwToNhwc` and `nhwcToNchw` are gone but for the model's borders.

    When it must not fire: no convolutions, a few conversions at the borders, or transposes of attention heads.
    """
    timeline, trace, wall = view.timeline, view.trace, view.window.wall_ns
    names = trace.name_code[timeline.row[view.operations]]
    there = present(names).tolist()
    converts = [code for code in there if CONVERTS.search(trace.names[code])]
    convolves = any(kernel_class(trace.names[code]) == "convolution" for code in there if code not in converts)
    if not convolves and not any(OF_MIOPEN.search(trace.names[code]) for code in converts):
        return
    operations = view.operations[np.isin(names, converts)]
    time = running_time(view, operations)
    if time < FROM * wall:
        return
    yield Claim(
        message=f"{len(operations):,} conversions between channels-first and channels-last take {percent(time / wall, 1)} "
        f"of the wall ({duration(time)}).",
        ns=time,
        how="Keep model and inputs in torch.channels_last, and look for .contiguous() calls that force the other order.",
        fix=faster(
            view, "channels-last", "tensors kept in channels-last", operations, KEPT, 0.0,
            assumes=(f"pessimistic: {percent(KEPT)} of the conversions stay; faster convolutions are not counted",),
        ),
        evidence=(of_operations(view, operations),),
        formula="time of the conversion kernels",
    )  # fmt: skip
