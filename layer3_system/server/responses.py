"""What OpenAI's clients expect back: completions and chats, whole and in pieces, and errors."""

import secrets
import time
from itertools import accumulate

from layer3_system.server.tools import reader

LOWEST_LOGPROB = -9999.0         # JSON has no minus infinity; OpenAI writes this


class Responses:
    """The answers of one Call as JSON.
    The subclasses hold what completions and chats do not share.
    """

    def __init__(self, call, model, request, tokenizer):
        self.call = call
        self.request = request
        self.tokenizer = tokenizer
        self.decode = tokenizer.decode
        self.head = {"id": call.id, "created": int(time.time()), "model": model}
        self.read, self.offsets = {}, {}        # index -> tokens read, characters of their texts
        self.readers = {}                       # index -> what reads its calls

    @classmethod
    def new_id(cls):
        """A name made by the server, so that no two requests share one."""
        return f"{cls.prefix}-{secrets.token_hex(12)}"

    async def whole(self):
        """The answers in one object, once all have ended."""
        parts = {}                              # index -> [text, reason]
        async for pieces in self.call.pieces():
            for i, piece in pieces.items():
                text, _ = parts.get(i, ("", None))
                parts[i] = text + piece.text, piece.reason
        choices = [self.choice(i, self.prompt_text(i) + text, self.logprobs(i, None), reason)
                   for i, (text, reason) in sorted(parts.items())]
        return self.head | {"object": self.whole_name, "choices": choices, "usage": self.usage()}

    async def chunks(self):
        """The answers in pieces, each with an unread part of one of them."""
        head = self.head | {"object": self.chunk_name}
        usage = {"usage": None} if self.request.usage else {}
        async for pieces in self.call.pieces():
            for i, piece in pieces.items():
                first = i not in self.read
                text = (self.prompt_text(i) if first else "") + piece.text
                logprobs = self.logprobs(i, piece.tokens)
                if self.request.running:
                    usage = {"usage": self.usage_so_far(i)}
                if text or first or piece.reason or logprobs:
                    yield head | usage | {"choices": [
                        self.delta(i, text, logprobs, piece.reason, first)]}
        if usage:
            yield head | {"choices": [], "usage": self.usage()}

    def logprobs(self, i, count):
        """Log probabilities of the next `count` tokens of answer i, or of all; None if not wanted.
        """
        request = self.call.answers[i]
        begin = self.read.get(i, 0)
        end = len(request.output) if count is None else begin + count
        self.read[i] = end
        if self.request.params.logprobs is None or begin == end:
            return None
        return self.shape(i, request.output[begin:end], request.logprobs[begin:end])

    def prompt_text(self, i):
        if not self.request.echo:
            return ""
        prompt = self.request.prompts[i // self.request.params.n]
        return prompt if isinstance(prompt, str) else self.decode(prompt)

    def usage_so_far(self, i):
        """The usage of answer i alone, as far as it was read."""
        return usage_of(len(self.call.answers[i].prompt), self.read[i])

    def usage(self):
        first = [r for r in self.call.answers if r.index == 0]
        tokens = sum(len(r.prompt) for r in first)
        written = sum(len(r.output) for r in self.call.answers)
        return usage_of(tokens, written) | {
                "prompt_tokens_details": {"cached_tokens": sum(r.num_cached for r in first)}}


def usage_of(prompt, answer):
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


class TextResponses(Responses):
    prefix = "cmpl"
    whole_name = "text_completion"
    chunk_name = "text_completion"

    def choice(self, i, text, logprobs, reason, first=False):
        return {"index": i, "text": text, "logprobs": logprobs, "finish_reason": reason}

    delta = choice

    def shape(self, i, tokens, logprobs):
        texts = [self.decode([token]) for token in tokens]
        *offsets, self.offsets[i] = accumulate(map(len, texts), initial=self.offsets.get(i, 0))
        tops = [{} for _ in tokens]
        for top, logprob in zip(tops, logprobs, strict=True):
            for token, value in logprob.items():  # tokens of one text: the likelier one
                top.setdefault(self.decode([token]), max(value, LOWEST_LOGPROB))
        return {"tokens": texts, "text_offset": offsets, "top_logprobs": tops, "token_logprobs": [
            max(logprob[token], LOWEST_LOGPROB)
            for token, logprob in zip(tokens, logprobs, strict=True)]}


def reason_with(calls, reason):
    """Why a chat's answer ends: an answer that was cut is cut, whatever it calls."""
    return "tool_calls" if calls and reason == "stop" else reason


class ChatResponses(Responses):
    prefix = "chatcmpl"
    whole_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def choice(self, i, text, logprobs, reason):
        text, calls = self.split(i, text, True)
        content = {"content": text or None, "tool_calls": calls} if calls else {"content": text}
        return {"index": i, "message": {"role": "assistant"} | content, "logprobs": logprobs,
                "finish_reason": reason_with(calls, reason)}

    def delta(self, i, text, logprobs, reason, first):
        text, calls = self.split(i, text, reason is not None)
        content = ({"role": "assistant"} if first else {}) | ({"content": text} if text or first
                                                          else {})
        if calls:
            content["tool_calls"] = [{"index": k} | call for k, call in enumerate(calls)]
        return {"index": i, "delta": content, "logprobs": logprobs,
                "finish_reason": reason_with(calls, reason)}

    def split(self, i, text, last):
        """(what of answer i's new text is for the reader now, its calls, which come at its end)."""
        if i not in self.readers:
            self.readers[i] = reader(self.request.tools, self.tokenizer)
        own = self.readers[i]
        if own is None:
            return text, []
        text = own.add(text)
        rest, calls = own.end() if last else ("", [])
        return text + rest, calls

    def shape(self, i, tokens, logprobs):
        most = self.request.params.logprobs
        return {"content": [self.one(token, logprob[token]) | {"top_logprobs": [
            self.one(*pair) for pair in list(logprob.items())[:most]]}
            for token, logprob in zip(tokens, logprobs, strict=True)], "refusal": None}

    def one(self, token, value):
        """bytes: None if a token is only part of a character, so that its text says nothing."""
        text = self.decode([token])
        broken = "\N{REPLACEMENT CHARACTER}" in text
        return {"token": text, "logprob": max(value, LOWEST_LOGPROB),
                "bytes": None if broken else list(text.encode())}
