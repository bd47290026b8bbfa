"""Cache writes of every instruction set: a token's bytes do not depend on the tokens written with it."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

_native: Any = importlib.import_module("gristmill.runtime.kernels._native")

_ISAS: list[str] = _native.instruction_sets()
_UNIT = 16
_STALE = 0xFF


@pytest.mark.parametrize("kv_type", ["float32", "bfloat16", "float16", "fp8", "int8", "int4"])
@pytest.mark.parametrize("isa", _ISAS)
def test_tokens_appended_together_give_the_bytes_that_they_give_one_by_one(isa: str, kv_type: str) -> None:
    rng = np.random.default_rng(3)
    for head_dim in (1, 16, 40, 45, 64, 80, 96, 128, 256):
        layout = _native.kv_layout(kv_type, head_dim, 0.25, 1.5)
        keys, values = rng.normal(size=(2, _UNIT, head_dim)).astype(np.float32)
        for slot in range(_UNIT):
            alone = np.full((1, layout.unit_bytes), _STALE, np.uint8)
            for tokens in range(1, _UNIT - slot + 1):
                last = slice(tokens - 1, tokens)
                _native.append(isa, layout, alone, 0, slot + tokens - 1, keys[last], values[last])
                together = np.full((1, layout.unit_bytes), _STALE, np.uint8)
                _native.append(isa, layout, together, 0, slot, keys[:tokens], values[:tokens])
                np.testing.assert_array_equal(together, alone)


def test_more_tokens_than_slots_are_refused() -> None:
    layout = _native.kv_layout("float32", 16)
    units = np.zeros((1, layout.unit_bytes), np.uint8)
    numbers = np.zeros((_UNIT, 16), np.float32)
    with pytest.raises(ValueError, match="more tokens than slots"):
        _native.append("scalar", layout, units, 0, 1, numbers, numbers)
