"""Graders of g01.
A layer is compared with NumPy in float64, around a given attention; whole models with Hugging
Face transformers, family by family."""

import json
import math
from collections import Counter

import numpy as np
import pytest
import torch

from lab.judge.adversarial import VALUES, WORDS, views
from lab.judge.compare import brief
from lab.judge.mistakes import mistake, named
from layer1_kernels import kernels
from layer2_graph import Launches, PagedCache, greedy, load
from layer2_graph.testing.random_llama import random_llama
from tests.layer2_graph.oracle_g01_llama import Block

# ---- last_rows


@pytest.mark.parametrize("counts", [[3, 1, 4], [1, 1], [7], [1, 0, 2]])
def test_last_rows(subject, agree, counts):
    judge_last_rows(subject, agree, counts,
                    f"of sequences of {', '.join(map(str, counts))} new tokens")


def judge_last_rows(subject, agree, counts, of):
    """Rows are whole numbers that can index a tensor."""
    cu_q = torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32)
    starts, ends = cu_q[:-1].numpy(), cu_q[1:].numpy()
    got = subject.last_rows(cu_q)
    kind = "nothing (None)" if got is None else f"a {type(got).__name__}"
    assert torch.is_tensor(got), mistake("no_tensor", (
        f"last_rows: got {kind}, expected a tensor of {len(counts)} rows"), "expected a tensor")
    rows = got.numel()
    assert rows != len(counts) + 1, mistake("zero_kept", (
        f"last_rows: got {rows} rows for {len(counts)} sequences: no sequence ends at the 0 that "
        f"cu_q begins with"), "the 0 that cu_q begins with is kept")
    assert rows != 1 or len(counts) == 1, mistake("last_alone", (
        f"last_rows: got one row for {len(counts)} sequences: each of them has a last row"), "")
    assert got.dtype in (torch.int32, torch.int64), mistake(
        "not_whole",
        f"last_rows: got {got.dtype}, expected row numbers, of int64 or int32")
    assert rows != len(set(ends)) or 0 not in counts, mistake("one_dropped", (
        f"last_rows: got {rows} rows {of}: each of the {len(counts)} sequences gets a row of "
        f"scores, the one without a new token too"), "")
    agree(got, ends - 1, "exact", f"the last rows {of}", at=lambda i: f"sequence {i[0]}", mistakes={
        "next_first": ("each row is the first of the next sequence", ends),
        "own_first": ("each row is the sequence's own first", starts),
        "count_less_one": ("token counts less one are taken for row numbers", ends - starts - 1),
        "counts": ("each row number is the count of the sequence's tokens", ends - starts),
        "row_before": ("each row is the last of the sequence before", starts - 1),
        "row_b": ("sequence b gets row b, as if each had one token", np.arange(len(counts))),
        "16_bits": ("rows are kept in 16 bits", ends.astype(np.int16).astype(np.int64) - 1)})


def test_last_rows__unseen(unseen, rng):
    counts = torch.from_numpy(rng.integers(1, 50, 20)).int()
    unseen("last_rows", torch.cat((torch.zeros(1).int(), counts.cumsum(0).int())),
           precision="exact", shown=f"new tokens {counts.tolist()}")


ENDS = {"one sequence of one token": [1], "sixteen of one token": [1] * 16,
        "one long among short ones": [1, 17, 1], "the long one last": [2, 40_000],
        "past what float32 counts": [2**24 + 1, 2, 2**30],
        "up to the end of int32": [2**30, 2**30 - 1]}


def test_last_rows__hard(subject, agree):
    for what, counts in ENDS.items():
        judge_last_rows(subject, agree, counts, f"of {what}")


# ---- llama_block


