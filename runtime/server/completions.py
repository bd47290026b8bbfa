"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import JSONResponse, Response

from gristmill.runtime.engine import EngineRequest
from gristmill.runtime.errors import RequestError
from gristmill.runtime.outputs import CompletionOutput, OutputDelta, RequestOutput
from gristmill.runtime.server.answers import Submission, check_stream, collect, prepare, submit
from gristmill.runtime.server.caller import Caller
from gristmill.runtime.server.chunks import ChunksOf, stream_events
from gristmill.runtime.server.completion_choice import CompletionChoice
from gristmill.runtime.server.events import EventStream, unless_client_leaves
from gristmill.runtime.server.fields import UNSUPPORTED_COMPLETION
from gristmill.runtime.server.models import ServedModel, find_model
from gristmill.runtime.server.parse import parse_request
from gristmill.runtime.server.protocol import CompletionRequest, sampling_params
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["complete"]

_DEFAULT_MAX_TOKENS = 16


async def complete(
    models: Mapping[str, ServedModel], body: Mapping[str, Any], caller: Caller, *, ping_seconds: float
) -> Response:
    """Answer a request, whole or as a stream. Raises RequestError, ClientDisconnect if the client leaves."""
    request = parse_request(CompletionRequest, body, UNSUPPORTED_COMPLETION)
    check_stream(request)
    _check_best_of(request)
    model = find_model(models, request.model)
    requests = await model.prompts.run(lambda: _prepare(model, request, caller))
    submission = submit(model, "cmpl", "text_completion", requests, request, caller)
    if request.stream:
        events = stream_events(submission, request, _chunks_of(model.tokenizer, request, submission))
        return EventStream(events, submission.stream.abort, ping_seconds, submission.debug_headers)
    try:
        results = await unless_client_leaves(collect(submission), caller.receive)
    finally:
        submission.stream.abort()
    headers = await submission.debug_headers()
    return JSONResponse(_response(model.tokenizer, request, submission, results), headers=headers)


def _check_best_of(request: CompletionRequest) -> None:
    if request.best_of is None or request.best_of == request.n:
        return
    if request.best_of < request.n:
        raise RequestError(
            "best_of is less than n", field="best_of", found=request.best_of, expected=f"at least {request.n}"
        )
    if request.stream:
        raise RequestError("best_of beyond n needs stream = false: the best are known last", field="best_of")
    if request.temperature == 0:
        raise RequestError("best_of needs a temperature: else all answers are the same", field="best_of")


def _prepare(model: ServedModel, request: CompletionRequest, caller: Caller) -> list[EngineRequest]:
    max_tokens = _DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    num_samples = request.n if request.best_of is None else request.best_of
    ranked = num_samples > request.n
    params = sampling_params(
        request,
        n=num_samples,
        max_tokens=max_tokens,
        logprobs=request.logprobs or 0 if ranked else request.logprobs,
        prompt_logprobs=_prompt_logprobs(request, scores_only=max_tokens == 0),
    )
    prompts = _prompts(request)
    model.prompts.check_count(len(prompts) * num_samples)
    return [prepare(model, prompt, params, request, caller) for prompt in prompts]


def _prompt_logprobs(request: CompletionRequest, *, scores_only: bool) -> int | None:
    """How many to report at each place: what the field asks for, and what an echo with logprobs shows."""
    if not request.echo:
        return request.prompt_logprobs
    asked = [count for count in (request.prompt_logprobs, request.logprobs) if count is not None]
    return max(asked, default=0 if scores_only else None)


def _prompts(request: CompletionRequest) -> Sequence[str | list[int]]:
    prompt = request.prompt
    if not prompt:
        raise RequestError("the prompt is empty", field="prompt", expected="text or token ids")
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt[0], int):
        return [[token_id for token_id in prompt if isinstance(token_id, int)]]
    return [part for part in prompt if not isinstance(part, int)]


def _response(
    tokenizer: Tokenizer,
    request: CompletionRequest,
    submission: Submission,
    results: Sequence[RequestOutput],
) -> dict[str, Any]:
    choices: list[dict[str, Any]] = []
    for prompt, result in zip(submission.requests, results, strict=True):
        for output in _best(result.outputs, request.n):
            choice = CompletionChoice(tokenizer, request, prompt, len(choices))
            choices.append(choice.whole(output, result.prompt_logprobs))
    return {**submission.head, "choices": choices, "usage": submission.usage.to_dict()}


def _best(outputs: Sequence[CompletionOutput], count: int) -> Sequence[CompletionOutput]:
    """The answers of the highest mean log probability a token, the best first; or just all."""
    if len(outputs) == count:
        return outputs
    return sorted(outputs, key=_mean_logprob, reverse=True)[:count]


def _mean_logprob(output: CompletionOutput) -> float:
    entries = output.logprobs or ()
    return sum(entry.logprob for entry in entries) / max(1, len(entries))


def _chunks_of(tokenizer: Tokenizer, request: CompletionRequest, submission: Submission) -> ChunksOf:
    choices = [
        CompletionChoice(tokenizer, request, prompt, index)
        for index, prompt in enumerate(prompt for prompt in submission.requests for _ in range(request.n))
    ]

    def chunks_of(prompt_index: int, delta: OutputDelta) -> list[dict[str, Any]]:
        choice = choices[prompt_index * request.n + delta.index]
        chunks: list[dict[str, Any]] = []
        if request.return_progress and delta.progress is not None:
            chunks.append(
                {"choices": [choice.empty()], "prompt_progress": submission.progress(delta.progress)}
            )
        if (piece := choice.piece(delta)) is not None:
            chunks.append({"choices": [piece]})
        return chunks

    return chunks_of
