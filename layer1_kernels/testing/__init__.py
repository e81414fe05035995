"""Arguments for the kernels' tests, and what comes of them in float64: nothing here asserts.

pages  Batches of sequences whose keys lie in pages, and their attention.
"""
