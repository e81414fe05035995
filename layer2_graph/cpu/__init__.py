"""A Llama for few tokens on a CPU.

kernels    the table of kernels, in NumPy
attention  attention over pages
llama      CpuLlama: a decode step without PyTorch
"""
