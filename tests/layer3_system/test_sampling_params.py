"""A sampling parameter is declared once: its line in SamplingParams."""

import json
import subprocess
import sys

from lab.course import ROOT
from layer3_system.s08_server import to_params

# The course with one more line in SamplingParams, which nothing else knows of.
ONE_MORE = '''
import json, sys, types
from pathlib import Path

path = Path("layer3_system/sampling_params.py")
line = '    warmth: float = parameter(1.0, "a number from 0 to 9", lambda v: 0 <= v <= 9)\\n'
before = "    min_p: float"
text = path.read_text("utf-8")
assert text.count(before) == 1
module = types.ModuleType("layer3_system.sampling_params")
sys.modules[module.__name__] = module
exec(compile(text.replace(before, line + before), path, "exec"), module.__dict__)

import torch
from layer3_system import ApiError, ByteTokenizer, Engine, Limits, MockLlama
from layer3_system.engine import draws
from layer3_system.server.protocol import parse

def refusal(fields):
    try:
        return str(parse(fields, False, Limits()))
    except ApiError as error:
        return str(error)

answer = {"refused": refusal({"prompt": "a", "warmth": 10}),
          "unknown": refusal({"prompt": "a", "wormth": 1})}
params = parse({"prompt": "a", "warmth": 0.5}, False, Limits()).params
answer["api"] = params.warmth
answer["default"] = parse({"prompt": "a"}, False, Limits()).params.warmth
engine = Engine(MockLlama(), ByteTokenizer())
request, = engine.submit([1, 2], params)
answer["engine"] = request.params.warmth
seen = []
whole = draws.adjusted
draws.adjusted = lambda logits, each, newest: (
    seen.extend(draw.request.params.warmth for draw in each), whole(logits, each, newest))[1]
engine.step()
answer["sampler"] = seen
print(json.dumps(answer))
'''


def test_a_parameter_is_declared_in_one_place():
    """One line more in SamplingParams reaches the API, the engine and what samples."""
    done = subprocess.run([sys.executable, "-c", ONE_MORE], cwd=ROOT, capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "refused": "warmth: expected a number from 0 to 9, found 10",
        "unknown": "wormth: unknown field",
        "api": 0.5, "default": 1.0, "engine": 0.5, "sampler": [0.5]}


def test_a_completion_has_16_tokens_and_a_chat_may_fill_the_context():
    assert to_params({}, chat=False).max_tokens == 16
    assert to_params({}, chat=True).max_tokens is None