class Given(Block):
    """Three layers of ragged widths with random weights, one of which is called; the functions
    around it are watched."""

    def __init__(self, subject, rng, T=5, C=11, H=4, G=2, D=4, F=7, i=1, head_norms=False,
                 last=31):
        """C: by itself 11, where C // H, C / H and D tell each other apart"""
        self.T, self.C, self.H, self.D, self.eps, self.i = T, C, H, D, 0.1, i
        self.room = last + 1
        sizes = {"q": (H * D, C), "k": (G * D, C), "v": (G * D, C), "o": (C, H * D),
                 "gate": (F, C), "up": (F, C), "down": (C, F)}
        norms = {"attention_norm": C, "mlp_norm": C} | (
            {"q_norm": D, "k_norm": D} if head_norms else {})
        self.layers = [
            ({name: rng.standard_normal(size) for name, size in (sizes | norms).items()},
             {name: rng.standard_normal(size[0]) for name, size in sizes.items()})
            for _ in range(3)]
        self.w, self.bias = self.layers[i]
        config = subject.make("layer2_graph.config:Config", L=3, C=C, H=H, G=G, D=D, F=F, V=1,
                              eps=self.eps, theta=100.0, room=self.room)
        table = subject.kernels("torch")
        self.ops = {name: subject.make("lab.judge.mocks:Watched", getattr(table, name))
                    for name in ("rmsnorm", "matmul", "swiglu", "rope")}
        self.answer = rng.standard_normal((T, H, D))
        self.ops |= {name: subject.make("lab.judge.mocks:Watched", None, torch.from_numpy(answer))
                     for name, answer in (("paged_attention", self.answer),
                                          ("write_kv", np.zeros(0)))}
        self.rope = self.ops["rope"]
        ops = subject.make("types:SimpleNamespace", **self.ops)
        blank = {name: torch.zeros(1, C).double() for name in
                 ("model.embed_tokens.weight", "lm_head.weight")}
        self.model = subject.Llama(config, blank | {"model.norm.weight": torch.ones(C)} | {
            f"model.layers.{layer}.{name}": torch.from_numpy(array) for layer in range(3)
            for name, array in self.named(*self.layers[layer])}, ops)
        self.x = rng.standard_normal((T, C))
        self.positions = np.resize([4, 9, 0, 1, 2, last], T)      # of three sequences
        self.slots = rng.permutation(32)[:T]
        B = min(T, 3)
        self.step = subject.Batch(
            torch.zeros(T).long(), torch.from_numpy(self.positions), torch.from_numpy(self.slots),
            torch.arange(2 * B).int().view(B, 2), torch.tensor([*range(B), T]).int(),
            torch.tensor([5, 10, 31][:B]).int())
        self.attend = subject.make("lab.judge.mocks:Watched", None, torch.from_numpy(self.answer))
        pages = torch.zeros(3, 4, 8, G, D).double()
        self.cache = subject.make("types:SimpleNamespace", attend=self.attend, k=pages,
                                  v=pages.clone())

    def named(self, weights, biases):
        """The tensors of a layer as Hugging Face names them."""
        norms = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
        for name, array in weights.items():
            place = "self_attn" if name[0] in "qkvo" else "mlp"
            if name in ("q_norm", "k_norm"):
                norms[name] = f"self_attn.{name}"
            full = norms.get(name) or f"{place}.{name}_proj"
            yield f"{full}.weight", array
            if name in biases:
                yield f"{full}.bias", biases[name]

    def run(self, subject, x=None):
        x = torch.from_numpy(self.x.copy()) if x is None else x
        with named("positions_of_sequences", "ops.rope takes batch.positions, one number for each "
                   "token; batch.lens has one for each sequence.", self.rope_is_short), named(
                       "tables_indexed", "ops.rope takes the rows of model.cos and model.sin "
                       "itself, by batch.positions: it needs the whole tables.", self.tables_cut):
            out = subject.llama_block(self.model, self.i, x, self.step, self.cache)
        assert np.array_equal(x.numpy(), self.x, equal_nan=True), mistake("input_changed", (
            "llama_block changes its argument x: x = x + … makes a new tensor, and x += … does "
            "not"))
        kind = "nothing (None)" if out is None else f"a {type(out).__name__}"
        assert torch.is_tensor(out), mistake("no_tensor", (
            f"llama_block: got {kind}, expected one tensor (T, C)"))
        for name in ("write_kv", "paged_attention"):
            assert not self.ops[name].calls, mistake("own_attention", (
                f"llama_block calls ops.{name}: it knows nothing of pages. cache.attend writes and "
                f"attends, whatever kind of cache it is"), "cache.attend writes and attends")
        return out

    def rope_is_short(self, error):
        """Whether rope was given positions, but not one for each token."""
        return any(len(call) == 5 and len(call[4]) != self.T for call in self.rope.calls)

    def tables_cut(self, error):
        """Whether rope was given some rows of cos or of sin, and had none for a position."""
        return getattr(error, "type", "") == "IndexError" and any(
            len(call) == 5 and min(map(len, call[2:4])) < self.room for call in self.rope.calls)


