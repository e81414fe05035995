"""One layer through four compilers:  python -m layer2_graph.compilers.

rows       a row for each compiler: what it made of the layer, counted
texts      what compilers wrote, read: Dynamo's neighbour inductor, ONNX, XLA
jax_block  the layer in JAX
"""
