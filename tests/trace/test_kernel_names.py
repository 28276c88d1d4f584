"""Classes and readable names of kernels, by names that public libraries give them."""

import tomllib
from pathlib import Path

import pytest
from gpu_trace_advisor.trace import kernel_names
from gpu_trace_advisor.trace.kernel_names import (
    CLASS_NAMES,
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
    assert kernel_class(name) in CLASS_NAMES


@pytest.mark.parametrize("name", ["a" * 100_000 + "<", "f<" + "a" * 100_000, "<" * 100_000, "_ZN" + "1a" * 50_000])
def test_a_long_name_is_no_burden(name: str) -> None:
    assert len(readable(name)) <= 60


def test_templates_do_not_decide_the_class() -> None:
    """`lambda` holds `lamb`, `_typeConvert` holds `conv`, `fbgemm_gpu` holds `gemm`."""
    assert (
        kernel_class("void at::native::vectorized_elementwise_kernel<4, neg_kernel_cuda::{lambda()#1}>")
        == "elementwise"
    )


COLLECTIVES = [
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)",
    "ncclDevKernel_ReduceScatter_Sum_f32_TREE_LL(ncclDevKernelArgsStorage<4096ul>)",
    "mscclKernel_Sum_half_Simple_false(ncclDevComm*)",
    "void mscclpp::allreduce7<int>(int*, int*, mscclpp::DeviceHandle<mscclpp::MemoryChannel>*)",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)",
    "void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8, false>(aiter::RankData*)",
    "void aiter::allreduce_fusion_kernel_1stage<__hip_bfloat16, 8>(aiter::RankData*)",
    "void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(aiter::RankData*)",
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<P, __nv_bfloat16, 8, false>(P)",
    "void tensorrt_llm::kernels::ar_fusion::allreduce_fusion_kernel_twoshot_sync<__nv_bfloat16, 8>(int)",
    "void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<8, __nv_bfloat16>(T*)",
    "void tensorrt_llm::kernels::mnnvl_throughput::moeAlltoAllDispatchKernel<1>(void const*)",
    "void moeA2AAllToAllKernel(int)",
    "void one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(c10::BFloat16**)",
    "void two_shot_all_reduce_kernel<c10::BFloat16, 16, 8, true>(unsigned int**)",
    "void multimem_all_reduce_kernel<4>()",
    "void multimem_one_shot_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
    "void c10d::nvshmem_extension::allToAllV(void*, void*, long*)",
    "all_to_all_vdev_2d_kernel",
    "c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**, int, unsigned long)",
    "void symm_mem::barrier<8>(unsigned int**)",
    "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<__hip_bfloat16>>(__hip_bfloat16 const*)",
    "void mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>(void*)",
    "_ZN4mori3moe24EpCombineInterNodeKernelI14__hip_bfloat16EEvPv",
    "void uccl::ep::internode_ll::dispatch<true>(void*)",
    "void mine::ep::layout::notify_dispatch<8>(int const*)",
    "void pplx::a2a::a2a_dispatch_send_kernel<true>(int)",
    "void a2a_combine_recv_kernel<true, 16ul>(unsigned long)",
    "void deep_ep::intranode::dispatch<4, 768, 8192>(int4*, float*)",
    "void deep_ep::internode_ll::combine<true, 7168, 9>(void*)",
    "_ZN7deep_ep9intranode7combineI13__nv_bfloat16Li4EEEvPT_",
    "deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
    "nvshmemi_proxy_quiet_kernel",
    "oneccl_allreduce_large_write",
]
NO_COLLECTIVES = [
    "deep_epilogue",
    "ampere_sgemm",
    "void cub::DispatchReduceByKey<int*, int*>(int)",
    "groupnorm_kernel_dispatch<float>",
    "void at::native::(anonymous namespace)::dispatch_softmax<float>(int)",
    "void combine_heads_kernel<float>(float*)",
    "_combined_routing_compute",
    "void step::internal::dispatch(int)",
    "allreduce_hook_copy",
    "split_with_sizes_copy_out_contiguous_no_cast_kernel",
    "fsdp_all_gather_into_tensor_copy",
    "void barrier_kernel(int)",
    "void moe::topkGatingSoftmax<8>(float const*)",
    "deepep_like_gemm_kernel",
]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_communication_by_name(name: str) -> None:
    assert is_communication(name)
    assert kernel_class(name) == "communication"


@pytest.mark.parametrize("name", NO_COLLECTIVES)
def test_words_of_communication_elsewhere(name: str) -> None:
    assert not is_communication(name)


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("triton_poi_fused_addmm_gelu_view_17", "elementwise"),
        # Words inside words: ten-sort-ransform, rope of neighbours ("norm" for normal).
        ("tensorTransformGeneric", "transpose"),
        ("void rope_norm<true, false, float>(float const*, float*)", "elementwise"),
        ("void soft_max_f32<true, 1024, 1024, float>(float const*)", "softmax"),
        ("cpy_f32_f16", "copy"),
        ("void k_get_rows_float<float, float>(float const*, int const*)", "embedding"),
        ("triton_poi_fused__to_copy_1", "elementwise"),
        ("triton_for_fused_3", "elementwise"),
        ("triton_red_fused_add_addmm_mul_native_layer_norm_view_18", "reduction"),
        ("triton_per_fused__to_copy_addmm_as_strided_scaled_dot_product_attention_mean_24", "reduction"),
        ("triton_tem_fused_addmm_relu_4", "gemm"),
        ("triton_tem_fused_flex_attention_0", "attention"),
        ("triton_tem_fused_convolution_silu_2", "convolution"),
        ("sage_fwd_mxfp4", "attention"),
        ("qk_int8_sv_f16_accum_f32_attn_kernel", "attention"),
        ("void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(T*)", "sort"),
        ("void at::native::mbtopk::radixFindKthValues<float, unsigned int>(T*)", "sort"),
        ("sm80_xmma_pooling_fw_4d_FP16FP16NHWC_MAX", "pooling"),
        ("void cudnn::pooling_fw_4d_kernel<float, float, cudnn::maxpooling_func<float>>(T)", "pooling"),
        ("void at::native::(anonymous namespace)::max_pool_forward_nchw<float>(int)", "pooling"),
        ("mloPoolingG", "pooling"),
        ("void fbgemm_gpu::permute_pooled_embs_kernel<float>(int)", "transpose"),
        ("ampere_scudnn_128x128_relu_interior_nn_v1", "convolution"),
        ("batched_transpose_32x32_half", "transpose"),
        ("SubTensorOpWithScalar4d", "transpose"),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(T*)", "copy"),
        ("create_flashinfer_kv_indices_triton", "copy"),
        ("DispatchReduceByKey", "reduction"),
        ("groupnorm_kernel_dispatch", "normalization"),
    ],
)
def test_classes_from_the_kernel_not_from_words_in_its_name(name: str, cls: str) -> None:
    assert kernel_class(name) == cls


def test_every_name_has_its_source() -> None:
    data = tomllib.loads(Path(kernel_names.__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    assert all(entry["source"].strip() for entry in (*data["communication"], *data["classes"]))


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