def test_llama_block(subject, agree, rng):
    judge_block(subject, agree, Given(subject, rng))


BLOCKS = {
    "one token": {"T": 1}, "the first layer": {"i": 0}, "the last layer": {"i": 2},
    "one head": {"H": 1, "G": 1}, "as many key heads as query heads": {"G": 4, "D": 2},
    "17 tokens": {"T": 17}, "a model narrower than its MLP": {"C": 6},
    "a token at position 40,000": {"T": 6, "D": 2, "last": 40_000},   # of one exact frequency
    "norms of each head": {"head_norms": True, "H": 6, "G": 3}}


def test_llama_block__hard(subject, agree, rng):
    """Other sizes and layers, then hard numbers and layouts of x, in one process."""
    for what, sizes in BLOCKS.items():
        judge_block(subject, agree, Given(subject, rng, **sizes), f", {what}")
    given = Given(subject, rng, T=9)
    for kind in sorted(set(VALUES) - {"infinite", "not_a_number"}):
        given.x = VALUES[kind](rng, given.x.shape).astype(np.float64)
        judge_block(subject, agree, given, f", x of {WORDS[kind]}")
    for layout, x in views(torch.from_numpy(given.x)).items():
        judge_block(subject, agree, given, f", x with {layout}", x)
    given.x[4, 1] = np.nan                                  # nothing else in other rows
    agree(given.run(subject), given.out(), "float32", "llama_block, token 4 holds NaN",
          at=lambda i: f"token {i[0]}, channel {i[1]}")


def judge_block(subject, agree, given, what="", x=None):
    """The result, and what cache.attend is given."""
    before = len(given.attend.calls)
    got = given.run(subject, x)
    calls = given.attend.calls[before:]
    assert calls, "llama_block does not call cache.attend"
    assert len(calls) == 1, mistake("attend_twice", (
        f"llama_block{what}: cache.attend is called {len(calls)} times, expected once"), "")
    assert given.rope.calls, mistake(
        "no_rope", "llama_block does not call the rope of model.ops, so attention cannot know the "
                   "positions")
    judge_attend(agree, given, calls[0], what)
    agree(got, given.out(), "float32",
          f"the result of llama_block{what}, which gave cache.attend the right arguments",
          at=lambda i: f"token {i[0]}, channel {i[1]}", mistakes=given.wrong_outs())


