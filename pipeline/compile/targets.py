"""The compile targets by name: what there is, and what is still to come."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from gristmill.artifacts.engines import REFERENCE
from gristmill.pipeline.compile.export import export_checkpoint
from gristmill.pipeline.compile.native_x86 import compile_native, require_supported
from gristmill.pipeline.compile.target import Target
from gristmill.runtime.errors import UnsupportedError

__all__ = ["TARGETS", "find_target"]

_ALL = (
    Target(
        name="awq",
        kind="export",
        makes="a checkpoint in the AutoAWQ format",
        needs="4-bit weights everywhere",
        write=partial(export_checkpoint, "awq"),
    ),
    Target(
        name="compressed-tensors",
        kind="export",
        makes="a checkpoint in the compressed-tensors format",
        needs="nothing beyond the checkpoint",
        write=partial(export_checkpoint, "compressed-tensors"),
    ),
    Target(
        name="native-x86",
        kind="engine",
        makes="an engine for x86-64 CPUs, mapped into memory as it is",
        needs="an x86-64 machine, to prove it",
        write=compile_native,
        check=require_supported,
    ),
)

TARGETS: Mapping[str, Target] = MappingProxyType({target.name: target for target in _ALL})

_PLANNED = ("cuda", "gguf", "gptq", "modelopt", "onnx", "tensorrt", "torch")


def find_target(name: str) -> Target:
    """The target of that name. Raises UnsupportedError listing those that are available."""
    if name in TARGETS:
        return TARGETS[name]
    available = ", ".join(sorted(TARGETS))
    if name == REFERENCE:
        raise UnsupportedError(
            "target reference needs no compiling",
            found="the checkpoint itself, which every artifact carries",
            expected=available,
        )
    if name in _PLANNED:
        raise UnsupportedError(f"target {name} is not available yet", expected=available)
    close = difflib.get_close_matches(name, TARGETS, n=1)
    raise UnsupportedError(
        f"there is no target {name!r:.80}",
        expected=available,
        hint=f"did you mean {close[0]}?" if close else None,
    )
