"""What an engine accepts of the settings: its own formats and options, and nothing in silence."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.runtime.errors import UnsupportedError
from gristmill.runtime.settings import EngineModes, EngineSettings

MODES = EngineModes("toy", ("int8", "bfloat16"), ("bfloat16", "int8"), frozenset({"threads"}))


def test_without_a_choice_an_engine_uses_its_defaults() -> None:
    settings, options = MODES.choose(EngineSettings())
    assert (settings.compute, settings.kv_cache_dtype, options.compute) == ("int8", "bfloat16", "int8")


def test_keys_and_values_follow_float32_compute() -> None:
    modes = EngineModes("toy", ("float32",), ("float32", "bfloat16"))
    assert modes.choose(EngineSettings())[0].kv_dtype == "float32"


def test_what_an_engine_has_is_handed_on() -> None:
    asked = EngineSettings(compute="bfloat16", kv_cache_dtype="int8", threads=3)
    settings, options = MODES.choose(asked)
    assert (settings.kv_dtype, options.compute, options.threads) == ("int8", "bfloat16", 3)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"compute": "float32"}, "the toy engine has no compute float32; expected int8 or bfloat16"),
        ({"kv_cache_dtype": "fp8"}, "the toy engine has no kv_cache_dtype fp8; expected bfloat16 or int8"),
        ({"debug_nan": True}, "the toy engine has no option debug_nan"),
        ({"profile": True}, "the toy engine has no option profile"),
    ],
)
def test_what_an_engine_lacks_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError) as refused:
        MODES.choose(EngineSettings(**changes))
    assert refused.value.line() == named
