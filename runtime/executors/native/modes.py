"""What the native engine can be asked for."""

from __future__ import annotations

from typing import get_args

from gristmill.runtime.executors.base import KVDtype
from gristmill.runtime.settings import EngineModes

__all__ = ["NATIVE_MODES"]

NATIVE_MODES = EngineModes(
    "native-x86",
    ("int8", "bfloat16"),
    get_args(KVDtype),
    frozenset({"threads", "debug_nan", "profile"}),
)
