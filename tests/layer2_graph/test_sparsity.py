"""What g10's drivers give: scores, masks, and which tokens a query sees."""

import json

import pytest
import torch

from layer2_graph import ChosenPages, Tokenizer, load, pack_2_4, perplexity, pictures, pruning
from layer2_graph import sparse_context as context
from layer2_graph.bench import sparse_speed
from layer2_graph.bench.sparsity import EACH, RECORD, WINDOW
from layer2_graph.models import SMALL
from layer2_graph.small.corpus import BEGIN, stories


@pytest.fixture(scope="module")
def model():
    return load(SMALL, dtype=torch.float32)


@pytest.fixture(scope="module")
def documents(model):
    words = Tokenizer(SMALL, model.config)
    return [words.encode(text.removeprefix(BEGIN))[:150] for text in stories("held out")[:2]]


def loss(model, tokens):
    return torch.tensor(perplexity(model, [tokens])).log().item() * (len(tokens) - 1)


def test_gradients_are_finite_differences(model, documents):
    name, row = "model.layers.2.mlp.up_proj.weight", 17
    gradient = pruning.gradients(model, documents[0])[name][row]
    step = 0.05 * gradient / gradient.norm()
    losses = []
    for sign in (1, -1):
        w = model.weights[name].clone()
        w[row] += sign * step
        losses.append(loss(type(model)(model.config, model.weights | {name: w}, model.ops),
                           documents[0]))
    slope = (losses[0] - losses[1]) / (2 * float(step.norm()))
    assert slope == pytest.approx(float(gradient.norm()), rel=0.03)


def test_masks_leave_the_share_that_was_asked(model):
    score = pruning.by_magnitude(model)
    for masks in (pruning.of_rows(score, 0.25), pruning.of_all(score, 0.25)):
        zeros = sum(int((~mask).sum()) for mask in masks.values())
        total = sum(mask.numel() for mask in masks.values())
        assert zeros / total == pytest.approx(0.25, abs=0.001)
    for mask in pruning.in_2_4(score).values():
        assert (mask.unflatten(1, (-1, 4)).sum(-1) == 2).all()
    for mask in pruning.in_2_4_down(score).values():
        assert (mask.T.unflatten(1, (-1, 4)).sum(-1) == 2).all()


def test_a_model_without_channels_is_a_smaller_model(model, documents):
    masks = pruning.channels(pruning.by_magnitude(model), 0.5)
    smaller = dict(model.weights)
    for i in range(model.config.L):
        gate, up, down = (f"model.layers.{i}.mlp.{part}.weight" for part in pruning.MLP)
        busy = masks[gate][:, 0]
        assert int(busy.sum()) == 256
        for name in (gate, up):
            smaller[name] = model.weights[name][busy]
        smaller[down] = model.weights[down][:, busy]
    own = type(model)(model.config, smaller, model.ops)
    assert perplexity(own, documents) == pytest.approx(
        perplexity(pruning.pruned(model, masks), documents), rel=1e-5)


def test_curvature_beats_chance_and_magnitude(model, documents):
    from layer2_graph import hessians

    known = {"chance": pruning.by_chance(model), "magnitude": pruning.by_magnitude(model),
             "curvature": pruning.by_curvature(model, hessians(model, documents))}
    errors = {name: perplexity(pruning.pruned(model, pruning.of_rows(score, 0.5)), documents)
              for name, score in known.items()}
    assert errors["curvature"] < errors["magnitude"] < errors["chance"]


# ---- contexts


def test_every_token_seen_is_the_plain_model(model, documents):
    result = context.judge(model, documents, context.every)
    assert result["perplexity"] == pytest.approx(perplexity(model, documents), rel=1e-5)
    assert result["mass"] == pytest.approx(1)
    for name, rule in context.rules(10).items():                # 150 tokens are 10 pages
        assert context.judge(model, documents, rule)["perplexity"] == pytest.approx(
            result["perplexity"], rel=1e-5), name


