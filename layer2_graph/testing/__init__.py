"""Given code round exercises of the graph: it returns what came out, and asserts nothing.

compile_driver  operators and compiled functions of g09
graphs          graphs of a few calls, which passes rewrite
programs        random programs of PyTorch calls
"""