def judge_attend(agree, given, call, what):
    """The arguments of cache.attend."""
    assert len(call) == 7 and "Batch" in repr(call[4]), mistake("arguments", (
        f"llama_block: cache.attend got {', '.join(map(brief, call))}; it takes 7 arguments: the "
        f"layer's number, q, k, v, batch, ops, scale"), "")
    layer, q, k, v, _, _, scale = call
    assert layer == given.i, mistake(
        "other_layer", f"cache.attend was called with layer {layer}, expected i = {given.i}",
        "cache.attend was called with another layer")
    at = given.positions
    want, keys = given.heads("q", at), given.heads("k", at)
    assert (np.shape(q), np.shape(k)) != (keys.shape, want.shape) or keys.shape == want.shape, \
        mistake("q_and_k", (f"llama_block{what}: cache.attend got q {keys.shape} and k "
                            f"{want.shape}, expected q {want.shape}: q comes before k"),
                "q comes before k")
    for name, array, right, mistakes in (
            ("q", q, want, given.wrong_heads("q")),
            ("k", k, keys, given.wrong_heads("k")),
            ("v", v, given.heads("v"), {"v_rotated": (
                "v is rotated as well; only q and k should be", given.heads("v", at))})):
        agree(array, right, "float32", f"the {name} passed to cache.attend{what}",
              at=lambda i: f"token {i[0]}, head {i[1]}, number {i[2]}", mistakes=mistakes)
    agree(scale, given.D ** -0.5, "float64", f"the scale passed to cache.attend{what}",
          mistakes=given.wrong_scales())


@pytest.mark.parametrize("head_norms", [False, True])
def test_llama_block__computes_by_the_table(subject, rng, head_norms):
    """A layer computes with the kernels that it is given."""
    given = Given(subject, rng, head_norms=head_norms)
    given.run(subject)
    for name, want in {"matmul": 7, "rmsnorm": 4 if head_norms else 2, "swiglu": 1,
                       "rope": 1}.items():
        calls = len(given.ops[name].calls)
        of_heads = " (the norms of q and k are model.heads' work)" if head_norms else ""
        assert calls == want, mistake(f"without_{name}", (
            f"llama_block calls ops.{name} {calls} times, expected {want}. Use the kernels of the "
            f"table instead of PyTorch's operations{of_heads}"), f"llama_block calls ops.{name}")


def launches(side, m, weights, x):
    """The names of the launches of a layer, with the table's own attention."""
    config = side.make("layer2_graph.config:Config", **vars(m))
    seen = side.make("layer2_graph.launches:Launches")
    model = side.Llama(config, weights, seen.counting(side.kernels("torch")))
    cache = side.PagedCache(config, 2, 16)
    step = cache.step([[1, 2], [3]])
    with seen:
        side.llama_block(model, 0, x, step, cache)
    return seen.names


def test_llama_block__as_many_launches_as_the_course(subject, reference, rng):
    model = random_llama()
    x = torch.from_numpy(rng.standard_normal((3, model.config.C))).float()
    names, own = (launches(side, model.config, model.weights, x) for side in (subject, reference))
    more = [*(Counter(names) - Counter(own)).elements()]
    assert len(names) <= len(own), mistake("more_launches", (
        f"llama_block makes launches that it does not need: {', '.join(more)}. Kernels take views, "
        f"and each operation of PyTorch that makes an array is a launch"), "")


# ---- predict_launches


def test_predict_launches(subject, truth):
    """The truth is counted: the launches of two layers less those of one."""
    def counted(layers):
        model = random_llama(L=layers)
        cache = PagedCache(model.config, 1, 16)
        step = cache.step([[1, 2]])
        with Launches() as seen:
            model.ops = seen.counting(model.ops)
            model.forward(step, cache)
        return seen.names

    names, less = truth(lambda: [counted(2), counted(1)])
    want = len(names) - len(less)
    got = subject.predict_launches()
    assert type(got) in (int, float), mistake("no_number", (
        f"predict_launches: a prediction is a number, got {got!r}"))
    wrong = {
        want - 2: ("no_additions", "The two additions are launches too, PyTorch's own."),
        want - 1: ("attend_once", "cache.attend makes two launches: the write into the pages, and "
                                  "attention."),
        want - 3: ("boxes_of_picture", "That is the number of boxes in the picture: one of them is "
                                       "three matrices, and `attend` makes two launches."),
        want - 6: ("one_matrix", "Seven matrices are seven launches."),
        want + 1: ("flatten_counted", "A view, such as flatten here, is no launch."),
        2 * want: ("two_layers", "That is two layers; one call of llama_block is one."),
        len(names): ("whole_step", "That is a whole step of two layers; count one layer.")}
    name, sentence = wrong.get(got, ("other", (
        "That is too few. Count what model.heads and cache.attend start too, each matrix by "
        "itself, and PyTorch's own operations.") if got < want else (
        "That is too many. One layer is asked for; a view starts nothing, nor do a bias and a norm "
        "that this model does not have.")))
    assert got == want, mistake(name, f"predict_launches: {got} launches is not right. {sentence}",
                                sentence)


