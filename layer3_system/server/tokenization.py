"""`POST /tokenize` and `POST /detokenize`, with vLLM's fields"""

from layer3_system.api_error import ApiError
from layer3_system.server.messages import messages_of
from layer3_system.server.protocol import boolean, refuse_unknown, tokens, tokens_of

KNOWN = {"model", "return_token_strs"}
# Features for chats that this server lacks: the values that ask for nothing.
NEUTRAL = {"add_generation_prompt": (True,), "continue_final_message": (False,),
           "add_special_tokens": (False,), "tools": ([],)}


def tokenize(fields, tokenizer, room):
    """The answer to /tokenize: the tokens of a prompt, or of messages with their template.

    room: tokens that a context has
    """
    chat = "messages" in fields
    if chat:
        refuse_unknown(fields, KNOWN | {"messages"}, NEUTRAL)
        (numbers,) = tokens_of([messages_of(fields)], True, tokenizer)
    else:
        refuse_unknown(fields, KNOWN | {"prompt", "add_special_tokens"}, {})
        numbers = numbers_of(fields, tokenizer)
    strings = strings_of(numbers, tokenizer) if boolean(fields, "return_token_strs") else None
    return {"count": len(numbers), "max_model_len": room, "tokens": numbers, "token_strs": strings}


def numbers_of(fields, tokenizer):
    """The tokens of the one text in the field prompt."""
    prompt = fields.get("prompt")
    if not isinstance(prompt, str):
        raise ApiError(400, f"prompt: expected a text, found {prompt!r}", "prompt")
    special = fields.get("add_special_tokens") is None or boolean(fields, "add_special_tokens")
    if special:
        return tokens_of([prompt], False, tokenizer)[0]
    if not hasattr(tokenizer, "own"):                   # only Hugging Face's has the choice
        raise ApiError(400, "add_special_tokens: this model's tokenizer cannot leave them out",
                       "add_special_tokens")
    return tokenizer.own.encode(prompt, add_special_tokens=False).ids


def strings_of(numbers, tokenizer):
    """What the vocabulary calls each token."""
    own = getattr(tokenizer, "own", None)
    return [own.id_to_token(n) if own else tokenizer.decode([n]) for n in numbers]


def detokenize(fields, tokenizer, V):
    """The answer to /detokenize: the text of tokens, with those that mark its start or end.

    V: tokens that the model knows
    """
    refuse_unknown(fields, {"model", "tokens"}, {})
    numbers = fields.get("tokens")
    if not tokens(numbers) or not all(0 <= n < V for n in numbers):
        raise ApiError(400, f"tokens: expected a list of tokens from 0 to {V - 1}, found "
                            f"{numbers!r}", "tokens")
    own = getattr(tokenizer, "own", None)
    return {"prompt": own.decode(numbers, skip_special_tokens=False) if own else
            tokenizer.decode(numbers)}
