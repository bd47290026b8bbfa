"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import JSONResponse, Response

from gristmill.runtime.engine import EngineRequest
from gristmill.runtime.errors import RequestError
from gristmill.runtime.outputs import CompletionOutput, OutputDelta, RequestOutput
from gristmill.runtime.sampling.logprobs import TokenLogprobs
from gristmill.runtime.sampling.params import MAX_LOGPROBS
from gristmill.runtime.server.answers import Submission, check_stream, collect, prepare, submit
from gristmill.runtime.server.caller import Caller
from gristmill.runtime.server.chunks import ChunksOf, stream_events
from gristmill.runtime.server.events import EventStream, unless_client_leaves
from gristmill.runtime.server.fields import unsupported_chat
from gristmill.runtime.server.models import ServedModel, find_model
from gristmill.runtime.server.parse import parse_request
from gristmill.runtime.server.prompts import about_messages, render_chat
from gristmill.runtime.server.protocol import ChatRequest, sampling_params
from gristmill.runtime.server.token_text import chat_logprobs, prompt_logprobs
from gristmill.runtime.tokenizer import Tokenizer

__all__ = ["chat"]


async def chat(
    models: Mapping[str, ServedModel], body: Mapping[str, Any], caller: Caller, *, ping_seconds: float
) -> Response:
    """Answer a chat, whole or as a stream. Raises RequestError, ClientDisconnect if the client leaves."""
    request = parse_request(ChatRequest, body, unsupported_chat(body))
    check_stream(request)
    model = find_model(models, request.model)
    prepared = await model.prompts.run(lambda: _prepare(model, request, caller))
    if request.stream:
        submission = submit(model, "chatcmpl", "chat.completion.chunk", [prepared], request, caller)
        events = stream_events(submission, request, _chunks_of(model.tokenizer, request, submission))
        return EventStream(events, submission.stream.abort, ping_seconds, submission.debug_headers)
    submission = submit(model, "chatcmpl", "chat.completion", [prepared], request, caller)
    try:
        (result,) = await unless_client_leaves(collect(submission), caller.receive)
    finally:
        submission.stream.abort()
    headers = await submission.debug_headers()
    return JSONResponse(_response(model.tokenizer, request, submission, result), headers=headers)


def _prepare(model: ServedModel, request: ChatRequest, caller: Caller) -> EngineRequest:
    params = sampling_params(
        request,
        n=request.n,
        max_tokens=_max_tokens(request),
        logprobs=_logprobs(request),
        prompt_logprobs=request.prompt_logprobs,
    )
    with about_messages():
        text = render_chat(model.tokenizer, request)
        return prepare(model, text, params, request, caller)


def _max_tokens(request: ChatRequest) -> int | None:
    given = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(given) > 1:
        raise RequestError(
            "max_tokens and max_completion_tokens differ",
            field="max_tokens",
            found=f"{request.max_tokens} and {request.max_completion_tokens}",
            hint="give one of them",
        )
    return given.pop() if given else None


def _logprobs(request: ChatRequest) -> int | None:
    if request.top_logprobs is None:
        return 0 if request.logprobs else None
    if not request.logprobs:
        raise RequestError("top_logprobs needs logprobs = true", field="top_logprobs")
    if not 0 <= request.top_logprobs <= MAX_LOGPROBS:
        raise RequestError(
            "top_logprobs is invalid",
            field="top_logprobs",
            found=request.top_logprobs,
            expected=f"0 to {MAX_LOGPROBS}",
        )
    return request.top_logprobs


def _response(
    tokenizer: Tokenizer, request: ChatRequest, submission: Submission, result: RequestOutput
) -> dict[str, Any]:
    response = {
        **submission.head,
        "choices": [_choice(tokenizer, request, output) for output in result.outputs],
        "usage": submission.usage.to_dict(),
    }
    if request.prompt_logprobs is not None:
        scores = result.prompt_logprobs or ()
        response["prompt_logprobs"] = prompt_logprobs(tokenizer, scores, request.prompt_logprobs)
    if request.return_token_ids:
        response["prompt_token_ids"] = list(result.prompt_token_ids)
    return response


def _choice(tokenizer: Tokenizer, request: ChatRequest, output: CompletionOutput) -> dict[str, Any]:
    choice = {
        "index": output.index,
        "message": {"role": "assistant", "content": output.text, "refusal": None},
        "logprobs": _shown_logprobs(tokenizer, request, output.logprobs),
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
    }
    return choice | ({"token_ids": list(output.token_ids)} if request.return_token_ids else {})


def _shown_logprobs(
    tokenizer: Tokenizer, request: ChatRequest, entries: Sequence[TokenLogprobs] | None
) -> dict[str, Any] | None:
    if entries is None:
        return None
    return chat_logprobs(tokenizer, entries, as_ids=request.return_tokens_as_token_ids)


def _chunks_of(tokenizer: Tokenizer, request: ChatRequest, submission: Submission) -> ChunksOf:
    begun: set[int] = set()

    def chunks_of(_: int, delta: OutputDelta) -> list[dict[str, Any]]:
        chunks: list[dict[str, Any]] = []
        if request.return_progress and delta.progress is not None:
            nothing = {"index": delta.index, "delta": {}, "logprobs": None, "finish_reason": None}
            chunks.append({"choices": [nothing], "prompt_progress": submission.progress(delta.progress)})
        if delta.text or delta.token_ids or delta.finish_reason:
            for choice in _delta_choices(tokenizer, request, delta, first=delta.index not in begun):
                chunks.append({"choices": [choice], **_prompt_ids(request, submission, begun)})
                begun.add(delta.index)
        return chunks

    return chunks_of


def _prompt_ids(request: ChatRequest, submission: Submission, begun: set[int]) -> dict[str, Any]:
    """The prompt's token ids in the first chunk, if asked for."""
    if begun or not request.return_token_ids:
        return {}
    return {"prompt_token_ids": list(submission.requests[0].prompt_token_ids)}


def _delta_choices(
    tokenizer: Tokenizer, request: ChatRequest, delta: OutputDelta, *, first: bool
) -> Sequence[dict[str, Any]]:
    """The role once, what is new, the reason at the end: each in a chunk of its own, as OpenAI sends them."""
    logprobs = _shown_logprobs(tokenizer, request, delta.logprobs) if delta.logprobs else None
    ids = {"token_ids": list(delta.token_ids)} if request.return_token_ids and delta.token_ids else {}
    choices: list[dict[str, Any]] = []
    if first:
        choices.append({"delta": {"role": "assistant", "content": ""}})
    if delta.text or logprobs or ids:
        choices.append({"delta": {"content": delta.text}, "logprobs": logprobs, **ids})
    if delta.finish_reason is not None:
        end = {"finish_reason": delta.finish_reason, "stop_reason": delta.stop_reason}
        choices.append({"delta": {}, **end})
    return [{"index": delta.index, "logprobs": None, "finish_reason": None, **choice} for choice in choices]
