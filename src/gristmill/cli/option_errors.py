"""Faults of options in one form: the option as it is typed, what was found, what is expected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from typer.exceptions import TyperException

from gristmill.runtime.errors import InputError

__all__ = ["with_option_names", "wrong_value"]

# Settings of the runtime whose options have another name than theirs.
_RENAMED: Mapping[str, str] = MappingProxyType(
    {
        "cors_origins": "--cors-origin",
        "grace_seconds": "--grace",
        "itl_target_ms": "--itl-target",
        "kv_cache_bytes": "--kv-cache-memory",
        "max_open_per_tenant": "--max-open-per-key",
        "memory_bytes": "--memory",
        "ping_seconds": "--ping-interval",
        "stall_seconds": "--stall",
    }
)
_SAME = (
    "admin_token",
    "block_size",
    "kv_cache_dtype",
    "max_model_len",
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_waiting",
    "max_waiting_tokens",
    "memory_restart",
    "memory_soft",
    "threads",
)
_OPTIONS = {**_RENAMED, **{name: f"--{name.replace('_', '-')}" for name in _SAME}}
_SETTING = re.compile(rf"(?<![\w.-])({'|'.join(_OPTIONS)})(?![\w.-])")

_NUMBERS: Mapping[str, str] = MappingProxyType({"int": "a whole number", "float": "a number"})


def with_option_names(line: str) -> str:
    """An error's line in which settings that lead it are called by their options."""
    what, separator, rest = line.partition("; ")
    if _SETTING.match(what):
        what = _SETTING.sub(lambda name: _OPTIONS[name[0]], what)
    return what + separator + rest


def wrong_value(error: TyperException) -> InputError | None:
    """The fault of a value that is no number where one is needed; None for any other error of usage."""
    from pydantic import ValidationError  # as Typer does: not where nothing is wrong

    fault, parameter = error.__cause__, getattr(error, "param", None)
    if not isinstance(fault, ValidationError) or parameter is None:
        return None
    details = fault.errors(include_url=False)[0]
    kind = details["type"].partition("_")[0]
    if kind not in _NUMBERS:
        return None
    option = max(parameter.opts, key=len)
    return InputError(option, found=f'"{details["input"]}"', expected=_NUMBERS[kind])
