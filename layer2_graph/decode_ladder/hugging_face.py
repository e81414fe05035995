"""The rungs of the other side: Hugging Face's generate on our weights."""

import time
from importlib.util import find_spec

import torch

from layer2_graph.config import ModelError
from layer2_graph.traffic import Traffic


class HuggingFace:
    """generate() of transformers on the same weights."""

    def __init__(self, model, **settings):
        """model: transformers' own    settings: of generate()"""
        self.model = model
        self.settings = settings

    @torch.no_grad()
    def __call__(self, prompts, count):
        """(tokens, seconds a token), as Decoder.
        The prompts are of one length."""
        import transformers

        stamps = []

        class Clock(transformers.StoppingCriteria):
            """Asked after each token whether to stop: never."""

            def __call__(self, ids, scores, **others):
                if ids.is_cuda:
                    torch.cuda.synchronize()
                stamps.append(time.perf_counter())
                return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

        ids = torch.tensor(prompts, device=self.model.device)               # (B, N)
        out = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False,
            eos_token_id=None, pad_token_id=0, stopping_criteria=[Clock()], **self.settings)
        return out[:, ids.shape[1]:].tolist(), (stamps[-1] - stamps[0]) / (count - 1)

    @torch.no_grad()
    def launches(self, prompts):
        """[CountedLaunch] of the model's part of one decode step after the prompts, as a Decoder's;
        empty for a compiled one, whose code is not read."""
        if "compile_config" in self.settings:
            return []
        names = []

        def begin(*of_the_model):
            names.append(Traffic().__enter__())

        def end(*of_the_model):
            names[-1].__exit__(None, None, None)

        hooks = [self.model.register_forward_pre_hook(begin),
                 self.model.register_forward_hook(end)]
        self(prompts, 2)                                    # a prefill, and a step
        for hook in hooks:
            hook.remove()
        return names[-1].launches

    def asked(self, launches):
        """How many things the host asks the device for in a step of these launches."""
        return len(launches) or None


def their_config(m):
    """transformers' own config of a Llama of this shape, or why there is none."""
    if not find_spec("transformers"):
        return "transformers is not installed"
    import transformers

    return transformers.LlamaConfig(
        vocab_size=m.V, hidden_size=m.C, intermediate_size=m.F, num_hidden_layers=m.L,
        num_attention_heads=m.H, num_key_value_heads=m.G, head_dim=m.D, rms_norm_eps=m.eps,
        max_position_embeddings=m.room, tie_word_embeddings=m.tied,
        rope_parameters={"rope_type": "default", "rope_theta": m.theta})


def their_model(config, model):
    """transformers' model with the weights of ours. config: transformers' own"""
    import transformers

    # its dtype from the start: a later conversion would round the frequencies of its rotation, too
    theirs = transformers.AutoModelForCausalLM.from_config(config, dtype=model.embedding.dtype)
    theirs = theirs.to(model.embedding.device).eval()
    state = theirs.load_state_dict(model.weights, strict=False)
    if state.unexpected_keys or set(state.missing_keys) - {"lm_head.weight"}:
        raise ModelError(f"transformers' model has no {state.unexpected_keys}, and lacks "
                         f"{state.missing_keys}")
    return theirs


def transformers_config(folder):
    """transformers' own config of a model, or why there is none."""
    if not find_spec("transformers"):
        return "transformers is not installed"
    import transformers

    return transformers.AutoConfig.from_pretrained(folder)
