"""The engine on a GPU, as `lab serve` makes it from its flags: its tokens are those of a CPU."""

from dataclasses import replace

import pytest
import torch

from layer1_kernels import Sampling, kernels
from layer2_graph import Batch, load, read_config
from layer2_graph.g10_sparsity import keep_2_4, pack_2_4, unpack_2_4
from layer2_graph.generate import Letters
from layer2_graph.hybrid import HybridLlama
from layer2_graph.models import SMALL, TWINS
from layer2_graph.twins.linear import LINEARS
from layer2_graph.twins.model import Twin
from layer3_system import BlockPool, Engine, SamplingParams, Scheduler, check_engine
from layer3_system.s01_request import Request
from layer3_system.s07_engine import build_step, carry_over
from layer3_system.server.assembly import Setup, assemble, build
from layer3_system.server.tiers import Tiers

pytestmark = pytest.mark.gpu

TABLES = "torch", "triton", "cuda"
FLAGS = {"plain": {}, "async": {"overlap": True}, "guesses": {"draft": "lookup"},
         "draft model": {"draft": "shipped"}, "tiers": {"tiers": Tiers(40)}}
BEGIN = "Once upon a time there was a little girl named Lily. She loved to play outside. "
TEXTS = [BEGIN + more for more in ("One day", "One day she saw a cat", "Her mum", "The cat")]
WAYS = [{"temperature": 0}, {"temperature": 0.8, "seed": 3, "n": 2, "top_k": 20},
        {"temperature": 0, "repetition_penalty": 1.2, "logit_bias": ((70, 2.0),)},
        {"temperature": 1.0, "seed": 5, "top_p": 0.9, "min_p": 0.05}]


def setup(table="torch", pages=None, **flags):
    options = {"draft": None, "guesses": 4, "overlap": False, "tiers": None} | flags
    return Setup(SMALL, "small", table, None, "float32", (), pages,
                 {"max_seqs": 4, "budget": 64, "chunk": 16}, **options)


def answers(engine):
    """Twice, so that the second time its beginnings are in the cache: [[tokens], …]"""
    every = []
    for _ in range(2):
        for text, way in zip(TEXTS, WAYS, strict=True):
            prompt = engine.tokenizer.encode(text)
            every += engine.submit(prompt, SamplingParams(max_tokens=24, **way))
        for _ in range(2000):
            if not engine.busy:
                break
            engine.step()
            check_engine(engine)
    assert all(r.reason in ("length", "stop") for r in every), [(r.reason, r.error) for r in every]
    return [r.output for r in every]


@pytest.fixture(scope="module")
def on_a_cpu():
    """The answers of a CPU.
    Those of a draft model are drawn in another way."""
    made = {}
    for name in ("plain", "draft model"):
        flags = setup(**FLAGS[name])
        model = load(SMALL)
        draft = load(SMALL.parent / "draft") if flags.draft else None
        engine = build(model, flags.tokenizer(model.config), model.ops, {}, 40, draft=draft)
        made[name] = answers(engine)
    return made


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("table", TABLES)
def test_answers_are_those_of_a_cpu(table, flag, on_a_cpu):
    engine = assemble(setup(table, 12 if flag == "tiers" else 40, **FLAGS[flag])).engine
    assert engine.pages.k.is_cuda
    if engine.drafter:                  # as many as it may, whether they pay here or not
        engine.drafter.lengths = None
    assert answers(engine) == on_a_cpu.get(flag, on_a_cpu["plain"])
    assert engine.overlap == (flag == "async")
    if flag == "tiers":
        assert engine.pool.host.place_of, "no page went to the host"
    if engine.drafter:
        assert engine.drafter.guesses, "no guess was verified"


@pytest.mark.parametrize("overlap", [False, True])
def test_a_sampler_may_answer_on_the_cpu(overlap, on_a_cpu):
    """As one does that a learner writes in NumPy."""
    def sample(logits, sampling):
        return kernels("torch").sample(logits.cpu(), Sampling(*(x.cpu() for x in sampling)))

    model = load(SMALL, device="cuda")
    engine = build(model, setup().tokenizer(model.config), model.ops, {"sample_rows": sample}, 40,
                   overlap=overlap)
    assert answers(engine) == on_a_cpu["plain"]


def hybrid_llama(layers, device):
    """A model that keeps a state of each request (g13), not trained."""
    torch.manual_seed(1)
    twin = Twin(LINEARS["linear" if len(layers) == 3 else "hybrid"])
    F = len(twin.model.layers[0].mlp.gate_proj.weight)
    m = replace(read_config(TWINS / "dense"), F=F, ends=(), linear=layers, N=16, W=4)
    weights = {key: weight.detach().to(device) for key, weight in twin.named_parameters()}
    return HybridLlama(m, weights, kernels("torch"))


@pytest.mark.parametrize("layers", [(0, 1, 2), (0, 2)])
def test_states_on_a_gpu(layers):
    got = {}
    for device, overlap in (("cpu", False), ("cuda", False), ("cuda", True)):
        model = hybrid_llama(layers, device)
        pool = BlockPool(40, 4)
        engine = Engine(model, Letters(), pool, Scheduler(pool, 2, 8), overlap=overlap)
        requests = [engine.submit(prompt, SamplingParams(max_tokens=12, temperature=0))[0]
                    for prompt in ([5, 6, 7], [8], [9, 10] * 9)]
        while engine.busy:
            engine.step()
            check_engine(engine)
        got[device, overlap] = [r.output for r in requests]
    assert got["cuda", False] == got["cuda", True] == got["cpu", False]


def test_a_step_ahead_reads_nothing_from_the_gpu():
    """What was computed is put into the next batch without waiting for it."""
    request = Request("a", [1, 2, 3], SamplingParams(), table=[0], pending=1, num_computed=4)
    batch = build_step({request: 1}, 4)
    batch = Batch(*(array.cuda() for array in batch))
    token = torch.tensor([7, 5], device="cuda")[1]
    torch.cuda.set_sync_debug_mode("error")
    try:
        carry_over(batch, {request: 1}, {request: token})
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert batch.tokens.tolist() == [5]


def test_packed_weights_stay_on_the_gpu():
    w = torch.randn(24, 64)
    keep = keep_2_4(w.abs())
    packed = pack_2_4(w.cuda(), keep.cuda())
    for one, other in zip(packed, pack_2_4(w, keep), strict=True):
        assert one.is_cuda and torch.equal(one.cpu(), other)
    whole = unpack_2_4(*packed)
    assert whole.is_cuda and torch.equal(whole.cpu(), w * keep)