def test_a_text_read_at_once_is_a_text_decoded_by_pages(model, documents):
    """The mask of `pages` shows each query what ChosenPages loads at that step."""
    tokens = documents[0][:70]
    masked = context.MaskedCache(model.config, 70, context.pages(context.by_bound, 3))
    at_once = model.forward(masked.step([tokens]), masked, every=True)
    cache = ChosenPages(model.config, 1, 70)
    cache.budget = 3
    for t, token in enumerate(tokens):
        logits = model.forward(cache.step([[token]]), cache)
        assert torch.allclose(logits[0], at_once[t], atol=2e-3), t


def test_what_was_evicted_stays_away(model, documents):
    masks = []
    cache = context.MaskedCache(model.config, 100, context.heavy_hitters(8, 7))
    rule = cache.visible
    cache.visible = lambda *arrays: masks.append(rule(*arrays)) or masks[-1]
    model.forward(cache.step([documents[0][:100]]), cache)
    for mask in masks:
        assert (mask.sum(1) == torch.arange(1, 101).clamp(max=16)).all()
        assert mask.diagonal().all()
        assert not (mask[1:].tril(-1) & ~mask[:-1] & torch.ones(99, 100).tril().bool()).any()


def test_evict():
    mass = torch.tensor([3.0, 1, 5, 3, 0, 0])
    assert context.evict(mass, 2, 2).tolist() == [0, 2, 4, 5]
    assert context.evict(mass, 0, 3).tolist() == [3, 4, 5]
    assert context.evict(mass, 9, 9).tolist() == [0, 1, 2, 3, 4, 5]


def test_pictures_of_sparsity():
    mask = torch.arange(8).view(2, 4) % 2 == 0
    figure = pictures.zeros(2.0, {"a": {0.1: 2.0, 0.5: 3.0}}, {"b": (0.5, 2.5)}, {"2:4": mask})
    assert list(figure.axes[0].lines[0].get_ydata()) == [2.0, 3.0]
    figure = pictures.bounds("title", [1.0, 2.0, 0.5], [1.5, 2.5, 1.0], [1])
    colours = [bar.get_facecolor() for bar in figure.axes[0].patches]
    assert colours[0] == colours[2] != colours[1]
    figure = pictures.contexts(2.0, {"a": [(0.1, 3.0), (0.5, 2.1)]}, "share")
    assert list(figure.axes[0].lines[0].get_xdata()) == [10, 50]


def test_the_record_says_what_g10_says_of_it():
    """By the paired differences of the windows, in standard errors."""
    rows = json.loads(RECORD.read_text("utf-8"))["contexts"]["rows"]

    def ahead(one, other, budget):
        """In how many standard errors the one rule's perplexity is below the other's."""
        one, other = (torch.tensor(rows[name][budget]["by_document"]) for name in (one, other))
        logs = other.log() - one.log()
        return float(logs.mean() / logs.std() * len(logs) ** 0.5)

    bound, mean = rows["by bound"], rows["by mean key"]
    assert all(mean[budget]["mass"] > bound[budget]["mass"] for budget in bound)
    assert all(abs(ahead("by mean key", "by bound", budget)) < 2 for budget in bound)
    known = [name for name in rows if name not in ("all", "best possible", "first and newest")]
    assert all(ahead(name, "first and newest", budget) < 2
               for name in known for budget in ("4", "8", "16"))
    assert all(ahead(name, "first and newest", "2") > 20
               for name in known if name != "prefill by blocks")


def test_the_record_says_what_g10_says_of_weights():
    found = {(row["score"], row["pattern"], row["zeros"]): row["perplexity"]
             for row in json.loads(RECORD.read_text("utf-8"))["weights"]["rows"]}
    scores = ("magnitude", "curvature", "Fisher")
    shares = sorted({zeros for _, pattern, zeros in found if pattern == "all together"})
    pays = {score: [found[score, "all together", zeros] < found[score, "rows", zeros]
                    for zeros in shares] for score in scores}
    assert all(pays["Fisher"]) and not any(pays["magnitude"] + pays["curvature"])
    assert all(found[score, "channels", zeros] > found[score, "rows", zeros]
               for score in scores for zeros in shares)
    assert max(scores, key=lambda score: found[score, "2:4", 0.5]) == "Fisher"


