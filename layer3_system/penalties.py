"""Changes to the scores of a token before it is drawn: a bias, penalties, and min_p

V: vocabulary
In vLLM's order: the bias, the repetition penalty, the frequency and presence penalties, min_p;
`sample` applies temperature, top_k and top_p after them. A row depends on its own request alone, so
that an answer stays the same in any batch. Log probabilities are of the scores before all of this.
Costs some passes over the V scores of a request that asks for it, and nothing else.
"""

import math

import torch


def adjusted(logits, draws, newest):                # (draws, V) -> (draws, V)
    """The scores that tokens are drawn from. Rows without such parameters stay as they are.

    newest: {request: its token that is still being computed, a tensor}
    """
    rows = [i for i, draw in enumerate(draws) if draw.request.params.changes_scores]
    if rows:
        logits = logits.float()
        for i in rows:
            logits[i] = adjusted_row(logits[i], draws[i], newest.get(draws[i].request))
    return logits


def adjusted_row(z, draw, newest):                  # (V,) -> (V,)
    """Penalties for what the request has written, the guesses before this one included."""
    request = draw.request
    params = draw.request.params
    written = torch.tensor(request.output + request.draft[:draw.place], dtype=torch.long,
                           device=z.device)
    if newest is not None:                          # -1 ends the request before this draw counts
        written = torch.cat((written, newest.clamp(min=0).view(1)))
    counts = torch.zeros_like(z).index_add_(0, written, torch.ones_like(written, dtype=z.dtype))
    if params.logit_bias:
        tokens, values = zip(*params.logit_bias, strict=True)
        z = z.index_add(0, torch.tensor(tokens, device=z.device),
                        torch.tensor(values, dtype=z.dtype, device=z.device))
    if params.repetition_penalty != 1:
        present = counts > 0
        present[torch.tensor(request.prompt, device=z.device)] = True
        penalty = params.repetition_penalty
        z = torch.where(present, torch.where(z > 0, z / penalty, z * penalty), z)
    z = z - params.frequency_penalty * counts - params.presence_penalty * (counts > 0)
    if params.min_p and params.temperature:         # p >= min_p · p of the likeliest, as logits
        z = z.masked_fill(z < z.max() + params.temperature * math.log(params.min_p), -torch.inf)
    return z
