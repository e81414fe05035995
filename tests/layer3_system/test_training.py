"""The given half of s30: loader, model, loop and command.
No test depends on speed."""

import errno
import json
import math
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from day02_overview.nano.train import forward
from layer2_graph.config import Config
from layer3_system import train
from layer3_system.bench import training_curves
from layer3_system.s30_training import Recompute, adamw_step
from layer3_system.training.arms import ARMS, FP32, Arm
from layer3_system.training.data import IGNORED, Batch, Loader
from layer3_system.training.llama import TrainableLlama, entries, new_weights, training_kernels
from layer3_system.training.loop import CALM, Options, Training, TrainingError

M = Config(L=2, C=32, H=4, G=2, D=8, F=48, V=61, eps=1e-5, theta=1e4, room=40, tied=True)
OPTIONS = Options(steps=12, warm=3, peak=1e-2, floor=1e-3)


def text(length=500):
    return torch.randint(M.V, (length,), generator=torch.Generator().manual_seed(0))


def test_the_recorded_curves_are_what_training_makes():
    recorded = json.loads(training_curves.RECORD.read_text("utf-8"))
    assert list(recorded) == list(ARMS)
    losses = [row.loss for row in training_curves.make().run()]
    assert losses == pytest.approx(recorded["fp32"], rel=1e-3)


def training(arm=FP32, options=OPTIONS, recompute=False):
    model = TrainableLlama(M, new_weights(M, 0), training_kernels("torch"), arm,
                           Recompute if recompute else None)
    return Training(model, Loader(text(), B=3, T=17, seed=1), options)


def test_a_batch_depends_on_seed_and_number_alone():
    loader = Loader(text(), B=3, T=17, seed=1)
    first, second = loader.next(), loader.next()
    assert not torch.equal(first.tokens, second.tokens)
    assert torch.equal(first.tokens[:, 1:], first.targets[:, :-1])
    other = Loader(text(), B=3, T=17, seed=1)
    other.seek(other.place() | {"number": 1})
    assert torch.equal(other.next().tokens, second.tokens)


@pytest.mark.parametrize("change", [{"seed": 2}, {"tokens": 501}, {"T": 16}])
def test_a_place_in_another_text_is_refused(change):
    loader = Loader(text(), B=3, T=17, seed=1)
    with pytest.raises(ValueError, match="not one of this loader"):
        loader.seek(loader.place() | change)


def test_a_place_in_the_text_of_another_tokenizer_is_refused():
    """It is as long, and a training would go on with other words."""
    swapped = text()
    swapped[7] = (swapped[7] + 1) % M.V
    with pytest.raises(ValueError, match="not one of this loader"):
        Loader(text(), B=3, T=17, seed=1).seek(Loader(swapped, B=3, T=17, seed=1).place())


def test_a_text_of_a_larger_tokenizer_is_refused():
    model = TrainableLlama(M, new_weights(M, 0), training_kernels("torch"))
    larger = text()
    larger[7] = 61
    with pytest.raises(ValueError, match="the text has token 61, expected less than the model's "
                                         "V = 61: another tokenizer"):
        Training(model, Loader(larger, B=3, T=17, seed=1), OPTIONS)


def test_a_text_that_is_too_short_is_refused():
    with pytest.raises(ValueError, match=r"0 tokens, expected at least T \+ 1 = 18"):
        Loader(text(0), B=3, T=17, seed=1)
    assert Loader(text(18), B=3, T=17, seed=1).next().tokens.shape == (3, 17)


