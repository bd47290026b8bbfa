"""What the sampler remembers of one completion, made from what the request asks for."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gristmill.runtime.kernels import _native
from gristmill.runtime.sampling.params import SamplingParams

__all__ = ["SamplerState", "make_sampler_state"]

SamplerState = _native.SamplerState

_UINT64 = (1 << 64) - 1


def make_sampler_state(
    params: SamplingParams,
    *,
    seed: int,
    index: int,
    prompt_token_ids: Sequence[int],
    end_token_ids: Collection[int],
    vocab_size: int,
) -> SamplerState:
    """Settings and history of completion `index` of a request; token ids must lie in the vocabulary.

    `seed` is the request's own seed, already drawn where the caller gave none.
    `end_token_ids` end a generation and can't be chosen before `min_tokens`.
    The random numbers come from Philox, a counter-based generator (Salmon et
    al. 2011): seed and completion are its key and the position its counter, so
    that nothing has to be carried from step to step.
    """
    return SamplerState(
        seed=seed & _UINT64,
        completion=index,
        vocab_size=vocab_size,
        prompt_token_ids=prompt_token_ids,
        end_token_ids=sorted(end_token_ids),
        logit_bias=list(params.logit_bias.items()),
        temperature=params.temperature,
        top_k=min(params.top_k, vocab_size),
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        min_tokens=params.min_tokens,
        logprobs=-1 if params.logprobs is None else params.logprobs,
        bad_words=params.bad_word_ids,
        allowed_token_ids=params.allowed_token_ids,
    )