# ---- llama3_frequencies


@pytest.mark.parametrize("theta, D, factor, low, high, original", [
    (500_000, 128, 8, 1, 4, 8192), (10_000, 16, 32, 3, 20, 300)])
def test_llama3_frequencies(subject, agree, theta, D, factor, low, high, original):
    old = theta ** (-np.arange(0, D, 2) / D)

    def ratio(turns=lambda f: original * f / (2 * math.pi), least=0.0, most=1.0,
              ramp=lambda n: (n - low) / (high - low),
              mean=lambda f, share: share * f + (1 - share) * f / factor):
        """New over old, by a way to count turns, a share of the old frequency, a mix of both."""
        return mean(old, np.clip(ramp(turns(old)), least, most)) / old

    got = subject.llama3_frequencies(torch.from_numpy(old), factor, low, high, original)
    assert torch.is_tensor(got) and got.shape == old.shape, mistake("shape", (
        f"llama3_frequencies: got {brief(got)}, expected a tensor of {len(old)} frequencies"))
    assert got.dtype == torch.float64, mistake("digits", (
        f"llama3_frequencies: got {got.dtype} for frequencies in torch.float64, so that digits are "
        f"lost; the result has the dtype of frequencies"), "")
    agree(got.numpy() / old, ratio(), "float64",
          f"new over old frequencies of {D // 2} pairs, low = {low}, high = {high}, an old context "
          f"of {original} tokens",
          at=lambda i: f"pair {i[0]}, one turn in {2 * math.pi / old[i[0]]:.0f} tokens", mistakes={
              "all_slower": ("all pairs are slowed down, the fast ones too", 1 / factor),
              "none_slower": ("nothing is slowed down", 1.0),
              "no_mix": ("pairs between low and high are slowed down wholly, not mixed",
                         ratio(ramp=lambda n: n >= high)),
              "no_mix_at_low": ("pairs between low and high keep their frequency, and are not "
                                "mixed", ratio(ramp=lambda n: n >= low)),
              "no_2_pi": ("2π is missing: a frequency is in radians a token, and a turn is 2π "
                          "radians", ratio(turns=lambda f: original * f)),
              "pi": ("a turn is taken for π radians; it has 2π",
                     ratio(turns=lambda f: original * f / math.pi)),
              "times_2_pi": ("the turns are multiplied by 2π, not divided",
                             ratio(turns=lambda f: original * f * 2 * math.pi)),
              "longer_original": (
                  "`original` is multiplied by `factor`; the turns count in the old context",
                  ratio(turns=lambda f: original * factor * f / (2 * math.pi))),
              "fast_slower": ("the fast pairs are slowed down instead of the slow ones",
                              1 / factor + 1 - ratio()),
              "no_clamp": ("the share is not clamped to 0 … 1",
                           ratio(least=-math.inf, most=math.inf)),
              "below_0": ("shares below 0 remain: the slowest pairs are slowed down too much",
                          ratio(least=-math.inf)),
              "above_1": ("shares above 1 remain: the fastest pairs become faster",
                          ratio(most=math.inf)),
              "linear_in_length": (
                  "the mix is linear in the tokens of a turn, not in the number of turns",
                  ratio(ramp=lambda n: (1 / low - 1 / n) / (1 / low - 1 / high))),
              "lengths_mixed": ("the tokens of a turn are mixed, not the frequencies",
                                ratio(mean=lambda f, share: f / (share + (1 - share) * factor))),
              "powers": ("the old and the new frequency are multiplied as powers; they are added "
                         "with shares", ratio(mean=lambda f, share: f * factor ** (share - 1))),
              "by_high": ("turns - low is divided by high, not by high - low",
                          ratio(ramp=lambda n: (n - low) / high)),
              "from_0": ("the share grows from 0 turns on, not from low",
                         ratio(ramp=lambda n: n / high)),
              "low_and_high": ("1 and 4, those of Llama 3.1, are used instead of low and high",
                               ratio(ramp=lambda n: (n - 1) / (4 - 1))),
              "new_left_out": ("the share of the new frequency is left out",
                               ratio(mean=lambda f, share: share * f)),
              "new_1_over_factor": ("the new frequency is 1 / factor, not frequency / factor",
                                    ratio(mean=lambda f, share: share * f + (1 - share) / factor)),
              "faster": ("the frequency is multiplied by factor instead of divided",
                         ratio(mean=lambda f, share: share * f + (1 - share) * f * factor))})


