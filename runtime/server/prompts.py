"""From what a client sends to a prompt: rendered and tokenized beside the event loop, within bounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

from gristmill.runtime.engine import LLMEngine
from gristmill.runtime.errors import RequestError
from gristmill.runtime.server.protocol import ChatTemplateRequest
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["PromptReader", "about_messages", "cache_salt_of", "render_chat"]

T = TypeVar("T")

_THREADS = 2
_SURELY_READ = 16  # characters a token, below which a text is tokenized without further thought


class PromptReader:
    """Renders and tokenizes the prompts of one model on threads of its own.

    A long prompt then holds up neither the event loop nor other work on
    threads, and no more prompts wait than the engine could queue.
    """

    def __init__(self, engine: LLMEngine) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(_THREADS, "gristmill-prompts")
        self._num_open = 0

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns. Raises RequestError (queue_full) while too many others wait."""
        if self._num_open >= self._engine.capacity:
            raise RequestError(
                "too many prompts wait to be read",
                code="queue_full",
                found=self._num_open,
                expected=f"at most {self._engine.capacity}",
                hint="try again later",
                retry_after=self._engine.retry_after(),
            )
        self._num_open += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._num_open -= 1

    def check_count(self, num_answers: int) -> None:
        """Raise RequestError for more answers than could ever be queued, before their prompts are read."""
        if num_answers > self._engine.capacity:
            raise RequestError(
                "the request asks for too many answers at once",
                field="prompt",
                found=f"{num_answers} answers",
                expected=f"at most {self._engine.capacity}",
            )

    def check_length(self, text: str) -> None:
        """Raise RequestError for a text too long for the context however it is tokenized."""
        limit = self._engine.max_model_len
        if len(text) > _SURELY_READ * limit and len(text) > self._longest_token * limit:
            raise RequestError(
                "the prompt does not fit into the context",
                field="prompt",
                code="context_length_exceeded",
                found=f"{len(text)} characters",
                expected=f"at most {limit} tokens of at most {self._longest_token} characters",
                hint="shorten the prompt",
            )

    @cached_property
    def _longest_token(self) -> int:
        return max(len(token) for token in self._engine.tokenizer.backend.get_vocab())


def render_chat(tokenizer: Tokenizer, request: ChatTemplateRequest) -> str:
    """The prompt that the model's template makes of a chat. Raises RequestError where that refuses."""
    _check_roles(request.messages)
    variables = dict(request.chat_template_kwargs)
    if request.documents is not None:
        variables["documents"] = request.documents
    return tokenizer.apply_chat_template(
        request.messages,
        request.tools,
        add_generation_prompt=request.add_generation_prompt,
        variables=variables,
    )


@contextmanager
def about_messages() -> Iterator[None]:
    """Errors about the prompt name `messages`, which it was rendered from."""
    try:
        yield
    except RequestError as error:
        if error.field in ("prompt", None):
            error.field = "messages"
        raise


def cache_salt_of(tenant: str, cache_salt: str) -> str:
    """One salt for both: no two pairs share one, and without either there is none."""
    return json.dumps([tenant, cache_salt]) if tenant or cache_salt else ""


def _check_roles(messages: Sequence[Mapping[str, Any]]) -> None:
    for index, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise RequestError(f"messages[{index}] has no role", field="messages", expected="role as text")
