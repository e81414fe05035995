"""Ladders, targets and measurements: a file for each lesson, with its name.

k01_vector_add        adds
k02_transpose         transposes
k03_reduce            sums
k04_matmul_naive      matmul without tiles
k05_matmul_tiled      matmul on tiles
k06_matmul_registers  matmul in registers
k07_softmax           softmax
k08_rmsnorm           RMSNorm and LayerNorm
k09_rope              RoPE
k10_swiglu            SwiGLU
k11_cross_entropy     cross-entropy
k12_tensor_cores      matmul on tensor cores
k13_flash_attention   flash attention
k14_paged_attention   paged attention
k15_quantized_matmul  quantised matmul
k16_warp_tiles        matmul with a tile for each warp, loaded ahead
k17_pipelines         matmul that copies ahead
k19_fp8_matmul        scaled eight bits
k18_flash_backward    gradients of flash attention
k20_grouped_gemm      experts
"""
