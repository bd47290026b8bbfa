"""A model in this process under test: the engine that serves, or the reference engine over any checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from gristmill.pipeline.validate.tasks.model import Answer, Continuation, Prompt, Score
from gristmill.runtime.llm import LLM
from gristmill.runtime.outputs import RequestOutput
from gristmill.runtime.sampling.params import SamplingParams
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["EngineModel", "split_tokens"]

_SCORED = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=1)


class EngineModel:
    """A `TaskModel` over an `LLM`, which it takes over and closes."""

    def __init__(self, llm: LLM, identity: Mapping[str, Any]) -> None:
        """`identity` says what the weights are; the engine's number formats are added to it."""
        self._llm = llm
        info = llm.info
        formats = {"engine": info.name, "compute": info.compute, "kv_cache": info.kv_cache}
        self._identity = MappingProxyType({**identity, **formats, "context": llm.max_model_len})

    @property
    def identity(self) -> Mapping[str, Any]:
        """See `TaskModel`."""
        return self._identity

    def score(self, continuations: Sequence[Continuation]) -> list[Score]:
        """See `TaskModel`. What does not fit into the context loses its beginning."""
        context = self._llm.max_model_len
        pairs = [split_tokens(self._llm.tokenizer, each) for each in continuations]
        outputs = self._llm.generate([(*before, *behind)[-context:] for before, behind in pairs], _SCORED)
        return [
            _score(output, len(behind), truncated=len(before) + len(behind) > context)
            for output, (before, behind) in zip(outputs, pairs, strict=True)
        ]

    def generate(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """See `TaskModel`. What does not fit into the context loses its beginning."""
        fitted = [self._fitted(prompt) for prompt in prompts]
        outputs = self._llm.generate(
            [token_ids for token_ids, _ in fitted],
            [
                self._params(prompt, len(token_ids))
                for prompt, (token_ids, _) in zip(prompts, fitted, strict=True)
            ],
        )
        return [
            Answer(output.outputs[0].text, truncated)
            for output, (_, truncated) in zip(outputs, fitted, strict=True)
        ]

    def close(self) -> None:
        """See `TaskModel`."""
        self._llm.close()

    def _fitted(self, prompt: Prompt) -> tuple[Sequence[int], bool]:
        """The prompt, and whether its beginning is lost: an answer gets room, at most half the context."""
        token_ids, context = self._token_ids(prompt), self._llm.max_model_len
        most = max(context - prompt.max_tokens, context // 2)
        return token_ids[-most:], len(token_ids) > most

    def _params(self, prompt: Prompt, length: int) -> SamplingParams:
        room = self._llm.max_model_len - length
        return SamplingParams(temperature=0.0, max_tokens=min(prompt.max_tokens, room), stop=prompt.stop)

    def _token_ids(self, prompt: Prompt) -> Sequence[int]:
        tokenizer = self._llm.tokenizer
        if not prompt.messages:
            return tokenizer.encode_prompt(prompt.text, add_special_tokens=True)
        if not tokenizer.templates:  # a base model: the chat's texts, one behind the other
            text = "\n\n".join(str(message["content"]) for message in prompt.messages) + "\n\n"
            return tokenizer.encode_prompt(text, add_special_tokens=True)
        rendered = tokenizer.apply_chat_template(prompt.messages, add_generation_prompt=True)
        return tokenizer.encode(rendered, add_special_tokens=False)


def split_tokens(tokenizer: Tokenizer, continuation: Continuation) -> tuple[list[int], list[int]]:
    """Tokens of the context and of the continuation, cut as lm-evaluation-harness cuts them.

    Both are tokenized together, and spaces at the end of the context count to the continuation.
    """
    context = continuation.context.rstrip(" ")
    whole = tokenizer.encode_prompt(continuation.context + continuation.text, add_special_tokens=True)
    length = len(tokenizer.encode_prompt(context, add_special_tokens=True))
    return whole[:length], whole[length:]


def _score(output: RequestOutput, length: int, *, truncated: bool) -> Score:
    entries = [entry for entry in (output.prompt_logprobs or ())[-length:] if entry is not None]
    greedy = all(entry.top[0][0] == entry.token_id for entry in entries)
    return Score(sum(entry.logprob for entry in entries), greedy, truncated)
