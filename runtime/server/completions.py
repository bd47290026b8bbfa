"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from starlette.responses import JSONResponse, Response

from gristmill.runtime.engine import EngineRequest
from gristmill.runtime.errors import RequestError
from gristmill.runtime.outputs import CompletionOutput, RequestOutput
from gristmill.runtime.sampling.logprobs import TokenLogprobs
from gristmill.runtime.server.answers import Submission, check_stream_options, collect, submit, usage
from gristmill.runtime.server.caller import Caller
from gristmill.runtime.server.events import EventStream, unless_client_leaves
from gristmill.runtime.server.fields import UNSUPPORTED_COMPLETION
from gristmill.runtime.server.models import ServedModel, find_model, in_worker
from gristmill.runtime.server.parse import parse_request
from gristmill.runtime.server.protocol import CompletionRequest, sampling_params
from gristmill.runtime.server.token_text import CompletionLogprobs
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["complete"]

_DEFAULT_MAX_TOKENS = 16

Logprobs = dict[str, list[Any]]


async def complete(models: Mapping[str, ServedModel], body: Mapping[str, Any], caller: Caller) -> Response:
    """Answer a request, whole or as a stream. Raises RequestError, ClientDisconnect if the client leaves."""
    request = parse_request(CompletionRequest, body, UNSUPPORTED_COMPLETION)
    check_stream_options(request)
    model = find_model(models, request.model)
    requests = await in_worker(lambda: _prepare(model, request))
    submission = submit(model, "cmpl", "text_completion", requests)
    if request.stream:
        return EventStream(_chunks(model.tokenizer, request, submission), submission.stream.abort)
    try:
        results = await unless_client_leaves(collect(submission), caller.receive)
    finally:
        submission.stream.abort()
    return JSONResponse(_response(model.tokenizer, request, submission, results))


def _prepare(model: ServedModel, request: CompletionRequest) -> list[EngineRequest]:
    max_tokens = _DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    prompt_logprobs = request.logprobs if request.echo else None
    if request.echo and max_tokens == 0:
        prompt_logprobs = request.logprobs or 0
    params = sampling_params(
        request, max_tokens=max_tokens, logprobs=request.logprobs, prompt_logprobs=prompt_logprobs
    )
    engine = model.engine.engine
    special = request.add_special_tokens
    return [engine.prepare(prompt, params, add_special_tokens=special) for prompt in _prompts(request)]


def _prompts(request: CompletionRequest) -> Sequence[str | list[int]]:
    prompt = request.prompt
    if not prompt:
        raise RequestError("the prompt is empty", field="prompt", expected="text or token ids")
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [[token_id for token_id in prompt if isinstance(token_id, int)]]
    return [part for part in prompt if not isinstance(part, int)]


class _Choice:
    """What one choice shows: the echoed prompt if asked for, then text and log probabilities."""

    def __init__(self, tokenizer: Tokenizer, request: CompletionRequest, prompt: EngineRequest) -> None:
        self._tokenizer = tokenizer
        self._request = request
        self._prompt = prompt
        # An echoed prompt shows its special tokens, so the offsets must count them.
        skip = request.skip_special_tokens and not request.echo
        self._logprobs = CompletionLogprobs(tokenizer, skip_special_tokens=skip)
        self._echoed = not request.echo

    def piece(
        self,
        text: str,
        logprobs: Sequence[TokenLogprobs],
        prompt_logprobs: Sequence[TokenLogprobs | None] | None,
    ) -> tuple[str, Logprobs | None]:
        """The next text and log probabilities; the first piece begins with the echo."""
        shown: list[Logprobs] = []
        if not self._echoed:
            self._echoed = True
            text = self._echo_text() + text
            shown += self._echo_logprobs(prompt_logprobs or ())
        if self._request.logprobs is None:
            return text, None
        return text, _merge([*shown, self._logprobs.add(logprobs)])

    def _echo_text(self) -> str:
        if self._prompt.prompt is not None:
            return self._prompt.prompt
        return self._tokenizer.decode(self._prompt.prompt_token_ids, skip_special_tokens=False)

    def _echo_logprobs(self, entries: Sequence[TokenLogprobs | None]) -> list[Logprobs]:
        scored = [entry for entry in entries if entry is not None]
        return [self._logprobs.first_token(self._prompt.prompt_token_ids[0]), self._logprobs.add(scored)]


def _merge(parts: Sequence[Logprobs]) -> Logprobs:
    return {key: [item for part in parts for item in part[key]] for key in parts[0]}


def _choice(index: int, text: str, logprobs: Logprobs | None, finish_reason: str | None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def _response(
    tokenizer: Tokenizer,
    request: CompletionRequest,
    submission: Submission,
    results: Sequence[RequestOutput],
) -> dict[str, Any]:
    choices: list[dict[str, Any]] = []
    for prompt, result in zip(submission.requests, results, strict=True):
        for output in result.outputs:
            text, logprobs = _whole(_Choice(tokenizer, request, prompt), output, result)
            choices.append(_choice(len(choices), text, logprobs, output.finish_reason))
    completion_tokens = sum(len(output.token_ids) for result in results for output in result.outputs)
    return {**submission.head, "choices": choices, "usage": usage(submission.requests, completion_tokens)}


def _whole(choice: _Choice, output: CompletionOutput, result: RequestOutput) -> tuple[str, Logprobs | None]:
    return choice.piece(output.text, output.logprobs or (), result.prompt_logprobs)


async def _chunks(
    tokenizer: Tokenizer, request: CompletionRequest, submission: Submission
) -> AsyncGenerator[dict[str, Any], None]:
    choices = [
        _Choice(tokenizer, request, prompt) for prompt in submission.requests for _ in range(request.n)
    ]
    head = submission.head | ({"usage": None} if request.include_usage else {})
    completion_tokens = 0
    async for prompt_index, delta in submission.stream:
        if delta.error is not None:
            raise delta.error
        completion_tokens += len(delta.token_ids)
        index = prompt_index * request.n + delta.index
        text, logprobs = choices[index].piece(delta.text, delta.logprobs, delta.prompt_logprobs)
        if text or logprobs is not None or delta.finish_reason is not None:
            yield {**head, "choices": [_choice(index, text, logprobs, delta.finish_reason)]}
    if request.include_usage:
        yield {**head, "choices": [], "usage": usage(submission.requests, completion_tokens)}
