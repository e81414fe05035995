"""The small model that ships: complete, as its report says, better than its draft, and readable."""

import json
import re
from collections import Counter

import numpy as np
import pytest
import torch

from day02_overview.nano.train import forward
from layer2_graph.checkpoint import Tokenizer, read_weights
from layer2_graph.config import read_config
from layer2_graph.g01_llama import PagedCache, load
from layer2_graph.small import card, evaluate, train
from layer2_graph.small.corpus import BEGIN, END, corpus, document, stories
from layer2_graph.small.stories import Teller, grammar
from layer2_graph.small.stories import __doc__ as GRAMMAR
from layer2_graph.small.trigram import Trigram

NAMES = list(train.FOLDERS)
FOLDERS = train.FOLDERS
MARKS = re.compile(r"<\|\w+\|>")


@pytest.fixture(scope="module")
def report():
    return json.loads(evaluate.REPORT.read_text("utf-8"))


@pytest.fixture(scope="module")
def told():
    """The first held-out stories, with their marks."""
    return stories("held out")[:24]


@pytest.fixture(scope="module")
def models():
    return {name: evaluate.load(name) for name in NAMES}


def test_sizes(models):
    count = {name: sum(v.numel() for v in w.values()) for name, (_, w, _) in models.items()}
    assert 1e6 <= count["small"] <= 5e6, count
    assert count["draft"] <= count["small"] / 3, "a draft must be much cheaper than its model"
    for folder in FOLDERS.values():
        assert (folder / "model.safetensors").stat().st_size < 5e6


def test_files_are_those_of_the_report(report):
    assert evaluate.hashes() == report["files"], "run layer2_graph/small/evaluate.py again"


def test_both_speak_the_same_tokens():
    small, draft = ((FOLDERS[name] / "tokenizer.json").read_bytes() for name in NAMES)
    assert small == draft


@pytest.mark.parametrize("name", NAMES)
def test_the_course_loads_it(name):
    config = read_config(FOLDERS[name])
    weights = read_weights(FOLDERS[name], config)
    assert Tokenizer(FOLDERS[name], config).own.get_vocab_size() == config.V
    assert config.room == 512 and config.tied and config.D in (32, 64)
    assert all(size % 16 == 0 for weight in weights.values() for size in weight.shape)
    assert all(torch.isfinite(weight).all() for weight in weights.values())


@pytest.mark.parametrize("name", NAMES)
def test_the_courses_llama_computes_what_was_trained(name, models, told):
    m, w, tokenizer = models[name]
    tokens = train.encode(tokenizer, told[:1])[0][:200]                 # (T,)
    model = load(FOLDERS[name], dtype=torch.float32)
    cache = PagedCache(model.config, 1, len(tokens))
    got = model.forward(cache.step([tokens.tolist()]), cache, every=True)       # (T, V)
    with torch.no_grad():
        want = forward(m, w, tokens[None])[0]                           # (T, V)
    assert (got - want).abs().max() < 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_transformers_computes_the_same(name, models, told):
    transformers = pytest.importorskip("transformers", reason="not proven here: no transformers")
    m, w, tokenizer = models[name]
    tokens = train.encode(tokenizer, told[:1])[0][None, :200]           # (1, T)
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDERS[name], dtype=torch.float32)
    with torch.no_grad():
        got, want = forward(m, w, tokens), model(tokens).logits         # (1, T, V)
    assert (got - want).abs().max() < 1e-3


# ---- its quality


def test_better_than_its_draft(models, told):
    found = {}
    for name, (m, w, tokenizer) in models.items():
        found[name] = evaluate.perplexity(
            evaluate.losses(m, w, train.encode(tokenizer, told)))
    assert found["small"] <= 0.9 * found["draft"], found


def test_int4_costs_something(models, told):
    m, w, tokenizer = models["small"]
    documents = train.encode(tokenizer, told)
    exact, rounded = (evaluate.perplexity(evaluate.losses(m, some, documents))
                      for some in (w, evaluate.int4(w)))
    assert 1.001 * exact < rounded < 1.5 * exact, (exact, rounded)


def test_int4_has_sixteen_values_a_group():
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    w = evaluate.int4({"a_proj.weight": weight, "norm.weight": weight})
    assert torch.equal(w["norm.weight"], weight)
    for got, true in zip(w["a_proj.weight"].unflatten(1, (-1, 32)).flatten(0, 1),
                         weight.unflatten(1, (-1, 32)).flatten(0, 1), strict=True):
        step = true.abs().max() / 7
        assert len(got.unique()) <= 16 and (got - true).abs().max() <= step / 2 * 1.001
    assert torch.equal(evaluate.int4({"zero_proj.weight": torch.zeros(2, 32)})["zero_proj.weight"],
                       torch.zeros(2, 32))


def test_report_states_the_goals(report):
    assert report["ratios"]["small / draft"] <= 0.9
    assert report["ratios"]["small / small int4"] < 1


def test_the_readme_shows_the_report(report, models):
    """Every sample from its beginning, every perplexity, and the sizes that the files have."""
    said = card.text()
    for sample in report["samples"]:
        words = sample["text"].split()[:12]
        shown = said.partition(f"» {sample['asked'] or '(nothing)'}\n")[2].split()
        assert shown[:len(words)] == words
    for found in report["perplexity"].values():
        assert all(f"{value:.2f}" in said for value in found.values())
    for _, weights, _ in models.values():
        assert f"{sum(w.numel() for w in weights.values()):,}" in said


