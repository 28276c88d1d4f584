"""Classes and readable names of kernels, by names that public libraries give them."""

import pytest
from gpu_trace_advisor.trace.kernel_names import (
    CLASSES,
    OTHER,
    copy_direction,
    copy_memory,
    is_communication,
    kernel_class,
    readable,
)
from hypothesis import given
from hypothesis import strategies as st

AT = "at::native::"
LAMBDA = "(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(float)#1}"
NAMES = [
    ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn", "gemm"),
    ("nvjet_tst_192x8_64x8_4x1_v_bz_TNT", "nvjet_tst_192x8_64x8_4x1_v_bz_TNT", "gemm"),
    (
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(cutlass_80_simt_sgemm::Params)",
        "cutlass_80_simt_sgemm_128x32_8x5_nn_align1", "gemm",
    ),
    (
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::Main<2> > > >(P)",
        "FlashAttnFwdSm90", "attention",
    ),
    ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int> > >(T1)", "GemmUniversal", "gemm"),
    ("void internal::gemvx::kernel<int, int, float, float, 7, cublasGemvParamsEx<int> >(X)", "gemvx::kernel", "gemm"),
    ("void cublasLt::splitKreduce_kernel<32, 16, int>(cublasLt::cublasSplitKParams<T6>)", "splitKreduce", "gemm"),
    (
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT16x32x512_MI16x16x1_SN_LDSB1_AFC1",
        "Cijk_Alik_Bljk_BBS_BH MT16x32x512", "gemm",
    ),
    (
        "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassEEEEEvT_",
        "Rmsnorm2dFwd", "normalization",
    ),
    ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb0EEEvPT0_", "add_rmsnorm_quant", "normalization"),
    ("void flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4> >", "flash_fwd_splitkv", "attention"),
    (
        f"void {AT}vectorized_elementwise_kernel<4, {AT}BinaryFunctor<float, float, float, "
        f"{AT}binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int, T2, T3)",
        "vectorized_elementwise[mul]", "elementwise",
    ),
    (
        f"void {AT}vectorized_elementwise_kernel<4, {AT}CUDAFunctorOnSelf_add<float>, at::detail::Array<char*, 2> >(int)",
        "vectorized_elementwise[add]", "elementwise",
    ),
    (
        f"void {AT}elementwise_kernel<128, 2, {AT}gpu_kernel_impl_nocast<{AT}direct_copy_kernel_cuda{LAMBDA}>(int)>(T3)",
        "elementwise[direct_copy]", "copy",
    ),
    (
        f"void {AT}vectorized_elementwise_kernel<4, {AT}GeluCUDAKernelImpl(at::TensorIteratorBase&)::{{lambda()#2}}>",
        "vectorized_elementwise[gelu]", "elementwise",
    ),
    (
        f"void {AT}reduce_kernel<512, 1, {AT}ReduceOp<float, {AT}func_wrapper_t<float, {AT}sum_functor<float> >, 4> >(T3)",
        "reduce[sum]", "reduction",
    ),
    (
        f"void {AT}(anonymous namespace)::multi_tensor_apply_kernel<{AT}TensorListMetadata<4>, "
        f"{AT}FusedAdamMathFunctor<float, 4> >(T1)",
        "multi_tensor_apply[FusedAdamMath]", "optimizer",
    ),
    (
        f"void {AT}multi_tensor_apply_kernel<TensorListMetadata<1>, BinaryOpScalarFunctor<float>, std::multiplies<float> >",
        "multi_tensor_apply[mul]", "optimizer",
    ),
    (
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 6, false, false>(float*, int, bool)",
        "softmax_warp_forward", "softmax",
    ),
    (f"void {AT}<unnamed>::vectorized_layer_norm_kernel<float, float, (bool)0>(int, T2)", "vectorized_layer_norm",
     "normalization"),
    (
        "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
        "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)",
        "fused_add_rms_norm", "normalization",
    ),
    ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512>(cudnnTensorStruct)", "bn_fw_tr_1C11_kernel_NCHW",
     "normalization"),
    ("volta_scudnn_128x64_relu_interior_nn_v1", "volta_scudnn_128x64_relu_interior_nn_v1", "convolution"),
    ("void cudnn::detail::dgrad_engine<float, 512, 6>(int)", "dgrad_engine", "convolution"),
    ("void fbgemm_gpu::permute_2D_data_kernel<false, int, decltype(nullptr)>(int)", "permute_2D_data", "transpose"),
    ("void nchwToNhwcKernel<float, float>(int)", "nchwToNhwcKernel", "transpose"),
    ("void cub::DeviceScanKernel<cub::AgentScanPolicy<128, 15, int> >(int*)", "DeviceScanKernel", "sort"),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
     "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "communication"),
    ("triton_poi_fused_add_cos_sin_0", "triton_poi_fused_add_cos_sin_0", "elementwise"),
    ("triton_red_fused_add_mean_mul_pow_rsqrt_0", "triton_red_fused_add_mean_mul_pow_rsqrt_0", "reduction"),
    ("triton_tem_fused_mm_3", "triton_tem_fused_mm_3", "gemm"),
    ("triton__0d1d2d3d", "triton__0d1d2d3d", "triton"),
    ("CUDA graph 4", "CUDA graph 4", "graph"),
    ("saxpy(double *, double *, int)", "saxpy", "elementwise"),
    ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD", "copy"),
    ("my kernel", "my kernel", "other"),
    ("vllm_rotary_embedding", "vllm_rotary_embedding", "elementwise"),
    (
        "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, __nv_bfloat16, float, "
        "cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<__nv_bfloat16 const> > >(X)", "gemvx::kernel", "gemm",
    ),
    ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<(flashinfer::MaskMode)1, 128>(P)",
     "BatchPrefillWithPagedKVCacheKernel", "attention"),
    ("void flashinfer::SinglePrefillWithKVCacheKernel<1>(P)", "SinglePrefillWithKVCacheKernel", "attention"),
    ("_fwd_grouped_kernel_stage1", "_fwd_grouped_kernel_stage1", "attention"),
    ("_bwd_kernel_dk_dv", "_bwd_kernel_dk_dv", "attention"),
    ("_ZN5aiter48fmoe_bf16_pertokenFp8_g1u1_vs_silu_1tg_ps_32x512E", "fmoe_bf16_pertokenFp8_g1u1_vs_silu_1tg_ps_32x512",
     "moe"),
    ("void marlin::Marlin<__nv_bfloat16, 4>(int4 const*)", "Marlin", "gemm"),
    ("void marlin_moe_wna16::Marlin<__nv_bfloat16, 4>(int4 const*)", "Marlin", "moe"),
    ("void mul_mat_vec_q<(ggml_type)12, 1>(void const*)", "mul_mat_vec_q", "gemm"),
    ("Im2d2Col_v2", "Im2d2Col_v2", "convolution"),
    (f"void {AT}(anonymous namespace)::RowwiseMomentsCUDAKernel<float>(long)", "RowwiseMomentsCUDAKernel", "normalization"),
    ("liger_cross_entropy_kernel", "liger_cross_entropy", "reduction"),
    ("_swiglu_forward_kernel", "_swiglu_forward", "elementwise"),
    ("selective_scan_fwd_kernel", "selective_scan_fwd", "other"),
    (f"void {AT}vectorized_elementwise_kernel<4, {AT}FillFunctor<float>, std::array<char*, 1> >(int)",
     "vectorized_elementwise[fill]", "elementwise"),
    ("", "", "other"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "short", "cls"), NAMES)
