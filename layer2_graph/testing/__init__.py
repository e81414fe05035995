"""Given code round exercises of the graph, and models for tests: nothing here asserts.

compile_driver  operators and compiled functions of g09
random_llama    a small Llama of random weights
layer_traffic   launches and bytes of a step of it, of three kinds and six families
graphs          graphs of a few calls, which passes rewrite
programs        random programs of PyTorch calls
"""
