"""What a request may ask for, and how many may queue."""

from __future__ import annotations

from gristmill.runtime.core.config import SchedulerConfig
from gristmill.runtime.errors import RequestError

__all__ = ["check_fits", "queue_full"]


def check_fits(config: SchedulerConfig, num_prompt_tokens: int, max_tokens: int) -> None:
    """Raise RequestError (code context_length_exceeded) for a request that could never finish."""
    limit = config.max_model_len
    if num_prompt_tokens + min(max_tokens, 1) > limit:
        raise RequestError(
            "the prompt does not fit into the context",
            field="prompt",
            code="context_length_exceeded",
            found=f"{num_prompt_tokens} prompt tokens",
            expected=f"a context of {limit} tokens with room for the answer",
            hint="shorten the prompt",
        )
    if num_prompt_tokens + max_tokens > limit:
        raise RequestError(
            "prompt and max_tokens together do not fit into the context",
            field="max_tokens",
            code="context_length_exceeded",
            found=f"{num_prompt_tokens} prompt tokens and max_tokens = {max_tokens}",
            expected=f"at most {limit} tokens together",
            hint=f"ask for at most {limit - num_prompt_tokens} tokens",
        )


def queue_full(found: str, expected: str) -> RequestError:
    """The error of a request that came when the queue was full."""
    return RequestError(
        "the waiting queue is full", code="queue_full", found=found, expected=expected, hint="try again later"
    )
