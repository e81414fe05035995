"""What is measured of this floor; a lesson's file has the lesson's name.

g05_fused_llama  a decode step by each rung
g06_cuda_graphs  a decode step from a CUDA graph
g13_state_space  what Triton makes of a kernel for Hopper
decode_speed     one text on a CPU, beside Hugging Face
decode_card      its record as a table
weight_bits      what fewer bits of weights cost
sparsity         what zeros in weights cost, and what is lost where a query sees less
sparse_speed     what zeros save on a CPU
activation_bits  what fewer bits of activations and cache cost
fp8_products     what e4m3 in matmuls costs, for k19
qat              rounding against training at few bits
trace            a trace of a request, for o01
"""