def test_readable_names_and_classes(name: str, short: str, cls: str) -> None:
    assert (readable(name, 80), kernel_class(name)) == (short, cls)


@pytest.mark.parametrize(
    "name", ["void at::native::elementwise_kernel<128, at::na", "foo<bar", "<", "((", "a::", "_ZN0", "_Z"]
)
def test_a_damaged_name_still_has_one(name: str) -> None:
    assert readable(name).strip()


@given(st.text(max_size=200), st.integers(1, 100))
def test_any_name_fits(name: str, width: int) -> None:
    assert len(readable(name, width)) <= width
    assert kernel_class(name) in {*(cls for cls, _ in CLASSES), OTHER}


@pytest.mark.parametrize("name", ["a" * 100_000 + "<", "f<" + "a" * 100_000, "<" * 100_000, "_ZN" + "1a" * 50_000])
def test_a_long_name_is_no_burden(name: str) -> None:
    assert len(readable(name)) <= 60


def test_templates_do_not_decide_the_class() -> None:
    """`lambda` holds `lamb`, `_typeConvert` holds `conv`, `fbgemm_gpu` holds `gemm`."""
    assert (
        kernel_class("void at::native::vectorized_elementwise_kernel<4, neg_kernel_cuda::{lambda()#1}>")
        == "elementwise"
    )


@pytest.mark.parametrize(
    ("name", "communicates"),
    [("ncclKernel_SendRecv", True), ("void multimem_all_reduce_kernel<4>()", True), ("deep_ep::dispatch", True),
     ("deep_epilogue", False), ("ampere_sgemm", False)],
)  # fmt: skip
def test_communication_by_name(name: str, communicates: bool) -> None:
    assert is_communication(name) is communicates


@pytest.mark.parametrize(
    ("name", "direction", "memory"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD", "pageable"),
        ("Memcpy DtoH (Device -> Pinned)", "DtoH", "pinned"),
        ("Memcpy PtoP (Device -> Device)", "PtoP", ""),
        ("CopyHostToDevice", "HtoD", ""),
        ("Memcpy DtoD (Device -> Device)", "DtoD", ""),
        ("Memcpy HtoA (Pinned -> Array)", "unknown direction", "pinned"),
        ("Memcpy", "unknown direction", ""),
    ],
)
def test_copies_by_name(name: str, direction: str, memory: str) -> None:
    assert (copy_direction(name), copy_memory(name)) == (direction, memory)