def test_losses_are_those_of_a_plain_loop():
    """torch.optim.AdamW, clip_grad_norm_ and o02's forward, for twelve steps."""
    own = training()
    rows = own.run()
    w = {name: weight.requires_grad_() for name, weight in new_weights(M, 0).items()}
    optimiser = torch.optim.AdamW(
        [{"params": [v for v in w.values() if v.ndim == 2], "weight_decay": OPTIONS.decay},
         {"params": [v for v in w.values() if v.ndim == 1], "weight_decay": 0.0}],
        betas=OPTIONS.betas, fused=False)
    m = entries(M) | {"rms_norm_eps": M.eps, "rope_theta": M.theta}
    loader = Loader(text(), B=3, T=17, seed=1)
    for row in rows:
        batch = loader.next()
        loss = F.cross_entropy(forward(m, w, batch.tokens).flatten(0, 1), batch.targets.flatten())
        optimiser.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(w.values(), OPTIONS.limit)
        for group in optimiser.param_groups:
            group["lr"] = row.rate
        optimiser.step()
        assert row.loss == pytest.approx(loss.item(), rel=1e-4)
        assert row.norm == pytest.approx(norm.item(), rel=1e-3)
    assert rows[-1].loss < rows[0].loss


def test_a_training_that_goes_on_is_the_one_that_never_stopped(tmp_path):
    whole = training()
    losses = [row.loss for row in whole.run()]
    first = training()
    for _ in range(5):
        first.step()
    torch.save(first.state(), tmp_path / "state.pt")
    second = training()
    second.restore(torch.load(tmp_path / "state.pt"))
    assert [row.loss for row in second.run()] == losses[5:]
    assert all(torch.equal(a, b) for a, b in zip(
        whole.model.weights.values(), second.model.weights.values(), strict=True))


def test_recomputation_changes_no_bit():
    assert [row.loss for row in training(recompute=True).run()] == [
        row.loss for row in training().run()]


def test_norms_do_not_decay():
    own = training()
    for weight in own.model.weights.values():
        weight.grad = torch.zeros_like(weight)
    before = {name: weight.detach().clone() for name, weight in own.model.weights.items()}
    own.update(0.1)
    for name, weight in own.model.weights.items():
        assert torch.equal(weight, before[name]) == (weight.ndim == 1)


def test_tokens_without_a_loss_do_not_count():
    model = training().model
    batch = Loader(text(), B=2, T=17, seed=1).next()
    short = batch.targets.clone()
    short[1, 5:] = IGNORED
    one = model.loss_sum(Batch(batch.tokens[:1], batch.targets[:1]))
    two = model.loss_sum(Batch(batch.tokens[1:, :5], batch.targets[1:, :5]))
    loss, count = model.loss_sum(Batch(batch.tokens, short))
    assert count == 22
    assert loss.item() == pytest.approx((one[0] + two[0]).item(), rel=1e-5)


def test_a_loss_that_is_no_number_stops_with_step_and_weight():
    own = training()
    own.step()
    name = "model.layers.1.mlp.down_proj.weight"
    own.model.weights[name].data[3, 4] = math.nan
    with pytest.raises(TrainingError, match=r"step 1: the loss is nan, and .* after step 0"):
        own.step()


def test_an_overflow_skips_the_step_and_halves_the_scale():
    own = training(Arm(mean_of=1, scale=2.0 ** 17))
    before = [weight.detach().clone() for weight in own.model.weights.values()]
    own.step()
    assert (own.skipped, own.model.arm.scale) == (1, 2.0 ** 16)
    assert all(torch.equal(a, b) for a, b in zip(before, own.model.weights.values(), strict=True))
    own.run()
    assert own.skipped < 4
    assert all(weight.isfinite().all() for weight in own.model.weights.values())


def test_bf16_weights_stay_bf16_and_masters_do_not():
    for name in ("bf16 weights", "bf16, fp32 masters"):
        own = training(ARMS[name])
        own.run()
        rounded = [torch.equal(w, w.bfloat16().float()) for w in own.model.weights.values()]
        assert all(rounded) == (name == "bf16 weights")


def test_gradients_by_kernels_in_the_simulator(triton_on_the_cpu):
    small = Config(L=1, C=16, H=2, G=1, D=16, F=32, V=32, eps=1e-5, theta=1e4, room=16, tied=True)
    batch = Batch(*(torch.randint(32, (1, 9), generator=torch.Generator().manual_seed(s))
                    for s in (0, 1)))
    gradients = []
    for back_end in ("torch", "triton"):
        model = TrainableLlama(small, new_weights(small, 0), training_kernels(back_end))
        loss, _ = model.loss_sum(batch)
        gradients.append(torch.autograd.grad(loss, list(model.weights.values())))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