def test_the_record_says_what_g10_says_of_all_weights_together():
    rows = {(row["score"], row["pattern"], row["zeros"]): row["perplexity"]
            for row in json.loads(RECORD.read_text("utf-8"))["weights"]["rows"]}
    scores = ("magnitude", "curvature", "Fisher")
    assert min(scores, key=lambda score: rows[score, "all together", 0.5]) == "Fisher"
    assert all(rows[score, "2:4 down the columns", 0.5] > rows[score, "2:4", 0.5]
               for score in scores)
    magnitude, curvature = (rows[score, "2:4 down the columns", 0.5] for score in scores[:2])
    assert curvature == magnitude


def test_the_record_is_of_as_many_texts_as_g10_says(model):
    record, words = json.loads(RECORD.read_text("utf-8")), Tokenizer(SMALL, model.config)

    def lengths(part, each=1):
        return [len(words.encode(text.removeprefix(BEGIN))[:model.config.room])
                for text in stories(part)[::each]]

    weights, contexts = record["weights"], record["contexts"]
    judged, dev = lengths("held out", EACH), lengths("dev")
    assert len(judged) == weights["stories"] == 30
    assert sum(judged) - 30 == weights["tokens"] == 6094
    assert len(dev) == 60 and sum(dev) == weights["calibration_tokens"]     # Fisher's
    assert (contexts["from"], contexts["to"], WINDOW, contexts["slots"]) == (256, 512, 512, 16)
    some = lengths("train", 20)
    assert sum(some) / len(some) == pytest.approx(200, abs=10)


def test_two_rules_leave_the_plot_of_contexts_with_two_pages():
    rows = json.loads(RECORD.read_text("utf-8"))["contexts"]["rows"]
    two = {name: budgets["2"]["perplexity"] for name, budgets in rows.items() if name != "all"}
    assert {name for name, score in two.items() if round(score, 1) == 4.4} == {
        "first and newest", "prefill by blocks"}
    assert max(score for score in two.values() if round(score, 1) != 4.4) < 2.4


def test_a_byte_of_places_is_that_of_the_text():
    """Columns 1 and 3 of a group, 0 and 2 of the next: 10 00 11 01."""
    keep = torch.tensor([[False, True, False, True, True, False, True, False]])
    values, meta = pack_2_4(torch.arange(8.0)[None], keep)
    assert values.tolist() == [[1, 3, 4, 6]] and meta.tolist() == [[0b10001101]]


def test_the_record_says_what_g10_says_of_time():
    rows = json.loads(RECORD.read_text("utf-8"))["speed"]["rows"]
    for work in ("T = 1", "T = 256"):
        times = {name: high for name, (_, _, high) in rows[work].items()}
        assert times["anywhere, as CSR"] < 1 and times["2:4, unpacked first"] < 1
        assert rows[work]["channels"][0] > 1.5
    low, _, high = rows["480 tokens"]["by bound"]
    assert low < 1 < high
    assert rows["16384 tokens"]["by bound"][0] > 1
    assert all(rows[f"{N} tokens"]["evicted"][0] > 1.5 for N in sparse_speed.CONTEXTS)
    assert rows["prompt of 2048"]["by mean"][0] > 1


def test_what_is_timed_is_the_product(monkeypatch):
    monkeypatch.setattr(sparse_speed, "SIDE", 64)
    torch.manual_seed(1)
    known = sparse_speed.matrices()
    eye = torch.eye(64)
    dense = known["dense"](eye)                     # x @ w.T, so w's transpose
    assert torch.equal(known["channels"](eye), dense[:, :32])
    for name in ("anywhere, as CSR", "2:4, unpacked first"):
        own = known[name](eye)
        assert torch.equal(own, dense * (own != 0)) and 0.3 < (own != 0).double().mean() < 0.7


def test_what_is_timed_is_attention():
    for way, N in ((sparse_speed.context, 8), (sparse_speed.prefill, 5)):
        every, *others = way(N * sparse_speed.SLOTS, share=1).values()
        assert all(torch.allclose(every(), other(), atol=1e-5) for other in others)
        every, *others = way(N * sparse_speed.SLOTS).values()
        assert not any(torch.allclose(every(), other()) for other in others)
        assert all(other().shape == every().shape for other in others)
