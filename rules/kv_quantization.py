import re
from collections.abc import Iterator

import numpy as np
from gpu_trace_advisor.analysis.device_window import DeviceWindow
from gpu_trace_advisor.decode.passes import Decoding
from gpu_trace_advisor.rulekit.evidence import of_operations
from gpu_trace_advisor.rulekit.kernel_fixes import faster, less
from gpu_trace_advisor.rulekit.rule import Claim, case, rule
from gpu_trace_advisor.trace.model import NONE
from gpu_trace_advisor.trace.operator_shapes import BYTES
from gpu_trace_advisor.units import percent

FROM = 0.25  # of the decode in attention over the cache: half of a smaller part is lost in the noise of a server
KEPT = 0.7  # pessimistic share of the bytes saved that turns into time: scales, and unpacking beside the product
EIGHT_BITS = re.compile(
    r"(?:Qkv|Kv)E4m3|Fp8KVCacheDataType\)[1-9]|(?i:kv_?fp8|fp8_?kv(?!cachedatatype)|float8|_e[45]m[23])"
)


@rule(
    title="The cache of keys and values is read in 16 bits",
    cites=("tvi-matrix-kv-quant", "tvi-kv-intensity", "tvi-kv-dominates", "tvi-kv-remedies", "gt-kv-read", "ai-gqa"),
    needs=("hardware",),
    phases=("decode",),
    because="tvi-matrix-kv-quant",
    fires=(
        """
        step |...............................
        host a.b.S===========================
        s7   .aaaaaaaaaaaaaaaaaaabbbbbbbbbb..
        a: aten::_scaled_dot_product_flash_attention [1,32,1,128]x[1,8,131072,128]x[1,8,131072,128] bf16 > flash_fwd_splitkv
        b: aten::mm [1,4096]x[4096,28672] bf16
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: decode
        """,
        case(
            """
        step |..............
        host gh.S===========
        s7   .ggggggghhhhh..
        g: graph paged_attention_v2_kernel
        h: my_gemm_kernel
        repeat: 3
        device: H100 SXM
        phase: decode
        """,
            "No shapes inside a replay, only the kernel's name: a question.",
        ),
    ),
    quiet=(
        case(
            """
        step |...............................
        host a.b.S===========================
        s7   .aaaabbbbbbbbbbbbbbbbbbbbbbbbb..
        a: aten::_scaled_dot_product_flash_attention [1,32,1,128]x[1,8,2048,128]x[1,8,2048,128] bf16 > flash_fwd_splitkv
        b: aten::mm [1,4096]x[4096,65536] bf16
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: decode
        """,
            "A short context: attention is a small part.",
        ),
        case(
            """
        step |..............
        host gh.S===========
        s7   .ggggggghhhhh..
        g: graph fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKv
        h: my_gemm_kernel
        repeat: 3
        device: H100 SXM
        phase: decode
        """,
            "8 bits already.",
        ),
        case(
            """
        step |..............
        host ab.S===========
        s7   .aaaaaaabbbbb..
        a: aten::_scaled_dot_product_flash_attention [1,32,2048,128]x[1,8,2048,128]x[1,8,2048,128] bf16 > flash_fwd
        b: my_gemm_kernel
        repeat: 3
        device: H100 SXM
        phase: prefill
        """,
            "Attention of a prefill is bound by arithmetic.",
        ),
        case(
            """
        step |........................
        host OOOOOOOOOOgh.S===========
        s7   ...........ggggggghhhhh..
        g: paged_attention_v2_kernel
        h: my_gemm_kernel
        repeat: 3
        device: H100 SXM
        phase: decode
        """,
            "The host is the bottleneck.",
        ),
        case(
            """
        step |...............................
        host a.b.S===========================
        s7   .aaaaaaaaaaaaaaaaaaabbbbbbbbbb..
        a: aten::_scaled_dot_product_flash_attention [1,32,1,128]x[1,8,131072,128]x[1,8,131072,128] fp8 > flash_fwd_splitkv
        b: aten::mm [1,4096]x[4096,28672] bf16
        repeat: 3
        scale: 10us
        device: H100 SXM
        phase: decode
        """,
            "Its type is recorded: 8 bits.",
        ),
    ),
)
def kv_quantization(view: DeviceWindow) -> Iterator[Claim]:
    """Attention reads the whole cache of keys and values for every token, and the cache has 16 bits.

    Why it costs: the cache grows with the context and with the batch; no batch makes reading it cheaper, as each sequence
    has its own. Grouped queries share it, but its intensity stays far below what the device could multiply.

    What to do: keep the cache in FP8 (`--kv-cache-dtype fp8` in vLLM, `fp8_e4m3` in SGLang, `kv_cache_config` in
    TensorRT-LLM), which also doubles the sequences or the context that fit. Beyond that: latent or sparse attention, a
    window, fewer KV heads, which are choices of the model.

    How to verify: record again; the attention kernels should take about half as long. Check long-context answers.

    When it must not fire: prefill and training, a short context, a cache of 8 bits, a GPU that waits for the host.
    """
    decode = Decoding(view)
    operations = decode.of_class("attention")
    time = view.time_of(operations)
    weights, cache = decode.weights.value, decode.cache.value
    dominates = weights is not None and cache is not None and cache >= weights
    if decode.host_bound or not (time.sum() > FROM * decode.ns or dominates):
        return
    if any(EIGHT_BITS.search(name) for name in decode.names(operations)):
        return
    kinds, kind = view.inkernel.costs.kinds, view.inkernel.costs.kind[operations]
    known = np.array([k != NONE and BYTES.get(kinds[k].dtype, 0) >= 2 for k in kind.tolist()], np.bool_)
    message = f"Attention over the cache takes {percent(time.sum() / decode.ns)} of the decode"
    how = "Keep the cache in 8 bits (kv_cache_dtype=fp8 in vLLM and SGLang) and check answers at long context."
    if not known.any():
        if any(k != NONE for k in kind.tolist()):  # its type is known, and smaller
            return
        yield Claim(
            message=f"{message}, in {len(operations)} kernels whose shapes are not recorded.",
            ns=int(time.sum()),
            how=f"How many bits has the cache? If 16: {how[0].lower()}{how[1:]}",
            evidence=(of_operations(view, operations),),
            doubts=(decode.cache.why,),
        )
        return
    read = np.array([kinds[k].bytes if k != NONE else 0.0 for k in kind.tolist()]) * known
    work = sum(kinds[k].flops for k in kind[known].tolist())
    saved = read / 2 / view.inkernel.attainable * 1e9
    yield Claim(
        message=f"{message}: it reads {read.sum() / 1e9:.3g} GB of keys and values in the window"
        + (f", {cache / 1e9:.3g} GB a pass beside {weights / 1e9:.3g} GB of weights." if cache and weights else "."),
        ns=int(time.sum()),
        how=how,
        fix=faster(
            view, "kv-quantization", "the cache in 8 bits", operations, less(view, operations, saved, KEPT),
            less(view, operations, saved),
            assumes=(f"pessimistic: {percent(KEPT)} of the bytes saved turn into time", "8 bits instead of 16"),
        ),
        evidence=(of_operations(view, operations),),
        formula=f"(1 - 1/2) × {read.sum() / 1e9:.3g} GB / {view.inkernel.attainable / 1e12:.3g} TB/s; its intensity is "
        f"{work / read.sum():.2g} FLOP/B, whatever the batch",
        grade="modelled",
    )  # fmt: skip
