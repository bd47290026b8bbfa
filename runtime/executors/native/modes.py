"""What the native engine can be asked for."""

from __future__ import annotations

from gristmill.runtime.settings import EngineModes

__all__ = ["NATIVE_MODES"]

NATIVE_MODES = EngineModes(
    "native-x86",
    ("int8", "bfloat16"),
    ("float32", "bfloat16", "float16", "fp8", "int8", "int4"),
    frozenset({"threads", "debug_nan", "profile"}),
)
