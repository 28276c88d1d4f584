"""Tiles by names of kernels, and how they fill a device, worked by hand."""

import pytest
from gpu_trace_advisor.roofline.tiles import blocks_of, filled, tile_of, tiling

TENSILE = "Cijk_Ailk_Bljk_BBS_BH_MT256x112x64_MI16x16x16x1_SN"


@pytest.mark.parametrize(
    ("name", "sides"),
    [
        (TENSILE, (256, 112)),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_CMS", (256, 192)),
        ("ampere_sgemm_128x64_tn", (128, 64)),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x3_tn", (128, 64)),
        ("volta_h884gemm_64x128_ldg8_nn", (64, 128)),
        ("cutlass_80_tensorop_s1688gemm_256x64_16x4_tn_align4", (256, 64)),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_64x2_tn_align8>", (32, 32)),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel", (128, 128)),
        ("nvjet_tst_192x128_64x5_2x1_v_bz_coopA_NNT", (192, 128)),
        ("igemm_fwd_gtcx_nhwc_fp32_bx0_bt64x32x16", (64, 32)),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", (16, 128)),
        ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16", (128, 16)),
        ("my_gemm_kernel", None),
        ("vectorized_elementwise_kernel", None),
    ],
)
def test_names(name: str, sides: tuple[int, int] | None) -> None:
    assert tile_of(name) == sides


def test_waves() -> None:
    """629 blocks on 304 units: two full waves, and one with 21; 629 of 912 places."""
    waves, fill = filled(629, 304)
    assert waves == pytest.approx(629 / 304) and fill == pytest.approx(629 / 912)
    assert filled(304, 304) == (1.0, 1.0)
    assert filled(8, 304)[1] == pytest.approx(8 / 304)


def test_the_grid_tells_orientation_and_splits() -> None:
    """Tensile's grid counts threads: [512, 4] of blocks of 256 are eight blocks, four tiles each split in two."""
    assert blocks_of(TENSILE, (512, 4, 1), (256, 1, 1)) == 8
    name = "Cijk_Ailk_Bljk_BBS_BH_MT256x128x64_MI16x16x16x1_SN"
    cut = tiling(name, 256, 512, 1, (512, 4, 1), (256, 1, 1), 304, reduced="Cijk_B_PostGSU2")
    assert cut and (cut.tiles, cut.splits, cut.blocks) == (4, 2, 8)
    cut = tiling(name, 256, 512, 1, None, None, 304, reduced="Cijk_B_PostGSU2")  # no grid: the names tell
    assert cut and (cut.tiles, cut.splits) == (4, 2)
    # 1000 x 100 in tiles of 128 x 64: 16 x 1 or 8 x 2 are 16 as well; of 128 x 32: 8 x 4 = 32 or 32 x 1.
    cut = tiling("ampere_sgemm_128x32_tn", 1000, 100, 2, (8, 4, 2), (128, 1, 1), 108)
    assert cut and (cut.tiles, cut.splits) == (64, 1)
    assert cut.inside == pytest.approx(1000 * 100 * 2 / (64 * 128 * 32))


def test_a_persistent_kernel_has_its_own_grid() -> None:
    """132 blocks take 4096 tiles between them."""
    cut = tiling("nvjet_tst_128x128_64x6_2x1_v_bz_TNT", 8192, 8192, 1, (132, 1, 1), (384, 1, 1), 132)
    assert cut and (cut.tiles, cut.splits, cut.waves) == (4096, 1, 4096 / 132)


def test_narrow_results_leave_tiles_empty() -> None:
    cut = tiling("Cijk_Ailk_Bljk_BBS_BH_MT256x448x64_MI16x16x16x1_SN", 65536, 8, 1, None, None, 304)
    assert cut and cut.inside == pytest.approx(65536 * 8 / (147 * 448 * 256))
    assert cut.tiles == 147  # 65536 in tiles of 448 (147), not of 256 (256)
