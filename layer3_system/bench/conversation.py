"""OpenAI's own client talks to `lab serve`:  python -m layer3_system.bench.conversation

The small model serves on a port of this machine; conversation.md has the questions and answers.
Names of answers and times of day are left out, for they differ each time.
A stream's events are joined: how many there are depends on how fast the client reads.
"""

import json
import re
import subprocess
import sys
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

RECORD = Path(__file__).with_name("conversation.md")
STORY = "Once upon a time there was a curious fox named Mira. One winter Mira"
CHAT = [{"role": "user", "content": "Tell me a story about a fox."}]
TEXT = {"model": "small", "prompt": STORY, "max_tokens": 12, "temperature": 0}

# title, the client's method, its fields
CALLS = (
    ("Which models are there?", "models.list", {}),
    ("A completion, the likeliest token each time", "completions.create", TEXT),
    ("The same as a stream, and how many tokens it took", "completions.create",
     TEXT | {"stream": True, "stream_options": {"include_usage": True}}),
    ("Three answers, drawn with a seed", "completions.create",
     TEXT | {"temperature": 0.8, "seed": 7, "n": 3}),
    ("Up to a stop", "completions.create", TEXT | {"max_tokens": 60, "stop": ["."]}),
    ("With log probabilities", "completions.create", TEXT | {"max_tokens": 3, "logprobs": 2}),
    ("A chat", "chat.completions.create",
     {"model": "small", "messages": CHAT, "max_tokens": 16, "temperature": 0}),
    ("A chat as a stream", "chat.completions.create",
     {"model": "small", "messages": CHAT, "max_tokens": 16, "temperature": 0, "stream": True}),
    ("A wrong field", "completions.create", TEXT | {"temperature": -1}),
    ("A model that is not there", "completions.create", TEXT | {"model": "large"}),
)


@contextmanager
def serving():
    """The address of a `lab serve` of its own."""
    command = [sys.executable, "-m", "layer3_system.server.cli", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            listening = next(line for line in server.stdout if "Listening" in line)
            yield re.search(r"http://[\d.:]+\d", listening)[0]
        finally:
            server.terminate()


def talk(address):
    """[(request, answer)]: two texts for each of CALLS."""
    import httpx
    import openai

    exchanges = []
    hooks = {"request": [lambda request: exchanges.append(asked(request))],
             "response": [lambda response: exchanges.append(answered(response))]}
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0,
                       http_client=httpx.Client(event_hooks=hooks, trust_env=False)) as client:
        for _, name, fields in CALLS:
            call = client
            for part in name.split("."):
                call = getattr(call, part)
            try:
                list(call(**fields))            # of a stream: all events
            except openai.APIStatusError as error:
                exchanges[-1] += f"\n\nThe client raises {type(error).__name__}."
    return list(zip(exchanges[::2], exchanges[1::2], strict=True))


def asked(request):
    body = f"\n\n{pretty(json.loads(request.content))}" if request.content else ""
    return f"```http\n{request.method} {request.url.path}{body}\n```"


def answered(response):
    response.read()
    if response.headers["content-type"].startswith("text/event-stream"):
        *events, done = [line.removeprefix("data: ") for line in response.text.split("\n\n")
                         if line]
        content = joined(map(json.loads, events))
        note = f" Events, joined; the last: `{done}`"
    else:
        content = response.json()
        note = ""
    return f"{response.status_code}.{note}\n\n```json\n{pretty(stable(content))}\n```"


def joined(events):
    """The one answer of a stream: its text, why it ended, and its usage."""
    text = ""
    reason = None
    usage = None
    for event in events:
        for choice in event["choices"]:
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            reason = choice["finish_reason"] or reason
        usage = event.get("usage") or usage
    return {"text": text, "finish_reason": reason} | ({"usage": usage} if usage else {})


def stable(content):
    """The parts of an answer that are the same each time."""
    if isinstance(content, dict):
        return {key: stable(value) for key, value in content.items()
                if key != "created" and not (key == "id" and "choices" in content)}
    if isinstance(content, list):
        return [stable(value) for value in content]
    return round(content, 3) if isinstance(content, float) else content


def pretty(content):
    """JSON with a line for each field of the outermost object."""
    lines = (f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
             for key, value in content.items())
    return "{\n" + ",\n".join(lines) + "\n}"


def write(exchanges):
    """The Markdown of a conversation."""
    about = ("What `lab serve` answers to the `openai` package, as it went over the wire. Made by\n"
             "`python -m layer3_system.bench.conversation`: without names of answers and times of "
             "day, and a\nstream's events joined.")
    parts = [f"## {title}\n\n{request}\n\n{answer}"
             for (title, *_), (request, answer) in zip(CALLS, exchanges, strict=True)]
    return "\n\n".join(["# A conversation with OpenAI's client", about, *parts]) + "\n"


def main():
    if not find_spec("openai"):
        sys.exit("the package openai is needed and is not installed")
    with serving() as address:
        RECORD.write_text(write(talk(address)), "utf-8")


if __name__ == "__main__":
    main()
