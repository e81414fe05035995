"""Graphs of PyTorch operations, read, rewritten and run.

rewriting  patterns, and what replaces them
fusions    the passes that fuse a Llama
recording  a graph run, with its launches and storages
"""