def test_llama3_frequencies__unseen(unseen, rng):
    old = torch.from_numpy(rng.uniform(1e-5, 1, 40))
    low = float(rng.uniform(0.5, 2))
    unseen("llama3_frequencies", old, float(rng.uniform(2, 30)), low,
           low + float(rng.uniform(0.5, 4)), int(rng.integers(50, 9000)))


WAVES = {
    "all turn often": (np.linspace(0.5, 1, 17), 8.0, 1.0, 4.0, 8192),
    "none turns once": (np.linspace(1e-6, 2e-6, 15), 8.0, 1.0, 4.0, 8192),
    "all are alike": (np.full(6, 2 * math.pi * 2 / 100), 8.0, 1.0, 4.0, 100),
    "exactly at low and at high": (2 * math.pi * np.array([1, 4, 2.5]) / 128, 8.0, 1.0, 4.0, 128),
    "nearly alike": (0.1 + 1e-4 * np.arange(5), 4.0, 1.0, 4.0, 131),
    "a single pair": (np.array([0.05]), 32.0, 1, 4, 300),
    "a factor of 1": (np.geomspace(1e-5, 1, 32), 1.0, 1.0, 4.0, 4096),
    "a pair of frequency 0": (np.array([0.0, 1e-40, 0.5]), 8.0, 1.0, 4.0, 8192),
    "an old context of 2^17": (np.geomspace(1e-7, 1, 33), 16.0, 1.0, 4.0, 2**17),
    "an old context of 2^33": (np.geomspace(1e-12, 1, 33), 16.0, 1.0, 4.0, 2**33)}


def test_llama3_frequencies__hard(unseen):
    """Float64 and float32, one after the other in one process."""
    for what, (old, *numbers) in WAVES.items():
        for dtype, precision in ((torch.float64, "float64"), (torch.float32, "float32")):
            unseen("llama3_frequencies", torch.from_numpy(old).to(dtype), *numbers,
                   precision=precision, shown=f"{what}; {numbers}, {dtype}")


# ---- the model, by family


BASE = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 512}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
        "original_max_position_embeddings": 64}
FAMILIES = {
    "Llama with biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "Llama 3.2, tied": ("Llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "linear scaling": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4,
                                                     "factor": 4.0}}),
    "YaRN": ("Llama", {"rope_parameters": YARN}),
    "YaRN, not truncated": ("Llama", {"rope_parameters": YARN | {"truncate": False,
                                                                 "beta_fast": 8.0}}),
    "SmolLM": ("Llama", {"tie_word_embeddings": True, "num_attention_heads": 3,
                         "num_key_value_heads": 1, "rope_parameters": {"rope_type": "default",
                                                                       "rope_theta": 1e5}}),
    "Mistral": ("Mistral", {}),
    "Qwen 2": ("Qwen2", {}),
    "Qwen 3": ("Qwen3", {}),
}


