"""A model behind an OpenAI-compatible server under test."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from gristmill.pipeline.validate.tasks.model import Answer, Continuation, Prompt, Score
from gristmill.runtime.errors import InputError, OutsideError, UnsupportedError
from gristmill.runtime.loadtest.client import CompletionClient, error_message
from gristmill.runtime.loadtest.http import HttpError, parse_endpoint
from gristmill.runtime.loadtest.probe import probe_model

__all__ = ["ServerAddress", "ServerModel"]

T = TypeVar("T")

_AT_ONCE = 8
_BUSY = (429, 503)
_PAUSES_S = (0.5, 2.0, 8.0)
_MOST_STOPS = 4  # that OpenAI's API takes; what is left of an answer is cut here
_PROBE = Continuation("The miller grinds", " wheat")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server's base URL, which of its models is meant, and the key it asks for."""

    url: str
    model: str | None = None
    api_key: str | None = None
    timeout: float = 600.0


class ServerModel:
    """A `TaskModel` that asks 8 things at once and waits where the server is busy.

    Raises InputError for a model that the server does not have, OutsideError
    for a server that can't be reached or answers with an error.
    """

    identity = None

    def __init__(self, address: ServerAddress) -> None:
        endpoint = parse_endpoint(address.url)
        self._url = endpoint.url
        self._client = CompletionClient(endpoint, api_key=address.api_key, timeout=address.timeout)
        self._runner = asyncio.Runner()
        self._scores = False
        try:
            self._client.model = self._runner.run(probe_model(self._client, address.model))
        except BaseException:
            self.close()
            raise

    def score(self, continuations: Sequence[Continuation]) -> list[Score]:
        """See `TaskModel`, by completions that echo their prompt with log probabilities."""
        if not self._scores:
            self._runner.run(self._score(_PROBE))
            self._scores = True
        return self._runner.run(_all(self._score, continuations))

    def generate(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """See `TaskModel`."""
        return self._runner.run(_all(self._answer, prompts))

    def close(self) -> None:
        """See `TaskModel`."""
        self._client.close()
        self._runner.close()

    async def _score(self, asked: Continuation) -> Score:
        text = asked.context + asked.text
        fields = {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0.0}
        refused = self._refused if self._scores else self._without_echo
        answer = await self._ask("/v1/completions", fields, refused)
        try:
            report = answer["choices"][0]["logprobs"]
            rows = zip(report["text_offset"], report["token_logprobs"], report["top_logprobs"], strict=True)
            begin = len(asked.context.rstrip(" "))
            chosen = [(logprob, top) for offset, logprob, top in rows if begin <= offset < len(text)]
            if not chosen:
                raise ValueError("no token of the continuation")
            greedy = all(logprob >= max(top.values()) for logprob, top in chosen)
            total = sum(float(logprob) for logprob, _ in chosen)
            if math.isnan(total):
                raise ValueError("a log probability that is no number")
            return Score(total, greedy)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise self._without_echo(f"{type(error).__name__}: {error}") from error

    async def _answer(self, prompt: Prompt) -> Answer:
        fields: dict[str, Any] = {"max_tokens": prompt.max_tokens, "temperature": 0.0}
        if prompt.stop:
            fields["stop"] = prompt.stop[:_MOST_STOPS]
        if prompt.messages:
            path, fields["messages"] = "/v1/chat/completions", prompt.messages
        else:
            path, fields["prompt"] = "/v1/completions", prompt.text
        answer = await self._ask(path, fields, self._refused)
        try:
            choice = answer["choices"][0]
            text = choice["message"]["content"] if prompt.messages else choice["text"]
            if not isinstance(text, str | None):
                raise TypeError("an answer that is no text")
        except (IndexError, KeyError, TypeError) as error:
            raise OutsideError(
                f"{self._url}{path} answers with no completion", found=str(answer)[:200]
            ) from error
        return Answer(_cut(text or "", prompt.stop))

    async def _ask(self, path: str, fields: Mapping[str, Any], refused: Callable[[str], Exception]) -> Any:
        """The answer as JSON. Raises what `refused` makes of the message to a request called wrong."""
        status, data = 0, b""
        for pause in (*_PAUSES_S, None):
            status, data = await self._post(path, {"model": self._client.model, **fields})
            if status not in _BUSY or pause is None:
                break
            await asyncio.sleep(pause)
        if status in (400, 422):
            raise refused(error_message(data))
        if status != 200:
            raise OutsideError(f"{self._url}{path} answers {status}", found=error_message(data))
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise OutsideError(f"{self._url}{path} answers with no JSON", found=repr(data[:80])) from error

    async def _post(self, path: str, fields: Mapping[str, Any]) -> tuple[int, bytes]:
        try:
            return await self._client.ask("POST", path, fields)
        except TimeoutError as error:
            raise OutsideError(f"{self._url} does not answer in {self._client.timeout:g} s") from error
        except (OSError, HttpError) as error:
            raise OutsideError(f"can't reach {self._url}", found=str(error)) from error

    def _without_echo(self, found: str) -> UnsupportedError:
        return UnsupportedError(
            f"{self._url} does not score prompts",
            found=found,
            expected="completions with echo, logprobs and text_offset",
            hint="run tasks that only generate, such as gsm8k",
        )

    def _refused(self, found: str) -> InputError:
        hint = "leave the task out, or serve the model with a context that holds its prompts"
        return InputError(f"{self._url} refuses a prompt", found=found, hint=hint)


async def _all(ask: Callable[[Any], Awaitable[T]], asked: Sequence[Any]) -> list[T]:
    """All answers in order; the first error ends the others."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(item: Any) -> T:
        async with gate:
            return await ask(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in asked]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _cut(text: str, stop: Sequence[str]) -> str:
    """The text before the first of the stops."""
    return text[: min((at for each in stop if (at := text.find(each)) >= 0), default=len(text))]
