"""What fewer bits of activations and cache cost.

    python -m layer2_graph.bench.activation_bits quality | speed

quality: perplexity of the small model on every eighth document held out.
Scales that are set beforehand come from every sixth document of the text that chose the best step
of training.
speed: on this CPU, one thread, ROUNDS times by turns. "activations": ROWS rows times a matrix, in
fp32 and by PyTorch's product of int8 codes, tokens' codes made in the run. "cache": one token that
attends to CONTEXT, from fp32 pages and from QuantizedCaches.
benchmarks/flow_bits.json has both.
"""

import sys
from functools import partial

import torch

from day01_roofline import take_turns
from lab.course import ROOT
from layer1_kernels import kernels
from layer2_graph.bench.weight_bits import keep, seconds
from layer2_graph.checkpoint import Tokenizer
from layer2_graph.config import Config
from layer2_graph.g01_llama import PagedCache, load
from layer2_graph.g07_weight_quantization import LEVELS, perplexity
from layer2_graph.g08_activation_kv_quantization import (
    QuantizedCache,
    by_channel,
    by_token,
    channel_maxima,
    dynamic,
    int_levels,
    outlier_columns,
    quantize_tokens,
    smoothed,
    split,
    static,
    with_kv,
    with_outliers,
)
from layer2_graph.models import SMALL
from layer2_graph.small.corpus import BEGIN, corpus

RECORD = ROOT / "benchmarks" / "flow_bits.json"
JUDGED, SEEN = 8, 6                     # one document of this many
TIMES, CHANNELS = 50, [7, 60, 111]      # of the made outliers
SIDE = 2048
ROWS = 256
CONTEXT = 8192
ROUNDS = 7

KINDS = {"int8": LEVELS["int8"], "fp8": LEVELS["fp8"], "int6": int_levels(6),
         "int4": LEVELS["int4"], "fp4": LEVELS["fp4"], "int3": int_levels(3),
         "int2": int_levels(2)}


# ---- what is lost


def same(x):
    return x


def activations(model, maxima):
    """(name, the Llama). maxima: {calibration text: channel_maxima}"""
    for kind in ("int8", "fp8", "int6", "int4", "fp4", "int3"):
        yield f"{kind}, dynamic", dynamic(model, KINDS[kind])
        yield f"{kind}, static", static(model, KINDS[kind], maxima["both"])
    for text in ("stories", "docstrings"):
        for kind in ("int8", "fp8", "int4"):
            yield f"{kind}, static, {text}", static(model, KINDS[kind], maxima[text])


def outliers(model, texts):
    """(name, the Llama): weights and activations in int8 or int4, of the model and of a hard one.
    """
    for label, own in {"small": model, "made": with_outliers(model, CHANNELS, TIMES)}.items():
        maxima = channel_maxima(own, texts)
        smooth = smoothed(own, maxima)
        yield f"{label}, fp32", own
        yield f"{label}, smooth, fp32", smooth
        none = {name: torch.arange(0) for name in maxima}
        for kind in ("int8", "int4"):
            yield f"{label}, {kind}", split(own, KINDS[kind], none)
            yield f"{label}, {kind}, split", split(own, KINDS[kind], outlier_columns(maxima, 3))
            yield f"{label}, {kind}, smooth", split(smooth, KINDS[kind], none)


def caches(model):
    """(name, the Llama)."""
    for kind in ("int8", "fp8", "int4", "fp4", "int3", "int2"):
        change = by_token(KINDS[kind])
        yield f"{kind}, K", with_kv(model, change, same)
        yield f"{kind}, V", with_kv(model, same, change)
        yield f"{kind}, both", with_kv(model, change, change)
    for kind in ("int8", "int4", "int3", "int2"):
        change = by_channel(KINDS[kind])
        yield f"{kind}, K by channel", with_kv(model, change, same)
        yield f"{kind}, V by channel", with_kv(model, same, change)


def quality():
    model = load(SMALL, dtype=torch.float32)
    tokenizer = Tokenizer(SMALL, model.config)

    def tokens(texts, step):
        return [tokenizer.encode(text.removeprefix(BEGIN))[:model.config.room]
                for text in texts[::step]]

    judged = {part: tokens(texts, JUDGED) for part, texts in corpus("held out")._asdict().items()}
    calibration = {part: tokens(texts, SEEN) for part, texts in corpus("dev")._asdict().items()}
    calibration["both"] = sum(calibration.values(), [])
    maxima = {part: channel_maxima(model, some) for part, some in calibration.items()}
    results = {"fp32": {"fp32": judge(model, judged)}}
    for part, every in {"activations": activations(model, maxima),
                        "outliers": outliers(model, calibration["both"]),
                        "cache": caches(model)}.items():
        results[part] = {}
        for name, own in every:
            # one document at a time, so that by_channel's groups are of one text
            results[part][name] = judge(own, judged, 1 if part == "cache" else 16)
            print(part, name, results[part][name], flush=True)
    return {"perplexity": results, "channels": ratios(maxima["both"]), "tokens": {
        part: sum(len(text) - 1 for text in texts) for part, texts in judged.items()}}


def judge(model, judged, rows=16):
    return {part: perplexity(model, texts, rows) for part, texts in judged.items()}


def ratios(maxima):
    """{name of a matrix: its largest channel over the median one}"""
    return {name: float(largest.max() / largest.median()) for name, largest in maxima.items()}


# ---- what is gained


def matmuls():
    """{name: (bits of an activation, a call)}"""
    torch.manual_seed(0)
    w, x = torch.randn(SIDE, SIDE), torch.randn(ROWS, SIDE)             # (N, K), (T, K)
    codes, scales = quantize_tokens(w, LEVELS["int8"])

    def int8():
        largest = x.abs().amax(-1, keepdim=True) / 127
        return torch._int_mm((x / largest).round().char(), codes.T) * largest * scales.T

    return {"fp32": (32, partial(torch.matmul, x, w.T)), "int8": (8, int8)}


def attending():
    """{name: (bytes of a token, a call)}: one layer of 8 kv heads of 128, four queries to each."""
    m = Config(L=1, C=64, H=32, G=8, D=128, F=64, V=8, eps=1e-5, theta=1e4, room=CONTEXT)
    ops = kernels("torch")
    ways = {}
    for name, cache in {"fp32": PagedCache(m, 1, CONTEXT), **{
            kind: QuantizedCache(m, 1, CONTEXT, KINDS[kind], KINDS[kind])
            for kind in ("int8", "int4")}}.items():
        cache.step([[0] * (CONTEXT - 1)])
        step = cache.step([[0]])
        q = torch.randn(1, m.H, m.D)
        k = torch.randn(1, m.G, m.D)
        arrays = [a for a in vars(cache).values() if torch.is_tensor(a)]
        ways[name] = (sum(a.nbytes for a in arrays) / CONTEXT,
                       partial(cache.attend, 0, q, k, k, step, ops, m.D ** -0.5))
    return ways


def speed():
    torch.set_num_threads(1)
    results = {"sizes": {"side": SIDE, "rows": ROWS, "context": CONTEXT}, "rounds": ROUNDS,
             "threads": 1}
    for part, ways in {"activations": matmuls(), "cache": attending()}.items():
        taken = take_turns({name: partial(seconds, call) for name, (_, call) in ways.items()},
                           ROUNDS)
        results[part] = {name: {"size": size, "seconds": taken[name]}
                       for name, (size, _) in ways.items()}
    return results


if __name__ == "__main__":
    sys.exit(keep({"quality": quality, "speed": speed}, RECORD))
