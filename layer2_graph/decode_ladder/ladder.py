"""The ladder: every rung, and the reasons why this machine cannot run some of them."""

import shutil
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch

from layer2_graph.cpu.kernels import cpu_kernels, one_block
from layer2_graph.decode_ladder.decoders import Compiled, Decoder, Replayed
from layer2_graph.decode_ladder.hugging_face import HuggingFace, their_model
from layer2_graph.g01_llama import Llama
from layer2_graph.g03_merging import MergedLlama
from layer2_graph.g05_fused_llama import FusedLlama

GRAPH = "fused, CUDA graph"


class Rung(NamedTuple):
    """One way to decode, or the reason why this machine cannot run it."""

    name: str
    make: Callable              # () -> what decodes and counts
    missing: str = ""           # why it cannot run here, or nothing
    untimed: str = ""           # why its time here would be meaningless, or nothing


def no_compiler():
    """Why torch.compile cannot make code for this CPU, or nothing."""
    if not shutil.which("g++"):
        return "torch.compile found no g++"
    if " " in torch.__file__:               # it links without quotation marks
        return "torch.compile cannot link where torch's path has a blank"
    return ""


def ladder(model, hugging_face, sequences, room):
    """[Rung], from the bottom. model: g01's    hugging_face: transformers' config, or why not"""
    device = model.embedding.device.type
    dtype = model.embedding.dtype
    m = model.config
    ops = model.ops
    compiler = "" if device == "cuda" else no_compiler()
    absent = hugging_face if isinstance(hugging_face, str) else ""
    numpy = ("" if (device, dtype, sequences) == ("cpu", torch.float32, 1) else
             "that is for one sequence in float32 on a CPU")

    def ours(kind, decoder=Decoder):
        return decoder(kind(m, model.weights, ops), sequences, room)

    theirs = cache(lambda: their_model(hugging_face, model))

    def generate(**settings):
        return HuggingFace(theirs(), **settings)

    def compile_config():                       # on a CPU generate() compiles only if forced to
        import transformers

        config = transformers.CompileConfig()
        config._compile_all_devices = True
        return config

    static = {"cache_implementation": "static"}
    return [
        Rung("g01, op by op", lambda: ours(Llama)),
        Rung("merged", lambda: ours(MergedLlama)),
        Rung("fused", lambda: ours(FusedLlama)),
        Rung("fused, torch.compile", lambda: ours(FusedLlama, Compiled), compiler),
        Rung(GRAPH, lambda: ours(FusedLlama, Replayed),
             untimed="" if device == "cuda" else "a CPU replays a tape"),
        Rung("fused, one token by NumPy", lambda: Decoder(
            one_block(FusedLlama(m, model.weights, cpu_kernels())), sequences, room), numpy),
        Rung("Hugging Face", generate, absent),
        Rung("Hugging Face, static cache", lambda: generate(**static, disable_compile=True),
             absent),
        Rung("Hugging Face, static, compiled",
             lambda: generate(**static, compile_config=compile_config()), absent or compiler),
    ]
