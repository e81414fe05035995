"""Text from a model, computed with one table of kernels:  python -m layer2_graph.generate

It says whose kernel computes each operation, writes the text as it comes, and compares the tokens
with PyTorch's.
Every step takes the likeliest token.
All is fp32, so that tokens can be compared.

V: vocabulary
"""

import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer

from day02_overview import NANO, decode, encode
from lab import device, simulator
from lab.course import CourseError
from lab.terminal import main, own_desk
from layer1_kernels import Kernels, kernels
from layer2_graph.checkpoint import Tokenizer, read_weights
from layer2_graph.config import ModelError, read_config
from layer2_graph.families import cache_of, model_of
from layer2_graph.g01_llama import SLOTS
from layer2_graph.launches import Launches
from layer2_graph.models import SMALL

IGNORE = Annotated[list[str] | None, typer.Option(
    "--ignore-config", metavar="KEY",
    help="an entry of config.json to take as absent; may be given several times")]
ROUNDING = 1e-2         # of a logit: 1000 times what back ends differ by in the shipped models

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class Letters:
    """Text and tokens of o02's nano Llama, which has no tokenizer.json: ASCII codes."""

    def encode(self, text):
        return encode(text).tolist()

    def decode(self, tokens):
        return decode(tokens)


# ---- tokens


def continuation(model, prompt, count):             # yields (int, (V,))
    """The likeliest next token and all scores, at most `count` times, up to one that ends a text.

    prompt: [int]
    """
    cache = cache_of(model, 1, len(prompt) + count)
    step = prompt
    for _ in range(count):
        with torch.inference_mode():                # records nothing for gradients, of views either
            logits = model.forward(cache.step([step]), cache)[0]    # (V,)
        step = [int(logits.argmax())]
        yield step[0], logits
        if step[0] in model.config.ends:
            return


def differ(own, oracle):
    """Where two continuations of one prompt first differ, and by what gap; None if they do not.

    (number of equal tokens, by how much the oracle prefers its own token there to the other)
    """
    for i, ((token, _), (right, logits)) in enumerate(zip(own, oracle, strict=False)):
        if token != right:
            return i, float(logits[right] - logits[token])
    return None


def used(model):
    """The operations of the table that the model calls, in order."""
    recorder = Launches()
    counted = type(model)(model.config, model.weights, recorder.counting(kernels("torch")))
    cache = cache_of(model, 1, 1)
    with recorder:
        counted.forward(cache.step([[0]]), cache)
    return [name for name in dict.fromkeys(recorder.names) if name in Kernels.__dataclass_fields__]


# ---- text


def pieces(tokenizer, prompt, tokens):              # yields str
    """The text of tokens as they come.
    A letter of several tokens waits until it is complete."""
    every = list(prompt)
    shown = tokenizer.decode(prompt)
    for token in tokens:
        every.append(token)
        text = tokenizer.decode(every)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text[len(shown):]
            shown = text
    yield tokenizer.decode(every)[len(shown):]


def whose(sources, names):
    """A line for each operation: mine, PyTorch's, made for a CPU, or the course's own kernel."""
    for name in names:
        source = sources[name]
        kind = ("mine" if source == "mine" else
                f"torch      {source}" if source.endswith("_torch") else
                f"cpu        {source}" if source.endswith("_cpu") else f"reference  {source}")
        yield f"  {name:16} {kind}"
    yield f"  {'all else':16} torch      additions, the embedding's rows"


def write(model, oracle, tokenizer, text, prompt, count):
    """Write one continuation.
    False where it differs from the oracle's by more than rounding."""
    print(f"\n{text}", end="", flush=True)
    own = []
    clock = [time.monotonic()]

    def tokens():
        for token, logits in continuation(model, prompt, count):
            own.append((token, logits))
            clock.append(time.monotonic())
            yield token

    for piece in pieces(tokenizer, prompt, tokens()):
        print(piece, end="", flush=True)
    first, *later = (b - a for a, b in zip(clock, clock[1:], strict=False))
    each = f", then {median(later):.3g} s a token" if later else ""
    print(f"\n\n{len(own)} tokens: {first:.3g} s for the prompt and whatever had to be compiled"
          f"{each}")
    if oracle is None:
        return True
    return agrees(differ(own, continuation(oracle, prompt, count)))