# ---- the command


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Runs the command with some words, on a tiny model and in a folder of the test."""
    monkeypatch.setattr(train, "STATES", tmp_path / "states")
    monkeypatch.setattr(train, "make", lambda *_: training())
    monkeypatch.setattr(train, "texts", lambda _: (text(), text(train.T + 1)))

    def run(*words):
        monkeypatch.setattr("sys.argv", ["train", "--steps", "12", "--record",
                                         str(tmp_path / "record.json"), *words])
        train.main()

    return run


STATE = "draft-12-fp32.pt"


def test_the_command_stops_and_goes_on(tmp_path, command, monkeypatch):
    monkeypatch.setattr(train, "perplexity", lambda *_: 61.0)
    path = tmp_path / "record.json"
    for words in (["--minutes", "0"], []):
        command(*words)
        assert path.exists() == (not words)
    record = json.loads(path.read_text("utf-8"))
    assert [row["step"] for row in record["rows"]] == [0, 10, 11]
    assert record["tokens"] == 12 * train.B * train.T
    assert (record["seed"], record["steps"], record["perplexity"]) == (0, 12, 61.0)


def test_the_command_keeps_the_last_state_where_a_loss_is_no_number(tmp_path, command, monkeypatch):
    monkeypatch.setattr(train, "perplexity", lambda *_: 61.0)
    command("--minutes", "0")
    before = (tmp_path / "states" / STATE).read_bytes()
    own = training()
    monkeypatch.setattr(own.model, "loss_sum", lambda _: (
        sum(w.sum() for w in own.model.weights.values()) * math.nan, 51))
    monkeypatch.setattr(train, "make", lambda *_: own)
    with pytest.raises(SystemExit, match=rf"step 0: the loss is nan, and 1,952 of .* gradient of "
                                         rf"model.embed_tokens.weight.*; kept: .*{STATE}"):
        command()
    assert (tmp_path / "states" / STATE).read_bytes() == before


def test_the_command_keeps_the_last_state_where_the_disk_is_full(tmp_path, command, monkeypatch):
    def write(self, name, data):
        (self.path / name).write_bytes(data[:len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(train, "perplexity", lambda *_: 61.0)
    command("--minutes", "0")
    saved = tmp_path / "states" / STATE
    before = saved.read_bytes()
    monkeypatch.setattr(train.Folder, "write", write)
    with pytest.raises(SystemExit, match=f"No space left on device; kept: .*{STATE}"):
        command()
    assert saved.read_bytes() == before
    assert not (tmp_path / "record.json").exists()


def test_two_calls_do_not_train_the_same(tmp_path, command, monkeypatch):
    """Another training may go on beside it."""
    monkeypatch.setattr(train, "perplexity", lambda *_: 61.0)
    command("--minutes", "0")
    files = train.Folder(tmp_path / "states")
    before = (tmp_path / "states" / STATE).read_bytes()
    lock = files.lock(Path(STATE).stem + ".lock")
    with pytest.raises(SystemExit, match=rf"the training of process {os.getpid()} writes here, "
                                         rf"expected no other; kept: .*{STATE}"):
        command()
    assert (tmp_path / "states" / STATE).read_bytes() == before
    command("--arm", "bf16 weights", "--minutes", "0")
    os.close(lock)
    command()
    assert (tmp_path / "record.json").exists()


@pytest.mark.parametrize("damage", [
    lambda data: b"", lambda data: data[:len(data) // 2], lambda data: b"hello",
    lambda data: data[:1000] + bytes([data[1000] ^ 255]) + data[1001:]])
def test_a_damaged_state_is_refused_and_stays(tmp_path, command, monkeypatch, damage):
    monkeypatch.setattr(train, "perplexity", lambda *_: 61.0)
    command("--minutes", "0")
    saved = tmp_path / "states" / STATE
    saved.write_bytes(damage(saved.read_bytes()))
    before = saved.read_bytes()
    with pytest.raises(SystemExit, match=rf"{STATE}: expected the state of a training, found a "
                                         rf"file that .* delete it to restart; kept: "):
        command()
    assert saved.read_bytes() == before


def test_another_file_is_no_state(tmp_path, command):
    saved = tmp_path / "states" / STATE
    saved.parent.mkdir()
    torch.save({"rows": []}, saved)
    with pytest.raises(SystemExit, match="expected the state of a training, found something else"):
        command()


def test_no_steps_are_no_training(command, capsys):
    with pytest.raises(SystemExit):
        command("--steps", "0")
    assert "--steps: expected 1 or more, found 0" in capsys.readouterr().err


@pytest.mark.parametrize("data, words", [
    (b"", "text.txt: expected text, found an empty file"),
    (b"\xff\xfe", "text.txt: expected text in UTF-8, found 'utf-8' codec"),
    (b"A word. " * 20, r"tokens, expected at least T \+ 1 = 129; kept: nothing")])
def test_a_file_without_a_text_is_refused(tmp_path, monkeypatch, data, words):
    (tmp_path / "text.txt").write_bytes(data)
    monkeypatch.setattr(train, "STATES", tmp_path / "states")
    monkeypatch.setattr("sys.argv", ["train", "--text", str(tmp_path / "text.txt")])
    with pytest.raises(SystemExit, match=words):
        train.main()


def test_a_file_is_learnt_but_for_its_last_tenth(tmp_path):
    (tmp_path / "text.txt").write_text("A hen and a fox met at the well. " * 50, "utf-8")
    learnt, held = train.texts(tmp_path / "text.txt")
    assert len(learnt) == (len(learnt) + len(held)) * 9 // 10 > 300
    with pytest.raises(ValueError, match="a held-out text of .* expected at least"):
        train.perplexity(training().model, held[:128])


# ---- what s30 says of its curves


def test_two_of_five_curves_learn_more_slowly_and_three_lie_on_one_another():
    """70 batches of 256 tokens; a batch of 262,144 is imitated; the peak rate is 5e-4."""
    curves = json.loads(training_curves.RECORD.read_text("utf-8"))
    ends = {name: sum(losses[-8:]) / 8 for name, losses in curves.items()}
    slow = {name for name, end in ends.items() if end > ends["fp32"] + 0.1}
    assert slow == {"bf16 weights", "fp16 gradients"}
    for name in set(curves) - slow:
        assert curves[name] == pytest.approx(curves["fp32"], abs=0.002)
    assert {len(losses) for losses in curves.values()} == {70}
    assert ARMS["fp16 gradients"].mean_of == 262_144
    assert training_curves.SLOW.peak == 5e-4


def test_the_norm_is_above_the_limit_in_the_first_dozen_steps():
    own = training_curves.make(options=Options(steps=70, warm=7, peak=5e-3))
    rows = [own.step() for _ in range(14)]
    assert [row.norm > own.options.limit for row in rows] == [True] * 12 + [False] * 2
    assert {row.tokens for row in rows} == {256}


def test_a_gradient_a_thousand_times_as_large_gives_the_same_step():
    steps = []
    for size in (1e-3, 1.0):
        w, m, v = torch.ones(3), torch.zeros(3), torch.zeros(3)
        adamw_step(w, size * torch.tensor([1.0, -2.0, 5.0]), m, v, 1, 0.01, (0.9, 0.95), 1e-8, 0.0)
        steps.append(w - 1)
    assert steps[0].tolist() == pytest.approx(steps[1].tolist(), rel=1e-3)
    assert steps[1].tolist() == pytest.approx([-0.01, 0.01, -0.01], rel=1e-3)


def test_a_scale_doubles_after_2000_steps_as_torchs_does():
    assert torch.amp.GradScaler("cpu").get_growth_interval() == CALM == 2000
    assert torch.tensor(2.0**-26).half() == 0 < torch.tensor(2.0**-24).half()