def random_transformer(family, folder, shards=None, **entries):
    """A model of Hugging Face's with random weights, saved to a folder."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**BASE, **entries})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for weight in model.parameters():       # norms and biases are not ones and zeros then
            weight.add_(0.05 * torch.randn_like(weight))
    model.save_pretrained(folder, **({"max_shard_size": shards} if shards else {}))
    return model


def same_logits(folder, want):
    """A folder, read by the course, gives the logits of a model of transformers: 1e-4."""
    model = load(folder)
    tokens = torch.randint(0, 97, (2, 150), generator=torch.Generator().manual_seed(1))
    cache = PagedCache(model.config, 2, 160)
    with torch.no_grad():
        right = want(tokens).logits
        for new, rows in (
                ([tokens[0, :149], tokens[1, :60]], [right[0, :149], right[1, :60]]),
                ([tokens[0, 149:], tokens[1, 60:]], [right[0, 149:], right[1, 60:]])):
            got = model.forward(cache.step([part.tolist() for part in new]), cache, every=True)
            assert (got - torch.cat(rows)).abs().max() < 1e-4


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_tokens_are_those_of_transformers(tmp_path, name):
    family, entries = FAMILIES[name]
    want = random_transformer(family, tmp_path, **entries)
    same_logits(tmp_path, want)
    prompts = [[5, 17, 3], [40, 41, 42, 43, 44, 45, 46], [90]]
    got = greedy(load(tmp_path), prompts, 20)
    for prompt, tokens in zip(prompts, got, strict=True):
        right = want.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False,
                              eos_token_id=None, pad_token_id=0)[0, len(prompt):]
        assert tokens == right.tolist()


def test_logits_from_shards(tmp_path):
    """Shards and an index as transformers writes them."""
    want = random_transformer("Qwen2", tmp_path, shards="60KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert not (tmp_path / "model.safetensors").exists()
    same_logits(tmp_path, want)


@pytest.mark.parametrize("parameters, kind", [
    (LLAMA3, "rope_type"), (FAMILIES["linear scaling"][1]["rope_parameters"], "type"),
    ({"rope_type": "default", "rope_theta": 1e5}, None)])
def test_logits_of_a_config_as_transformers_4_wrote_it(tmp_path, parameters, kind):
    """rope_theta by itself, the rest in rope_scaling, or null there: most folders on the hub."""
    want = random_transformer("Llama", tmp_path, rope_parameters=parameters)
    path = tmp_path / "config.json"
    entries = json.loads(path.read_text("utf-8"))
    scaling = entries.pop("rope_parameters")
    entries["rope_theta"] = scaling.pop("rope_theta")
    name = scaling.pop("rope_type")
    entries["rope_scaling"] = kind and scaling | {kind: name}
    path.write_text(json.dumps(entries), "utf-8")
    same_logits(tmp_path, want)


def test_nano_weights_give_the_tokens_of_o02():
    from day02_overview import NANO, encode, generate, load_nano

    prompts = ["a warp has", "the ridge", "rmsnorm"]
    together = greedy(load(NANO, dtype=torch.float32), [encode(p).tolist() for p in prompts], 20)
    for prompt, tokens in zip(prompts, together, strict=True):
        assert tokens == generate(load_nano(), encode(prompt), 20)


def test_a_sequence_that_outgrows_its_pages_is_one_sentence():
    model = random_llama()
    cache = PagedCache(model.config, 1, 16)
    with pytest.raises(ValueError, match="would reach 17 tokens; there is room for 16"):
        cache.step([[1] * 17])


def test_launches_are_calls_of_kernels_and_operations_that_are_no_views():
    x, ops = torch.ones(4, 4), kernels("torch")
    with Launches() as seen:
        counting = seen.counting(ops)
        y = counting.rmsnorm(x + 1, x[0], 1e-5)
        y.view(2, 8).t().flatten(0).add_(1)
        x.copy_(y)
    assert seen.names == ["add", "rmsnorm", "clone", "add_", "copy_"]
