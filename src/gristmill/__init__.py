"""Gristmill: from one recipe to a small, proven, served language model.

import gristmill

artifact = gristmill.build("demo")
with gristmill.LLM("demo") as llm:
    print(llm.generate("Once upon a time", gristmill.SamplingParams(max_tokens=32))[0].outputs[0].text)
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from gristmill.facade import LLM, build, compile
    from gristmill.runtime import errors
    from gristmill.runtime.sampling.params import SamplingParams

__all__ = ["LLM", "SamplingParams", "build", "compile", "errors"]


def __getattr__(name: str) -> _typing.Any:
    """Import what is used and no more: the command line and the layers pass through this file too."""
    if name == "errors":
        return _importlib.import_module("gristmill.runtime.errors")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_importlib.import_module("gristmill.facade"), name)