def agrees(difference):
    """Say where tokens differ from PyTorch's, if they do.
    False where rounding does not explain it."""
    if difference is None:
        print("the same tokens as PyTorch")
        return True
    same, gap = difference
    why = ("which rounding explains" if gap <= ROUNDING else
           "more than rounding explains: a kernel is wrong")
    print(f"the first {same} tokens are PyTorch's; at the next one PyTorch prefers its own by "
          f"{gap:.3g} of a logit, {why}")
    return gap <= ROUNDING


# ---- the command


def is_nano(folder):
    return folder.resolve() == NANO.resolve()


def check_table(folder, config, ops, dtype):
    """ModelError if a table's attention does not take a model's heads, or its dtype.

    It is called with no tokens, so that it checks its arguments and computes nothing.
    """
    array = partial(torch.zeros, dtype=dtype)
    G, D = (1, config.latent + config.rotated) if config.latent else (config.G, config.D)
    pages = array(1, SLOTS, G, D)
    whole = partial(torch.zeros, dtype=torch.int32)
    try:
        ops.paged_attention(array(0, config.H, D), pages, pages, whole(0, 1), whole(1),
                            whole(0), config.scale)
    except (ValueError, TypeError) as error:
        raise ModelError(f"{Path(folder) / 'config.json'}: {config.H} heads, {D} wide, are "
                         f"not for this table of kernels: {error}; --kernels torch takes "
                         f"them") from None


def prepare(folder, prompts, count, ignore=()):
    """(config, weights, tokenizer, prompts in tokens).
    ModelError or ValueError in one line."""
    config = read_config(folder, ignore)
    tokenizer = Letters() if is_nano(folder) else Tokenizer(folder, config)
    encoded = [tokenizer.encode(text) for text in prompts]
    for text, tokens in zip(prompts, encoded, strict=True):
        if not text or not tokens:
            raise ValueError("--prompt is empty, expected a text")
        config.check_room(len(tokens) + count)
    weights = read_weights(folder, config, torch.float32, device.torch_device())
    return config, weights, tokenizer, encoded


@app.command()
def generate(
    table: Annotated[str, typer.Option("--kernels", help="torch, triton, cuda or mine")] = "torch",
    model: Annotated[Path | None, typer.Option(
        metavar="FOLDER", help="a model as Hugging Face has it; else the small model, or the "
                               "nano model if kernels run in the simulator")] = None,
    tokens: Annotated[int, typer.Option(min=1, help="most tokens for each prompt")] = 40,
    prompt: Annotated[list[str] | None, typer.Option(
        help="a text to continue; may be repeated")] = None,
    ignore: IGNORE = None,
    desk: Annotated[Path | None, typer.Option(help="another desk than work/")] = None,
):
    """Continue texts, and compare the tokens with PyTorch's.

    Exit 0: identical, or different only by rounding; 1: a kernel is wrong; 2: cannot run.
    """
    simulated = table != "torch" and device.gpu() is None
    if simulated:
        device.use_simulator()
    folder = (model or (NANO if simulated else SMALL)).resolve()
    texts = prompt or ["a warp has" if is_nano(folder) else "Once upon a time"]
    try:
        ops = kernels(table, own_desk(desk).folder if table == "mine" else None)
        config, weights, tokenizer, prompts = prepare(folder, texts, tokens, ignore or ())
        check_table(folder, config, ops, torch.float32)
    except ValueError as error:
        raise CourseError(str(error)) from None
    own = model_of(config, weights, ops)
    oracle = None if table == "torch" else model_of(config, weights, kernels("torch"))
    names = used(own)
    print(f"{folder.name}: {sum(w.numel() for w in weights.values()):,} weights, on "
          f"{'this CPU, kernels in the simulator' if simulated else device.torch_device()}")
    print("\n".join(whose(ops.sources(), names)))
    if table == "mine":
        print(f"  yours: {sum(ops.sources()[name] == 'mine' for name in names)} of {len(names)}")
    try:
        right = [write(own, oracle, tokenizer, text, p, tokens)
                 for text, p in zip(texts, prompts, strict=True)]
    except simulator.KernelError as error:
        print()                                 # end the line that was being written
        raise CourseError(f"a kernel fails: {error}") from None
    raise typer.Exit(0 if all(right) else 1)


if __name__ == "__main__":
    main(app, "generate")