def test_far_better_than_a_trigram(report):
    assert report["ratios"]["small / trigram"] <= 0.7


@pytest.mark.slow
def test_report_is_what_the_weights_give(report):
    """The whole judgement again, if this Python's docstrings are those of the report."""
    texts = {part: corpus(part) for part in ("train", "held out")}
    assert texts["train"].sha256()["stories"] == report["corpus"]["train"]["stories"]
    if {part: found.sha256() for part, found in texts.items()} != report["corpus"]:
        pytest.skip(f"not proven here: other docstrings than Python {report['python']}'s")
    scores = evaluate.judge(texts["held out"], texts["train"])
    for name, parts in scores.items():
        assert parts == pytest.approx(report["perplexity"][name], rel=2e-3), name


def test_it_writes_words_of_its_stories(models):
    transformers = pytest.importorskip("transformers", reason="not proven here: no transformers")
    teller = Teller(0)
    known = {word for _, text in (teller.tell() for _ in range(1500))
             for word in re.findall(r"[a-z]+", text.lower())}
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDERS["small"])
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDERS["small"],
                                                              dtype=torch.float32)
    prompt = tokenizer("Once upon a time there was a curious fox named Mira.", return_tensors="pt")
    out = model.generate(**prompt, max_new_tokens=150, do_sample=False)
    text = tokenizer.decode(out[0], skip_special_tokens=True)
    words = re.findall(r"[a-z]+", text.lower())
    strange = [word for word in words if word not in known]
    assert len(words) > 40 and len(strange) <= 0.05 * len(words), (strange, text)


# ---- tokens and chats


def test_any_text_comes_back(models):
    tokenizer = models["small"][2]
    rng = np.random.default_rng(0)
    texts = ["", " ", "  two  spaces ", "a\r\n\tb\n\n", "naïve façade", "日本語",
             "🦊🏽‍🔬", "\x00\x7f",
             "٣٤ שלום", "\ufeff\u200b\ufffd", "def f(x):\n    return x**2\n"]
    for _ in range(200):
        codes = rng.integers(0, rng.choice((128, 0x3000, 0x110000)), rng.integers(1, 40))
        texts.append("".join(chr(c) for c in codes if not 0xD800 <= c < 0xE000))
    for text in texts:
        tokens = tokenizer.encode(text).ids
        assert tokens[0] == tokenizer.token_to_id(BEGIN)
        assert tokenizer.decode(tokens) == text


def test_a_chat_is_what_was_learnt():
    """The template gives a question the marks that questions have in the corpus."""
    config = read_config(FOLDERS["small"])
    tokenizer = Tokenizer(FOLDERS["small"], config)
    question, answer = "Tell me a story about a fox.", "There was a fox."
    got = tokenizer.chat([{"role": "user", "content": question}])
    whole = tokenizer.own.encode(document(answer, question), add_special_tokens=False).ids
    assert whole[:len(got)] == got
    assert tokenizer.own.decode(whole[len(got):]) == answer
    assert config.ends == (tokenizer.own.token_to_id(END),)


def test_transformers_renders_the_chat():
    transformers = pytest.importorskip("transformers", reason="not proven here: no transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDERS["small"])
    messages = [{"role": "user", "content": "A story?"}, {"role": "assistant", "content": "No."}]
    got = tokenizer.apply_chat_template(messages, tokenize=False)
    assert got == document("No.", "A story?")
    assert tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True) \
        == document("", "A story?").removesuffix(END)


# ---- the text


def test_the_grammar_has_5000_pairs_of_a_symbol_and_a_text_that_it_becomes():
    """Each way to write a symbol counts, and none occurs twice: 12,257.
    There are many symbols: the troubles of a kite and those of a boat are two.
    Other counts are smaller: there are 4,895 different texts, and words.py has about a thousand
    pairs before nouns are put in.
    """
    rules = grammar()
    pairs = {(symbol, text) for symbol, found in rules.items() for text in found}
    assert len(pairs) == sum(map(len, rules.values())) == 12_257
    assert len({text for _, text in pairs}) == 4895
    for count in (len(pairs), len(rules), 4895):
        assert f"{count:,}" in GRAMMAR


def test_productions_are_taken_by_zipfs_law():
    rules = grammar()
    teller = Teller(5)
    seen = Counter(teller.pick("trait") for _ in range(20000))
    first, second, third = (seen[trait] for trait in rules["trait"][:3])
    assert first / second == pytest.approx(2, rel=0.1)
    assert first / third == pytest.approx(3, rel=0.1)


def test_stories_remember(told):
    for text in told:
        story = MARKS.split(text)[-2]
        assert not re.search(r"[{}<>*|]|\ba [aeiou](?!se)", story), story
        names = set(re.findall(r"\b[A-Z][a-z]+\b", story))
        assert max(map(story.count, names)) >= 4, story
        assert not re.search(r"\b(beans|boots|apples|cards|marbles|tulips) was\b", story), story


def test_nothing_held_out_is_learnt():
    assert not set(sum(corpus("train"), [])) & set(sum(corpus("held out"), []))
    assert not set(sum(corpus("dev"), [])) & set(sum(corpus("held out"), []))


def test_trigram_chances_sum_to_one():
    trigram = Trigram([[0, 1, 2, 1, 3], [0, 1, 1, 2]], V=5)
    for context in ([0], [0, 1], [0, 1, 2], [0, 4], [0, 4, 4]):
        total = sum(np.exp(-trigram.loss([*context, token])[-1]) for token in range(5))
        assert total == pytest.approx(1)
