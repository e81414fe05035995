"""Context parallelism beyond its exercises: gradients, a Llama, decoding, refusals."""

import pytest
import torch

from lab import course
from lab.judge.candidate import reference
from lab.judge.failures import Raised, RankFault
from lab.judge.isolate import running
from layer2_graph import PagedCache, load
from layer2_graph.models import SMALL
from layer3_system import pictures
from layer3_system.context import Attend, contiguous, count_pairs, unzigzag, zigzag
from layer3_system.s25_context_parallel import visible

DRIVER = "layer3_system.testing.context_ranks"
SCALE = 0.3
TEXT = torch.arange(97) * 37 % 2048


@pytest.fixture(scope="module")
def ranks():
    lesson = course.find("s25_context_parallel")
    with running(lesson, reference(lesson).sources) as subject:
        yield subject.ranks


def draw(rng, N, H, G, D):
    """q, k, v of a sequence, float64."""
    return [torch.from_numpy(rng.standard_normal((N, heads, D))) for heads in (H, G, G)]


def shards(sequence, positions):
    return [tuple(x[p] for x in sequence) for p in positions]


@pytest.mark.parametrize("W, shape", [(2, (20, 4, 2, 8)), (3, (42, 6, 3, 8)), (4, (56, 8, 4, 16))])
def test_ulysses(ranks, rng, agree, W, shape):
    """One rank's attention, and n (2H + 2G) D numbers, of which 1/W stay."""
    N, H, G, D = shape
    sequence = draw(rng, *shape)
    own = shards(sequence, torch.arange(N).view(W, -1))
    run = ranks(f"{DRIVER}:ulysses_cases", [([one], SCALE) for one in own])
    out, _ = Attend(SCALE)(*sequence, True)
    for r, want in enumerate(out.chunk(W)):
        agree(run.results[r][0]["out"], want, "float64", f"ulysses, W = {W}: rank {r}")
        assert run.sent(r) == 8 * N // W * 2 * (H + G) * D * (W - 1) // W
        assert run.results[r][0]["pairs"] == [N * (N + 1) // 2]
    assert [c.name for c in run.collectives if c.rank == 0] == ["all_to_all"] * 4


def gradients(sequence, upstream):
    """Of q, k and v of the whole sequence, by autograd on one rank."""
    q, k, v = (x.clone().requires_grad_() for x in sequence)
    out, _ = Attend(SCALE)(q, k, v, True)
    out.backward(upstream)
    return [x.grad for x in (q, k, v)]


@pytest.mark.parametrize("way, W, shape", [
    ("ring", 2, (20, 4, 2, 8)), ("ring", 3, (42, 6, 3, 8)), ("ring", 4, (56, 8, 2, 16)),
    ("chained", 3, (42, 6, 3, 8)), ("ulysses", 3, (42, 6, 3, 8))])
def test_gradients_are_those_of_one_rank(ranks, rng, agree, way, W, shape):
    N, H, G, D = shape
    n = N // W
    sequence = draw(rng, *shape)
    upstream, _, _ = draw(rng, *shape)
    cut = torch.arange(N).view(W, -1) if way == "ulysses" else zigzag(N, W)
    own = [(*shard, upstream[p], SCALE)
           for shard, p in zip(shards(sequence, cut), cut, strict=True)]
    run = ranks(f"{DRIVER}:{'ulysses' if way == 'ulysses' else 'ring'}_grads", own,
                        **{"chained": True} if way == "chained" else {})
    for name, i, want in zip("qkv", range(3), gradients(sequence, upstream), strict=True):
        for r in range(W):
            agree(run.results[r]["gradients"][i], want[cut[r]], "float64",
                  f"{way}, W = {W}: gradient of {name} on rank {r}")
    sent = run.during("backward").sent(0)
    if way == "ring":
        assert sent == (4 * W - 2) * n * G * D * 8
        assert run.results[0]["kept"] == n * (2 * H * D + 2 * G * D + H)
    else:
        assert sent == run.during(None).sent(0)         # as forward
    if way == "chained":
        assert run.results[0]["kept"] > W * n * 2 * G * D


def test_the_llama_reads_one_text_on_several_ranks(ranks, agree):
    """As on pages on one rank; its gradients as on one rank."""
    model = load(SMALL, dtype=torch.float32)
    cache = PagedCache(model.config, 1, 96)
    want = model.forward(cache.step([TEXT[:-1].tolist()]), cache, every=True)
    alone = ranks(f"{DRIVER}:train_llama", [(TEXT,)]).results[0]
    agree(alone["logits"], want, "float32", "scores on one rank")
    run = ranks(f"{DRIVER}:train_llama", [(TEXT,)] * 4)
    agree(unzigzag([one["logits"] for one in run.results]), want, "float32", "scores on 4 ranks")
    assert run.during("forward").sent(0) == 4 * 3 * 24 * 2 * 2 * 32 * 4     # L (W - 1) n 2 G D b
    for one in run.results:
        agree(one["loss"], alone["loss"], "float32", "loss")
        for got, gradient in zip(one["gradients"], alone["gradients"], strict=True):
            agree(got, gradient, "float32", "gradient of a weight")


def test_decoding_sends_answers(ranks, rng, agree):
    H, G, D = 4, 2, 8
    q, k, v = draw(rng, 21, H, G, D)
    run = ranks(f"{DRIVER}:decode", [(q[:1], k[r::3], v[r::3], SCALE) for r in range(3)])
    for one in run.results:
        agree(one, Attend(SCALE)(q[:1], k, v, False)[0], "float64", "decode")
    assert run.sent(0) == 2 * H * (D + 1) * 8


def test_what_is_refused(ranks, rng):
    q, k, v = draw(rng, 6, 6, 2, 8)
    odd = [tuple(x[:3] for x in (q, k, v))] * 2
    for name, arguments, sentence in (
            ("ring_cases", [([one], SCALE) for one in odd], "3 tokens on a rank, expected an even"),
            ("ulysses_cases", [([(q, k, v)], SCALE)] * 4, "2 kv heads cannot be shared by 4 ranks"),
            ("gather_cases", [([q], True)] * 4, "6 heads do not divide by 4 ranks"),
            ("gather_cases", [([q], False)] * 4, "6 tokens do not divide by 4 ranks")):
        with pytest.raises(Raised) as refusal:
            ranks(f"{DRIVER}:{name}", arguments)
        assert sentence in str(refusal.value)
    uneven = [([tuple(x[:n] for x in (q, k, v))], SCALE) for n in (4, 2)]
    with pytest.raises(RankFault, match="sends (32|64) numbers .* receives (64|32) numbers"):
        ranks(f"{DRIVER}:ring_cases", uneven)
    with pytest.raises(ValueError, match="50 tokens do not divide into 2·W = 8 pieces; pad to 56"):
        zigzag(50, 4)


def test_unzigzag_is_the_way_back():
    x = torch.arange(48)
    assert torch.equal(unzigzag([x[p] for p in zigzag(48, 3)]), x)


def test_every_rank_computes_as_much_in_every_round():
    rounds = count_pairs(visible, 14, 4)
    assert rounds == [[105] * 4] + [[98] * 4] * 3
    assert [sum(rank) for rank in zip(*count_pairs(contiguous, 14, 4), strict=True)] == [
        105 + 196 * r for r in range(4)]


def test_bands_have_as_many_pairs_as_ranks_compute():
    figure = pictures.causal_bands({"runs": torch.arange(64).view(4, 16), "zigzag": zigzag(64, 4)})
    images = [axes.images[0].get_array() for axes in figure.axes]
    areas = [[int((image == r + 1).sum()) for r in range(4)] for image in images]
    assert areas == [[136 + 256 * r for r in range(4)], [520] * 4]
    assert sum(areas[1]) == sum(map(sum, count_pairs(visible, 16, 4)))


def test_rounds_last_as_long_as_their_busiest_rank():
    figure = pictures.ring_work({"runs": count_pairs(contiguous, 14, 4),
                                 "zigzag": count_pairs(visible, 14, 4)}, 14)
    titles = [axes.get_title("left") for axes in figure.axes]
    assert titles == ["runs: 3.54 blocks long", "zigzag: 2.04 blocks long"]


def test_lines_of_bytes_pass_through_what_was_counted():
    """43,008 and 32,256 are the bytes of the runs in `test_ulysses` and the notebook."""
    ring, trade, *_ = pictures.context_bytes({"small": (8, 4)}, 56, 16, 8).axes[0].lines
    assert [round(1e6 * line.get_ydata()[1]) for line in (ring, trade)] == [43_008, 32_256]
    assert list(trade.get_xdata()) == [2, 4]


def test_an_error_of_nothing_is_drawn():
    line, = pictures.position_errors({"none": torch.tensor([0.0, 1.0])}).axes[0].lines
    assert line.get_ydata().tolist() == pytest.approx([1e-8, 1.0])


def test_bytes_cross_at_2_ranks_where_all_heads_have_keys_and_at_5_in_groups_of_four():
    both = {"all": (32, 32), "grouped": (32, 8)}
    lines = pictures.context_bytes(both, 131_072, 128, 2).axes[0].lines
    for (H, G), ring, trade in zip(both.values(), lines[::2], lines[1::2], strict=False):
        cross = (H + G) // G
        assert cross == (2 if G == H else 5)
        sizes = dict(zip(ring.get_xdata(), ring.get_ydata(), strict=True))
        for ranks_of, size in zip(trade.get_xdata(), trade.get_ydata(), strict=True):
            same = size == pytest.approx(sizes[ranks_of])
            assert same == (ranks_of == cross)
            assert same or (size < sizes[ranks_of]) == (ranks_of > cross)
